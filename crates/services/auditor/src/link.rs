//! The link from programs to the running service, which has the embedded store open.
//!
//! The service listens on a local socket, which only its user may use. A program connects and sends one line of JSON; the
//! service answers with one.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use batzen_crypto::{EddsaPublicKey, EddsaSignature, ShortHash};
use batzen_http::Drain;
use batzen_protocol::api::auditor::AuditedExchange;
use batzen_protocol::{Base32Data, Timestamp};
use batzen_store::Record as _;
use batzen_tables::auditor::DepositConfirmationRow;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::confirmation::{CONFIRMATIONS_MAX, Numbered};
use crate::liabilities::{Examined, Request, Source};
use crate::rules::Answer;

/// The longest line of a program, in bytes: a URL and a key.
const ASK_BYTES_MAX: u64 = 8 << 10;
/// The longest line of the service, in bytes: a kibibyte for each confirmation, in base32, or a report in all forms.
const TOLD_BYTES_MAX: u64 = 256 << 20;
const _: () = assert!(CONFIRMATIONS_MAX as u64 * (2 << 10) < TOLD_BYTES_MAX);
/// Programs that are answered at the same time.
const PROGRAMS_MAX: usize = 8;
/// Time that either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time that a program waits longer than the service, so that it gets a refusal.
const GRACE: Duration = Duration::from_secs(5);
/// The pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Why a program got no answer from the service.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The service does not listen, or the connection broke.
    #[error(
        "the auditor's store is in use, and its service cannot be asked at {path}: {source}; is another program using it?"
    )]
    Io {
        /// The socket.
        path: std::path::PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The service refused.
    #[error("{0}")]
    Refused(String),
    /// The answer cannot be read.
    #[error("the auditor's service gave an answer that cannot be read: is it another version?")]
    Nonsense,
}

/// A program's request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Ask {
    Exchanges,
    AddExchange {
        master_pub: EddsaPublicKey,
        url: String,
    },
    RemoveExchange {
        master_pub: EddsaPublicKey,
    },
    Revoke {
        master_pub: EddsaPublicKey,
        exchange_pub: EddsaPublicKey,
        master_sig: EddsaSignature,
    },
    Confirmations {
        master_pub: EddsaPublicKey,
        after: u64,
        limit: usize,
    },
    Report {
        wanted: Wanted,
    },
    /// The progress of a check of all rows.
    Checking,
    /// Compares the liabilities that an exchange has published with the copy.
    Liabilities {
        source: Source,
        master_pub: EddsaPublicKey,
        now: Timestamp,
    },
    Note {
        id: ShortHash,
        suppresses: bool,
        reason: String,
    },
}

impl Ask {
    /// Time that the answer may take; `None`: as long as it takes.
    fn patience(&self) -> Option<Duration> {
        let is_long = matches!(self, Self::Report { wanted: Wanted::Whole } | Self::Liabilities { .. });
        (!is_long).then_some(PATIENCE)
    }
}

/// The report that a program wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wanted {
    /// The last one.
    Last,
    /// A new one: bank and merchants are asked first.
    Compared,
    /// The same, after a check of all rows, which may take hours.
    Whole,
}

/// The answer to it.
#[derive(Clone, Debug)]
pub(crate) enum Told {
    Done(Answer),
    Exchanges(Vec<AuditedExchange>),
    Confirmations(Vec<Numbered>),
    Report(Box<Forms>),
    /// Rows that a check of all rows has read; `None`: there is none going on.
    Checking(Option<u64>),
    Liabilities(Box<Examined>),
}

/// A report in all forms.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Forms {
    /// For programs.
    pub json: serde_json::Value,
    /// A page.
    pub html: String,
    /// A table.
    pub csv: String,
    /// For a terminal.
    pub text: String,
}

/// The same as JSON.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    Done {
        repeated: bool,
    },
    Exchanges(Vec<AuditedExchange>),
    /// Serials, and rows as they are stored.
    Confirmations(Vec<(u64, Base32Data)>),
    Report(Box<Forms>),
    Checking(Option<u64>),
    Liabilities(Box<Examined>),
    Refused(String),
}

impl From<Result<Told, String>> for Line {
    fn from(told: Result<Told, String>) -> Self {
        match told {
            Ok(Told::Done(answer)) => Self::Done { repeated: answer == Answer::Repeated },
            Ok(Told::Exchanges(exchanges)) => Self::Exchanges(exchanges),
            Ok(Told::Confirmations(found)) => {
                let bytes = |found: Numbered| (found.serial, Base32Data(found.row.to_bytes()));
                Self::Confirmations(found.into_iter().map(bytes).collect())
            }
            Ok(Told::Report(forms)) => Self::Report(forms),
            Ok(Told::Checking(rows)) => Self::Checking(rows),
            Ok(Told::Liabilities(examined)) => Self::Liabilities(examined),
            Err(reason) => Self::Refused(reason),
        }
    }
}

impl Line {
    fn told(self) -> Result<Told, LinkError> {
        match self {
            Self::Done { repeated } => Ok(Told::Done(if repeated { Answer::Repeated } else { Answer::Done })),
            Self::Exchanges(exchanges) => Ok(Told::Exchanges(exchanges)),
            Self::Confirmations(found) => {
                let numbered = |(serial, bytes): (u64, Base32Data)| {
                    let row = DepositConfirmationRow::decode(&bytes.0).map_err(|_| LinkError::Nonsense)?;
                    Ok(Numbered { serial, row })
                };
                found.into_iter().map(numbered).collect::<Result<_, _>>().map(Told::Confirmations)
            }
            Self::Report(forms) => Ok(Told::Report(forms)),
            Self::Checking(rows) => Ok(Told::Checking(rows)),
            Self::Liabilities(examined) => Ok(Told::Liabilities(examined)),
            Self::Refused(reason) => Err(LinkError::Refused(reason)),
        }
    }
}

/// Asks the service.
pub(crate) fn ask(socket: &Path, ask: &Ask) -> Result<Told, LinkError> {
    let failed = |source| LinkError::Io { path: socket.to_owned(), source };
    let exchange = || {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(ask.patience().map(|patience| patience + GRACE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut line = serde_json::to_string(ask).map_err(io::Error::other)?;
        line.push('\n');
        stream.write_all(line.as_bytes())?;
        let mut told = String::new();
        BufReader::new(stream.take(TOLD_BYTES_MAX)).read_line(&mut told)?;
        Ok(told)
    };
    let told = exchange().map_err(failed)?;
    serde_json::from_str::<Line>(&told).map_err(|_| LinkError::Nonsense)?.told()
}

/// The refusal of a service that follows no exchange, so that it does not have the copy open.
pub(crate) const FOLLOWS_NONE: &str = "the auditor's service follows no exchange: it has no [auditor-feed]";

/// The answer of the service if it follows an exchange; `None` if it does not run, or follows none.
fn ask_follower(socket: &Path, question: &Ask) -> Result<Option<Told>, LinkError> {
    match ask(socket, question) {
        Ok(told) => Ok(Some(told)),
        Err(LinkError::Io { source, .. })
            if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
        {
            Ok(None)
        }
        Err(LinkError::Refused(reason)) if reason == FOLLOWS_NONE => Ok(None),
        Err(error) => Err(error),
    }
}

/// Asks the service for a report on the exchange that it follows. `None` if it does not run, or follows none.
///
/// # Errors
/// `LinkError` if it refuses, or its answer cannot be read.
pub fn ask_report(socket: &Path, wanted: Wanted) -> Result<Option<Forms>, LinkError> {
    match ask_follower(socket, &Ask::Report { wanted })? {
        None => Ok(None),
        Some(Told::Report(forms)) => Ok(Some(*forms)),
        Some(_) => Err(LinkError::Nonsense),
    }
}

/// Asks the service how many rows its check of all rows has read. `None` if there is none going on.
///
/// # Errors
/// `LinkError` if it refuses, or its answer cannot be read.
pub fn ask_checking(socket: &Path) -> Result<Option<u64>, LinkError> {
    match ask_follower(socket, &Ask::Checking)? {
        None => Ok(None),
        Some(Told::Checking(rows)) => Ok(rows),
        Some(_) => Err(LinkError::Nonsense),
    }
}

/// Asks the service to compare what an exchange has published about its debts with the copy, which it has open. `None` if
/// it does not run, or follows none.
///
/// # Errors
/// `LinkError` if it refuses, or its answer cannot be read.
pub fn ask_liabilities(socket: &Path, request: &Request) -> Result<Option<Examined>, LinkError> {
    let Request { source, master_pub, now, .. } = request.clone();
    match ask_follower(socket, &Ask::Liabilities { source, master_pub, now })? {
        None => Ok(None),
        Some(Told::Liabilities(examined)) => Ok(Some(*examined)),
        Some(_) => Err(LinkError::Nonsense),
    }
}

/// Asks the service to suppress a finding, or to reopen it. Returns whether it did: not if it does not run, or follows
/// none.
///
/// # Errors
/// `LinkError` if it refuses, or its answer cannot be read.
pub fn ask_note(socket: &Path, id: ShortHash, suppresses: bool, reason: &str) -> Result<bool, LinkError> {
    match ask_follower(socket, &Ask::Note { id, suppresses, reason: reason.to_owned() })? {
        None => Ok(false),
        Some(Told::Done(_)) => Ok(true),
        Some(_) => Err(LinkError::Nonsense),
    }
}

/// The service, as programs see it.
pub(crate) trait Answering: Send + Sync + 'static {
    /// Ends the listening.
    fn drain(&self) -> &Drain;

    /// Answers a program.
    fn tell(&self, ask: Ask) -> impl Future<Output = Result<Told, String>> + Send;

    /// Why it did not answer in time.
    fn why_busy(&self) -> String;
}

/// Listens for programs until the service ends.
///
/// # Errors
/// When the socket cannot be created.
pub(crate) fn serve<S: Answering>(service: &Arc<S>, path: &Path) -> io::Result<()> {
    // Several services may share a database. The first one that has the directory is asked.
    if UnixStream::connect(path).is_ok() {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "another service answers there"));
    }
    // Otherwise a socket was left behind.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    let (service, path) = (Arc::downgrade(service), path.to_owned());
    let drain = service.upgrade().expect("it has just been started").drain().clone();
    let turns = Arc::new(Semaphore::new(PROGRAMS_MAX));
    tokio::spawn(async move {
        loop {
            let turn = Arc::clone(&turns).acquire_owned().await.expect("never closed");
            let accepted = tokio::select! {
                biased;
                () = drain.draining() => break,
                accepted = listener.accept() => accepted,
            };
            let Some(service) = service.upgrade() else { break };
            match accepted {
                Ok((stream, _)) => {
                    tokio::spawn(async move {
                        if answer(&service, stream).await.is_err() {
                            tracing::debug!("a program disconnected");
                        }
                        drop(turn);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "programs cannot connect");
                    drop(service);
                    if drain.sleep(ACCEPT_PAUSE).await {
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

async fn answer<S: Answering>(service: &Arc<S>, stream: tokio::net::UnixStream) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut line = String::new();
    let mut asked = tokio::io::BufReader::new(reader.take(ASK_BYTES_MAX));
    timeout(PATIENCE, asked.read_line(&mut line)).await??;
    let told = match serde_json::from_str::<Ask>(&line) {
        Ok(ask) => match ask.patience() {
            Some(patience) => {
                let told = timeout(patience, service.tell(ask)).await;
                told.unwrap_or_else(|_| Err(service.why_busy()))
            }
            // It also ends when the program goes away.
            None => tokio::select! {
                told = service.tell(ask) => told,
                _ = asked.read_u8() => return Ok(()),
            },
        },
        Err(error) => Err(error.to_string()),
    };
    let mut line = serde_json::to_string(&Line::from(told)).map_err(io::Error::other)?;
    line.push('\n');
    timeout(PATIENCE, writer.write_all(line.as_bytes())).await?
}
