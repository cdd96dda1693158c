//! A switch with participants that pay each other while both of its interfaces are attacked.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::setup::get;
use crate::common::{PATIENCE, Service, free_port, run_lab as run_program, stderr, stdout, until};
use crate::crash::hub::{TOKENS, config};
use crate::mutate::answer::Errors;
use crate::mutate::campaign::{Plan, Watched, run};
use crate::mutate::proxy::Proxy;
use crate::mutate::pump::Listener;
use crate::mutate::routes::{self, Route};
use crate::mutate::seeds::{Seed, Seeds};

const CURRENCY: &str = "USD";
const ID: &str = "b51ec534-ee48-4575-b6a9-ead2955b8069";
/// One operator decides alone here, so nothing waits for approval.
const REFUSED: [&str; 2] = ["GET /approvals/:id", "POST /approvals/:id"];

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

/// Every element of the bodies that the switch passes on, so that each of them finds what it requires.
fn any_body() -> Value {
    let party =
        json!({"partyIdInfo": {"partyIdType": "MSISDN", "partyIdentifier": "123456789", "fspId": "fsp2"}});
    let money = json!({"currency": CURRENCY, "amount": "1"});
    let kind = json!({"scenario": "TRANSFER", "initiator": "PAYER", "initiatorType": "CONSUMER"});
    let (packet, hash) =
        ("AYIBgQAAAAAAAASwNGxldmVsb25lLmRmc3AxLm1lci45", "HOr22-H3AfTDHrSkPjJtVPRdKouuMkDXTR4ejlQa8Ks");
    let item = json!({
        "transferId": ID, "transferAmount": money, "ilpPacket": packet, "condition": hash, "quoteId": ID,
        "transactionId": ID, "payee": party, "amountType": "SEND", "amount": money, "transactionType": kind,
    });
    json!({
        "quoteId": ID, "transactionId": ID, "transactionRequestId": ID, "bulkQuoteId": ID, "requestId": ID,
        "bulkTransferId": ID, "payerFsp": "fsp1", "payeeFsp": "fsp2", "payee": party, "payer": party,
        "amountType": "SEND", "amount": money, "transactionType": kind, "transferAmount": money,
        "expiration": "2099-01-01T00:00:00.000Z", "ilpPacket": packet, "condition": hash,
        "individualQuotes": [item], "individualTransfers": [item, item],
        "individualQuoteResults": [{"quoteId": ID}], "bulkTransferState": "COMPLETED",
        "completedTimestamp": "2026-11-21T15:00:00.000Z",
        "individualTransferResults": [{"transferId": ID, "fulfilment": hash}],
        "transactionRequestState": "RECEIVED", "responseType": "ENTERED", "transactionState": "COMPLETED",
        "party": party, "fspId": "fsp1", "partyList": [party["partyIdInfo"]], "currency": CURRENCY,
        "errorInformation": {"errorCode": "5104", "errorDescription": "no"},
    })
}

/// Sends a request of one participant to another for every endpoint. The transaction requests of payers have a plain
/// party as the payer.
fn use_everything(proxy: &Proxy, routes: &[Route]) {
    for route in routes {
        let party = route.pattern.contains(":type");
        let path = route.pattern.replace(":type", "MSISDN").replace(":sub", "home");
        let path = path.replace(":id", if party { "123456789" } else { ID });
        let resource = path.split('/').nth(1).unwrap();
        let kind = format!("application/vnd.interoperability.{resource}+json;version=1.0");
        let mut body = any_body();
        if resource == "transactionRequests" {
            body["payer"] = body["payer"]["partyIdInfo"].take();
        }
        let seed = Seed::new(&route.method, &path).header("FSPIOP-Source", "fsp1");
        let seed = seed.header("FSPIOP-Destination", "fsp2").header("Date", "Sat, 21 Nov 2026 15:00:00 GMT");
        let seed = seed.header("Content-Type", &kind).header("Accept", &kind);
        proxy.ask(if route.method == "GET" { seed } else { seed.json(&body) });
    }
}

/// Two bulk transfers: the payee fulfils one and refuses the other.
fn transfer_in_bulk(proxy: &Proxy) {
    let send = |method: &str, target: &str, [from, to]: [&str; 2], body: &Value| {
        let kind = "application/vnd.interoperability.bulkTransfers+json;version=1.0";
        let seed = Seed::new(method, target).header("FSPIOP-Source", from).header("FSPIOP-Destination", to);
        let seed = seed.header("Date", "Sat, 21 Nov 2026 15:00:00 GMT");
        proxy.send(seed.header("Content-Type", kind).header("Accept", kind).json(body));
    };
    let any = any_body();
    for (number, end) in ["", "/error"].into_iter().enumerate() {
        let id = |n: usize| format!("b51ec534-ee48-4575-b6a9-ead2955b80{number}{n}");
        let item = |n| {
            json!({
                "transferId": id(n), "transferAmount": any["transferAmount"], "ilpPacket": any["ilpPacket"],
                "condition": any["condition"],
            })
        };
        let bulk = json!({
            "bulkTransferId": id(0), "bulkQuoteId": id(0), "payerFsp": "fsp1", "payeeFsp": "fsp2",
            "individualTransfers": [item(1), item(2)], "expiration": any["expiration"],
        });
        let answer = match end {
            "" => json!({
                "bulkTransferState": "COMPLETED", "completedTimestamp": any["completedTimestamp"],
                "individualTransferResults": [{"transferId": id(1), "fulfilment": any["condition"]}],
            }),
            _ => json!({"errorInformation": any["errorInformation"]}),
        };
        send("POST", "/bulkTransfers", ["fsp1", "fsp2"], &bulk);
        send("PUT", &format!("/bulkTransfers/{}{end}", id(0)), ["fsp2", "fsp1"], &answer);
    }
}

/// Operates a switch: looks everything up, moves funds, and settles.
fn operate(proxy: &Proxy) {
    let token = format!("Bearer {}", TOKENS[0]);
    let send = |method: &str, target: &str, body: Value| {
        let seed = Seed::new(method, target).header("authorization", &token);
        proxy.send(if body.is_null() { seed } else { seed.json(&body) })
    };
    let get = |target: &str| send("GET", target, Value::Null);
    for target in ["", "/endpoints", "/limits", "/positions?currency=USD", "/statement?currency=USD"] {
        get(&format!("/participants/fsp1{target}"));
    }
    get("/participants/limits?currency=USD&type=NET_DEBIT_CAP");
    send("PUT", "/participants/fsp1", json!({"isActive": true}));
    let limit = json!({"type": "NET_DEBIT_CAP", "value": "1000000", "alarmPercentage": 10});
    send("PUT", "/participants/fsp1/limits", json!({"currency": CURRENCY, "limit": limit}));
    for (owner, kind) in [("Hub", "HUB_MULTILATERAL_SETTLEMENT"), ("fsp1", "POSITION")] {
        let account = json!({"currency": "EUR", "type": kind});
        send("POST", &format!("/participants/{owner}/accounts"), account);
    }
    let accounts = get("/participants/fsp1/accounts");
    let is_settlement = |account: &&Value| account["ledgerAccountType"] == "SETTLEMENT";
    let account =
        accounts.as_array().unwrap().iter().find(is_settlement).unwrap_or_else(|| panic!("{accounts}"));
    let account = format!("/participants/fsp1/accounts/{}", account["id"]);
    send("PUT", &account, json!({"isActive": true}));
    let funds = json!({
        "transferId": ID, "externalReference": "x", "reason": "x", "action": "recordFundsOutPrepareReserve",
        "amount": {"currency": CURRENCY, "amount": "1"},
    });
    send("POST", &account, funds);
    let commit = json!({"action": "recordFundsOutCommit", "reason": "x"});
    send("PUT", &format!("{account}/transfers/{ID}"), commit);
    let model = json!({
        "name": "other", "settlementGranularity": "NET", "settlementInterchange": "MULTILATERAL",
        "settlementDelay": "DEFERRED", "currency": "EUR", "requireLiquidityCheck": true, "autoPositionReset": true,
    });
    send("POST", "/settlementModels", model);
    send("PUT", "/settlementModels/other", json!({"isActive": true}));
    let models = get("/settlementModels");
    let is_ours = |model: &&Value| model["currency"] == CURRENCY;
    let model = models.as_array().unwrap().iter().find(is_ours).unwrap_or_else(|| panic!("{models}"));
    let window = get("/settlementWindows?state=OPEN")[0]["id"].clone();
    let window_path = format!("/settlementWindows/{window}");
    send("POST", &window_path, json!({"state": "CLOSED", "reason": "x"}));
    get(&window_path);
    let wish =
        json!({"settlementModel": model["name"], "reason": "x", "settlementWindows": [{"id": window}]});
    let settlement = format!("/settlements/{}", send("POST", "/settlements", wish)["id"]);
    get(&settlement);
    get(&format!("{settlement}/report?format=csv"));
    get("/settlements?currency=USD");
    send("PUT", &settlement, json!({"state": "ABORTED", "reason": "x"}));
    let statement = get(&format!("/participants/fsp1/statement?window={window}&currency=USD"));
    let transfer = statement["entries"][0]["transferId"].as_str().unwrap_or_else(|| panic!("{statement}"));
    get(&format!("/transfers/{transfer}"));
    get(&format!("/transfers/{transfer}/report?format=pacs002"));
    for method in ["GET", "POST"] {
        let seed = Seed::new(method, "/approvals/1").header("authorization", &token);
        proxy.ask(seed.json(&json!({"decision": "APPROVE"})));
    }
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
    let config = config(dir.path(), ports, "FOUR_EYES = NO\n");
    std::fs::write(dir.path().join("tokens"), TOKENS.join("\n")).unwrap();
    let mut service = Service::start(dir.path(), "switch", &["switch", "serve", "-c", &config]);
    let deadline = Instant::now() + PATIENCE;
    while get(ports[1], "/health") == 0 {
        service.assert_runs();
        assert!(Instant::now() < deadline, "the switch does not come up");
        std::thread::sleep(Duration::from_millis(10));
    }
    let proxies = ports.map(Proxy::start);
    let proxied = proxies.each_ref().map(|proxy| proxy.port);
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
    let has_paid = || proxies[0].seeds().iter().filter(|seed| seed.method == "PUT").count() >= 60;
    until("the participants do not pay", has_paid);

    let [participants, operators] = batzen_switch::api::endpoints();
    use_everything(&proxies[0], &routes::of(participants.clone()));
    transfer_in_bulk(&proxies[0]);
    operate(&proxies[1]);
    let token = format!("Bearer {}", TOKENS[0]);
    proxies[1].visit(&routes::of(operators.clone()), "", &[("authorization", &token)]);
    let participants = Seeds::recorded(participants, &proxies[0], &[]);
    let operators = Seeds::recorded(operators, &proxies[1], &REFUSED);
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
