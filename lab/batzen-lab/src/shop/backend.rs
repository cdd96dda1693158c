//! Requests of a shop to its merchant backend: four requests of plain HTTP with JSON.

use batzen_http::client::{Client, ClientError, ClientOptions, Reply, url_encoded};
use serde::Deserialize;
use serde_json::{Value, json};

/// Time in which customers can give articles back, in microseconds: a day. The exchange pays the shop after
/// that.
const REFUNDABLE_US: u64 = 86_400_000_000;

/// The merchant backend's interface for this shop.
pub(super) struct Backend {
    client: Client,
    url: String,
    token: String,
}

/// The state of an order, in one visitor's session.
#[derive(Debug, PartialEq)]
pub(crate) enum State {
    /// Nobody has paid it in this session. The visitor pays on this page of the backend.
    Due { pay_page: String },
    /// This order is paid. Its page shows refunds to the visitor's wallet.
    Paid { order_id: String, page: String, is_refunded: bool },
}

impl Backend {
    /// A client of the instance at `url`, such as `http://localhost:9966/instances/bookshop/`.
    pub(crate) fn new(url: &str, token: &str) -> Result<Self, ClientError> {
        let url = format!("{}/", url.trim_end_matches('/'));
        Ok(Self { client: Client::new(&ClientOptions::default())?, url, token: token.to_owned() })
    }

    /// Sends a request: `POST` with a body, `GET` without.
    async fn ask(&self, path: &str, body: Option<&Value>) -> Result<Reply, ClientError> {
        let url = format!("{}{path}", self.url);
        let call =
            body.map_or_else(|| self.client.get(url.as_str()), |body| self.client.post(&url).json(body));
        call.header("authorization", &format!("Bearer {}", self.token)).send().await
    }

    /// The currency in which the shop is paid.
    pub(crate) async fn currency(&self) -> Result<String, ClientError> {
        Ok(self.ask("config", None).await?.ok::<Config>()?.currency)
    }

    /// Orders an article, and returns the order's number. The fulfilment URL is where the visitor reads it; wallets
    /// recognise by it what they have bought before.
    pub(crate) async fn order(
        &self,
        amount: &str,
        summary: &str,
        fulfillment_url: &str,
    ) -> Result<String, ClientError> {
        let order = json!({ "amount": amount, "summary": summary, "fulfillment_url": fulfillment_url });
        let body = json!({ "order": order, "refund_delay": { "d_us": REFUNDABLE_US } });
        Ok(self.ask("private/orders", Some(&body)).await?.ok::<Created>()?.order_id)
    }

    /// The state of an order in a session, if it is an order of the article at this URL. The order's number comes
    /// from the visitor, who may name any order, for example that of a cheaper article.
    pub(crate) async fn state(
        &self,
        order_id: &str,
        session: &str,
        fulfillment_url: &str,
    ) -> Result<Option<State>, ClientError> {
        let mut order_id = order_id.to_owned();
        // A second look if the visitor's wallet has bought the same article with an earlier order.
        for _ in 0..2 {
            let path =
                format!("private/orders/{}?session_id={}", url_encoded(&order_id), url_encoded(session));
            let reply = self.ask(&path, None).await?;
            if reply.status == 404 {
                return Ok(None);
            }
            let order: Order = reply.ok()?;
            let (page, terms) = match order {
                Order::Unpaid { order_status_url } => (order_status_url, None),
                Order::Claimed { order_status_url, contract_terms } => {
                    (order_status_url, Some(contract_terms))
                }
                Order::Paid { order_status_url, contract_terms, refunded } => {
                    let is_ours = contract_terms.fulfillment_url.as_deref() == Some(fulfillment_url);
                    let paid = State::Paid { order_id, page: order_status_url, is_refunded: refunded };
                    return Ok(is_ours.then_some(paid));
                }
            };
            if terms.is_some_and(|terms| terms.fulfillment_url.as_deref() != Some(fulfillment_url)) {
                return Ok(None);
            }
            let public = self.client.get_json(page.as_str()).await?;
            let earlier = public.json::<Due>().ok().and_then(|due| due.already_paid_order_id);
            match earlier {
                Some(earlier) => order_id = earlier,
                None => return Ok(Some(State::Due { pay_page: page })),
            }
        }
        Ok(None)
    }

    /// Gives back the whole price of an order.
    pub(crate) async fn refund(&self, order_id: &str, amount: &str) -> Result<(), ClientError> {
        let path = format!("private/orders/{}/refund", url_encoded(order_id));
        let body = json!({ "refund": amount, "reason": "given back by the reader" });
        self.ask(&path, Some(&body)).await?.expect(&[200]).map(|_| ())
    }
}

#[derive(Deserialize)]
struct Config {
    currency: String,
}

#[derive(Deserialize)]
struct Created {
    order_id: String,
}

/// An order, as far as this shop cares.
#[derive(Deserialize)]
#[serde(tag = "order_status", rename_all = "lowercase")]
enum Order {
    Unpaid { order_status_url: String },
    Claimed { order_status_url: String, contract_terms: Terms },
    Paid { order_status_url: String, contract_terms: Terms, refunded: bool },
}

#[derive(Deserialize)]
struct Terms {
    fulfillment_url: Option<String>,
}

/// The backend's public answer about an order that is not paid in this session.
#[derive(Deserialize)]
struct Due {
    already_paid_order_id: Option<String>,
}
