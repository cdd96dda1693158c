//! One connection: the deadlines of its phases, kept beneath hyper, where every byte passes.

use crate::{codes::FrameError, pace::Pace};
use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
    time::Instant,
};

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// Waiting for the first byte of a request.
    Idle = 0,
    /// Reading a header.
    Header = 1,
    /// A request is being served. Its body has deadlines of its own; the handler answers for its own time.
    Serving = 2,
    /// Writing an answer.
    Writing = 3,
}

/// How long each phase may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines {
    pub header: Duration,
    pub idle: Duration,
    /// The window over which the rate of reading is measured.
    pub write: Duration,
    pub min_rate_bytes_per_s: u64,
}

/// Why the server ends a connection that has kept to its deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Eviction {
    /// It waits for a request, and connections run out.
    Unused = 1,
    /// Its client does not read, and memory for answers runs out.
    Unread = 2,
}

impl Deadlines {
    /// No phase but serving lasts longer than this without the watchdog looking at it.
    pub(crate) fn shortest(&self) -> Duration {
        self.header.min(self.idle).min(self.write).max(Duration::from_millis(1))
    }
}

const NEVER: u64 = u64::MAX;

/// Shared between the I/O below hyper, the service above it, and the watchdog beside it.
pub(crate) struct ConnState {
    begin: Instant,
    phase: AtomicU8,
    deadline_ms: AtomicU64,
    phase_begin_ms: AtomicU64,
    written_bytes: AtomicU64,
    linger: AtomicBool,
    changes: AtomicBool,
    deadlines: Deadlines,
    /// While the socket takes no more: how fast the client reads. Whatever the phase: answers of earlier requests may be
    /// unread while the next one is served.
    reading: Mutex<Option<Pace>>,
    /// When the socket took something last, or the answer was ready.
    progress_ms: AtomicU64,
    /// Bytes of answers that count for the budget and are not written yet.
    unwritten_bytes: AtomicUsize,
    /// 0, or an [`Eviction`].
    eviction: AtomicU8,
    evicted: Notify,
}

impl ConnState {
    pub(crate) fn new(deadlines: Deadlines) -> Arc<Self> {
        let state = Self {
            begin: Instant::now(),
            phase: AtomicU8::new(Phase::Idle as u8),
            // Who connects has something to say: the first request has the header's deadline from the beginning.
            deadline_ms: AtomicU64::new(millis(deadlines.header)),
            phase_begin_ms: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            linger: AtomicBool::new(false),
            changes: AtomicBool::new(false),
            deadlines,
            reading: Mutex::new(None),
            progress_ms: AtomicU64::new(0),
            unwritten_bytes: AtomicUsize::new(0),
            eviction: AtomicU8::new(0),
            evicted: Notify::new(),
        };
        Arc::new(state)
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Idle,
            1 => Phase::Header,
            2 => Phase::Serving,
            _ => Phase::Writing,
        }
    }

    pub(crate) fn enter(&self, phase: Phase) {
        let allowed = match phase {
            Phase::Idle => Some(self.deadlines.idle),
            Phase::Header => Some(self.deadlines.header),
            // What is written goes into the socket at once, or has the deadline of unread answers.
            Phase::Serving | Phase::Writing => None,
        };
        self.written_bytes.store(0, Ordering::Relaxed);
        let deadline = allowed.map_or(NEVER, |allowed| {
            let now = self.now_ms();
            self.phase_begin_ms.store(now, Ordering::Relaxed);
            now.saturating_add(millis(allowed))
        });
        self.deadline_ms.store(deadline, Ordering::Relaxed);
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// When the present phase has to be over, or the client has to have read more; `None` if there is no such time.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let at = self.deadline_ms.load(Ordering::Relaxed);
        let of_phase = if at == NEVER { None } else { self.begin.checked_add(Duration::from_millis(at)) };
        let of_reading = self.reading().as_ref().and_then(Pace::deadline);
        of_phase.into_iter().chain(of_reading).min()
    }

    fn now_ms(&self) -> u64 {
        millis(self.begin.elapsed())
    }

    fn reading(&self) -> MutexGuard<'_, Option<Pace>> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that an answer is ready that counts for the budget.
    pub(crate) fn answered(&self, bytes: usize) {
        self.progress_ms.store(self.now_ms(), Ordering::Relaxed);
        self.unwritten_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes that such an answer is written, or given up.
    pub(crate) fn released(&self, bytes: usize) {
        self.unwritten_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes of answers that are not written, and for how long the client has read nothing; none if it is not waited for.
    pub(crate) fn unread(&self) -> Option<(usize, Duration)> {
        let bytes = self.unwritten_bytes.load(Ordering::Relaxed);
        if bytes == 0 || self.reading().is_none() {
            return None;
        }
        let stalled_ms = self.now_ms().saturating_sub(self.progress_ms.load(Ordering::Relaxed));
        Some((bytes, Duration::from_millis(stalled_ms)))
    }

    /// The time since which the connection waits for a request or its header; none if it has one.
    pub(crate) fn unused_since(&self) -> Option<Instant> {
        matches!(self.phase(), Phase::Idle | Phase::Header)
            .then(|| self.begin + Duration::from_millis(self.phase_begin_ms.load(Ordering::Relaxed)))
    }

    /// Asks the connection to end; it does if the reason still holds.
    pub(crate) fn evict(&self, why: Eviction) {
        self.eviction.store(why as u8, Ordering::Relaxed);
        self.evicted.notify_one();
    }

    /// Returns when the connection was asked to end and there is still a reason.
    pub(crate) async fn evicted(&self) -> Eviction {
        loop {
            self.evicted.notified().await;
            let why = self.eviction.swap(0, Ordering::Relaxed);
            if why == Eviction::Unused as u8 && self.unused_since().is_some() {
                return Eviction::Unused;
            }
            if why == Eviction::Unread as u8 && self.unread().is_some() {
                return Eviction::Unread;
            }
        }
    }

    /// Asks for the connection to be read for a while after its last answer, so that a client that is still sending
    /// gets to read that answer instead of a reset.
    pub(crate) fn ask_linger(&self) {
        self.linger.store(true, Ordering::Relaxed);
    }

    pub(crate) fn wants_linger(&self) -> bool {
        self.linger.load(Ordering::Relaxed)
    }

    /// Notes that after the present answer the connection speaks another protocol.
    pub(crate) fn change(&self) {
        self.changes.store(true, Ordering::Relaxed);
    }

    pub(crate) fn changes(&self) -> bool {
        self.changes.load(Ordering::Relaxed)
    }

    /// Notes that the socket takes no more for now.
    pub(crate) fn blocked(&self) {
        let mut reading = self.reading();
        if reading.is_none() {
            let Deadlines { write, min_rate_bytes_per_s, .. } = self.deadlines;
            *reading = Some(Pace::new(Instant::now(), write, min_rate_bytes_per_s));
        }
    }

    /// Notes that everything is written.
    pub(crate) fn flushed(&self) {
        *self.reading() = None;
    }

    pub(crate) fn wrote(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        if self.phase() == Phase::Writing {
            self.written_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        if let Some(pace) = self.reading().as_mut() {
            pace.add(Instant::now(), bytes);
            self.progress_ms.store(self.now_ms(), Ordering::Relaxed);
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(NEVER - 1)
}

/// A socket that tells the [`ConnState`] what passes, and holds back hyper's own refusals of malformed requests, so that
/// they can be given the form of every other answer.
pub(crate) struct Watched<S> {
    socket: S,
    state: Arc<ConnState>,
    /// Which of hyper's own answers was held back.
    refusal: Option<FrameError>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Watched<S> {
    pub(crate) const fn new(socket: S, state: Arc<ConnState>) -> Self {
        Self { socket, state, refusal: None }
    }

    /// Takes over `buf` if it is an answer that hyper gives by itself: no service was asked since the last answer, so
    /// what is written now can only be hyper's refusal of a header that it could not parse.
    fn intercept(&mut self, buf: &[u8]) -> bool {
        if self.refusal.is_some() {
            return true;
        }
        if !matches!(self.state.phase(), Phase::Idle | Phase::Header) {
            return false;
        }
        let code = match buf.get(..12) {
            Some(b"HTTP/1.1 400" | b"HTTP/1.0 400") => FrameError::Malformed,
            Some(b"HTTP/1.1 414" | b"HTTP/1.0 414") => FrameError::UriTooLong,
            Some(b"HTTP/1.1 431" | b"HTTP/1.0 431") => FrameError::HeaderTooLarge,
            _ => return false,
        };
        self.refusal = Some(code);
        true
    }

    fn note(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &written {
            Poll::Ready(Ok(bytes)) => self.state.wrote(*bytes),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.state.blocked(),
        }
        written
    }

    /// The socket, and which refusal hyper wanted to write at the end.
    pub(crate) fn into_parts(self) -> (S, Option<FrameError>) {
        (self.socket, self.refusal)
    }
}

/// A whole answer for an error, for the places where hyper is not at hand. `extra` are header lines.
pub(crate) fn raw_error(code: FrameError, detail: &str, extra: &str) -> Vec<u8> {
    let body = crate::response::Response::frame_error(code, detail).body;
    let status = http::StatusCode::from_u16(code.status()).unwrap_or(http::StatusCode::BAD_REQUEST);
    let mut out = format!(
        "HTTP/1.1 {status}\r\naccess-control-allow-origin: *\r\naccess-control-expose-headers: *\r\n\
         content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n{extra}\r\n",
        body.len()
    )
    .into_bytes();
    out.extend_from_slice(&body);
    out
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.socket).poll_read(cx, buf))?;
        if buf.filled().len() > before && this.state.phase() == Phase::Idle {
            this.state.enter(Phase::Header);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.intercept(buf) {
            return Poll::Ready(Ok(buf.len()));
        }
        let written = Pin::new(&mut this.socket).poll_write(cx, buf);
        this.note(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let first = bufs.iter().find(|buf| !buf.is_empty()).map_or(&[][..], |buf| &buf[..]);
        if this.intercept(first) {
            return Poll::Ready(Ok(bufs.iter().map(|buf| buf.len()).sum()));
        }
        let written = Pin::new(&mut this.socket).poll_write_vectored(cx, bufs);
        this.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.socket).poll_flush(cx))?;
        this.state.flushed();
        // Hyper flushes when its buffer is empty, and an answer (its whole body is at hand) is buffered in one go.
        if this.state.phase() == Phase::Writing && this.state.written_bytes.load(Ordering::Relaxed) > 0 {
            this.state.enter(Phase::Idle);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }
}
