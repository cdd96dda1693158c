//! Purses and contracts of payments between people.

use batzen_crypto::{AgePublicKey, AgeSignature, DenomSignature, EddsaPublicKey, EddsaSignature, HashCode};
use serde::{Deserialize, Serialize};

use crate::limits::{ARRAY_READ_MAX, array};
use crate::{Amount, Base32Data, Timestamp};

/// A coin that pays into a purse (or for keeping a reserve open).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PurseCoin {
    /// The coin's contribution, deposit fee included.
    pub amount: Amount,
    /// Denomination of the coin.
    pub denom_pub_hash: HashCode,
    /// The coin's signature.
    pub ub_sig: DenomSignature,
    /// The coin.
    pub coin_pub: EddsaPublicKey,
    /// `WALLET_PURSE_DEPOSIT` or `WALLET_RESERVE_OPEN_DEPOSIT`.
    pub coin_sig: EddsaSignature,
    /// Age commitment of an age-restricted coin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_commitment: Option<Vec<AgePublicKey>>,
    /// Proof of the purse's minimum age.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attest: Option<AgeSignature>,
}

/// An encrypted contract with its signature.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EncryptedContract {
    /// Nonce and encrypted contract.
    pub econtract: Base32Data,
    /// `WALLET_PURSE_ECONTRACT`.
    pub econtract_sig: EddsaSignature,
    /// Key by which it can be fetched.
    pub contract_pub: EddsaPublicKey,
}

/// `POST /purses/$PURSE_PUB/create`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PurseCreateRequest {
    /// Target amount of the purse, after deposit fees.
    pub amount: Amount,
    /// Minimum age of the payer; 0 if there is none.
    pub min_age: u32,
    /// Key that may merge the purse into a reserve.
    pub merge_pub: EddsaPublicKey,
    /// `WALLET_PURSE_CREATE`.
    pub purse_sig: EddsaSignature,
    /// The contract.
    pub h_contract_terms: HashCode,
    /// When the purse expires.
    pub purse_expiration: Timestamp,
    /// Coins to pay in.
    #[serde(deserialize_with = "array::<_, _, ARRAY_READ_MAX>")]
    pub deposits: Vec<PurseCoin>,
    /// The contract, for the receiver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub econtract: Option<EncryptedContract>,
}

/// Answer to the creation of a purse, also by a reserve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PurseConfirmation {
    /// Paid in by this request, after fees.
    pub total_deposited: Amount,
    /// Time of the exchange.
    pub exchange_timestamp: Timestamp,
    /// `EXCHANGE_CONFIRM_PURSE_CREATION`.
    pub exchange_sig: EddsaSignature,
    /// Signing key.
    pub exchange_pub: EddsaPublicKey,
}

/// `POST /purses/$PURSE_PUB/deposit`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PurseDepositRequest {
    /// Coins to pay in.
    #[serde(deserialize_with = "array::<_, _, ARRAY_READ_MAX>")]
    pub deposits: Vec<PurseCoin>,
}

/// Answer to `POST /purses/$PURSE_PUB/deposit`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PurseDepositConfirmation {
    /// Paid in so far, after fees.
    pub total_deposited: Amount,
    /// Target amount of the purse.
    pub purse_value_after_fees: Amount,
    /// Time of the exchange.
    pub exchange_timestamp: Timestamp,
    /// When the purse expires.
    pub purse_expiration: Timestamp,
    /// The contract.
    pub h_contract_terms: HashCode,
    /// `EXCHANGE_CONFIRM_PURSE_CREATION`.
    pub exchange_sig: EddsaSignature,
    /// Signing key.
    pub exchange_pub: EddsaPublicKey,
}

/// `POST /purses/$PURSE_PUB/merge`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PurseMergeRequest {
    /// The reserve. Not checked yet, because its errors have their own code.
    pub payto_uri: String,
    /// `WALLET_PURSE_MERGE`.
    pub merge_sig: EddsaSignature,
    /// `WALLET_ACCOUNT_MERGE`.
    pub reserve_sig: EddsaSignature,
    /// Time of the merge.
    pub merge_timestamp: Timestamp,
}

/// Answer to `POST /purses/$PURSE_PUB/merge`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PurseMergeConfirmation {
    /// Amount credited to the reserve.
    pub merge_amount: Amount,
    /// Time of the exchange.
    pub exchange_timestamp: Timestamp,
    /// `EXCHANGE_CONFIRM_PURSE_MERGED`.
    pub exchange_sig: EddsaSignature,
    /// Signing key.
    pub exchange_pub: EddsaPublicKey,
}

/// Answer to `GET /purses/$PURSE_PUB/merge` and `…/deposit`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PurseStatus {
    /// Paid in so far, after fees.
    pub balance: Amount,
    /// `EXCHANGE_PURSE_STATUS`.
    pub exchange_sig: EddsaSignature,
    /// Signing key.
    pub exchange_pub: EddsaPublicKey,
    /// When the purse was merged; `never` if it was not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merge_timestamp: Option<Timestamp>,
    /// Absent (and zero in the signature) while the purse is not full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deposit_timestamp: Option<Timestamp>,
}

/// Answer to `GET /contracts/$CONTRACT_PUB`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContractResponse {
    /// The purse.
    pub purse_pub: EddsaPublicKey,
    /// `WALLET_PURSE_ECONTRACT`.
    pub econtract_sig: EddsaSignature,
    /// Nonce and encrypted contract.
    pub econtract: Base32Data,
}

/// `POST /reserves/$RESERVE_PUB/purse`: a reserve creates a purse and merges it in advance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReservePurseRequest {
    /// Target amount of the purse, after deposit fees.
    pub purse_value: Amount,
    /// Minimum age of the payer; 0 if there is none.
    pub min_age: u32,
    /// Fee that the reserve pays; absent if the quota is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub purse_fee: Option<Amount>,
    /// Merge key.
    pub merge_pub: EddsaPublicKey,
    /// `WALLET_PURSE_MERGE`.
    pub merge_sig: EddsaSignature,
    /// `WALLET_ACCOUNT_MERGE`.
    pub reserve_sig: EddsaSignature,
    /// The purse.
    pub purse_pub: EddsaPublicKey,
    /// `WALLET_PURSE_CREATE`.
    pub purse_sig: EddsaSignature,
    /// The contract.
    pub h_contract_terms: HashCode,
    /// Time of the merge.
    pub merge_timestamp: Timestamp,
    /// When the purse expires.
    pub purse_expiration: Timestamp,
    /// The contract, for the payer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub econtract: Option<EncryptedContract>,
}

/// `POST /reserves/$RESERVE_PUB/open`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReserveOpenRequest {
    /// Time of the wallet.
    pub request_timestamp: Timestamp,
    /// The time until which the reserve stays open.
    pub reserve_expiration: Timestamp,
    /// Minimum number of purses.
    pub purse_limit: u32,
    /// Amount that the reserve itself pays.
    pub reserve_payment: Amount,
    /// Coins that pay the rest.
    #[serde(deserialize_with = "array::<_, _, ARRAY_READ_MAX>")]
    pub payments: Vec<PurseCoin>,
    /// `WALLET_RESERVE_OPEN`.
    pub reserve_sig: EddsaSignature,
}

/// Answer 200 and 402 to `…/open`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReserveOpenResponse {
    /// The time until which the reserve is open.
    pub reserve_expiration: Timestamp,
    /// The cost.
    pub open_cost: Amount,
}

/// `POST /reserves/$RESERVE_PUB/close`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReserveCloseRequest {
    /// Time of the wallet.
    pub request_timestamp: Timestamp,
    /// Account to pay; absent for the account of origin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payto_uri: Option<String>,
    /// `WALLET_RESERVE_CLOSE`.
    pub reserve_sig: EddsaSignature,
}

/// Answer to `…/close`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReserveCloseResponse {
    /// The amount to be paid out.
    pub wire_amount: Amount,
}
