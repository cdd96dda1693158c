//! Commands and their outcomes. Those about stock, transfers, tips and the rest are in the modules of their rules.

use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode, WireSalt};
use batzen_protocol::{Currency, Money, Timestamp};
use batzen_tables::merchant::{
    InstanceRow, MerchantStateRow, OrderDepositRow, OrderRef, OrderRefundKey, OrderRow, ProductLockKey,
    TransferRow,
};

use super::extras::{EditTemplate, EditToken, EditWebhook, FinishWebhook, Hook, PurgeRest, TakeWebhook};
use super::stock::{ChangeProduct, CreateProduct, DeleteProduct, LockProduct, ReleaseStock};
use super::tips::{
    AuthorizeTip, CreateTipReserve, DeleteTipReserve, FundTipReserve, PickUpTip, RecordTipPickup,
};
use super::transfers::{CheckTransfer, DeleteTransfer, NoteTransfer, RecordKyc, RecordWires};

/// Opens the store for a backend of this currency. Idempotent.
#[derive(Clone, Debug)]
pub struct Open {
    /// The currency.
    pub currency: Currency,
    /// Used if the store is new.
    pub token_salt: [u8; 16],
}

/// A bank account that an instance shall have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAccount {
    /// The account.
    pub payto_uri: String,
    /// The salt, if the account is new.
    pub salt: WireSalt,
    /// The account's hash with this salt.
    pub h_wire: HashCode,
}

/// Creates an instance. Idempotent.
#[derive(Clone, Debug)]
pub struct CreateInstance {
    /// Its id.
    pub id: String,
    /// Its row, if it is new.
    pub row: InstanceRow,
    /// Its accounts.
    pub accounts: Vec<NewAccount>,
}

/// Changes an instance; its keys and its access token stay.
#[derive(Clone, Debug)]
pub struct ChangeInstance {
    /// Its id.
    pub id: String,
    /// Its new row, of which keys and token are ignored.
    pub row: InstanceRow,
    /// Its active accounts.
    pub accounts: Vec<NewAccount>,
}

/// Changes who may use an instance.
#[derive(Clone, Debug)]
pub struct SetAuth {
    /// Its id.
    pub id: String,
    /// Salted hash of the new token; none if a proxy decides.
    pub token_hash: Option<HashCode>,
}

/// Destroys an instance's private key, and with `purge` forgets the instance, which must have no orders left.
#[derive(Clone, Debug)]
pub struct DeleteInstance {
    /// Its id.
    pub id: String,
    /// Whether to forget it.
    pub purge: bool,
}

/// Forgets orders of an instance that is being purged.
#[derive(Clone, Debug)]
pub struct PurgeOrders {
    /// The instance.
    pub id: String,
    /// The orders.
    pub orders: Vec<OrderRef>,
}

/// Creates an order. Idempotent.
#[derive(Clone, Debug)]
pub struct CreateOrder {
    /// The order.
    pub order: OrderRef,
    /// Its row, if it is new.
    pub row: OrderRow,
    /// Locks that the order replaces.
    pub locks: Vec<ProductLockKey>,
}

/// Replaces members of a contract by their hashes. The contract's hash stays. Idempotent.
#[derive(Clone, Debug)]
pub struct Forget {
    /// The order.
    pub order: OrderRef,
    /// The terms that the caller has read. Refused if they have changed.
    pub known: String,
    /// The terms without the forgotten members.
    pub terms: String,
}

/// Removes an order that nobody can pay any more.
#[derive(Clone, Debug)]
pub struct DeleteOrder {
    /// The order.
    pub order: OrderRef,
    /// The instance and its products in the order, as read before: they never change.
    pub instance: String,
    /// See `instance`.
    pub products: Vec<String>,
    /// Whether an offer that no wallet has claimed ends now.
    pub force: bool,
}

/// Gives an order to a wallet. Idempotent.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The order.
    pub order: OrderRef,
    /// The terms that the caller has read, without nonce. The claim is refused if they have changed.
    pub offered: String,
    /// The wallet's key.
    pub nonce: String,
    /// The terms with the nonce.
    pub terms: String,
    /// Their hash.
    pub h_contract: HashCode,
}

/// Books coins that an exchange has accepted. Idempotent.
#[derive(Clone, Debug)]
pub struct RecordDeposits {
    /// The order.
    pub order: OrderRef,
    /// The contract that the coins signed.
    pub h_contract: HashCode,
    /// The coins.
    pub deposits: Vec<(EddsaPublicKey, OrderDepositRow)>,
}

/// A session in which an order is paid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The session, as its browser names it.
    pub id: String,
}

/// Declares an order paid if its coins suffice. Idempotent.
#[derive(Clone, Debug)]
pub struct Settle {
    /// The order.
    pub order: OrderRef,
    /// The instance and what the customer gets, as read before: they never change.
    pub instance: String,
    /// See `instance`.
    pub fulfillment_url: Option<String>,
    /// The session that pays.
    pub session: Option<Session>,
    /// Products from the inventory. See `instance`.
    pub products: Vec<String>,
    /// What is sent when the order becomes paid.
    pub hooks: Vec<Hook>,
}

/// Binds a paid order to another session. Idempotent.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The order.
    pub order: OrderRef,
    /// See [`Settle::instance`].
    pub instance: String,
    /// See [`Settle::instance`].
    pub fulfillment_url: Option<String>,
    /// The session.
    pub session: Session,
}

/// Approves refunds of a paid order up to a total. Idempotent.
#[derive(Clone, Debug)]
pub struct ApproveRefund {
    /// The order.
    pub order: OrderRef,
    /// What is refunded in total afterwards.
    pub total: Money,
    /// Why.
    pub reason: String,
    /// The time of the contract.
    pub since: Timestamp,
    /// The refund deadline of the contract. Not after `since`: it allows no refunds.
    pub until: Timestamp,
    /// What is sent when more is approved than before.
    pub hooks: Vec<Hook>,
}

/// Gives back coins of an order that is not paid. Idempotent.
#[derive(Clone, Debug)]
pub struct Abort {
    /// The order.
    pub order: OrderRef,
    /// The coins, and the contributions that the wallet says. Of a known deposit, its own amount counts.
    pub coins: Vec<(EddsaPublicKey, Money)>,
}

/// Books that an exchange has refunded a coin. Idempotent.
#[derive(Clone, Debug)]
pub struct RecordRefund {
    /// The refund.
    pub key: OrderRefundKey,
    /// The key of the exchange's confirmation.
    pub exchange_pub: EddsaPublicKey,
    /// The confirmation.
    pub exchange_sig: EddsaSignature,
}

/// The answer to a command that took effect, now or before.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The store is open.
    Opened(Box<MerchantStateRow>),
    /// The command took effect.
    Done,
    /// The order exists.
    Ordered(Box<OrderRow>),
    /// The order belongs to this wallet.
    Claimed(Box<OrderRow>),
    /// The transfer is known.
    Transfer(Box<TransferRow>),
    /// The tip can be picked up before this time.
    Tip(Timestamp),
    /// The part of the tip belongs to the customer: the exchange's signatures, if they are known.
    PickedUp(Option<String>),
}

/// A command together with the type of its outcome.
pub trait TypedCommand: Into<Command> {
    /// The result for the caller.
    type Outcome;

    /// Extracts the outcome from the rules' answer.
    ///
    /// # Panics
    /// If it is the answer to another command, which is a bug in the rules.
    fn outcome(answer: Outcome) -> Self::Outcome;
}

macro_rules! commands {
    ($($command:ident, $typed:pat => $outcome:expr, $type:ty;)*) => {
        /// A change of the backend's rows.
        #[derive(Clone, Debug)]
        pub enum Command {
            $(#[doc = concat!("See [`", stringify!($command), "`].")] $command($command),)*
        }

        $(
            impl From<$command> for Command {
                fn from(command: $command) -> Self {
                    Self::$command(command)
                }
            }

            impl TypedCommand for $command {
                type Outcome = $type;

                fn outcome(answer: Outcome) -> $type {
                    match answer {
                        $typed => $outcome,
                        other => panic!("the rules answered {} with {other:?}", stringify!($command)),
                    }
                }
            }
        )*
    };
}

commands! {
    Open, Outcome::Opened(state) => *state, MerchantStateRow;
    CreateInstance, Outcome::Done => (), ();
    ChangeInstance, Outcome::Done => (), ();
    SetAuth, Outcome::Done => (), ();
    DeleteInstance, Outcome::Done => (), ();
    PurgeOrders, Outcome::Done => (), ();
    CreateOrder, Outcome::Ordered(order) => *order, OrderRow;
    Claim, Outcome::Claimed(order) => *order, OrderRow;
    RecordDeposits, Outcome::Done => (), ();
    Settle, Outcome::Done => (), ();
    Replay, Outcome::Done => (), ();
    ApproveRefund, Outcome::Done => (), ();
    Abort, Outcome::Done => (), ();
    RecordRefund, Outcome::Done => (), ();
    Forget, Outcome::Done => (), ();
    DeleteOrder, Outcome::Done => (), ();
    CreateProduct, Outcome::Done => (), ();
    ChangeProduct, Outcome::Done => (), ();
    DeleteProduct, Outcome::Done => (), ();
    LockProduct, Outcome::Done => (), ();
    ReleaseStock, Outcome::Done => (), ();
    NoteTransfer, Outcome::Transfer(row) => *row, TransferRow;
    CheckTransfer, Outcome::Done => (), ();
    RecordWires, Outcome::Done => (), ();
    DeleteTransfer, Outcome::Done => (), ();
    RecordKyc, Outcome::Done => (), ();
    CreateTipReserve, Outcome::Done => (), ();
    FundTipReserve, Outcome::Done => (), ();
    DeleteTipReserve, Outcome::Done => (), ();
    AuthorizeTip, Outcome::Tip(expires) => expires, Timestamp;
    PickUpTip, Outcome::PickedUp(signatures) => signatures, Option<String>;
    RecordTipPickup, Outcome::Done => (), ();
    EditWebhook, Outcome::Done => (), ();
    EditTemplate, Outcome::Done => (), ();
    EditToken, Outcome::Done => (), ();
    TakeWebhook, Outcome::Done => (), ();
    FinishWebhook, Outcome::Done => (), ();
    PurgeRest, Outcome::Done => (), ();
}
