//! Evidence for refusals: the histories of coins and reserves that prove them.

use batzen_engine::Evidence;
use batzen_protocol::Money;
use batzen_store::{Store, StoreError};

use super::denoms::DenomTable;
use super::refusal::{ConflictReason, Refusal};
use crate::history::{CoinHistoryItem, ReserveHistoryItem, balance_of};
use crate::reads::read;

fn torn_unless(adds_up: bool) -> Evidence {
    if adds_up { Evidence::Complete } else { Evidence::Torn }
}

/// Adds the history that proves a refusal. The command must be executed again if the history no longer proves
/// it (another command credited the coin or the reserve), or if something was committed during the read.
pub(super) fn complete(
    denoms: &DenomTable,
    refusal: &mut Refusal,
    store: &Store,
) -> Result<Evidence, StoreError> {
    match refusal {
        Refusal::ReserveInsufficient(shortage) => {
            let reserve_pub = shortage.reserve_pub;
            // Reserves are not deleted while commands name them.
            let Some(statement) = read::reserve_statement(store, denoms, reserve_pub, None)? else {
                return Ok(Evidence::Rerun);
            };
            if statement.balance >= shortage.requested {
                return Ok(Evidence::Rerun);
            }
            let effects = statement.items.iter().map(ReserveHistoryItem::effect);
            let evidence = torn_unless(balance_of(Money::ZERO, effects) == Some(statement.balance));
            shortage.balance = statement.balance;
            shortage.history = statement;
            Ok(evidence)
        }
        Refusal::CoinConflict { conflict, .. } => {
            // A request may exceed the value of a coin that was never used. There is no history then.
            let mut evidence = Evidence::Complete;
            if let Some(history) = read::coin_history(store, denoms, conflict.coin_pub)? {
                let terms = denoms
                    .find(store, history.denom)?
                    .expect("rows name only denominations that are known for ever");
                let effects = history.items.iter().map(CoinHistoryItem::effect);
                evidence = torn_unless(balance_of(terms.value, effects) == Some(history.remaining));
                conflict.history = history;
            }
            match conflict.reason {
                ConflictReason::Insufficient { requested } if conflict.history.remaining >= requested => {
                    Ok(Evidence::Rerun)
                }
                _ => Ok(evidence),
            }
        }
        _ => Ok(Evidence::Complete),
    }
}
