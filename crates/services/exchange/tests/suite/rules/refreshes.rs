//! Rules M1 to M8, N3 and F1.

use batzen_crypto::DenomSignature;
use batzen_exchange::reads::read;
use batzen_exchange::rules::{Answer, Command, ConflictReason, DenomProblem, Refusal};
use batzen_tables::exchange::{MeltByRc, MeltByRcRow, RcKey};

use crate::rules::world::*;

fn issue(world: &World, planchets: &[(u8, u32)]) {
    world.fund(99, 99, "1000");
    for planchet in planchets {
        world.ok(withdraw(99, &[*planchet], false));
    }
}

#[test]
fn a_melt_keeps_its_index() {
    let world = World::new();
    issue(&world, &[(1, 1), (2, 1)]);
    let Answer::Melt(first) = world.ok(melt(1, 1, "4", 1, 2, None)) else { panic!() };
    let Answer::Melt(again) = world.ok(melt(1, 1, "4", 1, 0, None)) else { panic!() };
    assert_eq!((first.noreveal_index, again.noreveal_index, again.repeated), (2, 2, true));
    assert_eq!(world.remaining(1), Some(m("6")));
    let Refusal::CoinConflict { conflict, .. } = world.refused(melt(1, 1, "7", 2, 0, None)) else { panic!() };
    assert_eq!(conflict.reason, ConflictReason::Insufficient { requested: m("7") });
    assert_eq!(conflict.history.items.len(), 1);
    assert_eq!(world.refused(melt(2, 1, "3", 1, 0, None)), Refusal::RcTaken);
    assert_eq!(world.refused(melt(2, 1, "0.04", 3, 0, None)), Refusal::MeltBelowFee);
    // Two coins with the same commitment in one batch: the first one gets it.
    let verdicts = world.batch(&[melt(1, 1, "1", 5, 1, None), melt(2, 1, "1", 5, 2, None)]);
    assert!(verdicts[0].is_ok() && verdicts[1] == Err(Refusal::RcTaken));
    assert_eq!(read::melt_by_rc(&world.store, rc(5)).unwrap().unwrap().coin_pub, coin(1));
    assert_eq!(world.totals().unrevealed_melts, m("4.9"));
}

/// A store on several servers inserts the claim of a commitment before the rest of the melt, which may then fail.
#[test]
fn a_melt_goes_on_from_its_own_claim() {
    let world = World::new();
    issue(&world, &[(1, 1), (2, 1)]);
    world.insert::<MeltByRc>(&RcKey { rc: rc(1) }, &MeltByRcRow { coin_pub: coin(1) });
    assert!(read::melt_by_rc(&world.store, rc(1)).unwrap().is_none(), "a claim is no melt");
    assert_eq!(world.refused(melt(2, 1, "3", 1, 0, None)), Refusal::RcTaken);
    world.ok(melt(1, 1, "4", 1, 2, None));
    assert_eq!(world.remaining(1), Some(m("6")));
    assert_eq!(read::melt_by_rc(&world.store, rc(1)).unwrap().unwrap().coin_pub, coin(1));
}

#[test]
fn a_never_seen_coin_cannot_be_asked_for_more_than_its_value() {
    let world = World::new();
    let Refusal::CoinConflict { conflict, .. } = world.refused(melt(1, 2, "3", 1, 0, None)) else { panic!() };
    assert_eq!((conflict.history.remaining, conflict.history.items.len()), (m("2"), 0));
    assert_eq!(world.remaining(1), None);
}

#[test]
fn a_melt_is_revealed_once_and_repetitions_are_answered() {
    let world = World::new();
    issue(&world, &[(1, 1)]);
    assert_eq!(world.refused(reveal(1, 1, &[(20, 2)], None, 0)), Refusal::MeltUnknown);
    world.ok(melt(1, 1, "4.2", 1, 0, None));
    assert_eq!(
        world.refused(reveal(1, 1, &[(20, 2), (21, 2), (22, 3)], Some(1), 0)),
        Refusal::RevealCostTooHigh { cost: m("5.06"), melted: m("4.2") }
    );
    let Answer::Reveal(first) = world.ok(reveal(1, 1, &[(20, 2), (21, 2)], None, 0)) else { panic!() };
    assert_eq!(first.ev_sigs, vec![ev_sig(20, 0), ev_sig(21, 0)]);
    let Answer::Reveal(again) = world.ok(reveal(1, 1, &[(20, 2), (21, 2)], None, 1)) else { panic!() };
    assert_eq!((again.ev_sigs, again.repeated), (first.ev_sigs, true));
    let totals = world.totals();
    assert_eq!((totals.unrevealed_melts, totals.income.surplus), (sum("0"), sum("0.15")));
    assert_eq!(totals.issued, m("14"));
    // A repetition is answered even after the denomination has expired or is revoked; a new melt is not.
    world.ok(melt(1, 1, "3", 2, 0, None));
    world.revoke(2);
    assert!(world.run(reveal(1, 1, &[(20, 2), (21, 2)], None, 2)).is_ok());
    let refused = world.refused(reveal(1, 2, &[(23, 2)], None, 0));
    assert_eq!(refused, unusable(2, DenomProblem::Revoked));
    assert_eq!(read::links(&world.store, coin(1)).unwrap().len(), 1);
    assert_eq!(read::reveal_of(&world.store, ev(21)).unwrap().unwrap().0.rc, rc(1));
}

#[test]
fn a_refresh_master_secret_belongs_to_one_melt() {
    let world = World::new();
    issue(&world, &[(1, 1), (2, 1)]);
    world.ok(melt(1, 1, "2", 1, 0, Some(7)));
    assert_eq!(world.refused(melt(2, 1, "2", 2, 0, Some(7))), Refusal::NonceReuse { index: 0 });
    // If the melt does not name the secret, the reveal locks it before anything is signed.
    world.ok(melt(2, 1, "2", 2, 0, None));
    assert_eq!(world.refused(reveal(2, 2, &[(20, 3)], None, 0)), Refusal::RmsMissing);
    assert_eq!(world.refused(reveal(2, 2, &[(20, 3)], Some(7), 0)), Refusal::NonceReuse { index: 0 });
    world.ok(reveal(2, 2, &[(20, 3)], Some(8), 0));
    assert_eq!(world.refused(melt(1, 1, "2", 3, 0, Some(8))), Refusal::NonceReuse { index: 0 });
    world.ok(reveal(1, 1, &[(21, 3)], Some(7), 0));
    let row = read::reveal(&world.store, coin(1), rc(1)).unwrap().unwrap();
    assert_eq!(row.rms, Some([7; 32]));
    world.totals();
}

#[test]
fn only_zombies_are_melted_after_expiration() {
    let world = World::new();
    issue(&world, &[(1, 1)]);
    world.ok(melt(1, 1, "1", 1, 0, None));
    world.revoke(1);
    let unusable = |problem| unusable(1, problem);
    assert_eq!(world.refused(melt(1, 1, "1", 2, 0, None)), unusable(DenomProblem::Revoked));
    assert_eq!(world.refused(melt(2, 1, "1", 2, 0, None)), unusable(DenomProblem::Revoked));
    assert!(world.run(melt(1, 1, "1", 1, 0, None)).is_ok(), "a repetition changes nothing");
    world.advance(2_001);
    assert_eq!(world.refused(melt(1, 1, "1", 2, 0, None)), Refusal::MeltNoZombie);
    assert_eq!(world.refused(melt(2, 1, "1", 2, 0, None)), unusable(DenomProblem::Expired));
    let Refusal::CoinConflict { conflict, .. } = world.refused(melt(1, 2, "1", 2, 0, None)) else { panic!() };
    assert_eq!(conflict.reason, ConflictReason::OtherDenomination);
    world.advance(1_000);
    assert_eq!(world.refused(melt(1, 1, "1", 2, 0, None)), unusable(DenomProblem::Expired));
}

#[test]
fn the_first_signature_of_a_coin_is_kept() {
    let world = World::new();
    issue(&world, &[(1, 1)]);
    world.ok(melt(1, 1, "1", 1, 0, None));
    let Command::Melt(mut second) = melt(1, 1, "1", 2, 0, None) else { panic!() };
    second.coin.denom_sig = DenomSignature::Rsa(vec![42]);
    world.ok(Command::Melt(second));
    let row = read::coin(&world.store, coin(1)).unwrap().unwrap();
    assert_eq!(row.denom_sig, DenomSignature::Rsa(vec![1]));
}
