//! Random lives of a customer: purchases, refunds, aborts and tips, while answers are lost and the shop's exchange
//! comes and goes. In the end nothing is missing, coin by coin.

use std::sync::atomic::Ordering;

use batzen_wallet::TipUri;
use batzen_wallet::core::{Entropy, SeededEntropy};

use super::*;

const LIVES: u64 = 16;
const STEPS: usize = 40;

struct Life {
    world: World,
    shop: Shop,
    alice: Wallet,
    dice: SeededEntropy,
    orders: usize,
    seconds: u64,
}

impl Life {
    async fn new(seed: u64) -> Self {
        let world = World::new().await;
        let alice = filled(&world, seed, "KUDOS:20", CipherChoice::Any).await;
        let shop = Shop::open(&world).await;
        Self { world, shop, alice, dice: SeededEntropy::new(1000 + seed), orders: 0, seconds: 0 }
    }

    fn cents(&mut self, most: usize) -> String {
        let cents = 1 + self.dice.below(most);
        format!("KUDOS:{}.{:02}", cents / 100, cents % 100)
    }

    /// One of the orders, if there are any.
    fn order(&mut self) -> Option<String> {
        let count = self.orders;
        (count > 0).then(|| format!("order{}", self.dice.below(count)))
    }

    async fn buy(&mut self) {
        let id = format!("order{}", self.orders);
        self.orders += 1;
        let price = self.cents(400);
        let is_promised = self.dice.below(3) == 0;
        let uri = self
            .shop
            .order(&id, &price, |contract| {
                if is_promised {
                    contract["auto_refund"] = json!({ "d_us": 3_600_000_000_u64 });
                }
            })
            .await;
        let _ = buy(&self.alice, &uri).await;
    }

    async fn approve(&mut self) {
        let Some(id) = self.order() else { return };
        let left = {
            if !self.shop.is_paid(&id) {
                return;
            }
            let paid = self.shop.deposited(&id);
            let refunded: i128 =
                self.shop.refunds(&id).iter().map(|refund| refund.amount.units() as i128).sum();
            usize::try_from((paid - refunded) / 1_000_000).unwrap()
        };
        if left > 0 {
            let sum = self.cents(left);
            let time = START.saturating_add(Duration::from_secs(self.seconds));
            self.shop.approve(&id, &sum, time).await;
        }
    }

    async fn pick_up(&mut self) {
        let Some(id) = self.order() else { return };
        if let Ok(purchase) = self.alice.purchase_of_refund(&Shop::refund_uri(&id)) {
            let _ = self.alice.pick_up_refunds(purchase).await;
        }
    }

    async fn abort(&mut self) {
        let open = self.alice.pending().into_iter().find(|operation| operation.kind == "payment");
        if let Some(open) = open {
            let _ = self.alice.abort_purchase(open.id).await;
        }
    }

    async fn take_tip(&mut self) {
        let sum = self.cents(300);
        let id = format!("tip{}", self.dice.below(usize::MAX));
        let uri = self.shop.tip(&self.world, &id, &sum).await;
        if let Ok(offer) = self.alice.inspect_tip(&TipUri::parse(&uri).unwrap()).await {
            let _ = self.alice.accept_tip(&offer).await;
        }
    }

    async fn step(&mut self) {
        match self.dice.below(14) {
            0..=3 => self.buy().await,
            4 | 5 => self.approve().await,
            6 | 7 => self.pick_up().await,
            8 => self.abort().await,
            9 => {
                self.shop.set_exchange_away(!self.shop.is_exchange_away());
            }
            10 => {
                let after = self.dice.below(3);
                self.shop.set_stop_after(if self.shop.stop_after().is_some() { None } else { Some(after) });
            }
            11 => self.take_tip().await,
            12 => {
                let every = [0, 0, 2, 3, 5][self.dice.below(5)];
                self.world.network.lose_every.store(every, Ordering::SeqCst);
            }
            _ => drop(self.alice.run_pending().await.unwrap()),
        }
        self.seconds += self.dice.below(300) as u64;
        self.world.set_time(START.saturating_add(Duration::from_secs(self.seconds))).await;
        check_history(&self.alice);
    }

    /// Everything works again, and the promised times are over.
    async fn end(self) -> Vec<Transaction> {
        self.world.network.lose_every.store(0, Ordering::SeqCst);
        self.shop.set_exchange_away(false);
        self.shop.set_stop_after(None);
        // What is paid now may promise a refund for another hour.
        for hours in [19, 20, 22] {
            self.world.set_time(START.saturating_add(Duration::from_secs(hours * 3600))).await;
            self.alice.run_pending().await.unwrap();
        }
        settle(&self.alice).await;
        for order in 0..self.orders {
            let uri = Shop::refund_uri(&format!("order{order}"));
            if let Ok(purchase) = self.alice.purchase_of_refund(&uri) {
                self.alice.pick_up_refunds(purchase).await.unwrap();
            }
        }
        settle(&self.alice).await;
        check_books(&self.world, &[&self.alice]);
        check_no_loss(&self.alice);
        assert!(self.alice.evidence().is_empty(), "nobody has lied");
        for order in 0..self.orders {
            let id = format!("order{order}");
            let is_paid = self.shop.is_paid(&id);
            let refunds = self.shop.refunds(&id);
            assert!(refunds.iter().all(|refund| refund.exchange_sig.is_some() || !is_paid), "{id}");
        }
        self.alice.transactions(false).unwrap()
    }
}

#[tokio::test]
async fn random_lives_with_shops_lose_nothing() {
    let mut seen = std::collections::BTreeMap::new();
    for seed in 0..LIVES {
        let mut life = Life::new(seed).await;
        for _ in 0..STEPS {
            life.step().await;
        }
        for row in life.end().await {
            *seen.entry((row.kind, row.status == Status::Done)).or_insert(0) += 1;
        }
    }
    for kind in [("payment", true), ("payment", false), ("refund", true), ("tip", true)] {
        assert!(seen.get(&kind).is_some_and(|count| *count > 5), "{kind:?} is rare: {seen:?}");
    }
}
