//! `batzen-lab bench hostile`: attacks beside an honest load.
//!
//! A service serves honest clients at a steady rate, first alone, then beside one attack after another. The
//! result shows what the honest clients get, how much memory the process needs, and how many connections the attack
//! holds. Attacks come from separate addresses on this machine, target only this machine, and are bounded in number and
//! time.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::Context;
use super::deposit::DepositArgs;
use super::workers::{RunDirectory, Shape, blank};
use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::coins::PrepPool;
use crate::bench::load::procfs::resident_bytes;
use crate::bench::load::progress::Progress;
use crate::bench::results::result::{KindResult, Latency, LimitedBy, Load, Run};
use crate::bench::scenarios::options::{self, Rate};

mod arena;
mod attack;
mod auditor;
mod exchange;
mod feed;
mod kyc;
mod ledger;
mod merchant;
mod purses;
mod slow;
mod table;

use arena::{Arena, Setting};
use attack::{Attack, Parts, head};
use table::{ATTACKS, Service};

/// Connections of the honest client by default.
const CLIENTS: u32 = 32;
/// The largest body that any version of a service accepted.
const BODY_BYTES: usize = 15 << 20;
/// The share of its rate that the honest client should keep during an attack.
pub(crate) const SHARE_GOAL: f64 = 0.8;
/// The memory that the attacked process may use during an attack, in bytes.
pub(crate) const MEMORY_GOAL: u64 = 1 << 30;
/// Interval at which memory is measured.
const TICK: Duration = Duration::from_millis(50);
/// Time for the rest of an attack to end.
const REST: Duration = Duration::from_secs(1);

/// Arguments of `batzen-lab bench hostile`.
#[derive(Args, Clone, Debug)]
#[command(after_help = table::help())]
pub struct HostileArgs {
    /// Make only this attack (may be repeated)
    #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(table::names()))]
    pub(crate) attack: Vec<String>,
    /// Attack only this service (may be repeated)
    #[arg(long, value_name = "SERVICE", value_enum)]
    pub(crate) service: Vec<Service>,
    /// Number of attacking addresses, from 127.0.0.2 on
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=200))]
    pub(crate) addresses: u8,
    /// Number of attacking connections [default: 400; at the ledger 3,000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) connections: Option<u32>,
    /// The program whose services are attacked [default: this one]
    #[arg(long, value_name = "FILE")]
    pub(crate) program: Option<PathBuf>,
    /// The honest load. Its rate is that of each service.
    #[command(flatten)]
    pub deposit: DepositArgs,
}

impl HostileArgs {
    /// The attacks on a service that were chosen.
    fn chosen(&self, service: Service) -> impl Iterator<Item = &'static str> {
        let is_chosen = move |kind: &&table::Kind| {
            kind.service == service
                && (self.service.is_empty() || self.service.contains(&service))
                && (self.attack.is_empty() || self.attack.iter().any(|name| name == kind.name))
        };
        ATTACKS.iter().filter(is_chosen).map(|kind| kind.name)
    }
}

/// The services, and their attacks after the honest load alone.
pub(crate) fn rows() -> Vec<(&'static str, Option<&'static str>)> {
    let mut rows = Vec::new();
    for service in Service::ALL {
        let attacks = ATTACKS.iter().filter(|attack| attack.service == service);
        let names = std::iter::once(None).chain(attacks.map(|attack| Some(attack.name)));
        rows.extend(names.map(|name| (service.name(), name)));
    }
    rows
}

/// The name under which a result has the honest load of a service, beside an attack or alone.
pub(crate) fn kind(service: &str, attack: Option<&str>) -> String {
    format!("{service}: {}", attack.unwrap_or("no attack"))
}

/// Watches the memory of a process until it is dropped.
struct Memory {
    peak_bytes: Arc<AtomicU64>,
    stops: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Memory {
    fn watch(pid: u32) -> Self {
        let (peak_bytes, stops) =
            (Arc::new(AtomicU64::new(resident_bytes(pid))), Arc::new(AtomicBool::new(false)));
        let (peak, ends) = (Arc::clone(&peak_bytes), Arc::clone(&stops));
        let work = move || {
            while !ends.load(Relaxed) {
                peak.fetch_max(resident_bytes(pid), Relaxed);
                std::thread::sleep(TICK);
            }
        };
        let thread = std::thread::Builder::new().name("memory".to_owned()).spawn(work).ok();
        Self { peak_bytes, stops, thread }
    }

    fn peak_bytes(&self) -> u64 {
        self.peak_bytes.load(Relaxed)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.stops.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // It has kept what it saw.
            let _ = thread.join();
        }
    }
}

/// A body of 15 MB, whose last part holds all of it.
fn large_body(method: &str, path: &str) -> Parts {
    vec![head(method, path, BODY_BYTES).into(), vec![b'x'; BODY_BYTES].into()]
}

/// The figures of all services.
#[derive(Default)]
struct Figures {
    ops: u64,
    /// Rate and latency of the first service, alone.
    first: Option<(f64, Latency)>,
    kinds: BTreeMap<String, KindResult>,
    extra: BTreeMap<String, f64>,
    errors: BTreeMap<String, u64>,
    remarks: Vec<String>,
}

/// A run of attacks.
struct Hostile<'a> {
    args: &'a HostileArgs,
    /// With the attacked program.
    context: &'a Context,
    run_dir: &'a RunDirectory,
    prep_pool: &'a PrepPool,
    progress: Progress,
    /// Honest operations per second, unless each service has its own rate.
    rate: Option<f64>,
    figures: Figures,
}

/// Runs the honest load of each service alone, and then beside each attack.
///
/// # Errors
/// When it cannot produce a result. Requests that fail during an attack are part of the result, and so is what an older
/// program lacks.
pub fn run(args: &HostileArgs, context: &Context) -> Result<Run> {
    let options = &args.deposit.load;
    options.store.check()?;
    let rate = match options.rate {
        None => None,
        Some(Rate::PerSecond(rate)) => Some(rate),
        Some(Rate::OfPeak(_)) => {
            return Err(BenchError::Usage("--rate is a number of operations per second here".into()));
        }
    };
    options::check_cipher(args.deposit.cipher.cipher())?;
    let services: Vec<Service> =
        Service::ALL.into_iter().filter(|service| args.chosen(*service).next().is_some()).collect();
    if services.is_empty() {
        return Err(BenchError::Usage("no attack of --attack is on a service of --service".into()));
    }
    let run_dir = RunDirectory::new("hostile", &args.deposit.run)?;
    let prep_pool = PrepPool::new(&run_dir.placement.all)?;
    let program = args.program.clone().unwrap_or_else(|| context.program.clone());
    let attacked = Context { program, ..context.clone() };
    let mut hostile = Hostile {
        args,
        context: &attacked,
        run_dir: &run_dir,
        prep_pool: &prep_pool,
        progress: Progress::new(context.shows_progress),
        rate,
        figures: Figures::default(),
    };
    for service in &services {
        match hostile.attack(*service) {
            Err(error @ (BenchError::Interrupted | BenchError::Usage(_))) => return Err(error),
            Err(error) if args.program.is_some() => {
                hostile.figures.extra.insert(format!("{}_missing", service.name()), 1.0);
                hostile.figures.remarks.push(format!("{} could not be attacked: {error}", service.name()));
            }
            attacked => attacked?,
        }
    }
    let figures = hostile.figures;
    let names: Vec<&str> = services.iter().map(|service| service.name()).collect();
    let mut remarks = figures.remarks;
    remarks.push(
        "the rate and latency above are those of the first service without attack; X_share is the honest client's rate beside \
         attack X as a part of that of its service, and goals are a share of 0.8 and 1 GiB"
            .to_owned(),
    );
    let shape = Shape {
        scenario: "hostile",
        title: format!("honest load beside attacks from {} addresses", args.addresses),
        unit: "operations",
        parameters: BTreeMap::from([
            ("rate".to_owned(), json!(rate)),
            ("services".to_owned(), json!(names)),
            ("addresses".to_owned(), json!(args.addresses)),
            ("connections".to_owned(), json!(args.connections)),
            ("program".to_owned(), json!(args.program.is_some())),
        ]),
        remarks,
    };
    let mut result = blank(context, &run_dir.placement, shape, figures.ops, options.duration.as_secs_f64());
    let (per_s, latency) = figures.first.unwrap_or_default();
    (result.ops_per_s, result.latency) = (per_s, Some(latency));
    let target_ops_per_s = rate.unwrap_or_else(|| services[0].rate());
    result.load = Load::Open { clients: options.clients.unwrap_or(CLIENTS) as usize, target_ops_per_s };
    result.limited_by = LimitedBy::Client;
    (result.kinds, result.extra, result.errors) = (figures.kinds, figures.extra, figures.errors);
    Ok(Run { path: run_dir.directory.clone(), result, series: Vec::new(), latency: Vec::new() })
}

impl Hostile<'_> {
    /// Starts a service, and prepares its first load.
    fn start(&self, service: Service, number: usize) -> Result<Box<dyn Arena>> {
        let deposit = &self.args.deposit;
        let setting = Setting {
            context: self.context,
            run_dir: self.run_dir,
            prep_pool: self.prep_pool,
            progress: self.progress,
            cipher: deposit.cipher,
            load: &deposit.load,
            run: &deposit.run,
            rate: self.rate.unwrap_or_else(|| service.rate()),
            clients: deposit.load.clients.unwrap_or(CLIENTS) as usize,
            dir: self.run_dir.world.join(format!("{}-{number}", service.name())),
        };
        let mut arena = match service {
            Service::Exchange => exchange::start(&setting, deposit),
            Service::Purses => purses::start(&setting),
            Service::Kyc => kyc::start(&setting),
            Service::Merchant => merchant::start(&setting),
            Service::Auditor => auditor::start(&setting),
            Service::Feed => feed::start(&setting),
            Service::Ledger => ledger::start(&setting),
        }?;
        arena.prepare()?;
        Ok(arena)
    }

    /// Measures the honest load of a service alone and beside its attacks. A service that an attack has ended is started
    /// again.
    fn attack(&mut self, service: Service) -> Result<()> {
        let mut running: Option<Box<dyn Arena>> = None;
        let mut alone_per_s = 0.0;
        let attacks: Vec<_> = std::iter::once(None).chain(self.args.chosen(service).map(Some)).collect();
        for (number, attack) in attacks.into_iter().enumerate() {
            let ready = running.take().map(|mut arena| arena.prepare().map(|()| arena));
            let mut arena = match ready {
                Some(Ok(arena)) => arena,
                Some(Err(BenchError::Interrupted)) => return Err(BenchError::Interrupted),
                None => self.start(service, number)?,
                Some(Err(error)) => {
                    self.figures.errors.insert(format!("{} does not recover: {error}", service.name()), 1);
                    self.start(service, number)?
                }
            };
            let per_s = self.measure(service, attack, alone_per_s, &mut *arena)?;
            if attack.is_none() {
                alone_per_s = per_s;
            }
            std::thread::sleep(REST);
            match arena.still_runs() {
                Ok(()) => running = Some(arena),
                Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
                Err(error) => {
                    let label = attack.unwrap_or(service.name());
                    self.figures.extra.insert(format!("{label}_ended"), 1.0);
                    self.figures.extra.insert(format!("{label}_goals_met"), 0.0);
                    self.figures.errors.insert(format!("beside {label}: {error}"), 1);
                }
            }
        }
        if let Some(arena) = running
            && !arena.finish()?
        {
            self.figures.errors.insert(format!("{}: the books do not add up", service.name()), 1);
        }
        Ok(())
    }

    /// Measures one load, beside an attack or alone, and returns its rate.
    fn measure(
        &mut self,
        service: Service,
        name: Option<&'static str>,
        alone_per_s: f64,
        arena: &mut dyn Arena,
    ) -> Result<f64> {
        let memory = Memory::watch(arena.target().pid);
        let attack = name.map(|name| self.begin(service, name, arena)).transpose()?;
        let loaded = arena.load();
        let held = attack.as_ref().map_or(0, Attack::open);
        drop(attack);
        let alone = format!("{}_alone", service.name());
        let label = name.unwrap_or(&alone);
        let outcome = match loaded {
            Ok(outcome) => outcome,
            Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
            // The honest client cannot connect, so it got nothing.
            Err(error) => {
                self.figures.extra.insert(format!("{label}_failed"), 1.0);
                eprintln!("beside {label}: {error}");
                let measured = self.args.deposit.load.duration;
                crate::bench::load::generator::LoadOutcome { measured, ..Default::default() }
            }
        };
        let per_s = outcome.all.ops as f64 / outcome.measured.as_secs_f64().max(1e-3);
        let latency = Latency::of(&outcome.all.latency);
        let failed: u64 = outcome.errors.values().sum();
        let peak_bytes = memory.peak_bytes();
        let figures = &mut self.figures;
        let mut put = |what: &str, value: f64| figures.extra.insert(format!("{label}_{what}"), value);
        put("completed", outcome.ops_in_all as f64);
        put("failed_requests", failed as f64);
        put("memory_peak_mb", peak_bytes as f64 / 1e6);
        if name.is_some() {
            let share = if alone_per_s > 0.0 { per_s / alone_per_s } else { 0.0 };
            let is_met = share >= SHARE_GOAL && peak_bytes <= MEMORY_GOAL;
            put("share", share);
            put("connections_held", held as f64);
            put("goals_met", f64::from(u8::from(is_met)));
            if let Some((reason, count)) = outcome.errors.iter().max_by_key(|(_, count)| **count) {
                figures.remarks.push(format!("beside {label}, {count} honest requests failed: {reason}"));
            }
        } else {
            figures.first.get_or_insert((per_s, latency));
            let reasons = outcome.errors.into_iter();
            figures
                .errors
                .extend(reasons.map(|(reason, count)| (format!("{}: {reason}", service.name()), count)));
        }
        figures.ops += outcome.all.ops;
        let kind = kind(service.name(), name);
        figures.kinds.insert(kind, KindResult { ops: outcome.all.ops, ops_per_s: per_s, latency });
        Ok(per_s)
    }

    fn begin(&self, service: Service, name: &str, arena: &dyn Arena) -> Result<Attack> {
        let missing = || BenchError::SetUp(format!("no attack {name} is prepared"));
        let target = arena.target();
        let act = Arc::clone(target.acts.get(name).ok_or_else(missing)?);
        let addresses = (0..self.args.addresses).map(|n| Ipv4Addr::new(127, 0, 0, 2 + n)).collect();
        let connections = self.args.connections.unwrap_or(service.connections()) as usize;
        Ok(Attack::start(act, target.address, addresses, connections, &self.run_dir.placement.client))
    }
}
