//! Configuration of both sides: the exchange's `[exchange-feed]` and the auditor's `[auditor-feed]`.

use std::path::PathBuf;

use batzen_config::{Config, Expected};
use batzen_crypto::EddsaPublicKey;
use batzen_signer::address::Address;
use batzen_signer::config::{ConfigError, addresses, key, path_or};

/// Volume of changes that is kept for an unconnected auditor, unless the configuration says otherwise, in
/// MiB.
pub(crate) const HOLD_MIB_DEFAULT: u64 = 16 << 10;
/// Number of auditors that an exchange may have.
pub(crate) const AUDITORS_MAX: usize = 8;

const SERVER: &str = "exchange-feed";
const CLIENT: &str = "auditor-feed";

/// Known options. Others are reported as misspelt.
pub const KNOWN: &[(&str, &[&str])] = &[
    (SERVER, &["LISTEN", "KEY_FILE", "AUDITORS", "HOLD_MIB"]),
    (
        CLIENT,
        &[
            "EXCHANGE",
            "EXCHANGE_KEY",
            "KEY_FILE",
            "FOLLOW",
            "COMPARE_INTERVAL",
            "CHECK_ALL_INTERVAL",
            "THREADS",
            "SLOT",
            "DB",
        ],
    ),
    ("auditordb-embedded", &["DIR", "INDEX_MEMORY_MIB"]),
];

/// Options for shipping an exchange's changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// Addresses to listen on.
    pub listen: Vec<Address>,
    /// File of the exchange's static key for this.
    pub key_file: PathBuf,
    /// The keys of the auditors.
    pub auditors: Vec<EddsaPublicKey>,
    /// The most bytes of journal that are kept for each auditor without a connection.
    pub hold_bytes_max: u64,
}

/// Where an auditor finds its exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// The exchange's address.
    pub exchange: Address,
    /// The exchange's key.
    pub exchange_key: EddsaPublicKey,
    /// File of the auditor's static key.
    pub key_file: PathBuf,
}

impl ServerConfig {
    /// Reads `[exchange-feed]`. `None` without `LISTEN`: the exchange ships nothing.
    ///
    /// # Errors
    /// The first option that is missing or invalid, with its place.
    pub fn from_ini(ini: &Config) -> Result<Option<Self>, ConfigError> {
        let Some(listen) = addresses(ini, SERVER, "LISTEN")? else { return Ok(None) };
        const EXPECTED: &str =
            "up to eight public keys of auditors (52 characters of base32 each), separated by commas";
        let read = |text: &str| {
            let parts = text.split([',', ' ', '\t', '\n']).filter(|part| !part.is_empty());
            let keys = parts.map(str::parse).collect::<Result<Vec<EddsaPublicKey>, _>>();
            let keys = keys.ok().filter(|keys| (1..=AUDITORS_MAX).contains(&keys.len()));
            keys.ok_or_else(|| Expected::new(EXPECTED))
        };
        let auditors = ini.get_with(SERVER, "AUDITORS", read)?;
        let hold_mib = ini.number_in(SERVER, "HOLD_MIB", 64..=1 << 24)?.unwrap_or(HOLD_MIB_DEFAULT);
        Ok(Some(Self {
            listen,
            key_file: path_or(ini, SERVER, "KEY_FILE", "${TALER_DATA_HOME}/exchange-httpd/feed.key")?,
            auditors: auditors.ok_or_else(|| ini.missing(SERVER, "AUDITORS", EXPECTED))?,
            hold_bytes_max: hold_mib << 20,
        }))
    }
}

impl ClientConfig {
    /// Reads `[auditor-feed]`.
    ///
    /// # Errors
    /// The first option that is missing or invalid, with its place.
    pub fn from_ini(ini: &Config) -> Result<Self, ConfigError> {
        let exchange = addresses(ini, CLIENT, "EXCHANGE")?.unwrap_or_default();
        let [exchange] = exchange.as_slice() else {
            return Err(ConfigError::invalid(
                CLIENT,
                "EXCHANGE must be one address: tcp://host:port or unix:///path",
            ));
        };
        Ok(Self {
            exchange: exchange.clone(),
            exchange_key: key(ini, CLIENT, "EXCHANGE_KEY")?,
            key_file: path_or(ini, CLIENT, "KEY_FILE", "${TALER_DATA_HOME}/auditor/feed.key")?,
        })
    }

    /// Where the auditor's rows are, unless it has them elsewhere.
    ///
    /// # Errors
    /// An option that is invalid.
    pub fn store_dir(ini: &Config) -> Result<PathBuf, ConfigError> {
        path_or(ini, "auditordb-embedded", "DIR", "${TALER_DATA_HOME}/auditor/store")
    }
}

#[cfg(test)]
mod tests {
    use batzen_crypto::EddsaPrivateKey;

    use super::*;

    #[test]
    fn both_sides_are_configured() {
        let keys: Vec<String> =
            (0..9).map(|_| EddsaPrivateKey::generate().public_key().to_string()).collect();
        let server = |text: &str| {
            let ini =
                Config::parse(&format!("[paths]\nTALER_DATA_HOME = /d\n[exchange-feed]\n{text}")).unwrap();
            assert_eq!(ini.unknown_options(KNOWN), []);
            ServerConfig::from_ini(&ini)
        };
        assert_eq!(server("").unwrap(), None);
        let config =
            server(&format!("LISTEN = tcp://[::]:7000\nAUDITORS = {}, {}\n", keys[0], keys[1])).unwrap();
        let config = config.unwrap();
        assert_eq!((config.listen.len(), config.auditors.len()), (1, 2));
        assert_eq!(config.key_file, PathBuf::from("/d/exchange-httpd/feed.key"));
        assert_eq!(config.hold_bytes_max, HOLD_MIB_DEFAULT << 20);
        for wrong in [
            "LISTEN = tcp://[::]:7000\n".to_owned(),
            format!("LISTEN = http://a\nAUDITORS = {}\n", keys[0]),
            format!("LISTEN = tcp://a:1\nAUDITORS = {}\n", keys.join(",")),
            "LISTEN = tcp://a:1\nAUDITORS = me\n".to_owned(),
            format!("LISTEN = tcp://a:1\nAUDITORS = {}\nHOLD_MIB = 1\n", keys[0]),
        ] {
            assert!(server(&wrong).is_err(), "{wrong}");
        }
        let client = |text: &str| {
            let ini =
                Config::parse(&format!("[paths]\nTALER_DATA_HOME = /d\n[auditor-feed]\n{text}")).unwrap();
            assert_eq!(ini.unknown_options(KNOWN), []);
            assert_eq!(ClientConfig::store_dir(&ini).unwrap(), PathBuf::from("/d/auditor/store"));
            ClientConfig::from_ini(&ini)
        };
        let config = client(&format!("EXCHANGE = unix:///s\nEXCHANGE_KEY = {}\n", keys[0])).unwrap();
        assert_eq!(config.key_file, PathBuf::from("/d/auditor/feed.key"));
        for wrong in [
            "",
            "EXCHANGE = tcp://a:1\n",
            "EXCHANGE = tcp://a:1, tcp://b:1\n",
            "EXCHANGE = tcp://a:1\nEXCHANGE_KEY = x\n",
        ] {
            assert!(client(wrong).is_err(), "{wrong}");
        }
    }
}
