//! The agent: one process on each host of an experiment, which runs the others.
//!
//! An agent listens on a Unix socket that only its user can open, so it needs no secret of its own: on this
//! machine the file system authenticates the controller, on other machines ssh does, which carries the same
//! lines (`batzen-lab agent connect`). Each line is a request in JSON, answered by one line.
//!
//! Processes die with their agent: the kernel kills them when it ends, however it ends. Their own children are found by a
//! variable in their environment, by the next agent or by `down`.

mod client;
mod disk;
mod notify;
mod pace;
mod processes;
mod sample;
mod server;
mod watch;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::bench::results::machine::Machine;

pub(crate) use client::{Agent, Reach, quoted, ssh};
pub(crate) use disk::DELAY_MAX_MS;
pub(crate) use processes::MARK;
pub(crate) use sample::{HostSample, ProcessSample, Sample, now_ms};
pub use server::{ConnectArgs, ProbeArgs, ServeArgs, clean, connect, probe, serve};

/// The version of the protocol; both sides must have the same.
const PROTOCOL: u32 = 3;
/// The longest line in bytes.
const LINE_BYTES_MAX: usize = 16 << 20;

/// A command line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CommandLine {
    /// The program and its arguments.
    pub(crate) argv: Vec<String>,
    /// Variables of its environment.
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    /// The user that runs it, if the agent may choose.
    #[serde(default)]
    pub(crate) user: Option<String>,
}

impl CommandLine {
    /// A command of the agent's user.
    pub(crate) fn new<T: Into<String>>(argv: impl IntoIterator<Item = T>) -> Self {
        Self { argv: argv.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// The same by another user, if the agent is root.
    pub(crate) fn by(mut self, user: &str) -> Self {
        self.user = Some(user.to_owned());
        self
    }
}

/// A request to an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// Asks for version and user.
    Hello {
        /// The controller's version of the protocol.
        protocol: u32,
    },
    /// Writes a file, with the directories above it.
    Put {
        /// Its path.
        path: PathBuf,
        /// Its text.
        text: String,
        /// The user who owns it, if the agent may choose.
        owner: Option<String>,
    },
    /// Reads a part of a file.
    Get {
        /// Its path.
        path: PathBuf,
        /// The first byte.
        offset: u64,
    },
    /// Runs a command to its end.
    Run {
        /// The command.
        command: CommandLine,
        /// The text of its standard input.
        input: String,
    },
    /// Starts a process, and starts it again when it ends by itself.
    Start {
        /// The instance's name.
        name: String,
        /// The command.
        command: CommandLine,
        /// The directory for its output, `out` and `log`, and its working directory.
        dir: PathBuf,
        /// For a disk whose delay can change: the delay now, in milliseconds.
        disk_delay_ms: Option<f64>,
    },
    /// Starts a process that was stopped, with the same command.
    Again {
        /// The instance's name.
        name: String,
    },
    /// Sends a signal to a process; it is not started again.
    Stop {
        /// The instance's name.
        name: String,
        /// The signal's number.
        signal: i32,
    },
    /// Sends a signal to a process that is to run: if it ends by that, it is started again.
    Signal {
        /// The instance's name.
        name: String,
        /// The signal's number.
        signal: i32,
    },
    /// Writes a line to a process.
    Input {
        /// The instance's name.
        name: String,
        /// The line.
        line: String,
    },
    /// Lets a process, with its children, run only for a share of the time.
    Pace {
        /// The instance's name.
        name: String,
        /// Above 0 and at most 1, which means no limit.
        share: f64,
    },
    /// Serves the host's metrics at this address; other agents measure their way there.
    Listen {
        /// The address at which other hosts reach it.
        address: String,
    },
    /// Names the pages of the other hosts, to which it measures its way.
    Follow {
        /// Address and port by host.
        peers: BTreeMap<String, String>,
    },
    /// Changes the delay of the disk of a process that was started with one.
    Delay {
        /// The instance's name.
        name: String,
        /// Milliseconds that each sync takes longer.
        delay_ms: f64,
    },
    /// Asks for the state of all processes.
    Status,
    /// Stops all processes, then the agent itself.
    End,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    /// Done.
    Done,
    /// Not done, for this reason.
    Failed(String),
    /// The agent.
    Hello {
        /// Its version of the protocol.
        protocol: u32,
        /// The version of the program.
        version: String,
        /// Whether it is root.
        is_root: bool,
        /// The machine of its host.
        machine: Machine,
        /// The clock of its host, in milliseconds since 1970.
        time_ms: u64,
    },
    /// A part of a file, as much text as fits.
    Part {
        /// The text; bytes that are none are replaced.
        text: String,
        /// The offset behind it.
        next: u64,
    },
    /// The host's page.
    Listening {
        /// Its port.
        port: u16,
    },
    /// A command's end.
    Ran {
        /// Whether it succeeded.
        success: bool,
        /// The text of its standard output.
        stdout: String,
        /// The text of its standard error.
        stderr: String,
    },
    /// The state of the host.
    Status {
        /// All processes.
        processes: Vec<ProcessState>,
        /// The reason why samples are being lost.
        trouble: Option<String>,
        /// The last round trips to other hosts, in milliseconds.
        round_trips_ms: BTreeMap<String, f64>,
    },
}

/// The state of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProcessState {
    /// The instance's name.
    pub(crate) name: String,
    /// Its process id while it runs.
    pub(crate) pid: Option<u32>,
    /// Whether it is meant to run.
    pub(crate) is_wanted: bool,
    /// The number of times that it was started again.
    pub(crate) restarts: u32,
    /// The status with which it ended last, if it did.
    pub(crate) ended: Option<String>,
    /// The share of the time for which it may run.
    pub(crate) share: f64,
    /// The milliseconds that each sync takes longer, if its disk may be slow.
    #[serde(default)]
    pub(crate) disk_delay_ms: Option<f64>,
}
