//! A visitor buys in the demo's bookshop with a browser and a wallet, reads in another browser what she has bought,
//! and gives it back.

use crate::readme;
use batzen_testkit::process as common;

use batzen_http::client::{Client, ClientOptions};
use batzen_testkit::browser::Browser;
use batzen_testkit::setup::{shop, wait_for};
use common::{Service, free_port, stderr, stdout};
use serde_json::{Value, json};

const ARTICLE: &str = "articles/change";

fn click(browser: &Browser, selector: &str) {
    browser.run(&format!("document.querySelector('{selector}').click()"));
}

/// The link below the QR code, once the browser shows the backend's page.
fn link(browser: &Browser, scheme: &str) -> String {
    let found = format!("document.querySelector('a[href^=\"{scheme}\"]')");
    browser.until(&found);
    assert_eq!(browser.run("return document.querySelectorAll('svg path').length"), json!(1), "a QR code");
    browser.run(&format!("return {found}.href")).as_str().unwrap().to_owned()
}

#[test]
fn a_visitor_buys_an_article_reads_it_and_gives_it_back() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let (service, results) = readme::demo(dir.path(), data.to_str().unwrap());
    let url = |name: &str| results[name].as_str().unwrap().to_owned();
    let file = dir.path().join("zoe.db");
    let wallet = |words: &[&str]| readme::wallet(&file, words);
    let (bank, exchange, shop) = (url("bank"), url("exchange"), url("shop"));
    let words = ["withdraw", "--exchange", &exchange, "--amount", "KUDOS:5", "--bank", &bank];
    wallet(&[&words[..], &["--user", "zoe", "--password", "zoe"]].concat());

    let browser = Browser::start();
    browser.open(&shop);
    browser.audit("shop");
    click(&browser, &format!("a[href=\"/{ARTICLE}\"]"));
    browser.until("document.getElementById('buy')");
    browser.audit("shop-offer");
    assert_eq!(browser.run("return document.getElementById('text')"), Value::Null);
    click(&browser, "#buy");
    let pay_uri = link(&browser, "taler+http://pay/");
    wallet(&["pay", &pay_uri]);
    // The page notices by itself.
    browser.until("document.body.innerText.includes('Paid')");
    click(&browser, "a");
    browser.until("document.getElementById('text')?.innerText.includes('two of them opened')");
    browser.audit("shop-article");

    // In another browser nothing is paid, until the wallet shows its receipt there; it does not pay again.
    let before = wallet(&["balance"]);
    let other = Browser::start();
    other.open(&format!("{shop}{ARTICLE}"));
    assert_eq!(other.run("return document.getElementById('text')"), Value::Null);
    click(&other, "#buy");
    wallet(&["pay", &link(&other, "taler+http://pay/")]);
    other.until("document.getElementById('text')");
    assert_eq!(wallet(&["balance"]), before);

    click(&browser, "#return");
    let refund_uri = link(&browser, "taler+http://refund/");
    assert!(refund_uri.ends_with('/'), "{refund_uri}");
    browser.open(&format!("{shop}{ARTICLE}"));
    browser.until("document.body.innerText.includes('given this article back')");
    assert_eq!(browser.run("return document.getElementById('text')"), Value::Null);
    let (status, _) = service.terminate();
    assert!(status.success(), "{status}");
}

/// The blocks of a language in the page for developers of shops.
fn examples(language: &str) -> String {
    let page = include_str!("../../../../docs/shop-integration.md");
    let start = format!("```{language}\n");
    let block = page.split(&start).nth(1).and_then(|rest| rest.split("```").next());
    block.unwrap_or_else(|| panic!("no example in {language}")).to_owned()
}

#[tokio::test]
async fn the_examples_in_python_and_javascript_run() {
    let dir = tempfile::tempdir().unwrap();
    let port = free_port();
    let config = dir.path().join("merchant.conf");
    let text = format!("[taler]\nCURRENCY = KUDOS\n[merchant]\nPORT = {port}\nBIND_TO = 127.0.0.1\n");
    std::fs::write(&config, text).unwrap();
    let words = ["merchant", "serve", "--in-memory", "-c", config.to_str().unwrap()];
    let _backend = Service::start(dir.path(), "merchant", &words);
    wait_for(port, "/ready");
    let shop = shop("Towels", "towels", "secret-token:sandbox-demo", "KUDOS:1");
    let client = Client::new(&ClientOptions::default()).unwrap();
    let url = format!("http://localhost:{port}/management/instances");
    assert_eq!(client.post_json(url, &shop).await.unwrap().status, 204);
    for (language, program, option) in [("python", "python3", "-c"), ("javascript", "node", "--eval")] {
        let code = examples(language).replace(":9966/", &format!(":{port}/"));
        // `await` outside a function exists in modules only.
        let module = (language == "javascript").then_some("--input-type=module");
        let command = std::process::Command::new(program).args(module).args([option, &code]).output();
        let output = command.unwrap_or_else(|error| panic!("{program}: {error}: see `make needs-test`"));
        let said = stdout(&output);
        assert!(output.status.success(), "{language}: {said}{}", stderr(&output));
        assert!(said.contains(&format!("send the browser to http://localhost:{port}/orders/")), "{said}");
        assert!(said.ends_with("not paid yet\n"), "{said}");
    }
}
