//! How worker programs hand their work to the service: with the embedded store only the service has the store open.
//!
//! The service listens on a local socket in the runtime directory. A program sends one line: `run NAME` is answered, once the
//! worker has nothing left to do, by `ok DONE SET-ASIDE DEFERRED` or `error REASON`; `stay` is answered by `ok` at once, and
//! the connection then ends with the service.

use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use batzen_exchange::service::Exchange;
use batzen_exchange::workers::{Progress, WorkerError, aggregator, closer, drain, transfer, wirewatch};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

/// The name of the socket in the runtime directory.
const SOCKET: &str = "workers.sock";
/// The longest line, in bytes.
const LINE_MAX: u64 = 1024;

/// A background worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worker {
    /// Imports incoming transfers.
    Wirewatch,
    /// Combines deposits into transfers.
    Aggregator,
    /// Has the bank execute transfers.
    Transfer,
    /// Pays expired reserves back.
    Closer,
    /// Pays profit out.
    Drain,
}

impl Worker {
    const ALL: [Self; 5] = [Self::Wirewatch, Self::Aggregator, Self::Transfer, Self::Closer, Self::Drain];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Wirewatch => "wirewatch",
            Self::Aggregator => "aggregator",
            Self::Transfer => "transfer",
            Self::Closer => "closer",
            Self::Drain => "drain",
        }
    }

    /// Runs it until there is nothing left to do.
    ///
    /// # Errors
    /// What keeps it from that.
    pub async fn run_until_idle(self, app: &Exchange) -> Result<Progress, WorkerError> {
        match self {
            Self::Wirewatch => wirewatch::run_until_idle(app).await,
            Self::Aggregator => aggregator::run_until_idle(app).await,
            Self::Transfer => transfer::run_until_idle(app).await,
            Self::Closer => closer::run_until_idle(app).await,
            Self::Drain => drain::run_until_idle(app).await,
        }
    }
}

/// Where the socket of an exchange is.
pub fn socket(runtime_dir: &Path) -> PathBuf {
    runtime_dir.join(SOCKET)
}

/// Listens for worker programs until the exchange ends.
///
/// # Errors
/// When the socket cannot be made.
pub fn serve(app: &Arc<Exchange>) -> io::Result<()> {
    let dir = &app.config.runtime_dir;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let path = socket(dir);
    // One that was left behind: the store's lock says that this process is the only service.
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    let app = Arc::clone(app);
    tokio::spawn(async move {
        loop {
            let accepted = tokio::select! {
                biased;
                () = app.drain.draining() => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    let app = Arc::clone(&app);
                    tokio::spawn(async move {
                        if let Err(error) = answer(&app, stream).await {
                            tracing::debug!(%error, "a worker program went away");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "worker programs cannot connect");
                    if app.drain.sleep(std::time::Duration::from_secs(1)).await {
                        break;
                    }
                }
            }
        }
        // The next start removes it otherwise.
        let _ = std::fs::remove_file(&path);
    });
    Ok(())
}

async fn answer(app: &Arc<Exchange>, stream: UnixStream) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader.take(LINE_MAX));
    let mut line = String::new();
    reader.read_line(&mut line).await?;
    let line = line.trim();
    if line == "stay" {
        writer.write_all(b"ok\n").await?;
        let mut rest = String::new();
        tokio::select! {
            () = app.drain.draining() => {}
            // The program ends.
            _ = reader.read_line(&mut rest) => {}
        }
        return Ok(());
    }
    let worker = line
        .strip_prefix("run ")
        .and_then(|name| Worker::ALL.into_iter().find(|worker| worker.name() == name));
    let reply = match worker {
        None => "error no such worker\n".to_owned(),
        Some(worker) => match worker.run_until_idle(app).await {
            Ok(progress) => format!("ok {} {} {}\n", progress.done, progress.set_aside, progress.deferred),
            Err(error) => format!("error {}\n", error.to_string().replace('\n', " ")),
        },
    };
    writer.write_all(reply.as_bytes()).await
}

/// Has the service run a worker until it is idle. None if no service listens.
///
/// # Errors
/// What kept the worker from its work, or a connection that broke.
pub async fn run_in_service(socket: &Path, worker: Worker) -> anyhow::Result<Option<Progress>> {
    let Ok(stream) = UnixStream::connect(socket).await else { return Ok(None) };
    let reply = ask(stream, &format!("run {}\n", worker.name())).await?;
    if let Some(reason) = reply.strip_prefix("error ") {
        anyhow::bail!("{}: {reason}", worker.name());
    }
    let counts =
        reply.strip_prefix("ok ").map(|rest| rest.split(' ').map(str::parse::<u64>).collect::<Vec<_>>());
    match counts.as_deref() {
        Some([Ok(done), Ok(set_aside), Ok(deferred)]) => {
            Ok(Some(Progress { done: *done, set_aside: *set_aside, deferred: *deferred }))
        }
        _ => anyhow::bail!("the service ended before the {} was done", worker.name()),
    }
}

async fn ask(mut stream: UnixStream, line: &str) -> io::Result<String> {
    stream.write_all(line.as_bytes()).await?;
    let mut reply = String::new();
    BufReader::new(stream.take(LINE_MAX)).read_line(&mut reply).await?;
    Ok(reply.trim_end().to_owned())
}

/// Stays as long as the service does. False if no service listens.
///
/// # Errors
/// When the connection breaks.
pub async fn stay_with_service(socket: &Path) -> io::Result<bool> {
    let Ok(mut stream) = UnixStream::connect(socket).await else { return Ok(false) };
    stream.write_all(b"stay\n").await?;
    let mut bytes = [0; 64];
    while stream.read(&mut bytes).await? > 0 {}
    Ok(true)
}
