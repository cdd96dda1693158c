//! Claims and replayed payments (merchant chapters 2.2 and 2.4).

use std::sync::Arc;

use batzen_crypto::{EddsaPublicKey, base32};
use batzen_http::{Request, Response};
use batzen_protocol::ErrorCode;
use batzen_protocol::api::merchant::{ClaimRequest, ClaimResponse, ContractTerms, PaidRequest};
use batzen_protocol::signatures::{MerchantContract, MerchantPaymentOk, SignedMessage};
use serde_json::value::RawValue;
use subtle::ConstantTimeEq;

use super::orders::terms_of;
use super::table::{Rows, SMALL_BODY_BYTES_MAX, endpoint};
use super::{Answer, Checked, Merchant, Shop, body, malformed, refused};
use crate::contract::claimed;
use crate::rules::{Claim, Refusal, Replay, Session};

pub(super) fn routes() -> Rows {
    let mut rows = Rows::of("claim");
    rows.post("/orders/:order/claim", endpoint!(Anyone, claim_order), "A wallet claims the order")
        .takes::<ClaimRequest>(SMALL_BODY_BYTES_MAX)
        .gives::<ClaimResponse<ContractTerms>>();
    rows.post(
        "/orders/:order/paid",
        endpoint!(Anyone, replay_payment),
        "A wallet shows its receipt in another session",
    )
    .counted_as("pay")
    .takes::<PaidRequest>(SMALL_BODY_BYTES_MAX)
    .gives_nothing();
    rows
}

/// The longest name of a session, in bytes.
pub(super) const SESSION_BYTES_MAX: usize = 1_024;

/// The session that a request names; none if it is empty.
pub(super) fn session(id: Option<&str>) -> Checked<Option<Session>> {
    match id {
        None | Some("") => Ok(None),
        Some(id) if id.len() <= SESSION_BYTES_MAX => Ok(Some(Session { id: id.to_owned() })),
        Some(_) => Err(malformed("session_id")),
    }
}

/// Returns whether a text is this claim token.
pub(super) fn is_token(text: &str, token: &[u8; 16]) -> bool {
    let given = base32::decode_array::<16>(text);
    given.is_ok_and(|given| bool::from(given.ct_eq(token)))
}

async fn claim_order(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, order_id: &str) -> Answer {
    let ClaimRequest { nonce, token } = body(request)?;
    if nonce.parse::<EddsaPublicKey>().is_err() {
        return Err(malformed("nonce"));
    }
    let signer = shop.signer()?;
    let unknown = || Response::error(ErrorCode::MERCHANT_POST_ORDERS_ID_CLAIM_NOT_FOUND, order_id);
    let (order, row) = app.core.find_order(shop, order_id).await?.ok_or_else(unknown)?;
    let knows = row
        .claim_token
        .is_none_or(|expected| token.as_deref().is_some_and(|token| is_token(token, &expected)));
    if !knows {
        return Err(unknown());
    }
    let invalid =
        |reason: String| Response::error(ErrorCode::MERCHANT_GENERIC_DB_CONTRACT_CONTENT_INVALID, &reason);
    let row = match &row.nonce {
        // The rules decide whether it is this wallet's.
        Some(_) => {
            let h_contract = row.h_contract.expect("nonce and hash are set together");
            let (offered, terms) = (String::new(), row.terms);
            app.core.execute(Claim { order, offered, nonce, terms, h_contract }).await?
        }
        None => {
            let (terms, h_contract) = claimed(&row.terms, &nonce).map_err(invalid)?;
            app.core.execute(Claim { order, offered: row.terms, nonce, terms, h_contract }).await?
        }
    };
    match row {
        Ok(row) => {
            let h_contract_terms = row.h_contract.expect("it is claimed");
            let sig = MerchantContract { h_contract_terms }.sign_with(signer);
            let contract_terms: &RawValue = terms_of(&row)?;
            Ok(Response::json(200, &ClaimResponse { contract_terms, sig }))
        }
        Err(Refusal::OrderUnknown) => Err(unknown()),
        Err(refusal) => Err(refused(&refusal, order_id)),
    }
}

async fn replay_payment(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, order_id: &str) -> Answer {
    let PaidRequest { h_contract, sig, session_id } = body(request)?;
    let (order, row) = app.core.order(shop, order_id).await?;
    if row.h_contract != Some(h_contract) {
        let code = ErrorCode::MERCHANT_POST_ORDERS_ID_PAID_CONTRACT_HASH_MISMATCH;
        return Err(Response::error(code, order_id));
    }
    let message = MerchantPaymentOk { h_contract_terms: h_contract };
    if !message.verify(&shop.row.merchant_pub, &sig) {
        let code = ErrorCode::MERCHANT_POST_ORDERS_ID_PAID_COIN_SIGNATURE_INVALID;
        return Err(Response::error(code, order_id));
    }
    if let Some(session) = session(Some(&session_id))? {
        let (instance, fulfillment_url) = (shop.id.clone(), row.fulfillment_url);
        let replay = Replay { order, instance, fulfillment_url, session };
        app.core.decide(replay, order_id).await?;
        app.core.notices.order_changed(&order);
    }
    Ok(Response::empty(204))
}
