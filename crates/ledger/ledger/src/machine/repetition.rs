//! Repetitions: ids that are already used.

use super::ids::IdStatus;
use super::log::{History, LogRecord};
use super::transfers::{Prepared, Refusal};
use super::{EventTime, Machine};
use crate::{AMOUNT_MAX, CreateTransferStatus, CreateTransferStatus as S, Transfer, TransferFlags as F};

/// The status of a used id, and its transfer. A burnt id has none.
type Known = (IdStatus, Option<Transfer>);

impl Machine {
    /// The answer to a transfer whose id is used; `None` if the id is free.
    pub(super) fn repetition<H: History>(
        &self,
        history: &H,
        event: &Transfer,
        prepared: &Prepared,
        slot: EventTime,
    ) -> Result<Option<Refusal>, H::Error> {
        let candidates = self.ids.find(prepared.hash).chain(prepared.old.iter().copied());
        let existing = match self.known_among(history, candidates, event.id)? {
            None => return Ok(None),
            Some((_, None)) => return Ok(Some((S::IdAlreadyFailed, slot.timestamp))),
            Some((_, Some(existing))) => existing,
        };
        let inherited = if existing.pending_id == 0 {
            None
        } else {
            let hash = self.hasher.hash(existing.pending_id);
            let pending = self.known(history, hash, existing.pending_id)?.and_then(|(_, transfer)| transfer);
            Some(pending.expect("what was resolved exists"))
        };
        Ok(Some((compare(event, &existing, inherited.as_ref()), existing.timestamp)))
    }

    /// The status of a used id, and its transfer. A burnt id has none.
    pub(super) fn known<H: History>(
        &self,
        history: &H,
        hash: u64,
        id: u128,
    ) -> Result<Option<Known>, H::Error> {
        if let Some(known) = self.known_among(history, self.ids.find(hash), id)? {
            return Ok(Some(known));
        }
        let mut old = Vec::new();
        history.find_ids(&[hash], &mut |_, number, status| old.push((number, status)))?;
        self.known_among(history, old.into_iter(), id)
    }

    /// The first of the candidates that used the id.
    fn known_among<H: History>(
        &self,
        history: &H,
        candidates: impl Iterator<Item = (u64, IdStatus)>,
        id: u128,
    ) -> Result<Option<Known>, H::Error> {
        for (number, status) in candidates {
            match self.record(history, number)? {
                LogRecord::Movement(movement) if movement.transfer.id == id => {
                    return Ok(Some((status, Some(movement.transfer))));
                }
                LogRecord::Burnt { id: burnt, .. } if burnt == id => return Ok(Some((status, None))),
                _ => {}
            }
        }
        Ok(None)
    }
}

/// Returns the difference between a repetition and the existing transfer. An inherited field stands for its
/// value, and the bound of a balancing transfer only has to cover the moved amount.
fn compare(event: &Transfer, existing: &Transfer, pending: Option<&Transfer>) -> CreateTransferStatus {
    if event.flags != existing.flags {
        return S::ExistsWithDifferentFlags;
    }
    if event.pending_id != existing.pending_id {
        return S::ExistsWithDifferentPendingId;
    }
    if event.timeout != existing.timeout {
        return S::ExistsWithDifferentTimeout;
    }
    if meant(event.debit_account_id, 0, pending.map(|p| p.debit_account_id)) != existing.debit_account_id {
        return S::ExistsWithDifferentDebitAccountId;
    }
    if meant(event.credit_account_id, 0, pending.map(|p| p.credit_account_id)) != existing.credit_account_id {
        return S::ExistsWithDifferentCreditAccountId;
    }
    let whole = if event.flags.contains(F::VOID_PENDING_TRANSFER) { 0 } else { AMOUNT_MAX };
    let amount = meant(event.amount, whole, pending.map(|p| p.amount));
    let is_bound = event.flags.intersects(F::BALANCING_DEBIT | F::BALANCING_CREDIT);
    if if is_bound { amount < existing.amount } else { amount != existing.amount } {
        return S::ExistsWithDifferentAmount;
    }
    if meant(event.user_data_128, 0, pending.map(|p| p.user_data_128)) != existing.user_data_128 {
        return S::ExistsWithDifferentUserData128;
    }
    if meant(event.user_data_64, 0, pending.map(|p| p.user_data_64)) != existing.user_data_64 {
        return S::ExistsWithDifferentUserData64;
    }
    if meant(event.user_data_32, 0, pending.map(|p| p.user_data_32)) != existing.user_data_32 {
        return S::ExistsWithDifferentUserData32;
    }
    if meant(event.ledger, 0, pending.map(|p| p.ledger)) != existing.ledger {
        return S::ExistsWithDifferentLedger;
    }
    if meant(event.code, 0, pending.map(|p| p.code)) != existing.code {
        return S::ExistsWithDifferentCode;
    }
    S::Exists
}

/// The effective value of an event's field, given the value that it would inherit.
fn meant<T: PartialEq>(given: T, absent: T, inherited: Option<T>) -> T {
    match inherited {
        Some(inherited) if given == absent => inherited,
        _ => given,
    }
}
