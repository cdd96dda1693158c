//! Finds what may leave for an archive, with all rows that leave with it.

use std::collections::{BTreeMap, HashMap, HashSet};

use batzen_crypto::Wtid;
use batzen_store::{Found, Store, StoreError, Table};
use batzen_tables::exchange::{
    CoinPub, Coins, DepositKey, Deposits, MeltByRc, Melts, Prepared, PurseDeposits, PursePub, Purses, RcKey,
    RecoupRefreshCredits, RecoupRefreshes, Recoups, RefundKey, RefundRow, Refunds, ReserveOpenDeposits,
    Reveals, WireOut, WtidKey,
};

use crate::rules::archive::{ARCHIVE_DEPOSITS_MAX, Retention, in_order};
use crate::rules::{ArchiveUnit, CoinFile, PurseCoins, Stays, TransferPart};

type Result<T> = std::result::Result<T, StoreError>;

/// The result: units that may leave, and the numbers of those that stay, by reason.
#[derive(Debug, Default)]
pub(crate) struct Examined {
    /// The units, in the order in which they must leave.
    pub(crate) units: Vec<ArchiveUnit>,
    /// Number of transfers, purses or coins that stay.
    pub(crate) stay: BTreeMap<Stays, u64>,
}

impl Examined {
    fn stays(&mut self, why: Stays) {
        *self.stay.entry(why).or_default() += 1;
    }
}

/// Units that leave before the coins: their payments do not hold them back.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    pub(crate) transfers: HashSet<Wtid>,
    pub(crate) purses: HashSet<PursePub>,
}

fn pairs<T: Table>(found: Vec<Found<T>>) -> Vec<(T::Key, T::Row)>
where
    T::Key: Ord,
{
    in_order(found.into_iter().map(|found| (found.key, found.row)).collect())
}

/// Examines transfers to merchants.
///
/// # Errors
/// When the store cannot be read.
pub(crate) fn transfers(
    store: &Store,
    retention: Retention<'_>,
    page: Vec<Found<WireOut>>,
) -> Result<Examined> {
    let mut examined = Examined::default();
    let keys: Vec<WtidKey> = page.iter().map(|found| found.key.clone()).collect();
    for (found, prepared) in page.into_iter().zip(store.get_many::<Prepared>(&keys)?) {
        let prepared = prepared.map(|found| found.row);
        if let Some(why) = retention.transfer_stays(&found.row, prepared.as_ref()) {
            examined.stays(why);
            continue;
        }
        let wtid = found.key.wtid;
        let deposits = pairs(store.lookup::<Deposits>(Deposits::BY_WTID, &wtid)?);
        if !deposits.iter().all(|(_, row)| retention.is_forgotten(row.denom)) {
            examined.stays(Stays::Young);
            continue;
        }
        let mut parts = Vec::with_capacity(deposits.len() / ARCHIVE_DEPOSITS_MAX + 1);
        for chunk in deposits.chunks(ARCHIVE_DEPOSITS_MAX) {
            let keys: Vec<DepositKey> = chunk.iter().map(|(key, _)| key.clone()).collect();
            let refunds = refunds_of(store, &keys)?;
            let deposits = chunk.to_vec();
            parts.push(TransferPart { wtid, wire_out: None, prepared: None, deposits, refunds });
        }
        if let Some(last) = parts.last_mut() {
            (last.wire_out, last.prepared) = (Some(found.row), prepared);
        }
        examined.units.extend(parts.into_iter().map(|part| ArchiveUnit::Transfer(Box::new(part))));
    }
    Ok(examined)
}

fn refunds_of(store: &Store, deposits: &[DepositKey]) -> Result<Vec<(RefundKey, RefundRow)>> {
    let coins: Vec<CoinPub> = deposits.iter().map(|key| key.coin_pub).collect();
    let groups = store.lookup_many::<Refunds>(Refunds::BY_COIN, &coins)?;
    let mut refunds = Vec::new();
    for (deposit, group) in deposits.iter().zip(groups) {
        let of_it = group.into_iter().filter(|found| found.key.deposit() == *deposit);
        refunds.extend(of_it.map(|found| (found.key, found.row)));
    }
    Ok(in_order(refunds))
}

/// Examines purses.
///
/// # Errors
/// When the store cannot be read.
pub(crate) fn purses(store: &Store, retention: Retention<'_>, page: Vec<Found<Purses>>) -> Result<Examined> {
    let mut examined = Examined::default();
    let keys: Vec<PursePub> = page.iter().map(|found| found.key.purse_pub).collect();
    let groups = store.lookup_many::<PurseDeposits>(PurseDeposits::BY_PURSE, &keys)?;
    for (found, group) in page.into_iter().zip(groups) {
        if group.is_empty() {
            continue;
        }
        let coins = PurseCoins { purse_pub: found.key.purse_pub, deposits: pairs(group) };
        match retention.purse_stays(&found.row).or_else(|| retention.purse_coins_stay(&coins)) {
            Some(why) => examined.stays(why),
            None => examined.units.push(ArchiveUnit::Purse(coins)),
        }
    }
    Ok(examined)
}

/// The groups of a page's coins in a table.
fn groups<T: Table>(store: &Store, index: u8, coins: &[CoinPub]) -> Result<HashMap<CoinPub, Vec<Found<T>>>> {
    let groups = store.lookup_many::<T>(index, coins)?;
    Ok(coins.iter().copied().zip(groups).filter(|(_, group)| !group.is_empty()).collect())
}

fn take<T: Table>(groups: &mut HashMap<CoinPub, Vec<Found<T>>>, coin_pub: &CoinPub) -> Vec<(T::Key, T::Row)>
where
    T::Key: Ord,
{
    pairs(groups.remove(coin_pub).unwrap_or_default())
}

/// Examines coins.
///
/// # Errors
/// When the store cannot be read.
pub(crate) fn coins(
    store: &Store,
    retention: Retention<'_>,
    leaving: &Leaving,
    page: Vec<Found<Coins>>,
) -> Result<Examined> {
    let mut examined = Examined::default();
    let keys: Vec<CoinPub> = page.iter().map(|found| found.key.coin_pub).collect();
    let deposits = groups::<Deposits>(store, Deposits::BY_COIN, &keys)?;
    let purse_deposits = groups::<PurseDeposits>(store, PurseDeposits::BY_COIN, &keys)?;
    let mut melts = groups::<Melts>(store, Melts::BY_COIN, &keys)?;
    let mut reveals = groups::<Reveals>(store, Reveals::BY_COIN, &keys)?;
    let mut recoups = groups::<Recoups>(store, Recoups::BY_COIN, &keys)?;
    let mut recoup_refreshes = groups::<RecoupRefreshes>(store, RecoupRefreshes::BY_COIN, &keys)?;
    let mut credits = groups::<RecoupRefreshCredits>(store, RecoupRefreshCredits::BY_OLD_COIN, &keys)?;
    let mut opens = groups::<ReserveOpenDeposits>(store, ReserveOpenDeposits::BY_COIN, &keys)?;
    for found in page {
        let coin_pub = found.key.coin_pub;
        let has_payments = deposits.get(&coin_pub).is_some_and(|deposits| {
            let leaves = |wtid: Option<Wtid>| wtid.is_some_and(|wtid| leaving.transfers.contains(&wtid));
            !deposits.iter().all(|found| leaves(found.row.wtid))
        }) || purse_deposits.get(&coin_pub).is_some_and(|deposits| {
            !deposits.iter().all(|found| leaving.purses.contains(&found.key.purse_pub))
        });
        let melts = take(&mut melts, &coin_pub);
        let rcs: Vec<RcKey> = melts.iter().map(|(melt, _)| RcKey { rc: melt.rc }).collect();
        let by_rc = store.get_many::<MeltByRc>(&rcs)?;
        let file = CoinFile {
            coin_pub,
            coin: found.row,
            melts,
            melts_by_rc: rcs
                .into_iter()
                .zip(by_rc)
                .filter_map(|(key, found)| Some((key, found?.row)))
                .collect(),
            reveals: take(&mut reveals, &coin_pub),
            recoups: take(&mut recoups, &coin_pub),
            recoup_refreshes: take(&mut recoup_refreshes, &coin_pub),
            recoup_credits: take(&mut credits, &coin_pub),
            reserve_opens: take(&mut opens, &coin_pub),
        };
        match retention.coin_stays(&file).or_else(|| has_payments.then_some(Stays::Payments)) {
            Some(why) => examined.stays(why),
            None => examined.units.push(ArchiveUnit::Coin(Box::new(file))),
        }
    }
    Ok(examined)
}
