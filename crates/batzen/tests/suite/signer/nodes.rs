//! Two services on one PostgreSQL database that use the same two signers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use batzen_testkit::postgres::{fresh_database, shared};
use tokio::task::JoinSet;

use crate::common::customer::go_on;
use crate::common::{run, stderr, stdout};
use crate::signer::deployment::{Deployment, assert_no_private_keys};

#[tokio::test(flavor = "multi_thread")]
async fn two_services_on_postgresql_go_on_when_either_signer_is_killed() {
    let url = fresh_database();
    let deployment = Arc::new(Deployment::on_database(&url));
    let mut signers = [Some(deployment.start_signer(0)), Some(deployment.start_signer(1))];
    let (bank, mut nodes) = deployment.open();
    deployment.wait_same_keys(0);

    // Withdrawals and payments alternate between the services, so each must accept what the other has signed.
    let (ends, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut load = JoinSet::new();
    for _ in 0..3 {
        load.spawn(Arc::clone(&deployment.customer).load(Arc::clone(&ends), Arc::clone(&done)));
    }
    go_on(&done, 20, &mut load).await;
    for killed in [0, 1] {
        signers[killed].take().unwrap().kill_9();
        go_on(&done, 40, &mut load).await;
        signers[killed] = Some(deployment.start_signer(killed));
        deployment.wait_same_keys(killed);
        go_on(&done, 20, &mut load).await;
    }
    ends.store(true, Ordering::Release);
    while let Some(ended) = load.join_next().await {
        ended.unwrap();
    }
    for (number, node) in nodes.iter_mut().enumerate() {
        node.assert_runs();
        assert_no_private_keys(&deployment, &format!("node-{number}"), node);
        let metrics = format!("http://localhost:{}/metrics", deployment.exchange_ports[number]);
        let page = deployment.client.get(metrics).send().await.unwrap();
        let page = String::from_utf8(page.body.to_vec()).unwrap();
        let value =
            |name: &str| page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        for kind in ["rsa", "cs", "csr", "eddsa"] {
            let name = format!("batzen_signer_client_items_total{{kind=\"{kind}\"}}");
            assert!(value(&name).is_some_and(|items| items > 0), "{number} had nothing signed: {name}");
        }
    }
    let paid = done.load(Ordering::Acquire);
    for service in nodes.into_iter().chain([bank]).chain(signers.into_iter().flatten()) {
        assert!(service.terminate().0.success());
    }
    // Each confirmed payment is there once, and the books balance.
    let name = url.rsplit_once('/').unwrap().1;
    let rows =
        shared().sql(name, "SELECT count(*), count(DISTINCT coin_pub) FROM exchange.deposits").unwrap();
    assert_eq!(rows.trim(), format!("{paid}|{paid}"));
    let totals = run(&["exchange", "totals", "-c", &deployment.text("node-0.conf"), "--json"]);
    assert!(totals.status.success(), "{}{}", stdout(&totals), stderr(&totals));
}
