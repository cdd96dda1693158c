//! The exchange under the load of its customers, with its workers and a bank.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::PATIENCE;
use crate::crash::customers::Dice;
use crate::crash::deployment::Deployment;
use crate::crash::run::{self, assert_well, end_and_prove, watch_every_kind};
use crate::kills::auditor::Auditor;
use crate::kills::kill_point::kill_at_random_point;
use crate::kills::score::Score;

/// The number of kills before the complete proof and a new exchange, so that its store stays small.
const ROUND: u64 = 200;
/// The number of kills after which the auditor must have caught up with everything acknowledged before.
const AUDIT_CYCLES: u64 = 20;
/// One in this many kills hits the bank.
const BANK_CYCLES: u64 = 8;
const CUSTOMERS: usize = 4;

pub(super) async fn round(score: &Arc<Score>, dice: &mut Dice, is_first: bool) {
    let mut deployment = Deployment::new(run::client());
    deployment.start_bank().await;
    deployment.start_exchange().await;
    let (load, mut customers) = run::crowd(&deployment, CUSTOMERS, dice).await;
    // The auditor covers everything acknowledged before the last kill.
    let (mark, seen) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let ends = Arc::new(AtomicBool::new(false));
    let audit = tokio::spawn(audit(
        Auditor::new(&load),
        Arc::clone(score),
        (Arc::clone(&mark), Arc::clone(&seen)),
        Arc::clone(&ends),
    ));
    for cycle in 1..=score.left().min(ROUND) {
        assert_well(&mut customers);
        let is_bank_struck = dice.one_in(BANK_CYCLES);
        let report = tokio::task::block_in_place(|| {
            kill_at_random_point(deployment.exchange(), dice, &|| load.log.acknowledged())
        });
        if is_bank_struck {
            deployment.kill_bank();
            deployment.launch_bank();
        }
        let acknowledged = load.log.acknowledged();
        mark.store(acknowledged, Ordering::SeqCst);
        deployment.launch_exchange();
        score.add_kill(report);
        if cycle % AUDIT_CYCLES == 0 {
            catch_up(&seen, acknowledged, &audit).await;
        }
    }
    deployment.wait_for_exchange().await;
    if is_first {
        watch_every_kind(&load, &mut deployment, &mut customers).await;
    }
    let acknowledged = load.log.acknowledged();
    mark.store(acknowledged, Ordering::SeqCst);
    catch_up(&seen, acknowledged, &audit).await;
    ends.store(true, Ordering::SeqCst);
    let mut auditor = audit.await.unwrap();
    if is_first {
        auditor.assert_finds_plants().await;
    }
    score.acknowledged(acknowledged);
    end_and_prove(&mut deployment, &load, customers, is_first).await;
    score.proven(&[]);
    deployment.stop();
}

/// Waits until the auditor has got this far; fails if the auditor fails.
async fn catch_up(seen: &AtomicU64, acknowledged: u64, audit: &tokio::task::JoinHandle<Auditor>) {
    let deadline = Instant::now() + PATIENCE;
    while seen.load(Ordering::SeqCst) < acknowledged {
        assert!(!audit.is_finished(), "the auditor has found something");
        assert!(Instant::now() < deadline, "the auditor gets no answers");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn audit(
    mut auditor: Auditor,
    score: Arc<Score>,
    (mark, seen): (Arc<AtomicU64>, Arc<AtomicU64>),
    ends: Arc<AtomicBool>,
) -> Auditor {
    while !ends.load(Ordering::SeqCst) {
        let (from, to) = (seen.load(Ordering::SeqCst), mark.load(Ordering::SeqCst));
        if from == to {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        }
        let (to, problems) = auditor.audit(from..to).await;
        score.repeated(to - from, &problems);
        seen.store(to, Ordering::SeqCst);
    }
    auditor
}
