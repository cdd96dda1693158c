//! The world: processes, the queue of events, and the course of a run.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::audit;
use crate::bank::Bank;
use crate::check;
use crate::customer::Customer;
use crate::exchange::{CLOCK_ERROR_MAX, Exchange};
use crate::host::{Host, Step, Stop, names_damage};
use crate::keys::START_S;
use crate::ledger::Ledger;
use crate::marks::Marks;
use crate::message::{Context, Event, ProcessId};
use crate::officer::Officer;
use crate::operator::Operator;
use crate::random::Random;
use crate::shop::Shop;
use crate::swarm::{Bug, HOUR, SECOND, Swarm};

/// Time that a run continues after the last fault: until refund deadlines have passed, merchants are paid,
/// reservations have ended and reserves are closed.
const REST: u64 = 52 * HOUR;
/// The share of recoveries that are audited, in thousandths.
const AUDITED: u64 = 300;
/// The largest number of events in a run; more means a loop.
const EVENTS_MAX: u64 = 400_000;

const SERVICES: [ProcessId; 4] = [ProcessId::Exchange, ProcessId::Bank, ProcessId::Ledger, ProcessId::Shop];

/// All processes.
pub struct World {
    /// The exchange.
    pub exchange: Exchange,
    /// The bank.
    pub bank: Bank,
    /// Its ledger.
    pub ledger: Ledger,
    /// The shop.
    pub shop: Shop,
    /// The exchange's operator.
    pub operator: Operator,
    /// The exchange's officer.
    pub officer: Officer,
    /// The customers.
    pub customers: Vec<Customer>,
    /// The number of merchants.
    pub merchants: u64,
    queue: BTreeMap<(u64, u64), Event>,
    next_event: u64,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All checks passed.
    Clean,
    /// A store has found a misdirected write and has stopped, which is the best possible result.
    Stopped(String),
    /// A failure.
    Failed(String),
}

/// The report of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// Its end.
    pub ending: Ending,
    /// The hash of all its events, and their number.
    pub trace: (u64, u64),
    /// The marks that it reached.
    pub marks: Marks,
    /// Customer hours: customers times the hours in which they acted.
    pub customer_hours: u64,
}

/// Runs a seed.
#[must_use]
pub fn run(seed: u64, bug: Option<Bug>, is_verbose: bool) -> Report {
    let mut random = Random::new(seed);
    let swarm = Swarm::draw(&mut random);
    let customer_hours = (swarm.customers + swarm.thieves) as u64 * swarm.active / HOUR;
    let mut context = Context::new(START_S * SECOND, random, swarm, bug, is_verbose);
    if is_verbose {
        println!("{:#?}", context.swarm);
    }
    let mut was_misdirected = false;
    let lived = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(&mut context);
        let lived = world.live(&mut context);
        let mut drives =
            SERVICES.into_iter().filter_map(|place| world.host(place).map(|host| host.drive().clone()));
        was_misdirected = drives.any(|drive| drive.was_misdirected());
        lived
    }));
    let ending = match lived {
        Ok(Ok(())) => Ending::Clean,
        Ok(Err(Stop::Detected(what))) => Ending::Stopped(what),
        // The damage was found when it was read, by a worker, a request or the checker.
        Ok(Err(Stop::Wrong(what))) if names_damage(&what) && was_misdirected => {
            context.marks.meet("disk.misdirected_write_found");
            Ending::Stopped(what)
        }
        Ok(Err(Stop::Wrong(what))) => Ending::Failed(what),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Ending::Failed(format!("a broken assertion: {}", text.unwrap_or_default()))
        }
    };
    Report { seed, ending, trace: context.trace(), marks: context.marks, customer_hours }
}

impl World {
    fn new(context: &mut Context) -> Self {
        let count = context.swarm.customers + context.swarm.thieves;
        let seed = context.random.draw();
        let mut customers = Vec::with_capacity(count);
        for index in 0..count {
            customers.push(Customer::new(index, index >= context.swarm.customers, context.random.draw()));
        }
        Self {
            exchange: Exchange::new(seed),
            bank: Bank::new(seed ^ 1),
            ledger: Ledger::new(seed ^ 2),
            shop: Shop::new(seed ^ 3),
            operator: Operator::default(),
            officer: Officer::default(),
            customers,
            merchants: context.swarm.merchants,
            queue: BTreeMap::new(),
            next_event: 0,
        }
    }

    fn push(&mut self, at: u64, event: Event) {
        self.next_event += 1;
        self.queue.insert((at, self.next_event), event);
    }

    fn host(&mut self, place: ProcessId) -> Option<&mut Host> {
        match place {
            ProcessId::Exchange => Some(&mut self.exchange.host),
            ProcessId::Bank => Some(&mut self.bank.host),
            ProcessId::Ledger => Some(&mut self.ledger.host),
            ProcessId::Shop => Some(&mut self.shop.host),
            ProcessId::Operator | ProcessId::Officer | ProcessId::Customer(_) => None,
        }
    }

    fn live(&mut self, context: &mut Context) -> Step {
        self.ledger.start(context)?;
        self.bank.found(context, &mut self.ledger)?;
        self.exchange.start(context)?;
        self.shop.start(context)?;
        self.operator.start(context);
        self.officer.start(context);
        for customer in &mut self.customers {
            customer.start(context);
        }
        self.plan_faults(context);
        let end_of_faults = START_S * SECOND + context.swarm.active;
        let end = end_of_faults + REST;
        let mut events = 0;
        loop {
            for (after, event) in std::mem::take(&mut context.caused) {
                self.push(context.now + after, event);
            }
            let Some(((at, _), event)) = self.queue.pop_first() else { break };
            if at > end {
                break;
            }
            context.now = at;
            if context.is_active && at >= end_of_faults {
                self.heal(context);
            }
            self.happen(context, event)?;
            events += 1;
            if events > EVENTS_MAX {
                return Err(Stop::wrong("the run does not come to rest"));
            }
        }
        context.now = end;
        context.bug = None;
        self.remount(context)?;
        check::check(self, context)
    }

    /// A last power loss: acknowledged data must be durable.
    fn remount(&mut self, context: &mut Context) -> Step {
        context.swarm.power_losses = 1000;
        self.ledger.kill(context);
        self.bank.kill(context);
        self.exchange.kill(context);
        self.shop.kill(context);
        context.caused.clear();
        for place in SERVICES {
            self.restart(context, place)?;
        }
        // The bank retries its open movements; there must not be any.
        context.caused.clear();
        Ok(())
    }

    /// The end of all faults.
    fn heal(&mut self, context: &mut Context) {
        context.say("no more faults");
        context.is_active = false;
        for place in SERVICES {
            if let Some(host) = self.host(place) {
                host.drive().limit(None);
                host.drive().die_at(u64::MAX);
                host.step_clock(0);
            }
        }
        for customer in &mut self.customers {
            customer.step_clock(0);
            // Once the last message that was delayed has arrived.
            context.caused.push((2 * HOUR, Event::RefundQuestion(customer.index)));
        }
    }

    fn plan_faults(&mut self, context: &mut Context) {
        let places = SERVICES.into_iter().chain((0..self.customers.len()).map(ProcessId::Customer));
        for place in places {
            let is_service = !matches!(place, ProcessId::Customer(_));
            if let Some(gap) = context.swarm.crash_gap.filter(|_| is_service) {
                let at = context.random.gap(gap);
                context.caused.push((at, Event::Crash(place)));
            }
            if let Some(gap) = context.swarm.disk_gap.filter(|_| is_service) {
                let at = context.random.gap(gap);
                context.caused.push((at, Event::DiskFault(place)));
            }
            if let Some(gap) = context.swarm.clock_gap {
                let at = context.random.gap(gap);
                context.caused.push((at, Event::ClockStep(place)));
            }
        }
        if context.swarm.misdirects {
            let place = *context.random.pick(&SERVICES);
            let write = context.random.between(1, 80);
            if let Some(host) = self.host(place) {
                host.drive().misdirect_at(write);
            }
        }
    }

    fn happen(&mut self, context: &mut Context, event: Event) -> Step {
        match event {
            Event::Arrival(message) => {
                context.note(|| format!("arrived  {message}"), message.digest());
                match message.to {
                    ProcessId::Exchange => self.exchange.arrive(context, message),
                    ProcessId::Bank => {
                        self.bank.arrive(context, message);
                        Ok(())
                    }
                    ProcessId::Ledger => {
                        self.ledger.arrive(context, message);
                        Ok(())
                    }
                    ProcessId::Shop => self.shop.arrive(context, message),
                    ProcessId::Operator => self.operator.arrive(context, &message),
                    ProcessId::Officer => {
                        self.officer.arrive(context, &message);
                        Ok(())
                    }
                    ProcessId::Customer(index) => self.customers[index].arrive(context, &message),
                }
            }
            Event::Timer(place, incarnation, timer) => {
                let present = match place {
                    ProcessId::Customer(index) => self.customers[index].incarnation(),
                    place => self.host(place).map_or(0, |host| host.incarnation),
                };
                if present != incarnation || self.host(place).is_some_and(|host| !host.is_up()) {
                    return Ok(());
                }
                match place {
                    ProcessId::Operator => {
                        self.operator.timer(context, timer);
                        Ok(())
                    }
                    ProcessId::Officer => {
                        self.officer.timer(context);
                        Ok(())
                    }
                    ProcessId::Exchange => self.exchange.timer(context, timer),
                    ProcessId::Bank => self.bank.timer(context, timer),
                    ProcessId::Ledger => self.ledger.timer(context, timer),
                    ProcessId::Shop => self.shop.timer(context, timer),
                    ProcessId::Customer(index) => self.customers[index].timer(context, timer),
                }
            }
            Event::RefundQuestion(index) => self.customers[index].ask_for_refunds(context),
            Event::Restart(place) => self.restart(context, place),
            Event::Crash(place) => {
                if context.is_active {
                    self.crash(context, place);
                    let gap = context.swarm.crash_gap.unwrap_or(HOUR);
                    let at = context.random.gap(gap);
                    context.caused.push((at, Event::Crash(place)));
                }
                Ok(())
            }
            Event::SuddenCrash(place) => {
                if context.is_active {
                    self.kill(context, place);
                }
                Ok(())
            }
            Event::DiskFault(place) => {
                if context.is_active {
                    self.fail_disk(context, place);
                    let gap = context.swarm.disk_gap.unwrap_or(HOUR);
                    let at = context.random.gap(gap);
                    context.caused.push((at, Event::DiskFault(place)));
                }
                Ok(())
            }
            Event::DiskSpace(place) => {
                if let Some(host) = self.host(place) {
                    host.drive().limit(None);
                }
                Ok(())
            }
            Event::ClockStep(place) => {
                if context.is_active {
                    self.step_clock(context, place);
                    let gap = context.swarm.clock_gap.unwrap_or(HOUR);
                    let at = context.random.gap(gap);
                    context.caused.push((at, Event::ClockStep(place)));
                }
                Ok(())
            }
        }
    }

    fn restart(&mut self, context: &mut Context, place: ProcessId) -> Step {
        let is_active = context.is_active;
        if let Some(host) = self.host(place) {
            if host.is_up() {
                return Ok(());
            }
            host.revive(context);
            if !is_active {
                host.drive().die_at(u64::MAX);
            }
        }
        let is_fragile = self.host(place).is_some_and(|host| host.is_fragile());
        let crash_twice = context.swarm.crash_twice + if is_fragile { 400 } else { 0 };
        if is_active && context.random.chance(crash_twice) {
            // Soon after it has started to answer.
            let after = context.random.between(1, 400) * SECOND;
            context.caused.push((after, Event::SuddenCrash(place)));
        }
        match place {
            ProcessId::Exchange => {
                self.exchange.start(context)?;
                self.audit_recovery(context)
            }
            ProcessId::Bank => self.bank.start(context),
            ProcessId::Ledger => self.ledger.start(context),
            ProcessId::Shop => self.shop.start(context),
            ProcessId::Operator | ProcessId::Officer => Ok(()),
            ProcessId::Customer(index) => {
                self.customers[index].start(context);
                Ok(())
            }
        }
    }

    /// Audits some recoveries of the exchange.
    fn audit_recovery(&mut self, context: &mut Context) -> Step {
        if !context.is_active || !context.random.chance(AUDITED) {
            return Ok(());
        }
        let now = self.exchange.host.clock(context);
        match self.exchange.store() {
            Some((store, _)) => {
                context.marks.meet("audit.after_recovery");
                audit::recovered(store, now)
            }
            None => Ok(()),
        }
    }

    fn crash(&mut self, context: &mut Context, place: ProcessId) {
        if context.random.chance(500) {
            // Within one of the next writes or syncs.
            let call = context.random.between(1, 12);
            if let Some(host) = self.host(place).filter(|host| host.is_up()) {
                host.drive().die_at(call);
            }
            return;
        }
        self.kill(context, place);
    }

    fn kill(&mut self, context: &mut Context, place: ProcessId) {
        match place {
            ProcessId::Exchange => self.exchange.kill(context),
            ProcessId::Bank => self.bank.kill(context),
            ProcessId::Ledger => self.ledger.kill(context),
            ProcessId::Shop => self.shop.kill(context),
            ProcessId::Operator | ProcessId::Officer | ProcessId::Customer(_) => {}
        }
    }

    fn fail_disk(&mut self, context: &mut Context, place: ProcessId) {
        let (kind, call) = (context.random.below(3), context.random.between(1, 8));
        let (more, long) = (context.random.below(2_000), context.random.between(600, 10_800) * SECOND);
        let Some(host) = self.host(place).filter(|host| host.is_up()) else { return };
        match kind {
            0 => {
                host.drive().limit(Some(more));
                context.caused.push((long, Event::DiskSpace(place)));
            }
            1 => host.drive().shorten_at(call),
            _ => host.drive().fail_at(call),
        }
    }

    fn step_clock(&mut self, context: &mut Context, place: ProcessId) {
        let size = i64::try_from(context.random.below(CLOCK_ERROR_MAX)).expect("minutes");
        let is_back = context.random.chance(500);
        context.marks.meet(if is_back { "clock.step_back" } else { "clock.step_forward" });
        let offset = if is_back { -size } else { size };
        context.say(&format!("the clock of {place:?} is off by {offset} µs"));
        match place {
            ProcessId::Customer(index) => {
                self.customers[index].step_clock(offset);
            }
            place => {
                if let Some(host) = self.host(place) {
                    host.step_clock(offset);
                }
            }
        }
    }
}
