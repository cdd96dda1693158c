//! PostgreSQL: revocations in the exchange's database, and the auditor's own rows.

use batzen_crypto::EddsaSignature;
use batzen_protocol::signatures::{MasterSigningKeyRevoked, SignedMessage};
use batzen_service::storage::StoreConfig;
use batzen_store::{ChangeSet, CommitOutcome, Store};
use batzen_tables::auditor::SigningKeyRevocations;
use batzen_tables::exchange::{SigningKeyKey, SigningKeyRow, SigningKeys};

use crate::common::{Auditor, Exchange};

/// Writes the exchange's signing key, revoked or not.
fn write_key(store: &Store, exchange: &Exchange, revoked: Option<EddsaSignature>) {
    let key = SigningKeyKey { exchange_pub: exchange.online.public_key() };
    let body = exchange.confirmation(1);
    let row = SigningKeyRow {
        start: body.ep_start,
        expire: body.ep_expire,
        end: body.ep_end,
        master_sig: body.master_sig,
        revoked,
    };
    let mut changes = ChangeSet::new();
    match store.get::<SigningKeys>(&key).unwrap() {
        Some(old) => changes.update_read::<SigningKeys>(&key, (&old.row, Some(old.version)), &row),
        None => changes.insert::<SigningKeys>(&key, &row),
    }
    assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
}

#[tokio::test(flavor = "multi_thread")]
async fn revocations_in_the_exchanges_database_count_and_stay() {
    let url = batzen_testkit::postgres::fresh_database();
    let exchange = Exchange::new();
    let place = StoreConfig::postgres(url.clone());
    let database = tokio::task::block_in_place(|| {
        place.prepare(&batzen_service::storage::EXCHANGE).unwrap();
        place.open(&batzen_service::storage::EXCHANGE, 1).unwrap()
    });
    let write = |revoked| tokio::task::block_in_place(|| write_key(&database, &exchange, revoked));
    let master_pub = exchange.master_pub();
    let auditor = Auditor::with(|config| {
        config.exchange_database = Some(url);
        config.master_pub = Some(master_pub);
    });
    let mut auditor = auditor.await;
    auditor.audit(&exchange).await;
    assert_eq!(auditor.put(&exchange.confirmation(1)).await.status, 200, "the exchange has no such key");
    write(None);
    assert_eq!(auditor.put(&exchange.confirmation(2)).await.status, 200);
    let revocation = MasterSigningKeyRevoked { signkey_pub: exchange.online.public_key() };
    write(Some(revocation.sign(&exchange.online)));
    assert_eq!(auditor.put(&exchange.confirmation(3)).await.status, 200, "only the master key revokes");
    write(Some(revocation.sign(&exchange.master)));
    assert_eq!(auditor.refused(&exchange.confirmation(4)).await, (410, 3101));
    // Another exchange is not in this database.
    let other = Exchange::new();
    auditor.audit(&other).await;
    assert_eq!(auditor.put(&other.confirmation(1)).await.status, 200);
    // The revocation counts also when the database is out of reach.
    auditor.config.exchange_database = None;
    let auditor = auditor.restart().await;
    assert_eq!(auditor.refused(&exchange.confirmation(5)).await, (410, 3101));
    assert_eq!(auditor.running.store().all::<SigningKeyRevocations>().unwrap().len(), 1);
    assert_eq!(auditor.stored(), 4);
    auditor.running.shutdown().await.unwrap();
    tokio::task::block_in_place(|| database.close()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_out_of_reach_is_a_passing_failure() {
    let exchange = Exchange::new();
    let master_pub = exchange.master_pub();
    let auditor = Auditor::with(|config| {
        config.exchange_database = Some("postgres://127.0.0.1:1/exchange?connect_timeout=1".into());
        config.master_pub = Some(master_pub);
    });
    let auditor = auditor.await;
    auditor.audit(&exchange).await;
    assert_eq!(auditor.refused(&exchange.confirmation(1)).await, (503, 55));
    assert_eq!(auditor.stored(), 0);
    auditor.running.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn services_and_programs_share_a_database() {
    let place = StoreConfig::postgres(batzen_testkit::postgres::fresh_database());
    tokio::task::block_in_place(|| place.prepare(&batzen_service::storage::AUDITOR)).unwrap();
    let exchange = Exchange::new();
    let one = Auditor::with(|config| config.store = place.clone()).await;
    one.audit(&exchange).await;
    let key = one.config.private_key().unwrap().public_key();
    let other = Auditor::with(|config| {
        config.store = place;
        config.public_key = Some(key);
        std::fs::remove_file(&config.priv_file).unwrap();
    });
    let other = other.await;
    assert_eq!(one.put(&exchange.confirmation(1)).await.status, 200);
    assert_eq!(other.put(&exchange.confirmation(1)).await.status, 200);
    assert_eq!(other.put(&exchange.confirmation(2)).await.status, 200);
    let master_pub = exchange.master_pub();
    let found = one.books(move |books| books.confirmations(master_pub, 0, 10).unwrap()).await;
    let coins: Vec<_> = found.iter().map(|found| found.row.coin_pub).collect();
    assert_eq!(coins, [1, 2].map(|number| exchange.confirmation(number).coin_pub));
    assert!(!one.config.socket().exists(), "a database needs no socket");
    one.running.shutdown().await.unwrap();
    other.running.shutdown().await.unwrap();
}
