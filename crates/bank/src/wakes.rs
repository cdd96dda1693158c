//! Who waits for what, and what wakes them.

use std::sync::Arc;

use batzen_http::Waiters;

use crate::rules::{Finished, Intent, Outcome};
use crate::settler::ends_operation;

/// Which of an account's histories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Direction {
    /// Transfers with a reserve key that the account received.
    Incoming,
    /// Transfers that the account sent through its gateway.
    Outgoing,
}

/// The long polls.
pub(crate) struct Wakes {
    /// Who waits for an account's history to grow.
    pub(crate) histories: Arc<Waiters<(Direction, String)>>,
    /// Who waits for a withdrawal operation to be confirmed or aborted.
    pub(crate) operations: Arc<Waiters<[u8; 32]>>,
}

impl Wakes {
    pub(crate) fn new(waiters_max: usize) -> Self {
        Self {
            histories: Arc::new(Waiters::new(waiters_max)),
            operations: Arc::new(Waiters::new(waiters_max)),
        }
    }

    /// An intent has been booked.
    pub(crate) fn booked(&self, intent: &Intent, finished: &Finished) {
        let Ok(outcome) = &finished.result else { return };
        let row = &intent.row;
        if row.wtid.is_some() && !self.histories.is_empty() {
            self.histories.wake(&(Direction::Outgoing, row.debit_account.clone()));
        }
        if row.reserve_pub.is_some() && !self.histories.is_empty() {
            self.histories.wake(&(Direction::Incoming, row.credit_account.clone()));
        }
        if ends_operation(intent.key.origin()) {
            let wopid = intent.key.id.as_slice().try_into().expect("the ids of operations have 32 bytes");
            self.ended(outcome, &wopid);
        }
    }

    /// A withdrawal operation has been confirmed or aborted.
    pub(crate) fn ended(&self, outcome: &Outcome, wopid: &[u8; 32]) {
        if matches!(outcome, Outcome::WithdrawalConfirmed { .. } | Outcome::WithdrawalAborted) {
            self.operations.wake(wopid);
        }
    }
}
