//! The resources that a process uses, as the kernel counts them.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// CPU time of a process by the role of its threads, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CpuTime {
    /// By role: `http`, `net`, `cpu`, `lane`, `store`, `other`.
    pub(crate) by_role_ns: BTreeMap<&'static str, u64>,
}

impl CpuTime {
    /// CPU time of the current threads of a process. Threads that have ended are not included.
    pub(crate) fn of(pid: u32) -> Self {
        let mut by_role_ns = BTreeMap::new();
        for (name, ns) in threads(pid) {
            *by_role_ns.entry(role(&name)).or_default() += ns;
        }
        Self { by_role_ns }
    }

    /// CPU time of several processes together.
    pub(crate) fn of_all(pids: &[u32]) -> Self {
        let mut all = Self::default();
        for (role, ns) in pids.iter().flat_map(|pid| Self::of(*pid).by_role_ns) {
            *all.by_role_ns.entry(role).or_default() += ns;
        }
        all
    }

    /// The sum over all roles.
    pub(crate) fn total_ns(&self) -> u64 {
        self.by_role_ns.values().sum()
    }

    /// The difference to `earlier`, by role.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let before = |role| earlier.by_role_ns.get(role).copied().unwrap_or(0);
        let by_role_ns =
            self.by_role_ns.iter().map(|(role, ns)| (*role, ns.saturating_sub(before(role)))).collect();
        Self { by_role_ns }
    }
}

/// The role of a thread, from its name.
pub(crate) fn role(thread: &str) -> &'static str {
    const ROLES: [(&str, &str); 9] = [
        ("net", "net"),
        ("http", "http"),
        ("async", "http"),
        ("tokio", "http"),
        ("cpu", "cpu"),
        ("collect", "cpu"),
        ("lane", "lane"),
        ("store", "store"),
        ("journal", "store"),
    ];
    ROLES.iter().find(|(start, _)| thread.starts_with(start)).map_or("other", |(_, role)| role)
}

/// Name and CPU time in nanoseconds of each thread.
fn threads(pid: u32) -> Vec<(String, u64)> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    tasks
        .filter_map(|task| {
            let path = task.ok()?.path();
            let name = std::fs::read_to_string(path.join("comm")).ok()?.trim_end().to_owned();
            Some((name, thread_ns(&path)?))
        })
        .collect()
}

/// CPU time of a thread: exact where the kernel keeps scheduler statistics, else in ticks of 10 ms.
fn thread_ns(task: &Path) -> Option<u64> {
    if let Ok(text) = std::fs::read_to_string(task.join("schedstat")) {
        return text.split_whitespace().next()?.parse().ok();
    }
    let stat = std::fs::read_to_string(task.join("stat")).ok()?;
    // The name, in parentheses, may contain any character.
    let after_name = &stat[stat.rfind(')')? + 1..];
    let ticks = |index: usize| after_name.split_whitespace().nth(index)?.parse::<u64>().ok();
    Some((ticks(11)? + ticks(12)?) * 10_000_000)
}

/// CPU time, in nanoseconds, of each current thread of a process by its id.
pub(crate) fn thread_times_ns(pid: u32) -> BTreeMap<u32, u64> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let times = tasks.filter_map(|task| {
        let id = task.file_name().to_str()?.parse().ok()?;
        Some((id, thread_ns(&task.path())?))
    });
    times.collect()
}

/// CPU time, in nanoseconds, of each thread of this process whose name begins with `prefix`.
pub(crate) fn own_threads_ns(prefix: &str) -> BTreeMap<String, u64> {
    threads(std::process::id()).into_iter().filter(|(name, _)| name.starts_with(prefix)).collect()
}

/// Time of cores, in the kernel's ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CoreTime {
    idle: u64,
    stolen: u64,
    total: u64,
}

impl CoreTime {
    /// The time of these cores together; of all cores if the list is empty.
    pub(crate) fn of(cores: &[usize]) -> Self {
        Self::from_stat(&std::fs::read_to_string("/proc/stat").unwrap_or_default(), cores)
    }

    fn from_stat(stat: &str, cores: &[usize]) -> Self {
        let mut time = Self::default();
        for line in stat.lines() {
            let mut words = line.split_whitespace();
            let Some(core) = words.next().and_then(|name| name.strip_prefix("cpu")?.parse().ok()) else {
                continue;
            };
            if !cores.is_empty() && !cores.contains(&core) {
                continue;
            }
            // user, nice, system, idle, iowait, irq, softirq, steal. User time already includes the time of
            // guests.
            let ticks: Vec<u64> = words.take(8).filter_map(|word| word.parse().ok()).collect();
            time.total += ticks.iter().sum::<u64>();
            time.idle += ticks.iter().skip(3).take(2).sum::<u64>();
            time.stolen += ticks.get(7).copied().unwrap_or(0);
        }
        time
    }

    /// The ticks in which the cores worked, time given to other guests included, and all ticks.
    pub(crate) fn busy_and_all(&self) -> (u64, u64) {
        (self.total - self.idle, self.total)
    }

    /// Share of the time since `earlier` in which the cores were idle.
    pub(crate) fn idle_share_since(&self, earlier: &Self) -> f64 {
        self.share_since(earlier, |time| time.idle)
    }

    /// Share of the time since `earlier` in which the cores had work but a hypervisor had given them to
    /// others.
    pub(crate) fn stolen_share_since(&self, earlier: &Self) -> f64 {
        self.share_since(earlier, |time| time.stolen)
    }

    fn share_since(&self, earlier: &Self, part: fn(&Self) -> u64) -> f64 {
        let total = self.total.saturating_sub(earlier.total);
        if total == 0 { 0.0 } else { part(self).saturating_sub(part(earlier)) as f64 / total as f64 }
    }
}

/// Resident memory of a process in bytes, without files that are mapped; 0 if it is gone.
pub(crate) fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
        .map_or(0, |kb| kb * 1024)
}

/// Bytes that the device with this directory has written so far, for all programs together; `None` if the kernel does not
/// tell, as for files in memory, on a network, or in the layers of a container.
///
/// `/proc/PID/io` has no such number: it counts pages when a program changes them, again and again if they change before
/// they are written, and also those that are never written because their file is shortened or removed.
pub(crate) fn device_written_bytes(directory: &Path) -> Option<u64> {
    let device = std::fs::metadata(directory).ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    written_bytes(&std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?)
}

/// The bytes written, from the statistics of a block device.
fn written_bytes(stat: &str) -> Option<u64> {
    const SECTOR_BYTES: u64 = 512;
    const SECTORS_WRITTEN: usize = 6;
    stat.split_whitespace().nth(SECTORS_WRITTEN)?.parse::<u64>().ok()?.checked_mul(SECTOR_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_roles() {
        for (name, expected) in [
            ("http-3", "http"),
            ("async", "http"),
            ("cpu-0", "cpu"),
            ("lane", "lane"),
            ("store-maintain", "store"),
            ("batzen", "other"),
        ] {
            assert_eq!(role(name), expected);
        }
    }

    #[test]
    fn idle_cores_are_detected() {
        let stat = "cpu  9 9 9 9\ncpu0 10 0 10 70 10 0 0 0 0 0\ncpu1 100 0 0 0 0 0 0 0\nintr 1\n";
        let (start, both) = (CoreTime::default(), CoreTime::from_stat(stat, &[]));
        assert!((CoreTime::from_stat(stat, &[0]).idle_share_since(&start) - 0.8).abs() < 1e-9);
        assert!((both.idle_share_since(&start) - 0.4).abs() < 1e-9);
        assert!(CoreTime::from_stat(stat, &[1]).idle_share_since(&start) < 1e-9);
        assert!(both.idle_share_since(&both) < 1e-9);
        assert!(both.stolen_share_since(&start) < 1e-9);
    }

    #[test]
    fn stolen_time_is_detected() {
        let stat = "cpu0 10 0 10 70 0 0 0 10 5 0\ncpu1 60 0 0 0 0 0 0 40 0 0\n";
        let (start, both) = (CoreTime::default(), CoreTime::from_stat(stat, &[]));
        assert!((CoreTime::from_stat(stat, &[0]).stolen_share_since(&start) - 0.1).abs() < 1e-9);
        assert!((both.stolen_share_since(&start) - 0.25).abs() < 1e-9);
        assert!((both.idle_share_since(&start) - 0.35).abs() < 1e-9);
    }

    #[test]
    fn work_shows_in_the_thread_that_does_it() {
        let (begun, ended) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            let worker = || {
                let start = std::time::Instant::now();
                let mut number = 1_u64;
                while start.elapsed().as_millis() < 50 {
                    number = std::hint::black_box(number.wrapping_mul(3));
                }
                begun.wait();
                ended.wait();
            };
            std::thread::Builder::new().name("cpu-busy".into()).spawn_scoped(scope, worker).unwrap();
            begun.wait();
            let cpu = CpuTime::of(std::process::id());
            // On a busy machine the thread may have run for only part of the time.
            assert!(cpu.by_role_ns["cpu"] > 1_000_000, "{cpu:?}");
            assert_eq!(own_threads_ns("cpu-busy").len(), 1);
            assert!(cpu.total_ns() >= cpu.by_role_ns["cpu"]);
            assert_eq!(cpu.since(&cpu).total_ns(), 0);
            ended.wait();
        });
        assert!(resident_bytes(std::process::id()) > 0);
        assert_eq!(resident_bytes(u32::MAX), 0);
    }

    #[test]
    fn a_device_tells_what_it_wrote() {
        let stat =
            "  118759    26123 17595554   167141  2924024   595581 398734408  2996404        0   328320\n";
        assert_eq!(written_bytes(stat), Some(398_734_408 * 512));
        assert_eq!(written_bytes("1 2 3 4 5 6"), None);
        for no_disk in ["/proc", "/dev/shm", "/nowhere"] {
            assert_eq!(device_written_bytes(Path::new(no_disk)), None, "{no_disk}");
        }
    }
}
