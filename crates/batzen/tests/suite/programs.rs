//! The programs by the names that existing set-ups use.

use std::io::BufRead as _;
use std::process::Output;
use std::sync::Arc;

use batzen_http::client::{Client, ClientOptions};
use batzen_http::{
    Admission, Drain, Handler, Head, Listen, Method, Reach, Request, Response, Server, ServerOptions,
};
use serde_json::json;

use crate::common::drop_in::DropIn;
use crate::common::{stderr, stdout, until};

const CLIENT: &str = "taler-exchange-wire-gateway-client";

/// The columns of a history, row by row.
fn rows(output: &str) -> Vec<Vec<&str>> {
    output.lines().map(|line| line.split(' ').collect()).collect()
}

fn failed(output: &Output, code: i32, hint: &str) {
    assert_eq!(output.status.code(), Some(code), "{}", stderr(output));
    assert!(stderr(output).contains(hint), "{hint}: {}", stderr(output));
    assert!(output.stdout.is_empty(), "{}", stdout(output));
}

#[test]
fn the_gateway_client_shows_histories_and_moves_money() {
    let set_up = DropIn::new("");
    let bank = set_up.start_bank();
    let url = format!("http://localhost:{}/taler-wire-gateway/exchange/", set_up.customer.bank_port);
    let client = |arguments: &[&str]| set_up.run(CLIENT, arguments);
    let must = |arguments: &[&str]| set_up.must(CLIENT, arguments);
    let zoe = "payto://x-taler-bank/localhost/zoe?receiver-name=zoe";
    let key = "0".repeat(52);

    // Money arrives, with a given and with a random key; the account is named by URL or by section.
    let first = must(&["-b", &url, "-D", zoe, "-a", "KUDOS:5", "-S", &key]);
    let second = must(&["-s", "exchange-accountcredentials-1", "--debit-account", zoe, "--amount=KUDOS:1.5"]);
    let history = must(&["-s", "1", "-i"]);
    let credits = rows(&history);
    assert_eq!([credits[0][0], credits[1][0]], [second.as_str(), first.as_str()], "the newest first");
    assert_eq!([credits[0][2], credits[1][2]], ["KUDOS:1.5", "KUDOS:5"]);
    assert_eq!((credits[1][3], credits[1][4]), (zoe, key.as_str()));
    assert_ne!(credits[0][4], key);
    assert_eq!(rows(&must(&["-b", &url, "-i", "-w", &second])).len(), 1, "before a row");

    // It goes out again.
    assert_eq!(must(&["-b", &url, "-o"]), "");
    must(&["-b", &url, "-u", "x", "-p", "y", "-C", zoe, "-a", "KUDOS:2", "-S", &key]);
    let history = must(&["-b", &url, "-o"]);
    let debits = rows(&history);
    assert_eq!((debits.len(), debits[0][2], debits[0][3], debits[0][4]), (1, "KUDOS:2", zoe, key.as_str()));

    // What the bank refuses, and what makes no sense.
    failed(&client(&["-b", &url, "-D", zoe, "-a", "KUDOS:5", "-S", &key]), 1, "5114");
    failed(&client(&["-b", &url, "-C", zoe, "-a", "EUR:5"]), 1, "400");
    failed(&client(&["-b", "http://localhost:1/x/", "-i"]), 1, "localhost:1");
    failed(&client(&["-s", "exchange-accountcredentials-2", "-i"]), 1, "exchange-accountcredentials-2");
    failed(&client(&["-b", &url, "-C", zoe, "-a", "KUDOS:5", "-S", "subject"]), 1, "--subject");
    failed(&client(&["-i"]), 2, "--bank");
    failed(&client(&["-b", &url]), 2, "--credit-history");
    failed(&client(&["-b", &url, "-i", "-o"]), 2, "cannot be used with");
    failed(&client(&["-b", &url, "-C", zoe]), 2, "--amount");
    assert!(bank.terminate().0.success());
}

#[test]
fn programs_without_a_task_say_so() {
    let set_up = DropIn::new("");
    for (name, hint) in [("taler-exchange-router", "Do not start it"), ("taler-mailbox", "docs/drop-in.md")] {
        let output = set_up.run(name, &["-t"]);
        failed(&output, 9, hint);
        assert_eq!(stderr(&output).lines().count(), 1);
    }
}

/// The names that are installed as links.
fn names() -> Vec<&'static str> {
    let source = include_str!("../../src/names.rs");
    let lines = source.lines().filter_map(|line| line.strip_prefix("    (\"taler-"));
    let names: Vec<_> = lines.map(|line| line.split('"').next().unwrap()).collect();
    assert!(names.len() >= 17, "{names:?}");
    names
}

#[test]
fn every_program_has_the_common_options_and_suggests_the_nearest() {
    let set_up = DropIn::new("");
    for name in names().into_iter().filter(|name| *name != "exchange-router") {
        let name = format!("taler-{name}");
        let help = set_up.must(&name, &["-h"]);
        for option in ["-c, --config", "-T, --timetravel", "-L, --log", "-l, --logfile", "-v, --version"] {
            assert!(help.contains(option), "{name} has no {option}: {help}");
        }
        let version = set_up.must(&name, &["-v"]);
        assert!(version.ends_with(env!("CARGO_PKG_VERSION")), "{name}: {version}");
        for (wrong, nearest) in [("--timetravle=1", "--timetravel"), ("--cofnig=x", "--config")] {
            let output = set_up.run(&name, &[wrong]);
            failed(&output, 2, nearest);
        }
        failed(&set_up.run(&name, &["-LLOUD"]), 2, "TRACE");
    }
    for (name, options) in [
        ("taler-exchange-httpd", &["-C", "-t", "-r"][..]),
        ("taler-fakebank-run", &["-C", "-n", "-s"]),
        ("taler-exchange-wirewatch", &["-S", "-w", "-a", "-e", "-f", "-t"]),
        ("taler-exchange-transfer", &["-S", "-w", "-t"]),
        ("taler-exchange-aggregator", &["-y", "-t"]),
        ("taler-auditor-dbinit", &["-r", "-R", "-g"]),
        ("taler-auditor-exchange", &["-m", "-u", "-r"]),
        ("taler-auditor-sync", &["-s", "-d", "-b", "-t"]),
    ] {
        let help = set_up.must(name, &["-h"]);
        for option in options {
            assert!(help.contains(&format!("{option}, --")), "{name} has no {option}: {help}");
        }
    }
}

/// Glued and separate forms of the common options, and a program's clock and log.
#[test]
fn clock_and_log_of_a_program_can_be_chosen() {
    let set_up = DropIn::new("");
    let log = set_up.path("helper.log");
    const DAYS_100: u64 = 100 * 86_400;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let arguments =
        ["-LDEBUG", "-l", log.to_str().unwrap(), &format!("--timetravel=+{}", DAYS_100 * 1_000_000)];
    let name = "taler-exchange-secmod-eddsa";
    let helper =
        crate::common::Service::start_command(set_up.dir.path(), name, set_up.program(name, &arguments));
    let keys = set_up.path("data/exchange-secmod-eddsa/keys");
    let anchors = || -> Vec<u64> {
        let files = std::fs::read_dir(&keys).into_iter().flatten();
        files.filter_map(|file| file.unwrap().file_name().to_str()?.parse().ok()).collect()
    };
    until("the helper makes no keys", || !anchors().is_empty());
    assert!(anchors().iter().all(|anchor| *anchor >= now + DAYS_100), "{:?}", anchors());
    assert!(helper.terminate().0.success());
    assert!(log.exists());
}

/// `-t` and `-C` of the service.
#[test]
fn the_service_closes_connections_as_told() {
    use std::io::{Read as _, Write as _};
    let set_up = DropIn::new("[exchange]\nkey_helpers = NO\n");
    let name = "taler-exchange-httpd";
    for (option, closes_first) in [(&["-C"][..], true), (&["-t", "1"], false)] {
        let service =
            crate::common::Service::start_command(set_up.dir.path(), name, set_up.program(name, option));
        crate::common::setup::wait_for(set_up.exchange_port(), "/health");
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", set_up.exchange_port())).unwrap();
        stream.set_read_timeout(Some(crate::common::PATIENCE)).unwrap();
        write!(stream, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let begun = std::time::Instant::now();
        let mut answer = String::new();
        // The server closes: at once, or when the connection was unused for a second.
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert_eq!(answer.to_lowercase().contains("connection: close"), closes_first, "{answer}");
        if !closes_first {
            assert!(begun.elapsed().as_millis() >= 900, "{:?}", begun.elapsed());
        }
        assert!(service.terminate().0.success());
    }
}

/// A provider where everybody is Zoe (RFC 6749 chapter 4.1).
struct Everybody;

impl Handler for Everybody {
    /// A provider takes forms.
    fn admit(&self, _: &Head) -> Result<Admission, Response> {
        Ok(Admission { reach: Reach::Everyone, ..Admission::default() })
    }

    async fn handle(&self, request: Request) -> Response {
        match (request.method.as_str(), request.segment(0)) {
            ("POST", "token") if request.body.windows(9).any(|part| part == b"code=good") => {
                Response::json(200, &json!({ "access_token": "t", "token_type": "Bearer" }))
            }
            ("POST", "token") => Response::json(400, &json!({ "error": "invalid_grant" })),
            ("GET", "info") => Response::json(200, &json!({ "sub": "zoe-7", "name": "Zoe", "age": 9 })),
            _ => Response::empty(404),
        }
    }
}

#[test]
fn a_provider_is_tried_out() {
    const TESTER: &str = "taler-exchange-kyc-tester";
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let drain = Drain::new();
    let place = Listen::Tcp { host: Some("127.0.0.1".to_owned()), port: 0, share_port: false };
    let server = runtime.block_on(Server::bind(place)).unwrap();
    let provider = format!("http://127.0.0.1:{}", server.port());
    runtime.spawn(server.serve(Arc::new(Everybody), ServerOptions::default(), drain.clone()));

    let hash = batzen_crypto::hash::sha512(b"token");
    let set_up = DropIn::new(&format!(
        "[kyc-provider-login]\nlogic = oauth2\nuser_type = individual\nprovided_checks = name birth\n\
         kyc_oauth2_validity = forever\nkyc_oauth2_login_url = {provider}/login\n\
         kyc_oauth2_auth_url = {provider}/token\nkyc_oauth2_info_url = {provider}/info\n\
         kyc_oauth2_post_url = http://shop.example/\nkyc_oauth2_client_id = exchange\n\
         kyc_oauth2_client_secret = hush\n\
         [kyc-provider-clerk]\nlogic = manual\nuser_type = business\nprovided_checks = name\n\
         kyc_manual_validity = 1 year\n[kyc-officer-alice]\ntoken_hash = {hash}\n"
    ));
    let list = set_up.must(TESTER, &[]);
    assert!(list.lines().any(|line| line.contains("login") && line.ends_with("name birth")), "{list}");
    failed(&set_up.run(TESTER, &["nobody"]), 1, "kyc-provider-nobody");
    failed(&set_up.run(TESTER, &["clerk"]), 1, "officers");
    let output = set_up.run(TESTER, &["login", "--wait", "0"]);
    assert!(stderr(&output).contains("nobody came back") && output.status.code() == Some(1));

    // The customer logs in at the provider, which sends the browser back with a code.
    for (code, is_good) in [("bad", false), ("good", true)] {
        let mut command = set_up.program(TESTER, &["login", "--json"]);
        let mut child = command
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        let first: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        let user_url = first["user_url"].as_str().unwrap();
        let query = user_url.strip_prefix(&format!("{provider}/login?")).unwrap();
        let query = Head::local(Method::GET, &format!("/?{query}"));
        assert_eq!(
            (query.query_text("client_id"), query.query_text("response_type")),
            (Some("exchange"), Some("code"))
        );
        let back = query.query_text("redirect_uri").unwrap();
        let client = Client::new(&ClientOptions::default()).unwrap();
        let get = |url: String| runtime.block_on(client.get_json(url)).unwrap().status;
        // Somebody else's page, and a guess.
        assert_eq!(get(back.replace("kyc-provider-login", "kyc-provider-other")), 404);
        let guess = format!("{}?state={}&code=good", back.split_once('?').unwrap().0, "0".repeat(52));
        assert_eq!(get(guess), 404);
        assert_eq!(get(format!("{back}&code={code}")), if is_good { 303 } else { 403 });
        let second = lines.next();
        assert_eq!(child.wait().unwrap().code(), Some(if is_good { 0 } else { 1 }));
        let Some(second) = second else {
            assert!(!is_good);
            continue;
        };
        let identity: serde_json::Value = serde_json::from_str(&second.unwrap()).unwrap();
        assert_eq!(identity["user_id"], "zoe-7");
        assert_eq!(identity["attributes"]["age"], 9);
        assert!(is_good);
    }
    drain.trigger();
}
