//! Reads a log again: quickly when a ledger opens, or with all rules to verify it.

use super::log::{Balances, History, LogRecord, Movement, kind_of};
use super::pendings::Pending;
use super::{Counts, EventTime, Machine, TIMESTAMP_END};
use crate::{
    Account, AccountFlags, ChangeKind, CreateAccountStatus, CreateTransferStatus, Transfer, TransferFlags,
};

/// A record that the rules would not have made, or sums that are wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record {number}: {what}")]
pub struct Divergence {
    /// The record's number; for sums the number of records.
    pub number: u64,
    /// What is wrong.
    pub what: String,
}

/// Why a record does not follow from the state, or from the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum RecordError {
    #[error("the burnt id was taken before")]
    BurntIdTaken,
    #[error("its timestamp is out of range")]
    TimestampRange,
    #[error("its timestamp is not later")]
    TimestampOrder,
    #[error("the account exists")]
    AccountExists,
    #[error("a new account has balances")]
    NewAccountBalances,
    #[error("its kind is not that of its flags")]
    Kind,
    #[error("it breaks the limit of an account")]
    Limit,
    #[error("both sides are one account")]
    SameAccount,
    #[error("it names an account that does not exist")]
    UnknownAccount,
    #[error("it does not follow the account's last")]
    Sequence,
    #[error("its accounts are of two ledgers")]
    TwoLedgers,
    #[error("it resolves what is not unresolved")]
    NotPending,
    #[error("it has other accounts than what it resolves")]
    OtherAccounts,
    #[error("a balance leaves its range")]
    BalanceRange,
    #[error("its balances are not those that its amount gives")]
    Balances,
    #[error("it is released out of turn: next is {0:?}")]
    ReleaseOrder(Option<(u64, u128)>),
    #[error("{0}")]
    Account(CreateAccountStatus),
    #[error("{0}")]
    Transfer(CreateTransferStatus),
}

impl Machine {
    /// Reserves memory for a log of about this many transfers.
    pub fn reserve(&mut self, transfers: u64) {
        self.ids.reserve(transfers);
    }

    /// Applies a stored record. Trusts that the rules made it, but checks that it fits the state.
    ///
    /// # Errors
    /// If the record does not follow from the state.
    ///
    /// # Panics
    /// If there are unsettled records.
    pub fn restore(&mut self, record: &LogRecord) -> Result<(), Divergence> {
        assert!(self.undo.is_empty() && self.fresh.is_empty(), "a machine restores before it decides");
        self.check_fits(record).map_err(|error| self.divergence(error.to_string()))?;
        self.clock = self.clock.max(record.timestamp());
        self.apply(record);
        self.settled += 1;
        Ok(())
    }

    /// [`Machine::restore`] for consecutive records. Loads the index entries and accounts that they need into
    /// the cache together.
    ///
    /// # Errors
    /// As [`Machine::restore`].
    ///
    /// # Panics
    /// As [`Machine::restore`].
    pub fn restore_all(&mut self, records: &[LogRecord]) -> Result<(), Divergence> {
        for record in records {
            if let LogRecord::Movement(movement) = record {
                let hash = self.hasher.hash(movement.transfer.id);
                std::hint::black_box(self.ids.find(hash).next());
                for side in [&movement.debit, &movement.credit] {
                    if usize::try_from(side.account).is_ok_and(|number| number < self.accounts.count()) {
                        let state = self.accounts.get(side.account);
                        std::hint::black_box((state.account.debits_pending, state.account.flags, state.last));
                    }
                }
            }
        }
        records.iter().try_for_each(|record| self.restore(record))
    }

    /// Decides a stored record again, by all rules, and compares.
    ///
    /// # Errors
    /// If the history cannot be read. Inside: if the rules decide differently.
    pub fn replay<H: History>(
        &mut self,
        history: &H,
        record: &LogRecord,
    ) -> Result<Result<(), Divergence>, H::Error> {
        if let Err(error) = self.check_fits(record) {
            return Ok(Err(self.divergence(error.to_string())));
        }
        let imported = match record {
            LogRecord::Account(account) => account.flags.contains(AccountFlags::IMPORTED),
            LogRecord::Movement(m) => {
                m.creates_transfer() && m.transfer.flags.contains(TransferFlags::IMPORTED)
            }
            LogRecord::Burnt { .. } => false,
        };
        let slot =
            EventTime { timestamp: record.timestamp(), operation: TIMESTAMP_END - 1, importing: imported };
        let given = |timestamp| if imported { timestamp } else { 0 };
        let decided = match record {
            LogRecord::Account(account) => {
                let event = Account { timestamp: given(account.timestamp), ..*account };
                self.decide_account(history, &event, slot)?
                    .map_err(|(status, _)| RecordError::Account(status))
            }
            LogRecord::Movement(movement) if movement.creates_transfer() => {
                let event = Transfer { timestamp: given(movement.timestamp), ..movement.transfer };
                let prepared = self.prepare_transfer(&event);
                self.decide_transfer(history, &event, &prepared, slot)?
                    .map_err(|(status, _)| RecordError::Transfer(status))
            }
            LogRecord::Movement(movement) => self.repeat_expiry(movement).map(LogRecord::Movement),
            LogRecord::Burnt { id, .. } => match self.known(history, self.hasher.hash(*id), *id)? {
                None => Ok(*record),
                Some(_) => Err(RecordError::BurntIdTaken),
            },
        };
        let verdict = match decided {
            Ok(again) if again == *record => self.restore(&again),
            Ok(again) => Err(self.divergence(format!("the rules make {again:?} of {record:?}"))),
            Err(refusal) => Err(self.divergence(format!("the rules refuse it: {refusal}"))),
        };
        Ok(verdict)
    }

    /// Releases the transfer that expires next, if it is the one of this movement.
    fn repeat_expiry(&self, movement: &Movement) -> Result<Movement, RecordError> {
        match self.pendings.next_expiry() {
            Some((at, id)) if id == movement.transfer.id && at <= movement.timestamp => {
                let pending =
                    self.pendings.get(self.hasher.hash(id), id).expect("what is queued is unresolved");
                Ok(self.expiry_of(pending, movement.timestamp))
            }
            next => Err(RecordError::ReleaseOrder(next)),
        }
    }

    /// Checks what [`Machine::apply`] asserts, since a record from a disk may be wrong.
    fn check_fits(&self, record: &LogRecord) -> Result<(), RecordError> {
        let require = |condition: bool, error: RecordError| if condition { Ok(()) } else { Err(error) };
        require(record.timestamp() < TIMESTAMP_END, RecordError::TimestampRange)?;
        match record {
            LogRecord::Account(account) => {
                require(account.timestamp > self.accounts.last_timestamp(), RecordError::TimestampOrder)?;
                require(
                    self.accounts.find(self.hasher.hash(account.id), account.id).is_none(),
                    RecordError::AccountExists,
                )?;
                require(Balances::of(account) == Balances::default(), RecordError::NewAccountBalances)
            }
            LogRecord::Movement(movement) => self.check_movement(movement),
            LogRecord::Burnt { .. } => Ok(()),
        }
    }

    fn check_movement(&self, movement: &Movement) -> Result<(), RecordError> {
        let require = |condition: bool, error: RecordError| if condition { Ok(()) } else { Err(error) };
        let transfer = &movement.transfer;
        require(movement.timestamp > self.last_movement, RecordError::TimestampOrder)?;
        if movement.creates_transfer() {
            require(movement.kind == kind_of(transfer.flags), RecordError::Kind)?;
        }
        require(movement.keeps_limits(), RecordError::Limit)?;
        let (debit, credit) = (&movement.debit, &movement.credit);
        require(debit.account != credit.account, RecordError::SameAccount)?;
        for side in [debit, credit] {
            let is_known = usize::try_from(side.account).is_ok_and(|number| number < self.accounts.count());
            require(is_known, RecordError::UnknownAccount)?;
            require(self.accounts.get(side.account).last == side.previous, RecordError::Sequence)?;
        }
        let (before_debit, before_credit) =
            (self.accounts.get(debit.account), self.accounts.get(credit.account));
        require(before_debit.ledger == before_credit.ledger, RecordError::TwoLedgers)?;
        let (mut debits, mut credits) =
            (Balances::of(&before_debit.account), Balances::of(&before_credit.account));
        let resolved = match movement.kind {
            ChangeKind::SinglePhase | ChangeKind::TwoPhasePending => None,
            ChangeKind::TwoPhaseExpired => Some(transfer.id),
            ChangeKind::TwoPhasePosted | ChangeKind::TwoPhaseVoided => Some(transfer.pending_id),
        };
        let reserved = match resolved {
            None => 0,
            Some(id) => {
                let pending: &Pending =
                    self.pendings.get(self.hasher.hash(id), id).ok_or(RecordError::NotPending)?;
                require(
                    (pending.debit, pending.credit) == (debit.account, credit.account),
                    RecordError::OtherAccounts,
                )?;
                pending.amount
            }
        };
        let (reserve, post) = match movement.kind {
            ChangeKind::SinglePhase | ChangeKind::TwoPhasePosted => (0, transfer.amount),
            ChangeKind::TwoPhasePending => (transfer.amount, 0),
            ChangeKind::TwoPhaseVoided | ChangeKind::TwoPhaseExpired => (0, 0),
        };
        let step = |balance: &mut u128, add: u128, subtract: u128| {
            *balance = balance
                .checked_sub(subtract)
                .and_then(|balance| balance.checked_add(add))
                .ok_or(RecordError::BalanceRange)?;
            Ok::<_, RecordError>(())
        };
        step(&mut debits.debits_pending, reserve, reserved)?;
        step(&mut credits.credits_pending, reserve, reserved)?;
        step(&mut debits.debits_posted, post, 0)?;
        step(&mut credits.credits_posted, post, 0)?;
        require(debits == debit.balances && credits == credit.balances, RecordError::Balances)
    }

    fn divergence(&self, what: String) -> Divergence {
        Divergence { number: self.counts.records, what }
    }

    /// Checks the invariants of the whole state: sums, limits, reserved amounts, the queue, and the counts.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check(&self) -> Result<(), Divergence> {
        let require =
            |condition: bool, what: String| if condition { Ok(()) } else { Err(self.divergence(what)) };
        let mut sums = std::collections::BTreeMap::<u32, Balances>::new();
        let mut ids = std::collections::HashSet::new();
        for account in self.accounts.all() {
            let sum = sums.entry(account.ledger).or_default();
            *sum = sum.moved(Balances::default(), Balances::of(account));
            require(ids.insert(account.id), format!("account {} exists twice", account.id))?;
            let total = |a: u128, b: u128| a.checked_add(b);
            let debits = total(account.debits_pending, account.debits_posted);
            let credits = total(account.credits_pending, account.credits_posted);
            require(debits.is_some() && credits.is_some(), format!("account {} overflows", account.id))?;
            let holds = (!account.flags.contains(AccountFlags::DEBITS_MUST_NOT_EXCEED_CREDITS)
                || debits <= Some(account.credits_posted))
                && (!account.flags.contains(AccountFlags::CREDITS_MUST_NOT_EXCEED_DEBITS)
                    || credits <= Some(account.debits_posted));
            require(holds, format!("the limit of account {} is broken", account.id))?;
        }
        for (ledger, running) in self.accounts.sums() {
            let sum = sums.get(&ledger).copied().unwrap_or_default();
            require(sum == running, format!("the running sums of ledger {ledger} are wrong"))?;
            require(
                sum.debits_pending == sum.credits_pending && sum.debits_posted == sum.credits_posted,
                format!("ledger {ledger}: debits and credits differ"),
            )?;
        }
        let mut reserved = std::collections::HashMap::<u32, (u128, u128)>::new();
        let mut can_expire = 0;
        for pending in self.pendings.all() {
            let debits = &mut reserved.entry(pending.debit).or_default().0;
            *debits = debits.wrapping_add(pending.amount);
            let credits = &mut reserved.entry(pending.credit).or_default().1;
            *credits = credits.wrapping_add(pending.amount);
            can_expire += usize::from(pending.expires_at().is_some());
        }
        for (number, account) in (0_u32..).zip(self.accounts.all()) {
            let expected = reserved.get(&number).copied().unwrap_or_default();
            require(
                expected == (account.debits_pending, account.credits_pending),
                format!("account {}: pending balances are not what is reserved", account.id),
            )?;
        }
        require(can_expire == self.pendings.queued(), "the queue of expiries is not complete".to_owned())?;
        let counts = Counts {
            accounts: self.accounts.count() as u64,
            pendings: self.pendings.count() as u64,
            transfers: self.ids.count() - self.counts.burnt,
            ..self.counts
        };
        require(counts == self.counts, format!("counts are {:?}, not {counts:?}", self.counts))
    }
}
