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
use batzen_protocol::{Currency, ErrorCode, Timestamp};
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

/// Why a command was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The store holds a backend of another currency.
    #[error("the store holds a merchant backend of currency {0}")]
    OtherCurrency(String),
    /// No instance has this id.
    #[error("no such instance")]
    InstanceUnknown,
    /// Another instance has this id.
    #[error("the instance id is taken")]
    InstanceExists,
    /// A deleted instance has this id.
    #[error("the instance was deleted, but not purged")]
    InstanceDeleted,
    /// The instance has orders.
    #[error("the instance has orders")]
    OrdersLeft,
    /// No order has this id.
    #[error("no such order")]
    OrderUnknown,
    /// Another order has this id.
    #[error("the order id is taken")]
    OrderExists,
    /// The order changed since it was read.
    #[error("the order has changed")]
    OrderChanged,
    /// Another wallet has claimed the order.
    #[error("another wallet has claimed the order")]
    AlreadyClaimed,
    /// The coins signed another contract.
    #[error("the order has another contract")]
    OtherContract,
    /// Nobody has claimed or paid the order.
    #[error("the order is not paid")]
    Unpaid,
    /// The order is paid.
    #[error("the order is paid")]
    Paid,
    /// Other coins are being deposited for the order.
    #[error("another payment of the order is under way")]
    PaymentUnderWay,
    /// The contract allows no refunds at this time.
    #[error("the contract does not allow refunds, or no longer does")]
    RefundNotAllowed,
    /// More was to be refunded than was paid.
    #[error("the refund exceeds the payment")]
    RefundInconsistent,
    /// The order has too many refunds.
    #[error("the order has too many refunds")]
    TooManyRefunds,
    /// The order can still be paid.
    #[error("the order can still be paid")]
    AwaitingPayment,
    /// The order is paid, so it stays.
    #[error("the order is paid")]
    PaidStays,
    /// No product has this id.
    #[error("no such product: {0}")]
    ProductUnknown(String),
    /// Another product has this id.
    #[error("the product id is taken")]
    ProductExists,
    /// Carts or orders hold units of the product.
    #[error("the product is locked by carts or unpaid orders")]
    ProductLocked,
    /// There is not enough in stock.
    #[error("insufficient stock of product {product_id}: {available} available, {requested} requested")]
    OutOfStock {
        /// The product.
        product_id: String,
        /// Units that were wanted.
        requested: u64,
        /// Units that there are.
        available: u64,
    },
    /// Overflow of the units that carts and orders hold.
    #[error("quantity overflow")]
    TooMuchStock,
    /// Fewer units would be lost than before.
    #[error("the number of lost units cannot decrease")]
    LostReduced,
    /// Fewer units would have been in stock than before.
    #[error("the total stock cannot decrease")]
    StockReduced,
    /// More units would be lost than there are.
    #[error("more units lost than in stock")]
    LostExceedsStock,
    /// No transfer has this number.
    #[error("no such transfer")]
    TransferUnknown,
    /// The transfer was reported with another amount or account.
    #[error("the transfer was reported with another amount or account")]
    OtherTransfer,
    /// The transfer was verified, so it stays.
    #[error("the transfer was verified")]
    TransferVerified,
    /// No reserve has this key.
    #[error("no such reserve")]
    ReserveUnknown,
    /// The exchange closes the reserve.
    #[error("the reserve has expired")]
    ReserveExpired,
    /// Customers can still pick up tips of the reserve.
    #[error("customers can still pick up tips of the reserve")]
    TipsOpen,
    /// The reserve has not enough left.
    #[error("insufficient balance of the reserve")]
    TipTooLarge,
    /// No tip has this id.
    #[error("no such tip")]
    TipUnknown,
    /// The tip can no longer be picked up.
    #[error("the tip has expired")]
    TipExpired,
    /// The amount exceeds the rest of the tip.
    #[error("the tip's remaining amount is too small")]
    TipExceeded,
    /// Overflow of a sum.
    #[error("amount overflow")]
    TipSum,
    /// Another hook, template or token has this name.
    #[error("the name is taken")]
    NameTaken,
    /// The instance has as many of them as it may have.
    #[error("the instance has too many {0}")]
    TooMany(&'static str),
    /// No hook, template or token has this name.
    #[error("no such name")]
    NameUnknown,
    /// The coins do not suffice.
    #[error(transparent)]
    Insufficient(#[from] Insufficient),
}

impl Refusal {
    /// The error code of the response.
    #[must_use]
    pub(crate) fn code(&self) -> ErrorCode {
        match self {
            Self::OtherCurrency(_) => ErrorCode::GENERIC_CURRENCY_MISMATCH,
            Self::InstanceUnknown => ErrorCode::MERCHANT_GENERIC_INSTANCE_UNKNOWN,
            Self::InstanceExists | Self::OrdersLeft => {
                ErrorCode::MERCHANT_PRIVATE_POST_INSTANCES_ALREADY_EXISTS
            }
            Self::InstanceDeleted => ErrorCode::MERCHANT_PRIVATE_POST_INSTANCES_PURGE_REQUIRED,
            Self::OrderUnknown | Self::Unpaid => ErrorCode::MERCHANT_GENERIC_ORDER_UNKNOWN,
            Self::OrderExists => ErrorCode::MERCHANT_PRIVATE_POST_ORDERS_ALREADY_EXISTS,
            Self::OrderChanged | Self::AlreadyClaimed => {
                ErrorCode::MERCHANT_POST_ORDERS_ID_CLAIM_ALREADY_CLAIMED
            }
            Self::OtherContract => ErrorCode::MERCHANT_GENERIC_CONTRACT_HASH_DOES_NOT_MATCH_ORDER,
            Self::PaymentUnderWay => ErrorCode::MERCHANT_POST_ORDERS_ID_PAY_ALREADY_PAID,
            Self::Paid => ErrorCode::MERCHANT_POST_ORDERS_ID_ABORT_REFUND_REFUSED_PAYMENT_COMPLETE,
            Self::RefundNotAllowed => {
                ErrorCode::MERCHANT_PRIVATE_POST_ORDERS_ID_REFUND_NOT_ALLOWED_BY_CONTRACT
            }
            Self::RefundInconsistent | Self::TooManyRefunds => {
                ErrorCode::MERCHANT_PRIVATE_POST_ORDERS_ID_REFUND_INCONSISTENT_AMOUNT
            }
            Self::AwaitingPayment => ErrorCode::MERCHANT_PRIVATE_DELETE_ORDERS_AWAITING_PAYMENT,
            Self::PaidStays => ErrorCode::MERCHANT_PRIVATE_DELETE_ORDERS_ALREADY_PAID,
            Self::ProductUnknown(_) => ErrorCode::MERCHANT_GENERIC_PRODUCT_UNKNOWN,
            Self::ProductExists => ErrorCode::MERCHANT_PRIVATE_POST_PRODUCTS_CONFLICT_PRODUCT_EXISTS,
            Self::ProductLocked => ErrorCode::MERCHANT_PRIVATE_DELETE_PRODUCTS_CONFLICTING_LOCK,
            Self::OutOfStock { .. } | Self::TooMuchStock => {
                ErrorCode::MERCHANT_PRIVATE_POST_PRODUCTS_LOCK_INSUFFICIENT_STOCKS
            }
            Self::LostReduced => ErrorCode::MERCHANT_PRIVATE_PATCH_PRODUCTS_TOTAL_LOST_REDUCED,
            Self::StockReduced => ErrorCode::MERCHANT_PRIVATE_PATCH_PRODUCTS_TOTAL_STOCKED_REDUCED,
            Self::LostExceedsStock => ErrorCode::MERCHANT_PRIVATE_PATCH_PRODUCTS_TOTAL_LOST_EXCEEDS_STOCKS,
            Self::TransferUnknown => ErrorCode::MERCHANT_GENERIC_TRANSFER_UNKNOWN,
            Self::OtherTransfer => ErrorCode::MERCHANT_PRIVATE_POST_TRANSFERS_CONFLICTING_SUBMISSION,
            Self::TransferVerified => ErrorCode::MERCHANT_PRIVATE_DELETE_TRANSFERS_ALREADY_CONFIRMED,
            Self::ReserveUnknown => ErrorCode::MERCHANT_PRIVATE_GET_RESERVES_ID_RESERVE_UNKNOWN,
            Self::ReserveExpired => ErrorCode::MERCHANT_PRIVATE_POST_TIP_AUTHORIZE_RESERVE_EXPIRED,
            Self::TipsOpen | Self::NameTaken | Self::NameUnknown | Self::TooMany(_) => {
                ErrorCode::GENERIC_PARAMETER_MALFORMED
            }
            Self::TipTooLarge => ErrorCode::MERCHANT_PRIVATE_POST_TIP_AUTHORIZE_INSUFFICIENT_FUNDS,
            Self::TipUnknown => ErrorCode::MERCHANT_GENERIC_TIP_ID_UNKNOWN,
            Self::TipExpired => ErrorCode::MERCHANT_TIP_PICKUP_HAS_EXPIRED,
            Self::TipExceeded => ErrorCode::MERCHANT_TIP_PICKUP_AMOUNT_EXCEEDS_TIP_REMAINING,
            Self::TipSum => ErrorCode::MERCHANT_TIP_PICKUP_SUMMATION_FAILED,
            Self::Insufficient(insufficient) => insufficient.code(),
        }
    }
}

/// The rules.
#[derive(Clone, Debug, Default)]
pub struct MerchantRules {
    instance_changes: Arc<AtomicU64>,
}

impl MerchantRules {
    /// Number of batches that have changed instances. It rises after the commit and before the answers.
    #[must_use]
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

    fn execute(
        &self,
        _: &MerchantRules,
        rows: &mut WorkingSet,
        _: Timestamp,
    ) -> Result<MerchantStateRow, Refusal> {
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
