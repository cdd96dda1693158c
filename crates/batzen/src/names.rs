//! Program names that existing operators, test harnesses and service units use.
//!
//! `make install` links them to the one binary, which checks the name it was called by.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Name of a program → the equivalent native command.
pub const NAMES: &[(&str, &[&str])] = &[
    ("taler-fakebank-run", &["bank", "serve"]),
    ("taler-exchange-dbinit", &["exchange", "dbinit"]),
    ("taler-exchange-httpd", &["exchange", "serve", "--as-httpd"]),
    ("taler-exchange-offline", &["exchange", "offline"]),
    ("taler-exchange-wirewatch", &["exchange", "wirewatch"]),
    ("taler-exchange-aggregator", &["exchange", "aggregator"]),
    ("taler-exchange-transfer", &["exchange", "transfer"]),
    ("taler-exchange-closer", &["exchange", "closer"]),
    ("taler-exchange-expire", &["exchange", "expire"]),
    ("taler-exchange-drain", &["exchange", "drain"]),
    ("taler-exchange-secmod-rsa", &["signer", "helper", "rsa"]),
    ("taler-exchange-secmod-cs", &["signer", "helper", "cs"]),
    ("taler-exchange-secmod-eddsa", &["signer", "helper", "eddsa"]),
    ("taler-config", &["config"]),
];

/// Translates the arguments to those of the native command line, whatever name the program was called by.
pub fn native_arguments(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments = arguments.into_iter();
    let program = arguments.next().unwrap_or_else(|| "batzen".into());
    let name = Path::new(&program).file_name().and_then(OsStr::to_str).unwrap_or_default();
    let mut native = vec![OsString::from("batzen")];
    if let Some((_, words)) = NAMES.iter().find(|(known, _)| *known == name) {
        native.extend(words.iter().map(OsString::from));
    }
    native.extend(arguments);
    native
}

#[cfg(test)]
mod tests {
    use super::*;

    fn native(arguments: &[&str]) -> Vec<String> {
        native_arguments(arguments.iter().map(OsString::from))
            .into_iter()
            .map(|argument| argument.into_string().unwrap())
            .collect()
    }

    #[test]
    fn known_names_become_commands() {
        assert_eq!(
            native(&["/usr/bin/taler-fakebank-run", "-c", "x"]),
            ["batzen", "bank", "serve", "-c", "x"]
        );
        assert_eq!(native(&["./batzen", "demo"]), ["batzen", "demo"]);
        assert_eq!(native(&["renamed", "demo"]), ["batzen", "demo"]);
    }
}
