//! The interface of all kinds of operations: their steps, their rows in the history, and their effects on the
//! balance.
//!
//! Each kind implements [`Operation`] for its record, in its own file. [`OpKind`] lists the kinds, and everything
//! that handles operations of any kind goes through [`OpKind::operation`].

use batzen_crypto::EddsaPublicKey;
use batzen_protocol::{Money, Timestamp};

use super::entropy::Entropy;
use super::exchange::Exchange;
use super::http::{HttpRequest, HttpResponse};
use super::proof::known::Known;
use super::row::{Transaction, Wait};
use super::state::{Draft, OpId, OpKind, WalletOperation, WalletState};
use crate::core::error::Result;

/// An operation, and the exchange whose money is counted.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) state: &'a WalletState,
    pub(crate) exchange: &'a Exchange,
    pub(crate) operation: &'a WalletOperation,
}

/// A kind of operation. `operation` is always the operation that has this record.
pub(crate) trait Operation {
    /// Its name in one word.
    fn name(&self) -> &'static str;

    /// The request of its next step. With `poll_ms` above zero, servers may delay their answers that long.
    fn next(&self, state: &WalletState, operation: &WalletOperation, poll_ms: u64) -> Result<HttpRequest>;

    /// Processes the answer to a request of [`Operation::next`].
    fn receive(self: Box<Self>, step: &mut Step<'_, '_>, response: &HttpResponse) -> Result<()>;

    /// Returns whether it uses the coin, as long as it is open, so that nothing else may.
    fn holds(&self, _coin_pub: &EddsaPublicKey) -> bool {
        false
    }

    /// Returns whether it spends money. All other operations bring some, or change it into other coins.
    fn is_outgoing(&self) -> bool {
        false
    }

    /// Returns whether it may hold money of other exchanges than the operation's.
    fn spans_exchanges(&self) -> bool {
        false
    }

    /// The money of an exchange that it holds outside the wallet's coins, as long as it is open.
    fn held(&self, view: View<'_>) -> Result<Money>;

    /// The signed change of the wallet's balance in units, fees included. An open operation has the effect that
    /// it is expected to have. While a payment or refresh is disputed, it has none.
    fn effect(&self, view: View<'_>) -> Result<i128>;

    /// Calls `change` with each coin that it took money off or returned money to, and the signed units.
    fn coin_changes(&self, _: &WalletState, _change: &mut dyn FnMut(&EddsaPublicKey, i128)) -> Result<()> {
        Ok(())
    }

    /// Returns whether the history leaves it out while it is not disputed.
    fn is_hidden(&self) -> bool {
        false
    }

    /// Completes its row in the history.
    fn describe(&self, view: View<'_>, row: &mut Transaction) -> Result<()>;

    /// The next step in plain words, and the next deadline.
    fn wait(&self, view: View<'_>) -> Result<Wait>;

    /// Adds what the exchange has answered about a coin. `id` is the operation's.
    fn add_known(&self, _: &Draft<'_>, _id: OpId, _: &EddsaPublicKey, _known: &mut Known) -> Result<()> {
        Ok(())
    }
}

impl OpKind {
    /// The record as an operation.
    pub(crate) fn operation(&self) -> &dyn Operation {
        match self {
            Self::Withdrawal(record) => &**record,
            Self::Payment(record) => &**record,
            Self::Refresh(record) => &**record,
            Self::Recoup(record) => &**record,
            Self::Refund(record) => &**record,
            Self::Purchase(record) => &**record,
            Self::PickUp(record) => &**record,
            Self::Tip(record) => &**record,
            Self::PursePayment(record) => &**record,
            Self::PurseIncome(record) => &**record,
        }
    }

    /// The same by value.
    pub(crate) fn into_operation(self) -> Box<dyn Operation> {
        match self {
            Self::Withdrawal(record) => record,
            Self::Payment(record) => record,
            Self::Refresh(record) => record,
            Self::Recoup(record) => record,
            Self::Refund(record) => record,
            Self::Purchase(record) => record,
            Self::PickUp(record) => record,
            Self::Tip(record) => record,
            Self::PursePayment(record) => record,
            Self::PurseIncome(record) => record,
        }
    }

    /// Its name in one word.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.operation().name()
    }
}

/// Returns whether an open operation uses the coin.
pub(crate) fn is_busy(draft: &Draft<'_>, coin_pub: &EddsaPublicKey) -> bool {
    let mut open = draft.operations().filter(|operation| operation.finished.is_none());
    open.any(|operation| operation.kind.operation().holds(coin_pub))
}

/// An answer while it is processed.
pub(crate) struct Step<'a, 'e> {
    pub(crate) draft: Draft<'a>,
    pub(crate) operation: WalletOperation,
    /// The request that it answers.
    pub(crate) request: &'a HttpRequest,
    pub(crate) now: Timestamp,
    pub(crate) entropy: &'e mut dyn Entropy,
    pub(crate) waiting: Option<String>,
    /// The user accepts that operations took place although the exchange had refused them.
    pub(crate) accept_refused: bool,
}

impl Step<'_, '_> {
    pub(crate) fn finish(&mut self, record: impl Into<OpKind>) {
        self.operation.kind = record.into();
        self.operation.finished = Some(self.now);
    }

    pub(crate) fn proceed(&mut self, record: impl Into<OpKind>) {
        self.operation.kind = record.into();
    }

    pub(crate) fn wait(&mut self, record: impl Into<OpKind>, reason: impl Into<String>) {
        self.operation.kind = record.into();
        self.waiting = Some(reason.into());
    }
}
