//! Asking again, with patience and within bounds.

use crate::{
    client::{ClientError, Reply},
    drain::Drain,
};
use std::{hash::BuildHasher, hash::RandomState, time::Duration};
use tokio::time::Instant;

/// How often and how long to ask again.
#[derive(Clone, Debug)]
pub struct RetryPolicy {
    /// How many times to ask at most, the first time included.
    pub max_attempts: u32,
    /// Pause after the first failure; doubles with each further one.
    pub first_pause: Duration,
    /// The longest pause between two attempts, a server's `Retry-After` included.
    pub max_pause: Duration,
    /// No attempt begins later than this after the first.
    pub max_total: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 6,
            first_pause: Duration::from_millis(100),
            max_pause: Duration::from_secs(10),
            max_total: Duration::from_secs(60),
        }
    }
}

impl RetryPolicy {
    /// The pause after failed attempt number `attempt` (from 1): half of it fixed, half random, so that clients that
    /// failed together do not come back together.
    #[must_use]
    pub fn pause(&self, attempt: u32) -> Duration {
        let doubled = self.first_pause.saturating_mul(2_u32.saturating_pow(attempt.saturating_sub(1)));
        let ceiling = doubled.min(self.max_pause);
        // Each hasher state is seeded afresh; quality beyond spreading is not needed here.
        let random = RandomState::new().hash_one(attempt) as f64 / u64::MAX as f64;
        ceiling.div_f64(2.0) + ceiling.mul_f64(random / 2.0)
    }
}

/// Calls `ask` until it gives an answer that is final, or the policy's bounds are reached; then the last outcome is
/// returned, whatever it is. Asked again is after transport failures and after 429, 502, 503 and 504 (and 500, which
/// for the services here is a passing failure of storage); a `Retry-After` in seconds is honoured up to `max_pause`.
/// When `drain` fires during a pause, the last outcome is returned at once.
///
/// # Errors
/// The last attempt's error.
pub async fn retry<F, Fut>(policy: &RetryPolicy, drain: &Drain, mut ask: F) -> Result<Reply, ClientError>
where
    F: FnMut(u32) -> Fut,
    Fut: Future<Output = Result<Reply, ClientError>>,
{
    let begin = Instant::now();
    let mut attempt = 0;
    loop {
        attempt += 1;
        let outcome = ask(attempt).await;
        let asked_pause = match &outcome {
            Ok(reply) if matches!(reply.status, 429 | 500 | 502 | 503 | 504) => reply.retry_after(),
            Ok(_) => return outcome,
            Err(error) if error.is_transient() => None,
            Err(_) => return outcome,
        };
        let mut pause = policy.pause(attempt);
        if let Some(asked) = asked_pause {
            pause = pause.max(asked.min(policy.max_pause));
        }
        if attempt >= policy.max_attempts || begin.elapsed().saturating_add(pause) > policy.max_total {
            return outcome;
        }
        tracing::debug!(attempt, pause_ms = pause.as_millis() as u64, "asking again");
        if drain.sleep(pause).await {
            return outcome;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_within_bounds() {
        let policy = RetryPolicy::default();
        for attempt in 1..200 {
            let pause = policy.pause(attempt);
            let ceiling =
                Duration::from_millis(100 * 2_u64.saturating_pow(attempt.min(20) - 1)).min(policy.max_pause);
            assert!(pause >= ceiling / 2 && pause <= ceiling, "{attempt}: {pause:?}");
        }
    }
}
