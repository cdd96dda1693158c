//! Rows that the recordings lack, made by an exchange of ours with real keys.

use batzen_auditor::audit::Subject;
use batzen_crypto::ShortHash;
use batzen_exchange::keys::load_or_create_eddsa;
use batzen_exchange::offline;
use batzen_exchange::rules::{Archive, ArchiveUnit, Archived, TransferPart, TransfersDone};
use batzen_exchange::workers::archive::{self, ArchiveDir, Task};
use batzen_exchange::workers::{aggregator, closer, drain, garbage};
use batzen_protocol::Duration;
use batzen_protocol::api::exchange::{PurseCoin, ReserveOpenRequest, ReserveOpenResponse};
use batzen_protocol::signatures::{SignedMessage, WalletReserveOpen, WalletReserveOpenDeposit};
use batzen_store::Store;
use batzen_tables::exchange::{
    Aggregates, ArchiveCounts, ArchiveRuns, ArchiveTransfers, CollectedSums, Deposits, Drains, Prepared,
    ReserveOpenDeposits, Reserves,
};

use super::Books;
use crate::api::wallet::*;
use crate::api::world::*;
use crate::replay::audit::{Copy, subject};

impl Site {
    fn store(&self) -> Store {
        self.app().core.store.clone()
    }

    fn subject(&self) -> Subject {
        subject(&self.app().core)
    }

    fn books(&self) -> Books {
        Books { subject: self.subject(), copy: Copy::of(&self.store()), now: self.now() }
    }

    /// The bank executes every order.
    async fn execute(&self) {
        let orders = self.store().all::<Prepared>().unwrap();
        let wtids = orders.iter().filter(|found| found.row.finished.is_none()).map(|found| found.key.wtid);
        let wtids: Vec<_> = wtids.collect();
        if !wtids.is_empty() {
            self.app().core.submit(TransfersDone { wtids }).await.unwrap().unwrap();
        }
    }

    /// Pays everything that is due.
    async fn settle(&mut self) {
        self.advance(Duration::from_secs(3 * 3_600)).await;
        aggregator::run_until_idle(&self.app().core).await.unwrap();
        self.execute().await;
    }

    /// Pays out profit.
    async fn drain(&self) {
        let file = self.app().core.config.standalone.as_ref().unwrap().master_priv_file.clone();
        let master = load_or_create_eddsa(&file).unwrap();
        let operation =
            offline::drain(&master, currency(), amount("0.05"), "EXCHANGE-ACCOUNT-1", PAYTO, self.now());
        offline::upload(&self.client, self.running.base_url(), &operation.unwrap()).await.unwrap();
        assert_eq!(drain::run_until_idle(&self.app().core).await.unwrap().done, 1);
    }

    /// The second run is interrupted after it has moved one of a transfer's deposits.
    async fn interrupt_archive(&self) {
        let (core, run, id) = (&self.app().core, 2, ShortHash::from_bytes([2; 32]));
        let reason = "interrupted".to_owned();
        core.submit(Archive::Begin { run, id, reason }).await.unwrap().unwrap();
        let deposits = self.store().all::<Deposits>().unwrap();
        let found = deposits.iter().find(|found| found.row.wtid.is_some()).unwrap();
        let part = TransferPart {
            wtid: found.row.wtid.unwrap(),
            wire_out: None,
            prepared: None,
            deposits: vec![(found.key.clone(), found.row.clone())],
            refunds: Vec::new(),
        };
        let units = vec![ArchiveUnit::Transfer(Box::new(part))];
        let moved = core.submit(Archive::Move { run, id, until: self.now(), units }).await.unwrap();
        assert_eq!(moved.unwrap(), Archived::Moved(vec![None]));
    }

    /// Prolongs a reserve for a coin's money.
    async fn open_with(&self, coin: &Coin, payment: &str) {
        let reserve = self.reserve("1").await;
        let expiration = self.now().saturating_add(Duration::from_days(60));
        let message = WalletReserveOpen {
            reserve_payment: amount("0"),
            request_timestamp: self.now(),
            reserve_expiration: expiration,
            purse_limit: 1,
        };
        let reserve_sig = message.sign(&reserve);
        let message = WalletReserveOpenDeposit { reserve_sig, coin_contribution: amount(payment) };
        let payment = PurseCoin {
            coin_pub: coin.coin_pub,
            amount: amount(payment),
            denom_pub_hash: coin.denom.h,
            ub_sig: coin.denom_sig.clone(),
            age_commitment: None,
            attest: None,
            coin_sig: message.sign(&coin.secrets.coin_priv),
        };
        let request = ReserveOpenRequest {
            request_timestamp: self.now(),
            reserve_expiration: expiration,
            purse_limit: 1,
            reserve_payment: amount("0"),
            payments: vec![payment],
            reserve_sig,
        };
        let _: ReserveOpenResponse = self.ok(&at_reserve(&reserve, "open"), &request).await;
    }
}

/// A site whose reserves cost something and are soon forgotten.
async fn site() -> Site {
    Site::with(|config| {
        config.standalone.as_mut().unwrap().fees.account = m("0.5");
        config.legal_reserve_expiration = Duration::from_days(30);
    })
    .await
}

/// A sum below the wire fee that waits, a reserve that a coin prolonged, and profit paid out.
pub(super) async fn young() -> Books {
    let mut site = site().await;
    let (paying, small, prolonging) = (site.coin(RSA_8).await, site.coin(CS_5).await, site.coin(RSA_1).await);
    let contract = Contract::new(&site);
    site.pay(&contract, &paying, "3").await;
    site.refund(&contract, &paying, "1", 1).await;
    site.pay(&Contract::new(&site), &small, "0.05").await;
    site.open_with(&prolonging, "0.52").await;
    site.advance(Duration::from_secs(3 * 3_600)).await;
    aggregator::run_until_idle(&site.app().core).await.unwrap();
    site.drain().await;
    let store = site.store();
    assert_eq!(store.count::<Aggregates>().unwrap(), 1);
    assert_eq!(store.count::<ReserveOpenDeposits>().unwrap(), 1);
    assert_eq!(store.count::<Drains>().unwrap(), 1);
    site.books()
}

/// Expired coins have left for an archive, another run was interrupted within a transfer, and empty reserves and executed orders
/// were removed.
pub(super) async fn old() -> Books {
    let mut site = site().await;
    let (first, melted) = (site.coin(RSA_8).await, site.coin(CS_5).await);
    let (_, fresh) = site.refresh(&melted, &[site.denom(RSA_1)], "1.5").await;
    let rest = site.reserve("2").await;
    site.withdraw(&rest, &site.planchet(&site.denom(RSA_1)).await).await;
    let contract = Contract::new(&site);
    site.pay(&contract, &first, "3").await;
    site.refund(&contract, &first, "1", 1).await;
    site.pay(&contract.next(), &fresh[0], "0.9").await;
    site.settle().await;
    site.advance(Duration::from_days(7)).await;
    // Their denominations are a week younger, so they stay when the others leave.
    let (second, third) = (site.coin(RSA_8).await, site.coin(CS_5).await);
    let contract = Contract::new(&site);
    site.pay(&contract, &second, "2").await;
    site.pay(&contract.next(), &third, "2.5").await;
    site.open_with(&second, "0.52").await;
    site.drain().await;
    site.settle().await;
    // The first denominations are kept for 97 days, those of the second week for 104.
    for days in [35, 58] {
        site.advance(Duration::from_days(days)).await;
        closer::run_until_idle(&site.app().core).await.unwrap();
        site.execute().await;
    }
    let core = &site.app().core;
    let directory = tempfile::tempdir().unwrap();
    let task = Task::Move { reason: "a test".to_owned() };
    let archives = ArchiveDir::new(directory.path());
    let report = archive::run(core, archives, task, site.now(), |_| ()).await.unwrap();
    assert!(report.coins.left > 0 && report.transfers.left == 1, "{report:?}");
    let collected = garbage::run(core, |_| ()).await.unwrap();
    assert!(collected.reserves.removed > 0 && collected.transfers.removed > 0, "{collected:?}");
    site.advance(Duration::from_days(10)).await;
    site.interrupt_archive().await;
    let store = site.store();
    assert!(store.count::<Reserves>().unwrap() > 0);
    assert!(store.count::<CollectedSums>().unwrap() > 3);
    assert_eq!(store.count::<ArchiveRuns>().unwrap(), 2);
    assert!(store.count::<ArchiveCounts>().unwrap() > 3);
    assert_eq!(store.count::<ArchiveTransfers>().unwrap(), 1);
    site.books()
}
