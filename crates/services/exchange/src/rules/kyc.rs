//! Limits on what customers may do before they are identified (semantics chapter 9).
//!
//! A rule limits one kind of operation of one account. If the operation's amount and those of the rule's time
//! frame reach the threshold, the rule's checks are required, except those that a valid identification of the
//! account has provided. An operation that misses checks is refused with [`Refusal::KycRequired`] and counts
//! nothing; the caller then stores the requirement with [`RequireKyc`] and names its number to the client.
//!
//! Amounts that count are in one row for each account and operation, so that a check costs one row however
//! long the time frame is. The row is that of the account, however its payto URI is spelled ([`LimitedAccount`]).
//! Operations without a rule leave no trace there. A purse that a reserve has asked for counts from then on as
//! long as somebody may pay it, because it is merged without a further check.

use batzen_crypto::hash::sha512_parts;
use batzen_engine::{Command, Plan, WorkingSet};
use batzen_protocol::payto::{AccountHash, PaytoUri, h_payto};
use batzen_protocol::{Duration, Money, Timestamp};
use batzen_tables::exchange::{
    Aggregates, KycAccountKey, KycAlertRow, KycAlerts, KycDecisionKey, KycDecisionRow, KycDecisions,
    KycEvent, KycEvents, KycHold, KycHolds, KycOperation, KycProcessKey, KycProcessRow, KycProcesses,
    KycRequirementKey, KycRequirementRow, KycRequirements, KycState, KycUsageKey, KycUsageRow, KycUsages,
    PaytoHash, PursePub, ReservePub,
};

use super::{ExchangeRules, Refusal, garbage};
use crate::rules::refusal::Result;

/// Number of events of one kind that an account keeps. When there are more, the two oldest become one with
/// the later time, so that an old amount may count for longer than the time frame, and never for shorter.
pub const EVENTS_MAX: usize = 256;

/// Number of purses that an account without identification may have asked for and not been paid yet.
pub const HOLDS_MAX: usize = 256;

/// An account whose operations are limited: the hash by which the protocol names it, and the one under which its
/// operations count. Both are of one payto URI, so neither can be that of another account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitedAccount {
    h_payto: PaytoHash,
    account: AccountHash,
}

impl LimitedAccount {
    /// The account of a payto URI.
    #[must_use]
    pub fn of(payto_uri: &str) -> Self {
        Self { h_payto: h_payto(payto_uri), account: AccountHash::of(payto_uri) }
    }

    /// The hash of its payto URI as it is spelled.
    #[must_use]
    pub fn h_payto(&self) -> PaytoHash {
        self.h_payto
    }

    /// The row of its operations of a kind.
    #[must_use]
    pub fn usage_key(&self, operation: KycOperation) -> KycUsageKey {
        KycUsageKey { account: self.account, operation }
    }
}

/// Stores a requirement that another command was refused for. A repetition changes nothing.
#[derive(Debug, Clone)]
pub struct RequireKyc {
    /// The account whose owner must be identified.
    pub h_payto: PaytoHash,
    /// The missing checks, as the refusal names them.
    pub checks: String,
    /// The number of the requirement if it is new ([`requirement_number`]).
    pub row: u64,
}

/// The requirement is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KycRequirement {
    /// Its number.
    pub row: u64,
}

impl Command<ExchangeRules> for RequireKyc {
    type Answer = KycRequirement;

    fn owner(&self) -> Option<&[u8]> {
        Some(self.h_payto.as_bytes())
    }

    fn plan(&self, _: &ExchangeRules, plan: &mut Plan) {
        plan.group::<KycRequirements>(KycRequirements::BY_ACCOUNT, &self.h_payto);
        for row in [self.row, NO_REQUIREMENT] {
            plan.row::<KycRequirements>(KycRequirementKey { h_payto: self.h_payto, row });
        }
    }

    fn execute(&self, _: &ExchangeRules, rows: &mut WorkingSet, now: Timestamp) -> Result<KycRequirement> {
        let known = known_requirement(rows, self.h_payto, &self.checks);
        let row = known.unwrap_or(self.row);
        let key = KycRequirementKey { h_payto: self.h_payto, row };
        if known.is_none() {
            // Another service may be drawing a number for the account: the one that commits later executes this again.
            let turn = KycRequirementKey { h_payto: self.h_payto, row: NO_REQUIREMENT };
            rows.put::<KycRequirements>(&turn, KycRequirementRow { checks: String::new(), asked: Some(now) });
        }
        // Garbage collection removes what was not asked for in a long time. A day more or less does not matter.
        let is_recent =
            |row: &KycRequirementRow| row.asked.is_some_and(|asked| !garbage::is_over(asked, now));
        if !rows.get::<KycRequirements>(&key).is_some_and(is_recent) {
            let row = KycRequirementRow { checks: self.checks.clone(), asked: Some(now) };
            rows.put::<KycRequirements>(&key, row);
        }
        Ok(KycRequirement { row })
    }
}

/// Begins an identification, or begins it again. One that waits for officers or is valid stays as it is.
#[derive(Debug, Clone)]
pub struct StartKyc {
    /// The account.
    pub h_payto: PaytoHash,
    /// The provider's section.
    pub provider: String,
    /// A random secret for the user's page, if the process is new.
    pub token: String,
}

/// The identification has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KycStarted {
    /// The secret of the user's page.
    pub token: String,
}

impl Command<ExchangeRules> for StartKyc {
    type Answer = KycStarted;

    fn owner(&self) -> Option<&[u8]> {
        Some(self.h_payto.as_bytes())
    }

    fn plan(&self, _: &ExchangeRules, plan: &mut Plan) {
        plan_process(self.h_payto, &self.provider, plan);
    }

    fn execute(&self, _: &ExchangeRules, rows: &mut WorkingSet, now: Timestamp) -> Result<KycStarted> {
        let key = KycProcessKey { h_payto: self.h_payto, provider: self.provider.clone() };
        let row = match rows.get::<KycProcesses>(&key) {
            None => KycProcessRow {
                started: now,
                token: self.token.clone(),
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
                // The page of a rejected user stays the same; what identified somebody once does so no more.
                let token = if row.state == KycState::Approved { &self.token } else { &row.token };
                KycProcessRow { started: now, token: token.clone(), state: KycState::Started, ..row.clone() }
            }
            Some(row) => return Ok(KycStarted { token: row.token.clone() }),
        };
        let token = row.token.clone();
        rows.put::<KycProcesses>(&key, row);
        Ok(KycStarted { token })
    }
}

/// Records that a provider has identified the owner of an account.
#[derive(Debug, Clone)]
pub struct FinishKyc {
    /// The account.
    pub h_payto: PaytoHash,
    /// The provider's section.
    pub provider: String,
    /// The secret of the process that the user has gone through.
    pub token: String,
    /// The provider's name for the user.
    pub provider_user_id: String,
    /// The attributes, encrypted; empty if there are none.
    pub attributes: Vec<u8>,
    /// Time that the identification is valid.
    pub validity: Duration,
}

/// The owner is identified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KycFinished {
    /// When it expires.
    pub expiration: Timestamp,
}

impl Command<ExchangeRules> for FinishKyc {
    type Answer = KycFinished;

    fn owner(&self) -> Option<&[u8]> {
        Some(self.h_payto.as_bytes())
    }

    fn plan(&self, _: &ExchangeRules, plan: &mut Plan) {
        plan_process(self.h_payto, &self.provider, plan);
        plan.row::<KycAlerts>(KycAccountKey { h_payto: self.h_payto });
    }

    fn execute(&self, _: &ExchangeRules, rows: &mut WorkingSet, now: Timestamp) -> Result<KycFinished> {
        let key = KycProcessKey { h_payto: self.h_payto, provider: self.provider.clone() };
        let row = process_of(rows, &key)?;
        if row.token != self.token {
            return Err(Refusal::KycProcessUnknown);
        }
        let expiration = prolonged(&row, self.validity, now);
        let attributes =
            if self.attributes.is_empty() { row.attributes.clone() } else { self.attributes.clone() };
        let provider_user_id = self.provider_user_id.clone();
        let state = KycState::Approved;
        rows.update::<KycProcesses>(
            &key,
            KycProcessRow { state, expiration, provider_user_id, attributes, ..row },
        );
        alert(rows, self.h_payto, now);
        Ok(KycFinished { expiration })
    }
}

/// Stores what a user has entered, for officers to decide on. While they have not decided, and while an
/// identification is valid, nothing else can be entered.
#[derive(Debug, Clone)]
pub struct SubmitKyc {
    /// The account.
    pub h_payto: PaytoHash,
    /// The provider's section.
    pub provider: String,
    /// The secret of the user's page.
    pub token: String,
    /// The attributes, encrypted.
    pub attributes: Vec<u8>,
}

/// The user's entries wait for officers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KycSubmitted;

impl Command<ExchangeRules> for SubmitKyc {
    type Answer = KycSubmitted;

    fn owner(&self) -> Option<&[u8]> {
        Some(self.h_payto.as_bytes())
    }

    fn plan(&self, _: &ExchangeRules, plan: &mut Plan) {
        plan_process(self.h_payto, &self.provider, plan);
    }

    fn execute(&self, _: &ExchangeRules, rows: &mut WorkingSet, now: Timestamp) -> Result<KycSubmitted> {
        let key = KycProcessKey { h_payto: self.h_payto, provider: self.provider.clone() };
        let row = process_of(rows, &key)?;
        if row.token != self.token {
            return Err(Refusal::KycProcessUnknown);
        }
        let is_valid = row.state == KycState::Approved && row.expiration > now;
        if is_valid || row.state == KycState::Submitted {
            return Err(Refusal::KycWaits);
        }
        rows.update::<KycProcesses>(
            &key,
            KycProcessRow {
                state: KycState::Submitted,
                submitted: self.attributes.clone(),
                approved_by: String::new(),
                ..row
            },
        );
        Ok(KycSubmitted)
    }
}

/// An officer decides on what a user has entered.
#[derive(Debug, Clone)]
pub struct DecideKyc {
    /// The account.
    pub h_payto: PaytoHash,
    /// The provider's section.
    pub provider: String,
    /// The attributes that the officer saw, encrypted as stored: if the user has changed them since, the
    /// decision is refused.
    pub submitted: Vec<u8>,
    /// The officer who decides.
    pub officer: String,
    /// Whether the owner is identified.
    pub approved: bool,
    /// Why, in the officer's words.
    pub reason: String,
    /// When.
    pub time: Timestamp,
    /// Time that the identification is valid.
    pub validity: Duration,
}

/// The answer to [`DecideKyc`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KycDecided {
    /// The owner is identified.
    Approved {
        /// When it expires.
        expiration: Timestamp,
    },
    /// The decision releases money, so another officer must approve as well.
    NeedsAnother {
        /// The money held.
        held: Money,
    },
    /// The owner is not identified.
    Rejected,
}

impl Command<ExchangeRules> for DecideKyc {
    type Answer = KycDecided;

    fn owner(&self) -> Option<&[u8]> {
        Some(self.h_payto.as_bytes())
    }

    fn plan(&self, _: &ExchangeRules, plan: &mut Plan) {
        plan_process(self.h_payto, &self.provider, plan);
        plan.row::<KycAlerts>(KycAccountKey { h_payto: self.h_payto });
        plan.row::<KycDecisions>(decision_key(self));
        plan.group::<Aggregates>(Aggregates::BY_TARGET, &self.h_payto);
    }

    fn execute(&self, _: &ExchangeRules, rows: &mut WorkingSet, now: Timestamp) -> Result<KycDecided> {
        let h_payto = self.h_payto;
        let key = KycProcessKey { h_payto, provider: self.provider.clone() };
        let row = process_of(rows, &key)?;
        if row.state != KycState::Submitted || row.submitted != self.submitted {
            return Err(Refusal::KycChanged);
        }
        let decision_key = decision_key(self);
        let is_repeated = row.approved_by == self.officer;
        if self.approved && is_repeated || rows.get::<KycDecisions>(&decision_key).is_some() {
            return Err(Refusal::KycSameOfficer);
        }
        let aggregates = rows.group::<Aggregates>(Aggregates::BY_TARGET, &h_payto);
        let held = aggregates.iter().filter(|(_, aggregate)| aggregate.kyc_row.is_some());
        let held = held.fold(Money::ZERO, |sum, (_, row)| sum.checked_add(row.total).unwrap_or(Money::MAX));
        rows.insert::<KycDecisions>(
            &decision_key,
            KycDecisionRow { approved: self.approved, reason: self.reason.clone(), held },
        );
        if !self.approved {
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
            let approved_by = self.officer.clone();
            rows.update::<KycProcesses>(&key, KycProcessRow { approved_by, ..row });
            return Ok(KycDecided::NeedsAnother { held });
        }
        let expiration = prolonged(&row, self.validity, now);
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
}

/// Removes an alert after the account's payouts were looked at.
#[derive(Debug, Clone, Copy)]
pub struct ClearKycAlert {
    /// The account.
    pub h_payto: PaytoHash,
    /// The alert's time. A later alert stays.
    pub time: Timestamp,
}

/// The alert is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KycAlertCleared;

impl Command<ExchangeRules> for ClearKycAlert {
    type Answer = KycAlertCleared;
    const IS_BACKGROUND: bool = true;

    fn owner(&self) -> Option<&[u8]> {
        Some(self.h_payto.as_bytes())
    }

    fn plan(&self, _: &ExchangeRules, plan: &mut Plan) {
        plan.row::<KycAlerts>(KycAccountKey { h_payto: self.h_payto });
    }

    fn execute(&self, _: &ExchangeRules, rows: &mut WorkingSet, _: Timestamp) -> Result<KycAlertCleared> {
        let key = KycAccountKey { h_payto: self.h_payto };
        if rows.get::<KycAlerts>(&key).is_some_and(|alert| alert.time == self.time) {
            rows.delete::<KycAlerts>(&key);
        }
        Ok(KycAlertCleared)
    }
}

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
    /// The operation that it limits.
    pub operation: KycOperation,
    /// The checks that are required from the threshold on.
    pub checks: Vec<String>,
    /// The amount from which the checks are required.
    pub threshold: Money,
    /// Time that amounts count back. Not used for [`KycOperation::Balance`].
    pub timeframe: Duration,
}

/// A provider of checks: section `[kyc-provider-*]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KycProvider {
    /// The section's name.
    pub section: String,
    /// The cost of a process; only compared with others.
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

/// The number of no requirement. An account's row under it changes with each of its new requirements.
pub(crate) const NO_REQUIREMENT: u64 = 0;

/// The number of a new requirement, which nobody can guess. It is below 2^53, which every JSON parser can read.
#[must_use]
pub fn requirement_number(random: [u8; 8]) -> u64 {
    (u64::from_be_bytes(random) >> 11).max(1)
}

/// Returns whether a requirement's number can be computed by everybody who knows the account, as earlier versions
/// made them. Such a number is worth nothing.
#[must_use]
pub(crate) fn is_guessable(key: &KycRequirementKey, checks: &str) -> bool {
    let digest = sha512_parts(&[b"kyc-requirement", key.h_payto.as_bytes(), checks.as_bytes()]);
    let first = digest.as_bytes().first_chunk().expect("64 bytes hold 8");
    requirement_number(*first) == key.row
}

/// The number of an account's requirement, if it is stored. The account's requirements were planned as a group.
pub(super) fn known_requirement(rows: &WorkingSet, h_payto: PaytoHash, checks: &str) -> Option<u64> {
    let stored = rows.group::<KycRequirements>(KycRequirements::BY_ACCOUNT, &h_payto);
    let is_it = |key: &KycRequirementKey, row: &KycRequirementRow| {
        key.row != NO_REQUIREMENT && row.checks == checks && !is_guessable(key, checks)
    };
    let equal = stored.into_iter().filter(|(key, row)| is_it(key, row));
    equal.map(|(key, _)| key.row).min()
}

impl KycRules {
    /// Returns whether any rule limits an operation.
    #[must_use]
    pub fn limits(&self, operation: KycOperation) -> bool {
        self.rules.iter().any(|rule| rule.operation == operation)
    }

    fn of(&self, operation: KycOperation) -> impl Iterator<Item = &KycRule> {
        self.rules.iter().filter(move |rule| rule.operation == operation)
    }

    /// The `checks` that no valid identification has provided, sorted and without repetitions.
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

fn decision_key(command: &DecideKyc) -> KycDecisionKey {
    KycDecisionKey {
        h_payto: command.h_payto,
        provider: command.provider.clone(),
        time: command.time,
        officer: command.officer.clone(),
    }
}

fn process_of(rows: &WorkingSet, key: &KycProcessKey) -> Result<KycProcessRow> {
    rows.get::<KycProcesses>(key).cloned().ok_or(Refusal::KycProcessUnknown)
}

/// An identification is never shortened.
fn prolonged(row: &KycProcessRow, validity: Duration, now: Timestamp) -> Timestamp {
    row.expiration.max(now.saturating_add(validity))
}

/// The operations of an account, without purses that nobody can pay any more.
fn usage_of(rows: &WorkingSet, key: &KycUsageKey, now: Timestamp) -> KycUsageRow {
    let empty = KycUsageRow { events: KycEvents::default(), holds: KycHolds::default() };
    let mut usage = rows.get::<KycUsages>(key).cloned().unwrap_or(empty);
    usage.holds.0.retain(|hold| hold.until > now);
    usage
}

fn alert(rows: &mut WorkingSet, h_payto: PaytoHash, now: Timestamp) {
    rows.put::<KycAlerts>(&KycAccountKey { h_payto }, KycAlertRow { time: now });
}

/// The sum of the purses that an account may still be paid; the largest amount if it is even more.
fn held(usage: &KycUsageRow, now: Timestamp) -> Money {
    let open = usage.holds.0.iter().filter(|hold| hold.until > now);
    open.fold(Money::ZERO, |sum, hold| sum.checked_add(hold.amount).unwrap_or(Money::MAX))
}

impl ExchangeRules {
    /// The account of a reserve that receives payments between people.
    ///
    /// # Panics
    /// If the base URL cannot be part of a payto URI, which is refused at the start if there are KYC rules.
    pub(crate) fn reserve_account(&self, reserve_pub: &ReservePub) -> LimitedAccount {
        let payto = PaytoUri::reserve(&self.config.exchange_base_url, reserve_pub);
        LimitedAccount::of(payto.expect("the base URL was checked at the start").as_str())
    }

    pub(super) fn plan_kyc(&self, operation: KycOperation, account: &LimitedAccount, plan: &mut Plan) {
        if self.config.kyc.limits(operation) {
            plan.row::<KycUsages>(account.usage_key(operation));
            plan.group::<KycProcesses>(KycProcesses::BY_ACCOUNT, &account.h_payto);
        }
    }

    /// Plans the limits on merges into a reserve.
    pub(super) fn plan_merge_kyc(&self, reserve_pub: &ReservePub, plan: &mut Plan) {
        if self.config.kyc.limits(KycOperation::Merge) {
            self.plan_kyc(KycOperation::Merge, &self.reserve_account(reserve_pub), plan);
        }
    }

    /// Refuses to merge this amount into a reserve whose owner must be identified first.
    pub(super) fn require_merge_kyc(
        &self,
        rows: &WorkingSet,
        reserve_pub: &ReservePub,
        amount: Money,
        now: Timestamp,
    ) -> Result<()> {
        if !self.config.kyc.limits(KycOperation::Merge) {
            return Ok(());
        }
        self.require_kyc(rows, KycOperation::Merge, &self.reserve_account(reserve_pub), amount, now)
    }

    /// Counts a purse that a reserve may be paid until the purse expires. [`Self::require_merge_kyc`] has allowed it.
    pub(super) fn hold_merge_kyc(
        &self,
        rows: &mut WorkingSet,
        reserve_pub: &ReservePub,
        hold: KycHold,
        now: Timestamp,
    ) -> Result<()> {
        if !self.config.kyc.limits(KycOperation::Merge) || hold.amount.is_zero() {
            return Ok(());
        }
        let account = self.reserve_account(reserve_pub);
        let mut usage = usage_of(rows, &account.usage_key(KycOperation::Merge), now);
        if usage.holds.0.len() >= HOLDS_MAX {
            // More of them would count for nothing if the owner is identified.
            let missing = self.missing_kyc(rows, KycOperation::Merge, &account, Money::MAX, now);
            return if missing.is_some() { Err(Refusal::PurseUnaffordable) } else { Ok(()) };
        }
        usage.holds.0.push(hold);
        rows.put::<KycUsages>(&account.usage_key(KycOperation::Merge), usage);
        Ok(())
    }

    /// Counts a purse that is decided: nothing if it was refunded, or else the amount that the reserve gets.
    pub(super) fn settle_merge_kyc(
        &self,
        rows: &mut WorkingSet,
        reserve_pub: &ReservePub,
        purse_pub: PursePub,
        paid: Option<Money>,
        now: Timestamp,
    ) {
        if !self.config.kyc.limits(KycOperation::Merge) {
            return;
        }
        let key = self.reserve_account(reserve_pub).usage_key(KycOperation::Merge);
        let mut usage = usage_of(rows, &key, now);
        let before = usage.holds.0.len();
        usage.holds.0.retain(|hold| hold.purse_pub != purse_pub);
        if let Some(amount) = paid {
            usage.events = self.config.kyc.counted(KycOperation::Merge, &usage.events.0, amount, now);
        } else if usage.holds.0.len() == before {
            return;
        }
        rows.put::<KycUsages>(&key, usage);
    }

    /// The checks that an operation misses.
    pub(super) fn missing_kyc(
        &self,
        rows: &WorkingSet,
        operation: KycOperation,
        account: &LimitedAccount,
        amount: Money,
        now: Timestamp,
    ) -> Option<String> {
        if !self.config.kyc.limits(operation) {
            return None;
        }
        let usage = rows.get::<KycUsages>(&account.usage_key(operation));
        let events = usage.map_or(&[][..], |usage| &usage.events.0);
        let held = usage.map_or(Money::ZERO, |usage| held(usage, now));
        let amount = amount.checked_add(held).unwrap_or(Money::MAX);
        let processes = rows.group::<KycProcesses>(KycProcesses::BY_ACCOUNT, &account.h_payto);
        self.config.kyc.missing(operation, amount, events, &processes, now)
    }

    /// Refuses an operation that misses checks.
    pub(super) fn require_kyc(
        &self,
        rows: &WorkingSet,
        operation: KycOperation,
        account: &LimitedAccount,
        amount: Money,
        now: Timestamp,
    ) -> Result<()> {
        match self.missing_kyc(rows, operation, account, amount, now) {
            Some(checks) => Err(Refusal::KycRequired { h_payto: account.h_payto, checks }),
            None => Ok(()),
        }
    }

    /// Counts an operation against later limits.
    pub(super) fn count_kyc(
        &self,
        rows: &mut WorkingSet,
        operation: KycOperation,
        account: &LimitedAccount,
        amount: Money,
        now: Timestamp,
    ) {
        if !self.config.kyc.limits(operation) {
            return;
        }
        let key = account.usage_key(operation);
        let mut usage = usage_of(rows, &key, now);
        usage.events = self.config.kyc.counted(operation, &usage.events.0, amount, now);
        rows.put::<KycUsages>(&key, usage);
    }
}
