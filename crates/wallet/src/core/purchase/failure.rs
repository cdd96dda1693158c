//! Ends purchases that failed, and gives their coins back.

use super::super::operation::Step;
use super::super::state::Draft;
use super::{Purchase, PurchaseCoin, PurchaseStage, refunds};
use crate::core::error::Result;

/// Credits a coin again. The merchant has seen it, so it stays used and is refreshed.
pub(super) fn give_back(draft: &mut Draft<'_>, part: &mut PurchaseCoin) -> Result<()> {
    refunds::credit(draft, &part.coin_pub, part.amount)?;
    part.is_back = true;
    Ok(())
}

pub(super) fn give_all_back(draft: &mut Draft<'_>, record: &mut Purchase) -> Result<()> {
    let unsettled = |part: &&mut PurchaseCoin| !part.is_back && !part.is_refunded;
    record.coins.iter_mut().filter(unsettled).try_for_each(|part| give_back(draft, part))
}

pub(super) fn fail(step: &mut Step<'_, '_>, mut record: Purchase, reason: String) -> Result<()> {
    give_all_back(&mut step.draft, &mut record)?;
    record.stage = PurchaseStage::Failed;
    record.reason = Some(reason);
    step.finish(record);
    Ok(())
}
