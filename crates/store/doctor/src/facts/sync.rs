//! The time of a synced write.

use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Facts;
use super::look::Look;
use crate::Options;

/// The largest number of writes to measure, and the longest time.
const MOST: usize = 200;
const LONGEST: Duration = Duration::from_secs(1);

/// The time of a synced write, and how it was measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Syncs {
    /// The source: a directory, or the server's counters.
    pub(crate) source: String,
    /// The number of writes.
    pub(crate) count: u64,
    /// Seconds: half were faster (the mean, if only the server's counters are known).
    pub(crate) median: f64,
    /// Seconds: 1 in 100 was slower; `None` if only the server's counters are known.
    pub(crate) slow: Option<f64>,
}

/// Measures in the directory of the write-ahead log if permitted, otherwise reads the server's counters.
pub(crate) fn read(look: &Look, facts: &Facts, options: &Options) -> Option<Syncs> {
    const WHAT: &str = "what a synced write costs";
    let beside = facts.server.data_directory.as_deref().filter(|_| facts.machine.is_local);
    let beside = beside.map(|data| Path::new(data).join("pg_wal"));
    if let Some(directory) = options.fsync_dir.clone().or(beside) {
        match measure(&directory) {
            Ok(syncs) => return Some(syncs),
            Err(error) if options.fsync_dir.is_some() => {
                look.gap(WHAT, format!("{}: {error}", directory.display()), None);
                return None;
            }
            Err(_) => {}
        }
    }
    let counted = facts.before.wal_syncs.zip(facts.before.wal_sync_time);
    if let Some((count, seconds)) = counted.filter(|(count, _)| *count >= 100) {
        let source = "pg_stat_wal".to_owned();
        return Some(Syncs { source, count, median: seconds / count as f64, slow: None });
    }
    look.gap(
        WHAT,
        "the directory of the write-ahead log cannot be written by us, and the server does not count",
        Some("batzen doctor --fsync-dir DIRECTORY_ON_THAT_DISK …   # or in SQL: ALTER SYSTEM SET track_wal_io_timing = on; SELECT pg_reload_conf();"),
    );
    None
}

/// Overwrites and syncs a page of an unnamed file, as a commit does in the write-ahead log.
fn measure(directory: &Path) -> std::io::Result<Syncs> {
    let mut file = tempfile::tempfile_in(directory)?;
    let page = [0x42_u8; 8192];
    file.write_all(&page)?;
    file.sync_all()?;
    let begun = Instant::now();
    let mut times = Vec::with_capacity(MOST);
    while times.len() < MOST && begun.elapsed() < LONGEST {
        let from = Instant::now();
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&page)?;
        file.sync_data()?;
        times.push(from.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(Syncs {
        source: directory.display().to_string(),
        count: times.len() as u64,
        median: times[times.len() / 2],
        slow: Some(times[times.len() * 99 / 100]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measuring_leaves_the_directory_unchanged() {
        let directory = tempfile::tempdir().unwrap();
        let syncs = measure(directory.path()).unwrap();
        assert!(syncs.count > 0 && syncs.median > 0.0);
        assert!(syncs.slow.unwrap() >= syncs.median);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        assert!(measure(&directory.path().join("missing")).is_err());
    }
}
