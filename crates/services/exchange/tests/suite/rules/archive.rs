//! Archiving: what need not be kept at hand leaves, no sum changes, and nothing that left counts again.

use std::collections::BTreeMap;
use std::sync::Mutex;

use batzen_crypto::CsNonce;
use batzen_exchange::reads::garbage::nonce_candidates;
use batzen_exchange::reads::read;
use batzen_exchange::rules::garbage::COLLECT_DELAY;
use batzen_exchange::rules::{
    Answer, Archive, ArchiveUnit, Archived, Collect, Command, DenomProblem, PurseCoins, Refusal, Stays,
    TransferPart,
};
use batzen_exchange::workers::archive::{ArchiveError, Archives, Mover, Report, Task, Times, contents};
use batzen_store::memory::MemoryBackend;
use batzen_store::{Store, StoreError};
use batzen_tables::exchange::{
    ArchiveCounts, ArchiveRuns, ArchiveTransfers, Coins, CsNonceKey, CsNonces, DenomSerial, Denominations,
    Deposits, MeltByRc, Melts, NonceKind, PastTransfers, Prepared, PurseDeposits, Purses,
    RecoupRefreshCredits, RecoupRefreshes, Recoups, Refunds, Reveals, WireOut, WireTargets,
};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use crate::rules::compare::{check, with_coins};
use crate::rules::generate::{Op, ops};
use crate::rules::recoups::{recoup, recoup_refresh};
use crate::rules::world::*;

#[derive(Default)]
pub(super) struct InMemory(Mutex<BTreeMap<u32, Store>>);

impl InMemory {
    pub(super) fn of_run(&self, run: u32) -> Store {
        self.0.lock().unwrap()[&run].clone()
    }
}

impl Archives for InMemory {
    fn open(&self, run: u32, is_new: bool) -> Result<Store, StoreError> {
        let mut stores = self.0.lock().unwrap();
        if !is_new && !stores.contains_key(&run) {
            return Err(StoreError::Backend("it is not there".to_owned()));
        }
        Ok(stores.entry(run).or_insert_with(|| Store::new(MemoryBackend::new())).clone())
    }
}

pub(super) type Moving<'a> = &'a mut dyn FnMut(Archive) -> Result<Archived, ArchiveError>;

pub(super) fn decide(world: &World, command: Archive) -> Result<Archived, ArchiveError> {
    archived(world.run(Command::Archive(command)))
}

pub(super) fn run_with(
    world: &World,
    archives: &InMemory,
    task: &Task,
    decide: Moving<'_>,
) -> Result<Report, ArchiveError> {
    Mover::new(&world.store, &world.rules, at_once(world), archives, decide, |_| ()).run(task)
}

/// Moves everything with the rules' own decisions.
pub(super) fn move_all(world: &World, archives: &InMemory) -> Result<Report, ArchiveError> {
    run_with(world, archives, &to_move(), &mut |command| decide(world, command))
}

/// Times at which everything that is over now may leave.
pub(super) fn at_once(world: &World) -> Times {
    Times { now: world.now(), until: world.now() }
}

pub(super) fn to_move() -> Task {
    Task::Move { reason: "the law".to_owned() }
}

/// Moves everything, and asserts that no sum changes, and that counting before promised the same.
pub(super) fn archive(world: &World, archives: &InMemory) -> Report {
    let before = world.totals();
    let mut none = |_| panic!("counting changes nothing");
    let counted = run_with(world, archives, &Task::Count, &mut none).unwrap();
    let report = move_all(world, archives).unwrap();
    assert_eq!(world.totals(), before, "archiving changes no sum");
    assert_eq!(Report { run: report.run, ..counted }, report, "counting tells what moving does");
    let again = move_all(world, archives).unwrap();
    assert_eq!((again.run, again.rows()), (None, (0, 0)), "nothing is left to move");
    report
}

/// The answer of an archiver's command.
pub(super) fn archived(verdict: Verdict) -> Result<Archived, ArchiveError> {
    match verdict {
        Ok(Answer::Archive(archived)) => Ok(archived),
        Ok(other) => panic!("{other:?}"),
        Err(refusal) => Err(ArchiveError::Refused(Box::new(refusal))),
    }
}

pub(super) fn delay_s() -> u64 {
    COLLECT_DELAY.as_secs().unwrap()
}

/// Goes to the time after which nothing of the test's denominations needs to be kept.
pub(super) fn expire_all(world: &World) {
    world.advance(3_000 + delay_s() + 1);
}

fn expired() -> Refusal {
    unusable(1, DenomProblem::Expired)
}

fn stay(moved: &batzen_exchange::workers::archive::Moved) -> Vec<(Stays, u64)> {
    moved.stay.iter().map(|(why, count)| (*why, *count)).collect()
}

/// Two coins pay a merchant, who refunds a part, and is paid.
pub(super) fn paid_world() -> World {
    let world = World::new();
    world.fund(1, 1, "30.5");
    world.ok(withdraw(1, &[(1, 1), (2, 1), (3, 1)], true));
    world.ok(Command::Deposit(deposit(&[(1, 1, "5"), (2, 1, "10")], (1, 1, 1), (5, 10))));
    world.ok(refund((1, 1, 1), 1, "2"));
    world.advance(20);
    world.aggregate_all();
    assert_eq!(world.transfer_all().len(), 1);
    world
}

#[test]
fn an_expired_coin_leaves_with_its_payments() {
    let world = paid_world();
    let archives = InMemory::default();
    world.advance(3_000 + delay_s() - 20);
    let young = archive(&world, &archives);
    assert_eq!(young.run, None);
    assert_eq!(stay(&young.transfers), [(Stays::Young, 1)]);
    assert_eq!(stay(&young.coins), [(Stays::Young, 2)]);
    world.advance(1);
    let report = archive(&world, &archives);
    assert_eq!((report.transfers.left, report.coins.left, report.run), (1, 2, Some(1)));
    // Two coins, two deposits, a refund, the transfer and its request.
    assert_eq!(report.rows().0, 7);
    let coins = &report.counts[&(10, DenomSerial(1))];
    assert_eq!((coins.rows, coins.sum()), (2, sum("13.03")), "what they had spent, less the refund");
    let store = &world.store;
    let left = [
        store.count::<Coins>(),
        store.count::<Deposits>(),
        store.count::<Refunds>(),
        store.count::<WireOut>(),
        store.count::<Prepared>(),
        store.count::<ArchiveTransfers>(),
    ];
    assert_eq!(left.map(Result::unwrap), [0; 6]);
    assert_eq!(store.count::<PastTransfers>().unwrap(), 1, "its identifier is not used again");

    // The archive explains itself.
    let archive = archives.of_run(1);
    let run = archive.all::<ArchiveRuns>().unwrap().pop().unwrap().row;
    assert_eq!(Some(&run), store.all::<ArchiveRuns>().unwrap().pop().map(|found| found.row).as_ref());
    assert_eq!((run.reason.as_str(), run.rows, run.finished), ("the law", 7, Some(world.now())));
    assert_eq!(run.digest, Some(contents(&archive).unwrap().digest));
    assert_eq!(archive.count::<Denominations>().unwrap(), 3);
    assert_eq!(archive.count::<WireTargets>().unwrap(), 1);
    assert_eq!(archive.all::<ArchiveCounts>().unwrap().len(), store.all::<ArchiveCounts>().unwrap().len());
}

#[test]
fn a_clock_that_is_years_ahead_moves_nothing() {
    let world = paid_world();
    let before = world.now();
    expire_all(&world);
    let archives = InMemory::default();
    let times = Times { now: world.now(), until: before };
    let mut decide_now = |command| decide(&world, command);
    let mover = Mover::new(&world.store, &world.rules, times, &archives, &mut decide_now, |_| ());
    let report = mover.run(&to_move()).unwrap();
    assert_eq!((report.rows(), stay(&report.coins)), ((0, 0), vec![(Stays::Young, 2)]));
    // Nor if somebody asks the rules.
    let begun = Archive::Begin { run: 1, id: h_payto(200), reason: "a test".to_owned() };
    decide(&world, begun).unwrap();
    let deposits = world.store.all::<Deposits>().unwrap();
    let coins = PurseCoins { purse_pub: purse_pub(1), deposits: Vec::new() };
    let part = TransferPart {
        wtid: deposits[0].row.wtid.unwrap(),
        wire_out: None,
        prepared: None,
        deposits: vec![(deposits[0].key.clone(), deposits[0].row.clone())],
        refunds: Vec::new(),
    };
    let units = vec![ArchiveUnit::Transfer(Box::new(part)), ArchiveUnit::Purse(coins)];
    let command = Archive::Move { run: 1, id: h_payto(200), until: before, units };
    let verdict = decide(&world, command).unwrap();
    assert_eq!(verdict, Archived::Moved(vec![Some(Stays::Unpaid), Some(Stays::Changed)]));
}

#[test]
fn nothing_that_left_counts_again() {
    let world = paid_world();
    let pay = Command::Deposit(deposit(&[(1, 1, "5"), (2, 1, "10")], (1, 1, 1), (5, 10)));
    let again = || Command::Deposit(deposit(&[(1, 1, "1")], (2, 2, 2), (5_000_000, 5_000_000)));
    expire_all(&world);
    let before = [pay.clone(), again(), melt(1, 1, "1", 1, 0, None)].map(|command| world.run(command));
    assert!(before[0].is_ok(), "a repetition is answered as long as it is known");
    assert_eq!(before[1], Err(expired()));
    archive(&world, &InMemory::default());
    let requests = || {
        let create = purse(9, purse_terms("1", 9_000_000), vec![purse_coin(1, 1, "3")]);
        [
            pay.clone(),
            again(),
            // Coin 3 was never used.
            Command::Deposit(deposit(&[(3, 1, "1")], (2, 2, 2), (5_000_000, 5_000_000))),
            melt(1, 1, "1", 1, 0, None),
            Command::PurseCreate(create),
            recoup(1, 1, 1, 1),
        ]
    };
    world.revoke(1);
    for request in requests() {
        assert_eq!(world.refused(request), expired());
    }
    assert_eq!(world.refused(refund((1, 1, 1), 1, "2")), Refusal::CoinUnknown);
    assert_eq!(world.refused(reveal(1, 1, &[(9, 1)], None, 0)), Refusal::MeltUnknown);
    // Not even if the clock goes back to when the coins were good, in a process that starts then.
    world.step_back(3_000 + delay_s() + 1);
    for request in requests() {
        assert_eq!(world.refused(request), expired());
    }
    let late = World::again(&world);
    for request in requests() {
        assert_eq!(late.refused(request), expired());
    }
    assert!(late.refused(again()) == expired() && late.now() < at(2_000));
}

#[test]
fn what_is_not_paid_out_stays() {
    let world = World::new();
    world.fund(1, 1, "40");
    world.ok(withdraw(1, &[(1, 1), (2, 1), (4, 3)], true));
    // A deposit that is refundable for ever, a transfer that the bank has not executed, and a deposit that is too
    // small to be paid.
    world.ok(Command::Deposit(deposit(&[(1, 1, "5")], (1, 1, 1), (90_000_000, 90_000_000))));
    world.ok(Command::Deposit(deposit(&[(2, 1, "5")], (2, 1, 2), (0, 0))));
    world.ok(Command::Deposit(deposit(&[(4, 3, "0.005")], (3, 1, 3), (0, 0))));
    world.advance(10);
    world.aggregate_all();
    let archives = InMemory::default();
    expire_all(&world);
    let report = archive(&world, &archives);
    assert_eq!(stay(&report.transfers), [(Stays::Unpaid, 1)]);
    assert_eq!(stay(&report.coins), [(Stays::Payments, 3)]);
    // Now it is executed, but only just.
    world.transfer_all();
    assert_eq!(stay(&archive(&world, &archives).transfers), [(Stays::Unpaid, 1)]);
    world.advance(delay_s() + 1);
    let report = archive(&world, &archives);
    assert_eq!((report.transfers.left, report.coins.left), (1, 1));
    assert_eq!(stay(&report.coins), [(Stays::Payments, 2)]);
}

#[test]
fn a_failed_transfer_stays() {
    let world = World::new();
    world.fund(1, 1, "40");
    world.ok(withdraw(1, &[(1, 1)], true));
    world.ok(Command::Deposit(deposit(&[(1, 1, "5")], (1, 1, 1), (0, 0))));
    world.advance(10);
    world.aggregate_all();
    let wtid = world.store.all::<Prepared>().unwrap().pop().unwrap().key.wtid;
    let failed = batzen_exchange::rules::TransferFailed { wtid, reason: "no such account".to_owned() };
    world.ok(Command::TransferFailed(failed));
    expire_all(&world);
    assert_eq!(stay(&archive(&world, &InMemory::default()).transfers), [(Stays::Unpaid, 1)]);
}

/// Denominations of which the last one expires late.
fn with_late(serial: usize) -> World {
    let mut terms = denoms();
    let (_, row) = &mut terms[serial - 1];
    (row.expire_withdraw, row.expire_deposit) = (at(20 * delay_s()), at(20 * delay_s()));
    row.expire_legal = at(30 * delay_s());
    World::with(&terms, config(), |rules| rules)
}

#[test]
fn a_melted_coin_waits_for_its_fresh_coins() {
    let world = with_late(2);
    world.fund(1, 1, "60");
    world.ok(withdraw(1, &[(1, 1), (3, 1)], true));
    world.ok(melt(1, 1, "4.05", 1, 0, None));
    world.ok(reveal(1, 1, &[(20, 2), (21, 2)], None, 0));
    // One that was never revealed, with the same fate for ever.
    world.ok(melt(3, 1, "4.05", 2, 0, None));
    let archives = InMemory::default();
    expire_all(&world);
    let report = archive(&world, &archives);
    assert_eq!(stay(&report.coins), [(Stays::Unrevealed, 1), (Stays::FreshCoin, 1)]);
    // Link and recoup-refresh work until then.
    assert_eq!(read::links(&world.store, coin(1)).unwrap().len(), 1);
    world.revoke(2);
    world.ok(recoup_refresh(20, 2, 20, 1, 1));
    assert_eq!(world.remaining(1), Some(m("7.95")));
    // The fresh coin leaves with the old one.
    world.advance(30 * delay_s());
    let report = archive(&world, &archives);
    assert_eq!((report.coins.left, stay(&report.coins)), (2, vec![(Stays::Unrevealed, 1)]));
    let store = &world.store;
    let left = [
        store.count::<Melts>(),
        store.count::<MeltByRc>(),
        store.count::<Reveals>(),
        store.count::<RecoupRefreshes>(),
        store.count::<RecoupRefreshCredits>(),
    ];
    assert_eq!(left.map(Result::unwrap), [1, 1, 0, 0, 0]);
    // The melt that is owed can still be found.
    assert!(read::links(&world.store, coin(1)).unwrap().is_empty());
    assert_eq!(world.totals().unrevealed_melts, m("4"));
}

#[test]
fn a_transfer_stays_whole_until_all_that_could_be_in_it_has_expired() {
    let world = with_late(2);
    world.fund(1, 1, "60");
    world.ok(withdraw(1, &[(1, 1), (2, 2)], true));
    world.ok(Command::Deposit(deposit(&[(1, 1, "5"), (2, 2, "2")], (1, 1, 1), (0, 0))));
    world.advance(10);
    world.aggregate_all();
    let wtid = world.store.all::<WireOut>().unwrap().pop().unwrap().key.wtid;
    world.transfer_all();
    expire_all(&world);
    let archives = InMemory::default();
    let report = archive(&world, &archives);
    assert_eq!(stay(&report.transfers), [(Stays::Young, 1)]);
    assert_eq!(stay(&report.coins), [(Stays::Young, 1), (Stays::Payments, 1)]);
    let transfer = read::transfer(&world.store, &world.denoms, wtid).unwrap().unwrap();
    assert_eq!(transfer.deposits.len(), 2);
    world.advance(30 * delay_s());
    assert_eq!(archive(&world, &archives).transfers.left, 1);
    assert!(read::transfer(&world.store, &world.denoms, wtid).unwrap().is_none());
}

#[test]
fn recouped_coins_leave_and_their_reserve_keeps_its_history() {
    let world = World::new();
    world.fund(1, 1, "20");
    world.ok(withdraw(1, &[(1, 1), (2, 2)], true));
    world.revoke(1);
    world.ok(recoup(1, 1, 1, 1));
    expire_all(&world);
    let report = archive(&world, &InMemory::default());
    assert_eq!((report.coins.left, report.rows().0), (1, 2));
    assert_eq!(world.store.count::<Recoups>().unwrap(), 0);
    assert_eq!(world.check_reserve(1), 4);
    // The withdrawal is repeated from the reserve's own rows.
    assert!(world.run(withdraw(1, &[(1, 1), (2, 2)], true)).is_ok());
    assert_eq!(world.refused(recoup(1, 1, 1, 1)), expired());
}

#[test]
fn deposits_into_decided_purses_leave_and_the_purses_stay() {
    let world = World::new();
    world.fund(1, 1, "60");
    world.ok(withdraw(1, &[(1, 1), (2, 1), (3, 1)], true));
    for n in 1..=3 {
        let terms = purse_terms("2", if n == 3 { 9_000_000 } else { 500 });
        world.ok(purse(n, terms, vec![purse_coin(n, 1, "3.7")]).into());
    }
    world.ok(merge(1, 1));
    world.advance(600);
    world.ok(purse_expire(2, None, &[2]));
    expire_all(&world);
    // The third is open: nobody has expired it yet, and its money is owed.
    let archives = InMemory::default();
    let report = archive(&world, &archives);
    assert_eq!((report.purses.left, stay(&report.purses)), (2, vec![(Stays::Undecided, 1)]));
    assert_eq!((report.coins.left, stay(&report.coins)), (2, vec![(Stays::Payments, 1)]));
    assert_eq!(world.store.count::<Purses>().unwrap(), 3);
    assert_eq!(world.store.count::<PurseDeposits>().unwrap(), 1);
    assert_eq!(world.totals().purses, m("3.7"));
    // The reserve's history still shows the payment.
    world.check_reserve(1);
}

#[test]
fn locks_of_melts_that_left_are_collected() {
    let world = World::new();
    world.fund(1, 1, "1000");
    world.ok(withdraw(1, &[(1, 1)], false));
    world.ok(melt(1, 1, "5", 1, 0, Some(7)));
    world.ok(reveal(1, 1, &[(20, 3)], Some(7), 0));
    expire_all(&world);
    assert_eq!(archive(&world, &InMemory::default()).coins.left, 1);
    let lock = CsNonceKey { kind: NonceKind::Melt, nonce: CsNonce::from_bytes([7; 32]) };
    assert!(world.store.get::<CsNonces>(&lock).unwrap().is_some());
    let found = world.store.all::<CsNonces>().unwrap();
    let candidates = nonce_candidates(&world.store, found).unwrap();
    world.ok(Command::Collect(Collect::Nonces(candidates)));
    assert!(world.store.get::<CsNonces>(&lock).unwrap().is_none());
}

#[test]
fn whatever_happened_before_archiving_changes_no_sum_and_nothing_counts_twice() {
    let mut runner = TestRunner::deterministic();
    let mut left = [0; 3];
    let mut stays = BTreeMap::<Stays, u64>::new();
    for round in 0..24 {
        let steps = with_coins(ops(150..151).new_tree(&mut runner).unwrap().current());
        // The denominations expire one after the other.
        let mut terms = denoms();
        terms[1].1.expire_legal = at(3_000 + 2 * delay_s());
        terms[2].1.expire_legal = at(3_000 + 4 * delay_s());
        let world = World::with(&terms, config(), |rules| rules);
        check(&world, &steps, &[20]).unwrap();
        world.aggregate_all();
        world.transfer_all();
        let archives = InMemory::default();
        // Early, when everything must stay, and later, when more and more may leave.
        for seconds in [1_000, 3_000, delay_s(), 2 * delay_s(), 2 * delay_s()] {
            world.advance(seconds);
            let report = archive(&world, &archives);
            if let Some(run) = report.run {
                only_what_is_over(&world, &archives.of_run(run));
            }
            for (sum, (_, moved)) in left.iter_mut().zip(report.named()) {
                *sum += moved.left;
                moved.stay.iter().for_each(|(why, count)| *stays.entry(*why).or_default() += count);
            }
            // A coin that is known has a history that adds up, unless its payments have left before it.
            for found in world.store.all::<Deposits>().unwrap() {
                assert!(
                    world.store.get::<Coins>(&tables_coin(&found.key)).unwrap().is_some(),
                    "a deposit's coin is known"
                );
                if let Some(wtid) = found.row.wtid
                    && let Some(transfer) = read::transfer(&world.store, &world.denoms, wtid).unwrap()
                {
                    assert!(!transfer.deposits.is_empty());
                }
            }
        }
        // Whatever was asked before is asked again: no money moves.
        let before = world.totals();
        let coins = world.store.count::<Coins>().unwrap();
        for step in &steps {
            if let Op::Do(command) = step
                && matches!(
                    **command,
                    Command::Deposit(_)
                        | Command::Refund(_)
                        | Command::Melt(_)
                        | Command::Reveal(_)
                        | Command::Recoup(_)
                        | Command::RecoupRefresh(_)
                        | Command::PurseCreate(_)
                        | Command::PurseDeposit(_)
                        | Command::Withdraw(_)
                )
            {
                let _ = world.run((**command).clone());
            }
        }
        assert_eq!(world.totals(), before, "round {round}");
        assert_eq!(world.store.count::<Coins>().unwrap(), coins, "no coin is known again");
    }
    assert!(left.iter().all(|count| *count > 0), "{left:?}");
    for why in [Stays::Young, Stays::Payments, Stays::Unrevealed] {
        assert!(stays.contains_key(&why), "{stays:?}");
    }
}

/// Asserts that everything in an archive was over when it left.
fn only_what_is_over(world: &World, archive: &Store) {
    let is_over = |serial| {
        let terms = world.denoms.get(serial).unwrap();
        terms.expire_legal.as_secs().unwrap() + delay_s() < world.now().as_secs().unwrap()
    };
    for found in archive.all::<Coins>().unwrap() {
        assert!(is_over(found.row.denom));
    }
    for found in archive.all::<Reveals>().unwrap() {
        assert!(found.row.fresh.0.iter().all(|coin| is_over(coin.denom)));
    }
    let deposits = archive.all::<Deposits>().unwrap();
    for found in &deposits {
        assert!(is_over(found.row.denom));
        let key = batzen_tables::exchange::WtidKey { wtid: found.row.wtid.expect("it was aggregated") };
        let transfer = archive.get::<WireOut>(&key).unwrap();
        assert!(transfer.is_some_and(|transfer| transfer.row.time < world.now()));
        let request = archive.get::<Prepared>(&key).unwrap().expect("nobody has collected it");
        let paid = request.row.finished.expect("it was paid").as_secs().unwrap();
        assert!(paid + delay_s() < world.now().as_secs().unwrap());
    }
    for found in archive.all::<Refunds>().unwrap() {
        assert!(deposits.iter().any(|deposit| deposit.key == found.key.deposit()));
    }
    for found in archive.all::<PurseDeposits>().unwrap() {
        assert!(is_over(found.row.denom));
    }
    // A melt that is gone was revealed.
    for found in archive.all::<Melts>().unwrap() {
        assert!(archive.get::<Reveals>(&found.key).unwrap().is_some());
    }
}

fn tables_coin(key: &batzen_tables::exchange::DepositKey) -> batzen_tables::exchange::CoinKey {
    batzen_tables::exchange::CoinKey { coin_pub: key.coin_pub }
}
