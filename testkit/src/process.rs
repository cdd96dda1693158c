//! Running the real programs.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use crate::ports;

/// A time limit for anything that should take a second, since machines are sometimes busy.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The product's program, isolated from the caller's configuration: the one built beside the test, or the one that
/// `BATZEN_PROGRAM` names.
pub fn batzen() -> Command {
    isolated(batzen_path())
}

/// The path of the product's program.
pub fn batzen_path() -> OsString {
    std::env::var_os("BATZEN_PROGRAM").unwrap_or_else(|| built("batzen"))
}

/// The product's program under another name, by a link in a directory.
pub fn by_name(dir: &Path, name: &str) -> Command {
    let link = dir.join(name);
    if !link.exists() {
        std::os::unix::fs::symlink(batzen_path(), &link).unwrap();
    }
    isolated(link)
}

/// The laboratory's program, isolated in the same way.
pub fn lab() -> Command {
    isolated(built("batzen-lab"))
}

/// A program that was built beside the test, which is one directory further down.
fn built(name: &str) -> OsString {
    let test = std::env::current_exe().expect("a test has a path");
    let path = test.ancestors().nth(2).expect("a test is in target/PROFILE/deps").join(name);
    assert!(path.is_file(), "{} is missing: cargo build --bin {name}", path.display());
    path.into_os_string()
}

/// A program, isolated from the caller's configuration.
pub fn isolated(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for name in ["TALER_BASE_CONFIG", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "LISTEN_FDS", "LISTEN_PID"] {
        command.env_remove(name);
    }
    command.env("HOME", "/nonexistent").env("NO_COLOR", "1").stdin(Stdio::null());
    command
}

/// Runs the program to completion.
pub fn run(arguments: &[&str]) -> Output {
    batzen().args(arguments).output().unwrap()
}

/// Runs the laboratory's program to completion.
pub fn run_lab(arguments: &[&str]) -> Output {
    lab().args(arguments).output().unwrap()
}

/// The output of a command that must succeed.
#[track_caller]
pub fn must(words: &[&str]) -> String {
    let output = run(words);
    assert!(output.status.success(), "{words:?}: {}{}", stdout(&output), stderr(&output));
    stdout(&output)
}

/// The same as JSON.
#[track_caller]
pub fn must_json(words: &[&str]) -> serde_json::Value {
    serde_json::from_str(&must(words)).expect("the command prints JSON")
}

/// Compares the help of a command with a file. Help texts are part of the interface, so every change must show up in a
/// snapshot; `BATZEN_BLESS=1` rewrites it.
#[track_caller]
pub fn assert_help(mut program: Command, command: &str, file: &Path) {
    let output =
        program.args(command.split_whitespace()).arg("--help").env("COLUMNS", "100").output().unwrap();
    assert!(output.status.success(), "{command}");
    let text = stdout(&output);
    if std::env::var_os("BATZEN_BLESS").is_some() {
        std::fs::write(file, &text).unwrap();
    }
    let expected = std::fs::read_to_string(file).unwrap_or_default();
    assert_eq!(text, expected, "the help of `{command}` has changed; BATZEN_BLESS=1 accepts it");
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A free port, given to nobody else; see [`ports::reserve`].
pub fn free_port() -> u16 {
    ports::reserve().expect("a free port")
}

/// A running service; killed when it is dropped.
pub struct Service {
    pub child: Child,
}

impl Service {
    /// Starts it, with its output in a file in `dir`.
    pub fn start(dir: &Path, name: &str, arguments: &[&str]) -> Self {
        Self::start_with(dir, name, arguments, &[])
    }

    /// The same for a command of the laboratory.
    pub fn start_lab(dir: &Path, name: &str, arguments: &[&str]) -> Self {
        let mut command = lab();
        command.args(arguments);
        Self::start_command(dir, name, command)
    }

    /// Starts it with environment variables.
    pub fn start_with(dir: &Path, name: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = batzen();
        command.args(arguments).envs(variables.iter().copied());
        Self::start_command(dir, name, command)
    }

    /// Starts it, and reads its addresses from the words after `NAME ready: `.
    pub fn start_ready(dir: &Path, name: &str, arguments: &[&str]) -> (Self, Vec<String>) {
        let mut service = Self::start(dir, name, arguments);
        let deadline = Instant::now() + PATIENCE;
        let begin = format!("{name} ready: ");
        loop {
            let log = std::fs::read_to_string(dir.join(format!("{name}.log"))).unwrap();
            if let Some((rest, _)) = log.split_once(&begin).and_then(|(_, rest)| rest.split_once('\n')) {
                return (service, rest.split(' ').map(str::to_owned).collect());
            }
            service.assert_runs();
            assert!(Instant::now() < deadline, "{name} does not come up: {log}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Starts a command in the same way.
    pub fn start_command(dir: &Path, name: &str, mut command: Command) -> Self {
        let log = File::options().create(true).append(true).open(dir.join(format!("{name}.log"))).unwrap();
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).process_group(0).spawn().unwrap();
        Self { child }
    }

    /// Fails the test if the service has ended by itself.
    pub fn assert_runs(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            panic!("the service has ended by itself: {status}");
        }
    }

    pub fn signal(&self, signal: i32) {
        let status =
            Command::new("kill").arg(format!("-{signal}")).arg(self.child.id().to_string()).status().unwrap();
        assert!(status.success());
    }

    /// Sends SIGKILL, and waits until the process is gone.
    pub fn kill_9(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends SIGTERM; returns the exit status and the time it took to end.
    pub fn terminate(mut self) -> (ExitStatus, Duration) {
        let begun = Instant::now();
        self.signal(15);
        let status = self.wait();
        (status, begun.elapsed())
    }

    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the service does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Starts a program, and kills it after a while, whatever it is doing. It may have finished before.
pub fn kill_after(mut command: Command, time: Duration) {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(time);
    let _ = child.kill();
    child.wait().unwrap();
}

/// Waits until something has happened; `failure` says what has not.
#[track_caller]
pub fn until(failure: &str, mut has_happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !has_happened() {
        assert!(Instant::now() < deadline, "{failure}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Ends services, which must end well.
#[track_caller]
pub fn end(services: impl IntoIterator<Item = Service>) {
    for service in services {
        let (status, _) = service.terminate();
        assert!(status.success(), "a service ended with {status}");
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
