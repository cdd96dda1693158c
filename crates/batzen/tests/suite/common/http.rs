//! Blocking HTTP.

use std::io::Read;
use std::net::TcpStream;

use batzen_http::client::{Client, ClientOptions, Reply};

/// A client of its own runtime.
pub(crate) struct Http {
    runtime: tokio::runtime::Runtime,
    pub client: Client,
}

impl Http {
    pub(crate) fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime.block_on(async { Client::new(&ClientOptions::default()).unwrap() });
        Self { runtime, client }
    }

    pub(crate) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub(crate) fn get(&self, url: &str) -> Reply {
        self.wait(self.client.get(url).send()).unwrap()
    }

    /// Status and body.
    pub(crate) fn page(&self, url: &str) -> (u16, String) {
        let reply = self.get(url);
        (reply.status, String::from_utf8(reply.body.to_vec()).unwrap())
    }

    /// A page that must be there.
    #[track_caller]
    pub(crate) fn text(&self, url: &str) -> String {
        let (status, text) = self.page(url);
        assert_eq!(status, 200, "{url}");
        text
    }
}

/// A page as text, whatever its status.
pub(crate) async fn page(client: &Client, url: &str) -> String {
    let reply = client.get(url).send().await.unwrap();
    String::from_utf8(reply.body.to_vec()).unwrap()
}

/// Reads a whole request or answer.
pub(crate) fn message(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut part = [0; 16_384];
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
            let length: usize = length.map_or(0, |length| length.trim().parse().unwrap());
            if bytes.len() >= end + 4 + length {
                return Ok(bytes);
            }
        }
        match stream.read(&mut part)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            n => bytes.extend_from_slice(&part[..n]),
        }
    }
}
