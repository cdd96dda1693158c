//! The feed between an exchange and its auditor: a hostile auditor, and a relay between both that changes messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use batzen_crypto::EddsaPrivateKey;
use batzen_http::Socket;
use batzen_signer::channel::{Accept, Channel, Connect};
use batzen_tables::exchange::AUDITED;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::common::free_port;
use crate::mutate::campaign::{Plan, Watched};
use crate::mutate::dice::Dice;
use crate::mutate::score::Score;

const HEADER_BYTES: usize = 5;
/// The most bytes of a message's body.
const BODY_BYTES_MAX: usize = 65 << 20;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Messages of a hostile auditor on one connection.
const DEPTH: usize = 16;
/// Answers that a hostile auditor reads of a connection. The exchange ships everything to whoever greets it properly.
const ANSWERS: usize = 8;
/// Kinds of answers, from a welcome to a digest.
const ANSWER_KINDS: std::ops::RangeInclusive<u8> = 65..=71;
const REFUSAL: u8 = 66;
/// The greeting of an auditor; and the welcome, the refusal and the digest of an exchange. The auditor's report is right to
/// quote what these say, so their content is not changed.
const STATEMENTS: [u8; 4] = [1, 65, REFUSAL, 71];

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[kind][..], &length, body].concat()
}

fn bytes(dice: &mut Dice, count: usize) -> Vec<u8> {
    (0..count).map(|_| dice.next().to_le_bytes()[0]).collect()
}

/// Reads a message: kind and body. `None` at the end.
async fn read(from: &mut (impl AsyncRead + Unpin)) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; HEADER_BYTES];
    from.read_exact(&mut head).await.ok()?;
    let [kind, length @ ..] = head;
    let length = u32::from_be_bytes(length) as usize;
    assert!(length <= BODY_BYTES_MAX, "a message of {length} bytes");
    let mut body = vec![0; length];
    from.read_exact(&mut body).await.ok()?;
    Some((kind, body))
}

/// A relay between an auditor and an exchange, with the keys of both.
pub(super) struct Relay {
    pub port: u16,
    /// Whether it changes messages.
    pub changes: Arc<AtomicBool>,
    /// Number of changed messages.
    pub changed: Arc<AtomicU64>,
}

/// The state that both directions of a relay share.
#[derive(Clone)]
struct Changes(Arc<AtomicBool>, Arc<AtomicU64>);

impl Relay {
    pub(super) fn start(exchange_port: u16, exchange: EddsaPrivateKey, auditor: EddsaPrivateKey) -> Self {
        let (port, changes, changed) = (free_port(), Arc::default(), Arc::default());
        let shared = Changes(Arc::clone(&changes), Arc::clone(&changed));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind(("127.0.0.1", port))).unwrap();
        let accept = Accept::new(&exchange, vec![auditor.public_key()]).unwrap();
        let connect = Connect::new(&auditor, vec![exchange.public_key()]).unwrap();
        let target = format!("tcp://127.0.0.1:{exchange_port}").parse().unwrap();
        std::thread::spawn(move || {
            runtime.block_on(async {
                for number in 0.. {
                    let (stream, peer) = listener.accept().await.unwrap();
                    let accepted = accept.accept(Socket::Tcp(stream, peer), ANSWER_TIMEOUT).await;
                    let connected = connect.connect(&target, ANSWER_TIMEOUT).await;
                    if let (Ok((auditor, _)), Ok(exchange)) = (accepted, connected) {
                        carry_both(auditor, exchange, &shared, number).await;
                    }
                }
            });
        });
        Self { port, changes, changed }
    }
}

/// Carries messages until one side ends.
async fn carry_both(auditor: Channel, exchange: Channel, shared: &Changes, number: u64) {
    let (from_auditor, to_auditor) = tokio::io::split(auditor);
    let (from_exchange, to_exchange) = tokio::io::split(exchange);
    tokio::select! {
        () = carry(from_auditor, to_exchange, shared, Dice::new(2 * number)) => {}
        () = carry(from_exchange, to_auditor, shared, Dice::new(2 * number + 1)) => {}
    }
}

async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    Changes(changes, changed): &Changes,
    mut dice: Dice,
) {
    while let Some((kind, body)) = read(&mut from).await {
        let out = if changes.load(Ordering::Relaxed) && dice.chance(30) {
            changed.fetch_add(1, Ordering::Relaxed);
            altered(&mut dice, kind, body)
        } else {
            message(kind, &body)
        };
        if to.write_all(&out).await.is_err() || to.flush().await.is_err() {
            return;
        }
    }
}

/// A message with something wrong.
fn altered(dice: &mut Dice, kind: u8, mut body: Vec<u8>) -> Vec<u8> {
    let choice = if STATEMENTS.contains(&kind) { 1 + dice.below(2) } else { dice.below(8) };
    match choice {
        0 => body.truncate(dice.below(body.len().max(1))),
        1 => return message(kind, &body)[..dice.below(HEADER_BYTES)].to_vec(),
        2 => {
            let mut out = message(kind, &body);
            out[1..HEADER_BYTES].fill(0xff);
            return out;
        }
        3 => return message([0, 5, 64, 67, 68, 69, 70, 72, 255][dice.below(9)], &body),
        4 => body = bytes(dice, 200),
        5 => body.extend(bytes(dice, 1)),
        _ if !body.is_empty() => {
            let at = dice.below(body.len());
            body[at] ^= 1 << dice.below(8);
        }
        _ => body.push(0),
    }
    message(kind, &body)
}

/// The greeting of an auditor, as a body.
fn hello(dice: &mut Dice) -> Vec<u8> {
    let seen = dice.chance(50);
    let mut body = vec![0, 1, u8::from(dice.chance(20)), u8::from(seen)];
    if seen {
        // Store, number, head, whole seconds in microseconds, signature.
        body.extend(bytes(dice, 16));
        body.extend((1 + dice.below(300) as u64).to_be_bytes());
        body.extend(bytes(dice, 32));
        body.extend((dice.below(1 << 30) as u64 * 1_000_000).to_be_bytes());
        body.extend(bytes(dice, 64));
    }
    AUDITED.iter().for_each(|table| body.extend(table.id.to_be_bytes()));
    body
}

/// A message of a hostile auditor after its greeting.
fn request(dice: &mut Dice) -> Vec<u8> {
    let kind = [1, 2, 2, 3, 4][dice.below(5)];
    let body = match kind {
        1 => hello(dice),
        2 => bytes(dice, 128),
        _ => Vec::new(),
    };
    if dice.chance(30) { altered(dice, kind, body) } else { message(kind, &body) }
}

/// Greets, sends requests, and checks the form of the answers.
async fn visit(connect: &Connect, port: u16, sent: &[u8], score: &mut Score) -> Result<(), String> {
    let address = format!("tcp://127.0.0.1:{port}").parse().unwrap();
    let mut channel = connect.connect(&address, ANSWER_TIMEOUT).await.map_err(|error| error.to_string())?;
    // An invalid message ends the connection.
    let _ = channel.write_all(sent).await;
    let _ = channel.flush().await;
    let _ = channel.shutdown().await;
    for _ in 0..ANSWERS {
        let answer = timeout(ANSWER_TIMEOUT, read(&mut channel)).await;
        match answer.map_err(|_| "no answer".to_owned())? {
            None => break,
            Some((REFUSAL, body)) => score.answered(0, 0, 400 + u16::from(*body.first().ok_or("no reason")?)),
            Some((kind, _)) if ANSWER_KINDS.contains(&kind) => score.answered(0, 0, 200),
            Some((kind, _)) => return Err(format!("an answer of kind {kind}")),
        }
    }
    Ok(())
}

/// Sends an exchange the requests of a plan, as an auditor with this key.
pub(super) fn attack(plan: &Plan, port: u16, connect: &Connect, watched: &mut Watched<'_>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (mut dice, mut score, mut looked) = (Dice::new(plan.seed), Score::new(), 0);
    let replay = plan.replay();
    while score.sent < plan.requests {
        let greeting = hello(&mut dice);
        let mut out = if dice.chance(40) { altered(&mut dice, 1, greeting) } else { message(1, &greeting) };
        score.sent(0, 0);
        for _ in 0..dice.below(DEPTH) {
            out.extend(request(&mut dice));
            score.sent(0, 0);
        }
        let out = replay.clone().unwrap_or(out);
        if let Err(what) = runtime.block_on(visit(connect, port, &out, &mut score)) {
            plan.fail_with(what, out, score.sent);
        }
        plan.look(watched, &mut score, &mut looked, &out);
        if replay.is_some() {
            break;
        }
    }
    plan.finish(watched, &mut score);
}
