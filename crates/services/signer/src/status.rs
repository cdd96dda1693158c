//! The status of a signer.

use serde::{Deserialize, Serialize};

/// The status of a signer: the answer to a status request, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusReport {
    /// Its static key.
    pub(crate) public_key: String,
    /// `primary` or `follower`.
    pub role: String,
    /// Number of the promotion that set the role.
    pub epoch: u64,
    /// Version of its listing: signers with the same keys have the same version.
    pub keys_version: String,
    /// RSA denomination keys.
    pub rsa_keys: usize,
    /// Clause Blind Schnorr denomination keys.
    pub cs_keys: usize,
    /// Online signing keys.
    pub signing_keys: usize,
    /// Whether every configured section has a key.
    pub complete: bool,
    /// The signer that it follows.
    pub primary: Option<String>,
    /// When it last had the same keys as the primary, in microseconds since 1970.
    pub synced_us: Option<u64>,
    /// Why it does not have the same keys.
    pub sync_error: Option<String>,
    /// Open connections.
    pub connections: u64,
    /// Its clock, in microseconds since 1970.
    pub time_us: u64,
    pub(crate) version: String,
}
