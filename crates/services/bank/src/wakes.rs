//! Long polls, and the events that wake them.

use std::sync::Arc;

use batzen_http::Waiters;
use batzen_tables::bank::Origin;

use crate::rules::{Answer, Finished, Intent};

/// Called for every booked intent, to wake waiting polls.
pub(crate) type Booked = Arc<dyn Fn(&Intent, &Finished) + Send + Sync>;

/// Kind of an account's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Direction {
    /// Transfers with a reserve key, received by the account.
    Incoming,
    /// Transfers that the account sent through its gateway.
    Outgoing,
}

/// The long polls.
pub(crate) struct Wakes {
    /// Polls for new rows of an account's history.
    pub(crate) histories: Arc<Waiters<(Direction, String)>>,
    /// Polls for the confirmation or abort of a withdrawal operation.
    pub(crate) operations: Arc<Waiters<[u8; 32]>>,
}

impl Wakes {
    pub(crate) fn new(waiters_max: usize) -> Self {
        Self {
            histories: Arc::new(Waiters::new(waiters_max)),
            operations: Arc::new(Waiters::new(waiters_max)),
        }
    }

    /// Wakes the polls for a booked intent.
    pub(crate) fn booked(&self, intent: &Intent, finished: &Finished) {
        let Ok(answer) = &finished.result else { return };
        let row = &intent.row;
        if row.wtid.is_some() && !self.histories.is_empty() {
            self.histories.wake(&(Direction::Outgoing, row.debit_account.clone()));
        }
        if row.reserve_pub.is_some() && !self.histories.is_empty() {
            self.histories.wake(&(Direction::Incoming, row.credit_account.clone()));
        }
        // The end of a withdrawal operation.
        if matches!(intent.key.origin(), Origin::Withdrawal | Origin::Release) {
            let wopid = intent.key.id.as_slice().try_into().expect("the ids of operations have 32 bytes");
            self.ended(answer, &wopid);
        }
    }

    /// Wakes the polls for a confirmed or aborted withdrawal operation.
    pub(crate) fn ended(&self, answer: &Answer, wopid: &[u8; 32]) {
        if matches!(answer, Answer::WithdrawalConfirmed { .. } | Answer::WithdrawalAborted) {
            self.operations.wake(wopid);
        }
    }
}
