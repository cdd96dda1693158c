//! The rules: which exchanges are audited, and what merchants have shown. Pure: no I/O, no clock, no randomness, no
//! cryptography.

use batzen_engine::{Plan, Rules, WorkingSet};
use batzen_protocol::{Currency, Timestamp};
use batzen_tables::auditor::{
    AuditedExchangeKey, AuditedExchangeRow, AuditedExchanges, AuditorStateKey, AuditorStateRow,
    AuditorStates, DepositConfirmationKey, DepositConfirmationRow, DepositConfirmations, SigningKeyKey,
    SigningKeyRevocationKey, SigningKeyRevocationRow, SigningKeyRevocations, SigningKeyRow, SigningKeys,
};

batzen_engine::commands! {
    /// A change of the auditor's rows.
    #[derive(Clone, Debug)]
    AuditorRules:
    Open: Answer = answer => answer,
    AddExchange: Answer = answer => answer,
    RemoveExchange: Answer = answer => answer,
    Revoke: Answer = answer => answer,
    Record: Answer = answer => answer,
    Forget: Answer = answer => answer,
}

/// The answer to a command that took effect, now or before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It took effect now.
    Done,
    /// It had taken effect before.
    Repeated,
}

/// Why a command was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The store holds an auditor of another currency.
    #[error("the store holds an auditor of currency {0}")]
    OtherCurrency(String),
    /// The exchange is audited already.
    #[error("the exchange is audited already, at {0}")]
    ExchangeKnown(String),
    /// No exchange with this master key is audited.
    #[error("the auditor does not audit this exchange")]
    ExchangeUnknown,
    /// The exchange has revoked the signing key.
    #[error("the exchange has revoked the signing key")]
    Revoked,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AuditorRules;

impl Rules for AuditorRules {
    type Refusal = Refusal;
    batzen_engine::dispatch_to_commands!(Command);
}

/// Requires that an exchange is audited, also when the batch is committed.
fn audited(rows: &mut WorkingSet, key: AuditedExchangeKey) -> Result<(), Refusal> {
    if rows.get::<AuditedExchanges>(&key).is_none() {
        return Err(Refusal::ExchangeUnknown);
    }
    rows.depend_on::<AuditedExchanges>(&key);
    Ok(())
}

/// Opens the store for an auditor of this currency. Idempotent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open {
    pub(crate) currency: Currency,
}

impl batzen_engine::Command<AuditorRules> for Open {
    type Answer = Answer;

    fn plan(&self, _: &AuditorRules, plan: &mut Plan) {
        plan.row::<AuditorStates>(AuditorStateKey::ONLY);
    }

    fn execute(&self, _: &AuditorRules, rows: &mut WorkingSet, _: Timestamp) -> Result<Answer, Refusal> {
        let currency = self.currency.to_string();
        match rows.get::<AuditorStates>(&AuditorStateKey::ONLY) {
            Some(state) if state.currency != currency => Err(Refusal::OtherCurrency(state.currency.clone())),
            Some(_) => Ok(Answer::Repeated),
            None => {
                rows.insert::<AuditorStates>(&AuditorStateKey::ONLY, AuditorStateRow { currency });
                Ok(Answer::Done)
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct AddExchange {
    /// Its master key.
    pub(crate) key: AuditedExchangeKey,
    pub(crate) row: AuditedExchangeRow,
}

impl batzen_engine::Command<AuditorRules> for AddExchange {
    type Answer = Answer;

    fn plan(&self, _: &AuditorRules, plan: &mut Plan) {
        plan.row::<AuditedExchanges>(self.key.clone());
    }

    fn execute(&self, _: &AuditorRules, rows: &mut WorkingSet, _: Timestamp) -> Result<Answer, Refusal> {
        if let Some(known) = rows.get::<AuditedExchanges>(&self.key) {
            return Err(Refusal::ExchangeKnown(known.url.clone()));
        }
        rows.insert::<AuditedExchanges>(&self.key, self.row.clone());
        Ok(Answer::Done)
    }
}

/// Removes an exchange, and what is known of its signing keys. Its confirmations stay.
#[derive(Clone, Debug)]
pub(crate) struct RemoveExchange {
    /// Its master key.
    pub(crate) key: AuditedExchangeKey,
}

impl batzen_engine::Command<AuditorRules> for RemoveExchange {
    type Answer = Answer;

    fn plan(&self, _: &AuditorRules, plan: &mut Plan) {
        let master_pub = &self.key.master_pub;
        plan.row::<AuditedExchanges>(self.key.clone());
        plan.group::<SigningKeys>(SigningKeys::BY_EXCHANGE, master_pub);
        plan.group::<SigningKeyRevocations>(SigningKeyRevocations::BY_EXCHANGE, master_pub);
    }

    fn execute(&self, _: &AuditorRules, rows: &mut WorkingSet, _: Timestamp) -> Result<Answer, Refusal> {
        let Self { key } = self;
        if rows.get::<AuditedExchanges>(key).is_none() {
            return Err(Refusal::ExchangeUnknown);
        }
        rows.delete::<AuditedExchanges>(key);
        let keys = rows.group::<SigningKeys>(SigningKeys::BY_EXCHANGE, &key.master_pub);
        for key in keys.into_iter().map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            rows.delete::<SigningKeys>(&key);
        }
        let revoked =
            rows.group::<SigningKeyRevocations>(SigningKeyRevocations::BY_EXCHANGE, &key.master_pub);
        for key in revoked.into_iter().map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            rows.delete::<SigningKeyRevocations>(&key);
        }
        Ok(Answer::Done)
    }
}

/// Keeps the revocation of a signing key, whose signature is valid. Idempotent.
#[derive(Clone, Debug)]
pub(crate) struct Revoke {
    pub(crate) key: SigningKeyRevocationKey,
    /// The revocation, if it is new.
    pub(crate) row: SigningKeyRevocationRow,
}

impl batzen_engine::Command<AuditorRules> for Revoke {
    type Answer = Answer;

    fn plan(&self, _: &AuditorRules, plan: &mut Plan) {
        plan.row::<AuditedExchanges>(AuditedExchangeKey { master_pub: self.key.master_pub });
        plan.row::<SigningKeyRevocations>(self.key.clone());
    }

    fn execute(&self, _: &AuditorRules, rows: &mut WorkingSet, _: Timestamp) -> Result<Answer, Refusal> {
        audited(rows, AuditedExchangeKey { master_pub: self.key.master_pub })?;
        if rows.get::<SigningKeyRevocations>(&self.key).is_some() {
            return Ok(Answer::Repeated);
        }
        rows.insert::<SigningKeyRevocations>(&self.key, self.row.clone());
        Ok(Answer::Done)
    }
}

/// Keeps a deposit confirmation, whose signatures are valid. Idempotent.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// The confirmation, if it is new.
    pub(crate) row: Box<DepositConfirmationRow>,
    pub(crate) signing_key: SigningKeyKey,
}

impl batzen_engine::Command<AuditorRules> for Record {
    type Answer = Answer;

    fn plan(&self, _: &AuditorRules, plan: &mut Plan) {
        let (master_pub, exchange_pub) = (self.row.master_pub, self.row.exchange_pub);
        plan.row::<AuditedExchanges>(AuditedExchangeKey { master_pub });
        plan.row::<SigningKeyRevocations>(SigningKeyRevocationKey { master_pub, exchange_pub });
        plan.row::<SigningKeys>(self.signing_key.clone());
        plan.row::<DepositConfirmations>(self.row.key());
    }

    fn execute(&self, _: &AuditorRules, rows: &mut WorkingSet, now: Timestamp) -> Result<Answer, Refusal> {
        let Self { row, signing_key } = self;
        let (master_pub, exchange_pub) = (row.master_pub, row.exchange_pub);
        // A revocation that another writer commits at the same time is as good as one that comes later, so it is no
        // dependency.
        let revocation = SigningKeyRevocationKey { master_pub, exchange_pub };
        if rows.get::<SigningKeyRevocations>(&revocation).is_some() {
            return Err(Refusal::Revoked);
        }
        audited(rows, AuditedExchangeKey { master_pub })?;
        if rows.get::<SigningKeys>(signing_key).is_none() {
            let key = SigningKeyRow { master_sig: row.master_sig, seen: now };
            rows.insert::<SigningKeys>(signing_key, key);
        }
        let key = row.key();
        if rows.get::<DepositConfirmations>(&key).is_some() {
            return Ok(Answer::Repeated);
        }
        let row = DepositConfirmationRow { seen: now, ..DepositConfirmationRow::clone(row) };
        rows.insert::<DepositConfirmations>(&key, row);
        Ok(Answer::Done)
    }
}

/// Forgets confirmations and signing keys that no court would accept any more.
#[derive(Clone, Debug)]
pub(crate) struct Forget {
    pub(crate) confirmations: Vec<DepositConfirmationKey>,
    pub(crate) keys: Vec<SigningKeyKey>,
}

impl batzen_engine::Command<AuditorRules> for Forget {
    type Answer = Answer;

    fn plan(&self, _: &AuditorRules, plan: &mut Plan) {
        for key in &self.confirmations {
            plan.row::<DepositConfirmations>(key.clone());
        }
        for key in &self.keys {
            plan.row::<SigningKeys>(key.clone());
        }
    }

    fn execute(&self, _: &AuditorRules, rows: &mut WorkingSet, _: Timestamp) -> Result<Answer, Refusal> {
        for key in &self.confirmations {
            if rows.get::<DepositConfirmations>(key).is_some() {
                rows.delete::<DepositConfirmations>(key);
            }
        }
        for key in &self.keys {
            if rows.get::<SigningKeys>(key).is_some() {
                rows.delete::<SigningKeys>(key);
            }
        }
        Ok(Answer::Done)
    }
}
