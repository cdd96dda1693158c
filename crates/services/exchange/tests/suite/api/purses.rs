//! `/purses/…`, `/contracts/…` and `/reserves/…/purse|open|close`, as payer and receiver see them.

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, HashCode, ShortHash, hash};
use batzen_exchange::workers::{closer, expire};
use batzen_http::client::Reply;
use batzen_protocol::api::exchange::{
    ContractResponse, EncryptedContract, PurseCoin, PurseConfirmation, PurseCreateRequest,
    PurseDepositConfirmation, PurseDepositRequest, PurseMergeConfirmation, PurseMergeRequest, PurseStatus,
    ReserveCloseRequest, ReserveCloseResponse, ReserveOpenRequest, ReserveOpenResponse, ReservePurseRequest,
};
use batzen_protocol::payto::PaytoUri;
use batzen_protocol::signatures::{
    ExchangeConfirmPurseCreation, ExchangeConfirmPurseMerged, ExchangePurseStatus, SignedMessage,
    WalletAccountMerge, WalletPurseCreate, WalletPurseDelete, WalletPurseDeposit, WalletPurseEcontract,
    WalletPurseMerge, WalletReserveClose, WalletReserveOpen,
};
use batzen_protocol::{Duration, Timestamp, hash_text};
use batzen_tables::exchange::KycOperation;
use serde_json::Value;

use crate::api::kyc::{self, Required};
use crate::api::wallet::*;
use crate::api::world::*;

/// A payment between two people.
struct Payment {
    purse: EddsaPrivateKey,
    merge: EddsaPrivateKey,
    h_contract_terms: HashCode,
    target: &'static str,
    min_age: u32,
    expiration: Timestamp,
}

impl Payment {
    fn of(site: &Site, target: &'static str) -> Self {
        Self {
            purse: EddsaPrivateKey::generate(),
            merge: EddsaPrivateKey::generate(),
            h_contract_terms: hash::sha512(b"terms"),
            target,
            min_age: 0,
            expiration: site.now().saturating_add(Duration::from_days(2)),
        }
    }

    fn path(&self, operation: &str) -> String {
        format!("purses/{}/{operation}", self.purse.public_key())
    }

    fn coin(&self, site: &Site, coin: &Coin, contribution: &str) -> PurseCoin {
        let h_age = coin.h_age();
        let message = WalletPurseDeposit {
            coin_amount: amount(contribution),
            h_denom_pub: coin.denom.h,
            h_age_commitment: h_age.unwrap_or(NO_AGE),
            purse_pub: self.purse.public_key(),
            h_exchange_base_url: hash_text(&site.url("")),
        };
        let age = coin.age.as_ref();
        PurseCoin {
            amount: amount(contribution),
            denom_pub_hash: coin.denom.h,
            ub_sig: coin.denom_sig.clone(),
            coin_pub: coin.coin_pub,
            coin_sig: message.sign(&coin.secrets.coin_priv),
            age_commitment: age.map(|age| age.commitment().keys().to_vec()),
            attest: age
                .filter(|_| self.min_age > 0)
                .and_then(|age| age.attest(u8::try_from(self.min_age).unwrap()).ok()),
        }
    }

    fn purse_sig(&self) -> batzen_crypto::EddsaSignature {
        let message = WalletPurseCreate {
            purse_expiration: self.expiration,
            purse_amount: amount(self.target),
            h_contract_terms: self.h_contract_terms,
            merge_pub: self.merge.public_key(),
            min_age: self.min_age,
        };
        message.sign(&self.purse)
    }

    fn create(&self, deposits: Vec<PurseCoin>) -> PurseCreateRequest {
        let econtract = vec![7; 100];
        let contract_pub = EddsaPublicKey::from_bytes([9; 32]);
        let message = WalletPurseEcontract { h_econtract: hash::sha512(&econtract), contract_pub };
        PurseCreateRequest {
            amount: amount(self.target),
            min_age: self.min_age,
            merge_pub: self.merge.public_key(),
            purse_sig: self.purse_sig(),
            h_contract_terms: self.h_contract_terms,
            purse_expiration: self.expiration,
            deposits,
            econtract: Some(EncryptedContract {
                econtract: econtract.into(),
                econtract_sig: message.sign(&self.purse),
                contract_pub,
            }),
        }
    }

    fn merge_sigs(
        &self,
        site: &Site,
        reserve: &EddsaPrivateKey,
        flags: u32,
    ) -> (PaytoUri, batzen_crypto::EddsaSignature, batzen_crypto::EddsaSignature) {
        let payto = PaytoUri::reserve(&site.url(""), &reserve.public_key()).unwrap();
        let purse_pub = self.purse.public_key();
        let merge = WalletPurseMerge { merge_timestamp: site.now(), purse_pub, h_payto: payto.hash() };
        let account = WalletAccountMerge {
            purse_expiration: self.expiration,
            purse_amount: amount(self.target),
            purse_fee: amount("0"),
            h_contract_terms: self.h_contract_terms,
            purse_pub,
            merge_timestamp: site.now(),
            min_age: self.min_age,
            flags,
        };
        (payto, merge.sign(&self.merge), account.sign(reserve))
    }

    fn merge(&self, site: &Site, reserve: &EddsaPrivateKey) -> PurseMergeRequest {
        let (payto, merge_sig, reserve_sig) = self.merge_sigs(site, reserve, 1);
        PurseMergeRequest {
            payto_uri: payto.into_string(),
            merge_sig,
            reserve_sig,
            merge_timestamp: site.now(),
        }
    }

    fn ask(&self, site: &Site, reserve: &EddsaPrivateKey) -> ReservePurseRequest {
        let (_, merge_sig, reserve_sig) = self.merge_sigs(site, reserve, 3);
        ReservePurseRequest {
            purse_value: amount(self.target),
            min_age: self.min_age,
            purse_fee: Some(amount("0")),
            merge_pub: self.merge.public_key(),
            merge_sig,
            reserve_sig,
            purse_pub: self.purse.public_key(),
            purse_sig: self.purse_sig(),
            h_contract_terms: self.h_contract_terms,
            merge_timestamp: site.now(),
            purse_expiration: self.expiration,
            econtract: None,
        }
    }

    async fn delete(&self, site: &Site) -> Reply {
        let signature = WalletPurseDelete {}.sign(&self.purse).to_string();
        let url = site.url(&format!("purses/{}", self.purse.public_key()));
        let call = site.client.call(batzen_http::client::Method::DELETE, url);
        call.header("taler-purse-signature", &signature).send().await.unwrap()
    }

    fn is_confirmed(&self, site: &Site, confirmation: &PurseConfirmation, total: &str) {
        assert_eq!(confirmation.total_deposited, amount(total));
        let message = ExchangeConfirmPurseCreation {
            exchange_time: confirmation.exchange_timestamp,
            purse_expiration: self.expiration,
            amount_without_fee: amount(self.target),
            total_deposited: amount(total),
            purse_pub: self.purse.public_key(),
            h_contract_terms: self.h_contract_terms,
        };
        assert!(site.is_online_key(&confirmation.exchange_pub));
        assert!(message.verify(&confirmation.exchange_pub, &confirmation.exchange_sig));
    }

    async fn status(&self, site: &Site, target: &str) -> PurseStatus {
        let status: PurseStatus = site.get(&self.path(target)).await.ok().unwrap();
        let message = ExchangePurseStatus {
            merge_timestamp: status.merge_timestamp.unwrap_or(Timestamp::ZERO),
            deposit_timestamp: status.deposit_timestamp.unwrap_or(Timestamp::ZERO),
            balance: status.balance,
        };
        assert!(message.verify(&status.exchange_pub, &status.exchange_sig));
        status
    }
}

#[tokio::test]
async fn money_is_sent_with_a_purse() {
    let site = Site::start().await;
    let (eight, five) = (site.coin(RSA_8).await, site.coin(CS_5).await);
    let payment = Payment::of(&site, "9");
    let request = payment.create(vec![payment.coin(&site, &eight, "8"), payment.coin(&site, &five, "1.04")]);
    for _ in 0..2 {
        let created: PurseConfirmation = site.ok(&payment.path("create"), &request).await;
        payment.is_confirmed(&site, &created, "9");
    }
    let contract: ContractResponse =
        site.get(&format!("contracts/{}", EddsaPublicKey::from_bytes([9; 32]))).await.ok().unwrap();
    assert_eq!((contract.purse_pub, contract.econtract.0), (payment.purse.public_key(), vec![7; 100]));
    let status = payment.status(&site, "merge").await;
    assert_eq!((status.merge_timestamp, status.balance), (Some(Timestamp::NEVER), amount("9")));

    let (reserve, other) = (EddsaPrivateKey::generate(), EddsaPrivateKey::generate());
    let waiting = site.client.get(site.url(&payment.path("merge?timeout_ms=60000"))).send();
    let merging = async {
        for _ in 0..2 {
            let path = payment.path("merge");
            let merged: PurseMergeConfirmation = site.ok(&path, &payment.merge(&site, &reserve)).await;
            let message = ExchangeConfirmPurseMerged {
                exchange_time: merged.exchange_timestamp,
                purse_expiration: payment.expiration,
                amount_without_fee: amount("9"),
                purse_pub: payment.purse.public_key(),
                reserve_pub: reserve.public_key(),
                h_contract_terms: payment.h_contract_terms,
                h_provider_url: hash_text(&site.url("")),
            };
            assert!(message.verify(&merged.exchange_pub, &merged.exchange_sig));
        }
    };
    let (woken, ()) = tokio::join!(waiting, merging);
    let status: PurseStatus = woken.unwrap().ok().unwrap();
    assert_eq!(status.merge_timestamp, Some(site.now()));
    let taken = site.refused(&payment.path("merge"), &payment.merge(&site, &other), 409, 1676).await;
    let taken: Value = taken.json().unwrap();
    assert_eq!(taken["reserve_pub"], reserve.public_key().to_string());
    assert_eq!(taken.get("partner_url"), None);
    is_error(&payment.delete(&site).await, 409, 1679);
    assert_eq!(site.balance(&reserve.public_key()).await, m("9"));
    let planchet = site.planchet(&site.denom(RSA_8)).await;
    site.withdraw(&reserve, &planchet).await;
    // What is left of the second coin can be spent, and no more.
    site.is_left(&five, "3.96").await;
}

#[tokio::test]
async fn money_is_asked_for_with_a_purse() {
    let site = Site::start().await;
    let coin = site.coin(RSA_8).await;
    let payment = Payment::of(&site, "5");
    let reserve = EddsaPrivateKey::generate();
    let path = at_reserve(&reserve, "purse");
    for _ in 0..2 {
        let created: PurseConfirmation = site.ok(&path, &payment.ask(&site, &reserve)).await;
        payment.is_confirmed(&site, &created, "0");
    }
    assert_eq!(site.balance(&reserve.public_key()).await, m("0"));
    let request =
        |contribution| PurseDepositRequest { deposits: vec![payment.coin(&site, &coin, contribution)] };
    for _ in 0..2 {
        let paid: PurseDepositConfirmation = site.ok(&payment.path("deposit"), &request("5.02")).await;
        assert_eq!((paid.total_deposited, paid.purse_value_after_fees), (amount("5"), amount("5")));
    }
    site.refused(&payment.path("deposit"), &request("5.03"), 409, 1858).await;
    assert_eq!(site.balance(&reserve.public_key()).await, m("5"));
    assert!(payment.status(&site, "deposit").await.deposit_timestamp.is_some());
    site.is_left(&coin, "2.98").await;
}

#[tokio::test]
async fn what_is_in_deleted_and_expired_purses_can_be_spent_again() {
    let mut site = Site::start().await;
    let (first, second) = (site.coin(RSA_8).await, site.coin(CS_5).await);
    let deleted = Payment::of(&site, "7");
    let expired = Payment::of(&site, "4");
    for (payment, coin, contribution) in [(&deleted, &first, "7.02"), (&expired, &second, "4.02")] {
        let request = payment.create(vec![payment.coin(&site, coin, contribution)]);
        let _: PurseConfirmation = site.ok(&payment.path("create"), &request).await;
    }
    assert_eq!(deleted.delete(&site).await.status, 204);
    is_error(&deleted.delete(&site).await, 409, 1679);
    is_error(&site.get(&deleted.path("merge")).await, 410, 1031);
    site.is_left(&first, "8").await;

    site.advance(Duration::from_days(2)).await;
    is_error(&site.get(&expired.path("deposit")).await, 410, 1026);
    let reserve = EddsaPrivateKey::generate();
    site.refused(&expired.path("merge"), &expired.merge(&site, &reserve), 410, 1026).await;
    assert_eq!(expire::run_until_idle(&site.app().core).await.unwrap().done, 1);
    assert_eq!(expire::run_until_idle(&site.app().core).await.unwrap().done, 0);
    site.is_left(&second, "5").await;
}

#[tokio::test]
async fn a_purse_for_adults_takes_only_coins_that_prove_the_age() {
    let site = Site::start().await;
    // Coins of age-restricted denominations have a commitment to 14 years.
    let young = site.coin(RSA_AGE_4).await;
    let plain = site.coin(RSA_8).await;
    for (min_age, status) in [(14, 200), (16, 400)] {
        let payment = Payment { min_age, ..Payment::of(&site, "1") };
        let request = payment.create(vec![payment.coin(&site, &young, "1.02")]);
        let reply = site.post(&payment.path("create"), &request).await;
        assert_eq!(reply.status, status, "{}", text(&reply));
        if status == 400 {
            // It cannot attest, and inventing an attestation does not help.
            is_error(&reply, 400, 1029);
            let mut forged = payment.coin(&site, &young, "1.02");
            forged.attest = Some(young.age.as_ref().unwrap().attest(14).unwrap());
            let request = payment.create(vec![forged]);
            site.refused(&payment.path("create"), &request, 400, 1030).await;
            let request = payment.create(vec![payment.coin(&site, &plain, "1.02")]);
            let _: PurseConfirmation = site.ok(&payment.path("create"), &request).await;
        }
    }
}

/// A client that got no answer repeats its request, however late: the exchange has the money.
#[tokio::test]
async fn a_purse_is_confirmed_again_after_its_expiration() {
    let site = Site::start().await;
    let coin = site.coin(RSA_8).await;
    let payment = Payment::of(&site, "5");
    let request = payment.create(vec![payment.coin(&site, &coin, "5.02")]);
    let created: PurseConfirmation = site.ok(&payment.path("create"), &request).await;
    site.clock.advance(Duration::from_days(3));
    let again: PurseConfirmation = site.ok(&payment.path("create"), &request).await;
    assert_eq!(again.total_deposited, created.total_deposited);
}

#[tokio::test]
async fn invalid_requests_for_purses_are_refused() {
    let site = Site::start().await;
    let coin = site.coin(RSA_8).await;
    let payment = Payment::of(&site, "5");
    let request = payment.create(vec![payment.coin(&site, &coin, "5.02")]);
    let path = payment.path("create");
    let change = |edit: fn(&mut PurseCreateRequest)| {
        let mut request = request.clone();
        edit(&mut request);
        request
    };
    for (request, status, code) in [
        (change(|request| request.purse_expiration = Timestamp::NEVER), 400, 1854),
        (change(|request| request.deposits.clear()), 400, 26),
        (change(|request| request.deposits[0].amount = amount("8.01")), 400, 1021),
        (change(|request| request.deposits[0].amount = amount("0.01")), 400, 1207),
        (change(|request| request.deposits[0].amount = amount("5")), 403, 1975),
        (change(|request| request.amount = amount("4")), 403, 1855),
        (change(|request| request.econtract.as_mut().unwrap().econtract = vec![1].into()), 403, 1856),
    ] {
        site.refused(&path, &request, status, code).await;
    }
    let late = Payment { expiration: Timestamp::from_secs(1), ..Payment::of(&site, "5") };
    let create = late.create(vec![late.coin(&site, &coin, "5.02")]);
    site.refused(&late.path("create"), &create, 400, 1853).await;
    let unknown = Payment::of(&site, "5");
    is_error(&site.get(&unknown.path("merge")).await, 404, 1025);
    is_error(&site.get(&unknown.path("other")).await, 400, 1475);
    is_error(&site.get("purses/x/merge").await, 400, 1024);
    is_error(&site.get("contracts/x").await, 400, 1951);
    is_error(&unknown.delete(&site).await, 404, 1025);
    let reserve = EddsaPrivateKey::generate();
    site.refused(&unknown.path("merge"), &unknown.merge(&site, &reserve), 404, 1025).await;
    let _: PurseConfirmation = site.ok(&path, &request).await;
    let mut elsewhere = payment.merge(&site, &reserve);
    elsewhere.payto_uri = "payto://iban/DE1".into();
    site.refused(&payment.path("merge"), &elsewhere, 400, 26).await;
    let mut forged = payment.merge(&site, &reserve);
    forged.reserve_sig = forged.merge_sig;
    site.refused(&payment.path("merge"), &forged, 403, 1877).await;
}

#[tokio::test]
async fn a_purse_for_nothing_can_be_merged_again() {
    let site = Site::start().await;
    let payment = Payment::of(&site, "0");
    let reserve = EddsaPrivateKey::generate();
    let _: PurseConfirmation = site.ok(&at_reserve(&reserve, "purse"), &payment.ask(&site, &reserve)).await;
    let other = EddsaPrivateKey::generate();
    let taken = site.refused(&at_reserve(&other, "purse"), &payment.ask(&site, &other), 409, 1676).await;
    let taken: Value = taken.json().unwrap();
    assert_eq!(taken["reserve_pub"], reserve.public_key().to_string());
    assert_eq!(taken["partner_url"], site.url(""));
    for _ in 0..2 {
        let merge = payment.merge(&site, &reserve);
        let merged: PurseMergeConfirmation = site.ok(&payment.path("merge"), &merge).await;
        assert_eq!(merged.merge_amount, amount("0"));
    }
    assert_eq!(site.balance(&reserve.public_key()).await, m("0"));
}

#[tokio::test]
async fn a_merge_has_a_time() {
    let site = Site::start().await;
    let coin = site.coin(RSA_8).await;
    let payment = Payment::of(&site, "5");
    let create = payment.create(vec![payment.coin(&site, &coin, "5.02")]);
    let _: PurseConfirmation = site.ok(&payment.path("create"), &create).await;
    let reserve = EddsaPrivateKey::generate();
    let never = PurseMergeRequest { merge_timestamp: Timestamp::NEVER, ..payment.merge(&site, &reserve) };
    site.refused(&payment.path("merge"), &never, 400, 26).await;
    let pull = Payment::of(&site, "5");
    let never = ReservePurseRequest { merge_timestamp: Timestamp::NEVER, ..pull.ask(&site, &reserve) };
    site.refused(&at_reserve(&reserve, "purse"), &never, 400, 26).await;
}

#[tokio::test]
async fn purses_have_limits() {
    let site = Site::start().await;
    let coin = site.coin(RSA_8).await;
    let payment = Payment::of(&site, "5");
    let one = payment.coin(&site, &coin, "5.02");
    let path = payment.path("create");
    let many = payment.create(vec![one.clone(); 257]);
    site.refused(&path, &many, 400, 26).await;
    let mut large = payment.create(vec![one.clone()]);
    large.econtract.as_mut().unwrap().econtract = vec![7; 4_097].into();
    site.refused(&path, &large, 400, 26).await;
    // The same coin twice with different contributions contradicts itself.
    let twice = payment.create(vec![one, payment.coin(&site, &coin, "1")]);
    site.refused(&path, &twice, 400, 26).await;
    let reserve = site.reserve("1").await;
    let message = WalletReserveOpen {
        reserve_payment: amount("1"),
        request_timestamp: site.now(),
        reserve_expiration: site.now(),
        purse_limit: u32::MAX,
    };
    let open = ReserveOpenRequest {
        request_timestamp: site.now(),
        reserve_expiration: site.now(),
        purse_limit: u32::MAX,
        reserve_payment: amount("1"),
        payments: Vec::new(),
        reserve_sig: message.sign(&reserve),
    };
    site.refused(&at_reserve(&reserve, "open"), &open, 400, 26).await;
    // A purse, which may be free, does not stay for decades.
    let mut late = Payment::of(&site, "5");
    late.expiration = site.now().saturating_add(Duration::from_days(367));
    let create = late.create(vec![late.coin(&site, &coin, "5.02")]);
    let refused = site.post(&late.path("create"), &create).await;
    is_error(&refused, 400, 26);
    assert_eq!(detail(&refused), "purse_expiration: at most 366 days ahead");
    site.refused(&at_reserve(&reserve, "purse"), &late.ask(&site, &reserve), 400, 26).await;
    site.is_left(&coin, "8").await;
    late.expiration = site.now().saturating_add(Duration::from_days(366));
    let _: PurseConfirmation = site.ok(&at_reserve(&reserve, "purse"), &late.ask(&site, &reserve)).await;
}

#[tokio::test]
async fn one_of_many_requests_decides_a_purse() {
    let site = Site::start().await;
    for round in 0..8 {
        let coin = site.coin(RSA_8).await;
        let payment = Payment::of(&site, "5");
        let create = payment.create(vec![payment.coin(&site, &coin, "5.02")]);
        let _: PurseConfirmation = site.ok(&payment.path("create"), &create).await;
        let reserves = [EddsaPrivateKey::generate(), EddsaPrivateKey::generate()];
        let merge = async |reserve: &EddsaPrivateKey| {
            site.post(&payment.path("merge"), &payment.merge(&site, reserve)).await.status
        };
        let delete = async || payment.delete(&site).await.status;
        let (first, second, deleted) = if round % 2 == 0 {
            tokio::join!(merge(&reserves[0]), merge(&reserves[1]), delete())
        } else {
            let (deleted, first, second) = tokio::join!(delete(), merge(&reserves[0]), merge(&reserves[1]));
            (first, second, deleted)
        };
        let won = [first == 200, second == 200, deleted == 204];
        assert_eq!(won.iter().filter(|won| **won).count(), 1, "{first} {second} {deleted}");
        site.is_left(&coin, if won[2] { "8" } else { "2.98" }).await;
    }
}

#[tokio::test]
async fn owners_prolong_and_close_their_reserves() {
    let site = Site::with(|config| {
        config.standalone.as_mut().unwrap().fees.account = m("0.5");
    })
    .await;
    let reserve = site.reserve("10").await;
    let wanted = site.now().saturating_add(Duration::from_days(60));
    let open = |payment: &str| {
        let message = WalletReserveOpen {
            reserve_payment: amount(payment),
            request_timestamp: site.now(),
            reserve_expiration: wanted,
            purse_limit: 1,
        };
        ReserveOpenRequest {
            request_timestamp: site.now(),
            reserve_expiration: wanted,
            purse_limit: 1,
            reserve_payment: amount(payment),
            payments: Vec::new(),
            reserve_sig: message.sign(&reserve),
        }
    };
    let path = at_reserve(&reserve, "open");
    let reply = site.post(&path, &open("0.1")).await;
    assert_eq!(reply.status, 402, "{}", text(&reply));
    let opened: ReserveOpenResponse = site.ok(&path, &open("0.5")).await;
    assert_eq!(opened.open_cost, amount("0.5"));
    assert!(opened.reserve_expiration >= wanted);
    site.refused(&path, &with(&open("0.5"), "purse_limit", 3.into()), 403, 1785).await;

    let target_h_payto = ShortHash::from_bytes([0; 32]);
    let message = WalletReserveClose { request_timestamp: site.now(), target_h_payto };
    let request = ReserveCloseRequest {
        request_timestamp: site.now(),
        payto_uri: None,
        reserve_sig: message.sign(&reserve),
    };
    for _ in 0..2 {
        let closed: ReserveCloseResponse = site.ok(&at_reserve(&reserve, "close"), &request).await;
        assert_eq!(closed.wire_amount, amount("9.4"));
    }
    assert_eq!(closer::run_until_idle(&site.app().core).await.unwrap().done, 1);
    assert_eq!(closer::run_until_idle(&site.app().core).await.unwrap().done, 0);
    assert_eq!(site.balance(&reserve.public_key()).await, m("0"));
}

#[tokio::test]
async fn who_receives_much_must_be_identified_first() {
    let limits = [(KycOperation::Merge, "8"), (KycOperation::Close, "1")];
    let (site, _provider) = kyc::site(&limits).await;
    let reserve = EddsaPrivateKey::generate();
    let account = PaytoUri::reserve(&site.url(""), &reserve.public_key()).unwrap().hash();
    let mut coins = Vec::new();
    for value in [RSA_8, CS_5] {
        coins.push(site.coin(value).await);
    }
    // Five are received without questions; three more reach the limit.
    let first = Payment::of(&site, "4.5");
    let deposits = vec![first.coin(&site, &coins[1], "4.52")];
    let _: PurseConfirmation = site.ok(&first.path("create"), &first.create(deposits)).await;
    let _: PurseMergeConfirmation = site.ok(&first.path("merge"), &first.merge(&site, &reserve)).await;
    let second = Payment::of(&site, "3.5");
    let deposits = vec![second.coin(&site, &coins[0], "3.52")];
    let _: PurseConfirmation = site.ok(&second.path("create"), &second.create(deposits)).await;
    let required = Required::of(&site.post(&second.path("merge"), &second.merge(&site, &reserve)).await);
    assert_eq!(required.h_payto, account);
    assert_eq!(site.balance(&reserve.public_key()).await, m("4.5"));
    // The same for asking, by another reserve without the limit.
    let asked = Payment::of(&site, "3.5");
    let asking = at_reserve(&reserve, "purse");
    Required::of(&site.post(&asking, &asked.ask(&site, &reserve)).await);
    let other = EddsaPrivateKey::generate();
    let _: PurseConfirmation = site.ok(&at_reserve(&other, "purse"), &asked.ask(&site, &other)).await;

    kyc::log_in(&site, &kyc::kyc_url(&site, &required).await, "pass").await;
    let _: PurseMergeConfirmation = site.ok(&second.path("merge"), &second.merge(&site, &reserve)).await;
    assert_eq!(site.balance(&reserve.public_key()).await, m("8"));
    // What was merged can be withdrawn.
    let planchet = site.planchet(&site.denom(CS_FREE)).await;
    site.withdraw(&reserve, &planchet).await;

    // Closing to a bank account is limited by that account.
    let payto = PaytoUri::parse(MERCHANT).unwrap();
    let message = WalletReserveClose { request_timestamp: site.now(), target_h_payto: payto.hash() };
    let close = ReserveCloseRequest {
        request_timestamp: site.now(),
        payto_uri: Some(MERCHANT.to_owned()),
        reserve_sig: message.sign(&reserve),
    };
    let closing = at_reserve(&reserve, "close");
    let required = Required::of(&site.post(&closing, &close).await);
    assert_eq!(required.h_payto, payto.hash());
    kyc::log_in(&site, &kyc::kyc_url(&site, &required).await, "pass").await;
    let answer: ReserveCloseResponse = site.ok(&closing, &close).await;
    assert_eq!(answer.wire_amount, amount("7.4"));
}
