//! `/deposit` and `/batch-deposit`.

use batzen_crypto::{
    AgeCommitmentProof, AgeMask, CoinSecrets, DenomSignature, EddsaSignature, ExchangeWithdrawValues,
    HashCode, PlanchetMasterSecret, ShortHash, WireSalt,
};
use batzen_protocol::api::exchange::{
    BatchDepositConfirmation, CoinHistoryItem, DepositConfirmation, DepositRequest,
};
use batzen_protocol::{Duration, Timestamp};
use serde_json::json;

use crate::api::proof;
use crate::api::wallet::*;
use crate::api::world::*;

#[tokio::test]
async fn a_repeated_deposit_is_confirmed_again() {
    let site = Site::start().await;
    for (value, contribution) in
        [(RSA_8, "8"), (CS_5, "4.99999999"), (CS_FREE, "0.00000001"), (RSA_AGE_4, "0.02"), (CS_AGE_2, "1")]
    {
        let coin = site.coin(value).await;
        let contract = Contract::new(&site);
        let first = site.pay(&contract, &coin, contribution).await;
        assert_eq!(first.exchange_timestamp, site.now());
        assert_eq!(first.transaction_base_url, None);
        site.clock.advance(Duration::from_secs(100));
        let again = site.pay(&contract, &coin, contribution).await;
        assert_eq!(again, first);
        let rest = m(value).checked_sub(m(contribution)).unwrap().to_string();
        site.is_left(&coin, &rest).await;
    }
    assert_eq!(site.metric("taler_exchange_success_transactions", "deposit").await, 5 + 3);
}

#[tokio::test]
async fn deposits_accept_no_refund_deadline_and_deadlines_in_the_past() {
    let site = Site::start().await;
    let coin = site.coin(RSA_8).await;
    let contract = Contract { refund_deadline: None, wire_deadline: Timestamp::ZERO, ..Contract::new(&site) };
    site.pay(&contract, &coin, "1").await;
    let past = Timestamp::from_secs(1_000);
    let contract = Contract { refund_deadline: Some(past), wire_deadline: past, ..contract.next() };
    site.pay(&contract, &coin, "1").await;
    let far = Timestamp::from_secs(1 << 43);
    let contract = Contract { refund_deadline: Some(far), wire_deadline: far, ..contract.next() };
    site.pay(&contract, &coin, "1").await;
    // The zero hash means that there is no age commitment.
    let contract = contract.next();
    let mut request = contract.deposit(&coin, "1");
    request.h_age_commitment = Some(NO_AGE);
    let answer: DepositConfirmation = site.ok(&coin.path("deposit"), &request).await;
    contract.confirmed(&site, &coin, "1", &answer);
    let with_null = edited(&contract.deposit(&coin, "1"), |body| {
        body["h_age_commitment"] = json!(null);
        body["policy"] = json!(null);
        body["more"] = json!({ "is": "ignored" });
    });
    assert_eq!(site.ok::<DepositConfirmation>(&coin.path("deposit"), &with_null).await, answer);
    site.is_left(&coin, "4").await;
}

#[tokio::test]
async fn a_coin_pays_no_more_than_its_value() {
    let site = Site::start().await;
    for value in [RSA_8, CS_5] {
        let coin = site.coin(value).await;
        let contract = Contract::new(&site);
        site.pay(&contract, &coin, "3").await;
        let (refresh, _) = site.refresh(&coin, &[site.denom(RSA_1)], "1.5").await;
        let left = m(value).checked_sub(m("4.5")).unwrap();
        let request = contract.next().deposit(&coin, value);
        let reply = site.post(&coin.path("deposit"), &request).await;
        assert_eq!(proof::overspent(&site, &reply, coin.coin_pub, &coin.denom, value), left);
        let (history, _) = proof::coin_conflict(&site, &reply, (409, 1012), coin.coin_pub, &coin.denom);
        assert_eq!(history.len(), 2);
        assert!(
            history.iter().any(|item| matches!(item, CoinHistoryItem::Melt(melt) if melt.rc == refresh.rc))
        );
        // The repetition is confirmed although the coin is empty now.
        site.pay(&contract.next(), &coin, &left.to_string()).await;
        site.pay(&contract, &coin, "3").await;
        let reply = site.post(&coin.path("deposit"), &contract.next().deposit(&coin, "0.02")).await;
        assert_eq!(proof::overspent(&site, &reply, coin.coin_pub, &coin.denom, "0.02"), m("0"));
    }
}

#[tokio::test]
async fn a_second_deposit_for_one_contract_with_other_data_is_a_conflict() {
    let site = Site::start().await;
    let coin = site.coin(RSA_AGE_4).await;
    let contract = Contract::new(&site);
    let first = site.pay(&contract, &coin, "1").await;
    let later = contract.wire_deadline.saturating_add(Duration::from_secs(60));
    let others = [
        contract.deposit(&coin, "1.1"),
        contract.deposit(&coin, "4"),
        Contract { salt: WireSalt::random(), ..contract.clone() }.deposit(&coin, "1"),
        Contract { payto_uri: CUSTOMER.into(), ..contract.clone() }.deposit(&coin, "1"),
        Contract { timestamp: Timestamp::ZERO, ..contract.clone() }.deposit(&coin, "1"),
        Contract { refund_deadline: None, ..contract.clone() }.deposit(&coin, "1"),
    ];
    for request in others {
        let reply = site.post(&coin.path("deposit"), &request).await;
        let (history, left) = proof::coin_conflict(&site, &reply, (409, 1206), coin.coin_pub, &coin.denom);
        assert_eq!((history.len(), left), (1, m("3")));
    }
    // The coin does not sign the wire deadline: the first one stays in force and is confirmed.
    let request = Contract { wire_deadline: later, ..contract.clone() }.deposit(&coin, "1");
    let answer: DepositConfirmation = site.ok(&coin.path("deposit"), &request).await;
    assert_eq!(answer, first);
    site.is_left(&coin, "3").await;
}

#[tokio::test]
async fn a_coin_has_one_denomination_and_one_age() {
    let site = Site::start().await;
    let reserve = site.reserve("30").await;
    let contract = Contract::new(&site);
    // One key signed by two denominations.
    let secret = PlanchetMasterSecret::generate();
    let mut coins = Vec::new();
    for value in [RSA_8, RSA_1] {
        let planchet = site.planchet_of(&site.denom(value), &secret, None).await;
        coins.push(site.withdraw(&reserve, &planchet).await);
    }
    assert_eq!(coins[0].coin_pub, coins[1].coin_pub);
    site.pay(&contract, &coins[0], "1").await;
    for request in [contract.deposit(&coins[1], "1"), contract.next().deposit(&coins[1], "0.5")] {
        let reply = site.post(&coins[1].path("deposit"), &request).await;
        let (_, left) = proof::coin_conflict(&site, &reply, (409, 1003), coins[0].coin_pub, &coins[0].denom);
        assert_eq!(left, m("7"));
    }
    let batch = contract.next().batch(&[(&site.coin(CS_5).await, "1"), (&coins[1], "0.5")]);
    let reply = site.post("batch-deposit", &batch).await;
    proof::coin_conflict(&site, &reply, (409, 1003), coins[0].coin_pub, &coins[0].denom);
    let melt = site.plan_refresh(&coins[1], &[site.denom(CS_FREE)], "0.6").await;
    let reply = site.post(&coins[1].path("melt"), &melt.melt()).await;
    proof::coin_conflict(&site, &reply, (409, 1003), coins[0].coin_pub, &coins[0].denom);

    // One key with two age commitments, and with none.
    let denom = site.denom(RSA_AGE_4);
    let mask = AgeMask::new(denom.terms.denom_pub.age_mask).unwrap();
    let secret = PlanchetMasterSecret::generate();
    let mut coins = Vec::new();
    for age in [Some(8), Some(21), None] {
        let age = age.map(|age| AgeCommitmentProof::generate(mask, age));
        let planchet = site.planchet_of(&denom, &secret, age).await;
        coins.push(site.withdraw(&reserve, &planchet).await);
    }
    site.pay(&contract, &coins[0], "1").await;
    for other in &coins[1..] {
        let reply = site.post(&other.path("deposit"), &contract.next().deposit(other, "1")).await;
        proof::coin_conflict(&site, &reply, (409, 1015), coins[0].coin_pub, &denom);
        let melt = site.plan_refresh(other, &[site.denom(CS_FREE)], "0.6").await;
        let reply = site.post(&other.path("melt"), &melt.melt()).await;
        proof::coin_conflict(&site, &reply, (409, 1015), coins[0].coin_pub, &denom);
    }
}

#[tokio::test]
async fn the_hash_of_the_merchant_account_is_checked() {
    let site = Site::start().await;
    let coin = site.coin(RSA_8).await;
    for wrong in [
        "",
        "payto:/x-taler-bank/localhost/1",
        "payto://x-taler-bank",
        "https://x-taler-bank/localhost/1",
        "payto://x-taler-bank/localhost/a b?receiver-name=A",
        "payto://x-taler-bank/localhost/a%zz?receiver-name=A",
        "payto://x-taler-bank/localhost/\u{e4}?receiver-name=A",
        "payto://x-taler-bank/localhost/a\0b?receiver-name=A",
        "payto://iban/DE00123456789?receiver-name=A",
        "payto://iban/DE75512108001245126199",
    ] {
        let contract = Contract { payto_uri: wrong.into(), ..Contract::new(&site) };
        let reply = site.refused(&coin.path("deposit"), &contract.deposit(&coin, "1"), 400, 26).await;
        assert!(detail(&reply).contains("payto"), "{}", text(&reply));
        site.refused("batch-deposit", &contract.batch(&[(&coin, "1")]), 400, 26).await;
    }
    for right in [
        "payto://iban/DE75512108001245126199?receiver-name=A",
        "PAYTO://x-taler-bank/localhost/1?receiver-name=A%20B",
        "payto://unheard-of/somewhere?receiver-name=A",
    ] {
        let contract = Contract { payto_uri: right.into(), ..Contract::new(&site) };
        site.pay(&contract, &coin, "1").await;
    }
}

/// A flawed deposit, sent alone and as the second coin of a batch.
struct Wrong<'a> {
    site: &'a Site,
    contract: &'a Contract,
    coin: &'a Coin,
    good: &'a Coin,
}

impl Wrong<'_> {
    async fn is_refused(&self, edit: impl Fn(&mut serde_json::Value), status: u16, code: u32) {
        for reply in self.replies(edit).await {
            is_error(&reply, status, code);
        }
    }

    async fn replies(&self, edit: impl Fn(&mut serde_json::Value)) -> [batzen_http::client::Reply; 2] {
        let request = edited(&self.contract.deposit(self.coin, "1"), &edit);
        let single = self.site.post(&self.coin.path("deposit"), &request).await;
        let batch = self.contract.batch(&[(self.good, "1"), (self.coin, "1")]);
        // An edited member belongs either to the coin or to the batch.
        let batch = edited(&batch, |batch| {
            let mut whole = json!({});
            for part in [batch["coins"][1].clone(), batch.clone()] {
                for (name, value) in part.as_object().unwrap() {
                    whole[name] = value.clone();
                }
            }
            whole.as_object_mut().unwrap().remove("coins");
            edit(&mut whole);
            for (name, value) in whole.as_object().unwrap() {
                let is_common = batch.get(name).is_some() || name == "policy";
                let place = if is_common { &mut *batch } else { &mut batch["coins"][1] };
                place[name] = value.clone();
            }
        });
        [single, self.site.post("batch-deposit", &batch).await]
    }
}

#[tokio::test]
async fn invalid_requests_are_refused() {
    let site = Site::start().await;
    let (coin, good) = (site.coin(RSA_8).await, site.coin(CS_5).await);
    let contract = Contract::new(&site);
    let wrong = Wrong { site: &site, contract: &contract, coin: &coin, good: &good };
    let early = contract.refund_deadline.unwrap().saturating_sub(Duration::from_secs(1));
    wrong.is_refused(|body| body["wire_transfer_deadline"] = json!(early), 400, 1208).await;
    wrong.is_refused(|body| body["refund_deadline"] = json!({ "t_s": "never" }), 400, 1208).await;
    wrong.is_refused(|body| body["wire_transfer_deadline"] = json!({ "t_s": "never" }), 400, 1209).await;
    let unknown = HashCode::random();
    for reply in wrong.replies(|body| body["denom_pub_hash"] = json!(unknown)).await {
        proof::denom_unknown(&site, &reply, 1005, &unknown);
    }
    wrong.is_refused(|body| body["contribution"] = json!("TESTKUDOS:8.00000001"), 400, 1021).await;
    wrong.is_refused(|body| body["denom_pub_hash"] = json!(good.denom.h), 400, 1017).await;
    // Invalid signatures: of another denomination, of another coin, truncated, empty.
    let other = site.coin(RSA_8).await;
    let DenomSignature::Rsa(bytes) = &coin.denom_sig else { panic!() };
    for signature in [
        other.denom_sig.clone(),
        DenomSignature::Rsa(bytes[..127].to_vec()),
        DenomSignature::Rsa(vec![]),
        DenomSignature::Rsa(vec![0xff; 128]),
        DenomSignature::Rsa(vec![1; 5_000]),
    ] {
        wrong.is_refused(|body| body["ub_sig"] = json!(signature), 403, 1006).await;
    }
    wrong.is_refused(|body| body["denom_pub_hash"] = json!(site.denom(RSA_1).h), 403, 1006).await;
    wrong.is_refused(|body| body["h_age_commitment"] = json!(ShortHash::random()), 403, 1006).await;
    wrong.is_refused(|body| body["contribution"] = json!("TESTKUDOS:0.01"), 400, 1207).await;
    wrong.is_refused(|body| body["policy"] = json!({ "type": "escrow" }), 400, 1107).await;
    for member in ["merchant_pub", "h_contract_terms"] {
        let random = HashCode::random();
        let value = match member {
            "merchant_pub" => json!(other.coin_pub),
            _ => json!(random),
        };
        wrong.is_refused(|body| body[member] = value.clone(), 403, 1205).await;
    }
    wrong.is_refused(|body| body["contribution"] = json!("TESTKUDOS:1.01"), 403, 1205).await;
    wrong.is_refused(|body| body["timestamp"] = json!({ "t_s": 1 }), 403, 1205).await;
    wrong.is_refused(|body| body["wire_salt"] = json!(WireSalt::random()), 403, 1205).await;
    let [_, reply] =
        wrong.replies(|body| body["coin_sig"] = json!(EddsaSignature::from_bytes([3; 64]))).await;
    is_error(&reply, 403, 1205);
    assert_eq!(
        detail(&reply),
        if reply.url.ends_with("batch-deposit") { coin.coin_pub.to_string() } else { String::new() }
    );

    let request = contract.deposit(&coin, "1");
    site.refused("coins/ABC/deposit", &request, 400, 1004).await;
    // Another coin in the path: neither its denomination nor its owner signed this request.
    site.refused(&good.path("deposit"), &request, 403, 1006).await;
    for key in [[2; 32], [0; 32], [0xff; 32], [1; 32]] {
        let key = batzen_crypto::EddsaPublicKey::from_bytes(key);
        site.refused(&format!("coins/{key}/deposit"), &request, 403, 1006).await;
    }
    // None of the coins was charged.
    for (coin, value) in [(&coin, RSA_8), (&good, CS_5), (&other, RSA_8)] {
        site.is_left(coin, value).await;
    }
}

#[tokio::test]
async fn age_restricted_coins_need_their_age_commitment() {
    let site = Site::start().await;
    for value in [RSA_AGE_4, CS_AGE_2] {
        let coin = site.coin(value).await;
        let contract = Contract::new(&site);
        let path = coin.path("deposit");
        let request = contract.deposit(&coin, "1");
        let without = DepositRequest { h_age_commitment: None, ..request.clone() };
        site.refused(&path, &without, 403, 1006).await;
        let other = DepositRequest { h_age_commitment: Some(ShortHash::random()), ..request };
        site.refused(&path, &other, 403, 1006).await;
        site.pay(&contract, &coin, "1").await;
        // The history that proves the refusal includes the commitment, because the signature covers it.
        let reply = site.post(&path, &contract.next().deposit(&coin, value)).await;
        let (history, _) = proof::coin_conflict(&site, &reply, (409, 1012), coin.coin_pub, &coin.denom);
        assert!(
            matches!(&history[..], [CoinHistoryItem::Deposit(item)] if item.h_age_commitment == coin.h_age())
        );
    }
}

#[tokio::test]
async fn after_expiration_only_repeated_deposits_are_confirmed() {
    let mut site = Site::start().await;
    let (rsa, cs, unused) = (site.coin(RSA_8).await, site.coin(CS_5).await, site.coin(CS_5).await);
    let contract = Contract::new(&site);
    let first = site.pay(&contract, &rsa, "3").await;
    let coins = [(&rsa, "1"), (&cs, "2")];
    let (batch, again) = (contract.next(), contract.next());
    let request = batch.batch(&coins);
    let answer: BatchDepositConfirmation = site.ok("batch-deposit", &request).await;
    batch.batch_confirmed(&site, &coins, &answer);

    let future = site.future_denom(RSA_8).await;
    let early = with(&again.deposit(&rsa, "1"), "denom_pub_hash", json!(future.h));
    let reply = site.post(&rsa.path("deposit"), &early).await;
    proof::denom_unusable(&site, &reply, 1008, "DEPOSIT", &future.h);
    // The coins can no longer be withdrawn, but they can be spent.
    site.advance(Duration::from_days(30)).await;
    site.pay(&contract.next(), &rsa, "1").await;

    site.advance(Duration::from_days(1)).await;
    for coin in [&rsa, &unused] {
        let reply = site.post(&coin.path("deposit"), &again.deposit(coin, "1")).await;
        proof::denom_unusable(&site, &reply, 1009, "DEPOSIT", &coin.denom.h);
    }
    let reply = site.post("batch-deposit", &again.batch(&[(&cs, "1"), (&rsa, "1")])).await;
    proof::denom_unusable(&site, &reply, 1009, "DEPOSIT", &cs.denom.h);
    assert_eq!(site.pay(&contract, &rsa, "3").await, first);
    assert_eq!(site.ok::<BatchDepositConfirmation>("batch-deposit", &request).await, answer);
    // A batch with a new coin is not a repetition, and other data gets no confirmation.
    let more = batch.batch(&[(&rsa, "1"), (&cs, "2"), (&unused, "1")]);
    let reply = site.post("batch-deposit", &more).await;
    proof::denom_unusable(&site, &reply, 1009, "DEPOSIT", &rsa.denom.h);
    let reply = site.post(&rsa.path("deposit"), &contract.deposit(&rsa, "3.5")).await;
    proof::denom_unusable(&site, &reply, 1009, "DEPOSIT", &rsa.denom.h);
    let stolen = with(&contract.deposit(&rsa, "3"), "wire_salt", json!(WireSalt::random()));
    site.refused(&rsa.path("deposit"), &stolen, 403, 1205).await;
}

#[tokio::test]
async fn after_revocation_only_repeated_deposits_are_confirmed() {
    let mut site = Site::start().await;
    let (rsa, cs) = (site.coin(RSA_8).await, site.coin(CS_5).await);
    let contract = Contract::new(&site);
    let first = site.pay(&contract, &cs, "3").await;
    let batch = contract.next();
    let answer: BatchDepositConfirmation =
        site.ok("batch-deposit", &batch.batch(&[(&rsa, "1"), (&cs, "1")])).await;
    site.revoke(&cs.denom).await;
    let again = contract.next();
    let reply = site.post(&cs.path("deposit"), &again.deposit(&cs, "1")).await;
    proof::denom_unusable(&site, &reply, 1010, "DEPOSIT", &cs.denom.h);
    let reply = site.post("batch-deposit", &again.batch(&[(&rsa, "1"), (&cs, "1")])).await;
    proof::denom_unusable(&site, &reply, 1010, "DEPOSIT", &cs.denom.h);
    assert_eq!(site.pay(&contract, &cs, "3").await, first);
    let again = batch.batch(&[(&rsa, "1"), (&cs, "1")]);
    assert_eq!(site.ok::<BatchDepositConfirmation>("batch-deposit", &again).await, answer);
    site.is_left(&rsa, "7").await;
}

#[tokio::test]
async fn a_batch_deposit_is_all_or_nothing() {
    let site = Site::start().await;
    let mut coins = Vec::new();
    for value in [RSA_8, CS_5, CS_FREE, RSA_AGE_4, CS_AGE_2] {
        coins.push(site.coin(value).await);
    }
    let contract = Contract::new(&site);
    let parts: Vec<(&Coin, &str)> = coins.iter().zip(["8", "1", "0.5", "2", "2"]).collect();
    // First three coins, then all five: the timestamp stays that of the first request.
    let answer: BatchDepositConfirmation = site.ok("batch-deposit", &contract.batch(&parts[..3])).await;
    contract.batch_confirmed(&site, &parts[..3], &answer);
    let first = answer.exchange_timestamp;
    site.clock.advance(Duration::from_secs(10));
    let answer: BatchDepositConfirmation = site.ok("batch-deposit", &contract.batch(&parts)).await;
    contract.batch_confirmed(&site, &parts, &answer);
    assert_eq!(answer.exchange_timestamp, first);
    // A single deposit of one of them has it as well.
    assert_eq!(site.pay(&contract, &coins[4], "2").await.exchange_timestamp, first);
    site.is_left(&coins[1], "4").await;

    // All or nothing: the answer names the first coin that cannot pay, and the others keep their money.
    let (a, b) = (site.coin(RSA_8).await, site.coin(CS_5).await);
    let contract = contract.next();
    let reply = site.post("batch-deposit", &contract.batch(&[(&a, "1"), (&coins[0], "1"), (&b, "1")])).await;
    proof::overspent(&site, &reply, coins[0].coin_pub, &coins[0].denom, "1");
    let reply =
        site.post("batch-deposit", &contract.batch(&[(&coins[2], "0.5"), (&a, "1"), (&coins[0], "1")])).await;
    proof::overspent(&site, &reply, coins[2].coin_pub, &coins[2].denom, "0.5");
    site.pay(&contract, &b, "2").await;
    let reply = site.post("batch-deposit", &contract.batch(&[(&a, "1"), (&b, "1")])).await;
    proof::coin_conflict(&site, &reply, (409, 1206), b.coin_pub, &b.denom);
    site.is_left(&a, "8").await;
    site.is_left(&b, "3").await;

    // One coin twice: identical entries count once, different entries contradict each other.
    let (c, contract) = (site.coin(RSA_8).await, contract.next());
    let twice = [(&c, "3"), (&c, "3")];
    let answer: BatchDepositConfirmation = site.ok("batch-deposit", &contract.batch(&twice)).await;
    contract.batch_confirmed(&site, &twice, &answer);
    site.refused("batch-deposit", &contract.next().batch(&[(&c, "1"), (&c, "2")]), 400, 26).await;
    site.is_left(&c, "5").await;

    let empty = contract.batch(&[]);
    assert_eq!(detail(&site.refused("batch-deposit", &empty, 400, 26).await), "coins");
    let many = contract.batch(&vec![(&c, "0.1"); 257]);
    assert_eq!(detail(&site.refused("batch-deposit", &many, 400, 26).await), "coins");
    let wrong = with(&empty, "coins", json!("all"));
    let reply = site.refused("batch-deposit", &wrong, 400, 22).await;
    assert_eq!(reply.json::<serde_json::Value>().unwrap()["field"], "coins");
}

#[tokio::test]
async fn an_unblinded_key_cannot_forge_coins() {
    let site = Site::start().await;
    // A coin that was blinded for one denomination and is presented for another of the same cipher.
    let coin = site.coin(CS_5).await;
    let contract = Contract::new(&site);
    let wrong = with(&contract.deposit(&coin, "0.5"), "denom_pub_hash", json!(site.denom(CS_FREE).h));
    site.refused(&coin.path("deposit"), &wrong, 403, 1006).await;
    // A self-made coin.
    let secrets = CoinSecrets::from_master(&PlanchetMasterSecret::generate(), &ExchangeWithdrawValues::Rsa);
    let forged = Coin { coin_pub: secrets.coin_pub(), secrets, ..coin };
    site.refused(&forged.path("deposit"), &contract.deposit(&forged, "1"), 403, 1006).await;
}
