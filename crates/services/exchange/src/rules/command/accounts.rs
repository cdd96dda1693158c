//! Commands on reserves as accounts.

use batzen_crypto::EddsaSignature;
use batzen_protocol::{Money, Timestamp};
use batzen_tables::exchange::{PaytoHash, ReservePub};

use super::PurseCoin;

/// Prolongs a reserve, or buys purses for it. Each time of a request counts once.
#[derive(Debug, Clone)]
pub struct ReserveOpen {
    /// The reserve.
    pub reserve_pub: ReservePub,
    /// The request's time.
    pub request_time: Timestamp,
    /// The wanted expiration.
    pub reserve_expiration: Timestamp,
    /// The wanted number of purses.
    pub purse_limit: u32,
    /// What the reserve itself pays.
    pub payment: Money,
    /// The account fee at the request's time.
    pub account_fee: Money,
    /// Coins that pay the rest: at most 256.
    pub coins: Vec<PurseCoin>,
    /// The reserve's signature, verified.
    pub reserve_sig: EddsaSignature,
}

/// A reserve is open as long as wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReserveOpened {
    /// When it expires.
    pub expiration: Timestamp,
    /// What it cost.
    pub cost: Money,
}

/// Asks for a reserve's money to be paid out. The closer executes it.
#[derive(Debug, Clone)]
pub struct RequestClose {
    /// The reserve.
    pub reserve_pub: ReservePub,
    /// The request's time. Each counts once.
    pub request_time: Timestamp,
    /// The account that the owner named; none for the account of origin.
    pub requested: Option<PaytoHash>,
    /// The account to pay: the named one, or that of origin.
    pub h_payto: PaytoHash,
    /// Its payto URI.
    pub payto_uri: String,
    /// Its method.
    pub method: String,
    /// The reserve's signature, verified.
    pub reserve_sig: EddsaSignature,
}

/// A reserve will be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CloseRequested {
    /// What will be paid. Zero: less than the fee is there, and nothing will happen.
    pub wired: Money,
}
