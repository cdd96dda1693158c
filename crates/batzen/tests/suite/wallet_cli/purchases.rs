//! Purchases, with real wallets and a real exchange. The shop's server is a small one of this test: it signs
//! contracts and receipts, and deposits the coins at the exchange.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use batzen_crypto::{EddsaPrivateKey, WireSalt};
use batzen_protocol::signatures::{MerchantContract, MerchantPaymentOk, SignedMessage};
use batzen_protocol::{Timestamp, canonical, payto};
use serde_json::json;

use super::*;
use crate::common::setup::ask;

const SHOP_PAYTO: &str = "payto://x-taler-bank/localhost/shop?receiver-name=shop";
const PRICE: &str = "KUDOS:1.11";

struct Shop {
    port: u16,
    exchange_url: String,
    master_pub: Value,
    key: EddsaPrivateKey,
    salt: WireSalt,
    orders: Mutex<HashMap<String, ClaimedOrder>>,
}

struct ClaimedOrder {
    contract: Value,
    /// The contributions of the coins that the exchange has accepted.
    deposited: HashMap<String, i128>,
}

/// Sends a request and returns the status of the answer and its body, if that is JSON.
fn post(url: &str, body: &Value) -> (u16, Value) {
    let (address, path) = url.trim_start_matches("http://").split_once('/').unwrap();
    let port = address.rsplit(':').next().unwrap().parse().unwrap();
    let answer = ask(port, &format!("POST /{path}"), &body.to_string());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

impl Shop {
    /// Opens a shop. Its server ends with the test program.
    fn open(world: &World) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let exchanges = world.ok("w.db", &["exchanges", "list"]);
        let shop = Arc::new(Self {
            port: listener.local_addr().unwrap().port(),
            exchange_url: world.exchange_url.clone(),
            master_pub: exchanges["exchanges"][0]["master_pub"].clone(),
            key: EddsaPrivateKey::generate(),
            salt: WireSalt::from_bytes([9; 16]),
            orders: Mutex::new(HashMap::new()),
        });
        let server = Arc::clone(&shop);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let server = Arc::clone(&server);
                std::thread::spawn(move || server.answer(stream.unwrap()));
            }
        });
        shop
    }

    fn uri(&self, order: &str) -> String {
        format!("taler+http://pay/127.0.0.1:{}/{order}/?c=TOKEN", self.port)
    }

    fn paid(&self, order: &str) -> i128 {
        self.orders.lock().unwrap()[order].deposited.values().sum()
    }

    /// The wallet may be killed at any time, so I/O errors are no news.
    fn answer(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        let _ = reader.read_line(&mut line);
        let Some(path) = line.split(' ').nth(1).map(str::to_owned) else { return };
        let (mut size, mut is_deflated) = (0, false);
        loop {
            let mut header = String::new();
            if reader.read_line(&mut header).unwrap_or(0) == 0 {
                return;
            }
            let header = header.trim().to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(text) = header.strip_prefix("content-length:") {
                size = text.trim().parse().unwrap();
            }
            is_deflated |= header.starts_with("content-encoding:") && header.contains("deflate");
        }
        let mut bytes = vec![0; size];
        if reader.read_exact(&mut bytes).is_err() {
            return;
        }
        if is_deflated {
            let mut plain = Vec::new();
            flate2::read::ZlibDecoder::new(bytes.as_slice()).read_to_end(&mut plain).unwrap();
            bytes = plain;
        }
        let (status, body) = self.handle(&path, &serde_json::from_slice(&bytes).unwrap_or(Value::Null));
        let body = body.to_string();
        let _ = write!(
            reader.get_mut(),
            "HTTP/1.1 {status} Answer\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n{body}",
            body.len()
        );
    }

    fn handle(&self, path: &str, body: &Value) -> (u16, Value) {
        let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        match segments.as_slice() {
            ["config"] => (200, json!({ "version": "2:0:1", "name": "taler-merchant", "currency": "KUDOS" })),
            ["orders", id, "claim"] => self.claim(id, body),
            ["orders", id, "pay"] => self.pay(id, body),
            _ => (404, json!({ "code": 21 })),
        }
    }

    fn claim(&self, id: &str, body: &Value) -> (u16, Value) {
        let mut orders = self.orders.lock().unwrap();
        let ClaimedOrder { contract, .. } = orders.entry(id.to_owned()).or_insert_with(|| {
            let now = Timestamp::from_system_time(SystemTime::now()).as_secs().unwrap();
            let contract = json!({
                "order_id": id, "summary": format!("order {id}"), "amount": PRICE,
                "max_fee": "KUDOS:1", "max_wire_fee": "KUDOS:1",
                "timestamp": { "t_s": now }, "refund_deadline": { "t_s": now },
                "pay_deadline": { "t_s": now + 3600 }, "wire_transfer_deadline": { "t_s": now + 7200 },
                "merchant_pub": self.key.public_key(),
                "merchant_base_url": format!("http://127.0.0.1:{}/", self.port),
                "merchant": { "name": "Kiosk" }, "h_wire": payto::h_wire(SHOP_PAYTO, &self.salt),
                "wire_method": "x-taler-bank", "auditors": [], "products": [],
                "exchanges": [{ "url": self.exchange_url, "master_pub": self.master_pub }],
                "fulfillment_url": format!("https://shop.example/{id}"),
                "nonce": body["nonce"],
            });
            ClaimedOrder { contract, deposited: HashMap::new() }
        });
        if contract["nonce"] != body["nonce"] || body["token"] != "TOKEN" {
            return (409, json!({ "code": 2301 }));
        }
        let h_contract_terms = canonical::contract_hash(contract).unwrap();
        (
            200,
            json!({ "contract_terms": contract, "sig": MerchantContract { h_contract_terms }.sign(&self.key) }),
        )
    }

    fn pay(&self, id: &str, body: &Value) -> (u16, Value) {
        let mut orders = self.orders.lock().unwrap();
        let Some(ClaimedOrder { contract, deposited }) = orders.get_mut(id) else {
            return (404, json!({ "code": 2005 }));
        };
        let h_contract_terms = canonical::contract_hash(contract).unwrap();
        for coin in body["coins"].as_array().unwrap() {
            let coin_pub = coin["coin_pub"].as_str().unwrap();
            if deposited.contains_key(coin_pub) {
                continue;
            }
            let deposit = json!({
                "merchant_payto_uri": SHOP_PAYTO, "wire_salt": self.salt, "contribution": coin["contribution"],
                "denom_pub_hash": coin["h_denom"], "ub_sig": coin["ub_sig"], "coin_sig": coin["coin_sig"],
                "merchant_pub": self.key.public_key(), "h_contract_terms": h_contract_terms,
                "timestamp": contract["timestamp"], "refund_deadline": contract["refund_deadline"],
                "wire_transfer_deadline": contract["wire_transfer_deadline"],
            });
            let url = format!("{}coins/{coin_pub}/deposit", self.exchange_url);
            let (status, reply) = post(&url, &deposit);
            if status != 200 {
                return (502, json!({ "code": 2170, "exchange_reply": reply }));
            }
            deposited.insert(coin_pub.to_owned(), units(coin["contribution"].as_str().unwrap()));
        }
        (200, json!({ "sig": MerchantPaymentOk { h_contract_terms }.sign(&self.key) }))
    }
}

/// Compares the wallet's money by its own books and by the exchange's.
fn check_outstanding(mut world: World) {
    let held = holdings(&world.ok("w.db", &["balance"]));
    assert_eq!(held, check_history(&world, "w.db"));
    let totals = world.totals();
    assert_eq!(units(totals["outstanding"].as_str().unwrap()), held, "{totals:#}");
    assert_eq!(totals["conserved"], true);
}

#[test]
fn a_shop_is_paid() {
    let world = World::start();
    world.ok("w.db", &world.withdraw_args("KUDOS:20", "rsa"));
    let shop = Shop::open(&world);
    let (code, error) = world.run("w.db", &["pay", &shop.uri("one")]);
    assert_eq!(code, 1, "nobody agreed: {error}");
    let paid = world.ok("w.db", &["pay", &shop.uri("one"), "--yes"]);
    check_snapshot("wallet-pay-json.json", &format!("{:#}\n", shape(&paid)));
    let row = &paid["transaction"];
    assert_eq!((&row["type"], &row["status"]), (&"payment".into(), &"done".into()), "{row:#}");
    assert_eq!((&row["merchant"], &row["amount"]), (&"Kiosk".into(), &PRICE.into()), "{row:#}");
    assert_eq!(paid["receipt"]["contract_terms"]["summary"], "order one");
    assert_eq!(shop.paid("one"), units(PRICE));
    let again = world.ok("w.db", &["pay", &shop.uri("one"), "--yes"]);
    assert_eq!(again["transaction"]["id"], row["id"], "nothing is paid twice");
    let words = text(&world, "w.db", &["pay", &shop.uri("two"), "--yes"]);
    assert!(words.starts_with("Paid. Kiosk for \"order two\": KUDOS:1.11"), "{words}");
    assert!(words.contains("Continue at https://shop.example/two"), "{words}");
    let (code, error) = world.run("other.db", &["pay", &shop.uri("one"), "--yes"]);
    assert!(code == 1 && error["error"].as_str().unwrap().contains("another wallet has claimed"), "{error}");
    let (code, error) = world.run("w.db", &["pay", "taler://pay/shop.example/one", "--yes"]);
    assert_eq!(code, 2, "{error}");
    let (code, error) =
        world.run("w.db", &["pay", &format!("taler+http://pay/127.0.0.1:{}/x/", free_port()), "--yes"]);
    assert!(code == 3 && error["error"].as_str().unwrap().contains("is the shop running?"), "{error}");
    check_outstanding(world);
}

/// `kill -9` at any moment of a purchase loses nothing, and pays nothing twice.
#[test]
fn killed_while_paying_a_shop() {
    let world = World::start();
    world.ok("w.db", &world.withdraw_args("KUDOS:30", "rsa"));
    let shop = Shop::open(&world);
    for round in 0..12 {
        let uri = shop.uri(&format!("order{round}"));
        let paying = world.wallet("w.db", &["pay", &uri, "--yes"]);
        kill_after(paying, Duration::from_millis(3 + round * 9));
        let paid = world.ok("w.db", &["pay", &uri, "--yes"]);
        assert_eq!(paid["transaction"]["status"], "done", "{paid:#}");
        assert_eq!(shop.paid(&format!("order{round}")), units(PRICE), "round {round}");
    }
    let (code, report) = world.run("w.db", &["run", "--timeout", "60"]);
    assert_eq!(code, 0, "{report:#}");
    check_outstanding(world);
}
