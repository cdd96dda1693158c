//! Results of the checks of the auditor's copy so far. They change in the commit that changes the copy, so that rows
//! and results never disagree.
//!
//! Sums may be negative; they are stored as `u128` in two's complement.

use batzen_crypto::hash::{sha512_parts, shorten};
use batzen_crypto::{EddsaPublicKey, HashCode, ShortHash, Wtid};
use batzen_protocol::Timestamp;
use batzen_store::{Column, List, Table, TableDef, table};

use crate::SingletonKey;
use crate::exchange::{AccountId, DenomSerial, MerchantPub, PaytoHash};

/// Identifies the one row of [`AuditStates`].
pub type AuditStateKey = SingletonKey;

table! {
    /// The position up to which the copy has been checked, and the sums of its rows.
    pub struct AuditStateRow {
        /// The form of sums and rules: sums of another form are of no use.
        pub form: u32,
        /// The position up to which everything has been checked: the number of the stream's next frame.
        pub next: u64,
        /// Number of snapshots that the copy had taken then.
        pub snapshots: u32,
        /// Sums that belong to no denomination, in the order of the form; two's complement.
        pub sums: List<u128>,
        /// Rows checked since the last whole check, that one included.
        pub rows: u64,
        /// Signatures verified since then.
        pub signatures: u64,
        /// When all rows were last checked at once.
        pub whole: Timestamp,
        /// When the last change was checked.
        pub updated: Timestamp,
        /// When bank, merchants and due dates were last compared; zero if never.
        pub compared: Timestamp,
    }

    /// The position of the checks: one row, or none before the first whole check.
    pub AuditStates(503, "audit_state"): AuditStateKey => AuditStateRow, updated();
}

table! {
    /// Identifies a denomination.
    pub key struct AuditDenomKey {
        /// Its number at the exchange.
        pub denom: DenomSerial,
    }

    /// The sums of a denomination's rows, in units of 10⁻⁸, two's complement.
    pub struct AuditDenomRow {
        /// Coins withdrawn.
        pub withdrawn: i64,
        /// Coins obtained by refresh.
        pub refreshed: i64,
        /// Coins that were used.
        pub known: i64,
        /// Coins spent by archived rows.
        pub archived: i64,
        /// Deposit fees.
        pub deposit_fees: u128,
        /// Value paid out by recoup.
        pub recouped: u128,
        /// Value spent less value that came back.
        pub redeemed: u128,
    }

    /// The sums of each denomination.
    pub AuditDenoms(504, "audit_denoms"): AuditDenomKey => AuditDenomRow, updated();
}

table! {
    /// Identifies a finding.
    pub key struct AuditFindingKey {
        /// See [`AuditFindingKey::of`].
        pub id: ShortHash,
    }

    /// Something that violates a rule, or did. It stays.
    pub struct AuditFindingRow {
        /// The rule's name.
        pub rule: String,
        /// The table of the row that it is about.
        pub table: String,
        /// That row's serial, or 0.
        pub serial: u64,
        /// That row's key, or what the finding is about.
        pub key: String,
        /// The key that should have signed, or another one that it is about.
        pub subject: String,
        /// The exchange's figure in units of 10⁻⁸; two's complement.
        pub exchange: u128,
        /// The auditor's figure; two's complement.
        pub auditor: u128,
        /// The amount at risk.
        pub at_risk: u128,
        /// The difference, in words.
        pub detail: String,
        /// Whether it follows from the whole, such as what is overdue, and is looked for again in each comparison.
        pub is_whole: bool,
        /// When it was found first.
        pub found: Timestamp,
        /// When it was found last, with these figures.
        pub confirmed: Timestamp,
        /// When it was found to be no longer so; `None`: it still is.
        pub resolved: Option<Timestamp>,
        /// When a person suppressed it.
        pub suppressed: Option<Timestamp>,
        /// Number of notes people that have made about it ([`AuditNotes`]).
        pub notes: u32,
    }

    /// The findings, also those that were resolved or suppressed.
    pub AuditFindings(505, "audit_findings"): AuditFindingKey => AuditFindingRow, updated();
    /// Findings that still hold, and those that no longer do, in the order in which they were found first.
    /// See [`AuditFindings::state`].
    BY_STATE = 1, "by_state", Serial;
    |_, row, out| {
        out.add(Self::BY_STATE, &row.resolved.is_some());
    }
}

impl AuditFindingKey {
    /// The key of what violates a rule at one place. The same violation found again has the same key, also with other
    /// figures.
    #[must_use]
    pub fn of(rule: &str, table: &str, key: &str, subject: &str) -> Self {
        let parts: [&[u8]; 8] = [
            b"batzen-audit-finding\0",
            rule.as_bytes(),
            b"\0",
            table.as_bytes(),
            b"\0",
            key.as_bytes(),
            b"\0",
            subject.as_bytes(),
        ];
        Self { id: shorten(&sha512_parts(&parts)) }
    }
}

impl AuditFindings {
    /// The index's value of findings that are (or are no longer) so.
    #[must_use]
    pub fn state(is_resolved: bool) -> Vec<u8> {
        Column::to_bytes(&is_resolved)
    }
}

table! {
    /// Identifies a note.
    pub key struct AuditNoteKey {
        /// The finding.
        pub finding: ShortHash,
        /// Its number, from 0.
        pub n: u32,
    }

    /// A person's decision about a finding.
    pub struct AuditNoteRow {
        /// When.
        pub time: Timestamp,
        /// Whether it was suppressed; otherwise it was reopened.
        pub suppresses: bool,
        /// Why.
        pub reason: String,
    }

    /// People's decisions about findings. Notes stay.
    pub AuditNotes(506, "audit_notes"): AuditNoteKey => AuditNoteRow;
    /// By finding.
    BY_FINDING = 1, "by_finding", Prefix { key_bytes: 32 };
    |key, _, out| {
        out.add(Self::BY_FINDING, &key.finding);
    }
}

table! {
    /// Identifies a transfer.
    pub key struct AuditClosingKey {
        /// Its identifier.
        pub wtid: Wtid,
    }

    /// The reserve that a transfer pays out.
    pub struct AuditClosingRow {
        /// The reserve.
        pub reserve_pub: EddsaPublicKey,
    }

    /// The reserves of closings whose transfers do not have the reserve's key as their identifier.
    pub AuditClosings(507, "audit_closings"): AuditClosingKey => AuditClosingRow, updated();
}

table! {
    /// Identifies the figures of an hour.
    pub key struct AuditHourKey {
        /// When the hour began.
        pub hour: Timestamp,
        /// A denomination, or 0 for all: the exchange's numbers begin at 1.
        pub denom: DenomSerial,
    }

    /// Figures at the end of an hour, in units of 10⁻⁸; two's complement.
    pub struct AuditHourRow {
        /// The value of all coins issued so far.
        pub issued: u128,
        /// The sum redeemed so far.
        pub redeemed: u128,
        /// Of all denominations: what the exchange owes.
        pub liability: u128,
        /// Of all denominations: what the exchange's accounts should hold.
        pub expected: u128,
        /// Of all denominations: what the bank said that they hold, if it was asked.
        pub bank: Option<u128>,
    }

    /// The sums issued, redeemed and owed, hour by hour. Hours without changes have no row.
    pub AuditHours(508, "audit_hours"): AuditHourKey => AuditHourRow, updated();
    /// In the order of time.
    BY_HOUR = 1, "by_hour", Ordered;
    |key, _, out| {
        out.add(Self::BY_HOUR, &key.hour);
    }
}

/// Identifies the one row of [`ReplicaPositions`].
pub type ReplicaPositionKey = SingletonKey;

table! {
    /// The position that the copy of a database has reached. It changes in the commit that applies the
    /// database's changes.
    pub struct ReplicaPositionRow {
        /// The position in the database's log: everything before it is in the copy.
        pub lsn: u64,
        /// The position from which on the copy is a state of the database.
        pub whole_at: u64,
        /// Whether all rows have been copied.
        pub is_copied: bool,
    }

    /// The position that the copy of a database has reached: one row, or none if the exchange is followed
    /// otherwise.
    pub ReplicaPositions(509, "replica_position"): ReplicaPositionKey => ReplicaPositionRow, updated();
}

table! {
    /// Identifies a reserve.
    pub key struct AuditReserveSumsKey {
        /// Its public key.
        pub reserve_pub: EddsaPublicKey,
    }

    /// The sums of a reserve's rows, in units of 10⁻⁸, two's complement.
    pub struct AuditReserveSumsRow {
        /// Rows that add to them.
        pub entries: i64,
        /// The sum that came in.
        pub into: u128,
        /// The sum that went out.
        pub out: u128,
        /// Open purses that use its quota.
        pub quota: i64,
    }

    /// The sums of reserves with long histories, which are not read again for each change.
    pub AuditReserveSums(540, "audit_reserve_sums"): AuditReserveSumsKey => AuditReserveSumsRow, updated();
}

table! {
    /// Identifies a transfer.
    pub key struct AuditTransferSumsKey {
        /// Its identifier.
        pub wtid: Wtid,
    }

    /// The sums of a transfer's deposits, in units of 10⁻⁸, two's complement.
    pub struct AuditTransferSumsRow {
        /// Their number.
        pub deposits: i64,
        /// Contributions less refunds.
        pub contributed: u128,
        /// Deposit fees.
        pub fees: u128,
        /// Deposits of which less is left than their fee.
        pub small: i64,
        /// The account that receives them all.
        pub h_payto: PaytoHash,
        /// The merchant that receives them all.
        pub merchant_pub: MerchantPub,
    }

    /// The sums of transfers with many deposits, which are not read again for each change.
    pub AuditTransferSums(541, "audit_transfer_sums"): AuditTransferSumsKey => AuditTransferSumsRow,
        updated();
}

table! {
    /// Identifies an account of the exchange.
    pub key struct AuditBankAccountKey {
        /// The account.
        pub account: AccountId,
    }

    /// The position up to which the bank's history of an account has been read; sums in units of 10⁻⁸, two's
    /// complement.
    pub struct AuditBankAccountRow {
        /// The bank's row of the last incoming transfer, or 0.
        pub last_credit: u64,
        /// The bank's row of the last outgoing transfer, or 0.
        pub last_debit: u64,
        /// All incoming transfers.
        pub bank_in: u128,
        /// All outgoing transfers.
        pub bank_out: u128,
    }

    /// The accounts at the bank.
    pub AuditBankAccounts(542, "audit_bank_accounts"): AuditBankAccountKey => AuditBankAccountRow, updated();
}

table! {
    /// Identifies a transfer at the bank.
    pub key struct AuditBankKey {
        /// The exchange's account.
        pub account: AccountId,
        /// Its row at the bank.
        pub bank_row: u64,
    }

    /// A transfer to the exchange, as the bank has it.
    pub struct AuditBankCreditRow {
        /// When it was executed.
        pub time: Timestamp,
        /// Its amount in units of 10⁻⁸.
        pub units: u128,
        /// The reserve in its subject.
        pub reserve_pub: EddsaPublicKey,
        /// The payto URI of the sender.
        pub sender: String,
    }

    /// Incoming transfers, as the bank has them.
    pub AuditBankCredits(543, "audit_bank_credits"): AuditBankKey => AuditBankCreditRow, updated();
}

table! {
    /// A transfer by the exchange, as the bank has it.
    pub struct AuditBankDebitRow {
        /// When it was executed.
        pub time: Timestamp,
        /// Its amount in units of 10⁻⁸.
        pub units: u128,
        /// The identifier in its subject.
        pub wtid: Wtid,
        /// The payto URI of the receiver.
        pub receiver: String,
    }

    /// Outgoing transfers, as the bank has them.
    pub AuditBankDebits(544, "audit_bank_debits"): AuditBankKey => AuditBankDebitRow, updated();
    /// By wtid.
    BY_WTID = 1, "by_wtid", Hash;
    |_, row, out| {
        out.add(Self::BY_WTID, &row.wtid);
    }
}

table! {
    /// Says only that the row is there.
    pub struct AuditOpenRow {}

    /// Incoming transfers of which the exchange's row and the bank's have not been found to agree since one of them changed.
    pub AuditOpenCredits(545, "audit_open_credits"): AuditBankKey => AuditOpenRow;
}

table! {
    /// Identifies a transfer.
    pub key struct AuditOpenTransferKey {
        /// Its identifier.
        pub wtid: Wtid,
    }

    /// Outgoing transfers of which the exchange's rows and the bank's have not been found to agree since one of them changed.
    pub AuditOpenTransfers(546, "audit_open_transfers"): AuditOpenTransferKey => AuditOpenRow;
}

table! {
    /// Identifies a deposit confirmation.
    pub key struct AuditOpenConfirmationKey {
        /// Its number at the auditor.
        pub serial: u64,
    }

    /// A deposit that the exchange has confirmed to a merchant.
    pub struct AuditOpenConfirmationRow {
        /// The coin.
        pub coin_pub: EddsaPublicKey,
        /// The merchant.
        pub merchant_pub: MerchantPub,
        /// The contract.
        pub h_contract_terms: HashCode,
        /// The merchant's account with its salt.
        pub h_wire: HashCode,
        /// The time until which the merchant may refund it.
        pub refund_deadline: Timestamp,
        /// When the exchange accepted it.
        pub time: Timestamp,
        /// The exchange's debt for it, in units of 10⁻⁸.
        pub units: u128,
    }

    /// Confirmations whose deposits have not been found on the books.
    pub AuditOpenConfirmations(547, "audit_open_confirmations"): AuditOpenConfirmationKey
        => AuditOpenConfirmationRow;
}

/// Identifies the one row of [`AuditOutsides`].
pub type AuditOutsideKey = SingletonKey;

table! {
    /// The position of the comparison with bank and merchants; sums in units of 10⁻⁸, two's complement.
    pub struct AuditOutsideRow {
        /// The number of the last confirmation that was read.
        pub confirmation: u64,
        /// Incoming transfers that agreed before the exchange removed its row.
        pub gone_in: u128,
        /// Outgoing transfers that agreed before the exchange removed its row.
        pub gone_out: u128,
    }

    /// The position of the comparison with bank and merchants: one row, or none before the first.
    pub AuditOutsides(548, "audit_outside"): AuditOutsideKey => AuditOutsideRow, updated();
}

/// Identifies the one row of [`CopyTimes`].
pub type CopyTimeKey = SingletonKey;

table! {
    /// The time of a copy.
    pub struct CopyTimeRow {
        /// The copy has everything that the exchange had then, by the auditor's clock.
        pub complete: Timestamp,
    }

    /// The time of the copy: one row, or none before the copy was complete for the first time.
    pub CopyTimes(549, "copy_time"): CopyTimeKey => CopyTimeRow, updated();
}

pub(crate) const RESULTS: &[&TableDef] = &[
    AuditStates::DEF,
    AuditDenoms::DEF,
    AuditFindings::DEF,
    AuditNotes::DEF,
    AuditClosings::DEF,
    AuditHours::DEF,
    ReplicaPositions::DEF,
    AuditReserveSums::DEF,
    AuditTransferSums::DEF,
    AuditBankAccounts::DEF,
    AuditBankCredits::DEF,
    AuditBankDebits::DEF,
    AuditOpenCredits::DEF,
    AuditOpenTransfers::DEF,
    AuditOpenConfirmations::DEF,
    AuditOutsides::DEF,
    CopyTimes::DEF,
];

/// Tables that a check of all rows computes again: not findings with their stories, figures of past hours, or
/// positions.
pub const RECOMPUTED: &[&TableDef] = &[
    // First: without it, the others do not count.
    AuditStates::DEF,
    AuditDenoms::DEF,
    AuditClosings::DEF,
    AuditReserveSums::DEF,
    AuditTransferSums::DEF,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_identifies_a_finding_is_in_its_key() {
        let key = AuditFindingKey::of("a", "b", "c", "d");
        assert_eq!(key, AuditFindingKey::of("a", "b", "c", "d"));
        for other in [("x", "b", "c", "d"), ("a", "x", "c", "d"), ("a", "b", "x", "d"), ("a", "b", "c", "x")]
        {
            assert_ne!(key, AuditFindingKey::of(other.0, other.1, other.2, other.3));
        }
        assert_ne!(key, AuditFindingKey::of("a", "", "bc", "d"));
    }
}
