//! Identification of customers: `[kyc-legitimization-*]`, `[kyc-provider-*]` and `[kyc-officer-*]`.

use std::path::PathBuf;

use batzen_config::Expected;
use batzen_crypto::{EddsaPublicKey, HashCode};
use batzen_protocol::Duration;
use batzen_protocol::payto::PaytoUri;
use batzen_tables::exchange::KycOperation;

use super::ini::Reader;
use super::{ConfigError, ExchangeConfig};
use crate::rules::{KycProvider, KycRule, KycRules, KycUserType};

const RULE_PREFIX: &str = "kyc-legitimization-";
const PROVIDER_PREFIX: &str = "kyc-provider-";
const OFFICER_PREFIX: &str = "kyc-officer-";

/// An OAuth 2.0 provider (authorisation code flow, RFC 6749 chapter 4.1).
#[derive(Clone, PartialEq, Eq)]
pub struct OAuth2Config {
    /// Where the user logs in.
    pub login_url: String,
    /// Where a code is exchanged for an access token.
    pub auth_url: String,
    /// Where the access token shows the user's attributes.
    pub info_url: String,
    /// Where the user is sent in the end.
    pub post_url: String,
    /// The exchange's name at the provider.
    pub client_id: String,
    /// The exchange's password at the provider; never printed.
    pub client_secret: String,
}

impl std::fmt::Debug for OAuth2Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { login_url, auth_url, info_url, client_id, .. } = self;
        write!(f, "OAuth2 {{ {login_url}, {auth_url}, {info_url}, client {client_id}, secret … }}")
    }
}

/// The protocol of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KycLogicConfig {
    /// Another service identifies the user.
    OAuth2(OAuth2Config),
    /// The user fills in a form of this exchange, and its officers decide.
    Manual {
        /// Where the user is sent in the end; none for a page that says that officers will decide.
        post_url: Option<String>,
    },
}

/// A section `[kyc-provider-*]`; its checks are in [`KycRules::providers`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KycProviderConfig {
    /// The section's name, in lower case as in URLs.
    pub section: String,
    /// Time that an identification is valid.
    pub validity: Duration,
    /// Its protocol.
    pub logic: KycLogicConfig,
}

/// A section `[kyc-officer-*]`: somebody who decides on what users have entered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KycOfficerConfig {
    /// The officer's name.
    pub name: String,
    /// SHA-512 of the officer's token.
    pub token_hash: HashCode,
}

/// Everything about the identification of customers. Empty: nobody is ever identified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KycConfig {
    /// Limits, and the checks of the providers.
    pub rules: KycRules,
    /// The providers, in the order of [`KycRules::providers`].
    pub providers: Vec<KycProviderConfig>,
    /// The officers.
    pub officers: Vec<KycOfficerConfig>,
    /// The file with the 64 bytes that encrypt attributes; created if missing.
    pub attributes_key_file: PathBuf,
}

impl KycConfig {
    /// Returns whether there is anything to identify.
    pub(crate) fn is_used(&self) -> bool {
        !self.rules.rules.is_empty() || !self.providers.is_empty()
    }

    /// Checks rules, providers and officers against each other.
    pub(super) fn validate(&self, config: &ExchangeConfig) -> Result<(), ConfigError> {
        for rule in &self.rules.rules {
            for check in &rule.checks {
                if !self.rules.providers.iter().any(|provider| provider.checks.contains(check)) {
                    let reason = format!(
                        "no provider for the check {check}: add it to PROVIDED_CHECKS of a [kyc-provider-…]"
                    );
                    return Err(ConfigError::invalid("kyc-legitimization", reason));
                }
            }
        }
        for (n, officer) in self.officers.iter().enumerate() {
            let section = format!("{OFFICER_PREFIX}{}", officer.name);
            if officer.name.is_empty() || officer.name.contains(char::is_whitespace) {
                return Err(ConfigError::invalid(&section, "an officer's name is one word"));
            }
            // Four eyes belong to two people.
            if self.officers[..n].iter().any(|other| other.token_hash == officer.token_hash) {
                return Err(ConfigError::invalid(&section, "TOKEN_HASH is that of another officer"));
            }
        }
        let holds_payouts = self.rules.limits(KycOperation::Deposit);
        for (provider, checks) in self.providers.iter().zip(&self.rules.providers) {
            if !matches!(provider.logic, KycLogicConfig::Manual { .. }) {
                continue;
            }
            let of_deposits = self.rules.rules.iter().filter(|rule| rule.operation == KycOperation::Deposit);
            let releases =
                of_deposits.flat_map(|rule| &rule.checks).any(|check| checks.checks.contains(check));
            let needed = if holds_payouts && releases { 2 } else { 1 };
            if self.officers.len() < needed {
                let reason = format!(
                    "LOGIC = manual needs {needed} or more [kyc-officer-…] sections, who decide{}",
                    if needed == 2 { " together when held payouts are released" } else { "" },
                );
                return Err(ConfigError::invalid(provider.section.as_str(), reason));
            }
        }
        if self.is_used()
            && PaytoUri::reserve(&config.base_url, &EddsaPublicKey::from_bytes([1; 32])).is_err()
        {
            return Err(ConfigError::invalid("exchange", "BASE_URL cannot be part of a payto URI"));
        }
        Ok(())
    }
}

impl Reader<'_> {
    pub(super) fn kyc(&self) -> Result<KycConfig, ConfigError> {
        let mut kyc = KycConfig {
            attributes_key_file: self.path_or(
                "exchange",
                "KYC_ATTRIBUTES_KEY_FILE",
                "${TALER_DATA_HOME}/exchange/kyc-attributes.key",
            )?,
            ..KycConfig::default()
        };
        for (section, _) in self.ini.sections_with(&[RULE_PREFIX]) {
            kyc.rules.rules.push(self.kyc_rule(section)?);
        }
        for (section, _) in self.ini.sections_with(&[PROVIDER_PREFIX]) {
            let (provider, config) = self.kyc_provider(section)?;
            kyc.rules.providers.push(provider);
            kyc.providers.push(config);
        }
        for (section, name) in self.ini.sections_with(&[OFFICER_PREFIX]) {
            let read = |text: &str| {
                text.parse().map_err(|_| Expected::new("a SHA-512 hash (103 characters of base32)"))
            };
            let token_hash: Option<HashCode> = self.ini.get_with(section, "TOKEN_HASH", read)?;
            let token_hash = token_hash.ok_or_else(|| {
                self.ini.missing(section, "TOKEN_HASH", "see `batzen exchange kyc officer`")
            })?;
            kyc.officers.push(KycOfficerConfig { name: name.to_ascii_lowercase(), token_hash });
        }
        Ok(kyc)
    }

    /// Names separated by blanks.
    fn checks(&self, section: &str, option: &str) -> Result<Vec<String>, ConfigError> {
        let text = self.ini.string(section, option)?;
        let checks: Vec<String> = text.split_ascii_whitespace().map(str::to_owned).collect();
        if checks.is_empty() {
            return Err(self.ini.invalid(section, option, "names of checks, separated by blanks").into());
        }
        Ok(checks)
    }

    fn kyc_rule(&self, section: &str) -> Result<KycRule, ConfigError> {
        let choices = [
            ("withdraw", KycOperation::Withdraw),
            ("deposit", KycOperation::Deposit),
            ("merge", KycOperation::Merge),
            ("balance", KycOperation::Balance),
            ("close", KycOperation::Close),
        ];
        let operation = self.ini.choice(section, "OPERATION_TYPE", &choices)?.ok_or_else(|| {
            self.ini.missing(section, "OPERATION_TYPE", "withdraw, deposit, merge, balance or close")
        })?;
        let timeframe = match operation {
            KycOperation::Balance => self.duration_or(section, "TIMEFRAME", Duration::FOREVER)?,
            _ => self.ini.duration(section, "TIMEFRAME")?,
        };
        let threshold = self.money(section, "THRESHOLD")?;
        Ok(KycRule { operation, checks: self.checks(section, "REQUIRED_CHECKS")?, threshold, timeframe })
    }

    fn kyc_provider(&self, section: &str) -> Result<(KycProvider, KycProviderConfig), ConfigError> {
        let users = [("individual", KycUserType::Individual), ("business", KycUserType::Business)];
        let user_type = self.ini.choice(section, "USER_TYPE", &users)?;
        let user_type =
            user_type.ok_or_else(|| self.ini.missing(section, "USER_TYPE", "individual or business"))?;
        let is_oauth2 = self.ini.choice(section, "LOGIC", &[("oauth2", true), ("manual", false)])?;
        let is_oauth2 = is_oauth2.ok_or_else(|| self.ini.missing(section, "LOGIC", "oauth2 or manual"))?;
        let (validity, logic) = match is_oauth2 {
            true => {
                let url = |option: &str| self.web_url(section, option);
                let logic = KycLogicConfig::OAuth2(OAuth2Config {
                    login_url: url("KYC_OAUTH2_LOGIN_URL")?,
                    auth_url: url("KYC_OAUTH2_AUTH_URL")?,
                    info_url: url("KYC_OAUTH2_INFO_URL")?,
                    post_url: url("KYC_OAUTH2_POST_URL")?,
                    client_id: self.ini.string(section, "KYC_OAUTH2_CLIENT_ID")?,
                    client_secret: self.ini.string(section, "KYC_OAUTH2_CLIENT_SECRET")?,
                });
                (self.ini.duration(section, "KYC_OAUTH2_VALIDITY")?, logic)
            }
            false => {
                let post_url = match self.ini.raw(section, "KYC_MANUAL_POST_URL") {
                    Some(_) => Some(self.web_url(section, "KYC_MANUAL_POST_URL")?),
                    None => None,
                };
                (self.ini.duration(section, "KYC_MANUAL_VALIDITY")?, KycLogicConfig::Manual { post_url })
            }
        };
        let section = section.to_ascii_lowercase();
        let provider = KycProvider {
            section: section.clone(),
            cost: self.ini.get_or(&section, "COST", 0)?,
            user_type,
            checks: self.checks(&section, "PROVIDED_CHECKS")?,
        };
        Ok((provider, KycProviderConfig { section, validity, logic }))
    }

    fn web_url(&self, section: &str, option: &str) -> Result<String, ConfigError> {
        let url = self.ini.string(section, option)?;
        if url.starts_with("http://") || url.starts_with("https://") {
            return Ok(url);
        }
        Err(self.ini.invalid(section, option, "a URL that starts with http:// or https://").into())
    }
}

#[cfg(test)]
mod tests {
    use batzen_config::Config;
    use batzen_protocol::{Currency, Money};

    use super::*;

    const SAMPLE: &str = "\
[kyc-legitimization-day]
operation_type = withdraw
required_checks = name address
threshold = KUDOS:100
timeframe = 1 day
[kyc-legitimization-wallet]
operation_type = BALANCE
required_checks = name
threshold = KUDOS:1000
[kyc-provider-Login]
cost = 3
logic = oauth2
user_type = individual
provided_checks = name address
kyc_oauth2_validity = forever
kyc_oauth2_login_url = http://kyc.example/login
kyc_oauth2_auth_url = http://kyc.example/token
kyc_oauth2_info_url = http://kyc.example/info
kyc_oauth2_post_url = http://shop.example/
kyc_oauth2_client_id = exchange
kyc_oauth2_client_secret = hush
[kyc-provider-clerk]
logic = manual
user_type = business
provided_checks = name
kyc_manual_validity = 2 years
";

    fn read(changes: &str) -> Result<KycConfig, ConfigError> {
        let mut ini = Config::parse(SAMPLE).unwrap();
        ini.add_text(changes).unwrap();
        ini.add_text("[PATHS]\nTALER_DATA_HOME = /data").unwrap();
        let kyc = Reader { ini: &ini, currency: Currency::new("KUDOS").unwrap() }.kyc()?;
        let local = ExchangeConfig::local(Currency::new("KUDOS").unwrap(), std::path::Path::new("/data"), 80);
        kyc.validate(&local)?;
        Ok(kyc)
    }

    fn officer(name: &str) -> String {
        let hash = batzen_crypto::hash::sha512(name.as_bytes());
        format!("[kyc-officer-{name}]\ntoken_hash = {hash}\n")
    }

    #[test]
    fn sample_is_read() {
        let kyc = read(&officer("alice")).unwrap();
        let [day, wallet] = kyc.rules.rules.as_slice() else { panic!("{kyc:?}") };
        assert_eq!(day.checks, ["name", "address"]);
        assert_eq!((day.threshold, day.timeframe), (Money::new(100, 0).unwrap(), Duration::from_days(1)));
        assert_eq!((wallet.operation, wallet.timeframe), (KycOperation::Balance, Duration::FOREVER));
        assert_eq!(kyc.providers[1].section, "kyc-provider-login");
        assert!(!format!("{kyc:?}").contains("hush"));
        assert_eq!(kyc.officers[0].name, "alice");
        assert_eq!(kyc.attributes_key_file, PathBuf::from("/data/exchange/kyc-attributes.key"));
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let alice = officer("alice");
        for (changes, expected) in [
            (
                "[kyc-legitimization-x]\noperation_type = deposit\nrequired_checks = blood\nthreshold = KUDOS:1\ntimeframe = 1 d",
                "blood",
            ),
            ("[kyc-legitimization-day]\nthreshold = EUR:1", "THRESHOLD"),
            ("[kyc-legitimization-day]\noperation_type = melt", "OPERATION_TYPE"),
            ("[kyc-legitimization-day]\nrequired_checks = ", "REQUIRED_CHECKS"),
            ("[kyc-provider-login]\nlogic = persona", "oauth2 or manual"),
            ("[kyc-provider-login]\nkyc_oauth2_info_url = ftp://x", "KYC_OAUTH2_INFO_URL"),
            ("[kyc-officer-bob]\ntoken_hash = abc", "TOKEN_HASH"),
            (&officer("alice").replace("officer-alice", "officer-alice b"), "one word"),
            (&officer("alice").replace("officer-alice", "officer-bob"), "another officer"),
            // Two officers where payouts are released.
            ("[kyc-legitimization-day]\noperation_type = deposit", "needs 2"),
        ] {
            let message = read(&format!("{alice}{changes}")).unwrap_err().to_string();
            assert!(message.contains(expected), "{changes}: {message}");
        }
        assert!(read("").unwrap_err().to_string().contains("needs 1"));
        let both = format!("{alice}{}[kyc-legitimization-day]\noperation_type = deposit", officer("bob"));
        read(&both).unwrap();
    }
}
