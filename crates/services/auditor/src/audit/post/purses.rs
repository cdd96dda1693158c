//! Payments between people.

use batzen_protocol::hash_text;
use batzen_protocol::signatures::{WalletPurseCreate, WalletPurseDeposit};
use batzen_tables::exchange::{PurseDeletions, PurseDeposits, PurseMerges, Purses};

use super::coins::NO_AGE;
use super::{Poster, Row};
use crate::audit::finding::Rule;

impl Poster<'_> {
    pub(super) fn purse(&mut self, row: Row<'_, Purses>) {
        let (key, purse, serial) = (&row.found.key, row.found.row.clone(), row.found.serial);
        self.books.purses.change(&key.purse_pub, |book| row.way.note(&mut book.purse, serial, purse.clone()));
        if !row.is_new() {
            return;
        }
        let message = WalletPurseCreate {
            purse_expiration: purse.expiration,
            purse_amount: self.money(purse.target),
            h_contract_terms: purse.h_contract_terms,
            merge_pub: purse.merge_pub,
            min_age: purse.min_age,
        };
        let (loss, rule) = (purse.target.units(), Rule::PurseSignature);
        self.claims.signature(rule, row.origin(), loss, key.purse_pub, &message, purse.purse_sig);
    }

    pub(super) fn purse_deposit(&mut self, row: Row<'_, PurseDeposits>) {
        let (key, deposit, way) = (&row.found.key, &row.found.row, row.way);
        let amount = deposit.amount.units();
        let fee = self.terms.denom(deposit.denom).map_or(0, |terms| terms.row.fee_deposit.units());
        let facts = self.books.coins.change(&key.coin_pub, |book| {
            book.spent += way.of(amount);
            if deposit.refunded {
                book.back += way.of(amount);
            }
            book.user = row.user();
            book.coin.as_ref().map(|coin| coin.row)
        });
        self.books.purses.change(&key.purse_pub, |book| {
            book.coins += way.one();
            book.contributed += way.of(amount);
            book.balance += way.of(amount) - way.of(fee);
            if deposit.refunded {
                book.refunded += way.one();
                book.refunded_units += way.of(amount);
            }
        });
        if !row.is_new() {
            return;
        }
        let Some(facts) = facts else { return };
        if facts.denom != deposit.denom {
            let finding = row.finding(Rule::PurseDepositDenomination).about(key.coin_pub.as_bytes());
            self.found(finding.risking(amount));
        }
        let Some(terms) = self.terms.denom(facts.denom) else { return };
        let message = WalletPurseDeposit {
            coin_amount: self.money(deposit.amount),
            h_denom_pub: terms.row.h_denom_pub,
            h_age_commitment: facts.h_age.unwrap_or(NO_AGE),
            purse_pub: key.purse_pub,
            h_exchange_base_url: hash_text(&self.subject.base_url),
        };
        let (signature, rule) = (deposit.coin_sig, Rule::PurseDepositSignature);
        self.claims.signature(rule, row.origin(), amount, key.coin_pub, &message, signature);
    }

    pub(super) fn purse_merge(&mut self, row: Row<'_, PurseMerges>) {
        let (key, merge, serial) = (&row.found.key, row.found.row.clone(), row.found.serial);
        self.books.purses.change(&key.purse_pub, |book| row.way.note(&mut book.merge, serial, merge));
    }

    pub(super) fn purse_deletion(&mut self, row: Row<'_, PurseDeletions>) {
        let (key, signature, serial) = (&row.found.key, row.found.row.purse_sig, row.found.serial);
        self.books.purses.change(&key.purse_pub, |book| row.way.note(&mut book.deletion, serial, signature));
        if !row.is_new() {
            return;
        }
        let message = batzen_protocol::signatures::WalletPurseDelete {};
        let rule = Rule::PurseDeletionSignature;
        self.claims.signature(rule, row.origin(), 0, key.purse_pub, &message, signature);
    }
}
