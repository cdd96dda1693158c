//! Options to open a store in a database.

use std::time::Duration;

use batzen_store::{StoreError, TableDef};

/// The other processes that may use the store at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Any number of processes.
    Shared,
    /// None: this process caches what it has read.
    Exclusive,
}

/// Options to open a store in a database. `Debug` does not show the address, which may contain a password.
#[derive(Clone)]
pub struct PgOptions {
    /// The address of the database; see [`Target::parse`](crate::Target::parse).
    pub url: String,
    /// The service's schema.
    pub schema: String,
    /// The program's tables.
    pub tables: &'static [&'static TableDef],
    /// The other processes that may use it.
    pub sharing: Sharing,
    /// Connections that commit: one per lane, and one for tools.
    pub writers: usize,
    /// Connections that read.
    pub readers: usize,
    /// Time that reads and commits wait for an unreachable server before they fail with
    /// [`StoreError::Unavailable`].
    pub away_max: Duration,
    /// The application name in the server's list of sessions.
    pub node: String,
    /// On Citus: whether what concerns shards goes straight to their nodes, at the addresses that Citus has for them.
    pub at_shards: bool,
    /// Called once when the store can never be used again by this process: another one has taken it over, or the schema
    /// has changed. Afterwards all reads and commits fail.
    pub on_lost: Option<fn(&StoreError)>,
}

impl std::fmt::Debug for PgOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PgOptions")
            .field("schema", &self.schema)
            .field("sharing", &self.sharing)
            .field("writers", &self.writers)
            .field("readers", &self.readers)
            .finish_non_exhaustive()
    }
}

impl PgOptions {
    /// Defaults: shared, two connections that commit and eight that read.
    #[must_use]
    pub fn new(url: &str, schema: &str, tables: &'static [&'static TableDef]) -> Self {
        Self {
            url: url.to_owned(),
            schema: schema.to_owned(),
            tables,
            sharing: Sharing::Shared,
            writers: 2,
            readers: 8,
            away_max: Duration::from_secs(15),
            node: std::process::id().to_string(),
            at_shards: true,
            on_lost: None,
        }
    }
}
