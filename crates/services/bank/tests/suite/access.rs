//! Bank integration and access APIs over HTTP: accounts, and all stages of a withdrawal operation.
use crate::common;

use std::time::Duration;

use batzen_bank::BankConfig;
use common::*;
use serde_json::{Value, json};

const ACCESS: &str = "taler-bank-access";
const OPERATION: &str = "taler-bank-integration/withdrawal-operation";

async fn register(f: &Fixture, name: &str, password: &str) -> Answer {
    f.post(&format!("{ACCESS}/testing/register"), json!({"username": name, "password": password})).await
}

async fn balance(f: &Fixture, name: &str) -> (String, String) {
    let answer = f.get(&format!("{ACCESS}/accounts/{name}")).await;
    let member = |name: &str| answer.body["balance"][name].as_str().unwrap().to_owned();
    assert_eq!(answer.body["paytoUri"], json!(payto(name)));
    (member("credit_debit_indicator"), member("amount"))
}

fn selection(id: u8, exchange: &str) -> Value {
    json!({"reserve_pub": key(id).to_string(), "selected_exchange": payto(exchange)})
}

#[tokio::test]
async fn accounts_are_registered_once_with_a_bonus() {
    let f = Fixture::start(config()).await;
    assert_eq!(f.get(&format!("{ACCESS}/accounts/joe")).await.error(), (404, 5106));
    assert_eq!(f.get(&format!("{ACCESS}/public-accounts")).await.body, json!({"publicAccounts": []}));
    for _ in 0..2 {
        assert_eq!(register(&f, "joe", "secret").await, Answer { status: 204, body: Value::Null });
        assert_eq!(balance(&f, "joe").await, ("credit".into(), "KUDOS:100".into()));
    }
    let conflict = register(&f, "joe", "other").await;
    assert_eq!((conflict.error(), &conflict.body["detail"]), ((409, 5118), &json!("password")));
    // 115 of 100.
    f.gateway("exchange").add_incoming(&incoming(1, "115", "joe")).await.unwrap();
    assert_eq!(balance(&f, "joe").await, ("debit".into(), "KUDOS:15".into()));
    // The account that the transfer created belongs to the first who registers it, including the bonus.
    assert_eq!(balance(&f, "exchange").await, ("credit".into(), "KUDOS:115".into()));
    assert_eq!(register(&f, "exchange", "x").await.status, 204);
    assert_eq!(balance(&f, "exchange").await, ("credit".into(), "KUDOS:215".into()));
    // A registered account has a history, possibly empty. The bonus is not a transaction.
    assert_eq!(register(&f, "new", "x").await.status, 204);
    assert_eq!(f.get("new/history/incoming?delta=5").await.status, 204);
    for (body, field, line) in [
        (json!({"password": "x"}), "username", 0),
        (json!({"username": "a b", "password": "x"}), "username", 0),
        (json!({"username": "#signup-bonus", "password": "x"}), "username", 0),
        (json!({"username": "..", "password": "x"}), "username", 0),
        (json!({"username": "a:b", "password": "x"}), "username", 0),
        (json!({"username": "ann", "password": ""}), "password", 1),
        (json!({"username": "ann", "password": 7}), "password", 1),
    ] {
        let answer = f.post(&format!("{ACCESS}/testing/register"), body).await;
        assert_eq!((answer.error(), &answer.body["field"]), ((400, 22), &json!(field)));
        assert_eq!(answer.body["line"], json!(line));
    }
    f.end().await;
}

#[tokio::test]
async fn a_withdrawal_runs_from_offer_to_transfer() {
    let f = Fixture::start(config()).await;
    register(&f, "joe", "x").await;
    register(&f, "exchange", "x").await;
    let created = f.post(&format!("{ACCESS}/accounts/joe/withdrawals"), json!({"amount": "KUDOS:8.5"})).await;
    let wopid = created.body["withdrawal_id"].as_str().unwrap().to_owned();
    let port = f.bank.addr.port();
    let uri = format!("taler+http://withdraw/localhost:{port}/taler-bank-integration/{wopid}");
    assert_eq!((created.status, &created.body["taler_withdraw_uri"]), (200, &json!(uri)));
    let status = |aborted, selection_done, transfer_done| {
        json!({"aborted": aborted, "selection_done": selection_done, "transfer_done": transfer_done,
               "amount": "KUDOS:8.5", "wire_types": ["x-taler-bank"], "suggested_exchange": "http://exchange.test/"})
    };
    let operation = format!("{OPERATION}/{wopid}");
    let mine = format!("{ACCESS}/accounts/joe/withdrawals/{wopid}");
    assert_eq!(f.get(&operation).await.body, status(false, false, false));
    assert_eq!(
        f.get(&mine).await.body,
        json!({"aborted": false, "selection_done": false, "transfer_done": false, "amount": "KUDOS:8.5"})
    );
    // Confirming fails before the wallet has selected.
    assert_eq!(f.post(&format!("{mine}/confirm"), json!({})).await.error(), (400, 5119));
    let wrong_method = json!({"reserve_pub": key(1).to_string(), "selected_exchange": "payto://iban/X"});
    assert_eq!(f.post(&operation, wrong_method).await.error(), (400, 24));
    let answer = f.post(&operation, json!({"selected_exchange": payto("exchange")})).await;
    assert_eq!((answer.error(), &answer.body["field"]), ((400, 22), &json!("reserve_pub")));
    assert_eq!(f.post(&operation, selection(1, "nobody")).await.error(), (404, 5106));
    for _ in 0..2 {
        let answer = f.post(&operation, selection(1, "exchange")).await;
        assert_eq!(answer, Answer { status: 200, body: json!({"transfer_done": false}) });
    }
    assert_eq!(f.post(&operation, selection(2, "exchange")).await.error(), (409, 5113));
    assert_eq!(f.post(&operation, selection(1, "joe")).await.error(), (409, 5113));
    assert_eq!(f.get(&operation).await.body, status(false, true, false));
    for _ in 0..3 {
        // A second confirmation moves nothing.
        let answer = f.post(&format!("{mine}/confirm"), json!({})).await;
        assert_eq!(answer, Answer { status: 200, body: json!({}) });
        assert_eq!(balance(&f, "joe").await, ("credit".into(), "KUDOS:91.5".into()));
    }
    assert_eq!(f.get(&operation).await.body, status(false, true, true));
    // Wallets repeat the selection after every restart.
    let answer = f.post(&operation, selection(1, "exchange")).await;
    assert_eq!(answer, Answer { status: 200, body: json!({"transfer_done": true}) });
    assert_eq!(f.post(&operation, selection(2, "exchange")).await.error(), (409, 5113));
    assert_eq!(f.post(&format!("{mine}/abort"), json!({})).await.error(), (409, 5116));
    assert_eq!(
        f.get(&mine).await.body,
        json!({"aborted": false, "selection_done": true, "transfer_done": true, "amount": "KUDOS:8.5",
               "selected_exchange_account": payto("exchange"), "selected_reserve_pub": key(1).to_string()})
    );
    let rows = f.gateway("exchange").history_incoming(last(5)).await.unwrap();
    assert_eq!((rows.len(), rows[0].reserve_pub, rows[0].amount), (1, key(1), kudos("8.5")));
    // The key cannot be used by any other request.
    let error = f.gateway("exchange").add_incoming(&incoming(1, "1", "joe")).await.unwrap_err();
    assert_eq!(refusal(&error), (409, 5114));
    let other = f.withdrawal("joe", "1").await;
    assert_eq!(f.post(&format!("{OPERATION}/{other}"), selection(1, "exchange")).await.error(), (409, 5114));
    f.end().await;
}

#[tokio::test]
async fn failed_withdrawals_move_no_money() {
    let f = Fixture::start(config()).await;
    for name in ["joe", "ann", "exchange"] {
        register(&f, name, "x").await;
    }
    let create = format!("{ACCESS}/accounts/joe/withdrawals");
    for body in [json!({}), json!({"amount": "EUR:1"}), json!({"amount": "KUDOS"})] {
        let answer = f.post(&create, body).await;
        assert_eq!((answer.error(), &answer.body["field"]), ((400, 22), &json!("amount")));
    }
    let nobody = format!("{ACCESS}/accounts/nobody/withdrawals");
    assert_eq!(f.post(&nobody, json!({"amount": "KUDOS:1"})).await.error(), (404, 5106));
    let wopid = f.withdrawal("joe", "1").await;
    let unknown = key(77).to_string();
    for id in [unknown.as_str(), "nonsense"] {
        let answer = f.get(&format!("{OPERATION}/{id}")).await;
        assert_eq!((answer.error(), &answer.body["detail"]), ((404, 5107), &json!(id)));
        assert_eq!(f.post(&format!("{OPERATION}/{id}"), selection(1, "exchange")).await.error(), (404, 5107));
        assert_eq!(f.get(&format!("{create}/{id}")).await.error(), (404, 5107));
        for verb in ["confirm", "abort"] {
            assert_eq!(f.post(&format!("{create}/{id}/{verb}"), json!({})).await.error(), (404, 5107));
        }
    }
    // Another customer's operation looks like a missing one.
    for (account, code) in [("ann", 5107), ("nobody", 5106)] {
        let base = format!("{ACCESS}/accounts/{account}/withdrawals/{wopid}");
        assert_eq!(f.get(&base).await.error(), (404, code));
        for verb in ["confirm", "abort"] {
            assert_eq!(f.post(&format!("{base}/{verb}"), json!({})).await.error(), (404, code));
        }
    }
    assert_eq!(f.get(&format!("{OPERATION}/{wopid}?long_poll_ms=x")).await.error(), (400, 26));
    // Aborting is idempotent and final.
    for _ in 0..2 {
        assert_eq!(f.post(&format!("{create}/{wopid}/abort"), json!({})).await.status, 200);
    }
    assert_eq!(f.post(&format!("{create}/{wopid}/confirm"), json!({})).await.error(), (400, 5119));
    assert_eq!(f.post(&format!("{OPERATION}/{wopid}"), selection(1, "exchange")).await.status, 200);
    assert_eq!(f.post(&format!("{create}/{wopid}/confirm"), json!({})).await.error(), (409, 5117));
    // The key was free at the wallet's selection, but not at the confirmation.
    let late = f.withdrawal("joe", "1").await;
    assert_eq!(f.post(&format!("{OPERATION}/{late}"), selection(2, "exchange")).await.status, 200);
    f.gateway("exchange").add_incoming(&incoming(2, "1", "ann")).await.unwrap();
    assert_eq!(f.post(&format!("{create}/{late}/confirm"), json!({})).await.error(), (409, 5114));
    assert_eq!(f.get(&format!("{OPERATION}/{late}")).await.body["transfer_done"], json!(false));
    assert_eq!(balance(&f, "joe").await, ("credit".into(), "KUDOS:100".into()));
    f.end().await;

    let f = Fixture::start(BankConfig { debt_limit: Some(money("0")), ..config() }).await;
    register(&f, "joe", "x").await;
    register(&f, "exchange", "x").await;
    let wopid = f.withdrawal("joe", "100.01").await;
    assert_eq!(f.post(&format!("{OPERATION}/{wopid}"), selection(1, "exchange")).await.status, 200);
    assert_eq!(f.post(&format!("{create}/{wopid}/confirm"), json!({})).await.error(), (409, 5102));
    f.end().await;
}

/// A poll is woken by the confirmation and by an abort, but not by the wallet's own selection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wallets_wait_for_the_customer() {
    let f = Fixture::start(config()).await;
    register(&f, "joe", "x").await;
    register(&f, "exchange", "x").await;
    for round in 0..20_u8 {
        let wopid = f.withdrawal("joe", "1").await;
        let operation = format!("{}{OPERATION}/{wopid}", f.base);
        let client = f.client.clone();
        let wait = move || {
            let (client, url) = (client.clone(), operation.clone());
            async move {
                let call = client.get(url).query("long_poll_ms", 60_000).timeout(Duration::from_secs(70));
                call.send().await.unwrap().json::<Value>().unwrap()
            }
        };
        let polls: Vec<_> = (0..2)
            .map(|_| {
                let wait = wait.clone();
                tokio::spawn(async move { wait().await })
            })
            .collect();
        assert_eq!(f.post(&format!("{OPERATION}/{wopid}"), selection(round, "exchange")).await.status, 200);
        let verb = if round % 2 == 0 { "confirm" } else { "abort" };
        let done = f.post(&format!("{ACCESS}/accounts/joe/withdrawals/{wopid}/{verb}"), json!({})).await;
        assert_eq!(done.status, 200);
        for poll in polls {
            let status = poll.await.unwrap();
            assert_eq!(
                (&status["transfer_done"], &status["aborted"]),
                (&json!(round % 2 == 0), &json!(round % 2 == 1))
            );
        }
        // A poll for a finished operation is answered at once.
        assert_eq!(wait().await["transfer_done"], json!(round % 2 == 0));
    }
    // Without an event, the poll ends by itself.
    let wopid = f.withdrawal("joe", "1").await;
    let answer = f.get(&format!("{OPERATION}/{wopid}?long_poll_ms=20")).await;
    assert_eq!((answer.status, &answer.body["transfer_done"]), (200, &json!(false)));
    f.end().await;
}
