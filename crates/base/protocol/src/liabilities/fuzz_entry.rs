//! Entry points for fuzzers: none may panic, and parsed documents must survive a round trip.

use std::fmt::Debug;

use batzen_crypto::ShortHash;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::liabilities::tree::{BITS_MAX, Node};
use crate::liabilities::{Bucket, Evidence, Index, Receipt, Statement, parse, to_json};

fn round_trip<T: DeserializeOwned + Serialize + PartialEq + Debug>(data: &[u8]) -> Option<T> {
    let document: T = parse(data).ok()?;
    assert_eq!(parse::<T>(&to_json(&document)).as_ref(), Ok(&document));
    Some(document)
}

/// Documents that wallets and auditors download or are given.
pub fn documents(data: &[u8]) {
    round_trip::<Index>(data);
    round_trip::<Receipt>(data);
    if let Some(statement) = round_trip::<Statement>(data) {
        let body = &statement.statement;
        // Whatever the verdict is.
        let _ = body.check_after(None);
        let _ = body.check_after(Some(body));
        let _ = body.outstanding();
    }
    if let Some(bucket) = round_trip::<Bucket>(data) {
        for bits in 0..=BITS_MAX {
            let _ = bucket.check(0, bits, &Node::empty());
        }
        let _ = bucket.find(&ShortHash::ZERO);
    }
    if let Some(evidence) = round_trip::<Evidence>(data) {
        let _ = evidence.judge();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_kind_of_document_is_a_seed() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/liabilities");
        let files = std::fs::read_dir(corpus).unwrap();
        let seeds: Vec<Vec<u8>> = files.map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect();
        let reads = |read: fn(&[u8]) -> bool| seeds.iter().any(|seed| read(seed));
        assert!(reads(|seed| parse::<Index>(seed).is_ok()));
        assert!(reads(|seed| parse::<Statement>(seed).is_ok()));
        assert!(reads(|seed| parse::<Bucket>(seed).is_ok()));
        assert!(reads(|seed| parse::<Evidence>(seed).is_ok_and(|evidence| evidence.judge().is_ok())));
        assert!(reads(|seed| parse::<Receipt>(seed).is_ok()));
    }
}
