//! Outgoing money: aggregation of deposits, transfers at the bank, profit.

use batzen_crypto::{HashCode, Wtid};
use batzen_engine::{Command, Plan, WorkingSet};
use batzen_protocol::{Money, Timestamp};
use batzen_tables::exchange::{
    AccountId, AggregateKey, AggregateRow, Aggregates, DepositKey, DepositRow, DepositTarget, Deposits,
    DrainRow, Drains, KycOperation, KycRequirements, PastTransfers, PaytoHash, Prepared, PreparedRow,
    TransferKind, WireFeeRow, WireFees, WireOut, WireOutRow, WireTargetKey, WireTargets, WtidKey,
};

use super::kyc::{LimitedAccount, known_requirement};
use super::reserves::remember_target;
use super::{ExchangeRules, Refusal, add};
use crate::rules::refusal::Result;

/// The maximum number of deposits in one [`Aggregate`], so that payments behind it in the lane do not wait
/// long.
pub(crate) const AGGREGATE_DEPOSITS_MAX: usize = 1_000;

/// The reason for an aggregation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// At least one of the deposits is due. If none is, nothing changes.
    Due,
    /// The next part of an interrupted unit, or a transient aggregate whose KYC hold may have ended.
    Continued,
}

/// Aggregates open deposits of one merchant into one account: those whose refund deadline has passed, oldest
/// deadline first.
#[derive(Debug, Clone)]
pub struct Aggregate {
    /// The merchant and the account.
    pub target: DepositTarget,
    /// The method of the account's payto URI.
    pub method: String,
    /// The exchange's account that pays.
    pub account: AccountId,
    /// Deposits that may still be refunded after this moment are left out.
    pub until: Timestamp,
    /// The maximum number of deposits to aggregate: 1 to `crate::rules::transfers::AGGREGATE_DEPOSITS_MAX`.
    pub deposits_max: usize,
    /// The reason.
    pub trigger: Trigger,
    /// Whether to pay the transfer although more deposits of the unit are left. Otherwise the sum waits for
    /// them.
    pub complete: bool,
    /// The transient aggregate's identifier if there is one (`transient`), otherwise 32 random bytes.
    pub wtid: Wtid,
    /// 64 random bytes: identifies the transfer at the bank.
    pub request_uid: HashCode,
    /// The account, as read before; it only matters if KYC rules limit payouts.
    pub payee: Option<LimitedAccount>,
}

/// The answer to [`Aggregate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aggregated {
    /// Nothing is due.
    Nothing,
    /// The sum waits because it is too small, it is held back, or more deposits follow.
    Transient {
        /// The number of deposits aggregated now.
        taken: usize,
        /// The sum so far, before the wire fee.
        total: Money,
        /// Whether the sum waits for further deposits of the unit.
        more: bool,
    },
    /// A transfer is prepared.
    Prepared {
        /// The number of deposits aggregated now.
        taken: usize,
        /// The wired amount.
        amount: Money,
    },
}

impl Command<ExchangeRules> for Aggregate {
    type Answer = Aggregated;
    const IS_BACKGROUND: bool = true;

    fn owner(&self) -> Option<&[u8]> {
        Some(self.target.h_payto.as_bytes())
    }

    fn plan(&self, rules: &ExchangeRules, plan: &mut Plan) {
        if let Some(payee) = &self.payee
            && rules.config.kyc.limits(KycOperation::Deposit)
        {
            rules.plan_kyc(KycOperation::Deposit, payee, plan);
            plan.group::<KycRequirements>(KycRequirements::BY_ACCOUNT, &payee.h_payto());
        }
        plan.row::<WireTargets>(WireTargetKey { h_payto: self.target.h_payto });
        plan.group::<WireFees>(WireFees::BY_METHOD, &self.method);
        plan.row::<Aggregates>(aggregate_key(self));
        plan_wtid(self.wtid, plan);
        let (from, to) = self.target.range(self.until);
        // One more than needed shows whether more are left.
        plan.range::<Deposits>(Deposits::BY_TARGET, from, to, self.deposits_max + 1);
    }

    fn execute(&self, rules: &ExchangeRules, rows: &mut WorkingSet, now: Timestamp) -> Result<Aggregated> {
        assert!(
            (1..=AGGREGATE_DEPOSITS_MAX).contains(&self.deposits_max),
            "1 to {AGGREGATE_DEPOSITS_MAX} deposits a command"
        );
        let unit = rules.unit(rows, self, rules.aggregation_time(now))?;
        let key = aggregate_key(self);
        let transient = rows.get::<Aggregates>(&key).cloned();
        let wanted = match self.trigger {
            Trigger::Due => unit.due,
            Trigger::Continued => !unit.deposits.is_empty() || transient.is_some(),
        };
        if !wanted {
            return Ok(Aggregated::Nothing);
        }
        if transient.as_ref().is_some_and(|row| row.wtid != self.wtid) {
            return Err(Refusal::TransientOther);
        }
        if transient.is_none() && wtid_taken(rows, self.wtid) {
            return Err(Refusal::WtidTaken);
        }
        check_target(rows, self.target.h_payto, &self.method)?;
        let wire_fee = wire_fees_at(rows, &self.method, now)?.wire_fee;

        let taken = unit.deposits.len();
        for (deposit_key, row) in unit.deposits {
            rows.update::<Deposits>(&deposit_key, row);
        }
        let before = transient.as_ref().map_or(Money::ZERO, |row| row.total);
        // A deposit that was almost completely refunded may owe a larger fee than what is left of it. The
        // others pay the difference, and what even they cannot pay is waived.
        let total = add(before, unit.contributed)?.checked_sub(unit.fees).unwrap_or(Money::ZERO);
        let amount = round_down(total.checked_sub(wire_fee).unwrap_or(Money::ZERO), rules.config.round_unit);
        let more = unit.more && !self.complete;
        // KYC is checked last, and only if the transfer could be made.
        let h_payto = self.target.h_payto;
        let payee = self.limited(rules)?.filter(|_| !more && !amount.is_zero());
        let checks =
            payee.and_then(|payee| rules.missing_kyc(rows, KycOperation::Deposit, &payee, total, now));
        let kyc_row = match checks {
            None => None,
            Some(checks) => match known_requirement(rows, h_payto, &checks) {
                None => return Err(Refusal::KycRequired { h_payto, checks }),
                known => known,
            },
        };
        if more || kyc_row.is_some() || amount.is_zero() {
            let row = AggregateRow { total, wtid: self.wtid, kyc_row };
            rows.put::<Aggregates>(&key, row);
            return Ok(Aggregated::Transient { taken, total, more });
        }
        if transient.is_some() {
            rows.delete::<Aggregates>(&key);
        }
        if let Some(payee) = payee {
            rules.count_kyc(rows, KycOperation::Deposit, &payee, amount, now);
        }
        rules.prepare(
            rows,
            &Payment {
                kind: TransferKind::Aggregate,
                wtid: self.wtid,
                account: self.account,
                request_uid: self.request_uid,
                amount,
                h_payto: self.target.h_payto,
            },
            now,
        )?;
        rows.insert::<WireOut>(
            &WtidKey { wtid: self.wtid },
            WireOutRow {
                time: now,
                h_payto: self.target.h_payto,
                merchant_pub: self.target.merchant_pub,
                account: self.account,
                amount,
                wire_fee,
            },
        );
        Ok(Aggregated::Prepared { taken, amount })
    }
}

impl Aggregate {
    /// The account, if payouts are limited.
    fn limited(&self, rules: &ExchangeRules) -> Result<Option<LimitedAccount>> {
        if !rules.config.kyc.limits(KycOperation::Deposit) {
            return Ok(None);
        }
        let named = self.payee.filter(|payee| payee.h_payto() == self.target.h_payto);
        named.map(Some).ok_or(Refusal::TargetMismatch)
    }
}

/// Marks transfers as accepted by the bank: all or none.
#[derive(Debug, Clone)]
pub struct TransfersDone {
    /// Their identifiers.
    pub wtids: Vec<Wtid>,
}

/// Marks a transfer as failed. It is not retried until an operator orders it.
#[derive(Debug, Clone)]
pub struct TransferFailed {
    /// Its identifier.
    pub wtid: Wtid,
    /// The reason, for the operator.
    pub reason: String,
}

/// Puts a failed transfer back into the queue.
#[derive(Debug, Clone, Copy)]
pub struct TransferRetry {
    /// Its identifier.
    pub wtid: Wtid,
}

/// The state of transfers was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferMarked {
    /// Whether any changed.
    pub changed: bool,
}

impl Command<ExchangeRules> for TransfersDone {
    type Answer = TransferMarked;
    const IS_BACKGROUND: bool = true;

    fn plan(&self, _: &ExchangeRules, plan: &mut Plan) {
        self.wtids.iter().for_each(|wtid| plan_transfer(*wtid, plan));
    }

    fn execute(&self, _: &ExchangeRules, rows: &mut WorkingSet, now: Timestamp) -> Result<TransferMarked> {
        let mut changed = false;
        for wtid in &self.wtids {
            let marked = mark(rows, *wtid, |row| {
                row.finished.get_or_insert(now);
                row.failed = None;
            })?;
            changed |= marked.changed;
        }
        Ok(TransferMarked { changed })
    }
}

impl Command<ExchangeRules> for TransferFailed {
    type Answer = TransferMarked;
    const IS_BACKGROUND: bool = true;

    fn plan(&self, _: &ExchangeRules, plan: &mut Plan) {
        plan_transfer(self.wtid, plan);
    }

    fn execute(&self, _: &ExchangeRules, rows: &mut WorkingSet, _: Timestamp) -> Result<TransferMarked> {
        mark(rows, self.wtid, |row| {
            // A transfer that the bank accepted can no longer fail.
            if row.finished.is_none() {
                row.failed.get_or_insert_with(|| self.reason.clone());
            }
        })
    }
}

impl Command<ExchangeRules> for TransferRetry {
    type Answer = TransferMarked;

    fn plan(&self, _: &ExchangeRules, plan: &mut Plan) {
        plan_transfer(self.wtid, plan);
    }

    fn execute(&self, _: &ExchangeRules, rows: &mut WorkingSet, _: Timestamp) -> Result<TransferMarked> {
        mark(rows, self.wtid, |row| row.failed = None)
    }
}

/// Prepares the transfer of an order to pay out profit. The order's signature has been verified.
#[derive(Debug, Clone)]
pub struct ExecuteDrain {
    /// The order's identifier.
    pub wtid: Wtid,
    /// Hash of its receiver's payto URI.
    pub h_payto: PaytoHash,
    /// The exchange's account that pays.
    pub account: AccountId,
    /// 64 random bytes: identifies the transfer at the bank.
    pub request_uid: HashCode,
}

/// The answer to [`ExecuteDrain`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// The paid amount.
    pub(crate) amount: Money,
    /// Whether it had been executed before.
    pub repeated: bool,
}

impl Command<ExchangeRules> for ExecuteDrain {
    type Answer = Drained;

    fn plan(&self, _: &ExchangeRules, plan: &mut Plan) {
        plan.row::<Drains>(WtidKey { wtid: self.wtid });
        plan_wtid(self.wtid, plan);
        plan.row::<WireTargets>(WireTargetKey { h_payto: self.h_payto });
    }

    fn execute(&self, rules: &ExchangeRules, rows: &mut WorkingSet, now: Timestamp) -> Result<Drained> {
        let key = WtidKey { wtid: self.wtid };
        let order = rows.get::<Drains>(&key).ok_or(Refusal::TransferUnknown)?.clone();
        let amount = order.amount;
        if order.executed {
            return Ok(Drained { amount, repeated: true });
        }
        remember_target(rows, self.h_payto, &order.payto_uri);
        if !amount.is_zero() {
            rules.prepare(
                rows,
                &Payment {
                    kind: TransferKind::Drain,
                    wtid: self.wtid,
                    account: self.account,
                    request_uid: self.request_uid,
                    amount,
                    h_payto: self.h_payto,
                },
                now,
            )?;
        }
        rows.update::<Drains>(&key, DrainRow { executed: true, ..order });
        Ok(Drained { amount, repeated: false })
    }
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

fn aggregate_key(command: &Aggregate) -> AggregateKey {
    let target = command.target;
    AggregateKey { h_payto: target.h_payto, merchant_pub: target.merchant_pub, account: command.account }
}

/// The method of a payto URI: the part between `payto://` and the next `/`.
#[must_use]
pub(crate) fn payto_method(payto_uri: &str) -> Option<&str> {
    let (scheme, rest) = payto_uri.split_at_checked(8)?;
    if !scheme.eq_ignore_ascii_case("payto://") {
        return None;
    }
    rest.split(['/', '?']).next().filter(|method| !method.is_empty())
}

/// The largest multiple of `unit` that does not exceed `amount`. A unit of zero changes nothing.
#[must_use]
pub(crate) fn round_down(amount: Money, unit: Money) -> Money {
    if unit.is_zero() {
        return amount;
    }
    let units = amount.units() - amount.units() % unit.units();
    Money::from_units(units).expect("not above the amount")
}

/// Checks that the account is known and has this method.
pub(super) fn check_target(rows: &WorkingSet, h_payto: PaytoHash, method: &str) -> Result<()> {
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
) -> Result<&'a WireFeeRow> {
    rows.group::<WireFees>(WireFees::BY_METHOD, &method.to_owned())
        .into_iter()
        .find(|(key, row)| key.start <= time && time < row.end)
        .map(|(_, row)| row)
        .ok_or(Refusal::WireFeeMissing)
}

/// Returns whether a transfer has this identifier, or had it.
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
    pub(super) fn prepare(&self, rows: &mut WorkingSet, payment: &Payment, now: Timestamp) -> Result<()> {
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
    fn unit(&self, rows: &WorkingSet, command: &Aggregate, now: Timestamp) -> Result<Unit> {
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
}

fn mark(rows: &mut WorkingSet, wtid: Wtid, change: impl FnOnce(&mut PreparedRow)) -> Result<TransferMarked> {
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
