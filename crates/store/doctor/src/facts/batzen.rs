//! Facts about Batzen's schemas.

use batzen_postgres::Layout;
use batzen_postgres::schema::meta::EPOCH_COUNT;
use batzen_store::TableDef;
use serde::{Deserialize, Serialize};

use super::look::Look;
use super::own_statements::{Measured, measure_all};

/// A schema of one of Batzen's services.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Its name: `exchange`, `bank`, `ledger`, `switch`.
    pub schema: String,
    /// Number of partitions of hot tables; 0: not partitioned.
    pub partitions: u16,
    /// Whether its tables are distributed over the nodes of a Citus cluster.
    pub citus: bool,
    /// The version of the schema.
    pub schema_version: i64,
    /// The version of the program that migrated it last.
    pub program: String,
    /// The cluster that its serials' transaction ids come from.
    pub cluster_id: i64,
    /// The cluster that it is in.
    pub here: Option<i64>,
    /// The connections that commit.
    pub writers: Vec<Writer>,
    /// Tables by deadline whose default part holds rows, and how many.
    pub in_default: Vec<DefaultPart>,
    /// The execution of each hot statement.
    pub statements: Vec<Measured>,
}

/// A connection that commits.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Writer {
    /// The node that it belongs to.
    pub node: String,
    /// Number of takeovers after a lost connection.
    pub epoch: i64,
    /// Commits.
    pub batch: i64,
    /// Seconds since it was last seen.
    pub age: Option<f64>,
}

/// Rows in the default partition.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DefaultPart {
    pub(crate) table: String,
    /// Its rows, up to a thousand.
    pub(crate) rows: u64,
}

/// The tables of a service.
fn tables_of(schema: &str) -> &'static [&'static TableDef] {
    match schema {
        "exchange" => batzen_tables::exchange::ALL,
        "bank" => batzen_tables::bank::ALL,
        "ledger" => batzen_tables::ledger::ALL,
        "switch" => batzen_tables::switch::ALL,
        "merchant" => batzen_tables::merchant::ALL,
        "auditor" => batzen_tables::auditor::ALL,
        "auditor_copy" => batzen_tables::auditor::copy::ALL,
        _ => &[],
    }
}

/// Reads every schema of Batzen in the connected database, recognised by its tables `meta` and `writers`.
pub(crate) fn read(look: &Look, in_recovery: bool) -> Vec<Service> {
    #[derive(Deserialize)]
    struct Schema {
        name: String,
    }
    let schemas: Vec<Schema> = look.probe(
        "Batzen's schemas",
        "SELECT m.relnamespace::regnamespace::text AS name FROM pg_class m
        WHERE m.relname = 'meta' AND m.relkind = 'r'
            AND (SELECT count(*) FROM pg_attribute a WHERE a.attrelid = m.oid
                AND a.attname IN ('store_id', 'sip_key', 'partitions', 'schema_version', 'serial_base')) = 5
            AND EXISTS (SELECT FROM pg_class w WHERE w.relname = 'writers' AND w.relnamespace = m.relnamespace)
        ORDER BY 1",
    );
    schemas.iter().filter_map(|schema| service(look, &schema.name, in_recovery)).collect()
}

fn service(look: &Look, schema: &str, in_recovery: bool) -> Option<Service> {
    let what = format!("schema {schema}");
    let query = format!("SELECT partitions, citus, schema_version, program, cluster_id FROM {schema}.meta");
    let mut service: Service = look.probe_one(&what, &query)?;
    schema.trim_matches('"').clone_into(&mut service.schema);
    #[derive(Deserialize)]
    struct Cluster {
        id: i64,
    }
    let here = look.query("SELECT system_identifier AS id FROM pg_control_system()");
    service.here = here.ok().and_then(|rows: Vec<Cluster>| rows.first().map(|row| row.id));
    service.writers = look.probe(
        &format!("writers of schema {schema}"),
        &format!(
            "SELECT coalesce(node, '') AS node, epoch & {EPOCH_COUNT} AS epoch, batch, extract(epoch FROM clock_timestamp() - seen)::float8 AS age
            FROM {schema}.writers ORDER BY seen DESC LIMIT 1000"
        ),
    );
    for def in tables_of(&service.schema) {
        let Ok(layout) = Layout::new(def, &service.schema, service.partitions) else { continue };
        if let Some(queue) = layout.queue_name() {
            let table = format!("{queue}_default");
            #[derive(Deserialize)]
            struct Count {
                rows: u64,
            }
            let query = format!("SELECT count(*) AS rows FROM (SELECT 1 FROM {schema}.{table} LIMIT 1000) q");
            let rows: Option<Count> = look.probe_one(&format!("rows of {table}"), &query);
            if let Some(Count { rows }) = rows.filter(|count| count.rows > 0) {
                service.in_default.push(DefaultPart { table, rows });
            }
        }
        // On Citus, a statement is executed by nodes that are not looked at.
        if !service.citus {
            measure_all(look, &layout, in_recovery, &mut service.statements);
        }
    }
    Some(service)
}
