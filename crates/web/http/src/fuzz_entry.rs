//! The code that the fuzz target runs: the server's side of concurrent requests against a hostile client,
//! compared with the result of reading the whole input at once. A panic is a finding.

use crate::codec::concurrent::{RequestMessage, put_response, take_request};
use crate::codec::testing::{SlowSocket, Traffic, poll_until_idle};
use bytes::BytesMut;

use crate::Response;
use crate::concurrent::{Connection, Ended};

/// Serves a connection on which these bytes arrive. The first byte determines the portions; the second one is
/// for the client's target.
///
/// # Panics
/// If the server's behaviour differs from that of a reader of all bytes at once.
pub fn serve_concurrent(data: &[u8]) {
    let [how, _, data @ ..] = data else { return };
    let portion = 1 + usize::from(how & 0x3f).pow(2);
    let (mut input, mut expected) = (BytesMut::from(data), BytesMut::new());
    let (mut is_refused, mut is_closed) = (false, false);
    while !is_closed {
        match take_request(&mut input) {
            Ok(Some(request)) => {
                let response = echo(&request);
                put_response(&mut expected, response.status, response.fields(), &response.body);
                is_closed = response.close;
            }
            Ok(None) => break,
            Err(_) => {
                is_refused = true;
                break;
            }
        }
    }
    let run = |request: RequestMessage| async move {
        // Later requests are often ready before earlier ones.
        for _ in 0..request.body.len() % 3 {
            tokio::task::yield_now().await;
        }
        echo(&request).into()
    };
    let traffic = Traffic::default();
    let mut socket = SlowSocket::new(data, portion, &traffic);
    let mut connection = Connection::new(&mut socket, &[], run);
    let ended = poll_until_idle(&traffic, |context| connection.poll(context));
    match ended {
        // Refused bytes may follow the last request.
        Some(Ended::Orderly | Ended::Refused(_)) if is_closed => {}
        Some(Ended::Refused(_)) => assert!(is_refused, "refused a well-formed request"),
        None => assert!(!is_refused && !is_closed, "waits for more behind the end"),
        Some(Ended::Orderly | Ended::Lost) => panic!("the client has not gone away"),
    }
    assert!(
        traffic.written.borrow().as_slice() == &expected[..],
        "the responses, in the order of the requests"
    );
}

/// The handler's response: the body. It is the last response if the body starts with `!`.
fn echo(request: &RequestMessage) -> Response {
    let response = Response::bytes(200 + u16::from(request.headers.len() > 2), "", request.body.clone());
    if request.body.starts_with(b"!") { response.closing() } else { response }
}
