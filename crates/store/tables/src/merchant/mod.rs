//! The merchant's tables: instances, their accounts, orders, deposits, and which sessions have paid; in modules of their
//! own stock, transfers, tips, and the rest.
//!
//! All amounts are in the one currency of the backend. What belongs to an order begins with its reference, which is
//! computed from the instance and the order's id, so that it is in one shard.
//!
//! | table | primary key | other lookups |
//! |---|---|---|
//! | `merchant_state` | a constant | – |
//! | `instances` | id | – |
//! | `instance_accounts` | instance, account hash | instance |
//! | `orders` | order reference | instance and row id, in order |
//! | `order_deposits` | order reference, coin | order reference |
//! | `payment_claims` | order reference | – |
//! | `coin_returns` | order reference, coin | order reference; next attempt, in order |
//! | `order_sessions` | order reference, session | order reference |
//! | `paid_sessions` | session and fulfillment URL | order reference |
//! | `order_refunds` | order reference, coin, number | order reference |
//! | `products` | instance, product | instance and product, in order |
//! | `product_locks` | lock reference, product | lock reference; end, in order |
//! | `transfers` | transfer reference | instance and row id, in order |
//! | `order_wires` | order reference, coin | order reference; transfer |
//! | `account_kycs` | instance, account hash, exchange | instance |
//! | `tip_reserves` | reserve | instance |
//! | `tips` | tip | instance and row id, in order; reserve |
//! | `tip_pickups` | tip, hash of the planchets | tip |
//! | `webhooks` | instance, hook | instance |
//! | `pending_webhooks` | instance, event | instance; next attempt, in order |
//! | `templates` | instance, template | instance |
//! | `access_tokens` | instance, token hash | instance |
//! | `exchange_signkeys` | master key, signing key | master key |

mod exchanges;
mod extras;
mod stock;
mod tips;
mod transfers;

pub use exchanges::*;
pub use extras::*;
pub use stock::*;
pub use tips::*;
pub use transfers::*;

use batzen_crypto::hash::sha512_parts;
use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode, ShortHash, WireSalt};
use batzen_protocol::{Duration, Money, Timestamp};
use batzen_store::{Column, List, Table, TableDef, table};

use crate::SingletonKey;

/// Every table of the merchant, for tools and backends that set up schemas.
pub const ALL: &[&TableDef] = &[
    MerchantStates::DEF,
    Instances::DEF,
    InstanceAccounts::DEF,
    Orders::DEF,
    OrderDeposits::DEF,
    PaymentClaims::DEF,
    CoinReturns::DEF,
    OrderSessions::DEF,
    PaidSessions::DEF,
    OrderRefunds::DEF,
    Products::DEF,
    ProductLocks::DEF,
    Transfers::DEF,
    OrderWires::DEF,
    AccountKycs::DEF,
    TipReserves::DEF,
    Tips::DEF,
    TipPickups::DEF,
    Webhooks::DEF,
    PendingWebhooks::DEF,
    Templates::DEF,
    AccessTokens::DEF,
    ExchangeSignkeys::DEF,
];

/// Identifies an order among those of all instances.
pub type OrderRef = ShortHash;
/// Identifies a session of a browser, or a session and what it bought.
pub type SessionRef = ShortHash;

fn reference(kind: &str, parts: &[&str]) -> ShortHash {
    let mut hashed: Vec<&[u8]> = vec![kind.as_bytes()];
    for part in parts {
        hashed.push(&[0]);
        hashed.push(part.as_bytes());
    }
    batzen_crypto::hash::shorten(&sha512_parts(&hashed))
}

/// The reference of an order.
#[must_use]
pub fn order_ref(instance: &str, order_id: &str) -> OrderRef {
    reference("batzen-merchant-order", &[instance, order_id])
}

/// The reference of a session within an order.
#[must_use]
pub fn session_ref(session_id: &str) -> SessionRef {
    reference("batzen-merchant-session", &[session_id])
}

/// The reference of what a session bought at an instance.
#[must_use]
pub fn purchase_ref(instance: &str, session_id: &str, fulfillment_url: &str) -> SessionRef {
    reference("batzen-merchant-purchase", &[instance, session_id, fulfillment_url])
}

/// Identifies the one row of [`MerchantStates`].
pub type MerchantStateKey = SingletonKey;

table! {
    /// The backend's global data. Written once.
    pub struct MerchantStateRow {
        /// The currency of all amounts.
        pub currency: String,
        /// Mixed into hashes of access tokens, so that they are useless at another backend.
        pub token_salt: [u8; 16],
    }

    /// The backend's state: one row, written by the first start.
    pub MerchantStates(400, "merchant_state"): MerchantStateKey => MerchantStateRow;
}

table! {
    /// Identifies an instance.
    pub key struct InstanceKey {
        /// Its id, as in URLs.
        pub id: String,
    }

    /// A shop.
    pub struct InstanceRow {
        /// Its public key, in contracts.
        pub merchant_pub: EddsaPublicKey,
        /// Its private key. `None`: the instance is deleted.
        pub merchant_priv: Option<[u8; 32]>,
        /// Salted hash of the access token. `None`: a proxy checks access.
        pub token_hash: Option<HashCode>,
        /// The shop's name.
        pub name: String,
        /// Where it is, a JSON object.
        pub address: String,
        /// The jurisdiction whose law applies, a JSON object.
        pub jurisdiction: String,
        /// Its e-mail address.
        pub email: Option<String>,
        /// Its web site.
        pub website: Option<String>,
        /// Its logo, a data URL.
        pub logo: Option<String>,
        /// See the contract's member of this name.
        pub default_max_wire_fee: Money,
        /// See the contract's `max_fee`.
        pub default_max_deposit_fee: Money,
        /// See the contract's member of this name.
        pub default_wire_fee_amortization: u32,
        /// From an order to the latest transfer.
        pub default_wire_transfer_delay: Duration,
        /// From an order to the latest payment.
        pub default_pay_delay: Duration,
    }

    /// The instances.
    pub Instances(401, "instances"): InstanceKey => InstanceRow, updated();
}

impl InstanceKey {
    /// The key of the instance with this id.
    #[must_use]
    pub fn new(id: &str) -> Self {
        Self { id: id.to_owned() }
    }
}

table! {
    /// Identifies a bank account of an instance.
    pub key struct InstanceAccountKey {
        /// The instance.
        pub instance: String,
        /// The account's salted hash, in contracts.
        pub h_wire: HashCode,
    }

    /// A bank account of an instance.
    pub struct InstanceAccountRow {
        /// The account.
        pub payto_uri: String,
        /// The salt of its hash.
        pub salt: WireSalt,
        /// Whether new orders may use it.
        pub active: bool,
        /// When it was added.
        pub added: Timestamp,
    }

    /// The accounts of instances. They are never removed before their instance, since contracts name them.
    pub InstanceAccounts(402, "instance_accounts"): InstanceAccountKey => InstanceAccountRow, updated();
    /// By instance.
    BY_INSTANCE = 1, "by_instance", Hash;
    |key, _, out| {
        out.add(Self::BY_INSTANCE, &key.instance);
    }
}

table! {
    /// Identifies an order.
    pub key struct OrderKey {
        /// The order.
        pub order: OrderRef,
    }

    /// An order, and the contract that a wallet claimed.
    pub struct OrderRow {
        /// The instance.
        pub instance: String,
        /// The order's id within the instance.
        pub order_id: String,
        /// Its number in lists: larger for later orders.
        pub row_id: u64,
        /// When it was created.
        pub created: Timestamp,
        /// The token that allows a customer to claim the order. `None`: anybody may.
        pub claim_token: Option<[u8; 16]>,
        /// Hash of the request that created it, by which a repetition is recognised.
        pub h_request: HashCode,
        /// The contract's terms, canonical JSON; with the wallet's nonce once claimed.
        pub terms: String,
        /// The contract's amount.
        pub amount: Money,
        /// The deposit fees that the shop pays.
        pub max_fee: Money,
        /// The wire fee that the shop pays.
        pub max_wire_fee: Money,
        /// Over how many payments a customer's part of the wire fee is spread.
        pub wire_fee_amortization: u32,
        /// The page that the customer gets; also by which a wallet recognises a repeated purchase.
        pub fulfillment_url: Option<String>,
        /// It must be paid before this time.
        pub pay_deadline: Timestamp,
        /// The wallet's key.
        pub nonce: Option<String>,
        /// Hash of the contract. Set with `nonce`.
        pub h_contract: Option<HashCode>,
        /// When it was paid in full.
        pub paid: Option<Timestamp>,
        /// The sum of the approved refunds.
        pub refund_approved: Money,
        /// Whether the shop has reported transfers of all that its coins are worth.
        pub wired: bool,
        /// The products from the inventory.
        pub products: List<String>,
        /// Units of each of `products`.
        pub quantities: List<u64>,
        /// Whether these units are locked in the inventory, since the order may yet be paid.
        pub holds_stock: bool,
    }

    /// The orders.
    pub Orders(403, "orders"): OrderKey => OrderRow, updated(), shard(32);
    /// By instance, then row id.
    BY_ROW = 1, "by_row", Ordered;
    /// By contract.
    BY_CONTRACT = 2, "by_contract", Hash;
    /// Orders that hold stock, by the end of their offer; others that nobody has claimed, by the time after which they
    /// are forgotten ([`Self::UNCLAIMED_KEPT`]).
    BY_END = 3, "by_end", Ordered;
    |_, row, out| {
        out.add_with(Self::BY_ROW, |bytes| {
            row.instance.encode(bytes);
            row.row_id.encode(bytes);
        });
        if let Some(h_contract) = &row.h_contract {
            out.add(Self::BY_CONTRACT, h_contract);
        }
        if row.holds_stock {
            out.add(Self::BY_END, &row.pay_deadline);
        } else if row.nonce.is_none() {
            out.add(Self::BY_END, &row.pay_deadline.saturating_add(Self::UNCLAIMED_KEPT));
        }
    }
}

impl OrderRow {
    /// The products from the inventory, and how many units of each.
    pub fn stock(&self) -> impl Iterator<Item = (&str, u64)> {
        self.products.0.iter().map(String::as_str).zip(self.quantities.0.iter().copied())
    }
}

impl Orders {
    /// Time after its end for which an offer is kept that nobody has claimed.
    pub const UNCLAIMED_KEPT: Duration = Duration::from_days(1);
}

/// The value of an order, a transfer or a tip in its index `BY_ROW`; without a row id, the prefix that all of the instance
/// share.
#[must_use]
pub fn row_value(instance: &String, row_id: Option<u64>) -> Vec<u8> {
    let mut value = instance.to_bytes();
    if let Some(row_id) = row_id {
        row_id.encode(&mut value);
    }
    value
}

table! {
    /// Identifies a coin that paid for an order.
    pub key struct OrderDepositKey {
        /// The order.
        pub order: OrderRef,
        /// The coin.
        pub coin_pub: EddsaPublicKey,
    }

    /// A coin's payment, with the exchange's confirmation.
    pub struct OrderDepositRow {
        /// The exchange.
        pub exchange_url: String,
        /// The coin's contribution, deposit fee included.
        pub amount: Money,
        /// The deposit fee.
        pub deposit_fee: Money,
        /// The cost of a refund.
        pub refund_fee: Money,
        /// The exchange's wire fee for the contract's method at the time of the payment.
        pub wire_fee: Money,
        /// When the exchange booked it.
        pub exchange_time: Timestamp,
        /// The key of the confirmation.
        pub exchange_pub: EddsaPublicKey,
        /// The confirmation.
        pub exchange_sig: EddsaSignature,
    }

    /// The coins that paid for orders.
    pub OrderDeposits(404, "order_deposits"): OrderDepositKey => OrderDepositRow, shard(32);
    /// By order.
    BY_ORDER = 1, "by_order", Prefix { key_bytes: 32 };
    |key, _, out| {
        out.add(Self::BY_ORDER, &key.order);
    }
}

table! {
    /// The right to pay an order, which a payment has before its coins go to their exchanges.
    pub struct PaymentClaimRow {
        /// All coins of the payment, in order.
        pub coins: List<EddsaPublicKey>,
        /// The contribution of each.
        pub amounts: List<Money>,
        /// The exchange of each.
        pub exchange_urls: List<String>,
        /// The payment has ended by then, or its process has.
        pub until: Timestamp,
        /// From then on the order cannot be paid any more, so that the coins are given back.
        pub over: Timestamp,
    }

    /// Payments that are under way: of an order one at a time.
    pub PaymentClaims(420, "payment_claims"): OrderKey => PaymentClaimRow, updated(), shard(32);
    /// By the time after which the order cannot be paid.
    BY_OVER = 1, "by_over", Ordered;
    |_, row, out| {
        out.add(Self::BY_OVER, &row.over);
    }
}

table! {
    /// A coin that an exchange has accepted, or may have accepted, for an order that it does not pay. Its refund is in
    /// [`OrderRefunds`].
    pub struct CoinReturnRow {
        /// The exchange.
        pub exchange_url: String,
        /// When the exchange is asked next.
        pub next: Timestamp,
        /// Number of failures.
        pub failures: u32,
    }

    /// The coins whose refunds are to be asked for.
    pub CoinReturns(421, "coin_returns"): OrderDepositKey => CoinReturnRow, updated(), shard(32);
    /// By order.
    BY_ORDER = 1, "by_order", Prefix { key_bytes: 32 };
    /// By the time of the next attempt.
    BY_NEXT = 2, "by_next", Ordered;
    |key, row, out| {
        out.add(Self::BY_ORDER, &key.order);
        out.add(Self::BY_NEXT, &row.next);
    }
}

table! {
    /// Identifies a session in which an order was paid.
    pub key struct OrderSessionKey {
        /// The order.
        pub order: OrderRef,
        /// The session.
        pub session: SessionRef,
    }

    /// A session in which an order was paid.
    pub struct OrderSessionRow {
        /// When.
        pub time: Timestamp,
    }

    /// The sessions in which orders were paid.
    pub OrderSessions(405, "order_sessions"): OrderSessionKey => OrderSessionRow, shard(32);
    /// By order.
    BY_ORDER = 1, "by_order", Prefix { key_bytes: 32 };
    |key, _, out| {
        out.add(Self::BY_ORDER, &key.order);
    }
}

table! {
    /// Identifies what a session bought.
    pub key struct PaidSessionKey {
        /// The instance, session and fulfillment URL.
        pub purchase: SessionRef,
    }

    /// The latest order by which a session bought something.
    pub struct PaidSessionRow {
        /// The order.
        pub order: OrderRef,
        /// Its id.
        pub order_id: String,
        /// When it was paid in this session.
        pub time: Timestamp,
    }

    /// Purchases of sessions.
    pub PaidSessions(406, "paid_sessions"): PaidSessionKey => PaidSessionRow, updated(), shard(32);
    /// By order.
    BY_ORDER = 1, "by_order", Hash;
    |_, row, out| {
        out.add(Self::BY_ORDER, &row.order);
    }
}

table! {
    /// Identifies a refund of a coin.
    pub key struct OrderRefundKey {
        /// The order.
        pub order: OrderRef,
        /// The coin.
        pub coin_pub: EddsaPublicKey,
        /// Distinguishes the refunds of a coin. 0: the payment was aborted.
        pub rtransaction_id: u64,
    }

    /// A refund that the shop has approved.
    pub struct OrderRefundRow {
        /// The amount, refund fee included.
        pub amount: Money,
        /// Why.
        pub reason: String,
        /// When it was approved. Parts that were approved together have the same time.
        pub time: Timestamp,
        /// The key of the exchange's confirmation. `None`: the wallet has not asked for the refund, or the exchange
        /// has not made it.
        pub exchange_pub: Option<EddsaPublicKey>,
        /// The confirmation. Set with `exchange_pub`.
        pub exchange_sig: Option<EddsaSignature>,
    }

    /// The refunds of orders.
    pub OrderRefunds(407, "order_refunds"): OrderRefundKey => OrderRefundRow, updated(), shard(32);
    /// By order.
    BY_ORDER = 1, "by_order", Prefix { key_bytes: 32 };
    |key, _, out| {
        out.add(Self::BY_ORDER, &key.order);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_depend_on_every_part() {
        let all = [
            order_ref("a", "b"),
            order_ref("b", "a"),
            order_ref("ab", ""),
            session_ref("ab"),
            purchase_ref("a", "b", "c"),
            purchase_ref("a", "c", "b"),
            lock_ref("a", "b"),
            transfer_ref("a", "b", "c"),
        ];
        for (n, one) in all.iter().enumerate() {
            assert!(!all[..n].contains(one), "{n}");
        }
    }

    #[test]
    fn orders_are_listed_by_number() {
        let instance = "shop".to_owned();
        let value = |row_id| row_value(&instance, row_id);
        assert!(value(Some(255)) < value(Some(256)) && value(None) < value(Some(0)));
        assert!(value(Some(1)).starts_with(&value(None)));
    }
}
