//! Limits on what customers may do before they are identified (semantics chapter 9).
//!
//! A rule limits one kind of operation of one account. If the operation's amount and those of the rule's time
//! frame reach the threshold, the rule's checks are required, except those that a valid identification of the
//! account has provided. An operation that misses checks is refused with [`Refusal::KycRequired`] and counts
//! nothing; the caller then stores the requirement with [`RequireKyc`] and names its number to the client.
//!
//! What counts is in one row for each account and operation, so that a check costs one row however long the
//! time frame is. Operations without a rule leave no trace there.

use batzen_crypto::hash::sha512_parts;
use batzen_engine::{Plan, WorkingSet};
use batzen_protocol::payto::PaytoUri;
use batzen_protocol::{Duration, Money, Timestamp};
use batzen_tables::exchange::{
    Aggregates, KycAccountKey, KycAlertRow, KycAlerts, KycDecisionKey, KycDecisionRow, KycDecisions,
    KycEvent, KycEvents, KycOperation, KycProcessKey, KycProcessRow, KycProcesses, KycRequirementKey,
    KycRequirementRow, KycRequirements, KycState, KycUsageKey, KycUsageRow, KycUsages, PaytoHash, ReservePub,
};

use super::{
    ClearKycAlert, DecideKyc, ExchangeRules, FinishKyc, KycAlertCleared, KycDecided, KycFinished,
    KycRequirement, KycStarted, KycSubmitted, Refusal, RequireKyc, StartKyc, SubmitKyc, garbage,
};

/// How many events of one kind an account keeps. When there are more, the two oldest become one with the later
/// time, so that an old amount may count for longer than the time frame, and never for shorter.
pub const EVENTS_MAX: usize = 256;

/// The user's kind, by whose name a client asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KycUserType {
    /// A person.
    Individual,
    /// A company.
    Business,
}

/// A limit: section `[kyc-legitimization-*]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KycRule {
    /// What it limits.
    pub operation: KycOperation,
    /// The checks that are required from the threshold on.
    pub checks: Vec<String>,
    /// The amount from which the checks are required.
    pub threshold: Money,
    /// How far back amounts count. Not used for [`KycOperation::Balance`].
    pub timeframe: Duration,
}

/// Who provides checks: section `[kyc-provider-*]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KycProvider {
    /// The section's name.
    pub section: String,
    /// What a process costs; only compared with others.
    pub cost: u64,
    /// The users that it identifies.
    pub user_type: KycUserType,
    /// The checks that it provides.
    pub checks: Vec<String>,
}

/// All limits and providers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KycRules {
    /// The limits.
    pub rules: Vec<KycRule>,
    /// The providers.
    pub providers: Vec<KycProvider>,
}

/// The number of a requirement: it follows from its account and checks, so that no counter is needed. It is below
/// 2^53, which every JSON parser can read.
#[must_use]
pub fn requirement_row(h_payto: PaytoHash, checks: &str) -> u64 {
    let digest = sha512_parts(&[b"kyc-requirement", h_payto.as_bytes(), checks.as_bytes()]);
    let first = u64::from_be_bytes(*digest.as_bytes().first_chunk().expect("64 bytes hold 8"));
    (first >> 11).max(1)
}

impl KycRules {
    /// Whether any rule limits an operation.
    #[must_use]
    pub fn limits(&self, operation: KycOperation) -> bool {
        self.rules.iter().any(|rule| rule.operation == operation)
    }

    fn of(&self, operation: KycOperation) -> impl Iterator<Item = &KycRule> {
        self.rules.iter().filter(move |rule| rule.operation == operation)
    }

    /// Which of `checks` no valid identification has provided, sorted and without repetitions.
    #[must_use]
    pub fn unsatisfied<'c>(
        &self,
        checks: impl Iterator<Item = &'c str>,
        processes: &[(&KycProcessKey, &KycProcessRow)],
        now: Timestamp,
    ) -> Vec<&'c str> {
        let is_provided = |check: &str| {
            processes.iter().filter(|(_, row)| row.expiration > now).any(|(key, _)| {
                self.providers
                    .iter()
                    .any(|p| p.section == key.provider && p.checks.iter().any(|c| c == check))
            })
        };
        let mut missing: Vec<&str> = checks.filter(|check| !is_provided(check)).collect();
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// The checks that an operation of this amount misses, separated by blanks; `None` if it may proceed.
    #[must_use]
    pub fn missing(
        &self,
        operation: KycOperation,
        amount: Money,
        events: &[KycEvent],
        processes: &[(&KycProcessKey, &KycProcessRow)],
        now: Timestamp,
    ) -> Option<String> {
        let hit = self.of(operation).filter(|rule| {
            let since = now.saturating_sub(rule.timeframe);
            let counts = events.iter().filter(|event| {
                operation != KycOperation::Balance && (rule.timeframe.is_forever() || event.time >= since)
            });
            let mut sum = Ok(amount);
            for event in counts {
                sum = sum.and_then(|sum| sum.checked_add(event.amount));
            }
            // A sum that is too large to be an amount is above every threshold.
            sum.map_or(true, |sum| sum >= rule.threshold)
        });
        let checks: Vec<&str> = hit.flat_map(|rule| &rule.checks).map(String::as_str).collect();
        let missing = self.unsatisfied(checks.into_iter(), processes, now);
        (!missing.is_empty()).then(|| missing.join(" "))
    }

    /// The events of an account with one more. Those that no rule looks back to are dropped.
    #[must_use]
    pub fn counted(
        &self,
        operation: KycOperation,
        events: &[KycEvent],
        amount: Money,
        now: Timestamp,
    ) -> KycEvents {
        let longest = self.of(operation).map(|rule| rule.timeframe).max().unwrap_or_default();
        let since = if longest.is_forever() { Timestamp::ZERO } else { now.saturating_sub(longest) };
        let mut kept: Vec<KycEvent> = events.iter().filter(|event| event.time >= since).copied().collect();
        let largest = |sum: Option<Money>| sum.unwrap_or(Money::MAX);
        match kept.last_mut() {
            Some(last) if last.time == now => last.amount = largest(last.amount.checked_add(amount).ok()),
            _ => kept.push(KycEvent { time: now, amount }),
        }
        if kept.len() > EVENTS_MAX {
            let oldest = kept.remove(0);
            kept[0].amount = largest(kept[0].amount.checked_add(oldest.amount).ok());
        }
        KycEvents(kept)
    }

    /// The provider for a user: one of those that provide most of the missing checks, and the cheapest of these.
    #[must_use]
    pub fn choose(&self, missing: &[&str], user_type: KycUserType) -> Option<&KycProvider> {
        let covered = |provider: &KycProvider| {
            missing.iter().filter(|check| provider.checks.iter().any(|c| c == *check)).count()
        };
        self.providers
            .iter()
            .filter(|provider| provider.user_type == user_type && covered(provider) > 0)
            .min_by_key(|provider| (usize::MAX - covered(provider), provider.cost))
    }
}

fn plan_process(h_payto: PaytoHash, provider: &str, plan: &mut Plan) {
    plan.row::<KycProcesses>(KycProcessKey { h_payto, provider: provider.to_owned() });
}

pub(super) fn plan_require(command: &RequireKyc, plan: &mut Plan) {
    let RequireKyc { h_payto, checks } = command;
    plan.row::<KycRequirements>(KycRequirementKey {
        h_payto: *h_payto,
        row: requirement_row(*h_payto, checks),
    });
}

pub(super) fn plan_start(command: &StartKyc, plan: &mut Plan) {
    plan_process(command.h_payto, &command.provider, plan);
}

pub(super) fn plan_finish(command: &FinishKyc, plan: &mut Plan) {
    plan_process(command.h_payto, &command.provider, plan);
    plan.row::<KycAlerts>(KycAccountKey { h_payto: command.h_payto });
}

pub(super) fn plan_submit(command: &SubmitKyc, plan: &mut Plan) {
    plan_process(command.h_payto, &command.provider, plan);
}

pub(super) fn plan_decide(command: &DecideKyc, plan: &mut Plan) {
    plan_process(command.h_payto, &command.provider, plan);
    plan.row::<KycAlerts>(KycAccountKey { h_payto: command.h_payto });
    plan.row::<KycDecisions>(decision_key(command));
    plan.group::<Aggregates>(Aggregates::BY_TARGET, &command.h_payto);
}

pub(super) fn plan_clear_alert(command: &ClearKycAlert, plan: &mut Plan) {
    plan.row::<KycAlerts>(KycAccountKey { h_payto: command.h_payto });
}

fn decision_key(command: &DecideKyc) -> KycDecisionKey {
    KycDecisionKey {
        h_payto: command.h_payto,
        provider: command.provider.clone(),
        time: command.time,
        officer: command.officer.clone(),
    }
}

fn process_of(rows: &WorkingSet, key: &KycProcessKey) -> Result<KycProcessRow, Refusal> {
    rows.get::<KycProcesses>(key).cloned().ok_or(Refusal::KycProcessUnknown)
}

/// An identification is never shortened.
fn prolonged(row: &KycProcessRow, validity: Duration, now: Timestamp) -> Timestamp {
    row.expiration.max(now.saturating_add(validity))
}

fn alert(rows: &mut WorkingSet, h_payto: PaytoHash, now: Timestamp) {
    rows.put::<KycAlerts>(&KycAccountKey { h_payto }, KycAlertRow { time: now });
}

pub(super) fn require(rows: &mut WorkingSet, command: &RequireKyc, now: Timestamp) -> KycRequirement {
    let row = requirement_row(command.h_payto, &command.checks);
    let key = KycRequirementKey { h_payto: command.h_payto, row };
    // Garbage collection removes what was not asked for in a long time. A day more or less does not matter.
    let is_recent = |row: &KycRequirementRow| row.asked.is_some_and(|asked| !garbage::is_over(asked, now));
    if !rows.get::<KycRequirements>(&key).is_some_and(is_recent) {
        let row = KycRequirementRow { checks: command.checks.clone(), asked: Some(now) };
        rows.put::<KycRequirements>(&key, row);
    }
    KycRequirement { row }
}

pub(super) fn start(rows: &mut WorkingSet, command: &StartKyc, now: Timestamp) -> KycStarted {
    let key = KycProcessKey { h_payto: command.h_payto, provider: command.provider.clone() };
    let row = match rows.get::<KycProcesses>(&key) {
        None => KycProcessRow {
            started: now,
            token: command.token.clone(),
            state: KycState::Started,
            expiration: Timestamp::ZERO,
            provider_user_id: String::new(),
            attributes: Vec::new(),
            submitted: Vec::new(),
            approved_by: String::new(),
        },
        Some(row)
            if row.state == KycState::Rejected
                || row.expiration <= now && row.state == KycState::Approved =>
        {
            KycProcessRow { started: now, state: KycState::Started, ..row.clone() }
        }
        Some(row) => return KycStarted { token: row.token.clone() },
    };
    let token = row.token.clone();
    rows.put::<KycProcesses>(&key, row);
    KycStarted { token }
}

pub(super) fn finish(
    rows: &mut WorkingSet,
    command: &FinishKyc,
    now: Timestamp,
) -> Result<KycFinished, Refusal> {
    let key = KycProcessKey { h_payto: command.h_payto, provider: command.provider.clone() };
    let row = process_of(rows, &key)?;
    let expiration = prolonged(&row, command.validity, now);
    let attributes =
        if command.attributes.is_empty() { row.attributes.clone() } else { command.attributes.clone() };
    let provider_user_id = command.provider_user_id.clone();
    let state = KycState::Approved;
    rows.update::<KycProcesses>(
        &key,
        KycProcessRow { state, expiration, provider_user_id, attributes, ..row },
    );
    alert(rows, command.h_payto, now);
    Ok(KycFinished { expiration })
}

pub(super) fn submit(rows: &mut WorkingSet, command: &SubmitKyc) -> Result<KycSubmitted, Refusal> {
    let key = KycProcessKey { h_payto: command.h_payto, provider: command.provider.clone() };
    let row = process_of(rows, &key)?;
    if row.token != command.token {
        return Err(Refusal::KycProcessUnknown);
    }
    rows.update::<KycProcesses>(
        &key,
        KycProcessRow {
            state: KycState::Submitted,
            submitted: command.attributes.clone(),
            approved_by: String::new(),
            ..row
        },
    );
    Ok(KycSubmitted)
}

pub(super) fn decide(
    rows: &mut WorkingSet,
    command: &DecideKyc,
    now: Timestamp,
) -> Result<KycDecided, Refusal> {
    let h_payto = command.h_payto;
    let key = KycProcessKey { h_payto, provider: command.provider.clone() };
    let row = process_of(rows, &key)?;
    if row.state != KycState::Submitted || row.submitted != command.submitted {
        return Err(Refusal::KycChanged);
    }
    let decision_key = decision_key(command);
    let is_repeated = row.approved_by == command.officer;
    if command.approved && is_repeated || rows.get::<KycDecisions>(&decision_key).is_some() {
        return Err(Refusal::KycSameOfficer);
    }
    let aggregates = rows.group::<Aggregates>(Aggregates::BY_TARGET, &h_payto);
    let held = aggregates.iter().filter(|(_, aggregate)| aggregate.kyc_row.is_some());
    let held = held.fold(Money::ZERO, |sum, (_, row)| sum.checked_add(row.total).unwrap_or(Money::MAX));
    rows.insert::<KycDecisions>(
        &decision_key,
        KycDecisionRow { approved: command.approved, reason: command.reason.clone(), held },
    );
    if !command.approved {
        rows.update::<KycProcesses>(
            &key,
            KycProcessRow {
                state: KycState::Rejected,
                submitted: Vec::new(),
                approved_by: String::new(),
                ..row
            },
        );
        return Ok(KycDecided::Rejected);
    }
    if !held.is_zero() && row.approved_by.is_empty() {
        let approved_by = command.officer.clone();
        rows.update::<KycProcesses>(&key, KycProcessRow { approved_by, ..row });
        return Ok(KycDecided::NeedsAnother { held });
    }
    let expiration = prolonged(&row, command.validity, now);
    rows.update::<KycProcesses>(
        &key,
        KycProcessRow {
            state: KycState::Approved,
            expiration,
            attributes: row.submitted.clone(),
            submitted: Vec::new(),
            approved_by: String::new(),
            ..row
        },
    );
    alert(rows, h_payto, now);
    Ok(KycDecided::Approved { expiration })
}

pub(super) fn clear_alert(rows: &mut WorkingSet, command: &ClearKycAlert) -> KycAlertCleared {
    let key = KycAccountKey { h_payto: command.h_payto };
    if rows.get::<KycAlerts>(&key).is_some_and(|alert| alert.time == command.time) {
        rows.delete::<KycAlerts>(&key);
    }
    KycAlertCleared
}

impl ExchangeRules {
    /// The account of a reserve that receives payments between people.
    ///
    /// # Panics
    /// If the base URL cannot be part of a payto URI, which is refused at the start if there are KYC rules.
    #[must_use]
    pub fn reserve_account(&self, reserve_pub: &ReservePub) -> PaytoHash {
        let payto = PaytoUri::reserve(&self.config.exchange_base_url, reserve_pub);
        payto.expect("the base URL was checked at the start").hash()
    }

    pub(super) fn plan_kyc(&self, operation: KycOperation, h_payto: PaytoHash, plan: &mut Plan) {
        if self.config.kyc.limits(operation) {
            plan.row::<KycUsages>(KycUsageKey { h_payto, operation });
            plan.group::<KycProcesses>(KycProcesses::BY_ACCOUNT, &h_payto);
        }
    }

    /// Plans the limits on merges into a reserve.
    pub(super) fn plan_merge_kyc(&self, reserve_pub: &ReservePub, plan: &mut Plan) {
        if self.config.kyc.limits(KycOperation::Merge) {
            self.plan_kyc(KycOperation::Merge, self.reserve_account(reserve_pub), plan);
        }
    }

    /// The checks that an operation misses.
    pub(super) fn missing_kyc(
        &self,
        rows: &WorkingSet,
        operation: KycOperation,
        h_payto: PaytoHash,
        amount: Money,
        now: Timestamp,
    ) -> Option<String> {
        if !self.config.kyc.limits(operation) {
            return None;
        }
        let usage = rows.get::<KycUsages>(&KycUsageKey { h_payto, operation });
        let events = usage.map_or(&[][..], |usage| &usage.events.0);
        let processes = rows.group::<KycProcesses>(KycProcesses::BY_ACCOUNT, &h_payto);
        self.config.kyc.missing(operation, amount, events, &processes, now)
    }

    /// Refuses an operation that misses checks.
    pub(super) fn require_kyc(
        &self,
        rows: &WorkingSet,
        operation: KycOperation,
        h_payto: PaytoHash,
        amount: Money,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        match self.missing_kyc(rows, operation, h_payto, amount, now) {
            Some(checks) => Err(Refusal::KycRequired { h_payto, checks }),
            None => Ok(()),
        }
    }

    /// Counts an operation against later limits.
    pub(super) fn count_kyc(
        &self,
        rows: &mut WorkingSet,
        operation: KycOperation,
        h_payto: PaytoHash,
        amount: Money,
        now: Timestamp,
    ) {
        if !self.config.kyc.limits(operation) {
            return;
        }
        let key = KycUsageKey { h_payto, operation };
        let events = match rows.get::<KycUsages>(&key) {
            Some(usage) => self.config.kyc.counted(operation, &usage.events.0, amount, now),
            None => self.config.kyc.counted(operation, &[], amount, now),
        };
        rows.put::<KycUsages>(&key, KycUsageRow { events });
    }
}
