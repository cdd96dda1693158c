//! The states of a transfer, the moves between them, and the history that records them.

use batzen_tables::switch::{TransferRow, Transfers};

use crate::messages::TransferState;

batzen_protocol::enumeration! {
    /// The internal state of a transfer.
    pub enum TransferStage {
        /// Accepted; the ledger is asked to reserve.
        ReceivedPrepare = 1 => "RECEIVED_PREPARE",
        /// Reserved, and forwarded to the payee.
        Reserved = Transfers::RESERVED => "RESERVED",
        /// The payee has fulfilled; the ledger is asked to post.
        ReceivedFulfil = 3 => "RECEIVED_FULFIL",
        /// The payee has the money.
        Committed = 4 => "COMMITTED",
        /// The payee refuses, or its fulfilment is wrong; the ledger is asked to void.
        ReceivedError = 5 => "RECEIVED_ERROR",
        /// Ended after an error.
        AbortedError = 6 => "ABORTED_ERROR",
        /// The payee rejects without a reason.
        ReceivedReject = 7 => "RECEIVED_REJECT",
        /// Ended after a reject, or because the payer could not pay.
        AbortedRejected = 8 => "ABORTED_REJECTED",
        /// Due; the ledger is asked to void.
        ReservedTimeout = 9 => "RESERVED_TIMEOUT",
        /// Expired after it was reserved.
        ExpiredReserved = 10 => "EXPIRED_RESERVED",
        /// Expired before it was reserved.
        ExpiredPrepared = 11 => "EXPIRED_PREPARED",
        /// It failed validation.
        Invalid = 12 => "INVALID",
        /// The ledger has lost it or contradicts it: an operator must investigate.
        Failed = 13 => "FAILED",
        /// Committed and settled.
        Settled = 14 => "SETTLED",
    }
}

impl TransferStage {
    /// The state of a stored transfer.
    ///
    /// # Panics
    /// When the row contains none; only the rules write rows.
    #[must_use]
    pub fn of(row: &TransferRow) -> Self {
        Self::from_number(row.state).expect("rows are written by the rules")
    }

    /// The state that participants see.
    #[must_use]
    pub const fn external(self) -> TransferState {
        match self {
            Self::ReceivedPrepare => TransferState::Received,
            Self::Reserved
            | Self::ReceivedFulfil
            | Self::ReceivedError
            | Self::ReceivedReject
            | Self::ReservedTimeout => TransferState::Reserved,
            Self::Committed | Self::Settled => TransferState::Committed,
            Self::AbortedError
            | Self::AbortedRejected
            | Self::ExpiredReserved
            | Self::ExpiredPrepared
            | Self::Invalid
            | Self::Failed => TransferState::Aborted,
        }
    }

    /// Returns whether the outcome is final: COMMITTED or ABORTED.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self.external(), TransferState::Committed | TransferState::Aborted)
    }

    /// Returns whether a transfer may change from this state to `next`. Two moves are not in the
    /// specification's table: a post that is too late for the ledger expires (RECEIVED_FULFIL to
    /// RESERVED_TIMEOUT), and a transfer that contradicts the ledger fails.
    #[must_use]
    pub const fn may_become(self, next: Self) -> bool {
        matches!(
            (self, next),
            (
                Self::ReceivedPrepare,
                Self::Reserved | Self::AbortedRejected | Self::ExpiredPrepared | Self::Failed
            ) | (
                Self::Reserved,
                Self::ReceivedFulfil | Self::ReceivedReject | Self::ReceivedError | Self::ReservedTimeout
            ) | (Self::ReceivedFulfil, Self::Committed | Self::ReservedTimeout | Self::Failed)
                | (Self::ReceivedReject, Self::AbortedRejected | Self::Failed)
                | (Self::ReceivedError, Self::AbortedError | Self::Failed)
                | (Self::ReservedTimeout, Self::ExpiredReserved | Self::Failed)
                | (Self::Committed, Self::Settled)
        )
    }
}

/// One entry of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The new state.
    pub state: TransferStage,
    /// An error code, or 0.
    pub reason: u16,
    /// The time in microseconds since 1970.
    pub micros: u64,
}

const STEP_BYTES: usize = 11;

fn append(history: &mut Vec<u8>, step: Step) {
    history.push(step.state as u8);
    history.extend_from_slice(&step.reason.to_be_bytes());
    history.extend_from_slice(&step.micros.to_be_bytes());
}

/// The history of a new transfer.
#[must_use]
pub(super) fn begin(state: TransferStage, reason: u16, micros: u64) -> Vec<u8> {
    assert!(
        matches!(state, TransferStage::ReceivedPrepare | TransferStage::Invalid),
        "transfers begin received or invalid"
    );
    let mut history = Vec::with_capacity(6 * STEP_BYTES);
    append(&mut history, Step { state, reason, micros });
    history
}

/// Changes the state of a transfer.
///
/// # Panics
/// When the change is not allowed: stopping is better than a wrong outcome.
pub(super) fn advance(row: &mut TransferRow, next: TransferStage, reason: u16, micros: u64) {
    let state = TransferStage::of(row);
    assert!(state.may_become(next), "a transfer cannot go from {} to {}", state.name(), next.name());
    row.state = next as u8;
    append(&mut row.history, Step { state: next, reason, micros });
}

/// Every state that a transfer was in.
///
/// # Panics
/// When the row contains no valid history; only the rules write rows.
pub fn history(row: &TransferRow) -> impl Iterator<Item = Step> {
    assert_eq!(row.history.len() % STEP_BYTES, 0, "a history is made of steps");
    row.history.chunks_exact(STEP_BYTES).map(|step| Step {
        state: TransferStage::from_number(step[0]).expect("rows are written by the rules"),
        reason: u16::from_be_bytes([step[1], step[2]]),
        micros: u64::from_be_bytes(step[3..].try_into().expect("eight bytes")),
    })
}

/// When a transfer was received, in milliseconds since 1970.
#[must_use]
pub fn received_millis(row: &TransferRow) -> u64 {
    history(row).next().expect("a history begins with the prepare").micros / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn external_states_never_go_back() {
        let rank = |state: TransferStage| match state.external() {
            TransferState::Received => 0,
            TransferState::Reserved => 1,
            TransferState::Committed | TransferState::Aborted => 2,
        };
        for from in TransferStage::ALL {
            assert_eq!(TransferStage::from_number(from as u8), Some(from));
            for to in TransferStage::ALL.into_iter().filter(|to| from.may_become(*to)) {
                assert!(rank(from) <= rank(to), "{} to {}", from.name(), to.name());
                assert!(!from.is_final() || from.external() == to.external());
            }
        }
    }
}
