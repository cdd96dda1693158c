//! Outgoing money: aggregation of deposits, transfers at the bank, profit.

use batzen_crypto::{HashCode, Wtid};
use batzen_engine::{Plan, WorkingSet};
use batzen_protocol::{Money, Timestamp};
use batzen_tables::exchange::{
    AccountId, AggregateKey, AggregateRow, Aggregates, DepositKey, DepositRow, DepositTarget, Deposits,
    DrainRow, Drains, KycOperation, PastTransfers, PaytoHash, Prepared, PreparedRow, TransferKind,
    WireFeeRow, WireFees, WireOut, WireOutRow, WireTargetKey, WireTargets, WtidKey,
};

use super::kyc::requirement_row;
use super::reserves::remember_target;
use super::{
    Aggregate, Aggregated, Drained, ExchangeRules, ExecuteDrain, Refusal, TransferFailed, TransferMarked,
    TransferRetry, TransfersDone, Trigger, add,
};

/// The maximum number of deposits in one [`Aggregate`], so that payments behind it in the lane do not wait
/// long.
pub const AGGREGATE_DEPOSITS_MAX: usize = 1_000;

impl ExchangeRules {
    pub(super) fn plan_aggregate(&self, command: &Aggregate, plan: &mut Plan) {
        self.plan_kyc(KycOperation::Deposit, command.target.h_payto, plan);
        plan_aggregate(command, plan);
    }
}

fn plan_aggregate(command: &Aggregate, plan: &mut Plan) {
    plan.row::<WireTargets>(WireTargetKey { h_payto: command.target.h_payto });
    plan.group::<WireFees>(WireFees::BY_METHOD, &command.method);
    plan.row::<Aggregates>(aggregate_key(command));
    plan_wtid(command.wtid, plan);
    let (from, to) = command.target.range(command.until);
    // One more than needed shows whether more are left.
    plan.range::<Deposits>(Deposits::BY_TARGET, from, to, command.deposits_max + 1);
}

/// Plans what shows whether an identifier is taken.
pub(super) fn plan_wtid(wtid: Wtid, plan: &mut Plan) {
    plan.row::<WireOut>(WtidKey { wtid });
    plan.row::<Prepared>(WtidKey { wtid });
    plan.row::<PastTransfers>(WtidKey { wtid });
}

pub(super) fn plan_transfer(wtid: Wtid, plan: &mut Plan) {
    plan.row::<Prepared>(WtidKey { wtid });
}

pub(super) fn plan_drain(command: &ExecuteDrain, plan: &mut Plan) {
    plan.row::<Drains>(WtidKey { wtid: command.wtid });
    plan_wtid(command.wtid, plan);
    plan.row::<WireTargets>(WireTargetKey { h_payto: command.h_payto });
}

fn aggregate_key(command: &Aggregate) -> AggregateKey {
    let target = command.target;
    AggregateKey { h_payto: target.h_payto, merchant_pub: target.merchant_pub, account: command.account }
}

/// The method of a payto URI: the part between `payto://` and the next `/`.
#[must_use]
pub fn payto_method(payto_uri: &str) -> Option<&str> {
    let (scheme, rest) = payto_uri.split_at_checked(8)?;
    if !scheme.eq_ignore_ascii_case("payto://") {
        return None;
    }
    rest.split(['/', '?']).next().filter(|method| !method.is_empty())
}

/// The largest multiple of `unit` that does not exceed `amount`. A unit of zero changes nothing.
#[must_use]
pub fn round_down(amount: Money, unit: Money) -> Money {
    if unit.is_zero() {
        return amount;
    }
    let units = amount.units() - amount.units() % unit.units();
    Money::from_units(units).expect("not above the amount")
}

/// Checks that the account is known and has this method.
pub(super) fn check_target(rows: &WorkingSet, h_payto: PaytoHash, method: &str) -> Result<(), Refusal> {
    let target = rows.get::<WireTargets>(&WireTargetKey { h_payto }).ok_or(Refusal::TargetMismatch)?;
    // Methods are compared without case (RFC 8905).
    let is_same = payto_method(&target.payto_uri).is_some_and(|found| found.eq_ignore_ascii_case(method));
    if is_same { Ok(()) } else { Err(Refusal::TargetMismatch) }
}

/// The fees of a method at a given time (F5).
pub(super) fn wire_fees_at<'a>(
    rows: &'a WorkingSet,
    method: &str,
    time: Timestamp,
) -> Result<&'a WireFeeRow, Refusal> {
    rows.group::<WireFees>(WireFees::BY_METHOD, &method.to_owned())
        .into_iter()
        .find(|(key, row)| key.start <= time && time < row.end)
        .map(|(_, row)| row)
        .ok_or(Refusal::WireFeeMissing)
}

/// Whether a transfer has this identifier, or had it.
pub(super) fn wtid_taken(rows: &WorkingSet, wtid: Wtid) -> bool {
    let key = WtidKey { wtid };
    rows.get::<Prepared>(&key).is_some()
        || rows.get::<WireOut>(&key).is_some()
        || rows.get::<PastTransfers>(&key).is_some()
}

/// A transfer that is decided.
pub(super) struct Payment {
    pub kind: TransferKind,
    pub wtid: Wtid,
    pub account: AccountId,
    pub request_uid: HashCode,
    pub amount: Money,
    pub h_payto: PaytoHash,
}

/// The deposits of an aggregation.
#[derive(Default)]
struct Unit {
    deposits: Vec<(DepositKey, DepositRow)>,
    /// Contributions less refunds.
    contributed: Money,
    /// Deposit fees of those that are not completely refunded (F3, G3).
    fees: Money,
    due: bool,
    /// Whether deposits are left beyond the limit.
    more: bool,
}

impl ExchangeRules {
    /// The commit of this row is the decision to pay.
    pub(super) fn prepare(
        &self,
        rows: &mut WorkingSet,
        payment: &Payment,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        if wtid_taken(rows, payment.wtid) {
            return Err(Refusal::WtidTaken);
        }
        assert!(!payment.amount.is_zero(), "nobody wires nothing");
        rows.insert::<Prepared>(
            &WtidKey { wtid: payment.wtid },
            PreparedRow {
                kind: payment.kind,
                account: payment.account,
                request_uid: payment.request_uid,
                amount: payment.amount,
                h_payto: payment.h_payto,
                exchange_base_url: self.config.exchange_base_url.clone(),
                time: now,
                finished: None,
                failed: None,
            },
        );
        Ok(())
    }

    /// The aggregator's time: now, rounded down to its granularity.
    #[must_use]
    pub fn aggregation_time(&self, now: Timestamp) -> Timestamp {
        let shift = self.config.aggregator_shift.as_micros();
        if shift == 0 || now.is_never() {
            return now;
        }
        Timestamp::from_micros(now.as_micros() - now.as_micros() % shift)
    }

    /// Finds the deposits that can be aggregated now.
    fn unit(&self, rows: &WorkingSet, command: &Aggregate, now: Timestamp) -> Result<Unit, Refusal> {
        let (from, _) = command.target.range(command.until);
        let until = command.until.min(now);
        let mut unit = Unit::default();
        for (key, deposit) in rows.range::<Deposits>(Deposits::BY_TARGET, &from) {
            let target = DepositTarget { h_payto: deposit.h_payto, merchant_pub: key.merchant_pub };
            // It was aggregated by an earlier command of the batch, or another command planned it.
            if target != command.target || deposit.wtid.is_some() || deposit.refund_deadline > until {
                continue;
            }
            if unit.deposits.len() >= command.deposits_max {
                unit.more = true;
                break;
            }
            let net = deposit.amount.checked_sub(deposit.refunded).expect("refunds never exceed a deposit");
            unit.contributed = add(unit.contributed, net)?;
            if !net.is_zero() {
                unit.fees = add(unit.fees, self.terms(deposit.denom, 0)?.fee_deposit)?;
            }
            unit.due |= deposit.ready() <= now;
            let row = DepositRow { wtid: Some(command.wtid), ..deposit.clone() };
            unit.deposits.push((key.clone(), row));
        }
        // It does not matter which part of a large unit contains the due deposit: all parts are paid.
        unit.due |= unit.more;
        Ok(unit)
    }

    pub(super) fn aggregate(
        &self,
        rows: &mut WorkingSet,
        command: &Aggregate,
        now: Timestamp,
    ) -> Result<Aggregated, Refusal> {
        assert!(
            (1..=AGGREGATE_DEPOSITS_MAX).contains(&command.deposits_max),
            "1 to {AGGREGATE_DEPOSITS_MAX} deposits a command"
        );
        let unit = self.unit(rows, command, self.aggregation_time(now))?;
        let key = aggregate_key(command);
        let transient = rows.get::<Aggregates>(&key).cloned();
        let wanted = match command.trigger {
            Trigger::Due => unit.due,
            Trigger::Continued => !unit.deposits.is_empty() || transient.is_some(),
        };
        if !wanted {
            return Ok(Aggregated::Nothing);
        }
        if transient.as_ref().is_some_and(|row| row.wtid != command.wtid) {
            return Err(Refusal::TransientOther);
        }
        if transient.is_none() && wtid_taken(rows, command.wtid) {
            return Err(Refusal::WtidTaken);
        }
        check_target(rows, command.target.h_payto, &command.method)?;
        let wire_fee = wire_fees_at(rows, &command.method, now)?.wire_fee;

        let taken = unit.deposits.len();
        for (deposit_key, row) in unit.deposits {
            rows.update::<Deposits>(&deposit_key, row);
        }
        let before = transient.as_ref().map_or(Money::ZERO, |row| row.total);
        // A deposit that was almost completely refunded may owe a larger fee than what is left of it. The
        // others pay the difference, and what even they cannot pay is waived.
        let total = add(before, unit.contributed)?.checked_sub(unit.fees).unwrap_or(Money::ZERO);
        let amount = round_down(total.checked_sub(wire_fee).unwrap_or(Money::ZERO), self.config.round_unit);
        let more = unit.more && !command.complete;
        // KYC is checked last, and only if the transfer could be made.
        let h_payto = command.target.h_payto;
        let checks = if more || amount.is_zero() {
            None
        } else {
            self.missing_kyc(rows, KycOperation::Deposit, h_payto, total, now)
        };
        let kyc_row = match checks {
            None => None,
            Some(checks) => {
                let row = requirement_row(h_payto, &checks);
                // The worker has not stored this requirement yet.
                if command.kyc_hold != Some(row) {
                    return Err(Refusal::KycRequired { h_payto, checks });
                }
                Some(row)
            }
        };
        if more || kyc_row.is_some() || amount.is_zero() {
            let row = AggregateRow { total, wtid: command.wtid, kyc_row };
            rows.put::<Aggregates>(&key, row);
            return Ok(Aggregated::Transient { taken, total, more });
        }
        if transient.is_some() {
            rows.delete::<Aggregates>(&key);
        }
        self.count_kyc(rows, KycOperation::Deposit, h_payto, amount, now);
        self.prepare(
            rows,
            &Payment {
                kind: TransferKind::Aggregate,
                wtid: command.wtid,
                account: command.account,
                request_uid: command.request_uid,
                amount,
                h_payto: command.target.h_payto,
            },
            now,
        )?;
        rows.insert::<WireOut>(
            &WtidKey { wtid: command.wtid },
            WireOutRow {
                time: now,
                h_payto: command.target.h_payto,
                merchant_pub: command.target.merchant_pub,
                account: command.account,
                amount,
                wire_fee,
            },
        );
        Ok(Aggregated::Prepared { taken, amount })
    }

    pub(super) fn execute_drain(
        &self,
        rows: &mut WorkingSet,
        command: &ExecuteDrain,
        now: Timestamp,
    ) -> Result<Drained, Refusal> {
        let key = WtidKey { wtid: command.wtid };
        let order = rows.get::<Drains>(&key).ok_or(Refusal::TransferUnknown)?.clone();
        let amount = order.amount;
        if order.executed {
            return Ok(Drained { amount, repeated: true });
        }
        remember_target(rows, command.h_payto, &order.payto_uri);
        if !amount.is_zero() {
            self.prepare(
                rows,
                &Payment {
                    kind: TransferKind::Drain,
                    wtid: command.wtid,
                    account: command.account,
                    request_uid: command.request_uid,
                    amount,
                    h_payto: command.h_payto,
                },
                now,
            )?;
        }
        rows.update::<Drains>(&key, DrainRow { executed: true, ..order });
        Ok(Drained { amount, repeated: false })
    }
}

fn mark(
    rows: &mut WorkingSet,
    wtid: Wtid,
    change: impl FnOnce(&mut PreparedRow),
) -> Result<TransferMarked, Refusal> {
    let key = WtidKey { wtid };
    let old = rows.get::<Prepared>(&key).ok_or(Refusal::TransferUnknown)?;
    let mut row = old.clone();
    change(&mut row);
    let changed = row != *old;
    if changed {
        rows.update::<Prepared>(&key, row);
    }
    Ok(TransferMarked { changed })
}

pub(super) fn done(
    rows: &mut WorkingSet,
    command: &TransfersDone,
    now: Timestamp,
) -> Result<TransferMarked, Refusal> {
    let mut changed = false;
    for wtid in &command.wtids {
        let marked = mark(rows, *wtid, |row| {
            row.finished.get_or_insert(now);
            row.failed = None;
        })?;
        changed |= marked.changed;
    }
    Ok(TransferMarked { changed })
}

pub(super) fn failed(rows: &mut WorkingSet, command: &TransferFailed) -> Result<TransferMarked, Refusal> {
    mark(rows, command.wtid, |row| {
        // A transfer that the bank accepted can no longer fail.
        if row.finished.is_none() {
            row.failed.get_or_insert_with(|| command.reason.clone());
        }
    })
}

pub(super) fn retry(rows: &mut WorkingSet, command: &TransferRetry) -> Result<TransferMarked, Refusal> {
    mark(rows, command.wtid, |row| row.failed = None)
}
