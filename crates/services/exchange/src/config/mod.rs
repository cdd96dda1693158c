//! The operator's configuration.
//!
//! [`ExchangeConfig::from_ini`](ExchangeConfig::from_ini) reads configuration files; programs that play all
//! roles themselves (demo, tests) start from [`ExchangeConfig::local`].

use std::path::{Path, PathBuf};

use batzen_crypto::EddsaPublicKey;
use batzen_crypto::denom::Cipher;
use batzen_http::{OwnNames, TrustedProxies};
use batzen_protocol::limits::URL_BYTES_MAX;
use batzen_protocol::{Currency, Duration, Money};
use batzen_service::PagesAddress;

use crate::rules::PURSE_LIFETIME_MAX;
use crate::storage::StoreConfig;
use batzen_feed::config::ServerConfig as FeedConfig;
use batzen_signer::config::{ERASE_DELAY, KeysConfig, SectionConfig};
use batzen_signer::listing::DenomInfo;
use batzen_signer::service_config::{ClientConfig as SignersConfig, HelpersConfig};

mod ini;
mod kyc;

pub use batzen_service::ListenConfig;
pub use batzen_service::wire_gateway::GatewayAuth;
pub(crate) use batzen_signer::config::ModuleConfig;
pub use batzen_signer::config::{CipherConfig, ConfigError};
pub use ini::{CREDENTIALS_PREFIX, KNOWN};
pub use kyc::{KycConfig, KycLogicConfig, KycOfficerConfig, KycProviderConfig, OAuth2Config};

/// The most lanes of an exchange on a database that is not Citus, unless the configuration says otherwise.
pub const LANES_ON_DATABASE_MAX: usize = 8;
/// The round trip to the database for which an exchange gets another lane: while one lane waits for an answer, others
/// work. With a database on the same machine, one lane is faster than three, because three split the work into smaller
/// batches: docs/internals/lab/2026-11-21-postgresql.md.
const ROUND_TRIP_PER_LANE: std::time::Duration = std::time::Duration::from_millis(1);
/// Time that archives are kept by default, as wire fees are.
const ARCHIVE_RETENTION: Duration = Duration::from_days(10 * 365);
/// On a store in the service's own process there is one lane for this many cores. The other cores do
/// cryptography and HTTP, which cost several times as much as the lanes.
const CORES_PER_LANE: usize = 4;

/// The default length of an epoch of liabilities.
const LIABILITIES_EPOCH: Duration = Duration::from_days(1);
/// The default time after which all rows of an epoch are committed.
const LIABILITIES_SETTLING: Duration = Duration::from_secs(600);

/// The four fees of a denomination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoinFees {
    /// For issuing the coin.
    pub withdraw: Money,
    /// For every deposit.
    pub deposit: Money,
    /// For every melt.
    pub refresh: Money,
    /// For every refund.
    pub refund: Money,
}

impl CoinFees {
    /// No fees at all.
    pub const FREE: Self =
        Self { withdraw: Money::ZERO, deposit: Money::ZERO, refresh: Money::ZERO, refund: Money::ZERO };
}

/// A section `[coin_*]`: one denomination, which has a sequence of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoinConfig {
    /// The name of the section, and of the directory with its keys.
    pub section: String,
    /// The value of a coin.
    pub value: Money,
    /// Time that one key is offered for withdrawal.
    pub duration_withdraw: Duration,
    /// Time after that during which coins can be spent.
    pub duration_spend: Duration,
    /// Time after that during which records are kept.
    pub duration_legal: Duration,
    /// The fees.
    pub fees: CoinFees,
    /// The cipher.
    pub cipher: CipherConfig,
    /// Whether its coins may carry an age commitment.
    pub age_restricted: bool,
}

impl CoinConfig {
    /// Returns whether a key belongs to this section.
    pub(crate) fn has_key(&self, key: &DenomInfo) -> bool {
        let cipher = match self.cipher {
            CipherConfig::Rsa { .. } => Cipher::Rsa,
            CipherConfig::Cs => Cipher::Cs,
        };
        self.section == key.section && cipher == key.cipher()
    }
}

/// Legal documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentsConfig {
    /// One directory for each language; `None` for the built-in text.
    pub directory: Option<PathBuf>,
    /// Version tag and file name.
    pub etag: String,
}

/// The wire gateway of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayConfig {
    /// Base URL of the account at the gateway.
    pub url: String,
    /// The credentials for it.
    pub auth: GatewayAuth,
}

/// A section `[exchange-account-*]`: a bank account of the exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountConfig {
    /// The name of the section.
    pub section: String,
    /// The account.
    pub payto_uri: String,
    /// Used for outgoing transfers.
    pub(crate) enable_debit: bool,
    /// Watched for incoming transfers.
    pub enable_credit: bool,
    /// Its gateway; required if the account is used either way.
    pub(crate) gateway: Option<GatewayConfig>,
}

/// The age restriction extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgeRestrictionConfig {
    /// The ages at which groups begin, ascending, separated by `:`.
    pub(crate) age_groups: String,
    /// The same as a bit mask: bit 0, and one bit for each age.
    pub mask: u32,
}

impl AgeRestrictionConfig {
    /// The groups that apply unless the operator configures others.
    pub const DEFAULT_GROUPS: &'static str = "8:10:12:14:16:18:21";

    /// Reads `8:10:12`: ascending ages from 1 to 31.
    pub fn parse(age_groups: &str) -> Option<Self> {
        let mut mask = 1u32;
        let mut last = 0;
        for age in age_groups.split(':') {
            let age: u32 = age.trim().parse().ok()?;
            if age <= last || age > 31 {
                return None;
            }
            mask |= 1 << age;
            last = age;
        }
        Some(Self { age_groups: age_groups.into(), mask })
    }

    /// The name under which the extension is published.
    pub(crate) const NAME: &'static str = "age_restriction";
    /// The version of the extension that is implemented.
    pub(crate) const VERSION: &'static str = "1";

    /// The manifests object with this extension alone, as it is signed and published.
    pub fn manifests(&self) -> serde_json::Value {
        serde_json::json!({
            Self::NAME: {
                "critical": false,
                "version": Self::VERSION,
                "config": { "age_groups": self.age_groups },
            }
        })
    }
}

/// Options for publishing liabilities (`[exchange-liabilities]`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiabilitiesConfig {
    /// Where the files are.
    pub(crate) dir: PathBuf,
    /// Time that an epoch lasts.
    pub(crate) epoch: Duration,
    /// Time after an epoch's end until all its rows are committed.
    pub(crate) settling: Duration,
    /// Number of leaves that a bucket has at least, on average.
    pub(crate) bucket: u64,
}

/// Pauses, shards and leases of the background workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkersConfig {
    /// Pause of the aggregator when it has no work.
    pub aggregator_idle_sleep: Duration,
    /// Width of an aggregator shard.
    pub(crate) aggregator_shard_size: u64,
    /// Granularity of the aggregator's clock.
    pub(crate) aggregator_shift: Duration,
    /// Pause of the closer.
    pub closer_idle_sleep: Duration,
    /// Pause of the worker that expires purses.
    pub(crate) expire_idle_sleep: Duration,
    /// Pause of the transfer executor.
    pub transfer_idle_sleep: Duration,
    /// Pause of the import of incoming transfers.
    pub wirewatch_idle_sleep: Duration,
    /// Time that a worker's lease lasts without renewal.
    pub lease: Duration,
}

impl Default for WorkersConfig {
    fn default() -> Self {
        Self {
            aggregator_idle_sleep: Duration::from_secs(60),
            aggregator_shard_size: 1 << 31,
            aggregator_shift: Duration::from_secs(1),
            closer_idle_sleep: Duration::from_secs(60),
            expire_idle_sleep: Duration::from_secs(60),
            transfer_idle_sleep: Duration::from_secs(60),
            wirewatch_idle_sleep: Duration::from_secs(1),
            lease: Duration::from_secs(3),
        }
    }
}

/// Fees that a stand-alone set-up signs for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandaloneFees {
    /// For every aggregated transfer.
    pub wire: Money,
    /// For closing a reserve.
    pub closing: Money,
    /// For a reserve's full history.
    pub history: Money,
    /// For an account, a year.
    pub account: Money,
    /// For a purse beyond the free ones.
    pub purse: Money,
    /// Time that an expired purse stays readable, as `/keys` says.
    pub(crate) purse_timeout: Duration,
    /// Time that histories are kept.
    pub(crate) history_expiration: Duration,
    /// Number of free purses that an account may have open at once.
    pub purse_account_limit: u32,
}

impl Default for StandaloneFees {
    fn default() -> Self {
        Self {
            wire: Money::ZERO,
            closing: Money::ZERO,
            history: Money::ZERO,
            account: Money::ZERO,
            purse: Money::ZERO,
            purse_timeout: Duration::from_secs(3600),
            history_expiration: Duration::from_days(365),
            purse_account_limit: 8,
        }
    }
}

/// Set-up by the exchange itself, with a master key on its own machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandaloneConfig {
    /// The master private key, 32 bytes; created if missing.
    pub master_priv_file: PathBuf,
    /// The file with the security modules' keys as first seen.
    pub(crate) secm_tofu_file: PathBuf,
    /// The fees to sign.
    pub fees: StandaloneFees,
}

/// The configuration of the exchange service and its workers.
#[derive(Clone, Debug)]
pub struct ExchangeConfig {
    /// The one currency.
    pub currency: Currency,
    /// The bank's smallest unit: amounts on the wire are multiples of it.
    pub currency_round_unit: Money,
    /// The public URL, ending in `/`.
    pub base_url: String,
    /// The master public key. Optional only for a stand-alone exchange.
    pub master_public_key: Option<EddsaPublicKey>,
    /// Where to listen.
    pub listen: ListenConfig,
    /// Whether `/dashboard` is served.
    pub dashboard: bool,
    /// The proxies whose `X-Forwarded-For` header is trusted.
    pub trusted_proxies: TrustedProxies,
    /// Names under which clients reach the exchange, beside that in `base_url`.
    pub hostnames: OwnNames,
    /// The address of the process's own pages, if they have one.
    pub metrics: Option<PagesAddress>,
    /// Whether other processes may listen on the same TCP port, for example to take over from this one
    /// (`SO_REUSEPORT`).
    pub share_port: bool,
    /// The store.
    pub store: StoreConfig,
    /// Directory of local sockets.
    pub runtime_dir: PathBuf,
    /// The longest time for which `/keys` may be cached.
    pub max_keys_caching: Duration,
    /// Shown in `/keys`.
    pub asset_type: String,
    /// Time that signatures of an online key remain valid after the key's use.
    pub signkey_legal_duration: Duration,
    /// Time that one online signing key is used.
    pub signkey_duration: Duration,
    /// Terms of service.
    pub terms: DocumentsConfig,
    /// Privacy policy.
    pub privacy: DocumentsConfig,
    /// A reserve without withdrawals is closed after this time.
    pub idle_reserve_expiration: Duration,
    /// Time that reserves are kept.
    pub legal_reserve_expiration: Duration,
    /// Where the archives are.
    pub archive_dir: PathBuf,
    /// Time that an archive must be kept after the run that made it.
    pub archive_retention: Duration,
    /// Number of free purses that a paid account may have open at once.
    pub default_purse_limit: u32,
    /// The longest time for which a purse may stay open.
    pub purse_lifetime_max: Duration,
    /// The denominations.
    pub coins: Vec<CoinConfig>,
    /// RSA denomination keys.
    pub module_rsa: ModuleConfig,
    /// Clause Blind Schnorr denomination keys.
    pub module_cs: ModuleConfig,
    /// Online signing keys.
    pub module_eddsa: ModuleConfig,
    /// Options for shipping committed changes to auditors, if they are shipped.
    pub feed: Option<FeedConfig>,
    /// Options for publishing liabilities, if they are published.
    pub liabilities: Option<LiabilitiesConfig>,
    /// The signers that hold the private keys, if this process does not.
    pub signers: Option<SignersConfig>,
    /// The key helpers on this machine that hold the private keys, if this process does not.
    pub key_helpers: Option<HelpersConfig>,
    /// The bank accounts.
    pub accounts: Vec<AccountConfig>,
    /// Age restriction, if enabled.
    pub age_restriction: Option<AgeRestrictionConfig>,
    /// Identification of customers.
    pub kyc: KycConfig,
    /// Background workers.
    pub workers: WorkersConfig,
    /// Stand-alone set-up, if configured.
    pub standalone: Option<StandaloneConfig>,
    /// Time that a connection may stay idle.
    pub connection_timeout: Duration,
    /// Threads for cryptography; 0 for one on each core.
    pub crypto_threads: usize,
    /// Number of batches that may be in progress at the same time: while one waits for its commit, another executes.
    /// 0 for a number that suits the store and the machine.
    pub lanes: usize,
    /// Whether this service computes the sums of money on a database. That reads all rows that hold money, so
    /// one of several services is enough.
    pub sums_money: bool,
    /// The number of requests after which the service ends, for a supervisor to restart it.
    pub max_requests: Option<u64>,
}

impl ExchangeConfig {
    /// A stand-alone exchange on 127.0.0.1 that keeps everything below `data_dir`: one account, the default
    /// limits, and few, long-lived keys, so that it starts quickly. The caller adds coins and accounts.
    pub fn local(currency: Currency, data_dir: &Path, port: u16) -> Self {
        let data = data_dir.join("exchange");
        let module = |name: &str| ModuleConfig {
            overlap_duration: Duration::from_secs(300),
            lookahead_sign: Duration::from_days(1),
            erase_delay: ERASE_DELAY,
            key_dir: data.join(format!("secmod-{name}")).join("keys"),
            sm_priv_key: data.join(format!("secmod-{name}")).join("secmod-private-key"),
        };
        Self {
            currency,
            currency_round_unit: Money::new(0, 1_000_000).expect("a hundredth is a valid amount"),
            base_url: format!("http://127.0.0.1:{port}/"),
            dashboard: true,
            trusted_proxies: TrustedProxies::default(),
            hostnames: OwnNames::default(),
            metrics: None,
            master_public_key: None,
            listen: ListenConfig::Tcp { host: Some("127.0.0.1".into()), port },
            share_port: false,
            store: StoreConfig::embedded(data.join("store")),
            runtime_dir: data.join("run"),
            max_keys_caching: Duration::FOREVER,
            asset_type: "fiat".into(),
            signkey_legal_duration: Duration::from_days(2 * 365),
            signkey_duration: Duration::from_days(12 * 7),
            terms: DocumentsConfig { directory: None, etag: "tos-v0".into() },
            privacy: DocumentsConfig { directory: None, etag: "pp-v0".into() },
            idle_reserve_expiration: Duration::from_days(28),
            legal_reserve_expiration: Duration::from_days(7 * 365),
            archive_dir: data.join("archive"),
            archive_retention: ARCHIVE_RETENTION,
            default_purse_limit: 1,
            purse_lifetime_max: PURSE_LIFETIME_MAX,
            coins: Vec::new(),
            module_rsa: module("rsa"),
            module_cs: module("cs"),
            module_eddsa: module("eddsa"),
            feed: None,
            liabilities: None,
            signers: None,
            key_helpers: None,
            accounts: Vec::new(),
            age_restriction: None,
            kyc: KycConfig { attributes_key_file: data.join("kyc-attributes.key"), ..KycConfig::default() },
            workers: WorkersConfig::default(),
            standalone: Some(StandaloneConfig {
                master_priv_file: data.join("offline").join("master.priv"),
                secm_tofu_file: data.join("offline").join("secm-tofus.pub"),
                fees: StandaloneFees::default(),
            }),
            connection_timeout: Duration::from_secs(30),
            crypto_threads: 0,
            lanes: 0,
            sums_money: true,
            max_requests: None,
        }
    }

    /// Adds a denomination with keys that are used for a week, coins that can be spent for two years, and
    /// records kept for three more.
    #[must_use]
    pub fn with_coin(mut self, section: &str, value: Money, fees: CoinFees, cipher: CipherConfig) -> Self {
        self.coins.push(CoinConfig {
            section: section.into(),
            value,
            duration_withdraw: Duration::from_days(7),
            duration_spend: Duration::from_days(2 * 365),
            duration_legal: Duration::from_days(3 * 365),
            fees,
            cipher,
            age_restricted: false,
        });
        self
    }

    /// Adds a bank account that is used in both directions.
    #[must_use]
    pub fn with_account(mut self, section: &str, payto_uri: &str, gateway: GatewayConfig) -> Self {
        self.accounts.push(AccountConfig {
            section: section.into(),
            payto_uri: payto_uri.into(),
            enable_debit: true,
            enable_credit: true,
            gateway: Some(gateway),
        });
        self
    }

    /// The configuration of the private keys.
    pub fn keys_config(&self) -> KeysConfig {
        let section = |coin: &CoinConfig| SectionConfig {
            section: coin.section.clone(),
            cipher: coin.cipher,
            duration: coin.duration_withdraw,
        };
        KeysConfig {
            sections: self.coins.iter().map(section).collect(),
            rsa: self.module_rsa.clone(),
            cs: self.module_cs.clone(),
            eddsa: self.module_eddsa.clone(),
            signkey_duration: self.signkey_duration,
        }
    }

    /// The coin section of a key, if it still exists and has its cipher.
    pub(crate) fn find_coin(&self, key: &DenomInfo) -> Option<&CoinConfig> {
        self.coins.iter().find(|coin| coin.has_key(key))
    }

    /// The age mask of a coin section: that of the extension if both are enabled, else 0.
    pub(crate) fn age_mask(&self, coin: &CoinConfig) -> u32 {
        match &self.age_restriction {
            Some(extension) if coin.age_restricted => extension.mask,
            _ => 0,
        }
    }

    /// The number of lanes on a machine with this many cores; on a database the largest, see [`Self::lanes_at`].
    #[must_use]
    pub fn lanes_on(&self, cores: usize) -> usize {
        match self.lanes {
            0 if self.store.is_database() => LANES_ON_DATABASE_MAX,
            0 => (cores / CORES_PER_LANE).clamp(1, batzen_engine::LANES_MAX),
            lanes => lanes,
        }
    }

    /// The number of lanes on a database that is one server, this round trip away.
    #[must_use]
    pub fn lanes_at(&self, round_trip: std::time::Duration) -> usize {
        if self.lanes > 0 {
            return self.lanes;
        }
        let further = round_trip.as_nanos() / ROUND_TRIP_PER_LANE.as_nanos();
        usize::try_from(further)
            .map_or(LANES_ON_DATABASE_MAX, |further| (1 + further).min(LANES_ON_DATABASE_MAX))
    }

    /// Checks options against each other. Called at the start.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if !self.base_url.ends_with('/') || !self.base_url.starts_with("http") {
            return Err(ConfigError::invalid("exchange", "BASE_URL must be an http(s) URL that ends with /"));
        }
        if self.base_url.len() > URL_BYTES_MAX {
            let reason =
                format!("BASE_URL has more than {URL_BYTES_MAX} bytes: banks would refuse our transfers");
            return Err(ConfigError::invalid("exchange", reason));
        }
        if self.lanes > batzen_engine::LANES_MAX {
            let reason = format!("LANES must not be more than {}", batzen_engine::LANES_MAX);
            return Err(ConfigError::invalid("exchange", reason));
        }
        if self.currency_round_unit.is_zero() {
            return Err(ConfigError::invalid("taler", "CURRENCY_ROUND_UNIT must not be zero"));
        }
        if self.master_public_key.is_none() && self.standalone.is_none() {
            return Err(ConfigError::invalid("exchange", "MASTER_PUBLIC_KEY is missing"));
        }
        if self.feed.is_some() && self.store.dir().is_none() {
            let reason = "LISTEN needs an embedded store; for a database, see batzen exchange replication";
            return Err(ConfigError::invalid("exchange-feed", reason));
        }
        if self.signers.is_some() && self.standalone.is_some() {
            let reason =
                "a stand-alone exchange holds its master key, SIGNERS are there so that it holds no key";
            return Err(ConfigError::invalid("exchange", reason));
        }
        if self.key_helpers.is_some() && self.standalone.is_some() {
            let reason =
                "a stand-alone exchange holds its master key, so KEY_HELPERS = YES would protect nothing";
            return Err(ConfigError::invalid("exchange", reason));
        }
        if self.key_helpers.is_some() && self.signers.is_some() {
            return Err(ConfigError::invalid("exchange", "the keys are either at SIGNERS or at KEY_HELPERS"));
        }
        self.keys_config().validate()?;
        self.kyc.validate(self)?;
        for coin in &self.coins {
            let section = coin.section.as_str();
            if coin.value.is_zero() {
                return Err(ConfigError::invalid(section, "VALUE must not be zero"));
            }
            if coin.fees.deposit > coin.value {
                return Err(ConfigError::invalid(
                    section,
                    "FEE_DEPOSIT is larger than the value of the coin",
                ));
            }
        }
        Ok(())
    }
}

impl ExchangeConfig {
    /// Warnings about settings that are valid, but hardly meant.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let is_free = self.standalone.as_ref().is_some_and(|standalone| standalone.fees.purse.is_zero());
        if is_free && self.purse_lifetime_max > FREE_PURSE_LIFETIME_MAX {
            warnings.push(format!(
                "purses cost nothing, and anybody may keep any number of them for [exchangedb] PURSE_LIFETIME_MAX = {}: \
                 set [exchange-standalone] PURSE_FEE, or at most {FREE_PURSE_LIFETIME_MAX}",
                self.purse_lifetime_max
            ));
        }
        for CoinConfig { section, value, fees, .. } in &self.coins {
            if fees.deposit == *value {
                warnings.push(format!(
                    "[{section}] FEE_DEPOSIT is the value of the coin: it pays nobody, and wallets do not withdraw it"
                ));
            }
            for (option, fee) in
                [("FEE_WITHDRAW", fees.withdraw), ("FEE_REFRESH", fees.refresh), ("FEE_REFUND", fees.refund)]
            {
                if fee > *value {
                    warnings.push(format!("[{section}] {option} is larger than the value of the coin"));
                }
            }
        }
        warnings
    }
}

/// Life of free purses that needs no warning.
const FREE_PURSE_LIFETIME_MAX: Duration = Duration::from_days(31);

/// The configuration of the offline tool.
#[derive(Clone, Debug)]
pub struct OfflineConfig {
    /// The exchange's currency.
    pub currency: Currency,
    /// The exchange that `download` and `upload` use.
    pub base_url: Option<String>,
    /// The public key that the exchange is configured for. It must match the private key.
    pub master_public_key: Option<EddsaPublicKey>,
    /// The private key, 32 bytes.
    pub master_priv_file: PathBuf,
    /// The security modules' keys as first seen; without it, nothing is pinned.
    pub secm_tofu_file: Option<PathBuf>,
    /// The key that the RSA module must have when it is first seen.
    pub pinned_rsa: Option<EddsaPublicKey>,
    /// The same for the CS module.
    pub pinned_cs: Option<EddsaPublicKey>,
    /// The same for the EdDSA module.
    pub pinned_eddsa: Option<EddsaPublicKey>,
    /// The extension that `extensions` shows and signs.
    pub age_restriction: Option<AgeRestrictionConfig>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_follow_store_and_cores() {
        let currency = "KUDOS".parse().expect("a currency");
        let mut config = ExchangeConfig::local(currency, std::path::Path::new("/data"), 0);
        let lanes = |config: &ExchangeConfig| [1, 4, 8, 64, 1_000].map(|cores| config.lanes_on(cores));
        assert_eq!(lanes(&config), [1, 1, 2, 16, batzen_engine::LANES_MAX]);
        config.lanes = 3;
        assert_eq!(lanes(&config), [3; 5]);
        config.store = StoreConfig::postgres("postgres:///exchange".to_owned());
        assert_eq!(lanes(&config), [3; 5]);
        config.lanes = 0;
        assert_eq!(lanes(&config), [LANES_ON_DATABASE_MAX; 5]);
        let at = |config: &ExchangeConfig| {
            [0, 300, 1_000, 2_500, 10_000, 900_000]
                .map(|us| config.lanes_at(std::time::Duration::from_micros(us)))
        };
        assert_eq!(at(&config), [1, 1, 2, 3, 8, 8]);
        config.lanes = 3;
        assert_eq!(at(&config), [3; 6]);
    }
}
