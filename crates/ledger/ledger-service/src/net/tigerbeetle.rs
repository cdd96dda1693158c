//! A TigerBeetle cluster, through its official client library (feature `tigerbeetle`).
//!
//! The records are identical, bit by bit. Change events cannot be read, because the official client does not
//! offer them. [`connect`] makes all callers of a process share one session: a cluster permits 64 of them, ends the
//! oldest for a 65th, and each costs a thread and some 15 MB here.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use batzen_ledger::{
    Account, AccountBalance, AccountFilter, BATCH_EVENTS_MAX, CreateAccountStatus, CreateResult,
    CreateTransferStatus, LedgerError, QueryFilter, Transfer,
};
use futures_util::future::{BoxFuture, FutureExt, ready};
use tigerbeetle as tb;
use tokio::sync::Mutex;

use crate::net::body::{Record, push_all, read_all, read_one};
use crate::net::client::cluster::{Cluster, Session, SessionError};
use crate::net::client::{ClientOptions, LedgerClient};
use crate::net::frame::Kind;

/// A cluster: its id, and the addresses of its replicas.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TigerBeetle {
    cluster: u128,
    addresses: String,
    name: String,
}

impl TigerBeetle {
    /// The cluster with this id at these addresses, which are separated by commas.
    #[must_use]
    pub fn new(cluster: u128, addresses: &str) -> Self {
        Self { cluster, addresses: addresses.to_owned(), name: format!("TigerBeetle at {addresses}") }
    }
}

impl Cluster for TigerBeetle {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&self) -> Result<Box<dyn Session>, LedgerError> {
        match tb::Client::new(self.cluster, &self.addresses) {
            Ok(client) => Ok(Box::new(TigerBeetleSession { client })),
            Err(error @ (tb::InitError::AddressInvalid | tb::InitError::AddressLimitExceeded)) => {
                Err(LedgerError::Refused(format!("{}: {error}", self.name)))
            }
            Err(error) => Err(LedgerError::Busy(format!("the client of TigerBeetle: {error}"))),
        }
    }
}

/// The clients of this process that are in use.
static SHARED: Mutex<BTreeMap<TigerBeetle, Weak<LedgerClient>>> = Mutex::const_new(BTreeMap::new());

/// The client of a cluster that all callers of this process share.
///
/// # Errors
/// As [`LedgerClient::connect_cluster`].
pub async fn connect(cluster: TigerBeetle) -> Result<Arc<LedgerClient>, LedgerError> {
    let mut shared = SHARED.lock().await;
    shared.retain(|_, client| client.strong_count() > 0);
    if let Some(client) = shared.get(&cluster).and_then(Weak::upgrade) {
        return Ok(client);
    }
    let client = LedgerClient::connect_cluster(cluster.clone(), ClientOptions::of_cluster()).await?;
    let client = Arc::new(client);
    shared.insert(cluster, Arc::downgrade(&client));
    Ok(client)
}

struct TigerBeetleSession {
    client: tb::Client,
}

type Answered = BoxFuture<'static, Result<Vec<u8>, SessionError>>;

impl Session for TigerBeetleSession {
    fn request(&self, kind: Kind, body: &[u8]) -> Answered {
        let sent = match kind {
            Kind::Ping => Some(ping(&self.client)),
            Kind::CreateAccounts => read_all(body).map(|events: Vec<Account>| {
                let events: Vec<tb::Account> = events.iter().map(to_account).collect();
                let count = events.len();
                answered(self.client.create_accounts(&events), move |results| {
                    let results = results.iter().map(|result| (result.timestamp, result.status as u32));
                    created(results, count, CreateAccountStatus::from_number)
                })
            }),
            Kind::CreateTransfers => read_all(body).map(|events: Vec<Transfer>| {
                let events: Vec<tb::Transfer> = events.iter().map(to_transfer).collect();
                let count = events.len();
                answered(self.client.create_transfers(&events), move |results| {
                    let results = results.iter().map(|result| (result.timestamp, result.status as u32));
                    created(results, count, CreateTransferStatus::from_number)
                })
            }),
            Kind::LookupAccounts => read_all(body).map(|ids: Vec<u128>| match ids.is_empty() {
                true => ready(Ok(Vec::new())).boxed(),
                false => answered(self.client.lookup_accounts(&ids), |found| all(&found, from_account)),
            }),
            Kind::LookupTransfers => read_all(body).map(|ids: Vec<u128>| match ids.is_empty() {
                true => ready(Ok(Vec::new())).boxed(),
                false => answered(self.client.lookup_transfers(&ids), |found| all(&found, from_transfer)),
            }),
            Kind::GetAccountTransfers => read_one(body).map(|filter| {
                let found = self.client.get_account_transfers(account_filter(&filter));
                answered(found, |found| all(&found, from_transfer))
            }),
            Kind::GetAccountBalances => read_one(body).map(|filter| {
                let found = self.client.get_account_balances(account_filter(&filter));
                answered(found, |found| all(&found, from_balance))
            }),
            Kind::QueryAccounts => read_one(body).map(|filter| {
                let found = self.client.query_accounts(query_filter(&filter));
                answered(found, |found| all(&found, from_account))
            }),
            Kind::QueryTransfers => read_one(body).map(|filter| {
                let found = self.client.query_transfers(query_filter(&filter));
                answered(found, |found| all(&found, from_transfer))
            }),
            Kind::GetChangeEvents | Kind::Hello => {
                let reason = "the official client of TigerBeetle cannot read change events".to_owned();
                Some(ready(Err(SessionError::Failed(LedgerError::Refused(reason)))).boxed())
            }
        };
        sent.unwrap_or_else(|| {
            let reason = format!("a request of kind {} is malformed", kind.name());
            ready(Err(SessionError::Failed(LedgerError::Refused(reason)))).boxed()
        })
    }
}

/// Looks for as many accounts as a request may name; none has the id 0. The answer shows that the cluster is there,
/// and takes whole messages: those of a cluster for development are smaller.
fn ping(client: &tb::Client) -> Answered {
    let answer = client.lookup_accounts(&[0; BATCH_EVENTS_MAX]);
    let small = "it takes messages of less than 1 MiB: start it without --development and --limit-request";
    async move {
        match answer.await {
            Ok(_) => Ok(Vec::new()),
            Err(tb::Error::TooMuchData) => Err(SessionError::Refused(small.to_owned())),
            Err(error) => Err(failed(error)),
        }
    }
    .boxed()
}

/// The answer to a request, as a body.
fn answered<T: Send + 'static>(
    answer: impl Future<Output = Result<T, tb::Error>> + Send + 'static,
    body: impl FnOnce(T) -> Result<Vec<u8>, SessionError> + Send + 'static,
) -> Answered {
    async move { answer.await.map_err(failed).and_then(body) }.boxed()
}

fn failed(error: tb::Error) -> SessionError {
    match error {
        tb::Error::TooMuchData => SessionError::Failed(LedgerError::TooMuchData),
        tb::Error::ClientReleaseTooLow | tb::Error::ClientReleaseTooHigh => {
            SessionError::Refused(format!("the cluster runs another version: {error}"))
        }
        tb::Error::ClientEvicted | tb::Error::ClientClosed => SessionError::Ended(error.to_string()),
        error => SessionError::Failed(LedgerError::Refused(format!("TigerBeetle: {error}"))),
    }
}

/// The results of all events of a request.
fn created<S>(
    results: impl Iterator<Item = (u64, u32)>,
    count: usize,
    status: impl Fn(u32) -> Option<S>,
) -> Result<Vec<u8>, SessionError>
where
    CreateResult<S>: Record,
{
    let mut body = Vec::with_capacity(count * CreateResult::<S>::BYTES);
    for (timestamp, number) in results {
        let Some(status) = status(number) else {
            let reason =
                format!("the cluster answered with status {number}, which this version does not know");
            return Err(SessionError::Failed(LedgerError::Unknown(reason)));
        };
        CreateResult { timestamp, status }.push(&mut body);
    }
    Ok(body)
}

fn all<F, R: Record>(found: &[F], from: impl Fn(&F) -> R) -> Result<Vec<u8>, SessionError> {
    let records: Vec<R> = found.iter().map(from).collect();
    let mut body = Vec::new();
    push_all(&mut body, &records);
    Ok(body)
}

fn from_balance(from: &tb::AccountBalance) -> AccountBalance {
    AccountBalance {
        timestamp: from.timestamp,
        debits_pending: from.debits_pending,
        debits_posted: from.debits_posted,
        credits_pending: from.credits_pending,
        credits_posted: from.credits_posted,
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
