//! A small bookshop: the example of a shop that gets paid through a merchant backend.
//!
//! It keeps no data. A cookie has the number of the visitor's order and a random session; the backend knows whether
//! this order was paid in this session. So a link to an article can be shared, but only whoever paid reads it.
//!
//! | module | content |
//! |---|---|
//! | `backend` | the four requests to the merchant backend: read this first |
//! | `pages` | the pages |
//! | `articles` | what it sells |

mod articles;
mod backend;
mod pages;

use std::io::Read as _;
use std::sync::Arc;

use batzen_http::client::ClientError;
use batzen_http::{Drain, Drained, Listen, Request, Response, Server, ServerOptions, Style, header};
use batzen_metrics::Page;
use batzen_protocol::limits::NO_BODY_BYTES_MAX;
use batzen_service::dashboard::{COMMON, Layout};
use batzen_service::{Answer, Api, App, Monitor, Reach, Readiness, Table, endpoint};
use tokio::task::JoinHandle;

use articles::{ARTICLES, Article};
use backend::{Backend, State};

/// Random bytes of a session.
const SESSION_BYTES: usize = 16;
/// The cookie of an article: `SESSION.ORDER_ID`.
const COOKIE: &str = "purchase";
/// Values of the label `operation`.
const OPERATIONS: [&str; 2] = ["article", "other"];
const DASHBOARD: Layout = Layout { sections: COMMON, work: &["article"] };
/// The longest order number in a cookie.
const ORDER_ID_CHARS_MAX: usize = 64;

/// Where the shop is, and where its backend is.
#[derive(Clone)]
pub struct ShopOptions {
    /// TCP port on this machine; 0 picks a free one.
    pub port: u16,
    /// The shop's address in browsers; by default this machine's.
    pub base_url: Option<String>,
    /// The shop's instance at the backend, as customers reach it.
    pub backend_url: String,
    /// The instance's access token.
    pub token: String,
}

/// Why a shop does not start.
#[derive(Debug, thiserror::Error)]
pub enum ShopError {
    /// The port cannot be bound.
    #[error("cannot listen: {0}")]
    Bind(std::io::Error),
    /// The backend does not answer.
    #[error("the merchant backend: {0}")]
    Backend(#[from] ClientError),
}

/// A running shop.
pub struct RunningShop {
    url: String,
    drain: Drain,
    serving: JoinHandle<Drained>,
}

impl RunningShop {
    /// Starts the shop. Its backend must be running.
    ///
    /// # Errors
    /// [`ShopError`].
    pub async fn start(options: ShopOptions) -> Result<Self, ShopError> {
        let host = Some("127.0.0.1".to_owned());
        let listen = Listen::Tcp { host, port: options.port, share_port: false };
        let server = Server::bind(listen).await.map_err(ShopError::Bind)?;
        let port = server.bound().port().unwrap_or(options.port);
        let url = options.base_url.unwrap_or_else(|| format!("http://localhost:{port}/"));
        let url = format!("{}/", url.trim_end_matches('/'));
        let backend = Backend::new(&options.backend_url, &options.token)?;
        let currency = backend.currency().await?;
        let monitor = Monitor::new("shop", &OPERATIONS, &DASHBOARD, server.stats());
        let shop = Arc::new(Shop { url: url.clone(), currency, backend, monitor });
        let drain = Drain::new();
        let serving = tokio::spawn(server.serve(
            Arc::new(Api::new(shop, table())),
            ServerOptions::default(),
            drain.clone(),
        ));
        Ok(Self { url, drain, serving })
    }

    /// The shop's address, with a final slash.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Ends the shop.
    pub async fn shutdown(self) {
        self.drain.trigger();
        if let Err(error) = self.serving.await {
            tracing::error!(%error, "the shop ended abnormally");
        }
    }
}

fn table() -> Table<Shop> {
    Table::new(Style::ByFirstSegment, &OPERATIONS).monitored("other").reaching(Reach::Page, |table| {
        table
            .get("/", "other", endpoint!(catalogue))
            .get("/articles/:slug", "article", endpoint!(read))
            .post("/articles/:slug/buy", NO_BODY_BYTES_MAX, "article", endpoint!(buy))
            .post("/articles/:slug/return", NO_BODY_BYTES_MAX, "article", endpoint!(give_back))
    })
}

struct Shop {
    url: String,
    currency: String,
    backend: Backend,
    monitor: Monitor,
}

impl App for Shop {
    fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    async fn ready(&self) -> Readiness {
        Readiness::new().check_within("backend", self.backend.currency()).await
    }

    fn write_metrics(&self, _: &mut Page) {}
}

async fn catalogue(shop: &Shop, _: &Request) -> Response {
    pages::catalogue(&shop.currency)
}

async fn read(shop: &Shop, request: &Request) -> Answer {
    let article = article(request)?;
    Ok(match shop.state(request, article).await? {
        None => pages::offer(article, &shop.currency, None),
        Some(State::Due { pay_page }) => pages::offer(article, &shop.currency, Some(&pay_page)),
        Some(State::Paid { is_refunded: false, .. }) => pages::article(article),
        Some(State::Paid { page, .. }) => pages::returned(article, &page),
    })
}

async fn buy(shop: &Shop, request: &Request) -> Answer {
    let article = article(request)?;
    match shop.state(request, article).await? {
        None => shop.order(article).await.map_err(failed),
        Some(State::Due { pay_page }) => Ok(see_other(&pay_page)),
        Some(State::Paid { .. }) => Ok(see_other(&shop.url_of(article))),
    }
}

async fn give_back(shop: &Shop, request: &Request) -> Answer {
    let article = article(request)?;
    match shop.state(request, article).await? {
        Some(State::Paid { order_id, page, is_refunded: false }) => {
            shop.backend.refund(&order_id, &shop.price(article)).await.map_err(failed)?;
            Ok(see_other(&page))
        }
        _ => Ok(see_other(&shop.url_of(article))),
    }
}

/// The article that a path names.
fn article(request: &Request) -> Result<&'static Article, Response> {
    let slug = request.param("slug");
    let found = ARTICLES.iter().find(|article| article.slug == slug);
    found.ok_or_else(|| pages::message(404, "There is no such article."))
}

fn failed(error: ClientError) -> Response {
    tracing::warn!(%error, "the merchant backend failed");
    pages::message(502, "Payments do not work at the moment. Please try again.")
}

impl Shop {
    /// The state of the visitor's order of an article, if there is one.
    async fn state(&self, request: &Request, article: &Article) -> Result<Option<State>, Response> {
        let Some((session, order_id)) = purchase(request) else { return Ok(None) };
        self.backend.state(order_id, session, &self.url_of(article)).await.map_err(failed)
    }

    /// Orders an article, and sends the visitor to the page where she pays.
    async fn order(&self, article: &Article) -> Result<Response, ClientError> {
        let url = self.url_of(article);
        let order_id = self.backend.order(&self.price(article), article.title, &url).await?;
        let session = random_session();
        let state = self.backend.state(&order_id, &session, &url).await?;
        let Some(State::Due { pay_page: page } | State::Paid { page, .. }) = state else {
            return Ok(pages::message(502, "The order is lost. Please try again."));
        };
        let cookie =
            format!("{COOKIE}={session}.{order_id}; Path=/articles/{}; HttpOnly; SameSite=Lax", article.slug);
        Ok(see_other(&page).with_header(header::SET_COOKIE, &cookie))
    }

    /// Where an article is read: the fulfilment URL of its orders.
    fn url_of(&self, article: &Article) -> String {
        format!("{}articles/{}", self.url, article.slug)
    }

    fn price(&self, article: &Article) -> String {
        format!("{}:{}", self.currency, article.price)
    }
}

/// The visitor's session and order, from the cookie of the article.
fn purchase(request: &Request) -> Option<(&str, &str)> {
    let cookies = request.head.header(header::COOKIE)?.split(';');
    let value =
        cookies.filter_map(|cookie| cookie.trim().split_once('=')).find(|(name, _)| *name == COOKIE)?.1;
    value.split_once('.').filter(|(_, order_id)| order_id.len() <= ORDER_ID_CHARS_MAX)
}

/// A session that nobody can guess.
fn random_session() -> String {
    let mut bytes = [0; SESSION_BYTES];
    let mut source = std::fs::File::open("/dev/urandom").expect("the operating system has random numbers");
    source.read_exact(&mut bytes).expect("random numbers do not end");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn see_other(url: &str) -> Response {
    Response::empty(303).with_header(header::LOCATION, url)
}
