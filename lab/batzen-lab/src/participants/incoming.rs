//! Callbacks from the switch. Each is answered at once, whatever its content.

use std::io::{ErrorKind, Read as _};

use batzen_http::codec::{Request, frame_request};

use crate::participants::MESSAGE_LIMITS;
use crate::participants::book::{Flight, News, Side};
use crate::participants::ilp;
use crate::participants::message::{self, Prepare, StateNotice};
use crate::participants::order::Behaviour;
use crate::participants::outcome::Notice;
use crate::participants::text::TransferId;
use crate::participants::worker::{Later, Outgoing, Socket, What, Worker};

const ACCEPTED: &[u8] = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
const MALFORMED: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
const UNKNOWN: &[u8] = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
/// Time after the expiration at which a late payee answers.
const LATE_NS: u64 = 1_500_000_000;

impl Worker {
    /// Reads callbacks and answers them in order; those that arrived together are answered in one write.
    pub(crate) fn receive_callbacks(&mut self, slot: usize) {
        // Taken out while in use, because handling a callback writes to other connections.
        let Socket::Inbound(mut inbound) = std::mem::replace(&mut self.slots[slot], Socket::Vacant) else {
            return;
        };
        let mut part = std::mem::take(&mut self.part);
        let mut answers = Vec::new();
        let is_open = loop {
            let count = match inbound.pipe.stream.read(&mut part) {
                Ok(0) => break false,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => break error.kind() == ErrorKind::WouldBlock,
            };
            let mut received = std::mem::take(&mut inbound.pipe.received);
            let is_first = received.is_empty();
            if !is_first {
                received.extend_from_slice(&part[..count]);
            }
            let seen = if is_first { &part[..count] } else { received.as_slice() };
            let (mut at, mut is_sound) = (0, true);
            while is_sound && at < seen.len() {
                let rest = &seen[at..];
                match frame_request(rest, &MESSAGE_LIMITS) {
                    Err(_) => is_sound = false,
                    Ok(None) => break,
                    Ok(Some(Request { method, target, body, closes })) => {
                        at += body.end;
                        is_sound = !closes;
                        answers.extend_from_slice(self.callback(inbound.port, method, target, &rest[body]));
                    }
                }
            }
            if is_first {
                received.extend_from_slice(&part[at..count]);
            } else {
                received.drain(..at);
            }
            inbound.pipe.received = received;
            if !is_sound {
                break false;
            }
            if count < part.len() {
                break true;
            }
        };
        self.part = part;
        let is_sent = answers.is_empty() || inbound.pipe.send(&self.epoll, slot, &answers).is_ok();
        self.slots[slot] = Socket::Inbound(inbound);
        if !is_open || !is_sent {
            self.close_inbound(slot);
        }
    }

    fn callback(&mut self, port: usize, method: &str, path: &str, body: &[u8]) -> &'static [u8] {
        let Some(rest) = path.strip_prefix("/transfers") else { return UNKNOWN };
        if method == "POST" && rest.is_empty() {
            return self.asked(port, body);
        }
        let Some(rest) = rest.strip_prefix('/') else { return UNKNOWN };
        let (id, is_error) = match rest.strip_suffix("/error") {
            Some(id) => (id, true),
            None => (rest, false),
        };
        let Some(id) = TransferId::parse(id.as_bytes()) else { return MALFORMED };
        match method {
            "PUT" if is_error => match message::error_code(body) {
                Some(code) => self.receive_notice(port, id, Notice::Error(code), None),
                None => MALFORMED,
            },
            "PUT" | "PATCH" => {
                let Ok(state) = serde_json::from_slice::<StateNotice<'_>>(body) else { return MALFORMED };
                match message::final_state(state.transfer_state) {
                    Some(notice) => self.receive_notice(port, id, notice, state.fulfilment),
                    // An answer to a query: not decided yet.
                    None => OK,
                }
            }
            _ => UNKNOWN,
        }
    }

    /// The switch forwards a prepare to a payee.
    fn asked(&mut self, port: usize, body: &[u8]) -> &'static [u8] {
        let Ok(prepare) = serde_json::from_slice::<Prepare<'_>>(body) else { return MALFORMED };
        let Some(id) = TransferId::parse(prepare.transfer_id.as_bytes()) else { return MALFORMED };
        let (now_ns, number) = (self.now_ns(), self.ports[port].number);
        let mut latency_ns = None;
        let flight = self.shared.book.change(id, |flight| {
            if flight.seen_ns == 0 && flight.payee == number {
                flight.seen_ns = now_ns;
                latency_ns = Some(now_ns.saturating_sub(flight.sent_ns));
            }
        });
        let Some(flight) = flight else {
            self.report.late_callbacks += 1;
            return ACCEPTED;
        };
        if flight.payee != number {
            self.report.wrong_callbacks += 1;
            return ACCEPTED;
        }
        if let Some(latency_ns) = latency_ns
            && flight.is_load
            && self.is_measured(now_ns)
        {
            self.report.prepare.saturating_record(latency_ns / 1000);
        }
        let mut packet = std::mem::take(&mut self.scratch.packet);
        let is_packet = ilp::decode(&mut packet, prepare.ilp_packet.as_bytes());
        let fulfilment = self.shared.words.secrets[usize::from(number)].fulfilment(&packet);
        self.scratch.packet = packet;
        if !is_packet {
            return MALFORMED;
        }
        self.answer(port, id, &flight, fulfilment);
        ACCEPTED
    }

    fn answer(&mut self, port: usize, id: TransferId, flight: &Flight, mut fulfilment: [u8; 32]) {
        let what = match flight.behaviour {
            Behaviour::Silent => return,
            Behaviour::Reject => What::Reject,
            Behaviour::WrongFulfilment => {
                fulfilment[0] ^= 1;
                What::Fulfil(fulfilment)
            }
            _ => What::Fulfil(fulfilment),
        };
        let outgoing = Outgoing { id, what, tries: 0 };
        if flight.behaviour == Behaviour::Late {
            let left_ms = flight.expiration_ms.saturating_sub(self.shared.now_ms());
            return self.after(left_ms * 1_000_000 + LATE_NS, Later::Send(port, outgoing));
        }
        self.ports[port].urgent.push_back(outgoing);
        self.pump(port);
    }

    /// The switch reports how a transfer ended.
    fn receive_notice(
        &mut self,
        port: usize,
        id: TransferId,
        notice: Notice,
        fulfilment: Option<&str>,
    ) -> &'static [u8] {
        let (number, now_ms) = (self.ports[port].number, self.shared.now_ms());
        let Some(flight) = self.shared.book.change(id, |_| ()) else {
            // The transfer has ended. If outcomes are kept, they record whether this notice agrees.
            let side = self.shared.book.side(id, number).unwrap_or(Side::Payer);
            self.shared.book.receive_notice(id, side, notice, now_ms);
            self.report.late_callbacks += 1;
            return OK;
        };
        let side = match number {
            number if number == flight.payer => Side::Payer,
            number if number == flight.payee => Side::Payee,
            _ => {
                self.report.wrong_callbacks += 1;
                return OK;
            }
        };
        if side == Side::Payer && notice.is_committed() && !is_preimage(fulfilment, &flight.condition) {
            self.report.wrong_callbacks += 1;
        }
        match self.shared.book.receive_notice(id, side, notice, now_ms) {
            News::First { flight, contradicts } => {
                self.report.wrong_callbacks += u64::from(contradicts);
                if side == Side::Payer {
                    self.ended(&flight, notice);
                }
            }
            News::Aside => {}
            News::Repeated => self.report.late_callbacks += 1,
            News::Contradicted => self.report.wrong_callbacks += 1,
        }
        OK
    }

    /// The payer has received the outcome of its transfer.
    pub(crate) fn ended(&mut self, flight: &Flight, notice: Notice) {
        let now_ns = self.now_ns();
        *self.report.ends.entry((flight.behaviour, notice)).or_default() += 1;
        if flight.is_load {
            self.in_flight = self.in_flight.saturating_sub(1);
            self.last_end_ns = now_ns;
        }
        if !notice.is_committed() {
            return;
        }
        self.shared.count_committed();
        self.report.committed_in_all += 1;
        self.report.committed_cents += u128::from(flight.cents);
        if !(flight.is_load && self.is_measured(now_ns)) {
            return;
        }
        let whole_us = now_ns.saturating_sub(flight.planned_ns) / 1000;
        self.report.committed += 1;
        self.report.whole.saturating_record(whole_us);
        self.report.fulfil.saturating_record(now_ns.saturating_sub(flight.put_ns) / 1000);
        let second = self.second(now_ns);
        second.committed += 1;
        second.whole.saturating_record(whole_us);
    }
}

fn is_preimage(fulfilment: Option<&str>, condition: &[u8; 32]) -> bool {
    let mut bytes = Vec::with_capacity(32);
    fulfilment.is_some_and(|text| {
        ilp::decode(&mut bytes, text.as_bytes())
            && <[u8; 32]>::try_from(bytes.as_slice()).is_ok_and(|bytes| ilp::condition(&bytes) == *condition)
    })
}
