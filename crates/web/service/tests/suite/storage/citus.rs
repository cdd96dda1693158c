//! On a Citus cluster, the configuration decides whether a service goes straight to the workers.

use batzen_postgres::schema::{DbinitOptions, HISTORY, dbinit::dbinit};
use batzen_postgres::{Connection, Target};
use batzen_service::storage::{Service, Sharing, StoreConfig};
use batzen_store::{ChangeSet, CommitOutcome, Table, record, table};
use batzen_testkit::postgres::shared_citus;

record! {
    /// Names a box.
    pub key struct BoxKey {
        pub number: u32,
    }
}
record! {
    pub struct BoxRow {
        pub content: u64,
    }
}
table! {
    /// Boxes, each in a shard of its own.
    Boxes(900, "boxes"): BoxKey => BoxRow, shard(4);
}

const TEST: Service = Service { schema: "boxes", tables: &[Boxes::DEF], sharing: Sharing::Shared };

#[test]
fn a_service_goes_straight_to_the_workers_unless_it_must_not() {
    let Some(cluster) = shared_citus() else { return };
    let url = cluster.fresh_database().unwrap();
    let mut sql = Connection::open(&Target::parse(&url).unwrap()).unwrap();
    let options = DbinitOptions { citus: true, ..DbinitOptions::default() };
    dbinit(&mut sql, TEST.schema, TEST.tables, &options, &HISTORY).unwrap();
    let name = url.rsplit('/').next().unwrap();
    let sessions = || {
        let count = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'batzen-{}'",
            TEST.schema
        );
        cluster.workers().iter().map(|worker| worker.sql(name, &count).unwrap()).collect::<Vec<_>>()
    };
    for (number, citus_direct) in [false, true].into_iter().enumerate() {
        let store = StoreConfig::Postgres { url: url.clone(), citus_direct }.open(&TEST, 1).unwrap();
        for place in 0..40 {
            let key = BoxKey { number: u32::try_from(number * 100 + place).unwrap() };
            let mut changes = ChangeSet::new();
            changes.insert::<Boxes>(&key, &BoxRow { content: 7 });
            assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
            assert_eq!(store.get::<Boxes>(&key).unwrap().unwrap().row.content, 7);
        }
        // Frozen rows pause all commits, on the workers too.
        assert_eq!(store.all::<Boxes>().unwrap().len(), (number + 1) * 40);
        assert_eq!(sessions().iter().all(|count| count != "0"), citus_direct, "{:?}", sessions());
        assert_eq!(sessions().iter().all(|count| count == "0"), !citus_direct, "{:?}", sessions());
        store.close().unwrap();
    }
}
