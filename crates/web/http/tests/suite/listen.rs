//! Where a server listens: local sockets, all addresses, shared ports, inherited sockets.
use crate::common;

use std::sync::Arc;

use batzen_http::{Drain, Listen, Server, ServerOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn servers_listen_on_local_sockets_shared_ports_and_inherited_ones() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run/http.sock");
    let listen = || Listen::Unix { path: path.clone(), mode: 0o660 };
    let server = Server::bind(listen()).await.unwrap();
    let error = Server::bind(listen()).await.err().unwrap();
    assert!(error.to_string().contains("in use by another program"), "{error}");
    let drain = Drain::new();
    let task =
        tokio::spawn(server.serve(Arc::new(common::Toy::default()), ServerOptions::default(), drain.clone()));
    let mut stream = tokio::net::UnixStream::connect(&path).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("hello"), "{answer}");
    drain.trigger();
    task.await.unwrap();
    assert!(!path.exists());
    // A socket left behind by a process that was killed is replaced.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    Server::bind(listen()).await.unwrap();
    // All addresses; then the same port again, first while it is in use, and then shared.
    let all = Server::bind(Listen::tcp(None, 0)).await.unwrap();
    let error = Server::bind(Listen::tcp(None, all.port())).await.err().unwrap();
    assert!(error.to_string().contains("in use by another program"), "{error}");
    let shared = |port| Listen::Tcp { host: Some("localhost".to_owned()), port, share_port: true };
    let one = Server::bind(shared(0)).await.unwrap();
    Server::bind(shared(one.port())).await.unwrap();
    // A socket that was handed over.
    let std_listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = std_listener.local_addr().unwrap().port();
    let handed = Server::bind(Listen::Inherited(std_listener.into())).await.unwrap();
    assert_eq!(handed.port(), port);
    let unix = std::os::unix::net::UnixListener::bind(dir.path().join("x.sock")).unwrap();
    let handed = Server::bind(Listen::Inherited(unix.into())).await.unwrap();
    assert_eq!(handed.bound(), &batzen_http::Bound::Unix(dir.path().join("x.sock")));
    let none = batzen_http::inherited_fd(|_| None, std::process::id()).unwrap();
    assert!(none.is_none());
}
