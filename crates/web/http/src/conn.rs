//! The deadlines of a connection, enforced below hyper, where all bytes pass.

use crate::{codes::FrameError, pace::Pace};
use smallvec::SmallVec;
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

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// Waiting for the first byte of a request.
    Idle = 0,
    /// Reading a header.
    Header = 1,
    /// Serving a request. Its body has its own deadlines; the handler is responsible for its own time.
    Serving = 2,
    /// Writing a response.
    Writing = 3,
}

/// Time that each phase may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines {
    pub(crate) header: Duration,
    pub(crate) idle: Duration,
    /// The window over which the rate of reading is measured.
    pub(crate) write: Duration,
    pub(crate) min_rate_bytes_per_s: u64,
}

/// Why the server closes a connection that has met its deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Eviction {
    /// It has no request, and connections are running out.
    Unused = 1,
    /// Its client does not read, and memory for responses is running out.
    Unread = 2,
}

impl Deadlines {
    /// The longest interval between checks of the watchdog.
    pub(crate) fn shortest(&self) -> Duration {
        self.header.min(self.idle).min(self.write).max(Duration::from_millis(1))
    }
}

const NEVER: u64 = u64::MAX;
/// Head and body of a response up to this size are written in one piece. A copy costs less than it costs the
/// kernel to gather the pieces.
const COPIED_BYTES_MAX: usize = 2 << 10;

/// Shared by the I/O below hyper, the service above it, and the watchdog beside it.
pub(crate) struct ConnState {
    begin: Instant,
    phase: AtomicU8,
    deadline_ms: AtomicU64,
    phase_begin_ms: AtomicU64,
    written_bytes: AtomicU64,
    linger: AtomicBool,
    deadlines: Deadlines,
    /// The client's reading speed, while the socket accepts no more bytes. This can be in any phase, since
    /// earlier responses may be unread while the next request is served.
    reading: Mutex<Option<Pace>>,
    /// Whether `reading` measures. Only the connection's own task changes it.
    is_blocked: AtomicBool,
    /// When the socket last accepted bytes, or the response was ready.
    progress_ms: AtomicU64,
    /// Bytes of responses that count towards the budget and are not written yet.
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
            // A client that connects is about to send a request, so the header deadline starts at once.
            deadline_ms: AtomicU64::new(millis(deadlines.header)),
            phase_begin_ms: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            linger: AtomicBool::new(false),
            deadlines,
            reading: Mutex::new(None),
            is_blocked: AtomicBool::new(false),
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
            // The bytes go into the socket at once, or the deadline of unread responses applies.
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

    /// When the current phase must end, or the client must have read more; `None` if there is no deadline.
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

    /// Records that a response that counts towards the budget is ready.
    pub(crate) fn answered(&self, bytes: usize) {
        self.progress_ms.store(self.now_ms(), Ordering::Relaxed);
        self.unwritten_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Records that such a response is written or abandoned.
    pub(crate) fn released(&self, bytes: usize) {
        self.unwritten_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes of unwritten responses, and how long the client has read nothing; `None` if nothing waits for
    /// the client.
    pub(crate) fn unread(&self) -> Option<(usize, Duration)> {
        let bytes = self.unwritten_bytes.load(Ordering::Relaxed);
        if bytes == 0 || self.reading().is_none() {
            return None;
        }
        let stalled_ms = self.now_ms().saturating_sub(self.progress_ms.load(Ordering::Relaxed));
        Some((bytes, Duration::from_millis(stalled_ms)))
    }

    /// When the connection started to wait for a request or its header; `None` if it has a request.
    pub(crate) fn unused_since(&self) -> Option<Instant> {
        matches!(self.phase(), Phase::Idle | Phase::Header)
            .then(|| self.begin + Duration::from_millis(self.phase_begin_ms.load(Ordering::Relaxed)))
    }

    /// Asks the connection to close. It does so if the reason still holds.
    pub(crate) fn evict(&self, why: Eviction) {
        self.eviction.store(why as u8, Ordering::Relaxed);
        self.evicted.notify_one();
    }

    /// Returns when the connection must close.
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

    /// Asks the connection to keep reading for a while after its last response, so that a client that is
    /// still sending can read it instead of getting a reset.
    pub(crate) fn ask_linger(&self) {
        self.linger.store(true, Ordering::Relaxed);
    }

    pub(crate) fn wants_linger(&self) -> bool {
        self.linger.load(Ordering::Relaxed)
    }

    /// Records that the socket accepts no more bytes for now.
    pub(crate) fn blocked(&self) {
        let mut reading = self.reading();
        if reading.is_none() {
            let Deadlines { write, min_rate_bytes_per_s, .. } = self.deadlines;
            *reading = Some(Pace::new(Instant::now(), write, min_rate_bytes_per_s));
            self.is_blocked.store(true, Ordering::Relaxed);
        }
    }

    /// Records that everything is written.
    pub(crate) fn flushed(&self) {
        if self.is_blocked.load(Ordering::Relaxed) {
            *self.reading() = None;
            self.is_blocked.store(false, Ordering::Relaxed);
        }
    }

    pub(crate) fn wrote(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        if self.phase() == Phase::Writing {
            self.written_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        if self.is_blocked.load(Ordering::Relaxed)
            && let Some(pace) = self.reading().as_mut()
        {
            pace.add(Instant::now(), bytes);
            self.progress_ms.store(self.now_ms(), Ordering::Relaxed);
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(NEVER - 1)
}

/// A socket that reports traffic to the [`ConnState`]. It intercepts hyper's own responses to malformed
/// requests, so that the server can send them in its own format.
pub(crate) struct Watched<S> {
    socket: S,
    state: Arc<ConnState>,
    /// The intercepted response of hyper.
    refusal: Option<FrameError>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Watched<S> {
    pub(crate) const fn new(socket: S, state: Arc<ConnState>) -> Self {
        Self { socket, state, refusal: None }
    }

    /// Intercepts `buf` if it is a response of hyper itself: no request has been served since the last
    /// response, so it can only be the refusal of a header that hyper could not parse.
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

    /// The socket, and the refusal that hyper was last about to write.
    pub(crate) fn into_parts(self) -> (S, Option<FrameError>) {
        (self.socket, self.refusal)
    }
}

/// The bytes of an error response, for use without hyper. `extra` are header lines.
pub(crate) fn raw_error(
    code: FrameError,
    detail: &str,
    extra: &str,
    form: fn(crate::response::Response) -> crate::response::Response,
) -> Vec<u8> {
    let body = form(crate::response::Response::frame_error(code, detail)).body;
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
        let written = if bufs.iter().map(|buf| buf.len()).sum::<usize>() <= COPIED_BYTES_MAX {
            let mut piece = SmallVec::<[u8; COPIED_BYTES_MAX]>::new();
            bufs.iter().for_each(|buf| piece.extend_from_slice(buf));
            Pin::new(&mut this.socket).poll_write(cx, &piece)
        } else {
            Pin::new(&mut this.socket).poll_write_vectored(cx, bufs)
        };
        this.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.socket).poll_flush(cx))?;
        this.state.flushed();
        // Hyper flushes when its buffer is empty, and it buffers a response (with its complete body) in one
        // step.
        if this.state.phase() == Phase::Writing && this.state.written_bytes.load(Ordering::Relaxed) > 0 {
            this.state.enter(Phase::Idle);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A socket that accepts a limited number of bytes, and records each write.
    struct Recorder {
        accepts: usize,
        /// The bytes, and whether they came in pieces.
        writes: Vec<(Vec<u8>, bool)>,
    }

    impl Recorder {
        fn record(&mut self, bytes: Vec<u8>, in_pieces: bool) -> Poll<io::Result<usize>> {
            let accepted = bytes.len().min(self.accepts);
            if accepted == 0 {
                return Poll::Pending;
            }
            self.accepts -= accepted;
            self.writes.push((bytes[..accepted].to_vec(), in_pieces));
            Poll::Ready(Ok(accepted))
        }
    }

    impl AsyncRead for Recorder {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Recorder {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            self.record(buf.to_vec(), false)
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bufs: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            self.record(bufs.iter().flat_map(|buf| buf.iter().copied()).collect(), true)
        }

        fn is_write_vectored(&self) -> bool {
            true
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn small_responses_are_written_in_one_piece() {
        const SECOND: Duration = Duration::from_secs(1);
        let deadlines = Deadlines { header: SECOND, idle: SECOND, write: SECOND, min_rate_bytes_per_s: 1 };
        let state = ConnState::new(deadlines);
        state.enter(Phase::Writing);
        let socket = Recorder { accepts: 3 * COPIED_BYTES_MAX, writes: Vec::new() };
        let mut watched = Watched::new(socket, Arc::clone(&state));
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut write = |watched: &mut Watched<Recorder>, head: usize, body: usize| {
            let (head, body) = (vec![b'h'; head], vec![b'b'; body]);
            let pieces = [IoSlice::new(&head), IoSlice::new(&body)];
            Pin::new(watched).poll_write_vectored(&mut context, &pieces).map(Result::unwrap)
        };
        assert_eq!(write(&mut watched, 2, 3), Poll::Ready(5));
        assert_eq!(write(&mut watched, 1, COPIED_BYTES_MAX - 1), Poll::Ready(COPIED_BYTES_MAX));
        assert_eq!(write(&mut watched, 1, COPIED_BYTES_MAX), Poll::Ready(COPIED_BYTES_MAX + 1));
        assert!(state.deadline().is_none(), "the client keeps up");
        watched.socket.accepts = 4;
        assert_eq!(write(&mut watched, 2, 3), Poll::Ready(4), "the rest is left to the caller");
        assert!(write(&mut watched, 0, 1).is_pending());
        assert!(state.deadline().is_some(), "the client's time to read has begun");
        assert!(Pin::new(&mut watched).poll_flush(&mut context).is_ready());
        assert_eq!(state.phase(), Phase::Idle);
        let writes = &watched.socket.writes;
        assert_eq!(writes[0], (b"hhbbb".to_vec(), false));
        assert_eq!((writes[1].0.len(), writes[1].1), (COPIED_BYTES_MAX, false));
        assert_eq!((writes[2].0.len(), writes[2].1), (COPIED_BYTES_MAX + 1, true));
        assert_eq!(writes[3], (b"hhbb".to_vec(), false));
    }
}
