//! The backend's rules: the effect of a command on instances and orders. Pure: no I/O, no clock, no randomness, no
//! cryptography.
//!
//! | module | content |
//! |---|---|
//! | `command` | commands and their outcomes |
//! | `instances` | creating, changing and deleting shops |
//! | `orders` | the life of an order |
//! | `refunds` | refunds of paid orders, and of payments that were given up |
//! | `sufficiency` | whether coins pay an order (merchant chapter 2.3.3) |

mod command;
mod instances;
mod orders;
mod refunds;
mod sufficiency;

use batzen_engine::{Plan, Rules, WorkingSet};
use batzen_protocol::{ErrorCode, Timestamp};
use batzen_tables::merchant::{MerchantStateKey, MerchantStateRow, MerchantStates, OrderRefunds};

pub use command::{
    Abort, ApproveRefund, ChangeInstance, Claim, Command, CreateInstance, CreateOrder, DeleteInstance,
    NewAccount, Open, Outcome, PurgeOrders, RecordDeposits, RecordRefund, Replay, Session, SetAuth, Settle,
    TypedCommand,
};
pub use instances::order_range;
pub use refunds::{ABORTED, Coins};
pub use sufficiency::{Due, Insufficient, Payment, check as check_payment};

/// Why a command was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The store holds a backend of another currency.
    #[error("the store holds a merchant backend of currency {0}")]
    OtherCurrency(String),
    /// No instance has this id.
    #[error("there is no such instance")]
    InstanceUnknown,
    /// Another instance has this id.
    #[error("there is another instance with this id")]
    InstanceExists,
    /// A deleted instance has this id.
    #[error("the instance was deleted, but not purged")]
    InstanceDeleted,
    /// The instance has orders.
    #[error("the instance has orders")]
    OrdersLeft,
    /// No order has this id.
    #[error("there is no such order")]
    OrderUnknown,
    /// Another order has this id.
    #[error("there is another order with this id")]
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
    /// The contract allows no refunds at this time.
    #[error("the contract does not allow refunds, or no longer")]
    RefundNotAllowed,
    /// More was to be refunded than was paid.
    #[error("the refund is more than was paid")]
    RefundInconsistent,
    /// The order has too many refunds.
    #[error("the order has too many refunds")]
    TooManyRefunds,
    /// The coins do not suffice.
    #[error(transparent)]
    Insufficient(#[from] Insufficient),
}

impl Refusal {
    /// The error code of the response.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
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
            Self::Paid => ErrorCode::MERCHANT_POST_ORDERS_ID_ABORT_REFUND_REFUSED_PAYMENT_COMPLETE,
            Self::RefundNotAllowed => {
                ErrorCode::MERCHANT_PRIVATE_POST_ORDERS_ID_REFUND_NOT_ALLOWED_BY_CONTRACT
            }
            Self::RefundInconsistent | Self::TooManyRefunds => {
                ErrorCode::MERCHANT_PRIVATE_POST_ORDERS_ID_REFUND_INCONSISTENT_AMOUNT
            }
            Self::Insufficient(insufficient) => insufficient.code(),
        }
    }
}

/// The rules.
#[derive(Clone, Debug, Default)]
pub struct MerchantRules;

impl Rules for MerchantRules {
    type Command = Command;
    type Outcome = Outcome;
    type Refusal = Refusal;

    fn plan(&self, command: &Command, plan: &mut Plan) {
        match command {
            Command::Open(_) => plan.row::<MerchantStates>(MerchantStateKey::ONLY),
            Command::CreateInstance(command) => {
                instances::plan_accounts(&command.id, &command.accounts, plan);
            }
            Command::ChangeInstance(command) => {
                instances::plan_accounts(&command.id, &command.accounts, plan);
            }
            Command::SetAuth(command) => instances::plan(&command.id, plan),
            Command::DeleteInstance(command) => instances::plan_deletion(&command.id, plan),
            Command::PurgeOrders(command) => orders::plan_purge(command, plan),
            Command::CreateOrder(command) => orders::plan_creation(command, plan),
            Command::Claim(command) => orders::plan(command.order, plan),
            Command::RecordDeposits(command) => orders::plan_deposits(command, plan),
            Command::Settle(command) => {
                orders::plan_payment(command.order, plan);
                if let Some(session) = &command.session {
                    orders::plan_session(
                        command.order,
                        &command.instance,
                        session,
                        command.fulfillment_url.as_deref(),
                        plan,
                    );
                }
            }
            Command::ApproveRefund(command) => orders::plan_payment(command.order, plan),
            Command::Abort(command) => orders::plan_payment(command.order, plan),
            Command::RecordRefund(command) => plan.row::<OrderRefunds>(command.key.clone()),
            Command::Replay(command) => {
                orders::plan(command.order, plan);
                let url = command.fulfillment_url.as_deref();
                orders::plan_session(command.order, &command.instance, &command.session, url, plan);
            }
        }
    }

    fn execute(&self, rows: &mut WorkingSet, command: &Command, now: Timestamp) -> Result<Outcome, Refusal> {
        match command {
            Command::Open(command) => open(rows, command),
            Command::CreateInstance(command) => instances::create(rows, command, now),
            Command::ChangeInstance(command) => instances::change(rows, command, now),
            Command::SetAuth(command) => instances::set_auth(rows, command),
            Command::DeleteInstance(command) => instances::delete(rows, command),
            Command::PurgeOrders(command) => orders::purge(rows, command),
            Command::CreateOrder(command) => orders::create(rows, command),
            Command::Claim(command) => orders::claim(rows, command),
            Command::RecordDeposits(command) => orders::record(rows, command),
            Command::Settle(command) => orders::settle(rows, command, now),
            Command::Replay(command) => orders::replay(rows, command, now),
            Command::ApproveRefund(command) => refunds::approve(rows, command, now),
            Command::Abort(command) => refunds::abort(rows, command, now),
            Command::RecordRefund(command) => refunds::record(rows, command),
        }
    }
}

fn open(rows: &mut WorkingSet, command: &Open) -> Result<Outcome, Refusal> {
    let currency = command.currency.to_string();
    if let Some(state) = rows.get::<MerchantStates>(&MerchantStateKey::ONLY) {
        if state.currency != currency {
            return Err(Refusal::OtherCurrency(state.currency.clone()));
        }
        return Ok(Outcome::Opened(Box::new(state.clone())));
    }
    let state = MerchantStateRow { currency, token_salt: command.token_salt };
    rows.insert::<MerchantStates>(&MerchantStateKey::ONLY, state.clone());
    Ok(Outcome::Opened(Box::new(state)))
}
