//! Slow processes: a process that may run only for a share of the time, as on a machine with too little of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::sample::descendants;

/// The time in which a process has its share once. Shorter would cost more signals, longer would show as latency of its own.
const PERIOD: Duration = Duration::from_millis(40);

/// The share of the time of one process. Dropping it ends the limit.
#[derive(Debug)]
pub(super) struct Pace {
    pid: Arc<AtomicU32>,
    share: Arc<AtomicU64>,
}

fn signal(pids: &[u32], signal: Signal) {
    for pid in pids.iter().filter_map(|pid| Pid::from_raw(i32::try_from(*pid).ok()?)) {
        // It may have ended meanwhile.
        let _ = kill_process(pid, signal);
    }
}

fn sleep_until(time: Instant) {
    std::thread::sleep(time.saturating_duration_since(Instant::now()));
}

impl Pace {
    /// Limits a process and its descendants.
    pub(super) fn start(pid: u32, share: f64) -> Self {
        let pace =
            Self { pid: Arc::new(AtomicU32::new(pid)), share: Arc::new(AtomicU64::new(share.to_bits())) };
        let (pid, share) = (Arc::clone(&pace.pid), Arc::clone(&pace.share));
        std::thread::spawn(move || {
            let mut all = Vec::new();
            let mut begin = Instant::now();
            loop {
                let root = pid.load(Relaxed);
                // Nobody else knows this number any more: the limit is over.
                if root == 0 {
                    return;
                }
                let runs = f64::from_bits(share.load(Relaxed)).clamp(0.01, 1.0);
                // Looking for new descendants takes a while, in which those that are known stand still.
                signal(&all, Signal::STOP);
                all = descendants(root);
                signal(&all, Signal::STOP);
                sleep_until(begin + PERIOD.mul_f64(1.0 - runs));
                signal(&all, Signal::CONT);
                let woken = Instant::now();
                std::thread::sleep(PERIOD.mul_f64(runs));
                begin = (begin + PERIOD).max(woken);
            }
        });
        pace
    }

    /// Goes on with another process.
    pub(super) fn follow(&self, pid: u32) {
        self.pid.store(pid, Relaxed);
    }

    /// The share.
    pub(super) fn share(&self) -> f64 {
        f64::from_bits(self.share.load(Relaxed))
    }
}

impl Drop for Pace {
    fn drop(&mut self) {
        self.pid.store(0, Relaxed);
    }
}
