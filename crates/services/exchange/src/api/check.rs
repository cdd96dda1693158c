//! Checks that several endpoints make before a command is submitted: currency, denominations, signatures of
//! coins.

use batzen_crypto::{Cipher, DenomPublicKey, DenomSignature, EddsaPublicKey, HashCode, ShortHash};
use batzen_protocol::payto::PaytoUri;
use batzen_protocol::{ErrorCode, Timestamp};
pub(super) use batzen_service::Checked;
use batzen_tables::exchange::DenomSerial;

use super::error;
use super::response::{self, DenomOperation};
use crate::app::Exchange;
use crate::crypto::Check;
use crate::keys::{Denom, KeyState};

/// The account that a merchant wants to be paid to.
pub(super) fn merchant_payto(text: String) -> Checked<PaytoUri> {
    PaytoUri::parse(text).map_err(|problem| {
        error(ErrorCode::GENERIC_PARAMETER_MALFORMED, &format!("merchant_payto_uri: {problem}"))
    })
}

/// An age commitment hash; all zero counts as none.
pub(crate) fn age_hash(hash: Option<ShortHash>) -> Option<ShortHash> {
    hash.filter(|hash| !hash.is_zero())
}

/// The time until which a denomination may be used for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Window {
    /// Withdrawals and fresh coins: until `expire_withdraw`.
    Withdraw,
    /// Deposits and recoups: until `expire_deposit`.
    Deposit,
    /// Melts: until `expire_legal`. After `expire_deposit` the rules accept zombies only.
    Melt,
}

/// Finds the denomination with this hash.
///
/// # Errors
/// 404 with the exchange's signed statement that the denomination is unknown.
pub(super) async fn find_denomination<'a>(
    app: &Exchange,
    keys: &'a KeyState,
    h_denom_pub: &HashCode,
) -> Checked<&'a Denom> {
    match keys.find_denomination(h_denom_pub) {
        Some(denom) => Ok(denom),
        None => Err(response::denomination_unknown(app, keys, h_denom_pub).await),
    }
}

/// The error code if the denomination is not valid at this time. An expired deadline is reported before a
/// start in the future.
pub(crate) fn time_problem(denom: &Denom, window: Window, now: Timestamp) -> Option<ErrorCode> {
    let deadline = match window {
        Window::Withdraw => denom.expire_withdraw,
        Window::Deposit => denom.expire_deposit,
        Window::Melt => denom.expire_legal,
    };
    if deadline < now {
        Some(ErrorCode::EXCHANGE_GENERIC_DENOMINATION_EXPIRED)
    } else if denom.start > now {
        Some(ErrorCode::EXCHANGE_GENERIC_DENOMINATION_VALIDITY_IN_FUTURE)
    } else {
        None
    }
}

/// The error code if the denomination is not usable: outside its time, or revoked.
pub(crate) fn denomination_problem(denom: &Denom, window: Window, now: Timestamp) -> Option<ErrorCode> {
    time_problem(denom, window, now)
        .or_else(|| denom.revoked.then_some(ErrorCode::EXCHANGE_GENERIC_DENOMINATION_REVOKED))
}

/// Checks that a denomination, revoked or not, is within the window.
///
/// # Errors
/// 410 with the exchange's signature.
pub(super) async fn check_window(
    app: &Exchange,
    keys: &KeyState,
    denom: &Denom,
    window: Window,
    operation: DenomOperation,
    now: Timestamp,
) -> Checked<()> {
    match time_problem(denom, window, now) {
        None => Ok(()),
        Some(code) => {
            Err(response::denomination_unusable(app, keys, &denom.h_denom_pub, operation, code).await)
        }
    }
}

/// Finds a denomination and checks that it is usable now and not revoked.
///
/// # Errors
/// 404 or 410 with the exchange's signature.
pub(crate) async fn find_usable_denomination<'a>(
    app: &Exchange,
    keys: &'a KeyState,
    h_denom_pub: &HashCode,
    window: Window,
    operation: DenomOperation,
    now: Timestamp,
) -> Checked<&'a Denom> {
    let denom = find_denomination(app, keys, h_denom_pub).await?;
    match denomination_problem(denom, window, now) {
        None => Ok(denom),
        Some(code) => Err(response::denomination_unusable(app, keys, h_denom_pub, operation, code).await),
    }
}

/// Checks that a planchet or signature has the denomination's cipher.
///
/// # Errors
/// 400 if it has another cipher.
pub(super) fn check_cipher(denom: &Denom, cipher: Cipher) -> Checked<()> {
    if denom.public.cipher() == cipher {
        Ok(())
    } else {
        Err(error(ErrorCode::EXCHANGE_GENERIC_CIPHER_MISMATCH, ""))
    }
}

/// The cipher of a coin's signature.
pub(crate) fn signature_cipher(signature: &DenomSignature) -> Cipher {
    match signature {
        DenomSignature::Rsa(_) => Cipher::Rsa,
        DenomSignature::Cs(_) => Cipher::Cs,
    }
}

/// A coin that a request presents, ready to be checked on the CPU pool.
pub(crate) struct Presented {
    pub(crate) coin_pub: EddsaPublicKey,
    pub(crate) denom: DenomSerial,
    pub(crate) denom_pub: DenomPublicKey,
    /// Hash of its age commitment.
    pub(crate) h_age: Option<ShortHash>,
    /// The denomination's signature on it.
    pub(crate) denom_sig: DenomSignature,
}

impl Presented {
    /// The check of the denomination's signature on the coin.
    pub(super) fn check(&self) -> Check {
        Check::Coin {
            coin_pub: self.coin_pub,
            h_age: self.h_age,
            denom_pub: self.denom_pub.clone(),
            signature: self.denom_sig.clone(),
        }
    }

    /// Converts to the rules' type.
    pub(crate) fn into_rule(self) -> crate::rules::PresentedCoin {
        crate::rules::PresentedCoin {
            coin_pub: self.coin_pub,
            denom: self.denom,
            h_age: self.h_age,
            denom_sig: self.denom_sig,
        }
    }
}
