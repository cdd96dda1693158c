//! Wallets with money at the world's exchange, and merchants that they pay without a backend.

use batzen_crypto::{EddsaPrivateKey, HashCode, WireSalt};
use batzen_protocol::signatures::{MerchantRefund, SignedMessage};
use batzen_protocol::{Amount, Duration, Money};
use batzen_testkit::world::{BANK, EXCHANGE, START, World, amount, check_books, check_no_loss};
use batzen_wallet::{
    CipherChoice, CoinWish, PaymentRequest, ReceiptCoin, RefundPermission, RunUntil, Transaction, Wallet,
    WalletError,
};

/// The account that merchants are paid to.
pub(crate) const PAYTO: &str = "payto://x-taler-bank/bank.test/alice?receiver-name=alice";

/// Adds the exchange, and accepts its terms.
pub(crate) async fn join(wallet: &Wallet) {
    wallet.add_exchange(EXCHANGE).await.unwrap();
    wallet.accept_terms(EXCHANGE).unwrap();
}

/// A wallet that knows the exchange.
pub(crate) async fn empty(world: &World, seed: u64) -> Wallet {
    let wallet = Wallet::in_memory_with(world.options(seed));
    join(&wallet).await;
    wallet
}

/// A wallet with this much money in coins of a kind.
pub(crate) async fn filled(world: &World, seed: u64, sum: &str, wish: impl Into<CoinWish>) -> Wallet {
    let wallet = empty(world, seed).await;
    fill(&wallet, sum, wish).await;
    wallet
}

/// A world with such a wallet.
pub(crate) async fn begin(sum: &str, wish: impl Into<CoinWish>) -> (World, Wallet) {
    let world = World::new().await;
    let wallet = filled(&world, 1, sum, wish).await;
    (world, wallet)
}

/// A copy of a wallet, as a backup makes one.
pub(crate) fn copy_of(wallet: &Wallet, world: &World, seed: u64) -> Wallet {
    let copy = Wallet::in_memory_with(world.options(seed));
    copy.import(wallet.export()).unwrap();
    copy
}

/// Withdraws money from an account at the bank.
pub(crate) async fn fill(wallet: &Wallet, sum: &str, wish: impl Into<CoinWish>) {
    try_fill(wallet, amount(sum), wish).await.unwrap();
}

/// The same, which may fail.
pub(crate) async fn try_fill(
    wallet: &Wallet,
    sum: Amount,
    wish: impl Into<CoinWish>,
) -> Result<(), WalletError> {
    let id = wallet.withdraw_from_bank(BANK, "alice", "pw", sum, None, wish).await?;
    wallet.finish(id).await
}

/// Goes on with a script where an earlier life of the wallet ended.
pub(crate) async fn resume(wallet: &Wallet) -> Result<(), WalletError> {
    wallet.run_pending().await?;
    if wallet.with_state(|state| state.exchanges.is_empty()) {
        wallet.add_exchange(EXCHANGE).await?;
    }
    wallet.accept_terms(EXCHANGE)?;
    Ok(())
}

/// The same with money, which is withdrawn once.
pub(crate) async fn resume_with(wallet: &Wallet, sum: &str) -> Result<(), WalletError> {
    resume(wallet).await?;
    if count(wallet, "withdrawal") == 0 {
        try_fill(wallet, amount(sum), CipherChoice::Any).await?;
    }
    Ok(())
}

/// The number of operations of a kind in the history.
pub(crate) fn count(wallet: &Wallet, kind: &str) -> usize {
    wallet.transactions(true).unwrap().iter().filter(|row| row.kind == kind).count()
}

/// The latest operation of a kind in the history.
pub(crate) fn latest(wallet: &Wallet, kind: &str) -> Transaction {
    wallet.transactions(false).unwrap().into_iter().find(|row| row.kind == kind).unwrap()
}

/// The money that can be spent now.
pub(crate) fn available(wallet: &Wallet) -> Amount {
    wallet.balance().unwrap()[0].available
}

/// Runs a wallet until nothing is pending.
pub(crate) async fn settle(wallet: &Wallet) {
    let report = wallet.run(RunUntil::Finished(Some(std::time::Duration::from_secs(20)))).await.unwrap();
    assert!(report.pending.is_empty(), "{:#?}", report.pending);
}

/// Checks the books of a wallet that has not lost anything, once nothing is pending.
pub(crate) async fn settle_without_loss(world: &World, wallet: &Wallet) {
    settle(wallet).await;
    check_books(world, &[wallet]);
    check_no_loss(wallet);
}

/// A payment for a book, whose contract has this number.
pub(crate) fn request(merchant: &EddsaPrivateKey, sum: &str, contract: u8) -> PaymentRequest {
    PaymentRequest {
        exchange: None,
        amount: amount(sum),
        max_fee: Money::ZERO,
        merchant_pub: merchant.public_key(),
        merchant_payto: PAYTO.to_owned(),
        wire_salt: WireSalt::from_bytes([7; 16]),
        h_contract_terms: HashCode::from_bytes([contract; 64]),
        timestamp: None,
        refund_deadline: START.saturating_add(Duration::from_days(1)),
        wire_transfer_deadline: START.saturating_add(Duration::from_days(2)),
        summary: "a book".to_owned(),
    }
}

/// A merchant's permission to refund a part of a coin's contribution.
pub(crate) fn permission(
    merchant: &EddsaPrivateKey,
    h_contract_terms: HashCode,
    coin: &ReceiptCoin,
    rtransaction_id: u64,
    refund_amount: Amount,
) -> RefundPermission {
    let coin_pub = coin.coin_pub;
    let message = MerchantRefund { h_contract_terms, coin_pub, rtransaction_id, refund_amount };
    RefundPermission {
        coin_pub,
        rtransaction_id,
        amount: refund_amount,
        merchant_sig: message.sign(merchant),
    }
}
