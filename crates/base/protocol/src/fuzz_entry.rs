//! Entry points for fuzzers, one per parser: none may panic, and parsed values must survive a round trip.

use std::fmt::Debug;

use batzen_crypto::{DenomPublicKey, EcdhePrivateKey, EddsaPrivateKey, RsaPublicKey, base32};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::{bank, errors, exchange, merchant, offline};
use crate::econtract::PeerContract;
use crate::{
    Amount, Duration, ErrorBody, ErrorDetail, PaytoUri, TalerUri, Timestamp, canonical, econtract, parse_body,
};

/// A function that takes any bytes.
pub type Entry = fn(&[u8]);

/// All functions with the names of their targets and seeds.
pub const ENTRIES: &[(&str, Entry)] = &[
    ("base32", base32_text),
    ("amount", amount),
    ("timestamp", timestamp),
    ("payto", payto),
    ("taler_uri", taler_uri),
    ("body_keys", body_keys),
    ("body_withdraw", body_withdraw),
    ("body_deposit", body_deposit),
    ("body_refresh", body_refresh),
    ("body_refund_recoup", body_refund_recoup),
    ("body_tracking", body_tracking),
    ("body_management", body_management),
    ("body_purses", body_purses),
    ("body_merchant", body_merchant),
    ("body_errors", body_errors),
    ("body_bank", body_bank),
    ("body_offline", body_offline),
    ("canonical_json", canonical_json),
    ("econtract", econtract_plain),
    ("denom_keys", denom_keys),
];

fn text(data: &[u8]) -> Option<&str> {
    std::str::from_utf8(data).ok()
}

/// Base32.
pub fn base32_text(data: &[u8]) {
    let Some(text) = text(data) else { return };
    if let Ok(bytes) = base32::decode(text) {
        let again = base32::encode(&bytes);
        assert_eq!(again.len(), text.len());
        assert_eq!(base32::decode(&again).as_ref(), Ok(&bytes));
    }
}

pub fn amount(data: &[u8]) {
    let Some(amount) = text(data).and_then(|text| Amount::parse(text).ok()) else { return };
    assert_eq!(Amount::parse(&amount.to_string()), Ok(amount));
    assert_eq!(Amount::from_nbo(&amount.to_nbo()), Ok(amount));
    assert_eq!(amount.checked_sub(&amount).map(|rest| rest.is_zero()), Ok(true));
}

/// Times and durations.
pub fn timestamp(data: &[u8]) {
    if let Ok(time) = serde_json::from_slice::<Timestamp>(data) {
        let again = serde_json::to_string(&time).expect("every time can be written");
        assert_eq!(serde_json::from_str::<Timestamp>(&again).ok(), Some(time));
        assert_eq!(Timestamp::from_nbo(time.to_nbo()), time);
    }
    if let Ok(duration) = serde_json::from_slice::<Duration>(data) {
        let again = serde_json::to_string(&duration).expect("every duration that was read can be written");
        assert_eq!(serde_json::from_str::<Duration>(&again).ok(), Some(duration));
    }
}

/// Payto URIs.
pub fn payto(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let strict = PaytoUri::parse_strict(text).is_ok();
    let Ok(uri) = PaytoUri::parse(text) else {
        assert!(!strict, "the strict form is narrower");
        return;
    };
    let _ = (uri.host(), uri.account(), uri.receiver_name(), uri.hash());
    assert!(!uri.method().is_empty());
    if let Ok((base_url, reserve_pub)) = uri.to_reserve() {
        let again = PaytoUri::reserve(&base_url, &reserve_pub).map(|uri| uri.to_reserve());
        // A path that begins with a slash is not a base URL.
        assert!(again.is_err() || again == Ok(Ok((base_url, reserve_pub))));
    }
}

/// Taler URIs.
pub fn taler_uri(data: &[u8]) {
    let Some(uri) = text(data).and_then(|text| TalerUri::parse(text).ok()) else { return };
    assert_eq!(TalerUri::parse(&uri.to_string()), Ok(uri));
}

fn body<T: DeserializeOwned + Serialize + PartialEq + Debug>(data: &[u8]) {
    match parse_body::<T>(data) {
        Ok(body) => {
            let again = serde_json::to_vec(&body).expect("what was read can be written");
            assert_eq!(parse_body::<T>(&again).as_ref(), Ok(&body));
        }
        Err(error) => {
            let answer = serde_json::to_vec(&error.to_error_body()).expect("an error can be written");
            assert!(serde_json::from_slice::<ErrorDetail>(&answer).is_ok());
        }
    }
}

/// Declares functions for the bodies of one or several endpoints.
macro_rules! bodies {
    ($($(#[$meta:meta])* $name:ident: $($type:ty),+;)+) => {
        $(
            $(#[$meta])*
            pub fn $name(data: &[u8]) {
                $(body::<$type>(data);)+
            }
        )+
    };
}

bodies! {
    /// Key listings.
    body_keys: exchange::KeysResponse, exchange::WireResponse;

    /// Withdrawal.
    body_withdraw:
        exchange::WithdrawRequest, exchange::BatchWithdrawRequest, exchange::CsrWithdrawRequest,
        exchange::WithdrawValues, exchange::BlindSignature, exchange::ReserveRequest,
        exchange::ReserveStatus;

    body_deposit:
        exchange::DepositRequest, exchange::BatchDepositRequest, exchange::DepositConfirmation,
        exchange::BatchDepositConfirmation;

    body_refresh:
        exchange::MeltRequest, exchange::CsrMeltRequest, exchange::RevealRequest,
        exchange::BlindSignatures, Vec<exchange::LinkEntry>;

    body_refund_recoup: exchange::RefundRequest, exchange::RecoupRequest;

    /// Tracking and identification.
    body_tracking:
        exchange::TransferResponse, exchange::DepositTransfer, exchange::DepositPending,
        exchange::KycWalletRequest, exchange::KycDone;

    body_management:
        exchange::FutureKeys, exchange::ManagementKeysRequest, exchange::AuditorAddRequest,
        exchange::WireAddRequest, exchange::WireFeeRequest, exchange::GlobalFeeRequest,
        exchange::ExtensionsRequest, exchange::DrainRequest;

    /// Bodies that wallets and shops send to a merchant backend, and its answers.
    body_merchant:
        merchant::ClaimRequest, merchant::PayRequest, merchant::PaidRequest, merchant::AbortRequest,
        merchant::PickUpRefundRequest, merchant::PickUpRefundResponse, merchant::PickUpTipRequest,
        merchant::CreateInstanceRequest, merchant::CreateOrderRequest, merchant::ApproveRefundRequest,
        merchant::ForgetRequest, merchant::CreateProductRequest, merchant::ChangeProductRequest,
        merchant::LockProductRequest, merchant::ReportTransferRequest,
        merchant::CreateTipReserveRequest, merchant::AuthorizeTipRequest,
        merchant::CreateWebhookRequest, merchant::CreateTemplateRequest, merchant::UseTemplateRequest,
        merchant::CreateTokenRequest;

    body_purses:
        exchange::PurseCreateRequest, exchange::PurseDepositRequest, exchange::PurseMergeRequest,
        exchange::ReservePurseRequest, exchange::ReserveOpenRequest, exchange::ContractResponse;

    /// Errors and histories.
    body_errors:
        ErrorDetail, ErrorBody<errors::CoinConflict>, ErrorBody<errors::InsufficientReserve>,
        ErrorBody<errors::DenominationUnusable>;

    /// The bank's interfaces.
    body_bank:
        bank::IncomingHistory, bank::OutgoingHistory, bank::TransferRequest, bank::AddIncomingRequest,
        bank::WithdrawalOperation, bank::WithdrawalSelection, bank::WithdrawalInfo;

    /// Documents of the offline tool.
    body_offline: Vec<offline::OfflineOperation>;
}

/// Canonical JSON and contracts.
pub fn canonical_json(data: &[u8]) {
    let Ok(mut value) = canonical::parse(data) else { return };
    let Ok(text) = canonical::to_canonical(&value) else { return };
    let again = canonical::parse(text.as_bytes()).expect("canonical text is JSON");
    assert_eq!(canonical::to_canonical(&again).as_ref(), Ok(&text));
    let Ok(hash) = canonical::contract_hash(&value) else { return };
    let forgettable = value.get("$forgettable").and_then(|members| members.as_object());
    let names: Vec<String> = forgettable.into_iter().flatten().map(|(name, _)| name.clone()).collect();
    for name in names {
        if canonical::forget(&mut value, &name).is_ok() {
            assert_eq!(canonical::contract_hash(&value).as_ref(), Ok(&hash));
        }
    }
}

/// Encrypted contracts: parsing after decryption, and decryption itself.
pub fn econtract_plain(data: &[u8]) {
    for kind in [0, 1] {
        let _ = PeerContract::from_plain(data, kind);
    }
    let contract_priv = EcdhePrivateKey::from_bytes([1; 32]);
    let purse_pub = EddsaPrivateKey::from_bytes([2; 32]).public_key();
    let _ = PeerContract::decrypt_request(&contract_priv, &purse_pub, data);
    let _ = econtract::open_attributes(&[3; 64], data);
}

pub fn denom_keys(data: &[u8]) {
    if let Ok(key) = RsaPublicKey::decode(data) {
        assert_eq!(key.encode(), data);
    }
    if let Ok(key) = serde_json::from_slice::<DenomPublicKey>(data) {
        let again = serde_json::to_vec(&key).expect("a key can be written");
        assert_eq!(serde_json::from_slice::<DenomPublicKey>(&again).ok(), Some(key));
    }
}
