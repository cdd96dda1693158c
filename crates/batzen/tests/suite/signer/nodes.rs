//! Two services on one PostgreSQL database that use the same two signers.

use batzen_testkit::postgres::{fresh_database, shared};

use crate::common::customer::Crowd;
use crate::common::site::totals;
use crate::common::{end, http};
use crate::signer::deployment::{Deployment, assert_no_private_keys};

#[tokio::test(flavor = "multi_thread")]
async fn two_services_on_postgresql_go_on_when_either_signer_is_killed() {
    let url = fresh_database();
    let deployment = Deployment::on_database(&url);
    let mut signers = [Some(deployment.start_signer(0)), Some(deployment.start_signer(1))];
    let (bank, mut nodes) = deployment.open();
    deployment.wait_same_keys(0);

    // Withdrawals and payments alternate between the services, so each must accept what the other has signed.
    let mut crowd = Crowd::start(&deployment.customer, 3);
    crowd.go_on(20).await;
    for killed in [0, 1] {
        signers[killed].take().unwrap().kill_9();
        crowd.go_on(40).await;
        signers[killed] = Some(deployment.start_signer(killed));
        deployment.wait_same_keys(killed);
        crowd.go_on(20).await;
    }
    let paid = crowd.end().await;
    for (number, node) in nodes.iter_mut().enumerate() {
        node.assert_runs();
        assert_no_private_keys(&deployment, &format!("node-{number}"), node);
        let metrics = format!("http://localhost:{}/metrics", deployment.exchange_ports[number]);
        let page = http::page(&deployment.client, &metrics).await;
        let value =
            |name: &str| page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        for kind in ["rsa", "cs", "csr", "eddsa"] {
            let name = format!("batzen_signer_client_items_total{{kind=\"{kind}\"}}");
            assert!(value(&name).is_some_and(|items| items > 0), "{number} had nothing signed: {name}");
        }
    }
    end(nodes.into_iter().chain([bank]).chain(signers.into_iter().flatten()));
    // Each confirmed payment is there once, and the books balance.
    let name = url.rsplit_once('/').unwrap().1;
    let rows =
        shared().sql(name, "SELECT count(*), count(DISTINCT coin_pub) FROM exchange.deposits").unwrap();
    assert_eq!(rows.trim(), format!("{paid}|{paid}"));
    totals(&deployment.text("node-0.conf"));
}
