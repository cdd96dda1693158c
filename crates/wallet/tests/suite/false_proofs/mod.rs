//! A dishonest exchange that refuses with invalid proofs. No invalid proof may cost the wallet money, each is
//! kept as evidence, and disputed operations continue when the exchange becomes honest.

mod claims;
mod evidence;
mod histories;
mod reserves;

use batzen_crypto::{EddsaPrivateKey, WireSalt};
use batzen_protocol::{Money, payto};
use batzen_testkit::world::{EXCHANGE, START, World, amount, check_history, error};
use batzen_wallet::core::http::{HttpRequest, HttpResponse};
use batzen_wallet::{CipherChoice, CoinStatus, Status, Wallet, WalletError};
use serde_json::{Value, json};

use crate::common::{available, begin, copy_of, empty, fill, join, latest, permission, request, try_fill};

/// A wallet with RSA coins, and a merchant.
async fn ready(sum: &str) -> (World, Wallet, EddsaPrivateKey) {
    let (world, wallet) = begin(sum, CipherChoice::Rsa).await;
    (world, wallet, EddsaPrivateKey::generate())
}

/// The same after a payment of KUDOS:3, whose change is not refreshed yet; and the wallet's money.
async fn with_change() -> (World, Wallet, Money) {
    let (world, wallet, merchant) = ready("KUDOS:8.01").await;
    wallet.pay(&request(&merchant, "KUDOS:3", 1)).await.unwrap();
    let before = holdings(&wallet);
    (world, wallet, before)
}

/// All money of the wallet, wherever it is recorded.
fn holdings(wallet: &Wallet) -> Money {
    let balance = &wallet.balance().unwrap()[0];
    let parts = [balance.available, balance.pending_incoming, balance.pending_outgoing, balance.dust];
    Money::checked_sum(parts.iter().map(|part| part.money))
        .unwrap()
        .checked_add(balance.disputed.money)
        .unwrap()
}

fn body(request: &HttpRequest) -> Value {
    serde_json::from_slice(request.body.as_ref().unwrap()).unwrap()
}

fn json_of(response: &HttpResponse) -> Value {
    serde_json::from_slice(&response.body).unwrap()
}

fn with_json(response: &HttpResponse, value: &Value) -> HttpResponse {
    HttpResponse { body: serde_json::to_vec(value).unwrap(), ..response.clone() }
}

/// Alters the answers to some requests.
fn alter_answers(
    world: &World,
    concerns: impl Fn(&HttpRequest, &HttpResponse) -> bool + Send + 'static,
    alter: impl Fn(&mut Value) + Send + 'static,
) {
    world.network.change_answers(move |request, response| {
        if !concerns(request, &response) {
            return response;
        }
        let mut value = json_of(&response);
        alter(&mut value);
        with_json(&response, &value)
    });
}

/// Asserts that something ended in a dispute.
#[track_caller]
fn is_disputed<T: std::fmt::Debug>(ended: Result<T, WalletError>, context: &str) {
    assert!(matches!(ended, Err(WalletError::Disputed { .. })), "{context}: {ended:?}");
}

/// The request's deposit as an item of the coin's history.
fn own_deposit(request: &Value, coin: &Value) -> Value {
    let salt: WireSalt = request["wire_salt"].as_str().unwrap().parse().unwrap();
    let h_wire = payto::h_wire(request["merchant_payto_uri"].as_str().unwrap(), &salt);
    let mut item = json!({
        "type": "DEPOSIT", "amount": coin["contribution"], "deposit_fee": "KUDOS:0.01",
        "timestamp": request["timestamp"], "merchant_pub": request["merchant_pub"],
        "h_contract_terms": request["h_contract_terms"], "h_wire": h_wire, "coin_sig": coin["coin_sig"],
    });
    if let Some(deadline) = request.get("refund_deadline") {
        item["refund_deadline"] = deadline.clone();
    }
    item
}

/// The coin of a request for one coin.
fn coin_in_url(request: &HttpRequest) -> String {
    request.url.split('/').nth_back(1).unwrap().to_owned()
}

/// The refusal of a request that would spend more than is left of its coin, with a history as proof.
fn overspent(request: &HttpRequest, history: &[Value]) -> HttpResponse {
    let h_denom = body(request)["denom_pub_hash"].clone();
    let proof = json!({ "coin_pub": coin_in_url(request), "h_denom_pub": h_denom, "history": history });
    error(409, 1012, &proof)
}

fn is_deposit(request: &HttpRequest) -> bool {
    request.url.ends_with("deposit")
}

/// Refuses deposits with a proof that lists the wallet's own new signature this many times.
fn lie_with_own_deposit(world: &World, times: usize) {
    world.network.answer_instead(move |request| {
        if !is_deposit(request) {
            return None;
        }
        let sent = body(request);
        let (coin, coin_pub) = match sent.get("coins") {
            Some(coins) => (coins[0].clone(), coins[0]["coin_pub"].clone()),
            None => (sent.clone(), coin_in_url(request).into()),
        };
        let history = vec![own_deposit(&sent, &coin); times];
        let extra =
            json!({ "coin_pub": coin_pub, "h_denom_pub": coin["denom_pub_hash"], "history": history });
        Some(error(409, 1012, &extra))
    });
}

/// Checks that the whole of `before` is disputed, with evidence that gives this reason.
fn check_disputed(wallet: &Wallet, before: Money, reason: &str) {
    // A disputed amount counts in full, without deducting the fees of later refreshes.
    assert!(holdings(wallet) >= before, "{} of {before} are left", holdings(wallet));
    assert!(wallet.coins().iter().all(|coin| coin.status != CoinStatus::Lost));
    let evidence = wallet.evidence();
    let found = evidence.iter().find(|item| item.reason.contains(reason) && item.settled.is_none());
    let found = found.unwrap_or_else(|| panic!("no evidence says {reason:?}: {evidence:#?}"));
    let id = found.operation.unwrap();
    let line = wallet.transaction(id).unwrap();
    assert_eq!((line.status, line.evidence), (Status::Pending, Some(found.id)));
    assert!(!wallet.balance().unwrap()[0].disputed.is_zero());
    check_history(wallet);
}

/// Makes the exchange honest: every disputed operation continues and ends, and the books agree coin by coin.
async fn check_recovered(world: &World, wallet: &Wallet) {
    world.network.be_honest();
    wallet.retry_disputed().unwrap();
    let report = wallet.run_pending().await.unwrap();
    check_history(wallet);
    assert!(report.pending.is_empty(), "{report:?}");
    assert!(wallet.evidence().iter().all(|item| item.settled.is_some()));
    assert!(wallet.balance().unwrap()[0].disputed.is_zero());
    world.exchange.check_conservation();
    for coin in wallet.coins() {
        let value = world.exchange.value(&coin.h_denom_pub);
        let remaining = world.exchange.coin_remaining(&coin.coin_pub).unwrap_or(value);
        assert_eq!(remaining, coin.remaining, "coin {} in state {:?}", coin.coin_pub, coin.status);
    }
}
