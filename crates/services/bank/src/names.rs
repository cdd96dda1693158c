//! Names of accounts, and their payto URIs.
//!
//! An account has one name and one address. A bank with a bank code ([`IbanBank`]) has accounts of two wire methods
//! side by side: accounts whose names are IBANs of the bank have `iban` URIs, all others `x-taler-bank` URIs. These
//! name the bank by its host, and only URIs with a host of this bank ([`Hosts`]) are those of its accounts.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use batzen_protocol::limits::PAYTO_BYTES_MAX;
use batzen_protocol::payto::{self, PaytoError};

/// The longest name of an account, in bytes.
const MAX_NAME_BYTES: usize = 200;

/// Returns whether an account can have this name: printable ASCII without characters that delimit it in URLs, and not a
/// step in a path, which browsers remove. Because `#` is excluded, the bank's own account cannot be named.
pub(crate) fn is_account_name(name: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&name.len())
        && !matches!(name, "." | "..")
        && name.bytes().all(|byte| byte.is_ascii_graphic() && !b"/?#%&\"\\<>".contains(&byte))
}

/// Returns whether somebody can register an account with this name: also without a colon, since HTTP basic
/// authentication ends the name there, so that nobody could log in.
pub(crate) fn is_new_account_name(name: &str) -> bool {
    is_account_name(name) && !name.contains(':')
}

/// The IBANs of the bank: a country, and the beginning of the part after the check digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IbanBank {
    country: String,
    code: String,
}

impl IbanBank {
    /// Returns whether the bank has this IBAN, in capital letters and without blanks.
    fn has(&self, iban: &str) -> bool {
        iban.starts_with(&self.country)
            && iban.get(4..).is_some_and(|number| number.starts_with(&self.code))
            && payto::validate_iban(iban).is_ok()
    }

    /// The IBAN of the account with this number at the bank.
    ///
    /// # Errors
    /// If the number has other characters than letters and digits, or is too long.
    pub fn iban(&self, number: &str) -> Result<String, PaytoError> {
        payto::iban(&self.country, &format!("{}{number}", self.code))
    }
}

impl FromStr for IbanBank {
    type Err = PaytoError;

    fn from_str(text: &str) -> Result<Self, PaytoError> {
        let text = text.to_ascii_uppercase();
        let (country, code) = text.split_at_checked(2).ok_or(PaytoError::IbanCountry)?;
        payto::iban(country, code)?;
        Ok(Self { country: country.to_owned(), code: code.to_owned() })
    }
}

impl fmt::Display for IbanBank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.country, self.code)
    }
}

/// Why a text names no account of the bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoAccount {
    /// It is not an address that the bank understands.
    Malformed,
    /// It is the address of an account at another bank: an IBAN, or a URI with another host.
    OtherBank,
}

/// The hosts that mean this bank in `x-taler-bank` URIs: its names, and every spelling of its own machine (`localhost`,
/// `127.0.0.1`, `[::1]`), each without a port or with one of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hosts {
    names: Vec<String>,
    ports: Vec<u16>,
}

impl Hosts {
    /// The hosts of a bank that is called by these names, each with or without a port, and listens on this port.
    pub(crate) fn new<'a>(names: impl IntoIterator<Item = &'a str>, port: u16) -> Self {
        let mut hosts = Self { names: Vec::new(), ports: vec![port] };
        for (name, port) in names.into_iter().filter_map(split_port) {
            hosts.names.push(name);
            hosts.ports.extend(port);
        }
        hosts
    }

    /// Returns whether the host of a URI means this bank.
    fn has(&self, host: &str) -> bool {
        let Some((name, port)) = split_port(host) else { return false };
        (self.names.contains(&name) || is_loopback(&name))
            && port.is_none_or(|port| self.ports.contains(&port))
    }
}

/// The host of a base URL, with its port.
pub(crate) fn host_of_url(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let host = rest.split(['/', '?', '#']).next()?;
    let default = if scheme.eq_ignore_ascii_case("https") { 443 } else { 80 };
    let (name, port) = split_port(host)?;
    let name = if name.contains(':') { format!("[{name}]") } else { name };
    Some(format!("{name}:{}", port.unwrap_or(default)))
}

/// Splits a host into its name, in one spelling, and its port; `None` if it is none.
fn split_port(host: &str) -> Option<(String, Option<u16>)> {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let (name, rest) = rest.split_once(']')?;
            (name, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        // An IPv6 address without brackets has no port.
        None if host.matches(':').count() > 1 => (host, None),
        None => host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port))),
    };
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let name = name.parse::<IpAddr>().map_or(name, |address| address.to_canonical().to_string());
    let port = port.map(|port| port.parse().ok()).map_or(Some(None), |port| port.map(Some))?;
    (!name.is_empty()).then_some((name, port))
}

fn is_loopback(name: &str) -> bool {
    let is_address = name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    is_address || name == "localhost" || name.ends_with(".localhost")
}

/// Addresses of the bank's accounts.
#[derive(Debug)]
pub(crate) struct Addresses {
    /// The host name in the bank's `x-taler-bank` URIs.
    pub(crate) hostname: String,
    /// The hosts that it understands in others'.
    pub(crate) hosts: Hosts,
    /// The bank's IBANs, if it has any.
    pub(crate) iban_bank: Option<IbanBank>,
}

impl Addresses {
    /// The payto URI of an account.
    pub(crate) fn payto(&self, account: &str) -> String {
        if self.iban_bank.as_ref().is_some_and(|bank| bank.has(account)) {
            return format!("payto://iban/{account}?receiver-name={account}");
        }
        format!("payto://x-taler-bank/{}/{account}?receiver-name={account}", self.hostname)
    }

    /// Returns whether somebody can register an account with this name. An IBAN would be ambiguous, unless it is one of
    /// this bank in the spelling of its URI.
    pub(crate) fn is_new_name(&self, name: &str) -> bool {
        let is_own = || self.iban_bank.as_ref().is_some_and(|bank| bank.has(name));
        is_new_account_name(name) && (payto::validate_iban(name).is_err() || is_own())
    }

    /// The account of a payto URI. A BIC before an IBAN does not matter.
    pub(crate) fn account<'a>(&self, uri: &'a str) -> Result<Cow<'a, str>, NoAccount> {
        if uri.len() > PAYTO_BYTES_MAX {
            return Err(NoAccount::Malformed);
        }
        let path_after = |prefix: &str| {
            let (start, rest) = uri.split_at_checked(prefix.len())?;
            let path = rest.split_once('?').map_or(rest, |(path, _)| path);
            start.eq_ignore_ascii_case(prefix).then_some(path)
        };
        if let Some(path) = path_after("payto://x-taler-bank/") {
            let (host, account) = path.split_once('/').ok_or(NoAccount::Malformed)?;
            if host.is_empty() || !is_account_name(account) {
                return Err(NoAccount::Malformed);
            }
            if !self.hosts.has(host) {
                return Err(NoAccount::OtherBank);
            }
            return match self.iban_bank.is_some() && payto::validate_iban(account).is_ok() {
                true => self.account_of_iban(account).map(Cow::Owned),
                false => Ok(account.into()),
            };
        }
        match path_after("payto://iban/") {
            Some(path) => self.account_of_iban(path.rsplit('/').next().unwrap_or_default()).map(Cow::Owned),
            None => Err(NoAccount::Malformed),
        }
    }

    /// The account of an IBAN in any case.
    fn account_of_iban(&self, iban: &str) -> Result<String, NoAccount> {
        let bank = self.iban_bank.as_ref().ok_or(NoAccount::Malformed)?;
        payto::validate_iban(iban).map_err(|_| NoAccount::Malformed)?;
        let iban = iban.to_ascii_uppercase();
        if bank.has(&iban) { Ok(iban) } else { Err(NoAccount::OtherBank) }
    }

    /// The account that a person named: by a payto URI, by an IBAN as on paper, or by its name.
    pub(crate) fn account_named(&self, text: &str) -> Result<String, NoAccount> {
        match self.account(text) {
            Ok(account) => return Ok(account.into_owned()),
            Err(NoAccount::OtherBank) => return Err(NoAccount::OtherBank),
            Err(NoAccount::Malformed) => {}
        }
        if self.iban_bank.is_some() {
            let iban: String = text.split_whitespace().collect();
            if payto::validate_iban(&iban).is_ok() {
                return self.account_of_iban(&iban);
            }
        }
        if is_account_name(text) { Ok(text.to_owned()) } else { Err(NoAccount::Malformed) }
    }

    /// The wire methods of the accounts, the preferred one first.
    pub(crate) fn wire_methods(&self) -> Vec<String> {
        let iban = self.iban_bank.is_some().then(|| "iban".to_owned());
        ["x-taler-bank".to_owned()].into_iter().chain(iban).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IBAN: &str = "DE12500105170648489890";
    const FOREIGN: &str = "payto://iban/DE75512108001245126199?receiver-name=X";

    fn addresses(iban_bank: Option<&str>) -> Addresses {
        let iban_bank = iban_bank.map(|text| text.parse().unwrap());
        let hosts = Hosts::new(["bank.test", "bank.example:8443"], 8082);
        Addresses { hostname: "bank.test".to_owned(), hosts, iban_bank }
    }

    #[test]
    fn accounts_of_payto_uris() {
        let (with, without) = (addresses(Some("de50010517")), addresses(None));
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
            ("payto://x-taler-bänk/localhost/2", None),
            ("", None),
        ] {
            for addresses in [&with, &without] {
                assert_eq!(
                    addresses.account(uri),
                    account.map(Into::into).ok_or(NoAccount::Malformed),
                    "{uri}"
                );
            }
        }
        assert_eq!(without.account(&without.payto("42")).unwrap(), "42");
        assert_eq!(without.account(FOREIGN), Err(NoAccount::Malformed));
        assert!(!is_account_name(".") && !is_account_name("..") && is_account_name("..."));
        // Accounts of older versions may have a colon.
        assert!(is_account_name("a:b") && !is_new_account_name("a:b") && is_new_account_name("a.b"));
        assert!(!is_account_name(&"x".repeat(201)));
    }

    #[test]
    fn only_hosts_of_the_bank_name_its_accounts() {
        let addresses = addresses(None);
        for host in [
            "localhost",
            "LOCALHOST",
            "localhost:8082",
            "a.localhost",
            "127.0.0.1",
            "127.0.1.1:8082",
            "[::1]:8082",
            "::1",
            "[::ffff:127.0.0.1]",
            "bank.test",
            "Bank.Test.",
            "bank.test:8082",
            "bank.example:8443",
            "bank.example",
        ] {
            let uri = format!("payto://x-taler-bank/{host}/alice?receiver-name=Alice");
            assert_eq!(addresses.account(&uri).as_deref(), Ok("alice"), "{host}");
        }
        for host in [
            "other-host",
            "localhost:8083",
            "127.0.0.1:1",
            "bank.test:80",
            "bank.test.evil",
            "xbank.test",
            "localhost.evil",
            "128.0.0.1",
            "bank.test:",
            "bank.test:x",
            "[::1",
            "[::1]8082",
            ":8082",
            "bank.test@evil",
        ] {
            let uri = format!("payto://x-taler-bank/{host}/alice");
            assert_eq!(addresses.account(&uri), Err(NoAccount::OtherBank), "{host}");
            assert_eq!(addresses.account_named(&uri), Err(NoAccount::OtherBank), "{host}");
        }
        for (url, host) in [
            ("https://bank.test/", "bank.test:443"),
            ("http://Bank.Test:8082/x/", "bank.test:8082"),
            ("http://[::1]/", "[::1]:80"),
        ] {
            assert_eq!(host_of_url(url).as_deref(), Some(host));
        }
    }

    #[test]
    fn ibans_are_accounts() {
        let with = addresses(Some("de50010517"));
        assert_eq!(with.payto(IBAN), format!("payto://iban/{IBAN}?receiver-name={IBAN}"));
        assert_eq!(addresses(None).payto(IBAN).split('/').nth(2), Some("x-taler-bank"));
        for uri in [
            format!("payto://iban/{IBAN}?receiver-name=A"),
            format!("payto://IBAN/INGDDEFF/{}?receiver-name=A", IBAN.to_lowercase()),
            format!("payto://x-taler-bank/localhost/{IBAN}"),
        ] {
            assert_eq!(with.account(&uri).as_deref(), Ok(IBAN), "{uri}");
        }
        assert_eq!(with.account(FOREIGN), Err(NoAccount::OtherBank));
        assert_eq!(with.account("payto://iban/DE12500105170648489891"), Err(NoAccount::Malformed));
        let foreign = FOREIGN.split(['/', '?']).nth(3).unwrap();
        assert_eq!(
            with.account(&format!("payto://x-taler-bank/localhost/{foreign}")),
            Err(NoAccount::OtherBank)
        );
        assert_eq!(with.payto("alice"), "payto://x-taler-bank/bank.test/alice?receiver-name=alice");
        let names =
            [IBAN, foreign, "alice"].map(|name| (with.is_new_name(name), addresses(None).is_new_name(name)));
        assert_eq!(names, [(true, false), (false, false), (true, true)]);
        assert!(!with.is_new_name(&IBAN.to_lowercase()), "another spelling of a known address");
        for (text, account) in [
            ("DE12 5001 0517 0648 4898 90", Ok(IBAN.to_owned())),
            ("alice", Ok("alice".to_owned())),
            ("DE75 5121 0800 1245 1261 99", Err(NoAccount::OtherBank)),
            ("two words", Err(NoAccount::Malformed)),
        ] {
            assert_eq!(with.account_named(text), account, "{text}");
        }
        assert_eq!(with.wire_methods(), ["x-taler-bank", "iban"]);
        assert_eq!(addresses(None).wire_methods(), ["x-taler-bank"]);
    }

    #[test]
    fn bank_codes() {
        let bank: IbanBank = "DE50010517".parse().unwrap();
        assert_eq!((bank.to_string().as_str(), bank.iban("0648489890").as_deref()), ("DE50010517", Ok(IBAN)));
        assert_eq!(bank.iban("06484898901234567890123"), Err(PaytoError::Iban));
        for bad in ["", "D", "DE", "XX5", "DE5001 0517", "ä1"] {
            assert!(bad.parse::<IbanBank>().is_err(), "{bad}");
        }
    }
}
