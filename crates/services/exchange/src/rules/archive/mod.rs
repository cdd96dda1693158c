//! Archiving (semantics X1, X2): rows whose legal time is over leave the store for an archive.
//!
//! No sum changes, as with [garbage collection](super::garbage): what the rows added to the balance sheet is added
//! to `collected_sums` in the commit that removes them, and `archive_counts` records what each run took. And no row
//! is missed:
//!
//! * *A coin's* denomination has expired for good, so nothing is accepted from it any more, known or not. Its
//!   denomination is *closed* from then on, so this holds even if a clock goes back. Fresh coins of its refreshes
//!   need it for link and recoup-refresh, so it waits for their denominations, too.
//! * *A transfer* was paid, and every denomination that could be spent when it was made has expired for good: its
//!   list of deposits stays complete as long as anybody may ask for it. Its identifier stays in `past_transfers`.
//! * *Deposits into a purse* count no more once it was decided; the purse stays.
//!
//! Open debts stay: deposits that were not paid out, and melts that were not revealed. Withdrawals stay with
//! their reserve, whose history must add up.

mod runs;
mod units;

use std::collections::BTreeMap;

use batzen_crypto::{HashCode, ShortHash};
use batzen_engine::{Command, Plan, WorkingSet};
use batzen_protocol::{MoneySum, Timestamp};
use batzen_store::Table;
use batzen_tables::exchange::{
    ArchiveCountKey, ArchiveCountRow, ArchiveCounts, ArchiveRunKey, ArchiveRunRow, ArchiveRuns,
    ArchiveTransferRow, ArchiveTransfers, CoinKey, Coins, CollectedTerm, Counters, DenomSerial, Deposits,
    MeltByRc, Melts, PastTransferRow, PastTransfers, Prepared, PreparedRow, PurseDeposits, PurseKey,
    PurseRow, PurseState, Purses, RcKey, RecoupRefreshCredits, RecoupRefreshes, Recoups, Refunds,
    ReserveOpenDeposits, Reveals, TransferKind, WireOut, WireOutRow, WtidKey,
};

use self::runs::{begin, counter, drop_run, finish, open_run};
use super::garbage::{COLLECT_ROWS_MAX, Sums, is_over, is_transfer_over, plan_sums};
use super::{DenomTable, DenomTerms, ExchangeRules, Refusal};
use crate::rules::refusal::Result;

pub use units::{ArchiveUnit, PurseCoins, Rows, Stays, TransferPart};
pub(crate) use units::{ArchivedRow, CoinFile};

/// The maximum number of rows in a command, unless one unit has more, so that payments never wait long.
pub const ARCHIVE_ROWS_MAX: usize = 2_000;

/// The maximum number of deposits in one part of a transfer.
pub const ARCHIVE_DEPOSITS_MAX: usize = 1_000;

/// The longest reason, in bytes.
pub const ARCHIVE_REASON_BYTES_MAX: usize = 1_000;

/// Moves rows whose legal time is over out of the store. Whoever submits it has copied them to an archive
/// before; the rules decide on each unit, and remove only what equals the copy.
#[derive(Debug, Clone)]
pub enum Archive {
    /// Begins a run, or continues the one that was interrupted.
    Begin {
        /// The number of the next run, as far as the submitter knows.
        run: u32,
        /// A random number for a new run.
        id: ShortHash,
        /// Why.
        reason: String,
    },
    /// Removes units that the run's archive has.
    Move {
        /// The run.
        run: u32,
        /// Its random number.
        id: ShortHash,
        /// The time at which everything must be over, if it is before now: a wrong clock alone removes nothing.
        until: Timestamp,
        /// The units to remove.
        units: Vec<ArchiveUnit>,
    },
    /// Ends a run.
    Finish {
        /// The run.
        run: u32,
        /// Its random number.
        id: ShortHash,
        /// The digest of its rows.
        digest: HashCode,
        /// When it ended.
        time: Timestamp,
    },
    /// Records that a run's archive is dropped.
    Drop {
        /// The run.
        run: u32,
        /// Why.
        reason: String,
        /// It must have ended before this time.
        before: Timestamp,
    },
}

/// The result of an [`Archive`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Archived {
    /// The run that is under way.
    Begun {
        /// Its number.
        run: u32,
        /// Its row.
        row: Box<ArchiveRunRow>,
    },
    /// For each unit: nothing if it left, or why it stays.
    Moved(Vec<Option<Stays>>),
    /// The run ended, now or before.
    Finished(Box<ArchiveRunRow>),
    /// The run's archive may be removed.
    Dropped(Box<ArchiveRunRow>),
}

impl Command<ExchangeRules> for Archive {
    type Answer = Archived;
    const IS_BACKGROUND: bool = true;

    fn plan(&self, _: &ExchangeRules, plan: &mut Plan) {
        match self {
            Archive::Begin { run, .. } => {
                plan.group::<ArchiveRuns>(ArchiveRuns::OPEN, &0u8);
                plan.row::<ArchiveRuns>(ArchiveRunKey { run: *run });
                plan.row::<Counters>(counter());
            }
            Archive::Move { run, units, .. } => {
                plan.row::<ArchiveRuns>(ArchiveRunKey { run: *run });
                plan_sums(plan);
                for unit in units {
                    plan_unit(unit, plan);
                    for row in unit.rows() {
                        plan.row::<ArchiveCounts>(count_key(*run, &row));
                    }
                }
            }
            Archive::Finish { run, .. } | Archive::Drop { run, .. } => {
                plan.row::<ArchiveRuns>(ArchiveRunKey { run: *run });
            }
        }
    }

    fn execute(&self, rules: &ExchangeRules, rows: &mut WorkingSet, now: Timestamp) -> Result<Archived> {
        match self {
            Archive::Begin { run, id, reason } => begin(rows, *run, *id, reason, now),
            Archive::Move { run, id, until, units } => {
                rules.move_units(rows, (*run, *id), units, now.min(*until))
            }
            Archive::Finish { run, id, digest, time } => finish(rows, (*run, *id), *digest, now.min(*time)),
            Archive::Drop { run, reason, before } => drop_run(rows, *run, reason, *before, now),
        }
    }
}

/// The decisions, which depend on rows, denominations and the time alone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Retention<'a> {
    /// The terms of all denominations.
    pub(crate) denoms: &'a DenomTable,
    /// The time.
    pub(crate) now: Timestamp,
}

impl Retention<'_> {
    /// Returns whether nothing may be asked about coins of a denomination any more.
    pub(crate) fn is_forgotten(&self, denom: DenomSerial) -> bool {
        self.denoms.get(denom).is_some_and(|terms| self.has_expired(&terms))
    }

    fn has_expired(&self, terms: &DenomTerms) -> bool {
        terms.is_closed || is_over(terms.expire_legal, self.now)
    }

    /// Why a transfer stays, by its own rows.
    #[must_use]
    pub(crate) fn transfer_stays(
        &self,
        transfer: &WireOutRow,
        prepared: Option<&PreparedRow>,
    ) -> Option<Stays> {
        // Garbage collection removes only requests that the bank accepted long ago.
        if prepared.is_some_and(|prepared| !is_transfer_over(prepared, self.now)) {
            return Some(Stays::Unpaid);
        }
        let is_forgotten = |terms: &DenomTerms| terms.start > transfer.time || self.has_expired(terms);
        (!self.denoms.all(is_forgotten)).then_some(Stays::Young)
    }

    /// Why a purse's deposits stay, by its row.
    pub(crate) fn purse_stays(&self, purse: &PurseRow) -> Option<Stays> {
        let is_decided = purse.state != PurseState::Open
            && is_over(purse.decided, self.now)
            && is_over(purse.expiration, self.now);
        (!is_decided).then_some(Stays::Undecided)
    }

    /// Why deposits into a purse stay, by themselves.
    pub(crate) fn purse_coins_stay(&self, coins: &PurseCoins) -> Option<Stays> {
        let is_forgotten = coins.deposits.iter().all(|(_, row)| self.is_forgotten(row.denom));
        (!is_forgotten).then_some(Stays::Young)
    }

    /// Why a coin stays, by the rows that would leave with it. Payments of it stay in the store longer than it
    /// does.
    pub(crate) fn coin_stays(&self, file: &CoinFile) -> Option<Stays> {
        if !self.is_forgotten(file.coin.denom) {
            return Some(Stays::Young);
        }
        if file.count() > COLLECT_ROWS_MAX {
            return Some(Stays::Large);
        }
        let is_revealed = |melt| file.reveals.iter().any(|(reveal, _)| reveal == melt);
        if !file.melts.iter().all(|(melt, _)| is_revealed(melt)) {
            return Some(Stays::Unrevealed);
        }
        let mut fresh = file.reveals.iter().flat_map(|(_, reveal)| &reveal.fresh.0);
        (!fresh.all(|coin| self.is_forgotten(coin.denom))).then_some(Stays::FreshCoin)
    }
}

fn count_key(run: u32, row: &ArchivedRow) -> ArchiveCountKey {
    ArchiveCountKey { run, table: row.table.id, denom: row.denom }
}

fn plan_unit(unit: &ArchiveUnit, plan: &mut Plan) {
    match unit {
        ArchiveUnit::Transfer(part) => {
            let key = WtidKey { wtid: part.wtid };
            plan.row::<WireOut>(key.clone());
            plan.row::<Prepared>(key.clone());
            plan.row::<PastTransfers>(key.clone());
            plan.row::<ArchiveTransfers>(key);
            for (deposit, _) in &part.deposits {
                plan.row::<Deposits>(deposit.clone());
                plan.group::<Refunds>(Refunds::BY_COIN, &deposit.coin_pub);
            }
            if part.wire_out.is_some() {
                plan.group::<Deposits>(Deposits::BY_WTID, &part.wtid);
            }
        }
        ArchiveUnit::Purse(coins) => {
            plan.row::<Purses>(PurseKey { purse_pub: coins.purse_pub });
            plan.group::<PurseDeposits>(PurseDeposits::BY_PURSE, &coins.purse_pub);
        }
        ArchiveUnit::Coin(file) => {
            let coin_pub = &file.coin_pub;
            plan.row::<Coins>(CoinKey { coin_pub: *coin_pub });
            plan.group::<Deposits>(Deposits::BY_COIN, coin_pub);
            plan.group::<Refunds>(Refunds::BY_COIN, coin_pub);
            plan.group::<PurseDeposits>(PurseDeposits::BY_COIN, coin_pub);
            plan.group::<Melts>(Melts::BY_COIN, coin_pub);
            plan.group::<Reveals>(Reveals::BY_COIN, coin_pub);
            plan.group::<Recoups>(Recoups::BY_COIN, coin_pub);
            plan.group::<RecoupRefreshes>(RecoupRefreshes::BY_COIN, coin_pub);
            plan.group::<RecoupRefreshCredits>(RecoupRefreshCredits::BY_OLD_COIN, coin_pub);
            plan.group::<ReserveOpenDeposits>(ReserveOpenDeposits::BY_COIN, coin_pub);
            for (melt, _) in &file.melts {
                plan.row::<MeltByRc>(RcKey { rc: melt.rc });
            }
        }
    }
}

/// Rows in the order of their keys, as they are compared.
#[must_use]
pub fn in_order<K: Ord, R>(mut rows: Vec<(K, R)>) -> Vec<(K, R)> {
    rows.sort_by(|(a, _), (b, _)| a.cmp(b));
    rows
}

/// The members of a planned group.
fn members<T: Table>(rows: &WorkingSet, index: u8, owner: &impl batzen_store::Column) -> Vec<(T::Key, T::Row)>
where
    T::Key: Ord,
{
    in_order(rows.group::<T>(index, owner).into_iter().map(|(key, row)| (key.clone(), row.clone())).collect())
}

/// The rows that exist under these keys.
fn under<T: Table>(rows: &WorkingSet, keys: impl Iterator<Item = T::Key>) -> Vec<(T::Key, T::Row)> {
    keys.filter_map(|key| rows.get::<T>(&key).cloned().map(|row| (key, row))).collect()
}

fn delete_all<T: Table>(rows: &mut WorkingSet, members: &[(T::Key, T::Row)]) {
    for (key, _) in members {
        rows.delete::<T>(key);
    }
}

impl ExchangeRules {
    fn move_units(
        &self,
        rows: &mut WorkingSet,
        run: (u32, ShortHash),
        units: &[ArchiveUnit],
        now: Timestamp,
    ) -> Result<Archived> {
        let mut row = open_run(rows, run)?;
        let mut sums = Sums::default();
        let mut counts = BTreeMap::new();
        let mut verdicts = Vec::with_capacity(units.len());
        let retention = Retention { denoms: &self.denoms, now };
        for unit in units {
            let stays = match unit {
                ArchiveUnit::Transfer(part) => self.move_transfer(rows, part, retention, &mut sums)?,
                ArchiveUnit::Purse(coins) => move_purse(rows, coins, retention, &mut sums)?,
                ArchiveUnit::Coin(file) => self.move_coin(rows, file, retention, &mut sums)?,
            };
            verdicts.push(stays);
            if stays.is_none() {
                for moved in unit.rows() {
                    let units = self.amount_of(unit, &moved);
                    row.rows += 1;
                    row.bytes += moved.bytes();
                    let count = counts.entry(count_key(run.0, &moved)).or_insert(ArchiveCountRow {
                        rows: 0,
                        bytes: 0,
                        units: 0,
                    });
                    count.rows += 1;
                    count.bytes += moved.bytes();
                    count.units = count.units.checked_add(units).ok_or(Refusal::Overflow)?;
                }
            }
        }
        if verdicts.iter().any(Option::is_none) {
            rows.update::<ArchiveRuns>(&ArchiveRunKey { run: run.0 }, row);
            sums.store(rows)?;
            for (key, mut count) in counts {
                if let Some(before) = rows.get::<ArchiveCounts>(&key) {
                    count.rows += before.rows;
                    count.bytes += before.bytes;
                    count.units = count.units.checked_add(before.units).ok_or(Refusal::Overflow)?;
                }
                rows.put::<ArchiveCounts>(&key, count);
            }
        }
        Ok(Archived::Moved(verdicts))
    }

    /// The amount that a row of a unit counts with that may leave.
    ///
    /// # Panics
    /// If a coin has no denomination or more than its value: such a coin stays.
    pub(crate) fn amount_of(&self, unit: &ArchiveUnit, row: &ArchivedRow) -> u128 {
        match unit {
            ArchiveUnit::Coin(file) if row.table.id == Coins::DEF.id => {
                let terms =
                    self.denoms.get(file.coin.denom).expect("only coins of known denominations leave");
                let spent = terms.value.checked_sub(file.coin.remaining);
                spent.expect("a coin holds at most its value").units()
            }
            _ => row.units,
        }
    }

    fn move_transfer(
        &self,
        rows: &mut WorkingSet,
        part: &TransferPart,
        retention: Retention<'_>,
        sums: &mut Sums,
    ) -> Result<Option<Stays>> {
        let key = WtidKey { wtid: part.wtid };
        let Some(transfer) = rows.get::<WireOut>(&key).cloned() else { return Ok(Some(Stays::Changed)) };
        let prepared = rows.get::<Prepared>(&key).cloned();
        if let Some(stays) = retention.transfer_stays(&transfer, prepared.as_ref()) {
            return Ok(Some(stays));
        }
        if !part.deposits.iter().all(|(_, row)| retention.is_forgotten(row.denom)) {
            return Ok(Some(Stays::Young));
        }
        let deposits = under::<Deposits>(rows, part.deposits.iter().map(|(key, _)| key.clone()));
        let is_in_it = deposits.iter().all(|(_, row)| row.wtid == Some(part.wtid));
        let mut refunds = Vec::new();
        for (deposit, _) in &deposits {
            let of_coin = members::<Refunds>(rows, Refunds::BY_COIN, &deposit.coin_pub);
            refunds.extend(of_coin.into_iter().filter(|(key, _)| key.deposit() == *deposit));
        }
        let is_copied = deposits == part.deposits && in_order(refunds) == part.refunds;
        let is_last = part.wire_out.is_some();
        let is_last_copied = !is_last
            || (part.wire_out.as_ref() == Some(&transfer)
                && part.prepared == prepared
                && rows.group::<Deposits>(Deposits::BY_WTID, &part.wtid).len() == part.deposits.len());
        if !is_copied || !is_last_copied || !is_in_it {
            return Ok(Some(Stays::Changed));
        }
        let taken = rows.get::<ArchiveTransfers>(&key).cloned();
        let (mut contributed, mut fees) = taken
            .as_ref()
            .map_or((MoneySum::ZERO, MoneySum::ZERO), |taken| (taken.contributed(), taken.fees()));
        let plus = |sum: &mut MoneySum, amount| {
            *sum = sum.checked_add(amount).map_err(|_| Refusal::Overflow)?;
            Ok::<_, Refusal>(())
        };
        for (_, row) in &part.deposits {
            let net = row.amount.checked_sub(row.refunded).expect("refunds never exceed a deposit");
            plus(&mut contributed, net)?;
            if !net.is_zero() {
                plus(&mut fees, self.terms(row.denom, 0)?.fee_deposit)?;
            }
        }
        for (refund, _) in &part.refunds {
            let of = part.deposits.iter().find(|(key, _)| *key == refund.deposit());
            let (_, deposit) = of.expect("refunds were looked up by these deposits");
            sums.add(CollectedTerm::RefundFees, self.terms(deposit.denom, 0)?.fee_refund)?;
        }
        delete_all::<Refunds>(rows, &part.refunds);
        delete_all::<Deposits>(rows, &part.deposits);
        if !is_last {
            let row = ArchiveTransferRow { contributed_units: contributed.units(), fee_units: fees.units() };
            rows.put::<ArchiveTransfers>(&key, row);
            return Ok(None);
        }
        // As in the balance sheet: what was not paid consists of deposit fees first, and then rounding.
        let rest = contributed
            .checked_sub(transfer.amount)
            .and_then(|rest| rest.checked_sub(transfer.wire_fee))
            .expect("a transfer pays at most what its deposits brought");
        let fees = fees.min(rest);
        sums.add(CollectedTerm::DepositFees, fees)?;
        sums.add(CollectedTerm::MerchantRounding, rest.checked_sub(fees).expect("at most the rest"))?;
        sums.add(CollectedTerm::WireFees, transfer.wire_fee)?;
        sums.add(CollectedTerm::MerchantsPaid, transfer.amount)?;
        rows.delete::<WireOut>(&key);
        if prepared.is_some() {
            sums.add(CollectedTerm::MerchantTransfers, transfer.amount)?;
            rows.delete::<Prepared>(&key);
        }
        if taken.is_some() {
            rows.delete::<ArchiveTransfers>(&key);
        }
        // No other transfer gets its identifier.
        rows.insert::<PastTransfers>(&key, PastTransferRow { kind: TransferKind::Aggregate });
        Ok(None)
    }

    fn move_coin(
        &self,
        rows: &mut WorkingSet,
        file: &CoinFile,
        retention: Retention<'_>,
        sums: &mut Sums,
    ) -> Result<Option<Stays>> {
        let coin_pub = file.coin_pub;
        let key = CoinKey { coin_pub };
        let Some(coin) = rows.get::<Coins>(&key).cloned() else { return Ok(Some(Stays::Changed)) };
        let melts = members::<Melts>(rows, Melts::BY_COIN, &coin_pub);
        let stored = CoinFile {
            coin_pub,
            coin,
            melts_by_rc: if melts.iter().map(|(key, _)| key).eq(file.melts.iter().map(|(key, _)| key)) {
                under::<MeltByRc>(rows, melts.iter().map(|(melt, _)| RcKey { rc: melt.rc }))
            } else {
                Vec::new()
            },
            melts,
            reveals: members::<Reveals>(rows, Reveals::BY_COIN, &coin_pub),
            recoups: members::<Recoups>(rows, Recoups::BY_COIN, &coin_pub),
            recoup_refreshes: members::<RecoupRefreshes>(rows, RecoupRefreshes::BY_COIN, &coin_pub),
            recoup_credits: members::<RecoupRefreshCredits>(
                rows,
                RecoupRefreshCredits::BY_OLD_COIN,
                &coin_pub,
            ),
            reserve_opens: members::<ReserveOpenDeposits>(rows, ReserveOpenDeposits::BY_COIN, &coin_pub),
        };
        if let Some(stays) = retention.coin_stays(&stored) {
            return Ok(Some(stays));
        }
        if stored != *file {
            return Ok(Some(Stays::Changed));
        }
        let has_payments = !rows.group::<Deposits>(Deposits::BY_COIN, &coin_pub).is_empty()
            || !rows.group::<Refunds>(Refunds::BY_COIN, &coin_pub).is_empty()
            || !rows.group::<PurseDeposits>(PurseDeposits::BY_COIN, &coin_pub).is_empty();
        if has_payments {
            return Ok(Some(Stays::Payments));
        }
        let terms = self.terms(file.coin.denom, 0)?;
        let spent = terms.value.checked_sub(file.coin.remaining).expect("a coin holds at most its value");
        sums.add(CollectedTerm::Redeemed, spent)?;
        for (key, melt) in &file.melts {
            sums.add(CollectedTerm::RefreshFees, terms.fee_refresh)?;
            let reveal = file.reveals.iter().find(|(reveal, _)| reveal == key);
            let (_, reveal) = reveal.expect("unrevealed melts stay");
            let mut left = melt.amount.checked_sub(terms.fee_refresh).ok();
            for coin in &reveal.fresh.0 {
                let fresh = self.terms(coin.denom, 0)?;
                sums.add(CollectedTerm::Issued, fresh.value)?;
                sums.add(CollectedTerm::WithdrawFees, fresh.fee_withdraw)?;
                let rest = left.and_then(|left| left.checked_sub(fresh.value).ok());
                left = rest.and_then(|left| left.checked_sub(fresh.fee_withdraw).ok());
            }
            sums.add(CollectedTerm::Surplus, left.expect("a melt pays for its fresh coins"))?;
        }
        for (_, payment) in &file.reserve_opens {
            sums.add(CollectedTerm::AccountFees, payment.amount)?;
        }
        rows.delete::<Coins>(&key);
        delete_all::<Melts>(rows, &file.melts);
        delete_all::<MeltByRc>(rows, &file.melts_by_rc);
        delete_all::<Reveals>(rows, &file.reveals);
        delete_all::<Recoups>(rows, &file.recoups);
        delete_all::<RecoupRefreshes>(rows, &file.recoup_refreshes);
        delete_all::<RecoupRefreshCredits>(rows, &file.recoup_credits);
        delete_all::<ReserveOpenDeposits>(rows, &file.reserve_opens);
        Ok(None)
    }
}

fn move_purse(
    rows: &mut WorkingSet,
    coins: &PurseCoins,
    retention: Retention<'_>,
    sums: &mut Sums,
) -> Result<Option<Stays>> {
    let key = PurseKey { purse_pub: coins.purse_pub };
    let Some(purse) = rows.get::<Purses>(&key) else { return Ok(Some(Stays::Changed)) };
    if let Some(stays) = retention.purse_stays(purse).or_else(|| retention.purse_coins_stay(coins)) {
        return Ok(Some(stays));
    }
    let is_paid = purse.state == PurseState::Paid;
    if members::<PurseDeposits>(rows, PurseDeposits::BY_PURSE, &coins.purse_pub) != coins.deposits
        || coins.deposits.is_empty()
    {
        return Ok(Some(Stays::Changed));
    }
    for (_, deposit) in &coins.deposits {
        assert!(is_paid != deposit.refunded, "a purse is paid, or refunded");
        if is_paid {
            sums.add(CollectedTerm::PursePayments, deposit.amount)?;
        }
    }
    delete_all::<PurseDeposits>(rows, &coins.deposits);
    Ok(None)
}
