//! Rules R11 and X1 to X4: garbage collection removes what nobody needs and changes no sum.

use batzen_crypto::{Cipher, CsNonce, EddsaPublicKey, Wtid};
use batzen_exchange::reads::garbage::{nonce_candidates, purse_candidates, reserve_candidates};
use batzen_exchange::reads::read;
use batzen_exchange::rules::garbage::{COLLECT_DELAY, KYC_PATIENCE, is_transfer_over};
use batzen_exchange::rules::{
    Answer, Closed, Collect, Collected, Command, DenomProblem, KycRequirement, PurseCreate, PurseExpired,
    PurseTerms, Refusal, RequestClose, RequireKyc, RulesConfig,
};
use batzen_protocol::Duration;
use batzen_store::{ChangeSet, CommitOutcome, Record};
use batzen_tables::exchange::{
    Closings, CsNonceKey, CsNonces, DenomSerial, HistoryRequests, KycProcesses, KycRequirementKey,
    KycRequirementRow, KycRequirements, NonceKind, PastTransfers, Prepared, Purses, ReserveKey, Reserves,
    ReservesIn, WireFeeKey, WireFeeRow, WireFees, WireOut, Withdrawals,
};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use crate::rules::compare::{check, with_coins};
use crate::rules::generate::ops;
use crate::rules::world::*;

/// Time that reserves are kept, in seconds.
const KEPT_S: u64 = 4_000;

fn kept_for(seconds: u64) -> RulesConfig {
    RulesConfig { legal_reserve_expiration: Duration::from_secs(seconds), ..config() }
}

fn world() -> World {
    World::with(&denoms(), kept_for(KEPT_S), |rules| rules)
}

/// The delay, in seconds.
fn delay_s() -> u64 {
    COLLECT_DELAY.as_secs().unwrap()
}

fn run(world: &World, command: Collect) -> Collected {
    match world.ok(Command::Collect(command)) {
        Answer::Collect(collected) => collected,
        other => panic!("{other:?}"),
    }
}

fn collect_transfers(world: &World) -> Collected {
    let rows = world.store.all::<Prepared>().unwrap();
    run(world, Collect::Transfers(rows.into_iter().map(|found| found.key.wtid).collect()))
}

fn collect_reserves(world: &World) -> Collected {
    let found = world.store.all::<Reserves>().unwrap();
    let candidates = reserve_candidates(&world.store, &found).unwrap();
    run(world, Collect::Reserves(candidates.into_iter().map(|(candidate, _)| candidate).collect()))
}

fn collect_nonces(world: &World) -> Collected {
    let found = world.store.all::<CsNonces>().unwrap();
    run(world, Collect::Nonces(nonce_candidates(&world.store, found).unwrap()))
}

fn collect_purses(world: &World) -> Collected {
    let found = world.store.all::<Purses>().unwrap();
    run(world, Collect::Purses(purse_candidates(&world.store, &found).unwrap()))
}

/// Collects everything, and asserts that no sum changes.
fn collect(world: &World) -> [u64; 4] {
    let before = world.totals();
    let (transfers, purses) = (collect_transfers(world), collect_purses(world));
    let removed = [transfers, collect_reserves(world), collect_nonces(world), purses];
    assert_eq!(world.totals(), before, "collecting garbage changes no sum");
    removed.map(|collected| collected.removed)
}

fn rows(world: &World) -> [u64; 5] {
    let store = &world.store;
    [
        store.count::<Reserves>().unwrap(),
        store.count::<ReservesIn>().unwrap(),
        store.count::<Withdrawals>().unwrap(),
        store.count::<Closings>().unwrap(),
        store.count::<HistoryRequests>().unwrap(),
    ]
}

/// Closes reserve `n`. Returns the transfer's identifier.
fn close(world: &World, n: u8, wtid_n: u8) -> Wtid {
    match world.ok(close_reserve(reserve(n), n, wtid_n).into()) {
        Answer::CloseReserve(Closed::Closed { wtid, .. }) => wtid,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_empty_reserve_goes_with_all_that_belongs_to_it() {
    let world = world();
    world.fund(1, 1, "12.5");
    world.ok(withdraw(1, &[(1, 1), (2, 2)], true));
    world.ok(history(1, 5, "0.4"));
    world.fund(2, 2, "5");
    assert_eq!(rows(&world), [2, 2, 2, 0, 1]);
    // Its time is not over.
    world.advance(delay_s() + KEPT_S);
    assert_eq!(collect(&world), [0, 0, 0, 0]);
    world.advance(1);
    let collected = collect_reserves(&world);
    assert_eq!(collected, Collected { removed: 1, rows: 5 });
    assert_eq!(rows(&world), [1, 1, 0, 0, 0]);
    // Reserve 2 has money.
    assert_eq!(world.balance(2), m("5"));
    assert_eq!(collect(&world), [0, 0, 0, 0]);
}

#[test]
fn money_that_comes_back_to_a_removed_reserve_is_paid_once() {
    let world = world();
    world.fund(1, 1, "2");
    world.ok(withdraw(1, &[(1, 3)], false));
    world.advance(1_000);
    assert_eq!(close(&world, 1, 7), Wtid::from_bytes(*reserve(1).as_bytes()));
    world.advance(KEPT_S + delay_s() + 1);
    // The bank has not paid yet.
    assert_eq!(collect(&world), [0, 0, 1, 0]);
    assert_eq!(world.transfer_all().len(), 1);
    world.advance(delay_s());
    assert_eq!(collect(&world), [0, 1, 0, 0], "the transfer is too young, but it is done");
    world.advance(1);
    assert_eq!(collect(&world), [1, 0, 0, 0]);
    assert_eq!(rows(&world), [0; 5]);
    assert!(world.transfer_all().is_empty());

    // A reserve that is gone is unknown.
    assert_eq!(world.refused(withdraw(1, &[(1, 3)], false)), unusable(3, DenomProblem::Expired));
    assert_eq!(world.refused(history(1, 5, "1")), Refusal::HistoryUnaffordable);
    assert_eq!(world.run(close_reserve(reserve(1), 1, 8).into()), Ok(Answer::CloseReserve(Closed::NotDue)));

    // The same key again: the old withdrawal is not repeated, and the transfer gets an identifier of its own.
    let sum_before = world.totals();
    world.fund(1, 2, "3");
    assert_eq!(world.balance(1), m("3"));
    assert_eq!(world.refused(withdraw(1, &[(1, 3)], false)), unusable(3, DenomProblem::Expired));
    assert_eq!(world.check_reserve(1), 1, "it has a new history");
    assert_eq!(world.totals().wired_in, sum_before.wired_in.checked_add(m("3")).unwrap());
}

/// Fees for a time as late as that of the second closing.
fn late_fees(world: &World) {
    world.insert::<WireFees>(
        &WireFeeKey { method: METHOD.to_owned(), start: at(5_000) },
        &WireFeeRow { end: at(10_000_000), wire_fee: m("0.01"), closing_fee: m("0.01"), master_sig: sig(0) },
    );
}

#[test]
fn an_identifier_of_a_removed_transfer_is_not_used_again() {
    let world = world();
    late_fees(&world);
    world.fund(1, 1, "2");
    world.advance(600);
    close(&world, 1, 7);
    world.fund(1, 2, "2");
    world.advance(600);
    // The second closing has a random identifier, which anybody may choose as the key of a reserve.
    assert_eq!(close(&world, 1, 7), wtid(7));
    world.transfer_all();
    world.advance(KEPT_S + delay_s() + 1);
    assert_eq!(collect(&world), [2, 1, 0, 0]);
    assert_eq!(world.store.count::<PastTransfers>().unwrap(), 2);

    world.fund(1, 3, "4");
    world.advance(600);
    assert_eq!(close(&world, 1, 8), wtid(8), "its own key was used as an identifier");
    let chosen = EddsaPublicKey::from_bytes([7; 32]);
    let Command::Credits(mut page) = credits(&[(1, 4, "4", 1, world.now())], 4) else { panic!() };
    page.credits[0].reserve_pub = chosen;
    world.ok(Command::Credits(page));
    world.advance(600);
    let taken = world.run(close_reserve(chosen, 1, 7).into());
    assert_eq!(taken, Err(Refusal::WtidTaken));
    let Ok(Answer::CloseReserve(Closed::Closed { wtid: used, .. })) =
        world.run(close_reserve(chosen, 1, 9).into())
    else {
        panic!()
    };
    assert_eq!(used, wtid(9));
    assert_eq!(world.transfer_all().len(), 2);
}

#[test]
fn a_reserve_stays_as_long_as_anything_may_need_it() {
    // The denomination is not forgotten yet.
    let mut late = denoms();
    late[0].1.expire_legal = at(10_000_000);
    let world = World::with(&late, kept_for(KEPT_S), |rules| rules);
    world.fund(1, 1, "10.1");
    world.ok(withdraw(1, &[(1, 1)], false));
    // It has an order to close it, which the closer has not seen.
    world.fund(2, 2, "3.01");
    world.ok(RequestClose { requested: None, ..request_close(2, 3, 2) }.into());
    world.ok(withdraw(2, &[(2, 3), (3, 2)], true));
    // It was asked for its history a moment ago, with all that it had.
    world.fund(3, 3, "1");
    // Nothing speaks against this one.
    world.fund(4, 4, "2");
    world.ok(withdraw(4, &[(4, 2)], false));
    world.advance(KEPT_S + delay_s() + 1);
    world.ok(history(3, KEPT_S + delay_s(), "1"));
    let all = world.store.all::<Reserves>().unwrap();
    let mut candidates: Vec<_> =
        reserve_candidates(&world.store, &all).unwrap().into_iter().map(|(candidate, _)| candidate).collect();
    // A candidate that does not name what its rows depend on is not removed either.
    let accounts = std::mem::take(&mut candidates[3].accounts);
    assert_eq!(run(&world, Collect::Reserves(candidates.clone())), Collected::default());
    candidates[3].accounts = accounts;
    assert_eq!(run(&world, Collect::Reserves(candidates)).removed, 1);
    assert!(read::reserve(&world.store, reserve(4)).unwrap().is_none());
    world.totals();
}

#[test]
fn a_transfer_that_the_bank_has_not_executed_long_ago_stays() {
    let world = world();
    world.fund(1, 1, "10.1");
    world.ok(withdraw(1, &[(1, 1)], false));
    world.ok(Command::Deposit(deposit(&[(1, 1, "5")], (1, 1, 1), (0, 0))));
    world.advance(10);
    world.aggregate_all();
    world.advance(2 * delay_s());
    assert_eq!(collect_transfers(&world), Collected::default(), "it is not executed");
    assert_eq!(world.transfer_all().len(), 1);
    world.advance(delay_s());
    assert_eq!(collect_transfers(&world), Collected::default(), "it was executed a moment ago");
    world.advance(1);
    let row = world.store.all::<Prepared>().unwrap().pop().unwrap();
    assert!(is_transfer_over(&row.row, world.now()));
    let before = world.totals();
    assert_eq!(collect_transfers(&world), Collected { removed: 1, rows: 1 });
    assert_eq!(world.totals(), before);
    // What the merchant was paid for is still known, and its identifier is taken.
    assert_eq!(world.store.count::<PastTransfers>().unwrap(), 0);
    assert!(world.store.get::<WireOut>(&row.key).unwrap().is_some());
}

fn lock(kind: NonceKind, n: u8) -> CsNonceKey {
    CsNonceKey { kind, nonce: CsNonce::from_bytes([n; 32]) }
}

#[test]
fn a_nonce_stays_locked_as_long_as_its_denominations_sign() {
    let mut terms = denoms();
    // A denomination that begins when the first one has ended.
    let (_, mut next) = denom(4, Cipher::Cs, "1", ["0.01", "0", "0", "0.01"]);
    next.expire_withdraw = at(10 * delay_s());
    next.expire_deposit = at(11 * delay_s());
    next.expire_legal = at(12 * delay_s());
    let world = World::with(&terms, kept_for(KEPT_S), |rules| rules);
    world.fund(1, 1, "1000");
    world.ok(withdraw(1, &[(1, 1), (5, 3)], true));
    world.ok(melt(1, 1, "5", 1, 0, Some(7)));
    world.ok(melt(1, 1, "2", 2, 0, Some(8)));
    // Both melts are older than the denomination that one of them is revealed with.
    terms.push((DenomSerial(4), next.clone()));
    world.denoms.insert(DenomSerial(4), &next);
    world.ok(reveal(1, 1, &[(20, 4)], Some(7), 0));
    world.advance(1_000 + delay_s());
    assert_eq!(collect_nonces(&world).removed, 0);
    world.advance(1);
    assert_eq!(collect_nonces(&world).removed, 2);
    assert!(
        world.store.get::<CsNonces>(&lock(NonceKind::Melt, 7)).unwrap().is_some(),
        "it signed for the new one"
    );
    assert!(world.store.get::<CsNonces>(&lock(NonceKind::Melt, 8)).unwrap().is_none());
    assert!(world.store.get::<CsNonces>(&lock(NonceKind::Withdraw, 1)).unwrap().is_none());
    // Under the first key the nonce signs nothing any more; under the second it is as good as new, once.
    assert_eq!(world.refused(withdraw(1, &[(9, 3)], false)), unusable(3, DenomProblem::Expired));
    let with_nonce = |planchet, serial, n| {
        let Command::Withdraw(mut command) = withdraw(1, &[(planchet, serial)], false) else { panic!() };
        command.planchets[0].nonce = Some(CsNonce::from_bytes([n; 32]));
        Command::Withdraw(command)
    };
    world.ok(with_nonce(10, 4, 1));
    assert_eq!(world.refused(with_nonce(11, 4, 1)), Refusal::NonceReuse { index: 0 });
    // The melt that kept its lock cannot sign with another one's planchets; the repetition is answered.
    assert!(world.run(reveal(1, 1, &[(20, 4)], Some(7), 1)).is_ok());
    // The reveal of a melt whose lock was removed locks its secret again.
    world.ok(reveal(1, 2, &[(21, 4)], Some(8), 0));
    assert!(world.store.get::<CsNonces>(&lock(NonceKind::Melt, 8)).unwrap().is_some());
    assert_eq!(collect_nonces(&world).removed, 0);
    world.advance(10 * delay_s());
    assert_eq!(collect_nonces(&world).removed, 3);
}

/// A purse with coin `n`, and a contract.
fn create(n: u8, terms: PurseTerms) -> Command {
    let contract = Some(purse_contract(n));
    PurseCreate { contract, ..purse(n, terms, vec![purse_coin(n, 1, "3")]) }.into()
}

fn request(n: u8, reserve_n: u8, fee: &str) -> Command {
    reserve_purse(n, reserve_n, Some(fee), purse_terms("1", 500)).into()
}

#[test]
fn refunded_purses_go_and_their_coins_stay_safe() {
    let world = world();
    world.fund(1, 1, "30.5");
    world.ok(withdraw(1, &[(1, 1), (2, 1), (3, 1)], true));
    world.ok(create(1, purse_terms("2", 500)));
    world.ok(create(2, purse_terms("2", 500)));
    world.ok(create(3, purse_terms("2", 500)));
    // One is paid, and one is for a reserve that paid a fee for it.
    world.ok(merge(2, 1));
    world.ok(request(4, 1, "0.2"));
    world.ok(request(5, 1, "0"));
    world.advance(600);
    for command in [
        purse_expire(1, None, &[1]),
        purse_expire(3, None, &[3]),
        purse_expire(4, Some(1), &[]),
        purse_expire(5, Some(1), &[]),
    ] {
        world.ok(command);
    }
    world.advance(KEPT_S + delay_s());
    assert_eq!(collect_purses(&world), Collected::default(), "they are kept as long as reserves");
    world.advance(1);
    let before = world.totals();
    // Two with a coin and a contract each, and one with a merge.
    assert_eq!(collect_purses(&world), Collected { removed: 3, rows: 3 * 2 + 2 });
    assert_eq!(world.totals(), before);
    let left: Vec<_> =
        world.store.all::<Purses>().unwrap().into_iter().map(|found| found.key.purse_pub).collect();
    assert_eq!(left, [purse_pub(2), purse_pub(4)], "what a reserve's history needs stays");
    world.check_reserve(1);
    // Its coin has everything back, and what it signed for the purse is worth nothing in another one.
    assert_eq!(world.remaining(1), Some(m("10")));
    assert_eq!(world.refused(create(1, purse_terms("2", 500))), Refusal::PurseTooLate);
    let later = create(1, purse_terms("2", 10 * delay_s()));
    assert_eq!(world.refused(later), unusable(1, DenomProblem::Expired));
    assert_eq!(world.run(purse_expire(1, None, &[1])), Ok(Answer::PurseExpire(PurseExpired::NotDue)));
    assert_eq!(collect_reserves(&world), Collected::default());
}

#[test]
fn kyc_rows_without_a_customer_go_and_come_back() {
    let world = world();
    let require_as =
        |n, row| Command::RequireKyc(RequireKyc { h_payto: h_payto(n), checks: "id".to_owned(), row });
    let require = |n| require_as(n, u64::from(n));
    let start = |n| start_kyc(h_payto(n), "kyc-provider-clerk", "t");
    let all = |world: &World| -> Vec<_> {
        world.store.all::<KycRequirements>().unwrap().into_iter().map(|found| found.key).collect()
    };
    // Each account has a row without a number, too.
    let keys = |world: &World| -> Vec<_> { all(world).into_iter().filter(|key| key.row != 0).collect() };
    let requirements = |world: &World| run(world, Collect::KycRequirements(keys(world))).removed;
    let processes = |world: &World| {
        let found = world.store.all::<KycProcesses>().unwrap();
        run(world, Collect::KycProcesses(found.into_iter().map(|found| found.key).collect())).removed
    };
    world.ok(require(1));
    world.ok(require(2));
    world.ok(start(2));
    world.ok(start(3));
    // An account whose customer was identified.
    world.ok(finish_kyc(h_payto(3), "kyc-provider-clerk", "t", Duration::from_days(365)));
    let patience_s = KYC_PATIENCE.as_secs().unwrap();
    world.advance(patience_s + delay_s());
    assert_eq!([requirements(&world), processes(&world)], [0, 0]);
    // Somebody asks again.
    world.ok(require(1));
    world.advance(1);
    assert_eq!(requirements(&world), 0, "one was asked for again, the other's customer has begun");
    assert_eq!(processes(&world), 1, "nobody continued it");
    assert_eq!(requirements(&world), 1);
    world.advance(patience_s + delay_s());
    assert_eq!(requirements(&world), 1);
    // It comes back with another number.
    assert_eq!(world.ok(require_as(1, 9)), Answer::RequireKyc(KycRequirement { row: 9 }));
    assert_eq!(keys(&world), [KycRequirementKey { h_payto: h_payto(1), row: 9 }]);
    // An identification is kept as long as a reserve after it has expired.
    world.advance(366 * delay_s() + KEPT_S);
    assert_eq!(processes(&world), 1);
    assert_eq!(world.store.count::<KycProcesses>().unwrap(), 0);
    // A row of an older program gets its time first.
    let key = keys(&world).pop().unwrap();
    let old = world.store.get::<KycRequirements>(&key).unwrap().unwrap().row;
    let mut changes = ChangeSet::new();
    changes.update::<KycRequirements>(&key, &old, &KycRequirementRow { asked: None, ..old.clone() });
    assert_eq!(world.store.commit(&changes).unwrap(), CommitOutcome::Committed);
    assert_eq!(requirements(&world), 0);
    world.advance(patience_s + delay_s());
    assert_eq!(requirements(&world), 0);
    world.advance(1);
    assert_eq!(requirements(&world), 1);
    assert_eq!(run(&world, Collect::KycRequirements(all(&world))).removed, 2);
    assert_eq!(world.store.count::<KycRequirements>().unwrap(), 0);
}

#[test]
fn whatever_happened_before_collecting_changes_no_sum() {
    let mut runner = TestRunner::deterministic();
    let mut removed = [0; 4];
    for _ in 0..24 {
        let steps = with_coins(ops(150..151).new_tree(&mut runner).unwrap().current());
        let world = World::new();
        check(&world, &steps, &[20]).unwrap();
        world.aggregate_all();
        world.transfer_all();
        for years in [3, 3, 3] {
            world.advance(years * 365 * 24 * 3_600);
            for (sum, count) in removed.iter_mut().zip(collect(&world)) {
                *sum += count;
            }
        }
        // All that is left of a removed reserve is what it added to the sums.
        for found in world.store.all::<Withdrawals>().unwrap() {
            let key = ReserveKey { reserve_pub: found.key.reserve_pub };
            assert!(world.store.get::<Reserves>(&key).unwrap().is_some(), "{:?}", key.to_bytes());
        }
    }
    assert!(removed.iter().all(|count| *count > 0), "{removed:?}");
}
