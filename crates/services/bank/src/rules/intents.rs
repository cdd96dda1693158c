//! Writes intents, and books the ledger's answers.

use std::sync::Arc;

use batzen_engine::{Command, Plan, WorkingSet};
use batzen_protocol::{Money, Timestamp};
use batzen_tables::bank::{
    AccountKey, AccountRow, BankAccounts, BankIntents, BankStateKey, BankStates, BankTransactions,
    BankWithdrawals, IntentRow, Origin, TransactionKey, TransactionRow, WithdrawalKey, WithdrawalRow,
};

use super::{Answer, BankRules, Finished, Intent, Refusal, SelectionStands, booked, require_account};
use crate::chart::{self, Verdict};
use crate::names;

/// A movement without a subject.
pub(super) fn draft(debit_account: &str, credit_account: &str, amount: Money) -> IntentRow {
    IntentRow {
        debit_account: debit_account.to_owned(),
        credit_account: credit_account.to_owned(),
        amount,
        reserve_pub: None,
        wtid: None,
        exchange_base_url: None,
        text: None,
        attempt: 0,
        is_reserved: false,
        is_open: true,
    }
}

/// An account that does not exist yet.
pub(super) fn new_account(rows: &WorkingSet, name: &str, now: Timestamp) -> AccountRow {
    let state = rows.get::<BankStates>(&BankStateKey::ONLY).expect("the bank was opened");
    let ledger_id = chart::account_id(&state.identity, name);
    AccountRow { ledger_id, is_opened: false, password_hash: None, created: now }
}

/// The refusal of a command that depends on an open intent. (The caller of the rules adds the command.)
pub(super) fn in_flight(key: &TransactionKey) -> Refusal {
    Refusal::InFlight { key: key.clone(), command: Box::new(Finish([].into()).into()) }
}

/// Refuses the command while the intent is open.
pub(super) fn require_decided(rows: &WorkingSet, key: &TransactionKey) -> Result<(), Refusal> {
    match rows.get::<BankIntents>(key) {
        Some(row) if row.is_open => Err(in_flight(key)),
        _ => Ok(()),
    }
}

/// Writes an intent. Plans the opening of its accounts, except for the payer of a reservation.
pub(super) fn write(rows: &mut WorkingSet, key: TransactionKey, draft: IntentRow) -> Result<Answer, Refusal> {
    let attempt = match rows.get::<BankIntents>(&key) {
        Some(row) if row.is_open => return Err(in_flight(&key)),
        Some(refused) => refused.attempt.checked_add(1).expect("fewer than 2^32 refusals"),
        None => 0,
    };
    let row = IntentRow { attempt, ..draft };
    let is_unknown = |name: &str| {
        rows.get::<BankAccounts>(&AccountKey::new(name)).is_none_or(|account| !account.is_opened)
    };
    let (opens_debit, opens_credit) = match key.origin() {
        Origin::Bonus => (false, is_unknown(&row.credit_account)),
        Origin::Release => (false, false),
        Origin::Reservation => (true, is_unknown(&row.credit_account)),
        _ => (is_unknown(&row.debit_account), is_unknown(&row.credit_account)),
    };
    if attempt > 0 {
        // As a new row, so that it joins the groups of the batch.
        rows.delete::<BankIntents>(&key);
    }
    rows.insert::<BankIntents>(&key, row.clone());
    Ok(Answer::Intended(Box::new(Intent { key, row, opens_debit, opens_credit })))
}

impl Intent {
    /// An intent left open by an earlier process; it is unknown how far the ledger executed it.
    pub(crate) fn left_open(key: TransactionKey, row: IntentRow) -> Self {
        let (opens_debit, opens_credit) = match key.origin() {
            Origin::Bonus => (false, true),
            Origin::Release => (false, false),
            _ => (true, true),
        };
        Self { key, row, opens_debit, opens_credit }
    }
}

/// Books the ledger's answers to open intents. Each is booked by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finish(pub Arc<[(Intent, Verdict)]>);

impl Command<BankRules> for Finish {
    type Answer = Answer;

    fn plan(&self, _: &BankRules, plan: &mut Plan) {
        plan.row::<BankStates>(BankStateKey::ONLY);
        self.0.iter().for_each(|(intent, _)| plan_finish(intent, plan));
    }

    fn execute(&self, rules: &BankRules, rows: &mut WorkingSet, now: Timestamp) -> Result<Answer, Refusal> {
        Ok(Answer::Finished(
            self.0.iter().map(|(intent, verdict)| rules.finish(rows, intent, *verdict, now)).collect(),
        ))
    }
}

/// The rows that [`BankRules::finish`] may touch.
fn plan_finish(intent: &Intent, plan: &mut Plan) {
    let Intent { key, row, opens_debit, opens_credit } = intent;
    plan.row::<BankIntents>(key.clone());
    plan.row::<BankTransactions>(key.clone());
    for (opens, name) in [(opens_debit, &row.debit_account), (opens_credit, &row.credit_account)] {
        if *opens {
            plan.row::<BankAccounts>(AccountKey::new(name));
        }
    }
    if let Some(key) = operation(key) {
        plan.row::<BankWithdrawals>(key);
    }
}

/// The withdrawal operation that an intent belongs to.
fn operation(key: &TransactionKey) -> Option<WithdrawalKey> {
    match key.origin() {
        Origin::Withdrawal | Origin::Reservation | Origin::Release => {
            let wopid = key.id.as_slice().try_into().expect("the ids of operations have 32 bytes");
            Some(WithdrawalKey { wopid })
        }
        _ => None,
    }
}

impl BankRules {
    /// Writes the intent of a movement between two accounts, if the policy permits it.
    pub(super) fn intend(
        &self,
        rows: &mut WorkingSet,
        key: TransactionKey,
        draft: IntentRow,
    ) -> Result<Answer, Refusal> {
        if draft.debit_account == draft.credit_account && !self.policy.allow_same_account {
            return Err(Refusal::SameAccount);
        }
        for name in [&draft.debit_account, &draft.credit_account] {
            // An account under another name could never be used by anybody.
            if !self.policy.create_accounts || !names::is_new_account_name(name) {
                require_account(rows, name)?;
            }
        }
        write(rows, key, draft)
    }

    /// The same, unless the movement has taken place already.
    pub(super) fn intend_once(
        &self,
        rows: &mut WorkingSet,
        key: TransactionKey,
        draft: IntentRow,
    ) -> Result<Answer, Refusal> {
        let Some(row) = rows.get::<BankTransactions>(&key) else { return self.intend(rows, key, draft) };
        let same = row.debit_account == draft.debit_account
            && row.credit_account == draft.credit_account
            && row.amount == draft.amount
            && row.wtid == draft.wtid
            && row.text == draft.text;
        if same { Ok(booked(row)) } else { Err(Refusal::RequestUidReused) }
    }

    /// Books the ledger's answer to an open intent. Cannot fail, because the ledger has decided.
    pub(crate) fn finish(
        &self,
        rows: &mut WorkingSet,
        intent: &Intent,
        verdict: Verdict,
        now: Timestamp,
    ) -> Finished {
        let Intent { key, row, opens_debit, opens_credit } = intent;
        let open = rows.get::<BankIntents>(key);
        assert!(open == Some(row) && row.is_open, "what the ledger answers was asked, and once");
        if verdict == Verdict::Done {
            for (opens, name) in [(opens_debit, &row.debit_account), (opens_credit, &row.credit_account)] {
                if *opens {
                    opened(rows, name, now);
                }
            }
        }
        let result = match key.origin() {
            Origin::Bonus => {
                let result = self.accepted(verdict).map(|()| Answer::Registered);
                close(rows, intent, result.is_ok());
                result
            }
            Origin::Reservation => {
                // Without the money the selection is valid as well: the confirmation reserves the money
                // again.
                let reserved = verdict == Verdict::Done;
                rows.delete::<BankIntents>(key);
                change(rows, key, |operation| {
                    operation.reserve_pub = row.reserve_pub;
                    operation.exchange_account = Some(row.credit_account.clone());
                    operation.is_reserved = reserved;
                });
                Ok(Answer::WithdrawalSelected(SelectionStands { transfer_done: false }))
            }
            Origin::Release => {
                assert!(verdict == Verdict::Done, "what is set aside can always be given back");
                rows.delete::<BankIntents>(key);
                change(rows, key, |operation| {
                    operation.is_reserved = false;
                    operation.aborted = true;
                });
                Ok(Answer::WithdrawalAborted)
            }
            Origin::Withdrawal => {
                let booked = self.book(rows, intent, verdict, now);
                change(rows, key, |operation| {
                    operation.is_reserved &= booked.is_err() && verdict != Verdict::Expired;
                    if let Ok(Answer::Booked(booking)) = &booked {
                        operation.row_id = Some(booking.row_id);
                    }
                });
                let exchange_account = row.credit_account.clone();
                booked.map(|_| Answer::WithdrawalConfirmed { exchange_account })
            }
            Origin::Transfer | Origin::Incoming | Origin::Payment => self.book(rows, intent, verdict, now),
        };
        Finished { key: key.clone(), result }
    }

    /// The client's answer for a verdict.
    fn accepted(&self, verdict: Verdict) -> Result<(), Refusal> {
        match verdict {
            Verdict::Done => Ok(()),
            // Without a debt limit the headroom ends where balances exceed the range of amounts.
            Verdict::Exceeded if self.policy.debt_limit.is_none() => Err(Refusal::TooBig),
            Verdict::Exceeded => Err(Refusal::UnallowedDebit),
            Verdict::TooBig => Err(Refusal::TooBig),
            Verdict::Expired => Err(Refusal::ReservationExpired),
        }
    }

    /// Turns the intent into a transaction with the next row id, or closes it as refused.
    fn book(
        &self,
        rows: &mut WorkingSet,
        intent: &Intent,
        verdict: Verdict,
        now: Timestamp,
    ) -> Result<Answer, Refusal> {
        let accepted = self.accepted(verdict);
        close(rows, intent, accepted.is_ok());
        accepted?;
        let mut state = rows.get::<BankStates>(&BankStateKey::ONLY).cloned().expect("the bank was opened");
        let row_id = state.next_row_id;
        state.next_row_id = row_id.checked_add(1).expect("fewer than 2^64 transactions");
        rows.update::<BankStates>(&BankStateKey::ONLY, state);
        let IntentRow {
            debit_account,
            credit_account,
            amount,
            reserve_pub,
            wtid,
            exchange_base_url,
            text,
            ..
        } = intent.row.clone();
        let row = TransactionRow {
            row_id,
            debit_account,
            credit_account,
            amount,
            time: now,
            reserve_pub,
            wtid,
            exchange_base_url,
            text,
        };
        let answer = booked(&row);
        rows.insert::<BankTransactions>(&intent.key, row);
        Ok(answer)
    }
}

/// Ends an intent. A refused one is kept if the client may try again under the same key, because the ledger
/// does not accept its id twice.
fn close(rows: &mut WorkingSet, intent: &Intent, is_done: bool) {
    let key = &intent.key;
    if is_done || key.origin() == Origin::Incoming {
        rows.delete::<BankIntents>(key);
    } else {
        rows.update::<BankIntents>(key, IntentRow { is_open: false, ..intent.row.clone() });
    }
}

/// Records that the ledger has the account. Creates it at the bank if a transfer has named it first.
fn opened(rows: &mut WorkingSet, name: &str, now: Timestamp) {
    let key = AccountKey::new(name);
    let known = rows.get::<BankAccounts>(&key).cloned();
    if known.as_ref().is_some_and(|account| account.is_opened) {
        return;
    }
    let account = known.unwrap_or_else(|| new_account(rows, name, now));
    rows.put::<BankAccounts>(&key, AccountRow { is_opened: true, ..account });
}

/// Changes the withdrawal operation that an intent belongs to.
fn change(rows: &mut WorkingSet, key: &TransactionKey, change: impl FnOnce(&mut WithdrawalRow)) {
    let key = operation(key).expect("a withdrawal's intent");
    let mut row = rows.get::<BankWithdrawals>(&key).cloned().expect("operations are never removed");
    change(&mut row);
    rows.update::<BankWithdrawals>(&key, row);
}
