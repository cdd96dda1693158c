//! Reads the rows on which the removal of others depends, for garbage collection.

use std::collections::BTreeSet;

use batzen_store::{Found, Store, StoreError};
use batzen_tables::exchange::{
    Closings, CsNonces, MeltByRc, MeltKey, NonceKind, PurseMerges, Purses, RcKey, Reserves, ReservesIn,
    Withdrawals,
};

use crate::rules::{NonceCandidate, PurseCandidate, ReserveCandidate};

/// Reads what the removal of reserves depends on. Returns each candidate with the number of its rows.
///
/// # Errors
/// When the store cannot be read.
pub fn reserve_candidates(
    store: &Store,
    found: &[Found<Reserves>],
) -> Result<Vec<(ReserveCandidate, usize)>, StoreError> {
    let keys: Vec<_> = found.iter().map(|found| found.key.reserve_pub).collect();
    let credits = store.lookup_many::<ReservesIn>(ReservesIn::BY_RESERVE, &keys)?;
    let closings = store.lookup_many::<Closings>(Closings::BY_RESERVE, &keys)?;
    let withdrawals = store.lookup_many::<Withdrawals>(Withdrawals::BY_RESERVE, &keys)?;
    let mut candidates = Vec::with_capacity(keys.len());
    for (reserve_pub, ((credits, closings), withdrawals)) in
        keys.into_iter().zip(credits.into_iter().zip(closings).zip(withdrawals))
    {
        let accounts: BTreeSet<_> = credits.iter().map(|found| found.key.account).collect();
        let rows = credits.len() + closings.len() + withdrawals.len();
        let candidate = ReserveCandidate {
            reserve_pub,
            accounts: accounts.into_iter().collect(),
            wtids: closings.iter().map(|found| found.row.wtid).collect(),
        };
        candidates.push((candidate, rows));
    }
    Ok(candidates)
}

/// Finds the melts that locks belong to.
///
/// # Errors
/// When the store cannot be read.
pub fn nonce_candidates(
    store: &Store,
    found: Vec<Found<CsNonces>>,
) -> Result<Vec<NonceCandidate>, StoreError> {
    let is_melt = |found: &Found<CsNonces>| found.key.kind == NonceKind::Melt;
    let rcs: Vec<RcKey> =
        found.iter().filter(|found| is_melt(found)).map(|found| RcKey { rc: found.row.operation }).collect();
    let mut coins = store.get_many::<MeltByRc>(&rcs)?.into_iter();
    let mut melt_of = |found: &Found<CsNonces>| {
        let coin_pub = coins.next().flatten()?.row.coin_pub;
        Some(MeltKey { coin_pub, rc: found.row.operation })
    };
    Ok(found
        .into_iter()
        .map(|found| {
            let melt = if is_melt(&found) { melt_of(&found) } else { None };
            let rc = is_melt(&found).then_some(found.row.operation);
            NonceCandidate { key: found.key, rc, melt }
        })
        .collect())
}

/// Finds the reserves that purses belong to.
///
/// # Errors
/// When the store cannot be read.
pub fn purse_candidates(store: &Store, found: &[Found<Purses>]) -> Result<Vec<PurseCandidate>, StoreError> {
    let keys: Vec<_> = found.iter().map(|found| found.key.clone()).collect();
    let merges = store.get_many::<PurseMerges>(&keys)?;
    let candidates = keys.into_iter().zip(merges);
    Ok(candidates
        .map(|(key, merge)| PurseCandidate {
            purse_pub: key.purse_pub,
            reserve_pub: merge.map(|merge| merge.row.reserve_pub),
        })
        .collect())
}
