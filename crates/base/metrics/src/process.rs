//! Metrics of the process from the operating system, with the names that all Prometheus clients use.

use std::fs;
use std::time::Duration;

use crate::Page;

/// Ticks per second in `/proc`: the same on every architecture that Linux runs on (`USER_HZ`).
const TICKS_PER_SECOND: u64 = 100;

/// Writes processor time, memory, open files and start time of this process. Unreadable values are omitted.
pub fn write_process(page: &mut Page) {
    if let Some(stat) = fs::read_to_string("/proc/self/stat").ok().as_deref().and_then(Stat::parse) {
        page.gauge("process_threads", "Threads", stat.threads);
        let cpu = Duration::from_millis(stat.cpu_ticks * 1000 / TICKS_PER_SECOND);
        page.seconds("process_cpu_seconds_total", "Processor time used", cpu);
        if let Some(boot) = boot_seconds() {
            let start = boot + stat.start_ticks / TICKS_PER_SECOND;
            page.gauge("process_start_time_seconds", "Start time of the process since the epoch", start);
        }
    }
    if let Ok(status) = fs::read_to_string("/proc/self/status") {
        let bytes = |field: &str| kilobytes(&status, field).map(|kb| kb * 1024);
        if let Some(resident) = bytes("VmRSS:") {
            page.gauge("process_resident_memory_bytes", "Memory in use", resident);
        }
        if let Some(size) = bytes("VmSize:") {
            page.gauge("process_virtual_memory_bytes", "Address space in use", size);
        }
    }
    if let Ok(files) = fs::read_dir("/proc/self/fd") {
        page.gauge("process_open_fds", "Open files and connections", files.count());
    }
    if let Some(max) = open_files_max() {
        page.gauge("process_max_fds", "Maximum number of open files and connections", max);
    }
}

/// The number of files and connections that this process may have open; `None` if there is no limit or it is not known.
#[must_use]
pub fn open_files_max() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    limit.split_whitespace().next()?.parse().ok()
}

/// Fields of `/proc/self/stat`.
struct Stat {
    /// User and system time.
    cpu_ticks: u64,
    threads: u64,
    /// Start since boot.
    start_ticks: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The second field is the program's name in parentheses, which may contain anything. The third is the
        // state.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self { cpu_ticks: field(14)? + field(15)?, threads: field(20)?, start_ticks: field(22)? })
    }
}

fn boot_seconds() -> Option<u64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

fn kilobytes(status: &str, field: &str) -> Option<u64> {
    let rest = status.lines().find_map(|line| line.strip_prefix(field))?;
    rest.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn reads_stat_with_any_name() {
        let text = "7 (a ) b) S 1 2 3 4 5 6 7 8 9 10 250 50 13 14 15 16 9 18 4242 20";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.cpu_ticks, stat.threads, stat.start_ticks), (300, 9, 4242));
        assert!(Stat::parse("7 (x) S 1").is_none());
    }

    #[test]
    fn this_process_uses_memory() {
        let mut page = Page::new();
        write_process(&mut page);
        let text = page.finish();
        let value = |name: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().parse().unwrap()
        };
        assert!(value("process_resident_memory_bytes ") > 100_000.0);
        assert!(value("process_start_time_seconds ") > 1e9);
        assert!(value("process_open_fds ") > 2.0 && value("process_threads ") >= 1.0);
        assert!(text.contains("process_cpu_seconds_total "));
    }
}
