//! Turns requests into commands: decodes, looks up, verifies and blindly signs, as the real service's
//! handlers do and in the same order. Decisions here are provisional, except for signatures.

use batzen_crypto::denom::{blind_sign_batch, h_coin_pub};
use batzen_crypto::refresh::{FreshDenom, KAPPA, RefreshCommitment, recompute_candidate};
use batzen_crypto::{
    BlindedDenomSignature, BlindedPlanchet, Cipher, CsNonce, CsOperation, EcdhePublicKey, EddsaPublicKey,
    ExchangeWithdrawValues, HashCode, RefreshMasterSecret, ShortHash,
};
use batzen_exchange::reads::read;
use batzen_exchange::rules::{
    Command, Deposit, DepositCoin, Melt, Planchet, PresentedCoin, Refund, Reveal, Withdraw,
};
use batzen_protocol::api::exchange::{
    BatchDepositCoin, BatchDepositRequest, BatchWithdrawRequest, CsrMeltRequest, CsrMeltResponse,
    CsrWithdrawRequest, DepositRequest, MeltRequest, RefundRequest, ReserveBalance, RevealRequest,
    WithdrawRequest, WithdrawValues,
};
use batzen_protocol::payto::{h_payto, h_wire};
use batzen_protocol::signatures::{
    MerchantRefund, SignedMessage, WalletCoinDeposit, WalletCoinLink, WalletCoinMelt, WalletReserveWithdraw,
    Zeros,
};
use batzen_protocol::{Amount, Timestamp};
use batzen_store::Store;
use batzen_tables::exchange::{FreshCoin, RefundKey};
use batzen_wallet::core::http::{HttpRequest, HttpResponse, Method};
use serde::de::DeserializeOwned;

use super::answers::{Pending, error, ok, store_failed, unusable};
use crate::keys::{Denom, EXCHANGE_URL, Keys, currency};

/// The result of handling a request.
pub enum Decoded {
    /// An answer that does not need the rules.
    Reply(HttpResponse),
    /// A command for the rules.
    Command(Box<Command>, Pending),
}

type Checked<T> = Result<T, HttpResponse>;

/// The context for handling a request.
pub struct RequestDecoder<'a> {
    /// The exchange's keys.
    pub keys: &'static Keys,
    /// Committed rows.
    pub store: &'a Store,
    /// The exchange's clock.
    pub now: Timestamp,
    /// The secret index for a melt: 0, 1 or 2.
    pub noreveal_index: u8,
}

fn body<T: DeserializeOwned>(request: &HttpRequest) -> Checked<T> {
    let bytes = request.body.as_deref().unwrap_or_default();
    serde_json::from_slice(bytes).map_err(|_| error(22))
}

fn segment<T: std::str::FromStr>(text: &str) -> Checked<T> {
    text.parse().map_err(|_| error(26))
}

fn known(keys: &'static Keys, h: &HashCode) -> Checked<&'static Denom> {
    keys.denom(h).ok_or_else(|| error(1005))
}

impl RequestDecoder<'_> {
    /// Decodes and verifies a request.
    pub fn decode(&self, request: &HttpRequest) -> Decoded {
        self.route(request).unwrap_or_else(Decoded::Reply)
    }

    fn route(&self, request: &HttpRequest) -> Checked<Decoded> {
        let path = request.url.strip_prefix(EXCHANGE_URL).ok_or_else(|| error(21))?;
        let path = path.split('?').next().unwrap_or_default();
        let segments: Vec<&str> = path.split('/').collect();
        match (request.method, segments.as_slice()) {
            (Method::Get, ["reserves", reserve]) => self.reserve(segment(reserve)?),
            (Method::Post, ["reserves", reserve, "withdraw"]) => {
                self.withdraw(segment(reserve)?, &[body(request)?], false)
            }
            (Method::Post, ["reserves", reserve, "batch-withdraw"]) => {
                let batch: BatchWithdrawRequest = body(request)?;
                self.withdraw(segment(reserve)?, &batch.planchets, true)
            }
            (Method::Post, ["csr-withdraw"]) => {
                let csr: CsrWithdrawRequest = body(request)?;
                let denom = self.issuing(&csr.denom_pub_hash, "csr-withdraw")?;
                let ewv = ExchangeWithdrawValues::derive(&denom.key, &csr.nonce, CsOperation::Withdraw);
                Ok(Decoded::Reply(ok(&WithdrawValues { ewv })))
            }
            (Method::Post, ["csr-melt"]) => {
                let csr: CsrMeltRequest = body(request)?;
                let mut ewvs = Vec::new();
                for coin in &csr.nks {
                    let denom = self.issuing(&coin.denom_pub_hash, "csr-melt")?;
                    let nonce = csr.rms.cs_nonce(coin.coin_offset);
                    let ewv = ExchangeWithdrawValues::derive(&denom.key, &nonce, CsOperation::Melt);
                    ewvs.push(WithdrawValues { ewv });
                }
                Ok(Decoded::Reply(ok(&CsrMeltResponse { ewvs })))
            }
            (Method::Post, ["coins", coin, "deposit"]) => {
                let deposit: DepositRequest = body(request)?;
                let coin = BatchDepositCoin {
                    contribution: deposit.contribution,
                    denom_pub_hash: deposit.denom_pub_hash,
                    ub_sig: deposit.ub_sig,
                    coin_pub: segment(coin)?,
                    h_age_commitment: deposit.h_age_commitment,
                    coin_sig: deposit.coin_sig,
                };
                let batch = BatchDepositRequest {
                    merchant_payto_uri: deposit.merchant_payto_uri,
                    wire_salt: deposit.wire_salt,
                    merchant_pub: deposit.merchant_pub,
                    h_contract_terms: deposit.h_contract_terms,
                    coins: vec![coin],
                    timestamp: deposit.timestamp,
                    refund_deadline: deposit.refund_deadline,
                    wire_transfer_deadline: deposit.wire_transfer_deadline,
                    policy: deposit.policy,
                };
                deposit_command(self.keys, batch, false)
            }
            (Method::Post, ["batch-deposit"]) => deposit_command(self.keys, body(request)?, true),
            (Method::Post, ["coins", coin, "refund"]) => refund(segment(coin)?, &body(request)?),
            (Method::Post, ["coins", coin, "melt"]) => self.melt(segment(coin)?, body(request)?),
            (Method::Post, ["refreshes", rc, "reveal"]) => self.reveal(segment(rc)?, &body(request)?),
            _ => Err(error(21)),
        }
    }

    /// A denomination that can sign coins now.
    fn issuing(&self, h: &HashCode, operation: &str) -> Checked<&'static Denom> {
        let denom = known(self.keys, h)?;
        if denom.terms.stamp_expire_withdraw < self.now {
            return Err(unusable(1009, operation, *h, self.now));
        }
        if denom.terms.stamp_start > self.now {
            return Err(unusable(1008, operation, *h, self.now));
        }
        Ok(denom)
    }

    fn reserve(&self, reserve_pub: EddsaPublicKey) -> Checked<Decoded> {
        let row = read::reserve(self.store, reserve_pub).map_err(|error| store_failed(&error))?;
        let row = row.ok_or_else(|| error(1250))?;
        Ok(Decoded::Reply(ok(&ReserveBalance { balance: row.balance.of(currency()) })))
    }

    fn withdraw(
        &self,
        reserve_pub: EddsaPublicKey,
        requests: &[WithdrawRequest],
        batch: bool,
    ) -> Checked<Decoded> {
        let h_coin_evs: Vec<HashCode> =
            requests.iter().map(|request| request.coin_ev.hash(&request.denom_pub_hash)).collect();
        let stored = read::withdrawals(self.store, reserve_pub, &h_coin_evs);
        let stored = stored.map_err(|error| store_failed(&error))?;
        let is_repetition = stored.iter().all(Option::is_some);
        let mut planchets = Vec::with_capacity(requests.len());
        for (request, h_coin_ev) in requests.iter().zip(h_coin_evs) {
            let denom = if is_repetition {
                known(self.keys, &request.denom_pub_hash)?
            } else {
                self.issuing(&request.denom_pub_hash, "WITHDRAW")?
            };
            let message = WalletReserveWithdraw {
                amount_with_fee: denom.terms.withdraw_cost().map_err(|_| error(60))?,
                h_denom_pub: denom.h,
                h_coin_envelope: h_coin_ev,
            };
            if !message.verify(&reserve_pub, &request.reserve_sig) {
                return Err(error(1153));
            }
            planchets.push(Planchet {
                denom: denom.serial,
                h_coin_ev,
                reserve_sig: request.reserve_sig,
                ev_sig: Some(sign(denom, &request.coin_ev, CsOperation::Withdraw)?),
                nonce: match &request.coin_ev {
                    BlindedPlanchet::Rsa { .. } => None,
                    BlindedPlanchet::Cs { nonce, .. } => Some(*nonce),
                },
            });
        }
        let command = Command::Withdraw(Withdraw { reserve_pub, planchets, batch, origin: None });
        Ok(Decoded::Command(Box::new(command), Pending::Withdraw { batch }))
    }

    fn melt(&self, coin_pub: EddsaPublicKey, request: MeltRequest) -> Checked<Decoded> {
        let denom = known(self.keys, &request.denom_pub_hash)?;
        let message = WalletCoinMelt {
            refresh_commitment: request.rc,
            h_denom_pub: denom.h,
            h_age_commitment: ShortHash::ZERO,
            amount_with_fee: request.value_with_fee,
            melt_fee: denom.terms.fee_refresh,
        };
        let coin_sig = request.confirm_sig;
        if !denom.public.verify(&h_coin_pub(&coin_pub, None), &request.denom_sig) {
            return Err(error(1004));
        }
        if !message.verify(&coin_pub, &coin_sig) {
            return Err(error(1304));
        }
        let command = Command::Melt(Melt {
            coin: PresentedCoin { coin_pub, denom: denom.serial, h_age: None, denom_sig: request.denom_sig },
            amount: request.value_with_fee.money,
            rc: request.rc,
            coin_sig,
            noreveal_index: self.noreveal_index,
            rms: request.rms.map(|rms| CsNonce::from_bytes(*rms.as_bytes())),
        });
        Ok(Decoded::Command(Box::new(command), Pending::Melt { rc: request.rc }))
    }

    fn reveal(&self, rc: HashCode, request: &RevealRequest) -> Checked<Decoded> {
        let found = read::melt_by_rc(self.store, rc).map_err(|error| store_failed(&error))?;
        let read::FoundMelt { coin_pub, melt, .. } = found.ok_or_else(|| error(1355))?;
        let known_before = read::reveal(self.store, coin_pub, rc).map_err(|error| store_failed(&error))?;
        let mut denoms = Vec::with_capacity(request.new_denoms_h.len());
        for h in &request.new_denoms_h {
            denoms.push(if known_before.is_some() {
                known(self.keys, h)?
            } else {
                self.issuing(h, "REVEAL")?
            });
        }
        let needs_rms = denoms.iter().any(|denom| denom.public.cipher() == Cipher::Cs);
        let rms = request.rms.as_ref();
        if needs_rms && rms.is_none() || request.transfer_privs.len() != KAPPA - 1 {
            return Err(error(25));
        }
        let values = values(&denoms, rms);
        if !opens(rc, coin_pub, Amount::new(currency(), melt.amount), melt.noreveal_index, &denoms, request) {
            return Err(error(1353));
        }
        let mut fresh = Vec::with_capacity(denoms.len());
        let planchets = request.coin_evs.iter().zip(&request.link_sigs);
        for ((denom, (planchet, link_sig)), values) in denoms.iter().zip(planchets).zip(&values) {
            let h_coin_ev = planchet.hash(&denom.h);
            let link = WalletCoinLink {
                h_denom_pub: denom.h,
                transfer_pub: request.transfer_pub,
                h_age_commitment: Zeros,
                h_coin_envelope: h_coin_ev,
            };
            if !link.verify(&coin_pub, link_sig) {
                return Err(error(1362));
            }
            fresh.push(FreshCoin {
                denom: denom.serial,
                h_coin_ev,
                link_sig: *link_sig,
                ev_sig: sign(denom, planchet, CsOperation::Melt)?,
                r_pubs: match values {
                    ExchangeWithdrawValues::Rsa => None,
                    ExchangeWithdrawValues::Cs { r0, r1 } => Some((*r0, *r1)),
                },
            });
        }
        let mut transfer_privs = [0; 64];
        for (out, key) in transfer_privs.chunks_exact_mut(32).zip(&request.transfer_privs) {
            out.copy_from_slice(key.as_bytes());
        }
        let command = Command::Reveal(Reveal {
            coin_pub,
            rc,
            transfer_pub: request.transfer_pub,
            transfer_privs,
            rms: rms.filter(|_| needs_rms).map(|rms| CsNonce::from_bytes(*rms.as_bytes())),
            fresh,
        });
        Ok(Decoded::Command(Box::new(command), Pending::Reveal))
    }
}

fn sign(denom: &Denom, planchet: &BlindedPlanchet, operation: CsOperation) -> Checked<BlindedDenomSignature> {
    if planchet.cipher() != denom.public.cipher() {
        return Err(error(1006));
    }
    let mut signatures = blind_sign_batch(&[(&denom.key, planchet, operation)]);
    signatures.pop().and_then(Result::ok).ok_or_else(|| error(26))
}

fn deposit_command(keys: &'static Keys, request: BatchDepositRequest, batch: bool) -> Checked<Decoded> {
    let h_wire = h_wire(&request.merchant_payto_uri, &request.wire_salt);
    let refund_deadline = request.refund_deadline.unwrap_or(Timestamp::ZERO);
    let mut coins = Vec::with_capacity(request.coins.len());
    for coin in request.coins {
        let denom = known(keys, &coin.denom_pub_hash)?;
        let message = WalletCoinDeposit {
            h_contract_terms: request.h_contract_terms,
            h_age_commitment: ShortHash::ZERO,
            h_policy: HashCode::ZERO,
            h_wire,
            h_denom_pub: denom.h,
            wallet_timestamp: request.timestamp,
            refund_deadline,
            amount_with_fee: coin.contribution,
            deposit_fee: denom.terms.fee_deposit,
            merchant_pub: request.merchant_pub,
        };
        if !denom.public.verify(&h_coin_pub(&coin.coin_pub, None), &coin.ub_sig) {
            return Err(error(1004));
        }
        if !message.verify(&coin.coin_pub, &coin.coin_sig) {
            return Err(error(1205));
        }
        coins.push(DepositCoin {
            coin: PresentedCoin {
                coin_pub: coin.coin_pub,
                denom: denom.serial,
                h_age: None,
                denom_sig: coin.ub_sig,
            },
            contribution: coin.contribution.money,
            coin_sig: coin.coin_sig,
        });
    }
    let pending = Pending::Deposit {
        coin_pubs: coins.iter().map(|coin| coin.coin.coin_pub).collect(),
        h_wire,
        h_contract_terms: request.h_contract_terms,
        merchant_pub: request.merchant_pub,
        refund_deadline,
        batch,
    };
    let command = Command::Deposit(Deposit {
        merchant_pub: request.merchant_pub,
        h_contract_terms: request.h_contract_terms,
        h_payto: h_payto(&request.merchant_payto_uri),
        payto_uri: request.merchant_payto_uri,
        wire_salt: request.wire_salt,
        wallet_time: request.timestamp,
        refund_deadline,
        wire_deadline: request.wire_transfer_deadline,
        coins,
    });
    Ok(Decoded::Command(Box::new(command), pending))
}

fn refund(coin_pub: EddsaPublicKey, request: &RefundRequest) -> Checked<Decoded> {
    let message = MerchantRefund {
        h_contract_terms: request.h_contract_terms,
        coin_pub,
        rtransaction_id: request.rtransaction_id,
        refund_amount: request.refund_amount,
    };
    if !message.verify(&request.merchant_pub, &request.merchant_sig) {
        return Err(error(1506));
    }
    let key = RefundKey {
        coin_pub,
        merchant_pub: request.merchant_pub,
        h_contract_terms: request.h_contract_terms,
        rtransaction_id: request.rtransaction_id,
    };
    let command =
        Refund { key: key.clone(), amount: request.refund_amount.money, merchant_sig: request.merchant_sig };
    let pending = Pending::Refund { key, amount: request.refund_amount };
    Ok(Decoded::Command(Box::new(Command::Refund(command)), pending))
}

/// The R values of the fresh coins, as `/csr-melt` gave them.
fn values(denoms: &[&Denom], rms: Option<&RefreshMasterSecret>) -> Vec<ExchangeWithdrawValues> {
    let values = denoms.iter().zip(0..).map(|(denom, index)| match rms {
        Some(rms) => ExchangeWithdrawValues::derive(&denom.key, &rms.cs_nonce(index), CsOperation::Melt),
        None => ExchangeWithdrawValues::Rsa,
    });
    values.collect()
}

/// Whether the revealed values match the commitment.
fn opens(
    rc: HashCode,
    old_coin_pub: EddsaPublicKey,
    amount: Amount,
    noreveal_index: u8,
    denoms: &[&Denom],
    request: &RevealRequest,
) -> bool {
    let rms = request.rms.as_ref();
    let values = values(denoms, rms);
    let fresh: Vec<FreshDenom<'_>> = denoms
        .iter()
        .zip(values)
        .map(|(denom, values)| FreshDenom { denom: &denom.public, values })
        .collect();
    let mut planchets: [Vec<BlindedPlanchet>; KAPPA] = Default::default();
    let mut transfer_pubs = [EcdhePublicKey::ZERO; KAPPA];
    let mut privs = request.transfer_privs.iter();
    for k in 0..KAPPA {
        if k == usize::from(noreveal_index) {
            planchets[k].clone_from(&request.coin_evs);
            transfer_pubs[k] = request.transfer_pub;
            continue;
        }
        let Some(key) = privs.next() else { return false };
        let Ok(candidate) = recompute_candidate(key, &old_coin_pub, &fresh, rms, None) else { return false };
        transfer_pubs[k] = key.public_key();
        planchets[k] = candidate;
    }
    let commitment = RefreshCommitment {
        rms,
        transfer_pubs: &transfer_pubs,
        h_denom_pubs: &request.new_denoms_h,
        old_coin_pub: &old_coin_pub,
        amount_with_fee: &amount.to_nbo(),
        planchets: [&planchets[0], &planchets[1], &planchets[2]],
    };
    commitment.hash().is_ok_and(|hash| hash == rc)
}
