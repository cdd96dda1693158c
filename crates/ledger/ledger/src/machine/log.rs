//! The machine's decisions: records in one order without gaps. The state follows from the records.

use super::ids::IdStatus;
use crate::{Account, AccountFlags, ChangeKind, Transfer, TransferFlags};

/// The four balances of an account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balances {
    /// Unresolved pending debits.
    pub debits_pending: u128,
    /// Posted debits.
    pub debits_posted: u128,
    /// Unresolved pending credits.
    pub credits_pending: u128,
    /// Posted credits.
    pub credits_posted: u128,
}

impl Balances {
    /// The balances of an account.
    #[must_use]
    pub const fn of(account: &Account) -> Self {
        Self {
            debits_pending: account.debits_pending,
            debits_posted: account.debits_posted,
            credits_pending: account.credits_pending,
            credits_posted: account.credits_posted,
        }
    }

    /// `self + after - before`, modulo 2^128. Sums over accounts need not fit, but comparing them still
    /// works.
    pub(super) const fn moved(self, before: Self, after: Self) -> Self {
        const fn step(sum: u128, before: u128, after: u128) -> u128 {
            sum.wrapping_add(after.wrapping_sub(before))
        }
        Self {
            debits_pending: step(self.debits_pending, before.debits_pending, after.debits_pending),
            debits_posted: step(self.debits_posted, before.debits_posted, after.debits_posted),
            credits_pending: step(self.credits_pending, before.credits_pending, after.credits_pending),
            credits_posted: step(self.credits_posted, before.credits_posted, after.credits_posted),
        }
    }
}

impl Account {
    /// The account with these balances and flags.
    #[must_use]
    pub const fn with(self, balances: Balances, flags: AccountFlags) -> Self {
        Self {
            debits_pending: balances.debits_pending,
            debits_posted: balances.debits_posted,
            credits_pending: balances.credits_pending,
            credits_posted: balances.credits_posted,
            flags,
            ..self
        }
    }
}

/// One account's side of a movement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    /// The account's number: accounts are numbered in the order of their creation, from 0.
    pub account: u32,
    /// Its flags after the movement: closing transfers change one.
    pub flags: AccountFlags,
    /// Its balances after the movement.
    pub balances: Balances,
    /// The account's movement before this one: its record number plus one, 0 for none. So the history of an
    /// account can be walked backwards without an index.
    pub previous: u64,
}

/// A change of two accounts' balances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Movement {
    /// The kind of change.
    pub kind: ChangeKind,
    /// The transfer's timestamp; an expiry has its own.
    pub timestamp: u64,
    /// The transfer as stored, with all values resolved. For an expiry the pending transfer that is released.
    pub transfer: Transfer,
    /// The debited account.
    pub debit: Side,
    /// The credited account.
    pub credit: Side,
}

impl Movement {
    /// Returns whether the record creates a transfer: an expiry does not.
    #[must_use]
    pub const fn creates_transfer(&self) -> bool {
        !matches!(self.kind, ChangeKind::TwoPhaseExpired)
    }

    /// Returns whether the limits of its accounts hold afterwards. Only a movement that raises the limited
    /// side can break them.
    pub(super) fn keeps_limits(&self) -> bool {
        if !matches!(self.kind, ChangeKind::SinglePhase | ChangeKind::TwoPhasePending) {
            return true;
        }
        let within = |pending: u128, posted: u128, limit| {
            pending.checked_add(posted).is_some_and(|total| total <= limit)
        };
        let (debit, credit) = (&self.debit.balances, &self.credit.balances);
        (!self.debit.flags.contains(AccountFlags::DEBITS_MUST_NOT_EXCEED_CREDITS)
            || within(debit.debits_pending, debit.debits_posted, debit.credits_posted))
            && (!self.credit.flags.contains(AccountFlags::CREDITS_MUST_NOT_EXCEED_DEBITS)
                || within(credit.credits_pending, credit.credits_posted, credit.debits_posted))
    }

    /// The side with this account, if there is one.
    #[must_use]
    pub(crate) const fn side_of(&self, account: u32) -> Option<&Side> {
        if self.debit.account == account {
            Some(&self.debit)
        } else if self.credit.account == account {
            Some(&self.credit)
        } else {
            None
        }
    }
}

/// The kind of movement that an accepted transfer makes.
#[must_use]
pub const fn kind_of(flags: TransferFlags) -> ChangeKind {
    if flags.contains(TransferFlags::PENDING) {
        ChangeKind::TwoPhasePending
    } else if flags.contains(TransferFlags::POST_PENDING_TRANSFER) {
        ChangeKind::TwoPhasePosted
    } else if flags.contains(TransferFlags::VOID_PENDING_TRANSFER) {
        ChangeKind::TwoPhaseVoided
    } else {
        ChangeKind::SinglePhase
    }
}

/// One record of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "nearly all records are movements")]
pub enum LogRecord {
    /// An account was created.
    Account(Account),
    /// Balances changed.
    Movement(Movement),
    /// A transfer id was refused for good.
    Burnt {
        /// The id.
        id: u128,
        /// The time of the refusal.
        timestamp: u64,
    },
}

impl LogRecord {
    /// The transfer id that the record uses up.
    #[must_use]
    pub const fn transfer_id(&self) -> Option<u128> {
        match self {
            Self::Movement(movement) if movement.creates_transfer() => Some(movement.transfer.id),
            Self::Burnt { id, .. } => Some(*id),
            _ => None,
        }
    }

    /// Its timestamp.
    #[must_use]
    pub const fn timestamp(&self) -> u64 {
        match self {
            Self::Account(account) => account.timestamp,
            Self::Movement(movement) => movement.timestamp,
            Self::Burnt { timestamp, .. } => *timestamp,
        }
    }
}

/// Read access to records that have left the machine. The rules need old records only to answer repetitions
/// and late resolutions, so they are stored elsewhere.
pub trait History {
    /// Why a record could not be read.
    type Error;

    /// The record with this number, which exists.
    ///
    /// # Errors
    /// If it cannot be read.
    fn record(&self, number: u64) -> Result<LogRecord, Self::Error>;

    /// Number of records.
    fn len(&self) -> u64;

    /// Returns whether there are no records.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of the first movement with at least this timestamp; [`History::len`] if there is none.
    /// (Movements are in the order of their timestamps.)
    ///
    /// # Errors
    /// If records cannot be read.
    fn seek(&self, timestamp: u64) -> Result<u64, Self::Error>;

    /// Looks for ids that the machine has forgotten ([`Machine::forget_ids`](super::Machine::forget_ids)).
    /// For each hash it visits the position in `hashes`, and number and status of each record that may have
    /// used an id with this hash. The first visit that names a record has its latest status.
    ///
    /// # Errors
    /// If the index cannot be read.
    fn find_ids(
        &self,
        hashes: &[u64],
        visit: &mut dyn FnMut(usize, u64, IdStatus),
    ) -> Result<(), Self::Error> {
        // The history of a machine that forgets nothing.
        let _ = (hashes, visit);
        Ok(())
    }
}

/// A history in memory, for tests and models.
#[derive(Clone, Debug, Default)]
pub struct MemoryHistory {
    records: Vec<LogRecord>,
    /// Timestamp and record number of each movement.
    movements: Vec<(u64, u64)>,
}

impl MemoryHistory {
    /// Appends records that a machine has returned.
    pub fn extend(&mut self, records: impl IntoIterator<Item = LogRecord>) {
        for record in records {
            if let LogRecord::Movement(movement) = &record {
                self.movements.push((movement.timestamp, self.records.len() as u64));
            }
            self.records.push(record);
        }
    }

    /// All records.
    #[must_use]
    pub fn records(&self) -> &[LogRecord] {
        &self.records
    }
}

impl History for MemoryHistory {
    type Error = std::convert::Infallible;

    fn record(&self, number: u64) -> Result<LogRecord, Self::Error> {
        Ok(self.records[usize::try_from(number).expect("records are in memory")])
    }

    fn len(&self) -> u64 {
        self.records.len() as u64
    }

    fn seek(&self, timestamp: u64) -> Result<u64, Self::Error> {
        let at = self.movements.partition_point(|(at, _)| *at < timestamp);
        Ok(self.movements.get(at).map_or(self.len(), |(_, number)| *number))
    }
}
