//! The encoding of snapshots. As in the log, numbers have variable length, and zero bytes are avoided.

use std::fmt::Display;

use batzen_ledger::machine::{Balances, HeldAccount, Pending};
use batzen_ledger::{Account, AccountFlags, TransferFlags};
use batzen_store::{DecodeError, StoreError, Table};
use batzen_tables::ledger::LedgerAccounts;

use crate::store::block::Block;
use crate::store::codec::{CodecError, Input, put, put_u64};

pub(super) const PAGE_ACCOUNTS: u32 = 64;

/// Records in a group of the log's index.
pub(crate) const GROUP_RECORDS: u64 = 1024;

pub(super) const ROW_MARKS: usize = 4096;

/// Entries of pending transfers in a row.
pub(super) const ROW_PENDINGS: usize = 256;

pub(super) fn encode_accounts(accounts: &[HeldAccount]) -> Vec<u8> {
    let mut out = Vec::with_capacity(accounts.len() * 80);
    for HeldAccount { account, last, movements } in accounts {
        let optional = optional(account);
        let mut mask = 0;
        for (at, value) in optional.iter().enumerate() {
            mask |= u64::from(*value != 0) << at;
        }
        put_u64(mask + 1, &mut out);
        put(account.id, &mut out);
        for value in [account.timestamp, account.ledger.into(), account.code.into()] {
            put_u64(value, &mut out);
        }
        for value in [account.flags.0.into(), *last, *movements] {
            put_u64(value + 1, &mut out);
        }
        for value in optional.into_iter().filter(|value| *value != 0) {
            put(value, &mut out);
        }
    }
    out
}

/// Fields that are often zero.
fn optional(account: &Account) -> [u128; 7] {
    let balances = Balances::of(account);
    [
        account.user_data_128,
        account.user_data_64.into(),
        account.user_data_32.into(),
        balances.debits_pending,
        balances.debits_posted,
        balances.credits_pending,
        balances.credits_posted,
    ]
}

fn above_zero(input: &mut Input<'_>) -> Result<u64, CodecError> {
    input.u64()?.checked_sub(1).ok_or_else(|| input.error("a zero"))
}

pub(super) fn decode_accounts(bytes: &[u8]) -> Result<Vec<HeldAccount>, CodecError> {
    let mut accounts = Vec::with_capacity(usize::try_from(PAGE_ACCOUNTS).expect("small"));
    let mut input = Input::new(bytes);
    while !input.is_at_end() {
        let mask = above_zero(&mut input)?;
        let id = input.u128()?;
        let (timestamp, ledger, code) = (input.u64()?, input.u32()?, input.u16()?);
        let flags = above_zero(&mut input)?;
        let flags = u16::try_from(flags).map_err(|_| input.error("flags out of range"))?;
        let (last, movements) = (above_zero(&mut input)?, above_zero(&mut input)?);
        let mut values = [0; 7];
        for (at, value) in values.iter_mut().enumerate() {
            if mask >> at & 1 == 1 {
                *value = input.u128()?;
            }
        }
        let [user_data_128, user_data_64, user_data_32, balances @ ..] = values;
        let [debits_pending, debits_posted, credits_pending, credits_posted] = balances;
        let small = |_| input.error("user data out of range");
        let account = Account {
            id,
            debits_pending,
            debits_posted,
            credits_pending,
            credits_posted,
            user_data_128,
            user_data_64: user_data_64.try_into().map_err(small)?,
            user_data_32: user_data_32.try_into().map_err(small)?,
            reserved: 0,
            ledger,
            code,
            flags: AccountFlags(flags),
            timestamp,
        };
        accounts.push(HeldAccount { account, last, movements });
    }
    Ok(accounts)
}

/// A mark of an account: timestamp, and record number plus one, of one of its movements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark {
    pub account: u32,
    pub timestamp: u64,
    pub record: u64,
}

pub(super) fn encode_marks(marks: &[Mark]) -> Vec<u8> {
    let mut out = Vec::with_capacity(marks.len() * 8);
    let mut before = Mark { account: 0, timestamp: 0, record: 0 };
    for mark in marks {
        put_u64(u64::from(mark.account) + 1, &mut out);
        put_u64(mark.timestamp - before.timestamp + 1, &mut out);
        put_u64(mark.record - before.record + 1, &mut out);
        before = *mark;
    }
    out
}

pub(super) fn decode_marks(bytes: &[u8], mut visit: impl FnMut(Mark)) -> Result<(), CodecError> {
    let mut input = Input::new(bytes);
    let mut before = Mark { account: 0, timestamp: 0, record: 0 };
    while !input.is_at_end() {
        let account = above_zero(&mut input)?;
        let account = u32::try_from(account).map_err(|_| input.error("an account out of range"))?;
        let (timestamp, record) = (above_zero(&mut input)?, above_zero(&mut input)?);
        let far = || input.error("a mark out of range");
        before = Mark {
            account,
            timestamp: before.timestamp.checked_add(timestamp).ok_or_else(far)?,
            record: before.record.checked_add(record).ok_or_else(far)?,
        };
        visit(before);
    }
    Ok(())
}

/// A change of the unresolved pending transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PendingEntry {
    Added(Pending),
    Resolved(u128),
}

pub(super) fn encode_pendings(entries: &[PendingEntry]) -> Vec<u8> {
    let mut out = Vec::with_capacity(entries.len() * 64);
    for entry in entries {
        match entry {
            PendingEntry::Resolved(id) => {
                out.push(1);
                put(*id, &mut out);
            }
            PendingEntry::Added(pending) => {
                out.push(2);
                put(pending.id, &mut out);
                put(pending.amount, &mut out);
                put(pending.user_data_128, &mut out);
                for value in [
                    pending.user_data_64,
                    pending.timestamp,
                    pending.record,
                    pending.debit.into(),
                    pending.credit.into(),
                    pending.user_data_32.into(),
                    pending.timeout.into(),
                    pending.code.into(),
                    pending.flags.0.into(),
                ] {
                    put_u64(value, &mut out);
                }
            }
        }
    }
    out
}

pub(super) fn decode_pendings(bytes: &[u8], mut visit: impl FnMut(PendingEntry)) -> Result<(), CodecError> {
    let mut input = Input::new(bytes);
    while !input.is_at_end() {
        visit(match input.byte()? {
            1 => PendingEntry::Resolved(input.u128()?),
            2 => PendingEntry::Added(Pending {
                id: input.u128()?,
                amount: input.u128()?,
                user_data_128: input.u128()?,
                user_data_64: input.u64()?,
                timestamp: input.u64()?,
                record: input.u64()?,
                debit: input.u32()?,
                credit: input.u32()?,
                user_data_32: input.u32()?,
                timeout: input.u32()?,
                code: input.u16()?,
                flags: TransferFlags(input.u16()?),
            }),
            _ => return Err(input.error("an unknown kind of entry")),
        });
    }
    Ok(())
}

pub(super) fn encode_rows(group: u64, rows: &[Block]) -> Vec<u8> {
    let mut out = Vec::with_capacity(rows.len() * 8);
    let (mut first, mut last_movement) = (group * GROUP_RECORDS, 0);
    for row in rows {
        put_u64(row.first - first + 1, &mut out);
        put_u64(row.last_movement - last_movement + 1, &mut out);
        (first, last_movement) = (row.first, row.last_movement);
    }
    out
}

/// The rows of the log that begin in a group.
///
/// # Errors
/// When the bytes do not say it.
pub(crate) fn rows_of_group(group: u64, bytes: &[u8]) -> Result<Vec<Block>, CodecError> {
    let mut rows = Vec::new();
    let mut input = Input::new(bytes);
    let (mut first, mut last_movement) = (group * GROUP_RECORDS, 0_u64);
    while !input.is_at_end() {
        let (step, time) = (above_zero(&mut input)?, above_zero(&mut input)?);
        let far = || input.error("a row out of range");
        first = first.checked_add(step).ok_or_else(far)?;
        last_movement = last_movement.checked_add(time).ok_or_else(far)?;
        rows.push(Block { first, last_movement });
    }
    Ok(rows)
}

/// The error for a row that cannot be right.
pub(super) fn damaged(table: &'static str, at: u64, why: &impl Display) -> StoreError {
    StoreError::Decode { table, source: DecodeError::invalid("row", format!("{at}: {why}")) }
}

pub(super) fn damaged_page(page: u32, why: &impl Display) -> StoreError {
    damaged(LedgerAccounts::DEF.name, page.into(), why)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn account() -> impl Strategy<Value = HeldAccount> {
        (any::<(u128, u128, u64, u32, u32, u16, u16)>(), any::<[u128; 4]>(), 0..u64::MAX, 0..u64::MAX)
            .prop_map(
                |(
                    (id, user_data_128, user_data_64, user_data_32, ledger, code, flags),
                    balances,
                    last,
                    movements,
                )| {
                    let [debits_pending, debits_posted, credits_pending, credits_posted] = balances;
                    let account = Account {
                        id,
                        debits_pending,
                        debits_posted,
                        credits_pending: credits_pending % 2,
                        credits_posted,
                        user_data_128,
                        user_data_64,
                        user_data_32: user_data_32 % 2,
                        reserved: 0,
                        ledger,
                        code,
                        flags: AccountFlags(flags),
                        timestamp: last,
                    };
                    HeldAccount { account, last, movements }
                },
            )
    }

    fn pending_entry() -> impl Strategy<Value = PendingEntry> {
        let parts = any::<(bool, [u128; 3], [u64; 3], [u32; 4], [u16; 2])>();
        parts.prop_map(|(is_added, large, wide, small, [code, flags])| {
            let ([id, amount, user_data_128], [user_data_64, timestamp, record]) = (large, wide);
            let [debit, credit, user_data_32, timeout] = small;
            let flags = TransferFlags(flags);
            let pending = Pending {
                id,
                amount,
                user_data_128,
                user_data_64,
                timestamp,
                record,
                debit,
                credit,
                user_data_32,
                timeout,
                code,
                flags,
            };
            if is_added { PendingEntry::Added(pending) } else { PendingEntry::Resolved(id) }
        })
    }

    proptest! {
        #[test]
        fn accounts_are_read_back(accounts in prop::collection::vec(account(), 0..20)) {
            let bytes = encode_accounts(&accounts);
            prop_assert_eq!(decode_accounts(&bytes).unwrap(), accounts);
            if !bytes.is_empty() {
                prop_assert!(decode_accounts(&bytes[..bytes.len() - 1]).is_err());
            }
        }

        #[test]
        fn marks_and_rows_are_read_back(steps in prop::collection::vec(any::<(u32, u32, u32)>(), 0..50)) {
            let (mut marks, mut rows) = (Vec::new(), Vec::new());
            let (mut timestamp, mut record) = (0, 7 * GROUP_RECORDS);
            for (account, time, step) in steps {
                timestamp += u64::from(time);
                record += u64::from(step);
                marks.push(Mark { account, timestamp, record });
                rows.push(Block { first: record, last_movement: timestamp });
            }
            let mut found = Vec::new();
            decode_marks(&encode_marks(&marks), |mark| found.push(mark)).unwrap();
            prop_assert_eq!(found, marks);
            prop_assert_eq!(rows_of_group(7, &encode_rows(7, &rows)).unwrap(), rows);
        }

        #[test]
        fn pending_transfers_are_read_back(entries in prop::collection::vec(pending_entry(), 0..20)) {
            let mut found = Vec::new();
            decode_pendings(&encode_pendings(&entries), |entry| found.push(entry)).unwrap();
            prop_assert_eq!(found, entries);
        }
    }
}
