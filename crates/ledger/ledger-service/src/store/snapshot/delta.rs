//! Changes of a snapshot by a part of the log.

use batzen_ledger::machine::{
    Balances, HeldAccount, IdHasher, IdStatus, LogRecord, MARK_EVERY, Movement, Pending, Side, Summary,
};
use batzen_ledger::{Account, AccountFlags, ChangeKind};
use hashbrown::{HashMap, HashSet};

use super::pages::{Mark, PAGE_ACCOUNTS};
use super::runs::IdEntry;
use crate::store::block::Block;

/// The record number of each unresolved pending transfer.
pub(crate) type Unresolved = HashMap<u128, u64>;

/// An account that moved.
struct Touched {
    /// Its latest movement before: record number plus one.
    previous: u64,
    /// Its latest movement.
    last: u64,
    balances: Balances,
    flags: AccountFlags,
    /// Its movements in this part of the log.
    movements: u64,
    /// Its movements before.
    before: u64,
}

/// See the [module](self). Two hundred bytes for each account that moved, a hundred for each record.
pub(crate) struct Delta {
    from: u64,
    /// The state at the end.
    pub(crate) summary: Summary,
    /// The digest that the log has stored for the end.
    stored_digest: u128,
    first_created: u32,
    created: Vec<Account>,
    touched: HashMap<u32, Touched>,
    /// The same accounts in order.
    numbers: Vec<u32>,
    /// All movements, as if each were a mark.
    movements: Vec<Mark>,
    /// Open reservations, with the position of their ids.
    added: HashMap<u128, (Pending, usize)>,
    /// Resolved reservations from before.
    pub(crate) resolved: HashSet<u128>,
    /// Ids that were used, and new statuses of earlier ones.
    pub ids: Vec<IdEntry>,
    /// Rows of the log.
    pub(crate) rows: Vec<Block>,
}

impl Delta {
    /// Of what follows this state.
    pub(crate) fn new(from: &Summary) -> Self {
        Self {
            from: from.counts.records,
            summary: *from,
            stored_digest: from.digest.to_u128(),
            first_created: u32::try_from(from.counts.accounts).expect("there are less than 2^32 accounts"),
            created: Vec::new(),
            touched: HashMap::new(),
            numbers: Vec::new(),
            movements: Vec::new(),
            added: HashMap::new(),
            resolved: HashSet::new(),
            ids: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// The number of records before it.
    pub(crate) const fn from(&self) -> u64 {
        self.from
    }

    /// The number of records at its end.
    pub(crate) const fn to(&self) -> u64 {
        self.summary.counts.records
    }

    /// Adds the next row of the log. `unresolved` are the pending transfers at the beginning.
    ///
    /// # Errors
    /// When the row does not fit.
    pub(crate) fn add_row(
        &mut self,
        (clock, digest): (u64, u128),
        records: &[LogRecord],
        hasher: &IdHasher,
        unresolved: &Unresolved,
    ) -> Result<(), &'static str> {
        let first = self.to();
        for record in records {
            self.add(record, hasher, unresolved)?;
        }
        self.rows.push(Block { first, last_movement: self.summary.last_movement });
        self.summary.clock = self.summary.clock.max(clock);
        self.stored_digest = digest;
        Ok(())
    }

    fn add(
        &mut self,
        record: &LogRecord,
        hasher: &IdHasher,
        unresolved: &Unresolved,
    ) -> Result<(), &'static str> {
        let Summary { counts, digest, clock, last_movement } = &mut self.summary;
        let number = counts.records;
        counts.records += 1;
        digest.add(record);
        *clock = (*clock).max(record.timestamp());
        match record {
            LogRecord::Account(account) => {
                counts.accounts += 1;
                self.created.push(*account);
            }
            LogRecord::Burnt { id, .. } => {
                counts.burnt += 1;
                self.ids.push(IdEntry::new(hasher.hash(*id), number, IdStatus::Burnt));
            }
            LogRecord::Movement(movement) => {
                *last_movement = movement.timestamp;
                self.add_movement(movement, number, hasher, unresolved)?;
            }
        }
        Ok(())
    }

    fn add_movement(
        &mut self,
        movement: &Movement,
        number: u64,
        hasher: &IdHasher,
        unresolved: &Unresolved,
    ) -> Result<(), &'static str> {
        let transfer = &movement.transfer;
        self.touch(&movement.debit, movement.timestamp, number)?;
        self.touch(&movement.credit, movement.timestamp, number)?;
        let counts = &mut self.summary.counts;
        if movement.creates_transfer() {
            counts.transfers += 1;
            let status = match movement.kind {
                ChangeKind::TwoPhasePending => IdStatus::Pending,
                _ => IdStatus::Plain,
            };
            self.ids.push(IdEntry::new(hasher.hash(transfer.id), number, status));
        }
        let (id, status) = match movement.kind {
            ChangeKind::SinglePhase => return Ok(()),
            ChangeKind::TwoPhasePending => {
                counts.pendings += 1;
                let (debit, credit) = (movement.debit.account, movement.credit.account);
                let pending = Pending::new(transfer, debit, credit, number);
                self.added.insert(transfer.id, (pending, self.ids.len() - 1));
                return Ok(());
            }
            ChangeKind::TwoPhasePosted => (transfer.pending_id, IdStatus::Posted),
            ChangeKind::TwoPhaseVoided => (transfer.pending_id, IdStatus::Voided),
            ChangeKind::TwoPhaseExpired => (transfer.id, IdStatus::Expired),
        };
        counts.pendings =
            counts.pendings.checked_sub(1).ok_or("it resolves a transfer that is not pending")?;
        if let Some((_, at)) = self.added.remove(&id) {
            self.ids[at].set_status(status);
        } else {
            let record = unresolved.get(&id).ok_or("it resolves a transfer that is not pending")?;
            if !self.resolved.insert(id) {
                return Err("it resolves a transfer that is not pending");
            }
            self.ids.push(IdEntry::new(hasher.hash(id), *record, status));
        }
        Ok(())
    }

    fn touch(&mut self, side: &Side, timestamp: u64, number: u64) -> Result<(), &'static str> {
        let fresh = Touched {
            previous: side.previous,
            last: side.previous,
            balances: side.balances,
            flags: side.flags,
            movements: 0,
            before: 0,
        };
        let touched = self.touched.entry(side.account).or_insert(fresh);
        if touched.last != side.previous {
            return Err("it does not follow the account's last");
        }
        (touched.last, touched.balances, touched.flags) = (number + 1, side.balances, side.flags);
        touched.movements += 1;
        self.movements.push(Mark { account: side.account, timestamp, record: number + 1 });
        Ok(())
    }

    /// Ends the part of the log, at the end of a commit.
    ///
    /// # Errors
    /// When the log has stored another digest.
    pub(crate) fn finish(&mut self) -> Result<(), &'static str> {
        if self.stored_digest != self.summary.digest.to_u128() {
            return Err("the digest differs from the stored one");
        }
        self.numbers = self.touched.keys().copied().collect();
        self.numbers.sort_unstable();
        Ok(())
    }

    /// The pages of accounts that change, in order.
    pub(crate) fn pages(&self) -> Vec<u32> {
        let created = u32::try_from(self.created.len()).expect("there are less than 2^32 accounts");
        let created = self.first_created..self.first_created + created;
        let mut pages: Vec<u32> = self.numbers.iter().copied().chain(created).map(page_of).collect();
        pages.sort_unstable();
        pages.dedup();
        pages
    }

    /// Applies the change to a page of accounts as of so many records. Returns whether there was one: a page
    /// that has it already stays as it is.
    ///
    /// # Errors
    /// When the page does not fit.
    pub(crate) fn apply(
        &mut self,
        page: u32,
        records: u64,
        accounts: &mut Vec<HeldAccount>,
    ) -> Result<bool, &'static str> {
        let first = page * PAGE_ACCOUNTS;
        let is_done = records == self.to();
        if !is_done {
            let before = self.first_created.saturating_sub(first).min(PAGE_ACCOUNTS);
            if records > self.from || accounts.len() != index(before) {
                return Err("it is of another snapshot");
            }
            let created =
                self.created.iter().skip(index((first + before).saturating_sub(self.first_created)));
            let created = created.take(index(PAGE_ACCOUNTS - before));
            accounts.extend(created.map(|account| HeldAccount { account: *account, last: 0, movements: 0 }));
        }
        let from = self.numbers.partition_point(|number| *number < first);
        let numbers = self.numbers[from..].iter().take_while(|number| page_of(**number) == page);
        for number in numbers {
            let touched = self.touched.get_mut(number).expect("it has the numbers of those touched");
            let held = accounts.get_mut(index(number - first)).ok_or("it lacks an account")?;
            if is_done {
                let before = held.movements.checked_sub(touched.movements);
                touched.before = before.ok_or("it has fewer movements than the log")?;
                continue;
            }
            if held.last != touched.previous {
                return Err("it does not fit the log");
            }
            touched.before = held.movements;
            held.account = held.account.with(touched.balances, touched.flags);
            held.last = touched.last;
            held.movements += touched.movements;
        }
        Ok(!is_done)
    }

    /// The new marks, when all pages are known. They are yielded once.
    pub(crate) fn take_marks(&mut self) -> Vec<Mark> {
        let mut marks = std::mem::take(&mut self.movements);
        marks.retain(|mark| {
            let touched = self.touched.get_mut(&mark.account).expect("what moved was touched");
            touched.before += 1;
            touched.before.is_multiple_of(MARK_EVERY)
        });
        marks
    }

    /// The reservations that are open at the end.
    pub(crate) fn added(&self) -> impl Iterator<Item = &Pending> {
        self.added.values().map(|(pending, _)| pending)
    }
}

pub(super) const fn page_of(number: u32) -> u32 {
    number / PAGE_ACCOUNTS
}

fn index(number: u32) -> usize {
    usize::try_from(number).expect("32 bits fit")
}
