//! What is measured. A scenario is a module with its arguments and a function from them to a [`Run`].

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::result::Run;

pub mod aggregator;
pub mod deposit;
mod fill;
pub mod hostile;
pub mod ledger;
pub mod partitions;
pub mod pgbench;
pub mod store;
pub mod switch;
pub mod transfer;
pub mod wallets;
pub mod wirewatch;
pub mod withdraw;
mod workers;

/// What every scenario needs to know about the program it is part of.
#[derive(Clone, Debug)]
pub struct Context {
    /// The program: the server under test is started from it.
    pub program: PathBuf,
    /// The version of the program.
    pub version: String,
    /// The commit it was built from, or `unknown`.
    pub commit: String,
    /// Becomes true when the user has enough.
    pub interrupted: Arc<AtomicBool>,
    /// The command line, as a shell would read it.
    pub command: String,
    /// Whether somebody watches standard error.
    pub shows_progress: bool,
}

/// Where a run goes unless the user says otherwise: `bench-results/SCENARIO-TIME`.
#[must_use]
pub fn default_directory(scenario: &str) -> PathBuf {
    let time = crate::result::utc_now().replace([':', '-'], "").replace('T', "-").replace('Z', "");
    PathBuf::from("bench-results").join(format!("{scenario}-{time}"))
}

/// What a run says to a reader in a few lines.
#[must_use]
pub fn summary(run: &Run) -> String {
    use std::fmt::Write as _;
    let result = &run.result;
    let mut text = format!("{}\n", result.title);
    let mut line = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {name:<22} {value}");
    };
    line(&format!("{}/s", result.unit), format!("{:.0}", result.ops_per_s));
    if let (Some(efficiency), Some(ceiling)) = (result.efficiency, result.ceiling_ops_per_s) {
        line(
            "efficiency",
            format!("{efficiency:.2} of {ceiling:.0}/s, the mandatory cryptography alone on the same cores"),
        );
    }
    if let Some(efficiency) = result.extra.get("efficiency_by_cpu_time") {
        line(
            "efficiency by CPU",
            format!("{efficiency:.2}: the cryptography's share of the server's CPU time"),
        );
    }
    if let Some(latency) = &result.latency {
        line(
            "latency p50/p99/max",
            format!("{:.2} / {:.2} / {:.2} ms", ms(latency.p50_us), ms(latency.p99_us), ms(latency.max_us)),
        );
    }
    if let Some(cpu) = result.cpu_us_per_op {
        let stages: Vec<String> =
            result.cpu_us_per_op_by_stage.iter().map(|(stage, us)| format!("{stage} {us:.1}")).collect();
        line("server CPU", format!("{cpu:.1} µs each ({})", stages.join(", ")));
    }
    if let Some(bytes) = &result.bytes_per_op {
        line("stored", format!("{:.0} bytes on disk, {:.0} in memory each", bytes.disk, bytes.ram));
    }
    line("limited by", format!("{:?}", result.limited_by).to_lowercase());
    for (kind, figures) in &result.kinds {
        let (p50, p99) = (ms(figures.latency.p50_us), ms(figures.latency.p99_us));
        line(kind, format!("{:.0}/s, p50/p99 {p50:.2} / {p99:.2} ms", figures.ops_per_s));
    }
    for (reason, count) in &result.errors {
        line("ERRORS", format!("{count} × {reason}"));
    }
    for remark in &result.remarks {
        line("remark", remark.clone());
    }
    line("result", run.path.display().to_string());
    text
}

#[allow(clippy::cast_precision_loss, reason = "latencies stay far below 2^52 µs")]
fn ms(us: u64) -> f64 {
    us as f64 / 1e3
}
