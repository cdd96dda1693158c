//! Bulk transfers over HTTP: many transfers announced, forwarded and answered together, each decided on its
//! own.
use crate::common;

use batzen_http::Method;
use batzen_switch::values::{format_hash, format_uuid};
use common::{Callback, Scene, answer};
use serde_json::{Value, json};

const SECRET: [u8; 32] = [7; 32];

fn item(id: u128, amount: &str) -> Value {
    common::item(id, amount, &SECRET)
}

async fn post(scene: &Scene, body: &Value) -> u16 {
    scene.send(Method::POST, "bulkTransfers", "fsp1", "fsp2", body.to_string().as_bytes()).await.status
}

async fn put(scene: &Scene, path: &str, source: &str, body: &Value) -> u16 {
    let path = format!("bulkTransfers/{path}");
    scene.send(Method::PUT, &path, source, "fsp1", body.to_string().as_bytes()).await.status
}

fn fulfilled(id: u128, secret: &[u8; 32]) -> Value {
    json!({ "transferId": format_uuid(id), "fulfilment": format_hash(secret) })
}

/// Error codes of the items, "ok" for fulfilled and "open" for undecided ones.
fn results(callback: &Callback) -> Vec<String> {
    let json = callback.json();
    let outcome = |result: &Value| {
        let code = result["errorInformation"]["errorCode"].as_str();
        let open = if result["fulfilment"] == format_hash(&SECRET) { "ok" } else { "open" };
        code.unwrap_or(open).to_owned()
    };
    json["individualTransferResults"].as_array().unwrap().iter().map(outcome).collect()
}

async fn positions(scene: &Scene) -> (i128, i128, u128) {
    let (one, two) = (scene.balances(1).await, scene.balances(2).await);
    (one.position(), two.position(), one.reserved())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_item_of_a_bulk_is_decided_on_its_own() {
    let scene = Scene::new(3).await;
    let seen_before = scene.transfer(0, 1, "1").await;
    let id = scene.id();
    let ids: [u128; 6] = std::array::from_fn(|_| scene.id());
    let mut usd = item(ids[4], "5");
    usd["transferAmount"]["currency"] = "USD".into();
    let items = vec![
        item(ids[0], "10"),
        item(ids[1], "20"),
        item(seen_before, "1"),
        item(ids[2], "5000"),
        item(ids[3], "30"),
        usd,
        item(ids[0], "10"),
        item(ids[5], "40"),
    ];
    let body = scene.bulk(id, items.clone());
    assert_eq!(post(&scene, &body).await, 202);
    // The payee sees the reserved items, without the signature, which would not match.
    let asked = scene.fsps[1].about(id, 1).await.remove(0);
    assert_eq!((asked.method.as_str(), asked.path.as_str()), ("POST", "/bulkTransfers"));
    assert!(asked.headers["content-type"].contains("bulkTransfers+json;version=1."));
    assert!(!asked.headers.contains_key("fspiop-signature"));
    let want = [&items[0], &items[1], &items[4], &items[7]].map(Clone::clone);
    assert_eq!(asked.json()["individualTransfers"], json!(want));
    assert_eq!(positions(&scene).await, (1_010_000, -10_000, 1_000_000));
    // The state before the answer.
    let path = format!("bulkTransfers/{}", format_uuid(id));
    assert_eq!(scene.send(Method::GET, &path, "fsp1", "", b"").await.status, 202);
    let told = scene.fsps[0].about(id, 1).await.remove(0);
    assert_eq!(told.json()["bulkTransferState"], "ACCEPTED");
    let present = ["open", "open", "3106", "4001", "open", "4300", "3106", "open"];
    assert_eq!(results(&told), present);
    // An item cannot be answered by itself, nor the bulk by others or with foreign items.
    assert_eq!(scene.fulfil(ids[0], 1, 0, "COMMITTED", &SECRET).await, 200);
    let told = scene.fsps[1].about(ids[0], 2).await;
    assert_eq!(told[1].error_code(), "3100");
    let text = format_uuid(id);
    assert_eq!(put(&scene, &text, "fsp3", &answer(vec![fulfilled(ids[0], &SECRET)])).await, 200);
    assert_eq!(scene.fsps[2].about(id, 1).await[0].error_code(), "3100");
    assert_eq!(put(&scene, &text, "fsp2", &answer(vec![fulfilled(seen_before, &SECRET)])).await, 200);
    assert_eq!(scene.fsps[1].about(id, 2).await[1].error_code(), "3208");

    let refused = json!({ "transferId": format_uuid(ids[1]),
        "errorInformation": { "errorCode": "5103", "errorDescription": "no" } });
    let wrong = fulfilled(ids[3], &[8; 32]);
    let body_put = answer(vec![fulfilled(ids[0], &SECRET), refused, wrong, fulfilled(ids[5], &SECRET)]);
    assert_eq!(put(&scene, &text, "fsp2", &body_put).await, 200);
    let told = scene.fsps[0].about(id, 2).await.remove(1);
    assert_eq!((told.method.as_str(), told.path.as_str()), ("PUT", format!("/{path}").as_str()));
    assert!(told.headers["content-type"].contains("bulkTransfers+json;version=1."));
    assert_eq!(told.json()["bulkTransferState"], "COMPLETED");
    let end = ["ok", "5103", "3106", "4001", "3100", "4300", "3106", "ok"];
    assert_eq!(results(&told), end);
    // The payee learns that its fulfilment was wrong.
    assert_eq!(results(&scene.fsps[1].about(id, 3).await[2]), end);
    assert_eq!(positions(&scene).await, (510_000, -510_000, 0));

    // A repetition returns the state. A different request under the same id is refused.
    assert_eq!(post(&scene, &body).await, 202);
    assert_eq!(results(&scene.fsps[0].about(id, 3).await[2]), end);
    assert_eq!(post(&scene, &scene.bulk(id, vec![item(scene.id(), "1")])).await, 202);
    let told = scene.fsps[0].about(id, 4).await.remove(3);
    assert_eq!((told.path.clone(), told.error_code()), (format!("/{path}/error"), "3106".to_owned()));
    assert_eq!(put(&scene, &text, "fsp2", &body_put).await, 200);
    assert_eq!(results(&scene.fsps[1].about(id, 4).await[3]), end);
    assert_eq!(put(&scene, &text, "fsp2", &answer(vec![])).await, 200);
    assert_eq!(scene.fsps[1].about(id, 5).await[4].error_code(), "3106");
    assert_eq!(positions(&scene).await, (510_000, -510_000, 0));
    // A participant cannot see unknown bulks or those of others.
    assert_eq!(scene.send(Method::GET, &path, "fsp3", "", b"").await.status, 202);
    assert_eq!(scene.fsps[2].about(id, 2).await[1].error_code(), "3210");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bulk_without_a_reserved_item_is_completed_at_once() {
    let scene = Scene::new(2).await;
    let (id, one) = (scene.id(), scene.id());
    assert_eq!(post(&scene, &scene.bulk(id, vec![item(one, "5000")])).await, 202);
    let told = scene.fsps[0].about(id, 1).await.remove(0);
    assert_eq!(
        (told.json()["bulkTransferState"].clone(), results(&told)),
        ("COMPLETED".into(), vec!["4001".to_owned()])
    );
    // No item of this bulk reaches the ledger.
    let id = scene.id();
    assert_eq!(post(&scene, &scene.bulk(id, vec![item(one, "5000")])).await, 202);
    assert_eq!(results(&scene.fsps[0].about(id, 1).await[0]), ["3106"]);
    assert!(scene.fsps[1].callbacks().is_empty());
    let many = (0..1001).map(|_| item(scene.id(), "0.1")).collect();
    for items in [vec![], many] {
        assert_eq!(post(&scene, &scene.bulk(scene.id(), items)).await, 400);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejected_bulk_gives_every_reservation_back() {
    let scene = Scene::new(2).await;
    let id = scene.id();
    let items: Vec<Value> = (0..1000).map(|_| item(scene.id(), "0.5")).collect();
    let body = scene.bulk(id, items);
    assert_eq!(post(&scene, &body).await, 202);
    let asked = scene.fsps[1].about(id, 1).await.remove(0);
    assert_eq!(asked.body, body.to_string().as_bytes(), "byte for byte if all items are reserved");
    assert_eq!(asked.headers["fspiop-signature"], "{\"signature\":\"abc\"}");
    assert_eq!(positions(&scene).await, (5_000_000, 0, 5_000_000));
    let error = json!({ "errorInformation": { "errorCode": "5100", "errorDescription": "not today" } });
    assert_eq!(put(&scene, &format!("{}/error", format_uuid(id)), "fsp2", &error).await, 200);
    let told = scene.fsps[0].about(id, 1).await.remove(0);
    assert_eq!(told.path, format!("/bulkTransfers/{}/error", format_uuid(id)));
    assert_eq!(told.body, error.to_string().as_bytes());
    assert_eq!(positions(&scene).await, (0, 0, 0));
    // It stays rejected.
    assert_eq!(put(&scene, &format_uuid(id), "fsp2", &answer(vec![])).await, 200);
    assert_eq!(scene.fsps[1].about(id, 2).await[1].error_code(), "3100");
    let path = format!("bulkTransfers/{}", format_uuid(id));
    assert_eq!(scene.send(Method::GET, &path, "fsp1", "", b"").await.status, 202);
    assert_eq!(scene.fsps[0].about(id, 2).await[1].error_code(), "5100");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_answered_in_time_expires() {
    let scene = Scene::new(2).await;
    let (id, ids) = (scene.id(), [scene.id(), scene.id()]);
    assert_eq!(post(&scene, &scene.bulk(id, ids.map(|id| item(id, "10")).to_vec())).await, 202);
    scene.fsps[1].about(id, 1).await;
    assert_eq!(put(&scene, &format_uuid(id), "fsp2", &answer(vec![fulfilled(ids[0], &SECRET)])).await, 200);
    common::eventually("the transfers", async || scene.balances(2).await.position() != 0).await;
    assert!(scene.fsps[0].callbacks().is_empty(), "one answer, when everything is decided");
    scene.clock.forward(30_001);
    for fsp in [0, 1] {
        let told = scene.fsps[fsp].about(id, fsp + 1).await.remove(fsp);
        assert_eq!(told.json()["bulkTransferState"], "COMPLETED");
        assert_eq!(results(&told), ["ok", "3303"]);
    }
    assert_eq!(positions(&scene).await, (100_000, -100_000, 0));
    // The payee does not answer at all.
    let (id, one) = (scene.id(), scene.id());
    assert_eq!(post(&scene, &scene.bulk(id, vec![item(one, "10")])).await, 202);
    scene.fsps[1].about(id, 1).await;
    scene.clock.forward(30_001);
    assert_eq!(results(&scene.fsps[0].about(id, 1).await[0]), ["3303"]);
    scene.fsps[1].about(id, 2).await;
    assert_eq!(put(&scene, &format_uuid(id), "fsp2", &answer(vec![fulfilled(one, &SECRET)])).await, 200);
    assert_eq!(scene.fsps[1].about(id, 3).await[2].error_code(), "3303");
    assert_eq!(positions(&scene).await, (100_000, -100_000, 0));
}
