//! `batzen-lab bench refresh`, `mixed` and `cycle`: wallets that go through several steps.
//!
//! * `refresh`: a coin of 8 is changed into fresh coins by melt and reveal.
//! * `mixed`: the published experiment of GNU Taler. A wallet withdraws (d + 1) · 10 in coins of 1, 4 and 8,
//!   then makes d payments of 10 and takes change; d is uniform in 1 to 20.
//! * `cycle`: a coin is withdrawn and deposited, one at a time, as in the benchmark of GNU Taler's exchange.

use std::collections::BTreeMap;
use std::sync::Arc;

use batzen_crypto::ExchangeWithdrawValues;
use clap::Args;
use serde_json::{Value, json};

use crate::bench::error::Result;
use crate::bench::load::change::Terms;
use crate::bench::load::coins::{self, Planchet, Reserves};
use crate::bench::load::generator::LoadOutcome;
use crate::bench::load::measure::{Description, Stage, WITHDRAWING, Workload, measure, too_many};
use crate::bench::load::payments::Payments;
use crate::bench::load::random::{Merchants, Numbers, Seed};
use crate::bench::results::result::Run;
use crate::bench::results::words;
use crate::bench::scenarios::Context;
use crate::bench::scenarios::ceiling::{Cipher, CipherArgs, CoinOperation, Share};
use crate::bench::scenarios::options::{LoadOptions, RunOptions};
use crate::bench::scenarios::session::{
    self, CoinState, DEPOSIT, MELT, REVEAL, Session, SessionPlan, Sessions, Step, WITHDRAW,
};
use crate::bench::scenarios::world::{self, CoinKind, Denom, World, send_all};

/// Values of the coins, largest first.
const VALUES: [u64; 3] = [8, 4, 1];
/// The amount of a payment in the mixed scenario.
const PAYMENT: u64 = 10;
/// The largest number of payments of one wallet.
const PAYMENTS_MAX: u64 = 20;
/// Number of reserves to withdraw from.
const RESERVES: usize = 256;

/// Arguments of `batzen-lab bench refresh`.
#[derive(Args, Clone, Debug)]
pub struct RefreshArgs {
    #[command(flatten)]
    cipher: CipherArgs,
    /// Number of fresh coins
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=8))]
    fresh: u64,
    #[command(flatten)]
    load: LoadOptions,
    /// Options of the measurement.
    #[command(flatten)]
    pub run: RunOptions,
}

/// Arguments of `batzen-lab bench mixed`.
#[derive(Args, Clone, Debug)]
pub struct MixedArgs {
    #[command(flatten)]
    cipher: CipherArgs,
    /// How payments choose among 1,000 merchants
    #[arg(long, value_enum, default_value_t = Merchants::Uniform)]
    merchants: Merchants,
    #[command(flatten)]
    load: LoadOptions,
    /// Options of the measurement.
    #[command(flatten)]
    pub run: RunOptions,
}

/// Arguments of `batzen-lab bench cycle`.
#[derive(Args, Clone, Debug)]
pub struct CycleArgs {
    #[command(flatten)]
    cipher: CipherArgs,
    /// Coins per request; more than one: batch-withdraw and batch-deposit
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    batch: u32,
    #[command(flatten)]
    load: LoadOptions,
    /// Options of the measurement.
    #[command(flatten)]
    pub run: RunOptions,
}

/// Runs `refresh`.
///
/// # Errors
/// As `measure`.
pub fn run_refresh(args: &RefreshArgs, context: &Context) -> Result<Run> {
    let fresh = usize::try_from(args.fresh).expect("a small number");
    let mut denoms = vec![0];
    denoms.resize(fresh + 1, 2);
    let session_plan =
        SessionPlan { denoms, steps: vec![Step::Change { old: 0, units: args.fresh, fresh: 1..fresh + 1 }] };
    let cipher = args.cipher.cipher();
    let coins = if fresh == 1 { "coin" } else { "coins" };
    let described = Described {
        scenario: "refresh",
        title: format!("refresh {cipher}, {fresh} fresh {coins}"),
        unit: "refreshes",
        counted: MELT,
        parameters: BTreeMap::from([("fresh".into(), json!(fresh))]),
        remark: "an operation is a melt with its reveal",
    };
    go(described, cipher, vec![session_plan], Merchants::Uniform, &args.load, &args.run, context)
}

/// Runs `mixed`.
///
/// # Errors
/// As `measure`.
pub fn run_mixed(args: &MixedArgs, context: &Context) -> Result<Run> {
    let cipher = args.cipher.cipher();
    let merchants = args.merchants.title();
    let described = Described {
        scenario: "mixed",
        title: format!("mixed {cipher}: withdraw, pay and take change{merchants}"),
        unit: "coins",
        counted: DEPOSIT,
        parameters: BTreeMap::from([("merchants".into(), json!(args.merchants.name()))]),
        remark: "an operation is a coin deposited, with its withdrawal or its part of a change before",
    };
    let session_plans = (1..=PAYMENTS_MAX).map(mixed_course).collect();
    go(described, cipher, session_plans, args.merchants, &args.load, &args.run, context)
}

/// Runs `cycle`.
///
/// # Errors
/// As `measure`.
pub fn run_cycle(args: &CycleArgs, context: &Context) -> Result<Run> {
    cycle(args.cipher.cipher(), args.batch as usize, &args.load, &args.run, context)
}

/// Withdraws and deposits, `batch` coins a request.
pub(super) fn cycle(
    cipher: Cipher,
    batch: usize,
    load: &LoadOptions,
    run: &RunOptions,
    context: &Context,
) -> Result<Run> {
    let session_plan = SessionPlan {
        denoms: vec![2; batch],
        steps: vec![Step::Withdraw(0..batch), Step::Pay((0..batch).map(|coin| (coin, 1)).collect())],
    };
    let coins = words::coins(batch as u64);
    let described = Described {
        scenario: "cycle",
        title: format!("cycle {cipher}: withdraw and deposit, {coins} a request"),
        unit: "coins",
        counted: DEPOSIT,
        parameters: BTreeMap::from([("batch".into(), json!(batch))]),
        remark: "an operation is a coin withdrawn and deposited",
    };
    go(described, cipher, vec![session_plan], Merchants::Uniform, load, run, context)
}

/// The plan of a wallet in the mixed scenario with `payments` payments. It pays with the largest coins that
/// fit, and pays the rest with the smallest larger coin, whose change it takes at once.
fn mixed_course(payments: u64) -> SessionPlan {
    let mut session_plan = SessionPlan { denoms: Vec::new(), steps: Vec::new() };
    let denoms = split((payments + 1) * PAYMENT);
    session_plan.steps.push(Step::Withdraw(0..denoms.len()));
    let mut purse: Vec<usize> = (0..denoms.len()).collect();
    session_plan.denoms = denoms;
    for _ in 0..payments {
        let (mut parts, mut left, mut change) = (Vec::new(), PAYMENT, None);
        while left > 0 {
            let value = |coin: &usize| VALUES[session_plan.denoms[*coin]];
            let fitting = purse.iter().enumerate().filter(|(_, coin)| value(coin) <= left);
            let larger = purse.iter().enumerate().filter(|(_, coin)| value(coin) > left);
            let chosen = fitting
                .max_by_key(|(_, coin)| value(coin))
                .or_else(|| larger.min_by_key(|(_, coin)| value(coin)))
                .map(|(place, _)| place)
                .expect("a wallet has ten more than it pays");
            let coin = purse.remove(chosen);
            let paid = value(&coin).min(left);
            if paid < value(&coin) {
                change = Some((coin, value(&coin) - paid));
            }
            parts.push((coin, paid));
            left -= paid;
        }
        session_plan.steps.push(Step::Pay(parts));
        if let Some((old, units)) = change {
            let first = session_plan.denoms.len();
            session_plan.denoms.extend(split(units));
            purse.extend(first..session_plan.denoms.len());
            session_plan.steps.push(Step::Change { old, units, fresh: first..session_plan.denoms.len() });
        }
    }
    session_plan
}

/// Denominations, largest first, that add up to this many units.
fn split(mut units: u64) -> Vec<usize> {
    let mut denoms = Vec::new();
    for (denom, value) in VALUES.iter().enumerate() {
        while units >= *value {
            denoms.push(denom);
            units -= value;
        }
    }
    denoms
}

struct Described {
    scenario: &'static str,
    title: String,
    unit: &'static str,
    counted: usize,
    parameters: BTreeMap<String, Value>,
    remark: &'static str,
}

fn go(
    described: Described,
    cipher: Cipher,
    session_plans: Vec<SessionPlan>,
    merchants: Merchants,
    load: &LoadOptions,
    run: &RunOptions,
    context: &Context,
) -> Result<Run> {
    let seed = load.target.seed(load.seed).part(described.scenario);
    let mut workload = Wallets {
        described,
        cipher,
        session_plans: session_plans.into_iter().map(Arc::new).collect(),
        choices: seed.numbers("courses"),
        payments: Payments::new(merchants, load.with_workers, load.target.bank_host(), &seed),
        seed,
        reserves: None,
        sessions: 0,
        coins: 0,
    };
    measure(&mut workload, load, run, context)
}

struct Wallets {
    described: Described,
    cipher: Cipher,
    /// The wallets' plans, all equally likely.
    session_plans: Vec<Arc<SessionPlan>>,
    choices: Numbers,
    seed: Seed,
    payments: Payments,
    reserves: Option<Reserves>,
    /// Sessions prepared so far.
    sessions: u64,
    /// Numbers of coins used so far.
    coins: u32,
}

/// A session before its costly parts are computed.
struct Draft {
    session: Session,
    /// Number of its first coin.
    first_coin: u32,
    /// R values of the coins that are withdrawn.
    values: Vec<ExchangeWithdrawValues>,
    terms: Vec<(Terms, Option<Vec<ExchangeWithdrawValues>>)>,
}

impl Wallets {
    /// The average number of operations in a session.
    fn ops_per_session(&self) -> f64 {
        let ops = |session_plan: &Arc<SessionPlan>| match self.described.counted {
            MELT => session_plan.changes().0,
            _ => session_plan.deposits(),
        };
        self.session_plans.iter().map(ops).sum::<usize>() as f64 / self.session_plans.len() as f64
    }

    /// A session whose choices are made.
    fn draft(&mut self, denoms: &[Denom]) -> Result<Draft> {
        let session_plan =
            Arc::clone(&self.session_plans[self.choices.below(self.session_plans.len() as u64) as usize]);
        let number = self.sessions;
        self.sessions += 1;
        let first_coin = self.coins;
        let coins = u32::try_from(session_plan.denoms.len()).ok();
        self.coins = coins.and_then(|coins| first_coin.checked_add(coins)).ok_or_else(too_many)?;
        let terms = session_plan
            .steps
            .iter()
            .filter_map(|step| match step {
                Step::Change { units, fresh, .. } => Some((*units, fresh.clone())),
                _ => None,
            })
            .zip(0_u64..)
            .map(|((units, fresh), index)| {
                let terms = Terms {
                    seed: self.seed.bytes("change", number * 64 + index),
                    amount: world::units(units),
                    fresh: session_plan.denoms[fresh].iter().map(|denom| denoms[*denom].clone()).collect(),
                };
                let values = (!terms.needs_values()).then(|| terms.no_values());
                (terms, values)
            })
            .collect();
        let payments = session_plan.steps.iter().filter(|step| matches!(step, Step::Pay(_))).count();
        let mut session = Session::new(
            number,
            Arc::clone(&session_plan),
            vec![CoinState::Unknown; session_plan.denoms.len()],
        );
        session.payments = (0..payments).map(|_| self.payments.next_payment()).collect();
        let values = vec![ExchangeWithdrawValues::Rsa; session_plan.withdrawals()];
        Ok(Draft { session, first_coin, values, terms })
    }

    /// Asks for all R values that can be requested in advance. The exchange stores nothing about such a
    /// request, and gives the same answer again under load.
    fn ask(
        &self,
        drafts: &mut [Draft],
        world: &World,
        stage_bar: &crate::bench::load::progress::Bar,
    ) -> Result<()> {
        if self.cipher != Cipher::Cs {
            return Ok(());
        }
        let plan = world.set_up_plan(world.exchange_address);
        let (mut requests, mut places) = (Vec::new(), Vec::new());
        for (number, draft) in drafts.iter_mut().enumerate() {
            let session_plan = Arc::clone(&draft.session.session_plan);
            for coin in 0..draft.values.len() {
                let denom = &world.denoms[session_plan.denoms[coin]];
                let request = coins::csr_request(&self.seed, draft.first_coin + coin as u32, denom);
                draft.session.questions.push_back(request.clone());
                requests.push(request);
                places.push((number, coin));
            }
        }
        let answers = send_all(&plan, requests, "ask for R values", stage_bar, world.interrupted())?;
        for ((number, coin), answer) in places.into_iter().zip(&answers) {
            drafts[number].values[coin] = coins::csr_answer(answer)?;
        }
        let (mut requests, mut places) = (Vec::new(), Vec::new());
        for (number, draft) in drafts.iter().enumerate() {
            for (index, (terms, _)) in draft.terms.iter().enumerate() {
                requests.push(terms.csr_request());
                places.push((number, index));
            }
        }
        let answers = send_all(&plan, requests, "ask for R values", stage_bar, world.interrupted())?;
        for ((number, index), answer) in places.into_iter().zip(&answers) {
            let (terms, values) = &mut drafts[number].terms[index];
            *values = Some(terms.csr_answer(answer)?);
        }
        Ok(())
    }

    /// The coins that sessions start with if they do not withdraw.
    fn initial_coins(&self, drafts: &mut [Draft], stage: &Stage<'_>) -> Result<()> {
        if drafts.iter().any(|draft| draft.session.session_plan.withdrawals() > 0) {
            return Ok(());
        }
        let reserves = self.reserves.as_ref().expect("the set-up has made them");
        let Some(first) = drafts.first().map(|draft| draft.session.number as u32) else { return Ok(()) };
        let coins = stage.coins(WITHDRAWING, reserves, &self.seed.part("initial"), first, drafts.len())?;
        for (draft, coin) in drafts.iter_mut().zip(coins) {
            draft.session.coins[0] = CoinState::Coin(coin);
        }
        Ok(())
    }

    /// Prepares everything of a session that does not depend on answers.
    fn complete(&self, draft: &Draft, denoms: &[Denom]) -> Result<Session> {
        let mut session = draft.session.clone();
        let session_plan = Arc::clone(&session.session_plan);
        let withdrawn = draft
            .values
            .iter()
            .enumerate()
            .map(|(coin, values)| {
                let denom = &denoms[session_plan.denoms[coin]];
                Planchet::new(&self.seed, draft.first_coin + coin as u32, denom, values)
            })
            .collect::<Result<Vec<_>, _>>()?;
        if !withdrawn.is_empty() {
            let reserves = self.reserves.as_ref().expect("the set-up has made them");
            let coins: Vec<_> = withdrawn
                .iter()
                .zip(&session_plan.denoms)
                .map(|(planchet, denom)| (&denoms[*denom], planchet))
                .collect();
            session.withdrawal = reserves.withdraw(session.number as usize, &coins);
        }
        for (coin, planchet) in withdrawn.into_iter().enumerate() {
            session.coins[coin] = CoinState::Planchet(planchet);
        }
        session.prepare(denoms, &self.payments, draft.terms.clone())?;
        Ok(session)
    }
}

impl Workload for Wallets {
    type Script = Sessions;

    fn describe(&self) -> Description {
        Description {
            scenario: self.described.scenario,
            title: self.described.title.clone(),
            unit: self.described.unit,
            kinds: session::kinds(self.described.counted),
            parameters: self.described.parameters.clone(),
            cipher: self.cipher,
            coins: VALUES.iter().map(|value| CoinKind { value: *value, cipher: self.cipher }).collect(),
            ops_per_job: self.ops_per_session(),
            remarks: vec![self.described.remark.to_owned()],
        }
    }

    fn set_up(&mut self, stage: &mut Stage<'_>) -> Result<()> {
        self.reserves = Some(Reserves::open(RESERVES, &self.seed, stage.world, stage.progress)?);
        Ok(())
    }

    fn prepare(&mut self, ops: u64, stage: &mut Stage<'_>) -> Result<Vec<Sessions>> {
        let count = (ops as f64 / self.ops_per_session()).ceil() as u64;
        // Every client needs one.
        let count = count.max((stage.threads * stage.clients) as u64);
        let denoms = stage.world.denoms.clone();
        let mut drafts = (0..count).map(|_| self.draft(&denoms)).collect::<Result<Vec<_>, _>>()?;
        let bar = stage.progress.bar("asking for R values", count);
        self.ask(&mut drafts, stage.world, &bar)?;
        drop(bar);
        self.initial_coins(&mut drafts, stage)?;
        let bar = stage.progress.bar("preparing wallets", count);
        let sessions =
            stage.prep_pool.make_shown(drafts.len(), &bar, |index| self.complete(&drafts[index], &denoms))?;
        Ok(Sessions::share(sessions, stage.threads, stage.clients, &denoms, &self.payments))
    }

    fn check(&mut self, scripts: Vec<Sessions>, stage: &mut Stage<'_>) -> Result<u64> {
        session::check(scripts, stage.world)
    }

    fn shares(&self, outcome: Option<&LoadOutcome>) -> Vec<Share> {
        let counts = match outcome {
            Some(outcome) => {
                let (melt, reveal) = (&outcome.kinds[MELT], &outcome.kinds[REVEAL]);
                [
                    outcome.kinds[WITHDRAW].ops,
                    outcome.kinds[DEPOSIT].ops,
                    melt.ops.min(reveal.requests),
                    reveal.ops,
                ]
                .map(|count| count as f64)
            }
            None => self.session_plans.iter().fold([0.0; 4], |sum, session_plan| {
                let (changes, fresh) = session_plan.changes();
                let session_plan = [session_plan.withdrawals(), session_plan.deposits(), changes, fresh];
                [0, 1, 2, 3].map(|index: usize| sum[index] + session_plan[index] as f64)
            }),
        };
        let [withdrawn, deposited, changes, fresh] = counts;
        let ops = if self.described.counted == MELT { changes } else { deposited };
        let mut shares = Vec::new();
        let mut add = |operation, count: f64| {
            if count > 0.0 && ops > 0.0 {
                shares.push(Share { operation, times: count / ops });
            }
        };
        add(CoinOperation::Withdraw, withdrawn);
        add(CoinOperation::Deposit, deposited);
        add(CoinOperation::Refresh(fresh / changes.max(1.0)), changes);
        if shares.is_empty() {
            // No operations were done, so the planned shares serve as well.
            return self.shares(None);
        }
        shares
    }

    fn extra(&self, outcome: &LoadOutcome) -> BTreeMap<String, f64> {
        let seconds = outcome.measured.as_secs_f64().max(1e-9);
        let rate = |kind: usize| outcome.kinds[kind].ops as f64 / seconds;
        BTreeMap::from([
            ("coins_withdrawn_per_s".into(), rate(WITHDRAW)),
            ("coins_deposited_per_s".into(), rate(DEPOSIT)),
            ("coins_changed_per_s".into(), rate(MELT)),
            ("fresh_coins_per_s".into(), rate(REVEAL)),
            ("payments_per_s".into(), outcome.kinds[DEPOSIT].requests as f64 / seconds),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a plan: no coin gives more than its value, and none is used before it exists. Returns what
    /// is left.
    fn play(session_plan: &SessionPlan) -> u64 {
        let mut left = vec![0; session_plan.denoms.len()];
        let mut paid = Vec::new();
        for step in &session_plan.steps {
            match step {
                Step::Withdraw(coins) => {
                    for coin in coins.clone() {
                        left[coin] = VALUES[session_plan.denoms[coin]];
                    }
                }
                Step::Pay(parts) => {
                    for (coin, units) in parts {
                        left[*coin] = u64::checked_sub(left[*coin], *units).unwrap();
                    }
                    paid.push(parts.iter().map(|(_, units)| units).sum::<u64>());
                }
                Step::Change { old, units, fresh } => {
                    assert_eq!(left[*old], *units);
                    left[*old] = 0;
                    for coin in fresh.clone() {
                        left[coin] = VALUES[session_plan.denoms[coin]];
                    }
                    let value: u64 = fresh.clone().map(|coin| left[coin]).sum();
                    assert_eq!(value, *units);
                }
            }
        }
        assert!(paid.iter().all(|units| *units == PAYMENT));
        left.iter().sum()
    }

    #[test]
    fn wallets_pay_what_they_have() {
        for payments in 1..=PAYMENTS_MAX {
            let session_plan = mixed_course(payments);
            assert_eq!(play(&session_plan), PAYMENT, "{payments}: {session_plan:?}");
            assert_eq!(
                session_plan.steps.iter().filter(|step| matches!(step, Step::Pay(_))).count() as u64,
                payments
            );
        }
        let session_plan = mixed_course(1);
        assert_eq!(session_plan.denoms, [0, 0, 1, 2, 2]);
        assert_eq!(session_plan.steps[1], Step::Pay(vec![(1, 8), (2, 2)]));
        assert_eq!(session_plan.steps[2], Step::Change { old: 2, units: 2, fresh: 3..5 });
        assert_eq!(
            (session_plan.withdrawals(), session_plan.deposits(), session_plan.changes()),
            (3, 2, (1, 2))
        );
    }
}
