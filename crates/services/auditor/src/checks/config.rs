//! The configuration of the checks: the exchange's identity, its store, and its accounts at banks.

use std::path::PathBuf;

use crate::audit::Subject;
use batzen_config::{Config, ConfigError};
use batzen_crypto::EddsaPublicKey;
use batzen_protocol::{Amount, Currency};
use batzen_service::storage::StoreConfig;
use batzen_service::wire_gateway::GatewayAuth;

const ACCOUNT_PREFIX: &str = "exchange-account-";
const CREDENTIALS_PREFIX: &str = "exchange-accountcredentials-";

/// One of the exchange's accounts.
#[derive(Debug, Clone)]
pub struct Account {
    /// Its section.
    pub section: String,
    /// Its payto URI.
    pub payto_uri: String,
    /// Whether it receives transfers.
    pub credits: bool,
    /// Whether it sends transfers.
    pub debits: bool,
    /// The base URL of its wire gateway.
    pub gateway_url: String,
    /// The credentials for it.
    pub auth: GatewayAuth,
}

/// The configuration of the checks.
#[derive(Debug, Clone)]
pub struct CheckConfig {
    /// The exchange.
    pub subject: Subject,
    /// Where its rows are.
    pub store: StoreConfig,
    /// Overdue deposits below this amount, in units of 10⁻⁸, are only counted: `[auditor] TINY_AMOUNT`.
    pub tiny: u128,
    /// Its accounts whose bank the auditor may ask.
    pub accounts: Vec<Account>,
}

/// A public key in base32.
fn key(ini: &Config, section: &str, option: &str) -> Result<Option<EddsaPublicKey>, ConfigError> {
    let Some(text) = ini.text(section, option) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| ini.invalid(section, option, "a public key in base32"))
}

impl CheckConfig {
    /// Reads a configuration. `master_pub` overrides the exchange's master key.
    ///
    /// # Errors
    /// The first option that is missing or invalid, with its place.
    pub fn from_ini(ini: &Config, master_pub: Option<EddsaPublicKey>) -> Result<Self, ConfigError> {
        let currency = Currency::new(&ini.string("taler", "CURRENCY")?)
            .map_err(|_| ini.invalid("taler", "CURRENCY", "a currency, such as EUR"))?;
        let round_unit: Option<Amount> = ini.get("taler", "CURRENCY_ROUND_UNIT")?;
        let master_pub = match master_pub {
            Some(master_pub) => master_pub,
            None => key(ini, "exchange", "MASTER_PUBLIC_KEY")?
                .ok_or_else(|| ini.invalid("exchange", "MASTER_PUBLIC_KEY", "the exchange's master key"))?,
        };
        let auditor_url: Option<String> = ini.get("auditor", "BASE_URL")?;
        let auditor_pub = key(ini, "auditor", "PUBLIC_KEY")?;
        let subject = Subject {
            currency,
            master_pub,
            base_url: ini.string("exchange", "BASE_URL")?,
            round_unit: round_unit.map_or(0, |amount| amount.money.units()),
            auditor: auditor_pub.zip(auditor_url),
        };
        let store = match StoreConfig::database_of(ini, "exchange")? {
            Some(database) => database.with_citus_direct(ini, "exchange")?,
            None => {
                let dir = match ini.get::<String>("exchangedb-embedded", "DIR")? {
                    Some(dir) => dir,
                    None => ini
                        .expand("${TALER_DATA_HOME}/exchange/store")
                        .map_err(|_| ini.invalid("exchangedb-embedded", "DIR", "a directory"))?,
                };
                StoreConfig::embedded(PathBuf::from(dir)).with_index_memory(ini, "exchange")?
            }
        };
        let mut accounts = Vec::new();
        for (section, name) in ini.sections_with(&[ACCOUNT_PREFIX]) {
            let credentials = format!("{CREDENTIALS_PREFIX}{name}");
            let Some(gateway_url) = ini.get::<String>(&credentials, "WIRE_GATEWAY_URL")? else { continue };
            accounts.push(Account {
                section: section.to_owned(),
                payto_uri: ini.string(section, "PAYTO_URI")?,
                credits: ini.get_or(section, "ENABLE_CREDIT", true)?,
                debits: ini.get_or(section, "ENABLE_DEBIT", true)?,
                gateway_url,
                auth: GatewayAuth::read(ini, &credentials)?,
            });
        }
        let tiny: Option<Amount> = ini.get("auditor", "TINY_AMOUNT")?;
        let tiny = tiny.map_or(0, |amount| amount.money.units());
        Ok(Self { subject, store, tiny, accounts })
    }
}
