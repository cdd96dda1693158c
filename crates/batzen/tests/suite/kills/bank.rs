//! The bank under transfers from an exchange and credits to it.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use batzen_bank::books;
use batzen_crypto::{EddsaPublicKey, HashCode, Wtid};
use batzen_http::client::{Client, ClientError, ClientOptions};
use batzen_protocol::{Amount, ErrorCode};
use batzen_service::wire_gateway::{
    AddIncomingRequest, GatewayAuth, HistoryQuery, TransactionResponse, TransferRequest, WireGatewayClient,
};

use tokio::task::{JoinHandle, JoinSet};

use crate::common::PATIENCE;
use crate::crash::coins::{CURRENCY, money};
use crate::crash::customers::Dice;
use crate::crash::deployment::Deployment;
use crate::kills::kill_point::kill_at_random_point;
use crate::kills::score::Score;

/// The number of kills before the complete proof and a new bank.
const ROUND: u64 = 250;
const AUDIT_CYCLES: u64 = 20;
const CLIENTS: usize = 4;
/// The pause of a client between two requests.
const PAUSE: Duration = Duration::from_millis(2);
const PAGE: i64 = 500;
/// The number of orders audited at the same time.
const AUDIT_BATCH: u64 = 16;
/// Clients wait while more acknowledged orders than this have not been audited.
const UNSEEN_MAX: u64 = 400;

#[derive(Clone)]
enum Order {
    Out(TransferRequest),
    In(AddIncomingRequest),
}

impl Order {
    fn name(&self) -> String {
        match self {
            Self::Out(request) => format!("transfer {}", request.wtid),
            Self::In(request) => format!("credit {}", request.reserve_pub),
        }
    }

    const fn amount(&self) -> Amount {
        match self {
            Self::Out(request) => request.amount,
            Self::In(request) => request.amount,
        }
    }
}

/// All orders, each with its answer if it came, and the numbers of the answered ones in the order of the
/// answers.
#[derive(Default)]
struct Log {
    orders: Vec<(Order, Option<TransactionResponse>)>,
    acknowledged: Vec<usize>,
}

struct Load {
    gateway: WireGatewayClient,
    log: Mutex<Log>,
    /// Acknowledged orders that are due for audit, and those that have been audited.
    mark: AtomicU64,
    seen: AtomicU64,
    ends: AtomicBool,
}

fn payto(account: &str) -> String {
    format!("payto://x-taler-bank/localhost/{account}?receiver-name={account}")
}

impl Load {
    fn new(bank_url: &str) -> Self {
        let url = format!("{bank_url}taler-wire-gateway/exchange/");
        let client = Client::new(&ClientOptions::default()).unwrap();
        // Transfers share one connection, like those of an exchange.
        let gateway =
            WireGatewayClient::new(client, &url, GatewayAuth::None).with_transfer_connections(CLIENTS);
        Self {
            gateway,
            log: Mutex::default(),
            mark: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            ends: AtomicBool::new(false),
        }
    }

    /// Starts the clients of a running bank, and the audit of what is acknowledged.
    fn start(
        bank_url: &str,
        dice: &mut Dice,
        score: &Arc<Score>,
    ) -> (Arc<Self>, JoinSet<()>, JoinHandle<()>) {
        let load = Arc::new(Self::new(bank_url));
        let clients = (0..CLIENTS).map(|_| Arc::clone(&load).client(dice.child())).collect();
        let auditor = tokio::spawn(Arc::clone(&load).audit_all(Arc::clone(score)));
        (load, clients, auditor)
    }

    /// Lets the clients finish, and the auditor see everything.
    async fn end(&self, clients: JoinSet<()>, auditor: JoinHandle<()>) {
        self.ends.store(true, Ordering::SeqCst);
        clients.join_all().await;
        self.due();
        auditor.await.unwrap();
    }

    fn acknowledged(&self) -> u64 {
        self.log.lock().unwrap().acknowledged.len() as u64
    }

    /// Retries until there is an answer. `None`: this credit was made before.
    async fn ask(&self, order: &Order) -> Result<Option<TransactionResponse>, String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = match order {
                Order::Out(request) => self.gateway.transfer(request).await,
                Order::In(request) => self.gateway.add_incoming(request).await,
            };
            match answer {
                Ok(answer) => return Ok(Some(answer)),
                Err(error) if error.code() == Some(ErrorCode::BANK_DUPLICATE_RESERVE_PUB_SUBJECT) => {
                    return Ok(None);
                }
                Err(error) if error.is_transient() || matches!(error, ClientError::Connect { .. }) => {}
                Err(error) => return Err(error.to_string()),
            }
            assert!(Instant::now() < deadline, "the bank does not answer");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// One client: new orders, each repeated until there is an answer.
    async fn client(self: Arc<Self>, mut dice: Dice) {
        while !self.ends.load(Ordering::SeqCst) {
            if self.acknowledged() > self.seen.load(Ordering::SeqCst) + UNSEEN_MAX {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            let amount = money(&(1 + dice.below(200)).to_string()).of(CURRENCY);
            let account = payto(&format!("account-{}", dice.below(16)));
            let order = if dice.one_in(4) {
                let reserve_pub = EddsaPublicKey::from_bytes(std::array::from_fn(|_| dice.byte()));
                Order::In(AddIncomingRequest { amount, reserve_pub, debit_account: account })
            } else {
                Order::Out(TransferRequest {
                    request_uid: HashCode::from_bytes(std::array::from_fn(|_| dice.byte())),
                    amount,
                    exchange_base_url: "http://exchange.test/".to_owned(),
                    wtid: Wtid::from_bytes(std::array::from_fn(|_| dice.byte())),
                    credit_account: account,
                })
            };
            let number = {
                let mut log = self.log.lock().unwrap();
                log.orders.push((order.clone(), None));
                log.orders.len() - 1
            };
            // A credit that was made before has no answer to compare with.
            if let Some(answer) = self.ask(&order).await.unwrap_or_else(|error| panic!("{error}")) {
                let mut log = self.log.lock().unwrap();
                log.orders[number].1 = Some(answer);
                log.acknowledged.push(number);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Makes everything acknowledged so far due for audit.
    fn due(&self) {
        self.mark.store(self.acknowledged(), Ordering::SeqCst);
    }

    fn is_due(&self) -> bool {
        self.seen.load(Ordering::SeqCst) < self.mark.load(Ordering::SeqCst)
    }

    /// Audits due orders until the load has ended and none are left.
    async fn audit_all(self: Arc<Self>, score: Arc<Score>) {
        loop {
            // In this order, because the end comes before the last mark.
            let is_last = self.ends.load(Ordering::SeqCst);
            let (from, mark) = (self.seen.load(Ordering::SeqCst), self.mark.load(Ordering::SeqCst));
            if from == mark {
                if is_last && mark == self.acknowledged() {
                    return;
                }
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            let to = mark.min(from + AUDIT_BATCH);
            let mut audits = JoinSet::new();
            for place in from..to {
                let (order, answer) = {
                    let log = self.log.lock().unwrap();
                    log.orders[log.acknowledged[usize::try_from(place).unwrap()]].clone()
                };
                let load = Arc::clone(&self);
                audits.spawn(async move { load.audit(&order, &answer.expect("it was acknowledged")).await });
            }
            let found: Vec<String> = audits.join_all().await.into_iter().flatten().collect();
            score.repeated(to - from, &found);
            self.seen.store(to, Ordering::SeqCst);
        }
    }

    async fn row(&self, order: &Order, row_id: u64) -> bool {
        let query = HistoryQuery { start: Some(row_id - 1), delta: 1, long_poll_ms: 0 };
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = match order {
                Order::Out(request) => self.gateway.history_outgoing(query).await.map(|rows| {
                    rows.first().is_some_and(|row| (row.row_id, row.wtid) == (row_id, request.wtid))
                }),
                Order::In(request) => self.gateway.history_incoming(query).await.map(|rows| {
                    rows.first()
                        .is_some_and(|row| (row.row_id, row.reserve_pub) == (row_id, request.reserve_pub))
                }),
            };
            match found {
                Ok(found) => return found,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Looks for the row of an acknowledged order, and repeats the order. Returns any problem.
    async fn audit(&self, order: &Order, known: &TransactionResponse) -> Option<String> {
        let name = order.name();
        if !self.row(order, known.row_id).await {
            return Some(format!("{name} was lost: no row {}", known.row_id));
        }
        match (order, self.ask(order).await) {
            (_, Err(error)) => Some(format!("{name} was lost: {error}")),
            (Order::Out(_), Ok(answer)) if answer.as_ref() == Some(known) => None,
            (Order::In(_), Ok(None)) => None,
            (_, Ok(answer)) => Some(format!("{name} was answered {known:?}, repeated {answer:?}")),
        }
    }
}

/// The load on a bank with its ledger elsewhere, while `kill` kills something and starts it again, until as many
/// cycles are done. Returns the number of acknowledged orders and all problems.
pub(crate) async fn prove_on_ledger(
    deployment: &mut Deployment,
    mut dice: Dice,
    cycles: u64,
    mut kill: impl FnMut(&mut Deployment, u64),
) -> (u64, Vec<String>) {
    let score = Arc::new(Score::new("bank", cycles));
    deployment.start_bank().await;
    let (load, clients, auditor) = Load::start(&deployment.bank_url(), &mut dice, &score);
    for cycle in 1..=cycles {
        // A service that starts slowly is killed only once it works again.
        let (before, deadline) = (load.acknowledged(), Instant::now() + PATIENCE);
        while load.acknowledged() < before + 20 {
            assert!(Instant::now() < deadline, "the bank answers nothing any more");
            assert!(!auditor.is_finished(), "the auditor has found something");
            // What was acknowledged before the last kill is audited, which makes room for new orders.
            load.due();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(Duration::from_millis(dice.below(500))).await;
        tokio::task::block_in_place(|| kill(deployment, cycle));
        load.due();
    }
    load.end(clients, auditor).await;
    let found = complete(&load).await;
    (load.acknowledged(), found)
}

pub(super) async fn round(score: &Arc<Score>, dice: &mut Dice, is_first: bool) {
    let mut deployment = Deployment::new(crate::crash::run::client());
    deployment.start_bank().await;
    let (load, clients, auditor) = Load::start(&deployment.bank_url(), dice, score);
    for cycle in 1..=score.left().min(ROUND) {
        let report = tokio::task::block_in_place(|| {
            kill_at_random_point(deployment.bank(), dice, &|| load.acknowledged())
        });
        load.due();
        deployment.launch_bank();
        score.add_kill(report);
        assert!(!auditor.is_finished(), "the auditor has found something");
        let deadline = Instant::now() + PATIENCE;
        while cycle % AUDIT_CYCLES == 0 && load.is_due() {
            assert!(!auditor.is_finished(), "the auditor has found something");
            assert!(Instant::now() < deadline, "the auditor gets no answers");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    load.end(clients, auditor).await;
    score.acknowledged(load.acknowledged());

    let mut found = complete(&load).await;
    if is_first {
        let planted = Order::Out(TransferRequest {
            request_uid: HashCode::random(),
            amount: money("1").of(CURRENCY),
            exchange_base_url: "http://exchange.test/".to_owned(),
            wtid: Wtid::from_bytes([9; 32]),
            credit_account: payto("nobody"),
        });
        // A kill may have cost any single order its answer, including the first.
        let answered = load.log.lock().unwrap().orders.iter().find_map(|(_, answer)| answer.clone());
        let answer = answered.expect("an order has an answer");
        assert!(load.audit(&planted, &answer).await.is_some(), "an invented transfer is not found");
        load.log.lock().unwrap().orders.push((planted, Some(answer)));
        assert_eq!(complete(&load).await.len(), found.len() + 1, "an invented transfer is not found");
        load.log.lock().unwrap().orders.pop();
    }
    deployment.stop();
    let bank = deployment.bank_books();
    found.extend(books::check(&bank.store, bank.ledger.as_ref()).await.err().map(|error| error.to_string()));
    bank.close();
    score.proven(&found);
}

/// A page of one of the histories: the name of the order, the number and the amount of each row.
async fn page(load: &Load, is_out: bool, start: Option<u64>) -> Vec<(String, u64, Amount)> {
    let query = HistoryQuery { start, delta: PAGE, long_poll_ms: 0 };
    if is_out {
        let rows = load.gateway.history_outgoing(query).await.unwrap();
        rows.into_iter().map(|row| (format!("transfer {}", row.wtid), row.row_id, row.amount)).collect()
    } else {
        let rows = load.gateway.history_incoming(query).await.unwrap();
        rows.into_iter().map(|row| (format!("credit {}", row.reserve_pub), row.row_id, row.amount)).collect()
    }
}

/// Compares both histories with all orders: each is there once, and nothing else is. Returns all problems.
async fn complete(load: &Load) -> Vec<String> {
    let mut problems = Vec::new();
    let mut booked = HashMap::new();
    for is_out in [true, false] {
        let mut start = None;
        loop {
            let rows = page(load, is_out, start).await;
            let Some((_, last, _)) = rows.last() else { break };
            start = Some(*last);
            for (name, row_id, amount) in rows {
                if booked.insert(name.clone(), (row_id, amount)).is_some() {
                    problems.push(format!("{name} was made twice"));
                }
            }
        }
    }
    let mut ordered = HashSet::new();
    for (order, answer) in &load.log.lock().unwrap().orders {
        let (name, amount) = (order.name(), order.amount());
        match booked.get(&name) {
            None => problems.push(format!("{name} was lost")),
            Some((row_id, shown)) => {
                if *shown != amount || answer.as_ref().is_some_and(|answer| answer.row_id != *row_id) {
                    problems.push(format!(
                        "{name} of {amount} was answered {answer:?}, but is row {row_id} of {shown}"
                    ));
                }
            }
        }
        ordered.insert(name);
    }
    let unordered = booked.keys().filter(|name| !ordered.contains(*name));
    problems.extend(unordered.map(|name| format!("{name} was not ordered")));
    problems
}
