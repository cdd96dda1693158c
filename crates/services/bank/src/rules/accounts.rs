//! The bank itself and its customers' accounts, among them exchanges.

use batzen_crypto::ShortHash;
use batzen_engine::{Command, Plan, WorkingSet};
use batzen_protocol::{Currency, Timestamp};
use batzen_tables::bank::{
    AccountKey, AccountRow, BankAccounts, BankExchanges, BankIntents, BankStateKey, BankStateRow, BankStates,
    EQUITY_ACCOUNT, ExchangeRow, Origin, TransactionKey,
};

use super::{Answer, BankRules, Refusal, intents, plan_account, plan_exchange, require_account};

/// Creates the bank in an empty store, or checks that the store holds this bank. Always the first command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// The currency of all accounts.
    pub currency: Currency,
    /// Random; used only for a new bank.
    pub password_salt: [u8; 16],
    /// Random; used only for a new bank.
    pub identity: [u8; 16],
}

impl Command<BankRules> for Open {
    type Answer = Answer;

    fn plan(&self, _: &BankRules, plan: &mut Plan) {
        plan.row::<BankStates>(BankStateKey::ONLY);
    }

    fn execute(&self, rules: &BankRules, rows: &mut WorkingSet, _: Timestamp) -> Result<Answer, Refusal> {
        match rows.get::<BankStates>(&BankStateKey::ONLY) {
            Some(state) if state.currency == self.currency.as_str() => {
                Ok(Answer::Opened(Box::new(state.clone())))
            }
            Some(state) => Err(Refusal::OtherCurrency(state.currency.clone())),
            None => {
                let state = BankStateRow {
                    currency: self.currency.as_str().to_owned(),
                    next_row_id: 1,
                    password_salt: self.password_salt,
                    identity: self.identity,
                    headroom: rules.policy.headroom(),
                };
                rows.insert::<BankStates>(&BankStateKey::ONLY, state.clone());
                Ok(Answer::Opened(Box::new(state)))
            }
        }
    }
}

/// Registers a customer, who receives the sign-up bonus. Idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    /// The account.
    pub name: String,
    /// The hash of the password.
    pub password_hash: ShortHash,
}

impl Command<BankRules> for Register {
    type Answer = Answer;

    fn plan(&self, _: &BankRules, plan: &mut Plan) {
        plan.row::<BankStates>(BankStateKey::ONLY);
        plan_account(&self.name, plan);
        plan.row::<BankIntents>(TransactionKey::new(Origin::Bonus, self.name.as_bytes()));
    }

    fn execute(&self, rules: &BankRules, rows: &mut WorkingSet, now: Timestamp) -> Result<Answer, Refusal> {
        let Self { name, password_hash } = self;
        let key = AccountKey::new(name);
        let bonus_key = TransactionKey::new(Origin::Bonus, name.as_bytes());
        let known = rows.get::<BankAccounts>(&key).cloned();
        if known.is_some() && !rules.policy.allow_known_account {
            return Err(Refusal::RegisterConflict);
        }
        match known.as_ref().and_then(|account| account.password_hash) {
            Some(known) if known == *password_hash => {
                intents::require_decided(rows, &bonus_key)?;
                return Ok(Answer::Registered);
            }
            Some(_) => return Err(Refusal::RegisterConflict),
            None => {}
        }
        // An account that a transfer created belongs to the first who registers it, with its balance.
        let account = known.unwrap_or_else(|| intents::new_account(rows, name, now));
        rows.put::<BankAccounts>(&key, AccountRow { password_hash: Some(*password_hash), ..account });
        if rules.policy.signup_bonus.is_zero() {
            return Ok(Answer::Registered);
        }
        let draft = intents::draft(EQUITY_ACCOUNT, name, rules.policy.signup_bonus);
        intents::write(rows, bonus_key, draft)
    }
}

/// Replaces the password of an account. Idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SetPassword {
    pub name: String,
    /// The hash to replace: if the account has a different one by now, that one stays. `None`: replace any.
    pub(crate) replaces: Option<ShortHash>,
    /// The hash of the password.
    pub(crate) password_hash: ShortHash,
}

impl Command<BankRules> for SetPassword {
    type Answer = Answer;

    fn plan(&self, _: &BankRules, plan: &mut Plan) {
        plan_account(&self.name, plan);
    }

    fn execute(&self, _: &BankRules, rows: &mut WorkingSet, _: Timestamp) -> Result<Answer, Refusal> {
        let Self { name, replaces, password_hash } = self;
        let key = AccountKey::new(name);
        let account = rows.get::<BankAccounts>(&key).cloned();
        let account = account.ok_or_else(|| Refusal::UnknownAccount(name.to_owned()))?;
        if replaces.is_none_or(|replaces| account.password_hash == Some(replaces)) {
            rows.put::<BankAccounts>(&key, AccountRow { password_hash: Some(*password_hash), ..account });
        }
        Ok(Answer::PasswordSet)
    }
}

/// Remembers that an account is an exchange's, so that no money without a reserve key reaches it. Idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkExchange {
    /// The account, which must exist.
    pub name: String,
}

impl Command<BankRules> for MarkExchange {
    type Answer = Answer;

    fn plan(&self, _: &BankRules, plan: &mut Plan) {
        plan_account(&self.name, plan);
        plan_exchange(&self.name, plan);
    }

    fn execute(&self, _: &BankRules, rows: &mut WorkingSet, now: Timestamp) -> Result<Answer, Refusal> {
        require_account(rows, &self.name)?;
        let key = AccountKey::new(&self.name);
        if rows.get::<BankExchanges>(&key).is_none() {
            rows.insert::<BankExchanges>(&key, ExchangeRow { since: now });
        }
        Ok(Answer::ExchangeMarked)
    }
}
