//! The bank's ledger: the durable machine over its own store, one batch at a time.

use std::rc::Rc;

use batzen_ledger_service::store::{
    CreateAccounts, CreateTransfers, DurableMachine, SnapshotOptions, TypedRequest, verify,
};
use batzen_store::{Store, StoreError};

use crate::host::{Host, Step, Stop, names_damage};
use crate::message::{Body, Context, LedgerAsk, LedgerReply, Message, ProcessId, Timer};
use crate::swarm::{Bug, SECOND};

/// Snapshots of a few batches.
const SNAPSHOTS: SnapshotOptions = SnapshotOptions {
    log_bytes_min: 4_000,
    log_bytes_max: 4_000,
    page_entries: 16,
    section_pages: 4,
    pending_slack: 16,
    commit_bytes: 4_000,
    hash_key: Some([7; 16]),
};

/// The ledger.
pub struct Ledger {
    /// Its process.
    pub host: Host,
    machine: Option<DurableMachine>,
    store: Option<Store>,
}

impl Ledger {
    /// A new ledger; [`Ledger::start`] starts it.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            host: Host::new(ProcessId::Ledger, seed, batzen_tables::ledger::ALL),
            machine: None,
            store: None,
        }
    }

    /// The machine, while it runs.
    #[must_use]
    pub fn machine(&self) -> Option<&DurableMachine> {
        self.machine.as_ref()
    }

    /// Starts.
    ///
    /// # Errors
    /// If the store does not open, or the log is inconsistent.
    pub fn start(&mut self, context: &mut Context) -> Step {
        self.forget();
        let Some(store) = self.host.open(context)? else { return Ok(()) };
        match DurableMachine::open_with(store.clone(), SNAPSHOTS) {
            Ok(machine) => {
                self.machine = Some(machine);
                self.store = Some(store);
                context.wake(ProcessId::Ledger, self.host.incarnation, SECOND, Timer::Repeat);
                Ok(())
            }
            Err(_) if self.host.has_died(context) => Ok(()),
            Err(error) => Err(self.host.refused(context, &error)),
        }
    }

    fn forget(&mut self) {
        self.machine = None;
        self.store = None;
    }

    /// Kills it now.
    pub fn kill(&mut self, context: &mut Context) {
        if self.host.is_up() {
            self.forget();
            self.host.die(context);
        }
    }

    /// A timer fires.
    ///
    /// # Errors
    /// If a check fails.
    pub fn timer(&mut self, context: &mut Context, timer: Timer) -> Step {
        match timer {
            Timer::Batch => self.batch(context),
            Timer::Maintain => {
                self.host.maintain(context)?;
                if !self.host.is_up() {
                    self.forget();
                }
                self.maintain(context)
            }
            Timer::Repeat => {
                context.wake(ProcessId::Ledger, self.host.incarnation, 1_800 * SECOND, Timer::Repeat);
                self.run_due(context)
            }
            other => Err(Stop::wrong(format!("the ledger has no timer {other:?}"))),
        }
    }

    fn now_ns(&self, context: &Context) -> u64 {
        self.host.clock(context).as_micros() * 1_000
    }

    /// Expires pending transfers.
    fn run_due(&mut self, context: &mut Context) -> Step {
        let now = self.now_ns(context);
        let Some(machine) = &mut self.machine else { return Ok(()) };
        if context.has(Bug::NeverVoids) {
            return Ok(());
        }
        while machine.due_at().is_some_and(|due| due <= now) {
            context.marks.meet("ledger.pending_expired");
            machine.run_due(now);
            if machine.commit().is_err() {
                machine.undo();
                if self.host.has_died(context) {
                    self.forget();
                }
                return Ok(());
            }
        }
        Ok(())
    }

    /// Some steps of the work of snapshots.
    fn maintain(&mut self, context: &mut Context) -> Step {
        const STEPS: u32 = 16;
        for _ in 0..STEPS {
            let Some(machine) = &mut self.machine else { break };
            let before = machine.log().inspect_snapshot().records;
            match machine.maintain() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) if names_damage(&error.to_string()) => return Err(Stop::wrong(error.to_string())),
                Err(error) => {
                    context.say(&format!("the ledger's snapshot: {error}"));
                    if self.host.has_died(context) {
                        self.forget();
                    }
                    break;
                }
            }
            if machine.log().inspect_snapshot().records > before {
                context.marks.meet("ledger.snapshot_taken");
            }
        }
        Ok(())
    }

    fn batch(&mut self, context: &mut Context) -> Step {
        let messages = self.host.take_inbox(context);
        self.run_due(context)?;
        let now = self.now_ns(context);
        let Some(machine) = &mut self.machine else { return Ok(()) };
        let mut replies = Vec::with_capacity(messages.len());
        for message in messages {
            let Body::LedgerAsk(ask) = &message.body else { continue };
            match execute(machine, ask, now) {
                Ok(reply) => replies.push(message.reply(Body::LedgerReply(Rc::new(reply)))),
                Err(error) => {
                    context.say(&format!("the ledger: {error}"));
                    machine.undo();
                    if names_damage(&error.to_string()) {
                        return Err(Stop::wrong(error.to_string()));
                    }
                    if self.host.has_died(context) {
                        self.forget();
                    }
                    return Ok(());
                }
            }
        }
        if let Err(error) = machine.commit() {
            context.say(&format!("the ledger: {error}"));
            machine.undo();
            if names_damage(&error.to_string()) {
                return Err(Stop::wrong(error.to_string()));
            }
            if self.host.has_died(context) {
                self.forget();
            }
            return Ok(());
        }
        for reply in replies {
            context.send(reply);
        }
        Ok(())
    }

    /// Answers at once, without network, for the bank's first start.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn answer(&mut self, context: &Context, ask: &LedgerAsk) -> Step<LedgerReply> {
        let now = self.now_ns(context);
        let machine = self.machine.as_mut().ok_or_else(|| Stop::wrong("the ledger is down"))?;
        let reply = execute(machine, ask, now).and_then(|reply| machine.commit().map(|()| reply));
        reply.map_err(|error| Stop::wrong(error.to_string()))
    }

    /// Replays the whole log by all rules and compares the result.
    ///
    /// # Errors
    /// The first difference.
    pub fn check(&self) -> Step {
        let (Some(store), Some(machine)) = (&self.store, &self.machine) else {
            return Err(Stop::wrong("the ledger is down"));
        };
        let report = verify(store).map_err(|error| Stop::wrong(format!("the ledger's log: {error}")))?;
        if report.digest != machine.machine().digest() {
            return Err(Stop::wrong("the ledger's state is not what its log says"));
        }
        Ok(())
    }
}

fn execute(machine: &mut DurableMachine, ask: &LedgerAsk, now: u64) -> Result<LedgerReply, StoreError> {
    let accounts = machine.execute(&CreateAccounts(ask.accounts.clone()).into(), now)?;
    let transfers = machine.execute(&CreateTransfers(ask.transfers.clone()).into(), now)?;
    let (accounts, transfers) = (CreateAccounts::answer(accounts), CreateTransfers::answer(transfers));
    Ok(LedgerReply { accounts, transfers })
}

impl Ledger {
    /// A request arrives.
    pub fn arrive(&mut self, context: &mut Context, message: Message) {
        self.host.arrive(context, message);
    }
}
