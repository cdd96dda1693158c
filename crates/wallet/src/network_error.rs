//! Network errors in words for the user.

use crate::core::http::{Context, HttpRequest};
use crate::core::url::origin;
use crate::transport::TransportError;

/// Why a server gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkProblem {
    /// No program accepts connections at the address.
    Refused,
    /// The host name is unknown.
    UnknownHost,
    /// The server did not answer in time.
    Timeout,
    /// The server's certificate is not valid, or it does not speak TLS.
    Tls,
    /// Anything else.
    Broken,
}

/// A server gave no answer to several attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkError {
    /// The server: scheme, host and port.
    pub(crate) server: String,
    /// `exchange`, `bank` or `shop`.
    pub service: &'static str,
    /// The reason.
    pub problem: NetworkProblem,
    /// The technical cause, for logs.
    pub(crate) detail: String,
}

impl NetworkError {
    /// Explains the transport's error about a request.
    #[must_use]
    pub(crate) fn new(request: &HttpRequest, error: &TransportError) -> Self {
        Self {
            server: origin(&request.url).to_owned(),
            service: match request.context {
                Context::Bank => "bank",
                Context::Merchant => "shop",
                Context::Info | Context::Withdraw | Context::Deposit | Context::Refresh => "exchange",
            },
            problem: classify(&error.reason),
            detail: error.reason.clone(),
        }
    }
}

/// Transports describe errors with the texts of the operating system and of libraries.
fn classify(reason: &str) -> NetworkProblem {
    let reason = reason.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| reason.contains(word));
    if has(&["refused"]) {
        NetworkProblem::Refused
    } else if has(&["dns", "lookup", "resolve", "name or service not known", "no such host"]) {
        NetworkProblem::UnknownHost
    } else if has(&["timed out", "timeout", "no answer in time", "deadline"]) {
        NetworkProblem::Timeout
    } else if has(&["certificate", "tls", "ssl", "handshake"]) {
        NetworkProblem::Tls
    } else {
        NetworkProblem::Broken
    }
}

impl std::fmt::Display for NetworkError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { server, service, problem, .. } = self;
        match problem {
            NetworkProblem::Refused => {
                write!(f, "cannot connect to {server}: nothing listens there; is the {service} running?")
            }
            NetworkProblem::UnknownHost => {
                write!(
                    f,
                    "cannot connect to {server}: there is no such host; is the URL of the {service} right?"
                )
            }
            NetworkProblem::Timeout => write!(f, "the {service} at {server} did not answer in time"),
            NetworkProblem::Tls => write!(
                f,
                "cannot connect securely to {server}: its certificate is not valid, or it does not speak TLS"
            ),
            NetworkProblem::Broken => write!(f, "the connection to the {service} at {server} failed"),
        }
    }
}

impl std::error::Error for NetworkError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_explained_in_words() {
        for (reason, problem, words) in [
            (
                "cannot connect: client error (Connect): tcp connect error: Connection refused (os error 111)",
                NetworkProblem::Refused,
                "cannot connect to http://exchange.test:8081/: nothing listens there; is the exchange running?",
            ),
            (
                "cannot connect: dns error: failed to lookup address information",
                NetworkProblem::UnknownHost,
                "cannot connect to http://exchange.test:8081/: there is no such host; is the URL of the exchange right?",
            ),
            (
                "no answer in time",
                NetworkProblem::Timeout,
                "the exchange at http://exchange.test:8081/ did not answer in time",
            ),
            (
                "invalid peer certificate: UnknownIssuer",
                NetworkProblem::Tls,
                "cannot connect securely to http://exchange.test:8081/: its certificate is not valid, or it does not speak TLS",
            ),
            (
                "connection reset by peer",
                NetworkProblem::Broken,
                "the connection to the exchange at http://exchange.test:8081/ failed",
            ),
        ] {
            let request = HttpRequest::get(Context::Withdraw, "http://exchange.test:8081/keys".to_owned());
            let error = TransportError { url: request.url.clone(), reason: reason.to_owned() };
            let explained = NetworkError::new(&request, &error);
            assert_eq!(explained.problem, problem, "{reason}");
            assert_eq!(explained.to_string(), words);
        }
    }
}
