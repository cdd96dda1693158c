//! `kill -9` on the switch (with its ledger) under load, again and again, and the proof that no transfer is lost, doubled or told
//! differently to payer and payee.
//!
//! The switch is a real process of the real program. This process plays its participants: they send transfers, answer them in
//! several ways, repeat what went unanswered, and write down what they were told. Then it is proven that
//!
//! 1. every transfer has ended, and its payer was told how;
//! 2. nobody was told two things, and payer and payee were told the same;
//! 3. the switch has committed exactly the transfers whose payers were told so, and nothing is pending;
//! 4. the ledger's debits and credits are equal, and every position is what its participant has sent less what it has received;
//! 5. all of that is the same after one more restart;
//! 6. the proof can fail: a transfer that never was, and one that ended differently, are found.
//!
//! `BATZEN_SOAK_CYCLES` sets the number of kills (default 4; `make soak` does 50).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use batzen_switch_sim::hub::{Hub, Onboarding, ten_thousandths};
use batzen_switch_sim::{Behaviour, Fsps, FspsConfig, Load, Mix, Outcome, Schedule, Told};
use common::{PATIENCE, Service, free_port};
use serde_json::Value;

const CURRENCY: &str = "USD";
const TOKENS: [&str; 2] = ["secret-token:one", "secret-token:two"];
const PARTICIPANTS: usize = 4;
const FUNDS_CENTS: u64 = 1_000_000_000;

/// A switch that is killed and comes back at the same ports.
struct Switch {
    dir: PathBuf,
    config: PathBuf,
    participants: SocketAddr,
    hub: Hub,
    service: Option<Service>,
}

impl Switch {
    fn new(dir: &Path) -> Self {
        let (port, admin_port) = (free_port(), free_port());
        let config = dir.join("switch.conf");
        let data = dir.join("data");
        let [one, two] = TOKENS;
        let text = format!(
            "[switch]\nDATA_DIR = {}\nBIND_TO = 127.0.0.1\nPORT = {port}\nADMIN_PORT = {admin_port}\nFOUR_EYES = NO\n\n\
             [switch-operator-one]\nTOKEN = {one}\n\n[switch-operator-two]\nTOKEN = {two}\n",
            data.display()
        );
        std::fs::write(&config, text).unwrap();
        let local = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let hub = Hub::new(local(admin_port), TOKENS.map(str::to_owned));
        Self { dir: dir.to_owned(), config, participants: local(port), hub, service: None }
    }

    fn start(&mut self) {
        let config = self.config.to_str().unwrap();
        let mut service = Service::start(&self.dir, "switch", &["switch", "serve", "-c", config]);
        let deadline = Instant::now() + PATIENCE;
        while !self.hub.call(0, "GET", "/health", None).is_ok_and(|(status, _)| status == 200) {
            service.assert_runs();
            assert!(Instant::now() < deadline, "the switch does not come up");
            std::thread::sleep(Duration::from_millis(10));
        }
        self.service = Some(service);
    }

    fn kill_9(&mut self) {
        self.service.take().unwrap().kill_9();
    }

    fn terminate(&mut self) {
        let (status, _) = self.service.take().unwrap().terminate();
        assert!(status.success(), "{status}");
    }

    /// Lets the load run for a while.
    fn watch(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.service.as_mut().unwrap().assert_runs();
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// What the switch says of its books.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Books {
    debits: i128,
    credits: i128,
    pending: i128,
    states: BTreeMap<String, u64>,
    positions: Vec<i128>,
}

fn books(hub: &Hub, names: &[String]) -> Books {
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

/// Everything that the books and what the participants were told say against each other.
fn problems(books: &Books, outcomes: &[Outcome]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut check = |is_right: bool, what: String| {
        if !is_right {
            problems.push(what);
        }
    };
    let mut positions = vec![0; PARTICIPANTS];
    let mut committed = 0;
    for outcome in outcomes {
        check(outcome.told_payer.is_some(), format!("no end: {outcome:?}"));
        check(!outcome.is_contradictory, format!("told two things: {outcome:?}"));
        let is_committed = outcome.told_payer.is_some_and(Told::is_committed);
        if is_committed {
            committed += 1;
            let amount = i128::from(outcome.cents) * 100;
            positions[outcome.payer] += amount;
            positions[outcome.payee] -= amount;
            let payee_waits = outcome.behaviour == Behaviour::Reserve;
            check(
                !payee_waits || outcome.told_payee == Some(Told::Committed),
                format!("no PATCH: {outcome:?}"),
            );
        }
        check(!is_committed || outcome.behaviour.commits(), format!("committed: {outcome:?}"));
    }
    check(books.debits == books.credits, format!("debits {} and credits {}", books.debits, books.credits));
    check(books.pending == 0, format!("{} pending", books.pending));
    let count = |state: &str| books.states.get(state).copied().unwrap_or(0);
    check(count("COMMITTED") == committed, format!("{} committed, {committed} told so", count("COMMITTED")));
    let unfinished: u64 =
        ["RECEIVED_PREPARE", "RESERVED", "RECEIVED_FULFIL", "RECEIVED_ERROR", "RESERVED_TIMEOUT"]
            .map(count)
            .iter()
            .sum();
    check(unfinished == 0, format!("{unfinished} unfinished: {:?}", books.states));
    check(books.positions == positions, format!("positions {:?} instead of {positions:?}", books.positions));
    problems
}

#[test]
fn a_killed_switch_tells_everybody_the_same() {
    let cycles: u64 = std::env::var("BATZEN_SOAK_CYCLES").map_or(4, |text| text.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let mut switch = Switch::new(dir.path());
    switch.start();
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
    fsps.load(Load {
        schedule: Schedule::Closed { in_flight: 64 },
        warmup: Duration::ZERO,
        duration: None,
        count: None,
        mix: Mix::new(&[
            (Behaviour::Accept, 200),
            (Behaviour::Reserve, 100),
            (Behaviour::Duplicate, 40),
            (Behaviour::Reject, 40),
            (Behaviour::WrongFulfilment, 20),
            // They keep their place in the loop until they expire: few.
            (Behaviour::Silent, 1),
        ]),
        cents_max: 10_000,
        expiration: Duration::from_secs(3),
    });
    for cycle in 1..=cycles {
        let mut bytes = [0; 2];
        batzen_crypto::fill_random(&mut bytes);
        let pause = Duration::from_millis(100 + u64::from(u16::from_le_bytes(bytes)) % 900);
        switch.watch(pause);
        switch.kill_9();
        println!("cycle {cycle}: killed after {pause:?}, {} committed so far", fsps.committed());
        switch.start();
    }
    // The last life of the switch commits something, too.
    let (before, deadline) = (fsps.committed(), Instant::now() + PATIENCE);
    while fsps.committed() < before + 20 {
        switch.watch(Duration::from_millis(20));
        assert!(Instant::now() < deadline, "the switch commits nothing any more");
    }
    let report = fsps.end_load(PATIENCE);
    assert_eq!((report.unresolved, fsps.under_way()), (0, 0), "transfers have not ended: {report:?}");
    assert!(report.repeats > 0, "no kill met a request");

    let outcomes: Vec<Outcome> = fsps.outcomes().into_iter().map(|(_, outcome)| outcome).collect();
    assert_eq!(outcomes.len() as u64, report.begun);
    let at_end = books(&switch.hub, fsps.names());
    let found = problems(&at_end, &outcomes);
    assert!(found.is_empty(), "{} problems, the first: {:#?}", found.len(), found.first());

    // The proof finds what is planted.
    let committed = outcomes.iter().position(|outcome| outcome.told_payer == Some(Told::Committed)).unwrap();
    let mut planted = outcomes.clone();
    planted.push(outcomes[committed]);
    assert!(!problems(&at_end, &planted).is_empty(), "a transfer that never was is not found");
    planted.pop();
    planted[committed].told_payer = Some(Told::Error(3303));
    assert!(!problems(&at_end, &planted).is_empty(), "a transfer that ended differently is not found");

    switch.terminate();
    switch.start();
    assert_eq!(books(&switch.hub, fsps.names()), at_end, "a restart changed the books");
    let lost: u64 =
        report.ends.iter().filter(|((_, told), _)| *told == Told::Error(3303)).map(|(_, count)| count).sum();
    println!(
        "{cycles} kills; {} transfers, {} committed, {lost} expired; {} requests repeated",
        report.begun, report.committed_in_all, report.repeats
    );
}
