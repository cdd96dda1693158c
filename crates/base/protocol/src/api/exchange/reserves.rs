//! Reserves: status, history, withdrawal.

use batzen_crypto::{
    BlindedDenomSignature, BlindedPlanchet, CsNonce, EddsaSignature, ExchangeWithdrawValues, HashCode,
    RefreshMasterSecret,
};
use serde::{Deserialize, Serialize};

use super::ReserveHistoryItem;
use crate::limits::{ARRAY_READ_MAX, array};
use crate::{Amount, Timestamp};

/// Answer to `GET /reserves/$RESERVE_PUB`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReserveBalance {
    /// The balance.
    pub balance: Amount,
}

/// `POST /reserves/$RESERVE_PUB/status` and `…/history`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReserveRequest {
    /// Time of the wallet.
    pub request_timestamp: Timestamp,
    /// `WALLET_RESERVE_STATUS` or `WALLET_RESERVE_HISTORY`.
    pub reserve_sig: EddsaSignature,
}

/// Answer to `…/status` (recent events) and `…/history` (all of them).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReserveStatus {
    /// The balance.
    pub balance: Amount,
    /// Events, those of one type together.
    pub history: Vec<ReserveHistoryItem>,
}

/// `POST /reserves/$RESERVE_PUB/withdraw`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WithdrawRequest {
    /// `WALLET_RESERVE_WITHDRAW`.
    pub reserve_sig: EddsaSignature,
    /// Denomination of the coin.
    pub denom_pub_hash: HashCode,
    /// The blinded coin.
    pub coin_ev: BlindedPlanchet,
}

/// Answer to a withdrawal, and an element of the answers to batches and reveals.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BlindSignature {
    /// The blind signature.
    pub ev_sig: BlindedDenomSignature,
}

/// `POST /reserves/$RESERVE_PUB/batch-withdraw`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BatchWithdrawRequest {
    /// The coins.
    #[serde(deserialize_with = "array::<_, _, ARRAY_READ_MAX>")]
    pub planchets: Vec<WithdrawRequest>,
}

/// Answer to `…/batch-withdraw` and `/refreshes/$RCH/reveal`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BlindSignatures {
    /// Blind signatures in the order of the request.
    pub ev_sigs: Vec<BlindSignature>,
}

/// `POST /csr-withdraw`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CsrWithdrawRequest {
    /// Nonce of the coin.
    pub nonce: CsNonce,
    /// Denomination of the coin.
    pub denom_pub_hash: HashCode,
}

/// Answer to `POST /csr-withdraw`, and an element of the answer to `POST /csr-melt`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WithdrawValues {
    /// The public R values.
    pub ewv: ExchangeWithdrawValues,
}

/// `POST /csr-melt`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CsrMeltRequest {
    /// Secret of the refresh, from which the nonces follow.
    pub rms: RefreshMasterSecret,
    /// The fresh coins.
    #[serde(deserialize_with = "array::<_, _, ARRAY_READ_MAX>")]
    pub nks: Vec<CsrMeltCoin>,
}

/// A fresh coin of [`CsrMeltRequest`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CsrMeltCoin {
    /// Its position among all fresh coins.
    pub coin_offset: u32,
    /// Its denomination.
    pub denom_pub_hash: HashCode,
}

/// Answer to `POST /csr-melt`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CsrMeltResponse {
    /// R values in the order of the request.
    pub ewvs: Vec<WithdrawValues>,
}
