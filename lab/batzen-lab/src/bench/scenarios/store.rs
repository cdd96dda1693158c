//! store: what a row costs in the access patterns of payments and of aggregation, without rules or lane.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::time::Instant;

use batzen_crypto::{DenomSignature, EddsaPublicKey, EddsaSignature, HashCode, WireSalt, Wtid};
use batzen_protocol::{Money, Timestamp};
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::{ChangeSet, CommitOutcome, Store, StoreError};
use batzen_tables::exchange::{
    ALL, CoinKey, CoinRow, Coins, DenomSerial, DepositKey, DepositRow, DepositTarget, Deposits, PaytoHash,
    ready_position,
};
use clap::Args;
use serde_json::json;

use super::Context;
use super::workers::{RunDirectory, Shape, blank, money};
use crate::bench::BenchError;
use crate::bench::load::affinity::on_cores;
use crate::bench::load::procfs::own_threads_ns;
use crate::bench::load::random::Numbers;
use crate::bench::results::result::{BytesPerOp, LimitedBy, Run};
use crate::bench::scenarios::options::RunOptions;

/// Read and write rows of deposits
#[derive(Args, Clone, Debug)]
pub struct StoreArgs {
    /// Deposits, each with a coin
    #[arg(long, value_name = "N", default_value_t = 300_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) deposits: u64,
    /// Number of merchants, who receive the deposits in turn
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) merchants: u64,
    /// Deposits per commit
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) batch: u64,
    /// Seed of all generated data
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Where to run, and where to put the result
    #[command(flatten)]
    pub run: RunOptions,
}

/// The cost of one part of the run.
struct Phase {
    name: &'static str,
    rows: u64,
    wall_s: f64,
    cpu_s: f64,
    written: u64,
}

/// Runs the scenario. An operation is a row written: an insert of a deposit or a coin, or an update of a
/// deposit.
///
/// # Errors
/// When it cannot produce a result.
pub fn run(args: &StoreArgs, context: &Context) -> Result<Run, BenchError> {
    let run_dir = RunDirectory::new("store", &args.run)?;
    let cores = run_dir.placement.server.clone();
    let (phases, index_bytes) = on_cores(&cores, || {
        // A separate thread has its own CPU time.
        let work = || phases(args, &run_dir).map_err(|error| BenchError::set_up("store", error));
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("bench-store".to_owned()).spawn_scoped(scope, work);
            let thread = thread.map_err(|error| BenchError::set_up("no thread", error))?;
            thread.join().map_err(|_| BenchError::SetUp("the store broke down".to_owned()))?
        })
    })??;
    let written = phases.iter().filter(|phase| phase.written > 0);
    let (rows, wall_s, cpu_s, bytes) =
        written.fold((0, 0.0, 0.0, 0), |(rows, wall_s, cpu_s, bytes), phase| {
            (rows + phase.rows, wall_s + phase.wall_s, cpu_s + phase.cpu_s, bytes + phase.written)
        });
    let shape = Shape {
        scenario: "store",
        title: format!("store, {} deposits, {} a commit", args.deposits, args.batch),
        unit: "rows",
        parameters: BTreeMap::from([
            ("deposits".to_owned(), json!(args.deposits)),
            ("merchants".to_owned(), json!(args.merchants)),
            ("batch".to_owned(), json!(args.batch)),
        ]),
        remarks: vec!["one thread, without rules, lane and HTTP; CPU time is that thread's alone".to_owned()],
    };
    let mut result = blank(context, &run_dir.placement, shape, rows, wall_s);
    result.limited_by = LimitedBy::Server;
    result.cpu_us_per_op = Some(cpu_s * 1e6 / rows as f64);
    let per_deposit = |bytes: u64| bytes as f64 / args.deposits as f64;
    result.bytes_per_op =
        Some(BytesPerOp { disk: bytes as f64 / rows as f64, ram: index_bytes as f64 / rows as f64 });
    for phase in &phases {
        let mut put = |what: &str, value: f64| result.extra.insert(format!("{}_{what}", phase.name), value);
        put("rows_per_s", phase.rows as f64 / phase.wall_s);
        put("cpu_us_per_row", phase.cpu_s * 1e6 / phase.rows as f64);
        put("bytes_per_deposit", per_deposit(phase.written));
    }
    result.extra.insert("open_deposit_bytes_index".to_owned(), per_deposit(index_bytes));
    Ok(Run { path: run_dir.directory.clone(), result, series: Vec::new(), latency: Vec::new() })
}

fn cpu_s() -> f64 {
    own_threads_ns("bench-store").values().sum::<u64>() as f64 / 1e9
}

fn phases(args: &StoreArgs, run_dir: &RunDirectory) -> Result<(Vec<Phase>, u64), StoreError> {
    let store = Store::new(EmbeddedStore::open(run_dir.world.join("store"), ALL, Options::default())?);
    let mut random = Numbers::new(args.seed);
    let merchants: Vec<DepositTarget> = (0..args.merchants)
        .map(|_| DepositTarget {
            h_payto: PaytoHash::from_bytes(random.bytes()),
            merchant_pub: EddsaPublicKey::from_bytes(random.bytes()),
        })
        .collect();
    let mut phases = Vec::new();
    let mut measured = |name, rows, work: &mut dyn FnMut() -> Result<(), StoreError>| {
        let (written, cpu, begin) = (store.stats().written_bytes_total, cpu_s(), Instant::now());
        work()?;
        let wall_s = begin.elapsed().as_secs_f64();
        let written = store.stats().written_bytes_total - written;
        phases.push(Phase { name, rows, wall_s, cpu_s: cpu_s() - cpu, written });
        Ok::<_, StoreError>(())
    };

    let sets: Vec<ChangeSet> = (0..args.deposits)
        .step_by(usize::try_from(args.batch).unwrap_or(usize::MAX))
        .map(|first| {
            let mut changes = ChangeSet::new();
            for n in first..args.deposits.min(first + args.batch) {
                insert(&mut changes, &merchants[(n % args.merchants) as usize], &mut random);
            }
            changes
        })
        .collect();
    let inserts = 2 * args.deposits;
    measured("insert", inserts, &mut || sets.iter().try_for_each(|changes| commit(&store, changes)))?;
    drop(sets);
    let index_bytes = store.stats().index_bytes;

    let mut seen = 0;
    measured("queue", args.deposits, &mut || {
        let every = Bound::Unbounded;
        store.positions::<Deposits>(Deposits::BY_READY, every, every, |position| {
            seen += u64::from(ready_position(position).is_ok());
            ControlFlow::Continue(())
        })
    })?;
    assert_eq!(seen, args.deposits, "every deposit is open");

    let mut units = Vec::with_capacity(merchants.len());
    measured("read", args.deposits, &mut || {
        for target in &merchants {
            let (from, to) = target.range(Timestamp::NEVER);
            let (from, to) = (Bound::Included(from), Bound::Excluded(to));
            units.push(store.range_positions::<Deposits>(
                Deposits::BY_TARGET,
                from,
                to,
                usize::MAX,
                false,
            )?);
        }
        Ok(())
    })?;

    let mut changes = ChangeSet::new();
    let mut sets = Vec::new();
    for unit in units {
        let wtid = Wtid::from_bytes(random.bytes());
        for found in unit {
            let row = DepositRow { wtid: Some(wtid), ..found.row.clone() };
            changes.update_read::<Deposits>(&found.key, (&found.row, Some(found.version)), &row);
            if changes.len() as u64 >= args.batch {
                sets.push(std::mem::take(&mut changes));
            }
        }
    }
    sets.push(changes);
    measured("aggregate", args.deposits, &mut || {
        sets.iter().try_for_each(|changes| commit(&store, changes))
    })?;
    store.close()?;
    Ok((phases, index_bytes))
}

fn commit(store: &Store, changes: &ChangeSet) -> Result<(), StoreError> {
    match store.commit(changes)? {
        CommitOutcome::Committed => Ok(()),
        CommitOutcome::Conflict(rows) => Err(StoreError::Backend(format!("{} rows exist", rows.len()))),
    }
}

fn insert(changes: &mut ChangeSet, target: &DepositTarget, random: &mut Numbers) {
    let coin_pub = EddsaPublicKey::from_bytes(random.bytes());
    changes.insert::<Coins>(&CoinKey { coin_pub }, &coin_row(random));
    let h_contract_terms = HashCode::from_bytes(random.bytes());
    let key = DepositKey { coin_pub, merchant_pub: target.merchant_pub, h_contract_terms };
    changes.insert::<Deposits>(&key, &deposit_row(target.h_payto, None, random));
}

/// A coin that was spent.
pub(super) fn coin_row(random: &mut Numbers) -> CoinRow {
    CoinRow {
        denom: DenomSerial(1),
        h_age: None,
        denom_sig: DenomSignature::Rsa(random.bytes::<256>().to_vec()),
        remaining: Money::ZERO,
        zombie: false,
    }
}

/// A deposit for an account, aggregated into a transfer or open.
pub(super) fn deposit_row(h_payto: PaytoHash, wtid: Option<Wtid>, random: &mut Numbers) -> DepositRow {
    let due = Timestamp::from_secs(1_800_000_000);
    DepositRow {
        denom: DenomSerial(1),
        amount: money("1.5"),
        wallet_time: due,
        exchange_time: due,
        refund_deadline: due,
        wire_deadline: due,
        wire_salt: WireSalt::from_bytes([7; 16]),
        h_payto,
        coin_sig: EddsaSignature::from_bytes(random.bytes()),
        refunded: Money::ZERO,
        wtid,
    }
}
