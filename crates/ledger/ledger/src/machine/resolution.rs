//! Posting, voiding and releasing pending transfers.

use super::ids::IdStatus;
use super::log::{Balances, History, Movement};
use super::pendings::Pending;
use super::transfers::Pair;
use super::{EventTime, Machine};
use crate::{
    AMOUNT_MAX, AccountFlags, ChangeKind, CreateTransferStatus, CreateTransferStatus as S, Transfer,
    TransferFlags as F,
};

impl Machine {
    pub(super) fn decide_resolution<H: History>(
        &self,
        history: &H,
        event: &Transfer,
        slot: EventTime,
    ) -> Result<Result<Movement, CreateTransferStatus>, H::Error> {
        if let Err(status) = check_alone(event) {
            return Ok(Err(status));
        }
        let hash = self.hasher.hash(event.pending_id);
        if let Some(pending) = self.pendings.get(hash, event.pending_id) {
            let transfer = self.transfer_of(pending);
            return Ok(match resolve(event, &transfer) {
                Ok(resolved) => self.decide_unresolved(resolved, pending, slot),
                Err(status) => Err(status),
            });
        }
        let Some((status, Some(transfer))) = self.known(history, hash, event.pending_id)? else {
            return Ok(Err(S::PendingTransferNotFound));
        };
        Ok(Err(match resolve(event, &transfer) {
            Err(refusal) => refusal,
            Ok(_) => match status {
                IdStatus::Posted => S::PendingTransferAlreadyPosted,
                IdStatus::Voided => S::PendingTransferAlreadyVoided,
                IdStatus::Expired => S::PendingTransferExpired,
                status => unreachable!("a resolved pending transfer is {status:?}"),
            },
        }))
    }

    fn decide_unresolved(
        &self,
        resolved: Transfer,
        pending: &Pending,
        slot: EventTime,
    ) -> Result<Movement, CreateTransferStatus> {
        if pending.expires_at().is_some_and(|at| at <= slot.timestamp) {
            return Err(S::PendingTransferExpired);
        }
        if slot.importing {
            self.require_later(resolved.timestamp)?;
        }
        let pair = Pair::of(self, pending.debit, pending.credit);
        let is_void = resolved.flags.contains(F::VOID_PENDING_TRANSFER);
        if !is_void {
            if pair.debit.1.flags.contains(AccountFlags::CLOSED) {
                return Err(S::DebitAccountAlreadyClosed);
            }
            if pair.credit.1.flags.contains(AccountFlags::CLOSED) {
                return Err(S::CreditAccountAlreadyClosed);
            }
        }
        let reserved = pending.amount;
        Ok(if is_void {
            pair.movement(resolved, |debit, credit| release(reserved, debit, credit), reopen(pending))
        } else {
            let change = |debit: &mut Balances, credit: &mut Balances| {
                release(reserved, debit, credit)?;
                debit.debits_posted = debit.debits_posted.checked_add(resolved.amount)?;
                credit.credits_posted = credit.credits_posted.checked_add(resolved.amount)?;
                Some(())
            };
            pair.movement(resolved, change, |debit, credit| (debit, credit))
        })
    }

    /// The release of an expired pending transfer.
    pub(super) fn expiry_of(&self, pending: &Pending, timestamp: u64) -> Movement {
        let pair = Pair::of(self, pending.debit, pending.credit);
        let change = |debit: &mut Balances, credit: &mut Balances| release(pending.amount, debit, credit);
        let movement = pair.movement(self.transfer_of(pending), change, reopen(pending));
        Movement { kind: ChangeKind::TwoPhaseExpired, timestamp, ..movement }
    }

    /// A pending transfer in its original form.
    fn transfer_of(&self, pending: &Pending) -> Transfer {
        let (debit, credit) = (self.accounts.get(pending.debit), self.accounts.get(pending.credit));
        Transfer {
            id: pending.id,
            debit_account_id: debit.account.id,
            credit_account_id: credit.account.id,
            amount: pending.amount,
            pending_id: 0,
            user_data_128: pending.user_data_128,
            user_data_64: pending.user_data_64,
            user_data_32: pending.user_data_32,
            timeout: pending.timeout,
            ledger: debit.account.ledger,
            code: pending.code,
            flags: pending.flags,
            timestamp: pending.timestamp,
        }
    }
}

/// Checks that do not need the pending transfer.
fn check_alone(event: &Transfer) -> Result<(), CreateTransferStatus> {
    let others = F::PENDING | F::BALANCING_DEBIT | F::BALANCING_CREDIT | F::CLOSING_DEBIT | F::CLOSING_CREDIT;
    if event.flags.contains(F::POST_PENDING_TRANSFER | F::VOID_PENDING_TRANSFER)
        || event.flags.intersects(others)
    {
        return Err(S::FlagsAreMutuallyExclusive);
    }
    match event.pending_id {
        0 => return Err(S::PendingIdMustNotBeZero),
        u128::MAX => return Err(S::PendingIdMustNotBeIntMax),
        id if id == event.id => return Err(S::PendingIdMustBeDifferent),
        _ => {}
    }
    if event.timeout == 0 { Ok(()) } else { Err(S::TimeoutReservedForPendingTransfer) }
}

/// The event with all values inherited from the pending transfer.
fn resolve(event: &Transfer, pending: &Transfer) -> Result<Transfer, CreateTransferStatus> {
    if !pending.flags.contains(F::PENDING) {
        return Err(S::PendingTransferNotPending);
    }
    let differs = |given: u128, inherited: u128| given != 0 && given != inherited;
    if differs(event.debit_account_id, pending.debit_account_id) {
        return Err(S::PendingTransferHasDifferentDebitAccountId);
    }
    if differs(event.credit_account_id, pending.credit_account_id) {
        return Err(S::PendingTransferHasDifferentCreditAccountId);
    }
    if differs(event.ledger.into(), pending.ledger.into()) {
        return Err(S::PendingTransferHasDifferentLedger);
    }
    if differs(event.code.into(), pending.code.into()) {
        return Err(S::PendingTransferHasDifferentCode);
    }
    let is_void = event.flags.contains(F::VOID_PENDING_TRANSFER);
    let is_whole = if is_void { event.amount == 0 } else { event.amount == AMOUNT_MAX };
    let amount = if is_whole { pending.amount } else { event.amount };
    if amount > pending.amount {
        return Err(S::ExceedsPendingTransferAmount);
    }
    if is_void && amount < pending.amount {
        return Err(S::PendingTransferHasDifferentAmount);
    }
    Ok(Transfer {
        debit_account_id: pending.debit_account_id,
        credit_account_id: pending.credit_account_id,
        amount,
        user_data_128: or(event.user_data_128, pending.user_data_128),
        user_data_64: or(event.user_data_64, pending.user_data_64),
        user_data_32: or(event.user_data_32, pending.user_data_32),
        ledger: pending.ledger,
        code: pending.code,
        ..*event
    })
}

fn or<T: Default + PartialEq>(given: T, inherited: T) -> T {
    if given == T::default() { inherited } else { given }
}

/// Removes a pending transfer's reservation from both pending balances.
fn release(amount: u128, debit: &mut Balances, credit: &mut Balances) -> Option<()> {
    debit.debits_pending = debit.debits_pending.checked_sub(amount)?;
    credit.credits_pending = credit.credits_pending.checked_sub(amount)?;
    Some(())
}

/// Reopens the accounts that the pending transfer closed.
fn reopen(pending: &Pending) -> impl Fn(AccountFlags, AccountFlags) -> (AccountFlags, AccountFlags) {
    let flags = pending.flags;
    let open = move |account: AccountFlags, closing| {
        if flags.contains(closing) { account.without(AccountFlags::CLOSED) } else { account }
    };
    move |debit, credit| (open(debit, F::CLOSING_DEBIT), open(credit, F::CLOSING_CREDIT))
}
