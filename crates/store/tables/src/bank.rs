//! The bank's tables: names, transactions, withdrawal operations, and intents for the ledger.
//!
//! All amounts are in the one currency of the bank. Balances are not here: they are in the ledger. A movement
//! of money is stored as an intent before it is sent to the ledger, and becomes a transaction when the ledger
//! has answered.
//!
//! | table | primary key | other lookups |
//! |---|---|---|
//! | `bank_books` | a constant | – |
//! | `bank_customers` | name | ledger account |
//! | `bank_transactions` | [`TransactionKey`] | reserve key; incoming and outgoing history, each by account and row id |
//! | `bank_withdrawals` | operation id | – |
//! | `bank_intents` | as the transaction that it becomes | reserve key, while open |
//! | `bank_exchanges` | name | – |
//!
//! The numbers 100 to 103 were tables of banks that kept balances themselves; [`OldBankStates`] detects such
//! a store.

use batzen_crypto::{EddsaPublicKey, ShortHash, Wtid};
use batzen_protocol::{Money, Timestamp};
use batzen_store::{Column, Table, TableDef, table};

use crate::SingletonKey;

/// Every table of the bank, for tools and backends that set up schemas.
pub const ALL: &[&TableDef] = &[
    BankStates::DEF,
    BankAccounts::DEF,
    BankTransactions::DEF,
    BankWithdrawals::DEF,
    BankIntents::DEF,
    BankExchanges::DEF,
    OldBankStates::DEF,
];

/// The same with the tables of a ledger in the bank's store, where a movement of money and its transaction
/// are one commit.
pub const ALL_WITH_LEDGER: &[&TableDef] = &[
    BankStates::DEF,
    BankAccounts::DEF,
    BankTransactions::DEF,
    BankWithdrawals::DEF,
    BankIntents::DEF,
    BankExchanges::DEF,
    OldBankStates::DEF,
    crate::ledger::LedgerLog::DEF,
    crate::ledger::LedgerSnapshots::DEF,
    crate::ledger::LedgerAccounts::DEF,
    crate::ledger::LedgerMarks::DEF,
    crate::ledger::LedgerPendings::DEF,
    crate::ledger::LedgerRows::DEF,
    crate::ledger::LedgerIdPages::DEF,
    crate::ledger::LedgerIdFilters::DEF,
];
const _: () = assert!(ALL_WITH_LEDGER.len() == ALL.len() + crate::ledger::ALL.len());

/// The bank's own account, which pays the sign-up bonus. No client can name it: `#` is not allowed in names.
pub const EQUITY_ACCOUNT: &str = "#signup-bonus";

/// Identifies the one row of [`BankStates`].
pub type BankStateKey = SingletonKey;

table! {
    /// The bank's global data.
    pub struct BankStateRow {
        /// The currency of all accounts, fixed when the store is created.
        pub currency: String,
        /// The row id of the next transaction, from 1 without gaps, in the order of commits.
        pub next_row_id: u64,
        /// Mixed into password hashes, so that they are useless at another bank.
        pub password_salt: [u8; 16],
        /// Mixed into the ids of ledger accounts and transfers, so that many banks can share a ledger.
        /// Random, not secret.
        pub identity: [u8; 16],
        /// The headroom that every ledger account of the bank is granted: how far it may be overdrawn, in
        /// 10⁻⁸.
        pub headroom: u128,
    }

    /// The bank's state: one row, written by the first start.
    pub BankStates(104, "bank_books"): BankStateKey => BankStateRow, updated();
}

table! {
    /// Identifies an account.
    pub key struct AccountKey {
        /// The name, as in the account's payto URI.
        pub name: String,
    }

    /// An account. Its balance is in the ledger.
    pub struct AccountRow {
        /// The id of its account in the ledger.
        pub ledger_id: u128,
        /// Whether the account is known to exist in the ledger. Otherwise its balance is zero.
        pub is_opened: bool,
        /// Hash of the password. `None`: a transfer created the account, and it is not registered.
        pub password_hash: Option<ShortHash>,
        /// When the account was created.
        pub created: Timestamp,
    }

    /// The accounts.
    pub BankAccounts(105, "bank_customers"): AccountKey => AccountRow, updated();
    /// By the id of the account in the ledger.
    BY_LEDGER_ID = 1, "by_ledger_id", Hash;
    |_, row, out| {
        out.add(Self::BY_LEDGER_ID, &row.ledger_id);
    }
}

impl AccountKey {
    /// The key of the account with this name.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned() }
    }
}

batzen_protocol::enumeration! {
    /// The origin of a transaction, which determines its id in [`TransactionKey`].
    pub enum Origin {
        /// A transfer through the wire gateway. The id is its request uid (64 bytes), so that none is executed
        /// twice.
        Transfer = 1,
        /// A test transfer towards the exchange. The id is random (32 bytes).
        Incoming = 2,
        /// A confirmed withdrawal operation. The id is the operation's (32 bytes), so that none is executed
        /// twice.
        Withdrawal = 3,
        /// A customer's payment to another account. The id is chosen by the customer's page (16 bytes), so that
        /// none is executed twice.
        Payment = 4,
        /// Intents only: the sign-up bonus. The id is the account's name.
        Bonus = 5,
        /// Intents only: the money of a selected withdrawal operation is reserved. The id is the operation's.
        Reservation = 6,
        /// Intents only: the money of an aborted withdrawal operation is given back. The id is the operation's.
        Release = 7,
    }
}

table! {
    /// Identifies a transaction. The row id is only known once the transaction is executed, so it is a
    /// column.
    pub key struct TransactionKey {
        /// An [`Origin`].
        pub origin: u8,
        /// Unique within the origin.
        pub id: Vec<u8>,
    }

    /// A transaction between two accounts. Written once, never changed.
    pub struct TransactionRow {
        /// Its number at the wire gateway.
        pub row_id: u64,
        /// The name of the account that pays.
        pub debit_account: String,
        /// The name of the payee's account.
        pub credit_account: String,
        /// The amount.
        pub amount: Money,
        /// The time.
        pub time: Timestamp,
        /// The subject of a transfer towards an exchange.
        pub reserve_pub: Option<EddsaPublicKey>,
        /// The subject of a transfer through the wire gateway.
        pub wtid: Option<Wtid>,
        /// The exchange that ordered a transfer through the wire gateway.
        pub exchange_base_url: Option<String>,
        /// The customer's text of a payment.
        pub text: Option<String>,
    }

    /// The transactions.
    pub BankTransactions(106, "bank_transactions"): TransactionKey => TransactionRow;
    /// By reserve key.
    BY_RESERVE_PUB = 1, "by_reserve_pub", Hash;
    /// Transactions with a reserve key by credited account, then row id: an account's incoming history.
    INCOMING = 2, "incoming", Ordered;
    /// Transactions with a transfer identifier by debited account, then row id: an account's outgoing
    /// history.
    OUTGOING = 3, "outgoing", Ordered;
    |_, row, out| {
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

impl TransactionKey {
    /// The key of a transaction.
    pub fn new(origin: Origin, id: &[u8]) -> Self {
        Self { origin: origin as u8, id: id.to_vec() }
    }

    /// Its origin.
    ///
    /// # Panics
    /// If the store holds an unknown number.
    pub fn origin(&self) -> Origin {
        Origin::from_number(self.origin).expect("only origins are written")
    }
}

impl BankTransactions {
    /// The value of a transaction in [`Self::INCOMING`] or [`Self::OUTGOING`]; without a row id, the prefix
    /// that all transactions of the account share.
    pub fn history_value(account: &String, row_id: Option<u64>) -> Vec<u8> {
        let mut value = account.to_bytes();
        if let Some(row_id) = row_id {
            row_id.encode(&mut value);
        }
        value
    }
}

table! {
    /// Identifies a withdrawal operation.
    pub key struct WithdrawalKey {
        /// The operation's id, random; whoever knows it can select a reserve.
        pub wopid: [u8; 32],
    }

    /// A withdrawal operation: a customer's offer to pay into a reserve that a wallet chooses.
    pub struct WithdrawalRow {
        /// The customer's account.
        pub account: String,
        /// The amount.
        pub amount: Money,
        /// When it was created.
        pub created: Timestamp,
        /// The reserve that the wallet selected. Never changes once set.
        pub reserve_pub: Option<EddsaPublicKey>,
        /// The name of the exchange's account that the wallet selected. Set with `reserve_pub`.
        pub exchange_account: Option<String>,
        /// Whether a pending transfer in the ledger holds the money.
        pub is_reserved: bool,
        /// Whether the customer has aborted it. Never together with `row_id`.
        pub aborted: bool,
        /// The transaction, once the customer has confirmed.
        pub row_id: Option<u64>,
    }

    /// The withdrawal operations.
    pub BankWithdrawals(107, "bank_withdrawals"): WithdrawalKey => WithdrawalRow, updated();
}

table! {
    /// A movement of money for the ledger. Open from its commit until the ledger's answer is booked. A
    /// refused one is kept, closed, if the client may repeat it under the same key.
    pub struct IntentRow {
        /// The name of the account that pays.
        pub debit_account: String,
        /// The name of the account that receives.
        pub credit_account: String,
        /// The amount.
        pub amount: Money,
        /// See [`TransactionRow`].
        pub reserve_pub: Option<EddsaPublicKey>,
        /// See [`TransactionRow`].
        pub wtid: Option<Wtid>,
        /// See [`TransactionRow`].
        pub exchange_base_url: Option<String>,
        /// See [`TransactionRow`].
        pub text: Option<String>,
        /// Number of refusals by the ledger so far. The ids of refused transfers are used up.
        pub attempt: u32,
        /// Whether a withdrawal's money is already reserved, so that the ledger posts the reservation.
        pub is_reserved: bool,
        /// Whether the ledger's answer is still to be booked.
        pub is_open: bool,
    }

    /// The intents.
    pub BankIntents(108, "bank_intents"): TransactionKey => IntentRow, updated();
    /// Open ones that will become transactions with a reserve key, by that key.
    BY_RESERVE_PUB = 1, "by_reserve_pub", Hash;
    |key, row, out| {
        let books = ![Origin::Reservation as u8, Origin::Release as u8].contains(&key.origin);
        if let Some(reserve_pub) = &row.reserve_pub
            && row.is_open
            && books
        {
            out.add(Self::BY_RESERVE_PUB, reserve_pub);
        }
    }
}

table! {
    /// See [`BankExchanges`].
    pub struct ExchangeRow {
        /// When somebody first followed what the account receives.
        pub since: Timestamp,
    }

    /// The accounts of exchanges: those whose credits somebody follows at the wire gateway. It shows only transfers with a
    /// reserve key, so any other money would be lost in such an account.
    pub BankExchanges(109, "bank_exchanges"): AccountKey => ExchangeRow;
}

table! {
    /// See [`OldBankStates`].
    pub struct OldBankStateRow {
        /// Same as in the old format.
        pub currency: String,
        /// Same as in the old format.
        pub next_row_id: u64,
        /// Same as in the old format.
        pub password_salt: [u8; 16],
    }

    /// The state of a bank that kept balances itself. Never written; a store that contains it must not be
    /// mistaken for an empty one.
    pub OldBankStates(100, "bank_state"): BankStateKey => OldBankStateRow;
}
