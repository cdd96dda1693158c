//! The auditor's programs with real processes: they approve an exchange's denominations, and merchants show the service what
//! the exchange has confirmed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, HashCode};
use batzen_http::client::{Client, ClientOptions, Reply};
use batzen_protocol::Timestamp;
use batzen_protocol::api::auditor::DepositConfirmationRequest;
use batzen_protocol::signatures::SignedMessage;
use batzen_service::storage::StoreConfig;
use batzen_tables::auditor::{DepositConfirmations, SigningKeys};
use serde_json::{Value, json};
use tokio::task::{JoinSet, block_in_place};

use crate::common::setup::{ask, wait_for};
use crate::common::{PATIENCE, Service, by_name, free_port, stderr, stdout};
use crate::merchant_wallet::World;

/// An auditor's programs, called by the names that existing set-ups use.
struct Auditor {
    dir: tempfile::TempDir,
    port: u16,
    database: Option<String>,
}

impl Auditor {
    fn new(exchange_url: &str, master_pub: &str, database: Option<String>) -> Self {
        let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
        let auditor = Self { dir, port, database };
        let store = auditor.database.as_ref().map_or_else(String::new, |url| {
            format!("[auditor]\nDB = postgres\n[auditordb-postgres]\nCONFIG = {url}\n")
        });
        let text = format!(
            "[taler]\nCURRENCY = KUDOS\n[paths]\nTALER_DATA_HOME = {home}\n\
             [auditor]\nBASE_URL = http://localhost:{port}/\nPORT = {port}\nBIND_TO = 127.0.0.1\n\
             [exchange]\nBASE_URL = {exchange_url}\nMASTER_PUBLIC_KEY = {master_pub}\n{store}",
            home = auditor.dir.path().display(),
        );
        std::fs::write(auditor.config(), text).unwrap();
        std::fs::create_dir(auditor.dir.path().join("bin")).unwrap();
        auditor
    }

    fn config(&self) -> PathBuf {
        self.dir.path().join("auditor.conf")
    }

    fn program(&self, name: &str, words: &[&str]) -> std::process::Command {
        let mut command = by_name(&self.dir.path().join("bin"), name);
        command.arg("-c").arg(self.config()).args(words);
        command
    }

    fn run(&self, name: &str, words: &[&str]) -> Output {
        block_in_place(|| self.program(name, words).output().unwrap())
    }

    #[track_caller]
    fn must(&self, name: &str, words: &[&str]) -> String {
        let output = self.run(name, words);
        assert!(output.status.success(), "{name} {words:?}: {}{}", stdout(&output), stderr(&output));
        stdout(&output).trim().to_owned()
    }

    /// Runs a program with a document on its standard input.
    fn feed(&self, name: &str, words: &[&str], document: &str) -> String {
        let file = self.dir.path().join("document.json");
        std::fs::write(&file, document).unwrap();
        let mut command = self.program(name, words);
        command.stdin(Stdio::from(std::fs::File::open(&file).unwrap()));
        let output = block_in_place(|| command.output().unwrap());
        assert!(output.status.success(), "{name} {words:?}: {}{}", stdout(&output), stderr(&output));
        stdout(&output)
    }

    fn start(&self) -> Service {
        let service =
            Service::start_command(self.dir.path(), "auditor", self.program("taler-auditor-httpd", &[]));
        block_in_place(|| wait_for(self.port, "/ready"));
        service
    }

    fn url(&self, path: &str) -> String {
        format!("http://localhost:{}/{path}", self.port)
    }

    /// The rows of the service, which does not run.
    fn store(&self) -> batzen_store::Store {
        let place = match &self.database {
            Some(url) => StoreConfig::postgres(url.clone()),
            None => StoreConfig::embedded(self.dir.path().join("auditor").join("service")),
        };
        block_in_place(|| place.open(&batzen_service::storage::AUDITOR, 1).unwrap())
    }
}

/// The value of a line of `/metrics`.
async fn metric(client: &Client, url: &str, line: &str) -> u64 {
    let page = client.get(url).send().await.unwrap();
    let page = String::from_utf8_lossy(&page.body).into_owned();
    let value = page.lines().find_map(|found| found.strip_prefix(line)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("{line} is not in {page}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_auditor_approves_denominations_and_gets_the_confirmations_of_payments() {
    let world = World::with_exchange(
        None,
        "DEPOSIT_CONFIRMATION_SHARE = 100\nEXCHANGE_NETWORKS = 127.0.0.1/32 ::1/128\n",
    )
    .await;
    let exchange_url = world.site.exchange_url();
    let keys = async || -> Value {
        world.backend.client.get_json(format!("{exchange_url}keys")).await.unwrap().ok().unwrap()
    };
    let before = keys().await;
    assert_eq!(before["auditors"], json!([]));
    let master_pub = before["master_public_key"].as_str().unwrap().to_owned();
    let auditor = Auditor::new(&exchange_url, &master_pub, None);
    auditor.must("taler-auditor-dbinit", &[]);
    let auditor_pub = auditor.must("taler-auditor-offline", &["setup"]);
    let mut service = auditor.start();
    let version: Value = world.backend.client.get_json(auditor.url("version")).await.unwrap().ok().unwrap();
    assert_eq!(version["auditor_public_key"], json!(auditor_pub));

    // The exchange is named while the service runs.
    let change = "taler-auditor-exchange";
    let refused = |words: &[&str], code: i32, hint: &str| {
        let output = auditor.run(change, words);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(hint), "{words:?}: {}", stderr(&output));
    };
    refused(&["-m", &master_pub, "-r"], 1, "does not audit this exchange");
    refused(&["-m", &master_pub], 1, "-u URL");
    refused(&["-m", &master_pub, "-u", "http://localhost:1"], 2, "ends with /");
    refused(&["-m", "abc", "-u", &exchange_url], 2, "--exchange-key");
    auditor.must(change, &["-m", &master_pub, "-u", &exchange_url]);
    refused(&["-m", &master_pub, "-u", &exchange_url], 1, "audited already");
    let listed: Value = world.backend.client.get_json(auditor.url("exchanges")).await.unwrap().ok().unwrap();
    assert_eq!(listed["exchanges"], json!([{ "master_pub": master_pub, "exchange_url": exchange_url }]));

    // The exchange must know the auditor before it takes approvals.
    let early = auditor.run("taler-auditor-offline", &["download", "sign", "upload"]);
    assert_eq!(early.status.code(), Some(1));
    assert!(stderr(&early).contains("1901"), "{}", stderr(&early));
    let enable = [
        "exchange",
        "offline",
        "-c",
        &world.site.config,
        "enable-auditor",
        &auditor_pub,
        &auditor.url(""),
        "A",
    ];
    block_in_place(|| crate::common::must(&[&enable[..], &["upload"]].concat()));
    // On three machines: documents pass between them, and in one chain.
    let name = "taler-auditor-offline";
    let downloaded = auditor.must(name, &["download"]);
    assert!(auditor.feed(name, &["show"], &downloaded).contains(&format!("master key: {master_pub}")));
    let signed = auditor.feed(name, &["sign"], &downloaded);
    let approvals: Value = serde_json::from_str(&signed).unwrap();
    let approvals = approvals.as_array().unwrap();
    assert_eq!(auditor.feed(name, &["upload"], &signed), "");
    auditor.must(name, &["download", "show", "-", "sign", "upload"]);
    let after = keys().await;
    let [listed] = after["auditors"].as_array().unwrap().as_slice() else { panic!("{}", after["auditors"]) };
    assert_eq!(
        (&listed["auditor_pub"], &listed["auditor_url"]),
        (&json!(auditor_pub), &json!(auditor.url("")))
    );
    let published: BTreeSet<String> = listed["denomination_keys"]
        .as_array()
        .unwrap()
        .iter()
        .map(|approval| format!("{} {}", approval["denom_pub_h"], approval["auditor_sig"]))
        .collect();
    let signed: BTreeSet<String> = approvals
        .iter()
        .map(|operation| &operation["arguments"])
        .map(|approval| format!("{} {}", approval["h_denom_pub"], approval["auditor_sig"]))
        .collect();
    assert_eq!((published.len(), &published), (approvals.len(), &signed));
    // An approval of one denomination is none of another.
    let [first, second] = [0, 1].map(|index| &approvals[index]["arguments"]);
    let path = format!("POST /auditors/{auditor_pub}/{}", first["h_denom_pub"].as_str().unwrap());
    let forged = json!({ "auditor_sig": second["auditor_sig"] }).to_string();
    let answer = block_in_place(|| ask(world.site.exchange_port, &path, &forged));
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("1900"), "{answer}");

    // Every confirmation of a payment reaches the auditor.
    let (id, uri) = world.offer("3", json!({})).await;
    world.ok(&["pay", &uri, "--yes"]);
    let at_merchant = format!("http://localhost:{}/metrics", world.backend.port);
    let shown = "batzen_merchant_audits_total{outcome=\"shown\"}";
    let deadline = Instant::now() + PATIENCE;
    let count = loop {
        let waiting = metric(&world.backend.client, &at_merchant, "batzen_merchant_audits_waiting").await;
        let count = metric(&world.backend.client, &at_merchant, shown).await;
        if waiting == 0 && count > 0 {
            break count;
        }
        assert!(Instant::now() < deadline, "the auditor is not told");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    let stored =
        metric(&world.backend.client, &auditor.url("metrics"), "batzen_auditor_confirmations_total").await;
    assert_eq!(stored, count);
    assert_eq!(world.order(&id).await["order_status"], "paid");

    // Payments do not wait for an auditor without a connection.
    block_in_place(|| service.kill_9());
    let (id, uri) = world.offer("1", json!({})).await;
    world.ok(&["pay", &uri, "--yes"]);
    assert_eq!(world.order(&id).await["order_status"], "paid");
    // It gets them once it is back.
    let service = auditor.start();
    let deadline = Instant::now() + PATIENCE;
    while metric(&world.backend.client, &at_merchant, shown).await == count {
        assert!(Instant::now() < deadline, "the auditor is not told");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    assert!(block_in_place(|| service.terminate()).0.success());
    let store = auditor.store();
    let rows = store.all::<DepositConfirmations>().unwrap();
    assert!(rows.len() as u64 > count, "{} {count}", rows.len());
    assert!(rows.iter().all(|found| found.row.master_pub.to_string() == master_pub));
    assert_eq!(store.all::<SigningKeys>().unwrap().len(), 1);
    store.close().unwrap();
    drop(store);
    auditor.must(change, &["-m", &master_pub, "-r"]);
    refused(&["-m", &master_pub, "-r"], 1, "does not audit this exchange");
    world.end();
}

/// An exchange of which there are only the keys.
struct Keys {
    master: EddsaPrivateKey,
    online: EddsaPrivateKey,
}

impl Keys {
    fn confirmation(&self, number: u64) -> DepositConfirmationRequest {
        let now = Timestamp::from_system_time(std::time::SystemTime::now()).as_micros() / 1_000_000;
        let hash = |text: &str| batzen_crypto::hash::sha512(format!("{text}{number}").as_bytes());
        let mut coin = [0; 32];
        coin[..8].copy_from_slice(&number.to_le_bytes());
        let mut body = DepositConfirmationRequest {
            h_contract_terms: hash("contract"),
            h_policy: HashCode::from_bytes([0; 64]),
            h_wire: hash("account"),
            exchange_timestamp: Timestamp::from_secs(now),
            refund_deadline: Timestamp::from_secs(now),
            wire_deadline: Timestamp::from_secs(now),
            amount_without_fee: "KUDOS:1".parse().unwrap(),
            coin_pub: EddsaPublicKey::from_bytes(coin),
            merchant_pub: self.master.public_key(),
            exchange_sig: self.master.sign(b""),
            exchange_pub: self.online.public_key(),
            master_pub: self.master.public_key(),
            ep_start: Timestamp::from_secs(1_000_000_000),
            ep_expire: Timestamp::from_secs(4_000_000_000),
            ep_end: Timestamp::from_secs(5_000_000_000),
            master_sig: self.master.sign(b""),
        };
        body.exchange_sig = body.confirmation().sign(&self.online);
        body.master_sig = body.validity().sign(&self.master);
        body
    }
}

async fn put(client: &Client, url: &str, body: &DepositConfirmationRequest) -> Option<Reply> {
    client.call("PUT".parse().unwrap(), url).json(body).send().await.ok()
}

/// Merchants at the same time, during the kills.
const MERCHANTS: u64 = 8;
/// Number of times that the service is killed.
const KILLS: usize = 4;
/// Confirmations that must have been answered before each kill.
const ANSWERED_MIN: u64 = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_answered_is_there_after_kill_9() {
    kill_9(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_answered_is_in_postgresql_after_kill_9() {
    kill_9(Some(batzen_testkit::postgres::fresh_database())).await;
}

async fn kill_9(database: Option<String>) {
    let keys = Arc::new(Keys { master: EddsaPrivateKey::generate(), online: EddsaPrivateKey::generate() });
    let master_pub = keys.master.public_key().to_string();
    let auditor = Auditor::new("http://localhost:1/", &master_pub, database);
    auditor.must("taler-auditor-dbinit", &[]);
    auditor.must("taler-auditor-offline", &["setup"]);
    auditor.must("taler-auditor-exchange", &["-m", &master_pub, "-u", "http://localhost:1/"]);
    let client = Client::new(&ClientOptions::default()).unwrap();
    let (url, is_over) = (auditor.url("deposit-confirmation"), Arc::new(AtomicBool::new(false)));
    let answered = Arc::new(AtomicU64::new(0));
    let mut service = auditor.start();
    let mut merchants = JoinSet::new();
    for merchant in 0..MERCHANTS {
        let (keys, client, url) = (Arc::clone(&keys), client.clone(), url.clone());
        let (is_over, answered) = (Arc::clone(&is_over), Arc::clone(&answered));
        merchants.spawn(async move {
            let mut accepted = Vec::new();
            for number in (merchant << 32)..((merchant + 1) << 32) {
                let body = keys.confirmation(number);
                // Whatever is not answered is repeated.
                loop {
                    match put(&client, &url, &body).await {
                        Some(reply) if reply.status == 200 => break,
                        Some(reply) => assert!(reply.status >= 500, "{reply:?}"),
                        None => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
                    }
                    if is_over.load(Ordering::SeqCst) {
                        return accepted;
                    }
                }
                answered.fetch_add(1, Ordering::SeqCst);
                accepted.push(body.coin_pub);
                if is_over.load(Ordering::SeqCst) {
                    return accepted;
                }
            }
            accepted
        });
    }
    for _ in 0..KILLS {
        let enough = answered.load(Ordering::SeqCst) + ANSWERED_MIN;
        let deadline = Instant::now() + PATIENCE;
        while answered.load(Ordering::SeqCst) < enough {
            assert!(Instant::now() < deadline, "the auditor does not answer");
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        block_in_place(|| service.kill_9());
        service = auditor.start();
    }
    is_over.store(true, Ordering::SeqCst);
    let mut accepted = Vec::new();
    while let Some(merchant) = merchants.join_next().await {
        accepted.extend(merchant.unwrap());
    }
    block_in_place(|| service.kill_9());
    let store = auditor.store();
    let rows = store.all::<DepositConfirmations>().unwrap();
    let stored: BTreeSet<_> = rows.iter().map(|found| found.row.coin_pub).collect();
    assert_eq!(stored.len(), rows.len(), "each is there once");
    assert!(accepted.len() as u64 >= KILLS as u64 * ANSWERED_MIN, "{}", accepted.len());
    let lost: Vec<_> = accepted.iter().filter(|coin| !stored.contains(coin)).collect();
    assert_eq!(lost, Vec::<&EddsaPublicKey>::new());
    // At most one of each merchant was not answered.
    assert!(rows.len() <= accepted.len() + usize::try_from(MERCHANTS).unwrap());
    store.close().unwrap();
    drop(store);
    // They stay when the checks start over, and until their signing key has ended; not when everything is dropped.
    let count = || {
        let store = auditor.store();
        let count = block_in_place(|| store.all::<DepositConfirmations>()).unwrap().len();
        store.close().unwrap();
        count
    };
    auditor.must("taler-auditor-dbinit", &["-r", "-g"]);
    assert_eq!(count(), rows.len());
    let collected = auditor.must("taler-auditor-dbinit", &["-g", "-T", "+4000000000000000"]);
    assert!(collected.contains(&format!("confirmations removed: {}", rows.len())), "{collected}");
    assert_eq!(count(), 0);
    auditor.must("taler-auditor-exchange", &["-m", &master_pub, "-r"]);
    auditor.must("taler-auditor-exchange", &["-m", &master_pub, "-u", "http://localhost:1/"]);
    auditor.must("taler-auditor-dbinit", &["-R", "-y"]);
    let output = auditor.run("taler-auditor-exchange", &["-m", &master_pub, "-r"]);
    assert_eq!(output.status.code(), Some(1), "the exchange is forgotten");
}

/// Returns whether a directory has a store.
fn has_store(dir: &Path) -> bool {
    batzen_store::embedded::EmbeddedStore::exists(dir)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_are_emptied_or_dropped_only_while_no_service_runs() {
    let key = EddsaPrivateKey::generate().public_key().to_string();
    let auditor = Auditor::new("http://localhost:1/", &key, None);
    auditor.must("taler-auditor-offline", &["setup"]);
    auditor.must("taler-auditor-exchange", &["-m", &key, "-u", "http://localhost:1/"]);
    let dbinit = "taler-auditor-dbinit";
    let dir = auditor.dir.path().join("auditor").join("service");
    let service = auditor.start();
    for option in ["-R", "-g"] {
        let output = auditor.run(dbinit, &[option]);
        assert_eq!(output.status.code(), Some(1), "{option}: {}", stderr(&output));
        assert!(stderr(&output).contains("in use"), "{option}: {}", stderr(&output));
    }
    assert!(block_in_place(|| service.terminate()).0.success());
    let exchanges = || {
        let config = auditor.config();
        let words = ["auditor", "exchange", "list", "-c", config.to_str().unwrap()];
        block_in_place(|| crate::common::must(&words)).lines().count()
    };
    auditor.must(dbinit, &["-r", "-g"]);
    assert_eq!(exchanges(), 1, "a restart keeps the exchanges");
    assert!(has_store(&dir));
    auditor.must(dbinit, &["-R", "-r", "-g"]);
    assert_eq!(exchanges(), 0);
}
