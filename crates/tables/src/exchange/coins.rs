//! Coins that have been used, and what they paid for.

use batzen_crypto::{EddsaSignature, HashCode, ShortHash, WireSalt, Wtid};
use batzen_protocol::{Money, Timestamp};
use batzen_store::{Column, IndexDef, IndexEntries, IndexKind, Table, TableDef, record};

use super::{CoinPub, CoinSignature, DenomSerial, MerchantPub, PaytoHash};

record! {
    /// Names a coin.
    pub key struct CoinKey {
        /// Its public key.
        pub coin_pub: CoinPub,
    }
}
record! {
    /// A coin that has been used.
    pub struct CoinRow {
        /// Its denomination.
        pub denom: DenomSerial,
        /// Hash of its age commitment, if it has one.
        pub h_age: Option<ShortHash>,
        /// The denomination's signature on it.
        pub denom_sig: CoinSignature,
        /// What is left of it: between zero and the denomination's value.
        pub remaining: Money,
        /// Whether value came back to it by recoup-refresh, which lets it be melted after its time.
        pub zombie: bool,
    }
}
/// Known coins.
pub struct Coins;
impl Table for Coins {
    const DEF: &'static TableDef = &TableDef::of::<Self>(10, "coins").shard(32);
    type Key = CoinKey;
    type Row = CoinRow;
}

record! {
    /// Names a deposit. At most one for each coin, merchant and contract.
    pub key struct DepositKey {
        /// The coin that paid.
        pub coin_pub: CoinPub,
        /// The merchant that was paid.
        pub merchant_pub: MerchantPub,
        /// The contract.
        pub h_contract_terms: HashCode,
    }
}
record! {
    /// A deposit.
    pub struct DepositRow {
        /// What the coin contributed, deposit fee included.
        pub amount: Money,
        /// The wallet's time.
        pub wallet_time: Timestamp,
        /// When the exchange accepted it first.
        pub exchange_time: Timestamp,
        /// Until when a refund is promised to be possible.
        pub refund_deadline: Timestamp,
        /// When the merchant wants to be paid at the latest.
        pub wire_deadline: Timestamp,
        /// Salt of the hash of the merchant's account.
        pub wire_salt: WireSalt,
        /// The merchant's account.
        pub h_payto: PaytoHash,
        /// The coin's signature (`WALLET_COIN_DEPOSIT`).
        pub coin_sig: EddsaSignature,
        /// Sum of the refunds granted on it, refund fees included: at most the amount.
        pub refunded: Money,
        /// The transfer that it was aggregated into (perhaps not paid yet). None: still open.
        pub wtid: Option<Wtid>,
    }
}
/// Deposits.
pub struct Deposits;
impl Deposits {
    /// By coin_pub.
    pub const BY_COIN: u8 = 1;
}
impl Table for Deposits {
    const DEF: &'static TableDef = &TableDef::of::<Self>(11, "deposits").shard(32).indexed(&[IndexDef::new(
        Self::BY_COIN,
        "by_coin",
        IndexKind::Prefix { key_bytes: 32 },
    )]);
    type Key = DepositKey;
    type Row = DepositRow;
}

record! {
    /// A deposit that has not been aggregated.
    pub struct DepositOpenRow {
        /// When it is due: its wire deadline, but not before it was accepted.
        pub ready: Timestamp,
        /// The merchant's account.
        pub h_payto: PaytoHash,
        /// From when it may be aggregated.
        pub refund_deadline: Timestamp,
    }
}
/// Deposits that have not been aggregated: the aggregator's queue.
pub struct DepositsOpen;
impl DepositsOpen {
    /// By `ready`.
    pub const BY_READY: u8 = 1;
    /// By h_payto, merchant_pub, refund deadline.
    pub const BY_TARGET: u8 = 2;

    /// The bytes that entries of one target in [`DepositsOpen::BY_TARGET`] begin with.
    #[must_use]
    pub fn target_prefix(h_payto: &PaytoHash, merchant_pub: &MerchantPub) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(72);
        h_payto.encode(&mut bytes);
        merchant_pub.encode(&mut bytes);
        bytes
    }

    /// The value in [`DepositsOpen::BY_TARGET`] of a target's deposits with this refund deadline: as upper bound of a
    /// range it takes in all of the target's deposits whose refund deadline is not later.
    #[must_use]
    pub fn target_until(
        h_payto: &PaytoHash,
        merchant_pub: &MerchantPub,
        refund_deadline: Timestamp,
    ) -> Vec<u8> {
        let mut bytes = Self::target_prefix(h_payto, merchant_pub);
        refund_deadline.encode(&mut bytes);
        bytes
    }
}
impl Table for DepositsOpen {
    const DEF: &'static TableDef = &TableDef::of::<Self>(12, "deposits_open").shard(32).indexed(&[
        IndexDef::new(Self::BY_READY, "by_ready", IndexKind::Ordered),
        IndexDef::new(Self::BY_TARGET, "by_target", IndexKind::Ordered),
    ]);
    type Key = DepositKey;
    type Row = DepositOpenRow;
    fn index_entries(key: &DepositKey, row: &DepositOpenRow, out: &mut IndexEntries) {
        out.add(Self::BY_READY, &row.ready);
        out.add_with(Self::BY_TARGET, |bytes| {
            bytes.extend_from_slice(&Self::target_until(
                &row.h_payto,
                &key.merchant_pub,
                row.refund_deadline,
            ));
        });
    }
}

record! {
    /// Names a refund.
    pub key struct RefundKey {
        /// The coin that gets money back.
        pub coin_pub: CoinPub,
        /// The merchant that gives it.
        pub merchant_pub: MerchantPub,
        /// The contract.
        pub h_contract_terms: HashCode,
        /// The merchant's number of it.
        pub rtransaction_id: u64,
    }
}
impl RefundKey {
    /// The refunded deposit.
    #[must_use]
    pub fn deposit(&self) -> DepositKey {
        DepositKey {
            coin_pub: self.coin_pub,
            merchant_pub: self.merchant_pub,
            h_contract_terms: self.h_contract_terms,
        }
    }
}
record! {
    /// A refund.
    pub struct RefundRow {
        /// How much, refund fee included.
        pub amount: Money,
        /// The merchant's signature (`MERCHANT_REFUND`).
        pub merchant_sig: EddsaSignature,
    }
}
/// Refunds.
pub struct Refunds;
impl Refunds {
    /// By coin_pub.
    pub const BY_COIN: u8 = 1;
    /// By deposit.
    pub const BY_DEPOSIT: u8 = 2;
}
impl Table for Refunds {
    const DEF: &'static TableDef = &TableDef::of::<Self>(13, "refunds").shard(32).indexed(&[
        IndexDef::new(Self::BY_COIN, "by_coin", IndexKind::Prefix { key_bytes: 32 }),
        IndexDef::new(Self::BY_DEPOSIT, "by_deposit", IndexKind::Prefix { key_bytes: 128 }),
    ]);
    type Key = RefundKey;
    type Row = RefundRow;
}
