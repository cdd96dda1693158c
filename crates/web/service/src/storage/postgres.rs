//! Each service has its own schema in a database.

use std::time::Duration;

use batzen_postgres::schema::{DbinitOptions, HISTORY, dbinit::dbinit};
use batzen_postgres::{Connection, PgOptions, Target};
use batzen_store::{Store, StoreError};

use crate::storage::{Service, Sharing};

/// Makes or migrates the schema.
pub(crate) fn prepare(url: &str, service: &Service) -> Result<(), StoreError> {
    let target = Target::parse(url)?.application("batzen-dbinit").read_write().patient();
    let mut connection = Connection::open_session(&target)?;
    let report =
        dbinit(&mut connection, service.schema, service.tables, &DbinitOptions::default(), &HISTORY)?;
    for action in report.actions {
        tracing::info!(schema = service.schema, "{action}");
    }
    Ok(())
}

/// The exit code of a process whose store is lost. Service managers then start it again.
const LOST_EXIT_CODE: i32 = 1;
/// Time for the answers to requests that fail because of it.
const LOST_DELAY: Duration = Duration::from_secs(1);

/// Ends the process, which could only refuse everything from now on.
fn end_process(error: &StoreError) {
    tracing::error!(%error, "the process ends, because its store is lost");
    std::thread::spawn(|| {
        std::thread::sleep(LOST_DELAY);
        std::process::exit(LOST_EXIT_CODE);
    });
}

/// Opens the schema with one more writing connection than there are writers, for tools. A service that has
/// the schema to itself maintains its tables. Where several share it, their operator does, once for all.
///
/// `citus_direct`: on a Citus cluster, whether what concerns shards goes straight to their workers.
pub(crate) fn open(
    url: &str,
    citus_direct: bool,
    service: &Service,
    writers: usize,
) -> Result<Store, StoreError> {
    let mut options = PgOptions::new(url, service.schema, service.tables);
    options.writers = writers + 1;
    options.at_shards = citus_direct;
    options.on_lost = Some(end_process);
    if service.sharing == Sharing::Exclusive {
        prepare(url, service)?;
        options.sharing = batzen_postgres::Sharing::Exclusive;
    }
    batzen_postgres::open(&options).map(Store::new)
}
