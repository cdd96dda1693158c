//! A merchant backend as a process, with one shop.

use std::path::{Path, PathBuf};

use batzen_http::client::{Call, Client, Reply};
use serde_json::Value;
use tokio::task::block_in_place;

use super::setup::{merchant_config, shop, wait_for};
use super::{Service, free_port, must};

/// The shop's access token.
pub(crate) const TOKEN: &str = "secret-token:books-and-secret";

/// A backend that is stopped, killed and restarted on the same port and store.
pub(crate) struct Backend {
    dir: PathBuf,
    pub config: String,
    pub port: u16,
    pub client: Client,
    service: Option<Service>,
}

impl Backend {
    /// A backend that trusts exchanges, given as URL and master key, and has further options. It does not run yet.
    pub(crate) fn new(dir: &Path, client: Client, exchanges: &[(&str, &str)], more: &str) -> Self {
        let port = free_port();
        let config = merchant_config(dir, port, exchanges, more);
        Self { dir: dir.to_owned(), config, port, client, service: None }
    }

    /// The same with its rows in this database, if there is one.
    pub(crate) fn stored(dir: &Path, client: Client, exchange: (&str, &str), database: Option<&str>) -> Self {
        let store = database.map_or_else(String::new, |url| {
            format!("DB = postgres\n[merchantdb-postgres]\nCONFIG = {url}\n")
        });
        let backend = Self::new(dir, client, &[exchange], &store);
        must(&["merchant", "dbinit", "-c", &backend.config]);
        backend
    }

    pub(crate) fn start(&mut self) {
        let words = ["merchant", "serve", "-c", &self.config];
        self.service = Some(Service::start(&self.dir, "merchant", &words));
        block_in_place(|| wait_for(self.port, "/ready"));
    }

    pub(crate) fn kill_9(&mut self) {
        block_in_place(|| self.service.take().unwrap().kill_9());
    }

    #[track_caller]
    pub(crate) fn stop(&mut self) {
        assert!(self.service.take().unwrap().terminate().0.success());
    }

    pub(crate) fn url(&self) -> String {
        format!("http://localhost:{}/", self.port)
    }

    /// Sends a request of the shop.
    pub(crate) async fn send(&self, call: Call<'_>) -> Reply {
        call.header("authorization", &format!("Bearer {TOKEN}")).send().await.unwrap()
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.send(self.client.post(format!("{}{path}", self.url())).json(body)).await
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        self.send(self.client.get(format!("{}{path}", self.url()))).await.ok().unwrap()
    }

    /// Opens the shop, which pays all deposit fees up to a limit.
    pub(crate) async fn open_shop(&self, max_deposit_fee: &str) {
        let shop = shop("Books", "books", TOKEN, max_deposit_fee);
        let reply = self.post("management/instances", &shop).await;
        assert_eq!(reply.status, 204, "{reply:?}");
    }
}
