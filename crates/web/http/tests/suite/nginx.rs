//! A server behind nginx with the configuration in `deploy/nginx`. Needs nginx (`make needs-test` installs
//! it).
use crate::common;

use batzen_http::client::Client;
use batzen_http::{Admission, Drain, Handler, Head, Listen, Reach, Request, Response, Server, ServerOptions};
use batzen_protocol::api::bank::TransferRequest;
use batzen_service::wire_gateway::{GatewayAuth, WireGatewayClient};
use common::{read_to_end, status};
use std::{
    fs,
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpSocket, TcpStream},
};

/// Responds with the client's address, and accepts transfers that have the password.
struct Bank;

impl Handler for Bank {
    fn admit(&self, _: &Head) -> Result<Admission, Response> {
        Ok(Admission { reach: Reach::Everyone, ..Admission::default() })
    }

    async fn handle(&self, request: Request) -> Response {
        match request.path.as_str() {
            "/client" => {
                Response::text(200, request.client.map_or("none".into(), |client| client.to_string()))
            }
            "/wait" => {
                request.drain.draining().await;
                Response::text(200, "drain")
            }
            "/transfer" => authorize(&request).map_or_else(
                |refused| refused,
                |()| {
                    let body = r#"{"row_id":7,"timestamp":{"t_s":1700000000}}"#;
                    Response::bytes(200, "application/json", body)
                },
            ),
            _ => Response::bytes(200, "", request.body),
        }
    }
}

fn authorize(head: &Head) -> Result<(), Response> {
    match head.basic_auth() {
        Some((_, password)) if password == "right" => Ok(()),
        _ => Err(Response::empty(401)),
    }
}

struct Nginx {
    child: Child,
    directory: tempfile::TempDir,
    addr: SocketAddr,
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program() -> PathBuf {
    // Not every search path contains this directory.
    let usual = PathBuf::from("/usr/sbin/nginx");
    if usual.exists() { usual } else { "nginx".into() }
}

/// The configuration that operators get, with other addresses and without TLS.
fn configuration(
    directory: &std::path::Path,
    port: u16,
    exchange: SocketAddr,
    change: (&str, &str),
) -> PathBuf {
    let given = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../deploy/nginx/batzen.conf"))
        .unwrap();
    assert!(given.contains(change.0), "{change:?}");
    let site: String = given
        .replace("listen 443 ssl", &format!("listen 127.0.0.1:{port}"))
        .replace("127.0.0.1:8081", &exchange.to_string())
        .replace(change.0, change.1)
        .lines()
        .filter(|line| !line.trim_start().starts_with("ssl_"))
        .map(|line| format!("{line}\n"))
        .collect();
    let at = directory.display();
    let temp: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {at}/{name};\n"))
        .concat();
    let whole = format!(
        "daemon off;\nmaster_process off;\npid {at}/pid;\nerror_log {at}/error.log;\nevents {{}}\nhttp {{\naccess_log off;\n{temp}{site}}}\n"
    );
    let path = directory.join("nginx.conf");
    fs::write(&path, whole).unwrap();
    path
}

async fn nginx_before(exchange: SocketAddr, change: (&str, &str)) -> Nginx {
    let directory = tempfile::tempdir().unwrap();
    let port = batzen_testkit::process::free_port();
    let config = configuration(directory.path(), port, exchange, change);
    let command = || {
        let mut command = Command::new(program());
        command
            .arg("-c")
            .arg(&config)
            .arg("-p")
            .arg(directory.path())
            .arg("-e")
            .arg(directory.path().join("error.log"));
        command
    };
    let checked = command().arg("-t").output().expect("nginx is installed (make needs-test)");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let child = command().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut nginx = Nginx { child, directory, addr: SocketAddr::from(([127, 0, 0, 1], port)) };
    while TcpStream::connect(nginx.addr).await.is_err() {
        assert!(nginx.child.try_wait().unwrap().is_none(), "nginx has ended");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    nginx
}

struct Running {
    addr: SocketAddr,
    stats: Arc<batzen_http::Stats>,
    _drain: Drain,
}

async fn start(options: ServerOptions) -> Running {
    let server = Server::bind(Listen::localhost(0)).await.unwrap();
    let addr = SocketAddr::from(([127, 0, 0, 1], server.port()));
    let (drain, stats) = (Drain::new(), server.stats());
    tokio::spawn(server.serve(Arc::new(Bank), options, drain.clone()));
    Running { addr, stats, _drain: drain }
}

async fn connect_from(last: u8, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
    socket.connect(to).await.unwrap()
}

fn behind_nginx() -> ServerOptions {
    ServerOptions { trusted_proxies: "127.0.0.1".parse().unwrap(), ..ServerOptions::default() }
}

fn transfer() -> TransferRequest {
    serde_json::from_value(serde_json::json!({
        "request_uid": "0".repeat(103),
        "amount": "KUDOS:1",
        "exchange_base_url": "http://exchange.example/",
        "wtid": "0".repeat(52),
        "credit_account": "payto://x-taler-bank/localhost/shop",
    }))
    .unwrap()
}

async fn transfer_with(addr: SocketAddr, password: &str) -> Result<u64, u16> {
    let auth = GatewayAuth::Basic { username: "exchange".into(), password: password.into() };
    let gateway = WireGatewayClient::new(
        Client::new(&batzen_http::client::ClientOptions::default()).unwrap(),
        &format!("http://{addr}/"),
        auth,
    )
    .with_transfer_connections(4);
    gateway.transfer(&transfer()).await.map(|done| done.row_id).map_err(|error| error.status().unwrap_or(0))
}

#[tokio::test]
async fn transfers_and_their_refusals_pass_nginx() {
    let server = start(behind_nginx()).await;
    let nginx = nginx_before(server.addr, ("", "")).await;
    assert_eq!(transfer_with(nginx.addr, "right").await, Ok(7));
    assert_eq!(transfer_with(nginx.addr, "wrong").await, Err(401));
}

#[tokio::test]
async fn nginx_names_the_client_and_ignores_what_the_client_claims() {
    let server = start(behind_nginx()).await;
    let nginx = nginx_before(server.addr, ("", "")).await;
    let mut stream = connect_from(7, nginx.addr).await;
    stream
        .write_all(
            b"GET /client HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 203.0.113.9\r\nconnection: close\r\n\r\n",
        )
        .await
        .unwrap();
    let answer = read_to_end(&mut stream).await;
    assert!(status(&answer) == 200 && answer.ends_with("127.0.0.7"), "{answer}");
    // Metrics are not public.
    let mut stream = connect_from(7, nginx.addr).await;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    assert_eq!(status(&read_to_end(&mut stream).await), 403);
}

#[tokio::test]
async fn limits_hold_behind_nginx() {
    // Limits of the exchange: the requests of one client do not block another's, although both come from
    // nginx.
    let server = start(ServerOptions { max_in_flight: 4, ..behind_nginx() }).await;
    let nginx = nginx_before(server.addr, ("", "")).await;
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let mut stream = connect_from(7, nginx.addr).await;
        stream.write_all(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        waiting.push(stream);
    }
    while server.stats.snapshot().requests_overload == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut stream = connect_from(8, nginx.addr).await;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    assert_eq!(status(&read_to_end(&mut stream).await), 200);
    // Limits of nginx: the bodies, requests and connections of one client.
    let mut stream = connect_from(7, nginx.addr).await;
    stream
        .write_all(b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 17000000\r\n\r\n")
        .await
        .unwrap();
    assert_eq!(status(&read_to_end(&mut stream).await), 413);
    let server = start(behind_nginx()).await;
    let nginx =
        nginx_before(server.addr, ("limit_conn batzen_connections 200", "limit_conn batzen_connections 2"))
            .await;
    let mut answers = Vec::new();
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut stream = connect_from(7, nginx.addr).await;
        stream.write_all(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        open.push(stream);
    }
    while server.stats.snapshot().requests_in_flight < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for last in [7, 8] {
        let mut stream = connect_from(last, nginx.addr).await;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        answers.push(status(&read_to_end(&mut stream).await));
    }
    assert_eq!(answers, [503, 200]);
    assert!(nginx.directory.path().exists());
}
