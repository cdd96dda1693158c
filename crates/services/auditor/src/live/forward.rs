//! The sums of reserves and transfers with long histories, which increments bring forward.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::ops::ControlFlow;

use crate::audit::Increment;
use crate::audit::books::Receiver;
use crate::audit::forward::{Forward, ForwardSource, ReserveSums, TransferSums};
use batzen_crypto::Wtid;
use batzen_store::{ChangeSet, Result, Store, Table};
use batzen_tables::auditor::results::{
    AuditReserveSums, AuditReserveSumsKey, AuditReserveSumsRow, AuditTransferSums, AuditTransferSumsKey,
    AuditTransferSumsRow,
};
use batzen_tables::exchange::ReservePub;

use super::{ROWS_AT_ONCE, committed};

/// The sums that a store has.
pub(super) struct Stored<'a>(pub &'a Store);

impl ForwardSource for Stored<'_> {
    fn read(&self, reserves: &HashSet<ReservePub>, transfers: &HashSet<Wtid>) -> Result<Forward> {
        let reserves: Vec<_> = reserves.iter().map(reserve_key).collect();
        let transfers: Vec<_> = transfers.iter().map(transfer_key).collect();
        let reserves = reserves.iter().zip(self.0.get_many::<AuditReserveSums>(&reserves)?);
        let transfers = transfers.iter().zip(self.0.get_many::<AuditTransferSums>(&transfers)?);
        Ok(Forward {
            reserves: reserves
                .filter_map(|(key, found)| found.map(|found| (key.reserve_pub, reserve_sums(&found.row))))
                .collect(),
            transfers: transfers
                .filter_map(|(key, found)| found.map(|found| (key.wtid, transfer_sums(&found.row))))
                .collect(),
        })
    }
}

fn reserve_key(reserve_pub: &ReservePub) -> AuditReserveSumsKey {
    AuditReserveSumsKey { reserve_pub: *reserve_pub }
}

fn transfer_key(wtid: &Wtid) -> AuditTransferSumsKey {
    AuditTransferSumsKey { wtid: *wtid }
}

fn reserve_sums(row: &AuditReserveSumsRow) -> ReserveSums {
    ReserveSums {
        entries: row.entries,
        into: row.into.cast_signed(),
        out: row.out.cast_signed(),
        quota: row.quota,
    }
}

fn reserve_row(sums: &ReserveSums) -> AuditReserveSumsRow {
    AuditReserveSumsRow {
        entries: sums.entries,
        into: sums.into.cast_unsigned(),
        out: sums.out.cast_unsigned(),
        quota: sums.quota,
    }
}

fn transfer_sums(row: &AuditTransferSumsRow) -> TransferSums {
    TransferSums {
        deposits: row.deposits,
        contributed: row.contributed.cast_signed(),
        fees: row.fees.cast_signed(),
        small: row.small,
        receiver: Receiver { h_payto: row.h_payto, merchant_pub: row.merchant_pub },
    }
}

fn transfer_row(sums: &TransferSums) -> AuditTransferSumsRow {
    AuditTransferSumsRow {
        deposits: sums.deposits,
        contributed: sums.contributed.cast_unsigned(),
        fees: sums.fees.cast_unsigned(),
        small: sums.small,
        h_payto: sums.receiver.h_payto,
        merchant_pub: sums.receiver.merchant_pub,
    }
}

/// Writes the rows of a table of which `old` and `new` differ.
fn write_table<T: Table, K: Hash + Eq, S: PartialEq>(
    (old, new): (&HashMap<K, S>, &HashMap<K, S>),
    set: &mut ChangeSet,
    key: impl Fn(&K) -> T::Key,
    row: impl Fn(&S) -> T::Row,
) {
    for (name, sums) in new {
        match old.get(name) {
            None => set.insert::<T>(&key(name), &row(sums)),
            Some(same) if same == sums => {}
            Some(old) => set.update::<T>(&key(name), &row(old), &row(sums)),
        }
    }
    for (name, sums) in old {
        if !new.contains_key(name) {
            set.delete::<T>(&key(name), &row(sums));
        }
    }
}

fn write_sums(old: &Forward, new: &Forward, set: &mut ChangeSet) {
    let reserves = (&old.reserves, &new.reserves);
    write_table::<AuditReserveSums, _, _>(reserves, set, reserve_key, reserve_row);
    let transfers = (&old.transfers, &new.transfers);
    write_table::<AuditTransferSums, _, _>(transfers, set, transfer_key, transfer_row);
}

/// Adds what an increment has changed to a commit.
pub(super) fn write(increment: &Increment, set: &mut ChangeSet) {
    write_sums(&increment.forward_before, &increment.forward, set);
}

/// Makes these the sums of all long histories, after all rows have been checked.
pub(super) fn replace(store: &Store, forward: &Forward) -> Result<()> {
    let mut old = Forward::default();
    store.scan::<AuditReserveSums>(|found| {
        old.reserves.insert(found.key.reserve_pub, reserve_sums(&found.row));
        ControlFlow::Continue(())
    })?;
    store.scan::<AuditTransferSums>(|found| {
        old.transfers.insert(found.key.wtid, transfer_sums(&found.row));
        ControlFlow::Continue(())
    })?;
    let mut set = ChangeSet::new();
    write_sums(&old, forward, &mut set);
    for part in set.changes().chunks(ROWS_AT_ONCE) {
        let mut page = ChangeSet::new();
        part.iter().for_each(|change| page.push(change.clone()));
        committed(store.commit(&page)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use batzen_crypto::{EddsaPublicKey, ShortHash};
    use batzen_store::memory::MemoryBackend;

    use super::*;

    fn reserve(n: u8) -> ReservePub {
        EddsaPublicKey::from_bytes([n; 32])
    }

    fn sums(entries: i64) -> ReserveSums {
        ReserveSums { entries, into: -1, out: i128::from(entries) << 70, quota: 2 }
    }

    #[test]
    fn sums_are_read_back_replaced_and_removed() {
        let store = Store::new(MemoryBackend::new());
        let wtid = Wtid::from_bytes([7; 32]);
        let receiver = Receiver {
            h_payto: ShortHash::from_bytes([1; 32]),
            merchant_pub: EddsaPublicKey::from_bytes([2; 32]),
        };
        let deposits = TransferSums { deposits: 300, contributed: 5, fees: -2, small: 1, receiver };
        let all = |reserves: &[(u8, i64)], transfers: &[TransferSums]| Forward {
            reserves: reserves.iter().map(|(n, entries)| (reserve(*n), sums(*entries))).collect(),
            transfers: transfers.iter().map(|sums| (wtid, *sums)).collect(),
        };
        let read = || {
            let reserves = (1..=3).map(reserve).collect();
            Stored(&store).read(&reserves, &HashSet::from([wtid])).unwrap()
        };
        let first = all(&[(1, 300), (2, 400)], &[deposits]);
        replace(&store, &first).unwrap();
        assert_eq!(read(), first);
        let second = all(&[(2, 401), (3, 500)], &[TransferSums { deposits: 301, ..deposits }]);
        replace(&store, &second).unwrap();
        assert_eq!(read(), second);
        let increment = Increment {
            forward_before: all(&[(3, 500)], &[]),
            forward: all(&[(1, 257)], &[]),
            ..Increment::default()
        };
        let mut set = ChangeSet::new();
        write(&increment, &mut set);
        committed(store.commit(&set).unwrap()).unwrap();
        assert_eq!(read().reserves, all(&[(1, 257), (2, 401)], &[]).reserves);
    }
}
