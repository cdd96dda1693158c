//! Signed heads that are kept: all of the latest, and of older ones every second, fourth, eighth and so on.

/// Number of the latest that are all kept.
const ALL: u64 = 32;

/// The batches whose heads are dropped after this batch. What is left is about 16 heads for each doubling of the age.
pub(super) fn dropped(batch: u64) -> Vec<u64> {
    let mut dropped = Vec::new();
    let mut step = 1_u64;
    // The age at which only every second one of the multiples of `step` stays.
    while let Some(old) = ALL.checked_mul(step).and_then(|age| batch.checked_sub(age)).filter(|old| *old > 0)
    {
        if old % (2 * step) != 0 {
            dropped.push(old);
        }
        step *= 2;
    }
    dropped
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn few_heads_are_kept_of_many_and_none_of_the_latest_is_missing() {
        let mut kept = BTreeSet::new();
        for batch in 1..=100_000 {
            kept.insert(batch);
            for old in dropped(batch) {
                kept.remove(&old);
            }
            assert!((batch.saturating_sub(ALL - 1).max(1)..=batch).all(|late| kept.contains(&late)));
        }
        assert!(kept.len() < 300, "{}", kept.len());
        let kept: Vec<u64> = kept.into_iter().collect();
        for pair in kept.windows(2) {
            let age = 100_000 - pair[0];
            assert!(pair[1] - pair[0] <= 2 * (age / ALL).max(1), "{pair:?}");
        }
    }
}
