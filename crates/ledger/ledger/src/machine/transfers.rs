//! Single-phase and pending transfers.

use super::ids::IdStatus;
use super::log::{Balances, History, LogRecord, Movement, Side, kind_of};
use super::{EventTime, Machine, TIMESTAMP_END};
use crate::{
    Account, AccountFlags, CreateTransferStatus, CreateTransferStatus as S, NS_PER_S, Transfer,
    TransferFlags as F,
};

/// Data for a transfer that no other event of its batch can change.
pub(super) struct Prepared {
    /// The hash of its id.
    pub hash: u64,
    /// Records that may have used its id and that the machine has forgotten.
    pub old: Vec<(u64, IdStatus)>,
    /// The number of its debit account.
    pub debit: Option<u32>,
    /// The number of its credit account.
    pub credit: Option<u32>,
}

/// A refusal: the status, and the timestamp for the answer.
pub(super) type Refusal = (CreateTransferStatus, u64);

/// Both accounts of a movement, before it.
#[derive(Clone, Copy)]
pub(super) struct Pair<'a> {
    pub debit: (u32, &'a Account, u64),
    pub credit: (u32, &'a Account, u64),
}

impl<'a> Pair<'a> {
    pub(super) fn of(machine: &'a Machine, debit: u32, credit: u32) -> Self {
        let state = |number| {
            let state = machine.accounts.get(number);
            (number, &state.account, state.last)
        };
        Self { debit: state(debit), credit: state(credit) }
    }

    /// The movement that changes both accounts' balances and flags like this.
    pub(super) fn movement(
        &self,
        transfer: Transfer,
        change: impl Fn(&mut Balances, &mut Balances) -> Option<()>,
        flags: impl Fn(AccountFlags, AccountFlags) -> (AccountFlags, AccountFlags),
    ) -> Movement {
        let (debit, credit) = (self.debit.1, self.credit.1);
        let (mut debit_after, mut credit_after) = (Balances::of(debit), Balances::of(credit));
        change(&mut debit_after, &mut credit_after).expect("no balance leaves its range: it was checked");
        let (debit_flags, credit_flags) = flags(debit.flags, credit.flags);
        let side = |(account, _, previous), balances, flags| Side { account, flags, balances, previous };
        Movement {
            kind: kind_of(transfer.flags),
            timestamp: transfer.timestamp,
            transfer,
            debit: side(self.debit, debit_after, debit_flags),
            credit: side(self.credit, credit_after, credit_flags),
        }
    }
}

impl Machine {
    pub(super) fn prepare_transfer(&self, event: &Transfer) -> Prepared {
        let account = |id: u128| match id {
            0 => None,
            id => {
                let number = self.accounts.find(self.hasher.hash(id), id)?;
                // Prefetch: the whole account will be needed.
                let state = self.accounts.get(number);
                std::hint::black_box((state.account.debits_pending, state.account.code, state.last));
                Some(number)
            }
        };
        let hash = self.hasher.hash(event.id);
        // Prefetch only: the id is looked up again when its event is decided.
        std::hint::black_box(self.ids.find(hash).next());
        Prepared {
            hash,
            old: Vec::new(),
            debit: account(event.debit_account_id),
            credit: account(event.credit_account_id),
        }
    }

    /// Decides whether a transfer may be created, and its effect. Checks run in the order of the
    /// specification's tables (1.7).
    pub(super) fn decide_transfer<H: History>(
        &self,
        history: &H,
        event: &Transfer,
        prepared: &Prepared,
        slot: EventTime,
    ) -> Result<Result<LogRecord, Refusal>, H::Error> {
        let refuse = |status| Ok(Err((status, slot.timestamp)));
        let imported = event.flags.contains(F::IMPORTED);
        if imported != slot.importing {
            return refuse(if slot.importing {
                S::ImportedEventExpected
            } else {
                S::ImportedEventNotExpected
            });
        }
        if !imported && event.timestamp != 0 {
            return refuse(S::TimestampMustBeZero);
        }
        if imported {
            if event.timestamp == 0 || event.timestamp >= TIMESTAMP_END {
                return refuse(S::ImportedEventTimestampOutOfRange);
            }
            if event.timestamp >= slot.operation {
                return refuse(S::ImportedEventTimestampMustNotAdvance);
            }
        }
        if !F::ALL.contains(event.flags) {
            return refuse(S::ReservedFlag);
        }
        if event.id == 0 {
            return refuse(S::IdMustNotBeZero);
        }
        if event.id == u128::MAX {
            return refuse(S::IdMustNotBeIntMax);
        }
        if let Some(refusal) = self.repetition(history, event, prepared, slot)? {
            return Ok(Err(refusal));
        }
        let timestamp = if imported { event.timestamp } else { slot.timestamp };
        let event = &Transfer { timestamp, ..*event };
        let decided = if event.flags.intersects(F::POST_PENDING_TRANSFER | F::VOID_PENDING_TRANSFER) {
            self.decide_resolution(history, event, slot)?
        } else {
            self.decide_new(event, prepared, slot)
        };
        Ok(decided.map(LogRecord::Movement).map_err(|status| (status, slot.timestamp)))
    }

    fn decide_new(
        &self,
        event: &Transfer,
        prepared: &Prepared,
        slot: EventTime,
    ) -> Result<Movement, CreateTransferStatus> {
        let require = |condition: bool, status| if condition { Ok(()) } else { Err(status) };
        let is_pending = event.flags.contains(F::PENDING);
        require(event.debit_account_id != 0, S::DebitAccountIdMustNotBeZero)?;
        require(event.debit_account_id != u128::MAX, S::DebitAccountIdMustNotBeIntMax)?;
        require(event.credit_account_id != 0, S::CreditAccountIdMustNotBeZero)?;
        require(event.credit_account_id != u128::MAX, S::CreditAccountIdMustNotBeIntMax)?;
        require(event.debit_account_id != event.credit_account_id, S::AccountsMustBeDifferent)?;
        require(event.pending_id == 0, S::PendingIdMustBeZero)?;
        require(event.timeout == 0 || is_pending, S::TimeoutReservedForPendingTransfer)?;
        let is_closing = event.flags.intersects(F::CLOSING_DEBIT | F::CLOSING_CREDIT);
        require(!is_closing || is_pending, S::ClosingTransferMustBePending)?;
        require(event.ledger != 0, S::LedgerMustNotBeZero)?;
        require(event.code != 0, S::CodeMustNotBeZero)?;
        let debit = prepared.debit.ok_or(S::DebitAccountNotFound)?;
        let credit = prepared.credit.ok_or(S::CreditAccountNotFound)?;
        let pair = Pair::of(self, debit, credit);
        let (debit, credit) = (pair.debit.1, pair.credit.1);
        require(debit.ledger == credit.ledger, S::AccountsMustHaveTheSameLedger)?;
        require(event.ledger == debit.ledger, S::TransferMustHaveTheSameLedgerAsAccounts)?;
        if slot.importing {
            self.require_later(event.timestamp)?;
            require(event.timestamp > debit.timestamp, S::ImportedEventTimestampMustPostdateDebitAccount)?;
            require(event.timestamp > credit.timestamp, S::ImportedEventTimestampMustPostdateCreditAccount)?;
            require(event.timeout == 0, S::ImportedEventTimeoutMustBeZero)?;
        }
        require(!debit.flags.contains(AccountFlags::CLOSED), S::DebitAccountAlreadyClosed)?;
        require(!credit.flags.contains(AccountFlags::CLOSED), S::CreditAccountAlreadyClosed)?;

        let amount = actual_amount(event, debit, credit);
        let fits = |balance: u128, status| require(balance.checked_add(amount).is_some(), status);
        if is_pending {
            fits(debit.debits_pending, S::OverflowsDebitsPending)?;
            fits(credit.credits_pending, S::OverflowsCreditsPending)?;
        }
        fits(debit.debits_posted, S::OverflowsDebitsPosted)?;
        fits(credit.credits_posted, S::OverflowsCreditsPosted)?;
        let total = |pending: u128, posted: u128, status| {
            pending.checked_add(posted).and_then(|sum| sum.checked_add(amount)).ok_or(status)
        };
        let debits = total(debit.debits_pending, debit.debits_posted, S::OverflowsDebits)?;
        let credits = total(credit.credits_pending, credit.credits_posted, S::OverflowsCredits)?;
        require(expires_at(event).is_none_or(|at| at < TIMESTAMP_END), S::OverflowsTimeout)?;
        let limits_debits = debit.flags.contains(AccountFlags::DEBITS_MUST_NOT_EXCEED_CREDITS);
        require(!limits_debits || debits <= debit.credits_posted, S::ExceedsCredits)?;
        let limits_credits = credit.flags.contains(AccountFlags::CREDITS_MUST_NOT_EXCEED_DEBITS);
        require(!limits_credits || credits <= credit.debits_posted, S::ExceedsDebits)?;

        Ok(pair.movement(
            Transfer { amount, ..*event },
            |debit, credit| {
                let (debits, credits) = if is_pending {
                    (&mut debit.debits_pending, &mut credit.credits_pending)
                } else {
                    (&mut debit.debits_posted, &mut credit.credits_posted)
                };
                *debits = debits.checked_add(amount)?;
                *credits = credits.checked_add(amount)?;
                Some(())
            },
            |debit, credit| {
                let close = |flags: AccountFlags, closing| {
                    if event.flags.contains(closing) { flags | AccountFlags::CLOSED } else { flags }
                };
                (close(debit, F::CLOSING_DEBIT), close(credit, F::CLOSING_CREDIT))
            },
        ))
    }

    /// Imported transfers come in the order of their timestamps, which no other object may have.
    pub(super) fn require_later(&self, timestamp: u64) -> Result<(), CreateTransferStatus> {
        let is_taken = !self.accounts.within(timestamp, timestamp).is_empty();
        if timestamp <= self.last_movement || is_taken {
            return Err(S::ImportedEventTimestampMustNotRegress);
        }
        Ok(())
    }
}

/// The amount to move. For balancing transfers: what is available, at most the requested amount.
fn actual_amount(event: &Transfer, debit: &Account, credit: &Account) -> u128 {
    let mut amount = event.amount;
    if event.flags.contains(F::BALANCING_DEBIT) {
        // Their sum fits: the rules accept no movement that would make it overflow.
        amount = amount.min(debit.credits_posted.saturating_sub(debit.debits_posted + debit.debits_pending));
    }
    if event.flags.contains(F::BALANCING_CREDIT) {
        amount =
            amount.min(credit.debits_posted.saturating_sub(credit.credits_posted + credit.credits_pending));
    }
    amount
}

/// When a pending transfer expires, if ever. Saturates beyond all valid timestamps.
pub(super) fn expires_at(transfer: &Transfer) -> Option<u64> {
    let timeout_ns = u64::from(transfer.timeout) * NS_PER_S;
    (transfer.timeout != 0).then(|| transfer.timestamp.saturating_add(timeout_ns))
}
