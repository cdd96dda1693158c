//! Builds requests to the switch as bytes, and parses its callbacks.

use batzen_http::http_date;
use batzen_protocol::Timestamp;
use batzen_protocol::calendar::format_ms;
use serde::Deserialize;

use crate::participants::book::Flight;
use crate::participants::ilp::{self, HASH_BYTES};
use crate::participants::outcome::Notice;
use crate::participants::text::{self, TransferId};

/// The fields of `POST /transfers` that a payee needs.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Prepare<'a> {
    pub(crate) transfer_id: &'a str,
    pub(crate) ilp_packet: &'a str,
}

/// The fields of `PUT` and `PATCH` on a transfer that a participant needs.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StateNotice<'a> {
    pub(crate) transfer_state: &'a str,
    #[serde(default)]
    pub(crate) fulfilment: Option<&'a str>,
}

/// `PUT /transfers/{id}/error`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Failure<'a> {
    #[serde(borrow)]
    error_information: ErrorInformation<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ErrorInformation<'a> {
    error_code: &'a str,
}

/// The code of an error callback.
pub(crate) fn error_code(body: &[u8]) -> Option<u16> {
    serde_json::from_slice::<Failure<'_>>(body).ok()?.error_information.error_code.parse().ok()
}

/// The meaning of a state; `None`: nothing is decided yet.
pub(crate) fn final_state(state: &str) -> Option<Notice> {
    match state {
        "COMMITTED" => Some(Notice::Committed),
        "ABORTED" => Some(Notice::Aborted),
        _ => None,
    }
}

/// The parts that all requests of a process share.
pub(crate) struct Words {
    /// Names of the participants.
    pub(crate) names: Vec<String>,
    pub(crate) currency: String,
    /// `Host:` of the switch.
    pub(crate) host: String,
    /// Bytes of data in a packet.
    pub(crate) packet_data: usize,
    /// The secrets of the participants as payees.
    pub(crate) secrets: Vec<ilp::Secret>,
}

/// Reusable buffers, and the date of the current second.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) packet: Vec<u8>,
    pub(crate) body: Vec<u8>,
    date: Vec<u8>,
    date_s: u64,
}

impl Scratch {
    /// The packet of a transfer, built again.
    pub(crate) fn packet(&mut self, words: &Words, id: TransferId, flight: &Flight) -> &[u8] {
        let payee = &words.names[usize::from(flight.payee)];
        ilp::packet(&mut self.packet, flight.cents, payee, id.0, words.packet_data);
        &self.packet
    }

    /// The body of a prepare; always the same for the same transfer.
    pub(crate) fn prepare(&mut self, words: &Words, id: TransferId, flight: &Flight, cents: u64) {
        self.packet(words, id, flight);
        let body = &mut self.body;
        body.clear();
        body.extend_from_slice(b"{\"transferId\":\"");
        id.write(body);
        body.extend_from_slice(b"\",\"payerFsp\":\"");
        body.extend_from_slice(words.names[usize::from(flight.payer)].as_bytes());
        body.extend_from_slice(b"\",\"payeeFsp\":\"");
        body.extend_from_slice(words.names[usize::from(flight.payee)].as_bytes());
        body.extend_from_slice(b"\",\"amount\":{\"currency\":\"");
        body.extend_from_slice(words.currency.as_bytes());
        body.extend_from_slice(b"\",\"amount\":\"");
        text::amount(body, cents);
        body.extend_from_slice(b"\"},\"ilpPacket\":\"");
        ilp::encode(body, &self.packet);
        body.extend_from_slice(b"\",\"condition\":\"");
        ilp::encode(body, &flight.condition);
        body.extend_from_slice(b"\",\"expiration\":\"");
        body.extend_from_slice(format_ms(flight.expiration_ms).as_bytes());
        body.extend_from_slice(b"\"}");
    }

    /// The body of a fulfilment.
    pub(crate) fn fulfil(&mut self, flight: &Flight, state: &str, fulfilment: &[u8; HASH_BYTES]) {
        let body = &mut self.body;
        body.clear();
        body.extend_from_slice(b"{\"transferState\":\"");
        body.extend_from_slice(state.as_bytes());
        body.extend_from_slice(b"\",\"fulfilment\":\"");
        ilp::encode(body, fulfilment);
        body.extend_from_slice(b"\",\"completedTimestamp\":\"");
        body.extend_from_slice(format_ms(flight.completed_ms).as_bytes());
        body.extend_from_slice(b"\"}");
    }

    /// The body of a payee's refusal.
    pub(crate) fn reject(&mut self) {
        self.body.clear();
        self.body.extend_from_slice(
            b"{\"errorInformation\":{\"errorCode\":\"5104\",\"errorDescription\":\"Payee rejected\"}}",
        );
    }

    /// A whole request with the last body built (none for GET). `suffix` follows the id in the path.
    #[allow(clippy::too_many_arguments, reason = "the parts of a request")]
    pub(crate) fn request(
        &mut self,
        out: &mut Vec<u8>,
        words: &Words,
        method: &str,
        id: Option<TransferId>,
        suffix: &str,
        (source, destination): (u16, u16),
        now_ms: u64,
    ) {
        if self.date_s != now_ms / 1000 || self.date.is_empty() {
            self.date_s = now_ms / 1000;
            self.date = http_date(Timestamp::from_secs(self.date_s)).into_bytes();
        }
        out.clear();
        out.extend_from_slice(method.as_bytes());
        out.extend_from_slice(b" /transfers");
        if let Some(id) = id {
            out.push(b'/');
            id.write(out);
        }
        out.extend_from_slice(suffix.as_bytes());
        out.extend_from_slice(b" HTTP/1.1\r\nHost: ");
        out.extend_from_slice(words.host.as_bytes());
        out.extend_from_slice(b"\r\nFSPIOP-Source: ");
        out.extend_from_slice(words.names[usize::from(source)].as_bytes());
        out.extend_from_slice(b"\r\nFSPIOP-Destination: ");
        out.extend_from_slice(words.names[usize::from(destination)].as_bytes());
        out.extend_from_slice(b"\r\nDate: ");
        out.extend_from_slice(&self.date);
        out.extend_from_slice(
            b"\r\nContent-Type: application/vnd.interoperability.transfers+json;version=1.1\
              \r\nAccept: application/vnd.interoperability.transfers+json;version=1\r\n",
        );
        let has_body = method != "GET";
        if has_body {
            out.extend_from_slice(b"Content-Length: ");
            text::number(out, self.body.len() as u64);
            out.extend_from_slice(b"\r\n\r\n");
            out.extend_from_slice(&self.body);
        } else {
            out.extend_from_slice(b"\r\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use batzen_http::codec::frame_request;

    use super::*;
    use crate::participants::MESSAGE_LIMITS;
    use crate::participants::order::Behaviour;

    #[test]
    fn bodies_are_json_of_the_interface() {
        let words = Words {
            names: vec!["one".into(), "two".into()],
            currency: "USD".into(),
            host: "localhost".into(),
            packet_data: 100,
            secrets: vec![ilp::Secret::new(&[1; 32]), ilp::Secret::new(&[2; 32])],
        };
        let mut flight = Flight::new(0, 1, 1_250, Behaviour::Accept);
        flight.expiration_ms = 1_795_273_445_678;
        flight.completed_ms = 1_795_273_445_000;
        let (id, mut scratch) = (TransferId::from_random(5), Scratch::default());
        scratch.prepare(&words, id, &flight, flight.cents);
        let body: serde_json::Value = serde_json::from_slice(&scratch.body).unwrap();
        assert_eq!(body["transferId"], id.to_string());
        assert_eq!((&body["payerFsp"], &body["payeeFsp"]), (&"one".into(), &"two".into()));
        assert_eq!(body["amount"], serde_json::json!({"currency": "USD", "amount": "12.5"}));
        assert_eq!(body["expiration"], "2026-11-21T15:04:05.678Z");
        assert_eq!(body["condition"].as_str().unwrap().len(), 43);
        let mut packet = Vec::new();
        assert!(ilp::decode(&mut packet, body["ilpPacket"].as_str().unwrap().as_bytes()));
        assert_eq!(packet, scratch.packet);
        let view: Prepare<'_> = serde_json::from_slice(&scratch.body).unwrap();
        assert_eq!(view.transfer_id, id.to_string());

        let mut out = Vec::new();
        scratch.request(&mut out, &words, "POST", None, "", (0, 1), 1_795_273_445_678);
        let request = String::from_utf8(out.clone()).unwrap();
        assert!(request.starts_with("POST /transfers HTTP/1.1\r\n"), "{request}");
        assert!(request.contains("FSPIOP-Source: one\r\nFSPIOP-Destination: two\r\n"), "{request}");
        let framed = frame_request(&out, &MESSAGE_LIMITS).unwrap().unwrap();
        assert_eq!((&out[framed.body.clone()], framed.body.end), (scratch.body.as_slice(), out.len()));

        scratch.fulfil(&flight, "COMMITTED", &[0xff; 32]);
        let state: StateNotice<'_> = serde_json::from_slice(&scratch.body).unwrap();
        assert_eq!(final_state(state.transfer_state), Some(Notice::Committed));
        assert_eq!(state.fulfilment.map(str::len), Some(43));
        scratch.reject();
        assert_eq!(error_code(&scratch.body), Some(5104));
        scratch.request(&mut out, &words, "GET", Some(id), "", (0, 1), 0);
        assert!(frame_request(&out, &MESSAGE_LIMITS).unwrap().unwrap().body.is_empty());
    }
}
