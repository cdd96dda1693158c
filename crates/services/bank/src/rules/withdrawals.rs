//! The stages of a withdrawal operation: created by the customer, selected by the wallet (the ledger reserves
//! the money), confirmed (the ledger posts it) or aborted (the ledger releases it).

use batzen_crypto::EddsaPublicKey;
use batzen_engine::{Plan, WorkingSet};
use batzen_protocol::{Money, Timestamp};
use batzen_tables::bank::{
    BankIntents, BankWithdrawals, Origin, TransactionKey, WithdrawalKey, WithdrawalRow,
};

use super::{BankRules, Outcome, Refusal, Selection, intents, require_account};

/// The intents that an operation can have; at most one of them is open.
const ORIGINS: [Origin; 3] = [Origin::Reservation, Origin::Withdrawal, Origin::Release];

/// The rows of an operation.
pub(super) fn plan(plan: &mut Plan, wopid: &[u8; 32]) {
    plan.row::<BankWithdrawals>(WithdrawalKey { wopid: *wopid });
    for origin in ORIGINS {
        plan.row::<BankIntents>(TransactionKey::new(origin, wopid));
    }
}

pub(super) fn create(
    rows: &mut WorkingSet,
    wopid: [u8; 32],
    account: &str,
    amount: Money,
    now: Timestamp,
) -> Result<Outcome, Refusal> {
    require_account(rows, account)?;
    let operation = WithdrawalRow {
        account: account.to_owned(),
        amount,
        created: now,
        reserve_pub: None,
        exchange_account: None,
        is_reserved: false,
        aborted: false,
        row_id: None,
    };
    rows.insert::<BankWithdrawals>(&WithdrawalKey { wopid }, operation);
    Ok(Outcome::WithdrawalCreated)
}

pub(super) fn abort(rows: &mut WorkingSet, wopid: [u8; 32], account: &str) -> Result<Outcome, Refusal> {
    let mut operation = operation_of(rows, wopid, account)?;
    require_idle(rows, &wopid)?;
    if operation.row_id.is_some() {
        return Err(Refusal::AbortAfterConfirm);
    }
    if operation.is_reserved {
        let exchange_account = operation.exchange_account.as_deref().expect("reserved by a selection");
        let draft = intents::draft(account, exchange_account, operation.amount);
        return intents::write(rows, TransactionKey::new(Origin::Release, &wopid), draft);
    }
    if !operation.aborted {
        operation.aborted = true;
        rows.update::<BankWithdrawals>(&WithdrawalKey { wopid }, operation);
    }
    Ok(Outcome::WithdrawalAborted)
}

impl BankRules {
    pub(super) fn select(
        &self,
        rows: &mut WorkingSet,
        wopid: [u8; 32],
        reserve_pub: EddsaPublicKey,
        exchange_account: &str,
    ) -> Result<Outcome, Refusal> {
        let key = WithdrawalKey { wopid };
        let mut operation = rows.get::<BankWithdrawals>(&key).cloned().ok_or(Refusal::UnknownWithdrawal)?;
        require_idle(rows, &wopid)?;
        // The comparison comes first: wallets repeat the selection after the confirmation, when the key is
        // already used.
        if let Some(selection) = Selection::of(&operation) {
            let same = selection.reserve_pub == reserve_pub && selection.exchange_account == exchange_account;
            let transfer_done = operation.row_id.is_some();
            return if same {
                Ok(Outcome::WithdrawalSelected { transfer_done })
            } else {
                Err(Refusal::SelectionConflict)
            };
        }
        require_account(rows, exchange_account)?;
        self.require_fresh(rows, &reserve_pub)?;
        // There is nothing to reserve if no money will move.
        if !operation.aborted && operation.account != exchange_account {
            let mut draft = intents::draft(&operation.account, exchange_account, operation.amount);
            draft.reserve_pub = Some(reserve_pub);
            return intents::write(rows, TransactionKey::new(Origin::Reservation, &wopid), draft);
        }
        operation.reserve_pub = Some(reserve_pub);
        operation.exchange_account = Some(exchange_account.to_owned());
        rows.update::<BankWithdrawals>(&key, operation);
        Ok(Outcome::WithdrawalSelected { transfer_done: false })
    }

    pub(super) fn confirm(
        &self,
        rows: &mut WorkingSet,
        wopid: [u8; 32],
        account: &str,
        selection: Option<&Selection>,
    ) -> Result<Outcome, Refusal> {
        let operation = operation_of(rows, wopid, account)?;
        require_idle(rows, &wopid)?;
        let selected = Selection::of(&operation);
        if selected.as_ref() != selection {
            return Err(Refusal::Unresolved);
        }
        let Selection { reserve_pub, exchange_account } = selected.ok_or(Refusal::SelectionRequired)?;
        if operation.aborted {
            return Err(Refusal::ConfirmAfterAbort);
        }
        if operation.row_id.is_some() {
            return Ok(Outcome::WithdrawalConfirmed { exchange_account });
        }
        self.require_fresh(rows, &reserve_pub)?;
        let mut draft = intents::draft(account, &exchange_account, operation.amount);
        draft.reserve_pub = Some(reserve_pub);
        draft.is_reserved = operation.is_reserved;
        self.intend(rows, TransactionKey::new(Origin::Withdrawal, &wopid), draft)
    }
}

/// Refuses while the ledger is being asked about the operation.
fn require_idle(rows: &WorkingSet, wopid: &[u8; 32]) -> Result<(), Refusal> {
    ORIGINS.iter().try_for_each(|origin| intents::require_decided(rows, &TransactionKey::new(*origin, wopid)))
}

/// A customer's own operation.
fn operation_of(rows: &WorkingSet, wopid: [u8; 32], account: &str) -> Result<WithdrawalRow, Refusal> {
    let operation =
        rows.get::<BankWithdrawals>(&WithdrawalKey { wopid }).ok_or(Refusal::UnknownWithdrawal)?;
    require_account(rows, account)?;
    if operation.account != account {
        return Err(Refusal::UnknownWithdrawal);
    }
    let states = [operation.aborted, operation.row_id.is_some()];
    assert!(!states.iter().all(|state| *state), "an operation is aborted or confirmed, not both");
    Ok(operation.clone())
}
