//! Messages that precede a transfer go through the switch: lookups, parties, quotes, requests to pay. Also
//! tests messages that cannot be delivered.
use crate::common;

use batzen_http::client::{Method, Reply};
use batzen_switch::rules::Change;
use batzen_switch::values::{format_hash, format_uuid};
use common::{Callback, Fsp, Scene};
use serde_json::{Value, json};

/// The id of a quote that is never delivered.
const ID: u128 = (0xabcd << 112) | (4 << 76) | (0b10 << 62) | 0xffff;

fn resource(path: &str) -> &str {
    path.split(['/', '?']).next().unwrap()
}

fn media(path: &str) -> String {
    format!("application/vnd.interoperability.{}+json;version=1.1", resource(path))
}

/// Sends a message from a participant to another one, or to none.
async fn send(
    scene: &Scene,
    method: Method,
    path: &str,
    (source, destination): (&str, &str),
    body: Value,
) -> Reply {
    let media = media(path);
    let mut call = scene
        .client
        .call(method.clone(), format!("{}{path}", scene.switch.fsp_url()))
        .header("date", "Sat, 21 Nov 2026 15:00:00 GMT")
        .header("fspiop-source", source)
        .header("fspiop-signature", "{\"signature\":\"abc\"}")
        .header("fspiop-encryption", "{\"encryptedFields\":[]}")
        .header("fspiop-uri", "/signed")
        .header("fspiop-http-method", "POST");
    if method != Method::PUT {
        call = call.header("accept", &media);
    }
    if !destination.is_empty() {
        call = call.header("fspiop-destination", destination);
    }
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    call.body(&media, body).send().await.unwrap()
}

async fn request(scene: &Scene, method: Method, path: &str, destination: &str, body: Value) -> Reply {
    send(scene, method, path, ("fsp1", destination), body).await
}

/// The callbacks whose path contains this text, once there are `count` of them.
async fn callbacks(fsp: &Fsp, text: &str, count: usize) -> Vec<Callback> {
    fsp.wait(text, count, |callback| callback.path.contains(text)).await
}

async fn error_of(scene: &Scene, path: &str) -> Callback {
    let found = callbacks(&scene.fsps[0], &format!("/{path}/error"), 1).await;
    assert_eq!(found[0].headers["fspiop-source"], "switch");
    found.into_iter().next().unwrap()
}

fn quote(id: u128) -> Value {
    let party = |id: &str| json!({ "partyIdInfo": { "partyIdType": "MSISDN", "partyIdentifier": id } });
    json!({
        "quoteId": format_uuid(id), "transactionId": format_uuid(id + 1), "payee": party("49171"),
        "payer": party("49172"), "amountType": "SEND", "amount": { "currency": "EUR", "amount": "12.5" },
        "transactionType": { "scenario": "TRANSFER", "initiator": "PAYER", "initiatorType": "CONSUMER" },
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lookups_find_the_participant_of_a_party() {
    let scene = Scene::new(2).await;
    let party = "participants/MSISDN/49171";
    // Nobody has registered it.
    assert_eq!(request(&scene, Method::GET, party, "", Value::Null).await.status, 202);
    assert_eq!(error_of(&scene, party).await.error_code(), "3204");
    // Only the party's own participant can register it.
    let own = json!({ "fspId": "fsp2", "currency": "EUR" });
    let post = |source, body| send(&scene, Method::POST, party, (source, ""), body);
    assert_eq!(post("fsp1", own.clone()).await.status, 202);
    let refused = callbacks(&scene.fsps[0], "/participants/MSISDN/49171/error", 2).await;
    assert_eq!(refused[1].error_code(), "3003");
    assert_eq!(post("fsp2", own.clone()).await.status, 202);
    let told = callbacks(&scene.fsps[1], "/participants/MSISDN/49171", 1).await;
    assert_eq!((told[0].method.as_str(), told[0].json()), ("PUT", own.clone()));
    assert_eq!(
        told[0].headers["content-type"],
        "application/vnd.interoperability.participants+json;version=1.1"
    );
    assert!(!told[0].headers.contains_key("accept"), "callbacks have no Accept");
    // The same participant again; then another one.
    assert_eq!(post("fsp2", own).await.status, 202);
    callbacks(&scene.fsps[1], "/participants/MSISDN/49171", 2).await;
    assert_eq!(post("fsp1", json!({ "fspId": "fsp1", "currency": "EUR" })).await.status, 202);
    let refused = callbacks(&scene.fsps[0], "/participants/MSISDN/49171/error", 3).await;
    assert_eq!(refused[2].error_code(), "3003");
    // Found with and without the currency, but not in another currency.
    for (path, found) in [
        (party.to_owned(), true),
        (format!("{party}?currency=EUR"), true),
        (format!("{party}?currency=USD"), false),
    ] {
        let before = scene.fsps[0].callbacks().len();
        assert_eq!(request(&scene, Method::GET, &path, "", Value::Null).await.status, 202);
        let all = callbacks(&scene.fsps[0], "/participants/MSISDN/49171", before + 1).await;
        let last = all.last().unwrap();
        assert_eq!(last.json()["fspId"] == "fsp2", found, "{path}: {last:?}");
    }
    // Only its participant can remove it.
    for (source, place, code) in [("fsp1", 0, "3204"), ("fsp2", 1, ""), ("fsp2", 1, "3204")] {
        let path = format!("{party}?currency=EUR");
        let before = scene.fsps[place].callbacks().len();
        let reply = send(&scene, Method::DELETE, &path, (source, ""), Value::Null).await;
        assert_eq!(reply.status, 202);
        let all = callbacks(&scene.fsps[place], "/participants/MSISDN/49171", before + 1).await;
        assert_eq!(all.last().unwrap().error_code(), code, "{source}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_parties_are_registered_at_once_and_outlive_the_process() {
    let scene = Scene::new(2).await;
    let id = format_uuid(scene.id());
    let one = |number: u32, fsp: &str| json!({ "partyIdType": "IBAN", "partyIdentifier": format!("DE{number}"), "fspId": fsp });
    let list: Vec<Value> = (0..40).map(|number| one(number, "fsp2")).chain([one(99, "fsp1")]).collect();
    let body = json!({ "requestId": id, "partyList": list });
    let reply = send(&scene, Method::POST, "participants", ("fsp2", ""), body).await;
    assert_eq!(reply.status, 202);
    let told = callbacks(&scene.fsps[1], &format!("/participants/{id}"), 1).await;
    let results = told[0].json()["partyList"].as_array().unwrap().clone();
    assert_eq!(results.len(), 41);
    for (place, result) in results.iter().enumerate() {
        let code = &result["errorInformation"]["errorCode"];
        assert_eq!(*code, if place == 40 { json!("3003") } else { Value::Null }, "{result}");
    }
    // The store contains a hash, not the identifier.
    let rows = scene.store.all::<batzen_tables::switch::Parties>().unwrap();
    assert_eq!(rows.len(), 40);
    assert!(rows.iter().all(|found| found.row.participant == 2));
    // A quote without a destination goes to the payee's participant.
    let mut quote = quote(scene.id());
    quote["payee"]["partyIdInfo"] = json!({ "partyIdType": "IBAN", "partyIdentifier": "DE7" });
    assert_eq!(request(&scene, Method::POST, "quotes", "", quote.clone()).await.status, 202);
    let got = callbacks(&scene.fsps[1], "/quotes", 1).await;
    assert_eq!((got[0].json(), got[0].headers["fspiop-destination"].as_str()), (quote, "fsp2"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_and_answers_pass_unchanged() {
    let scene = Scene::new(2).await;
    let uuid = format_uuid(scene.id());
    let party = json!({ "party": { "partyIdInfo": { "partyIdType": "MSISDN", "partyIdentifier": "49171", "fspId": "fsp2" }, "name": "Ü" } });
    let result = json!({
        "transferAmount": { "currency": "EUR", "amount": "12.5" }, "expiration": "2026-11-21T15:00:00.000Z",
        "ilpPacket": "AYIBgQ", "condition": format_hash(&[7; 32]),
    });
    let state = json!({ "transactionRequestState": "RECEIVED" });
    let bulk = json!({ "expiration": "2026-11-21T15:00:00.000Z" });
    let mut requested = quote(scene.id());
    requested["transactionRequestId"] = json!(uuid);
    requested["payer"] = requested["payer"]["partyIdInfo"].clone();
    requested.as_object_mut().unwrap().remove("quoteId");
    let bulk_quote = json!({
        "bulkQuoteId": uuid, "payer": quote(ID)["payer"],
        "individualQuotes": [quote(scene.id())],
    });
    let cases = [
        (
            Method::GET,
            "parties/MSISDN/49171".to_owned(),
            Value::Null,
            "parties/MSISDN/49171".to_owned(),
            party,
        ),
        (
            Method::GET,
            "parties/BUSINESS/a%2Fb/till%201?x=1".to_owned(),
            Value::Null,
            "parties/BUSINESS/a%2Fb/till%201".to_owned(),
            json!({ "party": { "partyIdInfo": { "partyIdType": "BUSINESS", "partyIdentifier": "a/b" } } }),
        ),
        (Method::POST, "quotes".to_owned(), quote(scene.id()), format!("quotes/{uuid}"), result),
        (
            Method::GET,
            format!("quotes/{uuid}"),
            Value::Null,
            format!("quotes/{uuid}/error"),
            json!({ "errorInformation": { "errorCode": "3205", "errorDescription": "no" } }),
        ),
        (Method::POST, "bulkQuotes".to_owned(), bulk_quote, format!("bulkQuotes/{uuid}"), bulk),
        (
            Method::POST,
            "transactionRequests".to_owned(),
            requested,
            format!("transactionRequests/{uuid}"),
            state,
        ),
        (
            Method::GET,
            format!("authorizations/{uuid}?retriesLeft=2"),
            Value::Null,
            format!("authorizations/{uuid}"),
            json!({ "responseType": "ENTERED" }),
        ),
        (
            Method::GET,
            format!("transactions/{uuid}"),
            Value::Null,
            format!("transactions/{uuid}"),
            json!({ "transactionState": "COMPLETED" }),
        ),
    ];
    for (method, path, body, answer_path, answer) in cases {
        let reply = request(&scene, method.clone(), &path, "fsp2", body.clone()).await;
        assert_eq!(
            (reply.status, reply.body.len()),
            (202, 0),
            "{path}: {:?}",
            String::from_utf8_lossy(&reply.body)
        );
        let got = callbacks(&scene.fsps[1], &format!("/{}", path.split('?').next().unwrap()), 1).await;
        let got = got.last().unwrap();
        assert_eq!(got.method, method.as_str(), "{path}");
        assert_eq!(got.json(), body, "{path}");
        for (name, value) in [
            ("accept", media(&path)),
            ("content-type", media(&path)),
            ("fspiop-source", "fsp1".to_owned()),
            ("fspiop-destination", "fsp2".to_owned()),
            ("fspiop-signature", "{\"signature\":\"abc\"}".to_owned()),
            ("fspiop-encryption", "{\"encryptedFields\":[]}".to_owned()),
            ("fspiop-uri", "/signed".to_owned()),
            ("fspiop-http-method", "POST".to_owned()),
        ] {
            assert_eq!(got.headers.get(name), Some(&value), "{path}: {name}");
        }
        let reply = send(&scene, Method::PUT, &answer_path, ("fsp2", "fsp1"), answer.clone()).await;
        assert_eq!(reply.status, 200, "{answer_path}: {}", String::from_utf8_lossy(&reply.body));
        let got = callbacks(&scene.fsps[0], &format!("/{answer_path}"), 1).await;
        assert_eq!((got[0].method.as_str(), got[0].json()), ("PUT", answer), "{answer_path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_delivered_is_told_to_the_sender() {
    let scene = Scene::new(2).await;
    // An unknown participant.
    let first = quote(scene.id());
    let path = |quote: &Value| format!("quotes/{}", quote["quoteId"].as_str().unwrap());
    assert_eq!(request(&scene, Method::POST, "quotes", "nobody", first.clone()).await.status, 202);
    assert_eq!(error_of(&scene, &path(&first)).await.error_code(), "3201");
    // A party that nobody has registered.
    assert_eq!(request(&scene, Method::GET, "parties/MSISDN/1", "", Value::Null).await.status, 202);
    assert_eq!(error_of(&scene, "parties/MSISDN/1").await.error_code(), "3204");
    // Refused by the destination.
    let refused = quote(scene.id());
    scene.fsps[1].answer_with(&[400]);
    request(&scene, Method::POST, "quotes", "fsp2", refused.clone()).await;
    assert_eq!(error_of(&scene, &path(&refused)).await.error_code(), "1001");
    // Delivered after retries.
    let late = quote(scene.id());
    scene.fsps[1].answer_with(&[503, 500]);
    request(&scene, Method::POST, "quotes", "fsp2", late.clone()).await;
    let got = callbacks(&scene.fsps[1], "/quotes", 1).await;
    assert_eq!(got[0].json(), late);
    // Unreachable; transfers to others continue.
    let service = scene.switch.service();
    let away = Change::Endpoint {
        name: "fsp2".to_owned(),
        endpoint: "FSPIOP_CALLBACK_URL_QUOTES".to_owned(),
        url: "http://127.0.0.1:1/".to_owned(),
    };
    service.apply(&away).await.unwrap();
    let lost = quote(scene.id());
    request(&scene, Method::POST, "quotes", "fsp2", lost.clone()).await;
    assert_eq!(error_of(&scene, &path(&lost)).await.error_code(), "1001");
    scene.transfer(0, 1, "5").await;
    // A disabled participant.
    service.apply(&Change::Activate { name: "fsp2".to_owned(), active: false }).await.unwrap();
    let off = quote(scene.id());
    request(&scene, Method::POST, "quotes", "fsp2", off.clone()).await;
    assert_eq!(error_of(&scene, &path(&off)).await.error_code(), "3201");
    let reply = send(&scene, Method::POST, "quotes", ("fsp2", "fsp1"), quote(scene.id())).await;
    assert_eq!(reply.status, 403);
    let page = scene.client.get(format!("{}metrics", scene.switch.admin_url())).send().await.unwrap();
    let page = String::from_utf8(page.body.to_vec()).unwrap();
    assert!(page.contains("\nbatzen_switch_forwarding_given_up_total 2\n"), "{page}");
    assert!(page.contains("\nbatzen_switch_forwarding_waiting 0\n"), "{page}");
    assert!(page.contains("batzen_operations_total{operation=\"route\",outcome=\"done\"}"), "{page}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_is_bounded_and_does_not_hold_up_transfers() {
    let scene = Scene::new(3).await;
    // A destination that accepts connections and never answers.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Change::Endpoint {
        name: "fsp3".to_owned(),
        endpoint: "FSPIOP_CALLBACK_URL_QUOTES".to_owned(),
        url: format!("http://{}", silent.local_addr().unwrap()),
    };
    scene.switch.service().apply(&endpoint).await.unwrap();
    let mut statuses = Vec::new();
    for _ in 0..common::FORWARDING_QUEUE + 20 {
        statuses.push(request(&scene, Method::POST, "quotes", "fsp3", quote(scene.id())).await.status);
    }
    assert!(statuses.contains(&202) && statuses.contains(&503), "{statuses:?}");
    let accepted = statuses.iter().filter(|status| **status == 202).count();
    assert!(accepted <= common::FORWARDING_QUEUE + common::FORWARDING_CONNECTIONS, "{accepted}");
    // Other destinations are served as usual.
    let other = quote(scene.id());
    assert_eq!(request(&scene, Method::POST, "quotes", "fsp2", other.clone()).await.status, 202);
    assert_eq!(callbacks(&scene.fsps[1], "/quotes", 1).await[0].json(), other);
    scene.transfer(0, 1, "5").await;
    scene.transfer(0, 2, "5").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_ill_formed_is_refused_at_once() {
    let scene = Scene::new(2).await;
    let uuid = format_uuid(scene.id());
    let without = |name: &str| {
        let mut quote = quote(ID);
        quote.as_object_mut().unwrap().remove(name);
        quote
    };
    let with = |name: &str, value: Value| {
        let mut quote = quote(ID);
        quote[name] = value;
        quote
    };
    let (post, get, put) = (Method::POST, Method::GET, Method::PUT);
    for (method, path, destination, body, status, code) in [
        (post.clone(), "quotes", "fsp2", without("amount"), 400, "3102"),
        (post.clone(), "quotes", "fsp2", with("amountType", json!("BOTH")), 400, "3101"),
        (
            post.clone(),
            "quotes",
            "fsp2",
            with("amount", json!({ "currency": "EUR", "amount": "1.00" })),
            400,
            "3101",
        ),
        (
            post.clone(),
            "quotes",
            "fsp2",
            with("payee", json!({ "partyIdInfo": { "partyIdType": "X", "partyIdentifier": "1" } })),
            400,
            "3101",
        ),
        (post.clone(), "quotes", "fsp2", with("extensionList", json!({ "extension": [] })), 400, "3103"),
        (post.clone(), "quotes", "fsp2", json!([]), 400, "3101"),
        (
            post.clone(),
            "bulkQuotes",
            "fsp2",
            json!({ "bulkQuoteId": uuid, "payer": quote(ID)["payer"], "individualQuotes": [] }),
            400,
            "3103",
        ),
        (post.clone(), "participants", "", json!({ "requestId": uuid, "partyList": [] }), 400, "3103"),
        (post.clone(), "parties", "fsp2", json!({}), 405, "3000"),
        (get.clone(), "quotes/x", "fsp2", Value::Null, 400, "3101"),
        (get.clone(), "parties/HANDLE/x", "fsp2", Value::Null, 400, "3101"),
        (get.clone(), "parties/MSISDN", "fsp2", Value::Null, 404, "3002"),
        (get.clone(), "participants/MSISDN/1?currency=euro", "", Value::Null, 400, "3101"),
        (
            put.clone(),
            "parties/MSISDN/1",
            "nobody",
            json!({ "party": { "partyIdInfo": { "partyIdType": "MSISDN", "partyIdentifier": "1" } } }),
            400,
            "3201",
        ),
        (
            put.clone(),
            "parties/MSISDN/1/error",
            "fsp2",
            json!({ "errorInformation": { "errorCode": "12", "errorDescription": "x" } }),
            400,
            "3101",
        ),
        (post.clone(), "fxQuotes", "fsp2", json!({}), 501, "2002"),
        (post.clone(), "fxTransfers", "fsp2", json!({}), 501, "2002"),
        (get, "nowhere/x", "fsp2", Value::Null, 404, "3002"),
    ] {
        let reply = request(&scene, method.clone(), path, destination, body).await;
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        assert_eq!(reply.status, status, "{method} {path}: {text}");
        let body: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(body["errorInformation"]["errorCode"], code, "{method} {path}: {text}");
    }
    assert_eq!(request(&scene, post, &format!("quotes/{uuid}"), "fsp2", quote(ID)).await.status, 405);
    assert_eq!(request(&scene, put, "quotes", "fsp2", json!({})).await.status, 405);
    assert!(scene.fsps[1].callbacks().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_version_is_told_which_ones_are_spoken() {
    let scene = Scene::new(2).await;
    for (path, version) in [("quotes", "version=2.0"), ("transfers", "version=3")] {
        let known = format!("application/vnd.interoperability.{path}+json;version=1.1");
        let wanted = format!("application/vnd.interoperability.{path}+json;{version}");
        let reply = scene
            .client
            .call(Method::POST, format!("{}{path}", scene.switch.fsp_url()))
            .header("accept", &wanted)
            .header("date", "Sat, 21 Nov 2026 15:00:00 GMT")
            .header("fspiop-source", "fsp1")
            .header("fspiop-destination", "fsp2")
            .body(&known, b"{}".to_vec())
            .send()
            .await
            .unwrap();
        let body: Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!((reply.status, &body["errorInformation"]["errorCode"]), (406, &json!("3001")), "{body}");
        let expected = json!([{ "key": "1", "value": "0" }, { "key": "1", "value": "1" }]);
        assert_eq!(body["errorInformation"]["extensionList"]["extension"], expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forwarded_transfer_carries_accept_and_its_callback_does_not() {
    let scene = Scene::new(2).await;
    let id = scene.transfer(0, 1, "5").await;
    let posted = &scene.fsps[1].about(id, 1).await[0];
    assert_eq!(posted.headers["accept"], "application/vnd.interoperability.transfers+json;version=1.1");
    let put = &scene.fsps[0].about(id, 1).await[0];
    assert!(!put.headers.contains_key("accept"), "{put:?}");
}
