//! Payments, refunds, transfers and tips, with a real exchange, bank and wallet.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Shop, token_auth};
use crate::common::customer::{credit, fill};
use crate::common::http::Http;
use crate::common::site::Site;
use crate::common::{PATIENCE, Service, end};
use crate::crash::coins::money;

/// The exchange aggregates and transfers without a pause.
const QUICK: &str = "[exchange]\nAGGREGATOR_IDLE_SLEEP_INTERVAL = 1 s\nTRANSFER_IDLE_SLEEP_INTERVAL = 1 s\n";

/// A bank, an exchange, and a wallet with 20 KUDOS.
struct World {
    site: Site,
    services: [Service; 2],
}

impl World {
    fn start() -> Self {
        let site = Site::with_fees(QUICK);
        let services = [site.start_bank(), site.start_exchange()];
        site.withdraw("wallet", "KUDOS:20");
        Self { site, services }
    }

    fn wallet(&self, words: &[&str]) {
        self.site.must_wallet("wallet", &[&["--json"][..], words].concat());
    }

    /// A shop that trusts the exchange.
    fn shop(&self) -> Shop {
        let exchange_url = self.site.exchange_url();
        let keys: Value = serde_json::from_str(&Http::new().text(&format!("{exchange_url}keys"))).unwrap();
        let master = keys["master_public_key"].as_str().unwrap();
        Shop::open((&exchange_url, master), &token_auth())
    }

    fn end(self) {
        end(self.services.into_iter().rev());
    }
}

#[test]
fn an_order_is_paid_and_refunded_while_its_page_is_open() {
    let world = World::start();
    let shop = world.shop();
    let wallet = |words: &[&str]| world.wallet(words);
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
    shop.browser.until("window.paidAt");
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
    wallet(&["refund", &uri]);
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
    world.end();
}

#[test]
fn money_reaches_the_bank_and_tips_reach_customers() {
    let world = World::start();
    let shop = world.shop();
    shop.log_in();
    shop.open_view("#/new", "New order");
    let wish = [("amount", "2"), ("summary", "tea"), ("refund", "0"), ("order_id", "tea")];
    shop.send("new-order", &wish);
    shop.until_shown("pay-uri");
    world.wallet(&["pay", &shop.text_of("document.getElementById('pay-uri').value"), "--yes"]);
    shop.until_text("payment", "Paid 2.00 KUDOS");
    let deadline = Instant::now() + PATIENCE;
    let wire = loop {
        let seen = shop.get("private/orders/tea?transfer=YES");
        if let Some(wire) = seen["wire_details"].as_array().unwrap().first() {
            break wire.clone();
        }
        assert!(Instant::now() < deadline, "no transfer: {seen}");
        std::thread::sleep(Duration::from_millis(200));
    };
    let wtid = wire["wtid"].as_str().unwrap();
    shop.browser.run("location.reload()");
    shop.until_text("order-transfers", wtid);
    shop.until_text("order-transfers", "Announced");

    // What the bank has booked is reported.
    shop.open_view("#/transfers", "Transfers");
    shop.until_text("transfers", "Announced");
    shop.audit("transfers");
    let wired = wire["amount"].as_str().unwrap().split_once(':').unwrap().1;
    shop.send("report", &[("amount", wired), ("wtid", "x"), ("exchange", &world.site.exchange_url())]);
    shop.until_error("report-wtid", "52 letters and digits");
    shop.send("report", &[("wtid", wtid)]);
    shop.until_text("transfer-result", "The exchange confirms this transfer");
    shop.until_text("transfer-result", "tea");
    shop.until_text("transfers", "Arrived");
    shop.until_text("transfers", "Verified");
    shop.audit("transfer-reported");
    // The same subject with another amount is a mistake.
    shop.send("report", &[("amount", "7"), ("wtid", wtid), ("exchange", &world.site.exchange_url())]);
    shop.until_error("report-amount", "reported with another amount");
    shop.open_view("#/orders?state=wired", "Orders");
    shop.until_text("orders", "Transferred");

    // Money for tips: set up, transferred by the shop, given.
    shop.open_view("#/tips", "Tips");
    shop.until_text("nothing", "No money for tips yet");
    shop.send("new-reserve", &[("amount", "0"), ("exchange", &world.site.exchange_url())]);
    shop.until_error("reserve-amount", "such as 50.00");
    shop.send("new-reserve", &[("amount", "10")]);
    shop.until_shown("reserve-transfer");
    shop.audit("reserve");
    let reserve_pub = shop.text_of("document.getElementById('reserve-pub').value");
    let payto = shop.text_of("document.getElementById('reserve-payto').value");
    assert!(payto.starts_with("payto://x-taler-bank/localhost/exchange"), "{payto}");
    let request = credit(reserve_pub.parse().unwrap(), money("10"), "books");
    shop.http.wait(fill(shop.client(), world.site.bank_port, &request));
    // The page sees by itself that the money is there.
    shop.until_shown("tip");
    let page = "https://shop.example/thanks";
    shop.send("tip", &[("amount", "2.5"), ("reason", "a survey"), ("next", "shop")]);
    shop.until_error("tip-next", "begins with https://");
    shop.send("tip", &[("next", page)]);
    shop.until_shown("tip-uri");
    shop.browser.until("document.querySelector('#view .qr path')");
    shop.audit("tip");
    let uri = shop.text_of("document.getElementById('tip-uri').value");
    assert!(uri.starts_with("taler+http://tip/localhost:"), "{uri}");
    let seen = shop.get(&format!("private/reserves/{reserve_pub}?tips=yes"));
    assert_eq!(
        (&seen["committed_amount"], &seen["tips"][0]["reason"]),
        (&json!("KUDOS:2.5"), &json!("a survey"))
    );
    world.wallet(&["tip", &uri, "--yes"]);
    shop.open_view("#/tips", "Tips");
    shop.until_text("reserves", "Ready");
    shop.until_text("reserves", "Given 2.50 KUDOS");
    shop.audit("tips");
    shop.open_view(&format!("#/reserve/{reserve_pub}"), "Money for tips");
    shop.until_text("tip-lines", "a survey");
    let seen = shop.get(&format!("private/reserves/{reserve_pub}"));
    assert!(seen["pickup_amount"] != "KUDOS:0", "{seen}");
    shop.close();
    world.end();
}
