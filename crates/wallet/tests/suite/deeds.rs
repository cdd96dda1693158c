//! Random deeds of a wallet's user, over a network that may lose or alter answers.

use batzen_crypto::{EddsaPrivateKey, HashCode};
use batzen_protocol::{Amount, Duration};
use batzen_testkit::world::{EXCHANGE, START, World, check_history};
use batzen_wallet::{CipherChoice, DepositAmount, PaymentReceipt, PeerRequest, RefundPermission, Wallet};
use proptest::prelude::*;

use crate::common::{PAYTO, empty, permission, request, try_fill};

/// A deed. Sums are in cents.
#[derive(Clone, Debug)]
pub(crate) enum Deed {
    Withdraw { sum: u64, cs: bool },
    Pay { sum: u64 },
    Deposit { sum: u64 },
    Refund { payment: usize, percent: u64 },
    Revoke { denomination: usize },
    // Sends money, and accepts it in the same wallet, or takes it back.
    Send { sum: u64, takes_back: bool },
    // Requests money, and pays it in the same wallet, or withdraws the request.
    Request { sum: u64, takes_back: bool },
}

fn withdraw() -> impl Strategy<Value = Deed> {
    (50u64..1500, any::<bool>()).prop_map(|(sum, cs)| Deed::Withdraw { sum, cs })
}

fn pay() -> impl Strategy<Value = Deed> {
    (1u64..900).prop_map(|sum| Deed::Pay { sum })
}

fn deposit() -> impl Strategy<Value = Deed> {
    (1u64..500).prop_map(|sum| Deed::Deposit { sum })
}

fn refund() -> impl Strategy<Value = Deed> {
    (0usize..8, 1u64..=100).prop_map(|(payment, percent)| Deed::Refund { payment, percent })
}

fn revoke() -> impl Strategy<Value = Deed> {
    (0usize..10).prop_map(|denomination| Deed::Revoke { denomination })
}

/// A deed that takes no second person.
pub(crate) fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![4 => withdraw(), 4 => pay(), 2 => deposit(), 2 => refund(), 1 => revoke()]
}

/// Any deed. The strategies are not nested, so that saved seeds go on to give the same deeds.
pub(crate) fn any_deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        4 => withdraw(),
        4 => pay(),
        2 => deposit(),
        2 => refund(),
        1 => revoke(),
        2 => (1u64..500, any::<bool>()).prop_map(|(sum, takes_back)| Deed::Send { sum, takes_back }),
        2 => (1u64..500, any::<bool>()).prop_map(|(sum, takes_back)| Deed::Request { sum, takes_back }),
    ]
}

/// A user's life.
pub(crate) struct Life {
    pub world: World,
    pub wallet: Wallet,
    merchant: EddsaPrivateKey,
    receipts: Vec<(HashCode, PaymentReceipt)>,
    /// Refunds that the merchant has permitted.
    pub refunds: Vec<(HashCode, Vec<RefundPermission>)>,
}

fn cents(sum: u64) -> Amount {
    format!("KUDOS:{}.{:02}", sum / 100, sum % 100).parse().unwrap()
}

fn peer_request(sum: u64) -> PeerRequest {
    PeerRequest {
        exchange: Some(EXCHANGE.to_owned()),
        amount: cents(sum),
        summary: "lunch".to_owned(),
        expiration: START.saturating_add(Duration::from_days(2)),
        min_age: 0,
    }
}

impl Life {
    pub(crate) async fn begin(seed: u64) -> Self {
        let world = World::new().await;
        let wallet = empty(&world, seed).await;
        let merchant = EddsaPrivateKey::generate();
        Self { world, wallet, merchant, receipts: Vec::new(), refunds: Vec::new() }
    }

    /// Does all deeds, whatever becomes of them, and now and then what is pending.
    pub(crate) async fn live(&mut self, deeds: &[Deed]) {
        for (number, deed) in deeds.iter().enumerate() {
            self.act(number, deed).await;
            check_history(&self.wallet);
            if number % 3 == 0 {
                self.wallet.run_pending().await.unwrap();
            }
        }
    }

    async fn act(&mut self, number: usize, deed: &Deed) {
        let wallet = &self.wallet;
        match *deed {
            Deed::Withdraw { sum, cs } => {
                let cipher = if cs { CipherChoice::Cs } else { CipherChoice::Rsa };
                let _ = try_fill(wallet, cents(sum), cipher).await;
            }
            Deed::Pay { sum } => {
                let request = request(&self.merchant, &cents(sum).to_string(), number as u8);
                if let Ok(receipt) = wallet.pay(&request).await {
                    self.receipts.push((request.h_contract_terms, receipt));
                }
            }
            Deed::Deposit { sum } => {
                let _ = wallet.deposit(EXCHANGE, DepositAmount::Exact(cents(sum)), PAYTO).await;
            }
            Deed::Refund { payment, percent } => {
                let Some((h_contract_terms, receipt)) = self.receipts.get(payment) else { return };
                let permissions = receipt.coins.iter().map(|coin| {
                    let sum = coin.contribution.checked_mul(percent).unwrap().checked_div(100).unwrap();
                    permission(&self.merchant, *h_contract_terms, coin, number as u64, sum)
                });
                let permissions: Vec<_> = permissions.collect();
                // The exchange refuses a refund above the payment, or below the fee.
                let _ = wallet.refund(h_contract_terms, &permissions).await;
                self.refunds.push((*h_contract_terms, permissions));
            }
            Deed::Revoke { denomination } => {
                self.world.exchange.revoke_coin(denomination).await;
                let _ = wallet.add_exchange(EXCHANGE).await;
            }
            Deed::Send { sum, takes_back } => {
                if let Ok(id) = wallet.send_money(&peer_request(sum)).await {
                    self.answer(id, takes_back).await;
                }
            }
            Deed::Request { sum, takes_back } => {
                if let Ok(id) = wallet.request_money(&peer_request(sum)).await {
                    self.answer(id, takes_back).await;
                }
            }
        }
    }

    /// The other side of a payment between people, by the same wallet.
    async fn answer(&self, id: u64, takes_back: bool) {
        if takes_back {
            let _ = self.wallet.cancel(id);
            return;
        }
        let Some(uri) = self.wallet.transaction(id).unwrap().uri else { return };
        if let Ok(peer) = self.wallet.inspect_peer(&uri).await {
            let _ = self.wallet.accept_peer(&peer).await;
        }
    }
}
