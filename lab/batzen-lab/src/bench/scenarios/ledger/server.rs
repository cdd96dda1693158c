//! The ledger under test, in a separate process.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::Transport;
use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::affinity::{Placement, on_cores};
use crate::bench::load::wire;
use crate::bench::scenarios::Context;
use crate::bench::scenarios::world::{free_port, local};

/// Time that the server may take to start.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);

pub(crate) struct LedgerServer {
    child: Child,
    log: PathBuf,
    http: SocketAddr,
    socket: Option<tempfile::TempDir>,
    pub(crate) url: String,
}

impl LedgerServer {
    /// Starts it on the server's cores, with its data and its log in a directory, and waits until it answers.
    pub(crate) fn start(
        context: &Context,
        placement: &Placement,
        dir: &Path,
        transport: Transport,
    ) -> Result<Self> {
        let (data, log) = (dir.join("ledger"), dir.join("ledger.log"));
        let file = File::create(&log).map_err(BenchError::io(&log))?;
        let (tcp, http) = (local(free_port()?), local(free_port()?));
        let mut command = Command::new(&context.program);
        command.args(["ledger", "serve", "--http", &http.to_string(), "--data"]).arg(&data);
        let (socket, url) = match transport {
            Transport::Tcp => {
                command.args(["--tcp", &tcp.to_string()]);
                (None, format!("tcp://{tcp}"))
            }
            Transport::Unix => {
                let dir = tempfile::tempdir().map_err(|error| BenchError::set_up("no directory", error))?;
                let path = dir.path().join("ledger.sock");
                command.args(["--no-tcp", "--unix"]).arg(&path);
                (Some(dir), format!("unix://{}", path.display()))
            }
        };
        command.env("NO_COLOR", "1").stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let child = on_cores(&placement.server, || command.spawn())?
            .map_err(|error| BenchError::set_up("cannot start the ledger", error))?;
        let mut server = Self { child, log, http, socket, url };
        let deadline = Instant::now() + PATIENCE;
        while server.metrics().is_none() {
            server.still_runs()?;
            if context.interrupted.load(Ordering::Relaxed) {
                return Err(BenchError::Interrupted);
            }
            if Instant::now() > deadline {
                return Err(BenchError::SetUp("the ledger does not answer /metrics".to_owned()));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(server)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn metrics(&self) -> Option<String> {
        let answer =
            wire::call(self.http, &wire::get("/metrics")).ok().filter(|answer| answer.status == 200)?;
        String::from_utf8(answer.body).ok()
    }

    /// The number of batches that the binary server has handled, and of events in them.
    pub(super) fn batches(&self) -> Option<(f64, f64)> {
        let text = self.metrics()?;
        let of = |what| value(&text, &format!("batzen_ledger_net_batch_events_{what}"));
        Some((of("count")?, of("sum")?))
    }

    /// Bytes written to the journal so far; `None` if the ledger does not tell. Segment sizes would be misleading,
    /// because segments are allocated in advance.
    pub(super) fn disk_bytes(&self) -> Option<u64> {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of bytes")]
        value(&self.metrics()?, "batzen_store_written_bytes_total").map(|bytes| bytes as u64)
    }

    pub(crate) fn still_runs(&mut self) -> Result<()> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.ended(&status.to_string())),
            Err(error) => Err(self.ended(&error.to_string())),
        }
    }

    fn ended(&self, status: &str) -> BenchError {
        let said = std::fs::read_to_string(&self.log).unwrap_or_default();
        let last_words: Vec<&str> = said.trim().lines().rev().take(3).collect();
        BenchError::Ended {
            name: "the ledger".to_owned(),
            status: status.to_owned(),
            last_words: last_words.join("; "),
        }
    }

    /// Terminates it, and waits until it has ended.
    pub(crate) fn stop(mut self) -> Result<()> {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // It may have ended already; waiting for it will show.
            let _ = kill_process(pid, Signal::TERM);
        }
        let status = self.child.wait().map_err(|error| BenchError::set_up("the ledger", error))?;
        drop(self.socket.take());
        if status.success() { Ok(()) } else { Err(self.ended(&status.to_string())) }
    }
}

impl Drop for LedgerServer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The value of a metric without labels.
fn value(page: &str, name: &str) -> Option<f64> {
    let line = page.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')))?;
    line.rsplit_once(' ')?.1.parse().ok()
}
