//! The two steps that need the network.

use std::time::{Duration, Instant};

use batzen_http::client::{Client, ClientError};
use batzen_protocol::ErrorCode;
use batzen_protocol::api::exchange::{
    AuditorAddRequest, AuditorDisableRequest, DrainRequest, FutureKeys, GlobalFeeRequest,
    ManagementKeysRequest, RevokeRequest, WireAddRequest, WireDisableRequest, WireFeeRequest,
};
use batzen_protocol::api::offline::OfflineOperation;
use futures_util::future::BoxFuture;
use serde::Serialize;

use super::OfflineError;

/// Downloads the keys that wait for a signature.
///
/// # Errors
/// When the exchange cannot be reached or has none (503 while it is creating them).
pub async fn download(client: &Client, base_url: &str) -> Result<FutureKeys, ClientError> {
    client.get_json(format!("{base_url}management/keys")).await?.ok()
}

/// Time that an exchange may take to create its keys while [`download_all`] waits.
const CREATION_MAX: Duration = Duration::from_secs(600);
/// Pause between two questions.
const PAUSE: Duration = Duration::from_secs(1);

/// The same once the exchange has created all keys that its schedules require: before, its answer is refused.
///
/// # Errors
/// As [`download`], and if the exchange takes longer than ten minutes.
pub(super) async fn download_all(
    client: &Client,
    base_url: &str,
    say: &mut (dyn FnMut(&str) + Send),
) -> Result<FutureKeys, OfflineError> {
    let deadline = Instant::now() + CREATION_MAX;
    let mut has_said = false;
    loop {
        match download(client, base_url).await {
            Err(error) if error.code() == Some(ErrorCode::EXCHANGE_GENERIC_KEYS_MISSING) => {
                if Instant::now() >= deadline {
                    return Err(OfflineError::KeysInTheMaking);
                }
                if !has_said {
                    say("the exchange is still creating keys: waiting");
                    has_said = true;
                }
                tokio::time::sleep(PAUSE).await;
            }
            downloaded => return Ok(downloaded?),
        }
    }
}

async fn post(client: &Client, base_url: &str, path: &str, body: &impl Serialize) -> Result<(), ClientError> {
    let reply = client.post_json(format!("{base_url}management/{path}"), body).await?;
    reply.expect(&[204]).map(|_| ())
}

/// Uploads an operation; false if this kind of operation is not uploaded.
///
/// # Errors
/// When the exchange cannot be reached or refuses.
pub fn upload<'a>(
    client: &'a Client,
    base_url: &'a str,
    operation: &'a OfflineOperation,
) -> BoxFuture<'a, Result<bool, ClientError>> {
    Box::pin(upload_one(client, base_url, operation))
}

async fn upload_one(
    client: &Client,
    base_url: &str,
    operation: &OfflineOperation,
) -> Result<bool, ClientError> {
    match operation.clone() {
        OfflineOperation::InputKeys(_) | OfflineOperation::Setup(_) => return Ok(false),
        OfflineOperation::UploadSigs(it) => {
            let body = ManagementKeysRequest { denom_sigs: it.denom_sigs, signkey_sigs: it.signkey_sigs };
            post(client, base_url, "keys", &body).await?;
        }
        OfflineOperation::RevokeDenomination(it) => {
            let path = format!("denominations/{}/revoke", it.h_denom_pub);
            post(client, base_url, &path, &RevokeRequest { master_sig: it.master_sig }).await?;
        }
        OfflineOperation::RevokeSignKey(it) => {
            let path = format!("signkeys/{}/revoke", it.exchange_pub);
            post(client, base_url, &path, &RevokeRequest { master_sig: it.master_sig }).await?;
        }
        OfflineOperation::EnableAuditor(it) => {
            let body = AuditorAddRequest {
                auditor_pub: it.auditor_pub,
                auditor_url: it.auditor_url,
                auditor_name: it.auditor_name,
                validity_start: it.validity_start,
                master_sig: it.master_sig,
            };
            post(client, base_url, "auditors", &body).await?;
        }
        OfflineOperation::DisableAuditor(it) => {
            let body = AuditorDisableRequest { validity_end: it.validity_end, master_sig: it.master_sig };
            post(client, base_url, &format!("auditors/{}/disable", it.auditor_pub), &body).await?;
        }
        OfflineOperation::EnableWire(it) => {
            let body = WireAddRequest {
                payto_uri: it.payto_uri,
                validity_start: it.validity_start,
                master_sig_wire: it.master_sig_wire,
                master_sig_add: it.master_sig_add,
            };
            post(client, base_url, "wire", &body).await?;
        }
        OfflineOperation::DisableWire(it) => {
            let body = WireDisableRequest {
                payto_uri: it.payto_uri,
                validity_end: it.validity_end,
                master_sig_del: it.master_sig,
            };
            post(client, base_url, "wire/disable", &body).await?;
        }
        OfflineOperation::SetWireFee(it) => {
            let body = WireFeeRequest {
                wire_method: it.wire_method,
                fee_start: it.start_time,
                fee_end: it.end_time,
                wire_fee: it.wire_fee,
                closing_fee: it.closing_fee,
                master_sig: it.master_sig,
            };
            post(client, base_url, "wire-fee", &body).await?;
        }
        OfflineOperation::SetGlobalFee(it) => {
            let body = GlobalFeeRequest {
                fee_start: it.start_time,
                fee_end: it.end_time,
                history_fee: it.history_fee,
                account_fee: it.account_fee,
                purse_fee: it.purse_fee,
                purse_timeout: it.purse_timeout,
                history_expiration: it.history_expiration,
                purse_account_limit: it.purse_account_limit,
                master_sig: it.master_sig,
            };
            post(client, base_url, "global-fee", &body).await?;
        }
        OfflineOperation::DrainProfits(it) => {
            let body = DrainRequest {
                debit_account_section: it.account_section,
                credit_payto_uri: it.payto_uri,
                wtid: it.wtid,
                date: it.date,
                amount: it.amount,
                master_sig: it.master_sig,
            };
            post(client, base_url, "drain", &body).await?;
        }
        OfflineOperation::Extensions(body) => post(client, base_url, "extensions", &body).await?,
    }
    Ok(true)
}
