//! Small pages, and what all endpoints have in common.

use batzen_crypto::EddsaPrivateKey;
use batzen_exchange::config::ExchangeConfig;
use batzen_http::Method;
use futures_util::FutureExt as _;

use crate::keys::support::{Site, code, config, operated};

#[tokio::test]
async fn a_service_signals_its_request_limit() {
    let master = EddsaPrivateKey::generate();
    let site =
        Site::with(|directory| ExchangeConfig { max_requests: Some(3), ..operated(directory, &master) })
            .await;
    let app = site.running.app();
    for _ in 0..2 {
        site.get("seed").await;
    }
    assert_eq!(app.all_served().now_or_never(), None);
    site.get("seed").await;
    app.all_served().await;
    assert_eq!(site.get("seed").await.status, 200, "until it is told to end");
    site.stop().await;
}

#[tokio::test]
async fn small_pages() {
    let site = Site::standalone().await;
    let root = site.get("").await;
    assert_eq!((root.status, root.header("content-type")), (200, Some("text/plain")));
    assert!(!root.body.is_empty());
    // Browsers ask for HTML and get a page for people.
    let page = site.client.call(Method::GET, site.url("")).header("accept", "text/html,*/*;q=0.8");
    let page = page.send().await.unwrap();
    assert_eq!((page.status, page.header("vary")), (200, Some("accept")));
    assert!(page.header("content-security-policy").unwrap().starts_with("default-src 'none'"));
    let text = String::from_utf8(page.body.to_vec()).unwrap();
    assert!(text.contains(&format!("<code>{}</code>", site.url(""))), "{text}");
    for link in ["terms", "privacy", "keys", "dashboard"] {
        assert!(text.contains(&format!("href=\"{link}\"")), "{link}");
        assert_eq!(site.get(link).await.status, 200, "{link}");
    }
    let robots = site.get("robots.txt").await;
    assert_eq!(&robots.body[..], b"User-agent: *\nDisallow: /\n");
    assert_eq!(robots.header("content-type"), Some("text/plain"));
    let (a, b) = (site.get("seed").await, site.get("seed").await);
    assert_eq!((a.body.len(), a.header("content-type")), (32, None));
    assert_ne!(a.body, b.body);
    for (method, path, status, number) in [
        (Method::GET, "config", 404, 21),
        (Method::GET, "nosuch/thing", 404, 21),
        (Method::PUT, "keys", 405, 20),
        (Method::GET, "keys/1", 404, 1002),
        (Method::POST, "management/nosuch", 404, 1001),
        (Method::POST, "management/wire/nosuch", 404, 1001),
    ] {
        let reply = site.client.call(method.clone(), site.url(path)).send().await.unwrap();
        assert_eq!((reply.status, code(&reply)), (status, number), "{method} {path}");
        assert_eq!(reply.header("access-control-allow-origin"), Some("*"));
    }
    let put = site.client.call(Method::PUT, site.url("keys")).send().await.unwrap();
    assert_eq!(put.header("allow"), Some("GET, HEAD"));
    for (path, allowed) in [("keys", Some("*")), ("management/keys", None), ("kyc-officer/cases", None)] {
        let options = site.client.call(Method::OPTIONS, site.url(path)).send().await.unwrap();
        assert_eq!(
            (options.status, options.header("access-control-allow-methods")),
            (204, allowed),
            "{path}"
        );
    }
    let head = site.client.call(Method::HEAD, site.url("keys")).send().await.unwrap();
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert!(head.header("etag").is_some());
    site.stop().await;
}

#[tokio::test]
async fn built_in_documents_satisfy_wallets() {
    let site = Site::standalone().await;
    for (path, etag) in [("terms", "tos-v0"), ("privacy", "pp-v0")] {
        let reply = site.get_with(path, &[("accept", "text/plain")]).await;
        assert_eq!((reply.status, reply.header("content-type")), (200, Some("text/plain")));
        assert_eq!(reply.header("etag"), Some(etag));
        assert_eq!(reply.header("expires"), Some("Sat, 21 Nov 2026 00:00:00 GMT"));
        assert_eq!(reply.header("cache-control"), Some("public max-age=864000"));
        assert_eq!(reply.header("vary"), Some("Accept-Language,Accept,Accept-Encoding"));
        assert_eq!(reply.header("acceptable-languages"), Some("en"));
        assert!(!reply.body.is_empty());
        for known in [
            etag.to_uppercase(),
            format!("\"{etag}\""),
            format!("W/\"{etag}\""),
            format!("\"other\", \"{etag}\""),
            "*".to_owned(),
        ] {
            let reply = site.get_with(path, &[("if-none-match", &known)]).await;
            assert_eq!((reply.status, reply.body.len()), (304, 0), "{known}");
            assert_eq!((reply.header("etag"), reply.header("expires").is_some()), (Some(etag), true));
        }
        assert_eq!(site.get_with(path, &[("if-none-match", "\"other\"")]).await.status, 200);
    }
    site.stop().await;
}

#[tokio::test]
async fn configured_documents_are_negotiated() {
    let site = Site::with(|directory| {
        let mut config = config(directory);
        let terms = directory.join("terms");
        for (language, extension, text) in
            [("en", "txt", "Terms"), ("de", "txt", "Bedingungen"), ("en", "html", "<p>Terms")]
        {
            std::fs::create_dir_all(terms.join(language)).unwrap();
            std::fs::write(terms.join(language).join(format!("v7.{extension}")), text).unwrap();
        }
        config.terms.directory = Some(terms);
        config.terms.etag = "v7".into();
        config
    })
    .await;
    for (accept, language, mime, text) in [
        ("text/plain", "de-CH, en;q=0.1", "text/plain", "Bedingungen"),
        ("text/plain", "fr", "text/plain", "Terms"),
        ("text/html", "de", "text/html", "<p>Terms"),
        ("application/json", "en", "text/html", "<p>Terms"),
    ] {
        let reply = site.get_with("terms", &[("accept", accept), ("accept-language", language)]).await;
        assert_eq!((reply.status, reply.header("content-type")), (200, Some(mime)), "{accept} {language}");
        assert_eq!(std::str::from_utf8(&reply.body).unwrap(), text);
        assert_eq!(reply.header("etag"), Some("v7"));
    }
    site.stop().await;
}

#[tokio::test]
async fn metrics_have_the_established_names() {
    let site = Site::standalone().await;
    let reply = site.get("metrics").await;
    assert_eq!((reply.status, reply.header("content-type")), (200, Some(batzen_metrics::CONTENT_TYPE)));
    let page = std::str::from_utf8(&reply.body).unwrap();
    for (name, labels) in [
        ("success_transactions", &["deposit", "withdraw", "batch-withdraw", "melt", "refresh-reveal"][..]),
        ("serialization_failures", &["other", "deposit", "withdraw", "melt"]),
        ("received_requests", &["other", "deposit", "withdraw", "melt"]),
        ("idempotent_requests", &["withdraw", "batch-withdraw"]),
        ("num_signatures", &["rsa", "cs", "eddsa"]),
        ("num_signature_verifications", &["rsa", "cs", "eddsa"]),
        ("num_keyexchanges", &["ecdh"]),
    ] {
        assert!(page.contains(&format!("# HELP taler_exchange_{name} ")), "{name}");
        assert!(page.contains(&format!("# TYPE taler_exchange_{name} counter\n")), "{name}");
        for label in labels {
            assert!(
                page.contains(&format!("\ntaler_exchange_{name}{{type=\"{label}\"}} ")),
                "{name} {label}"
            );
        }
    }
    assert!(page.contains("\ntaler_exchange_batch_withdraw_num_coins 0\n"));
    let value = |line: &str| -> u64 {
        let found = page.lines().find_map(|l| l.strip_prefix(line)).unwrap_or_else(|| panic!("{line}"));
        found.trim().parse().unwrap()
    };
    // The exchange's own set-up: keys, account, fees.
    assert!(value("taler_exchange_received_requests{type=\"other\"}") >= 8);
    assert!(value("taler_exchange_num_signature_verifications{type=\"eddsa\"}") >= 8);
    assert!(value("batzen_lane_commands_total") >= 6);
    assert!(value("batzen_keys_denominations_created_total") >= 2);
    assert!(value("batzen_store_commits_total") >= 6);
    site.stop().await;
}
