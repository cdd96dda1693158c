//! Limits on customers in the naive exchange: every event is kept, and sums are made whenever they are needed.

use std::collections::{BTreeMap, BTreeSet};

use batzen_crypto::{EddsaPublicKey, ShortHash};
use batzen_exchange::rules::{
    DecideKyc, FinishKyc, KycDecided, KycFinished, KycRequirement, KycStarted, KycSubmitted, Refusal,
    RequireKyc, StartKyc, SubmitKyc,
};
use batzen_protocol::payto::PaytoUri;
use batzen_protocol::{Duration, Timestamp};
use batzen_tables::exchange::{KycOperation, KycState};

use super::{Model, Step, Units, money, u};

#[derive(Clone)]
struct Process {
    token: String,
    state: KycState,
    expiration: Timestamp,
    submitted: Vec<u8>,
    approved_by: Option<String>,
}

/// Everything that was ever counted, and who was identified.
#[derive(Clone, Default)]
pub(super) struct Customers {
    events: Vec<(ShortHash, KycOperation, Timestamp, Units)>,
    processes: BTreeMap<(ShortHash, String), Process>,
    decisions: BTreeSet<(ShortHash, String, Timestamp, String)>,
    /// The numbers of requirements.
    requirements: BTreeMap<(ShortHash, String), u64>,
    /// Transient aggregates that are held.
    pub held: BTreeSet<(ShortHash, EddsaPublicKey)>,
}

impl Model {
    pub(super) fn reserve_account(&self, reserve_pub: &EddsaPublicKey) -> ShortHash {
        PaytoUri::reserve(&self.config.exchange_base_url, reserve_pub).unwrap().hash()
    }

    /// The checks that an operation misses.
    pub(super) fn missing(
        &self,
        operation: KycOperation,
        account: ShortHash,
        amount: Units,
        now: Timestamp,
    ) -> Option<String> {
        let mut missing = BTreeSet::new();
        let amount =
            amount + if operation == KycOperation::Merge { self.asked_for(&account, now) } else { 0 };
        for rule in self.config.kyc.rules.iter().filter(|rule| rule.operation == operation) {
            let counts = |(who, what, when, _): &&(ShortHash, KycOperation, Timestamp, Units)| {
                *who == account && *what == operation && when.saturating_add(rule.timeframe) >= now
            };
            let sum: Units = self.customers.events.iter().filter(counts).map(|event| event.3).sum();
            if sum + amount >= u(rule.threshold) {
                missing.extend(rule.checks.iter().cloned());
            }
        }
        for provider in &self.config.kyc.providers {
            let process = self.customers.processes.get(&(account, provider.section.clone()));
            if process.is_some_and(|process| process.expiration > now) {
                missing.retain(|check| !provider.checks.contains(check));
            }
        }
        let missing: Vec<String> = missing.into_iter().collect();
        (!missing.is_empty()).then(|| missing.join(" "))
    }

    /// Refuses an operation, or counts it.
    pub(super) fn limit(
        &mut self,
        operation: KycOperation,
        account: ShortHash,
        amount: Units,
        now: Timestamp,
    ) -> Step<()> {
        if let Some(checks) = self.missing(operation, account, amount, now) {
            return Err(Refusal::KycRequired { h_payto: account, checks }.into());
        }
        self.count(operation, account, amount, now);
        Ok(())
    }

    pub(super) fn count(
        &mut self,
        operation: KycOperation,
        account: ShortHash,
        amount: Units,
        now: Timestamp,
    ) {
        self.customers.events.push((account, operation, now, amount));
    }

    pub(super) fn require(&mut self, command: &RequireKyc) -> KycRequirement {
        let key = (command.h_payto, command.checks.clone());
        KycRequirement { row: *self.customers.requirements.entry(key).or_insert(command.row) }
    }

    pub(super) fn is_required(&self, account: ShortHash, checks: &str) -> bool {
        self.customers.requirements.contains_key(&(account, checks.to_owned()))
    }

    pub(super) fn start(&mut self, command: &StartKyc, now: Timestamp) -> KycStarted {
        let key = (command.h_payto, command.provider.clone());
        let process = self.customers.processes.entry(key).or_insert_with(|| Process {
            token: command.token.clone(),
            state: KycState::Started,
            expiration: Timestamp::ZERO,
            submitted: Vec::new(),
            approved_by: None,
        });
        let has_expired = process.state == KycState::Approved && process.expiration <= now;
        if has_expired {
            process.token.clone_from(&command.token);
        }
        if process.state == KycState::Rejected || has_expired {
            process.state = KycState::Started;
        }
        KycStarted { token: process.token.clone() }
    }

    fn process(&mut self, h_payto: ShortHash, provider: &str) -> Step<&mut Process> {
        let found = self.customers.processes.get_mut(&(h_payto, provider.to_owned()));
        Ok(found.ok_or(Refusal::KycProcessUnknown)?)
    }

    pub(super) fn finish(&mut self, command: &FinishKyc, now: Timestamp) -> Step<KycFinished> {
        let process = self.process(command.h_payto, &command.provider)?;
        if process.token != command.token {
            return Err(Refusal::KycProcessUnknown.into());
        }
        Ok(KycFinished { expiration: process.approve(command.validity, now) })
    }

    pub(super) fn submit(&mut self, command: &SubmitKyc, now: Timestamp) -> Step<KycSubmitted> {
        let process = self.process(command.h_payto, &command.provider)?;
        if process.token != command.token {
            return Err(Refusal::KycProcessUnknown.into());
        }
        match process.state {
            KycState::Submitted => return Err(Refusal::KycWaits.into()),
            KycState::Approved if process.expiration > now => return Err(Refusal::KycWaits.into()),
            _ => {}
        }
        process.state = KycState::Submitted;
        process.submitted.clone_from(&command.attributes);
        process.approved_by = None;
        Ok(KycSubmitted)
    }

    pub(super) fn decide(&mut self, command: &DecideKyc, now: Timestamp) -> Step<KycDecided> {
        let h_payto = command.h_payto;
        let of = |(account, _): &&(ShortHash, EddsaPublicKey)| *account == h_payto;
        let held: Units = self.customers.held.iter().filter(of).map(|key| self.transients[key].0).sum();
        let name = (h_payto, command.provider.clone(), command.time, command.officer.clone());
        let is_repeated = self.customers.decisions.contains(&name);
        let process = self.process(h_payto, &command.provider)?;
        if process.state != KycState::Submitted || process.submitted != command.submitted {
            return Err(Refusal::KycChanged.into());
        }
        let was_me = process.approved_by.as_ref() == Some(&command.officer);
        if is_repeated || (command.approved && was_me) {
            return Err(Refusal::KycSameOfficer.into());
        }
        let decided = match (command.approved, &process.approved_by) {
            (false, _) => {
                process.state = KycState::Rejected;
                process.approved_by = None;
                KycDecided::Rejected
            }
            (true, None) if held > 0 => {
                process.approved_by = Some(command.officer.clone());
                KycDecided::NeedsAnother { held: money(held) }
            }
            (true, _) => KycDecided::Approved { expiration: process.approve(command.validity, now) },
        };
        self.customers.decisions.insert(name);
        Ok(decided)
    }
}

impl Process {
    fn approve(&mut self, validity: Duration, now: Timestamp) -> Timestamp {
        let from_now = now.saturating_add(validity);
        (self.state, self.expiration) = (KycState::Approved, self.expiration.max(from_now));
        self.approved_by = None;
        self.expiration
    }
}
