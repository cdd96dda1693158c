//! Garbage collection (semantics R11 and chapter 11): removes rows that nobody needs any more.
//!
//! No sum changes. What the removed rows added to the balance sheet is added to `collected_sums` in the same
//! commit. And no removed row is missed:
//!
//! * *A reserve* that is credited again is a new one. All its withdrawals are of denominations that have
//!   expired for good, so neither can they be repeated nor their coins be recouped into it. The bank's rows
//!   that credited it are behind the cursor of their account, so they are not imported again. Requests that
//!   its owner signed have a time, which is too old to be accepted again ([`COLLECT_DELAY`]).
//! * *A transfer* is not executed again, because only its row could cause that. Its identifier stays in
//!   `wire_out` or `past_transfers`, so no other transfer gets it.
//! * *A nonce* must never be signed under twice with one key, since two signatures reveal the key. Whatever
//!   was signed under it was signed with a denomination that can no longer be withdrawn, and of which nothing
//!   is signed any more. With a newer denomination the nonce is as good as new, because the values that a
//!   signature needs derive from both.

//! * *A purse* gave everything back. Its coins are of denominations that have expired for good, so nobody can
//!   deposit them into another purse of the same key by repeating what they signed.
//! * *A KYC requirement* follows from its account and the checks, so the next operation that is refused stores it
//!   again. *An identification* that is not valid counts as little as none, and can be begun again.

use std::collections::BTreeMap;

use batzen_crypto::{HashCode, Wtid};
use batzen_engine::{Command, Plan, WorkingSet};
use batzen_protocol::{Duration, MoneySum, Timestamp};
use batzen_store::Table;
use batzen_tables::exchange::{
    AccountId, AccountKey, Aggregates, Cipher, CloseRequests, Closings, CollectedKey, CollectedRow,
    CollectedSums, CollectedTerm, Contracts, CsNonceKey, CsNonces, Cursors, DenomSerial, HistoryRequests,
    KycProcessKey, KycProcessRow, KycProcesses, KycRequirementKey, KycRequirementRow, KycRequirements,
    KycState, MeltByRc, MeltKey, NonceKind, PastTransferRow, PastTransfers, Prepared, PreparedRow,
    PurseDeletions, PurseDeposits, PurseKey, PurseMerges, PursePub, PurseRow, PurseState, Purses, RcKey,
    RecoupCredits, ReserveAccounts, ReserveKey, ReserveOpens, ReservePub, ReserveRow, Reserves, ReservesIn,
    Reveals, TransferKind, Withdrawals, WtidKey,
};

use super::{ExchangeRules, Refusal};
use crate::rules::refusal::Result;

/// Time that everything must be over before it is removed: much longer than any request, lease or page of a
/// worker lives, and than clocks differ.
pub const COLLECT_DELAY: Duration = Duration::from_days(1);

/// The maximum number of rows that belong to one reserve, so that one commit can remove them all. Reserves
/// with more are kept.
pub(crate) const COLLECT_ROWS_MAX: usize = 5_000;

/// Time that a KYC requirement or an identification that was begun waits for the customer.
pub const KYC_PATIENCE: Duration = Duration::from_days(90);

/// Removes rows that are no longer needed. Whoever submits it has only found candidates: the rules decide on
/// each, so that it does not matter how old the search is.
#[derive(Debug, Clone)]
pub enum Collect {
    /// Empty reserves whose time to be kept is over, with all that belongs to them.
    Reserves(Vec<ReserveCandidate>),
    /// Transfers that the bank accepted.
    Transfers(Vec<Wtid>),
    /// Locks of Clause Blind Schnorr nonces.
    Nonces(Vec<NonceCandidate>),
    /// Purses that gave their coins everything back.
    Purses(Vec<PurseCandidate>),
    /// KYC requirements that nobody has acted on.
    KycRequirements(Vec<KycRequirementKey>),
    /// Identifications that were never completed, or that expired long ago.
    KycProcesses(Vec<KycProcessKey>),
}

/// A reserve that may be removed, and the rows that its removal depends on.
#[derive(Debug, Clone)]
pub struct ReserveCandidate {
    pub(crate) reserve_pub: ReservePub,
    /// The exchange's accounts that received its transfers.
    pub accounts: Vec<AccountId>,
    /// The identifiers of its closings' transfers.
    pub(crate) wtids: Vec<Wtid>,
}

/// A lock that may be removed.
#[derive(Debug, Clone)]
pub struct NonceCandidate {
    /// The lock.
    pub(crate) key: CsNonceKey,
    /// The commitment of the melt that it belongs to; none for a withdrawal.
    pub(crate) rc: Option<HashCode>,
    /// That melt; none for a withdrawal, or if the melt has left for an archive.
    pub(crate) melt: Option<MeltKey>,
}

/// A purse that may be removed.
#[derive(Debug, Clone)]
pub struct PurseCandidate {
    pub(crate) purse_pub: PursePub,
    /// The reserve that wanted it, if there is one.
    pub(crate) reserve_pub: Option<ReservePub>,
}

/// The rows that a [`Collect`] removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Collected {
    /// Number of the candidates.
    pub removed: u64,
    /// Number of rows, with those that belonged to the candidates.
    pub rows: u64,
}

impl Command<ExchangeRules> for Collect {
    type Answer = Collected;
    const IS_BACKGROUND: bool = true;

    fn plan(&self, _: &ExchangeRules, plan: &mut Plan) {
        match self {
            Collect::Reserves(candidates) => {
                plan_sums(plan);
                candidates.iter().for_each(|candidate| plan_reserve(candidate, plan));
            }
            Collect::Transfers(wtids) => {
                plan_sums(plan);
                for wtid in wtids {
                    plan.row::<Prepared>(WtidKey { wtid: *wtid });
                    plan.row::<PastTransfers>(WtidKey { wtid: *wtid });
                }
            }
            Collect::Nonces(candidates) => {
                for candidate in candidates {
                    plan.row::<CsNonces>(candidate.key.clone());
                    candidate.melt.iter().for_each(|melt| plan.row::<Reveals>(melt.clone()));
                    candidate.rc.iter().for_each(|rc| plan.row::<MeltByRc>(RcKey { rc: *rc }));
                }
            }
            Collect::Purses(candidates) => {
                plan_sums(plan);
                candidates.iter().for_each(|candidate| plan_purse(candidate, plan));
            }
            Collect::KycRequirements(keys) => {
                for key in keys {
                    plan.row::<KycRequirements>(key.clone());
                    plan.group::<KycProcesses>(KycProcesses::BY_ACCOUNT, &key.h_payto);
                    plan.group::<Aggregates>(Aggregates::BY_TARGET, &key.h_payto);
                }
            }
            Collect::KycProcesses(keys) => keys.iter().for_each(|key| plan.row::<KycProcesses>(key.clone())),
        }
    }

    fn execute(&self, rules: &ExchangeRules, rows: &mut WorkingSet, now: Timestamp) -> Result<Collected> {
        let mut collected = Collected::default();
        match self {
            Collect::Reserves(candidates) => {
                let mut sums = Sums::default();
                for candidate in candidates {
                    if rules.is_collectable(rows, candidate, now) {
                        rules.collect_reserve(rows, candidate.reserve_pub, &mut sums, &mut collected)?;
                    }
                }
                sums.store(rows)?;
            }
            Collect::Transfers(wtids) => collect_transfers(rows, wtids, now, &mut collected)?,
            Collect::Nonces(candidates) => rules.collect_nonces(rows, candidates, now, &mut collected),
            Collect::Purses(candidates) => {
                let mut sums = Sums::default();
                for candidate in candidates {
                    rules.collect_purse(rows, candidate, now, &mut sums, &mut collected)?;
                }
                sums.store(rows)?;
            }
            Collect::KycRequirements(keys) => collect_requirements(rows, keys, now, &mut collected),
            Collect::KycProcesses(keys) => {
                for key in keys {
                    if rows.get::<KycProcesses>(key).is_some_and(|row| rules.is_process_over(row, now)) {
                        remove::<KycProcesses>(rows, key, &mut collected);
                        collected.removed += 1;
                    }
                }
            }
        }
        Ok(collected)
    }
}

/// Returns whether a time has passed long ago.
#[must_use]
pub(crate) fn is_over(time: Timestamp, now: Timestamp) -> bool {
    time.saturating_add(COLLECT_DELAY) < now
}

/// Returns whether a reserve's own row allows its removal.
#[must_use]
pub(crate) fn is_reserve_over(reserve: &ReserveRow, now: Timestamp) -> bool {
    reserve.balance.is_zero() && is_over(reserve.gc, now) && is_over(reserve.expiration, now)
}

/// Returns whether a transfer's row may be removed.
#[must_use]
pub fn is_transfer_over(transfer: &PreparedRow, now: Timestamp) -> bool {
    transfer.failed.is_none() && transfer.finished.is_some_and(|finished| is_over(finished, now))
}

/// Returns whether a KYC requirement's row allows its removal. One without a time gets it first.
#[must_use]
pub(crate) fn is_requirement_over(requirement: &KycRequirementRow, now: Timestamp) -> bool {
    requirement.asked.is_none_or(|asked| is_over(asked.saturating_add(KYC_PATIENCE), now))
}

/// Terms that removed rows added to the balance sheet.
#[derive(Default)]
pub(super) struct Sums(BTreeMap<CollectedTerm, MoneySum>);

impl Sums {
    pub(super) fn add(&mut self, term: CollectedTerm, amount: impl Into<MoneySum>) -> Result<()> {
        let sum = self.0.entry(term).or_default();
        *sum = sum.checked_add(amount).map_err(|_| Refusal::Overflow)?;
        Ok(())
    }

    pub(super) fn store(self, rows: &mut WorkingSet) -> Result<()> {
        for (term, sum) in self.0 {
            let key = CollectedKey { term };
            let before = rows.get::<CollectedSums>(&key).map_or(MoneySum::ZERO, CollectedRow::sum);
            let units = before.checked_add(sum).map_err(|_| Refusal::Overflow)?.units();
            rows.put::<CollectedSums>(&key, CollectedRow { units });
        }
        Ok(())
    }
}

fn plan_purse(candidate: &PurseCandidate, plan: &mut Plan) {
    let key = PurseKey { purse_pub: candidate.purse_pub };
    plan.row::<Purses>(key.clone());
    plan.row::<PurseMerges>(key.clone());
    plan.row::<Contracts>(key.clone());
    plan.row::<PurseDeletions>(key);
    plan.group::<PurseDeposits>(PurseDeposits::BY_PURSE, &candidate.purse_pub);
    if let Some(reserve_pub) = candidate.reserve_pub {
        plan.row::<Reserves>(ReserveKey { reserve_pub });
    }
}

pub(super) fn plan_sums(plan: &mut Plan) {
    for term in CollectedTerm::ALL {
        plan.row::<CollectedSums>(CollectedKey { term });
    }
}

fn plan_reserve(candidate: &ReserveCandidate, plan: &mut Plan) {
    let reserve_pub = candidate.reserve_pub;
    plan.row::<Reserves>(ReserveKey { reserve_pub });
    plan.row::<ReserveAccounts>(ReserveKey { reserve_pub });
    plan.group::<ReservesIn>(ReservesIn::BY_RESERVE, &reserve_pub);
    plan.group::<Withdrawals>(Withdrawals::BY_RESERVE, &reserve_pub);
    plan.group::<Closings>(Closings::BY_RESERVE, &reserve_pub);
    plan.group::<RecoupCredits>(RecoupCredits::BY_RESERVE, &reserve_pub);
    plan.group::<HistoryRequests>(HistoryRequests::BY_RESERVE, &reserve_pub);
    plan.group::<ReserveOpens>(ReserveOpens::BY_RESERVE, &reserve_pub);
    plan.group::<CloseRequests>(CloseRequests::BY_RESERVE, &reserve_pub);
    plan.group::<PurseMerges>(PurseMerges::BY_RESERVE, &reserve_pub);
    for account in &candidate.accounts {
        plan.row::<Cursors>(AccountKey { account: *account });
    }
    for wtid in &candidate.wtids {
        plan.row::<Prepared>(WtidKey { wtid: *wtid });
    }
}

/// Removes a row if it exists.
fn remove<T: Table>(rows: &mut WorkingSet, key: &T::Key, collected: &mut Collected) {
    if rows.get::<T>(key).is_some() {
        rows.delete::<T>(key);
        collected.rows += 1;
    }
}

/// Removes all rows of a table that belong to a reserve or purse.
fn take<T: Table>(
    rows: &mut WorkingSet,
    index: u8,
    owner: &ReservePub,
    collected: &mut Collected,
) -> Vec<T::Row> {
    let group: Vec<(T::Key, T::Row)> =
        rows.group::<T>(index, owner).into_iter().map(|(key, row)| (key.clone(), row.clone())).collect();
    collected.rows += group.len() as u64;
    for (key, _) in &group {
        rows.delete::<T>(key);
    }
    group.into_iter().map(|(_, row)| row).collect()
}

impl ExchangeRules {
    /// Returns whether nobody needs a reserve and the rows that belong to it any more.
    fn is_collectable(&self, rows: &WorkingSet, candidate: &ReserveCandidate, now: Timestamp) -> bool {
        let reserve_pub = &candidate.reserve_pub;
        let key = ReserveKey { reserve_pub: *reserve_pub };
        if !rows.get::<Reserves>(&key).is_some_and(|reserve| is_reserve_over(reserve, now)) {
            return false;
        }
        if rows.get::<ReserveAccounts>(&key).is_some_and(|account| account.purses_active > 0) {
            return false;
        }
        // A merge belongs to its purse, which is still there.
        if !rows.group::<PurseMerges>(PurseMerges::BY_RESERVE, reserve_pub).is_empty() {
            return false;
        }
        let is_imported = |account, bank_row| {
            candidate.accounts.contains(&account)
                && rows.get::<Cursors>(&AccountKey { account }).is_some_and(|row| row.bank_row >= bank_row)
        };
        let is_paid = |wtid| {
            candidate.wtids.contains(&wtid)
                && rows.get::<Prepared>(&WtidKey { wtid }).is_none_or(|row| row.finished.is_some())
        };
        rows.group::<ReservesIn>(ReservesIn::BY_RESERVE, reserve_pub)
            .iter()
            .all(|(key, row)| is_over(row.time, now) && is_imported(key.account, key.bank_row))
            && rows
                .group::<Withdrawals>(Withdrawals::BY_RESERVE, reserve_pub)
                .iter()
                .all(|(_, row)| is_over(row.time, now) && self.is_forgotten(row.denom, now))
            && rows
                .group::<Closings>(Closings::BY_RESERVE, reserve_pub)
                .iter()
                .all(|(_, row)| is_over(row.time, now) && (row.paid.is_zero() || is_paid(row.wtid)))
            && rows
                .group::<RecoupCredits>(RecoupCredits::BY_RESERVE, reserve_pub)
                .iter()
                .all(|(_, row)| is_over(row.time, now))
            && rows
                .group::<HistoryRequests>(HistoryRequests::BY_RESERVE, reserve_pub)
                .iter()
                .all(|(key, _)| is_over(key.request_time, now))
            && rows
                .group::<ReserveOpens>(ReserveOpens::BY_RESERVE, reserve_pub)
                .iter()
                .all(|(key, _)| is_over(key.request_time, now))
            && rows
                .group::<CloseRequests>(CloseRequests::BY_RESERVE, reserve_pub)
                .iter()
                .all(|(key, row)| row.done && is_over(key.request_time, now))
    }

    /// Returns whether a denomination has expired for good.
    fn is_forgotten(&self, denom: DenomSerial, now: Timestamp) -> bool {
        self.denoms.get(denom).is_some_and(|terms| is_over(terms.expire_legal, now))
    }

    /// Returns whether a purse's own row allows its removal.
    pub(crate) fn is_purse_over(&self, purse: &PurseRow, now: Timestamp) -> bool {
        matches!(purse.state, PurseState::Expired | PurseState::Deleted)
            && is_over(purse.decided.saturating_add(self.config.legal_reserve_expiration), now)
            && is_over(purse.expiration, now)
    }

    /// Returns whether an identification was never completed, or expired as long ago as reserves are kept.
    pub(crate) fn is_process_over(&self, process: &KycProcessRow, now: Timestamp) -> bool {
        let kept = self.config.legal_reserve_expiration;
        match process.state {
            KycState::Started if process.expiration == Timestamp::ZERO => {
                is_over(process.started.saturating_add(KYC_PATIENCE), now)
            }
            KycState::Started => {
                let last = process.started.max(process.expiration.saturating_add(kept));
                is_over(last.saturating_add(KYC_PATIENCE), now)
            }
            KycState::Approved => is_over(process.expiration.saturating_add(kept), now),
            // Officers have to decide, or have decided; both is evidence.
            KycState::Submitted | KycState::Rejected => false,
        }
    }

    fn collect_purse(
        &self,
        rows: &mut WorkingSet,
        candidate: &PurseCandidate,
        now: Timestamp,
        sums: &mut Sums,
        collected: &mut Collected,
    ) -> Result<()> {
        let purse_pub = candidate.purse_pub;
        let key = PurseKey { purse_pub };
        let Some(purse) = rows.get::<Purses>(&key).filter(|purse| self.is_purse_over(purse, now)) else {
            return Ok(());
        };
        let fee = purse.purse_fee;
        let reserve_pub = rows.get::<PurseMerges>(&key).map(|merge| merge.reserve_pub);
        // The reserve's history needs the fee as long as there is a reserve.
        let is_fee_needed = !fee.is_zero()
            && reserve_pub.is_some_and(|reserve_pub| {
                candidate.reserve_pub != Some(reserve_pub)
                    || rows.get::<Reserves>(&ReserveKey { reserve_pub }).is_some()
            });
        let deposits = rows.group::<PurseDeposits>(PurseDeposits::BY_PURSE, &purse_pub);
        let are_refunded = deposits.iter().all(|(_, row)| row.refunded && self.is_forgotten(row.denom, now));
        if is_fee_needed || !are_refunded {
            return Ok(());
        }
        sums.add(CollectedTerm::PurseFees, fee)?;
        take::<PurseDeposits>(rows, PurseDeposits::BY_PURSE, &purse_pub, collected);
        remove::<PurseMerges>(rows, &key, collected);
        remove::<Contracts>(rows, &key, collected);
        remove::<PurseDeletions>(rows, &key, collected);
        remove::<Purses>(rows, &key, collected);
        collected.removed += 1;
        Ok(())
    }

    fn collect_reserve(
        &self,
        rows: &mut WorkingSet,
        reserve_pub: ReservePub,
        sums: &mut Sums,
        collected: &mut Collected,
    ) -> Result<()> {
        for row in take::<ReservesIn>(rows, ReservesIn::BY_RESERVE, &reserve_pub, collected) {
            sums.add(CollectedTerm::WiredIn, row.amount)?;
        }
        for row in take::<Withdrawals>(rows, Withdrawals::BY_RESERVE, &reserve_pub, collected) {
            let terms = self.terms(row.denom, 0)?;
            sums.add(CollectedTerm::Issued, terms.value)?;
            sums.add(CollectedTerm::WithdrawFees, terms.fee_withdraw)?;
        }
        for row in take::<Closings>(rows, Closings::BY_RESERVE, &reserve_pub, collected) {
            let rest = row.amount.checked_sub(row.fee).and_then(|rest| rest.checked_sub(row.paid));
            sums.add(CollectedTerm::ClosingFees, row.fee)?;
            sums.add(CollectedTerm::ClosingRounding, rest.expect("a closing pays at most the rest"))?;
            sums.add(CollectedTerm::ClosingsPaid, row.paid)?;
        }
        for row in take::<HistoryRequests>(rows, HistoryRequests::BY_RESERVE, &reserve_pub, collected) {
            sums.add(CollectedTerm::HistoryFees, row.fee)?;
        }
        for row in take::<ReserveOpens>(rows, ReserveOpens::BY_RESERVE, &reserve_pub, collected) {
            sums.add(CollectedTerm::AccountFees, row.payment)?;
        }
        take::<RecoupCredits>(rows, RecoupCredits::BY_RESERVE, &reserve_pub, collected);
        take::<CloseRequests>(rows, CloseRequests::BY_RESERVE, &reserve_pub, collected);
        let key = ReserveKey { reserve_pub };
        remove::<ReserveAccounts>(rows, &key, collected);
        remove::<Reserves>(rows, &key, collected);
        collected.removed += 1;
        Ok(())
    }

    fn collect_nonces(
        &self,
        rows: &mut WorkingSet,
        candidates: &[NonceCandidate],
        now: Timestamp,
        collected: &mut Collected,
    ) {
        let ended_max = self.signing_ended_max(now);
        for NonceCandidate { key, rc, melt } in candidates {
            let Some(lock) = rows.get::<CsNonces>(key) else { continue };
            let is_unused = match (key.kind, melt) {
                (NonceKind::Withdraw, _) => true,
                // A reveal may be much later than its melt, and sign with denominations that are newer.
                (NonceKind::Melt, Some(melt)) if melt.rc == lock.operation => rows
                    .get::<Reveals>(melt)
                    .is_none_or(|reveal| reveal.fresh.0.iter().all(|coin| coin.denom.0 <= ended_max)),
                // The melt left for an archive, after the denominations of all its fresh coins had expired for
                // good.
                (NonceKind::Melt, None) => {
                    rc.is_some_and(|rc| rc == lock.operation && rows.get::<MeltByRc>(&RcKey { rc }).is_none())
                }
                (NonceKind::Melt, Some(_)) => false,
            };
            if is_unused && lock.denom_max <= ended_max {
                remove::<CsNonces>(rows, key, collected);
                collected.removed += 1;
            }
        }
    }

    /// The serial up to which no denomination signs under a nonce any more.
    pub(crate) fn signing_ended_max(&self, now: Timestamp) -> u32 {
        self.denoms.all_up_to(|terms| terms.cipher != Cipher::Cs || is_over(terms.expire_withdraw, now))
    }
}

fn collect_transfers(
    rows: &mut WorkingSet,
    wtids: &[Wtid],
    now: Timestamp,
    collected: &mut Collected,
) -> Result<()> {
    let mut sums = Sums::default();
    for wtid in wtids {
        let key = WtidKey { wtid: *wtid };
        let Some(transfer) = rows.get::<Prepared>(&key).filter(|row| is_transfer_over(row, now)) else {
            continue;
        };
        let (kind, amount) = (transfer.kind, transfer.amount);
        let term = match kind {
            TransferKind::Aggregate => CollectedTerm::MerchantTransfers,
            TransferKind::Closing => CollectedTerm::ClosingTransfers,
            TransferKind::Drain => CollectedTerm::DrainTransfers,
        };
        sums.add(term, amount)?;
        remove::<Prepared>(rows, &key, collected);
        // The identifiers of transfers to merchants are in wire_out.
        if kind != TransferKind::Aggregate {
            rows.insert::<PastTransfers>(&key, PastTransferRow { kind });
        }
        collected.removed += 1;
    }
    sums.store(rows)
}

fn collect_requirements(
    rows: &mut WorkingSet,
    keys: &[KycRequirementKey],
    now: Timestamp,
    collected: &mut Collected,
) {
    for key in keys {
        let Some(requirement) = rows.get::<KycRequirements>(key) else { continue };
        if requirement.asked.is_none() {
            let requirement = KycRequirementRow { asked: Some(now), ..requirement.clone() };
            rows.update::<KycRequirements>(key, requirement);
            continue;
        }
        let is_begun = !rows.group::<KycProcesses>(KycProcesses::BY_ACCOUNT, &key.h_payto).is_empty();
        let aggregates = rows.group::<Aggregates>(Aggregates::BY_TARGET, &key.h_payto);
        let holds_money = aggregates.iter().any(|(_, aggregate)| aggregate.kyc_row.is_some());
        if !is_begun && !holds_money && is_requirement_over(requirement, now) {
            remove::<KycRequirements>(rows, key, collected);
            collected.removed += 1;
        }
    }
}
