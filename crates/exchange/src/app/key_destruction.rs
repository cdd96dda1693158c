//! Destroying private keys: here, or at every signer.

use std::time::Duration as StdDuration;

use batzen_crypto::denom::DenomPublicKey;
use batzen_crypto::{EddsaPublicKey, EddsaSignature};

use super::Exchange;

/// How long a signer may take to destroy a key and make another.
pub(crate) const REVOKE_WAIT: StdDuration = StdDuration::from_secs(60);

/// Has every signer destroy a denomination key. Whether all have confirmed it.
pub(crate) async fn revoke_denomination(
    app: &Exchange,
    public: &DenomPublicKey,
    master_sig: EddsaSignature,
) -> bool {
    app.custody.revoke_denomination(public.h_key(), public.age_mask, master_sig, REVOKE_WAIT).await
}

/// Destroys a denomination key that was never in use.
///
/// # Errors
/// When it could not be replaced, or a signer could not be told.
pub(crate) async fn destroy_denomination(
    app: &Exchange,
    public: &DenomPublicKey,
    master_sig: EddsaSignature,
) -> Result<(), String> {
    let Some(modules) = app.custody.modules() else {
        let done = revoke_denomination(app, public, master_sig).await;
        return done.then_some(()).ok_or_else(|| "not every signer could be told".into());
    };
    let h_bare = public.h_key();
    let replaced = modules.replace_revoked_denominations(|key| *key == h_bare, app.core.now()).await;
    replaced.map(|_| ()).map_err(|error| error.to_string())
}

/// The same for an online signing key.
///
/// # Errors
/// As [`destroy_denomination`].
pub(crate) async fn destroy_signing_key(
    app: &Exchange,
    exchange_pub: EddsaPublicKey,
    master_sig: EddsaSignature,
) -> Result<(), String> {
    let Some(modules) = app.custody.modules() else {
        let done = app.custody.revoke_signing(exchange_pub, master_sig, REVOKE_WAIT).await;
        return done.then_some(()).ok_or_else(|| "not every signer could be told".into());
    };
    let replaced = modules.replace_revoked_signing_keys(|key| *key == exchange_pub, app.core.now()).await;
    replaced.map(|_| ()).map_err(|error| error.to_string())
}
