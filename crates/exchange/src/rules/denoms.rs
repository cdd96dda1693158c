//! The terms of all denominations, in memory.

use std::ops::ControlFlow;
use std::sync::{PoisonError, RwLock};

use batzen_protocol::{Money, Timestamp};
use batzen_store::{Store, StoreError};
use batzen_tables::exchange::{Cipher, DenomRow, DenomSerial, Denominations, Revocations};

/// What the rules need to know of a denomination. It never changes, but for the revocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DenomTerms {
    /// How it signs.
    pub cipher: Cipher,
    /// What a coin of it is worth.
    pub value: Money,
    /// Fee of a withdrawal, and of each fresh coin in a refresh.
    pub fee_withdraw: Money,
    /// Fee of a deposit.
    pub fee_deposit: Money,
    /// Fee of a melt.
    pub fee_refresh: Money,
    /// Fee of a refund.
    pub fee_refund: Money,
    /// From when it can be withdrawn and spent.
    pub start: Timestamp,
    /// Until when it can be withdrawn.
    pub expire_withdraw: Timestamp,
    /// Until when it can be spent.
    pub expire_deposit: Timestamp,
    /// Until when zombies can be melted.
    pub expire_legal: Timestamp,
    /// Whether it is revoked.
    pub revoked: bool,
}

/// Why a denomination is not usable for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DenomProblem {
    /// Its time has not come.
    Future,
    /// Its time for this operation is over.
    Expired,
    /// It is revoked.
    Revoked,
    /// It is not revoked (recoup).
    NotRevoked,
}

impl DenomTerms {
    /// The terms in a row, not revoked.
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
            revoked: false,
        }
    }

    /// Whether coins of it may be signed now (withdraw, reveal).
    ///
    /// # Errors
    /// Why not.
    pub fn signable(&self, now: Timestamp) -> Result<(), DenomProblem> {
        self.within(self.expire_withdraw, now)?;
        if self.revoked { Err(DenomProblem::Revoked) } else { Ok(()) }
    }

    /// Whether coins of it may be deposited now.
    ///
    /// # Errors
    /// Why not.
    pub fn spendable(&self, now: Timestamp) -> Result<(), DenomProblem> {
        self.within(self.expire_deposit, now)?;
        if self.revoked { Err(DenomProblem::Revoked) } else { Ok(()) }
    }

    /// Whether coins of it may be recouped now.
    ///
    /// # Errors
    /// Why not.
    pub fn recoupable(&self, now: Timestamp) -> Result<(), DenomProblem> {
        self.within(self.expire_deposit, now)?;
        if self.revoked { Ok(()) } else { Err(DenomProblem::NotRevoked) }
    }

    fn within(&self, end: Timestamp, now: Timestamp) -> Result<(), DenomProblem> {
        if now > end {
            Err(DenomProblem::Expired)
        } else if now < self.start {
            Err(DenomProblem::Future)
        } else {
            Ok(())
        }
    }
}

/// The terms of all denominations by serial.
///
/// This is the one thing that the rules read besides rows. It only grows, and a revocation only comes, so that a
/// decision never depends on when exactly it was read. Whoever changes the key set adds new denominations here *before*
/// publishing them, and revocations as soon as they are durable.
#[derive(Debug, Default)]
pub struct DenomTable {
    terms: RwLock<Vec<Option<DenomTerms>>>,
}

impl DenomTable {
    /// No denominations.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// All denominations and revocations in a store.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn load(store: &Store) -> Result<Self, StoreError> {
        let table = Self::new();
        table.reload(store)?;
        Ok(table)
    }

    /// Adds what has come since.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn reload(&self, store: &Store) -> Result<(), StoreError> {
        store.scan::<Denominations>(|found| {
            self.insert(found.key.serial, &found.row);
            ControlFlow::Continue(())
        })?;
        store.scan::<Revocations>(|found| {
            self.revoke(found.key.serial);
            ControlFlow::Continue(())
        })
    }

    /// Adds a denomination. One that is there keeps its terms and its revocation.
    pub fn insert(&self, serial: DenomSerial, row: &DenomRow) {
        let mut terms = self.terms.write().unwrap_or_else(PoisonError::into_inner);
        let index = serial.0 as usize;
        if terms.len() <= index {
            terms.resize(index + 1, None);
        }
        terms[index].get_or_insert_with(|| DenomTerms::of(row));
    }

    /// Marks a denomination as revoked, if it is known.
    pub fn revoke(&self, serial: DenomSerial) {
        let mut terms = self.terms.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(Some(terms)) = terms.get_mut(serial.0 as usize) {
            terms.revoked = true;
        }
    }

    /// The terms of a denomination.
    #[must_use]
    pub fn get(&self, serial: DenomSerial) -> Option<DenomTerms> {
        *self.terms.read().unwrap_or_else(PoisonError::into_inner).get(serial.0 as usize)?
    }

    /// The highest serial, 0 if there is none.
    #[must_use]
    pub fn serial_max(&self) -> u32 {
        let count = self.terms.read().unwrap_or_else(PoisonError::into_inner).len();
        u32::try_from(count.saturating_sub(1)).expect("serials are 32 bits wide")
    }
}
