//! The database is down, or its disk is full: checks what services answer, that they recover by themselves,
//! and that nothing is lost or done twice.

use std::sync::Arc;
use std::time::{Duration, Instant};

use batzen_crypto::EddsaPrivateKey;
use batzen_http::client::{Client, ClientOptions, Reply};
use batzen_protocol::ErrorCode;
use batzen_protocol::api::exchange::BlindSignatures;
use batzen_testkit::postgres::{Cluster, ClusterOptions, Mode};
use serde::Serialize;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::common::customer::credit;
use crate::common::setup::wait_for;
use crate::common::site::Site;
use crate::common::{PATIENCE, Service, end};
use crate::crash::coins::{Coin, Contract, Denom, Shop, money};
use crate::nodes::purse::{batch_withdraw, fund, planchets, withdraw};
use crate::nodes::{prepare_at, start_node};

const DATABASE: &str = "money";

/// Bank and exchange on a separate database server, and a client.
struct Deployment {
    cluster: Cluster,
    site: Site,
    exchange_url: String,
    client: Client,
    bank: Service,
    exchange: Service,
    denom: Arc<Denom>,
    shop: Shop,
}

impl Deployment {
    /// `ready` is applied to the server once the tables exist.
    async fn open(ready: impl FnOnce(&mut Cluster)) -> Self {
        let options = ClusterOptions::unsynced();
        let mut cluster = Cluster::start(&options).unwrap_or_else(|error| panic!("{error}"));
        let database = cluster.create_database(DATABASE).unwrap();
        let site = Site::configured(|dir, bank_port, port| prepare_at(&database, dir, bank_port, port, ""));
        ready(&mut cluster);
        let number = site.bank_port.to_string();
        let bank = ["bank", "serve", "--currency", "KUDOS", "--port", &number, "--store", "postgres"];
        let bank = [&bank[..], &["--database", &database]].concat();
        let bank = Service::start(site.dir.path(), "bank", &bank);
        wait_for(site.bank_port, "/taler-bank-integration/config");
        let exchange = start_node(&site, "exchange", &[]);
        wait_for(site.exchange_port, "/keys");
        // A late answer is still an answer.
        let client = Client::new(&ClientOptions { timeout: PATIENCE, ..ClientOptions::default() }).unwrap();
        let exchange_url = site.exchange_url();
        let denoms = Denom::offered(&client, &exchange_url).await;
        let denom = Arc::clone(denoms.iter().find(|denom| !denom.is_cs()).unwrap());
        let shop = Shop::new("bakery");
        Self { cluster, site, exchange_url, client, bank, exchange, denom, shop }
    }

    async fn reserve(&self, coins: u64) -> EddsaPrivateKey {
        let amount = self.denom.cost().checked_mul(coins).unwrap();
        fund(&self.client, &self.site, 1, amount).await.remove(0)
    }

    async fn coins(&self, reserve: &EddsaPrivateKey, count: usize) -> Vec<Coin> {
        let key = EddsaPrivateKey::from_bytes(*reserve.as_bytes());
        withdraw(self.client.clone(), self.exchange_url.clone(), key, Arc::clone(&self.denom), count).await
    }

    fn ask(&self, path: &str) -> impl Future<Output = Reply> + Send + 'static {
        let (client, url) = (self.client.clone(), format!("{}{path}", self.exchange_url));
        async move { client.get(url).send().await.unwrap() }
    }

    fn post(&self, path: &str, body: &impl Serialize) -> impl Future<Output = Reply> + Send + 'static {
        let (client, url) = (self.client.clone(), format!("{}{path}", self.exchange_url));
        let body = serde_json::to_vec(body).unwrap();
        async move { client.post(url).body("application/json", body).send().await.unwrap() }
    }

    fn sql(&self, sql: &str) -> String {
        self.cluster.sql(DATABASE, sql).unwrap()
    }

    /// Ends the services and checks that the books balance.
    fn close(self) -> Value {
        end([self.exchange, self.bank]);
        self.site.totals()
    }
}

/// Returns whether the answer asks to retry later.
fn is_away(reply: &Reply, code: ErrorCode) -> bool {
    if reply.status != 503 {
        return false;
    }
    let body: Value = reply.json().unwrap();
    assert_eq!(body["code"], code.to_u32(), "{body}");
    assert_eq!(reply.headers["retry-after"], "1");
    true
}

/// Retries until the answer no longer asks to retry later.
async fn insist(code: ErrorCode, ask: impl AsyncFn() -> Reply) -> Reply {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let reply = ask().await;
        if !is_away(&reply, code) {
            return reply;
        }
        assert!(Instant::now() < deadline, "the service does not go on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_database_a_service_asks_clients_to_retry_and_recovers() {
    const PAYMENTS: usize = 40;
    const AWAY: ErrorCode = ErrorCode::GENERIC_DB_SOFT_FAILURE;
    const BANK_AWAY: ErrorCode = ErrorCode::BANK_SOFT_EXCEPTION;
    let mut deployment = Deployment::open(|_| {}).await;
    let reserve = deployment.reserve(PAYMENTS as u64 + 1).await;
    let coins = deployment.coins(&reserve, PAYMENTS).await;
    let due = Contract::due();
    let payments: Vec<_> = coins
        .iter()
        .map(|coin| {
            let body = coin.deposit(&deployment.shop, &due, deployment.denom.value);
            (format!("coins/{}/deposit", coin.key_pub), serde_json::to_value(&body).unwrap())
        })
        .collect();

    // Some are paid before; the outcome of those under way when the server stops is unknown.
    let (before, after) = payments.split_at(PAYMENTS / 4);
    for (path, body) in before {
        assert_eq!(deployment.post(path, body).await.status, 200);
    }
    let mut meeting = JoinSet::new();
    for (path, body) in after {
        meeting.spawn(deployment.post(path, body));
    }
    tokio::task::block_in_place(|| deployment.cluster.stop(Mode::Immediate)).unwrap();

    // Requests that need the database get 503 with Retry-After as soon as it is known to be down.
    let planchets = planchets(&deployment.denom, 1);
    let withdrawal =
        (format!("reserves/{}/batch-withdraw", reserve.public_key()), batch_withdraw(&planchets, &reserve));
    let status = format!("reserves/{}", reserve.public_key());
    let income = credit(EddsaPrivateKey::generate().public_key(), money("3"), "ann");
    let gateway = format!("http://localhost:{}/taler-wire-gateway/exchange", deployment.site.bank_port);
    let send_income =
        async || deployment.client.post_json(format!("{gateway}/admin/add-incoming"), &income).await.unwrap();
    let (read, write, income_sent) =
        tokio::join!(deployment.ask(&status), deployment.post(&withdrawal.0, &withdrawal.1), send_income());
    assert!(is_away(&read, AWAY), "{read:?}");
    assert!(is_away(&write, AWAY), "{write:?}");
    assert!(is_away(&income_sent, BANK_AWAY), "{income_sent:?}");
    let history = format!("{gateway}/history/incoming?delta=10");
    let history = async || deployment.client.get(&*history).send().await.unwrap();
    let reply = history().await;
    assert!(is_away(&reply, BANK_AWAY), "{reply:?}");
    // Data in memory is still served, above all to those who investigate.
    for path in ["keys", "wire", "metrics"] {
        assert_eq!(deployment.ask(path).await.status, 200, "{path}");
    }
    let met = meeting.join_all().await;
    for reply in &met {
        assert!(reply.status == 200 || is_away(reply, AWAY), "{reply:?}");
    }
    println!(
        "{} of {} payments were answered before the end",
        met.iter().filter(|reply| reply.status == 200).count(),
        met.len()
    );

    // The same processes recover, and everything requested is done once.
    tokio::task::block_in_place(|| deployment.cluster.start_again()).unwrap();
    for (path, body) in &payments {
        let reply = insist(AWAY, async || deployment.post(path, body).await).await;
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    let reply = insist(AWAY, async || deployment.post(&withdrawal.0, &withdrawal.1).await).await;
    let signatures: BlindSignatures = reply.ok().unwrap();
    for (planchet, signature) in planchets.into_iter().zip(&signatures.ev_sigs) {
        let _ = planchet.finish(&signature.ev_sig);
    }
    assert_eq!(insist(AWAY, async || deployment.ask(&status).await).await.status, 200);
    assert_eq!(insist(BANK_AWAY, send_income).await.status, 200);
    let reply = insist(BANK_AWAY, history).await;
    let incoming: Value = reply.ok().unwrap();
    assert_eq!(incoming["incoming_transactions"].as_array().unwrap().len(), 2, "{incoming}");
    for service in [&mut deployment.exchange, &mut deployment.bank] {
        service.assert_runs();
    }
    let count = deployment.sql("SELECT count(*), count(DISTINCT coin_pub) FROM exchange.deposits");
    assert_eq!(count.trim(), format!("{PAYMENTS}|{PAYMENTS}"));

    let (denom, cluster_is_up) = (Arc::clone(&deployment.denom), deployment.cluster.is_running());
    assert!(cluster_is_up);
    let totals = deployment.close();
    let of = |count: u64| denom.value.checked_mul(count).unwrap().to_string();
    assert_eq!(totals["pending"], of(PAYMENTS as u64).as_str(), "{totals:#}");
    assert_eq!(totals["outstanding"], of(1).as_str(), "{totals:#}");
    assert_eq!(totals["reserves"], "0", "{totals:#}");
}

/// Makes the disk end where the table of deposits would grow, so that every write to it fails as on a full
/// disk.
fn fill_disk_under_deposits(cluster: &mut Cluster) {
    let sql = "SELECT pg_relation_filepath(c.oid) FROM pg_class c WHERE c.relkind = 'r' AND (c.oid = 'exchange.deposits'::regclass \
               OR c.oid IN (SELECT relid FROM pg_partition_tree('exchange.deposits')))";
    let files = cluster.sql(DATABASE, sql).unwrap();
    cluster.stop(Mode::Fast).unwrap();
    assert!(!files.trim().is_empty());
    for file in files.lines() {
        let file = cluster.data_dir().join(file.trim());
        assert_eq!(std::fs::metadata(&file).unwrap().len(), 0, "nothing is deposited yet");
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/dev/full", &file).unwrap();
    }
    cluster.start_again().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_full_disk_payments_are_refused_until_there_is_space() {
    let mut deployment = Deployment::open(fill_disk_under_deposits).await;
    let reserve = deployment.reserve(8).await;
    let coins: Vec<_> = deployment.coins(&reserve, 3).await.into_iter().map(Arc::new).collect();
    let parts: Vec<_> = coins.iter().map(|coin| (Arc::clone(coin), deployment.denom.value)).collect();
    let payment = Coin::batch_deposit(&parts, &deployment.shop, &Contract::due());
    let known = "SELECT (SELECT count(*) FROM exchange.coins), (SELECT count(*) FROM exchange.deposits), \
                 (SELECT count(*) FROM exchange.deposits_open)";
    for _ in 0..2 {
        let reply = deployment.post("batch-deposit", &payment).await;
        let body: Value = reply.json().unwrap();
        assert_eq!(
            (reply.status, &body["code"], &body["detail"]),
            (500, &ErrorCode::GENERIC_DB_STORE_FAILED.to_u32().into(), &"no space left".into()),
            "{body}"
        );
        // The coins would have been written before the deposits.
        assert_eq!(deployment.sql(known).trim(), "0|0|0");
    }
    assert!(
        deployment.cluster.log().contains("No space left on device"),
        "the server itself met the end of the disk"
    );
    // Tables with free space still work.
    let more = deployment.coins(&reserve, 2).await;
    assert_eq!(deployment.ask(&format!("reserves/{}", reserve.public_key())).await.status, 200);

    // Writes the tables to new files, where there is space.
    tokio::task::block_in_place(|| deployment.sql("VACUUM FULL exchange.deposits"));
    assert_eq!(deployment.post("batch-deposit", &payment).await.status, 200);
    assert_eq!(deployment.post("batch-deposit", &payment).await.status, 200);
    assert_eq!(deployment.sql(known).trim(), "3|3|3");
    let single = more[0].deposit(&deployment.shop, &Contract::due(), deployment.denom.value);
    assert_eq!(deployment.post(&format!("coins/{}/deposit", more[0].key_pub), &single).await.status, 200);
    deployment.exchange.assert_runs();
    let denom = Arc::clone(&deployment.denom);
    let totals = deployment.close();
    assert_eq!(totals["pending"], denom.value.checked_mul(4).unwrap().to_string().as_str(), "{totals:#}");
}
