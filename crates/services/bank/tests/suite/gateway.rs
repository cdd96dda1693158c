//! The wire gateway over HTTP: every answer of its endpoints, long polling, and the state after a restart.
use crate::common;

use std::sync::Arc;
use std::time::Duration;

use batzen_bank::gateway_client::{self, GatewayCommand};
use batzen_bank::{AccountFlow, Bank, BankConfig, BankError, StoreConfig};
use batzen_ledger::MemoryLedger;
use batzen_service::wire_gateway::{GatewayAuth, HistoryQuery, WireGatewayClient};
use batzen_store::memory::MemoryBackend;
use batzen_store::{ChangeSet, CommitOutcome, Store};
use batzen_tables::bank::{BankStateKey, OldBankStateRow, OldBankStates};
use common::*;
use serde_json::json;

/// The requests of an independent client's tests, with every answer.
#[tokio::test]
async fn dialogue_of_a_gateway_client() {
    let f = Fixture::start(config()).await;
    let key_1 = "AN1Q1S8YY52DXN0743PW8QZBTQ84THV935VT0X78YP064H3ZK6T0";
    let wtid_1 = "58N2MAHA58N2MAHA58N2MAHA58N2MAHA58N2MAHA58N2MAHA58N0";
    let answer = f.get("2/history/incoming?delta=1").await;
    assert_eq!((answer.error(), &answer.body["detail"]), ((404, 5106), &json!("2")));
    let add = |amount: &str| json!({"reserve_pub": key_1, "amount": amount, "debit_account": payto("42")});
    let answer = f.post("2/admin/add-incoming", add("KUDOS:5.01")).await;
    assert_eq!((answer.status, &answer.body["row_id"]), (200, &json!(1)));
    let time = answer.body["timestamp"].clone();
    assert!(time["t_s"].is_u64());
    let answer = f.post("2/admin/add-incoming", add("KUDOS:2.01")).await;
    assert_eq!(answer.error(), (409, 5114));
    let answer = f.get("2/history/incoming?delta=5").await;
    let expected = json!({"incoming_transactions": [{
        "row_id": 1, "date": time, "amount": "KUDOS:5.01",
        "credit_account": "payto://x-taler-bank/localhost/2?receiver-name=2",
        "debit_account": "payto://x-taler-bank/localhost/42?receiver-name=42",
        "reserve_pub": key_1,
    }]});
    assert_eq!((answer.status, answer.body), (200, expected));
    let answer = f.get("2/history/outgoing?delta=5").await;
    assert_eq!((answer.status, answer.body), (204, json!(null)));
    let answer = f
        .post(
            "2/transfer",
            json!({"request_uid": uid(7).to_string(), "amount": "KUDOS:3.22", "wtid": wtid_1,
                   "exchange_base_url": "http://exchange.example.com/", "credit_account": payto("42")}),
        )
        .await;
    assert_eq!((answer.status, &answer.body["row_id"]), (200, &json!(2)));
    let expected = json!({"outgoing_transactions": [{
        "row_id": 2, "date": answer.body["timestamp"], "amount": "KUDOS:3.22",
        "credit_account": "payto://x-taler-bank/localhost/42?receiver-name=42",
        "debit_account": "payto://x-taler-bank/localhost/2?receiver-name=2",
        "exchange_base_url": "http://exchange.example.com/", "wtid": wtid_1,
    }]});
    let answer = f.get("2/history/outgoing?delta=5").await;
    assert_eq!((answer.status, answer.body), (200, expected));
    let flow = f.bank.account_flow("2").await.unwrap();
    assert_eq!(
        flow,
        AccountFlow {
            incoming_with_reserve_pub: money("5.01").into(),
            outgoing_transfers: money("3.22").into()
        }
    );
    f.end().await;
}

#[tokio::test]
async fn both_base_urls_and_the_configurations_are_served() {
    let f = Fixture::start(config()).await;
    for base in ["taler-wire-gateway/exchange", "exchange"] {
        let answer = f.get(&format!("{base}/config")).await;
        assert_eq!(
            answer.body,
            json!({"name": "taler-wire-gateway", "version": "0:0:0", "currency": "KUDOS"})
        );
    }
    f.gateway("exchange").add_incoming(&incoming(1, "1", "joe")).await.unwrap();
    let one = f.get("taler-wire-gateway/exchange/history/incoming?delta=1").await;
    assert_eq!(one, f.get("exchange/history/incoming?delta=1").await);
    assert_eq!(one.status, 200);
    for api in ["taler-bank-integration", "taler-bank-access"] {
        let answer = f.get(&format!("{api}/config")).await;
        assert_eq!(answer.body, json!({"name": api, "version": "0:0:0", "currency": "KUDOS"}));
    }
    let home = f.get("").await;
    assert!(home.status == 200 && home.body.as_str().unwrap().contains("KUDOS"));
    for path in ["nothing", "exchange", "taler-bank-access/nothing", "exchange/history", "a/b/c/d/e/f"] {
        assert_eq!(f.get(path).await.error(), (404, 21), "{path}");
    }
    assert_eq!(f.get("exchange/transfer").await.error(), (405, 20));
    f.end().await;
}

#[tokio::test]
async fn histories_page_in_both_directions() {
    let f = Fixture::start(config()).await;
    let (one, two) = (f.gateway("one"), f.gateway("two"));
    // Rows of the two accounts alternate, and so do directions: 1 in, 2 out, 3 in for one; the same for two.
    for round in 0..4_u8 {
        for (index, gateway) in [&one, &two].into_iter().enumerate() {
            let id = round * 2 + u8::try_from(index).unwrap();
            gateway.add_incoming(&incoming(id, "2", "payer")).await.unwrap();
            gateway.transfer(&transfer(id, "1", "payee")).await.unwrap();
        }
    }
    let query = |start, delta| HistoryQuery { start, delta, long_poll_ms: 0 };
    for (start, delta, expected) in [
        (None, 10, &[1, 5, 9, 13][..]),
        (None, 2, &[1, 5]),
        (Some(0), 2, &[1, 5]),
        (Some(1), 2, &[5, 9]),
        (Some(2), 2, &[5, 9]),
        (Some(13), 5, &[]),
        (Some(1_000_000), 5, &[]),
        (Some(u64::MAX), 5, &[]),
        (None, -10, &[13, 9, 5, 1]),
        (None, -1, &[13]),
        (Some(13), -2, &[9, 5]),
        (Some(1_000_000), -2, &[13, 9]),
        (Some(1), -2, &[]),
        (Some(0), -2, &[]),
        (None, i64::MAX, &[1, 5, 9, 13]),
        (None, i64::MIN, &[13, 9, 5, 1]),
    ] {
        let rows = one.history_incoming(query(start, delta)).await.unwrap();
        let ids: Vec<u64> = rows.iter().map(|row| row.row_id).collect();
        assert_eq!(ids, expected, "start {start:?}, delta {delta}");
        let rows = one.history_outgoing(query(start.map(|id| id.saturating_add(1)), delta)).await.unwrap();
        let ids: Vec<u64> = rows.iter().map(|row| row.row_id - 1).collect();
        assert_eq!(ids, expected, "outgoing, start {start:?}, delta {delta}");
    }
    assert_eq!(two.history_incoming(query(None, -1)).await.unwrap()[0].row_id, 15);
    // The partner's histories show neither side: they have no gateway traffic of their own.
    assert!(f.gateway("payer").history_incoming(query(None, 5)).await.unwrap().is_empty());
    assert!(f.gateway("payee").history_outgoing(query(None, 5)).await.unwrap().is_empty());
    for (bad, name) in [
        ("", "delta"),
        ("delta=0", "delta"),
        ("delta=x", "delta"),
        ("delta=1.5", "delta"),
        ("delta=99999999999999999999", "delta"),
        ("delta=1&start=-1", "start"),
        ("delta=1&start=a", "start"),
        ("delta=1&long_poll_ms=-5", "long_poll_ms"),
        ("delta=1&long_poll_ms=", "long_poll_ms"),
    ] {
        let answer = f.get(&format!("one/history/incoming?{bad}")).await;
        assert_eq!((answer.error(), &answer.body["detail"]), ((400, 26), &json!(name)), "{bad}");
    }
    f.end().await;
}

#[tokio::test]
async fn transfers_are_idempotent_by_their_uid() {
    let f = Fixture::start(config()).await;
    let exchange = f.gateway("exchange");
    let request = transfer(1, "5", "shop");
    let first = exchange.transfer(&request).await.unwrap();
    let other_row = exchange.transfer(&transfer(2, "1", "shop")).await.unwrap();
    assert_eq!((first.row_id, other_row.row_id), (1, 2));
    // Another spelling of the host, receiver name or exchange URL is the same transfer, since wire protocols write them
    // differently.
    let mut same = request.clone();
    same.credit_account = "payto://x-taler-bank/127.0.0.1/shop".to_owned();
    same.exchange_base_url = "http://elsewhere/".to_owned();
    for repetition in [&request, &same] {
        assert_eq!(exchange.transfer(repetition).await.unwrap(), first);
    }
    let change = |alter: fn(&mut batzen_service::wire_gateway::TransferRequest)| {
        let mut changed = request.clone();
        alter(&mut changed);
        changed
    };
    for changed in [
        change(|r| r.amount = kudos("6")),
        change(|r| r.wtid = wtid(9)),
        change(|r| r.credit_account = payto("other")),
    ] {
        let error = exchange.transfer(&changed).await.unwrap_err();
        assert_eq!(refusal(&error), (409, 5112));
        assert!(error.to_string().contains(&request.request_uid.to_string()), "{error}");
    }
    let error = f.gateway("other-exchange").transfer(&request).await.unwrap_err();
    assert_eq!(refusal(&error), (409, 5112));
    assert_eq!(f.bank.account_flow("exchange").await.unwrap().outgoing_transfers, money("6"));
    f.end().await;
}

#[tokio::test]
async fn accounts_at_other_banks_are_not_those_of_the_same_name() {
    let f = Fixture::start(BankConfig { other_hostnames: vec!["old.test".to_owned()], ..config() }).await;
    let exchange = f.gateway("exchange");
    exchange.transfer(&transfer(1, "5", "alice")).await.unwrap();
    let port = f.bank.addr.port();
    let (foreign, other_port) = ("other-host".to_owned(), format!("localhost:{}", port ^ 1));
    for host in [&foreign, &other_port] {
        let mut request = transfer(2, "1", "alice");
        request.credit_account = format!("payto://x-taler-bank/{host}/alice");
        let error = exchange.transfer(&request).await.unwrap_err();
        assert_eq!(refusal(&error), (404, 5106), "{host}");
        assert!(error.to_string().contains("payto://x-taler-bank/localhost/NAME"), "{error}");
        let mut request = incoming(2, "1", "alice");
        request.debit_account = format!("payto://x-taler-bank/{host}/alice");
        assert_eq!(refusal(&exchange.add_incoming(&request).await.unwrap_err()), (404, 5106), "{host}");
        let wopid = f.withdrawal("alice", "1").await;
        let selection = json!({
            "reserve_pub": key(1).to_string(),
            "selected_exchange": format!("payto://x-taler-bank/{host}/exchange"),
        });
        let url = format!("taler-bank-integration/withdrawal-operation/{wopid}");
        assert_eq!(f.post(&url, selection).await.error(), (404, 5106), "{host}");
    }
    for (n, host) in (3..).zip(["old.test".to_owned(), format!("[::1]:{port}"), format!("LOCALHOST:{port}")])
    {
        let mut request = transfer(n, "1", "alice");
        request.credit_account = format!("payto://x-taler-bank/{host}/alice");
        exchange.transfer(&request).await.unwrap();
    }
    assert_eq!(f.bank.account_flow("exchange").await.unwrap().outgoing_transfers, money("8"));
    f.end().await;
}

#[tokio::test]
async fn transfers_create_no_account_that_nobody_could_use() {
    let f = Fixture::start(config()).await;
    let error = f.gateway("exchange").transfer(&transfer(1, "5", "a:b")).await.unwrap_err();
    assert_eq!(refusal(&error), (404, 5106));
    assert_eq!(f.get("taler-bank-access/accounts/a:b").await.error(), (404, 5106));
    f.end().await;
}

#[tokio::test]
async fn an_exchange_takes_only_money_that_its_history_shows() {
    let dir = tempfile::tempdir().unwrap();
    let durable = || BankConfig { store: StoreConfig::embedded(dir.path().join("bank")), ..config() };
    let f = Fixture::start(durable()).await;
    f.gateway("exchange").add_incoming(&incoming(1, "5", "alice")).await.unwrap();
    // Until somebody reads what it received, it is an account like all others, and so is one that received nothing.
    f.gateway("other").transfer(&transfer(1, "1", "exchange")).await.unwrap();
    assert!(f.gateway("alice").history_incoming(last(5)).await.unwrap().is_empty());
    assert_eq!(f.gateway("exchange").history_incoming(last(5)).await.unwrap().len(), 1);
    f.end().await;
    let f = Fixture::start(durable()).await;
    let refused = f.gateway("other").transfer(&transfer(2, "1", "exchange")).await.unwrap_err();
    assert_eq!(refusal(&refused), (409, 5126));
    assert!(refused.to_string().contains("reserve key"), "{refused}");
    // A repetition gets its answer, and every other account its money.
    f.gateway("other").transfer(&transfer(1, "1", "exchange")).await.unwrap();
    f.gateway("exchange").transfer(&transfer(3, "2", "alice")).await.unwrap();
    f.gateway("exchange").add_incoming(&incoming(2, "3", "alice")).await.unwrap();
    assert_eq!(f.gateway("exchange").history_incoming(last(5)).await.unwrap().len(), 2);
    f.end().await;
    // An operator may name them instead.
    let exchange_accounts = Some(["alice".to_owned()].into());
    let f = Fixture::start(BankConfig { exchange_accounts, ..durable() }).await;
    f.gateway("other").transfer(&transfer(4, "1", "exchange")).await.unwrap();
    let refused = f.gateway("other").transfer(&transfer(5, "1", "alice")).await.unwrap_err();
    assert_eq!(refusal(&refused), (409, 5126));
    f.end().await;
}

#[tokio::test]
async fn malformed_requests_get_a_clear_error() {
    let f = Fixture::start(config()).await;
    let good = serde_json::to_value(transfer(1, "5", "shop")).unwrap();
    for (member, line, bad) in [
        ("request_uid", 0, json!("XX")),
        ("request_uid", 0, json!(null)),
        ("amount", 1, json!("KUDOS:-5")),
        ("amount", 1, json!("KUDOS:1.123456789")),
        ("amount", 1, json!("KUDOS:99999999999999999999")),
        ("amount", 1, json!("EUR:5")),
        ("amount", 1, json!(5)),
        ("exchange_base_url", 2, json!(7)),
        ("wtid", 3, json!("AAAA")),
        ("credit_account", 4, json!(["x"])),
    ] {
        for bad in [Some(bad), None] {
            let mut body = good.clone();
            match bad {
                Some(bad) => body[member] = bad,
                None => drop(body.as_object_mut().unwrap().remove(member)),
            }
            let answer = f.post("exchange/transfer", body).await;
            assert_eq!(answer.error(), (400, 22), "{member}: {answer:?}");
            assert_eq!(
                (&answer.body["field"], &answer.body["line"]),
                (&json!(member), &json!(line)),
                "{answer:?}"
            );
            assert!(answer.body.get("detail").is_none());
        }
    }
    for uri in
        ["payto://iban/DE75512108001245126199?receiver-name=X", "shop", "payto://x-taler-bank/localhost/"]
    {
        let mut body = good.clone();
        body["credit_account"] = json!(uri);
        let answer = f.post("exchange/transfer", body).await;
        assert_eq!((answer.error(), &answer.body["detail"]), ((400, 24), &json!(uri)));
        let body = json!({"amount": "KUDOS:1", "reserve_pub": key(1).to_string(), "debit_account": uri});
        assert_eq!(f.post("exchange/admin/add-incoming", body).await.error(), (400, 24));
    }
    let answer = f
        .post(
            "exchange/admin/add-incoming",
            json!({"amount": "EUR:1", "reserve_pub": key(1).to_string(),
        "debit_account": payto("x")}),
        )
        .await;
    assert_eq!((answer.error(), &answer.body["field"]), ((400, 22), &json!("amount")));
    let post = |body: Vec<u8>| {
        f.client.post(format!("{}exchange/transfer", f.base)).body("application/json", body).send()
    };
    for body in ["", "{", "[]", "7", "{\"a\":1} x"] {
        let reply = post(body.as_bytes().to_vec()).await.unwrap();
        assert_eq!(Answer::of(reply).error(), (400, 22), "{body}");
    }
    // Too large compressed, and too large decompressed.
    let random: Vec<u8> = (0..200)
        .flat_map(|_| {
            uid(0)
                .as_bytes()
                .iter()
                .map(|_| {
                    let mut byte = [0];
                    batzen_crypto::fill_random(&mut byte);
                    byte[0]
                })
                .collect::<Vec<u8>>()
        })
        .collect();
    for body in [random, vec![b' '; 100_000]] {
        let reply = post(body).await.unwrap();
        assert_eq!(Answer::of(reply).error(), (413, 32));
    }
    // None of these requests left a trace.
    assert!(f.bank.totals().await.unwrap().accounts.is_empty());
    // An account with an invalid name does not exist and is not created.
    assert_eq!(f.post("a%2Fb/transfer", good).await.error(), (404, 5106));
    f.end().await;
}

#[tokio::test]
async fn reserve_keys_are_unique_unless_the_bank_allows_it() {
    let f = Fixture::start(config()).await;
    f.gateway("one").add_incoming(&incoming(1, "1", "joe")).await.unwrap();
    for account in ["one", "two"] {
        let error = f.gateway(account).add_incoming(&incoming(1, "1", "ann")).await.unwrap_err();
        assert_eq!(refusal(&error), (409, 5114));
    }
    f.end().await;
    let f = Fixture::start(BankConfig { allow_repeated_reserve_pub: true, ..config() }).await;
    for _ in 0..3 {
        f.gateway("one").add_incoming(&incoming(1, "1", "joe")).await.unwrap();
    }
    assert_eq!(f.gateway("one").history_incoming(last(10)).await.unwrap().len(), 3);
    f.end().await;
}

/// A poll that is registered before the row appears gets it, whatever the timing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_polls_miss_nothing() {
    let f = Fixture::start(config()).await;
    let gateway = f.gateway("exchange");
    gateway.add_incoming(&incoming(0, "1", "joe")).await.unwrap();
    gateway.transfer(&transfer(0, "1", "joe")).await.unwrap();
    let mut start = [1, 2];
    for round in 1..=60_u8 {
        let poll = |start| HistoryQuery { start: Some(start), delta: 5, long_poll_ms: 60_000 };
        let (mut polls, direction) = (Vec::new(), round % 2);
        for _ in 0..3 {
            let gateway = gateway.clone();
            let query = poll(start[usize::from(direction)]);
            polls.push(tokio::spawn(async move {
                if direction == 0 {
                    gateway
                        .history_incoming(query)
                        .await
                        .unwrap()
                        .iter()
                        .map(|row| row.row_id)
                        .collect::<Vec<_>>()
                } else {
                    gateway.history_outgoing(query).await.unwrap().iter().map(|row| row.row_id).collect()
                }
            }));
        }
        if round % 3 == 0 {
            tokio::time::sleep(Duration::from_millis(u64::from(round % 5))).await;
        }
        let done = if direction == 0 {
            gateway.add_incoming(&incoming(round, "1", "joe")).await.unwrap()
        } else {
            gateway.transfer(&transfer(round, "1", "joe")).await.unwrap()
        };
        for poll in polls {
            assert_eq!(poll.await.unwrap(), [done.row_id], "round {round}");
        }
        start[usize::from(direction)] = done.row_id;
    }
    // Without new rows the poll ends by itself, with an empty answer.
    let query = HistoryQuery { start: Some(1_000_000), delta: 5, long_poll_ms: 20 };
    assert!(gateway.history_incoming(query).await.unwrap().is_empty());
    // A poll for old rows, or backwards, does not wait.
    let query = HistoryQuery { start: None, delta: -1, long_poll_ms: 600_000 };
    assert_eq!(gateway.history_incoming(query).await.unwrap().len(), 1);
    // The end of the service ends the poll.
    let query = HistoryQuery { start: Some(1_000_000), delta: 5, long_poll_ms: 600_000 };
    let poll = tokio::spawn(async move { gateway.history_incoming(query).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    f.end().await;
    let _ = poll.await.unwrap();
}

#[tokio::test]
async fn books_continue_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let durable = || BankConfig { store: StoreConfig::embedded(dir.path().join("bank")), ..config() };
    let f = Fixture::start(durable()).await;
    f.post("taler-bank-access/testing/register", json!({"username": "joe", "password": "x"})).await;
    f.gateway("exchange").add_incoming(&incoming(1, "10", "joe")).await.unwrap();
    let first = f.gateway("exchange").transfer(&transfer(1, "3", "shop")).await.unwrap();
    let wopid = f.withdrawal("joe", "5").await;
    let totals = f.bank.totals().await.unwrap();
    f.end().await;

    let f = Fixture::start(durable()).await;
    assert_eq!(f.bank.totals().await.unwrap(), totals);
    assert_eq!(f.gateway("exchange").transfer(&transfer(1, "3", "shop")).await.unwrap(), first);
    assert_eq!(
        f.bank.totals().await.unwrap(),
        totals,
        "a transfer repeated after a restart is not paid again"
    );
    let error = f.gateway("exchange").add_incoming(&incoming(1, "10", "joe")).await.unwrap_err();
    assert_eq!(refusal(&error), (409, 5114));
    assert_eq!(f.get(&format!("taler-bank-integration/withdrawal-operation/{wopid}")).await.status, 200);
    for (password, status) in [("x", 204), ("y", 409)] {
        let body = json!({"username": "joe", "password": password});
        assert_eq!(f.post("taler-bank-access/testing/register", body).await.status, status);
    }
    assert_eq!(f.gateway("exchange").add_incoming(&incoming(2, "1", "joe")).await.unwrap().row_id, 3);
    f.end().await;

    let other = BankConfig { currency: "EUR".parse().unwrap(), ..durable() };
    let error = Bank::start(other).await.err().unwrap();
    assert!(matches!(error, BankError::Other(_)) && error.to_string().contains("KUDOS"), "{error}");
    let other = BankConfig { debt_limit: Some(money("3")), ..durable() };
    let error = Bank::start(other).await.err().unwrap();
    assert!(error.to_string().contains("debt limit of none, and cannot have KUDOS:3"), "{error}");
}

#[tokio::test]
async fn a_strict_bank_refuses_what_a_test_bank_permits() {
    let strict = BankConfig {
        debt_limit: Some(money("2")),
        create_accounts: false,
        allow_add_incoming: false,
        check_passwords: true,
        ..config()
    };
    let f = Fixture::start(strict).await;
    for name in ["exchange", "shop", "joe"] {
        let body = json!({"username": name, "password": format!("{name}-pw")});
        assert_eq!(f.post("taler-bank-access/testing/register", body).await.status, 204);
    }
    let body = |id: u8, amount: &str, to: &str| serde_json::to_value(transfer(id, amount, to)).unwrap();
    // Missing credentials, wrong credentials, another account's credentials.
    assert_eq!(f.post("exchange/transfer", body(1, "1", "shop")).await.error(), (401, 5105));
    let post = |user, password, request| f.post_as(user, password, "exchange/transfer", request);
    assert_eq!(post("exchange", "wrong", body(1, "1", "shop")).await.error(), (403, 5105));
    assert_eq!(post("nobody", "wrong", body(1, "1", "shop")).await.error(), (403, 5105));
    assert_eq!(post("joe", "joe-pw", body(1, "1", "shop")).await.error(), (403, 5109));
    for path in ["exchange/history/outgoing?delta=1", "taler-bank-access/accounts/exchange"] {
        assert_eq!(f.get(path).await.error(), (401, 5105), "{path}");
        assert_ne!(f.get_as("exchange", "exchange-pw", path).await.status, 401, "{path}");
    }
    // Balance 100, limit 2.
    assert_eq!(post("exchange", "exchange-pw", body(1, "102.00000001", "shop")).await.error(), (409, 5102));
    assert_eq!(post("exchange", "exchange-pw", body(1, "102", "shop")).await.status, 200);
    assert_eq!(post("exchange", "exchange-pw", body(2, "1", "shop")).await.error(), (409, 5102));
    assert_eq!(post("exchange", "exchange-pw", body(3, "0.5", "nobody")).await.error(), (404, 5106));
    assert_eq!(post("exchange", "exchange-pw", body(3, "0", "exchange")).await.error(), (400, 5101));
    // The transfer that was refused for lack of money succeeds later, with the same uid.
    let back = f.post_as("shop", "shop-pw", "shop/transfer", body(4, "50", "exchange")).await;
    assert_eq!(back.status, 200);
    let add = serde_json::to_value(incoming(1, "50", "joe")).unwrap();
    let add = f.post_as("exchange", "exchange-pw", "exchange/admin/add-incoming", add).await;
    assert_eq!(add.error(), (403, 5109));
    assert_eq!(post("exchange", "exchange-pw", body(2, "1", "shop")).await.status, 200);
    let auth = GatewayAuth::Basic { username: "exchange".into(), password: "exchange-pw".into() };
    assert!(!format!("{auth:?}").contains("exchange-pw"));
    let gateway = WireGatewayClient::new(f.client.clone(), &format!("{}exchange/", f.base), auth);
    assert_eq!(gateway.history_outgoing(last(-5)).await.unwrap().len(), 2);
    f.end().await;

    let f = Fixture::start(BankConfig { allow_add_incoming: false, ..config() }).await;
    let error = f.gateway("exchange").add_incoming(&incoming(1, "1", "joe")).await.unwrap_err();
    assert_eq!(refusal(&error), (403, 5109));
    f.end().await;
}

/// The bank would lose all balances.
#[tokio::test]
async fn a_store_of_an_earlier_build_is_not_treated_as_empty() {
    let store = Store::new(MemoryBackend::new());
    let row = OldBankStateRow { currency: "KUDOS".to_owned(), next_row_id: 7, password_salt: [1; 16] };
    let mut changes = ChangeSet::new();
    changes.insert::<OldBankStates>(&BankStateKey::ONLY, &row);
    assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
    let ledger = Arc::new(MemoryLedger::with_system_clock());
    let error = Bank::start_on(config(), store, ledger).await.err().unwrap();
    assert!(error.to_string().contains("earlier build"), "{error}");
}

/// Debts are unlimited, but a balance has to be an amount.
#[tokio::test]
async fn balances_stay_in_the_range_of_amounts() {
    let f = Fixture::start(config()).await;
    let exchange = f.gateway("exchange");
    exchange.transfer(&transfer(1, "4503599627370496", "shop")).await.unwrap();
    let error = exchange.transfer(&transfer(2, "1", "shop")).await.unwrap_err();
    assert_eq!(refusal(&error), (400, 5104));
    let answer = f.get("taler-bank-access/accounts/exchange").await;
    assert_eq!(
        answer.body["balance"],
        json!({"credit_debit_indicator": "debit", "amount": "KUDOS:4503599627370496"})
    );
    f.end().await;
}

#[tokio::test]
async fn the_command_line_client_shows_and_moves_money() {
    let f = Fixture::start(config()).await;
    let gateway = f.gateway("exchange");
    let print = async |command: GatewayCommand, is_json: bool| {
        let mut out = Vec::new();
        let done = gateway_client::run(&gateway, command, is_json, &mut out).await;
        done.map(|()| String::from_utf8(out).unwrap())
    };
    let run = async |command: GatewayCommand| print(command, false).await;
    let json = async |command: GatewayCommand| -> serde_json::Value {
        serde_json::from_str(&print(command, true).await.unwrap()).unwrap()
    };
    let add = |id: Option<u8>| GatewayCommand::AddIncoming {
        debit_account: payto("joe"),
        amount: kudos("2"),
        reserve_pub: id.map(key),
    };
    assert!(run(GatewayCommand::CreditHistory { start: None }).await.is_err(), "no account yet");
    assert_eq!(run(add(Some(1))).await.unwrap(), "1\n");
    assert_eq!(run(add(None)).await.unwrap(), "2\n");
    assert!(run(add(Some(1))).await.is_err());
    let transfer = |wtid, n: u8| GatewayCommand::Transfer {
        credit_account: payto("shop"),
        amount: kudos("1"),
        wtid,
        request_uid: uid(n),
    };
    assert_eq!(run(transfer(Some(wtid(1)), 1)).await.unwrap(), format!("3 {}\n", wtid(1)));
    // The same uid sends nothing more, with the identifier that follows from it, too.
    assert_eq!(run(transfer(Some(wtid(1)), 1)).await.unwrap(), format!("3 {}\n", wtid(1)));
    let first = json(transfer(None, 2)).await;
    assert_eq!((&first["row_id"], &first["request_uid"]), (&json!(4), &json!(uid(2))));
    assert_eq!(json(transfer(None, 2)).await, first);
    assert!(run(transfer(Some(wtid(1)), 2)).await.is_err(), "another transfer");
    let debits = json(GatewayCommand::DebitHistory { start: None }).await;
    let rows: Vec<_> = debits.as_array().unwrap().iter().map(|row| row["row_id"].as_u64()).collect();
    assert_eq!(rows, [Some(4), Some(3)]);
    let credits = run(GatewayCommand::CreditHistory { start: Some(2) }).await.unwrap();
    assert!(
        credits.starts_with("1 ") && credits.contains(&key(1).to_string()) && credits.lines().count() == 1
    );
    let debits = run(GatewayCommand::DebitHistory { start: None }).await.unwrap();
    assert!(debits.contains("KUDOS:1") && debits.contains(&payto("shop")));
    f.end().await;
}
