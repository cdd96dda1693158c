//! Samples of a host and its processes, as the kernel counts them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::bench::load::procfs::{CoreTime, device_written_bytes, thread_times_ns};

/// One look at a host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Milliseconds since 1970.
    pub(crate) time_ms: u64,
    /// The host.
    pub(crate) host: HostSample,
    /// The processes that run, by instance.
    pub(crate) processes: BTreeMap<String, ProcessSample>,
    /// The round trips to other hosts in milliseconds, if they were measured since the sample before.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) round_trips_ms: BTreeMap<String, f64>,
}

/// The machine's counters, which namespaces of one machine share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostSample {
    /// Time that its cores worked, in ticks.
    pub(crate) busy_ticks: u64,
    /// Time that its cores had, in ticks.
    pub(crate) all_ticks: u64,
    /// Its cores.
    pub(crate) cores: usize,
    /// Time for which some process waited for the disk, in microseconds, where the kernel counts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) disk_wait_us: Option<u64>,
    /// Memory for new work, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) memory_available_bytes: Option<u64>,
    /// Room on the experiment's disk, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) disk_free_bytes: Option<u64>,
    /// Bytes written to that disk, where the kernel counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) disk_written_bytes: Option<u64>,
    /// Bytes that its interfaces received, but for the one to itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) received_bytes: Option<u64>,
    /// Bytes that they sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sent_bytes: Option<u64>,
}

/// A process with its children.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessSample {
    /// Processor time in milliseconds, children that have ended included.
    pub(crate) cpu_ms: u64,
    /// Resident memory in bytes.
    pub(crate) rss_bytes: u64,
    /// Processor time of its busiest thread, in milliseconds: in each second that of the thread that was busiest then.
    pub(crate) busiest_thread_ms: u64,
    /// Time for which a sync was held up, in milliseconds, if its disk may be slow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) disk_busy_ms: Option<u64>,
}

/// A tick of the kernel's counters in milliseconds. It is 10 on every Linux that runs Batzen.
pub(super) const TICK_MS: u64 = 10;

/// A line of `/proc/PID/stat`.
struct Stat {
    pid: u32,
    parent: u32,
    ticks: u64,
    rss_pages: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The name, in parentheses, may contain any character.
        let end = text.rfind(')')?;
        let pid = text.split_whitespace().next()?.parse().ok()?;
        let words: Vec<&str> = text[end + 1..].split_whitespace().collect();
        let number = |index: usize| words.get(index)?.parse::<u64>().ok();
        let ticks = (11..=14).map(number).sum::<Option<u64>>()?;
        Some(Self { pid, parent: u32::try_from(number(1)?).ok()?, ticks, rss_pages: number(21)? })
    }
}

fn all() -> Vec<Stat> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_pid = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    entries
        .filter(|entry| entry.file_name().to_str().is_some_and(is_pid))
        .filter_map(|entry| Stat::parse(&std::fs::read_to_string(entry.path().join("stat")).ok()?))
        .collect()
}

fn tree(all: &[Stat], root: u32) -> Vec<&Stat> {
    let mut found: Vec<&Stat> = all.iter().filter(|stat| stat.pid == root).collect();
    let mut next = 0;
    while let Some(parent) = found.get(next).map(|stat| stat.pid) {
        found.extend(all.iter().filter(|stat| stat.parent == parent && stat.pid != root));
        next += 1;
    }
    found
}

/// The ids of a process and all its descendants.
pub(super) fn descendants(root: u32) -> Vec<u32> {
    tree(&all(), root).into_iter().map(|stat| stat.pid).collect()
}

/// The times of all threads of a process, and the sum of the largest growths from sample to sample.
#[derive(Clone, Debug, Default)]
struct Threads {
    before_ns: BTreeMap<u32, u64>,
    busiest_ns: u64,
}

impl Threads {
    fn add(&mut self, now_ns: BTreeMap<u32, u64>) {
        let growth = |(id, ns): (&u32, &u64)| Some(ns.saturating_sub(*self.before_ns.get(id)?));
        self.busiest_ns += now_ns.iter().filter_map(growth).max().unwrap_or(0);
        self.before_ns = now_ns;
    }
}

/// The bytes that all interfaces have received and sent, but for the one to the host itself.
fn interface_bytes(net_dev: &str) -> Option<(u64, u64)> {
    let rows = net_dev.lines().filter_map(|line| line.split_once(':'));
    let bytes = |(_, counts): (&str, &str)| {
        let counts: Vec<&str> = counts.split_whitespace().collect();
        Some((counts.first()?.parse::<u64>().ok()?, counts.get(8)?.parse::<u64>().ok()?))
    };
    rows.filter(|(name, _)| name.trim() != "lo")
        .filter_map(bytes)
        .reduce(|sum, next| (sum.0 + next.0, sum.1 + next.1))
}

fn host(dir: &Path) -> HostSample {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available_kb = meminfo.lines().find_map(|line| {
        line.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    let network = interface_bytes(&std::fs::read_to_string("/proc/net/dev").unwrap_or_default());
    let disk = rustix::fs::statvfs(dir).ok();
    let (busy_ticks, all_ticks) = CoreTime::of(&[]).busy_and_all();
    let pressure = std::fs::read_to_string("/proc/pressure/io").unwrap_or_default();
    HostSample {
        busy_ticks,
        all_ticks,
        cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        disk_wait_us: pressure
            .lines()
            .find(|line| line.starts_with("some"))
            .and_then(|line| line.rsplit_once("total=")?.1.trim().parse().ok()),
        memory_available_bytes: available_kb.map(|kb| kb * 1024),
        disk_free_bytes: disk.map(|found| found.f_bavail * found.f_frsize),
        disk_written_bytes: device_written_bytes(dir),
        received_bytes: network.map(|(received, _)| received),
        sent_bytes: network.map(|(_, sent)| sent),
    }
}

/// Takes samples of a host, one after the other.
#[derive(Debug)]
pub(super) struct Sampler {
    threads: BTreeMap<String, Threads>,
    /// A directory on the disk that samples tell of.
    dir: PathBuf,
}

impl Sampler {
    /// No samples yet.
    pub(super) fn new(dir: &Path) -> Self {
        Self { threads: BTreeMap::new(), dir: dir.to_owned() }
    }

    /// Looks at the host and at these processes.
    pub(super) fn take<'a>(&mut self, processes: impl Iterator<Item = (&'a str, u32)>) -> Sample {
        let page_bytes = rustix::param::page_size() as u64;
        let all = all();
        let processes = processes.map(|(name, pid)| {
            let tree = tree(&all, pid);
            let threads = self.threads.entry(name.to_owned()).or_default();
            threads.add(tree.iter().flat_map(|stat| thread_times_ns(stat.pid)).collect());
            let sample = ProcessSample {
                cpu_ms: tree.iter().map(|stat| stat.ticks).sum::<u64>() * TICK_MS,
                rss_bytes: tree.iter().map(|stat| stat.rss_pages).sum::<u64>() * page_bytes,
                busiest_thread_ms: threads.busiest_ns / 1_000_000,
                disk_busy_ms: None,
            };
            (name.to_owned(), sample)
        });
        let processes = processes.collect();
        Sample { processes, host: host(&self.dir), time_ms: now_ms(), round_trips_ms: BTreeMap::new() }
    }
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_counted_with_its_children() {
        let text = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 100 5000 6 0 0";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.pid, stat.parent, stat.ticks, stat.rss_pages), (7, 1, 100, 6));
        let of = |pid, parent| Stat { pid, parent, ticks: 1, rss_pages: 1 };
        let all = [of(1, 0), of(2, 1), of(3, 2), of(4, 1), of(5, 9)];
        assert_eq!(tree(&all, 1).iter().map(|stat| stat.pid).collect::<Vec<_>>(), [1, 2, 4, 3]);
        assert!(tree(&all, 99).is_empty());
    }

    #[test]
    fn bytes_between_hosts_are_counted() {
        let text = "Inter-|   Receive   |  Transmit\n face |bytes packets\n    lo: 99 1 0 0 0 0 0 0 99 1 0 0 0 0 0 0\n\
                    \x20 lan0: 10 1 0 0 0 0 0 0 20 1 0 0 0 0 0 0\n  wan0: 1 1 0 0 0 0 0 0 2 1 0 0 0 0 0 0\n";
        assert_eq!(interface_bytes(text), Some((11, 22)));
        assert_eq!(interface_bytes(""), None);
    }

    #[test]
    fn the_busiest_thread_is_that_of_each_second() {
        let mut threads = Threads::default();
        threads.add(BTreeMap::from([(1, 5_000), (2, 0)]));
        threads.add(BTreeMap::from([(1, 5_100), (2, 900)]));
        // A thread that is new has no growth yet, and one that has ended none any more.
        threads.add(BTreeMap::from([(2, 1_000), (3, 700)]));
        assert_eq!(threads.busiest_ns, 1_000);
    }

    #[test]
    fn this_process_uses_memory() {
        let sample = Sampler::new(Path::new(".")).take(std::iter::once(("me", std::process::id())));
        assert!(sample.processes["me"].rss_bytes > 0);
        assert!(sample.host.memory_available_bytes > Some(0) && sample.host.disk_free_bytes.is_some());
        assert!(sample.host.all_ticks >= sample.host.busy_ticks && sample.host.cores > 0);
    }
}
