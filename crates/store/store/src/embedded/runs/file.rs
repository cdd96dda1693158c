//! The format of runs: `index-N.run`.
//!
//! A run has parts, one for each index of each table that has entries in it, and after them the parts'
//! descriptions and filters. A part is a sequence of blocks of 4 KiB; its last block is shorter. The
//! entries of a part are sorted.
//!
//! * A block of *pairs* has up to 253 pairs of 16 bytes (fingerprint, value), and a bit for each that says
//!   whether it was removed.
//! * The blocks of *positions* hold a stream of entries: length, the key's fingerprint, position.
//!
//! A block ends with a CRC-32C of the store, the run, the place of the block and its content, so that a block
//! that the disk wrote to another place is noticed. The descriptions have a checksum of their own, which the
//! checkpoint that names the run repeats.

use crate::embedded::format::Identity;
use crate::filter::{DESCRIPTOR_BYTES, Filter, Probe};

pub(super) const MAGIC: &[u8; 8] = b"BATZRUN1";
pub(super) const VERSION: u32 = 1;
pub(super) const BLOCK_BYTES: usize = 4096;
pub(super) const CRC_BYTES: usize = 4;
pub(super) const PAIR_BYTES: usize = 16;
/// Number of pairs that a block has: with a bit for each, and the checksum.
pub(super) const PAIRS_PER_BLOCK: usize = (BLOCK_BYTES - CRC_BYTES) * 8 / (PAIR_BYTES * 8 + 1);
/// Number of bytes of a stream in a block.
pub(super) const STREAM_PER_BLOCK: usize = BLOCK_BYTES - CRC_BYTES;
/// Number of blocks share that a filter. So the memory to build a filter is bounded, whatever the size of a run.
pub(super) const SECTION_BLOCKS: usize = 512;
/// The bit of an entry's length that says that the position was removed.
pub(super) const REMOVED: u32 = 1 << 31;

const _: () = assert!(PAIRS_PER_BLOCK == 253);

/// The index: the table, and 0 for its primary index, or one more than the slot of a secondary one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PartKey {
    pub table: u16,
    pub(crate) slot: u8,
}

impl PartKey {
    pub(crate) fn primary(table: u16) -> Self {
        Self { table, slot: 0 }
    }

    pub(crate) fn secondary(table: u16, slot: usize) -> Self {
        Self { table, slot: u8::try_from(slot + 1).expect("index numbers are bytes") }
    }
}

/// The kind of entries of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Pairs,
    Positions,
}

/// An entry of a part of pairs, in the order of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pair {
    pub(crate) fingerprint: u64,
    pub value: u64,
    pub(crate) added: bool,
}

/// A part of a run.
#[derive(Debug)]
pub(super) struct Part {
    pub kind: Kind,
    /// Where its first block is, in bytes.
    pub offset: u64,
    /// The size of its blocks, in bytes.
    pub bytes: u64,
    pub entries: u64,
    /// Number of entries that remove something.
    pub removed: u64,
    /// The checksum of the checksums of its blocks. So the descriptions of two runs differ if any entry does.
    pub(crate) crc: u32,
    /// Of pairs: the first fingerprint of each block.
    pub fences: Vec<u64>,
    /// Of pairs: the first fingerprint of each section, and its filter.
    pub sections: Vec<(u64, Filter<1>)>,
}

impl Part {
    pub(super) fn new(kind: Kind, offset: u64) -> Self {
        Self {
            kind,
            offset,
            bytes: 0,
            entries: 0,
            removed: 0,
            crc: 0,
            fences: Vec::new(),
            sections: Vec::new(),
        }
    }

    pub(super) fn blocks(&self) -> u64 {
        self.bytes.div_ceil(BLOCK_BYTES as u64)
    }

    /// The size of a block, in bytes.
    pub(crate) fn block_bytes(&self, block: u64) -> usize {
        let rest = self.bytes - block * BLOCK_BYTES as u64;
        usize::try_from(rest.min(BLOCK_BYTES as u64)).expect("at most a block")
    }

    /// The number of pairs in a block.
    pub(crate) fn pairs_in(&self, block: u64) -> usize {
        let rest = self.entries - block * PAIRS_PER_BLOCK as u64;
        usize::try_from(rest.min(PAIRS_PER_BLOCK as u64)).expect("at most a block of them")
    }

    /// Returns whether its numbers fit together.
    pub(super) fn is_possible(&self, end: u64) -> bool {
        // Every entry has some bytes.
        if self.entries > end || self.bytes > end {
            return false;
        }
        let is_within = self.offset.checked_add(self.bytes).is_some_and(|part_end| part_end <= end);
        let fits = match self.kind {
            Kind::Pairs => {
                let blocks = self.entries.div_ceil(PAIRS_PER_BLOCK as u64);
                let full = blocks.saturating_sub(1);
                let last = usize::try_from(self.entries - full * PAIRS_PER_BLOCK as u64);
                let last = last.map_or(0, |pairs| if pairs == 0 { 0 } else { pairs_block_bytes(pairs) });
                self.bytes == full * BLOCK_BYTES as u64 + last as u64
                    && self.fences.len() as u64 == blocks
                    && self.fences.is_sorted()
                    && self.sections.len() == self.fences.len().div_ceil(SECTION_BLOCKS)
            }
            Kind::Positions => self.fences.is_empty() && self.sections.is_empty(),
        };
        is_within && fits && self.removed <= self.entries
    }

    /// Where to look whether it may have a fingerprint.
    pub(super) fn probe(&self, fingerprint: u64) -> Probe<'_, 1> {
        let sections = &self.sections;
        if sections.first().is_none_or(|(first, _)| *first > fingerprint) {
            return Probe::NEVER;
        }
        // Fingerprints are hashes, so the right section is usually the one at the same share of all entries, or next
        // to it.
        let entry = (u128::from(fingerprint) * u128::from(self.entries)) >> 64;
        let mut at = usize::try_from(entry).expect("a share of all") / (SECTION_BLOCKS * PAIRS_PER_BLOCK);
        while sections[at].0 > fingerprint {
            at -= 1;
        }
        while sections.get(at + 1).is_some_and(|(first, _)| *first <= fingerprint) {
            at += 1;
        }
        // The section before it may end with the fingerprint only if this one starts with it.
        if sections[at].0 == fingerprint { Probe::ALWAYS } else { sections[at].1.probe(fingerprint) }
    }

    /// The memory that it takes.
    pub(super) fn memory_bytes(&self) -> usize {
        let sections: usize =
            self.sections.iter().map(|section| size_of_val(section) + section.1.bytes()).sum();
        size_of::<Self>() + self.fences.capacity() * size_of::<u64>() + sections
    }
}

/// The size of a block with this many pairs. Full blocks are filled up to [`BLOCK_BYTES`].
pub(super) fn pairs_block_bytes(pairs: usize) -> usize {
    if pairs == PAIRS_PER_BLOCK { BLOCK_BYTES } else { pairs * PAIR_BYTES + pairs.div_ceil(8) + CRC_BYTES }
}

/// A pair of a verified block with `pairs` pairs.
pub(super) fn pair_at(block: &[u8], pairs: usize, at: usize) -> Pair {
    let number = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"));
    let is_removed = block[pairs * PAIR_BYTES + at / 8] >> (at % 8) & 1 == 1;
    Pair { fingerprint: number(at * PAIR_BYTES), value: number(at * PAIR_BYTES + 8), added: !is_removed }
}

/// Computes the checksums of a run's blocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Checksums(u32);

impl Checksums {
    pub(super) fn new(identity: &Identity, number: u32) -> Self {
        Self(crc32c::crc32c_append(crc32c::crc32c(&identity.id), &number.to_le_bytes()))
    }

    /// The checksum of a block's content at this offset of the file.
    pub(super) fn of(self, offset: u64, content: &[u8]) -> [u8; CRC_BYTES] {
        crc32c::crc32c_append(crc32c::crc32c_append(self.0, &offset.to_le_bytes()), content).to_le_bytes()
    }

    /// Returns whether a block has the right checksum.
    pub(super) fn verify(self, offset: u64, block: &[u8]) -> bool {
        block.split_last_chunk().is_some_and(|(content, crc)| self.of(offset, content) == *crc)
    }
}

/// The first bytes of the descriptions.
pub(super) fn encode_head(identity: &Identity, number: u32, parts: usize) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&identity.id);
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&u32::try_from(parts).expect("tables and slots are few").to_le_bytes());
    out
}

/// The description of a part, without fences and filters.
pub(super) fn encode_part(key: PartKey, part: &Part) -> Vec<u8> {
    let mut out = key.table.to_le_bytes().to_vec();
    out.push(key.slot);
    out.push(match part.kind {
        Kind::Pairs => 1,
        Kind::Positions => 2,
    });
    for number in [part.offset, part.bytes, part.entries, part.removed, part.fences.len() as u64] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&part.crc.to_le_bytes());
    out
}

/// A filter with its size.
pub(super) fn encode_filter(filter: &Filter<1>, out: &mut Vec<u8>) {
    let (descriptor, prints) = filter.parts();
    const _: () = assert!(DESCRIPTOR_BYTES == 20);
    out.extend_from_slice(descriptor);
    out.extend_from_slice(&u32::try_from(prints.len()).expect("a section has few").to_le_bytes());
    out.extend_from_slice(prints);
}

/// The name of a run's file.
pub(crate) fn run_name(number: u32) -> String {
    format!("index-{number:08}.run")
}

/// The number in a run's file name.
pub(crate) fn run_number(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("index-")?.strip_suffix(".run")?;
    let number = digits.parse().ok()?;
    (run_name(number) == name).then_some(number)
}
