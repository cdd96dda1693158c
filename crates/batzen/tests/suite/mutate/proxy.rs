//! A proxy that records what clients send, as valid requests to mutate.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::mutate::seeds::Seed;

type Streams = Arc<Mutex<Vec<Arc<Mutex<Vec<u8>>>>>>;

pub(super) struct Proxy {
    streams: Streams,
}

impl Proxy {
    /// Accepts connections on local port `port`, and forwards them to local port `target`.
    pub(super) fn start(port: u16, target: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let streams = Streams::default();
        let noted = Arc::clone(&streams);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                let sent = Arc::default();
                noted.lock().unwrap().push(Arc::clone(&sent));
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || carry(from, to, Some(&sent)));
                thread::spawn(move || carry(server, client, None));
            }
        });
        Self { streams }
    }

    /// The requests so far.
    pub(super) fn seeds(&self) -> Vec<Seed> {
        let streams = self.streams.lock().unwrap();
        streams.iter().flat_map(|sent| Seed::parse_all(&sent.lock().unwrap())).collect()
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, noted: Option<&Mutex<Vec<u8>>>) {
    let mut bytes = [0; 16 << 10];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        if let Some(noted) = noted {
            noted.lock().unwrap().extend_from_slice(&bytes[..read]);
        }
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    // Either side may have closed already.
    let _ = to.shutdown(Shutdown::Write);
}
