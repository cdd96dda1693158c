//! Reserves: credits, withdrawals, history fees, closing.

use std::collections::HashSet;

use batzen_crypto::{CsNonce, EddsaSignature, HashCode, Wtid};
use batzen_engine::{Command, Count, Plan, WorkingSet};
use batzen_protocol::{Money, Timestamp};
use batzen_tables::exchange::{
    AccountId, AccountKey, BlindSignature, CloseRequestRow, CloseRequests, ClosingKey, ClosingRow, Closings,
    CsNonceKey, CsNonceRow, CsNonces, CursorRow, Cursors, DenomSerial, HistoryRequestKey, HistoryRequestRow,
    HistoryRequests, KycOperation, NonceKind, PaytoHash, ReserveInKey, ReserveInRow, ReserveKey, ReservePub,
    ReserveRequestKey, ReserveRow, Reserves, ReservesIn, TransferKind, WireFees, WireTargetKey,
    WireTargetRow, WireTargets, WithdrawalKey, WithdrawalRow, Withdrawals,
};

use super::denoms::{is_revoked, plan_revocation};
use super::transfers::{self, Payment};
use super::{
    DenomTerms, ExchangeRules, LimitedAccount, RangeProgress, RangeState, Refusal, ReserveShortage,
    ReserveStatement, add, leases,
};
use crate::rules::refusal::Result;

/// One planchet of a withdrawal.
#[derive(Debug, Clone)]
pub struct Planchet {
    /// Its denomination.
    pub denom: DenomSerial,
    /// Hash of the blinded planchet and the denomination.
    pub h_coin_ev: HashCode,
    /// The reserve's signature on it, verified.
    pub reserve_sig: EddsaSignature,
    /// The blind signature, made in advance, and dropped if the withdrawal is refused or is a repetition.
    /// Without it, a withdrawal that could be paid is refused with [`crate::rules::Refusal::SignatureMissing`]. So a
    /// request that will probably be refused costs no signature.
    pub ev_sig: Option<BlindSignature>,
    /// Clause Blind Schnorr only: the planchet's nonce.
    pub nonce: Option<CsNonce>,
}

/// Withdraws coins, for `/withdraw` (one planchet) and `/batch-withdraw`. All or nothing; a complete
/// repetition returns the stored signatures and charges nothing.
#[derive(Debug, Clone)]
pub struct Withdraw {
    /// The reserve.
    pub reserve_pub: ReservePub,
    /// 1 to 256 planchets, all different.
    pub planchets: Vec<Planchet>,
    /// Whether this is `/batch-withdraw`, which accepts only reserves that had a wire credit.
    pub batch: bool,
    /// The account that filled the reserve, as read before; it only matters if KYC rules limit withdrawals.
    pub origin: Option<LimitedAccount>,
}

/// The coins of a withdrawal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Withdrawn {
    /// Their signatures as stored, in the order of the request.
    pub ev_sigs: Vec<BlindSignature>,
    /// Whether all of them had been withdrawn before.
    pub repeated: bool,
}

impl Command<ExchangeRules> for Withdraw {
    type Answer = Withdrawn;
    const METRIC: Option<&'static str> = Some("withdraw");

    fn owner(&self) -> Option<&[u8]> {
        Some(self.reserve_pub.as_bytes())
    }

    fn plan(&self, rules: &ExchangeRules, plan: &mut Plan) {
        if let Some(origin) = &self.origin {
            rules.plan_kyc(KycOperation::Withdraw, origin, plan);
        }
        plan.row::<Reserves>(ReserveKey { reserve_pub: self.reserve_pub });
        for planchet in &self.planchets {
            plan_revocation(planchet.denom, plan);
            plan.row::<Withdrawals>(WithdrawalKey {
                reserve_pub: self.reserve_pub,
                h_coin_ev: planchet.h_coin_ev,
            });
            if let Some(nonce) = planchet.nonce {
                plan_nonce(NonceKind::Withdraw, nonce, plan);
            }
        }
    }

    fn execute(&self, rules: &ExchangeRules, rows: &mut WorkingSet, now: Timestamp) -> Result<Withdrawn> {
        assert!(!self.planchets.is_empty(), "a withdrawal has planchets");
        let reserve_pub = self.reserve_pub;
        let key = |h_coin_ev: HashCode| WithdrawalKey { reserve_pub, h_coin_ev };
        let mut seen = HashSet::with_capacity(self.planchets.len());
        let mut stored = Vec::with_capacity(self.planchets.len());
        let mut first_stored = None;
        for (index, planchet) in self.planchets.iter().enumerate() {
            if !seen.insert(planchet.h_coin_ev) {
                return Err(Refusal::PlanchetDuplicate { index });
            }
            if let Some(row) = rows.get::<Withdrawals>(&key(planchet.h_coin_ev)) {
                first_stored.get_or_insert(index);
                stored.push(row.ev_sig.clone());
            }
        }
        if stored.len() == self.planchets.len() {
            return Ok(Withdrawn { ev_sigs: stored, repeated: true });
        }
        if let Some(index) = first_stored {
            return Err(Refusal::PlanchetsMixed { index });
        }

        let mut requested = Money::ZERO;
        for (index, planchet) in self.planchets.iter().enumerate() {
            let terms = rules.terms(planchet.denom, index)?;
            terms
                .signable(is_revoked(rows, planchet.denom), now)
                .map_err(|problem| Refusal::DenominationUnusable { index, denom: planchet.denom, problem })?;
            requested = add(requested, add(terms.value, terms.fee_withdraw)?)?;
        }
        let reserve_key = ReserveKey { reserve_pub };
        let reserve = rows.get::<Reserves>(&reserve_key).ok_or(Refusal::ReserveUnknown)?.clone();
        if self.batch && reserve.origin.is_none() {
            return Err(Refusal::ReserveUnknown);
        }
        let Ok(balance) = reserve.balance.checked_sub(requested) else {
            return Err(Refusal::ReserveInsufficient(Box::new(ReserveShortage {
                reserve_pub,
                balance: reserve.balance,
                requested,
                history: ReserveStatement::default(),
            })));
        };
        // Money that came from other people only was checked when it was merged.
        if let Some(origin) = reserve.origin
            && rules.config.kyc.limits(KycOperation::Withdraw)
        {
            let named = self.origin.filter(|named| named.h_payto() == origin);
            let origin = named.ok_or(Refusal::OriginOther)?;
            rules.require_kyc(rows, KycOperation::Withdraw, &origin, requested, now)?;
            rules.count_kyc(rows, KycOperation::Withdraw, &origin, requested, now);
        }
        let gc = reserve.gc.max(now.saturating_add(rules.config.legal_reserve_expiration));
        rows.update::<Reserves>(&reserve_key, ReserveRow { balance, gc, ..reserve });
        for (index, planchet) in self.planchets.iter().enumerate() {
            if let Some(nonce) = planchet.nonce {
                let denom_max = rules.denoms.serial_max();
                lock_nonce(rows, NonceKind::Withdraw, nonce, planchet.h_coin_ev, denom_max, index)?;
            }
        }
        let ev_sigs: Option<Vec<_>> = self.planchets.iter().map(|planchet| planchet.ev_sig.clone()).collect();
        let ev_sigs = ev_sigs.ok_or(Refusal::SignatureMissing)?;
        for (planchet, ev_sig) in self.planchets.iter().zip(&ev_sigs) {
            rows.insert::<Withdrawals>(
                &key(planchet.h_coin_ev),
                WithdrawalRow {
                    denom: planchet.denom,
                    reserve_sig: planchet.reserve_sig,
                    ev_sig: ev_sig.clone(),
                    time: now,
                },
            );
        }
        Ok(Withdrawn { ev_sigs, repeated: false })
    }

    fn count(answer: &Withdrawn) -> Count {
        Count::of(answer.ev_sigs.len(), answer.repeated)
    }
}

/// Charges for a full reserve history. The history itself is read afterwards (`reserve_statement`).
#[derive(Debug, Clone)]
pub struct ReserveHistory {
    /// The reserve.
    pub reserve_pub: ReservePub,
    /// The request's time. Each time is charged once.
    pub request_time: Timestamp,
    /// The history fee that the request signed (that of the global fee period of `request_time`).
    pub fee: Money,
    /// The reserve's signature, verified.
    pub reserve_sig: EddsaSignature,
}

/// The history fee is paid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryPaid {
    /// Whether the fee was charged now; false if it is zero or was paid before.
    pub charged: bool,
}

impl Command<ExchangeRules> for ReserveHistory {
    type Answer = HistoryPaid;

    fn owner(&self) -> Option<&[u8]> {
        Some(self.reserve_pub.as_bytes())
    }

    fn plan(&self, _: &ExchangeRules, plan: &mut Plan) {
        plan.row::<Reserves>(ReserveKey { reserve_pub: self.reserve_pub });
        plan.row::<HistoryRequests>(HistoryRequestKey {
            reserve_pub: self.reserve_pub,
            request_time: self.request_time,
        });
    }

    fn execute(&self, _: &ExchangeRules, rows: &mut WorkingSet, _: Timestamp) -> Result<HistoryPaid> {
        let reserve_pub = self.reserve_pub;
        let reserve_key = ReserveKey { reserve_pub };
        let key = HistoryRequestKey { reserve_pub, request_time: self.request_time };
        let reserve = rows.get::<Reserves>(&reserve_key).cloned();
        if self.fee.is_zero() {
            return reserve.map(|_| HistoryPaid { charged: false }).ok_or(Refusal::ReserveUnknown);
        }
        if rows.get::<HistoryRequests>(&key).is_some() {
            return Ok(HistoryPaid { charged: false });
        }
        let reserve = reserve.ok_or(Refusal::HistoryUnaffordable)?;
        let balance = reserve.balance.checked_sub(self.fee).map_err(|_| Refusal::HistoryUnaffordable)?;
        rows.update::<Reserves>(&reserve_key, ReserveRow { balance, ..reserve });
        rows.insert::<HistoryRequests>(
            &key,
            HistoryRequestRow { fee: self.fee, reserve_sig: self.reserve_sig },
        );
        Ok(HistoryPaid { charged: true })
    }
}

/// One incoming transfer.
#[derive(Debug, Clone)]
pub struct Credit {
    /// Its row at the bank.
    pub bank_row: u64,
    /// The reserve named in its subject.
    pub reserve_pub: ReservePub,
    /// Amount.
    pub amount: Money,
    /// The sender's payto URI.
    pub payto_uri: String,
    /// Its hash.
    pub h_payto: PaytoHash,
    /// When the bank executed it.
    pub time: Timestamp,
}

/// Books a page of incoming transfers and moves the cursor, in one commit. Rows booked before are skipped.
#[derive(Debug, Clone)]
pub struct Credits {
    /// The exchange's account that received them.
    pub account: AccountId,
    /// The transfers, in the order of bank rows. May be empty (rows without a reserve in their subject).
    pub credits: Vec<Credit>,
    /// The last bank row of the page. The cursor never moves back.
    pub cursor: u64,
    /// The progress of the watcher's range of bank rows, if it has leased one. The cursor then follows the
    /// ranges.
    pub range: Option<RangeProgress>,
}

/// The answer to [`Credits`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credited {
    /// The reserves credited now, each once. Their waiters must be woken.
    pub reserves: Vec<ReservePub>,
    /// Number of transfers that were booked now.
    pub booked: usize,
    /// The state of the range, if the command named one.
    pub range: Option<RangeState>,
}

impl Command<ExchangeRules> for Credits {
    type Answer = Credited;
    const IS_BACKGROUND: bool = true;

    fn plan(&self, _: &ExchangeRules, plan: &mut Plan) {
        plan.row::<Cursors>(AccountKey { account: self.account });
        if self.range.is_some() {
            leases::plan_ranges(self.account, plan);
        }
        for credit in &self.credits {
            plan.row::<Reserves>(ReserveKey { reserve_pub: credit.reserve_pub });
            plan.row::<ReservesIn>(ReserveInKey {
                reserve_pub: credit.reserve_pub,
                account: self.account,
                bank_row: credit.bank_row,
            });
            plan.row::<WireTargets>(WireTargetKey { h_payto: credit.h_payto });
        }
    }

    fn execute(&self, rules: &ExchangeRules, rows: &mut WorkingSet, now: Timestamp) -> Result<Credited> {
        let mut reserves = Vec::new();
        let mut seen = HashSet::new();
        let mut booked = 0;
        for credit in &self.credits {
            let key = ReserveInKey {
                reserve_pub: credit.reserve_pub,
                account: self.account,
                bank_row: credit.bank_row,
            };
            if rows.get::<ReservesIn>(&key).is_some() {
                continue;
            }
            rows.insert::<ReservesIn>(
                &key,
                ReserveInRow { amount: credit.amount, h_payto: credit.h_payto, time: credit.time },
            );
            remember_target(rows, credit.h_payto, &credit.payto_uri);
            let idle_until = credit.time.saturating_add(rules.config.idle_reserve_expiration);
            rules.credit_reserve(
                rows,
                credit.reserve_pub,
                credit.amount,
                idle_until,
                Some(credit.h_payto),
                now,
            )?;
            booked += 1;
            if seen.insert(credit.reserve_pub) {
                reserves.push(credit.reserve_pub);
            }
        }
        let key = AccountKey { account: self.account };
        let cursor = rows.get::<Cursors>(&key).map(|row| row.bank_row);
        if cursor.is_none_or(|cursor| cursor < self.cursor) {
            rows.put::<Cursors>(&key, CursorRow { bank_row: self.cursor });
        }
        let range = self.range.as_ref().and_then(|progress| leases::advance(rows, self.account, progress));
        Ok(Credited { reserves, booked, range })
    }
}

/// Closes one reserve and prepares the transfer of its money: an expired reserve to its origin, which never
/// changes once set, or by its owner's request to the account that the request names. The caller has read the
/// account and its payto URI.
#[derive(Debug, Clone)]
pub struct CloseReserve {
    /// The reserve.
    pub reserve_pub: ReservePub,
    /// The time of the owner's request; none for an expired reserve.
    pub request_time: Option<Timestamp>,
    /// The account to pay.
    pub h_payto: PaytoHash,
    /// The method of that account's payto URI.
    pub method: String,
    /// The exchange's account that pays.
    pub account: AccountId,
    /// 32 random bytes, used from the reserve's second closing on. The first closing uses the reserve's
    /// public key.
    pub wtid: Wtid,
    /// 64 random bytes: identifies the transfer at the bank.
    pub request_uid: HashCode,
}

/// The answer to [`CloseReserve`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// The reserve is unknown, empty or not (or no longer) expired, or the request was executed. Nothing changed.
    NotDue,
    /// The reserve is empty, so the owner's request is done.
    Empty,
    /// The reserve is closed; what came in after the owner's request stays.
    Closed {
        /// The transfer's identifier.
        wtid: Wtid,
        /// Its balance before.
        amount: Money,
        /// The closing fee, at most the amount.
        fee: Money,
        /// The wired amount; zero if no transfer was prepared.
        paid: Money,
    },
}

impl Command<ExchangeRules> for CloseReserve {
    type Answer = Closed;
    const IS_BACKGROUND: bool = true;

    fn owner(&self) -> Option<&[u8]> {
        Some(self.reserve_pub.as_bytes())
    }

    fn plan(&self, _: &ExchangeRules, plan: &mut Plan) {
        plan.row::<Reserves>(ReserveKey { reserve_pub: self.reserve_pub });
        plan.group::<Closings>(Closings::BY_RESERVE, &self.reserve_pub);
        plan.row::<WireTargets>(WireTargetKey { h_payto: self.h_payto });
        plan.group::<WireFees>(WireFees::BY_METHOD, &self.method);
        if let Some(request_time) = self.request_time {
            plan.row::<CloseRequests>(ReserveRequestKey { reserve_pub: self.reserve_pub, request_time });
        }
        for wtid in [first_wtid(&self.reserve_pub), self.wtid] {
            transfers::plan_wtid(wtid, plan);
        }
    }

    fn execute(&self, rules: &ExchangeRules, rows: &mut WorkingSet, now: Timestamp) -> Result<Closed> {
        let reserve_pub = self.reserve_pub;
        let key = ReserveKey { reserve_pub };
        let Some(reserve) = rows.get::<Reserves>(&key).cloned() else {
            return Ok(Closed::NotDue);
        };
        // The most that is paid, and the time whose fee applies, even if the closer runs later.
        let (amount_max, fee_time) = match self.request_time {
            None => {
                if reserve.balance.is_zero() || reserve.expiration > now || reserve.origin.is_none() {
                    return Ok(Closed::NotDue);
                }
                if reserve.origin != Some(self.h_payto) {
                    return Err(Refusal::TargetMismatch);
                }
                (reserve.balance, reserve.expiration)
            }
            Some(request_time) => {
                let key = ReserveRequestKey { reserve_pub, request_time };
                let Some(request) = rows.get::<CloseRequests>(&key).filter(|request| !request.done).cloned()
                else {
                    return Ok(Closed::NotDue);
                };
                if request.h_payto != self.h_payto {
                    return Err(Refusal::TargetMismatch);
                }
                let balance = request.balance;
                rows.update::<CloseRequests>(&key, CloseRequestRow { done: true, ..request });
                if reserve.balance.is_zero() {
                    // Money that another node credits at the same time is still there when the request is done.
                    rows.depend_on::<Reserves>(&ReserveKey { reserve_pub });
                    return Ok(Closed::Empty);
                }
                (balance, request_time)
            }
        };
        transfers::check_target(rows, self.h_payto, &self.method)?;
        let closing_fee = transfers::wire_fees_at(rows, &self.method, fee_time)?.closing_fee;

        let amount = reserve.balance.min(amount_max);
        let fee = closing_fee.min(amount);
        let rest = amount.checked_sub(fee).expect("the fee is at most the amount");
        let paid = transfers::round_down(rest, rules.config.round_unit);
        let earlier = rows.group::<Closings>(Closings::BY_RESERVE, &reserve_pub).len();
        let first = first_wtid(&reserve_pub);
        // Anybody can choose a reserve key that equals the identifier of another transfer.
        let wtid = if earlier == 0 && !transfers::wtid_taken(rows, first) { first } else { self.wtid };
        let n = u32::try_from(earlier).expect("a reserve is closed fewer than 2^32 times");
        let balance = reserve.balance.checked_sub(amount).expect("at most the balance");
        rows.update::<Reserves>(&key, ReserveRow { balance, ..reserve });
        rows.insert::<Closings>(
            &ClosingKey { reserve_pub, n },
            ClosingRow { time: now, wtid, h_payto: self.h_payto, account: self.account, amount, fee, paid },
        );
        if !paid.is_zero() {
            rules.prepare(
                rows,
                &Payment {
                    kind: TransferKind::Closing,
                    wtid,
                    account: self.account,
                    request_uid: self.request_uid,
                    amount: paid,
                    h_payto: self.h_payto,
                },
                now,
            )?;
        }
        Ok(Closed::Closed { wtid, amount, fee, paid })
    }
}

pub(super) fn plan_nonce(kind: NonceKind, nonce: CsNonce, plan: &mut Plan) {
    plan.row::<CsNonces>(CsNonceKey { kind, nonce });
}

/// The identifier of a reserve's first closing: its own public key.
fn first_wtid(reserve_pub: &ReservePub) -> Wtid {
    Wtid::from_bytes(*reserve_pub.as_bytes())
}

/// Locks a Clause Blind Schnorr nonce to one operation for as long as the denominations can be withdrawn: two
/// signatures under one nonce would reveal a denomination's private key.
pub(super) fn lock_nonce(
    rows: &mut WorkingSet,
    kind: NonceKind,
    nonce: CsNonce,
    operation: HashCode,
    denom_max: u32,
    index: usize,
) -> Result<()> {
    let key = CsNonceKey { kind, nonce };
    match rows.get::<CsNonces>(&key) {
        Some(row) if row.operation == operation => {
            // Garbage collection must not remove the lock at the same time.
            rows.depend_on::<CsNonces>(&key);
            Ok(())
        }
        Some(_) => Err(Refusal::NonceReuse { index }),
        None => {
            rows.insert::<CsNonces>(&key, CsNonceRow { operation, denom_max });
            Ok(())
        }
    }
}

impl ExchangeRules {
    /// The terms of a denomination that a request names.
    pub(super) fn terms(&self, denom: DenomSerial, index: usize) -> Result<DenomTerms> {
        self.denoms.get(denom).ok_or(Refusal::DenominationUnknown { index, denom })
    }

    /// Credits a reserve, and creates it if necessary. Both dates only increase. The first account that sent
    /// money remains the origin.
    pub(super) fn credit_reserve(
        &self,
        rows: &mut WorkingSet,
        reserve_pub: ReservePub,
        amount: Money,
        idle_until: Timestamp,
        origin: Option<PaytoHash>,
        now: Timestamp,
    ) -> Result<()> {
        let key = ReserveKey { reserve_pub };
        let gc = now.saturating_add(self.config.legal_reserve_expiration);
        let row = match rows.get::<Reserves>(&key) {
            None => ReserveRow { balance: amount, expiration: idle_until, gc, origin },
            Some(old) => ReserveRow {
                balance: add(old.balance, amount)?,
                expiration: old.expiration.max(idle_until),
                gc: old.gc.max(gc),
                origin: old.origin.or(origin),
            },
        };
        rows.put::<Reserves>(&key, row);
        Ok(())
    }
}

/// Stores a payto URI under its hash.
pub(super) fn remember_target(rows: &mut WorkingSet, h_payto: PaytoHash, payto_uri: &str) {
    let key = WireTargetKey { h_payto };
    if rows.get::<WireTargets>(&key).is_none() {
        rows.insert::<WireTargets>(&key, WireTargetRow { payto_uri: payto_uri.to_owned() });
    }
}
