//! The auditor's store: a copy of the exchange's audited rows, and how far it reaches. What the checks of these rows give
//! is in [`results`](super::results).

use batzen_crypto::{EddsaSignature, ShortHash};
use batzen_protocol::Timestamp;
use batzen_store::{List, Table, TableDef, table};

use super::results::RESULTS;
use crate::SingletonKey;
use crate::exchange::AUDITED;

/// Identifies the one row of [`FeedPositions`].
pub type FeedPositionKey = SingletonKey;

table! {
    /// The position that the copy has reached. It changes in the commit that applies the exchange's changes.
    pub struct FeedPositionRow {
        /// The exchange's store.
        pub exchange_store: [u8; 16],
        /// The number of the exchange's next frame: the copy has all before it.
        pub next: u64,
        /// The head of the hash chain over all of them.
        pub head: ShortHash,
        /// Whether the copy is a state of the exchange. Otherwise a snapshot is being loaded.
        pub is_whole: bool,
        /// The numbers of the tables that are copied.
        pub tables: List<u16>,
        /// Number of snapshots that were taken. Each leaves out what happened between the position before it and it.
        pub snapshots: u32,
        /// Number of batches of changes that were applied.
        pub batches: u64,
        /// When the auditor signed the head.
        pub time: Timestamp,
        /// The auditor's signature on it.
        pub signature: EddsaSignature,
        /// The exchange's signature on it.
        pub exchange_signature: EddsaSignature,
    }

    /// The position that the copy has reached: one row, or none before the first batch.
    pub FeedPositions(500, "feed_position"): FeedPositionKey => FeedPositionRow, updated();
}

table! {
    /// Identifies a head of the hash chain.
    pub key struct FeedHeadKey {
        /// The number of the batch after which it was signed.
        pub batch: u64,
    }

    /// A head of the hash chain that both sides have signed.
    pub struct FeedHeadRow {
        /// The number of the exchange's next frame.
        pub next: u64,
        /// The head over all before it.
        pub head: ShortHash,
        /// When the auditor signed it.
        pub time: Timestamp,
        /// The auditor's signature.
        pub signature: EddsaSignature,
        /// The exchange's signature.
        pub exchange_signature: EddsaSignature,
    }

    /// Signed heads of the chain: the latest ones, and fewer of older ones.
    pub FeedHeads(501, "feed_heads"): FeedHeadKey => FeedHeadRow;
}

table! {
    /// Identifies a finding.
    pub key struct FeedFindingKey {
        /// The number of the exchange's next frame at the auditor when it was found.
        pub next: u64,
        /// The kind of finding: a number of the crate `feed`.
        pub kind: u8,
    }

    /// Something that must not happen to what an exchange has shipped.
    pub struct FeedFindingRow {
        /// In words.
        pub text: String,
        /// The head that the auditor had seen.
        pub head: ShortHash,
        /// The head that the exchange computes instead, if it told one.
        pub exchange_head: Option<ShortHash>,
        /// When it was found first.
        pub time: Timestamp,
    }

    /// Findings on what the exchange has shipped.
    pub FeedFindings(502, "feed_findings"): FeedFindingKey => FeedFindingRow;
}

/// The tables of the stream.
const STREAM: &[&TableDef] = &[FeedPositions::DEF, FeedHeads::DEF, FeedFindings::DEF];

/// The auditor's own tables.
pub const OWN: &[&TableDef] = &joined::<{ STREAM.len() + RESULTS.len() }>(STREAM, RESULTS);

/// All tables of the auditor's store: its own, and those that it copies.
pub const ALL: &[&TableDef] = &joined::<{ OWN.len() + AUDITED.len() }>(OWN, AUDITED);

const fn joined<const N: usize>(
    one: &[&'static TableDef],
    other: &[&'static TableDef],
) -> [&'static TableDef; N] {
    let mut tables = [FeedPositions::DEF; N];
    let mut n = 0;
    while n < N {
        tables[n] = if n < one.len() { one[n] } else { other[n - one.len()] };
        n += 1;
    }
    tables
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn numbers_are_used_once_and_in_range() {
        let ids: HashSet<u16> = ALL.iter().map(|table| table.id).collect();
        assert_eq!(ids.len(), OWN.len() + AUDITED.len());
        assert!(OWN.iter().all(|table| (500..600).contains(&table.id)));
        assert!(AUDITED.iter().all(|table| ids.contains(&table.id)));
    }
}
