//! The event that an open operation waits for, and its deadline.

use super::super::CoreError;
use super::super::operation::View;
use super::super::row::Wait;
use super::super::state::{WalletOperation, WalletState};

/// The event that an open operation waits for.
///
/// # Errors
/// If records contradict each other.
pub(crate) fn wait(state: &WalletState, operation: &WalletOperation) -> Result<Wait, CoreError> {
    let exchange = state.exchange(&operation.exchange)?;
    let Wait { reason, until } = operation.kind.operation().wait(View { state, exchange, operation })?;
    let until = match operation.dispute {
        Some(dispute) => Some((dispute.retry_at, "request is sent again")),
        None => until,
    };
    let reason =
        if operation.dispute.is_some() { "waits for a valid answer of the exchange" } else { reason };
    Ok(Wait { reason, until: until.filter(|(time, _)| !time.is_never()) })
}
