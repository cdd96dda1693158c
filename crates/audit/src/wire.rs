//! The bank's records against the exchange's (auditor chapter 7).

use std::collections::{HashMap, HashSet};

use batzen_crypto::{EddsaPublicKey, Wtid};
use batzen_protocol::Timestamp;
use batzen_store::{Record, Result, Table};
use batzen_tables::exchange::{
    AccountId, AccountKey, Closings, CollectedTerm, Cursors, Drains, PaytoHash, Prepared, ReserveInKey,
    ReservesIn, TransferKind, WireOut, WtidKey,
};

use crate::conclude::{Conclusion, TOLERANCE, units};
use crate::finding::{Finding, RowName, Rule};

/// A transfer to the exchange, as the bank has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BankCredit {
    /// Its row at the bank.
    pub row: u64,
    /// When it was executed.
    pub time: Timestamp,
    /// Its amount, in units of 10⁻⁸.
    pub units: u128,
    /// The reserve in its subject.
    pub reserve_pub: EddsaPublicKey,
    /// The payto URI of the sender.
    pub sender: String,
}

/// A transfer by the exchange, as the bank has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BankDebit {
    /// Its row at the bank.
    pub row: u64,
    /// When it was executed.
    pub time: Timestamp,
    /// Its amount, in units of 10⁻⁸.
    pub units: u128,
    /// The identifier in its subject.
    pub wtid: Wtid,
    /// The payto URI of the receiver.
    pub receiver: String,
}

/// Everything that the bank has about one of the exchange's accounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BankAccount {
    /// The section of the account in the configuration.
    pub section: String,
    /// Its payto URI.
    pub payto_uri: String,
    /// Incoming transfers, if they were read.
    pub credits: Option<Vec<BankCredit>>,
    /// Outgoing transfers, if they were read.
    pub debits: Option<Vec<BankDebit>>,
    /// When the reading began. What the exchange did later may be missing here.
    pub read: Timestamp,
}

/// What the check of an account adds up to, in units of 10⁻⁸.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AccountResult {
    /// The section of the account.
    pub section: String,
    /// What came in, by the bank.
    pub bank_in: i128,
    /// What went out, by the bank.
    pub bank_out: i128,
    /// Profit paid out.
    pub drained: i128,
    /// The last rows at the bank: credits and debits.
    pub last_rows: [u64; 2],
}

/// Whether two payto URIs name one account: without regard to case, and to anything after the account.
fn is_same_account(one: &str, other: &str) -> bool {
    fn bare(uri: &str) -> &str {
        uri.split('?').next().unwrap_or(uri)
    }
    bare(one).eq_ignore_ascii_case(bare(other))
}

/// A decided transfer that the bank should have.
struct Due {
    rule: Rule,
    row: RowName,
    units: u128,
    account: AccountId,
    receiver: String,
    time: Timestamp,
    /// When the exchange learnt that the bank accepted it; zero if that was long ago, `None` if it has not.
    accepted: Option<Timestamp>,
    is_drain: bool,
}

impl Conclusion<'_> {
    /// Compares the exchange's rows with the bank's.
    ///
    /// # Errors
    /// If rows cannot be read.
    pub(crate) fn wire(&mut self, accounts: &[BankAccount]) -> Result<Vec<AccountResult>> {
        let due = if accounts.is_empty() { HashMap::new() } else { self.due_transfers() };
        let mut results = Vec::new();
        for account in accounts {
            let mut result = AccountResult { section: account.section.clone(), ..AccountResult::default() };
            let id = AccountId::of_payto(&account.payto_uri);
            if let Some(credits) = &account.credits {
                self.credits(id, credits, account.read, &mut result)?;
            }
            if let Some(debits) = &account.debits {
                self.debits(id, debits, (&due, account.read), &mut result);
            }
            results.push(result);
        }
        Ok(results)
    }

    fn credits(
        &mut self,
        account: AccountId,
        credits: &[BankCredit],
        read: Timestamp,
        result: &mut AccountResult,
    ) -> Result<()> {
        let mut open: HashMap<u64, &BankCredit> = credits.iter().map(|credit| (credit.row, credit)).collect();
        result.bank_in = credits.iter().map(|credit| units(credit.units)).sum();
        result.last_rows[0] = credits.iter().map(|credit| credit.row).max().unwrap_or_default();
        // What lies behind the cursor has been imported. It is read before the rows, since both may move on.
        let cursor =
            self.store.get::<Cursors>(&AccountKey { account })?.map_or(0, |found| found.row.bank_row);
        let last = result.last_rows[0];
        let mut seen = HashSet::new();
        let mut findings = Vec::new();
        self.store.scan::<ReservesIn>(|found| {
            let (key, row): (&ReserveInKey, _) = (&found.key, &found.row);
            if key.account != account {
                return std::ops::ControlFlow::Continue(());
            }
            let name = RowName::new(ReservesIn::DEF, found.serial, &key.to_bytes());
            let finding = |rule| Finding::new(rule, name.clone()).about(key.reserve_pub.as_bytes());
            let booked = units(row.amount.units());
            if !seen.insert(key.bank_row) {
                findings.push(finding(Rule::CreditTwice).risking(row.amount.units()));
                return std::ops::ControlFlow::Continue(());
            }
            let Some(credit) = open.remove(&key.bank_row) else {
                if key.bank_row > last && row.time.saturating_add(TOLERANCE) >= read {
                    // It came while, or after, the bank's history was read.
                    return std::ops::ControlFlow::Continue(());
                }
                findings.push(finding(Rule::CreditInvented).figures(booked, 0));
                return std::ops::ControlFlow::Continue(());
            };
            let wired = units(credit.units);
            if credit.reserve_pub != key.reserve_pub {
                findings.push(finding(Rule::CreditSubject).figures(booked, 0));
                let at_bank = Finding::new(Rule::CreditSubject, name).about(credit.reserve_pub.as_bytes());
                findings.push(at_bank.figures(0, wired));
                return std::ops::ControlFlow::Continue(());
            }
            if wired != booked {
                findings.push(finding(Rule::CreditAmount).figures(booked, wired));
            }
            let sender = self.terms.account(&row.h_payto).unwrap_or_default();
            if !is_same_account(sender, &credit.sender) {
                findings
                    .push(finding(Rule::CreditSender).risking(row.amount.units()).because(&credit.sender));
            }
            if credit.time != row.time {
                findings.push(finding(Rule::CreditDate));
            }
            std::ops::ControlFlow::Continue(())
        })?;
        self.findings.append(&mut findings);
        // Transfers to reserves that were removed are no longer there.
        let imported: Vec<_> = open.into_values().filter(|credit| credit.row <= cursor).collect();
        let unbooked: i128 = imported.iter().map(|credit| units(credit.units)).sum();
        if unbooked > self.collected(CollectedTerm::WiredIn) {
            for credit in imported {
                let row = RowName { table: ReservesIn::DEF.name, serial: 0, key: credit.row.to_string() };
                let finding = Finding::new(Rule::CreditUnbooked, row).about(credit.reserve_pub.as_bytes());
                self.found(finding.figures(0, units(credit.units)));
            }
        }
        Ok(())
    }

    /// All transfers that were decided, by identifier.
    fn due_transfers(&self) -> HashMap<Wtid, Due> {
        let mut due = HashMap::new();
        let receiver = |h_payto: &PaytoHash| self.terms.account(h_payto).unwrap_or_default().to_owned();
        self.books.transfers.each(|wtid, book| {
            let key = WtidKey { wtid: *wtid }.to_bytes();
            // Orders that were removed had been executed long before.
            let accepted = book.prepared.as_ref().map_or(Some(Timestamp::ZERO), |order| order.row.finished);
            let entry = if let Some(fact) = &book.wire_out {
                Due {
                    rule: Rule::DebitWaiting,
                    row: RowName::new(WireOut::DEF, fact.serial, &key),
                    units: fact.row.amount.units(),
                    account: fact.row.account,
                    receiver: receiver(&fact.row.h_payto),
                    time: fact.row.time,
                    accepted,
                    is_drain: false,
                }
            } else if let Some(fact) = &book.closing {
                let row = &fact.row.1;
                Due {
                    rule: Rule::ClosureLag,
                    row: RowName::new(Closings::DEF, fact.serial, &key),
                    units: row.paid.units(),
                    account: row.account,
                    receiver: receiver(&row.h_payto),
                    time: row.time,
                    accepted,
                    is_drain: false,
                }
            } else if let (Some(fact), Some(order)) =
                (book.drain.as_ref().filter(|fact| fact.row.executed), &book.prepared)
            {
                Due {
                    rule: Rule::DebitWaiting,
                    row: RowName::new(Drains::DEF, fact.serial, &key),
                    units: fact.row.amount.units(),
                    account: order.row.account,
                    receiver: fact.row.payto_uri.clone(),
                    time: order.row.time,
                    accepted,
                    is_drain: true,
                }
            } else if let Some(order) = book.prepared.as_ref().filter(|o| o.row.kind == TransferKind::Closing)
            {
                // The reserve was removed, and its closing with it.
                Due {
                    rule: Rule::ClosureLag,
                    row: RowName::new(Prepared::DEF, order.serial, &key),
                    units: order.row.amount.units(),
                    account: order.row.account,
                    receiver: receiver(&order.row.h_payto),
                    time: order.row.time,
                    accepted,
                    is_drain: false,
                }
            } else {
                return;
            };
            due.insert(*wtid, entry);
        });
        due
    }

    fn debits(
        &mut self,
        account: AccountId,
        debits: &[BankDebit],
        (due, read): (&HashMap<Wtid, Due>, Timestamp),
        result: &mut AccountResult,
    ) {
        result.bank_out = debits.iter().map(|debit| units(debit.units)).sum();
        result.last_rows[1] = debits.iter().map(|debit| debit.row).max().unwrap_or_default();
        let mut paid = HashSet::new();
        let mut unknown = Vec::new();
        for debit in debits {
            let named = |rule, row: &RowName| Finding::new(rule, row.clone()).about(debit.wtid.as_bytes());
            if !paid.insert(debit.wtid) {
                let row = RowName { table: WireOut::DEF.name, serial: 0, key: debit.row.to_string() };
                self.found(named(Rule::DebitTwice, &row).risking(debit.units));
                continue;
            }
            let Some(order) = due.get(&debit.wtid).filter(|order| order.account == account) else {
                if !self.may_be_newer(debit.time) {
                    unknown.push(debit);
                }
                continue;
            };
            let (wired, justified) = (units(debit.units), units(order.units));
            if !is_same_account(&order.receiver, &debit.receiver) {
                let finding = named(Rule::DebitReceiver, &order.row).because(order.receiver.clone());
                self.found(finding.figures(wired, 0));
                let finding = named(Rule::DebitReceiver, &order.row).because(debit.receiver.clone());
                self.found(finding.figures(0, justified));
            } else if wired != justified {
                self.found(named(Rule::DebitAmount, &order.row).figures(wired, justified));
            }
            let apart = debit.time.saturating_since(order.time).max(order.time.saturating_since(debit.time));
            // A transfer may wait for the bank, so only one that was executed before it was decided is odd, and one
            // that the exchange had already seen executed.
            if apart > TOLERANCE && (debit.time < order.time || order.accepted.is_some()) {
                self.found(named(Rule::DebitDate, &order.row));
            }
            if order.is_drain {
                result.drained += wired;
            }
        }
        // Transfers that were decided long ago and archived since have left their identifiers only.
        let removed = self.collected(CollectedTerm::MerchantTransfers)
            + self.collected(CollectedTerm::ClosingTransfers)
            + self.collected(CollectedTerm::DrainTransfers);
        let unjustified: i128 = unknown.iter().map(|debit| units(debit.units)).sum();
        if unjustified > removed {
            for debit in unknown {
                let row = RowName { table: WireOut::DEF.name, serial: 0, key: debit.row.to_string() };
                let finding = Finding::new(Rule::DebitUnjustified, row).about(debit.wtid.as_bytes());
                self.found(finding.figures(units(debit.units), 0).because(debit.receiver.clone()));
            }
        }
        for (wtid, order) in due {
            if order.account != account || paid.contains(wtid) || order.units == 0 {
                continue;
            }
            let is_old = order.accepted.is_some_and(|time| time.saturating_add(TOLERANCE) < read);
            let rule =
                if is_old && order.rule == Rule::DebitWaiting { Rule::DebitMissing } else { order.rule };
            let finding = Finding::new(rule, order.row.clone()).about(wtid.as_bytes());
            self.found(finding.figures(0, units(order.units)).because(order.receiver.clone()));
        }
    }
}
