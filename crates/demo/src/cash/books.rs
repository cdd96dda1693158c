//! Where the books of a demonstration are.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, ensure};
use batzen_cli_support::store_args::StoreKind;
use batzen_pg_cluster::{Cluster, ClusterOptions};
use batzen_storage::StoreConfig;

/// The database in a cluster of our own.
const DATABASE: &str = "batzen";

/// Directories, or schemas of a database.
pub struct Books {
    url: Option<String>,
    /// The database's server, if it is ours: it ends with this.
    _cluster: Option<Cluster>,
}

impl Books {
    /// Starts a PostgreSQL server if one is wanted and none is named: in the directory if that is to stay,
    /// else somewhere for the time being.
    ///
    /// # Errors
    /// When PostgreSQL is missing or does not start.
    pub fn open(kind: StoreKind, url: Option<String>, kept: Option<&Path>) -> anyhow::Result<Self> {
        ensure!(kind == StoreKind::Postgres || url.is_none(), "--database needs --store postgres");
        if kind == StoreKind::Embedded || url.is_some() {
            return Ok(Self { url, _cluster: None });
        }
        if let Some(dir) = kept {
            // The server runs as another user if we are root: it passes through here, and reads nothing.
            std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o711))
                .with_context(|| dir.display().to_string())?;
        }
        let options =
            ClusterOptions { directory: kept.map(|dir| dir.join("postgres")), ..ClusterOptions::default() };
        let cluster = Cluster::start(&options)?;
        let there = format!("SELECT count(*) FROM pg_database WHERE datname = '{DATABASE}'");
        if cluster.sql("postgres", &there)? == "0" {
            cluster.create_database(DATABASE)?;
        }
        Ok(Self { url: Some(cluster.url(DATABASE)), _cluster: Some(cluster) })
    }

    /// Where one of the services keeps its rows: in this directory, unless all are in the database.
    pub fn store_config(&self, dir: &Path) -> StoreConfig {
        match &self.url {
            Some(url) => StoreConfig::Postgres { url: url.clone() },
            None => StoreConfig::Embedded { dir: dir.to_owned() },
        }
    }

    /// The database, if there is one.
    pub fn url(&self) -> Option<&str> {
        self.url.as_deref()
    }
}
