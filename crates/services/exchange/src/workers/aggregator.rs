//! aggregator: turns due deposits into prepared transfers to merchants.
//!
//! The unit of work is a merchant's account: when one of its deposits is due, all deposits whose refund
//! period has ended are paid with it. Each command aggregates at most `AGGREGATE_DEPOSITS_MAX` deposits, by
//! way of the transient aggregate; only the last part pays, under the identifier that the first one got. An
//! interrupted unit is found again by its transient aggregate.
//!
//! The queue of due deposits is read from the index alone. Parts of many units are in flight at the same
//! time, so that one commit covers several units and the next ones are found during it. At most
//! `IN_FLIGHT_DEPOSITS` deposits are in flight, so that payments behind them in the lane do not wait long.
//! Several aggregators, in one or several processes, each have a share of the targets (`leases`), so that
//! they do not change the same rows.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use batzen_crypto::{HashCode, Wtid};
use batzen_protocol::Timestamp;
use batzen_store::{Store, StoreError};
use batzen_tables::exchange::{
    AccountId, AggregateKey, AggregateRow, Aggregates, DepositTarget, LeaseJob, WireFees, WireTargetKey,
    WireTargets,
};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use super::leases::{self, Share};
use super::{
    Aside, ItemError, Mode, Progress, WorkerError, check_drain, debit_accounts, decide, idle_interval, pause,
    read,
};
use crate::core::Core;
use crate::reads::kyc;
use crate::reads::read::{self, DuePosition};
use crate::rules::kyc::requirement_number;
use crate::rules::leases::Slots;
use crate::rules::transfers::{AGGREGATE_DEPOSITS_MAX, payto_method, round_down};
use crate::rules::{Aggregate, Aggregated, ClearKycAlert, LimitedAccount, Refusal, RequireKyc, Trigger};

/// The maximum number of deposits in one transfer, so that its list stays readable for the merchant. The next
/// transfer pays the rest.
const UNIT_DEPOSITS_MAX: usize = 10_000;
/// Number of due deposits that are read at once: the second value applies in the service, whose clients wait for
/// the processor meanwhile.
const PAGE_DEPOSITS: usize = 4_096;
const PAGE_DEPOSITS_BESIDE_CLIENTS: usize = 1_024;
/// Number of targets' accounts that are read at once.
const ACCOUNTS_AT_ONCE: usize = 16;
/// The longest wire method that is read, in characters. Configured accounts have shorter ones.
const METHOD_CHARS_MAX: usize = 256;
/// Number of deposits that may be on their way through the lane, and half as many units. This is about two commits
/// of a few milliseconds: one runs while the other one waits.
const IN_FLIGHT_DEPOSITS: usize = 3_000;
/// The cost of a unit besides its deposits, in deposits: it writes a transfer and a prepared request.
const UNIT_WEIGHT: usize = 2;
/// Number of customers' held payouts that are looked at in one round after they were identified.
const ALERTS_MAX: usize = 256;
/// Number of attempts at a part that conflicts with another worker.
const RACES_MAX: u32 = 8;
/// The shortest interval between two searches for interrupted units.
const RESUME_PAUSE: Duration = Duration::from_secs(60);
/// The shortest pause between two rounds.
const PAUSE_MIN: Duration = Duration::from_millis(20);

/// Aggregates everything that is due.
///
/// # Errors
/// When the store fails repeatedly; what was prepared before stays.
pub async fn run_until_idle(app: &Core) -> Result<Progress, WorkerError> {
    let mut aggregator = Aggregator::new(app, Mode::UntilIdle);
    let mut progress = Progress::default();
    loop {
        let round = aggregator.round().await?;
        progress = Progress { done: progress.done + round.progress.done, ..round.progress };
        if round.others == 0 {
            aggregator.share.leave().await;
            return Ok(progress);
        }
        // The caller expects that all due deposits are aggregated in the end, including those of other
        // workers.
        aggregator.share.wait_for_others(round.others).await?;
    }
}

/// Aggregates until the service ends.
pub(super) async fn run(app: &Core) -> Result<(), WorkerError> {
    let mut aggregator = Aggregator::new(app, Mode::Service);
    let ended = aggregator.run().await;
    aggregator.share.leave().await;
    ended
}

struct Aggregator<'a> {
    app: &'a Core,
    mode: Mode,
    /// The accounts that pay, with the methods of their payto URIs.
    accounts: Arc<[(AccountId, String)]>,
    aside: Aside<DepositTarget>,
    /// The time of the last search for interrupted units.
    resumed: Option<Instant>,
    share: Share<'a>,
}

/// The result of a pass over all due deposits.
struct Round {
    progress: Progress,
    /// The number of targets that belong to other workers.
    others: usize,
}

/// A unit of aggregation in progress.
struct Unit {
    target: DepositTarget,
    account: AccountId,
    method: String,
    wtid: Wtid,
    payee: Option<LimitedAccount>,
    trigger: Trigger,
    /// Deposits aggregated by completed parts.
    taken: usize,
    /// An estimate of the deposits left, at most one more than fits into a part.
    left: usize,
}

impl Unit {
    /// The weight of its next part in the lane.
    fn weight(&self) -> usize {
        self.left.min(AGGREGATE_DEPOSITS_MAX) + UNIT_WEIGHT
    }
}

/// A target before its unit begins.
enum Found {
    Payable {
        account: AccountId,
        method: String,
        payee: LimitedAccount,
        transient: Option<AggregateRow>,
        left: usize,
    },
    Aside(ItemError),
}

/// The outcome of a part.
enum Fate {
    /// The unit has a next part.
    More,
    /// The whole unit is aggregated.
    Done,
    /// Nothing was due any longer.
    Nothing,
    /// It cannot be paid now.
    Aside(ItemError),
}

impl<'a> Aggregator<'a> {
    fn new(app: &'a Core, mode: Mode) -> Self {
        let accounts = debit_accounts(app).map(|account| (account.id, account.method.to_owned()));
        let accounts = accounts.collect();
        let share = Share::new(app, mode, LeaseJob::Aggregator);
        Self { app, mode, accounts, aside: Aside::new(), resumed: None, share }
    }

    async fn run(&mut self) -> Result<(), WorkerError> {
        let app = self.app;
        let shift = app.config.workers.aggregator_shift;
        loop {
            let round = self.round().await?;
            let now = app.rules.aggregation_time(app.now());
            let next = read(app, move |store| read::next_ready(store, Some(now))).await?;
            // It is due from the next tick of the aggregator's coarse clock.
            let due = next.map(|next| app.rules.aggregation_time(next.saturating_add(shift)));
            let until = due.and_then(|due| due.saturating_since(app.now()).to_std());
            let mut idle = idle_interval(app.config.workers.aggregator_idle_sleep);
            if round.others > 0 {
                // By then, the leases of killed workers have expired.
                idle = idle.min(leases::lease(app));
            }
            let wait = until.map_or(idle, |until| until.clamp(PAUSE_MIN, idle.max(PAUSE_MIN)));
            tokio::select! {
                biased;
                paused = pause(app, wait) => paused?,
                () = app.notices.kyc.announced() => {}
            }
        }
    }

    /// One pass over all due deposits.
    async fn round(&mut self) -> Result<Round, WorkerError> {
        let mut round = Round { progress: Progress::default(), others: 0 };
        // When the first deposit became due.
        let first = read(self.app, |store| read::next_ready(store, None)).await?;
        if self.resumed.is_none() {
            self.resume(&mut round).await?;
        }
        self.release(&mut round).await?;
        let now = self.app.rules.aggregation_time(self.app.now());
        // Without work there is nothing to share.
        let mut position = first.filter(|first| *first <= now).map(|_| DuePosition::default());
        while let Some(from) = position.take() {
            check_drain(self.app)?;
            let accounts = Arc::clone(&self.accounts);
            let slots = self.share.slots().await?;
            let beside_clients = self.mode == Mode::Service && self.app.lane.metrics().serves_clients();
            let page = if beside_clients { PAGE_DEPOSITS_BESIDE_CLIENTS } else { PAGE_DEPOSITS };
            let (found, others, next) = read(self.app, move |store| {
                let (mut targets, next) = read::due_targets(store, now, &from, page)?;
                let all = targets.len();
                targets.retain(|target| is_ours(slots, target));
                let others = all - targets.len();
                Ok((look_up(store, targets, &accounts, now)?, others, next))
            })
            .await?;
            position = next;
            round.others += others;
            let mut units = VecDeque::with_capacity(found.len());
            for (target, found) in found {
                match found {
                    Found::Payable { account, method, payee, transient, left } => units.push_back(Unit {
                        target,
                        account,
                        method,
                        wtid: wtid_of(self.app, transient.as_ref()),
                        payee: Some(payee),
                        trigger: Trigger::Due,
                        taken: 0,
                        left,
                    }),
                    Found::Aside(reason) => self.set_aside(target, &reason),
                }
            }
            self.work(units, &mut round).await?;
        }
        if self.is_to_resume() {
            self.resume(&mut round).await?;
        }
        round.progress.set_aside = self.aside.end_round();
        self.app.metrics.workers.targets_set_aside.set(round.progress.set_aside);
        Ok(round)
    }

    fn set_aside(&mut self, target: DepositTarget, reason: &ItemError) {
        if self.aside.insert(target) {
            let DepositTarget { h_payto, merchant_pub } = target;
            tracing::error!(%h_payto, %merchant_pub, %reason, "deposits cannot be paid, set aside");
        }
    }

    /// Returns whether to search again for interrupted units: when the worker has gained slots of others,
    /// which may have been killed. The search reads all transient aggregates.
    fn is_to_resume(&mut self) -> bool {
        let pause = if self.mode == Mode::UntilIdle { Duration::ZERO } else { RESUME_PAUSE };
        self.resumed.is_none_or(|resumed| self.app.timers.now() - resumed >= pause) && self.share.has_gained()
    }

    /// Pays interrupted units.
    async fn resume(&mut self, round: &mut Round) -> Result<(), WorkerError> {
        self.resumed = Some(self.app.timers.now());
        let units = self.interrupted_units().await?;
        // The search covers all slots that the worker holds now.
        self.share.has_gained();
        self.work(units, round).await
    }

    /// Pays what was held for customers who have been identified since. The alerts are shared by all workers: one
    /// that is handled twice has no further effect.
    async fn release(&mut self, round: &mut Round) -> Result<(), WorkerError> {
        loop {
            let alerts = read(self.app, |store| kyc::alerts(store, ALERTS_MAX)).await?;
            let is_last = alerts.len() < ALERTS_MAX;
            let payable = alerts.iter().flat_map(|alert| &alert.aggregates);
            let units = payable.filter_map(|(key, row)| self.continued(key, row)).collect();
            self.work(units, round).await?;
            for alert in &alerts {
                let command = ClearKycAlert { h_payto: alert.h_payto, time: alert.time };
                decide(self.app, self.mode, command).await?.expect("an alert can always be removed");
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// The unit that continues a transient aggregate.
    fn continued(&self, key: &AggregateKey, row: &AggregateRow) -> Option<Unit> {
        let (account, method) = self.accounts.iter().find(|(id, _)| *id == key.account)?.clone();
        Some(Unit {
            target: DepositTarget { h_payto: key.h_payto, merchant_pub: key.merchant_pub },
            account,
            method,
            wtid: row.wtid,
            payee: None,
            trigger: Trigger::Continued,
            taken: 0,
            left: AGGREGATE_DEPOSITS_MAX,
        })
    }

    /// Transient aggregates that may be payable: interrupted units, sums that a lower wire fee has made large
    /// enough, and sums that are held, in case the identification rules have changed.
    async fn interrupted_units(&mut self) -> Result<VecDeque<Unit>, WorkerError> {
        let now = self.app.now();
        let round_unit = self.app.config.currency_round_unit;
        let accounts = Arc::clone(&self.accounts);
        let found: Vec<(AggregateKey, AggregateRow)> = read(self.app, move |store| {
            // The smallest sum that an account can pay now.
            let mut fees: HashMap<AccountId, _> = HashMap::new();
            for (id, method) in accounts.iter() {
                let periods = store.lookup::<WireFees>(WireFees::BY_METHOD, method)?;
                let valid = periods.iter().find(|found| found.key.start <= now && now < found.row.end);
                fees.extend(valid.map(|found| (*id, found.row.wire_fee)));
            }
            let mut found = Vec::new();
            store.scan::<Aggregates>(|aggregate| {
                let fee = fees.get(&aggregate.key.account);
                let left = fee.and_then(|fee| aggregate.row.total.checked_sub(*fee).ok());
                if left.is_some_and(|left| !round_down(left, round_unit).is_zero()) {
                    found.push((aggregate.key, aggregate.row));
                }
                ControlFlow::Continue(())
            })?;
            Ok(found)
        })
        .await?;
        let slots = if found.is_empty() { Slots::default() } else { self.share.slots().await? };
        let unit = |(key, row): (AggregateKey, AggregateRow)| {
            self.continued(&key, &row).filter(|unit| is_ours(slots, &unit.target))
        };
        Ok(found.into_iter().filter_map(unit).collect())
    }

    /// Processes units, several at a time.
    async fn work(&mut self, mut units: VecDeque<Unit>, round: &mut Round) -> Result<(), WorkerError> {
        let before = round.progress.done;
        let mut in_flight = FuturesUnordered::new();
        let mut weight = 0;
        loop {
            while weight < IN_FLIGHT_DEPOSITS
                && let Some(unit) = units.pop_front()
            {
                check_drain(self.app)?;
                let unit_weight = unit.weight();
                weight += unit_weight;
                let (app, mode) = (self.app, self.mode);
                in_flight.push(async move { (unit_weight, part(app, mode, unit).await) });
            }
            let Some((unit_weight, ended)) = in_flight.next().await else {
                if round.progress.done > before {
                    self.app.notices.transfers.announce(&[]);
                }
                return Ok(());
            };
            weight -= unit_weight;
            let (unit, fate) = ended?;
            match fate {
                // Continue this unit first, so that it is not incomplete for longer than necessary.
                Fate::More => units.push_front(unit),
                Fate::Done => {
                    round.progress.done += 1;
                    // One notice for many transfers.
                    self.app.notices.transfers.announce_here(&[]);
                }
                // Another worker was faster. The next round pays the rest.
                Fate::Nothing => {}
                Fate::Aside(reason) => self.set_aside(unit.target, &reason),
            }
        }
    }
}

/// The identifier of the transfer that a transient aggregate belongs to, or a new one.
fn wtid_of(app: &Core, transient: Option<&AggregateRow>) -> Wtid {
    transient.map_or_else(|| Wtid::from_bytes(app.random()), |row| row.wtid)
}

fn is_ours(slots: Slots, target: &DepositTarget) -> bool {
    slots.has(target.h_payto.as_bytes()[0], target.merchant_pub.as_bytes()[0])
}

fn truncate_chars(text: &str, chars_max: usize) -> String {
    text.chars().take(chars_max).collect()
}

/// Reads what is needed to pay targets.
fn look_up(
    store: &Store,
    targets: Vec<DepositTarget>,
    accounts: &[(AccountId, String)],
    now: Timestamp,
) -> Result<Vec<(DepositTarget, Found)>, StoreError> {
    // Keep little of the URIs: those that earlier builds accepted may have megabytes.
    let mut methods = Vec::with_capacity(targets.len());
    for targets in targets.chunks(ACCOUNTS_AT_ONCE) {
        let keys: Vec<_> = targets.iter().map(|target| WireTargetKey { h_payto: target.h_payto }).collect();
        let paytos = store.get_many::<WireTargets>(&keys)?;
        methods.extend(paytos.iter().map(|payto| {
            let payto = payto.as_ref()?;
            let payto_uri = &payto.row.payto_uri;
            let method = payto_method(payto_uri).map(|method| truncate_chars(method, METHOD_CHARS_MAX));
            Some((method, LimitedAccount::of(payto_uri)))
        }));
    }
    let mut found = Vec::with_capacity(targets.len());
    for (target, method) in targets.into_iter().zip(methods) {
        let account = match &method {
            None => Err(ItemError::UnknownAccount),
            Some((None, _)) => Err(ItemError::NoWireMethod(target.h_payto.to_string())),
            Some((Some(method), payee)) => accounts
                .iter()
                .find(|(_, own)| own.eq_ignore_ascii_case(method))
                .map(|account| (account.clone(), *payee))
                .ok_or_else(|| ItemError::NoDebitAccount(method.clone())),
        };
        let ((account, method), payee) = match account {
            Ok(found) => found,
            Err(reason) => {
                found.push((target, Found::Aside(reason)));
                continue;
            }
        };
        let key = AggregateKey { h_payto: target.h_payto, merchant_pub: target.merchant_pub, account };
        let row = store.get::<Aggregates>(&key)?;
        let transient = row.map(|found| found.row);
        let left = read::open_deposits(store, &target, now, AGGREGATE_DEPOSITS_MAX + 1)?;
        // Due, but a refund is still possible.
        if left > 0 {
            found.push((target, Found::Payable { account, method, payee, transient, left }));
        }
    }
    Ok(found)
}

/// Submits the next part of a unit.
async fn part(app: &Core, mode: Mode, mut unit: Unit) -> Result<(Unit, Fate), WorkerError> {
    let metrics = &app.metrics.workers;
    let DepositTarget { h_payto, merchant_pub } = unit.target;
    let payee = match unit.payee {
        Some(payee) => payee,
        None => match read(app, move |store| read::payto(store, h_payto)).await? {
            Some(payto_uri) => LimitedAccount::of(&payto_uri),
            None => return Ok((unit, Fate::Aside(ItemError::UnknownAccount))),
        },
    };
    unit.payee = Some(payee);
    let mut races = 0;
    loop {
        let command = Aggregate {
            target: unit.target,
            method: unit.method.clone(),
            account: unit.account,
            until: app.rules.aggregation_time(app.now()),
            deposits_max: AGGREGATE_DEPOSITS_MAX,
            trigger: unit.trigger,
            complete: unit.taken + AGGREGATE_DEPOSITS_MAX >= UNIT_DEPOSITS_MAX,
            wtid: unit.wtid,
            request_uid: HashCode::from_bytes(app.random()),
            payee: Some(payee),
        };
        let fate = match decide(app, mode, command).await? {
            Ok(Aggregated::Nothing) => Fate::Nothing,
            Ok(Aggregated::Transient { taken, total, more }) => {
                metrics.deposits.add(taken as u64);
                unit.taken += taken;
                unit.trigger = Trigger::Continued;
                unit.left = AGGREGATE_DEPOSITS_MAX;
                if more {
                    Fate::More
                } else {
                    tracing::debug!(%h_payto, %merchant_pub, taken, %total, "too little to be paid");
                    metrics.transients.inc();
                    Fate::Done
                }
            }
            Ok(Aggregated::Prepared { taken, amount }) => {
                tracing::debug!(%h_payto, %merchant_pub, taken, %amount, "transfer prepared");
                metrics.deposits.add(taken as u64);
                metrics.aggregates.inc();
                Fate::Done
            }
            Err(Refusal::KycRequired { h_payto, checks }) if races < RACES_MAX => {
                races += 1;
                tracing::info!(%h_payto, checks, "payout held until its receiver is identified");
                let row = requirement_number(app.random());
                let stored = decide(app, mode, RequireKyc { h_payto, checks, row }).await?;
                stored.expect("a requirement can always be stored");
                continue;
            }
            Err(Refusal::TransientOther | Refusal::WtidTaken) if races < RACES_MAX => {
                races += 1;
                let (target, account) = (unit.target, unit.account);
                let row = read(app, move |store| read::transient(store, target, account)).await?;
                unit.wtid = wtid_of(app, row.as_ref());
                continue;
            }
            Err(refusal) => Fate::Aside(refusal.into()),
        };
        return Ok((unit, fate));
    }
}
