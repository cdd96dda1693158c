//! Options for following an exchange, from the auditor's configuration.

use std::time::Duration;

use batzen_config::{Config, ConfigError};
use batzen_feed::client::FollowerOptions;
use batzen_feed::config::ClientConfig;
use batzen_postgres::schema::replication;
use batzen_postgres::{PgError, Target};
use batzen_service::storage::StoreConfig;
use batzen_signer::channel::{self, StaticKeyError};

use super::follow::SourceOptions;
use super::replica::ReplicaOptions;
use crate::checks::CheckConfig;

/// The least time between two comparisons.
pub(crate) const BREATH: Duration = Duration::from_secs(2);
/// The time between comparisons, unless the configuration says otherwise.
const COMPARE_INTERVAL_DEFAULT: batzen_protocol::Duration = batzen_protocol::Duration::from_secs(300);
/// The least time between two checks of all rows that nobody asked for.
const CHECK_ALL_BREATH: batzen_protocol::Duration = batzen_protocol::Duration::from_secs(1);

/// Options for following an exchange.
#[derive(Debug, Clone)]
pub struct FollowConfig {
    /// Where the exchange's changes come from.
    pub(crate) source: SourceConfig,
    /// The copy.
    pub store: StoreConfig,
    /// The exchange and its accounts.
    pub(crate) checks: CheckConfig,
    /// Interval at which bank and merchants are asked.
    pub(crate) compare_interval: Duration,
    /// Interval at which all rows are checked again; `None`: when somebody asks for it.
    pub(crate) check_all_interval: Option<batzen_protocol::Duration>,
    /// Number of threads that verify; 0: one for each core.
    pub(crate) threads: usize,
}

/// Why it cannot follow.
#[derive(Debug, thiserror::Error)]
pub enum FollowConfigError {
    /// An option.
    #[error(transparent)]
    Option(#[from] ConfigError),
    /// An option of `[auditor-feed]`.
    #[error(transparent)]
    Feed(#[from] batzen_signer::config::ConfigError),
}

impl FollowConfig {
    /// Reads `[auditor-feed]` and what the checks need. `None` without an `[auditor-feed]`, or with `FOLLOW = NO`.
    ///
    /// # Errors
    /// The first option that is missing or invalid.
    pub fn from_ini(ini: &Config) -> Result<Option<Self>, FollowConfigError> {
        if !ini.has_section("auditor-feed") || !ini.get_or("auditor-feed", "FOLLOW", true)? {
            return Ok(None);
        }
        let interval: batzen_protocol::Duration =
            ini.get_or("auditor-feed", "COMPARE_INTERVAL", COMPARE_INTERVAL_DEFAULT)?;
        Ok(Some(Self {
            source: SourceConfig::from_ini(ini)?,
            store: copy_store(ini)?,
            checks: CheckConfig::from_ini(ini, None)?,
            compare_interval: Duration::from_micros(interval.as_micros()).max(BREATH),
            check_all_interval: ini
                .get::<batzen_protocol::Duration>("auditor-feed", "CHECK_ALL_INTERVAL")?
                .map(|interval| interval.max(CHECK_ALL_BREATH)),
            threads: ini
                .number_in("auditor-feed", "THREADS", 1..=1_024)?
                .map_or(0, |threads| usize::try_from(threads).expect("it is small")),
        }))
    }
}

/// Where the auditor's copy is: where `[auditor-feed] DB` says, or otherwise `[auditor] DB`.
///
/// # Errors
/// An option that is invalid.
pub fn copy_store(ini: &Config) -> Result<StoreConfig, FollowConfigError> {
    let is_database = |section| ini.choice(section, "DB", &[("embedded", false), ("postgres", true)]);
    let chosen = match is_database("auditor-feed")? {
        None => is_database("auditor")?,
        chosen => chosen,
    };
    if chosen.unwrap_or(false) {
        return Ok(StoreConfig::postgres(ini.require("auditordb-postgres", "CONFIG")?));
    }
    let dir = StoreConfig::embedded(ClientConfig::store_dir(ini)?);
    Ok(dir.with_index_memory(ini, "auditor")?)
}

/// Where the exchange's changes come from.
#[derive(Clone)]
pub enum SourceConfig {
    /// A serial stream.
    Stream(ClientConfig),
    /// A database.
    Database {
        /// Its address; may contain a password.
        url: String,
        /// The schema of its tables.
        schema: String,
        /// The replication slot.
        slot: String,
    },
}

impl std::fmt::Debug for SourceConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name())
    }
}

impl SourceConfig {
    /// Reads `[auditor-feed]`: `EXCHANGE` is the address of a serial stream, or of a PostgreSQL database.
    ///
    /// # Errors
    /// The first option that is missing or invalid.
    pub fn from_ini(ini: &Config) -> Result<Self, FollowConfigError> {
        let url = ini.get::<String>("auditor-feed", "EXCHANGE")?.filter(|url| url.starts_with("postgres"));
        let Some(url) = url else { return Ok(Self::Stream(ClientConfig::from_ini(ini)?)) };
        let schema = batzen_service::storage::EXCHANGE.schema.to_owned();
        let slot = ini.get::<String>("auditor-feed", "SLOT")?;
        let slot = slot.unwrap_or_else(|| replication::publication(&schema));
        let is_name =
            |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        if slot.is_empty() || slot.len() > 63 || !is_name(&slot) {
            return Err(ini
                .invalid("auditor-feed", "SLOT", "lower-case letters, digits and underscores")
                .into());
        }
        Ok(Self::Database { url, schema, slot })
    }

    /// Its name in messages.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Stream(client) => client.exchange.to_string(),
            // The address may contain a password.
            Self::Database { slot, .. } => format!("the exchange's database (slot {slot})"),
        }
    }

    /// The options to follow it.
    ///
    /// # Errors
    /// If the key cannot be read, or the address is invalid.
    pub fn options(&self, clock: batzen_feed::Clock) -> Result<SourceOptions, SourceError> {
        Ok(match self {
            Self::Stream(client) => SourceOptions::Stream(FollowerOptions {
                exchange: client.exchange.clone(),
                exchange_key: client.exchange_key,
                key: channel::load_key(&client.key_file)?,
                clock,
            }),
            Self::Database { url, schema, slot } => SourceOptions::Database(ReplicaOptions {
                target: Target::parse(url)?,
                schema: schema.clone(),
                slot: slot.clone(),
                clock,
                rows_at_once: None,
            }),
        })
    }
}

/// Why a source cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The auditor's key.
    #[error(transparent)]
    Key(#[from] StaticKeyError),
    /// The database's address.
    #[error("[auditor-feed] EXCHANGE: {0}")]
    Address(#[from] PgError),
}
