//! Memory, cores, disk and process memory of a local server, from `/proc` and `/sys`.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::look::Look;
use super::{Facts, Server};
use crate::Options;

/// The kind of disk that holds the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Storage {
    /// Unknown, or a virtual disk that does not report it.
    #[default]
    Unknown,
    /// No moving parts.
    Solid,
    /// A spinning disk.
    Spinning,
    /// Memory: data is lost on restart.
    Volatile,
}

/// The server's machine, as far as known.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Machine {
    /// Whether it is this machine.
    pub(crate) is_local: bool,
    /// Bytes of memory that the server may use.
    pub memory: Option<u64>,
    /// Cores that the server may use.
    pub cores: Option<u32>,
    /// The kind of disk that holds the data.
    pub storage: Storage,
    /// The disk's name, as the kernel calls it.
    pub(crate) disk: Option<String>,
    /// Bytes of the file system that holds the data.
    pub(crate) disk_size: Option<u64>,
    /// Its free bytes, as available to the server.
    pub(crate) disk_free: Option<u64>,
    /// Huge pages that are set aside, in bytes.
    pub(crate) huge_pages: Option<u64>,
    /// Bytes of swap space.
    pub swap: Option<u64>,
}

/// Private memory of the server's processes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ProcessMemory {
    /// Bytes per session.
    pub(crate) sessions: Vec<SessionMemory>,
    /// Sessions whose memory is not visible to the doctor.
    pub(crate) hidden: usize,
}

/// The private memory of one session.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SessionMemory {
    /// Its process.
    pub(crate) pid: i32,
    /// Private bytes.
    pub(crate) private: u64,
}

impl ProcessMemory {
    /// The sum over all visible sessions.
    pub(crate) fn total(&self) -> u64 {
        self.sessions.iter().map(|session| session.private).sum()
    }
}

/// Reads the facts of the machine, if the server runs on it.
pub(crate) fn read(look: &Look, server: &Server, options: &Options) -> Machine {
    let mut machine = Machine::default();
    if is_local(server) {
        machine.is_local = true;
        let groups = control_groups(server.backend_pid);
        machine.memory = memory(&groups);
        machine.cores = cores(server.backend_pid, &groups);
        let meminfo = text("/proc/meminfo");
        machine.swap = meminfo_bytes(&meminfo, "SwapTotal");
        machine.huge_pages = pages(&meminfo, "HugePages_Total")
            .zip(meminfo_bytes(&meminfo, "Hugepagesize"))
            .map(|(pages, size)| pages * size);
        match server.data_directory.as_deref().map(Path::new) {
            Some(directory) => look_at_disk(&mut machine, directory),
            None => look.gap(
                "the disk that holds the data",
                format!("role {} may not see where that is", server.role),
                Some("GRANT pg_read_all_settings TO your_role;   -- as a superuser"),
            ),
        }
    }
    machine.memory = options.memory.or(machine.memory);
    machine.cores = options.cores.or(machine.cores);
    if !machine.is_local {
        let why = "the server is not on this machine, or in a container of its own";
        if machine.memory.is_none() || machine.cores.is_none() {
            look.gap(
                "the memory and cores of the server's machine",
                why,
                Some("batzen doctor --memory 64GB --cores 16 …"),
            );
        }
        look.gap("the disk and the sessions' memory", why, Some("run batzen doctor on the server's machine"));
    }
    machine
}

/// Returns whether the session's server process is a PostgreSQL backend of this machine. It is not if the
/// port is forwarded, or the server has its own process namespace in a container.
fn is_local(server: &Server) -> bool {
    let is_near =
        server.address.as_deref().is_none_or(|address| address == "::1" || address.starts_with("127."));
    is_near && text(format!("/proc/{}/cmdline", server.backend_pid)).starts_with("postgres: ")
}

fn text(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The directories of the process's control group and its ancestors, innermost first (cgroup version 2).
fn control_groups(pid: i32) -> Vec<PathBuf> {
    let groups = text(format!("/proc/{pid}/cgroup"));
    let Some(own) = groups.lines().find_map(|line| line.strip_prefix("0::/")) else { return Vec::new() };
    let root = Path::new("/sys/fs/cgroup");
    root.join(own).ancestors().take_while(|path| path.starts_with(root)).map(Path::to_path_buf).collect()
}

fn memory(groups: &[PathBuf]) -> Option<u64> {
    let limits = groups.iter().filter_map(|group| text(group.join("memory.max")).trim().parse().ok());
    meminfo_bytes(&text("/proc/meminfo"), "MemTotal").into_iter().chain(limits).min()
}

fn cores(pid: i32, groups: &[PathBuf]) -> Option<u32> {
    let status = text(format!("/proc/{pid}/status"));
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).and_then(listed);
    let quotas = groups.iter().filter_map(|group| quota(&text(group.join("cpu.max"))));
    allowed.into_iter().chain(quotas).min()
}

/// The number of items in a list such as `0-3,8`.
fn listed(list: &str) -> Option<u32> {
    list.trim().split(',').try_fold(0_u32, |sum, part| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (u32, u32) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
        sum.checked_add(to.checked_sub(from)?.checked_add(1)?)
    })
}

/// Whole cores that `cpu.max` grants: `200000 100000` is two, `max 100000` is no limit.
fn quota(text: &str) -> Option<u32> {
    let mut words = text.split_whitespace();
    let (granted, period): (u64, u64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    u32::try_from(granted.div_ceil(period.max(1))).ok().map(|cores| cores.max(1))
}

fn meminfo_bytes(meminfo: &str, name: &str) -> Option<u64> {
    pages(meminfo, name)?.checked_mul(1024)
}

fn pages(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

fn look_at_disk(machine: &mut Machine, directory: &Path) {
    if let Ok(system) = rustix::fs::statvfs(directory) {
        machine.disk_size = Some(system.f_blocks.saturating_mul(system.f_frsize));
        machine.disk_free = Some(system.f_bavail.saturating_mul(system.f_frsize));
    }
    const TMPFS: i64 = 0x0102_1994;
    if rustix::fs::statfs(directory).is_ok_and(|system| system.f_type == TMPFS) {
        machine.storage = Storage::Volatile;
        return;
    }
    let Ok(metadata) = std::fs::metadata(directory) else { return };
    let device = metadata.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let Ok(disk) = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")) else { return };
    machine.disk = disk.file_name().map(|name| name.to_string_lossy().into_owned());
    // Partitions have no queue; take that of the disk.
    let rotational = [disk.join("queue/rotational"), disk.join("../queue/rotational")]
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok());
    let is_virtual =
        machine.disk.as_deref().is_some_and(|name| name.starts_with("vd") || name.starts_with("xvd"));
    machine.storage = match rotational.as_deref().map(str::trim) {
        Some("0") => Storage::Solid,
        // Virtual disks often report only a default.
        Some("1") if !is_virtual => Storage::Spinning,
        _ => Storage::Unknown,
    };
}

/// Reads the private memory of sessions.
pub(crate) fn processes(look: &Look, facts: &Facts) -> Option<ProcessMemory> {
    if !facts.machine.is_local {
        return None;
    }
    let mut memory = ProcessMemory::default();
    for session in facts.sessions.iter().filter(|session| session.is_client()) {
        match private_bytes(&text(format!("/proc/{}/smaps_rollup", session.pid))) {
            Some(private) => memory.sessions.push(SessionMemory { pid: session.pid, private }),
            None => memory.hidden += 1,
        }
    }
    if memory.hidden > 0 && memory.sessions.is_empty() {
        look.gap(
            "the sessions' memory",
            "the kernel shows it only to the server's own user and to root",
            Some("sudo -u postgres batzen doctor …"),
        );
        return None;
    }
    memory.sessions.sort_by_key(|session| std::cmp::Reverse(session.private));
    Some(memory)
}

/// The memory that would be freed if the process ended.
fn private_bytes(rollup: &str) -> Option<u64> {
    let clean = meminfo_bytes(rollup, "Private_Clean")?;
    let dirty = meminfo_bytes(rollup, "Private_Dirty")?;
    clean.checked_add(dirty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        assert_eq!(listed("\t0-3,8\n"), Some(5));
        assert_eq!(listed("0"), Some(1));
        assert_eq!(listed(""), None);
        assert_eq!(listed("3-1"), None);
        assert_eq!(listed("0-4294967295"), None);
    }

    #[test]
    fn quotas_are_whole_cores() {
        assert_eq!(quota("200000 100000\n"), Some(2));
        assert_eq!(quota("50000 100000"), Some(1));
        assert_eq!(quota("max 100000"), None);
        assert_eq!(quota("1 0"), Some(1));
        assert_eq!(quota(""), None);
    }

    #[test]
    fn private_memory_is_what_would_be_freed() {
        let rollup = "00400000-7fff ---p 00000000 00:00 0 [rollup]\nRss: 9000 kB\nPrivate_Clean: 10 kB\nPrivate_Dirty: 20 kB\n";
        assert_eq!(private_bytes(rollup), Some(30 << 10));
        assert_eq!(private_bytes(""), None);
        assert_eq!(meminfo_bytes("MemTotal:   16 kB\n", "MemTotal"), Some(16 << 10));
        assert_eq!(pages("HugePages_Total:     4\n", "HugePages_Total"), Some(4));
    }
}
