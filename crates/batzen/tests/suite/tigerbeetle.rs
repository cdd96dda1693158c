//! TigerBeetle as the ledger: conformance, bank, switch and measurement on the real server, and `kill -9` of servers and
//! clients. `BATZEN_TEST_TIGERBEETLE` names its program; without it, none of these tests runs
//! (`make tigerbeetle-test TIGERBEETLE=…`).

use crate::common;
use crate::crash::transfers::{ACCOUNTS, Dice, Statuses, accounts, batch, create};
use crate::ledger_elsewhere::{self, Elsewhere};

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use batzen_ledger::{
    Account, AccountFlags, BATCH_EVENTS_MAX, CreateTransferStatus, Ledger, QueryFilter, Transfer,
    TransferFlags,
};
use batzen_ledger_service::net::LedgerClient;
use batzen_ledger_service::net::tigerbeetle::{TigerBeetle, connect};
use common::{PATIENCE, Service, free_port, run, run_lab, stderr};
use serde_json::Value;

/// A server of its own for a test, with a cluster of one replica.
struct Server {
    program: PathBuf,
    dir: tempfile::TempDir,
    port: u16,
    process: Option<Service>,
}

impl Server {
    /// Starts a server. `None`: there is no program.
    fn new() -> Option<Self> {
        static SAID: Once = Once::new();
        let Some(program) = std::env::var_os("BATZEN_TEST_TIGERBEETLE") else {
            // Past the test harness, which would swallow it.
            SAID.call_once(|| {
                let line = "the tests on TigerBeetle did not run: BATZEN_TEST_TIGERBEETLE names no program\n";
                std::io::stderr().write_all(line.as_bytes()).unwrap();
            });
            return None;
        };
        let mut server = Self {
            program: program.into(),
            dir: tempfile::tempdir().unwrap(),
            port: free_port(),
            process: None,
        };
        let file = server.file();
        let output = Command::new(&server.program)
            .args(["format", "--cluster=7", "--replica=0", "--replica-count=1", &file])
            .output()
            .unwrap_or_else(|error| panic!("{}: {error}", server.program.display()));
        assert!(output.status.success(), "{}", stderr(&output));
        server.start();
        Some(server)
    }

    fn file(&self) -> String {
        self.dir.path().join("7_0.tigerbeetle").to_str().unwrap().to_owned()
    }

    fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The client that this process shares.
    async fn connect(&self) -> Arc<LedgerClient> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match connect(TigerBeetle::new(7, &format!("127.0.0.1:{}", self.port))).await {
                Ok(client) => return client,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
        }
    }
}

impl Elsewhere for Server {
    fn url(&self) -> String {
        format!("tigerbeetle://7@127.0.0.1:{}", self.port)
    }

    fn start(&mut self) {
        let mut command = Command::new(&self.program);
        let addresses = format!("--addresses=127.0.0.1:{}", self.port);
        command.args(["start", &addresses, "--cache-grid=64MiB", &self.file()]);
        self.process = Some(Service::start_command(self.dir.path(), "tigerbeetle", command));
    }

    fn process(&mut self) -> &mut Service {
        self.process.as_mut().unwrap()
    }
}

/// A number of the process's status, such as its threads.
fn status(process: u32, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tigerbeetle_conforms() {
    let Some(server) = Server::new() else { return };
    let ledger = server.connect().await;
    let base = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() << 32;
    batzen_ledger::conformance::check(ledger.as_ref(), base, async |time: Duration| {
        // The release may lag behind the expiry.
        tokio::time::sleep(time + Duration::from_secs(2)).await;
    })
    .await;
}

/// A thousand clients had a session, a thread and 20 MB each.
#[test]
fn a_thousand_clients_of_tigerbeetle_share_a_session() {
    let Some(server) = Server::new() else { return };
    let url = server.url();
    let out = server.dir().join("result");
    let words = ["ledger", "bench", "--transfers", "20000", "--batch", "1", "--clients", "1000"];
    let words = [&words[..], &["--ledger", &url, "--out", out.to_str().unwrap()]].concat();
    tokio::runtime::Runtime::new().unwrap().block_on(server.connect());
    let mut bench = Service::start_lab(server.dir(), "bench", &words);
    let (mut threads, mut kib) = (0, 0);
    let deadline = Instant::now() + PATIENCE;
    let ended = loop {
        threads = threads.max(status(bench.child.id(), "Threads").unwrap_or(0));
        kib = kib.max(status(bench.child.id(), "VmHWM").unwrap_or(0));
        if let Some(status) = bench.child.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < deadline, "the measurement does not end");
        std::thread::sleep(Duration::from_millis(5));
    };
    let log = std::fs::read_to_string(server.dir().join("bench.log")).unwrap();
    assert!(ended.success(), "{ended}: {log}");
    // Main, signals and sessions; and one of load for each processor.
    let processors = std::thread::available_parallelism().unwrap().get() as u64;
    assert!((2..=12 + 2 * processors).contains(&threads), "{threads} threads");
    assert!((1..400 << 10).contains(&kib), "{kib} KiB");
    println!("1,000 clients: {threads} threads, {} MiB", kib >> 10);
}

#[test]
fn a_missing_tigerbeetle_is_named() {
    let Some(mut server) = Server::new() else { return };
    server.process().kill_9();
    let url = server.url();
    for words in [
        &["ledger", "client", "--ledger", &url, "lookup-accounts", "1"][..],
        &["ledger", "bench", "--ledger", &url, "--out", server.dir().join("result").to_str().unwrap()],
    ] {
        let output = if words.contains(&"bench") { run_lab(words) } else { run(words) };
        let address = format!("TigerBeetle at 127.0.0.1:{}", server.port);
        assert!(!output.status.success() && stderr(&output).contains(&address), "{}", stderr(&output));
    }
}

/// A cluster for development takes smaller messages than those in which requests of many callers are sent.
#[test]
fn a_tigerbeetle_with_small_messages_is_refused() {
    let Some(mut server) = Server::new() else { return };
    server.process().kill_9();
    let mut command = Command::new(&server.program);
    let addresses = format!("--addresses=127.0.0.1:{}", server.port);
    command.args(["start", &addresses, "--development", &server.file()]);
    server.process = Some(Service::start_command(server.dir(), "tigerbeetle", command));
    let deadline = Instant::now() + PATIENCE;
    loop {
        let output = run(&["ledger", "client", "--ledger", &server.url(), "lookup-accounts", "1"]);
        assert!(!output.status.success());
        if stderr(&output).contains("--development") {
            return;
        }
        assert!(Instant::now() < deadline, "{}", stderr(&output));
    }
}

#[test]
fn a_measurement_ends_while_tigerbeetle_is_silent() {
    let Some(mut server) = Server::new() else { return };
    let dir = server.dir().to_owned();
    ledger_elsewhere::a_measurement_ends(&dir, &mut server);
}

#[test]
fn services_end_while_tigerbeetle_is_silent() {
    let Some(mut server) = Server::new() else { return };
    let dir = server.dir().to_owned();
    ledger_elsewhere::services_end(&dir, &mut server);
}

#[test]
fn the_demonstrations_add_up_on_tigerbeetle() {
    let Some(server) = Server::new() else { return };
    let output = run(&["demo", "--once", "--json", "--rsa-bits", "1024", "--ledger", &server.url()]);
    assert!(output.status.success(), "{}{}", common::stdout(&output), stderr(&output));
    let results: Value = serde_json::from_str(&common::stdout(&output)).unwrap();
    let balance = &results["balance"];
    assert_eq!((&balance["conserved"], &balance["bank_and_ledger_agree"]), (&true.into(), &true.into()));
    drop(server);

    let Some(server) = Server::new() else { return };
    let day = server.dir().join("day");
    let words =
        ["switch", "demo", "--once", "--json", "--data", day.to_str().unwrap(), "--ledger", &server.url()];
    let output = run_lab(&words);
    assert!(output.status.success(), "{}{}", common::stdout(&output), stderr(&output));
    let results: Value = serde_json::from_str(&common::stdout(&output)).unwrap();
    let balance = &results["balance"];
    assert_eq!((&balance["conserved"], &balance["committed"]), (&true.into(), &42.into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_bank_goes_on_when_tigerbeetle_is_killed() {
    let Some(mut server) = Server::new() else { return };
    ledger_elsewhere::the_bank_goes_on(&mut server).await;
}

#[test]
fn a_switch_goes_on_when_tigerbeetle_is_killed() {
    let Some(mut server) = Server::new() else { return };
    let dir = server.dir().to_owned();
    ledger_elsewhere::the_switch_goes_on(&dir, &mut server);
}

/// One client of the load: repeats each batch until it is answered.
async fn load(
    ledger: Arc<LedgerClient>,
    number: u64,
    seed: u64,
    ends: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
) -> Statuses {
    let mut dice = Dice(seed ^ (number << 48));
    let (mut statuses, mut reserved) = (Statuses::new(), Vec::new());
    let mut next_id = u128::from(number + 1) << 64;
    while !ends.load(Ordering::SeqCst) {
        let events = batch(&mut dice, 50, &mut next_id, &mut reserved);
        let results = create(&ledger, &events).await;
        statuses.extend(events.iter().zip(results).map(|(event, status)| (event.id, status)));
        count.fetch_add(1, Ordering::SeqCst);
    }
    statuses
}

/// All transfers of the cluster.
async fn all_transfers(ledger: &LedgerClient) -> Vec<Transfer> {
    let limit = u32::try_from(BATCH_EVENTS_MAX).unwrap();
    let mut all: Vec<Transfer> = Vec::new();
    loop {
        let timestamp_min = all.last().map_or(0, |transfer| transfer.timestamp + 1);
        let page = ledger
            .query_transfers(QueryFilter { limit, timestamp_min, ..QueryFilter::default() })
            .await
            .unwrap();
        if page.is_empty() {
            return all;
        }
        all.extend(page);
    }
}

/// Contradictions between the answers, the transfers of the cluster, and its balances.
fn problems(statuses: &Statuses, transfers: &[Transfer], accounts: &[Account]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut by_id: BTreeMap<u128, &Transfer> = BTreeMap::new();
    let mut sums: BTreeMap<u128, Account> = BTreeMap::new();
    for transfer in transfers {
        if by_id.insert(transfer.id, transfer).is_some() {
            problems.push(format!("{:x} is there twice", transfer.id));
        }
        if !statuses.contains_key(&transfer.id) {
            problems.push(format!("{:x} was never requested", transfer.id));
        }
        let is_post = transfer.flags.contains(TransferFlags::POST_PENDING_TRANSFER);
        let reserved =
            if is_post { by_id.get(&transfer.pending_id).map_or(0, |pending| pending.amount) } else { 0 };
        let is_pending = transfer.flags.contains(TransferFlags::PENDING);
        let debit = sums.entry(transfer.debit_account_id).or_default();
        debit.debits_pending = debit.debits_pending + if is_pending { transfer.amount } else { 0 } - reserved;
        debit.debits_posted += if is_pending { 0 } else { transfer.amount };
        let credit = sums.entry(transfer.credit_account_id).or_default();
        credit.credits_pending =
            credit.credits_pending + if is_pending { transfer.amount } else { 0 } - reserved;
        credit.credits_posted += if is_pending { 0 } else { transfer.amount };
    }
    for (id, status) in statuses {
        if status.stands() != by_id.contains_key(id) {
            problems
                .push(format!("{id:x} was answered {status}; in the cluster: {}", by_id.contains_key(id)));
        }
    }
    for account in accounts {
        let of = |account: &Account| {
            [account.debits_pending, account.debits_posted, account.credits_pending, account.credits_posted]
        };
        let sum = sums.get(&account.id).map_or([0; 4], of);
        if of(account) != sum {
            problems.push(format!("account {} has {:?}, its transfers {sum:?}", account.id, of(account)));
        }
        let is_limited = account.flags.contains(AccountFlags::DEBITS_MUST_NOT_EXCEED_CREDITS);
        if is_limited && account.debits_pending + account.debits_posted > account.credits_posted {
            problems.push(format!("account {} is overdrawn", account.id));
        }
    }
    problems
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_tigerbeetle_forgets_nothing() {
    let Some(mut server) = Server::new() else { return };
    let cycles = crate::crash::run::number("BATZEN_SOAK_CYCLES").unwrap_or(5);
    let seed = crate::crash::run::seed("BATZEN_SOAK_SEED");
    let ledger = server.connect().await;
    ledger.create_accounts(accounts()).await.unwrap();
    let (ends, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let clients: Vec<_> = (0..8)
        .map(|number| {
            tokio::spawn(load(Arc::clone(&ledger), number, seed, Arc::clone(&ends), Arc::clone(&count)))
        })
        .collect();
    let mut dice = Dice(seed);
    for cycle in 0..=cycles {
        let (before, deadline) = (count.load(Ordering::SeqCst), Instant::now() + PATIENCE);
        while count.load(Ordering::SeqCst) < before + 50 {
            server.process().assert_runs();
            assert!(Instant::now() < deadline, "TigerBeetle does not answer");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if cycle < cycles {
            tokio::time::sleep(Duration::from_millis(dice.below(800))).await;
            server.kill_9_and_start();
        }
    }
    ends.store(true, Ordering::SeqCst);
    let mut statuses = Statuses::new();
    for client in clients {
        statuses.extend(client.await.unwrap());
    }
    let transfers = all_transfers(&ledger).await;
    let accounts = ledger.lookup_accounts((1..=ACCOUNTS).collect()).await.unwrap();
    let found = problems(&statuses, &transfers, &accounts);
    assert!(found.is_empty(), "{} problems, the first: {:#?}", found.len(), &found[..found.len().min(20)]);
    // The proof can fail.
    let mut claims = statuses.clone();
    claims.insert(77, CreateTransferStatus::Created);
    assert_eq!(problems(&claims, &transfers, &accounts).len(), 1);
    assert!(!problems(&statuses, &transfers[..transfers.len() - 1], &accounts).is_empty());
    let standing = statuses.values().filter(|status| status.stands()).count();
    println!("{cycles} kills; {} transfers answered, {standing} stand; lost 0, twice 0", statuses.len());
}

/// A client process that is killed after some answers: what it acknowledged stands, and the rest can be repeated.
#[test]
fn a_killed_client_of_tigerbeetle_leaves_no_doubt() {
    const TRANSFERS: u32 = 3000;
    let Some(server) = Server::new() else { return };
    let url = server.url();
    let create = ["create-accounts", "id=1 ledger=1 code=1, id=2 ledger=1 code=1"];
    let deadline = Instant::now() + PATIENCE;
    while !run(&[&["ledger", "client", "--ledger", &url][..], &create].concat()).status.success() {
        assert!(Instant::now() < deadline, "TigerBeetle does not answer");
    }
    let mut script: String = (1..=TRANSFERS)
        .map(|id| {
            format!(
                "create_transfers id={id} debit_account_id=1 credit_account_id=2 amount=1 ledger=1 code=1;\n"
            )
        })
        .collect();
    script.push_str("exit\n");
    // How many answers each process gives before it is killed; the last one gives all.
    let mut acknowledged = 0;
    for answers in [700, 1500, 2200, TRANSFERS] {
        let mut process = common::batzen()
            .args(["ledger", "repl", "--json", "--ledger", &url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let script = script.clone();
        // A killed process no longer reads.
        let writer = std::thread::spawn(move || drop(input.write_all(script.as_bytes())));
        let before = acknowledged;
        for (number, line) in (1..=answers).zip(BufReader::new(output).lines()) {
            let answer: Value = serde_json::from_str(&line.unwrap()).unwrap();
            if number <= before {
                assert_eq!(answer["status"], "exists", "{number} was acknowledged: {answer}");
            } else {
                let status = answer["status"].as_str().unwrap();
                // The killed process may have sent a few that it did not answer.
                assert!(["created", "exists"].contains(&status), "{number}: {answer}");
            }
            acknowledged = acknowledged.max(number);
        }
        assert_eq!(acknowledged, answers, "the answers end too early");
        process.kill().unwrap();
        process.wait().unwrap();
        writer.join().unwrap();
    }
    let output = run(&["ledger", "client", "--ledger", &url, "--json", "lookup-accounts", "1"]);
    let account: Value = serde_json::from_str(common::stdout(&output).lines().next().unwrap()).unwrap();
    assert_eq!(account["debits_posted"], TRANSFERS.to_string(), "{account}");
}
