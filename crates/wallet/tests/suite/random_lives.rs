//! Goal: no sequence of user actions, over a network that loses answers, loses or creates money.
//!
//! Method: random sequences of withdrawals, payments, deposits, refunds and revocations; afterwards the books of both sides agree coin by coin.

use std::sync::atomic::Ordering;

use batzen_protocol::MoneySum;
use batzen_testkit::world::{EXCHANGE, check_history, check_no_loss};
use proptest::prelude::*;

use crate::deeds::{Deed, Life, deed};

async fn play(deeds: &[Deed], lose_every: u64, seed: u64) {
    let mut life = Life::begin(seed).await;
    life.world.network.lose_every.store(lose_every, Ordering::SeqCst);
    life.live(deeds).await;
    let Life { world, wallet, .. } = life;
    world.network.lose_every.store(0, Ordering::SeqCst);
    wallet.add_exchange(EXCHANGE).await.unwrap();
    let report = wallet.run_pending().await.unwrap();
    check_history(&wallet);
    check_no_loss(&wallet);
    let totals = world.exchange.check_conservation();
    assert_eq!(world.network.conflicts(), 0, "nothing was spent twice");
    let mut held = MoneySum::ZERO;
    for coin in wallet.coins() {
        let value = world.exchange.value(&coin.h_denom_pub);
        held = held.checked_add(value).unwrap();
        let remaining = world.exchange.coin_remaining(&coin.coin_pub).unwrap_or(value);
        // The wallet has already debited what an open operation will spend; the exchange has not.
        if report.pending.is_empty() {
            assert_eq!(remaining, coin.remaining, "coin {} ({:?})", coin.coin_pub, coin.status);
        }
    }
    assert_eq!(held, totals.issued, "every coin that was signed is in the wallet");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn books_agree(
        deeds in prop::collection::vec(deed(), 1..14),
        lose_every in prop_oneof![Just(0u64), 2u64..12],
        seed in any::<u64>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(play(&deeds, lose_every, seed));
    }
}
