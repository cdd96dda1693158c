//! The hash chain over what an exchange ships.
//!
//! ```text
//! head(start) = H("batzen feed start" ‖ store ‖ next ‖ tables ‖ digest of the rows before frame `next`)
//! head(n)     = H("batzen feed frame" ‖ head before ‖ n ‖ changes of frame n in their order)
//! H           = the first 32 bytes of SHA-512; each part is preceded by its length
//! ```
//!
//! Only frames with changes of the shipped tables count, so anybody who has the changes can compute the heads. A chain
//! starts with the store's first frame and no rows, or with a snapshot, whose rows have no order
//! ([`batzen_crypto::SetHash`]).

use batzen_crypto::hash::{Digest, Sha512, finish, shorten};
use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, EddsaSignature, SetHash, ShortHash, eddsa};
use batzen_protocol::Timestamp;
use batzen_store::FeedFrame;

use crate::change;

/// The signer of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signer {
    /// The exchange: it has shipped this.
    Exchange,
    /// The auditor: it has seen this.
    Auditor,
}

impl Signer {
    const fn domain(self) -> &'static [u8] {
        match self {
            Self::Exchange => b"batzen feed head shipped by the exchange",
            Self::Auditor => b"batzen feed head seen by the auditor",
        }
    }
}

fn put(hasher: &mut Sha512, part: &[u8]) {
    hasher.update((part.len() as u64).to_be_bytes());
    hasher.update(part);
}

/// The head before the frame `next` of a store whose rows have this hash.
#[must_use]
pub(crate) fn start(store: &[u8; 16], next: u64, tables: &[u16], rows: &SetHash) -> ShortHash {
    let mut hasher = Sha512::new();
    put(&mut hasher, b"batzen feed start");
    put(&mut hasher, store);
    put(&mut hasher, &next.to_be_bytes());
    let tables: Vec<u8> = tables.iter().flat_map(|table| table.to_be_bytes()).collect();
    put(&mut hasher, &tables);
    put(&mut hasher, rows.digest().as_bytes());
    shorten(&finish(hasher))
}

/// The head after a frame.
#[must_use]
pub(crate) fn after(head: &ShortHash, frame: &FeedFrame) -> ShortHash {
    let mut hasher = Sha512::new();
    put(&mut hasher, b"batzen feed frame");
    put(&mut hasher, head.as_bytes());
    put(&mut hasher, &frame.sequence.to_be_bytes());
    let mut bytes = Vec::new();
    for change in &frame.changes {
        bytes.clear();
        change::put(change, &mut bytes);
        put(&mut hasher, &bytes);
    }
    shorten(&finish(hasher))
}

/// A position of the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The exchange's store.
    pub store: [u8; 16],
    /// The number of the next frame.
    pub next: u64,
    /// The head over all before it.
    pub head: ShortHash,
}

impl Position {
    fn message(&self, signer: Signer, time: Timestamp) -> Vec<u8> {
        let mut message = signer.domain().to_vec();
        message.extend_from_slice(&self.store);
        message.extend_from_slice(&self.next.to_be_bytes());
        message.extend_from_slice(self.head.as_bytes());
        message.extend_from_slice(&time.as_micros().to_be_bytes());
        message
    }

    pub(crate) fn sign(&self, signer: Signer, time: Timestamp, key: &EddsaPrivateKey) -> SignedHead {
        let signature = key.sign(&self.message(signer, time));
        SignedHead { position: *self, time, signature }
    }
}

/// A position with a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignedHead {
    /// The signed position.
    pub position: Position,
    /// When.
    pub time: Timestamp,
    /// The signature.
    pub signature: EddsaSignature,
}

impl SignedHead {
    /// Returns whether this key has signed it in this role.
    #[must_use]
    pub fn is_by(&self, signer: Signer, key: &EddsaPublicKey) -> bool {
        eddsa::verify(key, &self.position.message(signer, self.time), &self.signature)
    }
}

#[cfg(test)]
mod tests {
    use batzen_store::{FeedChange, Table};
    use batzen_tables::exchange::{Coins, Deposits};

    use super::*;

    fn change(key: &[u8], row: Option<&[u8]>) -> FeedChange {
        FeedChange { table: Coins::DEF, layout: 0, key: key.into(), row: row.map(Into::into), serial: 5 }
    }

    fn frame(changes: &[FeedChange]) -> FeedFrame {
        FeedFrame { sequence: 7, changes: changes.to_vec() }
    }

    #[test]
    fn everything_that_is_shipped_changes_the_head() {
        let head = start(&[1; 16], 7, &[1, 2], &SetHash::default());
        let (a, b) = (change(b"a", Some(b"1")), change(b"b", None));
        let mut heads = vec![
            head,
            start(&[2; 16], 7, &[1, 2], &SetHash::default()),
            start(&[1; 16], 8, &[1, 2], &SetHash::default()),
            start(&[1; 16], 7, &[1], &SetHash::default()),
        ];
        let mut rows = SetHash::default();
        rows.add(&[b"row"]);
        heads.push(start(&[1; 16], 7, &[1, 2], &rows));
        let other_table = FeedChange { table: Deposits::DEF, ..a.clone() };
        let frames = [
            frame(&[a.clone(), b.clone()]),
            frame(&[b.clone(), a.clone()]),
            frame(std::slice::from_ref(&a)),
            frame(&[change(b"a1", Some(b""))]),
            frame(&[change(b"a", Some(b"2"))]),
            frame(&[change(b"a", None)]),
            frame(&[other_table]),
            frame(&[FeedChange { serial: 6, ..a.clone() }]),
            frame(&[FeedChange { layout: 1, ..a.clone() }]),
            FeedFrame { sequence: 8, changes: vec![a.clone()] },
        ];
        heads.extend(frames.iter().map(|frame| after(&head, frame)));
        heads.push(after(&heads[1], &frames[0]));
        let distinct: std::collections::HashSet<ShortHash> = heads.iter().copied().collect();
        assert_eq!(distinct.len(), heads.len());
    }

    /// Heads are kept and compared for years.
    #[test]
    fn the_chain_does_not_change_between_versions() {
        let head = start(&[1; 16], 7, &[1, 2], &SetHash::default());
        let later = after(&head, &frame(&[change(b"a", Some(b"1")), change(b"b", None)]));
        assert_eq!(
            [head, later].map(|head| head.to_string()),
            [
                "9WD7V95BF37DGP5S0FTDD0HD20D37KTRJZV6R4Y86NSZNJ259XRG",
                "87RAQZRTZY6Q1QJ1QC4KNBP7V6KYM2AS2699A8ZTQ40WBV7MN09G",
            ]
        );
    }

    #[test]
    fn signatures_are_of_one_role_and_position() {
        let key = EddsaPrivateKey::generate();
        let position = Position { store: [1; 16], next: 7, head: ShortHash::from_bytes([2; 32]) };
        let time = Timestamp::from_secs(9);
        let signed = position.sign(Signer::Auditor, time, &key);
        let public = key.public_key();
        assert!(signed.is_by(Signer::Auditor, &public));
        assert!(!signed.is_by(Signer::Exchange, &public));
        assert!(!signed.is_by(Signer::Auditor, &EddsaPrivateKey::generate().public_key()));
        let others = [
            Position { store: [2; 16], ..position },
            Position { next: 8, ..position },
            Position { head: ShortHash::from_bytes([3; 32]), ..position },
        ];
        for position in others {
            assert!(!SignedHead { position, ..signed }.is_by(Signer::Auditor, &public));
        }
        assert!(!SignedHead { time: Timestamp::from_secs(8), ..signed }.is_by(Signer::Auditor, &public));
    }
}
