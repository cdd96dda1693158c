//! The terms of all denominations, in memory.

use std::ops::ControlFlow;
use std::sync::{PoisonError, RwLock};

use batzen_engine::{Plan, WorkingSet};
use batzen_protocol::{Money, Timestamp};
use batzen_store::{ChangeSet, Record, Store, StoreError, Table};
use batzen_tables::exchange::{
    ArchiveCounts, Cipher, Coins, DenomKey, DenomRow, DenomSerial, Denominations, Revocations,
};

/// The terms of a denomination that the rules use. They never change, except that it may be closed. (A revocation is a row, which rules
/// plan and read like any other: see `plan_revocation`.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DenomTerms {
    /// Its cipher.
    pub cipher: Cipher,
    /// The value of its coins.
    pub value: Money,
    /// Fee of a withdrawal, and of each fresh coin in a refresh.
    pub fee_withdraw: Money,
    /// Fee of a deposit.
    pub fee_deposit: Money,
    /// Fee of a melt.
    pub fee_refresh: Money,
    /// Fee of a refund.
    pub fee_refund: Money,
    /// The time from which it can be withdrawn and spent.
    pub start: Timestamp,
    /// The time until which it can be withdrawn.
    pub expire_withdraw: Timestamp,
    /// The time until which it can be spent.
    pub expire_deposit: Timestamp,
    /// The time until which zombies can be melted.
    pub expire_legal: Timestamp,
    /// Whether coins of it have left for an archive. Then they are unknown, and none is accepted any more,
    /// whatever the clock says.
    pub(crate) is_closed: bool,
}

/// The reasons why a denomination is not usable for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DenomProblem {
    /// It is not valid yet.
    Future,
    /// It has expired for this operation.
    Expired,
    /// It is revoked.
    Revoked,
    /// It is not revoked (recoup).
    NotRevoked,
}

impl DenomTerms {
    /// The terms contained in a row.
    #[must_use]
    pub fn of(row: &DenomRow) -> Self {
        Self {
            cipher: row.cipher,
            value: row.value,
            fee_withdraw: row.fee_withdraw,
            fee_deposit: row.fee_deposit,
            fee_refresh: row.fee_refresh,
            fee_refund: row.fee_refund,
            start: row.start,
            expire_withdraw: row.expire_withdraw,
            expire_deposit: row.expire_deposit,
            expire_legal: row.expire_legal,
            is_closed: false,
        }
    }

    /// Returns whether its coins may be signed now (withdraw, reveal). The caller passes whether it is
    /// revoked.
    ///
    /// # Errors
    /// The problem, if they may not.
    pub(crate) fn signable(&self, revoked: bool, now: Timestamp) -> Result<(), DenomProblem> {
        self.within(self.expire_withdraw, now)?;
        if revoked { Err(DenomProblem::Revoked) } else { Ok(()) }
    }

    /// Returns whether its coins may be deposited now. The caller passes whether it is revoked.
    ///
    /// # Errors
    /// The problem, if they may not.
    pub(crate) fn spendable(&self, revoked: bool, now: Timestamp) -> Result<(), DenomProblem> {
        self.within(self.expire_deposit, now)?;
        if revoked { Err(DenomProblem::Revoked) } else { Ok(()) }
    }

    /// Returns whether its coins may be recouped now. The caller passes whether it is revoked.
    ///
    /// # Errors
    /// The problem, if they may not.
    pub(crate) fn recoupable(&self, revoked: bool, now: Timestamp) -> Result<(), DenomProblem> {
        self.within(self.expire_deposit, now)?;
        if revoked { Ok(()) } else { Err(DenomProblem::NotRevoked) }
    }

    fn within(&self, end: Timestamp, now: Timestamp) -> Result<(), DenomProblem> {
        if now > end || self.is_closed {
            Err(DenomProblem::Expired)
        } else if now < self.start {
            Err(DenomProblem::Future)
        } else {
            Ok(())
        }
    }
}

/// Plans the row that records a denomination's revocation. A batch sees every revocation that any process
/// committed before the batch loaded its rows. A later one is concurrent with the batch, so both orders are
/// valid. A recoup after the revocation changes the coin's row, on which the batch depends.
pub(super) fn plan_revocation(serial: DenomSerial, plan: &mut Plan) {
    plan.row::<Revocations>(DenomKey { serial });
}

/// Returns whether a denomination is revoked.
pub(super) fn is_revoked(rows: &WorkingSet, serial: DenomSerial) -> bool {
    rows.get::<Revocations>(&DenomKey { serial }).is_some()
}

/// The terms of all denominations by serial.
///
/// Besides rows, this table is the only thing that the rules read. It only grows, and terms never change, so
/// a decision never depends on the time of the read. Denominations that another process has added may be
/// missing; they are then read from the store (`DenomTable::find`).
#[derive(Debug, Default)]
pub struct DenomTable {
    terms: RwLock<Vec<Option<DenomTerms>>>,
}

impl DenomTable {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// All denominations in a store.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn load(store: &Store) -> Result<Self, StoreError> {
        let table = Self::new();
        table.reload(store)?;
        Ok(table)
    }

    /// Adds the denominations that the store has gained since.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub(crate) fn reload(&self, store: &Store) -> Result<(), StoreError> {
        store.scan::<Denominations>(|found| {
            self.insert(found.key.serial, &found.row);
            ControlFlow::Continue(())
        })?;
        store.scan::<ArchiveCounts>(|found| {
            if found.key.table == Coins::DEF.id {
                self.close(found.key.denom);
            }
            ControlFlow::Continue(())
        })
    }

    /// Closes the denominations whose coins left with a commit.
    pub(crate) fn committed(&self, changes: &ChangeSet) {
        for change in changes.changes() {
            if change.table().id == ArchiveCounts::DEF.id
                && change.new_row().is_some()
                && let Ok(key) = <ArchiveCounts as Table>::Key::decode(change.key())
                && key.table == Coins::DEF.id
            {
                self.close(key.denom);
            }
        }
    }

    fn close(&self, serial: DenomSerial) {
        let mut terms = self.terms.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(Some(terms)) = terms.get_mut(serial.0 as usize) {
            terms.is_closed = true;
        }
    }

    /// Returns whether all known denominations satisfy a condition.
    pub(crate) fn all(&self, holds: impl Fn(&DenomTerms) -> bool) -> bool {
        let terms = self.terms.read().unwrap_or_else(PoisonError::into_inner);
        terms.iter().flatten().all(holds)
    }

    /// The terms of a denomination, read from the store if another process has added it.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub(crate) fn find(&self, store: &Store, serial: DenomSerial) -> Result<Option<DenomTerms>, StoreError> {
        if let Some(terms) = self.get(serial) {
            return Ok(Some(terms));
        }
        if let Some(found) = store.get::<Denominations>(&DenomKey { serial })? {
            self.insert(serial, &found.row);
        }
        Ok(self.get(serial))
    }

    /// Adds a denomination. A denomination that exists keeps its terms.
    pub fn insert(&self, serial: DenomSerial, row: &DenomRow) {
        let mut terms = self.terms.write().unwrap_or_else(PoisonError::into_inner);
        let index = serial.0 as usize;
        if terms.len() <= index {
            terms.resize(index + 1, None);
        }
        terms[index].get_or_insert_with(|| DenomTerms::of(row));
    }

    /// The terms of a denomination.
    #[must_use]
    pub fn get(&self, serial: DenomSerial) -> Option<DenomTerms> {
        *self.terms.read().unwrap_or_else(PoisonError::into_inner).get(serial.0 as usize)?
    }

    /// The highest serial up to which all denominations are known and satisfy a condition; 0 if the first does
    /// not.
    pub(crate) fn all_up_to(&self, holds: impl Fn(&DenomTerms) -> bool) -> u32 {
        let terms = self.terms.read().unwrap_or_else(PoisonError::into_inner);
        let count = terms.iter().skip(1).take_while(|terms| terms.as_ref().is_some_and(&holds)).count();
        u32::try_from(count).expect("serials are 32 bits wide")
    }

    /// The highest serial, 0 if there is none.
    #[must_use]
    pub fn serial_max(&self) -> u32 {
        let count = self.terms.read().unwrap_or_else(PoisonError::into_inner).len();
        u32::try_from(count.saturating_sub(1)).expect("serials are 32 bits wide")
    }
}
