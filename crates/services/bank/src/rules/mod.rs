//! The bank's rules: the effect of a command on names, transactions and withdrawal operations, and the
//! movements of money that it requires of the ledger. Pure: no I/O, no clock, no randomness.
//!
//! A movement of money takes two commands. The first checks everything that the bank knows and writes an
//! *intent*; its answer is [`Answer::Intended`]. Once that is durable the ledger is asked, under ids that
//! follow from the intent ([`crate::chart`]). The second, [`Command::Finish`], books the ledger's answer: the
//! intent becomes a transaction with the next row id, or is refused. A crash in between leaves the intent
//! open. Asking again is harmless, since the ids are the same.
//!
//! Commands that depend on an open intent are answered with [`Refusal::InFlight`]: wait, then ask again.
//!
//! | module | content |
//! |---|---|
//! | `accounts` | opening the bank, customers and their passwords, exchanges |
//! | `movements` | payments, and transfers from and to an exchange |
//! | `intents` | writing intents, booking the ledger's answers |
//! | `withdrawals` | the life of a withdrawal operation |

mod accounts;
mod intents;
mod movements;
mod withdrawals;

use std::collections::BTreeSet;

use batzen_crypto::EddsaPublicKey;
use batzen_engine::{Command as _, Plan, Rules, WorkingSet};
use batzen_protocol::{Money, Timestamp};
use batzen_tables::bank::{
    AccountKey, BankAccounts, BankExchanges, BankIntents, BankStateRow, BankTransactions, IntentRow,
    TransactionKey, TransactionRow, WithdrawalRow,
};

pub(crate) use accounts::SetPassword;
pub use accounts::{MarkExchange, Open, Register};
pub use intents::Finish;
pub use movements::{AddIncoming, Pay, Transfer};
pub use withdrawals::{AbortWithdrawal, ConfirmWithdrawal, CreateWithdrawal, SelectWithdrawal};

batzen_engine::commands! {
    /// A command to the bank. Account names have been checked before, and amounts are in its currency.
    #[derive(Clone, Debug, PartialEq, Eq)]
    BankRules:
    Open: BankStateRow = Answer::Opened(state) => *state,
    Register: () = Answer::Registered => (),
    SetPassword: () = Answer::PasswordSet => (),
    MarkExchange: () = Answer::ExchangeMarked => (),
    AddIncoming: Booking = Answer::Booked(booking) => booking,
    Transfer: Booking = Answer::Booked(booking) => booking,
    Pay: Booking = Answer::Booked(booking) => booking,
    CreateWithdrawal: () = Answer::WithdrawalCreated => (),
    SelectWithdrawal: SelectionStands = Answer::WithdrawalSelected(selection) => selection,
    ConfirmWithdrawal: () = Answer::WithdrawalConfirmed { .. } => (),
    AbortWithdrawal: () = Answer::WithdrawalAborted => (),
    Finish: Vec<Finished> = Answer::Finished(finished) => finished,
}

/// The answer to a command that took effect, now or before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
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
    /// The account is known to be an exchange's.
    ExchangeMarked,
    /// The money has moved.
    Booked(Booking),
    /// The operation exists.
    WithdrawalCreated,
    /// The selection is recorded.
    WithdrawalSelected(SelectionStands),
    /// The operation is confirmed.
    WithdrawalConfirmed {
        /// The account credited.
        exchange_account: String,
    },
    /// The operation is aborted.
    WithdrawalAborted,
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

/// The overdraft of accounts at a bank without debt limit: the range of amounts.
pub(crate) const HEADROOM_MAX: Money = Money::MAX;

/// The bank's policy. [`Policy::default`] is a test bank's: everything is permitted, except to use a reserve
/// key twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Initial balance of a newly registered account.
    pub signup_bonus: Money,
    /// Overdraft limit of an account. `None`: unlimited.
    pub debt_limit: Option<Money>,
    /// Whether a transfer creates missing accounts.
    pub create_accounts: bool,
    /// Whether a transfer may have the same account on both sides.
    pub allow_same_account: bool,
    /// Whether several transfers may carry the same reserve key.
    pub allow_repeated_reserve_pub: bool,
    /// The accounts of exchanges, if they are configured. `None`: those that [`MarkExchange`] names.
    pub exchange_accounts: Option<BTreeSet<String>>,
    /// Whether an existing account can be registered. If so, an account that a transfer created belongs to
    /// the first who registers it, and registering again with the same password changes nothing. Only for
    /// banks that check no passwords.
    pub allow_known_account: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            signup_bonus: Money::ZERO,
            debt_limit: None,
            create_accounts: true,
            allow_same_account: true,
            allow_repeated_reserve_pub: false,
            exchange_accounts: None,
            allow_known_account: true,
        }
    }
}

impl Policy {
    /// The headroom of every account, in 10⁻⁸.
    pub(crate) fn headroom(&self) -> u128 {
        self.debt_limit.unwrap_or(HEADROOM_MAX).units()
    }
}

/// A recorded movement of money, for the ledger to execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// Its key.
    pub key: TransactionKey,
    /// Its row.
    pub row: IntentRow,
    /// Whether the payer's account may be missing in the ledger.
    pub opens_debit: bool,
    /// Whether the receiver's account may be missing in the ledger.
    pub opens_credit: bool,
}

/// The end of an intent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The intent.
    pub key: TransactionKey,
    /// The answer to the command that wrote it.
    pub result: Result<Answer, Refusal>,
}

/// A wallet's selection for a withdrawal operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    pub(crate) reserve_pub: EddsaPublicKey,
    pub(crate) exchange_account: String,
}

impl Selection {
    /// The selection of an operation, if there is one.
    pub fn of(row: &WithdrawalRow) -> Option<Self> {
        let reserve_pub = row.reserve_pub?;
        let exchange_account =
            row.exchange_account.clone().expect("reserve and exchange are selected together");
        Some(Self { reserve_pub, exchange_account })
    }
}

batzen_protocol::refusals! {
    /// Why a command was refused.
    pub enum Refusal {
        /// The store holds a bank of another currency.
        OtherCurrency(String) = "the store holds a bank of currency {0}", GENERIC_CURRENCY_MISMATCH;
        /// The account does not exist.
        UnknownAccount(String) = "no account {0}", BANK_UNKNOWN_ACCOUNT;
        /// The withdrawal operation does not exist, or belongs to another customer.
        UnknownWithdrawal = "no such withdrawal operation", BANK_TRANSACTION_NOT_FOUND;
        /// The account has another password, or must not be registered again.
        RegisterConflict = "the account is registered already", BANK_REGISTER_CONFLICT;
        /// The account is an exchange's, and the subject has no reserve key.
        ExchangeAccount = "the account of an exchange takes only transfers with a reserve key",
            BANK_ACCOUNT_IS_EXCHANGE;
        /// Both sides are the same account.
        SameAccount = "both sides are the same account", BANK_SAME_ACCOUNT;
        /// The account would be overdrawn beyond its limit.
        UnallowedDebit = "the account would be overdrawn beyond its limit", BANK_UNALLOWED_DEBIT;
        /// A balance would exceed the range of amounts.
        TooBig = "balance overflow", BANK_NUMBER_TOO_BIG;
        /// The request uid names another transfer.
        RequestUidReused = "the request uid was used for another transfer", BANK_TRANSFER_REQUEST_UID_REUSED;
        /// The operation has another selection.
        SelectionConflict = "another reserve or exchange is selected already",
            BANK_WITHDRAWAL_OPERATION_RESERVE_SELECTION_CONFLICT;
        /// A transfer with this reserve key exists.
        DuplicateReservePub = "the reserve key was the subject of a transfer before",
            BANK_DUPLICATE_RESERVE_PUB_SUBJECT;
        /// The wallet has not selected a reserve yet.
        SelectionRequired = "no reserve is selected yet", BANK_POST_WITHDRAWAL_OPERATION_REQUIRED;
        /// The operation is confirmed and cannot be aborted.
        AbortAfterConfirm = "the operation is confirmed already", BANK_ABORT_CONFIRM_CONFLICT;
        /// The operation is aborted and cannot be confirmed.
        ConfirmAfterAbort = "the operation is aborted", BANK_CONFIRM_ABORT_CONFLICT;
        /// The wallet selected between the read and the batch: read it again.
        Unresolved = "the selection changed since it was looked up", BANK_SOFT_EXCEPTION;
        /// It depends on an intent that the ledger has not answered yet: wait for that, then ask again.
        InFlight {
            /// The intent.
            key: TransactionKey,
            /// The command.
            command: Box<Command>,
        } = "it depends on a transfer that is still pending", BANK_SOFT_EXCEPTION;
        /// The reservation has expired. Ask again to reserve the money again.
        ReservationExpired = "the reservation has expired", BANK_SOFT_EXCEPTION;
    }
}

/// The rules under a policy.
#[derive(Clone, Debug, Default)]
pub struct BankRules {
    /// The bank's policy.
    pub policy: Policy,
}

impl Rules for BankRules {
    type Command = Command;
    type Answer = Answer;
    type Refusal = Refusal;

    fn plan(&self, command: &Command, plan: &mut Plan) {
        command.plan(self, plan);
    }

    fn execute(&self, rows: &mut WorkingSet, command: &Command, now: Timestamp) -> Result<Answer, Refusal> {
        command.execute(self, rows, now).map_err(|refusal| match refusal {
            // The rules of single commands do not know the enumeration.
            Refusal::InFlight { key, .. } => Refusal::InFlight { key, command: Box::new(command.clone()) },
            refusal => refusal,
        })
    }
}

fn plan_account(name: &str, plan: &mut Plan) {
    plan.row::<BankAccounts>(AccountKey::new(name));
}

impl BankRules {
    fn plan_reserve(&self, reserve_pub: &EddsaPublicKey, plan: &mut Plan) {
        // If repetitions are allowed, a key may have any number of transactions, and none of them matters.
        if !self.policy.allow_repeated_reserve_pub {
            plan.group::<BankTransactions>(BankTransactions::BY_RESERVE_PUB, reserve_pub);
            plan.group::<BankIntents>(BankIntents::BY_RESERVE_PUB, reserve_pub);
        }
    }

    /// Refuses money without a reserve key for an exchange, whose gateway would never show it.
    fn require_no_exchange(&self, rows: &WorkingSet, name: &str) -> Result<(), Refusal> {
        let is_exchange = match &self.policy.exchange_accounts {
            Some(names) => names.contains(name),
            None => rows.get::<BankExchanges>(&AccountKey::new(name)).is_some(),
        };
        if is_exchange { Err(Refusal::ExchangeAccount) } else { Ok(()) }
    }

    /// Refuses a reserve key that was the subject of an earlier transfer.
    fn require_fresh(&self, rows: &WorkingSet, reserve_pub: &EddsaPublicKey) -> Result<(), Refusal> {
        if self.policy.allow_repeated_reserve_pub {
            return Ok(());
        }
        if !rows.group::<BankTransactions>(BankTransactions::BY_RESERVE_PUB, reserve_pub).is_empty() {
            return Err(Refusal::DuplicateReservePub);
        }
        let intents = rows.group::<BankIntents>(BankIntents::BY_RESERVE_PUB, reserve_pub);
        match intents.into_iter().find(|(_, row)| row.is_open) {
            Some((key, _)) => Err(intents::in_flight(key)),
            None => Ok(()),
        }
    }
}

fn require_account(rows: &WorkingSet, name: &str) -> Result<(), Refusal> {
    match rows.get::<BankAccounts>(&AccountKey::new(name)) {
        Some(_) => Ok(()),
        None => Err(Refusal::UnknownAccount(name.to_owned())),
    }
}

fn plan_exchange(name: &str, plan: &mut Plan) {
    plan.row::<BankExchanges>(AccountKey::new(name));
}

fn booked(row: &TransactionRow) -> Answer {
    Answer::Booked(Booking { row_id: row.row_id, time: row.time })
}
