//! Fetches and verifies what an exchange publishes.

use std::collections::{BTreeMap, BTreeSet};

use batzen_crypto::{DenomPublicKey, EddsaPublicKey, HashCode};
use batzen_protocol::Timestamp;
use batzen_protocol::api::exchange::{Denomination, DenominationGroup, KeysResponse, WireResponse};
use batzen_protocol::denominations::DenominationTerms;
use batzen_protocol::signatures::{ExchangeKeySet, SignedMessage};
use serde::Deserialize;

use super::super::http::{Context, HttpRequest, HttpResponse};
use super::super::url::versions_compatible;
use super::super::{Change, CoreError};
use super::{Denom, Exchange, PROTOCOL_VERSION, Terms};
use crate::core::error::{Result, false_proof};

/// Fetches and verifies what an exchange publishes: `/keys`, `/wire`, `/terms`. Nothing is kept unless all
/// three are valid.
#[derive(Debug)]
pub struct ExchangeUpdate {
    base_url: String,
    previous: Option<Exchange>,
    keys: Option<KeysResponse>,
    wire: Option<WireResponse>,
}

impl ExchangeUpdate {
    /// Begins an update. `previous` is what the wallet knows already. The base URL must be in canonical form.
    #[must_use]
    pub fn new(base_url: String, previous: Option<Exchange>) -> Self {
        Self { base_url, previous, keys: None, wire: None }
    }

    /// The next request.
    #[must_use]
    pub fn next(&self) -> HttpRequest {
        let base = &self.base_url;
        if self.keys.is_none() {
            HttpRequest::get(Context::Info, format!("{base}keys"))
        } else if self.wire.is_none() {
            HttpRequest::get(Context::Info, format!("{base}wire"))
        } else {
            HttpRequest { accept: "text/plain", ..HttpRequest::get(Context::Info, format!("{base}terms")) }
        }
    }

    /// Processes the answer to [`ExchangeUpdate::next`]. After the last answer it returns the changes to be
    /// stored.
    ///
    /// # Errors
    /// If an answer is invalid. The update must then be abandoned.
    pub fn receive(&mut self, response: &HttpResponse, now: Timestamp) -> Result<Option<Vec<Change>>> {
        if self.keys.is_none() {
            if response.status != 200 {
                return Err(response.refusal("asking the exchange for its keys"));
            }
            // The version is checked first: another version may encode everything else differently.
            #[derive(Deserialize)]
            struct Versioned {
                version: String,
            }
            let version = response.json::<Versioned>("the exchange's keys")?.version;
            if !versions_compatible(PROTOCOL_VERSION, &version) {
                return Err(CoreError::Version {
                    base_url: self.base_url.clone(),
                    version,
                    ours: PROTOCOL_VERSION,
                });
            }
            let keys: KeysResponse = response.json("the exchange's keys")?;
            if self.previous.as_ref().is_some_and(|previous| previous.master_pub != keys.master_public_key) {
                return Err(CoreError::MasterKeyChanged { base_url: self.base_url.clone() });
            }
            self.keys = Some(keys);
            return Ok(None);
        }
        if self.wire.is_none() {
            if response.status != 200 {
                return Err(response.refusal("asking the exchange for its bank accounts"));
            }
            self.wire = Some(response.json("the exchange's bank accounts")?);
            return Ok(None);
        }
        if response.status != 200 {
            return Err(response.refusal("asking the exchange for its terms"));
        }
        let terms = Terms {
            // Without an `ETag` the text itself serves as the version.
            version: response
                .etag
                .clone()
                .unwrap_or_else(|| batzen_crypto::hash::sha512(&response.body).to_string()),
            text: String::from_utf8_lossy(&response.body).into_owned(),
            accepted: self.previous.as_ref().and_then(|previous| previous.terms.accepted.clone()),
        };
        let (Some(keys), Some(wire)) = (self.keys.take(), self.wire.take()) else {
            return Err(CoreError::Inconsistent("an update lost its answers".to_owned()));
        };
        let exchange = build(&self.base_url, self.previous.as_ref(), keys, wire, terms, now)?;
        Ok(Some(vec![Change::Exchange(Box::new(exchange))]))
    }
}

impl Exchange {
    /// Keeps what other steps recorded while the requests of this update were under way.
    pub fn keep(&mut self, known: &Self) {
        self.terms.accepted.clone_from(&known.terms.accepted);
        self.discretion = known.discretion;
        for denom in known.denoms.values() {
            let Some(fetched) = self.denoms.get_mut(&denom.h_denom_pub) else { continue };
            if denom.revoked {
                fetched.revoked = true;
                fetched.offered = false;
            }
            if denom.revoked_at.is_some() {
                fetched.revoked_at = denom.revoked_at;
            }
        }
    }
}

/// Verifies every signature and merges the result with the previous data.
fn build(
    base_url: &str,
    previous: Option<&Exchange>,
    keys: KeysResponse,
    wire: WireResponse,
    terms: Terms,
    now: Timestamp,
) -> Result<Exchange> {
    let master_pub = keys.master_public_key;
    let listed = verify_denominations(&keys)?;
    let currency = match listed.first() {
        Some((_, terms)) => terms.value.currency,
        None => match previous {
            Some(previous) => previous.currency,
            None => keys.currency.parse()?,
        },
    };
    if previous.is_some_and(|previous| previous.currency != currency) {
        return Err(false_proof("the exchange's keys", "they are for another currency than before"));
    }
    for signkey in &keys.signkeys {
        if !signkey.validity().verify(&master_pub, &signkey.master_sig) {
            return Err(CoreError::BadSignature { what: "the master key's signature of a signing key" });
        }
    }
    for fee in &keys.global_fees {
        if !fee.message().verify(&master_pub, &fee.master_sig) {
            return Err(CoreError::BadSignature { what: "the master key's signature of the global fees" });
        }
    }
    let mut denoms: BTreeMap<HashCode, Denom> =
        previous.map(|previous| previous.denoms.clone()).unwrap_or_default();
    for denom in denoms.values_mut() {
        denom.offered = false;
    }
    for (key, terms) in listed {
        let denom = Denom::new(key, &terms, currency)?;
        // The terms of a denomination never change. The master key could sign different terms for the same
        // key; coins were bought under the first ones, so those stay.
        match denoms.get_mut(&denom.h_denom_pub) {
            Some(known) => {
                let same = Denom {
                    offered: known.offered,
                    revoked: known.revoked,
                    revoked_at: known.revoked_at,
                    ..denom
                } == *known;
                if !same {
                    return Err(false_proof(
                        "the exchange's keys",
                        "a denomination's terms changed after it was announced",
                    ));
                }
                known.offered = true;
            }
            None => {
                denoms.insert(denom.h_denom_pub, denom);
            }
        }
    }
    let revoked: BTreeSet<HashCode> = keys.recoup.iter().flatten().map(|item| item.h_denom_pub).collect();
    for denom in denoms.values_mut() {
        if revoked.contains(&denom.h_denom_pub) {
            if denom.offered {
                return Err(false_proof("the exchange's keys", "a denomination is both offered and revoked"));
            }
            denom.revoked = true;
            denom.offered = false;
        }
    }
    verify_wire(&master_pub, &wire)?;
    let mut signkeys = keys.signkeys;
    for old in previous.iter().flat_map(|previous| &previous.signkeys) {
        if now < old.stamp_end && !signkeys.iter().any(|signkey| signkey.key == old.key) {
            signkeys.push(*old);
        }
    }
    Ok(Exchange {
        base_url: base_url.to_owned(),
        announced_url: Some(keys.base_url),
        currency,
        master_pub,
        version: keys.version,
        denoms,
        signkeys,
        accounts: wire.accounts.into_iter().map(|account| account.payto_uri).collect(),
        wire_fees: wire.fees,
        global_fees: keys.global_fees,
        reserve_closing_delay: keys.reserve_closing_delay,
        terms,
        discretion: previous.as_ref().map(|previous| previous.discretion).unwrap_or_default(),
        liabilities: previous.and_then(|previous| previous.liabilities.clone()),
        updated: now,
    })
}

/// The denominations of a listing, each verified against the master key. If both lists are present, they must
/// agree.
fn verify_denominations(keys: &KeysResponse) -> Result<Vec<(DenomPublicKey, DenominationTerms)>> {
    let mut listed: Vec<(DenomPublicKey, DenominationTerms)> = Vec::new();
    let mut hashes = BTreeSet::new();
    let verify = |key: &DenomPublicKey, terms: &DenominationTerms, signature| {
        let h_denom_pub = key.h_denom_pub();
        if terms.validity(keys.master_public_key, h_denom_pub).verify(&keys.master_public_key, signature) {
            Ok(h_denom_pub)
        } else {
            Err(CoreError::BadSignature { what: "the master key's signature of a denomination" })
        }
    };
    let mut flat = batzen_crypto::hash::Sha512::default();
    for denom in &keys.denoms {
        let terms = Denomination::terms(denom);
        let h_denom_pub = verify(&denom.denom_pub, &terms, &denom.master_sig)?;
        batzen_crypto::hash::Digest::update(&mut flat, h_denom_pub.as_bytes());
        if hashes.insert(h_denom_pub) {
            listed.push((denom.denom_pub.clone(), terms));
        }
    }
    let mut all = [0u8; 64];
    let mut grouped = BTreeSet::new();
    for group in &keys.denominations {
        let mut group_hash = [0u8; 64];
        for member in &group.denoms {
            let key = group.key(member).ok_or_else(|| {
                false_proof("the exchange's keys", "a denomination has no key of its group's cipher")
            })?;
            let terms = DenominationGroup::terms(group, member);
            let h_denom_pub = verify(&key, &terms, &member.master_sig)?;
            for (sum, byte) in group_hash.iter_mut().zip(h_denom_pub.as_bytes()) {
                *sum ^= byte;
            }
            grouped.insert(h_denom_pub);
            if hashes.insert(h_denom_pub) {
                listed.push((key, terms));
            }
        }
        if HashCode::from_bytes(group_hash) != group.hash {
            return Err(false_proof("the exchange's keys", "the hash of a denomination group is wrong"));
        }
        for (sum, byte) in all.iter_mut().zip(group_hash) {
            *sum ^= byte;
        }
    }
    if !keys.denoms.is_empty() && !keys.denominations.is_empty() && grouped.len() != hashes.len() {
        return Err(false_proof("the exchange's keys", "its two lists of denominations differ"));
    }
    if !keys.signkeys.iter().any(|signkey| signkey.key == keys.eddsa_pub) {
        return Err(false_proof(
            "the exchange's keys",
            "they are signed by a key that is not among its signing keys",
        ));
    }
    let checks = [
        (!keys.denoms.is_empty(), batzen_crypto::hash::finish(flat), &keys.eddsa_sig),
        (!keys.denominations.is_empty(), HashCode::from_bytes(all), &keys.denominations_sig),
    ];
    for (present, hc, signature) in checks {
        let message = ExchangeKeySet { list_issue_date: keys.list_issue_date, hc };
        if present && !message.verify(&keys.eddsa_pub, signature) {
            return Err(CoreError::BadSignature {
                what: "the exchange's signature of its list of denominations",
            });
        }
    }
    Ok(listed)
}

fn verify_wire(master_pub: &EddsaPublicKey, wire: &WireResponse) -> Result<()> {
    if wire.master_public_key != *master_pub {
        return Err(false_proof("the exchange's bank accounts", "another master key than for its keys"));
    }
    for account in &wire.accounts {
        if !account.message().verify(master_pub, &account.master_sig) {
            return Err(CoreError::BadSignature { what: "the master key's signature of a bank account" });
        }
    }
    for (method, fees) in &wire.fees {
        for fee in fees {
            if !fee.message(method).verify(master_pub, &fee.sig) {
                return Err(CoreError::BadSignature { what: "the master key's signature of the wire fees" });
            }
        }
    }
    Ok(())
}
