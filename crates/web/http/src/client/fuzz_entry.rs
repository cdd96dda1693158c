//! The code that the fuzz target runs: the client's side of concurrent requests against a hostile server,
//! compared with the result of reading the whole input at once. A panic is a finding.

use std::time::Duration;

use crate::codec::concurrent::{ResponseMessage, TakenResponse, take_response};
use crate::codec::testing::{SlowSocket, Traffic, poll_until_idle};
use bytes::{Buf, Bytes, BytesMut};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::client::concurrent::{Connection, Failure, Limits, Message, SKIPPED_BYTES_MAX, Submission};

/// The largest response that the client accepts here, in bytes.
const REPLY_BYTES_MAX: usize = 40;

/// What the sender of a request may receive.
type Outcome = Result<ResponseMessage, Failure>;

/// Runs a client's connection on which these bytes arrive. The first two bytes determine the portions and how
/// many requests the client sends.
///
/// # Panics
/// If the client's behaviour differs from that of a reader of all bytes at once.
pub fn receive_concurrent(data: &[u8]) {
    let [how, requests, data @ ..] = data else { return };
    let portion = 1 + usize::from(how & 0x3f).pow(2);
    receive(data, portion, usize::from(requests % 8), how & 0x40 != 0);
}

/// What each sender receives, and whether the connection ends, found by reading all of the input at once.
fn expect(data: &[u8], requests: usize) -> (Vec<Option<ResponseMessage>>, bool) {
    let mut input = BytesMut::from(data);
    let mut expected = Vec::new();
    let mut is_broken = false;
    while !is_broken && !input.is_empty() {
        match take_response(&mut input, REPLY_BYTES_MAX) {
            Ok(Some(_)) if expected.len() == requests => is_broken = true,
            Ok(Some(TakenResponse::Complete(response))) => expected.push(Some(response)),
            Ok(Some(TakenResponse::TooLarge(bytes))) => {
                expected.push(None);
                input.advance(bytes.min(input.len()));
                is_broken = bytes > SKIPPED_BYTES_MAX;
            }
            Ok(None) => break,
            Err(_) => is_broken = true,
        }
    }
    (expected, is_broken)
}

fn receive(data: &[u8], portion: usize, requests: usize, responds_early: bool) {
    let (expected, is_broken) = expect(data, requests);
    let head = Bytes::from_static(b"POST / HTTP/1.1\r\n");
    let limits =
        Limits { connect_timeout: Duration::MAX, timeout: Duration::MAX, reply_bytes_max: REPLY_BYTES_MAX };
    let (queue, submissions) = mpsc::channel(8);
    let mut waiting: Vec<oneshot::Receiver<Outcome>> = Vec::new();
    for number in 0..requests {
        let (outcome, receiver) = oneshot::channel();
        let message = Message { head: head.clone(), body: vec![b'x'; number].into() };
        let sent = queue.try_send(Submission { message, since: Instant::now(), outcome });
        assert!(sent.is_ok(), "there is room");
        waiting.push(receiver);
    }
    // For each request: the head, the length of its body as one digit, and the body.
    let whole = requests * (head.len() + "content-length: 0\r\n\r\n".len()) + (0..requests).sum::<usize>();
    let traffic = Traffic::default();
    let mut socket = SlowSocket::new(data, portion, &traffic);
    socket.after_written = if responds_early { 0 } else { whole };
    let mut connection = Connection::new(socket, BytesMut::new(), submissions, limits);
    let ended = poll_until_idle(&traffic, |context| connection.poll(context));
    let has_broken = matches!(ended, Some(Some(_)));
    assert!(has_broken || ended.is_none(), "further requests may come");
    if !responds_early {
        assert!(has_broken == is_broken && traffic.written.borrow().len() == whole);
    }
    let mut answered = 0;
    for (number, receiver) in waiting.iter_mut().enumerate() {
        let Ok(got) = receiver.try_recv() else { continue };
        assert_eq!(number, answered, "no request is skipped");
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
    // If a server breaks the protocol early, the client may not have read further.
    assert!(responds_early || answered == expected.len());
}
