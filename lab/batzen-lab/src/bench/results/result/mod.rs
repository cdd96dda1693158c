//! The common format of results, written by scenarios and read by reports, comparisons and tables.
//!
//! A run is a directory:
//!
//! | file | content |
//! |---|---|
//! | `result.json` | [`RunResult`]: parameters, machine, and the figures of the whole run |
//! | `series.csv` | [`Sample`]: one row a second |
//! | `moments.csv` | one row for each hundredth of a second: answers, and the mean and the longest of their latencies |
//! | `latency.hgrm` | [`PercentilePoint`]: latency by percentile, in the text form that HdrHistogram's tools read and plot |
//! | `server-metrics-before.prom`, `server-metrics-after.prom` | what the server's `/metrics` said |
//!
//! Only `result.json` is required; a report says which of the others are missing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use batzen_protocol::Timestamp;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::bench::load::procfs::CpuTime;
use crate::bench::results::machine::Machine;

mod directories;
mod error;
mod files;

pub(crate) use directories::{claim_directory, results_of};
pub(crate) use error::ResultError;
pub(crate) use files::percentile_points;
use files::{latency_hgrm, parse_latency, parse_series, series_csv};

/// Version of the format. It grows when a reader of the older format would misunderstand the newer one.
pub const SCHEMA: u32 = 1;

/// Name of the parameter with the profile that the programs were built with.
pub const BUILD_PROFILE: &str = "build_profile";
/// Value of a commit or a profile that the build did not record.
pub const UNKNOWN: &str = "unknown";

/// Name of the file with the [`RunResult`].
pub(crate) const RESULT_FILE: &str = "result.json";
/// Name of the file with the limits of a machine.
pub(crate) const LIMITS_FILE: &str = "limits.json";
/// Name of the file with the summary of a kept experiment.
pub(crate) const SUMMARY_FILE: &str = "summary.json";
/// Name of the file with the [`Sample`]s.
pub(crate) const SERIES_FILE: &str = "series.csv";
/// Name of the file with the [moments](crate::bench::load::moments).
pub(crate) const MOMENTS_FILE: &str = "moments.csv";
/// Name of the file with the [`PercentilePoint`]s.
pub(crate) const LATENCY_FILE: &str = "latency.hgrm";
/// Name of the file with the server's metrics before the load.
pub(crate) const METRICS_BEFORE_FILE: &str = "server-metrics-before.prom";
/// Name of the file with the server's metrics after the load.
pub(crate) const METRICS_AFTER_FILE: &str = "server-metrics-after.prom";

/// Scenarios that record no series.
const WITHOUT_SERIES: [&str; 3] = ["store", "pgbench", "hostile"];
/// Runs of at least this length, in seconds, always have a series, whenever samples are taken.
const SERIES_FROM_S: f64 = 2.0;

/// The bottleneck of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitedBy {
    /// The server was busy all the time: the figures are its limit.
    Server,
    /// The load generator was busy all the time: the server can do more than the figures say.
    Client,
    /// Neither was busy all the time: an open loop below the peak, or a limit set by latency.
    #[default]
    Neither,
}

impl LimitedBy {
    /// The bottleneck of a run in which these sides were busy all the time.
    pub(crate) const fn of(is_server_full: bool, is_client_full: bool) -> Self {
        match (is_server_full, is_client_full) {
            (true, _) => Self::Server,
            (false, true) => Self::Client,
            (false, false) => Self::Neither,
        }
    }
}

/// The way in which load was offered.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "kind")]
pub enum Load {
    /// Every client sends its next request when it has the answer to the last one.
    Closed {
        /// Requests under way at a time.
        clients: usize,
    },
    /// Requests start at a fixed rate, whatever the server does; latency counts from the planned start.
    Open {
        /// Requests under way at a time, at most.
        clients: usize,
        /// Planned operations per second.
        target_ops_per_s: f64,
    },
}

impl Default for Load {
    fn default() -> Self {
        Self::Closed { clients: 1 }
    }
}

/// Latency of requests over the whole run, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// Median.
    pub p50_us: u64,
    /// 90th percentile.
    pub p90_us: u64,
    /// 99th percentile.
    pub p99_us: u64,
    /// 99.9th percentile.
    pub p999_us: u64,
    /// The slowest.
    pub max_us: u64,
}

impl Latency {
    /// The figures of a histogram of microseconds.
    pub(crate) fn of(histogram: &Histogram<u64>) -> Self {
        Self {
            p50_us: histogram.value_at_quantile(0.5),
            p90_us: histogram.value_at_quantile(0.9),
            p99_us: histogram.value_at_quantile(0.99),
            p999_us: histogram.value_at_quantile(0.999),
            max_us: histogram.max(),
        }
    }
}

/// The space that one operation takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BytesPerOp {
    /// Bytes written to the journal.
    pub disk: f64,
    /// Growth of the resident memory.
    pub ram: f64,
}

/// Number of items that were handled together, as a histogram.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BatchSizes {
    /// Number of batches.
    pub batches: u64,
    /// Items per batch.
    pub mean: f64,
    /// Batches by size, in ascending order of size.
    pub buckets: Vec<BatchBucket>,
}

/// Batches of similar size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchBucket {
    /// The largest size in this bucket; `None`: all sizes above the bucket before.
    pub up_to: Option<u64>,
    /// Number of batches (of this bucket alone).
    pub batches: u64,
}

/// A cryptographic step that no implementation of the protocol can leave out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CeilingPart {
    /// The step, for example `ed25519 verify`.
    pub name: String,
    /// Number of times that an operation needs it.
    pub per_op: f64,
    /// CPU time of one.
    pub us: f64,
}

/// Figures of one kind of request within a run that mixes several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KindResult {
    /// Operations of this kind.
    pub(crate) ops: u64,
    /// Operations of this kind per second.
    pub(crate) ops_per_s: f64,
    #[serde(flatten)]
    pub(crate) latency: Latency,
}

/// The figures of a run.
///
/// Everything but warm-up counts. An operation is what the `unit` says: a coin for `withdraw` and `deposit`,
/// however many travel in one request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The scenario's name: `withdraw`, `deposit`, …
    pub scenario: String,
    /// A title that distinguishes this run from others, for example `withdraw RSA-2048, 8 coins a request`.
    pub title: String,
    /// The command line that repeats the run.
    pub command: String,
    /// Everything that was chosen: numbers, strings and booleans by name.
    pub parameters: BTreeMap<String, serde_json::Value>,
    /// Where it ran.
    pub machine: Machine,
    /// Cores of the server; empty: not pinned.
    pub server_cores: Vec<usize>,
    /// Cores of the load generator; empty: not pinned.
    pub client_cores: Vec<usize>,
    /// Version of Batzen.
    pub version: String,
    /// Commit it was built from, or `unknown`.
    pub commit: String,
    /// Start of the measured part, RFC 3339 in UTC (see `utc`).
    pub started: String,
    /// Length of the measured part.
    pub duration_s: f64,
    /// The way in which load was offered.
    pub load: Load,
    /// The unit of operations, in the plural: `coins`, `deposits`, `credits`.
    pub unit: String,
    /// Operations done.
    pub ops: u64,
    /// Operations per second.
    pub ops_per_s: f64,
    /// Requests done; fewer than operations if one request carries several.
    pub requests: u64,
    /// Requests that failed, by reason; empty in a valid run.
    pub errors: BTreeMap<String, u64>,
    /// Operations per second of the mandatory cryptography alone, in the same run on the server's cores.
    pub ceiling_ops_per_s: Option<f64>,
    /// `ops_per_s` ÷ `ceiling_ops_per_s`.
    pub efficiency: Option<f64>,
    /// The steps that the ceiling consists of.
    #[serde(default)]
    pub ceiling_parts: Vec<CeilingPart>,
    /// The bottleneck of the run.
    pub limited_by: LimitedBy,
    /// Latency of requests, from the planned start in an open loop. None where there are no requests.
    #[serde(flatten)]
    pub latency: Option<Latency>,
    /// The space that one operation takes.
    pub bytes_per_op: Option<BytesPerOp>,
    /// The server's CPU time per operation, µs.
    pub cpu_us_per_op: Option<f64>,
    /// The same by stage, that is by role of the thread: `http`, `cpu`, `lane`, `store`, `other`.
    #[serde(default)]
    pub cpu_us_per_op_by_stage: BTreeMap<String, f64>,
    /// The load generator's CPU time per operation, µs.
    #[serde(default)]
    pub client_cpu_us_per_op: Option<f64>,
    /// Batch sizes by kind of batch: `commit`, `verify`, `sign`, …
    #[serde(default)]
    pub batch_sizes: BTreeMap<String, BatchSizes>,
    /// Figures by kind of request, where a run mixes several.
    #[serde(default)]
    pub kinds: BTreeMap<String, KindResult>,
    /// Further figures that only this scenario has; each name ends in its unit.
    #[serde(default)]
    pub extra: BTreeMap<String, f64>,
    /// Remarks for judging the figures, one sentence each: not pinned, limited by the client, a debug build.
    #[serde(default)]
    pub remarks: Vec<String>,
}

/// The measurements of one interval of the run, usually a second. Values that were not measured are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// End of the interval, seconds from the start.
    pub t_s: f64,
    /// Operations per second in it.
    pub ops_per_s: f64,
    /// Median latency, µs.
    pub p50_us: Option<f64>,
    /// 99th percentile of the latency, µs.
    pub p99_us: Option<f64>,
    /// Commands per commit, mean.
    pub batch_size: Option<f64>,
    /// Cores' worth of CPU time that the server used.
    pub server_cores_busy: Option<f64>,
    /// Cores' worth of CPU time that the load generator used.
    pub client_cores_busy: Option<f64>,
    /// Commands that waited at the end of the interval.
    pub queue_depth: Option<f64>,
    /// Share of the server's cores that a hypervisor gave to others.
    pub server_stolen_share: Option<f64>,
}

/// A point of the latency distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PercentilePoint {
    /// The latency, µs.
    pub value_us: f64,
    /// Share of the requests that were not slower, 0 to 1.
    pub quantile: f64,
    /// Number of the requests that were not slower.
    pub count: u64,
}

/// A result directory, read.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The directory.
    pub path: PathBuf,
    /// The figures of the whole run.
    pub result: RunResult,
    /// The measurements over time; empty if nothing was recorded.
    pub series: Vec<Sample>,
    /// The latency distribution; empty if it was not recorded.
    pub latency: Vec<PercentilePoint>,
}

impl Run {
    /// Reads a result directory.
    ///
    /// # Errors
    /// When `result.json` is missing, when a file is malformed, and when another version wrote it.
    pub(crate) fn read(directory: &Path) -> Result<Self, ResultError> {
        let path = directory.join(RESULT_FILE);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(source) if is_absent(&source) => {
                // A missing directory is the more common mistake.
                std::fs::metadata(directory)
                    .map_err(|source| ResultError::Io { path: directory.to_owned(), source })?;
                let below = directories::below(directory)?;
                return Err(ResultError::NoResult { path: directory.to_owned(), below });
            }
            Err(source) => return Err(ResultError::Io { path, source }),
        };
        let result = parse_result(&path, &text)?;
        let series = read_optional(&directory.join(SERIES_FILE))?
            .map_or(Ok(Vec::new()), |text| parse_series(&directory.join(SERIES_FILE), &text))?;
        let latency = read_optional(&directory.join(LATENCY_FILE))?
            .map_or(Ok(Vec::new()), |text| parse_latency(&directory.join(LATENCY_FILE), &text))?;
        Ok(Self { path: directory.to_owned(), result, series, latency })
    }

    /// Names of the files with data for plots that should be in the directory and are not. Runs too short for a series
    /// have none.
    pub(crate) fn missing_files(&self) -> Vec<&'static str> {
        let result = &self.result;
        let has_latency = result.latency.is_some() && result.ops > 0;
        let has_series =
            !WITHOUT_SERIES.contains(&result.scenario.as_str()) && result.duration_s >= SERIES_FROM_S;
        let mut missing = Vec::new();
        if has_latency && self.latency.is_empty() {
            missing.push(LATENCY_FILE);
        }
        if has_series && self.series.is_empty() {
            missing.push(SERIES_FILE);
        }
        missing
    }

    /// Writes the directory, creating it if necessary.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self) -> Result<(), ResultError> {
        let write = |name: &str, text: &str| {
            let path = self.path.join(name);
            std::fs::write(&path, text).map_err(|source| ResultError::Io { path, source })
        };
        std::fs::create_dir_all(&self.path)
            .map_err(|source| ResultError::Io { path: self.path.clone(), source })?;
        if !self.series.is_empty() {
            write(SERIES_FILE, &series_csv(&self.series))?;
        }
        if !self.latency.is_empty() {
            write(LATENCY_FILE, &latency_hgrm(&self.latency))?;
        }
        // Written last: if it exists, the result is complete.
        write(RESULT_FILE, &self.result.to_json())
    }
}

impl RunResult {
    /// The content of `result.json`, which is what `--json` prints too.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut text =
            serde_json::to_string_pretty(self).expect("a result has string keys and finite numbers");
        text.push('\n');
        text
    }

    /// Sets the ceiling, its parts and the efficiency that follows.
    pub fn set_ceiling(&mut self, ceiling_ops_per_s: f64, parts: Vec<CeilingPart>) {
        self.ceiling_ops_per_s = Some(ceiling_ops_per_s);
        self.efficiency = (ceiling_ops_per_s > 0.0).then(|| self.ops_per_s / ceiling_ops_per_s);
        self.ceiling_parts = parts;
    }

    /// CPU time of the mandatory cryptography of an operation, if it was measured.
    pub(crate) fn mandatory_us(&self) -> Option<f64> {
        let us: f64 = self.ceiling_parts.iter().map(|part| part.per_op * part.us).sum();
        (us > 0.0).then_some(us)
    }

    /// Sets the server's CPU time per operation, as a whole and by stage.
    pub(crate) fn set_cpu(&mut self, server: &CpuTime) {
        let ops = self.ops;
        let us = |ns: u64| if ops > 0 { ns as f64 / 1e3 / ops as f64 } else { 0.0 };
        self.cpu_us_per_op = Some(us(server.total_ns()));
        let by_role = server.by_role_ns.iter().map(|(role, ns)| ((*role).to_owned(), us(*ns)));
        self.cpu_us_per_op_by_stage = by_role.collect();
    }

    /// Number of requests that failed.
    pub(crate) fn error_count(&self) -> u64 {
        self.errors.values().sum()
    }
}

fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
}

fn read_optional(path: &Path) -> Result<Option<String>, ResultError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(source) if is_absent(&source) => Ok(None),
        Err(source) => Err(ResultError::Io { path: path.to_owned(), source }),
    }
}

fn parse_result(path: &Path, text: &str) -> Result<RunResult, ResultError> {
    parse_json(path, text, u64::from(SCHEMA))
}

/// Reads one of our files that begins with its format version.
pub(crate) fn read_json<T: serde::de::DeserializeOwned>(path: &Path, schema: u64) -> Result<T, ResultError> {
    let io = |source| ResultError::Io { path: path.to_owned(), source };
    parse_json(path, &std::fs::read_to_string(path).map_err(io)?, schema)
}

fn parse_json<T: serde::de::DeserializeOwned>(
    path: &Path,
    text: &str,
    schema: u64,
) -> Result<T, ResultError> {
    #[derive(Deserialize)]
    struct Head {
        schema: u64,
    }
    let json = |source| ResultError::Json { path: path.to_owned(), source };
    let head: Head = serde_json::from_str(text).map_err(json)?;
    if head.schema != schema {
        return Err(ResultError::UnknownSchema { path: path.to_owned(), found: head.schema, known: schema });
    }
    serde_json::from_str(text).map_err(json)
}

/// Seconds since 1970 as RFC 3339 in UTC.
pub(crate) fn utc(unix_s: u64) -> String {
    Timestamp::from_secs(unix_s).to_string()
}

/// The present moment as RFC 3339 in UTC.
pub(crate) fn utc_now() -> String {
    utc(std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs()))
}

#[cfg(test)]
pub(crate) mod tests;
