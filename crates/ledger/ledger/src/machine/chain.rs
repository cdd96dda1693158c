//! Batches: executes events one after another; chains of linked events succeed or fail as a whole.

use super::log::{History, LogRecord};
use super::transfers::Prepared;
use super::{EventTime, Machine};
use crate::{
    Account, AccountFlags, CreateAccountStatus, CreateResult, CreateTransferStatus, Transfer, TransferFlags,
};

/// An event of a batch.
pub(super) trait Event: Sized {
    type Status: Copy + PartialEq;
    /// Results of look-ups that can be done before the first event is executed.
    type Prepared;
    const CREATED: Self::Status;
    const CHAIN_FAILED: Self::Status;
    const CHAIN_OPEN: Self::Status;

    fn is_linked(&self) -> bool;
    fn is_imported(&self) -> bool;
    fn prepare(&self, machine: &Machine) -> Self::Prepared;
    /// Completes what was prepared with what the machine has forgotten.
    fn look_up<H: History>(prepared: &mut [Self::Prepared], history: &H) -> Result<(), H::Error>;
    /// Decides by the rules. On a refusal, returns the status and the timestamp for the answer.
    #[allow(clippy::type_complexity, reason = "a refusal is no error: both can happen")]
    fn decide<H: History>(
        &self,
        prepared: &Self::Prepared,
        machine: &Machine,
        history: &H,
        slot: EventTime,
    ) -> Result<Result<LogRecord, (Self::Status, u64)>, H::Error>;
    /// The record of a refusal, if it leaves one.
    fn refused(&self, status: Self::Status, slot: EventTime) -> Option<LogRecord>;
}

impl Event for Account {
    type Status = CreateAccountStatus;
    type Prepared = ();
    const CREATED: Self::Status = CreateAccountStatus::Created;
    const CHAIN_FAILED: Self::Status = CreateAccountStatus::LinkedEventFailed;
    const CHAIN_OPEN: Self::Status = CreateAccountStatus::LinkedEventChainOpen;

    fn is_linked(&self) -> bool {
        self.flags.contains(AccountFlags::LINKED)
    }
    fn is_imported(&self) -> bool {
        self.flags.contains(AccountFlags::IMPORTED)
    }
    fn prepare(&self, _: &Machine) {}
    fn look_up<H: History>(_: &mut [()], _: &H) -> Result<(), H::Error> {
        Ok(())
    }
    fn decide<H: History>(
        &self,
        (): &(),
        machine: &Machine,
        history: &H,
        slot: EventTime,
    ) -> Result<Result<LogRecord, (Self::Status, u64)>, H::Error> {
        machine.decide_account(history, self, slot)
    }
    fn refused(&self, _: Self::Status, _: EventTime) -> Option<LogRecord> {
        None
    }
}

impl Event for Transfer {
    type Status = CreateTransferStatus;
    type Prepared = Prepared;
    const CREATED: Self::Status = CreateTransferStatus::Created;
    const CHAIN_FAILED: Self::Status = CreateTransferStatus::LinkedEventFailed;
    const CHAIN_OPEN: Self::Status = CreateTransferStatus::LinkedEventChainOpen;

    fn is_linked(&self) -> bool {
        self.flags.contains(TransferFlags::LINKED)
    }
    fn is_imported(&self) -> bool {
        self.flags.contains(TransferFlags::IMPORTED)
    }
    fn prepare(&self, machine: &Machine) -> Prepared {
        machine.prepare_transfer(self)
    }
    fn look_up<H: History>(prepared: &mut [Prepared], history: &H) -> Result<(), H::Error> {
        let hashes: Vec<u64> = prepared.iter().map(|prepared| prepared.hash).collect();
        history.find_ids(&hashes, &mut |at, number, status| prepared[at].old.push((number, status)))
    }
    fn decide<H: History>(
        &self,
        prepared: &Prepared,
        machine: &Machine,
        history: &H,
        slot: EventTime,
    ) -> Result<Result<LogRecord, (Self::Status, u64)>, H::Error> {
        machine.decide_transfer(history, self, prepared, slot)
    }
    fn refused(&self, status: Self::Status, slot: EventTime) -> Option<LogRecord> {
        status.burns().then_some(LogRecord::Burnt { id: self.id, timestamp: slot.timestamp })
    }
}

impl Machine {
    /// Executes a batch whose operation has this timestamp: event `i` of `n` has `operation - n + i + 1`.
    pub(super) fn execute<E: Event, H: History>(
        &mut self,
        history: &H,
        events: &[E],
        operation: u64,
    ) -> Result<Vec<CreateResult<E::Status>>, H::Error> {
        let start = self.begin(operation, events.len());
        let importing = events.first().is_some_and(E::is_imported);
        // All look-ups that cannot change within the batch come first, so that they wait for memory together.
        let mut prepared: Vec<E::Prepared> = events.iter().map(|event| event.prepare(self)).collect();
        E::look_up(&mut prepared, history)?;
        let mut results: Vec<CreateResult<E::Status>> = Vec::with_capacity(events.len());
        // The first event of the current chain, the mark to return to if it breaks, and whether it has
        // broken.
        let mut chain: Option<(usize, super::Mark)> = None;
        let mut is_broken = false;
        for (at, (event, prepared)) in events.iter().zip(&prepared).enumerate() {
            let timestamp = start + at as u64;
            let slot = EventTime { timestamp, operation, importing };
            if event.is_linked() && chain.is_none() {
                chain = Some((at, self.mark()));
            }
            let is_open = event.is_linked() && at + 1 == events.len();
            let result = if is_open {
                CreateResult { status: E::CHAIN_OPEN, timestamp }
            } else if is_broken {
                CreateResult { status: E::CHAIN_FAILED, timestamp }
            } else {
                match event.decide(prepared, self, history, slot)? {
                    Ok(record) => {
                        let timestamp = record.timestamp();
                        self.append(record);
                        CreateResult { status: E::CREATED, timestamp }
                    }
                    Err((status, timestamp)) => CreateResult { status, timestamp },
                }
            };
            if result.status != E::CREATED && !is_broken {
                if let Some((first, mark)) = &chain {
                    self.rollback(mark);
                    for (at, result) in results.iter_mut().enumerate().skip(*first) {
                        *result = CreateResult { status: E::CHAIN_FAILED, timestamp: start + at as u64 };
                    }
                    is_broken = true;
                }
                // After the rollback, so that an id stays burnt although its chain is undone.
                if let Some(record) = event.refused(result.status, slot) {
                    self.append(record);
                }
            }
            results.push(result);
            if !event.is_linked() || is_open {
                chain = None;
                is_broken = false;
            }
        }
        assert_eq!(results.len(), events.len(), "every event has one result");
        Ok(results)
    }
}
