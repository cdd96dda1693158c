//! Limits of what customers move unidentified, at two services at once: they hold as at one, everybody is asked once,
//! and an identification at one service counts at the other.

use std::collections::BTreeSet;
use std::sync::Arc;

use batzen_crypto::hash::sha512;
use batzen_http::client::{Client, ClientOptions, Reply};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::common::end;
use crate::crash::coins::{Denom, minus, money};
use crate::nodes::purse::{fund, planchets};
use crate::nodes::{prepare, start_two};

/// Reserves of the one customer.
const RESERVES: usize = 12;
/// Coins that each reserve asks for, in requests of their own.
const EACH: usize = 3;
const SECTION: &str = "kyc-provider-clerk";
const OFFICERS: [&str; 2] = ["alice", "bob"];

/// A coin costs 2.01, so four may be withdrawn: the fifth would reach the limit.
const ALLOWED: usize = 4;

fn limits() -> String {
    let officers =
        OFFICERS.map(|name| format!("[kyc-officer-{name}]\nTOKEN_HASH = {}\n", sha512(name.as_bytes())));
    format!(
        "[kyc-legitimization-day]\nOPERATION_TYPE = withdraw\nREQUIRED_CHECKS = name\nTHRESHOLD = KUDOS:10\n\
         TIMEFRAME = 1 day\n\
         [{SECTION}]\nLOGIC = manual\nUSER_TYPE = individual\nPROVIDED_CHECKS = name\n\
         KYC_MANUAL_VALIDITY = 1 day\n{}",
        officers.concat()
    )
}

async fn officer(client: &Client, url: &str, name: &str, body: Option<&Value>) -> Reply {
    let bearer = format!("Bearer {name}");
    let call = match body {
        None => client.get(format!("{url}kyc-officer/cases")),
        Some(body) => client.post(format!("{url}kyc-officer/decisions")).json(body),
    };
    call.header("authorization", &bearer).send().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_hold_at_two_services_and_an_identification_counts_at_both() {
    let (site, _) = prepare(&limits());
    let bank = site.start_bank();
    let (nodes, ports) = start_two(&site);
    let client = Client::new(&ClientOptions::default()).unwrap();
    let urls = ports.map(|port| format!("http://localhost:{port}/"));
    let denoms = Denom::offered(&client, &urls[0]).await;
    let denom = denoms.iter().find(|denom| !denom.is_cs()).unwrap();
    assert_eq!(denom.cost(), money("2.01"));
    // All reserves were filled from the same account.
    let reserves = Arc::new(fund(&client, &site, RESERVES, money("20")).await);

    // Everything at once, at both services.
    let mut requests = Vec::new();
    for reserve in reserves.iter() {
        for planchet in planchets(denom, EACH) {
            let path = format!("reserves/{}/withdraw", reserve.public_key());
            requests.push((path, serde_json::to_value(planchet.request(reserve)).unwrap()));
        }
    }
    let mut running = JoinSet::new();
    for (number, (path, body)) in requests.iter().cloned().enumerate() {
        let (client, url) = (client.clone(), format!("{}{path}", urls[number % 2]));
        running.spawn(async move { (number, client.post_json(url, &body).await.unwrap()) });
    }
    let (mut accepted, mut asked) = (Vec::new(), Vec::new());
    while let Some(done) = running.join_next().await {
        let (number, reply) = done.unwrap();
        let body: Value = reply.json().unwrap();
        match reply.status {
            200 => accepted.push(number),
            451 => asked.push((body["requirement_row"].clone(), body["h_payto"].clone())),
            other => panic!("{other} {body}"),
        }
    }
    assert_eq!(accepted.len(), ALLOWED, "of {} withdrawals", requests.len());
    let numbers: BTreeSet<u64> = asked.iter().map(|(row, _)| row.as_u64().unwrap()).collect();
    let accounts: BTreeSet<&str> = asked.iter().map(|(_, h_payto)| h_payto.as_str().unwrap()).collect();
    assert_eq!((numbers.len(), accounts.len()), (1, 1), "one customer is asked for one thing: {asked:?}");
    let (row, h_payto) = (numbers.first().unwrap(), accounts.first().unwrap());

    // The wallet waits at both services; the form is sent to one, and the officer decides at the other.
    let check = format!("kyc-check/{row}/{h_payto}/individual");
    let reply = client.get(format!("{}{check}", urls[0])).send().await.unwrap();
    let kyc_url = reply.json::<Value>().unwrap()["kyc_url"].as_str().unwrap().to_owned();
    let polls = urls.clone().map(|url| {
        let (client, url) = (client.clone(), format!("{url}{check}?timeout_ms=60000"));
        tokio::spawn(async move { client.get(url).send().await.unwrap().status })
    });
    let (page, query) = kyc_url.split_once('?').unwrap();
    let field = |wanted: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(name, _)| *name == wanted).unwrap().1.to_owned()
    };
    let form = json!({
        "account": field("account"), "token": field("token"),
        "attributes": {
            "full_name": "Ann", "birthdate": "1990-02-03", "address": "Bahnhofstr. 1, Bern", "country": "CH",
            "nationality": "CH", "document_number": "X1",
        },
    });
    assert_eq!(client.post_json(page, &form).await.unwrap().status, 200);
    let cases: Value = officer(&client, &urls[1], "alice", None).await.ok().unwrap();
    let [case] = cases["cases"].as_array().unwrap().as_slice() else { panic!("one case: {cases}") };
    let wish = json!({
        "h_payto": case["h_payto"], "provider": case["provider"], "case": case["case"],
        "approved": true, "reason": "seen the passport",
    });
    // Both officers decide at the same time: one decision counts.
    let both = tokio::join!(
        officer(&client, &urls[0], "bob", Some(&wish)),
        officer(&client, &urls[1], "alice", Some(&wish))
    );
    let mut statuses = [both.0.status, both.1.status];
    statuses.sort_unstable();
    assert!(statuses == [200, 409] || statuses == [200, 200], "{statuses:?}");
    for poll in polls {
        // On a busy machine, a poll may arrive after the decision; it then learns that nothing is needed. Without it: 202.
        let status = poll.await.unwrap();
        assert!([200, 204].contains(&status), "{status}");
    }

    // Now the rest goes through, at the other service than before, and what was done stays done.
    for (number, (path, body)) in requests.iter().enumerate() {
        let reply = client.post_json(format!("{}{path}", urls[(number + 1) % 2]), body).await.unwrap();
        assert_eq!(reply.status, 200, "{path}: {reply:?}");
    }
    end(nodes.into_iter().chain([bank]));
    let totals = site.totals();
    let spent = denom.cost().checked_mul(requests.len() as u64).unwrap();
    let left = minus(money("20").checked_mul(RESERVES as u64).unwrap(), spent);
    assert_eq!(totals["reserves"], left.to_string(), "{totals}");
}
