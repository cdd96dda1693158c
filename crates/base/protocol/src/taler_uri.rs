//! `taler://` URIs in links and QR codes for wallets.
//!
//! The scheme `taler:` means that the server named in the URI uses https, `taler+http:` that it uses http.
//! The last segments are identifiers; everything before them belongs to the base URL.

use std::fmt;
use std::str::FromStr;

/// Why a text is not a valid taler URI, or cannot be written as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TalerUriError {
    /// The scheme is neither `taler` nor `taler+http`.
    #[error("not a taler:// URI")]
    Scheme,
    /// The action is not known.
    #[error("unknown action in taler:// URI")]
    Action,
    /// The host is missing or malformed.
    #[error("missing or malformed host in taler:// URI")]
    Host,
    /// A segment is missing, or empty where it must not be.
    #[error("missing segment in taler:// URI")]
    Segment,
    /// A query that the action does not support, or a malformed one.
    #[error("malformed query in taler:// URI")]
    Query,
    /// A character that is not allowed in a URI.
    #[error("character that is not allowed in taler:// URI")]
    Character,
}

/// The action for a wallet. Base URLs are complete (`https://host/path/`) and end with one slash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TalerUri {
    /// Take part in a withdrawal that was started at a bank.
    Withdraw {
        /// Base URL of the bank integration API.
        bank_url: String,
        /// Identifier of the withdrawal operation.
        operation_id: String,
    },
    /// Pay an order.
    Pay {
        /// Base URL of the merchant backend (with its instance).
        merchant_url: String,
        /// The order.
        order_id: String,
        /// The session to bind the payment to; may be empty.
        session_id: String,
        /// Token that permits the wallet to claim the order.
        claim_token: Option<String>,
        /// Private key of the claim nonce, if the order was already claimed for this wallet.
        nonce_priv: Option<String>,
    },
    /// Pick up refunds of an order.
    Refund {
        /// Base URL of the merchant backend.
        merchant_url: String,
        /// The order.
        order_id: String,
    },
    /// Pick up a tip.
    Tip {
        /// Base URL of the merchant backend.
        merchant_url: String,
        /// The tip.
        tip_id: String,
    },
    /// Accept money from another wallet.
    PayPush {
        /// Base URL of the exchange.
        exchange_url: String,
        /// Private contract key (base32).
        contract_priv: String,
    },
    /// Pay a request from another wallet.
    PayPull {
        /// Base URL of the exchange.
        exchange_url: String,
        /// Private contract key (base32).
        contract_priv: String,
    },
    /// Restore a wallet from its backup.
    Recovery {
        /// Private root key of the wallet (base32).
        root_priv: String,
        /// Backup providers in order: name and canonical URL.
        providers: Vec<(String, String)>,
    },
    /// An experiment for wallet developers.
    DevExperiment {
        /// Its id.
        id: String,
    },
}

impl TalerUri {
    /// Parses a URI.
    ///
    /// # Errors
    /// `TalerUriError`.
    pub fn parse(text: &str) -> Result<Self, TalerUriError> {
        let (scheme, rest) = text.split_once("://").ok_or(TalerUriError::Scheme)?;
        let scheme = if scheme.eq_ignore_ascii_case("taler") {
            "https"
        } else if scheme.eq_ignore_ascii_case("taler+http") {
            "http"
        } else {
            return Err(TalerUriError::Scheme);
        };
        if !rest.bytes().all(|b| b.is_ascii_graphic() && !b"\"<>\\^`{|}#".contains(&b)) {
            return Err(TalerUriError::Character);
        }
        let (action, rest) = rest.split_once('/').ok_or(TalerUriError::Segment)?;
        let (path, query) = match rest.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (rest, None),
        };
        let action = action.to_ascii_lowercase();
        if query.is_some() && !matches!(action.as_str(), "pay" | "recovery") {
            return Err(TalerUriError::Query);
        }
        match action.as_str() {
            "withdraw" => {
                let (bank_url, operation_id) = split_base(scheme, path)?;
                Ok(Self::Withdraw { bank_url, operation_id })
            }
            "pay" => {
                let (path, session_id) = path.rsplit_once('/').ok_or(TalerUriError::Segment)?;
                let (merchant_url, order_id) = split_base(scheme, path)?;
                let (mut claim_token, mut nonce_priv) = (None, None);
                for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
                    match pair.split_once('=').ok_or(TalerUriError::Query)? {
                        ("c", value) if !value.is_empty() => claim_token = Some(value.to_owned()),
                        ("n", value) if !value.is_empty() => nonce_priv = Some(value.to_owned()),
                        // Later versions of the protocol may add more.
                        _ => {}
                    }
                }
                Ok(Self::Pay {
                    merchant_url,
                    order_id,
                    session_id: session_id.to_owned(),
                    claim_token,
                    nonce_priv,
                })
            }
            "refund" => {
                let path = path.strip_suffix('/').ok_or(TalerUriError::Segment)?;
                let (merchant_url, order_id) = split_base(scheme, path)?;
                Ok(Self::Refund { merchant_url, order_id })
            }
            "tip" => {
                let (merchant_url, tip_id) = split_base(scheme, path)?;
                Ok(Self::Tip { merchant_url, tip_id })
            }
            "pay-push" => {
                let (exchange_url, contract_priv) = split_base(scheme, path)?;
                Ok(Self::PayPush { exchange_url, contract_priv })
            }
            "pay-pull" => {
                let (exchange_url, contract_priv) = split_base(scheme, path)?;
                Ok(Self::PayPull { exchange_url, contract_priv })
            }
            "recovery" => {
                if path.is_empty() || path.contains('/') {
                    return Err(TalerUriError::Segment);
                }
                let providers = query
                    .unwrap_or_default()
                    .split('&')
                    .filter(|pair| !pair.is_empty())
                    .map(|pair| match pair.split_once('=') {
                        Some((name, url)) if !url.is_empty() => Ok((name.to_owned(), url.to_owned())),
                        _ => Err(TalerUriError::Query),
                    })
                    .collect::<Result<_, _>>()?;
                Ok(Self::Recovery { root_priv: path.to_owned(), providers })
            }
            "dev-experiment" => {
                if path.is_empty() {
                    return Err(TalerUriError::Segment);
                }
                Ok(Self::DevExperiment { id: path.to_owned() })
            }
            _ => Err(TalerUriError::Action),
        }
    }
}

/// Splits `HOST[/PATH…]/ID` into a base URL and the identifier.
fn split_base(scheme: &str, path: &str) -> Result<(String, String), TalerUriError> {
    let (base, id) = path.rsplit_once('/').ok_or(TalerUriError::Segment)?;
    if id.is_empty() {
        return Err(TalerUriError::Segment);
    }
    let (host, path) = match base.split_once('/') {
        Some((host, path)) => (host, Some(path)),
        None => (base, None),
    };
    check_host(host)?;
    let host = host.to_ascii_lowercase();
    match path {
        None => Ok((format!("{scheme}://{host}/"), id.to_owned())),
        Some(path) => {
            // Exactly one final slash, regardless of how many precede the identifier.
            let path = path.trim_end_matches('/');
            let base = if path.is_empty() {
                format!("{scheme}://{host}/")
            } else {
                format!("{scheme}://{host}/{path}/")
            };
            Ok((base, id.to_owned()))
        }
    }
}

/// A host name or address with an optional port; no user information.
fn check_host(host: &str) -> Result<(), TalerUriError> {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let (address, after) = rest.split_once(']').ok_or(TalerUriError::Host)?;
            if address.is_empty() || !address.bytes().all(|b| b.is_ascii_hexdigit() || b == b':' || b == b'.')
            {
                return Err(TalerUriError::Host);
            }
            match after.strip_prefix(':') {
                Some(port) => ("ip", Some(port)),
                None if after.is_empty() => ("ip", None),
                None => return Err(TalerUriError::Host),
            }
        }
        None => match host.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (host, None),
        },
    };
    let name_ok =
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~%".contains(&b));
    let port_ok = port.is_none_or(|port| {
        port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|p| p > 0)
    });
    if name_ok && port_ok { Ok(()) } else { Err(TalerUriError::Host) }
}

/// Scheme of the URI and the base URL without its own scheme.
fn split_scheme(base_url: &str) -> (&'static str, &str) {
    match base_url.strip_prefix("http://") {
        Some(rest) => ("taler+http", rest),
        None => ("taler", base_url.strip_prefix("https://").unwrap_or(base_url)),
    }
}

impl fmt::Display for TalerUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut write = |action: &str, base_url: &str, rest: fmt::Arguments<'_>| {
            let (scheme, base) = split_scheme(base_url);
            let slash = if base.ends_with('/') { "" } else { "/" };
            write!(f, "{scheme}://{action}/{base}{slash}{rest}")
        };
        match self {
            Self::Withdraw { bank_url, operation_id } => {
                write("withdraw", bank_url, format_args!("{operation_id}"))
            }
            Self::Pay { merchant_url, order_id, session_id, claim_token, nonce_priv } => {
                write("pay", merchant_url, format_args!("{order_id}/{session_id}"))?;
                let mut separator = '?';
                for (name, value) in [("c", claim_token), ("n", nonce_priv)] {
                    if let Some(value) = value {
                        write!(f, "{separator}{name}={value}")?;
                        separator = '&';
                    }
                }
                Ok(())
            }
            Self::Refund { merchant_url, order_id } => {
                write("refund", merchant_url, format_args!("{order_id}/"))
            }
            Self::Tip { merchant_url, tip_id } => write("tip", merchant_url, format_args!("{tip_id}")),
            Self::PayPush { exchange_url, contract_priv } => {
                write("pay-push", exchange_url, format_args!("{contract_priv}"))
            }
            Self::PayPull { exchange_url, contract_priv } => {
                write("pay-pull", exchange_url, format_args!("{contract_priv}"))
            }
            Self::Recovery { root_priv, providers } => {
                write!(f, "taler://recovery/{root_priv}")?;
                for (i, (name, url)) in providers.iter().enumerate() {
                    write!(f, "{}{name}={url}", if i == 0 { '?' } else { '&' })?;
                }
                Ok(())
            }
            Self::DevExperiment { id } => write!(f, "taler://dev-experiment/{id}"),
        }
    }
}

impl FromStr for TalerUri {
    type Err = TalerUriError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::parse(s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pay(merchant_url: &str, order_id: &str, session_id: &str, claim_token: Option<&str>) -> TalerUri {
        TalerUri::Pay {
            merchant_url: merchant_url.into(),
            order_id: order_id.into(),
            session_id: session_id.into(),
            claim_token: claim_token.map(Into::into),
            nonce_priv: None,
        }
    }

    /// The examples of the bank interface document, each parsed and printed again.
    #[test]
    fn examples() {
        let withdraw = |bank_url: &str, operation_id: &str| TalerUri::Withdraw {
            bank_url: bank_url.into(),
            operation_id: operation_id.into(),
        };
        let rows = [
            ("taler://withdraw/Bank.Test/api/W7Q", withdraw("https://bank.test/api/", "W7Q")),
            (
                "taler+http://withdraw/127.0.0.1:8082/taler-bank-integration/W7Q",
                withdraw("http://127.0.0.1:8082/taler-bank-integration/", "W7Q"),
            ),
            ("taler://pay/shop.test/2022-A1/", pay("https://shop.test/", "2022-A1", "", None)),
            ("taler://pay/shop.test/2022-A1/sess9", pay("https://shop.test/", "2022-A1", "sess9", None)),
            (
                "taler://pay/shop.test:8443/instances/books/2022-A1/?c=TOK",
                pay("https://shop.test:8443/instances/books/", "2022-A1", "", Some("TOK")),
            ),
            (
                "taler://refund/shop.test/instances/books/2022-A1/",
                TalerUri::Refund {
                    merchant_url: "https://shop.test/instances/books/".into(),
                    order_id: "2022-A1".into(),
                },
            ),
            (
                "TALER://tip/shop.test/a/b/T5",
                TalerUri::Tip { merchant_url: "https://shop.test/a/b/".into(), tip_id: "T5".into() },
            ),
            (
                "taler+http://pay-push/mint.test:8081/KEY1",
                TalerUri::PayPush {
                    exchange_url: "http://mint.test:8081/".into(),
                    contract_priv: "KEY1".into(),
                },
            ),
            (
                "taler://pay-pull/mint.test/x/KEY2",
                TalerUri::PayPull {
                    exchange_url: "https://mint.test/x/".into(),
                    contract_priv: "KEY2".into(),
                },
            ),
            (
                "taler://pay-push/mint.test/x/KEY3",
                TalerUri::PayPush {
                    exchange_url: "https://mint.test/x/".into(),
                    contract_priv: "KEY3".into(),
                },
            ),
            (
                "taler+http://pay-pull/mint.test:8081/KEY4",
                TalerUri::PayPull {
                    exchange_url: "http://mint.test:8081/".into(),
                    contract_priv: "KEY4".into(),
                },
            ),
        ];
        for (text, expected) in rows {
            let parsed = TalerUri::parse(text).unwrap();
            assert_eq!(parsed, expected, "{text}");
            let canonical = text.replace("TALER:", "taler:").replace("Bank.Test", "bank.test");
            assert_eq!(parsed.to_string(), canonical);
        }
    }

    #[test]
    fn refusals() {
        for (text, error) in [
            ("taler+http://pay/shop.test/2022-A1", TalerUriError::Segment),
            ("taler://refund/shop.test/2022-A1", TalerUriError::Segment),
            ("https://withdraw/bank/x", TalerUriError::Scheme),
            ("taler:withdraw/bank/x", TalerUriError::Scheme),
            ("taler://restore/bank/x", TalerUriError::Action),
            ("taler://withdraw/bank/x/", TalerUriError::Segment),
            ("taler://withdraw/bank/x?y=1", TalerUriError::Query),
            ("taler://withdraw/bank", TalerUriError::Segment),
            ("taler://withdraw//x", TalerUriError::Host),
            ("taler://withdraw/user@bank/x", TalerUriError::Host),
            ("taler://withdraw/bank:99999/x", TalerUriError::Host),
            ("taler://withdraw/bank/a b", TalerUriError::Character),
            ("taler://withdraw/bank/a#b", TalerUriError::Character),
        ] {
            assert_eq!(TalerUri::parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn token_and_nonce_are_joined() {
        let text = "taler://pay/shop.test/A/S?c=TOK&n=NONCE";
        let TalerUri::Pay { claim_token, nonce_priv, .. } = TalerUri::parse(text).unwrap() else { panic!() };
        assert_eq!((claim_token.as_deref(), nonce_priv.as_deref()), (Some("TOK"), Some("NONCE")));
        assert_eq!(TalerUri::parse(text).unwrap().to_string(), text);
    }

    #[test]
    fn recovery_keeps_order() {
        let text = "taler://recovery/KEY?a=https://one.test/&b=https://two.test/x/";
        let TalerUri::Recovery { root_priv, providers } = TalerUri::parse(text).unwrap() else { panic!() };
        assert_eq!((root_priv.as_str(), providers.len(), providers[0].0.as_str()), ("KEY", 2, "a"));
        assert_eq!(TalerUri::parse(text).unwrap().to_string(), text);
    }
}
