//! The configuration of a bank.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use batzen_config::{Config, ConfigError, Expected, Origin};
use batzen_engine::Clock;
use batzen_http::{OwnNames, TrustedProxies};
use batzen_ledger_service::net::LedgerAddress;
use batzen_protocol::{Amount, Currency, Money, Timestamp};
use batzen_service::PagesAddress;
use batzen_service::storage::StoreConfig;

use crate::names::{self, Hosts, IbanBank};
use crate::password::PasswordCost;
use crate::rules::Policy;

/// The host name without another choice.
const HOSTNAME: &str = "localhost";
/// The forms of a ledger address.
const LEDGERS: &str = "embedded, tcp://HOST:PORT, unix:///PATH or tigerbeetle://ADDRESS,ADDRESS";

/// The options that a bank reads, by section, or knows and ignores (`RAM_LIMIT`, `MAX_DEBT`, `MAX_DEBT_BANK`,
/// `SERVE` and `DATABASE` are options of other banks; set-ups that contain them expect overdrafts to work).
pub const KNOWN_OPTIONS: &[(&str, &[&str])] = &[
    ("taler", &["CURRENCY"]),
    ("bank", BANK_OPTIONS),
    ("bankdb-embedded", &["INDEX_MEMORY_MIB"]),
    ("bankdb-postgres", &["CONFIG"]),
];

const BANK_OPTIONS: &[&str] = &[
    "HTTP_PORT",
    "HOSTNAME",
    "OTHER_HOSTNAMES",
    "EXCHANGE_ACCOUNTS",
    "IBAN_BANK",
    "BIND_TO",
    "BASE_URL",
    "SUGGESTED_EXCHANGE",
    "SIGNUP_BONUS",
    "DATA_DIR",
    "DB",
    "DEBT_LIMIT",
    "LEDGER",
    "CHECK_PASSWORDS",
    "CREATE_ACCOUNTS",
    "ALLOW_ADD_INCOMING",
    "ALLOW_REPEATED_RESERVE_PUB",
    "DASHBOARD",
    "PASSWORD_MEMORY_KIB",
    "PASSWORD_PASSES",
    "TRUSTED_PROXIES",
    "HOSTNAMES",
    "METRICS",
    "RAM_LIMIT",
    "MAX_DEBT",
    "MAX_DEBT_BANK",
    "SERVE",
    "DATABASE",
    "NAME",
    "PLAY_MONEY",
];

/// The configuration of a bank. [`BankConfig::new`] is a test bank: any account, no passwords, no limits.
///
/// | option of `[bank]` | default | |
/// |---|---|---|
/// | `HTTP_PORT` | 8082 | |
/// | `HOSTNAME` | `localhost` | host name in payto and withdraw URIs; it does not follow `BIND_TO`, since it is part of the accounts' names |
/// | `OTHER_HOSTNAMES` | none | other host names of the bank in payto URIs that it gets, separated by blanks; besides `HOSTNAME`, that of `BASE_URL`, and `localhost` |
/// | `EXCHANGE_ACCOUNTS` | those whose credits are followed at the gateway | names of the accounts of exchanges, separated by blanks: they take only money with a reserve key |
/// | `IBAN_BANK` | none | country and bank code of the bank's IBANs, such as `DE50010517`: accounts whose names are such IBANs have `iban` URIs |
/// | `BIND_TO` | all addresses | address to listen on |
/// | `BASE_URL` | `http://HOSTNAME:PORT/`, or without `HOSTNAME` the address of `BIND_TO` if `localhost` does not lead there | base URL for clients, for instance behind a proxy |
/// | `SUGGESTED_EXCHANGE` | none | base URL of the exchange suggested to wallets |
/// | `SIGNUP_BONUS` | 0 | initial balance of a newly registered account |
/// | `DATA_DIR` | `$TALER_DATA_HOME/bank/` if `[paths]` sets it or `TALER_HOME` | directory of the store; otherwise all data is in memory only |
/// | `DB` | `embedded` | `postgres`: the rows are in the database that `[bankdb-postgres] CONFIG` names |
/// | `[bankdb-embedded] INDEX_MEMORY_MIB` | 1024 | memory for the index entries of an embedded store |
/// | `LEDGER` | `embedded` | the ledger with the money: in this process (beside the store, or in memory with it), or at an address such as `tcp://HOST:PORT` |
/// | `DEBT_LIMIT` | none | overdraft limit of every account |
/// | `CHECK_PASSWORDS` | NO | whether requests for an account need its password |
/// | `CREATE_ACCOUNTS` | NO with `CHECK_PASSWORDS`, else YES | whether transfers create the accounts that they name; not with `CHECK_PASSWORDS` |
/// | `ALLOW_ADD_INCOMING` | NO with `CHECK_PASSWORDS`, else YES | whether there is `admin/add-incoming`; not with `CHECK_PASSWORDS` |
/// | `PASSWORD_MEMORY_KIB`, `PASSWORD_PASSES` | 19456, 2 | cost of one password hash (Argon2id) |
/// | `ALLOW_REPEATED_RESERVE_PUB` | NO | whether several transfers may carry the same reserve key |
/// | `DASHBOARD` | YES | whether there is a page for people at `/dashboard` |
/// | `NAME` | `Bank` | what the page for customers calls the bank |
/// | `PLAY_MONEY` | YES | whether that page shows a notice about play money |
/// | `TRUSTED_PROXIES` | none | proxies whose `X-Forwarded-For` names the client: addresses, networks, `unix` |
/// | `HOSTNAMES` | none | further names under which clients reach the bank |
/// | `METRICS` | none | `ADDRESS:PORT` of the process's own `/metrics`, `/health`, `/ready` and `/dashboard` |
#[derive(Clone)]
pub struct BankConfig {
    /// The currency of all accounts.
    pub currency: Currency,
    /// The TCP port; 0 picks a free one.
    pub http_port: u16,
    /// The address to listen on. `None`: all addresses, IPv4 and IPv6.
    pub listen_host: Option<String>,
    /// The host name in payto and withdraw URIs.
    pub hostname: String,
    /// Other host names of the bank in payto URIs that it gets.
    pub other_hostnames: Vec<String>,
    /// The accounts of exchanges, which take only money with a reserve key. `None`: those whose credits somebody follows
    /// at the wire gateway.
    pub exchange_accounts: Option<BTreeSet<String>>,
    /// The IBANs that are accounts of this bank.
    pub iban_bank: Option<IbanBank>,
    /// Base URL for clients, with a final slash. `None`: it follows from `hostname` and `listen_host`.
    pub base_url: Option<String>,
    /// The exchange suggested to wallets.
    pub suggested_exchange: Option<String>,
    /// Initial balance of a newly registered account.
    pub signup_bonus: Money,
    /// Storage of the rows.
    pub store: StoreConfig,
    /// The ledger with the money. Embedded: in this process, durable beside the rows, or in memory with them.
    pub ledger: LedgerAddress,
    /// Overdraft limit of every account. `None`: unlimited.
    pub debt_limit: Option<Money>,
    /// Whether requests for an account need its name and password (HTTP basic authentication).
    pub check_passwords: bool,
    /// Whether transfers create missing accounts. Otherwise unknown accounts, and transfers from an account
    /// to itself, are refused.
    pub create_accounts: bool,
    /// Whether `admin/add-incoming` is served, which lets anybody move anybody's money.
    pub allow_add_incoming: bool,
    /// Whether several transfers may carry the same reserve key. Exchanges of the 0.9 generation lose the
    /// later ones.
    pub allow_repeated_reserve_pub: bool,
    /// Cost of one password hash.
    pub password_cost: PasswordCost,
    /// Whether `/dashboard` is served.
    pub dashboard: bool,
    /// The bank's name on its page for customers.
    pub name: String,
    /// Whether that page shows a notice about play money.
    pub play_money: bool,
    /// Trusted proxies, whose `X-Forwarded-For` names the client.
    pub trusted_proxies: TrustedProxies,
    /// Names under which clients reach the bank, beside `hostname` and that in `base_url`.
    pub hostnames: OwnNames,
    /// The address of the process's own pages, if they have one.
    pub metrics: Option<PagesAddress>,
    /// Most concurrent connections.
    pub max_connections: usize,
    /// Whether to close each connection after its first request.
    pub close_each_connection: bool,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

impl fmt::Debug for BankConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BankConfig")
            .field("currency", &self.currency)
            .field("http_port", &self.http_port)
            .field("hostname", &self.hostname)
            .field("store", &format_args!("{}", self.store))
            .finish_non_exhaustive()
    }
}

/// Why the options of section `[bank]` cannot be used together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// A base URL is malformed.
    #[error("[bank] {name} is {url:?}, but must begin with http:// or https:// and end with /")]
    BaseUrl {
        /// The option.
        name: &'static str,
        /// Its value.
        url: String,
    },
    /// An option would bypass the password checks.
    #[error("[bank] {option} = YES cannot be combined with CHECK_PASSWORDS = YES: {why}. Set {option} = NO")]
    Unprotected {
        /// The option.
        option: &'static str,
        /// The way in which it would bypass them.
        why: &'static str,
    },
    /// The host name is malformed.
    #[error("[bank] {option} is {name:?}, which is not a host name such as bank.example")]
    Hostname {
        /// The option.
        option: &'static str,
        /// The name.
        name: String,
    },
}

impl BankConfig {
    /// A test bank on port 8082 of this machine, in memory.
    pub fn new(currency: Currency) -> Self {
        Self {
            currency,
            http_port: 8082,
            listen_host: Some("127.0.0.1".to_owned()),
            hostname: HOSTNAME.to_owned(),
            other_hostnames: Vec::new(),
            exchange_accounts: None,
            iban_bank: None,
            base_url: None,
            suggested_exchange: None,
            signup_bonus: Money::ZERO,
            store: StoreConfig::Memory,
            ledger: LedgerAddress::Embedded,
            debt_limit: None,
            check_passwords: false,
            create_accounts: true,
            allow_add_incoming: true,
            allow_repeated_reserve_pub: false,
            password_cost: PasswordCost::DEFAULT,
            dashboard: true,
            name: "Bank".to_owned(),
            play_money: true,
            trusted_proxies: TrustedProxies::default(),
            hostnames: OwnNames::default(),
            metrics: None,
            max_connections: 65_536,
            close_each_connection: false,
            clock: Arc::new(|| Timestamp::from_system_time(SystemTime::now())),
        }
    }

    /// Reads `[taler] CURRENCY` and section `[bank]`.
    ///
    /// # Errors
    /// [`ConfigError`] with the place in the file.
    pub fn from_config(config: &Config) -> Result<Self, ConfigError> {
        const BANK: &str = "bank";
        let currency: String = config.require("taler", "CURRENCY")?;
        let currency: Currency = currency
            .parse()
            .map_err(|_| config.invalid("taler", "CURRENCY", "a currency of up to 11 letters"))?;
        let money = |option: &str| -> Result<Option<Money>, ConfigError> {
            let Some(amount) = config.get::<Amount>(BANK, option)? else { return Ok(None) };
            let wrong = |_| config.invalid(BANK, option, "an amount in the currency of section [taler]");
            amount.money_in(currency).map(Some).map_err(wrong)
        };
        let is_chosen = |option: &str| {
            let origin = config.raw("paths", option).map(|value| value.source.origin);
            origin.is_some_and(|origin| origin != Origin::Builtin)
        };
        let data_dir = match config.get::<PathBuf>(BANK, "DATA_DIR")? {
            Some(dir) => Some(dir),
            // Only below a home directory that this set-up chose: banks of unrelated set-ups must not share
            // the user's.
            None if is_chosen("TALER_HOME") || is_chosen("TALER_DATA_HOME") => {
                config.expand("${TALER_DATA_HOME}/bank").ok().map(PathBuf::from)
            }
            None => None,
        };
        let check_passwords = config.get_or(BANK, "CHECK_PASSWORDS", false)?;
        let (trusted_proxies, hostnames) = batzen_service::front(config, BANK)?;
        let memory_kib = config.get_or(BANK, "PASSWORD_MEMORY_KIB", 19_456)?;
        let passes = config.get_or(BANK, "PASSWORD_PASSES", 2)?;
        let password_cost = PasswordCost::new(memory_kib, passes).ok_or_else(|| {
            let wanted = "a multiple of 256 up to 65280, with PASSWORD_PASSES from 1 to 16";
            config.invalid(BANK, "PASSWORD_MEMORY_KIB", wanted)
        })?;
        Ok(Self {
            http_port: config.get_or(BANK, "HTTP_PORT", 8082)?,
            listen_host: config.get(BANK, "BIND_TO")?,
            hostname: config.get_or(BANK, "HOSTNAME", HOSTNAME.to_owned())?,
            other_hostnames: config
                .text(BANK, "OTHER_HOSTNAMES")
                .map(|names| names.split_whitespace().map(str::to_owned).collect())
                .unwrap_or_default(),
            exchange_accounts: config
                .text(BANK, "EXCHANGE_ACCOUNTS")
                .map(|names| names.split_whitespace().map(str::to_owned).collect()),
            iban_bank: config.get_with(BANK, "IBAN_BANK", |text| {
                text.parse().map_err(|_| Expected::new("a country and a bank code such as DE50010517"))
            })?,
            base_url: config.get(BANK, "BASE_URL")?,
            suggested_exchange: config.get(BANK, "SUGGESTED_EXCHANGE")?,
            signup_bonus: money("SIGNUP_BONUS")?.unwrap_or(Money::ZERO),
            store: match StoreConfig::database_of(config, BANK)? {
                Some(database) => database,
                None => StoreConfig::in_directory(data_dir).with_index_memory(config, BANK)?,
            },
            ledger: match config.text(BANK, "LEDGER") {
                Some(text) => text.parse().map_err(|_| config.invalid(BANK, "LEDGER", LEDGERS))?,
                None => LedgerAddress::Embedded,
            },
            debt_limit: money("DEBT_LIMIT")?,
            check_passwords,
            password_cost,
            create_accounts: config.get_or(BANK, "CREATE_ACCOUNTS", !check_passwords)?,
            allow_add_incoming: config.get_or(BANK, "ALLOW_ADD_INCOMING", !check_passwords)?,
            allow_repeated_reserve_pub: config.get_or(BANK, "ALLOW_REPEATED_RESERVE_PUB", false)?,
            dashboard: config.get_or(BANK, "DASHBOARD", true)?,
            name: config.get_or(BANK, "NAME", "Bank".to_owned())?,
            play_money: config.get_or(BANK, "PLAY_MONEY", true)?,
            trusted_proxies,
            hostnames,
            metrics: PagesAddress::of(config, BANK, "METRICS")?,
            ..Self::new(currency)
        })
    }

    /// The policy for the rules.
    pub(crate) fn policy(&self) -> Policy {
        Policy {
            signup_bonus: self.signup_bonus,
            debt_limit: self.debt_limit,
            create_accounts: self.create_accounts,
            allow_same_account: self.create_accounts,
            allow_repeated_reserve_pub: self.allow_repeated_reserve_pub,
            exchange_accounts: self.exchange_accounts.clone(),
            allow_known_account: !self.check_passwords,
        }
    }

    /// The base URL for clients of a bank that listens on this port.
    pub(crate) fn base_url(&self, port: u16) -> String {
        if let Some(url) = &self.base_url {
            return url.clone();
        }
        let chosen = Some(&self.hostname).filter(|name| *name != HOSTNAME);
        let host = chosen.cloned().unwrap_or_else(|| batzen_http::client_host(self.listen_host.as_deref()));
        format!("http://{host}:{port}/")
    }

    /// The hosts that mean this bank in payto URIs.
    pub(crate) fn hosts(&self, base_url: &str, port: u16) -> Hosts {
        let of_url = names::host_of_url(base_url);
        let others = self.other_hostnames.iter().chain(&of_url).chain(&self.listen_host);
        Hosts::new(others.chain([&self.hostname]).map(String::as_str), port)
    }

    /// Checks the options together.
    pub fn check(&self) -> Result<(), OptionsError> {
        let is_base = |url: &str| {
            let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
            rest.is_some_and(|rest| rest.len() > 1 && !rest.starts_with('/') && rest.ends_with('/'))
        };
        for (name, url) in [("BASE_URL", &self.base_url), ("SUGGESTED_EXCHANGE", &self.suggested_exchange)] {
            if let Some(url) = url
                && !is_base(url)
            {
                return Err(OptionsError::BaseUrl { name, url: url.clone() });
            }
        }
        for (option, is_on, why) in [
            ("ALLOW_ADD_INCOMING", self.allow_add_incoming, "anybody could move anybody's money"),
            ("CREATE_ACCOUNTS", self.create_accounts, "an account that a transfer creates has no password"),
        ] {
            if self.check_passwords && is_on {
                return Err(OptionsError::Unprotected { option, why });
            }
        }
        let host_ok = |b: u8| b.is_ascii_alphanumeric() || b"-.:".contains(&b);
        let hostnames = [("HOSTNAME", &self.hostname)];
        for (option, name) in
            hostnames.into_iter().chain(self.other_hostnames.iter().map(|name| ("OTHER_HOSTNAMES", name)))
        {
            if name.is_empty() || !name.bytes().all(host_ok) {
                return Err(OptionsError::Hostname { option, name: name.clone() });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_options() {
        let text = "[taler]\nCURRENCY = KUDOS\n[bank]\nHTTP_PORT = 9000\nHOSTNAME = bank.test\nRAM_LIMIT = 32\n\
                    OTHER_HOSTNAMES = old.test  bank:8082\nEXCHANGE_ACCOUNTS = two one\n\
                    IBAN_BANK = DE50010517\n\
                    MAX_DEBT = KUDOS:1\nSUGGESTED_EXCHANGE = http://localhost:8081/\nSIGNUP_BONUS = KUDOS:100\n\
                    DEBT_LIMIT = KUDOS:2.5\nCHECK_PASSWORDS = YES\nDATA_DIR = /tmp/x\nLEDGER = tcp://ledger.test:3000\n";
        let config = Config::parse(text).unwrap();
        let bank = BankConfig::from_config(&config).unwrap();
        assert_eq!(
            (bank.currency.as_str(), bank.http_port, bank.hostname.as_str()),
            ("KUDOS", 9000, "bank.test")
        );
        assert_eq!(bank.other_hostnames, ["old.test", "bank:8082"]);
        assert_eq!(bank.exchange_accounts, Some(["one".to_owned(), "two".to_owned()].into()));
        assert_eq!(bank.suggested_exchange.as_deref(), Some("http://localhost:8081/"));
        assert_eq!(bank.signup_bonus, "100".parse().unwrap());
        assert_eq!(bank.iban_bank.as_ref().map(ToString::to_string).as_deref(), Some("DE50010517"));
        assert_eq!(bank.debt_limit, Some("2.5".parse().unwrap()));
        assert_eq!(bank.store, StoreConfig::embedded(PathBuf::from("/tmp/x")));
        assert_eq!(bank.ledger, LedgerAddress::Tcp("ledger.test:3000".to_owned()));
        assert!(bank.check_passwords && !bank.allow_repeated_reserve_pub);
        assert!(!bank.create_accounts && !bank.allow_add_incoming, "not where passwords count");
        for option in ["CREATE_ACCOUNTS", "ALLOW_ADD_INCOMING"] {
            let config = Config::parse(&format!("{text}{option} = YES\n")).unwrap();
            let error = BankConfig::from_config(&config).unwrap().check().unwrap_err().to_string();
            assert!(error.contains(option) && error.contains("CHECK_PASSWORDS"), "{error}");
        }
        assert!(bank.listen_host.is_none() && bank.check().is_ok());
        for (paths, dir) in [
            ("", None),
            (
                "[paths]\nTALER_HOME = /srv/t\nTALER_DATA_HOME = ${TALER_HOME}/data\n",
                Some("/srv/t/data/bank"),
            ),
        ] {
            let config = Config::parse(&format!("[taler]\nCURRENCY = KUDOS\n{paths}")).unwrap();
            assert_eq!(
                BankConfig::from_config(&config).unwrap().store.dir(),
                dir.map(PathBuf::from).as_ref()
            );
        }
    }

    #[test]
    fn refuses_contradictory_options() {
        for text in [
            "[bank]\nHTTP_PORT = 1",
            "[taler]\nCURRENCY = \n",
            "[taler]\nCURRENCY = KUDOS\n[bank]\nSIGNUP_BONUS = EUR:1\n",
            "[taler]\nCURRENCY = KUDOS\n[bank]\nHTTP_PORT = 70000\n",
            "[taler]\nCURRENCY = KUDOS\n[bank]\nLEDGER = paper\n",
            "[taler]\nCURRENCY = KUDOS\n[bank]\nIBAN_BANK = 50010517\n",
            "[taler]\nCURRENCY = KUDOS\n[bank]\nPASSWORD_MEMORY_KIB = 1000\n",
        ] {
            assert!(BankConfig::from_config(&Config::parse(text).unwrap()).is_err(), "{text}");
        }
        let bank = BankConfig::new("KUDOS".parse().unwrap());
        assert!(BankConfig { suggested_exchange: Some("localhost".into()), ..bank.clone() }.check().is_err());
        assert!(BankConfig { base_url: Some("http://x".into()), ..bank.clone() }.check().is_err());
        assert!(BankConfig { other_hostnames: vec!["a/b".into()], ..bank.clone() }.check().is_err());
        assert!(BankConfig { hostname: "a b".into(), ..bank }.check().is_err());
    }

    #[test]
    fn the_base_url_leads_where_the_bank_listens() {
        let bank = |listen_host: Option<&str>| BankConfig {
            listen_host: listen_host.map(str::to_owned),
            ..BankConfig::new("KUDOS".parse().unwrap())
        };
        for (listen_host, expected) in [
            (None, "http://localhost:8082/"),
            (Some("0.0.0.0"), "http://localhost:8082/"),
            (Some("127.0.0.1"), "http://localhost:8082/"),
            (Some("::1"), "http://localhost:8082/"),
            (Some("127.0.0.2"), "http://127.0.0.2:8082/"),
            (Some("10.1.2.3"), "http://10.1.2.3:8082/"),
            (Some("[fd00::7]"), "http://[fd00::7]:8082/"),
            (Some("bank.internal"), "http://bank.internal:8082/"),
        ] {
            assert_eq!(bank(listen_host).base_url(8082), expected, "{listen_host:?}");
        }
        let named = BankConfig { hostname: "bank.example".to_owned(), ..bank(Some("10.1.2.3")) };
        assert_eq!(named.base_url(80), "http://bank.example:80/");
        let behind_proxy = BankConfig { base_url: Some("https://bank.example/x/".to_owned()), ..named };
        assert_eq!(behind_proxy.base_url(80), "https://bank.example/x/");
    }
}
