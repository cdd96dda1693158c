//! `POST /auditors/$AUDITOR_PUB/$H_DENOM_PUB`: auditors approve denominations.

use batzen_crypto::{EddsaPublicKey, HashCode};
use batzen_http::{Request, Response};
use batzen_protocol::ErrorCode;
use batzen_protocol::api::exchange::AuditorSignatureRequest;
use batzen_protocol::limits::SMALL_BODY_BYTES_MAX;

use super::check::Checked;
use super::signing::is_signed;
use super::{FAILURES, Table, body, endpoint, error, path_value};
use crate::app::{Exchange, ManageError};
use crate::rules::management::{Management, Refusal};

pub(super) fn routes(table: Table) -> Table {
    table.post("/auditors/:auditor_pub/:h_denom_pub", SMALL_BODY_BYTES_MAX, "management", endpoint!(approve))
}

async fn approve(app: &Exchange, request: &Request) -> Checked<Response> {
    let auditor_pub: EddsaPublicKey =
        path_value(request, "auditor_pub", ErrorCode::GENERIC_PARAMETER_MALFORMED)?;
    let h_denom_pub: HashCode = path_value(request, "h_denom_pub", ErrorCode::GENERIC_PARAMETER_MALFORMED)?;
    let AuditorSignatureRequest { auditor_sig } = body(request)?;
    let keys = app.keys();
    let Some(denom) = keys.find_denomination(&h_denom_pub) else {
        return Err(error(
            ErrorCode::EXCHANGE_GENERIC_DENOMINATION_KEY_UNKNOWN,
            &h_denom_pub.to_string()[..8],
        ));
    };
    let auditor = match keys.auditor(&auditor_pub) {
        None => return Err(error(ErrorCode::EXCHANGE_AUDITORS_AUDITOR_UNKNOWN, "")),
        Some(auditor) if !auditor.enabled => {
            return Err(error(ErrorCode::EXCHANGE_AUDITORS_AUDITOR_INACTIVE, ""));
        }
        Some(auditor) => auditor,
    };
    let terms = denom.validity(app.core.master_public_key, app.core.config.currency);
    let message = terms.approved_by(&auditor.url);
    let invalid = || error(ErrorCode::EXCHANGE_AUDITORS_AUDITOR_SIGNATURE_INVALID, "");
    if !is_signed(app, auditor_pub, &message, auditor_sig).await? {
        return Err(invalid());
    }
    let _one_change = app.management.lock().await;
    // The signature covers the auditor's URL, which may have changed meanwhile.
    if app.keys().auditor(&auditor_pub).is_some_and(|now| now.url != auditor.url) {
        return Err(invalid());
    }
    match app.manage(Management::AuditorSignature { auditor_pub, serial: denom.serial, auditor_sig }).await {
        Ok(_) => Ok(Response::empty(204)),
        Err(ManageError::Refused(Refusal::AuditorUnknown)) => {
            Err(error(ErrorCode::EXCHANGE_AUDITORS_AUDITOR_UNKNOWN, ""))
        }
        Err(ManageError::Refused(Refusal::AuditorInactive)) => {
            Err(error(ErrorCode::EXCHANGE_AUDITORS_AUDITOR_INACTIVE, ""))
        }
        Err(ManageError::Refused(other)) => {
            Err(error(ErrorCode::GENERIC_INTERNAL_INVARIANT_FAILURE, &other.to_string()))
        }
        Err(ManageError::Submit(failure)) => Err(FAILURES.submit(&failure)),
    }
}
