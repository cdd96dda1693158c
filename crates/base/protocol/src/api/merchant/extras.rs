//! Web hooks (`private/webhooks`), templates (`private/templates`) and further access tokens (`private/tokens`). These
//! are not in version 2 of the protocol; their form is that of later versions.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Amount, Duration, Timestamp};

/// The message of a web hook, and the event that triggers it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WebhookDetails {
    /// `pay` or `refund`.
    pub event_type: String,
    /// Where to.
    pub url: String,
    /// The HTTP method.
    pub http_method: String,
    /// Lines of headers, with `{{ names }}` of values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header_template: Option<String>,
    /// The body, with `{{ names }}` of values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_template: Option<String>,
}

/// `POST private/webhooks`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreateWebhookRequest {
    /// The hook's id within the instance.
    pub webhook_id: String,
    /// Everything else.
    #[serde(flatten)]
    pub details: WebhookDetails,
}

/// Answer to `GET private/webhooks`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WebhookList {
    /// All hooks.
    pub webhooks: Vec<WebhookSummary>,
}

/// A hook in the list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WebhookSummary {
    /// The hook.
    pub webhook_id: String,
    /// `pay` or `refund`.
    pub event_type: String,
}

/// The terms that orders of a template share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TemplateContract {
    /// One line. `None`: the customer writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// The amount. `None`: the customer chooses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub amount: Option<Amount>,
    /// The age that a customer must have; 0 for any.
    #[serde(default)]
    pub minimum_age: u8,
    /// Time in which an order can be paid.
    pub pay_duration: Duration,
}

/// A template.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TemplateDetails {
    /// For the shop.
    pub template_description: String,
    /// The terms that its orders share.
    pub template_contract: TemplateContract,
}

/// `POST private/templates`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreateTemplateRequest {
    /// The template's id within the instance.
    pub template_id: String,
    /// Everything else.
    #[serde(flatten)]
    pub details: TemplateDetails,
}

/// Answer to `GET private/templates`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TemplateList {
    /// All templates.
    pub templates: Vec<TemplateSummary>,
}

/// A template in the list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TemplateSummary {
    /// The template.
    pub template_id: String,
    /// For the shop.
    pub template_description: String,
}

/// Answer to `GET templates/$TEMPLATE_ID`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TemplateForCustomer {
    /// The terms that its orders share.
    pub template_contract: TemplateContract,
}

/// `POST templates/$TEMPLATE_ID`: a customer makes an order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UseTemplateRequest {
    /// Only if the template leaves it open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// Only if the template leaves it open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub amount: Option<Amount>,
}

/// `POST private/token`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreateTokenRequest {
    /// `readonly`: read everything; `orders`: also create orders and approve refunds; `all`: everything.
    pub scope: String,
    /// The validity of the token.
    pub duration: Duration,
    /// Its purpose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// Answer to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreateTokenResponse {
    /// The token. It is not shown again.
    pub token: String,
    /// The endpoints that it opens.
    pub scope: String,
    /// When it ends.
    pub expiration: Timestamp,
}

/// Answer to `GET private/tokens`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TokenList {
    /// The tokens that were created, without those of the instance itself.
    pub tokens: Vec<TokenSummary>,
}

/// A token in the list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TokenSummary {
    /// Its number, by which it is deleted.
    pub serial: u64,
    /// The endpoints that it opens.
    pub scope: String,
    /// Its purpose.
    pub description: String,
    /// When it was created.
    pub creation_time: Timestamp,
    /// When it ends.
    pub expiration: Timestamp,
}
