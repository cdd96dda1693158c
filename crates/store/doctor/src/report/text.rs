//! The text report.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::table::Table;
use crate::Examination;
use crate::facts::{Facts, Index, Session, Storage};
use crate::findings::sessions::{Waiter, ending, lock_tree, phrase};
use crate::findings::tables::by_root;
use crate::findings::{Finding, Severity};
use crate::words;

/// The most rows of a table.
const ROWS: usize = 10;

/// Support of the output for colours.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// True if it does.
    pub colours: bool,
}

impl Style {
    /// Text in the colour of a severity: red, yellow, blue, green.
    pub(crate) fn severity(self, severity: Severity, text: &str) -> String {
        let style = console::Style::new().force_styling(self.colours);
        let style = match severity {
            Severity::Critical => style.red().bold(),
            Severity::Warning => style.yellow().bold(),
            Severity::Notice => style.blue(),
            Severity::Ok => style.green(),
        };
        style.apply_to(text).to_string()
    }

    /// A heading.
    pub(crate) fn strong(self, text: &str) -> String {
        console::Style::new().force_styling(self.colours).bold().apply_to(text).to_string()
    }

    /// Less important text.
    pub(crate) fn dim(self, text: &str) -> String {
        console::Style::new().force_styling(self.colours).dim().apply_to(text).to_string()
    }
}

/// The whole report.
pub fn text(examination: &Examination, style: Style) -> String {
    let mut out = String::new();
    let facts = &examination.facts;
    header(&mut out, facts, style);
    for finding in examination.findings.iter().filter(|finding| finding.severity > Severity::Ok) {
        one(&mut out, finding, style);
    }
    out += &locks(facts, style);
    section(&mut out, "Tables, by size (parts of a partitioned table together)", &tables(facts), style);
    section(&mut out, "Indexes, by size", &indexes(facts), style);
    section(&mut out, "Statements, by time", &statements(facts), style);
    section(&mut out, "Batzen's statements, executed for one row and undone", &own(facts), style);
    checks(&mut out, examination, style);
    gaps(&mut out, facts, style);
    summary(&mut out, examination, style);
    out
}

fn header(out: &mut String, facts: &Facts, style: Style) {
    let server = &facts.server;
    let size = facts.database().and_then(|database| database.size);
    let size = size.map_or_else(String::new, |size| format!(" ({})", words::bytes(size)));
    let role = if server.in_recovery { ", standby" } else { "" };
    let _ = writeln!(
        out,
        "{} · database {}{size}{role} · up for {}",
        style.strong(&server.version),
        server.database,
        words::span(server.uptime)
    );
    let machine = &facts.machine;
    let memory = machine
        .memory
        .map_or("memory unknown".to_owned(), |memory| format!("{} memory", words::bytes(memory)));
    let cores =
        machine.cores.map_or("cores unknown".to_owned(), |cores| words::several(cores as usize, "core"));
    let disk = match (machine.storage, &machine.disk) {
        (Storage::Solid, Some(name)) => format!("solid-state disk {name}"),
        (Storage::Spinning, Some(name)) => format!("spinning disk {name}"),
        (Storage::Volatile, _) => "data in memory".to_owned(),
        (_, Some(name)) => format!("disk {name}"),
        _ => "disk unknown".to_owned(),
    };
    let place = if machine.is_local { "this machine" } else { "another machine" };
    let _ = writeln!(out, "{place}: {cores}, {memory}, {disk}");
    let rates = facts.rates();
    let hit = rates.hit.map_or("none read".to_owned(), |hit| format!("{} from the cache", words::share(hit)));
    let _ = writeln!(
        out,
        "{}",
        style.dim(&format!(
            "now: {:.0} transactions/s, {} pages in {} ({hit}), {}/s of write-ahead log",
            rates.transactions,
            words::count(rates.blocks),
            words::span(rates.seconds),
            words::bytes(rates.wal as u64)
        ))
    );
}

/// One finding: title, measurement, reason, command.
fn one(out: &mut String, finding: &Finding, style: Style) {
    let word = format!("{:<8}", finding.severity.word());
    // Critical titles are wholly red; others only colour the first word.
    let title = if finding.severity == Severity::Critical {
        style.severity(finding.severity, &finding.title)
    } else {
        style.strong(&finding.title)
    };
    let _ = writeln!(out, "\n{}  {title}", style.severity(finding.severity, &word));
    wrapped(out, "measured", &finding.measured);
    wrapped(out, "why", &finding.why);
    for line in &finding.remedy {
        // Commands are never wrapped, so that they can be copied.
        let _ = writeln!(out, "  {:<8}  {}", "type", style.severity(Severity::Ok, line));
    }
}

fn wrapped(out: &mut String, label: &str, text: &str) {
    const WIDTH: usize = 100;
    if text.is_empty() {
        return;
    }
    let mut line = format!("  {label:<8} ");
    let mut is_empty = true;
    for word in text.split_whitespace() {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            let _ = writeln!(out, "{line}");
            line = " ".repeat(11);
        }
        line.push(' ');
        line.push_str(word);
        is_empty = false;
    }
    let _ = writeln!(out, "{line}");
}

fn section(out: &mut String, title: &str, table: &Table, style: Style) {
    if table.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{}", style.strong(title));
    for line in table.lines() {
        let _ = writeln!(out, "{line}");
    }
}

/// The tree of lock waits with the commands that end them. Empty if there are none.
pub(crate) fn locks(facts: &Facts, style: Style) -> String {
    let mut text = String::new();
    let out = &mut text;
    let tree = lock_tree(&facts.sessions);
    if tree.is_empty() {
        return text;
    }
    let _ = writeln!(out, "\n{}", style.strong("Who waits for whom"));
    for root in &tree {
        branch(out, &facts.sessions, root, "  ", "", style);
        if let Some(session) = facts.sessions.iter().find(|session| session.pid == root.pid) {
            let _ = writeln!(out, "  to end it: {}", style.severity(Severity::Ok, &ending(session)));
        }
    }
    text
}

fn branch(out: &mut String, sessions: &[Session], waiter: &Waiter, indent: &str, mark: &str, style: Style) {
    let words = match sessions.iter().find(|session| session.pid == waiter.pid) {
        Some(session) => {
            let age = if mark.is_empty() { session.state_age } else { session.query_age };
            let state = if mark.is_empty() { session.state.as_str() } else { "waits" };
            let age = age.map_or_else(String::new, |age| format!(" {}", words::span(age)));
            format!("{} {state}{age}: {}", phrase(session), words::statement(&session.query, 80))
        }
        None if waiter.pid == 0 => "a prepared transaction".to_owned(),
        None => format!("pid {}", waiter.pid),
    };
    let words = if mark.is_empty() { style.strong(&words) } else { words };
    let _ = writeln!(out, "{indent}{mark}{words}");
    let below = match mark {
        "" => indent.to_owned(),
        "└─ " => format!("{indent}   "),
        _ => format!("{indent}│  "),
    };
    for (place, next) in waiter.waiters.iter().enumerate() {
        let mark = if place + 1 == waiter.waiters.len() { "└─ " } else { "├─ " };
        branch(out, sessions, next, &below, mark, style);
    }
}

fn ratio(part: u64, rest: u64) -> String {
    if part + rest == 0 { "–".to_owned() } else { words::share(part as f64 / (part + rest) as f64) }
}

fn tables(facts: &Facts) -> Table {
    let mut table = Table::new(&[
        "table<",
        "parts",
        "size",
        "live",
        "dead",
        "cache",
        "index cache",
        "whole reads",
        "by index",
        "HOT",
        "vacuum",
    ]);
    let groups = by_root(&facts.tables);
    let mut groups: Vec<_> = groups.iter().collect();
    let sum = |parts: &[&crate::facts::Table], what: fn(&crate::facts::Table) -> u64| {
        parts.iter().map(|part| what(part)).sum::<u64>()
    };
    groups.sort_by_key(|(_, parts)| std::cmp::Reverse(sum(parts, |part| part.bytes)));
    for (name, parts) in groups.into_iter().take(ROWS) {
        let updated = sum(parts, |part| part.updated);
        let hot = sum(parts, |part| part.hot_updated);
        // Show the longest wait of the group.
        let vacuum = parts.iter().try_fold(0.0_f64, |most, part| Some(most.max(part.vacuum_age?)));
        table.row(vec![
            name.clone(),
            parts.len().to_string(),
            words::bytes(sum(parts, |part| part.bytes)),
            words::count(sum(parts, |part| part.live)),
            words::count(sum(parts, |part| part.dead)),
            ratio(sum(parts, |part| part.heap_hit), sum(parts, |part| part.heap_read)),
            ratio(sum(parts, |part| part.index_hit), sum(parts, |part| part.index_read)),
            words::count(sum(parts, |part| part.seq_scans)),
            words::count(sum(parts, |part| part.index_scans)),
            ratio(hot, updated.saturating_sub(hot)),
            vacuum.map_or("never".to_owned(), words::span),
        ]);
    }
    table
}

fn indexes(facts: &Facts) -> Table {
    let mut table = Table::new(&["index<", "table<", "parts", "size", "scans", "cache"]);
    let mut groups: BTreeMap<(&str, &str), Vec<&Index>> = BTreeMap::new();
    for index in &facts.indexes {
        groups.entry((&index.schema, index.root.as_deref().unwrap_or(&index.name))).or_default().push(index);
    }
    let sum = |parts: &[&Index], what: fn(&Index) -> u64| parts.iter().map(|part| what(part)).sum::<u64>();
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, parts)| std::cmp::Reverse(sum(parts, |part| part.bytes)));
    for ((_, name), parts) in groups.into_iter().take(ROWS) {
        table.row(vec![
            name.to_owned(),
            parts[0].table.clone(),
            parts.len().to_string(),
            words::bytes(sum(&parts, |part| part.bytes)),
            words::count(sum(&parts, |part| part.scans)),
            ratio(sum(&parts, |part| part.hit), sum(&parts, |part| part.read)),
        ]);
    }
    table
}

fn statements(facts: &Facts) -> Table {
    let mut table = Table::new(&["share", "calls", "mean", "worst", "rows each", "pages each", "statement<"]);
    for statement in facts.statements.iter().flatten().take(ROWS) {
        let calls = statement.calls.max(1);
        table.row(vec![
            words::share(statement.share),
            words::count(statement.calls),
            words::span(statement.mean),
            words::span(statement.worst),
            words::count(statement.rows / calls),
            words::count((statement.hit + statement.read) / calls),
            words::statement(&statement.query, 90),
        ]);
    }
    table
}

fn own(facts: &Facts) -> Table {
    let mut table =
        Table::new(&["table<", "statement<", "time", "rows", "partitions", "pages", "whole reads<"]);
    for service in &facts.batzen {
        for one in &service.statements {
            // Plans do not show the partition of an inserted row.
            let is_write = one.what.ends_with("insert");
            let parts = if one.parts == 0 || is_write {
                "–".to_owned()
            } else {
                format!("{} of {}", one.parts_hit, one.parts)
            };
            table.row(vec![
                format!("{}.{}", service.schema, one.table),
                one.what.clone(),
                words::span(one.plan.seconds),
                format!("{:.0}", one.plan.rows),
                parts,
                words::count(one.plan.hit + one.plan.read),
                one.plan.whole.iter().cloned().collect::<Vec<_>>().join(", "),
            ]);
        }
    }
    table
}

fn checks(out: &mut String, examination: &Examination, style: Style) {
    let fine: Vec<_> =
        examination.findings.iter().filter(|finding| finding.severity == Severity::Ok).collect();
    if fine.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{}", style.strong("Looked at, and well"));
    for finding in fine {
        let measured = style.dim(&finding.measured);
        let _ = writeln!(out, "  {} {}: {measured}", style.severity(Severity::Ok, "✓"), finding.title);
    }
}

fn gaps(out: &mut String, facts: &Facts, style: Style) {
    if facts.gaps.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{}", style.strong("Not looked at"));
    for gap in &facts.gaps {
        let _ = writeln!(out, "  – {}: {}", gap.what, gap.why);
        if let Some(remedy) = &gap.remedy {
            let _ = writeln!(out, "      type  {}", style.severity(Severity::Ok, remedy));
        }
    }
}

fn summary(out: &mut String, examination: &Examination, style: Style) {
    let number =
        |severity| examination.findings.iter().filter(|finding| finding.severity == severity).count();
    let parts: Vec<_> =
        [(Severity::Critical, "critical"), (Severity::Warning, "warning"), (Severity::Notice, "notice")]
            .into_iter()
            .filter(|(severity, _)| number(*severity) > 0)
            .map(|(severity, word)| {
                let word = if severity == Severity::Critical {
                    format!("{} {word}", number(severity))
                } else {
                    words::several(number(severity), word)
                };
                style.severity(severity, &word)
            })
            .collect();
    let found =
        if parts.is_empty() { style.severity(Severity::Ok, "nothing found") } else { parts.join(", ") };
    let _ = writeln!(
        out,
        "\n{found}; {} passed, {} not looked at",
        words::several(number(Severity::Ok), "check"),
        examination.facts.gaps.len()
    );
}
