//! A switch with participants that pay each other while both of its interfaces are attacked.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::setup::get;
use crate::common::{PATIENCE, Service, free_port, run_lab as run_program, stderr, stdout};
use crate::mutate::answer::Errors;
use crate::mutate::campaign::{Plan, Watched, run};
use crate::mutate::proxy::Proxy;
use crate::mutate::pump::Listener;
use crate::mutate::routes;
use crate::mutate::seeds::{Seed, Seeds};

const TOKENS: [&str; 2] = ["secret-token:one-and-secret", "secret-token:two-and-secret"];
const CURRENCY: &str = "USD";

/// The arguments that simulate participants of this switch.
fn fsps(ports: [u16; 2], prefix: &str, more: &[&str]) -> Vec<String> {
    let [switch, admin] = ports.map(|port| format!("127.0.0.1:{port}"));
    let arguments = ["switch", "fsps", "--switch", &switch, "--admin", &admin, "--prefix", prefix, "--json"];
    let common = ["--participants", "4", "--connections", "4", "--warmup", "0"];
    [&arguments[..], &common, more].concat().into_iter().map(str::to_owned).collect()
}

fn play(arguments: &[String]) {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = run_program(&arguments);
    assert!(output.status.success(), "{arguments:?}: {}{}", stdout(&output), stderr(&output));
}

/// Requests that participants rarely make.
fn further_transfers(seeds: &mut Seeds, transfer: &Seed) {
    let id = "b51ec534-ee48-4575-b6a9-ead2955b8069";
    let item = json!({
        "transferId": id, "transferAmount": {"currency": CURRENCY, "amount": "1"},
        "ilpPacket": "AYIBgQAAAAAAAASwNGxldmVsb25lLmRmc3AxLm1lci45",
        "condition": "HOr22-H3AfTDHrSkPjJtVPRdKouuMkDXTR4ejlQa8Ks",
    });
    let bulk = json!({
        "bulkTransferId": id, "bulkQuoteId": id, "payerFsp": "fsp1", "payeeFsp": "fsp2",
        "individualTransfers": [item, item], "expiration": "2099-01-01T00:00:00.000Z",
    });
    let answer = json!({
        "bulkTransferState": "COMPLETED", "completedTimestamp": "2026-11-21T15:00:00.000Z",
        "individualTransferResults": [{"transferId": id, "fulfilment": "uU0nuZNNPgilLlLX2n2r-sSE7-N6U4DukIj3rOLvzek"}],
    });
    let error = json!({"errorInformation": {"errorCode": "5104", "errorDescription": "no"}});
    for (method, target, body) in [
        ("POST", "/bulkTransfers".to_owned(), Some(&bulk)),
        ("PUT", format!("/bulkTransfers/{id}"), Some(&answer)),
        ("PUT", format!("/bulkTransfers/{id}/error"), Some(&error)),
        ("GET", format!("/bulkTransfers/{id}"), None),
        ("GET", format!("/transfers/{id}"), None),
    ] {
        let mut seed = Seed::new(method, &target);
        // The headers of a transfer, for another resource.
        for (name, value) in &transfer.headers {
            let is_bulk = target.starts_with("/bulk") && name != "fspiop-source";
            let value =
                if is_bulk { value.replace("transfers+json", "bulkTransfers+json") } else { value.clone() };
            seed = seed.header(name, &value);
        }
        seeds.add(body.map_or(seed.clone(), |body| seed.clone().json(body)));
    }
}

/// Requests that operators make, in addition to the recorded ones.
fn further_changes(seeds: &mut Seeds) {
    let token = format!("Bearer {}", TOKENS[0]);
    let funds = json!({
        "transferId": "b51ec534-ee48-4575-b6a9-ead2955b8069", "externalReference": "x", "reason": "x",
        "action": "recordFundsOutPrepareReserve", "amount": {"currency": CURRENCY, "amount": "1"},
    });
    for (method, target, body) in [
        ("GET", "/participants/limits?currency=USD&type=NET_DEBIT_CAP", Value::Null),
        ("GET", "/participants/fsp1", Value::Null),
        ("PUT", "/participants/fsp1", json!({"isActive": true})),
        ("GET", "/participants/fsp1/endpoints", Value::Null),
        ("GET", "/participants/fsp1/limits", Value::Null),
        (
            "PUT",
            "/participants/fsp1/limits",
            json!({"currency": CURRENCY, "limit": {"type": "NET_DEBIT_CAP", "value": "1000000", "alarmPercentage": 10}}),
        ),
        ("GET", "/participants/fsp1/positions?currency=USD", Value::Null),
        ("GET", "/participants/fsp1/statement?currency=USD", Value::Null),
        ("GET", "/participants/fsp1/accounts", Value::Null),
        ("PUT", "/participants/fsp1/accounts/4", json!({"isActive": true})),
        ("POST", "/participants/fsp1/accounts/4", funds),
        (
            "PUT",
            "/participants/fsp1/accounts/4/transfers/b51ec534-ee48-4575-b6a9-ead2955b8069",
            json!({"action": "recordFundsOutCommit", "reason": "x"}),
        ),
        ("GET", "/approvals", Value::Null),
        ("GET", "/approvals/1", Value::Null),
        ("POST", "/approvals/1", json!({"decision": "APPROVE"})),
        ("GET", "/settlementWindows?state=OPEN", Value::Null),
        ("GET", "/settlementWindows/1", Value::Null),
        ("POST", "/settlementWindows/1", json!({"state": "CLOSED", "reason": "x"})),
        ("GET", "/settlementModels", Value::Null),
        ("PUT", "/settlementModels/deferred-net", json!({"isActive": true})),
        ("GET", "/settlements?currency=USD", Value::Null),
        (
            "POST",
            "/settlements",
            json!({"settlementModel": "deferred-net", "reason": "x", "settlementWindows": [{"id": 1}]}),
        ),
        ("GET", "/settlements/1", Value::Null),
        ("PUT", "/settlements/1", json!({"state": "ABORTED", "reason": "x"})),
        ("GET", "/settlements/1/report?format=csv", Value::Null),
        ("GET", "/transfers/b51ec534-ee48-4575-b6a9-ead2955b8069", Value::Null),
        ("GET", "/transfers/b51ec534-ee48-4575-b6a9-ead2955b8069/report?format=pacs002", Value::Null),
    ] {
        let seed = Seed::new(method, target).header("Authorization", &token);
        seeds.add(if body.is_null() { seed } else { seed.json(&body) });
    }
}

fn config(dir: &Path, ports: [u16; 2]) -> String {
    let ([port, admin_port], [one, two]) = (ports, TOKENS);
    let text = format!(
        "[switch]\nDATA_DIR = {}\nBIND_TO = 127.0.0.1\nPORT = {port}\nADMIN_PORT = {admin_port}\nFOUR_EYES = NO\n\n\
         [switch-operator-one]\nTOKEN = {one}\n\n[switch-operator-two]\nTOKEN = {two}\n",
        dir.join("data").display()
    );
    let file = dir.join("switch.conf");
    std::fs::write(&file, text).unwrap();
    std::fs::write(dir.join("tokens"), TOKENS.join("\n")).unwrap();
    file.to_str().unwrap().to_owned()
}

/// Checks that debits equal credits.
fn prove_books(admin_port: u16) {
    let answer = text_of(admin_port, "/balances");
    let balances: Value = serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{answer}"));
    for currency in balances["currencies"].as_array().unwrap_or_else(|| panic!("{answer}")) {
        assert_eq!(currency["ledgerDebits"], currency["ledgerCredits"], "{answer}");
    }
}

fn text_of(port: u16, path: &str) -> String {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    let token = TOKENS[0];
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
}

#[test]
fn switch_survives_mutation() {
    let plan = Plan::new("switch");
    let dir = tempfile::tempdir().unwrap();
    let ports: [u16; 2] = std::array::from_fn(|_| free_port());
    let proxied: [u16; 2] = std::array::from_fn(|_| free_port());
    let config = config(dir.path(), ports);
    let mut service = Service::start(dir.path(), "switch", &["switch", "serve", "-c", &config]);
    let deadline = Instant::now() + PATIENCE;
    while get(ports[1], "/health") == 0 {
        service.assert_runs();
        assert!(Instant::now() < deadline, "the switch does not come up");
        std::thread::sleep(Duration::from_millis(10));
    }
    let proxies = [0, 1].map(|listener| Proxy::start(proxied[listener], ports[listener]));
    let tokens = dir.path().join("tokens");
    let mix = "accept=4,reject=1,reserve=2,wrong-fulfilment=1,duplicate=1";
    let founding =
        ["--tokens", tokens.to_str().unwrap(), "--currency", CURRENCY, "--mix", "accept", "--count", "20"];
    play(&fsps(proxied, "fsp", &founding));
    let more = ["--tokens", tokens.to_str().unwrap(), "--currency", CURRENCY, "--mix", mix, "--count", "200"];
    // Other participants run during the attack, so their callbacks are accepted.
    let arguments = fsps(proxied, "pay", &[&more[..6], &["--duration", "86400", "--rate", "20"]].concat());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let playing = Service::start_lab(dir.path(), "fsps", &arguments);
    let deadline = Instant::now() + PATIENCE;
    while proxies[0].seeds().iter().filter(|seed| seed.method == "PUT").count() < 60 {
        assert!(Instant::now() < deadline, "the participants do not pay");
        std::thread::sleep(Duration::from_millis(50));
    }

    let mut participants = Seeds::new(routes::switch_participants());
    let recorded = proxies[0].seeds();
    let transfer = recorded.iter().find(|seed| seed.method == "POST").unwrap().clone();
    recorded.into_iter().for_each(|seed| participants.add(seed));
    further_transfers(&mut participants, &transfer);
    let mut operators = Seeds::new(routes::switch_operators());
    proxies[1].seeds().into_iter().for_each(|seed| operators.add(seed));
    further_changes(&mut operators);
    for seeds in [&mut participants, &mut operators] {
        println!("made of their patterns alone: {}", seeds.without_seed().join(", "));
        seeds.complete();
    }
    let address = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
    let listeners = [
        Listener { address: address(ports[0]), errors: Errors::Fspiop, seeds: participants },
        Listener { address: address(ports[1]), errors: Errors::Fspiop, seeds: operators },
    ];
    run(&plan, &listeners, &mut Watched { service: &mut service, log: dir.path().join("switch.log") });
    drop(playing);

    // New participants, in an unused currency.
    let tokens = tokens.to_str().unwrap();
    play(&fsps(ports, "late", &["--tokens", tokens, "--currency", "CHF", "--count", "50"]));
    prove_books(ports[1]);
    let (status, _) = service.terminate();
    assert!(status.success(), "{status}");
}
