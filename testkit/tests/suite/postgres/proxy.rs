//! The proxy passes everything on, and cuts exactly where it should.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};

use batzen_testkit::postgres::{Moment, Proxy, Rest, fresh_database, shared};

/// A database with an empty table behind a proxy.
struct Fixture {
    proxy: Proxy,
    database: String,
    url: String,
}

impl Fixture {
    fn new() -> Self {
        let database = fresh_database().rsplit('/').next().unwrap().to_owned();
        shared().sql(&database, "CREATE TABLE t (n int)").unwrap();
        let proxy = Proxy::start(shared().port()).unwrap();
        let url = shared().url_at(proxy.port(), &database);
        Self { proxy, database, url }
    }

    /// One transaction of four messages: BEGIN, two inserts, COMMIT.
    fn transaction(&self) -> Output {
        let mut psql = Command::new("psql")
            .args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-d", &self.url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let script = b"BEGIN;\nINSERT INTO t VALUES (1);\nINSERT INTO t VALUES (2);\nCOMMIT;\n";
        psql.stdin.take().unwrap().write_all(script).unwrap();
        psql.wait_with_output().unwrap()
    }

    /// The number of rows, once the server has ended the session that was cut.
    fn rows(&self) -> u32 {
        let sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
        while shared().sql(&self.database, sessions).unwrap() != "0" {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        shared().sql(&self.database, "SELECT count(*) FROM t").unwrap().parse().unwrap()
    }
}

#[test]
fn everything_passes_without_a_plan() {
    let fixture = Fixture::new();
    assert!(fixture.transaction().status.success());
    assert_eq!(fixture.rows(), 2);
    assert_eq!((fixture.proxy.accepted(), fixture.proxy.cuts()), (1, 0));
}

#[test]
fn only_a_commit_that_reached_the_server_takes_effect() {
    for messages in 0..4 {
        let fixture = Fixture::new();
        fixture.proxy.cut(Moment::MessagesToServer(messages), Rest::Lost);
        assert!(!fixture.transaction().status.success(), "cut after {messages} messages");
        assert_eq!((fixture.rows(), fixture.proxy.cuts()), (0, 1), "cut after {messages} messages");
    }
    let fixture = Fixture::new();
    fixture.proxy.cut(Moment::MessagesToServer(4), Rest::Lost);
    assert!(fixture.transaction().status.success(), "there is no fifth message");
    assert_eq!((fixture.rows(), fixture.proxy.cuts()), (2, 0));
}

#[test]
fn a_commit_whose_answer_is_lost_took_effect() {
    // The answers have 17, 22, 22 and 18 bytes: all three cuts are within or before the last one.
    for moment in [Moment::CommitSeen, Moment::MessagesFromServer(6), Moment::BytesFromServer(70)] {
        let fixture = Fixture::new();
        fixture.proxy.cut(moment, Rest::Lost);
        assert!(!fixture.transaction().status.success(), "{moment:?}");
        let rows = fixture.rows();
        assert_eq!(fixture.proxy.cuts(), 1, "{moment:?}");
        // psql waits for each answer, so that only the last cut is after its COMMIT.
        assert!(rows == 2 || moment != Moment::CommitSeen, "{moment:?}: {rows}");
    }
}

#[test]
fn late_messages_reach_the_server_when_they_are_released() {
    let fixture = Fixture::new();
    fixture.proxy.cut(Moment::MessagesToServer(3), Rest::Late);
    assert!(!fixture.transaction().status.success());
    assert_eq!(shared().sql(&fixture.database, "SELECT count(*) FROM t").unwrap(), "0");
    fixture.proxy.release();
    assert_eq!(fixture.rows(), 2, "the COMMIT was only late");
}

#[test]
fn bytes_are_counted_within_messages() {
    let fixture = Fixture::new();
    fixture.proxy.cut(Moment::BytesToServer(20), Rest::Lost);
    assert!(!fixture.transaction().status.success());
    assert_eq!((fixture.rows(), fixture.proxy.cuts()), (0, 1));
}

#[test]
fn closed_proxy_refuses_connections() {
    let fixture = Fixture::new();
    fixture.proxy.refuse(true);
    assert!(!fixture.transaction().status.success());
    fixture.proxy.refuse(false);
    assert!(fixture.transaction().status.success());
    fixture.proxy.cut(Moment::CommitSeen, Rest::Lost);
    assert!(fixture.proxy.cancel_cut());
    assert!(fixture.transaction().status.success());
    assert_eq!(fixture.rows(), 4);
}

/// A server for one connection that answers every message at once, inside or outside a transaction.
fn quick_server(listener: &TcpListener) {
    let (mut client, _) = listener.accept().unwrap();
    client.set_nodelay(true).unwrap();
    let mut start = [0; 8];
    client.read_exact(&mut start).unwrap();
    let mut message = [0; 5];
    while client.read_exact(&mut message).is_ok() {
        let mut text = vec![0; usize::from(message[4]) - 4];
        client.read_exact(&mut text).unwrap();
        let state = if text == b"BEGIN\0" { b'T' } else { b'I' };
        // A client whose connection is cut gets no answer.
        let _ = client.write_all(&[b'Z', 0, 0, 0, 5, state]);
    }
}

#[test]
fn plan_applies_to_the_next_transaction_however_soon_it_begins() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap().port()).unwrap();
    let server = std::thread::spawn(move || quick_server(&listener));
    let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).unwrap();
    client.set_nodelay(true).unwrap();
    client.write_all(&[0, 0, 0, 8, 0, 3, 0, 0]).unwrap();
    let mut say = |text: &[u8]| {
        let length = u8::try_from(text.len() + 4).unwrap();
        client.write_all(&[&[b'Q', 0, 0, 0, length], text].concat()).unwrap();
        let mut answer = [0; 6];
        client.read_exact(&mut answer).is_ok()
    };
    for transaction in 0..3000 {
        proxy.cut(Moment::MessagesFromServer(5), Rest::Lost);
        assert!(say(b"BEGIN\0") && say(b"COMMIT\0"), "{transaction} has two answers and is not cut");
        assert!(!proxy.cancel_cut(), "{transaction} is the one that the plan was for");
    }
    proxy.cut(Moment::CommitSeen, Rest::Lost);
    assert!(say(b"BEGIN\0") && !say(b"COMMIT\0"));
    assert_eq!(proxy.cuts(), 1, "the cut is counted before the client notices it");
    drop(proxy);
    server.join().unwrap();
}
