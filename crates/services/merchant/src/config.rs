//! The configuration of a merchant backend.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use batzen_config::{Config, ConfigError, Expected, Origin};
use batzen_crypto::EddsaPublicKey;
use batzen_engine::Clock;
use batzen_http::{Networks, OwnNames, TrustedProxies};
use batzen_protocol::api::merchant::ContractAuditor;
use batzen_protocol::{Currency, Timestamp};
use batzen_service::storage::StoreConfig;
use batzen_service::{PagesAddress, SOCKET_MODE};

use crate::exchanges::is_base_url;

pub use batzen_service::ListenConfig;

const EXCHANGE_PREFIX: &str = "merchant-exchange-";
const AUDITOR_PREFIX: &str = "merchant-auditor-";

/// The options that a backend reads, by section.
pub const KNOWN_OPTIONS: &[(&str, &[&str])] = &[
    ("taler", &["CURRENCY"]),
    (
        "merchant",
        &[
            "SERVE",
            "PORT",
            "BIND_TO",
            "UNIXPATH",
            "DB",
            "DATA_DIR",
            "TRUSTED_PROXIES",
            "HOSTNAMES",
            "METRICS",
            "DEPOSIT_CONFIRMATION_SHARE",
            "WEBHOOK_NETWORKS",
            "EXCHANGE_NETWORKS",
            // Of other backends.
            "KEYFILE",
        ],
    ),
    ("merchantdb-embedded", &["INDEX_MEMORY_MIB"]),
    ("merchantdb-postgres", &["CONFIG"]),
    ("merchant-exchange-*", &["EXCHANGE_BASE_URL", "MASTER_KEY", "CURRENCY"]),
    ("merchant-auditor-*", &["AUDITOR_BASE_URL", "AUDITOR_KEY", "CURRENCY"]),
];

/// An exchange whose coins the shops accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedExchange {
    /// Its base URL, with a final slash.
    pub url: String,
    /// Its master key. An exchange with this key is asked at this URL, whatever URL a wallet names.
    pub master_pub: EddsaPublicKey,
}

/// The share of the exchanges' confirmations that each auditor sees, from none to all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfirmationShare(u32);

impl ConfirmationShare {
    /// No confirmation.
    #[cfg(test)]
    pub(crate) const NONE: Self = Self(0);
    #[cfg(test)]
    pub(crate) const ALL: Self = Self(Self::WHOLE);
    /// One of sixteen.
    pub(crate) const DEFAULT: Self = Self(Self::WHOLE / 16);
    /// Hundredths of a percent.
    const WHOLE: u32 = 10_000;

    /// Returns whether the share contains the confirmation with this random number.
    #[must_use]
    pub(crate) const fn covers(self, random: u32) -> bool {
        // The remainder is even to one part in 400,000.
        random % Self::WHOLE < self.0
    }
}

impl std::str::FromStr for ConfirmationShare {
    type Err = Expected;

    /// A percentage with up to two decimals.
    fn from_str(text: &str) -> Result<Self, Expected> {
        let (whole, decimals) = text
            .trim_end_matches('%')
            .trim_end()
            .split_once('.')
            .unwrap_or((text.trim_end_matches('%').trim_end(), "0"));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
        let share = (is_number(whole) && whole.len() <= 3 && is_number(decimals) && decimals.len() <= 2)
            .then(|| {
                let number = |text: &str| text.parse::<u32>().expect("they are digits");
                number(whole) * 100 + number(decimals) * if decimals.len() == 1 { 10 } else { 1 }
            });
        let share = share.filter(|share| *share <= Self::WHOLE).map(Self);
        share.ok_or_else(|| Expected::new("a percentage from 0 to 100, with at most two decimals"))
    }
}

/// The configuration of a merchant backend.
///
/// | option of `[merchant]` | default | |
/// |---|---|---|
/// | `SERVE` | `tcp` | `unix`: a local socket |
/// | `PORT` | 9966 | |
/// | `BIND_TO` | all addresses | address to listen on |
/// | `UNIXPATH` | – | the local socket |
/// | `DB` | `embedded` | `postgres`: the rows are in the database that `[merchantdb-postgres] CONFIG` names |
/// | `[merchantdb-embedded] INDEX_MEMORY_MIB` | 1024 | memory for the index entries of an embedded store |
/// | `DATA_DIR` | `$TALER_DATA_HOME/merchant/` if `[paths]` sets it or `TALER_HOME` | directory of the store; otherwise all data is in memory only |
/// | `DEPOSIT_CONFIRMATION_SHARE` | 6.25 | the percentage of the exchanges' confirmations that each of their auditors sees |
/// | `TRUSTED_PROXIES` | none | proxies whose `X-Forwarded-For` names the client |
/// | `WEBHOOK_NETWORKS` | none | networks that are not public and to which web hooks may go, such as `10.1.0.0/16` |
/// | `EXCHANGE_NETWORKS` | none | networks that are not public, where exchanges and auditors that the configuration does not name may be |
/// | `HOSTNAMES` | none | names under which clients reach the backend, such as `shop.example` |
/// | `METRICS` | none | `ADDRESS:PORT` of the process's own `/metrics`, `/health`, `/ready` and `/dashboard` |
///
/// Each section `[merchant-exchange-*]` names an exchange with `EXCHANGE_BASE_URL`, `MASTER_KEY` and `CURRENCY`;
/// those of other currencies are ignored. Each section `[merchant-auditor-$NAME]` likewise names an auditor with
/// `AUDITOR_BASE_URL`, `AUDITOR_KEY` and `CURRENCY`: coins that it approves of are accepted of any exchange.
#[derive(Clone)]
pub struct MerchantConfig {
    /// The currency of all orders.
    pub currency: Currency,
    /// Where it listens.
    pub place: ListenConfig,
    /// Storage of the rows.
    pub store: StoreConfig,
    /// The exchanges whose coins are accepted.
    pub exchanges: Vec<TrustedExchange>,
    /// The auditors whose exchanges are accepted.
    pub auditors: Vec<ContractAuditor>,
    /// Share of the exchanges' confirmations that each auditor sees.
    pub confirmation_share: ConfirmationShare,
    /// Trusted proxies, whose `X-Forwarded-For` names the client.
    pub trusted_proxies: TrustedProxies,
    /// Networks inside to which web hooks may go.
    pub webhook_networks: Networks,
    /// Networks inside in which exchanges may be that wallets name and auditors vouch for.
    pub exchange_networks: Networks,
    /// Names under which clients reach the backend.
    pub hostnames: OwnNames,
    /// The address of the process's own pages, if they have one.
    pub metrics: Option<PagesAddress>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

impl fmt::Debug for MerchantConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MerchantConfig")
            .field("currency", &self.currency)
            .field("place", &self.place)
            .field("store", &format_args!("{}", self.store))
            .field("exchanges", &self.exchanges)
            .finish_non_exhaustive()
    }
}

impl MerchantConfig {
    /// A backend on port 9966 of this machine, in memory, that accepts no exchange.
    #[must_use]
    pub fn new(currency: Currency) -> Self {
        Self {
            currency,
            place: ListenConfig::Tcp { host: Some("127.0.0.1".to_owned()), port: 9966 },
            store: StoreConfig::Memory,
            exchanges: Vec::new(),
            auditors: Vec::new(),
            confirmation_share: ConfirmationShare::DEFAULT,
            trusted_proxies: TrustedProxies::default(),
            webhook_networks: Networks::default(),
            exchange_networks: Networks::default(),
            hostnames: OwnNames::default(),
            metrics: None,
            clock: Arc::new(|| Timestamp::from_system_time(SystemTime::now())),
        }
    }

    /// Reads `[taler] CURRENCY`, `[merchant]` and `[merchant-exchange-*]`.
    ///
    /// # Errors
    /// [`ConfigError`] with the place in the file.
    pub fn from_config(config: &Config) -> Result<Self, ConfigError> {
        const MERCHANT: &str = "merchant";
        let currency: String = config.require("taler", "CURRENCY")?;
        let currency: Currency = currency
            .parse()
            .map_err(|_| config.invalid("taler", "CURRENCY", "a currency of up to 11 letters"))?;
        let is_chosen = |option: &str| {
            let origin = config.raw("paths", option).map(|value| value.source.origin);
            origin.is_some_and(|origin| origin != Origin::Builtin)
        };
        let data_dir = match config.get::<PathBuf>(MERCHANT, "DATA_DIR")? {
            Some(dir) => Some(dir),
            // Only below a home directory that this set-up chose.
            None if is_chosen("TALER_HOME") || is_chosen("TALER_DATA_HOME") => {
                config.expand("${TALER_DATA_HOME}/merchant").ok().map(PathBuf::from)
            }
            None => None,
        };
        let place = match config.text(MERCHANT, "SERVE") {
            None | Some("tcp") => ListenConfig::Tcp {
                host: config.get(MERCHANT, "BIND_TO")?,
                port: config.get_or(MERCHANT, "PORT", 9966)?,
            },
            Some("unix") => {
                ListenConfig::Unix { path: config.require(MERCHANT, "UNIXPATH")?, mode: SOCKET_MODE }
            }
            Some(_) => return Err(config.invalid(MERCHANT, "SERVE", "tcp or unix")),
        };
        let networks = |option| -> Result<Networks, ConfigError> {
            let read = |text: &str| text.parse().map_err(|_| Expected::new(Networks::EXPECTED));
            Ok(config.get_with(MERCHANT, option, read)?.unwrap_or_default())
        };
        let (trusted_proxies, hostnames) = batzen_service::front(config, MERCHANT)?;
        let mut exchanges = Vec::new();
        for (section, _) in config.sections_with(&[EXCHANGE_PREFIX]) {
            if config.text(section, "CURRENCY").is_none_or(|text| text == currency.as_str()) {
                exchanges.push(trusted_exchange(config, section)?);
            }
        }
        let mut auditors = Vec::new();
        for (section, name) in config.sections_with(&[AUDITOR_PREFIX]) {
            if config.text(section, "CURRENCY").is_none_or(|text| text == currency.as_str()) {
                let auditor_pub = key_of(config, section, "AUDITOR_KEY", "the auditor's key")?;
                let url = url_of(config, section, "AUDITOR_BASE_URL")?;
                auditors.push(ContractAuditor { name: name.to_owned(), auditor_pub, url });
            }
        }
        Ok(Self {
            place,
            auditors,
            store: match StoreConfig::database_of(config, MERCHANT)? {
                Some(database) => database,
                None => StoreConfig::in_directory(data_dir).with_index_memory(config, MERCHANT)?,
            },
            exchanges,
            confirmation_share: config
                .get_with(MERCHANT, "DEPOSIT_CONFIRMATION_SHARE", str::parse)?
                .unwrap_or(ConfirmationShare::DEFAULT),
            trusted_proxies,
            hostnames,
            metrics: PagesAddress::of(config, MERCHANT, "METRICS")?,
            webhook_networks: networks("WEBHOOK_NETWORKS")?,
            exchange_networks: networks("EXCHANGE_NETWORKS")?,
            ..Self::new(currency)
        })
    }
}

fn url_of(config: &Config, section: &str, option: &str) -> Result<String, ConfigError> {
    let url: String = config.require(section, option)?;
    if is_base_url(&url) {
        return Ok(url);
    }
    let expected = "a URL that starts with http:// or https:// and ends with /";
    Err(config.invalid(section, option, expected))
}

fn key_of(config: &Config, section: &str, option: &str, what: &str) -> Result<EddsaPublicKey, ConfigError> {
    let key = config.get_with(section, option, |text| {
        text.parse().map_err(|_| Expected::new("a public key (52 characters of base32)"))
    })?;
    key.ok_or_else(|| config.missing(section, option, what))
}

fn trusted_exchange(config: &Config, section: &str) -> Result<TrustedExchange, ConfigError> {
    let url = url_of(config, section, "EXCHANGE_BASE_URL")?;
    let master_pub = key_of(config, section, "MASTER_KEY", "the exchange's master key")?;
    Ok(TrustedExchange { url, master_pub })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "2KF0WS3C35NE9A0FGYXR68H29HB5J7EMKR3TTSG19NBDZP7GZMQ0";

    fn read(text: &str) -> Result<MerchantConfig, ConfigError> {
        MerchantConfig::from_config(&Config::parse(text).unwrap())
    }

    #[test]
    fn reads_the_options() {
        let config = read(&format!(
            "[taler]\nCURRENCY = KUDOS\n[merchant]\nPORT = 9000\nBIND_TO = ::1\nDATA_DIR = /tmp/x\n\
             WEBHOOK_NETWORKS = 10.1.0.0/16\nEXCHANGE_NETWORKS = ::1\n\
             [merchant-exchange-one]\nEXCHANGE_BASE_URL = http://e/\nMASTER_KEY = {KEY}\nCURRENCY = KUDOS\n\
             [merchant-exchange-two]\nEXCHANGE_BASE_URL = http://f/\nMASTER_KEY = {KEY}\nCURRENCY = EUR\n\
             [merchant-auditor-a]\nAUDITOR_BASE_URL = http://a/\nAUDITOR_KEY = {KEY}\nCURRENCY = KUDOS\n\
             [merchant-auditor-b]\nAUDITOR_BASE_URL = http://b/\nAUDITOR_KEY = {KEY}\nCURRENCY = EUR\n"
        ))
        .unwrap();
        assert_eq!(config.place, ListenConfig::Tcp { host: Some("::1".to_owned()), port: 9000 });
        assert_eq!(config.store, StoreConfig::embedded(PathBuf::from("/tmp/x")));
        assert_eq!(config.webhook_networks, "10.1.0.0/16".parse().unwrap());
        assert_eq!(config.exchange_networks, "::1".parse().unwrap());
        assert_eq!(config.exchanges.len(), 1);
        assert_eq!(config.exchanges[0].url, "http://e/");
        let auditors: Vec<_> =
            config.auditors.iter().map(|auditor| (&*auditor.name, &*auditor.url)).collect();
        assert_eq!(auditors, [("a", "http://a/")]);
        let socket = read("[taler]\nCURRENCY = KUDOS\n[merchant]\nSERVE = unix\nUNIXPATH = /run/m.sock\n");
        let path = PathBuf::from("/run/m.sock");
        assert_eq!(socket.unwrap().place, ListenConfig::Unix { path, mode: SOCKET_MODE });
        for wrong in [
            "[merchant]\nDEPOSIT_CONFIRMATION_SHARE = most\n".to_owned(),
            "[merchant]\nSERVE = udp\n".to_owned(),
            "[merchant]\nWEBHOOK_NETWORKS = YES\n".to_owned(),
            "[merchant]\nEXCHANGE_NETWORKS = 10.0.0.0/33\n".to_owned(),
            "[merchant]\nSERVE = unix\n".to_owned(),
            format!("[merchant-exchange-x]\nEXCHANGE_BASE_URL = e\nMASTER_KEY = {KEY}\n"),
            "[merchant-exchange-x]\nEXCHANGE_BASE_URL = http://e/\nMASTER_KEY = x\n".to_owned(),
        ] {
            assert!(read(&format!("[taler]\nCURRENCY = KUDOS\n{wrong}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn shares_are_percentages() {
        let share = |text: &str| text.parse::<ConfirmationShare>();
        assert_eq!(share("0").unwrap(), ConfirmationShare::NONE);
        assert_eq!(share("6.25").unwrap(), ConfirmationShare::DEFAULT);
        assert_eq!(share("6.25 %").unwrap(), ConfirmationShare::DEFAULT);
        assert_eq!(share("100").unwrap(), ConfirmationShare::ALL);
        assert_eq!(share("100.00").unwrap(), ConfirmationShare::ALL);
        assert_eq!(share("12.5").unwrap(), ConfirmationShare(1_250));
        assert_eq!(share("0.01").unwrap(), ConfirmationShare(1));
        for wrong in ["", "-1", "100.01", "1000", "1.234", "1.", ".5", "all", "1e2", "+1"] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
        assert!(!ConfirmationShare::NONE.covers(0) && ConfirmationShare::ALL.covers(u32::MAX));
    }
}
