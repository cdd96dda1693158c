//! `batzen wallet` as people and scripts see it: help texts and JSON shapes against snapshots, and complete
//! sessions with a real bank and a real exchange, in which the wallet is killed at random moments.
//!
//! `BATZEN_BLESS=1 cargo test -p batzen --test suite wallet_cli` rewrites the snapshots.

mod input;
mod people;
mod purchases;

use crate::common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use common::http::message;
use common::setup::wait_for;
use common::{Service, batzen, free_port, kill_after};
use serde_json::Value;

const PAYTO: &str = "payto://x-taler-bank/localhost/zoe?receiver-name=zoe";

fn check_snapshot(name: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name);
    if std::env::var_os("BATZEN_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, actual).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(actual, expected, "{name} differs; if that is intended, run with BATZEN_BLESS=1");
}

#[test]
fn help_texts() {
    let commands: [&[&str]; 30] = [
        &[],
        &["withdraw"],
        &["accept"],
        &["pay"],
        &["refund"],
        &["abort"],
        &["tip"],
        &["send"],
        &["request"],
        &["decline"],
        &["balance"],
        &["deposit"],
        &["transactions"],
        &["run"],
        &["pending"],
        &["coins"],
        &["instructions"],
        &["cancel"],
        &["evidence"],
        &["exchanges"],
        &["exchanges", "list"],
        &["exchanges", "add"],
        &["exchanges", "update"],
        &["exchanges", "show"],
        &["exchanges", "tos"],
        &["exchanges", "tos-accept"],
        &["verify-exchange"],
        &["backup-file"],
        &["backup-file", "export"],
        &["backup-file", "import"],
    ];
    let mut text = String::new();
    for command in commands {
        let output =
            batzen().arg("wallet").args(command).arg("--help").env("COLUMNS", "100").output().unwrap();
        assert!(output.status.success());
        let help = String::from_utf8_lossy(&output.stdout);
        assert!(help.contains("\nExample"), "{command:?} has no example");
        text.push_str(&format!("$ batzen wallet {} --help\n", command.join(" ")).replace("  ", " "));
        text.push_str(&String::from_utf8(output.stdout).unwrap());
        text.push('\n');
    }
    check_snapshot("wallet-help.txt", &text);
}

/// The shape of a JSON value: member names and types; for lists, that of the first element.
fn shape(value: &Value) -> Value {
    match value {
        Value::Null => "null".into(),
        Value::Bool(_) => "bool".into(),
        Value::Number(_) => "number".into(),
        Value::String(text) => match text.split_once(':') {
            Some((currency, rest))
                if currency.trim_start_matches(['+', '-']) == "KUDOS"
                    && rest.starts_with(char::is_numeric) =>
            {
                "amount".into()
            }
            _ => "text".into(),
        },
        Value::Array(items) => Value::Array(items.first().map(shape).into_iter().collect()),
        Value::Object(members) => {
            Value::Object(members.iter().map(|(name, member)| (name.clone(), shape(member))).collect())
        }
    }
}

/// A bank and an exchange used by one test.
struct World {
    directory: tempfile::TempDir,
    bank_url: String,
    exchange_url: String,
    services: Option<(Service, Service)>,
}

impl World {
    fn start() -> Self {
        Self::start_with(&[])
    }

    /// With these options for the exchange.
    fn start_with(options: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ports = (free_port(), free_port());
        let (bank_url, exchange_url) =
            (format!("http://localhost:{}/", ports.0), format!("http://localhost:{}/", ports.1));
        let data = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
        let (bank_data, exchange_data) = (data("bank"), data("exchange"));
        let (bank_port, exchange_port) = (ports.0.to_string(), ports.1.to_string());
        let bank_arguments = [
            &["bank", "serve", "--signup-bonus", "KUDOS:1000", "--exchange", &exchange_url][..],
            &["--data", &bank_data, "--port", &bank_port][..],
        ]
        .concat();
        let bank = Service::start(directory.path(), "bank", &bank_arguments);
        wait_for(ports.0, "/taler-bank-integration/config");
        let exchange_arguments = [
            &["exchange", "serve", "--standalone", "--rsa-bits", "1024", "--cs", "--bank", &bank_url][..],
            &["--data", &exchange_data, "--port", &exchange_port][..],
            options,
        ]
        .concat();
        let exchange = Service::start(directory.path(), "exchange", &exchange_arguments);
        wait_for(ports.1, "/keys");
        // The exchange registers its account at the bank while it starts.
        wait_for(ports.0, "/taler-bank-access/accounts/exchange");
        Self { directory, bank_url, exchange_url, services: Some((bank, exchange)) }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn wallet(&self, name: &str, args: &[&str]) -> Command {
        let mut command = batzen();
        command.arg("wallet").arg("--wallet").arg(self.file(name)).arg("--json").args(args);
        command
    }

    fn run(&self, name: &str, args: &[&str]) -> (i32, Value) {
        let output = self.wallet(name, args).output().unwrap();
        let code = output.status.code().unwrap();
        (code, parse(&output, args))
    }

    fn ok(&self, name: &str, args: &[&str]) -> Value {
        let (code, value) = self.run(name, args);
        assert_eq!(code, 0, "{args:?}: {value}");
        value
    }

    fn withdraw_args<'a>(&'a self, amount: &'a str, cipher: &'a str) -> Vec<&'a str> {
        let bank = ["--bank", &self.bank_url, "--user", "zoe", "--password", "zoe"];
        [&["withdraw", "--yes", "--amount", amount, "--cipher", cipher][..], &bank[..]].concat()
    }

    /// Stops the services and draws up the exchange's balance sheet.
    fn totals(&mut self) -> Value {
        self.services = None;
        let output =
            batzen().args(["exchange", "totals", "--json"]).arg(self.file("exchange")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn parse(output: &Output, args: &[&str]) -> Value {
    let bytes = if output.stdout.is_empty() { &output.stderr } else { &output.stdout };
    serde_json::from_slice(bytes).unwrap_or_else(|_| {
        panic!(
            "{args:?}: {} {}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

/// Units of 10⁻⁸ in an amount, with or without currency and sign.
fn units(text: &str) -> i128 {
    let (sign, text) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.trim_start_matches('+')),
    };
    let number = text.rsplit(':').next().unwrap();
    let (value, fraction) = number.split_once('.').unwrap_or((number, ""));
    let fraction: i128 = format!("{fraction:0<8}").parse().unwrap();
    sign * (value.parse::<i128>().unwrap() * 100_000_000 + fraction)
}

/// The wallet's money: available and dust. Nothing may be pending.
fn holdings(balances: &Value) -> i128 {
    let balance = &balances["balances"][0];
    assert_eq!(balance["pending_incoming"], "KUDOS:0", "{balances}");
    assert_eq!(balance["pending_outgoing"], "KUDOS:0", "{balances}");
    units(balance["available"].as_str().unwrap()) + units(balance["dust"].as_str().unwrap())
}

/// The sum of the history's effects, in the smallest units.
fn effects(transactions: &Value) -> i128 {
    let lines = transactions["transactions"].as_array().unwrap();
    lines.iter().map(|line| units(line["effect"].as_str().unwrap())).sum()
}

/// Checks that the effects of the history sum to the balance, with and without rows for refreshes. Returns
/// the sum.
fn check_history(world: &World, name: &str) -> i128 {
    let balances = world.ok(name, &["balance"]);
    let total = &balances["balances"][0]["total"];
    for args in [&["transactions"][..], &["transactions", "--all"]] {
        let history = world.ok(name, args);
        assert_eq!(effects(&history), units(total.as_str().unwrap()), "{balances}\n{history:#}");
        assert_eq!(history["totals"][0]["total"], format!("+{}", total.as_str().unwrap()));
    }
    units(total.as_str().unwrap())
}

/// The standard output of a command without `--json`.
fn text(world: &World, name: &str, args: &[&str]) -> String {
    let output = batzen().args(["wallet", "--wallet"]).arg(world.file(name)).args(args).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains('\x1b'), "no colours without a terminal: {text}");
    text
}

#[test]
fn a_wallet_works_with_a_real_exchange() {
    let mut world = World::start();
    let mut shapes = serde_json::Map::new();
    let mut note = |name: &str, value: &Value| {
        shapes.insert(name.to_owned(), shape(value));
    };

    let withdrawn = world.ok("w.db", &world.withdraw_args("KUDOS:20", "rsa"));
    note("withdraw", &withdrawn);
    assert_eq!(
        (withdrawn["status"].as_str(), withdrawn["type"].as_str()),
        (Some("done"), Some("withdrawal"))
    );
    world.ok("w.db", &world.withdraw_args("KUDOS:10", "cs"));

    let deposit = world.ok("w.db", &["deposit", "KUDOS:7.777", PAYTO, "--yes"]);
    note("deposit", &deposit);
    assert_eq!(deposit["transaction"]["status"], "done");
    note("balance", &world.ok("w.db", &["balance"]));
    note("transactions", &world.ok("w.db", &["transactions"]));
    note("coins", &world.ok("w.db", &["coins"]));
    note("exchanges list", &world.ok("w.db", &["exchanges", "list"]));
    note("exchanges update", &world.ok("w.db", &["exchanges", "update"]));
    note("exchanges show", &world.ok("w.db", &["exchanges", "show", &world.exchange_url]));
    note("exchanges tos", &world.ok("w.db", &["exchanges", "tos", &world.exchange_url]));
    note("run", &world.ok("w.db", &["run"]));

    let manual =
        world.ok("w.db", &["withdraw", "--exchange", &world.exchange_url, "--amount", "KUDOS:3", "--manual"]);
    note("withdraw --manual", &manual);
    let id = manual["operation"].to_string();
    assert_eq!(world.ok("w.db", &["instructions", &id]), manual);
    let (code, report) = world.run("w.db", &["run", "--once"]);
    assert_eq!(code, 3, "{report}");
    note("run, pending", &report);
    note("pending", &world.ok("w.db", &["pending"]));
    check_history(&world, "w.db");
    let pending = text(&world, "w.db", &["pending"]);
    assert!(pending.contains("transfer") && pending.contains("; reserve expires 20"), "{pending}");
    assert!(text(&world, "w.db", &["transactions"]).contains("Total: "));
    world.ok("w.db", &["cancel", &id]);
    assert_eq!(world.ok("w.db", &["pending"])["pending"], Value::Array(Vec::new()));

    let (code, poor) = world.run("w.db", &["deposit", "KUDOS:1000", PAYTO, "--yes"]);
    assert_eq!(code, 4, "{poor}");
    note("error", &poor);
    let (code, _) = world.run("w.db", &["deposit", "KUDOS:1", PAYTO]);
    assert_eq!(code, 1, "nobody agreed");

    // An encrypted backup, restored into another file, which then spends everything.
    let (secret, backup) = (world.file("passphrase"), world.file("backup"));
    std::fs::write(&secret, "correct horse battery\n").unwrap();
    let paths = [secret.to_str().unwrap(), backup.to_str().unwrap()];
    note(
        "backup-file export",
        &world.ok("w.db", &["backup-file", "export", paths[1], "--passphrase-file", paths[0]]),
    );
    note(
        "backup-file import",
        &world.ok("r.db", &["backup-file", "import", paths[1], "--passphrase-file", paths[0]]),
    );
    assert_eq!(world.ok("r.db", &["balance"]), world.ok("w.db", &["balance"]));
    let before = check_history(&world, "r.db");
    let all = world.ok("r.db", &["deposit", "all", PAYTO, "--yes"]);
    note("deposit all", &all);
    let paid: i128 =
        all["receipts"].as_array().unwrap().iter().map(|r| units(r["total"].as_str().unwrap())).sum();
    let left: i128 =
        all["left"].as_array().unwrap().iter().map(|left| units(left["amount"].as_str().unwrap())).sum();
    assert_eq!(check_history(&world, "r.db"), left, "{all}");
    assert!(paid > 0 && paid + left <= before, "{all}");
    let (code, again) = world.run("r.db", &["deposit", "all", PAYTO, "--yes"]);
    assert_eq!(code, 1, "{again}");
    assert!(again["error"].as_str().unwrap().starts_with("there are no coins to deposit"), "{again}");
    let (code, wrong) = world.run(
        "w.db",
        &["deposit", "KUDOS:1", "payto://iban/DE75512108001245126199?receiver-name=zoe", "--yes"],
    );
    assert_eq!(code, 1, "{wrong}");
    assert!(wrong["error"].as_str().unwrap().contains("cannot pay to iban accounts"), "{wrong}");
    let balances = world.ok("r.db", &["balance"]);
    assert_eq!(balances["balances"][0]["available"], "KUDOS:0");
    assert_eq!(holdings(&balances), effects(&world.ok("r.db", &["transactions", "--all"])));
    check_snapshot("wallet-json.json", &format!("{:#}\n", Value::Object(shapes)));

    let totals = world.totals();
    assert_eq!(units(totals["outstanding"].as_str().unwrap()), holdings(&balances), "{totals}");
}

/// `kill -9` at any moment loses nothing. The test begins withdrawals and deposits, kills each after a delay
/// that grows from a millisecond to longer than the operation takes, then lets `run` finish. In the end the
/// wallet's coins are exactly those that the exchange has outstanding.
#[test]
fn killed_in_the_middle() {
    let mut world = World::start();
    world.ok("w.db", &world.withdraw_args("KUDOS:30", "rsa"));
    for round in 0..24u64 {
        let args = match round % 3 {
            0 => world.withdraw_args("KUDOS:5.55", if round % 2 == 0 { "cs" } else { "rsa" }),
            _ => vec!["deposit", "KUDOS:1.111", PAYTO, "--yes"],
        };
        kill_after(world.wallet("w.db", &args), Duration::from_millis(1 + round * 7));
        let (code, report) = world.run("w.db", &["run", "--timeout", "60"]);
        assert_eq!(code, 0, "round {round}: {report}");
    }
    let balances = world.ok("w.db", &["balance"]);
    let held = holdings(&balances);
    assert_eq!(
        held,
        effects(&world.ok("w.db", &["transactions", "--all"])),
        "the history explains the balance"
    );
    let totals = world.totals();
    assert_eq!(units(totals["outstanding"].as_str().unwrap()), held, "{totals}");
    assert_eq!(totals["unrevealed_melts"], "0");
    assert_eq!(totals["conserved"], true);
}

/// A relay between a wallet and an exchange. While `lies` is set, it refuses every deposit itself, and uses
/// the wallet's own new signature as proof that the coin was spent.
struct Relay {
    url: String,
    lies: std::sync::Arc<std::sync::atomic::AtomicBool>,
}

impl Relay {
    /// Listens on a free port; `coins` are the exchange's denominations with their fees.
    fn start(exchange_url: &str, coins: Value) -> Self {
        let target = exchange_url
            .trim_start_matches("http://")
            .trim_end_matches('/')
            .replace("localhost", "127.0.0.1");
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let url = format!("http://localhost:{}/", listener.local_addr().unwrap().port());
        let lies = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let lying = std::sync::Arc::clone(&lies);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (target, coins, lying) = (target.clone(), coins.clone(), std::sync::Arc::clone(&lying));
                std::thread::spawn(move || relay(stream.unwrap(), &target, &coins, &lying));
            }
        });
        Self { url, lies }
    }

    fn set_lies(&self, lies: bool) {
        self.lies.store(lies, std::sync::atomic::Ordering::SeqCst);
    }
}

/// Answers the one request that a connection carries.
fn relay(
    mut client: std::net::TcpStream,
    target: &str,
    coins: &Value,
    lying: &std::sync::atomic::AtomicBool,
) {
    use std::io::{Read, Write};
    let Ok(request) = message(&mut client) else { return };
    let end = request.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(request[..end].to_vec()).unwrap();
    let path = head.split(' ').nth(1).unwrap();
    if lying.load(std::sync::atomic::Ordering::SeqCst) && path.ends_with("deposit") {
        let body: Value = serde_json::from_slice(&request[head.len() + 4..]).unwrap();
        let answer = own_signature_as_proof(path, &body, coins).to_string();
        let length = answer.len();
        write!(client, "HTTP/1.1 409 Conflict\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{answer}").unwrap();
        return;
    }
    let mut upstream = std::net::TcpStream::connect(target).unwrap();
    let lines = head.split("\r\n").filter(|line| !line.to_ascii_lowercase().starts_with("connection:"));
    let head_out = lines.collect::<Vec<_>>().join("\r\n");
    write!(upstream, "{head_out}\r\nConnection: close\r\n\r\n").unwrap();
    upstream.write_all(&request[head.len() + 4..]).unwrap();
    let mut answer = Vec::new();
    upstream.read_to_end(&mut answer).unwrap();
    let _ = client.write_all(&answer);
}

/// A refusal of a deposit whose proof proves nothing.
fn own_signature_as_proof(path: &str, request: &Value, coins: &Value) -> Value {
    let coin = request.get("coins").map_or(request, |coins| &coins[0]);
    let coin_pub = coin.get("coin_pub").cloned().unwrap_or_else(|| path.split('/').nth(2).unwrap().into());
    let mut denominations = coins.as_array().unwrap().iter();
    let fee =
        &denominations.find(|known| known["h_denom_pub"] == coin["denom_pub_hash"]).unwrap()["fee_deposit"];
    let salt: batzen_crypto::WireSalt = request["wire_salt"].as_str().unwrap().parse().unwrap();
    let h_wire =
        batzen_protocol::payto::h_wire(request["merchant_payto_uri"].as_str().unwrap(), &salt).to_string();
    let item = serde_json::json!({
        "type": "DEPOSIT", "amount": coin["contribution"], "deposit_fee": fee, "timestamp": request["timestamp"],
        "merchant_pub": request["merchant_pub"], "h_contract_terms": request["h_contract_terms"],
        "h_wire": h_wire, "coin_sig": coin["coin_sig"],
    });
    serde_json::json!({
        "hint": "insufficient funds", "code": 1012, "coin_pub": coin_pub, "h_denom_pub": coin["denom_pub_hash"],
        "history": [item],
    })
}

/// An exchange that presents the wallet's new signature as proof that the coin is spent gains nothing, and
/// leaves evidence.
#[test]
fn a_false_proof_is_shown_and_costs_nothing() {
    let world = World::start();
    world.ok("w.db", &["exchanges", "add", &world.exchange_url]);
    let shown = world.ok("w.db", &["exchanges", "show", &world.exchange_url]);
    let relay = Relay::start(&world.exchange_url, shown["coins"].clone());
    let bank = ["--bank", &world.bank_url, "--user", "zoe", "--password", "zoe", "--exchange", &relay.url];
    world.ok("v.db", &[&["withdraw", "--yes", "--amount", "KUDOS:20"][..], &bank[..]].concat());
    let before = holdings(&world.ok("v.db", &["balance"]));

    relay.set_lies(true);
    let (code, error) = world.run("v.db", &["deposit", "KUDOS:7.5", PAYTO, "--yes"]);
    assert_eq!(code, 7, "{error}");
    assert!(error["error"].as_str().unwrap().contains("batzen wallet evidence 1 --out FILE"), "{error}");
    let balance = world.ok("v.db", &["balance"]);
    let part = |name: &str| units(balance["balances"][0][name].as_str().unwrap());
    assert_eq!(part("available") + part("disputed") + part("pending_incoming"), before, "{balance}");
    assert!(part("disputed") > 0);
    assert_eq!(balance["unsettled_evidence"], 1);
    check_history(&world, "v.db");
    let text = text(&world, "v.db", &["balance"]);
    assert!(text.contains("The exchange gave a false proof") && text.contains("--out FILE"), "{text}");
    let (code, report) = world.run("v.db", &["run", "--timeout", "20"]);
    assert_eq!((code, &report["pending"][0]["evidence"]), (3, &Value::from(1)), "{report}");

    let file = world.file("evidence.json");
    world.ok("v.db", &["evidence", "--out", file.to_str().unwrap()]);
    let written: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let record = &written["evidence"][0];
    assert_eq!(
        (written["batzen_wallet_evidence"].as_u64(), record["answer"]["status"].as_u64()),
        (Some(1), Some(409))
    );
    assert!(record["reason"].as_str().unwrap().contains("the very deposit that it refuses"), "{record}");
    assert_eq!(record["exchange"], Value::from(relay.url.clone()));
    assert_eq!(world.ok("v.db", &["evidence", "1"])["evidence"][0], *record);

    relay.set_lies(false);
    let (code, report) = world.run("v.db", &["run", "--retry-disputed", "--timeout", "60"]);
    assert_eq!(code, 0, "{report}");
    let balance = world.ok("v.db", &["balance"]);
    assert_eq!(
        (&balance["unsettled_evidence"], &balance["balances"][0]["disputed"]),
        (&0.into(), &"KUDOS:0".into())
    );
    let lines = world.ok("v.db", &["transactions", "--all"]);
    assert_eq!(holdings(&balance), effects(&lines), "the history explains the balance");
    assert!(
        lines["transactions"]
            .as_array()
            .unwrap()
            .iter()
            .any(|line| line["type"] == "deposit" && line["status"] == "done")
    );
}
