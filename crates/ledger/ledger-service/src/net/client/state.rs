//! State that callers and the connection's task share: gathering frames, frames under way, bytes to write.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use batzen_ledger::LedgerError;
use batzen_ledger::record::RECORD_BYTES;
use bytes::Bytes;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use super::ClientOptions;
use crate::net::body::{RESULT_BYTES, runs_alone};
use crate::net::frame::{BODY_BYTES_MAX, HEADER_BYTES, Header, Kind, Status};
use crate::net::write::{Unwritten, WriteHalf};

pub(super) type Reply = oneshot::Sender<Result<Bytes, LedgerError>>;

/// One caller's part of a frame: the next `events` events and as many results. 0: the whole answer.
struct Part {
    events: usize,
    reply: Reply,
}

/// A request, possibly shared by many callers.
struct Frame {
    kind: Kind,
    /// When it was first sent.
    sent: Instant,
    /// Room for the header, then the body.
    bytes: Vec<u8>,
    parts: Vec<Part>,
    events: usize,
    /// Nothing more fits in.
    is_full: bool,
}

impl Frame {
    fn is_create(&self) -> bool {
        matches!(self.kind, Kind::CreateAccounts | Kind::CreateTransfers)
    }

    /// The size that counts as [`LinkState::waiting_read_bytes`].
    fn waiting_read_bytes(&self) -> usize {
        if self.is_create() { 0 } else { self.bytes.len() - HEADER_BYTES }
    }

    fn fail(self, error: &LedgerError) {
        for part in self.parts {
            let _ = part.reply.send(Err(error.clone()));
        }
    }

    fn answer(self, answer: &Bytes) {
        if !self.is_create() {
            for part in self.parts {
                let _ = part.reply.send(Ok(answer.clone()));
            }
            return;
        }
        if answer.len() != self.events * RESULT_BYTES {
            let text = "the server did not answer every event".to_owned();
            return self.fail(&LedgerError::Unknown(text));
        }
        let mut at = 0;
        for part in self.parts {
            let size = part.events * RESULT_BYTES;
            let _ = part.reply.send(Ok(answer.slice(at..at + size)));
            at += size;
        }
    }
}

/// A request for a cluster.
pub(super) struct Request {
    pub number: u64,
    pub kind: Kind,
    pub body: Vec<u8>,
}

/// Where requests go.
enum Live {
    Socket(Socket),
    /// The task of a cluster's session. The limits on frames under way limit the channel.
    Cluster(mpsc::UnboundedSender<Request>),
}

impl Live {
    /// Sends a frame. True: the driver has to write the rest.
    fn send(&mut self, number: u64, frame: &Frame) -> bool {
        match self {
            Self::Socket(socket) => socket.send(&frame.bytes),
            Self::Cluster(requests) => {
                let body = frame.bytes[HEADER_BYTES..].to_vec();
                // If the session has ended, the next one gets the frame.
                let _ = requests.send(Request { number, kind: frame.kind, body });
                false
            }
        }
    }
}

/// An established connection.
struct Socket {
    write: Arc<WriteHalf>,
    /// Bytes that the socket did not accept yet.
    out: Unwritten,
    is_broken: bool,
}

impl Socket {
    /// Writes a frame as far as the socket accepts it. The rest waits in `out`. True: the driver has to write
    /// the rest.
    fn send(&mut self, bytes: &[u8]) -> bool {
        if self.is_broken {
            return false;
        }
        let mut done = 0;
        if self.out.len() == 0 {
            while done < bytes.len() {
                match self.write.try_write(&bytes[done..]) {
                    Ok(count) if count > 0 => done += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    _ => {
                        self.is_broken = true;
                        return true;
                    }
                }
            }
        }
        self.out.end().extend_from_slice(&bytes[done..]);
        done < bytes.len()
    }

    /// Writes the rest. True: nothing is left.
    fn send_rest(&mut self) -> io::Result<bool> {
        self.out.write(|bytes| self.write.try_write(bytes))
    }
}

#[derive(Default)]
struct LinkState {
    creates: VecDeque<Frame>,
    reads: VecDeque<Frame>,
    /// Requests sent at least once, by number. They are repeated in this order.
    under_way: BTreeMap<u64, Frame>,
    creates_under_way: usize,
    waiting_events: usize,
    waiting_read_bytes: usize,
    next_number: u64,
    live: Option<Live>,
    /// The server's limit per connection.
    in_flight_max: usize,
    is_closed: bool,
}

pub(super) struct Inner {
    pub(crate) options: ClientOptions,
    state: Mutex<LinkState>,
    /// Wakes the connection's task: bytes are left over, the connection broke, or the client ends.
    pub(crate) wake: Notify,
}

impl Inner {
    pub(super) fn new(options: ClientOptions) -> Self {
        Self { options, state: Mutex::default(), wake: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn close(&self) {
        self.state().is_closed = true;
        self.wake.notify_one();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    /// Accepts a request. It is sent at once if the limits permit.
    pub(super) fn submit(
        &self,
        kind: Kind,
        body: &[u8],
        events: usize,
        reply: Reply,
    ) -> Result<(), LedgerError> {
        let mut state = self.state();
        if state.waiting_events > 0 && state.waiting_events + events > self.options.waiting_events_max
            || state.reads.len() >= self.options.waiting_events_max
            || state.waiting_read_bytes >= self.options.waiting_events_max * RECORD_BYTES
        {
            return Err(LedgerError::Busy("too many requests wait in this client".to_owned()));
        }
        let part = Part { events, reply };
        let is_create = matches!(kind, Kind::CreateAccounts | Kind::CreateTransfers);
        let is_alone = runs_alone(kind, body);
        let queue = if is_create { &mut state.creates } else { &mut state.reads };
        let fits = |last: &Frame| {
            !is_alone
                && !last.is_full
                && last.kind == kind
                && last.bytes.len() + body.len() <= HEADER_BYTES + BODY_BYTES_MAX
        };
        match queue.back_mut() {
            Some(last) if fits(last) => {
                last.bytes.extend_from_slice(body);
                last.events += events;
                last.parts.push(part);
                last.is_full = last.bytes.len() == HEADER_BYTES + BODY_BYTES_MAX;
            }
            last => {
                if let Some(last) = last {
                    last.is_full = true;
                }
                queue.push_back(Frame::new(kind, body, part, is_alone));
            }
        }
        state.waiting_events += events;
        state.waiting_read_bytes += if is_create { 0 } else { body.len() };
        if self.pump(&mut state) {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Sends what the limits permit. True: the connection's task has to write the rest.
    fn pump(&self, state: &mut LinkState) -> bool {
        let options = &self.options;
        let mut needs_driver = false;
        while state.live.is_some() && state.under_way.len() < state.in_flight_max {
            let creates_max = match state.creates.front() {
                Some(frame) if frame.is_full => options.full_frames_in_flight.max(options.frames_in_flight),
                Some(_) => options.frames_in_flight,
                None => 0,
            };
            let reads_under_way = state.under_way.len() - state.creates_under_way;
            let frame = if state.creates_under_way < creates_max.min(state.in_flight_max) {
                state.creates_under_way += 1;
                state.creates.pop_front()
            } else if reads_under_way < options.reads_in_flight {
                state.reads.pop_front()
            } else {
                None
            };
            let Some(mut frame) = frame else { break };
            state.waiting_events -= frame.events;
            state.waiting_read_bytes -= frame.waiting_read_bytes();
            frame.sent = Instant::now();
            let number = state.next_number;
            state.next_number += 1;
            let header = Header::new(frame.kind, Status::Done, number, &frame.bytes[HEADER_BYTES..]);
            frame.bytes[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
            if let Some(live) = &mut state.live {
                needs_driver |= live.send(number, &frame);
            }
            state.under_way.insert(number, frame);
        }
        needs_driver
    }

    /// After connecting: repeats requests under way, then continues.
    pub(super) fn connected(&self, write: Arc<WriteHalf>, in_flight_max: usize) {
        let socket = Socket { write, out: Unwritten::default(), is_broken: false };
        self.is_live(Live::Socket(socket), in_flight_max.max(1));
        self.wake.notify_one();
    }

    /// The same for a session of a cluster.
    pub(super) fn cluster_is_there(&self, requests: mpsc::UnboundedSender<Request>) {
        self.is_live(Live::Cluster(requests), usize::MAX);
    }

    fn is_live(&self, mut live: Live, in_flight_max: usize) {
        let mut guard = self.state();
        let state = &mut *guard;
        for (number, frame) in &state.under_way {
            live.send(*number, frame);
        }
        state.live = Some(live);
        state.in_flight_max = in_flight_max;
        self.pump(state);
    }

    /// The connection broke.
    pub(super) fn disconnected(&self) {
        self.state().live = None;
    }

    /// An answer arrived.
    pub(super) fn answered(&self, number: u64, answer: Result<Bytes, LedgerError>) {
        let mut state = self.state();
        // The answer to a request that was given up.
        let Some(frame) = state.under_way.remove(&number) else { return };
        if frame.is_create() {
            state.creates_under_way -= 1;
        }
        if self.pump(&mut state) {
            self.wake.notify_one();
        }
        drop(state);
        match answer {
            Ok(body) => frame.answer(&body),
            Err(error) => frame.fail(&error),
        }
    }

    /// Writes the rest. If nothing is left, there is no write half to wait for.
    pub(super) fn write_rest(&self) -> io::Result<Option<Arc<WriteHalf>>> {
        let mut state = self.state();
        let Some(Live::Socket(socket)) = &mut state.live else { return Ok(None) };
        if socket.is_broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(if socket.send_rest()? { None } else { Some(Arc::clone(&socket.write)) })
    }

    /// The moment at which the oldest unanswered request was first sent; `None` if the server owes no answer.
    pub(super) fn owed_since(&self) -> Option<Instant> {
        self.state().under_way.values().next().map(|frame| frame.sent)
    }

    /// Fails all requests. Those that were sent may have been executed.
    pub(super) fn give_up(&self, reason: &str) {
        let mut state = self.state();
        let sent = std::mem::take(&mut state.under_way);
        state.creates_under_way = 0;
        let waiting: Vec<Frame> =
            std::mem::take(&mut state.creates).into_iter().chain(std::mem::take(&mut state.reads)).collect();
        state.waiting_events = 0;
        state.waiting_read_bytes = 0;
        drop(state);
        for frame in sent.into_values() {
            frame.fail(&LedgerError::Unknown(reason.to_owned()));
        }
        for frame in waiting {
            frame.fail(&LedgerError::Busy(format!("nothing was sent: {reason}")));
        }
    }
}

impl Frame {
    fn new(kind: Kind, body: &[u8], part: Part, is_full: bool) -> Self {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
        bytes.extend_from_slice(&[0; HEADER_BYTES]);
        bytes.extend_from_slice(body);
        let is_full = is_full || body.len() == BODY_BYTES_MAX;
        Self { kind, sent: Instant::now(), bytes, events: part.events, parts: vec![part], is_full }
    }
}
