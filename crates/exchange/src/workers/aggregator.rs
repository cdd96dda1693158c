//! aggregator: turns due deposits into prepared transfers to merchants.
//!
//! The unit of work is a merchant's account: once one of its deposits is due, all whose refund period is over are paid with
//! it. Parts of at most [`AGGREGATE_DEPOSITS_MAX`] deposits are taken in a commit each, by way of the transient aggregate, so
//! that payments behind them in the lane do not wait long; only the last part pays, under the identifier that the first one
//! got. A unit that was left half-way is found again by its transient aggregate.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::time::Duration;

use batzen_crypto::{HashCode, Wtid};
use batzen_protocol::Timestamp;
use batzen_tables::exchange::{AggregateKey, Aggregates, MerchantPub, PaytoHash};

use super::{
    Account, Aside, Bells, Mode, Progress, WorkerError, check_drain, debit_account, debit_accounts, decide,
    idle_interval, pause, queues, read,
};
use crate::rules::transfers::{AGGREGATE_DEPOSITS_MAX, payto_method, round_down};
use crate::rules::{self, Aggregate, Aggregated, Command, Outcome, Refusal, Trigger};
use crate::service::Exchange;

/// Deposits paid by one transfer at most, so that its list stays readable for the merchant; more are paid by the next.
const UNIT_DEPOSITS_MAX: usize = 10_000;
/// Targets looked up at once.
const TARGETS: usize = 64;
/// How often a part is tried again because somebody else was faster.
const RACES_MAX: u32 = 8;
/// The shortest pause between two rounds.
const PAUSE_MIN: Duration = Duration::from_millis(20);

/// Who is paid, and where.
type Target = (PaytoHash, MerchantPub);

/// Aggregates everything that is due.
///
/// # Errors
/// When the store fails again and again; what was prepared before stays.
pub async fn run_until_idle(app: &Exchange) -> Result<Progress, WorkerError> {
    Aggregator::new(app, Mode::UntilIdle, &Bells::default()).round().await
}

/// Aggregates until the service ends.
pub(super) async fn run(app: &Exchange, bells: &Bells) -> Result<(), WorkerError> {
    let mut aggregator = Aggregator::new(app, Mode::Service, bells);
    let shift = app.config.workers.aggregator_shift;
    loop {
        aggregator.round().await?;
        let now = app.rules.aggregation_time(app.now());
        let next = read(app, move |store| queues::next_ready(store, now)).await?;
        // It counts as due from the next tick of the aggregator's coarse clock on.
        let due = next.map(|next| app.rules.aggregation_time(next.saturating_add(shift)));
        let until = due.and_then(|due| due.saturating_since(app.now()).to_std());
        let idle = idle_interval(app.config.workers.aggregator_idle_sleep);
        pause(app, until.map_or(idle, |until| until.clamp(PAUSE_MIN, idle.max(PAUSE_MIN)))).await?;
    }
}

struct Aggregator<'a> {
    app: &'a Exchange,
    mode: Mode,
    bells: &'a Bells,
    aside: Aside<Target>,
    /// Whether units left half-way were looked for.
    resumed: bool,
}

/// What became of a target.
enum Fate {
    /// All of it is aggregated.
    Done,
    /// Nothing was due any more.
    Nothing,
    /// It cannot be paid at present.
    Aside(String),
}

impl<'a> Aggregator<'a> {
    fn new(app: &'a Exchange, mode: Mode, bells: &'a Bells) -> Self {
        Self { app, mode, bells, aside: Aside::new(), resumed: false }
    }

    /// Until nothing is due.
    async fn round(&mut self) -> Result<Progress, WorkerError> {
        let mut progress = Progress::default();
        self.measure().await?;
        if !self.resumed {
            progress.done += self.resume().await?;
            self.resumed = true;
        }
        // Targets that this round does not look at again.
        let mut skip = HashSet::new();
        loop {
            let now = self.app.rules.aggregation_time(self.app.now());
            let (targets, given_back) = read(self.app, move |store| {
                Ok((rules::read::due_targets(store, now, TARGETS, &skip)?, skip))
            })
            .await?;
            skip = given_back;
            if targets.is_empty() {
                break;
            }
            for target in targets {
                check_drain(self.app)?;
                match self.unit(target, now).await? {
                    Fate::Done => progress.done += 1,
                    // Somebody else was faster; what is left of it comes with the next round.
                    Fate::Nothing => {
                        skip.insert(target);
                    }
                    Fate::Aside(reason) => {
                        if self.aside.put(target) {
                            let (h_payto, merchant_pub) = target;
                            tracing::error!(%h_payto, %merchant_pub, reason, "deposits cannot be paid, set aside");
                        }
                        skip.insert(target);
                    }
                }
            }
        }
        progress.set_aside = self.aside.end_round();
        self.app.metrics.workers.targets_set_aside.set(progress.set_aside);
        Ok(progress)
    }

    async fn measure(&self) -> Result<(), WorkerError> {
        let now = self.app.now();
        let first = read(self.app, queues::first_ready).await?;
        let lag = first.map_or(0, |ready| now.saturating_since(ready).as_micros() / 1_000_000);
        self.app.metrics.workers.aggregation_lag_s.set(lag);
        Ok(())
    }

    /// Pays transient aggregates that are large enough: those whose unit was left half-way, or that a lower wire fee has
    /// made payable.
    async fn resume(&mut self) -> Result<u64, WorkerError> {
        let keys = self.app.keys();
        let now = self.app.now();
        let round_unit = self.app.config.currency_round_unit;
        // The smallest sum that an account can pay now.
        let payable: Vec<_> = debit_accounts(self.app)
            .filter_map(|account| Some((account.id, keys.wire_fee(account.method, now)?.wire_fee)))
            .collect();
        let found: Vec<AggregateKey> = read(self.app, move |store| {
            let mut found = Vec::new();
            store.scan::<Aggregates>(|aggregate| {
                let fee = payable.iter().find(|(id, _)| *id == aggregate.key.account).map(|(_, fee)| *fee);
                let left = fee.and_then(|fee| aggregate.row.total.checked_sub(fee).ok());
                let is_payable = left.is_some_and(|left| !round_down(left, round_unit).is_zero());
                if is_payable && aggregate.row.kyc_row.is_none() {
                    found.push(aggregate.key);
                }
                ControlFlow::Continue(())
            })?;
            Ok(found)
        })
        .await?;
        let mut done = 0;
        for key in found {
            check_drain(self.app)?;
            let Some(account) = debit_accounts(self.app).find(|account| account.id == key.account) else {
                continue;
            };
            let now = self.app.rules.aggregation_time(self.app.now());
            match self.parts((key.h_payto, key.merchant_pub), &account, now, true).await? {
                Fate::Done => done += 1,
                Fate::Nothing => {}
                Fate::Aside(reason) => {
                    let AggregateKey { h_payto, merchant_pub, .. } = key;
                    tracing::error!(%h_payto, %merchant_pub, reason, "a transient aggregate cannot be paid");
                }
            }
        }
        Ok(done)
    }

    /// Aggregates a target's deposits.
    async fn unit(&mut self, target: Target, now: Timestamp) -> Result<Fate, WorkerError> {
        let (h_payto, _) = target;
        let Some(payto_uri) = read(self.app, move |store| rules::read::payto(store, h_payto)).await? else {
            return Ok(Fate::Aside("the account is unknown".to_owned()));
        };
        let Some(method) = payto_method(&payto_uri) else {
            return Ok(Fate::Aside(format!("{payto_uri:?} has no wire method")));
        };
        match debit_account(self.app, method) {
            Some(account) => self.parts(target, &account, now, false).await,
            None => Ok(Fate::Aside(format!("no account pays to {method} accounts"))),
        }
    }

    /// Part after part of a unit, the last of which pays.
    async fn parts(
        &mut self,
        target: Target,
        account: &Account<'_>,
        now: Timestamp,
        is_begun: bool,
    ) -> Result<Fate, WorkerError> {
        let (h_payto, merchant_pub) = target;
        let account_id = account.id;
        let (mut taken_in_all, mut races) = (0, 0);
        let mut is_begun = is_begun;
        loop {
            let (mut deposits, transient) = read(self.app, move |store| {
                let limit = AGGREGATE_DEPOSITS_MAX + 1;
                let deposits = rules::read::unit(store, h_payto, merchant_pub, now, limit)?;
                Ok((deposits, rules::read::transient(store, h_payto, merchant_pub, account_id)?))
            })
            .await?;
            if deposits.is_empty() && !is_begun {
                return Ok(Fate::Nothing);
            }
            let is_full = deposits.len() > AGGREGATE_DEPOSITS_MAX;
            deposits.truncate(AGGREGATE_DEPOSITS_MAX);
            let more = is_full && taken_in_all + deposits.len() < UNIT_DEPOSITS_MAX;
            // Which part of a large unit holds the deposit that is due does not matter: they all go.
            let trigger = if is_begun || is_full { Trigger::Continued } else { Trigger::Due };
            let command = Command::Aggregate(Aggregate {
                h_payto,
                method: account.method.to_owned(),
                merchant_pub,
                account: account_id,
                deposits,
                trigger,
                more,
                wtid: transient.map_or_else(Wtid::random, |row| row.wtid),
                request_uid: HashCode::random(),
                kyc_hold: None,
            });
            let metrics = &self.app.metrics.workers;
            match decide(self.app, self.mode, command).await? {
                Ok(Outcome::Aggregate(Aggregated::Nothing)) => return Ok(Fate::Nothing),
                Ok(Outcome::Aggregate(Aggregated::Transient { taken, total })) => {
                    metrics.deposits.add(taken as u64);
                    taken_in_all += taken;
                    is_begun = true;
                    if !more {
                        tracing::debug!(%h_payto, %merchant_pub, taken, %total, "too little to be paid");
                        metrics.transients.inc();
                        return Ok(Fate::Done);
                    }
                }
                Ok(Outcome::Aggregate(Aggregated::Prepared { taken, amount })) => {
                    tracing::debug!(%h_payto, %merchant_pub, taken, %amount, "transfer prepared");
                    metrics.deposits.add(taken as u64);
                    metrics.aggregates.inc();
                    self.bells.transfer.notify_one();
                    return Ok(Fate::Done);
                }
                Ok(other) => panic!("an aggregation was answered with {other:?}"),
                Err(Refusal::TransientOther | Refusal::WtidTaken) if races < RACES_MAX => races += 1,
                Err(refusal) => return Ok(Fate::Aside(refusal.to_string())),
            }
        }
    }
}
