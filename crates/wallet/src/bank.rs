//! Requests to a bank: the integration API that every wallet uses, and the access API of test banks.

use batzen_protocol::api::bank::{
    BankConfig, CreateWithdrawalRequest, CreateWithdrawalResponse, RegisterRequest, WithdrawalOperation,
};
use batzen_protocol::{Amount, ErrorCode, TalerUri};

use crate::core::http::{Context, HttpRequest, HttpResponse};
use crate::core::url::{normalise_base_url, versions_compatible};
use crate::core::withdraw::BankLogin;
use crate::core::{CoreError, Exchange, bad_input};

/// The version of the integration API that this wallet speaks.
const INTEGRATION_VERSION: &str = "0:0:0";

/// A bank's offer under a `taler://withdraw` URI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithdrawOffer {
    /// Base URL of the bank's integration API.
    pub(crate) integration_url: String,
    pub(crate) operation_id: String,
    /// Amount of the withdrawal.
    pub amount: Amount,
    /// Exchange that the bank suggests.
    pub suggested_exchange: Option<String>,
    /// Wire methods that the bank supports.
    pub(crate) wire_types: Vec<String>,
    /// URL where the user confirms.
    pub(crate) confirm_url: Option<String>,
}

impl WithdrawOffer {
    /// The account of `exchange` that this bank can pay.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) fn account_of(&self, exchange: &Exchange) -> Result<String, CoreError> {
        let fits = |payto: &&String| {
            batzen_protocol::PaytoUri::parse(payto.as_str()).is_ok_and(|parsed| {
                self.wire_types.iter().any(|method| method.eq_ignore_ascii_case(parsed.method()))
            })
        };
        exchange.accounts.iter().find(fits).cloned().ok_or_else(|| {
            let url = &exchange.base_url;
            bad_input(
                "exchange",
                format!("{url} has no account that this bank can pay; choose another exchange"),
            )
        })
    }
}

/// Splits a `taler://withdraw` URI into the base URL of the integration API and the operation.
///
/// # Errors
/// [`CoreError::BadInput`] if it is not one.
pub fn parse_withdraw_uri(uri: &str) -> Result<(String, String), CoreError> {
    let bad = |reason: String| bad_input("taler URI", reason);
    match TalerUri::parse(uri.trim()) {
        Ok(TalerUri::Withdraw { bank_url, operation_id }) => {
            Ok((normalise_base_url(&bank_url)?, operation_id))
        }
        Ok(_) => Err(bad("this wallet accepts taler://withdraw URIs only".to_owned())),
        Err(error) => Err(bad(error.to_string())),
    }
}

/// Asks the integration API for its version.
#[must_use]
pub(crate) fn config_request(integration_url: &str) -> HttpRequest {
    HttpRequest::get(Context::Bank, format!("{integration_url}config"))
}

/// Checks the version.
///
/// # Errors
/// If the peer is not a bank, or speaks another version.
pub(crate) fn check_config(integration_url: &str, response: &HttpResponse) -> Result<(), CoreError> {
    if response.status != 200 {
        return Err(response.refusal("asking the bank for its version"));
    }
    let config: BankConfig = response.json("the bank's version")?;
    if versions_compatible(INTEGRATION_VERSION, &config.version) {
        Ok(())
    } else {
        Err(CoreError::Version {
            base_url: integration_url.to_owned(),
            version: config.version,
            ours: INTEGRATION_VERSION,
        })
    }
}

/// Asks about an operation.
#[must_use]
pub(crate) fn operation_request(integration_url: &str, operation_id: &str) -> HttpRequest {
    HttpRequest::get(Context::Bank, format!("{integration_url}withdrawal-operation/{operation_id}"))
}

/// Reads the answer to [`operation_request`].
///
/// # Errors
/// If there is no such operation, or it was cancelled.
pub(crate) fn read_offer(
    integration_url: &str,
    operation_id: &str,
    response: &HttpResponse,
) -> Result<WithdrawOffer, CoreError> {
    if response.status != 200 {
        return Err(response.refusal("asking the bank about the withdrawal"));
    }
    let operation: WithdrawalOperation = response.json("the bank's answer about the withdrawal")?;
    if operation.aborted {
        let reason = "this withdrawal was cancelled at the bank; begin a new one there";
        return Err(bad_input("taler URI", reason));
    }
    Ok(WithdrawOffer {
        integration_url: integration_url.to_owned(),
        operation_id: operation_id.to_owned(),
        amount: operation.amount,
        suggested_exchange: operation.suggested_exchange,
        wire_types: operation.wire_types,
        confirm_url: operation.confirm_transfer_url,
    })
}

/// The base URL of a test bank's access API, derived from the bank's base URL. A URL that already names the
/// API is unchanged.
///
/// # Errors
/// [`CoreError::BadUrl`].
pub fn access_url(bank_url: &str) -> Result<String, CoreError> {
    let base = normalise_base_url(bank_url)?;
    Ok(if base.ends_with("/taler-bank-access/") { base } else { format!("{base}taler-bank-access/") })
}

/// Opens an account. Repeating it with the same password is harmless.
#[must_use]
pub(crate) fn register_request(login: &BankLogin) -> HttpRequest {
    let body = RegisterRequest { username: login.user.clone(), password: login.password.clone() };
    HttpRequest::post(Context::Bank, format!("{}testing/register", login.access_url), &body)
}

/// Reads the answer to [`register_request`].
///
/// # Errors
/// If the account exists with another password.
pub(crate) fn check_registered(login: &BankLogin, response: &HttpResponse) -> Result<(), CoreError> {
    match (response.status, response.code()) {
        (200 | 202 | 204, _) => Ok(()),
        (409, ErrorCode::BANK_REGISTER_CONFLICT) => {
            let reason = format!("the account {} exists at the bank with another password", login.user);
            Err(bad_input("password", reason))
        }
        _ => Err(response.refusal("opening the bank account")),
    }
}

/// Begins a withdrawal at the bank. An abandoned one costs nothing.
#[must_use]
pub(crate) fn create_request(login: &BankLogin, amount: Amount) -> HttpRequest {
    let url = format!("{}accounts/{}/withdrawals", login.access_url, login.user);
    let mut request = HttpRequest::post(Context::Bank, url, &CreateWithdrawalRequest { amount });
    request.basic_auth = Some((login.user.clone(), login.password.clone()));
    request
}

/// Reads the answer to [`create_request`]: the `taler://withdraw` URI.
///
/// # Errors
/// If the bank refuses.
pub(crate) fn read_created(response: &HttpResponse) -> Result<String, CoreError> {
    if response.status != 200 {
        return Err(response.refusal("beginning a withdrawal at the bank"));
    }
    let created: CreateWithdrawalResponse = response.json("beginning a withdrawal at the bank")?;
    Ok(created.taler_withdraw_uri)
}
