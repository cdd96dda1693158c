//! Sends what web hooks have to say, so that a slow receiver delays only itself.
//!
//! Calls under way are limited for each receiver, for each shop and in total. A receiver that fails or takes long gets one
//! call at a time, and what else is due for it is put off in the store: the queue of all calls is in the order of their
//! times, and whatever stays at its head would be in everybody's way.

use std::collections::{HashMap, HashSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration as StdDuration;

use batzen_crypto::HashCode;
use batzen_http::Method;
use batzen_http::client::{Client, ClientError};
use batzen_protocol::{Duration, Timestamp};
use batzen_store::{Found, Store};
use batzen_tables::merchant::{
    PendingWebhookKey, PendingWebhookRow, PendingWebhooks, WebhookKey, WebhookRow, Webhooks,
};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Checked;
use super::Merchant;
use super::webhooks::all_webhooks;
use crate::rules::{DeferWebhook, FinishWebhook, TakeWebhook};

/// After so many failures a request is given up: with the pauses below, after a day and a half.
pub(super) const FAILURES_MAX: u32 = 16;
/// The most calls for one event of an order. With more than four hooks for the event, each is tried less often.
const EVENT_CALLS_MAX: u32 = 64;
/// The pause after the first failure. It doubles with each.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
/// The longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(3 * 3_600);
/// Time that a process may take to send a request.
const TAKEN: Duration = Duration::from_secs(60);
/// Time that a receiver may take.
pub(crate) const HOOK_TIMEOUT: StdDuration = StdDuration::from_secs(10);
/// Requests that are read at a time.
const PAGE: usize = 128;

/// Calls under way at the same time.
const CALLS_MAX: usize = 256;
/// Calls of a shop under way at the same time.
const SHOP_CALLS_MAX: usize = 8;
/// Calls to a receiver under way at the same time.
const RECEIVER_CALLS_MAX: usize = 4;
/// A receiver is slow from this time on.
const SLOW: StdDuration = StdDuration::from_secs(1);
/// The pause after which a slow receiver gets its next call. It doubles with each failure.
const SLOW_PAUSE: Duration = Duration::from_secs(2);
/// The longest such pause.
const SLOW_PAUSE_MAX: Duration = Duration::from_secs(60);
/// Calls that are put off until the same time.
const PUT_OFF_TOGETHER: u32 = 16;
/// The longest time for which calls are put off.
const PUT_OFF_MAX: Duration = Duration::from_secs(600);
/// The maximum number of receivers whose failures are remembered.
const RECEIVERS_MAX: usize = 4_096;

/// Calls under way, and receivers that do not keep up.
#[derive(Default)]
pub(super) struct Queues {
    state: Mutex<State>,
    /// A call has ended.
    ended: Notify,
}

#[derive(Default)]
struct State {
    calls: HashSet<(String, HashCode)>,
    shops: HashMap<String, Line>,
    receivers: HashMap<String, Line>,
}

/// Calls of a shop, or to a receiver.
#[derive(Default)]
struct Line {
    under_way: Vec<Instant>,
    /// Failures in succession.
    failures: u32,
    /// The time of the next call, after a failure.
    not_before: Option<Timestamp>,
    /// Calls that were put off since the last success.
    put_off: u32,
}

impl Line {
    fn is_slow(&self, at: Instant) -> bool {
        let is_long = |began: &Instant| at.saturating_duration_since(*began) > SLOW;
        self.failures > 0 || self.under_way.iter().any(is_long)
    }

    fn is_idle(&self) -> bool {
        self.under_way.is_empty() && self.failures == 0
    }

    /// The pause after its failures.
    fn pause(&self) -> Duration {
        doubled(SLOW_PAUSE, self.failures, SLOW_PAUSE_MAX)
    }

    /// The time until which another call is put off: the later, the more wait.
    fn put_off(&mut self, now: Timestamp) -> Timestamp {
        let rounds = u64::from(1 + self.put_off / PUT_OFF_TOGETHER);
        self.put_off = self.put_off.saturating_add(1);
        let pause = Duration::from_micros(self.pause().as_micros().saturating_mul(rounds));
        now.saturating_add(pause.min(PUT_OFF_MAX))
    }
}

/// The decision about a call that is due.
enum Verdict {
    /// It may begin.
    Go(Call),
    /// Others of its receiver or shop are about to end.
    Wait,
    /// It must not be in the way of others until then.
    Later(Timestamp),
}

/// A call under way.
struct Call {
    queues: Arc<Queues>,
    id: (String, HashCode),
    receiver: String,
    began: Instant,
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut state = self.queues.lock();
        state.calls.remove(&self.id);
        let State { shops, receivers, .. } = &mut *state;
        for (lines, name) in [(shops, &self.id.0), (receivers, &self.receiver)] {
            let Some(line) = lines.get_mut(name) else { continue };
            if let Some(place) = line.under_way.iter().position(|began| *began == self.began) {
                line.under_way.swap_remove(place);
            }
            if line.is_idle() {
                lines.remove(name);
            }
        }
        drop(state);
        self.queues.ended.notify_one();
    }
}

impl Call {
    /// Notes how the receiver behaved.
    fn note(&self, is_done: bool, now: Timestamp, at: Instant) {
        let mut state = self.queues.lock();
        let Some(line) = state.receivers.get_mut(&self.receiver) else { return };
        if is_done && at.saturating_duration_since(self.began) <= SLOW {
            *line = Line { under_way: std::mem::take(&mut line.under_way), ..Line::default() };
        } else {
            line.failures = line.failures.saturating_add(1);
            line.not_before = Some(now.saturating_add(line.pause()));
        }
    }
}

impl Queues {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides about a call that is due.
    fn admit(
        self: &Arc<Self>,
        key: &PendingWebhookKey,
        receiver: &str,
        now: Timestamp,
        at: Instant,
    ) -> Verdict {
        let mut state = self.lock();
        let id = (key.instance.clone(), key.event);
        if state.calls.contains(&id) || state.calls.len() >= CALLS_MAX {
            return Verdict::Wait;
        }
        if state.receivers.len() >= RECEIVERS_MAX {
            // What is forgotten is found out again.
            state.receivers.retain(|_, line| !line.under_way.is_empty());
        }
        if let Some(shop) = state.shops.get_mut(&id.0).filter(|shop| shop.under_way.len() >= SHOP_CALLS_MAX) {
            return if shop.is_slow(at) { Verdict::Later(shop.put_off(now)) } else { Verdict::Wait };
        }
        let line = state.receivers.entry(receiver.to_owned()).or_default();
        let is_slow = line.is_slow(at);
        let is_full = line.under_way.len() >= if is_slow { 1 } else { RECEIVER_CALLS_MAX };
        if is_full || line.not_before.is_some_and(|time| now < time) {
            return if is_slow { Verdict::Later(line.put_off(now)) } else { Verdict::Wait };
        }
        line.under_way.push(at);
        state.shops.entry(id.0.clone()).or_default().under_way.push(at);
        state.calls.insert(id.clone());
        Verdict::Go(Call { queues: Arc::clone(self), id, receiver: receiver.to_owned(), began: at })
    }

    /// Waits until a call has ended.
    pub(super) async fn ended(&self) {
        self.ended.notified().await;
    }
}

/// The server of a URL, by which receivers are told apart.
fn receiver_of(url: &str) -> String {
    url.split(['/', '?', '#']).nth(2).unwrap_or_default().to_ascii_lowercase()
}

/// Begins the calls that are due, and puts off those that would be in the way of others. Returns whether more may be due that
/// do not wait for one under way.
pub(super) async fn send_due(app: &Arc<Merchant>) -> Checked<bool> {
    let now = app.core.now();
    let read = move |store: &Store| {
        let until = Bound::Included(batzen_store::Column::to_bytes(&now));
        let due = store.range_bytes::<PendingWebhooks>(
            PendingWebhooks::BY_NEXT,
            Bound::Unbounded,
            until,
            PAGE,
            false,
        )?;
        let with_hook = |found: Found<PendingWebhooks>| {
            let hook = store.get::<Webhooks>(&hook_key(&found))?;
            Ok((found, hook.map(|hook| hook.row)))
        };
        due.into_iter().map(with_hook).collect::<Result<Vec<_>, batzen_store::StoreError>>()
    };
    let due = app.core.read(read).await?;
    let is_full = due.len() == PAGE;
    let mut has_moved = false;
    let mut put_off = Vec::new();
    for (found, hook) in due {
        // The address of now counts, as when it is sent.
        let url = hook.map_or_else(|| found.row.url.clone(), |hook: WebhookRow| hook.url);
        match app.hook_queues.admit(&found.key, &receiver_of(&url), now, Instant::now()) {
            Verdict::Go(call) => {
                let merchant = Arc::clone(app);
                has_moved |= app.background.spawn(async move {
                    // If this fails, it is found again.
                    let _ = deliver(&merchant, found, &call).await;
                });
            }
            Verdict::Later(until) => put_off.push(DeferWebhook { key: found.key, until }),
            Verdict::Wait => {}
        }
    }
    has_moved |= !put_off.is_empty();
    let put_off = put_off.into_iter().map(|defer| app.core.execute(defer));
    for outcome in futures_util::future::join_all(put_off).await {
        outcome?.ok();
    }
    Ok(is_full && has_moved)
}

fn hook_key(found: &Found<PendingWebhooks>) -> WebhookKey {
    WebhookKey { instance: found.key.instance.clone(), webhook_id: found.row.webhook_id.clone() }
}

/// Makes a call, and books its outcome.
async fn deliver(app: &Merchant, found: Found<PendingWebhooks>, call: &Call) -> Checked<()> {
    let now = app.core.now();
    // Of several processes, one sends it. If that ends meanwhile, another one tries again later.
    let take =
        TakeWebhook { key: found.key.clone(), hook: hook_key(&found), until: now.saturating_add(TAKEN) };
    let Ok(Some(row)) = app.core.execute(take).await? else { return Ok(()) };
    let sent = send(&app.hook_client, &row).await;
    let now = app.core.now();
    call.note(sent.is_ok(), now, Instant::now());
    let mut again = None;
    if let Err(reason) = sent {
        let failures = row.failures.saturating_add(1);
        if failures < tries(app, &found.key.instance, &row.webhook_id).await? {
            again = Some(now.saturating_add(pause(failures)));
        }
        let (instance, webhook) = (&found.key.instance, &row.webhook_id);
        if again.is_none() {
            tracing::warn!(%instance, %webhook, reason, "a web hook is given up");
        } else if failures == 1 {
            tracing::info!(%instance, %webhook, reason, "a web hook failed and is tried again");
        }
    }
    app.core.execute(FinishWebhook { key: found.key, again }).await?.ok();
    Ok(())
}

/// The number of times that each of a shop's hooks for an event is tried.
async fn tries(app: &Merchant, instance: &str, webhook_id: &str) -> Checked<u32> {
    let hooks = all_webhooks(&app.core, instance).await?;
    let event = hooks.iter().find(|(id, _)| id == webhook_id).map(|(_, hook)| hook.event_type.clone());
    let count = hooks.iter().filter(|(_, hook)| Some(&hook.event_type) == event.as_ref()).count();
    Ok(tries_of(count))
}

fn tries_of(hooks: usize) -> u32 {
    let hooks = u32::try_from(hooks).unwrap_or(u32::MAX).max(1);
    (EVENT_CALLS_MAX / hooks).clamp(1, FAILURES_MAX)
}

/// Sends a request. The error is the reason for the log, without the URL: it may have a password.
async fn send(client: &Client, row: &PendingWebhookRow) -> Result<(), String> {
    let method = row.http_method.parse::<Method>().unwrap_or(Method::POST);
    let mut request = client.call(method, row.url.clone());
    if let Some(body) = &row.body {
        request = request.body("application/json", body.clone());
    }
    for line in row.header.iter().flat_map(|header| header.lines()) {
        if let Some((name, value)) = line.split_once(':') {
            request = request.header(name.trim(), value.trim());
        }
    }
    match request.send().await {
        Ok(reply) if (200..300).contains(&reply.status) => Ok(()),
        Ok(reply) => Err(format!("HTTP {}", reply.status)),
        Err(ClientError::NotPublic { .. }) => {
            Err("its address is not in [merchant] WEBHOOK_NETWORKS".to_owned())
        }
        Err(ClientError::Timeout { .. }) => Err("no answer in time".to_owned()),
        Err(_) => Err("no connection, or no answer that can be read".to_owned()),
    }
}

fn doubled(first: Duration, failures: u32, max: Duration) -> Duration {
    let doubled = first.as_micros().saturating_mul(1 << failures.saturating_sub(1).min(31));
    Duration::from_micros(doubled).min(max)
}

/// The pause after so many failures.
pub(super) fn pause(failures: u32) -> Duration {
    doubled(FIRST_PAUSE, failures, PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000);

    fn key(shop: &str, number: u8) -> PendingWebhookKey {
        PendingWebhookKey { instance: shop.to_owned(), event: HashCode::from_bytes([number; 64]) }
    }

    /// Calls of a test, with the seconds since its start.
    struct Begins {
        queues: Arc<Queues>,
        start: Instant,
    }

    impl Begins {
        fn new() -> Self {
            Self { queues: Arc::default(), start: Instant::now() }
        }

        fn at(&self, seconds: u64) -> (Timestamp, Instant) {
            let now = NOW.saturating_add(Duration::from_secs(seconds));
            (now, self.start + StdDuration::from_secs(seconds))
        }

        fn admit(&self, shop: &str, number: u8, receiver: &str, seconds: u64) -> Verdict {
            let (now, at) = self.at(seconds);
            self.queues.admit(&key(shop, number), receiver, now, at)
        }

        fn go(&self, shop: &str, number: u8, receiver: &str, seconds: u64) -> Option<Call> {
            match self.admit(shop, number, receiver, seconds) {
                Verdict::Go(call) => Some(call),
                Verdict::Wait | Verdict::Later(_) => None,
            }
        }
    }

    #[test]
    fn pauses_double_up_to_hours() {
        assert_eq!(pause(1), FIRST_PAUSE);
        assert_eq!(pause(3).as_micros(), 4 * FIRST_PAUSE.as_micros());
        assert_eq!(pause(FAILURES_MAX), PAUSE_MAX);
    }

    #[test]
    fn an_event_makes_few_calls() {
        for hooks in 1..=32 {
            let calls = tries_of(hooks) * u32::try_from(hooks).unwrap();
            assert!(calls <= EVENT_CALLS_MAX, "{hooks}");
        }
        assert_eq!((tries_of(1), tries_of(4), tries_of(32)), (FAILURES_MAX, FAILURES_MAX, 2));
    }

    #[test]
    fn receivers_are_servers() {
        assert_eq!(receiver_of("https://A.example:8443/x?y"), "a.example:8443");
        assert_eq!(receiver_of("http://a.example?y"), "a.example");
    }

    #[test]
    fn a_slow_receiver_delays_only_itself() {
        let begins = Begins::new();
        let calls: Vec<_> = (0..5).map(|n| begins.go("one", n, "slow", 0)).collect();
        assert_eq!(calls.iter().flatten().count(), RECEIVER_CALLS_MAX);
        // For a moment it looks busy only.
        assert!(matches!(begins.admit("one", 9, "slow", 0), Verdict::Wait));
        for round in [1, 2] {
            for _ in 0..PUT_OFF_TOGETHER {
                let Verdict::Later(until) = begins.admit("one", 9, "slow", 2) else { panic!("it waits") };
                assert_eq!(until, begins.at(2 + 2 * round).0);
            }
        }
        let other = begins.go("one", 10, "quick", 2).unwrap();
        assert!(begins.go("two", 11, "quick", 2).is_some());
        // What is under way is not begun again.
        assert!(begins.go("one", 10, "quick", 2).is_none());
        drop(other);
        // After failures it is tried with one call at a time.
        for call in calls.into_iter().flatten() {
            let (now, at) = begins.at(10);
            call.note(false, now, at);
        }
        assert!(begins.go("one", 12, "slow", 10).is_none());
        let Verdict::Go(probe) = begins.admit("one", 12, "slow", 70) else { panic!("it is tried") };
        assert!(matches!(begins.admit("two", 13, "slow", 70), Verdict::Later(_)));
        let (now, at) = begins.at(71);
        probe.note(true, now, at);
        drop(probe);
        let calls: Vec<_> = (20..24).map(|n| begins.go("two", n, "slow", 71)).collect();
        assert_eq!(calls.iter().flatten().count(), RECEIVER_CALLS_MAX);
        drop(calls);
        let state = begins.queues.lock();
        assert!(state.calls.is_empty() && state.receivers.is_empty() && state.shops.is_empty());
    }

    #[test]
    fn a_shop_leaves_room_for_others() {
        let begins = Begins::new();
        let calls: Vec<_> =
            (0..20).filter_map(|n| begins.go("one", n, &format!("receiver-{n}"), 0)).collect();
        assert_eq!(calls.len(), SHOP_CALLS_MAX);
        assert!(begins.go("two", 100, "receiver-1", 0).is_some());
        assert!(matches!(begins.admit("one", 99, "receiver-99", 0), Verdict::Wait));
        assert!(matches!(begins.admit("one", 99, "receiver-99", 2), Verdict::Later(_)));
    }
}
