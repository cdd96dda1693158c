//! Verification of an exchange's proofs.
//!
//! An exchange that refuses because of earlier operations must prove it with the coin's or the reserve's
//! history, or with a signed statement about a denomination. A proof counts only if every signature, amount
//! and sum in it is right. Anything else is a [`CoreError::FalseProof`]: the wallet keeps it as evidence and
//! does not believe it.

pub(crate) mod coin;
pub(crate) mod denomination;
pub(crate) mod known;
pub(crate) mod reserve;

use batzen_crypto::EddsaPublicKey;
use batzen_protocol::signatures::SignedMessage;
use batzen_protocol::{Amount, Duration, Money, Timestamp};

use super::CoreError;
use super::exchange::Exchange;
use super::http::HttpResponse;
use crate::core::error::Result;

/// Most items in a history. Honest ones are far shorter. Each item costs one or two signature checks.
const MAX_ITEMS: usize = 20_000;
/// Tolerated difference between the exchange's clock and ours, in either direction.
const CLOCK_TOLERANCE: Duration = Duration::from_days(1);

/// Builds the errors for one kind of proof.
#[derive(Clone, Copy)]
struct ProofCheck {
    what: &'static str,
}

impl ProofCheck {
    fn false_proof(self, reason: impl Into<String>) -> CoreError {
        CoreError::FalseProof { what: self.what, reason: reason.into() }
    }

    fn check(self, holds: bool, reason: &str) -> Result<()> {
        if holds { Ok(()) } else { Err(self.false_proof(reason)) }
    }

    fn parse<T: serde::de::DeserializeOwned>(self, response: &HttpResponse) -> Result<T> {
        serde_json::from_slice(&response.body)
            .map_err(|error| self.false_proof(format!("it cannot be read: {error}")))
    }

    fn check_count(self, count: usize) -> Result<()> {
        self.check(count > 0, "its history is empty")?;
        self.check(count <= MAX_ITEMS, "its history is longer than any honest one")
    }

    fn amount(self, exchange: &Exchange, amount: &Amount) -> Result<Money> {
        amount.money_in(exchange.currency).map_err(|error| self.false_proof(error.to_string()))
    }

    /// Verifies a statement that the exchange signed.
    fn check_exchange(
        self,
        exchange: &Exchange,
        message: &impl SignedMessage,
        (key, signature): (&EddsaPublicKey, &batzen_crypto::EddsaSignature),
        (timestamp, now): (Timestamp, Timestamp),
    ) -> Result<()> {
        exchange.require_signing_key(key, now)?;
        self.check(message.verify(key, signature), "the exchange's signature in it is invalid")?;
        self.check(timestamp <= now.saturating_add(CLOCK_TOLERANCE), "it dates something in the future")
    }
}
