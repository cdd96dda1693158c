//! `/deposits/…` and `/transfers/…`.

use batzen_crypto::{HashCode, Wtid};
use batzen_exchange::reads::read;
use batzen_protocol::Duration;
use batzen_protocol::api::exchange::{DepositPending, DepositTransfer, TransferResponse};
use batzen_protocol::denominations::wire_details_hash;
use batzen_protocol::payto::h_payto;
use batzen_protocol::signatures::{
    ExchangeConfirmWire, ExchangeConfirmWireDeposit, MerchantTrackTransaction,
    MerchantTrackTransactionWallet, SignedMessage,
};

use crate::api::wallet::*;
use crate::api::world::*;

fn path(contract: &Contract, coin: &Coin) -> String {
    let (h_wire, merchant_pub) = (contract.h_wire(), contract.merchant.public_key());
    format!("deposits/{h_wire}/{merchant_pub}/{}/{}", contract.h_contract_terms, coin.coin_pub)
}

fn tracked(contract: &Contract, coin: &Coin) -> String {
    let message = MerchantTrackTransaction {
        h_contract_terms: contract.h_contract_terms,
        h_wire: contract.h_wire(),
        coin_pub: coin.coin_pub,
    };
    format!("{}?merchant_sig={}", path(contract, coin), message.sign(&contract.merchant))
}

/// With the signature that wallets of protocol 12 make.
fn tracked_by_wallet(contract: &Contract, coin: &Coin) -> String {
    let message = MerchantTrackTransactionWallet {
        h_contract_terms: contract.h_contract_terms,
        h_wire: contract.h_wire(),
        merchant_pub: contract.merchant.public_key(),
        coin_pub: coin.coin_pub,
    };
    format!("{}?merchant_sig={}", path(contract, coin), message.sign(&contract.merchant))
}

#[tokio::test]
async fn a_deposit_is_tracked_to_its_transfer() {
    let mut site = Site::start().await;
    let coins = [site.coin(RSA_8).await, site.coin(CS_5).await, site.coin(RSA_AGE_4).await];
    let contract = Contract::new(&site);
    let contracts = [contract.next(), contract.next(), contract.next()];
    let values = ["8", "4.5", "1"];
    for ((contract, coin), value) in contracts.iter().zip(&coins).zip(values) {
        site.pay(contract, coin, value).await;
    }
    site.refund(&contracts[1], &coins[1], "0.5", 1).await;
    for url in [tracked(&contracts[0], &coins[0]), tracked_by_wallet(&contracts[0], &coins[0])] {
        let reply = site.get(&url).await;
        assert_eq!(reply.status, 202);
        let pending: DepositPending = reply.json().unwrap();
        assert_eq!(
            (pending.execution_time, pending.kyc_ok, pending.requirement_row),
            (contract.wire_deadline, true, None)
        );
    }
    site.advance(Duration::from_secs(7_300)).await;
    site.aggregate().await;

    let transfers = read::open_transfers(&site.app().core.store, 10).unwrap();
    let [(wtid, row)] = &transfers[..] else { panic!("{transfers:?}") };
    // 13.5 less the refund, three deposit fees and the wire fee.
    assert_eq!(row.amount, m("12.84"));
    let mut found = Vec::new();
    for ((contract, coin), value) in contracts.iter().zip(&coins).zip(values) {
        for url in [tracked(contract, coin), tracked_by_wallet(contract, coin)] {
            let answer: DepositTransfer = site.get(&url).await.ok().unwrap();
            assert_eq!((answer.wtid, answer.execution_time), (*wtid, site.now()));
            let without_fee = m(value).checked_sub(m("0.02")).unwrap().of(currency());
            assert_eq!(answer.coin_contribution, without_fee);
            assert!(site.is_online_key(&answer.exchange_pub));
            let message = ExchangeConfirmWire {
                h_wire: contract.h_wire(),
                h_contract_terms: contract.h_contract_terms,
                wtid: *wtid,
                coin_pub: coin.coin_pub,
                execution_time: answer.execution_time,
                coin_contribution: answer.coin_contribution,
            };
            assert!(message.verify(&answer.exchange_pub, &answer.exchange_sig));
        }
        found.push((contract.h_contract_terms, coin.coin_pub, amount(value)));
    }
    let answer: TransferResponse = site.get(&format!("transfers/{wtid}")).await.ok().unwrap();
    // Refunds are not considered: the deposits add up to the total.
    assert_eq!((answer.total, answer.wire_fee), (amount("13.34"), amount("0.1")));
    assert_eq!((answer.h_payto, answer.execution_time), (h_payto(MERCHANT), site.now()));
    assert_eq!(answer.merchant_pub, contract.merchant.public_key());
    let mut listed: Vec<_> =
        answer.deposits.iter().map(|it| (it.h_contract_terms, it.coin_pub, it.deposit_value)).collect();
    listed.sort_by_key(|it| *it.0.as_bytes());
    found.sort_by_key(|it| *it.0.as_bytes());
    assert_eq!(listed, found);
    assert!(answer.deposits.iter().all(|it| it.deposit_fee == amount("0.02")));
    assert!(site.is_online_key(&answer.exchange_pub));
    let message = ExchangeConfirmWireDeposit {
        total: answer.total,
        wire_fee: answer.wire_fee,
        merchant_pub: answer.merchant_pub,
        h_payto: answer.h_payto,
        h_details: wire_details_hash(answer.execution_time, &answer.deposits),
    };
    assert!(message.verify(&answer.exchange_pub, &answer.exchange_sig));
}

#[tokio::test]
async fn a_sum_below_the_wire_fee_waits() {
    let mut site = Site::start().await;
    let coin = site.coin(RSA_8).await;
    let contract = Contract::new(&site);
    site.pay(&contract, &coin, "0.11").await;
    site.advance(Duration::from_secs(7_300)).await;
    site.aggregate().await;
    // The deposit is aggregated and not paid yet. It is too late for a refund anyway.
    assert_eq!(site.get(&tracked(&contract, &coin)).await.status, 202);
    site.refused(&coin.path("refund"), &contract.refund(&coin, "0.1", 1), 410, 1503).await;
    let more = Contract { refund_deadline: None, wire_deadline: site.now(), ..contract.next() };
    site.pay(&more, &coin, "1").await;
    site.aggregate().await;
    let first: DepositTransfer = site.get(&tracked(&contract, &coin)).await.ok().unwrap();
    let second: DepositTransfer = site.get(&tracked(&more, &coin)).await.ok().unwrap();
    assert_eq!(first.wtid, second.wtid);
    let answer: TransferResponse = site.get(&format!("transfers/{}", first.wtid)).await.ok().unwrap();
    assert_eq!((answer.total, answer.deposits.len()), (amount("0.97"), 2));
}

#[tokio::test]
async fn refusals() {
    let site = Site::start().await;
    let coin = site.coin(RSA_8).await;
    let contract = Contract::new(&site);
    site.pay(&contract, &coin, "5").await;
    is_error(&site.get("transfers/ABC").await, 400, 1450);
    is_error(&site.get(&format!("transfers/{}", Wtid::random())).await, 404, 1451);

    let good = path(&contract, &coin);
    is_error(&site.get(&good).await, 400, 25);
    is_error(&site.get(&format!("{good}?merchant_sig=ABC")).await, 400, 26);
    for (place, code) in [(1, 1101), (2, 1102), (3, 1103), (4, 1104)] {
        let tracked = tracked(&contract, &coin);
        let mut parts: Vec<&str> = tracked.split(['/', '?']).collect();
        parts[place] = "ABC";
        let url = format!("{}?{}", parts[..5].join("/"), parts[5]);
        is_error(&site.get(&url).await, 400, code);
    }
    // Signed by another merchant, or over something else.
    let other = Contract { merchant: batzen_crypto::EddsaPrivateKey::generate(), ..contract.clone() };
    let foreign = tracked(&other, &coin);
    let signature = foreign.split('?').nth(1).unwrap();
    is_error(&site.get(&format!("{good}?{signature}")).await, 403, 1106);
    let next = tracked(&contract.next(), &coin);
    is_error(&site.get(&format!("{good}?{}", next.split('?').nth(1).unwrap())).await, 403, 1106);
    // No such deposit: the merchant, contract, coin or account differs.
    is_error(&site.get(&foreign).await, 404, 1100);
    is_error(&site.get(&next).await, 404, 1100);
    is_error(&site.get(&tracked(&contract, &site.coin(RSA_8).await)).await, 404, 1100);
    let moved = Contract { salt: batzen_crypto::WireSalt::random(), ..contract };
    is_error(&site.get(&tracked(&moved, &coin)).await, 404, 1100);
    is_error(&site.get(&format!("deposits/{}", HashCode::random())).await, 404, 1002);
}
