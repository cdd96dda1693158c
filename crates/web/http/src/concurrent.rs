//! The server's side of concurrent requests: many at a time over one connection, between our own programs.
//!
//! HTTP/1.1 answers the requests of a connection one after the other, so a client with hundreds of requests
//! under way needs hundreds of connections, and each request costs both sides a read, a write and a wake-up:
//! more than the request itself. Here the client changes a connection to another protocol (`OPTIONS *` with
//! `Upgrade: batzen-concurrent`, RFC 9110, 7.8). From then on the client sends requests without waiting, the
//! server works on all of them at once, and the responses come in the order of the requests. One read brings
//! many requests, and one write sends many responses.
//!
//! [`batzen_http::codec::concurrent`] describes the messages. Either side may close the connection at any
//! time. A request without a response may or may not have taken effect, so clients send only requests that
//! they may repeat. A client that shuts down its sending half counts as gone, as with hyper. Servers and
//! proxies that do not know the protocol answer as usual, and the client falls back to ordinary requests.
//! Only services whose clients need the protocol offer it ([`crate::ServerOptions::concurrent`]); hyper
//! serves all other connections. Such a connection brings much work at once, so before a service agrees to it
//! ([`crate::Handler::admit_concurrent`]), it requires the same authentication as for the requests that
//! follow.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::codec::concurrent::{
    BODY_BYTES_MAX, HEAD_BYTES_MAX, IN_FLIGHT_MAX, PROTOCOL, RequestMessage, put_response, take_request,
};
use bytes::{Buf, Bytes, BytesMut};
use futures_util::Stream;
use futures_util::stream::FuturesOrdered;
use http::{HeaderValue, header};
use http_body_util::Full;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::{Instant, sleep_until};

use crate::codes::FrameError;
use crate::request::Head;
use crate::service::{AnswerHold, Frame, Handler, Link, ServerOptions, WholeResponse};
use crate::stats::add;

/// How much one read requests, in bytes.
const READ_BYTES: usize = 64 << 10;
/// How much input may wait to be taken, in bytes. A complete request fits.
const INPUT_BYTES_MAX: usize = 2 * READ_BYTES;
const _: () = assert!(HEAD_BYTES_MAX + BODY_BYTES_MAX <= INPUT_BYTES_MAX);
/// No further response is taken while this many bytes wait to be written.
const OUTPUT_BYTES_MAX: usize = 256 << 10;
/// How often a connection reads, takes and answers before other tasks get their turn.
const ROUNDS_MAX: usize = 8;

/// Whether a request asks for this protocol.
pub(crate) fn is_upgrade_request(head: &Head) -> bool {
    let options = head.headers.get_all(header::CONNECTION);
    let has = |name: &str| {
        let mut texts = options.iter().filter_map(|value| value.to_str().ok());
        texts.any(|text| text.split(',').any(|one| one.trim().eq_ignore_ascii_case(name)))
    };
    has("upgrade") && !has("close") && head.header(header::UPGRADE) == Some(PROTOCOL)
}

/// The response that agrees to change the protocol.
pub(crate) fn switching_protocols() -> hyper::Response<Full<Bytes>> {
    let mut response = hyper::Response::new(Full::default());
    *response.status_mut() = http::StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static(PROTOCOL));
    response
}

/// How a connection ended.
pub(crate) enum Ended {
    /// Every accepted request is answered.
    Orderly,
    /// The client sent something that is not a request of this protocol.
    Refused(FrameError),
    /// The client has disconnected or is too slow.
    Lost,
}

/// Serves a connection that has changed to this protocol; `input` has already been read.
pub(crate) async fn serve<S, H>(
    stream: &mut S,
    input: &[u8],
    link: &Arc<Link>,
    frame: &Arc<Frame<H>>,
) -> Ended
where
    S: AsyncRead + AsyncWrite + Unpin,
    H: Handler,
{
    let drain = frame.drain.clone();
    let grace = frame.options.idle_grace;
    let run = |request: RequestMessage| {
        let (frame, link) = (Arc::clone(frame), Arc::clone(link));
        // A connection's requests are bounded by their number, not by the turns that one task gets.
        tokio::task::unconstrained(async move { frame.serve_concurrent(&link, request).await })
    };
    let peer = link.peer;
    let now = Instant::now();
    let mut connection = Connection::new(stream, input, run);
    // The response to the `OPTIONS` request itself.
    put_response(&mut connection.output, 204, [], b"");
    let check_interval = check_interval(&frame.options);
    let watchdog = sleep_until(now + check_interval);
    let draining = async {
        drain.draining().await;
        tokio::time::sleep(grace).await;
    };
    tokio::pin!(watchdog, draining);
    loop {
        let takes_requests = connection.takes_requests;
        tokio::select! {
            biased;
            ended = poll_fn(|context| {
                let ended = connection.poll(context);
                match connection.writing {
                    Some(_) => link.state.blocked(),
                    None => link.state.flushed(),
                }
                link.state.wrote(std::mem::take(&mut connection.written_bytes));
                ended
            }) => return ended,
            () = &mut draining, if takes_requests => connection.takes_requests = false,
            eviction = link.state.evicted() => {
                tracing::debug!(%peer, ?eviction, "connection closed to make room for others");
                add(&frame.stats.readers_cut, 1);
                return Ended::Lost;
            }
            () = &mut watchdog => {
                if connection.is_late(&frame.options) {
                    tracing::debug!(%peer, "connection timed out");
                    add(&frame.stats.timeouts, 1);
                    return Ended::Lost;
                }
                watchdog.as_mut().reset(Instant::now() + check_interval);
            }
        }
    }
}

/// How often the watchdog checks the connection.
fn check_interval(options: &ServerOptions) -> Duration {
    let shortest = options.header_timeout.min(options.idle_timeout).min(options.write_timeout);
    shortest.max(Duration::from_millis(1))
}

pub(crate) struct Connection<'a, S, F: Future, R> {
    stream: &'a mut S,
    input: BytesMut,
    output: BytesMut,
    /// The requests under way, in the order of their responses.
    running: FuturesOrdered<F>,
    run: R,
    /// Whether further requests are accepted.
    takes_requests: bool,
    /// Why no further requests are accepted, if the client broke the protocol.
    refusal: Option<FrameError>,
    is_lost: bool,
    /// When the connection became idle.
    idle_since: Option<Instant>,
    /// When the incomplete request started.
    reading_since: Option<Instant>,
    /// When the client started to read, and how many bytes it has left.
    writing: Option<(Instant, usize)>,
    /// Bytes written since the caller last took this count.
    written_bytes: usize,
    /// Bytes written in total.
    written_total: u64,
    /// The parts of the budget that responses in `output` hold, and where each of them ends.
    holds: VecDeque<(u64, AnswerHold)>,
}

impl<'a, S, F, R> Connection<'a, S, F, R>
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = WholeResponse>,
    R: FnMut(RequestMessage) -> F,
{
    pub(crate) fn new(stream: &'a mut S, read: &[u8], run: R) -> Self {
        let mut input = BytesMut::with_capacity(READ_BYTES);
        input.extend_from_slice(read);
        Self {
            stream,
            input,
            output: BytesMut::new(),
            running: FuturesOrdered::new(),
            run,
            takes_requests: true,
            refusal: None,
            is_lost: false,
            idle_since: Some(Instant::now()),
            reading_since: None,
            writing: None,
            written_bytes: 0,
            written_total: 0,
            holds: VecDeque::new(),
        }
    }

    /// Does everything that can be done now.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Ended> {
        // All responses that are ready are written together, and requests are read before handlers continue.
        let mut rounds = 0;
        while !self.is_lost
            && (self.read(context) | self.take() | self.answer(context) || self.write(context))
        {
            rounds += 1;
            if rounds == ROUNDS_MAX {
                // A client that never stops sending must not occupy the thread.
                self.write(context);
                context.waker().wake_by_ref();
                break;
            }
        }
        if self.is_lost {
            return Poll::Ready(Ended::Lost);
        }
        let is_done = self.running.is_empty() && self.output.is_empty();
        if is_done && !self.takes_requests {
            return Poll::Ready(self.refusal.map_or(Ended::Orderly, Ended::Refused));
        }
        let is_idle = is_done && self.input.is_empty();
        self.idle_since = is_idle.then(|| self.idle_since.unwrap_or_else(Instant::now));
        // Input that waits for room is not late.
        let is_partial = !self.input.is_empty() && self.has_room();
        self.reading_since = is_partial.then(|| self.reading_since.unwrap_or_else(Instant::now));
        Poll::Pending
    }

    /// Whether another request may be accepted.
    fn has_room(&self) -> bool {
        self.takes_requests && self.running.len() < IN_FLIGHT_MAX && self.output.len() < OUTPUT_BYTES_MAX
    }

    fn read(&mut self, context: &mut Context<'_>) -> bool {
        if !self.has_room() || self.input.len() >= INPUT_BYTES_MAX {
            return false;
        }
        self.input.reserve(READ_BYTES / 4);
        match std::pin::pin!(self.stream.read_buf(&mut self.input)).poll(context) {
            Poll::Ready(Ok(bytes)) if bytes > 0 => true,
            Poll::Ready(_) => {
                self.is_lost = true;
                false
            }
            Poll::Pending => false,
        }
    }

    fn take(&mut self) -> bool {
        let mut taken = false;
        while self.has_room() && !self.input.is_empty() {
            match take_request(&mut self.input) {
                Ok(Some(request)) => {
                    taken = true;
                    self.reading_since = None;
                    self.running.push_back((self.run)(request));
                }
                Ok(None) => break,
                Err(error) => {
                    self.takes_requests = false;
                    self.refusal = Some(error.into());
                }
            }
        }
        taken
    }

    fn answer(&mut self, context: &mut Context<'_>) -> bool {
        let mut answered = false;
        while self.output.len() < OUTPUT_BYTES_MAX
            && let Poll::Ready(Some(WholeResponse { response, hold })) =
                Pin::new(&mut self.running).poll_next(context)
        {
            answered = true;
            put_response(&mut self.output, response.status, response.fields(), &response.body);
            if let Some(hold) = hold {
                self.holds.push_back((self.written_total + self.output.len() as u64, hold));
            }
            if response.close {
                // Requests after the last response are not answered.
                self.takes_requests = false;
                self.running = FuturesOrdered::new();
            }
        }
        answered
    }

    fn write(&mut self, context: &mut Context<'_>) -> bool {
        if self.output.is_empty() {
            return false;
        }
        let (since, portion) = self.writing.take().unwrap_or_else(|| (Instant::now(), self.output.len()));
        match Pin::new(&mut *self.stream).poll_write(context, &self.output) {
            Poll::Ready(Ok(bytes)) if bytes > 0 => {
                self.output.advance(bytes);
                self.written_bytes += bytes;
                self.written_total += bytes as u64;
                while self.holds.front().is_some_and(|(end, _)| *end <= self.written_total) {
                    self.holds.pop_front();
                }
                self.writing = portion.checked_sub(bytes).filter(|left| *left > 0).map(|left| (since, left));
                true
            }
            Poll::Ready(_) => {
                self.is_lost = true;
                false
            }
            Poll::Pending => {
                self.writing = Some((since, portion));
                false
            }
        }
    }

    /// Whether the client takes longer than it may.
    fn is_late(&self, options: &ServerOptions) -> bool {
        let rate = options.min_rate_bytes_per_s.max(1);
        let by_rate = |bytes: usize| Duration::from_millis((bytes as u64).saturating_mul(1000) / rate);
        let is_over = |since: Instant, allowed: Duration| since.elapsed() >= allowed;
        self.idle_since.is_some_and(|since| is_over(since, options.idle_timeout))
            || self
                .reading_since
                .is_some_and(|since| is_over(since, options.header_timeout + options.body_grace))
            || self.writing.is_some_and(|(since, left)| is_over(since, options.write_timeout + by_rate(left)))
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::ReadBuf;

    use super::*;

    /// A client that never stops sending requests and reads every response.
    #[derive(Default)]
    struct Flood {
        answered_bytes: usize,
    }

    impl AsyncRead for Flood {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<std::io::Result<()>> {
            const REQUEST: &[u8] = b"POST / HTTP/1.1\r\n\r\n";
            while buffer.remaining() >= REQUEST.len() {
                buffer.put_slice(REQUEST);
            }
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Flood {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<std::io::Result<usize>> {
            self.answered_bytes += bytes.len();
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn an_endless_client_does_not_keep_the_thread() {
        let taken = std::cell::Cell::new(0_usize);
        let run = |_| {
            taken.set(taken.get() + 1);
            assert!(taken.get() < 1_000_000, "other tasks never get a turn");
            std::future::ready(crate::Response::empty(204).into())
        };
        let mut client = Flood::default();
        let mut connection = Connection::new(&mut client, &[], run);
        let mut context = Context::from_waker(Waker::noop());
        for turn in 1..=20 {
            assert!(connection.poll(&mut context).is_pending());
            assert!(taken.get() <= turn * ROUNDS_MAX * IN_FLIGHT_MAX);
        }
        assert!(taken.get() >= 20 * IN_FLIGHT_MAX);
        drop(connection);
        assert!(client.answered_bytes > 0, "requests are answered meanwhile");
    }
}
