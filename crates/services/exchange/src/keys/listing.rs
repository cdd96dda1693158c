//! The answers to `/keys` and `/wire`, prepared once for many clients.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use batzen_crypto::denom::{Cipher, DenomKey as BareKey};
use batzen_crypto::hash::{Digest, Sha512, finish, sha512};
use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode};
use batzen_http::{Bytes, deflate, http_date};
use batzen_protocol::api::exchange::{
    AuditorDenomination, AuditorKeys, Denomination, DenominationGroup, GlobalFee, GroupCipher, GroupMember,
    KeysResponse, RecoupDenomination, SignKey, WireAccount, WireFee, WireResponse,
};
use batzen_protocol::payto::PaytoUri;
use batzen_protocol::signatures::{ExchangeKeySet, SignedMessage};
use batzen_protocol::{Amount, Currency, Duration, ErrorCode, Timestamp};
use batzen_signer::client::Unavailable;
use batzen_signer::{Custody, SigningHandle};
use batzen_tables::exchange::{DenomSerial, ExtensionsRow, KycOperation, WireAccountRow, WireFeeRow};

use super::state::{Denom, KeyState, OnlineKey, extension_manifests};
use crate::config::ExchangeConfig;

/// The published protocol version, in libtool style.
pub(crate) const PROTOCOL_VERSION: &str = "14:0:2";

/// A prepared answer to `/keys`.
#[derive(Debug)]
pub struct KeysAnswer {
    /// The JSON text.
    pub body: Bytes,
    /// The same compressed (zlib).
    pub(crate) deflated: Bytes,
    /// Base32 of its SHA-512, unquoted.
    pub(crate) etag: String,
    /// When the key state was built, as an HTTP date.
    pub(crate) last_modified: String,
    /// The time until which clients may keep it, as an HTTP date; absent if it never expires.
    pub(crate) expires: Option<String>,
}

/// The part that all answers of one key state share, and the answers made so far.
#[derive(Debug)]
pub(super) struct KeysListing {
    /// Everything but the denominations and what depends on them.
    frame: KeysResponse,
    last_modified: String,
    expires: Timestamp,
    has_expiry: bool,
    /// One slot for every start, oldest first. The first is the full answer. Each is filled when it is first
    /// asked for.
    slots: BTreeMap<Timestamp, PartialAnswer>,
}

/// The answer for one start.
#[derive(Debug)]
struct PartialAnswer {
    /// One over all its denominations, one over all its groups.
    signatures: [EddsaSignature; 2],
    answer: OnceLock<Arc<KeysAnswer>>,
}

impl KeysListing {
    /// None if there is no denomination or no usable signing key. All answers are signed together here.
    pub(super) fn new(
        state: &KeyState,
        custody: &Custody,
        config: &ExchangeConfig,
        auditor_sigs: &[(EddsaPublicKey, DenomSerial, EddsaSignature)],
        extensions: Option<&ExtensionsRow>,
        now: Timestamp,
    ) -> Result<Option<Self>, Unavailable> {
        let Ok(key) = state.online_key() else { return Ok(None) };
        let denoms = listed(state);
        let Some(oldest) = denoms.last().map(|denom| denom.start) else { return Ok(None) };
        let slots = sign_slots(&denoms, custody, key)?;
        let (extensions, extensions_sig) = match extension_manifests(config, extensions) {
            Some((manifests, sig)) => {
                (Some(serde_json::from_value(manifests).expect("manifests were checked when stored")), sig)
            }
            None => (None, None),
        };
        let frame = KeysResponse {
            version: PROTOCOL_VERSION.into(),
            base_url: config.base_url.clone(),
            currency: config.currency.as_str().into(),
            asset_type: config.asset_type.clone(),
            master_public_key: *state.master_pub(),
            reserve_closing_delay: config.idle_reserve_expiration,
            signkeys: signkeys(state, now),
            recoup: Some(
                state
                    .denoms()
                    .iter()
                    .filter(|denom| denom.revoked)
                    .map(|denom| RecoupDenomination { h_denom_pub: denom.h_denom_pub })
                    .collect(),
            ),
            denoms: Vec::new(),
            denominations: Vec::new(),
            auditors: auditors(state, auditor_sigs),
            global_fees: global_fees(state, now),
            list_issue_date: oldest,
            eddsa_pub: key.public_key(),
            eddsa_sig: EddsaSignature::ZERO,
            denominations_sig: EddsaSignature::ZERO,
            wallet_balance_limit_without_kyc: balance_limits(config),
            extensions,
            extensions_sig,
        };
        let lifetime = config.max_keys_caching.min(rekey_interval(state, now));
        let expires = now.saturating_add(lifetime);
        let has_expiry = expires > now && !expires.is_never();
        let listing = Self { frame, last_modified: http_date(now), expires, has_expiry, slots };
        // Most clients ask for the full answer, so prepare it now.
        listing.answer(state, None);
        Ok(Some(listing))
    }

    /// The time until which clients may keep the answers.
    pub(super) fn expires(&self) -> Timestamp {
        self.expires
    }

    /// The answer with all denominations, or with those that start at `since` or later, if one starts exactly
    /// then.
    pub(super) fn answer(&self, state: &KeyState, since: Option<Timestamp>) -> Option<Arc<KeysAnswer>> {
        let since = since.filter(|since| self.slots.contains_key(since));
        let (start, slot) = match since {
            Some(since) => (since, &self.slots[&since]),
            None => self.slots.first_key_value().map(|(start, slot)| (*start, slot))?,
        };
        let make = || Arc::new(self.make(state, start, slot.signatures));
        Some(Arc::clone(slot.answer.get_or_init(make)))
    }

    fn make(
        &self,
        state: &KeyState,
        since: Timestamp,
        [eddsa_sig, denominations_sig]: [EddsaSignature; 2],
    ) -> KeysAnswer {
        let mut denoms = listed(state);
        denoms.retain(|denom| denom.start >= since);
        let list_issue_date = denoms.last().expect("a slot has a denomination").start;
        let response = KeysResponse {
            denoms: denoms.iter().map(|denom| denomination(denom, state.currency)).collect(),
            denominations: groups(&denoms, state.currency),
            list_issue_date,
            eddsa_sig,
            denominations_sig,
            ..self.frame.clone()
        };
        let body = serde_json::to_vec(&response).expect("key listings can be written as JSON");
        let etag = sha512(&body).to_string();
        let deflated = deflate(&body).into();
        // The interval is zero or for ever, so there is no useful date.
        let expires = self.has_expiry.then(|| http_date(self.expires));
        KeysAnswer { body: body.into(), deflated, etag, last_modified: self.last_modified.clone(), expires }
    }
}

/// The balances from which wallets must be identified; none without such rules.
fn balance_limits(config: &ExchangeConfig) -> Option<Vec<Amount>> {
    let rules = config.kyc.rules.rules.iter().filter(|rule| rule.operation == KycOperation::Balance);
    let limits: Vec<Amount> = rules.map(|rule| rule.threshold.of(config.currency)).collect();
    (!limits.is_empty()).then_some(limits)
}

/// The listed denominations, newest first, so that those from any start on form a prefix.
fn listed(state: &KeyState) -> Vec<&Denom> {
    let mut denoms: Vec<&Denom> = state.denoms().iter().map(AsRef::as_ref).collect();
    denoms.retain(|denom| !denom.revoked);
    denoms.sort_by_key(|denom| (std::cmp::Reverse(denom.start), denom.serial));
    denoms
}

/// Signs the answers for all starts. Each covers the hash over a prefix of the denominations, and the sum of
/// their hashes, which equals the sum over the groups.
fn sign_slots(
    denoms: &[&Denom],
    custody: &Custody,
    key: &SigningHandle,
) -> Result<BTreeMap<Timestamp, PartialAnswer>, Unavailable> {
    let (mut hasher, mut sum) = (Sha512::new(), HashCode::ZERO);
    let (mut starts, mut messages) = (Vec::new(), Vec::new());
    for (index, denom) in denoms.iter().enumerate() {
        hasher.update(denom.h_denom_pub.as_bytes());
        sum = xor(sum, denom.h_denom_pub);
        if denoms.get(index + 1).is_none_or(|next| next.start != denom.start) {
            let list_issue_date = denom.start;
            starts.push(list_issue_date);
            for hc in [finish(hasher.clone()), sum] {
                messages.push(ExchangeKeySet { list_issue_date, hc }.message().as_ref().into());
            }
        }
    }
    let signatures = custody.sign_waiting(key, messages)?;
    let slot = |pair: &[EddsaSignature]| PartialAnswer {
        signatures: pair.try_into().expect("two signatures a start"),
        answer: OnceLock::new(),
    };
    Ok(starts.into_iter().zip(signatures.chunks_exact(2).map(slot)).collect())
}

fn xor(a: HashCode, b: HashCode) -> HashCode {
    let mut bytes = *a.as_bytes();
    for (byte, other) in bytes.iter_mut().zip(b.as_bytes()) {
        *byte ^= other;
    }
    HashCode::from_bytes(bytes)
}

fn signkeys(state: &KeyState, now: Timestamp) -> Vec<SignKey> {
    let keys = state.signing_keys.iter().filter(|key| !key.revoked && key.expire > now);
    keys.map(OnlineKey::signed).collect()
}

fn auditors(
    state: &KeyState,
    signatures: &[(EddsaPublicKey, DenomSerial, EddsaSignature)],
) -> Vec<AuditorKeys> {
    let enabled = state.auditors.iter().filter(|(_, auditor)| auditor.enabled);
    enabled
        .map(|(auditor_pub, auditor)| AuditorKeys {
            auditor_pub: *auditor_pub,
            auditor_url: auditor.url.clone(),
            auditor_name: auditor.name.clone(),
            denomination_keys: signatures
                .iter()
                .filter(|(by, _, _)| by == auditor_pub)
                .map(|(_, serial, sig)| AuditorDenomination {
                    denom_pub_h: state.denomination_by_serial(*serial).h_denom_pub,
                    auditor_sig: *sig,
                })
                .collect(),
        })
        .collect()
}

fn global_fees(state: &KeyState, now: Timestamp) -> Vec<GlobalFee> {
    let currency = state.currency;
    let current = state.global_fees.iter().filter(|(_, fee)| fee.end > now);
    current
        .map(|(start, fee)| GlobalFee {
            start_date: *start,
            end_date: fee.end,
            history_fee: fee.history_fee.of(currency),
            account_fee: fee.account_fee.of(currency),
            purse_fee: fee.purse_fee.of(currency),
            history_expiration: fee.history_expiration,
            purse_timeout: fee.purse_timeout,
            purse_account_limit: fee.purse_account_limit,
            master_sig: fee.master_sig,
        })
        .collect()
}

fn denomination(denom: &Denom, currency: Currency) -> Denomination {
    Denomination {
        denom_pub: denom.public.clone(),
        value: denom.value.of(currency),
        fee_withdraw: denom.fee_withdraw.of(currency),
        fee_deposit: denom.fee_deposit.of(currency),
        fee_refresh: denom.fee_refresh.of(currency),
        fee_refund: denom.fee_refund.of(currency),
        stamp_start: denom.start,
        stamp_expire_withdraw: denom.expire_withdraw,
        stamp_expire_deposit: denom.expire_deposit,
        stamp_expire_legal: denom.expire_legal,
        master_sig: denom.master_sig,
    }
}

/// Groups the denominations by equal terms; groups are in the order of their newest member.
fn groups(denoms: &[&Denom], currency: Currency) -> Vec<DenominationGroup> {
    let mut groups: Vec<DenominationGroup> = Vec::new();
    let mut places = HashMap::new();
    for denom in denoms {
        let fees = [denom.fee_withdraw, denom.fee_deposit, denom.fee_refresh, denom.fee_refund]
            .map(batzen_protocol::Money::units);
        let terms = (denom.cipher, denom.value.units(), fees, denom.public.age_mask);
        let place = *places.entry(terms).or_insert_with(|| {
            let age_mask = Some(denom.public.age_mask).filter(|mask| *mask != 0);
            groups.push(DenominationGroup {
                cipher: match (denom.cipher, age_mask) {
                    (Cipher::Rsa, None) => GroupCipher::Rsa,
                    (Cipher::Rsa, Some(_)) => GroupCipher::RsaAgeRestricted,
                    (Cipher::Cs, None) => GroupCipher::Cs,
                    (Cipher::Cs, Some(_)) => GroupCipher::CsAgeRestricted,
                },
                value: denom.value.of(currency),
                fee_withdraw: denom.fee_withdraw.of(currency),
                fee_deposit: denom.fee_deposit.of(currency),
                fee_refresh: denom.fee_refresh.of(currency),
                fee_refund: denom.fee_refund.of(currency),
                age_mask,
                hash: HashCode::ZERO,
                denoms: Vec::new(),
            });
            groups.len() - 1
        });
        let group = &mut groups[place];
        group.hash = xor(group.hash, denom.h_denom_pub);
        let (rsa_pub, cs_pub) = match &denom.public.key {
            BareKey::Rsa(key) => (Some(key.encode().to_vec().into()), None),
            BareKey::Cs(key) => (None, Some(*key.as_public_key())),
        };
        group.denoms.push(GroupMember {
            rsa_pub,
            cs_pub,
            stamp_start: denom.start,
            stamp_expire_withdraw: denom.expire_withdraw,
            stamp_expire_deposit: denom.expire_deposit,
            stamp_expire_legal: denom.expire_legal,
            master_sig: denom.master_sig,
        });
    }
    groups
}

/// The shortest lifetime among the active signing keys and the withdraw windows of future denominations: new
/// keys appear about this often.
fn rekey_interval(state: &KeyState, now: Timestamp) -> Duration {
    let signing = state.signing_keys.iter().filter(|key| !key.revoked && key.expire > now);
    let signing = signing.map(|key| key.expire.saturating_since(key.start));
    let coming = state.denoms().iter().filter(|denom| !denom.revoked && denom.start > now);
    let coming = coming.map(|denom| denom.expire_withdraw.saturating_since(denom.start));
    signing.chain(coming).min().unwrap_or(Duration::FOREVER)
}

/// The prepared answer to `/wire`.
#[derive(Debug)]
pub(crate) struct WireAnswer {
    /// The JSON text.
    pub(crate) body: Bytes,
    /// The same compressed (zlib).
    pub(crate) deflated: Bytes,
    /// Base32 of its SHA-512, unquoted.
    pub(crate) etag: String,
    /// The time until which clients may keep it, as an HTTP date.
    pub(crate) expires: String,
}

/// The reasons why `/wire` cannot be answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireMissing {
    /// No bank account is enabled.
    #[error("no bank account is enabled")]
    Accounts,
    /// An account has no recognizable method.
    #[error("{0}: not a payto URI")]
    Payto(String),
    /// There are no fees for a method in use.
    #[error("no fees for method {0}")]
    Fees(String),
}

impl WireMissing {
    /// The code to answer with.
    pub(crate) fn code(&self) -> ErrorCode {
        match self {
            Self::Accounts => ErrorCode::EXCHANGE_WIRE_NO_ACCOUNTS_CONFIGURED,
            Self::Payto(_) => ErrorCode::EXCHANGE_WIRE_INVALID_PAYTO_CONFIGURED,
            Self::Fees(_) => ErrorCode::EXCHANGE_WIRE_FEES_NOT_CONFIGURED,
        }
    }

    /// The detail of the error answer.
    pub(crate) fn detail(&self) -> &str {
        match self {
            Self::Accounts => "",
            Self::Payto(text) | Self::Fees(text) => text,
        }
    }
}

impl WireAnswer {
    pub(super) fn new(
        master_public_key: EddsaPublicKey,
        currency: Currency,
        accounts: &[WireAccountRow],
        fees: &BTreeMap<String, Vec<(Timestamp, WireFeeRow)>>,
    ) -> Result<Self, WireMissing> {
        if accounts.is_empty() {
            return Err(WireMissing::Accounts);
        }
        let mut used: BTreeMap<String, Vec<WireFee>> = BTreeMap::new();
        let mut expires = Timestamp::NEVER;
        for account in accounts {
            let payto = PaytoUri::parse(account.payto_uri.as_str())
                .map_err(|_| WireMissing::Payto(account.payto_uri.clone()))?;
            let method = payto.method();
            if used.contains_key(method) {
                continue;
            }
            let missing = || WireMissing::Fees(method.to_owned());
            let periods = fees.get(method).ok_or_else(missing)?;
            expires = expires.min(periods.iter().map(|(_, fee)| fee.end).max().ok_or_else(missing)?);
            let periods = periods.iter().map(|(start, fee)| WireFee {
                wire_fee: fee.wire_fee.of(currency),
                closing_fee: fee.closing_fee.of(currency),
                start_date: *start,
                end_date: fee.end,
                sig: fee.master_sig,
            });
            used.insert(method.to_owned(), periods.collect());
        }
        let response = WireResponse {
            accounts: accounts
                .iter()
                .map(|account| WireAccount {
                    payto_uri: account.payto_uri.clone(),
                    master_sig: account.master_sig,
                })
                .collect(),
            fees: used,
            master_public_key,
        };
        let body = serde_json::to_vec(&response).expect("wire answers can be written as JSON");
        let (etag, deflated) = (sha512(&body).to_string(), deflate(&body).into());
        Ok(Self { body: body.into(), deflated, etag, expires: http_date(expires) })
    }
}
