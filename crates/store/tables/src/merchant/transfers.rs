//! Transfers of exchanges to shops, the coins that they pay for, and identifications that exchanges ask for.

use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode, ShortHash, Wtid};
use batzen_protocol::{Money, Timestamp};
use batzen_store::{Column, table};

use super::{OrderRef, reference};

/// Identifies a transfer among those of all instances.
pub type TransferRef = ShortHash;

/// The reference of a transfer to an instance: an exchange chooses each `wtid` once.
#[must_use]
pub fn transfer_ref(instance: &str, exchange_url: &str, wtid: &str) -> TransferRef {
    reference("batzen-merchant-transfer", &[instance, exchange_url, wtid])
}

table! {
    /// Identifies a transfer.
    pub key struct TransferKey {
        /// The transfer.
        pub transfer: TransferRef,
    }

    /// A transfer that the shop has seen at its bank, or that an exchange says it made.
    pub struct TransferRow {
        /// The instance.
        pub instance: String,
        /// Its number in lists: larger for later transfers.
        pub row_id: u64,
        /// The exchange.
        pub exchange_url: String,
        /// The transfer's subject.
        pub wtid: Wtid,
        /// The account that got the money.
        pub payto_uri: String,
        /// The sum that the account received, as the shop reports it. `None`: the shop has not reported the
        /// transfer.
        pub credit_amount: Option<Money>,
        /// The sum that the exchange paid, as it states. `None`: the exchange was not asked, or its answer
        /// did not add up.
        pub total: Option<Money>,
        /// The wire fee that the exchange took. Set with `total`.
        pub wire_fee: Option<Money>,
        /// When the exchange made the transfer, if it is known.
        pub execution_time: Option<Timestamp>,
        /// Whether all that the exchange says about it was checked against its confirmations of the deposits.
        pub verified: bool,
        /// The error code of the last check; 0 if there was no error.
        pub problem: u32,
        /// The key of the exchange's statement. Set with `total`.
        pub exchange_pub: Option<EddsaPublicKey>,
        /// The statement. Set with `total`.
        pub exchange_sig: Option<EddsaSignature>,
    }

    /// The transfers.
    pub Transfers(410, "transfers"): TransferKey => TransferRow, updated();
    /// By instance, then row id.
    BY_ROW = 1, "by_row", Ordered;
    |_, row, out| {
        out.add_with(Self::BY_ROW, |bytes| {
            row.instance.encode(bytes);
            row.row_id.encode(bytes);
        });
    }
}

table! {
    /// Identifies a coin that paid for an order.
    pub key struct OrderWireKey {
        /// The order.
        pub order: OrderRef,
        /// The coin.
        pub coin_pub: EddsaPublicKey,
    }

    /// The transfer by which an exchange paid for a coin. There is at most one.
    pub struct OrderWireRow {
        /// The transfer.
        pub transfer: TransferRef,
        /// The exchange.
        pub exchange_url: String,
        /// The transfer's subject.
        pub wtid: Wtid,
        /// When the exchange made it.
        pub execution_time: Timestamp,
        /// The share of this coin, after deposit fee and refunds.
        pub amount: Money,
        /// Whether the transfer was verified, and reported by the shop.
        pub confirmed: bool,
    }

    /// The transfers of orders.
    pub OrderWires(411, "order_wires"): OrderWireKey => OrderWireRow, updated(), shard(32);
    /// By order.
    BY_ORDER = 1, "by_order", Prefix { key_bytes: 32 };
    /// By transfer.
    BY_TRANSFER = 2, "by_transfer", Hash;
    |key, row, out| {
        out.add(Self::BY_ORDER, &key.order);
        out.add(Self::BY_TRANSFER, &row.transfer);
    }
}

table! {
    /// Identifies an account at an exchange.
    pub key struct AccountKycKey {
        /// The instance.
        pub instance: String,
        /// The account's salted hash.
        pub h_wire: HashCode,
        /// The exchange.
        pub exchange_url: String,
    }

    /// State of an exchange's identification of an account's owner.
    pub struct AccountKycRow {
        /// The exchange's number of the requirement. `None`: it asks for nothing.
        pub requirement_row: Option<u64>,
        /// When the exchange was asked.
        pub checked: Timestamp,
        /// The exchange's HTTP status, and its error code, if it gave no answer; 0 otherwise.
        pub http_status: u32,
        /// See `http_status`.
        pub exchange_code: u32,
    }

    /// The identifications of accounts.
    pub AccountKycs(412, "account_kycs"): AccountKycKey => AccountKycRow, updated();
    /// By instance.
    BY_INSTANCE = 1, "by_instance", Hash;
    |key, _, out| {
        out.add(Self::BY_INSTANCE, &key.instance);
    }
}
