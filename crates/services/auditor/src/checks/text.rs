//! Results for people at a terminal.

use std::fmt::Write as _;

use crate::audit::report::Context;
use crate::audit::{AccountResult, AuditOutcome, Finding, Net, Rule, Severity, Verdict};

/// Number of findings that a text lists in full.
const LISTED_MAX: usize = 50;

fn net(units: i128, context: &Context) -> Net {
    Net { units, currency: Some(context.currency) }
}

/// The balance of an account by the bank's history, if both its parts were read.
pub(super) fn bank_balance(account: &AccountResult, context: &Context) -> String {
    match account.is_read {
        [true, true] => net(account.bank_in - account.bank_out, context).to_string(),
        _ => "not checked".to_owned(),
    }
}

/// The verdict of an audit that found nothing wrong.
pub(super) fn without_faults(outcome: &AuditOutcome, context: &Context) -> String {
    match outcome.verdict() {
        Verdict::Right => "no finding: the books are right".to_owned(),
        Verdict::BankUnread => {
            "no finding in the rows, but the bank was not checked: name its accounts in the configuration, and \
             leave out --no-bank"
                .to_owned()
        }
        Verdict::Pending { count, units } => {
            let units = net(i128::try_from(units).unwrap_or(i128::MAX), context);
            let transfers = counted(count, "transfer");
            format!("no finding yet, but {transfers} of {units} left the bank, and nothing explains them: audit again in 15 minutes")
        }
        Verdict::Wrong => "something is wrong".to_owned(),
    }
}

/// The row of a finding, if it is about one.
fn place(finding: &Finding) -> String {
    match (finding.row.table, finding.row.serial) {
        ("", _) => String::new(),
        (table, 0) => format!(" ({table}, {})", finding.row.key),
        (table, serial) => format!(" (row {serial} of {table})"),
    }
}

/// A number with its noun.
pub(super) fn counted(count: usize, noun: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{ending}")
}

/// The result of an audit: the balance sheet, then what was found.
pub(super) fn text(outcome: &AuditOutcome, context: &Context) -> String {
    let mut out = String::new();
    let sheet = &outcome.sheet;
    let seconds = outcome.elapsed.as_secs_f64().max(0.001);
    let _ = writeln!(
        out,
        "{} rows and {} signatures checked in {seconds:.1} s",
        outcome.rows, outcome.signatures
    );
    let _ = writeln!(out);
    for (name, amount) in [
        ("wired in", sheet.wired_in),
        ("wired out", sheet.wired_out),
        ("reserves", sheet.reserves),
        ("coins issued", sheet.issued),
        ("coins redeemed", sheet.redeemed),
        ("coins outstanding", sheet.outstanding),
        ("deposits not aggregated", sheet.deposits),
        ("aggregates not paid", sheet.transient),
        ("transfers not executed", sheet.in_flight),
        ("open purses", sheet.purses),
        ("melts not revealed", sheet.unrevealed_melts),
        ("liability", sheet.liability()),
        ("fees earned", sheet.fees),
        ("money that should be at the bank", sheet.expected_balance()),
    ] {
        let _ = writeln!(out, "{name:34} {:>24}", amount.to_string());
    }
    for account in &outcome.accounts {
        let balance = bank_balance(account, context);
        let _ = writeln!(out, "{:34} {balance:>24}", format!("at the bank, [{}]", account.section));
    }
    for payto_uri in &outcome.unread {
        let _ = writeln!(out, "{:34} {:>24}", "at the bank", format!("not checked: {payto_uri}"));
    }
    let _ = writeln!(out);
    if outcome.overdue.count > 0 {
        let units = i128::try_from(outcome.overdue.units).unwrap_or(i128::MAX);
        let (count, sum) = (outcome.overdue.count, net(units, context));
        let _ = writeln!(out, "{count} deposits of {sum} are due and not paid: is the aggregator running?");
    }
    let notices = outcome.findings.iter().filter(|finding| finding.severity() == Severity::Notice).count();
    if notices > 0 {
        let _ = writeln!(out, "{}: see --json", counted(notices, "notice"));
    }
    if !outcome.suppressed.is_empty() {
        let _ = writeln!(out, "{} suppressed", counted(outcome.suppressed.len(), "finding"));
    }
    let faults: Vec<&Finding> = outcome.faults().collect();
    let pending = outcome.findings.iter().filter(|finding| finding.rule == Rule::DebitPending);
    for finding in pending.take(LISTED_MAX) {
        let units = net(finding.exchange, context);
        let _ = writeln!(
            out,
            "pending, unexplained: {units} to {} (row {} at the bank)",
            finding.detail, finding.row.key
        );
    }
    if faults.is_empty() {
        let _ = writeln!(out, "{}", without_faults(outcome, context));
        return out;
    }
    for finding in faults.iter().take(LISTED_MAX) {
        let info = finding.rule.info();
        let risk = i128::try_from(finding.at_risk).unwrap_or(i128::MAX);
        let _ = writeln!(
            out,
            "{}: {}{}, {} at risk",
            info.check.name(),
            info.name,
            place(finding),
            net(risk, context)
        );
        let _ = writeln!(out, "    {}", info.meaning);
        if finding.exchange != finding.auditor {
            let (exchange, auditor) = (net(finding.exchange, context), net(finding.auditor, context));
            let _ = writeln!(out, "    the exchange says {exchange}, the auditor {auditor}");
        }
        if !finding.detail.is_empty() {
            let _ = writeln!(out, "    {}", finding.detail);
        }
        let _ = writeln!(out, "    {}", info.advice);
    }
    if faults.len() > LISTED_MAX {
        let _ = writeln!(out, "and {} more: see --json", faults.len() - LISTED_MAX);
    }
    let _ = writeln!(out, "{}", counted(faults.len(), "finding"));
    out
}
