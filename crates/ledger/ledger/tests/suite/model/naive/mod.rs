//! The rules of the specification (1.4 to 1.7), implemented as simply as possible: lists, no indexes,
//! balances summed up each time, and one predicate per row of the precedence tables. The first that holds is
//! the status.

use batzen_ledger::{
    AMOUNT_MAX, Account, AccountFlags as A, BATCH_EVENTS_MAX, ChangeKind, CreateAccountStatus as AS,
    CreateTransferStatus as S, NS_PER_S, Transfer, TransferFlags as T,
};

pub(super) const ACCOUNT_ORDER: &[AS] = &[
    AS::ImportedEventExpected,
    AS::ImportedEventNotExpected,
    AS::TimestampMustBeZero,
    AS::ImportedEventTimestampOutOfRange,
    AS::ImportedEventTimestampMustNotAdvance,
    AS::ReservedField,
    AS::ReservedFlag,
    AS::IdMustNotBeZero,
    AS::IdMustNotBeIntMax,
    AS::ExistsWithDifferentFlags,
    AS::ExistsWithDifferentUserData128,
    AS::ExistsWithDifferentUserData64,
    AS::ExistsWithDifferentUserData32,
    AS::ExistsWithDifferentLedger,
    AS::ExistsWithDifferentCode,
    AS::Exists,
    AS::FlagsAreMutuallyExclusive,
    AS::DebitsPendingMustBeZero,
    AS::DebitsPostedMustBeZero,
    AS::CreditsPendingMustBeZero,
    AS::CreditsPostedMustBeZero,
    AS::LedgerMustNotBeZero,
    AS::CodeMustNotBeZero,
    AS::ImportedEventTimestampMustNotRegress,
    AS::Created,
];

const PREFIX_ORDER: &[S] = &[
    S::ImportedEventExpected,
    S::ImportedEventNotExpected,
    S::TimestampMustBeZero,
    S::ImportedEventTimestampOutOfRange,
    S::ImportedEventTimestampMustNotAdvance,
    S::ReservedFlag,
    S::IdMustNotBeZero,
    S::IdMustNotBeIntMax,
    S::ExistsWithDifferentFlags,
    S::ExistsWithDifferentPendingId,
    S::ExistsWithDifferentTimeout,
    S::ExistsWithDifferentDebitAccountId,
    S::ExistsWithDifferentCreditAccountId,
    S::ExistsWithDifferentAmount,
    S::ExistsWithDifferentUserData128,
    S::ExistsWithDifferentUserData64,
    S::ExistsWithDifferentUserData32,
    S::ExistsWithDifferentLedger,
    S::ExistsWithDifferentCode,
    S::Exists,
    S::IdAlreadyFailed,
];

const NEW_ORDER: &[S] = &[
    S::DebitAccountIdMustNotBeZero,
    S::DebitAccountIdMustNotBeIntMax,
    S::CreditAccountIdMustNotBeZero,
    S::CreditAccountIdMustNotBeIntMax,
    S::AccountsMustBeDifferent,
    S::PendingIdMustBeZero,
    S::TimeoutReservedForPendingTransfer,
    S::ClosingTransferMustBePending,
    S::LedgerMustNotBeZero,
    S::CodeMustNotBeZero,
    S::DebitAccountNotFound,
    S::CreditAccountNotFound,
    S::AccountsMustHaveTheSameLedger,
    S::TransferMustHaveTheSameLedgerAsAccounts,
    S::ImportedEventTimestampMustNotRegress,
    S::ImportedEventTimestampMustPostdateDebitAccount,
    S::ImportedEventTimestampMustPostdateCreditAccount,
    S::ImportedEventTimeoutMustBeZero,
    S::DebitAccountAlreadyClosed,
    S::CreditAccountAlreadyClosed,
    S::OverflowsDebitsPending,
    S::OverflowsCreditsPending,
    S::OverflowsDebitsPosted,
    S::OverflowsCreditsPosted,
    S::OverflowsDebits,
    S::OverflowsCredits,
    S::OverflowsTimeout,
    S::ExceedsCredits,
    S::ExceedsDebits,
    S::Created,
];

const RESOLUTION_ORDER: &[S] = &[
    S::FlagsAreMutuallyExclusive,
    S::PendingIdMustNotBeZero,
    S::PendingIdMustNotBeIntMax,
    S::PendingIdMustBeDifferent,
    S::TimeoutReservedForPendingTransfer,
    S::PendingTransferNotFound,
    S::PendingTransferNotPending,
    S::PendingTransferHasDifferentDebitAccountId,
    S::PendingTransferHasDifferentCreditAccountId,
    S::PendingTransferHasDifferentLedger,
    S::PendingTransferHasDifferentCode,
    S::ExceedsPendingTransferAmount,
    S::PendingTransferHasDifferentAmount,
    S::PendingTransferAlreadyPosted,
    S::PendingTransferAlreadyVoided,
    S::PendingTransferExpired,
    S::ImportedEventTimestampMustNotRegress,
    S::DebitAccountAlreadyClosed,
    S::CreditAccountAlreadyClosed,
    S::Created,
];

/// The table for an event.
pub(super) fn transfer_order(event: &Transfer) -> Vec<S> {
    let path = if is_resolution(event) { RESOLUTION_ORDER } else { NEW_ORDER };
    [PREFIX_ORDER, path].concat()
}

fn is_resolution(event: &Transfer) -> bool {
    event.flags.intersects(T::POST_PENDING_TRANSFER | T::VOID_PENDING_TRANSFER)
}

/// The log, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Happened {
    pub kind: ChangeKind,
    pub timestamp: u64,
    pub transfer: Transfer,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Naive {
    pub accounts: Vec<Account>,
    pub events: Vec<Happened>,
    pub burnt: Vec<u128>,
    pub clock: u64,
}

#[derive(Clone, Copy)]
pub(super) struct Moment {
    pub slot: u64,
    pub operation: u64,
    pub importing: bool,
}

impl Naive {
    fn account(&self, id: u128) -> Option<Account> {
        let account = self.accounts.iter().find(|account| account.id == id)?;
        Some(self.with_balances(*account))
    }

    /// An account with the balances of all movements, and closed if one of them closed it.
    pub(super) fn with_balances(&self, mut account: Account) -> Account {
        for Happened { kind, transfer, .. } in &self.events {
            let (is_debit, is_credit) =
                (transfer.debit_account_id == account.id, transfer.credit_account_id == account.id);
            let (pending, posted) = if is_debit {
                (&mut account.debits_pending, &mut account.debits_posted)
            } else if is_credit {
                (&mut account.credits_pending, &mut account.credits_posted)
            } else {
                continue;
            };
            let closing = if is_debit { T::CLOSING_DEBIT } else { T::CLOSING_CREDIT };
            let closes = |pending: &Transfer| pending.flags.contains(closing);
            match kind {
                ChangeKind::SinglePhase => *posted += transfer.amount,
                ChangeKind::TwoPhasePending => {
                    *pending += transfer.amount;
                    if closes(transfer) {
                        account.flags = account.flags | A::CLOSED;
                    }
                }
                ChangeKind::TwoPhasePosted => {
                    *pending -= self.transfer(transfer.pending_id).unwrap().amount;
                    *posted += transfer.amount;
                }
                ChangeKind::TwoPhaseVoided | ChangeKind::TwoPhaseExpired => {
                    let id =
                        if *kind == ChangeKind::TwoPhaseVoided { transfer.pending_id } else { transfer.id };
                    let reserved = self.transfer(id).unwrap();
                    *pending -= reserved.amount;
                    if closes(&reserved) {
                        account.flags = account.flags.without(A::CLOSED);
                    }
                }
            }
        }
        account
    }

    pub(super) fn transfers(&self) -> impl DoubleEndedIterator<Item = &Transfer> {
        self.events.iter().filter(|e| e.kind != ChangeKind::TwoPhaseExpired).map(|e| &e.transfer)
    }

    pub(super) fn transfer(&self, id: u128) -> Option<Transfer> {
        self.transfers().find(|transfer| transfer.id == id).copied()
    }

    /// Returns the end of a pending transfer.
    fn end_of(&self, id: u128) -> Option<ChangeKind> {
        self.events.iter().find_map(|e| match e.kind {
            ChangeKind::TwoPhasePosted | ChangeKind::TwoPhaseVoided if e.transfer.pending_id == id => {
                Some(e.kind)
            }
            ChangeKind::TwoPhaseExpired if e.transfer.id == id => Some(e.kind),
            _ => None,
        })
    }

    fn is_taken(&self, timestamp: u64) -> bool {
        self.accounts.iter().any(|a| a.timestamp == timestamp)
            || self.events.iter().any(|e| e.timestamp == timestamp)
    }

    fn deserves_account(&self, event: &Account, at: Moment, status: AS) -> bool {
        let imported = event.flags.contains(A::IMPORTED);
        let existing = self.account(event.id);
        let differs = |different: fn(&Account, &Account) -> bool| {
            existing.as_ref().is_some_and(|existing| different(event, existing))
        };
        match status {
            AS::ImportedEventExpected => at.importing && !imported,
            AS::ImportedEventNotExpected => !at.importing && imported,
            AS::TimestampMustBeZero => !imported && event.timestamp != 0,
            AS::ImportedEventTimestampOutOfRange => {
                imported && (event.timestamp == 0 || event.timestamp >= 1 << 63)
            }
            AS::ImportedEventTimestampMustNotAdvance => imported && event.timestamp >= at.operation,
            AS::ReservedField => event.reserved != 0,
            AS::ReservedFlag => event.flags.0 >= 1 << 6,
            AS::IdMustNotBeZero => event.id == 0,
            AS::IdMustNotBeIntMax => event.id == u128::MAX,
            AS::ExistsWithDifferentFlags => differs(|a, b| a.flags != b.flags),
            AS::ExistsWithDifferentUserData128 => differs(|a, b| a.user_data_128 != b.user_data_128),
            AS::ExistsWithDifferentUserData64 => differs(|a, b| a.user_data_64 != b.user_data_64),
            AS::ExistsWithDifferentUserData32 => differs(|a, b| a.user_data_32 != b.user_data_32),
            AS::ExistsWithDifferentLedger => differs(|a, b| a.ledger != b.ledger),
            AS::ExistsWithDifferentCode => differs(|a, b| a.code != b.code),
            AS::Exists => existing.is_some(),
            AS::FlagsAreMutuallyExclusive => {
                event.flags.contains(A::DEBITS_MUST_NOT_EXCEED_CREDITS | A::CREDITS_MUST_NOT_EXCEED_DEBITS)
            }
            AS::DebitsPendingMustBeZero => event.debits_pending != 0,
            AS::DebitsPostedMustBeZero => event.debits_posted != 0,
            AS::CreditsPendingMustBeZero => event.credits_pending != 0,
            AS::CreditsPostedMustBeZero => event.credits_posted != 0,
            AS::LedgerMustNotBeZero => event.ledger == 0,
            AS::CodeMustNotBeZero => event.code == 0,
            AS::ImportedEventTimestampMustNotRegress => {
                imported
                    && (self.accounts.iter().any(|a| a.timestamp >= event.timestamp)
                        || self.is_taken(event.timestamp))
            }
            AS::Created => true,
            AS::LinkedEventFailed | AS::LinkedEventChainOpen => unreachable!("not in the order"),
        }
    }

    /// The fields that a repetition of `existing` implies, made explicit.
    fn meant(&self, event: &Transfer, existing: &Transfer) -> Transfer {
        let mut meant = *event;
        let Some(pending) = self.transfer(existing.pending_id) else { return meant };
        let inherit = |to: &mut u128, from: u128| *to = if *to == 0 { from } else { *to };
        inherit(&mut meant.debit_account_id, pending.debit_account_id);
        inherit(&mut meant.credit_account_id, pending.credit_account_id);
        inherit(&mut meant.user_data_128, pending.user_data_128);
        meant.user_data_64 = if meant.user_data_64 == 0 { pending.user_data_64 } else { meant.user_data_64 };
        meant.user_data_32 = if meant.user_data_32 == 0 { pending.user_data_32 } else { meant.user_data_32 };
        meant.ledger = if meant.ledger == 0 { pending.ledger } else { meant.ledger };
        meant.code = if meant.code == 0 { pending.code } else { meant.code };
        let whole = if existing.flags.contains(T::VOID_PENDING_TRANSFER) { 0 } else { AMOUNT_MAX };
        meant.amount = if meant.amount == whole { pending.amount } else { meant.amount };
        meant
    }

    /// The amount that would move.
    pub(super) fn actual(&self, event: &Transfer) -> u128 {
        let mut amount = event.amount;
        let (debit, credit) = (self.account(event.debit_account_id), self.account(event.credit_account_id));
        if event.flags.contains(T::BALANCING_DEBIT)
            && let Some(debit) = debit
        {
            amount =
                amount.min(debit.credits_posted.saturating_sub(debit.debits_posted + debit.debits_pending));
        }
        if event.flags.contains(T::BALANCING_CREDIT)
            && let Some(credit) = credit
        {
            amount = amount
                .min(credit.debits_posted.saturating_sub(credit.credits_posted + credit.credits_pending));
        }
        amount
    }

    #[allow(clippy::too_many_lines, reason = "a table")]
    fn deserves_transfer(&self, event: &Transfer, at: Moment, status: S) -> bool {
        let imported = event.flags.contains(T::IMPORTED);
        let is_pending = event.flags.contains(T::PENDING);
        let is_void = event.flags.contains(T::VOID_PENDING_TRANSFER);
        let timestamp = if imported { event.timestamp } else { at.slot };
        let existing = self.transfer(event.id);
        let differs = |different: fn(&Transfer, &Transfer) -> bool| {
            existing.as_ref().is_some_and(|existing| different(&self.meant(event, existing), existing))
        };
        let resolved = if is_resolution(event) { self.transfer(event.pending_id) } else { None };
        let pending = resolved.filter(|p| p.flags.contains(T::PENDING));
        let (debit, credit) = match &pending {
            Some(p) => (self.account(p.debit_account_id), self.account(p.credit_account_id)),
            None => (self.account(event.debit_account_id), self.account(event.credit_account_id)),
        };
        let amount = self.actual(event);
        let too_much = |balances: &[u128]| {
            balances.iter().try_fold(amount, |sum, balance| sum.checked_add(*balance)).is_none()
        };
        let on_debit = |holds: &dyn Fn(&Account) -> bool| debit.as_ref().is_some_and(holds);
        let on_credit = |holds: &dyn Fn(&Account) -> bool| credit.as_ref().is_some_and(holds);
        let on_pending = |holds: &dyn Fn(&Transfer) -> bool| pending.as_ref().is_some_and(holds);
        let resolved_amount = |p: &Transfer| match (is_void, event.amount) {
            (true, 0) | (false, AMOUNT_MAX) => p.amount,
            (_, amount) => amount,
        };
        match status {
            S::ImportedEventExpected => at.importing && !imported,
            S::ImportedEventNotExpected => !at.importing && imported,
            S::TimestampMustBeZero => !imported && event.timestamp != 0,
            S::ImportedEventTimestampOutOfRange => {
                imported && (event.timestamp == 0 || event.timestamp >= 1 << 63)
            }
            S::ImportedEventTimestampMustNotAdvance => imported && event.timestamp >= at.operation,
            S::ReservedFlag => event.flags.0 >= 1 << 9,
            S::IdMustNotBeZero => event.id == 0,
            S::IdMustNotBeIntMax => event.id == u128::MAX,
            S::ExistsWithDifferentFlags => differs(|a, b| a.flags != b.flags),
            S::ExistsWithDifferentPendingId => differs(|a, b| a.pending_id != b.pending_id),
            S::ExistsWithDifferentTimeout => differs(|a, b| a.timeout != b.timeout),
            S::ExistsWithDifferentDebitAccountId => differs(|a, b| a.debit_account_id != b.debit_account_id),
            S::ExistsWithDifferentCreditAccountId => {
                differs(|a, b| a.credit_account_id != b.credit_account_id)
            }
            S::ExistsWithDifferentAmount => differs(|a, b| {
                let is_bound = a.flags.intersects(T::BALANCING_DEBIT | T::BALANCING_CREDIT);
                if is_bound { a.amount < b.amount } else { a.amount != b.amount }
            }),
            S::ExistsWithDifferentUserData128 => differs(|a, b| a.user_data_128 != b.user_data_128),
            S::ExistsWithDifferentUserData64 => differs(|a, b| a.user_data_64 != b.user_data_64),
            S::ExistsWithDifferentUserData32 => differs(|a, b| a.user_data_32 != b.user_data_32),
            S::ExistsWithDifferentLedger => differs(|a, b| a.ledger != b.ledger),
            S::ExistsWithDifferentCode => differs(|a, b| a.code != b.code),
            S::Exists => existing.is_some(),
            S::IdAlreadyFailed => self.burnt.contains(&event.id),
            S::DebitAccountIdMustNotBeZero => event.debit_account_id == 0,
            S::DebitAccountIdMustNotBeIntMax => event.debit_account_id == u128::MAX,
            S::CreditAccountIdMustNotBeZero => event.credit_account_id == 0,
            S::CreditAccountIdMustNotBeIntMax => event.credit_account_id == u128::MAX,
            S::AccountsMustBeDifferent => event.debit_account_id == event.credit_account_id,
            S::PendingIdMustBeZero => event.pending_id != 0,
            S::TimeoutReservedForPendingTransfer => event.timeout != 0 && !is_pending,
            S::ClosingTransferMustBePending => {
                event.flags.intersects(T::CLOSING_DEBIT | T::CLOSING_CREDIT) && !is_pending
            }
            S::LedgerMustNotBeZero => event.ledger == 0,
            S::CodeMustNotBeZero => event.code == 0,
            S::DebitAccountNotFound => debit.is_none(),
            S::CreditAccountNotFound => credit.is_none(),
            S::AccountsMustHaveTheSameLedger => {
                on_debit(&|debit| on_credit(&|credit| debit.ledger != credit.ledger))
            }
            S::TransferMustHaveTheSameLedgerAsAccounts => on_debit(&|debit| debit.ledger != event.ledger),
            S::ImportedEventTimestampMustNotRegress => {
                imported && (self.events.iter().any(|e| e.timestamp >= timestamp) || self.is_taken(timestamp))
            }
            S::ImportedEventTimestampMustPostdateDebitAccount => {
                imported && on_debit(&|debit| timestamp <= debit.timestamp)
            }
            S::ImportedEventTimestampMustPostdateCreditAccount => {
                imported && on_credit(&|credit| timestamp <= credit.timestamp)
            }
            S::ImportedEventTimeoutMustBeZero => imported && event.timeout != 0,
            S::DebitAccountAlreadyClosed => !is_void && on_debit(&|debit| debit.flags.contains(A::CLOSED)),
            S::CreditAccountAlreadyClosed => {
                !is_void && on_credit(&|credit| credit.flags.contains(A::CLOSED))
            }
            S::OverflowsDebitsPending => is_pending && on_debit(&|a| too_much(&[a.debits_pending])),
            S::OverflowsCreditsPending => is_pending && on_credit(&|a| too_much(&[a.credits_pending])),
            S::OverflowsDebitsPosted => on_debit(&|a| too_much(&[a.debits_posted])),
            S::OverflowsCreditsPosted => on_credit(&|a| too_much(&[a.credits_posted])),
            S::OverflowsDebits => on_debit(&|a| too_much(&[a.debits_pending, a.debits_posted])),
            S::OverflowsCredits => on_credit(&|a| too_much(&[a.credits_pending, a.credits_posted])),
            S::OverflowsTimeout => {
                event.timeout != 0
                    && u128::from(timestamp) + u128::from(event.timeout) * 1_000_000_000 >= 1 << 63
            }
            S::ExceedsCredits => on_debit(&|a| {
                let debits = a.debits_pending.saturating_add(a.debits_posted).saturating_add(amount);
                a.flags.contains(A::DEBITS_MUST_NOT_EXCEED_CREDITS) && debits > a.credits_posted
            }),
            S::ExceedsDebits => on_credit(&|a| {
                let credits = a.credits_pending.saturating_add(a.credits_posted).saturating_add(amount);
                a.flags.contains(A::CREDITS_MUST_NOT_EXCEED_DEBITS) && credits > a.debits_posted
            }),
            S::FlagsAreMutuallyExclusive => {
                event.flags.contains(T::POST_PENDING_TRANSFER | T::VOID_PENDING_TRANSFER)
                    || event.flags.intersects(
                        T::PENDING
                            | T::BALANCING_DEBIT
                            | T::BALANCING_CREDIT
                            | T::CLOSING_DEBIT
                            | T::CLOSING_CREDIT,
                    )
            }
            S::PendingIdMustNotBeZero => event.pending_id == 0,
            S::PendingIdMustNotBeIntMax => event.pending_id == u128::MAX,
            S::PendingIdMustBeDifferent => event.pending_id == event.id,
            S::PendingTransferNotFound => resolved.is_none(),
            S::PendingTransferNotPending => resolved.is_some() && pending.is_none(),
            S::PendingTransferHasDifferentDebitAccountId => {
                event.debit_account_id != 0 && on_pending(&|p| p.debit_account_id != event.debit_account_id)
            }
            S::PendingTransferHasDifferentCreditAccountId => {
                event.credit_account_id != 0
                    && on_pending(&|p| p.credit_account_id != event.credit_account_id)
            }
            S::PendingTransferHasDifferentLedger => {
                event.ledger != 0 && on_pending(&|p| p.ledger != event.ledger)
            }
            S::PendingTransferHasDifferentCode => event.code != 0 && on_pending(&|p| p.code != event.code),
            S::ExceedsPendingTransferAmount => on_pending(&|p| resolved_amount(p) > p.amount),
            S::PendingTransferHasDifferentAmount => {
                is_void && on_pending(&|p| resolved_amount(p) != p.amount)
            }
            S::PendingTransferAlreadyPosted => {
                self.end_of(event.pending_id) == Some(ChangeKind::TwoPhasePosted)
            }
            S::PendingTransferAlreadyVoided => {
                self.end_of(event.pending_id) == Some(ChangeKind::TwoPhaseVoided)
            }
            S::PendingTransferExpired => match self.end_of(event.pending_id) {
                Some(end) => end == ChangeKind::TwoPhaseExpired,
                None => on_pending(&|p| {
                    p.timeout != 0 && p.timestamp + u64::from(p.timeout) * NS_PER_S <= at.slot
                }),
            },
            S::Created => true,
            S::LinkedEventFailed | S::LinkedEventChainOpen => unreachable!("not in the order"),
        }
    }

    /// Every status that an event deserves, by precedence.
    pub(super) fn account_statuses(&self, event: &Account, at: Moment) -> Vec<AS> {
        ACCOUNT_ORDER.iter().copied().filter(|status| self.deserves_account(event, at, *status)).collect()
    }

    /// Every status that an event deserves, by precedence.
    pub(super) fn transfer_statuses(&self, event: &Transfer, at: Moment) -> Vec<S> {
        let order = transfer_order(event);
        order.into_iter().filter(|status| self.deserves_transfer(event, at, *status)).collect()
    }

    fn create(&mut self, event: &Transfer, at: Moment) -> u64 {
        let timestamp = if event.flags.contains(T::IMPORTED) { event.timestamp } else { at.slot };
        let mut transfer = Transfer { timestamp, ..*event };
        let kind = if is_resolution(event) {
            let pending = self.transfer(event.pending_id).unwrap();
            let is_void = event.flags.contains(T::VOID_PENDING_TRANSFER);
            transfer.debit_account_id = pending.debit_account_id;
            transfer.credit_account_id = pending.credit_account_id;
            transfer.ledger = pending.ledger;
            transfer.code = pending.code;
            if is_void || event.amount == AMOUNT_MAX {
                transfer.amount = pending.amount;
            }
            if event.user_data_128 == 0 {
                transfer.user_data_128 = pending.user_data_128;
            }
            if event.user_data_64 == 0 {
                transfer.user_data_64 = pending.user_data_64;
            }
            if event.user_data_32 == 0 {
                transfer.user_data_32 = pending.user_data_32;
            }
            if is_void { ChangeKind::TwoPhaseVoided } else { ChangeKind::TwoPhasePosted }
        } else {
            transfer.amount = self.actual(event);
            if event.flags.contains(T::PENDING) {
                ChangeKind::TwoPhasePending
            } else {
                ChangeKind::SinglePhase
            }
        };
        self.events.push(Happened { kind, timestamp, transfer });
        timestamp
    }

    fn chains<E: Copy, St: Copy + PartialEq>(
        &mut self,
        events: &[E],
        (created, failed, open): (St, St, St),
        is_linked: fn(&E) -> bool,
        mut one: impl FnMut(&mut Self, &E, u64) -> (St, u64, Option<u128>),
    ) -> Vec<(St, u64)> {
        let first = self.clock + 1;
        self.clock += events.len() as u64;
        let mut results = Vec::new();
        let mut at = 0;
        while at < events.len() {
            let length = events[at..].iter().take_while(|event| is_linked(event)).count() + 1;
            let end = (at + length).min(events.len());
            let is_open = at + length > events.len();
            let before = self.clone();
            let mut broken = None;
            let mut chain = Vec::new();
            for (n, event) in events.iter().enumerate().take(end).skip(at) {
                let slot = first + n as u64;
                if broken.is_some() {
                    chain.push((failed, slot));
                    continue;
                }
                if is_open && n + 1 == end {
                    break;
                }
                let (status, timestamp, burns) = one(self, event, slot);
                chain.push((status, timestamp));
                if status != created {
                    broken = Some((n - at, burns));
                }
            }
            if is_open {
                chain.truncate(end - at - 1);
                chain.push((open, first + end as u64 - 1));
            }
            if broken.is_some() || is_open {
                let keep = broken.as_ref().map_or(chain.len() - 1, |(n, _)| *n);
                if chain.len() > 1 || is_open {
                    for (n, result) in chain.iter_mut().enumerate() {
                        if n != keep && !(is_open && n + 1 == end - at) {
                            *result = (failed, first + (at + n) as u64);
                        }
                    }
                }
                let clock = self.clock;
                *self = before;
                self.clock = clock;
                if let Some((_, Some(id))) = broken {
                    self.burnt.push(id);
                }
            }
            results.extend(chain);
            at = end;
        }
        results
    }

    pub(super) fn create_accounts(&mut self, now: u64, events: &[Account]) -> Vec<(AS, u64)> {
        let operation = now.max(self.clock + 1) + events.len() as u64;
        self.clock = operation - events.len() as u64;
        let importing = events.first().is_some_and(|event| event.flags.contains(A::IMPORTED));
        let statuses = (AS::Created, AS::LinkedEventFailed, AS::LinkedEventChainOpen);
        let is_linked = |event: &Account| event.flags.contains(A::LINKED);
        self.chains(events, statuses, is_linked, |naive, event, slot| {
            let status = naive.account_statuses(event, Moment { slot, operation, importing })[0];
            if status == AS::Created {
                let timestamp = if importing { event.timestamp } else { slot };
                naive.accounts.push(Account { timestamp, ..*event });
                return (status, timestamp, None);
            }
            let existing = naive.account(event.id).filter(|_| ACCOUNT_ORDER[9..=15].contains(&status));
            (status, existing.map_or(slot, |existing| existing.timestamp), None)
        })
    }

    pub(super) fn create_transfers(&mut self, now: u64, events: &[Transfer]) -> Vec<(S, u64)> {
        let operation = now.max(self.clock + 1) + events.len() as u64;
        self.clock = operation - events.len() as u64;
        let importing = events.first().is_some_and(|event| event.flags.contains(T::IMPORTED));
        let statuses = (S::Created, S::LinkedEventFailed, S::LinkedEventChainOpen);
        let is_linked = |event: &Transfer| event.flags.contains(T::LINKED);
        self.chains(events, statuses, is_linked, |naive, event, slot| {
            let at = Moment { slot, operation, importing };
            let status = naive.transfer_statuses(event, at)[0];
            if status == S::Created {
                return (status, naive.create(event, at), None);
            }
            let existing = naive.transfer(event.id).filter(|_| PREFIX_ORDER[8..=19].contains(&status));
            let timestamp = existing.map_or(slot, |existing| existing.timestamp);
            if status.burns() {
                naive.burnt.push(event.id);
            }
            (status, timestamp, status.burns().then_some(event.id))
        })
    }

    /// Releases expired transfers in order, at most a batch.
    pub(super) fn pulse(&mut self, now: u64) -> usize {
        let first = now.max(self.clock + 1) + 1;
        let mut due: Vec<(u64, Transfer)> = self
            .transfers()
            .filter(|t| t.flags.contains(T::PENDING) && t.timeout != 0 && self.end_of(t.id).is_none())
            .map(|t| (t.timestamp + u64::from(t.timeout) * NS_PER_S, *t))
            .filter(|(at, _)| *at <= first)
            .collect();
        due.sort_by_key(|(at, transfer)| (*at, transfer.timestamp));
        due.truncate(BATCH_EVENTS_MAX);
        self.clock = first - 1 + BATCH_EVENTS_MAX as u64;
        for (n, (_, transfer)) in due.iter().enumerate() {
            let kind = ChangeKind::TwoPhaseExpired;
            self.events.push(Happened { kind, timestamp: first + n as u64, transfer: *transfer });
        }
        due.len()
    }
}
