//! The switch under test: a real process of this program with its own ledger.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::participants::hub::Hub;
use rustix::process::{Pid, Signal, kill_process};

use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::affinity;
use crate::bench::scenarios::world::{free_port, local};

/// Time that it may take to start and to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pause between two polls.
const PAUSE: Duration = Duration::from_millis(20);
/// The operators' tokens. They are useless to anybody else, since the switch listens only on this machine and
/// ends with the run.
const TOKENS: [&str; 2] = ["secret-token:one-and-secret", "secret-token:two-and-secret"];
/// Maximum length of its last output that is shown.
const LAST_WORDS_BYTES: usize = 1_000;

/// A running switch. It is killed when this is dropped.
pub(crate) struct SwitchProcess {
    child: Child,
    log: PathBuf,
    /// Directory of its store and its ledger.
    pub(crate) data: PathBuf,
    /// The address for transfers.
    pub(crate) participants: SocketAddr,
    pub(crate) administration: SocketAddr,
}

impl SwitchProcess {
    /// Starts it on these cores (all cores if the list is empty) with an empty store below `world`.
    ///
    /// # Errors
    /// When it does not start.
    pub(crate) fn start(program: &Path, world: &Path, cores: &[usize]) -> Result<Self> {
        let (port, admin_port) = (free_port()?, free_port()?);
        let data = world.join("switch");
        let config = world.join("switch.conf");
        std::fs::write(&config, configuration(&data, port, admin_port)).map_err(BenchError::io(&config))?;
        let log = world.join("switch.log");
        let file = std::fs::File::create(&log).map_err(BenchError::io(&log))?;
        let out = file.try_clone().map_err(BenchError::io(&log))?;
        let mut command = Command::new(program);
        for name in ["TALER_BASE_CONFIG", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "LISTEN_FDS", "LISTEN_PID"] {
            command.env_remove(name);
        }
        command
            .args(["switch", "serve", "-c"])
            .arg(&config)
            .env("HOME", world)
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(file);
        let child = affinity::on_cores(cores, || command.spawn())?
            .map_err(|error| BenchError::set_up("cannot start the switch", error))?;
        let (participants, administration) = (local(port), local(admin_port));
        let mut switch = Self { child, log, data, participants, administration };
        let deadline = Instant::now() + PATIENCE;
        while !switch.is_ready() {
            switch.still_runs()?;
            if Instant::now() > deadline {
                return Err(BenchError::set_up("the switch does not answer", last_words(&switch.log)));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(switch)
    }

    fn is_ready(&self) -> bool {
        std::net::TcpStream::connect(self.participants).is_ok()
            && self.hub().call(0, "GET", "/health", None).is_ok_and(|(status, _)| status == 200)
    }

    /// Its operators.
    #[must_use]
    pub(crate) fn hub(&self) -> Hub {
        Hub::new(self.administration, TOKENS.map(str::to_owned))
    }

    #[must_use]
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Checks that it is still running.
    ///
    /// # Errors
    /// The end of its output if it is not.
    pub(crate) fn still_runs(&mut self) -> Result<()> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.ended(&status.to_string())),
            Err(error) => Err(self.ended(&error.to_string())),
        }
    }

    fn ended(&self, status: &str) -> BenchError {
        let last_words = last_words(&self.log);
        BenchError::Ended { name: "the switch".to_owned(), status: status.to_owned(), last_words }
    }

    /// Terminates it, and waits until it has ended.
    ///
    /// # Errors
    /// When it does not end cleanly.
    pub(crate) fn terminate(mut self) -> Result<()> {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // It may have ended already; waiting for it will show.
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + PATIENCE;
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

impl Drop for SwitchProcess {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One operator may do everything here: this measurement is not about four eyes.
fn configuration(data: &Path, port: u16, admin_port: u16) -> String {
    let data = data.display();
    let [one, two] = TOKENS;
    format!(
        "[switch]\nDATA_DIR = {data}\nBIND_TO = 127.0.0.1\nPORT = {port}\nADMIN_PORT = {admin_port}\nFOUR_EYES = NO\n\n\
         [switch-operator-one]\nTOKEN = {one}\n\n[switch-operator-two]\nTOKEN = {two}\n"
    )
}

fn last_words(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let start = text.len().saturating_sub(LAST_WORDS_BYTES);
    String::from_utf8_lossy(&text[start..]).trim().replace('\n', "; ")
}
