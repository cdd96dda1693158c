//! The doctor on a Citus cluster.

use std::time::Duration;

use batzen_doctor::Options;
use batzen_doctor::findings::Severity;
use batzen_postgres::schema::{DbinitOptions, HISTORY, dbinit::dbinit};
use batzen_postgres::{Connection, Target};
use batzen_testkit::postgres::shared_citus;

#[test]
fn the_doctor_sees_every_node_of_a_citus_cluster() {
    let Some(cluster) = shared_citus() else { return };
    let url = cluster.fresh_database().unwrap();
    let mut sql = Connection::open(&Target::parse(&url).unwrap()).unwrap();
    let options = DbinitOptions { citus: true, ..DbinitOptions::default() };
    dbinit(&mut sql, "exchange", batzen_tables::exchange::ALL, &options, &HISTORY).unwrap();
    let options = Options { sample: Duration::from_millis(100), ..Options::new(&url) };
    let examination = batzen_doctor::examine(&options).unwrap();
    let citus = examination.facts.citus.as_ref().unwrap();
    assert_eq!(citus.nodes.len(), 3, "{:?} {:?}", citus, examination.facts.gaps);
    assert!(
        citus.nodes.iter().all(|node| node.answers && node.is_synced && node.prepared_max == Some(200)),
        "{citus:?}"
    );
    let finding = examination.findings.iter().find(|finding| finding.rule.starts_with("citus")).unwrap();
    assert_eq!((finding.rule.as_str(), finding.severity), ("citus", Severity::Ok), "{finding:?}");
}
