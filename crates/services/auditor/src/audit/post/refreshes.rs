//! Melts, reveals, recoups and the credits that they cause.

use batzen_crypto::{BlindingSecret, Cipher, EddsaPublicKey, ExchangeWithdrawValues, HashCode, denom};
use batzen_protocol::signatures::{
    WalletCoinLink, WalletCoinMelt, WalletCoinRecoup, WalletCoinRecoupRefresh, Zeros,
};
use batzen_store::Table;
use batzen_tables::exchange::{
    CoinPub, Melts, RecoupCredits, RecoupRefreshCredits, RecoupRefreshes, Recoups, Reveals,
};

use super::coins::NO_AGE;
use super::{Poster, Row};
use crate::audit::books::{CoinFacts, RecoupFacts, RecoupName};
use crate::audit::finding::Rule;

/// The number of sets in a refresh.
const KAPPA: u8 = 3;

impl Poster<'_> {
    fn spend<T: Table>(&self, row: &Row<'_, T>, coin_pub: &CoinPub, units: u128) -> Option<CoinFacts> {
        self.books.coins.change(coin_pub, |book| {
            book.spent += row.way.of(units);
            book.user = row.user();
            book.coin.as_ref().map(|coin| coin.row)
        })
    }

    pub(super) fn melt(&mut self, row: Row<'_, Melts>) {
        let (key, melt, serial) = (&row.found.key, &row.found.row, row.found.serial);
        let amount = melt.amount.units();
        let facts = self.spend(&row, &key.coin_pub, amount);
        self.books.refreshes.change(key, |book| row.way.note(&mut book.melt, serial, amount));
        if !row.is_new() {
            return;
        }
        if melt.noreveal_index >= KAPPA {
            self.found(row.finding(Rule::MeltIndex));
        }
        let Some(facts) = facts else { return };
        let Some(terms) = self.terms.denom(facts.denom) else { return };
        let fee = terms.row.fee_refresh;
        let message = WalletCoinMelt {
            refresh_commitment: key.rc,
            h_denom_pub: terms.row.h_denom_pub,
            h_age_commitment: facts.h_age.unwrap_or(NO_AGE),
            amount_with_fee: self.money(melt.amount),
            melt_fee: self.money(fee),
        };
        if melt.amount < fee {
            let finding = row.finding(Rule::MeltBelowFee);
            self.found(finding.figures(amount as i128, fee.units() as i128));
        }
        let signature = melt.coin_sig;
        self.claims.signature(Rule::MeltSignature, row.origin(), amount, key.coin_pub, &message, signature);
    }

    pub(super) fn reveal(&mut self, row: Row<'_, Reveals>) {
        let (key, reveal, serial, way) = (&row.found.key, &row.found.row, row.found.serial, row.way);
        let mut cost = 0;
        for coin in &reveal.fresh.0 {
            let Some(terms) = self.terms.denom(coin.denom) else {
                if row.is_new() {
                    let finding = row.finding(Rule::FreshDenomination);
                    self.found(finding.because(format!("denomination {}", coin.denom.0)));
                }
                continue;
            };
            let (value, fee) = (terms.row.value.units(), terms.row.fee_withdraw.units());
            cost += value + fee;
            self.tally.denom(coin.denom).refreshed += way.one();
            self.tally.sums.issued += way.of(value);
            self.tally.sums.withdraw_fees += way.of(fee);
            if !row.is_new() {
                continue;
            }
            let message = WalletCoinLink {
                h_denom_pub: terms.row.h_denom_pub,
                transfer_pub: reveal.transfer_pub,
                h_age_commitment: Zeros,
                h_coin_envelope: coin.h_coin_ev,
            };
            let signature = coin.link_sig;
            self.claims.signature(
                Rule::LinkSignature,
                row.origin(),
                value,
                key.coin_pub,
                &message,
                signature,
            );
        }
        self.books.refreshes.change(key, |book| way.note(&mut book.reveal, serial, cost));
    }

    pub(super) fn recoup(&mut self, row: Row<'_, Recoups>) {
        let (key, recoup) = (&row.found.key, &row.found.row);
        let amount = recoup.amount.units();
        let facts = self.spend(&row, &key.coin_pub, amount);
        let name = RecoupName { coin_pub: key.coin_pub, n: key.n, is_refresh: false };
        let agreed = RecoupFacts { receiver: recoup.reserve_pub, amount, time: recoup.time };
        self.books.recoups.change(&name, |book| {
            row.way.note(&mut book.recoup, row.found.serial, agreed);
            book.origin = Some((recoup.h_coin_ev, None));
        });
        let (h_coin_ev, blind) = (recoup.h_coin_ev, BlindingSecret::from_bytes(recoup.coin_blind));
        let Some(h_denom_pub) = self.recouped(&row, facts, amount, (key.coin_pub, h_coin_ev, &blind)) else {
            return;
        };
        let message = WalletCoinRecoup { h_denom_pub, coin_blind: blind };
        let signature = recoup.coin_sig;
        let rule = Rule::RecoupSignature;
        self.claims.signature(rule, row.origin(), amount, key.coin_pub, &message, signature);
    }

    pub(super) fn recoup_refresh(&mut self, row: Row<'_, RecoupRefreshes>) {
        let (key, recoup) = (&row.found.key, &row.found.row);
        let amount = recoup.amount.units();
        let facts = self.spend(&row, &key.coin_pub, amount);
        let name = RecoupName { coin_pub: key.coin_pub, n: key.n, is_refresh: true };
        let agreed = RecoupFacts { receiver: recoup.old_coin_pub, amount, time: recoup.time };
        self.books.recoups.change(&name, |book| {
            row.way.note(&mut book.recoup, row.found.serial, agreed);
            book.origin = Some((recoup.h_coin_ev, Some(recoup.rc)));
        });
        let (h_coin_ev, blind) = (recoup.h_coin_ev, BlindingSecret::from_bytes(recoup.coin_blind));
        let Some(h_denom_pub) = self.recouped(&row, facts, amount, (key.coin_pub, h_coin_ev, &blind)) else {
            return;
        };
        let message = WalletCoinRecoupRefresh { h_denom_pub, coin_blind: blind };
        let signature = recoup.coin_sig;
        let rule = Rule::RecoupRefreshSignature;
        self.claims.signature(rule, row.origin(), amount, key.coin_pub, &message, signature);
    }

    /// The common checks of both kinds of recoup: the denomination is revoked, and the coin comes from the planchet.
    /// Returns the denomination whose key the coin's signature names, if it is to be checked.
    fn recouped<T: Table>(
        &mut self,
        row: &Row<'_, T>,
        facts: Option<CoinFacts>,
        amount: u128,
        (coin_pub, h_coin_ev, blind): (CoinPub, HashCode, &BlindingSecret),
    ) -> Option<HashCode> {
        let facts = facts?;
        self.tally.denom(facts.denom).recouped += row.way.of(amount);
        if !row.is_new() {
            return None;
        }
        let denom = self.terms.denom(facts.denom)?;
        let h_denom_pub = denom.row.h_denom_pub;
        let is_revoked = denom.revoked;
        // With Clause Blind Schnorr, the planchet also needs the nonce and its values, which are not stored.
        let public = denom.public.as_ref().filter(|public| public.cipher() == Cipher::Rsa);
        let planchet = public.map(|public| {
            let (values, age) = (ExchangeWithdrawValues::Rsa, facts.h_age.as_ref());
            denom::recoup_h_coin_ev(public, &values, None, &coin_pub, blind, age)
        });
        if planchet.is_some_and(|planchet| planchet != Ok(h_coin_ev)) {
            let finding = row.finding(Rule::RecoupBlinding).about(coin_pub.as_bytes());
            self.found(finding.risking(amount));
        }
        if !is_revoked {
            let finding = row.finding(Rule::RecoupNotRevoked).about(coin_pub.as_bytes());
            self.found(finding.risking(amount).because("denomination not revoked"));
        }
        Some(h_denom_pub)
    }

    pub(super) fn recoup_credit(&mut self, row: Row<'_, RecoupCredits>) {
        let (key, credit) = (&row.found.key, &row.found.row);
        let amount = credit.amount.units();
        self.books.reserves.change(&key.reserve_pub, |book| {
            book.entries += row.way.one();
            book.into += row.way.of(amount);
            book.user = row.user();
        });
        self.credit(
            &row,
            (key.coin_pub, key.n, false),
            RecoupFacts { receiver: key.reserve_pub, amount, time: credit.time },
        );
    }

    pub(super) fn recoup_refresh_credit(&mut self, row: Row<'_, RecoupRefreshCredits>) {
        let (key, credit) = (&row.found.key, &row.found.row);
        let amount = credit.amount.units();
        self.books.coins.change(&key.old_coin_pub, |book| {
            book.back += row.way.of(amount);
            book.recouped_into += row.way.one();
            book.user = row.user();
        });
        self.credit(
            &row,
            (key.coin_pub, key.n, true),
            RecoupFacts { receiver: key.old_coin_pub, amount, time: credit.time },
        );
    }

    fn credit<T: Table>(
        &self,
        row: &Row<'_, T>,
        (coin_pub, n, is_refresh): (EddsaPublicKey, u32, bool),
        facts: RecoupFacts,
    ) {
        let name = RecoupName { coin_pub, n, is_refresh };
        let serial = row.found.serial;
        self.books.recoups.change(&name, |book| row.way.note(&mut book.credit, serial, facts));
    }
}
