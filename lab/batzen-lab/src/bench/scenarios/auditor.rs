//! The auditor of a world: a process of its own that follows the exchange and checks every change, on one thread.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use batzen_crypto::EddsaPublicKey;

use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::procfs::CpuTime;
use crate::bench::load::scrape::Page;
use crate::bench::scenarios::service::{self, PAUSE, Service};
use crate::bench::scenarios::world::{CURRENCY, PATIENCE, WorldPlan, free_port, local};

/// The name of the file with the auditor's key for the stream.
const AUDITOR_KEY: &str = "auditor-feed.key";

/// The keys of both sides of the stream, and the port at which it is offered beside its socket.
pub(super) struct StreamKeys {
    exchange_pub: String,
    auditor_pub: String,
    port: u16,
}

fn path(plan: &WorldPlan, name: &str) -> String {
    plan.dir.join(name).to_string_lossy().into_owned()
}

/// The socket of the stream, whose path must be short.
fn socket(runtime_dir: &Path) -> String {
    runtime_dir.join("feed.sock").to_string_lossy().into_owned()
}

impl StreamKeys {
    /// Makes them.
    pub(super) fn make(plan: &WorldPlan) -> Result<Self> {
        let make = |name: &str| {
            let output = service::run(plan, "make a key", &["signer", "keygen", &path(plan, name)])?;
            Ok::<_, BenchError>(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        Ok(Self {
            exchange_pub: make("exchange-feed.key")?,
            auditor_pub: make(AUDITOR_KEY)?,
            port: free_port()?,
        })
    }

    /// The section of the exchange.
    pub(super) fn exchange_section(&self, plan: &WorldPlan, runtime_dir: &Path) -> String {
        format!(
            "[exchange-feed]\nLISTEN = unix://{},tcp://{}\nKEY_FILE = {}\nAUDITORS = {}\n",
            socket(runtime_dir),
            local(self.port),
            path(plan, "exchange-feed.key"),
            self.auditor_pub
        )
    }
}

/// A running auditor.
pub(crate) struct Auditor {
    pub(super) service: Service,
    /// Where it serves.
    pub(crate) address: SocketAddr,
    /// Where the exchange offers the stream.
    pub(crate) feed: SocketAddr,
    /// The exchange's key for the stream.
    pub(crate) feed_key: String,
    /// The file of the auditor's own.
    pub(crate) key_file: PathBuf,
}

/// The progress of an auditor.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct AuditorState {
    /// CPU time so far, in nanoseconds.
    pub(crate) cpu_ns: u64,
    /// Commits of the exchange that it has not checked.
    pub(crate) lag_commits: f64,
    /// Changes of rows checked so far.
    pub(crate) changes: f64,
}

impl Auditor {
    /// Starts it on the load generator's cores, since it runs on another machine than the exchange.
    pub(super) fn start(
        plan: &WorldPlan,
        keys: StreamKeys,
        runtime_dir: &Path,
        (exchange_url, master_pub): (&str, &EddsaPublicKey),
    ) -> Result<Self> {
        let port = free_port()?;
        let config = plan.dir.join("auditor.conf");
        let text = format!(
            "# Written by `batzen-lab bench`.
[taler]
CURRENCY = {CURRENCY}
CURRENCY_ROUND_UNIT = {CURRENCY}:0.01

[paths]
TALER_DATA_HOME = {home}

[auditor]
BASE_URL = http://localhost:{port}/
PORT = {port}
BIND_TO = 127.0.0.1

[exchange]
BASE_URL = {exchange_url}
MASTER_PUBLIC_KEY = {master_pub}

[auditor-feed]
EXCHANGE = unix://{socket}
EXCHANGE_KEY = {exchange_pub}
KEY_FILE = {key}
THREADS = 1
",
            home = plan.dir.join("auditor").display(),
            socket = socket(runtime_dir),
            exchange_pub = keys.exchange_pub,
            key = path(plan, AUDITOR_KEY),
        );
        std::fs::write(&config, text).map_err(BenchError::io(&config))?;
        let conf = config.to_string_lossy();
        service::run(plan, "prepare the auditor", &["auditor", "init", "-c", &conf])?;
        let words = ["auditor", "exchange", "add", "-c", &conf, &master_pub.to_string(), exchange_url];
        service::run(plan, "have the exchange audited", &words)?;
        let words = ["auditor", "serve", "-c", &conf];
        let mut service = Service::start(plan, "auditor", &words, &plan.placement.client)?;
        let address = local(port);
        service.wait_until_ready(address, "/ready", PATIENCE, &plan.interrupted)?;
        Ok(Self {
            service,
            address,
            feed: local(keys.port),
            feed_key: keys.exchange_pub,
            key_file: plan.dir.join(AUDITOR_KEY),
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.service.pid()
    }

    /// Returns its progress.
    pub(super) fn state(&self) -> Result<AuditorState> {
        let page = Page::fetch(self.address)?;
        let value = |series: &str| page.value(series).unwrap_or_default();
        Ok(AuditorState {
            cpu_ns: CpuTime::of(self.service.pid()).total_ns(),
            lag_commits: value("batzen_feed_lag_commits"),
            changes: value("batzen_feed_changes_total"),
        })
    }

    /// Waits until it has checked everything. Returns how many findings are open, and how long it took.
    pub(super) fn catch_up(&mut self) -> Result<(u64, f64)> {
        let began = Instant::now();
        // Twice, because commits may be on their way.
        let mut quiet = 0;
        while quiet < 2 {
            quiet = if self.state()?.lag_commits == 0.0 { quiet + 1 } else { 0 };
            self.service.still_runs()?;
            if began.elapsed() > PATIENCE {
                return Err(BenchError::SetUp("the auditor does not catch up".into()));
            }
            std::thread::sleep(10 * PAUSE);
        }
        let seconds = began.elapsed().as_secs_f64();
        let answer =
            crate::bench::load::wire::call(self.address, &crate::bench::load::wire::get("/audit.json"))
                .map_err(|error| BenchError::set_up("read the auditor's report", error))?;
        let report: serde_json::Value = serde_json::from_slice(&answer.body)
            .map_err(|error| BenchError::WrongAnswer(format!("/audit.json: {error}")))?;
        let findings = report["findings"].as_array().map_or(1, Vec::len);
        Ok((findings as u64, seconds))
    }
}
