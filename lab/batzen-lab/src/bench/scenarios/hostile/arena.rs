//! A service under attack and the honest load on it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;

use super::attack::Act;
use super::slow::SlowServer;
use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::affinity::{self, Placement};
use crate::bench::load::coins::PrepPool;
use crate::bench::load::generator::{self, LoadOutcome, Plan, Schedule};
use crate::bench::load::measure::{Stage, Workload};
use crate::bench::load::progress::Progress;
use crate::bench::scenarios::Context;
use crate::bench::scenarios::ceiling::CipherArgs;
use crate::bench::scenarios::options::{LoadOptions, RunOptions};
use crate::bench::scenarios::workers::RunDirectory;
use crate::bench::scenarios::world::{CoinKind, World, WorldPlan};

/// Value of a coin.
const VALUE: u64 = 1;
/// The longest time of a call of an honest program: as long as the load generator waits for answers in the end.
const CALL_TIME: Duration = Duration::from_secs(60);

/// The attacked process and its address, with the behaviour of each attack.
pub(super) struct Target {
    pub(super) pid: u32,
    pub(super) address: SocketAddr,
    /// The behaviour of the connections of each attack.
    pub(super) acts: BTreeMap<&'static str, Arc<Act>>,
}

impl Target {
    pub(super) fn new(
        (pid, address): (u32, SocketAddr),
        acts: impl IntoIterator<Item = (&'static str, Act)>,
    ) -> Self {
        Self { pid, address, acts: acts.into_iter().map(|(name, act)| (name, Arc::new(act))).collect() }
    }
}

/// A service under attack and the honest load on it.
pub(super) trait Arena {
    fn target(&self) -> &Target;
    /// Prepares the next load.
    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }
    /// Makes the load that was prepared.
    fn load(&mut self) -> Result<LoadOutcome>;
    /// Fails if a service has ended.
    fn still_runs(&mut self) -> Result<()>;
    /// Ends the services. Returns whether the books add up.
    fn finish(self: Box<Self>) -> Result<bool>;
}

/// The settings of an arena.
pub(super) struct Setting<'a> {
    /// With the attacked program.
    pub(super) context: &'a Context,
    pub(super) run_dir: &'a RunDirectory,
    pub(super) prep_pool: &'a PrepPool,
    pub(super) progress: Progress,
    pub(super) cipher: CipherArgs,
    pub(super) load: &'a LoadOptions,
    pub(super) run: &'a RunOptions,
    /// Honest operations per second.
    pub(super) rate: f64,
    /// Honest connections.
    pub(super) clients: usize,
    /// An empty directory.
    pub(super) dir: PathBuf,
}

impl Setting<'_> {
    /// Starts a bank and an exchange.
    pub(super) fn world(&self, with_auditor: bool, more_sections: String) -> Result<World> {
        self.world_on(self.run_dir.placement.clone(), with_auditor, more_sections)
    }

    /// Starts them on these cores.
    pub(super) fn world_on(
        &self,
        placement: Placement,
        with_auditor: bool,
        more_sections: String,
    ) -> Result<World> {
        let plan = WorldPlan {
            program: self.context.program.clone(),
            dir: self.dir.clone(),
            placement,
            coins: vec![CoinKind { value: VALUE, cipher: self.cipher.cipher() }],
            with_workers: self.load.with_workers,
            with_auditor,
            database: None,
            nodes: 1,
            more_sections,
            is_kept: self.run.keep_world,
            interrupted: Arc::clone(&self.context.interrupted),
        };
        World::start(plan, &self.progress)
    }

    /// The cores of the load generator and the attack.
    pub(super) fn cores(&self) -> Vec<usize> {
        self.run_dir.placement.client.clone()
    }

    /// The pace of the honest load.
    pub(super) fn pace(&self) -> Pace {
        Pace { rate: self.rate, warmup: self.load.warmup, duration: self.load.duration, cores: self.cores() }
    }
}

/// The pace of an honest load.
#[derive(Clone)]
pub(super) struct Pace {
    /// Operations per second.
    rate: f64,
    warmup: Duration,
    duration: Duration,
    /// Where the load is made.
    cores: Vec<usize>,
}

/// An arena whose honest load is one of HTTP requests.
pub(super) struct HttpArena<W: Workload> {
    world: World,
    workload: W,
    scripts: Vec<W::Script>,
    target: Target,
    prep_pool: PrepPool,
    progress: Progress,
    clients: usize,
    threads: usize,
    pace: Pace,
    _slow: Option<SlowServer>,
}

impl<W: Workload> HttpArena<W> {
    /// Sets up the load and the attacks on the process and the address.
    pub(super) fn new(
        setting: &Setting<'_>,
        world: World,
        workload: W,
        place: (u32, SocketAddr),
        slow: Option<SlowServer>,
        acts: impl FnOnce(&mut Stage<'_>) -> Result<Vec<(&'static str, Act)>>,
    ) -> Result<Self> {
        let mut arena = Self {
            world,
            workload,
            scripts: Vec::new(),
            target: Target::new(place, []),
            prep_pool: setting.prep_pool.clone(),
            progress: setting.progress,
            clients: setting.clients,
            threads: setting.run_dir.placement.client_count().min(setting.clients),
            pace: setting.pace(),
            _slow: slow,
        };
        let (workload, mut stage) = arena.staged();
        workload.set_up(&mut stage)?;
        let acts = acts(&mut stage)?;
        arena.target = Target::new(place, acts);
        Ok(arena)
    }

    /// The load, and its surroundings.
    fn staged(&mut self) -> (&mut W, Stage<'_>) {
        let stage = Stage {
            world: &mut self.world,
            prep_pool: &self.prep_pool,
            progress: self.progress,
            threads: self.threads,
            clients: self.clients.div_ceil(self.threads),
        };
        (&mut self.workload, stage)
    }
}

impl<W: Workload> Arena for HttpArena<W> {
    fn target(&self) -> &Target {
        &self.target
    }

    fn prepare(&mut self) -> Result<()> {
        let seconds = (self.pace.warmup + self.pace.duration).as_secs_f64();
        let count = (self.pace.rate * seconds) as u64 + self.clients as u64;
        let (workload, mut stage) = self.staged();
        self.scripts = workload.prepare(count, &mut stage)?;
        Ok(())
    }

    fn load(&mut self) -> Result<LoadOutcome> {
        let plan = Plan {
            servers: vec![self.target.address],
            clients: self.clients,
            schedule: Schedule::Open { jobs_per_s: self.pace.rate },
            warmup: self.pace.warmup,
            duration: Some(self.pace.duration),
            kinds: self.workload.describe().kinds,
            cores: self.pace.cores.clone(),
        };
        let (scripts, interrupted) = (std::mem::take(&mut self.scripts), self.world.interrupted().clone());
        let (outcome, scripts) =
            affinity::on_cores(&self.pace.cores, || generator::run(&plan, scripts, &mut (), &interrupted))??;
        let (workload, mut stage) = self.staged();
        workload.check(scripts, &mut stage)?;
        Ok(outcome)
    }

    fn still_runs(&mut self) -> Result<()> {
        self.world.still_runs()
    }

    fn finish(self: Box<Self>) -> Result<bool> {
        Ok(self.world.finish(&self.progress)? == Some(true))
    }
}

/// A call of an honest program, which has a number of its own.
pub(super) type Call = Arc<dyn Fn(u64) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// Makes calls at a pace, whatever becomes of them, with numbers from `first` on. What is
/// done in the measured part counts.
pub(super) fn call_at(pace: &Pace, first: u64, call: &Call) -> Result<LoadOutcome> {
    affinity::on_cores(&pace.cores, || -> Result<LoadOutcome> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| BenchError::set_up("no runtime", error))?;
        Ok(runtime.block_on(calls(pace, first, call)))
    })?
}

async fn calls(pace: &Pace, first: u64, call: &Call) -> LoadOutcome {
    let begun = Instant::now();
    let mut under_way = tokio::task::JoinSet::new();
    let count = (pace.rate * (pace.warmup + pace.duration).as_secs_f64()) as u64;
    for number in 0..count {
        let due = begun + Duration::from_secs_f64(number as f64 / pace.rate);
        tokio::time::sleep_until(due.into()).await;
        let call = call(first + number);
        under_way.spawn(async move {
            let answer = tokio::time::timeout(CALL_TIME, call).await;
            (due, Instant::now(), answer.unwrap_or_else(|_| Err("no answer in time".to_owned())))
        });
    }
    let start = begun + pace.warmup;
    let measured = start..start + pace.duration;
    let mut outcome = LoadOutcome { measured: pace.duration, ..LoadOutcome::default() };
    while let Some(ended) = under_way.join_next().await {
        let Ok((due, at, answer)) = ended else { continue };
        match answer {
            Ok(()) => {
                outcome.ops_in_all += 1;
                if measured.contains(&at) {
                    let us = u64::try_from((at - due).as_micros()).unwrap_or(u64::MAX);
                    outcome.all.latency.saturating_record(us.max(1));
                    outcome.all.ops += 1;
                    outcome.all.requests += 1;
                }
            }
            Err(reason) => *outcome.errors.entry(reason).or_default() += 1,
        }
    }
    outcome
}
