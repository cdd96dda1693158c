//! The link from worker programs to the running service. With the embedded store, only the service has the
//! store open, so a worker program asks the service to run the worker.
//!
//! The service listens on a local socket in the runtime directory. A program connects and sends one line:
//!
//! * `run NAME SIZE WORKERS ACCOUNT LONG-POLL-MS FLAGS`, each a number or `-`. Once the worker has nothing
//!   left to do, the service answers `ok DONE SET-ASIDE DEFERRED` or `error REASON`.
//! * `serve` with the same words. The service answers `ok` at once. The worker runs until the service ends
//!   (`end`) or the worker fails (`error REASON`).
//!
//! * `collect`. The service collects garbage and answers `ok REPORT`, in JSON, or `error REASON`.
//! * `liabilities`. The service publishes the next epoch of liabilities if it is due, and answers `ok EPOCH LEAVES`,
//!   `ok` if it is not due, or `error REASON`.
//!
//! In all cases the worker ends when the program disconnects: a killed program leaves no worker and no claim
//! behind.

use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use batzen_tables::exchange::AccountId;
use futures_util::future::BoxFuture;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use super::garbage::{self, Report};
use super::liabilities::{self, Round};
use super::{Progress, WorkerError, WorkerOptions, aggregator, closer, drain, expire, transfer, wirewatch};
use crate::app::Exchange;
use crate::core::Core;

/// The name of the socket in the runtime directory.
const SOCKET: &str = "workers.sock";
/// The longest line, in bytes.
const LINE_MAX: u64 = 1024;
/// The order to collect garbage.
const COLLECT: &str = "collect";
/// The order to publish liabilities.
const LIABILITIES: &str = "liabilities";

batzen_protocol::enumeration! {
    /// A background worker.
    pub enum Worker {
        /// Imports incoming transfers.
        Wirewatch => "wirewatch",
        /// Combines deposits into transfers.
        Aggregator => "aggregator",
        /// Has the bank execute transfers.
        Transfer => "transfer",
        /// Pays expired reserves back.
        Closer => "closer",
        /// Refunds expired purses.
        Expire => "expire",
        /// Pays profit out.
        Drain => "drain",
    }
}

impl Worker {
    /// Runs it until there is nothing left to do.
    ///
    /// # Errors
    /// The failure that ends it.
    pub fn run_until_idle(
        self,
        app: &Core,
        options: WorkerOptions,
    ) -> BoxFuture<'_, Result<Progress, WorkerError>> {
        // Boxed: the code of the workers is compiled once, with this crate.
        Box::pin(self.until_idle(app, options))
    }

    async fn until_idle(self, app: &Core, options: WorkerOptions) -> Result<Progress, WorkerError> {
        match self {
            Self::Wirewatch => wirewatch::share_until_idle(app, options).await,
            Self::Aggregator => aggregator::run_until_idle(app).await,
            Self::Transfer => transfer::share_until_idle(app, options).await,
            Self::Closer => closer::run_until_idle(app).await,
            Self::Expire => expire::run_until_idle(app).await,
            Self::Drain => drain::run_until_idle(app).await,
        }
    }

    /// Runs it until the process ends.
    ///
    /// # Errors
    /// The failure that ends it.
    pub fn serve(self, app: &Core, options: WorkerOptions) -> BoxFuture<'_, Result<(), WorkerError>> {
        Box::pin(self.until_stopped(app, options))
    }

    async fn until_stopped(self, app: &Core, options: WorkerOptions) -> Result<(), WorkerError> {
        match self {
            Self::Wirewatch => wirewatch::serve(app, options).await,
            Self::Aggregator => aggregator::run(app).await,
            Self::Transfer => transfer::serve(app, options).await,
            Self::Closer => closer::run(app).await,
            Self::Expire => expire::run(app).await,
            Self::Drain => drain::run(app).await,
        }
    }
}

/// The path of an exchange's socket.
pub fn socket(runtime_dir: &Path) -> PathBuf {
    runtime_dir.join(SOCKET)
}

/// Why a worker program got no result from the service.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The connection broke.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The worker failed.
    #[error("{worker}: {reason}")]
    Worker {
        /// The worker's name.
        worker: &'static str,
        /// Its error.
        reason: String,
    },
    /// The service ended first.
    #[error("the service shut down before the {0} completed")]
    ServiceEnded(&'static str),
}

/// Listens for worker programs until the exchange ends.
///
/// # Errors
/// When the socket cannot be created.
pub fn serve(app: &Arc<Exchange>) -> io::Result<()> {
    let dir = &app.core.config.runtime_dir;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let path = socket(dir);
    // A socket was left behind: the store's lock guarantees that this process is the only service.
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
                () = app.core.drain.draining() => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    let app = Arc::clone(&app);
                    tokio::spawn(async move {
                        if let Err(error) = answer(&app, stream).await {
                            tracing::debug!(%error, "a worker program disconnected");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "worker programs cannot connect");
                    if app.core.drain.sleep(std::time::Duration::from_secs(1)).await {
                        break;
                    }
                }
            }
        }
        // Otherwise the next start removes it.
        let _ = std::fs::remove_file(&path);
    });
    Ok(())
}

/// A program's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Order {
    worker: Worker,
    options: WorkerOptions,
    /// Run until there is nothing left to do; otherwise until the service ends.
    until_idle: bool,
}

impl Order {
    fn line(self) -> String {
        fn text(number: Option<impl ToString>) -> String {
            number.map_or_else(|| "-".to_owned(), |number| number.to_string())
        }
        let verb = if self.until_idle { "run" } else { "serve" };
        let options = self.options;
        let account = options.account.map(|account| u64::from_be_bytes(account.0));
        let flags = u8::from(options.exits_on_error) | u8::from(options.ignores_not_found) << 1;
        let words = [
            text(options.shard_size),
            text(options.workers),
            text(account),
            text(options.long_poll_ms),
            text(Some(flags)),
        ];
        format!("{verb} {} {}\n", self.worker.name(), words.join(" "))
    }

    fn read(line: &str) -> Option<Self> {
        fn number<T: FromStr>(word: Option<&str>) -> Option<Option<T>> {
            word.filter(|word| *word != "-").map(str::parse).transpose().ok()
        }
        let mut words = line.split(' ');
        let until_idle = match words.next()? {
            "run" => true,
            "serve" => false,
            _ => return None,
        };
        let name = words.next()?;
        let worker = Worker::from_name(name)?;
        let (shard_size, workers) = (number(words.next())?, number(words.next())?);
        let account = number::<u64>(words.next())?.map(|account| AccountId(account.to_be_bytes()));
        let long_poll_ms = number(words.next())?;
        let flags = number::<u8>(words.next())?.unwrap_or(0);
        let (exits_on_error, ignores_not_found) = (flags & 1 != 0, flags & 2 != 0);
        let options =
            WorkerOptions { shard_size, workers, account, long_poll_ms, exits_on_error, ignores_not_found };
        Some(Self { worker, options, until_idle })
    }
}

async fn answer(app: &Arc<Exchange>, stream: UnixStream) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader.take(LINE_MAX));
    let mut line = String::new();
    reader.read_line(&mut line).await?;
    if line.trim() == COLLECT {
        return collect(app, reader, writer).await;
    }
    if line.trim() == LIABILITIES {
        let reply = match liabilities::round(app).await {
            Ok(Round::Published { epoch, leaves }) => format!("ok {epoch} {leaves}\n"),
            Ok(Round::NotDue(_)) => "ok\n".to_owned(),
            Err(error) => format!("error {}\n", error.to_string().replace('\n', " ")),
        };
        return writer.write_all(reply.as_bytes()).await;
    }
    let Some(order) = Order::read(line.trim()) else {
        return writer.write_all(b"error no such worker\n").await;
    };
    let Order { worker, options, until_idle } = order;
    if !until_idle {
        writer.write_all(b"ok\n").await?;
    }
    let work = async {
        let ended = if until_idle {
            let Progress { done, set_aside, deferred } = worker.run_until_idle(&app.core, options).await?;
            format!("ok {done} {set_aside} {deferred}\n")
        } else {
            worker.serve(&app.core, options).await?;
            "end\n".to_owned()
        };
        Ok::<_, WorkerError>(ended)
    };
    let mut rest = String::new();
    let reply = tokio::select! {
        ended = work => match ended {
            Ok(reply) => reply,
            Err(WorkerError::Stopped) if !until_idle => "end\n".to_owned(),
            Err(error) => format!("error {}\n", error.to_string().replace('\n', " ")),
        },
        // When the program ends, so does its worker.
        _ = reader.read_line(&mut rest) => return Ok(()),
    };
    writer.write_all(reply.as_bytes()).await
}

/// Collects garbage for a program.
async fn collect(
    app: &Arc<Exchange>,
    mut reader: impl AsyncBufRead + Unpin,
    mut writer: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    let mut rest = String::new();
    let collected = tokio::select! {
        collected = garbage::run(&app.core, |_| ()) => collected,
        // When the program ends, so does the collection.
        _ = reader.read_line(&mut rest) => return Ok(()),
    };
    let reply = match collected {
        Ok(report) => format!("ok {}\n", serde_json::to_string(&report).map_err(io::Error::other)?),
        Err(error) => format!("error {}\n", error.to_string().replace('\n', " ")),
    };
    writer.write_all(reply.as_bytes()).await
}

/// Collects garbage in the service. None if no service listens.
///
/// # Errors
/// The failure that ended the collection, or a broken connection.
pub async fn collect_in_service(socket: &Path) -> Result<Option<Report>, LinkError> {
    let Ok(mut stream) = UnixStream::connect(socket).await else { return Ok(None) };
    stream.write_all(format!("{COLLECT}\n").as_bytes()).await?;
    let mut reply = String::new();
    BufReader::new(stream.take(LINE_MAX)).read_line(&mut reply).await?;
    if let Some(reason) = reply.strip_prefix("error ") {
        return Err(LinkError::Worker { worker: "garbage collection", reason: reason.trim_end().to_owned() });
    }
    let report = reply.strip_prefix("ok ").and_then(|report| serde_json::from_str(report).ok());
    report.map(Some).ok_or(LinkError::ServiceEnded("garbage collection"))
}

/// Publishes the next epoch of liabilities in the service: its number and its leaves, unless it is not due. None if no
/// service listens.
///
/// # Errors
/// Why it was not published, or a broken connection.
pub async fn publish_in_service(socket: &Path) -> Result<Option<Option<(u64, u64)>>, LinkError> {
    let Ok(mut stream) = UnixStream::connect(socket).await else { return Ok(None) };
    stream.write_all(format!("{LIABILITIES}\n").as_bytes()).await?;
    let mut reply = String::new();
    BufReader::new(stream.take(LINE_MAX)).read_line(&mut reply).await?;
    if let Some(reason) = reply.strip_prefix("error ") {
        return Err(LinkError::Worker { worker: LIABILITIES, reason: reason.trim_end().to_owned() });
    }
    let words: Vec<&str> = reply.split_whitespace().collect();
    match words.as_slice() {
        ["ok"] => Ok(Some(None)),
        ["ok", epoch, leaves] => match (epoch.parse(), leaves.parse()) {
            (Ok(epoch), Ok(leaves)) => Ok(Some(Some((epoch, leaves)))),
            _ => Err(LinkError::ServiceEnded(LIABILITIES)),
        },
        _ => Err(LinkError::ServiceEnded(LIABILITIES)),
    }
}

/// Runs a worker in the service until it is idle. None if no service listens.
///
/// # Errors
/// The worker's failure, or a broken connection.
pub async fn run_in_service(
    socket: &Path,
    worker: Worker,
    options: WorkerOptions,
) -> Result<Option<Progress>, LinkError> {
    let Ok(mut stream) = UnixStream::connect(socket).await else { return Ok(None) };
    stream.write_all(Order { worker, options, until_idle: true }.line().as_bytes()).await?;
    let mut reply = String::new();
    BufReader::new(stream.take(LINE_MAX)).read_line(&mut reply).await?;
    let reply = reply.trim_end();
    if let Some(reason) = reply.strip_prefix("error ") {
        return Err(LinkError::Worker { worker: worker.name(), reason: reason.to_owned() });
    }
    let counts =
        reply.strip_prefix("ok ").map(|rest| rest.split(' ').map(str::parse::<u64>).collect::<Vec<_>>());
    match counts.as_deref() {
        Some([Ok(done), Ok(set_aside), Ok(deferred)]) => {
            Ok(Some(Progress { done: *done, set_aside: *set_aside, deferred: *deferred }))
        }
        _ => Err(LinkError::ServiceEnded(worker.name())),
    }
}

/// Runs a worker in the service until either ends. False if no service listens.
///
/// # Errors
/// The worker's failure, or a broken connection.
pub async fn serve_in_service(
    socket: &Path,
    worker: Worker,
    options: WorkerOptions,
) -> Result<bool, LinkError> {
    let Ok(mut stream) = UnixStream::connect(socket).await else { return Ok(false) };
    stream.write_all(Order { worker, options, until_idle: false }.line().as_bytes()).await?;
    let mut replies = String::new();
    stream.take(LINE_MAX).read_to_string(&mut replies).await?;
    if let Some(reason) = replies.lines().find_map(|line| line.strip_prefix("error ")) {
        return Err(LinkError::Worker { worker: worker.name(), reason: reason.to_owned() });
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_as_they_are_written() {
        for worker in Worker::ALL {
            for (shard_size, workers) in [(None, None), (Some(1), Some(0)), (Some(u64::MAX), None)] {
                for until_idle in [true, false] {
                    let account = until_idle.then_some(AccountId([200; 8]));
                    let options = WorkerOptions {
                        shard_size,
                        workers,
                        account,
                        long_poll_ms: workers.map(|_| 1_000),
                        exits_on_error: until_idle,
                        ignores_not_found: shard_size.is_some(),
                    };
                    let order = Order { worker, options, until_idle };
                    assert_eq!(Order::read(order.line().trim()), Some(order));
                }
            }
        }
        let plain = Order { worker: Worker::Closer, options: WorkerOptions::default(), until_idle: true };
        assert_eq!(Order::read("run closer"), Some(plain));
        for line in ["", "run", "run router", "stop closer", "run transfer x 1", "run transfer 1 -1"] {
            assert_eq!(Order::read(line), None, "{line}");
        }
    }
}
