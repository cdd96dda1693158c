//! Shared by all services of the binary: configuration, clock, signals.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context;
use batzen_config::{Config, Loader};
use batzen_engine::Clock;
use batzen_protocol::{Amount, Currency, Money, Timestamp};
use batzen_service::PagesAddress;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::logging;

/// The directory of defaults, if there is none beside the program.
const SYSTEM_DEFAULTS: &str = "/usr/share/taler/config.d";
/// Configuration files used when none is named, in this order.
const SYSTEM_CONFIG: &str = "/etc/taler/taler.conf";

/// Options that every service and worker understands.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// The configuration file [default: taler.conf of the user, then of the system]
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Shift the program's clock by this many microseconds: USEC, +USEC or -USEC
    #[arg(
        short = 'T',
        long = "timetravel",
        value_name = "USEC",
        allow_hyphen_values = true,
        default_value = "0"
    )]
    pub timetravel: TimeShift,
}

/// The option of every process that can have an address of its own for its metrics.
#[derive(Args, Clone, Debug)]
pub struct MetricsArgs {
    /// Address of this process's own /metrics, /health and /ready, and of a service's /dashboard; port 0 picks a free one
    /// [default: from the configuration]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<PagesAddress>,
}

/// Shows where the metrics of this process are, if they have an address of their own.
pub fn show_metrics_url(url: Option<&str>) {
    if let Some(url) = url {
        eprintln!("metrics of this process: {url}metrics");
    }
}

/// The shift of a clock, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeShift(i64);

impl std::str::FromStr for TimeShift {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|_| "expected a number of microseconds".to_owned())
    }
}

impl TimeShift {
    /// The machine's clock, shifted.
    pub fn clock(self) -> Arc<dyn Clock> {
        Arc::new(move || self.now())
    }

    /// The current time in microseconds since 1970, not rounded.
    pub fn micros(self) -> u64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX).saturating_add_signed(self.0)
    }

    /// The current time.
    pub fn now(self) -> Timestamp {
        let now = Timestamp::from_system_time(SystemTime::now()).as_micros();
        Timestamp::from_micros(now.saturating_add_signed(self.0).min(Timestamp::NEVER.as_micros() - 1))
    }
}

impl Common {
    /// Reads the configuration: built-in values, the directory of defaults, then the file.
    ///
    /// # Errors
    /// A file that cannot be read or parsed.
    pub fn load(&self) -> anyhow::Result<Config> {
        let config = loader().load(self.file().as_deref())?;
        for warning in config.warnings() {
            tracing::warn!("configuration: {warning}");
        }
        Ok(config)
    }

    /// Sets one option in a configuration file, and keeps its other lines.
    ///
    /// # Errors
    /// A file that cannot be read, parsed or written; a name or value that cannot be written.
    pub fn set(&self, file: &Path, section: &str, option: &str, value: &str) -> anyhow::Result<()> {
        Ok(loader().set_in_file(file, section, option, value)?)
    }

    /// The file to read, if there is one.
    pub fn file(&self) -> Option<PathBuf> {
        if let Some(path) = &self.config {
            return Some(path.clone());
        }
        let home = std::env::var_os("XDG_CONFIG_HOME")
            .map(PathBuf::from)
            .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config")));
        home.map(|home| home.join("taler.conf"))
            .into_iter()
            .chain([PathBuf::from(SYSTEM_CONFIG)])
            .find(|path| path.is_file())
    }
}

fn loader() -> Loader {
    Loader::new(|name| std::env::var(name).ok()).base_dir(defaults_dir().as_deref())
}

/// The directory of defaults: named by the environment, beside the program `taler-config`, or the system's.
fn defaults_dir() -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os("TALER_BASE_CONFIG").filter(|dir| !dir.is_empty()) {
        return Some(PathBuf::from(dir));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    // This program may have been called by a path outside of the search path.
    let called = std::env::args_os().next().map(PathBuf::from);
    let beside = called.filter(|name| name.components().count() > 1);
    let beside = beside.and_then(|name| Some(name.parent()?.to_owned()));
    beside
        .into_iter()
        .chain(std::env::split_paths(&path))
        .filter(|dir| dir.join("taler-config").is_file())
        .map(|dir| dir.join("../share/taler/config.d"))
        .chain([PathBuf::from(SYSTEM_DEFAULTS)])
        .find(|dir| dir.is_dir())
        .map(|dir| dir.canonicalize().unwrap_or(dir))
}

/// Parses an amount on the command line, with or without its currency.
///
/// # Errors
/// Text that is not an amount, or in another currency.
pub fn money(text: &str, currency: Currency) -> anyhow::Result<Money> {
    let money = match text.contains(':') {
        true => Amount::parse(text).and_then(|amount| amount.money_in(currency)),
        false => text.parse(),
    };
    money.with_context(|| format!("{text}: expected an amount such as {currency}:1.50"))
}

/// Makes a path absolute, and creates the directory if it is missing, accessible only to its owner.
///
/// # Errors
/// When it cannot be created.
pub fn directory(path: &Path) -> anyhow::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(|| format!("cannot create the directory {}", path.display()))?;
    path.canonicalize().with_context(|| format!("directory {}", path.display()))
}

/// Resolves on SIGTERM or SIGINT.
///
/// # Errors
/// When the signals cannot be watched.
pub fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot watch SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch SIGINT")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Starts a service. `None`: it was told to stop meanwhile, for example while it waited for a ledger.
pub async fn start_unless<T>(
    stop: &mut (impl Future<Output = ()> + Unpin),
    start: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        started = start => Some(started),
        () = stop => None,
    }
}

/// The async runtime of a service. The process may then open as many files as the system allows, and opens its log file
/// again on SIGHUP.
///
/// # Errors
/// When the operating system refuses threads or signals.
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    raise_descriptor_limit();
    let number = std::sync::atomic::AtomicUsize::new(0);
    let name = move || format!("http-{}", number.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name_fn(name)
        // Yields on wake-up, like the CPU pool and the lane. If no other thread is waiting for the processor,
        // this returns at once.
        .on_thread_unpark(std::thread::yield_now)
        .build()?;
    // Other programs end on SIGHUP, as their terminal goes away.
    if logging::has_file() {
        let _context = runtime.enter();
        let mut hangups = signal(SignalKind::hangup())?;
        runtime.spawn(async move {
            while hangups.recv().await.is_some() {
                logging::reopen();
            }
        });
    }
    Ok(runtime)
}

/// Runs a future on the runtime of a service. The runtime's threads do not delay the process's exit.
///
/// # Errors
/// When the runtime cannot start, or the future's own.
pub fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = runtime().context("cannot start the runtime")?;
    let result = runtime.block_on(future);
    runtime.shutdown_background();
    result
}

/// Raises the limit on file descriptors to what the system allows, since every connection needs one and the
/// default is too low.
pub fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
    {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_shifted() {
        let now = Timestamp::from_system_time(SystemTime::now()).as_micros();
        let shifted = |text: &str| text.parse::<TimeShift>().unwrap().now().as_micros();
        assert!(shifted("+3600000000") >= now + 3_600_000_000);
        assert!(shifted("-3600000000") < now);
        assert!(shifted("0") >= now);
        assert_eq!(shifted("-9223372036854775807"), 0);
        assert!("soon".parse::<TimeShift>().is_err());
    }

    #[test]
    fn amounts_need_no_currency() {
        let currency: Currency = "KUDOS".parse().unwrap();
        assert_eq!(money("KUDOS:1.5", currency).unwrap(), money("1.5", currency).unwrap());
        assert!(money("EUR:1", currency).is_err());
        assert!(money("much", currency).is_err());
    }
}
