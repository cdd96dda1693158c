//! Know-your-customer checks.

use batzen_crypto::{EddsaPublicKey, EddsaSignature};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Amount, Timestamp};

/// `POST /kyc-wallet`: a wallet asks before it holds more than a limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KycWalletRequest {
    /// The balance.
    pub balance: Amount,
    /// A key that identifies the wallet.
    pub reserve_pub: EddsaPublicKey,
    /// `WALLET_ACCOUNT_SETUP`.
    pub reserve_sig: EddsaSignature,
}

/// Answer 202 to `GET /kyc-check/…`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KycRedirect {
    /// The page for the user.
    pub kyc_url: String,
}

/// Answer 200 to `GET /kyc-check/…`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KycDone {
    /// When the checks were found complete.
    pub now: Timestamp,
    /// One member for each check.
    pub kyc_details: Value,
    /// `EXCHANGE_ACCOUNT_SETUP_SUCCESS`.
    pub exchange_sig: EddsaSignature,
    /// Signing key.
    pub exchange_pub: EddsaPublicKey,
}
