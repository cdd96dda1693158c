//! Every body parses strictly, and errors have the status and members of their code.

use batzen_protocol::api::bank::*;
use batzen_protocol::api::errors::*;
use batzen_protocol::api::exchange::*;
use batzen_protocol::api::{FieldError, field_error};
use batzen_protocol::{Amount, ErrorBody, ErrorCode, ErrorDetail, parse_body};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::http_vectors::recording::{Recording, bytes};

/// Checks the request's body and the answer's.
pub(super) fn check(recording: &Recording, currency: Option<&str>) {
    if !recording.request.body.is_null() {
        check_request(recording, currency);
    }
    let body = &recording.response.body;
    if recording.code().is_some() {
        check_error(recording);
    } else if body.is_object() && body.get("$base64").is_none() || body.is_array() {
        check_response(recording);
    }
}

fn request<T: DeserializeOwned + Serialize>(recording: &Recording, currency: Option<&str>) {
    if recording.code() != Some(22) {
        recording.request::<T>();
        return;
    }
    let error = match parse_body::<T>(&bytes(&recording.request.body)) {
        Err(error) => error,
        Ok(_) => {
            // It parsed, so it must be an amount in a currency that the server does not have.
            let currency = currency.expect("the currency is known");
            let foreign = |value: &Value| {
                value
                    .as_str()
                    .and_then(|text| text.parse::<Amount>().ok())
                    .is_some_and(|a| a.currency.as_str() != currency)
            };
            let members = recording.request.body.as_object().expect("an object");
            let (name, _) = members.iter().find(|(_, value)| foreign(value)).expect("a foreign currency");
            field_error::<T>(name, "foreign currency")
        }
    };
    let ours = serde_json::to_value(error.to_error_body()).expect("serialisable");
    assert_eq!(ours, recording.response.body, "error answer");
}

fn check_request(recording: &Recording, currency: Option<&str>) {
    let (method, path) = recording.route();
    let check: fn(&Recording, Option<&str>) = match (recording.server.as_str(), method, path.as_slice()) {
        ("exchange", "POST", ["reserves", _, "status" | "history"]) => request::<ReserveRequest>,
        ("exchange", "POST", ["reserves", _, "withdraw"]) => request::<WithdrawRequest>,
        ("exchange", "POST", ["reserves", _, "batch-withdraw"]) => request::<BatchWithdrawRequest>,
        ("exchange", "POST", ["reserves", _, "purse"]) => request::<ReservePurseRequest>,
        ("exchange", "POST", ["reserves", _, "open"]) => request::<ReserveOpenRequest>,
        ("exchange", "POST", ["reserves", _, "close"]) => request::<ReserveCloseRequest>,
        ("exchange", "POST", ["csr-withdraw"]) => request::<CsrWithdrawRequest>,
        ("exchange", "POST", ["csr-melt"]) => request::<CsrMeltRequest>,
        ("exchange", "POST", ["coins", _, "deposit"]) => request::<DepositRequest>,
        ("exchange", "POST", ["batch-deposit"]) => request::<BatchDepositRequest>,
        ("exchange", "POST", ["coins", _, "melt"]) => request::<MeltRequest>,
        ("exchange", "POST", ["coins", _, "refund"]) => request::<RefundRequest>,
        ("exchange", "POST", ["coins", _, "recoup" | "recoup-refresh"]) => request::<RecoupRequest>,
        ("exchange", "POST", ["refreshes", _, "reveal"]) => request::<RevealRequest>,
        ("exchange", "POST", ["kyc-wallet"]) => request::<KycWalletRequest>,
        ("exchange", "POST", ["purses", _, "create"]) => request::<PurseCreateRequest>,
        ("exchange", "POST", ["purses", _, "deposit"]) => request::<PurseDepositRequest>,
        ("exchange", "POST", ["purses", _, "merge"]) => request::<PurseMergeRequest>,
        ("exchange", "POST", ["auditors", _, _]) => request::<AuditorSignatureRequest>,
        ("exchange", "POST", ["management", rest @ ..]) => match rest {
            ["keys"] => request::<ManagementKeysRequest>,
            ["denominations" | "signkeys", _, "revoke"] => request::<RevokeRequest>,
            ["auditors"] => request::<AuditorAddRequest>,
            ["auditors", _, "disable"] => request::<AuditorDisableRequest>,
            ["wire"] => request::<WireAddRequest>,
            ["wire", "disable"] => request::<WireDisableRequest>,
            ["wire-fee"] => request::<WireFeeRequest>,
            ["global-fee"] => request::<GlobalFeeRequest>,
            ["extensions"] => request::<ExtensionsRequest>,
            ["drain"] => request::<DrainRequest>,
            _ => |recording, _| assert!(!recording.ok(), "unknown management request"),
        },
        ("bank", "POST", [_, "transfer"]) => request::<TransferRequest>,
        ("bank", "POST", [_, "admin", "add-incoming"]) => request::<AddIncomingRequest>,
        ("bank", "POST", ["taler-bank-integration", "withdrawal-operation", _]) => {
            request::<WithdrawalSelection>
        }
        ("bank", "POST", ["taler-bank-access", "testing", "register"]) => request::<RegisterRequest>,
        ("bank", "POST", ["taler-bank-access", "accounts", _, "withdrawals"]) => {
            request::<CreateWithdrawalRequest>
        }
        ("bank", "POST", ["taler-bank-access", "accounts", _, "withdrawals", _, _]) => request::<Empty>,
        _ => |recording, _| assert!(!recording.ok(), "request of an unknown kind"),
    };
    check(recording, currency);
}

fn check_response(recording: &Recording) {
    fn response<T: DeserializeOwned + Serialize>(recording: &Recording) {
        recording.response::<T>();
    }
    let (method, path) = recording.route();
    let status = recording.response.status;
    let check: fn(&Recording) = match (recording.server.as_str(), method, path.as_slice(), status) {
        ("exchange", "GET", ["keys"], 200) => response::<KeysResponse>,
        ("exchange", "GET", ["wire"], 200) => response::<WireResponse>,
        ("exchange", "GET", ["management", "keys"], 200) => response::<FutureKeys>,
        ("exchange", "GET", ["reserves", _], 200) => response::<ReserveBalance>,
        ("exchange", "POST", ["reserves", _, "status" | "history"], 200) => response::<ReserveStatus>,
        ("exchange", "POST", ["reserves", _, "withdraw"], 200) => response::<BlindSignature>,
        ("exchange", "POST", ["reserves", _, "batch-withdraw"], 200) => response::<BlindSignatures>,
        ("exchange", "POST", ["reserves", _, "purse"], 200) => response::<PurseConfirmation>,
        ("exchange", "POST", ["reserves", _, "open"], 200 | 402) => response::<ReserveOpenResponse>,
        ("exchange", "POST", ["reserves", _, "close"], 200) => response::<ReserveCloseResponse>,
        ("exchange", "POST", ["csr-withdraw"], 200) => response::<WithdrawValues>,
        ("exchange", "POST", ["csr-melt"], 200) => response::<CsrMeltResponse>,
        ("exchange", "POST", ["coins", _, "deposit"], 200) => response::<DepositConfirmation>,
        ("exchange", "POST", ["batch-deposit"], 200) => response::<BatchDepositConfirmation>,
        ("exchange", "POST", ["coins", _, "melt"], 200) => response::<MeltConfirmation>,
        ("exchange", "POST", ["coins", _, "refund"], 200) => response::<RefundConfirmation>,
        ("exchange", "POST", ["coins", _, "recoup"], 200) => response::<RecoupResponse>,
        ("exchange", "POST", ["coins", _, "recoup-refresh"], 200) => response::<RecoupRefreshResponse>,
        ("exchange", "POST", ["refreshes", _, "reveal"], 200) => response::<BlindSignatures>,
        ("exchange", "GET", ["coins", _, "link"], 200) => response::<Vec<LinkEntry>>,
        ("exchange", "GET", ["transfers", _], 200) => response::<TransferResponse>,
        ("exchange", "GET", ["deposits", ..], 200) => response::<DepositTransfer>,
        ("exchange", "GET", ["deposits", ..], 202) => response::<DepositPending>,
        ("exchange", "GET", ["kyc-check", ..], 202) => response::<KycRedirect>,
        ("exchange", "GET", ["kyc-check", ..], 200) => response::<KycDone>,
        ("exchange", "POST", ["purses", _, "create"], 200) => response::<PurseConfirmation>,
        ("exchange", "POST", ["purses", _, "deposit"], 200) => response::<PurseDepositConfirmation>,
        ("exchange", "POST", ["purses", _, "merge"], 200) => response::<PurseMergeConfirmation>,
        ("exchange", "POST", ["purses", _, "merge"], 409) => response::<PurseMergeConflict>,
        ("exchange", "GET", ["purses", _, _], 200) => response::<PurseStatus>,
        ("exchange", "GET", ["contracts", _], 200) => response::<ContractResponse>,
        ("bank", "GET", [_, "history", "incoming"], 200) => response::<IncomingHistory>,
        ("bank", "GET", [_, "history", "outgoing"], 200) => response::<OutgoingHistory>,
        ("bank", "POST", [_, "transfer"] | [_, "admin", "add-incoming"], 200) => {
            response::<TransactionResponse>
        }
        ("bank", "GET", [_, "config"], 200) => response::<BankConfig>,
        ("bank", "GET", [_, "withdrawal-operation", _], 200) => response::<WithdrawalOperation>,
        ("bank", "POST", [_, "withdrawal-operation", _], 200) => response::<WithdrawalSelected>,
        ("bank", "GET", [_, "public-accounts"], 200) => response::<PublicAccounts>,
        ("bank", "GET", [_, "accounts", _], 200) => response::<AccountInfo>,
        ("bank", "POST", [_, "accounts", _, "withdrawals"], 200) => response::<CreateWithdrawalResponse>,
        ("bank", "GET", [_, "accounts", _, "withdrawals", _], 200) => response::<WithdrawalInfo>,
        ("bank", "POST", [_, "accounts", _, "withdrawals", _, _], 200) => response::<Empty>,
        _ => panic!("answer of an unknown kind"),
    };
    check(recording);
}

/// Statuses that an endpoint may use besides the one in the table.
fn other_status(code: ErrorCode, status: u16) -> bool {
    match status {
        500 => matches!(
            code,
            ErrorCode::EXCHANGE_GENERIC_KEYS_MISSING
                | ErrorCode::EXCHANGE_DENOMINATION_HELPER_UNAVAILABLE
                | ErrorCode::EXCHANGE_SIGNKEY_HELPER_UNAVAILABLE
        ),
        400 => code == ErrorCode::EXCHANGE_WITHDRAW_NONCE_REUSE,
        409 => code == ErrorCode::EXCHANGE_PURSE_NOT_FULL,
        412 => code == ErrorCode::EXCHANGE_REFUND_INCONSISTENT_AMOUNT,
        _ => false,
    }
}

fn check_error(recording: &Recording) {
    let plain: ErrorDetail = recording.response();
    assert!(plain.code.is_known(), "unknown code {}", plain.code);
    let status = recording.response.status;
    assert!(
        plain.code.http_status() == status || other_status(plain.code, status),
        "status of {}",
        plain.code
    );
    let extra = |name: &str| plain.extra.contains_key(name);
    let check: fn(&Recording) = match plain.code {
        _ if plain.extra.is_empty() => return,
        ErrorCode::GENERIC_JSON_INVALID => typed::<FieldError>,
        _ if extra("oper") => typed::<DenominationUnusable>,
        ErrorCode::EXCHANGE_GENERIC_DENOMINATION_KEY_UNKNOWN
        | ErrorCode::EXCHANGE_GENERIC_INVALID_DENOMINATION_CIPHER_FOR_OPERATION => {
            typed::<DenominationUnknown>
        }
        ErrorCode::EXCHANGE_GENERIC_COIN_CONFLICTING_DENOMINATION_KEY
        | ErrorCode::EXCHANGE_GENERIC_COIN_CONFLICTING_AGE_HASH
        | ErrorCode::EXCHANGE_GENERIC_INSUFFICIENT_FUNDS
        | ErrorCode::EXCHANGE_DEPOSIT_CONFLICTING_CONTRACT
        | ErrorCode::EXCHANGE_REFUND_CONFLICT_DEPOSIT_INSUFFICIENT
        | ErrorCode::EXCHANGE_REFUND_INCONSISTENT_AMOUNT => typed::<CoinConflict>,
        ErrorCode::EXCHANGE_WITHDRAW_INSUFFICIENT_FUNDS
        | ErrorCode::EXCHANGE_RESERVES_OPEN_INSUFFICIENT_FUNDS => typed::<InsufficientReserve>,
        ErrorCode::EXCHANGE_GENERIC_KYC_REQUIRED => typed::<KycRequired>,
        ErrorCode::EXCHANGE_REFRESHES_REVEAL_COMMITMENT_VIOLATION => typed::<CommitmentViolation>,
        ErrorCode::EXCHANGE_PURSE_CREATE_CONFLICTING_META_DATA
        | ErrorCode::EXCHANGE_RESERVES_PURSE_CREATE_CONFLICTING_META_DATA => typed::<PurseCreateConflict>,
        ErrorCode::EXCHANGE_RESERVES_PURSE_MERGE_CONFLICTING_META_DATA => typed::<PurseMergeConflict>,
        ErrorCode::EXCHANGE_PURSE_DEPOSIT_CONFLICTING_META_DATA => typed::<PurseDepositConflict>,
        ErrorCode::EXCHANGE_PURSE_ECONTRACT_CONFLICTING_META_DATA => typed::<EncryptedContractConflict>,
        code => panic!("no type for the members of {code}"),
    };
    check(recording);
}

fn typed<E: DeserializeOwned + Serialize>(recording: &Recording) {
    recording.response::<ErrorBody<E>>();
}
