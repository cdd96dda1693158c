//! Comparison of this machine with that of the kept results.

use super::costs::Slowdown;
use crate::bench::BenchError;
use crate::bench::load::meter::Effort;
use crate::bench::results::result::{CeilingPart, RunResult};
use crate::bench::scenarios::ceiling::{self, Cipher, CoinOperation, Share};
use crate::bench::scenarios::limits::{self, Limits};

/// A run whose cryptography is that of a coin withdrawn and deposited.
const KEPT_CYCLE: &str = include_str!("../../../../../docs/results/cycle/result.json");
/// Measured limits of one core of the same machine.
const KEPT_LIMITS: &str = include_str!("../../../../../docs/results/limits/limits.json");

/// Measures cryptography, and for everything else how long this machine reads JSON, for some seconds.
pub(crate) fn measure() -> Result<Slowdown, BenchError> {
    let shares =
        [CoinOperation::Withdraw, CoinOperation::Deposit].map(|operation| Share { operation, times: 1.0 });
    let here = ceiling::measure(Cipher::Rsa(2048), &shares, &[], Effort::QUICK)?;
    Ok(Slowdown {
        cryptography: sum(&here.parts) / sum(&kept_cryptography()),
        other: limits::json_us(Effort::QUICK) / kept_json_us(),
    })
}

fn kept_cryptography() -> Vec<CeilingPart> {
    let kept: RunResult = serde_json::from_str(KEPT_CYCLE).expect("a test reads all kept results");
    kept.ceiling_parts
}

fn kept_json_us() -> f64 {
    let kept: Limits = serde_json::from_str(KEPT_LIMITS).expect("a test reads all kept results");
    let json = kept.limits.iter().find(|limit| limit.name.starts_with(limits::JSON));
    json.expect("JSON was measured").library.us
}

/// The CPU time of the parts of one operation.
fn sum(parts: &[CeilingPart]) -> f64 {
    parts.iter().map(|part| part.per_op * part.us).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_results_have_what_is_compared() {
        assert!(sum(&kept_cryptography()) > 50.0, "a blind signature alone takes longer");
        assert!(kept_json_us() > 0.1);
    }
}
