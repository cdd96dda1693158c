//! The bank's tables: accounts, transactions, withdrawal operations.
//!
//! All amounts are in the one currency of the bank. Every transaction debits one account and credits
//! another; the sign-up bonus is debited to an account of the bank's own ([`EQUITY_ACCOUNT`]). Hence over all accounts the
//! sum of debits equals the sum of credits, at every instant.
//!
//! | table | primary key | other lookups |
//! |---|---|---|
//! | `bank_state` | a constant | – |
//! | `bank_accounts` | name | – |
//! | `bank_transactions` | what makes the transaction unique ([`TransactionKey`]) | reserve key; incoming and outgoing history, each by account and row id |
//! | `bank_withdrawals` | operation id | – |

use batzen_crypto::{EddsaPublicKey, ShortHash, Wtid};
use batzen_protocol::{Money, Timestamp};
use batzen_store::{Column, IndexDef, IndexEntries, IndexKind, Table, TableDef, record};

/// Every table of the bank, for tools and backends that set up schemas.
pub const ALL: &[&TableDef] =
    &[BankStates::DEF, BankAccounts::DEF, BankTransactions::DEF, BankWithdrawals::DEF];

/// The bank's own account, which pays the sign-up bonus. No client can name it: `#` is not allowed in names.
pub const EQUITY_ACCOUNT: &str = "#signup-bonus";

record! {
    /// Names the one row of [`BankStates`].
    pub key struct BankStateKey {
        /// Always 0.
        pub id: u8,
    }
}

impl BankStateKey {
    /// The only key.
    pub const ONLY: Self = Self { id: 0 };
}

record! {
    /// What belongs to the bank as a whole.
    pub struct BankStateRow {
        /// The currency of all accounts, fixed when the store is created.
        pub currency: String,
        /// The row id of the next transaction, from 1 without gaps, in the order of commits.
        pub next_row_id: u64,
        /// Mixed into password hashes, so that they are worth nothing at another bank.
        pub password_salt: [u8; 16],
    }
}

/// The bank's state: one row, written by the first start.
pub struct BankStates;

impl Table for BankStates {
    const DEF: &'static TableDef = &TableDef::of::<Self>(100, "bank_state");
    type Key = BankStateKey;
    type Row = BankStateRow;
}

record! {
    /// Names an account.
    pub key struct AccountKey {
        /// The name, as in the account's payto URI.
        pub name: String,
    }
}

impl AccountKey {
    /// The key of the account with this name.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned() }
    }
}

record! {
    /// An account. Its balance is `credits` minus `debits`.
    pub struct AccountRow {
        /// Everything ever credited, in 10⁻⁸.
        pub credits: u128,
        /// Everything ever debited, in 10⁻⁸.
        pub debits: u128,
        /// The part of `credits` that came with a reserve key: the incoming history's total, in 10⁻⁸.
        pub credits_reserve: u128,
        /// The part of `debits` that went through the wire gateway: the outgoing history's total, in 10⁻⁸.
        pub debits_transfer: u128,
        /// The part of `credits` that is the sign-up bonus, which has no transaction, in 10⁻⁸.
        pub bonus: u128,
        /// Hash of the password. None: the account came into being by a transfer, and nobody has registered it.
        pub password_hash: Option<ShortHash>,
        /// When the account came into being.
        pub created: Timestamp,
    }
}

/// The accounts.
pub struct BankAccounts;

impl Table for BankAccounts {
    const DEF: &'static TableDef = &TableDef::of::<Self>(101, "bank_accounts");
    type Key = AccountKey;
    type Row = AccountRow;
}

/// How a transaction came about, and thereby what its id in [`TransactionKey`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Origin {
    /// A transfer through the wire gateway. The id is its request uid (64 bytes), so that none is executed twice.
    Transfer = 1,
    /// A test transfer towards the exchange. The id is random (32 bytes).
    Incoming = 2,
    /// A confirmed withdrawal operation. The id is the operation's (32 bytes), so that none is executed twice.
    Withdrawal = 3,
}

record! {
    /// What makes a transaction unique. The row id is not known before the transaction is executed, so it is a column.
    pub key struct TransactionKey {
        /// An [`Origin`].
        pub origin: u8,
        /// Unique within the origin.
        pub id: Vec<u8>,
    }
}

impl TransactionKey {
    /// The key of a transaction.
    pub fn new(origin: Origin, id: &[u8]) -> Self {
        Self { origin: origin as u8, id: id.to_vec() }
    }
}

record! {
    /// A transaction between two accounts. Written once, never changed.
    pub struct TransactionRow {
        /// Its number at the wire gateway.
        pub row_id: u64,
        /// The name of the account that pays.
        pub debit_account: String,
        /// The name of the account that receives.
        pub credit_account: String,
        /// How much.
        pub amount: Money,
        /// When.
        pub time: Timestamp,
        /// The subject of a transfer towards an exchange.
        pub reserve_pub: Option<EddsaPublicKey>,
        /// The subject of a transfer through the wire gateway.
        pub wtid: Option<Wtid>,
        /// The exchange that ordered a transfer through the wire gateway.
        pub exchange_base_url: Option<String>,
    }
}

/// The transactions.
pub struct BankTransactions;

impl BankTransactions {
    /// By reserve key.
    pub const BY_RESERVE_PUB: u8 = 1;
    /// Those with a reserve key by credited account, then row id: an account's incoming history.
    pub const INCOMING: u8 = 2;
    /// Those with a transfer identifier by debited account, then row id: an account's outgoing history.
    pub const OUTGOING: u8 = 3;

    /// The value of a transaction in [`Self::INCOMING`] or [`Self::OUTGOING`]; without a row id, the prefix that all
    /// transactions of the account share.
    pub fn history_value(account: &String, row_id: Option<u64>) -> Vec<u8> {
        let mut value = account.to_bytes();
        if let Some(row_id) = row_id {
            row_id.encode(&mut value);
        }
        value
    }
}

impl Table for BankTransactions {
    const DEF: &'static TableDef = &TableDef::of::<Self>(102, "bank_transactions").indexed(&[
        IndexDef::new(Self::BY_RESERVE_PUB, "by_reserve_pub", IndexKind::Hash),
        IndexDef::new(Self::INCOMING, "incoming", IndexKind::Ordered),
        IndexDef::new(Self::OUTGOING, "outgoing", IndexKind::Ordered),
    ]);
    type Key = TransactionKey;
    type Row = TransactionRow;

    fn index_entries(_: &TransactionKey, row: &TransactionRow, out: &mut IndexEntries) {
        let mut history = |index: u8, account: &String| {
            out.add_with(index, |bytes| {
                account.encode(bytes);
                row.row_id.encode(bytes);
            });
        };
        if row.reserve_pub.is_some() {
            history(Self::INCOMING, &row.credit_account);
        }
        if row.wtid.is_some() {
            history(Self::OUTGOING, &row.debit_account);
        }
        if let Some(reserve_pub) = &row.reserve_pub {
            out.add(Self::BY_RESERVE_PUB, reserve_pub);
        }
    }
}

record! {
    /// Names a withdrawal operation.
    pub key struct WithdrawalKey {
        /// The operation's id, random; whoever knows it can select a reserve.
        pub wopid: [u8; 32],
    }
}

record! {
    /// A withdrawal operation: a customer's offer to pay into a reserve that a wallet names.
    pub struct WithdrawalRow {
        /// The customer's account.
        pub account: String,
        /// How much.
        pub amount: Money,
        /// When it was created.
        pub created: Timestamp,
        /// The reserve that the wallet selected. Never changes once set.
        pub reserve_pub: Option<EddsaPublicKey>,
        /// The name of the exchange's account that the wallet selected. Set with `reserve_pub`.
        pub exchange_account: Option<String>,
        /// Whether the customer gave up. Never together with `row_id`.
        pub aborted: bool,
        /// The transaction, once the customer has confirmed.
        pub row_id: Option<u64>,
    }
}

/// The withdrawal operations.
pub struct BankWithdrawals;

impl Table for BankWithdrawals {
    const DEF: &'static TableDef = &TableDef::of::<Self>(103, "bank_withdrawals");
    type Key = WithdrawalKey;
    type Row = WithdrawalRow;
}
