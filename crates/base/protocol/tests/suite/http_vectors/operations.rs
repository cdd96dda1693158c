//! Reserves and coins: withdrawal, deposit, refresh, refund, recoup, tracking.

use std::collections::HashMap;

use batzen_crypto::age::{AgeCommitment, AgeMask};
use batzen_crypto::denom::{h_coin_pub, recoup_h_coin_ev};
use batzen_crypto::refresh::{self, FreshDenom};
use batzen_crypto::{
    BlindedDenomSignature, BlindedPlanchet, CsNonce, DenomKey, DenomPublicKey, EddsaPublicKey,
    EddsaSignature, ExchangeWithdrawValues, HashCode,
};
use batzen_protocol::api::exchange::*;
use batzen_protocol::denominations::{refresh_commitment, wire_details_hash};
use batzen_protocol::signatures::*;
use batzen_protocol::{Amount, Money, PaytoUri, canonical, payto};
use curve25519_dalek::edwards::CompressedEdwardsY;
use curve25519_dalek::{EdwardsPoint, Scalar};
use num_bigint::BigUint;

use crate::http_vectors::histories::{check_error, reserve_history};
use crate::http_vectors::keys::{Exchange, Tally};
use crate::http_vectors::recording::Recording;

/// Data from earlier messages of a recording.
#[derive(Default)]
pub(super) struct Seen {
    /// R values for a nonce of a denomination.
    values: HashMap<(CsNonce, HashCode), ExchangeWithdrawValues>,
    /// The receiver of a planchet's blind signature.
    withdrawn: HashMap<HashCode, EddsaPublicKey>,
    refreshed: HashMap<HashCode, EddsaPublicKey>,
    melts: HashMap<HashCode, (EddsaPublicKey, MeltRequest, u32)>,
    links: HashMap<EddsaSignature, EddsaPublicKey>,
}

/// Checks a message; true if it was one of this family.
pub(super) fn check(exchange: &Exchange, seen: &mut Seen, recording: &Recording, tally: &mut Tally) {
    let (method, path) = recording.route();
    let (ok, code) = (recording.ok(), recording.code());
    if code.is_some() {
        check_error(exchange, recording, tally);
    }
    match (method, path.as_slice()) {
        ("POST", ["reserves", reserve, operation @ ("status" | "history")])
            if ok || code == Some(1251) || code == Some(1252) =>
        {
            let reserve: EddsaPublicKey = reserve.parse().unwrap();
            let request: ReserveRequest = recording.request();
            let request_timestamp = request.request_timestamp;
            if *operation == "status" {
                tally.either(ok, &WalletReserveStatus { request_timestamp }, &reserve, &request.reserve_sig);
            } else {
                let history_fee = exchange.history_fee(request_timestamp);
                let message = WalletReserveHistory { request_timestamp, history_fee };
                tally.either(ok, &message, &reserve, &request.reserve_sig);
            }
            if ok {
                let status: ReserveStatus = recording.response();
                let balance = reserve_history(exchange, tally, &reserve, &status.history);
                // The status shows recent events only.
                assert!(*operation == "status" || balance == status.balance.money, "balance");
            }
        }
        ("POST", ["reserves", reserve, "withdraw"]) if ok || code == Some(1154) => {
            let request: WithdrawRequest = recording.request();
            let signature = ok.then(|| recording.response::<BlindSignature>().ev_sig);
            withdrawal(exchange, seen, tally, &reserve.parse().unwrap(), &request, signature.as_ref());
        }
        ("POST", ["reserves", reserve, "batch-withdraw"]) if ok => {
            let request: BatchWithdrawRequest = recording.request();
            let answer: BlindSignatures = recording.response();
            assert_eq!(request.planchets.len(), answer.ev_sigs.len());
            for (planchet, signature) in request.planchets.iter().zip(&answer.ev_sigs) {
                withdrawal(
                    exchange,
                    seen,
                    tally,
                    &reserve.parse().unwrap(),
                    planchet,
                    Some(&signature.ev_sig),
                );
            }
        }
        ("POST", ["csr-withdraw"]) if ok => {
            let request: CsrWithdrawRequest = recording.request();
            let answer: WithdrawValues = recording.response();
            seen.values.insert((request.nonce, request.denom_pub_hash), answer.ewv);
        }
        ("POST", ["csr-melt"]) if ok => {
            let request: CsrMeltRequest = recording.request();
            let answer: CsrMeltResponse = recording.response();
            assert_eq!(request.nks.len(), answer.ewvs.len());
            for (coin, values) in request.nks.iter().zip(&answer.ewvs) {
                seen.values.insert((request.rms.cs_nonce(coin.coin_offset), coin.denom_pub_hash), values.ewv);
            }
        }
        ("POST", ["coins", coin, "deposit"]) if ok || matches!(code, Some(1205 | 1006)) => {
            deposit(exchange, recording, tally, coin.parse().unwrap());
        }
        ("POST", ["batch-deposit"]) if ok => batch_deposit(exchange, recording, tally),
        ("POST", ["coins", coin, "melt"]) if ok => {
            melt(exchange, seen, recording, tally, coin.parse().unwrap());
        }
        ("POST", ["refreshes", rc, "reveal"]) if ok => {
            reveal(exchange, seen, recording, tally, &rc.parse().unwrap());
        }
        ("GET", ["coins", coin, "link"]) if ok => {
            link(exchange, seen, recording, tally, &coin.parse().unwrap());
        }
        ("POST", ["coins", coin, "refund"]) if ok || code == Some(1506) => {
            let coin_pub: EddsaPublicKey = coin.parse().unwrap();
            let request: RefundRequest = recording.request();
            let message = MerchantRefund {
                h_contract_terms: request.h_contract_terms,
                coin_pub,
                rtransaction_id: request.rtransaction_id,
                refund_amount: request.refund_amount,
            };
            tally.either(ok, &message, &request.merchant_pub, &request.merchant_sig);
            if ok {
                let answer: RefundConfirmation = recording.response();
                let message = ExchangeConfirmRefund {
                    h_contract_terms: request.h_contract_terms,
                    coin_pub,
                    merchant_pub: request.merchant_pub,
                    rtransaction_id: request.rtransaction_id,
                    refund_amount: request.refund_amount,
                };
                exchange.online(tally, &message, &answer.exchange_pub, &answer.exchange_sig);
            }
        }
        ("POST", ["coins", coin, operation @ ("recoup" | "recoup-refresh")]) if ok => {
            recoup(exchange, seen, recording, tally, coin.parse().unwrap(), *operation == "recoup");
        }
        ("GET", ["transfers", _]) if ok => {
            let answer: TransferResponse = recording.response();
            let message = ExchangeConfirmWireDeposit {
                total: answer.total,
                wire_fee: answer.wire_fee,
                merchant_pub: answer.merchant_pub,
                h_payto: answer.h_payto,
                h_details: wire_details_hash(answer.execution_time, &answer.deposits),
            };
            exchange.online(tally, &message, &answer.exchange_pub, &answer.exchange_sig);
            let net = |deposit: &TransferDeposit| {
                deposit.deposit_value.checked_sub(&deposit.deposit_fee).unwrap().money
            };
            let sum = Money::checked_sum(answer.deposits.iter().map(net)).unwrap();
            assert_eq!(sum.checked_sub(answer.wire_fee.money).unwrap(), answer.total.money);
        }
        ("GET", ["deposits", h_wire, merchant, contract, coin]) if ok || code == Some(1106) => {
            let (h_wire, h_contract_terms): (HashCode, HashCode) =
                (h_wire.parse().unwrap(), contract.parse().unwrap());
            let (merchant_pub, coin_pub): (EddsaPublicKey, EddsaPublicKey) =
                (merchant.parse().unwrap(), coin.parse().unwrap());
            let signature = recording.argument("merchant_sig").expect("an argument").parse().unwrap();
            let message = MerchantTrackTransaction { h_contract_terms, h_wire, coin_pub };
            tally.either(ok, &message, &merchant_pub, &signature);
            let variant = MerchantTrackTransactionWallet { h_contract_terms, h_wire, merchant_pub, coin_pub };
            if recording.file.starts_with("wallet") && !ok {
                tally.good(&variant, &merchant_pub, &signature);
            }
            if recording.response.status == 200 {
                let answer: DepositTransfer = recording.response();
                let message = ExchangeConfirmWire {
                    h_wire,
                    h_contract_terms,
                    wtid: answer.wtid,
                    coin_pub,
                    execution_time: answer.execution_time,
                    coin_contribution: answer.coin_contribution,
                };
                exchange.online(tally, &message, &answer.exchange_pub, &answer.exchange_sig);
            }
        }
        ("POST", ["kyc-wallet"]) if ok || matches!(code, Some(1028 | 1925)) => {
            let request: KycWalletRequest = recording.request();
            let message = WalletAccountSetup { threshold: request.balance };
            tally.either(code != Some(1925), &message, &request.reserve_pub, &request.reserve_sig);
            if code == Some(1028) {
                let uri = PaytoUri::reserve(&exchange.base_url, &request.reserve_pub).unwrap();
                let error: batzen_protocol::ErrorBody<batzen_protocol::api::errors::KycRequired> =
                    recording.response();
                assert_eq!(error.extra.h_payto, uri.hash());
                tally.add("h_payto of a wallet");
            }
        }
        ("POST", ["reserves", reserve, "close"]) if ok => {
            let request: ReserveCloseRequest = recording.request();
            let message = WalletReserveClose {
                request_timestamp: request.request_timestamp,
                target_h_payto: request.payto_uri.as_deref().map(payto::h_payto).unwrap_or_default(),
            };
            tally.good(&message, &reserve.parse().unwrap(), &request.reserve_sig);
        }
        _ => {}
    }
}

/// Checks that the blind signature fits the planchet: for RSA s^e = planchet, for Clause Blind Schnorr
/// s·G = R_b + c_b·X (if the R values are known).
fn blind_signature(
    tally: &mut Tally,
    denom: &DenomPublicKey,
    planchet: &BlindedPlanchet,
    values: Option<&ExchangeWithdrawValues>,
    signature: &BlindedDenomSignature,
) {
    match (&denom.key, planchet, signature) {
        (DenomKey::Rsa(key), BlindedPlanchet::Rsa { blinded }, BlindedDenomSignature::Rsa(signature)) => {
            let number = BigUint::from_bytes_be;
            let opened = number(signature).modpow(&number(key.exponent()), &number(key.modulus()));
            assert_eq!(opened, number(blinded), "blind RSA signature");
            tally.add("blind RSA signature");
        }
        (DenomKey::Cs(key), BlindedPlanchet::Cs { c0, c1, .. }, BlindedDenomSignature::Cs(signature)) => {
            let Some(ExchangeWithdrawValues::Cs { r0, r1 }) = values else { return };
            let point = |bytes: &[u8; 32]| CompressedEdwardsY(*bytes).decompress().expect("a point");
            let scalar = |bytes: &[u8; 32]| Scalar::from_bytes_mod_order(*bytes);
            let (c, r) = if signature.b == 0 { (c0, r0) } else { (c1, r1) };
            let expected = point(r.as_bytes()) + scalar(c.as_bytes()) * point(key.as_public_key().as_bytes());
            assert_eq!(
                EdwardsPoint::mul_base(&scalar(signature.s.as_bytes())),
                expected,
                "blind CS signature"
            );
            tally.add("blind CS signature");
        }
        _ => panic!("ciphers differ"),
    }
}

fn nonce(planchet: &BlindedPlanchet) -> Option<CsNonce> {
    match planchet {
        BlindedPlanchet::Rsa { .. } => None,
        BlindedPlanchet::Cs { nonce, .. } => Some(*nonce),
    }
}

fn withdrawal(
    exchange: &Exchange,
    seen: &mut Seen,
    tally: &mut Tally,
    reserve: &EddsaPublicKey,
    request: &WithdrawRequest,
    signature: Option<&BlindedDenomSignature>,
) {
    let info = exchange.denomination(&request.denom_pub_hash);
    let h_coin_envelope = request.coin_ev.hash(&request.denom_pub_hash);
    let message = WalletReserveWithdraw {
        amount_with_fee: info.terms.withdraw_cost().unwrap(),
        h_denom_pub: request.denom_pub_hash,
        h_coin_envelope,
    };
    tally.either(signature.is_some(), &message, reserve, &request.reserve_sig);
    if let Some(signature) = signature {
        let values =
            nonce(&request.coin_ev).and_then(|nonce| seen.values.get(&(nonce, request.denom_pub_hash)));
        blind_signature(tally, &info.denom_pub, &request.coin_ev, values, signature);
        seen.withdrawn.insert(h_coin_envelope, *reserve);
    }
}

fn deposit(exchange: &Exchange, recording: &Recording, tally: &mut Tally, coin_pub: EddsaPublicKey) {
    let request: DepositRequest = recording.request();
    let info = exchange.denomination(&request.denom_pub_hash);
    let h_policy =
        request.policy.as_ref().map(|policy| canonical::policy_hash(policy).unwrap()).unwrap_or_default();
    let h_wire = payto::h_wire(&request.merchant_payto_uri, &request.wire_salt);
    let message = WalletCoinDeposit {
        h_contract_terms: request.h_contract_terms,
        h_age_commitment: request.h_age_commitment.unwrap_or_default(),
        h_policy,
        h_wire,
        h_denom_pub: request.denom_pub_hash,
        wallet_timestamp: request.timestamp,
        refund_deadline: request.refund_deadline.unwrap_or_default(),
        amount_with_fee: request.contribution,
        deposit_fee: info.terms.fee_deposit,
        merchant_pub: request.merchant_pub,
    };
    let hash = h_coin_pub(&coin_pub, request.h_age_commitment.as_ref());
    let coin_valid = info.denom_pub.verify(&hash, &request.ub_sig);
    match recording.code() {
        Some(1006) => {
            assert!(!coin_valid, "coin should not be valid");
            tally.add("refused signature");
            return;
        }
        Some(1205) => {
            tally.either(false, &message, &coin_pub, &request.coin_sig);
            return;
        }
        _ => {}
    }
    assert!(coin_valid, "coin is valid");
    tally.add("coin");
    tally.good(&message, &coin_pub, &request.coin_sig);
    let answer: DepositConfirmation = recording.response();
    let message = ExchangeConfirmDeposit {
        h_contract_terms: request.h_contract_terms,
        h_wire,
        h_policy,
        exchange_timestamp: answer.exchange_timestamp,
        wire_deadline: request.wire_transfer_deadline,
        refund_deadline: request.refund_deadline.unwrap_or_default(),
        amount_without_fee: request.contribution.checked_sub(&info.terms.fee_deposit).unwrap(),
        coin_pub,
        merchant_pub: request.merchant_pub,
    };
    exchange.online(tally, &message, &answer.exchange_pub, &answer.exchange_sig);
}

fn batch_deposit(exchange: &Exchange, recording: &Recording, tally: &mut Tally) {
    let request: BatchDepositRequest = recording.request();
    let answer: BatchDepositConfirmation = recording.response();
    assert_eq!(request.coins.len(), answer.exchange_sigs.len());
    let h_policy =
        request.policy.as_ref().map(|policy| canonical::policy_hash(policy).unwrap()).unwrap_or_default();
    let h_wire = payto::h_wire(&request.merchant_payto_uri, &request.wire_salt);
    let refund_deadline = request.refund_deadline.unwrap_or_default();
    for (coin, signature) in request.coins.iter().zip(&answer.exchange_sigs) {
        let info = exchange.denomination(&coin.denom_pub_hash);
        let message = WalletCoinDeposit {
            h_contract_terms: request.h_contract_terms,
            h_age_commitment: coin.h_age_commitment.unwrap_or_default(),
            h_policy,
            h_wire,
            h_denom_pub: coin.denom_pub_hash,
            wallet_timestamp: request.timestamp,
            refund_deadline,
            amount_with_fee: coin.contribution,
            deposit_fee: info.terms.fee_deposit,
            merchant_pub: request.merchant_pub,
        };
        tally.good(&message, &coin.coin_pub, &coin.coin_sig);
        let hash = h_coin_pub(&coin.coin_pub, coin.h_age_commitment.as_ref());
        assert!(info.denom_pub.verify(&hash, &coin.ub_sig), "coin is valid");
        tally.add("coin");
        let message = ExchangeConfirmDeposit {
            h_contract_terms: request.h_contract_terms,
            h_wire,
            h_policy,
            exchange_timestamp: answer.exchange_timestamp,
            wire_deadline: request.wire_transfer_deadline,
            refund_deadline,
            amount_without_fee: coin.contribution.checked_sub(&info.terms.fee_deposit).unwrap(),
            coin_pub: coin.coin_pub,
            merchant_pub: request.merchant_pub,
        };
        exchange.online(tally, &message, &answer.exchange_pub, &signature.exchange_sig);
    }
}

fn melt(
    exchange: &Exchange,
    seen: &mut Seen,
    recording: &Recording,
    tally: &mut Tally,
    coin: EddsaPublicKey,
) {
    let request: MeltRequest = recording.request();
    let answer: MeltConfirmation = recording.response();
    let info = exchange.denomination(&request.denom_pub_hash);
    let hash = h_coin_pub(&coin, request.age_commitment_hash.as_ref());
    assert!(info.denom_pub.verify(&hash, &request.denom_sig), "coin is valid");
    tally.add("coin");
    let message = WalletCoinMelt {
        refresh_commitment: request.rc,
        h_denom_pub: request.denom_pub_hash,
        h_age_commitment: request.age_commitment_hash.unwrap_or_default(),
        amount_with_fee: request.value_with_fee,
        melt_fee: info.terms.fee_refresh,
    };
    tally.good(&message, &coin, &request.confirm_sig);
    let message =
        ExchangeConfirmMelt { refresh_commitment: request.rc, noreveal_index: answer.noreveal_index };
    exchange.online(tally, &message, &answer.exchange_pub, &answer.exchange_sig);
    seen.melts.insert(request.rc, (coin, request, answer.noreveal_index));
}

fn reveal(exchange: &Exchange, seen: &mut Seen, recording: &Recording, tally: &mut Tally, rc: &HashCode) {
    let request: RevealRequest = recording.request();
    let answer: BlindSignatures = recording.response();
    let Some((old_coin, melt, noreveal_index)) = seen.melts.get(rc) else { return };
    let infos: Vec<_> = request.new_denoms_h.iter().map(|hash| exchange.denomination(hash)).collect();
    assert!([request.coin_evs.len(), request.link_sigs.len(), answer.ev_sigs.len()] == [infos.len(); 3]);
    let mut needed = exchange.denomination(&melt.denom_pub_hash).terms.fee_refresh;
    let mut fresh = Vec::new();
    for (index, info) in (0u32..).zip(&infos) {
        needed = needed.checked_add(&info.terms.withdraw_cost().unwrap()).unwrap();
        let values = match (&info.denom_pub.key, &request.rms) {
            (DenomKey::Rsa(_), _) => Some(ExchangeWithdrawValues::Rsa),
            (DenomKey::Cs(_), Some(rms)) => {
                seen.values.get(&(rms.cs_nonce(index), info.h_denom_pub)).copied()
            }
            (DenomKey::Cs(_), None) => panic!("a CS denomination needs the refresh master secret"),
        };
        fresh.push(values.map(|values| FreshDenom { denom: &info.denom_pub, values }));
    }
    assert!(needed.money <= melt.value_with_fee.money, "the melt covers the fresh coins");
    for (index, signature) in answer.ev_sigs.iter().enumerate() {
        let (info, planchet) = (infos[index], &request.coin_evs[index]);
        let h_coin_envelope = planchet.hash(&info.h_denom_pub);
        let message = WalletCoinLink {
            h_denom_pub: info.h_denom_pub,
            transfer_pub: request.transfer_pub,
            h_age_commitment: Zeros,
            h_coin_envelope,
        };
        tally.good(&message, old_coin, &request.link_sigs[index]);
        let values = fresh[index].as_ref().map(|fresh| &fresh.values);
        blind_signature(tally, &info.denom_pub, planchet, values, &signature.ev_sig);
        seen.links.insert(request.link_sigs[index], *old_coin);
        seen.refreshed.insert(h_coin_envelope, *old_coin);
    }
    // Recompute the revealed candidates and with them the commitment.
    let fresh: Vec<FreshDenom<'_>> =
        fresh.into_iter().collect::<Option<_>>().expect("all R values were recorded");
    let old_age = request.old_age_commitment.as_ref().map(|keys| {
        let mask = AgeMask::new(exchange.denomination(&melt.denom_pub_hash).denom_pub.age_mask).unwrap();
        let commitment = AgeCommitment::new(mask, keys.clone()).unwrap();
        assert_eq!(Some(commitment.hash()), melt.age_commitment_hash, "age commitment");
        commitment
    });
    let gamma = usize::try_from(*noreveal_index).unwrap();
    let mut privs = request.transfer_privs.iter();
    let mut candidates = Vec::new();
    let mut transfer_pubs = [request.transfer_pub; refresh::KAPPA];
    for (k, transfer_pub) in transfer_pubs.iter_mut().enumerate() {
        if k == gamma {
            candidates.push(request.coin_evs.clone());
            continue;
        }
        let private = privs.next().expect("two transfer keys");
        *transfer_pub = private.public_key();
        let planchets =
            refresh::recompute_candidate(private, old_coin, &fresh, request.rms.as_ref(), old_age.as_ref())
                .unwrap();
        candidates.push(planchets);
    }
    let lists = [candidates[0].as_slice(), &candidates[1], &candidates[2]];
    let rms = request.rms.as_ref();
    let amount: &Amount = &melt.value_with_fee;
    let commitment =
        refresh_commitment(rms, &transfer_pubs, &request.new_denoms_h, old_coin, amount, lists).unwrap();
    assert_eq!(commitment, *rc, "refresh commitment");
    tally.add("refresh commitment");
}

fn link(exchange: &Exchange, seen: &Seen, recording: &Recording, tally: &mut Tally, coin: &EddsaPublicKey) {
    for entry in recording.response::<Vec<LinkEntry>>() {
        assert!(entry.new_coins.windows(2).all(|pair| pair[0].coin_idx < pair[1].coin_idx), "order");
        for fresh in entry.new_coins {
            exchange.denomination(&fresh.denom_pub.h_denom_pub());
            // Without the old coin's private key the planchet is unknown: the signature must be that of the
            // reveal.
            if let Some(old_coin) = seen.links.get(&fresh.link_sig) {
                assert_eq!(old_coin, coin);
                tally.add("link");
            }
        }
    }
}

fn recoup(
    exchange: &Exchange,
    seen: &Seen,
    recording: &Recording,
    tally: &mut Tally,
    coin_pub: EddsaPublicKey,
    to_reserve: bool,
) {
    let request: RecoupRequest = recording.request();
    let info = exchange.denomination(&request.denom_pub_hash);
    let age = request.h_age_commitment.as_ref();
    assert!(info.denom_pub.verify(&h_coin_pub(&coin_pub, age), &request.denom_sig), "coin is valid");
    tally.add("coin");
    let (h_denom_pub, coin_blind) = (request.denom_pub_hash, request.coin_blind_key_secret.clone());
    let origin = if to_reserve {
        tally.good(&WalletCoinRecoup { h_denom_pub, coin_blind }, &coin_pub, &request.coin_sig);
        recording.response::<RecoupResponse>().reserve_pub
    } else {
        tally.good(&WalletCoinRecoupRefresh { h_denom_pub, coin_blind }, &coin_pub, &request.coin_sig);
        recording.response::<RecoupRefreshResponse>().old_coin_pub
    };
    let h_coin_ev = recoup_h_coin_ev(
        &info.denom_pub,
        &request.ewv,
        request.cs_nonce.as_ref(),
        &coin_pub,
        &request.coin_blind_key_secret,
        age,
    )
    .unwrap();
    let known = if to_reserve { &seen.withdrawn } else { &seen.refreshed };
    if let Some(expected) = known.get(&h_coin_ev) {
        assert_eq!(*expected, origin, "origin of the coin");
        tally.add("origin of a recouped coin");
    }
}
