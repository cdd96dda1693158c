//! Requests to the switch: one at a time on each connection, repeated if the switch was overloaded or the
//! connection broke.

use std::io::{ErrorKind, Read as _};

use batzen_http::codec::frame_response;

use crate::participants::MESSAGE_LIMITS;
use crate::participants::book::{Flight, News, Side};
use crate::participants::order::Behaviour;
use crate::participants::outcome::Notice;
use crate::participants::worker::{Later, Outbound, Outgoing, Socket, What, Worker};

/// The pause before a request is repeated; it doubles with every attempt up to the sixth.
const PAUSE_NS: u64 = 10_000_000;
const DOUBLINGS_MAX: u32 = 6;

/// Statuses after which the same request is repeated.
const fn is_passing(status: u16) -> bool {
    matches!(status, 429 | 500 | 502 | 503 | 504)
}

impl Worker {
    /// Sends waiting requests as long as connections are free.
    pub(crate) fn pump(&mut self, port: usize) {
        loop {
            let queue = &mut self.ports[port];
            let Some(slot) = queue.free.last().copied() else { return };
            let Some(outgoing) = queue.urgent.pop_front().or_else(|| queue.prepares.pop_front()) else {
                return;
            };
            queue.free.pop();
            if !self.send(slot, outgoing) {
                self.ports[port].free.push(slot);
            }
        }
    }

    /// Sends a request on a free connection; false if there is nothing left to send.
    fn send(&mut self, slot: usize, outgoing: Outgoing) -> bool {
        let now_ns = self.now_ns();
        let now_ms = self.shared.now_ms();
        let flight = self.shared.book.change(outgoing.id, |flight| match outgoing.what {
            What::Prepare if flight.sent_ns == 0 => flight.sent_ns = now_ns,
            What::Fulfil(_) | What::Reject if flight.put_ns == 0 => {
                flight.put_ns = now_ns;
                flight.completed_ms = now_ms;
            }
            What::PrepareAgain | What::PrepareChanged | What::FulfilAgain(_) if outgoing.tries == 0 => {
                flight.repetitions = flight.repetitions.saturating_sub(1);
            }
            _ => {}
        });
        // The transfer may have ended while this waited.
        let Some(flight) = flight else { return false };
        let Socket::Outbound(outbound) = &mut self.slots[slot] else { return false };
        let mut bytes = std::mem::take(&mut outbound.bytes);
        self.write(&mut bytes, &flight, outgoing, now_ms);
        let Socket::Outbound(outbound) = &mut self.slots[slot] else { return false };
        outbound.request = Some((outgoing, now_ns));
        outbound.bytes = bytes;
        let Outbound { pipe: Some(pipe), bytes, .. } = outbound else {
            self.broken(slot);
            return true;
        };
        if pipe.send(&self.epoll, slot, bytes).is_err() {
            self.broken(slot);
        }
        true
    }

    /// Closes connections whose request was sent before this moment and is still unanswered.
    pub(crate) fn give_up_hung(&mut self, before_ns: u64) {
        for slot in 0..self.slots.len() {
            if let Socket::Outbound(Outbound { request: Some((_, since_ns)), .. }) = &self.slots[slot]
                && *since_ns < before_ns
            {
                self.broken(slot);
            }
        }
    }

    fn write(&mut self, bytes: &mut Vec<u8>, flight: &Flight, outgoing: Outgoing, now_ms: u64) {
        let words = &self.shared.words;
        let (by_payer, by_payee) = ((flight.payer, flight.payee), (flight.payee, flight.payer));
        let id = outgoing.id;
        let state = if flight.behaviour == Behaviour::Reserve { "RESERVED" } else { "COMMITTED" };
        let (method, path_id, suffix, parties) = match outgoing.what {
            What::Prepare | What::PrepareAgain => {
                self.scratch.prepare(words, id, flight, flight.cents);
                ("POST", None, "", by_payer)
            }
            What::PrepareChanged => {
                self.scratch.prepare(words, id, flight, flight.cents + 1);
                ("POST", None, "", by_payer)
            }
            What::Fulfil(fulfilment) | What::FulfilAgain(fulfilment) => {
                self.scratch.fulfil(flight, state, &fulfilment);
                ("PUT", Some(id), "", by_payee)
            }
            What::Reject => {
                self.scratch.reject();
                ("PUT", Some(id), "/error", by_payee)
            }
            What::Get => ("GET", Some(id), "", by_payer),
        };
        self.scratch.request(bytes, words, method, path_id, suffix, parties, now_ms);
    }

    /// Reads the answer to the request of a connection.
    pub(crate) fn receive_answer(&mut self, slot: usize) {
        loop {
            let Socket::Outbound(Outbound { pipe: Some(pipe), .. }) = &mut self.slots[slot] else { return };
            let count = match pipe.stream.read(&mut self.part) {
                Ok(0) => return self.broken(slot),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => return self.broken(slot),
            };
            // The whole answer nearly always arrives at once and needs no copy.
            let is_first = pipe.received.is_empty();
            if !is_first {
                pipe.received.extend_from_slice(&self.part[..count]);
            }
            let seen = if is_first { &self.part[..count] } else { pipe.received.as_slice() };
            match frame_response(seen, &MESSAGE_LIMITS) {
                Err(_) => return self.broken(slot),
                Ok(None) => {
                    if is_first {
                        pipe.received.extend_from_slice(&self.part[..count]);
                    }
                }
                Ok(Some(framed)) => {
                    pipe.received.clear();
                    return self.answered(slot, framed.status, framed.closes);
                }
            }
            if count < self.part.len() {
                return;
            }
        }
    }

    fn answered(&mut self, slot: usize, status: u16, closes: bool) {
        let Socket::Outbound(outbound) = &mut self.slots[slot] else { return };
        let port = outbound.port;
        let Some((outgoing, _)) = outbound.request.take() else {
            // An answer without a request: the switch closes idle connections, with or without a message.
            return self.broken(slot);
        };
        if closes {
            self.broken(slot);
        } else {
            self.ports[port].free.push(slot);
        }
        if is_passing(status) {
            self.repeat(port, outgoing);
        } else if (200..300).contains(&status) {
            self.acknowledged(port, outgoing);
        } else {
            self.refused(outgoing, status);
        }
        self.pump(port);
    }

    /// Queues the repetition of a request, if repeating it is the behaviour of its transfer. The end of the transfer
    /// may have been told before this answer was read; the book keeps the transfer until its repetitions are sent.
    fn acknowledged(&mut self, port: usize, outgoing: Outgoing) {
        let Outgoing { id, what, .. } = outgoing;
        let again = match what {
            What::Prepare => {
                let Some(flight) = self.shared.book.change(id, |_| ()) else { return };
                match flight.behaviour {
                    Behaviour::Duplicate => What::PrepareAgain,
                    Behaviour::ChangedDuplicate => What::PrepareChanged,
                    _ => return,
                }
            }
            What::Fulfil(fulfilment) => {
                let Some(flight) = self.shared.book.change(id, |_| ()) else { return };
                if flight.behaviour != Behaviour::Duplicate {
                    return;
                }
                What::FulfilAgain(fulfilment)
            }
            _ => return,
        };
        self.ports[port].urgent.push_back(Outgoing { id, what: again, tries: 0 });
    }

    fn refused(&mut self, outgoing: Outgoing, status: u16) {
        // What was refused is not repeated.
        self.shared.book.change(outgoing.id, |flight| flight.repetitions = 0);
        match outgoing.what {
            What::Prepare => {
                let (refused, now_ms) = (Notice::Refused(status), self.shared.now_ms());
                let news = self.shared.book.receive_notice(outgoing.id, Side::Payer, refused, now_ms);
                if let News::First { flight, .. } = news {
                    self.ended(&flight, refused);
                }
            }
            other => {
                let name = match other {
                    What::Fulfil(_) | What::FulfilAgain(_) => "fulfilment",
                    What::Reject => "error of the payee",
                    What::Get => "query",
                    _ => "repeated prepare",
                };
                *self.report.refusals.entry(format!("{name}: HTTP {status}")).or_default() += 1;
            }
        }
    }

    fn repeat(&mut self, port: usize, outgoing: Outgoing) {
        self.report.repeats += 1;
        let pause_ns = PAUSE_NS << outgoing.tries.min(DOUBLINGS_MAX);
        let tries = outgoing.tries.saturating_add(1);
        self.after(pause_ns, Later::Send(port, Outgoing { tries, ..outgoing }));
    }

    /// Handles a connection that can no longer be used: another replaces it, and its request is sent again.
    fn broken(&mut self, slot: usize) {
        let Socket::Outbound(outbound) = &mut self.slots[slot] else { return };
        let (port, request) = (outbound.port, outbound.request.take());
        // Closing it removes it from the poll set.
        outbound.pipe = None;
        self.ports[port].free.retain(|free| *free != slot);
        if let Some((outgoing, _)) = request {
            self.repeat(port, outgoing);
        }
        self.after(0, Later::Reopen(slot));
    }
}
