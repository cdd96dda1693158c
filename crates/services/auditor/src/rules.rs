//! The rules: which exchanges are audited, and what merchants have shown. Pure: no I/O, no clock, no randomness, no
//! cryptography.

use batzen_engine::{Plan, Rules, WorkingSet};
use batzen_protocol::{Currency, Timestamp};
use batzen_tables::auditor::{
    AuditedExchangeKey, AuditedExchangeRow, AuditedExchanges, AuditorStateKey, AuditorStateRow,
    AuditorStates, DepositConfirmationKey, DepositConfirmationRow, DepositConfirmations, SigningKeyKey,
    SigningKeyRevocationKey, SigningKeyRevocationRow, SigningKeyRevocations, SigningKeyRow, SigningKeys,
};

/// A change of the auditor's rows.
#[derive(Clone, Debug)]
pub enum Command {
    /// Opens the store for an auditor of this currency. Idempotent.
    Open(Currency),
    /// Adds an exchange.
    AddExchange {
        /// Its master key.
        key: AuditedExchangeKey,
        /// Its row.
        row: AuditedExchangeRow,
    },
    /// Removes an exchange, and what is known of its signing keys. Its confirmations stay.
    RemoveExchange {
        /// Its master key.
        key: AuditedExchangeKey,
    },
    /// Keeps the revocation of a signing key, whose signature is valid. Idempotent.
    Revoke {
        /// The signing key.
        key: SigningKeyRevocationKey,
        /// The revocation, if it is new.
        row: SigningKeyRevocationRow,
    },
    /// Keeps a deposit confirmation, whose signatures are valid. Idempotent.
    Record(Box<Record>),
    /// Forgets confirmations and signing keys that no court would accept any more.
    Forget {
        /// The confirmations.
        confirmations: Vec<DepositConfirmationKey>,
        /// The signing keys.
        keys: Vec<SigningKeyKey>,
    },
}

/// A deposit confirmation and its signing key.
#[derive(Clone, Debug)]
pub struct Record {
    /// The confirmation, if it is new.
    pub row: DepositConfirmationRow,
    /// Its signing key.
    pub signing_key: SigningKeyKey,
}

/// The answer to a command that took effect, now or before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
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

/// The rules.
#[derive(Clone, Copy, Debug, Default)]
pub struct AuditorRules;

impl Rules for AuditorRules {
    type Command = Command;
    type Outcome = Outcome;
    type Refusal = Refusal;

    fn plan(&self, command: &Command, plan: &mut Plan) {
        match command {
            Command::Open(_) => plan.row::<AuditorStates>(AuditorStateKey::ONLY),
            Command::AddExchange { key, .. } => plan.row::<AuditedExchanges>(key.clone()),
            Command::RemoveExchange { key } => {
                plan.row::<AuditedExchanges>(key.clone());
                plan.group::<SigningKeys>(SigningKeys::BY_EXCHANGE, &key.master_pub);
                plan.group::<SigningKeyRevocations>(SigningKeyRevocations::BY_EXCHANGE, &key.master_pub);
            }
            Command::Revoke { key, .. } => {
                plan.row::<AuditedExchanges>(AuditedExchangeKey { master_pub: key.master_pub });
                plan.row::<SigningKeyRevocations>(key.clone());
            }
            Command::Record(record) => {
                let (master_pub, exchange_pub) = (record.row.master_pub, record.row.exchange_pub);
                plan.row::<AuditedExchanges>(AuditedExchangeKey { master_pub });
                plan.row::<SigningKeyRevocations>(SigningKeyRevocationKey { master_pub, exchange_pub });
                plan.row::<SigningKeys>(record.signing_key.clone());
                plan.row::<DepositConfirmations>(record.row.key());
            }
            Command::Forget { confirmations, keys } => {
                for key in confirmations {
                    plan.row::<DepositConfirmations>(key.clone());
                }
                for key in keys {
                    plan.row::<SigningKeys>(key.clone());
                }
            }
        }
    }

    fn execute(&self, rows: &mut WorkingSet, command: &Command, now: Timestamp) -> Result<Outcome, Refusal> {
        match command {
            Command::Open(currency) => open(rows, *currency),
            Command::AddExchange { key, row } => match rows.get::<AuditedExchanges>(key) {
                Some(known) => Err(Refusal::ExchangeKnown(known.url.clone())),
                None => {
                    rows.insert::<AuditedExchanges>(key, row.clone());
                    Ok(Outcome::Done)
                }
            },
            Command::RemoveExchange { key } => remove(rows, key),
            Command::Revoke { key, row } => {
                audited(rows, AuditedExchangeKey { master_pub: key.master_pub })?;
                if rows.get::<SigningKeyRevocations>(key).is_some() {
                    return Ok(Outcome::Repeated);
                }
                rows.insert::<SigningKeyRevocations>(key, row.clone());
                Ok(Outcome::Done)
            }
            Command::Record(record) => keep(rows, record, now),
            Command::Forget { confirmations, keys } => {
                for key in confirmations {
                    if rows.get::<DepositConfirmations>(key).is_some() {
                        rows.delete::<DepositConfirmations>(key);
                    }
                }
                for key in keys {
                    if rows.get::<SigningKeys>(key).is_some() {
                        rows.delete::<SigningKeys>(key);
                    }
                }
                Ok(Outcome::Done)
            }
        }
    }

    fn needs_evidence(&self, _: &Refusal) -> bool {
        false
    }
}

fn open(rows: &mut WorkingSet, currency: Currency) -> Result<Outcome, Refusal> {
    let currency = currency.to_string();
    match rows.get::<AuditorStates>(&AuditorStateKey::ONLY) {
        Some(state) if state.currency != currency => Err(Refusal::OtherCurrency(state.currency.clone())),
        Some(_) => Ok(Outcome::Repeated),
        None => {
            rows.insert::<AuditorStates>(&AuditorStateKey::ONLY, AuditorStateRow { currency });
            Ok(Outcome::Done)
        }
    }
}

/// Requires that an exchange is audited, also when the batch is committed.
fn audited(rows: &mut WorkingSet, key: AuditedExchangeKey) -> Result<(), Refusal> {
    if rows.get::<AuditedExchanges>(&key).is_none() {
        return Err(Refusal::ExchangeUnknown);
    }
    rows.depend_on::<AuditedExchanges>(&key);
    Ok(())
}

fn remove(rows: &mut WorkingSet, key: &AuditedExchangeKey) -> Result<Outcome, Refusal> {
    if rows.get::<AuditedExchanges>(key).is_none() {
        return Err(Refusal::ExchangeUnknown);
    }
    rows.delete::<AuditedExchanges>(key);
    let keys = rows.group::<SigningKeys>(SigningKeys::BY_EXCHANGE, &key.master_pub);
    for key in keys.into_iter().map(|(key, _)| key.clone()).collect::<Vec<_>>() {
        rows.delete::<SigningKeys>(&key);
    }
    let revoked = rows.group::<SigningKeyRevocations>(SigningKeyRevocations::BY_EXCHANGE, &key.master_pub);
    for key in revoked.into_iter().map(|(key, _)| key.clone()).collect::<Vec<_>>() {
        rows.delete::<SigningKeyRevocations>(&key);
    }
    Ok(Outcome::Done)
}

fn keep(rows: &mut WorkingSet, record: &Record, now: Timestamp) -> Result<Outcome, Refusal> {
    let Record { row, signing_key } = record;
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
        return Ok(Outcome::Repeated);
    }
    rows.insert::<DepositConfirmations>(&key, DepositConfirmationRow { seen: now, ..row.clone() });
    Ok(Outcome::Done)
}
