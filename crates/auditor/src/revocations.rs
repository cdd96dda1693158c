//! Signing keys that the exchange has revoked. What is found in the exchange's tables, or in a copy of them, is kept in the
//! auditor's own: a revocation is for ever. That a key is not revoked is looked up each time.

use std::sync::Arc;

use batzen_crypto::{EddsaPublicKey, EddsaSignature};
use batzen_protocol::signatures::{MasterSigningKeyRevoked, SignedMessage};
use batzen_store::{Store, StoreError};
use batzen_tables::exchange::{SigningKeyKey, SigningKeys};
use tokio::sync::Semaphore;

/// Look-ups at the same time; the store has as many reading connections.
const LOOKUPS_MAX: usize = 8;

/// The exchange's tables, if the auditor can read them.
pub(crate) struct Revocations {
    exchange: Option<(Store, EddsaPublicKey)>,
    turns: Arc<Semaphore>,
}

impl Revocations {
    /// Looks signing keys of this exchange up in its tables.
    pub fn new(exchange: Option<Store>, master_pub: Option<EddsaPublicKey>) -> Self {
        if exchange.is_some() && master_pub.is_none() {
            tracing::warn!("[exchange] MASTER_PUBLIC_KEY is not set, so revocations are not looked up");
        }
        Self { exchange: exchange.zip(master_pub), turns: Arc::new(Semaphore::new(LOOKUPS_MAX)) }
    }

    /// The revocation of a signing key, signed by the master key.
    ///
    /// # Errors
    /// When the exchange's tables cannot be read.
    pub async fn find(
        &self,
        master_pub: &EddsaPublicKey,
        exchange_pub: EddsaPublicKey,
    ) -> Result<Option<EddsaSignature>, StoreError> {
        let Some((store, _)) = self.exchange.as_ref().filter(|(_, known)| known == master_pub) else {
            return Ok(None);
        };
        let turn = Arc::clone(&self.turns).acquire_owned().await.expect("never closed");
        let store = store.clone();
        let look_up = move || {
            let _turn = turn;
            store.get::<SigningKeys>(&SigningKeyKey { exchange_pub })
        };
        let found = tokio::task::spawn_blocking(look_up).await.expect("reading does not panic")?;
        let revoked = found.and_then(|found| found.row.revoked);
        // The exchange may claim nothing that its master key has not signed.
        let message = MasterSigningKeyRevoked { signkey_pub: exchange_pub };
        Ok(revoked.filter(|master_sig| message.verify(master_pub, master_sig)))
    }

    /// Closes the exchange's tables.
    pub fn close(&self) {
        if let Some((store, _)) = &self.exchange
            && let Err(error) = store.close()
        {
            tracing::debug!(%error, "closing the exchange's tables");
        }
    }
}
