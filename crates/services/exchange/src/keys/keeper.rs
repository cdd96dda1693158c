//! The handle of the key keeper: starts a round of key maintenance, and waits for one.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use batzen_crypto::EddsaPublicKey;
use batzen_http::client::ClientError;
use batzen_store::StoreError;
use batzen_tables::exchange::DenomSerial;
use tokio::sync::{Notify, oneshot, watch};

use super::KeyError;
use crate::offline::OfflineError;

/// The reasons why the set-up of a stand-alone exchange fails.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The master key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A step of the offline workflow failed.
    #[error(transparent)]
    Offline(#[from] OfflineError),
    /// The exchange did not answer the set-up's request.
    #[error(transparent)]
    Http(#[from] ClientError),
    /// The exchange listens on a local socket only.
    #[error("a stand-alone exchange needs a TCP port to talk to itself")]
    NoPort,
}

/// The reasons why a round of key maintenance fails. Every caller that waits for the round gets a copy.
#[derive(Clone, Debug, thiserror::Error)]
pub enum KeyRoundError {
    /// The exchange is ending.
    #[error("the exchange is shutting down")]
    Stopping,
    /// A private key cannot be loaded, created or erased.
    #[error(transparent)]
    Keys(Arc<KeyError>),
    /// The key set cannot be read.
    #[error(transparent)]
    Store(Arc<StoreError>),
    /// The stand-alone set-up failed.
    #[error(transparent)]
    Setup(Arc<SetupError>),
    /// No process with the private keys answered.
    #[error("{0}")]
    NoKeyholder(String),
    /// The processes with the private keys have not created all keys yet.
    #[error("the keys are still being created")]
    KeysInTheMaking,
}

impl From<KeyError> for KeyRoundError {
    fn from(error: KeyError) -> Self {
        Self::Keys(Arc::new(error))
    }
}

impl From<StoreError> for KeyRoundError {
    fn from(error: StoreError) -> Self {
        Self::Store(Arc::new(error))
    }
}

impl From<SetupError> for KeyRoundError {
    fn from(error: SetupError) -> Self {
        Self::Setup(Arc::new(error))
    }
}

/// The least time between two rounds that requests for missing keys start, since anybody may send them.
const MISSING_KEYS_PAUSE: Duration = Duration::from_secs(10);

/// The service's handle to its key keeper.
#[derive(Debug)]
pub struct Keeper {
    pub(crate) ready: watch::Sender<Option<Result<(), KeyRoundError>>>,
    pub(crate) round_requested: Notify,
    /// Callers that wait for the end of a round that has not begun.
    pub(crate) waiting: Mutex<Vec<oneshot::Sender<Result<(), KeyRoundError>>>>,
    /// With signers: the revoked keys that every signer has destroyed, and whether any is left.
    confirmed: Mutex<Confirmed>,
    /// When a request for missing keys last started a round.
    missing_keys_requested: Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
pub(crate) struct Confirmed {
    pub(crate) denoms: HashSet<DenomSerial>,
    pub(crate) signing: HashSet<EddsaPublicKey>,
    pub(crate) is_missing: bool,
}

impl Default for Keeper {
    fn default() -> Self {
        Self {
            ready: watch::Sender::new(None),
            round_requested: Notify::new(),
            waiting: Mutex::default(),
            confirmed: Mutex::default(),
            missing_keys_requested: Mutex::default(),
        }
    }
}

impl Keeper {
    /// Waits for the end of the first round.
    pub(crate) async fn ready(&self) -> Result<(), KeyRoundError> {
        let mut receiver = self.ready.subscribe();
        let result = receiver.wait_for(Option::is_some).await.map(|result| result.clone());
        // The sender lives in `self`, so waiting cannot fail.
        result.ok().flatten().unwrap_or(Ok(()))
    }

    /// Starts a round after the current one, because a key was revoked.
    pub(crate) fn request_round(&self) {
        self.round_requested.notify_one();
    }

    /// Starts a round because keys are missing, unless such a request has done so a moment ago.
    pub(crate) fn request_missing_keys(&self) {
        let mut requested = self.missing_keys_requested.lock().unwrap_or_else(PoisonError::into_inner);
        if requested.is_none_or(|at| at.elapsed() >= MISSING_KEYS_PAUSE) {
            *requested = Some(Instant::now());
            self.request_round();
        }
    }

    /// Returns whether a revocation is not yet confirmed by every signer.
    pub(crate) fn has_unconfirmed(&self) -> bool {
        self.confirmed().is_missing
    }

    pub(crate) fn confirmed(&self) -> MutexGuard<'_, Confirmed> {
        self.confirmed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a round and waits for its end.
    ///
    /// # Errors
    /// The round's failure.
    pub async fn round(&self) -> Result<(), KeyRoundError> {
        let (sender, receiver) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
        self.request_round();
        receiver.await.unwrap_or_else(|_| Err(KeyRoundError::Stopping))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn many_requests_for_missing_keys_start_one_round() {
        let keeper = Keeper::default();
        for _ in 0..3 {
            keeper.request_missing_keys();
        }
        assert!(keeper.round_requested.notified().now_or_never().is_some());
        keeper.request_missing_keys();
        assert!(keeper.round_requested.notified().now_or_never().is_none());
    }
}
