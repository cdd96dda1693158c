//! Proposals that wait for a second operator: who may decide, how often, by what deadline, and what the pages
//! show meanwhile.
use crate::common;

use batzen_http::Method;
use batzen_switch::rules::{ApprovalState, Change};
use batzen_switch::values::format_uuid;
use common::{Scene, currency};
use serde_json::{Value, json};

const DAY_MILLIS: u64 = 24 * 3600 * 1000;

async fn decide(scene: &Scene, path: &str, token: &str, decision: &str) -> (u16, Value) {
    scene.admin(Method::POST, path, token, &json!({ "decision": decision, "reason": "because" })).await
}

async fn get(scene: &Scene, path: &str) -> Value {
    let (status, answer) = scene.admin(Method::GET, path, "token-a", &Value::Null).await;
    assert_eq!(status, 200, "{path}: {answer}");
    answer
}

/// Path and body of a movement of funds for `fsp1`.
async fn funds(scene: &Scene, id: u128, action: &str, text: &str) -> (String, Value) {
    let accounts = get(scene, "participants/fsp1/accounts").await;
    let accounts = accounts.as_array().unwrap();
    let account = accounts.iter().find(|one| one["ledgerAccountType"] == "SETTLEMENT").unwrap();
    let body = json!({
        "transferId": format_uuid(id), "externalReference": "bank 7", "action": action,
        "reason": "end of day", "amount": { "currency": "EUR", "amount": text },
    });
    (format!("participants/fsp1/accounts/{}", account["id"]), body)
}

async fn propose(scene: &Scene, method: Method, path: &str, body: &Value) -> String {
    let (status, answer) = scene.admin(method, path, "token-a", body).await;
    assert_eq!((status, &answer["state"]), (202, &json!("OPEN")), "{path}: {answer}");
    format!("approvals/{}", answer["approvalId"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_changed_by_one_operator_alone() {
    let scene = Scene::new(2).await;
    let model = Change::Model {
        name: "NET".to_owned(),
        currency: currency(),
        gross: false,
        require_liquidity_check: false,
        auto_position_reset: true,
        active: true,
    };
    scene.switch.service().apply(&model).await.unwrap();
    scene.transfer(0, 1, "300").await;
    // Things that can be ended: reserved funds, a closed window, a settlement.
    let service = scene.switch.service();
    let reserved = scene.funds(1, "100");
    service.deposit(&scene.funds(1, "100")).await.unwrap();
    let (funds_path, out) = funds(&scene, reserved.id, "recordFundsOutPrepareReserve", "100").await;
    let path = propose(&scene, Method::POST, &funds_path, &out).await;
    assert_eq!(decide(&scene, &path, "token-b", "APPROVE").await.0, 200);
    service.apply(&Change::CloseWindow { id: 1, reason: String::new() }).await.unwrap();
    let settle = |windows| Change::Settle { model: "NET".to_owned(), reason: String::new(), windows };
    assert_eq!(service.apply(&settle(vec![1])).await.unwrap(), 1);
    scene.transfer(0, 1, "5").await;

    let accounts = get(&scene, "participants/fsp1/accounts").await;
    let position = &accounts
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["ledgerAccountType"] == "POSITION")
        .unwrap()["id"];
    let (_, funds_in) = funds(&scene, scene.id(), "recordFundsIn", "7").await;
    let (_, funds_out) = funds(&scene, scene.id(), "recordFundsOutPrepareReserve", "7").await;
    let end = format!("{funds_path}/transfers/{}", format_uuid(reserved.id));
    let step = json!({ "participants": [{ "id": 1, "accounts": [{ "id": position, "state": "PS_TRANSFERS_RECORDED" }] }] });
    let limit = json!({ "currency": "EUR", "limit": { "type": "NET_DEBIT_CAP", "value": "1", "alarmPercentage": 5 } });
    let (post, put) = (Method::POST, Method::PUT);
    let attempts = [
        (post.clone(), "participants".to_owned(), json!({ "name": "fsp9", "currency": "EUR" })),
        (put.clone(), "participants/fsp1".to_owned(), json!({ "isActive": false })),
        (
            post.clone(),
            "participants/Hub/accounts".to_owned(),
            json!({ "currency": "USD", "type": "HUB_RECONCILIATION" }),
        ),
        (put.clone(), format!("participants/fsp1/accounts/{position}"), json!({ "isActive": false })),
        (
            post.clone(),
            "participants/fsp1/endpoints".to_owned(),
            json!({ "type": "FSPIOP_CALLBACK_URL", "value": "http://127.0.0.1:1/x" }),
        ),
        (put.clone(), "participants/fsp1/limits".to_owned(), limit),
        (post.clone(), "settlementModels".to_owned(), json!({ "name": "OTHER" })),
        (put.clone(), "settlementModels/NET".to_owned(), json!({ "isActive": false, "currency": "EUR" })),
        (post.clone(), funds_path.clone(), funds_in),
        (post.clone(), funds_path.clone(), funds_out),
        (put.clone(), end.clone(), json!({ "action": "recordFundsOutAbort" })),
        (post.clone(), "settlementWindows/2".to_owned(), json!({ "state": "CLOSED" })),
        (
            post,
            "settlements".to_owned(),
            json!({ "settlementModel": "NET", "settlementWindows": [{ "id": 2 }] }),
        ),
        (put.clone(), "settlements/1".to_owned(), step),
        (put, "settlements/1".to_owned(), json!({ "state": "ABORTED" })),
    ];
    let looks = [
        "participants",
        "participants/fsp1/accounts",
        "participants/fsp1/endpoints",
        "participants/fsp1/positions",
        "participants/limits",
        "settlementModels",
        "settlementWindows",
        "settlements",
        "balances",
        "participants/fsp1/statement",
    ];
    let mut before = Vec::new();
    for look in looks {
        before.push(get(&scene, look).await);
    }
    for (method, path, body) in &attempts {
        let approval = propose(&scene, method.clone(), path, body).await;
        assert_eq!(propose(&scene, method.clone(), path, body).await, approval, "the same again: {path}");
        for decision in ["APPROVE", "REJECT"] {
            let (status, answer) = decide(&scene, &approval, "token-a", decision).await;
            assert_eq!((status, &answer["errorInformation"]["errorCode"]), (403, &json!("3000")), "{path}");
        }
    }
    for (look, before) in looks.iter().zip(&before) {
        assert_eq!(get(&scene, look).await, *before, "{look} has changed by one operator alone");
    }
    let open = get(&scene, "approvals?state=OPEN").await;
    assert_eq!(open.as_array().unwrap().len(), attempts.len());
    for shown in open.as_array().unwrap() {
        let text = shown.to_string();
        assert!(!text.contains("4543826"), "currencies by name: {text}");
        assert!(shown["summary"].as_str().is_some_and(|text| text.len() > 10), "{text}");
        assert_eq!((&shown["proposedBy"], &shown["decidedBy"]), (&json!("alice"), &Value::Null));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proposal_says_what_will_change() {
    let scene = Scene::new(1).await;
    let (path, body) = funds(&scene, scene.id(), "recordFundsIn", "250.5").await;
    let approval = propose(&scene, Method::POST, &path, &body).await;
    let shown = get(&scene, &approval).await;
    for (name, expected) in [
        ("state", json!("OPEN")),
        ("summary", json!("record 250.5 EUR in from fsp1")),
        ("participant", json!("fsp1")),
        ("currency", json!("EUR")),
        ("amount", json!("250.5")),
        ("reason", json!("end of day")),
        ("proposedBy", json!("alice")),
        ("decidedBy", Value::Null),
    ] {
        assert_eq!(shown[name], expected, "{name}: {shown}");
    }
    assert_eq!((&shown["change"]["currency"], &shown["change"]["amount"]), (&json!("EUR"), &json!("250.5")));
    assert_eq!(shown["change"]["reference"], "bank 7");
    let limit = json!({ "currency": "EUR", "limit": { "type": "NET_DEBIT_CAP", "value": "400" } });
    let approval = propose(&scene, Method::PUT, "participants/fsp1/limits", &limit).await;
    let shown = get(&scene, &approval).await;
    assert_eq!(shown["summary"], "set the net debit cap of fsp1 to 400 EUR (now 1000 EUR)");
    // While this is open, neither operator can propose anything else about it, nor can the other propose the
    // same.
    let other = json!({ "currency": "EUR", "limit": { "type": "NET_DEBIT_CAP", "value": "500" } });
    for (token, body) in [("token-a", &other), ("token-b", &limit)] {
        let (status, answer) = scene.admin(Method::PUT, "participants/fsp1/limits", token, body).await;
        assert_eq!(status, 409, "{answer}");
        assert!(answer["errorInformation"]["errorDescription"].as_str().unwrap().contains("is open"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_operators_stand_in_the_records() {
    let scene = Scene::new(1).await;
    let id = scene.id();
    let (path, body) = funds(&scene, id, "recordFundsIn", "5").await;
    let approval = propose(&scene, Method::POST, &path, &body).await;
    let (status, answer) = decide(&scene, &approval, "token-b", "APPROVE").await;
    assert_eq!((status, &answer["state"]), (200, &json!("COMMITTED")));
    assert_eq!(scene.balances(1).await.cover(), 10_050_000);
    let shown = get(&scene, &approval).await;
    assert_eq!((&shown["proposedBy"], &shown["decidedBy"]), (&json!("alice"), &json!("bob")));
    assert_eq!((&shown["state"], &shown["result"]), (&json!("APPROVED"), &json!("done")));
    let statement = get(&scene, "participants/fsp1/statement").await;
    let movements = statement["movements"].as_array().unwrap();
    let movement = movements.iter().find(|one| one["transferId"] == format_uuid(id)).unwrap();
    assert_eq!(movement["operator"], "alice, bob");
    // Repeating the approval and the order gives the same answers, and the money moves once.
    assert_eq!(decide(&scene, &approval, "token-b", "APPROVE").await, (status, answer));
    let (status, answer) = scene.admin(Method::POST, &path, "token-b", &body).await;
    assert_eq!((status, &answer["state"]), (202, &json!("COMMITTED")));
    assert_eq!(scene.balances(1).await.cover(), 10_050_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proposals_are_rejected_with_a_reason_or_withdrawn() {
    let scene = Scene::new(1).await;
    let (path, body) = funds(&scene, scene.id(), "recordFundsIn", "5").await;
    let first = propose(&scene, Method::POST, &path, &body).await;
    assert_eq!(decide(&scene, &first, "token-b", "WITHDRAW").await.0, 403, "it is another's");
    let rejected = decide(&scene, &first, "token-b", "REJECT").await;
    assert_eq!((rejected.0, &rejected.1["state"]), (200, &json!("REJECTED")));
    assert_eq!(decide(&scene, &first, "token-b", "REJECT").await, rejected, "the same again");
    let shown = get(&scene, &first).await;
    assert_eq!((&shown["decisionReason"], &shown["decidedBy"]), (&json!("because"), &json!("bob")));
    assert_eq!(decide(&scene, &first, "token-b", "APPROVE").await.0, 409);
    // The same change may be proposed again, and withdrawn.
    let second = propose(&scene, Method::POST, &path, &body).await;
    assert_ne!(first, second);
    let withdrawn = decide(&scene, &second, "token-a", "WITHDRAW").await;
    assert_eq!((withdrawn.0, &withdrawn.1["state"]), (200, &json!("WITHDRAWN")));
    assert_eq!(decide(&scene, &second, "token-a", "WITHDRAW").await, withdrawn);
    assert_eq!(decide(&scene, &second, "token-b", "APPROVE").await.0, 409);
    assert_eq!(scene.balances(1).await.cover(), 10_000_000);
    for (state, count) in [("OPEN", 0), ("REJECTED", 1), ("WITHDRAWN", 1)] {
        let shown = get(&scene, &format!("approvals?state={state}")).await;
        assert_eq!(shown.as_array().unwrap().len(), count, "{state}");
    }
    let (status, _) = scene.admin(Method::GET, "approvals?state=MAYBE", "token-a", &Value::Null).await;
    assert_eq!(status, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proposals_expire() {
    let scene = Scene::new(1).await;
    let (path, body) = funds(&scene, scene.id(), "recordFundsIn", "5").await;
    let first = propose(&scene, Method::POST, &path, &body).await;
    scene.clock.forward(6 * DAY_MILLIS);
    assert_eq!(get(&scene, &first).await["state"], "OPEN");
    scene.clock.forward(2 * DAY_MILLIS);
    assert_eq!(get(&scene, &first).await["state"], "EXPIRED");
    let (status, answer) = decide(&scene, &first, "token-b", "APPROVE").await;
    assert_eq!(status, 409);
    assert!(answer["errorInformation"]["errorDescription"].as_str().unwrap().contains("expired"), "{answer}");
    // It can be proposed again, whether or not the switch has tidied up meanwhile.
    let second = propose(&scene, Method::POST, &path, &body).await;
    assert_ne!(first, second);
    assert_eq!(decide(&scene, &first, "token-b", "APPROVE").await.0, 409);
    assert_eq!(decide(&scene, &second, "token-b", "APPROVE").await.0, 200);
    let row =
        scene.switch.service().approval(first.trim_start_matches("approvals/").parse().unwrap()).unwrap();
    assert_eq!(ApprovalState::of(&row), ApprovalState::Expired);
    assert_eq!(scene.balances(1).await.cover(), 10_050_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proposal_that_no_longer_fits_fails_and_says_why() {
    let scene = Scene::new(2).await;
    let close = json!({ "state": "CLOSED" });
    let approval = propose(&scene, Method::POST, "settlementWindows/1", &close).await;
    let service = scene.switch.service();
    service.apply(&Change::CloseWindow { id: 1, reason: String::new() }).await.unwrap();
    let failed = decide(&scene, &approval, "token-b", "APPROVE").await;
    assert_eq!(failed.0, 409);
    assert_eq!(failed.1["errorInformation"]["errorDescription"], "the window is not open");
    assert_eq!(decide(&scene, &approval, "token-b", "APPROVE").await, failed, "the same again");
    let shown = get(&scene, &approval).await;
    assert_eq!((&shown["state"], &shown["result"]), (&json!("FAILED"), &json!("the window is not open")));
    assert_eq!(get(&scene, "settlementWindows?state=OPEN").await[0]["id"], 2);
    // A change that cannot be made now is not proposed.
    assert_eq!(scene.admin(Method::POST, "settlementWindows/1", "token-a", &close).await.0, 409);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn approvals_at_once_take_effect_once() {
    let scene = Scene::new(1).await;
    let (path, body) = funds(&scene, scene.id(), "recordFundsIn", "5").await;
    let money = propose(&scene, Method::POST, &path, &body).await;
    let window = propose(&scene, Method::POST, "settlementWindows/1", &json!({ "state": "CLOSED" })).await;
    for approval in [&money, &window] {
        let approve = || decide(&scene, approval, "token-b", "APPROVE");
        let (one, two, three, four) =
            tokio::join!(approve(), approve(), approve(), decide(&scene, approval, "token-a", "APPROVE"));
        assert_eq!((one.0, four.0), (200, 403));
        assert_eq!((&one, &one), (&two, &three));
    }
    assert_eq!(scene.balances(1).await.cover(), 10_050_000);
    assert_eq!(get(&scene, "settlementWindows?state=OPEN").await[0]["id"], 2, "closed once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_errors_have_one_form() {
    let scene = Scene::new(1).await;
    let url = |path: &str| format!("{}{path}", scene.switch.admin_url());
    let call = |method: Method, path: &str| scene.client.call(method, url(path));
    let as_alice = |method: Method, path: &str| call(method, path).header("authorization", "Bearer token-a");
    let large = vec![b' '; batzen_switch::MAX_BODY_BYTES + 1];
    let replies = [
        (401, "3000", call(Method::GET, "participants").send().await.unwrap()),
        (
            401,
            "3000",
            call(Method::GET, "participants").header("authorization", "Bearer no").send().await.unwrap(),
        ),
        (404, "3002", as_alice(Method::GET, "nowhere").send().await.unwrap()),
        (404, "3200", as_alice(Method::GET, "participants/nobody").send().await.unwrap()),
        (404, "3200", as_alice(Method::GET, "approvals/99").send().await.unwrap()),
        (404, "3200", as_alice(Method::GET, "approvals/x").send().await.unwrap()),
        (405, "3000", as_alice(Method::DELETE, "participants").send().await.unwrap()),
        (
            400,
            "3101",
            as_alice(Method::POST, "participants")
                .body("application/json", b"{".to_vec())
                .send()
                .await
                .unwrap(),
        ),
        (
            400,
            "3101",
            as_alice(Method::POST, "participants").json(&json!({ "name": 1 })).send().await.unwrap(),
        ),
        (
            413,
            "3104",
            as_alice(Method::POST, "participants").body("application/json", large).send().await.unwrap(),
        ),
        (414, "3104", as_alice(Method::GET, &"x".repeat(9000)).send().await.unwrap()),
    ];
    for (status, code, reply) in replies {
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        assert_eq!(reply.status, status, "{text}");
        let body: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(body.as_object().unwrap().len(), 1, "{text}");
        assert_eq!(body["errorInformation"]["errorCode"], code, "{text}");
        assert!(!body["errorInformation"]["errorDescription"].as_str().unwrap().is_empty(), "{text}");
    }
}
