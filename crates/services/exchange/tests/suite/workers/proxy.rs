//! A proxy between the exchange and its bank: it forwards requests, or does what a test's script demands.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// The proxy's action on a request.
#[derive(Debug, Clone)]
pub(super) enum Action {
    /// The bank answers.
    Forward,
    /// The bank executes the request; the answer is lost with the connection.
    Lose,
    /// The connection is lost before the bank sees the request.
    Refuse,
    /// The request reaches the bank twice.
    Repeat,
    /// The request is never answered, and the bank does not see it.
    Stall,
    /// The proxy gives this answer, and the bank does not see the request.
    Answer(u16, String),
}

/// Decides by the request line and the body.
pub(super) type Script = Box<dyn FnMut(&str, &str) -> Action + Send>;

pub(super) struct Proxy {
    pub port: u16,
    script: Arc<Mutex<Script>>,
    serving: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Proxy {
    pub(super) async fn start(bank_port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let script: Arc<Mutex<Script>> = Arc::new(Mutex::new(Box::new(|_, _| Action::Forward)));
        let shared = Arc::clone(&script);
        let serving = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let script = Arc::clone(&shared);
                // A failure ends only its own connection, which clients must be able to handle.
                tokio::spawn(async move { serve(stream, bank_port, &script).await });
            }
        });
        Self { port, script, serving }
    }

    pub(super) fn script(&self, script: impl FnMut(&str, &str) -> Action + Send + 'static) {
        *self.script.lock().unwrap() = Box::new(script);
    }

    /// Forwards everything from now on.
    pub(super) fn heal(&self) {
        self.script(|_, _| Action::Forward);
    }
}

async fn serve(mut client: TcpStream, bank_port: u16, script: &Mutex<Script>) -> std::io::Result<()> {
    let mut request = Vec::new();
    let head_end = loop {
        if client.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
        if let Some(end) = request.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
    };
    let head = String::from_utf8(request[..head_end].to_vec()).unwrap();
    let length: usize = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .map_or(0, |(_, value)| value.trim().parse().unwrap());
    while request.len() < head_end + 4 + length {
        if client.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let body = request[head_end + 4..].to_vec();
    let line = head.lines().next().unwrap();
    // Like any proxy, it answers for itself when asked for another protocol.
    if line.starts_with("OPTIONS *") {
        return client.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
    }
    let action = (script.lock().unwrap())(line, &String::from_utf8_lossy(&body));
    match action {
        Action::Refuse => {}
        Action::Stall => {
            client.read_u8().await?;
        }
        Action::Answer(status, body) => {
            let answer = format!(
                "HTTP/1.1 {status} Scripted\r\ncontent-type: application/json\r\nconnection: close\r\n\
                 content-length: {}\r\n\r\n{body}",
                body.len()
            );
            client.write_all(answer.as_bytes()).await?;
        }
        Action::Lose => drop(ask(bank_port, &head, &body).await?),
        Action::Forward => pass(&mut client, bank_port, &head, &body).await?,
        Action::Repeat => {
            ask(bank_port, &head, &body).await?;
            pass(&mut client, bank_port, &head, &body).await?;
        }
    }
    client.shutdown().await
}

/// Forwards the request to the bank, and gives up when the client does.
async fn pass(client: &mut TcpStream, bank_port: u16, head: &str, body: &[u8]) -> std::io::Result<()> {
    let mut byte = [0];
    let answer = tokio::select! {
        answer = ask(bank_port, head, body) => answer?,
        _ = client.peek(&mut byte) => return Ok(()),
    };
    client.write_all(&answer).await
}

async fn ask(bank_port: u16, head: &str, body: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut bank = TcpStream::connect(("127.0.0.1", bank_port)).await?;
    let request = format!("{head}\r\nconnection: close\r\n\r\n");
    bank.write_all(&[request.as_bytes(), body].concat()).await?;
    let mut answer = Vec::new();
    bank.read_to_end(&mut answer).await?;
    Ok(answer)
}
