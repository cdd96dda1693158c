//! `GET /reserves/$RESERVE_PUB`, `/status` and `/history`.

use std::time::Duration as StdDuration;

use batzen_crypto::EddsaPrivateKey;
use batzen_engine::Length;
use batzen_protocol::api::exchange::{ReserveBalance, ReserveHistoryItem, ReserveRequest, ReserveStatus};
use batzen_protocol::signatures::{SignedMessage, WalletReserveHistory, WalletReserveStatus};
use batzen_protocol::{Duration, Timestamp};

use crate::api::proof;
use crate::api::wallet::*;
use crate::api::world::*;

fn status(key: &EddsaPrivateKey, request_timestamp: Timestamp) -> ReserveRequest {
    ReserveRequest { request_timestamp, reserve_sig: WalletReserveStatus { request_timestamp }.sign(key) }
}

fn history(key: &EddsaPrivateKey, request_timestamp: Timestamp, fee: &str) -> ReserveRequest {
    let message = WalletReserveHistory { request_timestamp, history_fee: amount(fee) };
    ReserveRequest { request_timestamp, reserve_sig: message.sign(key) }
}

#[tokio::test]
async fn reserve_balance_is_reported() {
    let site = Site::start().await;
    let reserve = site.reserve("12.34").await;
    let path = format!("reserves/{}", reserve.public_key());
    let reply = site.get(&path).await;
    assert_eq!(
        reply.json::<serde_json::Value>().unwrap(),
        serde_json::json!({ "balance": "TESTKUDOS:12.34" })
    );
    // The reserve is known: the answer comes at once, whatever the timeout.
    assert_eq!(site.get(&format!("{path}?timeout_ms=60000")).await.status, 200);
    site.credit(reserve.public_key(), "1").await;
    assert_eq!(site.balance(&reserve.public_key()).await, m("13.34"));

    let unknown = format!("reserves/{}", EddsaPrivateKey::generate().public_key());
    is_error(&site.get(&unknown).await, 404, 1250);
    is_error(&site.get(&format!("{unknown}?timeout_ms=0")).await, 404, 1250);
    is_error(&site.get(&format!("{unknown}?timeout_ms=50")).await, 404, 1250);
    for wrong in ["-1", "x", "", "1.5", "99999999999999999999999"] {
        is_error(&site.get(&format!("{unknown}?timeout_ms={wrong}")).await, 400, 26);
    }
    is_error(&site.get("reserves/ABC").await, 400, 27);
    is_error(&site.get(&format!("{path}U")).await, 400, 27);
    assert!(site.app().core.notices.waiter_count() == 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_credit_ends_a_long_poll() {
    let site = Site::start().await;
    let key = EddsaPrivateKey::generate().public_key();
    let waiting: Vec<_> = (0..8)
        .map(|_| {
            let (client, url) = (site.client.clone(), site.url(&format!("reserves/{key}")));
            tokio::spawn(async move {
                let call = client.get(url).query("timeout_ms", 100_000).timeout(StdDuration::from_secs(110));
                call.send().await.unwrap()
            })
        })
        .collect();
    while site.app().core.notices.waiter_count() < 8 {
        tokio::time::sleep(StdDuration::from_millis(5)).await;
    }
    // A credit to another reserve wakes no long poll.
    site.reserve("1").await;
    assert_eq!(site.app().core.notices.waiter_count(), 8);
    site.credit(key, "3").await;
    for reply in waiting {
        assert_eq!(reply.await.unwrap().ok::<ReserveBalance>().unwrap().balance, amount("3"));
    }
    assert!(site.app().core.notices.waiter_count() == 0);
}

#[tokio::test]
async fn the_status_is_free_and_covers_recent_events() {
    let mut site = Site::start().await;
    let reserve = site.reserve("20").await;
    site.withdraw(&reserve, &site.planchet(&site.denom(CS_5)).await).await;
    site.withdraw(&reserve, &site.planchet(&site.denom(RSA_1)).await).await;
    let path = at_reserve(&reserve, "status");
    let answer: ReserveStatus = site.ok(&path, &status(&reserve, site.now())).await;
    assert_eq!(answer.balance, amount("13.98"));
    assert_eq!(answer.history.len(), 3);
    assert_eq!(proof::reserve_sum(&site, reserve.public_key(), &answer.history), m("13.98"));

    // The status shows only the last five weeks, but the true balance.
    site.advance(Duration::from_days(20)).await;
    site.withdraw(&reserve, &site.planchet(&site.denom(CS_FREE)).await).await;
    site.advance(Duration::from_days(20)).await;
    let answer: ReserveStatus = site.ok(&path, &status(&reserve, site.now())).await;
    assert_eq!(answer.balance, amount("13.48"));
    assert!(matches!(answer.history.as_slice(), [ReserveHistoryItem::Withdraw(_)]));
    site.advance(Duration::from_days(20)).await;
    let answer: ReserveStatus = site.ok(&path, &status(&reserve, site.now())).await;
    assert_eq!((answer.balance, answer.history), (amount("13.48"), vec![]));
}

/// Requests for long histories wait for each other; other requests do not wait for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_statements_do_not_block_short_ones() {
    let site = Site::start().await;
    let (short, long) = (site.reserve("1").await, site.reserve("1").await);
    for _ in 0..260 {
        site.credit(long.public_key(), "0.01").await;
    }
    let ask = async |key: &EddsaPrivateKey| -> ReserveStatus {
        site.ok(&at_reserve(key, "status"), &status(key, site.now())).await
    };
    assert_eq!(ask(&long).await.history.len(), 261);
    // Makes long histories very slow.
    let readers = &site.app().readers;
    readers.read(b"somebody", || ((), Length::Long)).await.unwrap();
    let (release, held) = std::sync::mpsc::channel::<()>();
    let reading = async {
        readers.read(b"somebody", move || (held.recv().unwrap(), Length::Long)).await.unwrap();
    };
    let others = async {
        let mut waiting = std::pin::pin!(ask(&long));
        for _ in 0..20 {
            tokio::select! {
                biased;
                _ = &mut waiting => panic!("a long history is read beside another one"),
                answer = ask(&short) => assert_eq!(answer.history.len(), 1),
            }
        }
        assert_eq!(site.balance(&long.public_key()).await, m("3.6"));
        release.send(()).unwrap();
        assert_eq!(waiting.await.history.len(), 261);
    };
    tokio::join!(reading, others);
}

#[tokio::test]
async fn invalid_statement_requests_are_refused() {
    let site = Site::start().await;
    let reserve = site.reserve("20").await;
    let now = site.now();
    let nobody = EddsaPrivateKey::generate();
    let skewed = [
        now.saturating_sub(Duration::from_secs(15 * 60 + 1)),
        now.saturating_add(Duration::from_secs(15 * 60 + 1)),
        Timestamp::ZERO,
        Timestamp::NEVER,
    ];
    for time in skewed {
        site.refused(&at_reserve(&reserve, "status"), &status(&reserve, time), 400, 1020).await;
        site.refused(&at_reserve(&reserve, "history"), &history(&reserve, time, "0.05"), 400, 1020).await;
    }
    let early = now.saturating_sub(Duration::from_secs(15 * 60));
    site.ok::<ReserveStatus>(&at_reserve(&reserve, "status"), &status(&reserve, early)).await;

    site.refused(&at_reserve(&reserve, "status"), &status(&nobody, now), 403, 1251).await;
    site.refused(&at_reserve(&reserve, "status"), &history(&reserve, now, "0.05"), 403, 1251).await;
    site.refused(&at_reserve(&reserve, "history"), &history(&nobody, now, "0.05"), 403, 1252).await;
    site.refused(&at_reserve(&reserve, "history"), &history(&reserve, now, "0"), 403, 1252).await;
    site.refused(&at_reserve(&nobody, "status"), &status(&nobody, now), 404, 1250).await;
    // An unknown reserve cannot pay the fee.
    site.refused(&at_reserve(&nobody, "history"), &history(&nobody, now, "0.05"), 409, 1156).await;
    let poor = site.reserve("0.04").await;
    site.refused(&at_reserve(&poor, "history"), &history(&poor, now, "0.05"), 409, 1156).await;
    assert_eq!(site.balance(&poor.public_key()).await, m("0.04"));
    for operation in ["status", "history"] {
        site.refused(&format!("reserves/ABC/{operation}"), &status(&reserve, now), 400, 27).await;
    }
}

#[tokio::test]
async fn a_full_history_is_charged_once() {
    let mut site = Site::start().await;
    let reserve = site.reserve("10").await;
    site.withdraw(&reserve, &site.planchet(&site.denom(RSA_1)).await).await;
    site.advance(Duration::from_days(100)).await;
    site.credit(reserve.public_key(), "2").await;
    let path = at_reserve(&reserve, "history");
    let request = history(&reserve, site.now(), "0.05");
    let answer: ReserveStatus = site.ok(&path, &request).await;
    assert_eq!((answer.balance, answer.history.len()), (amount("10.94"), 4));
    assert_eq!(proof::reserve_sum(&site, reserve.public_key(), &answer.history), m("10.94"));
    // Events of one type are adjacent, and the types come in the protocol's order.
    let types: Vec<&str> = answer
        .history
        .iter()
        .map(|item| match item {
            ReserveHistoryItem::Credit(_) => "CREDIT",
            ReserveHistoryItem::Withdraw(_) => "WITHDRAW",
            ReserveHistoryItem::History(_) => "HISTORY",
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(types, ["CREDIT", "CREDIT", "WITHDRAW", "HISTORY"]);
    // The same request again costs nothing and returns the current history.
    site.clock.advance(Duration::from_secs(60));
    site.withdraw(&reserve, &site.planchet(&site.denom(CS_FREE)).await).await;
    let answer: ReserveStatus = site.ok(&path, &request).await;
    assert_eq!((answer.balance, answer.history.len()), (amount("10.44"), 5));
    // A request with another time is another request.
    let answer: ReserveStatus = site.ok(&path, &history(&reserve, site.now(), "0.05")).await;
    assert_eq!((answer.balance, answer.history.len()), (amount("10.39"), 6));
    assert_eq!(proof::reserve_sum(&site, reserve.public_key(), &answer.history), m("10.39"));
    // No fees are signed for this time.
    site.clock.advance(Duration::from_days(4 * 365));
    site.refused(&path, &history(&reserve, site.now(), "0.05"), 500, 1000).await;
}

#[tokio::test]
async fn a_history_without_fee_is_free() {
    let site = Site::with(|config| {
        config.standalone.as_mut().unwrap().fees.history = batzen_protocol::Money::ZERO;
    })
    .await;
    let reserve = site.reserve("10").await;
    let path = at_reserve(&reserve, "history");
    let answer: ReserveStatus = site.ok(&path, &history(&reserve, site.now(), "0")).await;
    assert_eq!((answer.balance, answer.history.len()), (amount("10"), 1));
    let nobody = EddsaPrivateKey::generate();
    let request = history(&nobody, site.now(), "0");
    site.refused(&at_reserve(&nobody, "history"), &request, 404, 1250).await;
}
