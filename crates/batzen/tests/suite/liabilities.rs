//! Proof of liabilities with real processes: an exchange publishes, wallets and an auditor check, and an exchange that
//! cheats is caught.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use batzen_crypto::{EddsaPrivateKey, HashCode, ShortHash};
use batzen_protocol::liabilities::{
    Bucket, Index, Kind, Leaf, Part, SigningKey, Statement, Tree, files, parse, to_json,
};
use batzen_protocol::signatures::{MasterSigningKeyValidity, SignedMessage};
use batzen_protocol::{MoneySum, Timestamp};
use serde_json::Value;

use crate::common::setup::{ask, keygen, on_database, register, wait_for};
use crate::common::site::Site;
use crate::common::{PATIENCE, Service, end, free_port, must, run, stderr, stdout, until};

const PAYTO: &str = "payto://x-taler-bank/localhost/zoe?receiver-name=zoe";

/// A bank, an exchange that publishes when it is told to, and a wallet.
struct World {
    site: Site,
    services: Vec<Service>,
}

fn now() -> Timestamp {
    Timestamp::from_system_time(std::time::SystemTime::now())
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    parse(&std::fs::read(path).unwrap()).unwrap_or_else(|reason| panic!("{}: {reason}", path.display()))
}

impl World {
    fn new(section: &str) -> Self {
        let site = Site::new(section);
        let bank = site.start_bank();
        register(site.bank_port, "exchange");
        if section.contains("DB = postgres") {
            must(&["exchange", "dbinit", "-c", &site.config]);
        }
        let mut world = Self { site, services: vec![bank] };
        world.start_exchange();
        world
    }

    /// Its workers run as programs, so that nobody publishes by himself.
    fn start_exchange(&mut self) {
        self.services.push(self.site.start("exchange", &["exchange", "serve", "--no-workers"]));
        self.services.push(self.site.start("wirewatch", &["exchange", "wirewatch"]));
        wait_for(self.site.exchange_port, "/ready");
    }

    fn stop_exchange(&mut self) {
        end(self.services.drain(1..).rev());
    }

    fn path(&self, name: &str) -> PathBuf {
        self.site.path(name)
    }

    fn published(&self) -> PathBuf {
        self.path("home/exchange/liabilities")
    }

    fn wallet(&self, words: &[&str]) -> Output {
        self.site.wallet("wallet", &[&["--json", "-y"][..], words].concat())
    }

    #[track_caller]
    fn must_wallet(&self, words: &[&str]) -> Value {
        let output = self.wallet(words);
        assert!(output.status.success(), "{words:?}: {}{}", stdout(&output), stderr(&output));
        serde_json::from_str(&stdout(&output)).unwrap()
    }

    fn withdraw(&self) {
        self.site.withdraw("wallet", "KUDOS:9");
    }

    /// Publishes until an epoch ends after now.
    fn publish(&self) {
        self.publish_at("0");
    }

    /// Publishes as if it were hours later, when everything that there is now has to be counted. No service may run.
    fn publish_later(&self) {
        self.publish_at(LATER);
    }

    fn publish_at(&self, shift: &str) {
        let (wanted, deadline) = (now(), Instant::now() + PATIENCE);
        loop {
            must(&["exchange", "liabilities", "-t", "-c", &self.site.config, "--timetravel", shift]);
            let index = std::fs::read(self.published().join("index.json"));
            let index = index.ok().map(|bytes| parse::<Index>(&bytes).unwrap());
            if index.is_some_and(|index| index.epochs.last().is_some_and(|last| last.end > wanted)) {
                return;
            }
            assert!(Instant::now() < deadline, "no epoch is published");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn auditor(&self, words: &[&str]) -> Output {
        let key = self.site.master().public_key().to_string();
        let liabilities = ["auditor", "liabilities", "--json", "-m", &key, "--timetravel", LATER];
        self.site.run(&[&liabilities[..], words].concat())
    }

    /// An auditor's words without findings.
    #[track_caller]
    fn found_nothing(&self, words: &[&str]) -> Value {
        let output = self.auditor(words);
        assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
        serde_json::from_str(&stdout(&output)).unwrap()
    }

    /// The rules that an auditor finds broken, and nothing else.
    #[track_caller]
    fn broken(&self, words: &[&str]) -> Vec<String> {
        let output = self.auditor(words);
        assert_eq!(output.status.code(), Some(3), "{}{}", stdout(&output), stderr(&output));
        let outcome: Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert_eq!(outcome["confirmed"], serde_json::json!([]));
        let mut rules: Vec<String> = outcome["findings"]
            .as_array()
            .unwrap()
            .iter()
            .map(|found| found["rule"].as_str().unwrap().to_owned())
            .collect();
        rules.dedup();
        rules
    }

    /// Makes a copy of what is published, as an exchange could that changes what it has not shown yet: all epochs from the
    /// second on are signed again.
    fn forge(
        &self,
        name: &str,
        change_leaves: impl Fn(Kind, &mut Vec<Leaf>, u128),
        change_part: impl Fn(Kind, &mut Part),
    ) -> PathBuf {
        let (from, to, master) = (self.published(), self.path(name), self.site.master());
        let online = EddsaPrivateKey::from_bytes([9; 32]);
        let (start, expire, end) = (Timestamp::ZERO, Timestamp::from_secs(1 << 33), Timestamp::NEVER);
        let validity = MasterSigningKeyValidity { start, expire, end, signkey_pub: online.public_key() };
        let signing_key = SigningKey {
            key: online.public_key(),
            stamp_start: start,
            stamp_expire: expire,
            stamp_end: end,
            master_sig: validity.sign(&master),
        };
        let mut index: Index = read(&from.join("index.json"));
        let mut before: Option<Statement> = None;
        for published in &mut index.epochs {
            let epoch = published.epoch;
            let mut statement: Statement = read(&from.join(format!("{}.json", files::statement(epoch))));
            let body = &mut statement.statement;
            for entry in &mut body.denominations {
                let denom = entry.h_denom_pub;
                // More redeemed than issued would be noticed by everybody.
                let room = entry.outstanding().unwrap().units();
                for kind in Kind::ALL {
                    let part = match kind {
                        Kind::Issued => &mut entry.issued,
                        Kind::Redeemed => &mut entry.redeemed,
                        Kind::Returned => &mut entry.returned,
                    };
                    let mut leaves = leaves(&from, epoch, &denom, kind, part);
                    if epoch > 1 {
                        change_leaves(kind, &mut leaves, room);
                    }
                    let tree = Tree::new(leaves, part.bits).unwrap();
                    let earlier = before.as_ref().and_then(|before| before.statement.entry(&denom));
                    *part = Part::after(earlier.map(|earlier| earlier.part(kind)), &tree).unwrap();
                    if epoch > 1 {
                        change_part(kind, part);
                    }
                    for place in 0..tree.buckets() {
                        let name = files::bucket(epoch, &denom, kind, place, part.bits);
                        let path = to.join(format!("{name}.json"));
                        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                        std::fs::write(path, to_json(&tree.bucket(place))).unwrap();
                    }
                }
            }
            if let Some(before) = &before {
                body.previous = before.statement.hash();
            }
            if epoch > 1 {
                statement.exchange_sig = statement.statement.message().sign(&online);
                statement.signing_key = signing_key;
            }
            published.h_statement = statement.statement.hash();
            let path = to.join(format!("{}.json", files::statement(epoch)));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, to_json(&statement)).unwrap();
            before = Some(statement);
        }
        std::fs::write(to.join("index.json"), to_json(&index)).unwrap();
        to
    }
}

fn leaves(dir: &Path, epoch: u64, denom: &HashCode, kind: Kind, part: &Part) -> Vec<Leaf> {
    if part.root.count == 0 {
        return Vec::new();
    }
    let mut all = Vec::new();
    for place in 0..1u32 << part.bits {
        let name = files::bucket(epoch, denom, kind, place, part.bits);
        let bucket: Bucket = read(&dir.join(format!("{name}.json")));
        bucket.check(place, part.bits, &part.root).unwrap();
        all.extend(bucket.leaves);
    }
    all
}

/// Every leaf that is published, with how often.
fn all_leaves(dir: &Path) -> std::collections::BTreeMap<ShortHash, u32> {
    let index: Index = read(&dir.join("index.json"));
    let mut all = std::collections::BTreeMap::new();
    for published in index.epochs {
        let statement: Statement = read(&dir.join(format!("{}.json", files::statement(published.epoch))));
        for entry in &statement.statement.denominations {
            for kind in Kind::ALL {
                for leaf in leaves(dir, published.epoch, &entry.h_denom_pub, kind, entry.part(kind)) {
                    *all.entry(leaf.hash).or_default() += 1;
                }
            }
        }
    }
    all
}

fn count(report: &Value, list: &str) -> usize {
    report["report"][list].as_array().unwrap_or_else(|| panic!("{list}: {report}")).len()
}

/// Four hours in microseconds.
const LATER: &str = "+14400000000";

const SECTION: &str = "[exchange-liabilities]\nEPOCH = 1 s\nSETTLING = 0 s\n\
    [coin_half]\nVALUE = KUDOS:0.5\nDURATION_WITHDRAW = 7 days\nDURATION_SPEND = 2 years\nDURATION_LEGAL = 3 years\n\
    FEE_WITHDRAW = KUDOS:0\nFEE_DEPOSIT = KUDOS:0\nFEE_REFRESH = KUDOS:0\nFEE_REFUND = KUDOS:0\nCIPHER = RSA\n\
    RSA_KEYSIZE = 1024\n";

fn nothing(_: Kind, _: &mut Vec<Leaf>, _: u128) {}
fn no_part(_: Kind, _: &mut Part) {}

#[test]
fn coins_are_counted_and_whoever_leaves_one_out_is_caught() {
    let mut world = World::new(SECTION);
    world.publish();
    world.withdraw();
    let report = world.must_wallet(&["verify-exchange"]);
    let coins = count(&report, "not_due");
    assert!(coins > 3 && count(&report, "counted") == 0, "{report}");
    assert_eq!(count(&report, "unconfirmed"), 0);
    world.must_wallet(&["deposit", "KUDOS:3.5", PAYTO]);
    world.must_wallet(&["run", "--timeout", "30"]);
    // The change has new coins.
    world.must_wallet(&["verify-exchange"]);
    std::fs::copy(world.path("wallet.db"), world.path("before.db")).unwrap();
    world.stop_exchange();
    world.publish_later();
    world.start_exchange();

    let report = world.must_wallet(&["verify-exchange", "--payments"]);
    assert!(count(&report, "counted") > coins, "{report}");
    for list in ["missing", "uncounted", "skipped", "not_due", "unconfirmed", "frauds"] {
        assert_eq!(count(&report, list), 0, "{list}: {report}");
    }
    // A directory has the same, and is read by itself.
    let dir = world.published().to_str().unwrap().to_owned();
    let local = world.must_wallet(&["verify-exchange", "--from", &dir]);
    assert_eq!(local["report"]["counted"], report["report"]["counted"]);

    // What is published is what the balance sheet says.
    world.stop_exchange();
    let totals = world.site.totals();
    let outstanding = totals["outstanding"].as_str().unwrap();
    assert_eq!(report["report"]["outstanding"].as_str().unwrap(), format!("KUDOS:{outstanding}"));

    // The auditor comes to the same, and confirms it, which the wallet sees.
    must(&["auditor", "init", "-c", &world.site.config]);
    let outcome = world.found_nothing(&["--from", &dir]);
    let epochs = report["report"]["epochs"].as_u64().unwrap();
    assert_eq!(outcome["confirmed"].as_array().unwrap().len() as u64, epochs);
    let again: Value = serde_json::from_str(&stdout(&world.auditor(&["--from", &dir]))).unwrap();
    assert_eq!(again["confirmed"], serde_json::json!([]));
    let port = free_port();
    let serve = ["auditor", "serve", "--port", &port.to_string(), "--bind", "127.0.0.1"];
    let auditor = world.site.start("auditor", &serve);
    wait_for(port, "/ready");
    let secret = std::fs::read(world.path("home/auditor/offline-keys/auditor.priv")).unwrap();
    let key = EddsaPrivateKey::from_bytes(secret.try_into().unwrap()).public_key().to_string();
    let url = format!("http://localhost:{port}/");
    let asked = ["verify-exchange", "--from", &dir, "--auditor", &url, "--auditor-key", &key];
    assert_eq!(world.must_wallet(&asked)["report"]["confirmed"], true);
    assert!(auditor.terminate().0.success());

    cheats(&world, &dir);
}

/// Exchanges that cheat in several ways.
fn cheats(world: &World, honest: &str) {
    // One signature is left out.
    assert!(all_leaves(Path::new(honest)).values().all(|times| *times == 1));
    let victim = std::sync::Mutex::new(None::<ShortHash>);
    let omit = |kind: Kind, leaves: &mut Vec<Leaf>, _: u128| {
        let mut victim = victim.lock().unwrap();
        if kind == Kind::Issued && victim.is_none() && !leaves.is_empty() {
            *victim = Some(leaves.remove(0).hash);
        }
    };
    let omitting = world.forge("omitting", omit, no_part);
    let omitting = omitting.to_str().unwrap();
    let victim = victim.lock().unwrap().unwrap();
    assert!(!all_leaves(Path::new(omitting)).contains_key(&victim));
    let proof = world.path("proof.json");
    // This wallet has seen the honest statements: that there are others is proof enough.
    let verify =
        ["verify-exchange", "--from", omitting, "--no-receipts", "--evidence", proof.to_str().unwrap()];
    let output = world.wallet(&verify);
    assert_eq!(output.status.code(), Some(7), "{}{}", stdout(&output), stderr(&output));
    let judged = must(&["liabilities", "check-evidence", proof.to_str().unwrap()]);
    assert!(judged.contains("two statements for epoch"), "{judged}");
    std::fs::remove_file(&proof).unwrap();
    // Another one finds its coin missing, and proves it with the receipt.
    std::fs::copy(world.path("before.db"), world.path("wallet.db")).unwrap();
    let output = world.wallet(&verify);
    assert_eq!(output.status.code(), Some(7), "{}{}", stdout(&output), stderr(&output));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((count(&report, "missing"), count(&report, "frauds")), (1, 1), "{report}");
    let master = world.site.master().public_key().to_string();
    let judged = must(&["liabilities", "check-evidence", proof.to_str().unwrap(), "--master-key", &master]);
    assert!(judged.contains("does not count it"), "{judged}");
    let mut changed: Value = serde_json::from_slice(&std::fs::read(&proof).unwrap()).unwrap();
    changed["fraud"]["receipt"]["timestamp"]["t_s"] = 1.into();
    std::fs::write(&proof, changed.to_string()).unwrap();
    assert_eq!(run(&["liabilities", "check-evidence", proof.to_str().unwrap()]).status.code(), Some(3));
    let other = EddsaPrivateKey::from_bytes([5; 32]).public_key().to_string();
    let other = run(&["liabilities", "check-evidence", proof.to_str().unwrap(), "-m", &other]);
    assert_eq!(other.status.code(), Some(1));
    // The auditor, too, has seen others.
    assert_eq!(world.broken(&["--from", omitting]), ["rewritten", "omitted"]);

    // An auditor who has seen nothing yet.
    let kept = world.path("home/auditor/liabilities");
    std::fs::remove_dir_all(&kept).unwrap();
    assert_eq!(world.broken(&["--from", omitting]), ["omitted"]);
    std::fs::remove_dir_all(&kept).unwrap();

    // Coins that nobody spent are redeemed, so that less seems to be owed.
    let inflated = std::sync::atomic::AtomicBool::new(false);
    let inflate = |kind: Kind, leaves: &mut Vec<Leaf>, room: u128| {
        if kind == Kind::Redeemed && room > 0 && !inflated.swap(true, std::sync::atomic::Ordering::Relaxed) {
            leaves.push(Leaf { hash: ShortHash::from_bytes([0; 32]), sum: MoneySum::from_units(room) });
        }
    };
    let inflating = world.forge("inflating", inflate, no_part);
    let broken = world.broken(&["--from", inflating.to_str().unwrap()]);
    assert_eq!(broken, ["no-row"]);
    std::fs::remove_dir_all(&kept).unwrap();

    // Amounts are changed.
    let more = |kind: Kind, leaves: &mut Vec<Leaf>, room: u128| {
        if let (Kind::Redeemed, Some(leaf)) = (kind, leaves.first_mut()) {
            leaf.sum = leaf.sum.checked_add(MoneySum::from_units(room)).unwrap();
        }
    };
    let changing = world.forge("changing", more, no_part);
    assert_eq!(world.broken(&["--from", changing.to_str().unwrap()]), ["amount"]);
    std::fs::remove_dir_all(&kept).unwrap();

    // Totals are forged: everybody sees and proves it.
    let less = |kind: Kind, part: &mut Part| {
        if kind == Kind::Issued {
            part.total = part.total.checked_sub(MoneySum::from_units(100_000_000)).unwrap_or(part.total);
        }
    };
    let forging = world.forge("forging", nothing, less);
    let forging = forging.to_str().unwrap();
    std::fs::remove_file(&proof).unwrap();
    let broken = world.broken(&["--from", forging, "--evidence", proof.to_str().unwrap()]);
    assert_eq!(broken.first().map(String::as_str), Some("statement"));
    let judged = must(&["liabilities", "check-evidence", proof.to_str().unwrap()]);
    assert!(judged.contains("do not add up"), "{judged}");
    let output = world.wallet(&["verify-exchange", "--from", forging, "--no-receipts"]);
    assert_eq!(output.status.code(), Some(7), "{}{}", stdout(&output), stderr(&output));
}

#[test]
fn a_killed_publisher_leaves_no_leaf_out_and_counts_none_twice() {
    let mut world = World::new(SECTION);
    world.withdraw();
    world.must_wallet(&["deposit", "KUDOS:3.5", PAYTO]);
    world.must_wallet(&["run", "--timeout", "30"]);
    world.stop_exchange();
    must(&["auditor", "init", "-c", &world.site.config]);
    let dir = world.published().to_str().unwrap().to_owned();
    let mut pause_ms = 20;
    for _ in 0..24 {
        let mut program = world.site.start("liabilities", &["exchange", "liabilities", "-t"]);
        std::thread::sleep(Duration::from_millis(pause_ms));
        program.kill_9();
        // From before the store opens until after the work ends, on any machine.
        pause_ms = pause_ms * 5 / 4 % 2_500;
        if world.published().join("index.json").exists() {
            assert!(all_leaves(&world.published()).values().all(|times| *times == 1));
        }
    }
    world.publish_later();
    let leaves = all_leaves(&world.published());
    assert!(leaves.len() > 5 && leaves.values().all(|times| *times == 1));
    world.found_nothing(&["--from", &dir]);
    // Nothing else is left behind.
    let mut names: Vec<String> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.parse::<u64>().is_err())
        .collect();
    names.sort();
    assert_eq!(names, [".lock", "index.json"]);
}

#[test]
fn without_its_section_an_exchange_answers_as_before() {
    let world = World::new("");
    let answer = |path: &str| {
        let answer = ask(world.site.exchange_port, &format!("GET {path}"), "");
        // All but the date and the id of the request; the answer repeats the path.
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.lines().next().unwrap().to_owned();
        (status, body.replace(path, "PATH"))
    };
    let unknown = answer("/nowhere");
    assert!(unknown.0.contains("404"), "{unknown:?}");
    let denom = HashCode::from_bytes([1; 64]);
    for path in [
        "/liabilities".to_owned(),
        "/liabilities/1".to_owned(),
        format!("/liabilities/1/{denom}/issued/0"),
        format!("/liabilities/receipt/{denom}"),
    ] {
        assert_eq!(answer(&path), unknown, "{path}");
    }
    world.withdraw();
    let output = world.wallet(&["verify-exchange"]);
    assert!(!output.status.success() && stderr(&output).contains("does not publish"), "{}", stderr(&output));
    let output = run(&["exchange", "liabilities", "-t", "-c", &world.site.config]);
    assert!(!output.status.success() && stderr(&output).contains("[exchange-liabilities]"));
}

#[test]
fn an_exchange_serves_what_is_published_and_nothing_else() {
    let world = World::new(SECTION);
    assert!(ask(world.site.exchange_port, "GET /liabilities", "").starts_with("HTTP/1.1 404"));
    world.withdraw();
    world.publish();
    let get = |path: &str| ask(world.site.exchange_port, &format!("GET {path}"), "");
    let list = get("/liabilities");
    assert!(list.starts_with("HTTP/1.1 200") && list.contains("max-age=60"), "{list}");
    let statement = get("/liabilities/1");
    assert!(statement.starts_with("HTTP/1.1 200") && statement.contains("immutable"), "{statement}");
    // An epoch that the index does not name is not there, whatever the directory has.
    std::fs::create_dir(world.published().join("99")).unwrap();
    std::fs::write(world.published().join("99/index.json"), "{}").unwrap();
    let denom = HashCode::from_bytes([1; 64]);
    for path in [
        "/liabilities/0".to_owned(),
        "/liabilities/99".to_owned(),
        format!("/liabilities/1/{denom}/issued/0"),
        format!("/liabilities/1/{denom}/other/0"),
        format!("/liabilities/1/{denom}/issued/..%2f..%2findex"),
        format!("/liabilities/receipt/{denom}"),
    ] {
        let answer = get(&path);
        assert!(answer.starts_with("HTTP/1.1 404"), "{path}: {answer}");
    }
    assert!(get("/liabilities/x").starts_with("HTTP/1.1 400"));
}

#[test]
fn on_a_database_a_program_of_its_own_publishes() {
    let url = batzen_testkit::postgres::fresh_database();
    let world = World::new(&format!("{SECTION}{}", on_database(&url)));
    world.withdraw();
    // There are receipts before the first epoch.
    let report = world.must_wallet(&["verify-exchange"]);
    let coins = count(&report, "not_due");
    assert!(coins > 2 && count(&report, "unconfirmed") == 0, "{report}");
    world.publish();
    let report = world.must_wallet(&["verify-exchange"]);
    assert_eq!((count(&report, "counted"), count(&report, "missing")), (coins, 0), "{report}");
    must(&["auditor", "init", "-c", &world.site.config]);
    let dir = world.published();
    world.found_nothing(&["--from", dir.to_str().unwrap(), "--database", &url]);
    // A publisher that keeps working publishes by itself.
    let before = all_leaves(&dir).len();
    let program = world.site.start("liabilities", &["exchange", "liabilities"]);
    world.must_wallet(&["deposit", "KUDOS:2", PAYTO]);
    until("nothing more is published", || all_leaves(&dir).len() > before);
    assert!(program.terminate().0.success());
}

/// The auditor compares with the copy that it keeps by following the exchange. `place`: where it keeps it.
fn an_auditor_confirms_from_its_own_copy(place: &str) {
    let keys = tempfile::tempdir().unwrap();
    let path = |name: &str| keys.path().join(name).to_str().unwrap().to_owned();
    let [exchange_pub, auditor_pub] = ["exchange.key", "auditor.key"].map(|name| keygen(&path(name)));
    let socket = path("socket");
    let section = format!(
        "{SECTION}[exchange-feed]\nLISTEN = unix://{socket}\nKEY_FILE = {}\nAUDITORS = {auditor_pub}\n\
         [auditor-feed]\nEXCHANGE = unix://{socket}\nEXCHANGE_KEY = {exchange_pub}\nKEY_FILE = {}\n{place}",
        path("exchange.key"),
        path("auditor.key"),
    );
    let mut world = World::new(&section);
    must(&["auditor", "init", "-c", &world.site.config]);
    world.publish();
    world.withdraw();
    world.must_wallet(&["deposit", "KUDOS:3.5", PAYTO]);
    world.must_wallet(&["run", "--timeout", "30"]);
    world.stop_exchange();
    world.publish_later();
    let dir = world.published().to_str().unwrap().to_owned();
    // Before it follows there is nothing to compare with.
    let early = world.auditor(&["--from", &dir]);
    let why = stderr(&early);
    assert_eq!(early.status.code(), Some(1), "{why}");
    assert!(why.contains("the copy is empty") || why.contains("there is no store"), "{why}");

    world.start_exchange();
    // The copy is later than what is published.
    must(&["auditor", "sync", "--once", "-c", &world.site.config, "--timetravel", LATER]);
    world.stop_exchange();
    let epochs: Index = read(&world.published().join("index.json"));
    let all = world.found_nothing(&["--from", &dir]);
    assert_eq!(all["confirmed"].as_array().unwrap().len(), epochs.epochs.len(), "{all:#}");
    assert!(all["leaves"].as_u64().unwrap() > 3, "{all:#}");
    assert_eq!(all["too_new"], serde_json::json!([]));
    // What is published an hour after the copy was made has to wait.
    world.publish_at("+18000000000");
    let newer: Index = read(&world.published().join("index.json"));
    assert!(newer.epochs.len() > epochs.epochs.len());
    let waiting = world.found_nothing(&["--from", &dir]);
    assert_eq!(waiting["too_new"].as_array().unwrap().len(), newer.epochs.len() - epochs.epochs.len());
    assert_eq!(waiting["confirmed"], serde_json::json!([]));

    // A statement that leaves out a signature does not fit the copy.
    let victim = std::sync::atomic::AtomicBool::new(false);
    let omit = |kind: Kind, leaves: &mut Vec<Leaf>, _: u128| {
        if kind == Kind::Issued
            && !leaves.is_empty()
            && !victim.swap(true, std::sync::atomic::Ordering::Relaxed)
        {
            leaves.remove(0);
        }
    };
    let omitting = world.forge("omitting", omit, no_part);
    std::fs::remove_dir_all(world.path("home/auditor/liabilities")).unwrap();
    assert_eq!(world.broken(&["--from", omitting.to_str().unwrap()]), ["omitted"]);
}

#[test]
fn an_auditor_confirms_from_its_copy_in_a_directory() {
    an_auditor_confirms_from_its_own_copy("");
}

#[test]
fn an_auditor_confirms_from_its_copy_in_a_database() {
    let database = batzen_testkit::postgres::fresh_database();
    an_auditor_confirms_from_its_own_copy(&format!(
        "DB = postgres\n[auditordb-postgres]\nCONFIG = {database}\n"
    ));
}
