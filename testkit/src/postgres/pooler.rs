//! PgBouncer in front of a cluster.

use std::fs::File;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use crate::postgres::cluster::free_port;
use crate::postgres::process::{Guard, signal, wait_until};
use crate::postgres::{Cluster, ClusterError};

/// Debian's place, and the name on the search path.
const PROGRAMS: [&str; 2] = ["/usr/sbin/pgbouncer", "pgbouncer"];

/// When PgBouncer gives a session of the server to another client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PoolMode {
    /// When the client that has it disconnects.
    Session,
    /// After each transaction.
    Transaction,
}

/// A PgBouncer, which ends when this is dropped.
pub struct Pooler {
    child: Child,
    port: u16,
    _guard: Guard,
}

impl Pooler {
    /// Starts one in front of all databases of a cluster.
    ///
    /// # Errors
    /// When it is not installed (`sudo apt-get install pgbouncer`) or does not start.
    pub fn start(cluster: &Cluster, mode: PoolMode) -> Result<Self, ClusterError> {
        let made = tempfile::Builder::new().prefix("batzen-pooler-").tempdir();
        let dir = made.map_err(ClusterError::io(std::env::temp_dir()))?.keep();
        let mut guard = Guard::start(Some(&dir))?;
        let port = free_port()?;
        let users = dir.join("users.txt");
        let (user, password) = cluster.login();
        let write = |path: &Path, text: String| {
            let file = File::options().write(true).create_new(true).mode(0o600).open(path);
            file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(ClusterError::io(path))?;
            cluster.owner.give(path)
        };
        write(&users, format!("\"{user}\" \"{password}\"\n"))?;
        let mode = match mode {
            PoolMode::Session => "session",
            PoolMode::Transaction => "transaction",
        };
        let config = dir.join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = scram-sha-256\nauth_file = {}\npool_mode = {mode}\ndefault_pool_size = 40\n",
            cluster.port(),
            users.display()
        );
        write(&config, text)?;
        cluster.owner.give(&dir)?;
        let log = dir.join("log");
        let out = File::create(&log).map_err(ClusterError::io(&log))?;
        let mut child = cluster
            .owner
            .run(
                Command::new(program()?)
                    .arg(&config)
                    .current_dir(&dir)
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(out)
                    .process_group(0),
            )
            .spawn()
            .map_err(ClusterError::io(&config))?;
        guard.watch(Some(child.id()))?;
        wait_until("the start of PgBouncer", || {
            if let Some(ended) = child.try_wait().map_err(ClusterError::io(&config))? {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                return Err(ClusterError::Start(format!("PgBouncer: {ended}: {}", said.trim())));
            }
            Ok(TcpStream::connect(("127.0.0.1", port)).is_ok())
        })?;
        Ok(Self { child, port, _guard: guard })
    }

    /// Its TCP port, for [`Cluster::url_at`].
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        signal(self.child.id(), Signal::TERM);
        let _ = self.child.wait();
    }
}

fn program() -> Result<PathBuf, ClusterError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).map(|dir| dir.join(PROGRAMS[1]));
    let found = std::iter::once(PathBuf::from(PROGRAMS[0])).chain(places).find(|program| program.is_file());
    found
        .ok_or_else(|| ClusterError::Start("PgBouncer is missing: sudo apt-get install pgbouncer".to_owned()))
}
