//! `PUT /deposit-confirmation`: a merchant shows what an exchange has confirmed to it.
//!
//! The order of the checks is that of the protocol: the time of the signing key, the master key's signature on it, its
//! revocation, the exchange's signature. Both signatures are checked together.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use batzen_crypto::eddsa::verify_batch;
use batzen_crypto::{EddsaPublicKey, EddsaSignature};
use batzen_engine::PoolBusy;
use batzen_http::{Request, Response};
use batzen_protocol::api::auditor::{
    DEPOSIT_CONFIRMATION_OK, DepositConfirmationAnswer, DepositConfirmationRequest,
};
use batzen_protocol::api::field_error;
use batzen_protocol::limits::SMALL_BODY_BYTES_MAX;
use batzen_protocol::signatures::SignedMessage;
use batzen_protocol::{ErrorCode, Money, Timestamp};
use batzen_service::{Answer, body, endpoint, malformed};
use batzen_tables::auditor::{
    DepositConfirmationRow, SigningKeyKey, SigningKeyRevocationKey, SigningKeyRevocationRow,
    SigningKeyRevocations,
};

use super::{FAILURES, READ_FAILURES, Service, Table};
use crate::rules::{self, Record, Refusal, Revoke};

/// Statements of master keys that are known to be valid. An exchange has a few each year; when there are more, all are
/// checked again.
const STATEMENTS_MAX: usize = 4_096;

/// A signature, to be checked together with those of other requests.
pub(super) struct Check {
    public: EddsaPublicKey,
    message: Box<[u8]>,
    signature: EddsaSignature,
}

impl Check {
    fn new(public: EddsaPublicKey, message: &impl SignedMessage, signature: EddsaSignature) -> Self {
        Self { public, message: message.message().as_ref().into(), signature }
    }
}

/// Returns whether each of the signatures is valid.
pub(super) fn check(checks: &[Check]) -> Vec<bool> {
    let items: Vec<_> =
        checks.iter().map(|Check { public, message, signature }| (public, &**message, signature)).collect();
    verify_batch(&items)
}

/// A master key's statement about a signing key, with its signature.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Statement {
    master_pub: EddsaPublicKey,
    exchange_pub: EddsaPublicKey,
    times: [Timestamp; 3],
    master_sig: EddsaSignature,
}

/// Valid statements, which need no second check.
#[derive(Debug, Default)]
pub(super) struct Statements(Mutex<HashSet<Statement>>);

impl Statements {
    fn has(&self, statement: &Statement) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(statement)
    }

    fn add(&self, statement: Statement) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= STATEMENTS_MAX {
            known.clear();
        }
        known.insert(statement);
    }
}

fn invalid(detail: &str) -> Response {
    Response::error(ErrorCode::AUDITOR_DEPOSIT_CONFIRMATION_SIGNATURE_INVALID, detail)
}

fn revoked() -> Response {
    Response::error(ErrorCode::AUDITOR_EXCHANGE_SIGNING_KEY_REVOKED, "exchange_pub")
}

/// The protocol has no code for this. It must not look like a failure of the auditor, which a merchant would repeat.
fn not_audited() -> Response {
    let detail = "master_pub: the auditor does not audit this exchange; see /exchanges";
    Response::error_status(ErrorCode::GENERIC_PARAMETER_MALFORMED, 404, detail)
}

pub(super) fn routes(table: Table) -> Table {
    table.put("/deposit-confirmation", SMALL_BODY_BYTES_MAX, "confirmation", endpoint!(confirm))
}

async fn confirm(auditor: &Service, request: &Request) -> Answer {
    let body: DepositConfirmationRequest = body(request)?;
    let amount_without_fee = auditor.money(&body)?;
    let now = auditor.now();
    if now < body.ep_start || body.ep_expire < now {
        return Err(invalid("master signature expired"));
    }
    let is_confirmed = auditor.verify(&body).await?;
    // Of a revoked key, nothing else matters.
    auditor.not_revoked(&body, is_confirmed, now).await?;
    if !is_confirmed {
        return Err(invalid("exchange_sig"));
    }
    match auditor.execute(record(&body, amount_without_fee, now)).await? {
        Ok(answer) => {
            let counter = if answer == rules::Answer::Repeated { &auditor.repeated } else { &auditor.stored };
            counter.inc();
            let status = DEPOSIT_CONFIRMATION_OK.to_owned();
            Ok(Response::json(200, &DepositConfirmationAnswer { status }))
        }
        Err(Refusal::Revoked) => Err(revoked()),
        Err(Refusal::ExchangeUnknown) => Err(not_audited()),
        Err(other) => Err(Response::error(ErrorCode::GENERIC_INTERNAL_INVARIANT_FAILURE, &other.to_string())),
    }
}

impl Service {
    /// The quantity of the amount, which must be in the auditor's currency, spelt exactly so: its bytes are signed, but
    /// only the quantity is stored.
    fn money(&self, body: &DepositConfirmationRequest) -> Result<Money, Response> {
        let amount = &body.amount_without_fee;
        if amount.currency.padded() == self.config.currency.padded() {
            return Ok(amount.money);
        }
        let reason = format!("expected an amount in {}", self.config.currency);
        let error = field_error::<DepositConfirmationRequest>("amount_without_fee", reason);
        Err(malformed(&error))
    }

    /// Returns whether the exchange has signed the confirmation, after checking that its master key has signed the
    /// signing key.
    async fn verify(&self, body: &DepositConfirmationRequest) -> Result<bool, Response> {
        let statement = Statement {
            master_pub: body.master_pub,
            exchange_pub: body.exchange_pub,
            times: [body.ep_start, body.ep_expire, body.ep_end],
            master_sig: body.master_sig,
        };
        let mut checks = vec![Check::new(body.exchange_pub, &body.confirmation(), body.exchange_sig)];
        let is_known = self.statements.has(&statement);
        if !is_known {
            checks.push(Check::new(body.master_pub, &body.validity(), body.master_sig));
        }
        let verdicts = self.checks.run(checks).await.map_err(|PoolBusy| FAILURES.busy())?;
        if !is_known {
            if !verdicts[1] {
                return Err(invalid("master_sig"));
            }
            self.statements.add(statement);
        }
        Ok(verdicts[0])
    }

    /// Refuses a revoked signing key. What the auditor's own rows say about a valid confirmation is found when it is
    /// stored.
    async fn not_revoked(
        &self,
        body: &DepositConfirmationRequest,
        is_confirmed: bool,
        now: Timestamp,
    ) -> Result<(), Response> {
        let (master_pub, exchange_pub) = (body.master_pub, body.exchange_pub);
        let found = self.revocations.find(&master_pub, exchange_pub).await;
        let key = SigningKeyRevocationKey { master_pub, exchange_pub };
        let found = found.map_err(|error| {
            tracing::error!(%error, "revocations cannot be looked up");
            FAILURES.try_later("the exchange's database is not available")
        });
        if let Some(master_sig) = found? {
            let row = SigningKeyRevocationRow { master_sig, seen: now };
            // TrackedFinding for the time when the exchange's tables are out of reach. If that fails, they say so again.
            if let Ok(Err(refusal)) = self.execute(Revoke { key, row }).await {
                tracing::debug!(%refusal, "a revocation was not kept");
            }
            return Err(revoked());
        }
        if !is_confirmed {
            let kept = self.read(move |store| store.get::<SigningKeyRevocations>(&key)).await;
            if kept.map_err(|error| READ_FAILURES.store(&error))?.is_some() {
                return Err(revoked());
            }
        }
        Ok(())
    }
}

fn record(body: &DepositConfirmationRequest, amount_without_fee: Money, now: Timestamp) -> Record {
    Record {
        row: Box::new(DepositConfirmationRow {
            master_pub: body.master_pub,
            h_contract_terms: body.h_contract_terms,
            h_policy: body.h_policy,
            h_wire: body.h_wire,
            exchange_timestamp: body.exchange_timestamp,
            refund_deadline: body.refund_deadline,
            wire_deadline: body.wire_deadline,
            amount_without_fee,
            coin_pub: body.coin_pub,
            merchant_pub: body.merchant_pub,
            exchange_sig: body.exchange_sig,
            exchange_pub: body.exchange_pub,
            master_sig: body.master_sig,
            seen: now,
        }),
        signing_key: SigningKeyKey {
            master_pub: body.master_pub,
            exchange_pub: body.exchange_pub,
            start: body.ep_start,
            expire: body.ep_expire,
            end: body.ep_end,
        },
    }
}
