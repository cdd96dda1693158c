//! Identification of customers: what was required, what was proved, and what counts against the limits.

use batzen_protocol::{Money, Timestamp};
use batzen_store::{IndexDef, IndexEntries, IndexKind, Layout, Table, TableDef, record};

use super::{KycEvents, KycOperation, KycState, PaytoHash};

record! {
    /// Identifies a KYC requirement.
    pub key struct KycRequirementKey {
        /// The account whose owner must be identified.
        pub h_payto: PaytoHash,
        /// The requirement's number, which follows from the account and the checks.
        pub row: u64,
    }
}
record! {
    /// A KYC requirement. It stays when it is satisfied, and holds again when the identification expires.
    pub struct KycRequirementRow {
        /// The checks that were missing, sorted and separated by blanks.
        pub checks: String,
        /// About when an operation was refused because of it for the last time; none if that was before this was
        /// recorded.
        pub asked: Option<Timestamp>,
    }
}
record! {
    /// The row before [`KycRequirementRow::asked`].
    pub struct KycRequirementRow0 {
        /// The checks.
        pub checks: String,
    }
}
impl From<KycRequirementRow0> for KycRequirementRow {
    fn from(row: KycRequirementRow0) -> Self {
        Self { checks: row.checks, asked: None }
    }
}
/// KYC requirements.
pub struct KycRequirements;
impl KycRequirements {
    /// By the requirement's number alone: whether it belongs to another account.
    pub const BY_ROW: u8 = 1;
}
impl Table for KycRequirements {
    const DEF: &'static TableDef = &TableDef::of::<Self>(37, "kyc_requirements")
        .shard(32)
        .layouts(&[Layout::of::<KycRequirementRow0, KycRequirementRow>()])
        .indexed(&[IndexDef::new(Self::BY_ROW, "by_row", IndexKind::Hash)]);
    type Key = KycRequirementKey;
    type Row = KycRequirementRow;
    fn index_entries(key: &KycRequirementKey, _: &KycRequirementRow, out: &mut IndexEntries) {
        out.add(Self::BY_ROW, &key.row);
    }
}

record! {
    /// Names an account.
    pub key struct KycAccountKey {
        /// Hash of its payto URI.
        pub h_payto: PaytoHash,
    }
}

record! {
    /// Identifies an account's process with a provider. There is one, which is repeated when it has expired.
    pub key struct KycProcessKey {
        /// The account.
        pub h_payto: PaytoHash,
        /// The provider's section of the configuration.
        pub provider: String,
    }
}
record! {
    /// An identification of an account's owner.
    pub struct KycProcessRow {
        /// When it began.
        pub started: Timestamp,
        /// A secret that only the user's page knows; a provider that has its own leaves it unused.
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
}
/// Identifications.
pub struct KycProcesses;
impl KycProcesses {
    /// By h_payto.
    pub const BY_ACCOUNT: u8 = 1;
    /// Processes that wait for an officer, in commit order (the value is empty).
    pub const SUBMITTED: u8 = 2;
}
impl Table for KycProcesses {
    const DEF: &'static TableDef = &TableDef::of::<Self>(70, "kyc_processes").updated().shard(32).indexed(&[
        IndexDef::new(Self::BY_ACCOUNT, "by_account", IndexKind::Prefix { key_bytes: 32 }),
        IndexDef::new(Self::SUBMITTED, "submitted", IndexKind::Serial),
    ]);
    type Key = KycProcessKey;
    type Row = KycProcessRow;
    fn index_entries(_: &KycProcessKey, row: &KycProcessRow, out: &mut IndexEntries) {
        if row.state == KycState::Submitted {
            out.add_with(Self::SUBMITTED, |_| {});
        }
    }
}

record! {
    /// Identifies the use of an account for a kind of operation.
    pub key struct KycUsageKey {
        /// The account.
        pub h_payto: PaytoHash,
        /// The operation.
        pub operation: KycOperation,
    }
}
record! {
    /// Operations of an account within the longest time that a rule looks back. Operations without a rule have no row.
    pub struct KycUsageRow {
        /// Times and amounts, oldest first.
        pub events: KycEvents,
    }
}
/// Operations that count against limits.
pub struct KycUsages;
impl Table for KycUsages {
    const DEF: &'static TableDef = &TableDef::of::<Self>(71, "kyc_usage").updated().shard(32);
    type Key = KycUsageKey;
    type Row = KycUsageRow;
}

record! {
    /// Payouts of an account may be due since this time, because its owner was identified.
    pub struct KycAlertRow {
        /// When.
        pub time: Timestamp,
    }
}
/// Accounts whose held payouts the aggregator must look at again.
pub struct KycAlerts;
impl KycAlerts {
    /// All, in commit order (the value is empty).
    pub const OPEN: u8 = 1;
}
impl Table for KycAlerts {
    const DEF: &'static TableDef = &TableDef::of::<Self>(72, "kyc_alerts")
        .updated()
        .shard(32)
        .indexed(&[IndexDef::new(Self::OPEN, "open", IndexKind::Serial)]);
    type Key = KycAccountKey;
    type Row = KycAlertRow;
    fn index_entries(_: &KycAccountKey, _: &KycAlertRow, out: &mut IndexEntries) {
        out.add_with(Self::OPEN, |_| {});
    }
}

record! {
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
}
record! {
    /// A decision of an officer. It never changes.
    pub struct KycDecisionRow {
        /// Whether the officer approved.
        pub approved: bool,
        /// Why, in the officer's words.
        pub reason: String,
        /// The sum of payouts that were held when the officer decided.
        pub held: Money,
    }
}
/// Decisions of officers: the trail for supervisors.
pub struct KycDecisions;
impl KycDecisions {
    /// By h_payto.
    pub const BY_ACCOUNT: u8 = 1;
}
impl Table for KycDecisions {
    const DEF: &'static TableDef = &TableDef::of::<Self>(73, "kyc_decisions")
        .shard(32)
        .indexed(&[IndexDef::new(Self::BY_ACCOUNT, "by_account", IndexKind::Prefix { key_bytes: 32 })]);
    type Key = KycDecisionKey;
    type Row = KycDecisionRow;
}
