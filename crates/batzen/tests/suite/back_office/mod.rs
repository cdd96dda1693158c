//! The back office of the merchant backend in a browser, as a shop owner uses it. Bank, exchange and backend are real
//! processes, and a real wallet pays.

mod money;
mod orders;
mod settings;
mod stock;

use std::ops::Deref;

use batzen_http::client::{Client, Method, Reply};
use serde_json::{Value, json};

use crate::common::backend::{Backend, TOKEN};
use crate::common::browser::Browser;
use crate::common::http::Http;

/// A running backend with a shop, and a browser.
struct Shop {
    _dir: tempfile::TempDir,
    base: String,
    http: Http,
    browser: Browser,
    backend: Backend,
}

impl Deref for Shop {
    type Target = Browser;

    fn deref(&self) -> &Browser {
        &self.browser
    }
}

impl Shop {
    /// A backend that trusts an exchange, given as URL and master key.
    fn open(exchange: (&str, &str), auth: &Value) -> Self {
        let (dir, http) = (tempfile::tempdir().unwrap(), Http::new());
        let mut backend = Backend::new(dir.path(), http.client.clone(), &[exchange], "");
        backend.start();
        let shop = Self { _dir: dir, base: backend.url(), http, browser: Browser::start(), backend };
        shop.add("default", "Books & Prints", auth);
        shop
    }

    fn client(&self) -> &Client {
        &self.http.client
    }

    fn add(&self, id: &str, name: &str, auth: &Value) {
        let shop = json!({
            "id": id, "name": name, "auth": auth,
            "payto_uris": ["payto://x-taler-bank/localhost/books?receiver-name=books"],
            "address": { "town": "Zurich", "x": "kept" }, "jurisdiction": { "country": "CH" },
            "default_max_wire_fee": "KUDOS:1", "default_max_deposit_fee": "KUDOS:0.01",
            "default_wire_fee_amortization": 1,
            "default_wire_transfer_delay": { "d_us": 0 }, "default_pay_delay": { "d_us": 3_600_000_000_u64 },
        });
        let reply = self.call(Method::POST, "management/instances", &shop);
        assert_eq!(reply.status, 204, "{reply:?}");
    }

    fn call(&self, method: Method, path: &str, body: &Value) -> Reply {
        self.http.wait(self.ask(method, path, body))
    }

    async fn ask(&self, method: Method, path: &str, body: &Value) -> Reply {
        let is_get = method == Method::GET;
        let call = self.client().call(method, format!("{}{path}", self.base));
        self.backend.send(if is_get { call } else { call.json(body) }).await
    }

    fn get(&self, path: &str) -> Value {
        self.call(Method::GET, path, &Value::Null).ok().unwrap()
    }

    /// Logs in at the page of the instance `default`.
    fn log_in(&self) {
        self.browser.open(&format!("{}webui/", self.base));
        self.until_shown("door");
        self.send("login", &[("token", TOKEN)]);
        self.until_text("shop", "Books & Prints");
    }

    fn open_view(&self, hash: &str, heading: &str) {
        self.browser.run(&format!("location.hash = {}", json!(hash)));
        self.browser.until(&format!("document.querySelector('#view h2')?.innerText === {}", json!(heading)));
    }

    fn send(&self, form: &str, fields: &[(&str, &str)]) {
        for (name, value) in fields {
            let field = format!("document.querySelector('#{form} [name={name}]')");
            let value = json!(value);
            self.browser.run(&format!(
                "{field}.value = {value}; {field}.dispatchEvent(new Event('change', {{ bubbles: true }}))"
            ));
        }
        self.click(&format!("#{form} button[type=submit]"));
    }

    /// Fills in the filters of the list at once, and waits until the list is drawn again: what is entered before that
    /// would be lost.
    fn filter(&self, fields: &[(&str, &str)]) {
        let set = |(name, value): &(&str, &str)| {
            format!("document.querySelector('#filters [name={name}]').value = {};", json!(value))
        };
        self.browser.run("window.drawn = document.querySelector('#filters')");
        self.browser.run(&fields.iter().map(set).collect::<String>());
        self.click("#filters button[type=submit]");
        self.browser.until("!window.drawn.isConnected");
    }

    fn text_of(&self, expression: &str) -> String {
        self.browser.run(&format!("return {expression}")).as_str().unwrap().to_owned()
    }

    /// Number of rows in the list of orders, once there are as many.
    fn until_rows(&self, count: usize) {
        self.browser.until(&format!("document.querySelectorAll('#orders tbody tr').length === {count}"));
    }

    fn audit(&self, name: &str) {
        self.browser.audit(&format!("back-office-{name}"));
    }

    /// Makes downloads readable for the test, since a page cannot read files.
    fn catch_downloads(&self) {
        self.browser.run(
            "window.saved = null;
             URL.createObjectURL = (blob) => { blob.text().then((text) => { window.saved = text; }); return 'blob:x'; };
             HTMLAnchorElement.prototype.click = function () { window.savedAs = this.download; };",
        );
    }

    /// Nothing was logged except requests that the backend refused, and all processes end well.
    fn close(mut self) {
        self.browser.assert_quiet();
        self.backend.stop();
    }
}

fn token_auth() -> Value {
    json!({ "method": "token", "token": TOKEN })
}

/// A backend that needs no exchange.
fn quiet_shop(auth: &Value) -> Shop {
    let key = batzen_crypto::EddsaPrivateKey::generate().public_key().to_string();
    Shop::open(("http://localhost:1/", &key), auth)
}
