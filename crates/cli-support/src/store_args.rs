//! Options that choose where a service keeps its rows.

use std::path::{Path, PathBuf};

use anyhow::bail;
use batzen_service::storage::StoreConfig;
use batzen_store::embedded::EmbeddedStore;
use clap::{Args, ValueEnum};

use crate::services;

/// The kinds of persistent stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StoreKind {
    /// In a directory on this machine
    Embedded,
    /// In a PostgreSQL database
    Postgres,
}

/// Options of every service that keeps rows; each overrides the configuration file.
#[derive(Args, Clone, Debug)]
pub struct StoreArgs {
    /// Directory of the store; created if missing [default: from the configuration]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Keep everything in memory; it is lost when the process ends
    #[arg(long, conflicts_with_all = ["data", "store", "database"])]
    in_memory: bool,
    /// Where the rows are kept: embedded (in --data) or postgres (in --database)
    #[arg(long, value_name = "STORE", hide_possible_values = true)]
    store: Option<StoreKind>,
    /// PostgreSQL database, e.g. postgres:///bank or postgres://user@host/bank. Put passwords in the
    /// configuration or in ~/.pgpass: on the command line, every user of the machine can see them
    #[arg(long, value_name = "URL", conflicts_with = "data")]
    database: Option<String>,
}

impl StoreArgs {
    /// The chosen store. If the command line says nothing, the configuration decides. Creates directories.
    ///
    /// # Errors
    /// When nothing is chosen, or the options contradict each other.
    pub fn choose(&self, configured: Option<StoreConfig>) -> anyhow::Result<StoreConfig> {
        if self.in_memory {
            return Ok(StoreConfig::Memory);
        }
        let chosen = match (&self.data, &self.database) {
            (Some(dir), _) => Some(StoreConfig::embedded(dir.clone())),
            (None, Some(url)) => Some(StoreConfig::postgres(url.clone())),
            (None, None) => configured.filter(|configured| !configured.is_memory()),
        };
        match (self.store, chosen) {
            (Some(StoreKind::Embedded) | None, Some(StoreConfig::Embedded { dir, index_memory_mib })) => {
                Ok(StoreConfig::Embedded { dir: services::directory(&dir)?, index_memory_mib })
            }
            (Some(StoreKind::Postgres) | None, Some(chosen)) if chosen.is_database() => Ok(chosen),
            (Some(StoreKind::Postgres), _) => {
                bail!("which database? Name it with --database postgres:///NAME")
            }
            _ => bail!("where shall the books be kept? Name a directory with --data DIR, or say --in-memory"),
        }
    }
}

/// Refuses a directory without a store, so that a command that only reads does not create one.
///
/// # Errors
/// When there is no store in the directory.
pub fn require_store(dir: &Path) -> anyhow::Result<()> {
    if EmbeddedStore::exists(dir) {
        return Ok(());
    }
    bail!("there is no store at {}: check the path; this command creates none", dir.display())
}

/// The same for a configured store. A database is checked when it is opened.
///
/// # Errors
/// As [`require_store`]; a store in memory, which no other process can read.
pub fn require_existing(store: &StoreConfig) -> anyhow::Result<()> {
    if store.is_memory() {
        bail!("no store is configured: name its directory or its database");
    }
    store.dir().map_or(Ok(()), |dir| require_store(dir))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        store: StoreArgs,
    }

    fn chosen(line: &str, configured: Option<StoreConfig>) -> anyhow::Result<StoreConfig> {
        let line = Line::try_parse_from(["program"].into_iter().chain(line.split_whitespace()))?;
        line.store.choose(configured)
    }

    #[test]
    fn the_command_line_overrides_the_configuration() {
        let database = |url: &str| StoreConfig::postgres(url.to_owned());
        let configured = || Some(database("postgres:///configured"));
        assert_eq!(chosen("", configured()).unwrap(), database("postgres:///configured"));
        assert_eq!(chosen("--store postgres", configured()).unwrap(), database("postgres:///configured"));
        assert_eq!(chosen("--database postgres:///x", configured()).unwrap(), database("postgres:///x"));
        assert_eq!(chosen("--in-memory", configured()).unwrap(), StoreConfig::Memory);
        let dir = tempfile::tempdir().unwrap();
        let line = format!("--data {}", dir.path().display());
        assert!(chosen(&line, configured()).unwrap().dir().is_some());
    }

    #[test]
    fn only_a_directory_with_a_store_is_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let place = StoreConfig::embedded(dir.path().join("store"));
        assert!(require_existing(&place).is_err());
        std::fs::create_dir(dir.path().join("store")).unwrap();
        assert!(require_existing(&place).is_err(), "an empty directory is no store");
        place.open(&batzen_service::storage::BANK, 1).unwrap().close().unwrap();
        require_existing(&place).unwrap();
        assert!(require_existing(&StoreConfig::Memory).is_err());
    }

    #[test]
    fn contradictory_options_are_refused() {
        for line in [
            "",
            "--store postgres",
            "--store postgres --data /tmp",
            "--store embedded --database postgres:///x",
            "--in-memory --store postgres",
            "--data /tmp --database postgres:///x",
        ] {
            assert!(chosen(line, None).is_err(), "{line}");
        }
        assert!(chosen("", Some(StoreConfig::Memory)).is_err());
    }
}
