//! A slightly invalid request, as bytes.

use std::io::Write as _;

use crate::mutate::dice::Dice;
use crate::mutate::seeds::{Body, Seed};
use crate::mutate::text::Pool;

/// The expected end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It is answered, and the connection stays open unless the answer says otherwise.
    Answered,
    /// The server cannot see where it ends: the client closes its side, and the server closes, with or
    /// without an answer.
    Broken,
    /// The answer may take long, so the client leaves without it.
    Abandoned,
}

/// A request to send.
pub(super) struct Mutant {
    pub bytes: Vec<u8>,
    pub is_head: bool,
    pub ending: Ending,
}

/// Headers that affect how a request is parsed.
const HEADERS: [(&str, &str); 22] = [
    ("Accept", "text/html;q=0.1, */*;q=1e9"),
    ("Accept", "text/event-stream"),
    ("Accept-Encoding", "deflate"),
    ("Accept-Encoding", "gzip;q=-1, deflate;q=x"),
    ("Accept-Language", "de;q=0.5, *;q=2, ;;,"),
    ("Authorization", "Basic em9lOnpvZQ=="),
    ("Authorization", "Basic %%%"),
    ("Authorization", "Bearer"),
    ("Authorization", "Bearer \u{e9}"),
    ("Content-Type", "text/plain"),
    ("Content-Type", "application/json; charset=utf-16"),
    ("Cookie", "batzen-bank-session=AAAA; batzen-bank-session=BBBB; ;=;"),
    ("If-None-Match", "\"x\", W/\"y\", *"),
    ("If-Modified-Since", "Thu, 01 Jan 1970 00:00:00 GMT"),
    ("If-Modified-Since", "Thu, 99 Foo 99999 99:99:99 GMT"),
    ("Last-Event-ID", "18446744073709551616"),
    ("Range", "bytes=0-0,5-1"),
    ("Origin", "https://example.com"),
    ("X-Forwarded-For", "::1, 999.1.1.1, ,"),
    ("X-Forwarded-Host", "example.com:99999"),
    ("X-Forwarded-Proto", "javascript"),
    ("FSPIOP-Source", "nobody"),
];

const METHODS: [&str; 9] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "PURGE", "post"];

/// The parts of a request while it is being mutated.
struct Draft {
    method: String,
    path: String,
    query: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    encoding: Option<&'static str>,
}

impl Mutant {
    pub(super) fn unchanged(seed: &Seed) -> Self {
        Draft::new(seed, bytes(&seed.body)).finish(None)
    }

    /// The seed with something wrong, mostly in one place, sometimes in several.
    pub(super) fn new(seed: &Seed, dice: &mut Dice, pool: &Pool) -> Self {
        let body = match &seed.body {
            Body::Json(tree) if dice.chance(80) => {
                let mut tree = tree.clone();
                for _ in 0..=[0, 0, 0, 1, 2][dice.below(5)] {
                    tree.mutate(dice, pool);
                }
                let mut out = Vec::new();
                tree.write(&mut out);
                out
            }
            body => bytes(body),
        };
        let mut draft = Draft::new(seed, body);
        // Errors in the body are not reached if the head is invalid.
        let is_plain = matches!(&seed.body, Body::None) || dice.chance(25);
        if is_plain {
            match dice.below(12) {
                0..=3 => draft.change_path(dice, pool),
                4..=6 => draft.change_query(dice, pool),
                7 => dice.pick(&METHODS).clone_into(&mut draft.method),
                8 | 9 => draft.change_headers(dice, pool),
                10 => draft.change_body(dice),
                _ => draft.encode(dice),
            }
        }
        if dice.chance(3) {
            return draft.break_frame(dice);
        }
        draft.finish(None)
    }
}

/// The bytes of a request to this host.
pub(super) fn client_request(seed: &Seed, host: &str) -> Vec<u8> {
    let (body, mut out) = (bytes(&seed.body), Vec::new());
    let joint = if seed.query.is_empty() { "" } else { "?" };
    let write = &mut out;
    let _ = write!(write, "{} {}{joint}{} HTTP/1.1\r\nHost: {host}\r\n", seed.method, seed.path, seed.query);
    for (name, value) in &seed.headers {
        let _ = write!(write, "{name}: {value}\r\n");
    }
    let _ = write!(write, "Content-Length: {}\r\n\r\n", body.len());
    out.extend_from_slice(&body);
    out
}

pub(super) fn bytes(body: &Body) -> Vec<u8> {
    match body {
        Body::None => Vec::new(),
        Body::Bytes(bytes) => bytes.clone(),
        Body::Json(tree) => {
            let mut out = Vec::new();
            tree.write(&mut out);
            out
        }
    }
}

fn deflate(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("memory takes everything");
    encoder.finish().expect("memory takes everything")
}

impl Draft {
    fn new(seed: &Seed, body: Vec<u8>) -> Self {
        Self {
            method: seed.method.clone(),
            path: seed.path.clone(),
            query: seed.query.clone(),
            headers: seed.headers.clone(),
            body,
            encoding: None,
        }
    }

    fn change_path(&mut self, dice: &mut Dice, pool: &Pool) {
        let mut segments: Vec<String> = self.path.split('/').skip(1).map(str::to_owned).collect();
        let place = dice.below(segments.len().max(1));
        match dice.below(10) {
            0 => segments.push(pool.any(dice).to_owned()),
            1 if !segments.is_empty() => drop(segments.remove(place)),
            2 => segments.insert(place, String::new()),
            3 => segments.push("..".to_owned()),
            4 => segments.push("%2e%2e%2f%00%zz%".to_owned()),
            _ => {
                if let Some(segment) = segments.get_mut(place) {
                    *segment = pool.mutate(dice, segment);
                }
            }
        }
        self.path = format!("/{}", segments.join("/"));
    }

    fn change_query(&mut self, dice: &mut Dice, pool: &Pool) {
        const NAMES: [&str; 24] = [
            "timeout_ms",
            "long_poll_ms",
            "delta",
            "start",
            "limit",
            "after",
            "before",
            "last_issue_date",
            "old_age",
            "h_contract",
            "merchant_sig",
            "coin_pub",
            "reversed",
            "code",
            "timestamp_min",
            "timestamp_max",
            "debits",
            "currency",
            "type",
            "state",
            "fromDateTime",
            "participantId",
            "format",
            "old_state",
        ];
        const VALUES: [&str; 16] = [
            "0",
            "1",
            "-1",
            "-5",
            "20",
            "99999999",
            "-9223372036854775808",
            "9223372036854775808",
            "18446744073709551616",
            "",
            "x",
            "%00",
            "true",
            "1.5",
            "KUDOS:1",
            "+1",
        ];
        let mut pairs: Vec<String> =
            self.query.split('&').filter(|pair| !pair.is_empty()).map(str::to_owned).collect();
        match dice.below(5) {
            0 if !pairs.is_empty() => drop(pairs.remove(dice.below(pairs.len()))),
            1 if !pairs.is_empty() => {
                let place = dice.below(pairs.len());
                let (name, value) = pairs[place].split_once('=').unwrap_or((&pairs[place], ""));
                pairs[place] = format!("{name}={}", pool.mutate(dice, value));
            }
            2 if !pairs.is_empty() => pairs.push(pairs[dice.below(pairs.len())].clone()),
            _ => pairs.push(format!("{}={}", dice.pick(&NAMES), dice.pick(&VALUES))),
        }
        self.query = pairs.join("&");
    }

    fn change_headers(&mut self, dice: &mut Dice, pool: &Pool) {
        let place = dice.below(self.headers.len().max(1));
        match dice.below(6) {
            0 if !self.headers.is_empty() => drop(self.headers.remove(place)),
            // A wrong token is a guess, and after a few guesses the right one has to wait as well.
            1 if self.headers.get(place).is_some_and(|(_, value)| !value.starts_with("Bearer ")) => {
                let value = pool.mutate(dice, &self.headers[place].1);
                // A line break would start another header or another request.
                self.headers[place].1 = value.replace(|c: char| c.is_control(), "_");
            }
            2 if !self.headers.is_empty() => self.headers.push(self.headers[place].clone()),
            3 => self.headers.push(("X-Long".to_owned(), "x".repeat([100, 4000, 9000][dice.below(3)]))),
            _ => {
                let (name, value) = HEADERS[dice.below(HEADERS.len())];
                self.headers.push((name.to_owned(), value.to_owned()));
            }
        }
    }

    fn change_body(&mut self, dice: &mut Dice) {
        if self.body.is_empty() {
            self.body = b"{\"a\":1}".to_vec();
            return;
        }
        let place = dice.below(self.body.len());
        match dice.below(6) {
            0 => self.body.truncate(place),
            1 => self.body[place] ^= 1 << dice.below(8),
            2 => self.body.insert(place, [0, b'"', b'\\', b'{', 0xff, 0xed][dice.below(6)]),
            3 => drop(self.body.remove(place)),
            4 => self.body.extend_from_slice(&[b' ', b'}', b'1', 0][..1 + dice.below(4)]),
            _ => {
                let copy = self.body[place..].to_vec();
                self.body.extend_from_slice(&copy);
            }
        }
    }

    /// Compresses the body, and sometimes damages the result.
    fn encode(&mut self, dice: &mut Dice) {
        self.encoding =
            Some(["deflate", "deflate", "gzip", "br", "identity", "deflate, deflate"][dice.below(6)]);
        if dice.chance(5) {
            // Small input that decompresses to a lot.
            self.body = vec![b' '; [1 << 16, 1 << 20, 20 << 20][dice.below(3)]];
        }
        if dice.chance(90) {
            self.body = deflate(&self.body);
        }
        if dice.chance(60) {
            self.change_body(dice);
        }
    }

    /// Makes a request whose end is not where its head says.
    fn break_frame(self, dice: &mut Dice) -> Mutant {
        let length = self.body.len();
        let chunked = |first: &str| format!("Transfer-Encoding: chunked\r\n\r\n{first}");
        let tail = match dice.below(16) {
            0 => format!("Content-Length: {}\r\n\r\n", length + 1 + dice.below(1000)),
            1 => format!("Content-Length: {}\r\n\r\n", length / 2),
            2 => "Content-Length: -1\r\n\r\n".to_owned(),
            3 => "Content-Length: 99999999999999999999999\r\n\r\n".to_owned(),
            4 => format!("Content-Length: {length}\r\nContent-Length: {}\r\n\r\n", length + 1),
            5 => format!("Content-Length: {length}\r\n{}", chunked("0\r\n\r\n")),
            6 => chunked("ffffffffffffffff\r\n"),
            7 => chunked("5\r\nab"),
            8 => chunked("zz\r\n\r\n"),
            9 => chunked(&format!("{length:x};{}\r\n", "e".repeat(9000))),
            10 => "Transfer-Encoding: gzip, chunked\r\n\r\n".to_owned(),
            11 => format!("Expect: {}\r\n\r\n", dice.pick(&["100-continue", "200-ok"])),
            12 => "Connection: upgrade\r\nUpgrade: h2c\r\n\r\n".to_owned(),
            13 => format!("X: {}\r\n\r\n", "h".repeat(100_000)),
            14 => "no colon here\r\n\r\n".to_owned(),
            _ => "\r\n".to_owned(),
        };
        let mut mutant = self.finish(Some(&tail));
        match dice.below(24) {
            // Without even a head.
            0 => mutant.bytes = (0..dice.below(4000)).map(|_| dice.next().to_le_bytes()[0]).collect(),
            1 => mutant.bytes.truncate(dice.below(60)),
            // With two answers, the second without a body, the client could not tell them apart.
            2 if !mutant.is_head => mutant
                .bytes
                .splice(..0, *b"OPTIONS * HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: h2c\r\nHost: a\r\n\r\n")
                .for_each(drop),
            _ => {}
        }
        // Requests for a long poll, which may take a minute, are abandoned without an answer.
        if mutant.ending != Ending::Abandoned {
            mutant.ending = Ending::Broken;
        }
        mutant
    }

    /// Serialises the request; `tail` ends the head instead of the body's true length.
    fn finish(self, tail: Option<&str>) -> Mutant {
        let mut out = Vec::with_capacity(512 + self.body.len());
        let Self { method, path, query, headers, body, encoding } = self;
        let mut target = if query.is_empty() { path } else { format!("{path}?{query}") };
        // Otherwise it would be a different request.
        target.retain(|c| !matches!(c, ' ' | '\r' | '\n' | '\0'));
        let broken = tail.map_or(0, str::len);
        let write = &mut out;
        let _ = write!(write, "{method} {target} HTTP/1.{}\r\n", if broken == 2 { "0" } else { "1" });
        // Sometimes it is missing.
        if broken != 2 {
            let _ = write!(write, "Host: localhost\r\n");
        }
        for (name, value) in &headers {
            let _ = write!(write, "{name}: {value}\r\n");
        }
        if let Some(encoding) = encoding {
            let _ = write!(write, "Content-Encoding: {encoding}\r\n");
        }
        match tail {
            Some(tail) => out.extend_from_slice(tail.as_bytes()),
            None if body.is_empty() && method == "GET" => out.extend_from_slice(b"\r\n"),
            None => {
                let _ = write!(out, "Content-Length: {}\r\n\r\n", body.len());
            }
        }
        out.extend_from_slice(&body);
        let ending = if waits(&target) { Ending::Abandoned } else { Ending::Answered };
        Mutant { bytes: out, is_head: method == "HEAD", ending }
    }
}

/// Returns whether the request asks for a delayed answer.
fn waits(target: &str) -> bool {
    ["timeout_ms=", "long_poll_ms="].iter().any(|name| {
        target.split(name).skip(1).any(|rest| {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            !matches!(&rest[..digits], "" | "0" | "1")
        })
    })
}
