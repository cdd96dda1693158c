//! The client of a cluster: bounds, outages, ended sessions. The cluster is in this process, with a ledger in memory
//! behind sessions that tests silence and end.

use crate::net::common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use batzen_ledger::{
    Account, BATCH_EVENTS_MAX, CreateTransferStatus, Ledger, LedgerError, MemoryLedger, Transfer,
    TransferFlags,
};
use batzen_ledger_service::net::body::{push_all, read_all};
use batzen_ledger_service::net::client::cluster::{Cluster, Session, SessionError};
use batzen_ledger_service::net::frame::Kind;
use batzen_ledger_service::net::{ClientOptions, LedgerClient};
use common::{account, transfer};
use futures_util::future::{BoxFuture, FutureExt, join_all};
use tokio::sync::watch;

const NAME: &str = "the cluster at 127.0.0.1:9";

/// The state of a cluster, for tests.
struct State {
    ledger: MemoryLedger,
    answers: watch::Sender<bool>,
    /// Sessions refuse their requests with this.
    refuses: Mutex<Option<SessionError>>,
    /// The next create request is executed, but its session ends before the answer.
    ends_next: AtomicBool,
    sessions: AtomicUsize,
    sessions_ever: AtomicUsize,
    creates: AtomicUsize,
    creates_under_way: AtomicUsize,
    creates_under_way_max: AtomicUsize,
    reads_under_way: AtomicUsize,
    reads_under_way_max: AtomicUsize,
}

#[derive(Clone)]
struct Fake(Arc<State>);

struct FakeSession(Arc<State>);

impl Fake {
    fn new() -> Self {
        Self(Arc::new(State {
            ledger: MemoryLedger::with_system_clock(),
            answers: watch::Sender::new(true),
            refuses: Mutex::default(),
            ends_next: AtomicBool::default(),
            sessions: AtomicUsize::default(),
            sessions_ever: AtomicUsize::default(),
            creates: AtomicUsize::default(),
            creates_under_way: AtomicUsize::default(),
            creates_under_way_max: AtomicUsize::default(),
            reads_under_way: AtomicUsize::default(),
            reads_under_way_max: AtomicUsize::default(),
        }))
    }

    fn answer(&self, answers: bool) {
        self.0.answers.send_replace(answers);
    }

    async fn connect(&self, options: ClientOptions) -> Arc<LedgerClient> {
        let client = LedgerClient::connect_cluster(self.clone(), options).await.unwrap();
        client.create_accounts(vec![account(1), account(2)]).await.unwrap();
        Arc::new(client)
    }

    /// The sum that account 1 paid.
    async fn paid(&self) -> u128 {
        self.0.ledger.lookup_accounts(vec![1]).await.unwrap()[0].debits_posted
    }
}

impl Cluster for Fake {
    fn name(&self) -> &str {
        NAME
    }

    fn open(&self) -> Result<Box<dyn Session>, LedgerError> {
        self.0.sessions.fetch_add(1, Ordering::SeqCst);
        self.0.sessions_ever.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(FakeSession(Arc::clone(&self.0))))
    }
}

impl Drop for FakeSession {
    fn drop(&mut self) {
        self.0.sessions.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Counts while it lives.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(now: &'a AtomicUsize, max: &AtomicUsize) -> Self {
        max.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        Self(now)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Session for FakeSession {
    fn request(&self, kind: Kind, body: &[u8]) -> BoxFuture<'static, Result<Vec<u8>, SessionError>> {
        let (state, body) = (Arc::clone(&self.0), body.to_vec());
        async move {
            let is_create = matches!(kind, Kind::CreateAccounts | Kind::CreateTransfers);
            let _counted = match is_create {
                true => Counted::new(&state.creates_under_way, &state.creates_under_way_max),
                false => Counted::new(&state.reads_under_way, &state.reads_under_way_max),
            };
            state.answers.subscribe().wait_for(|answers| *answers).await.unwrap();
            if let Some(error) = state.refuses.lock().unwrap().clone() {
                return Err(error);
            }
            let mut out = Vec::new();
            match kind {
                Kind::Ping => {}
                Kind::CreateAccounts => {
                    let events: Vec<Account> = read_all(&body).unwrap();
                    push_all(&mut out, &state.ledger.create_accounts(events).await.unwrap());
                }
                Kind::CreateTransfers => {
                    state.creates.fetch_add(1, Ordering::SeqCst);
                    let events: Vec<Transfer> = read_all(&body).unwrap();
                    push_all(&mut out, &state.ledger.create_transfers(events).await.unwrap());
                    if state.ends_next.swap(false, Ordering::SeqCst) {
                        return Err(SessionError::Ended("evicted".to_owned()));
                    }
                }
                Kind::LookupAccounts => {
                    let found = state.ledger.lookup_accounts(read_all(&body).unwrap()).await.unwrap();
                    push_all(&mut out, &found);
                }
                kind => {
                    let reason = format!("no {}", kind.name());
                    return Err(SessionError::Failed(LedgerError::Refused(reason)));
                }
            }
            Ok(out)
        }
        .boxed()
    }
}

/// Waits until something is true.
async fn until(what: impl Fn() -> bool) {
    for _ in 0..6000 {
        if what() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it does not happen");
}

fn send(
    client: &Arc<LedgerClient>,
    id: u128,
) -> tokio::task::JoinHandle<Result<CreateTransferStatus, LedgerError>> {
    let client = Arc::clone(client);
    tokio::spawn(async move {
        let results = client.create_transfers(vec![transfer(id, 1, 2, 1)]).await?;
        Ok(results[0].status)
    })
}

#[tokio::test]
async fn requests_of_many_callers_share_few_messages() {
    let fake = Fake::new();
    let client = fake.connect(ClientOptions::of_cluster()).await;
    fake.answer(false);
    let callers: Vec<_> = (1..=3000).map(|id| send(&client, id)).collect();
    let readers: Vec<_> = (0..500)
        .map(|_| {
            let client = Arc::clone(&client);
            tokio::spawn(async move { client.lookup_accounts(vec![1]).await })
        })
        .collect();
    let state = &fake.0;
    until(|| {
        state.creates_under_way.load(Ordering::SeqCst) == 2
            && state.reads_under_way.load(Ordering::SeqCst) == 16
    })
    .await;
    fake.answer(true);
    for status in join_all(callers).await {
        assert_eq!(status.unwrap().unwrap(), CreateTransferStatus::Created);
    }
    for found in join_all(readers).await {
        assert_eq!(found.unwrap().unwrap().len(), 1);
    }
    assert_eq!(fake.paid().await, 3000);
    assert_eq!(state.creates_under_way_max.load(Ordering::SeqCst), 2);
    assert_eq!(state.reads_under_way_max.load(Ordering::SeqCst), 16);
    assert_eq!(state.sessions_ever.load(Ordering::SeqCst), 1);
    // The first two callers may have a message each; all others were waiting by then or share the next ones.
    let messages = state.creates.load(Ordering::SeqCst);
    assert!(messages <= 4, "{messages} messages");
}

/// An open chain must not continue into another caller's transfers.
#[tokio::test]
async fn open_chains_stay_alone() {
    let fake = Fake::new();
    let client = fake.connect(ClientOptions::of_cluster()).await;
    fake.answer(false);
    let before: Vec<_> = (1..=3).map(|id| send(&client, id)).collect();
    let open = Transfer { flags: TransferFlags::LINKED, ..transfer(4, 1, 2, 1) };
    let chain = {
        let client = Arc::clone(&client);
        tokio::spawn(async move { client.create_transfers(vec![open]).await })
    };
    let after: Vec<_> = (5..=7).map(|id| send(&client, id)).collect();
    tokio::task::yield_now().await;
    fake.answer(true);
    for status in join_all(before.into_iter().chain(after)).await {
        assert_eq!(status.unwrap().unwrap(), CreateTransferStatus::Created);
    }
    assert_eq!(chain.await.unwrap().unwrap()[0].status, CreateTransferStatus::LinkedEventChainOpen);
}

#[tokio::test]
async fn a_full_queue_refuses() {
    let fake = Fake::new();
    let options =
        ClientOptions { waiting_events_max: 100, reads_in_flight: 1, ..ClientOptions::of_cluster() };
    let client = fake.connect(options).await;
    fake.answer(false);
    let callers: Vec<_> = (1..=500).map(|id| send(&client, id)).collect();
    // 6,400 bytes of ids each: the first is under way, two more reach the limit of 12,800 bytes.
    let readers: Vec<_> = (0..9)
        .map(|_| {
            let client = Arc::clone(&client);
            tokio::spawn(async move { client.lookup_accounts(vec![1; 400]).await })
        })
        .collect();
    until(|| callers.iter().filter(|caller| caller.is_finished()).count() == 398).await;
    until(|| readers.iter().filter(|reader| reader.is_finished()).count() == 6).await;
    fake.answer(true);
    let statuses: Vec<_> = join_all(callers).await.into_iter().map(Result::unwrap).collect();
    let created = statuses.iter().filter(|status| **status == Ok(CreateTransferStatus::Created)).count();
    let busy = statuses.iter().filter(|status| matches!(status, Err(LedgerError::Busy(_)))).count();
    assert_eq!((created, busy), (102, 398));
    assert_eq!(fake.paid().await, 102);
    let found = join_all(readers).await.into_iter().filter(|found| found.as_ref().unwrap().is_ok()).count();
    assert_eq!(found, 3);
    // There is room again.
    assert_eq!(send(&client, 1000).await.unwrap(), Ok(CreateTransferStatus::Created));
    let too_many = vec![transfer(1001, 1, 2, 1); BATCH_EVENTS_MAX + 1];
    assert_eq!(client.create_transfers(too_many).await, Err(LedgerError::TooMuchData));
}

#[tokio::test]
async fn a_cluster_that_is_away_is_named_and_tried_again() {
    let fake = Fake::new();
    fake.answer(false);
    let short = ClientOptions {
        connect_timeout: Duration::from_millis(50),
        retry_for: Duration::from_secs(1),
        backoff_max: Duration::from_millis(20),
        ..ClientOptions::of_cluster()
    };
    let refusal = LedgerClient::connect_cluster(fake.clone(), short.clone()).await.err().unwrap();
    assert!(matches!(&refusal, LedgerError::Busy(reason) if reason.contains(NAME)), "{refusal}");
    // Its session ends although the cluster never answered.
    until(|| fake.0.sessions.load(Ordering::SeqCst) == 0).await;

    fake.answer(true);
    let client = fake.connect(ClientOptions { connect_timeout: Duration::from_secs(60), ..short }).await;
    fake.answer(false);
    let callers: Vec<_> = (1..=20).map(|id| send(&client, id)).collect();
    let mut unknown = 0;
    for answer in join_all(callers).await {
        let error = answer.unwrap().unwrap_err();
        assert!(error.to_string().contains(NAME), "{error}");
        match error {
            LedgerError::Unknown(_) => unknown += 1,
            error => assert!(matches!(error, LedgerError::Busy(_)), "{error}"),
        }
    }
    // Those of the two messages under way.
    assert!((2..=20).contains(&unknown), "{unknown}");
    // While it is away, nothing is sent.
    let error = send(&client, 21).await.unwrap().unwrap_err();
    assert!(matches!(&error, LedgerError::Busy(reason) if reason.contains(NAME)), "{error}");
    assert_eq!(fake.paid().await, 0);

    fake.answer(true);
    let mut statuses = BTreeMap::new();
    for id in 1..=21 {
        let status = loop {
            match send(&client, id).await.unwrap() {
                Ok(status) => break status,
                Err(error) => {
                    assert!(matches!(error, LedgerError::Busy(_) | LedgerError::Unknown(_)), "{error}");
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        statuses.insert(id, status);
    }
    assert!(statuses.values().all(|status| status.stands()), "{statuses:?}");
    assert_eq!(fake.paid().await, 21);
    assert_eq!(fake.0.sessions.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn requests_of_an_ended_session_are_repeated_once() {
    let fake = Fake::new();
    let client = fake.connect(ClientOptions::of_cluster()).await;
    fake.0.ends_next.store(true, Ordering::SeqCst);
    // Executed, but its answer was lost with the session.
    assert_eq!(send(&client, 1).await.unwrap(), Ok(CreateTransferStatus::Exists));
    assert_eq!(send(&client, 2).await.unwrap(), Ok(CreateTransferStatus::Created));
    assert_eq!(fake.paid().await, 2);
    let state = &fake.0;
    assert_eq!((state.sessions.load(Ordering::SeqCst), state.sessions_ever.load(Ordering::SeqCst)), (1, 2));
}

#[tokio::test]
async fn another_version_is_refused() {
    let fake = Fake::new();
    *fake.0.refuses.lock().unwrap() = Some(SessionError::Refused("another version".to_owned()));
    let error = LedgerClient::connect_cluster(fake.clone(), ClientOptions::of_cluster()).await.err().unwrap();
    assert!(matches!(&error, LedgerError::Refused(reason) if reason.contains("another version")), "{error}");
    until(|| fake.0.sessions.load(Ordering::SeqCst) == 0).await;

    // A cluster that is upgraded while it serves.
    *fake.0.refuses.lock().unwrap() = None;
    let client = fake.connect(ClientOptions::of_cluster()).await;
    *fake.0.refuses.lock().unwrap() = Some(SessionError::Refused("another version".to_owned()));
    let error = send(&client, 1).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("another version"), "{error}");
    *fake.0.refuses.lock().unwrap() = None;
    until(|| fake.0.sessions.load(Ordering::SeqCst) == 1).await;
    let status = loop {
        if let Ok(status) = send(&client, 2).await.unwrap() {
            break status;
        }
    };
    assert_eq!(status, CreateTransferStatus::Created);
}

#[tokio::test]
async fn a_dropped_client_ends_its_session() {
    let fake = Fake::new();
    let client = fake.connect(ClientOptions::of_cluster()).await;
    fake.answer(false);
    let caller = send(&client, 1);
    until(|| fake.0.creates_under_way.load(Ordering::SeqCst) == 1).await;
    caller.abort();
    drop(client);
    until(|| fake.0.sessions.load(Ordering::SeqCst) == 0).await;
    assert_eq!(fake.0.creates_under_way.load(Ordering::SeqCst), 0);
}

/// Callers of a runtime that stands still do not hold up those of another one.
#[test]
fn callers_in_several_runtimes_share_a_client() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (fake, first) = (Fake::new(), runtime());
    let client = first.block_on(fake.connect(ClientOptions::of_cluster()));
    let statuses = runtime().block_on(async { join_all((1..=9).map(|id| send(&client, id))).await });
    assert!(statuses.into_iter().all(|status| status.unwrap() == Ok(CreateTransferStatus::Created)));
    let paid = first.block_on(client.lookup_accounts(vec![1])).unwrap()[0].debits_posted;
    assert_eq!(paid, 9);
}
