//! A tiny switch for testing the simulators: it keeps transfers in a map, checks fulfilments, lets transfers
//! expire and passes messages on. It keeps nothing when it ends, and has no money.

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use batzen_http::codec::{frame_request, frame_response};
use serde_json::{Value, json};

use crate::participants::{MESSAGE_LIMITS, ilp};

/// The faults of the relay.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// One in this many requests is refused with 503 and ignored; 0: none.
    pub(crate) overload_every: u64,
    /// After this many requests a connection is closed, once the request was accepted but before the answer;
    /// 0: never.
    pub(crate) cut_every: u64,
    /// Whether callbacks about the end of a transfer are sent twice.
    pub(crate) repeats_callbacks: bool,
    /// Whether the payer gets no callback and has to query.
    pub(crate) is_mute: bool,
}

struct Transfer {
    prepare: Value,
    body: Vec<u8>,
    expires: Instant,
    state: &'static str,
    /// The payee's message.
    answer: Option<Vec<u8>>,
    /// The final callbacks to the payer.
    end: Option<(String, Vec<u8>)>,
}

struct RelayState {
    faults: Faults,
    requests: AtomicU64,
    transfers: Mutex<HashMap<String, Transfer>>,
    callbacks: BTreeMap<String, mpsc::Sender<Vec<u8>>>,
}

/// A running relay. Its threads end with the process.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    listener: TcpListener,
    state: Option<Arc<RelayState>>,
    faults: Faults,
}

impl Relay {
    pub(crate) fn bind(faults: Faults) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Self { address: listener.local_addr().unwrap(), listener, state: None, faults }
    }

    /// Starts serving these participants.
    pub(crate) fn serve(&mut self, participants: &[(String, String)]) {
        let callbacks = participants.iter().map(|(name, url)| {
            let (sender, receiver) = mpsc::channel();
            let address: SocketAddr = url.strip_prefix("http://").unwrap().parse().unwrap();
            std::thread::spawn(move || deliver(address, &receiver));
            (name.clone(), sender)
        });
        let state = Arc::new(RelayState {
            faults: self.faults,
            requests: AtomicU64::new(0),
            transfers: Mutex::default(),
            callbacks: callbacks.collect(),
        });
        self.state = Some(Arc::clone(&state));
        let expiring = Arc::clone(&state);
        std::thread::spawn(move || {
            loop {
                expiring.expire();
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let listener = self.listener.try_clone().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, state) = (stream.unwrap(), Arc::clone(&state));
                std::thread::spawn(move || state.connection(stream));
            }
        });
    }

    pub(crate) fn committed(&self) -> usize {
        let transfers = self.state.as_ref().unwrap().transfers.lock().unwrap();
        transfers.values().filter(|transfer| transfer.state == "COMMITTED").count()
    }
}

/// Delivers the callbacks of one participant, in order over one connection.
fn deliver(address: SocketAddr, callbacks: &mpsc::Receiver<Vec<u8>>) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    while let Ok(mut bytes) = callbacks.recv() {
        let mut count = 1;
        // Waiting messages are sent together, in pieces with arbitrary boundaries.
        while let Ok(more) = callbacks.try_recv() {
            bytes.extend(more);
            count += 1;
        }
        for piece in bytes.chunks(1500) {
            if stream.write_all(piece).is_err() {
                return;
            }
        }
        let mut received = Vec::new();
        while count > 0 {
            let mut part = [0; 4096];
            let read = stream.read(&mut part).unwrap_or(0);
            if read == 0 {
                return;
            }
            received.extend_from_slice(&part[..read]);
            while let Some(framed) = frame_response(&received, &MESSAGE_LIMITS).unwrap() {
                let status = framed.status;
                assert!((200..300).contains(&status), "a callback was answered with {status}");
                received.drain(..framed.body.end);
                count -= 1;
            }
        }
    }
}

fn request(method: &str, path: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "{method} {path} HTTP/1.1\r\nhost: fsp\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

fn error(code: &str) -> Vec<u8> {
    json!({"errorInformation": {"errorCode": code, "errorDescription": "refused"}}).to_string().into_bytes()
}

impl RelayState {
    fn connection(&self, mut stream: TcpStream) {
        stream.set_nodelay(true).unwrap();
        let mut received = Vec::new();
        loop {
            let mut part = [0; 4096];
            match stream.read(&mut part) {
                Ok(count) if count > 0 => received.extend_from_slice(&part[..count]),
                _ => return,
            }
            while let Some(framed) = frame_request(&received, &MESSAGE_LIMITS).unwrap() {
                let number = self.requests.fetch_add(1, Relaxed) + 1;
                let (method, path) = (framed.method.to_owned(), framed.target.to_owned());
                let (body, end) = (received[framed.body.clone()].to_vec(), framed.body.end);
                received.drain(..end);
                let meets = |every: u64| every > 0 && number.is_multiple_of(every);
                if meets(self.faults.overload_every) {
                    let busy = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
                    stream.write_all(busy).unwrap();
                    continue;
                }
                self.take(&method, &path, body);
                if meets(self.faults.cut_every) {
                    let _ = stream.shutdown(Shutdown::Both);
                    return;
                }
                if stream.write_all(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n").is_err() {
                    return;
                }
            }
        }
    }

    fn call(&self, participant: &Value, method: &str, path: &str, body: &[u8]) {
        // The participants may have ended.
        let _ = self.callbacks[participant.as_str().unwrap()].send(request(method, path, body));
    }

    fn take(&self, method: &str, path: &str, body: Vec<u8>) {
        let mut transfers = self.transfers.lock().unwrap();
        if path == "/transfers" {
            let prepare: Value = serde_json::from_slice(&body).unwrap();
            let id = prepare["transferId"].as_str().unwrap().to_owned();
            if let Some(known) = transfers.get(&id) {
                if known.body != body {
                    self.call(&prepare["payerFsp"], "PUT", &format!("/transfers/{id}/error"), &error("3106"));
                } else if let Some((path, body)) = &known.end {
                    self.call(&prepare["payerFsp"], "PUT", path, body);
                }
                return;
            }
            self.call(&prepare["payeeFsp"], "POST", path, &body);
            // The tests allow only some seconds, and the expiration is in this machine's time.
            let expires = Instant::now() + until(prepare["expiration"].as_str().unwrap());
            transfers
                .insert(id, Transfer { prepare, body, expires, state: "RESERVED", answer: None, end: None });
            return;
        }
        let rest = path.strip_prefix("/transfers/").unwrap();
        let (id, is_error) = rest.strip_suffix("/error").map_or((rest, false), |id| (id, true));
        let transfer = transfers.get_mut(id).unwrap();
        let (payer, payee) = (transfer.prepare["payerFsp"].clone(), transfer.prepare["payeeFsp"].clone());
        if method == "GET" {
            match &transfer.end {
                Some((path, body)) => self.call(&payer, "PUT", path, body),
                None => {
                    let body = json!({"transferState": transfer.state}).to_string();
                    self.call(&payer, "PUT", path, body.as_bytes());
                }
            }
            return;
        }
        let error_path = format!("/transfers/{id}/error");
        if transfer.answer.as_ref() == Some(&body) {
            let told =
                json!({"transferState": transfer.state, "completedTimestamp": "2026-11-21T15:04:05.678Z"});
            if serde_json::from_slice::<Value>(&body).unwrap()["transferState"] == "RESERVED" {
                self.call(&payee, "PATCH", path, told.to_string().as_bytes());
            }
            return;
        }
        let is_over = !self.faults.is_mute && transfer.expires <= Instant::now();
        if transfer.state != "RESERVED" || is_over {
            return self.call(&payee, "PUT", &error_path, &error("3100"));
        }
        transfer.answer = Some(body.clone());
        if is_error {
            return self.end(transfer, "ABORTED", error_path, body);
        }
        let fulfil: Value = serde_json::from_slice(&body).unwrap();
        let (mut fulfilment, mut condition) = (Vec::new(), Vec::new());
        assert!(ilp::decode(&mut fulfilment, fulfil["fulfilment"].as_str().unwrap().as_bytes()));
        assert!(ilp::decode(&mut condition, transfer.prepare["condition"].as_str().unwrap().as_bytes()));
        let is_right = ilp::condition(&fulfilment.try_into().unwrap()) == condition[..];
        let wants_patch = fulfil["transferState"] == "RESERVED";
        let state = if is_right { "COMMITTED" } else { "ABORTED" };
        if is_right {
            let told = json!({"transferState": "COMMITTED", "fulfilment": fulfil["fulfilment"]}).to_string();
            self.end(transfer, state, path.to_owned(), told.into_bytes());
        } else {
            self.end(transfer, state, error_path, error("3100"));
        }
        if wants_patch {
            let told =
                json!({"transferState": state, "completedTimestamp": "2026-11-21T15:04:05.678Z"}).to_string();
            self.call(&payee, "PATCH", path, told.as_bytes());
        }
    }

    fn end(&self, transfer: &mut Transfer, state: &'static str, path: String, body: Vec<u8>) {
        transfer.state = state;
        let times = if self.faults.is_mute { 0 } else { 1 + u32::from(self.faults.repeats_callbacks) };
        for _ in 0..times {
            self.call(&transfer.prepare["payerFsp"], "PUT", &path, &body);
        }
        transfer.end = Some((path, body));
    }

    fn expire(&self) {
        // A mute relay is there to be queried.
        if self.faults.is_mute {
            return;
        }
        let now = Instant::now();
        for (id, transfer) in self.transfers.lock().unwrap().iter_mut() {
            if transfer.state == "RESERVED" && transfer.expires <= now {
                let path = format!("/transfers/{id}/error");
                self.call(&transfer.prepare["payeeFsp"], "PUT", &path, &error("3303"));
                self.end(transfer, "ABORTED", path, error("3303"));
            }
        }
    }
}

/// The time until an instant of today or tomorrow.
fn until(text: &str) -> Duration {
    let number = |range: std::ops::Range<usize>| text[range].parse::<u64>().unwrap();
    let in_day = |hours: u64, minutes: u64, ms: u64| hours * 3_600_000 + minutes * 60_000 + ms;
    let then = in_day(number(11..13), number(14..16), number(17..19) * 1000 + number(20..23));
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    let now = u64::try_from(since % 86_400_000).unwrap();
    let ms = (then + 86_400_000 - now) % 86_400_000;
    // Half a day ahead means that it has passed.
    Duration::from_millis(if ms > 43_200_000 { 0 } else { ms })
}
