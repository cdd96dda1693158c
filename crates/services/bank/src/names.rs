//! Names of accounts, and their payto URIs.
//!
//! An account has one name and one address. A bank with a bank code ([`IbanBank`]) has accounts of two wire methods
//! side by side: accounts whose names are IBANs of the bank have `iban` URIs, all others `x-taler-bank` URIs.

use std::borrow::Cow;
use std::fmt;
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
    /// It is the IBAN of an account at another bank.
    OtherBank,
}

/// Addresses of the bank's accounts.
#[derive(Debug)]
pub(crate) struct Addresses {
    /// The host name in `x-taler-bank` URIs.
    pub(crate) hostname: String,
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

    /// The account of a payto URI. The host of an `x-taler-bank` URI does not matter: all its names mean this bank.
    /// A BIC before an IBAN does not matter either.
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
            let is_valid = !host.is_empty() && is_account_name(account);
            return if is_valid { Ok(account.into()) } else { Err(NoAccount::Malformed) };
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
        if let Ok(account) = self.account(text) {
            return Ok(account.into_owned());
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
        Addresses { hostname: "localhost".to_owned(), iban_bank }
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
        assert_eq!(with.payto("alice"), "payto://x-taler-bank/localhost/alice?receiver-name=alice");
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
