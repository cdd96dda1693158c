//! The wallet as a customer of the merchant backend: bank, exchange, backend and wallet are real processes.

use std::path::PathBuf;

use batzen_http::client::{Client, ClientOptions, Reply};
use serde_json::{Value, json};

use crate::common::backend::Backend;
use crate::common::customer::{credit, fill};
use crate::common::site::Site;
use crate::common::{PATIENCE, Service, batzen, end, kill_after, run, stderr, stdout};
use crate::crash::coins::money;

/// Exit code of a wallet command that has to be continued.
const PENDING: i32 = 3;
/// Exit code of a wallet command for which the money is not enough.
const POOR: i32 = 4;
/// Exit code of a wallet command that somebody has refused.
const REFUSED: i32 = 5;

/// A shop, its exchange, its bank, and a customer with money.
pub(crate) struct World {
    pub site: Site,
    pub backend: Backend,
    exchange: Option<Service>,
    bank: Service,
}

impl World {
    async fn new() -> Self {
        Self::with_exchange(None, "").await
    }

    /// The backend has further options, and the shop accepts another exchange as well.
    pub(crate) async fn with_exchange(other: Option<&Site>, more: &str) -> Self {
        let site = Site::with_fees("");
        let (bank, exchange) = (site.start_bank(), Some(site.start_exchange()));
        let client = Client::new(&ClientOptions::default()).unwrap();
        let mut accepted = Vec::new();
        for site in [Some(&site), other].into_iter().flatten() {
            let url = site.exchange_url();
            let keys: Value = client.get_json(format!("{url}keys")).await.unwrap().ok().unwrap();
            accepted.push((url, keys["master_public_key"].as_str().unwrap().to_owned()));
        }
        let accepted: Vec<_> = accepted.iter().map(|(url, key)| (url.as_str(), key.as_str())).collect();
        let mut backend = Backend::new(site.dir.path(), client, &accepted, more);
        backend.start();
        backend.open_shop("KUDOS:0.01").await;
        tokio::task::block_in_place(|| site.withdraw("wallet", "KUDOS:20"));
        Self { site, backend, exchange, bank }
    }

    /// Stops the exchange. It can be changed meanwhile.
    pub(crate) fn stop_exchange(&mut self) {
        assert!(self.exchange.take().unwrap().terminate().0.success());
    }

    /// Starts it again.
    pub(crate) fn start_exchange(&mut self) {
        self.exchange = Some(self.site.start_exchange());
    }

    fn wallet_file(&self) -> PathBuf {
        self.site.path("wallet.db")
    }

    /// Runs a command that must exit with this code.
    fn exits(&self, code: i32, words: &[&str]) -> Value {
        let words = [&["--json"][..], words].concat();
        let output = tokio::task::block_in_place(|| self.site.wallet("wallet", &words));
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}{}", stdout(&output), stderr(&output));
        let text = if output.stdout.is_empty() { &output.stderr } else { &output.stdout };
        serde_json::from_slice(text).unwrap()
    }

    pub(crate) fn ok(&self, words: &[&str]) -> Value {
        self.exits(0, words)
    }

    fn total(&self) -> f64 {
        let balance = self.ok(&["balance"]);
        let total = balance["balances"][0]["total"].as_str().unwrap().to_owned();
        total.strip_prefix("KUDOS:").unwrap().parse().unwrap()
    }

    async fn post(&self, path: &str, body: &Value) -> Reply {
        self.backend.post(path, body).await
    }

    pub(crate) async fn order(&self, id: &str) -> Value {
        self.backend.get(&format!("private/orders/{id}")).await
    }

    /// Makes an order that can be refunded for an hour. Returns its number and the link to pay it.
    pub(crate) async fn offer(&self, amount: &str, more: Value) -> (String, String) {
        let mut order = json!({ "amount": format!("KUDOS:{amount}"), "summary": "a book" });
        order.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let wish = json!({ "order": order, "refund_delay": { "d_us": 3_600_000_000_u64 } });
        let made: Value = self.post("private/orders", &wish).await.ok().unwrap();
        let id = made["order_id"].as_str().unwrap().to_owned();
        let uri = self.order(&id).await["taler_pay_uri"].as_str().unwrap().to_owned();
        (id, uri)
    }

    /// Approves refunds up to this sum. Returns the link for the customer.
    async fn approve(&self, id: &str, total: &str) -> String {
        let wish = json!({ "refund": format!("KUDOS:{total}"), "reason": "torn" });
        let answer: Value = self.post(&format!("private/orders/{id}/refund"), &wish).await.ok().unwrap();
        answer["taler_refund_uri"].as_str().unwrap().to_owned()
    }

    pub(crate) fn end(mut self) {
        self.backend.stop();
        end([self.exchange.unwrap(), self.bank]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wallet_takes_refunds() {
    let world = World::new().await;
    let (id, uri) = world.offer("3", json!({})).await;
    let purchase = world.ok(&["pay", &uri, "--yes"])["transaction"]["id"].to_string();
    let before = world.total();
    assert_eq!(world.ok(&["refund", &purchase])["refunds"], json!([]), "nothing is approved");

    let link = world.approve(&id, "1").await;
    let picked_up = world.ok(&["refund", &link]);
    assert_eq!(picked_up["refunds"].as_array().unwrap().len(), 1, "{picked_up}");
    assert_eq!(picked_up["refunds"][0]["amount"], "KUDOS:1");
    assert_eq!(picked_up["purchase"]["id"].to_string(), purchase);
    let after = world.total();
    assert!(after > before + 0.8 && after < before + 1.0, "{before} {after}");
    let seen = world.order(&id).await;
    assert_eq!(seen["refund_details"][0]["pending"], json!(false), "{seen}");

    // Nothing twice, and another one by the number of the purchase, while the exchange is unreachable at first.
    assert_eq!(world.ok(&["refund", &link])["refunds"].as_array().unwrap().len(), 1);
    assert!((world.total() - after).abs() < 1e-9);
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    world.approve(&id, "2.5").await;
    let mut world = world;
    world.stop_exchange();
    let refunds = world.exits(PENDING, &["refund", &purchase]);
    assert_eq!(refunds["refunds"][1]["status"], "pending", "{refunds}");
    world.start_exchange();
    world.ok(&["run", "--timeout", "30"]);
    let refunds = world.ok(&["refund", &purchase]);
    assert_eq!(refunds["refunds"][1]["status"], "done", "{refunds}");
    assert_eq!(refunds["refunds"][1]["amount"], "KUDOS:1.5", "{refunds}");
    assert!(refunds["purchase"]["refunded"].as_str().unwrap().starts_with("KUDOS:2."), "{refunds}");
    assert!(world.order(&id).await["refund_pending"] == json!(false));
    let error = world.exits(1, &["refund", "taler://refund/elsewhere.example/ORDER/"]);
    assert!(error.to_string().contains("has not paid that order"), "{error}");
    world.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wallet_waits_for_a_promised_refund() {
    let world = World::new().await;
    // Until then the wallet asks: long enough for a busy machine to start five programs.
    let (id, uri) = world.offer("2", json!({ "auto_refund": { "d_us": 20_000_000 } })).await;
    world.ok(&["pay", &uri, "--yes"]);
    let before = world.total();
    let pending = world.ok(&["pending"]);
    assert_eq!(pending["pending"][0]["type"], "pick-up", "{pending}");
    let file = world.wallet_file().to_str().unwrap().to_owned();
    let waiting = tokio::task::spawn_blocking(move || {
        run(&["wallet", "--wallet", &file, "--json", "run", "--timeout", "120"])
    });
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    world.approve(&id, "2").await;
    let report = waiting.await.unwrap();
    assert!(report.status.success(), "{}{}", stdout(&report), stderr(&report));
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["pending"], json!([]), "{report}");
    assert!(world.total() > before + 1.7, "{report}");
    assert_eq!(world.order(&id).await["refund_details"][0]["pending"], json!(false));
    world.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wallet_gives_up_what_cannot_be_paid() {
    let mut world = World::new().await;
    let before = world.total();
    // The exchange is unreachable, so the shop cannot deposit the coins.
    let (id, uri) = world.offer("3", json!({})).await;
    world.stop_exchange();
    world.exits(PENDING, &["pay", &uri, "--yes"]);
    let purchase = world.ok(&["pending"])["pending"][0]["id"].to_string();
    world.exits(PENDING, &["abort", &purchase]);
    world.start_exchange();
    let given_up = world.ok(&["abort", &purchase]);
    assert_eq!((&given_up["status"], &given_up["refunded"]), (&json!("failed"), &Value::Null), "{given_up}");
    assert_eq!(world.order(&id).await["order_status"], "claimed");
    world.ok(&["run", "--timeout", "30"]);
    assert!(world.total() > before - 0.5, "the coins are free again");
    // What is paid is not given up.
    let (id, uri) = world.offer("1", json!({})).await;
    let paid = world.ok(&["pay", &uri, "--yes"]);
    let error = world.exits(1, &["abort", &paid["transaction"]["id"].to_string()]);
    assert!(error.to_string().contains("ask the shop for a refund"), "{error}");
    assert_eq!(world.order(&id).await["order_status"], "paid");

    // A copy of the wallet spends its coins: what the shop has deposited of the other's purchase comes back.
    let copy = world.site.path("copy.db");
    std::fs::copy(world.wallet_file(), &copy).unwrap();
    let (_, first) = world.offer("6", json!({})).await;
    world.ok(&["pay", &first, "--yes"]);
    std::fs::rename(&copy, world.wallet_file()).unwrap();
    let (second, uri) = world.offer("13", json!({})).await;
    let error = world.exits(REFUSED, &["pay", &uri, "--yes"]);
    assert!(error.to_string().contains("not enough money"), "{error}");
    world.ok(&["run", "--timeout", "30"]);
    let rows = world.ok(&["transactions"]);
    let failed = rows["transactions"].as_array().unwrap().iter().find(|row| row["status"] == "failed");
    assert!(failed.is_some(), "{rows}");
    assert_eq!(world.order(&second).await["order_status"], "claimed");
    let balance = world.ok(&["balance"]);
    assert_eq!(balance["unsettled_evidence"], json!(0), "{balance}");
    world.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wallet_takes_tips() {
    let world = World::new().await;
    let exchange_url = world.site.exchange_url();
    let wish = json!({
        "initial_balance": "KUDOS:10", "exchange_url": exchange_url, "wire_method": "x-taler-bank",
    });
    let made: Value = world.post("private/reserves", &wish).await.ok().unwrap();
    // The shop fills its reserve.
    let reserve_pub = made["reserve_pub"].as_str().unwrap().parse().unwrap();
    fill(&world.backend.client, world.site.bank_port, &credit(reserve_pub, money("10"), "books")).await;
    let give = json!({ "amount": "KUDOS:3", "justification": "a good answer", "next_url": "" });
    let deadline = std::time::Instant::now() + PATIENCE;
    let tip: Value = loop {
        let reply = world.post("private/tips", &give).await;
        if reply.status == 200 {
            break reply.json().unwrap();
        }
        assert!(std::time::Instant::now() < deadline, "the reserve is not funded: {reply:?}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    };
    let uri = tip["taler_tip_uri"].as_str().unwrap();

    let before = world.total();
    let taken = world.ok(&["tip", uri, "--yes"]);
    assert_eq!((&taken["type"], &taken["status"]), (&json!("tip"), &json!("done")), "{taken}");
    let after = world.total();
    // One coin of 2, because only RSA coins are given.
    assert!((after - before - 2.0).abs() < 1e-9, "{before} {after}");
    assert_eq!(world.ok(&["tip", uri, "--yes"])["id"], taken["id"], "a tip is taken once");
    assert!((world.total() - after).abs() < 1e-9);
    // Another wallet finds nothing, and what is no tip is refused.
    let words = ["--json", "tip", uri, "--yes"];
    let output = tokio::task::block_in_place(|| world.site.wallet("other", &words));
    assert!(stderr(&output).contains("too little"), "{}{}", stdout(&output), stderr(&output));
    let unknown = format!("taler+http://tip/localhost:{}/{}", world.backend.port, "0".repeat(103));
    let error = world.exits(1, &["tip", &unknown, "--yes"]);
    assert!(error.to_string().contains("no such tip"), "{error}");
    // The coins pay.
    let (id, link) = world.offer("20", json!({})).await;
    world.ok(&["pay", &link, "--yes"]);
    assert_eq!(world.order(&id).await["order_status"], "paid");
    world.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn coins_of_two_exchanges_pay_together() {
    let site = Site::with_fees("");
    let (bank, exchange) = (site.start_bank(), site.start_exchange());
    let world = World::with_exchange(Some(&site), "").await;
    let (bank_url, exchange_url) = (site.bank_url(), site.exchange_url());
    let at_bank = ["--bank", &bank_url, "--user", "zoe", "--password", "zoe", "--exchange", &exchange_url];
    world.ok(&[&["withdraw", "--yes", "--amount", "KUDOS:5"][..], &at_bank].concat());

    let (id, uri) = world.offer("22", json!({})).await;
    let paid = world.ok(&["pay", &uri, "--yes"]);
    let exchanges = paid["receipt"]["exchanges"].as_array().unwrap();
    assert_eq!(exchanges.len(), 2, "{paid}");
    assert_eq!(world.order(&id).await["order_status"], "paid");
    let purchase = paid["transaction"]["id"].to_string();
    // The refund is so large that it is of the coins of both.
    let link = world.approve(&id, "20").await;
    let refunds = world.ok(&["refund", &link]);
    assert_eq!(refunds["refunds"][0]["status"], "done", "{refunds}");
    assert_eq!(refunds["purchase"]["id"].to_string(), purchase);
    world.ok(&["run", "--timeout", "30"]);
    let balance = world.ok(&["balance"]);
    let held = balance["balances"][0]["exchanges"].as_array().unwrap();
    assert!(held.iter().all(|part| part["available"] != json!("KUDOS:0")), "{balance}");
    assert_eq!(balance["unsettled_evidence"], json!(0), "{balance}");
    // More than both have is refused before anything is sent.
    let (id, uri) = world.offer("60", json!({})).await;
    world.exits(POOR, &["pay", &uri, "--yes"]);
    assert_eq!(world.order(&id).await["order_status"], "claimed");
    world.end();
    end([exchange, bank]);
}

/// The wallet is killed at different moments, and continues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wallet_killed_while_it_takes_refunds_loses_nothing() {
    const ROUNDS: u64 = 8;
    let world = World::new().await;
    for round in 0..ROUNDS {
        let (id, uri) = world.offer("1.5", json!({})).await;
        world.ok(&["pay", &uri, "--yes"]);
        let link = world.approve(&id, "1").await;
        let file = world.wallet_file();
        let mut refund = batzen();
        refund.args(["wallet", "--wallet", file.to_str().unwrap(), "refund", &link]);
        tokio::task::block_in_place(|| {
            kill_after(refund, std::time::Duration::from_millis(15 * round));
        });
        let refunds = world.ok(&["refund", &link])["refunds"].as_array().unwrap().clone();
        assert_eq!(refunds.len(), 1, "round {round}: {refunds:?}");
        assert_eq!((&refunds[0]["status"], &refunds[0]["amount"]), (&json!("done"), &json!("KUDOS:1")));
        world.ok(&["run", "--timeout", "30"]);
        let seen = world.order(&id).await;
        assert_eq!((&seen["refund_amount"], &seen["refund_pending"]), (&json!("KUDOS:1"), &json!(false)));
    }
    // What was credited twice would be refused when it is refreshed.
    let history = world.ok(&["transactions", "--all"]);
    let rows = history["transactions"].as_array().unwrap();
    let of_type = |kind: &str| rows.iter().filter(|row| row["type"] == kind).count() as u64;
    assert_eq!((of_type("payment"), of_type("refund")), (ROUNDS, ROUNDS), "{history}");
    assert_eq!(of_type("spent-elsewhere") + of_type("expired"), 0, "{history}");
    assert_eq!(world.ok(&["balance"])["unsettled_evidence"], json!(0));
    world.end();
}
