//! A ledger, attacked over HTTP and over its binary protocol.

use std::path::Path;

use serde_json::{Value, json};

use crate::common::setup::{get, wait_for};
use crate::common::{Service, free_port, must};
use crate::mutate::answer::Errors;
use crate::mutate::campaign::{Plan, Watched, run};
use crate::mutate::frames;
use crate::mutate::proxy::Proxy;
use crate::mutate::pump::Listener;
use crate::mutate::routes;
use crate::mutate::seeds::{Seed, Seeds};

/// The token of the ledger's clients.
const TOKEN: &str = "secret-token:clients-of-the-ledger";

fn with_token(seed: Seed) -> Seed {
    seed.header("Authorization", &format!("Bearer {TOKEN}"))
}

/// Requests as `docs/ledger-api.md` describes them.
fn seeds(proxy: &Proxy) -> Seeds {
    let account = |id: &str, flags: Value| json!({"id": id, "ledger": 700, "code": 10, "flags": flags});
    let transfer = |id: &str, more: Value| {
        let mut transfer = json!({
            "id": id, "debit_account_id": "1", "credit_account_id": "2", "amount": "100", "ledger": 700, "code": 1,
        });
        let Value::Object(more) = more else { unreachable!("an object") };
        transfer.as_object_mut().unwrap().extend(more);
        transfer
    };
    let accounts = [
        account("1", json!(["history"])),
        account("2", json!([])),
        account("3", json!(["debits_must_not_exceed_credits"])),
        account("0xffff", json!(["credits_must_not_exceed_debits", "history"])),
    ];
    let query = json!({"ledger": 700, "code": 1, "limit": 10, "timestamp_min": "0", "reversed": true});
    for (target, body) in [
        ("/v1/accounts", json!({"accounts": accounts})),
        ("/v1/transfers", json!({"transfers": [transfer("1", json!({}))]})),
        (
            "/v1/transfers",
            json!({"transfers": [transfer("2", json!({"flags": ["pending"], "timeout": 60}))]}),
        ),
        (
            "/v1/transfers",
            json!({"transfers": [{"id": "3", "pending_id": "2", "amount": "max", "flags": ["post_pending_transfer"]}]}),
        ),
        (
            "/v1/transfers",
            json!({"transfers": [{"id": "4", "pending_id": "2", "flags": ["void_pending_transfer"]}]}),
        ),
        (
            "/v1/transfers",
            json!({"transfers": [
                transfer("5", json!({"flags": ["linked"]})), transfer("6", json!({"user_data_128": "max"})),
            ]}),
        ),
        (
            "/v1/transfers",
            json!({"transfers": [transfer("7", json!({"flags": ["balancing_debit"], "user_data_64": "1"}))]}),
        ),
        ("/v1/accounts/lookup", json!({"ids": ["1", "2", "9"]})),
        ("/v1/transfers/lookup", json!({"ids": ["1", "2", "9"]})),
        ("/v1/accounts/query", query.clone()),
        ("/v1/transfers/query", query),
    ] {
        proxy.send(with_token(Seed::new("POST", target)).json(&body));
    }
    for target in [
        "/v1/accounts/1",
        "/v1/transfers/2",
        "/v1/accounts/1/transfers?limit=10&reversed=true&debits=true",
        "/v1/accounts/1/balances?limit=10&timestamp_min=1&timestamp_max=18446744073709551614",
        "/v1/events?after=0&limit=20",
        "/v1/events?limit=5&timeout_ms=1",
    ] {
        proxy.send(with_token(Seed::new("GET", target)));
    }
    let table = batzen_ledger_service::net::api::endpoints();
    proxy.visit(&routes::of(table.clone()), "", &[("authorization", &format!("Bearer {TOKEN}"))]);
    Seeds::recorded(table, proxy, &[])
}

struct Ledger {
    dir: tempfile::TempDir,
    http_port: u16,
    tcp_port: u16,
    service: Service,
}

impl Ledger {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (http_port, tcp_port) = (free_port(), free_port());
        let (http, tcp) = (format!("127.0.0.1:{http_port}"), format!("127.0.0.1:{tcp_port}"));
        let data = data(dir.path());
        let token = dir.path().join("token").to_str().unwrap().to_owned();
        std::fs::write(&token, TOKEN).unwrap();
        let arguments = ["ledger", "serve", "--data", &data, "--http", &http, "--tcp", &tcp];
        let arguments = [&arguments[..], &["--http-token", &token]].concat();
        let service = Service::start(dir.path(), "ledger", &arguments);
        wait_for(http_port, "/metrics");
        Self { dir, http_port, tcp_port, service }
    }

    fn log(&self) -> std::path::PathBuf {
        self.dir.path().join("ledger.log")
    }

    /// It still answers, ends cleanly, and its whole log verifies.
    fn prove(self) {
        assert_eq!(get(self.http_port, "/metrics"), 200);
        assert_eq!(get(self.http_port, "/v1/events?limit=1"), 401);
        let (status, _) = self.service.terminate();
        assert!(status.success(), "{status}");
        must(&["ledger", "verify", &data(self.dir.path())]);
    }
}

fn data(dir: &Path) -> String {
    dir.join("data").to_str().unwrap().to_owned()
}

#[test]
fn ledger_http_survives_mutation() {
    let plan = Plan::new("ledger_http");
    let mut ledger = Ledger::new();
    let address = ([127, 0, 0, 1], ledger.http_port).into();
    let listeners =
        [Listener { address, errors: Errors::Name, seeds: seeds(&Proxy::start(ledger.http_port)) }];
    let log = ledger.log();
    run(&plan, &listeners, &mut Watched { service: &mut ledger.service, log });
    ledger.prove();
}

#[test]
fn ledger_frames_survives_mutation() {
    let plan = Plan::new("ledger_frames");
    let mut ledger = Ledger::new();
    let log = ledger.log();
    frames::run(&plan, ledger.tcp_port, &mut Watched { service: &mut ledger.service, log });
    ledger.prove();
}
