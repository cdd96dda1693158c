//! Rules C1 to C4, P1 to P6, U1 to U5, F2 and F3.

use batzen_crypto::ShortHash;
use batzen_exchange::history::balance_of;
use batzen_exchange::reads::read;
use batzen_exchange::rules::{
    Answer, CoinHistoryItem, Command, ConflictReason, DenomProblem, Deposit, Refunded, Refusal,
};
use batzen_protocol::{Money, Timestamp};
use batzen_tables::exchange::DenomSerial;

use crate::rules::world::*;

/// Issues coins of these denominations from a reserve.
fn issue(world: &World, denoms: &[u32]) {
    world.fund(99, 99, "1000");
    for (n, serial) in denoms.iter().enumerate() {
        world.ok(withdraw(99, &[(u8::try_from(n + 1).unwrap(), *serial)], false));
    }
}

fn conflict(refusal: Refusal) -> (usize, ConflictReason, Vec<CoinHistoryItem>, Money) {
    let Refusal::CoinConflict { index, conflict } = refusal else { panic!("{refusal:?}") };
    let effects = conflict.history.items.iter().map(CoinHistoryItem::effect);
    let value = if conflict.history.denom == DenomSerial(1) { m("10") } else { m("2") };
    assert_eq!(balance_of(value, effects), Some(conflict.history.remaining), "the history adds up");
    (index, conflict.reason, conflict.history.items, conflict.history.remaining)
}

#[test]
fn a_refund_sum_that_overflows_is_refused() {
    let world = World::new();
    issue(&world, &[1]);
    world.ok(Command::Deposit(deposit(&[(1, 1, "4")], (1, 1, 1), (0, 100))));
    world.ok(refund((1, 1, 1), 1, "1"));
    let refusal = world.refused(refund((1, 1, 1), 2, "4503599627370496.99999999"));
    let Refusal::CoinConflict { conflict, .. } = refusal else { panic!("{refusal}") };
    assert!(matches!(conflict.reason, ConflictReason::RefundAboveDeposit { .. }));
}

#[test]
fn a_deposit_is_accepted_once_and_repetitions_are_confirmed() {
    let world = World::new();
    issue(&world, &[1, 1]);
    let request = deposit(&[(1, 1, "3")], (1, 1, 1), (0, 50));
    let Answer::Deposit(first) = world.ok(Command::Deposit(request.clone())) else { panic!() };
    assert_eq!(first.exchange_time, at(0));
    assert_eq!(first.coins[0].amount_without_fee, m("2.9"));
    world.advance(10);
    world.ok(Command::Deposit(deposit(&[(1, 1, "7")], (1, 2, 1), (0, 50))));
    // Nothing is left. The repetition is still confirmed, with the time and wire deadline of the first
    // request.
    let later = Deposit { wire_deadline: at(99), ..request.clone() };
    let Answer::Deposit(again) = world.ok(Command::Deposit(later)) else { panic!() };
    assert_eq!((again.exchange_time, again.coins[0].wire_deadline), (at(0), at(50)));
    assert!(again.coins[0].repeated);
    world.advance(2_500);
    assert!(world.run(Command::Deposit(request.clone())).is_ok(), "even after the coin has expired");
    // Any other data is a conflict, which the stored deposit proves.
    for other in [
        Deposit { payto_uri: payto(2), h_payto: h_payto(2), ..request.clone() },
        Deposit { wallet_time: at(1), ..request.clone() },
        deposit(&[(1, 1, "4")], (1, 1, 1), (0, 50)),
    ] {
        let (_, reason, items, _) = conflict(world.refused(Command::Deposit(other)));
        assert_eq!((reason, items.len()), (ConflictReason::OtherDeposit, 2));
    }
    assert_eq!(world.totals().deposits, m("10"));
}

#[test]
fn a_repeated_deposit_keeps_its_timestamp_after_the_clock_stepped_back() {
    let world = World::new();
    issue(&world, &[1, 1]);
    world.advance(100);
    let request = deposit(&[(1, 1, "3")], (1, 1, 1), (0, 500));
    let Answer::Deposit(first) = world.ok(Command::Deposit(request.clone())) else { panic!() };
    assert_eq!(first.exchange_time, at(100));
    world.step_back(60);
    let Answer::Deposit(again) = world.ok(Command::Deposit(request.clone())) else { panic!() };
    assert_eq!(again.exchange_time, first.exchange_time);
    // A coin that joins the contract later gets the same time, and keeps it when it is deposited alone.
    let both = deposit(&[(1, 1, "3"), (2, 1, "2")], (1, 1, 1), (0, 500));
    let Answer::Deposit(joined) = world.ok(Command::Deposit(both)) else { panic!() };
    assert_eq!(joined.exchange_time, first.exchange_time);
    let alone = deposit(&[(2, 1, "2")], (1, 1, 1), (0, 500));
    let Answer::Deposit(alone) = world.ok(Command::Deposit(alone)) else { panic!() };
    assert_eq!(alone.exchange_time, first.exchange_time);
}

#[test]
fn a_double_spend_is_refused_with_proof() {
    let world = World::new();
    issue(&world, &[1]);
    world.ok(Command::Deposit(deposit(&[(1, 1, "6")], (1, 1, 1), (0, 50))));
    let refusal = world.refused(Command::Deposit(deposit(&[(1, 1, "5")], (2, 1, 1), (0, 50))));
    let (index, reason, items, remaining) = conflict(refusal);
    assert_eq!((index, reason), (0, ConflictReason::Insufficient { requested: m("5") }));
    assert_eq!((items.len(), remaining), (1, m("4")));
    // The same in one batch with the first spending.
    let verdicts = world.batch(&[
        Command::Deposit(deposit(&[(1, 1, "4")], (3, 1, 1), (0, 50))),
        Command::Deposit(deposit(&[(1, 1, "4")], (4, 1, 1), (0, 50))),
    ]);
    assert!(verdicts[0].is_ok());
    let (_, _, items, remaining) = conflict(verdicts[1].clone().unwrap_err());
    assert_eq!((items.len(), remaining), (2, m("0")));
}

#[test]
fn a_batch_is_accepted_as_a_whole_with_one_time() {
    let world = World::new();
    issue(&world, &[1, 1, 2]);
    world.ok(Command::Deposit(deposit(&[(1, 1, "3")], (1, 1, 1), (0, 50))));
    world.advance(20);
    // A request that contradicts itself.
    let twice = deposit(&[(1, 1, "3"), (3, 2, "2"), (3, 2, "1")], (1, 1, 1), (0, 50));
    assert_eq!(world.refused(Command::Deposit(twice)), Refusal::CoinDuplicate { index: 2 });
    // The first coin contradicts its history: nothing happens to the second.
    let other = deposit(&[(3, 2, "2"), (1, 1, "4")], (1, 1, 1), (0, 50));
    let (index, reason, ..) = conflict(world.refused(Command::Deposit(other)));
    assert_eq!((index, reason), (1, ConflictReason::OtherDeposit));
    assert_eq!(world.remaining(3), None);
    let good = deposit(&[(1, 1, "3"), (2, 1, "5"), (3, 2, "2")], (1, 1, 1), (0, 50));
    let Answer::Deposit(accepted) = world.ok(Command::Deposit(good.clone())) else { panic!() };
    assert_eq!(accepted.exchange_time, at(0), "the time of the first acceptance of any coin");
    let repeated: Vec<bool> = accepted.coins.iter().map(|coin| coin.repeated).collect();
    assert_eq!(repeated, [true, false, false]);
    world.advance(20);
    let Answer::Deposit(again) = world.ok(Command::Deposit(good)) else { panic!() };
    assert_eq!(again.exchange_time, at(0));
    // A deposit of one of them alone gets the same answer.
    let Answer::Deposit(single) = world.ok(Command::Deposit(deposit(&[(2, 1, "5")], (1, 1, 1), (0, 50))))
    else {
        panic!()
    };
    assert_eq!(single.exchange_time, at(0));
    // The same coin twice in a batch is a repetition.
    let twice = deposit(&[(2, 1, "2"), (2, 1, "2")], (1, 2, 1), (0, 50));
    world.ok(Command::Deposit(twice));
    assert_eq!(world.remaining(2), Some(m("3")));
    world.totals();
}

#[test]
fn a_coin_keeps_its_denomination_and_age() {
    let world = World::new();
    issue(&world, &[1, 2]);
    world.ok(Command::Deposit(deposit(&[(1, 1, "1")], (1, 1, 1), (0, 50))));
    let other = world.refused(Command::Deposit(deposit(&[(1, 2, "1")], (1, 2, 1), (0, 50))));
    assert_eq!(conflict(other).1, ConflictReason::OtherDenomination);
    let mut aged = deposit(&[(1, 1, "1")], (1, 2, 1), (0, 50));
    aged.coins[0].coin.h_age = Some(ShortHash::from_bytes([1; 32]));
    assert_eq!(conflict(world.refused(Command::Deposit(aged))).1, ConflictReason::OtherAgeCommitment);
}

#[test]
fn contributions_and_deadlines_have_limits() {
    let world = World::new();
    let run = |contribution, deadlines| {
        world.refused(Command::Deposit(deposit(&[(1, 2, contribution)], (1, 1, 1), deadlines)))
    };
    assert_eq!(run("2.1", (0, 5)), Refusal::ContributionAboveValue { index: 0 });
    assert_eq!(run("0.1", (0, 5)), Refusal::ContributionBelowFee { index: 0 });
    assert_eq!(run("1", (6, 5)), Refusal::DeadlinesImpossible);
    let mut never = deposit(&[(1, 2, "1")], (1, 1, 1), (0, 5));
    never.wire_deadline = Timestamp::NEVER;
    assert_eq!(world.refused(Command::Deposit(never)), Refusal::DeadlinesImpossible);
    world.advance(2_001);
    assert_eq!(run("1", (0, 5)), unusable(2, DenomProblem::Expired));
}

#[test]
fn a_wire_deadline_in_the_past_is_queued_as_now() {
    let world = World::new();
    issue(&world, &[1]);
    world.advance(100);
    world.ok(Command::Deposit(deposit(&[(1, 1, "1")], (1, 1, 1), (0, 3))));
    assert_eq!(read::next_ready(&world.store, None).unwrap(), Some(at(100)));
    assert_eq!(read::next_ready(&world.store, Some(at(100))).unwrap(), None);
    assert_eq!(read::deposit(&world.store, &deposit_key(1, 1, 1)).unwrap().unwrap().wire_deadline, at(3));
}

#[test]
fn refunds_credit_the_coin_less_the_fee_up_to_the_deposit() {
    let world = World::new();
    issue(&world, &[1]);
    assert_eq!(world.refused(refund((1, 1, 1), 1, "1")), Refusal::CoinUnknown);
    world.ok(Command::Deposit(deposit(&[(1, 1, "6")], (1, 1, 1), (50, 50))));
    assert_eq!(world.refused(refund((1, 1, 2), 1, "1")), Refusal::DepositUnknown);
    assert_eq!(world.refused(refund((1, 1, 1), 1, "0.02")), Refusal::RefundBelowFee);
    let repeated = |command| {
        let Answer::Refund(Refunded { repeated }) = world.ok(command) else { panic!() };
        repeated
    };
    assert!(!repeated(refund((1, 1, 1), 1, "2")));
    assert!(repeated(refund((1, 1, 1), 1, "2")));
    assert_eq!(world.remaining(1), Some(m("5.97")));
    let (_, reason, items, _) = conflict(world.refused(refund((1, 1, 1), 1, "3")));
    assert_eq!((reason, items.len()), (ConflictReason::RefundOtherAmount, 2));
    let (_, reason, ..) = conflict(world.refused(refund((1, 1, 1), 2, "4.01")));
    assert_eq!(reason, ConflictReason::RefundAboveDeposit { requested: m("4.01") });
    // A complete refund waives the deposit fee for the merchant. The coin gets the fee back as part of the
    // contribution, and not a second time.
    assert!(!repeated(refund((1, 1, 1), 2, "4")));
    assert_eq!(world.remaining(1), Some(m("9.94")));
    let totals = world.totals();
    assert_eq!(
        (totals.deposits, totals.income.refund, totals.income.deposit),
        (sum("0"), sum("0.06"), sum("0"))
    );

    world.advance(100);
    world.aggregate_all();
    assert_eq!(world.transfer_all(), vec![]);
    assert!(repeated(refund((1, 1, 1), 2, "4")), "a repetition is confirmed after aggregation");
    assert_eq!(world.refused(refund((1, 1, 1), 3, "0.1")), Refusal::DepositPaid);
    assert_eq!(world.totals().income.deposit, m("0"));
}

#[test]
fn a_coin_refunded_in_the_same_batch_can_pay() {
    let world = World::new();
    issue(&world, &[1]);
    world.ok(Command::Deposit(deposit(&[(1, 1, "10")], (1, 1, 1), (50, 50))));
    let verdicts = world
        .batch(&[Command::Deposit(deposit(&[(1, 1, "2")], (1, 2, 1), (50, 50))), refund((1, 1, 1), 1, "5")]);
    assert!(verdicts.iter().all(Result::is_ok), "{verdicts:?}");
    assert_eq!(world.remaining(1), Some(m("2.97")));
    world.totals();
}

#[test]
fn an_amount_of_zero_adds_no_history() {
    let world = World::new();
    issue(&world, &[3, 2]);
    let free = deposit(&[(1, 3, "0")], (1, 1, 1), (0, 50));
    assert_eq!(world.refused(Command::Deposit(free)), Refusal::ContributionBelowFee { index: 0 });
    assert_eq!(world.refused(melt(1, 3, "0", 1, 0, None)), Refusal::MeltBelowFee);
    world.ok(Command::Deposit(deposit(&[(2, 2, "1")], (1, 1, 1), (50, 50))));
    assert_eq!(world.refused(refund((2, 1, 1), 1, "0")), Refusal::RefundBelowFee);
    let history = |n| read::coin_history(&world.store, &world.denoms, coin(n)).unwrap();
    assert_eq!(history(1), None);
    assert_eq!(history(2).unwrap().items.len(), 1);
}
