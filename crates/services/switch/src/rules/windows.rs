//! Settlement windows, and the amounts sent and received in them. Exactly one window is open at any time. A
//! transfer belongs to the window that was open when its fulfilment was accepted. A closed window waits for
//! the transfers that were accepted in it; until then its totals may still grow.

use batzen_engine::{Command, Plan, WorkingSet};
use batzen_protocol::Timestamp;
use batzen_tables::switch::{NetKey, NetRow, Nets, TransferRow, WindowKey, WindowRow, Windows};

use super::{Consequences, Decided, Refusal, SwitchRules, change_state, conflict, plan_state, state_row};

batzen_protocol::enumeration! {
    /// The state of a window. Later stages are greater.
    pub enum WindowState {
        /// Accepts transfers.
        Open = 1 => "OPEN",
        /// No longer open, but the ledger still has to answer for some of its transfers.
        Processing = 2 => "PROCESSING",
        /// Its totals are final.
        Closed = 3 => "CLOSED",
        /// In a settlement.
        PendingSettlement = 4 => "PENDING_SETTLEMENT",
        /// Settled.
        Settled = 5 => "SETTLED",
        /// Its settlement was abandoned; it may be settled again.
        Aborted = 6 => "ABORTED",
    }
}

impl WindowState {
    /// The state of a stored window.
    ///
    /// # Panics
    /// When the row contains none; only the rules write rows.
    #[must_use]
    pub fn of(row: &WindowRow) -> Self {
        Self::from_number(row.state).expect("rows are written by the rules")
    }
}

pub(super) fn new_window(reason: &str, now: Timestamp) -> WindowRow {
    WindowRow {
        state: WindowState::Open as u8,
        reason: reason.to_owned(),
        created: now,
        changed: now,
        in_flight: 0,
        transfers: 0,
    }
}

pub(super) fn plan_committed(window: u64, payer: u32, payee: u32, currency: u32, plan: &mut Plan) {
    plan.row::<Windows>(WindowKey { id: window });
    for participant in [payer, payee] {
        plan.row::<Nets>(NetKey { window, participant, currency });
    }
}

/// Counts a committed transfer; one that is already settled does not count towards the nets.
pub(super) fn committed(rows: &mut WorkingSet, transfer: &TransferRow, settled: bool, now: Timestamp) {
    if !settled {
        let mut count = |participant: u32, change: &dyn Fn(&mut NetRow)| {
            let key = NetKey { window: transfer.window, participant, currency: transfer.currency };
            let mut row = rows.get::<Nets>(&key).cloned().unwrap_or(NetRow {
                sent: 0,
                sent_count: 0,
                received: 0,
                received_count: 0,
                settlement: 0,
                settled: false,
            });
            assert_eq!(row.settlement, 0, "a window in settlement takes up nothing");
            change(&mut row);
            rows.put::<Nets>(&key, row);
        };
        count(transfer.payer, &|row| {
            row.sent = row.sent.checked_add(transfer.amount).expect("sums fit into 128 bits");
            row.sent_count += 1;
        });
        count(transfer.payee, &|row| {
            row.received = row.received.checked_add(transfer.amount).expect("sums fit into 128 bits");
            row.received_count += 1;
        });
    }
    answered(rows, transfer.window, 1, now);
}

/// A fulfilment accepted in this window was not committed.
pub(super) fn released(rows: &mut WorkingSet, window: u64, now: Timestamp) {
    answered(rows, window, 0, now);
}

fn answered(rows: &mut WorkingSet, window: u64, committed: u64, now: Timestamp) {
    let less = |count: &mut u64| *count = count.checked_sub(1).expect("every answer was awaited");
    if state_row(rows).open_window == window {
        change_state(rows, |state| {
            less(&mut state.open_in_flight);
            state.open_transfers += committed;
        });
        return;
    }
    let key = WindowKey { id: window };
    let mut row = rows.get::<Windows>(&key).expect("windows are never deleted").clone();
    assert_eq!(WindowState::of(&row), WindowState::Processing, "a closed window awaits nothing");
    less(&mut row.in_flight);
    row.transfers += committed;
    if row.in_flight == 0 {
        (row.state, row.changed) = (WindowState::Closed as u8, now);
    }
    rows.update::<Windows>(&key, row);
}

/// Closes the open window and opens the next in the same step. Repeating it is harmless: a window that is no
/// longer open is refused.
#[derive(Clone, Debug)]
pub struct CloseWindow {
    /// The window that the caller believes to be open.
    pub id: u64,
    /// The reason.
    pub reason: String,
}

impl Command<SwitchRules> for CloseWindow {
    type Answer = Consequences;

    fn plan(&self, _: &SwitchRules, plan: &mut Plan) {
        plan_state(plan);
        plan.row::<Windows>(WindowKey { id: self.id });
        plan.row::<Windows>(WindowKey { id: self.id.saturating_add(1) });
    }

    fn execute(&self, _: &SwitchRules, rows: &mut WorkingSet, now: Timestamp) -> Decided {
        let key = WindowKey { id: self.id };
        let mut row = rows.get::<Windows>(&key).cloned().ok_or(Refusal::Unknown("settlement window"))?;
        let state = state_row(rows);
        if state.open_window != self.id {
            return Err(conflict("the window is not open"));
        }
        (row.in_flight, row.transfers) = (state.open_in_flight, state.open_transfers);
        let next = if row.in_flight == 0 { WindowState::Closed } else { WindowState::Processing };
        (row.state, row.reason, row.changed) = (next as u8, self.reason.clone(), now);
        rows.update::<Windows>(&key, row);
        let next = self.id.checked_add(1).expect("fewer than 2^64 windows");
        let opened = new_window("opened as the one before was closed", now);
        rows.insert::<Windows>(&WindowKey { id: next }, opened);
        change_state(rows, |state| {
            (state.open_window, state.open_in_flight, state.open_transfers) = (next, 0, 0);
        });
        Ok(Consequences::of_number(next))
    }
}
