//! Correlation ids, the header `Taler-Correlation-Id`: the same id in the logs of all services that worked on a
//! request.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The name of the header field.
pub const CORRELATION_ID: &str = "taler-correlation-id";
/// Ids are shorter than this, in bytes.
const BYTES_END: usize = 64;

/// Returns whether a client's id may appear in logs and answers: letters, digits and `-`, 1 to 63 characters.
#[must_use]
pub(crate) fn is_correlation_id(id: &[u8]) -> bool {
    (1..BYTES_END).contains(&id.len()) && id.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
}

/// A new id of 16 hexadecimal digits. Ids are unique and tell nothing about each other; they are no secrets.
#[must_use]
pub fn new_correlation_id() -> String {
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{:016x}", KEY.hash_one(NEXT.fetch_add(1, Ordering::Relaxed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_checked_and_distinct() {
        assert!(is_correlation_id(b"a-B-9") && is_correlation_id(&[b'x'; 63]));
        for bad in [&b""[..], b"a b", b"a\n", "ü".as_bytes(), &[b'x'; 64]] {
            assert!(!is_correlation_id(bad), "{bad:?}");
        }
        let ids: std::collections::BTreeSet<_> = (0..1000).map(|_| new_correlation_id()).collect();
        assert_eq!(ids.len(), 1000);
        assert!(ids.iter().all(|id| is_correlation_id(id.as_bytes())));
    }
}
