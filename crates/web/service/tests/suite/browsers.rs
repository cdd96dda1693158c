//! Requests of pages in browsers, by the reach of an endpoint.

use std::net::SocketAddr;
use std::sync::Arc;

use batzen_http::{Drain, Listen, Request, Response, Server, ServerOptions, Style};
use batzen_metrics::Page;
use batzen_service::dashboard::{COMMON, Layout};
use batzen_service::{Answer, Api, App, Monitor, Reach, Readiness, Table, endpoint};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const OPERATIONS: [&str; 1] = ["other"];
static LAYOUT: Layout = Layout { sections: COMMON, work: &[] };

struct Ledger(Monitor);

impl App for Ledger {
    fn monitor(&self) -> &Monitor {
        &self.0
    }

    async fn ready(&self) -> Readiness {
        Readiness::new()
    }

    fn write_metrics(&self, _: &mut Page) {}
}

async fn done(_: &Ledger, _: &Request) -> Response {
    Response::text(200, "done")
}

/// An endpoint for those whom a proxy has let in: it checks no credential.
async fn ambient(_: &Ledger, request: &Request) -> Answer {
    request.require_own_name()?;
    Ok(Response::text(200, "done"))
}

fn table() -> Table<Ledger> {
    let both = |table: Table<Ledger>, path: &str| {
        table.get(path, "other", endpoint!(done)).post(path, 64, "other", endpoint!(done))
    };
    let table = Table::new(Style::ByPath, &OPERATIONS).monitored("other").with_dashboard("other");
    let table = table.reaching(Reach::Everyone, |table| both(table, "/everyone"));
    let table = table.reaching(Reach::Page, |table| both(table, "/page"));
    // The default, after rows that reach further.
    both(table, "/own").post("/ambient", 64, "other", endpoint!(ambient))
}

async fn start() -> (SocketAddr, Drain) {
    let server = Server::bind(Listen::localhost(0)).await.unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], server.port()));
    let ledger = Arc::new(Ledger(Monitor::new("ledger", &OPERATIONS, &LAYOUT, server.stats())));
    let drain = Drain::new();
    let hostnames = "ledger.example".parse().unwrap();
    let options = ServerOptions { hostnames, ..ServerOptions::default() };
    tokio::spawn(server.serve(Arc::new(Api::new(ledger, table())), options, drain.clone()));
    (address, drain)
}

/// The status of an answer, and whether pages of other sites may read it. `headers` replace the host and the type.
async fn ask(address: SocketAddr, method: &str, path: &str, headers: &str) -> (u16, bool) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let host = if headers.contains("host: ") { "" } else { "host: 127.0.0.1:3002\r\n" };
    let body = if method == "POST" { "{}" } else { "" };
    let request = format!(
        "{method} {path} HTTP/1.1\r\n{host}{headers}content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    (answer[9..12].parse().unwrap(), answer.contains("access-control-"))
}

const JSON: &str = "content-type: application/json\r\n";
const TEXT: &str = "content-type: text/plain\r\n";
const TOKEN: &str = "authorization: Bearer secret\r\n";
/// Headers that a browser adds to the request of a page elsewhere.
const FOREIGN: &str = "origin: https://attacker.example\r\nsec-fetch-site: cross-site\r\n";
/// The header that a browser sends for a page whose name its owner has pointed to the loopback interface.
const REBOUND: &str = "host: attacker.example:3002\r\n";

#[tokio::test]
async fn other_pages_use_what_is_for_them_and_nothing_else() {
    let (address, drain) = start().await;
    for headers in [JSON, TEXT, "", &[TEXT, FOREIGN].concat(), &[TEXT, REBOUND].concat()] {
        assert_eq!(ask(address, "POST", "/everyone", headers).await, (200, true), "{headers}");
        assert_eq!(ask(address, "POST", "/page", headers).await, (200, false), "{headers}");
    }
    for (headers, status) in [
        (JSON.to_owned(), 200),
        (TEXT.to_owned(), 415),
        ("content-type: application/x-www-form-urlencoded\r\n".to_owned(), 415),
        (String::new(), 415),
        ([JSON, FOREIGN].concat(), 403),
        ([JSON, "origin: null\r\n"].concat(), 403),
        ([JSON, REBOUND].concat(), 421),
        ([JSON, "host: ledger.example\r\norigin: http://ledger.example\r\n"].concat(), 200),
        // A program with a token, such as `curl -d`.
        ([TEXT, TOKEN].concat(), 200),
        (TOKEN.to_owned(), 200),
        ([TEXT, TOKEN, REBOUND].concat(), 200),
    ] {
        assert_eq!(ask(address, "POST", "/own", &headers).await, (status, false), "{headers}");
    }
    assert_eq!(ask(address, "GET", "/own", "").await, (200, false));
    assert_eq!(ask(address, "GET", "/own", FOREIGN).await, (403, false));
    assert_eq!(ask(address, "GET", "/own", REBOUND).await, (421, false));
    // A token that nobody checks proves nothing: the page of a rebound name can send any.
    assert_eq!(ask(address, "POST", "/ambient", TOKEN).await, (200, false));
    assert_eq!(ask(address, "POST", "/ambient", &[TOKEN, REBOUND].concat()).await, (421, false));
    drain.trigger();
}

#[tokio::test]
async fn figures_are_for_programs_and_the_own_dashboard() {
    let (address, drain) = start().await;
    for path in ["/metrics", "/dashboard"] {
        assert_eq!(ask(address, "GET", path, "").await, (200, false), "{path}");
        assert_eq!(ask(address, "GET", path, "host: prometheus-target:3002\r\n").await.0, 200, "{path}");
        assert_eq!(ask(address, "GET", path, FOREIGN).await, (403, false), "{path}");
        assert_eq!(ask(address, "GET", path, REBOUND).await, (421, false), "{path}");
        let link = [FOREIGN, "sec-fetch-mode: navigate\r\n"].concat();
        assert_eq!(ask(address, "GET", path, &link).await, (200, false), "{path}");
    }
    for path in ["/health", "/ready"] {
        assert_eq!(ask(address, "GET", path, REBOUND).await, (200, false), "{path}");
    }
    drain.trigger();
}

#[tokio::test]
async fn preflight_requests_allow_what_the_endpoint_allows() {
    let (address, drain) = start().await;
    let wants = |method: &str| format!("{FOREIGN}access-control-request-method: {method}\r\n");
    for (path, is_allowed) in [("/everyone", true), ("/page", false), ("/own", false), ("/ambient", false)] {
        assert_eq!(ask(address, "OPTIONS", path, &wants("POST")).await, (204, is_allowed), "{path}");
        assert_eq!(ask(address, "OPTIONS", path, "").await, (204, is_allowed), "{path}");
    }
    // Errors that belong to no endpoint show nothing private.
    assert_eq!(ask(address, "GET", "/nowhere", FOREIGN).await, (404, true));
    drain.trigger();
}
