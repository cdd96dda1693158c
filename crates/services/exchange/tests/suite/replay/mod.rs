//! Recorded flows of an independent implementation, replayed against an exchange of ours: the same request
//! must get the same status, error code, members and determined values.
//!
//! | module | contents |
//! |---|---|
//! | [`recording`] | reads the files |
//! | [`side`] | what the recorded exchange and ours published; the messages that requests sign |
//! | [`cast`] | our key for every recorded key |
//! | [`coins`] | our coins for recorded coins |
//! | [`stage`], [`provider`] | our exchange, configured as the recorded one |
//! | [`rewrite`] | our request for a recorded one |
//! | [`player`] | walks the lines |
//! | [`compare`] | compares two answers |
//! | [`rules`] | what is left out |
//! | [`audit`] | audits what the recordings left |
//! | [`gaps`] | requests that the recordings leave out |
//!
//! The recordings are those in `crates/base/protocol/tests/vectors/http`. The environment variable
//! `BATZEN_HTTP_VECTORS` names a further directory of the same format.

pub(crate) mod audit;
mod cast;
mod coins;
mod compare;
mod gaps;
mod player;
mod provider;
mod recording;
mod rewrite;
mod rules;
mod side;
mod stage;

use std::collections::BTreeMap;
use std::path::Path;

use batzen_crypto::EddsaPrivateKey;
use player::{Fate, Player};
use recording::{Scenario, own_directory};
use rules::Reason;
use serde_json::Value;

/// The fates of a scenario's lines, counted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    same: usize,
    decided: usize,
    different: usize,
    left_out: BTreeMap<Reason, usize>,
}

/// A recording, and how many answers are the same, how many are those that the protocol decides instead, how
/// many lines are messages to the bank, and how many are left out for another reason.
type Row = (&'static str, usize, usize, usize, Option<(Reason, usize)>);

/// The project's recordings.
const EXPECTED: [Row; 15] = [
    ("auditor", 27, 0, 2, None),
    ("bank-gateway", 0, 0, 8, None),
    ("cherry-picking-rsa", 8, 1, 0, None),
    ("errors", 188, 4, 22, None),
    ("exchange-api-cs", 94, 2, 49, Some((Reason::KeyTimes, 2))),
    ("exchange-api-rsa", 67, 2, 49, Some((Reason::Hidden, 4))),
    ("kyc", 40, 0, 9, None),
    ("management", 23, 0, 0, None),
    ("p2p-rsa", 37, 1, 8, None),
    ("revocation-rsa", 30, 0, 3, None),
    ("wallet-age-restricted", 74, 0, 13, None),
    ("wallet-batch", 35, 0, 12, None),
    ("wallet-p2p", 50, 0, 25, None),
    ("wallet-p2p-free", 61, 0, 25, None),
    ("wallet-single", 88, 0, 15, None),
];

fn master(directory: &Path) -> EddsaPrivateKey {
    let text = std::fs::read_to_string(directory.join("secrets.json")).expect("the recordings' master key");
    let secrets: Value = serde_json::from_str(&text).unwrap();
    secrets["master_private_key"].as_str().unwrap().parse().unwrap()
}

/// Walks a recording, prints its row of the table and every difference, and counts.
async fn replay(directory: &Path, name: &str) -> Counts {
    let scenario = Scenario::read(directory, name);
    let is_for_bank = scenario.requests().next().is_none();
    let lines = if is_for_bank {
        scenario.lines.into_iter().map(|line| (line, Fate::LeftOut(Reason::Bank))).collect()
    } else {
        Player::new(scenario, master(directory)).await.play(audit::expect_nothing).await
    };
    let mut counts = Counts::default();
    for (line, fate) in lines {
        match fate {
            Fate::Same => counts.same += 1,
            Fate::Decided => counts.decided += 1,
            Fate::LeftOut(reason) => *counts.left_out.entry(reason).or_default() += 1,
            Fate::Different(difference) => {
                counts.different += 1;
                let (request, answer) = (&line.request, &line.response);
                let code = answer.body.get("code").unwrap_or(&Value::Null);
                println!(
                    "{name}, step {}: {} {}: recorded {} {code}: {difference}",
                    line.step, request.method, request.path, answer.status
                );
            }
        }
    }
    let Counts { same, decided, different, .. } = counts;
    println!("{name:22} {same:4} same {decided:2} as the protocol decides instead {different:2} different");
    for (reason, count) in &counts.left_out {
        println!("{:22} {count:4} left out: {reason}", "");
    }
    counts
}

/// Replays a recording of the project, and compares the counts.
async fn expect(name: &str) {
    let row = EXPECTED.into_iter().find(|row| row.0 == name).expect("a recording of the project");
    let (_, same, decided, bank, other) = row;
    let left_out = [(Reason::Bank, bank)].into_iter().chain(other).filter(|(_, count)| *count > 0).collect();
    let expected = Counts { same, decided, different: 0, left_out };
    assert_eq!(replay(&own_directory(), name).await, expected, "{name}");
}

#[tokio::test]
async fn payments_between_people() {
    expect("p2p-rsa").await;
}

#[tokio::test]
async fn identification() {
    expect("kyc").await;
}

#[tokio::test]
async fn wallets_pay_each_other() {
    expect("wallet-p2p").await;
}

#[tokio::test]
async fn wallets_pay_each_other_without_fees() {
    expect("wallet-p2p-free").await;
}

#[tokio::test]
async fn wallets_with_age_restriction() {
    expect("wallet-age-restricted").await;
}

#[tokio::test]
async fn errors() {
    expect("errors").await;
}

#[tokio::test]
async fn management() {
    expect("management").await;
}

#[tokio::test]
async fn revocation() {
    expect("revocation-rsa").await;
}

#[tokio::test]
async fn client_library_with_rsa() {
    expect("exchange-api-rsa").await;
}

#[tokio::test]
async fn client_library_with_cs() {
    expect("exchange-api-cs").await;
}

#[tokio::test]
async fn wallet_with_single_withdrawals() {
    expect("wallet-single").await;
}

#[tokio::test]
async fn wallet_with_batches() {
    expect("wallet-batch").await;
}

#[tokio::test]
async fn auditor() {
    expect("auditor").await;
}

#[tokio::test]
async fn parts_of_the_keys() {
    expect("cherry-picking-rsa").await;
}

#[test]
fn every_recording_of_the_project_is_expected() {
    assert_eq!(Scenario::names(&own_directory()), EXPECTED.map(|row| row.0));
}

#[tokio::test]
async fn further_recordings() {
    let directory = std::env::var_os("BATZEN_HTTP_VECTORS").filter(|directory| !directory.is_empty());
    let Some(directory) = directory else { return };
    let directory = Path::new(&directory);
    for name in Scenario::names(directory) {
        assert_eq!(replay(directory, &name).await.different, 0, "{name}");
    }
}
