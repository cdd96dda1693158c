//! Error codes: number, name, HTTP status and hint of each, and the JSON body of error answers.

use std::borrow::Cow;
use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A numeric error code of the protocol.
///
/// Codes that this program does not know are kept: they have a number, but no name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ErrorCode(u32);

/// The registered facts of a code.
#[derive(Debug, Clone, Copy)]
struct Entry {
    number: u32,
    status: u16,
    name: &'static str,
    hint: &'static str,
}

impl ErrorCode {
    /// The code with this number, registered or not.
    pub const fn from_u32(number: u32) -> Self {
        Self(number)
    }

    /// The number.
    pub const fn to_u32(self) -> u32 {
        self.0
    }

    fn entry(self) -> Option<&'static Entry> {
        TABLE.binary_search_by_key(&self.0, |entry| entry.number).ok().map(|i| &TABLE[i])
    }

    /// Returns whether the code is in the table.
    pub fn is_known(self) -> bool {
        self.entry().is_some()
    }

    /// The registered name, `None` for a code that is not in the table.
    pub(crate) fn name(self) -> Option<&'static str> {
        self.entry().map(|entry| entry.name)
    }

    /// The code with this registered name.
    #[cfg(test)]
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        TABLE.iter().find(|entry| entry.name == name).map(|entry| Self(entry.number))
    }

    /// The HTTP status that answers with this code normally have; 500 for a code that is not in the table.
    ///
    /// An endpoint may use another one where the interface says so (e.g. nonce reuse in a batch).
    pub fn http_status(self) -> u16 {
        self.entry().map_or(500, |entry| entry.status)
    }

    /// The fixed English text for the code.
    pub fn hint(self) -> &'static str {
        self.entry().map_or("Unknown error code.", |entry| entry.hint)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "error {}", self.0),
        }
    }
}

crate::text::debug_as_text!(ErrorCode);

/// The JSON body of an error answer: `hint`, `code`, an optional `detail`, and further members.
///
/// `E` holds those further members (see [`crate::api::errors`]); a plain error has none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ErrorBody<E> {
    /// English text, fixed for the code.
    #[serde(default)]
    pub(crate) hint: Cow<'static, str>,
    /// The error code.
    pub code: ErrorCode,
    /// Details of this case, as text.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub detail: Option<String>,
    /// Further members.
    #[serde(flatten)]
    pub extra: E,
}

/// An error answer whose further members, if any, are not typed.
pub type ErrorDetail = ErrorBody<Map<String, Value>>;

impl ErrorDetail {
    /// A plain error.
    pub fn new(code: ErrorCode) -> Self {
        Self::with(code, Map::new())
    }

    /// Parses the further members as a type.
    ///
    /// # Errors
    /// If a member that `E` needs is missing or malformed.
    pub fn typed<E: DeserializeOwned>(self) -> Result<ErrorBody<E>, serde_json::Error> {
        let extra = serde_json::from_value(Value::Object(self.extra))?;
        Ok(ErrorBody { hint: self.hint, code: self.code, detail: self.detail, extra })
    }
}

impl<E> ErrorBody<E> {
    /// An error with further members.
    pub fn with(code: ErrorCode, extra: E) -> Self {
        Self { hint: Cow::Borrowed(code.hint()), code, detail: None, extra }
    }

    /// Adds the detail.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }
}

macro_rules! error_codes {
    ($($number:literal, $status:literal, $name:ident, $hint:literal;)*) => {
        impl ErrorCode {
            $(
                #[doc = concat!("HTTP ", $status, ". ", $hint)]
                pub const $name: Self = Self($number);
            )*
        }

        static TABLE: &[Entry] = &[
            $(Entry { number: $number, status: $status, name: stringify!($name), hint: $hint },)*
        ];
    };
}

error_codes! {
    0, 200, NONE, "No error.";
    20, 405, GENERIC_METHOD_INVALID, "The HTTP method used is invalid for this endpoint.";
    21, 404, GENERIC_ENDPOINT_UNKNOWN, "There is no endpoint defined for the URL provided by the client.";
    22, 400, GENERIC_JSON_INVALID, "The JSON in the client's request was malformed (generic parse error).";
    24, 400, GENERIC_PAYTO_URI_MALFORMED, "The payto:// URI provided by the client is malformed.";
    25, 400, GENERIC_PARAMETER_MISSING, "A required parameter in the request was missing.";
    26, 400, GENERIC_PARAMETER_MALFORMED, "A parameter in the request was malformed.";
    27, 400, GENERIC_RESERVE_PUB_MALFORMED, "The reserve public key given as part of a /reserves/ endpoint was malformed.";
    30, 400, GENERIC_CURRENCY_MISMATCH, "The currencies involved in the operation do not match.";
    31, 414, GENERIC_URI_TOO_LONG, "The URI is longer than the longest URI the HTTP server is willing to parse.";
    32, 413, GENERIC_UPLOAD_EXCEEDS_LIMIT, "The body is larger than the server is willing to accept.";
    44, 403, GENERIC_FORBIDDEN, "The client may not do this.";
    50, 500, GENERIC_DB_SETUP_FAILED, "The server has no usable database.";
    51, 500, GENERIC_DB_START_FAILED, "The server could not begin a database transaction.";
    52, 500, GENERIC_DB_STORE_FAILED, "The server could not write to its database.";
    53, 500, GENERIC_DB_FETCH_FAILED, "The server could not read from its database.";
    54, 500, GENERIC_DB_COMMIT_FAILED, "The server could not commit a database transaction.";
    55, 500, GENERIC_DB_SOFT_FAILURE, "The server's database transaction kept failing on conflicts with others; try again later.";
    56, 500, GENERIC_DB_INVARIANT_FAILURE, "The server's database content is inconsistent.";
    60, 500, GENERIC_INTERNAL_INVARIANT_FAILURE, "The server found an internal inconsistency.";
    70, 500, GENERIC_PARSER_OUT_OF_MEMORY, "The server had not enough memory to parse the request.";
    71, 500, GENERIC_ALLOCATION_FAILURE, "The server had not enough memory for the request.";
    72, 500, GENERIC_JSON_ALLOCATION_FAILURE, "The server had not enough memory to build its answer.";
    1000, 500, EXCHANGE_GENERIC_BAD_CONFIGURATION, "The exchange is not properly configured for this operation.";
    1001, 404, EXCHANGE_GENERIC_OPERATION_UNKNOWN, "Operation specified unknown for this endpoint.";
    1002, 404, EXCHANGE_GENERIC_WRONG_NUMBER_OF_SEGMENTS, "The number of segments included in the URI does not match the number of segments expected by the endpoint.";
    1003, 409, EXCHANGE_GENERIC_COIN_CONFLICTING_DENOMINATION_KEY, "The same coin was already used with a different denomination previously.";
    1004, 400, EXCHANGE_GENERIC_COINS_INVALID_COIN_PUB, "The public key of given to a \"/coins/\" endpoint of the exchange was malformed.";
    1005, 404, EXCHANGE_GENERIC_DENOMINATION_KEY_UNKNOWN, "The exchange is not aware of the denomination key the wallet requested for the operation.";
    1006, 403, EXCHANGE_DENOMINATION_SIGNATURE_INVALID, "The signature of the denomination key over the coin is not valid.";
    1007, 503, EXCHANGE_GENERIC_KEYS_MISSING, "The exchange has no usable keys at this time.";
    1008, 410, EXCHANGE_GENERIC_DENOMINATION_VALIDITY_IN_FUTURE, "Validity period of the denomination lies in the future.";
    1009, 410, EXCHANGE_GENERIC_DENOMINATION_EXPIRED, "The denomination key has expired for this operation.";
    1010, 410, EXCHANGE_GENERIC_DENOMINATION_REVOKED, "Denomination key of the coin has been revoked.";
    1012, 409, EXCHANGE_GENERIC_INSUFFICIENT_FUNDS, "The respective coin did not have sufficient residual value for the operation.  The \"history\" in this response provides the \"residual_value\" of the coin, which may be less than its \"original_value\".";
    1015, 409, EXCHANGE_GENERIC_COIN_CONFLICTING_AGE_HASH, "The same coin was already used with a different age commitment previously.";
    1016, 404, EXCHANGE_GENERIC_INVALID_DENOMINATION_CIPHER_FOR_OPERATION, "The cipher of the denomination does not permit this operation.";
    1017, 400, EXCHANGE_GENERIC_CIPHER_MISMATCH, "The provided arguments for the operation use inconsistent ciphers.";
    1018, 400, EXCHANGE_GENERIC_NEW_DENOMS_ARRAY_SIZE_EXCESSIVE, "The number of fresh coins is zero or too large.";
    1020, 400, EXCHANGE_GENERIC_CLOCK_SKEW, "The time stamp of the request is too far from the time of the exchange.";
    1021, 400, EXCHANGE_GENERIC_AMOUNT_EXCEEDS_DENOMINATION_VALUE, "The specified amount for the coin is higher than the value of the denomination of the coin.";
    1022, 500, EXCHANGE_GENERIC_GLOBAL_FEES_MISSING, "The exchange has no global fees for this time.";
    1023, 500, EXCHANGE_GENERIC_WIRE_FEES_MISSING, "The exchange has no wire fees for this time.";
    1024, 400, EXCHANGE_GENERIC_PURSE_PUB_MALFORMED, "The purse public key was malformed.";
    1025, 404, EXCHANGE_GENERIC_PURSE_UNKNOWN, "The purse is unknown.";
    1026, 410, EXCHANGE_GENERIC_PURSE_EXPIRED, "The purse has expired.";
    1027, 404, EXCHANGE_GENERIC_RESERVE_UNKNOWN, "The exchange has no information about the \"reserve_pub\" that was given.";
    1028, 451, EXCHANGE_GENERIC_KYC_REQUIRED, "The exchange is not allowed to proceed with the operation until the client has satisfied a KYC check.";
    1029, 400, EXCHANGE_PURSE_DEPOSIT_COIN_CONFLICTING_ATTEST_VS_AGE_COMMITMENT, "Exactly one of age commitment and attestation was given for a coin.";
    1030, 400, EXCHANGE_PURSE_DEPOSIT_COIN_AGE_ATTESTATION_FAILURE, "The age attestation of a coin is not valid.";
    1031, 410, EXCHANGE_GENERIC_PURSE_DELETED, "The purse was deleted.";
    1100, 404, EXCHANGE_DEPOSITS_GET_NOT_FOUND, "The exchange did not find information about the specified transaction in the database.";
    1101, 400, EXCHANGE_DEPOSITS_GET_INVALID_H_WIRE, "The wire hash of given to a \"/deposits/\" handler was malformed.";
    1102, 400, EXCHANGE_DEPOSITS_GET_INVALID_MERCHANT_PUB, "The merchant key of given to a \"/deposits/\" handler was malformed.";
    1103, 400, EXCHANGE_DEPOSITS_GET_INVALID_H_CONTRACT_TERMS, "The hash of the contract terms given to a \"/deposits/\" handler was malformed.";
    1104, 400, EXCHANGE_DEPOSITS_GET_INVALID_COIN_PUB, "The coin public key of given to a \"/deposits/\" handler was malformed.";
    1106, 403, EXCHANGE_DEPOSITS_GET_MERCHANT_SIGNATURE_INVALID, "The signature of the merchant is invalid.";
    1107, 400, EXCHANGE_DEPOSITS_POLICY_NOT_ACCEPTED, "The policy of the deposit is not known or not accepted.";
    1150, 409, EXCHANGE_WITHDRAW_INSUFFICIENT_FUNDS, "The given reserve does not have sufficient funds to admit the requested withdraw operation at this time.  The response includes the current \"balance\" of the reserve as well as the transaction \"history\" that lead to this balance.";
    1152, 500, EXCHANGE_WITHDRAW_AMOUNT_FEE_OVERFLOW, "Value and fee of the denomination together are too large.";
    1154, 403, EXCHANGE_WITHDRAW_RESERVE_SIGNATURE_INVALID, "The signature of the reserve is not valid.";
    1156, 409, EXCHANGE_GET_RESERVE_HISTORY_ERROR_INSUFFICIENT_BALANCE, "The reserve cannot pay the history fee.";
    1160, 409, EXCHANGE_WITHDRAW_NONCE_REUSE, "The nonce was already used for another coin.";
    1175, 409, EXCHANGE_WITHDRAW_BATCH_IDEMPOTENT_PLANCHET, "Some, but not all, of the planchets were withdrawn before.";
    1205, 403, EXCHANGE_DEPOSIT_COIN_SIGNATURE_INVALID, "The signature made by the coin over the deposit permission is not valid.";
    1206, 409, EXCHANGE_DEPOSIT_CONFLICTING_CONTRACT, "The coin was already deposited for this contract with different details.";
    1207, 400, EXCHANGE_DEPOSIT_NEGATIVE_VALUE_AFTER_FEE, "The stated value of the coin after the deposit fee is subtracted would be negative.";
    1208, 400, EXCHANGE_DEPOSIT_REFUND_DEADLINE_AFTER_WIRE_DEADLINE, "The stated refund deadline is after the wire deadline.";
    1209, 400, EXCHANGE_DEPOSIT_WIRE_DEADLINE_IS_NEVER, "The stated wire deadline is \"never\", which makes no sense.";
    1250, 404, EXCHANGE_RESERVES_STATUS_UNKNOWN, "The reserve balance, status or history was requested for a reserve which is not known to the exchange.";
    1251, 403, EXCHANGE_RESERVES_STATUS_BAD_SIGNATURE, "The reserve status was requested with a bad signature.";
    1252, 403, EXCHANGE_RESERVES_HISTORY_BAD_SIGNATURE, "The reserve history was requested with a bad signature.";
    1302, 400, EXCHANGE_MELT_FEES_EXCEED_CONTRIBUTION, "The amount melted does not cover the melt fee.";
    1303, 403, EXCHANGE_MELT_COIN_SIGNATURE_INVALID, "The signature made by the coin over the melt is not valid.";
    1305, 400, EXCHANGE_MELT_COIN_EXPIRED_NO_ZOMBIE, "The denomination of the coin expired and no recoup gave the coin value since.";
    1353, 409, EXCHANGE_REFRESHES_REVEAL_COMMITMENT_VIOLATION, "The revealed values do not fit the refresh commitment.";
    1355, 404, EXCHANGE_REFRESHES_REVEAL_SESSION_UNKNOWN, "There was no melt with this refresh commitment.";
    1356, 400, EXCHANGE_REFRESHES_REVEAL_CNC_TRANSFER_ARRAY_SIZE_INVALID, "The number of transfer private keys is wrong.";
    1358, 400, EXCHANGE_REFRESHES_REVEAL_NEW_DENOMS_ARRAY_SIZE_MISMATCH, "The arrays for the fresh coins differ in length.";
    1359, 500, EXCHANGE_REFRESHES_REVEAL_COST_CALCULATION_OVERFLOW, "The total cost of the fresh coins is too large.";
    1360, 400, EXCHANGE_REFRESHES_REVEAL_AMOUNT_INSUFFICIENT, "The amount melted does not cover the fresh coins.";
    1361, 403, EXCHANGE_REFRESHES_REVEAL_LINK_SIGNATURE_INVALID, "A link signature is not valid.";
    1362, 400, EXCHANGE_REFRESHES_REVEAL_INVALID_RCH, "The refresh commitment in the path was malformed.";
    1363, 400, EXCHANGE_REFRESHES_REVEAL_OPERATION_INVALID, "The operation on the refresh session is unknown.";
    1365, 400, EXCHANGE_REFRESHES_REVEAL_AGE_RESTRICTION_COMMITMENT_INVALID, "The age commitment does not fit the melted coin.";
    1400, 404, EXCHANGE_LINK_COIN_UNKNOWN, "The coin is unknown or was never refreshed.";
    1450, 400, EXCHANGE_TRANSFERS_GET_WTID_MALFORMED, "The public key of given to a /transfers/ handler was malformed.";
    1451, 404, EXCHANGE_TRANSFERS_GET_WTID_NOT_FOUND, "There is no wire transfer with this identifier.";
    1452, 500, EXCHANGE_TRANSFERS_GET_WIRE_FEE_NOT_FOUND, "The exchange does not know the fee of this wire transfer.";
    1453, 500, EXCHANGE_TRANSFERS_GET_WIRE_FEE_INCONSISTENT, "The wire fee is above the total of the wire transfer.";
    1475, 400, EXCHANGE_PURSES_INVALID_WAIT_TARGET, "The event to wait for is unknown.";
    1500, 404, EXCHANGE_REFUND_COIN_NOT_FOUND, "The exchange does not know the coin that was to be refunded.";
    1501, 409, EXCHANGE_REFUND_CONFLICT_DEPOSIT_INSUFFICIENT, "We could not process the refund request as the coin's transaction history does not permit the requested refund because then refunds would exceed the deposit amount.  The \"history\" in the response proves this.";
    1502, 404, EXCHANGE_REFUND_DEPOSIT_NOT_FOUND, "The exchange knows about the coin we were asked to refund, but not about the specific /deposit operation.  Hence, we cannot issue a refund (as we do not know if this merchant public key is authorized to do a refund).";
    1503, 410, EXCHANGE_REFUND_MERCHANT_ALREADY_PAID, "The exchange can no longer refund the customer/coin as the money was already transferred (paid out) to the merchant. (It should be past the refund deadline.)";
    1505, 400, EXCHANGE_REFUND_FEE_ABOVE_AMOUNT, "The refund does not cover the refund fee.";
    1506, 403, EXCHANGE_REFUND_MERCHANT_SIGNATURE_INVALID, "The signature of the merchant is invalid.";
    1510, 424, EXCHANGE_REFUND_INCONSISTENT_AMOUNT, "Conflicting refund granted before with different amount but same refund transaction ID.";
    1550, 403, EXCHANGE_RECOUP_SIGNATURE_INVALID, "The signature made by the coin over the recoup is not valid.";
    1551, 404, EXCHANGE_RECOUP_WITHDRAW_NOT_FOUND, "The exchange knows no withdrawal of this coin.";
    1553, 500, EXCHANGE_RECOUP_BLINDING_FAILED, "The coin could not be blinded again.";
    1555, 410, EXCHANGE_RECOUP_NOT_ELIGIBLE, "The coin's denomination has not been revoked yet.";
    1575, 403, EXCHANGE_RECOUP_REFRESH_SIGNATURE_INVALID, "The signature made by the coin over the recoup is not valid.";
    1576, 404, EXCHANGE_RECOUP_REFRESH_MELT_NOT_FOUND, "The exchange knows no melt that gave this coin.";
    1578, 500, EXCHANGE_RECOUP_REFRESH_BLINDING_FAILED, "The coin could not be blinded again.";
    1580, 410, EXCHANGE_RECOUP_REFRESH_NOT_ELIGIBLE, "The coin's denomination has not been revoked yet.";
    1651, 500, EXCHANGE_WIRE_NO_ACCOUNTS_CONFIGURED, "The exchange has no bank account.";
    1652, 500, EXCHANGE_WIRE_INVALID_PAYTO_CONFIGURED, "The exchange has a bank account without a recognizable wire method.";
    1653, 500, EXCHANGE_WIRE_FEES_NOT_CONFIGURED, "The exchange has no fees for a wire method.";
    1675, 409, EXCHANGE_RESERVES_PURSE_CREATE_CONFLICTING_META_DATA, "The purse was previously created with different meta data.";
    1676, 409, EXCHANGE_RESERVES_PURSE_MERGE_CONFLICTING_META_DATA, "The purse was already merged into another reserve.";
    1677, 409, EXCHANGE_RESERVES_PURSE_CREATE_INSUFFICIENT_FUNDS, "The reserve has insufficient funds to create another purse.";
    1678, 400, EXCHANGE_RESERVES_PURSE_FEE_TOO_LOW, "The purse fee specified for the request is lower than the purse fee charged by the exchange at this time.";
    1679, 409, EXCHANGE_PURSE_DELETE_ALREADY_DECIDED, "The purse was already paid, expired or deleted.";
    1680, 403, EXCHANGE_PURSE_DELETE_SIGNATURE_INVALID, "The signature to delete the purse is not valid.";
    1700, 502, EXCHANGE_DENOMINATION_HELPER_UNAVAILABLE, "The keeper of the denomination keys is not available.";
    1701, 500, EXCHANGE_DENOMINATION_HELPER_BUG, "The keeper of the denomination keys gave an unexpected answer.";
    1702, 400, EXCHANGE_DENOMINATION_HELPER_TOO_EARLY, "The denomination key may not sign yet.";
    1750, 502, EXCHANGE_SIGNKEY_HELPER_UNAVAILABLE, "The keeper of the signing keys is not available.";
    1751, 500, EXCHANGE_SIGNKEY_HELPER_BUG, "The keeper of the signing keys gave an unexpected answer.";
    1752, 400, EXCHANGE_SIGNKEY_HELPER_TOO_EARLY, "The signing key may not sign yet.";
    1775, 400, EXCHANGE_RESERVES_PURSE_EXPIRATION_BEFORE_NOW, "The purse expiration time is in the past.";
    1776, 400, EXCHANGE_RESERVES_PURSE_EXPIRATION_IS_NEVER, "The purse expiration time is \"never\".";
    1777, 403, EXCHANGE_RESERVES_PURSE_MERGE_SIGNATURE_INVALID, "The signature using the merge key is invalid.";
    1778, 403, EXCHANGE_RESERVES_RESERVE_MERGE_SIGNATURE_INVALID, "The signature using the reserve key is invalid.";
    1785, 403, EXCHANGE_RESERVES_OPEN_BAD_SIGNATURE, "The signature to open the reserve is not valid.";
    1786, 403, EXCHANGE_RESERVES_CLOSE_BAD_SIGNATURE, "The signature to close the reserve is not valid.";
    1787, 403, EXCHANGE_RESERVES_ATTEST_BAD_SIGNATURE, "The signature to ask for an attestation is not valid.";
    1788, 409, EXCHANGE_RESERVES_CLOSE_NO_TARGET_ACCOUNT, "There is no account to pay the rest of the reserve to.";
    1789, 409, EXCHANGE_RESERVES_OPEN_INSUFFICIENT_FUNDS, "The reserve has insufficient funds to stay open.";
    1800, 404, EXCHANGE_MANAGEMENT_AUDITOR_NOT_FOUND, "The auditor that was supposed to be disabled is unknown to this exchange.";
    1801, 409, EXCHANGE_MANAGEMENT_AUDITOR_MORE_RECENT_PRESENT, "The exchange has a more recent change of this auditor.";
    1802, 403, EXCHANGE_MANAGEMENT_AUDITOR_ADD_SIGNATURE_INVALID, "The signature to add or enable the auditor does not validate.";
    1803, 403, EXCHANGE_MANAGEMENT_AUDITOR_DEL_SIGNATURE_INVALID, "The signature to disable the auditor does not validate.";
    1804, 403, EXCHANGE_MANAGEMENT_DENOMINATION_REVOKE_SIGNATURE_INVALID, "The signature to revoke the denomination does not validate.";
    1805, 403, EXCHANGE_MANAGEMENT_SIGNKEY_REVOKE_SIGNATURE_INVALID, "The signature to revoke the online signing key does not validate.";
    1806, 409, EXCHANGE_MANAGEMENT_WIRE_MORE_RECENT_PRESENT, "The exchange has a more recent change of this account.";
    1807, 404, EXCHANGE_MANAGEMENT_KEYS_SIGNKEY_UNKNOWN, "The signing key is unknown to the exchange.";
    1808, 403, EXCHANGE_MANAGEMENT_WIRE_DETAILS_SIGNATURE_INVALID, "The signature over the wire account does not validate.";
    1809, 403, EXCHANGE_MANAGEMENT_WIRE_ADD_SIGNATURE_INVALID, "The signature to add the wire account does not validate.";
    1810, 403, EXCHANGE_MANAGEMENT_WIRE_DEL_SIGNATURE_INVALID, "The signature to disable the wire account does not validate.";
    1811, 404, EXCHANGE_MANAGEMENT_WIRE_NOT_FOUND, "The wire account to be disabled is unknown to the exchange.";
    1812, 403, EXCHANGE_MANAGEMENT_WIRE_FEE_SIGNATURE_INVALID, "The signature to affirm wire fees does not validate.";
    1813, 409, EXCHANGE_MANAGEMENT_WIRE_FEE_MISMATCH, "The signature conflicts with a previous signature affirming different fees.";
    1814, 403, EXCHANGE_MANAGEMENT_KEYS_DENOMKEY_ADD_SIGNATURE_INVALID, "The signature over a denomination key does not validate.";
    1815, 403, EXCHANGE_MANAGEMENT_KEYS_SIGNKEY_ADD_SIGNATURE_INVALID, "The signature over a signing key does not validate.";
    1816, 409, EXCHANGE_MANAGEMENT_GLOBAL_FEE_MISMATCH, "The signature conflicts with a previous one affirming different global fees.";
    1817, 403, EXCHANGE_MANAGEMENT_GLOBAL_FEE_SIGNATURE_INVALID, "The signature affirming the fee structure is invalid.";
    1818, 403, EXCHANGE_MANAGEMENT_DRAIN_PROFITS_SIGNATURE_INVALID, "The signature to drain profits does not validate.";
    1850, 409, EXCHANGE_PURSE_CREATE_CONFLICTING_META_DATA, "The purse was previously created with different meta data.";
    1853, 400, EXCHANGE_PURSE_CREATE_EXPIRATION_BEFORE_NOW, "The purse expiration time is in the past.";
    1854, 400, EXCHANGE_PURSE_CREATE_EXPIRATION_IS_NEVER, "The purse expiration time is \"never\".";
    1855, 403, EXCHANGE_PURSE_CREATE_SIGNATURE_INVALID, "The purse signature over the purse meta data is invalid.";
    1856, 403, EXCHANGE_PURSE_ECONTRACT_SIGNATURE_INVALID, "The signature over the encrypted contract is invalid.";
    1858, 409, EXCHANGE_PURSE_DEPOSIT_CONFLICTING_META_DATA, "The coin was already deposited into the purse with a different signature.";
    1859, 409, EXCHANGE_PURSE_ECONTRACT_CONFLICTING_META_DATA, "The purse already has another encrypted contract.";
    1860, 400, EXCHANGE_CREATE_PURSE_NEGATIVE_VALUE_AFTER_FEE, "The deposited amount is less than the purse fee.";
    1876, 403, EXCHANGE_PURSE_MERGE_INVALID_MERGE_SIGNATURE, "The signature using the merge key is invalid.";
    1877, 403, EXCHANGE_PURSE_MERGE_INVALID_RESERVE_SIGNATURE, "The signature using the reserve key is invalid.";
    1878, 402, EXCHANGE_PURSE_NOT_FULL, "The purse is not fully paid yet.";
    1880, 404, EXCHANGE_MERGE_PURSE_PARTNER_UNKNOWN, "The exchange of the target reserve is not a partner.";
    1900, 403, EXCHANGE_AUDITORS_AUDITOR_SIGNATURE_INVALID, "The signature of the auditor does not validate.";
    1901, 412, EXCHANGE_AUDITORS_AUDITOR_UNKNOWN, "The auditor is unknown to the exchange.";
    1902, 410, EXCHANGE_AUDITORS_AUDITOR_INACTIVE, "The auditor is no longer used by the exchange.";
    1925, 403, EXCHANGE_KYC_WALLET_SIGNATURE_INVALID, "The signature affirming the wallet's KYC request was invalid.";
    1926, 502, EXCHANGE_KYC_PROOF_BACKEND_INVALID_RESPONSE, "The exchange received an unexpected malformed response from its KYC backend.";
    1927, 502, EXCHANGE_KYC_PROOF_BACKEND_ERROR, "The KYC provider reported an error.";
    1928, 403, EXCHANGE_KYC_PROOF_BACKEND_AUTHORIZATION_FAILED, "The KYC provider refused the authorization.";
    1929, 404, EXCHANGE_KYC_PROOF_REQUEST_UNKNOWN, "There is no KYC process for this account.";
    1930, 403, EXCHANGE_KYC_CHECK_AUTHORIZATION_FAILED, "The KYC requirement belongs to another account.";
    1931, 404, EXCHANGE_KYC_GENERIC_LOGIC_UNKNOWN, "The request used a logic specifier that is not known to the exchange.";
    1932, 500, EXCHANGE_KYC_GENERIC_LOGIC_GONE, "A KYC check that is required is no longer configured.";
    1933, 500, EXCHANGE_KYC_GENERIC_LOGIC_BUG, "The KYC logic failed.";
    1934, 511, EXCHANGE_KYC_GENERIC_PROVIDER_ACCESS_REFUSED, "The KYC provider refused access.";
    1935, 504, EXCHANGE_KYC_GENERIC_PROVIDER_TIMEOUT, "The KYC provider did not answer in time.";
    1936, 502, EXCHANGE_KYC_GENERIC_PROVIDER_UNEXPECTED_REPLY, "The KYC provider gave an unexpected answer.";
    1937, 503, EXCHANGE_KYC_GENERIC_PROVIDER_RATE_LIMIT_EXCEEDED, "The KYC provider limits the rate of requests.";
    1938, 401, EXCHANGE_KYC_WEBHOOK_UNAUTHORIZED, "The KYC provider did not authorize itself.";
    1941, 409, EXCHANGE_KYC_FORM_ALREADY_UPLOADED, "The form was submitted already, and waits for a decision.";
    1950, 404, EXCHANGE_CONTRACTS_UNKNOWN, "There is no contract for this key.";
    1951, 400, EXCHANGE_CONTRACTS_INVALID_CONTRACT_PUB, "The URL does not encode a valid exchange public key in its path.";
    1975, 403, EXCHANGE_PURSE_DEPOSIT_COIN_SIGNATURE_INVALID, "A coin signature for a deposit into the purse is invalid.";
    1976, 410, EXCHANGE_PURSE_DEPOSIT_DECIDED_ALREADY, "It is too late to deposit into the purse.";
    2000, 404, MERCHANT_GENERIC_INSTANCE_UNKNOWN, "There is no such instance.";
    2001, 500, MERCHANT_GENERIC_HOLE_IN_WIRE_FEE_STRUCTURE, "The exchange has no wire fee for this time.";
    2005, 404, MERCHANT_GENERIC_ORDER_UNKNOWN, "There is no such order.";
    2006, 404, MERCHANT_GENERIC_PRODUCT_UNKNOWN, "There is no such product.";
    2007, 404, MERCHANT_GENERIC_TIP_ID_UNKNOWN, "There is no such tip.";
    2008, 500, MERCHANT_GENERIC_DB_CONTRACT_CONTENT_INVALID, "The stored contract is not valid.";
    2009, 403, MERCHANT_GENERIC_CONTRACT_HASH_DOES_NOT_MATCH_ORDER, "The contract hash is not that of the order.";
    2010, 502, MERCHANT_GENERIC_EXCHANGE_KEYS_FAILURE, "The keys of the exchange could not be obtained.";
    2011, 504, MERCHANT_GENERIC_EXCHANGE_TIMEOUT, "The exchange did not answer in time.";
    2012, 500, MERCHANT_GENERIC_EXCHANGE_CONNECT_FAILURE, "The exchange could not be reached.";
    2013, 502, MERCHANT_GENERIC_EXCHANGE_REPLY_MALFORMED, "The exchange gave a malformed answer.";
    2014, 502, MERCHANT_GENERIC_EXCHANGE_UNEXPECTED_STATUS, "The exchange gave an unexpected answer.";
    2015, 401, MERCHANT_GENERIC_UNAUTHORIZED, "The access token is missing or wrong.";
    2016, 404, MERCHANT_GENERIC_INSTANCE_DELETED, "The instance was deleted.";
    2017, 404, MERCHANT_GENERIC_TRANSFER_UNKNOWN, "There is no such transfer.";
    2100, 200, MERCHANT_GET_ORDERS_EXCHANGE_TRACKING_FAILURE, "The exchange did not say which transfer pays for the coin.";
    2105, 403, MERCHANT_GET_ORDERS_ID_INVALID_TOKEN, "The claim token is wrong.";
    2106, 403, MERCHANT_GET_ORDERS_ID_INVALID_CONTRACT_HASH, "The contract hash is wrong.";
    2150, 409, MERCHANT_POST_ORDERS_ID_PAY_INSUFFICIENT_FUNDS, "The exchange refused a coin, because it was spent before.";
    2151, 400, MERCHANT_POST_ORDERS_ID_PAY_DENOMINATION_KEY_NOT_FOUND, "The exchange does not know the denomination of a coin.";
    2152, 400, MERCHANT_POST_ORDERS_ID_PAY_DENOMINATION_KEY_AUDITOR_FAILURE, "The exchange is not one that the shop accepts.";
    2153, 500, MERCHANT_POST_ORDERS_ID_PAY_AMOUNT_OVERFLOW, "The amounts are too large.";
    2154, 400, MERCHANT_POST_ORDERS_ID_PAY_FEES_EXCEED_PAYMENT, "A coin's contribution is less than its deposit fee.";
    2155, 406, MERCHANT_POST_ORDERS_ID_PAY_INSUFFICIENT_DUE_TO_FEES, "The coins pay the amount, but not their fees.";
    2156, 406, MERCHANT_POST_ORDERS_ID_PAY_PAYMENT_INSUFFICIENT, "The coins do not pay the amount.";
    2157, 403, MERCHANT_POST_ORDERS_ID_PAY_COIN_SIGNATURE_INVALID, "The signature of a coin is invalid.";
    2158, 500, MERCHANT_POST_ORDERS_ID_PAY_EXCHANGE_LOOKUP_FAILED, "The exchange could not be looked up.";
    2159, 500, MERCHANT_POST_ORDERS_ID_PAY_REFUND_DEADLINE_PAST_WIRE_TRANSFER_DEADLINE, "The refund deadline is after the wire transfer deadline.";
    2160, 409, MERCHANT_POST_ORDERS_ID_PAY_ALREADY_PAID, "The order was paid with other coins.";
    2161, 410, MERCHANT_POST_ORDERS_ID_PAY_OFFER_EXPIRED, "The order can no longer be paid.";
    2163, 500, MERCHANT_POST_ORDERS_ID_PAY_WIRE_HASH_UNKNOWN, "The account of the contract is unknown.";
    2165, 410, MERCHANT_POST_ORDERS_ID_PAY_DENOMINATION_DEPOSIT_EXPIRED, "The denomination of a coin can no longer be deposited.";
    2167, 402, MERCHANT_POST_ORDERS_ID_PAY_REDUCED_BY_REFUNDS, "Refunds reduced what was paid.";
    2170, 502, MERCHANT_POST_ORDERS_ID_PAY_EXCHANGE_FAILED, "The exchange refused a coin.";
    2171, 400, MERCHANT_POST_ORDERS_ID_PAY_AGE_COMMITMENT_MISSING, "The age commitment of a coin is missing.";
    2172, 400, MERCHANT_POST_ORDERS_ID_PAY_AGE_COMMITMENT_SIZE_MISMATCH, "The age commitment of a coin has another number of keys.";
    2173, 400, MERCHANT_POST_ORDERS_ID_PAY_AGE_VERIFICATION_FAILED, "The owner of a coin is not old enough.";
    2174, 400, MERCHANT_POST_ORDERS_ID_PAY_AGE_COMMITMENT_HASH_MISSING, "The hash of a coin's age commitment is missing.";
    2200, 400, MERCHANT_POST_ORDERS_ID_PAID_CONTRACT_HASH_MISMATCH, "The contract hash is not that of the order.";
    2201, 403, MERCHANT_POST_ORDERS_ID_PAID_COIN_SIGNATURE_INVALID, "The receipt is not signed by the shop.";
    2253, 404, MERCHANT_POST_ORDERS_ID_ABORT_CONTRACT_NOT_FOUND, "There is no such contract.";
    2254, 412, MERCHANT_POST_ORDERS_ID_ABORT_REFUND_REFUSED_PAYMENT_COMPLETE, "The order is paid.";
    2255, 403, MERCHANT_POST_ORDERS_ID_ABORT_CONTRACT_HASH_MISMATCH, "The contract hash is not that of the order.";
    2256, 400, MERCHANT_POST_ORDERS_ID_ABORT_COINS_ARRAY_EMPTY, "There are no coins.";
    2300, 404, MERCHANT_POST_ORDERS_ID_CLAIM_NOT_FOUND, "There is no such order, or the claim token is wrong.";
    2301, 409, MERCHANT_POST_ORDERS_ID_CLAIM_ALREADY_CLAIMED, "Another wallet has claimed the order.";
    2403, 502, MERCHANT_TIP_PICKUP_EXCHANGE_ERROR, "The exchange did not give the coins of the tip.";
    2404, 500, MERCHANT_TIP_PICKUP_SUMMATION_FAILED, "The amounts of the coins are too large.";
    2405, 410, MERCHANT_TIP_PICKUP_HAS_EXPIRED, "The tip can no longer be picked up.";
    2406, 400, MERCHANT_TIP_PICKUP_AMOUNT_EXCEEDS_TIP_REMAINING, "The coins are worth more than what is left of the tip.";
    2407, 409, MERCHANT_TIP_PICKUP_DENOMINATION_UNKNOWN, "The exchange does not offer the denomination of a coin.";
    2500, 404, MERCHANT_PRIVATE_POST_ORDERS_NO_WIRE_METHOD, "The instance has no account for this wire method.";
    2502, 400, MERCHANT_PRIVATE_POST_ORDERS_PROPOSAL_PARSE_ERROR, "The order is malformed.";
    2503, 409, MERCHANT_PRIVATE_POST_ORDERS_ALREADY_EXISTS, "There is another order with this id.";
    2504, 400, MERCHANT_PRIVATE_POST_ORDERS_REFUND_AFTER_WIRE_DEADLINE, "The refund deadline is after the wire transfer deadline.";
    2505, 400, MERCHANT_PRIVATE_POST_ORDERS_DELIVERY_DATE_IN_PAST, "The delivery date is in the past.";
    2506, 400, MERCHANT_PRIVATE_POST_ORDERS_WIRE_DEADLINE_IS_NEVER, "The wire transfer deadline must not be \"never\".";
    2510, 400, MERCHANT_PRIVATE_PATCH_ORDERS_ID_FORGET_PATH_SYNTAX_INCORRECT, "A path must look like $.products[0].image or $.products[*].image.";
    2511, 409, MERCHANT_PRIVATE_PATCH_ORDERS_ID_FORGET_PATH_NOT_FORGETTABLE, "The contract does not mark this member as forgettable.";
    2520, 409, MERCHANT_PRIVATE_DELETE_ORDERS_AWAITING_PAYMENT, "The order can still be paid.";
    2521, 409, MERCHANT_PRIVATE_DELETE_ORDERS_ALREADY_PAID, "The order is paid.";
    2530, 409, MERCHANT_PRIVATE_POST_ORDERS_ID_REFUND_INCONSISTENT_AMOUNT, "The refund is more than was paid.";
    2531, 409, MERCHANT_PRIVATE_POST_ORDERS_ID_REFUND_ORDER_UNPAID, "The order is not paid.";
    2532, 403, MERCHANT_PRIVATE_POST_ORDERS_ID_REFUND_NOT_ALLOWED_BY_CONTRACT, "The contract does not allow refunds, or no longer.";
    2550, 502, MERCHANT_PRIVATE_POST_TRANSFERS_EXCHANGE_UNKNOWN, "The exchange does not know the transfer.";
    2551, 502, MERCHANT_PRIVATE_POST_TRANSFERS_REQUEST_ERROR, "The exchange could not be asked about the transfer.";
    2552, 409, MERCHANT_PRIVATE_POST_TRANSFERS_CONFLICTING_TRANSFERS, "The exchange says that it paid another amount.";
    2553, 409, MERCHANT_PRIVATE_POST_TRANSFERS_CONFLICTING_REPORTS, "What the exchange says about a coin contradicts what it confirmed before.";
    2554, 502, MERCHANT_PRIVATE_POST_TRANSFERS_BAD_WIRE_FEE, "The exchange took a higher wire fee than it has published.";
    2555, 404, MERCHANT_PRIVATE_POST_TRANSFERS_ACCOUNT_NOT_FOUND, "The instance has no such account.";
    2556, 409, MERCHANT_PRIVATE_DELETE_TRANSFERS_ALREADY_CONFIRMED, "The transfer was verified, so it cannot be deleted.";
    2557, 409, MERCHANT_PRIVATE_POST_TRANSFERS_CONFLICTING_SUBMISSION, "The transfer was reported before with another amount or account.";
    2600, 409, MERCHANT_PRIVATE_POST_INSTANCES_ALREADY_EXISTS, "There is another instance with this id.";
    2601, 400, MERCHANT_PRIVATE_POST_INSTANCES_BAD_AUTH, "The authentication is malformed.";
    2602, 400, MERCHANT_PRIVATE_POST_INSTANCE_AUTH_BAD_AUTH, "The authentication is malformed.";
    2603, 409, MERCHANT_PRIVATE_POST_INSTANCES_PURGE_REQUIRED, "A deleted instance has this id: purge it first.";
    2625, 409, MERCHANT_PRIVATE_PATCH_INSTANCES_PURGE_REQUIRED, "The instance was deleted: purge it first.";
    2650, 409, MERCHANT_PRIVATE_POST_PRODUCTS_CONFLICT_PRODUCT_EXISTS, "There is another product with this id.";
    2660, 409, MERCHANT_PRIVATE_PATCH_PRODUCTS_TOTAL_LOST_REDUCED, "The number of lost units cannot shrink.";
    2661, 400, MERCHANT_PRIVATE_PATCH_PRODUCTS_TOTAL_LOST_EXCEEDS_STOCKS, "More units would be lost than there are.";
    2662, 409, MERCHANT_PRIVATE_PATCH_PRODUCTS_TOTAL_STOCKED_REDUCED, "The number of units that were ever in stock cannot shrink.";
    2663, 409, MERCHANT_PRIVATE_PATCH_PRODUCTS_TOTAL_SOLD_REDUCED, "The number of sold units cannot shrink.";
    2670, 410, MERCHANT_PRIVATE_POST_PRODUCTS_LOCK_INSUFFICIENT_STOCKS, "There is not enough in stock.";
    2680, 409, MERCHANT_PRIVATE_DELETE_PRODUCTS_CONFLICTING_LOCK, "Carts or unpaid orders hold units of the product.";
    2700, 409, MERCHANT_PRIVATE_POST_RESERVES_UNSUPPORTED_WIRE_METHOD, "The exchange has no account for this wire method.";
    2710, 404, MERCHANT_PRIVATE_GET_RESERVES_ID_RESERVE_UNKNOWN, "There is no such reserve.";
    2750, 410, MERCHANT_PRIVATE_POST_TIP_AUTHORIZE_RESERVE_EXPIRED, "The reserve has expired.";
    2751, 503, MERCHANT_PRIVATE_POST_TIP_AUTHORIZE_RESERVE_UNKNOWN, "There is no such reserve.";
    2752, 412, MERCHANT_PRIVATE_POST_TIP_AUTHORIZE_INSUFFICIENT_FUNDS, "No reserve has enough left for the tip.";
    2753, 503, MERCHANT_PRIVATE_POST_TIP_AUTHORIZE_RESERVE_NOT_FOUND, "There is no reserve that could pay the tip.";
    2800, 200, MERCHANT_GET_ORDERS_ID_DEPOSIT_TOTAL_FAILED, "The total of the deposits could not be computed.";
    3100, 403, AUDITOR_DEPOSIT_CONFIRMATION_SIGNATURE_INVALID, "The signature of the exchange on the deposit confirmation, or of its master key on the signing key, is invalid or has expired.";
    3101, 410, AUDITOR_EXCHANGE_SIGNING_KEY_REVOKED, "The exchange has revoked the signing key of the deposit confirmation.";
    5101, 400, BANK_SAME_ACCOUNT, "Both sides of the transfer are the same account.";
    5102, 409, BANK_UNALLOWED_DEBIT, "The account cannot be debited that far.";
    5103, 400, BANK_NEGATIVE_NUMBER_AMOUNT, "The amount is negative.";
    5104, 400, BANK_NUMBER_TOO_BIG, "The amount is too big.";
    5105, 403, BANK_LOGIN_FAILED, "The login failed.";
    5106, 404, BANK_UNKNOWN_ACCOUNT, "The bank account referenced in the requested operation was not found.";
    5107, 404, BANK_TRANSACTION_NOT_FOUND, "The withdrawal operation is unknown.";
    5108, 400, BANK_BAD_FORMAT_AMOUNT, "The amount is malformed.";
    5109, 403, BANK_REJECT_NO_RIGHTS, "The client has no rights for this operation.";
    5110, 500, BANK_UNMANAGED_EXCEPTION, "The bank met an unexpected problem.";
    5111, 500, BANK_SOFT_EXCEPTION, "The bank met a passing problem; try again later.";
    5112, 409, BANK_TRANSFER_REQUEST_UID_REUSED, "The request UID for a request to transfer funds has already been used, but with different details for the transfer.";
    5113, 409, BANK_WITHDRAWAL_OPERATION_RESERVE_SELECTION_CONFLICT, "The withdrawal operation already has another reserve or exchange.";
    5114, 409, BANK_DUPLICATE_RESERVE_PUB_SUBJECT, "The wire transfer subject duplicates an existing reserve public key. But wire transfer subjects must be unique.";
    5115, 410, BANK_ANCIENT_TRANSACTION_GONE, "The transaction is too old and no longer known.";
    5116, 409, BANK_ABORT_CONFIRM_CONFLICT, "The withdrawal operation was already confirmed.";
    5117, 409, BANK_CONFIRM_ABORT_CONFLICT, "The withdrawal operation was already aborted.";
    5118, 409, BANK_REGISTER_CONFLICT, "The account exists with another password.";
    5119, 400, BANK_POST_WITHDRAWAL_OPERATION_REQUIRED, "The wallet has not selected an exchange yet.";
    5126, 409, BANK_ACCOUNT_IS_EXCHANGE, "The account is that of an exchange, which needs a reserve key in the subject of the transfer.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_sorted_and_complete() {
        assert!(TABLE.windows(2).all(|pair| pair[0].number < pair[1].number));
        for entry in TABLE {
            assert!((200..600).contains(&entry.status) && !entry.hint.is_empty());
            assert_eq!(ErrorCode::from_name(entry.name).map(ErrorCode::to_u32), Some(entry.number));
        }
    }

    #[test]
    fn unknown_codes_survive() {
        let body: ErrorDetail = serde_json::from_str(r#"{"code":9999,"more":1}"#).unwrap();
        assert_eq!(body.code.to_u32(), 9999);
        assert!(!body.code.is_known());
        assert_eq!(body.code.to_string(), "error 9999");
        assert_eq!(serde_json::to_value(&body).unwrap()["more"], 1);
    }

    #[test]
    fn body_has_no_null_members() {
        let plain = serde_json::to_string(&ErrorDetail::new(ErrorCode::GENERIC_ENDPOINT_UNKNOWN)).unwrap();
        assert_eq!(
            plain,
            r#"{"hint":"There is no endpoint defined for the URL provided by the client.","code":21}"#
        );
        let detailed = ErrorDetail::new(ErrorCode::GENERIC_PARAMETER_MALFORMED).detail("delta");
        assert_eq!(serde_json::to_value(detailed).unwrap()["detail"], "delta");
    }
}
