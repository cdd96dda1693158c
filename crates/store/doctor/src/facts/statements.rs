//! The counters of `pg_stat_statements`.

use serde::{Deserialize, Serialize};

use super::Server;
use super::look::Look;

/// One statement of the connected database, parameters left out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Statement {
    /// Its text.
    pub query: String,
    /// Times it was executed.
    pub calls: u64,
    /// Seconds in all.
    pub total: f64,
    /// Seconds on average.
    pub mean: f64,
    /// The longest time in seconds.
    pub worst: f64,
    /// Rows in all.
    pub rows: u64,
    /// Pages found in `shared_buffers`.
    pub hit: u64,
    /// Pages read from the operating system.
    pub read: u64,
    /// Its share of the time of all statements.
    pub share: f64,
}

/// The statements that took the most time; `None` without `pg_stat_statements`.
pub(crate) fn read(look: &Look, server: &Server) -> Option<Vec<Statement>> {
    const WHAT: &str = "which statements are slow";
    if !server.offers_statements {
        let remedy = "apt-get install postgresql-contrib   # on the server's machine";
        look.gap(WHAT, "pg_stat_statements is not on the server's machine", Some(remedy));
        return None;
    }
    #[derive(Deserialize)]
    struct Extension {
        schema: Option<String>,
        loaded: Option<String>,
    }
    // If the preload list is not visible, try the query.
    let extension: Extension = look
        .probe_one(
            WHAT,
            "SELECT (SELECT quote_ident(n.nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
                    WHERE e.extname = 'pg_stat_statements') AS schema,
                (SELECT setting FROM pg_settings WHERE name = 'shared_preload_libraries') AS loaded",
        )?;
    let create = "CREATE EXTENSION pg_stat_statements;";
    let loaded: Option<Vec<&str>> = extension.loaded.as_deref().map(|list| {
        list.split(',').map(|name| name.trim().trim_matches('"')).filter(|name| !name.is_empty()).collect()
    });
    let is_loaded = loaded.as_ref().map(|list| list.contains(&"pg_stat_statements"));
    let all: String = loaded.into_iter().flatten().map(|name| format!("'{name}', ")).collect();
    let preload = format!(
        "ALTER SYSTEM SET shared_preload_libraries = {all}'pg_stat_statements';   -- then restart the server, then: {create}"
    );
    if is_loaded == Some(false) {
        look.gap(WHAT, "pg_stat_statements is not loaded", Some(&preload));
        return None;
    }
    let Some(schema) = extension.schema else {
        look.gap(WHAT, "pg_stat_statements is not in this database", Some(create));
        return None;
    };
    let query = format!(
        "SELECT left(query, 4000) AS query, calls, total_exec_time / 1000 AS total, mean_exec_time / 1000 AS mean,
            max_exec_time / 1000 AS worst, rows, shared_blks_hit AS hit, shared_blks_read AS read,
            coalesce(total_exec_time / nullif(sum(total_exec_time) OVER (), 0), 0) AS share
        FROM {schema}.pg_stat_statements
        WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
        ORDER BY total_exec_time DESC LIMIT 100"
    );
    match look.query(&query) {
        Ok(rows) => Some(rows),
        Err(error) => {
            look.gap(WHAT, error.to_string(), Some(&preload));
            None
        }
    }
}
