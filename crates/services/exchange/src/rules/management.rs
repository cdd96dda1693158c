//! Changes of the key set, the accounts and the fees. All of them are signed by the offline master key or an
//! auditor's key. The signatures have been checked before a command arrives here.

use batzen_crypto::{EddsaPublicKey, EddsaSignature, ShortHash, Wtid};
use batzen_engine::{Command, Plan, WorkingSet};
use batzen_protocol::{Money, MoneySum, Timestamp};
use batzen_tables::exchange::{
    AuditorDenomKey, AuditorDenomRow, AuditorDenoms, AuditorKey, AuditorRow, Auditors, CounterKey,
    CounterRow, Counters, DenomKey, DenomRow, DenomSerial, Denominations, DrainRow, Drains, Extensions,
    ExtensionsKey, ExtensionsRow, GlobalFeeKey, GlobalFeeRow, GlobalFees, RevocationRow, Revocations,
    SigningKeyKey, SigningKeyRow, SigningKeys, WireAccountRow, WireAccounts, WireFeeKey, WireFeeRow,
    WireFees, WireTargetKey, WtidKey,
};

use super::ExchangeRules;

/// A signed change.
#[derive(Clone, Debug)]
pub enum Management {
    /// Puts keys into use, all or nothing.
    Keys {
        /// Denominations with the serials that they will have, consecutive from the next free one.
        /// Denominations that are active already must not be included.
        denominations: Vec<(DenomSerial, DenomRow)>,
        /// Online signing keys.
        signing_keys: Vec<(EddsaPublicKey, SigningKeyRow)>,
    },
    /// Revokes a denomination for ever.
    RevokeDenomination {
        /// The key.
        serial: DenomSerial,
        /// `MASTER_DENOMINATION_KEY_REVOKED`.
        master_sig: EddsaSignature,
    },
    /// Revokes an online signing key for ever.
    RevokeSigningKey {
        /// The key.
        exchange_pub: EddsaPublicKey,
        /// `MASTER_SIGNING_KEY_REVOKED`.
        master_sig: EddsaSignature,
    },
    /// Enables an auditor.
    EnableAuditor {
        /// The auditor.
        auditor_pub: EddsaPublicKey,
        /// Its base URL.
        url: String,
        /// Its name.
        name: String,
        /// The signed time.
        start: Timestamp,
    },
    /// Disables an auditor.
    DisableAuditor {
        /// The auditor.
        auditor_pub: EddsaPublicKey,
        /// The signed time.
        end: Timestamp,
    },
    /// Stores an auditor's signature on a denomination.
    AuditorSignature {
        /// The auditor.
        auditor_pub: EddsaPublicKey,
        /// The denomination.
        serial: DenomSerial,
        /// `AUDITOR_EXCHANGE_KEYS`.
        auditor_sig: EddsaSignature,
    },
    /// Publishes a bank account.
    EnableWire {
        /// Hash of the payto URI.
        h_payto: ShortHash,
        /// The account.
        payto_uri: String,
        /// The signed time.
        start: Timestamp,
        /// `MASTER_WIRE_DETAILS`.
        master_sig_wire: EddsaSignature,
    },
    /// Withdraws a bank account.
    DisableWire {
        /// Hash of the payto URI.
        h_payto: ShortHash,
        /// The signed time.
        end: Timestamp,
    },
    /// Sets the fees of a wire method for a period.
    WireFee {
        /// Method and start of the period.
        key: WireFeeKey,
        /// End and fees.
        row: WireFeeRow,
    },
    /// Sets the global fees for a period.
    GlobalFee {
        /// Start of the period.
        start: Timestamp,
        /// End, fees and limits.
        row: GlobalFeeRow,
    },
    /// Publishes extensions.
    Extensions(ExtensionsRow),
    /// Orders a payment of profit, which must have been earned. Every order changes the key set's counter, so that no two
    /// orders pay out the same surplus.
    Drain {
        /// The order's identifier.
        wtid: Wtid,
        /// The order.
        row: DrainRow,
        /// The income that no earlier order pays out. It only grows until the next order.
        surplus: MoneySum,
        /// [`Counters::KEY_SET`] before the surplus was computed.
        as_of: u64,
    },
}

/// The effect of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It took effect.
    Changed,
    /// Nothing changed: the same change is already stored.
    Unchanged,
}

impl Command<ExchangeRules> for Management {
    type Answer = Effect;

    /// Every change increments one row ([`Counters::KEY_SET`]), so that two nodes never decide two changes at the same
    /// time: a fee period depends on all others, and an auditor's signature depends on whether the auditor is enabled.
    /// The counter also shows every node that its key state is out of date.
    fn plan(&self, _: &ExchangeRules, plan: &mut Plan) {
        plan.row::<Counters>(counter(Counters::KEY_SET));
        match self {
            Self::Keys { denominations, signing_keys } => {
                plan.row::<Counters>(counter(Counters::DENOM_SERIAL));
                for (serial, row) in denominations {
                    plan.row::<Denominations>(DenomKey { serial: *serial });
                    plan.group::<Denominations>(Denominations::BY_HASH, &row.h_denom_pub);
                }
                for (exchange_pub, _) in signing_keys {
                    plan.row::<SigningKeys>(SigningKeyKey { exchange_pub: *exchange_pub });
                }
            }
            Self::RevokeDenomination { serial, .. } => plan.row::<Revocations>(DenomKey { serial: *serial }),
            Self::RevokeSigningKey { exchange_pub, .. } => {
                plan.row::<SigningKeys>(SigningKeyKey { exchange_pub: *exchange_pub });
            }
            Self::EnableAuditor { auditor_pub, .. } | Self::DisableAuditor { auditor_pub, .. } => {
                plan.row::<Auditors>(AuditorKey { auditor_pub: *auditor_pub });
            }
            Self::AuditorSignature { auditor_pub, serial, .. } => {
                plan.row::<Auditors>(AuditorKey { auditor_pub: *auditor_pub });
                plan.row::<AuditorDenoms>(AuditorDenomKey { auditor_pub: *auditor_pub, serial: *serial });
            }
            Self::EnableWire { h_payto, .. } | Self::DisableWire { h_payto, .. } => {
                plan.row::<WireAccounts>(WireTargetKey { h_payto: *h_payto });
            }
            Self::WireFee { key, .. } => {
                plan.row::<WireFees>(key.clone());
                plan.group::<WireFees>(WireFees::BY_METHOD, &key.method);
            }
            Self::GlobalFee { start, .. } => {
                plan.row::<GlobalFees>(GlobalFeeKey { start: *start });
                plan.group::<GlobalFees>(GlobalFees::ALL, &ALL_GLOBAL_FEES);
            }
            Self::Extensions(_) => plan.row::<Extensions>(ExtensionsKey { id: 0 }),
            Self::Drain { wtid, .. } => plan.row::<Drains>(WtidKey { wtid: *wtid }),
        }
    }

    fn execute(
        &self,
        _: &ExchangeRules,
        rows: &mut WorkingSet,
        now: Timestamp,
    ) -> Result<Effect, super::Refusal> {
        let effect = apply(rows, self, now).map_err(super::Refusal::Management)?;
        if effect == Changed {
            let key = counter(Counters::KEY_SET);
            let value = key_set(rows) + 1;
            rows.put::<Counters>(&key, CounterRow { value });
        }
        Ok(effect)
    }
}

/// The reasons why a change is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A serial is taken: another process has added denominations. Read the key set again and retry.
    #[error("the key set has changed meanwhile")]
    SerialTaken,
    /// The signing key has never been in use.
    #[error("unknown signing key")]
    SigningKeyUnknown,
    /// A change with a later time is stored.
    #[error("a more recent change is stored")]
    MoreRecentPresent,
    /// The auditor has another name, and the change is not later than the stored one. Names are not signed,
    /// so anybody who sees a signed change could otherwise repeat it with another name.
    #[error("the auditor has another name; sign the change with a later time")]
    AuditorNameDiffers,
    /// The auditor is unknown.
    #[error("unknown auditor")]
    AuditorUnknown,
    /// The auditor is disabled.
    #[error("the auditor is disabled")]
    AuditorInactive,
    /// The account is unknown.
    #[error("unknown account")]
    AccountUnknown,
    /// Another fee is set for a part of the period.
    #[error("other fees are set for a part of the period")]
    FeeMismatch,
    /// Another change was decided since the surplus was computed. Compute it again and retry.
    #[error("another change was decided meanwhile")]
    SurplusOutdated,
    /// Less has been earned and not paid out yet: the rest is customers' money.
    #[error("the surplus is {surplus}, the order is for {ordered}")]
    AboveSurplus {
        /// The income that no earlier order pays out.
        surplus: MoneySum,
        /// The amount of this order.
        ordered: Money,
    },
    /// There is another order with this identifier.
    #[error("another order has this identifier")]
    OrderDiffers,
}

type Verdict = Result<Effect, Refusal>;

use Effect::{Changed, Unchanged};

fn counter(name: &str) -> CounterKey {
    CounterKey { name: name.into() }
}

/// The number of changes to the key set.
fn key_set(rows: &mut WorkingSet) -> u64 {
    rows.get::<Counters>(&counter(Counters::KEY_SET)).map_or(0, |row| row.value)
}

/// The index value under which all global fees are stored.
const ALL_GLOBAL_FEES: u8 = 0;

fn apply(rows: &mut WorkingSet, command: &Management, now: Timestamp) -> Verdict {
    use Management as C;
    match command {
        C::Keys { denominations, signing_keys } => keys(rows, denominations, signing_keys),
        C::RevokeDenomination { serial, master_sig } => {
            let key = DenomKey { serial: *serial };
            if rows.get::<Revocations>(&key).is_some() {
                return Ok(Unchanged);
            }
            rows.insert::<Revocations>(&key, RevocationRow { master_sig: *master_sig, time: now });
            Ok(Changed)
        }
        C::RevokeSigningKey { exchange_pub, master_sig } => {
            let key = SigningKeyKey { exchange_pub: *exchange_pub };
            let Some(row) = rows.get::<SigningKeys>(&key) else { return Err(Refusal::SigningKeyUnknown) };
            if row.revoked.is_some() {
                return Ok(Unchanged);
            }
            let row = SigningKeyRow { revoked: Some(*master_sig), ..row.clone() };
            rows.update::<SigningKeys>(&key, row);
            Ok(Changed)
        }
        C::EnableAuditor { auditor_pub, url, name, start } => {
            let old = rows.get::<Auditors>(&AuditorKey { auditor_pub: *auditor_pub });
            if old.is_some_and(|old| old.last_change == *start && old.name != *name) {
                return Err(Refusal::AuditorNameDiffers);
            }
            let row = AuditorRow { url: url.clone(), name: name.clone(), last_change: *start, enabled: true };
            set_auditor(rows, *auditor_pub, row)
        }
        C::DisableAuditor { auditor_pub, end } => {
            let key = AuditorKey { auditor_pub: *auditor_pub };
            let Some(row) = rows.get::<Auditors>(&key) else { return Err(Refusal::AuditorUnknown) };
            let row = AuditorRow { last_change: *end, enabled: false, ..row.clone() };
            set_auditor(rows, *auditor_pub, row)
        }
        C::AuditorSignature { auditor_pub, serial, auditor_sig } => {
            auditor_signature(rows, *auditor_pub, *serial, *auditor_sig)
        }
        C::EnableWire { h_payto, payto_uri, start, master_sig_wire } => {
            let row = WireAccountRow {
                payto_uri: payto_uri.clone(),
                master_sig: *master_sig_wire,
                last_change: *start,
                enabled: true,
            };
            set_account(rows, *h_payto, row)
        }
        C::DisableWire { h_payto, end } => {
            let key = WireTargetKey { h_payto: *h_payto };
            let Some(row) = rows.get::<WireAccounts>(&key) else { return Err(Refusal::AccountUnknown) };
            let row = WireAccountRow { last_change: *end, enabled: false, ..row.clone() };
            set_account(rows, *h_payto, row)
        }
        C::WireFee { key, row } => wire_fee(rows, key, row),
        C::GlobalFee { start, row } => global_fee(rows, *start, row),
        C::Extensions(row) => {
            let key = ExtensionsKey { id: 0 };
            if rows.get::<Extensions>(&key) == Some(row) {
                return Ok(Unchanged);
            }
            rows.put::<Extensions>(&key, row.clone());
            Ok(Changed)
        }
        C::Drain { wtid, row, surplus, as_of } => {
            drain(rows, WtidKey { wtid: *wtid }, row, (*surplus, *as_of))
        }
    }
}

fn drain(
    rows: &mut WorkingSet,
    key: WtidKey,
    order: &DrainRow,
    (surplus, as_of): (MoneySum, u64),
) -> Verdict {
    if let Some(known) = rows.get::<Drains>(&key) {
        let is_same = DrainRow { executed: known.executed, ..order.clone() } == *known;
        return if is_same { Ok(Unchanged) } else { Err(Refusal::OrderDiffers) };
    }
    if key_set(rows) != as_of {
        return Err(Refusal::SurplusOutdated);
    }
    if MoneySum::from(order.amount) > surplus {
        return Err(Refusal::AboveSurplus { surplus, ordered: order.amount });
    }
    rows.insert::<Drains>(&key, order.clone());
    Ok(Changed)
}

fn keys(
    rows: &mut WorkingSet,
    denominations: &[(DenomSerial, DenomRow)],
    signing_keys: &[(EddsaPublicKey, SigningKeyRow)],
) -> Verdict {
    let mut effect = Unchanged;
    let numbers = counter(Counters::DENOM_SERIAL);
    let mut last = rows.get::<Counters>(&numbers).map_or(0, |row| row.value);
    for (serial, row) in denominations {
        let is_known = !rows.group::<Denominations>(Denominations::BY_HASH, &row.h_denom_pub).is_empty();
        if is_known || u64::from(serial.0) != last + 1 {
            return Err(Refusal::SerialTaken);
        }
        last += 1;
        rows.insert::<Denominations>(&DenomKey { serial: *serial }, row.clone());
        effect = Changed;
    }
    if effect == Changed {
        rows.put::<Counters>(&numbers, CounterRow { value: last });
    }
    for (exchange_pub, row) in signing_keys {
        let key = SigningKeyKey { exchange_pub: *exchange_pub };
        if rows.get::<SigningKeys>(&key).is_none() {
            rows.insert::<SigningKeys>(&key, row.clone());
            effect = Changed;
        }
    }
    Ok(effect)
}

/// Refuses a change that is older than the stored one. Of several in the same second, the one that disables counts:
/// otherwise whoever kept the other message could enable again what the operator has disabled.
fn order(old: Timestamp, new: Timestamp, enables: bool) -> Result<(), Refusal> {
    if old > new || (old == new && enables) { Err(Refusal::MoreRecentPresent) } else { Ok(()) }
}

fn set_auditor(rows: &mut WorkingSet, auditor_pub: EddsaPublicKey, row: AuditorRow) -> Verdict {
    let key = AuditorKey { auditor_pub };
    if let Some(old) = rows.get::<Auditors>(&key) {
        if *old == row {
            return Ok(Unchanged);
        }
        order(old.last_change, row.last_change, row.enabled)?;
    }
    rows.put::<Auditors>(&key, row);
    Ok(Changed)
}

fn set_account(rows: &mut WorkingSet, h_payto: ShortHash, row: WireAccountRow) -> Verdict {
    let key = WireTargetKey { h_payto };
    if let Some(old) = rows.get::<WireAccounts>(&key) {
        if *old == row {
            return Ok(Unchanged);
        }
        order(old.last_change, row.last_change, row.enabled)?;
    }
    rows.put::<WireAccounts>(&key, row);
    Ok(Changed)
}

fn auditor_signature(
    rows: &mut WorkingSet,
    auditor_pub: EddsaPublicKey,
    serial: DenomSerial,
    auditor_sig: EddsaSignature,
) -> Verdict {
    match rows.get::<Auditors>(&AuditorKey { auditor_pub }) {
        None => return Err(Refusal::AuditorUnknown),
        Some(auditor) if !auditor.enabled => return Err(Refusal::AuditorInactive),
        Some(_) => {}
    }
    let key = AuditorDenomKey { auditor_pub, serial };
    // Two signatures on one message are equal, but an auditor that has changed its URL signs another message.
    let row = AuditorDenomRow { auditor_sig };
    if rows.get::<AuditorDenoms>(&key) == Some(&row) {
        return Ok(Unchanged);
    }
    rows.put::<AuditorDenoms>(&key, row);
    Ok(Changed)
}

/// Returns whether two periods overlap.
fn overlaps(a: (Timestamp, Timestamp), b: (Timestamp, Timestamp)) -> bool {
    a.1 > b.0 && a.0 < b.1
}

/// Decides from the stored periods that overlap a new one, each with whether its fees are equal.
fn compare(overlapping: impl Iterator<Item = bool>) -> Result<Option<Effect>, Refusal> {
    let mut found = None;
    for is_same in overlapping {
        if !is_same {
            return Err(Refusal::FeeMismatch);
        }
        found = Some(Unchanged);
    }
    Ok(found)
}

fn wire_fee(rows: &mut WorkingSet, key: &WireFeeKey, row: &WireFeeRow) -> Verdict {
    let overlapping = rows
        .group::<WireFees>(WireFees::BY_METHOD, &key.method)
        .into_iter()
        .filter(|(other, stored)| *other == key || overlaps((other.start, stored.end), (key.start, row.end)))
        .map(|(_, stored)| (stored.wire_fee, stored.closing_fee) == (row.wire_fee, row.closing_fee));
    if let Some(effect) = compare(overlapping)? {
        return Ok(effect);
    }
    rows.insert::<WireFees>(key, row.clone());
    Ok(Changed)
}

fn global_fee(rows: &mut WorkingSet, start: Timestamp, row: &GlobalFeeRow) -> Verdict {
    let terms = |row: &GlobalFeeRow| {
        let fees = (row.history_fee, row.account_fee, row.purse_fee);
        (fees, row.purse_timeout, row.history_expiration, row.purse_account_limit)
    };
    let overlapping = rows
        .group::<GlobalFees>(GlobalFees::ALL, &ALL_GLOBAL_FEES)
        .into_iter()
        .filter(|(other, stored)| {
            other.start == start || overlaps((other.start, stored.end), (start, row.end))
        })
        .map(|(_, stored)| terms(stored) == terms(row));
    if let Some(effect) = compare(overlapping)? {
        return Ok(effect);
    }
    rows.insert::<GlobalFees>(&GlobalFeeKey { start }, row.clone());
    Ok(Changed)
}
