//! Revocations in the exchange's tables.

use batzen_protocol::Timestamp;
use batzen_protocol::signatures::{MasterSigningKeyRevoked, SignedMessage};
use batzen_storage::StoreConfig;
use batzen_store::ChangeSet;
use batzen_tables::exchange::{SigningKeyKey, SigningKeyRow, SigningKeys};

use crate::common::{Auditor, Exchange, NOW_S};

/// The exchange's tables, with a signing key that is revoked or not.
fn tables(
    exchange: &Exchange,
    revoked: Option<batzen_crypto::EddsaSignature>,
) -> (tempfile::TempDir, StoreConfig) {
    let dir = tempfile::tempdir().unwrap();
    let place = StoreConfig::embedded(dir.path().to_owned());
    let store = place.open(&batzen_storage::EXCHANGE, 1).unwrap();
    let body = exchange.confirmation(1);
    let mut changes = ChangeSet::new();
    changes.insert::<SigningKeys>(
        &SigningKeyKey { exchange_pub: exchange.online.public_key() },
        &SigningKeyRow {
            start: body.ep_start,
            expire: body.ep_expire,
            end: body.ep_end,
            master_sig: body.master_sig,
            revoked,
        },
    );
    assert_eq!(store.commit(&changes).unwrap(), batzen_store::CommitOutcome::Committed);
    store.close().unwrap();
    (dir, place)
}

async fn auditor(exchange: &Exchange, place: StoreConfig) -> Auditor {
    let master_pub = exchange.master_pub();
    let auditor = Auditor::with(|config| {
        config.exchange_database = Some(place);
        config.master_pub = Some(master_pub);
    });
    let auditor = auditor.await;
    auditor.audit(exchange).await;
    auditor
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revocation_in_the_exchanges_tables_counts_and_stays() {
    let exchange = Exchange::new();
    let revocation = MasterSigningKeyRevoked { signkey_pub: exchange.online.public_key() };
    let (dir, place) = tables(&exchange, Some(revocation.sign(&exchange.master)));
    let mut auditor = auditor(&exchange, place).await;
    assert_eq!(auditor.refused(&exchange.confirmation(1)).await, (410, 3101));
    // Also when the tables are out of reach.
    auditor.config.exchange_database = None;
    let auditor = auditor.restart().await;
    assert_eq!(auditor.refused(&exchange.confirmation(1)).await, (410, 3101));
    assert_eq!(auditor.stored(), 0);
    auditor.running.shutdown().await.unwrap();
    drop(dir);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exchange_cannot_claim_a_revocation_without_its_master_key() {
    let exchange = Exchange::new();
    let revocation = MasterSigningKeyRevoked { signkey_pub: exchange.online.public_key() };
    for revoked in [None, Some(revocation.sign(&exchange.online))] {
        let (dir, place) = tables(&exchange, revoked);
        let auditor = auditor(&exchange, place).await;
        assert_eq!(auditor.put(&exchange.confirmation(1)).await.status, 200);
        let rows = auditor.running.store().all::<batzen_tables::auditor::SigningKeys>().unwrap();
        assert_eq!(rows[0].row.seen, Timestamp::from_secs(NOW_S));
        auditor.running.shutdown().await.unwrap();
        drop(dir);
    }
}
