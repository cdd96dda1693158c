//! Exchanges as the wallet knows them. Fetches and verifies what they publish.

use std::collections::{BTreeMap, BTreeSet};

use batzen_crypto::{Cipher, DenomPublicKey, EddsaPublicKey, HashCode};
use batzen_protocol::api::exchange::{
    Denomination, DenominationGroup, GlobalFee, KeysResponse, SignKey, WireFee, WireResponse,
};
use batzen_protocol::denominations::DenominationTerms;
use batzen_protocol::signatures::{ExchangeKeySet, SignedMessage};
use batzen_protocol::{Amount, Currency, Duration, Money, PaytoUri, Timestamp};
use serde::{Deserialize, Serialize};

use super::age::AgeLimit;
use super::discretion::{Discretion, REFRESH_DELAY_MAX};
use super::encoding::text;
use super::http::{Context, HttpRequest, HttpResponse};
use super::select::Offer;
use super::url::{normalise_base_url, versions_compatible};
use super::{Change, CoreError};

/// The protocol version this wallet speaks, libtool style.
pub const PROTOCOL_VERSION: &str = "14:0:2";

/// How long published data is used before the wallet asks again.
pub const CACHE_DURATION: Duration = Duration::from_secs(3600);

/// Preferred kind of blind signature. If the exchange offers none of this kind, the other kind is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CipherChoice {
    /// The cheaper one.
    #[default]
    Any,
    /// Blind RSA.
    Rsa,
    /// Clause Blind Schnorr.
    Cs,
}

/// The coins that a withdrawal shall yield.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CoinWish {
    /// Preferred kind of blind signature.
    pub cipher: CipherChoice,
    /// The highest age that the coins can prove; `None` for coins without age limit.
    pub age_limit: Option<u8>,
}

impl From<CipherChoice> for CoinWish {
    fn from(cipher: CipherChoice) -> Self {
        Self { cipher, age_limit: None }
    }
}

/// A denomination with its terms, in the exchange's currency.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denom {
    /// Its hash, which identifies it everywhere.
    pub h_denom_pub: HashCode,
    /// The public key.
    pub key: DenomPublicKey,
    /// Value of a coin.
    #[serde(with = "text")]
    pub value: Money,
    /// Fee for withdrawing a coin.
    #[serde(with = "text")]
    pub fee_withdraw: Money,
    /// Fee for depositing a coin.
    #[serde(with = "text")]
    pub fee_deposit: Money,
    /// Fee for melting a coin.
    #[serde(with = "text")]
    pub fee_refresh: Money,
    /// Fee for refunding a coin.
    #[serde(with = "text")]
    pub fee_refund: Money,
    /// Start of the issue period.
    pub stamp_start: Timestamp,
    /// End of the issue period.
    pub stamp_expire_withdraw: Timestamp,
    /// End of the period in which coins can be spent.
    pub stamp_expire_deposit: Timestamp,
    /// End of the period in which records are kept.
    pub stamp_expire_legal: Timestamp,
    /// Whether the exchange's latest listing contains it.
    pub offered: bool,
    /// Whether the exchange revoked it. Its coins are then recouped.
    pub revoked: bool,
    /// When the exchange signed a statement that it is revoked. A revocation is final.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
}

impl Denom {
    /// Builds a denomination from a verified announcement.
    ///
    /// # Errors
    /// If its amounts are not in `currency`.
    pub fn new(
        key: DenomPublicKey,
        terms: &DenominationTerms,
        currency: Currency,
    ) -> Result<Self, CoreError> {
        Ok(Self {
            h_denom_pub: key.h_denom_pub(),
            key,
            value: terms.value.money_in(currency)?,
            fee_withdraw: terms.fee_withdraw.money_in(currency)?,
            fee_deposit: terms.fee_deposit.money_in(currency)?,
            fee_refresh: terms.fee_refresh.money_in(currency)?,
            fee_refund: terms.fee_refund.money_in(currency)?,
            stamp_start: terms.stamp_start,
            stamp_expire_withdraw: terms.stamp_expire_withdraw,
            stamp_expire_deposit: terms.stamp_expire_deposit,
            stamp_expire_legal: terms.stamp_expire_legal,
            offered: true,
            revoked: false,
            revoked_at: None,
        })
    }

    /// Records a signed statement that it is revoked.
    pub(crate) fn revoke(&mut self, now: Timestamp) {
        self.revoked = true;
        self.offered = false;
        self.revoked_at.get_or_insert(now);
    }

    /// Whether it is Clause Blind Schnorr.
    #[must_use]
    pub fn is_cs(&self) -> bool {
        self.key.cipher() == Cipher::Cs
    }

    /// Whether its coins may be spent now.
    #[must_use]
    pub fn can_deposit(&self, now: Timestamp) -> bool {
        !self.revoked && self.stamp_start <= now && now < self.stamp_expire_deposit
    }

    /// Whether its coins can be withdrawn now, with enough time left for a slow network. A margin before the
    /// end allows for a difference between the exchange's clock and ours.
    #[must_use]
    pub fn can_withdraw(&self, now: Timestamp) -> bool {
        let window_us = self.stamp_expire_withdraw.as_micros().saturating_sub(self.stamp_start.as_micros());
        let margin = Duration::from_micros((window_us / 20).min(600_000_000));
        self.offered
            && !self.revoked
            && self.stamp_start <= now
            && now.saturating_add(margin) < self.stamp_expire_withdraw
    }

    /// Whether its coins should be refreshed: three quarters of the time between the end of the issue period
    /// and the end of the deposit period are over.
    #[must_use]
    pub fn should_refresh(&self, now: Timestamp) -> bool {
        let (from, to) = (self.stamp_expire_withdraw.as_micros(), self.stamp_expire_deposit.as_micros());
        !self.stamp_expire_deposit.is_never()
            && now.as_micros() >= from.saturating_add(to.saturating_sub(from) / 4 * 3)
    }
}

/// The terms of service of an exchange.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Terms {
    /// Version: the `ETag`.
    pub version: String,
    /// The text.
    pub text: String,
    /// The version that the user accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted: Option<String>,
}

/// An exchange.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// Base URL in canonical form; identifies the exchange.
    pub base_url: String,
    /// The base URL that it announces, as it is spelled there. Wallets of earlier versions did not keep it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub announced_url: Option<String>,
    /// Its currency.
    pub currency: Currency,
    /// Its offline master key, fixed when it was added.
    pub master_pub: EddsaPublicKey,
    /// The protocol version it announced.
    pub version: String,
    /// All denominations ever listed, by hash.
    #[serde(with = "denom_list")]
    pub denoms: BTreeMap<HashCode, Denom>,
    /// All signing keys whose signatures may still be valid.
    pub signkeys: Vec<SignKey>,
    /// Its bank accounts: payto URIs.
    pub accounts: Vec<String>,
    /// Fees by wire method.
    pub wire_fees: BTreeMap<String, Vec<WireFee>>,
    /// Fees for reserves and purses.
    pub global_fees: Vec<GlobalFee>,
    /// How long an unused reserve stays open before the money returns to the sender.
    pub reserve_closing_delay: Duration,
    /// The terms of service.
    pub terms: Terms,
    /// What the user wants done for privacy. Wallets of earlier versions did not keep it.
    #[serde(default)]
    pub discretion: Discretion,
    /// The last statement of its liabilities that the wallet has seen, if it has looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub liabilities: Option<Box<batzen_protocol::liabilities::Head>>,
    /// When this data was fetched.
    pub updated: Timestamp,
}

impl Eq for Exchange {}

impl Exchange {
    /// Converts `money` into an amount in this exchange's currency.
    #[must_use]
    pub const fn amount(&self, money: Money) -> Amount {
        money.of(self.currency)
    }

    /// The denomination with this hash.
    ///
    /// # Errors
    /// [`CoreError::UnknownDenomination`].
    pub fn denom(&self, h_denom_pub: &HashCode) -> Result<&Denom, CoreError> {
        self.denoms.get(h_denom_pub).ok_or(CoreError::UnknownDenomination(*h_denom_pub))
    }

    /// Whether the user has accepted the current terms of service.
    #[must_use]
    pub fn terms_accepted(&self) -> bool {
        self.terms.accepted.as_deref() == Some(&self.terms.version)
    }

    pub(crate) fn require_terms(&self) -> Result<(), CoreError> {
        if self.terms_accepted() { Ok(()) } else { Err(CoreError::TermsNotAccepted(self.base_url.clone())) }
    }

    /// Whether the data is due for an update.
    #[must_use]
    pub fn is_stale(&self, now: Timestamp) -> bool {
        self.updated.saturating_add(CACHE_DURATION) <= now
    }

    /// Checks that `key` is an online signing key of this exchange.
    ///
    /// # Errors
    /// [`CoreError::UnknownSigningKey`]. The key may be newer than the stored listing: update the exchange
    /// and try again.
    pub fn require_signing_key(&self, key: &EddsaPublicKey, now: Timestamp) -> Result<(), CoreError> {
        if self.signkeys.iter().any(|signkey| signkey.key == *key && now < signkey.stamp_end) {
            Ok(())
        } else {
            Err(CoreError::UnknownSigningKey { base_url: self.base_url.clone(), key: *key })
        }
    }

    /// The URL by which the exchange calls itself in what is signed. Trusted only if it names the same place.
    #[must_use]
    pub fn own_url(&self) -> &str {
        match &self.announced_url {
            Some(url) if normalise_base_url(url).is_ok_and(|url| url == self.base_url) => url,
            _ => &self.base_url,
        }
    }

    /// The fees for reserves and purses at `time`, if the exchange has published any.
    #[must_use]
    pub fn global_fee(&self, time: Timestamp) -> Option<&GlobalFee> {
        self.global_fees.iter().find(|fee| fee.start_date <= time && time < fee.end_date)
    }

    /// The age restriction of the coins of a new withdrawal.
    ///
    /// # Errors
    /// [`CoreError::NoAgeLimit`] if a limit is wanted and the exchange offers no such coins.
    pub fn age_limit(&self, wish: CoinWish, now: Timestamp) -> Result<Option<AgeLimit>, CoreError> {
        let offered = || self.denoms.values().filter(|denom| denom.can_withdraw(now));
        let mask = offered().map(|denom| denom.key.age_mask).find(|mask| *mask != 0);
        match (wish.age_limit, mask) {
            (Some(_), None) => Err(CoreError::NoAgeLimit(self.base_url.clone())),
            (limit @ Some(_), Some(mask)) => Ok(Some(AgeLimit::new(mask, limit))),
            // Some exchanges offer only denominations with age groups: their coins can prove any age.
            (None, Some(mask)) if offered().all(|denom| denom.key.age_mask != 0) => {
                Ok(Some(AgeLimit::new(mask, None)))
            }
            (None, _) => Ok(None),
        }
    }

    /// The denominations without age restriction that can be withdrawn now; see [`Exchange::offers_of`].
    #[must_use]
    pub fn offers(&self, cipher: CipherChoice, now: Timestamp) -> Vec<Offer> {
        self.offers_of(cipher, 0, now)
    }

    /// The denominations with these age groups (0: without) that can be withdrawn now: for each value the
    /// cheapest, and among equally cheap ones the newest.
    #[must_use]
    pub fn offers_of(&self, cipher: CipherChoice, age_mask: u32, now: Timestamp) -> Vec<Offer> {
        let available = || {
            let fits = move |denom: &&Denom| denom.key.age_mask == age_mask && denom.can_withdraw(now);
            self.denoms.values().filter(fits)
        };
        let liked = |denom: &&Denom| match cipher {
            CipherChoice::Any => true,
            CipherChoice::Rsa => !denom.is_cs(),
            CipherChoice::Cs => denom.is_cs(),
        };
        let any_liked = available().any(|denom| liked(&denom));
        let mut best: BTreeMap<Money, &Denom> = BTreeMap::new();
        for denom in available().filter(|denom| !any_liked || liked(denom)) {
            let key = |denom: &Denom| {
                let later_fees = denom.fee_deposit.units() + denom.fee_refresh.units();
                (
                    denom.fee_withdraw,
                    later_fees,
                    std::cmp::Reverse(denom.stamp_start),
                    denom.is_cs(),
                    denom.h_denom_pub,
                )
            };
            best.entry(denom.value)
                .and_modify(|other| {
                    if key(denom) < key(other) {
                        *other = denom;
                    }
                })
                .or_insert(denom);
        }
        best.into_values()
            .map(|denom| Offer {
                h_denom_pub: denom.h_denom_pub,
                value: denom.value,
                fee_withdraw: denom.fee_withdraw,
            })
            .collect()
    }

    /// The wire fee of a transfer to `payto` at `time`, if the exchange publishes one.
    #[must_use]
    pub fn wire_fee(&self, payto: &str, time: Timestamp) -> Option<Amount> {
        self.wire_fee_of(PaytoUri::parse(payto).ok()?.method(), time)
    }

    /// The wire fee of a transfer by a wire method at `time`, if the exchange publishes one.
    #[must_use]
    pub fn wire_fee_of(&self, method: &str, time: Timestamp) -> Option<Amount> {
        let fees = self.wire_fees.get(method)?;
        fees.iter().find(|fee| fee.start_date <= time && time < fee.end_date).map(|fee| fee.wire_fee)
    }
}

/// Serializes the denominations as a list, since each contains its hash.
mod denom_list {
    use super::{BTreeMap, Denom, Deserialize, HashCode, Serialize};
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        denoms: &BTreeMap<HashCode, Denom>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        denoms.values().collect::<Vec<_>>().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<HashCode, Denom>, D::Error> {
        let list = Vec::<Denom>::deserialize(deserializer)?;
        Ok(list.into_iter().map(|denom| (denom.h_denom_pub, denom)).collect())
    }
}

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
    pub fn receive(
        &mut self,
        response: &HttpResponse,
        now: Timestamp,
    ) -> Result<Option<Vec<Change>>, CoreError> {
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

fn bad(what: &'static str, reason: impl Into<String>) -> CoreError {
    CoreError::FalseProof { what, reason: reason.into() }
}

/// Verifies every signature and merges the result with the previous data.
fn build(
    base_url: &str,
    previous: Option<&Exchange>,
    keys: KeysResponse,
    wire: WireResponse,
    terms: Terms,
    now: Timestamp,
) -> Result<Exchange, CoreError> {
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
        return Err(bad("the exchange's keys", "they are for another currency than before"));
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
                    return Err(bad(
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
                return Err(bad("the exchange's keys", "a denomination is both offered and revoked"));
            }
            denom.revoked = true;
            denom.offered = false;
        }
    }
    verify_wire(&master_pub, &wire)?;
    let mut signkeys = keys.signkeys;
    for old in previous.iter().flat_map(|previous| &previous.signkeys) {
        if now < old.stamp_end && !signkeys.iter().any(|signkey| signkey.key == old.key) {
            signkeys.push(old.clone());
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
fn verify_denominations(keys: &KeysResponse) -> Result<Vec<(DenomPublicKey, DenominationTerms)>, CoreError> {
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
                bad("the exchange's keys", "a denomination has no key of its group's cipher")
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
            return Err(bad("the exchange's keys", "the hash of a denomination group is wrong"));
        }
        for (sum, byte) in all.iter_mut().zip(group_hash) {
            *sum ^= byte;
        }
    }
    if !keys.denoms.is_empty() && !keys.denominations.is_empty() && grouped.len() != hashes.len() {
        return Err(bad("the exchange's keys", "its two lists of denominations differ"));
    }
    if !keys.signkeys.iter().any(|signkey| signkey.key == keys.eddsa_pub) {
        return Err(bad(
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

fn verify_wire(master_pub: &EddsaPublicKey, wire: &WireResponse) -> Result<(), CoreError> {
    if wire.master_public_key != *master_pub {
        return Err(bad("the exchange's bank accounts", "another master key than for its keys"));
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

/// The changes that record the user's acceptance of the current terms.
///
/// # Errors
/// [`CoreError::UnknownExchange`].
pub fn accept_terms(state: &super::WalletState, base_url: &str) -> Result<Vec<Change>, CoreError> {
    let mut exchange = state.exchange(base_url)?.clone();
    exchange.terms.accepted = Some(exchange.terms.version.clone());
    Ok(vec![Change::Exchange(Box::new(exchange))])
}

/// The changes that record what the user wants done for privacy.
///
/// # Errors
/// [`CoreError::UnknownExchange`], or [`CoreError::BadInput`] if the delay is too long.
pub fn set_discretion(
    state: &super::WalletState,
    base_url: &str,
    discretion: Discretion,
) -> Result<Vec<Change>, CoreError> {
    if discretion.refresh_delay > REFRESH_DELAY_MAX {
        let reason = format!("it can be at most {REFRESH_DELAY_MAX}");
        return Err(CoreError::BadInput { what: "refresh delay", reason });
    }
    let mut exchange = state.exchange(base_url)?.clone();
    exchange.discretion = discretion;
    Ok(vec![Change::Exchange(Box::new(exchange))])
}
