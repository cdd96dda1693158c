//! Multilateral deferred net settlement: the net debts of participants over some windows, settled step by
//! step.
//!
//! The ids of a step's ledger entries are derived from settlement, participant and step, so an interrupted
//! step is simply repeated. It is recorded here once the ledger has answered.

use std::collections::BTreeMap;

use batzen_engine::{Command, Plan, WorkingSet};
use batzen_protocol::Timestamp;
use batzen_tables::switch::{
    ModelKey, Models, NetKey, NetRow, Nets, SettlementAccountKey, SettlementAccountRow, SettlementAccounts,
    SettlementKey, SettlementRow, Settlements, WindowKey, Windows,
};

use super::windows::WindowState;
use super::{
    Consequences, Decided, Refusal, SwitchRules, change_state, conflict, plan_state, state_row, take_u64,
};

batzen_protocol::enumeration! {
    /// The state of a settlement or of an account in one (only settlements can be SETTLING or ABORTING).
    pub enum SettlementState {
        /// The nets are final.
        Pending = 1 => "PENDING_SETTLEMENT",
        /// The entries are recorded.
        Recorded = 2 => "PS_TRANSFERS_RECORDED",
        /// Amounts owed to recipients no longer count as headroom.
        Reserved = 3 => "PS_TRANSFERS_RESERVED",
        /// The settlement has taken over the senders' debts.
        Committed = 4 => "PS_TRANSFERS_COMMITTED",
        /// Some accounts are settled.
        Settling = 5 => "SETTLING",
        /// Settled at the settlement bank.
        Settled = 6 => "SETTLED",
        /// Abandoned; everything reserved has been reversed.
        Aborted = 7 => "ABORTED",
        /// Being abandoned.
        Aborting = 8 => "ABORTING",
    }
}

impl SettlementState {
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

fn plan_content(id: u64, windows: &[u64], plan: &mut Plan) {
    plan.row::<Settlements>(SettlementKey { id });
    plan.group::<SettlementAccounts>(SettlementAccounts::BY_SETTLEMENT, &id);
    for &window in windows {
        plan.row::<Windows>(WindowKey { id: window });
        plan.group::<Nets>(Nets::BY_WINDOW, &window);
    }
}

fn nets(rows: &WorkingSet, window: u64) -> Vec<(NetKey, NetRow)> {
    let group = rows.group::<Nets>(Nets::BY_WINDOW, &window);
    group.into_iter().map(|(key, row)| (key.clone(), row.clone())).collect()
}

/// Amounts sent and received, by participant and currency.
type Sums = BTreeMap<(u32, u32), (u128, u128)>;

/// Creates a settlement of windows.
#[derive(Clone, Debug)]
pub struct CreateSettlement {
    /// The next settlement's number.
    pub id: u64,
    /// The model.
    pub model: String,
    /// The reason.
    pub reason: String,
    /// The windows.
    pub windows: Vec<u64>,
    /// Currencies with their own models.
    pub others: Vec<u32>,
}

impl Command<SwitchRules> for CreateSettlement {
    type Answer = Consequences;

    fn plan(&self, _: &SwitchRules, plan: &mut Plan) {
        plan_state(plan);
        plan.row::<Models>(ModelKey { name: self.model.clone() });
        plan_content(self.id, &self.windows, plan);
    }

    fn execute(&self, _: &SwitchRules, rows: &mut WorkingSet, now: Timestamp) -> Decided {
        let Self { id, model, reason, windows, .. } = self;
        if state_row(rows).next_settlement != *id {
            return Err(Refusal::Overtaken);
        }
        let model_row = rows.get::<Models>(&ModelKey { name: model.clone() });
        let model_row = model_row.filter(|row| row.active).ok_or(Refusal::Unknown("settlement model"))?;
        if model_row.gross {
            return Err(conflict("transfers of a gross model are settled one by one"));
        }
        let sums = self.take_nets(rows, model_row.currency)?;
        let mut totals: BTreeMap<u32, (u128, u128)> = BTreeMap::new();
        for ((participant, currency), (sent, received)) in sums {
            let total = totals.entry(currency).or_default();
            *total = (total.0 + sent, total.1 + received);
            let key = SettlementAccountKey { settlement: *id, participant, currency };
            let row = SettlementAccountRow {
                state: SettlementState::Pending as u8,
                sent,
                received,
                reason: reason.clone(),
                reference: String::new(),
                beyond_headroom: false,
            };
            rows.insert::<SettlementAccounts>(&key, row);
        }
        assert!(
            totals.values().all(|(sent, received)| sent == received),
            "the nets of a currency sum to zero"
        );
        change_state(rows, |state| take_u64(&mut state.next_settlement));
        let row = SettlementRow {
            state: SettlementState::Pending as u8,
            model: model.clone(),
            reason: reason.clone(),
            created: now,
            changed: now,
            windows: windows.iter().flat_map(|window| window.to_be_bytes()).collect(),
        };
        rows.insert::<Settlements>(&SettlementKey { id: *id }, row);
        follow(rows, windows, WindowState::PendingSettlement, reason, now);
        Ok(Consequences::of_number(*id))
    }
}

impl CreateSettlement {
    /// Takes the nets of the model's currency into the settlement, and sums them.
    fn take_nets(&self, rows: &mut WorkingSet, currency: u32) -> Result<Sums, Refusal> {
        let belongs = |key: &NetKey| {
            if currency == 0 { !self.others.contains(&key.currency) } else { key.currency == currency }
        };
        let mut sums = Sums::new();
        for &window in &self.windows {
            let row = rows
                .get::<Windows>(&WindowKey { id: window })
                .ok_or(Refusal::Unknown("settlement window"))?;
            let state = WindowState::of(row);
            if matches!(state, WindowState::Open | WindowState::Processing | WindowState::Settled) {
                return Err(conflict(format!("window {window} is {}", state.name())));
            }
            for (key, mut row) in nets(rows, window).into_iter().filter(|(key, _)| belongs(key)) {
                if row.settlement != 0 {
                    return Err(conflict(format!("window {window} is in settlement {}", row.settlement)));
                }
                let sum = sums.entry((key.participant, key.currency)).or_default();
                sum.0 = sum.0.checked_add(row.sent).expect("sums fit into 128 bits");
                sum.1 = sum.1.checked_add(row.received).expect("sums fit into 128 bits");
                row.settlement = self.id;
                rows.update::<Nets>(&key, row);
            }
        }
        if sums.is_empty() {
            return Err(conflict("there is nothing to settle in these windows"));
        }
        Ok(sums)
    }
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

/// A step that an operator requests for an account.
#[derive(Clone, Debug)]
pub struct SettlementStep {
    /// The account of the settlement.
    pub key: SettlementAccountKey,
    /// The step.
    pub to: SettlementState,
    /// The reason.
    pub reason: String,
    /// The settlement bank's reference.
    pub reference: String,
}

/// Records a step of an account. A repetition only changes the reason and the reference.
#[derive(Clone, Debug)]
pub struct StepSettlement {
    /// The step.
    pub step: SettlementStep,
    /// The settlement's windows.
    pub windows: Vec<u64>,
    /// Whether a recipient's position exceeded its headroom.
    pub beyond_headroom: bool,
}

impl Command<SwitchRules> for StepSettlement {
    type Answer = Consequences;

    fn plan(&self, _: &SwitchRules, plan: &mut Plan) {
        plan_content(self.step.key.settlement, &self.windows, plan);
    }

    fn execute(&self, _: &SwitchRules, rows: &mut WorkingSet, now: Timestamp) -> Decided {
        let Self { step: SettlementStep { key, to, reason, reference }, windows, .. } = self;
        let settlement_key = SettlementKey { id: key.settlement };
        let mut settlement =
            rows.get::<Settlements>(&settlement_key).cloned().ok_or(Refusal::Unknown("settlement"))?;
        let mut row =
            rows.get::<SettlementAccounts>(key).cloned().ok_or(Refusal::Unknown("settlement account"))?;
        check_step(of(settlement.state), of(row.state), *to)?;
        (row.state, row.reason) = (*to as u8, reason.clone());
        if !reference.is_empty() {
            row.reference.clone_from(reference);
        }
        row.beyond_headroom |= self.beyond_headroom;
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
        Ok(Consequences::of_number(key.settlement))
    }
}

/// Begins to abandon a settlement, or completes that once everything reserved has been reversed.
#[derive(Clone, Debug)]
pub struct AbortSettlement {
    /// The settlement.
    pub id: u64,
    /// The settlement's windows.
    pub windows: Vec<u64>,
    /// The reason.
    pub reason: String,
    /// Whether everything has been reversed.
    pub reversed: bool,
}

impl Command<SwitchRules> for AbortSettlement {
    type Answer = Consequences;

    fn plan(&self, _: &SwitchRules, plan: &mut Plan) {
        plan_content(self.id, &self.windows, plan);
    }

    fn execute(&self, _: &SwitchRules, rows: &mut WorkingSet, now: Timestamp) -> Decided {
        let Self { id, ref windows, ref reason, reversed } = *self;
        let key = SettlementKey { id };
        let mut settlement = rows.get::<Settlements>(&key).cloned().ok_or(Refusal::Unknown("settlement"))?;
        if of(settlement.state) == SettlementState::Aborted {
            return Ok(Consequences::of_number(id));
        }
        let committed = |state: &SettlementState| {
            matches!(state, SettlementState::Committed | SettlementState::Settling | SettlementState::Settled)
        };
        if states(rows, id).iter().any(committed) {
            return Err(conflict("an account has reached PS_TRANSFERS_COMMITTED"));
        }
        let next = if reversed { SettlementState::Aborted } else { SettlementState::Aborting };
        (settlement.state, settlement.changed) = (next as u8, now);
        settlement.reason.clone_from(reason);
        rows.update::<Settlements>(&key, settlement);
        if !reversed {
            return Ok(Consequences::of_number(id));
        }
        let group = rows.group::<SettlementAccounts>(SettlementAccounts::BY_SETTLEMENT, &id);
        let accounts: Vec<_> = group.into_iter().map(|(key, row)| (key.clone(), row.clone())).collect();
        for (key, mut row) in accounts {
            (row.state, row.reason) = (SettlementState::Aborted as u8, reason.clone());
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
        Ok(Consequences::of_number(id))
    }
}
