//! The commands of the bank and their outcomes.

use std::sync::Arc;

use batzen_crypto::{EddsaPublicKey, HashCode, ShortHash, Wtid};
use batzen_protocol::{Currency, Money, Timestamp};
use batzen_tables::bank::BankStateRow;

use super::{Finished, Intent, Selection};
use crate::chart::Verdict;

/// A command to the bank. Account names have been checked before, and amounts are in its currency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Creates the bank in an empty store, or checks that the store holds this bank. Always the first
    /// command.
    Open(Open),
    /// Registers a customer, who receives the sign-up bonus. Idempotent.
    Register(Register),
    /// Replaces the password of an account. Idempotent.
    SetPassword(SetPassword),
    /// Moves money with a reserve key as subject. Not idempotent.
    AddIncoming(AddIncoming),
    /// Moves money from an exchange to any account. Idempotent by `request_uid`, without time limit.
    Transfer(Transfer),
    /// A customer pays another account. Idempotent by `id`, without time limit.
    Pay(Pay),
    /// Creates a withdrawal operation.
    CreateWithdrawal(CreateWithdrawal),
    /// A wallet names the reserve and the exchange of a withdrawal operation. Idempotent.
    SelectWithdrawal(SelectWithdrawal),
    /// The customer confirms: the money moves. Idempotent.
    ConfirmWithdrawal(ConfirmWithdrawal),
    /// The customer gives up. Idempotent.
    AbortWithdrawal(AbortWithdrawal),
    /// Books the ledger's answers to open intents. Each is booked by itself.
    Finish(Finish),
}

/// Creates the bank in an empty store, or checks that the store holds this bank. Always the first command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// The currency of all accounts.
    pub currency: Currency,
    /// Random; used only for a new bank.
    pub password_salt: [u8; 16],
    /// Random; used only for a new bank.
    pub identity: [u8; 16],
}

/// Registers a customer, who receives the sign-up bonus. Idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    /// The account.
    pub name: String,
    /// The hash of the password.
    pub password_hash: ShortHash,
}

/// Replaces the password of an account. Idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetPassword {
    /// The account.
    pub name: String,
    /// The hash to replace: if the account has a different one by now, that one stays. `None`: replace any.
    pub replaces: Option<ShortHash>,
    /// The hash of the password.
    pub password_hash: ShortHash,
}

/// Moves money with a reserve key as subject. Not idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddIncoming {
    /// Random; identifies the transaction.
    pub id: [u8; 32],
    /// The payer.
    pub debit_account: String,
    /// The payee, which is the exchange.
    pub credit_account: String,
    /// The amount.
    pub amount: Money,
    /// The subject.
    pub reserve_pub: EddsaPublicKey,
}

/// Moves money from an exchange to any account. Idempotent by `request_uid`, without time limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Chosen by the client when it prepared the transfer.
    pub request_uid: HashCode,
    /// The payer, which is the exchange.
    pub debit_account: String,
    /// The payee.
    pub credit_account: String,
    /// The amount.
    pub amount: Money,
    /// The subject.
    pub wtid: Wtid,
    /// The exchange, for the history only.
    pub exchange_base_url: String,
}

/// A customer pays another account. Idempotent by `id`, without time limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pay {
    /// Chosen by the customer's page; the ledger shows all of it.
    pub id: [u8; 16],
    /// The payer.
    pub debit_account: String,
    /// The payee, which must exist.
    pub credit_account: String,
    /// The amount.
    pub amount: Money,
    /// The customer's text.
    pub text: String,
    /// The reserve key in the text, if there is one.
    pub reserve_pub: Option<EddsaPublicKey>,
}

/// Creates a withdrawal operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateWithdrawal {
    /// Random; identifies the operation.
    pub wopid: [u8; 32],
    /// The account that will pay.
    pub account: String,
    /// The amount.
    pub amount: Money,
}

/// A wallet names the reserve and the exchange of a withdrawal operation. Idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectWithdrawal {
    /// The operation.
    pub wopid: [u8; 32],
    /// The reserve.
    pub reserve_pub: EddsaPublicKey,
    /// The exchange's account.
    pub exchange_account: String,
}

/// The customer confirms: the money moves. Idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfirmWithdrawal {
    /// The operation.
    pub wopid: [u8; 32],
    /// The customer.
    pub account: String,
    /// The selection as read before the batch; it never changes once made.
    pub selection: Option<Selection>,
}

/// The customer gives up. Idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbortWithdrawal {
    /// The operation.
    pub wopid: [u8; 32],
    /// The customer.
    pub account: String,
}

/// Books the ledger's answers to open intents. Each is booked by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finish(pub Arc<[(Intent, Verdict)]>);

/// The answer to a command that took effect, now or before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The bank is open.
    Opened(Box<BankStateRow>),
    /// The intent is written: once this is durable, ask the ledger.
    Intended(Box<Intent>),
    /// The intents are booked, in their order.
    Finished(Vec<Finished>),
    /// The account is registered.
    Registered,
    /// The account has a password: this one, or one set earlier.
    PasswordSet,
    /// The money has moved.
    Booked {
        /// The transaction's row id.
        row_id: u64,
        /// The time, in whole seconds.
        time: Timestamp,
    },
    /// The operation exists.
    WithdrawalCreated,
    /// The selection is recorded.
    WithdrawalSelected {
        /// Whether the customer has confirmed.
        transfer_done: bool,
    },
    /// The operation is confirmed.
    WithdrawalConfirmed {
        /// The account credited.
        exchange_account: String,
    },
    /// The operation is aborted.
    WithdrawalAborted,
}

/// A command together with the type of its outcome, so that a caller gets exactly that outcome.
pub trait TypedCommand: Into<Command> {
    /// The result for the client.
    type Outcome;

    /// Extracts the outcome from the rules' answer.
    ///
    /// # Panics
    /// If it is the answer to another command, which is a bug in the rules.
    fn outcome(answer: Outcome) -> Self::Outcome;
}

/// A movement of money that has been booked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Booking {
    /// The transaction's row id.
    pub row_id: u64,
    /// The time, in whole seconds.
    pub time: Timestamp,
}

/// The selection of a withdrawal operation is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelectionStands {
    /// Whether the customer has confirmed.
    pub transfer_done: bool,
}

macro_rules! typed_commands {
    ($($command:ident, $typed:pat => $outcome:expr, $type:ty;)*) => {$(
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
    )*};
}

typed_commands! {
    Open, Outcome::Opened(state) => *state, BankStateRow;
    Register, Outcome::Registered => (), ();
    SetPassword, Outcome::PasswordSet => (), ();
    AddIncoming, Outcome::Booked { row_id, time } => Booking { row_id, time }, Booking;
    Transfer, Outcome::Booked { row_id, time } => Booking { row_id, time }, Booking;
    Pay, Outcome::Booked { row_id, time } => Booking { row_id, time }, Booking;
    CreateWithdrawal, Outcome::WithdrawalCreated => (), ();
    SelectWithdrawal, Outcome::WithdrawalSelected { transfer_done } => SelectionStands { transfer_done }, SelectionStands;
    ConfirmWithdrawal, Outcome::WithdrawalConfirmed { .. } => (), ();
    AbortWithdrawal, Outcome::WithdrawalAborted => (), ();
    Finish, Outcome::Finished(finished) => finished, Vec<Finished>;
}
