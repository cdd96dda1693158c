//! Where documents are, below a server's `/liabilities` or in a directory that has the same files with the ending
//! `.json`.

use crate::{Timestamp, limits};
use batzen_crypto::{EddsaPublicKey, HashCode};
use serde::{Deserialize, Serialize};

use crate::liabilities::leaf::Kind;

/// The most epochs in an index: one a day for a century.
pub(crate) const EPOCHS_MAX: usize = 40_000;

/// An epoch in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// Its number.
    pub epoch: u64,
    /// Its end.
    pub end: Timestamp,
    /// Hash of its statement.
    pub h_statement: HashCode,
}

/// The published statements, the first epoch first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    /// The exchange's master key.
    pub master_pub: EddsaPublicKey,
    /// The epochs.
    #[serde(deserialize_with = "limits::array::<_, _, EPOCHS_MAX>")]
    pub epochs: Vec<Published>,
}

/// The path of the index.
pub const INDEX: &str = "index";

/// The path of a statement.
#[must_use]
pub fn statement(epoch: u64) -> String {
    format!("{epoch}/index")
}

/// The directory of a tree.
#[must_use]
pub fn tree(epoch: u64, h_denom_pub: &HashCode, kind: Kind) -> String {
    format!("{epoch}/{h_denom_pub}/{}", kind.name())
}

/// The name of a bucket in its tree's directory: its number in hexadecimal digits.
#[must_use]
pub fn bucket_name(place: u32, bits: u8) -> String {
    let width = usize::from(bits).div_ceil(4).max(1);
    format!("{place:0width$x}")
}

/// The path of a bucket.
#[must_use]
pub fn bucket(epoch: u64, h_denom_pub: &HashCode, kind: Kind, place: u32, bits: u8) -> String {
    format!("{}/{}", tree(epoch, h_denom_pub, kind), bucket_name(place, bits))
}

/// The path of a receipt.
#[must_use]
pub fn receipt(h_coin_ev: &HashCode) -> String {
    format!("receipt/{h_coin_ev}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_fixed_widths() {
        let denom = HashCode::from_bytes([0; 64]);
        let path = bucket(7, &denom, Kind::Redeemed, 10, 9);
        assert_eq!(path, format!("7/{denom}/redeemed/00a"));
        assert_eq!(bucket_name(0, 0), "0");
        assert_eq!(bucket_name(0xfff, 12), "fff");
    }
}
