//! Compares bank and merchants with the copy, a step at a time.
//!
//! The bank's rows are kept beside the copy. A pair of rows, the exchange's and the bank's, is open from when one of them
//! comes or changes until both are found to agree; only open pairs are compared. So a comparison costs what is new, and
//! reads from the bank what came after the last row that was read. In the same way, confirmations are open until their
//! deposits are found. A check of all rows opens all pairs, and reads the bank's history from its beginning.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;

use crate::audit::{
    AccountResult, BankAccount, BankCredit, BankDebit, Confirmation, Finding, OpenPairs, RowChange, RowName,
    Rule, Settled,
};
use batzen_crypto::Wtid;
use batzen_store::{ChangeSet, DecodeError, Record, Result, Store, StoreError, Table, TableDef, go_on};
use batzen_tables::auditor::results::{
    AuditBankAccountKey, AuditBankAccountRow, AuditBankAccounts, AuditBankCreditRow, AuditBankCredits,
    AuditBankDebitRow, AuditBankDebits, AuditBankKey, AuditClosingKey, AuditClosings,
    AuditOpenConfirmationKey, AuditOpenConfirmationRow, AuditOpenConfirmations, AuditOpenCredits,
    AuditOpenRow, AuditOpenTransferKey, AuditOpenTransfers, AuditOutsideKey, AuditOutsideRow, AuditOutsides,
};
use batzen_tables::exchange::{
    AccountId, ClosingRow, Closings, DepositKey, DrainRow, Drains, Prepared, ReserveInKey, ReserveInRow,
    ReservesIn, WireOut, WireOutRow, WtidKey,
};

use super::{Asked, ROWS_AT_ONCE, clear, committed};

/// Records of others than the exchange.
#[derive(Debug, Default)]
pub struct Outside {
    /// The bank's records.
    pub bank: Vec<BankAccount>,
    /// The confirmations that merchants have shown.
    pub confirmations: Vec<Confirmation>,
    /// The parties that were asked.
    pub asked: Asked,
}

/// The positions to which bank and merchants have been read.
#[derive(Debug, Clone, Default)]
pub struct Since {
    /// The last rows of each account at the bank: incoming, outgoing.
    pub bank: HashMap<AccountId, [u64; 2]>,
    /// The last confirmation.
    pub confirmation: u64,
}

impl Since {
    /// The contents of a copy's store.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn of(store: &Store) -> Result<Self> {
        let accounts = store.all::<AuditBankAccounts>()?.into_iter();
        let last_rows = |row: &AuditBankAccountRow| [row.last_credit, row.last_debit];
        Ok(Self {
            bank: accounts.map(|found| (found.key.account, last_rows(&found.row))).collect(),
            confirmation: state(store)?.map_or(0, |row| row.confirmation),
        })
    }
}

fn state(store: &Store) -> Result<Option<AuditOutsideRow>> {
    Ok(store.get::<AuditOutsides>(&AuditOutsideKey::ONLY)?.map(|found| found.row))
}

const BEFORE_THE_FIRST: AuditOutsideRow = AuditOutsideRow { confirmation: 0, gone_in: 0, gone_out: 0 };

fn write_state(old: Option<&AuditOutsideRow>, new: &AuditOutsideRow, set: &mut ChangeSet) {
    match old {
        None => set.insert::<AuditOutsides>(&AuditOutsideKey::ONLY, new),
        Some(old) if old == new => {}
        Some(old) => set.update::<AuditOutsides>(&AuditOutsideKey::ONLY, old, new),
    }
}

fn credit_key((account, bank_row): (AccountId, u64)) -> AuditBankKey {
    AuditBankKey { account, bank_row }
}

fn transfer_key(wtid: Wtid) -> AuditOpenTransferKey {
    AuditOpenTransferKey { wtid }
}

/// Pairs to be opened.
#[derive(Default)]
struct Opened {
    credits: BTreeSet<(AccountId, u64)>,
    transfers: BTreeSet<Wtid>,
}

impl Opened {
    /// Opens those that are not.
    fn write(&self, store: &Store, set: &mut ChangeSet) -> Result<()> {
        let keys: Vec<_> = self.credits.iter().copied().map(credit_key).collect();
        for (key, found) in keys.iter().zip(store.get_many::<AuditOpenCredits>(&keys)?) {
            if found.is_none() {
                set.insert::<AuditOpenCredits>(key, &AuditOpenRow {});
            }
        }
        let keys: Vec<_> = self.transfers.iter().copied().map(transfer_key).collect();
        for (key, found) in keys.iter().zip(store.get_many::<AuditOpenTransfers>(&keys)?) {
            if found.is_none() {
                set.insert::<AuditOpenTransfers>(key, &AuditOpenRow {});
            }
        }
        Ok(())
    }
}

/// A row of the exchange that the bank has the other side of.
enum Side {
    Credit {
        place: (AccountId, u64),
        units: u128,
    },
    /// `decided`: the amount, if the row is a decision and not the order for one.
    Transfer {
        wtid: Wtid,
        decided: u128,
    },
}

impl Side {
    fn of(table: &'static TableDef, key: &[u8], row: &[u8]) -> Result<Option<Self>> {
        let failed = |source: DecodeError| StoreError::Decode { table: table.name, source };
        let wtid = || WtidKey::decode(key).map(|key| key.wtid).map_err(failed);
        Ok(match table.id {
            id if id == ReservesIn::DEF.id => {
                let key = ReserveInKey::decode(key).map_err(failed)?;
                let units = ReserveInRow::decode(row).map_err(failed)?.amount.units();
                Some(Self::Credit { place: (key.account, key.bank_row), units })
            }
            id if id == WireOut::DEF.id => {
                let decided = WireOutRow::decode(row).map_err(failed)?.amount.units();
                Some(Self::Transfer { wtid: wtid()?, decided })
            }
            id if id == Prepared::DEF.id => Some(Self::Transfer { wtid: wtid()?, decided: 0 }),
            id if id == Drains::DEF.id => {
                let row = DrainRow::decode(row).map_err(failed)?;
                let decided = if row.executed { row.amount.units() } else { 0 };
                Some(Self::Transfer { wtid: wtid()?, decided })
            }
            id if id == Closings::DEF.id => {
                let row = ClosingRow::decode(row).map_err(failed)?;
                let decided = row.paid.units();
                (decided > 0).then_some(Self::Transfer { wtid: row.wtid, decided })
            }
            _ => None,
        })
    }
}

/// Opens the pairs of changed rows, in the commit of the changes. `found`: what was found about the changes.
pub(super) fn note(
    store: &Store,
    changes: &[RowChange],
    found: &[Finding],
    set: &mut ChangeSet,
) -> Result<()> {
    let forbidden = found.iter().filter(|finding| finding.rule == Rule::RowRemoved);
    let forbidden: HashSet<(&str, &str)> =
        forbidden.map(|finding| (finding.row.table, finding.row.key.as_str())).collect();
    let mut opened = Opened::default();
    let mut removed = Vec::new();
    for change in changes {
        let (version, list) = match (&change.new, &change.old) {
            (Some(version), _) => (version, None),
            (None, Some(version)) => {
                let name = RowName::new(change.table, version.serial, &change.key);
                // A row that must not be removed is missed.
                let may_go = !forbidden.contains(&(name.table, name.key.as_str()));
                (version, may_go.then_some(&mut removed))
            }
            (None, None) => continue,
        };
        match (Side::of(change.table, &change.key, &version.row)?, list) {
            (Some(side), Some(removed)) => removed.push(side),
            (Some(Side::Credit { place, .. }), None) => {
                opened.credits.insert(place);
            }
            (Some(Side::Transfer { wtid, .. }), None) => {
                opened.transfers.insert(wtid);
            }
            (None, _) => {}
        }
    }
    opened.write(store, set)?;
    let mut gone = [0_u128; 2];
    for side in removed {
        // What did not agree stays open.
        match side {
            Side::Credit { place, units } => {
                let is_open = opened.credits.contains(&place)
                    || store.get::<AuditOpenCredits>(&credit_key(place))?.is_some();
                gone[0] += if is_open { 0 } else { units };
            }
            Side::Transfer { wtid, decided } => {
                let is_open = opened.transfers.contains(&wtid)
                    || store.get::<AuditOpenTransfers>(&transfer_key(wtid))?.is_some();
                gone[1] += if is_open { 0 } else { decided };
            }
        }
    }
    if gone != [0; 2] {
        let old = state(store)?;
        let mut new = old.clone().unwrap_or(BEFORE_THE_FIRST);
        new.gone_in += gone[0];
        new.gone_out += gone[1];
        write_state(old.as_ref(), &new, set);
    }
    Ok(())
}

/// Opens all pairs and forgets what bank and merchants have said, so that the next comparison is one of everything. It is a
/// part of a check of all rows: if it ends midway, that is begun again.
pub(super) fn reset(store: &Store) -> Result<()> {
    let kept = [AuditBankCredits::DEF, AuditBankDebits::DEF, AuditOpenConfirmations::DEF];
    clear(store, &[&[AuditBankAccounts::DEF, AuditOutsides::DEF], kept.as_slice()].concat())?;
    for table in [ReservesIn::DEF, WireOut::DEF, Closings::DEF, Drains::DEF, Prepared::DEF] {
        let mut opened = Opened::default();
        let mut outcome = Ok(());
        store.backend().scan(table, &mut |record| {
            let side = Side::of(table, &record.key, &record.row);
            let noted = side.map(|side| match side {
                Some(Side::Credit { place, .. }) => {
                    opened.credits.insert(place);
                }
                Some(Side::Transfer { wtid, .. }) => {
                    opened.transfers.insert(wtid);
                }
                None => {}
            });
            go_on(noted, &mut outcome)
        })?;
        outcome?;
        let Opened { credits, transfers } = opened;
        for page in Vec::from_iter(credits).chunks(ROWS_AT_ONCE) {
            open(store, Opened { credits: page.iter().copied().collect(), ..Opened::default() })?;
        }
        for page in Vec::from_iter(transfers).chunks(ROWS_AT_ONCE) {
            open(store, Opened { transfers: page.iter().copied().collect(), ..Opened::default() })?;
        }
    }
    Ok(())
}

fn open(store: &Store, opened: Opened) -> Result<()> {
    let mut set = ChangeSet::new();
    opened.write(store, &mut set)?;
    if set.is_empty() { Ok(()) } else { committed(store.commit(&set)?) }
}

/// Keeps what the bank has that came after what it had before, and opens the pairs.
pub(super) fn keep_bank(store: &Store, accounts: &[BankAccount]) -> Result<()> {
    for account in accounts {
        let id = AccountId::of_payto(&account.payto_uri);
        for page in account.credits.as_deref().unwrap_or_default().chunks(ROWS_AT_ONCE) {
            CREDITS.keep(store, id, page.iter().map(credit_row))?;
        }
        for page in account.debits.as_deref().unwrap_or_default().chunks(ROWS_AT_ONCE) {
            DEBITS.keep(store, id, page.iter().map(debit_row))?;
        }
    }
    Ok(())
}

/// Writes a row, whether it is there or not.
fn put<T: Table>(
    (key, row): (&T::Key, &T::Row),
    old: Option<batzen_store::Stored<T::Row>>,
    set: &mut ChangeSet,
) where
    T::Row: PartialEq,
{
    match old.map(|old| old.row) {
        None => set.insert::<T>(key, row),
        Some(old) if old == *row => {}
        Some(old) => set.update::<T>(key, &old, row),
    }
}

/// The history, of an account's two, that a row is in.
struct History<T: Table<Key = AuditBankKey>> {
    /// The last row and the sum of those that were kept, in the account's row.
    end: fn(&mut AuditBankAccountRow) -> (&mut u64, &mut u128),
    /// Opens the pair of a row.
    open: fn(&mut Opened, &AuditBankKey, &T::Row),
    /// A row's amount.
    units: fn(&T::Row) -> u128,
}

const CREDITS: History<AuditBankCredits> = History {
    end: |account| (&mut account.last_credit, &mut account.bank_in),
    open: |opened, key, _| {
        opened.credits.insert((key.account, key.bank_row));
    },
    units: |row| row.units,
};

const DEBITS: History<AuditBankDebits> = History {
    end: |account| (&mut account.last_debit, &mut account.bank_out),
    open: |opened, _, row| {
        opened.transfers.insert(row.wtid);
    },
    units: |row| row.units,
};

impl<T: Table<Key = AuditBankKey>> History<T>
where
    T::Row: PartialEq,
{
    /// Keeps rows, opens their pairs, and moves the account's position on, in one commit.
    fn keep(
        &self,
        store: &Store,
        account: AccountId,
        rows: impl Iterator<Item = (u64, T::Row)>,
    ) -> Result<()> {
        let account_key = AuditBankAccountKey { account };
        let old_account = store.get::<AuditBankAccounts>(&account_key)?;
        let none = AuditBankAccountRow { last_credit: 0, last_debit: 0, bank_in: 0, bank_out: 0 };
        let mut account_row = old_account.as_ref().map_or(none, |old| old.row.clone());
        let (last, sum) = (self.end)(&mut account_row);
        let known = *last;
        let (keys, rows): (Vec<AuditBankKey>, Vec<T::Row>) = rows
            .filter(|(bank_row, _)| *bank_row > known)
            .map(|(bank_row, row)| (AuditBankKey { account, bank_row }, row))
            .unzip();
        let mut set = ChangeSet::new();
        let mut opened = Opened::default();
        for ((key, row), old) in keys.iter().zip(&rows).zip(store.get_many::<T>(&keys)?) {
            put::<T>((key, row), old, &mut set);
            (self.open)(&mut opened, key, row);
            *last = key.bank_row.max(*last);
            *sum += (self.units)(row);
        }
        if rows.is_empty() {
            return Ok(());
        }
        opened.write(store, &mut set)?;
        put::<AuditBankAccounts>((&account_key, &account_row), old_account, &mut set);
        committed(store.commit(&set)?)
    }
}

fn credit_row(credit: &BankCredit) -> (u64, AuditBankCreditRow) {
    let BankCredit { row, time, units, reserve_pub, sender } = credit.clone();
    (row, AuditBankCreditRow { time, units, reserve_pub, sender })
}

fn debit_row(debit: &BankDebit) -> (u64, AuditBankDebitRow) {
    let BankDebit { row, time, units, wtid, receiver } = debit.clone();
    (row, AuditBankDebitRow { time, units, wtid, receiver })
}

/// Keeps confirmations that came after those before.
pub(super) fn keep_confirmations(store: &Store, confirmations: &[Confirmation]) -> Result<()> {
    for page in confirmations.chunks(ROWS_AT_ONCE) {
        let old = state(store)?;
        let last = old.as_ref().map_or(0, |row| row.confirmation);
        let fresh: Vec<&Confirmation> = page.iter().filter(|fresh| fresh.serial > last).collect();
        let Some(end) = fresh.iter().map(|fresh| fresh.serial).max() else { continue };
        let keys: Vec<_> =
            fresh.iter().map(|fresh| AuditOpenConfirmationKey { serial: fresh.serial }).collect();
        let mut set = ChangeSet::new();
        let known = store.get_many::<AuditOpenConfirmations>(&keys)?;
        for ((key, confirmation), known) in keys.iter().zip(fresh).zip(known) {
            if known.is_none() {
                set.insert::<AuditOpenConfirmations>(key, &confirmation_row(confirmation));
            }
        }
        let new = AuditOutsideRow { confirmation: end, ..old.clone().unwrap_or(BEFORE_THE_FIRST) };
        write_state(old.as_ref(), &new, &mut set);
        committed(store.commit(&set)?)?;
    }
    Ok(())
}

fn confirmation_row(confirmation: &Confirmation) -> AuditOpenConfirmationRow {
    AuditOpenConfirmationRow {
        coin_pub: confirmation.deposit.coin_pub,
        merchant_pub: confirmation.deposit.merchant_pub,
        h_contract_terms: confirmation.deposit.h_contract_terms,
        h_wire: confirmation.h_wire,
        refund_deadline: confirmation.refund_deadline,
        time: confirmation.time,
        units: confirmation.units,
    }
}

/// The confirmations whose deposits have not been found.
pub(super) fn open_confirmations(store: &Store) -> Result<Vec<Confirmation>> {
    let open = store.all::<AuditOpenConfirmations>()?.into_iter().map(|found| Confirmation {
        serial: found.key.serial,
        deposit: DepositKey {
            coin_pub: found.row.coin_pub,
            merchant_pub: found.row.merchant_pub,
            h_contract_terms: found.row.h_contract_terms,
        },
        h_wire: found.row.h_wire,
        refund_deadline: found.row.refund_deadline,
        time: found.row.time,
        units: found.row.units,
    });
    Ok(open.collect())
}

/// The open pairs, and what the bank has of them. `asked`: the accounts that the bank was asked about.
pub(super) fn open_pairs(store: &Store, asked: &[BankAccount]) -> Result<(OpenPairs, Vec<BankAccount>)> {
    let mut open = OpenPairs::default();
    store.scan::<AuditOpenCredits>(|found| {
        open.credits.insert((found.key.account, found.key.bank_row));
        ControlFlow::Continue(())
    })?;
    store.scan::<AuditOpenTransfers>(|found| {
        open.transfers.insert(found.key.wtid);
        ControlFlow::Continue(())
    })?;
    let (mut credits, mut debits) = (BTreeMap::new(), BTreeMap::new());
    let keys: Vec<_> = open.credits.iter().copied().map(credit_key).collect();
    for keys in keys.chunks(ROWS_AT_ONCE) {
        for (key, found) in keys.iter().zip(store.get_many::<AuditBankCredits>(keys)?) {
            let Some(row) = found.map(|found| found.row) else { continue };
            let credit = BankCredit {
                row: key.bank_row,
                time: row.time,
                units: row.units,
                reserve_pub: row.reserve_pub,
                sender: row.sender,
            };
            credits.entry(key.account).or_insert_with(Vec::new).push(credit);
        }
    }
    let wtids: Vec<Wtid> = open.transfers.iter().copied().collect();
    for wtids in wtids.chunks(ROWS_AT_ONCE) {
        let found = store.lookup_many::<AuditBankDebits>(AuditBankDebits::BY_WTID, wtids)?;
        for found in found.into_iter().flatten() {
            let debit = BankDebit {
                row: found.key.bank_row,
                time: found.row.time,
                units: found.row.units,
                wtid: found.row.wtid,
                receiver: found.row.receiver,
            };
            debits.entry(found.key.account).or_insert_with(Vec::new).push(debit);
        }
        let keys: Vec<_> = wtids.iter().map(|wtid| AuditClosingKey { wtid: *wtid }).collect();
        let closings = store.get_many::<AuditClosings>(&keys)?.into_iter().flatten();
        open.closings.extend(closings.map(|found| found.row.reserve_pub));
    }
    let state = state(store)?.unwrap_or(BEFORE_THE_FIRST);
    open.gone = [state.gone_in.cast_signed(), state.gone_out.cast_signed()];
    let drained = drained(store)?;
    for found in store.all::<AuditBankAccounts>()? {
        let (account, row) = (found.key.account, found.row);
        let result = AccountResult {
            bank_in: row.bank_in.cast_signed(),
            bank_out: row.bank_out.cast_signed(),
            drained: drained.get(&account).copied().unwrap_or_default(),
            last_rows: [row.last_credit, row.last_debit],
            ..AccountResult::default()
        };
        open.accounts.insert(account, result);
    }
    let accounts = asked.iter().map(|account| {
        let id = AccountId::of_payto(&account.payto_uri);
        let rows = |is_read: bool| is_read.then_some(());
        BankAccount {
            section: account.section.clone(),
            payto_uri: account.payto_uri.clone(),
            credits: rows(account.credits.is_some()).map(|()| credits.remove(&id).unwrap_or_default()),
            debits: rows(account.debits.is_some()).map(|()| {
                let mut debits = debits.remove(&id).unwrap_or_default();
                debits.sort_by_key(|debit: &BankDebit| debit.row);
                debits
            }),
            read: account.read,
        }
    });
    let accounts = accounts.collect();
    Ok((open, accounts))
}

/// The profit that was paid out from each account. There are few such transfers.
fn drained(store: &Store) -> Result<HashMap<AccountId, i128>> {
    let executed: Vec<Wtid> = store
        .all::<Drains>()?
        .into_iter()
        .filter(|found| found.row.executed)
        .map(|found| found.key.wtid)
        .collect();
    let mut drained = HashMap::new();
    for found in store.lookup_many::<AuditBankDebits>(AuditBankDebits::BY_WTID, &executed)? {
        // A second transfer is found as such.
        if let Some(debit) = found.into_iter().min_by_key(|found| found.key.bank_row) {
            *drained.entry(debit.key.account).or_default() += debit.row.units.cast_signed();
        }
    }
    Ok(drained)
}

/// Closes the pairs that agree.
pub(super) fn settle(store: &Store, settled: &Settled) -> Result<()> {
    let credits: Vec<_> = settled.credits.iter().copied().map(credit_key).collect();
    let transfers: Vec<_> = settled.transfers.iter().copied().map(transfer_key).collect();
    let confirmations: Vec<_> =
        settled.confirmations.iter().map(|serial| AuditOpenConfirmationKey { serial: *serial }).collect();
    let mut set = ChangeSet::new();
    if settled.gone != [0; 2] {
        let old = state(store)?;
        let mut new = old.clone().unwrap_or(BEFORE_THE_FIRST);
        new.gone_in = new.gone_in.wrapping_add_signed(settled.gone[0]);
        new.gone_out = new.gone_out.wrapping_add_signed(settled.gone[1]);
        write_state(old.as_ref(), &new, &mut set);
    }
    set = close::<AuditOpenCredits>(store, &credits, set)?;
    set = close::<AuditOpenTransfers>(store, &transfers, set)?;
    set = close::<AuditOpenConfirmations>(store, &confirmations, set)?;
    if set.is_empty() { Ok(()) } else { committed(store.commit(&set)?) }
}

/// Removes rows; commits whenever there are many.
fn close<T: Table>(store: &Store, keys: &[T::Key], mut set: ChangeSet) -> Result<ChangeSet> {
    for keys in keys.chunks(ROWS_AT_ONCE) {
        for (key, found) in keys.iter().zip(store.get_many::<T>(keys)?) {
            if let Some(found) = found {
                set.delete::<T>(key, &found.row);
            }
        }
        if set.changes().len() >= ROWS_AT_ONCE {
            committed(store.commit(&set)?)?;
            set = ChangeSet::new();
        }
    }
    Ok(set)
}
