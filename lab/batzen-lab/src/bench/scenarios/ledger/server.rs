//! The ledger under test, in a separate process.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::Transport;
use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::affinity::Placement;
use crate::bench::load::scrape::Page;
use crate::bench::scenarios::Context;
use crate::bench::scenarios::service::{Service, command};
use crate::bench::scenarios::world::{free_port, local};

/// Time that the server may take to start.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct LedgerServer {
    service: Service,
    http: SocketAddr,
    /// Removed in the end.
    _socket: Option<tempfile::TempDir>,
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
        let (tcp, http) = (local(free_port()?), local(free_port()?));
        let words = ["ledger", "serve", "--http", &http.to_string(), "--data"];
        let mut command = command(&context.program, dir, &words);
        command.arg(dir.join("ledger"));
        let (_socket, url) = match transport {
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
        let mut service = Service::spawn("ledger", command, dir, &placement.server)?;
        service.wait_until_ready(http, "/metrics", PATIENCE, &context.interrupted)?;
        Ok(Self { service, http, _socket, url })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.service.pid()
    }

    /// The number of batches that the binary server has handled, and of events in them.
    pub(super) fn batches(&self) -> Option<(f64, f64)> {
        let page = Page::fetch(self.http).ok()?;
        let of = |what| page.value(&format!("batzen_ledger_net_batch_events_{what}"));
        Some((of("count")?, of("sum")?))
    }

    /// Bytes written to the journal so far; `None` if the ledger does not tell. Segment sizes would be misleading,
    /// because segments are allocated in advance.
    pub(super) fn disk_bytes(&self) -> Option<u64> {
        let page = Page::fetch(self.http).ok()?;
        page.value("batzen_store_written_bytes_total").map(|bytes| bytes as u64)
    }

    pub(crate) fn still_runs(&mut self) -> Result<()> {
        self.service.still_runs()
    }

    /// Terminates it, and waits until it has ended.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.service.terminate()
    }
}
