//! Shops: the management, their own access, and which paths exist.

use serde_json::{Value, json};

use crate::common::{Backend, free, is_error, shop};

#[tokio::test]
async fn shops_are_created_shown_changed_and_deleted() {
    let backend = Backend::start().await;
    let config: Value = backend.get("config").await.ok().unwrap();
    assert_eq!(config, json!({ "version": "2:0:1", "name": "taler-merchant", "currency": "KUDOS" }));
    let list: Value = backend.get("management/instances").await.ok().unwrap();
    assert_eq!(list, json!({ "instances": [] }));
    // The same again changes nothing; another with this id is refused.
    let wish = shop("books", Some("secret-token:abc-and-secret"));
    for _ in 0..2 {
        assert_eq!(backend.post("management/instances", &wish).await.status, 204);
    }
    let mut other = wish.clone();
    other["name"] = json!("Shoes");
    is_error(&backend.post("management/instances", &other).await, 409, 2600);
    other["name"] = json!("Books");
    other["auth"]["token"] = json!("secret-token:xyz-and-secret");
    is_error(&backend.post("management/instances", &other).await, 409, 2600);
    let before: Value = backend.get("management/instances/books").await.ok().unwrap();
    assert_eq!((&before["name"], &before["auth"]), (&json!("Books"), &json!({ "method": "token" })));
    assert_eq!(before["accounts"][0]["active"], true);
    assert!(!before.to_string().contains("abc"), "{before}");

    // Another account; the first becomes inactive, and comes back with its salt.
    let mut change = wish.clone();
    change["payto_uris"] = json!(["payto://iban/DE75512108001245126199?receiver-name=B"]);
    assert_eq!(backend.send("PATCH", "management/instances/books", Some(&change), None).await.status, 204);
    let list: Value = backend.get("management/instances").await.ok().unwrap();
    assert_eq!(list["instances"][0]["payment_targets"], json!(["iban"]));
    assert_eq!(backend.send("PATCH", "management/instances/books", Some(&wish), None).await.status, 204);
    let after: Value = backend.get("management/instances/books").await.ok().unwrap();
    assert_eq!(after["accounts"][0], before["accounts"][0]);
    assert_eq!(
        (after["accounts"][1]["active"].as_bool(), &after["merchant_pub"]),
        (Some(false), &before["merchant_pub"])
    );

    // Deleted, then forgotten, and only then its id is free.
    let token = Some("secret-token:abc-and-secret");
    backend
        .send("POST", "instances/books/private/orders", Some(&free()), token)
        .await
        .expect(&[200])
        .unwrap();
    assert_eq!(backend.send("DELETE", "management/instances/books", None, None).await.status, 204);
    is_error(&backend.post("management/instances", &wish).await, 409, 2603);
    is_error(&backend.send("PATCH", "management/instances/books", Some(&wish), None).await, 409, 2625);
    is_error(&backend.send("POST", "instances/books/private/orders", Some(&free()), token).await, 404, 2016);
    let list: Value = backend.get("management/instances").await.ok().unwrap();
    assert_eq!(list["instances"][0]["deleted"], true);
    assert_eq!(backend.send("DELETE", "management/instances/books?purge=YES", None, None).await.status, 204);
    is_error(&backend.get("management/instances/books").await, 404, 2000);
    assert_eq!(backend.post("management/instances", &wish).await.status, 204);
    let orders = backend.send("GET", "instances/books/private/orders", None, token).await;
    assert_eq!(orders.ok::<Value>().unwrap(), json!({ "orders": [] }));
    backend.end().await;
}

#[tokio::test]
async fn what_a_shop_cannot_be_is_refused() {
    let backend = Backend::start().await;
    for (member, value, status, code) in [
        ("id", json!("a/b"), 400, 26),
        ("auth", json!({ "method": "token", "token": "abc" }), 400, 2601),
        ("auth", json!({ "method": "magic" }), 400, 22),
        ("payto_uris", json!(["payto://iban/DE00"]), 400, 24),
        ("payto_uris", json!(["http://x"]), 400, 24),
        ("default_max_wire_fee", json!("EUR:1"), 400, 30),
        ("name", json!("x".repeat(5_000)), 400, 26),
        ("name", json!(1), 400, 22),
    ] {
        let mut wish = shop("books", None);
        wish[member] = value;
        is_error(&backend.post("management/instances", &wish).await, status, code);
    }
    backend.end().await;
}

#[tokio::test]
async fn tokens_that_can_be_guessed_are_refused() {
    let backend = Backend::start().await;
    for token in
        ["", "x", "secret-token:", "secret-token:x", "secret-token:sandbox", "secret-token:change-me"]
    {
        let refused = backend.post("management/instances", &shop("books", Some(token))).await;
        let answer: Value = refused.json().unwrap();
        assert_eq!((refused.status, &answer["code"]), (400, &json!(2601)), "{token}: {answer}");
        assert!(answer["detail"].as_str().unwrap().starts_with("auth.token: "), "{answer}");
    }
    backend.end().await;
}

#[tokio::test]
async fn guessing_tokens_takes_for_ever_and_locks_nobody_out() {
    // The client's address is the one that the proxy names.
    let backend = Backend::with(|config| config.trusted_proxies = "127.0.0.1".parse().unwrap()).await;
    let token = "secret-token:main-and-secret";
    assert_eq!(backend.post("management/instances", &shop("default", Some(token))).await.status, 204);
    let ask = async |address: &str, path: &str, token: &str| {
        let call = backend.client.get(backend.url(path)).header("x-forwarded-for", address);
        call.header("authorization", &format!("Bearer {token}")).send().await.unwrap()
    };
    for path in ["private/orders", "management/instances"] {
        let stranger = if path == "private/orders" { "192.0.2.1" } else { "192.0.2.2" };
        for n in 0..10 {
            is_error(&ask(stranger, path, &format!("secret-token:{n}")).await, 401, 2015);
        }
        // A right guess would tell, so it has to wait, too.
        let limited = ask(stranger, path, token).await;
        is_error(&limited, 429, 2015);
        assert!(limited.header("retry-after").unwrap().parse::<u64>().unwrap() > 1);
        assert_eq!(ask("198.51.100.7", path, token).await.status, 200);
    }
    // Without a token there is nothing to guess.
    for _ in 0..30 {
        is_error(&backend.send("GET", "private/orders", None, None).await, 401, 2015);
    }
    backend.end().await;
}

/// A shop without a token is open to whoever comes from its proxy, but not to pages of other sites in the browser of
/// somebody whom the proxy lets in.
#[tokio::test]
async fn pages_of_other_sites_cannot_use_a_shop_with_external_access() {
    let backend = Backend::start().await;
    assert_eq!(backend.post("management/instances", &shop("default", None)).await.status, 204);
    let token = json!({ "method": "token", "token": "secret-token:taken-over" });
    let call = || backend.client.call("POST".parse().unwrap(), backend.url("private/auth"));
    let refused = call().body("text/plain", token.to_string()).send().await.unwrap();
    is_error(&refused, 415, 22);
    assert_eq!(refused.header("access-control-allow-origin"), None);
    for (name, value) in [("origin", "https://attacker.example"), ("sec-fetch-site", "cross-site")] {
        is_error(&call().header(name, value).json(&token).send().await.unwrap(), 403, 44);
    }
    // A name that leads to this address, with a token that nobody checks.
    let rebound = call().header("host", "attacker.example").header("authorization", "Bearer x");
    is_error(&rebound.json(&token).send().await.unwrap(), 421, 44);
    let orders = backend.get("private/orders").await;
    assert_eq!((orders.status, orders.header("access-control-allow-origin")), (200, None));
    let config = backend.get("config").await;
    assert_eq!((config.status, config.header("access-control-allow-origin")), (200, Some("*")));
    backend.end().await;
}

#[tokio::test]
async fn every_shop_has_its_own_token() {
    let backend = Backend::start().await;
    // The management is open until the instance default exists.
    let any = Some("secret-token:any-and-secret");
    for (id, token) in [("books", "secret-token:one-and-secret"), ("default", "secret-token:main-and-secret")]
    {
        let wish = shop(id, Some(token));
        assert_eq!(backend.send("POST", "management/instances", Some(&wish), any).await.status, 204);
    }
    let asks = |path: &'static str, token: Option<&'static str>| {
        let backend = &backend;
        async move { backend.send("GET", path, None, token).await }
    };
    let (one, main) = (Some("secret-token:one-and-secret"), Some("secret-token:main-and-secret"));
    for path in ["instances/books/private/orders", "instances/books/private"] {
        is_error(&asks(path, None).await, 401, 2015);
        is_error(&asks(path, main).await, 401, 2015);
        assert_eq!(asks(path, one).await.status, 200);
    }
    is_error(&asks("management/instances", one).await, 401, 2015);
    assert_eq!(asks("management/instances", main).await.status, 200);
    // Any number of blanks, as scripts write them.
    assert_eq!(asks("private/orders", Some("   secret-token:main-and-secret")).await.status, 200);
    for path in ["instances/default/private", "instances/default/config", "instances/books/config"] {
        assert_eq!(asks(path, main).await.status, 200, "{path}");
    }
    // Paths that do not exist, whatever the token.
    for path in [
        "instances/unknown/config",
        "instances/default/private/instances",
        "instances/books/private/instances",
        "instances/books/management/instances",
        "private/instances/default/instances/default/config",
        "instances/default/instances/config",
        "private/instances/books/config",
        "private/instances/books/orders",
    ] {
        assert_eq!(asks(path, main).await.status, 404, "{path}");
    }
    // From a token to a proxy and back.
    let external = json!({ "method": "external" });
    let path = "instances/books/private/auth";
    is_error(&backend.send("POST", path, Some(&external), main).await, 401, 2015);
    assert_eq!(backend.send("POST", path, Some(&external), one).await.status, 204);
    assert_eq!(asks("instances/books/private/orders", None).await.status, 200);
    let wrong = json!({ "method": "token", "token": "x" });
    is_error(&backend.post(path, &wrong).await, 400, 2602);
    let token = json!({ "method": "token", "token": "secret-token:two-and-secret" });
    assert_eq!(backend.post(path, &token).await.status, 204);
    is_error(&asks("instances/books/private/orders", one).await, 401, 2015);
    let two = Some("secret-token:two-and-secret");
    assert_eq!(asks("instances/books/private/orders", two).await.status, 200);
    assert_eq!(
        backend.send("POST", "management/instances/books/auth", Some(&external), main).await.status,
        204
    );
    backend.end().await;
}

#[tokio::test]
async fn orders_use_the_account_that_the_shop_named_first() {
    let backend = Backend::start().await;
    for n in 0..8 {
        let id = format!("shop{n}");
        let mut wish = shop(&id, None);
        let uri = |m: u8| format!("payto://x-taler-bank/localhost/{m}?receiver-name=books");
        wish["payto_uris"] = json!([uri(1), uri(0), uri(2)]);
        assert_eq!(backend.post("management/instances", &wish).await.status, 204);
        let shown: Value = backend.get(&format!("management/instances/{id}")).await.ok().unwrap();
        let accounts = shown["accounts"].as_array().unwrap();
        let found: Vec<&Value> = accounts.iter().map(|account| &account["payto_uri"]).collect();
        assert_eq!(found, [&json!(uri(1)), &json!(uri(0)), &json!(uri(2))]);
    }
    backend.end().await;
}

#[tokio::test]
async fn accounts_have_the_names_of_their_owners() {
    let backend = Backend::start().await;
    let mut wish = shop("books", None);
    let account = "payto://iban/DE89370400440532013000?receiver-name=B%C3%BCcher%20M%C3%BCller%20GmbH";
    wish["payto_uris"] = json!([account]);
    assert_eq!(backend.post("management/instances", &wish).await.status, 204);
    let seen: Value = backend.get("management/instances/books").await.ok().unwrap();
    assert_eq!(seen["accounts"][0]["payto_uri"], account);
    let sold: Value = backend.post("instances/books/private/orders", &free()).await.ok().unwrap();
    let id = sold["order_id"].as_str().unwrap();
    let order: Value = backend.get(&format!("instances/books/private/orders/{id}")).await.ok().unwrap();
    assert_eq!(order["order_status"], "unpaid");
    // The reason names the account and the fault.
    for (account, reason) in [
        ("payto://iban/DE89370400440532013000", "receiver-name"),
        ("payto://iban/DE88370400440532013000?receiver-name=B", "check digits"),
        ("payto://iban/DE89370400440532013000?receiver-name=Bücher", "character"),
    ] {
        wish["payto_uris"] = json!([account]);
        wish["id"] = json!("other");
        let reply = backend.post("management/instances", &wish).await;
        let refused: Value = reply.json().unwrap();
        let detail = refused["detail"].as_str().unwrap();
        assert_eq!(reply.status, 400);
        assert!(detail.contains(account) && detail.contains(reason), "{detail}");
    }
    wish["payto_uris"] = json!([]);
    wish["name"] = json!("Books\u{202e}");
    is_error(&backend.post("management/instances", &wish).await, 400, 26);
    backend.end().await;
}
