//! The backend's rules: the effect of a command on instances and orders. Pure: no I/O, no clock, no randomness, no
//! cryptography.
//!
//! Each command is in the module of its family, with its answer, the rows that it may touch and its rule.
//!
//! | module | content |
//! |---|---|
//! | `instances` | creating, changing and deleting shops |
//! | `orders` | the life of an order |
//! | `payments` | claims of payments, coins accepted, coins given back |
//! | `stock` | products, and what carts and orders hold of them |
//! | `transfers` | transfers of exchanges, and what they pay for |
//! | `tips` | reserves of shops, and what customers get of them |
//! | `extras` | web hooks, templates, further access tokens |
//! | `exchanges` | signing keys that exchanges have withdrawn |
//! | `refunds` | refunds of paid orders, and of payments that were given up |
//! | `sufficiency` | whether coins pay an order (merchant chapter 2.3.3) |

mod exchanges;
mod extras;
mod instances;
mod orders;
mod payments;
mod refunds;
mod stock;
mod sufficiency;
#[cfg(test)]
mod tests;
mod tips;
mod transfers;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use batzen_engine::{Plan, Rules, WorkingSet};
use batzen_protocol::{Currency, Timestamp};
use batzen_store::{Change, ChangeSet, Table as _};
use batzen_tables::merchant::{Instances, MerchantStateKey, MerchantStateRow, MerchantStates};

pub(crate) use exchanges::{ForgetSignkeys, ListedSignkey, NoteSignkeys};
pub(crate) use extras::{
    DeferWebhook, Edit, EditTemplate, EditToken, EditWebhook, FinishWebhook, Hook, PurgeRest, TakeWebhook,
};
pub use instances::{ChangeInstance, CreateInstance, DeleteInstance, NewAccount};
pub(crate) use instances::{SetAuth, order_range};
pub(crate) use orders::Forget;
pub use orders::{Claim, CreateOrder, DeleteOrder, PurgeOrders, Replay, Session, Settle};
pub use payments::{ClaimPayment, ClaimedCoin, RecordDeposits, ReleasePayment};
pub(crate) use payments::{DepositsRecorded, EndClaim, FinishCoinReturn};
pub use refunds::{ABORTED, Abort, ApproveRefund};
pub(crate) use refunds::{Coins, RecordRefund};
pub use stock::{ChangeProduct, CreateProduct, DeleteProduct, GRACE, Held, LockProduct, ReleaseStock};
pub(crate) use sufficiency::{Due, check as check_payment};
pub use sufficiency::{Insufficient, Payment};
pub(crate) use tips::{
    AuthorizeTip, CreateTipReserve, DeleteTipReserve, FundTipReserve, PickUpTip, RecordTipPickup,
    TakeBackPickup,
};

pub(crate) use transfers::{
    CheckedTransfer, DeleteTransfer, NoteTransfer, RecordKyc, RecordWires, RefuseTransfer, Statement,
};

batzen_engine::commands! {
    /// A change of the backend's rows.
    #[derive(Clone, Debug)]
    MerchantRules:
    Open,
    CreateInstance,
    ChangeInstance,
    SetAuth,
    DeleteInstance,
    PurgeOrders,
    CreateOrder,
    Claim,
    ClaimPayment,
    ReleasePayment,
    RecordDeposits,
    EndClaim,
    FinishCoinReturn,
    Settle,
    Replay,
    ApproveRefund,
    Abort,
    RecordRefund,
    Forget,
    DeleteOrder,
    CreateProduct,
    ChangeProduct,
    DeleteProduct,
    LockProduct,
    ReleaseStock,
    NoteTransfer,
    RefuseTransfer,
    RecordWires,
    DeleteTransfer,
    RecordKyc,
    CreateTipReserve,
    FundTipReserve,
    DeleteTipReserve,
    AuthorizeTip,
    PickUpTip,
    RecordTipPickup,
    TakeBackPickup,
    EditWebhook,
    EditTemplate,
    EditToken,
    TakeWebhook,
    DeferWebhook,
    FinishWebhook,
    PurgeRest,
    NoteSignkeys,
    ForgetSignkeys,
}

/// The decision on a command with this answer.
pub(crate) type Decided<T> = Result<T, Refusal>;

batzen_protocol::refusals! {
    /// Why a command was refused.
    pub enum Refusal {
        /// The store holds a backend of another currency.
        OtherCurrency(String) = "the store holds a merchant backend of currency {0}",
            GENERIC_CURRENCY_MISMATCH;
        /// No instance has this id.
        InstanceUnknown = "no such instance", MERCHANT_GENERIC_INSTANCE_UNKNOWN;
        /// Another instance has this id.
        InstanceExists = "the instance id is taken", MERCHANT_PRIVATE_POST_INSTANCES_ALREADY_EXISTS;
        /// A deleted instance has this id.
        InstanceDeleted = "the instance was deleted, but not purged",
            MERCHANT_PRIVATE_POST_INSTANCES_PURGE_REQUIRED;
        /// The instance has orders.
        OrdersLeft = "the instance has orders", MERCHANT_PRIVATE_POST_INSTANCES_ALREADY_EXISTS;
        /// No order has this id.
        OrderUnknown = "no such order", MERCHANT_GENERIC_ORDER_UNKNOWN;
        /// Another order has this id.
        OrderExists = "the order id is taken", MERCHANT_PRIVATE_POST_ORDERS_ALREADY_EXISTS;
        /// The order changed since it was read.
        OrderChanged = "the order has changed", MERCHANT_POST_ORDERS_ID_CLAIM_ALREADY_CLAIMED;
        /// Another wallet has claimed the order.
        AlreadyClaimed = "another wallet has claimed the order",
            MERCHANT_POST_ORDERS_ID_CLAIM_ALREADY_CLAIMED;
        /// The coins signed another contract.
        OtherContract = "the order has another contract", MERCHANT_GENERIC_CONTRACT_HASH_DOES_NOT_MATCH_ORDER;
        /// Nobody has claimed or paid the order.
        Unpaid = "the order is not paid", MERCHANT_GENERIC_ORDER_UNKNOWN;
        /// The order is paid.
        Paid = "the order is paid", MERCHANT_POST_ORDERS_ID_ABORT_REFUND_REFUSED_PAYMENT_COMPLETE;
        /// Other coins are being deposited for the order.
        PaymentUnderWay = "another payment of the order is under way",
            MERCHANT_POST_ORDERS_ID_PAY_ALREADY_PAID;
        /// The contract allows no refunds at this time.
        RefundNotAllowed = "the contract does not allow refunds, or no longer does",
            MERCHANT_PRIVATE_POST_ORDERS_ID_REFUND_NOT_ALLOWED_BY_CONTRACT;
        /// More was to be refunded than was paid.
        RefundInconsistent = "the refund exceeds the payment",
            MERCHANT_PRIVATE_POST_ORDERS_ID_REFUND_INCONSISTENT_AMOUNT;
        /// The order has too many refunds.
        TooManyRefunds = "the order has too many refunds",
            MERCHANT_PRIVATE_POST_ORDERS_ID_REFUND_INCONSISTENT_AMOUNT;
        /// The order can still be paid.
        AwaitingPayment = "the order can still be paid", MERCHANT_PRIVATE_DELETE_ORDERS_AWAITING_PAYMENT;
        /// The order is paid, so it stays.
        PaidStays = "the order is paid", MERCHANT_PRIVATE_DELETE_ORDERS_ALREADY_PAID;
        /// No product has this id.
        ProductUnknown(String) = "no such product: {0}", MERCHANT_GENERIC_PRODUCT_UNKNOWN;
        /// Another product has this id.
        ProductExists = "the product id is taken", MERCHANT_PRIVATE_POST_PRODUCTS_CONFLICT_PRODUCT_EXISTS;
        /// Carts or orders hold units of the product.
        ProductLocked = "the product is locked by carts or unpaid orders",
            MERCHANT_PRIVATE_DELETE_PRODUCTS_CONFLICTING_LOCK;
        /// There is not enough in stock.
        OutOfStock {
            /// The product.
            product_id: String,
            /// Units that were wanted.
            requested: u64,
            /// Units that there are.
            available: u64,
        } = "insufficient stock of product {product_id}: {available} available, {requested} requested",
            MERCHANT_PRIVATE_POST_PRODUCTS_LOCK_INSUFFICIENT_STOCKS;
        /// Overflow of the units that carts and orders hold.
        TooMuchStock = "quantity overflow", MERCHANT_PRIVATE_POST_PRODUCTS_LOCK_INSUFFICIENT_STOCKS;
        /// Fewer units would be lost than before.
        LostReduced = "the number of lost units cannot decrease",
            MERCHANT_PRIVATE_PATCH_PRODUCTS_TOTAL_LOST_REDUCED;
        /// Fewer units would have been in stock than before.
        StockReduced = "the total stock cannot decrease",
            MERCHANT_PRIVATE_PATCH_PRODUCTS_TOTAL_STOCKED_REDUCED;
        /// More units would be lost than there are.
        LostExceedsStock = "more units lost than in stock",
            MERCHANT_PRIVATE_PATCH_PRODUCTS_TOTAL_LOST_EXCEEDS_STOCKS;
        /// No transfer has this number.
        TransferUnknown = "no such transfer", MERCHANT_GENERIC_TRANSFER_UNKNOWN;
        /// The transfer was reported with another amount or account.
        OtherTransfer = "the transfer was reported with another amount or account",
            MERCHANT_PRIVATE_POST_TRANSFERS_CONFLICTING_SUBMISSION;
        /// The transfer was verified, so it stays.
        TransferVerified = "the transfer was verified", MERCHANT_PRIVATE_DELETE_TRANSFERS_ALREADY_CONFIRMED;
        /// No reserve has this key.
        ReserveUnknown = "no such reserve", MERCHANT_PRIVATE_GET_RESERVES_ID_RESERVE_UNKNOWN;
        /// The exchange closes the reserve.
        ReserveExpired = "the reserve has expired", MERCHANT_PRIVATE_POST_TIP_AUTHORIZE_RESERVE_EXPIRED;
        /// Customers can still pick up tips of the reserve.
        TipsOpen = "customers can still pick up tips of the reserve", GENERIC_PARAMETER_MALFORMED;
        /// The reserve has not enough left.
        TipTooLarge = "insufficient balance of the reserve",
            MERCHANT_PRIVATE_POST_TIP_AUTHORIZE_INSUFFICIENT_FUNDS;
        /// No tip has this id.
        TipUnknown = "no such tip", MERCHANT_GENERIC_TIP_ID_UNKNOWN;
        /// The tip can no longer be picked up.
        TipExpired = "the tip has expired", MERCHANT_TIP_PICKUP_HAS_EXPIRED;
        /// The amount exceeds the rest of the tip.
        TipExceeded = "the tip's remaining amount is too small",
            MERCHANT_TIP_PICKUP_AMOUNT_EXCEEDS_TIP_REMAINING;
        /// Overflow of a sum.
        TipSum = "amount overflow", MERCHANT_TIP_PICKUP_SUMMATION_FAILED;
        /// Another hook, template or token has this name.
        NameTaken = "the name is taken", GENERIC_PARAMETER_MALFORMED;
        /// The instance has as many of them as it may have.
        TooMany(&'static str) = "the instance has too many {0}", GENERIC_PARAMETER_MALFORMED;
        /// No hook, template or token has this name.
        NameUnknown = "no such name", GENERIC_PARAMETER_MALFORMED;
    } transparent {
        /// The coins do not suffice.
        Insufficient(Insufficient);
    }
}

/// The rules.
#[derive(Clone, Debug, Default)]
pub struct MerchantRules {
    instance_changes: Arc<AtomicU64>,
}

impl MerchantRules {
    /// Number of batches that have changed instances. It rises after the commit and before the answers.
    pub(crate) fn instance_changes(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.instance_changes)
    }
}

impl Rules for MerchantRules {
    type Refusal = Refusal;
    batzen_engine::dispatch_to_commands!(Command);

    fn committed(&self, changes: &ChangeSet) {
        let is_of_instance =
            |change: &Change| change.table().id == Instances::DEF.id && change.old_row() != change.new_row();
        if changes.changes().iter().any(is_of_instance) {
            self.instance_changes.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Opens the store for a backend of this currency. Idempotent.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    pub(crate) currency: Currency,
    /// Used if the store is new.
    pub(crate) token_salt: [u8; 16],
}

impl batzen_engine::Command<MerchantRules> for Open {
    type Answer = MerchantStateRow;

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan.row::<MerchantStates>(MerchantStateKey::ONLY);
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, _: Timestamp) -> Decided<Self::Answer> {
        let currency = self.currency.to_string();
        if let Some(state) = rows.get::<MerchantStates>(&MerchantStateKey::ONLY) {
            if state.currency != currency {
                return Err(Refusal::OtherCurrency(state.currency.clone()));
            }
            return Ok(state.clone());
        }
        let state = MerchantStateRow { currency, token_salt: self.token_salt };
        rows.insert::<MerchantStates>(&MerchantStateKey::ONLY, state.clone());
        Ok(state)
    }
}
