//! The list of orders: a thousand of them.

use batzen_http::client::{Client, Method};
use serde_json::json;
use tokio::task::JoinSet;

use super::{TOKEN, quiet_shop, token_auth};

/// Orders of a busy shop.
const MANY: usize = 1_000;
/// Requests at a time while these are created.
const AT_ONCE: usize = 32;

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
    shop.http.wait(create_many(shop.client(), &shop.base));
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
    shop.filter(&[("q", "RARE")]);
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
    shop.filter(&[("q", "o-09")]);
    shop.until_rows(50);
    shop.filter(&[("q", "nowhere")]);
    shop.until_text("nothing", "No order fits");

    // Filters.
    shop.filter(&[("q", ""), ("state", "paid")]);
    shop.until_text("nothing", "No order fits");
    shop.filter(&[("state", "unpaid")]);
    shop.until_rows(50);
    let day = |offset: i64| {
        let day = format!("new Date(Date.now() + {offset} * 86400000)");
        shop.text_of(&format!("{day}.toLocaleDateString('sv')"))
    };
    shop.filter(&[("from", &day(1))]);
    shop.until_text("nothing", "No order fits");
    shop.filter(&[("from", &day(-1)), ("to", &day(-1))]);
    shop.until_text("nothing", "No order fits");
    shop.filter(&[("to", &day(0))]);
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
