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
//! | [`gaps`] | requests that the recordings leave out |
//!
//! The recordings are those in `crates/protocol/tests/vectors/http`. The environment variable
//! `BATZEN_HTTP_VECTORS` names a further directory of the same format.

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
    different: usize,
    left_out: BTreeMap<Reason, usize>,
}

fn master(directory: &Path) -> EddsaPrivateKey {
    let text = std::fs::read_to_string(directory.join("secrets.json")).expect("the recordings' master key");
    let secrets: Value = serde_json::from_str(&text).unwrap();
    secrets["master_private_key"].as_str().unwrap().parse().unwrap()
}

async fn replay(directory: &Path, name: &str) -> Counts {
    let scenario = Scenario::read(directory, name);
    let lines = Player::new(scenario, master(directory)).await.play().await;
    let mut counts = Counts::default();
    for (line, fate) in lines {
        match fate {
            Fate::Same => counts.same += 1,
            Fate::LeftOut(reason) => *counts.left_out.entry(reason).or_default() += 1,
            Fate::Different(difference) => {
                counts.different += 1;
                println!(
                    "{name} step {}: {} {} -> {} {}: {difference}",
                    line.step,
                    line.request.method,
                    line.request.path,
                    line.response.status,
                    line.response.body.get("code").unwrap_or(&Value::Null),
                );
            }
        }
    }
    println!("{name:24} {:5} same {:5} different", counts.same, counts.different);
    for (reason, count) in &counts.left_out {
        println!("{:24} {count:5} left out: {reason}", "");
    }
    counts
}

/// Replays a recording of the project, and compares the counts.
async fn expect(name: &str, same: usize, left_out: &[(Reason, usize)]) {
    let left_out = left_out.iter().copied().collect();
    let expected = Counts { same, different: 0, left_out };
    assert_eq!(replay(&own_directory(), name).await, expected, "{name}");
}

#[tokio::test]
async fn payments_between_people() {
    expect("p2p-rsa", 37, &[(Reason::Bank, 8), (Reason::Decided, 1)]).await;
}

#[tokio::test]
async fn identification() {
    expect("kyc", 40, &[(Reason::Bank, 9)]).await;
}

#[tokio::test]
async fn wallets_pay_each_other() {
    expect("wallet-p2p", 50, &[(Reason::Bank, 25)]).await;
}

#[tokio::test]
async fn wallets_pay_each_other_without_fees() {
    expect("wallet-p2p-free", 61, &[(Reason::Bank, 25)]).await;
}

#[tokio::test]
async fn wallets_with_age_restriction() {
    expect("wallet-age-restricted", 74, &[(Reason::Bank, 13)]).await;
}

#[tokio::test]
async fn management() {
    expect("management", 23, &[]).await;
}
