//! Settings and states that lose data.

use super::{Finding, Severity, set};
use crate::facts::{Facts, Storage};
use crate::words;

/// Applies the rules.
pub(crate) fn find(facts: &Facts, found: &mut Vec<Finding>) {
    switches(facts, found);
    overrides(facts, found);
    checksums(facts, found);
    disk(facts, found);
}

fn source(facts: &Facts, name: &str) -> String {
    facts.settings.0.get(name).map_or_else(String::new, |setting| format!(" (from: {})", setting.source))
}

fn switches(facts: &Facts, found: &mut Vec<Finding>) {
    let before = found.len();
    let rules = [
        (
            "fsync",
            "off",
            "on",
            "fsync is off: a crash of the machine destroys the database",
            "The server does not wait until data is on the disk. After a power failure the files contradict each other, and nothing but a backup helps.",
        ),
        (
            "full_page_writes",
            "off",
            "on",
            "full_page_writes is off: a crash in the middle of a page destroys it",
            "A page of 8 kB is not written at once. Only its copy in the write-ahead log repairs one that was half written.",
        ),
        (
            "synchronous_commit",
            "off",
            "on",
            "synchronous_commit is off: a crash loses what was answered",
            "COMMIT answers before the change is on the disk. After a crash the last transactions are gone although somebody was told that they happened.",
        ),
        (
            "zero_damaged_pages",
            "on",
            "off",
            "zero_damaged_pages is on: damaged pages are silently emptied",
            "Rows vanish without an error.",
        ),
        (
            "ignore_checksum_failure",
            "on",
            "off",
            "ignore_checksum_failure is on: damaged pages are read as if they were sound",
            "Wrong data is returned, and copied into backups.",
        ),
    ];
    for (name, bad, good, title, why) in rules {
        if facts.settings.text(name) == Some(bad) {
            let finding = Finding::new(
                name,
                Severity::Critical,
                title,
                format!("{name} = {bad}{}", source(facts, name)),
            );
            found.push(finding.because(why).type_this(set(facts, name, good)));
        }
    }
    if found.len() == before && facts.settings.text("fsync").is_some() {
        let measured = "fsync, full_page_writes on; synchronous_commit ".to_owned();
        let commit = facts.settings.text("synchronous_commit").unwrap_or("not known");
        found.push(Finding::ok("durability", "What is committed stays", measured + commit));
    }
}

/// Settings by `ALTER ROLE` and `ALTER DATABASE` are not in the server's settings.
fn overrides(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(database) = facts.database() else { return };
    for text in &database.overrides {
        let (setting, role) =
            text.split_once(" for role ").map_or((text.as_str(), None), |(set, role)| (set, Some(role)));
        let Some(("synchronous_commit", "off")) = setting.split_once('=') else { continue };
        let (whose, remedy) = match role {
            Some(role) => (
                format!("role {role}"),
                format!(
                    "ALTER ROLE {role} RESET synchronous_commit; ALTER ROLE {role} IN DATABASE {} RESET synchronous_commit;",
                    words::identifier(&database.name),
                    role = words::identifier(role),
                ),
            ),
            None => (
                format!("database {}", database.name),
                format!("ALTER DATABASE {} RESET synchronous_commit;", words::identifier(&database.name)),
            ),
        };
        let title = format!("synchronous_commit is off for {whose}: a crash loses what was answered");
        let finding = Finding::new("synchronous_commit_override", Severity::Critical, title, text.clone());
        found.push(
            finding
                .because("It overrides the server's own setting, for every new session.")
                .type_this(remedy),
        );
    }
}

fn checksums(facts: &Facts, found: &mut Vec<Finding>) {
    let broken: Vec<_> = facts
        .databases
        .iter()
        .filter(|database| database.checksum_failures.is_some_and(|count| count > 0))
        .collect();
    if broken.is_empty() {
        return;
    }
    let list: Vec<_> = broken
        .iter()
        .map(|database| {
            format!("{}: {}", database.name, words::count(database.checksum_failures.unwrap_or(0)))
        })
        .collect();
    found.push(
        Finding::new(
            "checksum_failures",
            Severity::Critical,
            "Pages on the disk are damaged",
            list.join(", "),
        )
        .because("A checksum was wrong: disk, controller, memory or kernel has changed data.")
        .type_this("pg_amcheck --all --heapallindexed   # which tables and indexes")
        .type_this("pg_verifybackup BACKUP   # then restore, on another disk"),
    );
}

fn disk(facts: &Facts, found: &mut Vec<Finding>) {
    if facts.machine.storage == Storage::Volatile {
        let measured = facts.server.data_directory.clone().unwrap_or_default();
        found.push(
            Finding::new(
                "data_in_memory",
                Severity::Critical,
                "The data is in a file system in memory",
                measured,
            )
            .because("A restart of the machine loses everything.")
            .type_this("stop the server, copy its data directory to a disk, start it there"),
        );
    }
    let (Some(size), Some(free)) = (facts.machine.disk_size, facts.machine.disk_free) else { return };
    let share = free as f64 / size.max(1) as f64;
    let wal = facts.settings.bytes("max_wal_size").unwrap_or(0);
    let severity = if share < 0.03 || free < wal / 2 {
        Severity::Critical
    } else if share < 0.10 || free < wal {
        Severity::Warning
    } else {
        Severity::Ok
    };
    let measured = format!("{} of {} free ({})", words::bytes(free), words::bytes(size), words::share(share));
    if severity == Severity::Ok {
        found.push(Finding::ok("disk_space", "There is room on the disk", measured));
        return;
    }
    found.push(
        Finding::new("disk_space", severity, "The disk that holds the data is nearly full", measured)
            .because("When there is no room for the write-ahead log the server stops.")
            .type_this("SELECT slot_name, active, wal_status FROM pg_replication_slots;   -- slots keep the write-ahead log")
            .type_this("SELECT relname, pg_size_pretty(pg_total_relation_size(oid)) FROM pg_class ORDER BY pg_total_relation_size(oid) DESC LIMIT 20;"),
    );
}

#[cfg(test)]
mod tests {
    use super::super::testing::{settings, verdict, verdicts};
    use crate::facts::{Database, Facts, Machine, Server, Storage};
    use crate::findings::Severity;

    #[test]
    fn switches_that_lose_data_are_critical() {
        let facts = Facts {
            settings: settings(&[
                ("fsync", "off", "", "sighup"),
                ("full_page_writes", "off", "", "sighup"),
                ("synchronous_commit", "off", "", "user"),
            ]),
            ..Facts::default()
        };
        let critical = |rule: &str| (rule.to_owned(), Severity::Critical);
        assert_eq!(
            verdicts(&facts),
            [critical("fsync"), critical("full_page_writes"), critical("synchronous_commit")]
        );
        let local =
            Facts { settings: settings(&[("synchronous_commit", "local", "", "user")]), ..Facts::default() };
        assert_eq!(verdicts(&local), []);
    }

    #[test]
    fn setting_of_a_role_counts() {
        let database = Database {
            name: "Money".to_owned(),
            overrides: vec!["work_mem=1GB".to_owned(), "synchronous_commit=off for role teller".to_owned()],
            ..Database::default()
        };
        let mut facts = Facts {
            server: Server { database: "Money".to_owned(), ..Server::default() },
            databases: vec![database],
            ..Facts::default()
        };
        let finding = verdict(&facts, "synchronous_commit_override").unwrap();
        assert!(finding.title.contains("role teller"), "{finding:?}");
        assert!(finding.remedy[0].contains("IN DATABASE \"Money\""), "{finding:?}");
        facts.databases[0].overrides = vec!["synchronous_commit=off".to_owned()];
        assert!(verdict(&facts, "synchronous_commit_override").unwrap().title.contains("database Money"));
    }

    #[test]
    fn full_disks_and_memory_disks_are_found() {
        let mut facts = Facts {
            machine: Machine { disk_size: Some(100 << 30), disk_free: Some(50 << 30), ..Machine::default() },
            ..Facts::default()
        };
        assert_eq!(verdict(&facts, "disk_space").unwrap().severity, Severity::Ok);
        facts.machine.disk_free = Some(9 << 30);
        assert_eq!(verdict(&facts, "disk_space").unwrap().severity, Severity::Warning);
        facts.settings = settings(&[("max_wal_size", "32768", "MB", "sighup")]);
        assert_eq!(verdict(&facts, "disk_space").unwrap().severity, Severity::Critical);
        facts.machine.disk_size = Some(0);
        facts.machine.disk_free = Some(0);
        assert_eq!(verdict(&facts, "disk_space").unwrap().severity, Severity::Critical);
        facts.machine.storage = Storage::Volatile;
        assert_eq!(verdict(&facts, "data_in_memory").unwrap().severity, Severity::Critical);
    }
}
