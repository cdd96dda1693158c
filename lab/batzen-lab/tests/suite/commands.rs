//! Commands that must succeed, and waiting for what services do.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use batzen_testkit::process::{PATIENCE, Service, stderr, stdout};
use serde_json::Value;

/// The JSON that a command prints; it must succeed.
#[track_caller]
pub(crate) fn printed(command: &mut Command) -> Value {
    let output = command.output().unwrap();
    let (out, err) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{command:?}: {error}\n{out}"))
}

/// The JSON in a file.
#[track_caller]
pub(crate) fn read_json(path: impl AsRef<Path>) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Asks again and again, with pauses, until there is an answer; an error says what is missing.
#[track_caller]
pub(crate) fn until<T>(pause_ms: u64, mut ask: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(missing) => assert!(Instant::now() < deadline, "{missing}"),
        }
        std::thread::sleep(Duration::from_millis(pause_ms));
    }
}

/// Waits until the log of a service has something, while the service runs.
#[track_caller]
pub(crate) fn logged<T>(
    service: &mut Service,
    dir: &Path,
    name: &str,
    find: impl Fn(&str) -> Option<T>,
) -> T {
    until(20, || {
        let log = std::fs::read_to_string(dir.join(format!("{name}.log"))).unwrap();
        find(&log).ok_or_else(|| {
            service.assert_runs();
            format!("the log of {name} does not have it: {log}")
        })
    })
}
