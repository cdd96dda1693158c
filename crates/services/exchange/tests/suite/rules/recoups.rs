//! Rules Y1 to Y5 and R8, and zombie coins.

use batzen_exchange::reads::read;
use batzen_exchange::rules::{Answer, Command, ConflictReason, DenomProblem, Recoup, RecoupRefresh, Refusal};

use crate::rules::world::*;

pub(super) fn recoup(n: u8, serial: u32, planchet: u8, reserve_n: u8) -> Command {
    Command::Recoup(Recoup {
        coin: presented(n, serial),
        coin_blind: [n; 32],
        coin_sig: sig(n),
        h_coin_ev: ev(planchet),
        reserve_pub: reserve(reserve_n),
    })
}

pub(super) fn recoup_refresh(n: u8, serial: u32, planchet: u8, old: u8, rc_n: u8) -> Command {
    Command::RecoupRefresh(RecoupRefresh {
        coin: presented(n, serial),
        coin_blind: [n; 32],
        coin_sig: sig(n),
        h_coin_ev: ev(planchet),
        old_coin_pub: coin(old),
        rc: rc(rc_n),
    })
}

#[test]
fn recoup_credits_the_remaining_value_to_the_reserve() {
    let world = World::new();
    world.fund(1, 1, "20");
    world.ok(withdraw(1, &[(1, 1)], false));
    world.ok(Command::Deposit(deposit(&[(1, 1, "4")], (1, 1, 1), (900, 900))));
    assert_eq!(world.refused(recoup(1, 1, 1, 1)), unusable(1, DenomProblem::NotRevoked));
    world.revoke(1);
    world.advance(100);
    assert_eq!(world.refused(recoup(1, 1, 2, 1)), Refusal::PlanchetUnknown);
    assert_eq!(read::withdrawal_of(&world.store, ev(1)).unwrap().unwrap().0, reserve(1));
    let Answer::Recoup(first) = world.ok(recoup(1, 1, 1, 1)) else { panic!() };
    assert_eq!((first.amount, first.reserve_pub, first.repeated), (m("6"), reserve(1), false));
    assert_eq!(world.balance(1), m("15.9"));
    let row = read::reserve(&world.store, reserve(1)).unwrap().unwrap();
    assert_eq!(row.expiration, at(600), "the reserve's life starts again");
    let Answer::Recoup(again) = world.ok(recoup(1, 1, 1, 1)) else { panic!() };
    assert!(again.repeated);
    // A refund refills the coin, which can then be recouped again.
    world.ok(refund((1, 1, 1), 1, "2"));
    let Answer::Recoup(second) = world.ok(recoup(1, 1, 1, 1)) else { panic!() };
    assert_eq!((second.amount, second.repeated), (m("1.97"), false));
    assert_eq!(world.balance(1), m("17.87"));
    assert_eq!(world.check_reserve(1), 4);
    world.totals();
}

#[test]
fn a_spent_coin_is_not_recouped() {
    let world = World::new();
    world.fund(1, 1, "20");
    world.ok(withdraw(1, &[(1, 2)], false));
    world.ok(Command::Deposit(deposit(&[(1, 2, "2")], (1, 1, 1), (0, 900))));
    world.revoke(2);
    let Refusal::CoinConflict { conflict, .. } = world.refused(recoup(1, 2, 1, 1)) else { panic!() };
    assert!(matches!(conflict.reason, ConflictReason::Insufficient { .. }));
    assert_eq!(conflict.history.items.len(), 1);
}

#[test]
fn a_never_used_coin_is_recouped_whole() {
    let world = World::new();
    world.fund(1, 1, "20");
    world.ok(withdraw(1, &[(1, 2)], false));
    world.revoke(2);
    world.ok(recoup(1, 2, 1, 1));
    assert_eq!((world.balance(1), world.remaining(1)), (m("20"), Some(m("0"))));
    // One kind of recoup does not count as a repetition of the other.
    world.fund(9, 2, "20");
    world.ok(withdraw(9, &[(9, 1)], false));
    world.ok(melt(9, 1, "3", 1, 0, None));
    let refusal = world.refused(recoup_refresh(1, 2, 1, 9, 1));
    assert_eq!(refusal, Refusal::PlanchetUnknown);
    assert_eq!(world.totals().outstanding, m("7"));
}

#[test]
fn recoup_refresh_credits_the_old_coin_which_becomes_a_zombie() {
    let world = World::new();
    world.fund(1, 1, "20");
    world.ok(withdraw(1, &[(1, 1)], false));
    world.ok(melt(1, 1, "4.05", 1, 0, None));
    world.ok(reveal(1, 1, &[(20, 2), (21, 2)], None, 0));
    world.revoke(2);
    let Answer::RecoupRefresh(first) = world.ok(recoup_refresh(20, 2, 20, 1, 1)) else { panic!() };
    assert_eq!((first.old_coin_pub, first.amount, first.repeated), (coin(1), m("2"), false));
    assert_eq!(world.remaining(1), Some(m("7.95")));
    let Answer::RecoupRefresh(again) = world.ok(recoup_refresh(20, 2, 20, 1, 1)) else { panic!() };
    assert!(again.repeated);
    let history = read::coin_history(&world.store, &world.denoms, coin(1)).unwrap().unwrap();
    assert_eq!(history.items.len(), 2);
    // After its time, the zombie can be melted until the legal end.
    world.revoke(1);
    world.ok(melt(1, 1, "1", 2, 0, None));
    world.advance(2_500);
    world.ok(melt(1, 1, "1", 3, 0, None));
    world.advance(501);
    assert_eq!(world.refused(melt(1, 1, "1", 4, 0, None)), unusable(1, DenomProblem::Expired));
    world.totals();
}
