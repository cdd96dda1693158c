//! The private keys and where they are stored: the sections `[coin_*]` and `[taler-exchange-secmod-*]`.
//! [`crate::service_config`] reads the rest of the configuration of signers and their clients.

use std::collections::HashMap;
use std::path::PathBuf;

use batzen_config::{Config, ConfigError as IniError, Expected};
use batzen_crypto::EddsaPublicKey;
use batzen_crypto::denom::Cipher;
use batzen_protocol::{Duration, Timestamp};

use crate::address::{self, Address};
use crate::listing::{DenomInfo, SigningInfo};
use crate::schedule::{Schedule, ScheduleError};

/// Smallest RSA modulus of denominations, in bits.
pub const RSA_BITS_MIN: u32 = 1024;
/// Largest RSA modulus of denominations, in bits.
pub const RSA_BITS_MAX: u32 = 8192;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The configuration's text, or one of its values, does not parse.
    #[error("{0}")]
    Ini(String),
    /// A value parses but is not valid.
    #[error("[{section}] {reason}")]
    Invalid {
        /// Its section.
        section: String,
        /// The problem in words.
        reason: String,
    },
}

impl ConfigError {
    /// An invalid value.
    pub fn invalid(section: &str, reason: impl Into<String>) -> Self {
        Self::Invalid { section: section.into(), reason: reason.into() }
    }
}

impl From<IniError> for ConfigError {
    fn from(error: IniError) -> Self {
        Self::Ini(error.to_string())
    }
}

/// The cipher of a denomination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CipherConfig {
    /// Blind RSA.
    Rsa {
        /// Length of the modulus in bits.
        bits: u32,
    },
    /// Clause Blind Schnorr.
    Cs,
}

impl CipherConfig {
    /// The cipher without its parameters.
    pub(crate) const fn cipher(self) -> Cipher {
        match self {
            Self::Rsa { .. } => Cipher::Rsa,
            Self::Cs => Cipher::Cs,
        }
    }
}

batzen_protocol::enumeration! {
    /// A kind of private key. Each kind has a security module of its own, which may be a process of its own.
    pub enum ModuleKind {
        /// RSA denomination keys.
        Rsa => "rsa",
        /// Clause Blind Schnorr denomination keys.
        Cs => "cs",
        /// Online signing keys.
        Eddsa => "eddsa",
    }
}

impl ModuleKind {
    /// The name of its section, which is also that of the key helper program.
    pub const fn section(self) -> &'static str {
        match self {
            Self::Rsa => RSA,
            Self::Cs => CS,
            Self::Eddsa => EDDSA,
        }
    }

    /// The kind that holds the keys of denominations with this cipher.
    pub(crate) const fn of_cipher(cipher: Cipher) -> Self {
        match cipher {
            Cipher::Rsa => Self::Rsa,
            Cipher::Cs => Self::Cs,
        }
    }
}

/// A section `[taler-exchange-secmod-*]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleConfig {
    /// Time that two consecutive keys are valid at the same time.
    pub overlap_duration: Duration,
    /// Time ahead for which keys are created.
    pub lookahead_sign: Duration,
    /// Time for which a key stays on disk after its use has ended, since the clock may be wrong.
    pub erase_delay: Duration,
    /// The directory of the private keys.
    pub key_dir: PathBuf,
    /// The module's own private key.
    pub sm_priv_key: PathBuf,
}

/// The part of a section `[coin_*]` that concerns its private keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SectionConfig {
    /// The name of the section, and of the directory with its keys.
    pub section: String,
    /// The cipher.
    pub cipher: CipherConfig,
    /// Time that one key is used for signing.
    pub duration: Duration,
}

/// Configuration of all private keys of an exchange.
#[derive(Clone, Debug)]
pub struct KeysConfig {
    /// The denominations.
    pub sections: Vec<SectionConfig>,
    /// RSA denomination keys.
    pub rsa: ModuleConfig,
    /// Clause Blind Schnorr denomination keys.
    pub cs: ModuleConfig,
    /// Online signing keys.
    pub eddsa: ModuleConfig,
    /// Time that one online signing key is used.
    pub signkey_duration: Duration,
}

/// The default of [`ModuleConfig::erase_delay`].
pub const ERASE_DELAY: Duration = Duration::from_secs(12 * 3_600);

const RSA: &str = "taler-exchange-secmod-rsa";
const CS: &str = "taler-exchange-secmod-cs";
const EDDSA: &str = "taler-exchange-secmod-eddsa";

/// A path. The default is expanded like a configured one.
///
/// # Errors
/// An option that is invalid, or a default that cannot be expanded.
pub fn path_or(ini: &Config, section: &str, option: &str, default: &str) -> Result<PathBuf, ConfigError> {
    if let Some(path) = ini.get(section, option)? {
        return Ok(path);
    }
    let expanded = ini.expand(default).map(PathBuf::from);
    expanded.map_err(|reason| ConfigError::invalid(section, format!("default of {option}: {reason}")))
}

const KEY_EXPECTED: &str = "a public key (52 characters of base32)";

/// A public key, if it is configured.
///
/// # Errors
/// If it is invalid.
pub fn optional_key(
    ini: &Config,
    section: &str,
    option: &str,
) -> Result<Option<EddsaPublicKey>, ConfigError> {
    let read = |text: &str| text.parse().map_err(|_| Expected::new(KEY_EXPECTED));
    Ok(ini.get_with(section, option, read)?)
}

/// A public key.
///
/// # Errors
/// If it is missing or invalid.
pub fn key(ini: &Config, section: &str, option: &str) -> Result<EddsaPublicKey, ConfigError> {
    optional_key(ini, section, option)?.ok_or_else(|| ini.missing(section, option, KEY_EXPECTED).into())
}

/// Addresses, if they are configured.
///
/// # Errors
/// If one is invalid.
pub fn addresses(ini: &Config, section: &str, option: &str) -> Result<Option<Vec<Address>>, ConfigError> {
    let read = |text: &str| {
        let list = address::parse_list(text).ok().filter(|list| !list.is_empty());
        list.ok_or_else(|| Expected::new("tcp://host:port or unix:///path, separated by commas"))
    };
    Ok(ini.get_with(section, option, read)?)
}

/// Reads a section `[taler-exchange-secmod-NAME]`.
///
/// # Errors
/// The first invalid option, with its place.
pub fn module(ini: &Config, section: &str, name: &str) -> Result<ModuleConfig, ConfigError> {
    let home = format!("${{TALER_DATA_HOME}}/exchange-secmod-{name}");
    Ok(ModuleConfig {
        overlap_duration: ini.get_or(section, "OVERLAP_DURATION", Duration::from_secs(300))?,
        lookahead_sign: ini.get_or(section, "LOOKAHEAD_SIGN", Duration::from_days(365))?,
        erase_delay: ini.get_or(section, "ERASE_DELAY", ERASE_DELAY)?,
        key_dir: path_or(ini, section, "KEY_DIR", &format!("{home}/keys"))?,
        sm_priv_key: path_or(ini, section, "SM_PRIV_KEY", &format!("{home}/secmod-private-key"))?,
    })
}

/// Reads the cipher of a section `[coin_*]`.
///
/// # Errors
/// If it is missing or unknown, with its place.
pub fn cipher(ini: &Config, section: &str) -> Result<CipherConfig, ConfigError> {
    let cipher: String = ini.require(section, "CIPHER")?;
    match cipher.as_str() {
        "RSA" => {
            let range = u64::from(RSA_BITS_MIN)..=u64::from(RSA_BITS_MAX);
            let bits = ini.number_in(section, "RSA_KEYSIZE", range)?;
            let bits = bits.ok_or_else(|| ini.missing(section, "RSA_KEYSIZE", "a number of bits"))?;
            Ok(CipherConfig::Rsa { bits: u32::try_from(bits).expect("the range fits") })
        }
        "CS" => Ok(CipherConfig::Cs),
        _ => Err(ini.invalid(section, "CIPHER", "RSA or CS").into()),
    }
}

impl KeysConfig {
    /// Reads the part of the exchange's configuration that private keys need: nothing about money, accounts
    /// or databases.
    ///
    /// # Errors
    /// The first option that is missing or invalid, with its place.
    pub(crate) fn from_ini(ini: &Config) -> Result<Self, ConfigError> {
        let mut sections = Vec::new();
        for (section, _) in ini.sections_with(&["coin_", "coin-"]) {
            sections.push(SectionConfig {
                section: section.to_owned(),
                cipher: cipher(ini, section)?,
                duration: ini.duration(section, "DURATION_WITHDRAW")?,
            });
        }
        let config = Self {
            sections,
            rsa: module(ini, RSA, "rsa")?,
            cs: module(ini, CS, "cs")?,
            eddsa: module(ini, EDDSA, "eddsa")?,
            signkey_duration: ini.get_or(EDDSA, "DURATION", Duration::from_days(12 * 7))?,
        };
        config.validate()?;
        Ok(config)
    }

    /// The configuration of a module.
    pub fn module(&self, kind: ModuleKind) -> &ModuleConfig {
        match kind {
            ModuleKind::Rsa => &self.rsa,
            ModuleKind::Cs => &self.cs,
            ModuleKind::Eddsa => &self.eddsa,
        }
    }

    /// The schedule of a section's keys.
    pub(crate) fn section_schedule(&self, section: &SectionConfig) -> Schedule {
        let module = self.module(ModuleKind::of_cipher(section.cipher.cipher()));
        Schedule {
            duration: section.duration,
            overlap: module.overlap_duration,
            lookahead: module.lookahead_sign,
        }
    }

    /// The schedule of the online signing keys.
    pub(crate) fn signkey_schedule(&self) -> Schedule {
        Schedule {
            duration: self.signkey_duration,
            overlap: self.eddsa.overlap_duration,
            lookahead: self.eddsa.lookahead_sign,
        }
    }

    /// Returns whether every section, and the signing keys, have the keys that must exist now.
    pub fn is_satisfied_by<'a>(
        &self,
        denominations: impl Iterator<Item = &'a DenomInfo>,
        signing: impl Iterator<Item = &'a SigningInfo>,
        now: Timestamp,
    ) -> bool {
        let mut last: HashMap<(Cipher, &str), Timestamp> = HashMap::new();
        for key in denominations {
            let newest = last.entry((key.cipher(), &key.section)).or_insert(key.anchor);
            *newest = key.anchor.max(*newest);
        }
        let mut sections = self.sections.iter();
        sections.all(|section| {
            let last = last.get(&(section.cipher.cipher(), section.section.as_str()));
            self.section_schedule(section).is_complete(last.copied(), now)
        }) && self.signkey_schedule().is_complete(signing.map(|key| key.anchor).max(), now)
    }

    /// Checks rules that involve several options.
    ///
    /// # Errors
    /// The first invalid section.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let schedule = |section: &str, schedule: Schedule| {
            schedule
                .validate()
                .map_err(|error: ScheduleError| ConfigError::invalid(section, error.to_string()))
        };
        schedule(EDDSA, self.signkey_schedule())?;
        let mut names = std::collections::HashSet::new();
        for coin in &self.sections {
            let section = coin.section.as_str();
            let safe =
                section.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b'+'));
            if !safe || section.is_empty() || section.starts_with('.') {
                return Err(ConfigError::invalid(
                    section,
                    "the name must be usable as the name of a directory",
                ));
            }
            if !names.insert(section.to_ascii_uppercase()) {
                return Err(ConfigError::invalid(section, "the section exists twice"));
            }
            schedule(section, self.section_schedule(coin))?;
            if let CipherConfig::Rsa { bits } = coin.cipher
                && (!(RSA_BITS_MIN..=RSA_BITS_MAX).contains(&bits) || !bits.is_multiple_of(128))
            {
                let reason =
                    format!("RSA_KEYSIZE must be a multiple of 128 from {RSA_BITS_MIN} to {RSA_BITS_MAX}");
                return Err(ConfigError::invalid(section, reason));
            }
        }
        Ok(())
    }
}
