//! Writing configurations as text.

use crate::{Config, Origin, Value, parse::quote};
use std::fmt::Write as _;

/// Parts of option names whose values a dump does not show.
const SECRET_WORDS: &[&str] = &["PASSWORD", "SECRET", "TOKEN", "SALT", "PRIVATE_KEY"];

impl Value {
    /// Returns whether listings hide this value, because it comes from a file of secrets, or `option` has the
    /// name of a secret.
    #[must_use]
    pub fn is_secret(&self, option: &str) -> bool {
        let option = option.to_ascii_uppercase();
        self.source.origin == Origin::Secret || SECRET_WORDS.iter().any(|word| option.contains(word))
    }
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

    /// A listing of every option with its value and source. Values that look like secrets are hidden.
    #[must_use]
    pub fn dump(&self) -> String {
        let mut out = String::new();
        for (name, section) in &self.sections {
            let _ = writeln!(out, "[{name}]");
            for (option, value) in &section.options {
                let text =
                    if value.is_secret(option) { "(not shown)".to_owned() } else { quote(&value.text) };
                let _ = writeln!(out, "{option} = {text}   # {}", value.source);
            }
            out.push('\n');
        }
        out
    }
}
