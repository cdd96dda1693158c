//! Program names that existing operators, test harnesses and service units use.
//!
//! `make install` and the Debian package link them to the one binary, which checks the name it was called by.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Name of a program → the equivalent native command.
pub(crate) const NAMES: &[(&str, &[&str])] = &[
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
    ("taler-exchange-kyc-tester", &["exchange", "kyc", "test"]),
    ("taler-exchange-wire-gateway-client", &["bank", "wire-gateway-client"]),
    ("taler-merchant-dbinit", &["merchant", "dbinit"]),
    ("taler-merchant-httpd", &["merchant", "serve"]),
    ("taler-auditor-dbinit", &["auditor", "dbinit"]),
    ("taler-auditor-httpd", &["auditor", "serve"]),
    ("taler-auditor-exchange", &["auditor", "exchange", "change"]),
    ("taler-auditor-offline", &["auditor", "offline"]),
    ("taler-auditor-sync", &["auditor", "sync"]),
    ("taler-helper-auditor-aggregation", &["auditor", "check", "aggregation"]),
    ("taler-helper-auditor-coins", &["auditor", "check", "coins"]),
    ("taler-helper-auditor-deposits", &["auditor", "check", "deposits"]),
    ("taler-helper-auditor-purses", &["auditor", "check", "purses"]),
    ("taler-helper-auditor-reserves", &["auditor", "check", "reserves"]),
    ("taler-helper-auditor-wire", &["auditor", "check", "wire"]),
    ("taler-config", &["config"]),
];

/// Name of a program that does nothing here → why.
#[rustfmt::skip] // The scripts that install links read one name a line.
pub(crate) const ABSENT: &[(&str, &str)] = &[
    ("taler-exchange-router", NO_ROUTER),
];

const NO_ROUTER: &str = "an exchange of this protocol version does not pay reserves at other exchanges";

/// Beginnings of the names of programs that existing set-ups call.
const PREFIXES: &[&str] = &["taler-", "sync-"];

/// Translates the arguments to those of the native command line, whatever name the program was called by.
///
/// # Errors
/// The name belongs to a program that does not exist here; one line that says so.
pub(crate) fn native_arguments(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<Vec<OsString>, String> {
    let mut arguments = arguments.into_iter();
    let program = arguments.next().unwrap_or_else(|| "batzen".into());
    let name = Path::new(&program).file_name().and_then(OsStr::to_str).unwrap_or_default();
    let mut native = vec![OsString::from("batzen")];
    if let Some((_, words)) = NAMES.iter().find(|(known, _)| *known == name) {
        native.extend(words.iter().map(OsString::from));
    } else if let Some((_, reason)) = ABSENT.iter().find(|(absent, _)| *absent == name) {
        return Err(format!("{name} has nothing to do: {reason}. Do not start it"));
    } else if PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
        return Err(format!("there is no program called {name} (docs/drop-in.md lists all)"));
    }
    native.extend(arguments);
    Ok(native)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn native(arguments: &[&str]) -> Result<Vec<String>, String> {
        let native = native_arguments(arguments.iter().map(OsString::from))?;
        Ok(native.into_iter().map(|argument| argument.into_string().unwrap()).collect())
    }

    #[test]
    fn known_names_become_commands() {
        let words = |arguments: &[&str]| native(arguments).unwrap();
        assert_eq!(
            words(&["/usr/bin/taler-fakebank-run", "-c", "x"]),
            ["batzen", "bank", "serve", "-c", "x"]
        );
        assert_eq!(words(&["./batzen", "demo"]), ["batzen", "demo"]);
        assert_eq!(words(&["renamed", "demo"]), ["batzen", "demo"]);
    }

    #[test]
    fn programs_that_do_not_exist_are_named() {
        for (name, hint) in
            [("/bin/taler-exchange-router", "other exchanges"), ("taler-mailbox", "drop-in.md")]
        {
            let error = native(&[name]).unwrap_err();
            assert!(error.contains(hint), "{error}");
        }
    }
}
