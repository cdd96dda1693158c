//! Settings against machine and load.

use super::{Finding, Severity, set};
use crate::facts::{Facts, Storage};
use crate::tuning::{self, Advice};
use crate::words;

/// Applies the rules.
pub(crate) fn find(facts: &Facts, advice: &[Advice], found: &mut Vec<Finding>) {
    let before = found.len();
    pending(facts, found);
    shared_buffers(facts, found);
    memory_in_all(facts, found);
    caches(facts, found);
    spills(facts, found);
    for name in ["random_page_cost", "effective_io_concurrency", "jit", "checkpoint_completion_target"] {
        planner(facts, advice, name, found);
    }
    huge_pages(facts, found);
    many_connections(facts, found);
    if found.len() == before
        && facts.machine.memory.is_some()
        && facts.settings.text("shared_buffers").is_some()
    {
        found.push(Finding::ok(
            "settings",
            "The settings fit the machine",
            words::several(facts.settings.0.len(), "setting"),
        ));
    }
}

fn pending(facts: &Facts, found: &mut Vec<Finding>) {
    let waiting: Vec<_> = facts
        .settings
        .0
        .iter()
        .filter(|(_, setting)| setting.pending_restart)
        .map(|(name, _)| name.as_str())
        .collect();
    if !waiting.is_empty() {
        found.push(
            Finding::new(
                "pending_restart",
                Severity::Notice,
                "Changed settings wait for a restart",
                waiting.join(", "),
            )
            .because("What the file says is not what the server does.")
            .type_this("systemctl restart postgresql"),
        );
    }
}

/// Returns whether the server has been used since its statistics began.
fn is_used(facts: &Facts) -> bool {
    facts.databases.iter().map(|database| database.commits).sum::<u64>() >= 1_000
}

fn shared_buffers(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(now) = facts.settings.bytes("shared_buffers") else { return };
    let data: u64 = facts.databases.iter().filter_map(|database| database.size).sum();
    let measured = |memory: u64| {
        format!(
            "shared_buffers {} ({} of {} memory); the databases have {}",
            words::bytes(now),
            words::share(now as f64 / memory.max(1) as f64),
            words::bytes(memory),
            words::bytes(data)
        )
    };
    let Some(memory) = facts.machine.memory else {
        // If the machine's memory is unknown, only values that are too small for any machine are reported.
        if now <= 128 << 20 && data > 4 * now {
            found.push(
                Finding::new(
                    "shared_buffers",
                    Severity::Warning,
                    "shared_buffers is as small as it comes out of the package",
                    format!(
                        "shared_buffers {}, the databases have {}",
                        words::bytes(now),
                        words::bytes(data)
                    ),
                )
                .because(SMALL)
                .type_this(
                    "batzen doctor --memory 64GB --cores 16 …   # say what the machine has, for numbers",
                ),
            );
        }
        return;
    };
    let advised = tuning::shared_buffers(memory);
    if now * 2 < advised {
        let severity = if data > now || is_used(facts) { Severity::Warning } else { Severity::Notice };
        found.push(
            Finding::new(
                "shared_buffers",
                severity,
                "shared_buffers is small for this machine",
                measured(memory),
            )
            .because(SMALL)
            .type_this(set(facts, "shared_buffers", &words::setting_bytes(advised))),
        );
    } else if now > memory / 10 * 6 {
        found.push(
            Finding::new("shared_buffers", Severity::Warning, "shared_buffers leaves the rest of the machine too little", measured(memory))
                .because("The operating system and the sessions need memory, too; when none is left the kernel ends the server.")
                .type_this(set(facts, "shared_buffers", &words::setting_bytes(advised))),
        );
    } else {
        found.push(Finding::ok("shared_buffers", "shared_buffers fits the machine", measured(memory)));
    }
}

const SMALL: &str = "Pages that do not fit are read again and again; under load the default has answered 0.35 % of the reads from the cache.";

fn memory_in_all(facts: &Facts, found: &mut Vec<Finding>) {
    let known = (|| {
        let connections = facts.settings.number("max_connections")?;
        let work = facts.settings.bytes("work_mem")?;
        Some((facts.machine.memory?, facts.settings.bytes("shared_buffers")?, work, connections))
    })();
    let Some((memory, shared, work, connections)) = known else { return };
    // Assume that half the sessions sort at the same time.
    let needed = shared as f64 + work as f64 * connections / 2.0;
    if needed > memory as f64 * 0.9 {
        let advised = tuning::work_mem(memory, connections as u64);
        found.push(
            Finding::new(
                "work_mem",
                Severity::Warning,
                "Sorting sessions can use up the memory",
                format!(
                    "shared_buffers {} and work_mem {} for half of {connections} connections are {} of {}",
                    words::bytes(shared),
                    words::bytes(work),
                    words::bytes(needed as u64),
                    words::bytes(memory)
                ),
            )
            .because("When no memory is left the kernel ends a process, and the server restarts all of them.")
            .type_this(set(facts, "work_mem", &words::setting_bytes(advised.min(work)))),
        );
    }
}

fn caches(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(memory) = facts.machine.memory else { return };
    let rules = [
        (
            "effective_cache_size",
            tuning::effective_cache_size(memory),
            2,
            "The planner believes that less is cached than there is room for, and avoids indexes.",
        ),
        (
            "maintenance_work_mem",
            tuning::maintenance_work_mem(memory),
            4,
            "Vacuum then walks through every index several times, and indexes are built from many small pieces.",
        ),
    ];
    for (name, advised, factor, why) in rules {
        let Some(now) = facts.settings.bytes(name) else { continue };
        if now.saturating_mul(factor) < advised {
            found.push(
                Finding::new(
                    name,
                    Severity::Notice,
                    format!("{name} is small for this machine"),
                    format!("{} of {} memory", words::bytes(now), words::bytes(memory)),
                )
                .because(why)
                .type_this(set(facts, name, &words::setting_bytes(advised))),
            );
        } else if name == "effective_cache_size" && now > memory {
            found.push(
                Finding::new(name, Severity::Notice, "effective_cache_size is more than the machine has", format!("{} of {} memory", words::bytes(now), words::bytes(memory)))
                    .because("The planner believes that everything is cached, and chooses indexes where a whole read is faster.")
                    .type_this(set(facts, name, &words::setting_bytes(advised))),
            );
        }
    }
}

fn spills(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(database) = facts.database() else { return };
    let Some(now) = facts.settings.bytes("work_mem") else { return };
    let hours = (facts.statistics_age() / 3600.0).max(1.0);
    if database.temp_files < 100 || database.temp_bytes < 1 << 30 || database.temp_files as f64 / hours < 10.0
    {
        return;
    }
    let connections = facts.settings.number("max_connections").map_or(100, |number| number as u64);
    let advised = facts.machine.memory.map_or(now * 4, |memory| tuning::work_mem(memory, connections));
    if advised <= now {
        return;
    }
    found.push(
        Finding::new(
            "temp_files",
            Severity::Notice,
            "Sorts and hashes are written to the disk",
            format!(
                "{} files, {}; work_mem {}",
                words::count(database.temp_files),
                words::bytes(database.temp_bytes),
                words::bytes(now)
            ),
        )
        .because("What does not fit into work_mem goes through temporary files.")
        .type_this(set(facts, "work_mem", &words::setting_bytes(advised))),
    );
}

/// Settings with one good value for this machine; others are a notice.
fn planner(facts: &Facts, advice: &[Advice], name: &str, found: &mut Vec<Finding>) {
    let Some(advised) = advice.iter().find(|advice| advice.name == name) else { return };
    let Some(now) = facts.settings.text(name) else { return };
    let number = now.parse::<f64>().unwrap_or(0.0);
    let is_solid = tuning::is_fast_at_random(facts) && facts.machine.storage != Storage::Unknown
        || facts.machine.storage == Storage::Unknown
            && facts.syncs.as_ref().is_some_and(|syncs| syncs.median < 0.003);
    let (is_bad, title, why) = match name {
        "random_page_cost" => (
            is_solid && number > 2.0,
            "The planner believes that the disk turns",
            "It then avoids indexes for whole-table reads, although this disk reads anywhere as fast as in order.",
        ),
        "effective_io_concurrency" => (
            is_solid && number < 16.0,
            "The server asks the disk for one page after the other",
            "A solid-state disk answers hundreds of requests at a time: bitmap reads wait for no reason.",
        ),
        "jit" => (
            now == "on",
            "Statements may be compiled before they are executed",
            "Compiling takes tens of milliseconds and memory in every session. It pays for reports, not for short transactions, and a wrong estimate is enough to start it.",
        ),
        _ => (
            number < 0.7,
            "Checkpoints write in a hurry",
            "What is written in half the time disturbs twice as much.",
        ),
    };
    if is_bad {
        found.push(
            Finding::new(name, Severity::Notice, title, format!("{name} = {now}"))
                .because(why)
                .type_this(set(facts, name, &advised.value)),
        );
    }
}

fn huge_pages(facts: &Facts, found: &mut Vec<Finding>) {
    /// Above this size the page tables of many sessions cost more than the effort of huge pages.
    const LARGE: u64 = 8 << 30;
    let Some(shared) = facts.settings.bytes("shared_buffers").filter(|size| *size >= LARGE) else { return };
    let is_tried = facts.settings.text("huge_pages").is_some_and(|value| value != "off");
    let Some(set_aside) = facts.machine.huge_pages else { return };
    if set_aside >= shared && is_tried {
        return;
    }
    let needed = facts.settings.number("shared_memory_size_in_huge_pages").filter(|pages| *pages > 0.0);
    let pages = needed.unwrap_or((shared / (2 << 20)) as f64 * 1.05);
    let mut finding = Finding::new(
        "huge_pages",
        Severity::Notice,
        "The cache is not in huge pages",
        format!("shared_buffers {}, huge pages {}", words::bytes(shared), words::bytes(set_aside)),
    )
    .because("Every session keeps a table of the cache's small pages: with hundreds of sessions gigabytes, and slower reads.");
    if !is_tried {
        finding = finding.type_this(set(facts, "huge_pages", "try"));
    }
    found.push(finding.type_this(format!("echo vm.nr_hugepages={pages:.0} > /etc/sysctl.d/60-postgresql.conf; sysctl --system   # then restart the server")));
}

fn many_connections(facts: &Facts, found: &mut Vec<Finding>) {
    let (Some(most), Some(cores)) = (facts.settings.number("max_connections"), facts.machine.cores) else {
        return;
    };
    let active =
        facts.sessions.iter().filter(|session| session.is_client() && session.state == "active").count();
    let clients = facts.sessions.iter().filter(|session| session.is_client()).count();
    if most > 200.0 && clients as f64 > f64::from(cores) * 20.0 {
        found.push(
            Finding::new(
                "many_connections",
                Severity::Notice,
                "Many sessions share few cores",
                format!("{clients} sessions, {active} active, {cores} cores, max_connections {most}"),
            )
            .because("Each session is a process with caches of its own. A few busy ones do more work than many that take turns.")
            .type_this("put a pool in front (pgbouncer), or give the clients smaller pools"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{settings, verdict, verdicts};
    use crate::facts::{Database, Facts, Machine, Server, Session, Storage, Syncs};
    use crate::findings::Severity;

    const GB: u64 = 1 << 30;

    fn machine(memory: u64) -> Machine {
        Machine { memory: Some(memory), cores: Some(4), storage: Storage::Solid, ..Machine::default() }
    }

    fn buffers(megabytes: u64, memory: Option<u64>, data: u64) -> Facts {
        Facts {
            server: Server { database: "d".to_owned(), ..Server::default() },
            machine: memory.map_or_else(Machine::default, machine),
            databases: vec![Database { name: "d".to_owned(), size: Some(data), ..Database::default() }],
            settings: settings(&[("shared_buffers", &(megabytes * 128).to_string(), "8kB", "postmaster")]),
            ..Facts::default()
        }
    }

    #[test]
    fn default_cache_is_reported_with_data_or_load() {
        assert_eq!(
            verdict(&buffers(128, Some(16 * GB), GB), "shared_buffers").unwrap().severity,
            Severity::Warning
        );
        let mut idle = buffers(128, Some(16 * GB), 1 << 20);
        assert_eq!(verdict(&idle, "shared_buffers").unwrap().severity, Severity::Notice);
        idle.databases[0].commits = 5_000;
        assert_eq!(verdict(&idle, "shared_buffers").unwrap().severity, Severity::Warning);
        assert_eq!(
            verdict(&buffers(4096, Some(16 * GB), GB), "shared_buffers").unwrap().severity,
            Severity::Ok
        );
        assert_eq!(
            verdict(&buffers(128, Some(GB), GB), "shared_buffers").unwrap().severity,
            Severity::Ok,
            "it fits a small machine"
        );
        assert_eq!(
            verdict(&buffers(12_000, Some(16 * GB), GB), "shared_buffers").unwrap().severity,
            Severity::Warning
        );
    }

    #[test]
    fn unknown_memory_only_reports_the_default() {
        assert_eq!(verdict(&buffers(128, None, GB), "shared_buffers").unwrap().severity, Severity::Warning);
        assert_eq!(verdict(&buffers(128, None, 1 << 20), "shared_buffers"), None);
        assert_eq!(verdict(&buffers(4096, None, 1 << 40), "shared_buffers"), None);
    }

    #[test]
    fn too_much_memory_for_sorts_is_a_warning() {
        let mut facts = buffers(4096, Some(16 * GB), GB);
        let more = |work: &str| {
            settings(&[
                ("shared_buffers", "524288", "8kB", "postmaster"),
                ("work_mem", work, "kB", "user"),
                ("max_connections", "200", "", "postmaster"),
            ])
        };
        facts.settings = more("1048576");
        assert_eq!(verdict(&facts, "work_mem").unwrap().severity, Severity::Warning);
        facts.settings = more("4096");
        assert_eq!(verdict(&facts, "work_mem"), None);
    }

    #[test]
    fn unknown_disk_counts_as_solid_only_after_a_measurement() {
        let mut facts =
            Facts { settings: settings(&[("random_page_cost", "4", "", "user")]), ..Facts::default() };
        assert_eq!(verdicts(&facts), []);
        facts.syncs = Some(Syncs { median: 0.001, ..Syncs::default() });
        assert_eq!(verdicts(&facts).len(), 1);
        facts.machine.storage = Storage::Spinning;
        assert_eq!(verdicts(&facts), []);
    }

    #[test]
    fn advised_settings_have_no_findings() {
        let mut facts = buffers(4096, Some(16 * GB), GB);
        let names = [
            "effective_cache_size",
            "maintenance_work_mem",
            "random_page_cost",
            "effective_io_concurrency",
            "jit",
            "checkpoint_completion_target",
            "work_mem",
            "max_wal_size",
        ];
        for name in names {
            facts.settings.0.insert(name.to_owned(), crate::facts::Setting::default());
        }
        for advice in crate::tuning::advise(&facts) {
            let digits = advice.value.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
            let unit = &advice.value[digits.len()..];
            let (value, unit) = if digits.is_empty() { (advice.value.as_str(), "") } else { (digits, unit) };
            let mut one = settings(&[(advice.name, value, unit, "sighup")]);
            facts.settings.0.append(&mut one.0);
        }
        assert_eq!(verdicts(&facts), []);
    }

    #[test]
    fn spilled_sorts_and_many_sessions_are_notices() {
        let mut facts = buffers(4096, Some(16 * GB), GB);
        facts.settings =
            settings(&[("work_mem", "4096", "kB", "user"), ("max_connections", "500", "", "postmaster")]);
        facts.databases[0].temp_files = 5_000;
        facts.databases[0].temp_bytes = 20 * GB;
        assert_eq!(verdict(&facts, "temp_files").unwrap().severity, Severity::Notice);
        facts.sessions = (0..100)
            .map(|pid| Session { pid, kind: "client backend".to_owned(), ..Session::default() })
            .collect();
        assert_eq!(verdict(&facts, "many_connections").unwrap().severity, Severity::Notice);
    }

    #[test]
    fn large_caches_need_huge_pages() {
        let mut facts = buffers(16_384, Some(64 * GB), GB);
        facts.machine.huge_pages = Some(0);
        assert!(
            verdict(&facts, "huge_pages").unwrap().remedy.last().unwrap().contains("vm.nr_hugepages=8602")
        );
        facts.machine.huge_pages = Some(20 * GB);
        facts.settings.0.append(&mut settings(&[("huge_pages", "try", "", "postmaster")]).0);
        assert_eq!(verdict(&facts, "huge_pages"), None);
    }
}
