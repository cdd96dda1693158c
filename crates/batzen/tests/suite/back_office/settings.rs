//! Access, settings and accounts.

use batzen_http::client::Method;
use serde_json::{Value, json};

use super::{TOKEN, quiet_shop, token_auth};

#[test]
fn access_and_settings() {
    let shop = quiet_shop(&token_auth());
    shop.add("prints", "Prints", &json!({ "method": "token", "token": "secret-token:prints-and-secret" }));
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
    shop.send("login", &[("instance", "prints"), ("token", "prints-and-secret")]);
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

#[test]
fn templates_tokens_and_web_hooks() {
    let shop = quiet_shop(&token_auth());
    shop.log_in();
    shop.open_view("#/template", "New template");
    shop.send("template-form", &[("template_id", "coffee"), ("description", "Till"), ("amount", "x")]);
    shop.until_error("template-amount", "such as 12.50");
    shop.send("template-form", &[("amount", "3"), ("summary", "Coffee"), ("hours", "0.5")]);
    shop.until_shown("code-title");
    shop.audit("template");
    let link = shop.text_of("document.getElementById('template-link').value");
    assert_eq!(link, format!("{}templates/coffee", shop.base));
    let expected = json!({
        "template_description": "Till",
        "template_contract": {
            "summary": "Coffee", "amount": "KUDOS:3", "minimum_age": 0, "pay_duration": { "d_us": 1_800_000_000_u64 },
        },
    });
    assert_eq!(shop.get("private/templates/coffee"), expected);
    shop.send("template-form", &[("amount", ""), ("hours", "")]);
    shop.until_text("message", "Saved");
    let contract = shop.get("private/templates/coffee")["template_contract"].clone();
    assert_eq!((&contract["amount"], &contract["pay_duration"]["d_us"]), (&Value::Null, &json!("forever")));
    shop.open_view("#/templates", "Templates");
    shop.until_text("templates", "Till");
    shop.audit("templates");
    shop.open_view("#/template/coffee", "Till");
    shop.click("#delete-template");
    shop.click("#delete-template");
    shop.until_text("nothing", "No templates yet");

    // A token for a program that only reads.
    shop.open_view("#/programs", "Programs");
    shop.send("add-token", &[("description", ""), ("scope", "readonly")]);
    shop.until_error("token-description", "which program");
    shop.send("add-token", &[("description", "Bookkeeping")]);
    shop.until_shown("the-token");
    let token = shop.text_of("document.getElementById('the-token').value");
    shop.until_text("tokens", "Bookkeeping");
    shop.send("add-hook", &[("id", "till"), ("url", "shop.example"), ("headers", "x")]);
    shop.until_error("hook-url", "begins with https://");
    shop.send("add-hook", &[("url", "https://shop.example/paid"), ("headers", "X-Key: 1")]);
    shop.until_text("hooks", "POST https://shop.example/paid");
    let hook = shop.get("private/webhooks/till");
    assert_eq!((&hook["event_type"], &hook["header_template"]), (&json!("pay"), &json!("X-Key: 1")));
    shop.audit("programs");
    shop.click("#hooks li button");
    shop.click("#hooks li button");
    shop.until_text("message", "The web hook is deleted");
    // With it, the page shows everything and changes nothing.
    shop.click("#logout");
    shop.send("login", &[("token", &token)]);
    shop.until_text("shop", "Books & Prints");
    shop.open_view("#/new", "New order");
    shop.send("new-order", &[("amount", "1"), ("summary", "x")]);
    shop.until_text("message", "Your access token does not allow this");
    shop.click("#logout");
    shop.send("login", &[("token", TOKEN)]);
    shop.until_text("shop", "Books & Prints");
    shop.open_view("#/programs", "Programs");
    shop.click("#tokens li button");
    shop.click("#tokens li button");
    shop.until_text("message", "The token is revoked");
    assert_eq!(shop.get("private/tokens")["tokens"], json!([]));
    shop.close();
}
