//! Child processes of this program.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::affinity;
use crate::bench::load::wire;
use crate::bench::scenarios::world::WorldPlan;

/// The pause between two polls.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

/// Time that a service may take to end after a signal. Writing a checkpoint of large indexes takes a moment.
const END_TIME: Duration = Duration::from_secs(60);
/// Part of a service's last output that is shown.
const LAST_WORDS_BYTES: usize = 1_000;

/// The directory for the sockets of an exchange. Socket paths must be short, however long the result
/// directory's path is.
pub(super) fn runtime_dir(exchange_port: u16) -> PathBuf {
    std::env::temp_dir().join(format!("batzen-bench-{}-{exchange_port}", std::process::id()))
}

/// A service, and the file with its output.
pub(super) struct Service {
    name: String,
    child: Child,
    log: PathBuf,
}

/// A program in a home directory of its own, isolated from the caller's configuration.
pub(super) fn command(program: &Path, home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    for name in ["TALER_BASE_CONFIG", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "LISTEN_FDS", "LISTEN_PID"] {
        command.env_remove(name);
    }
    command.env("HOME", home).env("NO_COLOR", "1").args(arguments).stdin(Stdio::null());
    command
}

/// Runs the program to completion; it must succeed.
pub(super) fn run(plan: &WorldPlan, what: &str, arguments: &[&str]) -> Result<Output> {
    let mut command = command(&plan.program, &plan.dir, arguments);
    let output = affinity::on_cores(&plan.placement.client, || command.output())?
        .map_err(|error| BenchError::set_up(what, error))?;
    if output.status.success() {
        return Ok(output);
    }
    if plan.interrupted.load(Relaxed) {
        return Err(BenchError::Interrupted);
    }
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Err(BenchError::set_up(what, format!("{}: {}", output.status, said.trim())))
}

impl Service {
    /// Starts a service of a world on its cores.
    pub(super) fn start(plan: &WorldPlan, name: &str, arguments: &[&str], cores: &[usize]) -> Result<Self> {
        Self::spawn(name, command(&plan.program, &plan.dir, arguments), &plan.dir, cores)
    }

    /// Starts a command on its cores (all cores if the list is empty), with its output in a file of a directory.
    pub(super) fn spawn(name: &str, mut command: Command, dir: &Path, cores: &[usize]) -> Result<Self> {
        let log = dir.join(format!("{name}.log"));
        let file = File::create(&log).map_err(BenchError::io(&log))?;
        let out = file.try_clone().map_err(BenchError::io(&log))?;
        command.stdout(out).stderr(file);
        let child = affinity::on_cores(cores, || command.spawn())?
            .map_err(|error| BenchError::set_up(&format!("cannot start the {name}"), error))?;
        Ok(Self { name: name.to_owned(), child, log })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until a GET of `path` answers 200.
    pub(super) fn wait_until_ready(
        &mut self,
        address: SocketAddr,
        path: &str,
        patience: Duration,
        interrupted: &AtomicBool,
    ) -> Result<()> {
        let is_ready = || wire::call(address, &wire::get(path)).is_ok_and(|answer| answer.status == 200);
        self.wait_until(is_ready, patience, interrupted, |name, _| {
            format!("the {name} does not answer {path}")
        })
    }

    /// Waits until it is ready; `silent` words the error if it takes too long, from its name and last output.
    pub(super) fn wait_until(
        &mut self,
        is_ready: impl Fn() -> bool,
        patience: Duration,
        interrupted: &AtomicBool,
        silent: impl FnOnce(&str, String) -> String,
    ) -> Result<()> {
        let deadline = Instant::now() + patience;
        while !is_ready() {
            self.still_runs()?;
            if interrupted.load(Relaxed) {
                return Err(BenchError::Interrupted);
            }
            if Instant::now() > deadline {
                return Err(BenchError::SetUp(silent(&self.name, last_words(&self.log))));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    pub(super) fn still_runs(&mut self) -> Result<()> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.ended(&status.to_string())),
            Err(error) => Err(self.ended(&error.to_string())),
        }
    }

    fn ended(&self, status: &str) -> BenchError {
        BenchError::Ended {
            name: format!("the {}", self.name),
            status: status.to_owned(),
            last_words: last_words(&self.log),
        }
    }

    /// Terminates it, and waits until it has ended.
    pub(super) fn terminate(&mut self) -> Result<()> {
        if let Some(pid) = i32::try_from(self.pid()).ok().and_then(Pid::from_raw) {
            // It may have ended already; waiting for it will show.
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + END_TIME;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(self.ended(&status.to_string())),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(PAUSE),
                Ok(None) => return Err(self.ended("told to end, and still running after a minute")),
                Err(error) => return Err(self.ended(&error.to_string())),
            }
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn last_words(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let start = text.len().saturating_sub(LAST_WORDS_BYTES);
    String::from_utf8_lossy(&text[start..]).trim().replace('\n', "; ")
}
