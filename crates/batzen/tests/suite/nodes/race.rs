//! Ten thousand coins, each spent over HTTP at two services at once, with different merchants.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use batzen_http::client::{Client, ClientOptions};
use batzen_protocol::api::errors::CoinConflict;
use batzen_protocol::api::exchange::CoinHistoryItem;
use batzen_protocol::{ErrorCode, Money};
use batzen_testkit::postgres::shared;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::common::{PATIENCE, end, http};
use crate::crash::coins::{Coin, Contract, Denom, Shop};
use crate::nodes::purse::{fund, withdraw};
use crate::nodes::{prepare, start_two};

const COINS: usize = 10_000;
/// The number of coins in one withdrawal, each from its own reserve.
const BATCH: usize = 250;
/// The number of coins spent at the same time.
const AT_ONCE: usize = 64;
/// The number of payments repeated at the other service.
const REPEATED: usize = 100;

/// Two services, and the clients that use them.
struct Nodes {
    client: Client,
    urls: [String; 2],
    shops: [Shop; 2],
    coins: Vec<Coin>,
}

/// A coin and the outcome of its race.
struct Race {
    coin: usize,
    winner: usize,
    contracts: [Contract; 2],
}

impl Nodes {
    /// Spends a whole coin at a service. `None`: it was accepted; otherwise the proof in the refusal.
    async fn pay(&self, coin: usize, at: usize, shop: usize, contract: &Contract) -> Option<CoinConflict> {
        let coin = &self.coins[coin];
        let body = coin.deposit(&self.shops[shop], contract, coin.denom.value);
        let url = format!("{}coins/{}/deposit", self.urls[at], coin.key_pub);
        let reply = self.client.post_json(url, &body).await.unwrap();
        if reply.status == 200 {
            return None;
        }
        let body: Value = reply.json().unwrap();
        let code = ErrorCode::EXCHANGE_GENERIC_INSUFFICIENT_FUNDS.to_u32();
        assert_eq!((reply.status, body["code"].as_u64()), (409, Some(u64::from(code))), "{body}");
        Some(serde_json::from_value(body).unwrap())
    }

    /// Spends a coin at both services, and checks that the refusal proves that the other payment came first.
    async fn race(&self, coin: usize) -> Race {
        let contracts = [Contract::due(), Contract::due()];
        // Neither is always the first.
        let first = coin % 2;
        let (one, other) = tokio::join!(
            self.pay(coin, first, first, &contracts[first]),
            self.pay(coin, 1 - first, 1 - first, &contracts[1 - first]),
        );
        let (winner, proof) = match (one, other) {
            (None, Some(proof)) => (first, proof),
            (Some(proof), None) => (1 - first, proof),
            (None, None) => panic!("coin {coin} was spent twice"),
            (Some(_), Some(_)) => panic!("coin {coin} was spent nowhere"),
        };
        self.assert_proof(coin, &proof, winner, &contracts[winner]);
        Race { coin, winner, contracts }
    }

    fn assert_proof(&self, coin: usize, proof: &CoinConflict, winner: usize, contract: &Contract) {
        let coin = &self.coins[coin];
        assert_eq!(proof.coin_pub, coin.key_pub);
        let [CoinHistoryItem::Deposit(deposit)] = proof.history.as_slice() else {
            panic!("one payment: {:?}", proof.history);
        };
        assert_eq!(deposit.h_contract_terms, contract.hash);
        assert_eq!(deposit.merchant_pub, self.shops[winner].key_pub);
        // The coin's own signature binds its owner.
        assert_eq!(coin.proven_rest(&proof.history), Ok(Money::ZERO));
    }

    /// A counter of a service.
    async fn counter(&self, node: usize, name: &str) -> u64 {
        let page = http::page(&self.client, &format!("{}metrics", self.urls[node])).await;
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("there is no {name}")).parse().unwrap()
    }

    async fn counters(&self, name: &str) -> u64 {
        self.counter(0, name).await + self.counter(1, name).await
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_ten_thousand_coins_spent_at_two_services_at_once_each_is_accepted_by_exactly_one() {
    let (site, database) = prepare("");
    let bank = site.start_bank();
    let (services, ports) = start_two(&site);

    let begun = Instant::now();
    // A late answer is still an answer.
    let client = Client::new(&ClientOptions { timeout: PATIENCE, ..ClientOptions::default() }).unwrap();
    let urls = ports.map(|port| format!("http://localhost:{port}/"));
    let denoms = Denom::offered(&client, &urls[0]).await;
    let denom = denoms.iter().find(|denom| !denom.is_cs()).unwrap();
    let each = denom.cost().checked_mul(BATCH as u64).unwrap();
    let mut withdrawing = JoinSet::new();
    for (number, reserve) in fund(&client, &site, COINS / BATCH, each).await.into_iter().enumerate() {
        let url = urls[number % 2].clone();
        withdrawing.spawn(withdraw(client.clone(), url, reserve, Arc::clone(denom), BATCH));
    }
    let coins: Vec<Coin> = withdrawing.join_all().await.into_iter().flatten().collect();
    assert_eq!(coins.len(), COINS);
    let withdrawn = begun.elapsed();

    let shops = [Shop::new("bakery"), Shop::new("bookshop")];
    let nodes = Arc::new(Nodes { client, urls, shops, coins });
    let next = Arc::new(AtomicUsize::new(0));
    let mut spending = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (nodes, next) = (Arc::clone(&nodes), Arc::clone(&next));
        spending.spawn(async move {
            let mut races = Vec::new();
            loop {
                let coin = next.fetch_add(1, Ordering::Relaxed);
                if coin >= COINS {
                    return races;
                }
                races.push(nodes.race(coin).await);
            }
        });
    }
    let races: Vec<Race> = spending.join_all().await.into_iter().flatten().collect();
    assert_eq!(races.len(), COINS);
    let spent = begun.elapsed() - withdrawn;

    // Both services agree: an accepted payment is accepted at the other one, too, and a refused one stays
    // refused.
    for race in &races[..REPEATED] {
        let (winner, contracts) = (race.winner, &race.contracts);
        assert_eq!(nodes.pay(race.coin, 1 - winner, winner, &contracts[winner]).await, None);
        let proof = nodes.pay(race.coin, winner, 1 - winner, &contracts[1 - winner]).await;
        nodes.assert_proof(race.coin, &proof.expect("it stays refused"), winner, &contracts[winner]);
    }

    // Each service won some races and lost inserts to the other; the server was left no deadlock to resolve.
    let won = races.iter().filter(|race| race.winner == 0).count();
    assert!(won > 0 && won < COINS, "one service won all races");
    let lost_commits = nodes.counters("batzen_postgres_races_total").await;
    assert!(lost_commits > 0, "the services never met");
    assert!(nodes.counters("batzen_lane_conflicts_total").await >= lost_commits);
    assert_eq!(nodes.counters("batzen_postgres_retries_total").await, 0, "serialization failures");

    // The database holds exactly what was answered.
    let name = database.rsplit_once('/').unwrap().1;
    let sql = "SELECT encode(coin_pub, 'hex') || encode(h_contract_terms, 'hex') FROM exchange.deposits";
    let rows = shared().sql(name, sql).unwrap();
    let accepted: BTreeSet<String> = races
        .iter()
        .map(|race| {
            let coin = nodes.coins[race.coin].key_pub;
            hex(coin.as_bytes()) + &hex(race.contracts[race.winner].hash.as_bytes())
        })
        .collect();
    assert_eq!(rows.lines().count(), COINS);
    assert_eq!(rows.lines().map(str::to_owned).collect::<BTreeSet<_>>(), accepted);
    let open = shared().sql(name, "SELECT count(*) FROM exchange.deposits_open").unwrap();
    assert_eq!(open.trim(), COINS.to_string());

    end(services.into_iter().chain([bank]));
    // `totals` checks the exit code, which says whether the books balance.
    let totals = site.totals();
    let sum = |money: Money| money.checked_mul(COINS as u64).unwrap().to_string();
    let withdraw_fees = sum(denom.fee_withdraw);
    for (what, expected) in [
        ("wired_in", sum(denom.cost())),
        ("wired_out", "0".to_owned()),
        ("reserves", "0".to_owned()),
        ("outstanding", "0".to_owned()),
        ("pending", sum(denom.value)),
        ("fees", withdraw_fees),
    ] {
        assert_eq!(totals[what], expected.as_str(), "{what}: {totals:#}");
    }
    println!(
        "{COINS} coins: withdrawn in {withdrawn:.0?}, spent in {spent:.0?}; {won} won at the first service, {lost_commits} commits lost a race"
    );
}
