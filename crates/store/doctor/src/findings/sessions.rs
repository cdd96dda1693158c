//! Long and idle transactions, lock waits, connections and their memory.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{Finding, Limits, Severity, set};
use crate::facts::{Facts, Session};
use crate::words;

/// A session in the tree of lock waits.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Waiter {
    /// Its process.
    pub(crate) pid: i32,
    /// The sessions that wait for it.
    pub(crate) waiters: Vec<Waiter>,
}

impl Waiter {
    /// Returns the number of sessions that wait below it.
    pub(crate) fn count(&self) -> usize {
        self.waiters.iter().map(|waiter| 1 + waiter.count()).sum()
    }
}

/// The tree of lock waits. Each root waits for no session, or is part of a cycle (a deadlock that the server
/// has not noticed yet). A session that waits for several is below the first of them.
pub(crate) fn lock_tree(sessions: &[Session]) -> Vec<Waiter> {
    let mut blocked: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for session in sessions {
        for blocker in &session.blocked_by {
            blocked.entry(*blocker).or_default().push(session.pid);
        }
    }
    let waiting: BTreeSet<i32> =
        sessions.iter().filter(|session| !session.blocked_by.is_empty()).map(|session| session.pid).collect();
    let mut placed = BTreeSet::new();
    let mut roots = Vec::new();
    let is_free = |pid: &&i32| !waiting.contains(pid);
    // First the sessions that do not wait; the rest are cycles.
    for pid in blocked.keys().filter(is_free).chain(blocked.keys().filter(|pid| waiting.contains(pid))) {
        if placed.insert(*pid) {
            roots.push(below(*pid, &blocked, &mut placed));
        }
    }
    roots
}

fn below(pid: i32, blocked: &BTreeMap<i32, Vec<i32>>, placed: &mut BTreeSet<i32>) -> Waiter {
    // Level by level instead of recursively, so that long queues do not overflow the stack.
    let own: Vec<i32> =
        blocked.get(&pid).into_iter().flatten().copied().filter(|waiter| placed.insert(*waiter)).collect();
    Waiter { pid, waiters: own.into_iter().map(|waiter| below(waiter, blocked, placed)).collect() }
}

/// The command that ends a session's work.
pub(crate) fn ending(session: &Session) -> String {
    // An idle session has no statement to cancel.
    if session.state == "active" {
        format!("SELECT pg_cancel_backend({});", session.pid)
    } else {
        format!("SELECT pg_terminate_backend({});", session.pid)
    }
}

/// A session in one phrase.
pub(crate) fn phrase(session: &Session) -> String {
    let role = if session.role.is_empty() { &session.kind } else { &session.role };
    let client = if session.client.is_empty() { "local" } else { &session.client };
    format!("pid {} ({role}, {client}, {:?})", session.pid, session.application)
}

/// Applies the rules.
pub(crate) fn find(facts: &Facts, limits: &Limits, found: &mut Vec<Finding>) {
    locks(facts, limits, found);
    transactions(facts, limits, found);
    connections(facts, found);
    memory(facts, found);
}

fn locks(facts: &Facts, limits: &Limits, found: &mut Vec<Finding>) {
    let before = found.len();
    for root in lock_tree(&facts.sessions) {
        let below = members(&root);
        let longest = facts
            .sessions
            .iter()
            .filter(|session| below.contains(&session.pid) && !session.blocked_by.is_empty())
            .filter_map(|session| session.query_age)
            .fold(0.0, f64::max);
        // Short waits are normal.
        if longest < limits.lock_wait / 5.0 {
            continue;
        }
        let blocker = facts.sessions.iter().find(|session| session.pid == root.pid);
        let title = match blocker {
            Some(blocker) if blocker.is_idle_in_transaction() => {
                format!("{} keeps others waiting, and is idle in a transaction", phrase(blocker))
            }
            Some(blocker) => format!("{} keeps others waiting", phrase(blocker)),
            // Process 0 means a prepared transaction.
            None if root.pid == 0 => "A prepared transaction keeps others waiting".to_owned(),
            None => format!("pid {} keeps others waiting", root.pid),
        };
        let severity = if longest >= limits.lock_wait { Severity::Warning } else { Severity::Notice };
        let mut measured =
            format!("{}, the longest for {}", words::several(root.count(), "waiter"), words::span(longest));
        if let Some(blocker) = blocker {
            measured += &format!("; its statement: {}", words::statement(&blocker.query, 120));
        }
        let finding = Finding::new("lock_waits", severity, title, measured)
            .because("A lock is held until its transaction ends. Everybody behind it waits as long.");
        found.push(match blocker {
            Some(blocker) => finding.type_this(ending(blocker)),
            None => finding.type_this("SELECT gid, prepared, owner FROM pg_prepared_xacts ORDER BY prepared;   -- then COMMIT PREPARED or ROLLBACK PREPARED"),
        });
    }
    if found.len() == before && !facts.sessions.is_empty() {
        let measured = words::several(facts.sessions.len(), "session");
        found.push(Finding::ok("lock_waits", "Nobody waits long for a lock", measured));
    }
}

fn members(waiter: &Waiter) -> BTreeSet<i32> {
    let mut pids: BTreeSet<i32> = waiter.waiters.iter().flat_map(members).collect();
    pids.insert(waiter.pid);
    pids
}

fn transactions(facts: &Facts, limits: &Limits, found: &mut Vec<Finding>) {
    let before = found.len();
    for session in facts.sessions.iter().filter(|session| session.is_client()) {
        let age = session.transaction_age.unwrap_or(0.0);
        let idle = session.state_age.unwrap_or(0.0);
        let snapshot = session
            .snapshot_age
            .map_or_else(String::new, |age| format!(", its snapshot {} transactions old", words::count(age)));
        if session.is_idle_in_transaction() && idle >= limits.long {
            found.push(
                Finding::new(
                    "idle_in_transaction",
                    Severity::Warning,
                    format!("{} is idle in a transaction", phrase(session)),
                    format!("for {}{snapshot}; last statement: {}", words::span(idle), words::statement(&session.query, 120)),
                )
                .because("It holds its locks, and rows that have died since its snapshot cannot be removed from any table.")
                .type_this(ending(session))
                .type_this(set(facts, "idle_in_transaction_session_timeout", "60s")),
            );
        } else if session.state == "active" && age >= limits.long && session.blocked_by.is_empty() {
            let severity = if age >= limits.long * 60.0 { Severity::Warning } else { Severity::Notice };
            found.push(
                Finding::new(
                    "long_transaction",
                    severity,
                    format!("{} has a transaction open for {}", phrase(session), words::span(age)),
                    format!("{}{snapshot}", words::statement(&session.query, 120)),
                )
                .because("Rows that have died since its snapshot cannot be removed from any table, so tables grow.")
                .type_this(ending(session)),
            );
        }
    }
    if found.len() == before && !facts.sessions.is_empty() {
        found.push(Finding::ok(
            "long_transactions",
            "No transaction is long or forgotten",
            format!("limit {}", words::span(limits.long)),
        ));
    }
}

fn connections(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(most) = facts.settings.number("max_connections").filter(|most| *most >= 1.0) else { return };
    // The doctor is one of them.
    let clients = facts.sessions.iter().filter(|session| session.is_client()).count() + 1;
    let share = clients as f64 / most;
    let measured = format!("{clients} of max_connections {most}");
    let severity = match share {
        0.95.. => Severity::Critical,
        0.80.. => Severity::Warning,
        _ => Severity::Ok,
    };
    if severity == Severity::Ok {
        found.push(Finding::ok("connections", "There are connections left", measured));
        return;
    }
    let idle = facts.sessions.iter().filter(|session| session.is_client() && session.state == "idle").count();
    found.push(
        Finding::new("connections", severity, "Connections run out", format!("{measured}, {idle} of them idle"))
            .because("The next client is refused.")
            .type_this("SELECT application_name, state, count(*) FROM pg_stat_activity GROUP BY 1, 2 ORDER BY 3 DESC;   -- who has them; put a pool in front")
            .type_this(set(facts, "max_connections", &format!("{:.0}", most * 2.0))),
    );
}

fn memory(facts: &Facts, found: &mut Vec<Finding>) {
    /// A session with more than this has usually grown over time.
    const MUCH: u64 = 256 << 20;
    let Some(processes) = facts.processes.as_ref().filter(|processes| !processes.sessions.is_empty()) else {
        return;
    };
    let total = processes.total();
    let largest = processes.sessions.iter().max_by_key(|session| session.private);
    let Some(largest) = largest else { return };
    let measured = format!(
        "{} hold {}, the largest (pid {}) {}",
        words::several(processes.sessions.len(), "session"),
        words::bytes(total),
        largest.pid,
        words::bytes(largest.private)
    );
    let is_too_much = facts.machine.memory.is_some_and(|memory| total > memory / 4);
    if is_too_much || largest.private > MUCH {
        let severity = if is_too_much { Severity::Warning } else { Severity::Notice };
        found.push(
            Finding::new("session_memory", severity, "Sessions hold much memory", measured)
                .because("Caches of plans and of the catalogue grow with every table that a session has touched, and are not given back before it ends.")
                .type_this(format!("SELECT pg_terminate_backend({});   -- clients that reconnect begin small; let the pool recycle connections", largest.pid)),
        );
    } else {
        found.push(Finding::ok("session_memory", "Sessions are small", measured));
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{settings, verdict, verdicts};
    use super::*;
    use crate::facts::ProcessMemory;
    use crate::facts::machine::SessionMemory;

    fn session(pid: i32, state: &str, age: f64, blocked_by: &[i32]) -> Session {
        Session {
            pid,
            role: "teller".to_owned(),
            kind: "client backend".to_owned(),
            state: state.to_owned(),
            query: "UPDATE t SET x = 1".to_owned(),
            transaction_age: Some(age),
            query_age: Some(age),
            state_age: Some(age),
            blocked_by: blocked_by.to_vec(),
            ..Session::default()
        }
    }

    fn with(sessions: Vec<Session>) -> Facts {
        Facts { sessions, ..Facts::default() }
    }

    fn shape(tree: &[Waiter]) -> String {
        tree.iter().map(|waiter| format!("{}[{}]", waiter.pid, shape(&waiter.waiters))).collect()
    }

    #[test]
    fn waiters_are_below_their_blockers() {
        let sessions = [
            session(1, "idle in transaction", 9.0, &[]),
            session(2, "active", 8.0, &[1]),
            session(3, "active", 7.0, &[2, 1]),
            session(4, "active", 7.0, &[]),
        ];
        assert_eq!(shape(&lock_tree(&sessions)), "1[2[]3[]]");
        assert_eq!(lock_tree(&sessions)[0].count(), 2);
        let chain = [
            session(1, "active", 1.0, &[]),
            session(2, "active", 1.0, &[1]),
            session(3, "active", 1.0, &[2]),
        ];
        assert_eq!(shape(&lock_tree(&chain)), "1[2[3[]]]");
    }

    #[test]
    fn cycles_and_invisible_blockers_are_handled() {
        let circle = [session(1, "active", 1.0, &[2]), session(2, "active", 1.0, &[1])];
        assert_eq!(shape(&lock_tree(&circle)), "1[2[]]");
        assert_eq!(shape(&lock_tree(&[session(1, "active", 1.0, &[1])])), "1[]");
        assert_eq!(shape(&lock_tree(&[session(5, "active", 1.0, &[99])])), "99[5[]]");
        assert_eq!(shape(&lock_tree(&[session(5, "active", 1.0, &[0])])), "0[5[]]");
        assert!(
            verdict(&with(vec![session(5, "active", 2.0, &[0])]), "lock_waits")
                .unwrap()
                .title
                .contains("prepared")
        );
    }

    #[test]
    fn idle_blockers_are_terminated_and_busy_ones_cancelled() {
        let waits =
            |state: &str, age: f64| with(vec![session(1, state, age, &[]), session(2, "active", age, &[1])]);
        let finding = verdict(&waits("idle in transaction", 6.0), "lock_waits").unwrap();
        assert_eq!(finding.severity, Severity::Warning);
        assert_eq!(finding.remedy, ["SELECT pg_terminate_backend(1);"]);
        assert_eq!(verdicts(&waits("active", 0.5)), [], "locks are made for short waits");
        let finding = verdict(&waits("active", 1.0), "lock_waits").unwrap();
        assert_eq!(
            (finding.severity, finding.remedy[0].as_str()),
            (Severity::Notice, "SELECT pg_cancel_backend(1);")
        );
    }

    #[test]
    fn forgotten_and_long_transactions_are_distinguished() {
        assert_eq!(verdicts(&with(vec![session(1, "idle in transaction", 59.0, &[])])), []);
        let one = |state: &str, age: f64| verdicts(&with(vec![session(1, state, age, &[])]));
        assert_eq!(
            one("idle in transaction (aborted)", 61.0),
            [("idle_in_transaction".to_owned(), Severity::Warning)]
        );
        assert_eq!(one("active", 61.0), [("long_transaction".to_owned(), Severity::Notice)]);
        assert_eq!(one("active", 7200.0), [("long_transaction".to_owned(), Severity::Warning)]);
        assert_eq!(one("idle", 90_000.0), []);
    }

    #[test]
    fn connections_are_reported_before_they_run_out() {
        let mut facts = with((1..80).map(|pid| session(pid, "idle", 1.0, &[])).collect());
        facts.settings = settings(&[("max_connections", "100", "", "postmaster")]);
        assert_eq!(verdict(&facts, "connections").unwrap().severity, Severity::Warning);
        facts.settings = settings(&[("max_connections", "81", "", "postmaster")]);
        assert_eq!(verdict(&facts, "connections").unwrap().severity, Severity::Critical);
        facts.settings = settings(&[("max_connections", "0", "", "postmaster")]);
        assert_eq!(verdict(&facts, "connections"), None);
    }

    #[test]
    fn memory_of_sessions_counts_against_the_machines() {
        let mut facts = Facts::default();
        let held =
            |private| Some(ProcessMemory { sessions: vec![SessionMemory { pid: 1, private }], hidden: 0 });
        facts.processes = held(300 << 20);
        assert_eq!(verdict(&facts, "session_memory").unwrap().severity, Severity::Notice);
        facts.machine.memory = Some(1 << 30);
        assert_eq!(verdict(&facts, "session_memory").unwrap().severity, Severity::Warning);
        facts.processes = held(1 << 20);
        assert_eq!(verdict(&facts, "session_memory").unwrap().severity, Severity::Ok);
        facts.processes = Some(ProcessMemory::default());
        assert_eq!(verdict(&facts, "session_memory"), None);
    }
}
