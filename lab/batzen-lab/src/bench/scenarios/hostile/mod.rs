//! `batzen-lab bench hostile`: attacks beside an honest load.
//!
//! An exchange serves payments at a steady rate, first alone, then beside one attack after another. The
//! result shows what the honest client gets, and how much memory the exchange needs. Attacks come from
//! separate addresses on this machine, target only this machine, and are bounded in number and time.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use batzen_crypto::denom::ExchangeWithdrawValues;
use batzen_crypto::{DenomKey, EddsaSignature};
use batzen_protocol::api::exchange::{ManagementKeysRequest, SignKeySignature};
use clap::Args;
use serde_json::json;

use super::Context;
use super::deposit::{DepositArgs, DepositLoad};
use super::workers::{RunDirectory, Shape, blank};
use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::affinity;
use crate::bench::load::coins::{self, Mint, Planchet, PrepPool, Reserves};
use crate::bench::load::generator::{self, Kind, Observer, Plan, Schedule, Watch};
use crate::bench::load::measure::{Stage, Workload};
use crate::bench::load::payments::Payments;
use crate::bench::load::procfs::resident_bytes;
use crate::bench::load::progress::Progress;
use crate::bench::load::random::{Merchants, Seed};
use crate::bench::load::wire;
use crate::bench::results::result::{KindResult, Latency, LimitedBy, Load, Run};
use crate::bench::scenarios::options::{self, Rate};
use crate::bench::scenarios::world::{World, WorldPlan};

mod attacks;

use attacks::{ATTACKS, Attack, BODY_BYTES, Stretched, Target};

/// Payments per second by default.
const RATE: f64 = 200.0;
/// Connections of the honest client by default.
const CLIENTS: u32 = 32;
/// Withdrawals that give a reserve its long history; they leave it empty.
const HISTORY: u32 = 6_000;
/// Copies of one valid signature in a request about keys: some 15 MB.
const COPIES: usize = 60_000;
/// The share of its rate that the honest client should keep during an attack.
const SHARE_GOAL: f64 = 0.8;
/// The memory that the exchange may use during an attack, in bytes.
const MEMORY_GOAL: u64 = 1 << 30;

/// Arguments of `batzen-lab bench hostile`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Attacks:
  slow-uploads       large bodies that start fast and then drip, one byte per second
  slow-headers       requests whose headers drip in
  long-polls         polls for a reserve that is never funded
  unread-histories   32 requests at a time for a long history, with no answer read
  unread-keys        500 requests at a time for /keys, with no answer read
  refused-histories  withdrawals from an empty reserve whose long history proves each refusal
  large-bodies       bodies of 15 MB
  large-accounts     unsigned deposits to payto URIs of 15 MB, each one different
  copied-signatures  60,000 copies of one valid signature of the master key
  junk-connections   connections that do not speak HTTP, one after another

Goals during each attack: the honest client keeps 0.8 of its rate, and the exchange uses at most 1 GiB.")]
pub struct HostileArgs {
    /// Make only this attack (may be repeated)
    #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(ATTACKS))]
    pub(crate) attack: Vec<String>,
    /// Number of attacking addresses, from 127.0.0.2 on
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=200))]
    pub(crate) addresses: u8,
    /// Number of attacking connections
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) connections: u32,
    /// The program whose exchange is attacked [default: this one]
    #[arg(long, value_name = "FILE")]
    pub(crate) program: Option<PathBuf>,
    /// The honest load.
    #[command(flatten)]
    pub deposit: DepositArgs,
}

/// Watches the memory of the exchange.
struct Memory {
    pid: u32,
    peak_bytes: u64,
}

impl Observer for Memory {
    fn ticks(&mut self, _: &Watch) {
        self.peak_bytes = self.peak_bytes.max(resident_bytes(self.pid));
    }
}

/// Runs the honest load alone, and then beside each attack.
///
/// # Errors
/// When it cannot produce a result. Payments that fail during an attack are part of the result.
pub fn run(args: &HostileArgs, context: &Context) -> Result<Run> {
    let options = &args.deposit.load;
    options.store.check()?;
    let rate = match options.rate {
        None => RATE,
        Some(Rate::PerSecond(rate)) => rate,
        Some(Rate::OfPeak(_)) => {
            return Err(BenchError::Usage("--rate is a number of payments per second here".into()));
        }
    };
    let mut workload = DepositLoad::single(&args.deposit);
    let described = workload.describe();
    options::check_cipher(described.cipher)?;
    let run_dir = RunDirectory::new("hostile", &args.deposit.run)?;
    let progress = Progress::new(context.shows_progress);
    let prep_pool = PrepPool::new(&run_dir.placement.all)?;
    let mut world = World::start(
        WorldPlan {
            program: args.program.clone().unwrap_or_else(|| context.program.clone()),
            dir: run_dir.world.clone(),
            placement: run_dir.placement.clone(),
            coins: described.coins.clone(),
            with_workers: options.with_workers,
            with_auditor: false,
            database: None,
            nodes: 1,
            is_kept: args.deposit.run.keep_world,
            interrupted: Arc::clone(&context.interrupted),
        },
        &progress,
    )?;
    let clients = options.clients.unwrap_or(CLIENTS);
    let threads = run_dir.placement.client_count().min(clients as usize);
    let pid = world.exchange_pids()[0];
    let address = world.exchange_address;
    let mut stage = Stage {
        world: &mut world,
        prep_pool: &prep_pool,
        progress,
        threads,
        clients: (clients as usize).div_ceil(threads),
    };
    workload.set_up(&mut stage)?;
    let target = Arc::new(target(&Seed::new(options.seed).part("hostile"), &mut stage)?);
    let seconds = (options.warmup + options.duration).as_secs_f64();
    let chosen = |name: &&str| args.attack.is_empty() || args.attack.iter().any(|attack| attack == name);
    let mut kinds = BTreeMap::new();
    let mut extra = BTreeMap::new();
    let mut errors = BTreeMap::new();
    let (mut quiet_per_s, mut quiet_latency, mut ops) = (0.0, Latency::default(), 0);
    for name in std::iter::once("none").chain(ATTACKS.into_iter().filter(chosen)) {
        let scripts = workload.prepare(whole(rate * seconds) + u64::from(clients), &mut stage)?;
        let plan = Plan {
            servers: vec![address],
            clients: clients as usize,
            schedule: Schedule::Open { jobs_per_s: rate },
            warmup: options.warmup,
            duration: Some(options.duration),
            kinds: vec![Kind::counted("deposit")],
            cores: run_dir.placement.client.clone(),
        };
        let mut memory = Memory { pid, peak_bytes: resident_bytes(pid) };
        let ran = {
            let _attack = (name != "none").then(|| {
                let addresses = (0..args.addresses).map(|n| Ipv4Addr::new(127, 0, 0, 2 + n)).collect();
                Attack::start(
                    name,
                    Arc::clone(&target),
                    addresses,
                    args.connections as usize,
                    &run_dir.placement.client,
                )
            });
            affinity::on_cores(&run_dir.placement.client, || {
                generator::run(&plan, scripts, &mut memory, &context.interrupted)
            })?
        };
        stage.world.still_runs()?;
        let outcome = match ran {
            Ok((outcome, scripts)) => {
                workload.check(scripts, &mut stage)?;
                outcome
            }
            Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
            // The honest client cannot connect, so it got nothing.
            Err(error) => {
                extra.insert(format!("{name}_failed"), 1.0);
                eprintln!("beside {name}: {error}");
                generator::LoadOutcome { measured: options.duration, ..generator::LoadOutcome::default() }
            }
        };
        let per_s = outcome.all.ops as f64 / outcome.measured.as_secs_f64().max(1e-3);
        let latency = Latency::of(&outcome.all.latency);
        if name == "none" {
            (quiet_per_s, quiet_latency) = (per_s, latency);
            errors.extend(outcome.errors.clone());
        }
        ops += outcome.all.ops;
        let failed: u64 = outcome.errors.values().sum();
        extra.insert(format!("{name}_share"), per_s / quiet_per_s.max(1e-9));
        extra.insert(format!("{name}_failed_requests"), failed as f64);
        extra.insert(format!("{name}_memory_peak_mb"), memory.peak_bytes as f64 / 1e6);
        let is_met = per_s >= SHARE_GOAL * quiet_per_s && memory.peak_bytes <= MEMORY_GOAL;
        extra.insert(format!("{name}_goals_met"), f64::from(u8::from(is_met)));
        kinds
            .insert(format!("beside {name}"), KindResult { ops: outcome.all.ops, ops_per_s: per_s, latency });
        // Gives the rest of the attack time to time out.
        std::thread::sleep(Duration::from_secs(1));
    }
    if !world.finish(&progress)? {
        errors.insert("the books of the exchange do not add up".to_owned(), 1);
    }
    let shape = Shape {
        scenario: "hostile",
        title: format!("payments at {rate:.0}/s beside attacks from {} addresses", args.addresses),
        unit: "payments",
        parameters: BTreeMap::from([
            ("rate".to_owned(), json!(rate)),
            ("addresses".to_owned(), json!(args.addresses)),
            ("connections".to_owned(), json!(args.connections)),
            ("program".to_owned(), json!(args.program.is_some())),
        ]),
        remarks: vec![
            "the rate and latency above are those without attack; X_share is the honest client's rate beside attack X as a \
             part of that, and goals are a share of 0.8 and 1 GiB"
                .to_owned(),
        ],
    };
    let mut result = blank(context, &run_dir, shape, ops, options.duration.as_secs_f64());
    result.ops_per_s = quiet_per_s;
    result.latency = Some(quiet_latency);
    result.load = Load::Open { clients: clients as usize, target_ops_per_s: rate };
    result.limited_by = LimitedBy::Client;
    (result.kinds, result.extra, result.errors) = (kinds, extra, errors);
    Ok(Run { path: run_dir.directory.clone(), result, series: Vec::new(), latency: Vec::new() })
}

/// Prepares the target of the attacks. A reserve is emptied first, so that it has a long history that proves
/// refusals.
fn target(seed: &Seed, stage: &mut Stage<'_>) -> Result<Target> {
    let reserves = Reserves::open_with(1, u64::from(HISTORY), seed, stage.world, stage.progress)?;
    let mint = Mint { world: stage.world, prep_pool: stage.prep_pool, reserves: &reserves, seed };
    let bar = stage.progress.bar("making a long history", u64::from(HISTORY));
    let coins = mint.coins(0, HISTORY as usize, |_| 0, &bar)?;
    drop(bar);
    let denom = &stage.world.denoms[0];
    let values = match denom.key.key {
        DenomKey::Rsa(_) => ExchangeWithdrawValues::Rsa,
        DenomKey::Cs(_) => {
            let answer = wire::call(stage.world.exchange_address, &coins::csr_request(seed, HISTORY, denom))
                .map_err(|error| BenchError::set_up("ask for R values", error))?;
            coins::csr_answer(&answer.body)?
        }
    };
    let one_more = Planchet::new(seed, HISTORY, denom, &values)?;
    let mut payments = Payments::new(Merchants::One, false, seed);
    let payment = payments.next_payment();
    let part = payments.part(&coins[0], denom, denom.amount, EddsaSignature::from_bytes([0; 64]));
    let keys = stage.world.keys()?;
    let signkey =
        keys.signkeys.first().ok_or_else(|| BenchError::WrongAnswer("/keys has no signing key".into()))?;
    let copy = SignKeySignature { exchange_pub: signkey.key, master_sig: signkey.master_sig };
    Ok(Target {
        address: stage.world.exchange_address,
        poll: wire::get(&format!("/reserves/{}?timeout_ms=120000", signkey.key)),
        history: reserves.status(0),
        refused: reserves.withdraw(0, &[(denom, &one_more)]),
        copies: wire::post(
            "/management/keys",
            &ManagementKeysRequest { denom_sigs: Vec::new(), signkey_sigs: vec![copy; COPIES] },
        ),
        deposit: Stretched::new(&payments.request(&payment, vec![part]), "payto://x-taler-bank/localhost/")
            .ok_or_else(|| BenchError::WrongAnswer("a deposit without a payto URI".into()))?,
        filler: vec![b'x'; BODY_BYTES],
    })
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count below 2^53")]
fn whole(number: f64) -> u64 {
    number as u64
}
