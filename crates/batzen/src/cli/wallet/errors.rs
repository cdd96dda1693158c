//! Error reports: text, hint, code and exit code.

use std::path::PathBuf;

use batzen_wallet::core::CoreError;
use batzen_wallet::store::StoreError;
use batzen_wallet::{NetworkProblem, WalletError};
use serde::Serialize;

use super::inputs::InputError;

/// Any other failure.
pub(super) const EXIT_ERROR: u8 = 1;
/// An argument cannot be used.
pub(super) const EXIT_USAGE: u8 = 2;
/// An operation is not finished; `batzen wallet run` continues it.
pub(super) const EXIT_PENDING: u8 = 3;
/// Not enough money in the wallet.
pub(super) const EXIT_INSUFFICIENT: u8 = 4;
/// The exchange, the bank or the shop refused.
pub(super) const EXIT_REFUSED: u8 = 5;
/// Another process uses the wallet.
pub(super) const EXIT_IN_USE: u8 = 6;
/// The exchange or the shop gave a false proof.
pub(super) const EXIT_DISPUTED: u8 = 7;

/// The wallet file does not exist, and the command does not create one.
#[derive(Debug)]
pub(super) struct MissingWallet(pub PathBuf);

impl std::fmt::Display for MissingWallet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "there is no wallet file {}", self.0.display())
    }
}

impl std::error::Error for MissingWallet {}

/// An error, for people and for scripts.
#[derive(Debug, Serialize)]
pub(super) struct ErrorReport {
    /// The problem.
    pub error: String,
    /// The next step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The protocol's error code, if a peer sent one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u32>,
    /// The HTTP status of a refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_status: Option<u16>,
    /// The exit code of the process.
    pub exit_code: u8,
}

impl ErrorReport {
    pub(super) fn new(error: &anyhow::Error) -> Self {
        let wallet_error = error.downcast_ref::<WalletError>();
        let refusal = match wallet_error {
            Some(WalletError::Core(core)) => core.status_and_code(),
            _ => None,
        };
        // The wallet's own errors include their causes.
        let text = wallet_error.map_or_else(|| format!("{error:#}"), WalletError::to_string);
        Self {
            error: text,
            hint: hint(error),
            code: refusal.map(|(_, code)| code).filter(|code| *code != 0),
            http_status: refusal.map(|(status, _)| status),
            exit_code: exit_code(error),
        }
    }
}

pub(super) fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<InputError>() {
        return EXIT_USAGE;
    }
    match error.downcast_ref::<WalletError>() {
        Some(WalletError::Pending { .. } | WalletError::NoAnswer(_) | WalletError::Unavailable { .. }) => {
            EXIT_PENDING
        }
        Some(WalletError::Core(CoreError::InsufficientFunds { .. } | CoreError::AgeNotProven { .. })) => {
            EXIT_INSUFFICIENT
        }
        Some(WalletError::Failed { .. } | WalletError::Core(CoreError::Refused { .. })) => EXIT_REFUSED,
        Some(WalletError::Store(StoreError::InUse(_))) => EXIT_IN_USE,
        Some(WalletError::Disputed { .. }) => EXIT_DISPUTED,
        _ => EXIT_ERROR,
    }
}

/// A hint on what to do next; `None` if the error itself says so.
fn hint(error: &anyhow::Error) -> Option<String> {
    const RUN: &str = "operations that began continue with `batzen wallet run`";
    if error.is::<MissingWallet>() {
        return Some(
            "`batzen wallet withdraw`, `accept`, `request`, `pay`, `exchanges add` and `backup-file import` create it; --wallet names another file"
                .to_owned(),
        );
    }
    match error.downcast_ref::<WalletError>()? {
        WalletError::NoAnswer(network) => Some(match network.problem {
            NetworkProblem::Refused | NetworkProblem::UnknownHost => {
                format!("check the URL and start the {}; {RUN}", network.service)
            }
            NetworkProblem::Timeout | NetworkProblem::Broken => format!("try again later; {RUN}"),
            NetworkProblem::Tls => format!(
                "check that the URL begins with the right one of http:// and https://, and ask the operator of the {}",
                network.service
            ),
        }),
        WalletError::Unavailable { .. } => Some(format!("try again later; {RUN}")),
        WalletError::Pending { .. } => Some("`batzen wallet run` continues it".to_owned()),
        WalletError::Core(CoreError::Refused { .. }) | WalletError::Failed { .. } => {
            Some("`batzen wallet transactions` shows what happened; no money is lost by a refusal".to_owned())
        }
        WalletError::Core(CoreError::UnknownOperation(_)) => {
            Some("`batzen wallet transactions --all` lists the operations".to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_the_protocols_code_and_a_hint() {
        let refused =
            CoreError::Refused { what: "the deposit", status: 409, code: 1012, text: "spent".to_owned() };
        let report = ErrorReport::new(&WalletError::from(refused).into());
        assert_eq!(
            (report.code, report.http_status, report.exit_code),
            (Some(1012), Some(409), EXIT_REFUSED)
        );
        assert!(report.hint.is_some());
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["error"], "the deposit was refused: HTTP 409, code 1012 (spent)");
    }

    #[test]
    fn missing_wallets_have_a_hint_and_no_code() {
        let report = ErrorReport::new(&MissingWallet("/x/wallet.db".into()).into());
        assert_eq!(report.error, "there is no wallet file /x/wallet.db");
        assert_eq!((report.code, report.exit_code), (None, EXIT_ERROR));
        assert!(report.hint.unwrap().contains("batzen wallet withdraw"));
    }
}
