//! Cryptography that handlers run on other threads: signatures, and checks of signatures.

use std::future::Future;
use std::sync::Arc;

use batzen_crypto::{
    BlindedDenomSignature, BlindedPlanchet, Cipher, CsNonce, CsOperation, EddsaPublicKey, EddsaSignature,
    ExchangeWithdrawValues, HashCode,
};
use batzen_engine::PoolBusy;
use batzen_http::Response;
use batzen_protocol::ErrorCode;
use batzen_protocol::signatures::SignedMessage;
use batzen_signer::client::Unavailable;
use batzen_tables::exchange::{BlindSignature, DenomSerial};

use super::check::Checked;
use super::{FAILURES, error, error_status};
use crate::app::Exchange;
use crate::crypto::{Check, Opening};
use crate::keys::{KeyState, NoSigningKey, NotSigned};

/// Runs cryptography on the CPU pool.
///
/// # Errors
/// 503 when too much is waiting.
pub(crate) async fn on_pool<T: Send + 'static>(
    app: &Exchange,
    job: impl FnOnce() -> T + Send + 'static,
) -> Checked<T> {
    app.pool.run(job).await.map_err(busy)
}

pub(super) fn busy(_: PoolBusy) -> Response {
    FAILURES.busy()
}

/// Checks signatures on the CPU pool, together with those of other requests. The verdicts are in the order of
/// the arguments.
///
/// # Errors
/// 503 when too much is waiting.
pub(super) async fn checked(app: &Exchange, checks: Vec<Check>) -> Checked<Vec<bool>> {
    for check in &checks {
        match check {
            Check::Coin { denom_pub, .. } => match denom_pub.cipher() {
                Cipher::Rsa => app.core.metrics.verifications.rsa.inc(),
                Cipher::Cs => app.core.metrics.verifications.cs.inc(),
            },
            Check::Eddsa { .. } => app.core.metrics.verifications.eddsa.inc(),
        }
    }
    app.crypto.checks.run(checks).await.map_err(busy)
}

/// The commitment that follows from an opened refresh, computed on the CPU pool together with those of other
/// requests. None if the derivation fails.
///
/// # Errors
/// 503 when too much is waiting.
pub(super) async fn commitment(app: &Exchange, opening: Arc<Opening>) -> Checked<Option<HashCode>> {
    app.crypto.openings.run_one(opening).await.map_err(busy)
}

/// Returns whether one message is signed, see [`checked`].
///
/// # Errors
/// As [`checked`].
pub(super) async fn is_signed(
    app: &Exchange,
    public: EddsaPublicKey,
    message: &impl SignedMessage,
    signature: EddsaSignature,
) -> Checked<bool> {
    Ok(checked(app, vec![Check::eddsa(public, message, signature)]).await? == [true])
}

/// 503 when no signature could be made: the queue is full, or no process with the key answers. Clients try again.
fn unavailable(reason: Unavailable) -> Response {
    match reason {
        Unavailable::Busy => FAILURES.busy(),
        Unavailable::NoSigner => {
            let code = ErrorCode::EXCHANGE_DENOMINATION_HELPER_UNAVAILABLE;
            error_status(code, 503, "the process with the private key does not answer")
                .with_header(batzen_http::header::RETRY_AFTER, "1")
        }
    }
}

/// Signs planchets blindly.
///
/// # Errors
/// When a private key is missing or a planchet is invalid.
pub(super) async fn blind_sign(
    app: &Exchange,
    keys: &KeyState,
    items: Vec<(DenomSerial, BlindedPlanchet, CsOperation)>,
) -> Checked<Vec<BlindSignature>> {
    let order = |(serial, planchet, operation)| keys.signer().order(serial, planchet, operation);
    let orders = items.into_iter().map(order).collect::<Result<Vec<_>, _>>().map_err(not_signed)?;
    let results = app.custody.blind_sign(orders).await.map_err(unavailable)?;
    for signature in results.iter().flatten() {
        match signature {
            BlindedDenomSignature::Rsa(_) => app.core.metrics.signatures.rsa.inc(),
            BlindedDenomSignature::Cs(_) => app.core.metrics.signatures.cs.inc(),
        }
    }
    results.into_iter().map(|result| result.map_err(not_signed)).collect()
}

/// The values that wallets need before they can blind coins, one for each denomination and nonce.
///
/// # Errors
/// When a private key is not there, or too much is waiting.
pub(super) async fn withdraw_values(
    app: &Exchange,
    keys: &KeyState,
    items: Vec<(DenomSerial, CsNonce)>,
    operation: CsOperation,
) -> Checked<Vec<ExchangeWithdrawValues>> {
    let order = |(serial, nonce)| keys.signer().order_values(serial, nonce, operation);
    let orders = items.into_iter().map(order).collect::<Result<Vec<_>, _>>().map_err(not_signed)?;
    let values = app.custody.values(orders).await.map_err(unavailable)?;
    values.into_iter().map(|value| value.map_err(not_signed)).collect()
}

/// The answer when a private key is missing or the planchet is invalid.
pub(crate) fn not_signed(fault: NotSigned) -> Response {
    let code = match fault {
        NotSigned::KeyUnavailable => ErrorCode::EXCHANGE_DENOMINATION_HELPER_UNAVAILABLE,
        NotSigned::Planchet(_) => ErrorCode::GENERIC_PARAMETER_MALFORMED,
        NotSigned::Failed(_) => ErrorCode::EXCHANGE_DENOMINATION_HELPER_BUG,
    };
    error(code, &fault.to_string())
}

fn no_signing_key(fault: NoSigningKey) -> Response {
    error(fault.code(), "")
}

/// Signs all confirmations with the current online key.
///
/// # Errors
/// When there is no usable signing key, or too much is waiting.
pub(crate) async fn sign_online<M: SignedMessage>(
    app: &Exchange,
    messages: &[M],
) -> Checked<(EddsaPublicKey, Vec<EddsaSignature>)> {
    let keys = app.keys();
    let messages = messages.iter().map(|message| message.message().as_ref().into()).collect();
    sign_messages(app, &keys, messages)?.await
}

/// Signs messages with a key state's online key.
pub(super) fn sign_messages(
    app: &Exchange,
    keys: &KeyState,
    messages: Vec<Box<[u8]>>,
) -> Checked<impl Future<Output = Checked<(EddsaPublicKey, Vec<EddsaSignature>)>> + Send + use<>> {
    let key = keys.online_key().map_err(no_signing_key)?;
    app.core.metrics.signatures.eddsa.add(messages.len() as u64);
    let exchange_pub = key.public_key();
    let signed = app.custody.sign(key, messages).map_err(unavailable)?;
    Ok(async move { Ok((exchange_pub, signed.await.map_err(unavailable)?)) })
}

/// [`sign_online`] for one confirmation.
///
/// # Errors
/// As [`sign_online`].
pub(crate) async fn sign_one<M: SignedMessage>(
    app: &Exchange,
    message: M,
) -> Checked<(EddsaPublicKey, EddsaSignature)> {
    let (exchange_pub, signatures) = sign_online(app, &[message]).await?;
    Ok((exchange_pub, signatures[0]))
}
