//! The bank's rules: what a command does to accounts, transactions and withdrawal operations. Pure: no I/O, no clock, no
//! randomness.

use batzen_crypto::{EddsaPublicKey, HashCode, ShortHash, Wtid};
use batzen_engine::{Plan, Rules, WorkingSet};
use batzen_protocol::{Currency, ErrorCode, Money, Timestamp};
use batzen_tables::bank::{
    AccountKey, AccountRow, BankAccounts, BankStateKey, BankStateRow, BankStates, BankTransactions,
    BankWithdrawals, EQUITY_ACCOUNT, Origin, TransactionKey, TransactionRow, WithdrawalKey, WithdrawalRow,
};

/// What the bank permits. [`Policy::default`] is a test bank's: everything, but no reserve key twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What a newly registered account receives.
    pub signup_bonus: Money,
    /// How far an account may be overdrawn. None: without limit.
    pub debt_limit: Option<Money>,
    /// Whether a transfer creates the accounts that it names.
    pub create_accounts: bool,
    /// Whether a transfer may have the same account on both sides.
    pub allow_same_account: bool,
    /// Whether several transfers may carry the same reserve key.
    pub allow_repeated_reserve_pub: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            signup_bonus: Money::ZERO,
            debt_limit: None,
            create_accounts: true,
            allow_same_account: true,
            allow_repeated_reserve_pub: false,
        }
    }
}

/// What can be asked of the bank. Names of accounts have been checked before, and amounts are in its currency.
#[derive(Clone, Debug)]
pub enum Command {
    /// First of all: creates the bank in an empty store, or checks that this is the bank that is there.
    Open {
        /// The currency of all accounts.
        currency: Currency,
        /// Random; counts only for a new bank.
        password_salt: [u8; 16],
    },
    /// Registers a customer, who receives the sign-up bonus. Idempotent.
    Register {
        /// The account.
        name: String,
        /// The hash of the password.
        password_hash: ShortHash,
    },
    /// Moves money with a reserve key as subject. Not idempotent.
    AddIncoming {
        /// Random, names the transaction.
        id: [u8; 32],
        /// Who pays.
        debit_account: String,
        /// Who receives: the exchange.
        credit_account: String,
        /// How much.
        amount: Money,
        /// The subject.
        reserve_pub: EddsaPublicKey,
    },
    /// Moves money from an exchange to anybody. Idempotent by `request_uid`, for ever.
    Transfer {
        /// Chosen by the client when it prepared the transfer.
        request_uid: HashCode,
        /// Who pays: the exchange.
        debit_account: String,
        /// Who receives.
        credit_account: String,
        /// How much.
        amount: Money,
        /// The subject.
        wtid: Wtid,
        /// The exchange, for the history only.
        exchange_base_url: String,
    },
    /// Creates a withdrawal operation.
    CreateWithdrawal {
        /// Random, names the operation.
        wopid: [u8; 32],
        /// Who will pay.
        account: String,
        /// How much.
        amount: Money,
    },
    /// A wallet names the reserve and the exchange of a withdrawal operation. Idempotent.
    SelectWithdrawal {
        /// The operation.
        wopid: [u8; 32],
        /// The reserve.
        reserve_pub: EddsaPublicKey,
        /// The exchange's account.
        exchange_account: String,
    },
    /// The customer confirms: the money moves. Idempotent.
    ConfirmWithdrawal {
        /// The operation.
        wopid: [u8; 32],
        /// The customer.
        account: String,
        /// The selection as read before the batch; it never changes once made.
        selection: Option<Selection>,
    },
    /// The customer gives up. Idempotent.
    AbortWithdrawal {
        /// The operation.
        wopid: [u8; 32],
        /// The customer.
        account: String,
    },
}

/// What a wallet selected for a withdrawal operation.
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

/// The answer to a command that took effect, now or before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The bank is open.
    Opened {
        /// The salt of its password hashes.
        password_salt: [u8; 16],
    },
    /// The account is registered.
    Registered,
    /// The money has moved.
    Booked {
        /// The transaction's row id.
        row_id: u64,
        /// When, in whole seconds.
        time: Timestamp,
    },
    /// The operation exists.
    WithdrawalCreated,
    /// The selection stands.
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

/// Why a command was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The store holds a bank of another currency.
    #[error("the store holds a bank of currency {0}")]
    OtherCurrency(String),
    /// There is no such account.
    #[error("no account {0}")]
    UnknownAccount(String),
    /// There is no such withdrawal operation, or it is another customer's.
    #[error("no such withdrawal operation")]
    UnknownWithdrawal,
    /// The account has another password.
    #[error("the account is registered with another password")]
    RegisterConflict,
    /// Both sides are the same account.
    #[error("both sides are the same account")]
    SameAccount,
    /// The account would be overdrawn too far.
    #[error("the account would be overdrawn beyond its limit")]
    UnallowedDebit,
    /// A balance would leave the range of amounts.
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
    /// The wallet selected between the look-up and the batch: look it up again.
    #[error("the selection changed since it was looked up")]
    Unresolved,
}

impl Refusal {
    /// The code to answer with.
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
            Self::Unresolved => ErrorCode::BANK_SOFT_EXCEPTION,
        }
    }
}

/// The rules under a policy.
#[derive(Clone, Debug, Default)]
pub struct BankRules {
    /// What is permitted.
    pub policy: Policy,
}

/// A transaction to be executed.
struct Booking<'a> {
    key: TransactionKey,
    debit_account: &'a str,
    credit_account: &'a str,
    amount: Money,
    subject: Subject<'a>,
}

enum Subject<'a> {
    Reserve(EddsaPublicKey),
    Transfer { wtid: Wtid, exchange_base_url: &'a str },
}

impl Rules for BankRules {
    type Command = Command;
    type Outcome = Outcome;
    type Refusal = Refusal;

    fn plan(&self, command: &Command, plan: &mut Plan) {
        let account = |plan: &mut Plan, name: &str| plan.row::<BankAccounts>(AccountKey::new(name));
        // With repetitions allowed a key may have any number of transactions, and none of them matters.
        let reserve = |plan: &mut Plan, reserve_pub: &EddsaPublicKey| {
            if !self.policy.allow_repeated_reserve_pub {
                plan.group::<BankTransactions>(BankTransactions::BY_RESERVE_PUB, reserve_pub);
            }
        };
        match command {
            Command::Open { .. } => plan.row::<BankStates>(BankStateKey::ONLY),
            Command::Register { name, .. } => {
                account(plan, name);
                account(plan, EQUITY_ACCOUNT);
            }
            Command::AddIncoming { id, debit_account, credit_account, reserve_pub, .. } => {
                plan.row::<BankStates>(BankStateKey::ONLY);
                plan.row::<BankTransactions>(TransactionKey::new(Origin::Incoming, id));
                account(plan, debit_account);
                account(plan, credit_account);
                reserve(plan, reserve_pub);
            }
            Command::Transfer { request_uid, debit_account, credit_account, .. } => {
                plan.row::<BankStates>(BankStateKey::ONLY);
                plan.row::<BankTransactions>(TransactionKey::new(Origin::Transfer, request_uid.as_bytes()));
                account(plan, debit_account);
                account(plan, credit_account);
            }
            Command::CreateWithdrawal { wopid, account: name, .. } => {
                plan.row::<BankWithdrawals>(WithdrawalKey { wopid: *wopid });
                account(plan, name);
            }
            Command::SelectWithdrawal { wopid, reserve_pub, exchange_account } => {
                plan.row::<BankWithdrawals>(WithdrawalKey { wopid: *wopid });
                account(plan, exchange_account);
                reserve(plan, reserve_pub);
            }
            Command::ConfirmWithdrawal { wopid, account: name, selection } => {
                plan.row::<BankWithdrawals>(WithdrawalKey { wopid: *wopid });
                account(plan, name);
                if let Some(Selection { reserve_pub, exchange_account }) = selection {
                    plan.row::<BankStates>(BankStateKey::ONLY);
                    plan.row::<BankTransactions>(TransactionKey::new(Origin::Withdrawal, wopid));
                    account(plan, exchange_account);
                    reserve(plan, reserve_pub);
                }
            }
            Command::AbortWithdrawal { wopid, account: name } => {
                plan.row::<BankWithdrawals>(WithdrawalKey { wopid: *wopid });
                account(plan, name);
            }
        }
    }

    fn execute(&self, rows: &mut WorkingSet, command: &Command, now: Timestamp) -> Result<Outcome, Refusal> {
        match command {
            Command::Open { currency, password_salt } => open(rows, *currency, *password_salt),
            Command::Register { name, password_hash } => self.register(rows, name, *password_hash, now),
            Command::AddIncoming { id, debit_account, credit_account, amount, reserve_pub } => {
                self.require_fresh(rows, reserve_pub)?;
                self.book(
                    rows,
                    Booking {
                        key: TransactionKey::new(Origin::Incoming, id),
                        debit_account,
                        credit_account,
                        amount: *amount,
                        subject: Subject::Reserve(*reserve_pub),
                    },
                    now,
                )
            }
            Command::Transfer {
                request_uid,
                debit_account,
                credit_account,
                amount,
                wtid,
                exchange_base_url,
            } => {
                let key = TransactionKey::new(Origin::Transfer, request_uid.as_bytes());
                if let Some(row) = rows.get::<BankTransactions>(&key) {
                    let same = row.debit_account == *debit_account
                        && row.credit_account == *credit_account
                        && row.amount == *amount
                        && row.wtid == Some(*wtid);
                    return if same { Ok(booked(row)) } else { Err(Refusal::RequestUidReused) };
                }
                let subject = Subject::Transfer { wtid: *wtid, exchange_base_url };
                self.book(rows, Booking { key, debit_account, credit_account, amount: *amount, subject }, now)
            }
            Command::CreateWithdrawal { wopid, account, amount } => {
                create(rows, *wopid, account, *amount, now)
            }
            Command::SelectWithdrawal { wopid, reserve_pub, exchange_account } => {
                self.select(rows, *wopid, *reserve_pub, exchange_account)
            }
            Command::ConfirmWithdrawal { wopid, account, selection } => {
                self.confirm(rows, *wopid, account, selection.as_ref(), now)
            }
            Command::AbortWithdrawal { wopid, account } => abort(rows, *wopid, account),
        }
    }
}

impl BankRules {
    fn register(
        &self,
        rows: &mut WorkingSet,
        name: &str,
        password_hash: ShortHash,
        now: Timestamp,
    ) -> Result<Outcome, Refusal> {
        let key = AccountKey::new(name);
        let mut account = rows.get::<BankAccounts>(&key).cloned().unwrap_or_else(|| new_account(now));
        match account.password_hash {
            Some(known) if known == password_hash => return Ok(Outcome::Registered),
            Some(_) => return Err(Refusal::RegisterConflict),
            None => {}
        }
        // An account that a transfer has brought into being becomes the first comer's, with its balance.
        account.password_hash = Some(password_hash);
        let bonus = self.policy.signup_bonus;
        if !bonus.is_zero() {
            let equity_key = AccountKey::new(EQUITY_ACCOUNT);
            let mut equity =
                rows.get::<BankAccounts>(&equity_key).cloned().unwrap_or_else(|| new_account(now));
            add(&mut equity.debits, bonus)?;
            add(&mut account.credits, bonus)?;
            add(&mut account.bonus, bonus)?;
            rows.put::<BankAccounts>(&equity_key, equity);
        }
        require_representable(&account)?;
        rows.put::<BankAccounts>(&key, account);
        Ok(Outcome::Registered)
    }

    fn select(
        &self,
        rows: &mut WorkingSet,
        wopid: [u8; 32],
        reserve_pub: EddsaPublicKey,
        exchange_account: &str,
    ) -> Result<Outcome, Refusal> {
        let key = WithdrawalKey { wopid };
        let mut operation = rows.get::<BankWithdrawals>(&key).cloned().ok_or(Refusal::UnknownWithdrawal)?;
        // The comparison comes first: wallets repeat the selection after the confirmation, when the key has been used.
        if let Some(selection) = Selection::of(&operation) {
            let same = selection.reserve_pub == reserve_pub && selection.exchange_account == exchange_account;
            let transfer_done = operation.row_id.is_some();
            return if same {
                Ok(Outcome::WithdrawalSelected { transfer_done })
            } else {
                Err(Refusal::SelectionConflict)
            };
        }
        require_account(rows, exchange_account)?;
        self.require_fresh(rows, &reserve_pub)?;
        operation.reserve_pub = Some(reserve_pub);
        operation.exchange_account = Some(exchange_account.to_owned());
        rows.update::<BankWithdrawals>(&key, operation);
        Ok(Outcome::WithdrawalSelected { transfer_done: false })
    }

    fn confirm(
        &self,
        rows: &mut WorkingSet,
        wopid: [u8; 32],
        account: &str,
        selection: Option<&Selection>,
        now: Timestamp,
    ) -> Result<Outcome, Refusal> {
        let mut operation = operation_of(rows, wopid, account)?;
        let selected = Selection::of(&operation);
        if selected.as_ref() != selection {
            return Err(Refusal::Unresolved);
        }
        let Selection { reserve_pub, exchange_account } = selected.ok_or(Refusal::SelectionRequired)?;
        if operation.aborted {
            return Err(Refusal::ConfirmAfterAbort);
        }
        if operation.row_id.is_none() {
            self.require_fresh(rows, &reserve_pub)?;
            let booking = Booking {
                key: TransactionKey::new(Origin::Withdrawal, &wopid),
                debit_account: account,
                credit_account: &exchange_account,
                amount: operation.amount,
                subject: Subject::Reserve(reserve_pub),
            };
            let Outcome::Booked { row_id, .. } = self.book(rows, booking, now)? else {
                unreachable!("a booking is booked or refused")
            };
            operation.row_id = Some(row_id);
            rows.update::<BankWithdrawals>(&WithdrawalKey { wopid }, operation);
        }
        Ok(Outcome::WithdrawalConfirmed { exchange_account })
    }

    /// Refuses a reserve key that was the subject of a transfer before.
    fn require_fresh(&self, rows: &WorkingSet, reserve_pub: &EddsaPublicKey) -> Result<(), Refusal> {
        if self.policy.allow_repeated_reserve_pub {
            return Ok(());
        }
        let used = !rows.group::<BankTransactions>(BankTransactions::BY_RESERVE_PUB, reserve_pub).is_empty();
        if used { Err(Refusal::DuplicateReservePub) } else { Ok(()) }
    }

    /// Moves money: two balances, one transaction, the next row id.
    fn book(&self, rows: &mut WorkingSet, booking: Booking<'_>, now: Timestamp) -> Result<Outcome, Refusal> {
        let Booking { key, debit_account, credit_account, amount, subject } = booking;
        if debit_account == credit_account && !self.policy.allow_same_account {
            return Err(Refusal::SameAccount);
        }
        let (reserve_pub, wtid, exchange_base_url) = match subject {
            Subject::Reserve(reserve_pub) => (Some(reserve_pub), None, None),
            Subject::Transfer { wtid, exchange_base_url } => {
                (None, Some(wtid), Some(exchange_base_url.to_owned()))
            }
        };

        let mut payer = self.party(rows, debit_account, now)?;
        add(&mut payer.debits, amount)?;
        if wtid.is_some() {
            add(&mut payer.debits_transfer, amount)?;
        }
        rows.put::<BankAccounts>(&AccountKey::new(debit_account), payer);

        let mut payee = self.party(rows, credit_account, now)?;
        add(&mut payee.credits, amount)?;
        if reserve_pub.is_some() {
            add(&mut payee.credits_reserve, amount)?;
        }
        rows.put::<BankAccounts>(&AccountKey::new(credit_account), payee);

        for name in [debit_account, credit_account] {
            require_representable(rows.get::<BankAccounts>(&AccountKey::new(name)).expect("written above"))?;
        }
        let payer = rows.get::<BankAccounts>(&AccountKey::new(debit_account)).expect("written above");
        if let Some(limit) = self.policy.debt_limit
            && payer.debits.saturating_sub(payer.credits) > limit.units()
        {
            return Err(Refusal::UnallowedDebit);
        }

        let mut state = rows.get::<BankStates>(&BankStateKey::ONLY).cloned().expect("the bank was opened");
        let row_id = state.next_row_id;
        state.next_row_id = row_id.checked_add(1).expect("fewer than 2^64 transactions");
        rows.update::<BankStates>(&BankStateKey::ONLY, state);
        let row = TransactionRow {
            row_id,
            debit_account: debit_account.to_owned(),
            credit_account: credit_account.to_owned(),
            amount,
            time: now,
            reserve_pub,
            wtid,
            exchange_base_url,
        };
        let outcome = booked(&row);
        rows.insert::<BankTransactions>(&key, row);
        Ok(outcome)
    }

    /// An account that takes part in a transfer, new if the policy permits.
    fn party(&self, rows: &WorkingSet, name: &str, now: Timestamp) -> Result<AccountRow, Refusal> {
        match rows.get::<BankAccounts>(&AccountKey::new(name)) {
            Some(account) => Ok(account.clone()),
            None if self.policy.create_accounts => Ok(new_account(now)),
            None => Err(Refusal::UnknownAccount(name.to_owned())),
        }
    }
}

fn open(rows: &mut WorkingSet, currency: Currency, password_salt: [u8; 16]) -> Result<Outcome, Refusal> {
    match rows.get::<BankStates>(&BankStateKey::ONLY) {
        Some(state) if state.currency == currency.as_str() => {
            Ok(Outcome::Opened { password_salt: state.password_salt })
        }
        Some(state) => Err(Refusal::OtherCurrency(state.currency.clone())),
        None => {
            let state =
                BankStateRow { currency: currency.as_str().to_owned(), next_row_id: 1, password_salt };
            rows.insert::<BankStates>(&BankStateKey::ONLY, state);
            Ok(Outcome::Opened { password_salt })
        }
    }
}

fn create(
    rows: &mut WorkingSet,
    wopid: [u8; 32],
    account: &str,
    amount: Money,
    now: Timestamp,
) -> Result<Outcome, Refusal> {
    require_account(rows, account)?;
    let operation = WithdrawalRow {
        account: account.to_owned(),
        amount,
        created: now,
        reserve_pub: None,
        exchange_account: None,
        aborted: false,
        row_id: None,
    };
    rows.insert::<BankWithdrawals>(&WithdrawalKey { wopid }, operation);
    Ok(Outcome::WithdrawalCreated)
}

fn abort(rows: &mut WorkingSet, wopid: [u8; 32], account: &str) -> Result<Outcome, Refusal> {
    let mut operation = operation_of(rows, wopid, account)?;
    if operation.row_id.is_some() {
        return Err(Refusal::AbortAfterConfirm);
    }
    if !operation.aborted {
        operation.aborted = true;
        rows.update::<BankWithdrawals>(&WithdrawalKey { wopid }, operation);
    }
    Ok(Outcome::WithdrawalAborted)
}

/// A customer's own operation.
fn operation_of(rows: &WorkingSet, wopid: [u8; 32], account: &str) -> Result<WithdrawalRow, Refusal> {
    let operation =
        rows.get::<BankWithdrawals>(&WithdrawalKey { wopid }).ok_or(Refusal::UnknownWithdrawal)?;
    require_account(rows, account)?;
    if operation.account != account {
        return Err(Refusal::UnknownWithdrawal);
    }
    assert!(
        !(operation.aborted && operation.row_id.is_some()),
        "an operation is aborted or confirmed, not both"
    );
    Ok(operation.clone())
}

fn require_account(rows: &WorkingSet, name: &str) -> Result<(), Refusal> {
    match rows.get::<BankAccounts>(&AccountKey::new(name)) {
        Some(_) => Ok(()),
        None => Err(Refusal::UnknownAccount(name.to_owned())),
    }
}

fn new_account(now: Timestamp) -> AccountRow {
    AccountRow {
        credits: 0,
        debits: 0,
        credits_reserve: 0,
        debits_transfer: 0,
        bonus: 0,
        password_hash: None,
        created: now,
    }
}

fn add(total: &mut u128, amount: Money) -> Result<(), Refusal> {
    *total = total.checked_add(amount.units()).ok_or(Refusal::TooBig)?;
    Ok(())
}

/// Refuses what could not be shown: balances are amounts with a sign.
fn require_representable(account: &AccountRow) -> Result<(), Refusal> {
    if account.credits.abs_diff(account.debits) > Money::MAX.units() { Err(Refusal::TooBig) } else { Ok(()) }
}

fn booked(row: &TransactionRow) -> Outcome {
    Outcome::Booked { row_id: row.row_id, time: row.time }
}
