//! Payments that are taken back, declined, expire, or meet a race or a lie.

use super::*;
use batzen_protocol::signatures::{SignedMessage, WalletPurseDelete};
use batzen_protocol::{ErrorCode, Timestamp};
use batzen_wallet::core::http::HttpResponse;
use batzen_wallet::{Coin, CoinStatus};

const LATER: Timestamp = START.saturating_add(Duration::from_days(3));

/// Money that nobody has accepted can be taken back, and its coins can be spent again.
#[tokio::test]
async fn sent_money_can_be_taken_back() {
    let (world, alice, bob) = two("KUDOS:10").await;
    let before = available(&alice);
    let id = alice.send_money(&of("KUDOS:2.5")).await.unwrap();
    let uri = uri(&alice, id);
    let offer = bob.inspect_peer(&uri).await.unwrap();
    alice.cancel(id).unwrap();
    settle(&[&alice]).await;
    let sent = latest(&alice, "send");
    assert_eq!((sent.status, sent.effect.as_str()), (Status::Failed, "+KUDOS:0"));
    assert!(sent.message.unwrap().contains("cancelled by you"));
    // Only the refresh of change costs something.
    assert!(available(&alice).money >= before.money.checked_sub(money("KUDOS:0.25")).unwrap());
    check_books(&world, &[&alice, &bob]);
    let error = bob.inspect_peer(&uri).await.unwrap_err().to_string();
    assert!(error.contains("taken back"), "{error}");
    let error = bob.accept_peer(&offer).await.unwrap_err().to_string();
    assert!(error.contains("taken it back"), "{error}");
    assert!(alice.cancel(id).is_err(), "it is finished");
    let again = alice.send_money(&of("KUDOS:7")).await.unwrap();
    accept(&bob, &super::uri(&alice, again)).await;
    settle(&[&bob, &alice]).await;
    check_books(&world, &[&alice, &bob]);
    check_no_loss(&alice);
    assert_eq!(world.network.conflicts(), 0);
}

/// The exchange has seen the coins of a purse together, so none of them pays again as it is.
#[tokio::test]
async fn coins_that_come_back_are_refreshed() {
    let (world, alice) = begin("KUDOS:10", CipherChoice::Any).await;
    let id = alice.send_money(&of("KUDOS:9")).await.unwrap();
    let is_shown = |coin: &Coin| coin.status != CoinStatus::Fresh;
    let shown: Vec<_> = alice.coins().into_iter().filter(is_shown).map(|coin| coin.coin_pub).collect();
    assert!(shown.len() > 1, "several coins are in the purse");
    alice.cancel(id).unwrap();
    settle(&[&alice]).await;
    for coin in alice.coins().iter().filter(|coin| coin.status == CoinStatus::Fresh) {
        assert!(!shown.contains(&coin.coin_pub), "{} can be spent again", coin.coin_pub);
    }
    check_books(&world, &[&alice]);
    check_no_loss(&alice);
}

/// The smallest coins could not be refreshed, so they pay again as they are.
#[tokio::test]
async fn the_smallest_coins_come_back_without_loss() {
    let (world, alice) = begin("KUDOS:0.22", CipherChoice::Any).await;
    assert_eq!(available(&alice), amount("KUDOS:0.2"));
    let id = alice.send_money(&of("KUDOS:0.18")).await.unwrap();
    alice.cancel(id).unwrap();
    settle(&[&alice]).await;
    assert_eq!(available(&alice), amount("KUDOS:0.2"));
    assert!(alice.coins().iter().all(|coin| coin.status == CoinStatus::Fresh));
    check_books(&world, &[&alice]);
}

#[tokio::test]
async fn accepted_money_cannot_be_taken_back() {
    let (world, alice, bob) = two("KUDOS:10").await;
    let id = alice.send_money(&of("KUDOS:2.5")).await.unwrap();
    accept(&bob, &uri(&alice, id)).await;
    // Alice's wallet does not know it yet.
    alice.cancel(id).unwrap();
    settle(&[&alice, &bob]).await;
    let sent = latest(&alice, "send");
    assert_eq!((sent.status, sent.message), (Status::Done, None));
    check_books(&world, &[&alice, &bob]);
    check_no_loss(&alice);
}

#[tokio::test]
async fn a_request_can_be_withdrawn_until_it_is_paid() {
    let (world, alice, bob) = two("KUDOS:10").await;
    let first = bob.request_money(&of("KUDOS:1")).await.unwrap();
    let asked = alice.inspect_peer(&uri(&bob, first)).await.unwrap();
    bob.cancel(first).unwrap();
    settle(&[&bob]).await;
    assert_eq!(latest(&bob, "request").status, Status::Failed);
    let error = alice.accept_peer(&asked).await.unwrap_err().to_string();
    assert!(error.contains("taken back"), "{error}");
    // The second is paid before it is withdrawn.
    let second = bob.request_money(&of("KUDOS:2")).await.unwrap();
    accept(&alice, &uri(&bob, second)).await;
    bob.cancel(second).unwrap();
    settle(&[&bob, &alice]).await;
    assert_eq!(bob.transaction(second).unwrap().status, Status::Done);
    assert_eq!(available(&bob), amount("KUDOS:1.9"));
    check_books(&world, &[&alice, &bob]);
    check_no_loss(&alice);
}

#[tokio::test]
async fn offers_and_requests_can_be_declined() {
    let (world, alice) = begin("KUDOS:10", CipherChoice::Any).await;
    let bob = filled(&world, 2, "KUDOS:5", CipherChoice::Any).await;
    let id = alice.send_money(&of("KUDOS:1")).await.unwrap();
    let offer = bob.inspect_peer(&uri(&alice, id)).await.unwrap();
    let declined = bob.decline_peer(&offer).unwrap();
    let line = bob.transaction(declined).unwrap();
    assert_eq!((line.status, line.effect.as_str()), (Status::Failed, "+KUDOS:0"));
    assert!(line.message.unwrap().contains("declined by you"));
    let request = alice.request_money(&of("KUDOS:1")).await.unwrap();
    let asked = bob.inspect_peer(&uri(&alice, request)).await.unwrap();
    let declined = bob.decline_peer(&asked).unwrap();
    assert_eq!(bob.transaction(declined).unwrap().status, Status::Failed);
    // Second thoughts are possible, in one direction.
    bob.accept_peer(&offer).await.unwrap();
    bob.accept_peer(&asked).await.unwrap();
    assert!(bob.decline_peer(&offer).is_err() && bob.decline_peer(&asked).is_err());
    settle(&[&bob, &alice]).await;
    check_books(&world, &[&alice, &bob]);
}

/// Money that nobody accepts comes back, whether the exchange has noticed the expiration already or not.
#[tokio::test]
async fn expired_money_comes_back() {
    for worker_was_quick in [false, true] {
        let (world, alice, bob) = two("KUDOS:10").await;
        let before = available(&alice);
        let id = alice.send_money(&of("KUDOS:2.5")).await.unwrap();
        let uri = uri(&alice, id);
        world.set_time(LATER).await;
        if worker_was_quick {
            world.expire_purses().await;
        }
        let error = bob.inspect_peer(&uri).await.unwrap_err().to_string();
        assert!(error.contains("expired") || error.contains("taken back"), "{error}");
        settle(&[&alice]).await;
        let sent = latest(&alice, "send");
        assert_eq!((sent.status, sent.effect.as_str()), (Status::Failed, "+KUDOS:0"));
        assert!(sent.message.unwrap().contains("accepted it before"));
        assert!(available(&alice).money >= before.money.checked_sub(money("KUDOS:0.5")).unwrap());
        check_books(&world, &[&alice, &bob]);
        check_no_loss(&alice);
        assert_eq!(world.network.conflicts(), 0);
    }
}

/// Some exchanges refuse to repeat what they have carried out, as a purse that expires too early. That is no proof that
/// nothing was paid in.
#[tokio::test]
async fn a_purse_refused_when_repeated_may_have_been_paid_into() {
    let (world, alice) = begin("KUDOS:10", CipherChoice::Any).await;
    let before = available(&alice);
    let answer_with = |status, code: ErrorCode| {
        let body = format!("{{\"code\": {}}}", code.to_u32()).into_bytes();
        world.network.change_answers(move |request, answer| {
            let is_new = request.url.ends_with("/create");
            if is_new {
                HttpResponse { status, body: body.clone(), ..HttpResponse::default() }
            } else {
                answer
            }
        });
    };
    answer_with(502, ErrorCode::NONE);
    assert!(alice.send_money(&of("KUDOS:2.5")).await.is_err());
    world.set_time(LATER).await;
    world.expire_purses().await;
    answer_with(400, ErrorCode::EXCHANGE_PURSE_CREATE_EXPIRATION_BEFORE_NOW);
    settle(&[&alice]).await;
    let sent = latest(&alice, "send");
    assert_eq!((sent.status, sent.effect.as_str()), (Status::Failed, "+KUDOS:0"));
    assert!(alice.evidence().is_empty(), "the coins' histories explain it");
    assert!(available(&alice).money >= before.money.checked_sub(money("KUDOS:0.5")).unwrap());
    check_books(&world, &[&alice]);
    check_no_loss(&alice);
}

/// The receiver accepts in time, but the sender's wallet hears of it only after the expiration, when the
/// exchange says no more than that the purse has expired. The coins' history then proves it.
#[tokio::test]
async fn money_that_was_accepted_in_time_is_not_counted_as_back() {
    let (world, alice, bob) = two("KUDOS:10").await;
    let id = alice.send_money(&of("KUDOS:2.5")).await.unwrap();
    accept(&bob, &uri(&alice, id)).await;
    world.set_time(LATER).await;
    settle(&[&alice, &bob]).await;
    let sent = latest(&alice, "send");
    assert_eq!(sent.status, Status::Done, "{sent:?}");
    assert!(sent.message.unwrap().contains("as the exchange has proven"));
    assert!(alice.evidence().is_empty());
    check_books(&world, &[&alice, &bob]);
    check_no_loss(&alice);
}

/// The same for a request: the answer to the payment is lost, and the request has expired when it is
/// repeated.
#[tokio::test]
async fn a_request_paid_in_time_with_a_lost_answer_is_not_counted_as_back() {
    let (world, alice, bob) = two("KUDOS:10").await;
    let id = bob.request_money(&of("KUDOS:2")).await.unwrap();
    let asked = alice.inspect_peer(&uri(&bob, id)).await.unwrap();
    world.network.change_answers(|request, answer| {
        let is_deposit = request.url.ends_with("/deposit") && request.body.is_some();
        if is_deposit { HttpResponse { status: 502, ..HttpResponse::default() } } else { answer }
    });
    assert!(alice.accept_peer(&asked).await.is_err());
    world.network.be_honest();
    world.set_time(LATER).await;
    settle(&[&alice, &bob]).await;
    let paid = latest(&alice, "pay-request");
    assert_eq!(paid.status, Status::Done, "{paid:?}");
    // Bob's wallet learns it from its reserve's history.
    assert_eq!(latest(&bob, "request").status, Status::Done);
    assert_eq!(available(&bob), amount("KUDOS:1.9"));
    check_books(&world, &[&alice, &bob]);
    check_no_loss(&alice);
}

#[tokio::test]
async fn requests_that_nobody_pays_end() {
    let world = World::new().await;
    let bob = empty(&world, 2).await;
    bob.request_money(&of("KUDOS:2")).await.unwrap();
    world.set_time(LATER).await;
    settle(&[&bob]).await;
    let line = latest(&bob, "request");
    assert_eq!(line.status, Status::Failed);
    assert!(line.message.unwrap().contains("nobody paid it"));
    check_books(&world, &[&bob]);
}

#[tokio::test]
async fn only_the_first_who_accepts_or_pays_counts() {
    let (world, alice) = begin("KUDOS:10", CipherChoice::Any).await;
    let bob = filled(&world, 2, "KUDOS:10", CipherChoice::Any).await;
    let carol = filled(&world, 3, "KUDOS:10", CipherChoice::Any).await;
    let id = alice.send_money(&of("KUDOS:2")).await.unwrap();
    let offer = carol.inspect_peer(&uri(&alice, id)).await.unwrap();
    accept(&bob, &uri(&alice, id)).await;
    let error = carol.accept_peer(&offer).await.unwrap_err().to_string();
    assert!(error.contains("somebody else has accepted it"), "{error}");
    let id = alice.request_money(&of("KUDOS:3")).await.unwrap();
    let asked = carol.inspect_peer(&uri(&alice, id)).await.unwrap();
    accept(&bob, &uri(&alice, id)).await;
    let before = carol.balance().unwrap()[0].total;
    let error = carol.accept_peer(&asked).await.unwrap_err().to_string();
    assert!(error.contains("somebody else has paid it"), "{error}");
    // Change costs a little.
    let after = carol.balance().unwrap()[0].total;
    assert!(after.money >= before.money.checked_sub(money("KUDOS:0.2")).unwrap(), "{before} {after}");
    settle(&[&alice, &bob, &carol]).await;
    check_books(&world, &[&alice, &bob, &carol]);
    check_no_loss(&carol);
}

/// False answers pause a payment and are kept. Nothing is written off, and honest answers continue it.
#[tokio::test]
async fn false_confirmations_are_kept_as_evidence() {
    let (world, alice, bob) = two("KUDOS:10").await;
    let forge = || {
        world.network.change_answers(|request, answer| {
            let of_purse = request.url.contains("/purses/") || request.url.ends_with("/purse");
            let Ok(mut body) = serde_json::from_slice::<serde_json::Value>(&answer.body) else {
                return answer;
            };
            if !of_purse || body["exchange_sig"].is_null() {
                return answer;
            }
            // Not a signature of the key that it names.
            let other = batzen_crypto::EddsaPrivateKey::generate();
            body["exchange_sig"] = serde_json::json!(WalletPurseDelete {}.sign(&other));
            HttpResponse { body: serde_json::to_vec(&body).unwrap(), ..answer }
        });
    };
    forge();
    let error = alice.send_money(&of("KUDOS:2")).await.unwrap_err();
    assert!(matches!(error, WalletError::Disputed { .. }), "{error}");
    assert_eq!(alice.evidence().len(), 1);
    let balance = alice.balance().unwrap()[0].clone();
    assert!(balance.disputed.money >= money("KUDOS:2"), "{balance:?}");
    check_books(&world, &[&alice, &bob]);
    world.network.be_honest();
    alice.retry_disputed().unwrap();
    alice.run_pending().await.unwrap();
    let id = latest(&alice, "send").id.unwrap();
    let offer = bob.inspect_peer(&uri(&alice, id)).await.unwrap();
    forge();
    let error = bob.accept_peer(&offer).await.unwrap_err();
    assert!(matches!(error, WalletError::Disputed { .. }), "{error}");
    world.network.be_honest();
    bob.retry_disputed().unwrap();
    settle(&[&bob, &alice]).await;
    assert!(bob.evidence()[0].settled.is_some() && alice.evidence()[0].settled.is_some());
    assert_eq!(available(&bob), amount("KUDOS:1.9"));
    // An exchange that has confirmed a purse cannot say later that there is none.
    let id = alice.send_money(&of("KUDOS:1")).await.unwrap();
    world.network.answer_instead(|request| {
        request.url.contains("/purses/").then(|| HttpResponse {
            status: 404,
            body: br#"{"code":1025,"hint":""}"#.to_vec(),
            ..HttpResponse::default()
        })
    });
    alice.run_pending().await.unwrap();
    assert!(alice.transaction(id).unwrap().evidence.is_some());
    world.network.be_honest();
    check_books(&world, &[&alice, &bob]);
}
