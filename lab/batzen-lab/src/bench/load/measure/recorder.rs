//! Records what the machine and the server use while the load runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::bench::BenchError;
use crate::bench::load::affinity::Placement;
use crate::bench::load::generator::{self, LoadOutcome, Observer, Watch};
use crate::bench::load::procfs::{self, CpuTime};
use crate::bench::load::progress::Bar;
use crate::bench::load::scrape::Page;
use crate::bench::results::result::{BatchSizes, LimitedBy, Sample};
use crate::bench::scenarios::database::{self, Database};
use crate::bench::scenarios::world::World;

/// Cores that are idle for less than this share of the time are busy.
const IDLE_SHARE: f64 = 0.1;

/// Takes samples while the load runs.
pub(super) struct Recorder {
    /// All processes of the services under test.
    pids: Vec<u32>,
    /// The merchant backend among them, if any.
    merchant_pid: Option<u32>,
    servers: Vec<std::net::SocketAddr>,
    database: Option<Arc<Database>>,
    /// The database's counters at the beginning and at the end.
    counted: Vec<database::Snapshot>,
    placement: Placement,
    bar: Bar,
    start: std::time::Instant,
    before: Option<(Page, Snapshot)>,
    after: Option<(Page, Snapshot)>,
    last: Option<Snapshot>,
    last_page: Page,
    /// A sample per second, in addition to the load's own figures.
    seconds: Vec<Sample>,
    last_ops: u64,
    failure: Option<BenchError>,
}

/// Usage up to one moment.
#[derive(Clone, Debug)]
struct Snapshot {
    at: std::time::Instant,
    server: CpuTime,
    merchant: CpuTime,
    client: BTreeMap<String, u64>,
    resident: u64,
    server_cores: procfs::CoreTime,
    client_cores: procfs::CoreTime,
}

/// The records of a run.
pub(super) struct Recorded {
    pub(super) before: Page,
    pub(super) after: Page,
    pub(super) server_before: CpuTime,
    pub(super) server_after: CpuTime,
    /// The merchant backend's part of the server's CPU time, if there is one.
    pub(super) merchant: Option<CpuTime>,
    pub(super) database: database::Used,
    pub(super) client_ns: u64,
    pub(super) busiest_client: f64,
    pub(super) resident_growth: f64,
    pub(super) server_idle: f64,
    pub(super) client_idle: f64,
    /// The share of their time that a hypervisor took from the server's cores.
    pub(super) server_stolen: f64,
    pub(super) client_stolen: f64,
    pub(super) series: Vec<Sample>,
}

impl Snapshot {
    fn take(recorder: &Recorder) -> Self {
        let Recorder { pids, placement, .. } = recorder;
        Self {
            at: std::time::Instant::now(),
            server: CpuTime::of_all(pids),
            merchant: recorder.merchant_pid.map_or_else(CpuTime::default, CpuTime::of),
            client: procfs::own_threads_ns("load-"),
            resident: pids.iter().map(|pid| procfs::resident_bytes(*pid)).sum(),
            server_cores: procfs::CoreTime::of(&placement.server),
            client_cores: procfs::CoreTime::of(&placement.client),
        }
    }
}

impl Recorder {
    pub(super) fn new(world: &World, placement: &Placement, bar: Bar) -> Self {
        Self {
            pids: world.exchange_pids().into_iter().chain(world.merchant_pid()).collect(),
            merchant_pid: world.merchant_pid(),
            servers: world.metrics_addresses(),
            database: world.database().cloned(),
            counted: Vec::new(),
            placement: placement.clone(),
            bar,
            start: std::time::Instant::now(),
            before: None,
            after: None,
            last: None,
            last_page: Page::default(),
            seconds: Vec::new(),
            last_ops: 0,
            failure: None,
        }
    }

    fn page(&mut self) -> Page {
        Page::fetch_all(&self.servers).unwrap_or_else(|error| {
            self.failure.get_or_insert(error);
            Page::default()
        })
    }

    pub(super) fn finish(self) -> Result<Recorded, BenchError> {
        if let Some(error) = self.failure {
            return Err(error);
        }
        let (Some((before, first)), Some((after, last))) = (self.before, self.after) else {
            return Err(BenchError::SetUp("the load ended before it was measured".into()));
        };
        let mut counted = self.counted.into_iter();
        let database = match (counted.next(), counted.next()) {
            (Some(first), Some(last)) => database::Used::between(first, last)?,
            _ => database::Used::default(),
        };
        let client: Vec<u64> = last
            .client
            .iter()
            .map(|(name, ns)| ns.saturating_sub(first.client.get(name).copied().unwrap_or(0)))
            .collect();
        let elapsed = (last.at - first.at).as_secs_f64().max(1e-9);
        let is_here = !self.pids.is_empty();
        Ok(Recorded {
            database,
            client_ns: client.iter().sum(),
            busiest_client: client.iter().max().map_or(0.0, |ns| *ns as f64 / 1e9 / elapsed),
            resident_growth: last.resident as f64 - first.resident as f64,
            // The cores of another machine are not known to be busy.
            server_idle: if is_here { last.server_cores.idle_share_since(&first.server_cores) } else { 1.0 },
            client_idle: last.client_cores.idle_share_since(&first.client_cores),
            server_stolen: if is_here {
                last.server_cores.stolen_share_since(&first.server_cores)
            } else {
                0.0
            },
            client_stolen: last.client_cores.stolen_share_since(&first.client_cores),
            merchant: self.merchant_pid.map(|_| last.merchant.since(&first.merchant)),
            server_before: first.server,
            server_after: last.server,
            before,
            after,
            series: self.seconds,
        })
    }
}

impl Observer for Recorder {
    fn begins(&mut self) {
        self.counted.extend(self.database.as_deref().map(Database::snapshot));
        let snapshot = Snapshot::take(self);
        let page = self.page();
        self.last = Some(snapshot.clone());
        self.last_page = page.clone();
        self.before = Some((page, snapshot));
    }

    fn second(&mut self, elapsed: Duration, watch: &Watch) {
        let Some(last) = self.last.take() else { return };
        let snapshot = Snapshot::take(self);
        let page = self.page();
        let time = (snapshot.at - last.at).as_secs_f64().max(1e-9);
        let busy = |ns: u64| Some(ns as f64 / 1e9 / time);
        let is_here = !self.pids.is_empty();
        let client: u64 = snapshot
            .client
            .iter()
            .map(|(name, ns)| ns.saturating_sub(last.client.get(name).copied().unwrap_or(0)))
            .sum();
        let batches =
            page.growth(&self.last_page, "batzen_lane_batch_commands_count").filter(|batches| *batches > 0.0);
        let commands = page.growth(&self.last_page, "batzen_lane_batch_commands_sum");
        self.seconds.push(Sample {
            t_s: elapsed.as_secs_f64(),
            batch_size: batches.zip(commands).map(|(batches, commands)| commands / batches),
            server_cores_busy: busy(snapshot.server.since(&last.server).total_ns()).filter(|_| is_here),
            client_cores_busy: busy(client),
            queue_depth: page.value("batzen_lane_queued"),
            server_stolen_share: is_here
                .then(|| snapshot.server_cores.stolen_share_since(&last.server_cores)),
            ..Sample::default()
        });
        self.last = Some(snapshot);
        self.last_page = page;
        let ops = watch.ops();
        self.bar.say(format!("{:.0} a second", (ops - self.last_ops) as f64 / time));
        self.last_ops = ops;
    }

    fn ticks(&mut self, _watch: &Watch) {
        self.bar.set(u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX));
    }

    fn ends(&mut self) {
        self.counted.extend(self.database.as_deref().map(Database::snapshot));
        let snapshot = Snapshot::take(self);
        let page = self.page();
        self.after = Some((page, snapshot));
    }
}

impl Recorded {
    pub(super) fn limited_by(&self) -> LimitedBy {
        let is_client_full = self.client_idle < IDLE_SHARE || self.busiest_client > 1.0 - IDLE_SHARE;
        LimitedBy::of(self.server_idle < IDLE_SHARE, is_client_full)
    }

    /// Cores' worth of CPU time that the server used, with its database.
    pub(super) fn server_busy(&self, seconds: f64) -> f64 {
        let exchange_ns = self.server_after.since(&self.server_before).total_ns();
        (exchange_ns + self.database.cpu_ns) as f64 / 1e9 / seconds.max(1e-9)
    }

    /// Share of the server's cores that other programs on this system used. Unknown if the server has no
    /// cores of its own.
    pub(super) fn foreign_share(&self, placement: &Placement, seconds: f64) -> f64 {
        if placement.server.is_empty() {
            return 0.0;
        }
        let known =
            self.server_idle + self.server_stolen + self.server_busy(seconds) / placement.server.len() as f64;
        1.0 - known
    }

    pub(super) fn batch_sizes(&self) -> BTreeMap<String, BatchSizes> {
        let commits = self.after.sizes(&self.before, "batzen_lane_batch_commands");
        let commits = commits.into_values().map(|sizes| ("commit".to_owned(), sizes));
        commits.chain(self.after.sizes(&self.before, "batzen_pool_batch_items")).collect()
    }
}

/// Returns the load generator's counts of each second, with the samples of the same second.
pub(super) fn series(outcome: &LoadOutcome, recorded: &Recorded) -> Vec<Sample> {
    let whole_seconds = usize::try_from(outcome.measured.as_secs()).unwrap_or(usize::MAX);
    let latency = |counts: &generator::Counts, quantile: f64| {
        (counts.requests > 0).then(|| counts.latency.value_at_quantile(quantile) as f64)
    };
    outcome
        .seconds
        .iter()
        .take(whole_seconds)
        .enumerate()
        .map(|(index, counts)| Sample {
            t_s: (index + 1) as f64,
            ops_per_s: counts.ops as f64,
            p50_us: latency(counts, 0.5),
            p99_us: latency(counts, 0.99),
            ..recorded.series.get(index).copied().unwrap_or_default()
        })
        .collect()
}
