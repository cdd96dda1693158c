//! Reserves, their closings, and requests that prolonged them.

use batzen_store::{Record, Table};
use batzen_tables::exchange::{
    CloseRequests, ClosingKey, Closings, ReserveKey, ReserveOpenDeposits, ReserveOpens, ReservePub,
    ReserveRequestKey, Reserves,
};

use super::Conclusion;
use super::coins::units;
use crate::audit::books::ReserveBook;
use crate::audit::finding::{Finding, RowName, Rule};
use crate::audit::terms::wire_method;

impl Conclusion<'_> {
    pub(super) fn reserves(&mut self) {
        let books = self.books;
        books.reserves.each(|reserve_pub, book| {
            if self.scope.is_none_or(|scope| scope.reserves.contains(reserve_pub)) {
                self.reserve(reserve_pub, book);
            }
        });
    }

    fn reserve(&mut self, reserve_pub: &ReservePub, book: &ReserveBook) {
        let key = ReserveKey { reserve_pub: *reserve_pub }.to_bytes();
        let balance = book.into - book.out;
        let Some(reserve) = &book.reserve else {
            let (user, serial) = book.user.unwrap_or_default();
            let finding = Finding::new(Rule::ReserveMissing, RowName::new(Reserves::DEF, serial, &key));
            let finding = finding.about(reserve_pub.as_bytes()).figures(0, balance);
            self.found(finding.because(format!("a row of {user} names it")));
            return;
        };
        let name = RowName::new(Reserves::DEF, reserve.serial, &key);
        let finding = |rule| Finding::new(rule, name.clone()).about(reserve_pub.as_bytes());
        let stored = units(reserve.row.balance.units());
        if balance < 0 {
            self.findings.push(finding(Rule::ReserveOverdrawn).figures(stored, balance));
        }
        if self.internal && stored != balance {
            self.findings.push(finding(Rule::ReserveBalance).figures(stored, balance));
        }
        let first = book.first.map(|(_, sender)| sender);
        let is_origin = first == reserve.row.origin
            || (!self.in_order
                && reserve.row.origin.is_some_and(|origin| book.other_senders.contains(&origin)));
        if !is_origin {
            self.findings.push(finding(Rule::ReserveOrigin).risking(reserve.row.balance.units()));
        }
        let active = book.account.as_ref().map_or(0, |account| i64::from(account.row.purses_active));
        let allowed = book.account.as_ref().map_or(0, |account| i64::from(account.row.purses_allowed));
        if active != book.quota || active > allowed {
            let detail = format!("{active} counted, {} open, {allowed} allowed", book.quota);
            self.findings.push(finding(Rule::PurseQuota).because(detail));
        }
        for (serial, request_time, h_payto) in &book.origin_targets {
            if reserve.row.origin != Some(*h_payto) {
                let key = ReserveRequestKey { reserve_pub: *reserve_pub, request_time: *request_time };
                let row = RowName::new(CloseRequests::DEF, *serial, &key.to_bytes());
                let finding = Finding::new(Rule::CloseReceiver, row).about(reserve_pub.as_bytes());
                self.found(finding.because("the account is not the reserve's account of origin"));
            }
        }
        for closing in &book.closings {
            let (n, row) = &closing.row;
            let key = ClosingKey { reserve_pub: *reserve_pub, n: *n }.to_bytes();
            let name = RowName::new(Closings::DEF, closing.serial, &key);
            let is_known =
                reserve.row.origin == Some(row.h_payto) || book.close_targets.contains(&row.h_payto);
            if !is_known || *n as usize >= book.closings.len() {
                let finding = Finding::new(Rule::CloseReceiver, name.clone()).about(reserve_pub.as_bytes());
                self.found(finding.risking(row.paid.units()));
            }
            let fees = self.closing_fees(self.terms.account(&row.h_payto).unwrap_or_default());
            // The fee is that of the expiration or of the request, which may be before the closing.
            if !fees.iter().any(|fee| *fee.min(&row.amount.units()) == row.fee.units()) {
                let finding = Finding::new(Rule::CloseFee, name).about(reserve_pub.as_bytes());
                let due = fees.first().copied().unwrap_or_default();
                self.found(finding.figures(units(row.fee.units()), units(due)));
            }
        }
    }

    /// The closing fees of a method, of all periods.
    fn closing_fees(&self, payto_uri: &str) -> Vec<u128> {
        let Some(method) = wire_method(payto_uri) else { return Vec::new() };
        self.terms.wire_fees_of(&method).map(|row| row.closing_fee.units()).collect()
    }

    pub(super) fn opens(&mut self) {
        let books = self.books;
        books.opens.each(|key, book| {
            if self.scope.is_some_and(|scope| !scope.opens.contains(key)) {
                return;
            }
            let key = key.to_bytes();
            let Some(open) = &book.open else {
                // Payments for reserves stay longer than what garbage collection removes.
                if let Some((serial, _)) = book.payment
                    && !self.has_collected()
                {
                    let row = RowName::new(ReserveOpenDeposits::DEF, serial, &key);
                    let finding = Finding::new(Rule::OpenPayment, row);
                    self.found(finding.risking(book.coins.unsigned_abs()));
                }
                return;
            };
            let paid = units(open.row.payment.units()) + book.coins;
            let cost = units(open.row.cost.units());
            let same =
                book.payment.is_none_or(|(_, signature)| signature == open.row.reserve_sig) && !book.mixed;
            if (paid < cost && !self.has_collected()) || !same {
                let finding =
                    Finding::new(Rule::OpenPayment, RowName::new(ReserveOpens::DEF, open.serial, &key));
                self.found(finding.figures(paid, cost));
            }
        });
    }
}
