//! The stored record of a tip.

use batzen_crypto::{HashCode, PlanchetMasterSecret};
use batzen_protocol::{Money, Timestamp};
use serde::{Deserialize, Serialize};

use super::super::encoding::text;
use super::super::exchange::Exchange;
use super::super::planchet;
use crate::core::error::Result;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TipStage {
    /// To be picked up: not sent yet, or sent without an answer.
    PickUp,
    /// The coins are in the wallet.
    Done,
    /// Refused, or given up by the user.
    Failed,
}

/// A tip.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tip {
    /// Base URL of the merchant.
    pub(crate) merchant_base_url: String,
    /// Identifies the tip there.
    pub(crate) tip_id: String,
    /// The amount taken of it: the coins and their withdraw fees.
    #[serde(with = "text")]
    pub(crate) amount: Money,
    /// Sum of the withdraw fees in it.
    #[serde(with = "text")]
    pub(crate) fees: Money,
    /// It must be picked up before this time.
    pub(crate) expiration: Timestamp,
    /// The seed of all secrets.
    pub(crate) seed: PlanchetMasterSecret,
    /// Denominations of the coins. Their places are the numbers from which the secrets derive.
    pub(crate) denoms: Vec<HashCode>,
    pub(crate) stage: TipStage,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

impl Tip {
    /// The value of the coins.
    ///
    /// # Errors
    /// Cannot happen in this wallet's records.
    pub(crate) fn value(&self) -> Result<Money> {
        Ok(self.amount.checked_sub(self.fees)?)
    }

    pub(super) fn planchets(&self, exchange: &Exchange) -> Result<Vec<planchet::Planchet>> {
        let make = |(index, h_denom_pub)| {
            planchet::withdraw_planchet(&self.seed, index, exchange.denom(h_denom_pub)?, None, None)
        };
        (0u32..).zip(&self.denoms).map(make).collect()
    }
}
