//! The keys of the exchange in a recording, and the signatures of its offline keys.

use std::collections::{BTreeMap, HashMap, HashSet};

use batzen_crypto::{CsVerifyingKey, DenomKey, DenomPublicKey, EddsaPublicKey, HashCode, RsaPublicKey};
use batzen_protocol::api::exchange::*;
use batzen_protocol::denominations::{DenominationInfo, key_set_hash, key_set_xor};
use batzen_protocol::signatures::*;
use batzen_protocol::{Amount, Timestamp, canonical, hash_text, payto};
use serde_json::Value;

use crate::http_vectors::recording::Recording;

/// Counts verifications, so that a test can check that there were some.
#[derive(Default)]
pub(super) struct Tally(pub BTreeMap<&'static str, usize>);

impl Tally {
    pub(super) fn add(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    /// Checks that the signature verifies.
    pub(super) fn good<M: SignedMessage>(
        &mut self,
        message: &M,
        key: &EddsaPublicKey,
        signature: &batzen_crypto::EddsaSignature,
    ) {
        assert!(message.verify(key, signature), "{} does not verify", name::<M>());
        self.add(name::<M>());
    }

    /// Checks that the signature verifies exactly if `expected`.
    pub(super) fn either<M: SignedMessage>(
        &mut self,
        expected: bool,
        message: &M,
        key: &EddsaPublicKey,
        signature: &batzen_crypto::EddsaSignature,
    ) {
        assert_eq!(message.verify(key, signature), expected, "{}", name::<M>());
        self.add(if expected { name::<M>() } else { "refused signature" });
    }
}

fn name<M>() -> &'static str {
    std::any::type_name::<M>().rsplit("::").next().unwrap()
}

/// The exchange's data for the other checks.
#[derive(Default)]
pub(super) struct Exchange {
    pub master_pub: EddsaPublicKey,
    pub base_url: String,
    pub currency: String,
    pub denominations: HashMap<HashCode, DenominationInfo>,
    pub signkeys: HashSet<EddsaPublicKey>,
    pub global_fees: Vec<GlobalFee>,
    auditors: HashMap<EddsaPublicKey, String>,
}

impl Exchange {
    /// Collects the keys from all recordings of a file, whatever their order.
    pub(super) fn of(recordings: &[Recording]) -> Self {
        let mut this = Self::default();
        for recording in recordings.iter().filter(|recording| recording.server == "exchange") {
            let (method, path) = recording.route();
            match (method, path.as_slice(), recording.response.status) {
                ("GET", ["keys"], 200) if recording.response.body.is_object() => {
                    this.add_keys(recording.response());
                }
                ("GET", ["management", "keys"], 200) => {
                    let future: FutureKeys = recording.response();
                    this.master_pub = future.master_pub;
                    for denom in future.future_denoms {
                        this.add_denomination(denom.denom_pub.clone(), denom.terms());
                    }
                    this.signkeys.extend(future.future_signkeys.iter().map(|key| key.key));
                }
                ("POST", ["management", "auditors"], 204) => {
                    let request: AuditorAddRequest = recording.request();
                    this.auditors.insert(request.auditor_pub, request.auditor_url);
                }
                _ => {}
            }
        }
        this
    }

    fn add_keys(&mut self, keys: KeysResponse) {
        self.master_pub = keys.master_public_key;
        self.base_url = keys.base_url;
        self.currency = keys.currency;
        for denom in keys.denoms {
            self.add_denomination(denom.denom_pub.clone(), denom.terms());
        }
        self.signkeys.extend(keys.signkeys.iter().map(|key| key.key));
        self.auditors
            .extend(keys.auditors.into_iter().map(|auditor| (auditor.auditor_pub, auditor.auditor_url)));
        self.global_fees.extend(keys.global_fees);
    }

    fn add_denomination(
        &mut self,
        denom_pub: DenomPublicKey,
        terms: batzen_protocol::denominations::DenominationTerms,
    ) {
        let info = DenominationInfo::new(denom_pub, terms);
        self.denominations.insert(info.h_denom_pub, info);
    }

    pub(super) fn history_fee(&self, time: Timestamp) -> Amount {
        let applies = |fee: &&GlobalFee| fee.start_date <= time && time < fee.end_date;
        self.global_fees.iter().find(applies).expect("a global fee").history_fee
    }

    /// The denomination, which must be known.
    pub(super) fn denomination(&self, h_denom_pub: &HashCode) -> &DenominationInfo {
        self.denominations.get(h_denom_pub).unwrap_or_else(|| panic!("unknown denomination {h_denom_pub}"))
    }

    /// An online signature of the exchange.
    pub(super) fn online<M: SignedMessage>(
        &self,
        tally: &mut Tally,
        message: &M,
        exchange_pub: &EddsaPublicKey,
        signature: &batzen_crypto::EddsaSignature,
    ) {
        assert!(self.signkeys.contains(exchange_pub), "unknown signing key");
        tally.good(message, exchange_pub, signature);
    }

    /// Checks everything that the master key, auditors and security modules signed.
    pub(super) fn check(&self, recording: &Recording, tally: &mut Tally) {
        let (method, path) = recording.route();
        match (method, path.as_slice(), recording.response.status) {
            ("GET", ["keys"], 200) if recording.response.body.is_object() => {
                self.keys(tally, &recording.response());
            }
            ("GET", ["wire"], 200) => self.wire(tally, &recording.response()),
            ("GET", ["management", "keys"], 200) => future_keys(tally, &recording.response()),
            ("POST", ["management", rest @ ..], _) => self.management(recording, rest, tally),
            ("POST", ["auditors", auditor, denom], status) => {
                let (auditor, denom): (EddsaPublicKey, HashCode) =
                    (auditor.parse().unwrap(), denom.parse().unwrap());
                let request: AuditorSignatureRequest = recording.request();
                if status == 204 {
                    let terms = self.denomination(&denom).terms;
                    let url = self.auditors.get(&auditor).expect("a known auditor");
                    tally.good(
                        &terms.auditor_approval(url, self.master_pub, denom),
                        &auditor,
                        &request.auditor_sig,
                    );
                }
            }
            _ => {}
        }
    }

    fn keys(&self, tally: &mut Tally, keys: &KeysResponse) {
        let master = &keys.master_public_key;
        let mut hashes = Vec::new();
        for denom in &keys.denoms {
            let hash = denom.denom_pub.h_denom_pub();
            tally.good(&denom.terms().validity(*master, hash), master, &denom.master_sig);
            hashes.push(hash);
        }
        assert!(
            keys.denoms.windows(2).all(|pair| pair[0].stamp_start >= pair[1].stamp_start),
            "order of denoms"
        );
        assert_eq!(keys.list_issue_date, keys.denoms.last().unwrap().stamp_start);
        let flat = key_set(keys.list_issue_date, key_set_hash(&hashes));
        assert!(keys.signkeys.iter().any(|key| key.key == keys.eddsa_pub));
        self.online(tally, &flat, &keys.eddsa_pub, &keys.eddsa_sig);
        let mut grouped = Vec::new();
        for group in &keys.denominations {
            let mut members = Vec::new();
            for member in &group.denoms {
                let key = match (&member.rsa_pub, &member.cs_pub) {
                    (Some(encoded), None) => DenomKey::Rsa(RsaPublicKey::decode(&encoded.0).unwrap()),
                    (None, Some(point)) => DenomKey::Cs(CsVerifyingKey::new(point).unwrap()),
                    _ => panic!("a group member has one key"),
                };
                let restricted =
                    matches!(group.cipher, GroupCipher::RsaAgeRestricted | GroupCipher::CsAgeRestricted);
                assert_eq!(group.age_mask.is_some(), restricted);
                let hash = DenomPublicKey { age_mask: group.age_mask.unwrap_or(0), key }.h_denom_pub();
                tally.good(&group.terms(member).validity(*master, hash), master, &member.master_sig);
                members.push(hash);
            }
            assert_eq!(key_set_xor(&members), group.hash, "group hash");
            grouped.extend(members);
        }
        let xor = key_set_xor(&grouped);
        self.online(tally, &key_set(keys.list_issue_date, xor), &keys.eddsa_pub, &keys.denominations_sig);
        if !keys.denominations.is_empty() {
            hashes.sort_unstable();
            grouped.sort_unstable();
            assert_eq!(hashes, grouped, "both listings have the same keys");
        }
        for key in &keys.signkeys {
            tally.good(&key.validity(), master, &key.master_sig);
        }
        for fee in &keys.global_fees {
            tally.good(&fee.message(), master, &fee.master_sig);
        }
        for auditor in &keys.auditors {
            for denom in &auditor.denomination_keys {
                let terms = self.denomination(&denom.denom_pub_h).terms;
                let approval = terms.auditor_approval(&auditor.auditor_url, *master, denom.denom_pub_h);
                tally.good(&approval, &auditor.auditor_pub, &denom.auditor_sig);
            }
        }
        if let (Some(extensions), Some(signature)) = (&keys.extensions, &keys.extensions_sig) {
            let manifests = serde_json::to_value(extensions).unwrap();
            tally.good(&extension_message(&manifests), master, signature);
        }
    }

    fn wire(&self, tally: &mut Tally, wire: &WireResponse) {
        let master = &wire.master_public_key;
        assert_eq!(*master, self.master_pub);
        for account in &wire.accounts {
            tally.good(&account.message(), master, &account.master_sig);
        }
        for (method, fees) in &wire.fees {
            for fee in fees {
                tally.good(&fee.message(method), master, &fee.sig);
            }
        }
    }

    fn management(&self, recording: &Recording, path: &[&str], tally: &mut Tally) {
        let master = &self.master_pub;
        let code = recording.code();
        // Only check answers that depend on the signature.
        let good = match (recording.ok(), code) {
            (true, _) => true,
            (false, Some(1802 | 1803 | 1804 | 1805 | 1810 | 1812 | 1814 | 1815 | 1817 | 1818)) => false,
            (false, Some(1808 | 1809)) => false,
            _ => return,
        };
        match path {
            ["keys"] => {
                let request: ManagementKeysRequest = recording.request();
                // A refusal does not say which signature was wrong.
                for item in request.denom_sigs.iter().filter(|_| good) {
                    let terms = self.denomination(&item.h_denom_pub).terms;
                    tally.good(&terms.validity(*master, item.h_denom_pub), master, &item.master_sig);
                }
                // Times of signing keys are in the listings, where their signatures are checked.
            }
            ["denominations", hash, "revoke"] => {
                let request: RevokeRequest = recording.request();
                let message = MasterDenominationKeyRevoked { h_denom_pub: hash.parse().unwrap() };
                tally.either(good, &message, master, &request.master_sig);
            }
            ["signkeys", key, "revoke"] => {
                let request: RevokeRequest = recording.request();
                let message = MasterSigningKeyRevoked { signkey_pub: key.parse().unwrap() };
                tally.either(good, &message, master, &request.master_sig);
            }
            ["auditors"] => {
                let request: AuditorAddRequest = recording.request();
                let message = MasterAddAuditor {
                    start_date: request.validity_start,
                    auditor_pub: request.auditor_pub,
                    h_auditor_url: hash_text(&request.auditor_url),
                };
                tally.either(good, &message, master, &request.master_sig);
            }
            ["auditors", auditor, "disable"] => {
                let request: AuditorDisableRequest = recording.request();
                let message = MasterDelAuditor {
                    end_date: request.validity_end,
                    auditor_pub: auditor.parse().unwrap(),
                };
                tally.either(good, &message, master, &request.master_sig);
            }
            ["wire"] => {
                let request: WireAddRequest = recording.request();
                let h_payto = payto::h_payto(&request.payto_uri);
                let add = MasterAddWire { start_date: request.validity_start, h_payto };
                let details = MasterWireDetails { h_wire_details: h_payto };
                if code != Some(1808) {
                    tally.either(good, &add, master, &request.master_sig_add);
                }
                if code != Some(1809) {
                    tally.either(good, &details, master, &request.master_sig_wire);
                }
            }
            ["wire", "disable"] => {
                let request: WireDisableRequest = recording.request();
                let message = MasterDelWire {
                    end_date: request.validity_end,
                    h_payto: payto::h_payto(&request.payto_uri),
                };
                tally.either(good, &message, master, &request.master_sig_del);
            }
            ["wire-fee"] => {
                let request: WireFeeRequest = recording.request();
                let message = MasterWireFees {
                    h_wire_method: hash_text(&request.wire_method),
                    start_date: request.fee_start,
                    end_date: request.fee_end,
                    wire_fee: request.wire_fee,
                    closing_fee: request.closing_fee,
                };
                tally.either(good, &message, master, &request.master_sig);
            }
            ["global-fee"] => {
                let request: GlobalFeeRequest = recording.request();
                let message = MasterGlobalFees {
                    start_date: request.fee_start,
                    end_date: request.fee_end,
                    purse_timeout: request.purse_timeout,
                    history_expiration: request.history_expiration,
                    history_fee: request.history_fee,
                    account_fee: request.account_fee,
                    purse_fee: request.purse_fee,
                    purse_account_limit: request.purse_account_limit,
                };
                tally.either(good, &message, master, &request.master_sig);
            }
            ["extensions"] => {
                let request: ExtensionsRequest = recording.request();
                tally.good(&extension_message(&request.extensions), master, &request.extensions_sig);
            }
            ["drain"] => {
                let request: DrainRequest = recording.request();
                let message = MasterDrainProfit {
                    wtid: request.wtid,
                    date: request.date,
                    amount: request.amount,
                    h_section: hash_text(&request.debit_account_section),
                    h_payto: payto::h_payto(&request.credit_payto_uri),
                };
                tally.either(good, &message, master, &request.master_sig);
            }
            _ => panic!("unknown management request"),
        }
    }
}

fn key_set(list_issue_date: Timestamp, hc: HashCode) -> ExchangeKeySet {
    ExchangeKeySet { list_issue_date, hc }
}

fn extension_message(manifests: &Value) -> MasterExtension {
    MasterExtension { h_manifests: canonical::manifests_hash(manifests).unwrap() }
}

fn future_keys(tally: &mut Tally, keys: &FutureKeys) {
    for denom in &keys.future_denoms {
        let h_section_name = hash_text(&denom.section_name);
        let duration_withdraw = denom.stamp_expire_withdraw.saturating_since(denom.stamp_start);
        let (anchor_time, h_key) = (denom.stamp_start, denom.denom_pub.h_key());
        match denom.denom_pub.key {
            DenomKey::Rsa(_) => tally.good(
                &SmRsaDenominationKey { h_rsa: h_key, h_section_name, anchor_time, duration_withdraw },
                &keys.denom_secmod_public_key,
                &denom.denom_secmod_sig,
            ),
            DenomKey::Cs(_) => tally.good(
                &SmCsDenominationKey { h_cs: h_key, h_section_name, anchor_time, duration_withdraw },
                &keys.denom_secmod_cs_public_key,
                &denom.denom_secmod_sig,
            ),
        }
    }
    for key in &keys.future_signkeys {
        let message = SmSigningKey {
            exchange_pub: key.key,
            anchor_time: key.stamp_start,
            duration: key.stamp_expire.saturating_since(key.stamp_start),
        };
        tally.good(&message, &keys.signkey_secmod_public_key, &key.signkey_secmod_sig);
    }
}
