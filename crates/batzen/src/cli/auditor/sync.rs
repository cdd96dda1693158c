//! `batzen auditor sync`: follow an exchange into the auditor's own store.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use batzen_auditor::audit::{Severity, Subject};
use batzen_auditor::checks::CheckConfig;
use batzen_auditor::live::{Followed, Following, FollowingError, SourceConfig, SourceOptions};
use batzen_cli_support::numbers;
use batzen_cli_support::services::{self, Common};
use batzen_config::Config;
use batzen_feed::client::{self, Comparison, FeedError};
use batzen_feed::config::ServerConfig;
use batzen_feed::metrics::Progress;
use batzen_postgres::Target;
use batzen_postgres::replica::Replica;
use batzen_service::storage::StoreConfig;
use batzen_signer::channel;
use batzen_store::{Store, StoreError};
use batzen_tables::auditor::results::AuditStateRow;
use clap::Args;
use serde_json::json;

use super::run::own_copy;
use crate::cli::known_options;

/// Length of one wait for changes; signals are noticed after it.
const WAIT: Duration = Duration::from_millis(200);
/// The pause before another attempt to connect.
const PAUSE: Duration = Duration::from_secs(1);

/// Follows an exchange and keeps a copy of all rows that auditors examine, and checks each change. Both sides sign a hash
/// chain over what was shipped, so that an exchange that changes or loses any of it is found out.
#[derive(Args)]
#[command(after_help = "Examples:
  batzen auditor sync -c auditor.conf
  batzen auditor sync -c auditor.conf --once --compare --json
  batzen auditor sync -s exchange.conf -d auditor.conf -t

With -s and -d, the exchange's own configuration says where its rows are: in the database
[exchangedb-postgres] CONFIG if [exchange] DB is postgres, otherwise behind [exchange-feed] LISTEN,
with the key KEY_FILE. [auditor-feed] EXCHANGE and EXCHANGE_KEY in it take precedence, for an
auditor who must not read that key or reaches the exchange elsewhere.

Without [exchange] MASTER_PUBLIC_KEY and BASE_URL, rows are only copied. Reads [auditor-feed]
EXCHANGE, EXCHANGE_KEY and KEY_FILE. The copy is where [auditor-feed] DB says, or [auditor] DB: in
[auditordb-embedded] DIR, or in the database [auditordb-postgres] CONFIG. If EXCHANGE is the address
of a PostgreSQL database, its publication is followed: it makes the replication slot, copies all
rows, and follows the changes. `batzen signer keygen FILE` makes a key. The exchange's configuration
has [exchange-feed] LISTEN, KEY_FILE and AUDITORS. See docs/internals/feed.md.")]
pub(super) struct SyncArgs {
    #[command(flatten)]
    common: Common,
    /// The exchange's configuration: it says what is followed, in place of the auditor's
    #[arg(short, long, value_name = "FILE", requires = "destination")]
    source: Option<PathBuf>,
    /// The auditor's configuration, which is another file
    #[arg(short, long, value_name = "FILE", requires = "source", conflicts_with = "config")]
    destination: Option<PathBuf>,
    /// Rows to store in one commit, about, while a database is followed; its transactions stay whole. A serial stream
    /// brings batches of its own size [default: what is quickest]
    #[arg(short, long, value_name = "N")]
    batch: Option<NonZeroU32>,
    /// End when the copy has everything that the exchange had at the start
    #[arg(short = 't', long, visible_alias = "test")]
    once: bool,
    /// Then compare all rows with the exchange's
    #[arg(long, requires = "once")]
    compare: bool,
    /// Copy rows without checking them; `auditor run` does it later
    #[arg(long)]
    copy_only: bool,
    /// Drop the replication slot, so that the exchange's database keeps nothing more for this auditor, and end
    #[arg(long, conflicts_with_all = ["once", "compare"])]
    drop_slot: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `batzen auditor sync`.
///
/// # Errors
/// Any failure, as one line.
pub(super) fn run(args: SyncArgs) -> anyhow::Result<ExitCode> {
    services::block_on(sync(args))
}

async fn sync(args: SyncArgs) -> anyhow::Result<ExitCode> {
    let stop = services::stop_signal()?;
    let ini = configuration(&args)?;
    let source = SourceConfig::from_ini(&ini)?;
    let clock = args.common.timetravel.clock();
    if args.drop_slot {
        return drop_slot(&source);
    }
    let mut options = source.options(Arc::new(move || clock.now()))?;
    if let SourceOptions::Database(options) = &mut options {
        options.rows_at_once = args.batch;
    }
    let name = source.name();
    let store = own_copy(&ini)?;
    if let Some(dir) = store.dir() {
        services::directory(dir)?;
    }
    let is_named = ini.text("exchange", "MASTER_PUBLIC_KEY").is_some();
    let subject = if args.copy_only || !is_named {
        eprintln!("batzen: rows are copied and not checked");
        None
    } else {
        Some(CheckConfig::from_ini(&ini, None)?.subject)
    };
    let is_stopping = Arc::new(AtomicBool::new(false));
    let stopping = Arc::clone(&is_stopping);
    let follow = move || {
        let Some(store) = open(&store, args.once, &stopping)? else { return Ok(ExitCode::SUCCESS) };
        let ended = follow(&args, &name, (options, subject), &store, &stopping);
        store.close().context("the auditor's store")?;
        ended
    };
    let mut following = tokio::task::spawn_blocking(follow);
    tokio::select! {
        ended = &mut following => return ended.context("following the exchange")?,
        () = stop => is_stopping.store(true, Ordering::Relaxed),
    }
    following.await.context("following the exchange")?
}

/// The auditor's configuration; `[auditor-feed]` says what is followed.
fn configuration(args: &SyncArgs) -> anyhow::Result<Config> {
    let load = |path: Option<&PathBuf>| {
        let config = path.or(args.common.config.as_ref()).cloned();
        let ini = Common { config, timetravel: args.common.timetravel }.load()?;
        known_options::warn(&ini);
        anyhow::Ok(ini)
    };
    let (Some(source), Some(destination)) = (&args.source, &args.destination) else { return load(None) };
    let place = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if place(source) == place(destination) {
        bail!(
            "-s and -d name the same file {}: one configures the exchange, the other the auditor",
            source.display()
        );
    }
    let exchange = load(Some(source))?;
    let mut ini = load(Some(destination))?;
    let followed = followed(&exchange).with_context(|| source.display().to_string())?;
    for (option, value) in followed {
        ini.set("auditor-feed", option, &value)?;
    }
    Ok(ini)
}

/// Reads where an exchange's rows are from its configuration, as options of `[auditor-feed]`.
fn followed(exchange: &Config) -> anyhow::Result<Vec<(&'static str, String)>> {
    let [place, key] =
        ["EXCHANGE", "EXCHANGE_KEY"].map(|option| exchange.get::<String>("auditor-feed", option));
    let (place, mut key) = (place?, key?);
    let place = match (place, StoreConfig::database_of(exchange, "exchange")?) {
        (Some(place), _) => place,
        (None, Some(StoreConfig::Postgres { url, .. })) => url,
        (None, _) => {
            let Some(stream) = ServerConfig::from_ini(exchange)? else {
                bail!(
                    "the exchange ships nothing to auditors: set [exchange-feed] LISTEN, or [exchange] DB = postgres"
                );
            };
            if key.is_none() {
                let secret = channel::load_key(&stream.key_file);
                let secret = secret.context("without [auditor-feed] EXCHANGE_KEY")?;
                key = Some(secret.public_key().to_string());
            }
            stream.listen[0].to_string()
        }
    };
    let key = key.map(|key| ("EXCHANGE_KEY", key));
    Ok(std::iter::once(("EXCHANGE", place)).chain(key).collect())
}

/// Opens the copy, and waits for an unreachable database. `None` if it is to stop before.
fn open(place: &StoreConfig, once: bool, is_stopping: &AtomicBool) -> anyhow::Result<Option<Store>> {
    let mut has_told = false;
    while !is_stopping.load(Ordering::Relaxed) {
        match place.open(&batzen_service::storage::AUDITOR_COPY, 1) {
            Err(StoreError::InUse(dir)) => {
                bail!("the store {} is in use: another process follows the exchange", dir.display())
            }
            Err(error @ StoreError::Unavailable(_)) if !once => {
                if !std::mem::replace(&mut has_told, true) {
                    eprintln!("batzen: {error}; trying again");
                }
                std::thread::sleep(PAUSE);
            }
            opened => return Ok(Some(opened?)),
        }
    }
    Ok(None)
}

/// Gives up following a database.
fn drop_slot(source: &SourceConfig) -> anyhow::Result<ExitCode> {
    let SourceConfig::Database { url, schema, slot } = source else {
        bail!("--drop-slot: the exchange is not followed through a database");
    };
    let mut replica = Replica::open(&Target::parse(url)?, schema, &[], slot)?;
    replica.drop_slot()?;
    println!("the database keeps nothing more as {slot}");
    Ok(ExitCode::SUCCESS)
}

fn follow(
    args: &SyncArgs,
    address: &str,
    (options, subject): (SourceOptions, Option<Subject>),
    store: &Store,
    is_stopping: &AtomicBool,
) -> anyhow::Result<ExitCode> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let mut following = Following::new(options, store.clone(), subject, threads)?;
    let progress = Arc::clone(&following.status().feed);
    let mut told = String::new();
    // With `--once`: where the copy must get.
    let mut target = None;
    let (mut comparison, mut has_asked) = (None, false);
    while !is_stopping.load(Ordering::Relaxed) {
        match following.step(WAIT) {
            Ok(Followed::Batch { is_state }) => {
                if is_state {
                    target.get_or_insert(progress.get().end);
                }
            }
            Ok(Followed::Compared(compared)) => comparison = Some(compared),
            Ok(Followed::Idle) => {}
            Err(FollowingError::Feed(error)) if error.is_final() => return failed(args, store, &error),
            Err(error) if error.is_final() => bail!("{error}"),
            Err(error) => {
                let text = error.to_string();
                // A new connection has to be asked again.
                has_asked = false;
                if text != told {
                    eprintln!("batzen: {text}; trying again");
                    told = text;
                }
                let until = Instant::now() + PAUSE;
                while Instant::now() < until && !is_stopping.load(Ordering::Relaxed) {
                    std::thread::sleep(WAIT);
                }
                continue;
            }
        }
        let now = progress.get();
        if now.is_connected && !told.is_empty() {
            eprintln!("batzen: connected to {address} again");
            told.clear();
        }
        if args.once && following.is_up_to_date() {
            target.get_or_insert(now.end);
        }
        if args.once && target.is_some_and(|target| now.next >= target) {
            if !args.compare || comparison.is_some() {
                break;
            }
            if !std::mem::replace(&mut has_asked, true) && !following.ask_comparison() {
                bail!("--compare: a database cannot be asked for its digest");
            }
        }
    }
    let checked = following.live()?.and_then(|live| live.state().cloned());
    let kept = following.findings()?;
    let open =
        kept.iter().filter(|kept| kept.is_open() && kept.finding.severity() == Severity::Finding).count();
    let checked = checked.map(|state| Checked { state, open });
    report(args, store, &progress.get(), (comparison, checked))
}

/// The results of the checks.
struct Checked {
    state: AuditStateRow,
    /// Number of open findings.
    open: usize,
}

/// Reports why the exchange cannot be followed.
fn failed(args: &SyncArgs, store: &Store, error: &FeedError) -> anyhow::Result<ExitCode> {
    let FeedError::Finding { kind, text } = error else { bail!("{error}") };
    if args.json {
        let next = client::position(store)?.map(|row| row.next);
        println!("{:#}", json!({ "finding": kind.name(), "text": text, "next": next }));
    }
    eprintln!("batzen: {text}");
    Ok(ExitCode::FAILURE)
}

fn report(
    args: &SyncArgs,
    store: &Store,
    progress: &Progress,
    (comparison, checked): (Option<Comparison>, Option<Checked>),
) -> anyhow::Result<ExitCode> {
    let position = client::position(store)?;
    if args.json {
        let compared = comparison.map(|compared| {
            json!({ "rows": compared.rows, "exchange_rows": compared.exchange_rows, "equal": compared.is_equal })
        });
        let facts = json!({
            "next": position.as_ref().map(|row| row.next),
            "head": position.as_ref().map(|row| row.head.to_string()),
            "whole": position.as_ref().is_some_and(|row| row.is_whole),
            "end": progress.end,
            "lag_commits": progress.lag_commits(),
            "batches": progress.batches,
            "changes": progress.changes,
            "snapshots": progress.snapshots,
            "compared": compared,
            "checked": checked.as_ref().map(|checked| json!({
                "next": checked.state.next,
                "whole": checked.state.whole,
                "rows": checked.state.rows,
                "signatures": checked.state.signatures,
                "open_findings": checked.open,
            })),
        });
        println!("{facts:#}");
    } else {
        match position {
            Some(row) if row.is_whole => println!(
                "the copy has all commits before {}, head {}; {} changes applied",
                row.next,
                row.head,
                numbers::count(progress.changes)
            ),
            Some(_) => println!("the snapshot is not complete yet"),
            None => println!("nothing was received yet"),
        }
        if let Some(checked) = &checked {
            println!(
                "{} rows and {} signatures checked, {} findings open",
                numbers::count(checked.state.rows),
                numbers::count(checked.state.signatures),
                checked.open
            );
        }
        if let Some(compared) = comparison {
            let verdict = if compared.is_equal { "the same" } else { "NOT the same" };
            println!("{} rows compared: {verdict}", numbers::count(compared.exchange_rows));
        }
    }
    let is_well = comparison.is_none_or(|compared| compared.is_equal);
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
