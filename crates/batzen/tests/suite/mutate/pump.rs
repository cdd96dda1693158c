//! Sends requests over several connections at once, many on each, and checks the answers.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::mutate::answer::{self, Answer, Errors};
use crate::mutate::dice::Dice;
use crate::mutate::mutant::{Ending, Mutant};
use crate::mutate::score::Score;
use crate::mutate::seeds::Seeds;

/// The number of requests sent on one connection before the first is answered.
const DEPTH: usize = 16;
/// Their approximate size in bytes.
const BATCH_BYTES: usize = 96 << 10;
/// Connections to each listener.
const CONNECTIONS: usize = 6;
/// Time that an answer may take; longer than the longest long poll.
const PATIENCE: Duration = Duration::from_secs(120);

/// A listener of a service, and the requests for it.
pub(super) struct Listener {
    pub address: SocketAddr,
    pub errors: Errors,
    pub seeds: Seeds,
}

struct Sent {
    /// Its position in the bytes sent.
    start: usize,
    route: usize,
    is_head: bool,
}

struct Connection {
    listener: usize,
    /// A separate generator, so that its requests do not depend on the speed of other connections.
    dice: Dice,
    stream: Option<TcpStream>,
    out: Vec<u8>,
    written: usize,
    sent: VecDeque<Sent>,
    input: Vec<u8>,
    ending: Ending,
    is_half_closed: bool,
    waits_since: Instant,
}

/// The failure, and the bytes sent.
pub(super) struct Failure {
    pub what: String,
    pub listener: usize,
    /// The requests that were sent together.
    pub bytes: Vec<u8>,
    /// The start of the next request to be answered.
    pub start: usize,
}

/// Sends requests.
///
/// # Errors
/// The first wrong answer.
pub(super) fn run(
    listeners: &[Listener],
    requests: u64,
    dice: &mut Dice,
    score: &mut Score,
    watch: &mut dyn FnMut(&Score) -> Result<(), String>,
) -> Result<(), Failure> {
    let mut connections: Vec<Connection> = (0..listeners.len() * CONNECTIONS)
        .map(|number| Connection::new(number % listeners.len(), Dice::new(dice.next())))
        .collect();
    let mut looked = 0;
    loop {
        let is_done = score.sent >= requests;
        let (mut moved, mut idle) = (false, true);
        for connection in &mut connections {
            let listener = &listeners[connection.listener];
            if connection.is_idle() && !is_done {
                connection.fill(listener, score).map_err(|error| Failure {
                    what: format!("the service takes no connection: {error}"),
                    listener: connection.listener,
                    bytes: Vec::new(),
                    start: 0,
                })?;
                moved = true;
            }
            if !connection.is_idle() {
                idle = false;
                match connection.step(listener, score) {
                    Ok(has_moved) => moved |= has_moved,
                    Err(what) => return Err(connection.failure(what)),
                }
            }
        }
        if is_done && idle {
            return Ok(());
        }
        if score.sent >= looked + 2000 {
            looked = score.sent;
            watch(score).map_err(|what| Failure { what, listener: 0, bytes: Vec::new(), start: 0 })?;
        }
        if !moved {
            wait(&connections);
        }
    }
}

/// Sends bytes that were saved at a failure, and shows the answers.
///
/// # Errors
/// The service does not accept a connection, or leaves it open without an answer.
pub(super) fn replay(listener: &Listener, bytes: &[u8]) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(listener.address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut writing = stream.try_clone()?;
    let bytes = bytes.to_vec();
    // Large answers are read while large requests are written. The service may close the connection before it
    // has read everything.
    let writer = std::thread::spawn(move || {
        let _ = writing.write_all(&bytes);
        std::thread::sleep(Duration::from_secs(1));
        let _ = writing.shutdown(Shutdown::Write);
    });
    let mut answers = Vec::new();
    let result = stream.read_to_end(&mut answers);
    let answers = String::from_utf8_lossy(&answers);
    println!("{answers}");
    writer.join().expect("the writer does not panic");
    let is_failure = |line: &str| line.starts_with("HTTP/1.1 5") && !line.starts_with("HTTP/1.1 503");
    assert!(!answers.lines().any(is_failure), "the service has failed");
    match result {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => Err(error),
        _ => Ok(()),
    }
}

fn wait(connections: &[Connection]) {
    let mut polled: Vec<PollFd<'_>> = connections
        .iter()
        .filter_map(|connection| {
            let flags = if connection.written < connection.out.len() {
                PollFlags::IN | PollFlags::OUT
            } else {
                PollFlags::IN
            };
            Some(PollFd::new(connection.stream.as_ref()?, flags))
        })
        .collect();
    // All connections are checked again, whether ready or not.
    let _ = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 100_000_000 }));
}

impl Connection {
    fn new(listener: usize, dice: Dice) -> Self {
        Self {
            listener,
            dice,
            stream: None,
            out: Vec::new(),
            written: 0,
            sent: VecDeque::new(),
            input: Vec::new(),
            ending: Ending::Answered,
            is_half_closed: false,
            waits_since: Instant::now(),
        }
    }

    fn failure(&self, what: String) -> Failure {
        let start = self.sent.front().map_or(0, |sent| sent.start);
        Failure { what, listener: self.listener, bytes: self.out.clone(), start }
    }

    /// Returns whether everything is answered and new requests can be sent.
    fn is_idle(&self) -> bool {
        self.stream.is_none()
            || (self.sent.is_empty() && self.written == self.out.len() && self.ending == Ending::Answered)
    }

    /// Assembles requests, and connects if there is no connection.
    fn fill(&mut self, listener: &Listener, score: &mut Score) -> std::io::Result<()> {
        if self.stream.is_none() {
            let stream = TcpStream::connect(listener.address)?;
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            self.stream = Some(stream);
            self.input.clear();
        }
        self.out.clear();
        self.written = 0;
        self.sent.clear();
        self.is_half_closed = false;
        self.ending = Ending::Answered;
        let dice = &mut self.dice;
        let depth = 1 + dice.below(DEPTH);
        while self.sent.len() < depth && self.out.len() < BATCH_BYTES && self.ending == Ending::Answered {
            let (route, seed) = listener.seeds.pick(dice);
            let mutant = if dice.chance(8) {
                Mutant::unchanged(seed)
            } else {
                Mutant::new(seed, dice, &listener.seeds.pool)
            };
            score.sent(self.listener, route);
            self.ending = mutant.ending;
            if mutant.ending != Ending::Abandoned {
                self.sent.push_back(Sent { start: self.out.len(), route, is_head: mutant.is_head });
            }
            self.out.extend_from_slice(&mutant.bytes);
        }
        self.waits_since = Instant::now();
        Ok(())
    }

    /// Writes and reads as much as possible now, and returns whether it did anything.
    fn step(&mut self, listener: &Listener, score: &mut Score) -> Result<bool, String> {
        let Some(stream) = &mut self.stream else { return Ok(false) };
        let (mut moved, mut is_ended, mut end) = (false, false, "it has ended".to_owned());
        while self.written < self.out.len() {
            match stream.write(&self.out[self.written..]) {
                Ok(count) => {
                    self.written += count;
                    moved = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The server has closed, but its earlier answers can still be read.
                Err(_) => self.written = self.out.len(),
            }
        }
        // If closed earlier, the server would think we are gone, and answer none of the pending requests.
        let is_last = self.written == self.out.len() && self.sent.len() <= 1;
        if is_last && self.ending == Ending::Broken && !self.is_half_closed {
            self.is_half_closed = true;
            moved = true;
            // It may be closed already.
            let _ = stream.shutdown(Shutdown::Write);
        }
        let mut part = [0; 64 << 10];
        loop {
            match stream.read(&mut part) {
                Ok(0) => is_ended = true,
                Ok(count) => {
                    self.input.extend_from_slice(&part[..count]);
                    moved = true;
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    is_ended = true;
                    end = error.to_string();
                }
            }
            break;
        }
        let closes = self.judge(listener, score, is_ended)?;
        if is_ended || closes {
            if is_ended && !closes && self.ending == Ending::Answered && !self.sent.is_empty() {
                return Err(format!("the connection was closed without an answer: {end}"));
            }
            if is_ended && !closes && self.sent.len() > 1 {
                return Err(format!(
                    "the connection was closed before all whole requests were answered: {end}"
                ));
            }
            // The server reads nothing after an answer that ends the connection.
            let is_seen = usize::from(self.ending == Ending::Broken && !closes);
            for unread in self.sent.drain(..).rev().skip(is_seen) {
                score.unread(self.listener, unread.route);
            }
            self.stream = None;
            return Ok(true);
        }
        if self.ending == Ending::Abandoned && self.sent.is_empty() && self.written == self.out.len() {
            self.stream = None;
            return Ok(true);
        }
        if moved {
            self.waits_since = Instant::now();
        } else if self.waits_since.elapsed() > PATIENCE {
            return Err(format!("no answer for {PATIENCE:?}"));
        }
        Ok(moved)
    }

    /// Checks the available answers; returns whether the server closes after one of them.
    fn judge(&mut self, listener: &Listener, score: &mut Score, is_ended: bool) -> Result<bool, String> {
        let mut taken = 0;
        let mut closes = false;
        while taken < self.input.len() && !closes {
            let is_head = self.sent.front().is_some_and(|sent| sent.is_head);
            let found = answer::read(&self.input[taken..], is_head, is_ended, listener.errors)?;
            let Some(Answer { status, length, closes: is_last, .. }) = found else {
                break;
            };
            taken += length;
            if status == 100 {
                continue;
            }
            closes = is_last;
            match self.sent.pop_front() {
                Some(sent) => score.answered(self.listener, sent.route, status),
                // Bytes after a broken request may be parsed as requests; a long poll may be answered at
                // once.
                None if self.ending != Ending::Answered => {}
                None => return Err(format!("an unrequested answer, status {status}")),
            }
        }
        self.input.drain(..taken);
        Ok(closes)
    }
}
