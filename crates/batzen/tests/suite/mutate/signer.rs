//! A signer: frames of its protocol inside the encrypted channel, and bytes that never become a channel.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey};
use batzen_signer::channel::{Channel, Connect, load_key};
use batzen_signer::frame::{
    HEADER_BYTES, Header, Hello, KEY_ID_BYTES, Kind, Side, Status, VERSION, open_blob,
};
use batzen_signer::items::KeyId;
use batzen_signer::listing::Listing;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::common::setup::{CS, RSA, coin, keygen, master_key, shared_config, wait_for};
use crate::common::{Service, free_port, must, must_json};
use crate::mutate::answer::Errors;
use crate::mutate::campaign::{self, Plan, Watched};
use crate::mutate::dice::Dice;
use crate::mutate::proxy::Proxy;
use crate::mutate::pump::Listener;
use crate::mutate::routes;
use crate::mutate::score::Score;
use crate::mutate::seeds::{Seed, Seeds};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The number of frames sent before their answers are read.
const DEPTH: usize = 16;
/// Items in one frame; the limit of a frame is sometimes reached.
const ITEMS: usize = 6;

fn config(home: &Path) -> String {
    let coins = coin("one", "1", "0", CS) + &coin("two", "1", "0", RSA);
    format!("{}{coins}[exchange]\nBASE_URL = http://localhost/\n", shared_config(home))
}

struct Signer {
    dir: tempfile::TempDir,
    port: u16,
    http_port: u16,
    key: EddsaPublicKey,
    node_key: EddsaPrivateKey,
    service: Service,
}

impl Signer {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let [key, node] = ["signer.key", "node.key"].map(|name| keygen(&path(name)));
        let offline = path("offline.conf");
        std::fs::write(&offline, config(&dir.path().join("offline"))).unwrap();
        let master = master_key(&must(&["exchange", "offline", "-c", &offline, "setup"]));
        let (port, http_port) = (free_port(), free_port());
        let text = format!(
            "{}MASTER_PUBLIC_KEY = {master}\n[signer]\nLISTEN = tcp://127.0.0.1:{port}\nKEY_FILE = {}\n\
             HTTP = 127.0.0.1:{http_port}\n[signer-node-0]\nPUBLIC_KEY = {node}\n",
            config(&dir.path().join("home")),
            path("signer.key"),
        );
        let file = path("signer.conf");
        std::fs::write(&file, text).unwrap();
        let service = Service::start(dir.path(), "signer", &["signer", "serve", "-c", &file]);
        wait_for(http_port, "/ready");
        let node_key = load_key(&dir.path().join("node.key")).unwrap();
        Self { port, http_port, key: key.parse().unwrap(), node_key, service, dir }
    }

    fn connect(&self) -> Connect {
        Connect::new(&self.node_key, vec![self.key]).unwrap()
    }
}

/// A connection after the hello, with the known keys.
struct Link {
    channel: Channel,
    id: u64,
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

impl Link {
    async fn open(connect: &Connect, port: u16) -> Result<Self, String> {
        let address = format!("tcp://127.0.0.1:{port}").parse().unwrap();
        let mut channel = connect.connect(&address, ANSWER_TIMEOUT).await.map_err(text)?;
        let mut out = Header::request(Kind::Hello, 0, 1, 0).to_bytes().to_vec();
        out.extend_from_slice(&Hello { version: VERSION, items_max: 0, keys_version: 0 }.to_bytes());
        channel.write_all(&out).await.map_err(text)?;
        channel.flush().await.map_err(text)?;
        let mut link = Self { channel, id: 0 };
        match link.frame().await? {
            Some((header, _)) if header.kind == Kind::Hello && header.status == Status::Done => Ok(link),
            other => Err(format!("no hello: {:?}", other.map(|(header, _)| header))),
        }
    }

    /// The next answer, whose header must be valid. `None` at the end.
    async fn frame(&mut self) -> Result<Option<(Header, Vec<u8>)>, String> {
        let mut head = [0; HEADER_BYTES];
        let reading = async {
            if self.channel.read_exact(&mut head).await.is_err() {
                return Ok(None);
            }
            let header =
                Header::from_bytes(&head, Side::Answer).map_err(|_| format!("an answer {head:?}"))?;
            let mut body = vec![0; header.body];
            match self.channel.read_exact(&mut body).await {
                Ok(_) => Ok(Some((header, body))),
                Err(error) => Err(format!("an answer without its body: {error}")),
            }
        };
        timeout(ANSWER_TIMEOUT, reading).await.map_err(|_| "no answer".to_owned())?
    }

    async fn ask(&mut self, kind: Kind, body: &[u8]) -> Result<Vec<u8>, String> {
        let header = Header::request(kind, 0, 1, u64::MAX);
        self.channel.write_all(&header.to_bytes()).await.map_err(text)?;
        self.channel.write_all(body).await.map_err(text)?;
        self.channel.flush().await.map_err(text)?;
        let (header, body) = self.frame().await?.ok_or("the connection was closed")?;
        if header.status == Status::Done { Ok(body) } else { Err(format!("{:?}", header.status)) }
    }
}

/// Names of keys to use in items.
#[derive(Default)]
struct Keys {
    ids: Vec<[u8; KEY_ID_BYTES]>,
    public: Vec<[u8; KEY_ID_BYTES]>,
}

impl Keys {
    /// Waits until the signer has created its keys.
    async fn of(link: &mut Link) -> Self {
        loop {
            let blob = link.ask(Kind::Listing, &[0; 16]).await;
            let listing = blob.as_ref().ok().and_then(|blob| Listing::decode(open_blob(blob).ok()?).ok());
            if let Some(listing) = listing
                && listing.denoms.len() >= 2
                && !listing.signing.is_empty()
            {
                return Self {
                    ids: listing.denoms.iter().map(|denom| KeyId::of(&denom.h_bare).0).collect(),
                    public: listing.signing.iter().map(|key| *key.exchange_pub.as_bytes()).collect(),
                };
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn pick(&self, dice: &mut Dice, kind: Kind) -> [u8; KEY_ID_BYTES] {
        let list = if matches!(kind, Kind::Eddsa | Kind::RevokeSigning) { &self.public } else { &self.ids };
        let mut key = list[dice.below(list.len())];
        if dice.chance(5) {
            key[dice.below(KEY_ID_BYTES)] ^= 1;
        }
        key
    }
}

/// A request with an irregularity, mostly in the items.
fn mutated(dice: &mut Dice, keys: &Keys, id: u64) -> Vec<u8> {
    // Nodes may not send a promotion, and a second hello ends the connection.
    let kind = loop {
        let kind = Kind::ALL[dice.below(Kind::ALL.len())];
        if kind != Kind::Hello || dice.chance(20) {
            break kind;
        }
    };
    let modulus = if kind == Kind::Rsa { [128, 128, 128, 256, 16, 2048][dice.below(6)] } else { 0 };
    let limit = kind.items().end - 1;
    let count = if dice.below(3000) == 0 { limit } else { 1 + dice.below(ITEMS.min(limit)) };
    let size = kind.request_item(modulus);
    let mut body = Vec::with_capacity(count * size);
    for _ in 0..count {
        let start = body.len();
        let filling = [0, 1, 0xff, dice.next().to_le_bytes()[0]][dice.below(4)];
        body.resize(start + size, filling);
        if size > KEY_ID_BYTES && kind != Kind::Hello {
            body[start..start + KEY_ID_BYTES].copy_from_slice(&keys.pick(dice, kind));
        }
        if let Some(rest) = body.get_mut(start + KEY_ID_BYTES..).filter(|_| dice.chance(80)) {
            if matches!(kind, Kind::Values | Kind::Cs | Kind::Eddsa) {
                rest[..8]
                    .copy_from_slice(&[[1, 0, 0, 0, 0, 0, 0, 0], [2, 0, 0, 0, 0, 0, 0, 0]][dice.below(2)]);
            }
            if kind == Kind::Eddsa {
                // A length, then the message, which contains its own size and a purpose.
                let length = 8 * dice.below(40) as u32;
                rest[..4].copy_from_slice(&length.to_le_bytes());
                rest[4..8].fill(0);
                rest[8..12].copy_from_slice(&length.to_be_bytes());
                rest[12..16].copy_from_slice(&(1030 + dice.below(20) as u32).to_be_bytes());
            }
        }
    }
    // A listing that is not new would make the signer wait.
    if kind == Kind::Listing {
        body[..8].copy_from_slice(&(dice.next() | 1).to_le_bytes());
    }
    let header = Header { kind, status: Status::Done, modulus, count, id, body: body.len() };
    let mut bytes = header.to_bytes().to_vec();
    bytes.extend_from_slice(&body);
    match dice.below(60) {
        0 => bytes[dice.below(HEADER_BYTES)] ^= 1 << dice.below(8),
        1 => bytes.truncate(dice.below(bytes.len())),
        2 => bytes = (0..dice.below(600)).map(|_| dice.next().to_le_bytes()[0]).collect(),
        3 => bytes[4..8].copy_from_slice(&[0, 1, 255, u8::MAX]),
        4 => bytes[16..20].copy_from_slice(&u32::MAX.to_le_bytes()),
        5..=15 => {
            let at = HEADER_BYTES + dice.below(bytes.len() - HEADER_BYTES);
            bytes[at] ^= 1 << dice.below(8);
        }
        _ => {}
    }
    bytes
}

/// The number of whole requests at the start of these bytes, if the rest is not a request.
fn is_whole(bytes: &[u8], kind: &mut Option<Kind>) -> bool {
    let Some(head) = bytes.first_chunk::<HEADER_BYTES>() else { return false };
    let Ok(header) = Header::from_bytes(head, Side::Request) else { return false };
    *kind = Some(header.kind);
    header.kind != Kind::Hello && bytes.len() == HEADER_BYTES + header.body
}

/// Sends requests over one connection after another.
async fn attack(
    signer: &Signer,
    plan: &Plan,
    keys: &Keys,
    score: &mut Score,
    dice: &mut Dice,
    garbage_at: &mut Instant,
) {
    let connect = signer.connect();
    let mut open: Option<Link> = None;
    let until = (score.sent + 2000).min(plan.requests);
    while score.sent < until {
        // An address with more failed handshakes than this is refused for a while.
        if dice.chance(1) && garbage_at.elapsed() > Duration::from_secs(1) {
            garbage(signer, dice);
            *garbage_at = Instant::now();
            score.sent(0, 0);
        }
        let mut link = match open.take() {
            Some(link) => link,
            None => match Link::open(&connect, signer.port).await {
                Ok(link) => link,
                Err(what) => plan.fail_with(what, Vec::new(), score.sent),
            },
        };
        let (mut bytes, mut awaited, mut ends) = (Vec::new(), Vec::new(), false);
        for _ in 0..=dice.below(DEPTH) {
            link.id += 1;
            let request = mutated(dice, keys, link.id);
            bytes.extend_from_slice(&request);
            score.sent(0, 0);
            let mut kind = None;
            if !is_whole(&request, &mut kind) {
                ends = true;
                break;
            }
            awaited.push(u64::from_le_bytes(request[8..16].try_into().unwrap()));
        }
        // An invalid request ends the connection, even between the items of one whole request.
        let _ = link.channel.write_all(&bytes).await;
        let _ = link.channel.flush().await;
        if ends {
            let _ = link.channel.shutdown().await;
        }
        loop {
            if !ends && awaited.is_empty() {
                open = Some(link);
                break;
            }
            match link.frame().await {
                Ok(Some((header, _))) => {
                    awaited.retain(|id| *id != header.id);
                    score.answered(
                        0,
                        0,
                        if header.status == Status::Done { 200 } else { 400 + header.status as u16 },
                    );
                    if header.status == Status::Failed {
                        let what = "the signer says that it has failed".to_owned();
                        plan.fail_with(what, bytes, score.sent);
                    }
                }
                Ok(None) => {
                    // One request has ended the connection. Those after it were not read.
                    let unread = awaited.len() - usize::from(!ends && !awaited.is_empty());
                    (0..unread).for_each(|_| score.unread(0, 0));
                    break;
                }
                Err(what) => plan.fail_with(what, bytes, score.sent),
            }
        }
    }
}

/// Sends bytes that were saved at a failure, and shows the answers.
async fn replay(signer: &Signer, bytes: &[u8]) {
    let mut link = Link::open(&signer.connect(), signer.port).await.unwrap();
    let _ = link.channel.write_all(bytes).await;
    let _ = link.channel.flush().await;
    let _ = link.channel.shutdown().await;
    while let Some((header, _)) = link.frame().await.unwrap() {
        println!("{header:?}");
    }
}

/// Bytes that are not a handshake, or only the beginning of one.
fn garbage(signer: &Signer, dice: &mut Dice) {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", signer.port)) else { return };
    let mut bytes: Vec<u8> = (0..dice.below(700)).map(|_| dice.next().to_le_bytes()[0]).collect();
    if dice.chance(70) {
        // A handshake record, judging by its first bytes.
        let length = u16::try_from(bytes.len()).unwrap().to_be_bytes();
        bytes.splice(..0, [22, 3, 1, length[0], length[1], 1, 0, 0, length[1], 3, 3]);
    }
    let _ = stream.write_all(&bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let _ = stream.read(&mut [0; 512]);
}

/// It still signs for its node, and still has its keys.
async fn prove(signer: Signer, keys: &Keys) {
    let mut link = Link::open(&signer.connect(), signer.port).await.unwrap();
    let after = Keys::of(&mut link).await;
    assert!(keys.ids.iter().all(|id| after.ids.contains(id)), "a denomination key is gone");
    assert!(keys.public.iter().all(|id| after.public.contains(id)), "a signing key is gone");
    let mut nonce = vec![0; Kind::Values.request_item(0)];
    let mut signed = false;
    for id in &after.ids {
        nonce[..KEY_ID_BYTES].copy_from_slice(id);
        nonce[KEY_ID_BYTES] = 1;
        nonce[KEY_ID_BYTES + 8..].fill(7);
        // Only keys of Clause Schnorr coins answer this.
        signed |= link.ask(Kind::Values, &nonce).await.is_ok_and(|answer| answer[0] == 0);
    }
    assert!(signed, "no key answers a nonce");
    let (status, _) = signer.service.terminate();
    assert!(status.success(), "{status}");
}

#[test]
fn signer_survives_mutation() {
    let plan = Plan::new("signer");
    let mut signer = Signer::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let keys = runtime
        .block_on(async { Keys::of(&mut Link::open(&signer.connect(), signer.port).await.unwrap()).await });
    let log = signer.dir.path().join("signer.log");
    if let Some(bytes) = plan.replay() {
        runtime.block_on(replay(&signer, &bytes));
        let mut watched = Watched { service: &mut signer.service, log };
        return watched.judge(&mut Score::new()).unwrap_or_else(|what| panic!("{what}"));
    }
    let mut garbage_at = Instant::now();
    let (mut dice, mut score, mut looked) = (Dice::new(plan.seed), Score::new(), 0);
    while score.sent < plan.requests {
        runtime.block_on(attack(&signer, &plan, &keys, &mut score, &mut dice, &mut garbage_at));
        let mut watched = Watched { service: &mut signer.service, log: log.clone() };
        plan.look(&mut watched, &mut score, &mut looked, &[]);
    }
    plan.finish(&mut Watched { service: &mut signer.service, log }, &mut score);
    runtime.block_on(prove(signer, &keys));
}

/// The HTTP pages of a signer.
#[test]
fn signer_pages_survives_mutation() {
    let mut plan = Plan::new("signer_pages");
    // There are few endpoints to cover.
    plan.requests = plan.requests.min(100_000);
    let mut signer = Signer::new();
    let (table, proxy) = (batzen_signer::page::endpoints(), Proxy::start(signer.http_port));
    proxy.visit(&routes::of(table.clone()), "", &[]);
    proxy.ask(Seed::new("GET", "/keys"));
    let seeds = Seeds::recorded(table, &proxy, &[]);
    let address = ([127, 0, 0, 1], signer.http_port).into();
    let listeners = [Listener { address, errors: Errors::Code, seeds }];
    let log = signer.dir.path().join("signer.log");
    campaign::run(&plan, &listeners, &mut Watched { service: &mut signer.service, log });
    let config = signer.dir.path().join("signer.conf");
    let value = must_json(&["signer", "status", "-c", config.to_str().unwrap(), "--json"]);
    assert!(value["signers"][0]["status"].is_object(), "{value}");
}
