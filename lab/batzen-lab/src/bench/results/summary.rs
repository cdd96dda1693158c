//! A run in a few lines: what a scenario prints.

use std::fmt::Write as _;

use batzen_cli_support::numbers::{milliseconds, number, ratio};

use super::result::Run;

/// Summarises a run in a few lines.
#[must_use]
pub fn summary(run: &Run) -> String {
    let result = &run.result;
    let mut text = format!("{}\n", result.title);
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<22} {value}");
    };
    line(&format!("{}/s", result.unit), number(result.ops_per_s));
    if let (Some(efficiency), Some(ceiling)) = (result.efficiency, result.ceiling_ops_per_s) {
        line(
            "efficiency",
            format!(
                "{} of {}/s, the mandatory cryptography alone on the same cores",
                ratio(efficiency),
                number(ceiling)
            ),
        );
    }
    if let Some(efficiency) = result.extra.get("efficiency_by_cpu_time") {
        line(
            "efficiency by CPU",
            format!("{}: the cryptography's share of the server's CPU time", ratio(*efficiency)),
        );
    }
    if let Some(latency) = &result.latency {
        line(
            "latency p50/p99/max",
            format!("{} / {} / {} ms", ms(latency.p50_us), ms(latency.p99_us), ms(latency.max_us)),
        );
    }
    if let Some(cpu) = result.cpu_us_per_op {
        let stages: Vec<String> = result
            .cpu_us_per_op_by_stage
            .iter()
            .map(|(stage, us)| format!("{stage} {}", number(*us)))
            .collect();
        line("server CPU", format!("{} µs each ({})", number(cpu), stages.join(", ")));
    }
    let figure = |name: &str| result.extra.get(name).copied();
    if let (Some(merchant), Some(exchange)) =
        (figure("merchant_cpu_us_per_op"), figure("exchange_cpu_us_per_op"))
    {
        line(
            "CPU by service",
            format!("merchant {} µs, exchange {} µs each", number(merchant), number(exchange)),
        );
    }
    if let Some(per_core) = figure("ops_per_core_s") {
        line(&format!("{}/s per core", result.unit), number(per_core));
    }
    if let Some(bytes) = &result.bytes_per_op {
        line("stored", format!("{} bytes on disk, {} in memory each", number(bytes.disk), number(bytes.ram)));
    }
    line("limited by", format!("{:?}", result.limited_by).to_lowercase());
    for (kind, figures) in &result.kinds {
        let (p50, p99) = (ms(figures.latency.p50_us), ms(figures.latency.p99_us));
        line(kind, format!("{}/s, p50/p99 {p50} / {p99} ms", number(figures.ops_per_s)));
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

fn ms(us: u64) -> String {
    milliseconds(us as f64)
}
