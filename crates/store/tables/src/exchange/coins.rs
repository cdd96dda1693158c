//! Used coins, and the deposits and refunds made with them.

use batzen_crypto::{EddsaSignature, HashCode, ShortHash, WireSalt, Wtid};
use batzen_protocol::{Money, Timestamp};
use batzen_store::{Column, DecodeError, table};

use super::{CoinPub, CoinSignature, DenomSerial, MerchantPub, PaytoHash};

table! {
    /// Identifies a coin.
    pub key struct CoinKey {
        /// Its public key.
        pub coin_pub: CoinPub,
    }

    /// A coin that has been used.
    pub struct CoinRow {
        /// Its denomination.
        pub denom: DenomSerial,
        /// Hash of its age commitment, if it has one.
        pub h_age: Option<ShortHash>,
        /// The denomination's signature on it.
        pub denom_sig: CoinSignature,
        /// Its remaining value: between zero and the denomination's value.
        pub remaining: Money,
        /// Whether value came back to it by recoup-refresh, which allows a melt after its expiry.
        pub zombie: bool,
    }

    /// Known coins.
    pub Coins(10, "coins"): CoinKey => CoinRow, updated(), shard(32), shared_in_commit(&["coin_pub"]);
}

table! {
    /// Identifies a deposit. At most one for each coin, merchant and contract.
    pub key struct DepositKey {
        /// The coin that paid.
        pub coin_pub: CoinPub,
        /// The merchant that was paid.
        pub merchant_pub: MerchantPub,
        /// The contract.
        pub h_contract_terms: HashCode,
    }

    /// A deposit: open until it is aggregated.
    pub struct DepositRow {
        /// Its coin's denomination, which determines the deposit fee.
        pub denom: DenomSerial,
        /// The coin's contribution, deposit fee included.
        pub amount: Money,
        /// The wallet's time.
        pub wallet_time: Timestamp,
        /// When the exchange accepted it first.
        pub exchange_time: Timestamp,
        /// The time until which refunds are guaranteed to be possible.
        pub refund_deadline: Timestamp,
        /// The latest time at which the merchant must be paid.
        pub wire_deadline: Timestamp,
        /// Salt of the hash of the merchant's account.
        pub wire_salt: WireSalt,
        /// The merchant's account.
        pub h_payto: PaytoHash,
        /// The coin's signature (`WALLET_COIN_DEPOSIT`).
        pub coin_sig: EddsaSignature,
        /// Sum of the refunds granted on it, refund fees included: at most the amount.
        pub refunded: Money,
        /// The transfer that it was aggregated into (perhaps not paid yet). `None`: still open.
        pub wtid: Option<Wtid>,
    }

    /// Deposits.
    pub Deposits(11, "deposits"): DepositKey
        => DepositRow, updated(), shard(32), queue(&[Self::BY_READY, Self::BY_TARGET]),
        shared(&["merchant_pub", "wire_salt", "h_payto"]), shared_in_commit(&["coin_pub", "h_contract_terms", "wtid"]);
    /// By coin_pub.
    BY_COIN = 1, "by_coin", Prefix { key_bytes: 32 };
    /// Open deposits by due time, then target.
    BY_READY = 2, "by_ready", Serial;
    /// Open deposits by target, then refund deadline.
    BY_TARGET = 3, "by_target", Serial;
    /// Aggregated deposits by the transfer's identifier, in the order of deposits.
    BY_WTID = 4, "by_wtid", Hash;
    |key, row, out| {
        if let Some(wtid) = &row.wtid {
            out.add(Self::BY_WTID, wtid);
            return;
        }
        let target = DepositTarget { h_payto: row.h_payto, merchant_pub: key.merchant_pub };
        out.add_with(Self::BY_READY, |bytes| {
            row.ready().encode(bytes);
            target.encode(bytes);
        });
        out.add_with(Self::BY_TARGET, |bytes| {
            target.encode(bytes);
            row.refund_deadline.encode(bytes);
        });
    }
}

impl DepositRow {
    /// When it is due: at its wire deadline, but not before its acceptance.
    #[must_use]
    pub fn ready(&self) -> Timestamp {
        self.wire_deadline.max(self.exchange_time)
    }
}

/// A merchant and its account. One transfer combines deposits with the same target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DepositTarget {
    /// The merchant's account.
    pub h_payto: PaytoHash,
    /// The merchant.
    pub merchant_pub: MerchantPub,
}

impl DepositTarget {
    /// Number of bytes of each of the two in the indexes: enough that nobody can find a second target with
    /// the same bytes, few enough for small entries. Readers of an index still compare the whole target.
    const PART_BYTES: usize = 12;

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.h_payto.as_bytes()[..Self::PART_BYTES]);
        out.extend_from_slice(&self.merchant_pub.as_bytes()[32 - Self::PART_BYTES..]);
    }

    /// The bounds, in [`Deposits::BY_TARGET`], of the target's open deposits whose refund deadline is at most
    /// `until`: the first included, the second excluded.
    #[must_use]
    pub fn range(&self, until: Timestamp) -> (Vec<u8>, Vec<u8>) {
        let mut from = Vec::with_capacity(2 * Self::PART_BYTES + 8);
        self.encode(&mut from);
        let mut to = from.clone();
        until.encode(&mut to);
        // Keys are never all 0xff bytes, so a successor exists.
        let to =
            batzen_store::prefix_successor(&to).unwrap_or_else(|| vec![u8::MAX; 2 * Self::PART_BYTES + 9]);
        (from, to)
    }
}

/// Identifies a target in a position of [`Deposits::BY_READY`]: equal for equal targets.
pub type TargetTag = [u8; 2 * DepositTarget::PART_BYTES];

/// The due time and the target of a deposit, from its position in [`Deposits::BY_READY`], so that the
/// aggregator can search its queue without reading rows.
///
/// # Errors
/// If the bytes are not such a position.
pub fn ready_position(mut position: &[u8]) -> Result<(Timestamp, TargetTag), DecodeError> {
    let input = &mut position;
    Ok((Timestamp::decode(input)?, TargetTag::decode(input)?))
}

table! {
    /// Identifies a refund.
    pub key struct RefundKey {
        /// The coin that gets money back.
        pub coin_pub: CoinPub,
        /// The merchant that grants it.
        pub merchant_pub: MerchantPub,
        /// The contract.
        pub h_contract_terms: HashCode,
        /// The merchant's number for it.
        pub rtransaction_id: u64,
    }

    /// A refund.
    pub struct RefundRow {
        /// Amount, refund fee included.
        pub amount: Money,
        /// The merchant's signature (`MERCHANT_REFUND`).
        pub merchant_sig: EddsaSignature,
    }

    /// Refunds.
    pub Refunds(13, "refunds"): RefundKey => RefundRow,
        shard(32), shared(&["merchant_pub"]), shared_in_commit(&["coin_pub", "h_contract_terms"]);
    /// By coin_pub.
    BY_COIN = 1, "by_coin", Prefix { key_bytes: 32 };
    /// By deposit.
    BY_DEPOSIT = 2, "by_deposit", Prefix { key_bytes: 128 };
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
