//! Fees of purchases: what the wallet pays is exactly what the merchant's own rule asks for.

use proptest::prelude::*;

use super::*;

fn cents(n: u64) -> String {
    format!("KUDOS:{}.{:02}", n / 100, n % 100)
}

#[tokio::test]
async fn the_customer_pays_what_the_merchant_does_not_bear() {
    // Deposit fee, wire fee, max_fee, max_wire_fee, amortization, and what comes on top of 1.00.
    for (fee_deposit, fee_wire, max_fee, max_wire_fee, amortization, on_top) in [
        (1, 2, 5, 5, Some(1), 0),
        (1, 2, 0, 5, Some(1), 1),
        (1, 10, 0, 0, Some(1), 11),
        (1, 10, 0, 4, Some(3), 3),
        (1, 10, 11, 0, Some(1), 0),
        (1, 10, 8, 0, Some(1), 3),
        (1, 10, 0, 0, None, 11),
        (1, 10, 0, 0, Some(-7), 11),
    ] {
        let world = World::with(Terms { fee_deposit, fee_wire, ..Terms::default() }).await;
        let alice = filled(&world, 1, "KUDOS:5.5", CipherChoice::Any).await;
        let shop = Shop::open(&world).await;
        let uri = shop
            .order("coffee", "KUDOS:1", |contract| {
                contract["max_fee"] = json!(cents(max_fee));
                contract["max_wire_fee"] = json!(cents(max_wire_fee));
                if let Some(n) = amortization.filter(|n: &i64| *n > 0) {
                    contract["wire_fee_amortization"] = json!(n);
                }
            })
            .await;
        let is_strange = amortization.is_none_or(|n| n < 1);
        if is_strange {
            // No backend makes such a contract.
            shop.forge_contracts(move |contract| match amortization {
                Some(n) => contract["wire_fee_amortization"] = json!(n),
                None => drop(contract.as_object_mut().unwrap().remove("wire_fee_amortization")),
            });
        }
        let bought = buy(&alice, &uri).await;
        assert_eq!((bought.is_ok(), shop.is_paid("coffee")), (!is_strange, !is_strange), "{bought:?}");
        let rows = alice.transactions(false).unwrap();
        let paid = rows.into_iter().find(|row| row.kind == "payment").unwrap();
        // Fees may need a further coin, and that coin's fee.
        let extra = (paid.coins as u64 - 1) * fee_deposit;
        let wanted = on_top + if on_top > 0 { extra } else { 0 };
        assert_eq!(paid.fees, amount(&cents(wanted)), "{paid:#?}");
        if !is_strange {
            settle(&alice).await;
            check_books(&world, &[&alice]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_payment_satisfies_the_merchant(
        price in 1u64..900,
        (max_fee, max_wire_fee, amortization) in (0u64..30, 0u64..30, 1i64..6),
        (fee_deposit, fee_wire) in (0u64..9, 0u64..40),
        seed in 1u64..1_000_000,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let world = World::with(Terms { fee_deposit, fee_wire, ..Terms::default() }).await;
            let alice = filled(&world, seed, "KUDOS:13.37", CipherChoice::Any).await;
            let shop = Shop::open(&world).await;
            let uri = shop.order("coffee", &cents(price), |contract| {
                contract["max_fee"] = json!(cents(max_fee));
                contract["max_wire_fee"] = json!(cents(max_wire_fee));
                contract["wire_fee_amortization"] = json!(amortization);
            }).await;
            let id = buy(&alice, &uri).await.unwrap();
            let paid = row(&alice, id);
            // On one coin at most the fee is more than what is needed of it.
            let deposited = shop.deposits("coffee");
            let fees: i128 = deposited.iter().map(|row| row.deposit_fee.units() as i128).sum();
            let share = (i128::from(fee_wire) - i128::from(max_wire_fee)).max(0)
                / i128::from(amortization) * 1_000_000;
            // The exchange's unit is finer than a cent.
            let slack = 1_000_000;
            let on_top = (fees + share - i128::from(max_fee) * 1_000_000).max(0);
            let wanted = i128::from(price) * 1_000_000 + on_top;
            let total = shop.deposited("coffee");
            let forced = deposited.iter().any(|row| row.amount == row.deposit_fee);
            assert!(total >= wanted - slack && (forced || total <= wanted + slack), "{paid:#?}");
            settle(&alice).await;
            check_books(&world, &[&alice]);
        });
    }
}
