//! `batzen auditor dbinit`: the auditor's tables.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use anyhow::{Context, bail};
use batzen_auditor::AuditorConfig;
use batzen_auditor::books::{self, Books};
use batzen_auditor::live;
use batzen_cli_support::services::Common;
use batzen_postgres::schema::HISTORY;
use batzen_postgres::schema::dbinit::{self, DbinitOptions};
use batzen_postgres::{Connection, Target};
use batzen_service::storage::{AUDITOR, AUDITOR_COPY, Service, StoreConfig};
use batzen_store::embedded::EmbeddedStore;
use batzen_store::{Store, StoreError, TableDef};
use batzen_tables::auditor::{self, results};
use clap::Args;

use super::run::followed_copy;

#[derive(Args)]
#[command(after_help = "Examples:
  batzen auditor dbinit --config auditor.conf
  batzen auditor dbinit --config auditor.conf --restart

It can be run again at any time. An embedded store needs no preparation. With [auditor-feed], all
this is also about the copy of the exchange's rows, with the results of the checks.
With several options, it drops or restarts first, then creates the tables, then collects garbage.")]
pub(super) struct DbinitArgs {
    #[command(flatten)]
    common: Common,
    /// Forget how far the checks have come, and all their sums: all rows of the copy are checked again. Audited exchanges,
    /// deposit confirmations, signing keys, the copy and what was found stay
    #[arg(short, long)]
    restart: bool,
    /// Drop everything first. All rows are lost
    #[arg(short = 'R', long)]
    reset: bool,
    /// With --reset: do not ask on a terminal
    #[arg(short, long, requires = "reset")]
    yes: bool,
    /// Then remove what no court would accept any more: signing keys after their legal end, and the confirmations that
    /// they have signed
    #[arg(short, long)]
    gc: bool,
}

pub(super) fn run(args: &DbinitArgs) -> anyhow::Result<ExitCode> {
    let config = super::config(&args.common)?;
    let copy = followed_copy(&args.common.load()?)?;
    if args.reset && !args.yes && !confirmed(&config, copy.as_ref())? {
        eprintln!("nothing was changed");
        return Ok(ExitCode::FAILURE);
    }
    let service = config.service_store();
    for (place, tables) in [(Some(&service), &AUDITOR), (copy.as_ref(), &AUDITOR_COPY)] {
        match place {
            Some(StoreConfig::Postgres { url, .. }) => prepare(url, tables, args.reset, &config)?,
            Some(place) if args.reset => remove_store(place, tables)?,
            _ => {}
        }
    }
    // Nothing is left after a reset.
    if args.restart && !args.reset {
        restart(&config, copy.as_ref())?;
    }
    if args.gc {
        let books = Books::open(&config)?;
        let forgotten = books::collect_garbage(&books, config.clock.now())?;
        books.close()?;
        println!("signing keys removed: {}", forgotten.signing_keys);
        println!("confirmations removed: {}", forgotten.confirmations);
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks on a terminal before rows are dropped; scripts need no option.
fn confirmed(config: &AuditorConfig, copy: Option<&StoreConfig>) -> anyhow::Result<bool> {
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        return Ok(true);
    }
    eprint!(
        "This drops the auditor's rows in {}, with all deposit confirmations, which merchants show only once",
        config.service_store()
    );
    if let Some(copy) = copy {
        eprint!(
            ", and the copy of the exchange's rows in {copy}, with all findings and what was decided about them"
        );
    }
    eprint!(". Type yes: ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(answer.trim() == "yes")
}

/// Creates, migrates or resets a schema in a database.
fn prepare(url: &str, service: &Service, reset: bool, config: &AuditorConfig) -> anyhow::Result<()> {
    let target = Target::parse(url)?.application(dbinit::APPLICATION).read_write().patient();
    let mut sql =
        Connection::open_session(&target).with_context(|| format!("the database {}", target.database()))?;
    let options =
        DbinitOptions { reset, currency: Some(config.currency.to_string()), ..DbinitOptions::default() };
    let report = dbinit::dbinit(&mut sql, service.schema, service.tables, &options, &HISTORY)?;
    for action in report.actions {
        eprintln!("{action}");
    }
    Ok(())
}

/// Opens rows that no other process may have open.
fn open(place: &StoreConfig, service: &Service) -> anyhow::Result<Store> {
    match place.open(service, 1) {
        Err(StoreError::InUse(dir)) => {
            bail!("the store {} is in use: stop the auditor first", dir.display())
        }
        opened => Ok(opened?),
    }
}

/// Removes an embedded store, unless a process has it open.
fn remove_store(place: &StoreConfig, service: &Service) -> anyhow::Result<()> {
    let dir = place.dir().context("the store has no directory")?;
    if !EmbeddedStore::exists(dir) {
        return Ok(());
    }
    match place.open(service, 1) {
        Ok(store) => store.close()?,
        Err(StoreError::InUse(dir)) => {
            bail!("the store {} is in use: stop the auditor first", dir.display())
        }
        // A damaged store may go, too.
        Err(error) => tracing::warn!(%error, "the store that is removed cannot be opened"),
    }
    std::fs::remove_dir_all(dir).with_context(|| format!("cannot remove {}", dir.display()))
}

/// Empties every table that the checks fill, and that they fill again.
fn restart(config: &AuditorConfig, copy: Option<&StoreConfig>) -> anyhow::Result<()> {
    let is_kept = |table: &&&'static TableDef| auditor::KEPT.iter().any(|kept| kept.id == table.id);
    let own: Vec<&'static TableDef> = auditor::ALL.iter().filter(|table| !is_kept(table)).copied().collect();
    let service = config.service_store();
    let copied = copy.filter(|place| place.dir().is_none_or(EmbeddedStore::exists));
    let mut removed = 0;
    let parts = [(Some(&service), &AUDITOR, own.as_slice()), (copied, &AUDITOR_COPY, results::RECOMPUTED)];
    for (place, service, tables) in parts {
        let Some(place) = place.filter(|_| !tables.is_empty()) else { continue };
        let store = open(place, service)?;
        removed += live::clear(&store, tables)?;
        store.close()?;
    }
    if removed > 0 {
        eprintln!("{removed} rows of the checks are removed");
    }
    Ok(())
}
