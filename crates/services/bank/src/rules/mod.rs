//! The bank's rules: the effect of a command on names, transactions and withdrawal operations, and the
//! movements of money that it requires of the ledger. Pure: no I/O, no clock, no randomness.
//!
//! A movement of money takes two commands. The first checks everything that the bank knows and writes an
//! *intent*; its outcome is [`Outcome::Intended`]. Once that is durable the ledger is asked, under ids that
//! follow from the intent ([`crate::chart`]). The second, [`Command::Finish`], books the ledger's answer: the
//! intent becomes a transaction with the next row id, or is refused. A crash in between leaves the intent
//! open. Asking again is harmless, since the ids are the same.
//!
//! Commands that depend on an open intent are answered with [`Refusal::InFlight`]: wait, then ask again.
//!
//! | module | content |
//! |---|---|
//! | `command` | commands and their outcomes |
//! | `intents` | writing intents, booking answers |
//! | `withdrawals` | the life of a withdrawal operation |

mod command;
mod intents;
mod withdrawals;

use batzen_crypto::{EddsaPublicKey, ShortHash};
use batzen_engine::{Plan, Rules, WorkingSet};
use batzen_protocol::{Currency, ErrorCode, Money, Timestamp};
use batzen_tables::bank::{
    AccountKey, AccountRow, BankAccounts, BankIntents, BankStateKey, BankStateRow, BankStates,
    BankTransactions, BankWithdrawals, EQUITY_ACCOUNT, IntentRow, Origin, TransactionKey, TransactionRow,
    WithdrawalKey, WithdrawalRow,
};

pub use command::{
    AbortWithdrawal, AddIncoming, Booking, Command, ConfirmWithdrawal, CreateWithdrawal, Finish, Open,
    Outcome, Pay, Register, SelectWithdrawal, SelectionStands, SetPassword, Transfer, TypedCommand,
};

/// The overdraft of accounts at a bank without debt limit: the range of amounts.
pub const HEADROOM_MAX: Money = Money::MAX;

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
            allow_known_account: true,
        }
    }
}

impl Policy {
    /// The headroom of every account, in 10⁻⁸.
    pub fn headroom(&self) -> u128 {
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

/// How an intent ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The intent.
    pub key: TransactionKey,
    /// The answer to the command that wrote it.
    pub result: Result<Outcome, Refusal>,
}

/// A wallet's selection for a withdrawal operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The reserve.
    pub reserve_pub: EddsaPublicKey,
    /// The exchange's account.
    pub exchange_account: String,
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

/// Why a command was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The store holds a bank of another currency.
    #[error("the store holds a bank of currency {0}")]
    OtherCurrency(String),
    /// The account does not exist.
    #[error("no account {0}")]
    UnknownAccount(String),
    /// The withdrawal operation does not exist, or belongs to another customer.
    #[error("no such withdrawal operation")]
    UnknownWithdrawal,
    /// The account has another password, or must not be registered again.
    #[error("the account is registered already")]
    RegisterConflict,
    /// Both sides are the same account.
    #[error("both sides are the same account")]
    SameAccount,
    /// The account would be overdrawn beyond its limit.
    #[error("the account would be overdrawn beyond its limit")]
    UnallowedDebit,
    /// A balance would exceed the range of amounts.
    #[error("a balance would become too big")]
    TooBig,
    /// The request uid names another transfer.
    #[error("the request uid was used for another transfer")]
    RequestUidReused,
    /// The operation has another selection.
    #[error("another reserve or exchange is selected already")]
    SelectionConflict,
    /// A transfer with this reserve key exists.
    #[error("the reserve key was the subject of a transfer before")]
    DuplicateReservePub,
    /// The wallet has not selected a reserve yet.
    #[error("no reserve is selected yet")]
    SelectionRequired,
    /// The operation is confirmed and cannot be aborted.
    #[error("the operation is confirmed already")]
    AbortAfterConfirm,
    /// The operation is aborted and cannot be confirmed.
    #[error("the operation is aborted")]
    ConfirmAfterAbort,
    /// The wallet selected between the read and the batch: read it again.
    #[error("the selection changed since it was looked up")]
    Unresolved,
    /// It depends on an intent that the ledger has not answered yet: wait for that, then ask again.
    #[error("it depends on a movement of money that is not decided yet")]
    InFlight {
        /// The intent.
        key: TransactionKey,
        /// The command.
        command: Box<Command>,
    },
    /// The reservation has expired. Ask again to reserve the money again.
    #[error("the reservation has expired")]
    ReservationExpired,
}

impl Refusal {
    /// The error code of the response.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::OtherCurrency(_) => ErrorCode::GENERIC_CURRENCY_MISMATCH,
            Self::UnknownAccount(_) => ErrorCode::BANK_UNKNOWN_ACCOUNT,
            Self::UnknownWithdrawal => ErrorCode::BANK_TRANSACTION_NOT_FOUND,
            Self::RegisterConflict => ErrorCode::BANK_REGISTER_CONFLICT,
            Self::SameAccount => ErrorCode::BANK_SAME_ACCOUNT,
            Self::UnallowedDebit => ErrorCode::BANK_UNALLOWED_DEBIT,
            Self::TooBig => ErrorCode::BANK_NUMBER_TOO_BIG,
            Self::RequestUidReused => ErrorCode::BANK_TRANSFER_REQUEST_UID_REUSED,
            Self::SelectionConflict => ErrorCode::BANK_WITHDRAWAL_OPERATION_RESERVE_SELECTION_CONFLICT,
            Self::DuplicateReservePub => ErrorCode::BANK_DUPLICATE_RESERVE_PUB_SUBJECT,
            Self::SelectionRequired => ErrorCode::BANK_POST_WITHDRAWAL_OPERATION_REQUIRED,
            Self::AbortAfterConfirm => ErrorCode::BANK_ABORT_CONFIRM_CONFLICT,
            Self::ConfirmAfterAbort => ErrorCode::BANK_CONFIRM_ABORT_CONFLICT,
            Self::Unresolved | Self::InFlight { .. } | Self::ReservationExpired => {
                ErrorCode::BANK_SOFT_EXCEPTION
            }
        }
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
    type Outcome = Outcome;
    type Refusal = Refusal;

    fn plan(&self, command: &Command, plan: &mut Plan) {
        let account = |plan: &mut Plan, name: &str| plan.row::<BankAccounts>(AccountKey::new(name));
        // If repetitions are allowed, a key may have any number of transactions, and none of them matters.
        let reserve = |plan: &mut Plan, reserve_pub: &EddsaPublicKey| {
            if !self.policy.allow_repeated_reserve_pub {
                plan.group::<BankTransactions>(BankTransactions::BY_RESERVE_PUB, reserve_pub);
                plan.group::<BankIntents>(BankIntents::BY_RESERVE_PUB, reserve_pub);
            }
        };
        let movement = |plan: &mut Plan, key: TransactionKey, from: &str, to: &str| {
            plan.row::<BankTransactions>(key.clone());
            plan.row::<BankIntents>(key);
            // A ledger in the same store has already booked it in the same batch.
            plan.row::<BankStates>(BankStateKey::ONLY);
            account(plan, from);
            account(plan, to);
        };
        match command {
            Command::Open(_) => plan.row::<BankStates>(BankStateKey::ONLY),
            Command::Register(Register { name, .. }) => {
                plan.row::<BankStates>(BankStateKey::ONLY);
                account(plan, name);
                plan.row::<BankIntents>(TransactionKey::new(Origin::Bonus, name.as_bytes()));
            }
            Command::SetPassword(SetPassword { name, .. }) => account(plan, name),
            Command::AddIncoming(AddIncoming { id, debit_account, credit_account, reserve_pub, .. }) => {
                movement(plan, TransactionKey::new(Origin::Incoming, id), debit_account, credit_account);
                reserve(plan, reserve_pub);
            }
            Command::Transfer(Transfer { request_uid, debit_account, credit_account, .. }) => {
                let key = TransactionKey::new(Origin::Transfer, request_uid.as_bytes());
                movement(plan, key, debit_account, credit_account);
            }
            Command::Pay(Pay { id, debit_account, credit_account, reserve_pub, .. }) => {
                movement(plan, TransactionKey::new(Origin::Payment, id), debit_account, credit_account);
                if let Some(reserve_pub) = reserve_pub {
                    reserve(plan, reserve_pub);
                }
            }
            Command::CreateWithdrawal(CreateWithdrawal { wopid, account: name, .. }) => {
                plan.row::<BankWithdrawals>(WithdrawalKey { wopid: *wopid });
                account(plan, name);
            }
            Command::SelectWithdrawal(SelectWithdrawal { wopid, reserve_pub, exchange_account }) => {
                withdrawals::plan(plan, wopid);
                account(plan, exchange_account);
                reserve(plan, reserve_pub);
            }
            Command::ConfirmWithdrawal(ConfirmWithdrawal { wopid, account: name, selection }) => {
                withdrawals::plan(plan, wopid);
                account(plan, name);
                if let Some(Selection { reserve_pub, exchange_account }) = selection {
                    plan.row::<BankTransactions>(TransactionKey::new(Origin::Withdrawal, wopid));
                    account(plan, exchange_account);
                    reserve(plan, reserve_pub);
                }
            }
            Command::AbortWithdrawal(AbortWithdrawal { wopid, account: name }) => {
                withdrawals::plan(plan, wopid);
                account(plan, name);
            }
            Command::Finish(Finish(finished)) => {
                plan.row::<BankStates>(BankStateKey::ONLY);
                for (intent, _) in finished.iter() {
                    intents::plan_finish(plan, intent);
                }
            }
        }
    }

    fn execute(&self, rows: &mut WorkingSet, command: &Command, now: Timestamp) -> Result<Outcome, Refusal> {
        let verdict = match command {
            Command::Open(Open { currency, password_salt, identity }) => {
                self.open(rows, *currency, *password_salt, *identity)
            }
            Command::Register(Register { name, password_hash }) => {
                self.register(rows, name, *password_hash, now)
            }
            Command::SetPassword(SetPassword { name, replaces, password_hash }) => {
                set_password(rows, name, *replaces, *password_hash)
            }
            Command::AddIncoming(AddIncoming { id, debit_account, credit_account, amount, reserve_pub }) => {
                self.require_fresh(rows, reserve_pub).and_then(|()| {
                    let key = TransactionKey::new(Origin::Incoming, id);
                    let mut draft = intents::draft(debit_account, credit_account, *amount);
                    draft.reserve_pub = Some(*reserve_pub);
                    self.intend(rows, key, draft)
                })
            }
            Command::Transfer(Transfer {
                request_uid,
                debit_account,
                credit_account,
                amount,
                wtid,
                exchange_base_url,
            }) => {
                let key = TransactionKey::new(Origin::Transfer, request_uid.as_bytes());
                let mut draft = intents::draft(debit_account, credit_account, *amount);
                draft.wtid = Some(*wtid);
                draft.exchange_base_url = Some(exchange_base_url.clone());
                self.intend_once(rows, key, draft)
            }
            Command::Pay(Pay { id, debit_account, credit_account, amount, text, reserve_pub }) => {
                let key = TransactionKey::new(Origin::Payment, id);
                let mut draft = intents::draft(debit_account, credit_account, *amount);
                draft.text = Some(text.clone());
                draft.reserve_pub = *reserve_pub;
                self.pay(rows, key, draft)
            }
            Command::CreateWithdrawal(CreateWithdrawal { wopid, account, amount }) => {
                withdrawals::create(rows, *wopid, account, *amount, now)
            }
            Command::SelectWithdrawal(SelectWithdrawal { wopid, reserve_pub, exchange_account }) => {
                self.select(rows, *wopid, *reserve_pub, exchange_account)
            }
            Command::ConfirmWithdrawal(ConfirmWithdrawal { wopid, account, selection }) => {
                self.confirm(rows, *wopid, account, selection.as_ref())
            }
            Command::AbortWithdrawal(AbortWithdrawal { wopid, account }) => {
                withdrawals::abort(rows, *wopid, account)
            }
            Command::Finish(Finish(finished)) => Ok(Outcome::Finished(
                finished.iter().map(|(intent, verdict)| self.finish(rows, intent, *verdict, now)).collect(),
            )),
        };
        verdict.map_err(|refusal| match refusal {
            // The rules above do not know the command.
            Refusal::InFlight { key, .. } => Refusal::InFlight { key, command: Box::new(command.clone()) },
            refusal => refusal,
        })
    }

    fn needs_evidence(&self, _: &Refusal) -> bool {
        false
    }
}

impl BankRules {
    fn open(
        &self,
        rows: &mut WorkingSet,
        currency: Currency,
        password_salt: [u8; 16],
        identity: [u8; 16],
    ) -> Result<Outcome, Refusal> {
        match rows.get::<BankStates>(&BankStateKey::ONLY) {
            Some(state) if state.currency == currency.as_str() => {
                Ok(Outcome::Opened(Box::new(state.clone())))
            }
            Some(state) => Err(Refusal::OtherCurrency(state.currency.clone())),
            None => {
                let state = BankStateRow {
                    currency: currency.as_str().to_owned(),
                    next_row_id: 1,
                    password_salt,
                    identity,
                    headroom: self.policy.headroom(),
                };
                rows.insert::<BankStates>(&BankStateKey::ONLY, state.clone());
                Ok(Outcome::Opened(Box::new(state)))
            }
        }
    }

    fn register(
        &self,
        rows: &mut WorkingSet,
        name: &str,
        password_hash: ShortHash,
        now: Timestamp,
    ) -> Result<Outcome, Refusal> {
        let key = AccountKey::new(name);
        let bonus_key = TransactionKey::new(Origin::Bonus, name.as_bytes());
        let known = rows.get::<BankAccounts>(&key).cloned();
        if known.is_some() && !self.policy.allow_known_account {
            return Err(Refusal::RegisterConflict);
        }
        match known.as_ref().and_then(|account| account.password_hash) {
            Some(known) if known == password_hash => {
                intents::require_decided(rows, &bonus_key)?;
                return Ok(Outcome::Registered);
            }
            Some(_) => return Err(Refusal::RegisterConflict),
            None => {}
        }
        // An account that a transfer created belongs to the first who registers it, with its balance.
        let account = known.unwrap_or_else(|| intents::new_account(rows, name, now));
        rows.put::<BankAccounts>(&key, AccountRow { password_hash: Some(password_hash), ..account });
        if self.policy.signup_bonus.is_zero() {
            return Ok(Outcome::Registered);
        }
        let draft = intents::draft(EQUITY_ACCOUNT, name, self.policy.signup_bonus);
        intents::write(rows, bonus_key, draft)
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

fn set_password(
    rows: &mut WorkingSet,
    name: &str,
    replaces: Option<ShortHash>,
    password_hash: ShortHash,
) -> Result<Outcome, Refusal> {
    let key = AccountKey::new(name);
    let account = rows.get::<BankAccounts>(&key).cloned();
    let account = account.ok_or_else(|| Refusal::UnknownAccount(name.to_owned()))?;
    if replaces.is_none_or(|replaces| account.password_hash == Some(replaces)) {
        rows.put::<BankAccounts>(&key, AccountRow { password_hash: Some(password_hash), ..account });
    }
    Ok(Outcome::PasswordSet)
}

fn require_account(rows: &WorkingSet, name: &str) -> Result<(), Refusal> {
    match rows.get::<BankAccounts>(&AccountKey::new(name)) {
        Some(_) => Ok(()),
        None => Err(Refusal::UnknownAccount(name.to_owned())),
    }
}

fn booked(row: &TransactionRow) -> Outcome {
    Outcome::Booked { row_id: row.row_id, time: row.time }
}
