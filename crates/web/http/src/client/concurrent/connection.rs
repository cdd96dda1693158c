//! One connection: writes the requests from its queue, and returns the responses, which come in the same
//! order, to the senders.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::codec::concurrent::{IN_FLIGHT_MAX, ResponseMessage, TakenResponse, put_request, take_response};
use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::{Failure, Limits, Message};

/// How often a connection checks whether a response is late.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How much one read requests, in bytes.
const READ_BYTES: usize = 16 << 10;
/// No further request is taken from the queue while this many bytes wait to be written.
const OUTPUT_BYTES_MAX: usize = 256 << 10;
/// The largest body of a response that is skipped, in bytes. A larger one ends the connection.
pub(crate) const SKIPPED_BYTES_MAX: usize = 4 << 20;

/// A request on its way to a connection.
pub(crate) struct Submission {
    /// The request.
    pub message: Message,
    /// When its sender started.
    pub since: Instant,
    /// Receives the response, or the reason why there is none.
    pub outcome: oneshot::Sender<Result<ResponseMessage, Failure>>,
}

/// A request that was sent or is about to be.
struct Unanswered {
    since: Instant,
    /// The position of its last byte among all bytes of the connection.
    end: u64,
    outcome: oneshot::Sender<Result<ResponseMessage, Failure>>,
}

pub(crate) struct Connection<S> {
    stream: S,
    input: BytesMut,
    output: BytesMut,
    /// Bytes written in total.
    written_total: u64,
    /// How many bytes of a response that is too large must still be skipped.
    skip_bytes: usize,
    submissions: mpsc::Receiver<Submission>,
    /// In the order of the responses.
    unanswered: VecDeque<Unanswered>,
    limits: Limits,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub fn new(stream: S, input: BytesMut, submissions: mpsc::Receiver<Submission>, limits: Limits) -> Self {
        Self {
            stream,
            input,
            output: BytesMut::new(),
            written_total: 0,
            skip_bytes: 0,
            submissions,
            unanswered: VecDeque::new(),
            limits,
        }
    }

    /// Runs until the queue is closed and all requests are answered, or the connection fails.
    pub async fn run(mut self) {
        let mut check = tokio::time::interval(CHECK_INTERVAL);
        let failure = loop {
            tokio::select! {
                biased;
                ended = poll_fn(|context| self.poll(context)) => match ended {
                    Some(failure) => break failure,
                    None => return,
                },
                _ = check.tick() => {
                    let is_late = |request: &Unanswered| request.since.elapsed() >= self.limits.timeout;
                    // Responses come in order: if the first one is late, so are all.
                    if self.unanswered.front().is_some_and(is_late) {
                        break Failure::Timeout;
                    }
                }
            }
        };
        self.submissions.close();
        for Unanswered { since, outcome, .. } in self.unanswered {
            let is_late = since.elapsed() >= self.limits.timeout;
            let failure = match &failure {
                Failure::Timeout if !is_late => {
                    Failure::Broken("an earlier response took too long".to_owned())
                }
                failure => failure.clone(),
            };
            // The sender may have stopped waiting.
            let _ = outcome.send(Err(failure));
        }
    }

    /// Does everything that can be done now. Ends with the failure, or with none.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Failure>> {
        loop {
            // Bytes that were read before a request is sent cannot be its response.
            let read = match self.read(context).and_then(|read| self.deliver().map(|()| read)) {
                Ok(read) => read,
                Err(reason) => return Poll::Ready(Some(Failure::Broken(reason))),
            };
            let taken = self.take(context);
            let wrote = match self.write(context) {
                Ok(wrote) => wrote,
                Err(reason) => return Poll::Ready(Some(Failure::Broken(reason))),
            };
            match taken {
                Poll::Ready(false) if self.unanswered.is_empty() => return Poll::Ready(None),
                Poll::Ready(true) => {}
                _ if read || wrote => {}
                _ => return Poll::Pending,
            }
        }
    }

    /// Takes requests from the queue. `Ready(false)` if the queue is closed and empty.
    fn take(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        let mut taken = false;
        while self.unanswered.len() < IN_FLIGHT_MAX && self.output.len() < OUTPUT_BYTES_MAX {
            match self.submissions.poll_recv(context) {
                Poll::Ready(Some(Submission { message: Message { head, body }, since, outcome })) => {
                    taken = true;
                    // The sender has stopped waiting.
                    if outcome.is_closed() {
                        continue;
                    }
                    let now = Instant::now();
                    if now.saturating_duration_since(since) >= self.limits.timeout {
                        let _ = outcome.send(Err(Failure::Timeout));
                        continue;
                    }
                    put_request(&mut self.output, &head, &body);
                    let end = self.written_total + self.output.len() as u64;
                    self.unanswered.push_back(Unanswered { since: now, end, outcome });
                }
                Poll::Ready(None) => return Poll::Ready(taken),
                Poll::Pending => break,
            }
        }
        if taken { Poll::Ready(true) } else { Poll::Pending }
    }

    fn write(&mut self, context: &mut Context<'_>) -> Result<bool, String> {
        if self.output.is_empty() {
            return Ok(false);
        }
        match Pin::new(&mut self.stream).poll_write(context, &self.output) {
            Poll::Ready(Ok(0)) => Err("the connection accepts no more bytes".to_owned()),
            Poll::Ready(Ok(bytes)) => {
                self.output.advance(bytes);
                self.written_total += bytes as u64;
                Ok(true)
            }
            Poll::Ready(Err(error)) => Err(error.to_string()),
            Poll::Pending => Ok(false),
        }
    }

    fn read(&mut self, context: &mut Context<'_>) -> Result<bool, String> {
        self.input.reserve(READ_BYTES);
        match pin!(self.stream.read_buf(&mut self.input)).poll(context) {
            Poll::Ready(Ok(0)) => Err("the server closed the connection".to_owned()),
            Poll::Ready(Ok(_)) => Ok(true),
            Poll::Ready(Err(error)) => Err(error.to_string()),
            Poll::Pending => Ok(false),
        }
    }

    /// Returns complete responses to the senders of their requests.
    fn deliver(&mut self) -> Result<(), String> {
        while !self.input.is_empty() {
            if self.skip_bytes > 0 {
                let bytes = self.skip_bytes.min(self.input.len());
                self.input.advance(bytes);
                self.skip_bytes -= bytes;
                continue;
            }
            let taken = match take_response(&mut self.input, self.limits.reply_bytes_max) {
                Ok(Some(taken)) => taken,
                Ok(None) => break,
                Err(error) => return Err(format!("unusable response: {error}")),
            };
            if self.unanswered.front().is_none_or(|first| first.end > self.written_total) {
                return Err("a response without a request".to_owned());
            }
            let Unanswered { outcome, .. } = self.unanswered.pop_front().expect("there is a first one");
            let result = match taken {
                TakenResponse::Complete(response) => Ok(response),
                TakenResponse::TooLarge(bytes) => {
                    self.skip_bytes = bytes;
                    Err(Failure::TooLarge)
                }
            };
            // The sender may have stopped waiting.
            let _ = outcome.send(result);
            if self.skip_bytes > SKIPPED_BYTES_MAX {
                return Err("a response is far too large".to_owned());
            }
        }
        Ok(())
    }
}
