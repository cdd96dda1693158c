//! The task of a client's connection: connects, reads answers, writes what the callers could not write,
//! reconnects.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use batzen_ledger::LedgerError;
use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::state::Inner;
use super::{ClientOptions, Target};
use crate::net::frame::{self, FrameError, HEADER_BYTES, Hello, Kind, Parsed, Status};
use crate::net::write::WriteHalf;

/// Initial size of a buffer.
const BUFFER_BYTES: usize = 4 << 10;
/// Interval at which the task checks for overdue answers.
const TICK: Duration = Duration::from_secs(1);

/// An open connection, after the hellos.
pub(super) struct Link {
    read: Box<dyn AsyncRead + Send + Unpin>,
    write: WriteHalf,
    in_flight_max: usize,
}

/// Connects and says hello.
pub(super) async fn open(target: &Target, options: &ClientOptions) -> Result<Link, LedgerError> {
    let unreachable = |error: &dyn std::fmt::Display| {
        let place = match target {
            Target::Tcp(address) => address.clone(),
            Target::Unix(path) => path.display().to_string(),
        };
        LedgerError::Busy(format!("cannot reach {place}: {error}"))
    };
    let opening = async {
        match target {
            Target::Tcp(address) => {
                let mut stream = TcpStream::connect(address).await.map_err(|error| unreachable(&error))?;
                stream.set_nodelay(true).map_err(|error| unreachable(&error))?;
                let hello = greet(&mut stream).await?;
                let (read, write) = stream.into_split();
                Ok(Link { read: Box::new(read), write: WriteHalf::Tcp(write), in_flight_max: hello })
            }
            Target::Unix(path) => {
                let mut stream = UnixStream::connect(path).await.map_err(|error| unreachable(&error))?;
                let hello = greet(&mut stream).await?;
                let (read, write) = stream.into_split();
                Ok(Link { read: Box::new(read), write: WriteHalf::Unix(write), in_flight_max: hello })
            }
        }
    };
    timeout(options.connect_timeout, opening).await.unwrap_or_else(|_| Err(unreachable(&"no answer in time")))
}

/// Sends a hello; the server's hello limits the requests in flight.
async fn greet<S: AsyncReadExt + AsyncWriteExt + Unpin>(stream: &mut S) -> Result<usize, LedgerError> {
    let gone = |error: io::Error| LedgerError::Busy(format!("no hello from the server: {error}"));
    let foreign = || LedgerError::Refused("this is not a ledger server".to_owned());
    let mut words = Vec::new();
    frame::push(&mut words, Kind::Hello, Status::Done, 0, &Hello::of_client().to_bytes());
    stream.write_all(&words).await.map_err(gone)?;
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).await.map_err(gone)?;
    let header = frame::Header::from_bytes(&header).map_err(|_| foreign())?;
    if header.kind != Kind::Hello as u16 || header.size as usize > BUFFER_BYTES {
        return Err(foreign());
    }
    let mut body = vec![0; header.size as usize];
    stream.read_exact(&mut body).await.map_err(gone)?;
    if crc32c::crc32c(&body) != header.body_checksum {
        return Err(foreign());
    }
    match Status::from_number(header.status) {
        Some(Status::Done) => {}
        Some(status) => return Err(status.error(String::from_utf8_lossy(&body).into_owned())),
        None => return Err(foreign()),
    }
    let hello = Hello::from_bytes(&body).filter(Hello::speaks_our_version).ok_or_else(foreign)?;
    Ok(hello.in_flight_max as usize)
}

/// Runs the connection until the client is dropped.
pub(super) async fn run(inner: Arc<Inner>, target: Target, first: Link) {
    let mut link = Some(first);
    let mut last_good = Instant::now();
    let mut backoff = inner.options.backoff_min;
    while !inner.is_closed() {
        let reason = match link.take() {
            Some(Link { read, write, in_flight_max }) => {
                let connected_at = Instant::now();
                inner.connected(Arc::new(write), in_flight_max);
                let reason;
                (reason, last_good) = serve(&inner, read, last_good).await;
                inner.disconnected();
                // A server that accepts requests but never answers counts as lost.
                if last_good > connected_at {
                    backoff = inner.options.backoff_min;
                }
                reason
            }
            None => match open(&target, &inner.options).await {
                Ok(new) => {
                    link = Some(new);
                    continue;
                }
                Err(error) => error.to_string(),
            },
        };
        if inner.is_closed() {
            break;
        }
        tracing::debug!(reason, "the ledger is not reachable");
        if last_good.elapsed() >= inner.options.retry_for {
            inner.give_up(&reason);
        }
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(inner.options.backoff_max);
    }
    inner.disconnected();
    inner.give_up("the client was shut down");
}

/// Uses a connection until it breaks. Returns the reason, and when the server last answered or owed nothing.
async fn serve(
    inner: &Inner,
    read: Box<dyn AsyncRead + Send + Unpin>,
    mut last_good: Instant,
) -> (String, Instant) {
    let reason = exchange(inner, read, &mut last_good).await;
    // The task may not have run for long before a request was sent, which then waits since that moment.
    (reason, inner.owed_since().map_or_else(Instant::now, |since| since.max(last_good)))
}

/// Reads answers and writes what the callers could not write, until the connection breaks. Returns the reason.
async fn exchange(
    inner: &Inner,
    mut read: Box<dyn AsyncRead + Send + Unpin>,
    last_good: &mut Instant,
) -> String {
    let mut buffer = BytesMut::with_capacity(BUFFER_BYTES);
    let mut needed = HEADER_BYTES;
    let connected_at = Instant::now();
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut blocked: Option<Arc<WriteHalf>> = None;
    loop {
        if buffer.capacity() < needed {
            buffer.reserve(needed - buffer.len());
        }
        if buffer.capacity() == buffer.len() {
            buffer.reserve(BUFFER_BYTES);
        }
        let writable = async {
            match &blocked {
                Some(half) => half.writable().await,
                None => std::future::pending().await,
            }
        };
        let wrote = tokio::select! {
            // What has arrived is read before anything counts as overdue.
            biased;
            count = read.read_buf(&mut buffer) => {
                match count {
                    Ok(0) => return "the server closed the connection".to_owned(),
                    Ok(_) => {}
                    Err(error) => return error.to_string(),
                }
                match take_answers(inner, &mut buffer) {
                    Ok((more, has_answered)) => {
                        needed = more;
                        if has_answered {
                            *last_good = Instant::now();
                        }
                    }
                    Err(error) => return error.to_string(),
                }
                continue;
            }
            _ = writable => inner.write_rest(),
            () = inner.wake.notified() => {
                if inner.is_closed() {
                    return "the client was shut down".to_owned();
                }
                inner.write_rest()
            }
            _ = tick.tick() => {
                // The task may not have run for a while. So the time counts from the request, or from the
                // connection on which it was repeated, and not from what was read last.
                match inner.owed_since() {
                    None => *last_good = Instant::now(),
                    Some(since) if since.max(connected_at).elapsed() >= inner.options.answer_timeout => {
                        return "the server is silent".to_owned();
                    }
                    Some(_) => {}
                }
                continue;
            }
        };
        match wrote {
            Ok(rest) => blocked = rest,
            Err(error) => return error.to_string(),
        }
    }
}

/// Why the answers on a connection cannot be read further.
#[derive(Debug, thiserror::Error)]
enum AnswerError {
    #[error("the server exceeded the size limit")]
    TooLarge,
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("the server sent an unknown status")]
    UnknownStatus,
    #[error("the server ended the connection: {0}")]
    Ended(String),
}

/// Passes complete answers to their callers. Returns the buffer size needed to continue, and whether there
/// was any answer.
fn take_answers(inner: &Inner, buffer: &mut BytesMut) -> Result<(usize, bool), AnswerError> {
    let mut has_answered = false;
    loop {
        let header = match frame::parse(buffer) {
            Ok(Parsed::NeedsBytes(needed)) => return Ok((needed, has_answered)),
            Ok(Parsed::TooLarge(_)) => return Err(AnswerError::TooLarge),
            Ok(Parsed::Frame(header, _)) => header,
            Err(error) => return Err(error.into()),
        };
        buffer.advance(HEADER_BYTES);
        let body = buffer.split_to(header.size as usize).freeze();
        let status = Status::from_number(header.status).ok_or(AnswerError::UnknownStatus)?;
        if header.kind == Kind::Hello as u16 {
            return Err(AnswerError::Ended(String::from_utf8_lossy(&body).into_owned()));
        }
        has_answered = true;
        let answer = match status {
            Status::Done => Ok(body),
            status => Err(status.error(String::from_utf8_lossy(&body).into_owned())),
        };
        inner.answered(header.number, answer);
    }
}
