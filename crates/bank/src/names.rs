//! Names of accounts, and their payto URIs.

use batzen_protocol::limits::PAYTO_BYTES_MAX;

/// The longest name of an account, in bytes.
const MAX_NAME_BYTES: usize = 200;

/// Whether an account can have this name: printable ASCII without characters that delimit it in URLs. Because
/// `#` is excluded, the bank's own account cannot be named.
pub(crate) fn is_account_name(name: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_graphic() && !b"/?#%&\"\\<>".contains(&byte))
}

/// The account of an `x-taler-bank` payto URI. The host does not matter: all its names mean this bank.
pub(crate) fn account_of_payto(uri: &str) -> Option<&str> {
    const PREFIX: &str = "payto://x-taler-bank/";
    if uri.len() > PAYTO_BYTES_MAX {
        return None;
    }
    let (prefix, rest) = uri.split_at_checked(PREFIX.len())?;
    if !prefix.eq_ignore_ascii_case(PREFIX) {
        return None;
    }
    let path = rest.split_once('?').map_or(rest, |(path, _)| path);
    let (host, account) = path.split_once('/')?;
    (!host.is_empty() && is_account_name(account)).then_some(account)
}

/// The payto URI of an account at this bank.
pub(crate) fn payto(hostname: &str, account: &str) -> String {
    format!("payto://x-taler-bank/{hostname}/{account}?receiver-name={account}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_of_payto_uris() {
        for (uri, account) in [
            ("payto://x-taler-bank/localhost/2?receiver-name=2", Some("2")),
            ("payto://x-taler-bank/localhost:8082/user-A1", Some("user-A1")),
            ("PAYTO://X-Taler-Bank/bank.test/x?a=/b", Some("x")),
            ("payto://x-taler-bank/localhost/a_b", Some("a_b")),
            ("payto://x-taler-bank/localhost/", None),
            ("payto://x-taler-bank/localhost", None),
            ("payto://x-taler-bank//x", None),
            ("payto://x-taler-bank/localhost/a/b", None),
            ("payto://x-taler-bank/localhost/a%20b", None),
            ("payto://x-taler-bank/localhost/#signup-bonus", None),
            ("payto://iban/DE75512108001245126199?receiver-name=X", None),
            ("payto://x-taler-bänk/localhost/2", None),
            ("", None),
        ] {
            assert_eq!(account_of_payto(uri), account, "{uri}");
        }
        assert_eq!(account_of_payto(&payto("localhost", "42")), Some("42"));
        assert!(!is_account_name(&"x".repeat(201)));
    }
}
