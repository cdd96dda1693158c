//! `/reserves-attest/$RESERVE_PUB` (p2p chapter 10.4): the exchange confirms what it knows about the owner of a reserve.

use std::collections::BTreeMap;

use batzen_crypto::{EddsaPublicKey, EddsaSignature};
use batzen_http::{Request, Response};
use batzen_protocol::canonical::plain_hash;
use batzen_protocol::limits::SMALL_BODY_BYTES_MAX;
use batzen_protocol::payto::PaytoUri;
use batzen_protocol::signatures::{ExchangeReserveAttestDetails, WalletReserveAttestDetails};
use batzen_protocol::{ErrorCode, Timestamp};
use batzen_tables::exchange::ReservePub;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::super::check::Checked;
use super::super::reserves::check_clock;
use super::super::{Table, body, endpoint, error, path_value, response, signing};
use crate::app::Exchange;
use crate::reads::kyc;

/// Number of attributes that one request may name.
const DETAILS_MAX: usize = 64;

/// `POST`: the attributes to confirm.
#[derive(Debug, Deserialize)]
struct AttestRequest {
    request_timestamp: Timestamp,
    /// Names of attributes.
    details: Vec<String>,
    /// `WALLET_RESERVE_ATTEST_DETAILS`.
    reserve_sig: EddsaSignature,
}

/// The names of the attributes on file.
#[derive(Debug, Serialize)]
struct Names {
    attributes: Vec<String>,
}

/// The confirmed attributes. They occur twice, because servers and clients of this protocol generation disagree on the
/// member's name.
#[derive(Debug, Serialize)]
struct Attested {
    exchange_timestamp: Timestamp,
    expiration_time: Timestamp,
    attributes: Value,
    attest: Value,
    /// `EXCHANGE_RESERVE_ATTEST_DETAILS`.
    exchange_sig: EddsaSignature,
    exchange_pub: EddsaPublicKey,
}

pub(super) fn routes(table: Table) -> Table {
    table.get("/reserves-attest/:reserve_pub", "kyc", endpoint!(names)).post(
        "/reserves-attest/:reserve_pub",
        SMALL_BODY_BYTES_MAX,
        "kyc",
        endpoint!(attest),
    )
}

/// An attribute and its expiration.
struct Known {
    value: Value,
    expiration: Timestamp,
}

/// Collects the attributes that valid identifications of a reserve's owner have reported. Of two that report the same
/// attribute, the one that is valid for longer counts.
async fn known(app: &Exchange, reserve_pub: ReservePub) -> Checked<BTreeMap<String, Known>> {
    let unknown = || error(ErrorCode::EXCHANGE_GENERIC_RESERVE_UNKNOWN, "nobody was identified as its owner");
    let payto = PaytoUri::reserve(&app.core.config.base_url, &reserve_pub)
        .map_err(|_| error(ErrorCode::EXCHANGE_GENERIC_BAD_CONFIGURATION, "BASE_URL"))?;
    let processes = app.core.read(move |store| kyc::processes(store, payto.hash()));
    let processes = processes.await.map_err(response::store)?;
    let now = app.core.now();
    let valid = processes.into_iter().filter(|found| found.row.expiration > now).collect::<Vec<_>>();
    if valid.is_empty() {
        return Err(unknown());
    }
    let mut known = BTreeMap::new();
    for found in valid.iter().filter(|found| !found.row.attributes.is_empty()) {
        let expiration = found.row.expiration;
        let attributes = app.kyc.open(&found.row.attributes).map_err(|problem| {
            tracing::error!(%problem, provider = found.key.provider, "stored attributes cannot be decrypted");
            error(ErrorCode::EXCHANGE_GENERIC_BAD_CONFIGURATION, "KYC_ATTRIBUTES_KEY_FILE")
        })?;
        let Value::Object(attributes) = attributes else { continue };
        for (name, value) in attributes {
            let new = Known { value, expiration };
            let old: &mut Known = known
                .entry(name)
                .or_insert_with(|| Known { value: Value::Null, expiration: Timestamp::ZERO });
            if old.expiration < new.expiration {
                *old = new;
            }
        }
    }
    Ok(known)
}

/// Only the owner of the reserve is told whether somebody was identified, and about what: the query has the time in
/// seconds and a signature that asks for no attribute.
async fn names(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let reserve_pub = path_value(request, "reserve_pub", ErrorCode::GENERIC_RESERVE_PUB_MALFORMED)?;
    let request_timestamp = Timestamp::from_secs(request.query_required::<u32>("request_timestamp")?.into());
    let reserve_sig = request.query_required::<EddsaSignature>("reserve_sig")?;
    check_clock(app, request_timestamp)?;
    check_owner(app, reserve_pub, request_timestamp, &Value::Array(Vec::new()), reserve_sig).await?;
    let attributes = known(app, reserve_pub).await?.into_keys().collect();
    Ok(super::officer::private(Response::json(200, &Names { attributes })))
}

/// Checks that the owner of a reserve asks for these details.
async fn check_owner(
    app: &Exchange,
    reserve_pub: ReservePub,
    request_timestamp: Timestamp,
    details: &Value,
    reserve_sig: EddsaSignature,
) -> Checked<()> {
    let h_details =
        plain_hash(details).map_err(|_| error(ErrorCode::GENERIC_PARAMETER_MALFORMED, "details"))?;
    let message = WalletReserveAttestDetails { request_timestamp, h_details };
    if !signing::is_signed(app, reserve_pub, &message, reserve_sig).await? {
        return Err(error(ErrorCode::EXCHANGE_RESERVES_ATTEST_BAD_SIGNATURE, ""));
    }
    Ok(())
}

async fn attest(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let reserve_pub: ReservePub =
        path_value(request, "reserve_pub", ErrorCode::GENERIC_RESERVE_PUB_MALFORMED)?;
    let body: AttestRequest = body(request)?;
    check_clock(app, body.request_timestamp)?;
    if body.details.len() > DETAILS_MAX {
        return Err(error(ErrorCode::GENERIC_PARAMETER_MALFORMED, "details"));
    }
    let details = Value::from(body.details.clone());
    check_owner(app, reserve_pub, body.request_timestamp, &details, body.reserve_sig).await?;
    let mut known = known(app, reserve_pub).await?;
    let mut attributes = Map::new();
    let mut expiration_time = Timestamp::NEVER;
    for name in body.details {
        if let Some(found) = known.remove(&name) {
            expiration_time = expiration_time.min(found.expiration);
            attributes.insert(name, found.value);
        }
    }
    let attributes = Value::Object(attributes);
    let exchange_timestamp = app.core.now();
    let h_attributes = plain_hash(&attributes).expect("stored attributes are JSON");
    let message = ExchangeReserveAttestDetails {
        attest_timestamp: exchange_timestamp,
        expiration_time,
        reserve_pub,
        h_attributes,
    };
    let (exchange_pub, exchange_sig) = signing::sign_one(app, message).await?;
    let attest = attributes.clone();
    let attested =
        Attested { exchange_timestamp, expiration_time, attributes, attest, exchange_sig, exchange_pub };
    Ok(super::officer::private(Response::json(200, &attested)))
}
