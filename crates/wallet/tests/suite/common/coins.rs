//! The exchange's operations on coins.

use std::collections::BTreeMap;

use batzen_crypto::denom::h_coin_pub;
use batzen_crypto::refresh::{FreshDenom, KAPPA, RefreshCommitment, recompute_candidate};
use batzen_crypto::{
    AgeCommitment, AgeMask, BlindedPlanchet, CsOperation, DenomPrivateKey, DenomSignature, EcdhePublicKey,
    EddsaPublicKey, ExchangeWithdrawValues, HashCode, RefreshMasterSecret, ShortHash,
};
use batzen_protocol::api::errors::CoinConflict;
use batzen_protocol::api::exchange::*;
use batzen_protocol::signatures::*;
use batzen_protocol::{Money, Timestamp, payto};
use batzen_wallet::core::http::HttpResponse;

use super::exchange::{
    CoinRow, DepositRow, FakeDenom, FakeExchange, MeltRow, currency, error, error_with, ok,
};

impl FakeExchange {
    /// The coin's row. A valid coin gets one if it has none.
    pub(super) fn known_coin(
        &mut self,
        coin_pub: EddsaPublicKey,
        h_denom: &HashCode,
        signature: &DenomSignature,
        h_age: Option<ShortHash>,
    ) -> &mut CoinRow {
        let denom = self.denom(h_denom).unwrap();
        assert!(denom.public.verify(&h_coin_pub(&coin_pub, h_age.as_ref()), signature), "a genuine coin");
        assert_eq!(denom.public.age_mask != 0, h_age.is_some(), "coins with age groups have a commitment");
        let remaining = denom.terms.value.money;
        let h_denom = denom.h;
        self.coins.entry(coin_pub).or_insert(CoinRow { h_denom, remaining, h_age, history: Vec::new() })
    }

    pub(super) fn conflict(&mut self, coin_pub: EddsaPublicKey, code: u32) -> Box<HttpResponse> {
        self.conflicts += 1;
        let row = &self.coins[&coin_pub];
        let conflict = CoinConflict { coin_pub, h_denom_pub: row.h_denom, history: row.history.clone() };
        Box::new(error_with(409, code, conflict))
    }

    pub(super) fn deposit(
        &mut self,
        request: &BatchDepositRequest,
        now: Timestamp,
    ) -> Result<BatchDepositConfirmation, Box<HttpResponse>> {
        let h_wire = payto::h_wire(&request.merchant_payto_uri, &request.wire_salt);
        let refund_deadline = request.refund_deadline.unwrap_or(Timestamp::ZERO);
        assert!(refund_deadline <= request.wire_transfer_deadline);
        let before = (self.coins.clone(), self.owed, self.fees);
        let mut time = None;
        let mut sigs = Vec::new();
        let mut rows = Vec::new();
        for coin in &request.coins {
            let key = (coin.coin_pub, request.merchant_pub, request.h_contract_terms);
            let denom = self.usable(&coin.denom_pub_hash, "DEPOSIT", now)?;
            let (fee, h_denom_pub) = (denom.terms.fee_deposit, denom.h);
            let message = WalletCoinDeposit {
                h_contract_terms: request.h_contract_terms,
                h_age_commitment: coin.h_age_commitment.unwrap_or(ShortHash::ZERO),
                h_policy: HashCode::ZERO,
                h_wire,
                h_denom_pub,
                wallet_timestamp: request.timestamp,
                refund_deadline,
                amount_with_fee: coin.contribution,
                deposit_fee: fee,
                merchant_pub: request.merchant_pub,
            };
            assert!(message.verify(&coin.coin_pub, &coin.coin_sig), "coin signature");
            assert!(coin.contribution.money >= fee.money, "F2");
            self.known_coin(coin.coin_pub, &coin.denom_pub_hash, &coin.ub_sig, coin.h_age_commitment);
            if let Some(row) = self.deposits.get(&key) {
                if row.coin_sig != coin.coin_sig {
                    let conflict = self.conflict(coin.coin_pub, 1206);
                    (self.coins, self.owed, self.fees) = before;
                    return Err(conflict);
                }
                time = Some(row.time);
            } else {
                let row = self.coins.get_mut(&coin.coin_pub).unwrap();
                let Ok(rest) = row.remaining.checked_sub(coin.contribution.money) else {
                    let conflict = self.conflict(coin.coin_pub, 1012);
                    (self.coins, self.owed, self.fees) = before;
                    return Err(conflict);
                };
                row.remaining = rest;
                row.history.push(CoinHistoryItem::Deposit(CoinDeposit {
                    amount: coin.contribution,
                    deposit_fee: fee,
                    timestamp: request.timestamp,
                    refund_deadline: request.refund_deadline,
                    merchant_pub: request.merchant_pub,
                    h_contract_terms: request.h_contract_terms,
                    h_wire,
                    h_age_commitment: coin.h_age_commitment,
                    h_policy: None,
                    coin_sig: coin.coin_sig,
                }));
                self.add_fee(fee.money);
                let net = coin.contribution.money.checked_sub(fee.money).unwrap();
                self.owed += net.units() as i128;
                rows.push((key, coin.coin_sig, coin.contribution.money));
            }
            let net = coin.contribution.checked_sub(&fee).unwrap();
            sigs.push((coin.coin_pub, net));
        }
        let exchange_timestamp = time.unwrap_or(now);
        for (key, coin_sig, contribution) in rows {
            self.deposits.insert(
                key,
                DepositRow {
                    coin_sig,
                    contribution,
                    time: exchange_timestamp,
                    refunded: Money::ZERO,
                    refunds: BTreeMap::new(),
                },
            );
        }
        let exchange_sigs = sigs
            .into_iter()
            .map(|(coin_pub, amount_without_fee)| ConfirmationSignature {
                exchange_sig: ExchangeConfirmDeposit {
                    h_contract_terms: request.h_contract_terms,
                    h_wire,
                    h_policy: HashCode::ZERO,
                    exchange_timestamp,
                    wire_deadline: request.wire_transfer_deadline,
                    refund_deadline,
                    amount_without_fee,
                    coin_pub,
                    merchant_pub: request.merchant_pub,
                }
                .sign(&self.signer),
            })
            .collect();
        Ok(BatchDepositConfirmation {
            exchange_timestamp,
            exchange_pub: self.signer.public_key(),
            exchange_sigs,
        })
    }

    pub(super) fn melt(
        &mut self,
        coin_pub: EddsaPublicKey,
        request: &MeltRequest,
        now: Timestamp,
    ) -> HttpResponse {
        let zombie = self.coins.get(&coin_pub).is_some_and(|row| {
            row.history.iter().any(|item| matches!(item, CoinHistoryItem::OldCoinRecoup(_)))
        });
        let denom = match self.usable(&request.denom_pub_hash, "MELT", now) {
            Ok(denom) => denom,
            Err(_) if zombie => self.denom(&request.denom_pub_hash).unwrap(),
            Err(response) => return *response,
        };
        let fee = denom.terms.fee_refresh;
        let message = WalletCoinMelt {
            refresh_commitment: request.rc,
            h_denom_pub: denom.h,
            h_age_commitment: request.age_commitment_hash.unwrap_or(ShortHash::ZERO),
            amount_with_fee: request.value_with_fee,
            melt_fee: fee,
        };
        assert!(message.verify(&coin_pub, &request.confirm_sig), "coin signature");
        if !self.melts.contains_key(&request.rc) {
            let h_age = request.age_commitment_hash;
            let row = self.known_coin(coin_pub, &request.denom_pub_hash, &request.denom_sig, h_age);
            let Ok(rest) = row.remaining.checked_sub(request.value_with_fee.money) else {
                return *self.conflict(coin_pub, 1012);
            };
            row.remaining = rest;
            row.history.push(CoinHistoryItem::Melt(CoinMelt {
                amount: request.value_with_fee,
                melt_fee: fee,
                rc: request.rc,
                h_age_commitment: h_age,
                coin_sig: request.confirm_sig,
            }));
            self.draws += 1;
            self.melts.insert(
                request.rc,
                MeltRow {
                    old_coin: coin_pub,
                    amount: request.value_with_fee.money,
                    noreveal_index: self.draws % 3,
                    revealed: None,
                    h_coin_evs: Vec::new(),
                },
            );
        }
        let noreveal_index = self.melts[&request.rc].noreveal_index;
        ok(&MeltConfirmation {
            noreveal_index,
            exchange_sig: ExchangeConfirmMelt { refresh_commitment: request.rc, noreveal_index }
                .sign(&self.signer),
            exchange_pub: self.signer.public_key(),
            refresh_base_url: None,
        })
    }

    pub(super) fn reveal(&mut self, rc: HashCode, request: &RevealRequest, now: Timestamp) -> HttpResponse {
        let Some(melt) = self.melts.get(&rc) else { return error(404, 1355) };
        if let Some(signatures) = &melt.revealed {
            let ev_sigs = signatures.iter().map(|ev_sig| BlindSignature { ev_sig: ev_sig.clone() }).collect();
            return ok(&BlindSignatures { ev_sigs });
        }
        let mut denoms = Vec::new();
        for h in &request.new_denoms_h {
            match self.usable(h, "REVEAL", now) {
                Ok(denom) => denoms.push(denom),
                Err(response) => return *response,
            }
        }
        let old = &self.coins[&melt.old_coin];
        let old_mask = self.denom(&old.h_denom).unwrap().public.age_mask;
        let old_age = request
            .old_age_commitment
            .clone()
            .map(|keys| AgeCommitment::new(AgeMask::new(old_mask).unwrap(), keys).expect("one key a group"));
        assert_eq!(old_age.as_ref().map(AgeCommitment::hash), old.h_age, "the old coin's commitment");
        assert!(denoms.iter().all(|denom| denom.public.age_mask == old_mask), "change keeps the age groups");
        let rms: Option<&RefreshMasterSecret> = request.rms.as_ref();
        let values = |(index, denom): (usize, &&FakeDenom)| match &denom.key {
            DenomPrivateKey::Rsa(_) => ExchangeWithdrawValues::Rsa,
            DenomPrivateKey::Cs(_) => {
                let nonce = rms.expect("CS needs rms").cs_nonce(index as u32);
                ExchangeWithdrawValues::derive(&denom.key, &nonce, CsOperation::Melt)
            }
        };
        let fresh: Vec<FreshDenom<'_>> = denoms
            .iter()
            .enumerate()
            .map(|item| FreshDenom { denom: &item.1.public, values: values(item) })
            .collect();
        let mut planchets: [Vec<BlindedPlanchet>; KAPPA] = Default::default();
        let mut transfer_pubs = [EcdhePublicKey::ZERO; KAPPA];
        let mut privs = request.transfer_privs.iter();
        for candidate in 0..KAPPA {
            if candidate as u32 == melt.noreveal_index {
                planchets[candidate].clone_from(&request.coin_evs);
                transfer_pubs[candidate] = request.transfer_pub;
            } else {
                let key = privs.next().unwrap();
                transfer_pubs[candidate] = key.public_key();
                planchets[candidate] =
                    recompute_candidate(key, &melt.old_coin, &fresh, rms, old_age.as_ref()).unwrap();
            }
        }
        let [first, second, third] = &planchets;
        let commitment = RefreshCommitment {
            rms,
            transfer_pubs: &transfer_pubs,
            h_denom_pubs: &request.new_denoms_h,
            old_coin_pub: &melt.old_coin,
            amount_with_fee: &melt.amount.of(currency()).to_nbo(),
            planchets: [first, second, third],
        };
        if commitment.hash().unwrap() != rc {
            return error(409, 1353);
        }
        if let Some(rms) = rms {
            assert_eq!(
                *self.rms.get(rms.as_bytes()).unwrap_or(&rc),
                rc,
                "a refresh secret serves one melt only"
            );
        }
        let mut signatures = Vec::new();
        let mut h_coin_evs = Vec::new();
        let mut value = Money::ZERO;
        for ((denom, planchet), link_sig) in denoms.iter().zip(&request.coin_evs).zip(&request.link_sigs) {
            let h_coin_envelope = planchet.hash(&denom.h);
            let link = WalletCoinLink {
                h_denom_pub: denom.h,
                transfer_pub: request.transfer_pub,
                h_age_commitment: Zeros,
                h_coin_envelope,
            };
            assert!(link.verify(&melt.old_coin, link_sig), "link signature");
            h_coin_evs.push(h_coin_envelope);
            value = value.checked_add(denom.terms.value.money).unwrap();
            signatures.push(self.sign_blind(denom, planchet, CsOperation::Melt));
        }
        let fees = melt.amount.checked_sub(value).expect("the melt covers the fresh coins");
        if let Some(rms) = rms {
            self.rms.insert(*rms.as_bytes(), rc);
        }
        self.issued = self.issued.checked_add(value).unwrap();
        self.add_fee(fees);
        let melt = self.melts.get_mut(&rc).unwrap();
        melt.h_coin_evs = h_coin_evs;
        melt.revealed = Some(signatures.clone());
        ok(&BlindSignatures {
            ev_sigs: signatures.into_iter().map(|ev_sig| BlindSignature { ev_sig }).collect(),
        })
    }

    pub(super) fn refund(&mut self, coin_pub: EddsaPublicKey, request: &RefundRequest) -> HttpResponse {
        let message = MerchantRefund {
            h_contract_terms: request.h_contract_terms,
            coin_pub,
            rtransaction_id: request.rtransaction_id,
            refund_amount: request.refund_amount,
        };
        assert!(message.verify(&request.merchant_pub, &request.merchant_sig), "merchant signature");
        let key = (coin_pub, request.merchant_pub, request.h_contract_terms);
        let Some(deposit) = self.deposits.get_mut(&key) else { return error(404, 1502) };
        let amount = request.refund_amount.money;
        if !deposit.refunds.contains_key(&request.rtransaction_id) {
            let sum = deposit.refunded.checked_add(amount).unwrap();
            if sum > deposit.contribution {
                return *self.conflict(coin_pub, 1501);
            }
            deposit.refunded = sum;
            deposit.refunds.insert(request.rtransaction_id, amount);
            let full = deposit.refunded == deposit.contribution;
            let row = self.coins.get_mut(&coin_pub).unwrap();
            let h_denom = row.h_denom;
            let fee = self.denoms.iter().find(|denom| denom.h == h_denom).unwrap().terms.fee_refund;
            let fee_deposit = self.denoms.iter().find(|denom| denom.h == h_denom).unwrap().terms.fee_deposit;
            let net = amount.checked_sub(fee.money).unwrap();
            row.remaining = row.remaining.checked_add(net).unwrap();
            row.history.push(CoinHistoryItem::Refund(CoinRefund {
                amount: net.of(currency()),
                refund_fee: fee,
                h_contract_terms: request.h_contract_terms,
                merchant_pub: request.merchant_pub,
                rtransaction_id: request.rtransaction_id,
                merchant_sig: request.merchant_sig,
            }));
            // The merchant gives back the whole refund, except for the deposit fee that is waived on a full
            // one.
            if full {
                self.owed -= (amount.units() as i128) - (fee_deposit.money.units() as i128);
                self.fees = self.fees.checked_sub(fee_deposit.money).unwrap();
            } else {
                self.owed -= amount.units() as i128;
            }
            self.add_fee(fee.money);
        }
        let message = ExchangeConfirmRefund {
            h_contract_terms: request.h_contract_terms,
            coin_pub,
            merchant_pub: request.merchant_pub,
            rtransaction_id: request.rtransaction_id,
            refund_amount: request.refund_amount,
        };
        ok(&RefundConfirmation {
            exchange_sig: message.sign(&self.signer),
            exchange_pub: self.signer.public_key(),
        })
    }

    pub(super) fn recoup(
        &mut self,
        coin_pub: EddsaPublicKey,
        request: &RecoupRequest,
        now: Timestamp,
        refreshed: bool,
    ) -> HttpResponse {
        let denom = self.denom(&request.denom_pub_hash).unwrap();
        if !denom.revoked {
            let (oper, code) = if refreshed { ("RECOUP-REFRESH", 1580) } else { ("RECOUP", 1555) };
            return self.unusable(&request.denom_pub_hash, oper, code, now);
        }
        let h_denom_pub = denom.h;
        let coin_blind = request.coin_blind_key_secret.clone();
        let valid = if refreshed {
            WalletCoinRecoupRefresh { h_denom_pub, coin_blind: coin_blind.clone() }
                .verify(&coin_pub, &request.coin_sig)
        } else {
            WalletCoinRecoup { h_denom_pub, coin_blind: coin_blind.clone() }
                .verify(&coin_pub, &request.coin_sig)
        };
        assert!(valid, "coin signature");
        let h_coin_ev = batzen_crypto::denom::recoup_h_coin_ev(
            &denom.public,
            &request.ewv,
            request.cs_nonce.as_ref(),
            &coin_pub,
            &coin_blind,
            request.h_age_commitment.as_ref(),
        )
        .unwrap();
        let reserve = self.withdrawals.keys().find(|(_, h)| *h == h_coin_ev).map(|(reserve, _)| *reserve);
        let old_coin =
            self.melts.values().find(|melt| melt.h_coin_evs.contains(&h_coin_ev)).map(|melt| melt.old_coin);
        self.known_coin(coin_pub, &request.denom_pub_hash, &request.denom_sig, request.h_age_commitment);
        let row = self.coins.get_mut(&coin_pub).unwrap();
        let amount = std::mem::take(&mut row.remaining);
        let repeated = row
            .history
            .iter()
            .any(|item| matches!(item, CoinHistoryItem::Recoup(_) | CoinHistoryItem::RecoupRefresh(_)));
        if amount.is_zero() && !repeated {
            return *self.conflict(coin_pub, 1012);
        }
        let exchange_pub = self.signer.public_key();
        let money = amount.of(currency());
        if refreshed {
            let Some(old_coin_pub) = old_coin else { return error(404, 1576) };
            if !amount.is_zero() {
                let exchange_sig = ExchangeConfirmRecoupRefresh {
                    timestamp: now,
                    recoup_amount: money,
                    coin_pub,
                    old_coin_pub,
                }
                .sign(&self.signer);
                row.history.push(CoinHistoryItem::RecoupRefresh(CoinRecoupRefresh {
                    amount: money,
                    exchange_sig,
                    exchange_pub,
                    old_coin_pub,
                    coin_sig: request.coin_sig,
                    coin_blind,
                    timestamp: now,
                }));
                let old = self.coins.get_mut(&old_coin_pub).unwrap();
                old.remaining = old.remaining.checked_add(amount).unwrap();
                old.history.push(CoinHistoryItem::OldCoinRecoup(OldCoinRecoup {
                    amount: money,
                    exchange_sig,
                    exchange_pub,
                    coin_pub,
                    timestamp: now,
                }));
            }
            ok(&RecoupRefreshResponse { old_coin_pub })
        } else {
            let Some(reserve_pub) = reserve else { return error(404, 1551) };
            if !amount.is_zero() {
                let exchange_sig =
                    ExchangeConfirmRecoup { timestamp: now, recoup_amount: money, coin_pub, reserve_pub }
                        .sign(&self.signer);
                self.reserve_histories.get_mut(&reserve_pub).unwrap().push(ReserveHistoryItem::Recoup(
                    ReserveRecoup { exchange_pub, exchange_sig, timestamp: now, amount: money, coin_pub },
                ));
                row.history.push(CoinHistoryItem::Recoup(CoinRecoup {
                    amount: money,
                    exchange_sig,
                    exchange_pub,
                    reserve_pub,
                    coin_sig: request.coin_sig,
                    coin_blind,
                    timestamp: now,
                }));
                let balance = self.reserves.get_mut(&reserve_pub).unwrap();
                *balance = balance.checked_add(amount).unwrap();
            }
            ok(&RecoupResponse { reserve_pub })
        }
    }
}
