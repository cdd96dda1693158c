//! Purses: each is decided once, and money moves as the table of p2p chapter 12.3 says.

use batzen_exchange::history::balance_of;
use batzen_exchange::reads::read;
use batzen_exchange::rules::{
    Answer, CoinHistoryItem, Command, PurseCoin, PurseCreate, PurseCreated, PurseDeposit, PurseExpired,
    PurseTerms, Refusal, ReserveOpen, ReserveOpened, ReservePurse, RulesConfig,
};
use batzen_protocol::Money;
use batzen_tables::exchange::PurseState;

use crate::rules::world::*;

/// Coins 1, 2, … with these amounts, all of denomination 1 (value 10, deposit fee 0.1).
fn coins(first: u8, amounts: &[&str]) -> Vec<PurseCoin> {
    (first..).zip(amounts).map(|(n, amount)| purse_coin(n, 1, amount)).collect()
}

fn create(n: u8, terms: PurseTerms, coins: Vec<PurseCoin>) -> PurseCreate {
    PurseCreate { contract: Some(purse_contract(n)), ..purse(n, terms, coins) }
}

fn request(n: u8, reserve_n: u8, fee: Option<&str>, target: &str) -> ReservePurse {
    reserve_purse(n, reserve_n, fee, purse_terms(target, 1_000))
}

fn pay(n: u8, reserve_n: Option<u8>, coins: Vec<PurseCoin>) -> Command {
    let (purse_pub, reserve_pub) = (purse_pub(n), reserve_n.map(reserve));
    Command::PurseDeposit(PurseDeposit { purse_pub, reserve_pub, coins })
}

/// A world with five coins of 10.
fn world() -> World {
    let world = World::new();
    world.fund(99, 99, "1000");
    for n in 1..=5 {
        world.ok(withdraw(99, &[(n, 1)], false));
    }
    world
}

/// The state of a purse, whose coins' and reserve's histories must add up.
fn state(world: &World, n: u8) -> PurseState {
    for n in 1..=5 {
        if let Some(history) = read::coin_history(&world.store, &world.denoms, coin(n)).unwrap() {
            let effects = history.items.iter().map(CoinHistoryItem::effect);
            assert_eq!(balance_of(m("10"), effects), Some(history.remaining), "coin {n}");
        }
    }
    for n in 1..=2 {
        if read::reserve(&world.store, reserve(n)).unwrap().is_some() {
            world.check_reserve(n);
        }
    }
    read::purse(&world.store, purse_pub(n)).unwrap().unwrap().0.state
}

#[test]
fn a_full_purse_goes_to_the_reserve_that_merges_it() {
    let world = world();
    let push = create(1, purse_terms("9", 1_000), coins(1, &["5.1", "4.1"]));
    let Answer::PurseCreate(created) = world.ok(Command::PurseCreate(push.clone())) else { panic!() };
    assert_eq!(created, PurseCreated { expiration: at(1_000), deposited: m("9"), is_new: true });
    assert_eq!((world.remaining(1), world.remaining(2)), (Some(m("4.9")), Some(m("5.9"))));
    assert_eq!(world.totals().purses, sum("9.2"));
    // The lost answer can be asked for again, and takes nothing.
    let created = PurseCreated { is_new: false, ..created };
    assert_eq!(world.ok(Command::PurseCreate(push.clone())), Answer::PurseCreate(created));
    assert_eq!(world.remaining(1), Some(m("4.9")));

    let Answer::PurseMerge(merged) = world.ok(merge(1, 1)) else { panic!() };
    assert!(merged.is_new && merged.purse.state == PurseState::Paid);
    let Answer::PurseMerge(again) = world.ok(merge(1, 1)) else { panic!() };
    assert!(!again.is_new);
    assert_eq!(world.balance(1), m("9"));
    assert!(matches!(world.refused(merge(1, 2)), Refusal::PurseMergeConflict(_)));
    assert_eq!(world.refused(pay(1, Some(1), coins(3, &["1"]))), Refusal::PurseDecided);
    assert_eq!(world.refused(purse_delete(1, Some(1), &[1, 2])), Refusal::PurseDecided);
    let totals = world.totals();
    assert_eq!((totals.purses, totals.income.purse), (sum("0"), sum("0.2")));
    let push = PurseCreate { reserve_pub: Some(reserve(1)), ..push };
    assert_eq!(world.ok(Command::PurseCreate(push)), Answer::PurseCreate(created), "even when it is paid");
    assert_eq!(state(&world, 1), PurseState::Paid);
}

#[test]
fn a_purse_with_other_terms_coins_or_contract_is_a_conflict() {
    let world = world();
    let push = create(1, purse_terms("9", 1_000), coins(1, &["5"]));
    world.ok(Command::PurseCreate(push.clone()));
    let other = PurseCreate { terms: purse_terms("8", 1_000), ..push.clone() };
    assert!(matches!(world.refused(Command::PurseCreate(other)), Refusal::PurseConflict(_)));
    let other = PurseCreate { coins: coins(1, &["4"]), ..push.clone() };
    let refusal = world.refused(Command::PurseCreate(other));
    assert!(matches!(refusal, Refusal::PurseDepositConflict { deposit, .. } if deposit.amount == m("5")));
    let mut other = push.clone();
    other.contract.as_mut().unwrap().econtract[0] ^= 1;
    assert!(matches!(world.refused(Command::PurseCreate(other)), Refusal::ContractConflict(_)));
    let double_spend = create(2, purse_terms("9", 1_000), coins(1, &["5.1"]));
    assert!(matches!(world.refused(Command::PurseCreate(double_spend)), Refusal::CoinConflict { .. }));
    assert_eq!(world.refused(merge(1, 1)), Refusal::PurseNotFull);
    assert_eq!(world.refused(pay(3, None, coins(2, &["1"]))), Refusal::PurseUnknown);
}

#[test]
fn expired_and_deleted_purses_give_everything_back_once() {
    let world = world();
    world.ok(Command::PurseCreate(create(1, purse_terms("9", 1_000), coins(1, &["5", "4.5"]))));
    world.ok(Command::PurseCreate(create(2, purse_terms("9", 1_000), coins(3, &["9.5"]))));
    assert_eq!(world.ok(purse_expire(1, None, &[1, 2])), Answer::PurseExpire(PurseExpired::NotDue));
    // Whoever did not read all coins must read again.
    for wrong in [&[3, 3][..], &[], &[1]] {
        assert_eq!(world.refused(purse_delete(2, None, wrong)), Refusal::PurseChanged);
    }
    world.ok(purse_delete(2, None, &[3]));
    assert_eq!(world.refused(purse_delete(2, None, &[3])), Refusal::PurseDecided);
    assert!(read::contract(&world.store, key(79, 2)).unwrap().is_none());
    assert_eq!(world.refused(merge(2, 1)), Refusal::PurseDeleted);
    world.advance(1_000);
    assert_eq!(world.refused(merge(1, 1)), Refusal::PurseExpired);
    assert_eq!(world.refused(pay(1, None, coins(4, &["1"]))), Refusal::PurseExpired);
    assert_eq!(world.ok(purse_expire(1, None, &[1, 2])), Answer::PurseExpire(PurseExpired::Expired));
    assert_eq!(world.ok(purse_expire(1, None, &[1, 2])), Answer::PurseExpire(PurseExpired::NotDue));
    for n in 1..=3 {
        assert_eq!(world.remaining(n), Some(m("10")));
    }
    assert_eq!((state(&world, 1), state(&world, 2)), (PurseState::Expired, PurseState::Deleted));
    assert_eq!(world.totals().purses, sum("0"));
}

/// Time and fee of the moment are those of new purses: one that exists is confirmed as it was created.
#[test]
fn time_and_fee_of_a_repetition_do_not_matter() {
    let world = world();
    let push = create(1, purse_terms("9", 1_000), coins(1, &["5"]));
    let dear = PurseCreate { fee: m("5.1"), ..push.clone() };
    assert_eq!(world.refused(Command::PurseCreate(dear.clone())), Refusal::PurseFeeTooLow(m("5.1")));
    assert_eq!(world.remaining(1), None, "a refusal leaves nothing");
    let Answer::PurseCreate(created) = world.ok(Command::PurseCreate(push)) else { panic!() };
    let pull = request(2, 1, Some("0"), "6");
    let dear_pull = ReservePurse { fee: m("0.1"), ..pull.clone() };
    assert_eq!(world.refused(Command::ReservePurse(dear_pull.clone())), Refusal::PurseFeeTooLow(m("0.1")));
    world.ok(Command::ReservePurse(pull));
    world.advance(1_000);
    let again = Answer::PurseCreate(PurseCreated { is_new: false, ..created });
    assert_eq!(world.ok(Command::PurseCreate(dear)), again);
    assert!(matches!(world.ok(Command::ReservePurse(dear_pull)), Answer::ReservePurse(_)));
    let late = create(3, purse_terms("9", 1_000), coins(2, &["5"]));
    assert_eq!(world.refused(Command::PurseCreate(late)), Refusal::PurseTooLate);
    let late = request(4, 1, Some("0"), "6");
    assert_eq!(world.refused(Command::ReservePurse(late)), Refusal::PurseTooLate);
}

#[test]
fn a_purse_that_gave_its_money_back_confirms_nothing() {
    let world = world();
    let push = create(1, purse_terms("9", 1_000), coins(1, &["5"]));
    world.ok(Command::PurseCreate(push.clone()));
    world.ok(purse_delete(1, None, &[1]));
    assert_eq!(world.refused(Command::PurseCreate(push)), Refusal::PurseDeleted);
    let pull = request(2, 1, Some("0"), "6");
    world.ok(Command::ReservePurse(pull.clone()));
    world.advance(1_000);
    world.ok(purse_expire(2, Some(1), &[]));
    // The contract of a purse that is gone must not come back either.
    let contract = Some(purse_contract(2));
    let pull = ReservePurse { contract, ..pull };
    assert_eq!(world.refused(Command::ReservePurse(pull)), Refusal::PurseExpired);
    assert!(read::contract(&world.store, key(79, 2)).unwrap().is_none());
}

#[test]
fn a_purse_for_nothing_is_decided_like_any_other() {
    let world = world();
    world.ok(Command::ReservePurse(request(1, 1, Some("0"), "0")));
    assert_eq!(state(&world, 1), PurseState::Open);
    for is_new in [true, false] {
        let Answer::PurseMerge(merged) = world.ok(merge(1, 1)) else { panic!() };
        assert_eq!(merged.is_new, is_new);
    }
    assert_eq!((state(&world, 1), world.balance(1)), (PurseState::Paid, Money::ZERO));
}

#[test]
fn more_purses_than_can_be_counted_are_not_for_sale() {
    let world = World::with(&denoms(), RulesConfig { default_purse_limit: 1_000, ..config() }, |rules| rules);
    world.fund(1, 1, "3");
    let open = ReserveOpen {
        reserve_pub: reserve(1),
        request_time: at(0),
        reserve_expiration: at(0),
        purse_limit: u32::MAX,
        payment: m("3"),
        account_fee: m("0.01"),
        coins: Vec::new(),
        reserve_sig: sig(3),
    };
    assert_eq!(world.refused(Command::ReserveOpen(open.clone())), Refusal::PurchaseTooLarge);
    let open = ReserveOpen { purse_limit: 1 << 16, account_fee: m("4503599627370496"), ..open };
    assert_eq!(world.refused(Command::ReserveOpen(open)), Refusal::PurchaseTooLarge);
}

#[test]
fn the_last_deposit_pays_the_reserve_that_asked() {
    let world = world();
    let wanted = request(1, 1, Some("0"), "6");
    for is_new in [true, false] {
        let created = PurseCreated { expiration: at(1_000), deposited: Money::ZERO, is_new };
        assert_eq!(world.ok(Command::ReservePurse(wanted.clone())), Answer::ReservePurse(created));
    }
    assert_eq!(world.balance(1), Money::ZERO);
    assert_eq!(world.refused(pay(1, None, coins(1, &["3"]))), Refusal::PurseChanged, "not told its reserve");
    for (n, amount, expected) in [(1, "3.1", (m("3"), None)), (2, "3.2", (m("6.1"), Some(reserve(1))))] {
        let Answer::PurseDeposit(paid) = world.ok(pay(1, Some(1), coins(n, &[amount]))) else { panic!() };
        assert_eq!((paid.total, paid.credited), expected, "coin {n}");
    }
    assert_eq!(world.balance(1), m("6"));
    let totals = world.totals();
    assert_eq!(totals.income.purse, sum("0.3"), "two deposit fees, and what was paid beyond the target");
    assert_eq!(state(&world, 1), PurseState::Paid);
}

#[test]
fn a_quota_limits_open_purses_and_fees_are_kept() {
    let world = world();
    assert_eq!(world.refused(Command::ReservePurse(request(1, 1, None, "1"))), Refusal::ReserveUnknown);
    world.fund(1, 1, "3");
    let refused = world.refused(Command::ReservePurse(request(1, 1, None, "1")));
    assert_eq!(refused, Refusal::PurseUnaffordable);
    let refused = world.refused(Command::ReservePurse(request(1, 1, Some("3.01"), "1")));
    assert_eq!(refused, Refusal::PurseUnaffordable);
    // One account fee buys one purse, and prolongs the reserve by a year.
    let open = ReserveOpen {
        reserve_pub: reserve(1),
        request_time: at(0),
        reserve_expiration: at(40 * 24 * 3_600),
        purse_limit: 1,
        payment: m("0.4"),
        account_fee: m("0.5"),
        coins: coins(5, &["0.1"]),
        reserve_sig: sig(3),
    };
    let too_little = world.refused(Command::ReserveOpen(open.clone()));
    assert!(
        matches!(too_little, Refusal::OpenTooLittle { cost, .. } if cost == m("0.5")),
        "fees are no payment"
    );
    let open = ReserveOpen { payment: m("0.5"), ..open };
    let first = world.ok(Command::ReserveOpen(open.clone()));
    assert!(matches!(first, Answer::ReserveOpen(ReserveOpened { cost, .. }) if cost == m("0.5")));
    assert_eq!(world.ok(Command::ReserveOpen(open)), first, "a repetition costs nothing");
    assert_eq!((world.balance(1), world.remaining(5)), (m("2.5"), Some(m("9.9"))));
    world.ok(Command::ReservePurse(request(1, 1, None, "1")));
    let refused = world.refused(Command::ReservePurse(request(2, 1, None, "1")));
    assert_eq!(refused, Refusal::PurseUnaffordable);
    world.ok(Command::ReservePurse(request(2, 1, Some("0.25"), "1")));
    assert_eq!(world.balance(1), m("2.25"));
    // A decided purse frees its place; the fee of the other is not returned.
    world.ok(purse_delete(1, Some(1), &[]));
    world.ok(purse_delete(2, Some(1), &[]));
    world.ok(Command::ReservePurse(request(3, 1, None, "1")));
    world.ok(pay(3, Some(1), coins(1, &["1.1"])));
    world.ok(Command::ReservePurse(request(4, 1, None, "1")));
    assert_eq!(world.balance(1), m("3.25"));
    let totals = world.totals();
    assert_eq!((totals.income.account, totals.income.purse), (sum("0.6"), sum("0.35")));
    assert_eq!(state(&world, 3), PurseState::Paid);
}
