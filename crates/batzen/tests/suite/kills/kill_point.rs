//! When a service is killed: during start and recovery, inside a disk sync, or under load.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, Service};
use crate::crash::customers::Dice;

/// A service completes its recovery within this time after its start.
const START_US: u64 = 50_000;
/// Time to wait for a disk sync. A service that makes none in this time is killed regardless.
const SYNC_MAX: Duration = Duration::from_millis(100);
/// The pause between two checks of the threads.
const POLL_PAUSE: Duration = Duration::from_micros(50);

/// The system call numbers of fsync and fdatasync.
#[cfg(target_arch = "x86_64")]
const SYNC_CALLS: [&str; 2] = ["74", "75"];
#[cfg(not(target_arch = "x86_64"))]
const SYNC_CALLS: [&str; 2] = ["82", "83"];

/// When a service is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KillPoint {
    /// This long after its start.
    Start { after: Duration },
    /// In the first disk sync that begins this long after its start.
    StartSync { after: Duration },
    /// In the first disk sync that begins this long after its first answer.
    LoadSync { after: Duration },
    /// This long after its first answer.
    Load { after: Duration },
}

impl KillPoint {
    fn draw(dice: &mut Dice) -> Self {
        let mut within = |from_us: u64, to_us: u64| {
            let choice = dice.below(100);
            (choice, Duration::from_micros(from_us + dice.below(to_us - from_us)))
        };
        match within(0, START_US) {
            (0..30, after) => Self::Start { after },
            (30..40, after) => Self::StartSync { after },
            (40..65, _) => Self::LoadSync { after: within(0, 100_000).1 },
            (65..92, _) => Self::Load { after: within(0, 250_000).1 },
            _ => Self::Load { after: within(250_000, 1_000_000).1 },
        }
    }
}

/// The service's work at the moment of the kill.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KillReport {
    /// The service had not acknowledged anything since its start.
    pub is_early: bool,
    /// A thread was inside a disk sync.
    pub is_in_sync: bool,
}

/// Kills a service that was just started; `acknowledged` counts the answers that its clients have received.
pub(super) fn kill_at_random_point(
    service: &mut Service,
    dice: &mut Dice,
    acknowledged: &dyn Fn() -> u64,
) -> KillReport {
    let (start, before) = (Instant::now(), acknowledged());
    let answers = |service: &mut Service| {
        while acknowledged() == before {
            service.assert_runs();
            assert!(start.elapsed() < PATIENCE, "the service acknowledges nothing any more");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    match KillPoint::draw(dice) {
        KillPoint::Start { after } => std::thread::sleep(after),
        KillPoint::StartSync { after } => {
            std::thread::sleep(after);
            wait_for_sync(service);
        }
        KillPoint::LoadSync { after } => {
            answers(service);
            std::thread::sleep(after);
            wait_for_sync(service);
        }
        KillPoint::Load { after } => {
            answers(service);
            std::thread::sleep(after);
        }
    }
    service.assert_runs();
    let is_in_sync = is_syncing(service.child.id());
    service.kill_9();
    KillReport { is_early: acknowledged() == before, is_in_sync }
}

fn wait_for_sync(service: &Service) {
    let start = Instant::now();
    while !is_syncing(service.child.id()) && start.elapsed() < SYNC_MAX {
        std::thread::sleep(POLL_PAUSE);
    }
}

/// Returns whether a thread of the process is inside fsync or fdatasync. False where the kernel does not show
/// it.
fn is_syncing(process: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(Path::new("/proc").join(process.to_string()).join("task")) else {
        return false;
    };
    threads.filter_map(Result::ok).any(|thread| {
        let call = std::fs::read_to_string(thread.path().join("syscall")).unwrap_or_default();
        call.split(' ').next().is_some_and(|number| SYNC_CALLS.contains(&number))
    })
}
