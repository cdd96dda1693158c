//! Starting, stopping, killing and restarting a cluster; its databases.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use crate::ports;
use crate::postgres::install::Owner;
use crate::postgres::process::{Guard, kill_all, signal, wait_until};
use crate::postgres::{ClusterError, Installation};

/// The superuser of every cluster.
pub(crate) const SUPERUSER: &str = "postgres";
/// Number of ports that are tried when another program takes the chosen one first.
const PORT_ATTEMPTS: u32 = 5;

/// Default settings: small, ready for standbys and publications, and without checkpoints in the middle of a
/// short run.
const SETTINGS: [(&str, &str); 7] = [
    ("shared_buffers", "64MB"),
    ("max_connections", "100"),
    ("wal_level", "logical"),
    ("max_wal_size", "2GB"),
    ("max_wal_senders", "10"),
    ("max_replication_slots", "10"),
    ("log_line_prefix", "%m [%p] %q%a "),
];

#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// Settings for `postgresql.conf`, which override the cluster's own.
    pub settings: Vec<(String, String)>,
    /// Whether commits are synced to disk. Without syncs, they survive a kill of the server, but not a
    /// failure of the machine.
    pub fsync: bool,
    /// Whether it has the small sizes of a throw-away cluster; otherwise it has PostgreSQL's defaults.
    pub is_small: bool,
    /// A directory that is kept. `None`: a temporary directory, removed with the cluster.
    pub directory: Option<PathBuf>,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self { settings: Vec::new(), fsync: true, is_small: true, directory: None }
    }
}

impl ClusterOptions {
    /// The defaults without syncs, for tests in which only processes fail.
    pub fn unsynced() -> Self {
        Self { fsync: false, ..Self::default() }
    }

    /// Adds a setting, as written in `postgresql.conf` without quotes.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// The way to stop, with PostgreSQL's names.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// Waits until the last client disconnects.
    Smart,
    /// Disconnects clients, then writes everything to disk.
    Fast,
    /// Stops at once; the next start recovers.
    Immediate,
}

impl Mode {
    fn signal(self) -> Signal {
        match self {
            Self::Smart => Signal::TERM,
            Self::Fast => Signal::INT,
            Self::Immediate => Signal::QUIT,
        }
    }
}

/// A PostgreSQL server with its own data directory. It ends when this is dropped, or when this process ends.
pub struct Cluster {
    pub(crate) installation: Installation,
    pub(crate) owner: Owner,
    base: PathBuf,
    port: u16,
    password: String,
    postmaster: Option<Child>,
    guard: Guard,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("base", &self.base).field("port", &self.port).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Creates a cluster, or reuses the one in `options.directory`, and starts it.
    ///
    /// By Unix socket it needs no password, but access to its directory (its user and root have it). By TCP,
    /// which is open to every user of the machine, it takes a random password, which [`Cluster::url`]
    /// contains.
    ///
    /// # Errors
    /// PostgreSQL is not installed, or does not start.
    pub fn start(options: &ClusterOptions) -> Result<Self, ClusterError> {
        Self::prepare(options.directory.as_deref())?.begin(options)
    }

    /// As [`Cluster::start`], but the server can log in to its peers: all get the password of the first.
    pub(crate) fn start_peer(options: &ClusterOptions, first: Option<&Self>) -> Result<Self, ClusterError> {
        let mut cluster = Self::prepare(options.directory.as_deref())?;
        if let Some(first) = first {
            cluster.take_password_of(first);
            let path = cluster.base.join("password");
            std::fs::write(&path, &cluster.password).map_err(ClusterError::io(&path))?;
        }
        cluster.trust_peers()?;
        cluster.begin(options)
    }

    fn begin(mut self, options: &ClusterOptions) -> Result<Self, ClusterError> {
        let cluster = &mut self;
        if !cluster.data_dir().join("PG_VERSION").exists() {
            cluster.initialize(options)?;
        }
        cluster.launch_on_free_port()?;
        Ok(self)
    }

    /// Creates the empty directories and the guard.
    pub(crate) fn prepare(directory: Option<&Path>) -> Result<Self, ClusterError> {
        let installation = Installation::find()?;
        let owner = Owner::find()?;
        let base = match directory {
            Some(directory) => {
                std::fs::create_dir_all(directory).map_err(ClusterError::io(directory))?;
                directory.canonicalize().map_err(ClusterError::io(directory))?
            }
            None => {
                let made = tempfile::Builder::new().prefix("batzen-pg-").tempdir();
                made.map_err(ClusterError::io(std::env::temp_dir()))?.keep()
            }
        };
        let guard = Guard::start(directory.is_none().then_some(&base))?;
        owner.give(&base)?;
        std::fs::set_permissions(&base, std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .map_err(ClusterError::io(&base))?;
        let password_file = base.join("password");
        let password = if let Ok(password) = std::fs::read_to_string(&password_file) {
            password
        } else {
            let mut bytes = [0; 16];
            batzen_crypto::fill_random(&mut bytes);
            let password: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let file = File::options().write(true).create_new(true).mode(0o600).open(&password_file);
            file.and_then(|mut file| file.write_all(password.as_bytes()))
                .map_err(ClusterError::io(&password_file))?;
            owner.give(&password_file)?;
            password
        };
        Ok(Self { installation, owner, base, port: 0, password, postmaster: None, guard })
    }

    fn initialize(&self, options: &ClusterOptions) -> Result<(), ClusterError> {
        self.run(
            "initdb",
            self.installation
                .command("initdb")
                .arg("-D")
                .arg(self.data_dir())
                .args(["-U", SUPERUSER, "--no-sync", "--no-locale", "-E", "UTF8", "--no-instructions"])
                .args(["--auth-local=trust", "--auth-host=scram-sha-256"])
                .arg("--pwfile")
                .arg(self.base.join("password")),
        )?;
        let own = if options.is_small { &SETTINGS[..] } else { &[] };
        let own = own.iter().map(|(name, value)| (*name, *value));
        let more = options.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let fsync = (!options.fsync).then_some(("fsync", "off"));
        self.configure(own.chain(fsync).chain(more))
    }

    /// Appends settings; the last of several with the same name counts.
    pub(crate) fn configure<'a>(
        &self,
        settings: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Result<(), ClusterError> {
        let path = self.data_dir().join("postgresql.conf");
        let lines: String =
            settings.map(|(name, value)| format!("{name} = '{}'\n", value.replace('\'', "''"))).collect();
        let file = File::options().append(true).open(&path);
        file.and_then(|mut file| file.write_all(lines.as_bytes())).map_err(ClusterError::io(path))
    }

    pub(crate) fn launch_on_free_port(&mut self) -> Result<(), ClusterError> {
        for attempt in 1.. {
            self.port = free_port()?;
            match self.launch() {
                Err(ClusterError::Start(text)) if text.contains("bind") && attempt < PORT_ATTEMPTS => {}
                other => return other,
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Starts the server in its directory, and waits until it accepts connections.
    fn launch(&mut self) -> Result<(), ClusterError> {
        let log = self.log_file();
        let out = File::options().create(true).append(true).mode(0o600).open(&log);
        let out = out.map_err(ClusterError::io(&log))?;
        let said_before = out.metadata().map_err(ClusterError::io(&log))?.len();
        let mut command = self.installation.command("postgres");
        // Nodes of a Citus cluster log in to one another.
        let passwords = self.password_file();
        if passwords.exists() {
            command.env("PGPASSFILE", passwords);
        }
        command
            .arg("-D")
            .arg(self.data_dir())
            .args(["-p", &self.port.to_string(), "-c", "listen_addresses=127.0.0.1"])
            .args(["-c", "unix_socket_permissions=0700", "-k"])
            .arg(self.socket_dir())
            .current_dir(&self.base)
            .stdin(Stdio::null())
            .stdout(out.try_clone().map_err(ClusterError::io(&log))?)
            .stderr(out)
            // Ctrl-C must reach the program that uses the cluster, not the server.
            .process_group(0);
        let postmaster =
            self.owner.run(&mut command).spawn().map_err(ClusterError::io(self.installation.bin.clone()))?;
        let id = postmaster.id();
        self.guard.watch(Some(id))?;
        let postmaster = self.postmaster.insert(postmaster);
        let status = self.base.join("data/postmaster.pid");
        wait_until("the start of PostgreSQL", || {
            if let Some(ended) = postmaster.try_wait().map_err(ClusterError::io("postmaster"))? {
                let log = std::fs::read(&log).unwrap_or_default();
                let said = log.get(usize::try_from(said_before).unwrap_or(0)..).unwrap_or_default();
                return Err(ClusterError::Start(format!(
                    "{ended}: {}",
                    String::from_utf8_lossy(said).trim()
                )));
            }
            // Line 1 of the file is the process id, line 8 the status.
            let text = std::fs::read_to_string(&status).unwrap_or_default();
            let line = |index| text.lines().nth(index).map(str::trim);
            Ok(line(0) == Some(&id.to_string()) && matches!(line(7), Some("ready" | "standby")))
        })
    }

    /// Returns whether the server's first process runs.
    pub fn is_running(&mut self) -> bool {
        self.postmaster.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Stops the server and waits until it has ended.
    ///
    /// # Errors
    /// When it does not end.
    pub fn stop(&mut self, mode: Mode) -> Result<(), ClusterError> {
        let Some(mut postmaster) = self.postmaster.take() else { return Ok(()) };
        signal(postmaster.id(), mode.signal());
        let ended = wait_until("stopping PostgreSQL", || {
            let ended = postmaster.try_wait().map_err(ClusterError::io("postmaster"))?;
            Ok(ended.is_some())
        });
        if ended.is_err() {
            kill_all(&mut postmaster)?;
        }
        self.guard.watch(None)?;
        ended
    }

    /// Kills all its processes at once with SIGKILL, as a machine failure would, except that the kernel still
    /// writes its cache.
    ///
    /// # Errors
    /// When they do not end.
    pub fn kill9(&mut self) -> Result<(), ClusterError> {
        let Some(mut postmaster) = self.postmaster.take() else { return Ok(()) };
        kill_all(&mut postmaster)?;
        self.guard.watch(None)
    }

    /// Restarts a stopped or killed server at the same addresses. Recovery has finished when this returns.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start_again(&mut self) -> Result<(), ClusterError> {
        if self.is_running() {
            return Ok(());
        }
        self.launch()
    }

    /// Changes settings of the running server; some take effect only after a restart.
    ///
    /// # Errors
    /// When there is no such setting or value.
    pub fn set(&self, name: &str, value: &str) -> Result<(), ClusterError> {
        let value = value.replace('\'', "''");
        self.sql(SUPERUSER, &format!("ALTER SYSTEM SET {name} = '{value}'"))?;
        self.sql(SUPERUSER, "SELECT pg_reload_conf()").map(drop)
    }

    /// Creates an empty database and returns its address.
    ///
    /// # Errors
    /// A database of this name exists.
    pub fn create_database(&self, name: &str) -> Result<String, ClusterError> {
        self.sql(SUPERUSER, &format!("CREATE DATABASE \"{name}\""))?;
        Ok(self.url(name))
    }

    /// Runs SQL in a database. Returns the rows, one per line, columns separated by `|`.
    ///
    /// # Errors
    /// The SQL fails.
    pub fn sql(&self, database: &str, sql: &str) -> Result<String, ClusterError> {
        let mut command = self.installation.command("psql");
        command.args([
            "-X",
            "-A",
            "-t",
            "-q",
            "-v",
            "ON_ERROR_STOP=1",
            "-d",
            &self.socket_url(database),
            "-c",
            sql,
        ]);
        finish("psql", &mut command)
    }

    /// Runs one of PostgreSQL's programs as the cluster's user. Returns its output.
    ///
    /// # Errors
    /// When it fails.
    pub(crate) fn run(&self, program: &'static str, command: &mut Command) -> Result<String, ClusterError> {
        finish(program, self.owner.run(command.current_dir(&self.base)))
    }

    /// A database's TCP address, with user and password.
    pub fn url(&self, database: &str) -> String {
        self.url_at(self.port, database)
    }

    /// The same at another port, such as that of a [`crate::postgres::Proxy`].
    pub fn url_at(&self, port: u16, database: &str) -> String {
        format!("postgres://{SUPERUSER}:{}@127.0.0.1:{port}/{database}", self.password)
    }

    /// The superuser and its password.
    pub(crate) fn login(&self) -> (&'static str, &str) {
        (SUPERUSER, &self.password)
    }

    /// A database's address with two hosts: this server and its standby. Clients choose the one that takes
    /// writes.
    pub fn url_or(&self, standby: &Self, database: &str) -> String {
        format!(
            "postgres://{SUPERUSER}:{}@127.0.0.1:{},127.0.0.1:{}/{database}?target_session_attrs=read-write",
            self.password, self.port, standby.port
        )
    }

    /// A database's address by Unix socket, without a password.
    pub(crate) fn socket_url(&self, database: &str) -> String {
        let directory = self.socket_dir().display().to_string().replace('/', "%2F");
        format!("postgres://{SUPERUSER}@{directory}:{}/{database}", self.port)
    }

    /// Its TCP port, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The id of its first process, if it runs.
    pub fn pid(&self) -> Option<u32> {
        self.postmaster.as_ref().map(Child::id)
    }

    pub fn data_dir(&self) -> PathBuf {
        self.base.join("data")
    }

    /// The directory of its Unix socket.
    pub(crate) fn socket_dir(&self) -> PathBuf {
        self.base.clone()
    }

    fn password_file(&self) -> PathBuf {
        self.base.join("pgpass")
    }

    /// Lets the server log in to other clusters on this machine that have its password. Counts from the next
    /// start on.
    pub(crate) fn trust_peers(&self) -> Result<(), ClusterError> {
        let path = self.password_file();
        let line = format!("127.0.0.1:*:*:{SUPERUSER}:{}\n", self.password);
        let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(line.as_bytes())).map_err(ClusterError::io(&path))?;
        self.owner.give(&path)
    }

    fn log_file(&self) -> PathBuf {
        self.base.join("log")
    }

    /// The server's log so far.
    pub fn log(&self) -> String {
        let bytes = std::fs::read(self.log_file()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A standby has its primary's roles, and so its password.
    pub(crate) fn take_password_of(&mut self, primary: &Self) {
        self.password.clone_from(&primary.password);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The guard kills what does not stop.
        let _ = self.stop(Mode::Fast);
    }
}

fn finish(program: &'static str, command: &mut Command) -> Result<String, ClusterError> {
    let output = command.stdin(Stdio::null()).output().map_err(ClusterError::io(program))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(ClusterError::Program { program, text })
}

/// A free port, given to nobody else.
pub(crate) fn free_port() -> Result<u16, ClusterError> {
    ports::reserve().map_err(ClusterError::io("127.0.0.1"))
}
