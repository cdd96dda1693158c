//! Statements of the master key, and the accounts that rows name: small tables, held in memory during an audit.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::ControlFlow;

use batzen_crypto::{DenomPublicKey, EddsaPublicKey, EddsaSignature, HashCode};
use batzen_protocol::canonical::manifests_hash;
use batzen_protocol::payto::h_payto;
use batzen_protocol::signatures::{
    MasterDenominationKeyRevoked, MasterExtension, MasterSigningKeyRevoked, MasterWireDetails, SignedMessage,
};
use batzen_protocol::{Currency, Timestamp};
use batzen_store::{Found, FrozenRows, RawRecord, Record, Result, RowVersion, Store, Table, TableDef, go_on};
use batzen_tables::exchange::{
    AuditorDenoms, DenomRow, DenomSerial, Denominations, Drains, Extensions, GlobalFeeRow, GlobalFees,
    PaytoHash, Revocations, SigningKeys, WireAccounts, WireFeeRow, WireFees, WireTargets,
};

use crate::audit::changes::{RowChange, Version};
use crate::audit::finding::{Finding, RowName, Rule};

/// The exchange that is audited, and what its configuration says.
#[derive(Debug, Clone)]
pub struct Subject {
    /// Its currency.
    pub currency: Currency,
    /// Its master key.
    pub master_pub: EddsaPublicKey,
    /// Its base URL, with the slash at its end.
    pub base_url: String,
    /// The smallest unit that the bank transfers, in units of 10⁻⁸; 0 for all.
    pub round_unit: u128,
    /// The auditor's key and base URL, if it certifies denominations.
    pub auditor: Option<(EddsaPublicKey, String)>,
}

#[derive(Debug, Clone)]
pub(crate) struct Denom {
    pub row: DenomRow,
    /// Its key; `None` if the row has none that can be read.
    pub public: Option<DenomPublicKey>,
    /// Whether it was revoked with a valid signature.
    pub revoked: bool,
}

/// Fees of a wire method, by the start of their period.
type WireFeePeriods = BTreeMap<Timestamp, WireFeeRow>;

/// The small tables of an exchange.
#[derive(Debug, Default)]
pub struct Terms {
    denoms: HashMap<u32, Denom>,
    /// The hashes of their keys: none has two numbers.
    denom_hashes: HashSet<HashCode>,
    wire_fees: HashMap<String, WireFeePeriods>,
    global_fees: BTreeMap<Timestamp, GlobalFeeRow>,
    accounts: HashMap<PaytoHash, String>,
    findings: Vec<Finding>,
}

/// The tables that [`Terms`] holds.
pub(crate) const TERMS: &[&TableDef] = &[
    Denominations::DEF,
    Revocations::DEF,
    SigningKeys::DEF,
    WireAccounts::DEF,
    WireFees::DEF,
    GlobalFees::DEF,
    WireTargets::DEF,
    AuditorDenoms::DEF,
    Extensions::DEF,
    Drains::DEF,
];

/// Rows as they will be after some changes.
struct Changed<'a> {
    frozen: Box<dyn FrozenRows>,
    changes: &'a [RowChange],
}

impl FrozenRows for Changed<'_> {
    fn scan(
        &self,
        table: &'static TableDef,
        visit: &mut dyn FnMut(RawRecord) -> ControlFlow<()>,
    ) -> Result<()> {
        let changed: HashMap<&[u8], &RowChange> = self
            .changes
            .iter()
            .filter(|change| change.table.id == table.id)
            .map(|change| (change.key.as_slice(), change))
            .collect();
        let mut has_ended = false;
        self.frozen.scan(table, &mut |record| {
            if changed.contains_key(record.key.as_slice()) {
                return ControlFlow::Continue(());
            }
            let flow = visit(record);
            has_ended = flow.is_break();
            flow
        })?;
        for (key, change) in changed {
            if has_ended {
                break;
            }
            if let Some(Version { row, serial }) = change.new.clone() {
                has_ended =
                    visit(RawRecord { key: key.to_vec(), row, serial, version: RowVersion::default() })
                        .is_break();
            }
        }
        Ok(())
    }
}

impl Terms {
    /// Brings them up to date with changes of `seen`, which has the rows before. One change for each row.
    ///
    /// # Errors
    /// If rows cannot be read.
    pub(crate) fn follow(&mut self, subject: &Subject, seen: &Store, changes: &[RowChange]) -> Result<()> {
        let of_terms = changes.iter().filter(|change| TERMS.iter().any(|table| table.id == change.table.id));
        let mut accounts = Vec::new();
        for change in of_terms {
            // New accounts come with payments, everything else is rare.
            match (&change.old, &change.new) {
                (None, Some(Version { row, serial })) if change.table.id == WireTargets::DEF.id => {
                    let (key, row, version) = (change.key.clone(), row.clone(), RowVersion::default());
                    let record = RawRecord { key, row, serial: *serial, version };
                    accounts.push(Found::<WireTargets>::decode(record)?);
                }
                _ => {
                    let frozen = seen.freeze(TERMS)?;
                    *self = read_terms(&Changed { frozen, changes }, subject)?;
                    return Ok(());
                }
            }
        }
        accounts.into_iter().for_each(|account| self.add_wire_target(account));
        Ok(())
    }
}

pub(crate) fn name_of<T: Table>(found: &Found<T>) -> RowName {
    RowName::new(T::DEF, found.serial, &found.key.to_bytes())
}

/// The method of a payto URI, in lower case.
pub(crate) fn wire_method(payto_uri: &str) -> Option<String> {
    let (scheme, rest) = payto_uri.split_at_checked("payto://".len())?;
    let method = rest.split(['/', '?']).next()?;
    (scheme.eq_ignore_ascii_case("payto://") && !method.is_empty()).then(|| method.to_ascii_lowercase())
}

impl Terms {
    pub(crate) fn denom(&self, serial: DenomSerial) -> Option<&Denom> {
        self.denoms.get(&serial.0)
    }

    /// All denominations, in no order.
    pub(crate) fn denoms(&self) -> impl Iterator<Item = (DenomSerial, &Denom)> {
        self.denoms.iter().map(|(serial, denom)| (DenomSerial(*serial), denom))
    }

    /// The payto URI of an account.
    pub(crate) fn account(&self, h_payto: &PaytoHash) -> Option<&str> {
        self.accounts.get(h_payto).map(String::as_str)
    }

    /// The wire fees of an account's method at this time.
    pub(crate) fn wire_fee(&self, payto_uri: &str, time: Timestamp) -> Option<&WireFeeRow> {
        let periods = self.wire_fees.get(&wire_method(payto_uri)?)?;
        periods.range(..=time).next_back().map(|(_, row)| row).filter(|row| time < row.end)
    }

    /// The wire fees of a method, in all periods.
    pub(crate) fn wire_fees_of(&self, method: &str) -> impl Iterator<Item = &WireFeeRow> {
        self.wire_fees.get(method).into_iter().flat_map(WireFeePeriods::values)
    }

    /// The global fees at this time.
    pub(crate) fn global_fee(&self, time: Timestamp) -> Option<&GlobalFeeRow> {
        self.global_fees.range(..=time).next_back().map(|(_, row)| row).filter(|row| time < row.end)
    }

    /// Findings from reading them.
    pub(crate) fn findings(&self) -> &[Finding] {
        &self.findings
    }

    fn check(
        &mut self,
        subject: &Subject,
        rule: Rule,
        row: RowName,
        message: &impl SignedMessage,
        signature: &EddsaSignature,
    ) -> bool {
        let valid = message.verify(&subject.master_pub, signature);
        if !valid {
            self.findings.push(Finding::new(rule, row).about(subject.master_pub.as_bytes()));
        }
        valid
    }

    pub(crate) fn add_denomination(&mut self, subject: &Subject, found: Found<Denominations>) {
        let (name, row) = (name_of(&found), found.row);
        let message = row.validity(subject.master_pub, subject.currency);
        self.check(subject, Rule::DenominationSignature, name.clone(), &message, &row.master_sig);
        let public = row.public().filter(|public| public.h_denom_pub() == row.h_denom_pub);
        let is_first = self.denom_hashes.insert(row.h_denom_pub);
        if public.is_none() || !is_first {
            let finding = Finding::new(Rule::DenominationKey, name).about(row.h_denom_pub.as_bytes());
            self.findings.push(if is_first { finding } else { finding.because("two numbers have one key") });
        }
        self.denoms.insert(found.key.serial.0, Denom { row, public, revoked: false });
    }

    /// Adds a revocation. Denominations come before.
    pub(crate) fn add_revocation(&mut self, subject: &Subject, found: &Found<Revocations>) {
        let serial = found.key.serial;
        let Some(h_denom_pub) = self.denom(serial).map(|denom| denom.row.h_denom_pub) else {
            let finding = Finding::new(Rule::RevocationSignature, name_of(found));
            self.findings.push(finding.because(format!("denomination {} is not on record", serial.0)));
            return;
        };
        let message = MasterDenominationKeyRevoked { h_denom_pub };
        let valid =
            self.check(subject, Rule::RevocationSignature, name_of(found), &message, &found.row.master_sig);
        if let Some(denom) = self.denoms.get_mut(&serial.0) {
            denom.revoked = valid;
        }
    }

    pub(crate) fn add_signing_key(&mut self, subject: &Subject, found: &Found<SigningKeys>) {
        let (row, signkey_pub) = (&found.row, found.key.exchange_pub);
        let message = row.validity(signkey_pub);
        self.check(subject, Rule::SigningKeySignature, name_of(found), &message, &row.master_sig);
        if let Some(revoked) = &row.revoked {
            let message = MasterSigningKeyRevoked { signkey_pub };
            self.check(subject, Rule::SigningKeySignature, name_of(found), &message, revoked);
        }
    }

    /// Adds one of the exchange's accounts.
    pub(crate) fn add_wire_account(&mut self, subject: &Subject, found: &Found<WireAccounts>) {
        if h_payto(&found.row.payto_uri) != found.key.h_payto {
            self.findings.push(Finding::new(Rule::PaytoHash, name_of(found)));
        }
        let message = MasterWireDetails { h_wire_details: h_payto(&found.row.payto_uri) };
        self.check(subject, Rule::AccountSignature, name_of(found), &message, &found.row.master_sig);
    }

    /// Adds a period of wire fees.
    pub(crate) fn add_wire_fee(&mut self, subject: &Subject, found: Found<WireFees>) {
        let (name, key, row) = (name_of(&found), found.key, found.row);
        let message = row.message(&key, subject.currency);
        self.check(subject, Rule::WireFeeSignature, name.clone(), &message, &row.master_sig);
        let periods = self.wire_fees.entry(key.method.to_ascii_lowercase()).or_default();
        let mut others = periods.range(..row.end).filter(|(start, _)| **start != key.start);
        let overlaps = others.next_back().is_some_and(|(_, other)| other.end > key.start);
        periods.insert(key.start, row);
        if overlaps {
            self.findings.push(Finding::new(Rule::WireFeeOverlap, name).because("overlaps another period"));
        }
    }

    /// Adds a period of global fees.
    pub(crate) fn add_global_fee(&mut self, subject: &Subject, found: Found<GlobalFees>) {
        let (name, start, row) = (name_of(&found), found.key.start, found.row);
        let message = row.message(start, subject.currency);
        self.check(subject, Rule::GlobalFeeSignature, name, &message, &row.master_sig);
        self.global_fees.insert(start, row);
    }

    /// Adds an account that rows name.
    pub(crate) fn add_wire_target(&mut self, found: Found<WireTargets>) {
        if h_payto(&found.row.payto_uri) != found.key.h_payto {
            self.findings.push(Finding::new(Rule::PaytoHash, name_of(&found)));
        }
        self.accounts.insert(found.key.h_payto, found.row.payto_uri);
    }

    /// Adds an auditor's signature on a denomination. Denominations come before.
    pub(crate) fn add_auditor_denom(&mut self, subject: &Subject, found: &Found<AuditorDenoms>) {
        let Some((auditor_pub, url)) = &subject.auditor else { return };
        if found.key.auditor_pub != *auditor_pub {
            return;
        }
        let valid = self.denom(found.key.serial).is_some_and(|denom| {
            let message = denom.row.validity(subject.master_pub, subject.currency).approved_by(url);
            message.verify(auditor_pub, &found.row.auditor_sig)
        });
        if !valid {
            self.findings.push(Finding::new(Rule::CertificationInvalid, name_of(found)));
        }
    }

    pub(crate) fn add_extensions(&mut self, subject: &Subject, found: &Found<Extensions>) {
        let manifests = serde_json::from_str(&found.row.manifests).ok();
        match manifests.and_then(|manifests| manifests_hash(&manifests).ok()) {
            Some(h_manifests) => {
                let message = MasterExtension { h_manifests };
                let signature = &found.row.master_sig;
                self.check(subject, Rule::ExtensionsSignature, name_of(found), &message, signature);
            }
            None => self.findings.push(Finding::new(Rule::ExtensionsSignature, name_of(found))),
        }
    }

    /// Adds an order to pay out profit.
    pub(crate) fn add_drain(&mut self, subject: &Subject, found: &Found<Drains>) {
        let row = &found.row;
        let message = row.message(found.key.wtid, subject.currency);
        if !message.verify(&subject.master_pub, &row.master_sig) {
            let finding = Finding::new(Rule::DrainSignature, name_of(found));
            self.findings.push(finding.risking(row.amount.units()));
        }
    }
}

/// Calls `visit` for each row of a snapshot's table.
fn each<T: Table>(frozen: &dyn FrozenRows, mut visit: impl FnMut(Found<T>)) -> Result<()> {
    let mut outcome = Ok(());
    frozen.scan(T::DEF, &mut |record| go_on(Found::<T>::decode(record).map(&mut visit), &mut outcome))?;
    outcome
}

/// Reads the small tables.
///
/// # Errors
/// If they cannot be read.
pub fn read_terms(frozen: &dyn FrozenRows, subject: &Subject) -> Result<Terms> {
    let mut terms = Terms::default();
    each::<Denominations>(frozen, |found| terms.add_denomination(subject, found))?;
    each::<Revocations>(frozen, |found| terms.add_revocation(subject, &found))?;
    each::<SigningKeys>(frozen, |found| terms.add_signing_key(subject, &found))?;
    each::<WireAccounts>(frozen, |found| terms.add_wire_account(subject, &found))?;
    each::<WireFees>(frozen, |found| terms.add_wire_fee(subject, found))?;
    each::<GlobalFees>(frozen, |found| terms.add_global_fee(subject, found))?;
    each::<WireTargets>(frozen, |found| terms.add_wire_target(found))?;
    each::<AuditorDenoms>(frozen, |found| terms.add_auditor_denom(subject, &found))?;
    each::<Extensions>(frozen, |found| terms.add_extensions(subject, &found))?;
    each::<Drains>(frozen, |found| terms.add_drain(subject, &found))?;
    Ok(terms)
}
