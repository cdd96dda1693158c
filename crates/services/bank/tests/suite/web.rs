//! The page's requests: sessions, forgeries, repeated payments, other customers' data.
use crate::common;

use batzen_bank::BankConfig;
use batzen_http::client::{Client, Method, Reply};
use batzen_service::wire_gateway::HistoryQuery;
use common::*;
use serde_json::{Value, json};

/// A browser as the bank sees it.
struct Visitor<'a> {
    f: &'a Fixture,
    client: Client,
    cookie: String,
    csrf: String,
}

impl<'a> Visitor<'a> {
    fn new(f: &'a Fixture) -> Self {
        Self { f, client: f.client.clone(), cookie: String::new(), csrf: String::new() }
    }

    async fn send(&self, method: Method, path: &str, body: Option<Value>, site: &str) -> Reply {
        let mut call = self.client.call(method, format!("{}web/{path}", self.f.base));
        call = call.header("cookie", &format!("a=b; batzen-bank-session={}; c", self.cookie));
        call = call.header("x-csrf-token", &self.csrf).header("sec-fetch-site", site);
        if let Some(body) = body {
            call = call.json(&body);
        }
        call.send().await.unwrap()
    }

    async fn get(&self, path: &str) -> Answer {
        Answer::of(self.send(Method::GET, path, None, "same-origin").await)
    }

    async fn post(&self, path: &str, body: Value) -> Answer {
        Answer::of(self.send(Method::POST, path, Some(body), "same-origin").await)
    }

    /// Logs in or registers; checks the cookie's attributes.
    async fn enter(&mut self, path: &str, name: &str, password: &str) -> Result<String, (u16, u64)> {
        let body = json!({"username": name, "password": password});
        let reply = self.send(Method::POST, path, Some(body), "same-origin").await;
        let cookie = reply.header("set-cookie").unwrap_or_default().to_owned();
        let answer = Answer::of(reply);
        if answer.status != 200 {
            return Err(answer.error());
        }
        self.csrf = answer.body["csrf"].as_str().unwrap().to_owned();
        let (pair, attributes) = cookie.split_once("; ").unwrap();
        self.cookie = pair.strip_prefix("batzen-bank-session=").unwrap().to_owned();
        Ok(attributes.to_owned())
    }

    async fn balance(&self) -> String {
        let view = self.get("account").await.body;
        let sign = if view["is_negative"] == json!(true) { "-" } else { "" };
        format!("{sign}{}", view["balance"].as_str().unwrap())
    }
}

fn payment(id: &str, to: &str, amount: &str) -> Value {
    json!({"id": id, "to": to, "amount": kudos(amount), "text": "for <tea>"})
}

const ID: [&str; 3] =
    ["00000000000000000000000004", "00000000000000000000000008", "0000000000000000000000000C"];

#[tokio::test]
async fn sessions_cannot_be_forged() {
    let f = Fixture::start(config()).await;
    let mut joe = Visitor::new(&f);
    assert_eq!(joe.get("account").await.status, 204);
    assert_eq!(joe.post("payments", payment(ID[0], "ann", "1")).await.error(), (401, 5105));
    assert_eq!(joe.enter("register", "joe", "").await, Err((400, 22)));
    let attributes = joe.enter("register", "joe", "secret").await.unwrap();
    assert_eq!(attributes, "Path=/; Max-Age=43200; HttpOnly; SameSite=Strict");
    let mut ann = Visitor::new(&f);
    // Registration must not help to guess passwords.
    assert_eq!(ann.enter("register", "joe", "secret").await, Err((409, 5118)));
    ann.enter("register", "ann", "hers").await.unwrap();
    assert_ne!((&joe.cookie, &joe.csrf), (&ann.cookie, &ann.csrf));

    // Without the page's token, or with another session's, nothing changes.
    let own = std::mem::replace(&mut joe.csrf, ann.csrf.clone());
    assert_eq!(joe.post("payments", payment(ID[0], "ann", "1")).await.error(), (403, 5109));
    assert_eq!(joe.post("withdrawals", json!({"amount": kudos("1")})).await.error(), (403, 5109));
    assert_eq!(joe.post("logout", json!({})).await.error(), (403, 5109));
    joe.csrf = own;
    // Requests that another site's page, or a form, could send.
    let body = || Some(json!({"username": "joe", "password": "secret"}));
    let reply = joe.send(Method::POST, "login", body(), "cross-site").await;
    assert_eq!(Answer::of(reply).error(), (403, 44));
    for path in ["web/login", crate::passwords::REGISTER, "exchange/admin/add-incoming"] {
        let url = format!("{}{path}", f.base);
        let form = f.client.call(Method::POST, url).body("text/plain", body().unwrap().to_string());
        assert_eq!(Answer::of(form.send().await.unwrap()).error(), (415, 22), "{path}");
    }
    assert_eq!((joe.balance().await, ann.balance().await), ("100".to_owned(), "100".to_owned()));

    // After log-out the session is invalid, even for a copy of its cookie.
    assert_eq!(joe.post("logout", json!({})).await.status, 204);
    assert_eq!(joe.get("account").await.status, 204);
    assert_eq!(joe.post("payments", payment(ID[0], "ann", "1")).await.error(), (401, 5105));

    // Guessing is limited, and the right password has to wait too.
    for _ in 0..10 {
        assert_eq!(joe.enter("login", "joe", "wrong").await, Err((403, 5105)));
    }
    assert_eq!(joe.enter("login", "joe", "secret").await, Err((429, 5105)));
    ann.enter("login", "ann", "hers").await.unwrap();
    f.end().await;

    let behind_tls = BankConfig { base_url: Some("https://bank.test/town/".to_owned()), ..config() };
    let f = Fixture::start(behind_tls).await;
    let attributes = Visitor::new(&f).enter("register", "joe", "secret").await.unwrap();
    assert_eq!(attributes, "Path=/town/; Max-Age=43200; HttpOnly; SameSite=Strict; Secure");
    f.end().await;
}

#[tokio::test]
async fn payments_are_made_once_and_stated() {
    let f = Fixture::start(BankConfig { debt_limit: Some(money("5")), ..config() }).await;
    let (mut joe, mut ann) = (Visitor::new(&f), Visitor::new(&f));
    joe.enter("register", "joe", "x").await.unwrap();
    ann.enter("register", "ann", "x").await.unwrap();
    for _ in 0..3 {
        assert_eq!(joe.post("payments", payment(ID[0], "ann", "30.5")).await.status, 204);
    }
    assert_eq!(joe.post("payments", payment(ID[0], "ann", "30")).await.error(), (409, 5112));
    assert_eq!(joe.post("payments", payment(ID[1], "ann", "75")).await.error(), (409, 5102));
    assert_eq!(joe.post("payments", payment(ID[1], "nobody", "1")).await.error(), (404, 5106));
    assert_eq!(joe.post("payments", payment(ID[1], "joe", "1")).await.error(), (400, 5101));
    for (body, field) in [
        (payment("x", "ann", "1"), "id"),
        (payment(ID[1], "payto://iban/X", "1"), "to"),
        (payment(ID[1], "ann", "0"), "amount"),
        (json!({"id": ID[1], "to": "ann", "amount": "EUR:1", "text": ""}), "amount"),
        (json!({"id": ID[1], "to": "ann", "amount": kudos("1"), "text": "a\u{7}b"}), "text"),
    ] {
        let answer = joe.post("payments", body).await;
        assert_eq!((answer.error(), &answer.body["field"]), ((400, 22), &json!(field)));
    }
    // A refused payment may succeed later, under the same id.
    assert_eq!(ann.post("payments", payment(ID[2], &payto("joe"), "1")).await.status, 204);
    assert_eq!(joe.post("payments", payment(ID[1], "ann", "75")).await.status, 204);
    assert_eq!((joe.balance().await, ann.balance().await), ("-4.5".to_owned(), "204.5".to_owned()));
    let view = joe.get("account").await.body;
    let line = |n: usize| {
        let line = &view["transactions"][n];
        let text = |name: &str| line[name].as_str().unwrap_or("-").to_owned();
        (text("kind"), line["is_credit"] == json!(true), text("amount"), text("other"), text("text"))
    };
    let expected = |kind: &str, is_credit, amount: &str, other: &str, text: &str| {
        (kind.to_owned(), is_credit, amount.to_owned(), other.to_owned(), text.to_owned())
    };
    assert_eq!(line(0), expected("payment", false, "75", "ann", "for <tea>"));
    assert_eq!(line(1), expected("payment", true, "1", "ann", "for <tea>"));
    assert_eq!(line(2), expected("payment", false, "30.5", "ann", "for <tea>"));
    assert_eq!(line(3), expected("bonus", true, "100", "-", "-"));
    assert_eq!((view["transactions"].as_array().unwrap().len(), &view["older"]), (4, &Value::Null));
    f.end().await;
}

#[tokio::test]
async fn statements_have_pages() {
    let f = Fixture::start(config()).await;
    let mut joe = Visitor::new(&f);
    joe.enter("register", "joe", "x").await.unwrap();
    f.gateway("exchange").add_incoming(&incoming(200, "1", "ann")).await.unwrap();
    for n in 0..70_u8 {
        f.gateway("joe").transfer(&transfer(n, &format!("0.{n:02}"), "exchange")).await.unwrap();
        if n % 3 == 0 {
            // Reserved and released: movements that no statement shows.
            let wopid = f.withdrawal("joe", "1").await;
            let selection =
                json!({"reserve_pub": key(n).to_string(), "selected_exchange": payto("exchange")});
            let url = format!("taler-bank-integration/withdrawal-operation/{wopid}");
            assert_eq!(f.post(&url, selection).await.status, 200);
            let reserved = joe.get("account").await.body["reserved"].clone();
            assert_eq!(reserved, json!("1"));
            assert_eq!(joe.post(&format!("withdrawals/{wopid}/abort"), json!({})).await.status, 200);
        }
    }
    let mut seen = Vec::new();
    let mut path = "account".to_owned();
    loop {
        let view = joe.get(&path).await.body;
        let lines = view["transactions"].as_array().unwrap();
        assert!(lines.len() <= 25);
        seen.extend(lines.iter().map(|line| line["amount"].as_str().unwrap().to_owned()));
        let Some(older) = view["older"].as_u64() else { break };
        path = format!("account?before={older}");
    }
    let mut expected: Vec<String> = (0..70).rev().map(|n| money(&format!("0.{n:02}")).to_string()).collect();
    expected.push("100".to_owned());
    assert_eq!(seen, expected);
    assert_eq!(joe.get("account?before=x").await.error(), (400, 26));
    f.end().await;
}

#[tokio::test]
async fn withdrawals_belong_to_their_customer() {
    let f = Fixture::start(config()).await;
    let (mut joe, mut ann) = (Visitor::new(&f), Visitor::new(&f));
    joe.enter("register", "joe", "x").await.unwrap();
    ann.enter("register", "ann", "x").await.unwrap();
    ann.enter("register", "exchange", "x").await.unwrap();
    assert_eq!(joe.post("withdrawals", json!({"amount": kudos("0")})).await.error(), (400, 22));
    let created = joe.post("withdrawals", json!({"amount": kudos("8")})).await.body;
    let id = created["id"].as_str().unwrap();
    assert!(created["uri"].as_str().unwrap().ends_with(id) && created["qr_size"].as_u64().unwrap() > 20);
    let path = format!("withdrawals/{id}");
    assert_eq!(joe.get(&path).await.body["selected"], json!(false));
    for verb in ["", "/confirm", "/abort"] {
        let path = format!("{path}{verb}");
        let answer = if verb.is_empty() { ann.get(&path).await } else { ann.post(&path, json!({})).await };
        assert_eq!(answer.error(), (404, 5107), "{verb}");
    }
    assert_eq!(joe.post(&format!("{path}/confirm"), json!({})).await.error(), (400, 5119));
    let selection = json!({"reserve_pub": key(1).to_string(), "selected_exchange": payto("exchange")});
    let url = format!("taler-bank-integration/withdrawal-operation/{id}");
    assert_eq!(f.post(&url, selection).await.status, 200);
    let state = joe.get(&path).await.body;
    assert_eq!((&state["selected"], &state["exchange"]), (&json!(true), &json!("exchange")));
    assert_eq!(joe.post(&format!("{path}/confirm"), json!({})).await.status, 200);
    assert_eq!(joe.get(&path).await.body["confirmed"], json!(true));
    assert_eq!(joe.balance().await, "92");
    // Money for a reserve can also be sent by hand, once per reserve.
    let text = format!("for {}", key(9));
    let client_request = |id: &str| json!({"id": id, "to": "exchange", "amount": kudos("2"), "text": text});
    assert_eq!(joe.post("payments", client_request(ID[0])).await.status, 204);
    assert_eq!(joe.post("payments", client_request(ID[0])).await.status, 204);
    assert_eq!(joe.post("payments", client_request(ID[1])).await.error(), (409, 5114));
    let rows = f.gateway("exchange").history_incoming(last(5)).await.unwrap();
    assert_eq!((rows.len(), rows[1].reserve_pub, rows[1].amount), (2, key(9), kudos("2")));
    let flow = f.bank.account_flow("exchange").await.unwrap();
    assert_eq!(flow, batzen_bank::books::history_flow(f.bank.store(), "exchange").unwrap());
    assert_eq!(flow.incoming_with_reserve_pub, money("10"));
    f.end().await;
}

#[tokio::test]
async fn money_for_an_exchange_becomes_a_reserve_or_stays_with_its_payer() {
    let f = Fixture::start(config()).await;
    let mut joe = Visitor::new(&f);
    joe.enter("register", "joe", "x").await.unwrap();
    Visitor::new(&f).enter("register", "exchange", "x").await.unwrap();
    let gateway = f.gateway("exchange");
    // An exchange waits for credits.
    let wait = HistoryQuery { start: None, delta: 5, long_poll_ms: 1 };
    assert!(gateway.history_incoming(wait).await.unwrap().is_empty());
    let key = |n: u8| key(n).to_string();
    let grouped = |n, between: &str| {
        let key = key(n);
        let groups: Vec<&str> = (0..13).map(|at| &key[4 * at..4 * at + 4]).collect();
        groups.join(between)
    };
    let pay = |id: usize, text: &str| json!({"id": format!("{id:025}0"), "to": "exchange", "amount": kudos("2"), "text": text});
    let lines = format!("{}\r\n{}", &key(3)[..30], &key(3)[30..]);
    let texts = [grouped(1, " "), grouped(2, "-"), lines, format!("reserve:{}", key(4))];
    for (id, text) in texts.iter().enumerate() {
        assert_eq!(joe.post("payments", pay(id, text)).await.status, 204, "{text}");
    }
    let credited: Vec<_> = gateway
        .history_incoming(last(5))
        .await
        .unwrap()
        .iter()
        .map(|row| row.reserve_pub.to_string())
        .collect();
    assert_eq!(credited, [1, 2, 3, 4].map(key));
    let before = joe.balance().await;
    let unreadable =
        ["", "rent of May", &key(5)[..51], &format!("KYC:{}", key(5)), &format!("{} {}", key(5), key(6))];
    for text in unreadable {
        let answer = joe.post("payments", pay(9, text)).await;
        assert_eq!(answer.error(), (409, 5126), "{text}");
        assert!(
            answer.body["detail"].as_str().unwrap().contains("the key that the wallet shows"),
            "{answer:?}"
        );
    }
    assert_eq!(joe.balance().await, before, "nothing was taken");
    assert_eq!(gateway.history_incoming(last(5)).await.unwrap().len(), 4);
    f.end().await;
}
