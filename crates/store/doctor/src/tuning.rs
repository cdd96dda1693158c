//! The settings that a server should have: pure rules from machine and facts.
//!
//! They are for short transactions on a dedicated machine. On a shared machine, `--memory` and `--cores` give
//! the server's share.

use std::fmt::Write as _;

use serde::Serialize;

use crate::facts::{Facts, Storage};
use crate::words;

const MB: u64 = 1 << 20;
const GB: u64 = 1 << 30;

/// One line of `postgresql.conf`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// The setting.
    pub(crate) name: &'static str,
    /// Its value, as written in the file.
    pub(crate) value: String,
    /// Why, in a few words.
    pub(crate) why: &'static str,
    /// Whether it needs a restart.
    pub(crate) restart: bool,
}

/// The input of the rules.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    memory: u64,
    shared_buffers: u64,
}

impl Sizes {
    fn of(memory: u64) -> Self {
        // Rounds to 16 MB (large values to 256 MB), for readable numbers.
        let quarter = memory / 4;
        let step = if quarter >= 8 * GB { 256 * MB } else { 16 * MB };
        Self { memory, shared_buffers: (quarter / step * step).max(16 * MB) }
    }
}

/// A quarter of the memory: other pages are usually in the operating system's cache.
pub(crate) fn shared_buffers(memory: u64) -> u64 {
    Sizes::of(memory).shared_buffers
}

/// The size of all caches together.
pub(crate) fn effective_cache_size(memory: u64) -> u64 {
    memory / 4 * 3 / (16 * MB) * (16 * MB)
}

/// The memory for each index build or vacuum, several of which may run at a time.
pub(crate) fn maintenance_work_mem(memory: u64) -> u64 {
    (memory / 16).clamp(64 * MB, 2 * GB) / (16 * MB) * (16 * MB)
}

/// The memory for each sort and hash of each session: a quarter of the memory if half the sessions sort at a
/// time.
pub(crate) fn work_mem(memory: u64, connections: u64) -> u64 {
    (memory / 4 / (connections / 2).max(1)).clamp(4 * MB, 64 * MB) / MB * MB
}

/// Twice the amount written between two checkpoints, as far as the disk has space.
pub(crate) fn max_wal_size(facts: &Facts) -> u64 {
    let between = (facts.rates().wal * CHECKPOINT_TIMEOUT).min(256.0 * GB as f64) as u64;
    let room = facts.machine.disk_free.map_or(16 * GB, |free| free / 8);
    (2 * between).max(4 * GB).min(room).max(GB) / GB * GB
}

const CHECKPOINT_TIMEOUT: f64 = 900.0;

/// Returns whether random reads cost about as much as sequential ones.
pub(crate) fn is_fast_at_random(facts: &Facts) -> bool {
    match facts.machine.storage {
        Storage::Solid | Storage::Volatile => true,
        Storage::Spinning => false,
        // An unknown disk: a spinning one cannot sync in less than half a turn.
        Storage::Unknown => facts.syncs.as_ref().is_none_or(|syncs| syncs.median < 0.003),
    }
}

/// The settings that this server should have. Those that depend on the memory are left out if it is unknown.
pub(crate) fn advise(facts: &Facts) -> Vec<Advice> {
    let mut list = Vec::new();
    let settings = &facts.settings;
    let mut add = |name: &'static str, value: String, why: &'static str| {
        // The server would not start with a setting that its version does not have.
        if let Some(setting) = settings.0.get(name) {
            list.push(Advice { name, value, why, restart: setting.context == "postmaster" });
        }
    };
    let connections = settings.number("max_connections").map_or(100, |number| number as u64);
    if let Some(memory) = facts.machine.memory {
        let sizes = Sizes::of(memory);
        let size = words::setting_bytes;
        add("shared_buffers", size(sizes.shared_buffers), "a quarter of the memory");
        add(
            "effective_cache_size",
            size(effective_cache_size(sizes.memory)),
            "what all caches hold together",
        );
        add("work_mem", size(work_mem(memory, connections)), "for each sort and hash of each session");
        add("maintenance_work_mem", size(maintenance_work_mem(memory)), "index builds and vacuum");
        if sizes.shared_buffers >= 2 * GB {
            add("wal_buffers", size(64 * MB), "commits of many sessions wait less for room");
        }
    }
    add(
        "huge_pages",
        "try".to_owned(),
        "less bookkeeping for a large shared_buffers, if the kernel has some set aside",
    );

    let wal = max_wal_size(facts);
    add("max_wal_size", words::setting_bytes(wal), "checkpoints because it is time, not because it is full");
    add("min_wal_size", words::setting_bytes(wal / 4), "files are used again instead of made again");
    add(
        "checkpoint_timeout",
        "15min".to_owned(),
        "each page is written in full only once between checkpoints",
    );
    add("checkpoint_completion_target", "0.9".to_owned(), "spread the writing");
    let compression = settings.0.get("wal_compression").and_then(|setting| setting.choices.as_ref());
    let has_lz4 = compression.is_some_and(|choices| choices.iter().any(|choice| choice == "lz4"));
    add(
        "wal_compression",
        if has_lz4 { "lz4" } else { "on" }.to_owned(),
        "pages written in full take less room",
    );

    let is_fast = is_fast_at_random(facts);
    add("random_page_cost", if is_fast { "1.1" } else { "4" }.to_owned(), "what the disk says");
    if facts.server.version_num < 180_000 {
        let depth = if is_fast { "200" } else { "2" };
        add("effective_io_concurrency", depth.to_owned(), "requests that the disk takes at a time");
    }
    add("jit", "off".to_owned(), "compiling costs more than a short statement takes");

    if let Some(cores) = facts.machine.cores {
        let cores = u64::from(cores.max(1));
        add("max_parallel_workers", cores.to_string(), "as many as there are cores");
        add("max_parallel_workers_per_gather", (cores / 2).clamp(1, 4).to_string(), "half the cores at most");
        add("max_worker_processes", cores.max(8).to_string(), "parallel workers, replication, extensions");
        add(
            "autovacuum_max_workers",
            (cores / 4).clamp(3, 8).to_string(),
            "tables that are cleaned at a time",
        );
    }
    add("autovacuum", "on".to_owned(), "without it tables only grow");
    add("autovacuum_naptime", "15s".to_owned(), "look often");
    add("autovacuum_vacuum_scale_factor", "0.05".to_owned(), "clean before there is much");
    add("autovacuum_analyze_scale_factor", "0.02".to_owned(), "statistics that follow growth");
    add("autovacuum_vacuum_insert_scale_factor", "0.05".to_owned(), "keep tables that only grow frozen");
    add("autovacuum_vacuum_cost_limit", "2000".to_owned(), "as fast as today's disks permit");

    add("fsync", "on".to_owned(), "what is committed stays");
    add("synchronous_commit", durable_commit(settings.text("synchronous_commit")), "what is answered stays");
    add("full_page_writes", "on".to_owned(), "a crash in the middle of a page is repaired");

    add("track_io_timing", "on".to_owned(), "how long reads take");
    add("track_wal_io_timing", "on".to_owned(), "how long commits wait for the disk");
    add("log_checkpoints", "on".to_owned(), "in the log: how long, how much");
    add("log_lock_waits", "on".to_owned(), "in the log: who waited for whom");
    if facts.server.offers_statements {
        add(
            "shared_preload_libraries",
            preloaded(settings.text("shared_preload_libraries")),
            "which statements are slow",
        );
    }
    list
}

/// Stricter settings are kept.
fn durable_commit(now: Option<&str>) -> String {
    match now {
        Some(strong @ ("remote_write" | "remote_apply")) => strong.to_owned(),
        _ => "on".to_owned(),
    }
}

fn preloaded(now: Option<&str>) -> String {
    let now = now.unwrap_or_default();
    let mut libraries: Vec<&str> =
        now.split(',').map(|name| name.trim().trim_matches('"')).filter(|name| !name.is_empty()).collect();
    if !libraries.contains(&"pg_stat_statements") {
        libraries.push("pg_stat_statements");
    }
    libraries.join(",")
}

/// The advice as a file for `conf.d` or the end of `postgresql.conf`.
pub fn fragment(facts: &Facts, list: &[Advice]) -> String {
    let mut text = String::new();
    let machine = &facts.machine;
    let memory = machine
        .memory
        .map_or("unknown memory".to_owned(), |memory| format!("{} of memory", words::bytes(memory)));
    let cores =
        machine.cores.map_or("unknown cores".to_owned(), |cores| words::several(cores as usize, "core"));
    let disk = match machine.storage {
        Storage::Solid => "solid-state disk",
        Storage::Spinning => "spinning disk",
        Storage::Volatile => "data in memory",
        Storage::Unknown => "unknown disk",
    };
    let _ = writeln!(
        text,
        "# PostgreSQL {} for short transactions: {memory}, {cores}, {disk}.",
        facts.server.version_num / 10_000
    );
    let _ = writeln!(text, "# By batzen doctor. Values that need a restart are marked.");
    if machine.memory.is_none() {
        let _ = writeln!(text, "# What depends on memory is missing: say --memory.");
    }
    let width = list.iter().map(|advice| advice.name.len() + advice.value.len() + 5).max().unwrap_or(0);
    for advice in list {
        let is_plain = advice.value.chars().all(|one| one.is_ascii_alphanumeric() || "._".contains(one));
        let value = if is_plain { advice.value.clone() } else { format!("'{}'", advice.value) };
        let line = format!("{} = {value}", advice.name);
        let restart = if advice.restart { " (restart)" } else { "" };
        let _ = writeln!(text, "{line:<width$} # {}{restart}", advice.why);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Counters, Machine, Setting, Settings, Syncs};

    fn known(names: &[&str]) -> Settings {
        Settings(names.iter().map(|name| ((*name).to_owned(), Setting::default())).collect())
    }

    #[test]
    fn sizes_follow_the_memory() {
        assert_eq!(shared_buffers(16 * GB), 4 * GB);
        assert_eq!(shared_buffers(256 * GB), 64 * GB);
        assert_eq!(shared_buffers(20 * MB), 16 * MB);
        assert_eq!(effective_cache_size(16 * GB), 12 * GB);
        assert_eq!(maintenance_work_mem(16 * GB), GB);
        assert_eq!(maintenance_work_mem(512 * MB), 64 * MB);
        assert_eq!(maintenance_work_mem(256 * GB), 2 * GB);
        assert_eq!(work_mem(16 * GB, 100), 64 * MB);
        assert_eq!(work_mem(GB, 100), 5 * MB);
        assert_eq!(work_mem(GB, 0), 64 * MB);
        assert_eq!(work_mem(GB, 10_000), 4 * MB);
    }

    #[test]
    fn max_wal_size_follows_the_load_and_the_disk() {
        let written = |rate: f64, free: Option<u64>| Facts {
            before: Counters { at: 1.0, ..Counters::default() },
            after: Counters { at: 2.0, wal_bytes: rate, ..Counters::default() },
            machine: Machine { disk_free: free, ..Machine::default() },
            ..Facts::default()
        };
        assert_eq!(max_wal_size(&written(0.0, None)), 4 * GB);
        assert_eq!(max_wal_size(&written((5 * MB) as f64, Some(1000 * GB))), 8 * GB);
        assert_eq!(max_wal_size(&written((500 * MB) as f64, Some(100 * GB))), 12 * GB);
        assert_eq!(max_wal_size(&written((500 * MB) as f64, Some(GB))), GB);
        assert_eq!(max_wal_size(&written(f64::INFINITY, None)), 16 * GB);
    }

    #[test]
    fn unknown_disk_is_judged_by_its_syncs() {
        let mut facts = Facts::default();
        assert!(is_fast_at_random(&facts));
        facts.syncs = Some(Syncs { median: 0.008, ..Syncs::default() });
        assert!(!is_fast_at_random(&facts));
        facts.machine.storage = Storage::Solid;
        assert!(is_fast_at_random(&facts));
    }

    #[test]
    fn only_settings_that_the_server_knows_are_advised() {
        let mut facts = Facts { settings: known(&["shared_buffers", "jit"]), ..Facts::default() };
        assert_eq!(advise(&facts).len(), 1, "the memory is not known");
        facts.machine.memory = Some(8 * GB);
        let list = advise(&facts);
        assert_eq!(list.iter().map(|advice| advice.name).collect::<Vec<_>>(), ["shared_buffers", "jit"]);
        let text = fragment(&facts, &list);
        assert!(text.contains("shared_buffers = 2GB"), "{text}");
        assert!(text.contains("8 GB of memory"), "{text}");
    }

    #[test]
    fn preloaded_libraries_are_kept() {
        assert_eq!(preloaded(None), "pg_stat_statements");
        assert_eq!(preloaded(Some("citus, \"auto_explain\"")), "citus,auto_explain,pg_stat_statements");
        assert_eq!(preloaded(Some("pg_stat_statements")), "pg_stat_statements");
        assert_eq!(durable_commit(Some("remote_apply")), "remote_apply");
        assert_eq!(durable_commit(Some("off")), "on");
    }
}
