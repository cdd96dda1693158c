//! A report of the checks, in every form.

use crate::audit::report::{Context, finding, summary};
use crate::audit::{AuditOutcome, Net, Rule, Severity};
use batzen_metrics::Page;
use batzen_protocol::{Duration, Timestamp};
use batzen_store::{Result, Store};
use serde_json::{Value, json};

use crate::link::Forms;
use crate::live::{self, CopyPosition, Hour, TrackedFinding};

/// Time that figures over time go back.
const HOURS_SHOWN: Duration = Duration::from_days(31);

/// The timeline that only an auditor who follows the exchange has.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    /// All findings, also those that were resolved or suppressed.
    pub(crate) findings: Vec<TrackedFinding>,
    /// The sums issued, redeemed and owed over time.
    pub(crate) hours: Vec<Hour>,
    /// The first frame of the exchange's journal that was not checked.
    pub(crate) next: u64,
    /// When all rows were last checked at once.
    pub(crate) checked_all: Option<Timestamp>,
}

impl Timeline {
    /// Reads it.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn read(store: &Store, now: Timestamp) -> Result<Self> {
        Ok(Self {
            findings: live::findings(store)?,
            hours: live::hours(store, now.saturating_sub(HOURS_SHOWN))?,
            next: CopyPosition::of(store)?.unwrap_or_default().next,
            checked_all: live::checked_all(store)?,
        })
    }
}

/// The result of the checks.
#[derive(Debug)]
pub struct Report {
    /// The result of the checks.
    pub outcome: AuditOutcome,
    /// When, and in which currency.
    pub context: Context,
    /// The exchange.
    pub exchange_url: String,
    /// The timeline, if the exchange is followed.
    pub timeline: Option<Timeline>,
}

impl From<&Report> for Forms {
    fn from(report: &Report) -> Self {
        Self { json: report.json(), html: report.html(None), csv: report.csv(), text: report.text() }
    }
}

impl Report {
    /// For people at a terminal.
    pub(crate) fn text(&self) -> String {
        super::text::text(&self.outcome, &self.context)
    }

    /// One page with everything that a controller asks for first: is it right, what is owed, is the money there, which
    /// denominations, what was found. `live` is markup that comes after the verdict.
    pub(crate) fn html(&self, live: Option<&str>) -> String {
        super::page::html(self, live)
    }

    /// All findings and notices as comma-separated values.
    pub(crate) fn csv(&self) -> String {
        super::page::csv(&self.outcome, &self.context)
    }

    /// Writes the metrics of what was found and what is owed.
    pub(crate) fn write_metrics(&self, page: &mut Page) {
        let Self { outcome, timeline, context, .. } = self;
        page.gauge("batzen_audit_rows", "Rows checked since all were checked at once", outcome.rows);
        page.gauge(
            "batzen_audit_signatures",
            "Signatures verified since all rows were checked at once",
            outcome.signatures,
        );
        let stories = timeline.as_ref().map(|timeline| timeline.findings.as_slice()).unwrap_or_default();
        let count = |of: fn(&TrackedFinding) -> bool| {
            let faults = stories.iter().filter(|kept| kept.finding.severity() == Severity::Finding);
            faults.filter(|kept| of(kept)).count()
        };
        let states = [
            ("open", count(TrackedFinding::is_open)),
            ("suppressed", count(|kept| kept.row.resolved.is_none() && kept.row.suppressed.is_some())),
            ("resolved", count(|kept| kept.row.resolved.is_some())),
        ];
        page.gauges("batzen_audit_findings", "Findings: open, suppressed and resolved", "kind", states);
        let bank = outcome.accounts.iter().map(|account| account.bank_in - account.bank_out).sum();
        let sheet = &outcome.sheet;
        let amounts = [
            ("issued", sheet.issued.units),
            ("redeemed", sheet.redeemed.units),
            ("outstanding", sheet.outstanding.units),
            ("liability", sheet.liability().units),
            ("expected_balance", sheet.expected_balance().units),
            ("bank_balance", bank),
            ("difference", sheet.difference().units),
        ];
        page.gauges(
            "batzen_audit_amount",
            "Amounts of the balance sheet, in the currency's unit",
            "sum",
            amounts.map(|(sum, units)| (sum, in_currency(units))),
        );
        page.gauge(
            "batzen_audit_overdue_deposits",
            "Deposits that are due and not paid",
            outcome.overdue.count,
        );
        page.gauge(
            "batzen_audit_compared_timestamp_seconds",
            "When bank and merchants were last asked, in seconds since 1970",
            context.ended.as_micros() / 1_000_000,
        );
        if let Some(checked_all) = timeline.as_ref().and_then(|timeline| timeline.checked_all) {
            page.gauge(
                "batzen_audit_checked_all_timestamp_seconds",
                "When all rows were last checked at once, in seconds since 1970",
                checked_all.as_micros() / 1_000_000,
            );
        }
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        let mut value = summary(&self.outcome, &self.context);
        value["exchange"] = json!(self.exchange_url);
        let currency = self.context.currency;
        let Some(timeline) = &self.timeline else { return value };
        value["next"] = json!(timeline.next);
        value["checked_all"] = json!(timeline.checked_all);
        value["suppressed"] = self.outcome.suppressed.iter().map(|found| finding(found, currency)).collect();
        value["tracked"] = timeline
            .findings
            .iter()
            .filter(|kept| kept.finding.severity() == Severity::Finding)
            .map(|kept| {
                let mut value = finding(&kept.finding, currency);
                let state = match (kept.row.resolved, kept.row.suppressed) {
                    (Some(_), _) => "resolved",
                    (None, Some(_)) => "suppressed",
                    (None, None) => "open",
                };
                value["id"] = json!(kept.id);
                value["state"] = json!(state);
                value["found"] = json!(kept.row.found);
                value["confirmed"] = json!(kept.row.confirmed);
                value["resolved"] = json!(kept.row.resolved);
                value["notes"] = kept
                    .notes
                    .iter()
                    .map(|note| {
                        json!({"time": note.time, "suppresses": note.suppresses, "reason": note.reason})
                    })
                    .collect();
                value
            })
            .collect();
        let net = |units| Net { units, currency: Some(currency) };
        value["hours"] = timeline
            .hours
            .iter()
            .filter(|hour| hour.denom.is_none())
            .map(|hour| {
                json!({
                    "hour": hour.hour,
                    "issued": net(hour.issued),
                    "redeemed": net(hour.redeemed),
                    "liability": net(hour.liability),
                    "expected_balance": net(hour.expected),
                    "bank_balance": hour.bank.map(net),
                })
            })
            .collect();
        value
    }
}

/// Units of 10⁻⁸ as a number of the currency's unit, for a gauge.
#[allow(clippy::cast_precision_loss, reason = "a level to be shown")]
fn in_currency(units: i128) -> f64 {
    units as f64 / 1e8
}

/// A report that a running service has given as JSON, for people at a terminal: the verdict, what is owed, and the
/// findings with their numbers.
#[must_use]
pub fn text_of(report: &Value) -> String {
    use std::fmt::Write as _;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{}: {} rows and {} signatures checked, up to commit {}",
        text(&report["exchange"]),
        report["rows"],
        report["signatures"],
        report["next"].as_u64().unwrap_or_default().saturating_sub(1),
    );
    for (name, member) in
        [("liability", "liability"), ("money that should be at the bank", "expected_balance")]
    {
        let _ = writeln!(out, "{name:34} {:>24}", text(&report[member]));
    }
    for account in report["accounts"].as_array().into_iter().flatten() {
        let name = format!("at the bank, [{}]", text(&account["account"]));
        let _ = writeln!(out, "{name:34} {:>24}", text(&account["balance"]));
    }
    let stories = report["tracked"].as_array().cloned().unwrap_or_default();
    for timeline in &stories {
        let place = match (timeline["table"].as_str(), timeline["row"].as_u64()) {
            (None | Some(""), _) => String::new(),
            (Some(table), None | Some(0)) => format!(" ({table}, {})", text(&timeline["key"])),
            (Some(table), Some(row)) => format!(" (row {row} of {table})"),
        };
        let _ = writeln!(
            out,
            "\n{} ({}) {}: {}{place}, {} at risk, found {}\n    {}",
            text(&timeline["id"]),
            text(&timeline["state"]),
            text(&timeline["check"]),
            text(&timeline["rule"]),
            text(&timeline["at_risk"]),
            text(&timeline["found"]),
            text(&timeline["meaning"]),
        );
        if timeline["exchange"].is_string() {
            let (exchange, auditor) = (text(&timeline["exchange"]), text(&timeline["auditor"]));
            let _ = writeln!(out, "    the exchange says {exchange}, the auditor {auditor}");
        }
        for member in ["detail", "advice"].into_iter().filter(|member| timeline[*member].is_string()) {
            let _ = writeln!(out, "    {}", text(&timeline[member]));
        }
        for note in timeline["notes"].as_array().into_iter().flatten() {
            let what = if note["suppresses"] == json!(true) { "suppressed" } else { "reopened" };
            let _ = writeln!(out, "    {what} {}: {}", text(&note["time"]), text(&note["reason"]));
        }
    }
    let open = stories.iter().filter(|timeline| timeline["state"] == json!("open")).count();
    match open {
        0 => {
            // What was not checked is not right.
            for account in report["accounts_not_checked"].as_array().into_iter().flatten() {
                let _ = writeln!(out, "\nnot checked at the bank: {}", text(account));
            }
            for notice in report["notices"].as_array().into_iter().flatten() {
                if notice["rule"] == json!(Rule::DebitPending.info().name) {
                    let (amount, receiver) = (text(&notice["at_risk"]), text(&notice["detail"]));
                    let _ = writeln!(out, "\npending, unexplained: {amount} to {receiver}");
                }
            }
            out.push_str("\nno open finding\n");
        }
        _ => {
            let _ = writeln!(out, "\n{} open", super::text::counted(open, "finding"));
        }
    }
    out
}
