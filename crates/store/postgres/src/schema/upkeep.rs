//! A thread that maintains the tables and reads the replication lag as long as a service has them open.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use batzen_metrics::{Counter, Page};
use batzen_store::TableDef;

use super::error::SchemaError;
use super::maintain::{MaintainOptions, maintain};
use super::replication::{self, LagMetrics};
use crate::{Connection, Target};

/// Interval at which the lag is read.
const LAG_PERIOD: Duration = Duration::from_secs(10);

/// Interval at which the tables are maintained, by one of the nodes.
const MAINTAIN_PERIOD: Duration = Duration::from_secs(600);

/// Time that shutdown waits for the thread. It does not wait for the statistics of a large table.
const END_MAX: Duration = Duration::from_secs(1);

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Upkeep {
    shared: Arc<UpkeepState>,
    /// Carries nothing; it closes when the thread has ended.
    ended: Mutex<Receiver<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct UpkeepState {
    stopped: Mutex<bool>,
    wake: Condvar,
    lag: LagMetrics,
    failures: Counter,
}

impl Upkeep {
    /// Starts the thread, with its own connection.
    ///
    /// # Errors
    /// When the operating system refuses a thread.
    pub(crate) fn start(
        target: &Target,
        schema: &str,
        tables: &'static [&'static TableDef],
    ) -> std::io::Result<Self> {
        let shared = Arc::new(UpkeepState::default());
        let (end, ended) = sync_channel(0);
        let (theirs, target, schema) = (
            Arc::clone(&shared),
            target.clone().application("batzen-upkeep").read_write().patient(),
            schema.to_owned(),
        );
        let thread = std::thread::Builder::new().name("upkeep".to_owned()).spawn(move || {
            theirs.run(&target, &schema, tables);
            drop(end);
        })?;
        Ok(Self { shared, ended: Mutex::new(ended), thread: Some(thread) })
    }

    pub(crate) fn write_metrics(&self, page: &mut Page) {
        self.shared.lag.write(page);
        page.counter(
            "batzen_postgres_upkeep_failures_total",
            "How often the maintenance of the tables or a look at their replication failed.",
            self.shared.failures.get(),
        );
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        *self.shared.stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.wake.notify_all();
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(END_MAX) == Err(RecvTimeoutError::Disconnected)
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

impl UpkeepState {
    fn run(&self, target: &Target, schema: &str, tables: &[&'static TableDef]) {
        let mut connection = None;
        let mut next = Instant::now();
        let mut has_failed = false;
        loop {
            let maintains = Instant::now() >= next;
            match self.once(&mut connection, target, schema, tables, maintains) {
                Ok(()) => {
                    has_failed = false;
                    if maintains {
                        next = Instant::now() + MAINTAIN_PERIOD;
                    }
                }
                Err(error) => {
                    self.failures.inc();
                    // Log only once while the server is down or the role lacks rights.
                    if !std::mem::replace(&mut has_failed, true) {
                        tracing::warn!(%error, "the tables of {schema} could not be maintained; trying again later");
                    }
                    connection = None;
                }
            }
            let stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
            let waited = self.wake.wait_timeout_while(stopped, LAG_PERIOD, |stopped| !*stopped);
            if *waited.unwrap_or_else(PoisonError::into_inner).0 {
                return;
            }
        }
    }

    fn once(
        &self,
        connection: &mut Option<Connection>,
        target: &Target,
        schema: &str,
        tables: &[&'static TableDef],
        maintains: bool,
    ) -> Result<(), SchemaError> {
        let sql = match connection {
            Some(sql) => sql,
            None => connection.insert(Connection::open(target)?),
        };
        self.lag.set(replication::lag(sql)?);
        if maintains {
            let report = maintain(sql, schema, tables, &MaintainOptions::default())?;
            tracing::debug!(?report, "maintained the tables of {schema}");
        }
        Ok(())
    }
}
