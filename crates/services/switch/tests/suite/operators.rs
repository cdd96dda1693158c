//! Operators over HTTP: changes with four eyes, limits, funds, windows, settlements.
use crate::common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use batzen_http::Method;
use batzen_ledger::{CreateTransferStatus, Ledger, Transfer, TransferFlags};
use batzen_switch::ids::{Role, derive, settlement_part};
use batzen_switch::values::{currency_number, format_uuid};
use common::{Scene, amount, currency};
use serde_json::{Value, json};

const SECRET: [u8; 32] = [7; 32];

/// Proposes as one operator and approves as another; returns the answer to the approval.
async fn decided(scene: &Scene, method: Method, path: &str, body: &Value) -> (u16, Value) {
    let (status, answer) = scene.admin(method, path, "token-a", body).await;
    assert_eq!((status, &answer["state"]), (202, &json!("OPEN")), "{path}: {answer}");
    let path = format!("approvals/{}", answer["approvalId"]);
    scene.admin(Method::POST, &path, "token-b", &json!({ "decision": "APPROVE" })).await
}

async fn approved(scene: &Scene, method: Method, path: &str, body: Value) -> Value {
    let (status, answer) = decided(scene, method, path, &body).await;
    assert_eq!(status, 200, "{path}: {answer}");
    answer
}

async fn get(scene: &Scene, path: &str) -> Value {
    let (status, answer) = scene.admin(Method::GET, path, "token-b", &Value::Null).await;
    assert_eq!(status, 200, "{path}: {answer}");
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_takes_two_operators() {
    let scene = Scene::new(2).await;
    let (status, _) = scene.admin(Method::GET, "participants", "token-c", &Value::Null).await;
    assert_eq!(status, 401);
    let body = json!({ "currency": "EUR", "limit": { "type": "NET_DEBIT_CAP", "value": "400", "alarmPercentage": 50 } });
    let (status, answer) = scene.admin(Method::PUT, "participants/fsp1/limits", "token-a", &body).await;
    assert_eq!(status, 202);
    assert_eq!(scene.balances(1).await.granted(), 10_000_000, "nothing has changed yet");
    let path = format!("approvals/{}", answer["approvalId"]);
    let approve = json!({ "decision": "APPROVE" });
    assert_eq!(
        scene.admin(Method::POST, &path, "token-a", &approve).await.0,
        403,
        "who proposes cannot approve"
    );
    let first = scene.admin(Method::POST, &path, "token-b", &approve).await;
    assert_eq!(first.0, 200);
    assert_eq!(scene.admin(Method::POST, &path, "token-b", &approve).await, first, "the same again");
    let reject = json!({ "decision": "REJECT" });
    assert_eq!(scene.admin(Method::POST, &path, "token-b", &reject).await.0, 409, "decided once");
    assert_eq!(scene.balances(1).await.granted(), 4_000_000);
    let shown = get(&scene, &path).await;
    assert_eq!(
        (&shown["proposedBy"], &shown["decidedBy"], &shown["state"]),
        (&json!("alice"), &json!("bob"), &json!("APPROVED"))
    );
    let limits = get(&scene, "participants/fsp1/limits").await;
    assert_eq!(limits[0]["limit"], json!({ "type": "NET_DEBIT_CAP", "value": "400", "alarmPercentage": 50 }));

    // A new participant, step by step.
    approved(&scene, Method::POST, "participants", json!({ "name": "fsp3", "currency": "EUR" })).await;
    assert_eq!(get(&scene, "participants/fsp3").await["isActive"], false);
    let body = json!({ "currency": "EUR", "limit": { "type": "NET_DEBIT_CAP", "value": "10" }, "initialPosition": "0" });
    approved(&scene, Method::POST, "participants/fsp3/initialPositionAndLimits", body).await;
    assert_eq!(get(&scene, "participants/FSP3").await["isActive"], true);
    // A change that cannot be made fails when it is approved.
    let body = json!({ "name": "fsp3", "currency": "EUR" });
    let (_, answer) = scene.admin(Method::POST, "participants", "token-b", &body).await;
    let path = format!("approvals/{}", answer["approvalId"]);
    assert_eq!(scene.admin(Method::POST, &path, "token-a", &approve).await.0, 409);
    assert_eq!(get(&scene, &path).await["state"], "FAILED");
    // Disabled: no new transfers.
    approved(&scene, Method::PUT, "participants/fsp2", json!({ "isActive": false })).await;
    let id = scene.id();
    scene.prepare(0, 1, &scene.body(id, 0, 1, "5", &SECRET)).await;
    assert_eq!(scene.fsps[0].about(id, 1).await[0].error_code(), "5300");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn funds_go_only_as_far_as_the_position_allows() {
    let scene = Scene::new(2).await;
    scene.transfer(0, 1, "600").await;
    let accounts = get(&scene, "participants/fsp1/accounts").await;
    let account =
        accounts.as_array().unwrap().iter().find(|one| one["ledgerAccountType"] == "SETTLEMENT").unwrap();
    assert_eq!(account["value"], "-1000");
    let path = format!("participants/fsp1/accounts/{}", account["id"]);
    let out = |id: u128, text: &str| {
        json!({
            "transferId": format_uuid(id), "externalReference": "x", "action": "recordFundsOutPrepareReserve",
            "reason": "test", "amount": { "currency": "EUR", "amount": text },
        })
    };
    let (status, _) = decided(&scene, Method::POST, &path, &out(scene.id(), "400.0001")).await;
    assert_eq!(status, 409, "the position needs it");
    assert_eq!(scene.balances(1).await.granted(), 10_000_000);
    let id = scene.id();
    let (status, answer) = decided(&scene, Method::POST, &path, &out(id, "400")).await;
    assert_eq!((status, &answer["state"]), (200, &json!("RESERVED")), "{answer}");
    let balances = scene.balances(1).await;
    assert_eq!(
        (balances.cover(), balances.granted(), balances.position()),
        (6_000_000, 6_000_000, 6_000_000)
    );
    // A repetition gives the same result; a different amount under the same id is refused.
    let (status, answer) = scene.admin(Method::POST, &path, "token-a", &out(id, "400")).await;
    assert_eq!((status, &answer["state"]), (202, &json!("RESERVED")));
    assert_eq!(scene.admin(Method::POST, &path, "token-a", &out(id, "300")).await.0, 409);
    let finish = format!("{path}/transfers/{}", format_uuid(id));
    let abort = json!({ "action": "recordFundsOutAbort", "reason": "no" });
    let (status, answer) = decided(&scene, Method::PUT, &finish, &abort).await;
    assert_eq!((status, &answer["state"]), (200, &json!("ABORTED")));
    assert_eq!(scene.balances(1).await.granted(), 10_000_000);
    let commit = json!({ "action": "recordFundsOutCommit" });
    assert_eq!(scene.admin(Method::PUT, &finish, "token-a", &commit).await.0, 409);
    let id = scene.id();
    approved(&scene, Method::POST, &path, out(id, "100")).await;
    let finish = format!("{path}/transfers/{}", format_uuid(id));
    assert_eq!(approved(&scene, Method::PUT, &finish, commit).await["state"], "COMMITTED");
    assert_eq!(scene.balances(1).await.cover(), 9_000_000);
    let statement = get(&scene, "participants/fsp1/statement").await;
    let kinds: Vec<_> =
        statement["movements"].as_array().unwrap().iter().map(|one| one["kind"].clone()).collect();
    assert!(kinds.contains(&json!("recordFundsIn")) && kinds.contains(&json!("recordFundsOut")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lowered_cap_takes_headroom_back_as_it_returns() {
    let scene = Scene::new(2).await;
    scene.transfer(0, 1, "600").await;
    let body = json!({ "currency": "EUR", "limit": { "type": "NET_DEBIT_CAP", "value": "100" } });
    approved(&scene, Method::PUT, "participants/fsp1/limits", body).await;
    let positions = get(&scene, "participants/fsp1/positions").await;
    assert_eq!((&positions[0]["value"], &positions[0]["overLimit"]), (&json!("600"), &json!(true)));
    let id = scene.id();
    scene.prepare(0, 1, &scene.body(id, 0, 1, "0.0001", &SECRET)).await;
    assert_eq!(scene.fsps[0].about(id, 1).await[0].error_code(), "4200");
    // Receipts bring it back.
    scene.transfer(1, 0, "550").await;
    let is_over = async || get(&scene, "participants/fsp1/positions").await[0]["overLimit"].clone();
    common::eventually("its return", async || is_over().await == false).await;
    let balances = scene.balances(1).await;
    assert_eq!((balances.position(), balances.granted()), (500_000, 1_000_000));
    scene.transfer(0, 1, "50").await;
}

async fn step(scene: &Scene, settlement: &Value, state: &str) -> Value {
    let participants: Vec<Value> = settlement["participants"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            let account = json!({ "id": one["accounts"][0]["id"], "state": state, "reason": "step", "externalReference": "bank-7" });
            json!({ "id": one["id"], "accounts": [account] })
        })
        .collect();
    let path = format!("settlements/{}", settlement["id"]);
    let answer = approved(scene, Method::PUT, &path, json!({ "participants": participants })).await;
    assert_eq!(answer["state"], if state == "SETTLED" { "SETTLED" } else { state });
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_are_settled_in_net_and_positions_go_back_to_zero() {
    let clock = common::TestClock::new();
    let ledger = common::memory_ledger(&clock);
    let scene = Scene::over(3, clock, Arc::clone(&ledger) as Arc<dyn Ledger>).await;
    let model = json!({
        "name": "DEFERRED", "settlementGranularity": "NET", "settlementInterchange": "MULTILATERAL",
        "settlementDelay": "DEFERRED", "currency": "EUR", "requireLiquidityCheck": true, "autoPositionReset": true,
    });
    approved(&scene, Method::POST, "settlementModels", model).await;
    scene.transfer(0, 1, "300").await;
    scene.transfer(1, 2, "120.5").await;
    scene.transfer(2, 0, "20").await;
    let close = json!({ "state": "CLOSED", "reason": "end of day" });
    let (status, closed) = decided(&scene, Method::POST, "settlementWindows/1", &close).await;
    assert_eq!((status, &closed["state"], &closed["transfers"]), (200, &json!("CLOSED"), &json!(3)));
    assert_eq!(scene.admin(Method::POST, "settlementWindows/1", "token-a", &close).await.0, 409);
    let open = get(&scene, "settlementWindows?state=OPEN").await;
    assert_eq!((open.as_array().unwrap().len(), &open[0]["id"]), (1, &json!(2)));
    // These belong to the next window.
    scene.transfer(0, 1, "1").await;

    let body = json!({ "settlementModel": "DEFERRED", "reason": "day", "settlementWindows": [{ "id": 1 }] });
    // Abandoned once, then created again.
    let settlement = approved(&scene, Method::POST, "settlements", body.clone()).await;
    assert_eq!(decided(&scene, Method::POST, "settlements", &body).await.0, 409, "a window is settled once");
    step(&scene, &settlement, "PS_TRANSFERS_RECORDED").await;
    step(&scene, &settlement, "PS_TRANSFERS_RESERVED").await;
    assert_eq!(scene.balances(2).await.position(), -10_000, "recipients: what they are owed is no headroom");
    let abort = json!({ "state": "ABORTED", "reason": "mistake" });
    let path = format!("settlements/{}", settlement["id"]);
    let (status, aborted) = decided(&scene, Method::PUT, &path, &abort).await;
    assert_eq!((status, &aborted["state"]), (200, &json!("ABORTED")));
    assert_eq!(scene.balances(2).await.position(), -1_805_000);
    assert_eq!(get(&scene, "settlementWindows/1").await["state"], "ABORTED");

    let settlement = approved(&scene, Method::POST, "settlements", body).await;
    let nets: Vec<Value> = settlement["participants"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["accounts"][0]["netSettlementAmount"]["amount"].clone())
        .collect();
    assert_eq!(nets, ["280", "-179.5", "-100.5"]);
    step(&scene, &settlement, "PS_TRANSFERS_RECORDED").await;
    // Steps out of order are refused, account by account.
    let wrong = json!({ "participants": [{ "id": 1, "accounts": [{ "id": settlement["participants"][0]["accounts"][0]["id"], "state": "SETTLED" }] }] });
    let path = format!("settlements/{}", settlement["id"]);
    let (status, answer) = scene.admin(Method::PUT, &path, "token-a", &wrong).await;
    assert_eq!((status, &answer["errorInformation"]["errorCode"]), (409, &json!("3100")), "{answer}");
    assert_eq!(answer["errors"].as_array().map(Vec::len), Some(1), "{answer}");
    step(&scene, &settlement, "PS_TRANSFERS_RESERVED").await;
    // The switch is killed after the ledger has committed an account, and before the books say so.
    let pending_id = derive(Role::NetSender, settlement_part(2, 1, currency_number("EUR").unwrap()));
    let id = derive(Role::Post, pending_id);
    let flags = TransferFlags::POST_PENDING_TRANSFER;
    let amount = ledger.lookup_transfers(vec![pending_id]).await.unwrap()[0].amount;
    let post = Transfer { id, pending_id, amount, flags, ..Transfer::default() };
    let posted = ledger.create_transfers(vec![post]).await.unwrap();
    assert_eq!(posted[0].status, CreateTransferStatus::Created);
    let (status, answer) = decided(&scene, Method::PUT, &path, &abort).await;
    assert_eq!(status, 409);
    assert!(answer.to_string().contains("repeat its step"), "{answer}");
    assert_eq!(get(&scene, &path).await["state"], "PS_TRANSFERS_RESERVED");
    step(&scene, &settlement, "PS_TRANSFERS_COMMITTED").await;
    let expected = [10_000, -10_000, 0];
    for (participant, expected) in (1..).zip(expected) {
        assert_eq!(scene.balances(participant).await.position(), expected, "only the next window is left");
    }
    let balances = get(&scene, "balances").await;
    let sums = &balances["currencies"][0];
    assert_eq!((&sums["hubSettlement"], &sums["pending"]), (&json!("0"), &json!("0")));
    assert_eq!(sums["ledgerDebits"], sums["ledgerCredits"]);
    step(&scene, &settlement, "SETTLED").await;
    assert_eq!(get(&scene, "settlementWindows/1").await["state"], "SETTLED");
    reports_tell_the_settlement(&scene, &settlement).await;
}

async fn text(scene: &Scene, path: &str) -> (u16, String) {
    let call = scene.client.get(format!("{}{path}", scene.switch.admin_url()));
    let reply = call.header("authorization", "Bearer token-a").send().await.unwrap();
    (reply.status, String::from_utf8(reply.body.to_vec()).unwrap())
}

/// Checks the reports about the settlement above.
async fn reports_tell_the_settlement(scene: &Scene, settlement: &Value) {
    let report = format!("settlements/{}/report", settlement["id"]);
    assert_eq!(get(scene, &report).await["state"], "SETTLED");
    let (status, csv) = text(scene, &format!("{report}?format=csv")).await;
    assert_eq!(status, 200, "{csv}");
    assert!(csv.contains(",EUR,1,fsp2,SETTLEMENT-fsp2,1,120.50,1,300.00,-179.50\r\n"), "{csv}");
    assert_eq!(csv.lines().count(), 4, "{csv}");
    for (leg, transactions, account) in
        [("collection", 1, "SETTLEMENT-fsp1"), ("payout", 2, "SETTLEMENT-fsp3")]
    {
        let (status, xml) = text(scene, &format!("{report}?format=pacs009&leg={leg}")).await;
        assert_eq!(status, 200, "{xml}");
        assert!(xml.contains("pacs.009.001.08") && xml.contains(account), "{xml}");
        assert!(xml.contains("<CtrlSum>280.00</CtrlSum>"), "{xml}");
        assert_eq!(xml.matches("<CdtTrfTxInf>").count(), transactions, "{xml}");
    }
    let (status, xml) = text(scene, &format!("{report}?format=camt054&participant=fsp3&currency=EUR")).await;
    assert_eq!(status, 200, "{xml}");
    assert!(xml.contains("100.50") && xml.contains("<CdtDbtInd>CRDT</CdtDbtInd>"), "{xml}");
    for (query, expected) in [
        ("format=pdf", 400),
        ("format=pacs009", 400),
        ("format=camt054", 404),
        ("format=camt054&participant=fsp9", 404),
        ("format=csv&currency=USD", 404),
        ("format=csv&currency=euro", 400),
    ] {
        assert_eq!(text(scene, &format!("{report}?{query}")).await.0, expected, "{query}");
    }
    // The first settlement was abandoned: nothing is to be paid for it, and nothing was.
    for query in ["format=pacs009&leg=payout", "format=camt054&participant=fsp3"] {
        assert_eq!(text(scene, &format!("settlements/1/report?{query}")).await.0, 409, "{query}");
    }

    for (format, root) in
        [("camt053", "<BkToCstmrStmt>"), ("camt053&part=header", "<MsgDefIdr>camt.053.001.08")]
    {
        let path = format!("participants/fsp2/statement?window=1&currency=EUR&format={format}");
        let (status, xml) = text(scene, &path).await;
        assert_eq!(status, 200, "{xml}");
        assert!(xml.contains(root), "{xml}");
    }
    let (status, header) = text(scene, &format!("{report}?format=pacs009&leg=payout&part=header")).await;
    assert_eq!(status, 200, "{header}");
    assert!(header.contains("<BizMsgIdr>S2-EUR-P</BizMsgIdr>"), "{header}");
    let entries = get(scene, "participants/fsp2/statement?window=1&currency=EUR").await;
    let id = entries["entries"][0]["transferId"].as_str().unwrap();
    for (format, status, content) in [
        ("pacs008", 200, "<IntrBkSttlmAmt Ccy=\"EUR\">300.00</IntrBkSttlmAmt>"),
        ("pacs008&part=header", 200, "<MmbId>fsp2</MmbId>"),
        ("pacs002", 200, "<TxSts>ACSC</TxSts>"),
        ("pdf", 400, "3101"),
        ("pacs008&part=all", 400, "3101"),
    ] {
        let (found, answer) = text(scene, &format!("transfers/{id}/report?format={format}")).await;
        assert_eq!(found, status, "{answer}");
        assert!(answer.contains(content), "{answer}");
    }
    let (status, _) = text(scene, &format!("transfers/{}/report?format=pacs002", format_uuid(99))).await;
    assert_eq!(status, 404);

    let statement = "participants/fsp2/statement?window=1&currency=EUR";
    let shown = get(scene, statement).await;
    assert_eq!(shown["closing"], "-179.5");
    let entries: Vec<_> = shown["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| [&one["kind"], &one["counterparty"], &one["change"], &one["position"]])
        .collect();
    assert_eq!(
        json!(entries),
        json!([["received", "fsp1", "-300", "-300"], ["sent", "fsp3", "120.5", "-179.5"]])
    );
    let (status, csv) = text(scene, &format!("{statement}&format=csv")).await;
    assert_eq!(status, 200, "{csv}");
    assert_eq!(csv.lines().count(), 5, "{csv}");
    assert!(csv.ends_with(",closing,,,EUR,,-179.50\r\n"), "{csv}");
    for (path, expected) in [
        ("participants/fsp2/statement?window=1", 400),
        ("participants/fsp2/statement?window=99&currency=EUR", 404),
        ("participants/fsp9/statement?window=1&currency=EUR", 404),
        ("participants/fsp2/statement?window=1&currency=EUR&format=xml", 400),
    ] {
        assert_eq!(text(scene, path).await.0, expected, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recipient_that_has_spent_its_headroom_goes_over_its_limit() {
    let scene = Scene::new(2).await;
    let model = json!({ "name": "NET", "autoPositionReset": true, "requireLiquidityCheck": true });
    approved(&scene, Method::POST, "settlementModels", model).await;
    scene.transfer(0, 1, "300").await;
    approved(&scene, Method::POST, "settlementWindows/1", json!({ "state": "CLOSED" })).await;
    // In the next window the recipient spends everything it has, including what it received.
    scene.transfer(1, 0, "1250").await;
    let body = json!({ "settlementModel": "NET", "settlementWindows": [{ "id": 1 }] });
    let settlement = approved(&scene, Method::POST, "settlements", body).await;
    step(&scene, &settlement, "PS_TRANSFERS_RECORDED").await;
    let after = step(&scene, &settlement, "PS_TRANSFERS_RESERVED").await;
    assert_eq!(after["participants"][1]["accounts"][0]["beyondHeadroom"], true);
    assert_eq!(scene.balances(2).await.position(), i128::try_from(amount("1250")).unwrap());
    let id = scene.id();
    scene.prepare(1, 0, &scene.body(id, 1, 0, "1", &SECRET)).await;
    assert_eq!(scene.fsps[1].about(id, 1).await[0].error_code(), "4001");
    step(&scene, &settlement, "PS_TRANSFERS_COMMITTED").await;
    assert_eq!(get(&scene, "balances").await["currencies"][0]["hubSettlement"], "0");
    let metrics = scene.client.get(format!("{}metrics", scene.switch.admin_url())).send().await.unwrap();
    let text = String::from_utf8(metrics.body.to_vec()).unwrap();
    assert!(text.contains("\nbatzen_switch_callbacks_total "));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gross_model_settles_each_transfer_at_once() {
    let scene = Scene::new(2).await;
    let model = json!({ "name": "RTGS", "settlementGranularity": "GROSS", "settlementDelay": "IMMEDIATE", "settlementInterchange": "BILATERAL", "currency": "EUR" });
    approved(&scene, Method::POST, "settlementModels", model).await;
    let id = scene.transfer(0, 1, "300").await;
    let (one, two) = (scene.balances(1).await, scene.balances(2).await);
    assert_eq!((one.position(), two.position()), (0, 0));
    assert_eq!((one.cover(), two.cover()), (7_000_000, 13_000_000));
    assert_eq!(get(&scene, &format!("transfers/{}", format_uuid(id))).await["state"], "SETTLED");
    // Headroom follows liquidity: the payer cannot spend liquidity that was withdrawn.
    let id = scene.id();
    scene.prepare(0, 1, &scene.body(id, 0, 1, "700.0001", &SECRET)).await;
    assert_eq!(scene.fsps[0].about(id, 1).await[0].error_code(), "4001");
    let _ = currency();
    scene.transfer(0, 1, "700").await;
    assert_eq!(scene.balances(1).await.cover(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guesses_of_tokens_are_limited() {
    let scene = Scene::new(2).await;
    let ask = async |token: &str| scene.admin(Method::GET, "participants", token, &json!({})).await;
    assert_eq!(ask("token-a").await.0, 200);
    for n in 0..10 {
        assert_eq!(ask(&format!("token-{n}")).await.0, 401);
    }
    let (status, answer) = ask("token-c").await;
    assert_eq!((status, answer["errorInformation"]["errorCode"].as_str()), (429, Some("3000")), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pages_of_figures_need_no_token() {
    let scene = Scene::new(2).await;
    scene.transfer(0, 1, "5").await;
    let page = |name: &str| scene.client.get(format!("{}{name}", scene.switch.admin_url())).send();
    let dashboard = page("dashboard").await.unwrap();
    let text = String::from_utf8(dashboard.body.to_vec()).unwrap();
    assert_eq!(dashboard.status, 200);
    assert!(text.starts_with("<!DOCTYPE html>"), "{text}");
    assert_eq!(page("dashboard/history").await.unwrap().status, 200);
    let lines = [
        "batzen_build_info{service=\"switch\"",
        "batzen_operations_total{operation=\"prepare\",outcome=\"done\"} 1",
        "batzen_switch_participants 2\n",
        "batzen_switch_pending_approvals 0\n",
        "batzen_switch_window_open_transfers 1\n",
        // The payer's debt equals the payee's claim.
        "batzen_switch_position{participant=\"fsp1\",currency=\"EUR\"} 5\n",
        "batzen_switch_position{participant=\"fsp2\",currency=\"EUR\"} -5\n",
        "batzen_switch_net_debit_cap{participant=\"fsp1\",currency=\"EUR\"} ",
        "batzen_switch_liquidity{participant=\"fsp1\",currency=\"EUR\"} 1000\n",
    ];
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let metrics = page("metrics").await.unwrap();
        let text = String::from_utf8(metrics.body.to_vec()).unwrap();
        assert_eq!(metrics.status, 200);
        // Positions are checked once a second.
        let Some(missing) = lines.iter().find(|line| !text.contains(**line)) else { break };
        assert!(Instant::now() < deadline, "{missing} is missing: {text}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // It is not served on the participants' side.
    let url = format!("{}dashboard", scene.switch.fsp_url());
    assert_eq!(scene.client.get(url).send().await.unwrap().status, 404);
}
