//! Complete life cycles of coins.

use std::sync::atomic::Ordering;

use batzen_crypto::EddsaPrivateKey;
use batzen_protocol::{Duration, Money, Timestamp};
use batzen_testkit::world::{
    BANK, EXCHANGE, START, Terms, World, amount, check_books, check_history, require_identification,
};
use batzen_wallet::core::http::Context;
use batzen_wallet::core::{CoreError, payment, withdraw};
use batzen_wallet::{
    CipherChoice, CoinStatus, DepositAmount, PaymentReceipt, ReceiptCoin, RefundPermission, RunUntil, Status,
    Wallet, WalletError,
};

use crate::common::{PAYTO, available, begin, copy_of, empty, fill, filled, permission, request};

#[tokio::test]
async fn withdrawals_require_accepted_terms() {
    let world = World::new().await;
    let wallet = Wallet::in_memory_with(world.options(1));
    let exchange = wallet.add_exchange("http://Exchange.test").await.unwrap();
    assert_eq!((exchange.base_url.as_str(), exchange.denoms.len()), (EXCHANGE, 10));
    assert_eq!((exchange.terms.version.as_str(), exchange.terms.text.as_str()), ("tos-1", "Be nice."));
    let refused = wallet.withdraw_manual(EXCHANGE, amount("KUDOS:5"), CipherChoice::Any).await;
    assert!(matches!(refused, Err(WalletError::Core(CoreError::TermsNotAccepted(_)))), "{refused:?}");
    wallet.accept_terms(EXCHANGE).unwrap();
    wallet.withdraw_manual(EXCHANGE, amount("KUDOS:5"), CipherChoice::Any).await.unwrap();
    let small = wallet.withdraw_manual(EXCHANGE, amount("KUDOS:0.05"), CipherChoice::Any).await;
    assert!(matches!(small, Err(WalletError::Core(CoreError::TooSmall { .. }))), "{small:?}");
}

#[tokio::test]
async fn a_clock_that_is_behind_hides_no_money_and_is_named() {
    let (world, wallet) = begin("KUDOS:5", CipherChoice::Any).await;
    let before = wallet.balance().unwrap();
    let early = START.saturating_sub(Duration::from_days(400));
    world.set_time(early).await;
    assert_eq!(wallet.balance().unwrap(), before);
    let exchange = wallet.with_state(|state| state.exchanges[EXCHANGE].clone());
    let refused = withdraw::preview(&exchange, amount("KUDOS:5"), CipherChoice::Any, early).unwrap_err();
    assert!(matches!(refused, CoreError::ClockBehind { .. }), "{refused}");
    let text = refused.to_string();
    assert!(text.starts_with("this device's clock is at least ") && text.contains(" days behind "), "{text}");
}

#[tokio::test]
async fn coins_that_cost_what_they_are_worth_are_not_withdrawn() {
    let world = World::with(Terms { fee_deposit: 10, values: &[10], ..Terms::default() }).await;
    let wallet = empty(&world, 1).await;
    let refused = wallet.withdraw_manual(EXCHANGE, amount("KUDOS:5"), CipherChoice::Any).await;
    assert!(matches!(refused, Err(WalletError::Core(CoreError::FeesTakeAll(_)))), "{refused:?}");
    // Where others are offered, these are left out, and what is left of a coin in a payment is too small to use.
    let world = World::with(Terms { fee_deposit: 10, values: &[200, 10], ..Terms::default() }).await;
    let wallet = filled(&world, 1, "KUDOS:2.5", CipherChoice::Any).await;
    assert_eq!(wallet.coins().len(), 1);
    assert_eq!(available(&wallet), amount("KUDOS:2"));
    check_books(&world, &[&wallet]);
}

#[tokio::test]
async fn change_that_takes_several_refreshes_is_quoted_whole() {
    let terms =
        Terms { fee_withdraw: 0, fee_deposit: 0, fee_refresh: 0, values: &[10_000, 10], ..Terms::default() };
    let world = World::with(terms).await;
    let wallet = filled(&world, 1, "KUDOS:100", CipherChoice::Any).await;
    let plan = wallet.with_state(|state| {
        payment::preview_deposit(state, EXCHANGE, DepositAmount::Exact(amount("KUDOS:0.1")), START)
    });
    // 999 coins, of which a refresh makes 64.
    assert_eq!(plan.unwrap().change_cost, Money::ZERO);
}

#[tokio::test]
async fn withdraws_both_ciphers_in_batches_and_one_by_one() {
    for has_batch in [true, false] {
        let world = World::with(Terms { has_batch, ..Terms::default() }).await;
        let wallet = filled(&world, 1, "KUDOS:20", CipherChoice::Rsa).await;
        fill(&wallet, "KUDOS:7", CipherChoice::Cs).await;
        // 8 + 8 + 2 + 1 + 8 * 0.1 with 12 withdrawal fees, and 4 + 2 + 8 * 0.1 with 10.
        assert_eq!(available(&wallet), amount("KUDOS:26.6"));
        let is_cs = |coin: &batzen_wallet::Coin| coin.cs.is_some();
        assert_eq!(wallet.coins().iter().filter(|coin| is_cs(coin)).count(), 10);
        check_books(&world, &[&wallet]);
        let counts = (world.network.count("batch-withdraw"), world.network.count("/withdraw"));
        assert_eq!(counts, if has_batch { (2, 0) } else { (2, 22) });
    }
}

#[tokio::test]
async fn an_exchange_that_refuses_repeated_batches_is_asked_coin_by_coin() {
    let world = World::with(Terms { refuses_batch_repetition: true, ..Terms::default() }).await;
    let wallet = empty(&world, 1).await;
    // The answer to the batch is the ninth of this withdrawal; it is lost.
    let before = world.network.sent.load(Ordering::SeqCst);
    world.network.lose_every.store(before + 9, Ordering::SeqCst);
    fill(&wallet, "KUDOS:7.5", CipherChoice::Rsa).await;
    world.network.lose_every.store(0, Ordering::SeqCst);
    assert!(world.network.count("/withdraw") > 0, "it went one by one");
    check_books(&world, &[&wallet]);
}

#[tokio::test]
async fn manual_withdrawals_wait_for_the_transfer() {
    let world = World::new().await;
    let wallet = empty(&world, 1).await;
    let manual = wallet.withdraw_manual(EXCHANGE, amount("KUDOS:5"), CipherChoice::Any).await.unwrap();
    assert_eq!(
        manual.payto_uris,
        [format!(
            "payto://x-taler-bank/bank.test/exchange?receiver-name=exchange&amount=KUDOS:5&message={}",
            manual.reserve_pub
        )]
    );
    let report = wallet.run_pending().await.unwrap();
    assert_eq!(report.pending.len(), 1);
    assert_eq!(
        report.pending[0].message.as_deref(),
        Some("waiting for your bank transfer to reach the exchange")
    );
    assert_eq!(wallet.balance().unwrap()[0].pending_incoming, amount("KUDOS:5"));
    // More money arrives than announced: all of it becomes coins.
    world.credit(manual.reserve_pub, amount("KUDOS:6")).await;
    let report = wallet.run(RunUntil::Finished(None)).await.unwrap();
    assert_eq!((report.finished, report.pending.len()), (vec![manual.operation], 0));
    assert_eq!(available(&wallet), amount("KUDOS:5.8"));
    check_books(&world, &[&wallet]);
}

#[tokio::test]
async fn bank_withdrawals_wait_for_confirmation() {
    let world = World::new().await;
    let wallet = empty(&world, 1).await;
    let uri = world.create_bank_operation(amount("KUDOS:10")).await;
    let offer = wallet.inspect_withdrawal(&uri).await.unwrap();
    assert_eq!((offer.amount, offer.suggested_exchange.as_deref()), (amount("KUDOS:10"), Some(EXCHANGE)));
    let id = wallet.accept_withdrawal(&offer, None, CipherChoice::Any, None).await.unwrap();
    let again = wallet.accept_withdrawal(&offer, None, CipherChoice::Any, None).await.unwrap();
    assert_eq!(id, again, "accepting twice is one withdrawal");
    assert!(matches!(wallet.finish(id).await, Err(WalletError::Pending { .. })));
    world.confirm_at_bank(&uri).await;
    wallet.finish(id).await.unwrap();
    check_books(&world, &[&wallet]);
    let other = empty(&world, 2).await;
    let id = other.accept_withdrawal(&offer, None, CipherChoice::Any, None).await.unwrap();
    other.finish(id).await.unwrap();
    let line = other.transaction(id).unwrap();
    assert_eq!(
        (line.status, line.message.as_deref()),
        (Status::Failed, Some("another wallet took this withdrawal"))
    );
}

#[tokio::test]
async fn pays_and_makes_change() {
    for cipher in [CipherChoice::Rsa, CipherChoice::Cs] {
        let (world, wallet) = begin("KUDOS:8.01", cipher).await;
        assert_eq!(available(&wallet), amount("KUDOS:8"));
        let merchant = EddsaPrivateKey::generate();
        let receipt: PaymentReceipt = wallet.pay(&request(&merchant, "KUDOS:3", 1)).await.unwrap();
        assert_eq!((receipt.total, receipt.fees), (amount("KUDOS:3.01"), amount("KUDOS:0.01")));
        let report = wallet.run_pending().await.unwrap();
        assert!(report.pending.is_empty(), "{report:?}");
        check_books(&world, &[&wallet]);
        // 4.99 is left: less the fee for melting and those for fresh coins 4 + 9 * 0.1 = 4.9 and 10 fees do
        // not fit, so 8 of them, and a dust of 0.08 stays on the old coin.
        let balance = &wallet.balance().unwrap()[0];
        assert_eq!((balance.available, balance.dust), (amount("KUDOS:4.8"), amount("KUDOS:0.09")));
        assert_eq!(world.network.conflicts(), 0);
        let used = wallet.coins().into_iter().filter(|coin| coin.status == CoinStatus::Used).count();
        assert_eq!(used, 1);
        let history = wallet.transactions(true).unwrap();
        assert_eq!(history.len(), 3);
        assert_eq!((history[0].kind, history[0].status), ("refresh", Status::Done));
        assert_eq!((history[1].kind, history[1].effect.as_str()), ("payment", "-KUDOS:3.01"));
        assert_eq!((history[2].kind, history[2].effect.as_str()), ("withdrawal", "+KUDOS:8"));
    }
}

#[tokio::test]
async fn too_little_money_changes_nothing() {
    let (_world, wallet) = begin("KUDOS:8.01", CipherChoice::Any).await;
    let before = wallet.export();
    let merchant = EddsaPrivateKey::generate();
    let refused = wallet.pay(&request(&merchant, "KUDOS:8", 1)).await;
    assert!(matches!(refused, Err(WalletError::Core(CoreError::InsufficientFunds { .. }))), "{refused:?}");
    assert_eq!(wallet.export(), before);
}

#[tokio::test]
async fn deposits_everything_into_a_bank_account() {
    let (world, wallet) = begin("KUDOS:20", CipherChoice::Any).await;
    let receipt = wallet.deposit(EXCHANGE, DepositAmount::All, PAYTO).await.unwrap();
    assert_eq!(receipt.total, amount("KUDOS:19.8"));
    wallet.run_pending().await.unwrap();
    assert_eq!(available(&wallet), amount("KUDOS:0"));
    check_books(&world, &[&wallet]);
    let bad = wallet.deposit(EXCHANGE, DepositAmount::Exact(amount("KUDOS:1")), "nonsense").await;
    assert!(matches!(bad, Err(WalletError::Core(CoreError::BadInput { what: "payto URI", .. }))), "{bad:?}");
}

#[tokio::test]
async fn refunds_come_back_as_fresh_coins() {
    let (world, wallet) = begin("KUDOS:20", CipherChoice::Any).await;
    let merchant = EddsaPrivateKey::generate();
    let pay = request(&merchant, "KUDOS:10", 1);
    let receipt = wallet.pay(&pay).await.unwrap();
    wallet.run_pending().await.unwrap();
    let before = available(&wallet);
    let terms = pay.h_contract_terms;
    let refund = |coin: &ReceiptCoin, number| permission(&merchant, terms, coin, number, coin.contribution);
    let permissions: Vec<_> = receipt.coins.iter().map(|coin| refund(coin, 1)).collect();
    let id = wallet.refund(&terms, &permissions).await.unwrap().unwrap();
    assert_eq!(wallet.refund(&terms, &permissions).await.unwrap(), None, "known already");
    wallet.run_pending().await.unwrap();
    check_books(&world, &[&wallet]);
    assert!(available(&wallet).checked_sub(&before).unwrap().money > amount("KUDOS:9").money);
    let line = wallet.transaction(id).unwrap();
    assert_eq!((line.kind, line.status), ("refund", Status::Done));
    // A permission that the merchant did not sign, and one for more than was paid.
    let forged = RefundPermission { rtransaction_id: 2, ..permissions[0] };
    assert!(wallet.refund(&terms, &[forged]).await.is_err());
    assert!(wallet.refund(&terms, &[refund(&receipt.coins[0], 2)]).await.is_err());
    check_books(&world, &[&wallet]);
}

#[tokio::test]
async fn a_copy_of_the_wallet_finds_out_and_pays_with_other_coins() {
    let (world, wallet) = begin("KUDOS:60", CipherChoice::Rsa).await;
    let copy = copy_of(&wallet, &world, 9);
    let merchant = EddsaPrivateKey::generate();
    wallet.pay(&request(&merchant, "KUDOS:15.9", 1)).await.unwrap();
    wallet.run_pending().await.unwrap();
    // The copy tries coins that are already spent, gets the proof, and pays with others.
    copy.pay(&request(&merchant, "KUDOS:15.9", 2)).await.unwrap();
    copy.run_pending().await.unwrap();
    world.exchange.check_conservation();
    assert!(world.network.conflicts() > 0);
    let lost = copy.coins().into_iter().filter(|coin| coin.status == CoinStatus::Lost).count();
    assert!(lost > 0);
    let broke = copy.pay(&request(&merchant, "KUDOS:40", 3)).await;
    assert!(broke.is_err());
    assert!(copy.pending().is_empty());
    check_history(&copy);
    let history = copy.history(false).unwrap();
    assert!(history.transactions.iter().any(|row| row.kind == "spent-elsewhere"), "{history:#?}");
}

#[tokio::test]
async fn expired_coins_have_a_row_in_the_history() {
    let (world, wallet) = begin("KUDOS:20", CipherChoice::Rsa).await;
    let history = wallet.history(false).unwrap();
    assert!(history.transactions.iter().all(|row| row.kind == "withdrawal"), "{history:#?}");
    world.clock.set(START.saturating_add(Duration::from_days(3650)));
    check_history(&wallet);
    let history = wallet.history(false).unwrap();
    assert!(history.transactions.iter().any(|row| row.kind == "expired"), "{history:#?}");
    assert_eq!(history.totals[0].total, "+KUDOS:0");
}

#[tokio::test]
async fn pending_operations_say_what_they_wait_for_and_until_when() {
    let world = World::new().await;
    let wallet = empty(&world, 1).await;
    wallet.withdraw_manual(EXCHANGE, amount("KUDOS:5"), CipherChoice::Any).await.unwrap();
    let pending = wallet.pending();
    assert_eq!(pending[0].waits_for, "waits for the bank transfer");
    assert_eq!(pending[0].until_event, Some("reserve expires"));
    assert!(pending[0].until.unwrap() > START);
    check_history(&wallet);
}

#[tokio::test]
async fn revoked_coins_are_paid_back() {
    for cipher in [CipherChoice::Rsa, CipherChoice::Cs] {
        let (world, wallet) = begin("KUDOS:20", cipher).await;
        let merchant = EddsaPrivateKey::generate();
        // Some of the coins are change: they are paid back to the coin they came from.
        wallet.pay(&request(&merchant, "KUDOS:3.9", 1)).await.unwrap();
        wallet.run_pending().await.unwrap();
        let before = available(&wallet);
        world
            .exchange
            .revoke(|denom| {
                [amount("KUDOS:0.1"), amount("KUDOS:2")].map(|sum| sum.money).contains(&denom.value)
            })
            .await;
        wallet.add_exchange(EXCHANGE).await.unwrap();
        let report = wallet.run_pending().await.unwrap();
        assert!(report.pending.is_empty(), "{report:?}");
        check_books(&world, &[&wallet]);
        let history = wallet.transactions(false).unwrap();
        assert!(history.iter().any(|line| line.kind == "recoup" && line.status == Status::Done));
        let after = available(&wallet);
        // Recoup is free, but fresh coins cost withdrawal fees, and change costs a melt fee.
        assert!(
            before.checked_sub(&after).unwrap().money <= amount("KUDOS:1").money,
            "{before} became {after}"
        );
        assert_eq!(world.network.conflicts(), 0);
    }
}

#[tokio::test]
async fn coins_are_refreshed_before_they_expire() {
    let (world, wallet) = begin("KUDOS:10", CipherChoice::Any).await;
    let later = START.saturating_add(Duration::from_days(90));
    world.set_time(later).await;
    wallet.add_exchange(EXCHANGE).await.unwrap();
    wallet.run_pending().await.unwrap();
    let after = START.saturating_add(Duration::from_days(101));
    world.set_time(after).await;
    let balance = &wallet.balance().unwrap()[0];
    assert!(balance.available.money > amount("KUDOS:8").money, "{balance:?}");
    check_books(&world, &[&wallet]);
}

#[tokio::test]
async fn identity_checks_are_reported_and_passed() {
    let world = World::new().await;
    let wallet = empty(&world, 1).await;
    require_identification(&world, true);
    let id = wallet
        .withdraw_from_bank(BANK, "alice", "pw", amount("KUDOS:5"), None, CipherChoice::Any)
        .await
        .unwrap();
    let _ = wallet.finish(id).await;
    let report = wallet.run_pending().await.unwrap();
    assert!(report.pending[0].message.as_deref().unwrap().contains("http://kyc.test/"), "{report:?}");
    require_identification(&world, false);
    wallet.run_pending().await.unwrap();
    assert!(wallet.pending().is_empty());
    check_books(&world, &[&wallet]);
}

#[tokio::test]
async fn denominations_that_vanish_are_replaced() {
    let world = World::new().await;
    let wallet = empty(&world, 1).await;
    let manual = wallet.withdraw_manual(EXCHANGE, amount("KUDOS:15"), CipherChoice::Any).await.unwrap();
    world.credit(manual.reserve_pub, amount("KUDOS:15")).await;
    world.exchange.revoke(|denom| denom.value == amount("KUDOS:8").money).await;
    wallet.finish(manual.operation).await.unwrap();
    check_books(&world, &[&wallet]);
    assert_eq!(available(&wallet), amount("KUDOS:14.8"));
}

#[tokio::test]
async fn new_signing_keys_are_looked_up() {
    let (world, wallet) = begin("KUDOS:8.01", CipherChoice::Any).await;
    world.exchange.revoke_signing_key().await;
    let merchant = EddsaPrivateKey::generate();
    wallet.pay(&request(&merchant, "KUDOS:3", 1)).await.unwrap();
    wallet.run_pending().await.unwrap();
    check_books(&world, &[&wallet]);
}

#[tokio::test]
async fn another_master_key_is_refused() {
    let mut world = World::new().await;
    let wallet = empty(&world, 1).await;
    world.replace_exchange().await;
    let refused = wallet.add_exchange(EXCHANGE).await;
    assert!(matches!(refused, Err(WalletError::Core(CoreError::MasterKeyChanged { .. }))), "{refused:?}");
}

#[tokio::test]
async fn overload_is_waited_out_and_reported() {
    let world = World::new().await;
    let wallet = empty(&world, 1).await;
    world.network.break_path("reserves", 503);
    let id = wallet
        .withdraw_from_bank(BANK, "alice", "pw", amount("KUDOS:5"), None, CipherChoice::Any)
        .await
        .unwrap();
    let stuck = wallet.finish(id).await;
    assert!(matches!(stuck, Err(WalletError::Unavailable { status: 503, .. })), "{stuck:?}");
    assert!(wallet.pending()[0].message.as_deref().unwrap().contains("503"));
    world.network.repair();
    wallet.finish(id).await.unwrap();
    check_books(&world, &[&wallet]);
}

#[tokio::test]
async fn cancelled_withdrawals_do_not_come_back() {
    let world = World::new().await;
    let wallet = empty(&world, 1).await;
    let manual = wallet.withdraw_manual(EXCHANGE, amount("KUDOS:5"), CipherChoice::Any).await.unwrap();
    wallet.cancel(manual.operation).unwrap();
    assert!(wallet.pending().is_empty());
    assert!(wallet.cancel(manual.operation).is_err());
    assert_eq!(wallet.transaction(manual.operation).unwrap().status, Status::Failed);
}

#[tokio::test]
async fn withdrawing_and_paying_do_not_share_a_context() {
    let world = World::new().await;
    let wallet = empty(&world, 1).await;
    let manual = wallet.withdraw_manual(EXCHANGE, amount("KUDOS:8.01"), CipherChoice::Any).await.unwrap();
    let context = |id| {
        wallet.with_state(|state| match batzen_wallet::core::next(state, id, 0).unwrap() {
            batzen_wallet::core::Next::Request(request) => request.context,
            batzen_wallet::core::Next::Done => panic!("not finished"),
        })
    };
    assert_eq!(context(manual.operation), Context::Withdraw);
    world.credit(manual.reserve_pub, amount("KUDOS:8.01")).await;
    wallet.finish(manual.operation).await.unwrap();
    world.network.break_path("deposit", 503);
    let merchant = EddsaPrivateKey::generate();
    let _ = wallet.pay(&request(&merchant, "KUDOS:3", 1)).await;
    assert_eq!(context(wallet.pending()[0].id), Context::Deposit);
    let preview = wallet.with_state(|state| {
        withdraw::preview(
            state.exchange(EXCHANGE).unwrap(),
            amount("KUDOS:3"),
            CipherChoice::Any,
            Timestamp::ZERO,
        )
    });
    assert!(matches!(preview, Err(CoreError::ClockBehind { .. })), "before the first denomination");
}
