//! The bank's records against the exchange's (auditor chapter 7).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::{Bound, ControlFlow};

use batzen_crypto::{EddsaPublicKey, Wtid};
use batzen_protocol::Timestamp;
use batzen_store::{Column, Found, Record, Result, Table};
use batzen_tables::exchange::{
    AccountId, AccountKey, Closings, CollectedTerm, Cursors, Drains, PaytoHash, Prepared, ReserveInKey,
    ReservePub, ReservesIn, TransferKind, WireAccounts, WireOut, WtidKey,
};

use crate::audit::conclude::{Conclusion, TOLERANCE, units};
use crate::audit::finding::{Finding, RowName, Rule};

/// Incoming transfers are read at once if fewer rows of the bank than this are between them.
const RUN_GAP_ROWS: u64 = 64;
/// Number of incoming transfers that are read at once.
const RUN_ROWS: usize = 1_024;

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

/// Sums of an account's check, in units of 10⁻⁸.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AccountResult {
    /// The section of the account.
    pub(crate) section: String,
    /// The sum that came in, by the bank.
    pub(crate) bank_in: i128,
    /// The sum that went out, by the bank.
    pub(crate) bank_out: i128,
    /// Profit paid out.
    pub(crate) drained: i128,
    /// The last rows at the bank: credits and debits.
    pub(crate) last_rows: [u64; 2],
    /// Whether the bank's history was read: credits and debits.
    pub(crate) is_read: [bool; 2],
}

/// The pairs that are compared when the others have been found to agree before: rows of the exchange and of the bank.
#[derive(Debug, Clone, Default)]
pub struct OpenPairs {
    /// Incoming transfers, by account and the bank's row.
    pub(crate) credits: BTreeSet<(AccountId, u64)>,
    /// Outgoing transfers.
    pub(crate) transfers: BTreeSet<Wtid>,
    /// The reserves of those transfers that close one and do not have the reserve's own key as identifier.
    pub(crate) closings: Vec<ReservePub>,
    /// The sums that agreed before the exchange removed its row, in units of 10⁻⁸: incoming, outgoing.
    pub(crate) gone: [i128; 2],
    /// The bank's totals of each account.
    pub(crate) accounts: HashMap<AccountId, AccountResult>,
}

/// Pairs that agree, so that they need not be compared again until one of their rows changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    /// Incoming transfers, by account and the bank's row.
    pub(crate) credits: BTreeSet<(AccountId, u64)>,
    /// Outgoing transfers.
    pub(crate) transfers: BTreeSet<Wtid>,
    /// Confirmations, by their serials.
    pub(crate) confirmations: Vec<u64>,
    /// Of these, those of which the exchange has removed its row, in units of 10⁻⁸: incoming, outgoing.
    pub(crate) gone: [i128; 2],
}

/// The comparison so far.
#[derive(Default)]
struct Compared<'a> {
    settled: Settled,
    /// Incoming transfers that the exchange has passed over.
    unbooked: Vec<(AccountId, &'a BankCredit)>,
    /// Outgoing transfers that no row of the exchange justifies.
    unknown: Vec<&'a BankDebit>,
    /// The sum of those that have been found, in units of 10⁻⁸.
    unexplained: i128,
}

/// The result of the comparison with the bank.
pub(crate) struct Wires {
    /// The totals of each account.
    pub accounts: Vec<AccountResult>,
    /// Pairs that agree.
    pub settled: Settled,
    /// The sum of the transfers that nothing justifies, in units of 10⁻⁸.
    pub unexplained: i128,
    /// The exchange's accounts whose histories were not both read, as payto URIs.
    pub unread: Vec<String>,
}

/// Returns whether two payto URIs name one account: without regard to case, and to anything after the
/// account.
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
    /// Compares the exchange's rows with the bank's. `open`: the pairs that are compared; `None`: all.
    ///
    /// # Errors
    /// If rows cannot be read.
    pub(crate) fn wire(&mut self, accounts: &[BankAccount], open: Option<&OpenPairs>) -> Result<Wires> {
        let mut due = if accounts.is_empty() { HashMap::new() } else { self.due_transfers() };
        if let Some(open) = open {
            // Other closings of the same reserves have been posted, too.
            due.retain(|wtid, _| open.transfers.contains(wtid));
        }
        let mut compared = Compared::default();
        let mut results = Vec::new();
        for account in accounts {
            let id = AccountId::of_payto(&account.payto_uri);
            let known = open.and_then(|open| open.accounts.get(&id).cloned());
            let mut result = known.unwrap_or_else(|| AccountResult::of(account));
            result.section.clone_from(&account.section);
            result.is_read = [account.credits.is_some(), account.debits.is_some()];
            if let Some(credits) = &account.credits {
                self.credits(id, credits, (open, account.read, result.last_rows[0]), &mut compared)?;
            }
            if let Some(debits) = &account.debits {
                let drained = self.debits(id, debits, (&due, account.read), &mut compared);
                if open.is_none() {
                    result.drained = drained;
                }
            }
            results.push(result);
        }
        // Of some pairs nothing is left.
        let debits: HashSet<Wtid> = accounts
            .iter()
            .flat_map(|account| account.debits.iter().flatten())
            .map(|debit| debit.wtid)
            .collect();
        let is_gone = |wtid: &&Wtid| !due.contains_key(*wtid) && !debits.contains(*wtid);
        let open_transfers = open.into_iter().flat_map(|open| &open.transfers);
        compared.settled.transfers.extend(open_transfers.filter(is_gone));
        let gone = open.map_or([0; 2], |open| open.gone);
        self.unbooked(gone[0], &mut compared);
        self.unjustified(gone[1], &mut compared);
        let Compared { settled, unexplained, .. } = compared;
        Ok(Wires { unread: self.unread(accounts)?, accounts: results, settled, unexplained })
    }

    /// The exchange's accounts whose histories were not both read, as payto URIs.
    fn unread(&self, accounts: &[BankAccount]) -> Result<Vec<String>> {
        let is_whole = |account: &&BankAccount| account.credits.is_some() && account.debits.is_some();
        let read: HashSet<AccountId> =
            accounts.iter().filter(is_whole).map(|account| AccountId::of_payto(&account.payto_uri)).collect();
        let mut unread: Vec<String> = self
            .store
            .all::<WireAccounts>()?
            .into_iter()
            .map(|found| found.row.payto_uri)
            .filter(|payto_uri| !read.contains(&AccountId::of_payto(payto_uri)))
            .collect();
        unread.sort_unstable();
        Ok(unread)
    }

    /// Transfers that the exchange has passed over, unless they are to reserves that were removed since.
    fn unbooked(&mut self, gone: i128, compared: &mut Compared<'_>) {
        let unbooked: i128 = compared.unbooked.iter().map(|(_, credit)| units(credit.units)).sum();
        if unbooked + gone <= self.collected(CollectedTerm::WiredIn) {
            compared.settled.gone[0] += unbooked;
            let rows = compared.unbooked.iter().map(|(account, credit)| (*account, credit.row));
            compared.settled.credits.extend(rows);
            return;
        }
        for (_, credit) in &compared.unbooked {
            let row = RowName { table: ReservesIn::DEF.name, serial: 0, key: credit.row.to_string() };
            let finding = Finding::new(Rule::CreditUnbooked, row).about(credit.reserve_pub.as_bytes());
            self.found(finding.figures(0, units(credit.units)));
        }
    }

    /// Transfers that nothing justifies. Those that were decided long ago and archived since have left their identifiers
    /// only.
    fn unjustified(&mut self, gone: i128, compared: &mut Compared<'_>) {
        let removed = self.collected(CollectedTerm::MerchantTransfers)
            + self.collected(CollectedTerm::ClosingTransfers)
            + self.collected(CollectedTerm::DrainTransfers);
        let unjustified: i128 = compared.unknown.iter().map(|debit| units(debit.units)).sum();
        if unjustified + gone <= removed {
            compared.settled.gone[1] += unjustified;
            compared.settled.transfers.extend(compared.unknown.iter().map(|debit| debit.wtid));
            return;
        }
        compared.unexplained += unjustified;
        for debit in &compared.unknown {
            let row = RowName { table: WireOut::DEF.name, serial: 0, key: debit.row.to_string() };
            let finding = Finding::new(Rule::DebitUnjustified, row).about(debit.wtid.as_bytes());
            self.found(finding.figures(units(debit.units), 0).because(debit.receiver.clone()));
        }
    }

    /// The incoming transfers that the exchange has booked, of an account.
    fn booked(
        &self,
        account: AccountId,
        open: Option<&OpenPairs>,
        mut visit: impl FnMut(&Found<ReservesIn>),
    ) -> Result<()> {
        let Some(open) = open else {
            return self.store.scan::<ReservesIn>(|found| {
                if found.key.account == account {
                    visit(&found);
                }
                ControlFlow::Continue(())
            });
        };
        let rows: Vec<u64> =
            open.credits.range((account, 0)..=(account, u64::MAX)).map(|(_, row)| *row).collect();
        let place = |row: u64| {
            let mut bytes = account.to_bytes();
            row.encode(&mut bytes);
            Bound::Included(bytes)
        };
        // Rows that are close together are read at once.
        let runs = rows.chunk_by(|row, next| next - row < RUN_GAP_ROWS);
        for run in runs.flat_map(|run| run.chunks(RUN_ROWS)) {
            let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
            let (index, all) = (ReservesIn::BY_BANK_ROW, usize::MAX >> 1);
            let found =
                self.store.range_bytes::<ReservesIn>(index, place(*first), place(*last), all, false)?;
            found.iter().filter(|found| run.binary_search(&found.key.bank_row).is_ok()).for_each(&mut visit);
        }
        Ok(())
    }

    fn credits<'a>(
        &mut self,
        account: AccountId,
        credits: &'a [BankCredit],
        (open, read, last): (Option<&OpenPairs>, Timestamp, u64),
        compared: &mut Compared<'a>,
    ) -> Result<()> {
        let mut waiting: HashMap<u64, &BankCredit> =
            credits.iter().map(|credit| (credit.row, credit)).collect();
        // What lies behind the cursor has been imported. It is read before the rows, since both may move on.
        let cursor =
            self.store.get::<Cursors>(&AccountKey { account })?.map_or(0, |found| found.row.bank_row);
        let mut seen = HashSet::new();
        let mut findings = Vec::new();
        let settled = &mut compared.settled.credits;
        self.booked(account, open, |found| {
            let (key, row): (&ReserveInKey, _) = (&found.key, &found.row);
            let place = (account, key.bank_row);
            let name = RowName::new(ReservesIn::DEF, found.serial, &key.to_bytes());
            let finding = |rule| Finding::new(rule, name.clone()).about(key.reserve_pub.as_bytes());
            let booked = units(row.amount.units());
            if !seen.insert(key.bank_row) {
                settled.remove(&place);
                findings.push(finding(Rule::CreditTwice).risking(row.amount.units()));
                return;
            }
            let Some(credit) = waiting.remove(&key.bank_row) else {
                // Unless it came while, or after, the bank's history was read.
                if key.bank_row <= last || row.time.saturating_add(TOLERANCE) < read {
                    findings.push(finding(Rule::CreditInvented).figures(booked, 0));
                }
                return;
            };
            let wired = units(credit.units);
            if credit.reserve_pub != key.reserve_pub {
                findings.push(finding(Rule::CreditSubject).figures(booked, 0));
                let at_bank = Finding::new(Rule::CreditSubject, name).about(credit.reserve_pub.as_bytes());
                findings.push(at_bank.figures(0, wired));
                return;
            }
            let before = findings.len();
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
            if findings.len() == before {
                settled.insert(place);
            }
        })?;
        self.findings.append(&mut findings);
        // Of some pairs nothing is left.
        let open_rows =
            open.into_iter().flat_map(|open| open.credits.range((account, 0)..=(account, u64::MAX)));
        let is_gone = |(_, row): &&(AccountId, u64)| !seen.contains(row) && !waiting.contains_key(row);
        settled.extend(open_rows.filter(is_gone));
        // What was not imported yet waits.
        let imported = waiting.into_values().filter(|credit| credit.row <= cursor);
        compared.unbooked.extend(imported.map(|credit| (account, credit)));
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

    /// Returns the profit that was paid out.
    fn debits<'a>(
        &mut self,
        account: AccountId,
        debits: &'a [BankDebit],
        (due, read): (&HashMap<Wtid, Due>, Timestamp),
        compared: &mut Compared<'a>,
    ) -> i128 {
        let mut drained = 0;
        let mut paid = HashSet::new();
        for debit in debits {
            let named = |rule, row: &RowName| Finding::new(rule, row.clone()).about(debit.wtid.as_bytes());
            if !paid.insert(debit.wtid) {
                compared.settled.transfers.remove(&debit.wtid);
                let row = RowName { table: WireOut::DEF.name, serial: 0, key: debit.row.to_string() };
                self.found(named(Rule::DebitTwice, &row).risking(debit.units));
                continue;
            }
            let Some(order) = due.get(&debit.wtid).filter(|order| order.account == account) else {
                if self.may_be_newer(debit.time) {
                    // Shown at once: a thief's transfer looks like this, too.
                    let row = RowName { table: WireOut::DEF.name, serial: 0, key: debit.row.to_string() };
                    let finding = named(Rule::DebitPending, &row).because(debit.receiver.clone());
                    self.found(finding.figures(units(debit.units), 0));
                } else {
                    compared.unknown.push(debit);
                }
                continue;
            };
            let before = self.findings.len();
            let (wired, justified) = (units(debit.units), units(order.units));
            if !is_same_account(&order.receiver, &debit.receiver) {
                let finding = named(Rule::DebitReceiver, &order.row).because(order.receiver.clone());
                self.found(finding.figures(wired, 0));
                let finding = named(Rule::DebitReceiver, &order.row).because(debit.receiver.clone());
                self.found(finding.figures(0, justified));
            } else if wired != justified {
                self.found(named(Rule::DebitAmount, &order.row).figures(wired, justified));
            }
            // A transfer may wait for the bank for a long time, so only one that was executed before it was decided is
            // odd, and one after the exchange had seen it executed.
            let is_early = order.time.saturating_since(debit.time) > TOLERANCE;
            let accepted = order.accepted.filter(|time| *time != Timestamp::ZERO);
            if is_early || accepted.is_some_and(|time| debit.time.saturating_since(time) > TOLERANCE) {
                self.found(named(Rule::DebitDate, &order.row));
            }
            if self.findings.len() == before {
                compared.settled.transfers.insert(debit.wtid);
            }
            if order.is_drain {
                drained += wired;
            }
        }
        for (wtid, order) in due {
            if order.account != account || paid.contains(wtid) {
                continue;
            }
            if order.units == 0 {
                compared.settled.transfers.insert(*wtid);
                continue;
            }
            let is_old = order.accepted.is_some_and(|time| time.saturating_add(TOLERANCE) < read);
            let rule =
                if is_old && order.rule == Rule::DebitWaiting { Rule::DebitMissing } else { order.rule };
            let finding = Finding::new(rule, order.row.clone()).about(wtid.as_bytes());
            self.found(finding.figures(0, units(order.units)).because(order.receiver.clone()));
        }
        drained
    }
}

impl AccountResult {
    /// The bank's totals of an account.
    fn of(account: &BankAccount) -> Self {
        let (credits, debits) = (account.credits.iter().flatten(), account.debits.iter().flatten());
        Self {
            section: account.section.clone(),
            bank_in: credits.clone().map(|credit| units(credit.units)).sum(),
            bank_out: debits.clone().map(|debit| units(debit.units)).sum(),
            drained: 0,
            last_rows: [
                credits.map(|credit| credit.row).max().unwrap_or_default(),
                debits.map(|debit| debit.row).max().unwrap_or_default(),
            ],
            is_read: [account.credits.is_some(), account.debits.is_some()],
        }
    }
}
