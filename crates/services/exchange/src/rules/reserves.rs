//! Reserves: credits, withdrawals, history fees, closing.

use std::collections::HashSet;

use batzen_crypto::{CsNonce, HashCode, Wtid};
use batzen_engine::{Plan, WorkingSet};
use batzen_protocol::{Money, Timestamp};
use batzen_tables::exchange::{
    AccountKey, CloseRequestRow, CloseRequests, ClosingKey, ClosingRow, Closings, CsNonceKey, CsNonceRow,
    CsNonces, CursorRow, Cursors, DenomSerial, HistoryRequestKey, HistoryRequestRow, HistoryRequests,
    KycOperation, NonceKind, PaytoHash, ReserveInKey, ReserveInRow, ReserveKey, ReservePub,
    ReserveRequestKey, ReserveRow, Reserves, ReservesIn, TransferKind, WireFees, WireTargetKey,
    WireTargetRow, WireTargets, WithdrawalKey, WithdrawalRow, Withdrawals,
};

use super::denoms::{is_revoked, plan_revocation};
use super::leases;
use super::transfers::{self, Payment};
use super::{
    CloseReserve, Closed, Credited, Credits, DenomTerms, ExchangeRules, HistoryPaid, Refusal, ReserveHistory,
    ReserveShortage, ReserveStatement, Withdraw, Withdrawn, add,
};

impl ExchangeRules {
    pub(super) fn plan_withdraw(&self, command: &Withdraw, plan: &mut Plan) {
        if let Some(origin) = command.origin {
            self.plan_kyc(KycOperation::Withdraw, origin, plan);
        }
        plan_withdraw(command, plan);
    }
}

fn plan_withdraw(command: &Withdraw, plan: &mut Plan) {
    plan.row::<Reserves>(ReserveKey { reserve_pub: command.reserve_pub });
    for planchet in &command.planchets {
        plan_revocation(planchet.denom, plan);
        plan.row::<Withdrawals>(WithdrawalKey {
            reserve_pub: command.reserve_pub,
            h_coin_ev: planchet.h_coin_ev,
        });
        if let Some(nonce) = planchet.nonce {
            plan_nonce(NonceKind::Withdraw, nonce, plan);
        }
    }
}

pub(super) fn plan_nonce(kind: NonceKind, nonce: CsNonce, plan: &mut Plan) {
    plan.row::<CsNonces>(CsNonceKey { kind, nonce });
}

pub(super) fn plan_history(command: &ReserveHistory, plan: &mut Plan) {
    plan.row::<Reserves>(ReserveKey { reserve_pub: command.reserve_pub });
    plan.row::<HistoryRequests>(HistoryRequestKey {
        reserve_pub: command.reserve_pub,
        request_time: command.request_time,
    });
}

pub(super) fn plan_credits(command: &Credits, plan: &mut Plan) {
    plan.row::<Cursors>(AccountKey { account: command.account });
    if command.range.is_some() {
        leases::plan_ranges(command.account, plan);
    }
    for credit in &command.credits {
        plan.row::<Reserves>(ReserveKey { reserve_pub: credit.reserve_pub });
        plan.row::<ReservesIn>(ReserveInKey {
            reserve_pub: credit.reserve_pub,
            account: command.account,
            bank_row: credit.bank_row,
        });
        plan.row::<WireTargets>(WireTargetKey { h_payto: credit.h_payto });
    }
}

pub(super) fn plan_close(command: &CloseReserve, plan: &mut Plan) {
    plan.row::<Reserves>(ReserveKey { reserve_pub: command.reserve_pub });
    plan.group::<Closings>(Closings::BY_RESERVE, &command.reserve_pub);
    plan.row::<WireTargets>(WireTargetKey { h_payto: command.h_payto });
    plan.group::<WireFees>(WireFees::BY_METHOD, &command.method);
    if let Some(request_time) = command.request_time {
        plan.row::<CloseRequests>(ReserveRequestKey { reserve_pub: command.reserve_pub, request_time });
    }
    for wtid in [first_wtid(&command.reserve_pub), command.wtid] {
        transfers::plan_wtid(wtid, plan);
    }
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
) -> Result<(), Refusal> {
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
    pub(super) fn terms(&self, denom: DenomSerial, index: usize) -> Result<DenomTerms, Refusal> {
        self.denoms.get(denom).ok_or(Refusal::DenominationUnknown { index, denom })
    }

    pub(super) fn withdraw(
        &self,
        rows: &mut WorkingSet,
        command: &Withdraw,
        now: Timestamp,
    ) -> Result<Withdrawn, Refusal> {
        assert!(!command.planchets.is_empty(), "a withdrawal has planchets");
        let reserve_pub = command.reserve_pub;
        let key = |h_coin_ev: HashCode| WithdrawalKey { reserve_pub, h_coin_ev };
        let mut seen = HashSet::with_capacity(command.planchets.len());
        let mut stored = Vec::with_capacity(command.planchets.len());
        let mut first_stored = None;
        for (index, planchet) in command.planchets.iter().enumerate() {
            if !seen.insert(planchet.h_coin_ev) {
                return Err(Refusal::PlanchetDuplicate { index });
            }
            if let Some(row) = rows.get::<Withdrawals>(&key(planchet.h_coin_ev)) {
                first_stored.get_or_insert(index);
                stored.push(row.ev_sig.clone());
            }
        }
        if stored.len() == command.planchets.len() {
            return Ok(Withdrawn { ev_sigs: stored, repeated: true });
        }
        if let Some(index) = first_stored {
            return Err(Refusal::PlanchetsMixed { index });
        }

        let mut requested = Money::ZERO;
        for (index, planchet) in command.planchets.iter().enumerate() {
            let terms = self.terms(planchet.denom, index)?;
            terms
                .signable(is_revoked(rows, planchet.denom), now)
                .map_err(|problem| Refusal::DenominationUnusable { index, denom: planchet.denom, problem })?;
            requested = add(requested, add(terms.value, terms.fee_withdraw)?)?;
        }
        let reserve_key = ReserveKey { reserve_pub };
        let reserve = rows.get::<Reserves>(&reserve_key).ok_or(Refusal::ReserveUnknown)?.clone();
        if command.batch && reserve.origin.is_none() {
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
            && self.config.kyc.limits(KycOperation::Withdraw)
        {
            if command.origin != Some(origin) {
                return Err(Refusal::OriginOther);
            }
            self.require_kyc(rows, KycOperation::Withdraw, origin, requested, now)?;
            self.count_kyc(rows, KycOperation::Withdraw, origin, requested, now);
        }
        let gc = reserve.gc.max(now.saturating_add(self.config.legal_reserve_expiration));
        rows.update::<Reserves>(&reserve_key, ReserveRow { balance, gc, ..reserve });
        for (index, planchet) in command.planchets.iter().enumerate() {
            if let Some(nonce) = planchet.nonce {
                let denom_max = self.denoms.serial_max();
                lock_nonce(rows, NonceKind::Withdraw, nonce, planchet.h_coin_ev, denom_max, index)?;
            }
        }
        let ev_sigs: Option<Vec<_>> =
            command.planchets.iter().map(|planchet| planchet.ev_sig.clone()).collect();
        let ev_sigs = ev_sigs.ok_or(Refusal::SignatureMissing)?;
        for (planchet, ev_sig) in command.planchets.iter().zip(&ev_sigs) {
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

    pub(super) fn reserve_history(
        &self,
        rows: &mut WorkingSet,
        command: &ReserveHistory,
    ) -> Result<HistoryPaid, Refusal> {
        let reserve_pub = command.reserve_pub;
        let reserve_key = ReserveKey { reserve_pub };
        let key = HistoryRequestKey { reserve_pub, request_time: command.request_time };
        let reserve = rows.get::<Reserves>(&reserve_key).cloned();
        if command.fee.is_zero() {
            return reserve.map(|_| HistoryPaid { charged: false }).ok_or(Refusal::ReserveUnknown);
        }
        if rows.get::<HistoryRequests>(&key).is_some() {
            return Ok(HistoryPaid { charged: false });
        }
        let reserve = reserve.ok_or(Refusal::HistoryUnaffordable)?;
        let balance = reserve.balance.checked_sub(command.fee).map_err(|_| Refusal::HistoryUnaffordable)?;
        rows.update::<Reserves>(&reserve_key, ReserveRow { balance, ..reserve });
        rows.insert::<HistoryRequests>(
            &key,
            HistoryRequestRow { fee: command.fee, reserve_sig: command.reserve_sig },
        );
        Ok(HistoryPaid { charged: true })
    }

    pub(super) fn credits(
        &self,
        rows: &mut WorkingSet,
        command: &Credits,
        now: Timestamp,
    ) -> Result<Credited, Refusal> {
        let mut reserves = Vec::new();
        let mut seen = HashSet::new();
        let mut booked = 0;
        for credit in &command.credits {
            let key = ReserveInKey {
                reserve_pub: credit.reserve_pub,
                account: command.account,
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
            let idle_until = credit.time.saturating_add(self.config.idle_reserve_expiration);
            self.credit_reserve(
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
        let key = AccountKey { account: command.account };
        let cursor = rows.get::<Cursors>(&key).map(|row| row.bank_row);
        if cursor.is_none_or(|cursor| cursor < command.cursor) {
            rows.put::<Cursors>(&key, CursorRow { bank_row: command.cursor });
        }
        let range =
            command.range.as_ref().and_then(|progress| leases::advance(rows, command.account, progress));
        Ok(Credited { reserves, booked, range })
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
    ) -> Result<(), Refusal> {
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

    pub(super) fn close_reserve(
        &self,
        rows: &mut WorkingSet,
        command: &CloseReserve,
        now: Timestamp,
    ) -> Result<Closed, Refusal> {
        let reserve_pub = command.reserve_pub;
        let key = ReserveKey { reserve_pub };
        let Some(reserve) = rows.get::<Reserves>(&key).cloned() else {
            return Ok(Closed::NotDue);
        };
        // The most that is paid, and the time whose fee applies, even if the closer runs later.
        let (amount_max, fee_time) = match command.request_time {
            None => {
                if reserve.balance.is_zero() || reserve.expiration > now || reserve.origin.is_none() {
                    return Ok(Closed::NotDue);
                }
                if reserve.origin != Some(command.h_payto) {
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
                if request.h_payto != command.h_payto {
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
        transfers::check_target(rows, command.h_payto, &command.method)?;
        let closing_fee = transfers::wire_fees_at(rows, &command.method, fee_time)?.closing_fee;

        let amount = reserve.balance.min(amount_max);
        let fee = closing_fee.min(amount);
        let rest = amount.checked_sub(fee).expect("the fee is at most the amount");
        let paid = transfers::round_down(rest, self.config.round_unit);
        let earlier = rows.group::<Closings>(Closings::BY_RESERVE, &reserve_pub).len();
        let first = first_wtid(&reserve_pub);
        // Anybody can choose a reserve key that equals the identifier of another transfer.
        let wtid = if earlier == 0 && !transfers::wtid_taken(rows, first) { first } else { command.wtid };
        let n = u32::try_from(earlier).expect("a reserve is closed fewer than 2^32 times");
        let balance = reserve.balance.checked_sub(amount).expect("at most the balance");
        rows.update::<Reserves>(&key, ReserveRow { balance, ..reserve });
        rows.insert::<Closings>(
            &ClosingKey { reserve_pub, n },
            ClosingRow {
                time: now,
                wtid,
                h_payto: command.h_payto,
                account: command.account,
                amount,
                fee,
                paid,
            },
        );
        if !paid.is_zero() {
            self.prepare(
                rows,
                &Payment {
                    kind: TransferKind::Closing,
                    wtid,
                    account: command.account,
                    request_uid: command.request_uid,
                    amount: paid,
                    h_payto: command.h_payto,
                },
                now,
            )?;
        }
        Ok(Closed::Closed { wtid, amount, fee, paid })
    }
}

/// Stores a payto URI under its hash.
pub(super) fn remember_target(rows: &mut WorkingSet, h_payto: PaytoHash, payto_uri: &str) {
    let key = WireTargetKey { h_payto };
    if rows.get::<WireTargets>(&key).is_none() {
        rows.insert::<WireTargets>(&key, WireTargetRow { payto_uri: payto_uri.to_owned() });
    }
}
