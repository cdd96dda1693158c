//! Transfers over HTTP: the notices to payer and payee, and the money's location.
use crate::common;

use batzen_http::Method;
use batzen_switch::values::{format_hash, format_uuid};
use common::{Scene, amount};

const SECRET: [u8; 32] = [7; 32];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_is_forwarded_byte_for_byte_and_committed() {
    let scene = Scene::new(2).await;
    let id = scene.id();
    let body = scene.body(id, 0, 1, "12.5", &SECRET);
    // Whitespace and member order that no serializer would preserve.
    let text = format!(" {}\n", serde_json::to_string_pretty(&body).unwrap());
    let reply = scene.send(Method::POST, "transfers", "fsp1", "fsp2", text.as_bytes()).await;
    assert_eq!((reply.status, reply.body.len()), (202, 0));
    let seen = scene.fsps[1].about(id, 1).await;
    assert_eq!((seen[0].method.as_str(), seen[0].path.as_str()), ("POST", "/transfers"));
    assert_eq!(seen[0].body, text.as_bytes());
    assert_eq!(seen[0].headers["fspiop-signature"], "{\"signature\":\"abc\"}");
    assert_eq!(
        (seen[0].headers["fspiop-source"].as_str(), seen[0].headers["fspiop-destination"].as_str()),
        ("fsp1", "fsp2")
    );
    assert_eq!(scene.balances(1).await.position(), 125_000, "reservations count");
    assert_eq!(scene.balances(2).await.position(), 0, "pending receipts do not");

    assert_eq!(scene.fulfil(id, 1, 0, "COMMITTED", &SECRET).await, 200);
    let told = scene.fsps[0].about(id, 1).await;
    assert_eq!(
        (told[0].method.as_str(), told[0].path.clone()),
        ("PUT", format!("/transfers/{}", format_uuid(id)))
    );
    assert_eq!(told[0].json()["transferState"], "COMMITTED");
    assert_eq!(told[0].json()["fulfilment"], format_hash(&SECRET));
    assert_eq!(scene.balances(1).await.position(), 125_000);
    assert_eq!(scene.balances(2).await.position(), -125_000);
    assert_eq!(scene.balances(1).await.reserved(), 0);

    // Both participants see the state, and nobody else; unknown transfers are not found.
    let path = format!("transfers/{}", format_uuid(id));
    assert_eq!(scene.send(Method::GET, &path, "fsp2", "", b"").await.status, 202);
    let told = scene.fsps[1].about(id, 2).await;
    assert_eq!(told[1].json()["transferState"], "COMMITTED");
    let other = scene.id();
    let path = format!("transfers/{}", format_uuid(other));
    assert_eq!(scene.send(Method::GET, &path, "fsp2", "", b"").await.status, 202);
    assert_eq!(scene.fsps[1].about(other, 1).await[0].error_code(), "3208");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repetitions_are_answered_and_modifications_refused() {
    let scene = Scene::new(2).await;
    let id = scene.id();
    let body = scene.body(id, 0, 1, "5", &SECRET);
    assert_eq!(scene.prepare(0, 1, &body).await, 202);
    scene.fsps[1].about(id, 1).await;
    // A repetition returns the state. A different request is refused, and the transfer stays as it is.
    assert_eq!(scene.prepare(0, 1, &body).await, 202);
    assert_eq!(scene.fsps[0].about(id, 1).await[0].json()["transferState"], "RESERVED");
    assert_eq!(scene.prepare(0, 1, &scene.body(id, 0, 1, "6", &SECRET)).await, 202);
    assert_eq!(scene.fsps[0].about(id, 2).await[1].error_code(), "3106");
    assert_eq!(scene.fulfil(id, 1, 0, "RESERVED", &SECRET).await, 200);
    assert_eq!(scene.fsps[0].about(id, 3).await[2].json()["transferState"], "COMMITTED");
    let told = scene.fsps[1].about(id, 2).await;
    assert_eq!((told[1].method.as_str(), &told[1].json()["transferState"]), ("PATCH", &"COMMITTED".into()));
    // Resending the fulfilment gives the same PATCH. A different one is refused.
    assert_eq!(scene.fulfil(id, 1, 0, "RESERVED", &SECRET).await, 200);
    assert_eq!(scene.fsps[1].about(id, 3).await[2].method, "PATCH");
    assert_eq!(scene.fulfil(id, 1, 0, "COMMITTED", &[8; 32]).await, 200);
    assert_eq!(scene.fsps[1].about(id, 4).await[3].error_code(), "3106");
    assert_eq!(scene.balances(1).await.position(), 50_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_message_of_another_tells_nothing_about_its_transfer() {
    let scene = Scene::new(3).await;
    let id = scene.id();
    let body = scene.body(id, 0, 1, "5", &SECRET);
    assert_eq!(scene.prepare(0, 1, &body).await, 202);
    scene.fsps[1].about(id, 1).await;
    assert_eq!(scene.fulfil(id, 1, 0, "COMMITTED", &SECRET).await, 200);
    assert_eq!(scene.fsps[0].about(id, 1).await[0].json()["transferState"], "COMMITTED");
    // The same text from another participant gets neither state nor fulfilment.
    assert_eq!(scene.prepare(2, 1, &body).await, 202);
    let told = scene.fsps[2].about(id, 1).await;
    assert_eq!(told[0].error_code(), "3106");
    assert!(!told[0].json().to_string().contains("fulfilment"));
    assert_eq!(scene.balances(1).await.position(), 50_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_wrong_fulfilments_and_expiry_give_the_money_back() {
    let scene = Scene::new(3).await;
    // The payee refuses: its error is forwarded.
    let id = scene.id();
    scene.prepare(0, 1, &scene.body(id, 0, 1, "5", &SECRET)).await;
    scene.fsps[1].about(id, 1).await;
    // A third party may not touch it.
    let path = format!("transfers/{}/error", format_uuid(id));
    let error = br#"{"errorInformation":{"errorCode":"5100","errorDescription":"no"}}"#;
    assert_eq!(scene.send(Method::PUT, &path, "fsp3", "fsp1", error).await.status, 200);
    assert_eq!(scene.fsps[2].about(id, 1).await[0].error_code(), "3100");
    assert_eq!(scene.refuse(id, 1, 0, "5103").await, 200);
    assert_eq!(scene.fsps[0].about(id, 1).await[0].error_code(), "5103");
    // A wrong fulfilment: aborted, and both are notified.
    let id = scene.id();
    scene.prepare(0, 1, &scene.body(id, 0, 1, "5", &SECRET)).await;
    scene.fsps[1].about(id, 1).await;
    scene.fulfil(id, 1, 0, "RESERVED", &[8; 32]).await;
    assert_eq!(scene.fsps[0].about(id, 1).await[0].error_code(), "3100");
    assert_eq!(scene.fsps[1].about(id, 2).await[1].json()["transferState"], "ABORTED");
    // Expiry: both are notified, and a fulfilment comes too late.
    let id = scene.id();
    scene.prepare(0, 1, &scene.body(id, 0, 1, "5", &SECRET)).await;
    scene.fsps[1].about(id, 1).await;
    assert_eq!(scene.balances(1).await.position(), 50_000);
    scene.clock.forward(30_001);
    assert_eq!(scene.fsps[0].about(id, 1).await[0].error_code(), "3303");
    assert_eq!(scene.fsps[1].about(id, 2).await[1].error_code(), "3303");
    scene.fulfil(id, 1, 0, "COMMITTED", &SECRET).await;
    assert_eq!(scene.fsps[1].about(id, 3).await[2].error_code(), "3303");
    for participant in 1..=2 {
        let balances = scene.balances(participant).await;
        assert_eq!((balances.position(), balances.reserved()), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_hold_for_what_fits_singly_but_not_together() {
    let scene = Scene::new(2).await;
    let ids = [scene.id(), scene.id()];
    let bodies = ids.map(|id| scene.body(id, 0, 1, "600", &SECRET));
    // Sent at the same time, so that they may share a batch.
    let (one, two) = tokio::join!(scene.prepare(0, 1, &bodies[0]), scene.prepare(0, 1, &bodies[1]));
    assert_eq!((one, two), (202, 202));
    common::eventually("both callbacks", async || {
        scene.fsps[..2].iter().all(|fsp| !fsp.callbacks().is_empty())
    })
    .await;
    let outcomes = scene.fsps[0].callbacks();
    assert_eq!((outcomes.len(), scene.fsps[1].callbacks().len()), (1, 1));
    assert_eq!(outcomes[0].error_code(), "4001", "liquidity is tested first");
    assert_eq!(scene.balances(1).await.position(), 6_000_000);
    // If liquidity exceeds the cap, the cap refuses.
    scene.funds_in(1, "5000").await;
    assert_eq!(scene.balances(1).await.granted(), 10_000_000);
    let id = scene.id();
    let body = scene.body(id, 0, 1, "600", &SECRET);
    scene.prepare(0, 1, &body).await;
    assert_eq!(scene.fsps[0].about(id, 1).await[0].error_code(), "4200");
    // A refused id stays refused.
    scene.prepare(0, 1, &body).await;
    assert_eq!(scene.fsps[0].about(id, 2).await[1].error_code(), "4200");
    // The amount that the payee received is headroom.
    scene
        .fulfil(
            ids[usize::from(scene.fsps[1].callbacks()[0].json()["transferId"] != format_uuid(ids[0]))],
            1,
            0,
            "COMMITTED",
            &SECRET,
        )
        .await;
    let id = scene.id();
    common::eventually("the transfer", async || scene.balances(2).await.position() < 0).await;
    scene.prepare(1, 0, &scene.body(id, 1, 0, "1500", &SECRET)).await;
    scene.fsps[0].about(id, 1).await;
    assert_eq!(scene.balances(2).await.position(), i128::try_from(amount("900")).unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_messages_are_refused_at_once_or_by_callback() {
    let scene = Scene::new(2).await;
    let base = scene.body(scene.id(), 0, 1, "5", &SECRET);
    let with = |member: &str, value: serde_json::Value| {
        let mut body = base.clone();
        body[member] = value;
        body.to_string()
    };
    let mut without = base.clone();
    without.as_object_mut().unwrap().remove("condition");
    let money = |amount: &str| serde_json::json!({ "currency": "EUR", "amount": amount });
    let cases = [
        ("{".to_owned(), "3101"),
        (without.to_string(), "3102"),
        (with("surprise", 1.into()), "3103"),
        (with("amount", money("1.50")), "3101"),
        (with("amount", money("-1")), "3101"),
        (with("expiration", "soon".into()), "3101"),
        (with("transferId", "7".into()), "3101"),
        (with("ilpPacket", "a b".into()), "3101"),
    ];
    for (body, code) in cases {
        let reply = scene.send(Method::POST, "transfers", "fsp1", "fsp2", body.as_bytes()).await;
        let answer: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(
            (reply.status, answer["errorInformation"]["errorCode"].as_str().unwrap()),
            (400, code),
            "{body}"
        );
    }
    let text = base.to_string();
    assert_eq!(scene.send(Method::POST, "transfers", "nobody", "fsp2", text.as_bytes()).await.status, 403);
    assert_eq!(scene.send(Method::DELETE, "transfers", "fsp1", "fsp2", b"").await.status, 405);
    assert_eq!(scene.send(Method::POST, "nothing", "fsp1", "fsp2", b"{}").await.status, 404);
    let reply = scene.client.post(format!("{}transfers", scene.switch.fsp_url()));
    let reply =
        reply.header("fspiop-source", "fsp1").body("application/json", text.clone()).send().await.unwrap();
    assert_eq!(reply.status, 400);
    let media = "application/vnd.interoperability.transfers+json;version=2.0";
    let reply = scene.client.post(format!("{}transfers", scene.switch.fsp_url()));
    assert_eq!(reply.header("accept", media).body(media, text).send().await.unwrap().status, 406);

    // Refused by callback, and recorded as invalid.
    let cases = [
        (scene.body(scene.id(), 1, 0, "5", &SECRET), "3100"),
        (
            {
                let mut b = scene.body(scene.id(), 0, 1, "5", &SECRET);
                b["payeeFsp"] = "nobody".into();
                b
            },
            "3203",
        ),
        (
            {
                let mut b = scene.body(scene.id(), 0, 1, "5", &SECRET);
                b["payeeFsp"] = "fsp1".into();
                b
            },
            "3100",
        ),
        (
            {
                let mut b = scene.body(scene.id(), 0, 1, "5", &SECRET);
                b["amount"]["currency"] = "USD".into();
                b
            },
            "4300",
        ),
        (
            {
                let mut b = scene.body(scene.id(), 0, 1, "5", &SECRET);
                b["expiration"] = "2020-01-01T00:00:00.000Z".into();
                b
            },
            "3303",
        ),
    ];
    for (body, code) in cases {
        let reply = scene.send(Method::POST, "transfers", "fsp1", "fsp2", body.to_string().as_bytes()).await;
        assert_eq!(reply.status, 202);
        let id = batzen_switch::values::parse_uuid(body["transferId"].as_str().unwrap()).unwrap();
        assert_eq!(scene.fsps[0].about(id, 1).await[0].error_code(), code);
    }
    assert!(scene.fsps[1].callbacks().is_empty());
}
