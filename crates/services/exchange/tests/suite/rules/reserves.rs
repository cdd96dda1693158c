//! Rules R1 to R10 and N2, and closing.

use batzen_crypto::{CsNonce, Wtid};
use batzen_exchange::history::balance_of;
use batzen_exchange::reads::read;
use batzen_exchange::rules::{
    Answer, CloseReserve, Closed, Command, DenomProblem, Refusal, ReserveHistoryItem, Withdraw,
};
use batzen_protocol::Money;
use batzen_tables::exchange::DenomSerial;

use crate::rules::world::*;

fn close(n: u8, sender: u8, wtid_n: u8) -> Command {
    close_reserve(reserve(n), sender, wtid_n).into()
}

#[test]
fn each_bank_row_is_booked_once_and_the_first_sender_is_the_origin() {
    let world = World::new();
    let page = credits(&[(1, 5, "4", 2, at(0)), (1, 6, "3", 7, at(10)), (2, 9, "1", 7, at(0))], 12);
    let Answer::Credits(credited) = world.ok(page.clone()) else { panic!() };
    assert_eq!((credited.booked, credited.reserves), (3, vec![reserve(1), reserve(2)]));
    let Answer::Credits(again) = world.ok(page) else { panic!() };
    assert_eq!((again.booked, again.reserves), (0, vec![]));
    // The same row number at another account is another transfer; an older page moves no cursor.
    assert_eq!(read::cursor(&world.store, account()).unwrap(), 12);
    world.ok(credits(&[], 7));
    assert_eq!(read::cursor(&world.store, account()).unwrap(), 12);

    let row = read::reserve(&world.store, reserve(1)).unwrap().unwrap();
    assert_eq!((row.balance, row.origin), (m("7"), Some(h_payto(2))));
    assert_eq!(row.expiration, at(510), "the later transfer's time plus the idle time");
    assert_eq!(world.totals().wired_in, m("8"));
}

/// The sums of all bookings over the years may exceed the largest amount.
#[test]
fn sums_of_the_books_may_exceed_the_largest_amount() {
    let world = World::new();
    let largest = "4503599627370496.99999999";
    world.ok(credits(&[(1, 5, largest, 2, at(0)), (2, 6, largest, 7, at(10))], 6));
    let totals = world.totals();
    assert_eq!(totals.wired_in.to_string(), "9007199254740993.99999998");
    assert_eq!(totals.reserves, totals.wired_in);
}

#[test]
fn one_page_twice_in_one_batch() {
    let world = World::new();
    let page = credits(&[(1, 5, "4", 2, at(0)), (1, 6, "3", 7, at(10))], 6);
    world.batch(&[page.clone(), page]);
    assert_eq!(world.balance(1), m("7"));
    world.totals();
}

#[test]
fn withdrawals_debit_value_and_fee_and_repeat_the_stored_signature() {
    let world = World::new();
    world.fund(1, 1, "25");
    let Answer::Withdraw(first) = world.ok(withdraw(1, &[(1, 1), (2, 2)], false)) else { panic!() };
    assert_eq!(first.ev_sigs, vec![ev_sig(1, 0), ev_sig(2, 0)]);
    assert_eq!(world.balance(1), m("12.9"));
    // The repetition carries other signatures. The answer has the stored ones, in the order of the request.
    let Answer::Withdraw(again) = world.ok(withdraw(1, &[(2, 2), (1, 1)], true)) else { panic!() };
    assert_eq!((again.ev_sigs, again.repeated), (vec![ev_sig(2, 0), ev_sig(1, 0)], true));
    assert_eq!(world.balance(1), m("12.9"));
    // Old and new planchets together are refused.
    let refusal = world.refused(withdraw(1, &[(3, 1), (1, 1)], true));
    assert_eq!(refusal, Refusal::PlanchetsMixed { index: 1 });
    assert_eq!(world.refused(withdraw(1, &[(3, 1), (3, 1)], true)), Refusal::PlanchetDuplicate { index: 1 });
    // Another reserve pays for the same planchet with its own money.
    world.fund(2, 2, "11");
    world.ok(withdraw(2, &[(1, 1)], false));
    assert_eq!(world.balance(2), m("0.9"));
    let totals = world.totals();
    assert_eq!((totals.issued, totals.income.withdraw), (sum("22"), sum("0.2")));
    // A repetition is answered even after the denomination has expired.
    world.advance(1_500);
    assert!(world.run(withdraw(1, &[(1, 1)], false)).is_ok());
    assert_eq!(world.refused(withdraw(1, &[(9, 1)], false)), unusable(1, DenomProblem::Expired));
}

#[test]
fn a_withdrawal_without_signatures_is_decided_up_to_the_payment() {
    let world = World::new();
    world.fund(1, 1, "15");
    let unsigned = |n, planchets: &[(u8, u32)]| {
        let Command::Withdraw(mut command) = withdraw(n, planchets, true) else { panic!() };
        command.planchets.last_mut().unwrap().ev_sig = None;
        Command::Withdraw(command)
    };
    // Without signatures, other errors are reported first: insufficient funds, then nonces.
    let refusal = world.refused(unsigned(1, &[(1, 1), (2, 1)]));
    assert!(matches!(refusal, Refusal::ReserveInsufficient(_)), "{refusal}");
    assert_eq!(world.refused(unsigned(2, &[(1, 1)])), Refusal::ReserveUnknown);
    assert_eq!(world.refused(unsigned(1, &[(4, 3), (8, 3)])), Refusal::NonceReuse { index: 1 });
    // Everything else is right, so the signature is asked for. Nothing was charged and no nonce was locked.
    assert_eq!(world.refused(unsigned(1, &[(1, 1), (4, 3)])), Refusal::SignatureMissing);
    assert_eq!(world.balance(1), m("15"));
    world.ok(withdraw(1, &[(8, 3)], false));
    world.ok(withdraw(1, &[(2, 2)], false));
    // A repetition needs no signature.
    let Answer::Withdraw(again) = world.ok(unsigned(1, &[(2, 2)])) else { panic!() };
    assert!(again.repeated);
    world.totals();
}

#[test]
fn insufficient_funds_are_proven_by_the_history() {
    let world = World::new();
    assert_eq!(world.refused(withdraw(1, &[(1, 1)], false)), Refusal::ReserveUnknown);
    world.fund(1, 1, "12");
    world.ok(withdraw(1, &[(2, 2)], false));
    let Refusal::ReserveInsufficient(shortage) = world.refused(withdraw(1, &[(1, 1)], true)) else {
        panic!()
    };
    assert_eq!((shortage.balance, shortage.requested), (m("10"), m("10.1")));
    assert_eq!(shortage.history.balance, m("10"));
    let effects = shortage.history.items.iter().map(ReserveHistoryItem::effect);
    assert_eq!(balance_of(Money::ZERO, effects), Some(m("10")));
}

#[test]
fn a_withdrawal_refused_for_funds_is_retried_after_a_credit_in_the_same_batch() {
    let world = World::new();
    world.fund(1, 1, "5");
    let verdicts = world.batch(&[
        withdraw(1, &[(1, 1)], false),
        credits(&[(1, 2, "10", 1, at(0))], 2),
        withdraw(1, &[(2, 1)], false),
    ]);
    // The third took the money before the first was tried again.
    assert!(verdicts[2].is_ok() && matches!(verdicts[0], Err(Refusal::ReserveInsufficient(_))));
    let verdicts = world.batch(&[withdraw(1, &[(1, 1)], false), credits(&[(1, 3, "10", 1, at(0))], 3)]);
    assert!(verdicts[0].is_ok());
    world.totals();
}

#[test]
fn a_nonce_signs_one_planchet() {
    let world = World::new();
    world.fund(1, 1, "20");
    world.ok(withdraw(1, &[(1, 3)], false));
    // Planchets 1 and 5 have the same nonce.
    assert_eq!(world.refused(withdraw(1, &[(5, 3)], false)), Refusal::NonceReuse { index: 0 });
    assert_eq!(world.refused(withdraw(1, &[(2, 3), (6, 3)], true)), Refusal::NonceReuse { index: 1 });
    world.ok(withdraw(1, &[(1, 3)], false));
    world.ok(withdraw(1, &[(2, 3)], false));
    // The same planchet under another reserve has the same signature, so it does not use the nonce twice.
    world.fund(2, 2, "5");
    world.ok(withdraw(2, &[(2, 3)], false));
    // Withdrawals and melts lock nonces separately.
    world.ok(melt(1, 1, "5", 1, 0, Some(1)));
    let Command::Withdraw(Withdraw { planchets, .. }) = withdraw(1, &[(7, 3)], false) else { panic!() };
    assert_eq!(planchets[0].nonce, Some(CsNonce::from_bytes([3; 32])));
}

#[test]
fn a_revoked_denomination_is_not_withdrawn() {
    let world = World::new();
    world.fund(1, 1, "20");
    world.ok(withdraw(1, &[(1, 2)], false));
    world.revoke(2);
    world.ok(withdraw(1, &[(1, 2)], false));
    assert_eq!(world.refused(withdraw(1, &[(2, 2)], false)), unusable(2, DenomProblem::Revoked));
    let unknown = Refusal::DenominationUnknown { index: 0, denom: DenomSerial(77) };
    assert_eq!(world.refused(withdraw(1, &[(2, 77)], false)), unknown);
}

#[test]
fn a_history_is_charged_once_per_request_time() {
    let world = World::new();
    assert_eq!(world.refused(history(1, 0, "0.5")), Refusal::HistoryUnaffordable);
    assert_eq!(world.refused(history(1, 0, "0")), Refusal::ReserveUnknown);
    world.fund(1, 1, "0.8");
    let charged = |command| {
        let Answer::ReserveHistory(paid) = world.ok(command) else { panic!() };
        paid.charged
    };
    assert!(charged(history(1, 0, "0.5")));
    assert!(!charged(history(1, 0, "0.5")));
    assert!(!charged(history(1, 7, "0")));
    assert_eq!(world.balance(1), m("0.3"));
    assert_eq!(world.refused(history(1, 1, "0.5")), Refusal::HistoryUnaffordable);
    assert_eq!(world.totals().income.history, m("0.5"));
}

#[test]
fn an_expired_reserve_returns_to_its_origin() {
    // Acceptance scenario: wire 5; the closer does nothing; after the expiration, 4.99 go back to the sender.
    let world = World::new();
    world.fund(1, 1, "5");
    assert_eq!(world.ok(close(1, 1, 1)), Answer::CloseReserve(Closed::NotDue));
    assert!(read::expired_reserves(&world.store, world.now(), 9).unwrap().is_empty());
    world.advance(500);
    assert_eq!(read::expired_reserves(&world.store, world.now(), 9).unwrap().len(), 1);
    assert_eq!(world.refused(close(1, 2, 1)), Refusal::TargetMismatch);
    let first = Wtid::from_bytes(*reserve(1).as_bytes());
    assert_eq!(
        world.ok(close(1, 1, 1)),
        Answer::CloseReserve(Closed::Closed { wtid: first, amount: m("5"), fee: m("0.01"), paid: m("4.99") })
    );
    assert_eq!(world.ok(close(1, 1, 1)), Answer::CloseReserve(Closed::NotDue));
    assert_eq!(world.transfer_all(), vec![(payto(1), m("4.99"))]);

    // Filled again and expired again: another identifier, and the fee of the day of the expiration.
    world.fund(1, 2, "1.005");
    world.advance(1_200);
    let closed = world.ok(close(1, 1, 7));
    let expected = Closed::Closed { wtid: wtid(7), amount: m("1.005"), fee: m("0.01"), paid: m("0.99") };
    assert_eq!(closed, Answer::CloseReserve(expected));
    let totals = world.totals();
    assert_eq!((totals.income.rounding, totals.in_flight), (sum("0.005"), sum("0.99")));

    // If no more than the fee is left, the fee takes all of it.
    world.fund(2, 3, "0.007");
    world.advance(600);
    let Answer::CloseReserve(Closed::Closed { fee, paid, .. }) = world.ok(close(2, 2, 8)) else { panic!() };
    assert_eq!((fee, paid), (m("0.007"), Money::ZERO));
    assert_eq!(world.transfer_all(), vec![(payto(1), m("0.99"))]);
    world.check_reserve(1);
    // A window leaves out older events.
    let recent =
        read::reserve_statement(&world.store, &world.denoms, reserve(1), Some(at(1_600))).unwrap().unwrap();
    assert_eq!(recent.items.len(), 1);
}

#[test]
fn a_reserve_key_chosen_to_collide_with_a_transfer_does_not_block_the_closer() {
    let world = World::new();
    world.fund(1, 1, "5");
    world.advance(500);
    world.ok(close(1, 1, 1));
    let first = Wtid::from_bytes(*reserve(1).as_bytes());
    // Credits a reserve whose key equals the identifier of that transfer. The key is the same reserve's here,
    // but what matters is that the identifier is taken and that a random one is used.
    world.fund(1, 2, "5");
    world.advance(500);
    let taken = CloseReserve { wtid: first, ..close_reserve(reserve(1), 1, 1) };
    assert_eq!(world.refused(taken.into()), Refusal::WtidTaken);
    assert!(matches!(
        world.ok(close(1, 1, 9)),
        Answer::CloseReserve(Closed::Closed { wtid: used, .. }) if used == wtid(9)
    ));
}
