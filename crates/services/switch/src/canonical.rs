//! The hash that distinguishes a repetition from a modified request: SHA-256 of the body with sorted keys and
//! without whitespace.

use serde_json::Value;
use sha2::{Digest, Sha256};

/// The hash of a body's canonical form; `None` if the body is not JSON.
#[must_use]
pub(crate) fn hash(body: &[u8]) -> Option<[u8; 32]> {
    // Objects are maps sorted by key, so serialising the value gives the canonical form. These messages
    // contain no numbers, so the spelling of numbers does not matter.
    let value: Value = serde_json::from_slice(body).ok()?;
    let canonical = serde_json::to_vec(&value).ok()?;
    Some(Sha256::digest(canonical).into())
}

#[cfg(test)]
mod tests {
    use super::hash;

    #[test]
    fn order_and_blanks_do_not_count() {
        let one = hash(br#"{"a":"1","b":{"c":"2","d":["3"]}}"#).unwrap();
        assert_eq!(hash(br#" { "b" : {"d":["3"], "c":"\u0032"}, "a":"1"} "#), Some(one));
        assert_ne!(hash(br#"{"a":"1","b":{"c":"2","d":["4"]}}"#), Some(one));
        assert_eq!(hash(b"{"), None);
    }
}
