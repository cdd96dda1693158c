//! Processing a log again: fast when a ledger opens, or with all rules to verify it.

use super::log::{Balances, History, LogRecord, Movement, kind_of};
use super::pendings::Pending;
use super::{Counts, EventTime, Machine, TIMESTAMP_END};
use crate::{Account, AccountFlags, ChangeKind, Transfer, TransferFlags};

/// A record that the rules would not have produced, or sums that do not add up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record {number}: {fault}")]
pub struct Divergence {
    /// The record's number; for sums, the number of records.
    pub number: u64,
    /// The fault.
    pub(crate) fault: Fault,
}

/// Faults of a log, or of the state that it leads to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    /// The record cannot follow the state before it.
    #[error("{0}")]
    Unfit(&'static str),
    /// The rules refuse the event of the record.
    #[error("the rules refuse it: {0}")]
    Refused(String),
    /// The rules produce a different record for the event.
    #[error("the rules decide {decided:?}, but {stored:?} is stored")]
    Decided {
        /// The record that the rules produce.
        decided: Box<LogRecord>,
        /// The stored record.
        stored: Box<LogRecord>,
    },
    /// Two accounts have the same id.
    #[error("account {0} exists twice")]
    AccountTwice(u128),
    /// The balances of an account are too large.
    #[error("account {0} overflows")]
    AccountOverflow(u128),
    /// An account has exceeded its limit.
    #[error("account {0} exceeds its limit")]
    LimitBroken(u128),
    /// The running sums of a ledger differ from the sums over its accounts.
    #[error("the running sums of ledger {0} are wrong")]
    Sums(u32),
    /// The debits and credits of a ledger differ.
    #[error("ledger {0}: debits and credits differ")]
    Unbalanced(u32),
    /// The pending balances of an account differ from the sums of its pending transfers.
    #[error("account {0}: pending balances differ from the reserved amounts")]
    Reserved(u128),
    /// A pending transfer with a timeout is not queued, or a queued one is not pending.
    #[error("the queue of expiries is not complete")]
    ExpiryQueue,
    /// The counts do not match the state.
    #[error("counts are {stored:?}, not {found:?}")]
    Counts {
        /// The machine's counts.
        stored: Counts,
        /// The counts of the actual objects.
        found: Counts,
    },
    /// The log leads to a different state than the current one.
    #[error("the log leads to another digest")]
    Digest,
}

/// A pending transfer expires out of order: the time and id of the one that is next.
#[derive(Debug, thiserror::Error)]
#[error("it is released out of turn: next is {0:?}")]
struct OutOfTurn(Option<(u64, u128)>);

impl Machine {
    /// Reserves memory for a log of about this many transfers.
    pub fn reserve(&mut self, transfers: u64) {
        self.ids.reserve(transfers);
    }

    /// Applies a stored record again, trusting that the rules produced it. Checks only that it fits the
    /// state.
    ///
    /// # Errors
    /// When the record does not fit the state.
    ///
    /// # Panics
    /// When there are records that are not settled.
    pub fn restore(&mut self, record: &LogRecord) -> Result<(), Divergence> {
        assert!(self.undo.is_empty() && self.fresh.is_empty(), "a machine restores before it decides");
        self.check_fits(record).map_err(|what| self.divergence(Fault::Unfit(what)))?;
        self.clock = self.clock.max(record.timestamp());
        self.apply(record);
        self.settled += 1;
        Ok(())
    }

    /// [`Machine::restore`] for consecutive records. The index entries and accounts that they need are loaded
    /// into the cache together.
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

    /// Decides a stored record again with all rules, and compares the result.
    ///
    /// # Errors
    /// When the history cannot be read. Inner result: when the rules decide differently.
    pub fn replay<H: History>(
        &mut self,
        history: &H,
        record: &LogRecord,
    ) -> Result<Result<(), Divergence>, H::Error> {
        if let Err(what) = self.check_fits(record) {
            return Ok(Err(self.divergence(Fault::Unfit(what))));
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
                self.decide_account(history, &event, slot)?.map_err(|(status, _)| status.to_string())
            }
            LogRecord::Movement(movement) if movement.creates_transfer() => {
                let event = Transfer { timestamp: given(movement.timestamp), ..movement.transfer };
                let prepared = self.prepare_transfer(&event);
                self.decide_transfer(history, &event, &prepared, slot)?
                    .map_err(|(status, _)| status.to_string())
            }
            LogRecord::Movement(movement) => {
                self.expiry_again(movement).map(LogRecord::Movement).map_err(|error| error.to_string())
            }
            LogRecord::Burnt { id, .. } => match self.known(history, self.hasher.hash(*id), *id)? {
                None => Ok(*record),
                Some(_) => Err("the burnt id was taken before".to_owned()),
            },
        };
        let verdict = match decided {
            Ok(again) if again == *record => self.restore(&again),
            Ok(again) => {
                let fault = Fault::Decided { decided: Box::new(again), stored: Box::new(*record) };
                Err(self.divergence(fault))
            }
            Err(refusal) => Err(self.divergence(Fault::Refused(refusal))),
        };
        Ok(verdict)
    }

    /// The release of the transfer that expires next, if `movement` is about that one.
    fn expiry_again(&self, movement: &Movement) -> Result<Movement, OutOfTurn> {
        match self.pendings.next_expiry() {
            Some((at, id)) if id == movement.transfer.id && at <= movement.timestamp => {
                let pending =
                    self.pendings.get(self.hasher.hash(id), id).expect("what is queued is unresolved");
                Ok(self.expiry_of(pending, movement.timestamp))
            }
            next => Err(OutOfTurn(next)),
        }
    }

    /// Checks the assertions of [`Machine::apply`] first, because a record from a disk may violate them.
    fn check_fits(&self, record: &LogRecord) -> Result<(), &'static str> {
        require(record.timestamp() < TIMESTAMP_END, "its timestamp is out of range")?;
        match record {
            LogRecord::Account(account) => {
                require(account.timestamp > self.accounts.last_timestamp(), "its timestamp is not later")?;
                require(
                    self.accounts.find(self.hasher.hash(account.id), account.id).is_none(),
                    "the account exists",
                )?;
                require(Balances::of(account) == Balances::default(), "a new account has balances")
            }
            LogRecord::Movement(movement) => self.check_movement(movement),
            LogRecord::Burnt { .. } => Ok(()),
        }
    }

    fn check_movement(&self, movement: &Movement) -> Result<(), &'static str> {
        let transfer = &movement.transfer;
        require(movement.timestamp > self.last_movement, "its timestamp is not later")?;
        if movement.creates_transfer() {
            require(movement.kind == kind_of(transfer.flags), "its kind is not that of its flags")?;
        }
        require(movement.keeps_limits(), "it breaks the limit of an account")?;
        let (debit, credit) = (&movement.debit, &movement.credit);
        require(debit.account != credit.account, "both sides are one account")?;
        for side in [debit, credit] {
            let is_known = usize::try_from(side.account).is_ok_and(|number| number < self.accounts.count());
            require(is_known, "it names an account that does not exist")?;
            require(
                self.accounts.get(side.account).last == side.previous,
                "it does not follow the account's last",
            )?;
        }
        let (before_debit, before_credit) =
            (self.accounts.get(debit.account), self.accounts.get(credit.account));
        require(before_debit.ledger == before_credit.ledger, "its accounts are of two ledgers")?;
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
                let pending: &Pending = self
                    .pendings
                    .get(self.hasher.hash(id), id)
                    .ok_or("it resolves a transfer that is not pending")?;
                require(
                    (pending.debit, pending.credit) == (debit.account, credit.account),
                    "its accounts differ from those of the transfer that it resolves",
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
                .ok_or("a balance leaves its range")?;
            Ok::<_, &'static str>(())
        };
        step(&mut debits.debits_pending, reserve, reserved)?;
        step(&mut credits.credits_pending, reserve, reserved)?;
        step(&mut debits.debits_posted, post, 0)?;
        step(&mut credits.credits_posted, post, 0)?;
        require(
            debits == debit.balances && credits == credit.balances,
            "its balances are not those that its amount gives",
        )
    }

    fn divergence(&self, fault: Fault) -> Divergence {
        Divergence { number: self.counts.records, fault }
    }

    /// Checks the invariants over the whole state: sums, limits, reserved amounts, the queue, and the counts.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check(&self) -> Result<(), Divergence> {
        let require =
            |condition: bool, fault: Fault| if condition { Ok(()) } else { Err(self.divergence(fault)) };
        let mut sums = std::collections::BTreeMap::<u32, Balances>::new();
        let mut ids = std::collections::HashSet::new();
        for account in self.accounts.all() {
            let sum = sums.entry(account.ledger).or_default();
            *sum = sum.moved(Balances::default(), Balances::of(account));
            require(ids.insert(account.id), Fault::AccountTwice(account.id))?;
            let total = |a: u128, b: u128| a.checked_add(b);
            let debits = total(account.debits_pending, account.debits_posted);
            let credits = total(account.credits_pending, account.credits_posted);
            require(debits.is_some() && credits.is_some(), Fault::AccountOverflow(account.id))?;
            let holds = (!account.flags.contains(AccountFlags::DEBITS_MUST_NOT_EXCEED_CREDITS)
                || debits <= Some(account.credits_posted))
                && (!account.flags.contains(AccountFlags::CREDITS_MUST_NOT_EXCEED_DEBITS)
                    || credits <= Some(account.debits_posted));
            require(holds, Fault::LimitBroken(account.id))?;
        }
        for (ledger, running) in self.accounts.sums() {
            let sum = sums.get(&ledger).copied().unwrap_or_default();
            require(sum == running, Fault::Sums(ledger))?;
            require(
                sum.debits_pending == sum.credits_pending && sum.debits_posted == sum.credits_posted,
                Fault::Unbalanced(ledger),
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
                Fault::Reserved(account.id),
            )?;
        }
        require(can_expire == self.pendings.queued(), Fault::ExpiryQueue)?;
        let counts = Counts {
            accounts: self.accounts.count() as u64,
            pendings: self.pendings.count() as u64,
            transfers: self.ids.count() - self.counts.burnt,
            ..self.counts
        };
        require(counts == self.counts, Fault::Counts { stored: self.counts, found: counts })
    }
}

fn require(condition: bool, what: &'static str) -> Result<(), &'static str> {
    if condition { Ok(()) } else { Err(what) }
}
