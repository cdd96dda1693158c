//! The stages of a withdrawal operation: created by the customer, selected by the wallet (the ledger reserves
//! the money), confirmed (the ledger posts it) or aborted (the ledger releases it).

use batzen_crypto::EddsaPublicKey;
use batzen_engine::{Command, Plan, WorkingSet};
use batzen_protocol::{Money, Timestamp};
use batzen_tables::bank::{
    BankIntents, BankTransactions, BankWithdrawals, Origin, TransactionKey, WithdrawalKey, WithdrawalRow,
};

use super::{Answer, BankRules, Refusal, Selection, SelectionStands, intents, plan_account, require_account};

/// The intents that an operation can have; at most one of them is open.
const ORIGINS: [Origin; 3] = [Origin::Reservation, Origin::Withdrawal, Origin::Release];

/// Creates a withdrawal operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateWithdrawal {
    /// Random; identifies the operation.
    pub wopid: [u8; 32],
    /// The account that will pay.
    pub account: String,
    /// The amount.
    pub amount: Money,
}

impl Command<BankRules> for CreateWithdrawal {
    type Answer = Answer;

    fn plan(&self, _: &BankRules, plan: &mut Plan) {
        plan.row::<BankWithdrawals>(WithdrawalKey { wopid: self.wopid });
        plan_account(&self.account, plan);
    }

    fn execute(&self, _: &BankRules, rows: &mut WorkingSet, now: Timestamp) -> Result<Answer, Refusal> {
        require_account(rows, &self.account)?;
        let operation = WithdrawalRow {
            account: self.account.clone(),
            amount: self.amount,
            created: now,
            reserve_pub: None,
            exchange_account: None,
            is_reserved: false,
            aborted: false,
            row_id: None,
        };
        rows.insert::<BankWithdrawals>(&WithdrawalKey { wopid: self.wopid }, operation);
        Ok(Answer::WithdrawalCreated)
    }
}

/// A wallet names the reserve and the exchange of a withdrawal operation. Idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectWithdrawal {
    /// The operation.
    pub wopid: [u8; 32],
    /// The reserve.
    pub reserve_pub: EddsaPublicKey,
    /// The exchange's account.
    pub exchange_account: String,
}

impl Command<BankRules> for SelectWithdrawal {
    type Answer = Answer;

    fn plan(&self, rules: &BankRules, plan: &mut Plan) {
        plan_operation(&self.wopid, plan);
        plan_account(&self.exchange_account, plan);
        rules.plan_reserve(&self.reserve_pub, plan);
    }

    fn execute(&self, rules: &BankRules, rows: &mut WorkingSet, _: Timestamp) -> Result<Answer, Refusal> {
        let Self { wopid, reserve_pub, exchange_account } = self;
        let key = WithdrawalKey { wopid: *wopid };
        let mut operation = rows.get::<BankWithdrawals>(&key).cloned().ok_or(Refusal::UnknownWithdrawal)?;
        require_idle(rows, wopid)?;
        // The comparison comes first: wallets repeat the selection after the confirmation, when the key is
        // already used.
        if let Some(selection) = Selection::of(&operation) {
            let same =
                selection.reserve_pub == *reserve_pub && selection.exchange_account == *exchange_account;
            let transfer_done = operation.row_id.is_some();
            return if same {
                Ok(Answer::WithdrawalSelected(SelectionStands { transfer_done }))
            } else {
                Err(Refusal::SelectionConflict)
            };
        }
        require_account(rows, exchange_account)?;
        rules.require_fresh(rows, reserve_pub)?;
        // There is nothing to reserve if no money will move.
        if !operation.aborted && operation.account != *exchange_account {
            let mut draft = intents::draft(&operation.account, exchange_account, operation.amount);
            draft.reserve_pub = Some(*reserve_pub);
            return intents::write(rows, TransactionKey::new(Origin::Reservation, wopid), draft);
        }
        operation.reserve_pub = Some(*reserve_pub);
        operation.exchange_account = Some(exchange_account.clone());
        rows.update::<BankWithdrawals>(&key, operation);
        Ok(Answer::WithdrawalSelected(SelectionStands { transfer_done: false }))
    }
}

/// The customer confirms: the money moves. Idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfirmWithdrawal {
    /// The operation.
    pub wopid: [u8; 32],
    /// The customer.
    pub account: String,
    /// The selection as read before the batch; it never changes once made.
    pub selection: Option<Selection>,
}

impl Command<BankRules> for ConfirmWithdrawal {
    type Answer = Answer;

    fn plan(&self, rules: &BankRules, plan: &mut Plan) {
        plan_operation(&self.wopid, plan);
        plan_account(&self.account, plan);
        if let Some(Selection { reserve_pub, exchange_account }) = &self.selection {
            plan.row::<BankTransactions>(TransactionKey::new(Origin::Withdrawal, &self.wopid));
            plan_account(exchange_account, plan);
            rules.plan_reserve(reserve_pub, plan);
        }
    }

    fn execute(&self, rules: &BankRules, rows: &mut WorkingSet, _: Timestamp) -> Result<Answer, Refusal> {
        let Self { wopid, account, selection } = self;
        let operation = operation_of(rows, *wopid, account)?;
        require_idle(rows, wopid)?;
        let selected = Selection::of(&operation);
        if selected != *selection {
            return Err(Refusal::Unresolved);
        }
        let Selection { reserve_pub, exchange_account } = selected.ok_or(Refusal::SelectionRequired)?;
        if operation.aborted {
            return Err(Refusal::ConfirmAfterAbort);
        }
        if operation.row_id.is_some() {
            return Ok(Answer::WithdrawalConfirmed { exchange_account });
        }
        rules.require_fresh(rows, &reserve_pub)?;
        let mut draft = intents::draft(account, &exchange_account, operation.amount);
        draft.reserve_pub = Some(reserve_pub);
        draft.is_reserved = operation.is_reserved;
        rules.intend(rows, TransactionKey::new(Origin::Withdrawal, wopid), draft)
    }
}

/// The customer gives up. Idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbortWithdrawal {
    /// The operation.
    pub wopid: [u8; 32],
    /// The customer.
    pub account: String,
}

impl Command<BankRules> for AbortWithdrawal {
    type Answer = Answer;

    fn plan(&self, _: &BankRules, plan: &mut Plan) {
        plan_operation(&self.wopid, plan);
        plan_account(&self.account, plan);
    }

    fn execute(&self, _: &BankRules, rows: &mut WorkingSet, _: Timestamp) -> Result<Answer, Refusal> {
        let Self { wopid, account } = self;
        let mut operation = operation_of(rows, *wopid, account)?;
        require_idle(rows, wopid)?;
        if operation.row_id.is_some() {
            return Err(Refusal::AbortAfterConfirm);
        }
        if operation.is_reserved {
            let exchange_account = operation.exchange_account.as_deref().expect("reserved by a selection");
            let draft = intents::draft(account, exchange_account, operation.amount);
            return intents::write(rows, TransactionKey::new(Origin::Release, wopid), draft);
        }
        if !operation.aborted {
            operation.aborted = true;
            rows.update::<BankWithdrawals>(&WithdrawalKey { wopid: *wopid }, operation);
        }
        Ok(Answer::WithdrawalAborted)
    }
}

/// The rows of an operation.
fn plan_operation(wopid: &[u8; 32], plan: &mut Plan) {
    plan.row::<BankWithdrawals>(WithdrawalKey { wopid: *wopid });
    for origin in ORIGINS {
        plan.row::<BankIntents>(TransactionKey::new(origin, wopid));
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
