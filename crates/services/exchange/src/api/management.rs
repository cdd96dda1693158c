//! `/management/…`: changes that are signed by the offline master key. Signatures are the only access
//! control.

use std::sync::Arc;

use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode, Wtid};
use batzen_engine::SubmitError;
use batzen_http::{Request, Response};
use batzen_protocol::api::exchange::{
    AuditorAddRequest, AuditorDisableRequest, DrainRequest, ExtensionsRequest, GlobalFeeRequest,
    RevokeRequest, WireAddRequest, WireDisableRequest, WireFeeRequest,
};
use batzen_protocol::api::field_error;
use batzen_protocol::limits::{KEYS_BODY_BYTES_MAX, LIST_BODY_BYTES_MAX, SMALL_BODY_BYTES_MAX};
use batzen_protocol::payto::{PaytoUri, h_payto};
use batzen_protocol::signatures::{
    MasterAddAuditor, MasterAddWire, MasterDelAuditor, MasterDelWire, MasterDenominationKeyRevoked,
    MasterExtension, MasterSigningKeyRevoked, MasterWireDetails, SignedMessage,
};
use batzen_protocol::{ErrorCode, MoneySum, Timestamp, canonical, hash_text};
use batzen_tables::exchange::{
    CounterKey, Counters, DrainRow, Drains, ExtensionsRow, GlobalFeeRow, WireFeeKey, WireFeeRow, WtidKey,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::check::Checked;
use super::{
    FAILURES, Table, body, endpoint, error, error_status, malformed, money, path_value, response, signed_keys,
};
use crate::app::key_destruction;
use crate::app::{Exchange, ManageError};
use crate::config::AgeRestrictionConfig;
use crate::metrics::flow::Income;
use crate::rules::management::{Management, Refusal};

pub(super) fn routes(table: Table) -> Table {
    table
        .get("/management/keys", "management", endpoint!(future_keys))
        .post("/management/keys", KEYS_BODY_BYTES_MAX, "management", endpoint!(signed_keys::keys))
        .post(
            "/management/denominations/:h_denom_pub/revoke",
            SMALL_BODY_BYTES_MAX,
            "management",
            endpoint!(revoke_denomination),
        )
        .post(
            "/management/signkeys/:exchange_pub/revoke",
            SMALL_BODY_BYTES_MAX,
            "management",
            endpoint!(revoke_signkey),
        )
        .post("/management/auditors", SMALL_BODY_BYTES_MAX, "management", endpoint!(auditor_add))
        .post(
            "/management/auditors/:auditor_pub/disable",
            SMALL_BODY_BYTES_MAX,
            "management",
            endpoint!(auditor_disable),
        )
        .post("/management/wire", SMALL_BODY_BYTES_MAX, "management", endpoint!(wire_add))
        .post("/management/wire/disable", SMALL_BODY_BYTES_MAX, "management", endpoint!(wire_disable))
        .post("/management/wire-fee", SMALL_BODY_BYTES_MAX, "management", endpoint!(wire_fee))
        .post("/management/global-fee", SMALL_BODY_BYTES_MAX, "management", endpoint!(global_fee))
        .post("/management/extensions", LIST_BODY_BYTES_MAX, "management", endpoint!(extensions))
        .post("/management/drain", SMALL_BODY_BYTES_MAX, "management", endpoint!(drain))
}

/// Checks a signature of the master key.
fn check(
    app: &Exchange,
    message: &impl SignedMessage,
    signature: &EddsaSignature,
    invalid: ErrorCode,
) -> Checked<()> {
    app.core.metrics.verifications.eddsa.inc();
    if message.verify(&app.core.master_public_key, signature) { Ok(()) } else { Err(error(invalid, "")) }
}

/// Refuses an empty period.
fn check_period<T: DeserializeOwned>(start: Timestamp, end: Timestamp) -> Checked<()> {
    if start < end {
        Ok(())
    } else {
        Err(malformed(&field_error::<T>("fee_end", "the period ends before it begins")))
    }
}

/// Submits a change and waits until it is visible.
async fn apply(app: &Exchange, command: Management, refused: fn(Refusal) -> Response) -> Checked<Response> {
    let _one_change = app.management.lock().await;
    apply_locked(app, command, refused).await
}

/// [`apply`] for callers that hold the management lock.
pub(super) async fn apply_locked(
    app: &Exchange,
    command: Management,
    refused: fn(Refusal) -> Response,
) -> Checked<Response> {
    match app.manage(command).await {
        Ok(_) => Ok(Response::empty(204)),
        Err(ManageError::Refused(refusal)) => Err(refused(refusal)),
        Err(ManageError::Submit(failure)) => Err(FAILURES.submit(&failure)),
    }
}

/// For changes that no rule refuses.
pub(super) fn never(refusal: Refusal) -> Response {
    error(ErrorCode::GENERIC_INTERNAL_INVARIANT_FAILURE, &refusal.to_string())
}

async fn future_keys(app: &Exchange, _: &Request) -> Response {
    if app.custody.module_keys().is_none() {
        return error(ErrorCode::EXCHANGE_SIGNKEY_HELPER_UNAVAILABLE, "no signer has answered yet");
    }
    if !app.has_all_keys() {
        // After a shift of the clock nothing else would start a round for an hour. Other processes create their keys themselves.
        if app.custody.modules().is_some() {
            app.keeper().request_missing_keys();
        }
        return error(ErrorCode::EXCHANGE_GENERIC_KEYS_MISSING, "keys are being created");
    }
    match app.keys().future_keys(&app.custody, &app.core.config, app.core.now()) {
        Some(keys) if !app.custody.signing_keys().is_empty() => Response::json(200, &keys),
        _ => error(ErrorCode::EXCHANGE_SIGNKEY_HELPER_UNAVAILABLE, ""),
    }
}

async fn revoke_denomination(app: &Exchange, request: &Request) -> Checked<Response> {
    let h_denom_pub: HashCode = path_value(request, "h_denom_pub", ErrorCode::GENERIC_PARAMETER_MALFORMED)?;
    let RevokeRequest { master_sig } = body(request)?;
    let invalid = ErrorCode::EXCHANGE_MANAGEMENT_DENOMINATION_REVOKE_SIGNATURE_INVALID;
    check(app, &MasterDenominationKeyRevoked { h_denom_pub }, &master_sig, invalid)?;
    let _one_change = app.management.lock().await;
    let state = app.keys();
    if let Some(denom) = state.find_denomination(&h_denom_pub) {
        let command = Management::RevokeDenomination { serial: denom.serial, master_sig };
        let response = apply_locked(app, command, never).await;
        // The key state refuses the key from now on; the keeper destroys it and makes a new one.
        app.keeper().request_round();
        return response;
    }
    // The key was never in use. No row is needed, but it must never come into use.
    let unused = state.future_denoms(&app.custody, &app.core.config);
    let Some(found) = unused.iter().find(|denom| denom.row.h_denom_pub == h_denom_pub) else {
        return Err(error(
            ErrorCode::EXCHANGE_GENERIC_DENOMINATION_KEY_UNKNOWN,
            &h_denom_pub.to_string()[..8],
        ));
    };
    match key_destruction::destroy_denomination(app, &found.announcement.denom_pub, master_sig).await {
        Ok(()) => Ok(Response::empty(204)),
        Err(failure) => {
            tracing::error!(error = %failure, "revoked key could not be replaced");
            Err(error(ErrorCode::EXCHANGE_DENOMINATION_HELPER_BUG, ""))
        }
    }
}

async fn revoke_signkey(app: &Exchange, request: &Request) -> Checked<Response> {
    let exchange_pub: EddsaPublicKey =
        path_value(request, "exchange_pub", ErrorCode::GENERIC_PARAMETER_MALFORMED)?;
    let RevokeRequest { master_sig } = body(request)?;
    let invalid = ErrorCode::EXCHANGE_MANAGEMENT_SIGNKEY_REVOKE_SIGNATURE_INVALID;
    check(app, &MasterSigningKeyRevoked { signkey_pub: exchange_pub }, &master_sig, invalid)?;
    let _one_change = app.management.lock().await;
    if app.keys().signing_key(&exchange_pub).is_some() {
        let command = Management::RevokeSigningKey { exchange_pub, master_sig };
        let response = apply_locked(app, command, never).await;
        app.keeper().request_round();
        return response;
    }
    if app.custody.signing_keys().iter().all(|key| key.public_key() != exchange_pub) {
        return Err(error(ErrorCode::EXCHANGE_MANAGEMENT_KEYS_SIGNKEY_UNKNOWN, ""));
    }
    match key_destruction::destroy_signing_key(app, exchange_pub, master_sig).await {
        Ok(()) => Ok(Response::empty(204)),
        Err(failure) => {
            tracing::error!(error = %failure, "revoked key could not be replaced");
            Err(error(ErrorCode::EXCHANGE_SIGNKEY_HELPER_BUG, ""))
        }
    }
}

async fn auditor_add(app: &Exchange, request: &Request) -> Checked<Response> {
    let request: AuditorAddRequest = body(request)?;
    let message = MasterAddAuditor {
        start_date: request.validity_start,
        auditor_pub: request.auditor_pub,
        h_auditor_url: hash_text(&request.auditor_url),
    };
    check(app, &message, &request.master_sig, ErrorCode::EXCHANGE_MANAGEMENT_AUDITOR_ADD_SIGNATURE_INVALID)?;
    let command = Management::EnableAuditor {
        auditor_pub: request.auditor_pub,
        url: request.auditor_url,
        name: request.auditor_name,
        start: request.validity_start,
    };
    apply(app, command, auditor_refused).await
}

fn auditor_refused(refusal: Refusal) -> Response {
    match refusal {
        Refusal::MoreRecentPresent => error(ErrorCode::EXCHANGE_MANAGEMENT_AUDITOR_MORE_RECENT_PRESENT, ""),
        Refusal::AuditorNameDiffers => {
            error(ErrorCode::EXCHANGE_MANAGEMENT_AUDITOR_MORE_RECENT_PRESENT, &refusal.to_string())
        }
        Refusal::AuditorUnknown => error(ErrorCode::EXCHANGE_MANAGEMENT_AUDITOR_NOT_FOUND, ""),
        other => never(other),
    }
}

async fn auditor_disable(app: &Exchange, request: &Request) -> Checked<Response> {
    let auditor_pub: EddsaPublicKey =
        path_value(request, "auditor_pub", ErrorCode::GENERIC_PARAMETER_MALFORMED)?;
    let request: AuditorDisableRequest = body(request)?;
    // An unknown auditor is reported before the signature is checked, because no signature can disable it.
    if app.keys().auditor(&auditor_pub).is_none() {
        return Err(error(ErrorCode::EXCHANGE_MANAGEMENT_AUDITOR_NOT_FOUND, ""));
    }
    let message = MasterDelAuditor { end_date: request.validity_end, auditor_pub };
    check(app, &message, &request.master_sig, ErrorCode::EXCHANGE_MANAGEMENT_AUDITOR_DEL_SIGNATURE_INVALID)?;
    apply(app, Management::DisableAuditor { auditor_pub, end: request.validity_end }, auditor_refused).await
}

async fn wire_add(app: &Exchange, request: &Request) -> Checked<Response> {
    let request: WireAddRequest = body(request)?;
    if let Err(reason) = PaytoUri::parse(request.payto_uri.as_str()) {
        return Err(error(ErrorCode::GENERIC_PAYTO_URI_MALFORMED, &reason.to_string()));
    }
    let h_payto = h_payto(&request.payto_uri);
    let add = MasterAddWire { start_date: request.validity_start, h_payto };
    check(app, &add, &request.master_sig_add, ErrorCode::EXCHANGE_MANAGEMENT_WIRE_ADD_SIGNATURE_INVALID)?;
    let details = MasterWireDetails { h_wire_details: h_payto };
    let invalid = ErrorCode::EXCHANGE_MANAGEMENT_WIRE_DETAILS_SIGNATURE_INVALID;
    check(app, &details, &request.master_sig_wire, invalid)?;
    let command = Management::EnableWire {
        h_payto,
        payto_uri: request.payto_uri,
        start: request.validity_start,
        master_sig_wire: request.master_sig_wire,
    };
    apply(app, command, wire_refused).await
}

fn wire_refused(refusal: Refusal) -> Response {
    match refusal {
        Refusal::MoreRecentPresent => error(ErrorCode::EXCHANGE_MANAGEMENT_WIRE_MORE_RECENT_PRESENT, ""),
        Refusal::AccountUnknown => error(ErrorCode::EXCHANGE_MANAGEMENT_WIRE_NOT_FOUND, ""),
        other => never(other),
    }
}

async fn wire_disable(app: &Exchange, request: &Request) -> Checked<Response> {
    let request: WireDisableRequest = body(request)?;
    let h_payto = h_payto(&request.payto_uri);
    let message = MasterDelWire { end_date: request.validity_end, h_payto };
    check(app, &message, &request.master_sig_del, ErrorCode::EXCHANGE_MANAGEMENT_WIRE_DEL_SIGNATURE_INVALID)?;
    apply(app, Management::DisableWire { h_payto, end: request.validity_end }, wire_refused).await
}

async fn wire_fee(app: &Exchange, request: &Request) -> Checked<Response> {
    let request: WireFeeRequest = body(request)?;
    check_period::<WireFeeRequest>(request.fee_start, request.fee_end)?;
    let row = WireFeeRow {
        end: request.fee_end,
        wire_fee: money::<WireFeeRequest>(app, &request.wire_fee, "wire_fee")?,
        closing_fee: money::<WireFeeRequest>(app, &request.closing_fee, "closing_fee")?,
        master_sig: request.master_sig,
    };
    let key = WireFeeKey { method: request.wire_method, start: request.fee_start };
    let message = row.message(&key, app.core.config.currency);
    check(app, &message, &request.master_sig, ErrorCode::EXCHANGE_MANAGEMENT_WIRE_FEE_SIGNATURE_INVALID)?;
    apply(app, Management::WireFee { key, row }, |refusal| match refusal {
        Refusal::FeeMismatch => error(ErrorCode::EXCHANGE_MANAGEMENT_WIRE_FEE_MISMATCH, ""),
        other => never(other),
    })
    .await
}

async fn global_fee(app: &Exchange, request: &Request) -> Checked<Response> {
    let request: GlobalFeeRequest = body(request)?;
    check_period::<GlobalFeeRequest>(request.fee_start, request.fee_end)?;
    let row = GlobalFeeRow {
        end: request.fee_end,
        history_fee: money::<GlobalFeeRequest>(app, &request.history_fee, "history_fee")?,
        account_fee: money::<GlobalFeeRequest>(app, &request.account_fee, "account_fee")?,
        purse_fee: money::<GlobalFeeRequest>(app, &request.purse_fee, "purse_fee")?,
        purse_timeout: request.purse_timeout,
        history_expiration: request.history_expiration,
        purse_account_limit: request.purse_account_limit,
        master_sig: request.master_sig,
    };
    let message = row.message(request.fee_start, app.core.config.currency);
    check(app, &message, &request.master_sig, ErrorCode::EXCHANGE_MANAGEMENT_GLOBAL_FEE_SIGNATURE_INVALID)?;
    apply(app, Management::GlobalFee { start: request.fee_start, row }, |refusal| match refusal {
        Refusal::FeeMismatch => error(ErrorCode::EXCHANGE_MANAGEMENT_GLOBAL_FEE_MISMATCH, ""),
        other => never(other),
    })
    .await
}

/// Refuses manifests of extensions that this implementation does not have.
fn check_manifests(app: &Exchange, extensions: &Value) -> Result<(), &'static str> {
    let Some(extensions) = extensions.as_object() else { return Err("extensions is not an object") };
    for (name, manifest) in extensions {
        if name != AgeRestrictionConfig::NAME {
            return Err("unknown extension");
        }
        if manifest["critical"] != Value::Bool(false) || manifest["version"] != AgeRestrictionConfig::VERSION
        {
            return Err("criticality or version is not that of the implementation");
        }
        let groups = manifest["config"]["age_groups"].as_str().and_then(AgeRestrictionConfig::parse);
        let Some(groups) = groups else { return Err("age groups cannot be read") };
        match &app.core.config.age_restriction {
            None => return Err("the exchange is not configured for age restriction"),
            Some(own) if own.mask != groups.mask => {
                return Err("the exchange is configured for other age groups");
            }
            Some(_) => {}
        }
    }
    Ok(())
}

async fn extensions(app: &Exchange, request: &Request) -> Checked<Response> {
    let request: ExtensionsRequest = body(request)?;
    let bad = |reason: &str| error(ErrorCode::GENERIC_PARAMETER_MALFORMED, reason);
    let h_manifests =
        canonical::manifests_hash(&request.extensions).map_err(|reason| bad(&reason.to_string()))?;
    let code = ErrorCode::GENERIC_PARAMETER_MALFORMED;
    check(app, &MasterExtension { h_manifests }, &request.extensions_sig, code)?;
    check_manifests(app, &request.extensions).map_err(bad)?;
    let manifests =
        canonical::to_canonical(&request.extensions).map_err(|reason| bad(&reason.to_string()))?;
    apply(app, Management::Extensions(ExtensionsRow { manifests, master_sig: request.extensions_sig }), never)
        .await
}

async fn drain(app: &Exchange, request: &Request) -> Checked<Response> {
    let request: DrainRequest = body(request)?;
    if let Err(reason) = PaytoUri::parse(request.credit_payto_uri.as_str()) {
        let message = reason.to_string();
        return Err(malformed(&field_error::<DrainRequest>("credit_payto_uri", message)));
    }
    let amount = money::<DrainRequest>(app, &request.amount, "amount")?;
    let row = DrainRow {
        account_section: request.debit_account_section,
        payto_uri: request.credit_payto_uri,
        date: request.date,
        amount,
        master_sig: request.master_sig,
        executed: false,
    };
    let message = row.message(request.wtid, app.core.config.currency);
    let invalid = ErrorCode::EXCHANGE_MANAGEMENT_DRAIN_PROFITS_SIGNATURE_INVALID;
    check(app, &message, &request.master_sig, invalid)?;
    let _one_change = app.management.lock().await;
    for _ in 0..DRAIN_ATTEMPTS {
        let (surplus, as_of) = surplus(app, request.wtid).await?;
        let order = Management::Drain { wtid: request.wtid, row: row.clone(), surplus, as_of };
        match app.manage(order).await {
            Ok(_) => return Ok(Response::empty(204)),
            // Only another node can have changed the key set.
            Err(ManageError::Refused(Refusal::SurplusOutdated)) => {}
            Err(ManageError::Refused(refusal)) => return Err(not_ordered(app, refusal)),
            Err(ManageError::Submit(failure)) => return Err(FAILURES.submit(&failure)),
        }
    }
    Err(FAILURES.busy())
}

/// The number of times that a surplus is computed for an order, if other nodes change the key set meanwhile.
const DRAIN_ATTEMPTS: u32 = 3;

/// The income that no order pays out yet, and the number of changes of the key set before it was computed. A repeated order,
/// which everybody may send who has seen it, needs neither and costs no reading of all rows.
async fn surplus(app: &Exchange, wtid: Wtid) -> Checked<(MoneySum, u64)> {
    let rules = Arc::clone(&app.core.rules);
    let read = app.core.read(move |store| {
        if store.get::<Drains>(&WtidKey { wtid })?.is_some() {
            return Ok((Some(Income::default()), 0));
        }
        let name = Counters::KEY_SET.into();
        let as_of = store.get::<Counters>(&CounterKey { name })?.map_or(0, |found| found.row.value);
        Ok((rules.flow.income(&rules.denoms, store)?, as_of))
    });
    let (income, as_of) = read.await.map_err(response::store)?;
    let Some(income) = income else {
        let detail =
            "a row of the store cannot be counted (the log names it): audit before profit is paid out";
        return Err(error(ErrorCode::GENERIC_INTERNAL_INVARIANT_FAILURE, detail));
    };
    Ok((income.surplus(), as_of))
}

fn not_ordered(app: &Exchange, refusal: Refusal) -> Response {
    let Refusal::AboveSurplus { surplus, .. } = refusal else {
        return error_status(ErrorCode::GENERIC_PARAMETER_MALFORMED, 409, &format!("wtid: {refusal}"));
    };
    let surplus = format!("{}:{surplus}", app.core.config.currency);
    let detail = format!("only profit can be paid out: {surplus} was earned and is not ordered yet");
    Response::error_with(
        ErrorCode::EXCHANGE_GENERIC_INSUFFICIENT_FUNDS,
        None,
        &detail,
        json!({ "surplus": surplus }),
    )
}

impl From<SubmitError> for ManageError {
    fn from(failure: SubmitError) -> Self {
        Self::Submit(failure)
    }
}
