//! `batzen auditor dbinit`: the auditor's tables.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use anyhow::{Context, bail};
use batzen_auditor::AuditorConfig;
use batzen_auditor::books::{self, Books};
use batzen_cli_support::services::Common;
use batzen_postgres::schema::HISTORY;
use batzen_postgres::schema::dbinit::{self, DbinitOptions};
use batzen_postgres::{Connection, Target};
use batzen_storage::{AUDITOR, StoreConfig};
use batzen_store::embedded::EmbeddedStore;
use batzen_store::{StoreError, TableDef};
use batzen_tables::auditor;
use clap::Args;

#[derive(Args)]
#[command(after_help = "Examples:
  batzen auditor dbinit --config auditor.conf
  batzen auditor dbinit --config auditor.conf --restart

It can be run again at any time. An embedded store needs no preparation.
With several options, it drops or restarts first, then creates the tables, then collects garbage.")]
pub struct DbinitArgs {
    #[command(flatten)]
    common: Common,
    /// Forget how far the checks have come, and all their sums. Audited exchanges, deposit confirmations and signing
    /// keys stay
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

pub fn run(args: &DbinitArgs) -> anyhow::Result<ExitCode> {
    let config = super::config(&args.common)?;
    if args.reset && !args.yes && !confirmed(&config)? {
        eprintln!("nothing was changed");
        return Ok(ExitCode::FAILURE);
    }
    match &config.store {
        StoreConfig::Postgres { url, .. } => prepare(url, args.reset, &config)?,
        _ if args.reset => remove_store(&config)?,
        _ => {}
    }
    // Nothing is left after a reset.
    if args.restart && !args.reset {
        restart(&config)?;
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
fn confirmed(config: &AuditorConfig) -> anyhow::Result<bool> {
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        return Ok(true);
    }
    eprint!(
        "This drops the auditor's rows in {}, with all deposit confirmations, which merchants show only once. Type yes: ",
        config.service_store()
    );
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(answer.trim() == "yes")
}

/// Creates, migrates or resets the schema in a database.
fn prepare(url: &str, reset: bool, config: &AuditorConfig) -> anyhow::Result<()> {
    let target = Target::parse(url)?.application(dbinit::APPLICATION).read_write().patient();
    let mut sql =
        Connection::open_session(&target).with_context(|| format!("the database {}", target.database()))?;
    let options =
        DbinitOptions { reset, currency: Some(config.currency.to_string()), ..DbinitOptions::default() };
    let report = dbinit::dbinit(&mut sql, AUDITOR.schema, auditor::ALL, &options, &HISTORY)?;
    for action in report.actions {
        eprintln!("{action}");
    }
    Ok(())
}

/// Removes the embedded store, unless a service has it open.
fn remove_store(config: &AuditorConfig) -> anyhow::Result<()> {
    let place = config.service_store();
    let dir = place.dir().context("the store has no directory")?;
    if !EmbeddedStore::exists(dir) {
        return Ok(());
    }
    match place.open(&AUDITOR, 1) {
        Ok(store) => store.close()?,
        Err(StoreError::InUse(dir)) => {
            bail!("the store {} is in use: stop the auditor first", dir.display())
        }
        // A damaged store may go, too.
        Err(error) => tracing::warn!(%error, "the store that is removed cannot be opened"),
    }
    std::fs::remove_dir_all(dir).with_context(|| format!("cannot remove {}", dir.display()))
}

/// Empties every table that the checks fill.
fn restart(config: &AuditorConfig) -> anyhow::Result<()> {
    let is_kept = |table: &&&'static TableDef| auditor::KEPT.iter().any(|kept| kept.id == table.id);
    let tables: Vec<&'static TableDef> =
        auditor::ALL.iter().filter(|table| !is_kept(table)).copied().collect();
    if tables.is_empty() {
        return Ok(());
    }
    let store = match config.service_store().open(&AUDITOR, 1) {
        Err(StoreError::InUse(dir)) => {
            bail!("the store {} is in use: stop the auditor first", dir.display())
        }
        opened => opened?,
    };
    let removed = books::clear(&store, &tables)?;
    store.close()?;
    eprintln!("{removed} rows of the checks are removed");
    Ok(())
}
