//! Checks that everything the master key signs at one service shows at the other.

use std::time::{Duration, Instant};

use batzen_crypto::Cipher;
use batzen_http::client::{Client, ClientOptions};
use batzen_protocol::api::exchange::{Denomination, KeysResponse};

use crate::common::site::Site;
use crate::common::{PATIENCE, end, must};
use crate::crash::coins::Denom;
use crate::nodes::purse::{batch_withdraw, fund, planchets};
use crate::nodes::{prepare, start_two};

/// Two services; the offline tool knows only the first.
struct Nodes {
    client: Client,
    site: Site,
    ports: [u16; 2],
}

impl Nodes {
    async fn page(&self, node: usize, path: &str) -> String {
        let url = format!("http://localhost:{}/{path}", self.ports[node]);
        let reply = self.client.get(url).send().await.unwrap();
        assert_eq!(reply.status, 200, "{path}");
        String::from_utf8(reply.body.to_vec()).unwrap()
    }

    /// Signs something, and waits until a page of both services contains this text, or no longer does.
    async fn changes(&self, steps: &[&str], path: &str, text: &str, is_there: bool) {
        for node in [0, 1] {
            assert_ne!(self.page(node, path).await.contains(text), is_there, "{steps:?}: it is so before");
        }
        let words = [&["exchange", "offline", "-c", &self.site.config][..], steps, &["upload"]].concat();
        tokio::task::block_in_place(|| must(&words));
        // The uploading side sees it at once.
        assert_eq!(self.page(0, path).await.contains(text), is_there, "{steps:?}");
        let begun = Instant::now();
        while self.page(1, path).await.contains(text) != is_there {
            assert!(begun.elapsed() < PATIENCE, "{steps:?} does not show at the other service");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        println!("{} shows after {:.0?}", steps[0], begun.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_signed_for_one_service_is_published_by_the_other() {
    let (site, _) = prepare("");
    let bank = site.start_bank();
    let (services, ports) = start_two(&site);
    // A late answer is still an answer.
    let client = Client::new(&ClientOptions { timeout: PATIENCE, ..ClientOptions::default() }).unwrap();
    let nodes = Nodes { client, site, ports };

    let auditor = batzen_crypto::EddsaPrivateKey::generate().public_key().to_string();
    nodes.changes(&["enable-auditor", &auditor, "http://auditor/", "A"], "keys", &auditor, true).await;
    nodes.changes(&["disable-auditor", &auditor], "keys", &auditor, false).await;

    let account = "payto://x-taler-bank/localhost/second?receiver-name=second";
    nodes.changes(&["enable-account", account], "wire", account, true).await;
    nodes.changes(&["disable-account", account], "wire", account, false).await;

    // A year for which nothing is signed yet.
    let fee = "KUDOS:0.73";
    nodes.changes(&["wire-fee", "2099", "x-taler-bank", fee, "KUDOS:0"], "wire", fee, true).await;
    let fee = "KUDOS:0.79";
    let terms = ["global-fee", "2099", fee, "KUDOS:0", "KUDOS:0", "1 h", "1 year", "8"];
    nodes.changes(&terms, "keys", fee, true).await;

    // A denomination revoked at one service signs no more at the other, which offers the key that replaces
    // it.
    let urls = ports.map(|port| format!("http://localhost:{port}/"));
    let denoms = Denom::offered(&nodes.client, &urls[1]).await;
    let revoked = denoms.iter().find(|denom| !denom.is_cs()).unwrap();
    let reserves = fund(&nodes.client, &nodes.site, 1, revoked.cost()).await;
    let hash = revoked.hash.to_string();
    let recoup = format!("\"h_denom_pub\":\"{hash}\"");
    nodes.changes(&["revoke-denomination", &hash], "keys", &recoup, true).await;
    let body = batch_withdraw(&planchets(revoked, 1), &reserves[0]);
    let url = format!("{}reserves/{}/batch-withdraw", urls[1], reserves[0].public_key());
    assert_eq!(nodes.client.post_json(url, &body).await.unwrap().status, 410);
    let deadline = Instant::now() + PATIENCE;
    let is_fresh = |denom: &Denomination| {
        denom.denom_pub.cipher() == Cipher::Rsa && denom.denom_pub.h_denom_pub() != revoked.hash
    };
    loop {
        let keys: KeysResponse = serde_json::from_str(&nodes.page(1, "keys").await).unwrap();
        if keys.denoms.iter().any(is_fresh) {
            break;
        }
        assert!(Instant::now() < deadline, "no key takes the place of the revoked one");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    end(services.into_iter().chain([bank]));
}
