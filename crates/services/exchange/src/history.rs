//! Histories of coins and reserves: evidence for refusals, and statements for owners.

use batzen_crypto::{EddsaSignature, HashCode, ShortHash, WireSalt, Wtid};
use batzen_protocol::{Money, Timestamp};
use batzen_tables::exchange::{
    CoinPub, CoinRow, DenomSerial, MerchantPub, PaytoHash, PurseMergeRow, PursePub, PurseRow, PurseState,
    ReservePub,
};

/// The whole history of a coin. `remaining` = value − debits + credits of the items (C3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoinHistory {
    pub(crate) coin_pub: CoinPub,
    /// The denomination under which it is known.
    pub denom: DenomSerial,
    /// Hash of its age commitment, if it has one.
    pub(crate) h_age: Option<ShortHash>,
    /// Its remaining value.
    pub remaining: Money,
    /// The events, by type.
    pub items: Vec<CoinHistoryItem>,
}

impl CoinHistory {
    /// A history that is read later.
    pub(crate) fn unread(coin_pub: CoinPub, row: &CoinRow) -> Self {
        Self { coin_pub, denom: row.denom, h_age: row.h_age, remaining: row.remaining, items: Vec::new() }
    }
}

/// One event in the history of a coin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CoinHistoryItem {
    /// It paid for a contract.
    Deposit {
        /// Its contribution, including the fee. Taken from the coin.
        amount: Money,
        /// The deposit fee.
        deposit_fee: Money,
        /// The wallet's time.
        wallet_time: Timestamp,
        /// The refund deadline.
        refund_deadline: Timestamp,
        /// The merchant.
        merchant_pub: MerchantPub,
        /// The contract.
        h_contract_terms: HashCode,
        /// The merchant's account.
        payto_uri: String,
        /// Salt of that account's hash.
        wire_salt: WireSalt,
        /// The coin's signature.
        coin_sig: EddsaSignature,
    },
    /// It was melted.
    Melt {
        /// The melted amount, including the fee. Taken from the coin.
        amount: Money,
        /// The melt fee.
        melt_fee: Money,
        /// The commitment.
        rc: HashCode,
        /// The coin's signature.
        coin_sig: EddsaSignature,
    },
    /// A merchant refunded.
    Refund {
        /// The refund, including the fee (as the merchant signed it). The coin got this less the fee.
        amount: Money,
        /// The refund fee.
        refund_fee: Money,
        /// The contract.
        h_contract_terms: HashCode,
        /// The merchant.
        merchant_pub: MerchantPub,
        /// The merchant's number of the refund.
        rtransaction_id: u64,
        /// The merchant's signature.
        merchant_sig: EddsaSignature,
    },
    /// Its value went back to its reserve. Taken from the coin.
    Recoup {
        /// Amount.
        amount: Money,
        /// The reserve.
        reserve_pub: ReservePub,
        /// The coin's signature.
        coin_sig: EddsaSignature,
        /// The blinding secret.
        coin_blind: [u8; 32],
        /// When.
        time: Timestamp,
    },
    /// Recoup-refresh: its value went back to the old coin. Taken from the coin.
    RecoupRefresh {
        /// Amount.
        amount: Money,
        /// The old coin.
        old_coin_pub: CoinPub,
        /// The coin's signature.
        coin_sig: EddsaSignature,
        /// The blinding secret.
        coin_blind: [u8; 32],
        /// When.
        time: Timestamp,
    },
    /// Recoup-refresh: the value of a fresh coin came back. Added to the coin.
    OldCoinRecoup {
        /// Amount.
        amount: Money,
        /// The fresh coin.
        coin_pub: CoinPub,
        /// When.
        time: Timestamp,
    },
    /// It was deposited into a purse. Taken from the coin.
    PurseDeposit {
        /// Its contribution, including the fee.
        amount: Money,
        /// The purse.
        purse_pub: PursePub,
        /// Whether it got it back (there is a [`CoinHistoryItem::PurseRefund`] too).
        refunded: bool,
        /// The coin's signature.
        coin_sig: EddsaSignature,
    },
    /// A purse expired or was deleted. The whole contribution was added to the coin.
    PurseRefund {
        /// Its former contribution, including the fee.
        amount: Money,
        /// The refund fee of its denomination, which answers name although it is not taken.
        refund_fee: Money,
        /// The purse.
        purse_pub: PursePub,
    },
    /// It paid for a reserve. Taken from the coin.
    ReserveOpenDeposit {
        /// Its contribution, including the fee.
        amount: Money,
        /// The reserve's signature on the request.
        reserve_sig: EddsaSignature,
        /// The coin's signature.
        coin_sig: EddsaSignature,
    },
}

impl CoinHistoryItem {
    /// The amounts that the event took from the coin and added to it.
    #[must_use]
    pub fn effect(&self) -> (Money, Money) {
        match self {
            Self::Deposit { amount, .. }
            | Self::Melt { amount, .. }
            | Self::Recoup { amount, .. }
            | Self::RecoupRefresh { amount, .. }
            | Self::PurseDeposit { amount, .. }
            | Self::ReserveOpenDeposit { amount, .. } => (*amount, Money::ZERO),
            Self::Refund { amount, refund_fee, .. } => {
                (Money::ZERO, amount.checked_sub(*refund_fee).expect("a refund covers its fee"))
            }
            Self::OldCoinRecoup { amount, .. } | Self::PurseRefund { amount, .. } => (Money::ZERO, *amount),
        }
    }
}

/// A reserve's balance with its history: all events, or those in a window.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReserveStatement {
    /// The current balance.
    pub balance: Money,
    /// The events, by type in the order of the protocol's table. A whole history adds up to the balance
    /// (R10).
    pub items: Vec<ReserveHistoryItem>,
    /// The number of all events, including those outside the window.
    pub(crate) events: usize,
}

/// One event in the history of a reserve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReserveHistoryItem {
    /// A transfer came in. Added.
    Credit {
        /// When the bank executed it.
        time: Timestamp,
        /// The sender.
        payto_uri: String,
        /// Its row at the bank.
        bank_row: u64,
        /// Amount.
        amount: Money,
    },
    /// A coin was withdrawn. Taken.
    Withdraw {
        /// When.
        time: Timestamp,
        /// The reserve's signature.
        reserve_sig: EddsaSignature,
        /// The planchet.
        h_coin_ev: HashCode,
        /// Its denomination.
        denom: DenomSerial,
        /// The withdraw fee.
        fee: Money,
        /// Value and fee.
        amount: Money,
    },
    /// A coin's value came back. Added.
    Recoup {
        /// When.
        time: Timestamp,
        /// The coin.
        coin_pub: CoinPub,
        /// Amount.
        amount: Money,
    },
    /// The reserve was closed. Taken.
    Closing {
        /// When.
        time: Timestamp,
        /// The receiver.
        payto_uri: String,
        /// Identifies the transfer.
        wtid: Wtid,
        /// The closing fee.
        fee: Money,
        /// The amount taken, including the fee.
        amount: Money,
    },
    /// A full history was paid for. Taken.
    History {
        /// The request's time.
        request_time: Timestamp,
        /// The reserve's signature.
        reserve_sig: EddsaSignature,
        /// The fee.
        amount: Money,
    },
    /// A purse was merged. Its fee was taken; its target was added if it was paid.
    Merge {
        /// The purse's key.
        purse_pub: PursePub,
        /// The purse.
        purse: Box<PurseRow>,
        /// The merge.
        merge: Box<PurseMergeRow>,
    },
    /// The reserve was prolonged, or purses were bought. Taken.
    Open {
        /// The request's time.
        request_time: Timestamp,
        /// The reserve's signature.
        reserve_sig: EddsaSignature,
        /// The wanted expiration.
        requested_expiration: Timestamp,
        /// The wanted number of purses.
        requested_purses: u32,
        /// The amount that the reserve paid.
        amount: Money,
    },
    /// The owner asked for the reserve to be closed. Changes nothing itself.
    Close {
        /// The request's time.
        request_time: Timestamp,
        /// The reserve's signature.
        reserve_sig: EddsaSignature,
        /// The account that was named.
        h_payto: Option<PaytoHash>,
    },
}

impl ReserveHistoryItem {
    /// The amounts that the event took from the reserve and added to it.
    #[must_use]
    pub fn effect(&self) -> (Money, Money) {
        match self {
            Self::Credit { amount, .. } | Self::Recoup { amount, .. } => (Money::ZERO, *amount),
            Self::Withdraw { amount, .. }
            | Self::Closing { amount, .. }
            | Self::History { amount, .. }
            | Self::Open { amount, .. } => (*amount, Money::ZERO),
            Self::Merge { purse, .. } => {
                (purse.purse_fee, if purse.state == PurseState::Paid { purse.target } else { Money::ZERO })
            }
            Self::Close { .. } => (Money::ZERO, Money::ZERO),
        }
    }
}

/// The start value plus what was given less what was taken, if that is an amount.
#[must_use]
pub fn balance_of(start: Money, effects: impl IntoIterator<Item = (Money, Money)>) -> Option<Money> {
    let (mut taken, mut given) = (Money::ZERO, start);
    for (minus, plus) in effects {
        taken = taken.checked_add(minus).ok()?;
        given = given.checked_add(plus).ok()?;
    }
    given.checked_sub(taken).ok()
}
