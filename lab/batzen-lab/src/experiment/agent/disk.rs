//! Slow disks: a process whose files take longer to become durable, while everything else works.
//!
//! Before each `fsync` and `fdatasync` of the process and its descendants the kernel asks the thread that has started it, and
//! waits for the answer. So the answer is the delay.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::notify;

/// The longest wait for a question, after which the thread looks whether it is to end.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// The longest delay in milliseconds.
pub(crate) const DELAY_MAX_MS: f64 = 60_000.0;

/// The delay that the owner of a disk sets, and the time that its thread counts.
#[derive(Debug, Default)]
struct DiskState {
    delay_us: AtomicU64,
    /// Time for which a sync was held up.
    busy_us: AtomicU64,
}

/// The disk of a process, also of one that is started again. Its processes end with it.
#[derive(Debug)]
pub(super) struct Disk {
    state: Arc<DiskState>,
    /// Ends the thread of the process that was started last.
    ends: Arc<AtomicBool>,
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
    }
}

impl Disk {
    /// A disk with this delay.
    ///
    /// # Errors
    /// When the delay is none.
    pub(super) fn new(delay_ms: f64) -> io::Result<Self> {
        let disk = Self { state: Arc::default(), ends: Arc::default() };
        disk.delay(delay_ms)?;
        Ok(disk)
    }

    /// Changes the delay.
    ///
    /// # Errors
    /// When it is none.
    pub(super) fn delay(&self, delay_ms: f64) -> io::Result<()> {
        if !(0.0..=DELAY_MAX_MS).contains(&delay_ms) {
            return Err(io::Error::other(format!("a delay is 0 to {DELAY_MAX_MS} ms")));
        }
        let delay = Duration::from_secs_f64(delay_ms / 1000.0);
        self.state.delay_us.store(micros(delay), Relaxed);
        Ok(())
    }

    /// The delay in milliseconds.
    pub(super) fn delay_ms(&self) -> f64 {
        self.state.delay_us.load(Relaxed) as f64 / 1000.0
    }

    /// Milliseconds for which a sync was held up.
    pub(super) fn busy_ms(&self) -> u64 {
        self.state.busy_us.load(Relaxed) / 1000
    }

    /// Starts a process on this disk; the one before has ended.
    ///
    /// # Errors
    /// When the program cannot be started, or the kernel asks nobody.
    pub(super) fn spawn(&mut self, mut command: Command) -> io::Result<Child> {
        self.ends.store(true, Relaxed);
        self.ends = Arc::default();
        let (state, ends) = (Arc::clone(&self.state), Arc::clone(&self.ends));
        let (sender, receiver) = channel();
        // The filter of a thread is inherited, and the kernel kills the process when this thread ends.
        std::thread::Builder::new().name("disk".to_owned()).spawn(move || {
            let listener = notify::listen();
            let started = listener.and_then(|listener| Ok((command.spawn()?, listener)));
            let (child, listener) = match started {
                Ok((child, listener)) => (Ok(child), Some(listener)),
                Err(error) => (Err(error), None),
            };
            let is_awaited = sender.send(child).is_ok();
            if let Some(listener) = listener.filter(|_| is_awaited)
                && let Err(error) = attend(&listener, &state, &ends)
            {
                tracing::error!(%error, "a slow disk has failed");
            }
        })?;
        receiver.recv().map_err(io::Error::other)?
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Answers questions, each after the delay, until the end.
fn attend(listener: &OwnedFd, state: &DiskState, ends: &AtomicBool) -> io::Result<()> {
    let mut held: VecDeque<(Instant, u64)> = VecDeque::new();
    let mut looked = Instant::now();
    while !ends.load(Relaxed) {
        let now = Instant::now();
        if !held.is_empty() {
            state.busy_us.fetch_add(micros(now - looked), Relaxed);
        }
        looked = now;
        while let Some((_, id)) = held.front().copied().filter(|(due, _)| *due <= now) {
            notify::go_on(listener, id)?;
            held.pop_front();
        }
        let pause =
            held.front().map_or(LOOK_PAUSE, |(due, _)| due.saturating_duration_since(now).min(LOOK_PAUSE));
        let pause = Timespec::try_from(pause).map_err(io::Error::other)?;
        let mut ready = [PollFd::new(listener, PollFlags::IN)];
        match poll(&mut ready, Some(&pause)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if ready[0].revents().contains(PollFlags::IN)
            && let Some(id) = notify::receive(listener)?
        {
            let delay = Duration::from_micros(state.delay_us.load(Relaxed));
            held.push_back((Instant::now() + delay, id));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a file durably so many times, with children that do the same.
    fn writer(dir: &std::path::Path, times: u32) -> Command {
        let script = "for i in $(seq \"$2\"); do dd if=/dev/zero of=\"$1/$i\" bs=1 count=1 conv=fdatasync status=none; done";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(dir).arg(times.to_string());
        command
    }

    #[test]
    fn each_sync_of_a_process_and_its_children_takes_longer() {
        let dir = tempfile::tempdir().unwrap();
        let mut disk = Disk::new(60.0).unwrap();
        let begun = Instant::now();
        assert!(disk.spawn(writer(dir.path(), 5)).unwrap().wait().unwrap().success());
        assert!(begun.elapsed() >= Duration::from_millis(300), "{:?}", begun.elapsed());
        assert!(disk.busy_ms() >= 290, "{}", disk.busy_ms());
        // The next process is as fast as the disk is then.
        disk.delay(0.0).unwrap();
        assert_eq!(disk.delay_ms(), 0.0);
        assert!(disk.spawn(writer(dir.path(), 5)).unwrap().wait().unwrap().success());
        assert!(disk.delay(-1.0).is_err() && disk.delay(f64::NAN).is_err());
    }

    #[test]
    fn a_process_that_is_killed_while_it_syncs_ends() {
        let dir = tempfile::tempdir().unwrap();
        let mut disk = Disk::new(DELAY_MAX_MS).unwrap();
        let mut command = Command::new("dd");
        command.args(["if=/dev/zero", "bs=1", "count=1", "conv=fsync", "status=none"]);
        command.arg(format!("of={}", dir.path().join("file").display()));
        let mut child = disk.spawn(command).unwrap();
        while !dir.path().join("file").exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        assert!(!child.wait().unwrap().success());
        let missing = disk.spawn(Command::new("/nonexistent/program"));
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
