//! The switch and its ledger under transfers between participants.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use batzen_http::client::{Client, ClientOptions};
use batzen_lab::participants::{Fsps, Notice, Schedule, TransferId, TransferOutcome};

use tokio::task::JoinSet;

use crate::common::PATIENCE;
use crate::crash::customers::Dice;
use crate::crash::hub::{Switch, books, load, participants, problems};
use crate::kills::kill_point::kill_at_random_point;
use crate::kills::score::Score;

/// The number of kills before the complete proof and a new switch.
const ROUND: u64 = 250;
const AUDIT_CYCLES: u64 = 20;
/// Few enough transfers per second to keep small what a round has to repeat.
const LOAD: Schedule = Schedule::Open { per_s: 200.0, in_flight_max: 12 };
/// The number of concurrent queries.
const AT_ONCE: usize = 8;
/// The switch does not compare the date with its clock.
const DATE: &str = "Mon, 01 Jan 2024 00:00:00 GMT";
const TRANSFERS: &str = "application/vnd.interoperability.transfers+json;version=1";

/// Has payers query transfers that have ended.
struct Auditor {
    fsps: Arc<Fsps>,
    client: Client,
    switch_url: String,
    /// For each transfer, the number of callbacks the payer had when it last asked.
    asked: HashMap<TransferId, u32>,
}

impl Auditor {
    /// Asks about every ended transfer that was not asked about before.
    async fn ask_about_new(&mut self) {
        let is_told = |outcome: &TransferOutcome| {
            outcome.payer_notice.is_some_and(|notice| !matches!(notice, Notice::Refused(_)))
        };
        let mut new = self.fsps.outcomes();
        new.retain(|(id, outcome)| is_told(outcome) && !self.asked.contains_key(id));
        self.asked.extend(new.iter().map(|(id, outcome)| (*id, outcome.payer_callbacks)));
        self.ask_all(&new).await;
    }

    async fn ask_all(&self, transfers: &[(TransferId, TransferOutcome)]) {
        for part in transfers.chunks(AT_ONCE) {
            let mut questions = JoinSet::new();
            for (id, outcome) in part {
                let names = self.fsps.names();
                let parties = [names[outcome.payer].clone(), names[outcome.payee].clone()];
                questions.spawn(ask(
                    self.client.clone(),
                    format!("{}/transfers/{id}", self.switch_url),
                    parties,
                ));
            }
            questions.join_all().await;
        }
    }

    /// Waits until every query has its callback; queries sent before a kill are repeated.
    async fn wait_for_callbacks(&mut self) -> u64 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut silent = self.fsps.outcomes();
            silent.retain(|(id, outcome)| {
                self.asked.get(id).is_some_and(|before| outcome.payer_callbacks <= *before)
            });
            if silent.is_empty() {
                return self.asked.len() as u64;
            }
            assert!(Instant::now() < deadline, "{} questions have no answer", silent.len());
            self.ask_all(&silent).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// Queries a transfer until the switch accepts the request.
async fn ask(client: Client, url: String, [payer, payee]: [String; 2]) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let call = client
            .get(&url)
            .header("FSPIOP-Source", &payer)
            .header("FSPIOP-Destination", &payee)
            .header("Date", DATE)
            .header("Content-Type", &format!("{TRANSFERS}.1"))
            .header("Accept", TRANSFERS);
        match call.send().await {
            Ok(reply) if reply.status == 202 => return,
            Ok(reply) if reply.status >= 500 || reply.status == 429 => {}
            Ok(reply) => panic!("{url}: HTTP {}", reply.status),
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub(super) async fn round(score: &Arc<Score>, dice: &mut Dice, is_first: bool) {
    let dir = tempfile::tempdir().unwrap();
    let mut switch = Switch::new(dir.path());
    let fsps = tokio::task::block_in_place(|| {
        switch.start();
        Arc::new(participants(&switch))
    });
    fsps.load(load(LOAD));
    let ends = Arc::new(AtomicBool::new(false));
    // The auditor queries ended transfers. Queries sent before a kill are answered after it, or repeated.
    let auditor = tokio::spawn({
        let ends = Arc::clone(&ends);
        let mut auditor = Auditor {
            fsps: Arc::clone(&fsps),
            client: Client::new(&ClientOptions::default()).unwrap(),
            switch_url: format!("http://{}", switch.participants),
            asked: HashMap::new(),
        };
        async move {
            while !ends.load(Ordering::SeqCst) {
                auditor.ask_about_new().await;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            auditor
        }
    });
    for cycle in 1..=score.left().min(ROUND) {
        let report = tokio::task::block_in_place(|| {
            let report = kill_at_random_point(switch.service(), dice, &|| fsps.committed());
            switch.launch();
            report
        });
        score.add_kill(report);
        assert!(!auditor.is_finished(), "the auditor gets no answers");
        if cycle % AUDIT_CYCLES == 0 {
            let outcomes: Vec<TransferOutcome> =
                fsps.outcomes().into_iter().map(|(_, outcome)| outcome).collect();
            let contradictory = outcomes.iter().filter(|outcome| outcome.is_contradictory);
            let found: Vec<String> =
                contradictory.map(|outcome| format!("contradictory notices: {outcome:?}")).collect();
            score.repeated(0, &found);
        }
    }
    tokio::task::block_in_place(|| switch.wait());
    ends.store(true, Ordering::SeqCst);
    let mut auditor = auditor.await.unwrap();
    let report = tokio::task::block_in_place(|| fsps.end_load(PATIENCE));
    assert_eq!((report.unresolved, fsps.under_way()), (0, 0), "transfers have not ended: {report:?}");
    auditor.ask_about_new().await;
    let repeated = auditor.wait_for_callbacks().await;

    let outcomes: Vec<TransferOutcome> = fsps.outcomes().into_iter().map(|(_, outcome)| outcome).collect();
    assert_eq!(outcomes.len() as u64, report.begun);
    score.acknowledged(outcomes.len() as u64);
    let at_end = tokio::task::block_in_place(|| books(&switch.hub, fsps.names()));
    let mut found = problems(&at_end, &outcomes);
    if is_first {
        let is_committed = |outcome: &&TransferOutcome| outcome.payer_notice == Some(Notice::Committed);
        let mut planted = outcomes.clone();
        planted.push(*outcomes.iter().find(is_committed).expect("something was committed"));
        assert!(problems(&at_end, &planted).len() > found.len(), "an invented transfer is not found");
    }
    tokio::task::block_in_place(|| {
        switch.terminate();
        switch.start();
        if books(&switch.hub, fsps.names()) != at_end {
            found.push("a restart changed the books".to_owned());
        }
        switch.terminate();
    });
    score.repeated(repeated, &[]);
    score.proven(&found);
}
