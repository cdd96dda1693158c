//! Recent answers of filters. A commit looks for the rows that it adds, which its lane looked for a moment ago.

use std::sync::Mutex;

use super::{Cold, Marks, PartKey};
use crate::embedded::lock;

/// Number of answers that are remembered: more than a few lanes need between a read and its commit.
const SLOTS: usize = 32 << 10;
/// With fewer runs, the filters answer as quickly.
const RUNS_MIN: usize = 3;

/// The marks of one fingerprint, as the filters of certain runs gave them.
#[derive(Clone, Copy)]
struct Known {
    key: PartKey,
    fingerprint: u64,
    generation: u64,
    marks: Marks,
}

/// Marks that were found lately. Runs never change, so nothing in here is ever wrong; it is only replaced.
pub(crate) struct KnownMarks {
    slots: Box<[Mutex<Option<Known>>]>,
}

impl Default for KnownMarks {
    fn default() -> Self {
        Self { slots: (0..SLOTS).map(|_| Mutex::new(None)).collect() }
    }
}

impl KnownMarks {
    fn slot(&self, fingerprint: u64) -> &Mutex<Option<Known>> {
        &self.slots[usize::try_from(fingerprint % SLOTS as u64).expect("below the number of slots")]
    }

    /// As [`Cold::marks`].
    pub(crate) fn of(&self, cold: &Cold, key: PartKey, fingerprints: &[u64]) -> Vec<Marks> {
        if cold.runs.len() < RUNS_MIN {
            return cold.marks(key, fingerprints);
        }
        let mut marks = vec![Marks::ALL; fingerprints.len()];
        let (mut missing, mut missing_prints) = (Vec::new(), Vec::new());
        for (n, &fingerprint) in fingerprints.iter().enumerate() {
            match *lock(self.slot(fingerprint)) {
                Some(known)
                    if known.fingerprint == fingerprint
                        && known.key == key
                        && known.generation == cold.generation =>
                {
                    debug_assert_eq!(known.marks, cold.marks(key, &[fingerprint])[0], "runs never change");
                    marks[n] = known.marks;
                }
                _ => {
                    missing.push(n);
                    missing_prints.push(fingerprint);
                }
            }
        }
        for (n, found) in missing.into_iter().zip(cold.marks(key, &missing_prints)) {
            let (fingerprint, generation) = (fingerprints[n], cold.generation);
            marks[n] = found;
            *lock(self.slot(fingerprint)) = Some(Known { key, fingerprint, generation, marks: found });
        }
        marks
    }
}
