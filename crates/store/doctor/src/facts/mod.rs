//! The measurements as plain data, and how they are read.
//!
//! | module | what |
//! |---|---|
//! | [`look`] | the connection, and the probes: each its own read-only transaction, each able to fail alone |
//! | `server` | the server, its settings, its databases |
//! | `activity` | counters (two samples give rates); sessions and lock waits |
//! | `objects` | tables and indexes with their statistics |
//! | `stream` | replication, slots, archiver, prepared transactions |
//! | `statements` | `pg_stat_statements` |
//! | `machine` | memory, cores, disk and process memory of a local server, from `/proc` and `/sys` |
//! | `sync` | the time of a synced write |
//! | [`batzen`] | Batzen's schemas |
//! | `own_statements`, `plans` | executions of the statements of their hot paths |
//!
//! Times are seconds, sizes bytes. A number that the server does not know is `None`; a list that could not be
//! read is empty and has its [`Gap`].

pub(crate) mod activity;
pub mod batzen;
pub(crate) mod citus;
pub mod look;
pub(crate) mod machine;
pub(crate) mod objects;
pub(crate) mod own_statements;
pub(crate) mod plans;
pub(crate) mod server;
pub(crate) mod statements;
pub(crate) mod stream;
pub(crate) mod sync;

use std::time::Instant;

use serde::{Deserialize, Serialize};

pub(crate) use activity::{Counters, Session};
pub use look::{Look, LookError};
pub(crate) use machine::Machine;
pub(crate) use machine::{ProcessMemory, Storage};
pub use objects::{Index, Table};
pub(crate) use server::Database;
pub use server::Server;
#[cfg(test)]
pub(crate) use server::Setting;
pub(crate) use server::Settings;
pub use statements::Statement;
pub(crate) use stream::Stream;
pub(crate) use sync::Syncs;

use crate::Options;

/// Something that could not be read, and how to make it readable.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Gap {
    /// The missing fact.
    pub what: String,
    /// The reason.
    pub(crate) why: String,
    /// The command to type, if that helps.
    pub remedy: Option<String>,
}

/// All measurements.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Facts {
    /// The server.
    pub server: Server,
    /// Its machine, as far as known.
    pub(crate) machine: Machine,
    /// The settings in force.
    pub settings: Settings,
    /// All databases of the server.
    pub(crate) databases: Vec<Database>,
    /// The first sample of the counters.
    pub(crate) before: Counters,
    /// The second sample.
    pub(crate) after: Counters,
    /// Tables of the connected database, largest first. Partitions are tables of their own.
    pub tables: Vec<Table>,
    /// Their indexes.
    pub indexes: Vec<Index>,
    /// Sessions of the whole server, with what they wait for.
    pub sessions: Vec<Session>,
    /// Standbys, slots, archive, prepared transactions.
    pub stream: Stream,
    /// The statements that took the most time; `None` without `pg_stat_statements`.
    pub statements: Option<Vec<Statement>>,
    /// Memory of the server's processes, if the server is local.
    pub(crate) processes: Option<ProcessMemory>,
    /// The time of a synced write.
    pub(crate) syncs: Option<Syncs>,
    /// The schemas of Batzen.
    pub batzen: Vec<batzen::Service>,
    /// The Citus cluster that the database belongs to.
    pub citus: Option<citus::Citus>,
    /// The facts that could not be read.
    pub gaps: Vec<Gap>,
}

impl Facts {
    /// The rates between the two samples.
    pub fn rates(&self) -> activity::Rates {
        activity::Rates::between(&self.before, &self.after)
    }

    /// The database that the doctor is connected to.
    pub(crate) fn database(&self) -> Option<&Database> {
        self.databases.iter().find(|database| database.name == self.server.database)
    }

    /// Seconds since the statistics of the connected database were reset, or since the server started if they
    /// never were.
    pub(crate) fn statistics_age(&self) -> f64 {
        let reset = self.database().and_then(|database| database.stats_age);
        reset.unwrap_or(self.server.uptime).max(1.0)
    }
}

/// Reads everything.
///
/// # Errors
/// Only if the connection is lost. Anything else that cannot be read is a gap.
pub(crate) fn read(look: &Look, options: &Options) -> Result<Facts, LookError> {
    let mut facts = Facts { server: server::read(look)?, ..Facts::default() };
    facts.settings = server::settings(look);
    facts.before = activity::counters(look, &facts.server);
    let begun = Instant::now();
    facts.databases = server::databases(look, &facts.server);
    facts.machine = machine::read(look, &facts.server, options);
    facts.tables = objects::tables(look);
    facts.indexes = objects::indexes(look);
    facts.stream = stream::read(look, &facts.server);
    facts.statements = statements::read(look, &facts.server);
    facts.sessions = activity::sessions(look);
    facts.batzen = batzen::read(look, facts.server.in_recovery);
    facts.citus = citus::read(look);
    facts.processes = machine::processes(look, &facts);
    facts.syncs = sync::read(look, &facts, options);
    std::thread::sleep(options.sample.saturating_sub(begun.elapsed()));
    facts.after = activity::counters(look, &facts.server);
    facts.gaps = look.gaps();
    Ok(facts)
}
