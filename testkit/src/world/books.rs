//! Comparison of wallets with the books of the exchange.

use batzen_crypto::{EddsaPublicKey, HashCode};
use batzen_exchange::reads::read;
use batzen_exchange::reads::totals::{Totals, totals};
use batzen_protocol::{Money, MoneySum};
use batzen_wallet::{Transaction, Wallet};

use super::{Site, World, amount};

impl Site {
    /// The balance sheet, which must add up.
    pub fn check_conservation(&self) -> Totals {
        let core = &self.app().core;
        let totals = totals(&core.store, &core.rules.denoms).expect("the rows are consistent");
        assert!(totals.conserved(), "the exchange's books do not add up: {totals:#?}");
        totals
    }

    /// The value of a denomination's coins.
    pub fn value(&self, h_denom_pub: &HashCode) -> Money {
        self.app().keys().find_denomination(h_denom_pub).expect("a denomination of the exchange").value
    }

    /// The remaining value of a coin; `None` if the exchange never saw it.
    pub fn coin_remaining(&self, coin_pub: &EddsaPublicKey) -> Option<Money> {
        let row = read::coin(&self.app().core.store, *coin_pub).expect("the store is readable");
        row.map(|row| row.remaining)
    }
}

/// Checks that the effects of the history sum to the balance, with and without rows for refreshes.
pub fn check_history(wallet: &Wallet) {
    let balances = wallet.balance().expect("a balance");
    let Some(balance) = balances.first() else { return };
    for with_refreshes in [false, true] {
        let history = wallet.history(with_refreshes).expect("a history");
        let sum: i128 = history.transactions.iter().map(effect).sum();
        assert_eq!(sum, units(balance.total.money), "{balance:#?}\n{:#?}", history.transactions);
        assert_eq!(history.totals[0].total, format!("+{}", balance.total));
    }
}

/// Checks that the exchange's books add up, and agree with the wallets' coin by coin.
pub fn check_books(world: &World, wallets: &[&Wallet]) {
    wallets.iter().for_each(|wallet| check_history(wallet));
    let totals = world.exchange.check_conservation();
    let mut held = MoneySum::ZERO;
    for wallet in wallets {
        for coin in wallet.coins() {
            let value = world.exchange.value(&coin.h_denom_pub);
            held = held.checked_add(value).expect("a small sum");
            let remaining = world.exchange.coin_remaining(&coin.coin_pub).unwrap_or(value);
            assert_eq!(remaining, coin.remaining, "coin {} in state {:?}", coin.coin_pub, coin.status);
        }
    }
    assert_eq!(held, totals.issued, "every coin that was signed is in a wallet");
}

/// Checks the books after all wallets are done: no coin was spent twice, no melt was left alone, nothing is pending.
pub fn check_settled(world: &World, wallets: &[&Wallet], context: &str) {
    check_books(world, wallets);
    assert_eq!(world.network.conflicts(), 0, "{context}: no coin was spent twice");
    let unrevealed = world.exchange.check_conservation().unrevealed_melts;
    assert!(unrevealed.is_zero(), "{context}: no melt was left alone");
    for wallet in wallets {
        assert!(wallet.pending().is_empty(), "{context}: {:?}", wallet.pending());
    }
}

/// Checks that no value left the wallet without an operation.
pub fn check_no_loss(wallet: &Wallet) {
    for row in wallet.history(true).expect("a history").transactions {
        assert!(!["expired", "spent-elsewhere"].contains(&row.kind), "{row:#?}");
    }
}

fn units(money: Money) -> i128 {
    i128::try_from(money.units()).expect("a small amount")
}

fn effect(row: &Transaction) -> i128 {
    let units = units(amount(row.effect.trim_start_matches(['+', '-'])).money);
    if row.effect.starts_with('-') { -units } else { units }
}
