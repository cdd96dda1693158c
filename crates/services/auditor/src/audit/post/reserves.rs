//! Reserves, their credits and debits, and the requests of their owners.

use batzen_crypto::ShortHash;
use batzen_protocol::signatures::{
    WalletReserveClose, WalletReserveHistory, WalletReserveOpen, WalletReserveOpenDeposit,
    WalletReserveWithdraw,
};
use batzen_store::Table;
use batzen_tables::exchange::{
    CloseRequests, Closings, HistoryRequests, ReserveAccounts, ReserveOpenDeposits, ReserveOpens, ReservePub,
    ReserveRequestKey, Reserves, ReservesIn, Withdrawals,
};

use super::{Poster, Row};
use crate::audit::books::{Fact, Way};
use crate::audit::finding::Rule;

/// Stands for the account of origin in a request to close a reserve.
const ORIGIN: ShortHash = ShortHash::from_bytes([0; 32]);

impl Poster<'_> {
    fn debit<T: Table>(&self, row: &Row<'_, T>, reserve_pub: &ReservePub, units: u128) {
        self.books.reserves.change(reserve_pub, |book| {
            book.entries += row.way.one();
            book.out += row.way.of(units);
            book.user = row.user();
        });
    }

    pub(super) fn reserve(&mut self, row: Row<'_, Reserves>) {
        let (key, reserve) = (&row.found.key, row.found.row.clone());
        self.tally.sums.reserves += row.way.of(reserve.balance.units());
        let serial = row.found.serial;
        self.books.reserves.change(&key.reserve_pub, |book| row.way.note(&mut book.reserve, serial, reserve));
    }

    pub(super) fn reserve_in(&mut self, row: Row<'_, ReservesIn>) {
        let (key, credit, serial) = (&row.found.key, &row.found.row, row.found.serial);
        let amount = row.way.of(credit.amount.units());
        self.tally.sums.wired_in += amount;
        self.books.reserves.change(&key.reserve_pub, |book| {
            book.entries += row.way.one();
            book.into += amount;
            book.user = row.user();
            if !row.is_there() {
                return;
            }
            let later = match book.first {
                Some((first, _)) if first < serial => Some(credit.h_payto),
                before => {
                    book.first = Some((serial, credit.h_payto));
                    before.map(|(_, sender)| sender)
                }
            };
            let first = book.first.map(|(_, sender)| sender);
            book.other_senders.extend(later.filter(|later| Some(*later) != first));
        });
    }

    pub(super) fn withdrawal(&mut self, row: Row<'_, Withdrawals>) {
        let (key, withdrawal, way) = (&row.found.key, &row.found.row, row.way);
        let Some(terms) = self.terms.denom(withdrawal.denom) else {
            let finding = row.finding(Rule::WithdrawDenomination).about(key.reserve_pub.as_bytes());
            return self.found(finding);
        };
        let (value, fee) = (terms.row.value.units(), terms.row.fee_withdraw.units());
        self.debit(&row, &key.reserve_pub, value + fee);
        self.tally.denom(withdrawal.denom).withdrawn += way.one();
        self.tally.sums.issued += way.of(value);
        self.tally.sums.withdraw_fees += way.of(fee);
        if !row.is_new() {
            return;
        }
        if !(terms.row.start..=terms.row.expire_withdraw).contains(&withdrawal.time) {
            let finding = row.finding(Rule::WithdrawTime).about(terms.row.h_denom_pub.as_bytes());
            self.found(finding.risking(value));
        }
        let Ok(amount) = terms.row.value.checked_add(terms.row.fee_withdraw) else { return };
        let message = WalletReserveWithdraw {
            amount_with_fee: self.money(amount),
            h_denom_pub: terms.row.h_denom_pub,
            h_coin_envelope: key.h_coin_ev,
        };
        let signature = withdrawal.reserve_sig;
        let rule = Rule::WithdrawSignature;
        self.claims.signature(rule, row.origin(), value + fee, key.reserve_pub, &message, signature);
    }

    pub(super) fn closing(&mut self, row: Row<'_, Closings>) {
        let (key, closing, serial) = (&row.found.key, row.found.row.clone(), row.found.serial);
        let (amount, fee, paid) = (closing.amount.units(), closing.fee.units(), closing.paid.units());
        self.debit(&row, &key.reserve_pub, amount);
        self.tally.sums.closing_fees += row.way.of(fee);
        self.tally.sums.closing_rounding += row.way.of(amount) - row.way.of(fee) - row.way.of(paid);
        if paid > 0 {
            let fact = (key.clone(), closing.clone());
            self.books.transfers.change(&closing.wtid, |book| {
                book.closing = row.is_there().then(|| Box::new(Fact { serial, row: fact }));
            });
        }
        let fact = Fact { serial, row: (key.n, closing) };
        self.books.reserves.change(&key.reserve_pub, |book| match row.way {
            Way::Add | Way::Keep => book.closings.push(fact),
            Way::Remove => book.closings.retain(|other| other.row.0 != fact.row.0),
        });
        if !row.is_new() {
            return;
        }
        let rest = amount.saturating_sub(fee);
        let expected = rest - rest.checked_rem(self.subject.round_unit).unwrap_or(0);
        if fee > amount || paid != expected {
            let finding = row.finding(Rule::CloseAmount).about(key.reserve_pub.as_bytes());
            self.found(finding.figures(paid as i128, expected as i128));
        }
    }

    pub(super) fn history_request(&mut self, row: Row<'_, HistoryRequests>) {
        let (key, request) = (&row.found.key, &row.found.row);
        let fee = request.fee.units();
        self.debit(&row, &key.reserve_pub, fee);
        self.tally.sums.history_fees += row.way.of(fee);
        if !row.is_new() {
            return;
        }
        let message = WalletReserveHistory {
            request_timestamp: key.request_time,
            history_fee: self.money(request.fee),
        };
        let (signature, rule) = (request.reserve_sig, Rule::HistorySignature);
        self.claims.signature(rule, row.origin(), fee, key.reserve_pub, &message, signature);
    }

    pub(super) fn reserve_account(&mut self, row: Row<'_, ReserveAccounts>) {
        let serial = row.found.serial;
        let account = row.found.row.clone();
        self.books.reserves.change(&row.found.key.reserve_pub, |book| {
            row.way.note(&mut book.account, serial, account);
            book.user = row.user();
        });
    }

    pub(super) fn reserve_open(&mut self, row: Row<'_, ReserveOpens>) {
        let (key, open, serial) = (&row.found.key, &row.found.row, row.found.serial);
        let payment = open.payment.units();
        self.debit(&row, &key.reserve_pub, payment);
        self.tally.sums.account_fees += row.way.of(payment);
        self.books.opens.change(key, |book| row.way.note(&mut book.open, serial, open.clone()));
        if !row.is_new() {
            return;
        }
        let message = WalletReserveOpen {
            reserve_payment: self.money(open.payment),
            request_timestamp: key.request_time,
            reserve_expiration: open.requested_expiration,
            purse_limit: open.requested_purses,
        };
        let (signature, rule) = (open.reserve_sig, Rule::OpenSignature);
        self.claims.signature(rule, row.origin(), payment, key.reserve_pub, &message, signature);
    }

    pub(super) fn reserve_open_deposit(&mut self, row: Row<'_, ReserveOpenDeposits>) {
        let (key, deposit, way) = (&row.found.key, &row.found.row, row.way);
        let amount = deposit.amount.units();
        let facts = self.books.coins.change(&key.coin_pub, |book| {
            book.spent += way.of(amount);
            book.user = row.user();
            book.coin.as_ref().map(|coin| coin.row)
        });
        let terms = facts.and_then(|facts| self.terms.denom(facts.denom));
        let fee = terms.map_or(0, |terms| terms.row.fee_deposit.units());
        self.tally.sums.account_fees += way.of(amount);
        let request = ReserveRequestKey { reserve_pub: key.reserve_pub, request_time: key.request_time };
        let reserve_sig = deposit.reserve_sig;
        self.books.opens.change(&request, |book| {
            book.coins += way.of(amount) - way.of(fee);
            if row.is_there() {
                let (_, first) = *book.payment.get_or_insert((row.found.serial, reserve_sig));
                book.mixed |= first != reserve_sig;
            }
        });
        if !row.is_new() {
            return;
        }
        let message = WalletReserveOpenDeposit { reserve_sig, coin_contribution: self.money(deposit.amount) };
        let (signature, rule) = (deposit.coin_sig, Rule::OpenDepositSignature);
        self.claims.signature(rule, row.origin(), amount, key.coin_pub, &message, signature);
    }

    pub(super) fn close_request(&mut self, row: Row<'_, CloseRequests>) {
        if !row.is_there() {
            return;
        }
        let (key, request) = (&row.found.key, &row.found.row);
        self.books.reserves.change(&key.reserve_pub, |book| match request.requested {
            None => book.origin_targets.push((row.found.serial, key.request_time, request.h_payto)),
            Some(_) if book.close_targets.contains(&request.h_payto) => {}
            Some(_) => book.close_targets.push(request.h_payto),
        });
        if !row.is_new() {
            return;
        }
        if request.requested.is_some_and(|requested| requested != request.h_payto) {
            let finding = row.finding(Rule::CloseReceiver).about(key.reserve_pub.as_bytes());
            self.found(finding.risking(request.balance.units()));
        }
        let message = WalletReserveClose {
            request_timestamp: key.request_time,
            target_h_payto: request.requested.unwrap_or(ORIGIN),
        };
        let (signature, rule) = (request.reserve_sig, Rule::CloseSignature);
        let loss = request.balance.units();
        self.claims.signature(rule, row.origin(), loss, key.reserve_pub, &message, signature);
    }
}
