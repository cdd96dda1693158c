//! Histories of coins and reserves, which prove every balance.

use batzen_crypto::{BlindingSecret, EddsaPublicKey, EddsaSignature, HashCode, ShortHash, Wtid};
use serde::{Deserialize, Serialize};

use crate::{Amount, Timestamp};

/// An event in the life of a coin, by its member `type`.
///
/// The C client library requires a member `amount` in every item, so the recommended form always has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum CoinHistoryItem {
    /// Paid to a merchant.
    #[serde(rename = "DEPOSIT")]
    Deposit(CoinDeposit),
    /// Melted for fresh coins.
    #[serde(rename = "MELT")]
    Melt(CoinMelt),
    /// Refunded by a merchant.
    #[serde(rename = "REFUND")]
    Refund(CoinRefund),
    /// Value given back to the reserve.
    #[serde(rename = "RECOUP")]
    Recoup(CoinRecoup),
    /// Value given back to the coin it was refreshed from.
    #[serde(rename = "RECOUP-REFRESH")]
    RecoupRefresh(CoinRecoupRefresh),
    /// Value returned from a coin that was refreshed from this one.
    #[serde(rename = "OLD-COIN-RECOUP")]
    OldCoinRecoup(OldCoinRecoup),
    /// Paid into a purse.
    #[serde(rename = "PURSE-DEPOSIT")]
    PurseDeposit(CoinPurseDeposit),
    /// Got back from a purse.
    #[serde(rename = "PURSE-REFUND")]
    PurseRefund(CoinPurseRefund),
    /// Paid for keeping a reserve open.
    #[serde(rename = "RESERVE-OPEN-DEPOSIT")]
    ReserveOpenDeposit(CoinReserveOpen),
}

/// An event in the life of a reserve, by its member `type`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum ReserveHistoryItem {
    /// A transfer arrived.
    #[serde(rename = "CREDIT")]
    Credit(ReserveCredit),
    /// A coin was withdrawn.
    #[serde(rename = "WITHDRAW")]
    Withdraw(ReserveWithdraw),
    /// The value of a coin was returned.
    #[serde(rename = "RECOUP")]
    Recoup(ReserveRecoup),
    /// The rest was paid out.
    #[serde(rename = "CLOSING")]
    Closing(ReserveClosing),
    /// A purse was merged.
    #[serde(rename = "MERGE")]
    Merge(ReserveMerge),
    /// A complete history was requested.
    #[serde(rename = "HISTORY")]
    History(ReserveHistoryFee),
    /// The reserve was kept open.
    #[serde(rename = "OPEN")]
    Open(ReserveOpen),
    /// The owner asked to close the reserve.
    #[serde(rename = "CLOSE")]
    Close(ReserveClose),
}

/// A deposit; takes `amount` from the coin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CoinDeposit {
    /// Contribution, deposit fee included.
    pub amount: Amount,
    /// Deposit fee.
    pub deposit_fee: Amount,
    /// Time of the wallet.
    pub timestamp: Timestamp,
    /// The time until which the merchant may refund.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refund_deadline: Option<Timestamp>,
    /// The merchant.
    pub merchant_pub: EddsaPublicKey,
    /// The contract.
    pub h_contract_terms: HashCode,
    /// Salted hash of the merchant's account.
    pub h_wire: HashCode,
    /// Hash of the age commitment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub h_age_commitment: Option<ShortHash>,
    /// Hash of the policy, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub h_policy: Option<HashCode>,
    /// `WALLET_COIN_DEPOSIT`.
    pub coin_sig: EddsaSignature,
}

/// A melt; takes `amount` from the coin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CoinMelt {
    /// Amount, melt fee included.
    pub amount: Amount,
    /// Melt fee.
    pub melt_fee: Amount,
    /// Refresh commitment.
    pub rc: HashCode,
    /// Hash of the age commitment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub h_age_commitment: Option<ShortHash>,
    /// `WALLET_COIN_MELT`.
    pub coin_sig: EddsaSignature,
}

/// A refund; gives `amount` to the coin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CoinRefund {
    /// Amount after the refund fee. The merchant signed the one before it.
    pub amount: Amount,
    /// Refund fee.
    pub refund_fee: Amount,
    /// The contract.
    pub h_contract_terms: HashCode,
    /// The merchant.
    pub merchant_pub: EddsaPublicKey,
    /// Chosen by the merchant.
    pub rtransaction_id: u64,
    /// `MERCHANT_REFUND`.
    pub merchant_sig: EddsaSignature,
}

/// A recoup; takes `amount` from the coin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CoinRecoup {
    /// Amount.
    pub amount: Amount,
    /// `EXCHANGE_CONFIRM_RECOUP`.
    pub exchange_sig: EddsaSignature,
    /// Signing key.
    pub exchange_pub: EddsaPublicKey,
    /// The reserve that was credited.
    pub reserve_pub: EddsaPublicKey,
    /// `WALLET_COIN_RECOUP`.
    pub coin_sig: EddsaSignature,
    /// The coin's blinding secret.
    pub coin_blind: BlindingSecret,
    /// The time.
    pub timestamp: Timestamp,
}

/// A recoup of a refreshed coin; takes `amount` from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CoinRecoupRefresh {
    /// Amount.
    pub amount: Amount,
    /// `EXCHANGE_CONFIRM_RECOUP_REFRESH`.
    pub exchange_sig: EddsaSignature,
    /// Signing key.
    pub exchange_pub: EddsaPublicKey,
    /// The coin that was credited.
    pub old_coin_pub: EddsaPublicKey,
    /// `WALLET_COIN_RECOUP_REFRESH`.
    pub coin_sig: EddsaSignature,
    /// The coin's blinding secret.
    pub coin_blind: BlindingSecret,
    /// The time.
    pub timestamp: Timestamp,
}

/// The other side of [`CoinRecoupRefresh`]; gives `amount` to the coin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OldCoinRecoup {
    /// Amount.
    pub amount: Amount,
    /// `EXCHANGE_CONFIRM_RECOUP_REFRESH`.
    pub exchange_sig: EddsaSignature,
    /// Signing key.
    pub exchange_pub: EddsaPublicKey,
    /// The fresh coin that was recouped.
    pub coin_pub: EddsaPublicKey,
    /// The time.
    pub timestamp: Timestamp,
}

/// A payment into a purse; takes `amount` from the coin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CoinPurseDeposit {
    /// Contribution, deposit fee included.
    pub amount: Amount,
    /// The exchange that has the purse.
    pub exchange_base_url: String,
    /// Hash of the age commitment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub h_age_commitment: Option<ShortHash>,
    /// The purse.
    pub purse_pub: EddsaPublicKey,
    /// Whether the purse gave it back.
    pub refunded: bool,
    /// `WALLET_PURSE_DEPOSIT`.
    pub coin_sig: EddsaSignature,
}

/// A payment given back by a purse; gives `amount` to the coin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CoinPurseRefund {
    /// Amount after the refund fee.
    pub amount: Amount,
    /// Refund fee.
    pub refund_fee: Amount,
    /// `EXCHANGE_CONFIRM_PURSE_REFUND`.
    pub exchange_sig: EddsaSignature,
    /// Signing key.
    pub exchange_pub: EddsaPublicKey,
    /// The purse.
    pub purse_pub: EddsaPublicKey,
}

/// A payment for keeping a reserve open; takes `coin_contribution` from the coin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CoinReserveOpen {
    /// Contribution.
    pub coin_contribution: Amount,
    /// The same amount; not every exchange sends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub amount: Option<Amount>,
    /// `WALLET_RESERVE_OPEN`.
    pub reserve_sig: EddsaSignature,
    /// `WALLET_RESERVE_OPEN_DEPOSIT`.
    pub coin_sig: EddsaSignature,
}

/// An incoming transfer; adds `amount`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReserveCredit {
    /// The time.
    pub timestamp: Timestamp,
    /// The sender's account.
    pub sender_account_url: String,
    /// Row of the transfer at the bank.
    pub wire_reference: u64,
    /// Amount.
    pub amount: Amount,
}

/// A withdrawal; takes `amount`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReserveWithdraw {
    /// `WALLET_RESERVE_WITHDRAW`.
    pub reserve_sig: EddsaSignature,
    /// Hash of the blinded planchet.
    pub h_coin_envelope: HashCode,
    /// The denomination.
    pub h_denom_pub: HashCode,
    /// Withdraw fee.
    pub withdraw_fee: Amount,
    /// Value of the coin and withdraw fee.
    pub amount: Amount,
}

/// A recoup; adds `amount`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReserveRecoup {
    /// Signing key.
    pub exchange_pub: EddsaPublicKey,
    /// `EXCHANGE_CONFIRM_RECOUP`.
    pub exchange_sig: EddsaSignature,
    /// The time.
    pub timestamp: Timestamp,
    /// Amount.
    pub amount: Amount,
    /// The coin.
    pub coin_pub: EddsaPublicKey,
}

/// A closing; takes `amount`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReserveClosing {
    /// The account that was paid.
    pub receiver_account_details: String,
    /// Identifier of the transfer.
    pub wtid: Wtid,
    /// Signing key.
    pub exchange_pub: EddsaPublicKey,
    /// `EXCHANGE_RESERVE_CLOSED`.
    pub exchange_sig: EddsaSignature,
    /// The time.
    pub timestamp: Timestamp,
    /// Amount, closing fee included.
    pub amount: Amount,
    /// Closing fee.
    pub closing_fee: Amount,
}

/// A merge; adds `amount` if `merged`, and takes `purse_fee` in any case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReserveMerge {
    /// The contract.
    pub h_contract_terms: HashCode,
    /// Merge key.
    pub merge_pub: EddsaPublicKey,
    /// Minimum age.
    pub min_age: u32,
    /// The way in which the purse was created.
    pub flags: u32,
    /// The purse.
    pub purse_pub: EddsaPublicKey,
    /// `WALLET_ACCOUNT_MERGE`.
    pub reserve_sig: EddsaSignature,
    /// The time.
    pub merge_timestamp: Timestamp,
    /// When the purse expires.
    pub purse_expiration: Timestamp,
    /// Purse fee.
    pub purse_fee: Amount,
    /// Target amount of the purse.
    pub amount: Amount,
    /// Whether it was paid.
    pub merged: bool,
}

/// A request for a complete history; takes `amount`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReserveHistoryFee {
    /// `WALLET_RESERVE_HISTORY`.
    pub reserve_sig: EddsaSignature,
    /// The time.
    pub request_timestamp: Timestamp,
    /// History fee.
    pub amount: Amount,
}

/// A prolongation; takes `open_fee`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReserveOpen {
    /// The requested number of purses.
    pub requested_min_purses: u32,
    /// `WALLET_RESERVE_OPEN`.
    pub reserve_sig: EddsaSignature,
    /// The time.
    pub request_timestamp: Timestamp,
    /// The time until which the reserve should stay open.
    pub requested_expiration: Timestamp,
    /// The amount paid by the reserve.
    pub open_fee: Amount,
    /// The same amount; not every exchange sends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub amount: Option<Amount>,
}

/// A request to close; changes nothing by itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReserveClose {
    /// `WALLET_RESERVE_CLOSE`.
    pub reserve_sig: EddsaSignature,
    /// The account to pay, if not that of origin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub h_payto: Option<ShortHash>,
    /// The time.
    pub request_timestamp: Timestamp,
    /// Zero; not every exchange sends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub amount: Option<Amount>,
}
