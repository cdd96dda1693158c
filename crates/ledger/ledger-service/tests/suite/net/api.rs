//! The HTTP interface in front of a ledger in memory.

use std::sync::Arc;

use batzen_http::{Handler, Method, Request, Response, header};
use batzen_ledger::MemoryLedger;
use batzen_ledger_service::net::api::{LedgerApi, document};
use batzen_service::Api;
use serde_json::{Value, json};

fn api() -> Api<LedgerApi> {
    let ledger = Arc::new(MemoryLedger::with_system_clock());
    Arc::new(LedgerApi::new(ledger, Arc::default(), Arc::new(|_| {}), None)).handler()
}

async fn post(api: &Api<LedgerApi>, target: &str, body: &Value) -> Response {
    api.handle(Request::local(Method::POST, target, body.to_string())).await
}

async fn get(api: &Api<LedgerApi>, target: &str) -> Response {
    api.handle(Request::local(Method::GET, target, "")).await
}

async fn filled() -> Api<LedgerApi> {
    let api = api();
    let accounts = json!({ "accounts": [
        { "id": 1, "ledger": 700, "code": 10, "flags": ["history"] },
        { "id": "340282366920938463463374607431768211454", "ledger": 700, "code": 10 },
    ]});
    let answer = post(&api, "/v1/accounts", &accounts).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json_value()["results"][1]["status"], "created");
    let transfers = json!({ "transfers": [
        { "id": "1", "debit_account_id": "340282366920938463463374607431768211454", "credit_account_id": 1,
          "amount": "18446744073709551616", "ledger": 700, "code": 1 },
        { "id": "2", "debit_account_id": 1, "credit_account_id": "340282366920938463463374607431768211454",
          "amount": 7, "ledger": 700, "code": 1, "flags": ["pending"], "timeout": 600 },
        { "id": "3", "debit_account_id": 1, "credit_account_id": 1, "amount": 7, "ledger": 700, "code": 1 },
        { "id": "4", "pending_id": 2, "amount": "max", "flags": ["post_pending_transfer"] },
    ]});
    let answer = post(&api, "/v1/transfers", &transfers).await.json_value();
    let statuses: Vec<&str> = answer["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|result| result["status"].as_str().unwrap())
        .collect();
    assert_eq!(statuses, ["created", "created", "accounts_must_be_different", "created"]);
    api
}

#[tokio::test]
async fn accounts_and_transfers_are_created_and_read_as_json() {
    let api = filled().await;
    let account = get(&api, "/v1/accounts/1").await.json_value();
    assert_eq!(account["credits_posted"], "18446744073709551616");
    assert_eq!(account["debits_posted"], "7");
    assert_eq!(account["flags"], json!(["history"]));
    assert_eq!(account["id"], "1");
    let transfer = get(&api, "/v1/transfers/0x4").await.json_value();
    assert_eq!((transfer["amount"].as_str(), transfer["pending_id"].as_str()), (Some("7"), Some("2")));
    let found = post(&api, "/v1/accounts/lookup", &json!({ "ids": [5, "1"] })).await.json_value();
    assert_eq!(found["accounts"].as_array().unwrap().len(), 1);
    let found = post(&api, "/v1/transfers/lookup", &json!({ "ids": [4, 3, 2] })).await.json_value();
    assert_eq!(found["transfers"].as_array().unwrap().len(), 2);
    let found = get(&api, "/v1/accounts/1/transfers?reversed=true&limit=1").await.json_value();
    assert_eq!(found["transfers"][0]["id"], "4");
    let found = get(&api, "/v1/accounts/1/transfers?debits=false").await.json_value();
    assert_eq!(found["transfers"].as_array().unwrap().len(), 1);
    let found = get(&api, "/v1/accounts/1/balances").await.json_value();
    assert_eq!(found["balances"].as_array().unwrap().len(), 3);
    let found = post(&api, "/v1/transfers/query", &json!({ "ledger": 700, "limit": 2 })).await.json_value();
    assert_eq!(found["transfers"].as_array().unwrap().len(), 2);
    let found = post(&api, "/v1/accounts/query", &json!({ "code": 10 })).await.json_value();
    assert_eq!(found["accounts"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn the_event_stream_resumes_where_its_reader_stopped() {
    let api = filled().await;
    let answer = get(&api, "/v1/events?limit=2").await;
    assert_eq!(answer.header(&header::CONTENT_TYPE), Some("application/x-ndjson"));
    let text = String::from_utf8(answer.body.to_vec()).unwrap();
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["single_phase", "two_phase_pending"]);
    let last = events[1]["timestamp"].as_str().unwrap();
    let rest = get(&api, &format!("/v1/events?after={last}")).await;
    let rest = String::from_utf8(rest.body.to_vec()).unwrap();
    assert_eq!(rest.lines().count(), 1);
    assert!(rest.contains("two_phase_posted"));
    // The same as server-sent events, from the browser's `Last-Event-ID`.
    let mut request = Request::local(Method::GET, "/v1/events", "");
    request.head.headers.insert(header::ACCEPT, "text/event-stream".parse().unwrap());
    request.head.headers.insert("last-event-id", last.parse().unwrap());
    let answer = api.handle(request).await;
    assert_eq!(answer.header(&header::CONTENT_TYPE), Some("text/event-stream"));
    let text = String::from_utf8(answer.body.to_vec()).unwrap();
    let ids: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
    assert_eq!(ids.len(), 1);
    assert!(text.contains("event: two_phase_posted\ndata: {") && text.ends_with("\n\n"), "{text}");
    // No more events: an empty page, and a wait that ends when the service ends.
    let empty = get(&api, &format!("/v1/events?after={}", ids[0])).await;
    assert_eq!((empty.status, empty.body.len()), (200, 0));
    let request = Request::local(Method::GET, &format!("/v1/events?after={}&timeout_ms=60000", ids[0]), "");
    let drain = request.drain.clone();
    let (answer, ()) = tokio::join!(api.handle(request), async {
        tokio::task::yield_now().await;
        drain.trigger();
    });
    assert_eq!((answer.status, answer.body.len()), (200, 0));
}

#[tokio::test]
async fn bad_requests_get_a_clear_error_and_change_nothing() {
    let api = filled().await;
    let many: Vec<Value> = (0..8190).map(|id| json!({ "id": id + 100, "ledger": 1, "code": 1 })).collect();
    for (answer, status, name, hint) in [
        (post(&api, "/v1/accounts", &json!({ "accounts": many })).await, 413, "too_much_data", "8189"),
        (post(&api, "/v1/accounts", &json!({ "account": [] })).await, 400, "malformed", "accounts"),
        (
            post(
                &api,
                "/v1/accounts",
                &json!({ "accounts": [{ "id": 1 }, { "id": 1, "flags": ["lnked"] }] }),
            )
            .await,
            400,
            "malformed",
            "event 1: unknown flag",
        ),
        (
            post(&api, "/v1/transfers", &json!({ "transfers": [{ "id": -1 }] })).await,
            400,
            "malformed",
            "integer",
        ),
        (
            post(&api, "/v1/transfers", &json!({ "transfers": [{ "amount": 1.5 }] })).await,
            400,
            "malformed",
            "integer",
        ),
        (get(&api, "/v1/accounts/77").await, 404, "not_found", "77"),
        (get(&api, "/v1/accounts/x").await, 400, "malformed", "x"),
        (get(&api, "/v1/events?limit=9000").await, 400, "malformed", "8189"),
        (get(&api, "/v1/events?after=18446744073709551616").await, 400, "malformed", "2^64"),
    ] {
        let value = answer.json_value();
        assert_eq!((answer.status, value["error"].as_str()), (status, Some(name)), "{value}");
        assert!(value["detail"].as_str().unwrap().contains(hint), "{value}");
    }
    assert_eq!(get(&api, "/v1/nothing").await.status, 404);
    assert_eq!(get(&api, "/v1/accounts/1/balances?limit=x").await.status, 400);
    assert_eq!(
        post(&api, "/v1/accounts/query", &json!({})).await.json_value()["accounts"].as_array().unwrap().len(),
        2
    );
}

#[tokio::test]
async fn the_document_describes_every_endpoint() {
    let api = api();
    let answer = get(&api, "/v1/openapi.json").await;
    assert_eq!(answer.status, 200);
    let value: Value = serde_json::from_str(document()).unwrap();
    assert_eq!(answer.json_value(), value);
    assert!(value["openapi"].as_str().unwrap().starts_with("3."));
    for (path, method) in [
        ("/v1/accounts", "post"),
        ("/v1/transfers", "post"),
        ("/v1/accounts/lookup", "post"),
        ("/v1/transfers/lookup", "post"),
        ("/v1/accounts/query", "post"),
        ("/v1/transfers/query", "post"),
        ("/v1/accounts/{id}", "get"),
        ("/v1/transfers/{id}", "get"),
        ("/v1/accounts/{id}/transfers", "get"),
        ("/v1/accounts/{id}/balances", "get"),
        ("/v1/events", "get"),
    ] {
        assert!(value["paths"][path][method].is_object(), "{method} {path}");
    }
    for schema in ["Account", "Transfer", "Result", "Event", "Error", "QueryFilter"] {
        assert!(value["components"]["schemas"][schema].is_object(), "{schema}");
    }
    // Wide integers are strings here too.
    assert_eq!(
        value["components"]["schemas"]["Transfer"]["properties"]["amount"]["$ref"],
        "#/components/schemas/Wide"
    );
    let metrics = get(&api, "/metrics").await;
    assert!(String::from_utf8(metrics.body.to_vec()).unwrap().contains("batzen_operations_total"));
    assert_eq!(get(&api, "/dashboard").await.status, 200);
}

#[tokio::test]
async fn everything_but_its_description_needs_the_token() {
    let ledger = Arc::new(MemoryLedger::with_system_clock());
    let api = Arc::new(LedgerApi::new(ledger, Arc::default(), Arc::new(|_| {}), Some("secret"))).handler();
    let ask = async |method: &str, path: &str, token: Option<&str>| {
        let mut request = Request::local(method.parse().unwrap(), path, "{}");
        if let Some(token) = token {
            request.head.headers.insert(header::AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
        }
        api.handle(request).await
    };
    for (endpoint, _) in batzen_ledger_service::net::api::endpoints() {
        let (method, path) = endpoint.split_once(' ').unwrap();
        let path = path.replace(":id", "1");
        let is_private = path.starts_with("/v1/") && path != "/v1/openapi.json";
        let answer = ask(method, &path, None).await;
        assert_eq!(answer.status == 401, is_private, "{endpoint}");
        if is_private {
            assert_eq!(answer.json_value()["error"], "unauthorized");
            assert!(ask(method, &path, Some("secret")).await.status != 401, "{endpoint}");
        }
    }
    for n in 0..10 {
        assert_eq!(ask("GET", "/v1/accounts/1", Some(&n.to_string())).await.status, 401);
    }
    let limited = ask("GET", "/v1/accounts/1", Some("secret")).await;
    assert_eq!((limited.status, limited.json_value()["error"].as_str()), (429, Some("unauthorized")));
    assert!(limited.header(&header::RETRY_AFTER).is_some());
}
