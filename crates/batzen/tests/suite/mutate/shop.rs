//! Shops at a merchant backend: what their owners, their customers and the back office ask.

use batzen_crypto::EddsaPrivateKey;
use batzen_protocol::canonical::contract_hash;
use serde_json::{Value, json};

use crate::common::PATIENCE;
use crate::common::backend::TOKEN;
use crate::common::setup::shop as settings;
use crate::mutate::deployment::Deployment;
use crate::mutate::routes;
use crate::mutate::seeds::{Seed, Seeds};

/// The endpoints with which the default shop, whose token all requests of the administrator have, could be lost.
const HELD_BACK: [&str; 2] = ["POST /private/auth", "DELETE /private"];

pub(super) struct Shop<'a> {
    deployment: &'a Deployment,
    id: &'static str,
    base: String,
}

impl<'a> Shop<'a> {
    fn of(deployment: &'a Deployment, id: &'static str) -> Self {
        let base = if id == "default" { String::new() } else { format!("/instances/{id}") };
        Self { deployment, id, base }
    }

    /// Opens a shop. The first one is `default`.
    pub(super) fn open(deployment: &'a Deployment, id: &'static str) -> Self {
        let shop = Self::of(deployment, id);
        shop.administer("POST", "", &shop.settings());
        shop
    }

    fn settings(&self) -> Value {
        let mut settings = settings("Books", "books", TOKEN, "KUDOS:1");
        settings["id"] = json!(self.id);
        settings
    }

    /// Sends a request with the token, which must succeed.
    #[track_caller]
    fn send(&self, method: &str, path: &str, body: &Value) -> Value {
        self.send_to(method, &format!("{}/{path}", self.base), body)
    }

    /// Sends a request about a shop to the administrator's endpoints.
    #[track_caller]
    fn administer(&self, method: &str, path: &str, body: &Value) -> Value {
        self.send_to(method, &format!("/management/instances{path}"), body)
    }

    #[track_caller]
    fn send_to(&self, method: &str, target: &str, body: &Value) -> Value {
        self.deployment.merchant.proxy.send(with_token(method, target, body))
    }

    #[track_caller]
    fn get(&self, path: &str) -> Value {
        self.send("GET", path, &Value::Null)
    }

    /// Makes an order; returns its number and its token.
    fn order(&self, amount: &str, more: &Value) -> (String, Value) {
        let mut order = json!({ "amount": amount, "summary": "a book", "fulfillment_message": "enjoy" });
        order["delivery_location"] =
            json!({ "street": "Long Street", "town": "Bern", "$forgettable": { "street": true } });
        let mut wish = json!({ "order": order });
        wish.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let made = self.send("POST", "private/orders", &wish);
        (made["order_id"].as_str().unwrap().to_owned(), made["token"].clone())
    }

    /// A wallet pays for an order. Returns the order's number.
    fn buy(&self, wallet: &str, amount: &str, more: &Value) -> String {
        let (id, _) = self.order(amount, more);
        let uri = self.get(&format!("private/orders/{id}"))["taler_pay_uri"].clone();
        self.deployment.wallet(wallet, &["pay", uri.as_str().unwrap(), "--yes"]);
        assert_eq!(self.get(&format!("private/orders/{id}"))["order_status"], "paid");
        id
    }

    /// Sells something to a wallet, and refunds a part.
    pub(super) fn sell(&self, wallet: &str) {
        let id = self.buy(wallet, "KUDOS:3", &json!({ "refund_delay": { "d_us": 3_600_000_000_u64 } }));
        let wish = json!({ "refund": "KUDOS:1", "reason": "torn" });
        let approved = self.send("POST", &format!("private/orders/{id}/refund"), &wish);
        let refunds =
            self.deployment.wallet(wallet, &["refund", approved["taler_refund_uri"].as_str().unwrap()]);
        assert_eq!(refunds["refunds"][0]["amount"], "KUDOS:1", "{refunds}");
        assert_eq!(self.get(&format!("private/orders/{id}"))["refund_amount"], "KUDOS:1");
    }

    /// Uses every endpoint of a shop.
    fn use_everything(&self, wallet: &str) {
        self.keep_lists();
        self.take_orders();
        self.give_tips(wallet);
        self.get_money(wallet);
        self.sell(wallet);
        let uri = json!({ "uri": "taler://pay/shop.example/1/" });
        self.send("POST", "webui/qr", &uri);
        self.get("webui/app.js");
        let mut settings = self.settings();
        for name in ["id", "auth"] {
            settings.as_object_mut().unwrap().remove(name);
        }
        self.send("PATCH", "private", &settings);
        let (table, headers) = (routes::of(batzen_merchant::endpoints()), [("authorization", bearer(TOKEN))]);
        let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
        self.deployment.merchant.proxy.visit(&table, self.id, &headers);
    }

    /// Keeps products, templates, web hooks and tokens: adds, shows, changes and deletes them.
    fn keep_lists(&self) {
        let product = json!({
            "description": "a pen", "unit": "piece", "price": "KUDOS:0", "total_stock": 1_000_000, "taxes": [],
        });
        let template = json!({
            "template_description": "till",
            "template_contract":
                { "amount": "KUDOS:0", "minimum_age": 0, "pay_duration": { "d_us": 600_000_000 } },
        });
        let hook = json!({
            "event_type": "pay", "url": "http://127.0.0.1:9/", "http_method": "POST",
            "header_template": "X-Order: {{ order_id }}", "body_template": "{\"paid\":\"{{ amount }}\"}",
        });
        for (list, name, details) in [
            ("products", "product_id", product),
            ("templates", "template_id", template),
            ("webhooks", "webhook_id", hook),
        ] {
            for id in ["kept", "gone"] {
                let mut body = details.clone();
                body[name] = json!(id);
                self.send("POST", &format!("private/{list}"), &body);
            }
            self.get(&format!("private/{list}/kept"));
            self.send("PATCH", &format!("private/{list}/kept"), &details);
            self.send("DELETE", &format!("private/{list}/gone"), &Value::Null);
        }
        let lock = json!({ "lock_uuid": "cart", "duration": { "d_us": 60_000_000 }, "quantity": 1 });
        self.send("POST", "private/products/kept/lock", &lock);
        self.get("templates/kept");
        self.send("POST", "templates/kept", &json!({ "summary": "two rolls" }));
        self.token("orders");
        let tokens = self.get("private/tokens");
        let serial = &tokens["tokens"][0]["serial"];
        self.send("DELETE", &format!("private/tokens/{serial}"), &Value::Null);
    }

    /// Makes a further token.
    fn token(&self, scope: &str) -> String {
        let wish =
            json!({ "scope": scope, "duration": { "d_us": 86_400_000_000_u64 }, "description": "till" });
        self.send("POST", "private/token", &wish)["token"].as_str().unwrap().to_owned()
    }

    /// Serves customers who claim, pay nothing, show their receipt, and give up; and forgets and deletes orders.
    fn take_orders(&self) {
        let stock = json!({ "inventory_products": [{ "product_id": "kept", "quantity": 1 }] });
        let (free, token) = self.order("KUDOS:0", &stock);
        let h_contract = self.claim(&free, &token);
        let forgotten = json!({ "fields": ["$.delivery_location.street"] });
        self.send("PATCH", &format!("private/orders/{free}/forget"), &forgotten);
        let paid = self.send("POST", &format!("orders/{free}/pay"), &json!({ "coins": [] }));
        let receipt = json!({ "h_contract": h_contract, "sig": paid["sig"], "session_id": "elsewhere" });
        self.send("POST", &format!("orders/{free}/paid"), &receipt);
        self.get(&format!("orders/{free}?h_contract={}", h_contract.as_str().unwrap()));
        let (given_up, token) = self.order("KUDOS:1", &json!({}));
        let h_contract = self.claim(&given_up, &token);
        let coin = json!({
            "coin_pub": EddsaPrivateKey::generate().public_key(), "contribution": "KUDOS:1",
            "exchange_url": self.deployment.exchange.proxy.url(),
        });
        let abort = json!({ "h_contract": h_contract, "coins": [coin] });
        self.send("POST", &format!("orders/{given_up}/abort"), &abort);
        let (deleted, _) = self.order("KUDOS:1", &json!({}));
        self.send("DELETE", &format!("private/orders/{deleted}?force=yes"), &Value::Null);
    }

    /// Claims an order. Returns the hash of the contract.
    fn claim(&self, id: &str, token: &Value) -> Value {
        let nonce = EddsaPrivateKey::generate().public_key();
        let claimed =
            self.send("POST", &format!("orders/{id}/claim"), &json!({ "nonce": nonce, "token": token }));
        json!(contract_hash(&claimed["contract_terms"]).unwrap())
    }

    fn give_tips(&self, wallet: &str) {
        let wish = json!({
            "initial_balance": "KUDOS:5", "exchange_url": self.deployment.exchange.proxy.url(),
            "wire_method": "x-taler-bank",
        });
        let [filled, empty] = [(), ()].map(|()| {
            let made = self.send("POST", "private/reserves", &wish);
            made["reserve_pub"].as_str().unwrap().to_owned()
        });
        self.send("DELETE", &format!("private/reserves/{empty}"), &Value::Null);
        let credit = json!({
            "reserve_pub": filled, "amount": "KUDOS:5",
            "debit_account": "payto://x-taler-bank/localhost/books?receiver-name=books",
        });
        let gateway = Seed::new("POST", "/taler-wire-gateway/exchange/admin/add-incoming");
        self.deployment.bank.proxy.send(gateway.json(&credit));
        let seen = with_token("GET", &format!("{}/private/reserves/{filled}", self.base), &Value::Null);
        self.deployment.merchant.proxy.until(&seen, |seen| seen["exchange_initial_amount"] == "KUDOS:5");
        let wish = json!({
            "amount": "KUDOS:0.5", "justification": "a survey", "next_url": "https://shop.example/thanks",
        });
        self.send("POST", &format!("private/reserves/{filled}/authorize-tip"), &wish);
        let tip = self.send("POST", "private/tips", &wish);
        self.deployment.wallet(wallet, &["tip", tip["taler_tip_uri"].as_str().unwrap(), "--yes"]);
        self.get(&format!("private/tips/{}", tip["tip_id"].as_str().unwrap()));
    }

    /// Waits for the transfer of a payment and reports it; and takes back the report of another, which never came.
    fn get_money(&self, wallet: &str) {
        let id = self.buy(wallet, "KUDOS:1", &json!({}));
        let order =
            with_token("GET", &format!("{}/private/orders/{id}?transfer=YES", self.base), &Value::Null);
        let is_wired = |order: &Value| !order["wire_details"].as_array().is_none_or(Vec::is_empty);
        let seen = self.deployment.merchant.proxy.until(&order, is_wired);
        let wtid = seen["wire_details"][0]["wtid"].as_str().unwrap();
        let exchange = &self.deployment.exchange.proxy;
        let transfer = exchange.send(Seed::new("GET", &format!("/transfers/{wtid}")));
        let report = |wtid: &str, credit: &Value| {
            json!({
                "credit_amount": credit, "wtid": wtid, "exchange_url": exchange.url(),
                "payto_uri": "payto://x-taler-bank/localhost/books?receiver-name=books",
            })
        };
        self.send("POST", "private/transfers", &report(wtid, &transfer["total"]));
        let other = EddsaPrivateKey::generate().public_key().to_string();
        let target = format!("{}/private/transfers", self.base);
        let refused = with_token("POST", &target, &report(&other, &json!("KUDOS:1")));
        self.deployment.merchant.proxy.ask(refused);
        let list = self.get("private/transfers");
        let wrong = list["transfers"].as_array().unwrap().iter().find(|transfer| transfer["wtid"] == other);
        let serial = &wrong.unwrap_or_else(|| panic!("{list}"))["transfer_serial_id"];
        self.send("DELETE", &format!("private/transfers/{serial}"), &Value::Null);
    }

    /// Lets shops use everything, and returns the requests. The first shop is open.
    pub(super) fn seeds(deployment: &'a Deployment) -> Seeds {
        let auth = json!({ "method": "token", "token": TOKEN });
        let default = Self::of(deployment, "default");
        default.await_confirmations();
        // Without its books, the first shop is opened again.
        default.send("POST", "private/auth", &auth);
        default.send("DELETE", "private?purge=YES", &Value::Null);
        Self::open(deployment, "default").use_everything("first");
        Self::open(deployment, "books").use_everything("first");
        let spare = Self::open(deployment, "spare");
        spare.get("private");
        let mut settings = spare.settings();
        settings["name"] = json!("Others");
        spare.administer("PATCH", "/spare", &settings);
        for page in ["/spare", "/spare/kyc"] {
            spare.administer("GET", page, &Value::Null);
        }
        spare.administer("POST", "/spare/auth", &auth);
        spare.send("POST", "private/auth", &auth);
        spare.send("DELETE", "private?purge=YES", &Value::Null);
        Self::open(deployment, "spare").administer("DELETE", "/spare?purge=YES", &Value::Null);
        Self::open(deployment, "spare");
        let mut seeds = Seeds::recorded(batzen_merchant::endpoints(), &deployment.merchant.proxy, &[]);
        // A token that may only read is no guess, but opens none of these.
        seeds.hold_back(&HELD_BACK, &bearer(&default.token("readonly")));
        seeds
    }

    /// Waits until the backend has shown the auditor what the exchange has confirmed.
    fn await_confirmations(&self) {
        let deadline = std::time::Instant::now() + PATIENCE;
        let is_shown = |seed: &Seed| seed.is_valid && seed.method == "PUT";
        while !self.deployment.auditor.proxy.seeds().iter().any(is_shown) {
            assert!(std::time::Instant::now() < deadline, "the auditor gets no confirmation");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

fn with_token(method: &str, target: &str, body: &Value) -> Seed {
    let seed = Seed::new(method, target).header("authorization", &bearer(TOKEN));
    if body.is_null() { seed } else { seed.json(body) }
}
