//! Web hooks, templates of orders, and further access tokens.

use batzen_crypto::HashCode;
use batzen_protocol::Timestamp;
use batzen_store::{IndexDef, IndexEntries, IndexKind, Table, TableDef, record};

record! {
    /// Identifies a web hook.
    pub key struct WebhookKey {
        /// The instance.
        pub instance: String,
        /// The hook's id within the instance.
        pub webhook_id: String,
    }
}

record! {
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
}

/// The web hooks.
pub struct Webhooks;

impl Webhooks {
    /// By instance.
    pub const BY_INSTANCE: u8 = 1;
}

impl Table for Webhooks {
    const DEF: &'static TableDef = &TableDef::of::<Self>(416, "webhooks")
        .updated()
        .indexed(&[IndexDef::new(Self::BY_INSTANCE, "by_instance", IndexKind::Hash)]);
    type Key = WebhookKey;
    type Row = WebhookRow;

    fn index_entries(key: &WebhookKey, _: &WebhookRow, out: &mut IndexEntries) {
        out.add(Self::BY_INSTANCE, &key.instance);
    }
}

record! {
    /// Identifies a request that is to be sent.
    pub key struct PendingWebhookKey {
        /// The instance.
        pub instance: String,
        /// Hash of the hook and the event, so that no event is sent twice.
        pub event: HashCode,
    }
}

record! {
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
}

/// The requests that are to be sent.
pub struct PendingWebhooks;

impl PendingWebhooks {
    /// By the time of the next attempt.
    pub const BY_NEXT: u8 = 1;
    /// By instance.
    pub const BY_INSTANCE: u8 = 2;
}

impl Table for PendingWebhooks {
    const DEF: &'static TableDef = &TableDef::of::<Self>(417, "pending_webhooks").updated().indexed(&[
        IndexDef::new(Self::BY_NEXT, "by_next", IndexKind::Ordered),
        IndexDef::new(Self::BY_INSTANCE, "by_instance", IndexKind::Hash),
    ]);
    type Key = PendingWebhookKey;
    type Row = PendingWebhookRow;

    fn index_entries(key: &PendingWebhookKey, row: &PendingWebhookRow, out: &mut IndexEntries) {
        out.add(Self::BY_NEXT, &row.next);
        out.add(Self::BY_INSTANCE, &key.instance);
    }
}

record! {
    /// Identifies a template.
    pub key struct TemplateKey {
        /// The instance.
        pub instance: String,
        /// The template's id within the instance.
        pub template_id: String,
    }
}

record! {
    /// A template: customers make orders of it by themselves.
    pub struct TemplateRow {
        /// For the shop.
        pub description: String,
        /// The terms that orders share, as a JSON object; amount and summary may be open.
        pub contract: String,
    }
}

/// The templates.
pub struct Templates;

impl Templates {
    /// By instance.
    pub const BY_INSTANCE: u8 = 1;
}

impl Table for Templates {
    const DEF: &'static TableDef = &TableDef::of::<Self>(418, "templates")
        .updated()
        .indexed(&[IndexDef::new(Self::BY_INSTANCE, "by_instance", IndexKind::Hash)]);
    type Key = TemplateKey;
    type Row = TemplateRow;

    fn index_entries(key: &TemplateKey, _: &TemplateRow, out: &mut IndexEntries) {
        out.add(Self::BY_INSTANCE, &key.instance);
    }
}

record! {
    /// Identifies a further access token.
    pub key struct AccessTokenKey {
        /// The instance.
        pub instance: String,
        /// Salted hash of the token.
        pub token_hash: HashCode,
    }
}

record! {
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
}

/// The further access tokens.
pub struct AccessTokens;

impl AccessTokens {
    /// By instance.
    pub const BY_INSTANCE: u8 = 1;
}

impl Table for AccessTokens {
    const DEF: &'static TableDef = &TableDef::of::<Self>(419, "access_tokens").indexed(&[IndexDef::new(
        Self::BY_INSTANCE,
        "by_instance",
        IndexKind::Hash,
    )]);
    type Key = AccessTokenKey;
    type Row = AccessTokenRow;

    fn index_entries(key: &AccessTokenKey, _: &AccessTokenRow, out: &mut IndexEntries) {
        out.add(Self::BY_INSTANCE, &key.instance);
    }
}
