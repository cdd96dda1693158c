//! Identification of customers: what was required, what was proved, and what counts against the limits.

use batzen_protocol::payto::AccountHash;
use batzen_protocol::{Money, Timestamp};
use batzen_store::{Layout, record, table};

use super::{KycEvents, KycHolds, KycOperation, KycState, PaytoHash};

table! {
    /// Identifies a KYC requirement.
    pub key struct KycRequirementKey {
        /// The account whose owner must be identified.
        pub h_payto: PaytoHash,
        /// The requirement's number: random, and known to those only who were refused.
        pub row: u64,
    }

    /// A KYC requirement. It stays when it is satisfied, and holds again when the identification expires.
    pub struct KycRequirementRow {
        /// The checks that were missing, sorted and separated by blanks.
        pub checks: String,
        /// About when an operation was refused because of it for the last time; none if that was before this was
        /// recorded.
        pub asked: Option<Timestamp>,
    }

    /// KYC requirements.
    pub KycRequirements(37, "kyc_requirements"): KycRequirementKey => KycRequirementRow,
        shard(32), layouts(&[Layout::of::<KycRequirementRow0, KycRequirementRow>()]);
    /// By the requirement's number alone: whether it belongs to another account.
    BY_ROW = 1, "by_row", Hash;
    /// By h_payto.
    BY_ACCOUNT = 2, "by_account", Prefix { key_bytes: 32 };
    |key, _, out| {
        out.add(Self::BY_ROW, &key.row);
    }
}

record! {
    /// The row before [`KycRequirementRow::asked`].
    pub(crate) struct KycRequirementRow0 {
        pub(crate) checks: String,
    }
}

impl From<KycRequirementRow0> for KycRequirementRow {
    fn from(row: KycRequirementRow0) -> Self {
        Self { checks: row.checks, asked: None }
    }
}

record! {
    /// Names an account.
    pub key struct KycAccountKey {
        /// Hash of its payto URI.
        pub h_payto: PaytoHash,
    }
}

table! {
    /// Identifies an account's process with a provider. There is one, which is repeated when it has expired.
    pub key struct KycProcessKey {
        /// The account.
        pub h_payto: PaytoHash,
        /// The provider's section of the configuration.
        pub provider: String,
    }

    /// An identification of an account's owner.
    pub struct KycProcessRow {
        /// When it began.
        pub started: Timestamp,
        /// A secret that only the user's page knows. It is a new one when the process is repeated.
        pub token: String,
        /// The state of the process. A process that is repeated may still be valid.
        pub state: KycState,
        /// When the identification expires; zero if there was none.
        pub expiration: Timestamp,
        /// The provider's name for the user; empty if unknown.
        pub provider_user_id: String,
        /// The attributes that the provider reported, encrypted; empty if there are none.
        pub attributes: Vec<u8>,
        /// The attributes that wait for officers, encrypted; empty if none do.
        pub submitted: Vec<u8>,
        /// The officer who approved what was submitted, while another must; empty if nobody has.
        pub approved_by: String,
    }

    /// Identifications.
    pub KycProcesses(70, "kyc_processes"): KycProcessKey => KycProcessRow, updated(), shard(32);
    /// By h_payto.
    BY_ACCOUNT = 1, "by_account", Prefix { key_bytes: 32 };
    /// Processes that wait for an officer, in commit order (the value is empty).
    SUBMITTED = 2, "submitted", Serial;
    |_, row, out| {
        if row.state == KycState::Submitted {
            out.add_with(Self::SUBMITTED, |_| {});
        }
    }
}

table! {
    /// Identifies the use of an account for a kind of operation.
    pub key struct KycUsageKey {
        /// The account, however its payto URI is spelled.
        pub account: AccountHash,
        /// The operation.
        pub operation: KycOperation,
    }

    /// Operations of an account within the longest time that a rule looks back. Operations without a rule have no row.
    pub struct KycUsageRow {
        /// Times and amounts, oldest first.
        pub events: KycEvents,
        /// Operations that were allowed and may still take place: they count until they have, or no longer can.
        pub holds: KycHolds,
    }

    /// Operations that count against limits.
    pub KycUsages(71, "kyc_usage"): KycUsageKey => KycUsageRow, updated(), shard(32);
}

table! {
    /// Payouts of an account may be due since this time, because its owner was identified.
    pub struct KycAlertRow {
        /// When.
        pub time: Timestamp,
    }

    /// Accounts whose held payouts the aggregator must look at again.
    pub KycAlerts(72, "kyc_alerts"): KycAccountKey => KycAlertRow, updated(), shard(32);
    /// All, in commit order (the value is empty).
    OPEN = 1, "open", Serial;
    |_, _, out| {
        out.add_with(Self::OPEN, |_| {});
    }
}

table! {
    /// Identifies a decision of an officer.
    pub key struct KycDecisionKey {
        /// The account.
        pub h_payto: PaytoHash,
        /// The provider's section of the configuration.
        pub provider: String,
        /// When.
        pub time: Timestamp,
        /// The officer.
        pub officer: String,
    }

    /// A decision of an officer. It never changes.
    pub struct KycDecisionRow {
        /// Whether the officer approved.
        pub approved: bool,
        /// Why, in the officer's words.
        pub reason: String,
        /// The sum of payouts that were held when the officer decided.
        pub held: Money,
    }

    /// Decisions of officers: the trail for supervisors.
    pub KycDecisions(73, "kyc_decisions"): KycDecisionKey => KycDecisionRow, shard(32);
    /// By h_payto.
    BY_ACCOUNT = 1, "by_account", Prefix { key_bytes: 32 };
}
