//! Shows a merchant the receipt of an earlier payment, so that it counts in another session.
//!
//! Nothing is recorded: the request changes no money, and can be repeated.

use super::super::WalletState;
use super::super::http::{Context, HttpRequest, HttpResponse};
use super::super::state::{OpId, OpKind};
use crate::core::error::{Result, bad_input};

/// The request that binds a paid purchase to another session.
///
/// # Errors
/// [`CoreError::BadInput`] if the operation is no purchase, or not paid.
pub(crate) fn request(state: &WalletState, id: OpId, session_id: &str) -> Result<HttpRequest> {
    let operation = state.operation(id)?;
    let OpKind::Purchase(record) = &operation.kind else {
        return Err(bad_input("operation", format!("{id} is no purchase")));
    };
    let receipt = record.receipt.ok_or_else(|| bad_input("operation", format!("{id} is not paid")))?;
    let terms = record.terms();
    let body = serde_json::json!({
        "h_contract": terms.h_contract_terms, "sig": receipt, "session_id": session_id,
    });
    let url = format!("{}orders/{}/paid", terms.merchant_base_url, terms.order_id);
    Ok(HttpRequest::post(Context::Merchant, url, &body))
}

/// Checks that the merchant has accepted the receipt.
///
/// # Errors
/// [`CoreError::Refused`] for every answer but 204.
pub(crate) fn check(response: &HttpResponse) -> Result<()> {
    if response.status == 204 { Ok(()) } else { Err(response.refusal("showing the shop its receipt")) }
}
