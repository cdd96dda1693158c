//! Destroying private keys: here, or at every signer.

use std::time::Duration as StdDuration;

use batzen_crypto::denom::DenomPublicKey;
use batzen_crypto::{EddsaPublicKey, EddsaSignature};

use super::Exchange;
use crate::keys::KeyError;

/// Time that a signer may take to destroy a key and make another.
pub(crate) const REVOKE_WAIT: StdDuration = StdDuration::from_secs(60);

/// The reasons why a private key was not destroyed everywhere.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DestroyError {
    /// A key file cannot be erased, or the key cannot be replaced.
    #[error(transparent)]
    Keys(#[from] KeyError),
    /// A signer has not confirmed the destruction.
    #[error("not every signer has confirmed that it destroyed the key")]
    NotConfirmed,
}

/// Asks every signer to destroy a denomination key. True if all have confirmed it.
pub(crate) async fn revoke_denomination(
    app: &Exchange,
    public: &DenomPublicKey,
    master_sig: EddsaSignature,
) -> bool {
    app.custody.revoke_denomination(public, master_sig, REVOKE_WAIT).await
}

/// Destroys a denomination key that was never in use.
///
/// # Errors
/// When it cannot be replaced, or a signer does not confirm.
pub(crate) async fn destroy_denomination(
    app: &Exchange,
    public: &DenomPublicKey,
    master_sig: EddsaSignature,
) -> Result<(), DestroyError> {
    let Some(modules) = app.custody.modules() else {
        let done = revoke_denomination(app, public, master_sig).await;
        return done.then_some(()).ok_or(DestroyError::NotConfirmed);
    };
    let h_bare = public.h_key();
    modules.replace_revoked_denominations(|key| *key == h_bare, app.core.now()).await?;
    Ok(())
}

/// The same for an online signing key.
///
/// # Errors
/// As [`destroy_denomination`].
pub(crate) async fn destroy_signing_key(
    app: &Exchange,
    exchange_pub: EddsaPublicKey,
    master_sig: EddsaSignature,
) -> Result<(), DestroyError> {
    let Some(modules) = app.custody.modules() else {
        let done = app.custody.revoke_signing(exchange_pub, master_sig, REVOKE_WAIT).await;
        return done.then_some(()).ok_or(DestroyError::NotConfirmed);
    };
    modules.replace_revoked_signing_keys(|key| *key == exchange_pub, app.core.now()).await?;
    Ok(())
}
