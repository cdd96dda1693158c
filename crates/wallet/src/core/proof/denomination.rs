//! Signed statements about denominations: unknown, expired, revoked, not revoked.

use batzen_crypto::HashCode;
use batzen_protocol::ErrorCode;
use batzen_protocol::Timestamp;
use batzen_protocol::api::errors::{DenominationUnknown, DenominationUnusable};
use batzen_protocol::signatures::{ExchangeAffirmDenomExpired, ExchangeAffirmDenomUnknown, OperationName};

use super::super::exchange::{Denom, Exchange};
use super::super::http::HttpResponse;
use super::ProofCheck;
use crate::core::error::Result;

const PROOF: ProofCheck = ProofCheck { what: "the exchange's statement about a denomination" };

/// An exchange's claim about a denomination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// The exchange does not know the denomination.
    Unknown,
    /// The period for the operation is over.
    Expired,
    Revoked,
    /// It was not revoked, so there is nothing to recoup.
    NotRevoked,
}

/// The use of a denomination by an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// To issue coins. A refusal takes nothing from the wallet, so the exchange's signature is enough.
    Issue,
    /// To spend or recoup a coin. Our clock and the terms that the master key signed decide.
    Spend,
}

/// Returns whether an answer says that a denomination cannot be used.
pub(crate) fn is_claim(response: &HttpResponse) -> bool {
    matches!(
        (response.status, response.code()),
        (404, ErrorCode::EXCHANGE_GENERIC_DENOMINATION_KEY_UNKNOWN)
            | (
                410,
                ErrorCode::EXCHANGE_GENERIC_DENOMINATION_EXPIRED
                    | ErrorCode::EXCHANGE_GENERIC_DENOMINATION_REVOKED
            )
    )
}

/// Verifies the answers 404/1005 and 410/1009, 1010, 1555, 1580 to a request for one of `operations` with the
/// denominations `asked`. The answer must be about one of them.
///
/// # Errors
/// [`CoreError::FalseProof`] if the statement is not signed or contradicts the terms that the master key
/// signed; [`CoreError::UnknownSigningKey`] if it is signed by an unknown key.
pub(crate) fn verify(
    exchange: &Exchange,
    asked: &[HashCode],
    operations: &[&str],
    wanted: Use,
    response: &HttpResponse,
    now: Timestamp,
) -> Result<(HashCode, Problem)> {
    let (h_denom_pub, problem) = match response.code() {
        ErrorCode::EXCHANGE_GENERIC_DENOMINATION_KEY_UNKNOWN => {
            let DenominationUnknown { timestamp, h_denom_pub, exchange_pub, exchange_sig } =
                PROOF.parse(response)?;
            let message = ExchangeAffirmDenomUnknown { timestamp, h_denom_pub };
            PROOF.check_exchange(exchange, &message, (&exchange_pub, &exchange_sig), (timestamp, now))?;
            (h_denom_pub, Problem::Unknown)
        }
        code => {
            let DenominationUnusable { oper, timestamp, h_denom_pub, exchange_pub, exchange_sig } =
                PROOF.parse(response)?;
            PROOF.check(operations.contains(&oper.as_str()), "it is about another operation")?;
            let operation = OperationName::new(&oper);
            let message = ExchangeAffirmDenomExpired { timestamp, operation, h_denom_pub };
            PROOF.check_exchange(exchange, &message, (&exchange_pub, &exchange_sig), (timestamp, now))?;
            let problem = match code {
                ErrorCode::EXCHANGE_GENERIC_DENOMINATION_EXPIRED => Problem::Expired,
                ErrorCode::EXCHANGE_GENERIC_DENOMINATION_REVOKED => Problem::Revoked,
                _ => Problem::NotRevoked,
            };
            (h_denom_pub, problem)
        }
    };
    PROOF.check(asked.contains(&h_denom_pub), "it is about a denomination that was not asked for")?;
    let denom = exchange.denom(&h_denom_pub)?;
    match (wanted, problem) {
        (Use::Spend, Problem::Unknown) => PROOF.check(
            denom.stamp_expire_legal <= now,
            "the exchange's master key signed the denomination, and its records are still to be kept",
        )?,
        (Use::Spend, Problem::Expired) => check_unspendable(denom, now)?,
        (_, Problem::NotRevoked) => PROOF.check(
            denom.revoked_at.is_none(),
            "it says that the denomination is not revoked, but the exchange signed earlier that it is",
        )?,
        _ => {}
    }
    Ok((h_denom_pub, problem))
}

/// Checks by our clock that coins of a denomination can no longer be spent.
///
/// # Errors
/// [`CoreError::FalseProof`] if they can.
pub(crate) fn check_unspendable(denom: &Denom, now: Timestamp) -> Result<()> {
    PROOF.check(
        denom.stamp_expire_deposit <= now,
        "by the terms that the master key signed, coins of the denomination can still be spent",
    )
}

/// Checks that coins of a denomination can no longer be issued: by our clock, or because the exchange revoked
/// it in its list of keys.
///
/// # Errors
/// [`CoreError::FalseProof`] if they can.
pub(crate) fn check_unissuable(denom: &Denom, now: Timestamp) -> Result<()> {
    PROOF.check(
        denom.revoked || denom.stamp_expire_withdraw <= now,
        "by what the exchange published, coins of the denomination are still issued",
    )
}
