//! Proof of liabilities: what an exchange publishes about the coins that it has signed and redeemed, and how anyone
//! checks it.
//!
//! At the end of each epoch the exchange publishes a signed [`Statement`]. For each denomination it has three Merkle
//! sum trees: blind signatures issued, coins redeemed, and value that came back to coins. What the exchange owes is
//! issued − redeemed + returned.
//!
//! | module | content |
//! |---|---|
//! | [`leaf`] | what is counted: one leaf for each blind signature and each use of a coin |
//! | [`tree`] | trees, and the buckets that wallets download |
//! | [`statement`] | statements, and the chain that they form |
//! | `receipt` | the exchange's signed word that it has signed a planchet |
//! | [`evidence`] | proofs of fraud that anyone can check |
//! | [`files`] | where each of them is, at a server or in a directory |
//!
//! Invariant: pure. No I/O, no clock, no randomness.

pub mod evidence;
pub mod files;
pub mod fuzz_entry;
pub mod leaf;
pub(crate) mod receipt;
pub mod statement;
mod sum;
pub mod tree;

pub use evidence::Evidence;
pub use files::Index;
pub use leaf::{Kind, Leaf};
pub use receipt::Receipt;
pub use statement::{Body, Confirmation, Entry, Fault, Head, Part, SigningKey, Statement};
pub use tree::{Bucket, Node, Tree};

use crate::Duration;

/// Maximum difference between the clocks of an exchange's processes, of wallets and of auditors.
pub const CLOCK_SKEW: Duration = Duration::from_secs(3_600);

/// The fewest leaves that a bucket has on average. Wallets refuse trees with smaller buckets, which would tell the
/// exchange whose coin they look for.
pub const BUCKET_LEAVES_MIN: u64 = 1_024;

/// Parses a document of this crate.
///
/// # Errors
/// The fault and its position.
pub fn parse<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    crate::parse_body(bytes).map_err(|error| error.to_string())
}

/// Writes a document of this crate.
#[must_use]
pub fn to_json<T: serde::Serialize>(document: &T) -> Vec<u8> {
    serde_json::to_vec(document).expect("documents of this crate have only text keys")
}
