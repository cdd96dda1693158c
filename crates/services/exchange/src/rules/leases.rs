//! Leases, by which workers in one or several processes share a job.
//!
//! A lease decides nothing about money. It expires, so a killed worker blocks others only that long. A worker
//! whose lease has expired may continue: the other rules count an item once even if two workers process it.
//!
//! * An account's history is divided into *ranges* of bank rows, each imported by the watcher that has leased
//!   it. The cursor follows the ranges in order, in the commits that import them, so it never passes a row
//!   that was not imported.
//! * Other queues are divided into `SLOTS` *slots* by a part of their items' keys. A worker has its own row
//!   while its lease lasts; the slots are spread evenly over the workers that have one.
//!
//! Times come from the workers' clocks, which may differ: a clock that is ahead takes over early, one that is
//! behind takes over late. A lease that ends more than ten minutes from now was written by a wrong clock and
//! counts as expired.

use std::collections::BTreeMap;

use batzen_engine::{Command, Plan, WorkingSet};
use batzen_protocol::{Duration, Timestamp};
use batzen_store::{ChangeSet, Store, StoreError};
use batzen_tables::exchange::{
    AccountId, AccountKey, CursorRow, Cursors, LeaseJob, LeaseKey, LeaseRow, WorkerLeases,
};

use super::{ExchangeRules, Refusal};

/// The number of slots of a queue.
pub(crate) const SLOTS: u32 = 64;

/// The longest lease.
pub(crate) const LEASE_MAX: Duration = Duration::from_secs(300);

/// A lease that ends later than this from now was written by a wrong clock.
const BELIEVED_MAX: Duration = Duration::from_secs(600);

/// A holder whose lease ended this recently still counts as live.
pub(crate) const RECENTLY: Duration = Duration::from_secs(60);

/// The maximum number of concurrent ranges of an account. Further watchers help with the first range.
pub const RANGES_MAX: usize = 256;

/// The account id for jobs without an account.
const NO_ACCOUNT: AccountId = AccountId([0; 8]);

/// Claims, renews or returns a worker's part of a job.
#[derive(Debug, Clone)]
pub enum Lease {
    /// A range of an account's bank rows.
    Range(RangeClaim),
    /// Slots of a queue.
    Slots(SlotsClaim),
}

/// The answer to a [`Lease`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leased {
    /// The range; none for a watcher that leaves.
    Range(Option<RangeState>),
    /// The slots.
    Slots(SlotsShare),
}

impl Command<ExchangeRules> for Lease {
    type Answer = Leased;
    const IS_BACKGROUND: bool = true;

    fn plan(&self, _: &ExchangeRules, plan: &mut Plan) {
        match self {
            Lease::Range(RangeClaim { account, .. }) => plan_ranges(*account, plan),
            Lease::Slots(SlotsClaim { job, .. }) => plan_group(*job, NO_ACCOUNT, plan),
        }
    }

    fn execute(&self, _: &ExchangeRules, rows: &mut WorkingSet, _: Timestamp) -> Result<Leased, Refusal> {
        Ok(match self {
            Lease::Range(claim) => Leased::Range(claim_range(rows, claim)),
            Lease::Slots(claim) => Leased::Slots(claim_slots(rows, claim)),
        })
    }
}

/// Claims the first range of an account that no other watcher holds, or a new range after the others. It
/// replaces the watcher's current range.
#[derive(Debug, Clone, Copy)]
pub struct RangeClaim {
    /// The account.
    pub account: AccountId,
    /// The watcher.
    pub holder: u64,
    /// The watcher's time, without any shift of the clock.
    pub now: Timestamp,
    /// The lease's duration. None: the worker leaves.
    pub lease: Option<Duration>,
    /// Number of rows that a new range has, measured as the distance of their ids.
    pub size: u64,
}

/// The progress of a watcher's range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeProgress {
    /// The watcher.
    pub holder: u64,
    /// The watcher's time, without any shift of the clock.
    pub now: Timestamp,
    /// Time that it continues to hold the range.
    pub lease: Duration,
    /// Where the range starts.
    pub start: u64,
    /// The last row up to which all rows are imported.
    pub latest: u64,
    /// If the range is complete: the id up to which there are no more rows.
    pub seen_until: Option<u64>,
}

/// A range that is not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeState {
    /// The row after which it starts.
    pub start: u64,
    /// The last row that it may contain.
    pub end: u64,
    /// The last row that was imported.
    pub latest: u64,
    /// Whether everything before it is imported.
    pub is_first: bool,
    /// Whether the watcher holds it.
    pub is_ours: bool,
    /// Whether other watchers hold ranges.
    pub has_others: bool,
}

/// A worker's slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotsShare {
    /// The slots that it holds.
    pub slots: Slots,
    /// Whether it holds more than its share.
    pub has_excess: bool,
}

/// Takes or keeps a worker's share of a queue's slots.
#[derive(Debug, Clone, Copy)]
pub struct SlotsClaim {
    /// The queue.
    pub job: LeaseJob,
    /// The worker: any number but 0, below 2^63.
    pub holder: u64,
    /// The worker's time, without any shift of the clock.
    pub now: Timestamp,
    /// The lease's duration. None: the worker leaves.
    pub lease: Option<Duration>,
    /// Whether it returns slots beyond its share.
    pub gives: bool,
}

/// The value by which the leases of a job are found: the first columns of their keys.
fn group(job: LeaseJob, account: AccountId) -> [u8; 9] {
    let mut bytes = [job as u8; 9];
    bytes[1..].copy_from_slice(&account.0);
    bytes
}

pub(super) fn plan_ranges(account: AccountId, plan: &mut Plan) {
    plan.row::<Cursors>(AccountKey { account });
    plan_group(LeaseJob::Wirewatch, account, plan);
}

fn plan_group(job: LeaseJob, account: AccountId, plan: &mut Plan) {
    plan.group::<WorkerLeases>(WorkerLeases::BY_JOB, &group(job, account));
}

/// Returns whether a lease has not expired.
pub(crate) fn lasts(until: Timestamp, now: Timestamp) -> bool {
    until > now && until <= now.saturating_add(BELIEVED_MAX)
}

/// The leases of a job by their start.
fn leases(rows: &WorkingSet, job: LeaseJob, account: AccountId) -> BTreeMap<u64, LeaseRow> {
    let found = rows.group::<WorkerLeases>(WorkerLeases::BY_JOB, &group(job, account));
    found.into_iter().map(|(key, row)| (key.start, row.clone())).collect()
}

// --- Ranges of bank rows
// ----------------------------------------------------------------------------------------------

fn cursor(rows: &WorkingSet, account: AccountId) -> u64 {
    rows.get::<Cursors>(&AccountKey { account }).map_or(0, |row| row.bank_row)
}

/// Ranges that are not completely imported, in order. They adjoin each other.
fn ranges(rows: &WorkingSet, account: AccountId) -> BTreeMap<u64, LeaseRow> {
    leases(rows, LeaseJob::Wirewatch, account)
}

fn state(ranges: &BTreeMap<u64, LeaseRow>, start: u64, holder: u64, now: Timestamp) -> Option<RangeState> {
    let row = ranges.get(&start).filter(|row| !row.is_complete)?;
    let is_others =
        |row: &LeaseRow| ![holder, 0].contains(&row.holder) && lasts(row.until.saturating_add(RECENTLY), now);
    Some(RangeState {
        start,
        end: row.end,
        latest: row.latest,
        is_first: ranges.keys().next() == Some(&start),
        is_ours: row.holder == holder,
        has_others: ranges.values().any(is_others),
    })
}

fn claim_range(rows: &mut WorkingSet, claim: &RangeClaim) -> Option<RangeState> {
    let RangeClaim { account, holder, now, lease, size } = *claim;
    let key = |start| LeaseKey { job: LeaseJob::Wirewatch, account, start };
    let mut ranges = ranges(rows, account);
    // A watcher has one range at a time.
    for (start, row) in ranges.iter_mut().filter(|(_, row)| row.holder == holder) {
        (row.holder, row.until) = (0, Timestamp::ZERO);
        rows.update::<WorkerLeases>(&key(*start), row.clone());
    }
    let until = now.saturating_add(lease?.min(LEASE_MAX));
    let is_free = |row: &LeaseRow| !row.is_complete && (row.holder == 0 || !lasts(row.until, now));
    let free = ranges.iter().find(|(_, row)| is_free(row)).map(|(start, _)| *start);
    let help = || ranges.keys().next().copied().filter(|_| ranges.len() >= RANGES_MAX);
    let start = free.or_else(help).unwrap_or_else(|| {
        let end = ranges.values().next_back().map(|row| row.end);
        end.unwrap_or_else(|| cursor(rows, account))
    });
    let row = match ranges.get(&start) {
        Some(row) => LeaseRow { holder, until, ..row.clone() },
        None => {
            let end = start.saturating_add(size.max(1));
            LeaseRow { end, latest: start, is_complete: false, holder, until }
        }
    };
    rows.put::<WorkerLeases>(&key(start), row.clone());
    ranges.insert(start, row);
    state(&ranges, start, holder, now)
}

/// Records the progress of a range, and moves the cursor to the end of the imported rows before the first
/// gap.
pub(super) fn advance(
    rows: &mut WorkingSet,
    account: AccountId,
    progress: &RangeProgress,
) -> Option<RangeState> {
    let RangeProgress { holder, now, lease, start, latest, seen_until } = *progress;
    let key = |start| LeaseKey { job: LeaseJob::Wirewatch, account, start };
    let mut ranges = ranges(rows, account);
    let last = ranges.keys().next_back().copied();
    // If the range is gone, another watcher has completed it.
    let row = ranges.get_mut(&start)?;
    row.latest = row.latest.max(latest);
    if let Some(until) = seen_until {
        row.is_complete = true;
        // Ids may have large gaps, which the next claim may skip.
        if last == Some(start) {
            row.end = row.end.max(until);
        }
    }
    if row.holder == holder {
        row.until = now.saturating_add(lease.min(LEASE_MAX));
    }
    let row = row.clone();
    rows.update::<WorkerLeases>(&key(start), row);
    let before = cursor(rows, account);
    let mut cursor = before;
    while let Some((first, row)) = ranges.first_key_value() {
        cursor = cursor.max(if row.is_complete { row.end } else { row.latest });
        if !row.is_complete {
            break;
        }
        rows.delete::<WorkerLeases>(&key(*first));
        ranges.pop_first();
    }
    if cursor > before {
        rows.put::<Cursors>(&AccountKey { account }, CursorRow { bank_row: cursor });
    }
    state(&ranges, start, holder, now)
}

/// The row up to which an account's history is imported, and whether a watcher holds the next range.
///
/// # Errors
/// When the store cannot be read.
pub fn front(store: &Store, account: AccountId, now: Timestamp) -> Result<(u64, bool), StoreError> {
    let cursor = store.get::<Cursors>(&AccountKey { account })?.map_or(0, |found| found.row.bank_row);
    let mut ranges =
        store.lookup::<WorkerLeases>(WorkerLeases::BY_JOB, &group(LeaseJob::Wirewatch, account))?;
    ranges.sort_by_key(|found| found.key.start);
    let first = ranges.first().filter(|found| found.row.holder != 0 && lasts(found.row.until, now));
    Ok((cursor, first.is_some()))
}

/// The workers that have leases of a job, each with the end of its last one, whether or not it has expired.
///
/// # Errors
/// When the store cannot be read.
pub(crate) fn holders(
    store: &Store,
    job: LeaseJob,
    account: Option<AccountId>,
) -> Result<BTreeMap<u64, Timestamp>, StoreError> {
    let account = account.unwrap_or(NO_ACCOUNT);
    let mut holders = BTreeMap::new();
    for found in store.lookup::<WorkerLeases>(WorkerLeases::BY_JOB, &group(job, account))? {
        // The leases of slots end with those of their workers.
        let is_dated = job == LeaseJob::Wirewatch || found.key.start >= WorkerLeases::MEMBERS;
        if is_dated && found.row.holder != 0 {
            let until: &mut Timestamp = holders.entry(found.row.holder).or_insert(found.row.until);
            *until = (*until).max(found.row.until);
        }
    }
    Ok(holders)
}

/// Removes all leases.
///
/// # Errors
/// When the store fails.
pub(crate) fn remove_all(store: &Store) -> Result<(), StoreError> {
    let mut changes = ChangeSet::new();
    for found in store.all::<WorkerLeases>()? {
        changes.delete::<WorkerLeases>(&found.key, &found.row);
    }
    // Only deletions, which cannot conflict.
    store.commit(&changes).map(drop)
}

// --- Slots
// ------------------------------------------------------------------------------------------------------------

/// Slots that a worker has leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slots(u64);

impl Slots {
    /// All of them.
    pub const ALL: Self = Self(u64::MAX);

    /// Returns whether an item is in one of them. Two bytes of its key that vary between items decide.
    #[must_use]
    pub const fn has(self, a: u8, b: u8) -> bool {
        self.0 >> ((a ^ b) as u32 % SLOTS) & 1 == 1
    }

    /// Returns whether they are a subset of `others`.
    #[must_use]
    pub(crate) const fn is_subset_of(self, others: Self) -> bool {
        self.0 & !others.0 == 0
    }

    /// Their number.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }
}

fn claim_slots(rows: &mut WorkingSet, claim: &SlotsClaim) -> SlotsShare {
    let SlotsClaim { job, holder, now, lease, gives } = *claim;
    let key = |start| LeaseKey { job, account: NO_ACCOUNT, start };
    let member = |holder: u64| WorkerLeases::MEMBERS | holder;
    let mut leases = leases(rows, job, NO_ACCOUNT);
    let members = leases.split_off(&WorkerLeases::MEMBERS);
    let (live, dead): (Vec<_>, Vec<_>) = members
        .into_iter()
        .filter(|(_, row)| row.holder != holder)
        .partition(|(_, row)| lasts(row.until, now));
    for (start, _) in dead {
        rows.delete::<WorkerLeases>(&key(start));
    }
    let row = |holder, until| LeaseRow { end: 0, latest: 0, is_complete: false, holder, until };
    let Some(lease) = lease else {
        for (slot, _) in leases.iter().filter(|(_, row)| row.holder == holder) {
            rows.delete::<WorkerLeases>(&key(*slot));
        }
        if rows.get::<WorkerLeases>(&key(member(holder))).is_some() {
            rows.delete::<WorkerLeases>(&key(member(holder)));
        }
        return SlotsShare::default();
    };
    let until = now.saturating_add(lease.min(LEASE_MAX));
    rows.put::<WorkerLeases>(&key(member(holder)), row(holder, until));
    let is_live = |other: u64| live.iter().any(|(_, row)| row.holder == other);
    let workers = u32::try_from(live.len()).unwrap_or(SLOTS).saturating_add(1);
    let share = SLOTS.div_ceil(workers);
    let mut own = Slots::default();
    let mut has_excess = false;
    // Prefer the worker's current slots, so that slots do not move needlessly.
    for takes_new in [false, true] {
        for slot in 0..SLOTS {
            let lease = leases.get(&u64::from(slot));
            let is_own = lease.is_some_and(|row| row.holder == holder);
            let is_free = lease.is_none_or(|row| !is_own && !is_live(row.holder));
            match (is_own, own.count() < share) {
                (true, true) => own.0 |= 1 << slot,
                (true, false) if !takes_new && gives => rows.delete::<WorkerLeases>(&key(slot.into())),
                (true, false) if !takes_new => {
                    own.0 |= 1 << slot;
                    has_excess = true;
                }
                (false, true) if takes_new && is_free => {
                    rows.put::<WorkerLeases>(&key(slot.into()), row(holder, Timestamp::ZERO));
                    own.0 |= 1 << slot;
                }
                _ => {}
            }
        }
    }
    SlotsShare { slots: own, has_excess }
}
