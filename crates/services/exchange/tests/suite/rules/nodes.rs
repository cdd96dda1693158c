//! Several nodes on one database: between the load and the commit of one node's batch, other nodes commit
//! theirs. The rules must accept exactly what a naive exchange accepts in the order of the commits, although
//! the nodes' memories may differ.

use std::collections::{BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, OnceLock};

use batzen_crypto::Wtid;
use batzen_engine::{Batcher, Plan, Rules, WorkingSet};
use batzen_exchange::metrics::flow::{MoneyFlow, Sums};
use batzen_exchange::rules::{
    Aggregated, Answer, Closed, Command, DenomTable, ExchangeRules, Management, PurseExpired,
    RecoupRefreshed, Recouped, Refusal, TransferMarked,
};
use batzen_protocol::{Money, Timestamp};
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::memory::MemoryBackend;
use batzen_store::{Backend, ChangeSet, CommitOutcome, RawRecord, Result, Store, StoreError};
use batzen_tables::exchange::{
    CounterKey, Counters, DenomKey, DenomSerial, RevocationRow, Revocations, WireFeeKey, WireFeeRow, WireFees,
};
use proptest::prelude::*;

use crate::rules::compare::{cases, compare_books, compare_rows, model_of, with_coins};
use crate::rules::generate::{Op, ops};
use crate::rules::model::{Model, Seen};
use crate::rules::world::{Verdict, World, at, config, denoms, m, sig};

const NODES: usize = 3;
/// Number of steps that [`with_coins`] adds in front.
const ISSUING: usize = 2;

/// A node's next step.
#[derive(Debug, Clone)]
enum Step {
    Batch(Vec<Command>),
    Revoke(u32),
}

struct NodesState {
    inner: Arc<dyn Backend>,
    steps: Mutex<VecDeque<Step>>,
    /// Events between a batch's load and its commit, one entry at a time: 0 for nothing, otherwise the number
    /// of the idle node that commits.
    choices: Mutex<VecDeque<u8>>,
    nodes: OnceLock<Vec<Batcher<Node>>>,
    busy: Mutex<Vec<usize>>,
    now: Mutex<Timestamp>,
    model: Mutex<Model>,
    wrong: Mutex<Option<String>>,
}

impl NodesState {
    fn is_idle(&self, node: usize) -> bool {
        !self.busy.lock().unwrap().contains(&node)
    }

    /// Lets another node commit now, if the next choice says so.
    fn interleave(&self) {
        let Some(choice @ 1..) = self.choices.lock().unwrap().pop_front() else { return };
        let idle: Vec<usize> = (0..NODES).filter(|node| self.is_idle(*node)).collect();
        if let Some(node) = idle.get(usize::from(choice) % idle.len().max(1)) {
            self.step(*node);
        }
    }

    /// Executes the next step at a node.
    fn step(&self, node: usize) -> bool {
        let Some(step) = self.steps.lock().unwrap().pop_front() else { return false };
        match step {
            Step::Revoke(serial) => self.revoke(serial),
            Step::Batch(commands) => {
                self.busy.lock().unwrap().push(node);
                let now = *self.now.lock().unwrap();
                let verdicts = self.nodes.get().unwrap()[node].run(&commands, &move || now);
                assert_eq!(verdicts.unwrap().len(), commands.len());
                self.busy.lock().unwrap().pop();
            }
        }
        true
    }

    fn revoke(&self, serial: u32) {
        let key = DenomKey { serial: DenomSerial(serial) };
        let mut changes = ChangeSet::new();
        changes.insert::<Revocations>(&key, &RevocationRow { master_sig: sig(0), time: at(0) });
        // It may be revoked already, so the result does not matter.
        let _ = self.inner.commit(&changes).unwrap();
        self.model.lock().unwrap().revoked.insert(serial);
    }

    fn complain(&self, text: String) {
        self.wrong.lock().unwrap().get_or_insert(text);
    }
}

/// A node's access to the database.
struct Gate(Arc<NodesState>);

impl Backend for Gate {
    batzen_store::delegate_reads!(self, *self.0.inner);

    fn commit(&self, changes: &ChangeSet) -> Result<CommitOutcome> {
        self.0.interleave();
        self.0.inner.commit(changes)
    }
    fn checkpoint(&self) -> Result<()> {
        Ok(())
    }
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

#[derive(Default)]
struct Attempt {
    verdicts: Vec<(Command, Verdict)>,
    /// Denominations that were revoked, and rows that an aggregation could see, when the rows were loaded.
    revoked: BTreeSet<u32>,
    seen: Seen,
}

/// A node: the rules with their own memory. What it commits is compared with the model at once.
struct Node {
    rules: ExchangeRules,
    shared: Arc<NodesState>,
    /// The decisions of the current attempt.
    attempt: Mutex<Attempt>,
    /// A planted bug: changes of the key set do not depend on each other.
    unguarded: bool,
}

/// Outcomes without effect are decided when the rows are loaded. The model may decide otherwise by the time
/// of the commit, so they are not compared.
fn has_effect(outcome: &Answer) -> bool {
    !matches!(
        outcome,
        Answer::CloseReserve(Closed::NotDue)
            | Answer::Aggregate(Aggregated::Nothing | Aggregated::Transient { taken: 0, .. })
            | Answer::Recoup(Recouped { repeated: true, .. })
            | Answer::RecoupRefresh(RecoupRefreshed { repeated: true, .. })
            | Answer::PurseExpire(PurseExpired::NotDue)
            | Answer::TransfersDone(TransferMarked { changed: false })
            | Answer::TransferFailed(TransferMarked { changed: false })
            | Answer::TransferRetry(TransferMarked { changed: false })
            | Answer::Management(_)
    )
}

/// An outcome without its meaningless parts: if a closing pays nothing, its identifier names no transfer.
fn told(outcome: Answer) -> Answer {
    match outcome {
        Answer::CloseReserve(Closed::Closed { amount, fee, paid, .. }) if paid.is_zero() => {
            let wtid = Wtid::from_bytes([0; 32]);
            Answer::CloseReserve(Closed::Closed { wtid, amount, fee, paid })
        }
        other => other,
    }
}

impl Rules for Node {
    type Command = Command;
    type Answer = Answer;
    type Refusal = Refusal;

    fn plan(&self, command: &Command, plan: &mut Plan) {
        let model = self.shared.model.lock().unwrap();
        let (revoked, seen) = (model.revoked.clone(), model.seen());
        *self.attempt.lock().unwrap() = Attempt { verdicts: Vec::new(), revoked, seen };
        self.rules.plan(command, plan);
    }

    fn execute(&self, rows: &mut WorkingSet, command: &Command, now: Timestamp) -> Verdict {
        let guard = CounterKey { name: Counters::KEY_SET.to_owned() };
        let unguarded = self.unguarded && matches!(command, Command::Management(_));
        let before = if unguarded { rows.get::<Counters>(&guard).cloned() } else { None };
        let verdict = self.rules.execute(rows, command, now);
        if unguarded && verdict.is_ok() {
            match before {
                Some(row) => rows.put::<Counters>(&guard, row),
                None if rows.get::<Counters>(&guard).is_some() => rows.delete::<Counters>(&guard),
                None => {}
            }
        }
        self.attempt.lock().unwrap().verdicts.push((command.clone(), verdict.clone()));
        verdict
    }

    fn learn(&self, refusal: &Refusal, store: &Store) -> std::result::Result<bool, StoreError> {
        self.rules.learn(refusal, store)
    }

    fn committed(&self, changes: &ChangeSet) {
        self.rules.committed(changes);
        let Attempt { verdicts, revoked, seen } = std::mem::take(&mut *self.attempt.lock().unwrap());
        let now = *self.shared.now.lock().unwrap();
        let mut model = self.shared.model.lock().unwrap();
        // Some changes during a batch count as later than the batch, because the rules depend on no row for
        // them and need none: a revocation, a deposit for an aggregation's target, a first transient
        // aggregate, and a transfer with a transient aggregate's identifier (32 random bytes). In the last
        // case the transient aggregate is never paid, but set aside and reported.
        let present = std::mem::replace(&mut model.revoked, revoked);
        let hidden = model.hide(&seen);
        for (command, verdict) in verdicts {
            let Ok(outcome) = verdict else { continue };
            if !has_effect(&outcome) {
                continue;
            }
            let expected = model.batch(std::slice::from_ref(&command), now).0.pop().unwrap().map(told);
            let outcome = told(outcome);
            if expected.as_ref() != Ok(&outcome) {
                self.shared.complain(format!("{command:?}\n  rules: {outcome:?}\n  model: {expected:?}"));
            }
        }
        model.revoked = present;
        model.show(hidden);
        drop(model);
        if let Err(text) = periods_are_apart(self.shared.inner.as_ref()) {
            self.shared.complain(text);
        }
    }
}

/// Periods of a wire method do not overlap.
fn periods_are_apart(backend: &dyn Backend) -> std::result::Result<(), String> {
    let mut periods: Vec<(String, Timestamp, Timestamp)> = Vec::new();
    let mut visit = |record: RawRecord| {
        let key = <WireFeeKey as batzen_store::Record>::decode(&record.key).unwrap();
        let row = <WireFeeRow as batzen_store::Record>::decode(&record.row).unwrap();
        periods.push((key.method, key.start, row.end));
        ControlFlow::Continue(())
    };
    backend.scan(<WireFees as batzen_store::Table>::DEF, &mut visit).unwrap();
    periods.sort();
    let apart = periods.windows(2).all(|pair| pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1);
    if apart { Ok(()) } else { Err(format!("periods overlap: {periods:?}")) }
}

/// Wire fees for a method that no transfer uses.
fn wire_fee(start_s: u64, fee: u64) -> Command {
    Command::Management(Management::WireFee {
        key: WireFeeKey { method: "iban".to_owned(), start: at(start_s) },
        row: WireFeeRow {
            end: at(start_s + 150),
            wire_fee: Money::new(fee, 0).unwrap(),
            closing_fee: m("0"),
            master_sig: sig(0),
        },
    })
}

/// Runs the steps at several nodes in the order that the choices determine.
pub(super) fn run(
    backend: Arc<dyn Backend>,
    ops: Vec<Op>,
    sizes: &[usize],
    choices: &[u8],
    unguarded: bool,
) -> std::result::Result<u64, String> {
    let world = World::on(Store::shared(Arc::clone(&backend)), &denoms(), config(), |rules| rules);
    let shared = Arc::new(NodesState {
        inner: backend,
        steps: Mutex::default(),
        choices: Mutex::default(),
        nodes: OnceLock::new(),
        busy: Mutex::default(),
        now: Mutex::new(world.now()),
        model: Mutex::new(model_of(&world)),
        wrong: Mutex::default(),
    });
    let known = [vec![0, 1, 2], vec![], vec![1]];
    let flows: Vec<Arc<MoneyFlow>> = (0..NODES).map(|_| Arc::default()).collect();
    let nodes = known.iter().zip(&flows).map(|(known, flow)| {
        let table = DenomTable::new();
        known.iter().for_each(|n: &usize| table.insert(denoms()[*n].0, &denoms()[*n].1));
        let mut rules = ExchangeRules::new(Arc::new(table), config());
        rules.flow = Arc::clone(flow);
        let node = Node { rules, shared: Arc::clone(&shared), attempt: Mutex::default(), unguarded };
        Batcher::new(Arc::new(node), Store::new(Gate(Arc::clone(&shared))))
    });
    assert!(shared.nodes.set(nodes.collect()).is_ok());
    let mut sizes = sizes.iter().copied().cycle();
    let mut choices = choices.iter().copied().cycle();
    let flush = |batch: &mut Vec<Command>| {
        if !batch.is_empty() {
            shared.steps.lock().unwrap().push_back(Step::Batch(std::mem::take(batch)));
        }
    };
    let mut turn = 0;
    let mut drain = |interleaved: bool| {
        let steps = if interleaved { shared.steps.lock().unwrap().len() } else { 0 };
        *shared.choices.lock().unwrap() = choices.by_ref().take(4 * steps).collect();
        while shared.step(turn % NODES) {
            turn += 1;
        }
    };
    let (mut batch, mut size) = (Vec::new(), sizes.next().unwrap());
    for (n, op) in ops.into_iter().enumerate() {
        if n == ISSUING {
            // Only coins that have been issued are spent.
            flush(&mut batch);
            drain(false);
        }
        match op {
            Op::Do(command) => {
                batch.push(*command);
                if batch.len() >= size {
                    flush(&mut batch);
                    size = sizes.next().unwrap();
                }
            }
            Op::Revoke(serial) => {
                flush(&mut batch);
                shared.steps.lock().unwrap().push_back(Step::Revoke(serial));
            }
            Op::Advance(seconds) => {
                flush(&mut batch);
                drain(true);
                world.advance(seconds);
                *shared.now.lock().unwrap() = world.now();
            }
        }
    }
    flush(&mut batch);
    drain(true);
    if let Some(wrong) = shared.wrong.lock().unwrap().take() {
        return Err(wrong);
    }
    let model = shared.model.lock().unwrap();
    compare_books(&world, &model)?;
    compare_rows(&world, &model)?;
    // The running sums that the nodes updated equal the sums over the rows.
    let mut moved = Sums::default();
    for flow in &flows {
        let [added, taken] = flow.moved();
        moved += added - taken;
    }
    let fresh = MoneyFlow::default();
    fresh.begin(&world.denoms, &world.store, MoneyFlow::freeze(&world.store).unwrap().as_ref()).unwrap();
    let sums = fresh.sums().unwrap();
    if sums.difference() != 0 {
        return Err(format!("the conservation difference is {}: {sums:?}", sums.difference()));
    }
    let plain = Sums { fees: 0, unrevealed_melts: 0, ..sums };
    if plain != moved {
        return Err(format!("sums: the nodes moved {moved:?}, the rows have {plain:?}"));
    }
    Ok(shared.nodes.get().unwrap().iter().map(|node| node.metrics().snapshot().conflicts).sum())
}

fn with_fees(ops: Vec<Op>, fees: Vec<(usize, u64, u64)>) -> Vec<Op> {
    let mut ops = with_coins(ops);
    for (place, start_s, fee) in fees {
        ops.insert(
            ISSUING + place % (ops.len() + 1 - ISSUING),
            Op::Do(Box::new(wire_fee(start_s * 50, fee))),
        );
    }
    ops
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn concurrent_nodes_keep_consistent_books(
        ops in ops(1..60),
        fees in prop::collection::vec((any::<usize>(), 0u64..6, 1u64..3), 0..4),
        sizes in prop::collection::vec(1usize..8, 1..5),
        choices in prop::collection::vec(0u8..5, 1..40),
    ) {
        let backend = Arc::new(MemoryBackend::new());
        run(backend, with_fees(ops, fees), &sizes, &choices, false).map_err(TestCaseError::fail)?;
    }
}

proptest! {
    // Each commit waits for the disk.
    #![proptest_config(cases(60))]

    #[test]
    fn concurrent_lanes_of_an_embedded_store_keep_consistent_books(
        ops in ops(1..60),
        fees in prop::collection::vec((any::<usize>(), 0u64..6, 1u64..3), 0..4),
        sizes in prop::collection::vec(1usize..8, 1..5),
        choices in prop::collection::vec(0u8..5, 1..40),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(directory.path(), batzen_tables::exchange::ALL, Options::default());
        let backend = Arc::new(store.unwrap());
        run(backend, with_fees(ops, fees), &sizes, &choices, false).map_err(TestCaseError::fail)?;
    }
}

#[test]
fn races_are_detected_and_a_planted_write_skew_is_found() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let fees = prop::collection::vec((any::<usize>(), 0u64..6, 1u64..3), 4..8);
    let (mut lost, mut found) = (0, 0);
    for _ in 0..100 {
        let steps = ops(40..41).new_tree(&mut runner).unwrap().current();
        let steps = with_fees(steps, fees.new_tree(&mut runner).unwrap().current());
        let memory = || Arc::new(MemoryBackend::new());
        lost += run(memory(), steps.clone(), &[2, 3, 1], &[1, 0, 2, 1, 3], false).unwrap();
        found += u32::from(run(memory(), steps, &[2, 3, 1], &[1, 0, 2, 1, 3], true).is_err());
    }
    println!("{lost} races were lost, and {found} of 100 runs found the write skew");
    assert!(lost > 50, "only {lost} races were lost");
    assert!(found > 0, "overtaken changes of the key set were not noticed");
}
