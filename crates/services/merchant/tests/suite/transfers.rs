//! Transfers, and what they pay for.

use batzen_crypto::{EddsaPublicKey, HashCode, Wtid};
use serde_json::{Value, json};

use crate::common::{Backend, is_error, market};
use crate::exchange::{Coin, Exchange};

const PAYTO: &str = "payto://x-taler-bank/localhost/books?receiver-name=books";

fn wtid(byte: u8) -> Wtid {
    Wtid::from_bytes([byte; 32])
}

/// A shop that has sold a book.
struct Sold {
    exchange: Exchange,
    backend: Backend,
    id: String,
    h_contract: HashCode,
    merchant_pub: EddsaPublicKey,
    coin: Coin,
    h_wire: HashCode,
}

impl Sold {
    async fn new() -> Self {
        let (exchange, backend) = market().await;
        let coin = exchange.coin("KUDOS:5").await;
        let (id, claimed) = backend.sale(&exchange, &coin).await;
        let h_wire = claimed.terms["h_wire"].as_str().unwrap().parse().unwrap();
        let (h_contract, merchant_pub) = (claimed.h_contract, claimed.merchant_pub);
        Self { exchange, backend, id, h_contract, merchant_pub, coin, h_wire }
    }

    /// The exchange names what transfer 1 pays for.
    fn says(&self, value: &str, fee: &str, wire_fee: &str, total: &str) {
        let deposits = [(self.h_contract, self.coin.coin_pub(), value, fee)];
        let answer = self.exchange.transfer(self.merchant_pub, PAYTO, &deposits, wire_fee, total);
        self.exchange.answer(&format!("GET /transfers/{}", wtid(1)), 200, answer);
    }

    fn report(&self, credit: &str) -> Value {
        json!({
            "credit_amount": credit, "wtid": wtid(1), "payto_uri": PAYTO, "exchange_url": self.exchange.url,
        })
    }

    async fn end(self) {
        self.backend.end().await;
    }
}

#[tokio::test]
async fn a_transfer_is_matched_with_its_orders() {
    let sold = Sold::new().await;
    let Sold { backend, id, .. } = &sold;
    let order = format!("private/orders/{id}");
    let seen: Value = backend.get(&order).await.ok().unwrap();
    assert_eq!((&seen["wired"], &seen["wire_details"]), (&json!(false), &json!([])));
    let unwired: Value = backend.get("private/orders?wired=yes").await.ok().unwrap();
    assert_eq!(unwired["orders"], json!([]));

    is_error(&backend.post("private/transfers", &sold.report("EUR:1")).await, 400, 30);
    let mut other = sold.report("KUDOS:4.97");
    other["payto_uri"] = json!("payto://x-taler-bank/localhost/other?receiver-name=other");
    is_error(&backend.post("private/transfers", &other).await, 404, 2555);
    let mut other = sold.report("KUDOS:4.97");
    other["exchange_url"] = json!("http://x");
    is_error(&backend.post("private/transfers", &other).await, 400, 26);
    // The exchange does not know it yet, and the shop can take back what it has said.
    is_error(&backend.post("private/transfers", &sold.report("KUDOS:4.97")).await, 502, 2550);
    is_error(&backend.post("private/transfers", &sold.report("KUDOS:4.96")).await, 409, 2557);
    let list: Value = backend.get("private/transfers").await.ok().unwrap();
    let serial = list["transfers"][0]["transfer_serial_id"].clone();
    assert_eq!(backend.delete(&format!("private/transfers/{serial}")).await.status, 204);
    is_error(&backend.delete(&format!("private/transfers/{serial}")).await, 404, 2017);
    is_error(&backend.delete("private/transfers/x").await, 404, 2017);

    sold.says("KUDOS:5", "KUDOS:0.01", "KUDOS:0.02", "KUDOS:4.97");
    let asked = sold.exchange.count("GET /transfers/");
    for _ in 0..2 {
        let answer: Value = backend.post("private/transfers", &sold.report("KUDOS:4.97")).await.ok().unwrap();
        assert_eq!((&answer["total"], &answer["wire_fee"]), (&json!("KUDOS:4.97"), &json!("KUDOS:0.02")));
        let sums = json!([{ "order_id": id, "deposit_value": "KUDOS:5", "deposit_fee": "KUDOS:0.01" }]);
        assert_eq!(answer["deposits_sums"], sums);
    }
    assert_eq!(sold.exchange.count("GET /transfers/") - asked, 1, "the second answer is from the store");
    let seen: Value = backend.get(&order).await.ok().unwrap();
    assert_eq!(seen["wired"], true);
    let detail = &seen["wire_details"][0];
    assert_eq!((&detail["wtid"], &detail["amount"]), (&json!(wtid(1)), &json!("KUDOS:4.99")));
    assert_eq!(detail["confirmed"], true);
    let wired: Value = backend.get("private/orders?wired=yes").await.ok().unwrap();
    assert_eq!(wired["orders"][0]["order_id"], json!(id));
    let list: Value = backend.get("private/transfers?verified=yes").await.ok().unwrap();
    let transfer = &list["transfers"][0];
    assert_eq!((&transfer["verified"], &transfer["confirmed"]), (&json!(true), &json!(true)));
    assert_eq!(transfer["credit_amount"], "KUDOS:4.97");
    let path = format!("private/transfers/{}", transfer["transfer_serial_id"]);
    is_error(&backend.delete(&path).await, 409, 2556);
    for (query, count) in
        [("verified=no", 0), ("payto_uri=payto://x", 0), ("after=9999999999", 0), ("limit=5", 1)]
    {
        let list: Value = backend.get(&format!("private/transfers?{query}")).await.ok().unwrap();
        assert_eq!(list["transfers"].as_array().unwrap().len(), count, "{query}");
    }
    sold.end().await;
}

#[tokio::test]
async fn transfers_that_do_not_add_up_are_refused() {
    let sold = Sold::new().await;
    let backend = &sold.backend;
    let report = sold.report("KUDOS:4.97");
    for (value, fee, wire_fee, total, status, code) in [
        // Another amount of the coin, or another fee, than it has confirmed.
        ("KUDOS:4", "KUDOS:0.01", "KUDOS:0.02", "KUDOS:3.97", 409, 2553),
        ("KUDOS:5", "KUDOS:0.02", "KUDOS:0.01", "KUDOS:4.97", 409, 2553),
        // A sum that is wrong, and one that is not what has arrived.
        ("KUDOS:5", "KUDOS:0.01", "KUDOS:0.02", "KUDOS:4.98", 409, 2552),
        ("KUDOS:5", "KUDOS:0.01", "KUDOS:0", "KUDOS:4.99", 409, 2552),
        // A wire fee beyond the published one.
        ("KUDOS:5", "KUDOS:0.01", "KUDOS:0.03", "KUDOS:4.96", 502, 2554),
    ] {
        sold.says(value, fee, wire_fee, total);
        let reply = backend.post("private/transfers", &report).await;
        is_error(&reply, status, code);
        let body: Value = reply.json().unwrap();
        match code {
            2553 => assert_eq!(body["coin_pub"], json!(sold.coin.coin_pub())),
            2554 => assert_eq!(body["expected_wire_fee"], "KUDOS:0.02"),
            _ => {}
        }
    }
    // An answer for somebody else, one that is not signed, and none at all.
    let path = format!("GET /transfers/{}", wtid(1));
    let deposits = [(sold.h_contract, sold.coin.coin_pub(), "KUDOS:5", "KUDOS:0.01")];
    let stranger = EddsaPublicKey::from_bytes([9; 32]);
    let answer = sold.exchange.transfer(stranger, PAYTO, &deposits, "KUDOS:0.02", "KUDOS:4.97");
    sold.exchange.answer(&path, 200, answer);
    is_error(&backend.post("private/transfers", &report).await, 409, 2552);
    let mut answer = sold.exchange.transfer(sold.merchant_pub, PAYTO, &deposits, "KUDOS:0.02", "KUDOS:4.97");
    answer["total"] = json!("KUDOS:4.96");
    sold.exchange.answer(&path, 200, answer);
    is_error(&backend.post("private/transfers", &report).await, 502, 2013);
    sold.exchange.answer(&path, 500, json!({ "code": 51 }));
    let reply = backend.post("private/transfers", &report).await;
    is_error(&reply, 502, 2551);
    assert_eq!(reply.json::<Value>().unwrap()["exchange_code"], 51);
    let seen: Value = backend.get(&format!("private/orders/{}", sold.id)).await.ok().unwrap();
    assert_eq!(seen["wired"], false);
    sold.end().await;
}

#[tokio::test]
async fn refunds_explain_a_smaller_transfer() {
    let sold = Sold::new().await;
    let backend = &sold.backend;
    let refund = json!({ "refund": "KUDOS:1", "reason": "a stain" });
    assert_eq!(backend.post(&format!("private/orders/{}/refund", sold.id), &refund).await.status, 200);
    sold.says("KUDOS:5", "KUDOS:0.01", "KUDOS:0.02", "KUDOS:4.97");
    // What was paid less the refund, less a cent by rounding.
    is_error(&backend.post("private/transfers", &sold.report("KUDOS:3.95")).await, 409, 2552);
    let list: Value = backend.get("private/transfers").await.ok().unwrap();
    let serial = &list["transfers"][0]["transfer_serial_id"];
    assert_eq!(backend.delete(&format!("private/transfers/{serial}")).await.status, 204);
    assert_eq!(backend.post("private/transfers", &sold.report("KUDOS:3.97")).await.status, 200);
    let seen: Value = backend.get(&format!("private/orders/{}", sold.id)).await.ok().unwrap();
    assert_eq!((&seen["wired"], &seen["wire_details"][0]["amount"]), (&json!(true), &json!("KUDOS:3.99")));
    sold.end().await;
}

#[tokio::test]
async fn exchanges_are_asked_what_pays_for_an_order() {
    let sold = Sold::new().await;
    let backend = &sold.backend;
    let order = format!("private/orders/{}?transfer=YES", sold.id);
    let seen: Value = backend.get(&order).await.ok().unwrap();
    assert_eq!((&seen["wire_details"], &seen["wire_reports"]), (&json!([]), &json!([])));
    sold.exchange.answer("GET /deposits/", 404, json!({ "code": 1104 }));
    let seen: Value = backend.get(&order).await.ok().unwrap();
    let report = &seen["wire_reports"][0];
    assert_eq!(
        (&report["code"], &report["exchange_ec"], &report["exchange_hc"]),
        (&json!(2100), &json!(1104), &json!(404))
    );
    assert_eq!((&seen["exchange_ec"], &seen["exchange_hc"]), (&json!(1104), &json!(404)));
    assert_eq!(report["coin_pub"], json!(sold.coin.coin_pub()));
    let answer = sold.exchange.tracked(sold.h_wire, sold.h_contract, sold.coin.coin_pub(), wtid(1));
    let mut forged = answer.clone();
    forged["coin_contribution"] = json!("KUDOS:5");
    sold.exchange.answer("GET /deposits/", 200, forged);
    let seen: Value = backend.get(&order).await.ok().unwrap();
    assert_eq!(seen["wire_reports"][0]["code"], 2013);
    sold.exchange.answer("GET /deposits/", 200, answer);
    let seen: Value = backend.get(&order).await.ok().unwrap();
    let detail = &seen["wire_details"][0];
    assert_eq!(
        (&detail["amount"], &detail["confirmed"], &seen["wired"]),
        (&json!("KUDOS:4.99"), &json!(false), &json!(false))
    );
    let list: Value = backend.get("private/transfers").await.ok().unwrap();
    assert_eq!(
        (&list["transfers"][0]["confirmed"], &list["transfers"][0]["verified"]),
        (&json!(false), &json!(false))
    );
    // Then the shop sees it at its bank.
    sold.says("KUDOS:5", "KUDOS:0.01", "KUDOS:0.02", "KUDOS:4.97");
    assert_eq!(backend.post("private/transfers", &sold.report("KUDOS:4.97")).await.status, 200);
    let seen: Value = backend.get(&order).await.ok().unwrap();
    assert_eq!((&seen["wired"], &seen["wire_details"][0]["confirmed"]), (&json!(true), &json!(true)));
    sold.end().await;
}

#[tokio::test]
async fn a_list_looks_behind_what_does_not_fit() {
    const OTHER: &str = "payto://x-taler-bank/localhost/prints?receiver-name=prints";
    let sold = Sold::new().await;
    let mut settings = crate::common::shop("default", None);
    settings["payto_uris"] = json!([PAYTO, OTHER]);
    settings.as_object_mut().unwrap().retain(|name, _| name != "id" && name != "auth");
    assert_eq!(sold.backend.patch("private", &settings).await.status, 204);
    // One transfer to the other account, before more than are read at a time.
    for number in 0..1_030_u16 {
        let mut subject = [0; 32];
        subject[..2].copy_from_slice(&number.to_be_bytes());
        let mut report = sold.report("KUDOS:1");
        report["wtid"] = json!(Wtid::from_bytes(subject));
        report["payto_uri"] = json!(if number == 0 { OTHER } else { PAYTO });
        is_error(&sold.backend.post("private/transfers", &report).await, 502, 2550);
    }
    let list = async |query: &str| -> Vec<Value> {
        let list: Value = sold.backend.get(&format!("private/transfers?{query}")).await.ok().unwrap();
        list["transfers"].as_array().unwrap().clone()
    };
    let found = list(&format!("limit=-1&payto_uri={}", OTHER.replace('?', "%3F"))).await;
    assert_eq!((found.len(), &found[0]["wtid"]), (1, &json!(wtid(0))));
    // From page to page, each is shown once.
    let (mut count, mut offset) = (0, String::new());
    loop {
        let page = list(&format!("limit=-300{offset}")).await;
        let Some(last) = page.last() else { break };
        count += page.len();
        offset = format!("&offset={}", last["transfer_serial_id"]);
    }
    assert_eq!(count, 1_030);
    sold.end().await;
}
