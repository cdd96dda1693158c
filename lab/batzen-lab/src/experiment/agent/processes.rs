//! The processes of a host, and their supervisor.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::disk::Disk;
use super::pace::Pace;
use super::{CommandLine, ProcessState, sample};

/// The pause before a process that has ended by itself is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// Time that a process may take to end after a signal, before it is killed.
const END_TIME: Duration = Duration::from_secs(20);

/// A process that is to run.
struct Process {
    command: CommandLine,
    dir: PathBuf,
    child: Option<Child>,
    is_wanted: bool,
    restarts: u32,
    ended: Option<String>,
    /// The earliest time of its next start.
    start_at: Option<Instant>,
    pace: Option<Pace>,
    disk: Option<Disk>,
}

/// All processes of a host. Use it on one thread: processes end with the thread that has started them.
pub(super) struct Processes {
    all: BTreeMap<String, Process>,
    /// The agent's socket, which marks what it starts.
    socket: PathBuf,
    sampler: sample::Sampler,
}

/// The command that the kernel kills when the thread that starts it ends, by its user if this process is root.
pub(super) fn tied(line: &CommandLine) -> io::Result<Command> {
    let (program, arguments) =
        line.argv.split_first().ok_or_else(|| io::Error::other("the command line is empty"))?;
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if let Some(user) = line.user.as_ref().filter(|_| rustix::process::geteuid().is_root()) {
        command.args(["--reuid", user, "--regid", user, "--init-groups"]);
    }
    command.arg("--").arg(program).args(arguments);
    for name in ["TALER_BASE_CONFIG", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "LISTEN_FDS", "LISTEN_PID"] {
        command.env_remove(name);
    }
    command.env("NO_COLOR", "1").envs(&line.env);
    Ok(command)
}

/// The variable in the environment of an agent and of all that it starts, with the path of its socket.
pub(crate) const MARK: &str = "BATZEN_LAB_AGENT";

/// Kills what an agent started and what still runs, such as the children of a process that the kernel killed with it.
pub(super) fn sweep(socket: &Path) {
    let mark = format!("{MARK}={}", socket.display());
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for entry in entries {
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        let is_marked = environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes());
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        let own = rustix::process::getpid();
        if let Some(pid) = pid.filter(|pid| is_marked && *pid != own) {
            // It may have ended meanwhile.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn named(signal: i32) -> io::Result<Signal> {
    Signal::from_named_raw(signal).ok_or_else(|| io::Error::other(format!("{signal} is not a signal")))
}

impl Process {
    fn start(&mut self) -> io::Result<()> {
        let open = |name: &str| File::options().create(true).append(true).open(self.dir.join(name));
        let mut command = tied(&self.command)?;
        // Another user may not enter the directory.
        let home = if self.command.user.is_some() { Path::new("/") } else { &self.dir };
        command.env("HOME", home).current_dir(home).stdin(Stdio::piped());
        command.stdout(open("out")?).stderr(open("log")?);
        let child = match &mut self.disk {
            Some(disk) => disk.spawn(command)?,
            None => command.spawn()?,
        };
        self.start_at = None;
        if let Some(pace) = &self.pace {
            pace.follow(child.id());
        }
        self.child = Some(child);
        Ok(())
    }

    fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
            // It may have ended meanwhile, which the next look finds.
            let _ = kill_process(pid, signal);
        }
    }

    /// Notes whether it has ended.
    fn look(&mut self) {
        let Some(child) = &mut self.child else { return };
        let ended = match child.try_wait() {
            Ok(None) => return,
            Ok(Some(status)) => status.to_string(),
            Err(error) => error.to_string(),
        };
        self.child = None;
        self.ended = Some(ended);
        self.start_at = self.is_wanted.then(|| Instant::now() + RESTART_PAUSE);
    }
}

impl Processes {
    /// No processes yet. `dir` is on the disk that samples tell of.
    pub(super) fn new(socket: &Path, dir: &Path) -> Self {
        Self { all: BTreeMap::new(), socket: socket.to_owned(), sampler: sample::Sampler::new(dir) }
    }

    /// Starts a process.
    ///
    /// # Errors
    /// When one of this name runs, or the program cannot be started.
    pub(super) fn start(
        &mut self,
        name: &str,
        mut command: CommandLine,
        dir: &Path,
        disk_delay_ms: Option<f64>,
    ) -> io::Result<()> {
        self.look();
        command.env.insert(MARK.to_owned(), self.socket.to_string_lossy().into_owned());
        if self.all.get(name).is_some_and(|process| process.child.is_some()) {
            return Err(io::Error::other(format!("{name} runs already")));
        }
        std::fs::create_dir_all(dir)?;
        let before = self.all.remove(name);
        let mut process = Process {
            command,
            dir: dir.to_owned(),
            child: None,
            is_wanted: true,
            restarts: 0,
            ended: None,
            start_at: None,
            pace: before.and_then(|process| process.pace),
            disk: disk_delay_ms.map(Disk::new).transpose()?,
        };
        process.start()?;
        self.all.insert(name.to_owned(), process);
        Ok(())
    }

    fn get(&mut self, name: &str) -> io::Result<&mut Process> {
        self.all.get_mut(name).ok_or_else(|| io::Error::other(format!("there is no {name} on this host")))
    }

    /// Starts a process that was stopped.
    ///
    /// # Errors
    /// When there is none of this name, it runs, or it cannot be started.
    pub(super) fn again(&mut self, name: &str) -> io::Result<()> {
        self.look();
        let process = self.get(name)?;
        if process.child.is_some() {
            return Err(io::Error::other(format!("{name} runs already")));
        }
        process.is_wanted = true;
        process.start()
    }

    /// Sends a signal to a process that is to end. It is not started again.
    ///
    /// # Errors
    /// When there is none of this name, or no such signal.
    pub(super) fn stop(&mut self, name: &str, number: i32) -> io::Result<()> {
        let signal = named(number)?;
        let process = self.get(name)?;
        process.is_wanted = false;
        process.start_at = None;
        // A process that stands still could not see it.
        process.pace = None;
        process.signal(Signal::CONT);
        process.signal(signal);
        Ok(())
    }

    /// Sends a signal to a process that is to run, and is started again if it ends by that.
    ///
    /// # Errors
    /// When there is none of this name, or no such signal.
    pub(super) fn signal(&mut self, name: &str, number: i32) -> io::Result<()> {
        let signal = named(number)?;
        self.get(name).map(|process| process.signal(signal))
    }

    /// Writes a line to the standard input of a process.
    ///
    /// # Errors
    /// When it does not run, or does not read.
    pub(super) fn input(&mut self, name: &str, line: &str) -> io::Result<()> {
        let child = self.get(name)?.child.as_mut();
        let stdin = child.and_then(|child| child.stdin.as_mut());
        let stdin = stdin.ok_or_else(|| io::Error::other(format!("{name} does not run")))?;
        stdin.write_all(line.as_bytes())?;
        stdin.write_all(b"\n")
    }

    /// Lets a process run for a share of the time only.
    ///
    /// # Errors
    /// When there is none of this name, or the share is none.
    pub(super) fn pace(&mut self, name: &str, share: f64) -> io::Result<()> {
        if !(share > 0.0 && share <= 1.0) {
            return Err(io::Error::other("a share is above 0 and at most 1"));
        }
        let process = self.get(name)?;
        process.pace = None;
        if let Some(pid) = process.pid().filter(|_| share < 1.0) {
            process.pace = Some(Pace::start(pid, share));
        }
        Ok(())
    }

    /// Changes the delay of the disk of a process.
    ///
    /// # Errors
    /// When there is none of this name, it has no such disk, or the delay is none.
    pub(super) fn delay(&mut self, name: &str, delay_ms: f64) -> io::Result<()> {
        let disk = self.get(name)?.disk.as_ref().ok_or_else(|| {
            let advice = "give its role `disk_delay_ms = 0` in the topology";
            io::Error::other(format!("the disk of {name} cannot become slow: {advice}"))
        })?;
        disk.delay(delay_ms)
    }

    /// Notes which processes have ended, and starts those again that are to run.
    pub(super) fn look(&mut self) {
        for process in self.all.values_mut() {
            process.look();
            if process.start_at.is_some_and(|time| time <= Instant::now()) {
                process.restarts += 1;
                if let Err(error) = process.start() {
                    process.ended = Some(error.to_string());
                    process.start_at = Some(Instant::now() + RESTART_PAUSE);
                }
            }
        }
    }

    /// The state of all processes.
    pub(super) fn states(&self) -> Vec<ProcessState> {
        let state = |(name, process): (&String, &Process)| ProcessState {
            name: name.clone(),
            pid: process.pid(),
            is_wanted: process.is_wanted,
            restarts: process.restarts,
            ended: process.ended.clone(),
            share: process.pace.as_ref().map_or(1.0, Pace::share),
            disk_delay_ms: process.disk.as_ref().map(Disk::delay_ms),
        };
        self.all.iter().map(state).collect()
    }

    /// Takes a sample of what the processes use.
    pub(super) fn sample(&mut self) -> sample::Sample {
        let running = self.all.iter().filter_map(|(name, process)| Some((name.as_str(), process.pid()?)));
        let mut sample = self.sampler.take(running);
        for (name, process) in &mut sample.processes {
            let disk = self.all.get(name).and_then(|process| process.disk.as_ref());
            process.disk_busy_ms = disk.map(Disk::busy_ms);
        }
        sample
    }

    /// Ends all processes, those that do not follow by force.
    pub(super) fn end(&mut self) {
        let names: Vec<String> = self.all.keys().cloned().collect();
        for name in &names {
            // PostgreSQL ends at once on SIGINT; others take it like SIGTERM.
            let is_postgres = ["postgres", "standby", "citus"].iter().any(|role| name.starts_with(role));
            let signal = if is_postgres { Signal::INT } else { Signal::TERM };
            // It is one of the names.
            let _ = self.stop(name, signal.as_raw());
        }
        let deadline = Instant::now() + END_TIME;
        while self.all.values().any(|process| process.child.is_some()) {
            if Instant::now() > deadline {
                self.all.values().for_each(|process| process.signal(Signal::KILL));
            }
            self.all.values_mut().for_each(Process::look);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
