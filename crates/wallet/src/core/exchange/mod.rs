//! Exchanges as the wallet knows them, and what they publish.

mod update;

use std::collections::BTreeMap;

use batzen_crypto::{Cipher, DenomPublicKey, EddsaPublicKey, HashCode};
use batzen_protocol::api::exchange::{GlobalFee, SignKey, WireFee};
use batzen_protocol::denominations::DenominationTerms;
use batzen_protocol::{Amount, Currency, Duration, Money, PaytoUri, Timestamp};
use serde::{Deserialize, Serialize};

use super::CoreError;
use super::age::AgeLimit;
use super::discretion::Discretion;
use super::encoding::text;
use super::select::Offer;
use super::url::normalise_base_url;
use crate::core::error::Result;

pub use update::ExchangeUpdate;

/// The protocol version this wallet speaks, libtool style.
pub(crate) const PROTOCOL_VERSION: &str = "14:0:2";

/// Time that published data is used before the wallet asks again.
pub(crate) const CACHE_DURATION: Duration = Duration::from_secs(3600);

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
    pub(crate) stamp_start: Timestamp,
    /// End of the issue period.
    pub(crate) stamp_expire_withdraw: Timestamp,
    /// End of the period in which coins can be spent.
    pub stamp_expire_deposit: Timestamp,
    /// End of the period in which records are kept.
    pub(crate) stamp_expire_legal: Timestamp,
    /// Whether the exchange's latest listing contains it.
    pub offered: bool,
    /// Whether the exchange revoked it. Its coins are then recouped.
    pub revoked: bool,
    /// When the exchange signed a statement that it is revoked. A revocation is final.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) revoked_at: Option<Timestamp>,
}

impl Denom {
    /// Builds a denomination from a verified announcement.
    ///
    /// # Errors
    /// If its amounts are not in `currency`.
    pub(crate) fn new(key: DenomPublicKey, terms: &DenominationTerms, currency: Currency) -> Result<Self> {
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

    /// Returns whether it is Clause Blind Schnorr.
    #[must_use]
    pub fn is_cs(&self) -> bool {
        self.key.cipher() == Cipher::Cs
    }

    /// Returns whether its coins may be spent now. An exchange that has issued a coin has begun to accept it, whatever
    /// this device's clock says.
    pub(crate) fn can_deposit(&self, now: Timestamp) -> bool {
        !self.revoked && now < self.stamp_expire_deposit
    }

    /// Returns whether paying with `value` of it leaves something for the receiver.
    pub(crate) fn is_worth_paying(&self, value: Money) -> bool {
        value > self.fee_deposit
    }

    /// Returns whether its coins can be withdrawn now, with enough time left for a slow network. A margin
    /// before the end allows for a difference between the exchange's clock and ours.
    pub(crate) fn can_withdraw(&self, now: Timestamp) -> bool {
        let window_us = self.stamp_expire_withdraw.as_micros().saturating_sub(self.stamp_start.as_micros());
        let margin = Duration::from_micros((window_us / 20).min(600_000_000));
        self.offered
            && !self.revoked
            && self.stamp_start <= now
            && now.saturating_add(margin) < self.stamp_expire_withdraw
    }

    /// Returns whether its coins should be refreshed: three quarters of the time between the end of the issue
    /// period and the end of the deposit period are over.
    pub(crate) fn should_refresh(&self, now: Timestamp) -> bool {
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
    pub(crate) announced_url: Option<String>,
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
    pub(crate) signkeys: Vec<SignKey>,
    /// Its bank accounts: payto URIs.
    pub accounts: Vec<String>,
    /// Fees by wire method.
    pub(crate) wire_fees: BTreeMap<String, Vec<WireFee>>,
    /// Fees for reserves and purses.
    pub(crate) global_fees: Vec<GlobalFee>,
    /// Time that an unused reserve stays open before the money returns to the sender.
    pub(crate) reserve_closing_delay: Duration,
    /// The terms of service.
    pub terms: Terms,
    /// The user's wishes for privacy. Wallets of earlier versions did not keep them.
    #[serde(default)]
    pub discretion: Discretion,
    /// The last statement of its liabilities that the wallet has seen, if it has looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) liabilities: Option<Box<batzen_protocol::liabilities::Head>>,
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

    /// The reason why it offers no coins now.
    pub(crate) fn why_nothing_is_offered(&self, now: Timestamp) -> CoreError {
        let base_url = self.base_url.clone();
        let offered = || self.denoms.values().filter(|denom| denom.offered && !denom.revoked);
        if offered().any(|denom| denom.can_withdraw(now)) {
            return CoreError::FeesTakeAll(base_url);
        }
        match offered().map(|denom| denom.stamp_start).filter(|start| *start > now).min() {
            Some(start) => CoreError::ClockBehind { base_url, behind: start.saturating_since(now) },
            None => CoreError::NothingOffered(base_url),
        }
    }

    /// The denomination with this hash.
    ///
    /// # Errors
    /// [`CoreError::UnknownDenomination`].
    pub fn denom(&self, h_denom_pub: &HashCode) -> Result<&Denom> {
        self.denoms.get(h_denom_pub).ok_or(CoreError::UnknownDenomination(*h_denom_pub))
    }

    /// Returns whether the user has accepted the current terms of service.
    #[must_use]
    pub fn terms_accepted(&self) -> bool {
        self.terms.accepted.as_deref() == Some(&self.terms.version)
    }

    pub(crate) fn require_terms(&self) -> Result<()> {
        if self.terms_accepted() { Ok(()) } else { Err(CoreError::TermsNotAccepted(self.base_url.clone())) }
    }

    /// Returns whether the data is due for an update.
    #[must_use]
    pub fn is_stale(&self, now: Timestamp) -> bool {
        self.updated.saturating_add(CACHE_DURATION) <= now
    }

    /// Checks that `key` is an online signing key of this exchange.
    ///
    /// # Errors
    /// [`CoreError::UnknownSigningKey`]. The key may be newer than the stored listing: update the exchange
    /// and try again.
    pub fn require_signing_key(&self, key: &EddsaPublicKey, now: Timestamp) -> Result<()> {
        if self.signkeys.iter().any(|signkey| signkey.key == *key && now < signkey.stamp_end) {
            Ok(())
        } else {
            Err(CoreError::UnknownSigningKey { base_url: self.base_url.clone(), key: *key })
        }
    }

    /// The URL by which the exchange calls itself in what is signed. Trusted only if it names the same place.
    pub(crate) fn own_url(&self) -> &str {
        match &self.announced_url {
            Some(url) if normalise_base_url(url).is_ok_and(|url| url == self.base_url) => url,
            _ => &self.base_url,
        }
    }

    /// The fees for reserves and purses at `time`, if the exchange has published any.
    pub(crate) fn global_fee(&self, time: Timestamp) -> Option<&GlobalFee> {
        self.global_fees.iter().find(|fee| fee.start_date <= time && time < fee.end_date)
    }

    /// The age restriction of the coins of a new withdrawal.
    ///
    /// # Errors
    /// [`CoreError::NoAgeLimit`] if a limit is wanted and the exchange offers no such coins.
    pub(crate) fn age_limit(&self, wish: CoinWish, now: Timestamp) -> Result<Option<AgeLimit>> {
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

    /// The denominations without age restriction that can be withdrawn now; see `Exchange::offers_of`.
    #[must_use]
    pub fn offers(&self, cipher: CipherChoice, now: Timestamp) -> Vec<Offer> {
        self.offers_of(cipher, 0, now)
    }

    /// The denominations with these age groups (0: without) that can be withdrawn now: for each value the
    /// cheapest, and among equally cheap ones the newest.
    pub(crate) fn offers_of(&self, cipher: CipherChoice, age_mask: u32, now: Timestamp) -> Vec<Offer> {
        let available = || {
            let fits = move |denom: &&Denom| {
                denom.key.age_mask == age_mask
                    && denom.can_withdraw(now)
                    && denom.is_worth_paying(denom.value)
            };
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
    pub(crate) fn wire_fee_of(&self, method: &str, time: Timestamp) -> Option<Amount> {
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
