//! Reading configuration files.

use std::path::PathBuf;

use batzen_config::{Config, Expected};
use batzen_crypto::EddsaPublicKey;
use batzen_engine::LANES_MAX;
use batzen_protocol::liabilities::BUCKET_LEAVES_MIN;
use batzen_protocol::liabilities::tree::BUCKET_LEAVES_MAX;
use batzen_protocol::{Currency, Duration, Money};
use batzen_service::PagesAddress;
use batzen_signer::config::{module, optional_key, path_or};
use batzen_signer::service_config::{ClientConfig as SignersConfig, HelpersConfig};

use super::{
    ARCHIVE_RETENTION, AccountConfig, AgeRestrictionConfig, CoinConfig, CoinFees, ConfigError,
    DocumentsConfig, ExchangeConfig, GatewayAuth, GatewayConfig, LIABILITIES_EPOCH, LIABILITIES_SETTLING,
    LiabilitiesConfig, ListenConfig, OfflineConfig, StandaloneConfig, StandaloneFees, WorkersConfig,
};
use crate::rules::PURSE_LIFETIME_MAX;
use crate::storage::StoreConfig;

type Result<T> = std::result::Result<T, ConfigError>;

const ACCOUNT_PREFIX: &str = "exchange-account-";
/// The beginning of the names of sections with the credentials of accounts.
pub const CREDENTIALS_PREFIX: &str = "exchange-accountcredentials-";

pub(super) struct Reader<'a> {
    pub(super) ini: &'a Config,
    pub(super) currency: Currency,
}

impl Reader<'_> {
    /// The number of lanes; 0 for the default.
    fn lanes(&self) -> Result<usize> {
        let lanes = self.ini.number_in("exchange", "LANES", 1..=LANES_MAX as u64)?;
        Ok(lanes.map_or(0, |lanes| usize::try_from(lanes).expect("it is in range")))
    }

    pub(super) fn money(&self, section: &str, option: &str) -> Result<Money> {
        let amount = self.ini.amount(section, option)?;
        amount.money_in(self.currency).map_err(|_| {
            let expected = format!("an amount in {}", self.currency.as_str());
            self.ini.invalid(section, option, &expected).into()
        })
    }

    fn money_or(&self, section: &str, option: &str, default: Money) -> Result<Money> {
        if self.ini.raw(section, option).is_none() { Ok(default) } else { self.money(section, option) }
    }

    pub(super) fn duration_or(&self, section: &str, option: &str, default: Duration) -> Result<Duration> {
        Ok(self.ini.get_or(section, option, default)?)
    }

    /// A path. The default is expanded like a configured one.
    pub(super) fn path_or(&self, section: &str, option: &str, default: &str) -> Result<PathBuf> {
        path_or(self.ini, section, option, default)
    }

    fn key(&self, section: &str, option: &str) -> Result<Option<EddsaPublicKey>> {
        optional_key(self.ini, section, option)
    }

    fn documents(&self, directory: &str, etag: &str, default_etag: &str) -> Result<DocumentsConfig> {
        Ok(DocumentsConfig {
            directory: self.ini.get("exchange", directory)?,
            etag: self.ini.get_or("exchange", etag, default_etag.to_owned())?,
        })
    }

    fn coin(&self, section: &str) -> Result<CoinConfig> {
        Ok(CoinConfig {
            section: section.to_owned(),
            value: self.money(section, "VALUE")?,
            duration_withdraw: self.ini.duration(section, "DURATION_WITHDRAW")?,
            duration_spend: self.ini.duration(section, "DURATION_SPEND")?,
            duration_legal: self.ini.duration(section, "DURATION_LEGAL")?,
            fees: CoinFees {
                withdraw: self.money(section, "FEE_WITHDRAW")?,
                deposit: self.money(section, "FEE_DEPOSIT")?,
                refresh: self.money(section, "FEE_REFRESH")?,
                refund: self.money(section, "FEE_REFUND")?,
            },
            cipher: batzen_signer::config::cipher(self.ini, section)?,
            age_restricted: self.ini.get_or(section, "AGE_RESTRICTED", false)?,
        })
    }

    fn account(&self, section: &str, name: &str) -> Result<AccountConfig> {
        let gateway = GatewayConfig::from_ini(self.ini, &format!("{CREDENTIALS_PREFIX}{name}"))?;
        Ok(AccountConfig {
            section: section.to_owned(),
            payto_uri: self.ini.string(section, "PAYTO_URI")?,
            enable_debit: self.ini.get_or(section, "ENABLE_DEBIT", false)?,
            enable_credit: self.ini.get_or(section, "ENABLE_CREDIT", false)?,
            gateway,
        })
    }

    fn listen(&self) -> Result<ListenConfig> {
        let choices = [("tcp", false), ("unix", true)];
        if self.ini.choice("exchange", "SERVE", &choices)?.unwrap_or(false) {
            let path = "${TALER_RUNTIME_DIR}/exchange-httpd/exchange-http.sock";
            return Ok(ListenConfig::Unix {
                path: self.path_or("exchange", "UNIXPATH", path)?,
                mode: batzen_service::socket_mode(self.ini, "exchange")?,
            });
        }
        let port = self.ini.number_in("exchange", "PORT", 1..=65_535)?.unwrap_or(8081);
        Ok(ListenConfig::Tcp {
            host: self.ini.get("exchange", "BIND_TO")?,
            port: u16::try_from(port).expect("the range fits"),
        })
    }

    fn store(&self) -> Result<StoreConfig> {
        let choices = [("embedded", false), ("postgres", true)];
        if self.ini.choice("exchange", "DB", &choices)?.unwrap_or(false) {
            let url = self.ini.get_or("exchangedb-postgres", "CONFIG", "postgres:///taler".to_owned())?;
            return Ok(StoreConfig::postgres(url).with_citus_direct(self.ini, "exchange")?);
        }
        let dir = self.path_or("exchangedb-embedded", "DIR", "${TALER_DATA_HOME}/exchange/store")?;
        Ok(StoreConfig::embedded(dir).with_index_memory(self.ini, "exchange")?)
    }

    fn liabilities(&self) -> Result<Option<LiabilitiesConfig>> {
        const SECTION: &str = "exchange-liabilities";
        if !self.ini.has_section(SECTION) {
            return Ok(None);
        }
        let epoch = self.duration_or(SECTION, "EPOCH", LIABILITIES_EPOCH)?;
        let settling = self.duration_or(SECTION, "SETTLING", LIABILITIES_SETTLING)?;
        if epoch.is_zero() || epoch.is_forever() || settling.is_forever() {
            return Err(self.ini.invalid(SECTION, "EPOCH", "a duration such as 1 d").into());
        }
        let sizes = BUCKET_LEAVES_MIN..=BUCKET_LEAVES_MAX;
        Ok(Some(LiabilitiesConfig {
            dir: self.path_or(SECTION, "DIR", "${TALER_DATA_HOME}/exchange/liabilities")?,
            epoch,
            settling,
            bucket: self.ini.number_in(SECTION, "BUCKET", sizes)?.unwrap_or(BUCKET_LEAVES_MIN),
        }))
    }

    fn workers(&self) -> Result<WorkersConfig> {
        let default = WorkersConfig::default();
        let sleep = |name: &str, default| {
            self.duration_or("exchange", &format!("{name}_IDLE_SLEEP_INTERVAL"), default)
        };
        Ok(WorkersConfig {
            aggregator_idle_sleep: sleep("AGGREGATOR", default.aggregator_idle_sleep)?,
            aggregator_shard_size: self.ini.get_or(
                "exchange",
                "AGGREGATOR_SHARD_SIZE",
                default.aggregator_shard_size,
            )?,
            aggregator_shift: self.duration_or("exchangedb", "AGGREGATOR_SHIFT", default.aggregator_shift)?,
            closer_idle_sleep: sleep("CLOSER", default.closer_idle_sleep)?,
            expire_idle_sleep: sleep("EXPIRE", default.expire_idle_sleep)?,
            transfer_idle_sleep: sleep("TRANSFER", default.transfer_idle_sleep)?,
            wirewatch_idle_sleep: sleep("WIREWATCH", default.wirewatch_idle_sleep)?,
            lease: self.duration_or("exchange", "WORKER_LEASE", default.lease)?,
        })
    }

    fn age_restriction(&self) -> Result<Option<AgeRestrictionConfig>> {
        let section = "exchange-extension-age_restriction";
        if !self.ini.get_or(section, "ENABLED", false)? {
            return Ok(None);
        }
        let default = AgeRestrictionConfig::DEFAULT_GROUPS.to_owned();
        let groups: String = self.ini.get_or(section, "AGE_GROUPS", default)?;
        let parsed = AgeRestrictionConfig::parse(&groups);
        let expected = "ascending ages from 1 to 31, separated by colons";
        parsed.map(Some).ok_or_else(|| self.ini.invalid(section, "AGE_GROUPS", expected).into())
    }

    /// `[exchange-standalone]`: the exchange signs with a master key on its own machine.
    fn standalone(&self) -> Result<Option<StandaloneConfig>> {
        let section = "exchange-standalone";
        if !self.ini.get_or(section, "ENABLED", false)? {
            return Ok(None);
        }
        let default = StandaloneFees::default();
        Ok(Some(StandaloneConfig {
            master_priv_file: master_priv_file(self)?,
            secm_tofu_file: secm_tofu_file(self)?,
            fees: StandaloneFees {
                wire: self.money_or(section, "WIRE_FEE", default.wire)?,
                closing: self.money_or(section, "CLOSING_FEE", default.closing)?,
                history: self.money_or(section, "HISTORY_FEE", default.history)?,
                account: self.money_or(section, "ACCOUNT_FEE", default.account)?,
                purse: self.money_or(section, "PURSE_FEE", default.purse)?,
                purse_timeout: self.duration_or(section, "PURSE_TIMEOUT", default.purse_timeout)?,
                history_expiration: self.duration_or(
                    section,
                    "HISTORY_EXPIRATION",
                    default.history_expiration,
                )?,
                purse_account_limit: self.ini.get_or(
                    section,
                    "PURSE_ACCOUNT_LIMIT",
                    default.purse_account_limit,
                )?,
            },
        }))
    }
}

fn master_priv_file(reader: &Reader<'_>) -> Result<PathBuf> {
    let default = "${TALER_DATA_HOME}/exchange-offline/master.priv";
    reader.path_or("exchange-offline", "MASTER_PRIV_FILE", default)
}

fn secm_tofu_file(reader: &Reader<'_>) -> Result<PathBuf> {
    let default = "${TALER_DATA_HOME}/exchange-offline/secm_tofus.pub";
    reader.path_or("exchange-offline", "SECM_TOFU_FILE", default)
}

/// The currency of a configuration.
fn currency(ini: &Config) -> Result<Currency> {
    let read = |text: &str| Currency::new(text).map_err(|_| Expected::new("1 to 11 letters"));
    let currency = ini.get_with("taler", "CURRENCY", read)?;
    currency.ok_or_else(|| ini.missing("taler", "CURRENCY", "the name of a currency").into())
}

/// The options that the exchange's programs read, by section.
pub const KNOWN: &[(&str, &[&str])] = &[
    ("taler", &["CURRENCY", "CURRENCY_ROUND_UNIT"]),
    (
        "exchange",
        &[
            "MASTER_PUBLIC_KEY",
            "BASE_URL",
            "SERVE",
            "PORT",
            "BIND_TO",
            "UNIXPATH",
            "UNIXPATH_MODE",
            "REUSE_PORT",
            "LANES",
            "MONEY_SUMS",
            "DB",
            "DASHBOARD",
            "TRUSTED_PROXIES",
            "HOSTNAMES",
            "METRICS",
            "WIREWATCH_METRICS",
            "AGGREGATOR_METRICS",
            "TRANSFER_METRICS",
            "CLOSER_METRICS",
            "EXPIRE_METRICS",
            "DRAIN_METRICS",
            "LIABILITIES_METRICS",
            "MAX_KEYS_CACHING",
            "MAX_REQUESTS",
            "SIGNERS",
            "SIGNER_PUBLIC_KEYS",
            "SIGNER_KEY_FILE",
            "KEY_HELPERS",
            "ASSET_TYPE",
            "SIGNKEY_LEGAL_DURATION",
            "TERMS_DIR",
            "TERMS_ETAG",
            "PRIVACY_DIR",
            "PRIVACY_ETAG",
            "REVOCATION_DIR",
            "KYC_ATTRIBUTES_KEY_FILE",
            "RUNTIME_DIR",
            "KEYDIR",
            "AGGREGATOR_IDLE_SLEEP_INTERVAL",
            "AGGREGATOR_SHARD_SIZE",
            "CLOSER_IDLE_SLEEP_INTERVAL",
            "TRANSFER_IDLE_SLEEP_INTERVAL",
            "WIREWATCH_IDLE_SLEEP_INTERVAL",
            "WORKER_LEASE",
            "EXPIRE_IDLE_SLEEP_INTERVAL",
            "EXPIRE_SHARD_SIZE",
            "ROUTER_IDLE_SLEEP_INTERVAL",
            "ROUTER_SHARD_SIZE",
        ],
    ),
    (
        "exchangedb",
        &[
            "IDLE_RESERVE_EXPIRATION_TIME",
            "LEGAL_RESERVE_EXPIRATION_TIME",
            "ARCHIVE_DIR",
            "ARCHIVE_RETENTION_TIME",
            "AGGREGATOR_SHIFT",
            "DEFAULT_PURSE_LIMIT",
            "PURSE_LIFETIME_MAX",
            "AUDITOR_BASE_DIR",
            "WIREFEE_BASE_DIR",
            "DURATION_OVERLAP",
        ],
    ),
    ("exchange-liabilities", &["EPOCH", "DIR", "SETTLING", "BUCKET"]),
    ("exchangedb-embedded", &["DIR", "INDEX_MEMORY_MIB"]),
    ("exchangedb-postgres", &["CONFIG", "CITUS_DIRECT", "SQL_DIR"]),
    ("coin_*", COIN),
    ("coin-*", COIN),
    ("taler-exchange-secmod-rsa", MODULE),
    ("taler-exchange-secmod-cs", MODULE),
    ("taler-exchange-secmod-eddsa", MODULE),
    ("taler-exchange-secmod-eddsa", &["DURATION"]),
    (
        "exchange-offline",
        &[
            "MASTER_PRIV_FILE",
            "SECM_TOFU_FILE",
            "SECM_ESIGN_PUBKEY",
            "SECM_DENOM_PUBKEY",
            "SECM_DENOM_CS_PUBKEY",
        ],
    ),
    ("exchange-account-*", &["PAYTO_URI", "ENABLE_DEBIT", "ENABLE_CREDIT", "WIRE_RESPONSE"]),
    (
        "exchange-accountcredentials-*",
        &[
            "WIRE_GATEWAY_URL",
            "WIRE_GATEWAY_AUTH_METHOD",
            "USERNAME",
            "PASSWORD",
            "ENABLE_CREDIT",
            "ENABLE_DEBIT",
        ],
    ),
    ("kyc-legitimization-*", &["OPERATION_TYPE", "REQUIRED_CHECKS", "THRESHOLD", "TIMEFRAME"]),
    (
        "kyc-provider-*",
        &[
            "COST",
            "LOGIC",
            "USER_TYPE",
            "PROVIDED_CHECKS",
            "KYC_OAUTH2_VALIDITY",
            "KYC_OAUTH2_LOGIN_URL",
            "KYC_OAUTH2_AUTH_URL",
            "KYC_OAUTH2_INFO_URL",
            "KYC_OAUTH2_POST_URL",
            "KYC_OAUTH2_CLIENT_ID",
            "KYC_OAUTH2_CLIENT_SECRET",
            "KYC_MANUAL_VALIDITY",
            "KYC_MANUAL_POST_URL",
        ],
    ),
    ("kyc-officer-*", &["TOKEN_HASH"]),
    ("exchange-extension-age_restriction", &["ENABLED", "AGE_GROUPS"]),
    (
        "exchange-standalone",
        &[
            "ENABLED",
            "WIRE_FEE",
            "CLOSING_FEE",
            "HISTORY_FEE",
            "ACCOUNT_FEE",
            "PURSE_FEE",
            "PURSE_TIMEOUT",
            "HISTORY_EXPIRATION",
            "PURSE_ACCOUNT_LIMIT",
        ],
    ),
];

const COIN: &[&str] = &[
    "VALUE",
    "DURATION_WITHDRAW",
    "DURATION_SPEND",
    "DURATION_LEGAL",
    "FEE_WITHDRAW",
    "FEE_DEPOSIT",
    "FEE_REFRESH",
    "FEE_REFUND",
    "CIPHER",
    "RSA_KEYSIZE",
    "AGE_RESTRICTED",
];

const MODULE: &[&str] = &[
    "OVERLAP_DURATION",
    "LOOKAHEAD_SIGN",
    "ERASE_DELAY",
    "KEY_DIR",
    "SM_PRIV_KEY",
    "UNIXPATH",
    "CLIENT_DIR",
];

impl ExchangeConfig {
    /// Reads everything that service and workers need. Options of other programs are ignored.
    ///
    /// # Errors
    /// The first option that is missing or invalid, with its place.
    pub fn from_ini(ini: &Config) -> std::result::Result<Self, ConfigError> {
        let currency = currency(ini)?;
        let reader = Reader { ini, currency };
        let (trusted_proxies, hostnames) = batzen_service::front(ini, "exchange")?;
        let mut coins = Vec::new();
        for (section, _) in ini.sections_with(&["coin_", "coin-"]) {
            coins.push(reader.coin(section)?);
        }
        let mut accounts = Vec::new();
        for (section, name) in ini.sections_with(&[ACCOUNT_PREFIX]) {
            accounts.push(reader.account(section, name)?);
        }
        let eddsa = "taler-exchange-secmod-eddsa";
        let config = Self {
            currency,
            currency_round_unit: reader.money("taler", "CURRENCY_ROUND_UNIT")?,
            base_url: ini.string("exchange", "BASE_URL")?,
            master_public_key: reader.key("exchange", "MASTER_PUBLIC_KEY")?,
            listen: reader.listen()?,
            dashboard: ini.get_or("exchange", "DASHBOARD", true)?,
            trusted_proxies,
            hostnames,
            metrics: PagesAddress::of(ini, "exchange", "METRICS")?,
            share_port: ini.get_or("exchange", "REUSE_PORT", false)?,
            store: reader.store()?,
            runtime_dir: reader.path_or("exchange", "RUNTIME_DIR", "${TALER_RUNTIME_DIR}/exchange-httpd")?,
            max_keys_caching: reader.duration_or("exchange", "MAX_KEYS_CACHING", Duration::FOREVER)?,
            asset_type: ini.get_or("exchange", "ASSET_TYPE", "fiat".to_owned())?,
            signkey_legal_duration: reader.duration_or(
                "exchange",
                "SIGNKEY_LEGAL_DURATION",
                Duration::from_days(2 * 365),
            )?,
            signkey_duration: reader.duration_or(eddsa, "DURATION", Duration::from_days(12 * 7))?,
            terms: reader.documents("TERMS_DIR", "TERMS_ETAG", "tos-v0")?,
            privacy: reader.documents("PRIVACY_DIR", "PRIVACY_ETAG", "pp-v0")?,
            idle_reserve_expiration: reader.duration_or(
                "exchangedb",
                "IDLE_RESERVE_EXPIRATION_TIME",
                Duration::from_days(28),
            )?,
            legal_reserve_expiration: reader.duration_or(
                "exchangedb",
                "LEGAL_RESERVE_EXPIRATION_TIME",
                Duration::from_days(7 * 365),
            )?,
            archive_dir: reader.path_or(
                "exchangedb",
                "ARCHIVE_DIR",
                "${TALER_DATA_HOME}/exchange/archive",
            )?,
            archive_retention: reader.duration_or(
                "exchangedb",
                "ARCHIVE_RETENTION_TIME",
                ARCHIVE_RETENTION,
            )?,
            default_purse_limit: ini.get_or("exchangedb", "DEFAULT_PURSE_LIMIT", 1)?,
            purse_lifetime_max: reader.duration_or("exchangedb", "PURSE_LIFETIME_MAX", PURSE_LIFETIME_MAX)?,
            coins,
            module_rsa: module(ini, "taler-exchange-secmod-rsa", "rsa")?,
            module_cs: module(ini, "taler-exchange-secmod-cs", "cs")?,
            module_eddsa: module(ini, eddsa, "eddsa")?,
            feed: batzen_feed::config::ServerConfig::from_ini(ini)?,
            liabilities: reader.liabilities()?,
            signers: SignersConfig::from_ini(ini)?,
            key_helpers: HelpersConfig::from_ini(ini)?,
            accounts,
            age_restriction: reader.age_restriction()?,
            kyc: reader.kyc()?,
            workers: reader.workers()?,
            standalone: reader.standalone()?,
            connection_timeout: Duration::from_secs(30),
            crypto_threads: 0,
            lanes: reader.lanes()?,
            sums_money: ini.get_or("exchange", "MONEY_SUMS", true)?,
            max_requests: ini.number_in("exchange", "MAX_REQUESTS", 1..=u64::MAX)?,
        };
        config.validate()?;
        Ok(config)
    }
}

impl GatewayConfig {
    /// Reads a section `[exchange-accountcredentials-*]`. `None` if it names no gateway.
    ///
    /// # Errors
    /// The first option that is missing or invalid, with its place.
    pub fn from_ini(ini: &Config, section: &str) -> std::result::Result<Option<Self>, ConfigError> {
        let Some(url) = ini.get(section, "WIRE_GATEWAY_URL")? else { return Ok(None) };
        Ok(Some(Self { url, auth: GatewayAuth::read(ini, section)? }))
    }
}

impl OfflineConfig {
    /// Reads what the offline tool needs: it runs on another machine and needs neither coins nor a database.
    ///
    /// # Errors
    /// The first option that is missing or invalid, with its place.
    pub fn from_ini(ini: &Config) -> std::result::Result<Self, ConfigError> {
        let currency = currency(ini)?;
        let reader = Reader { ini, currency };
        Ok(Self {
            currency,
            base_url: ini.get("exchange", "BASE_URL")?,
            master_public_key: reader.key("exchange", "MASTER_PUBLIC_KEY")?,
            master_priv_file: master_priv_file(&reader)?,
            secm_tofu_file: Some(secm_tofu_file(&reader)?),
            pinned_rsa: reader.key("exchange-offline", "SECM_DENOM_PUBKEY")?,
            pinned_cs: reader.key("exchange-offline", "SECM_DENOM_CS_PUBKEY")?,
            pinned_eddsa: reader.key("exchange-offline", "SECM_ESIGN_PUBKEY")?,
            age_restriction: reader.age_restriction()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use batzen_signer::config::ERASE_DELAY;

    use super::super::CipherConfig;
    use super::*;

    const SAMPLE: &str = "\
[taler]
currency = KUDOS
currency_round_unit = KUDOS:0.01
[exchange]
base_url = http://localhost:8081/
master_public_key = 98NJW3CQHZQGQXTY3K85K531XKPAPAVV4Q5V8PYYRR00NJGZWNVG
port = 9000
serve = tcp
[exchangedb]
purse_lifetime_max = 30 days
[PATHS]
TALER_DATA_HOME = /data
TALER_RUNTIME_DIR = /run/t
[taler-exchange-secmod-rsa]
lookahead_sign = 60 days
erase_delay = 2 days
overlap_duration = 1 h
[coin_kudos_1]
value = KUDOS:1
duration_withdraw = 7 days
duration_spend = 2 years
duration_legal = 3 years
fee_withdraw = KUDOS:0.01
fee_deposit = KUDOS:0.02
fee_refresh = KUDOS:0.03
fee_refund = KUDOS:0.04
cipher = RSA
rsa_keysize = 2048
[coin-kudos-2]
value = KUDOS:2
duration_withdraw = 7 days
duration_spend = 2 years
duration_legal = 3 years
fee_withdraw = KUDOS:0
fee_deposit = KUDOS:0
fee_refresh = KUDOS:0
fee_refund = KUDOS:0
cipher = CS
age_restricted = YES
[exchange-extension-age_restriction]
enabled = YES
[exchange-account-1]
payto_uri = payto://x-taler-bank/localhost/2?receiver-name=2
enable_credit = YES
[exchange-accountcredentials-1]
wire_gateway_url = http://localhost:8082/taler-wire-gateway/2/
wire_gateway_auth_method = basic
username = x
password = secret
";

    fn error(change: &str) -> String {
        let mut ini = Config::parse(SAMPLE).unwrap();
        ini.add_text(change).unwrap();
        ExchangeConfig::from_ini(&ini).unwrap_err().to_string()
    }

    #[test]
    fn sample_is_read() {
        let config = ExchangeConfig::from_ini(&Config::parse(SAMPLE).unwrap()).unwrap();
        assert_eq!(config.listen, ListenConfig::Tcp { host: None, port: 9000 });
        assert_eq!(config.purse_lifetime_max, Duration::from_days(30));
        assert_eq!(config.module_rsa.lookahead_sign, Duration::from_days(60));
        assert_eq!(config.module_cs.lookahead_sign, Duration::from_days(365));
        assert_eq!(config.module_rsa.erase_delay, Duration::from_days(2));
        assert_eq!(config.module_cs.erase_delay, ERASE_DELAY);
        assert_eq!(config.module_rsa.key_dir, PathBuf::from("/data/exchange-secmod-rsa/keys"));
        assert_eq!(config.coins.len(), 2);
        let rsa = config.coins.iter().find(|coin| coin.section == "COIN_KUDOS_1").unwrap();
        assert_eq!(rsa.cipher, CipherConfig::Rsa { bits: 2048 });
        assert_eq!(rsa.fees.refund, Money::new(0, 4_000_000).unwrap());
        let cs = config.coins.iter().find(|coin| coin.section == "COIN-KUDOS-2").unwrap();
        assert_eq!(
            config.age_mask(cs),
            1 | 1 << 8 | 1 << 10 | 1 << 12 | 1 << 14 | 1 << 16 | 1 << 18 | 1 << 21
        );
        assert_eq!(config.age_mask(rsa), 0);
        let account = &config.accounts[0];
        assert!(account.enable_credit && !account.enable_debit);
        let gateway = account.gateway.as_ref().unwrap();
        assert!(matches!(&gateway.auth, GatewayAuth::Basic { username, .. } if username == "x"));
        assert!(!format!("{gateway:?}").contains("secret"));
        assert!(config.standalone.is_none());
    }

    #[test]
    fn a_database_is_configured() {
        let store = |more: &str| {
            let mut ini = Config::parse(SAMPLE).unwrap();
            ini.add_text(&format!("[exchange]\ndb = postgres\n[exchangedb-postgres]\n{more}")).unwrap();
            assert_eq!(ini.unknown_options(KNOWN), []);
            ExchangeConfig::from_ini(&ini).unwrap().store
        };
        let url = || "postgres:///x".to_owned();
        assert_eq!(store("config = postgres:///x"), StoreConfig::postgres(url()));
        let coordinator_only = StoreConfig::Postgres { url: url(), citus_direct: false };
        assert_eq!(store("config = postgres:///x\ncitus_direct = no"), coordinator_only);
        assert_eq!(store(""), StoreConfig::postgres("postgres:///taler".to_owned()));
    }

    #[test]
    fn unknown_options_are_reported() {
        let mut ini = Config::parse(SAMPLE).unwrap();
        assert_eq!(ini.unknown_options(KNOWN), []);
        ini.add_text(
            "[exchange]\nmax_key_caching = 1 h\n[taler-exchange-secmod-eddsa]\nduration = 1 week\n[x]\ny = z",
        )
        .unwrap();
        let unknown = ini.unknown_options(KNOWN);
        assert_eq!(unknown.len(), 1);
        assert_eq!(unknown[0].nearest.as_deref(), Some("MAX_KEYS_CACHING"));
    }

    #[test]
    fn errors_name_section_and_option() {
        for (change, expected) in [
            ("[coin_kudos_1]\nvalue = EUR:1", "KUDOS"),
            ("[coin_kudos_1]\ncipher = rsa", "CIPHER"),
            ("[coin_kudos_1]\nrsa_keysize = 512", "RSA_KEYSIZE"),
            ("[coin_kudos_1]\nrsa_keysize = 1025", "RSA_KEYSIZE"),
            ("[coin_kudos_1]\nduration_withdraw = 1 h", "overlap"),
            ("[coin_kudos_1]\nfee_deposit = KUDOS:2", "FEE_DEPOSIT"),
            ("[exchange]\nbase_url = http://localhost:8081", "BASE_URL"),
            ("[exchange]\nport = 0", "PORT"),
            ("[exchange]\ndb = postgres\n[exchangedb-postgres]\ncitus_direct = maybe", "CITUS_DIRECT"),
            ("[exchange]\ntrusted_proxies = 10.0.0.0/8 proxy.example", "TRUSTED_PROXIES"),
            ("[taler]\ncurrency_round_unit = KUDOS:0", "CURRENCY_ROUND_UNIT"),
            ("[taler-exchange-secmod-cs]\nlookahead_sign = forever", "lookahead"),
            ("[exchange-extension-age_restriction]\nage_groups = 8:7", "AGE_GROUPS"),
        ] {
            let message = error(change);
            assert!(message.contains(expected), "{change}: {message}");
        }
    }
}
