//! Results as a page that can be printed, and as a table.

use std::fmt::Write as _;

use crate::audit::report::Context;
use crate::audit::{AuditOutcome, Finding, Net, Severity, Verdict};
use batzen_http::escape_html;
use batzen_protocol::Timestamp;

use super::report::Report;
use super::text::{bank_balance, counted, without_faults};
use super::trend;
use crate::live::TrackedFinding;

fn net(units: i128, context: &Context) -> String {
    Net { units, currency: Some(context.currency) }.to_string()
}

/// The day of a time, in UTC.
fn day(time: Timestamp) -> String {
    let text = time.to_string();
    text.split_once('T').map_or(text.clone(), |(day, _)| day.to_owned())
}

const STYLE: &str = "\
body{font:16px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#1b1b1b}\
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2rem}\
table{border-collapse:collapse;width:100%}td,th{padding:.3rem .6rem;border-bottom:1px solid #ddd;text-align:left}\
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}\
.ok{background:#e4f4e6;padding:1rem;border-radius:.5rem}.bad{background:#fbe5e3;padding:1rem;border-radius:.5rem}\
.wide{overflow-x:auto}:root{--c0:#2b6cb0;--c1:#b7791f;--c2:#2f855a;--c3:#c53030;--c4:#888}svg{width:100%;height:auto;max-height:20rem}\
.line{fill:none;stroke-width:2;stroke-linecap:round}.dashed{stroke-dasharray:6 4}.axis,.grid{fill:none;stroke:#ddd}.axis{stroke:#555}\
svg text{font-size:12px;fill:#555}.ex{text-anchor:middle}.ey{text-anchor:end}\
.c0{background:var(--c0)}.c1{background:var(--c1)}.c2{background:var(--c2)}.c3{background:var(--c3)}.c4{background:var(--c4)}\
.key{margin-right:1.2rem;font-weight:600}.key i{display:inline-block;width:1.2rem;height:3px;margin-right:.4rem;vertical-align:middle}.few{display:grid;grid-template-columns:repeat(auto-fill,minmax(18rem,1fr));gap:1rem}\
tr.sum td{font-weight:600;border-top:2px solid #555}code{font-size:.85em;word-break:break-all}\
details{margin:.3rem 0}summary{cursor:pointer}\
@media print{body{max-width:none;margin:0;font-size:11px}details{break-inside:avoid}}";

/// One page with everything that a controller asks for first: is it right, what is owed, is the money there, which
/// denominations, what was found.
pub(super) fn html(report: &Report, live: Option<&str>) -> String {
    let Report { outcome, context, exchange_url, timeline } = report;
    let mut out = String::new();
    let faults: Vec<&Finding> = outcome.faults().collect();
    let _ = write!(
        out,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Audit of {url}</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head><body>\
         <h1>Audit of {url}</h1><p>{started} to {ended}: {rows} rows and {signatures} signatures checked.</p>",
        url = escape_html(exchange_url),
        started = context.started,
        ended = context.ended,
        rows = outcome.rows,
        signatures = outcome.signatures,
    );
    if let Some(checked_all) = timeline.as_ref().and_then(|timeline| timeline.checked_all) {
        let _ = write!(out, "<p>All rows were last checked at once on {checked_all}.</p>");
    }
    if faults.is_empty() {
        let class = if outcome.verdict() == Verdict::Right { "ok" } else { "bad" };
        let mut verdict = without_faults(outcome, context);
        verdict[..1].make_ascii_uppercase();
        let _ = write!(out, "<p class=\"{class}\" id=\"verdict\">{verdict}.</p>");
    } else {
        let at_risk: u128 = faults.iter().map(|finding| finding.at_risk).fold(0, u128::saturating_add);
        let at_risk = net(i128::try_from(at_risk).unwrap_or(i128::MAX), context);
        let _ = write!(
            out,
            "<p class=\"bad\" id=\"verdict\">{}; at most {at_risk} at risk.</p>",
            counted(faults.len(), "finding")
        );
    }
    if let Some(live) = live {
        out.push_str(live);
    }
    sheet(&mut out, outcome, context);
    if let Some(timeline) = timeline {
        trend::total(&mut out, &timeline.hours, context);
    }
    denominations(&mut out, outcome, context);
    if let Some(timeline) = timeline {
        trend::denominations(&mut out, &timeline.hours, outcome, context);
    }
    match timeline {
        Some(timeline) => stories(&mut out, &timeline.findings, context),
        None => findings(&mut out, &faults, context),
    }
    out.push_str("</body></html>\n");
    out
}

fn row(out: &mut String, class: &str, name: &str, amount: &str, what: &str) {
    let _ = write!(out, "<tr{class}><td>{name}</td><td class=\"n\">{amount}</td><td>{what}</td></tr>");
}

fn sheet(out: &mut String, outcome: &AuditOutcome, context: &Context) {
    let sheet = &outcome.sheet;
    out.push_str("<h2>What is owed</h2><div class=\"wide\" tabindex=\"0\"><table id=\"liabilities\">");
    for (name, amount, what) in [
        ("Coins", sheet.outstanding, "in wallets: issued less redeemed"),
        ("Reserves", sheet.reserves, "sent to the exchange and not withdrawn yet"),
        ("Deposits", sheet.deposits, "of merchants, not aggregated yet"),
        ("Aggregates", sheet.transient, "of merchants, too small or held back"),
        ("Transfers", sheet.in_flight, "decided, not executed by the bank yet"),
        ("Purses", sheet.purses, "payments between people that wait for their receiver"),
        ("Change", sheet.unrevealed_melts, "begun and not finished"),
    ] {
        row(out, "", name, &amount.to_string(), what);
    }
    row(out, " class=\"sum\"", "Liability", &sheet.liability().to_string(), "");
    row(out, "", "Earned", &sheet.fees.to_string(), "fees that were not paid out");
    let expected = sheet.expected_balance().to_string();
    row(out, " class=\"sum\"", "Money that should be at the bank", &expected, "");
    for account in &outcome.accounts {
        let balance = bank_balance(account, context);
        row(
            out,
            "",
            "At the bank",
            &balance,
            &format!("by the bank's history of [{}]", escape_html(&account.section)),
        );
    }
    for payto_uri in &outcome.unread {
        row(out, "", "At the bank", "not checked", &escape_html(payto_uri));
    }
    out.push_str("</table></div>");
    if outcome.overdue.count > 0 {
        let units = i128::try_from(outcome.overdue.units).unwrap_or(i128::MAX);
        let _ = write!(
            out,
            "<p>{} deposits of {} are due and not paid.</p>",
            outcome.overdue.count,
            net(units, context)
        );
    }
}

fn denominations(out: &mut String, outcome: &AuditOutcome, context: &Context) {
    out.push_str(
        "<h2>Denominations</h2><div class=\"wide\" tabindex=\"0\"><table id=\"denominations\"><tr><th class=\"n\">Value</th><th>Withdrawn from</th>\
         <th>until</th><th class=\"n\">Coins issued</th><th class=\"n\">used</th><th class=\"n\">Issued</th>\
         <th class=\"n\">Redeemed</th><th class=\"n\">Outstanding</th></tr>",
    );
    let mut used: Vec<_> =
        outcome.denoms.iter().filter(|denom| denom.tally.issued() > 0 || denom.tally.known > 0).collect();
    used.sort_by_key(|denom| (std::cmp::Reverse(denom.denom.row.value), denom.denom.row.start));
    for result in used {
        let (terms, tally) = (&result.denom.row, &result.tally);
        let issued = i128::from(tally.issued()) * i128::try_from(terms.value.units()).unwrap_or(i128::MAX);
        let _ = write!(
            out,
            "<tr><td class=\"n\">{}{}</td><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            terms.value.of(context.currency),
            if result.denom.revoked { " (revoked)" } else { "" },
            day(terms.start),
            day(terms.expire_withdraw),
            tally.issued(),
            tally.known,
            net(issued, context),
            net(tally.redeemed, context),
            net(issued - tally.redeemed, context),
        );
    }
    out.push_str("</table></div>");
}

fn findings(out: &mut String, faults: &[&Finding], context: &Context) {
    if faults.is_empty() {
        return;
    }
    out.push_str("<h2>Findings</h2><div id=\"findings\">");
    for finding in faults {
        details(out, finding, context, "");
    }
    out.push_str("</div>");
}

/// One finding to open. `timeline` is markup.
fn details(out: &mut String, finding: &Finding, context: &Context, timeline: &str) {
    let info = finding.rule.info();
    let risk = net(i128::try_from(finding.at_risk).unwrap_or(i128::MAX), context);
    let _ = write!(
        out,
        "<details><summary>{}: {} ({risk} at risk)</summary><p>Row {} of <code>{}</code>: <code>{}</code></p>",
        info.check.name(),
        escape_html(info.meaning),
        finding.row.serial,
        finding.row.table,
        escape_html(&finding.row.key),
    );
    if finding.exchange != finding.auditor {
        let (exchange, auditor) = (net(finding.exchange, context), net(finding.auditor, context));
        let _ = write!(out, "<p>The exchange says {exchange}, the auditor {auditor}.</p>");
    }
    if !finding.detail.is_empty() {
        let _ = write!(out, "<p>{}</p>", escape_html(&finding.detail));
    }
    let _ = write!(out, "<p>{}</p>{timeline}</details>", escape_html(info.advice));
}

/// Findings of a followed exchange: those that are open, suppressed, and resolved.
fn stories(out: &mut String, kept: &[TrackedFinding], context: &Context) {
    let is_open = |kept: &&TrackedFinding| kept.is_open();
    let is_suppressed = |kept: &&TrackedFinding| kept.row.resolved.is_none() && kept.row.suppressed.is_some();
    let is_resolved = |kept: &&TrackedFinding| kept.row.resolved.is_some();
    let faults = || kept.iter().filter(|kept| kept.finding.severity() == Severity::Finding);
    part(out, ("Findings", "findings"), faults().filter(is_open).collect(), context);
    part(out, ("Suppressed", "suppressed"), faults().filter(is_suppressed).collect(), context);
    part(out, ("Resolved", "resolved"), faults().filter(is_resolved).collect(), context);
}

fn part(out: &mut String, (title, id): (&str, &str), mut kept: Vec<&TrackedFinding>, context: &Context) {
    if kept.is_empty() {
        return;
    }
    kept.sort_by_key(|kept| (std::cmp::Reverse(kept.finding.at_risk), kept.row.found));
    let _ = write!(out, "<h2>{title}</h2><div id=\"{id}\">");
    for kept in kept {
        let mut timeline = format!("<p>Found {}", kept.row.found);
        if kept.row.confirmed != kept.row.found {
            let _ = write!(timeline, ", last {}", kept.row.confirmed);
        }
        if let Some(resolved) = kept.row.resolved {
            let _ = write!(timeline, ", resolved {resolved}");
        }
        let _ = write!(timeline, ". Number <code>{}</code></p>", kept.id);
        for note in &kept.notes {
            let what = if note.suppresses { "Suppressed" } else { "Reopened" };
            let _ = write!(timeline, "<p>{what} {}: {}</p>", note.time, escape_html(&note.reason));
        }
        details(out, &kept.finding, context, &timeline);
    }
    out.push_str("</div>");
}

/// A field of comma-separated values (RFC 4180).
fn field(text: &str) -> String {
    // A spreadsheet must not take a text for a formula.
    let text = if text.starts_with(['=', '+', '-', '@']) { format!("'{text}") } else { text.to_owned() };
    if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

/// All findings and notices as comma-separated values.
pub(super) fn csv(outcome: &AuditOutcome, context: &Context) -> String {
    let mut out = String::from(
        "severity,check,rule,table,row,key,subject,exchange,auditor,at_risk,meaning,detail,advice\r\n",
    );
    for finding in &outcome.findings {
        let info = finding.rule.info();
        let severity = if finding.severity() == Severity::Finding { "finding" } else { "notice" };
        let fields = [
            severity.to_owned(),
            info.check.name().to_owned(),
            info.name.to_owned(),
            finding.row.table.to_owned(),
            finding.row.serial.to_string(),
            finding.row.key.clone(),
            finding.subject.clone(),
            net(finding.exchange, context),
            net(finding.auditor, context),
            net(i128::try_from(finding.at_risk).unwrap_or(i128::MAX), context),
            info.meaning.to_owned(),
            finding.detail.clone(),
            info.advice.to_owned(),
        ];
        let fields: Vec<String> = fields.iter().map(|text| field(text)).collect();
        out.push_str(&fields.join(","));
        out.push_str("\r\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_others_are_neither_markup_nor_formulas() {
        assert_eq!(escape_html("<b a=\"1\">&"), "&lt;b a=&quot;1&quot;&gt;&amp;");
        assert_eq!(field("=1+1"), "'=1+1");
        assert_eq!(field("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(field("plain"), "plain");
    }
}
