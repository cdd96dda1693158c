//! Writing configurations as text.

use crate::{Config, Origin, Value, parse::quote};
use std::fmt::Write as _;

/// Parts of option names whose values a dump does not show.
const SECRET_WORDS: &[&str] = &["PASSWORD", "SECRET", "TOKEN", "SALT", "PRIVATE_KEY", "ENCRYPTION_KEY"];

/// The text in place of a part of a value that is secret.
const HIDDEN: &str = "***";

impl Value {
    /// Returns whether listings hide this value, because it comes from a file of secrets, or `option` has the
    /// name of a secret.
    #[must_use]
    pub fn is_secret(&self, option: &str) -> bool {
        let option = option.to_ascii_uppercase();
        self.source.origin == Origin::Secret || SECRET_WORDS.iter().any(|word| option.contains(word))
    }

    /// The value for listings, without the passwords in it: those of URLs (`scheme://user:password@host`) and of
    /// connection strings (`password=…`). None if all of it is secret.
    #[must_use]
    pub fn shown(&self, option: &str) -> Option<String> {
        (!self.is_secret(option)).then(|| hide_parameters(&hide_user_information(&self.text)))
    }
}

/// Hides what stands between `//USER:` and the last `@` of a URL.
fn hide_user_information(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        // A password may contain characters that end the host's name, so the whole word counts.
        let end = after.find(|c: char| c.is_whitespace() || "\"'<>".contains(c)).unwrap_or(after.len());
        let (word, next) = after.split_at(end);
        let _ = write!(out, "{before}://");
        let parts = word.rsplit_once('@').and_then(|(user, host)| Some((user.split_once(':')?, host)));
        // An `@` behind a port is in the path.
        let is_port =
            |text: &str| text.split(['/', '?']).next().is_some_and(|port| port.parse::<u16>().is_ok());
        match parts {
            Some(((user, password), host)) if !(password.contains('/') && is_port(password)) => {
                let _ = write!(out, "{user}:{HIDDEN}@{host}");
            }
            _ => out.push_str(word),
        }
        rest = next;
    }
    out + rest
}

/// Hides the values of parameters whose names end in `password`.
fn hide_parameters(text: &str) -> String {
    const NAME: &str = "password";
    let mut out = String::new();
    let mut rest = text;
    while let Some(place) = rest.to_ascii_lowercase().find(NAME) {
        let (before, after) = rest.split_at(place + NAME.len());
        out.push_str(before);
        rest = after;
        let Some(value) = after.trim_start().strip_prefix('=').map(str::trim_start) else { continue };
        let end = match value.strip_prefix('\'') {
            Some(quoted) => quoted.find('\'').map_or(value.len(), |end| end + 2),
            None => value.find(|c: char| c.is_whitespace() || c == '&').unwrap_or(value.len()),
        };
        out.push('=');
        out.push_str(HIDDEN);
        rest = &value[end..];
    }
    out + rest
}

impl Config {
    /// The whole configuration as text, names in upper case. Reading it gives the same options and values.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        for (name, section) in &self.sections {
            if section.options.is_empty() {
                continue;
            }
            let _ = writeln!(out, "[{name}]");
            for (option, value) in &section.options {
                let _ = writeln!(out, "{option} = {}", quote(&value.text));
            }
            out.push('\n');
        }
        out
    }

    /// A listing of every option with its value and source. Values that look like secrets are hidden, and passwords
    /// inside of others ([`Value::shown`]).
    #[must_use]
    pub fn dump(&self) -> String {
        let mut out = String::new();
        for (name, section) in &self.sections {
            let _ = writeln!(out, "[{name}]");
            for (option, value) in &section.options {
                let text = value.shown(option).map_or_else(|| "(not shown)".to_owned(), |text| quote(&text));
                let _ = writeln!(out, "{option} = {text}   # {}", value.source);
            }
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_inside_of_values_are_hidden() {
        for (text, shown) in [
            ("postgres://ex:PW@db/exchange?sslmode=require", "postgres://ex:***@db/exchange?sslmode=require"),
            ("postgres://ex:P/W@x@db/exchange", "postgres://ex:***@db/exchange"),
            ("postgres:///exchange", "postgres:///exchange"),
            ("http://user@host/ http://u:p@host/", "http://user@host/ http://u:***@host/"),
            ("http://host:8080/a@b", "http://host:8080/a@b"),
            ("host=db password=PW user=ex", "host=db password=*** user=ex"),
            ("host=db PASSWORD = 'P W' user=ex", "host=db PASSWORD=*** user=ex"),
            (
                "postgres://db/x?user=ex&password=PW&sslmode=require",
                "postgres://db/x?user=ex&password=***&sslmode=require",
            ),
            ("sslpassword=PW", "sslpassword=***"),
            ("a password of one's own", "a password of one's own"),
            ("", ""),
        ] {
            assert_eq!(hide_parameters(&hide_user_information(text)), shown);
        }
    }
}
