//! Web hooks: `/private/webhooks`, and the requests that they send.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use batzen_crypto::hash::sha512_parts;
use batzen_http::{Method, Request, Response};
use batzen_protocol::api::merchant::{CreateWebhookRequest, WebhookDetails, WebhookList, WebhookSummary};
use batzen_protocol::{Amount, ErrorCode, Timestamp};
use batzen_store::Store;
use batzen_tables::merchant::{
    OrderRow, PendingWebhookKey, PendingWebhookRow, PendingWebhooks, WebhookKey, WebhookRow, Webhooks,
};

use super::orders::terms_of;
use super::products::is_id;
use super::{Answer, Service, Shop, body, named};
use crate::rules::{Edit, EditWebhook, FinishWebhook, Hook, TakeWebhook};

/// The maximum number of web hooks of an instance.
const HOOKS_MAX: usize = 32;
/// The longest text of a web hook, in bytes.
const TEXT_BYTES_MAX: usize = 16 << 10;
/// After so many failures a request is given up: with the pauses below, after a day and a half.
const FAILURES_MAX: u32 = 16;
/// The pause after the first failure. It doubles with each.
const FIRST_PAUSE: batzen_protocol::Duration = batzen_protocol::Duration::from_secs(2);
/// The longest pause between two attempts.
const PAUSE_MAX: batzen_protocol::Duration = batzen_protocol::Duration::from_secs(3 * 3_600);
/// How long a process may take to send a request.
const TAKEN: batzen_protocol::Duration = batzen_protocol::Duration::from_secs(60);
/// Requests that are sent at the same time.
const SENDS: usize = 32;

/// What has happened to an order.
pub(super) enum Event<'a> {
    /// It was paid.
    Pay,
    /// A refund was approved.
    Refund {
        /// In total.
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

/// Replaces `{{ name }}` by values. In JSON, values are escaped as in its strings.
fn fill(template: &str, values: &[(&str, String)], escapes: bool) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        out.push_str(before);
        let Some((name, after)) = after.split_once("}}") else {
            out.push_str("{{");
            rest = after;
            continue;
        };
        if let Some((_, value)) = values.iter().find(|(known, _)| *known == name.trim()) {
            if escapes {
                let text = serde_json::to_string(value).expect("a text has a JSON form");
                out.push_str(&text[1..text.len() - 1]);
            } else {
                // A line more would be a header more.
                out.extend(value.chars().filter(|c| !c.is_control()));
            }
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// The body of a web hook without a template.
const DEFAULT_BODY: &str = r#"{"webhook_type":"{{ webhook_type }}","order_id":"{{ order_id }}","amount":"{{ amount }}","summary":"{{ summary }}","refund_amount":"{{ refund_amount }}","reason":"{{ reason }}"}"#;

fn row_of(details: WebhookDetails) -> Result<WebhookRow, Response> {
    let malformed = |name: &str| Response::error(ErrorCode::GENERIC_PARAMETER_MALFORMED, name);
    let WebhookDetails { event_type, url, http_method, header_template, body_template } = details;
    if !["pay", "refund"].contains(&event_type.as_str()) {
        return Err(malformed("event_type"));
    }
    if !(url.starts_with("http://") || url.starts_with("https://")) || url.len() > TEXT_BYTES_MAX {
        return Err(malformed("url"));
    }
    if !["POST", "PUT", "PATCH", "GET", "DELETE"].contains(&http_method.as_str()) {
        return Err(malformed("http_method"));
    }
    let is_line = |line: &str| {
        let name = line.split_once(':').map(|(name, _)| name.trim());
        name.is_some_and(|name| {
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
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

impl Service {
    async fn all_webhooks(&self, id: &str) -> Result<Vec<(String, WebhookRow)>, Response> {
        let id = id.to_owned();
        let read = move |store: &Store| store.lookup::<Webhooks>(Webhooks::BY_INSTANCE, &id);
        let mut hooks: Vec<_> =
            self.read(read).await?.into_iter().map(|found| (found.key.webhook_id, found.row)).collect();
        hooks.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(hooks)
    }

    /// The requests that an event sends.
    pub(super) async fn hooks(
        &self,
        shop: &Shop,
        row: &OrderRow,
        event: &Event<'_>,
    ) -> Result<Vec<Hook>, Response> {
        let hooks = self.all_webhooks(&shop.id).await?;
        if hooks.is_empty() {
            return Ok(Vec::new());
        }
        let (total, reason) = match event {
            Event::Pay => (String::new(), String::new()),
            Event::Refund { total, reason } => (total.to_string(), (*reason).to_owned()),
        };
        let summary = terms_of::<serde_json::Value>(row)?["summary"].as_str().unwrap_or_default().to_owned();
        let values = [
            ("webhook_type", event.kind().to_owned()),
            ("order_id", row.order_id.clone()),
            ("amount", self.amount(row.amount).to_string()),
            ("summary", summary),
            ("refund_amount", total.clone()),
            ("reason", reason),
        ];
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
                next: self.now(),
                failures: 0,
            };
            (PendingWebhookKey { instance: shop.id.clone(), event }, pending)
        });
        Ok(requests.collect())
    }

    pub(super) async fn list_webhooks(&self, shop: &Shop) -> Answer {
        let hooks = self.all_webhooks(&shop.id).await?.into_iter();
        let webhooks = hooks
            .map(|(webhook_id, row)| WebhookSummary { webhook_id, event_type: row.event_type })
            .collect();
        Ok(Response::json(200, &WebhookList { webhooks }))
    }

    pub(super) async fn create_webhook(&self, request: &Request, shop: &Shop) -> Answer {
        let CreateWebhookRequest { webhook_id, details } = body(request)?;
        if !is_id(&webhook_id) || self.all_webhooks(&shop.id).await?.len() >= HOOKS_MAX {
            return Err(Response::error(ErrorCode::GENERIC_PARAMETER_MALFORMED, "webhook_id"));
        }
        self.edit_webhook(shop, &webhook_id, Edit::Create(row_of(details)?)).await
    }

    pub(super) async fn change_webhook(&self, request: &Request, shop: &Shop, webhook_id: &str) -> Answer {
        let details: WebhookDetails = body(request)?;
        self.edit_webhook(shop, webhook_id, Edit::Change(row_of(details)?)).await
    }

    pub(super) async fn delete_webhook(&self, shop: &Shop, webhook_id: &str) -> Answer {
        self.edit_webhook(shop, webhook_id, Edit::Delete).await
    }

    async fn edit_webhook(&self, shop: &Shop, webhook_id: &str, edit: Edit<WebhookRow>) -> Answer {
        let key = WebhookKey { instance: shop.id.clone(), webhook_id: webhook_id.to_owned() };
        let verdict = self.execute(EditWebhook { key, edit }).await?;
        verdict.map_err(|refusal| named(&refusal, webhook_id))?;
        Ok(Response::empty(204))
    }

    pub(super) async fn show_webhook(&self, shop: &Shop, webhook_id: &str) -> Answer {
        let key = WebhookKey { instance: shop.id.clone(), webhook_id: webhook_id.to_owned() };
        let found = self.read(move |store| store.get::<Webhooks>(&key)).await?;
        let row = found.ok_or_else(|| named(&crate::rules::Refusal::NameUnknown, webhook_id))?.row;
        let details = WebhookDetails {
            event_type: row.event_type,
            url: row.url,
            http_method: row.http_method,
            header_template: row.header_template,
            body_template: row.body_template,
        };
        Ok(Response::json(200, &details))
    }

    /// Sends the requests that are due. Returns when the next is.
    pub(crate) async fn send_webhooks(self: &Arc<Self>) -> Result<Option<Timestamp>, Response> {
        let read = |store: &Store| {
            store.range_bytes::<PendingWebhooks>(
                PendingWebhooks::BY_NEXT,
                Bound::Unbounded,
                Bound::Unbounded,
                SENDS,
                false,
            )
        };
        let found = self.read(read).await?;
        let now = self.now();
        let is_due = |row: &PendingWebhookRow| row.next <= now;
        let next = found.iter().map(|found| found.row.next).find(|next| *next > now);
        let sends = found.into_iter().filter(|found| is_due(&found.row)).map(|found| {
            let service = Arc::clone(self);
            async move {
                // Of several processes, one sends it. If that ends meanwhile, another one tries again later.
                let take = TakeWebhook { key: found.key.clone(), until: now.saturating_add(TAKEN) };
                if service.execute(take).await?.is_err() {
                    return Ok(());
                }
                let is_done = service.send_webhook(&found.row).await;
                let failures = found.row.failures + 1;
                let again =
                    (!is_done && failures < FAILURES_MAX).then(|| now.saturating_add(pause(failures)));
                if !is_done && again.is_none() {
                    let (instance, webhook) = (&found.key.instance, &found.row.webhook_id);
                    tracing::warn!(%instance, %webhook, "a web hook is given up");
                }
                service.execute(FinishWebhook { key: found.key, again }).await.map(drop)
            }
        });
        let sends: Vec<_> = sends.collect();
        let more = !sends.is_empty();
        for result in futures_util::future::join_all(sends).await {
            result?;
        }
        Ok(if more { Some(now) } else { next })
    }

    async fn send_webhook(&self, row: &PendingWebhookRow) -> bool {
        let method = row.http_method.parse::<Method>().unwrap_or(Method::POST);
        let mut request = self.hook_client.call(method, row.url.clone());
        if let Some(body) = &row.body {
            request = request.body("application/json", body.clone());
        }
        for line in row.header.iter().flat_map(|header| header.lines()) {
            if let Some((name, value)) = line.split_once(':') {
                request = request.header(name.trim(), value.trim());
            }
        }
        request.send().await.is_ok_and(|reply| (200..300).contains(&reply.status))
    }
}

fn pause(failures: u32) -> batzen_protocol::Duration {
    let doubled = FIRST_PAUSE.as_micros().saturating_mul(1 << failures.saturating_sub(1).min(31));
    batzen_protocol::Duration::from_micros(doubled).min(PAUSE_MAX)
}

/// How long a receiver may take.
pub(crate) const HOOK_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_filled_with_escaped_values() {
        let values = [("summary", "a \"b\"\r\nX: y".to_owned()), ("n", "1".to_owned())];
        assert_eq!(fill("{{ n }}-{{n}} {{ other }}{{", &values, true), "1-1 {{");
        assert_eq!(fill(r#"{"s":"{{ summary }}"}"#, &values, true), r#"{"s":"a \"b\"\r\nX: y"}"#);
        assert_eq!(fill("S: {{ summary }}", &values, false), "S: a \"b\"X: y");
    }

    #[test]
    fn pauses_double_up_to_hours() {
        assert_eq!(pause(1), FIRST_PAUSE);
        assert_eq!(pause(3).as_micros(), 4 * FIRST_PAUSE.as_micros());
        assert_eq!(pause(FAILURES_MAX), PAUSE_MAX);
    }
}
