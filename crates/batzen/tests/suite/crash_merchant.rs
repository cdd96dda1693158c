//! `kill -9` on the merchant backend under load, repeatedly, and a proof that no money is lost.
//!
//! Bank, exchange and merchant backend are real processes of the real program. This process plays the customers of
//! a shop, all at the same time: they order, claim, pay, get refunds and give up payments, some of them before they
//! are answered. Whatever is not answered they repeat. The backend is killed at random moments and restarted. Then it is proven that
//!
//! 1. every order whose payment was confirmed is paid, and the same request gets the same receipt;
//! 2. the exchange's books have each coin that paid, for one order, and no deposit that its owner does not know;
//! 3. each refund was made once, and so was each repayment of a payment that was given up;
//! 4. the books of bank, exchange, merchant backend and customers agree to the last unit;
//! 5. the proof can fail: a payment that never happened, a refund that was forgotten, and a coin that paid twice
//!    are found.
//!
//! `BATZEN_SOAK_CYCLES` and `BATZEN_SOAK_SEED` as in the test of the exchange.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use batzen_protocol::Money;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::common::PATIENCE;
use crate::common::backend::Backend;
use crate::common::customer::Customer;
use crate::crash::coins::{CURRENCY, Coin, Denom, minus, money};
use crate::crash::deployment::Deployment;
use crate::crash::run::{assert_well, client, cycles, dice};
use crate::crash::shop_facts::{self, Findings};
use crate::crash::shoppers::{Bought, End, Street};

/// The number of concurrent customers.
const SHOPPERS: usize = 8;
/// The amount that each of them pays into a reserve.
const PAID_IN: &str = "100000";
/// Orders of each kind that must have been completed.
const ORDERS_MIN: usize = 3;

fn port_of(url: &str) -> u16 {
    url.trim_end_matches('/').rsplit(':').next().unwrap().parse().unwrap()
}

/// Returns whether enough orders of each kind have been completed.
fn is_varied(street: &Street) -> bool {
    let bought = street.bought.lock().unwrap();
    let count = |is: fn(&Bought) -> bool| bought.iter().filter(|order| is(order)).count();
    [
        count(|order| matches!(order.end, End::Aborted { .. })),
        count(|order| matches!(order.end, End::Paid { .. }) && !order.refunds().is_empty()),
        count(|order| matches!(order.end, End::Paid { .. }) && order.refunds().is_empty()),
    ]
    .into_iter()
    .all(|count| count >= ORDERS_MIN)
}

async fn watch(customers: &mut JoinSet<()>, for_ms: u64) {
    assert_well(customers);
    tokio::time::sleep(Duration::from_millis(for_ms)).await;
    assert_well(customers);
}

fn sum(items: impl IntoIterator<Item = Money>) -> Money {
    Money::checked_sum(items).unwrap()
}

/// The backend's books say the same as the customers'.
async fn check_backend(street: &Street, bought: &[Bought]) {
    for order in bought {
        let seen: Value = street.get(&format!("private/orders/{}", order.id)).await;
        let End::Paid { refunds, .. } = &order.end else {
            assert_eq!(seen["order_status"], "claimed", "{}: {seen}", order.id);
            continue;
        };
        let received = sum(order.coins.iter().map(|(coin, amount)| minus(*amount, coin.denom.fee_deposit)));
        let refunded = sum(refunds.iter().map(|(.., amount)| *amount));
        let found =
            [&seen["order_status"], &seen["deposit_total"], &seen["refund_amount"], &seen["refund_pending"]];
        let expected =
            [json!("paid"), json!(received.of(CURRENCY)), json!(refunded.of(CURRENCY)), json!(false)];
        assert_eq!(found, expected.each_ref(), "{}", order.id);
    }
}

/// Every request of the customers, again: it gets the same answer.
async fn repeat(street: &Street, bought: &[Bought]) {
    for order in bought {
        match &order.end {
            End::Paid { receipt, refunds } => {
                assert_eq!(street.receipt(order).await, *receipt, "{}", order.id);
                assert_eq!(street.pick_up(order).await, *refunds, "{}", order.id);
            }
            End::Aborted { refunds } => assert_eq!(street.abort(order).await, *refunds, "{}", order.id),
        }
    }
}

async fn at_rest(deployment: &mut Deployment, bought: &[Bought], coins: &[Arc<Coin>]) -> Findings {
    let paid_in = sum(std::iter::repeat_n(money(PAID_IN), SHOPPERS));
    deployment.stop();
    let (exchange, bank) = (deployment.exchange_store(), deployment.bank_books());
    let findings = shop_facts::check(bought, coins, paid_in, &exchange, &bank).await;
    exchange.close().unwrap();
    bank.close();
    findings
}

/// The proof must find false claims.
async fn assert_plants_are_found(deployment: &mut Deployment, bought: &[Bought], coins: &[Arc<Coin>]) {
    let paid = |order: &&Bought| matches!(order.end, End::Paid { .. }) && order.refunds().is_empty();
    let honest = bought.iter().find(paid).expect("an order without refund").clone();
    let mut never_made = bought.to_vec();
    never_made.push(Bought { contract: batzen_crypto::HashCode::random(), ..honest });
    let mut forgotten = bought.to_vec();
    let refunded = forgotten.iter_mut().find(|order| !order.refunds().is_empty()).expect("a refund");
    let (End::Paid { refunds, .. } | End::Aborted { refunds }) = &mut refunded.end;
    refunds.pop();
    for (what, claims, finding) in
        [("a payment", &never_made, "deposit lost"), ("a refund", &forgotten, "refund unknown")]
    {
        let problems = at_rest(deployment, claims, coins).await.problems;
        assert!(problems.iter().any(|problem| problem.contains(finding)), "{what}: {problems:?}");
    }
}

async fn play(database: Option<String>) {
    let mut dice = dice();
    let client = client();
    let mut deployment = Deployment::new(client.clone());
    deployment.start_bank().await;
    deployment.start_exchange().await;
    let exchange_url = deployment.exchange_url();
    let customer = Customer::new(vec![port_of(&exchange_url)], port_of(&deployment.bank_url()));
    let master = customer.keys().await.master_public_key.to_string();
    let dir = tempfile::tempdir().unwrap();
    let exchange = (exchange_url.as_str(), master.as_str());
    let mut backend = Backend::stored(dir.path(), client.clone(), exchange, database.as_deref());
    backend.start();
    backend.open_shop("KUDOS:1").await;
    let street = Arc::new(Street {
        denoms: Denom::offered(&client, &exchange_url).await,
        backend_url: backend.url(),
        exchange_url,
        client,
        customer,
        bought: Mutex::default(),
        hasty: Mutex::default(),
        coins: Mutex::default(),
        lost: AtomicU64::new(0),
        ends: AtomicBool::new(false),
    });
    let mut customers = JoinSet::new();
    for number in 0..SHOPPERS {
        customers.spawn(Arc::clone(&street).shopper(number, PAID_IN, dice.child()));
    }

    let kills = cycles();
    for cycle in 1..=kills {
        let before = street.bought.lock().unwrap().len();
        let for_ms = 10 + dice.below(1_491);
        watch(&mut customers, for_ms).await;
        let orders = street.bought.lock().unwrap().len() - before;
        println!("cycle {cycle}: killed after {for_ms} ms and {orders} orders");
        backend.kill_9();
        watch(&mut customers, dice.below(100)).await;
        backend.start();
    }
    let deadline = std::time::Instant::now() + PATIENCE;
    while !is_varied(&street) {
        assert!(std::time::Instant::now() < deadline, "the customers make no progress");
        watch(&mut customers, 50).await;
    }
    street.ends.store(true, Ordering::Release);
    while let Some(ended) = customers.join_next().await {
        ended.unwrap();
    }
    // What is not durable is lost now.
    backend.kill_9();
    backend.start();

    let given_up = street.hasty.lock().unwrap().len();
    street.settle_hasty().await;
    let (bought, coins) = (street.bought.lock().unwrap().clone(), street.coins.lock().unwrap().clone());
    check_backend(&street, &bought).await;
    let first = at_rest(&mut deployment, &bought, &coins).await;
    assert!(first.problems.is_empty(), "after the kills: {:#?}", first.problems);
    assert_plants_are_found(&mut deployment, &bought, &coins).await;
    deployment.start_bank().await;
    deployment.start_exchange().await;
    repeat(&street, &bought).await;
    check_backend(&street, &bought).await;
    let last = at_rest(&mut deployment, &bought, &coins).await;
    assert!(last.problems.is_empty(), "after the repetitions: {:#?}", last.problems);
    assert_eq!(first.totals, last.totals, "repetitions changed the books");
    backend.stop();

    let lost = street.lost.load(Ordering::Relaxed);
    assert!(lost > 0, "no kill met a request");
    let refunds: usize = bought.iter().map(|order| order.refunds().len()).sum();
    println!(
        "{kills} kills; {} orders, of which {given_up} were given up before an answer, {} coins, {refunds} refunds, \
         {lost} answers lost and asked for again; the books add up",
        bought.len(),
        coins.len()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_merchant_backend_loses_no_payment_and_no_refund() {
    play(None).await;
}

/// With its rows in PostgreSQL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_merchant_backend_on_postgresql_loses_nothing() {
    play(Some(batzen_testkit::postgres::fresh_database())).await;
}
