//! The stored records of false answers.

use batzen_crypto::{EddsaPublicKey, HashCode};
use batzen_protocol::{Duration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::id::{EvidenceId, OpId};
use super::super::purchase::PurchaseProof;

/// Pause before the first retry of a disputed request; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(60);

/// Longest pause between two retries.
const MAX_PAUSE: Duration = Duration::from_days(1);

/// Bytes of an answer's body that are kept. The stored hash and size always cover the whole body.
pub(crate) const MAX_BODY_SIZE: usize = 1024 * 1024;

/// A request as it was sent, without its secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// `GET` or `POST`.
    pub method: String,
    /// The complete URL.
    pub url: String,
    /// The JSON body. Secret members hold the text `(withheld)`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
}

/// An answer as received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerRecord {
    /// HTTP status.
    pub status: u16,
    /// The body, if it is UTF-8; at most `MAX_BODY_SIZE` bytes of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The body in Crockford's base 32, if it is not UTF-8; at most [`MAX_BODY_SIZE`] bytes of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) body_base32: Option<String>,
    /// Size of the whole body in bytes.
    pub body_size: u64,
    /// SHA-512 of the whole body.
    pub(crate) body_sha512: HashCode,
}

/// A false statement of an exchange.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Its number.
    pub id: EvidenceId,
    /// Base URL of the exchange.
    pub exchange: String,
    /// Its master key, as the wallet has known it since it was added.
    pub master_pub: EddsaPublicKey,
    /// The operation that it holds up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<OpId>,
    /// The contract that it is about, if a merchant gave the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purchase: Option<PurchaseProof>,
    /// The false answer, and the reason.
    pub reason: String,
    /// The request that was sent.
    pub request: RequestRecord,
    /// The first answer with this fault.
    pub answer: AnswerRecord,
    /// When that answer came.
    pub first_seen: Timestamp,
    /// When the latest answer with this fault came.
    pub last_seen: Timestamp,
    /// Number of answers with this fault.
    pub times: u32,
    /// When the exchange gave a correct answer after all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled: Option<Timestamp>,
}

/// Why an open operation is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dispute {
    /// Number of the evidence.
    pub evidence: EvidenceId,
    /// Number of consecutive false answers.
    pub(crate) times: u32,
    /// When the request is sent again.
    pub(crate) retry_at: Timestamp,
    /// The user accepts that operations took place although the exchange had refused them.
    #[serde(default)]
    pub(crate) accept_refused: bool,
}

impl Dispute {
    /// The dispute, updated after another false answer.
    pub(super) fn after(previous: Option<&Self>, evidence: EvidenceId, now: Timestamp) -> Self {
        let times = previous.map_or(0, |dispute| dispute.times).saturating_add(1);
        let pause_us = FIRST_PAUSE.as_micros().saturating_mul(1 << (times - 1).min(20));
        let pause = Duration::from_micros(pause_us.min(MAX_PAUSE.as_micros()));
        let accept_refused = previous.is_some_and(|dispute| dispute.accept_refused);
        Self { evidence, times, retry_at: now.saturating_add(pause), accept_refused }
    }
}

/// A step's report of a false answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disputed {
    /// Number of the evidence.
    pub(crate) evidence: EvidenceId,
    /// The false answer, and the reason.
    pub(crate) reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_day() {
        let now = Timestamp::from_secs(1_700_000_000);
        let mut dispute = Dispute::after(None, 1, now);
        assert_eq!(dispute.retry_at, now.saturating_add(FIRST_PAUSE));
        for _ in 0..40 {
            dispute = Dispute::after(Some(&dispute), 1, now);
        }
        assert_eq!((dispute.times, dispute.retry_at), (41, now.saturating_add(MAX_PAUSE)));
    }
}
