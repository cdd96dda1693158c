//! The knowledge of one side of a replay about its exchange, the recorded one or ours: keys, purses and fees.
//! With it, it builds the message of every signature in a request. The recorded side tells which signatures
//! of a recorded request are valid; only those are made again on our side.

use std::collections::HashMap;

use batzen_crypto::hash::{sha512, sha512_parts, shorten};
use batzen_crypto::{AgePublicKey, EddsaPublicKey, EddsaSignature, HashCode, ShortHash, eddsa};
use batzen_protocol::api::exchange::*;
use batzen_protocol::denominations::DenominationInfo;
use batzen_protocol::signatures::*;
use batzen_protocol::{Amount, PaytoUri, Timestamp, canonical, hash_text, payto};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The terms of a purse.
#[derive(Clone)]
struct Purse {
    value: Amount,
    min_age: u32,
    expiration: Timestamp,
    merge_pub: EddsaPublicKey,
    h_contract_terms: HashCode,
}

/// A signature in a request.
pub(crate) struct Signature {
    /// Its place in the body as a JSON pointer, or `?name` if it is an argument of the query.
    pub at: String,
    pub signer: EddsaPublicKey,
    message: Vec<u8>,
}

impl Signature {
    pub(crate) fn is_valid(&self, signature: &str) -> bool {
        signature.parse().is_ok_and(|signature| eddsa::verify(&self.signer, &self.message, &signature))
    }

    pub(crate) fn sign(&self, key: &batzen_crypto::EddsaPrivateKey) -> EddsaSignature {
        key.sign(&self.message)
    }
}

#[derive(Default)]
struct Signatures(Vec<Signature>);

impl Signatures {
    fn add<M: SignedMessage>(&mut self, at: impl Into<String>, signer: EddsaPublicKey, message: &M) {
        self.0.push(Signature { at: at.into(), signer, message: message.message().as_ref().to_vec() });
    }
}

/// The knowledge of a side.
pub(crate) struct Side {
    pub base_url: String,
    pub master_pub: EddsaPublicKey,
    pub denominations: HashMap<HashCode, DenominationInfo>,
    pub signing_keys: HashMap<EddsaPublicKey, MasterSigningKeyValidity>,
    /// The fee for a full history.
    pub history_fee: Amount,
    purses: HashMap<EddsaPublicKey, Purse>,
    /// The URLs of auditors.
    auditors: HashMap<EddsaPublicKey, String>,
}

fn typed<T: DeserializeOwned>(body: &Value) -> Option<T> {
    serde_json::from_value(body.clone()).ok()
}

/// The hash of an age commitment in a request.
pub(super) fn h_age_commitment(keys: &[AgePublicKey]) -> ShortHash {
    let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes().as_slice()).collect();
    shorten(&sha512_parts(&keys))
}

fn query<'a>(path: &'a str, name: &str) -> Option<&'a str> {
    let (_, query) = path.split_once('?')?;
    Some(query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name)?.1)
}

impl Side {
    pub(crate) fn new(base_url: String, master_pub: EddsaPublicKey, history_fee: Amount) -> Self {
        let (denominations, signing_keys, purses, auditors) = Default::default();
        Self { base_url, master_pub, denominations, signing_keys, history_fee, purses, auditors }
    }

    pub(crate) fn add_future_keys(&mut self, keys: &FutureKeys) {
        for denom in &keys.future_denoms {
            let info = DenominationInfo::new(denom.denom_pub.clone(), denom.terms());
            self.denominations.insert(info.h_denom_pub, info);
        }
        for key in &keys.future_signkeys {
            let (start, expire, end) = (key.stamp_start, key.stamp_expire, key.stamp_end);
            let validity = MasterSigningKeyValidity { start, expire, end, signkey_pub: key.key };
            self.signing_keys.insert(key.key, validity);
        }
    }

    pub(crate) fn add_keys(&mut self, keys: &KeysResponse) {
        for denom in &keys.denoms {
            let info = DenominationInfo::new(denom.denom_pub.clone(), denom.terms());
            self.denominations.insert(info.h_denom_pub, info);
        }
        self.signing_keys.extend(keys.signkeys.iter().map(|key| (key.key, key.validity())));
    }

    /// Remembers what an accepted request created.
    pub(crate) fn learn(&mut self, segments: &[&str], body: &Value) {
        let (purse_pub, purse) = match segments {
            ["management", "auditors"] => {
                let request: AuditorAddRequest = typed(body).expect("it was accepted");
                self.auditors.insert(request.auditor_pub, request.auditor_url);
                return;
            }
            ["purses", purse, "create"] => {
                let request: PurseCreateRequest = typed(body).expect("it was accepted");
                let purse_pub: EddsaPublicKey = purse.parse().expect("it was accepted");
                (
                    purse_pub,
                    Purse {
                        value: request.amount,
                        min_age: request.min_age,
                        expiration: request.purse_expiration,
                        merge_pub: request.merge_pub,
                        h_contract_terms: request.h_contract_terms,
                    },
                )
            }
            ["reserves", _, "purse"] => {
                let request: ReservePurseRequest = typed(body).expect("it was accepted");
                let purse = Purse {
                    value: request.purse_value,
                    min_age: request.min_age,
                    expiration: request.purse_expiration,
                    merge_pub: request.merge_pub,
                    h_contract_terms: request.h_contract_terms,
                };
                (request.purse_pub, purse)
            }
            _ => return,
        };
        self.purses.insert(purse_pub, purse);
    }

    /// The signatures of a request. None of those whose messages cannot be built, because something in the
    /// request is malformed, missing or unknown: nobody can verify them.
    pub(crate) fn signatures(&self, path: &str, segments: &[&str], body: &Value) -> Vec<Signature> {
        let mut signatures = Signatures::default();
        let complete = match segments {
            ["reserves", reserve, rest @ ..] => self.reserve(&mut signatures, reserve, rest, body),
            ["purses", purse, operation] => self.purse(&mut signatures, purse, operation, body),
            ["coins", coin, operation] => self.coin(&mut signatures, coin, operation, body),
            ["batch-deposit"] => self.batch_deposit(&mut signatures, body),
            ["deposits", h_wire, merchant, contract, coin] if query(path, "merchant_sig").is_some() => {
                tracking(&mut signatures, [h_wire, merchant, contract, coin])
            }
            ["kyc-wallet"] => typed::<KycWalletRequest>(body).map(|request| {
                let message = WalletAccountSetup { threshold: request.balance };
                signatures.add("/reserve_sig", request.reserve_pub, &message);
            }),
            ["management", rest @ ..] => self.management(&mut signatures, rest, body),
            ["auditors", auditor, denom] => self.auditor(&mut signatures, auditor, denom),
            _ => None,
        };
        // Whatever cannot be read ends the list.
        complete.unwrap_or_default();
        signatures.0
    }

    fn auditor(&self, signatures: &mut Signatures, auditor: &str, denom: &str) -> Option<()> {
        let (auditor, h_denom_pub) = (auditor.parse().ok()?, denom.parse().ok()?);
        let (url, info) = (self.auditors.get(&auditor)?, self.denominations.get(&h_denom_pub)?);
        let message = info.terms.auditor_approval(url, self.master_pub, h_denom_pub);
        signatures.add("/auditor_sig", auditor, &message);
        Some(())
    }

    fn management(&self, signatures: &mut Signatures, segments: &[&str], body: &Value) -> Option<()> {
        let master = self.master_pub;
        match segments {
            ["keys"] => {
                let request: ManagementKeysRequest = typed(body)?;
                for (index, item) in request.denom_sigs.iter().enumerate() {
                    if let Some(info) = self.denominations.get(&item.h_denom_pub) {
                        let message = info.terms.validity(master, item.h_denom_pub);
                        signatures.add(format!("/denom_sigs/{index}/master_sig"), master, &message);
                    }
                }
                for (index, item) in request.signkey_sigs.iter().enumerate() {
                    if let Some(message) = self.signing_keys.get(&item.exchange_pub) {
                        signatures.add(format!("/signkey_sigs/{index}/master_sig"), master, message);
                    }
                }
            }
            ["auditors"] => {
                let request: AuditorAddRequest = typed(body)?;
                let message = MasterAddAuditor {
                    start_date: request.validity_start,
                    auditor_pub: request.auditor_pub,
                    h_auditor_url: hash_text(&request.auditor_url),
                };
                signatures.add("/master_sig", master, &message);
            }
            ["auditors", auditor, "disable"] => {
                let request: AuditorDisableRequest = typed(body)?;
                let message =
                    MasterDelAuditor { end_date: request.validity_end, auditor_pub: auditor.parse().ok()? };
                signatures.add("/master_sig", master, &message);
            }
            ["denominations", hash, "revoke"] => {
                let message = MasterDenominationKeyRevoked { h_denom_pub: hash.parse().ok()? };
                signatures.add("/master_sig", master, &message);
            }
            ["signkeys", key, "revoke"] => {
                let message = MasterSigningKeyRevoked { signkey_pub: key.parse().ok()? };
                signatures.add("/master_sig", master, &message);
            }
            // The other requests name nothing of ours. The recorded signatures are valid here, because our
            // exchange has the same master key.
            _ => {}
        }
        Some(())
    }

    fn withdrawal(
        &self,
        signatures: &mut Signatures,
        at: &str,
        reserve: EddsaPublicKey,
        body: &Value,
    ) -> Option<()> {
        let request: WithdrawRequest = typed(body)?;
        let info = self.denominations.get(&request.denom_pub_hash)?;
        let message = WalletReserveWithdraw {
            amount_with_fee: info.terms.withdraw_cost().ok()?,
            h_denom_pub: request.denom_pub_hash,
            h_coin_envelope: request.coin_ev.hash(&request.denom_pub_hash),
        };
        signatures.add(at, reserve, &message);
        Some(())
    }

    fn reserve(&self, signatures: &mut Signatures, reserve: &str, rest: &[&str], body: &Value) -> Option<()> {
        let reserve: EddsaPublicKey = reserve.parse().ok()?;
        match rest {
            ["status"] => {
                let request_timestamp = typed::<ReserveRequest>(body)?.request_timestamp;
                signatures.add("/reserve_sig", reserve, &WalletReserveStatus { request_timestamp });
            }
            ["history"] => {
                let request_timestamp = typed::<ReserveRequest>(body)?.request_timestamp;
                let message = WalletReserveHistory { request_timestamp, history_fee: self.history_fee };
                signatures.add("/reserve_sig", reserve, &message);
            }
            ["withdraw"] => self.withdrawal(signatures, "/reserve_sig", reserve, body)?,
            ["batch-withdraw"] => {
                for (index, planchet) in body.get("planchets")?.as_array()?.iter().enumerate() {
                    let at = format!("/planchets/{index}/reserve_sig");
                    let _ = self.withdrawal(signatures, &at, reserve, planchet);
                }
            }
            ["close"] => {
                let request: ReserveCloseRequest = typed(body)?;
                let message = WalletReserveClose {
                    request_timestamp: request.request_timestamp,
                    target_h_payto: request.payto_uri.as_deref().map(payto::h_payto).unwrap_or_default(),
                };
                signatures.add("/reserve_sig", reserve, &message);
            }
            ["purse"] => self.reserve_purse(signatures, reserve, body)?,
            _ => {}
        }
        Some(())
    }

    fn reserve_purse(
        &self,
        signatures: &mut Signatures,
        reserve: EddsaPublicKey,
        body: &Value,
    ) -> Option<()> {
        let request: ReservePurseRequest = typed(body)?;
        let purse_pub = request.purse_pub;
        let uri = PaytoUri::reserve(&self.base_url, &reserve).ok()?;
        let merge =
            WalletPurseMerge { merge_timestamp: request.merge_timestamp, purse_pub, h_payto: uri.hash() };
        signatures.add("/merge_sig", request.merge_pub, &merge);
        let account = WalletAccountMerge {
            purse_expiration: request.purse_expiration,
            purse_amount: request.purse_value,
            purse_fee: request.purse_fee.unwrap_or(Amount::zero(request.purse_value.currency)),
            h_contract_terms: request.h_contract_terms,
            purse_pub,
            merge_timestamp: request.merge_timestamp,
            min_age: request.min_age,
            flags: if request.purse_fee.is_some() { 3 } else { 2 },
        };
        signatures.add("/reserve_sig", reserve, &account);
        let create = WalletPurseCreate {
            purse_expiration: request.purse_expiration,
            purse_amount: request.purse_value,
            h_contract_terms: request.h_contract_terms,
            merge_pub: request.merge_pub,
            min_age: request.min_age,
        };
        signatures.add("/purse_sig", purse_pub, &create);
        contract(signatures, purse_pub, request.econtract.as_ref());
        Some(())
    }

    fn purse(&self, signatures: &mut Signatures, purse: &str, operation: &str, body: &Value) -> Option<()> {
        let purse_pub: EddsaPublicKey = purse.parse().ok()?;
        match operation {
            "create" => {
                let request: PurseCreateRequest = typed(body)?;
                let message = WalletPurseCreate {
                    purse_expiration: request.purse_expiration,
                    purse_amount: request.amount,
                    h_contract_terms: request.h_contract_terms,
                    merge_pub: request.merge_pub,
                    min_age: request.min_age,
                };
                signatures.add("/purse_sig", purse_pub, &message);
                contract(signatures, purse_pub, request.econtract.as_ref());
                self.purse_coins(signatures, purse_pub, &request.deposits);
            }
            "deposit" => {
                let request: PurseDepositRequest = typed(body)?;
                self.purse_coins(signatures, purse_pub, &request.deposits);
            }
            "merge" => {
                let request: PurseMergeRequest = typed(body)?;
                let purse = self.purses.get(&purse_pub)?;
                let merge = WalletPurseMerge {
                    merge_timestamp: request.merge_timestamp,
                    purse_pub,
                    h_payto: payto::h_payto(&request.payto_uri),
                };
                signatures.add("/merge_sig", purse.merge_pub, &merge);
                let uri = PaytoUri::parse(request.payto_uri.as_str()).ok()?;
                let (_, reserve_pub) = uri.to_reserve().ok()?;
                let account = WalletAccountMerge {
                    purse_expiration: purse.expiration,
                    purse_amount: purse.value,
                    purse_fee: Amount::zero(purse.value.currency),
                    h_contract_terms: purse.h_contract_terms,
                    purse_pub,
                    merge_timestamp: request.merge_timestamp,
                    min_age: purse.min_age,
                    flags: 1,
                };
                signatures.add("/reserve_sig", reserve_pub, &account);
            }
            _ => {}
        }
        Some(())
    }

    fn purse_coins(&self, signatures: &mut Signatures, purse_pub: EddsaPublicKey, coins: &[PurseCoin]) {
        for (index, coin) in coins.iter().enumerate() {
            let message = WalletPurseDeposit {
                coin_amount: coin.amount,
                h_denom_pub: coin.denom_pub_hash,
                h_age_commitment: coin.age_commitment.as_deref().map(h_age_commitment).unwrap_or_default(),
                purse_pub,
                h_exchange_base_url: hash_text(&self.base_url),
            };
            signatures.add(format!("/deposits/{index}/coin_sig"), coin.coin_pub, &message);
        }
    }

    fn coin(&self, signatures: &mut Signatures, coin: &str, operation: &str, body: &Value) -> Option<()> {
        let coin_pub: EddsaPublicKey = coin.parse().ok()?;
        match operation {
            "deposit" => {
                let request: DepositRequest = typed(body)?;
                let info = self.denominations.get(&request.denom_pub_hash)?;
                let h_policy = request.policy.as_ref().map(|policy| canonical::policy_hash(policy).ok());
                let message = WalletCoinDeposit {
                    h_contract_terms: request.h_contract_terms,
                    h_age_commitment: request.h_age_commitment.unwrap_or_default(),
                    h_policy: h_policy.flatten().unwrap_or_default(),
                    h_wire: payto::h_wire(&request.merchant_payto_uri, &request.wire_salt),
                    h_denom_pub: request.denom_pub_hash,
                    wallet_timestamp: request.timestamp,
                    refund_deadline: request.refund_deadline.unwrap_or_default(),
                    amount_with_fee: request.contribution,
                    deposit_fee: info.terms.fee_deposit,
                    merchant_pub: request.merchant_pub,
                };
                signatures.add("/coin_sig", coin_pub, &message);
            }
            "melt" => {
                let request: MeltRequest = typed(body)?;
                let info = self.denominations.get(&request.denom_pub_hash)?;
                let message = WalletCoinMelt {
                    refresh_commitment: request.rc,
                    h_denom_pub: request.denom_pub_hash,
                    h_age_commitment: request.age_commitment_hash.unwrap_or_default(),
                    amount_with_fee: request.value_with_fee,
                    melt_fee: info.terms.fee_refresh,
                };
                signatures.add("/confirm_sig", coin_pub, &message);
            }
            "refund" => {
                let request: RefundRequest = typed(body)?;
                let message = MerchantRefund {
                    h_contract_terms: request.h_contract_terms,
                    coin_pub,
                    rtransaction_id: request.rtransaction_id,
                    refund_amount: request.refund_amount,
                };
                signatures.add("/merchant_sig", request.merchant_pub, &message);
            }
            "recoup" | "recoup-refresh" => {
                let request: RecoupRequest = typed(body)?;
                let (h_denom_pub, coin_blind) = (request.denom_pub_hash, request.coin_blind_key_secret);
                if operation == "recoup" {
                    signatures.add("/coin_sig", coin_pub, &WalletCoinRecoup { h_denom_pub, coin_blind });
                } else {
                    let message = WalletCoinRecoupRefresh { h_denom_pub, coin_blind };
                    signatures.add("/coin_sig", coin_pub, &message);
                }
            }
            _ => {}
        }
        Some(())
    }

    fn batch_deposit(&self, signatures: &mut Signatures, body: &Value) -> Option<()> {
        let request: BatchDepositRequest = typed(body)?;
        let h_policy = request.policy.as_ref().map(|policy| canonical::policy_hash(policy).ok());
        for (index, coin) in request.coins.iter().enumerate() {
            let info = self.denominations.get(&coin.denom_pub_hash)?;
            let message = WalletCoinDeposit {
                h_contract_terms: request.h_contract_terms,
                h_age_commitment: coin.h_age_commitment.unwrap_or_default(),
                h_policy: h_policy.flatten().unwrap_or_default(),
                h_wire: payto::h_wire(&request.merchant_payto_uri, &request.wire_salt),
                h_denom_pub: coin.denom_pub_hash,
                wallet_timestamp: request.timestamp,
                refund_deadline: request.refund_deadline.unwrap_or_default(),
                amount_with_fee: coin.contribution,
                deposit_fee: info.terms.fee_deposit,
                merchant_pub: request.merchant_pub,
            };
            signatures.add(format!("/coins/{index}/coin_sig"), coin.coin_pub, &message);
        }
        Some(())
    }
}

fn contract(signatures: &mut Signatures, purse_pub: EddsaPublicKey, contract: Option<&EncryptedContract>) {
    if let Some(contract) = contract {
        let h_econtract = sha512(&contract.econtract.0);
        let message = WalletPurseEcontract { h_econtract, contract_pub: contract.contract_pub };
        signatures.add("/econtract/econtract_sig", purse_pub, &message);
    }
}

fn tracking(signatures: &mut Signatures, [h_wire, merchant, contract, coin]: [&str; 4]) -> Option<()> {
    let message = MerchantTrackTransaction {
        h_contract_terms: contract.parse().ok()?,
        h_wire: h_wire.parse().ok()?,
        coin_pub: coin.parse().ok()?,
    };
    signatures.add("?merchant_sig", merchant.parse().ok()?, &message);
    Some(())
}
