//! A TigerBeetle cluster as a [`Ledger`], through its official client library (feature `tigerbeetle`).
//!
//! The records are identical, bit by bit. Change events cannot be read, because the official client does not
//! offer them.

use batzen_ledger::{
    Account, AccountBalance, AccountFilter, Answer, BATCH_EVENTS_MAX, ChangeEvent, ChangeFilter,
    CreateAccountStatus, CreateResult, CreateTransferStatus, Ledger, LedgerError, QueryFilter, Transfer,
};
use tigerbeetle as tb;

/// A cluster. Requests wait as long as it takes to reach a quorum.
pub struct TigerBeetleLedger {
    client: tb::Client,
}

impl TigerBeetleLedger {
    /// Creates a client of the cluster, which connects in the background.
    ///
    /// # Errors
    /// [`LedgerError::Refused`] for malformed addresses.
    pub fn new(cluster: u128, addresses: &str) -> Result<Self, LedgerError> {
        let refused = |error: tb::InitError| LedgerError::Refused(format!("TigerBeetle client: {error}"));
        tb::Client::new(cluster, addresses).map(|client| Self { client }).map_err(refused)
    }
}

fn failed(error: tb::Error) -> LedgerError {
    match error {
        tb::Error::TooMuchData => LedgerError::TooMuchData,
        tb::Error::ClientReleaseTooLow | tb::Error::ClientReleaseTooHigh => {
            LedgerError::Refused(format!("the cluster runs another version: {error}"))
        }
        error => LedgerError::Unknown(format!("TigerBeetle: {error}")),
    }
}

fn to_account(from: &Account) -> tb::Account {
    tb::Account {
        id: from.id,
        debits_pending: from.debits_pending,
        debits_posted: from.debits_posted,
        credits_pending: from.credits_pending,
        credits_posted: from.credits_posted,
        user_data_128: from.user_data_128,
        user_data_64: from.user_data_64,
        user_data_32: from.user_data_32,
        ledger: from.ledger,
        code: from.code,
        flags: tb::AccountFlags(from.flags.0),
        timestamp: from.timestamp,
        ..tb::Account::default()
    }
}

fn from_account(from: &tb::Account) -> Account {
    Account {
        id: from.id,
        debits_pending: from.debits_pending,
        debits_posted: from.debits_posted,
        credits_pending: from.credits_pending,
        credits_posted: from.credits_posted,
        user_data_128: from.user_data_128,
        user_data_64: from.user_data_64,
        user_data_32: from.user_data_32,
        reserved: 0,
        ledger: from.ledger,
        code: from.code,
        flags: batzen_ledger::AccountFlags(from.flags.0),
        timestamp: from.timestamp,
    }
}

fn to_transfer(from: &Transfer) -> tb::Transfer {
    tb::Transfer {
        id: from.id,
        debit_account_id: from.debit_account_id,
        credit_account_id: from.credit_account_id,
        amount: from.amount,
        pending_id: from.pending_id,
        user_data_128: from.user_data_128,
        user_data_64: from.user_data_64,
        user_data_32: from.user_data_32,
        timeout: from.timeout,
        ledger: from.ledger,
        code: from.code,
        flags: tb::TransferFlags(from.flags.0),
        timestamp: from.timestamp,
    }
}

fn from_transfer(from: &tb::Transfer) -> Transfer {
    Transfer {
        id: from.id,
        debit_account_id: from.debit_account_id,
        credit_account_id: from.credit_account_id,
        amount: from.amount,
        pending_id: from.pending_id,
        user_data_128: from.user_data_128,
        user_data_64: from.user_data_64,
        user_data_32: from.user_data_32,
        timeout: from.timeout,
        ledger: from.ledger,
        code: from.code,
        flags: batzen_ledger::TransferFlags(from.flags.0),
        timestamp: from.timestamp,
    }
}

fn account_filter(from: &AccountFilter) -> tb::AccountFilter {
    let flag = |is_set: bool, flag: tb::AccountFilterFlags| if is_set { flag.0 } else { 0 };
    tb::AccountFilter {
        account_id: from.account_id,
        user_data_128: from.user_data_128,
        user_data_64: from.user_data_64,
        user_data_32: from.user_data_32,
        code: from.code,
        timestamp_min: from.timestamp_min,
        timestamp_max: from.timestamp_max,
        limit: from.limit,
        flags: tb::AccountFilterFlags(
            flag(from.debits, tb::AccountFilterFlags::Debits)
                | flag(from.credits, tb::AccountFilterFlags::Credits)
                | flag(from.reversed, tb::AccountFilterFlags::Reversed),
        ),
        ..tb::AccountFilter::default()
    }
}

fn query_filter(from: &QueryFilter) -> tb::QueryFilter {
    tb::QueryFilter {
        user_data_128: from.user_data_128,
        user_data_64: from.user_data_64,
        user_data_32: from.user_data_32,
        ledger: from.ledger,
        code: from.code,
        timestamp_min: from.timestamp_min,
        timestamp_max: from.timestamp_max,
        limit: from.limit,
        flags: if from.reversed { tb::QueryFilterFlags::Reversed } else { tb::QueryFilterFlags::empty() },
        ..tb::QueryFilter::default()
    }
}

fn unknown_status(number: u32) -> LedgerError {
    LedgerError::Unknown(format!(
        "the cluster answered with status {number}, which this version does not know"
    ))
}

impl TigerBeetleLedger {
    /// The cluster accepts a client's whole request or nothing, so longer ones are refused before.
    fn checked<T>(events: &[T]) -> Result<(), LedgerError> {
        if events.len() > BATCH_EVENTS_MAX { Err(LedgerError::TooMuchData) } else { Ok(()) }
    }
}

impl Ledger for TigerBeetleLedger {
    fn create_accounts(&self, events: Vec<Account>) -> Answer<'_, Vec<CreateResult<CreateAccountStatus>>> {
        Box::pin(async move {
            Self::checked(&events)?;
            if events.is_empty() {
                return Ok(Vec::new());
            }
            let events: Vec<tb::Account> = events.iter().map(to_account).collect();
            let results = self.client.create_accounts(&events).await.map_err(failed)?;
            let result = |result: &tb::CreateAccountResult| {
                let number = result.status as u32;
                let status =
                    CreateAccountStatus::from_number(number).ok_or_else(|| unknown_status(number))?;
                Ok(CreateResult { timestamp: result.timestamp, status })
            };
            results.iter().map(result).collect()
        })
    }

    fn create_transfers(&self, events: Vec<Transfer>) -> Answer<'_, Vec<CreateResult<CreateTransferStatus>>> {
        Box::pin(async move {
            Self::checked(&events)?;
            if events.is_empty() {
                return Ok(Vec::new());
            }
            let events: Vec<tb::Transfer> = events.iter().map(to_transfer).collect();
            let results = self.client.create_transfers(&events).await.map_err(failed)?;
            let result = |result: &tb::CreateTransferResult| {
                let number = result.status as u32;
                let status =
                    CreateTransferStatus::from_number(number).ok_or_else(|| unknown_status(number))?;
                Ok(CreateResult { timestamp: result.timestamp, status })
            };
            results.iter().map(result).collect()
        })
    }

    fn lookup_accounts(&self, ids: Vec<u128>) -> Answer<'_, Vec<Account>> {
        Box::pin(async move {
            Self::checked(&ids)?;
            if ids.is_empty() {
                return Ok(Vec::new());
            }
            let found = self.client.lookup_accounts(&ids).await.map_err(failed)?;
            Ok(found.iter().map(from_account).collect())
        })
    }

    fn lookup_transfers(&self, ids: Vec<u128>) -> Answer<'_, Vec<Transfer>> {
        Box::pin(async move {
            Self::checked(&ids)?;
            if ids.is_empty() {
                return Ok(Vec::new());
            }
            let found = self.client.lookup_transfers(&ids).await.map_err(failed)?;
            Ok(found.iter().map(from_transfer).collect())
        })
    }

    fn get_account_transfers(&self, filter: AccountFilter) -> Answer<'_, Vec<Transfer>> {
        Box::pin(async move {
            let found = self.client.get_account_transfers(account_filter(&filter)).await.map_err(failed)?;
            Ok(found.iter().map(from_transfer).collect())
        })
    }

    fn get_account_balances(&self, filter: AccountFilter) -> Answer<'_, Vec<AccountBalance>> {
        Box::pin(async move {
            let found = self.client.get_account_balances(account_filter(&filter)).await.map_err(failed)?;
            let balance = |from: &tb::AccountBalance| AccountBalance {
                timestamp: from.timestamp,
                debits_pending: from.debits_pending,
                debits_posted: from.debits_posted,
                credits_pending: from.credits_pending,
                credits_posted: from.credits_posted,
            };
            Ok(found.iter().map(balance).collect())
        })
    }

    fn query_accounts(&self, filter: QueryFilter) -> Answer<'_, Vec<Account>> {
        Box::pin(async move {
            let found = self.client.query_accounts(query_filter(&filter)).await.map_err(failed)?;
            Ok(found.iter().map(from_account).collect())
        })
    }

    fn query_transfers(&self, filter: QueryFilter) -> Answer<'_, Vec<Transfer>> {
        Box::pin(async move {
            let found = self.client.query_transfers(query_filter(&filter)).await.map_err(failed)?;
            Ok(found.iter().map(from_transfer).collect())
        })
    }

    fn get_change_events(&self, _filter: ChangeFilter) -> Answer<'_, Vec<ChangeEvent>> {
        let reason = "the official client of TigerBeetle cannot read change events".to_owned();
        Box::pin(std::future::ready(Err(LedgerError::Refused(reason))))
    }
}
