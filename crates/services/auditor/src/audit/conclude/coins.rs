//! Coins, refunds, refreshes, recoups and denominations.

use batzen_protocol::Duration;
use batzen_store::{Record, Result, Table};
use batzen_tables::exchange::{
    CoinKey, CoinPub, Coins, DenomSerial, Denominations, Deposits, MeltKey, Melts, Recoups, Reveals, WireOut,
    WithdrawalKey, Withdrawals, WtidKey,
};

use super::Conclusion;
use crate::audit::books::{RecoupBook, RecoupName};
use crate::audit::finding::{Finding, RowName, Rule};
use crate::audit::terms::Denom;

/// Number of coins without a valid signature that are followed to their uses.
const FORGED_MAX: usize = 10_000;
/// Time after the end of its deposits during which a denomination is still checked (auditor chapter 3.7).
const GRACE: Duration = Duration::from_days(1);

impl Conclusion<'_> {
    /// Returns whether rows of this denomination's coins may have left for an archive.
    fn is_forgotten(&self, denom: &Denom) -> bool {
        denom.row.expire_legal.saturating_add(GRACE) < self.now
    }

    pub(super) fn coins(&mut self) {
        let books = self.books;
        books.coins.each(|coin_pub, book| {
            if self.scope.is_some_and(|scope| !scope.coins.contains(coin_pub)) {
                return;
            }
            let key = CoinKey { coin_pub: *coin_pub }.to_bytes();
            let Some(coin) = &book.coin else {
                // A row of the archive may be named by one that stayed.
                if book.spent != book.back {
                    let (user, serial) = book.user.unwrap_or_default();
                    let finding = Finding::new(Rule::CoinMissing, RowName::new(Coins::DEF, serial, &key));
                    let at_risk = (book.spent - book.back).unsigned_abs();
                    let finding = finding.about(coin_pub.as_bytes()).risking(at_risk);
                    self.findings.push(finding.because(format!("a row of {user} names it")));
                }
                return;
            };
            let (facts, name) = (coin.row, RowName::new(Coins::DEF, coin.serial, &key));
            let Some(denom) = self.terms.denom(facts.denom) else { return };
            let value = units(denom.row.value.units());
            let net = book.spent - book.back;
            self.books.tally().denom(facts.denom).redeemed += value - units(facts.remaining);
            if self.is_forgotten(denom) && self.has_collected() {
                return;
            }
            let finding = |rule| Finding::new(rule, name.clone()).about(coin_pub.as_bytes());
            if net > value {
                self.findings.push(finding(Rule::CoinOverspent).figures(book.spent, book.back + value));
            } else if units(facts.remaining) != value - net {
                self.findings.push(finding(Rule::CoinRemaining).figures(units(facts.remaining), value - net));
            }
            if facts.zombie != (book.recouped_into > 0) {
                self.findings.push(finding(Rule::CoinZombie));
            }
        });
    }

    /// The uses of coins that their denominations did not sign.
    pub(super) fn forged_coins(&mut self) -> Result<()> {
        let is_forged = |finding: &&Finding| finding.rule == Rule::CoinSignature;
        let forged = self.findings.iter().filter(is_forged).take(FORGED_MAX);
        let coins: Vec<CoinPub> = forged.filter_map(|finding| finding.subject.parse().ok()).collect();
        for coin_pub in coins {
            for found in self.store.lookup::<Deposits>(Deposits::BY_COIN, &coin_pub)? {
                let name = RowName::new(Deposits::DEF, found.serial, &found.key.to_bytes());
                let amount = found.row.amount.units();
                let used = |rule| Finding::new(rule, name.clone()).about(coin_pub.as_bytes()).risking(amount);
                self.findings.push(used(Rule::CoinDeposited));
                let is_paid = match found.row.wtid {
                    Some(wtid) => self.row::<WireOut>(&WtidKey { wtid })?.is_some(),
                    None => false,
                };
                if is_paid {
                    self.findings.push(used(Rule::CoinWired));
                    self.findings.push(used(Rule::CoinPaid));
                }
            }
            for found in self.store.lookup::<Melts>(Melts::BY_COIN, &coin_pub)? {
                let name = RowName::new(Melts::DEF, found.serial, &found.key.to_bytes());
                let finding = Finding::new(Rule::CoinMelted, name).about(coin_pub.as_bytes());
                self.findings.push(finding.risking(found.row.amount.units()));
            }
        }
        Ok(())
    }

    pub(super) fn refunds(&mut self) {
        let books = self.books;
        books.refunds.each(|key, book| {
            let is_outside = self.scope.is_some_and(|scope| !scope.coins.contains(&key.coin_pub));
            if is_outside || book.claimed == book.refunded {
                return;
            }
            let row = RowName::new(Deposits::DEF, book.serial, &key.to_bytes());
            let finding = Finding::new(Rule::RefundSum, row).about(key.coin_pub.as_bytes());
            self.findings.push(finding.figures(book.claimed, book.refunded));
        });
    }

    pub(super) fn refreshes(&mut self) {
        let books = self.books;
        books.refreshes.each(|key, book| {
            if self.scope.is_some_and(|scope| !scope.coins.contains(&key.coin_pub)) {
                return;
            }
            let name = |serial, table| RowName::new(table, serial, &key.to_bytes());
            let Some(melt) = &book.melt else {
                if let Some(reveal) = &book.reveal {
                    let finding = Finding::new(Rule::MeltMissing, name(reveal.serial, Reveals::DEF));
                    self.findings.push(finding.about(key.coin_pub.as_bytes()).risking(reveal.row));
                }
                return;
            };
            let denom = books.coins.read(&key.coin_pub, |coin| coin.coin.as_ref().map(|coin| coin.row.denom));
            let terms = denom.flatten().and_then(|denom| self.terms.denom(denom));
            let fee = terms.map_or(0, |denom| units(denom.row.fee_refresh.units()));
            let left = units(melt.row) - fee;
            self.sums.melt_fees += fee;
            match &book.reveal {
                None => {
                    self.sums.unrevealed += left;
                    let finding = Finding::new(Rule::MeltHanging, name(melt.serial, Melts::DEF));
                    self.findings.push(finding.about(key.coin_pub.as_bytes()).risking(melt.row));
                }
                Some(reveal) => {
                    let cost = units(reveal.row);
                    self.sums.surplus += left - cost;
                    if cost > left {
                        let finding = Finding::new(Rule::MeltCost, name(melt.serial, Melts::DEF));
                        self.findings.push(finding.about(key.coin_pub.as_bytes()).figures(left, cost));
                    }
                }
            }
        });
    }

    pub(super) fn recoups(&mut self) -> Result<()> {
        let mut all: Vec<(RecoupName, RecoupBook)> = Vec::new();
        self.books.recoups.each(|name, book| {
            if self.scope.is_none_or(|scope| scope.recoups.contains(name)) {
                all.push((name.clone(), book.clone()));
            }
        });
        let incomplete = self.has_collected();
        for (name, book) in &all {
            self.recoup_pair(name, book, incomplete);
        }
        for (name, book) in all {
            let (Some(recoup), Some((h_coin_ev, rc))) = (&book.recoup, &book.origin) else { continue };
            let denom =
                self.books.coins.read(&name.coin_pub, |coin| coin.coin.as_ref().map(|coin| coin.row.denom));
            let Some(denom) = denom.flatten() else { continue };
            let receiver = recoup.row.receiver;
            let signed = match rc {
                None => {
                    let key = WithdrawalKey { reserve_pub: receiver, h_coin_ev: *h_coin_ev };
                    let found = self.row::<Withdrawals>(&key)?;
                    found.map_or(incomplete, |withdrawal| withdrawal.denom == denom)
                }
                Some(rc) => {
                    let found = self.row::<Reveals>(&MeltKey { coin_pub: receiver, rc: *rc })?;
                    found.map_or(incomplete, |reveal| {
                        let mut fresh = reveal.fresh.0.iter();
                        fresh.any(|coin| coin.h_coin_ev == *h_coin_ev && coin.denom == denom)
                    })
                }
            };
            if !signed {
                let table = if name.is_refresh { "recoup_refreshes" } else { Recoups::DEF.name };
                let row = RowName { table, ..recoup_name(&name, recoup.serial) };
                let finding = Finding::new(Rule::RecoupOrigin, row).about(name.coin_pub.as_bytes());
                self.found(finding.risking(recoup.row.amount));
            }
        }
        Ok(())
    }

    fn recoup_pair(&mut self, name: &RecoupName, book: &RecoupBook, incomplete: bool) {
        let same = match (&book.recoup, &book.credit) {
            (Some(recoup), Some(credit)) => recoup.row == credit.row,
            (None, None) => true,
            _ => incomplete,
        };
        if same {
            return;
        }
        let fact = book.recoup.as_ref().or(book.credit.as_ref()).expect("one of the two is there");
        let finding = Finding::new(Rule::RecoupPair, recoup_name(name, fact.serial));
        self.found(finding.about(name.coin_pub.as_bytes()).risking(fact.row.amount));
    }

    pub(super) fn denominations(&mut self) {
        let tallies: Vec<_> =
            self.tally.denoms.iter().map(|(serial, tally)| (DenomSerial(*serial), *tally)).collect();
        for (serial, tally) in tallies {
            let Some(denom) = self.terms.denom(serial) else { continue };
            if denom.row.expire_deposit.saturating_add(GRACE) < self.now {
                continue;
            }
            let value = units(denom.row.value.units());
            let row = RowName {
                table: Denominations::DEF.name,
                serial: serial.0.into(),
                key: denom.row.h_denom_pub.to_string(),
            };
            let issued = i128::from(tally.issued()) * value;
            if tally.redeemed > issued {
                let finding = Finding::new(Rule::EmergencyAmount, row.clone());
                let finding = finding.about(denom.row.h_denom_pub.as_bytes()).figures(issued, tally.redeemed);
                self.findings.push(finding);
            }
            if tally.known > tally.issued() {
                let finding = Finding::new(Rule::EmergencyCount, row).about(denom.row.h_denom_pub.as_bytes());
                let excess = i128::from(tally.known - tally.issued()) * value;
                let counts = format!("{} coins known, {} issued", tally.known, tally.issued());
                self.findings.push(finding.risking(excess.unsigned_abs()).because(counts));
            }
        }
    }
}

fn recoup_name(name: &RecoupName, serial: u64) -> RowName {
    let mut key = name.coin_pub.as_bytes().to_vec();
    key.extend_from_slice(&name.n.to_be_bytes());
    RowName::new(Recoups::DEF, serial, &key)
}

/// An amount as a signed number.
pub(crate) fn units(units: u128) -> i128 {
    i128::try_from(units).expect("amounts are below 2^80")
}
