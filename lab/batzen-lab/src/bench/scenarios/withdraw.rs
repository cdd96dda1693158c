//! `batzen-lab bench withdraw`: coins from funded reserves.

use std::collections::{BTreeMap, VecDeque};

use batzen_crypto::ExchangeWithdrawValues;
use batzen_protocol::api::exchange::{BlindSignature, BlindSignatures};
use clap::Args;
use serde_json::json;

use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::coins::{self, Planchet, Reserves};
use crate::bench::load::generator::{Kind, LoadOutcome, Outgoing};
use crate::bench::load::measure::{Description, Stage, Workload, measure, too_many};
use crate::bench::load::prepared::{Job, Prepared};
use crate::bench::load::progress::Progress;
use crate::bench::load::random::Seed;
use crate::bench::results::result::Run;
use crate::bench::results::words;
use crate::bench::scenarios::Context;
use crate::bench::scenarios::ceiling::{Cipher, CipherArgs, CoinOperation, Share};
use crate::bench::scenarios::options::{LoadOptions, RunOptions};
use crate::bench::scenarios::world::{CoinKind, World};

/// Value of a coin.
const VALUE: u64 = 1;
/// Kinds of requests.
const WITHDRAW: usize = 0;
const CSR: usize = 1;

/// Arguments of `batzen-lab bench withdraw`.
#[derive(Args, Clone, Debug)]
pub struct WithdrawArgs {
    #[command(flatten)]
    cipher: CipherArgs,
    /// Coins per request; more than one: batch-withdraw
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    batch: u32,
    /// Number of funded reserves to withdraw from
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    reserves: u32,
    #[command(flatten)]
    load: LoadOptions,
    /// Options of the measurement.
    #[command(flatten)]
    pub run: RunOptions,
}

/// Runs the scenario.
///
/// # Errors
/// As `measure`.
pub fn run(args: &WithdrawArgs, context: &Context) -> Result<Run> {
    let seed = args.load.target.seed(args.load.seed).part("withdraw");
    let mut workload = Withdraw { args: args.clone(), seed, reserves: None, prepared: 0 };
    measure(&mut workload, &args.load, &args.run, context)
}

struct Withdraw {
    args: WithdrawArgs,
    seed: Seed,
    reserves: Option<Reserves>,
    /// Coins prepared so far; no number is used twice.
    prepared: u32,
}

impl Withdraw {
    fn cipher(&self) -> Cipher {
        self.args.cipher.cipher()
    }

    /// R values of the coins, if the cipher has them. The exchange stores nothing about such a request, and
    /// gives the same answer again under load.
    fn values(
        &self,
        indices: Vec<u32>,
        progress: Progress,
        world: &World,
    ) -> Result<Vec<ExchangeWithdrawValues>> {
        if self.cipher() != Cipher::Cs {
            return Ok(vec![ExchangeWithdrawValues::Rsa; indices.len()]);
        }
        let bar = progress.bar("asking for R values", indices.len() as u64);
        coins::r_values(&self.seed, indices, world, &bar)
    }
}

impl Workload for Withdraw {
    type Script = Prepared;

    fn describe(&self) -> Description {
        let (cipher, batch) = (self.cipher(), self.args.batch);
        let coins = words::coins(batch.into());
        Description {
            scenario: "withdraw",
            title: format!("withdraw {cipher}, {coins} a request"),
            unit: "coins",
            kinds: vec![Kind::counted("withdraw"), Kind::uncounted("csr")],
            parameters: BTreeMap::from([
                ("batch".into(), json!(batch)),
                ("reserves".into(), json!(self.args.reserves)),
            ]),
            cipher,
            coins: vec![CoinKind { value: VALUE, cipher }],
            ops_per_job: f64::from(batch),
            remarks: Vec::new(),
        }
    }

    fn set_up(&mut self, stage: &mut Stage<'_>) -> Result<()> {
        self.reserves =
            Some(Reserves::open(self.args.reserves as usize, &self.seed, stage.world, stage.progress)?);
        Ok(())
    }

    fn prepare(&mut self, ops: u64, stage: &mut Stage<'_>) -> Result<Vec<Prepared>> {
        let batch = self.args.batch as usize;
        let jobs = usize::try_from(ops).unwrap_or(usize::MAX).div_ceil(batch);
        let first = self.prepared;
        let end = u32::try_from(jobs * batch).ok().and_then(|coins| first.checked_add(coins));
        self.prepared = end.ok_or_else(too_many)?;
        let values = self.values((first..).take(jobs * batch).collect(), stage.progress, stage.world)?;
        let reserves = self.reserves.as_ref().expect("the set-up has made them");
        let denom = &stage.world.denoms[0];
        let (seed, is_cs) = (&self.seed, self.cipher() == Cipher::Cs);
        let bar = stage.progress.bar("preparing coins", jobs as u64);
        let jobs = stage.prep_pool.make_shown(jobs, &bar, |job| {
            let numbers = (job * batch..).take(batch);
            let planchets = numbers
                .clone()
                .map(|number| Planchet::new(seed, first + number as u32, denom, &values[number]))
                .collect::<Result<Vec<_>, _>>()?;
            let coins: Vec<_> = planchets.iter().map(|planchet| (denom, planchet)).collect();
            let mut requests = VecDeque::new();
            if is_cs {
                requests.extend(numbers.map(|number| Outgoing {
                    bytes: coins::csr_request(seed, first + number as u32, denom),
                    kind: CSR,
                }));
            }
            requests.push_back(Outgoing { bytes: reserves.withdraw(job, &coins), kind: WITHDRAW });
            let number = (u64::from(first) / batch as u64) + job as u64;
            Ok(Job { number, ops: batch as u64, requests })
        })?;
        Ok(Prepared::share(jobs, stage.threads, stage.clients))
    }

    fn check(&mut self, scripts: Vec<Prepared>, stage: &mut Stage<'_>) -> Result<u64> {
        let (batch, denom) = (u64::from(self.args.batch), &stage.world.denoms[0]);
        let mut signed = Vec::new();
        for sample in scripts.into_iter().flat_map(|script| script.samples) {
            let signatures = match batch {
                1 => vec![coins::read::<BlindSignature>("withdraw", &sample.body)?],
                _ => coins::read::<BlindSignatures>("batch-withdraw", &sample.body)?.ev_sigs,
            };
            if signatures.len() as u64 != batch {
                return Err(BenchError::WrongAnswer(format!(
                    "{} signatures for {batch} coins",
                    signatures.len()
                )));
            }
            let first = u32::try_from(sample.number * batch).expect("it was prepared");
            signed.extend((first..).zip(signatures));
        }
        // In one go: asking for the values of one sample after another takes minutes.
        let indices = signed.iter().map(|(index, _)| *index).collect();
        let values = self.values(indices, Progress::new(false), stage.world)?;
        for ((index, signature), values) in signed.iter().zip(&values) {
            if !Planchet::new(&self.seed, *index, denom, values)?.accepts(denom, &signature.ev_sig) {
                return Err(BenchError::WrongAnswer(format!("the signature of coin {index} is wrong")));
            }
        }
        let checked = signed.len() as u64;
        Ok(checked)
    }

    fn shares(&self, _outcome: Option<&LoadOutcome>) -> Vec<Share> {
        vec![Share { operation: CoinOperation::Withdraw, times: 1.0 }]
    }
}
