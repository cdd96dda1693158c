//! Requests about coins that have left for an archive, while the exchange runs.

use batzen_exchange::reads::totals::totals;
use batzen_exchange::rules::TransfersDone;
use batzen_exchange::workers::archive::{self, ArchiveDir, Task, contents};
use batzen_protocol::Duration;
use batzen_store::Store;
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_tables::exchange::{self as tables, Coins, Deposits, Prepared};

use crate::api::proof;
use crate::api::wallet::*;
use crate::api::world::*;

#[tokio::test]
async fn coins_that_left_are_refused_as_expired_ones() {
    let mut site = Site::start().await;
    let (paid, melted, unused) = (site.coin(RSA_8).await, site.coin(CS_5).await, site.coin(CS_5).await);
    let contract = Contract::new(&site);
    let first = site.pay(&contract, &paid, "3").await;
    site.refund(&contract, &paid, "1", 1).await;
    let (refresh, fresh) = site.refresh(&melted, &[site.denom(RSA_1)], "1.5").await;
    site.pay(&contract.next(), &fresh[0], "1").await;
    site.advance(Duration::from_days(30)).await;
    site.aggregate().await;
    let store = site.app().core.store.clone();
    let wtids = store.all::<Prepared>().unwrap().iter().map(|found| found.key.wtid).collect();
    site.app().core.submit(TransfersDone { wtids }).await.unwrap().unwrap();
    // The newest coins that could be spent at the time of the transfer are kept for 7, 30 and 60 days, and a day
    // longer.
    site.advance(Duration::from_days(100)).await;

    let directory = tempfile::tempdir().unwrap();
    let archives = ArchiveDir::new(directory.path());
    let before = totals(&store, &site.app().core.rules.denoms).unwrap();
    assert_eq!(site.pay(&contract, &paid, "3").await, first, "it is known");
    assert_eq!(site.get(&melted.path("link")).await.status, 200);
    let task = Task::Move { reason: "a test".to_owned() };
    let report = archive::run(&site.app().core, archives.clone(), task, site.now(), |_| ()).await.unwrap();
    assert_eq!((report.transfers.left, report.coins.left), (1, 3), "{report:?}");
    assert_eq!(totals(&store, &site.app().core.rules.denoms).unwrap(), before);
    assert_eq!((store.count::<Coins>().unwrap(), store.count::<Deposits>().unwrap()), (0, 0));

    // Known or not, used or not, a coin of such a denomination is refused alike.
    for (coin, amount) in [(&paid, "3"), (&fresh[0], "1"), (&unused, "3")] {
        let reply = site.post(&coin.path("deposit"), &contract.deposit(coin, amount)).await;
        proof::denom_unusable(&site, &reply, 1009, "DEPOSIT", &coin.denom.h);
    }
    let reply = site.post("batch-deposit", &contract.next().batch(&[(&paid, "1"), (&unused, "2")])).await;
    proof::denom_unusable(&site, &reply, 1009, "DEPOSIT", &paid.denom.h);
    let reply = site.post(&melted.path("melt"), &refresh.melt()).await;
    proof::denom_unusable(&site, &reply, 1009, "MELT", &melted.denom.h);
    is_error(&site.post(&refresh.reveal_path(), &refresh.reveal(0)).await, 404, 1355);
    is_error(&site.get(&melted.path("link")).await, 404, 1400);
    is_error(&site.post(&paid.path("refund"), &contract.refund(&paid, "1", 1)).await, 404, 1500);
    let denom = paid.denom.clone();
    site.revoke(&denom).await;
    let reply = site.post(&paid.path("deposit"), &contract.deposit(&paid, "3")).await;
    proof::denom_unusable(&site, &reply, 1009, "DEPOSIT", &paid.denom.h);
    assert_eq!(totals(&store, &site.app().core.rules.denoms).unwrap(), before);

    // The archive is a store like any other.
    let dir = archives.of_run(1);
    assert!(EmbeddedStore::verify(&dir).unwrap().problems.is_empty());
    let (run, row, found, different) = archive::examine(&dir, Some(&store)).unwrap();
    assert_eq!((run, row.rows, different), (1, report.rows().0, Vec::new()));
    let archive = Store::new(EmbeddedStore::open(&dir, tables::ALL, Options::default()).unwrap());
    assert_eq!(contents(&archive).unwrap(), found);
    assert_eq!(archive.count::<Coins>().unwrap(), 3);
}
