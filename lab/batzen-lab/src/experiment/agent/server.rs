//! The agent's process.

use std::fs::{File, Permissions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;

use super::processes::{Processes, sweep, tied};
use super::watch::{Watch, round_trip_ms};
use crate::bench::results::machine::Machine;

use super::{CommandLine, LINE_BYTES_MAX, PROTOCOL, Reply, Request, now_ms};

/// The pause between two looks at the processes.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// The pause between two samples.
const SAMPLE_PAUSE: Duration = Duration::from_secs(1);
/// The most of a file that one answer carries.
const PART_BYTES_MAX: u64 = 4 << 20;
/// A file with a private key or a password is its owner's only.
const FILE_MODE: u32 = 0o600;

/// Arguments of `batzen-lab agent serve`.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// Socket at which the controller connects
    #[arg(long, value_name = "FILE")]
    socket: PathBuf,
    /// File for what the processes use, a line each second
    #[arg(long, value_name = "FILE")]
    samples: PathBuf,
}

/// Arguments of `batzen-lab agent connect`.
#[derive(Args, Clone, Debug)]
pub struct ConnectArgs {
    /// Socket of the agent
    #[arg(long, value_name = "FILE")]
    socket: PathBuf,
}

/// A request with the way back.
type Asked = (Request, Sender<Reply>);

/// Runs an agent until it is told to end.
///
/// # Errors
/// When the socket or the file cannot be used.
pub fn serve(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    // What an agent left behind when it was killed.
    sweep(&args.socket);
    let _ = std::fs::remove_file(&args.socket);
    let listener = UnixListener::bind(&args.socket)
        .with_context(|| format!("cannot listen at {}", args.socket.display()))?;
    std::fs::set_permissions(&args.socket, Permissions::from_mode(FILE_MODE))?;
    let mut samples = Samples::open(&args.samples)?;
    let (sender, requests) = channel();
    let watch = Watch::default();
    let probing = watch.clone();
    std::thread::spawn(move || probing.probe());
    let shared = watch.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (sender, watch) = (sender.clone(), shared.clone());
            std::thread::spawn(move || {
                if let Err(error) = answer(&stream, &sender, &watch) {
                    tracing::debug!(%error, "a controller has gone");
                }
            });
        }
    });
    let dir = args.samples.parent().unwrap_or(Path::new("."));
    supervise(&requests, &mut samples, Processes::new(&args.socket, dir), &watch);
    sweep(&args.socket);
    // A file that cannot be removed is removed with its directory.
    let _ = std::fs::remove_file(&args.socket);
    Ok(ExitCode::SUCCESS)
}

/// The file of the samples.
struct Samples {
    file: File,
    /// The reason why the last one was lost, if it was.
    trouble: Option<String>,
}

impl Samples {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let file = File::options().create(true).append(true).open(path);
        Ok(Self { file: file.with_context(|| path.display().to_string())?, trouble: None })
    }

    /// Appends a line. A full disk must not end what is being measured.
    fn write(&mut self, line: &str) {
        let before = self.file.metadata().map(|found| found.len());
        let written = writeln!(self.file, "{line}");
        if let (Err(error), None) = (&written, &self.trouble) {
            tracing::warn!(%error, "samples are lost");
        }
        self.trouble = written.err().map(|error| format!("samples are lost: {error}"));
        if let (Some(_), Ok(before)) = (&self.trouble, before) {
            // A part of a line would spoil the next one.
            let _ = self.file.set_len(before);
        }
    }
}

/// Starts and watches processes on this thread, which must outlive them.
fn supervise(requests: &Receiver<Asked>, samples: &mut Samples, mut processes: Processes, watch: &Watch) {
    let mut next_sample = Instant::now();
    loop {
        match requests.recv_timeout(LOOK_PAUSE) {
            Ok((Request::End, reply)) => {
                processes.end();
                // The controller may have gone.
                let _ = reply.send(Reply::Done);
                // Lets the connection's thread write it.
                std::thread::sleep(LOOK_PAUSE);
                return;
            }
            Ok((Request::Status, reply)) => {
                processes.look();
                let (trouble, round_trips_ms) = (samples.trouble.clone(), watch.round_trips_ms());
                let processes = processes.states();
                let _ = reply.send(Reply::Status { processes, trouble, round_trips_ms });
            }
            Ok((request, reply)) => {
                let answer = perform(&mut processes, request);
                let _ = reply.send(answer.unwrap_or_else(|error| Reply::Failed(error.to_string())));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        processes.look();
        if next_sample <= Instant::now() {
            next_sample = (next_sample + SAMPLE_PAUSE).max(Instant::now());
            samples.write(&serde_json::to_string(&watch.complete(processes.sample())).unwrap_or_default());
        }
    }
}

fn perform(processes: &mut Processes, request: Request) -> io::Result<Reply> {
    match request {
        Request::Start { name, command, dir, disk_delay_ms } => {
            processes.start(&name, command, &dir, disk_delay_ms)?;
        }
        Request::Again { name } => processes.again(&name)?,
        Request::Stop { name, signal } => processes.stop(&name, signal)?,
        Request::Signal { name, signal } => processes.signal(&name, signal)?,
        Request::Input { name, line } => processes.input(&name, &line)?,
        Request::Pace { name, share } => processes.pace(&name, share)?,
        Request::Delay { name, delay_ms } => processes.delay(&name, delay_ms)?,
        Request::Hello { .. }
        | Request::Put { .. }
        | Request::Get { .. }
        | Request::Run { .. }
        | Request::Listen { .. }
        | Request::Follow { .. }
        | Request::Status
        | Request::End => {
            return Err(io::Error::other("this request is answered elsewhere"));
        }
    }
    Ok(Reply::Done)
}

/// Answers the requests of one connection.
fn answer(stream: &UnixStream, supervisor: &Sender<Asked>, watch: &Watch) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    loop {
        line.clear();
        let mut limited = (&mut reader).take(LINE_BYTES_MAX as u64);
        if limited.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let reply = match serde_json::from_str(&line) {
            Ok(request) => {
                handle(request, supervisor, watch).unwrap_or_else(|error| Reply::Failed(error.to_string()))
            }
            Err(error) => Reply::Failed(format!("not a request of protocol {PROTOCOL}: {error}")),
        };
        let mut text = serde_json::to_string(&reply)?;
        text.push('\n');
        let mut stream = stream;
        stream.write_all(text.as_bytes())?;
    }
}

fn handle(request: Request, supervisor: &Sender<Asked>, watch: &Watch) -> io::Result<Reply> {
    match request {
        Request::Hello { .. } => Ok(Reply::Hello {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            is_root: rustix::process::geteuid().is_root(),
            machine: Machine::detect(),
            time_ms: now_ms(),
        }),
        Request::Put { path, text, owner } => put(&path, &text, owner.as_deref()).map(|()| Reply::Done),
        Request::Get { path, offset } => get(&path, offset),
        Request::Run { command, input } => run(&command, &input),
        Request::Listen { address } => watch.listen(&address).map(|port| Reply::Listening { port }),
        Request::Follow { peers } => {
            watch.follow(peers);
            Ok(Reply::Done)
        }
        other => {
            let (sender, reply) = channel();
            let gone = || io::Error::other("the agent ends");
            supervisor.send((other, sender)).map_err(|_| gone())?;
            reply.recv().map_err(|_| gone())
        }
    }
}

/// The numbers of a user of this machine and of its group.
fn user_ids(name: &str) -> Option<(u32, u32)> {
    let text = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = text.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut words = line.split(':').skip(2);
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

fn put(path: &Path, text: &str, owner: Option<&str>) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let mut file = File::options().write(true).create(true).truncate(true).mode(FILE_MODE).open(path)?;
    file.write_all(text.as_bytes())?;
    if let Some(owner) = owner.filter(|_| rustix::process::geteuid().is_root()) {
        let (user, group) =
            user_ids(owner).ok_or_else(|| io::Error::other(format!("there is no user {owner}")))?;
        chown(path, Some(user), Some(group))?;
    }
    Ok(())
}

fn get(path: &Path, offset: u64) -> io::Result<Reply> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.take(PART_BYTES_MAX).read_to_end(&mut bytes)?;
    // A character is not cut, and what was not read stays for the next part.
    let end = match std::str::from_utf8(&bytes) {
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => error.valid_up_to(),
        _ => bytes.len(),
    };
    let text = String::from_utf8_lossy(&bytes[..end]).into_owned();
    Ok(Reply::Part { text, next: offset + end as u64 })
}

fn run(command: &CommandLine, input: &str) -> io::Result<Reply> {
    let mut child =
        tied(command)?.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A command that does not read its input is not wrong for that.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output()?;
    Ok(Reply::Ran {
        success: output.status.success(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// Arguments of `batzen-lab agent probe`.
#[derive(Args, Clone, Debug)]
pub struct ProbeArgs {
    /// Address and port of the service
    #[arg(long, value_name = "HOST:PORT")]
    to: String,
}

/// Prints the round trip to a service in milliseconds: the time of a TCP connection, the shortest of several.
///
/// # Errors
/// When the service does not accept connections.
pub fn probe(args: &ProbeArgs) -> anyhow::Result<ExitCode> {
    const ATTEMPTS: usize = 5;
    const PATIENCE: Duration = Duration::from_secs(5);
    let ms = round_trip_ms(&args.to, ATTEMPTS, PATIENCE).with_context(|| args.to.clone())?;
    println!("{ms:.3}");
    Ok(ExitCode::SUCCESS)
}

/// Kills what an agent that is gone has left behind.
///
/// # Errors
/// Never; what cannot be read is none of its processes.
pub fn clean(args: &ConnectArgs) -> anyhow::Result<ExitCode> {
    sweep(&args.socket);
    Ok(ExitCode::SUCCESS)
}

/// Connects standard input and output with an agent, for a controller on another machine.
///
/// # Errors
/// When no agent listens.
pub fn connect(args: &ConnectArgs) -> anyhow::Result<ExitCode> {
    let stream = UnixStream::connect(&args.socket)
        .with_context(|| format!("no agent listens at {}", args.socket.display()))?;
    let mut back = stream.try_clone()?;
    std::thread::spawn(move || {
        // Either side may go at any time; that ends the bridge.
        let _ = io::copy(&mut io::stdin(), &mut &stream);
        let _ = stream.shutdown(std::net::Shutdown::Write);
    });
    let mut out = io::stdout();
    let mut part = vec![0; 64 << 10];
    loop {
        let count = back.read(&mut part)?;
        if count == 0 {
            return Ok(ExitCode::SUCCESS);
        }
        out.write_all(&part[..count])?;
        out.flush()?;
    }
}
