//! The switch's tables: participants, transfers, windows, settlements, and messages still to be sent.
//!
//! Amounts are in ten-thousandths of the currency's unit, times in milliseconds since 1970 unless they are
//! [`Timestamp`]s. The money itself is in the ledger: these tables record what was intended, decided and
//! reported. Participants have numbers from 1; the hub is 0. A currency is its ledger number.
//!
//! | table | primary key | other lookups |
//! |---|---|---|
//! | `switch_state` | a constant | – |
//! | `switch_participants` | name in lower case | number |
//! | `switch_accounts` | participant, currency, kind | id |
//! | `switch_endpoints` | participant, type | by participant |
//! | `switch_transfers` | transfer id | those with work at the ledger; reserved ones by expiration; by bulk |
//! | `switch_bodies` | transfer id, kind | – |
//! | `switch_outbox` | participant, number | in the order of numbers |
//! | `switch_bulks` | bulk id | – |
//! | `switch_windows` | number | – |
//! | `switch_nets` | window, participant, currency | by window |
//! | `switch_models` | name | – |
//! | `switch_settlements` | number | – |
//! | `switch_settlement_accounts` | settlement, participant, currency | by settlement |
//! | `switch_movements` | id | those with work at the ledger; by participant |
//! | `switch_approvals` | number | – |
//! | `switch_open_approvals` | hash of the change's subject | all |
//! | `switch_parties` | hash of the party, currency | by party |

use batzen_protocol::Timestamp;
use batzen_store::{Table, TableDef, table};

use crate::SingletonKey;

/// Every table of the switch, for tools and backends that set up schemas.
pub const ALL: &[&TableDef] = &[
    SwitchStates::DEF,
    Participants::DEF,
    SwitchAccounts::DEF,
    Endpoints::DEF,
    Transfers::DEF,
    Bodies::DEF,
    Outbox::DEF,
    Bulks::DEF,
    Windows::DEF,
    Nets::DEF,
    Models::DEF,
    Settlements::DEF,
    SettlementAccounts::DEF,
    Movements::DEF,
    Approvals::DEF,
    OpenApprovals::DEF,
    Parties::DEF,
];

/// The number of the hub among participants.
pub const HUB: u32 = 0;

/// Identifies the one row of [`SwitchStates`].
pub type SwitchStateKey = SingletonKey;

table! {
    /// The switch's global data: the next numbers, and the open window.
    pub struct SwitchStateRow {
        /// The next participant, from 1.
        pub next_participant: u32,
        /// The next account id, from 1.
        pub next_account: u32,
        /// The one window that is open.
        pub open_window: u64,
        /// Accepted fulfilments of the open window that the ledger has not answered.
        pub open_in_flight: u64,
        /// Transfers committed in the open window.
        pub open_transfers: u64,
        /// The next settlement, from 1.
        pub next_settlement: u64,
        /// The next approval, from 1.
        pub next_approval: u64,
        /// The next movement by the switch itself, from 1.
        pub next_movement: u64,
    }

    /// The switch's state: one row, written by the first start.
    pub SwitchStates(200, "switch_state"): SwitchStateKey => SwitchStateRow, updated();
}

table! {
    /// Identifies a participant.
    pub key struct ParticipantKey {
        /// In lower case, because names are unique regardless of case.
        pub name: String,
    }

    /// A participant.
    pub struct ParticipantRow {
        /// Its number, from 1.
        pub number: u32,
        /// Its name as registered.
        pub name: String,
        /// Whether it takes part.
        pub active: bool,
        /// When it was created.
        pub created: Timestamp,
    }

    /// The participants, without the hub.
    pub Participants(201, "switch_participants"): ParticipantKey => ParticipantRow;
}

impl ParticipantKey {
    /// The key of the participant with this name.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_ascii_lowercase() }
    }
}

batzen_protocol::enumeration! {
    /// The purpose of an account.
    pub enum AccountKind {
        /// A participant's obligations from cleared transfers.
        Position = 1 => "POSITION",
        /// A participant's liquidity at the settlement bank.
        Settlement = 2 => "SETTLEMENT",
        /// The hub's account: counterpart of liquidity that is paid in and out.
        HubReconciliation = 3 => "HUB_RECONCILIATION",
        /// The hub's account: counterpart of net settlement; zero after each settlement.
        HubMultilateralSettlement = 4 => "HUB_MULTILATERAL_SETTLEMENT",
        /// The hub's account, one per participant: the headroom granted to it.
        Grant = 5 => "HUB_GRANT",
    }
}

table! {
    /// Identifies an account. Its id in the ledger is composed of these three.
    pub key struct SwitchAccountKey {
        /// The owner; the hub is 0.
        pub participant: u32,
        /// The currency.
        pub currency: u32,
        /// An [`AccountKind`].
        pub kind: u8,
    }

    /// An account.
    pub struct SwitchAccountRow {
        /// Its number at the administrative interface.
        pub id: u32,
        /// Whether it may be used.
        pub active: bool,
        /// The net debit cap. Positions only; `None`: not set yet.
        pub ndc: Option<u128>,
        /// The percentage of the limit at which an alarm is raised. Positions only.
        pub alarm_percentage: u8,
        /// The error code with which new prepares are refused because the granted headroom could not be
        /// revoked in full; 0: the participant is within its limit.
        pub over_limit: u16,
        /// Whether each transfer of the currency is settled at once by itself. The hub's account for
        /// settlement only.
        pub gross: bool,
    }

    /// The accounts of participants and hub.
    pub SwitchAccounts(202, "switch_accounts"): SwitchAccountKey => SwitchAccountRow, updated();
}

impl SwitchAccountKey {
    /// The key of an account.
    pub fn new(participant: u32, currency: u32, kind: AccountKind) -> Self {
        Self { participant, currency, kind: kind as u8 }
    }

    /// Its id in the ledger.
    #[must_use]
    pub fn ledger_id(&self) -> u128 {
        (u128::from(self.participant) << 64) | (u128::from(self.currency) << 32) | u128::from(self.kind)
    }
}

table! {
    /// Identifies a callback address.
    pub key struct EndpointKey {
        /// The participant.
        pub participant: u32,
        /// The messages that it receives.
        pub endpoint: String,
    }

    /// A callback address.
    pub struct EndpointRow {
        /// The URL.
        pub url: String,
    }

    /// The callback addresses.
    pub Endpoints(203, "switch_endpoints"): EndpointKey => EndpointRow;
    /// All of a participant.
    BY_PARTICIPANT = 1, "by_participant", Prefix { key_bytes: 4 };
}

table! {
    /// Identifies a transfer.
    pub key struct TransferKey {
        /// Chosen by the payer; also the id of the pending transfer in the ledger.
        pub id: u128,
    }

    /// A transfer.
    pub struct TransferRow {
        /// The internal state, see the switch's rules: the last of `history`.
        pub state: u8,
        /// The pending event for the ledger; 0: none. It must be sent (again) under the same id.
        pub intent: u8,
        /// The payer; 0 if unknown.
        pub payer: u32,
        /// The payee; 0 if unknown.
        pub payee: u32,
        /// The currency.
        pub currency: u32,
        /// The amount.
        pub amount: u128,
        /// The hash that the fulfilment must match.
        pub condition: [u8; 32],
        /// When it expires.
        pub expiration: u64,
        /// Hash of the canonical prepare.
        pub prepare_hash: [u8; 32],
        /// Hash of the canonical fulfilment message that counts.
        pub fulfil_hash: Option<[u8; 32]>,
        /// Hash of the canonical error message that counts.
        pub error_hash: Option<[u8; 32]>,
        /// The preimage of the condition.
        pub fulfilment: Option<[u8; 32]>,
        /// When it was decided.
        pub completed: u64,
        /// The settlement window, once a fulfilment was accepted; 0: none.
        pub window: u64,
        /// Whether it is settled at once by itself.
        pub gross: bool,
        /// Whether the payee wants to know the outcome of its fulfilment.
        pub wants_patch: bool,
        /// Why it failed; 0: it has not.
        pub error_code: u16,
        /// Why it failed, in words.
        pub error_text: String,
        /// The bulk transfer that it is part of.
        pub bulk: Option<u128>,
        /// Its states in order: state (1 byte), reason (2 bytes, an error code or 0) and time (8 bytes,
        /// microseconds), big-endian. States are only appended.
        pub history: Vec<u8>,
    }

    /// The transfers.
    pub Transfers(204, "switch_transfers"): TransferKey => TransferRow, updated();
    /// Transfers with an intent, in the order of the intents.
    INTENDED = 1, "intended", Serial;
    /// Transfers that can expire, by expiration.
    BY_DEADLINE = 2, "by_deadline", Ordered;
    /// Parts of bulk transfers.
    BY_BULK = 3, "by_bulk", Hash;
    |_, row, out| {
        if row.intent != 0 {
            out.add_with(Self::INTENDED, |_| {});
        }
        if row.state == Self::RESERVED {
            out.add(Self::BY_DEADLINE, &row.expiration);
        }
        if let Some(bulk) = &row.bulk {
            out.add(Self::BY_BULK, bulk);
        }
    }
}

impl Transfers {
    /// The state in which a transfer can expire.
    pub const RESERVED: u8 = 2;
}

/// The kind of message of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum BodyKind {
    /// The payer's POST.
    Prepare = 1,
    /// The payee's PUT.
    Fulfil = 2,
    /// The payee's PUT error.
    Error = 3,
    /// The payer's POST of a bulk transfer.
    BulkPrepare = 4,
    /// The payee's PUT error about a bulk transfer.
    BulkError = 5,
}

table! {
    /// Identifies a message.
    pub key struct BodyKey {
        /// The transfer or bulk transfer.
        pub(crate) id: u128,
        /// A [`BodyKind`].
        pub(crate) kind: u8,
    }

    /// A message as it was received.
    pub struct BodyRow {
        /// The header lines to pass on, each ended by CR LF.
        pub headers: String,
        /// The body, byte for byte.
        pub body: Vec<u8>,
    }

    /// The messages.
    pub Bodies(205, "switch_bodies"): BodyKey => BodyRow;
}

impl BodyKey {
    /// The key of a body.
    pub fn new(id: u128, kind: BodyKind) -> Self {
        Self { id, kind: kind as u8 }
    }
}

table! {
    /// Identifies a message to be sent.
    pub key struct OutboxKey {
        /// The receiver.
        pub participant: u32,
        /// Its number, in the order of the commands that created the messages; messages about one transfer
        /// are sent in this order.
        pub number: u64,
    }

    /// A message to be sent. Its text is written at that time, from the rows that it is about.
    pub struct OutboxRow {
        /// The kind of message, see the switch's outbox.
        pub kind: u8,
        /// The transfer or bulk transfer.
        pub id: u128,
        /// An error code, where the kind has one.
        pub code: u16,
        /// A text, where the kind has one.
        pub text: String,
        /// When it was created.
        pub created: u64,
    }

    /// Messages to be sent.
    pub Outbox(206, "switch_outbox"): OutboxKey => OutboxRow, updated();
    /// By participant and number: the key's own order.
    IN_ORDER = 1, "in_order", Ordered;
    |key, _, out| {
        out.add(Self::IN_ORDER, &key.participant);
    }
}

table! {
    /// Identifies a bulk transfer.
    pub key struct BulkKey {
        /// Chosen by the payer.
        pub id: u128,
    }

    /// A bulk transfer. Its items are transfers.
    pub struct BulkRow {
        /// The state, see the switch's rules.
        pub state: u8,
        /// The payer.
        pub payer: u32,
        /// The payee.
        pub payee: u32,
        /// Hash of the canonical POST.
        pub prepare_hash: [u8; 32],
        /// Hash of the canonical PUT that counts.
        pub fulfil_hash: Option<[u8; 32]>,
        /// Hash of the canonical PUT error that counts.
        pub error_hash: Option<[u8; 32]>,
        /// When items expire.
        pub expiration: u64,
        /// Items that the ledger has not yet reserved or refused.
        pub unanswered_items: u32,
        /// Items without a final state.
        pub open_items: u32,
        /// Whether an item failed for a reason that did not come from the payee, which is then informed of
        /// the outcome.
        pub tells_payee: bool,
        /// The ids of the items in order, 16 bytes each.
        pub items: Vec<u8>,
        /// Items that failed before they were recorded (their ids were known): place in `items` (2 bytes) and
        /// code (2 bytes).
        pub failed: Vec<u8>,
        /// When it was completed.
        pub completed: u64,
    }

    /// The bulk transfers.
    pub Bulks(207, "switch_bulks"): BulkKey => BulkRow, updated();
}

table! {
    /// Identifies a settlement window.
    pub key struct WindowKey {
        /// Its number, from 1.
        pub id: u64,
    }

    /// A settlement window.
    pub struct WindowRow {
        /// The state, see the switch's rules.
        pub state: u8,
        /// Why it has this state.
        pub reason: String,
        /// When it was opened.
        pub created: Timestamp,
        /// When its state last changed.
        pub changed: Timestamp,
        /// Accepted fulfilments of this window that the ledger has not answered. The window is closed only
        /// once they are answered.
        pub in_flight: u64,
        /// Transfers committed in it.
        pub transfers: u64,
    }

    /// The settlement windows.
    pub Windows(208, "switch_windows"): WindowKey => WindowRow, updated();
}

table! {
    /// Identifies a participant's part of a window.
    pub key struct NetKey {
        /// The window.
        pub window: u64,
        /// The participant.
        pub participant: u32,
        /// The currency.
        pub currency: u32,
    }

    /// The amounts that a participant sent and received in a window.
    pub struct NetRow {
        /// Sum of the amounts sent.
        pub sent: u128,
        /// Their number.
        pub sent_count: u64,
        /// Sum of the amounts received.
        pub received: u128,
        /// Their number.
        pub received_count: u64,
        /// The settlement that includes it; 0: none.
        pub settlement: u64,
        /// Whether it is settled.
        pub settled: bool,
    }

    /// The amounts that participants sent and received, by window.
    pub Nets(209, "switch_nets"): NetKey => NetRow;
    /// All of a window.
    BY_WINDOW = 1, "by_window", Prefix { key_bytes: 8 };
}

table! {
    /// Identifies a settlement model.
    pub key struct ModelKey {
        /// Its name.
        pub name: String,
    }

    /// The settlement model of a currency.
    pub struct ModelRow {
        /// The currency; 0: all currencies without their own model.
        pub currency: u32,
        /// Whether each transfer is settled at once by itself; otherwise in net, later.
        pub gross: bool,
        /// Whether recipients' positions are checked when they are reserved.
        pub require_liquidity_check: bool,
        /// Whether settlement changes positions; otherwise it only keeps records.
        pub auto_position_reset: bool,
        /// Whether it is in use.
        pub active: bool,
    }

    /// The settlement models.
    pub Models(210, "switch_models"): ModelKey => ModelRow;
}

table! {
    /// Identifies a settlement.
    pub key struct SettlementKey {
        /// Its number, from 1.
        pub id: u64,
    }

    /// A settlement of some windows.
    pub struct SettlementRow {
        /// The state, see the switch's rules.
        pub state: u8,
        /// The model.
        pub model: String,
        /// Why it was created, or why it has this state.
        pub reason: String,
        /// When it was created.
        pub created: Timestamp,
        /// When its state last changed.
        pub changed: Timestamp,
        /// The windows, 8 bytes each.
        pub windows: Vec<u8>,
    }

    /// The settlements.
    pub Settlements(211, "switch_settlements"): SettlementKey => SettlementRow;
}

table! {
    /// Identifies an account of a settlement.
    pub key struct SettlementAccountKey {
        /// The settlement.
        pub settlement: u64,
        /// The participant.
        pub participant: u32,
        /// The currency.
        pub currency: u32,
    }

    /// The amount that a participant owes or is owed in a settlement.
    pub struct SettlementAccountRow {
        /// The state, see the switch's rules.
        pub state: u8,
        /// The amount it sent: it owes `sent` − `received`.
        pub sent: u128,
        /// The amount it received.
        pub received: u128,
        /// Why it has this state.
        pub reason: String,
        /// The settlement bank's reference.
        pub reference: String,
        /// Whether positions were moved beyond the available headroom.
        pub beyond_headroom: bool,
    }

    /// The accounts of settlements.
    pub SettlementAccounts(212, "switch_settlement_accounts"): SettlementAccountKey => SettlementAccountRow;
    /// All of a settlement.
    BY_SETTLEMENT = 1, "by_settlement", Prefix { key_bytes: 8 };
}

table! {
    /// Identifies a movement.
    pub key struct MovementKey {
        /// Chosen by the operator (a UUID), or derived from a running number; also the id in the ledger.
        pub id: u128,
    }

    /// Liquidity paid in or out, and headroom granted or revoked.
    pub struct MovementRow {
        /// The kind, see the switch's rules.
        pub kind: u8,
        /// The state, see the switch's rules.
        pub state: u8,
        /// The participant.
        pub participant: u32,
        /// The currency.
        pub currency: u32,
        /// The amount.
        pub amount: u128,
        /// The headroom that is revoked in the same step (funds out).
        pub headroom: u128,
        /// The reason.
        pub reason: String,
        /// The settlement bank's reference.
        pub reference: String,
        /// The operator who ordered it; empty: the switch itself.
        pub operator: String,
        /// The time.
        pub created: Timestamp,
        /// When its state last changed.
        pub changed: Timestamp,
    }

    /// The movements.
    pub Movements(213, "switch_movements"): MovementKey => MovementRow, updated();
    /// Movements with an intent.
    INTENDED = 1, "intended", Serial;
    /// By participant, in their order.
    BY_PARTICIPANT = 2, "by_participant", Serial;
    |_, row, out| {
        if Self::is_intent(row.state) {
            out.add_with(Self::INTENDED, |_| {});
        }
        out.add(Self::BY_PARTICIPANT, &row.participant);
    }
}

impl Movements {
    /// States that await an answer of the ledger are odd.
    #[must_use]
    pub(crate) const fn is_intent(state: u8) -> bool {
        state % 2 == 1
    }
}

table! {
    /// Identifies an approval.
    pub key struct ApprovalKey {
        /// Its number, from 1.
        pub id: u64,
    }

    /// A change that one operator has proposed, for another to approve.
    pub struct ApprovalRow {
        /// The change as JSON.
        pub change: String,
        /// The operator who proposed it.
        pub proposed_by: String,
        /// The time.
        pub proposed: Timestamp,
        /// 0: open; 1: approved, and done once `result` says so; 2: rejected; 3: approved, but it could not
        /// be done; 4: withdrawn; 5: expired.
        pub state: u8,
        /// The operator who decided; empty if it expired undecided.
        pub decided_by: String,
        /// The time.
        pub decided: Timestamp,
        /// The result, or the reason of a rejection or withdrawal.
        pub result: String,
    }

    /// The changes that need two operators.
    pub Approvals(214, "switch_approvals"): ApprovalKey => ApprovalRow;
}

table! {
    /// Identifies the subject of an open proposal; there is at most one per subject.
    pub key struct OpenApprovalKey {
        /// A hash of the transfer, window, settlement or whole change.
        pub subject: [u8; 32],
    }

    /// A proposal that is not finished: open, or approved and not yet carried out.
    pub struct OpenApprovalRow {
        /// Its number in [`Approvals`].
        pub approval: u64,
        /// The operator who proposed it.
        pub proposed_by: String,
        /// A hash of the change, to recognise a repetition.
        pub change: [u8; 32],
        /// When it was proposed.
        pub proposed: Timestamp,
        /// When it expires unless it has been decided.
        pub expires: Timestamp,
    }

    /// The proposals that are not finished.
    pub OpenApprovals(215, "switch_open_approvals"): OpenApprovalKey => OpenApprovalRow;
    /// All of them, under the value 0.
    ALL = 1, "all", Hash;
    |_, _, out| {
        out.add(Self::ALL, &0_u8);
    }
}

table! {
    /// Identifies a party in a currency.
    pub key struct PartyKey {
        /// A hash of type, identifier and sub-identifier.
        pub party: [u8; 32],
        /// The currency; 0: all currencies.
        pub currency: u32,
    }

    /// The participant whose customer a party is.
    pub struct PartyRow {
        /// The participant.
        pub participant: u32,
        /// When it was registered.
        pub registered: Timestamp,
    }

    /// Account lookups: the participants' customers.
    pub Parties(216, "switch_parties"): PartyKey => PartyRow;
    /// All currencies of a party.
    BY_PARTY = 1, "by_party", Prefix { key_bytes: 32 };
}
