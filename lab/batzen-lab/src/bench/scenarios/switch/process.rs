//! The switch under test: a real process of this program with its own ledger.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::scenarios::Context;
use crate::bench::scenarios::service::{Service, command};
use crate::bench::scenarios::world::{free_port, local};
use crate::participants::hub::Hub;

/// Time that it may take to start.
const PATIENCE: Duration = Duration::from_secs(60);
/// The operators' tokens. They are useless to anybody else, since the switch listens only on this machine and
/// ends with the run.
const TOKENS: [&str; 2] = ["secret-token:one-and-secret", "secret-token:two-and-secret"];

/// A running switch. It is killed when this is dropped.
pub(crate) struct SwitchProcess {
    service: Service,
    /// Directory of its store and its ledger.
    pub(crate) data: PathBuf,
    /// The address for transfers.
    pub(crate) participants: SocketAddr,
    pub(crate) administration: SocketAddr,
}

impl SwitchProcess {
    /// Starts it on these cores (all cores if the list is empty) with an empty store below `world`.
    pub(crate) fn start(context: &Context, world: &Path, cores: &[usize]) -> Result<Self> {
        let (port, admin_port) = (free_port()?, free_port()?);
        let data = world.join("switch");
        let config = world.join("switch.conf");
        std::fs::write(&config, configuration(&data, port, admin_port)).map_err(BenchError::io(&config))?;
        let words = ["switch", "serve", "-c", &config.to_string_lossy()];
        let mut service = Service::spawn("switch", command(&context.program, world, &words), world, cores)?;
        let (participants, administration) = (local(port), local(admin_port));
        let is_ready = || {
            std::net::TcpStream::connect(participants).is_ok()
                && hub(administration).call(0, "GET", "/health", None).is_ok_and(|(status, _)| status == 200)
        };
        service.wait_until(is_ready, PATIENCE, &context.interrupted, |name, last_words| {
            format!("the {name} does not answer: {last_words}")
        })?;
        Ok(Self { service, data, participants, administration })
    }

    /// Its operators.
    pub(crate) fn hub(&self) -> Hub {
        hub(self.administration)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.service.pid()
    }

    /// Checks that it is still running.
    pub(crate) fn still_runs(&mut self) -> Result<()> {
        self.service.still_runs()
    }

    /// Terminates it, and waits until it has ended.
    pub(crate) fn terminate(mut self) -> Result<()> {
        self.service.terminate()
    }
}

fn hub(administration: SocketAddr) -> Hub {
    Hub::new(administration, TOKENS.map(str::to_owned))
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
