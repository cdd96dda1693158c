//! A merchant backend with two shops: the bookshop, which is open to visitors, and a sandbox for developers.
//! The steps of the round in which a visitor buys in the bookshop and gives the article back.

use std::path::Path;

use crate::shop::{RunningShop, ShopError, ShopOptions};
use anyhow::{Context, bail, ensure};
use batzen_crypto::HashCode;
use batzen_exchange::workers::transfer;
use batzen_http::client::{Client, Method, Reply};
use batzen_merchant::{ListenConfig, MerchantConfig, MerchantError, RunningMerchant, TrustedExchange};
use batzen_protocol::api::merchant::{OrderDue, PickUpRefundResponse, RefundResult, ReportTransferResponse};
use batzen_protocol::signatures::{ExchangeConfirmRefund, MerchantPaymentOk, SignedMessage};
use batzen_protocol::{Currency, Money, PaytoUri};
use batzen_wallet::{Exchange, RunUntil, Status};
use serde_json::{Value, json};

use super::books::Books;
use super::cycle::{PATIENCE, Round};
use super::report::StepSummary;
use super::world::{CUSTOMER, HOSTNAME};
use batzen_exchange::play_money;

/// The bookshop's instance, which is also the name of its bank account.
const BOOKSHOP: &str = "bookshop";
/// The bookshop's access token.
const BOOKSHOP_TOKEN: &str = "secret-token:bookshop";
/// The bank account of the instance `default`, with which developers play.
pub(super) const SANDBOX: &str = "sandbox";
/// Its access token.
pub(crate) const SANDBOX_TOKEN: &str = "secret-token:sandbox-demo";
/// The article that the visitor buys, and its price.
const ARTICLE: (&str, &str) = ("articles/blind-signatures", "0.5");
/// Another one, which costs more.
const DEARER_ARTICLE: &str = "articles/batzen";
/// The mark that only readers see.
const READ_MARK: &str = "id=\"text\"";

/// The facts about the world that the shops need.
pub(crate) struct Surroundings<'a> {
    /// The directory of all data.
    pub(crate) dir: &'a Path,
    /// Where the books are.
    pub(crate) books: &'a Books,
    pub(crate) currency: Currency,
    /// The exchange whose coins are accepted.
    pub(crate) exchange: TrustedExchange,
    /// The bank's base URL.
    pub(crate) bank_url: &'a str,
    /// For calls of administrators.
    pub(crate) client: &'a Client,
}

/// The merchant backend and the bookshop, while they run.
pub(crate) struct Shops {
    /// The backend's base URL.
    pub(crate) backend_url: String,
    backend: RunningMerchant,
    /// The bookshop.
    pub(crate) shop: RunningShop,
}

impl Shops {
    /// Starts the backend, opens its shops and their bank accounts, and starts the bookshop.
    pub(crate) async fn start(at: Surroundings<'_>, port: u16, shop_port: u16) -> anyhow::Result<Self> {
        let Surroundings { dir, books, currency, exchange, bank_url, client } = at;
        let store = books.store_config(&dir.join("merchant"));
        let prepare = {
            let store = store.clone();
            move || store.prepare(&batzen_service::storage::MERCHANT)
        };
        tokio::task::spawn_blocking(prepare).await?.context("the merchant's tables")?;
        let config = MerchantConfig {
            place: ListenConfig::Tcp { host: Some("127.0.0.1".to_owned()), port },
            store,
            exchanges: vec![exchange],
            ..MerchantConfig::new(currency)
        };
        let backend = match RunningMerchant::start(config).await {
            Err(MerchantError::Bind(error)) => bail!(
                "cannot listen on port {port} for the merchant backend: {error}; choose another with --merchant-port"
            ),
            other => other.context("merchant backend")?,
        };
        let backend_url = format!("http://localhost:{port}/");
        for (id, account, token) in
            [("default", SANDBOX, SANDBOX_TOKEN), (BOOKSHOP, BOOKSHOP, BOOKSHOP_TOKEN)]
        {
            play_money::open_account(client, bank_url, account, account).await.context(account)?;
            let call = client.post(format!("{backend_url}management/instances"));
            let call = call.header("authorization", &format!("Bearer {SANDBOX_TOKEN}"));
            let reply = call.json(&instance(id, account, token, currency)).send().await?;
            // A later run finds them as they are.
            reply.expect(&[204, 409]).context(id)?;
        }
        let options = ShopOptions {
            port: shop_port,
            base_url: None,
            backend_url: format!("{backend_url}instances/{BOOKSHOP}/"),
            token: BOOKSHOP_TOKEN.to_owned(),
        };
        let shop = match RunningShop::start(options).await {
            Err(ShopError::Bind(error)) => bail!(
                "cannot listen on port {shop_port} for the bookshop: {error}; choose another with --shop-port"
            ),
            other => other.context("bookshop")?,
        };
        Ok(Self { backend_url, backend, shop })
    }

    /// Ends the bookshop and its backend.
    pub(crate) async fn shutdown(self) -> anyhow::Result<()> {
        self.shop.shutdown().await;
        self.backend.shutdown().await.context("close the merchant's store")
    }
}

/// A shop's bank account.
pub(super) fn payto(account: &str) -> String {
    format!("payto://x-taler-bank/{HOSTNAME}/{account}?receiver-name={account}")
}

/// The settings of a shop.
fn instance(id: &str, account: &str, token: &str, currency: Currency) -> Value {
    json!({
        "id": id, "name": account, "auth": { "method": "token", "token": token },
        "payto_uris": [payto(account)],
        "address": {}, "jurisdiction": {},
        "default_max_wire_fee": format!("{currency}:0.01"),
        "default_max_deposit_fee": format!("{currency}:0.05"),
        "default_wire_fee_amortization": 1,
        "default_wire_transfer_delay": { "d_us": 0 },
        "default_pay_delay": { "d_us": 3_600_000_000_u64 },
    })
}

/// The state of a visitor's browser after an order: a cookie, and the page where she pays.
pub(super) struct Visit {
    cookie: String,
    pay_page: String,
    pay_uri: String,
}

impl Round<'_> {
    /// A visitor's request to the bookshop.
    async fn visit(&self, method: Method, path: &str, cookie: &str) -> anyhow::Result<Reply> {
        let url = format!("{}{path}", self.world.shops.shop.url());
        Ok(self.world.client.call(method, url).header("cookie", cookie).send().await?)
    }

    /// Checks what a visitor with this cookie gets instead of the article, or that she gets it.
    async fn reads(&self, article: &str, cookie: &str, status: u16) -> anyhow::Result<()> {
        let reply = self.visit(Method::GET, article, cookie).await?;
        let text = String::from_utf8_lossy(&reply.body);
        ensure!(reply.status == status, "the bookshop answers {} instead of {status}", reply.status);
        ensure!(text.contains(READ_MARK) == (status == 200), "the wrong visitors read the article");
        Ok(())
    }

    /// A visitor orders an article, and is sent to the page where she pays.
    pub(super) async fn order(&self) -> anyhow::Result<(Visit, StepSummary)> {
        self.reads(ARTICLE.0, "", 402).await?;
        let reply = self.visit(Method::POST, &format!("{}/buy", ARTICLE.0), "").await?;
        reply.expect(&[303])?;
        let header = |name: &str| reply.header(name).with_context(|| format!("no header {name}"));
        let pay_page = header("location")?.to_owned();
        let cookie = header("set-cookie")?.split(';').next().unwrap_or_default().to_owned();
        let reply = self.world.client.get_json(pay_page.as_str()).await?;
        reply.expect(&[402])?;
        let pay_uri = reply.json::<OrderDue>()?.taler_pay_uri;
        self.reads(ARTICLE.0, &cookie, 402).await?;
        let summary = format!("an article for {} in the bookshop, to be paid with {pay_uri}", ARTICLE.1);
        Ok((Visit { cookie, pay_page, pay_uri }, StepSummary { count: 1, summary }))
    }

    /// Her wallet pays, and she reads the article.
    pub(super) async fn pay_shop(&self, visit: &Visit) -> anyhow::Result<(HashCode, StepSummary)> {
        let name = format!("{CUSTOMER}{}", self.world.run);
        let wallet = self.world.wallet(&name)?;
        let offer = wallet.inspect_purchase(&visit.pay_uri).await?;
        ensure!(offer.is_new(), "the wallet has bought this before");
        let id = wallet.pay_purchase(&offer).await?;
        wallet.run(RunUntil::Finished(Some(PATIENCE))).await?;
        let proof = wallet.purchase_receipt(id)?.proof;
        let message = MerchantPaymentOk { h_contract_terms: proof.h_contract_terms };
        let is_signed = proof.receipt.is_some_and(|receipt| message.verify(&proof.merchant_pub, &receipt));
        ensure!(is_signed, "the shop's receipt is not signed");
        self.reads(ARTICLE.0, &visit.cookie, 200).await?;
        // The order does not open another article, nor this one in somebody else's browser.
        self.reads(DEARER_ARTICLE, &visit.cookie, 402).await?;
        let (_, order) = visit.cookie.split_once('.').context("the cookie has no order")?;
        self.reads(ARTICLE.0, &format!("purchase=somebody.{order}"), 402).await?;
        let summary = format!("{name} paid {} and reads; nobody else does", offer.terms().amount);
        Ok((proof.h_contract_terms, StepSummary { count: 1, summary }))
    }

    /// She gives the article back. Her wallet gets the money from the exchange once, however often it asks.
    pub(super) async fn refund_shop(
        &self,
        exchange: &Exchange,
        visit: &Visit,
        h_contract_terms: HashCode,
    ) -> anyhow::Result<((), StepSummary)> {
        let reply = self.visit(Method::POST, &format!("{}/return", ARTICLE.0), &visit.cookie).await?;
        reply.expect(&[303])?;
        self.reads(ARTICLE.0, &visit.cookie, 410).await?;
        // The page where she paid offers the refund to her wallet.
        let page =
            self.world.client.get(visit.pay_page.as_str()).header("accept", "text/html").send().await?;
        let uri = page.header("taler").context("the order's page offers no refund")?;
        let wallet = self.world.wallet(&format!("{CUSTOMER}{}", self.world.run))?;
        let refunds = wallet.pick_up_refunds(wallet.purchase_of_refund(uri)?).await?;
        wallet.run(RunUntil::Finished(Some(PATIENCE))).await?;
        for id in &refunds {
            let line = wallet.transaction(*id)?;
            ensure!(line.status == Status::Done, "the wallet did not get its refund: {line:?}");
        }
        let order = visit.pay_page.split('?').next().unwrap_or_default();
        let body = json!({ "h_contract": h_contract_terms });
        let pick_up = || self.world.client.post_json(format!("{order}/refund"), &body);
        let answer: PickUpRefundResponse = pick_up().await?.ok()?;
        let mut total = Money::ZERO;
        for refund in &answer.refunds {
            let RefundResult::Success { exchange_sig, exchange_pub, .. } = &refund.result else {
                bail!("the exchange refused a refund: {:?}", refund.result);
            };
            let message = ExchangeConfirmRefund {
                h_contract_terms,
                coin_pub: refund.coin_pub,
                merchant_pub: answer.merchant_pub,
                rtransaction_id: refund.rtransaction_id,
                refund_amount: refund.refund_amount,
            };
            exchange.require_signing_key(exchange_pub, self.now())?;
            ensure!(message.verify(exchange_pub, exchange_sig), "a refund is not signed by the exchange");
            total = total.checked_add(refund.refund_amount.money)?;
        }
        ensure!(total == ARTICLE.1.parse()?, "{total} were refunded instead of {}", ARTICLE.1);
        ensure!(pick_up().await?.ok::<PickUpRefundResponse>()? == answer, "a refund was made twice");
        let count = answer.refunds.len();
        let summary =
            format!("given back: {} on {count} coins, which the wallet has renewed", answer.refund_amount);
        Ok(((), StepSummary { count, summary }))
    }

    /// A request of a developer to the sandbox.
    pub(super) async fn sandbox(&self, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let url = format!("{}{path}", self.world.shops.backend_url);
        let client = &self.world.client;
        let call = body.map_or_else(|| client.get(url.as_str()), |body| client.post(url.as_str()).json(body));
        let call = call.header("authorization", &format!("Bearer {SANDBOX_TOKEN}"));
        Ok(call.send().await?.ok()?)
    }

    /// A sale of the sandbox reaches its bank account: the transfer is reported to the backend, which asks the
    /// exchange what it pays for, and knows then that the order is settled.
    pub(super) async fn settled(&self) -> anyhow::Result<((), StepSummary)> {
        let before = self.outgoing().await?.iter().map(|row| row.row_id).max();
        let order = json!({ "amount": self.amount("2.5")?, "summary": "a tea towel" });
        let made = self.sandbox("private/orders", Some(&json!({ "order": order }))).await?;
        let path = format!("private/orders/{}", made["order_id"].as_str().context("no order")?);
        let status = self.sandbox(&path, None).await?;
        let wallet = self.world.wallet(&format!("{CUSTOMER}{}", self.world.run))?;
        let uri = status["taler_pay_uri"].as_str().context("the order has no link")?;
        let offer = wallet.inspect_purchase(uri).await?;
        wallet.pay_purchase(&offer).await?;
        wallet.run(RunUntil::Finished(Some(PATIENCE))).await?;
        ensure!(
            self.sandbox(&path, None).await?["wired"] == false,
            "the order is settled before its transfer"
        );
        self.pay_due(offer.terms().wire_transfer_deadline).await?;
        transfer::run_until_idle(&self.world.app().core).await?;

        let mut rows = self.outgoing().await?;
        rows.retain(|row| before.is_none_or(|before| row.row_id > before));
        let mut count = 0;
        let mut arrived = Money::ZERO;
        for row in rows {
            if !PaytoUri::parse(row.credit_account.as_str())?.account().eq_ignore_ascii_case(SANDBOX) {
                continue;
            }
            let report = json!({
                "credit_amount": row.amount, "wtid": row.wtid, "payto_uri": payto(SANDBOX),
                "exchange_url": self.exchange_url,
            });
            let answer = self.sandbox("private/transfers", Some(&report)).await?;
            let answer: ReportTransferResponse = serde_json::from_value(answer)?;
            // What the exchange owes is more exact than what banks can transfer.
            let unit = self.world.app().core.config.currency_round_unit;
            let total = answer.total.money.round_down(unit)?;
            ensure!(total == row.amount.money, "the bank has {}, the backend {}", row.amount, answer.total);
            arrived = arrived.checked_add(row.amount.money)?;
            count += 1;
        }
        ensure!(count > 0, "the sandbox was not paid");
        let status = self.sandbox(&path, None).await?;
        ensure!(status["wired"] == true, "the order is not settled: {status}");
        let amount = arrived.of(self.world.currency);
        let summary =
            format!("{amount} at the sandbox's bank account, matched with its order to the last unit");
        Ok(((), StepSummary { count, summary }))
    }
}
