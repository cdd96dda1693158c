//! Purchases, at a merchant backend that deposits the coins at an exchange.

mod aborts;
mod exchanges;
mod fees;
mod lies;
mod lives;
mod refunds;
mod restarts;
mod tips;

use batzen_crypto::EddsaPrivateKey;
use batzen_protocol::Duration;
use batzen_testkit::world::{
    Ages, EXCHANGE, MERCHANT, START, Shop, Terms, World, amount, check_books, check_history, check_no_loss,
    with_status,
};
use batzen_wallet::core::http::HttpResponse;
use batzen_wallet::{CipherChoice, CoinWish, DepositAmount, Status, Transaction, Wallet, WalletError};
use serde_json::{Value, json};

use crate::common::{
    PAYTO, available, begin, copy_of, empty, fill, filled, join, latest, resume, resume_with, settle,
    settle_without_loss,
};

/// Changes a contract before it is signed.
type Change = Box<dyn FnMut(&mut Value) + Send>;

/// A world with a wallet that has this much money, and a shop.
async fn visit(sum: &str) -> (World, Wallet, Shop) {
    let (world, alice) = begin(sum, CipherChoice::Any).await;
    let shop = Shop::open(&world).await;
    (world, alice, shop)
}

async fn order(shop: &Shop, id: &str, sum: &str) -> String {
    shop.order(id, sum, |_| {}).await
}

async fn buy(wallet: &Wallet, uri: &str) -> Result<u64, WalletError> {
    let offer = wallet.inspect_purchase(uri).await?;
    wallet.pay_purchase(&offer).await
}

fn row(wallet: &Wallet, id: u64) -> Transaction {
    wallet.transaction(id).unwrap()
}

/// Returns the sum that a row of the history reports as paid, in units.
fn paid(row: &Transaction) -> i128 {
    amount(row.effect.trim_start_matches('-')).money.units() as i128
}

/// Changes the JSON body of an answer.
fn altered(answer: HttpResponse, change: impl FnOnce(&mut Value)) -> HttpResponse {
    let mut body: Value = serde_json::from_slice(&answer.body).unwrap();
    change(&mut body);
    HttpResponse { body: serde_json::to_vec(&body).unwrap(), ..answer }
}

/// Lies about every answer to a request whose URL ends so.
fn lie(shop: &Shop, end: &'static str, mut change: impl FnMut(&mut Value) + Send + 'static) {
    shop.lie(
        move |request, answer| {
            if request.url.ends_with(end) { altered(answer, &mut change) } else { answer }
        },
    );
}

fn sessions(shop: &Shop, id: &str) -> Vec<&'static str> {
    ["A", "B", "C", "D"].into_iter().filter(|session| shop.is_paid_in(id, session)).collect()
}

#[tokio::test]
async fn an_order_is_claimed_shown_paid_and_receipted() {
    let (world, alice, shop) = visit("KUDOS:10").await;
    let uri = order(&shop, "coffee", "KUDOS:2.5").await;
    let offer = alice.inspect_purchase(&uri).await.unwrap();
    let terms = offer.terms();
    assert!(offer.is_new());
    assert_eq!(
        (terms.merchant_name.as_str(), terms.summary.as_str(), terms.amount),
        ("Kiosk", "a coffee", amount("KUDOS:2.5"))
    );
    assert_eq!(alice.inspect_purchase(&uri).await.unwrap(), offer, "a repetition gets the same contract");
    assert!(
        alice.transactions(false).unwrap().iter().all(|row| row.kind != "payment"),
        "nothing is paid yet"
    );

    let id = alice.pay_purchase(&offer).await.unwrap();
    assert!(shop.is_paid("coffee"));
    settle(&alice).await;
    let paid = row(&alice, id);
    assert_eq!((paid.kind, paid.status, paid.amount), ("payment", Status::Done, amount("KUDOS:2.5")));
    assert_eq!(paid.merchant.as_deref(), Some("Kiosk"));
    assert!(paid.description.starts_with("Kiosk for \"a coffee\": KUDOS:2.5"), "{}", paid.description);
    // The merchant bears up to 0.05 of the fees.
    assert_eq!((paid.effect.as_str(), paid.fees), ("-KUDOS:2.5", amount("KUDOS:0")));
    let receipt = alice.purchase_receipt(id).unwrap();
    assert_eq!(receipt.proof.merchant_pub, shop.key().public_key());
    assert!(receipt.proof.receipt.is_some());
    assert_eq!(receipt.proof.contract_terms["summary"], "a coffee");

    // The order is not paid again, and nobody else can claim it.
    assert_eq!(buy(&alice, &uri).await.unwrap(), id);
    assert_eq!(shop.pays(), 1);
    let bob = filled(&world, 2, "KUDOS:10", CipherChoice::Any).await;
    let error = buy(&bob, &uri).await.unwrap_err().to_string();
    assert!(error.contains("another wallet has claimed this order"), "{error}");
    check_books(&world, &[&alice, &bob]);
    check_no_loss(&alice);
}

#[tokio::test]
async fn orders_and_purchases_survive_a_restart_and_a_backup() {
    let world = World::new().await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("wallet.db");
    let shop = Shop::open(&world).await;
    let (uri, later) = (order(&shop, "coffee", "KUDOS:1").await, order(&shop, "tea", "KUDOS:1").await);
    let id = {
        let alice = Wallet::open_with(&path, world.options(1)).unwrap();
        join(&alice).await;
        fill(&alice, "KUDOS:5", CipherChoice::Any).await;
        let id = buy(&alice, &uri).await.unwrap();
        alice.inspect_purchase(&later).await.unwrap();
        id
    };
    let alice = Wallet::open_with(&path, world.options(2)).unwrap();
    assert!(alice.purchase_receipt(id).unwrap().proof.receipt.is_some());
    let json = batzen_wallet::backup::to_json(alice.export());
    let copy = Wallet::in_memory_with(world.options(3));
    copy.import(batzen_wallet::backup::open(&json, None).unwrap()).unwrap();
    assert_eq!(copy.with_state(Clone::clone), alice.with_state(Clone::clone));
    drop(alice);
    copy.run_pending().await.unwrap();
    // The claim's key was saved, so the copy can pay the other order.
    buy(&copy, &later).await.unwrap();
    assert!(shop.is_paid("tea"));
}

#[tokio::test]
async fn a_free_order_needs_no_coins() {
    let world = World::new().await;
    let shop = Shop::open(&world).await;
    let uri = shop
        .order("flyer", "KUDOS:0", |contract| {
            contract["max_fee"] = json!("KUDOS:0");
            contract["max_wire_fee"] = json!("KUDOS:0");
        })
        .await;
    // Not even an exchange that it knows.
    let alice = Wallet::in_memory_with(world.options(1));
    let id = buy(&alice, &uri).await.unwrap();
    assert!(shop.is_paid("flyer"));
    let paid = row(&alice, id);
    assert_eq!((paid.status, paid.coins, paid.effect.as_str()), (Status::Done, 0, "+KUDOS:0"));
    check_books(&world, &[&alice]);
}

#[tokio::test]
async fn what_cannot_be_paid_is_refused_before_anything_is_sent() {
    let (world, alice, shop) = visit("KUDOS:3").await;
    let never_mind = |_: &mut Value| {};
    let strange = EddsaPrivateKey::generate().public_key();
    let cases: Vec<(&str, &str, Change, &str)> = vec![
        ("car", "KUDOS:5", Box::new(never_mind), "not enough money"),
        (
            "foreign",
            "KUDOS:1",
            Box::new(move |c| c["exchanges"] = json!([{ "url": "http://x.test/", "master_pub": strange }])),
            "the shop accepts KUDOS of http://x.test/; this wallet has none of these coins",
        ),
        ("late", "KUDOS:1", Box::new(|c| c["pay_deadline"] = json!(START)), "the offer has expired"),
        (
            "iban",
            "KUDOS:1",
            Box::new(|c| c["wire_method"] = json!("iban")),
            "does not pay to \"iban\" accounts",
        ),
        (
            "euro",
            "KUDOS:1",
            Box::new(|c| {
                c["amount"] = json!("EUR:1");
                c["max_fee"] = json!("EUR:0");
                c["max_wire_fee"] = json!("EUR:0");
            }),
            "the shop accepts EUR",
        ),
    ];
    for (id, sum, change, reason) in cases {
        let uri = order(&shop, id, sum).await;
        shop.forge_contracts(change);
        let error = buy(&alice, &uri).await.unwrap_err();
        assert!(error.to_string().contains(reason), "{id}: {error}");
    }
    shop.be_honest();
    for (uri, reason) in [
        (shop.uri("nothing", ""), "knows no such order"),
        (order(&shop, "secret", "KUDOS:1").await + "0", "knows no such order"),
        ("taler://pay-push/exchange.test/KEY".to_owned(), "not about an order of a shop"),
        ("taler+http://pay/shop.test/../x/".to_owned(), "must not contain"),
    ] {
        let error = buy(&alice, &uri).await.unwrap_err();
        assert!(error.to_string().contains(reason), "{uri}: {error}");
    }
    assert_eq!(shop.pays(), 0);
    assert_eq!(available(&alice), amount("KUDOS:2.9"));
    // The right token helps.
    buy(&alice, &shop.uri("secret", "")).await.unwrap();
    settle(&alice).await;
    check_books(&world, &[&alice]);
}

#[tokio::test]
async fn a_receipt_is_shown_again_in_another_session() {
    let (world, alice, shop) = visit("KUDOS:10").await;
    let page = |contract: &mut Value| {
        contract["fulfillment_url"] = json!("https://shop.test/article");
        contract["summary"] = json!("an article");
    };
    shop.order("article", "KUDOS:1", page).await;
    let id = buy(&alice, &shop.uri("article", "A")).await.unwrap();
    assert_eq!(sessions(&shop, "article"), ["A"]);
    // The same order in another browser.
    assert_eq!(buy(&alice, &shop.uri("article", "B")).await.unwrap(), id);
    assert_eq!(sessions(&shop, "article"), ["A", "B"]);
    // Another order of the same page.
    shop.order("again", "KUDOS:1", page).await;
    let offer = alice.inspect_purchase(&shop.uri("again", "C")).await.unwrap();
    assert_eq!((offer.known, offer.paid_before, offer.is_new()), (None, Some(id), false));
    assert_eq!(alice.pay_purchase(&offer).await.unwrap(), id);
    assert_eq!(sessions(&shop, "article"), ["A", "B", "C"]);
    assert!(!shop.is_paid("again"));
    assert_eq!(shop.pays(), 1);
    // Something else, with the same page of thanks.
    let uri = shop
        .order("other", "KUDOS:1", |contract| {
            page(contract);
            contract["summary"] = json!("another article");
        })
        .await;
    assert!(alice.inspect_purchase(&uri).await.unwrap().is_new());
    // Only 204 counts.
    shop.lie(|_, answer| with_status(answer, 200));
    let error = alice.replay_purchase(id, "D").await.unwrap_err();
    assert!(error.to_string().contains("showing the shop its receipt was refused"), "{error}");
    shop.be_honest();
    // Messages are no pages: each order is paid.
    for id in ["one", "two"] {
        let note =
            |contract: &mut Value| contract["fulfillment_url"] = json!("taler://fulfillment-success/thanks");
        let uri = shop.order(id, "KUDOS:0.5", note).await;
        buy(&alice, &uri).await.unwrap();
        assert!(shop.is_paid(id));
    }
    settle_without_loss(&world, &alice).await;
}

#[tokio::test]
async fn ages_are_proved_only_where_they_are_required() {
    let world = World::with(Terms { ages: Ages::Beside, ..Terms::default() }).await;
    let wish = CoinWish { cipher: CipherChoice::Any, age_limit: Some(14) };
    let child = filled(&world, 1, "KUDOS:5", wish).await;
    let shop = Shop::open(&world).await;
    for (id, age, may) in [("sweets", 0, true), ("book", 12, true), ("film", 15, true), ("wine", 16, false)] {
        let uri = shop
            .order(id, "KUDOS:1", |contract| {
                if age > 0 {
                    contract["minimum_age"] = json!(age);
                }
            })
            .await;
        match buy(&child, &uri).await {
            Ok(_) => assert!(may, "{id}"),
            Err(error) => {
                assert!(!may && error.to_string().contains("for people of 16 or more"), "{id}: {error}");
            }
        }
        assert_eq!(shop.is_paid(id), may, "{id}");
        settle(&child).await;
    }
    check_books(&world, &[&child]);
}

/// More coins than fit in one deposit at an exchange.
#[tokio::test]
async fn a_purchase_and_a_deposit_take_hundreds_of_coins() {
    let terms = Terms {
        fee_withdraw: 0,
        fee_deposit: 0,
        fee_refresh: 0,
        fee_wire: 0,
        values: &[100],
        ..Terms::default()
    };
    let world = World::with(terms).await;
    let alice = filled(&world, 1, "KUDOS:520", CipherChoice::Any).await;
    let error = alice.deposit(EXCHANGE, DepositAmount::Exact(amount("KUDOS:521")), PAYTO).await.unwrap_err();
    assert!(error.to_string().contains("not enough money"), "{error}");
    let shop = Shop::open(&world).await;
    let uri = order(&shop, "car", "KUDOS:260").await;
    buy(&alice, &uri).await.unwrap();
    assert!(shop.is_paid("car"));
    alice.deposit(EXCHANGE, DepositAmount::Exact(amount("KUDOS:259")), PAYTO).await.unwrap();
    settle(&alice).await;
    assert_eq!(available(&alice), amount("KUDOS:1"));
    check_books(&world, &[&alice]);
}

/// The clock moves, and the offer expires while the request is under way.
#[tokio::test]
async fn an_expired_offer_fails_for_good_and_its_coins_are_refreshed() {
    let world = World::new().await;
    let alice = filled(&world, 1, "KUDOS:10", CipherChoice::Any).await;
    let before = available(&alice);
    let shop = Shop::open(&world).await;
    let uri = order(&shop, "coffee", "KUDOS:4").await;
    shop.set_stop_after(Some(0));
    let error = buy(&alice, &uri).await.unwrap_err();
    assert!(matches!(error, WalletError::Unavailable { status: 502, .. }), "{error}");
    let balance = alice.balance().unwrap()[0].clone();
    assert!(balance.pending_outgoing.money >= amount("KUDOS:4").money, "{balance:?}");
    shop.set_stop_after(None);
    world.set_time(START.saturating_add(Duration::from_days(2))).await;
    settle(&alice).await;
    let failed = latest(&alice, "payment");
    assert_eq!((failed.status, failed.effect.as_str()), (Status::Failed, "+KUDOS:0"));
    assert!(failed.message.unwrap().contains("code 2161"));
    // Refreshed, because the merchant has seen the coins.
    let rows = alice.transactions(true).unwrap();
    assert!(rows.iter().any(|row| row.kind == "refresh" && row.status == Status::Done), "{rows:#?}");
    assert!(available(&alice).money < before.money && available(&alice).money > amount("KUDOS:9").money);
    check_books(&world, &[&alice]);
    check_no_loss(&alice);
}

/// A merchant whose exchange fails in the middle of a payment gets the same request again.
#[tokio::test]
async fn a_payment_interrupted_between_two_coins_continues() {
    let (world, alice, shop) = visit("KUDOS:10").await;
    let uri = order(&shop, "coffee", "KUDOS:8.5").await;
    shop.set_stop_after(Some(1));
    buy(&alice, &uri).await.unwrap_err();
    let taken = shop.deposited("coffee");
    assert!(taken > 0 && !shop.is_paid("coffee"));
    shop.set_stop_after(None);
    let id = buy(&alice, &uri).await.unwrap();
    assert!(shop.is_paid("coffee") && shop.deposited("coffee") > taken);
    assert_eq!(paid(&row(&alice, id)), shop.deposited("coffee"));
    settle_without_loss(&world, &alice).await;
}

/// A merchant that deposits some of the coins and then refuses has their money, as the exchange proves.
#[tokio::test]
async fn coins_deposited_before_a_failure_are_found_by_their_refresh() {
    let (world, alice, shop) = visit("KUDOS:10").await;
    let uri = order(&shop, "coffee", "KUDOS:8.5").await;
    shop.set_stop_after(Some(1));
    buy(&alice, &uri).await.unwrap_err();
    let taken = shop.deposited("coffee");
    assert!(taken > 0);
    let id = alice.pending()[0].id;
    alice.cancel(id).unwrap();
    assert!(alice.cancel(id).unwrap_err().to_string().contains("it is finished"));
    settle(&alice).await;
    let failed = row(&alice, id);
    assert_eq!(failed.status, Status::Failed);
    assert_eq!(paid(&failed), taken);
    let message = failed.message.unwrap();
    assert!(message.starts_with("cancelled by you; the shop had deposited coins of it"), "{message}");
    check_books(&world, &[&alice]);
    check_no_loss(&alice);
}

/// Two wallets with the same coins: the second one to pay learns from the proof which coins are gone, keeps
/// those that the merchant has deposited, and replaces the others.
#[tokio::test]
async fn coins_spent_by_a_copy_of_the_wallet_are_replaced() {
    let (world, alice, shop) = visit("KUDOS:20").await;
    let copy = copy_of(&alice, &world, 2);
    buy(&copy, &order(&shop, "first", "KUDOS:3").await).await.unwrap();
    let id = buy(&alice, &order(&shop, "second", "KUDOS:9").await).await.unwrap();
    assert!(shop.is_paid("second"));
    let conflicts = world.network.conflicts();
    assert!(conflicts > 0, "the copy spent coins that this purchase wanted");
    settle(&alice).await;
    let done = row(&alice, id);
    assert_eq!((done.status, paid(&done)), (Status::Done, shop.deposited("second")));
    assert!(alice.evidence().is_empty(), "the proof was right");
    check_history(&alice);
    // And if the rest does not suffice, the purchase fails, and what is left is refreshed.
    copy.run_pending().await.unwrap();
    let error = buy(&copy, &order(&shop, "third", "KUDOS:14").await).await.unwrap_err();
    assert!(matches!(&error, WalletError::Failed { .. }), "{error}");
    settle(&copy).await;
    check_history(&copy);
    world.exchange.check_conservation();
}
