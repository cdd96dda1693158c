//! Web hooks, templates of orders, and further access tokens.

use batzen_crypto::HashCode;
use batzen_protocol::Timestamp;
use batzen_store::table;

table! {
    /// Identifies a web hook.
    pub key struct WebhookKey {
        /// The instance.
        pub instance: String,
        /// The hook's id within the instance.
        pub webhook_id: String,
    }

    /// The message of a web hook, and the event that triggers it.
    pub struct WebhookRow {
        /// `pay` or `refund`.
        pub event_type: String,
        /// Where to.
        pub url: String,
        /// The HTTP method.
        pub http_method: String,
        /// Lines of headers, with `{{ names }}` of values.
        pub header_template: Option<String>,
        /// The body, with `{{ names }}` of values.
        pub body_template: Option<String>,
    }

    /// The web hooks.
    pub Webhooks(416, "webhooks"): WebhookKey => WebhookRow, updated();
    /// By instance.
    BY_INSTANCE = 1, "by_instance", Hash;
    |key, _, out| {
        out.add(Self::BY_INSTANCE, &key.instance);
    }
}

table! {
    /// Identifies a request that is to be sent.
    pub key struct PendingWebhookKey {
        /// The instance.
        pub instance: String,
        /// Hash of the hook and the event, so that no event is sent twice.
        pub event: HashCode,
    }

    /// A request that is to be sent.
    pub struct PendingWebhookRow {
        /// The hook.
        pub webhook_id: String,
        /// Where to.
        pub url: String,
        /// The HTTP method.
        pub http_method: String,
        /// Lines of headers.
        pub header: Option<String>,
        /// The body.
        pub body: Option<String>,
        /// When it is sent next.
        pub next: Timestamp,
        /// Number of failures.
        pub failures: u32,
    }

    /// The requests that are to be sent.
    pub PendingWebhooks(417, "pending_webhooks"): PendingWebhookKey => PendingWebhookRow, updated();
    /// By the time of the next attempt.
    BY_NEXT = 1, "by_next", Ordered;
    /// By instance.
    BY_INSTANCE = 2, "by_instance", Hash;
    |key, row, out| {
        out.add(Self::BY_NEXT, &row.next);
        out.add(Self::BY_INSTANCE, &key.instance);
    }
}

table! {
    /// Identifies a template.
    pub key struct TemplateKey {
        /// The instance.
        pub instance: String,
        /// The template's id within the instance.
        pub template_id: String,
    }

    /// A template: customers make orders of it by themselves.
    pub struct TemplateRow {
        /// For the shop.
        pub description: String,
        /// The terms that orders share, as a JSON object; amount and summary may be open.
        pub contract: String,
    }

    /// The templates.
    pub Templates(418, "templates"): TemplateKey => TemplateRow, updated();
    /// By instance.
    BY_INSTANCE = 1, "by_instance", Hash;
    |key, _, out| {
        out.add(Self::BY_INSTANCE, &key.instance);
    }
}

table! {
    /// Identifies a further access token.
    pub key struct AccessTokenKey {
        /// The instance.
        pub instance: String,
        /// Salted hash of the token.
        pub token_hash: HashCode,
    }

    /// A further access token, which opens a part of `private/`.
    pub struct AccessTokenRow {
        /// Its number.
        pub row_id: u64,
        /// The endpoints that it opens: `readonly`, `orders` or `all`.
        pub scope: String,
        /// Its purpose.
        pub description: String,
        /// When it was created.
        pub created: Timestamp,
        /// When it ends.
        pub expires: Timestamp,
    }

    /// The further access tokens.
    pub AccessTokens(419, "access_tokens"): AccessTokenKey => AccessTokenRow;
    /// By instance.
    BY_INSTANCE = 1, "by_instance", Hash;
    |key, _, out| {
        out.add(Self::BY_INSTANCE, &key.instance);
    }
}
