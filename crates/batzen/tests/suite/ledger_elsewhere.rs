//! Bank, switch and measurement with their money in a ledger elsewhere: they go on when it is killed, and end when they
//! are told to although it is silent. `tigerbeetle.rs` plays the same scenes with TigerBeetle.

use crate::common;
use crate::crash::deployment::Deployment;
use crate::crash::hub::Switch;
use crate::crash::run;
use crate::{crash_switch, kills};

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use batzen_ledger::QueryFilter;
use common::{PATIENCE, Service, free_port, until};

const SIGSTOP: i32 = 19;
const SIGCONT: i32 = 18;
const SIGTERM: i32 = 15;
/// The exit code of an interrupted measurement.
const INTERRUPTED: i32 = 130;
/// A process that is told to end must not wait for a silent ledger, which the client gives up after 30 s.
const PROMPT: Duration = Duration::from_secs(20);

/// A ledger in a process of its own, on a fixed port.
pub(crate) trait Elsewhere {
    fn url(&self) -> String;
    fn start(&mut self);
    fn process(&mut self) -> &mut Service;

    /// Kills it under load, and starts it again.
    fn kill_9_and_start(&mut self) {
        self.process().assert_runs();
        self.process().kill_9();
        self.start();
    }
}

/// `batzen ledger serve`.
struct Own {
    dir: PathBuf,
    port: u16,
    process: Option<Service>,
}

impl Own {
    fn new(dir: &Path) -> Self {
        let mut own = Self { dir: dir.to_owned(), port: free_port(), process: None };
        own.start();
        own
    }
}

impl Elsewhere for Own {
    fn url(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.port)
    }

    fn start(&mut self) {
        let (data, tcp) = (self.dir.join("elsewhere"), format!("127.0.0.1:{}", self.port));
        let words = ["ledger", "serve", "--data", data.to_str().unwrap(), "--tcp", &tcp];
        self.process = Some(Service::start(&self.dir, "elsewhere", &words));
    }

    fn process(&mut self) -> &mut Service {
        self.process.as_mut().unwrap()
    }
}

/// Waits for a process that was told to end.
fn ends_promptly(process: &mut Service) -> std::process::ExitStatus {
    let deadline = Instant::now() + PROMPT;
    loop {
        if let Some(status) = process.child.try_wait().unwrap() {
            return status;
        }
        assert!(Instant::now() < deadline, "it waits for the ledger");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A measurement ends on SIGTERM while the ledger is silent in the midst of it.
pub(crate) fn a_measurement_ends(dir: &Path, ledger: &mut impl Elsewhere) {
    let url = ledger.url();
    let words = [
        "ledger",
        "bench",
        "--batch",
        "1",
        "--clients",
        "100",
        "--transfers",
        "1000000000",
        "--accounts",
        "10",
    ];
    let mut words = words.to_vec();
    let out = dir.join("result");
    words.extend(["--ledger", &url, "--out", out.to_str().unwrap()]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // A measurement does not wait for a ledger that is starting.
    let client =
        runtime.block_on(batzen_ledger_service::net::connect_when_ready(&url.parse().unwrap())).unwrap();
    let mut bench = Service::start_lab(dir, "bench", &words);
    let deadline = Instant::now() + PATIENCE;
    let any = QueryFilter { limit: 1, ..QueryFilter::default() };
    while runtime.block_on(client.query_transfers(any)).unwrap().is_empty() {
        bench.assert_runs();
        assert!(Instant::now() < deadline, "the measurement does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    ledger.process().signal(SIGSTOP);
    std::thread::sleep(Duration::from_millis(500));
    bench.assert_runs();
    bench.signal(SIGTERM);
    let status = ends_promptly(&mut bench);
    ledger.process().signal(SIGCONT);
    let log = std::fs::read_to_string(dir.join("bench.log")).unwrap();
    assert_eq!(status.code(), Some(INTERRUPTED), "{log}");
}

/// Bank and switch end on SIGTERM while the ledger is silent, and say that it is.
pub(crate) fn services_end(dir: &Path, ledger: &mut impl Elsewhere) {
    let url = ledger.url();
    let (bank_port, data) = (free_port(), dir.join("bank"));
    let (port, data) = (bank_port.to_string(), data.to_str().unwrap().to_owned());
    let words = [
        "bank",
        "serve",
        "--currency",
        "KUDOS",
        "--port",
        &port,
        "--data",
        &data,
        "--ledger",
        &url,
        "-L",
        "INFO",
    ];
    let mut bank = Service::start(dir, "bank", &words);
    common::setup::wait_for(bank_port, "/ready");
    let mut switch = Switch::on_ledger(dir, &url);
    switch.start();

    ledger.process().signal(SIGSTOP);
    // A request whose money cannot be moved now.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let body = r#"{"amount":"KUDOS:1","reserve_pub":"JFRQ1ZRJJW2KAYRZYQYDP0SSAC6Z6NHZ6DRJ6SQFX8X6RHWVXNRG",
                "debit_account":"payto://x-taler-bank/localhost/x?receiver-name=x"}"#;
            // The bank ends before it can answer.
            let _ = std::panic::catch_unwind(|| {
                common::setup::ask(bank_port, "POST /taler-wire-gateway/exchange/admin/add-incoming", body)
            });
        });
        until("the bank is ready without its ledger", || common::setup::get(bank_port, "/ready") != 200);
        bank.signal(SIGTERM);
        switch.service().signal(SIGTERM);
        let status = ends_promptly(&mut bank);
        assert!(status.success(), "the bank: {status}");
        let status = ends_promptly(switch.service());
        assert!(status.success(), "the switch: {status}");
    });
    ledger.process().signal(SIGCONT);
}

/// The bank under load while ledger and bank are killed in turn.
pub(crate) async fn the_bank_goes_on(ledger: &mut impl Elsewhere) {
    let cycles = run::number("BATZEN_SOAK_CYCLES").unwrap_or(4);
    let url = ledger.url();
    let mut deployment = Deployment::on_ledger(run::client(), &url);
    let dice = run::dice();
    let kill = |deployment: &mut Deployment, cycle: u64| match cycle % 3 {
        0 => {
            deployment.bank().kill_9();
            deployment.launch_bank();
        }
        _ => ledger.kill_9_and_start(),
    };
    let (acknowledged, found) = kills::bank::prove_on_ledger(&mut deployment, dice, cycles, kill).await;
    assert!(found.is_empty(), "{} problems, the first: {:?}", found.len(), found.first());
    deployment.stop();
    let data = deployment.path("bank");
    tokio::task::block_in_place(|| common::must(&["bank", "totals", &data, "--ledger", &url]));
    println!(
        "{cycles} kills of ledger and bank; {acknowledged} orders acknowledged; lost 0, twice 0; the books add up"
    );
}

/// The switch under load while ledger and switch are killed in turn.
pub(crate) fn the_switch_goes_on(dir: &Path, ledger: &mut impl Elsewhere) {
    let switch = Switch::on_ledger(dir, &ledger.url());
    crash_switch::prove(switch, |switch, fsps, cycle| {
        match cycle % 3 {
            0 => {
                switch.kill_9();
                switch.start();
            }
            _ => ledger.kill_9_and_start(),
        }
        // The next kill shall meet both at work.
        let (before, deadline) = (fsps.committed(), Instant::now() + PATIENCE);
        while fsps.committed() < before + 20 {
            switch.watch(Duration::from_millis(20));
            assert!(Instant::now() < deadline, "the switch commits nothing any more");
        }
    });
}

#[test]
fn a_measurement_ends_while_the_ledger_is_silent() {
    let dir = tempfile::tempdir().unwrap();
    a_measurement_ends(dir.path(), &mut Own::new(dir.path()));
}

#[test]
fn services_end_while_the_ledger_is_silent() {
    let dir = tempfile::tempdir().unwrap();
    services_end(dir.path(), &mut Own::new(dir.path()));
}

/// They wait for a ledger that starts later, and end when they are told to.
#[test]
fn services_wait_for_the_ledger() {
    let dir = tempfile::tempdir().unwrap();
    // Accepts connections and never answers.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("tcp://{}", listener.local_addr().unwrap());
    let data = dir.path().join("bank");
    let words = ["bank", "serve", "--currency", "KUDOS", "--port", "0", "--data", data.to_str().unwrap()];
    let mut bank = Service::start(dir.path(), "bank", &[&words[..], &["--ledger", &silent]].concat());
    let mut switch = Switch::on_ledger(dir.path(), &silent);
    switch.launch();
    for name in ["bank", "switch"] {
        let log = dir.path().join(format!("{name}.log"));
        let failure = format!("the {name} does not say which ledger is missing");
        until(&failure, || std::fs::read_to_string(&log).unwrap().contains(&silent));
    }
    bank.assert_runs();
    switch.service().assert_runs();
    bank.signal(SIGTERM);
    switch.service().signal(SIGTERM);
    assert!(ends_promptly(&mut bank).success());
    assert!(ends_promptly(switch.service()).success());

    // One that is there a little later.
    let mut own = Own { dir: dir.path().to_owned(), port: free_port(), process: None };
    let mut switch = Switch::on_ledger(dir.path(), &own.url());
    switch.launch();
    std::thread::sleep(Duration::from_millis(300));
    own.start();
    switch.wait();
    switch.terminate();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_bank_goes_on_when_its_ledger_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let mut own = Own::new(dir.path());
    the_bank_goes_on(&mut own).await;
    own.process().kill_9();
    let data = dir.path().join("elsewhere");
    let verified = tokio::task::block_in_place(|| {
        common::must_json(&["ledger", "verify", data.to_str().unwrap(), "--json"])
    });
    assert!(verified["transfers"].as_u64().unwrap() > 0, "{verified}");
}

#[test]
fn a_switch_goes_on_when_its_ledger_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    the_switch_goes_on(dir.path(), &mut Own::new(dir.path()));
}
