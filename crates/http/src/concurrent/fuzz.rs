//! Both sides of a connection with somebody hostile at the other end, compared with what a reader of the whole input finds.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::client::{self, Ask, Failure, Limits, Message};
use super::server::{self, Ended};
use super::wire::{Taken, WholeAnswer, WholeRequest, put_answer, take_answer, take_request};
use crate::Response;

/// The largest answer that the client accepts here, in bytes.
const REPLY_BYTES_MAX: usize = 40;
/// So often a connection is polled without any byte passing before it counts as waiting: sockets and handlers take turns.
const PATIENCE: usize = 16;

/// A socket that brings and takes a few bytes at a time, and is not always ready.
struct Wire<'a> {
    incoming: &'a [u8],
    /// Nothing comes before so many bytes were sent.
    after: usize,
    outgoing: &'a RefCell<Vec<u8>>,
    /// How often something has passed.
    passed: &'a RefCell<usize>,
    portion: usize,
    is_ready: bool,
}

impl Wire<'_> {
    /// Whether it is ready this time.
    fn turn(&mut self) -> bool {
        self.is_ready = !self.is_ready || self.portion > 8;
        self.is_ready
    }
}

impl AsyncRead for Wire<'_> {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.incoming.is_empty() || this.outgoing.borrow().len() < this.after || !this.turn() {
            return Poll::Pending;
        }
        let bytes = this.portion.min(buffer.remaining()).min(this.incoming.len());
        let (now, later) = this.incoming.split_at(bytes);
        buffer.put_slice(now);
        this.incoming = later;
        *this.passed.borrow_mut() += 1;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire<'_> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if !this.turn() {
            return Poll::Pending;
        }
        let taken = &bytes[..bytes.len().min(3 * this.portion)];
        this.outgoing.borrow_mut().extend_from_slice(taken);
        *this.passed.borrow_mut() += 1;
        Poll::Ready(Ok(taken.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Polls until it ends, or waits for more input.
fn settle<T>(passed: &RefCell<usize>, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Option<T> {
    let mut context = Context::from_waker(Waker::noop());
    let (mut last, mut idle) = (0, 0);
    while idle < PATIENCE {
        if let Poll::Ready(ended) = poll(&mut context) {
            return Some(ended);
        }
        let now = *passed.borrow();
        idle = if now == last { idle + 1 } else { 0 };
        last = now;
    }
    None
}

/// A connection in which these bytes come, as requests to a server and as answers to a client. Of them the first two say in which
/// portions, and how much the client asks.
///
/// # Panics
/// When either side does something else than a reader of all bytes at once would.
pub fn concurrent(data: &[u8]) {
    let [how, asks, data @ ..] = data else { return };
    let portion = 1 + usize::from(how & 0x3f).pow(2);
    serve(data, portion);
    ask(data, portion, usize::from(asks % 8), how & 0x40 != 0);
}

/// What the server's handler says: the body, and that it is the last one if it begins so.
fn echo(request: &WholeRequest) -> Response {
    let answer = Response::bytes(200 + u16::from(request.headers.len() > 2), "", request.body.clone());
    if request.body.starts_with(b"!") { answer.closing() } else { answer }
}

fn serve(data: &[u8], portion: usize) {
    let (mut input, mut expected) = (BytesMut::from(data), BytesMut::new());
    let (mut is_refused, mut is_closed) = (false, false);
    while !is_closed {
        match take_request(&mut input) {
            Ok(Some(request)) => {
                let answer = echo(&request);
                put_answer(&mut expected, &answer);
                is_closed = answer.close;
            }
            Ok(None) => break,
            Err(_) => {
                is_refused = true;
                break;
            }
        }
    }
    let run = |request: WholeRequest| async move {
        // Later ones are often ready before earlier ones.
        for _ in 0..request.body.len() % 3 {
            tokio::task::yield_now().await;
        }
        echo(&request).into()
    };
    let (outgoing, passed) = (RefCell::default(), RefCell::default());
    let mut wire =
        Wire { incoming: data, after: 0, outgoing: &outgoing, passed: &passed, portion, is_ready: false };
    let mut connection = server::Connection::new(&mut wire, &[], run);
    let ended = settle(&passed, |context| connection.poll(context));
    match ended {
        // Behind the last answer there may be something that is refused.
        Some(Ended::Orderly | Ended::Refused(_)) if is_closed => {}
        Some(Ended::Refused(_)) => assert!(is_refused, "refused what is well-formed"),
        None => assert!(!is_refused && !is_closed, "waits for more behind the end"),
        Some(Ended::Orderly | Ended::Lost) => panic!("nobody has gone away"),
    }
    assert!(outgoing.borrow().as_slice() == &expected[..], "the answers, in the order of the requests");
}

/// What an asker may get.
type Got = Result<WholeAnswer, Failure>;

fn ask(data: &[u8], portion: usize, asks: usize, answers_early: bool) {
    let mut input = BytesMut::from(data);
    let mut expected: Vec<Option<WholeAnswer>> = Vec::new();
    let mut is_broken = false;
    while !is_broken && !input.is_empty() {
        match take_answer(&mut input, REPLY_BYTES_MAX) {
            Ok(Some(_)) if expected.len() == asks => is_broken = true,
            Ok(Some(Taken::Whole(answer))) => expected.push(Some(answer)),
            Ok(Some(Taken::TooLarge(bytes))) => {
                expected.push(None);
                input.advance(bytes.min(input.len()));
                is_broken = bytes > client::SKIPPED_BYTES_MAX;
            }
            Ok(None) => break,
            Err(_) => is_broken = true,
        }
    }
    let head = Bytes::from_static(b"POST / HTTP/1.1\r\n");
    let limits =
        Limits { connect_timeout: Duration::MAX, timeout: Duration::MAX, reply_bytes_max: REPLY_BYTES_MAX };
    let (queue, receiver) = mpsc::channel(8);
    let mut waiting: Vec<oneshot::Receiver<Got>> = Vec::new();
    for number in 0..asks {
        let (answer, receiver) = oneshot::channel();
        let message = Message { head: head.clone(), body: vec![b'x'; number].into() };
        let sent = queue.try_send(Ask { message, since: Instant::now(), answer });
        assert!(sent.is_ok(), "there is room");
        waiting.push(receiver);
    }
    // Of each the head, the length of its body in one digit, and the body.
    let whole = asks * (head.len() + "content-length: 0\r\n\r\n".len()) + (0..asks).sum::<usize>();
    let (outgoing, passed) = (RefCell::default(), RefCell::default());
    let wire = Wire {
        incoming: data,
        after: if answers_early { 0 } else { whole },
        outgoing: &outgoing,
        passed: &passed,
        portion,
        is_ready: false,
    };
    let mut connection = client::Connection::new(wire, BytesMut::new(), receiver, limits);
    let ended = settle(&passed, |context| connection.poll(context));
    let has_broken = matches!(ended, Some(Some(_)));
    assert!(has_broken || ended.is_none(), "there is still somebody who may ask");
    if !answers_early {
        assert!(has_broken == is_broken && outgoing.borrow().len() == whole);
    }
    let mut answered = 0;
    for (number, receiver) in waiting.iter_mut().enumerate() {
        let Ok(got) = receiver.try_recv() else { continue };
        assert_eq!(number, answered, "nobody is passed by");
        answered += 1;
        match (got, &expected[number]) {
            (Ok(got), Some(expected)) => {
                assert_eq!(
                    (got.status, &got.headers, &got.body),
                    (expected.status, &expected.headers, &expected.body)
                );
            }
            (Err(Failure::TooLarge), None) => {}
            (got, expected) => panic!("{got:?} instead of {expected:?}"),
        }
    }
    // Who breaks the protocol before may have been heard no further.
    assert!(answers_early || answered == expected.len());
}
