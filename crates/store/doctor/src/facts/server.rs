//! The server, its settings, its databases.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::look::{GRANT, Look, LookError};

/// The oldest server that the probes support, as `server_version_num`.
const OLDEST: u32 = 130_000;

/// The server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Server {
    /// As `server_version_num`: 150018 is 15.18.
    pub(crate) version_num: u32,
    /// In words.
    pub(crate) version: String,
    /// The connected database.
    pub(crate) database: String,
    /// The doctor's role.
    pub(crate) role: String,
    /// Whether that role is a superuser.
    pub(crate) is_superuser: bool,
    /// Whether it sees the activity of others (`pg_read_all_stats`).
    pub(crate) sees_all: bool,
    /// Whether the server is a standby.
    pub in_recovery: bool,
    /// Seconds since it started.
    pub(crate) uptime: f64,
    /// Its data directory, if visible.
    pub(crate) data_directory: Option<String>,
    /// The doctor's server process.
    pub(crate) backend_pid: i32,
    /// The server's address; `None` over a local socket.
    pub(crate) address: Option<String>,
    /// Whether `pg_stat_statements` is installed on its machine.
    pub(crate) offers_statements: bool,
}

/// A setting in force.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
#[serde(default)]
pub struct Setting {
    /// Its value in its unit.
    pub(crate) setting: String,
    /// The unit, such as `8kB` or `ms`.
    pub(crate) unit: Option<String>,
    /// Where the value comes from: `default`, `configuration file`, `database`, …
    pub(crate) source: String,
    /// Whether a changed value waits for a restart.
    pub(crate) pending_restart: bool,
    /// When it may be changed: `postmaster` needs a restart.
    pub(crate) context: String,
    /// The possible values, if it is an enum.
    pub(crate) choices: Option<Vec<String>>,
}

/// All settings by name.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
#[serde(transparent)]
pub struct Settings(pub BTreeMap<String, Setting>);

impl Settings {
    /// A setting's value as the server writes it.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|setting| setting.setting.as_str())
    }

    /// A boolean setting.
    pub(crate) fn is_on(&self, name: &str) -> Option<bool> {
        self.text(name).map(|text| text == "on")
    }

    /// A number in the setting's own unit.
    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        self.text(name)?.parse().ok()
    }

    /// A size in bytes. `None` for `-1` (not a size, but "the server decides").
    pub fn bytes(&self, name: &str) -> Option<u64> {
        let setting = self.0.get(name)?;
        let value: u64 = setting.setting.parse().ok()?;
        let unit = setting.unit.as_deref().unwrap_or("B");
        let digits = unit.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(unit.len());
        let count: u64 = if digits == 0 { 1 } else { unit[..digits].parse().ok()? };
        let factor = match &unit[digits..] {
            "B" => 1,
            "kB" => 1 << 10,
            "MB" => 1 << 20,
            "GB" => 1 << 30,
            _ => return None,
        };
        value.checked_mul(count)?.checked_mul(factor)
    }

    /// A time in seconds.
    pub(crate) fn seconds(&self, name: &str) -> Option<f64> {
        let setting = self.0.get(name)?;
        let value: f64 = setting.setting.parse().ok()?;
        match setting.unit.as_deref() {
            Some("ms") => Some(value / 1000.0),
            Some("s") | None => Some(value),
            Some("min") => Some(value * 60.0),
            Some(_) => None,
        }
    }
}

/// One database of the server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Database {
    pub(crate) name: String,
    /// Bytes, if the role may connect to it.
    pub(crate) size: Option<u64>,
    /// The age in transactions of the oldest unfrozen row.
    pub(crate) xid_age: u64,
    /// The same for shared row locks.
    pub(crate) multixact_age: u64,
    /// Seconds since its statistics were reset; `None` if never.
    pub(crate) stats_age: Option<f64>,
    /// Pages found in `shared_buffers` since then.
    pub(crate) blocks_hit: u64,
    /// Pages read from the operating system since then.
    pub(crate) blocks_read: u64,
    /// Transactions committed since then.
    pub(crate) commits: u64,
    /// Transactions rolled back since then.
    pub(crate) rollbacks: u64,
    /// Deadlocks since then.
    pub(crate) deadlocks: u64,
    /// Files of sorts and hashes that did not fit into `work_mem`.
    pub(crate) temp_files: u64,
    pub(crate) temp_bytes: u64,
    /// Pages whose checksum was wrong; `None` if pages have none.
    pub(crate) checksum_failures: Option<u64>,
    /// Settings by `ALTER ROLE/DATABASE … SET` that override the server's: `name=value`, and for which role.
    pub(crate) overrides: Vec<String>,
}

/// Reads the facts of the server.
///
/// # Errors
/// If the server is not a PostgreSQL version that the probes support.
pub(crate) fn read(look: &Look) -> Result<Server, LookError> {
    let query = "SELECT current_setting('server_version_num')::int AS version_num,
            split_part(version(), ' on ', 1) AS version,
            current_database()::text AS database, current_user::text AS role,
            coalesce((SELECT rolsuper FROM pg_roles WHERE rolname = current_user), false) AS is_superuser,
            pg_has_role(current_user, 'pg_read_all_stats', 'usage') AS sees_all,
            pg_is_in_recovery() AS in_recovery,
            greatest(extract(epoch FROM clock_timestamp() - pg_postmaster_start_time()), 0)::float8 AS uptime,
            pg_backend_pid() AS backend_pid,
            host(inet_server_addr()) AS address,
            EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pg_stat_statements') AS offers_statements";
    let server: Option<Server> =
        look.query(query).map_err(|error| LookError::Server(error.to_string()))?.into_iter().next();
    let mut server = server.ok_or_else(|| LookError::Server("the server gave no answer".to_owned()))?;
    if server.version_num < OLDEST {
        return Err(LookError::Server(format!("{} is too old: PostgreSQL 13 or newer", server.version)));
    }
    #[derive(Deserialize)]
    struct Directory {
        data_directory: Option<String>,
    }
    let directory: Option<Directory> = look
        .query("SELECT setting AS data_directory FROM pg_settings WHERE name = 'data_directory'")
        .ok()
        .and_then(|rows| rows.into_iter().next());
    server.data_directory = directory.and_then(|row| row.data_directory);
    if !server.sees_all && !server.is_superuser {
        look.gap(
            "what the sessions of other roles do",
            format!("role {} may not see it", server.role),
            Some(GRANT),
        );
    }
    Ok(server)
}

/// Reads every setting.
pub(crate) fn settings(look: &Look) -> Settings {
    #[derive(Deserialize)]
    struct Named {
        name: String,
        #[serde(flatten)]
        setting: Setting,
    }
    // The settings of the doctor's session would hide those of others.
    let query = "SELECT name,
            CASE WHEN source = 'session' THEN reset_val ELSE setting END AS setting,
            unit, source, pending_restart, context, to_json(enumvals) AS choices
        FROM pg_settings WHERE setting IS NOT NULL";
    let rows: Vec<Named> = look.probe("the server's settings", query);
    Settings(rows.into_iter().map(|row| (row.name, row.setting)).collect())
}

/// Reads the facts of each database.
pub(crate) fn databases(look: &Look, server: &Server) -> Vec<Database> {
    let query = "SELECT d.datname::text AS name,
            CASE WHEN has_database_privilege(d.oid, 'CONNECT') THEN pg_database_size(d.oid) END AS size,
            age(d.datfrozenxid)::bigint AS xid_age, mxid_age(d.datminmxid)::bigint AS multixact_age,
            extract(epoch FROM clock_timestamp() - s.stats_reset)::float8 AS stats_age,
            coalesce(s.blks_hit, 0) AS blocks_hit, coalesce(s.blks_read, 0) AS blocks_read,
            coalesce(s.xact_commit, 0) AS commits, coalesce(s.xact_rollback, 0) AS rollbacks,
            coalesce(s.deadlocks, 0) AS deadlocks,
            coalesce(s.temp_files, 0) AS temp_files, coalesce(s.temp_bytes, 0) AS temp_bytes,
            s.checksum_failures,
            coalesce((SELECT json_agg(o.setting || CASE WHEN r.setrole = 0 THEN '' ELSE ' for role ' || pg_get_userbyid(r.setrole) END)
                FROM pg_db_role_setting r, unnest(r.setconfig) AS o(setting)
                WHERE r.setdatabase IN (0, d.oid)), '[]'::json) AS overrides
        FROM pg_database d LEFT JOIN pg_stat_database s ON s.datid = d.oid
        WHERE d.datallowconn OR d.datname = current_database()";
    let mut databases: Vec<Database> = look.probe("the databases", query);
    databases.sort_by_key(|database| (database.name != server.database, database.name.clone()));
    databases
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(setting: &str, unit: Option<&str>) -> Settings {
        let setting =
            Setting { setting: setting.to_owned(), unit: unit.map(str::to_owned), ..Setting::default() };
        Settings([("it".to_owned(), setting)].into())
    }

    #[test]
    fn settings_are_converted_by_their_units() {
        assert_eq!(with("16384", Some("8kB")).bytes("it"), Some(128 << 20));
        assert_eq!(with("64", Some("MB")).bytes("it"), Some(64 << 20));
        assert_eq!(with("-1", Some("8kB")).bytes("it"), None);
        assert_eq!(with("7", Some("parsec")).bytes("it"), None);
        assert_eq!(with("18446744073709551615", Some("GB")).bytes("it"), None);
        assert_eq!(with("5", Some("min")).seconds("it"), Some(300.0));
        assert_eq!(with("200", Some("ms")).seconds("it"), Some(0.2));
        assert_eq!(with("on", None).is_on("it"), Some(true));
        assert_eq!(with("on", None).is_on("other"), None);
    }
}
