//! The kill campaign: exchange, bank, ledger and switch are killed (`kill -9`) repeatedly, at random
//! moments from the first milliseconds after the start to a second under load. Nothing acknowledged is lost
//! or done twice.
//!
//! Each service is a real process of the real program, restarted at once after each kill. Clients keep a log
//! of what was acknowledged. While the load goes on, an auditor looks for every operation acknowledged before
//! the last kill, first with requests that change nothing, and then repeats it: the answer must be the same.
//! Each round of kills ends with the complete proof (every row, every sum, the books at rest) and a new
//! service, so that stores stay small and recovery is quick.
//!
//! A third of the kills come within 50 ms of the start: while the store is opened, replayed and synced.
//! Another third come as soon as a thread is inside `fsync` or `fdatasync`. In the first round of each
//! service, planted losses must be found.
//!
//! `BATZEN_KILLS_CYCLES` sets the total number of kills (default 28; `make kills` does 10,000),
//! `BATZEN_KILLS_SEED` repeats the choices of an earlier run (not its timing), `BATZEN_KILLS_SERVICES` names
//! the services (default: all, separated by commas), `BATZEN_KILLS_LANES` sets the exchange's lanes (default: four and
//! one in turn).

mod auditor;
pub(crate) mod bank;
mod exchange;
mod kill_point;
mod ledger;
mod score;
mod switch;

use crate::crash::{customers, run};

use std::sync::Arc;
use std::time::{Duration, Instant};

use customers::Dice;
use score::{Score, table};
use tokio::task::{JoinError, JoinHandle};

const SERVICES: [&str; 4] = ["exchange", "bank", "ledger", "switch"];
/// The interval between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(15);

/// Rounds of kills until there were enough. Planted losses must be found in the first one.
fn campaign(service: &'static str, score: Arc<Score>, mut dice: Dice) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut is_first = true;
        while !score.is_complete() {
            match service {
                "exchange" => exchange::round(&score, &mut dice, is_first).await,
                "bank" => bank::round(&score, &mut dice, is_first).await,
                "ledger" => ledger::round(&score, &mut dice, is_first).await,
                _ => switch::round(&score, &mut dice, is_first).await,
            }
            is_first = false;
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn killed_services_lose_nothing_and_do_nothing_twice() {
    let cycles = run::number("BATZEN_KILLS_CYCLES").unwrap_or(28);
    let seed = run::seed("BATZEN_KILLS_SEED");
    let wanted = std::env::var("BATZEN_KILLS_SERVICES").unwrap_or_else(|_| SERVICES.join(","));
    let wanted: Vec<&'static str> =
        SERVICES.into_iter().filter(|name| wanted.split(',').any(|word| word == *name)).collect();
    assert!(!wanted.is_empty(), "BATZEN_KILLS_SERVICES names services of {SERVICES:?}");
    let count = wanted.len() as u64;
    let mut dice = Dice::new(seed);
    let mut running: Vec<(&str, Arc<Score>, JoinHandle<()>)> = Vec::new();
    for (place, service) in (0..).zip(wanted) {
        let share = cycles / count + u64::from(place < cycles % count);
        let score = Arc::new(Score::new(service, share));
        let campaign = campaign(service, Arc::clone(&score), dice.child());
        running.push((service, score, campaign));
    }
    let mut shown = Instant::now();
    while running.iter().any(|(_, _, campaign)| !campaign.is_finished()) {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if shown.elapsed() >= PROGRESS {
            shown = Instant::now();
            let lines: Vec<String> = running.iter().map(|(_, score, _)| score.progress()).collect();
            println!("{}", lines.join("; "));
        }
    }
    let scores: Vec<&Score> = running.iter().map(|(_, score, _)| score.as_ref()).collect();
    for score in &scores {
        println!("{}", score.json());
    }
    println!("{}", table(&scores));
    let mut failed = Vec::new();
    for (service, score, campaign) in running {
        match campaign.await {
            Ok(()) if score.is_complete() => {}
            Ok(()) => failed.push(format!("{service}: {}", score.progress())),
            Err(error) => failed.push(format!("{service}: {}", reason(error))),
        }
    }
    assert!(failed.is_empty(), "BATZEN_KILLS_SEED={seed}: failed:\n{}", failed.join("\n"));
}

/// The message of a campaign's panic. It is repeated at the end, where nobody has to look for it.
fn reason(error: JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "cancelled".to_owned() };
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref().copied()).unwrap_or("a panic without a message").to_owned()
}
