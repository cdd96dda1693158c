//! Reads about the identification of customers. They fail when the store cannot be read.

use std::ops::Bound;

use batzen_protocol::{Money, Timestamp};
use batzen_store::{Found, Store, StoreError};
use batzen_tables::exchange::{
    AggregateKey, AggregateRow, Aggregates, KycAccountKey, KycAlerts, KycDecisions, KycOperation,
    KycProcessKey, KycProcessRow, KycProcesses, KycRequirementKey, KycRequirements, KycUsages, PaytoHash,
    WireTargetKey, WireTargets,
};

use crate::rules::kyc::{NO_REQUIREMENT, is_guessable};
use crate::rules::{KycRules, LimitedAccount};

type Result<T> = std::result::Result<T, StoreError>;

/// Result of a search for a requirement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Requirement {
    /// Nobody has this number, or it is one that could be guessed.
    Unknown,
    /// Another account has it.
    Foreign,
    /// It requires these checks, separated by blanks.
    Of(String),
}

/// A requirement of an account.
pub fn requirement(store: &Store, h_payto: PaytoHash, row: u64) -> Result<Requirement> {
    if row == NO_REQUIREMENT {
        return Ok(Requirement::Unknown);
    }
    let key = KycRequirementKey { h_payto, row };
    if let Some(found) = store.get::<KycRequirements>(&key)? {
        let is_worthless = is_guessable(&key, &found.row.checks);
        return Ok(if is_worthless { Requirement::Unknown } else { Requirement::Of(found.row.checks) });
    }
    let others = store.lookup::<KycRequirements>(KycRequirements::BY_ROW, &row)?;
    Ok(if others.is_empty() { Requirement::Unknown } else { Requirement::Foreign })
}

/// All identifications of an account.
pub fn processes(store: &Store, h_payto: PaytoHash) -> Result<Vec<Found<KycProcesses>>> {
    store.lookup::<KycProcesses>(KycProcesses::BY_ACCOUNT, &h_payto)
}

/// An identification.
pub fn process(store: &Store, h_payto: PaytoHash, provider: &str) -> Result<Option<KycProcessRow>> {
    let key = KycProcessKey { h_payto, provider: provider.to_owned() };
    Ok(store.get::<KycProcesses>(&key)?.map(|found| found.row))
}

/// Keys and rows, as the rules want them.
#[must_use]
pub fn pairs(found: &[Found<KycProcesses>]) -> Vec<(&KycProcessKey, &KycProcessRow)> {
    found.iter().map(|found| (&found.key, &found.row)).collect()
}

/// The checks that an operation would miss now: a hint, which saves work for an operation that the rules will refuse.
pub(crate) fn missing(
    store: &Store,
    rules: &KycRules,
    operation: KycOperation,
    account: &LimitedAccount,
    amount: Money,
    now: Timestamp,
) -> Result<Option<String>> {
    if !rules.limits(operation) {
        return Ok(None);
    }
    let usage = store.get::<KycUsages>(&account.usage_key(operation))?;
    let events = usage.map(|found| found.row.events.0).unwrap_or_default();
    let processes = processes(store, account.h_payto())?;
    Ok(rules.missing(operation, amount, &events, &pairs(&processes), now))
}

/// Payouts that are held until their receiver is identified, and their sum.
pub(crate) fn held(store: &Store, h_payto: PaytoHash) -> Result<Money> {
    let aggregates = store.lookup::<Aggregates>(Aggregates::BY_TARGET, &h_payto)?;
    let held = aggregates.iter().filter(|found| found.row.kyc_row.is_some());
    Ok(held.fold(Money::ZERO, |sum, found| sum.checked_add(found.row.total).unwrap_or(Money::MAX)))
}

/// A case for an officer to decide, or to look up.
#[derive(Debug, Clone)]
pub struct Case {
    /// The account and the provider.
    pub key: KycProcessKey,
    /// The identification.
    pub row: KycProcessRow,
    /// The account's payto URI, if the exchange has ever paid it or was paid by it.
    pub payto_uri: Option<String>,
    /// The sum of its held payouts.
    pub held: Money,
}

/// The oldest identifications that wait for officers.
pub fn submitted(store: &Store, cases_max: usize) -> Result<Vec<Case>> {
    let found = store.range_positions::<KycProcesses>(
        KycProcesses::SUBMITTED,
        Bound::Unbounded,
        Bound::Unbounded,
        cases_max,
        false,
    )?;
    found.into_iter().map(|found| case(store, found)).collect()
}

fn case(store: &Store, found: Found<KycProcesses>) -> Result<Case> {
    let h_payto = found.key.h_payto;
    let payto_uri = payto_uri(store, h_payto)?;
    Ok(Case { held: held(store, h_payto)?, key: found.key, row: found.row, payto_uri })
}

/// The payto URI of an account, if the exchange has ever paid it or was paid by it.
pub(crate) fn payto_uri(store: &Store, h_payto: PaytoHash) -> Result<Option<String>> {
    let payto = store.get::<WireTargets>(&WireTargetKey { h_payto })?;
    Ok(payto.map(|found| found.row.payto_uri))
}

/// Everything about one account.
#[derive(Debug, Clone)]
pub struct Account {
    /// Its identifications.
    pub cases: Vec<Case>,
    /// The decisions of officers, oldest first.
    pub decisions: Vec<Found<KycDecisions>>,
}

/// Everything about one account.
pub fn account(store: &Store, h_payto: PaytoHash) -> Result<Account> {
    let cases =
        processes(store, h_payto)?.into_iter().map(|found| case(store, found)).collect::<Result<_>>()?;
    let mut decisions = store.lookup::<KycDecisions>(KycDecisions::BY_ACCOUNT, &h_payto)?;
    decisions.sort_by_key(|found| found.key.time);
    Ok(Account { cases, decisions })
}

/// An account whose owner was identified, with its payouts that wait.
#[derive(Debug, Clone)]
pub struct Alert {
    /// The account.
    pub(crate) h_payto: PaytoHash,
    /// When its owner was identified.
    pub time: Timestamp,
    /// Its aggregates that are not paid.
    pub aggregates: Vec<(AggregateKey, AggregateRow)>,
}

/// The oldest alerts.
pub fn alerts(store: &Store, alerts_max: usize) -> Result<Vec<Alert>> {
    let all = (Bound::Unbounded, Bound::Unbounded);
    let found = store.range_positions::<KycAlerts>(KycAlerts::OPEN, all.0, all.1, alerts_max, false)?;
    let alert = |found: Found<KycAlerts>| {
        let KycAccountKey { h_payto } = found.key;
        let aggregates = store.lookup::<Aggregates>(Aggregates::BY_TARGET, &h_payto)?;
        let aggregates = aggregates.into_iter().map(|found| (found.key, found.row)).collect();
        Ok(Alert { h_payto, time: found.row.time, aggregates })
    };
    found.into_iter().map(alert).collect()
}
