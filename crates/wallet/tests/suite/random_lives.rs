//! Goal: no sequence of user actions, over a network that loses answers, loses or creates money.
//!
//! Method: random sequences of withdrawals, payments, deposits, refunds and revocations; afterwards the books of both sides agree coin by coin.

use std::sync::atomic::Ordering;

use batzen_crypto::{EddsaPrivateKey, HashCode, WireSalt};
use batzen_protocol::signatures::{MerchantRefund, SignedMessage};
use batzen_protocol::{Duration, Money, MoneySum};
use batzen_testkit::world::{BANK, EXCHANGE, START, World, check_history, check_no_loss};
use batzen_wallet::{CipherChoice, DepositAmount, PaymentReceipt, PaymentRequest, RefundPermission, Wallet};
use proptest::prelude::*;

const PAYTO: &str = "payto://x-taler-bank/bank.test/alice?receiver-name=alice";

#[derive(Clone, Debug)]
enum Deed {
    Withdraw { cents: u64, cs: bool },
    Pay { cents: u64 },
    Deposit { cents: u64 },
    Refund { payment: usize, percent: u64 },
    Revoke { denomination: usize },
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        4 => (50u64..1500, any::<bool>()).prop_map(|(cents, cs)| Deed::Withdraw { cents, cs }),
        4 => (1u64..900).prop_map(|cents| Deed::Pay { cents }),
        2 => (1u64..500).prop_map(|cents| Deed::Deposit { cents }),
        2 => (0usize..8, 1u64..=100).prop_map(|(payment, percent)| Deed::Refund { payment, percent }),
        1 => (0usize..10).prop_map(|denomination| Deed::Revoke { denomination }),
    ]
}

async fn play(deeds: &[Deed], lose_every: u64, seed: u64) {
    let world = World::new().await;
    let wallet = Wallet::in_memory_with(world.options(seed));
    wallet.add_exchange(EXCHANGE).await.unwrap();
    wallet.accept_terms(EXCHANGE).unwrap();
    world.network.lose_every.store(lose_every, Ordering::SeqCst);
    let merchant = EddsaPrivateKey::generate();
    let mut receipts: Vec<(HashCode, PaymentReceipt)> = Vec::new();
    let amount = |cents: u64| {
        format!("KUDOS:{}.{:02}", cents / 100, cents % 100).parse::<batzen_wallet::Amount>().unwrap()
    };
    for (number, deed) in deeds.iter().enumerate() {
        match deed {
            Deed::Withdraw { cents, cs } => {
                let cipher = if *cs { CipherChoice::Cs } else { CipherChoice::Rsa };
                let started = wallet.withdraw_from_bank(BANK, "a", "pw", amount(*cents), None, cipher).await;
                if let Ok(id) = started {
                    let _ = wallet.finish(id).await;
                }
            }
            Deed::Pay { cents } => {
                let h_contract_terms = HashCode::from_bytes([number as u8; 64]);
                let request = PaymentRequest {
                    exchange: None,
                    amount: amount(*cents),
                    max_fee: Money::ZERO,
                    merchant_pub: merchant.public_key(),
                    merchant_payto: PAYTO.to_owned(),
                    wire_salt: WireSalt::from_bytes([7; 16]),
                    h_contract_terms,
                    timestamp: None,
                    refund_deadline: START.saturating_add(Duration::from_days(1)),
                    wire_transfer_deadline: START.saturating_add(Duration::from_days(2)),
                    summary: "something".to_owned(),
                };
                if let Ok(receipt) = wallet.pay(&request).await {
                    receipts.push((h_contract_terms, receipt));
                }
            }
            Deed::Deposit { cents } => {
                let _ = wallet.deposit(EXCHANGE, DepositAmount::Exact(amount(*cents)), PAYTO).await;
            }
            Deed::Refund { payment, percent } => {
                let Some((h_contract_terms, receipt)) = receipts.get(*payment) else { continue };
                let mut permissions = Vec::new();
                for coin in &receipt.coins {
                    let refund_amount =
                        coin.contribution.checked_mul(*percent).unwrap().checked_div(100).unwrap();
                    let message = MerchantRefund {
                        h_contract_terms: *h_contract_terms,
                        coin_pub: coin.coin_pub,
                        rtransaction_id: number as u64,
                        refund_amount,
                    };
                    permissions.push(RefundPermission {
                        coin_pub: coin.coin_pub,
                        rtransaction_id: number as u64,
                        amount: refund_amount,
                        merchant_sig: message.sign(&merchant),
                    });
                }
                // The exchange refuses a refund above the payment, or below the fee.
                let _ = wallet.refund(h_contract_terms, &permissions).await;
            }
            Deed::Revoke { denomination } => {
                world.exchange.revoke_coin(*denomination).await;
                let _ = wallet.add_exchange(EXCHANGE).await;
            }
        }
        check_history(&wallet);
        if number % 3 == 0 {
            wallet.run_pending().await.unwrap();
        }
    }
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
