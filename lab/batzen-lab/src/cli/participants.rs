//! `batzen-lab switch fsps`: simulated participants for a switch that is already running.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use batzen_cli_support::numbers::{count, milliseconds, number};
use batzen_lab::bench::scenarios::switch::SwitchLoad;
use batzen_lab::participants::hub::{Hub, Onboarding};
use batzen_lab::participants::{Behaviour, Fsps, Mix, Report, UnknownBehaviour};
use clap::Args;
use serde_json::{Value, json};

use crate::cli::bench;

/// Time to wait, after the load, for the last transfers to end.
const DRAIN_TIME: Duration = Duration::from_secs(60);

/// Play participants of a running switch: send transfers, answer them, and report the results
#[derive(Args)]
#[command(after_help = "Examples:
  batzen-lab switch fsps --tokens operators.txt                     create fsp1 … fsp8, ten seconds of transfers
  batzen-lab switch fsps --tokens operators.txt --rate 500 --duration 2m --mix accept=98,reject=1,silent=1
  batzen-lab switch fsps --tokens operators.txt --switch 10.0.0.7:8090 --admin 10.0.0.7:8091

The token file has one token per line; the first operator proposes changes, the second approves them.
Exit code 3 if a transfer did not end as expected.")]
pub(super) struct FspsArgs {
    /// Address of the switch for transfers
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8090")]
    switch: SocketAddr,
    /// Address of the switch for administration
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8091")]
    admin: SocketAddr,
    /// File with the tokens of two operators, to create the participants first
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Prefix of the participants' names, which end in a number
    #[arg(long, value_name = "NAME", default_value = "fsp")]
    prefix: String,
    /// TCP port for callbacks of the first participant; the others use the following ports [default: free
    /// ones]
    #[arg(long, value_name = "PORT", required_unless_present = "tokens")]
    callback_port: Option<u16>,
    /// Address at which the participants listen for callbacks [default: the one from which this machine
    /// reaches the switch]
    #[arg(long, value_name = "ADDRESS")]
    callback_bind: Option<IpAddr>,
    /// Host at which the switch reaches them, a name or an address [default: the address at which they
    /// listen]
    #[arg(long, value_name = "HOST", value_parser = host)]
    callback_host: Option<String>,
    /// The currency
    #[arg(long, value_name = "CODE", default_value = "USD")]
    currency: String,
    /// Behaviours with weights: accept, reserve, reject, silent, wrong-fulfilment, late, duplicate,
    /// changed-duplicate
    #[arg(long, value_name = "BEHAVIOUR=WEIGHT,…", default_value = "accept=1", value_parser = mix)]
    mix: Mix,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    load: SwitchLoad,
}

fn mix(text: &str) -> Result<Mix, String> {
    let mut weights = Vec::new();
    for part in text.split(',') {
        let (name, weight) = part.split_once('=').unwrap_or((part, "1"));
        let behaviour: Behaviour =
            name.trim().parse().map_err(|error: UnknownBehaviour| error.to_string())?;
        weights.push((behaviour, weight.trim().parse::<u32>().map_err(|error| format!("{part}: {error}"))?));
    }
    if weights.iter().all(|(_, weight)| *weight == 0) {
        return Err("at least one weight must be above zero".to_owned());
    }
    Ok(Mix::new(&weights))
}

fn host(text: &str) -> Result<String, String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let is_host = text.parse::<IpAddr>().is_ok() || (!text.is_empty() && text.chars().all(is_name));
    if is_host {
        Ok(text.to_owned())
    } else {
        Err("expected a host name or an address, without port".to_owned())
    }
}

/// Runs `batzen-lab switch fsps`.
pub(super) fn run(args: &FspsArgs) -> anyhow::Result<ExitCode> {
    let context = bench::context()?;
    let mut config = args.load.participants(args.switch, &args.currency);
    config.names = (1..=config.names.len()).map(|number| format!("{}{number}", args.prefix)).collect();
    if let Some(first) = args.callback_port {
        let count = u16::try_from(config.names.len())?;
        ensure!(first.checked_add(count).is_some(), "there are not that many ports from {first} on");
        config.ports = (first..first + count).collect();
    }
    config.callback_bind = args.callback_bind;
    config.callback_host.clone_from(&args.callback_host);
    let fsps = Fsps::start(config).context("the participants cannot listen")?;
    if let Some(file) = &args.tokens {
        let tokens = Hub::tokens(file).with_context(|| file.display().to_string())?;
        onboard(&Hub::new(args.admin, tokens), &fsps, &args.currency)?;
    }
    let load = batzen_lab::participants::Load { mix: args.mix, ..args.load.load() };
    let end = Instant::now() + load.warmup + load.duration.unwrap_or(Duration::MAX / 4);
    fsps.load(load);
    while Instant::now() < end && !load.count.is_some_and(|count| fsps.is_idle(count)) {
        if context.interrupted.load(Relaxed) {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let report = fsps.end_load(DRAIN_TIME);
    if args.json {
        println!("{:#}", results(&report));
    } else {
        print!("{}", text(&report));
    }
    Ok(if report.failures().is_empty() { ExitCode::SUCCESS } else { ExitCode::from(bench::EXIT_ERRORS) })
}

fn onboard(hub: &Hub, fsps: &Fsps, currency: &str) -> anyhow::Result<()> {
    /// Enough that no limit is reached, in hundredths.
    const FUNDS_CENTS: u64 = 1_000_000_000_000;
    // The hub has accounts in this currency already, or the participants cannot be created.
    if let Err(error) = hub.found(currency, "deferred-net") {
        tracing::info!("{error}");
    }
    for (index, name) in fsps.names().iter().enumerate() {
        let callback_url = fsps.callback_url(index);
        let onboarding = Onboarding {
            name,
            currency,
            callback_url: &callback_url,
            cap_cents: FUNDS_CENTS,
            funds_cents: FUNDS_CENTS,
        };
        hub.onboard(&onboarding)
            .with_context(|| format!("{name} cannot be made (choose another --prefix)"))?;
    }
    Ok(())
}

fn legs(report: &Report) -> [(&'static str, [u64; 4]); 3] {
    [("prepare", &report.prepare), ("fulfil", &report.fulfil), ("whole", &report.whole)].map(
        |(name, histogram)| {
            let at = |quantile| histogram.value_at_quantile(quantile);
            (name, [at(0.5), at(0.95), at(0.99), histogram.max()])
        },
    )
}

fn rate(report: &Report) -> f64 {
    report.committed as f64 / report.measured.as_secs_f64().max(1e-9)
}

fn results(report: &Report) -> Value {
    let legs = legs(report).map(|(name, [p50, p95, p99, max])| {
        (name.to_owned(), json!({"p50_us": p50, "p95_us": p95, "p99_us": p99, "max_us": max}))
    });
    let ends = report
        .ends
        .iter()
        .map(|((behaviour, told), count)| (format!("{}: {told}", behaviour.name()), json!(count)));
    json!({
        "ftps": rate(report),
        "measured_s": report.measured.as_secs_f64(),
        "committed": report.committed,
        "begun": report.begun,
        "committed_in_all": report.committed_in_all,
        "latency": serde_json::Map::from_iter(legs),
        "ends": serde_json::Map::from_iter(ends),
        "failures": report.failures(),
        "repeated_requests": report.repeats,
        "repeated_callbacks": report.late_callbacks,
    })
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{} transfers a second, {} in {} s",
        number(rate(report)),
        count(report.committed),
        number(report.measured.as_secs_f64())
    );
    let _ = writeln!(text, "  {:<10}{:>10}{:>10}{:>10}{:>10}", "ms", "p50", "p95", "p99", "max");
    for (name, quantiles) in legs(report) {
        let _ = write!(text, "  {name:<10}");
        for us in quantiles {
            let _ = write!(text, "{:>10}", milliseconds(us as f64));
        }
        let _ = writeln!(text);
    }
    for ((behaviour, told), count) in &report.ends {
        let _ = writeln!(text, "  {:<20}{:<14}{count:>10}", behaviour.name(), told.to_string());
    }
    for (failure, count) in report.failures() {
        let _ = writeln!(text, "  FAILED {count} × {failure}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_are_weights() {
        let expected = Mix::new(&[(Behaviour::Accept, 3), (Behaviour::Late, 1)]);
        assert_eq!(mix("accept=3,late"), Ok(expected));
        for wrong in ["", "accept=x", "maybe=1", "accept=0"] {
            assert!(mix(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn hosts_have_no_port() {
        for text in ["10.0.0.7", "fe80::7", "fsps.example"] {
            assert_eq!(host(text), Ok(text.to_owned()));
        }
        for text in ["", "10.0.0.7:80", "http://fsps.example", "[fe80::7]"] {
            assert!(host(text).is_err(), "{text}");
        }
    }
}
