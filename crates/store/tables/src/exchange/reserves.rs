//! Reserves: money that came in and has not been withdrawn.

use batzen_crypto::{EddsaSignature, HashCode, Wtid};
use batzen_protocol::{Money, Timestamp};
use batzen_store::{Column, table};

use super::{AccountId, BlindSignature, CoinPub, DenomSerial, PaytoHash, ReservePub};

table! {
    /// Identifies a reserve.
    pub key struct ReserveKey {
        /// Its public key.
        pub reserve_pub: ReservePub,
    }

    /// A reserve.
    pub struct ReserveRow {
        /// Credits + recoups − withdrawals with fees − closings − history fees. Never negative.
        pub balance: Money,
        /// When it is closed if it still has money.
        pub expiration: Timestamp,
        /// When it may be deleted if it is empty.
        pub gc: Timestamp,
        /// The account of the first transfer, to which the money is returned. `None` without a transfer.
        pub origin: Option<PaytoHash>,
    }

    /// All reserves.
    pub Reserves(1, "reserves"): ReserveKey => ReserveRow,
        updated(), shard(32), shared_in_commit(&["reserve_pub"]);
    /// Reserves with money and an origin account, by expiration: the closer's queue.
    BY_EXPIRATION = 1, "by_expiration", Ordered;
    |_, row, out| {
        if !row.balance.is_zero() && row.origin.is_some() {
            out.add(Self::BY_EXPIRATION, &row.expiration);
        }
    }
}

table! {
    /// Identifies an incoming transfer: the same (account, bank row) is booked once.
    pub key struct ReserveInKey {
        /// The reserve that it credits.
        pub reserve_pub: ReservePub,
        /// The exchange's account that received it.
        pub account: AccountId,
        /// Its row at the bank.
        pub bank_row: u64,
    }

    /// An incoming transfer.
    pub struct ReserveInRow {
        /// The amount.
        pub amount: Money,
        /// The sender's account.
        pub h_payto: PaytoHash,
        /// When the bank executed it.
        pub time: Timestamp,
    }

    /// Incoming transfers.
    pub ReservesIn(2, "reserves_in"): ReserveInKey => ReserveInRow, shard(32);
    /// By reserve_pub.
    BY_RESERVE = 1, "by_reserve", Prefix { key_bytes: 32 };
    /// By account, then bank row.
    BY_BANK_ROW = 2, "by_bank_row", Ordered;
    |key, _, out| {
        out.add_with(Self::BY_BANK_ROW, |bytes| {
            key.account.encode(bytes);
            key.bank_row.encode(bytes);
        });
    }
}

table! {
    /// Identifies a withdrawal.
    pub key struct WithdrawalKey {
        /// The reserve.
        pub reserve_pub: ReservePub,
        /// Hash of the blinded planchet and the denomination.
        pub h_coin_ev: HashCode,
    }

    /// A withdrawal. Value and fee are those of its denomination.
    pub struct WithdrawalRow {
        /// The denomination of the coin.
        pub denom: DenomSerial,
        /// The reserve's signature on the request (`WALLET_RESERVE_WITHDRAW`).
        pub reserve_sig: EddsaSignature,
        /// The blind signature in the answer.
        pub ev_sig: BlindSignature,
        /// When it was debited.
        pub time: Timestamp,
    }

    /// Withdrawals.
    pub Withdrawals(3, "withdrawals"): WithdrawalKey => WithdrawalRow,
        shard(32), shared_in_commit(&["reserve_pub"]);
    /// By reserve_pub.
    BY_RESERVE = 1, "by_reserve", Prefix { key_bytes: 32 };
    /// By h_coin_ev: recoup. Several reserves may have withdrawn an equal planchet; the earliest serial
    /// counts.
    BY_COIN_EV = 2, "by_coin_ev", Hash;
    |key, _, out| {
        out.add(Self::BY_COIN_EV, &key.h_coin_ev);
    }
}

table! {
    /// Identifies a closing.
    pub key struct ClosingKey {
        /// The reserve.
        pub reserve_pub: ReservePub,
        /// Number of its earlier closings.
        pub n: u32,
    }

    /// A closing: the reserve's whole balance left it.
    pub struct ClosingRow {
        /// The time.
        pub time: Timestamp,
        /// Identifies the transfer, if money moved.
        pub wtid: Wtid,
        /// The receiver's account.
        pub h_payto: PaytoHash,
        /// The account that pays.
        pub account: AccountId,
        /// The amount taken from the reserve, fee included.
        pub amount: Money,
        /// The closing fee (at most the amount).
        pub fee: Money,
        /// The amount wired: amount − fee, rounded down. Zero: no transfer.
        pub paid: Money,
    }

    /// Closings of reserves.
    pub Closings(4, "closings"): ClosingKey => ClosingRow, shard(32);
    /// By reserve_pub.
    BY_RESERVE = 1, "by_reserve", Prefix { key_bytes: 32 };
}

table! {
    /// Identifies a credit by recoup.
    pub key struct RecoupCreditKey {
        /// The reserve that got the money back.
        pub reserve_pub: ReservePub,
        /// The recouped coin.
        pub coin_pub: CoinPub,
        /// The recoup's number on that coin.
        pub n: u32,
    }

    /// A credit by recoup.
    pub struct RecoupCreditRow {
        /// The amount returned.
        pub amount: Money,
        /// The time.
        pub time: Timestamp,
    }

    /// Credits by recoup, as the reserve's history needs them.
    pub RecoupCredits(5, "recoup_credits"): RecoupCreditKey => RecoupCreditRow, shard(32);
    /// By reserve_pub.
    BY_RESERVE = 1, "by_reserve", Prefix { key_bytes: 32 };
}

table! {
    /// Identifies a paid request for the full history.
    pub key struct HistoryRequestKey {
        /// The reserve.
        pub reserve_pub: ReservePub,
        /// The request's own time: repeated requests with it are free.
        pub request_time: Timestamp,
    }

    /// A paid request for the full history.
    pub struct HistoryRequestRow {
        /// Its fee, more than zero.
        pub fee: Money,
        /// The reserve's signature (`WALLET_RESERVE_HISTORY`).
        pub reserve_sig: EddsaSignature,
    }

    /// Paid requests for full histories.
    pub HistoryRequests(6, "history_requests"): HistoryRequestKey => HistoryRequestRow, shard(32);
    /// By reserve_pub.
    BY_RESERVE = 1, "by_reserve", Prefix { key_bytes: 32 };
}
