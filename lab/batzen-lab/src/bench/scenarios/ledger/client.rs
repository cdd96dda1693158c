//! A client of the load: creates transfers, and posts those it has reserved.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use batzen_ledger::{AMOUNT_MAX, CreateTransferStatus, Ledger, Transfer, TransferFlags};
use futures_util::future::join_all;
use hdrhistogram::Histogram;

use super::{Choosing, LEDGER, LedgerArgs, connect, histogram, unless_interrupted};
use crate::bench::BenchError;
use crate::bench::load::meter::thread_cpu_time;
use crate::bench::load::random::{Numbers, Seed, cumulative};

/// Chooses accounts.
pub(super) struct Choice {
    choosing: Choosing,
    accounts: u64,
    base: u128,
    /// Share of the draws that fall on this account or an earlier one.
    cumulative: Vec<f64>,
}

impl Choice {
    pub(super) fn new(choosing: Choosing, accounts: u64, base: u128) -> Self {
        let ranks = if choosing == Choosing::Zipf { accounts as usize } else { 0 };
        let cumulative = cumulative(ranks, |rank| 1.0 / rank as f64);
        Self { choosing, accounts, base, cumulative }
    }

    /// Two different accounts.
    fn draw(&self, numbers: &mut Numbers) -> (u128, u128) {
        let one = |numbers: &mut Numbers| match self.choosing {
            Choosing::Uniform => numbers.below(self.accounts),
            Choosing::Two => numbers.below(2),
            Choosing::Zipf => {
                let at = numbers.unit();
                let place = self.cumulative.partition_point(|share| *share < at) as u64;
                place.min(self.accounts - 1)
            }
        };
        let debit = one(numbers);
        let mut credit = one(numbers);
        if credit == debit {
            let others = if self.choosing == Choosing::Two { 2 } else { self.accounts };
            credit = (credit + 1) % others;
        }
        (self.base + u128::from(debit), self.base + u128::from(credit))
    }
}

/// The tally of some clients.
#[derive(Debug)]
pub(super) struct Tally {
    pub(crate) ops: u64,
    pub(crate) requests: u64,
    pub(crate) pairs: u64,
    pub(crate) posted_amount: u64,
    pub(crate) errors: BTreeMap<String, u64>,
    pub(crate) latency: Histogram<u64>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            ops: 0,
            requests: 0,
            pairs: 0,
            posted_amount: 0,
            errors: BTreeMap::new(),
            latency: histogram(),
        }
    }
}

impl Tally {
    pub(super) fn add(&mut self, other: Self) {
        self.ops += other.ops;
        self.requests += other.requests;
        self.pairs += other.pairs;
        self.posted_amount += other.posted_amount;
        for (reason, count) in other.errors {
            *self.errors.entry(reason).or_default() += count;
        }
        self.latency.add(other.latency).expect("the same bounds");
    }
}

/// The tally of a thread, and its time.
pub(super) struct ThreadTally {
    pub(crate) tally: Tally,
    pub(crate) seconds: f64,
    pub(crate) cpu_ns: u64,
}

pub(super) struct Client {
    numbers: Numbers,
    choice: Arc<Choice>,
    batch: u64,
    pending_percent: u64,
    next_id: u128,
}

impl Client {
    pub(super) fn new(number: u64, args: &LedgerArgs, base: u128, choice: Arc<Choice>) -> Self {
        Self {
            numbers: Seed::new(args.seed).numbers(&format!("ledger client {number}")),
            choice,
            batch: u64::from(args.batch),
            pending_percent: u64::from(args.pending),
            // The ids of a client are consecutive, like those derived from a clock.
            next_id: base + (u128::from(number) << 40) + 1,
        }
    }

    fn id(&mut self) -> u128 {
        self.next_id += 1;
        self.next_id
    }

    fn transfers(&mut self, count: u64) -> Vec<Transfer> {
        let mut transfer = || {
            let (debit_account_id, credit_account_id) = self.choice.draw(&mut self.numbers);
            let is_pending = self.pending_percent > 0 && self.numbers.below(100) < self.pending_percent;
            Transfer {
                id: self.id(),
                debit_account_id,
                credit_account_id,
                amount: 1,
                timeout: if is_pending { 600 } else { 0 },
                ledger: LEDGER,
                code: 1,
                flags: if is_pending { TransferFlags::PENDING } else { TransferFlags::NONE },
                ..Transfer::default()
            }
        };
        (0..count).map(|_| transfer()).collect()
    }

    fn posts(&mut self, transfers: &[Transfer]) -> Vec<Transfer> {
        let pending = transfers.iter().filter(|transfer| transfer.flags.contains(TransferFlags::PENDING));
        let ids: Vec<u128> = pending.map(|transfer| transfer.id).collect();
        let post = |pending_id| Transfer {
            id: self.id(),
            pending_id,
            amount: AMOUNT_MAX,
            flags: TransferFlags::POST_PENDING_TRANSFER,
            ..Transfer::default()
        };
        ids.into_iter().map(post).collect()
    }

    async fn run(mut self, ledger: Arc<dyn Ledger>, load: Arc<SharedLoad>) {
        while !load.interrupted.load(Ordering::Relaxed) {
            let from = load.issued.fetch_add(self.batch, Ordering::Relaxed);
            if from >= load.transfers {
                break;
            }
            let transfers = self.transfers(self.batch.min(load.transfers - from));
            let posts = self.posts(&transfers);
            let reserved = posts.len() as u64;
            let amount = transfers.len() as u64 - reserved;
            if ask(&*ledger, transfers, &load).await {
                load.tally().posted_amount += amount;
                if !posts.is_empty() && ask(&*ledger, posts, &load).await {
                    let mut tally = load.tally();
                    tally.posted_amount += reserved;
                    tally.pairs += reserved;
                }
            }
        }
    }
}

/// Sends one request. Returns false if any part of it was refused.
async fn ask(ledger: &dyn Ledger, transfers: Vec<Transfer>, load: &SharedLoad) -> bool {
    let count = transfers.len() as u64;
    let begun = Instant::now();
    let answer = ledger.create_transfers(transfers).await;
    let us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
    let mut tally = load.tally();
    tally.latency.saturating_record(us.max(1));
    tally.requests += 1;
    match answer {
        Ok(results) => {
            let refused = results.iter().filter(|result| result.status != CreateTransferStatus::Created);
            let mut is_whole = true;
            for result in refused {
                is_whole = false;
                *tally.errors.entry(result.status.name().to_owned()).or_default() += 1;
            }
            tally.ops += count;
            load.done.fetch_add(count, Ordering::Relaxed);
            is_whole
        }
        Err(error) => {
            *tally.errors.entry(error.to_string()).or_default() += 1;
            false
        }
    }
}

/// State shared by the clients of a thread.
struct SharedLoad {
    /// Shared, because a histogram is large and the clients of a thread never count at the same time.
    tally: Mutex<Tally>,
    transfers: u64,
    issued: Arc<AtomicU64>,
    done: Arc<AtomicU64>,
    interrupted: Arc<AtomicBool>,
}

impl SharedLoad {
    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the clients of a thread: they connect, wait for the others, and work until all transfers are done.
pub(super) async fn run_all(
    clients: Vec<Client>,
    url: &str,
    begin: &Barrier,
    transfers: u64,
    issued: &Arc<AtomicU64>,
    done: &Arc<AtomicU64>,
    interrupted: &Arc<AtomicBool>,
) -> Result<ThreadTally, BenchError> {
    let connect_all = async {
        let mut ledgers = Vec::new();
        for _ in &clients {
            ledgers.push(connect(url).await?);
        }
        Ok(ledgers)
    };
    let ledgers = unless_interrupted(interrupted, connect_all).await;
    // The other threads are waiting, so this is needed even after an error.
    begin.wait();
    let ledgers = ledgers?;
    let load = Arc::new(SharedLoad {
        tally: Mutex::default(),
        transfers,
        issued: Arc::clone(issued),
        done: Arc::clone(done),
        interrupted: Arc::clone(interrupted),
    });
    let (begun, cpu_before) = (Instant::now(), thread_cpu_time());
    let tasks: Vec<_> = clients
        .into_iter()
        .zip(ledgers)
        .map(|(client, ledger)| tokio::spawn(client.run(ledger, Arc::clone(&load))))
        .collect();
    let all_ended = async {
        for ended in join_all(tasks).await {
            ended.map_err(|_| BenchError::SetUp("a client broke down".to_owned()))?;
        }
        Ok(())
    };
    // Clients look for an interruption between two requests, but an unanswered one must not delay the end.
    unless_interrupted(interrupted, all_ended).await?;
    let seconds = begun.elapsed().as_secs_f64();
    let cpu_ns = u64::try_from((thread_cpu_time() - cpu_before).as_nanos()).unwrap_or(u64::MAX);
    let tally = std::mem::take(&mut *load.tally());
    Ok(ThreadTally { tally, seconds, cpu_ns })
}
