//! Options that all scenarios share.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use batzen_crypto::rsa;
use clap::Args;

use crate::bench::BenchError;
use crate::bench::load::affinity::Cores;
use crate::bench::scenarios::ceiling::Cipher;
use crate::bench::scenarios::database::StoreOptions;
use crate::bench::scenarios::target::TargetOptions;

/// Options of every scenario that loads a server.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Load")]
pub(crate) struct LoadOptions {
    /// Connections, each with one request under way [default: 64; with --rate up to 128, as many as the
    /// answers require, and 64 to find the peak]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) clients: Option<u32>,
    /// Start operations at this rate, whatever the server does: per second, or in percent of the peak, which
    /// a short run finds first and another checks at the end [default: as fast as answers arrive]
    #[arg(long, value_name = "RATE")]
    pub(crate) rate: Option<Rate>,
    /// Length of the measured part: seconds, or with a unit (500ms, 2m)
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = measured_duration)]
    pub(crate) duration: Duration,
    /// Length of the warm-up before it
    #[arg(long, value_name = "TIME", default_value = "2", value_parser = duration)]
    pub(crate) warmup: Duration,
    /// Run aggregation and transfers during the load
    #[arg(long)]
    pub(crate) with_workers: bool,
    /// Have an auditor follow the exchange and check every change, on one thread on the load generator's cores. Only with
    /// the embedded store
    #[arg(long)]
    pub(crate) with_auditor: bool,
    /// Prepare this many operations instead of estimating how many are needed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) supply: Option<u64>,
    /// Seed of secrets, amounts and choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Number of exchange processes on one database; clients are spread over them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) nodes: u32,
    /// Where the exchange keeps its rows.
    #[command(flatten)]
    pub(crate) store: StoreOptions,
    /// The exchange to load, if it runs already.
    #[command(flatten)]
    pub(crate) target: TargetOptions,
}

/// Options of every scenario.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Measurement")]
pub struct RunOptions {
    /// Cores of the server, for example 0 or 0-3,8; none: not pinned [default: the first half]
    #[arg(long, value_name = "CORES")]
    pub(crate) server_cores: Option<Cores>,
    /// Cores of the load generator and the bank [default: the other half]
    #[arg(long, value_name = "CORES")]
    pub(crate) client_cores: Option<Cores>,
    /// Directory of the result [default: bench-results/SCENARIO-TIME]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Keep configuration, keys, stores and logs in the result directory, below `world`
    #[arg(long)]
    pub(crate) keep_world: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

impl RunOptions {
    /// Options of a run in this process, which is not pinned and leaves nothing.
    pub(crate) fn unpinned(out: PathBuf) -> Self {
        let server_cores = Some(Cores::default());
        Self { server_cores, client_cores: None, out: Some(out), keep_world: false, json: true }
    }
}

/// Connections of a closed loop by default.
const CLOSED_CLIENTS: u32 = 64;
/// Connections of an open loop. It needs more than a closed loop, because its requests do not wait for one
/// another: after a stall, a server should see at once all requests that became due meanwhile.
const OPEN_CLIENTS: u32 = 128;

impl LoadOptions {
    /// Connections of a closed loop.
    pub(crate) fn closed_clients(&self) -> u32 {
        self.clients.unwrap_or(CLOSED_CLIENTS)
    }

    /// Connections of the measured part.
    pub(crate) fn measured_clients(&self) -> u32 {
        self.clients.unwrap_or(if self.rate.is_some() { OPEN_CLIENTS } else { CLOSED_CLIENTS })
    }
}

/// A planned rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rate {
    /// Operations per second.
    PerSecond(f64),
    /// A share of the peak.
    OfPeak(f64),
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, is_share) = match text.strip_suffix('%') {
            Some(number) => (number, true),
            None => (text.strip_suffix("/s").unwrap_or(text), false),
        };
        let wrong = || "expected operations per second, such as 5000, or a share of the peak, such as 70%";
        let number: f64 = number.trim().parse().map_err(|_| wrong())?;
        let limit = if is_share { 1_000.0 } else { 1e9 };
        if !(number > 0.0 && number <= limit) {
            return Err(wrong().to_owned());
        }
        Ok(if is_share { Self::OfPeak(number / 100.0) } else { Self::PerSecond(number) })
    }
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::PerSecond(rate) => write!(f, "{rate}/s"),
            Self::OfPeak(share) => write!(f, "{}% of the peak", (share * 1e4).round() / 100.0),
        }
    }
}

/// Parses a duration on the command line.
///
/// # Errors
/// Text that is not a duration, or a duration that is too long.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "expected a time such as 10, 0.5, 500ms, 10s or 2m, at most 24h".to_owned();
    let split = text.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let factor = match unit.trim() {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3_600.0,
        _ => return Err(wrong()),
    };
    let seconds = number * factor;
    if (0.0..=86_400.0).contains(&seconds) { Ok(Duration::from_secs_f64(seconds)) } else { Err(wrong()) }
}

/// Sizes of RSA keys are multiples of this.
const RSA_STEP: u32 = 128;

/// Checks that keys of a cipher are supported: RSA keys come in steps.
///
/// # Errors
/// The size, and the nearest supported ones.
pub(crate) fn check_cipher(cipher: Cipher) -> Result<(), BenchError> {
    match cipher {
        Cipher::Rsa(bits) if !bits.is_multiple_of(RSA_STEP) => {
            let (less, more) = (bits / RSA_STEP * RSA_STEP, bits.next_multiple_of(RSA_STEP));
            Err(BenchError::Usage(format!(
                "--rsa {bits}: expected a multiple of {RSA_STEP} from {} to {}, for example {less} or {more}",
                rsa::MIN_BITS,
                rsa::MAX_BITS
            )))
        }
        _ => Ok(()),
    }
}

/// Parses the duration of a measured part on the command line, which must not be zero.
///
/// # Errors
/// As [`duration`], and zero.
pub(crate) fn measured_duration(text: &str) -> Result<Duration, String> {
    let duration = duration(text)?;
    if duration.is_zero() {
        return Err("nothing is measured in no time; expected more, such as 10 or 500ms".to_owned());
    }
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_absolute_or_relative() {
        assert_eq!("5000".parse(), Ok(Rate::PerSecond(5_000.0)));
        assert_eq!("0.5/s".parse(), Ok(Rate::PerSecond(0.5)));
        assert_eq!("70%".parse(), Ok(Rate::OfPeak(0.7)));
        assert_eq!("70%".parse::<Rate>().unwrap().to_string(), "70% of the peak");
        for wrong in ["", "-1", "0", "0%", "NaN", "fast", "inf", "70 percent"] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_of_rsa_keys_come_in_steps() {
        for cipher in [Cipher::Cs, Cipher::Rsa(1024), Cipher::Rsa(2048), Cipher::Rsa(3072)] {
            assert!(check_cipher(cipher).is_ok(), "{cipher}");
        }
        let error = check_cipher(Cipher::Rsa(3000)).unwrap_err();
        assert!(matches!(error, BenchError::Usage(_)));
        let text = error.to_string();
        assert!(
            text.contains("--rsa 3000") && text.contains("128") && text.contains("2944 or 3072"),
            "{text}"
        );
    }

    #[test]
    fn times_have_units() {
        assert_eq!(duration("10"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for wrong in ["", "-1", "s", "1d", "25h", "1e9", "."] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        assert_eq!(measured_duration("1ms"), Ok(Duration::from_millis(1)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        for wrong in ["0", "0.0", "0ms", "soon"] {
            assert!(measured_duration(wrong).is_err(), "{wrong}");
        }
    }
}
