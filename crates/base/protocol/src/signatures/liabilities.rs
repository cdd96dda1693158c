//! Signatures of proofs of liabilities. They are this project's own, so their purposes are far from the protocol's.

use batzen_crypto::{EddsaPublicKey, HashCode};

use super::signed_messages;
use crate::Timestamp;

signed_messages! {
    /// Liabilities (by the exchange signing key): the statement of an epoch. Two with the same epoch are a proof that
    /// the exchange has told two stories.
    9001 ExchangeLiabilities(152) {
        /// The epoch.
        epoch: u64,
        /// Its end.
        end: Timestamp,
        /// Hash of the statement before it; all zero for the first.
        previous: HashCode,
        /// Hash of the statement.
        h_statement: HashCode,
    }
    /// Receipt of an issue (by the exchange signing key): the exchange has signed the planchet.
    9002 ExchangeConfirmIssued(144) {
        /// When it signed.
        timestamp: Timestamp,
        /// Hash of the denomination key.
        h_denom_pub: HashCode,
        /// Hash of the blinded planchet.
        h_coin_ev: HashCode,
    }
    /// Confirmation of liabilities (by the auditor): all leaves are rows, and all rows that had to be leaves are.
    9003 AuditorConfirmLiabilities(120) {
        /// The exchange's master key.
        master_pub: EddsaPublicKey,
        /// The epoch.
        epoch: u64,
        /// When it was checked.
        time: Timestamp,
        /// Hash of the statement.
        h_statement: HashCode,
    }
}
