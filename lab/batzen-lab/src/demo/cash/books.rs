//! The location of a demo's books.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, ensure};
use batzen_cli_support::store_args::StoreKind;
use batzen_service::storage::StoreConfig;
use batzen_testkit::postgres::{Cluster, ClusterOptions};

/// The database in our own cluster.
const DATABASE: &str = "batzen";

/// Directories, or schemas of a database.
pub(crate) struct Books {
    url: Option<String>,
    /// The database's server, if it is ours; it ends when this is dropped.
    cluster: Option<Cluster>,
}

impl Books {
    /// Starts a PostgreSQL server if `kind` requires one and no URL is given. Its data is in the kept
    /// directory, or else in a temporary one.
    ///
    /// # Errors
    /// When PostgreSQL is missing or does not start.
    pub(crate) fn open(kind: StoreKind, url: Option<String>, kept: Option<&Path>) -> anyhow::Result<Self> {
        ensure!(kind == StoreKind::Postgres || url.is_none(), "--database needs --store postgres");
        if kind == StoreKind::Embedded || url.is_some() {
            return Ok(Self { url, cluster: None });
        }
        if let Some(dir) = kept {
            // If we are root, the server runs as another user, who must be able to traverse this directory
            // but not to list it.
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
        Ok(Self { url: Some(cluster.url(DATABASE)), cluster: Some(cluster) })
    }

    /// The storage of one service: in this directory, or in the database if there is one.
    pub(crate) fn store_config(&self, dir: &Path) -> StoreConfig {
        match &self.url {
            Some(url) => StoreConfig::postgres(url.clone()),
            None => StoreConfig::embedded(dir.to_owned()),
        }
    }

    /// Returns whether the database is in a server of our own.
    pub(crate) fn is_own_database(&self) -> bool {
        self.cluster.is_some()
    }

    /// The database, if there is one.
    pub(crate) fn url(&self) -> Option<&str> {
        self.url.as_deref()
    }
}
