//! Slightly invalid frames of the ledger's binary protocol (`docs/ledger-protocol.md`).

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use batzen_ledger_service::store::system_clock;

use crate::mutate::campaign::{Plan, Watched};
use crate::mutate::dice::Dice;
use crate::mutate::score::Score;

const HEADER_BYTES: usize = 24;
const BODY_BYTES_MAX: usize = 1_048_192;
/// The number of frames sent before their answers are read.
const DEPTH: usize = 64;
const CONNECTIONS: usize = 6;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Every kind of request, and the size of one record in its body.
const KINDS: [(u16, usize); 10] =
    [(2, 0), (16, 128), (17, 128), (18, 16), (19, 16), (20, 80), (21, 80), (22, 64), (23, 64), (24, 64)];

fn frame(kind: u16, status: u16, number: u64, body: &[u8]) -> Vec<u8> {
    let mut out = vec![0; HEADER_BYTES];
    out[4..8].copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
    out[8..12].copy_from_slice(&u32::try_from(body.len()).unwrap().to_le_bytes());
    out[12..14].copy_from_slice(&kind.to_le_bytes());
    out[14..16].copy_from_slice(&status.to_le_bytes());
    out[16..24].copy_from_slice(&number.to_le_bytes());
    seal(&mut out);
    out.extend_from_slice(body);
    out
}

/// Fills in the header's checksum.
fn seal(header: &mut [u8]) {
    let checksum = crc32c::crc32c(&header[4..HEADER_BYTES]);
    header[..4].copy_from_slice(&checksum.to_le_bytes());
}

fn hello() -> Vec<u8> {
    let mut body = [0; 24];
    body[..8].copy_from_slice(b"BTZLEDGR");
    body[8..10].copy_from_slice(&1u16.to_le_bytes());
    body[10..12].copy_from_slice(&1u16.to_le_bytes());
    body[16..20].copy_from_slice(&u32::try_from(BODY_BYTES_MAX).unwrap().to_le_bytes());
    frame(1, 0, 0, &body)
}

/// An id that is likely to occur again.
fn id(dice: &mut Dice) -> u128 {
    match dice.below(20) {
        0 => 0,
        1 => u128::MAX,
        2 => u128::MAX - 1,
        3..=6 => u128::from(dice.next()),
        _ => 1 + dice.below(200) as u128,
    }
}

fn number(dice: &mut Dice) -> u64 {
    match dice.below(10) {
        0..=4 => 0,
        5 => 1,
        6 => u64::MAX,
        7 => u64::MAX - 1,
        _ => dice.next(),
    }
}

fn account(dice: &mut Dice, out: &mut Vec<u8>) {
    out.extend_from_slice(&id(dice).to_le_bytes());
    // The balances, which must be 0.
    let balances = if dice.chance(3) { u128::from(dice.next()) } else { 0 };
    out.extend_from_slice(&balances.to_le_bytes());
    out.extend_from_slice(&[0; 48]);
    user_data(dice, out);
    let ledger = if dice.chance(95) { 1 } else { dice.below(3) as u32 };
    out.extend_from_slice(&(u32::from(dice.chance(2))).to_le_bytes());
    out.extend_from_slice(&ledger.to_le_bytes());
    out.extend_from_slice(&(dice.below(20) as u16).to_le_bytes());
    let flags = if dice.chance(70) { 0 } else { dice.below(1 << 7) as u16 };
    out.extend_from_slice(&flags.to_le_bytes());
    out.extend_from_slice(&(if dice.chance(95) { 0 } else { number(dice) }).to_le_bytes());
}

fn transfer(dice: &mut Dice, out: &mut Vec<u8>) {
    for _ in 0..3 {
        out.extend_from_slice(&id(dice).to_le_bytes());
    }
    let amount = if dice.chance(80) { dice.below(1000) as u128 } else { id(dice) };
    out.extend_from_slice(&amount.to_le_bytes());
    let flags = if dice.chance(50) { 0 } else { dice.below(1 << 9) as u16 };
    let pending = if flags & 12 == 0 && dice.chance(95) { 0 } else { id(dice) };
    out.extend_from_slice(&pending.to_le_bytes());
    user_data(dice, out);
    let timeout = if flags & 2 == 0 { 0 } else { number(dice) as u32 };
    out.extend_from_slice(&timeout.to_le_bytes());
    out.extend_from_slice(&(if dice.chance(95) { 1u32 } else { 2 }).to_le_bytes());
    out.extend_from_slice(&(dice.below(20) as u16).to_le_bytes());
    out.extend_from_slice(&flags.to_le_bytes());
    out.extend_from_slice(&(if dice.chance(95) { 0 } else { number(dice) }).to_le_bytes());
}

fn user_data(dice: &mut Dice, out: &mut Vec<u8>) {
    out.extend_from_slice(&u128::from(number(dice)).to_le_bytes());
    out.extend_from_slice(&number(dice).to_le_bytes());
    out.extend_from_slice(&(number(dice) as u32).to_le_bytes());
}

/// The nanoseconds that a search usually goes back: one that nothing matches reads its whole period.
const SEARCH_NS: u64 = 20_000_000;

/// A filter: zeros with numbers at random places.
fn filter(dice: &mut Dice, kind: u16, size: usize, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + size, 0);
    if size == 80 {
        let id = id(dice);
        out[start..start + 16].copy_from_slice(&id.to_le_bytes());
    }
    for _ in 0..dice.below(4) {
        let at = start + 4 * dice.below(size / 4);
        let value = number(dice) as u32;
        out[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    // The first timestamp and the limit.
    let (from, at) = match kind {
        20 | 21 => (start + 40, start + 60),
        24 => (start, start + 16),
        _ => (start + 24, start + 44),
    };
    if dice.chance(95) {
        out[from..from + 8].copy_from_slice(&(system_clock() - SEARCH_NS).to_le_bytes());
    }
    // Answers of a megabyte would take up most of the time.
    let limit =
        if dice.chance(1) { [8189, 8190, u32::MAX][dice.below(3)] } else { [0, 1, 10, 20][dice.below(4)] };
    out[at..at + 4].copy_from_slice(&limit.to_le_bytes());
}

fn body(dice: &mut Dice, kind: u16, size: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let count = match dice.below(2000) {
        0 => 8189,
        1..=200 => 0,
        201..=300 => 50,
        _ => 1 + dice.below(8),
    };
    match kind {
        16 => (0..count).for_each(|_| account(dice, &mut out)),
        17 => (0..count).for_each(|_| transfer(dice, &mut out)),
        18 | 19 => (0..count).for_each(|_| out.extend_from_slice(&id(dice).to_le_bytes())),
        20..=24 => filter(dice, kind, size, &mut out),
        _ => {}
    }
    out
}

/// The expected answer to a frame: its number and kind, or the end of the connection.
enum Expected {
    Answer(u64),
    End,
}

/// A frame mutated in one of several ways.
fn mutated(dice: &mut Dice, number: u64) -> (Vec<u8>, Expected) {
    let (kind, size) = KINDS[dice.below(KINDS.len())];
    let mut body = body(dice, kind, size);
    if dice.chance(30) && !body.is_empty() {
        let place = dice.below(body.len());
        match dice.below(5) {
            0 => body.truncate(place),
            1 => body[place] ^= 1 << dice.below(8),
            2 => body.push(0),
            3 => body.insert(place, 0xff),
            _ => body[place] = 0xff,
        }
    }
    let mut bytes = frame(kind, 0, number, &body);
    match dice.below(60) {
        0 => {
            let status = 1 + dice.below(9) as u16;
            (frame(kind, status, number, &body), Expected::End)
        }
        1 => (frame([0, 1, 3, 15, 25, 999, u16::MAX][dice.below(7)], 0, number, &body), Expected::End),
        2 => {
            let at = dice.below(bytes.len());
            bytes[at] ^= 1 << dice.below(8);
            (bytes, Expected::End)
        }
        3 => {
            // A wrong size under a correct checksum.
            let size = [0, body.len() + 1, BODY_BYTES_MAX + 1, u32::MAX as usize][dice.below(4)] as u32;
            bytes[8..12].copy_from_slice(&size.to_le_bytes());
            seal(&mut bytes);
            (bytes, Expected::End)
        }
        4 => {
            bytes.truncate(dice.below(bytes.len()));
            (bytes, Expected::End)
        }
        5 => ((0..dice.below(300)).map(|_| dice.next() as u8).collect(), Expected::End),
        6 => (hello(), Expected::End),
        _ => (bytes, Expected::Answer(number)),
    }
}

struct Link {
    stream: TcpStream,
    input: Vec<u8>,
    /// The number of bytes consumed.
    taken: usize,
    part: Vec<u8>,
}

impl Link {
    fn open(port: u16) -> Result<Self, String> {
        let stream = TcpStream::connect(("127.0.0.1", port)).map_err(|error| error.to_string())?;
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).unwrap();
        let mut link = Self { stream, input: Vec::new(), taken: 0, part: vec![0; 64 << 10] };
        link.stream.write_all(&hello()).map_err(|error| error.to_string())?;
        let (_, kind, status) = link.frame()?.ok_or("no hello")?;
        if (kind, status) == (1, 0) {
            Ok(link)
        } else {
            Err(format!("a hello of kind {kind}, status {status}"))
        }
    }

    /// The next frame: number, kind and status. `None` at the end.
    fn frame(&mut self) -> Result<Option<(u64, u16, u16)>, String> {
        loop {
            let input = &self.input[self.taken..];
            if let Some(header) = input.get(..HEADER_BYTES) {
                let number = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
                if number(0) != crc32c::crc32c(&header[4..]) {
                    return Err("an answer with a wrong checksum".to_owned());
                }
                let size = number(8) as usize;
                let half = |at: usize| u16::from_le_bytes(header[at..at + 2].try_into().unwrap());
                let (kind, status) = (half(12), half(14));
                let id = u64::from_le_bytes(header[16..24].try_into().unwrap());
                if size > BODY_BYTES_MAX || status > 7 {
                    return Err(format!("an answer with status {status} and {size} bytes"));
                }
                if let Some(body) = input.get(HEADER_BYTES..HEADER_BYTES + size) {
                    if number(4) != crc32c::crc32c(body) {
                        return Err("an answer whose body has a wrong checksum".to_owned());
                    }
                    if status != 0 && std::str::from_utf8(body).is_err() {
                        return Err("an error that is no sentence".to_owned());
                    }
                    self.taken += HEADER_BYTES + size;
                    return Ok(Some((id, kind, status)));
                }
            }
            self.input.drain(..self.taken);
            self.taken = 0;
            match self.stream.read(&mut self.part) {
                Ok(0) => return Ok(None),
                Ok(count) => self.input.extend_from_slice(&self.part[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(format!("no answer: {error}")),
            }
        }
    }
}

/// Sends the frames of a plan.
pub(super) fn run(plan: &Plan, port: u16, watched: &mut Watched<'_>) {
    if let Some(bytes) = plan.replay() {
        let mut link = Link::open(port).unwrap();
        let _ = link.stream.write_all(&bytes);
        let _ = link.stream.shutdown(Shutdown::Write);
        while let Some((number, kind, status)) = link.frame().unwrap() {
            println!("frame {number}, kind {kind}, status {status}");
        }
        return watched.judge(&mut Score::new()).unwrap_or_else(|what| panic!("{what}"));
    }
    let mut dice = Dice::new(plan.seed);
    let mut score = Score::new();
    let mut done = BTreeSet::new();
    let mut links: Vec<Option<Link>> = (0..CONNECTIONS).map(|_| None).collect();
    let (mut number, mut looked) = (0, 0);
    while score.sent < plan.requests {
        let mut batches = Vec::new();
        for link in &mut links {
            let (mut bytes, mut expected, mut ends) = (Vec::new(), Vec::new(), false);
            for _ in 0..=dice.below(DEPTH) {
                number += 1;
                let (frame, awaited) = mutated(&mut dice, number);
                bytes.extend_from_slice(&frame);
                score.sent(0, 0);
                match awaited {
                    Expected::Answer(number) => expected.push(number),
                    Expected::End => ends = true,
                }
                if ends || bytes.len() > 1 << 20 {
                    break;
                }
            }
            let mut opened = match link.take().map_or_else(|| Link::open(port), Ok) {
                Ok(link) => link,
                Err(what) => plan.fail_with(what, bytes, score.sent),
            };
            // It may have been closed after an invalid frame.
            let _ = opened.stream.write_all(&bytes);
            if ends {
                let _ = opened.stream.shutdown(Shutdown::Write);
            }
            batches.push((opened, bytes, expected, ends));
        }
        for (link, (mut opened, bytes, mut expected, ends)) in links.iter_mut().zip(batches) {
            while ends || !expected.is_empty() {
                let what = match opened.frame() {
                    // Answers that precede the end of the connection may be lost with it.
                    Ok(None) if ends => break,
                    Ok(None) => "the connection was closed".to_owned(),
                    Ok(Some((_, 1, status))) if ends && status > 0 => continue,
                    Ok(Some((id, kind, status))) => {
                        if status == 0 {
                            done.insert(kind);
                        }
                        expected.retain(|number| *number != id);
                        score.answered(0, 0, if status == 0 { 200 } else { 400 + status });
                        continue;
                    }
                    Err(what) => what,
                };
                plan.fail_with(what, bytes, score.sent);
            }
            if !ends {
                *link = Some(opened);
            }
        }
        plan.look(watched, &mut score, &mut looked, &[]);
    }
    plan.finish(watched, &mut score);
    assert!(
        plan.requests < 2_000 || KINDS.iter().all(|(kind, _)| done.contains(kind)),
        "only requests of kinds {done:?} succeeded"
    );
}

/// The kinds match those of the program.
#[test]
fn kinds_of_the_ledger_are_complete() {
    use batzen_ledger_service::net::frame::Kind;
    let of_program: Vec<u16> = (0..=u16::MAX)
        .filter_map(Kind::from_number)
        .filter(|kind| *kind != Kind::Hello)
        .map(|kind| kind as u16)
        .collect();
    assert_eq!(of_program, KINDS.map(|(kind, _)| kind));
}
