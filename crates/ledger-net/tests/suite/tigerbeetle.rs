//! The same examples against a TigerBeetle cluster, when `BATZEN_TEST_TIGERBEETLE` names one (`3000`, or
//! `CLUSTER@ADDRESS,..`).

#![cfg(feature = "tigerbeetle")]
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[tokio::test]
async fn a_tigerbeetle_cluster_conforms() {
    let Ok(cluster) = std::env::var("BATZEN_TEST_TIGERBEETLE") else {
        println!("skipped: BATZEN_TEST_TIGERBEETLE does not name a cluster");
        return;
    };
    let ledger = batzen_ledger_net::connect(&format!("tigerbeetle://{cluster}")).await.unwrap();
    // A cluster keeps its data, so every run uses new ids.
    let base = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() << 32;
    batzen_ledger::conformance::check(ledger.as_ref(), base, async |time: Duration| {
        // The release may lag behind the expiry.
        tokio::time::sleep(time + Duration::from_secs(2)).await;
    })
    .await;
}
