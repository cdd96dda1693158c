//! The configuration of an auditor.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use batzen_config::{Config, ConfigError, Expected};
use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey};
use batzen_engine::Clock;
use batzen_http::{OwnNames, TrustedProxies};
use batzen_protocol::limits::URL_BYTES_MAX;
use batzen_protocol::{Currency, Timestamp};
use batzen_service::PagesAddress;
use batzen_service::storage::StoreConfig;
use batzen_signer::files::KeyFileError;
use batzen_signer::load_or_create_eddsa;

use crate::live::FollowConfig;

pub use batzen_service::ListenConfig;

/// The section of the auditor.
const AUDITOR: &str = "auditor";
/// The section of the audited exchange.
const EXCHANGE: &str = "exchange";
/// The directory of the service's rows in [`AuditorConfig::data_dir`].
const SERVICE_PART: &str = "service";
/// The local socket of the running service, in the same directory.
const SOCKET: &str = "service.sock";

/// The options that an auditor's programs read, by section.
pub const KNOWN_OPTIONS: &[(&str, &[&str])] = &[
    ("taler", &["CURRENCY"]),
    (
        AUDITOR,
        &[
            "BASE_URL",
            "PUBLIC_KEY",
            "AUDITOR_PRIV_FILE",
            "DB",
            "DATA_DIR",
            "SERVE",
            "PORT",
            "BIND_TO",
            "UNIXPATH",
            "UNIXPATH_MODE",
            "TRUSTED_PROXIES",
            "HOSTNAMES",
            "METRICS",
            "TINY_AMOUNT",
        ],
    ),
    ("auditordb-embedded", &["INDEX_MEMORY_MIB"]),
    ("auditordb-postgres", &["CONFIG"]),
    (EXCHANGE, &["MASTER_PUBLIC_KEY", "BASE_URL", "DB"]),
    ("exchangedb-postgres", &["CONFIG"]),
];

/// Why the auditor's key is not known.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read or written.
    #[error(transparent)]
    File(#[from] KeyFileError),
    /// There is no key yet.
    #[error("{0}: there is no auditor's key here; create it with `setup`, or set [auditor] PUBLIC_KEY")]
    Missing(PathBuf),
    /// The configuration names another key.
    #[error("[auditor] PUBLIC_KEY is not the public half of the key in {0}")]
    Other(PathBuf),
}

/// The configuration of an auditor.
///
/// | option of `[auditor]` | default | |
/// |---|---|---|
/// | `BASE_URL` | – | where merchants reach the service; part of what `offline sign` signs |
/// | `PUBLIC_KEY` | from the private key | the auditor's key |
/// | `AUDITOR_PRIV_FILE` | `$TALER_DATA_HOME/auditor/offline-keys/auditor.priv` | the private key, of the offline tool only |
/// | `DB` | `embedded` | `postgres`: the rows are in the database that `[auditordb-postgres] CONFIG` names; so is the copy of the exchange, unless `[auditor-feed] DB` says otherwise |
/// | `DATA_DIR` | `$TALER_DATA_HOME/auditor/` | directory of embedded stores |
/// | `SERVE` | `tcp` | `unix`: a local socket |
/// | `PORT` | 8083 | |
/// | `BIND_TO` | all addresses | address to listen on |
/// | `UNIXPATH`, `UNIXPATH_MODE` | –, 660 | the local socket and its permissions |
/// | `TRUSTED_PROXIES` | none | proxies whose `X-Forwarded-For` names the client |
/// | `HOSTNAMES` | none | names under which clients reach the auditor, beside that in `BASE_URL` |
/// | `METRICS` | none | `ADDRESS:PORT` of the process's own `/metrics`, `/health`, `/ready` and `/dashboard` |
///
/// `[exchange] MASTER_PUBLIC_KEY` and `BASE_URL` name the audited exchange. With `[exchange] DB = postgres`,
/// `[exchangedb-postgres] CONFIG` is a database with its tables or a copy of them, in which the service looks up
/// revoked signing keys.
#[derive(Clone)]
pub struct AuditorConfig {
    /// The currency of all amounts.
    pub currency: Currency,
    /// The base URL, with a final slash.
    pub base_url: Option<String>,
    /// The auditor's key, if it is configured.
    pub public_key: Option<EddsaPublicKey>,
    /// The file of the private key.
    pub priv_file: PathBuf,
    /// Where the service listens.
    pub place: ListenConfig,
    /// The directory of everything that is not in a database.
    pub data_dir: PathBuf,
    /// Storage of the rows: a database, or the directory above with a subdirectory for each part.
    pub store: StoreConfig,
    /// The master key of the exchange.
    pub master_pub: Option<EddsaPublicKey>,
    /// The base URL of the exchange.
    pub exchange_url: Option<String>,
    /// The address of the database with the exchange's tables, or a copy of them. May contain a password.
    pub exchange_database: Option<String>,
    /// The source that the service follows, if it follows the exchange.
    pub follow: Option<FollowConfig>,
    /// Trusted proxies, whose `X-Forwarded-For` names the client.
    pub trusted_proxies: TrustedProxies,
    /// Names under which clients reach the auditor, beside that in `base_url`.
    pub hostnames: OwnNames,
    /// The address of the process's own pages, if they have one.
    pub metrics: Option<PagesAddress>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

impl fmt::Debug for AuditorConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuditorConfig")
            .field("currency", &self.currency)
            .field("base_url", &self.base_url)
            .field("place", &self.place)
            .field("store", &format_args!("{}", self.store))
            .finish_non_exhaustive()
    }
}

impl AuditorConfig {
    /// An auditor on port 8083 of this machine with its data below a directory.
    #[must_use]
    pub fn new(currency: Currency, data_dir: &Path) -> Self {
        Self {
            currency,
            base_url: None,
            public_key: None,
            priv_file: data_dir.join("offline-keys").join("auditor.priv"),
            place: ListenConfig::Tcp { host: Some("127.0.0.1".to_owned()), port: 8083 },
            data_dir: data_dir.to_owned(),
            store: StoreConfig::embedded(data_dir.to_owned()),
            master_pub: None,
            exchange_url: None,
            exchange_database: None,
            follow: None,
            trusted_proxies: TrustedProxies::default(),
            hostnames: OwnNames::default(),
            metrics: None,
            clock: Arc::new(|| Timestamp::from_system_time(SystemTime::now())),
        }
    }

    /// Reads `[taler] CURRENCY`, `[auditor]`, and what `[exchange]` says about the audited exchange.
    ///
    /// # Errors
    /// [`ConfigError`] with the place in the file.
    pub fn from_config(config: &Config) -> Result<Self, ConfigError> {
        let currency: String = config.require("taler", "CURRENCY")?;
        let currency: Currency = currency
            .parse()
            .map_err(|_| config.invalid("taler", "CURRENCY", "a currency of up to 11 letters"))?;
        let data_dir = path_or(config, "DATA_DIR", "${TALER_DATA_HOME}/auditor")?;
        let is_local = config.choice(AUDITOR, "SERVE", &[("tcp", false), ("unix", true)])?.unwrap_or(false);
        let place = if is_local {
            ListenConfig::Unix {
                path: config.require(AUDITOR, "UNIXPATH")?,
                mode: batzen_service::socket_mode(config, AUDITOR)?,
            }
        } else {
            ListenConfig::Tcp {
                host: config.get(AUDITOR, "BIND_TO")?,
                port: config.get_or(AUDITOR, "PORT", 8083)?,
            }
        };
        let (trusted_proxies, hostnames) = batzen_service::front(config, AUDITOR)?;
        let store = match StoreConfig::database_of(config, AUDITOR)? {
            Some(database) => database,
            None => StoreConfig::embedded(data_dir.clone()).with_index_memory(config, AUDITOR)?,
        };
        let priv_file = "${TALER_DATA_HOME}/auditor/offline-keys/auditor.priv";
        Ok(Self {
            base_url: base_url(config, AUDITOR)?,
            public_key: key(config, AUDITOR, "PUBLIC_KEY")?,
            priv_file: path_or(config, "AUDITOR_PRIV_FILE", priv_file)?,
            place,
            store,
            master_pub: key(config, EXCHANGE, "MASTER_PUBLIC_KEY")?,
            exchange_url: base_url(config, EXCHANGE)?,
            exchange_database: match StoreConfig::database_of(config, EXCHANGE)? {
                Some(StoreConfig::Postgres { url, .. }) => Some(url),
                _ => None,
            },
            trusted_proxies,
            hostnames,
            metrics: PagesAddress::of(config, AUDITOR, "METRICS")?,
            ..Self::new(currency, &data_dir)
        })
    }

    /// Storage of the service's rows.
    #[must_use]
    pub fn service_store(&self) -> StoreConfig {
        self.store.part(SERVICE_PART)
    }

    /// The socket of the running service, for programs of the same user.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.data_dir.join(SOCKET)
    }

    /// The auditor's key: as configured, or the public half of the private key.
    ///
    /// # Errors
    /// [`KeyError`] if there is neither, or they do not match.
    pub fn auditor_pub(&self) -> Result<EddsaPublicKey, KeyError> {
        match self.public_key {
            // The private key may be on another machine.
            Some(key) if !self.priv_file.exists() => Ok(key),
            _ => self.private_key().map(|key| key.public_key()),
        }
    }

    /// The auditor's private key, which must exist.
    ///
    /// # Errors
    /// [`KeyError`] if there is none, or the configuration names another one.
    pub fn private_key(&self) -> Result<EddsaPrivateKey, KeyError> {
        if !self.priv_file.exists() {
            return Err(KeyError::Missing(self.priv_file.clone()));
        }
        self.create_key()
    }

    /// The auditor's private key, which is created if it does not exist.
    ///
    /// # Errors
    /// [`KeyError`] if the file cannot be read or written, or the configuration names another key.
    pub fn create_key(&self) -> Result<EddsaPrivateKey, KeyError> {
        // A new key would not be the configured one.
        if self.public_key.is_some() && !self.priv_file.exists() {
            return Err(KeyError::Other(self.priv_file.clone()));
        }
        let key = load_or_create_eddsa(&self.priv_file)?;
        match self.public_key {
            Some(expected) if expected != key.public_key() => Err(KeyError::Other(self.priv_file.clone())),
            _ => Ok(key),
        }
    }
}

/// Returns whether this is the base URL of a service: what is asked of it is appended, so it must not end in a query or
/// in the middle of a name.
#[must_use]
pub fn is_base_url(url: &str) -> bool {
    (url.starts_with("http://") || url.starts_with("https://"))
        && url.ends_with('/')
        && url.len() <= URL_BYTES_MAX
        && !url.contains(['?', '#'])
        && !url.contains(char::is_whitespace)
}

fn path_or(config: &Config, option: &str, default: &str) -> Result<PathBuf, ConfigError> {
    if let Some(path) = config.get(AUDITOR, option)? {
        return Ok(path);
    }
    let expanded = config.expand(default).map(PathBuf::from);
    expanded.map_err(|_| config.missing(AUDITOR, option, "a path, or [paths] TALER_DATA_HOME"))
}

fn base_url(config: &Config, section: &str) -> Result<Option<String>, ConfigError> {
    config.get_with(section, "BASE_URL", |text| {
        let expected = "a URL that starts with http:// or https:// and ends with /";
        if is_base_url(text) { Ok(text.to_owned()) } else { Err(Expected::new(expected)) }
    })
}

fn key(config: &Config, section: &str, option: &str) -> Result<Option<EddsaPublicKey>, ConfigError> {
    config.get_with(section, option, |text| {
        text.parse().map_err(|_| Expected::new("a public key (52 characters of base32)"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<AuditorConfig, ConfigError> {
        let paths = "[paths]\nTALER_DATA_HOME = /data\n[taler]\nCURRENCY = EUR\n";
        AuditorConfig::from_config(&Config::parse(&format!("{paths}{text}")).expect("a configuration"))
    }

    #[test]
    fn defaults() {
        let config = read("").unwrap();
        assert_eq!(config.place, ListenConfig::Tcp { host: None, port: 8083 });
        assert_eq!(config.service_store().to_string(), "/data/auditor/service");
        assert_eq!(config.socket(), Path::new("/data/auditor/service.sock"));
        assert_eq!(config.priv_file, Path::new("/data/auditor/offline-keys/auditor.priv"));
        assert!(config.exchange_database.is_none());
    }

    #[test]
    fn options_are_read() {
        let key = "0".repeat(52);
        let config = read(&format!(
            "[auditor]\nBASE_URL = https://auditor.example/\nPUBLIC_KEY = {key}\nSERVE = unix\n\
             UNIXPATH = /run/auditor.sock\nUNIXPATH_MODE = 600\nDB = postgres\n[auditordb-postgres]\n\
             CONFIG = postgres:///audit\n[exchange]\nMASTER_PUBLIC_KEY = {key}\nDB = postgres\n\
             [exchangedb-postgres]\nCONFIG = postgres:///copy\n"
        ));
        let config = config.unwrap();
        assert_eq!(config.place, ListenConfig::Unix { path: "/run/auditor.sock".into(), mode: 0o600 });
        assert_eq!(config.service_store(), StoreConfig::postgres("postgres:///audit".into()));
        assert_eq!(config.exchange_database, Some("postgres:///copy".to_owned()));
        assert_eq!(config.master_pub, config.public_key);
        for wrong in [
            "[auditor]\nBASE_URL = https://auditor.example\n",
            "[auditor]\nBASE_URL = ftp://auditor.example/\n",
            "[auditor]\nPUBLIC_KEY = abc\n",
            "[auditor]\nSERVE = unix\n",
            "[auditor]\nSERVE = pigeon\n",
            "[auditor]\nSERVE = unix\nUNIXPATH = /x\nUNIXPATH_MODE = 999\n",
            "[auditor]\nDB = paper\n",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_copy_is_where_the_rows_are_unless_it_is_elsewhere() {
        let copy = |text: &str| {
            let ini = Config::parse(&format!("[paths]\nTALER_DATA_HOME = /data\n{text}")).unwrap();
            crate::live::copy_store(&ini).map(|place| place.to_string())
        };
        let database = "[auditordb-postgres]\nCONFIG = postgres:///audit\n";
        let directory = "/data/auditor/store";
        assert_eq!(copy("").unwrap(), directory);
        assert_eq!(copy(database).unwrap(), directory);
        for rows in ["[auditor]\nDB = postgres\n", "[auditor-feed]\nDB = postgres\n"] {
            assert_eq!(copy(&format!("{rows}{database}")).unwrap(), "postgres:///audit");
            assert!(copy(rows).is_err(), "no address");
        }
        let both = format!("[auditor]\nDB = postgres\n[auditor-feed]\nDB = embedded\n{database}");
        assert_eq!(copy(&both).unwrap(), directory);
        assert!(copy("[auditor-feed]\nDB = paper\n").is_err());
    }

    #[test]
    fn the_configured_key_must_match_the_private_one() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = AuditorConfig::new("EUR".parse().unwrap(), dir.path());
        assert!(matches!(config.auditor_pub(), Err(KeyError::Missing(_))));
        let created = config.create_key().unwrap().public_key();
        assert_eq!(config.auditor_pub().unwrap(), created);
        config.public_key = Some(created);
        assert_eq!(config.auditor_pub().unwrap(), created);
        config.public_key = Some(EddsaPublicKey::from_bytes([1; 32]));
        assert!(matches!(config.auditor_pub(), Err(KeyError::Other(_))));
        // Without the private key, the configured one counts, and none is created that does not match it.
        config.priv_file = dir.path().join("elsewhere").join("auditor.priv");
        assert_eq!(config.auditor_pub().unwrap(), EddsaPublicKey::from_bytes([1; 32]));
        assert!(matches!(config.create_key(), Err(KeyError::Other(_))));
        assert!(!config.priv_file.exists());
    }
}
