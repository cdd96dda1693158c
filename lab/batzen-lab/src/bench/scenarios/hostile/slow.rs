//! A server that does not answer: an identity provider, or an exchange that a customer names.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::affinity;

/// The code of a login that the provider confirms.
pub(super) const GOOD_CODE: &str = "good";
/// Interval at which the server looks whether it ends.
const TICK: Duration = Duration::from_millis(50);
/// The longest request that it answers.
const REQUEST_BYTES_MAX: usize = 64 << 10;

/// A running server. It ends when dropped.
pub(super) struct SlowServer {
    pub(super) port: u16,
    stops: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl SlowServer {
    /// Starts it on these cores.
    pub(super) fn start(cores: &[usize]) -> Result<Self> {
        let failed = |error| BenchError::set_up("a server that does not answer", error);
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let stops = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&stops);
        let work = move || {
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
                return;
            };
            runtime.block_on(async {
                let Ok(listener) = TcpListener::from_std(listener) else { return };
                tokio::spawn(async move {
                    while let Ok((stream, _)) = listener.accept().await {
                        tokio::spawn(serve(stream));
                    }
                });
                while !ends.load(Relaxed) {
                    tokio::time::sleep(TICK).await;
                }
            });
        };
        let spawn = || std::thread::Builder::new().name("slow".to_owned()).spawn(work);
        let thread = affinity::on_cores(cores, spawn)?.map_err(failed)?;
        Ok(Self { port, stops, thread: Some(thread) })
    }
}

impl Drop for SlowServer {
    fn drop(&mut self) {
        self.stops.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // The result does not matter.
            let _ = thread.join();
        }
    }
}

/// Confirms logins with the right code, and keeps everybody else waiting until they leave.
async fn serve(mut stream: TcpStream) {
    let mut received = Vec::new();
    while received.len() < REQUEST_BYTES_MAX {
        match stream.read_buf(&mut received).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&received);
        let body = if text.starts_with("POST /token") && text.contains(&format!("code={GOOD_CODE}")) {
            json!({ "access_token": "a", "token_type": "Bearer" })
        } else if text.starts_with("GET /info") && text.contains("\r\n\r\n") {
            json!({ "status": "success", "data": { "id": "u" } })
        } else {
            continue;
        };
        let body = body.to_string();
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        received.clear();
        if stream.write_all((head + &body).as_bytes()).await.is_err() {
            return;
        }
    }
}
