//! The back office of the merchant backend in a browser, as a shop owner uses it. Bank, exchange and backend are real
//! processes, and a real wallet pays.

use std::path::Path;
use std::time::{Duration, Instant};

use batzen_http_client::{Client, ClientOptions, Method, Reply};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::common::browser::{Browser, keep_pictures};
use crate::common::setup::{config_with_fees, wait_for};
use crate::common::{Service, free_port, run, stderr, stdout};

const TOKEN: &str = "secret-token:books";
/// How fast the page shows a payment.
const SHOWN_MAX: Duration = Duration::from_secs(1);
/// Orders of a busy shop.
const MANY: usize = 1_000;
/// Requests at a time while these are created.
const AT_ONCE: usize = 32;

/// A running backend with a shop, and a browser.
struct Shop {
    dir: tempfile::TempDir,
    base: String,
    runtime: tokio::runtime::Runtime,
    client: Client,
    browser: Browser,
    backend: Option<Service>,
}

impl Shop {
    /// A backend that trusts an exchange, given as URL and master key.
    fn open(exchange: (&str, &str), auth: &Value) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = free_port();
        let file = dir.path().join("merchant.conf");
        let text = format!(
            "[taler]\nCURRENCY = KUDOS\n[merchant-exchange-one]\nEXCHANGE_BASE_URL = {}\nMASTER_KEY = {}\n\
             CURRENCY = KUDOS\n[merchant]\nPORT = {port}\nBIND_TO = 127.0.0.1\nDATA_DIR = {}\n",
            exchange.0,
            exchange.1,
            dir.path().join("data").display()
        );
        std::fs::write(&file, text).unwrap();
        let words = ["merchant", "serve", "-c", file.to_str().unwrap()];
        let backend = Some(Service::start(dir.path(), "merchant", &words));
        wait_for(port, "/ready");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime.block_on(async { Client::new(&ClientOptions::default()).unwrap() });
        let base = format!("http://localhost:{port}/");
        let shop = Self { dir, base, runtime, client, browser: Browser::start(), backend };
        shop.add("default", "Books & Prints", auth);
        shop
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
        self.runtime.block_on(self.ask(method, path, body))
    }

    async fn ask(&self, method: Method, path: &str, body: &Value) -> Reply {
        let is_get = method == Method::GET;
        let call = self.client.call(method, format!("{}{path}", self.base));
        let call = call.header("authorization", &format!("Bearer {TOKEN}"));
        if is_get { call.send().await.unwrap() } else { call.json(body).send().await.unwrap() }
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

    fn click(&self, selector: &str) {
        // A busy page ignores clicks.
        let is_ready =
            format!("document.querySelector('{selector}')?.hasAttribute('aria-disabled') === false");
        self.browser.until(&is_ready);
        self.browser.run(&format!("document.querySelector('{selector}').click()"));
    }

    fn until_text(&self, id: &str, text: &str) {
        let text = json!(text);
        self.browser.until(&format!("document.getElementById('{id}')?.innerText.includes({text})"));
    }

    fn until_shown(&self, id: &str) {
        self.browser.until(&format!("document.getElementById('{id}')?.offsetParent"));
    }

    /// The error is shown beside its field, which is marked for screen readers and has the focus.
    fn until_error(&self, field: &str, text: &str) {
        self.until_text(&format!("{field}-error"), text);
        let input = format!("document.getElementById('{field}')");
        let told = format!(
            "return {input}.getAttribute('aria-invalid') === 'true' && document.activeElement === {input}
             && {input}.getAttribute('aria-describedby').split(' ').includes('{field}-error')"
        );
        assert_eq!(self.browser.run(&told), json!(true), "{field}");
    }

    fn text_of(&self, expression: &str) -> String {
        self.browser.run(&format!("return {expression}")).as_str().unwrap().to_owned()
    }

    /// Number of rows in the list of orders, once there are as many.
    fn until_rows(&self, count: usize) {
        self.browser.until(&format!("document.querySelectorAll('#orders tbody tr').length === {count}"));
    }

    fn audit(&self, name: &str) {
        self.browser.audit(self.pictures(), &format!("back-office-{name}"));
    }

    fn pictures(&self) -> &Path {
        self.dir.path()
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
        let is_refusal = |line: &String| line.contains("responded with a status of 4");
        let said: Vec<String> = self.browser.console().into_iter().filter(|line| !is_refusal(line)).collect();
        assert!(said.is_empty(), "the console says {said:?}");
        keep_pictures(self.pictures());
        assert!(self.backend.take().unwrap().terminate().0.success());
    }
}

fn token_auth() -> Value {
    json!({ "method": "token", "token": TOKEN })
}

/// The master key of an exchange.
fn master_key(exchange_url: &str) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let keys: Value = runtime
        .block_on(async {
            let client = Client::new(&ClientOptions::default()).unwrap();
            client.get_json(format!("{exchange_url}keys")).await.unwrap().ok()
        })
        .unwrap();
    keys["master_public_key"].as_str().unwrap().to_owned()
}

/// A backend that needs no exchange.
fn quiet_shop(auth: &Value) -> Shop {
    let key = batzen_crypto::EddsaPrivateKey::generate().public_key().to_string();
    Shop::open(("http://localhost:1/", &key), auth)
}

#[test]
fn an_order_is_paid_and_refunded_while_its_page_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let (bank_port, exchange_port) = (free_port(), free_port());
    let config = config_with_fees(dir.path(), bank_port, exchange_port, "");
    let bank = Service::start(dir.path(), "bank", &["bank", "serve", "-c", &config]);
    wait_for(bank_port, "/taler-bank-integration/config");
    let exchange = Service::start(dir.path(), "exchange", &["exchange", "serve", "-c", &config]);
    wait_for(exchange_port, "/keys");
    wait_for(exchange_port, "/wire");
    let exchange_url = format!("http://localhost:{exchange_port}/");
    let master = master_key(&exchange_url);
    let shop = Shop::open((&exchange_url, &master), &token_auth());
    let wallet_file = dir.path().join("wallet.db").to_str().unwrap().to_owned();
    let wallet = |words: &[&str]| {
        let words = [&["wallet", "--wallet", &wallet_file, "--json"][..], words].concat();
        let output = run(&words);
        assert!(output.status.success(), "{words:?}: {}{}", stdout(&output), stderr(&output));
    };
    let bank_url = format!("http://localhost:{bank_port}/");
    let at_bank = ["--bank", &bank_url, "--user", "zoe", "--password", "zoe", "--exchange", &exchange_url];
    wallet(&[&["withdraw", "--yes", "--amount", "KUDOS:20"][..], &at_bank].concat());

    shop.log_in();
    shop.until_text("nothing", "No orders yet");
    shop.open_view("#/new", "New order");
    shop.send("new-order", &[("amount", "three"), ("summary", "x")]);
    shop.until_error("order-amount", "such as 12.50");
    shop.audit("new-order");
    let summary = "a <b>book</b> & tea";
    shop.send("new-order", &[("amount", "3,5"), ("summary", summary)]);
    shop.until_text("payment", "Let your customer scan this code");
    shop.browser.until("document.querySelector('#payment .qr path')");
    assert!(shop.text_of("document.querySelector('#view h2').innerText").contains(summary));
    shop.until_text("state", "Not paid");
    shop.audit("order-unpaid");

    // The wallet pays. The page is neither loaded again nor touched; it turns green by itself.
    let uri = shop.text_of("document.getElementById('pay-uri').value");
    assert!(uri.starts_with("taler+http://pay/localhost:"), "{uri}");
    shop.browser.run(
        "window.same = true;
         new MutationObserver(() => { window.paidAt ??= document.querySelector('#payment.paid') && Date.now(); })
             .observe(document.body, { subtree: true, childList: true, attributes: true });",
    );
    wallet(&["pay", &uri, "--yes"]);
    let paid = Instant::now();
    shop.browser.until("window.paidAt");
    assert!(paid.elapsed() < SHOWN_MAX, "the page turns green only after {:?}", paid.elapsed());
    shop.until_text("payment", "Paid 3.50 KUDOS");
    shop.until_text("state", "Paid");
    assert_eq!(shop.browser.run("return window.same"), json!(true));
    let green = "getComputedStyle(document.getElementById('payment')).borderTopColor";
    shop.browser.until(&format!("{green} === 'rgb(23, 100, 58)'"));
    shop.audit("order-paid");

    // A part is refunded, and the wallet takes it.
    shop.send("refund", &[("amount", "4"), ("reason", "torn")]);
    shop.until_error("refund-amount", "more than what is left");
    shop.send("refund", &[("amount", "1.5"), ("reason", "")]);
    shop.until_error("refund-reason", "Enter a reason");
    shop.send("refund", &[("amount", "1.5"), ("reason", "torn <page>")]);
    shop.until_text("message", "Refunded 1.50 KUDOS");
    shop.until_text("refund-lines", "torn <page>");
    shop.until_text("refund-lines", "Not taken");
    shop.until_text("state", "Partly refunded");
    shop.browser.until("document.querySelector('#refund-offer .qr path')");
    shop.audit("order-refunded");
    let id = shop.text_of("decodeURIComponent(location.hash.split('/')[2])");
    let seen = shop.get(&format!("private/orders/{id}"));
    assert_eq!((&seen["refund_amount"], &seen["refund_pending"]), (&json!("KUDOS:1.5"), &json!(true)));
    // The code is there again after a reload, and nothing more is refunded by that.
    shop.browser.run("location.reload()");
    shop.browser.until("document.querySelector('#refund-offer .qr path')");
    let uri = shop.text_of("document.getElementById('refund-uri').value");
    assert!(uri.starts_with("taler+http://refund/localhost:") && uri.ends_with(&format!("/{id}/")), "{uri}");
    let seen = shop.get(&format!("private/orders/{id}"));
    assert_eq!(seen["refund_amount"], "KUDOS:1.5");
    // As the wallet does with that link.
    let h_contract =
        seen["order_status_url"].as_str().unwrap().split("h_contract=").nth(1).unwrap().to_owned();
    let path = format!("orders/{id}/refund");
    let taken = shop.call(Method::POST, &path, &json!({ "h_contract": h_contract }));
    assert_eq!(taken.status, 200, "{taken:?}");
    shop.until_text("refund-lines", "Taken");
    shop.browser.until("!document.getElementById('refund-offer')");
    shop.until_text("refund-amount-hint", "Up to 2.00 KUDOS");

    // The list shows it, in the right drawers.
    shop.open_view("#/orders", "Orders");
    shop.until_text("orders", summary);
    shop.until_text("orders", "Refunded");
    shop.open_view("#/orders?state=unpaid", "Orders");
    shop.until_text("nothing", "No order fits");
    shop.close();
    for service in [exchange, bank] {
        assert!(service.terminate().0.success());
    }
}

#[test]
fn access_and_settings() {
    let shop = quiet_shop(&token_auth());
    shop.add("prints", "Prints", &json!({ "method": "token", "token": "secret-token:prints" }));
    shop.browser.open(&shop.base);
    shop.browser.until("document.querySelector('a[href=\"webui/\"]')");
    shop.audit("home");
    shop.browser.run("document.querySelector('a[href=\"webui/\"]').click()");
    shop.until_shown("door");
    for (instance, token, field, problem) in [
        ("default", "", "login-token", "Enter the access token"),
        ("default", "secret-token:wrong", "login-token", "The access token is wrong"),
        ("nobody", TOKEN, "login-instance", "There is no shop with this id"),
        // The administrator's token does not open other shops.
        ("prints", TOKEN, "login-token", "The access token is wrong"),
    ] {
        shop.send("login", &[("instance", instance), ("token", token)]);
        shop.until_error(field, problem);
    }
    shop.audit("login");
    // Another shop's page is opened; without the prefix of the token.
    shop.send("login", &[("instance", "prints"), ("token", "prints")]);
    shop.until_text("shop", "Prints");
    assert_eq!(shop.text_of("location.pathname"), "/instances/prints/webui/");
    // The token is in this tab's storage only.
    assert_eq!(shop.browser.run("return [document.cookie, localStorage.length]"), json!(["", 0]));
    shop.browser.open(&format!("{}webui", shop.base));
    shop.until_shown("door");
    assert_eq!(shop.text_of("location.pathname"), "/webui/");
    shop.send("login", &[("token", TOKEN)]);
    shop.until_text("shop", "Books & Prints");

    // Settings: what is not shown is kept.
    shop.open_view("#/settings", "Settings");
    shop.send("shop-form", &[("name", ""), ("town", "Basel")]);
    shop.until_error("shop-name", "Enter the name");
    shop.audit("settings");
    shop.send("shop-form", &[("name", "Books"), ("email", "a@shop.example"), ("street", "Quai")]);
    shop.until_text("message", "Saved");
    shop.until_text("shop", "Books");
    shop.send("defaults-form", &[("pay", "soon")]);
    shop.until_error("pay-delay", "number of hours");
    shop.send("defaults-form", &[("pay", "1.5"), ("wire", "2"), ("default_max_wire_fee", "0,25")]);
    shop.until_text("message", "Saved");
    let seen = shop.get("private");
    let expected = json!({
        "name": "Books", "email": "a@shop.example", "address": { "town": "Basel", "street": "Quai", "x": "kept" },
        "jurisdiction": { "country": "CH" }, "default_pay_delay": { "d_us": 5_400_000_000_u64 },
        "default_wire_transfer_delay": { "d_us": 172_800_000_000_u64 }, "default_max_wire_fee": "KUDOS:0.25",
        "default_max_deposit_fee": "KUDOS:0.01", "default_wire_fee_amortization": 1,
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&seen[name], value, "{name}");
    }

    // Accounts.
    shop.open_view("#/accounts", "Bank accounts");
    shop.send("add-account", &[("payto", "payto://iban/CH00")]);
    shop.until_error("account-payto", "not the payto:// address");
    shop.send("add-account", &[("payto", "payto://iban/CH9300762011623852957?receiver-name=Books")]);
    shop.until_text("account-lines", "IBAN CH9300762011623852957");
    shop.audit("accounts");
    shop.click("#account-lines li:first-child button");
    shop.until_text("account-lines", "Not used");
    let accounts = shop.get("private")["accounts"].clone();
    let actives: Vec<_> = accounts.as_array().unwrap().iter().map(|account| &account["active"]).collect();
    assert_eq!(actives, [&json!(false), &json!(true)]);

    // The token is changed: the page goes on, the old token is worth nothing.
    shop.open_view("#/settings", "Settings");
    shop.send("token-form", &[("token", "short")]);
    shop.until_error("new-token", "8 to 200");
    shop.click("#make-token");
    shop.click("#token-form button[type=submit]");
    shop.until_text("message", "The access token is changed");
    assert_eq!(shop.call(Method::GET, "private", &Value::Null).status, 401);
    shop.browser.run("location.reload()");
    shop.until_text("shop", "Books");
    // Somebody else changes it: the page says so.
    let key = "sessionStorage.key(0)";
    let token = shop.text_of(&format!("sessionStorage.getItem({key})"));
    let change = format!(
        "return fetch('../private/auth', {{ method: 'POST', headers: {{ authorization: 'Bearer {token}' }}, \
         body: {} }}).then((answer) => answer.status)",
        json!(token_auth().to_string())
    );
    assert_eq!(shop.browser.run(&change), 204);
    shop.browser.run("location.hash = '#/accounts'");
    shop.until_shown("door");
    shop.until_text("message", "not valid any more");
    shop.send("login", &[("token", TOKEN)]);
    shop.until_text("shop", "Books");
    shop.click("#logout");
    shop.until_shown("door");
    assert_eq!(shop.browser.run(&format!("return {key}")), "batzen-merchant /instances/prints/");
    shop.close();
}

#[test]
fn a_shop_behind_a_proxy_needs_no_token() {
    let shop = quiet_shop(&json!({ "method": "external" }));
    shop.browser.open(&format!("{}webui/", shop.base));
    shop.until_text("nothing", "No orders yet");
    assert_eq!(shop.browser.run("return document.getElementById('logout').hidden"), json!(true));
    shop.open_view("#/new", "New order");
    let url = "https://shop.example/${ORDER_ID}";
    let wish = [("amount", "2"), ("summary", "tea"), ("refund", "0"), ("fulfillment", "url"), ("url", url)];
    shop.send("new-order", &[&wish[..], &[("order_id", "a/b")]].concat());
    shop.until_error("order-id", "letters, digits");
    shop.send("new-order", &[("order_id", "tea-1")]);
    shop.until_text("payment", "Let your customer scan this code");
    let page = shop.text_of("document.getElementById('status-url').value");
    let due: Value =
        shop.call(Method::GET, page.strip_prefix(&shop.base).unwrap(), &Value::Null).json().unwrap();
    assert_eq!(due["fulfillment_url"], "https://shop.example/tea-1");
    // An order of this id with other contents.
    shop.open_view("#/new", "New order");
    shop.send("new-order", &[("amount", "3"), ("summary", "tea"), ("order_id", "tea-1")]);
    shop.until_text("message", "There is another order with this id");
    // A page about an order that does not exist.
    shop.browser.run("location.hash = '#/order/none'");
    shop.until_text("view", "There is no such order");
    shop.close();
}

/// Creates the orders of a busy shop, several at a time.
async fn create_many(client: &Client, base: &str) {
    let mut tasks = JoinSet::new();
    for stripe in 0..AT_ONCE {
        let (client, url) = (client.clone(), format!("{base}private/orders"));
        tasks.spawn(async move {
            for number in (stripe..MANY).step_by(AT_ONCE) {
                let summary = match number {
                    400 => "=SUM(A1), a \"rare\" print".to_owned(),
                    _ => format!("book {number:04}"),
                };
                let order = json!({
                    "amount": format!("KUDOS:{}.5", number % 90), "summary": summary,
                    "order_id": format!("o-{number:04}"),
                });
                let call = client.post(&url).header("authorization", &format!("Bearer {TOKEN}"));
                let reply = call.json(&json!({ "order": order })).send().await.unwrap();
                assert_eq!(reply.status, 200, "{reply:?}");
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

#[test]
fn a_thousand_orders() {
    let shop = quiet_shop(&token_auth());
    shop.runtime.block_on(create_many(&shop.client, &shop.base));
    shop.log_in();
    shop.until_rows(50);
    shop.audit("many-orders");
    // Every order is on exactly one page.
    let mut ids = Vec::new();
    let rows = "[...document.querySelectorAll('#orders tbody .note')].map((node) => node.innerText)";
    let page =
        || -> Vec<String> { serde_json::from_value(shop.browser.run(&format!("return {rows}"))).unwrap() };
    let first = page();
    loop {
        let now = page();
        ids.extend(now.iter().cloned());
        let older = "[...document.querySelectorAll('.pages a')].find((link) => link.innerText === 'Older')";
        if shop.browser.run(&format!("return Boolean({older})")) == json!(false) {
            break;
        }
        shop.browser.run(&format!("{older}.click()"));
        shop.browser.until(&format!("{rows}[0] !== {}", json!(now[0])));
    }
    let mut all = ids.clone();
    all.sort();
    assert_eq!(all, (0..MANY).map(|number| format!("o-{number:04}")).collect::<Vec<_>>());
    // And back.
    let newer = "[...document.querySelectorAll('.pages a')].find((link) => link.innerText === 'Newer')";
    shop.browser.run(&format!("{newer}.click()"));
    shop.browser.until(&format!("{rows}[0] === {}", json!(ids[MANY - 100])));
    shop.browser.run(
        "[...document.querySelectorAll('.pages a')].find((link) => link.innerText === 'Newest').click()",
    );
    shop.browser.until(&format!("{rows}[0] === {}", json!(first[0])));

    // Search: far back, in summaries and ids.
    shop.send("filters", &[("q", "RARE")]);
    shop.until_rows(1);
    assert_eq!(page(), ["o-0400"]);
    shop.catch_downloads();
    shop.click("#csv");
    shop.browser.until("window.saved");
    let file = shop.text_of("window.saved");
    let lines: Vec<&str> = file.split("\r\n").collect();
    assert_eq!(lines.len(), 3, "{file}");
    assert_eq!(lines[0], "order_id,time,summary,amount,currency,paid,refundable");
    let [id, time, rest] = lines[1].splitn(3, ',').collect::<Vec<_>>()[..] else { panic!("{file}") };
    assert!(id == "o-0400" && time.ends_with("Z"), "{file}");
    // A spreadsheet does not take it for a formula.
    assert_eq!(rest, "\"'=SUM(A1), a \"\"rare\"\" print\",40.50,KUDOS,no,no");
    shop.send("filters", &[("q", "o-09")]);
    shop.until_rows(50);
    shop.send("filters", &[("q", "nowhere")]);
    shop.until_text("nothing", "No order fits");

    // Filters.
    shop.send("filters", &[("q", ""), ("state", "paid")]);
    shop.until_text("nothing", "No order fits");
    shop.send("filters", &[("state", "unpaid")]);
    shop.until_rows(50);
    let day = |offset: i64| {
        let day = format!("new Date(Date.now() + {offset} * 86400000)");
        shop.text_of(&format!("{day}.toLocaleDateString('sv')"))
    };
    shop.send("filters", &[("from", &day(1))]);
    shop.until_text("nothing", "No order fits");
    shop.send("filters", &[("from", &day(-1)), ("to", &day(-1))]);
    shop.until_text("nothing", "No order fits");
    shop.send("filters", &[("to", &day(0))]);
    shop.until_rows(50);
    // All of them in a file.
    shop.catch_downloads();
    shop.click("#csv");
    shop.until_text("message", &format!("{MANY} orders are in the file"));
    shop.browser.until("window.saved");
    assert_eq!(shop.text_of("window.saved").split("\r\n").count(), MANY + 2);
    assert_eq!(shop.text_of("window.savedAs"), "orders.csv");

    // A new order comes by itself.
    shop.open_view("#/orders", "Orders");
    shop.until_rows(50);
    shop.call(
        Method::POST,
        "private/orders",
        &json!({ "order": { "amount": "KUDOS:1", "summary": "fresh" } }),
    );
    shop.until_text("orders", "fresh");
    shop.close();
}
