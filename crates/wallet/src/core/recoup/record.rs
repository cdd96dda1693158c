//! The stored record of a recoup.

use batzen_crypto::EddsaPublicKey;
use batzen_protocol::{Money, Timestamp};
use serde::{Deserialize, Serialize};

use super::super::encoding::text;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RecoupStage {
    /// To be sent.
    Send,
    /// Answered. The reserve's history has to confirm it.
    Confirm {
        /// Timestamp of the history request. The exchange accepts only its current time.
        time: Timestamp,
    },
    /// The money was paid back.
    Done,
    /// Refused.
    Failed,
}

/// A recoup of one coin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recoup {
    pub coin_pub: EddsaPublicKey,
    /// The coin's remaining value; after the exchange's statement, the amount that was paid back.
    #[serde(with = "text")]
    pub(crate) amount: Money,
    /// The part of the remaining value, by this wallet's books, that was not paid back.
    #[serde(with = "text", default)]
    pub(crate) missing: Money,
    pub(crate) stage: RecoupStage,
    /// When the exchange first said that the money is in the reserve again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) answered: Option<Timestamp>,
    /// Why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}
