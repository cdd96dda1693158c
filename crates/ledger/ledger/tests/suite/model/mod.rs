//! The machine against the naive model: every status, timestamp and balance, on random batches that favour
//! collisions (few accounts, few ids, ids used again, amounts at the limits, chains, resolutions of missing,
//! resolved or expired transfers). Each run also rolls batches back, and replays its log.
//!
//! `BATZEN_SOAK_FACTOR` multiplies the number of cases.

mod naive;

use std::collections::{BTreeMap, BTreeSet};

use batzen_ledger::machine::read::{account_balances, account_transfers, change_events, query_transfers};
use batzen_ledger::machine::{Machine, MemoryHistory};
use batzen_ledger::{
    Account, AccountFilter, AccountFlags as A, BATCH_EVENTS_MAX, ChangeFilter, CreateAccountStatus as AS,
    CreateTransferStatus as S, NS_PER_S, QueryFilter, Transfer, TransferFlags as T,
};
use naive::{ACCOUNT_ORDER, Moment, Naive};
use proptest::prelude::*;

/// So late that the longest timeout overflows.
const START: u64 = 5_000_000_000 * NS_PER_S;

#[derive(Clone, Debug)]
enum Step {
    Accounts(Vec<Account>),
    Transfers(Vec<Transfer>),
    Wait(u64),
    /// Repeats earlier events, by position, changed in one way, under their old or a new id.
    Again(Vec<(usize, u8, Option<u128>)>),
    /// Posts and voids earlier pending transfers, by position, changed in one way, with an amount and an id.
    Resolve(Vec<(usize, bool, u8, u128, u128)>),
    /// Execute and undo.
    Undone(Vec<Transfer>),
}

/// One of the ways in which a repetition can differ.
fn changed(event: &Transfer, change: u8) -> Transfer {
    let mut event = *event;
    match change {
        1 => event.user_data_128 += 1,
        2 => event.user_data_64 += 1,
        3 => event.user_data_32 += 1,
        4 => event.code = 2,
        5 => event.ledger = 3,
        6 => event.amount = event.amount.wrapping_add(1),
        7 => event.amount = event.amount.saturating_sub(1),
        8 => event.debit_account_id = 5,
        9 => event.credit_account_id = 3,
        10 => event.timeout = u32::MAX,
        11 => event.ledger = 0,
        12 => event.code = 0,
        13 => event.pending_id = 1,
        14 => event.amount = u128::MAX,
        _ => {}
    }
    event
}

fn account_id() -> impl Strategy<Value = u128> {
    prop_oneof![30 => 1..=8_u128, 1 => Just(0), 1 => Just(u128::MAX), 1 => 9..=12_u128]
}

fn transfer_id() -> impl Strategy<Value = u128> {
    prop_oneof![40 => 1..=40_u128, 1 => Just(0), 1 => Just(u128::MAX)]
}

fn amount() -> impl Strategy<Value = u128> {
    prop_oneof![
        8 => 0..=20_u128,
        2 => Just(u128::MAX),
        1 => Just(u128::MAX - 1),
        1 => Just(1 << 127),
        1 => (0..=3_u128).prop_map(|n| (u128::MAX >> 1) - n),
    ]
}

fn user_data() -> impl Strategy<Value = (u128, u64, u32)> {
    let rarely = || prop_oneof![6 => Just(0_u32), 1 => 1..=2_u32];
    (rarely(), rarely(), rarely()).prop_map(|(a, b, c)| (a.into(), b.into(), c))
}

fn account() -> impl Strategy<Value = Account> {
    let flags = prop_oneof![
        6 => Just(0),
        4 => Just(A::DEBITS_MUST_NOT_EXCEED_CREDITS.0),
        2 => Just(A::CREDITS_MUST_NOT_EXCEED_DEBITS.0),
        3 => Just(A::HISTORY.0),
        1 => Just(A::CLOSED.0),
        1 => Just(A::IMPORTED.0),
        1 => 0..=0x7f_u16,
    ];
    let linked = prop_oneof![5 => Just(0), 1 => Just(A::LINKED.0)];
    let small = |often: u32| prop_oneof![often => Just(1_u32), 1 => Just(0), 1 => Just(2)];
    let odd = || prop_oneof![30 => Just(0_u128), 1 => Just(1)];
    let time =
        prop_oneof![20 => Just(0), 2 => (1..200_u64).prop_map(|n| START - 200 + n), 1 => Just(u64::MAX)];
    let numbers = (account_id(), user_data(), small(30), small(30), time);
    (numbers, flags, linked, (odd(), odd(), odd(), odd(), odd())).prop_map(
        |((id, (user_data_128, user_data_64, user_data_32), ledger, code, timestamp), flags, linked, odd)| {
            Account {
                id,
                debits_pending: odd.0,
                debits_posted: odd.1,
                credits_pending: odd.2,
                credits_posted: odd.3,
                user_data_128,
                user_data_64,
                user_data_32,
                reserved: u32::try_from(odd.4).unwrap(),
                ledger,
                code: u16::try_from(code).unwrap(),
                flags: A(flags | linked),
                timestamp,
            }
        },
    )
}

fn transfer() -> impl Strategy<Value = Transfer> {
    let flags = prop_oneof![
        8 => Just(T::NONE),
        8 => Just(T::PENDING),
        6 => Just(T::POST_PENDING_TRANSFER),
        5 => Just(T::VOID_PENDING_TRANSFER),
        1 => Just(T::BALANCING_DEBIT),
        1 => Just(T::BALANCING_CREDIT),
        1 => Just(T::BALANCING_DEBIT | T::BALANCING_CREDIT | T::PENDING),
        1 => Just(T::PENDING | T::CLOSING_DEBIT),
        1 => Just(T::PENDING | T::CLOSING_CREDIT),
        1 => Just(T::CLOSING_DEBIT),
        2 => (0..=0x3ff_u16).prop_map(T),
    ];
    let linked = prop_oneof![4 => Just(T::NONE), 1 => Just(T::LINKED)];
    // Resolutions mostly inherit their fields; other transfers mostly set them.
    (
        transfer_id(),
        account_id(),
        account_id(),
        amount(),
        transfer_id(),
        user_data(),
        flags,
        linked,
        0..100_u32,
        0..40_u32,
    )
        .prop_map(|(id, debit, credit, amount, pending, user_data, flags, linked, dice, time)| {
            let resolves = flags.intersects(T::POST_PENDING_TRANSFER | T::VOID_PENDING_TRANSFER);
            let says = if resolves { dice < 10 } else { dice < 97 };
            let (user_data_128, user_data_64, user_data_32) = user_data;
            let is_pending = flags.contains(T::PENDING);
            Transfer {
                id,
                debit_account_id: if says { debit } else { 0 },
                credit_account_id: if says { credit } else { 0 },
                amount: if flags.contains(T::VOID_PENDING_TRANSFER) && dice % 4 > 0 { 0 } else { amount },
                pending_id: if resolves || dice == 1 { pending } else { 0 },
                user_data_128,
                user_data_64,
                user_data_32,
                timeout: match time {
                    0 if is_pending => u32::MAX,
                    1..=20 if is_pending => 1 + time % 3,
                    1 => 1,
                    _ => 0,
                },
                ledger: if says { 1 + u32::from(dice == 2) } else { 0 },
                code: if says { 1 } else { 0 },
                flags: flags | linked,
                timestamp: u64::from(dice == 3),
            }
        })
}

/// A batch of imported events. Times mostly rise.
fn imported(times: Vec<(Transfer, u64)>) -> Vec<Transfer> {
    let is_late = times.first().is_some_and(|(transfer, _)| transfer.amount % 2 == 0);
    let mut time = if is_late { START + 10 } else { START - 150 };
    let import = |(transfer, step): (Transfer, u64)| {
        time += step;
        let timestamp = if step == 9 { START + NS_PER_S * 3600 } else { time };
        let timeout = if step == 7 { transfer.timeout } else { 0 };
        Transfer { flags: transfer.flags | T::IMPORTED, timestamp, timeout, ..transfer }
    };
    times.into_iter().map(import).collect()
}

fn step() -> impl Strategy<Value = Step> {
    let batch = || prop::collection::vec(transfer(), 0..12);
    prop_oneof![
        2 => prop::collection::vec(account(), 0..6).prop_map(Step::Accounts),
        1 => prop::collection::vec((account(), 0..30_u64), 1..4).prop_map(|accounts| Step::Accounts(
            accounts.into_iter().map(|(account, n)| Account {
                flags: account.flags | A::IMPORTED,
                timestamp: START - 190 + n,
                ..account
            }).collect()
        )),
        12 => batch().prop_map(Step::Transfers),
        1 => prop::collection::vec((transfer(), 0..10_u64), 1..6).prop_map(|times| Step::Transfers(imported(times))),
        3 => (0..=7_u64).prop_map(|halves| Step::Wait(halves * NS_PER_S / 2)),
        4 => prop::collection::vec(
            (0..1000_usize, any::<bool>(), 0..40_u8, amount(), 1..=120_u128), 1..8
        ).prop_map(Step::Resolve),
        5 => prop::collection::vec((0..1000_usize, 0..24_u8, prop::option::of(41..=80_u128)), 1..8).prop_map(Step::Again),
        1 => batch().prop_map(Step::Undone),
    ]
}

/// Accounts that most runs begin with, so that payments are possible.
fn first_accounts() -> Vec<Account> {
    let flags = [
        A::NONE,
        A::DEBITS_MUST_NOT_EXCEED_CREDITS,
        A::HISTORY,
        A::CREDITS_MUST_NOT_EXCEED_DEBITS,
        A::DEBITS_MUST_NOT_EXCEED_CREDITS | A::HISTORY,
        A::NONE,
    ];
    (1..)
        .zip(flags)
        .map(|(id, flags)| Account {
            id,
            ledger: 1 + u32::from(id == 6),
            code: 1,
            flags,
            ..Account::default()
        })
        .collect()
}

/// The machine and the model side by side.
struct Pair {
    machine: Machine,
    history: MemoryHistory,
    naive: Naive,
    now: u64,
    sent: Vec<Transfer>,
    statuses: BTreeMap<S, u64>,
}

impl Pair {
    fn new() -> Self {
        let machine = Machine::new(&[7; 16]);
        let (history, naive) = (MemoryHistory::default(), Naive::default());
        Self { machine, history, naive, now: START, sent: Vec::new(), statuses: BTreeMap::new() }
    }

    fn keep(&mut self) {
        self.history.extend(self.machine.take_records());
        let mark = self.machine.mark();
        self.machine.settle(&mark);
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Accounts(events) => {
                let timestamp = self.machine.operation_timestamp(self.now, events.len());
                let Ok(results) = self.machine.create_accounts(&self.history, &events, timestamp);
                let results: Vec<_> = results.into_iter().map(|r| (r.status, r.timestamp)).collect();
                assert_eq!(results, self.naive.create_accounts(self.now, &events), "{events:?}");
            }
            Step::Again(places) if self.sent.is_empty() => drop(places),
            Step::Again(places) => {
                let again = |(place, change, id): (usize, u8, Option<u128>)| {
                    let event = changed(&self.sent[place % self.sent.len()], change);
                    Transfer { id: id.unwrap_or(event.id), ..event }
                };
                let events = places.into_iter().map(again).collect();
                return self.run(Step::Transfers(events));
            }
            Step::Resolve(places) => {
                let is_pending = |event: &&Transfer| event.flags.contains(T::PENDING);
                let pendings: Vec<Transfer> = self.sent.iter().filter(is_pending).copied().collect();
                if pendings.is_empty() {
                    return;
                }
                let resolve = |(place, is_void, change, amount, id): (usize, bool, u8, u128, u128)| {
                    let flags = if is_void { T::VOID_PENDING_TRANSFER } else { T::POST_PENDING_TRANSFER };
                    let pending_id = pendings[place % pendings.len()].id;
                    changed(&Transfer { id, pending_id, amount, flags, ..Transfer::default() }, change)
                };
                let events = places.into_iter().map(resolve).collect();
                return self.run(Step::Transfers(events));
            }
            Step::Transfers(events) => {
                self.sent.extend(&events);
                let timestamp = self.machine.operation_timestamp(self.now, events.len());
                let Ok(results) = self.machine.create_transfers(&self.history, &events, timestamp);
                let results: Vec<_> = results.into_iter().map(|r| (r.status, r.timestamp)).collect();
                for (status, _) in &results {
                    *self.statuses.entry(*status).or_default() += 1;
                }
                assert_eq!(results, self.naive.create_transfers(self.now, &events), "{events:?}");
            }
            Step::Wait(time) => {
                self.now += time;
                if self.machine.is_pulse_due(self.now) {
                    let timestamp = self.machine.operation_timestamp(self.now, BATCH_EVENTS_MAX);
                    assert_eq!(self.machine.pulse(timestamp), self.naive.pulse(self.now));
                }
            }
            Step::Undone(events) => {
                let (mark, digest, accounts) = (self.machine.mark(), self.machine.digest(), self.accounts());
                let timestamp = self.machine.operation_timestamp(self.now, events.len());
                let Ok(_) = self.machine.create_transfers(&self.history, &events, timestamp);
                // Stored or not: undone records were never visible.
                if events.len() % 2 == 0 {
                    self.machine.take_records();
                }
                self.machine.rollback(&mark);
                assert_eq!((self.machine.digest(), self.accounts()), (digest, accounts));
                self.machine.check().unwrap();
                self.naive.clock = self.machine.clock();
            }
        }
        self.keep();
        self.compare();
    }

    fn accounts(&self) -> Vec<Account> {
        self.machine.query_accounts(&QueryFilter { limit: 100, ..QueryFilter::default() }, u64::MAX).unwrap()
    }

    fn compare(&self) {
        let accounts: Vec<Account> =
            self.naive.accounts.iter().map(|account| self.naive.with_balances(*account)).collect();
        assert_eq!(self.accounts(), accounts);
        assert_eq!(self.machine.counts().transfers, self.naive.transfers().count() as u64);
        assert_eq!(self.machine.counts().burnt, self.naive.burnt.len() as u64);
    }

    /// Compares everything that can be read.
    fn compare_reads(&self) {
        self.machine.check().unwrap();
        let filter = ChangeFilter { limit: 8000, ..ChangeFilter::default() };
        let Ok(events) = change_events(&self.history, &self.machine, &filter);
        let seen: Vec<_> = events.iter().map(|e| (e.kind, e.timestamp, e.transfer)).collect();
        let expected: Vec<_> = self.naive.events.iter().map(|e| (e.kind, e.timestamp, e.transfer)).collect();
        assert_eq!(seen, expected);
        for (n, event) in events.iter().enumerate() {
            let mut then = self.naive.clone();
            then.events.truncate(n + 1);
            let account = |id| then.with_balances(*then.accounts.iter().find(|a| a.id == id).unwrap());
            assert_eq!(event.debit_account, account(event.transfer.debit_account_id));
            assert_eq!(event.credit_account, account(event.transfer.credit_account_id));
        }
        let transfers: Vec<Transfer> = self.naive.transfers().copied().collect();
        let query = QueryFilter { limit: 8000, ..QueryFilter::default() };
        assert_eq!(query_transfers(&self.history, &query, u64::MAX), Ok(transfers.clone()));
        let ids: Vec<u128> = transfers.iter().map(|t| t.id).chain(self.naive.burnt.iter().copied()).collect();
        assert_eq!(self.machine.lookup_transfers(&self.history, &ids), Ok(transfers.clone()));
        for account in &self.naive.accounts {
            let mine = |t: &&Transfer| t.debit_account_id == account.id || t.credit_account_id == account.id;
            let expected: Vec<Transfer> = transfers.iter().filter(mine).copied().collect();
            let filter = AccountFilter::all(account.id);
            let cursor = self.machine.account_cursor(&filter).unwrap();
            assert_eq!(account_transfers(&self.history, &cursor, &filter, u64::MAX), Ok(expected.clone()));
            let balances = account_balances(&self.history, &cursor, &filter, u64::MAX).unwrap();
            let keeps = account.flags.contains(A::HISTORY);
            assert_eq!(balances.len(), if keeps { expected.len() } else { 0 });
            if let (Some(min), Some(max)) = (expected.get(2), expected.get(4)) {
                let filter = AccountFilter {
                    timestamp_min: min.timestamp,
                    timestamp_max: max.timestamp,
                    reversed: true,
                    ..filter
                };
                let cursor = self.machine.account_cursor(&filter).unwrap();
                let between: Vec<Transfer> = expected[2..=4].iter().rev().copied().collect();
                assert_eq!(account_transfers(&self.history, &cursor, &filter, u64::MAX), Ok(between));
            }
        }
    }

    fn replay(&self) {
        let (mut restored, mut replayed) = (Machine::new(&[1; 16]), Machine::new(&[2; 16]));
        for record in self.history.records() {
            restored.restore(record).unwrap();
            let Ok(result) = replayed.replay(&self.history, record);
            result.unwrap();
        }
        for machine in [restored, replayed] {
            machine.check().unwrap();
            assert_eq!((machine.digest(), machine.counts()), (self.machine.digest(), self.machine.counts()));
        }
    }
}

fn cases(count: u32) -> ProptestConfig {
    let factor = std::env::var("BATZEN_SOAK_FACTOR").map_or(1, |factor| factor.parse().expect("a number"));
    ProptestConfig { cases: count * factor, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn the_machine_agrees_with_the_model(with_accounts in prop::bool::weighted(0.9), steps in prop::collection::vec(step(), 1..25)) {
        let mut pair = Pair::new();
        if with_accounts {
            pair.run(Step::Accounts(first_accounts()));
        }
        for step in steps {
            pair.run(step);
        }
        pair.compare_reads();
        pair.replay();
    }
}

/// A fixed series of random steps, for tests that must reach a certain state.
fn series(seed: u64, length: usize) -> Vec<Step> {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    (0..length).map(|_| step().new_tree(&mut runner).unwrap().current()).collect()
}

/// The generator reaches every status.
#[test]
fn every_status_is_reached() {
    let mut reached = BTreeSet::new();
    for seed in 0..250 {
        let mut pair = Pair::new();
        if seed % 8 == 0 {
            let account = |id, timestamp| Account {
                id,
                ledger: 1,
                code: 1,
                flags: A::IMPORTED,
                timestamp,
                ..Account::default()
            };
            pair.run(Step::Accounts(vec![account(7, START - 190), account(8, START - 100)]));
            let series = series(5000 + seed, 40).into_iter();
            let import = |step| match step {
                Step::Transfers(events) => Some(events.into_iter().zip(0..)),
                _ => None,
            };
            let to_seven = |(event, n)| (Transfer { debit_account_id: 7, credit_account_id: 8, ..event }, n);
            pair.run(Step::Transfers(imported(series.filter_map(import).flatten().map(to_seven).collect())));
        }
        pair.run(Step::Accounts(first_accounts()));
        for step in series(seed, 30) {
            pair.run(step);
        }
        reached.extend(pair.statuses.keys().copied());
    }
    let missing: Vec<_> = S::ALL.iter().filter(|status| !reached.contains(status)).collect();
    assert!(missing.is_empty(), "not reached: {missing:?}");
}

/// For all ordered pairs of statuses that one event can deserve at once, the earlier one is answered. The
/// events are those of the random runs, each changed in one or two fields towards another refusal.
#[test]
fn the_earlier_of_two_statuses_wins() {
    let mut transfers: BTreeSet<(S, S)> = BTreeSet::new();
    let mut accounts: BTreeSet<(AS, AS)> = BTreeSet::new();
    for seed in 0..40 {
        let mut pair = Pair::new();
        pair.run(Step::Accounts(first_accounts()));
        for step in series(1000 + seed, 25) {
            match &step {
                Step::Transfers(events) => {
                    for event in events.iter().take(4).flat_map(transfer_variants) {
                        try_transfer(&mut pair, &event, &mut transfers);
                    }
                }
                Step::Accounts(events) => {
                    for event in events.iter().flat_map(account_variants) {
                        try_account(&mut pair, &event, &mut accounts);
                    }
                }
                _ => {}
            }
            pair.run(step);
        }
    }
    // The number is a fact of the generator: fewer means that it was weakened.
    assert!(transfers.len() > 700, "{} pairs of transfer statuses", transfers.len());
    assert!(accounts.len() > 180, "{} pairs of account statuses", accounts.len());
}

/// An event, and what one or two of these changes make of it.
fn variants<E: Copy>(event: E, changes: &[fn(&mut E)]) -> Vec<E> {
    let mut variants = vec![event];
    for (n, first) in changes.iter().enumerate() {
        let mut one = event;
        first(&mut one);
        variants.push(one);
        for second in &changes[n + 1..] {
            let mut two = one;
            second(&mut two);
            variants.push(two);
        }
    }
    variants
}

fn transfer_variants(event: &Transfer) -> Vec<Transfer> {
    let changes: [fn(&mut Transfer); 16] = [
        |t| t.flags = T(t.flags.0 | 1 << 12),
        |t| t.id = 0,
        |t| t.id = u128::MAX,
        |t| t.timestamp = 5,
        |t| t.flags = t.flags | T::IMPORTED,
        |t| t.timeout = u32::MAX,
        |t| t.pending_id = t.id,
        |t| t.debit_account_id = 0,
        |t| t.credit_account_id = u128::MAX,
        |t| t.debit_account_id = 11,
        |t| t.ledger = 0,
        |t| t.code = 0,
        |t| t.ledger = 9,
        |t| t.amount = u128::MAX,
        |t| t.flags = t.flags | T::CLOSING_DEBIT,
        |t| t.id = 999,
    ];
    variants(Transfer { flags: event.flags.without(T::LINKED), ..*event }, &changes)
}

fn account_variants(event: &Account) -> Vec<Account> {
    let changes: [fn(&mut Account); 13] = [
        |a| a.flags = A(a.flags.0 | 1 << 12),
        |a| a.flags = a.flags | A::IMPORTED,
        |a| a.flags = A(a.flags.0 | 6),
        |a| a.timestamp = 5,
        |a| a.timestamp = u64::MAX,
        |a| a.reserved = 1,
        |a| a.id = 0,
        |a| a.id = u128::MAX,
        |a| a.debits_pending = 1,
        |a| a.debits_posted = 1,
        |a| a.credits_pending = 1,
        |a| a.credits_posted = 1,
        |a| (a.ledger, a.code) = (0, 0),
    ];
    variants(Account { flags: event.flags.without(A::LINKED), ..*event }, &changes)
}

/// Decides an event, rolls it back, and records the pairs of statuses that it deserves.
fn try_transfer(pair: &mut Pair, event: &Transfer, pairs: &mut BTreeSet<(S, S)>) {
    let operation = pair.machine.operation_timestamp(pair.now, 1);
    let mark = pair.machine.mark();
    let Ok(results) = pair.machine.create_transfers(&pair.history, &[*event], operation);
    pair.machine.rollback(&mark);
    pair.naive.clock = pair.machine.clock();
    let importing = event.flags.contains(T::IMPORTED);
    let deserved = pair.naive.transfer_statuses(event, Moment { slot: operation, operation, importing });
    assert_eq!(results[0].status, deserved[0], "{event:?}");
    for (n, first) in deserved.iter().enumerate() {
        pairs.extend(deserved[n + 1..].iter().map(|second| (*first, *second)));
    }
}

fn try_account(pair: &mut Pair, event: &Account, pairs: &mut BTreeSet<(AS, AS)>) {
    let operation = pair.machine.operation_timestamp(pair.now, 1);
    let mark = pair.machine.mark();
    let Ok(results) = pair.machine.create_accounts(&pair.history, &[*event], operation);
    pair.machine.rollback(&mark);
    pair.naive.clock = pair.machine.clock();
    let importing = event.flags.contains(A::IMPORTED);
    let deserved = pair.naive.account_statuses(event, Moment { slot: operation, operation, importing });
    assert_eq!(results[0].status, deserved[0], "{event:?}");
    for (n, first) in deserved.iter().enumerate() {
        pairs.extend(deserved[n + 1..].iter().map(|second| (*first, *second)));
    }
    assert_eq!(ACCOUNT_ORDER.len(), AS::ALL.len() - 2, "every status but those of chains is in the order");
}
