//! Merchants that lie are refused, and keep nothing that they are not owed.

use batzen_crypto::EddsaSignature;

use super::*;

/// Changes the body of an answer.
type Lie = fn(&mut Value);

#[tokio::test]
async fn false_contracts_are_refused() {
    let world = World::new().await;
    let alice = filled(&world, 1, "KUDOS:5", CipherChoice::Any).await;
    let before = alice.balance().unwrap();
    let shop = Shop::open(&world).await;
    // Altered after the merchant signed.
    let altered: Vec<(&str, Lie)> = vec![
        ("signature", |body| body["sig"] = json!(EddsaSignature::ZERO)),
        ("price", |body| body["contract_terms"]["amount"] = json!("KUDOS:0.5")),
        ("email", |body| body["contract_terms"]["merchant"]["email"] = json!("other@shop.test")),
    ];
    for (id, change) in altered {
        let uri = order(&shop, id, "KUDOS:1").await;
        lie(&shop, "claim", change);
        let error = buy(&alice, &uri).await.unwrap_err().to_string();
        assert!(error.contains("the shop's signature of its contract: invalid signature"), "{id}: {error}");
        shop.be_honest();
    }
    // Signed, but not what was asked for.
    let strange = json!(EddsaPrivateKey::generate().public_key());
    let bad: Vec<(&str, Change, &str)> = vec![
        ("base", Box::new(|c| c["merchant_base_url"] = json!("http://evil.test/")), "but the URI is about"),
        (
            "slash",
            Box::new(|c| c["merchant_base_url"] = json!(MERCHANT.trim_end_matches('/'))),
            "but the URI is about",
        ),
        ("order", Box::new(|c| c["order_id"] = json!("other")), "about another order"),
        ("nonce", Box::new(move |c| c["nonce"] = strange.clone()), "for another wallet"),
        ("currency", Box::new(|c| c["max_fee"] = json!("EUR:1")), "another currency"),
        (
            "auditors",
            Box::new(|c| drop(c.as_object_mut().unwrap().remove("auditors"))),
            "auditors is missing",
        ),
        ("name", Box::new(|c| c["merchant"] = json!({})), "merchant is malformed"),
        ("key", Box::new(|c| c["summary_i18n"] = json!({ "de-CH": "Kafi" })), "the name \"de-CH\""),
        ("salt", Box::new(|c| c["$forgettable"] = json!({ "nothing": "salt" })), "$forgettable is malformed"),
        ("number", Box::new(|c| c["extra"] = json!(1.5)), "not an integer"),
        ("wire", Box::new(|c| c["wire_transfer_deadline"] = json!({ "t_s": "never" })), "must be a date"),
        (
            "refund",
            Box::new(|c| c["refund_deadline"] = json!({ "t_s": "never" })),
            "before the refund deadline",
        ),
        (
            "deep",
            Box::new(|c| {
                c["extra"] = (0..40).fold(json!(1), |inner, _| json!([inner]));
            }),
            "nested too deeply",
        ),
    ];
    for (id, change, reason) in bad {
        let uri = order(&shop, id, "KUDOS:1").await;
        shop.forge_contracts(change);
        let error = buy(&alice, &uri).await.unwrap_err().to_string();
        assert!(error.contains(reason), "{id}: {error}");
    }
    shop.be_honest();
    // A member twice: which of them was signed?
    let uri = order(&shop, "twice", "KUDOS:1").await;
    shop.lie(|request, answer| {
        if !request.url.ends_with("claim") {
            return answer;
        }
        let text = String::from_utf8(answer.body.clone()).unwrap();
        let text = text.replacen("\"amount\":", "\"amount\":\"KUDOS:9\",\"amount\":", 1);
        HttpResponse { body: text.into_bytes(), ..answer }
    });
    let error = buy(&alice, &uri).await.unwrap_err().to_string();
    assert!(error.contains("member named twice"), "{error}");
    assert_eq!(shop.pays(), 0);
    assert_eq!(alice.balance().unwrap(), before);
}

#[tokio::test]
async fn a_backend_of_another_version_is_refused() {
    let (_world, alice, shop) = visit("KUDOS:5").await;
    let uri = order(&shop, "coffee", "KUDOS:1").await;
    lie(&shop, "config", |body| body["version"] = json!("17:0:3"));
    let error = buy(&alice, &uri).await.unwrap_err().to_string();
    assert!(error.contains("speaks protocol 17:0:3"), "{error}");
    assert!(alice.with_state(|state| state.orders.is_empty()));
}

#[tokio::test]
async fn a_false_receipt_is_kept_as_evidence_and_asked_for_again() {
    let (world, alice, shop) = visit("KUDOS:5").await;
    let uri = order(&shop, "coffee", "KUDOS:1").await;
    lie(&shop, "pay", |body| body["sig"] = json!(EddsaSignature::ZERO));
    let error = buy(&alice, &uri).await.unwrap_err();
    assert!(matches!(&error, WalletError::Disputed { .. }), "{error}");
    let [evidence] = &alice.evidence()[..] else { panic!("one piece of evidence") };
    assert!(evidence.reason.contains("the shop's receipt"), "{}", evidence.reason);
    let proof = evidence.purchase.as_ref().unwrap();
    assert_eq!((proof.merchant_base_url.as_str(), proof.receipt), (MERCHANT, None));
    assert_eq!(proof.contract_terms["order_id"], "coffee");
    let text = serde_json::to_string(&evidence).unwrap();
    for coin in alice.coins() {
        let secret = serde_json::to_value(&coin.coin_priv).unwrap();
        assert!(!text.contains(secret.as_str().unwrap()), "no secrets in evidence");
    }
    check_history(&alice);
    shop.be_honest();
    alice.retry_disputed().unwrap();
    settle(&alice).await;
    assert!(alice.evidence()[0].settled.is_some());
    let id = alice.inspect_purchase(&uri).await.unwrap().known.unwrap();
    assert!(alice.purchase_receipt(id).is_ok());
    check_books(&world, &[&alice]);
    check_no_loss(&alice);
}

/// "This coin is spent" needs the exchange's proof. Nothing is given up without it.
#[tokio::test]
async fn a_spent_coin_must_be_proved() {
    let conflict = |extra: Value| {
        let mut body = json!({ "code": 2150 });
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        HttpResponse { status: 409, body: serde_json::to_vec(&body).unwrap(), ..HttpResponse::default() }
    };
    let strange = EddsaPrivateKey::generate().public_key();
    for (extra, reason) in [
        (json!({}), "the exchange's proof is missing"),
        (json!({ "exchange_reply": { "code": 1012 } }), "does not say which coin"),
        (json!({ "exchange_reply": { "code": 1012, "coin_pub": strange } }), "not in the request"),
    ] {
        let world = World::new().await;
        let alice = filled(&world, 1, "KUDOS:5", CipherChoice::Any).await;
        let total = alice.balance().unwrap()[0].total;
        let shop = Shop::open(&world).await;
        let uri = order(&shop, "coffee", "KUDOS:1").await;
        let answer = conflict(extra);
        shop.lie(move |request, honest| if request.url.ends_with("pay") { answer.clone() } else { honest });
        let error = buy(&alice, &uri).await.unwrap_err();
        assert!(matches!(&error, WalletError::Disputed { .. }), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
        assert_eq!(alice.balance().unwrap()[0].total, total, "nothing is written off");
        check_history(&alice);
        shop.be_honest();
        alice.retry_disputed().unwrap();
        settle(&alice).await;
        assert!(shop.is_paid("coffee"));
        check_books(&world, &[&alice]);
    }
}

/// Refusals that may pass, or that something in front of the backend makes, leave the purchase open.
#[tokio::test]
async fn other_refusals_are_shown_and_the_purchase_stays_open() {
    for (status, body) in [
        (404, json!({ "code": 2005 })),
        (403, json!({ "code": 2157 })),
        (406, json!({ "code": 2156 })),
        (400, json!("a proxy's page")),
        (410, json!({})),
        (500, json!({ "code": 2158 })),
        (504, json!({})),
    ] {
        let (world, alice, shop) = visit("KUDOS:5").await;
        let uri = order(&shop, "coffee", "KUDOS:1").await;
        let bytes = serde_json::to_vec(&body).unwrap();
        shop.lie(move |request, honest| {
            if request.url.ends_with("pay") {
                HttpResponse { status, body: bytes.clone(), ..HttpResponse::default() }
            } else {
                honest
            }
        });
        let error = buy(&alice, &uri).await.unwrap_err();
        assert!(!matches!(error, WalletError::Failed { .. }), "{status}: {error}");
        let [pending] = &alice.pending()[..] else { panic!("{status}: it is pending") };
        assert_eq!((pending.kind, pending.waits_for), ("payment", "waits for the shop's receipt"));
        assert!(pending.message.is_some());
        shop.be_honest();
        settle(&alice).await;
        assert_eq!(row(&alice, 2).status, Status::Done, "{status}");
        check_books(&world, &[&alice]);
        check_no_loss(&alice);
    }
}

/// An order that was paid with other coins cannot be paid.
#[tokio::test]
async fn an_order_paid_by_a_copy_of_the_wallet_is_not_paid_again() {
    let (world, alice, shop) = visit("KUDOS:20").await;
    let uri = order(&shop, "coffee", "KUDOS:1").await;
    alice.inspect_purchase(&uri).await.unwrap();
    let copy = copy_of(&alice, &world, 2);
    let spent = buy(&copy, &order(&shop, "other", "KUDOS:1").await).await.unwrap();
    settle(&copy).await;
    assert_eq!(row(&copy, spent).status, Status::Done);
    // The copy has the same claim, but not the coin any more that both would have chosen.
    buy(&copy, &uri).await.unwrap();
    let error = buy(&alice, &uri).await.unwrap_err();
    assert!(error.to_string().contains("paid with other coins"), "{error}");
    alice.run_pending().await.unwrap();
    check_history(&alice);
    world.exchange.check_conservation();
}
