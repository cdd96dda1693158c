//! A postmaster with its children, and the guard that stops it.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::postgres::ClusterError;

/// A time limit for anything that normally takes a second, since machines can be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until a condition holds.
pub(crate) fn wait_until(
    what: &'static str,
    mut holds: impl FnMut() -> Result<bool, ClusterError>,
) -> Result<(), ClusterError> {
    let deadline = Instant::now() + PATIENCE;
    while !holds()? {
        if Instant::now() > deadline {
            return Err(ClusterError::Slow(what));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

fn pid_of(id: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(id).ok()?)
}

/// A process that has ended needs no signal.
pub(crate) fn signal(id: u32, signal: Signal) {
    if let Some(pid) = pid_of(id) {
        let _ = kill_process(pid, signal);
    }
}

/// Parent and state of a process: the fields after its name, which is in parentheses and may contain
/// anything.
fn parent_and_state(id: u32) -> Option<(u32, char)> {
    let text = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.chars().next()?;
    Some((fields.next()?.parse().ok()?, state))
}

fn children_of(parent: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|id| parent_and_state(*id).is_some_and(|(of, _)| of == parent))
        .collect()
}

/// Returns whether it runs and is not a zombie.
fn is_alive(id: u32) -> bool {
    parent_and_state(id).is_some_and(|(_, state)| state != 'Z' && state != 'X')
}

/// Kills the postmaster and all its processes with SIGKILL, as a machine failure would, and returns when all
/// are gone. The postmaster is stopped first, so that it neither starts new processes nor signals the others.
pub(crate) fn kill_all(postmaster: &mut Child) -> Result<(), ClusterError> {
    let id = postmaster.id();
    signal(id, Signal::STOP);
    let children = children_of(id);
    for child in &children {
        signal(*child, Signal::KILL);
    }
    postmaster.kill().map_err(ClusterError::io("postmaster"))?;
    postmaster.wait().map_err(ClusterError::io("postmaster"))?;
    wait_until("ending killed processes", || Ok(!children.iter().any(|child| is_alive(*child))))
}

/// A process that waits until its input ends, which happens even if the parent is killed; then it stops the
/// server and removes its directory.
pub(crate) struct Guard {
    child: Child,
    input: Option<ChildStdin>,
}

/// Reads the process id of the postmaster (an empty line: none). At the end of its input it stops that
/// process and removes the directory in the first argument.
const GUARD: &str = r#"pid=
while read -r line; do pid=$line; done
if [ -n "$pid" ]; then
    kill -QUIT "$pid"
    rounds=0
    while kill -0 "$pid" && [ $rounds -lt 200 ]; do sleep 0.05; rounds=$((rounds + 1)); done
fi
[ -z "$1" ] || rm -rf -- "$1"
"#;

impl Guard {
    /// Guards no process yet; removes `directory` at the end, if there is one.
    pub(crate) fn start(directory: Option<&Path>) -> Result<Self, ClusterError> {
        let mut child = Command::new("/bin/sh")
            .args(["-c", GUARD, "batzen-pg-guard"])
            .args(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C is for the program that owns the cluster.
            .process_group(0)
            .spawn()
            .map_err(ClusterError::io("/bin/sh"))?;
        let input = child.stdin.take();
        Ok(Self { child, input })
    }

    /// Sets the process to guard.
    pub(crate) fn watch(&mut self, postmaster: Option<u32>) -> Result<(), ClusterError> {
        let line = postmaster.map_or_else(|| "\n".to_owned(), |id| format!("{id}\n"));
        let input = self.input.as_mut().expect("kept until the guard is dropped");
        input.write_all(line.as_bytes()).map_err(ClusterError::io("guard"))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}
