//! Typed values.

use crate::{Config, ConfigError, canonical};
use batzen_protocol::{Amount, Duration};
use std::{fmt::Write as _, ops::RangeInclusive, path::PathBuf};

/// The expected value, and perhaps what is wrong with the found one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The expected form, to complete "expected …".
    pub expected: String,
    /// The fault, unless the value itself shows it.
    pub found: Option<String>,
}

impl Expected {
    /// An error that names the expected value.
    #[must_use]
    pub fn new(expected: impl Into<String>) -> Self {
        Self { expected: expected.into(), found: None }
    }
}

/// A type that an option can have.
pub trait FromConfig: Sized {
    /// The expected form, in words.
    const EXPECTED: &'static str;

    /// Parses a value; `config` is available for expansion.
    ///
    /// # Errors
    /// The form that was expected.
    fn from_config(text: &str, config: &Config) -> Result<Self, Expected>;
}

impl FromConfig for String {
    const EXPECTED: &'static str = "a text";
    fn from_config(text: &str, _: &Config) -> Result<Self, Expected> {
        Ok(text.to_owned())
    }
}

impl FromConfig for PathBuf {
    const EXPECTED: &'static str = "a path";
    fn from_config(text: &str, config: &Config) -> Result<Self, Expected> {
        let fail = |found: Option<String>| Expected { expected: Self::EXPECTED.to_owned(), found };
        let expanded = config.expand(text).map_err(|error| fail(Some(error.to_string())))?;
        let path = match expanded.strip_prefix("~/") {
            Some(rest) => match (config.env)("HOME") {
                Some(home) => PathBuf::from(home).join(rest),
                None => return Err(fail(Some("~ without a home directory".to_owned()))),
            },
            None => PathBuf::from(expanded),
        };
        if path.as_os_str().is_empty() { Err(fail(None)) } else { Ok(path) }
    }
}

macro_rules! numbers {
    ($($type:ty, $expected:literal;)*) => {$(
        impl FromConfig for $type {
            const EXPECTED: &'static str = $expected;
            fn from_config(text: &str, _: &Config) -> Result<Self, Expected> {
                // Signs are not allowed: `+5` is as wrong as `-5`.
                if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
                    return Err(Expected::new(Self::EXPECTED));
                }
                text.parse().map_err(|_| Expected::new(Self::EXPECTED))
            }
        }
    )*};
}

numbers! {
    u8, "a number from 0 to 255";
    u16, "a number from 0 to 65535";
    u32, "a number from 0 to 4294967295";
    u64, "a number from 0 to 18446744073709551615";
    usize, "a number";
}

impl FromConfig for bool {
    const EXPECTED: &'static str = "YES or NO";
    fn from_config(text: &str, _: &Config) -> Result<Self, Expected> {
        if text.eq_ignore_ascii_case("yes") {
            Ok(true)
        } else if text.eq_ignore_ascii_case("no") {
            Ok(false)
        } else {
            Err(Expected::new(Self::EXPECTED))
        }
    }
}

impl FromConfig for Duration {
    const EXPECTED: &'static str = "a duration such as 20 s, 1 h 30 m, 4 weeks, 1 year or forever";
    fn from_config(text: &str, _: &Config) -> Result<Self, Expected> {
        parse_duration(text).ok_or_else(|| Expected::new(Self::EXPECTED))
    }
}

impl FromConfig for Amount {
    const EXPECTED: &'static str = "an amount such as KUDOS:1.50";
    fn from_config(text: &str, _: &Config) -> Result<Self, Expected> {
        Self::parse(text).map_err(|error| Expected {
            expected: Self::EXPECTED.to_owned(),
            found: Some(format!("{text:?} ({error})")),
        })
    }
}

/// Parses a duration: numbers with units, added up (`1 h 30 m`), or `forever`. `0` needs no unit. `None` if
/// the text is malformed, or too long for a finite duration.
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    if text.eq_ignore_ascii_case("forever") {
        return Some(Duration::FOREVER);
    }
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut micros: u64 = 0;
    let mut rest = text;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..end].parse().ok()?;
        rest = rest[end..].trim_start();
        let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let unit = unit_micros(&rest[..end])?;
        let after = &rest[end..];
        rest = after.trim_start();
        if !rest.is_empty() && rest.len() == after.len() {
            return None;
        }
        micros = micros.checked_add(number.checked_mul(unit)?)?;
    }
    (micros < u64::MAX).then(|| Duration::from_micros(micros))
}

fn unit_micros(unit: &str) -> Option<u64> {
    const SECOND: u64 = 1_000_000;
    const DAY: u64 = 86_400 * SECOND;
    Some(match unit.to_ascii_lowercase().as_str() {
        "us" => 1,
        "ms" => 1000,
        "s" | "second" | "seconds" => SECOND,
        "m" | "min" | "minute" | "minutes" => 60 * SECOND,
        "h" | "hour" | "hours" => 3600 * SECOND,
        "d" | "day" | "days" => DAY,
        "week" | "weeks" => 7 * DAY,
        "a" | "year" | "years" => 365 * DAY,
        _ => return None,
    })
}

/// Formats a value for an error message: quoted, control characters escaped, and no longer than a line.
fn shown(text: &str) -> String {
    const MAX_CHARS: usize = 80;
    let mut out = String::from("\"");
    for (index, c) in text.chars().enumerate() {
        if index == MAX_CHARS {
            out.push('…');
            break;
        }
        let _ = write!(out, "{}", c.escape_debug());
    }
    out.push('"');
    out
}

impl Config {
    /// An optional option.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] if it is present but invalid.
    pub fn get<T: FromConfig>(&self, section: &str, option: &str) -> Result<Option<T>, ConfigError> {
        self.get_with(section, option, |text| T::from_config(text, self))
    }

    /// A required option.
    ///
    /// # Errors
    /// [`ConfigError::Missing`], or [`ConfigError::Invalid`].
    pub fn require<T: FromConfig>(&self, section: &str, option: &str) -> Result<T, ConfigError> {
        self.get(section, option)?.ok_or_else(|| self.missing(section, option, T::EXPECTED))
    }

    /// An option with a default.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] if it is present but invalid.
    pub fn get_or<T: FromConfig>(&self, section: &str, option: &str, default: T) -> Result<T, ConfigError> {
        Ok(self.get(section, option)?.unwrap_or(default))
    }

    /// An option parsed by a function of the caller (keys, URLs, …).
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] if the function refuses it.
    pub fn get_with<T>(
        &self,
        section: &str,
        option: &str,
        read: impl FnOnce(&str) -> Result<T, Expected>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.raw(section, option) else { return Ok(None) };
        read(&value.text).map(Some).map_err(|Expected { expected, found }| ConfigError::Invalid {
            at: value.source.clone(),
            section: canonical(section).into(),
            option: canonical(option).into(),
            expected: expected.into(),
            found: found.unwrap_or_else(|| shown(&value.text)).into(),
        })
    }

    /// The error for a missing required option.
    #[must_use]
    pub fn missing(&self, section: &str, option: &str, expected: &str) -> ConfigError {
        ConfigError::Missing {
            section: canonical(section).into(),
            option: canonical(option).into(),
            expected: expected.into(),
        }
    }

    /// The error for an option that is well-formed, but wrong for another reason.
    #[must_use]
    pub fn invalid(&self, section: &str, option: &str, expected: &str) -> ConfigError {
        match self.raw(section, option) {
            None => self.missing(section, option, expected),
            Some(value) => ConfigError::Invalid {
                at: value.source.clone(),
                section: canonical(section).into(),
                option: canonical(option).into(),
                expected: expected.into(),
                found: shown(&value.text).into(),
            },
        }
    }

    /// A required text.
    ///
    /// # Errors
    /// As [`Config::require`].
    pub fn string(&self, section: &str, option: &str) -> Result<String, ConfigError> {
        self.require(section, option)
    }

    /// A required path, expanded.
    ///
    /// # Errors
    /// As [`Config::require`].
    pub fn path(&self, section: &str, option: &str) -> Result<PathBuf, ConfigError> {
        self.require(section, option)
    }

    /// A required number.
    ///
    /// # Errors
    /// As [`Config::require`].
    pub fn number(&self, section: &str, option: &str) -> Result<u64, ConfigError> {
        self.require(section, option)
    }

    /// An optional number within bounds.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] if it is present but out of bounds or not a number.
    pub fn number_in(
        &self,
        section: &str,
        option: &str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, ConfigError> {
        self.get_with(section, option, |text| {
            u64::from_config(text, self)
                .ok()
                .filter(|number| range.contains(number))
                .ok_or_else(|| Expected::new(format!("a number from {} to {}", range.start(), range.end())))
        })
    }

    /// A required YES or NO.
    ///
    /// # Errors
    /// As [`Config::require`].
    pub fn boolean(&self, section: &str, option: &str) -> Result<bool, ConfigError> {
        self.require(section, option)
    }

    /// A required duration.
    ///
    /// # Errors
    /// As [`Config::require`].
    pub fn duration(&self, section: &str, option: &str) -> Result<Duration, ConfigError> {
        self.require(section, option)
    }

    /// A required amount.
    ///
    /// # Errors
    /// As [`Config::require`].
    pub fn amount(&self, section: &str, option: &str) -> Result<Amount, ConfigError> {
        self.require(section, option)
    }

    /// An optional choice between several words (in any case), returned as the associated value.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] if it is another word.
    pub fn choice<T: Clone>(
        &self,
        section: &str,
        option: &str,
        choices: &[(&str, T)],
    ) -> Result<Option<T>, ConfigError> {
        self.get_with(section, option, |text| {
            let found = choices.iter().find(|(word, _)| word.eq_ignore_ascii_case(text));
            found.map(|(_, value)| value.clone()).ok_or_else(|| {
                let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
                Expected::new(match words.split_last() {
                    Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
                    _ => words.join(""),
                })
            })
        })
    }
}
