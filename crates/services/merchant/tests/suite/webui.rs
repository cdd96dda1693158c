//! The files of the back office, its QR codes, and the description of the interface.

use serde_json::{Value, json};

use crate::common::{Backend, eventually, is_error, shop};

#[tokio::test]
async fn the_back_office_is_served_below_every_instance() {
    let backend = Backend::start().await;
    // Before there is any shop, too.
    assert_eq!(backend.page("webui/").await.status, 200);
    let token = "secret-token:prints-and-secret";
    for (id, token) in [("default", None), ("prints", Some(token))] {
        assert_eq!(backend.post("management/instances", &shop(id, token)).await.status, 204);
    }
    for base in ["", "instances/default/", "instances/prints/"] {
        let page = backend.page(&format!("{base}webui/")).await;
        let html = String::from_utf8(page.body.to_vec()).unwrap();
        assert!(page.status == 200 && html.contains("src=\"app.js\""), "{base}: {html}");
        let policy = page.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; "), "{policy}");
        assert_eq!(backend.page(&format!("{base}webui/app.js")).await.status, 200);
        is_error(&backend.get(&format!("{base}webui/other.js")).await, 404, 21);
    }
    is_error(&backend.get("instances/nobody/webui/").await, 404, 2000);
    is_error(&backend.get("webui/app.js/x").await, 404, 1002);
    // Browsers find it from the backend's own page; programs see a text.
    let home = String::from_utf8(backend.page("").await.body.to_vec()).unwrap();
    assert!(home.contains("href=\"webui/\""), "{home}");
    let text = String::from_utf8(backend.get("").await.body.to_vec()).unwrap();
    assert!(text.starts_with("A Batzen merchant backend.\n") && text.contains("/webui/"), "{text}");
    backend.end().await;
}

#[tokio::test]
async fn the_dashboard_shows_how_the_backend_is_doing() {
    let backend = Backend::with_shop().await;
    let page = backend.page("dashboard").await;
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let is_shown = |history: &Value| {
        let sections = history["sections"].as_array().unwrap();
        let has = |id: &str| sections.iter().any(|section| section["id"] == id);
        has("now") && has("process")
    };
    // The first values come after some seconds.
    eventually("the first values", async || is_shown(&backend.get("dashboard/history").await.ok().unwrap()))
        .await;
    is_error(&backend.get("dashboard/other").await, 404, 21);
    backend.end().await;
}

#[tokio::test]
async fn only_the_shop_gets_qr_codes() {
    let backend = Backend::with_shop().await;
    let token = "secret-token:prints-and-secret";
    assert_eq!(backend.post("management/instances", &shop("prints", Some(token))).await.status, 204);
    let wish = json!({ "uri": "taler://pay/shop.example/1/" });
    let code: Value = backend.post("webui/qr", &wish).await.ok().unwrap();
    assert!(code["size"].as_u64().unwrap() >= 21 && code["path"].as_str().unwrap().starts_with("M0 0h1"));
    let path = "instances/prints/webui/qr";
    is_error(&backend.post(path, &wish).await, 401, 2015);
    assert_eq!(backend.send("POST", path, Some(&wish), Some(token)).await.status, 200);
    for uri in ["javascript:alert(1)", "", &format!("taler://{}", "x".repeat(1_024))] {
        is_error(&backend.post("webui/qr", &json!({ "uri": uri })).await, 400, 26);
    }
    is_error(&backend.post("webui/qr", &json!({ "uri": 1 })).await, 400, 22);
    assert_eq!(backend.post("webui/qr", &json!({ "uri": "x".repeat(16_384) })).await.status, 413);
    backend.end().await;
}

#[tokio::test]
async fn the_interface_describes_itself() {
    let backend = Backend::start().await;
    let document: Value = backend.get("openapi.json").await.ok().unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    assert!(document["paths"]["/private/orders"]["post"].is_object());
    backend.end().await;
}
