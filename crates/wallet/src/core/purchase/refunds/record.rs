//! The stored record of a pick-up.

use batzen_protocol::Timestamp;
use serde::{Deserialize, Serialize};

use super::super::super::id::OpId;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PickUpStage {
    /// Asks what the shop has approved.
    Ask,
    /// Asks for the refunds.
    Take,
    /// Finished.
    Done,
    /// Refused, or given up by the user.
    Failed,
}

/// Picks up what a shop refunds of a purchase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PickUp {
    pub(crate) purchase: OpId,
    /// The end of the period in which the shop has promised to refund by itself. `None`: the user asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) until: Option<Timestamp>,
    pub(crate) stage: PickUpStage,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}
