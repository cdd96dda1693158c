//! Values that several records have in common: keys of merchants, hashes of their accounts, hashes of contracts.
//!
//! A record may name such a value by its place earlier in the same segment instead of repeating it. Places are
//! found in two ways: among the records of the same commit ([`Recent`]), and in a small table of values that
//! were written to the current segment ([`Dictionary`]). Both are only memories: whatever they have forgotten,
//! or have never known, is written again.

use std::sync::Mutex;

use super::lock;

/// The lengths of shared values are multiples of this, in bytes.
pub(crate) const SHARED_UNIT: usize = 16;
/// The longest shared value, in bytes.
pub(crate) const SHARED_MAX: usize = 64;
/// Number of places with a lock of their own in the dictionary.
const DICTIONARY_PLACES: usize = 4 << 10;
/// Number of values that each remembers. Each takes some 80 bytes.
const PLACE_VALUES: usize = 4;
/// The most values that are remembered within a commit.
const RECENT_SLOTS_MAX: usize = 4 << 10;

/// Returns whether a value of this length may be shared.
pub(crate) const fn is_shareable(bytes: usize) -> bool {
    bytes > 0 && bytes <= SHARED_MAX && bytes.is_multiple_of(SHARED_UNIT)
}

/// Where a value is remembered. Shared values are keys and hashes, so their first bytes are random enough; whoever
/// makes them collide only makes the journal longer.
fn slot(value: &[u8], slots: usize) -> usize {
    let head = u64::from_le_bytes(*value.first_chunk().expect("shared values have at least 16 bytes"));
    usize::try_from(head % slots as u64).expect("below the number of slots")
}

/// Values written to the current segment.
pub(crate) struct Dictionary {
    places: Box<[Mutex<DictionaryPlace>]>,
}

/// Values whose first bytes lead here. With several to a place, hardly any of some thousand merchants pushes out
/// another.
#[derive(Clone, Copy)]
struct DictionaryPlace {
    values: [Known; PLACE_VALUES],
    /// The value to replace next.
    next: u8,
}

#[derive(Clone, Copy)]
struct Known {
    segment: u32,
    offset: u32,
    bytes: u8,
    value: [u8; SHARED_MAX],
}

impl Known {
    fn is(&self, segment: u32, value: &[u8]) -> bool {
        self.segment == segment && self.value.get(..self.bytes.into()) == Some(value)
    }
}

impl Default for Dictionary {
    fn default() -> Self {
        let none = Known { segment: 0, offset: 0, bytes: 0, value: [0; SHARED_MAX] };
        let empty = DictionaryPlace { values: [none; PLACE_VALUES], next: 0 };
        Self { places: (0..DICTIONARY_PLACES).map(|_| Mutex::new(empty)).collect() }
    }
}

impl Dictionary {
    /// Where this segment has the value, if known.
    pub(crate) fn find(&self, segment: u32, value: &[u8]) -> Option<u64> {
        let place = lock(&self.places[slot(value, self.places.len())]);
        place.values.iter().find(|known| known.is(segment, value)).map(|known| known.offset.into())
    }

    /// Remembers that this segment has the value at an offset.
    pub(crate) fn insert(&self, segment: u32, offset: u64, value: &[u8]) {
        let mut place = lock(&self.places[slot(value, self.places.len())]);
        if place.values.iter().any(|known| known.is(segment, value)) {
            return;
        }
        let next = usize::from(place.next);
        place.next = u8::try_from((next + 1) % PLACE_VALUES).expect("there are few");
        let known = &mut place.values[next];
        known.segment = segment;
        known.offset = u32::try_from(offset).expect("segments are shorter than that");
        known.bytes = u8::try_from(value.len()).expect("at most SHARED_MAX");
        known.value[..value.len()].copy_from_slice(value);
    }
}

/// Values among the records of one commit.
pub(crate) struct Recent {
    /// Places in the records' bytes plus one; 0 if there is none.
    slots: Vec<u32>,
}

impl Recent {
    /// For a commit of that many records.
    pub(super) fn new(records: usize) -> Self {
        let slots = (4 * records).next_power_of_two().min(RECENT_SLOTS_MAX);
        Self { slots: vec![0; slots] }
    }

    /// Where `written`, the records so far, have the value.
    pub(super) fn find(&self, written: &[u8], value: &[u8]) -> Option<usize> {
        let at = usize::try_from(self.slots[slot(value, self.slots.len())].checked_sub(1)?).ok()?;
        (written.get(at..at + value.len()) == Some(value)).then_some(at)
    }

    pub(super) fn insert(&mut self, at: usize, value: &[u8]) {
        let slots = self.slots.len();
        if let Ok(place) = u32::try_from(at + 1) {
            self.slots[slot(value, slots)] = place;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values that start alike share a place.
    #[test]
    fn dictionary_remembers_some_values_in_each_place() {
        let value = |n: u8| [[7; 16], [n; 16]].concat();
        let dictionary = Dictionary::default();
        for n in 0..4 {
            dictionary.insert(1, n.into(), &value(n));
        }
        dictionary.insert(1, 99, &value(0));
        for n in 0..4 {
            assert_eq!(dictionary.find(1, &value(n)), Some(n.into()), "the first place is kept");
            assert_eq!(dictionary.find(2, &value(n)), None);
            assert_eq!(dictionary.find(1, &value(n)[..16]), None);
        }
        dictionary.insert(1, 4, &value(4));
        let found = (0..5).map(|n| dictionary.find(1, &value(n)).is_some()).collect::<Vec<_>>();
        assert_eq!(found, [false, true, true, true, true], "the oldest is replaced");
    }
}
