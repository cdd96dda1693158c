//! The live view: redrawn in place on a terminal, plain lines elsewhere, or one JSON object per line for
//! programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use console::Term;
use serde_json::json;

use crate::facts::{self, Facts, Look, LookError, Session};
use crate::findings::{Finding, Severity};
use crate::report::Style;
use crate::report::table::Table;
use crate::{Examination, Options, report, words};

/// Tables, indexes and settings change slowly, and cost more to read.
const SLOW_PARTS: Duration = Duration::from_secs(30);

/// Rows of the list of running statements.
const RUNNING: usize = 8;

/// Options of the view.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Time between two updates.
    pub interval: Duration,
    /// Ends after this many updates.
    pub count: Option<u64>,
    /// Whether to print one JSON object per line.
    pub json: bool,
    /// Whether standard output is a terminal that can be redrawn.
    pub is_terminal: bool,
    /// Colours.
    pub style: Style,
}

/// Why the view ended.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The server could not be reached at the start.
    #[error(transparent)]
    Look(#[from] LookError),
    /// The output is closed.
    #[error(transparent)]
    Output(#[from] io::Error),
}

/// Updates until the limit is reached or the process is interrupted. Retries at each interval if the server
/// becomes unreachable.
///
/// # Errors
/// If the server cannot be reached at the start, or the output cannot be written.
pub fn watch(options: &Options, view: View) -> Result<(), WatchError> {
    let mut options = options.clone();
    options.sample = view.interval.min(Duration::from_secs(2));
    let mut look = Look::connect(&options)?;
    let mut facts = facts::read(&look, &options)?;
    let mut slow_at = Instant::now();
    let mut screen = Screen::new(view);
    let mut looks = 0;
    loop {
        screen.show(&Examination::of(facts.clone(), &options.limits))?;
        looks += 1;
        if view.count.is_some_and(|count| looks >= count) {
            return Ok(());
        }
        std::thread::sleep(view.interval);
        if look.is_closed() {
            match Look::connect(&options) {
                Ok(again) => look = again,
                Err(error) => {
                    screen.lost(&error)?;
                    continue;
                }
            }
        }
        refresh(&look, &options, &mut facts, &mut slow_at);
    }
}

/// Reads quickly changing facts each time, and the others less often.
fn refresh(look: &Look, options: &Options, facts: &mut Facts, slow_at: &mut Instant) {
    let server = facts.server.clone();
    if slow_at.elapsed() >= SLOW_PARTS {
        facts.settings = facts::server::settings(look);
        facts.databases = facts::server::databases(look, &server);
        facts.machine = facts::machine::read(look, &server, options);
        facts.tables = facts::objects::tables(look);
        facts.indexes = facts::objects::indexes(look);
        facts.statements = facts::statements::read(look, &server);
        *slow_at = Instant::now();
    }
    facts.before = facts.after;
    facts.sessions = facts::activity::sessions(look);
    facts.stream = facts::stream::read(look, &server);
    facts.processes = facts::machine::processes(look, facts);
    facts.after = facts::activity::counters(look, &server);
    facts.gaps = look.gaps();
}

struct Screen {
    view: View,
    term: Term,
    drawn: usize,
    known: BTreeSet<(String, String)>,
}

impl Screen {
    fn new(view: View) -> Self {
        Self { view, term: Term::stdout(), drawn: 0, known: BTreeSet::new() }
    }

    fn show(&mut self, examination: &Examination) -> io::Result<()> {
        if self.view.json {
            return line(&object(examination).to_string());
        }
        if self.view.is_terminal {
            return self.draw(&frame(examination, self.view.style));
        }
        line(&summary(examination))?;
        let now: BTreeSet<_> =
            bad(examination).map(|finding| (finding.rule.clone(), about(finding))).collect();
        for finding in bad(examination) {
            if !self.known.contains(&(finding.rule.clone(), about(finding))) {
                let severity = self.view.style.severity(finding.severity, finding.severity.word());
                line(&format!("  {severity} {}: {}", finding.title, finding.measured))?;
            }
        }
        for (rule, about) in self.known.difference(&now) {
            line(&format!("  over: {rule} ({about})"))?;
        }
        self.known = now;
        Ok(())
    }

    fn lost(&mut self, error: &LookError) -> io::Result<()> {
        if self.view.json {
            return line(&json!({ "error": error.to_string() }).to_string());
        }
        let text = self.view.style.severity(Severity::Critical, &error.to_string());
        if self.view.is_terminal { self.draw(&[text]) } else { line(&text) }
    }

    fn draw(&mut self, lines: &[String]) -> io::Result<()> {
        let (height, width) = self.term.size();
        let (height, width) = (usize::from(height), usize::from(width));
        // Cut the frame to the terminal: larger output would scroll, and could not be redrawn in place.
        let lines: Vec<_> = lines.iter().take(height.saturating_sub(1)).collect();
        self.term.clear_last_lines(self.drawn)?;
        for text in &lines {
            self.term.write_line(&console::truncate_str(text, width, "…"))?;
        }
        self.drawn = lines.len();
        self.term.flush()
    }
}

fn line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

fn bad(examination: &Examination) -> impl Iterator<Item = &Finding> {
    examination.findings.iter().filter(|finding| finding.severity > Severity::Ok)
}

/// The subject of a finding, without figures that change between updates.
fn about(finding: &Finding) -> String {
    finding.title.split(" for ").next().unwrap_or(&finding.title).to_owned()
}

/// The state at one update.
struct Glance<'a> {
    active: usize,
    idle_in_transaction: usize,
    sessions: usize,
    lock_waits: usize,
    waits: BTreeMap<&'a str, usize>,
    lag: Option<u64>,
    running: Vec<&'a Session>,
}

impl<'a> Glance<'a> {
    fn of(facts: &'a Facts) -> Self {
        let clients: Vec<&Session> = facts.sessions.iter().filter(|session| session.is_client()).collect();
        let mut waits = BTreeMap::new();
        for session in clients.iter().filter(|session| session.state == "active") {
            if let Some(wait) = session.wait.as_deref() {
                *waits.entry(wait).or_default() += 1;
            }
        }
        let mut running: Vec<&Session> =
            clients.iter().copied().filter(|session| session.state == "active").collect();
        running.sort_by(|one, other| other.query_age.unwrap_or(0.0).total_cmp(&one.query_age.unwrap_or(0.0)));
        running.truncate(RUNNING);
        Self {
            active: clients.iter().filter(|session| session.state == "active").count(),
            idle_in_transaction: clients.iter().filter(|session| session.is_idle_in_transaction()).count(),
            sessions: clients.len(),
            lock_waits: clients.iter().filter(|session| !session.blocked_by.is_empty()).count(),
            waits,
            lag: facts.stream.standbys.iter().filter_map(|standby| standby.lag_bytes).max(),
            running,
        }
    }
}

/// One update as JSON.
fn object(examination: &Examination) -> serde_json::Value {
    let facts = &examination.facts;
    let rates = facts.rates();
    let glance = Glance::of(facts);
    let running: Vec<_> = glance
        .running
        .iter()
        .map(|session| json!({ "pid": session.pid, "seconds": session.query_age, "wait": session.wait, "query": session.query }))
        .collect();
    json!({
        "at": facts.after.at,
        "seconds": rates.seconds,
        "transactions_per_second": rates.transactions,
        "cache_hit_ratio": rates.hit,
        "wal_bytes_per_second": rates.wal,
        "wal_syncs_per_second": rates.wal_syncs,
        "sessions": glance.sessions,
        "active": glance.active,
        "idle_in_transaction": glance.idle_in_transaction,
        "lock_waits": glance.lock_waits,
        "waits": glance.waits,
        "replication_lag_bytes": glance.lag,
        "running": running,
        "severity": examination.severity,
        "findings": bad(examination).collect::<Vec<_>>(),
    })
}

/// The clock of the server, UTC.
fn clock(at: f64) -> String {
    let second = at.max(0.0) as u64 % 86_400;
    format!("{:02}:{:02}:{:02}", second / 3_600, second / 60 % 60, second % 60)
}

/// One update on one line.
fn summary(examination: &Examination) -> String {
    let facts = &examination.facts;
    let rates = facts.rates();
    let glance = Glance::of(facts);
    let mut text = format!("{}  {:>7.0} tx/s", clock(facts.after.at), rates.transactions);
    let _ = write!(text, "  cache {:>7}", rates.hit.map_or("–".to_owned(), words::share));
    let _ = write!(text, "  WAL {:>8}/s", words::bytes(rates.wal as u64));
    if let Some(syncs) = rates.wal_syncs {
        let _ = write!(text, "  {syncs:>6.0} syncs/s");
    }
    let _ = write!(
        text,
        "  sessions {} ({} active, {} idle in transaction)",
        glance.sessions, glance.active, glance.idle_in_transaction
    );
    let _ = write!(text, "  lock waits {}", glance.lock_waits);
    if let Some(lag) = glance.lag {
        let _ = write!(text, "  lag {}", words::bytes(lag));
    }
    text
}

/// One update as a full screen.
fn frame(examination: &Examination, style: Style) -> Vec<String> {
    let facts = &examination.facts;
    let glance = Glance::of(facts);
    let server = &facts.server;
    let mut lines = vec![
        style.strong(&format!("{} · {} · UTC {}", server.version, server.database, clock(facts.after.at))),
        summary(examination),
    ];
    let waits: Vec<_> = glance.waits.iter().map(|(wait, count)| format!("{wait} {count}")).collect();
    lines.push(if waits.is_empty() {
        style.dim("no active session waits")
    } else {
        format!("waiting for: {}", waits.join(", "))
    });
    let mut table = Table::new(&["pid", "for", "waits for<", "statement<"]);
    for session in &glance.running {
        table.row(vec![
            session.pid.to_string(),
            words::span(session.query_age.unwrap_or(0.0)),
            session.wait.clone().unwrap_or_default(),
            words::statement(&session.query, 120),
        ]);
    }
    if !table.is_empty() {
        lines.push(String::new());
        lines.push(style.strong("Running, longest first"));
        lines.extend(table.lines());
    }
    lines.extend(report::text::locks(facts, style).lines().map(str::to_owned));
    lines.push(String::new());
    if bad(examination).next().is_none() {
        lines.push(style.severity(Severity::Ok, "nothing found"));
    }
    for finding in bad(examination) {
        let word = style.severity(finding.severity, &format!("{:<8}", finding.severity.word()));
        lines.push(format!("{word}  {}  {}", finding.title, style.dim(&finding.measured)));
    }
    lines.push(style.dim("Ctrl-C ends; batzen doctor says what to type"));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Counters;
    use crate::findings::Limits;

    fn busy() -> Examination {
        let session = |pid: i32, blocked_by: &[i32]| Session {
            pid,
            kind: "client backend".to_owned(),
            state: "active".to_owned(),
            wait: (!blocked_by.is_empty()).then(|| "Lock: tuple".to_owned()),
            query: format!("UPDATE {pid}"),
            query_age: Some(f64::from(pid)),
            blocked_by: blocked_by.to_vec(),
            ..Session::default()
        };
        let facts = Facts {
            before: Counters { at: 10.0, ..Counters::default() },
            after: Counters {
                at: 12.0,
                commits: 500,
                blocks_hit: 10,
                wal_bytes: 4096.0,
                ..Counters::default()
            },
            sessions: vec![session(1, &[]), session(2, &[1])],
            ..Facts::default()
        };
        Examination::of(facts, &Limits::default())
    }

    #[test]
    fn update_fits_on_a_line() {
        let text = summary(&busy());
        assert!(
            text.starts_with("00:00:12") && text.contains("250 tx/s") && text.contains("lock waits 1"),
            "{text}"
        );
        assert!(text.contains("cache   100 %") && text.contains("2 kB/s"), "{text}");
    }

    #[test]
    fn frame_shows_sessions_waits_and_findings() {
        let text = frame(&busy(), Style::default()).join("\n");
        for part in ["Lock: tuple 1", "UPDATE 2", "Who waits for whom", "pg_cancel_backend(1)", "NOTICE"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn json_update_is_one_object() {
        let object = object(&busy());
        assert_eq!(object["lock_waits"], 1);
        assert_eq!(object["severity"], "notice");
        assert_eq!(object["replication_lag_bytes"], serde_json::Value::Null);
        assert_eq!(object["findings"][0]["rule"], "lock_waits");
    }
}
