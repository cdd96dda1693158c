//! `batzen-lab bench deposit` and `batch-deposit`: coins pay merchants.

use std::collections::BTreeMap;

use batzen_crypto::EddsaPublicKey;
use batzen_protocol::api::exchange::{BatchDepositConfirmation, DepositConfirmation};
use batzen_protocol::signatures::SignedMessage;
use clap::Args;
use serde_json::json;

use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::coins::{self, Reserves};
use crate::bench::load::generator::{Kind, LoadOutcome};
use crate::bench::load::measure::{Description, Stage, WITHDRAWING, Workload, measure, too_many};
use crate::bench::load::payments::{Payment, Payments};
use crate::bench::load::prepared::{Job, Prepared, Sampling};
use crate::bench::load::random::{Merchants, Seed};
use crate::bench::results::result::Run;
use crate::bench::scenarios::Context;
use crate::bench::scenarios::ceiling::{CipherArgs, CoinOperation, Share};
use crate::bench::scenarios::options::{LoadOptions, RunOptions};
use crate::bench::scenarios::world::CoinKind;

/// Value of a coin.
const VALUE: u64 = 1;
/// Reserves of the set-up.
const RESERVES: usize = 64;

/// Arguments of `batzen-lab bench deposit`.
#[derive(Args, Clone, Debug)]
pub struct DepositArgs {
    #[command(flatten)]
    pub(super) cipher: CipherArgs,
    /// How payments choose among 1,000 merchants
    #[arg(long, value_enum, default_value_t = Merchants::Uniform)]
    merchants: Merchants,
    /// The load.
    #[command(flatten)]
    pub(crate) load: LoadOptions,
    /// Options of the measurement.
    #[command(flatten)]
    pub run: RunOptions,
}

/// Arguments of `batzen-lab bench batch-deposit`.
#[derive(Args, Clone, Debug)]
pub struct BatchDepositArgs {
    /// Coins per request
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) batch: u32,
    /// The options that both commands share.
    #[command(flatten)]
    pub deposit: DepositArgs,
}

/// Runs `deposit`: one coin a request.
///
/// # Errors
/// As `measure`.
pub fn run(args: &DepositArgs, context: &Context) -> Result<Run> {
    go(args, None, context)
}

/// Runs `batch-deposit`.
///
/// # Errors
/// As `measure`.
pub fn run_batch(args: &BatchDepositArgs, context: &Context) -> Result<Run> {
    go(&args.deposit, Some(args.batch as usize), context)
}

fn go(args: &DepositArgs, batch: Option<usize>, context: &Context) -> Result<Run> {
    measure(&mut DepositLoad::new(args, batch), &args.load, &args.run, context)
}

/// The load of payments and the coins for them.
pub(super) struct DepositLoad {
    args: DepositArgs,
    /// Coins per batch; `None`: single deposits.
    batch: Option<usize>,
    seed: Seed,
    payments: Payments,
    reserves: Option<Reserves>,
    /// Jobs prepared so far.
    prepared: u32,
    /// The data for checking the answers that are kept, by job number.
    kept: BTreeMap<u64, (Payment, Vec<EddsaPublicKey>)>,
}

impl DepositLoad {
    fn new(args: &DepositArgs, batch: Option<usize>) -> Self {
        let seed = args.load.target.seed(args.load.seed).part("deposit");
        Self {
            payments: Payments::new(
                args.merchants,
                args.load.with_workers,
                args.load.target.bank_host(),
                &seed,
            ),
            args: args.clone(),
            batch,
            seed,
            reserves: None,
            prepared: 0,
            kept: BTreeMap::new(),
        }
    }

    /// One coin a request.
    pub(super) fn single(args: &DepositArgs) -> Self {
        Self::new(args, None)
    }
}

impl Workload for DepositLoad {
    type Script = Prepared;

    fn describe(&self) -> Description {
        let cipher = self.args.cipher.cipher();
        let (scenario, coins) = match self.batch {
            None => ("deposit", "one coin".to_owned()),
            Some(batch) => ("batch-deposit", format!("{batch} coins")),
        };
        let merchants = self.args.merchants.title();
        let mut parameters = BTreeMap::from([("merchants".into(), json!(self.args.merchants.name()))]);
        if let Some(batch) = self.batch {
            parameters.insert("batch".into(), json!(batch));
        }
        Description {
            scenario,
            title: format!("{scenario} {cipher}, {coins} a request{merchants}"),
            unit: "coins",
            kinds: vec![Kind::counted(scenario)],
            parameters,
            cipher,
            coins: vec![CoinKind { value: VALUE, cipher }],
            ops_per_job: self.batch.unwrap_or(1) as f64,
            remarks: Vec::new(),
        }
    }

    fn set_up(&mut self, stage: &mut Stage<'_>) -> Result<()> {
        self.reserves = Some(Reserves::open(RESERVES, &self.seed, stage.world, stage.progress)?);
        Ok(())
    }

    fn prepare(&mut self, ops: u64, stage: &mut Stage<'_>) -> Result<Vec<Prepared>> {
        let batch = self.batch.unwrap_or(1);
        let jobs = usize::try_from(ops).unwrap_or(usize::MAX).div_ceil(batch);
        let first = self.prepared;
        self.prepared = u32::try_from(jobs)
            .ok()
            .and_then(|jobs| first.checked_add(jobs))
            .filter(|jobs| jobs.checked_mul(batch as u32).is_some())
            .ok_or_else(too_many)?;
        let reserves = self.reserves.as_ref().expect("the set-up has made them");
        let coins = stage.coins(WITHDRAWING, reserves, &self.seed, first * batch as u32, jobs * batch)?;
        let payments: Vec<Payment> = (0..jobs).map(|_| self.payments.next_payment()).collect();
        let denom = &stage.world.denoms[0];
        let bar = stage.progress.bar("preparing payments", jobs as u64);
        let made = stage.prep_pool.make_shown(jobs, &bar, |job| {
            let (payment, coins) = (&payments[job], &coins[job * batch..(job + 1) * batch]);
            let parts = coins
                .iter()
                .map(|coin| {
                    let signature = self.payments.sign(payment, &coin.coin_priv, denom, denom.amount);
                    self.payments.part(coin, denom, denom.amount, signature)
                })
                .collect();
            let bytes = match self.batch {
                None => self.payments.request(payment, parts),
                Some(_) => self.payments.batch_request(payment, parts),
            };
            Ok(Job::single(u64::from(first) + job as u64, batch as u64, bytes))
        })?;
        let sampling = Sampling::of_prepared(first.into());
        for (number, (payment, coins)) in
            (u64::from(first)..).zip(payments.into_iter().zip(coins.chunks(batch)))
        {
            if sampling.includes(number) {
                self.kept.insert(number, (payment, coins.iter().map(|coin| coin.coin_pub).collect()));
            }
        }
        Ok(Prepared::share(made, stage.threads, stage.clients))
    }

    fn check(&mut self, scripts: Vec<Prepared>, stage: &mut Stage<'_>) -> Result<u64> {
        let amount = stage.world.denoms[0].amount;
        let mut checked = 0;
        for sample in scripts.into_iter().flat_map(|script| script.samples) {
            let Some((payment, coin_pubs)) = self.kept.get(&sample.number) else { continue };
            let (time, key, signatures) = match self.batch {
                None => {
                    let answer: DepositConfirmation = coins::read("deposit", &sample.body)?;
                    (answer.exchange_timestamp, answer.exchange_pub, vec![answer.exchange_sig])
                }
                Some(_) => {
                    let answer: BatchDepositConfirmation = coins::read("batch-deposit", &sample.body)?;
                    let signatures =
                        answer.exchange_sigs.iter().map(|signature| signature.exchange_sig).collect();
                    (answer.exchange_timestamp, answer.exchange_pub, signatures)
                }
            };
            if !stage.world.signing_keys.contains(&key) || signatures.len() != coin_pubs.len() {
                return Err(BenchError::WrongAnswer("a confirmation by an unknown key, or too short".into()));
            }
            for (coin_pub, signature) in coin_pubs.iter().zip(&signatures) {
                if !self.payments.confirmation(payment, *coin_pub, amount, time).verify(&key, signature) {
                    return Err(BenchError::WrongAnswer(format!(
                        "the confirmation for coin {coin_pub} is wrong"
                    )));
                }
                checked += 1;
            }
        }
        Ok(checked)
    }

    fn shares(&self, _outcome: Option<&LoadOutcome>) -> Vec<Share> {
        vec![Share { operation: CoinOperation::Deposit, times: 1.0 }]
    }
}
