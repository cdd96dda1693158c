//! The proof of `crash_exchange.rs` with the rows of exchange and bank in PostgreSQL, where PostgreSQL itself
//! is killed, too.
//!
//! 1. Services are killed under load, and PostgreSQL with all its processes. Everything acknowledged is there
//!    exactly once, and the services continue by themselves when PostgreSQL is back.
//! 2. The primary is killed for good and its synchronous standby promoted. Nothing acknowledged is lost, and
//!    the services find the new primary by themselves.

use crate::crash::{deployment, run};

use batzen_testkit::postgres::{Cluster, ClusterOptions};
use deployment::Deployment;
use run::{Kill, cycles, play};

/// The tests run one at a time, since each is sized for a machine with two cores.
pub(crate) static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn cluster() -> Cluster {
    // The server is killed, not the machine, so the kernel's buffers are safe.
    let options = ClusterOptions::unsynced();
    tokio::task::block_in_place(|| Cluster::start(&options).unwrap_or_else(|error| panic!("{error}")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_of_services_or_postgresql_loses_nothing() {
    let _alone = ALONE.lock().await;
    let kill = |cycle: u64| match cycle % 4 {
        1 => Kill::Exchange,
        3 => Kill::ExchangeAndBank,
        _ => Kill::Database,
    };
    let deployment = Deployment::on_database(run::client(), cluster(), None);
    play(deployment, (1..=cycles()).map(kill).collect()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_of_the_primary_loses_nothing_that_its_synchronous_standby_has() {
    let _alone = ALONE.lock().await;
    let primary = cluster();
    let standby = tokio::task::block_in_place(|| primary.standby("second", true).unwrap());
    let deployment = Deployment::on_database(run::client(), primary, Some(standby));
    play(deployment, vec![Kill::Exchange, Kill::FailOver, Kill::Exchange]).await;
}
