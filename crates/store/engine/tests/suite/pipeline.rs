//! The pipeline with a toy service: accounts that pay each other and never go below zero.
//!
//! For all batch sizes, the outcome equals that of executing the commands one by one. Refused commands leave
//! no trace. Conflicts, overtaken refusals, full queues and failing stores end as documented.

#![allow(clippy::type_complexity, missing_docs)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use batzen_engine::{Batcher, Evidence, Lane, LaneOptions, Plan, Rules, SubmitError, WorkingSet};
use batzen_protocol::Timestamp;
use batzen_store::memory::MemoryBackend;
use batzen_store::{
    Backend, ChangeSet, CommitOutcome, Result as StoreResult, Store, StoreError, Table, record, table,
};
use proptest::prelude::*;

record! {
    /// The key of an account.
    pub key struct AccountKey {
        /// Its number.
        pub id: u64,
    }
}
record! {
    pub struct AccountRow {
        pub balance: u64,
    }
}
table! {
    Accounts(1, "accounts"): AccountKey => AccountRow;
}

record! {
    /// The key of a payment.
    pub key struct PaymentKey {
        /// The payer.
        pub from: u64,
        /// The payer's number for the payment.
        pub id: u64,
    }
}
record! {
    pub struct PaymentRow {
        pub amount: u64,
    }
}
table! {
    Payments(2, "payments"): PaymentKey => PaymentRow;
    BY_PAYER = 1, "by_payer", Prefix { key_bytes: 8 };
}

#[derive(Clone, Debug)]
enum Command {
    Fund { account: u64, amount: u64 },
    Pay { from: u64, to: u64, id: u64, amount: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Refusal {
    Conflict,
    Insufficient { paid_before: u64 },
}

/// The rules of the toy service.
struct Toy;

impl Rules for Toy {
    type Command = Command;
    type Answer = u64;
    type Refusal = Refusal;

    fn plan(&self, command: &Command, plan: &mut Plan) {
        match command {
            Command::Fund { account, .. } => plan.row::<Accounts>(AccountKey { id: *account }),
            Command::Pay { from, to, id, .. } => {
                plan.row::<Accounts>(AccountKey { id: *from });
                plan.row::<Accounts>(AccountKey { id: *to });
                plan.row::<Payments>(PaymentKey { from: *from, id: *id });
                plan.group::<Payments>(Payments::BY_PAYER, from);
            }
        }
    }

    fn execute(&self, rows: &mut WorkingSet, command: &Command, _now: Timestamp) -> Result<u64, Refusal> {
        match command {
            Command::Fund { account, amount } => {
                let key = AccountKey { id: *account };
                let balance = rows.get::<Accounts>(&key).map_or(0, |row| row.balance) + amount;
                rows.put::<Accounts>(&key, AccountRow { balance });
                Ok(balance)
            }
            Command::Pay { from, to, id, amount } => {
                let payment = PaymentKey { from: *from, id: *id };
                if let Some(row) = rows.get::<Payments>(&payment) {
                    return if row.amount == *amount { Ok(row.amount) } else { Err(Refusal::Conflict) };
                }
                // Changes rows before the check, so that the rollback has something to undo.
                rows.insert::<Payments>(&payment, PaymentRow { amount: *amount });
                let from_key = AccountKey { id: *from };
                let before = rows.get::<Accounts>(&from_key).map_or(0, |row| row.balance);
                let Some(rest) = before.checked_sub(*amount) else {
                    let group = rows.group::<Payments>(Payments::BY_PAYER, from);
                    let paid_before = group.iter().map(|(_, row)| row.amount).sum::<u64>() - amount;
                    return Err(Refusal::Insufficient { paid_before });
                };
                rows.put::<Accounts>(&from_key, AccountRow { balance: rest });
                let to_key = AccountKey { id: *to };
                let balance = rows.get::<Accounts>(&to_key).map_or(0, |row| row.balance) + amount;
                rows.put::<Accounts>(&to_key, AccountRow { balance });
                Ok(*amount)
            }
        }
    }

    fn needs_evidence(&self, _: &Refusal) -> bool {
        true
    }

    fn evidence(&self, command: &Command, refusal: &mut Refusal, store: &Store) -> StoreResult<Evidence> {
        let (Command::Pay { from, amount, .. }, Refusal::Insufficient { .. }) = (command, refusal) else {
            return Ok(Evidence::Complete);
        };
        let balance = store.get::<Accounts>(&AccountKey { id: *from })?.map_or(0, |found| found.row.balance);
        Ok(if balance < *amount { Evidence::Complete } else { Evidence::Rerun })
    }
}

fn clock() -> Timestamp {
    Timestamp::from_secs(1)
}

fn commands() -> impl Strategy<Value = Vec<Command>> {
    let account = 0..4_u64;
    let command = prop_oneof![
        (account.clone(), 1..20_u64).prop_map(|(account, amount)| Command::Fund { account, amount }),
        (account.clone(), account, 0..6_u64, 1..20_u64).prop_map(|(from, to, id, amount)| Command::Pay {
            from,
            to,
            id,
            amount
        }),
    ];
    prop::collection::vec(command, 1..60)
}

/// All balances and payments.
fn state(store: &Store) -> (Vec<(u64, u64)>, Vec<(u64, u64, u64)>) {
    let mut accounts: Vec<_> =
        store.all::<Accounts>().unwrap().into_iter().map(|found| (found.key.id, found.row.balance)).collect();
    let mut payments: Vec<_> = store
        .all::<Payments>()
        .unwrap()
        .into_iter()
        .map(|found| (found.key.from, found.key.id, found.row.amount))
        .collect();
    accounts.sort_unstable();
    payments.sort_unstable();
    (accounts, payments)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Money is conserved in batches of any size, and each accepted payment exists exactly once.
    #[test]
    fn batches_conserve_money(commands in commands(), size in 1..12_usize) {
        let store = Store::new(MemoryBackend::new());
        let batcher = Batcher::new(Arc::new(Toy), store.clone());
        let mut funded = 0;
        for batch in commands.chunks(size) {
            let verdicts = batcher.run(batch, &clock).unwrap();
            prop_assert_eq!(verdicts.len(), batch.len());
            for (command, verdict) in batch.iter().zip(&verdicts) {
                match (command, verdict) {
                    (Command::Fund { amount, .. }, Ok(_)) => funded += amount,
                    (Command::Pay { from, id, amount, .. }, Ok(_)) => {
                        let key = PaymentKey { from: *from, id: *id };
                        prop_assert_eq!(store.get::<Payments>(&key).unwrap().unwrap().row.amount, *amount);
                    }
                    (_, Err(_)) => {}
                }
            }
        }
        let (accounts, _) = state(&store);
        prop_assert_eq!(accounts.iter().map(|(_, balance)| balance).sum::<u64>(), funded);
    }

    /// Batches of one command give the same verdicts and rows as a plain loop over a map.
    #[test]
    fn single_commands_match_a_plain_loop(commands in commands()) {
        let store = Store::new(MemoryBackend::new());
        let batcher = Batcher::new(Arc::new(Toy), store.clone());
        let mut balances = [0_u64; 4];
        let mut payments = std::collections::BTreeMap::new();
        for command in &commands {
            let verdict = batcher.run(std::slice::from_ref(command), &clock).unwrap().pop().unwrap();
            let expected = match command {
                Command::Fund { account, amount } => {
                    balances[*account as usize] += amount;
                    Ok(balances[*account as usize])
                }
                Command::Pay { from, to, id, amount } => match payments.get(&(*from, *id)) {
                    Some(before) if before == amount => Ok(*amount),
                    Some(_) => Err(Refusal::Conflict),
                    None if balances[*from as usize] < *amount => {
                        let paid = payments.iter().filter(|((payer, _), _)| payer == from).map(|(_, sum)| sum).sum();
                        Err(Refusal::Insufficient { paid_before: paid })
                    }
                    None => {
                        balances[*from as usize] -= amount;
                        balances[*to as usize] += amount;
                        payments.insert((*from, *id), *amount);
                        Ok(*amount)
                    }
                },
            };
            prop_assert_eq!(verdict, expected);
        }
        let (_, stored) = state(&store);
        prop_assert_eq!(stored, payments.into_iter().map(|((from, id), sum)| (from, id, sum)).collect::<Vec<_>>());
    }
}

#[test]
fn a_refusal_that_was_overtaken_runs_again() {
    let store = Store::new(MemoryBackend::new());
    let batcher = Batcher::new(Arc::new(Toy), store.clone());
    let verdicts = batcher
        .run(
            &[Command::Pay { from: 1, to: 2, id: 1, amount: 5 }, Command::Fund { account: 1, amount: 5 }],
            &clock,
        )
        .unwrap();
    // Refused at first and then funded by the next command of the batch, so the insufficient balance can no
    // longer be proved.
    assert_eq!(verdicts, [Ok(5), Ok(5)]);
    assert_eq!(state(&store).0, [(1, 0), (2, 5)]);
}

/// A store that presents each batch with a competing insert before its first commit attempts, or fails.
struct Rival {
    inner: MemoryBackend,
    rival_commits: AtomicU64,
    full: bool,
}

impl Backend for Rival {
    batzen_store::delegate_reads!(self, self.inner);

    fn commit(&self, changes: &ChangeSet) -> StoreResult<CommitOutcome> {
        if self.full {
            return Err(StoreError::Full("test".into()));
        }
        let step = self.rival_commits.fetch_add(1, Ordering::Relaxed);
        if step < 3 {
            // Another node funds the same account first: at first a race of inserts, then changed rows.
            let key = AccountKey { id: 7 };
            let mut rival = ChangeSet::new();
            let store_row =
                self.inner.get_many(Accounts::DEF, &[batzen_store::Record::to_bytes(&key)])?.pop().unwrap();
            match store_row {
                None => rival.insert::<Accounts>(&key, &AccountRow { balance: 100 }),
                Some(raw) => {
                    let old = <AccountRow as batzen_store::Record>::decode(&raw.row).unwrap();
                    rival.update::<Accounts>(&key, &old, &AccountRow { balance: old.balance + 100 });
                }
            }
            assert_eq!(self.inner.commit(&rival)?, CommitOutcome::Committed);
        }
        self.inner.commit(changes)
    }
    fn checkpoint(&self) -> StoreResult<()> {
        self.inner.checkpoint()
    }
    fn close(&self) -> StoreResult<()> {
        self.inner.close()
    }
}

#[test]
fn a_batch_that_another_node_overtook_runs_again() {
    let store =
        Store::new(Rival { inner: MemoryBackend::new(), rival_commits: AtomicU64::new(0), full: false });
    let batcher = Batcher::new(Arc::new(Toy), store.clone());
    let verdicts = batcher.run(&[Command::Fund { account: 7, amount: 1 }], &clock).unwrap();
    assert_eq!(verdicts, [Ok(301)], "the rival's three credits and ours are all kept");
}

#[tokio::test]
async fn a_full_store_refuses_and_the_lane_works_on() {
    let store =
        Store::new(Rival { inner: MemoryBackend::new(), rival_commits: AtomicU64::new(9), full: true });
    let lane = Lane::start(Arc::new(Toy), store, Arc::new(clock), LaneOptions::default());
    for _ in 0..2 {
        let error = lane.submit(Command::Fund { account: 1, amount: 1 }).await.unwrap_err();
        assert!(matches!(error, SubmitError::Store(source) if matches!(*source, StoreError::Full(_))));
    }
    lane.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_submissions_share_commits_and_lose_nothing() {
    let store = Store::new(MemoryBackend::new());
    let lane = Lane::start(Arc::new(Toy), store.clone(), Arc::new(clock), LaneOptions::default());
    let tasks: Vec<_> = (0..500_u64)
        .map(|number| {
            let lane = lane.clone();
            tokio::spawn(async move { lane.submit(Command::Fund { account: number % 4, amount: 1 }).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap().unwrap();
    }
    let counters = lane.metrics().snapshot();
    assert_eq!((counters.commands, counters.queued, counters.rejected), (500, 0, 0));
    lane.close();
    assert_eq!(state(&store).0.iter().map(|(_, balance)| balance).sum::<u64>(), 500);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn giving_up_the_first_command_of_a_turn_does_not_affect_the_others() {
    let store = Store::new(MemoryBackend::new());
    let lane = Lane::start(Arc::new(Toy), store.clone(), Arc::new(clock), LaneOptions::default());
    let mut first = Box::pin(lane.submit(Command::Fund { account: 1, amount: 1 }));
    let mut second = Box::pin(lane.submit(Command::Fund { account: 2, amount: 2 }));
    std::future::poll_fn(|context| {
        assert!(first.as_mut().poll(context).is_pending() && second.as_mut().poll(context).is_pending());
        std::task::Poll::Ready(())
    })
    .await;
    drop(first);
    let answer = tokio::time::timeout(std::time::Duration::from_secs(60), second).await;
    answer.unwrap().unwrap().unwrap();
    // An accepted command is executed even if its client has given up.
    lane.close();
    assert_eq!(state(&store).0.iter().map(|(_, balance)| balance).sum::<u64>(), 3);
}

/// A worker may start a command and use the lane for something else before it polls the first one again.
async fn an_unpolled_command_holds_nothing_up() {
    let store = Store::new(MemoryBackend::new());
    let lane = Lane::start(Arc::new(Toy), store.clone(), Arc::new(clock), LaneOptions::default());
    let mut resting = Box::pin(lane.submit(Command::Fund { account: 1, amount: 1 }));
    for amount in 2..50 {
        std::future::poll_fn(|context| {
            // It may already be done.
            let _ = resting.as_mut().poll(context);
            std::task::Poll::Ready(())
        })
        .await;
        let command = lane.submit(Command::Fund { account: 2, amount });
        let answer = tokio::time::timeout(std::time::Duration::from_secs(60), command).await;
        answer.unwrap().unwrap().unwrap();
        resting = Box::pin(lane.submit(Command::Fund { account: 1, amount }));
    }
    drop(resting);
    lane.close();
    assert!(state(&store).0.contains(&(2, (2..50).sum())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_unpolled_command_holds_nothing_up_on_a_runtime_with_threads() {
    an_unpolled_command_holds_nothing_up().await;
}

#[tokio::test]
async fn an_unpolled_command_holds_nothing_up_on_a_runtime_without_threads() {
    an_unpolled_command_holds_nothing_up().await;
}

#[tokio::test]
async fn a_full_queue_is_answered_at_once() {
    let store = Store::new(MemoryBackend::new());
    let options = LaneOptions { queue_commands_max: 1, batch_commands_max: 1, ..LaneOptions::default() };
    let lane = Lane::start(Arc::new(Slow), store, Arc::new(clock), options);
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let lane = lane.clone();
            tokio::spawn(async move { lane.submit(()).await })
        })
        .collect();
    let mut overloaded = 0;
    for task in tasks {
        overloaded += u32::from(matches!(task.await.unwrap(), Err(SubmitError::Overloaded)));
    }
    // One runs, one waits, the others are turned away, unless this thread pauses meanwhile.
    assert!(overloaded >= 1);
    assert_eq!(lane.metrics().snapshot().rejected, u64::from(overloaded));
}

/// A slow rule.
struct Slow;
impl Rules for Slow {
    type Command = ();
    type Answer = ();
    type Refusal = ();
    fn plan(&self, (): &(), _: &mut Plan) {}
    fn execute(&self, _: &mut WorkingSet, (): &(), _: Timestamp) -> Result<(), ()> {
        std::thread::sleep(std::time::Duration::from_millis(100));
        Ok(())
    }
}

/// A rule that reads a row that it did not plan.
struct Careless;
impl Rules for Careless {
    type Command = ();
    type Answer = ();
    type Refusal = ();
    fn plan(&self, (): &(), _: &mut Plan) {}
    fn execute(&self, rows: &mut WorkingSet, (): &(), _: Timestamp) -> Result<(), ()> {
        let _ = rows.get::<Accounts>(&AccountKey { id: 1 });
        Ok(())
    }
}

#[test]
#[should_panic(expected = "a rule touched a row of accounts that its plan did not name")]
fn an_unplanned_row_is_a_broken_assertion() {
    let _ = Batcher::new(Arc::new(Careless), Store::new(MemoryBackend::new())).run(&[()], &clock);
}

/// Rules that refuse odd numbers. Their evidence is whatever the test sends, when it sends it.
struct Doubtful {
    evidence: std::sync::Mutex<std::sync::mpsc::Receiver<Evidence>>,
    executed: std::sync::atomic::AtomicU32,
}

impl Rules for Doubtful {
    type Command = u32;
    type Answer = u32;
    type Refusal = u32;
    fn plan(&self, _: &u32, _: &mut Plan) {}
    fn execute(&self, _: &mut WorkingSet, command: &u32, _: Timestamp) -> Result<u32, u32> {
        self.executed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if command.is_multiple_of(2) { Ok(*command) } else { Err(0) }
    }
    fn needs_evidence(&self, _: &u32) -> bool {
        true
    }
    fn evidence(&self, command: &u32, refusal: &mut u32, _: &Store) -> StoreResult<Evidence> {
        *refusal += command;
        Ok(self.evidence.lock().unwrap().recv().unwrap())
    }
}

fn doubtful() -> (Arc<Doubtful>, Lane<Doubtful>, std::sync::mpsc::Sender<Evidence>) {
    doubtful_with(LaneOptions::default())
}

fn doubtful_with(options: LaneOptions) -> (Arc<Doubtful>, Lane<Doubtful>, std::sync::mpsc::Sender<Evidence>) {
    let (sender, evidence) = std::sync::mpsc::channel();
    let rules = Arc::new(Doubtful { evidence: evidence.into(), executed: 0.into() });
    let store = Store::new(MemoryBackend::new());
    let lane = Lane::start(Arc::clone(&rules), store, Arc::new(clock), options);
    (rules, lane, sender)
}

#[tokio::test]
async fn a_slow_history_does_not_delay_others() {
    let (_, lane, evidence) = doubtful();
    let refused = tokio::spawn({
        let lane = lane.clone();
        async move { lane.submit(1).await.unwrap() }
    });
    for command in (2..100).step_by(2) {
        assert_eq!(lane.submit(command).await.unwrap(), Ok(command));
    }
    assert!(!refused.is_finished(), "its evidence has not been read");
    evidence.send(Evidence::Complete).unwrap();
    assert_eq!(refused.await.unwrap(), Err(1));
    lane.close();
}

/// A refusal that is proved by a history of `events` events. Reading each event takes a permit.
struct Readers {
    permits: std::sync::Mutex<std::sync::mpsc::Receiver<()>>,
}

#[derive(Clone, Copy)]
struct Read {
    owner: [u8; 1],
    events: u32,
}

impl Rules for Readers {
    type Command = Read;
    type Answer = ();
    type Refusal = u32;
    fn plan(&self, _: &Read, _: &mut Plan) {}
    fn execute(&self, _: &mut WorkingSet, read: &Read, _: Timestamp) -> Result<(), u32> {
        Err(read.events)
    }
    fn owner<'a>(&self, read: &'a Read) -> Option<&'a [u8]> {
        Some(&read.owner)
    }
    fn is_evidence_long(&self, events: &u32) -> bool {
        *events > 1
    }
    fn needs_evidence(&self, _: &u32) -> bool {
        true
    }
    fn evidence(&self, read: &Read, _: &mut u32, _: &Store) -> StoreResult<Evidence> {
        if read.events > 1 {
            let permits = self.permits.lock().unwrap();
            (0..read.events).for_each(|_| permits.recv().unwrap());
        }
        Ok(Evidence::Complete)
    }
}

#[tokio::test]
async fn a_long_history_does_not_delay_short_ones() {
    let (permit, permits) = std::sync::mpsc::channel();
    let rules = Arc::new(Readers { permits: permits.into() });
    let store = Store::new(MemoryBackend::new());
    let lane = Lane::start(rules, store, Arc::new(clock), LaneOptions::default());
    let (long, short) = (Read { owner: [1], events: 1_000 }, Read { owner: [2], events: 1 });
    // The first read shows that the history is long.
    (0..long.events).for_each(|_| permit.send(()).unwrap());
    assert_eq!(lane.submit(long).await.unwrap(), Err(long.events));
    let waiting: Vec<_> = (0..64)
        .map(|_| {
            let lane = lane.clone();
            tokio::spawn(async move { lane.submit(long).await })
        })
        .collect();
    tokio::task::yield_now().await;
    for _ in 0..100 {
        let answer = tokio::time::timeout(std::time::Duration::from_secs(60), lane.submit(short));
        assert_eq!(answer.await.expect("the short one overtakes the long ones").unwrap(), Err(short.events));
    }
    // Only a few of them may wait; the others must try again later.
    (0..64 * long.events).for_each(|_| permit.send(()).unwrap());
    let (mut proved, mut rejected) = (0, 0);
    for task in waiting {
        match task.await.unwrap() {
            Ok(verdict) => proved += u32::from(verdict == Err(long.events)),
            Err(SubmitError::Overloaded) => rejected += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(
        (8..=9).contains(&proved),
        "eight wait and one is being read; {proved} were proved, {rejected} rejected"
    );
    lane.close();
}

/// Clients that provoke refusals with slow histories and then give up cannot fill the memory.
#[tokio::test]
async fn too_many_waiting_histories_are_rejected() {
    const LIMIT: usize = 2;
    const REFUSED: u32 = 8;
    let options = LaneOptions { queue_commands_max: LIMIT, ..LaneOptions::default() };
    let (rules, lane, evidence) = doubtful_with(options);
    let mut waiting = Vec::new();
    for number in 0..REFUSED {
        let lane = lane.clone();
        waiting.push(tokio::spawn(async move { lane.submit(1).await }));
        while rules.executed.load(std::sync::atomic::Ordering::Relaxed) <= number {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(lane.submit(2).await.unwrap(), Ok(2), "others are served");
    for _ in 0..REFUSED {
        evidence.send(Evidence::Complete).unwrap();
    }
    let (mut proved, mut rejected) = (0, 0_u32);
    for task in waiting {
        match task.await.unwrap() {
            Ok(verdict) => {
                assert_eq!(verdict, Err(1));
                proved += 1;
            }
            Err(SubmitError::Overloaded) => rejected += 1,
            Err(other) => panic!("{other}"),
        }
    }
    // The reading thread may hold one more.
    assert!((LIMIT..=LIMIT + 1).contains(&proved), "{proved} proved, {rejected} rejected");
    lane.close();
}

#[tokio::test]
async fn evidence_that_was_overtaken_again_and_again_is_read_between_two_batches() {
    let (rules, lane, evidence) = doubtful();
    // Three times on the evidence thread, then on the lane's own thread, where torn evidence counts as
    // complete.
    for read in [Evidence::Rerun, Evidence::Torn, Evidence::Rerun, Evidence::Rerun, Evidence::Torn] {
        evidence.send(read).unwrap();
    }
    assert_eq!(lane.submit(7).await.unwrap(), Err(7), "the refusal of the last execution");
    assert_eq!(rules.executed.load(std::sync::atomic::Ordering::Relaxed), 5);
    assert_eq!(lane.metrics().snapshot().reruns, 4);
    assert_eq!(lane.submit(8).await.unwrap(), Ok(8));
    lane.close();
}

record! {
    /// The key of a ticket.
    pub key struct TicketKey {
        /// Its number.
        pub id: u64,
    }
}
record! {
    /// A ticket that waits until it is done.
    pub struct TicketRow {
        pub urgency: Option<u8>,
    }
}
table! {
    Tickets(3, "tickets"): TicketKey => TicketRow;
    WAITING = 1, "waiting", Serial;
    |_, row, out| {
        if let Some(urgency) = row.urgency {
            out.add(Self::WAITING, &urgency);
        }
    }
}

#[test]
fn a_planned_range_has_stored_rows_with_the_changes_of_the_batch() {
    let store = Store::new(MemoryBackend::new());
    let mut changes = ChangeSet::new();
    for (id, urgency) in [(1, 5), (2, 3), (3, 5), (4, 9), (5, 4)] {
        changes.insert::<Tickets>(&TicketKey { id }, &TicketRow { urgency: Some(urgency) });
    }
    assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
    let load = |limit| {
        let mut plan = Plan::default();
        plan.range::<Tickets>(Tickets::WAITING, vec![4], vec![6], limit);
        // Requesting the same range twice gives one range.
        plan.range::<Tickets>(Tickets::WAITING, vec![4], vec![5], 1);
        plan.row::<Tickets>(TicketKey { id: 2 });
        plan.row::<Tickets>(TicketKey { id: 6 });
        plan.row::<Tickets>(TicketKey { id: 7 });
        WorkingSet::load(plan, &store).unwrap()
    };
    let ids = |rows: &WorkingSet| {
        let found = rows.range::<Tickets>(Tickets::WAITING, &[4]);
        found.into_iter().map(|(key, row)| (key.id, row.urgency)).collect::<Vec<_>>()
    };
    let mut rows = load(10);
    assert_eq!(ids(&rows), [(5, Some(4)), (1, Some(5)), (3, Some(5))]);
    rows.begin();
    rows.delete::<Tickets>(&TicketKey { id: 1 });
    rows.update::<Tickets>(&TicketKey { id: 3 }, TicketRow { urgency: None });
    rows.insert::<Tickets>(&TicketKey { id: 6 }, TicketRow { urgency: Some(5) });
    rows.insert::<Tickets>(&TicketKey { id: 7 }, TicketRow { urgency: Some(6) });
    assert_eq!(ids(&rows), [(5, Some(4)), (3, None), (6, Some(5))], "the range has no rows from outside");
    rows.rollback();
    assert_eq!(ids(&rows), [(5, Some(4)), (1, Some(5)), (3, Some(5))]);
    rows.begin();
    rows.insert::<Tickets>(&TicketKey { id: 6 }, TicketRow { urgency: Some(4) });
    assert_eq!(ids(&rows).len(), 4, "it exists once, although its first insert was rolled back");
    let mut full = load(2);
    assert_eq!(ids(&full), [(5, Some(4)), (1, Some(5))]);
    full.begin();
    full.insert::<Tickets>(&TicketKey { id: 6 }, TicketRow { urgency: Some(4) });
    assert_eq!(ids(&full).len(), 2, "a full range stays as it was loaded");
}

#[test]
#[should_panic(expected = "a rule touched a row of tickets that its plan did not name")]
fn a_range_that_was_not_planned_is_a_bug() {
    let store = Store::new(MemoryBackend::new());
    let mut plan = Plan::default();
    plan.row::<Tickets>(TicketKey { id: 1 });
    WorkingSet::load(plan, &store).unwrap().range::<Tickets>(Tickets::WAITING, &[4]);
}

#[test]
fn a_batch_depends_on_a_row_that_it_changed_and_changed_back() {
    let store = Store::new(MemoryBackend::new());
    let ticket = |urgency| TicketRow { urgency: Some(urgency) };
    let mut changes = ChangeSet::new();
    changes.insert::<Tickets>(&TicketKey { id: 1 }, &ticket(5));
    assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
    let mut plan = Plan::default();
    plan.row::<Tickets>(TicketKey { id: 1 });
    plan.row::<Tickets>(TicketKey { id: 2 });
    let mut rows = WorkingSet::load(plan, &store).unwrap();
    for urgency in [6, 5] {
        rows.begin();
        rows.update::<Tickets>(&TicketKey { id: 1 }, ticket(urgency));
    }
    rows.begin();
    rows.insert::<Tickets>(&TicketKey { id: 2 }, ticket(5));
    // Another node changes the row meanwhile.
    let mut other = ChangeSet::new();
    other.update::<Tickets>(&TicketKey { id: 1 }, &ticket(5), &ticket(9));
    assert_eq!(store.commit(&other).unwrap(), CommitOutcome::Committed);
    assert!(matches!(store.commit(&rows.changes()), Err(StoreError::Stale { .. })));
    // The changes of a refused command are not included.
    let mut plan = Plan::default();
    plan.row::<Tickets>(TicketKey { id: 1 });
    let mut rows = WorkingSet::load(plan, &store).unwrap();
    rows.begin();
    rows.update::<Tickets>(&TicketKey { id: 1 }, ticket(6));
    rows.rollback();
    assert!(rows.changes().is_empty());
}
