//! Write-ahead log, checkpoints, standbys, slots, archive, prepared transactions.

use super::{Finding, Severity, set};
use crate::facts::{Facts, Storage};
use crate::{tuning, words};

/// Applies the rules.
pub(crate) fn find(facts: &Facts, found: &mut Vec<Finding>) {
    checkpoints(facts, found);
    log_writing(facts, found);
    syncs(facts, found);
    standbys(facts, found);
    slots(facts, found);
    archive(facts, found);
    prepared(facts, found);
}

fn checkpoints(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(size) = facts.settings.bytes("max_wal_size") else { return };
    let rates = facts.rates();
    let counters = &facts.after;
    let (timed, requested) = (counters.checkpoints_timed, counters.checkpoints_requested);
    let timeout = facts.settings.seconds("checkpoint_timeout").unwrap_or(300.0);
    let age = if counters.checkpoints_age > 0.0 { counters.checkpoints_age } else { facts.server.uptime };
    let mut measured = format!(
        "{} because it was time, {} asked for, in {}; {}/s written; max_wal_size {}",
        words::count(timed),
        words::count(requested),
        words::span(age),
        words::bytes(rates.wal as u64),
        words::bytes(size)
    );
    // A checkpoint begins when somewhat more than half of max_wal_size is written (the log must last until
    // the next one ends).
    let target = facts.settings.number("checkpoint_completion_target").unwrap_or(0.9);
    let until_full = size as f64 / (1.0 + target) / rates.wal.max(1.0);
    let is_short_now = until_full < timeout * 0.2;
    // Backups, restarts and operators request checkpoints, too, so a few mean nothing.
    let often_asked = requested >= 10 && requested > timed && age / (requested as f64) < timeout;
    let advised = tuning::max_wal_size(facts);
    if (is_short_now || often_asked) && advised > size / 2 * 3 {
        if is_short_now {
            measured += &format!(", which lasts {}", words::span(until_full));
        }
        let severity = if is_short_now && until_full < 60.0 || often_asked {
            Severity::Warning
        } else {
            Severity::Notice
        };
        found.push(
            Finding::new("checkpoints", severity, "Checkpoints come because the log is full, not because it is time", measured)
                .because("After each checkpoint every changed page is written to the log as a whole once: frequent checkpoints multiply the writing, and commits stall.")
                .type_this(set(facts, "max_wal_size", &words::setting_bytes(advised)))
                .type_this(set(facts, "checkpoint_timeout", "15min")),
        );
    } else {
        found.push(Finding::ok("checkpoints", "Checkpoints have room", measured));
    }
    let Some(backend) = counters.buffers_backend else { return };
    let all = backend + counters.buffers_clean + counters.buffers_checkpoint;
    let share = backend as f64 / all.max(1) as f64;
    let is_small = facts
        .machine
        .memory
        .zip(facts.settings.bytes("shared_buffers"))
        .is_some_and(|(memory, now)| now.saturating_mul(2) < tuning::shared_buffers(memory));
    // Loading data and building indexes has the same effect; for a cache that is too small there is a better
    // finding.
    if all >= 1_000_000 && share > 0.8 && !is_small {
        found.push(
            Finding::new(
                "backend_writes",
                Severity::Notice,
                "Sessions write pages themselves",
                format!("{} of {} pages", words::share(share), words::count(all)),
            )
            .because("A statement that needs room in the cache must first write what is there.")
            .type_this(set(facts, "bgwriter_lru_maxpages", "1000"))
            .type_this(set(facts, "bgwriter_delay", "50ms")),
        );
    }
}

fn log_writing(facts: &Facts, found: &mut Vec<Finding>) {
    let counters = &facts.after;
    let seconds = facts.rates().seconds;
    if let (Some(before), Some(after)) = (facts.before.wal_buffers_full, counters.wal_buffers_full) {
        let rate = after.saturating_sub(before) as f64 / seconds.max(1.0);
        let now = facts.settings.bytes("wal_buffers").unwrap_or(0);
        if rate >= 10.0 && now < 64 << 20 {
            found.push(
                Finding::new(
                    "wal_buffers",
                    Severity::Notice,
                    "The buffers of the write-ahead log are full too often",
                    format!("{rate:.0} times a second; wal_buffers {}", words::bytes(now)),
                )
                .because("Whoever finds them full writes before it can go on.")
                .type_this(set(facts, "wal_buffers", "64MB")),
            );
        }
    }
    if let (Some(pages), Some(bytes)) = (counters.wal_full_pages, counters.wal_counted_bytes) {
        let share = pages as f64 * 8192.0 / bytes.max(1.0);
        let is_off = facts.settings.text("wal_compression") == Some("off");
        if is_off && bytes > 1e9 && share > 0.3 {
            found.push(
                Finding::new(
                    "wal_compression",
                    Severity::Notice,
                    "Much of the write-ahead log is whole pages, not compressed",
                    format!("about {} of {}", words::share(share.min(1.0)), words::bytes(bytes as u64)),
                )
                .because("Compressed they take a half to a third: less to write, to sync, to send, to keep.")
                .type_this(set(
                    facts,
                    "wal_compression",
                    if facts.server.version_num >= 150_000 { "lz4" } else { "on" },
                )),
            );
        }
    }
}

fn syncs(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(syncs) = &facts.syncs else { return };
    let slow = syncs.slow.map_or_else(String::new, |slow| format!(", 1 in 100 above {}", words::span(slow)));
    let measured = format!(
        "{} of {} in {}{slow}",
        words::span(syncs.median),
        words::several(syncs.count as usize, "sync"),
        syncs.source
    );
    let severity = match syncs.median {
        0.010.. => Severity::Warning,
        0.003.. => Severity::Notice,
        _ => Severity::Ok,
    };
    if severity == Severity::Ok || facts.machine.storage == Storage::Volatile {
        found.push(Finding::ok("sync_latency", "The disk syncs quickly", measured));
        return;
    }
    found.push(
        Finding::new("sync_latency", severity, "The disk takes long to sync", measured)
            .because("Every commit waits for one. Commits at the same time share one, so throughput suffers less than latency.")
            .type_this("put pg_wal on a disk with power-loss protection: stop the server, move the directory, leave a symbolic link")
            .type_this(set(facts, "commit_delay", "200")),
    );
}

fn standbys(facts: &Facts, found: &mut Vec<Finding>) {
    let before = found.len();
    for standby in &facts.stream.standbys {
        let bytes = standby.lag_bytes.unwrap_or(0);
        let seconds = standby.lag_seconds.unwrap_or(0.0);
        let severity = if bytes > 16 << 30 {
            Severity::Critical
        } else if bytes > 1 << 30 || seconds > 60.0 {
            Severity::Warning
        } else if bytes > 128 << 20 || seconds > 10.0 {
            Severity::Notice
        } else {
            continue;
        };
        found.push(
            Finding::new(
                "replication_lag",
                severity,
                format!("Standby {} ({}) lags behind", standby.name, standby.client),
                format!("{} and {} behind, {}, {}", words::bytes(bytes), words::span(seconds), standby.state, standby.sync),
            )
            .because("What it has not got is lost if this server is. A synchronous standby keeps every commit waiting.")
            .type_this("SELECT * FROM pg_stat_replication;   -- here: sent but not flushed is its disk, not sent is the network")
            .type_this("SELECT * FROM pg_stat_database_conflicts;   -- there: queries that keep it from replaying"),
        );
    }
    let wanted = facts.settings.text("synchronous_standby_names").is_some_and(|names| !names.is_empty());
    let is_there =
        facts.stream.standbys.iter().any(|standby| matches!(standby.sync.as_str(), "sync" | "quorum"));
    if wanted
        && !is_there
        && !facts.server.in_recovery
        && !facts.gaps.iter().any(|gap| gap.what == "standbys")
    {
        found.push(
            Finding::new(
                "synchronous_standby_missing",
                Severity::Critical,
                "The synchronous standby is not there: commits wait for ever",
                format!(
                    "synchronous_standby_names = {:?}",
                    facts.settings.text("synchronous_standby_names").unwrap_or_default()
                ),
            )
            .because("Every commit waits until a standby has it.")
            .type_this("start the standby; or, if commits may rest on one disk alone:")
            .type_this("ALTER SYSTEM SET synchronous_standby_names = ''; SELECT pg_reload_conf();"),
        );
    }
    if let Some(lag) = facts.stream.replay_lag.filter(|lag| *lag > 60.0) {
        found.push(
            Finding::new("replay_lag", Severity::Warning, "This standby lags behind", format!("{} behind", words::span(lag)))
                .because("What it answers is old, and promoting it takes as long as replaying the rest.")
                .type_this("SELECT pid, query_start, query FROM pg_stat_activity WHERE state = 'active';   -- queries that keep it from replaying"),
        );
    }
    if found.len() == before && !facts.stream.standbys.is_empty() {
        found.push(Finding::ok(
            "replication_lag",
            "Standbys keep up",
            words::several(facts.stream.standbys.len(), "standby"),
        ));
    }
}

fn slots(facts: &Facts, found: &mut Vec<Finding>) {
    for slot in &facts.stream.slots {
        let kept = slot.kept.unwrap_or(0);
        let is_lost = slot.wal_status.as_deref() == Some("lost");
        if slot.is_active && !is_lost {
            continue;
        }
        let room = facts.machine.disk_free.unwrap_or(u64::MAX);
        let severity = if kept > 64 << 30 || kept > room / 2 {
            Severity::Critical
        } else if kept > 1 << 30 || is_lost {
            Severity::Warning
        } else {
            Severity::Notice
        };
        let title = if is_lost {
            format!("ReplicationSlot {} has lost what it was for", slot.name)
        } else {
            format!("Nobody reads from slot {}", slot.name)
        };
        found.push(
            Finding::new("inactive_slot", severity, title, format!("{}, {} of the write-ahead log kept for it", slot.kind, words::bytes(kept)))
                .because("The server keeps the write-ahead log for it until the disk is full, and rows that vacuum could remove.")
                .type_this(format!("SELECT pg_drop_replication_slot('{}');   -- if its reader does not come back", slot.name.replace('\'', "''")))
                .type_this(set(facts, "max_slot_wal_keep_size", "64GB")),
        );
    }
}

fn archive(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(archiver) = &facts.stream.archiver else { return };
    if archiver.is_failing {
        let file = archiver.last_failed.as_deref().unwrap_or("?");
        let last = archiver.last_age.map_or("never".to_owned(), |age| format!("{} ago", words::span(age)));
        found.push(
            Finding::new(
                "archive",
                Severity::Critical,
                "The write-ahead log is not archived",
                format!("{} attempts failed, last file {file}, last success {last}", words::count(archiver.failed)),
            )
            .because("A backup without the log after it is worth what it was when it was made, and the files that wait fill the disk.")
            .type_this("SHOW archive_command;   -- execute it by hand, as the server's user; its words are in the server's log"),
        );
    } else if archiver.archived > 0 {
        found.push(Finding::ok(
            "archive",
            "The write-ahead log is archived",
            format!("{} files", words::count(archiver.archived)),
        ));
    }
}

fn prepared(facts: &Facts, found: &mut Vec<Finding>) {
    /// The second phase normally comes within seconds.
    const FORGOTTEN: f64 = 300.0;
    for prepared in facts.stream.prepared.iter().filter(|prepared| prepared.age >= FORGOTTEN) {
        let name = prepared.name.replace('\'', "''");
        found.push(
            Finding::new(
                "prepared_transaction",
                Severity::Warning,
                format!("Prepared transaction {} is forgotten", prepared.name),
                format!("for {}, of {} in {}", words::span(prepared.age), prepared.owner, prepared.database),
            )
            .because("It holds its locks and its snapshot over restarts, without any session: vacuum removes nothing that died since.")
            .type_this(format!("ROLLBACK PREPARED '{name}';   -- or COMMIT PREPARED '{name}'; in database {}", prepared.database)),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{settings, verdict, verdicts};
    use crate::facts::stream::{Archiver, Prepared, ReplicationSlot, Standby};
    use crate::facts::{Counters, Facts, Stream, Syncs};
    use crate::findings::Severity;

    fn written(rate: f64, timed: u64, requested: u64, age: f64) -> Facts {
        let after = Counters {
            at: 2.0,
            wal_bytes: rate,
            checkpoints_timed: timed,
            checkpoints_requested: requested,
            checkpoints_age: age,
            ..Counters::default()
        };
        Facts {
            settings: settings(&[
                ("max_wal_size", "1024", "MB", "sighup"),
                ("checkpoint_timeout", "900", "s", "sighup"),
            ]),
            before: Counters { at: 1.0, ..Counters::default() },
            after,
            ..Facts::default()
        }
    }

    #[test]
    fn too_small_max_wal_size_is_found() {
        let finding = verdict(&written(30e6, 0, 0, 100.0), "checkpoints").unwrap();
        assert_eq!(finding.severity, Severity::Warning, "{finding:?}");
        assert!(finding.remedy[0].contains("max_wal_size"), "{finding:?}");
        assert_eq!(verdict(&written(8e6, 0, 0, 100.0), "checkpoints").unwrap().severity, Severity::Notice);
        assert_eq!(verdict(&written(1e3, 5, 3, 2_400.0), "checkpoints").unwrap().severity, Severity::Ok);
        assert_eq!(
            verdict(&written(1e3, 5, 100, 2_400.0), "checkpoints").unwrap().severity,
            Severity::Warning
        );
        assert_eq!(
            verdict(&written(1e3, 5, 12, 1e6), "checkpoints").unwrap().severity,
            Severity::Ok,
            "backups ask, too"
        );
    }

    #[test]
    fn standbys_are_judged_by_bytes_and_time() {
        let lag = |bytes, seconds| {
            let standby = Standby {
                name: "s".to_owned(),
                lag_bytes: Some(bytes),
                lag_seconds: Some(seconds),
                ..Standby::default()
            };
            let facts =
                Facts { stream: Stream { standbys: vec![standby], ..Stream::default() }, ..Facts::default() };
            verdict(&facts, "replication_lag").unwrap().severity
        };
        assert_eq!(lag(0, 0.0), Severity::Ok);
        assert_eq!(lag(0, 11.0), Severity::Notice);
        assert_eq!(lag(2 << 30, 0.0), Severity::Warning);
        assert_eq!(lag(20 << 30, 0.0), Severity::Critical);
    }

    #[test]
    fn missing_synchronous_standby_is_critical() {
        let mut facts = Facts {
            settings: settings(&[("synchronous_standby_names", "*", "", "sighup")]),
            ..Facts::default()
        };
        assert_eq!(verdicts(&facts), [("synchronous_standby_missing".to_owned(), Severity::Critical)]);
        facts.stream.standbys = vec![Standby { sync: "sync".to_owned(), ..Standby::default() }];
        assert_eq!(verdicts(&facts), []);
    }

    #[test]
    fn slots_archiver_and_prepared_transactions_are_checked() {
        let slot = |kept, status: &str| ReplicationSlot {
            name: "s".to_owned(),
            kept: Some(kept),
            wal_status: Some(status.to_owned()),
            ..ReplicationSlot::default()
        };
        let mut facts = Facts::default();
        for (kept, status, severity) in [
            (0, "reserved", Severity::Notice),
            (2 << 30, "extended", Severity::Warning),
            (0, "lost", Severity::Warning),
            (65 << 30, "extended", Severity::Critical),
        ] {
            facts.stream.slots = vec![slot(kept, status)];
            assert_eq!(verdict(&facts, "inactive_slot").unwrap().severity, severity);
        }
        facts.stream.slots = vec![ReplicationSlot { is_active: true, ..slot(0, "reserved") }];
        facts.stream.archiver = Some(Archiver { is_failing: true, ..Archiver::default() });
        facts.stream.prepared = vec![
            Prepared { name: "it's".to_owned(), age: 301.0, ..Prepared::default() },
            Prepared { age: 1.0, ..Prepared::default() },
        ];
        assert_eq!(
            verdicts(&facts),
            [
                ("archive".to_owned(), Severity::Critical),
                ("prepared_transaction".to_owned(), Severity::Warning)
            ]
        );
        assert!(verdict(&facts, "prepared_transaction").unwrap().remedy[0].contains("'it''s'"));
    }

    #[test]
    fn slow_syncs_and_uncompressed_pages_are_found() {
        let sync = |median| {
            let facts = Facts { syncs: Some(Syncs { median, ..Syncs::default() }), ..Facts::default() };
            verdict(&facts, "sync_latency").unwrap().severity
        };
        assert_eq!(
            [sync(0.0005), sync(0.005), sync(0.02)],
            [Severity::Ok, Severity::Notice, Severity::Warning]
        );
        let mut facts =
            Facts { settings: settings(&[("wal_compression", "off", "", "superuser")]), ..Facts::default() };
        facts.after =
            Counters { wal_full_pages: Some(100_000), wal_counted_bytes: Some(2e9), ..Counters::default() };
        assert_eq!(verdicts(&facts), [("wal_compression".to_owned(), Severity::Notice)]);
        facts.after.wal_full_pages = Some(1_000);
        assert_eq!(verdicts(&facts), []);
    }
}
