//! The handle of the task that keeps keys coming: requests ask it for a round, and wait for one.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use batzen_crypto::EddsaPublicKey;
use batzen_tables::exchange::DenomSerial;
use tokio::sync::{Notify, oneshot, watch};

/// How the service talks to its key keeper.
#[derive(Debug)]
pub struct Keeper {
    pub(crate) ready: watch::Sender<Option<Result<(), String>>>,
    pub(crate) poke: Notify,
    /// Who waits for a round that begins from now on.
    pub(crate) waiting: Mutex<Vec<oneshot::Sender<Result<(), String>>>>,
    /// With signers: what each of them has confirmed that it has destroyed, and whether something is left.
    confirmed: Mutex<Confirmed>,
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
            poke: Notify::new(),
            waiting: Mutex::default(),
            confirmed: Mutex::default(),
        }
    }
}

impl Keeper {
    /// Waits for the end of the first round.
    pub async fn ready(&self) -> Result<(), String> {
        let mut receiver = self.ready.subscribe();
        let result = receiver.wait_for(Option::is_some).await.map(|result| result.clone());
        // The sender lives in `self`, so waiting cannot fail.
        result.ok().flatten().unwrap_or(Ok(()))
    }

    /// Starts a round as soon as the present one is over: something was revoked.
    pub fn poke(&self) {
        self.poke.notify_one();
    }

    /// Whether a signer has still to be told of a revocation.
    pub(crate) fn has_unconfirmed(&self) -> bool {
        self.confirmed().is_missing
    }

    pub(crate) fn confirmed(&self) -> MutexGuard<'_, Confirmed> {
        self.confirmed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a round and waits for its end.
    ///
    /// # Errors
    /// What went wrong in it.
    pub async fn round(&self) -> Result<(), String> {
        let (sender, receiver) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
        self.poke();
        receiver.await.unwrap_or_else(|_| Err("the exchange is ending".into()))
    }
}
