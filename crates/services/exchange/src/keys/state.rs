//! The key state: an immutable snapshot of all keys, which is replaced as a whole.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Deref;
use std::sync::Arc;

use batzen_crypto::denom::{Cipher, DenomPublicKey};
use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode};
use batzen_protocol::api::exchange::{FutureDenomination, FutureKeys, FutureSignKey, SignKey};
use batzen_protocol::signatures::MasterDenominationKeyValidity;
use batzen_protocol::{Amount, Currency, Duration, ErrorCode, Money, Timestamp};
use batzen_signer::listing::DenomInfo;
use batzen_signer::{Custody, DenomHandle, SigningHandle};
use batzen_store::{Store, StoreError};
use batzen_tables::exchange::{
    AuditorDenoms, AuditorRow, Auditors, DenomRow, DenomSerial, Denominations, Extensions, ExtensionsRow,
    GlobalFeeRow, GlobalFees, Revocations, SigningKeyRow, SigningKeys, WireAccountRow, WireAccounts,
    WireFeeRow, WireFees,
};

use super::listing::KeysListing;
use super::signer::Signer;
use super::{KeysAnswer, WireAnswer, WireMissing};
use crate::config::{CoinConfig, ExchangeConfig};
use crate::metrics::Metrics;
use crate::reads::read;
use crate::rules::DenomTerms;

/// A denomination that the master key has signed.
#[derive(Debug)]
pub struct Denom {
    /// Its number in rows.
    pub serial: DenomSerial,
    /// The hash that identifies it in the protocol.
    pub h_denom_pub: HashCode,
    /// Its public key, prepared for verification.
    pub public: DenomPublicKey,
    /// Value, fees and times.
    terms: DenomTerms,
    /// `MASTER_DENOMINATION_KEY_VALIDITY`.
    pub master_sig: EddsaSignature,
    /// Whether it is revoked.
    pub revoked: bool,
    key: Option<DenomHandle>,
}

impl Deref for Denom {
    type Target = DenomTerms;

    fn deref(&self) -> &DenomTerms {
        &self.terms
    }
}

impl Denom {
    /// Returns whether a private key is available.
    pub fn can_sign(&self) -> bool {
        self.key.is_some()
    }

    pub(super) fn key(&self) -> Option<&DenomHandle> {
        self.key.as_ref()
    }

    /// The message that the master key signed.
    pub(crate) fn validity(
        &self,
        master_pub: EddsaPublicKey,
        currency: Currency,
    ) -> MasterDenominationKeyValidity {
        MasterDenominationKeyValidity {
            master_pub,
            start: self.start,
            expire_withdraw: self.expire_withdraw,
            expire_deposit: self.expire_deposit,
            expire_legal: self.expire_legal,
            value: self.value.of(currency),
            fee_withdraw: self.fee_withdraw.of(currency),
            fee_deposit: self.fee_deposit.of(currency),
            fee_refresh: self.fee_refresh.of(currency),
            fee_refund: self.fee_refund.of(currency),
            h_denom_pub: self.h_denom_pub,
        }
    }

    fn new(serial: DenomSerial, row: DenomRow, revoked: bool, held: &HashMap<HashCode, DenomHandle>) -> Self {
        let public = row.public().expect("keys were valid when they came into the table");
        // A revoked key must never sign again, even if its file is still there.
        let key = if revoked { None } else { held.get(&public.h_key()).cloned() };
        Self {
            serial,
            h_denom_pub: row.h_denom_pub,
            public,
            terms: DenomTerms::of(&row),
            master_sig: row.master_sig,
            revoked,
            key,
        }
    }
}

/// An online signing key with the master key's signature.
#[derive(Clone, Debug)]
pub(crate) struct OnlineKey {
    pub(crate) exchange_pub: EddsaPublicKey,
    /// From when it signs.
    pub(crate) start: Timestamp,
    /// The time until which it signs.
    pub(crate) expire: Timestamp,
    /// The time until which its signatures are valid.
    pub(crate) end: Timestamp,
    /// `MASTER_SIGNING_KEY_VALIDITY`.
    pub(crate) master_sig: EddsaSignature,
    /// Whether it is revoked.
    pub(crate) revoked: bool,
}

/// Pause before another attempt to sign a list of keys.
const RETRY: Duration = Duration::from_secs(1);

/// There is no online signing key that is valid now, signed by the master key, and available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no usable online signing key")]
pub struct NoSigningKey;

impl NoSigningKey {
    /// The code to answer with.
    pub(crate) fn code(self) -> ErrorCode {
        ErrorCode::EXCHANGE_GENERIC_KEYS_MISSING
    }
}

/// The values that `POST /management/keys` must match for a key that is not in use yet.
pub(crate) struct FutureDenom {
    pub(crate) row: DenomRow,
    pub(crate) announcement: FutureDenomination,
}

/// The keys at one moment.
#[derive(Debug)]
pub struct KeyState {
    master_pub: EddsaPublicKey,
    pub(crate) currency: Currency,
    denoms: Vec<Arc<Denom>>,
    by_hash: HashMap<HashCode, usize>,
    by_bare: HashMap<HashCode, usize>,
    /// All online signing keys that were ever in use.
    pub(crate) signing_keys: Vec<OnlineKey>,
    online: Option<SigningHandle>,
    /// The enabled bank accounts.
    pub(crate) accounts: Vec<WireAccountRow>,
    wire_fees: BTreeMap<String, Vec<(Timestamp, WireFeeRow)>>,
    /// All global fee periods by start.
    pub(super) global_fees: Vec<(Timestamp, GlobalFeeRow)>,
    pub(super) auditors: BTreeMap<EddsaPublicKey, AuditorRow>,
    keys: Option<KeysListing>,
    wire: Result<WireAnswer, WireMissing>,
    /// When the snapshot must be rebuilt at the latest.
    pub(crate) rebuild_at: Timestamp,
    /// The least number of changes of the key set that it includes ([`read::key_set_version`]).
    pub(crate) version: u64,
    signer: Signer,
}

impl KeyState {
    /// Reads the key set and combines it with the available private keys. Blocks until signatures are made,
    /// so do not call it in a task.
    pub(crate) fn build(
        store: &Store,
        custody: &Custody,
        config: &ExchangeConfig,
        now: Timestamp,
        metrics: &Metrics,
    ) -> Result<Self, StoreError> {
        let master_pub = config.master_public_key.expect("the start has settled which master key it is");
        // Read the version first, so that a change during the remaining reads makes this snapshot out of
        // date.
        let version = read::key_set_version(store)?;
        let revoked: HashSet<DenomSerial> =
            store.all::<Revocations>()?.into_iter().map(|found| found.key.serial).collect();
        let held: HashMap<HashCode, DenomHandle> =
            custody.denominations().into_iter().map(|key| (key.info().h_bare, key)).collect();
        let mut rows = store.all::<Denominations>()?;
        rows.sort_by_key(|found| found.key.serial);
        let denoms: Vec<Arc<Denom>> = rows
            .into_iter()
            .map(|found| {
                let serial = found.key.serial;
                Arc::new(Denom::new(serial, found.row, revoked.contains(&serial), &held))
            })
            .collect();
        for (index, denom) in denoms.iter().enumerate() {
            assert_eq!(denom.serial.0 as usize, index + 1, "denominations are numbered without gaps");
        }
        let by_hash = denoms.iter().enumerate().map(|(index, denom)| (denom.h_denom_pub, index)).collect();
        let by_bare = denoms.iter().enumerate().map(|(index, denom)| (denom.public.h_key(), index)).collect();
        let signing_keys: Vec<OnlineKey> = store
            .all::<SigningKeys>()?
            .into_iter()
            .map(|found| online_key(found.key.exchange_pub, &found.row))
            .collect();
        let online = usable_key(&signing_keys, custody, now);
        let mut accounts: Vec<_> = store.all::<WireAccounts>()?.into_iter().map(|found| found.row).collect();
        accounts.retain(|account| account.enabled);
        let mut wire_fees: BTreeMap<String, Vec<(Timestamp, WireFeeRow)>> = BTreeMap::new();
        for found in store.all::<WireFees>()? {
            wire_fees.entry(found.key.method).or_default().push((found.key.start, found.row));
        }
        for periods in wire_fees.values_mut() {
            periods.sort_by_key(|(start, _)| *start);
        }
        let mut global_fees: Vec<_> =
            store.all::<GlobalFees>()?.into_iter().map(|found| (found.key.start, found.row)).collect();
        global_fees.sort_by_key(|(start, _)| *start);
        let auditors: BTreeMap<_, _> =
            store.all::<Auditors>()?.into_iter().map(|found| (found.key.auditor_pub, found.row)).collect();
        let wire = WireAnswer::new(master_pub, config.currency, &accounts, &wire_fees);
        let mut state = Self {
            master_pub,
            currency: config.currency,
            signer: Signer::new(denoms.clone()),
            denoms,
            by_hash,
            by_bare,
            signing_keys,
            online,
            accounts,
            wire_fees,
            global_fees,
            auditors,
            keys: None,
            wire,
            rebuild_at: Timestamp::NEVER,
            version,
        };
        let signatures = store
            .all::<AuditorDenoms>()?
            .into_iter()
            // A denomination may be newer than the rows read above.
            .filter(|found| state.find_denomination_by_serial(found.key.serial).is_some())
            .map(|found| (found.key.auditor_pub, found.key.serial, found.row.auditor_sig))
            .collect::<Vec<_>>();
        let extensions = store.all::<Extensions>()?.pop().map(|found| found.row);
        state.rebuild_at = Timestamp::NEVER;
        match KeysListing::new(&state, custody, config, &signatures, extensions.as_ref(), now) {
            Ok(keys) => state.keys = keys,
            // No listing is better than an outdated one.
            Err(error) => {
                tracing::warn!(%error, "the list of keys could not be signed");
                state.rebuild_at = now.saturating_add(RETRY);
            }
        }
        state.rebuild_at = state.rebuild_at.min(state.next_change(now));
        metrics.key_state_builds.inc();
        Ok(state)
    }

    /// The time at which the snapshot must be rebuilt even without a change: a signing key begins or ends, or
    /// the listing expires.
    fn next_change(&self, now: Timestamp) -> Timestamp {
        let after = |time: Timestamp| time.saturating_add(Duration::from_secs(1));
        let keys = self.signing_keys.iter().filter(|key| !key.revoked);
        let keys = keys.flat_map(|key| [key.start, after(key.expire)]);
        let listing = self.keys.as_ref().map(KeysListing::expires);
        let fees = self.global_fees.iter().map(|(_, fee)| after(fee.end));
        keys.chain(listing).chain(fees).filter(|time| *time > now).min().unwrap_or(Timestamp::NEVER)
    }

    /// The master public key.
    pub fn master_pub(&self) -> &EddsaPublicKey {
        &self.master_pub
    }

    /// A denomination by the hash that requests use.
    pub fn find_denomination(&self, h_denom_pub: &HashCode) -> Option<&Denom> {
        self.by_hash.get(h_denom_pub).map(|index| self.denoms[*index].as_ref())
    }

    /// A denomination by its number in rows.
    ///
    /// # Panics
    /// If there is none: rows name only denominations that exist.
    pub fn denomination_by_serial(&self, serial: DenomSerial) -> &Denom {
        self.find_denomination_by_serial(serial).expect("rows name denominations that exist")
    }

    /// The same for numbers that may be newer than the snapshot.
    pub(crate) fn find_denomination_by_serial(&self, serial: DenomSerial) -> Option<&Denom> {
        self.denoms.get((serial.0 as usize).checked_sub(1)?).map(AsRef::as_ref)
    }

    /// All denominations in the order of their numbers.
    pub fn denoms(&self) -> &[Arc<Denom>] {
        &self.denoms
    }

    /// The fees of a wire method at a given time.
    pub fn wire_fee(&self, method: &str, time: Timestamp) -> Option<&WireFeeRow> {
        let periods = self.wire_fees.get(method)?;
        periods.iter().find(|(start, fee)| *start <= time && time < fee.end).map(|(_, fee)| fee)
    }

    /// The global fees at a given time, with the start of their period.
    pub(crate) fn global_fee(&self, time: Timestamp) -> Option<&(Timestamp, GlobalFeeRow)> {
        self.global_fees.iter().find(|(start, fee)| *start <= time && time < fee.end)
    }

    /// The fee periods of a wire method by start.
    pub(super) fn wire_fees(&self, method: &str) -> &[(Timestamp, WireFeeRow)] {
        self.wire_fees.get(method).map_or(&[], Vec::as_slice)
    }

    /// An auditor, enabled or not.
    pub(crate) fn auditor(&self, auditor_pub: &EddsaPublicKey) -> Option<&AuditorRow> {
        self.auditors.get(auditor_pub)
    }

    /// The online key that signs answers now.
    pub fn online_key(&self) -> Result<&SigningHandle, NoSigningKey> {
        self.online.as_ref().ok_or(NoSigningKey)
    }

    /// Finds the keys to sign blinded planchets with.
    pub fn signer(&self) -> &Signer {
        &self.signer
    }

    /// The answer to `/keys`: all keys, or those from a start on. None if there are no usable keys.
    pub fn keys_answer(&self, last_issue_date: Option<Timestamp>) -> Option<Arc<KeysAnswer>> {
        self.keys.as_ref()?.answer(self, last_issue_date)
    }

    /// The answer to `/wire`, or what prevents it.
    pub(crate) fn wire_answer(&self) -> Result<&WireAnswer, &WireMissing> {
        self.wire.as_ref()
    }

    pub(crate) fn is_bare_revoked(&self, h_bare: &HashCode) -> bool {
        self.by_bare.get(h_bare).is_some_and(|index| self.denoms[*index].revoked)
    }

    pub(crate) fn signed_until(&self, h_bare: &HashCode) -> Option<Timestamp> {
        self.by_bare.get(h_bare).map(|index| self.denoms[*index].expire_withdraw)
    }

    pub(crate) fn signing_key(&self, exchange_pub: &EddsaPublicKey) -> Option<&OnlineKey> {
        self.signing_keys.iter().find(|key| key.exchange_pub == *exchange_pub)
    }

    pub(crate) fn is_signkey_revoked(&self, exchange_pub: &EddsaPublicKey) -> bool {
        self.signing_key(exchange_pub).is_some_and(|key| key.revoked)
    }

    pub(crate) fn signing_until(&self, exchange_pub: &EddsaPublicKey) -> Option<Timestamp> {
        self.signing_key(exchange_pub).map(|key| key.expire)
    }

    /// Denomination keys that the master key has not signed, with what it would sign.
    pub(crate) fn future_denoms(&self, custody: &Custody, config: &ExchangeConfig) -> Vec<FutureDenom> {
        let keys = custody.denominations().into_iter();
        let keys = keys.filter(|key| !self.by_bare.contains_key(&key.info().h_bare));
        // The section may have been removed, and then the coin's value is unknown.
        keys.filter_map(|key| Some(future_denom(key.info(), config.find_coin(key.info())?, config))).collect()
    }

    /// Signing keys that the master key has not signed.
    pub(crate) fn future_signkeys(&self, custody: &Custody, config: &ExchangeConfig) -> Vec<FutureSignKey> {
        let keys = custody.signing_keys().into_iter();
        let keys = keys.filter(|key| self.signing_key(&key.public_key()).is_none());
        keys.map(|key| {
            let key = key.info();
            let expire = key.anchor.saturating_add(key.duration);
            FutureSignKey {
                key: key.exchange_pub,
                stamp_start: key.anchor,
                stamp_expire: expire,
                stamp_end: expire.saturating_add(config.signkey_legal_duration),
                signkey_secmod_sig: key.announcement,
            }
        })
        .collect()
    }

    /// The answer to `GET /management/keys`, without keys whose use is over; none before the modules are known.
    pub(crate) fn future_keys(
        &self,
        custody: &Custody,
        config: &ExchangeConfig,
        now: Timestamp,
    ) -> Option<FutureKeys> {
        let modules = custody.module_keys()?;
        let keys = custody.denominations();
        let module = |cipher, key| {
            let announced = keys.iter().any(|key| key.info().cipher() == cipher);
            if announced { key } else { EddsaPublicKey::ZERO }
        };
        let denoms = self.future_denoms(custody, config).into_iter().map(|denom| denom.announcement);
        let signing = self.future_signkeys(custody, config).into_iter();
        Some(FutureKeys {
            future_denoms: denoms.filter(|denom| denom.stamp_expire_withdraw > now).collect(),
            future_signkeys: signing.filter(|key| key.stamp_expire > now).collect(),
            master_pub: self.master_pub,
            denom_secmod_public_key: module(Cipher::Rsa, modules.rsa),
            denom_secmod_cs_public_key: module(Cipher::Cs, modules.cs),
            signkey_secmod_public_key: modules.eddsa,
        })
    }
}

fn online_key(exchange_pub: EddsaPublicKey, row: &SigningKeyRow) -> OnlineKey {
    OnlineKey {
        exchange_pub,
        start: row.start,
        expire: row.expire,
        end: row.end,
        master_sig: row.master_sig,
        revoked: row.revoked.is_some(),
    }
}

impl OnlineKey {
    /// The key as the master key has signed it.
    pub(crate) fn signed(&self) -> SignKey {
        SignKey {
            key: self.exchange_pub,
            stamp_start: self.start,
            stamp_expire: self.expire,
            stamp_end: self.end,
            master_sig: self.master_sig,
        }
    }
}

/// The oldest key that is valid now, because it is the most likely to be in the listings that clients have
/// cached.
fn usable_key(keys: &[OnlineKey], custody: &Custody, now: Timestamp) -> Option<SigningHandle> {
    let held = custody.signing_keys();
    let usable = keys.iter().filter(|key| !key.revoked && key.start <= now && now <= key.expire);
    usable
        .filter_map(|key| Some((key.expire, held.iter().find(|held| held.public_key() == key.exchange_pub)?)))
        .min_by_key(|(expire, _)| *expire)
        .map(|(_, key)| key.clone())
}

fn future_denom(key: &DenomInfo, coin: &CoinConfig, config: &ExchangeConfig) -> FutureDenom {
    let public = key.public(config.age_mask(coin));
    let cipher = key.cipher();
    let expire_withdraw = key.anchor.saturating_add(key.duration);
    let expire_deposit = expire_withdraw.saturating_add(coin.duration_spend);
    let row = DenomRow {
        h_denom_pub: public.h_denom_pub(),
        cipher,
        public_key: public.key_bytes().to_vec(),
        age_mask: public.age_mask,
        value: coin.value,
        fee_withdraw: coin.fees.withdraw,
        fee_deposit: coin.fees.deposit,
        fee_refresh: coin.fees.refresh,
        fee_refund: coin.fees.refund,
        start: key.anchor,
        expire_withdraw,
        expire_deposit,
        expire_legal: expire_deposit.saturating_add(coin.duration_legal),
        // Not signed yet: the signature arrives with the request.
        master_sig: EddsaSignature::ZERO,
    };
    let amount = |money: Money| -> Amount { money.of(config.currency) };
    let announcement = FutureDenomination {
        section_name: coin.section.clone(),
        value: amount(row.value),
        stamp_start: row.start,
        stamp_expire_withdraw: row.expire_withdraw,
        stamp_expire_deposit: row.expire_deposit,
        stamp_expire_legal: row.expire_legal,
        denom_pub: public,
        fee_withdraw: amount(row.fee_withdraw),
        fee_deposit: amount(row.fee_deposit),
        fee_refresh: amount(row.fee_refresh),
        fee_refund: amount(row.fee_refund),
        denom_secmod_sig: key.announcement,
    };
    FutureDenom { row, announcement }
}

/// Returns the published extensions: the signed manifests if they are stored, otherwise those that the
/// configuration enables.
pub(super) fn extension_manifests(
    config: &ExchangeConfig,
    stored: Option<&ExtensionsRow>,
) -> Option<(serde_json::Value, Option<EddsaSignature>)> {
    if let Some(row) = stored {
        let manifests = serde_json::from_str(&row.manifests).expect("manifests were valid JSON when stored");
        return Some((manifests, Some(row.master_sig)));
    }
    config.age_restriction.as_ref().map(|extension| (extension.manifests(), None))
}
