//! Multilateral deferred net settlement: the net debts of participants over some windows, settled step by
//! step.
//!
//! The ids of a step's ledger entries are derived from settlement, participant and step, so an interrupted
//! step is simply repeated. It is recorded here once the ledger has answered.

use std::collections::BTreeMap;

use batzen_engine::{Plan, WorkingSet};
use batzen_protocol::Timestamp;
use batzen_tables::switch::{
    ModelKey, Models, NetKey, NetRow, Nets, SettlementAccountKey, SettlementAccountRow, SettlementAccounts,
    SettlementKey, SettlementRow, Settlements, WindowKey, Windows,
};

use super::windows::WindowState;
use super::{Refusal, change_state, plan_state, state_row, take_u64};

/// The state of a settlement or of an account in one (only settlements can be SETTLING or ABORTING).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum SettlementState {
    /// The nets are final.
    Pending = 1,
    /// The entries are recorded.
    Recorded = 2,
    /// Amounts owed to recipients no longer count as headroom.
    Reserved = 3,
    /// The settlement has taken over the senders' debts.
    Committed = 4,
    /// Some accounts are settled.
    Settling = 5,
    /// Settled at the settlement bank.
    Settled = 6,
    /// Abandoned; everything reserved has been reversed.
    Aborted = 7,
    /// Being abandoned.
    Aborting = 8,
}

impl SettlementState {
    /// Every state.
    pub const ALL: [Self; 8] = [
        Self::Pending,
        Self::Recorded,
        Self::Reserved,
        Self::Committed,
        Self::Settling,
        Self::Settled,
        Self::Aborted,
        Self::Aborting,
    ];

    /// The state with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|state| *state as u8 == number)
    }

    /// The state of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Its name at the interface.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "PENDING_SETTLEMENT",
            Self::Recorded => "PS_TRANSFERS_RECORDED",
            Self::Reserved => "PS_TRANSFERS_RESERVED",
            Self::Committed => "PS_TRANSFERS_COMMITTED",
            Self::Settling => "SETTLING",
            Self::Settled => "SETTLED",
            Self::Aborted => "ABORTED",
            Self::Aborting => "ABORTING",
        }
    }

    /// Returns whether an account can be in this state; some are for settlements only.
    #[must_use]
    pub const fn is_of_accounts(self) -> bool {
        !matches!(self, Self::Settling | Self::Aborting)
    }

    /// An account's next state.
    #[must_use]
    pub const fn next(self) -> Option<Self> {
        match self {
            Self::Pending => Some(Self::Recorded),
            Self::Recorded => Some(Self::Reserved),
            Self::Reserved => Some(Self::Committed),
            Self::Committed => Some(Self::Settled),
            _ => None,
        }
    }
}

fn of(number: u8) -> SettlementState {
    SettlementState::from_number(number).expect("rows are written by the rules")
}

/// Commands about settlements.
#[derive(Clone, Debug)]
pub enum SettlementCommand {
    /// Creates a settlement of windows.
    Create {
        /// The next settlement's number.
        id: u64,
        /// The model.
        model: String,
        /// The reason.
        reason: String,
        /// The windows.
        windows: Vec<u64>,
        /// Currencies with their own models.
        others: Vec<u32>,
    },
    /// Records a step of an account. A repetition only changes the reason and the reference.
    Step {
        /// The account of the settlement.
        key: SettlementAccountKey,
        /// The settlement's windows.
        windows: Vec<u64>,
        /// The step.
        to: SettlementState,
        /// The reason.
        reason: String,
        /// The settlement bank's reference.
        reference: String,
        /// Whether a recipient's position exceeded its headroom.
        beyond_headroom: bool,
    },
    /// Begins to abandon a settlement, or completes that once everything reserved has been reversed.
    Abort {
        /// The settlement.
        id: u64,
        /// The settlement's windows.
        windows: Vec<u64>,
        /// The reason.
        reason: String,
        /// Whether everything has been reversed.
        reversed: bool,
    },
}

fn plan_content(id: u64, windows: &[u64], plan: &mut Plan) {
    plan.row::<Settlements>(SettlementKey { id });
    plan.group::<SettlementAccounts>(SettlementAccounts::BY_SETTLEMENT, &id);
    for &window in windows {
        plan.row::<Windows>(WindowKey { id: window });
        plan.group::<Nets>(Nets::BY_WINDOW, &window);
    }
}

pub(super) fn plan(command: &SettlementCommand, plan: &mut Plan) {
    match command {
        SettlementCommand::Create { id, model, windows, .. } => {
            plan_state(plan);
            plan.row::<Models>(ModelKey { name: model.clone() });
            plan_content(*id, windows, plan);
        }
        SettlementCommand::Step { key, windows, .. } => plan_content(key.settlement, windows, plan),
        SettlementCommand::Abort { id, windows, .. } => plan_content(*id, windows, plan),
    }
}

pub(super) fn execute(
    rows: &mut WorkingSet,
    command: &SettlementCommand,
    now: Timestamp,
) -> Result<u64, Refusal> {
    match command {
        SettlementCommand::Create { id, model, reason, windows, others } => {
            create(rows, *id, (model, reason), (windows, others), now)
        }
        SettlementCommand::Step { key, windows, to, reason, reference, beyond_headroom } => {
            let remarks = (reason.as_str(), reference.as_str(), *beyond_headroom);
            step(rows, key, windows, *to, remarks, now)
        }
        SettlementCommand::Abort { id, windows, reason, reversed } => {
            abort(rows, *id, windows, (reason, *reversed), now)
        }
    }
}

fn conflict(text: impl Into<String>) -> Refusal {
    Refusal::Conflict(text.into())
}

fn nets(rows: &WorkingSet, window: u64) -> Vec<(NetKey, NetRow)> {
    let group = rows.group::<Nets>(Nets::BY_WINDOW, &window);
    group.into_iter().map(|(key, row)| (key.clone(), row.clone())).collect()
}

fn create(
    rows: &mut WorkingSet,
    id: u64,
    (model, reason): (&str, &str),
    (windows, others): (&[u64], &[u32]),
    now: Timestamp,
) -> Result<u64, Refusal> {
    if state_row(rows).next_settlement != id {
        return Err(Refusal::Overtaken);
    }
    let model_row = rows.get::<Models>(&ModelKey { name: model.to_owned() });
    let model_row = model_row.filter(|row| row.active).ok_or(Refusal::Unknown("settlement model"))?;
    if model_row.gross {
        return Err(conflict("transfers of a gross model are settled one by one"));
    }
    let currency = model_row.currency;
    let belongs = |key: &NetKey| {
        if currency == 0 { !others.contains(&key.currency) } else { key.currency == currency }
    };
    let mut sums: BTreeMap<(u32, u32), (u128, u128)> = BTreeMap::new();
    for &window in windows {
        let row =
            rows.get::<Windows>(&WindowKey { id: window }).ok_or(Refusal::Unknown("settlement window"))?;
        if matches!(WindowState::of(row), WindowState::Open | WindowState::Processing | WindowState::Settled)
        {
            return Err(conflict(format!("window {window} is {}", WindowState::of(row).name())));
        }
        for (key, mut row) in nets(rows, window).into_iter().filter(|(key, _)| belongs(key)) {
            if row.settlement != 0 {
                return Err(conflict(format!("window {window} is in settlement {}", row.settlement)));
            }
            let sum = sums.entry((key.participant, key.currency)).or_default();
            sum.0 = sum.0.checked_add(row.sent).expect("sums fit into 128 bits");
            sum.1 = sum.1.checked_add(row.received).expect("sums fit into 128 bits");
            row.settlement = id;
            rows.update::<Nets>(&key, row);
        }
    }
    if sums.is_empty() {
        return Err(conflict("there is nothing to settle in these windows"));
    }
    let mut totals: BTreeMap<u32, (u128, u128)> = BTreeMap::new();
    for ((participant, currency), (sent, received)) in sums {
        let total = totals.entry(currency).or_default();
        *total = (total.0 + sent, total.1 + received);
        let key = SettlementAccountKey { settlement: id, participant, currency };
        let row = SettlementAccountRow {
            state: SettlementState::Pending as u8,
            sent,
            received,
            reason: reason.to_owned(),
            reference: String::new(),
            beyond_headroom: false,
        };
        rows.insert::<SettlementAccounts>(&key, row);
    }
    assert!(totals.values().all(|(sent, received)| sent == received), "the nets of a currency sum to zero");
    change_state(rows, |state| take_u64(&mut state.next_settlement));
    let row = SettlementRow {
        state: SettlementState::Pending as u8,
        model: model.to_owned(),
        reason: reason.to_owned(),
        created: now,
        changed: now,
        windows: windows.iter().flat_map(|window| window.to_be_bytes()).collect(),
    };
    rows.insert::<Settlements>(&SettlementKey { id }, row);
    follow(rows, windows, WindowState::PendingSettlement, reason, now);
    Ok(id)
}

/// The windows of a settlement.
#[must_use]
pub fn windows_of(row: &SettlementRow) -> Vec<u64> {
    let (parts, _) = row.windows.as_chunks::<8>();
    parts.iter().map(|part| u64::from_be_bytes(*part)).collect()
}

/// Windows take the earliest state of their contents; `otherwise` is the state of a window without contents.
fn follow(rows: &mut WorkingSet, windows: &[u64], otherwise: WindowState, reason: &str, now: Timestamp) {
    for &window in windows {
        let state = nets(rows, window)
            .iter()
            .map(|(_, row)| match (row.settlement, row.settled) {
                (0, _) if otherwise == WindowState::Aborted => WindowState::Aborted,
                (0, _) => WindowState::Closed,
                (_, false) => WindowState::PendingSettlement,
                (_, true) => WindowState::Settled,
            })
            .min()
            .unwrap_or(otherwise);
        let key = WindowKey { id: window };
        let mut row = rows.get::<Windows>(&key).expect("windows are never deleted").clone();
        if WindowState::of(&row) != state {
            (row.state, row.reason, row.changed) = (state as u8, reason.to_owned(), now);
            rows.update::<Windows>(&key, row);
        }
    }
}

fn states(rows: &WorkingSet, id: u64) -> Vec<SettlementState> {
    let group = rows.group::<SettlementAccounts>(SettlementAccounts::BY_SETTLEMENT, &id);
    group.into_iter().map(|(_, row)| of(row.state)).collect()
}

/// Checks whether an account may take a step now; also checked before the ledger is asked.
///
/// # Errors
/// The reason why not.
pub fn check_step(
    settlement: SettlementState,
    account: SettlementState,
    to: SettlementState,
) -> Result<(), Refusal> {
    if account == to {
        return Ok(());
    }
    if account.next() != Some(to) {
        return Err(conflict(format!("an account in {} cannot go to {}", account.name(), to.name())));
    }
    // All accounts take steps 1 to 3 together; after that they are settled one by one.
    let is_allowed = match settlement {
        SettlementState::Aborted | SettlementState::Aborting | SettlementState::Settled => false,
        SettlementState::Settling => to == SettlementState::Settled,
        state => state.next() == Some(to),
    };
    if is_allowed { Ok(()) } else { Err(conflict(format!("the settlement is {}", settlement.name()))) }
}

fn step(
    rows: &mut WorkingSet,
    key: &SettlementAccountKey,
    windows: &[u64],
    to: SettlementState,
    (reason, reference, beyond_headroom): (&str, &str, bool),
    now: Timestamp,
) -> Result<u64, Refusal> {
    let settlement_key = SettlementKey { id: key.settlement };
    let mut settlement =
        rows.get::<Settlements>(&settlement_key).cloned().ok_or(Refusal::Unknown("settlement"))?;
    let mut row =
        rows.get::<SettlementAccounts>(key).cloned().ok_or(Refusal::Unknown("settlement account"))?;
    check_step(of(settlement.state), of(row.state), to)?;
    row.state = to as u8;
    row.reason = reason.to_owned();
    if !reference.is_empty() {
        row.reference = reference.to_owned();
    }
    row.beyond_headroom |= beyond_headroom;
    rows.update::<SettlementAccounts>(key, row);
    let states = states(rows, key.settlement);
    let earliest = states.iter().copied().min().expect("a settlement has accounts");
    let is_settled = |state: &SettlementState| *state == SettlementState::Settled;
    let state = match earliest {
        SettlementState::Committed if states.iter().any(is_settled) => SettlementState::Settling,
        state => state,
    };
    if of(settlement.state) != state {
        (settlement.state, settlement.changed) = (state as u8, now);
        rows.update::<Settlements>(&settlement_key, settlement);
        if state == SettlementState::Settled {
            for &window in windows {
                for (key, mut row) in nets(rows, window) {
                    if row.settlement == settlement_key.id {
                        row.settled = true;
                        rows.update::<Nets>(&key, row);
                    }
                }
            }
            follow(rows, windows, WindowState::Settled, "settled", now);
        }
    }
    Ok(key.settlement)
}

fn abort(
    rows: &mut WorkingSet,
    id: u64,
    windows: &[u64],
    (reason, reversed): (&str, bool),
    now: Timestamp,
) -> Result<u64, Refusal> {
    let key = SettlementKey { id };
    let mut settlement = rows.get::<Settlements>(&key).cloned().ok_or(Refusal::Unknown("settlement"))?;
    if of(settlement.state) == SettlementState::Aborted {
        return Ok(id);
    }
    let committed = |state: &SettlementState| {
        matches!(state, SettlementState::Committed | SettlementState::Settling | SettlementState::Settled)
    };
    if states(rows, id).iter().any(committed) {
        return Err(conflict("an account has reached PS_TRANSFERS_COMMITTED"));
    }
    let next = if reversed { SettlementState::Aborted } else { SettlementState::Aborting };
    (settlement.state, settlement.changed) = (next as u8, now);
    settlement.reason = reason.to_owned();
    rows.update::<Settlements>(&key, settlement);
    if !reversed {
        return Ok(id);
    }
    let group = rows.group::<SettlementAccounts>(SettlementAccounts::BY_SETTLEMENT, &id);
    let accounts: Vec<_> = group.into_iter().map(|(key, row)| (key.clone(), row.clone())).collect();
    for (key, mut row) in accounts {
        (row.state, row.reason) = (SettlementState::Aborted as u8, reason.to_owned());
        rows.update::<SettlementAccounts>(&key, row);
    }
    for &window in windows {
        for (key, mut row) in nets(rows, window) {
            if row.settlement == id {
                row.settlement = 0;
                rows.update::<Nets>(&key, row);
            }
        }
    }
    follow(rows, windows, WindowState::Aborted, reason, now);
    Ok(id)
}
