//! Movements of money between two accounts. Each writes an intent, for the ledger to execute.

use batzen_crypto::{EddsaPublicKey, HashCode, Wtid};
use batzen_engine::{Command, Plan, WorkingSet};
use batzen_protocol::{Money, Timestamp};
use batzen_tables::bank::{BankIntents, BankStateKey, BankStates, BankTransactions, Origin, TransactionKey};

use super::{Answer, BankRules, Refusal, intents, plan_account, plan_exchange, require_account};

/// Moves money with a reserve key as subject. Not idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddIncoming {
    /// Random; identifies the transaction.
    pub id: [u8; 32],
    /// The payer.
    pub debit_account: String,
    /// The payee, which is the exchange.
    pub credit_account: String,
    /// The amount.
    pub amount: Money,
    /// The subject.
    pub reserve_pub: EddsaPublicKey,
}

impl Command<BankRules> for AddIncoming {
    type Answer = Answer;

    fn plan(&self, rules: &BankRules, plan: &mut Plan) {
        let key = TransactionKey::new(Origin::Incoming, &self.id);
        plan_movement(key, &self.debit_account, &self.credit_account, plan);
        rules.plan_reserve(&self.reserve_pub, plan);
    }

    fn execute(&self, rules: &BankRules, rows: &mut WorkingSet, _: Timestamp) -> Result<Answer, Refusal> {
        rules.require_fresh(rows, &self.reserve_pub)?;
        let mut draft = intents::draft(&self.debit_account, &self.credit_account, self.amount);
        draft.reserve_pub = Some(self.reserve_pub);
        rules.intend(rows, TransactionKey::new(Origin::Incoming, &self.id), draft)
    }
}

/// Moves money from an exchange to any account. Idempotent by `request_uid`, without time limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Chosen by the client when it prepared the transfer.
    pub request_uid: HashCode,
    /// The payer, which is the exchange.
    pub debit_account: String,
    /// The payee.
    pub credit_account: String,
    /// The amount.
    pub amount: Money,
    /// The subject.
    pub wtid: Wtid,
    /// The exchange, for the history only.
    pub exchange_base_url: String,
}

impl Command<BankRules> for Transfer {
    type Answer = Answer;

    fn plan(&self, _: &BankRules, plan: &mut Plan) {
        let key = TransactionKey::new(Origin::Transfer, self.request_uid.as_bytes());
        plan_movement(key, &self.debit_account, &self.credit_account, plan);
        plan_exchange(&self.credit_account, plan);
    }

    fn execute(&self, rules: &BankRules, rows: &mut WorkingSet, _: Timestamp) -> Result<Answer, Refusal> {
        let key = TransactionKey::new(Origin::Transfer, self.request_uid.as_bytes());
        // Money that returns to where it came from is not lost.
        if rows.get::<BankTransactions>(&key).is_none() && self.debit_account != self.credit_account {
            rules.require_no_exchange(rows, &self.credit_account)?;
        }
        let mut draft = intents::draft(&self.debit_account, &self.credit_account, self.amount);
        draft.wtid = Some(self.wtid);
        draft.exchange_base_url = Some(self.exchange_base_url.clone());
        rules.intend_once(rows, key, draft)
    }
}

/// A customer pays another account. Idempotent by `id`, without time limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pay {
    /// Chosen by the customer's page; the ledger shows all of it.
    pub id: [u8; 16],
    /// The payer.
    pub debit_account: String,
    /// The payee, which must exist.
    pub credit_account: String,
    /// The amount.
    pub amount: Money,
    /// The customer's text.
    pub text: String,
    /// The reserve key in the text, if there is one.
    pub reserve_pub: Option<EddsaPublicKey>,
}

/// Unlike an exchange's transfer, it never creates accounts: a mistyped name must not take the money. For the same
/// reason an exchange's account takes only payments whose text has a reserve key.
impl Command<BankRules> for Pay {
    type Answer = Answer;

    fn plan(&self, rules: &BankRules, plan: &mut Plan) {
        let key = TransactionKey::new(Origin::Payment, &self.id);
        plan_movement(key, &self.debit_account, &self.credit_account, plan);
        match &self.reserve_pub {
            Some(reserve_pub) => rules.plan_reserve(reserve_pub, plan),
            None => plan_exchange(&self.credit_account, plan),
        }
    }

    fn execute(&self, rules: &BankRules, rows: &mut WorkingSet, _: Timestamp) -> Result<Answer, Refusal> {
        let key = TransactionKey::new(Origin::Payment, &self.id);
        if rows.get::<BankTransactions>(&key).is_none() {
            if self.debit_account == self.credit_account {
                return Err(Refusal::SameAccount);
            }
            require_account(rows, &self.credit_account)?;
            match &self.reserve_pub {
                Some(reserve_pub) => rules.require_fresh(rows, reserve_pub)?,
                None => rules.require_no_exchange(rows, &self.credit_account)?,
            }
        }
        let mut draft = intents::draft(&self.debit_account, &self.credit_account, self.amount);
        draft.text = Some(self.text.clone());
        draft.reserve_pub = self.reserve_pub;
        rules.intend_once(rows, key, draft)
    }
}

fn plan_movement(key: TransactionKey, from: &str, to: &str, plan: &mut Plan) {
    plan.row::<BankTransactions>(key.clone());
    plan.row::<BankIntents>(key);
    // A ledger in the same store has already booked it in the same batch.
    plan.row::<BankStates>(BankStateKey::ONLY);
    plan_account(from, plan);
    plan_account(to, plan);
}
