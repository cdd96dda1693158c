//! Errors of the wallet's core.

use batzen_crypto::{CryptoError, EddsaPublicKey, HashCode};
use batzen_protocol::{Amount, AmountError, Duration};

/// The result of a step of the core of the wallet.
pub(crate) type Result<T, E = CoreError> = std::result::Result<T, E>;

/// An error of the wallet's core. None of them loses money: records change only when a step succeeds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoreError {
    /// An amount is malformed, in another currency, or out of range.
    #[error("bad amount: {0}")]
    Amount(#[from] AmountError),
    /// A cryptographic check failed.
    #[error("cryptographic check failed: {0}")]
    Crypto(#[from] CryptoError),
    /// The peer's answer does not parse, or its content is impossible.
    #[error("{what}: malformed answer (HTTP {status}): {reason}")]
    BadAnswer {
        /// Name of the answer.
        what: &'static str,
        /// HTTP status.
        status: u16,
        /// Reason.
        reason: String,
    },
    /// The peer's answer carries a signature that does not verify. The peer is broken or dishonest.
    #[error("{what}: invalid signature; do not trust this service until its operator has explained it")]
    BadSignature {
        /// Name of the signature.
        what: &'static str,
    },
    /// The peer's statement contradicts its own signatures, the terms it published, the wallet's signatures,
    /// or itself.
    #[error("{what} is false: {reason}")]
    FalseProof {
        /// Name of the statement.
        what: &'static str,
        /// The fault.
        reason: String,
    },
    /// The peer refused the request.
    #[error("{what} was refused: HTTP {status}, code {code}{}", if text.is_empty() { String::new() } else { format!(" ({text})") })]
    Refused {
        /// Name of the request.
        what: &'static str,
        /// HTTP status.
        status: u16,
        /// Protocol error code; zero if the body has none.
        code: u32,
        /// The peer's explanation.
        text: String,
    },
    /// A base URL cannot be used.
    #[error("bad URL {url:?}: {reason}")]
    BadUrl {
        /// The text as given.
        url: String,
        /// The fault.
        reason: String,
    },
    /// The exchange speaks a version of the protocol that this wallet does not know.
    #[error(
        "{base_url} speaks protocol {version}, this wallet speaks {ours}; use a newer wallet or another exchange"
    )]
    Version {
        /// The exchange.
        base_url: String,
        /// The version that it announced.
        version: String,
        /// The version that this wallet speaks.
        ours: &'static str,
    },
    /// The exchange presented another master key than before.
    #[error(
        "{base_url} presents another master key than before; the wallet keeps the old one and refuses the new one"
    )]
    MasterKeyChanged {
        /// The exchange.
        base_url: String,
    },
    /// A confirmation is signed by a key that the exchange's latest known listing does not contain.
    #[error("{base_url} signed with a key {key} that it does not publish")]
    UnknownSigningKey {
        /// The exchange.
        base_url: String,
        /// The key.
        key: EddsaPublicKey,
    },
    /// The wallet does not know this exchange.
    #[error("the wallet does not know the exchange {0}; add it with `batzen wallet exchanges add {0}`")]
    UnknownExchange(String),
    /// The wallet does not know this denomination.
    #[error("unknown denomination {0}")]
    UnknownDenomination(HashCode),
    /// The wallet does not have this coin.
    #[error("unknown coin {0}")]
    UnknownCoin(EddsaPublicKey),
    /// The wallet has no such operation.
    #[error("unknown operation {0}")]
    UnknownOperation(u64),
    /// The terms of service were not accepted yet.
    #[error(
        "the terms of {0} are not accepted yet; read them and run `batzen wallet exchanges tos-accept {0}`"
    )]
    TermsNotAccepted(String),
    /// Not enough money.
    #[error(
        "not enough money: {needed} needed, {available} available; withdraw more, or finish what is pending with `batzen wallet run`"
    )]
    InsufficientFunds {
        /// The amount needed, with the fees as far as they are known.
        needed: Amount,
        /// The largest amount available for it: purchases take coins of several exchanges, other payments of one.
        available: Amount,
    },
    /// The amount is too small for the coins this exchange issues.
    #[error("{amount} is too little: the smallest coin of {base_url} costs {smallest} with its fee")]
    TooSmall {
        /// The amount requested.
        amount: Amount,
        /// The exchange.
        base_url: String,
        /// Smallest coin value plus its fee.
        smallest: Amount,
    },
    /// The exchange offers no coins now.
    #[error("{0} offers no coins for withdrawal now; try again later or ask its operator")]
    NothingOffered(String),
    /// The exchange offers coins of a time that has not come yet by this device's clock.
    #[error("this device's clock is at least {behind} behind that of {base_url}; set it, and try again")]
    ClockBehind {
        /// The exchange.
        base_url: String,
        /// The time until the earliest coins are offered, by this clock.
        behind: Duration,
    },
    /// Paying with a coin of this exchange costs all that the coin is worth.
    #[error(
        "paying with any coin of {0} costs as much as it is worth; choose another exchange, or tell its operator"
    )]
    FeesTakeAll(String),
    /// A payment would need more coins than it may have.
    #[error("this takes more than {max} coins, which pay {most} at most; pay in several parts")]
    TooManyCoins {
        /// The limit.
        max: usize,
        /// The largest amount that so many coins pay.
        most: Amount,
    },
    /// The exchange offers no coins with an age limit.
    #[error("{0} offers no coins with an age limit; choose another exchange")]
    NoAgeLimit(String),
    /// The coins that can prove an age do not suffice.
    #[error(
        "this payment is for people of {min_age} or more, and only {available} of the {needed} needed are in coins that can prove it: the others were withdrawn with a lower age limit"
    )]
    AgeNotProven {
        /// The minimum age.
        min_age: u32,
        /// The amount needed, with the fees as far as they are known.
        needed: Amount,
        /// The amount in coins that can prove the age.
        available: Amount,
    },
    /// Input is malformed or not acceptable.
    #[error("{what}: {reason}")]
    BadInput {
        /// Name of the input.
        what: &'static str,
        /// Reason.
        reason: String,
    },
    /// The stored records contradict each other.
    #[error("the wallet's records are inconsistent: {0}; restore a backup or report this")]
    Inconsistent(String),
}

/// The error that a signed answer of a peer contradicts what it must be.
pub(crate) fn false_proof(what: &'static str, reason: impl Into<String>) -> CoreError {
    CoreError::FalseProof { what, reason: reason.into() }
}

/// An error in what the user gave.
pub(crate) fn bad_input(what: &'static str, reason: impl Into<String>) -> CoreError {
    CoreError::BadInput { what, reason: reason.into() }
}

impl CoreError {
    /// Returns whether the answer that caused this error is evidence against the exchange. The wallet keeps
    /// such an answer and does not believe it.
    #[must_use]
    pub const fn is_false_statement(&self) -> bool {
        matches!(self, Self::BadSignature { .. } | Self::FalseProof { .. } | Self::MasterKeyChanged { .. })
    }

    /// The HTTP status and protocol error code of a refusal.
    #[must_use]
    pub fn status_and_code(&self) -> Option<(u16, u32)> {
        match self {
            Self::Refused { status, code, .. } => Some((*status, *code)),
            _ => None,
        }
    }
}
