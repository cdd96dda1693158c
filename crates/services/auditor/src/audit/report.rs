//! Reports: one for people and programs of ours, and the six objects of the protocol, which known scripts read.

use batzen_protocol::{Currency, Timestamp};
use serde_json::{Map, Value, json};

use crate::audit::finding::{Check, Finding, List, Rule, Severity};
use crate::audit::run::AuditOutcome;
use crate::audit::sheet::Net;

/// When a report was made, and for which exchange.
#[derive(Debug, Clone)]
pub struct Context {
    /// The currency.
    pub currency: Currency,
    /// When the audit began.
    pub started: Timestamp,
    /// When it ended.
    pub ended: Timestamp,
    /// Whether stored balances were checked, too.
    pub internal: bool,
    /// Overdue deposits below this amount, in units of 10⁻⁸, are only counted.
    pub tiny: u128,
}

/// An amount as the protocol writes it.
fn amount(currency: Currency, units: u128) -> Value {
    Value::String(
        Net { units: i128::try_from(units).unwrap_or(i128::MAX), currency: Some(currency) }.to_string(),
    )
}

fn signed(currency: Currency, units: i128) -> Value {
    amount(currency, units.max(0).unsigned_abs())
}

/// A time for people.
fn date(time: Timestamp) -> Value {
    Value::String(time.to_string())
}

/// A finding as our own reports show it.
#[must_use]
pub(crate) fn finding(finding: &Finding, currency: Currency) -> Value {
    let info = finding.rule.info();
    let net = |units| Net { units, currency: Some(currency) }.to_string();
    let mut value = json!({
        "check": info.check.name(),
        "rule": info.name,
        "severity": info.severity,
        "table": finding.row.table,
        "row": finding.row.serial,
        "key": finding.row.key,
        "at_risk": amount(currency, finding.at_risk),
        "meaning": info.meaning,
        "advice": info.advice,
    });
    if finding.exchange != finding.auditor {
        value["exchange"] = json!(net(finding.exchange));
        value["auditor"] = json!(net(finding.auditor));
    }
    if !finding.subject.is_empty() {
        value["subject"] = json!(finding.subject);
    }
    if !finding.detail.is_empty() {
        value["detail"] = json!(finding.detail);
    }
    value
}

/// A whole audit as our own reports show it.
#[must_use]
pub(crate) fn summary(outcome: &AuditOutcome, context: &Context) -> Value {
    let currency = context.currency;
    let net = |units| Net { units, currency: Some(currency) };
    let denoms: Vec<Value> = outcome
        .denoms
        .iter()
        .map(|result| {
            let (row, tally) = (&result.denom.row, &result.tally);
            let value = i128::try_from(row.value.units()).unwrap_or(i128::MAX);
            let issued = i128::from(tally.issued()) * value;
            json!({
                "h_denom_pub": row.h_denom_pub,
                "value": row.value.of(currency),
                "start": row.start,
                "expire_withdraw": row.expire_withdraw,
                "expire_deposit": row.expire_deposit,
                "revoked": result.denom.revoked,
                "coins_withdrawn": tally.withdrawn,
                "coins_refreshed": tally.refreshed,
                "coins_known": tally.known,
                "issued": net(issued),
                "redeemed": net(tally.redeemed),
                "outstanding": net(issued - tally.redeemed),
                "recouped": net(tally.recouped),
            })
        })
        .collect();
    let findings: Vec<Value> = outcome.faults().map(|found| finding(found, currency)).collect();
    let notices: Vec<Value> = outcome
        .findings
        .iter()
        .filter(|found| found.severity() == Severity::Notice)
        .map(|found| finding(found, currency))
        .collect();
    let accounts: Vec<Value> = outcome
        .accounts
        .iter()
        .map(|account| {
            json!({
                "account": account.section,
                "bank_in": net(account.bank_in),
                "bank_out": net(account.bank_out),
                "balance": net(account.bank_in - account.bank_out),
                "drained": net(account.drained),
            })
        })
        .collect();
    let seconds = outcome.elapsed.as_secs_f64();
    json!({
        "ok": findings.is_empty(),
        "verdict": outcome.verdict().name(),
        "accounts_not_checked": outcome.unread,
        "started": context.started,
        "ended": context.ended,
        "rows": outcome.rows,
        "signatures": outcome.signatures,
        "seconds": seconds,
        "findings": findings,
        "notices": notices,
        "sheet": outcome.sheet,
        "liability": outcome.sheet.liability(),
        "expected_balance": outcome.sheet.expected_balance(),
        "difference": outcome.sheet.difference(),
        "accounts": accounts,
        "denominations": denoms,
        "purses_open": outcome.purses_open,
        "overdue": {
            "deposits": outcome.overdue.count,
            "amount": amount(currency, outcome.overdue.units),
        },
    })
}

/// The sums that entries of a list add to: for a larger figure of the exchange, for a larger one of the auditor, and of
/// all amounts.
#[derive(Default)]
struct Sums {
    plus: u128,
    minus: u128,
    total: u128,
}

struct Protocol<'a> {
    outcome: &'a AuditOutcome,
    context: &'a Context,
    check: Check,
    object: Map<String, Value>,
}

/// The name of the member that has the key of a missing signature.
fn key_member(rule: Rule) -> &'static str {
    match rule {
        Rule::OpenSignature | Rule::CloseSignature => "reserve_pub",
        _ if matches!(rule.info().check, Check::Coins | Check::Aggregation) => "coin_pub",
        _ => "key_pub",
    }
}

fn diagnostic(finding: &Finding) -> String {
    if finding.detail.is_empty() { finding.rule.info().meaning.to_owned() } else { finding.detail.clone() }
}

impl Protocol<'_> {
    fn currency(&self) -> Currency {
        self.context.currency
    }

    fn of_list(&self, list: List) -> impl Iterator<Item = &Finding> {
        let check = self.check;
        self.outcome
            .findings
            .iter()
            .filter(move |finding| finding.rule.info().list == list && finding.rule.info().check == check)
    }

    /// Adds a list under its name.
    fn list(&mut self, list: List) -> Sums {
        let mut sums = Sums::default();
        let mut entries = Vec::new();
        for finding in self.of_list(list) {
            entries.push(self.entry(list, finding));
            sums.total += finding.at_risk;
            let difference = finding.exchange.abs_diff(finding.auditor);
            match list {
                // Signs say who gains.
                List::AmountArithmeticInconsistencies | List::CoinInconsistencies => {
                    match finding.profitable() {
                        1 => sums.plus += difference,
                        -1 => sums.minus += difference,
                        _ => {}
                    }
                }
                _ if finding.exchange > finding.auditor => sums.plus += difference,
                _ => sums.minus += difference,
            }
        }
        let name = serde_json::to_value(list).expect("a name");
        self.object.insert(name.as_str().expect("a name").to_owned(), Value::Array(entries));
        sums
    }

    fn put(&mut self, name: &str, value: Value) {
        self.object.insert(name.to_owned(), value);
    }

    fn total(&mut self, name: &str, units: u128) {
        let value = amount(self.currency(), units);
        self.put(name, value);
    }

    fn net(&mut self, name: &str, units: i128) {
        let value = signed(self.currency(), units);
        self.put(name, value);
    }

    fn entry(&self, list: List, found: &Finding) -> Value {
        let currency = self.currency();
        let (info, row) = (found.rule.info(), found.row.serial);
        let (exchange, auditor) = (signed(currency, found.exchange), signed(currency, found.auditor));
        let at_risk = amount(currency, found.at_risk);
        let profitable = found.profitable();
        let time = date(self.context.started);
        match list {
            List::RowInconsistencies => {
                // What the protocol calls these records.
                let table = match found.rule {
                    Rule::WireFeeSignature | Rule::WireFeeMissing => "wire-fee",
                    Rule::CoinPaid => "deposit",
                    Rule::RevocationSignature => "denomination revocations",
                    _ => found.row.table,
                };
                json!({ "table": table, "row": row, "diagnostic": diagnostic(found) })
            }
            List::AmountArithmeticInconsistencies => json!({
                "operation": info.operation, "rowid": row, "exchange": exchange, "auditor": auditor,
                "profitable": profitable,
            }),
            List::BadSigLosses => {
                let mut entry = json!({ "operation": info.operation, "row": row, "loss": at_risk });
                entry[key_member(found.rule)] = json!(found.subject);
                if found.rule == Rule::RecoupNotRevoked {
                    entry["hint"] = json!("denomination not revoked");
                }
                entry
            }
            List::CoinInconsistencies => json!({
                "operation": info.operation, "coin_pub": found.subject, "exchange": exchange, "auditor": auditor,
                "profitable": profitable,
            }),
            List::WireOutInconsistencies => json!({
                "destination_account": found.detail, "rowid": row, "expected": auditor, "claimed": exchange,
            }),
            List::WireFeeTimeInconsistencies => {
                json!({ "type": found.row.key, "diagnostic": diagnostic(found), "time": time })
            }
            List::RefreshHanging => json!({ "row": row, "amount": at_risk, "coin_pub": found.subject }),
            List::UnsignedDenominations => json!({ "denomination": found.row.key }),
            List::Emergencies | List::EmergenciesByCount => self.emergency(list, found),
            List::DepositConfirmationInconsistencies => json!({
                "timestamp": found.detail, "amount": at_risk, "rowid": row, "account": found.subject,
            }),
            List::PurseNotClosedInconsistencies => {
                json!({ "purse_pub": found.subject, "balance": at_risk, "expired": found.detail })
            }
            List::ReserveBalanceSummaryWrongInconsistencies => {
                json!({ "reserve_pub": found.subject, "exchange": exchange, "auditor": auditor })
            }
            List::ReserveBalanceInsufficientInconsistencies => {
                let member = if found.rule == Rule::ReserveMissing { "gain" } else { "loss" };
                let mut entry = json!({ "reserve_pub": found.subject });
                entry[member] = at_risk;
                entry
            }
            List::ReserveNotClosedInconsistencies => json!({
                "reserve_pub": found.subject, "balance": at_risk, "expiration_time": found.detail,
            }),
            List::DenominationKeyValidityWithdrawInconsistencies => json!({
                "row": row, "execution_date": found.detail, "reserve_pub": found.row.key,
                "denompub_h": found.subject,
            }),
            List::WireOutAmountInconsistencies => json!({
                "row": row, "amount_wired": exchange, "amount_justified": auditor, "wtid": found.subject,
                "timestamp": time, "diagnostic": info.meaning, "target": found.detail,
            }),
            List::ReserveInAmountInconsistencies => json!({
                "row": row, "amount_exchange_expected": exchange, "amount_wired": auditor,
                "reserve_pub": found.subject, "timestamp": time, "diagnostic": info.meaning,
            }),
            List::MisattributionInInconsistencies => {
                json!({ "amount": at_risk, "row": row, "reserve_pub": found.subject })
            }
            List::RowMinorInconsistencies => {
                json!({ "table": found.row.table, "row": row, "diagnostic": info.meaning })
            }
            List::WireFormatInconsistencies => {
                json!({ "amount": at_risk, "wire_offset": found.row.key, "diagnostic": diagnostic(found) })
            }
            List::LagDetails | List::ReserveLagDetails => {
                json!({ "row": row, "amount": at_risk, "deadline": time, "wtid": found.subject,
                        "account": found.detail })
            }
        }
    }

    fn emergency(&self, list: List, found: &Finding) -> Value {
        let currency = self.currency();
        let serial = u32::try_from(found.row.serial).unwrap_or(u32::MAX);
        let Some(result) = self.outcome.denoms.iter().find(|denom| denom.serial.0 == serial) else {
            return json!({ "denompub_hash": found.row.key });
        };
        let (row, tally) = (&result.denom.row, &result.tally);
        let value = row.value.of(currency);
        let risk = i128::from(tally.issued()) * i128::try_from(row.value.units()).unwrap_or(i128::MAX);
        let mut entry = json!({
            "denompub_hash": found.row.key, "denom_risk": signed(currency, risk), "start": date(row.start),
            "deposit_end": date(row.expire_deposit), "value": value,
        });
        if list == List::Emergencies {
            entry["denom_loss"] = amount(currency, found.at_risk);
        } else {
            entry["num_issued"] = json!(tally.issued());
            entry["num_known"] = json!(tally.known);
        }
        entry
    }

    fn bad_signatures(&mut self) -> u128 {
        self.list(List::BadSigLosses).total
    }

    fn arithmetic(&mut self) {
        let sums = self.list(List::AmountArithmeticInconsistencies);
        self.total("total_arithmetic_delta_plus", sums.plus);
        self.total("total_arithmetic_delta_minus", sums.minus);
    }

    fn times(&mut self, prefix: &str) {
        self.put(&format!("{prefix}auditor_start_time"), date(self.context.started));
        self.put(&format!("{prefix}auditor_end_time"), date(self.context.ended));
    }
}

/// The report object of one of the protocol's six checks (auditor chapters 2.5, 3.8, 4, 5.3, 6.4 and 7.7).
///
/// `None` for checks that the protocol does not have.
#[must_use]
pub fn protocol(check: Check, outcome: &AuditOutcome, context: &Context) -> Option<Value> {
    let mut report = Protocol { outcome, context, check, object: Map::new() };
    let sheet = &outcome.sheet;
    match check {
        Check::Aggregation => {
            let sums = report.list(List::WireOutInconsistencies);
            report.total("total_wire_out_delta_plus", sums.plus);
            report.total("total_wire_out_delta_minus", sums.minus);
            let loss = report.bad_signatures();
            report.total("total_bad_sig_loss", loss);
            report.list(List::RowInconsistencies);
            let sums = report.list(List::CoinInconsistencies);
            report.total("total_coin_delta_plus", sums.plus);
            report.total("total_coin_delta_minus", sums.minus);
            report.arithmetic();
            report.net("total_aggregation_fee_income", outcome.income.aggregation);
            report.list(List::WireFeeTimeInconsistencies);
            report.times("");
        }
        Check::Coins => {
            report.net("total_escrow_balance", sheet.outstanding.units);
            report.net("total_deposit_fee_income", outcome.income.deposit);
            report.net("total_melt_fee_income", outcome.income.melt);
            report.net("total_refund_fee_income", outcome.income.refund);
            report.net("total_purse_fee_income", outcome.income.purse);
            report.net("total_open_deposit_fee_income", 0);
            report.net("total_active_risk", sheet.outstanding.units);
            let recouped = outcome.denoms.iter().map(|denom| denom.tally.recouped).sum();
            report.net("total_recoup_loss", recouped);
            let sums = report.list(List::Emergencies);
            report.total("emergencies_risk_by_amount", sums.total);
            report.total("emergencies_loss", sums.total);
            let sums = report.list(List::EmergenciesByCount);
            report.total("emergencies_risk_by_count", sums.total);
            report.total("emergencies_loss_by_count", sums.total);
            report.list(List::RowInconsistencies);
            report.arithmetic();
            let loss = report.bad_signatures();
            report.total("irregular_loss", loss);
            let sums = report.list(List::RefreshHanging);
            report.total("total_refresh_hanging", sums.total);
            report.list(List::UnsignedDenominations);
            report.times("");
        }
        Check::Deposits => {
            let sums = report.list(List::DepositConfirmationInconsistencies);
            let count = report.of_list(List::DepositConfirmationInconsistencies).count();
            report.put("missing_deposit_confirmation_count", json!(count));
            report.total("missing_deposit_confirmation_total", sums.total);
            report.times("");
        }
        Check::Purses => {
            let sums = report.list(List::PurseNotClosedInconsistencies);
            report.total("total_delayed_purse_decisions", sums.total);
            let missing = report.of_list(List::AmountArithmeticInconsistencies);
            let missing: u128 = missing
                .filter(|found| found.rule == Rule::PurseInsufficient)
                .map(|found| found.at_risk)
                .sum();
            report.total("total_balance_insufficient", missing);
            report.put("purse_balance_insufficient_inconsistencies", json!([]));
            report.total("total_balance_purse_not_closed", sums.total);
            let loss = report.bad_signatures();
            report.total("total_bad_sig_loss", loss);
            report.list(List::RowInconsistencies);
            report.arithmetic();
            report.net("total_purse_balance", sheet.purses.units);
            report.put("total_purse_count", json!(outcome.purses_open));
            report.times("");
        }
        Check::Reserves => {
            report.net("total_escrow_balance", sheet.reserves.units);
            report.net("total_withdraw_fee_income", outcome.income.withdraw);
            report.net("total_close_fee_income", outcome.income.closing);
            report.net("total_purse_fee_income", outcome.income.purse);
            report.net("total_open_fee_income", outcome.income.open);
            report.net("total_history_fee_income", outcome.income.history);
            // Here a larger figure of the auditor counts as a plus.
            let sums = report.list(List::ReserveBalanceSummaryWrongInconsistencies);
            report.total("total_balance_summary_delta_plus", sums.minus);
            report.total("total_balance_summary_delta_minus", sums.plus);
            let sums = report.list(List::ReserveBalanceInsufficientInconsistencies);
            report.total("total_irregular_loss", sums.total);
            report.put("purse_balance_insufficient_inconsistencies", json!([]));
            let sums = report.list(List::ReserveNotClosedInconsistencies);
            report.total("total_balance_reserve_not_closed", sums.total);
            let loss = report.bad_signatures();
            report.total("total_bad_sig_loss", loss);
            report.list(List::RowInconsistencies);
            report.list(List::DenominationKeyValidityWithdrawInconsistencies);
            report.arithmetic();
            report.times("");
        }
        Check::Wire => report.wire(),
        Check::Keys | Check::Books => return None,
    }
    Some(Value::Object(report.object))
}

impl Protocol<'_> {
    fn wire(&mut self) {
        let sums = self.list(List::WireOutAmountInconsistencies);
        self.total("total_wire_out_delta_plus", sums.plus);
        self.total("total_wire_out_delta_minus", sums.minus);
        // The bank's figure is the auditor's.
        let sums = self.list(List::ReserveInAmountInconsistencies);
        self.total("total_wire_in_delta_plus", sums.minus);
        self.total("total_wire_in_delta_minus", sums.plus);
        let sums = self.list(List::MisattributionInInconsistencies);
        self.total("total_misattribution_in", sums.total);
        self.list(List::RowInconsistencies);
        self.list(List::RowMinorInconsistencies);
        let sums = self.list(List::WireFormatInconsistencies);
        self.total("total_wire_format_amount", sums.total);
        let (sheet, overdue) = (&self.outcome.sheet, &self.outcome.overdue);
        let (wired_in, wired_out) = (sheet.wired_in.units, sheet.wired_out.units);
        let (drained, balance) = (sheet.drained.units, sheet.expected_balance().units);
        let currency = self.currency();
        let details: Vec<Value> = overdue
            .deposits
            .iter()
            .filter(|deposit| deposit.amount >= self.context.tiny)
            .map(|deposit| {
                json!({
                    "row": deposit.row.serial, "amount": amount(currency, deposit.amount),
                    "deadline": date(deposit.deadline), "coin_pub": deposit.coin_pub, "account": deposit.account,
                })
            })
            .collect();
        let lag = overdue.units;
        self.net("total_wire_in", wired_in);
        self.net("total_wire_out", wired_out);
        self.net("total_drained", drained);
        self.net("final_balance", balance);
        self.total("total_amount_lag", lag);
        self.put("lag_details", Value::Array(details));
        let sums = self.list(List::ReserveLagDetails);
        self.total("total_closure_amount_lag", sums.total);
        let progress: Vec<Value> = self
            .outcome
            .accounts
            .iter()
            .map(|account| {
                json!({
                    "account": account.section, "start_reserve_in": 0, "end_reserve_in": account.last_rows[0],
                    "start_wire_out": 0, "end_wire_out": account.last_rows[1],
                })
            })
            .collect();
        self.put("account_progress", Value::Array(progress));
        self.times("wire_");
    }
}
