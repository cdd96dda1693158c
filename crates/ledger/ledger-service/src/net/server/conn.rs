//! One connection: frames in, answers out.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use batzen_http::{PeerShare, Socket};
use batzen_ledger::{Account, Ledger, LedgerError, Transfer};
use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

use super::ServerState;
use super::queue::Part;
use crate::net::body::{EVENTS_PER_ANSWER_MAX, ID_BYTES, Record, push_all, read_all, read_one};
use crate::net::frame::{self, BODY_BYTES_MAX, HEADER_BYTES, Hello, Kind, Parsed, Status, VERSION};
use crate::net::write::{BYTES_KEPT, Unwritten, WriteHalf};

/// Initial size of a connection's buffers, which they also shrink to: most requests are small, and there may
/// be many connections. Only what exceeds it is counted among the buffered bytes.
const BUFFER_BYTES: usize = 4 << 10;
/// A connection with this many unsent bytes of answers is not read.
const UNREAD_BYTES_MAX: usize = 4 << 20;

/// A connection's parts of what all connections use.
pub(super) struct Shares {
    /// Bytes of a frame that has not come wholly.
    pub(super) input: PeerShare,
    /// Bytes of answers to reads that are not written.
    pub(super) answers: PeerShare,
    /// Events that wait for the ledger; each request takes its own share like it.
    pub(super) events: PeerShare,
}

/// The part of a connection that answers use.
pub(super) struct Conn {
    write: WriteHalf,
    out: Mutex<Out>,
    in_flight: AtomicU32,
    /// The window of time in which the client last sent something, in the queue's numbering.
    pub(super) window: AtomicU64,
    /// Wakes the reader when there is room.
    room: Notify,
    /// Ends the reader: writing to the peer failed.
    ended: Notify,
    /// Ends the task that waits until the socket accepts more, so that the socket is closed.
    cut: Notify,
    events: PeerShare,
    shared: Arc<ServerState>,
}

struct Out {
    unwritten: Unwritten,
    /// The client's share of the bytes of answers that are not written.
    share: PeerShare,
    /// Whether a task waits until the socket accepts more.
    is_flushing: bool,
    is_broken: bool,
}

impl Conn {
    fn out(&self) -> MutexGuard<'_, Out> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends an answer without sending it. The request is no longer in flight.
    pub(super) fn answer(&self, kind: Kind, number: u64, body: &[u8]) {
        let mut out = self.out();
        if !out.is_broken {
            frame::push(out.unwritten.end(), kind, Status::Done, number, body);
        }
        drop(out);
        self.leave();
    }

    /// Appends the answer to a read without sending it, if the client has read enough of the earlier ones. The
    /// request is no longer in flight.
    fn answer_read(&self, kind: Kind, number: u64, body: &[u8]) {
        let mut out = self.out();
        if out.is_broken || body.len() <= BUFFER_BYTES || out.share.grow(body.len()) {
            if !out.is_broken {
                frame::push(out.unwritten.end(), kind, Status::Done, number, body);
            }
            drop(out);
            self.leave();
        } else {
            drop(out);
            let busy = LedgerError::Busy("too many answers that were not read".to_owned());
            self.answer_error(kind, number, &busy);
        }
    }

    /// Appends an error answer without sending it. The request is no longer in flight.
    pub(super) fn answer_error(&self, kind: Kind, number: u64, error: &LedgerError) {
        self.say(kind, number, error);
        self.leave();
    }

    fn say(&self, kind: Kind, number: u64, error: &LedgerError) {
        let stats = &self.shared.stats;
        if matches!(error, LedgerError::Busy(_)) {
            stats.busy.inc();
        } else {
            stats.errors.inc();
        }
        let (status, text) = Status::of(error);
        let mut out = self.out();
        if !out.is_broken {
            frame::push_error(out.unwritten.end(), kind, status, number, &text);
        }
    }

    fn leave(&self) {
        let before = self.in_flight.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0);
        // Only a reader at the limit waits.
        if before >= self.shared.options.in_flight_max {
            self.room.notify_one();
        }
    }

    fn has_room(&self) -> bool {
        let out = self.out();
        self.in_flight.load(Ordering::Acquire) < self.shared.options.in_flight_max
            && out.unwritten.len() < UNREAD_BYTES_MAX
    }

    /// Writes appended answers as far as the socket accepts them. A task writes the rest.
    pub(super) fn flush(self: &Arc<Self>) {
        let mut out = self.out();
        if out.is_broken {
            return;
        }
        if out.is_flushing {
            self.hold_unread(&mut out);
            return;
        }
        let was_over = out.unwritten.len() >= UNREAD_BYTES_MAX;
        match self.write_some(&mut out) {
            Ok(true) if was_over => self.room.notify_one(),
            Ok(true) => {}
            Ok(false) => {
                out.is_flushing = true;
                tokio::spawn(Arc::clone(self).flush_later());
                self.hold_unread(&mut out);
            }
            Err(_) => self.breaks(&mut out),
        }
    }

    /// Counts answers that the client does not read. Those to changes cannot be refused any more, so a client beyond its
    /// share is cut off; it finds out by its ids what was done.
    fn hold_unread(&self, out: &mut Out) {
        let unread = out.unwritten.len().saturating_sub(BYTES_KEPT);
        if unread > 0 && !out.share.grow_to(unread) {
            self.breaks(out);
        }
    }

    fn breaks(&self, out: &mut Out) {
        (out.unwritten, out.is_broken) = (Unwritten::default(), true);
        out.share.release();
        self.ended.notify_one();
        self.cut.notify_one();
    }

    /// Returns whether everything is written.
    fn write_some(&self, out: &mut Out) -> io::Result<bool> {
        let before = out.unwritten.len();
        let is_done = out.unwritten.write(|bytes| self.write.try_write(bytes));
        self.shared.stats.bytes_sent.add((before - out.unwritten.len()) as u64);
        if matches!(is_done, Ok(true)) {
            out.share.release();
        }
        is_done
    }

    async fn flush_later(self: Arc<Self>) {
        loop {
            let is_writable = tokio::select! {
                is_writable = timeout(self.shared.options.stall_timeout, self.write.writable()) => is_writable,
                () = self.cut.notified() => break,
            };
            let mut out = self.out();
            let done = match is_writable {
                Ok(Ok(())) => self.write_some(&mut out),
                Ok(Err(error)) => Err(error),
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            };
            match done {
                Ok(false) => {}
                Ok(true) => {
                    out.is_flushing = false;
                    break;
                }
                Err(_) => {
                    self.breaks(&mut out);
                    break;
                }
            }
        }
        self.room.notify_one();
    }
}

/// Answers a connection beyond the limit with an error, as far as its socket accepts it at once.
pub(super) fn turn_away(socket: &Socket) {
    let mut words = Vec::new();
    frame::push_error(&mut words, Kind::Hello, Status::Busy, 0, "too many connections");
    let _ = match socket {
        Socket::Tcp(stream, _) => stream.try_write(&words),
        Socket::Unix(stream) => stream.try_write(&words),
    };
}

/// Why a connection ends.
enum End {
    /// The peer closed it, or writing failed.
    Gone,
    /// The stream cannot be read further.
    Unreadable(Status, String),
}

/// Serves one connection until it ends.
pub(super) async fn drive<R: AsyncRead + Unpin>(
    read: R,
    write: WriteHalf,
    shares: Shares,
    shared: &Arc<ServerState>,
) {
    let Shares { input, answers, events } = shares;
    let out = Out { unwritten: Unwritten::default(), share: answers, is_flushing: false, is_broken: false };
    let conn = Arc::new(Conn {
        write,
        out: Mutex::new(out),
        in_flight: AtomicU32::new(0),
        window: AtomicU64::new(0),
        room: Notify::new(),
        ended: Notify::new(),
        cut: Notify::new(),
        events,
        shared: Arc::clone(shared),
    });
    let buffer = BytesMut::with_capacity(BUFFER_BYTES);
    let mut reader = Reader { read, conn, buffer, input, skip: 0 };
    let end = match timeout(shared.options.hello_timeout, reader.hello()).await {
        Ok(Ok(())) => reader.requests().await,
        Ok(Err(end)) => end,
        Err(_) => End::Unreadable(Status::Malformed, "no hello in time".to_owned()),
    };
    if let End::Unreadable(status, text) = end {
        shared.stats.errors.inc();
        tracing::debug!(text, "connection ends");
        frame::push_error(reader.conn.out().unwritten.end(), Kind::Hello, status, 0, &text);
        reader.conn.flush();
    }
}

struct Reader<R> {
    read: R,
    conn: Arc<Conn>,
    buffer: BytesMut,
    /// The client's share of the bytes of frames that have not come wholly.
    input: PeerShare,
    /// Bytes of an oversized body that are still to come.
    skip: usize,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Reads more of the `needed` bytes. The buffer grows with what has come, not with what a header promises.
    async fn more(&mut self, needed: usize) -> Result<(), End> {
        let room = needed.min((2 * self.buffer.len()).max(BUFFER_BYTES));
        if room > BUFFER_BYTES && !self.input.grow_to(room) {
            return Err(End::Unreadable(Status::Busy, "too many unfinished frames".to_owned()));
        }
        if self.buffer.capacity() < room {
            self.buffer.reserve(room - self.buffer.len());
        }
        if self.buffer.capacity() == self.buffer.len() {
            self.buffer.reserve(BUFFER_BYTES);
        }
        match self.read.read_buf(&mut self.buffer).await {
            Ok(0) | Err(_) => Err(End::Gone),
            Ok(count) => {
                self.conn.shared.stats.bytes_received.add(count as u64);
                Ok(())
            }
        }
    }

    async fn hello(&mut self) -> Result<(), End> {
        let malformed = |text: &str| End::Unreadable(Status::Malformed, text.to_owned());
        let hello = loop {
            let needed = match frame::parse(&self.buffer) {
                Ok(Parsed::NeedsBytes(needed)) if needed <= BUFFER_BYTES => needed,
                Ok(Parsed::Frame(header, body)) if header.kind == Kind::Hello as u16 => {
                    break (header, Hello::from_bytes(body));
                }
                Ok(_) => return Err(malformed("the first frame must be a hello")),
                Err(error) => return Err(malformed(&error.to_string())),
            };
            self.more(needed).await?;
        };
        let (header, Some(hello)) = hello else { return Err(malformed("this is not a hello")) };
        if !hello.speaks_our_version() {
            let text = format!("this server speaks version {VERSION}");
            return Err(End::Unreadable(Status::Version, text));
        }
        self.buffer.advance(HEADER_BYTES + header.size as usize);
        let answer = Hello { in_flight_max: self.conn.shared.options.in_flight_max, ..Hello::of_client() };
        frame::push(
            self.conn.out().unwritten.end(),
            Kind::Hello,
            Status::Done,
            header.number,
            &answer.to_bytes(),
        );
        self.conn.flush();
        Ok(())
    }

    async fn requests(&mut self) -> End {
        let conn = Arc::clone(&self.conn);
        let mut ended = pin!(conn.ended.notified());
        tokio::select! {
            end = self.read_requests() => end,
            () = &mut ended => End::Gone,
        }
    }

    async fn read_requests(&mut self) -> End {
        let stall_timeout = self.conn.shared.options.stall_timeout;
        let mut deadline = Instant::now() + stall_timeout;
        loop {
            let (needed, took_some) = match self.take_frames() {
                Ok(taken) => taken,
                Err(end) => return end,
            };
            let mut begins = took_some;
            while !self.conn.has_room() {
                self.conn.room.notified().await;
                begins = true;
            }
            // A connection may be idle for any time, but not in the middle of a frame.
            let is_idle = self.buffer.is_empty() && self.skip == 0;
            if begins || is_idle {
                self.input.release();
            }
            let more = if needed == 0 {
                Ok(())
            } else if is_idle {
                if self.buffer.capacity() > BYTES_KEPT {
                    self.buffer = BytesMut::with_capacity(BUFFER_BYTES);
                }
                let more = self.more(HEADER_BYTES).await;
                deadline = Instant::now() + stall_timeout;
                more
            } else {
                if begins {
                    deadline = Instant::now() + stall_timeout;
                }
                match timeout_at(deadline, self.more(needed)).await {
                    Ok(more) => more,
                    Err(_) => {
                        Err(End::Unreadable(Status::Malformed, "the rest of a frame is missing".into()))
                    }
                }
            };
            if let Err(end) = more {
                return end;
            }
        }
    }

    /// Takes all complete frames from the buffer. Returns the buffer size needed to continue, 0 if it stopped
    /// because the connection has too many requests in flight; and whether it took any.
    fn take_frames(&mut self) -> Result<(usize, bool), End> {
        let mut says_something = false;
        let mut took_some = false;
        let needed = loop {
            let skipped = self.skip.min(self.buffer.len());
            self.buffer.advance(skipped);
            self.skip -= skipped;
            if self.skip > 0 {
                break HEADER_BYTES;
            }
            if !self.conn.has_room() {
                break 0;
            }
            match frame::parse(&self.buffer) {
                Ok(Parsed::NeedsBytes(needed)) => break needed,
                Ok(Parsed::TooLarge(header)) => {
                    self.buffer.advance(HEADER_BYTES);
                    self.skip = header.size as usize;
                    let kind = Kind::from_number(header.kind).unwrap_or(Kind::Ping);
                    self.conn.say(kind, header.number, &LedgerError::TooMuchData);
                    says_something = true;
                }
                Ok(Parsed::Frame(header, body)) => {
                    let Some(kind) = Kind::from_number(header.kind).filter(|kind| *kind != Kind::Hello)
                    else {
                        return Err(End::Unreadable(
                            Status::Malformed,
                            format!("there is no request of kind {}", header.kind),
                        ));
                    };
                    self.conn.shared.stats.request(kind);
                    self.conn.in_flight.fetch_add(1, Ordering::AcqRel);
                    says_something |= begin(&self.conn, kind, header.number, body);
                    self.buffer.advance(HEADER_BYTES + header.size as usize);
                    took_some = true;
                }
                Err(error) => return Err(End::Unreadable(Status::Malformed, error.to_string())),
            }
        };
        if says_something {
            self.conn.flush();
        }
        Ok((needed, took_some))
    }
}

fn ill_formed(kind: Kind) -> LedgerError {
    LedgerError::Refused(format!("the body of {} is ill-formed", kind.name()))
}

/// Begins a request that is already counted as in flight. True: it is answered at once.
fn begin(conn: &Arc<Conn>, kind: Kind, number: u64, body: &[u8]) -> bool {
    let part = |count: usize| Part { conn: Arc::clone(conn), number, count, share: conn.events.sibling() };
    let queue = &conn.shared.queue;
    let refused = match kind {
        Kind::Hello | Kind::Ping => {
            conn.answer(kind, number, &[]);
            return true;
        }
        Kind::CreateAccounts | Kind::CreateTransfers if body.is_empty() => {
            conn.answer(kind, number, &[]);
            return true;
        }
        Kind::CreateAccounts => queue.push_accounts(body, part(body.len() / Account::BYTES)),
        Kind::CreateTransfers => queue.push_transfers(body, part(body.len() / Transfer::BYTES)),
        _ => {
            let read = match Read::new(kind, body) {
                Ok(read) => read,
                Err(error) => {
                    conn.answer_error(kind, number, &error);
                    return true;
                }
            };
            let conn = Arc::clone(conn);
            tokio::spawn(async move {
                let shared = Arc::clone(&conn.shared);
                let answer = match shared.reads.try_acquire() {
                    Ok(_permit) => read.run(shared.ledger.as_ref()).await,
                    Err(_) => Err(LedgerError::Busy("too many reads at once".to_owned())),
                };
                match answer {
                    Ok(body) => conn.answer_read(kind, number, &body),
                    Err(error) => conn.answer_error(kind, number, &error),
                }
                conn.flush();
            });
            return false;
        }
    };
    match refused {
        Ok(()) => false,
        Err(error) => {
            conn.answer_error(kind, number, &error);
            true
        }
    }
}

/// A decoded read.
enum Read {
    LookupAccounts(Vec<u128>),
    LookupTransfers(Vec<u128>),
    GetAccountTransfers(batzen_ledger::AccountFilter),
    GetAccountBalances(batzen_ledger::AccountFilter),
    QueryAccounts(batzen_ledger::QueryFilter),
    QueryTransfers(batzen_ledger::QueryFilter),
    GetChangeEvents(batzen_ledger::ChangeFilter),
}

impl Read {
    fn new(kind: Kind, body: &[u8]) -> Result<Self, LedgerError> {
        let ids = || {
            if body.len() / ID_BYTES > batzen_ledger::BATCH_EVENTS_MAX {
                return Err(LedgerError::TooMuchData);
            }
            read_all::<u128>(body).ok_or_else(|| ill_formed(kind))
        };
        let none = || ill_formed(kind);
        Ok(match kind {
            Kind::LookupAccounts => Self::LookupAccounts(ids()?),
            Kind::LookupTransfers => Self::LookupTransfers(ids()?),
            Kind::GetAccountTransfers => Self::GetAccountTransfers(read_one(body).ok_or_else(none)?),
            Kind::GetAccountBalances => Self::GetAccountBalances(read_one(body).ok_or_else(none)?),
            Kind::QueryAccounts => Self::QueryAccounts(read_one(body).ok_or_else(none)?),
            Kind::QueryTransfers => Self::QueryTransfers(read_one(body).ok_or_else(none)?),
            Kind::GetChangeEvents => {
                let mut filter: batzen_ledger::ChangeFilter = read_one(body).ok_or_else(none)?;
                let cap = u32::try_from(EVENTS_PER_ANSWER_MAX).expect("a few thousand");
                filter.limit = filter.limit.min(cap);
                Self::GetChangeEvents(filter)
            }
            Kind::Hello | Kind::Ping | Kind::CreateAccounts | Kind::CreateTransfers => return Err(none()),
        })
    }

    /// The body of the answer.
    async fn run(self, ledger: &dyn Ledger) -> Result<Vec<u8>, LedgerError> {
        fn encode<R: Record>(records: &[R]) -> Vec<u8> {
            let mut out = Vec::new();
            push_all(&mut out, &records[..records.len().min(BODY_BYTES_MAX / R::BYTES)]);
            out
        }
        Ok(match self {
            Self::LookupAccounts(ids) => encode(&ledger.lookup_accounts(ids).await?),
            Self::LookupTransfers(ids) => encode(&ledger.lookup_transfers(ids).await?),
            Self::GetAccountTransfers(filter) => encode(&ledger.get_account_transfers(filter).await?),
            Self::GetAccountBalances(filter) => encode(&ledger.get_account_balances(filter).await?),
            Self::QueryAccounts(filter) => encode(&ledger.query_accounts(filter).await?),
            Self::QueryTransfers(filter) => encode(&ledger.query_transfers(filter).await?),
            Self::GetChangeEvents(filter) => encode(&ledger.get_change_events(filter).await?),
        })
    }
}
