//! Processes take over one port from each other under load: no request fails.
use crate::common;

use batzen_http::{Drain, Drained, Listen, Server, ServerOptions};
use common::Toy;
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinHandle,
};

const HANDOVERS: usize = 10;
const CLIENTS: usize = 16;

struct Process {
    drain: Drain,
    port: u16,
    task: JoinHandle<Drained>,
}

async fn start(port: u16) -> Process {
    let listen = Listen::Tcp { host: Some("127.0.0.1".into()), port, share_port: true };
    let server = Server::bind(listen).await.unwrap().listen().unwrap();
    assert!(server.is_shared());
    let (drain, port) = (Drain::new(), server.port());
    let options = ServerOptions {
        idle_grace: Duration::from_secs(1),
        drain_timeout: Duration::from_secs(60),
        ..ServerOptions::default()
    };
    let task = tokio::spawn(server.serve(Arc::new(Toy::default()), options, drain.clone()));
    Process { drain, port, task }
}

/// A typical HTTP client: it keeps its connection as long as the server does, opens a new one if the old one
/// is closed before it has sent anything, and treats everything else as a failure.
async fn client(port: u16, keeps: bool, is_over: Arc<AtomicBool>, answered: Arc<AtomicU64>) {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut kept: Option<TcpStream> = None;
    while !is_over.load(Ordering::Relaxed) {
        let mut stream = match kept.take() {
            Some(stream)
                if stream.try_read(&mut [0]).is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock) =>
            {
                stream
            }
            _ => TcpStream::connect(address).await.expect("somebody listens at any time"),
        };
        stream.write_all(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi").await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\nhi") {
            let n = stream.read_buf(&mut answer).await.expect("requests that were sent are answered");
            assert_ne!(n, 0, "requests that were sent are answered: {}", String::from_utf8_lossy(&answer));
        }
        assert!(answer.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&answer));
        answered.fetch_add(1, Ordering::Relaxed);
        let closes = String::from_utf8_lossy(&answer).to_ascii_lowercase().contains("connection: close");
        if keeps && !closes {
            kept = Some(stream);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_is_handed_over_without_a_failed_request() {
    let mut process = start(0).await;
    let port = process.port;
    let (is_over, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|n| tokio::spawn(client(port, n % 2 == 0, Arc::clone(&is_over), Arc::clone(&answered))))
        .collect();
    let mut ending = Vec::new();
    for _ in 0..HANDOVERS {
        let before = answered.load(Ordering::Relaxed);
        while answered.load(Ordering::Relaxed) < before + 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            assert!(!clients.iter().any(JoinHandle::is_finished), "a client failed");
        }
        let next = start(port).await;
        let last = std::mem::replace(&mut process, next);
        last.drain.trigger();
        ending.push(last.task);
    }
    for task in ending {
        assert_eq!(task.await.unwrap().cut_off, 0);
    }
    is_over.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    process.drain.trigger();
    process.task.await.unwrap();
}

#[tokio::test]
async fn connections_in_the_queue_of_a_process_that_ends_are_answered() {
    // The runtime has one thread: nothing is accepted before the drain fires.
    let process = start(0).await;
    let mut waiting = Vec::new();
    for _ in 0..50 {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", process.port)).unwrap();
        std::io::Write::write_all(&mut stream, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        waiting.push(stream);
    }
    // Connected, but the request comes later.
    let late = std::net::TcpStream::connect(("127.0.0.1", process.port)).unwrap();
    process.drain.trigger();
    late.set_nonblocking(true).unwrap();
    let mut late = TcpStream::from_std(late).unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    late.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    for stream in waiting {
        stream.set_nonblocking(true).unwrap();
        let mut answer = String::new();
        TcpStream::from_std(stream).unwrap().read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("connection: close"), "{answer}");
    }
    let mut answer = String::new();
    late.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("connection: close"), "{answer}");
    assert_eq!(process.task.await.unwrap().cut_off, 0);
    // The port is free, because only this process used it.
    let error = TcpStream::connect(("127.0.0.1", process.port)).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
}
