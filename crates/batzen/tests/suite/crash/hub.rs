//! A switch with its operators, and the checks that its books agree with its participants.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use batzen_lab::participants::hub::{Hub, Onboarding, ten_thousandths};
use batzen_lab::participants::{Behaviour, Fsps, FspsConfig, Load, Mix, Notice, Schedule, TransferOutcome};
use serde_json::Value;

use crate::common::{PATIENCE, Service, free_port};

pub(crate) const CURRENCY: &str = "USD";
pub(crate) const TOKENS: [&str; 2] = ["secret-token:one-and-secret", "secret-token:two-and-secret"];
const PARTICIPANTS: usize = 4;
const FUNDS_CENTS: u64 = 1_000_000_000;

/// A switch that is killed and restarted on the same ports.
pub(crate) struct Switch {
    dir: PathBuf,
    config: String,
    pub participants: SocketAddr,
    pub hub: Hub,
    service: Option<Service>,
}

/// Writes the configuration of a switch with these ports and options, and returns the file's path.
pub(crate) fn config(dir: &Path, [port, admin_port]: [u16; 2], options: &str) -> String {
    let [one, two] = TOKENS;
    let text = format!(
        "[switch]\nDATA_DIR = {}\nBIND_TO = 127.0.0.1\nPORT = {port}\nADMIN_PORT = {admin_port}\n{options}\
         [switch-operator-one]\nTOKEN = {one}\n[switch-operator-two]\nTOKEN = {two}\n",
        dir.join("data").display()
    );
    let file = dir.join("switch.conf");
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

impl Switch {
    pub(crate) fn new(dir: &Path) -> Self {
        Self::with(dir, "FOUR_EYES = NO\n")
    }

    /// With its money in the ledger at this address.
    pub(crate) fn on_ledger(dir: &Path, ledger: &str) -> Self {
        Self::with(dir, &format!("FOUR_EYES = NO\nLEDGER = {ledger}\n"))
    }

    /// The same with these options.
    pub(crate) fn with(dir: &Path, options: &str) -> Self {
        let (port, admin_port) = (free_port(), free_port());
        let config = config(dir, [port, admin_port], options);
        let local = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let hub = Hub::new(local(admin_port), TOKENS.map(str::to_owned));
        Self { dir: dir.to_owned(), config, participants: local(port), hub, service: None }
    }

    /// Starts it.
    pub(crate) fn launch(&mut self) {
        self.service = Some(Service::start(&self.dir, "switch", &["switch", "serve", "-c", &self.config]));
    }

    /// Starts it, and waits until it is healthy.
    pub(crate) fn start(&mut self) {
        self.launch();
        self.wait();
    }

    /// Waits until it is healthy.
    pub(crate) fn wait(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.hub.call(0, "GET", "/health", None).is_ok_and(|(status, _)| status == 200) {
            self.service().assert_runs();
            assert!(Instant::now() < deadline, "the switch does not come up");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The running switch.
    pub(crate) fn service(&mut self) -> &mut Service {
        self.service.as_mut().expect("the switch runs")
    }

    pub(crate) fn kill_9(&mut self) {
        self.service.take().unwrap().kill_9();
    }

    pub(crate) fn terminate(&mut self) {
        let (status, _) = self.service.take().unwrap().terminate();
        assert!(status.success(), "{status}");
    }

    /// Lets the load run for a while.
    pub(crate) fn watch(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.service.as_mut().unwrap().assert_runs();
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The switch's own figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Books {
    debits: i128,
    credits: i128,
    pending: i128,
    states: BTreeMap<String, u64>,
    positions: Vec<i128>,
}

pub(crate) fn books(hub: &Hub, names: &[String]) -> Books {
    let answer = hub.get("/balances").unwrap();
    let currency = answer["currencies"]
        .as_array()
        .unwrap()
        .iter()
        .find(|currency| currency["currency"] == CURRENCY)
        .unwrap_or_else(|| panic!("{answer}"));
    let amount = |value: &Value| ten_thousandths(value).unwrap_or_else(|| panic!("{value} in {answer}"));
    let states = answer["transfers"].as_object().unwrap().iter();
    let position = |name: &String| {
        let accounts = hub.get(&format!("/participants/{name}/accounts")).unwrap();
        let accounts = accounts.as_array().unwrap();
        let account = accounts.iter().find(|account| account["ledgerAccountType"] == "POSITION").unwrap();
        amount(&account["value"])
    };
    Books {
        debits: amount(&currency["ledgerDebits"]),
        credits: amount(&currency["ledgerCredits"]),
        pending: amount(&currency["pending"]),
        states: states.map(|(state, count)| (state.clone(), count.as_u64().unwrap())).collect(),
        positions: names.iter().map(position).collect(),
    }
}

/// All contradictions between the books and the notices to participants.
pub(crate) fn problems(books: &Books, outcomes: &[TransferOutcome]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut check = |is_right: bool, what: String| {
        if !is_right {
            problems.push(what);
        }
    };
    let mut positions = vec![0; PARTICIPANTS];
    let mut committed = 0;
    for outcome in outcomes {
        check(outcome.payer_notice.is_some(), format!("no end: {outcome:?}"));
        check(!outcome.is_contradictory, format!("contradictory notices: {outcome:?}"));
        let is_committed = outcome.payer_notice.is_some_and(Notice::is_committed);
        if is_committed {
            committed += 1;
            let amount = i128::from(outcome.cents) * 100;
            positions[outcome.payer] += amount;
            positions[outcome.payee] -= amount;
            let payee_waits = outcome.behaviour == Behaviour::Reserve;
            check(
                !payee_waits || outcome.payee_notice == Some(Notice::Committed),
                format!("no PATCH: {outcome:?}"),
            );
        }
        check(!is_committed || outcome.behaviour.commits(), format!("committed: {outcome:?}"));
    }
    check(books.debits == books.credits, format!("debits {} and credits {}", books.debits, books.credits));
    check(books.pending == 0, format!("{} pending", books.pending));
    let count = |state: &str| books.states.get(state).copied().unwrap_or(0);
    check(
        count("COMMITTED") == committed,
        format!("{} committed, {committed} notices of it", count("COMMITTED")),
    );
    let unfinished: u64 =
        ["RECEIVED_PREPARE", "RESERVED", "RECEIVED_FULFIL", "RECEIVED_ERROR", "RESERVED_TIMEOUT"]
            .map(count)
            .iter()
            .sum();
    check(unfinished == 0, format!("{unfinished} unfinished: {:?}", books.states));
    check(books.positions == positions, format!("positions {:?} instead of {positions:?}", books.positions));
    problems
}

/// Creates participants with funds at a running switch.
pub(crate) fn participants(switch: &Switch) -> Fsps {
    let mut config = FspsConfig::new(PARTICIPANTS, switch.participants, CURRENCY);
    config.keeps_outcomes = true;
    config.grace = Duration::from_millis(500);
    config.connections = 8;
    let fsps = Fsps::start(config).unwrap();
    switch.hub.found(CURRENCY, "deferred-net").unwrap();
    for (index, name) in fsps.names().iter().enumerate() {
        let callback_url = fsps.callback_url(index);
        let onboarding = Onboarding {
            name,
            currency: CURRENCY,
            callback_url: &callback_url,
            cap_cents: FUNDS_CENTS,
            funds_cents: FUNDS_CENTS,
        };
        switch.hub.onboard(&onboarding).unwrap();
    }
    fsps
}

/// An endless load of transfers that end in every possible way.
pub(crate) fn load(schedule: Schedule) -> Load {
    Load {
        schedule,
        warmup: Duration::ZERO,
        duration: None,
        count: None,
        mix: Mix::new(&[
            (Behaviour::Accept, 200),
            (Behaviour::Reserve, 100),
            (Behaviour::Duplicate, 40),
            (Behaviour::Reject, 40),
            (Behaviour::WrongFulfilment, 20),
            // Few of these, because they occupy the loop until they expire.
            (Behaviour::Silent, 1),
        ]),
        cents_max: 10_000,
        expiration: Duration::from_secs(3),
    }
}
