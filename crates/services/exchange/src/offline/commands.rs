//! The command line of the offline tool.

use batzen_config::parse_duration;
use batzen_crypto::{EddsaPublicKey, HashCode};
use batzen_protocol::{Amount, Duration};

use super::OfflineError;

/// The text of `help`.
pub const HELP: &str = "\
Sub-commands are run in their order; each takes the documents of those before it, or standard input.

  setup                                     create the master key, show its public half
  download                                  get the keys that wait for a signature, once all exist
                                            (exit code 3 if that takes more than ten minutes)
  show                                      say in words what the documents contain
  sign                                      check and sign the downloaded keys
  upload                                    give what was signed to the exchange
  enable-account PAYTO                      publish a bank account
  disable-account PAYTO                     withdraw a bank account
  enable-auditor PUB URL NAME               publish an auditor
  disable-auditor PUB                       withdraw an auditor
  wire-fee YEAR METHOD WIREFEE CLOSINGFEE   set the fees of a wire method for a calendar year
  global-fee YEAR HISTORYFEE ACCOUNTFEE PURSEFEE PURSETIMEOUT HISTORYEXPIRATION PURSELIMIT
                                            set the global fees for a calendar year
  revoke-denomination HASH                  revoke a denomination key, for ever
  revoke-signkey PUB                        revoke an online signing key, for ever
  calendar [--json]                         show what ends when, and what must be signed by when
                                            (of the documents before it, else of the exchange)
  drain AMOUNT SECTION PAYTO                order to pay out profit from the account of a configuration section
  extensions show | extensions sign         show or sign the enabled extensions
  help                                      this text

YEAR is a number or `now`. The usual start is: download sign upload";

/// Fees and limits that `global-fee` sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalFeeTerms {
    /// For a full reserve history.
    pub history_fee: Amount,
    /// For an open reserve, a year.
    pub account_fee: Amount,
    /// For a purse beyond the free ones.
    pub purse_fee: Amount,
    /// Time that purses stay open.
    pub purse_timeout: Duration,
    /// Time that histories are kept.
    pub history_expiration: Duration,
    /// Free purses of an account.
    pub purse_account_limit: u32,
}

/// One sub-command with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the help text above says what each is")]
pub(crate) enum Step {
    Help,
    Setup,
    Download,
    Show,
    Sign,
    Upload,
    EnableAccount {
        payto_uri: String,
    },
    DisableAccount {
        payto_uri: String,
    },
    EnableAuditor {
        auditor_pub: EddsaPublicKey,
        url: String,
        name: String,
    },
    DisableAuditor {
        auditor_pub: EddsaPublicKey,
    },
    /// Without a year, it is the current one.
    WireFee {
        year: Option<u64>,
        method: String,
        wire_fee: Amount,
        closing_fee: Amount,
    },
    /// Without a year, it is the current one.
    GlobalFee {
        year: Option<u64>,
        terms: GlobalFeeTerms,
    },
    RevokeDenomination {
        h_denom_pub: HashCode,
    },
    RevokeSignkey {
        exchange_pub: EddsaPublicKey,
    },
    Drain {
        amount: Amount,
        section: String,
        payto_uri: String,
    },
    ExtensionsShow,
    ExtensionsSign,
    Calendar {
        is_json: bool,
    },
}

/// All names, to suggest one for a misspelt name.
const NAMES: [&str; 18] = [
    "help",
    "setup",
    "download",
    "show",
    "sign",
    "upload",
    "enable-account",
    "disable-account",
    "enable-auditor",
    "disable-auditor",
    "wire-fee",
    "global-fee",
    "revoke-denomination",
    "revoke-signkey",
    "drain",
    "extensions",
    "extensions sign",
    "calendar",
];

struct Arguments<'a> {
    rest: std::slice::Iter<'a, String>,
    command: &'a str,
}

impl<'a> Arguments<'a> {
    fn usage(&self, reason: impl std::fmt::Display) -> OfflineError {
        OfflineError::Usage(format!("{}: {reason}", self.command))
    }

    fn text(&mut self, what: &str) -> Result<&'a str, OfflineError> {
        let text = self.rest.next().ok_or_else(|| self.usage(format_args!("{what} is missing")))?;
        Ok(text)
    }

    /// Consumes an optional flag if it comes next. Returns whether it did.
    fn flag(&mut self, name: &str) -> bool {
        let is_next = self.rest.as_slice().first().is_some_and(|next| next == name);
        if is_next {
            self.rest.next();
        }
        is_next
    }

    fn value<T>(&mut self, what: &str, read: impl FnOnce(&str) -> Option<T>) -> Result<T, OfflineError> {
        let text = self.text(what)?;
        read(text).ok_or_else(|| self.usage(format_args!("{text} is not {what}")))
    }

    fn amount(&mut self, what: &str) -> Result<Amount, OfflineError> {
        self.value(what, |text| Amount::parse(text).ok())
    }

    fn duration(&mut self, what: &str) -> Result<Duration, OfflineError> {
        self.value(what, parse_duration)
    }

    fn year(&mut self) -> Result<Option<u64>, OfflineError> {
        self.value("a year", |text| if text == "now" { Some(None) } else { text.parse().ok().map(Some) })
    }

    fn key(&mut self) -> Result<EddsaPublicKey, OfflineError> {
        self.value("a public key", |text| text.parse().ok())
    }
}

/// Reads a chain of sub-commands.
///
/// # Errors
/// [`OfflineError::Usage`] with the sub-command and what is wrong with it.
pub(crate) fn parse(arguments: &[String]) -> Result<Vec<Step>, OfflineError> {
    let mut steps = Vec::new();
    let mut rest = arguments.iter();
    while let Some(command) = rest.next() {
        let mut a = Arguments { rest: rest.clone(), command };
        steps.push(match command.as_str() {
            "help" => Step::Help,
            "setup" => Step::Setup,
            "download" => Step::Download,
            "show" => Step::Show,
            "sign" => Step::Sign,
            "upload" => Step::Upload,
            "enable-account" => Step::EnableAccount { payto_uri: a.text("a payto URI")?.to_owned() },
            "disable-account" => Step::DisableAccount { payto_uri: a.text("a payto URI")?.to_owned() },
            "enable-auditor" => Step::EnableAuditor {
                auditor_pub: a.key()?,
                url: a.text("a URL")?.to_owned(),
                name: a.text("a name")?.to_owned(),
            },
            "disable-auditor" => Step::DisableAuditor { auditor_pub: a.key()? },
            "wire-fee" => Step::WireFee {
                year: a.year()?,
                method: a.text("a wire method")?.to_owned(),
                wire_fee: a.amount("a wire fee")?,
                closing_fee: a.amount("a closing fee")?,
            },
            "global-fee" => Step::GlobalFee {
                year: a.year()?,
                terms: GlobalFeeTerms {
                    history_fee: a.amount("a history fee")?,
                    account_fee: a.amount("an account fee")?,
                    purse_fee: a.amount("a purse fee")?,
                    purse_timeout: a.duration("a purse timeout")?,
                    history_expiration: a.duration("a history expiration")?,
                    purse_account_limit: a.value("a purse limit", |text| text.parse().ok())?,
                },
            },
            "revoke-denomination" => Step::RevokeDenomination {
                h_denom_pub: a.value("a denomination hash", |text| text.parse().ok())?,
            },
            "revoke-signkey" => Step::RevokeSignkey { exchange_pub: a.key()? },
            "drain" => Step::Drain {
                amount: a.amount("an amount")?,
                section: a.text("a configuration section")?.to_owned(),
                payto_uri: a.text("a payto URI")?.to_owned(),
            },
            "extensions" => a.value("`show` or `sign`", |text| match text {
                "show" => Some(Step::ExtensionsShow),
                "sign" => Some(Step::ExtensionsSign),
                _ => None,
            })?,
            "calendar" => Step::Calendar { is_json: a.flag("--json") },
            unknown => {
                let nearest =
                    NAMES.iter().min_by_key(|name| distance(name, unknown)).expect("there are names");
                return Err(OfflineError::Usage(format!(
                    "unknown sub-command {unknown}: did you mean {nearest}?"
                )));
            }
        });
        rest = a.rest;
    }
    if steps.is_empty() {
        return Err(OfflineError::Usage(HELP.to_owned()));
    }
    Ok(steps)
}

/// Edit distance.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.chars().enumerate() {
            let cost = (diagonal + usize::from(x != y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = row[j + 1];
            row[j + 1] = cost;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(line: &[&str]) -> Result<Vec<Step>, OfflineError> {
        parse(&line.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn chains() {
        assert_eq!(
            steps(&["download", "sign", "upload"]).unwrap(),
            [Step::Download, Step::Sign, Step::Upload]
        );
        let chain =
            steps(&["wire-fee", "now", "iban", "EUR:0.1", "EUR:1", "enable-account", "payto://x/y"]).unwrap();
        assert!(matches!(&chain[0], Step::WireFee { year: None, method, .. } if method == "iban"));
        assert_eq!(chain[1], Step::EnableAccount { payto_uri: "payto://x/y".into() });
        let fee =
            ["global-fee", "2030", "EUR:1", "EUR:2", "EUR:0", "1 h", "1 year", "5", "extensions", "show"];
        let chain = steps(&fee).unwrap();
        let Step::GlobalFee { year: Some(2030), terms } = &chain[0] else { panic!("{chain:?}") };
        assert_eq!(terms.purse_timeout, Duration::from_secs(3600));
        assert_eq!(chain[1], Step::ExtensionsShow);
        let chain = steps(&["download", "calendar", "--json", "sign", "calendar"]).unwrap();
        assert_eq!(chain[1], Step::Calendar { is_json: true });
        assert_eq!(chain[3], Step::Calendar { is_json: false });
    }

    #[test]
    fn mistakes() {
        for (line, expected) in [
            (&["singn"][..], "did you mean sign?"),
            (&["uplaod"], "did you mean upload?"),
            (&["enable-account"], "a payto URI is missing"),
            (&["wire-fee", "soon", "iban", "EUR:1", "EUR:1"], "soon is not a year"),
            (&["revoke-signkey", "xyz"], "xyz is not a public key"),
            (&["extensions", "delete"], "delete is not"),
            (&[], "download sign upload"),
        ] {
            let message = steps(line).unwrap_err().to_string();
            assert!(message.contains(expected), "{line:?}: {message}");
        }
    }
}
