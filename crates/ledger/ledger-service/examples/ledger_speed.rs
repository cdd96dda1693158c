//! Measures the ledger in this process, client included: `ledger_speed [single|pairs|hot|random] [transfers]
//! [accounts] [directory] [snapshot]`, or `ledger_speed open - - [directory]`. A snapshot is taken every so many
//! bytes of the log, `never`, or by default as in a service.
//!
//! Prints transfers per second, CPU time and bytes per transfer, and how long opening takes. `open` opens what
//! an earlier run has left, so that the memory of the process is that of the open ledger alone.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use batzen_ledger::{
    AMOUNT_MAX, Account, AccountFlags, BATCH_EVENTS_MAX, CreateTransferStatus, Ledger, Transfer,
    TransferFlags,
};
use batzen_ledger_service::store::machine::LedgerSummary;
use batzen_ledger_service::store::{DurableLedger, DurableOptions, Inspection};
use batzen_service::storage::StoreConfig;
use rustix::time::{ClockId, clock_gettime};

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).expect("positive"), u32::try_from(time.tv_nsec).expect("small"))
}

/// SplitMix64: reproducible, and good enough to pick accounts.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u128 {
        (u128::from(self.next()) * u128::from(end)) >> 64
    }
}

fn batch(mode: &str, first: u64, accounts: u64, random: &mut Random) -> Vec<Transfer> {
    let mut events = Vec::with_capacity(BATCH_EVENTS_MAX);
    let last = first + BATCH_EVENTS_MAX as u64;
    for n in first..last {
        let id = if mode == "random" {
            u128::from(random.next()) << 64 | u128::from(random.next())
        } else {
            u128::from(n) + 1
        };
        let hot = if mode == "hot" { 2 } else { accounts };
        let debit = random.below(hot);
        let credit = (debit + 1 + random.below(hot - 1)) % u128::from(hot);
        let new = Transfer {
            id,
            debit_account_id: debit + 1,
            credit_account_id: credit + 1,
            amount: 1 + random.below(1000),
            ledger: 1,
            code: 1,
            ..Transfer::default()
        };
        events.push(if mode != "pairs" {
            new
        } else if n % 2 == 0 && n + 1 < last {
            Transfer { flags: TransferFlags::PENDING, timeout: 60, ..new }
        } else if n % 2 == 1 && n > first {
            let flags = TransferFlags::POST_PENDING_TRANSFER;
            Transfer { id, pending_id: id - 1, amount: AMOUNT_MAX, flags, ..Transfer::default() }
        } else {
            new
        });
    }
    events
}

#[tokio::main]
async fn main() {
    let mut args = std::env::args().skip(1);
    let mode = args.next().unwrap_or_else(|| "single".to_owned());
    let (transfers, accounts) = (args.next(), args.next());
    let directory = args.next().map_or_else(|| PathBuf::from("/tmp/ledger-speed"), PathBuf::from);
    let place = StoreConfig::embedded(directory.clone());
    let mut options = DurableOptions::default();
    if let Some(bytes) = args.next() {
        let bytes = if bytes == "never" { u64::MAX } else { bytes.parse().expect("a number of bytes") };
        (options.snapshots.log_bytes_min, options.snapshots.log_bytes_max) = (bytes, bytes);
    }
    if mode == "open" {
        open_again(&place);
        return;
    }
    let transfers: u64 = transfers.map_or(10_000_000, |n| n.parse().expect("a number of transfers"));
    let accounts: u64 = accounts.map_or(10_000, |n| n.parse().expect("a number of accounts"));
    let _ = std::fs::remove_dir_all(&directory);
    let ledger = DurableLedger::open(&place, options).expect("it opens");
    let flags = AccountFlags::HISTORY;
    let all: Vec<Account> = (1..=accounts)
        .map(|id| Account { id: id.into(), ledger: 1, code: 1, flags, ..Account::default() })
        .collect();
    for part in all.chunks(BATCH_EVENTS_MAX) {
        ledger.create_accounts(part.to_vec()).await.expect("accounts are created");
    }

    let mut random = Random(1);
    let (start, cpu_start) = (Instant::now(), cpu());
    let mut making = Duration::ZERO;
    let mut times = Vec::new();
    let mut sent = 0;
    // Two batches in flight: one is built while the other is executed.
    let mut on_their_way = std::collections::VecDeque::new();
    while sent < transfers || !on_their_way.is_empty() {
        if sent < transfers && on_their_way.len() < 2 {
            let made = cpu();
            let events = batch(&mode, sent, accounts, &mut random);
            making += cpu() - made;
            sent += events.len() as u64;
            let answer = ledger.create_transfers(events);
            on_their_way.push_back((Instant::now(), answer));
            let (_, answer) = on_their_way.back_mut().expect("just pushed");
            // Polling it once queues the request.
            let _ = futures_poll(answer);
            continue;
        }
        let (since, answer) = on_their_way.pop_front().expect("not empty");
        let results = answer.await.expect("the ledger answers");
        times.push(since.elapsed());
        assert!(results.iter().all(|result| result.status == CreateTransferStatus::Created));
    }
    let (time, cpu_time) = (start.elapsed(), cpu() - cpu_start);
    times.sort_unstable();
    let state = ledger.inspect();
    let each = |total: f64| total / sent as f64;
    let store = &state.store;
    println!(
        "{mode}: {sent} transfers, {accounts} accounts: {:.0}/s, CPU {:.3} us a transfer (making them {:.3}), batch p50 {:.1} ms p99 {:.1} ms",
        sent as f64 / time.as_secs_f64(),
        each(cpu_time.as_secs_f64() * 1e6),
        each(making.as_secs_f64() * 1e6),
        times[times.len() / 2].as_secs_f64() * 1e3,
        times[times.len() * 99 / 100].as_secs_f64() * 1e3,
    );
    println!(
        "disk {:.1} bytes a transfer, all files {:.1}; store index {:.2} in memory",
        each(store.live_bytes as f64),
        each((store.disk_bytes + store.index_file_bytes) as f64),
        each(store.index_bytes as f64),
    );
    show_memory(&state);
    let start = Instant::now();
    ledger.stop().expect("it closes");
    println!("closed in {:.2} s", start.elapsed().as_secs_f64());
    drop(on_their_way);
    drop(ledger);
    let again = open_again(&place);
    assert_eq!((again.counts, again.digest), (state.state.counts, state.state.digest));
}

/// Memory of the process, from the kernel.
fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) >> 10
}

fn show_memory(state: &Inspection) {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let (memory, snapshot) = (state.state.memory, state.snapshot);
    println!(
        "memory in MiB: ids {:.1}, filters {:.1}, accounts {:.1}, log {:.1}, store index {:.1}, process {}; snapshot of {} of {} records, {} runs of {} ids, {:.0} MiB on disk",
        mib(memory.ids),
        mib(snapshot.filter_bytes),
        mib(memory.accounts),
        mib(state.log_memory_bytes),
        mib(state.store.index_bytes),
        resident_mib(),
        snapshot.records,
        state.state.counts.records,
        snapshot.id_runs,
        snapshot.id_entries,
        mib(snapshot.id_disk_bytes),
    );
}

fn open_again(place: &StoreConfig) -> LedgerSummary {
    let (start, cpu_start) = (Instant::now(), cpu());
    let ledger = DurableLedger::open(place, DurableOptions::default()).expect("it opens");
    let (time, cpu_time) = (start.elapsed().as_secs_f64(), (cpu() - cpu_start).as_secs_f64());
    println!("opened in {time:.2} s, CPU {cpu_time:.2} s");
    let state = ledger.inspect();
    show_memory(&state);
    ledger.stop().expect("it closes");
    state.state
}

/// Polls a future once with a waker that does nothing.
fn futures_poll<F: Future + Unpin>(future: &mut F) -> bool {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    std::pin::Pin::new(future).poll(&mut context).is_ready()
}
