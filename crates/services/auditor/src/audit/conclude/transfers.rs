//! Outgoing transfers: the decision, what it pays, and the order to the bank.

use batzen_crypto::Wtid;
use batzen_protocol::{Money, Timestamp};
use batzen_store::{Record, Table, TableDef};
use batzen_tables::exchange::{
    AccountId, Aggregates, Closings, CollectedTerm, Deposits, Drains, PaytoHash, Prepared, TransferKind,
    WireOut, WtidKey,
};

use super::Conclusion;
use super::coins::units;
use crate::audit::books::{Receiver, TransferBook};
use crate::audit::finding::{Finding, RowName, Rule};

/// The facts on which a decision and its order agree.
struct Decision {
    kind: TransferKind,
    table: &'static TableDef,
    serial: u64,
    amount: Money,
    h_payto: Option<PaytoHash>,
    account: Option<AccountId>,
    time: Option<Timestamp>,
}

impl Conclusion<'_> {
    pub(super) fn transfers(&mut self) {
        let books = self.books;
        let mut unordered = [0; 3];
        books.transfers.each(|wtid, book| {
            if self.scope.is_none_or(|scope| scope.transfers.contains(wtid)) {
                self.transfer(wtid, book, &mut unordered);
            }
        });
        for (sum, more) in self.sums.unordered.iter_mut().zip(unordered) {
            *sum += more;
        }
    }

    /// Orders that were executed long ago may have been removed; their sums stay.
    pub(super) fn removed_orders(&mut self) {
        let sums = [
            self.collected(CollectedTerm::MerchantTransfers) - self.collected(CollectedTerm::MerchantsPaid),
            self.collected(CollectedTerm::ClosingTransfers) - self.collected(CollectedTerm::ClosingsPaid),
            self.collected(CollectedTerm::DrainTransfers),
        ];
        let tables = [WireOut::DEF, Closings::DEF, Drains::DEF];
        for ((unordered, removed), table) in self.sums.unordered.into_iter().zip(sums).zip(tables) {
            if removed != 0 && unordered != removed {
                let row = RowName { table: table.name, serial: 0, key: String::new() };
                let finding = Finding::new(Rule::TransferUnordered, row).figures(removed, unordered);
                self.found(finding.because("orders that were removed"));
            }
        }
    }

    fn transfer(&mut self, wtid: &Wtid, book: &TransferBook, unordered: &mut [i128; 3]) {
        let key = WtidKey { wtid: *wtid }.to_bytes();
        let name = |table, serial| RowName::new(table, serial, &key);
        self.deposits_of(wtid, book);
        let decisions: Vec<Decision> = [
            book.wire_out.as_ref().map(|fact| Decision {
                kind: TransferKind::Aggregate,
                table: WireOut::DEF,
                serial: fact.serial,
                amount: fact.row.amount,
                h_payto: Some(fact.row.h_payto),
                account: Some(fact.row.account),
                time: Some(fact.row.time),
            }),
            book.closing.as_ref().map(|fact| Decision {
                kind: TransferKind::Closing,
                table: Closings::DEF,
                serial: fact.serial,
                amount: fact.row.1.paid,
                h_payto: Some(fact.row.1.h_payto),
                account: Some(fact.row.1.account),
                time: Some(fact.row.1.time),
            }),
            book.drain.as_ref().filter(|fact| fact.row.executed && !fact.row.amount.is_zero()).map(|fact| {
                Decision {
                    kind: TransferKind::Drain,
                    table: Drains::DEF,
                    serial: fact.serial,
                    amount: fact.row.amount,
                    h_payto: Some(batzen_protocol::payto::h_payto(&fact.row.payto_uri)),
                    account: None,
                    time: None,
                }
            }),
        ]
        .into_iter()
        .flatten()
        .collect();
        for decision in &decisions {
            let amount = decision.amount.units();
            let Some(order) = &book.prepared else {
                let removed = [
                    CollectedTerm::MerchantTransfers,
                    CollectedTerm::ClosingTransfers,
                    CollectedTerm::DrainTransfers,
                ];
                let kind = decision.kind as usize - 1;
                unordered[kind] += units(amount);
                if self.collected(removed[kind]) == 0 {
                    let row = name(decision.table, decision.serial);
                    self.found(
                        Finding::new(Rule::TransferUnordered, row).about(wtid.as_bytes()).risking(amount),
                    );
                }
                continue;
            };
            let agree = order.row.kind == decision.kind
                && order.row.amount == decision.amount
                && decision.h_payto.is_none_or(|h_payto| h_payto == order.row.h_payto)
                && decision.account.is_none_or(|account| account == order.row.account)
                && decision.time.is_none_or(|time| time == order.row.time);
            if !agree {
                let finding = Finding::new(Rule::TransferOrder, name(Prepared::DEF, order.serial));
                let finding = finding.about(wtid.as_bytes());
                self.found(finding.figures(units(order.row.amount.units()), units(amount)).risking(amount));
            }
        }
        if let Some(order) = &book.prepared {
            let decided = decisions.iter().any(|decision| decision.kind == order.row.kind);
            let gone =
                order.row.kind == TransferKind::Closing && self.collected(CollectedTerm::ClosingsPaid) != 0;
            let text = &order.row.exchange_base_url;
            if !decided && !gone {
                let finding = Finding::new(Rule::TransferUnjustified, name(Prepared::DEF, order.serial));
                self.found(finding.about(wtid.as_bytes()).risking(order.row.amount.units()));
            } else if *text != self.subject.base_url {
                let finding = Finding::new(Rule::TransferOrder, name(Prepared::DEF, order.serial));
                self.found(finding.about(wtid.as_bytes()).because("the subject names another exchange"));
            }
        }
    }

    /// The deposits of a transfer, paid or waiting.
    fn deposits_of(&mut self, wtid: &Wtid, book: &TransferBook) {
        let archived = book.archived.as_ref().map(|fact| &fact.row);
        let contributed = book.contributed + archived.map_or(0, |row| units(row.contributed_units));
        let fees = book.fees + archived.map_or(0, |row| units(row.fee_units));
        // What the deposits cannot pay of their fees is waived.
        let total = (contributed - fees).max(0);
        let may_waive = book.small > 0;
        let key = WtidKey { wtid: *wtid }.to_bytes();
        if let Some(serial) = book.stray {
            let finding = Finding::new(Rule::TransferReceiver, RowName::new(Deposits::DEF, serial, &key));
            self.found(finding.about(wtid.as_bytes()).because("deposits of one transfer name two receivers"));
        }
        let waits_once = if book.wire_out.is_some() { 0 } else { 1 };
        if let Some(waiting) = book.aggregate.as_ref().filter(|_| book.aggregates > waits_once) {
            let row = RowName::new(Aggregates::DEF, waiting.serial, &waiting.row.0.to_bytes());
            let finding = Finding::new(Rule::AggregateSum, row).about(wtid.as_bytes());
            self.found(finding.because("its deposits are paid or wait under another row"));
        }
        match (&book.wire_out, &book.aggregate) {
            (Some(paid), _) => {
                let (row, name) = (&paid.row, RowName::new(WireOut::DEF, paid.serial, &key));
                let receiver = Receiver { h_payto: row.h_payto, merchant_pub: row.merchant_pub };
                let finding = |rule| Finding::new(rule, name.clone()).about(wtid.as_bytes());
                if book.receiver.is_some_and(|(of_deposits, _)| of_deposits != receiver) {
                    self.findings.push(finding(Rule::TransferReceiver).risking(row.amount.units()));
                }
                let payto_uri = self.terms.account(&row.h_payto).unwrap_or_default();
                match self.terms.wire_fee(payto_uri, row.time) {
                    None => self.findings.push(finding(Rule::WireFeeMissing)),
                    Some(fee) if fee.wire_fee != row.wire_fee => {
                        let (found, due) = (units(row.wire_fee.units()), units(fee.wire_fee.units()));
                        self.findings.push(finding(Rule::TransferFee).figures(found, due));
                    }
                    Some(_) => {}
                }
                let fee = units(row.wire_fee.units());
                let expected = |total: i128| {
                    let rest = (total - fee).max(0);
                    rest - rest.checked_rem(units(self.subject.round_unit)).unwrap_or(0)
                };
                let (amount, due) = (units(row.amount.units()), expected(total));
                let waived = may_waive && amount > due && amount <= expected(contributed);
                if amount != due && !waived {
                    self.findings.push(finding(Rule::TransferDeposits).figures(amount, due));
                }
                let rest = contributed - amount - fee;
                let taken = fees.min(rest);
                self.sums.wire_fees += fee;
                self.sums.deposit_fees += taken;
                self.sums.wire_rounding += rest - taken;
            }
            (None, Some(waiting)) => {
                let (target, row) = &waiting.row;
                let name = RowName::new(Aggregates::DEF, waiting.serial, &target.to_bytes());
                let receiver = Receiver { h_payto: target.h_payto, merchant_pub: target.merchant_pub };
                if book.receiver.is_some_and(|(of_deposits, _)| of_deposits != receiver) {
                    let finding = Finding::new(Rule::TransferReceiver, name.clone());
                    self.found(finding.about(wtid.as_bytes()).risking(row.total.units()));
                }
                let found = units(row.total.units());
                let waived = may_waive && found > total && found <= contributed;
                if found != total && !waived {
                    let finding = Finding::new(Rule::AggregateSum, name);
                    self.found(finding.about(wtid.as_bytes()).figures(found, total));
                }
                self.sums.transient += found;
                self.sums.deposit_fees += contributed - found;
            }
            (None, None) if book.deposits > 0 || book.archived.is_some() => {
                let finding = Finding::new(Rule::TransferMissing, RowName::new(WireOut::DEF, 0, &key));
                self.found(finding.about(wtid.as_bytes()).risking(contributed.unsigned_abs()));
            }
            (None, None) => {}
        }
    }
}
