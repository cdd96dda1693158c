//! Signers as real processes: an exchange without private keys, set up by the offline tool as an operator
//! does it, with two signers of which one is killed.

pub(crate) mod deployment;
mod nodes;
mod slow;

use crate::common;
use crate::crash::coins;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use batzen_crypto::PlanchetMasterSecret;
use batzen_protocol::api::exchange::CsrWithdrawRequest;
use coins::{Denom, Shop};
use common::customer::Crowd;
use common::setup::{keygen, wait_for};
use common::{PATIENCE, Service, end, http, must, run, stderr, until};
use deployment::{Deployment, assert_no_private_keys};

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_without_private_keys_goes_on_when_a_signer_is_killed() {
    let deployment = Deployment::new();
    let mut signers = [Some(deployment.start_signer(0)), Some(deployment.start_signer(1))];
    let (bank, mut nodes) = deployment.open();
    let mut exchange = nodes.remove(0);
    assert_no_private_keys(&deployment, "node-0", &exchange);
    deployment.wait_same_keys(0);

    let mut crowd = Crowd::start(&deployment.customer, 4);
    crowd.go_on(20).await;

    // The primary dies; payments continue with the follower.
    signers[0].take().unwrap().kill_9();
    crowd.go_on(40).await;
    let status = deployment.status(1);
    assert_eq!(status["signers"][0]["status"]["role"], "follower");
    assert!(status["signers"][1]["error"].is_string(), "{status:#}");

    // The follower is promoted; the old primary comes back, notices that, and follows.
    let config = deployment.text("signer-1.conf");
    assert!(must(&["signer", "promote", "-c", &config]).contains("primary now"));
    signers[0] = Some(deployment.start_signer(0));
    let deadline = Instant::now() + PATIENCE;
    while deployment.status(0)["signers"][0]["status"]["role"] != "follower" {
        assert!(Instant::now() < deadline, "{:#}", deployment.status(0));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    deployment.wait_same_keys(0);

    // The active one is stopped as an operator would; no request fails.
    let (status, _) = signers[1].take().unwrap().terminate();
    assert!(status.success(), "{status}");
    crowd.go_on(40).await;
    signers[1] = Some(deployment.start_signer(1));
    deployment.wait_same_keys(1);

    // The exchange's metrics show what happened.
    let page = http::page(&deployment.client, &deployment.url("metrics")).await;
    for name in ["batzen_signer_client_connected 1", "batzen_signer_client_items_total{kind=\"rsa\"}"] {
        assert!(page.contains(name), "{name} is missing");
    }
    let url = format!("http://127.0.0.1:{}/metrics", deployment.metrics[0]);
    let page = http::page(&deployment.client, &url).await;
    for name in ["batzen_signer_keys{kind=\"cs\"} 1", "batzen_signer_items_total{kind=\"eddsa\"}"] {
        assert!(page.contains(name), "{name} is missing");
    }

    crowd.end().await;
    assert_no_private_keys(&deployment, "node-0", &exchange);

    // All signers destroy a revoked key, and create another.
    let denoms = Denom::offered(&deployment.client, &deployment.url("")).await;
    let revoked = denoms.iter().find(|denom| !denom.is_cs()).unwrap();
    deployment.offline(&["revoke-denomination", &revoked.hash.to_string(), "upload"]);
    let deadline = Instant::now() + PATIENCE;
    loop {
        // While the new key is being created there is nothing to download.
        let config = deployment.text("offline.conf");
        let _ = run(&["exchange", "offline", "-c", &config, "download", "sign", "upload"]);
        let keys = deployment.keys().await;
        let offers = keys.denoms.iter().filter(|denom| denom.denom_pub.h_denom_pub() != revoked.hash);
        if offers.count() == 2 && keys.denoms.len() == 2 {
            break;
        }
        assert!(Instant::now() < deadline, "no key takes the place of the revoked one");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    deployment.wait_same_keys(0);
    let reserve = deployment.reserve("10").await;
    for denom in &Denom::offered(&deployment.client, &deployment.url("")).await {
        deployment.withdraw_and_pay(&reserve, denom, &Shop::new("bakery")).await;
    }

    // Without a signer, requests that need one are refused with 503; they work again once one is back.
    for signer in &mut signers {
        signer.take().unwrap().kill_9();
    }
    let cs = denoms.iter().find(|denom| denom.is_cs()).unwrap();
    let nonce = PlanchetMasterSecret::generate().cs_nonce();
    let request = CsrWithdrawRequest { nonce, denom_pub_hash: cs.hash };
    let reply = deployment.post("csr-withdraw", &request).await;
    assert_eq!(reply.status, 503, "{reply:?}");
    exchange.assert_runs();
    let signer = deployment.start_signer(1);
    let reserve = deployment.reserve("10").await;
    for denom in &Denom::offered(&deployment.client, &deployment.url("")).await {
        deployment.withdraw_and_pay(&reserve, denom, &Shop::new("bakery")).await;
    }
    end([exchange, bank, signer]);
}

/// The exchange does not talk to an unexpected signer, and a signer gives nothing to an unlisted node.
#[test]
fn wrong_keys_are_refused_on_both_sides() {
    let deployment = Deployment::new();
    let signer = deployment.start_signer(0);

    // The exchange expects another signer.
    let stranger = keygen(&deployment.text("stranger.key"));
    std::fs::write(deployment.path("node-0.conf"), deployment.node_config(0, &stranger)).unwrap();
    let exchange = deployment.start_exchange(0);
    until("the stranger is not refused", || log(&deployment, "node-0").contains("no signer answers"));
    assert_ne!(common::setup::get(deployment.exchange_ports[0], "/management/keys"), 200);
    drop(exchange);

    // The signer does not know this exchange.
    let config = deployment.node_config(0, &deployment.signer_keys.join(", "));
    let config = config.replace(&deployment.text("node-0/static.key"), &deployment.text("stranger.key"));
    std::fs::write(deployment.path("node-0.conf"), config).unwrap();
    let exchange = deployment.start_exchange(0);
    until("the unlisted node is not refused", || log(&deployment, "signer-0").contains("handshake failed"));
    assert_ne!(common::setup::get(deployment.exchange_ports[0], "/management/keys"), 200);
    drop(exchange);

    // With the right keys on both sides it works.
    std::fs::write(
        deployment.path("node-0.conf"),
        deployment.node_config(0, &deployment.signer_keys.join(" ")),
    )
    .unwrap();
    let exchange = deployment.start_exchange(0);
    wait_for(deployment.exchange_ports[0], "/management/keys");

    // A stand-alone exchange has its own master key, so it cannot use signers.
    let config =
        deployment.node_config(0, &deployment.signer_keys[0]) + "[exchange-standalone]\nENABLED = YES\n";
    std::fs::write(deployment.path("both.conf"), config).unwrap();
    let output = run(&["exchange", "serve", "-c", &deployment.text("both.conf")]);
    assert!(!output.status.success() && stderr(&output).contains("SIGNERS"), "{}", stderr(&output));
    end([exchange, signer]);
}

fn log(deployment: &Deployment, name: &str) -> String {
    std::fs::read_to_string(deployment.path(&format!("{name}.log"))).unwrap_or_default()
}

/// Services start in any order; and a request of an exchange has the same number in the signer's log.
#[test]
fn an_exchange_waits_for_its_signer_and_their_logs_have_the_same_numbers() {
    let deployment = Deployment::new();
    let serve = |service: &str, name: &str| {
        let config = deployment.text(&format!("{name}.conf"));
        let arguments = [service, "serve", "-c", &config, "-L", "DEBUG"];
        Service::start(&deployment.path(""), name, &arguments)
    };
    let exchange = serve("exchange", "node-0");
    until("the exchange does not wait", || log(&deployment, "node-0").contains("waiting for a signer"));
    let text = log(&deployment, "node-0");
    assert!(!text.contains("ERROR") && text.contains("WARN"), "{text}");

    let signer = serve("signer", "signer-0");
    let numbers = |name: &str, message: &str| -> BTreeSet<String> {
        let log = log(&deployment, name);
        let lines = log.lines().filter(|line| line.contains(message));
        lines
            .filter_map(|line| line.split("number").nth(1)?.split_whitespace().next().map(str::to_owned))
            .collect()
    };
    wait_for(deployment.exchange_ports[0], "/management/keys");
    deployment.sign_new_keys();
    until("no number is in both logs", || {
        let sent = numbers("node-0", "request to the signer");
        let received = numbers("signer-0", "request of an exchange");
        !sent.is_empty() && !sent.is_disjoint(&received)
    });
    end([exchange, signer]);
}
