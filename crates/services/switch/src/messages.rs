//! The JSON bodies of the participant interface (specification chapter 2.4 and 2.9), and its headers.
//!
//! The types borrow from the request where possible: a body of the usual size is parsed without allocating
//! its texts. `Prepare::check` and similar functions check the texts; the types do not.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// The media type of all bodies, with the version that the switch speaks.
pub const CONTENT_TYPE: &str = "application/vnd.interoperability.transfers+json;version=1.1";
/// The media type of bulk transfers.
pub const CONTENT_TYPE_BULK: &str = "application/vnd.interoperability.bulkTransfers+json;version=1.1";
/// Header: the sender's name, required.
pub const SOURCE: &str = "fspiop-source";
/// Header: the receiver's name, required where it is known.
pub const DESTINATION: &str = "fspiop-destination";
/// Header: a JWS over the body and some headers. The switch passes it on.
pub const SIGNATURE: &str = "fspiop-signature";
/// Header: the encrypted elements of the body. The switch passes it on.
pub const ENCRYPTION: &str = "fspiop-encryption";
/// The name of the switch in [`SOURCE`] of callbacks that it writes itself.
pub const SWITCH_NAME: &str = "switch";

/// An amount with its currency: both are texts, the amount with at most four decimals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Money<'a> {
    /// Three capital letters.
    #[serde(borrow)]
    pub currency: Cow<'a, str>,
    /// Up to 18 digits, optionally a point and up to four decimals, without superfluous zeros.
    #[serde(borrow)]
    pub amount: Cow<'a, str>,
}

/// A pair of an extension list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extension<'a> {
    /// 1 to 32 characters.
    #[serde(borrow)]
    pub key: Cow<'a, str>,
    /// 1 to 128 characters.
    #[serde(borrow)]
    pub value: Cow<'a, str>,
}

/// Data that a scheme adds to messages. The switch passes it on unread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtensionList<'a> {
    /// 1 to 16 pairs.
    #[serde(borrow)]
    pub extension: Vec<Extension<'a>>,
}

/// `POST /transfers`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Prepare<'a> {
    /// A UUID in lower case.
    #[serde(borrow)]
    pub transfer_id: Cow<'a, str>,
    /// The payer's participant.
    #[serde(borrow)]
    pub payer_fsp: Cow<'a, str>,
    /// The payee's participant.
    #[serde(borrow)]
    pub payee_fsp: Cow<'a, str>,
    /// The amount.
    #[serde(borrow)]
    pub amount: Money<'a>,
    /// The packet of the quote, base64url: not read.
    #[serde(borrow)]
    pub ilp_packet: Cow<'a, str>,
    /// SHA-256 of the fulfilment, 43 characters of base64url.
    #[serde(borrow)]
    pub condition: Cow<'a, str>,
    /// The time when the transfer expires unless it is fulfilled.
    #[serde(borrow)]
    pub expiration: Cow<'a, str>,
    /// Passed on.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub extension_list: Option<ExtensionList<'a>>,
}

/// States of a transfer as participants see them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum TransferState {
    /// Being processed.
    Received,
    /// The payer's money is reserved.
    Reserved,
    /// Final: the payee has the money.
    Committed,
    /// Final: the payer keeps the money.
    Aborted,
}

/// `PUT /transfers/{id}`, in both directions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fulfil<'a> {
    /// The preimage of the condition, 43 characters of base64url. Required with COMMITTED and RESERVED.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub fulfilment: Option<Cow<'a, str>>,
    /// When the payee (or the switch) decided.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub completed_timestamp: Option<Cow<'a, str>>,
    /// COMMITTED; RESERVED if the payee wants to be told when the switch has committed.
    pub transfer_state: TransferState,
    /// Passed on.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub extension_list: Option<ExtensionList<'a>>,
}

/// `PATCH /transfers/{id}`: the switch reports the outcome of a fulfilment to a payee that asked for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Patch<'a> {
    /// COMMITTED or ABORTED.
    pub transfer_state: TransferState,
    /// When the switch decided.
    #[serde(borrow)]
    pub completed_timestamp: Cow<'a, str>,
    /// Passed on.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub extension_list: Option<ExtensionList<'a>>,
}

/// The description of an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ErrorInformation<'a> {
    /// Four digits, see [`crate::errors::ApiError`].
    #[serde(borrow)]
    pub error_code: Cow<'a, str>,
    /// 1 to 128 characters.
    #[serde(borrow)]
    pub error_description: Cow<'a, str>,
    /// Passed on.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub extension_list: Option<ExtensionList<'a>>,
}

/// `PUT /transfers/{id}/error`, in all directions, and the body of synchronous refusals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ErrorBody<'a> {
    /// The error.
    #[serde(borrow)]
    pub error_information: ErrorInformation<'a>,
}

/// One item of [`BulkPrepare`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BulkItem<'a> {
    /// A UUID in lower case.
    #[serde(borrow)]
    pub transfer_id: Cow<'a, str>,
    /// The amount.
    #[serde(borrow)]
    pub transfer_amount: Money<'a>,
    /// The packet of the quote.
    #[serde(borrow)]
    pub ilp_packet: Cow<'a, str>,
    /// SHA-256 of the fulfilment.
    #[serde(borrow)]
    pub condition: Cow<'a, str>,
    /// Passed on.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub extension_list: Option<ExtensionList<'a>>,
}

/// `POST /bulkTransfers`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BulkPrepare<'a> {
    /// A UUID in lower case.
    #[serde(borrow)]
    pub bulk_transfer_id: Cow<'a, str>,
    /// The quote: not read.
    #[serde(borrow)]
    pub bulk_quote_id: Cow<'a, str>,
    /// The payers' participant.
    #[serde(borrow)]
    pub payer_fsp: Cow<'a, str>,
    /// The payees' participant.
    #[serde(borrow)]
    pub payee_fsp: Cow<'a, str>,
    /// 1 to 1,000 items.
    #[serde(borrow)]
    pub individual_transfers: Vec<BulkItem<'a>>,
    /// The time when the items expire unless they are fulfilled.
    #[serde(borrow)]
    pub expiration: Cow<'a, str>,
    /// Passed on.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub extension_list: Option<ExtensionList<'a>>,
}

batzen_protocol::enumeration! {
    /// States of a bulk transfer.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "UPPERCASE")]
    pub enum BulkState {
        /// Being validated.
        Received = 0,
        /// Validated.
        Pending = 1,
        /// Reserved, and sent to the payee.
        Accepted = 2,
        /// Being fulfilled, expired or aborted.
        Processing = 3,
        /// Final, item by item.
        Completed = 4,
        /// Final: no part of it took effect.
        Rejected = 5,
    }
}

/// The outcome of one item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BulkResult<'a> {
    /// The item.
    #[serde(borrow)]
    pub transfer_id: Cow<'a, str>,
    /// The preimage of its condition, if it succeeded.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub fulfilment: Option<Cow<'a, str>>,
    /// The reason, if it failed.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub error_information: Option<ErrorInformation<'a>>,
    /// Passed on.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub extension_list: Option<ExtensionList<'a>>,
}

/// `PUT /bulkTransfers/{id}`, in both directions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BulkFulfil<'a> {
    /// From the payee: COMPLETED or ACCEPTED.
    pub bulk_transfer_state: BulkState,
    /// When it was completed.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub completed_timestamp: Option<Cow<'a, str>>,
    /// Item by item.
    #[serde(borrow, default, skip_serializing_if = "Vec::is_empty")]
    pub individual_transfer_results: Vec<BulkResult<'a>>,
    /// Passed on.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub extension_list: Option<ExtensionList<'a>>,
}
