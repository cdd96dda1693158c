//! Coins: deposit, melt, reveal, link, refund, recoup.

use batzen_crypto::{
    AgePublicKey, BlindedDenomSignature, BlindedPlanchet, BlindingSecret, CsNonce, DenomPublicKey,
    DenomSignature, EcdhePrivateKey, EcdhePublicKey, EddsaPublicKey, EddsaSignature, ExchangeWithdrawValues,
    HashCode, RefreshMasterSecret, ShortHash, WireSalt,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::limits::{ARRAY_READ_MAX, array};
use crate::{Amount, Timestamp};

/// `POST /coins/$COIN_PUB/deposit`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DepositRequest {
    /// The account to pay. Not checked yet, because its errors have their own code.
    pub merchant_payto_uri: String,
    /// Salt of the account's hash.
    pub wire_salt: WireSalt,
    /// The coin's contribution, deposit fee included.
    pub contribution: Amount,
    /// Denomination of the coin.
    pub denom_pub_hash: HashCode,
    /// The coin's signature.
    pub ub_sig: DenomSignature,
    /// The merchant.
    pub merchant_pub: EddsaPublicKey,
    /// The contract.
    pub h_contract_terms: HashCode,
    /// Hash of the age commitment of an age-restricted coin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub h_age_commitment: Option<ShortHash>,
    /// `WALLET_COIN_DEPOSIT`.
    pub coin_sig: EddsaSignature,
    /// Time of the wallet.
    pub timestamp: Timestamp,
    /// The time until which the merchant may refund; absent means zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refund_deadline: Option<Timestamp>,
    /// The time until which the merchant is to be paid.
    pub wire_transfer_deadline: Timestamp,
    /// Extension policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Value>,
}

/// Answer to a deposit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DepositConfirmation {
    /// When the deposit was first accepted.
    pub exchange_timestamp: Timestamp,
    /// `EXCHANGE_CONFIRM_DEPOSIT`.
    pub exchange_sig: EddsaSignature,
    /// Signing key.
    pub exchange_pub: EddsaPublicKey,
    /// Base URL for tracking the deposit, if elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transaction_base_url: Option<String>,
}

/// `POST /batch-deposit`: several coins for one contract.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BatchDepositRequest {
    /// The account to pay. Not checked yet.
    pub merchant_payto_uri: String,
    /// Salt of the account's hash.
    pub wire_salt: WireSalt,
    /// The merchant.
    pub merchant_pub: EddsaPublicKey,
    /// The contract.
    pub h_contract_terms: HashCode,
    /// The coins.
    #[serde(deserialize_with = "array::<_, _, ARRAY_READ_MAX>")]
    pub coins: Vec<BatchDepositCoin>,
    /// Time of the wallet.
    pub timestamp: Timestamp,
    /// The time until which the merchant may refund; absent means zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refund_deadline: Option<Timestamp>,
    /// The time until which the merchant is to be paid.
    pub wire_transfer_deadline: Timestamp,
    /// Extension policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Value>,
}

/// A coin of [`BatchDepositRequest`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BatchDepositCoin {
    /// The coin's contribution, deposit fee included.
    pub contribution: Amount,
    /// Denomination of the coin.
    pub denom_pub_hash: HashCode,
    /// The coin's signature.
    pub ub_sig: DenomSignature,
    /// The coin.
    pub coin_pub: EddsaPublicKey,
    /// Hash of the age commitment of an age-restricted coin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub h_age_commitment: Option<ShortHash>,
    /// `WALLET_COIN_DEPOSIT`.
    pub coin_sig: EddsaSignature,
}

/// Answer to a batch deposit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BatchDepositConfirmation {
    /// When the deposit was first accepted.
    pub exchange_timestamp: Timestamp,
    /// Signing key.
    pub exchange_pub: EddsaPublicKey,
    /// One for each coin, in the order of the request.
    pub exchange_sigs: Vec<ConfirmationSignature>,
}

/// The signature for one coin of a batch deposit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConfirmationSignature {
    /// `EXCHANGE_CONFIRM_DEPOSIT`.
    pub exchange_sig: EddsaSignature,
}

/// `POST /coins/$COIN_PUB/melt`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeltRequest {
    /// The coin's signature.
    pub denom_sig: DenomSignature,
    /// Denomination of the coin.
    pub denom_pub_hash: HashCode,
    /// Hash of the age commitment of an age-restricted coin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_commitment_hash: Option<ShortHash>,
    /// `WALLET_COIN_MELT`.
    pub confirm_sig: EddsaSignature,
    /// Amount to take from the coin, melt fee included.
    pub value_with_fee: Amount,
    /// Refresh commitment.
    pub rc: HashCode,
    /// Secret of the refresh; needed if a fresh coin is of a CS denomination.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rms: Option<RefreshMasterSecret>,
    /// Sent by wallets, and ignored: the path names the coin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coin_pub: Option<EddsaPublicKey>,
}

/// Answer to a melt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeltConfirmation {
    /// The index of the candidate, of three, that need not be revealed.
    pub noreveal_index: u32,
    /// `EXCHANGE_CONFIRM_MELT`.
    pub exchange_sig: EddsaSignature,
    /// Signing key.
    pub exchange_pub: EddsaPublicKey,
    /// Base URL for the reveal, if elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh_base_url: Option<String>,
}

/// `POST /refreshes/$RCH/reveal`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RevealRequest {
    /// Transfer key of the candidate that is not revealed.
    pub transfer_pub: EcdhePublicKey,
    /// Private transfer keys of the other two, in ascending order.
    #[serde(deserialize_with = "array::<_, _, ARRAY_READ_MAX>")]
    pub transfer_privs: Vec<EcdhePrivateKey>,
    /// `WALLET_COIN_LINK` for each fresh coin, by the old coin.
    #[serde(deserialize_with = "array::<_, _, ARRAY_READ_MAX>")]
    pub link_sigs: Vec<EddsaSignature>,
    /// Blinded coins of the candidate that is not revealed.
    #[serde(deserialize_with = "array::<_, _, ARRAY_READ_MAX>")]
    pub coin_evs: Vec<BlindedPlanchet>,
    /// Denominations of the fresh coins.
    #[serde(deserialize_with = "array::<_, _, ARRAY_READ_MAX>")]
    pub new_denoms_h: Vec<HashCode>,
    /// Age commitment of the old coin, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_age_commitment: Option<Vec<AgePublicKey>>,
    /// Secret of the refresh; needed if a fresh coin is of a CS denomination.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rms: Option<RefreshMasterSecret>,
}

/// One revealed melt, in the answer to `GET /coins/$COIN_PUB/link`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkEntry {
    /// Transfer key.
    pub transfer_pub: EcdhePublicKey,
    /// Fresh coins, ascending by index.
    pub new_coins: Vec<LinkCoin>,
}

/// A fresh coin of a [`LinkEntry`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkCoin {
    /// Its denomination.
    pub denom_pub: DenomPublicKey,
    /// Its blind signature.
    pub ev_sig: BlindedDenomSignature,
    /// Its position among all fresh coins.
    pub coin_idx: u32,
    /// R values of a CS denomination.
    pub ewv: ExchangeWithdrawValues,
    /// `WALLET_COIN_LINK`.
    pub link_sig: EddsaSignature,
    /// Nonce of a CS denomination.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cs_nonce: Option<CsNonce>,
}

/// `POST /coins/$COIN_PUB/refund`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RefundRequest {
    /// Amount to refund, refund fee included.
    pub refund_amount: Amount,
    /// The contract.
    pub h_contract_terms: HashCode,
    /// The merchant.
    pub merchant_pub: EddsaPublicKey,
    /// Chosen by the merchant to distinguish refunds of one coin.
    pub rtransaction_id: u64,
    /// `MERCHANT_REFUND`.
    pub merchant_sig: EddsaSignature,
}

/// Answer to a refund.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RefundConfirmation {
    /// `EXCHANGE_CONFIRM_REFUND`.
    pub exchange_sig: EddsaSignature,
    /// Signing key.
    pub exchange_pub: EddsaPublicKey,
}

/// `POST /coins/$COIN_PUB/recoup` and `…/recoup-refresh`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecoupRequest {
    /// Denomination of the coin.
    pub denom_pub_hash: HashCode,
    /// The coin's signature.
    pub denom_sig: DenomSignature,
    /// R values of a CS denomination.
    pub ewv: ExchangeWithdrawValues,
    /// `WALLET_COIN_RECOUP` or `WALLET_COIN_RECOUP_REFRESH`.
    pub coin_sig: EddsaSignature,
    /// The coin's blinding secret.
    pub coin_blind_key_secret: BlindingSecret,
    /// Hash of the age commitment of an age-restricted coin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub h_age_commitment: Option<ShortHash>,
    /// Nonce of a CS denomination.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cs_nonce: Option<CsNonce>,
}

/// Answer to a recoup.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecoupResponse {
    /// The reserve that was credited.
    pub reserve_pub: EddsaPublicKey,
}

/// Answer to a recoup-refresh.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecoupRefreshResponse {
    /// The coin that was credited.
    pub old_coin_pub: EddsaPublicKey,
}
