//! Purses: what they hold, and the decision on each.

use batzen_crypto::EddsaPublicKey;
use batzen_protocol::Money;
use batzen_protocol::signatures::{SignedMessage, WalletAccountMerge, WalletPurseMerge};
use batzen_store::{Record, Table};
use batzen_tables::exchange::{
    CollectedTerm, PurseKey, PurseMergeRow, PurseMerges, PurseMode, PurseRow, PurseState, Purses,
};

use super::Conclusion;
use super::coins::units;
use crate::audit::books::{Fact, PurseBook};
use crate::audit::finding::{Finding, RowName, Rule};

impl Conclusion<'_> {
    pub(super) fn purses(&mut self) {
        let books = self.books;
        let archived = self.collected(CollectedTerm::PursePayments);
        let mut moved = 0;
        books.purses.each(|purse_pub, book| {
            let key = PurseKey { purse_pub: *purse_pub }.to_bytes();
            if self.scope.is_some_and(|scope| !scope.purses.contains(purse_pub)) {
                // It is here because of the reserve that it was merged into.
                if let (Some(purse), Some(merge)) = (&book.purse, &book.merge) {
                    self.credit_reserve(&purse.row, merge);
                }
                return;
            }
            let Some(purse) = &book.purse else {
                let row = RowName::new(Purses::DEF, 0, &key);
                let finding = Finding::new(Rule::PurseMissing, row).about(purse_pub.as_bytes());
                self.findings.push(finding.risking(book.contributed.unsigned_abs()));
                return;
            };
            // The deposits of a decided purse leave for an archive together.
            let left = archived > 0 && book.coins == 0 && purse.row.state != PurseState::Open;
            if left && purse.row.state == PurseState::Paid {
                moved += units(purse.row.contributed.units());
            }
            self.purse(purse_pub, book, purse, left);
        });
        self.sums.purses_moved += moved;
    }

    /// Contributions whose rows left for an archive.
    pub(super) fn removed_purse_deposits(&mut self) {
        let (archived, moved) = (self.collected(CollectedTerm::PursePayments), self.sums.purses_moved);
        if moved != archived {
            let row = RowName { table: Purses::DEF.name, serial: 0, key: String::new() };
            let finding = Finding::new(Rule::PurseBalance, row).figures(archived, moved);
            self.found(finding.because("paid purses without deposits"));
        }
    }

    fn purse(&mut self, purse_pub: &EddsaPublicKey, book: &PurseBook, purse: &Fact<PurseRow>, left: bool) {
        let row = &purse.row;
        let name = RowName::new(Purses::DEF, purse.serial, &PurseKey { purse_pub: *purse_pub }.to_bytes());
        let finding = |rule| Finding::new(rule, name.clone()).about(purse_pub.as_bytes());
        let (contributed, balance) = (units(row.contributed.units()), units(row.balance.units()));
        if !left {
            if contributed != book.contributed {
                self.findings.push(finding(Rule::PurseBalance).figures(contributed, book.contributed));
            } else if balance != book.balance {
                self.findings.push(finding(Rule::PurseBalance).figures(balance, book.balance));
            } else if i64::from(row.coins) != book.coins {
                self.findings.push(finding(Rule::PurseBalance).because("the number of coins is wrong"));
            }
        }
        let fee = self.terms.global_fee(row.created).map(|fees| fees.purse_fee);
        let fee_due = if row.mode == PurseMode::Fee { fee } else { Some(Money::ZERO) };
        if fee_due != Some(row.purse_fee) {
            self.findings.push(finding(Rule::PurseFee).risking(row.purse_fee.units()));
        }
        // Exactly one decision, and everything in line with it.
        let all_back = book.refunded == book.coins;
        let consistent = match row.state {
            PurseState::Open => {
                book.refunded == 0
                    && book.deletion.is_none()
                    && row.decided == batzen_protocol::Timestamp::ZERO
            }
            PurseState::Paid => book.refunded == 0 && book.deletion.is_none() && book.merge.is_some(),
            PurseState::Expired => all_back && book.deletion.is_none() && row.decided >= row.expiration,
            PurseState::Deleted => all_back && book.deletion.is_some(),
        };
        let merged = row.mode == PurseMode::Push || book.merge.is_some();
        if !consistent || !merged {
            self.findings.push(finding(Rule::PurseDecision).risking(row.contributed.units()));
        }
        let target = units(row.target.units());
        if row.state == PurseState::Paid && balance < target {
            self.findings.push(finding(Rule::PurseInsufficient).figures(target, balance));
        }
        match row.state {
            PurseState::Open => {
                self.sums.purses += contributed;
                self.sums.purses_open += 1;
            }
            PurseState::Paid => self.sums.purse_income += contributed - target,
            PurseState::Expired | PurseState::Deleted => {}
        }
        self.sums.purse_income += units(row.purse_fee.units());
        if let Some(merge) = &book.merge {
            self.merge(purse_pub, row, merge);
        }
    }

    fn merge(&mut self, purse_pub: &EddsaPublicKey, purse: &PurseRow, merge: &Fact<PurseMergeRow>) {
        let (row, currency) = (&merge.row, self.subject.currency);
        self.credit_reserve(purse, merge);
        let key = PurseKey { purse_pub: *purse_pub }.to_bytes();
        let name = RowName::new(PurseMerges::DEF, merge.serial, &key);
        let message =
            WalletPurseMerge { merge_timestamp: row.merge_time, purse_pub: *purse_pub, h_payto: row.h_payto };
        if !message.verify(&purse.merge_pub, &row.merge_sig) {
            let finding = Finding::new(Rule::PurseMergeSignature, name.clone());
            self.found(finding.about(purse.merge_pub.as_bytes()).risking(purse.target.units()));
        }
        // A reserve that creates a purse signs the fee that it offers, which may be more than it costs.
        let account = |purse_fee: Money, mode: PurseMode| WalletAccountMerge {
            purse_expiration: purse.expiration,
            purse_amount: purse.target.of(currency),
            purse_fee: purse_fee.of(currency),
            h_contract_terms: purse.h_contract_terms,
            purse_pub: *purse_pub,
            merge_timestamp: row.merge_time,
            min_age: purse.min_age,
            flags: u32::from(mode as u8),
        };
        // A full purse may be merged by its owner instead, with the signature for one that a payer created.
        let valid = [(purse.purse_fee, purse.mode), (Money::ZERO, PurseMode::Push)]
            .into_iter()
            .any(|(fee, mode)| account(fee, mode).verify(&row.reserve_pub, &row.reserve_sig));
        if !valid {
            let finding = Finding::new(Rule::AccountMergeSignature, name);
            self.found(finding.about(row.reserve_pub.as_bytes()).risking(purse.purse_fee.units()));
        }
    }

    /// Credits a merged purse to its reserve.
    fn credit_reserve(&self, purse: &PurseRow, merge: &Fact<PurseMergeRow>) {
        self.books.reserves.change(&merge.row.reserve_pub, |book| {
            book.entries += 1;
            book.out += units(purse.purse_fee.units());
            book.user = Some((PurseMerges::DEF.name, merge.serial));
            if purse.state == PurseState::Paid {
                book.into += units(purse.target.units());
            }
            if purse.state == PurseState::Open && purse.mode == PurseMode::Quota {
                book.quota += 1;
            }
        });
    }
}
