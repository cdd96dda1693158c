//! Garbage collection: `batzen exchange dbinit -g`.

use std::sync::Arc;

use anyhow::{Context, bail};
use batzen_cli_support::{progress, services};
use batzen_engine::Clock;
use batzen_exchange::config::ExchangeConfig;
use batzen_exchange::core::Core;
use batzen_exchange::error::StartError;
use batzen_exchange::workers::garbage::{self, Report};
use batzen_exchange::workers::{WorkerError, link};
use batzen_store::StoreError;
use serde_json::{Value, json};

use super::work_and_close;

/// Collects garbage: on the database, in the service that has the embedded store open, or in this process.
pub(super) async fn collect(config: ExchangeConfig, clock: Arc<dyn Clock>) -> anyhow::Result<Report> {
    let stop = services::stop_signal()?;
    if let Some(dir) = config.store.dir() {
        if !dir.exists() {
            return Ok(Report::default());
        }
        if let Some(report) = link::collect_in_service(&link::socket(&config.runtime_dir)).await? {
            return Ok(report);
        }
    }
    let opened = tokio::task::spawn_blocking(move || Core::open(config, clock)).await;
    let core = match opened.context("opening the store")? {
        Err(StartError::Store(StoreError::InUse(dir))) => {
            bail!("the store {} is in use by a service that does not answer: stop it first", dir.display())
        }
        other => other?,
    };
    let counter = Arc::new(progress::Counter::new(progress::is_interactive(), "rows examined:"));
    let shown = Arc::clone(&counter);
    let set = move |report: &Report| {
        shown.set(report.named().iter().map(|(_, swept)| swept.seen).sum());
    };
    let ended = work_and_close(core, stop, async |core| garbage::run(core, set).await).await?;
    drop(counter);
    match ended {
        Err(WorkerError::Stopped) => bail!("interrupted: run it again to collect the rest"),
        other => Ok(other?),
    }
}

pub(super) fn json(report: &Report) -> Value {
    let kinds = report.named().map(|(name, swept)| {
        let counts = json!({ "seen": swept.seen, "removed": swept.removed, "rows": swept.rows });
        (name.to_owned(), counts)
    });
    Value::Object(kinds.into_iter().collect())
}

/// The report as a table.
pub(super) fn text(report: &Report) -> String {
    let mut table = format!("{:<20} {:>12} {:>12} {:>12}\n", "", "examined", "removed", "rows");
    for (name, swept) in report.named() {
        table += &format!("{name:<20} {:>12} {:>12} {:>12}\n", swept.seen, swept.removed, swept.rows);
    }
    table
}
