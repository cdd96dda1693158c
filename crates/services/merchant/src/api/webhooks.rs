//! Web hooks: `/private/webhooks`, and what they say. [`deliveries`](super::deliveries) sends it.

use std::sync::Arc;

use batzen_crypto::hash::sha512_parts;
use batzen_http::client::Client;
use batzen_http::{Request, Response};
use batzen_protocol::api::merchant::{CreateWebhookRequest, WebhookDetails, WebhookList, WebhookSummary};
use batzen_protocol::{Amount, ErrorCode};
use batzen_store::Store;
use batzen_tables::merchant::{
    OrderRow, PendingWebhookKey, PendingWebhookRow, WebhookKey, WebhookRow, Webhooks,
};
use serde_json::{Value, json};

use super::core::Core;
use super::orders::terms_of;
use super::products::is_id;
use super::table::{Rows, TEXTS_BYTES_MAX, endpoint};
use super::{Answer, Checked, Merchant, Shop, body, malformed, refused};
use crate::rules::{Edit, EditWebhook, Hook};
use crate::urls::is_web_url;

pub(super) fn routes() -> Rows {
    let mut rows = Rows::of("instance");
    rows.get("/private/webhooks", endpoint!(Reader, list_webhooks), "List web hooks").gives::<WebhookList>();
    rows.post("/private/webhooks", endpoint!(Owner, create_webhook), "Add a web hook")
        .takes::<CreateWebhookRequest>(TEXTS_BYTES_MAX)
        .gives_nothing();
    rows.get("/private/webhooks/:webhook", endpoint!(Reader, show_webhook), "A web hook")
        .gives::<WebhookDetails>();
    rows.patch("/private/webhooks/:webhook", endpoint!(Owner, change_webhook), "Change a web hook")
        .takes::<WebhookDetails>(TEXTS_BYTES_MAX)
        .gives_nothing();
    rows.delete("/private/webhooks/:webhook", endpoint!(Owner, delete_webhook), "Delete a web hook")
        .gives_nothing();
    rows
}

/// The longest text of a web hook, in bytes.
const TEXT_BYTES_MAX: usize = 16 << 10;

/// An event of an order.
pub(super) enum Event<'a> {
    /// It was paid.
    Pay,
    /// A refund was approved.
    Refund {
        total: Amount,
        /// Why.
        reason: &'a str,
    },
}

impl Event<'_> {
    fn kind(&self) -> &'static str {
        match self {
            Self::Pay => "pay",
            Self::Refund { .. } => "refund",
        }
    }
}

/// Replaces `{{ name }}` by values, and `{{ name.member }}` by their members. In JSON, texts are escaped as in its strings,
/// unless there are three braces; anything else is its JSON. What would make the result too long is left out.
fn fill(template: &str, values: &Value, is_json: bool) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        out.push_str(before);
        let (is_raw, inner) = match after.strip_prefix('{') {
            Some(inner) => (true, inner),
            None => (false, after),
        };
        let Some((name, after)) = inner.split_once(if is_raw { "}}}" } else { "}}" }) else {
            out.push_str("{{");
            rest = after;
            continue;
        };
        let value = name.trim().split('.').try_fold(values, |value, member| value.get(member));
        let text = match value {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) if is_json && !is_raw => {
                let quoted = serde_json::to_string(text).expect("a text has a JSON form");
                quoted[1..quoted.len() - 1].to_owned()
            }
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        if out.len() + text.len() <= FILLED_BYTES_MAX {
            // A line more would be a header more.
            out.extend(text.chars().filter(|c| is_json || !c.is_control()));
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// The length up to which values are filled in, in bytes: a template may name a contract many times.
const FILLED_BYTES_MAX: usize = 1 << 20;

/// The body of a web hook without a template.
const DEFAULT_BODY: &str = r#"{"webhook_type":"{{ webhook_type }}","order_id":"{{ order_id }}","amount":"{{ amount }}","summary":"{{ summary }}","refund_amount":"{{ refund_amount }}","reason":"{{ reason }}"}"#;

fn row_of(client: &Client, details: WebhookDetails) -> Checked<WebhookRow> {
    let WebhookDetails { event_type, url, http_method, header_template, body_template } = details;
    if !["pay", "refund"].contains(&event_type.as_str()) {
        return Err(malformed("event_type"));
    }
    if !is_web_url(&url) || url.len() > TEXT_BYTES_MAX {
        return Err(malformed("url"));
    }
    if !client.may_reach(&url) {
        let detail = "url: not on the public Internet, such as https://shop.example/paid, nor in [merchant] WEBHOOK_NETWORKS";
        return Err(Response::error(ErrorCode::GENERIC_PARAMETER_MALFORMED, detail));
    }
    if !["POST", "PUT", "PATCH", "GET", "DELETE"].contains(&http_method.as_str()) {
        return Err(malformed("http_method"));
    }
    // Headers that frame or route a request belong to the client.
    const FRAMING: [&str; 8] =
        ["host", "content-length", "transfer-encoding", "connection", "te", "trailer", "upgrade", "expect"];
    let is_line = |line: &str| {
        let name = line.split_once(':').map(|(name, _)| name.trim());
        name.is_some_and(|name| {
            !name.is_empty()
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
                && !FRAMING.iter().any(|framing| name.eq_ignore_ascii_case(framing))
        })
    };
    if header_template.as_ref().is_some_and(|text| text.len() > TEXT_BYTES_MAX || !text.lines().all(is_line))
    {
        return Err(malformed("header_template"));
    }
    if body_template.as_ref().is_some_and(|text| text.len() > TEXT_BYTES_MAX) {
        return Err(malformed("body_template"));
    }
    Ok(WebhookRow { event_type, url, http_method, header_template, body_template })
}

pub(super) async fn all_webhooks(core: &Core, id: &str) -> Checked<Vec<(String, WebhookRow)>> {
    let id = id.to_owned();
    let read = move |store: &Store| store.lookup::<Webhooks>(Webhooks::BY_INSTANCE, &id);
    let mut hooks: Vec<_> =
        core.read(read).await?.into_iter().map(|found| (found.key.webhook_id, found.row)).collect();
    hooks.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(hooks)
}

/// The requests that an event sends.
pub(super) async fn hooks(core: &Core, shop: &Shop, row: &OrderRow, event: &Event<'_>) -> Checked<Vec<Hook>> {
    let hooks = all_webhooks(core, &shop.id).await?;
    if hooks.is_empty() {
        return Ok(Vec::new());
    }
    let (total, reason) = match event {
        Event::Pay => (String::new(), String::new()),
        Event::Refund { total, reason } => (total.to_string(), (*reason).to_owned()),
    };
    let terms: Value = terms_of(row)?;
    let values = json!({
        "webhook_type": event.kind(),
        "order_id": row.order_id,
        "amount": core.amount(row.amount),
        "summary": terms["summary"].as_str().unwrap_or_default(),
        "refund_amount": total,
        "reason": reason,
        "contract_terms": terms,
    });
    let wanted = hooks.into_iter().filter(|(_, hook)| hook.event_type == event.kind());
    let requests = wanted.map(|(webhook_id, hook)| {
        let parts = [&*webhook_id, event.kind(), &row.order_id, &total].map(str::as_bytes);
        let event = sha512_parts(&[parts[0], &[0], parts[1], &[0], parts[2], &[0], parts[3]]);
        let body = fill(hook.body_template.as_deref().unwrap_or(DEFAULT_BODY), &values, true);
        let pending = PendingWebhookRow {
            webhook_id,
            url: hook.url,
            header: hook.header_template.map(|header| fill(&header, &values, false)),
            body: (hook.http_method != "GET" && hook.http_method != "DELETE").then_some(body),
            http_method: hook.http_method,
            next: core.now(),
            failures: 0,
        };
        (PendingWebhookKey { instance: shop.id.clone(), event }, pending)
    });
    Ok(requests.collect())
}

async fn list_webhooks(app: &Arc<Merchant>, _: &mut Request, shop: &Shop, _: &str) -> Answer {
    let hooks = all_webhooks(&app.core, &shop.id).await?.into_iter();
    let webhooks =
        hooks.map(|(webhook_id, row)| WebhookSummary { webhook_id, event_type: row.event_type }).collect();
    Ok(Response::json(200, &WebhookList { webhooks }))
}

async fn create_webhook(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, _: &str) -> Answer {
    let CreateWebhookRequest { webhook_id, details } = body(request)?;
    if !is_id(&webhook_id) {
        return Err(malformed("webhook_id"));
    }
    edit_webhook(&app.core, shop, &webhook_id, Edit::Create(row_of(&app.hook_client, details)?)).await
}

async fn change_webhook(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, webhook_id: &str) -> Answer {
    let details: WebhookDetails = body(request)?;
    edit_webhook(&app.core, shop, webhook_id, Edit::Change(row_of(&app.hook_client, details)?)).await
}

async fn delete_webhook(app: &Arc<Merchant>, _: &mut Request, shop: &Shop, webhook_id: &str) -> Answer {
    edit_webhook(&app.core, shop, webhook_id, Edit::Delete).await
}

async fn edit_webhook(core: &Core, shop: &Shop, webhook_id: &str, edit: Edit<WebhookRow>) -> Answer {
    let key = WebhookKey { instance: shop.id.clone(), webhook_id: webhook_id.to_owned() };
    core.decide(EditWebhook { key, edit }, webhook_id).await?;
    Ok(Response::empty(204))
}

async fn show_webhook(app: &Arc<Merchant>, _: &mut Request, shop: &Shop, webhook_id: &str) -> Answer {
    let key = WebhookKey { instance: shop.id.clone(), webhook_id: webhook_id.to_owned() };
    let found = app.core.read(move |store| store.get::<Webhooks>(&key)).await?;
    let row = found.ok_or_else(|| refused(&crate::rules::Refusal::NameUnknown, webhook_id))?.row;
    let details = WebhookDetails {
        event_type: row.event_type,
        url: row.url,
        http_method: row.http_method,
        header_template: row.header_template,
        body_template: row.body_template,
    };
    Ok(Response::json(200, &details))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_filled_with_escaped_values() {
        let values = json!({
            "summary": "a \"b\"\r\nX: y", "n": "1",
            "contract_terms": { "amount": "KUDOS:1", "products": [{ "price": 2 }], "auto": true },
        });
        assert_eq!(fill("{{ n }}-{{n}} {{ other }}{{", &values, true), "1-1 {{");
        assert_eq!(fill(r#"{"s":"{{ summary }}"}"#, &values, true), r#"{"s":"a \"b\"\r\nX: y"}"#);
        assert_eq!(fill("S: {{ summary }}", &values, false), "S: a \"b\"X: y");
        // As templates of shop systems have them.
        let body = fill(r#"{"terms":{{contract_terms}},"n":{{{n}}}}"#, &values, true);
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((&body["terms"], &body["n"]), (&values["contract_terms"], &json!(1)));
        let members =
            "{{contract_terms.amount}} {{ contract_terms.auto }} {{contract_terms.none}}|{{{summary}}}";
        assert_eq!(fill(members, &values, true), "KUDOS:1 true |a \"b\"\r\nX: y");
        let many = "{{contract_terms}}".repeat(100_000);
        assert!(fill(&many, &values, true).len() <= FILLED_BYTES_MAX);
    }
}
