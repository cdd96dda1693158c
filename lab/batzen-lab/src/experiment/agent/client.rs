//! The controller's side of an agent.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};

use crate::bench::results::machine::Machine;

use super::{CommandLine, PROTOCOL, ProcessState, Reply, Request, now_ms};

/// Time that an agent may take to answer. Commands that it runs, such as `initdb`, take a while.
const PATIENCE: Duration = Duration::from_secs(180);

/// The way to an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// A socket of this machine.
    Socket(PathBuf),
    /// A socket of another machine, over ssh.
    Ssh {
        /// The destination of the ssh command.
        destination: String,
        /// Its configuration file, if it is not the user's.
        config: Option<PathBuf>,
        /// The program there.
        lab: String,
        /// The socket there.
        socket: PathBuf,
    },
}

/// A connection to an agent.
pub(crate) struct Agent {
    host: String,
    reader: BufReader<Box<dyn Read + Send>>,
    writer: Box<dyn Write + Send>,
    ssh: Option<Child>,
    /// Whether it may choose the users of its processes.
    pub(crate) is_root: bool,
    /// The version of its program.
    pub(crate) version: String,
    /// The machine of its host.
    pub(crate) machine: Machine,
    /// The reason why its samples were lost when it was last asked for its status.
    pub(crate) trouble: Option<String>,
    /// The round trips to other hosts, in milliseconds, when it was last asked for its status.
    pub(crate) round_trips_ms: BTreeMap<String, f64>,
    /// Its host's clock less that of this machine, in milliseconds.
    pub(crate) clock_offset_ms: i64,
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(ssh) = &mut self.ssh {
            // It ends by itself once its input is closed; a hung one must not hold up the controller.
            let _ = ssh.kill();
            let _ = ssh.wait();
        }
    }
}

/// The ssh command to a destination, which asks nothing.
pub(crate) fn ssh(destination: &str, config: Option<&Path>) -> Command {
    let mut command = Command::new("ssh");
    if let Some(config) = config {
        command.arg("-F").arg(config);
    }
    command.args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]);
    // A host that drops off must not hold up the controller for hours.
    command.args(["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=6", "--", destination]);
    command
}

impl Agent {
    /// Connects to the agent of a host.
    ///
    /// # Errors
    /// When none listens, or it is of another version.
    pub(crate) fn connect(host: &str, reach: &Reach) -> anyhow::Result<Self> {
        Self::connect_for(host, reach, PATIENCE)
    }

    /// The same for requests whose answers take so long.
    ///
    /// # Errors
    /// As [`Agent::connect`].
    pub(crate) fn connect_for(host: &str, reach: &Reach, patience: Duration) -> anyhow::Result<Self> {
        let mut agent = match reach {
            Reach::Socket(path) => {
                let stream = UnixStream::connect(path).with_context(|| format!("no agent on {host}"))?;
                stream.set_read_timeout(Some(patience))?;
                let back = stream.try_clone()?;
                Self::new(host, Box::new(back), Box::new(stream), None)
            }
            Reach::Ssh { destination, config, lab, socket } => {
                let mut child = ssh(destination, config.as_deref())
                    .arg(format!(
                        "exec {} agent connect --socket {}",
                        quoted(lab),
                        quoted(&socket.to_string_lossy())
                    ))
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .spawn()
                    .context("cannot start ssh")?;
                let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
                    bail!("ssh has no input and output");
                };
                Self::new(host, Box::new(stdout), Box::new(stdin), Some(child))
            }
        };
        let asked_ms = now_ms();
        match agent.ask(&Request::Hello { protocol: PROTOCOL })? {
            Reply::Hello { protocol, version, is_root, machine, time_ms } => {
                ensure!(
                    protocol == PROTOCOL,
                    "{host}: the agent there is of version {version}, this program of {}: install the same",
                    env!("CARGO_PKG_VERSION")
                );
                agent.is_root = is_root;
                agent.version = version;
                agent.machine = machine;
                // It looked at its clock about halfway between question and answer.
                let here_ms = asked_ms.midpoint(now_ms());
                agent.clock_offset_ms = time_ms.cast_signed().saturating_sub(here_ms.cast_signed());
                Ok(agent)
            }
            other => bail!("{host}: unexpected answer {other:?}"),
        }
    }

    fn new(
        host: &str,
        reader: Box<dyn Read + Send>,
        writer: Box<dyn Write + Send>,
        ssh: Option<Child>,
    ) -> Self {
        Self {
            host: host.to_owned(),
            reader: BufReader::new(reader),
            writer,
            ssh,
            is_root: false,
            version: String::new(),
            machine: Machine::default(),
            trouble: None,
            round_trips_ms: BTreeMap::new(),
            clock_offset_ms: 0,
        }
    }

    /// Sends a request and reads the answer.
    ///
    /// # Errors
    /// When the agent does not answer, or could not do it.
    pub(crate) fn ask(&mut self, request: &Request) -> anyhow::Result<Reply> {
        let host = self.host.clone();
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        self.writer
            .write_all(line.as_bytes())
            .and_then(|()| self.writer.flush())
            .with_context(|| format!("the agent on {host} is gone"))?;
        let mut answer = String::new();
        let count =
            self.reader.read_line(&mut answer).with_context(|| format!("the agent on {host} is silent"))?;
        ensure!(count > 0, "the agent on {host} is gone");
        match serde_json::from_str(&answer)
            .with_context(|| format!("the agent on {host} gave an unexpected answer"))?
        {
            Reply::Failed(reason) => bail!("{host}: {reason}"),
            reply => Ok(reply),
        }
    }

    /// Writes a file.
    ///
    /// # Errors
    /// As [`Agent::ask`].
    pub(crate) fn put(&mut self, path: &Path, text: &str) -> anyhow::Result<()> {
        self.put_for(path, text, None)
    }

    /// Writes a file for another user.
    ///
    /// # Errors
    /// As [`Agent::ask`].
    pub(crate) fn put_for(&mut self, path: &Path, text: &str, owner: Option<&str>) -> anyhow::Result<()> {
        let owner = owner.map(str::to_owned);
        self.ask(&Request::Put { path: path.to_owned(), text: text.to_owned(), owner }).map(drop)
    }

    /// The text of a file from `offset` on, with the offset behind it.
    ///
    /// # Errors
    /// As [`Agent::ask`].
    pub(crate) fn get(&mut self, path: &Path, offset: u64) -> anyhow::Result<(String, u64)> {
        match self.ask(&Request::Get { path: path.to_owned(), offset })? {
            Reply::Part { text, next } => Ok((text, next)),
            other => bail!("{}: unexpected answer {other:?}", self.host),
        }
    }

    /// The text of a whole file.
    ///
    /// # Errors
    /// As [`Agent::ask`].
    pub(crate) fn text(&mut self, path: &Path) -> anyhow::Result<String> {
        let (mut whole, mut offset) = (String::new(), 0);
        loop {
            let (text, next) = self.get(path, offset)?;
            if next == offset {
                return Ok(whole);
            }
            whole.push_str(&text);
            offset = next;
        }
    }

    /// Runs a command, which must succeed, and returns its output.
    ///
    /// # Errors
    /// As [`Agent::ask`], and what the command said if it failed.
    pub(crate) fn run(&mut self, command: CommandLine) -> anyhow::Result<String> {
        self.run_with(command, "")
    }

    /// The same with this text as its input.
    ///
    /// # Errors
    /// As [`Agent::run`].
    pub(crate) fn run_with(&mut self, command: CommandLine, input: &str) -> anyhow::Result<String> {
        let words = command.argv.join(" ");
        let (success, stdout, stderr) = self.run_whatever_comes(command, input)?;
        ensure!(success, "{}: {words}: {}", self.host, format!("{stdout}{stderr}").trim());
        Ok(stdout)
    }

    /// Runs a command, and returns whether it succeeded, its output and its standard error.
    ///
    /// # Errors
    /// As [`Agent::ask`].
    pub(crate) fn run_whatever_comes(
        &mut self,
        command: CommandLine,
        input: &str,
    ) -> anyhow::Result<(bool, String, String)> {
        match self.ask(&Request::Run { command, input: input.to_owned() })? {
            Reply::Ran { success, stdout, stderr } => Ok((success, stdout, stderr)),
            other => bail!("{}: unexpected answer {other:?}", self.host),
        }
    }

    /// The processes of the host.
    ///
    /// # Errors
    /// As [`Agent::ask`].
    pub(crate) fn status(&mut self) -> anyhow::Result<Vec<ProcessState>> {
        match self.ask(&Request::Status)? {
            Reply::Status { processes, trouble, round_trips_ms } => {
                (self.trouble, self.round_trips_ms) = (trouble, round_trips_ms);
                Ok(processes)
            }
            other => bail!("{}: unexpected answer {other:?}", self.host),
        }
    }
}

/// A word for a shell.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
