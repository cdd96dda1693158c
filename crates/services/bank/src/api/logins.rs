//! Log-ins: the only code that checks passwords.
//!
//! Requests with HTTP basic authentication carry the password each time. A right one is remembered for a
//! while, by its keyed hash and the client's address, so that it needs no further password hash. Concurrent
//! requests with the same credentials share one check. All other checks are limited (`guesses`) and hashed by
//! a few threads. When too many are waiting, the client has to try again later.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use batzen_crypto::ShortHash;
use batzen_crypto::hash::sha512_parts;
use batzen_http::{ClientKey, ErrorCode, Head, Response};
use batzen_service::{Checked, TooMany};
use subtle::ConstantTimeEq;
use tokio::sync::{OnceCell, Semaphore};

use super::{FAILURES, Service};
use crate::password::{self, PASSWORD_BYTES_MAX, PasswordCost, Verified};
use crate::rules::SetPassword;

/// Threads that check passwords.
const CHECK_THREADS: usize = 2;
/// Threads that hash passwords of new accounts.
const REGISTRATION_THREADS: usize = 1;
/// Most password checks that run or wait.
const CHECKS_MAX: usize = 64;
/// Most new passwords that are hashed or wait for it. They have their own queue and thread, so that mass
/// registrations do not delay log-ins.
const REGISTRATIONS_MAX: usize = 64;
/// Most credentials remembered.
const REMEMBERED_MAX: usize = 4_096;
/// Time that credentials are remembered.
const REMEMBERED_FOR: Duration = Duration::from_secs(600);
/// Wrong passwords after which remembered credentials are forgotten, because this comparison is not limited.
const MISSES_MAX: u32 = 100;

type Digest = [u8; 64];

/// Right credentials.
struct Remembered {
    digest: Digest,
    since: Instant,
    misses: AtomicU32,
}

/// A few threads with a bounded queue.
struct Hashers {
    threads: Arc<Semaphore>,
    queue: Semaphore,
}

impl Hashers {
    fn new(threads: usize, queue: usize) -> Self {
        Self { threads: Arc::new(Semaphore::new(threads)), queue: Semaphore::new(queue) }
    }

    /// Runs work on one of the threads: 503 if the queue is full.
    async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Checked<T> {
        let Ok(_place) = self.queue.try_acquire() else {
            return Err(FAILURES.try_later("too many passwords to check now"));
        };
        let broken = || Response::error(ErrorCode::BANK_UNMANAGED_EXCEPTION, "");
        let thread = Arc::clone(&self.threads).acquire_owned().await.map_err(|_| broken())?;
        let done = tokio::task::spawn_blocking(move || {
            // Held until the work is done, even if its caller has gone.
            let _thread = thread;
            work()
        });
        done.await.map_err(|_| broken())
    }
}

/// A running check of credentials. Its entry is removed when the request ends or is dropped.
struct Check<'a> {
    checks: &'a Mutex<HashMap<Digest, Arc<OnceCell<bool>>>>,
    digest: Digest,
    verdict: Arc<OnceCell<bool>>,
}

impl<'a> Check<'a> {
    fn join(checks: &'a Mutex<HashMap<Digest, Arc<OnceCell<bool>>>>, digest: Digest) -> Self {
        let verdict = Arc::clone(lock(checks).entry(digest).or_default());
        Self { checks, digest, verdict }
    }
}

impl Drop for Check<'_> {
    fn drop(&mut self) {
        let mut checks = lock(self.checks);
        if checks.get(&self.digest).is_some_and(|verdict| Arc::ptr_eq(verdict, &self.verdict)) {
            checks.remove(&self.digest);
        }
    }
}

/// State of password checks.
pub(super) struct Logins {
    salt: [u8; 16],
    cost: PasswordCost,
    /// A random key, so that the memory's content does not help to guess passwords.
    key: [u8; 32],
    checkers: Hashers,
    registrars: Hashers,
    remembered: RwLock<HashMap<(String, ClientKey), Remembered>>,
    /// Credentials under check, with the result.
    checks: Mutex<HashMap<Digest, Arc<OnceCell<bool>>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Logins {
    pub(super) fn new(salt: [u8; 16], cost: PasswordCost) -> Self {
        let mut key = [0; 32];
        batzen_crypto::fill_random(&mut key);
        Self {
            salt,
            cost,
            key,
            checkers: Hashers::new(CHECK_THREADS, CHECKS_MAX),
            registrars: Hashers::new(REGISTRATION_THREADS, REGISTRATIONS_MAX),
            remembered: RwLock::default(),
            checks: Mutex::default(),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<(String, ClientKey), Remembered>> {
        self.remembered.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<(String, ClientKey), Remembered>> {
        self.remembered.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn digest(&self, (account, address): &(String, ClientKey), password: &str) -> Digest {
        let address = match address {
            ClientKey::Local => Vec::new(),
            ClientKey::V4(ip) => ip.octets().to_vec(),
            ClientKey::V6(network) => network.iter().flat_map(|part| part.to_be_bytes()).collect(),
        };
        let length = |text: &[u8]| (text.len() as u64).to_be_bytes();
        let parts: [&[u8]; 6] = [
            &self.key,
            &length(account.as_bytes()),
            account.as_bytes(),
            &length(&address),
            &address,
            password.as_bytes(),
        ];
        *sha512_parts(&parts).as_bytes()
    }

    /// Returns whether these credentials were right recently.
    fn remembers(&self, pair: &(String, ClientKey), digest: &Digest, now: Instant) -> bool {
        let remembered = self.read();
        let Some(entry) = remembered.get(pair) else { return false };
        if now.saturating_duration_since(entry.since) >= REMEMBERED_FOR {
            return false;
        }
        if bool::from(entry.digest[..].ct_eq(&digest[..])) {
            return true;
        }
        let misses = entry.misses.fetch_add(1, Relaxed);
        drop(remembered);
        if misses >= MISSES_MAX {
            self.write().remove(pair);
        }
        false
    }

    fn remember(&self, pair: &(String, ClientKey), digest: Digest, now: Instant) {
        let mut remembered = self.write();
        if remembered.len() >= REMEMBERED_MAX && !remembered.contains_key(pair) {
            let oldest = remembered.iter().min_by_key(|(_, entry)| entry.since).map(|(pair, _)| pair.clone());
            remembered.remove(&oldest.expect("there are many"));
        }
        remembered.insert(pair.clone(), Remembered { digest, since: now, misses: AtomicU32::new(0) });
    }
}

/// The client's address: that of the connection, or the one that a trusted proxy reports.
fn address(head: &Head) -> ClientKey {
    ClientKey::of(head.client)
}

/// The response to too many attempts.
fn too_many(wait: TooMany) -> Response {
    wait.wait(Response::error_status(ErrorCode::BANK_LOGIN_FAILED, 429, TooMany::DETAIL))
}

impl Service {
    /// The hash of a new password.
    pub(super) async fn hash_password(&self, account: String, password: String) -> Checked<ShortHash> {
        let (salt, cost) = (self.logins.salt, self.logins.cost);
        self.logins.registrars.run(move || password::hash(cost, &salt, &account, &password)).await
    }

    /// Checks an account's password, for all kinds of log-in: 403, code 5105 if it is wrong or the account
    /// does not exist; 429 after too many wrong ones; 503 if too many checks are waiting.
    pub(super) async fn check_password(&self, head: &Head, account: &str, password: &str) -> Checked<()> {
        let wrong = || Response::error(ErrorCode::BANK_LOGIN_FAILED, "");
        if password.len() > PASSWORD_BYTES_MAX || !crate::names::is_account_name(account) {
            return Err(wrong());
        }
        let pair = (account.to_owned(), address(head));
        let digest = self.logins.digest(&pair, password);
        if self.logins.remembers(&pair, &digest, Instant::now()) {
            return Ok(());
        }
        let check = Check::join(&self.logins.checks, digest);
        let verdict =
            check.verdict.get_or_try_init(|| self.check_anew(head, &pair, password, digest)).await.copied();
        if verdict? { Ok(()) } else { Err(wrong()) }
    }

    async fn check_anew(
        &self,
        head: &Head,
        pair: &(String, ClientKey),
        password: &str,
        digest: Digest,
    ) -> Checked<bool> {
        let account = pair.0.as_str();
        let logins = &self.logins;
        let now = Instant::now();
        if logins.remembers(pair, &digest, now) {
            return Ok(true);
        }
        let attempt = self.monitor.guesses().begin(head, account).map_err(too_many)?;
        let verified: Checked<_> = async {
            let stored = self.find_account(account).await?.and_then(|row| row.password_hash);
            let (name, password) = (account.to_owned(), password.to_owned());
            let (salt, cost) = (logins.salt, logins.cost);
            let verify = move || password::verify(cost, stored, &salt, &name, &password);
            Ok((stored, logins.checkers.run(verify).await?))
        }
        .await;
        let (stored, verified) = match verified {
            Ok(verified) => verified,
            Err(response) => {
                attempt.undo();
                return Err(response);
            }
        };
        if verified == Verified::Wrong {
            return Ok(false);
        }
        attempt.succeeded();
        logins.remember(pair, digest, now);
        if let Verified::Outdated(password_hash) = verified {
            let command = SetPassword { name: account.to_owned(), replaces: stored, password_hash };
            // The next log-in tries again.
            if !matches!(self.executor.execute(command.into()).await, Ok(Ok(_))) {
                tracing::warn!("a password hash of an earlier build was not replaced");
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_full_queue_is_answered_at_once() {
        let hashers = Arc::new(Hashers::new(1, 3));
        let (release, wait) = mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        let works: Vec<_> = (0..3)
            .map(|n| {
                let (hashers, wait) = (Arc::clone(&hashers), Arc::clone(&wait));
                tokio::spawn(async move { hashers.run(move || lock(&wait).recv().map(|()| n)).await })
            })
            .collect();
        while hashers.queue.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let Err(refused) = hashers.run(|| ()).await else { panic!("the queue is full") };
        assert_eq!(refused.status, 503);
        for _ in 0..3 {
            release.send(()).unwrap();
        }
        for (n, work) in works.into_iter().enumerate() {
            assert_eq!(work.await.unwrap().ok().unwrap(), Ok(n));
        }
        assert!(hashers.run(|| ()).await.is_ok());
    }

    #[test]
    fn a_dropped_request_leaves_no_check_behind() {
        let checks = Mutex::default();
        let first = Check::join(&checks, [1; 64]);
        let second = Check::join(&checks, [1; 64]);
        assert!(Arc::ptr_eq(&first.verdict, &second.verdict));
        drop(first);
        let third = Check::join(&checks, [1; 64]);
        drop(second);
        assert_eq!(lock(&checks).len(), 1, "of the third");
        drop(third);
        assert!(lock(&checks).is_empty());
    }
}
