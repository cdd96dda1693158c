//! A bank with a faulty ledger: at every request the ledger may be busy or be cut off before or after it has
//! acted, or the bank may be killed at that moment or at any of its own commits. Also a bank with the ledger
//! in its own store, killed at any of their commits. In all cases, clients that repeat their requests find
//! all money moved exactly once.
//!
//! Each process of the bank is a runtime of its own on the shared store and ledger. Killing it means that the
//! store accepts none of its further commits, and the runtime is dropped without a shutdown.
use crate::common;
use crate::common::fenced;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use batzen_bank::{Bank, BankConfig, books};
use batzen_http::client::Reply;
use batzen_ledger::{
    Account, Answer, CreateAccountStatus, CreateResult, CreateTransferStatus, Ledger, LedgerError,
    MemoryLedger, Transfer,
};
use batzen_ledger_service::store::{DurableLedger, DurableOptions};
use batzen_service::wire_gateway::{GatewayAuth, WireGatewayClient};
use batzen_store::Store;
use batzen_store::memory::MemoryBackend;
use common::*;
use fenced::{Fenced, KillAt};
use proptest::prelude::*;
use serde_json::json;
use tokio::sync::Notify;

/// The fault of a create request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    Busy,
    LostBefore,
    LostAfter,
    KilledBefore,
    KilledAfter,
}

/// A ledger with one planned fault for each of its next create requests.
struct Faulty {
    ledger: MemoryLedger,
    plan: Vec<Fault>,
    requests: AtomicUsize,
    killed: Arc<Notify>,
}

impl Faulty {
    fn request<'a, T: Send + 'a>(&'a self, run: impl FnOnce() -> Answer<'a, T> + Send + 'a) -> Answer<'a, T> {
        let number = self.requests.fetch_add(1, Ordering::SeqCst);
        let fault = self.plan.get(number).copied().unwrap_or(Fault::None);
        Box::pin(async move {
            match fault {
                Fault::None => return run().await,
                Fault::Busy => return Err(LedgerError::Busy("planned".to_owned())),
                Fault::LostBefore => return Err(LedgerError::Unknown("planned".to_owned())),
                Fault::LostAfter => {
                    run().await?;
                    return Err(LedgerError::Unknown("planned".to_owned()));
                }
                Fault::KilledBefore => {}
                Fault::KilledAfter => {
                    run().await?;
                }
            }
            self.killed.notify_one();
            std::future::pending().await
        })
    }
}

impl Ledger for Faulty {
    fn create_accounts(&self, events: Vec<Account>) -> Answer<'_, Vec<CreateResult<CreateAccountStatus>>> {
        self.request(move || self.ledger.create_accounts(events))
    }
    fn create_transfers(&self, events: Vec<Transfer>) -> Answer<'_, Vec<CreateResult<CreateTransferStatus>>> {
        self.request(move || self.ledger.create_transfers(events))
    }
    batzen_ledger::delegate_reads!(ledger);
}

/// A client's request. All are idempotent, so that clients can repeat them until they are answered.
#[derive(Clone, Debug)]
enum ClientRequest {
    /// Sends money from the exchange, which has none, or from joe, who has 100. Zero: to themselves.
    Transfer { id: u8, from_joe: bool, to: u8, amount: u8 },
    /// Withdraws with a new operation, and confirms or aborts it.
    Withdraw { amount: u8, confirms: bool },
}

fn client_request() -> impl Strategy<Value = ClientRequest> {
    prop_oneof![
        (0..12_u8, any::<bool>(), 0..3_u8, 0..80_u8)
            .prop_map(|(id, from_joe, to, amount)| ClientRequest::Transfer { id, from_joe, to, amount }),
        (0..80_u8, any::<bool>()).prop_map(|(amount, confirms)| ClientRequest::Withdraw { amount, confirms }),
    ]
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        6 => Just(Fault::None),
        1 => Just(Fault::Busy),
        1 => Just(Fault::LostBefore),
        1 => Just(Fault::LostAfter),
        1 => Just(Fault::KilledBefore),
        1 => Just(Fault::KilledAfter),
    ]
}

const NAMES: [&str; 3] = ["joe", "ann", "exchange"];

/// An answer from a bank that can no longer write means nothing: the client waits for the next process.
async fn answered(reply: Reply) -> common::Answer {
    if reply.status >= 500 { std::future::pending().await } else { common::Answer::of(reply) }
}

/// The answer to a request: status and code, or 200.
type Ends = Arc<Mutex<BTreeMap<usize, (u16, u32)>>>;

struct World {
    store: Arc<MemoryBackend>,
    ledger: Arc<Faulty>,
    /// Whether the ledger is in the bank's own store; then `ledger` holds no money.
    is_joint: bool,
    limit: Option<u8>,
    requests: Vec<ClientRequest>,
    ends: Ends,
    /// The withdrawal operations of the requests.
    operations: Arc<Mutex<BTreeMap<usize, String>>>,
}

impl World {
    fn config(&self) -> BankConfig {
        let debt_limit = self.limit.map(|limit| money(&limit.to_string()));
        BankConfig { debt_limit, ..config() }
    }

    /// One process of the bank: its clients repeat the requests without a final answer. True: all have one,
    /// and the bank ended cleanly.
    fn live(&self, kill: Option<KillAt>) -> bool {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let alive = Arc::new(Mutex::new(true));
        let killed = Arc::clone(&self.ledger.killed);
        let store = Fenced {
            inner: Arc::clone(&self.store),
            alive: Arc::clone(&alive),
            commits: AtomicUsize::new(0),
            kill,
            killed: Arc::clone(&killed),
        };
        let lived = runtime.block_on(async {
            tokio::select! {
                biased;
                () = killed.notified() => false,
                () = self.play(Store::new(store)) => true,
            }
        });
        *alive.lock().unwrap() = false;
        runtime.shutdown_background();
        lived
    }

    async fn play(&self, store: Store) {
        let bank = if self.is_joint {
            let ledger = joint(store);
            // A killed ledger's thread never ends, so nobody waits for it.
            std::mem::forget(Arc::clone(&ledger));
            Bank::start_joint(self.config(), ledger).await.unwrap()
        } else {
            Bank::start_on(self.config(), store, Arc::clone(&self.ledger) as _).await.unwrap()
        };
        let base = format!("http://{}/", bank.addr);
        let client = client();
        for name in NAMES {
            let body = json!({"username": name, "password": "x"});
            let url = format!("{base}taler-bank-access/testing/register");
            let reply = client.post_json(url, &body).await.unwrap();
            assert_eq!(answered(reply).await.status, 204);
        }
        let mut tasks = Vec::new();
        for (index, client_request) in self.requests.iter().cloned().enumerate() {
            if self.ends.lock().unwrap().contains_key(&index) {
                continue;
            }
            let (client, base) = (client.clone(), base.clone());
            let (ends, operations) = (Arc::clone(&self.ends), Arc::clone(&self.operations));
            tasks.push(tokio::spawn(async move {
                let end = match client_request {
                    ClientRequest::Transfer { id, from_joe, to, amount } => {
                        let from = if from_joe { "joe" } else { "exchange" };
                        let url = format!("{base}{from}/");
                        let gateway = WireGatewayClient::new(client, &url, GatewayAuth::None);
                        let request = transfer(id, &amount.to_string(), NAMES[usize::from(to)]);
                        match gateway.transfer(&request).await {
                            Ok(_) => (200, 0),
                            Err(error) if error.status().is_some_and(|status| status < 500) => {
                                refusal(&error)
                            }
                            Err(_) => std::future::pending().await,
                        }
                    }
                    ClientRequest::Withdraw { amount, confirms } => {
                        let known = operations.lock().unwrap().get(&index).cloned();
                        let post = async |path: String, body: serde_json::Value| {
                            answered(client.post_json(format!("{base}{path}"), &body).await.unwrap()).await
                        };
                        let mine = "taler-bank-access/accounts/joe/withdrawals";
                        let wopid = match known {
                            Some(wopid) => wopid,
                            None => {
                                let amount = format!("KUDOS:{amount}");
                                let answer = post(mine.to_owned(), json!({ "amount": amount })).await;
                                answer.body["withdrawal_id"].as_str().unwrap().to_owned()
                            }
                        };
                        operations.lock().unwrap().insert(index, wopid.clone());
                        let number = u8::try_from(index).unwrap();
                        let selection = json!({
                            "reserve_pub": key(number).to_string(), "selected_exchange": payto("exchange")
                        });
                        let url = format!("taler-bank-integration/withdrawal-operation/{wopid}");
                        let selected = post(url, selection).await;
                        assert_eq!(selected.status, 200, "{selected:?}");
                        let verb = if confirms { "confirm" } else { "abort" };
                        let answer = post(format!("{mine}/{wopid}/{verb}"), json!({})).await;
                        let (status, code) = answer.error();
                        (status, u32::try_from(code).unwrap())
                    }
                };
                ends.lock().unwrap().insert(index, end);
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        bank.shutdown().await.unwrap();
    }

    /// The books, and every account's money according to the answers.
    fn check(&self) {
        self.ledger.ledger.verify().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let store = Store::new(Fenced {
            inner: Arc::clone(&self.store),
            alive: Arc::new(Mutex::new(true)),
            commits: AtomicUsize::new(0),
            kill: None,
            killed: Arc::new(Notify::new()),
        });
        let totals = if self.is_joint {
            batzen_ledger_service::store::verify(&store).unwrap();
            runtime.block_on(books::check(&store, joint(store.clone()).as_ref())).unwrap()
        } else {
            runtime.block_on(books::check(&store, self.ledger.as_ref())).unwrap()
        };
        let mut expected: BTreeMap<&str, i64> = NAMES.into_iter().map(|name| (name, 100)).collect();
        let mut paid = BTreeMap::new();
        for (index, client_request) in self.requests.iter().enumerate() {
            let end = self.ends.lock().unwrap()[&index];
            match *client_request {
                ClientRequest::Transfer { id, from_joe, to, amount } => {
                    let request = (from_joe, to, amount);
                    let from = if from_joe { "joe" } else { "exchange" };
                    match end {
                        (200, _) => {
                            // Among requests under one uid, only equal ones succeed, and they move money
                            // once.
                            let first = paid.insert(id, request);
                            assert!(first.is_none_or(|first| first == request));
                            if first.is_none() {
                                *expected.get_mut(from).unwrap() -= i64::from(amount);
                                *expected.get_mut(NAMES[usize::from(to)]).unwrap() += i64::from(amount);
                            }
                        }
                        (409, 5112) => {}
                        (409, 5102) => assert!(self.limit.is_some()),
                        other => panic!("{other:?}"),
                    }
                }
                ClientRequest::Withdraw { amount, confirms } => match (confirms, end) {
                    (true, (200, _)) => {
                        *expected.get_mut("joe").unwrap() -= i64::from(amount);
                        *expected.get_mut("exchange").unwrap() += i64::from(amount);
                    }
                    (false, (200, _)) => {}
                    (true, (409, 5102)) => assert!(self.limit.is_some()),
                    other => panic!("{other:?}"),
                },
            }
        }
        for (name, balance) in expected {
            let account = totals.accounts.iter().find(|account| account.name == name).unwrap();
            let (negative, size) = account.balance();
            let size = i64::try_from(size.value()).unwrap();
            assert_eq!(if negative { -size } else { size }, balance, "{name}");
            assert!(self.limit.is_none_or(|limit| balance >= -i64::from(limit)), "{name} has {balance}");
        }
    }
}

const NOW_NS: u64 = 1_700_000_000_000_000_000;

/// The ledger in a bank's store.
fn joint(store: Store) -> Arc<DurableLedger> {
    Arc::new(DurableLedger::start(store, || NOW_NS, DurableOptions::default()).unwrap())
}

fn run(limit: Option<u8>, requests: Vec<ClientRequest>, plan: Vec<Fault>, kills: &[KillAt]) {
    run_in(false, limit, requests, plan, kills);
}

fn run_in(
    is_joint: bool,
    limit: Option<u8>,
    requests: Vec<ClientRequest>,
    plan: Vec<Fault>,
    kills: &[KillAt],
) {
    let ledger = MemoryLedger::new(|| NOW_NS);
    let is_kill = |fault: &&Fault| matches!(fault, Fault::KilledBefore | Fault::KilledAfter);
    let lives = plan.iter().filter(is_kill).count() + kills.len();
    let killed = Arc::new(Notify::new());
    let ledger = Arc::new(Faulty { ledger, plan, requests: AtomicUsize::new(0), killed });
    let (ends, operations) = Default::default();
    let store = Arc::new(MemoryBackend::new());
    let world = World { store, ledger, is_joint, limit, requests, ends, operations };
    let mut kills = kills.iter().copied();
    let lived = (0..=lives).any(|_| world.live(kills.next()));
    assert!(lived, "a bank that nobody kills lives on");
    world.check();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn money_moves_exactly_once_whatever_fails(
        limit in prop::option::of(0..60_u8),
        requests in prop::collection::vec(client_request(), 1..14),
        plan in prop::collection::vec(fault(), 0..24),
        kills in prop::collection::vec((0..24_usize, any::<bool>()), 0..4),
    ) {
        let kill = |(commit, is_durable)| KillAt { commit, is_durable };
        run(limit, requests, plan, &kills.into_iter().map(kill).collect::<Vec<_>>());
    }

    #[test]
    fn money_moves_exactly_once_with_the_ledger_in_the_same_store(
        limit in prop::option::of(0..60_u8),
        requests in prop::collection::vec(client_request(), 1..14),
        kills in prop::collection::vec((0..24_usize, any::<bool>()), 0..6),
    ) {
        let kill = |(commit, is_durable)| KillAt { commit, is_durable };
        let kills: Vec<_> = kills.into_iter().map(kill).collect();
        run_in(true, limit, requests, Vec::new(), &kills);
    }
}

/// The bank is killed at each of the ledger's requests and at each of its own commits, before and after they
/// take effect, one after the other.
#[test]
fn a_kill_at_every_boundary_loses_nothing() {
    let requests = || {
        vec![
            ClientRequest::Transfer { id: 1, from_joe: true, to: 1, amount: 60 },
            ClientRequest::Transfer { id: 2, from_joe: true, to: 0, amount: 10 },
            ClientRequest::Withdraw { amount: 30, confirms: true },
            ClientRequest::Withdraw { amount: 20, confirms: false },
            ClientRequest::Transfer { id: 3, from_joe: false, to: 0, amount: 70 },
        ]
    };
    for at in 0..24 {
        for kill in [Fault::KilledBefore, Fault::KilledAfter] {
            let mut plan = vec![Fault::None; at];
            plan.push(kill);
            run(Some(10), requests(), plan, &[]);
        }
    }
    for commit in 0..32 {
        for is_durable in [false, true] {
            run(Some(10), requests(), Vec::new(), &[KillAt { commit, is_durable }]);
            run_in(true, Some(10), requests(), Vec::new(), &[KillAt { commit, is_durable }]);
        }
    }
    run(None, requests(), vec![Fault::KilledAfter; 12], &[]);
}
