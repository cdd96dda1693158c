//! Commands on the identification of customers.

use batzen_protocol::{Duration, Money, Timestamp};
use batzen_tables::exchange::PaytoHash;

/// Stores a requirement that another command was refused for. A repetition changes nothing.
#[derive(Debug, Clone)]
pub struct RequireKyc {
    /// The account whose owner must be identified.
    pub h_payto: PaytoHash,
    /// The missing checks, as the refusal names them.
    pub checks: String,
}

/// The requirement is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KycRequirement {
    /// Its number.
    pub row: u64,
}

/// Begins an identification, or begins it again. One that waits for officers or is valid stays as it is.
#[derive(Debug, Clone)]
pub struct StartKyc {
    /// The account.
    pub h_payto: PaytoHash,
    /// The provider's section.
    pub provider: String,
    /// A random secret for the user's page, if the process is new.
    pub token: String,
}

/// The identification has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KycStarted {
    /// The secret of the user's page.
    pub token: String,
}

/// Records that a provider has identified the owner of an account.
#[derive(Debug, Clone)]
pub struct FinishKyc {
    /// The account.
    pub h_payto: PaytoHash,
    /// The provider's section.
    pub provider: String,
    /// The provider's name for the user.
    pub provider_user_id: String,
    /// The attributes, encrypted; empty if there are none.
    pub attributes: Vec<u8>,
    /// How long the identification is valid.
    pub validity: Duration,
}

/// The owner is identified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KycFinished {
    /// When it expires.
    pub expiration: Timestamp,
}

/// Stores what a user has entered, for officers to decide on. It replaces what was entered before.
#[derive(Debug, Clone)]
pub struct SubmitKyc {
    /// The account.
    pub h_payto: PaytoHash,
    /// The provider's section.
    pub provider: String,
    /// The secret of the user's page.
    pub token: String,
    /// The attributes, encrypted.
    pub attributes: Vec<u8>,
}

/// What the user entered waits for officers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KycSubmitted;

/// An officer decides on what a user has entered.
#[derive(Debug, Clone)]
pub struct DecideKyc {
    /// The account.
    pub h_payto: PaytoHash,
    /// The provider's section.
    pub provider: String,
    /// The attributes that the officer saw, encrypted as stored: if the user has changed them since, the
    /// decision is refused.
    pub submitted: Vec<u8>,
    /// Who decides.
    pub officer: String,
    /// Whether the owner is identified.
    pub approved: bool,
    /// Why, in the officer's words.
    pub reason: String,
    /// When.
    pub time: Timestamp,
    /// How long the identification is valid.
    pub validity: Duration,
}

/// The outcome of [`DecideKyc`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KycDecided {
    /// The owner is identified.
    Approved {
        /// When it expires.
        expiration: Timestamp,
    },
    /// The decision releases money, so another officer must approve as well.
    NeedsAnother {
        /// What is held.
        held: Money,
    },
    /// The owner is not identified.
    Rejected,
}

/// Removes an alert after the account's payouts were looked at.
#[derive(Debug, Clone, Copy)]
pub struct ClearKycAlert {
    /// The account.
    pub h_payto: PaytoHash,
    /// The alert's time. A later alert stays.
    pub time: Timestamp,
}

/// The alert is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KycAlertCleared;
