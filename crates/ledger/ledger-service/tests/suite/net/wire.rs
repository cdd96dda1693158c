//! Server and client over real sockets, in front of a ledger in memory.

use crate::net::common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use batzen_http::{Drain, Handler, Listen, Method, Request};
use batzen_ledger::{
    Account, BATCH_EVENTS_MAX, ChangeFilter, CreateTransferStatus, Ledger, LedgerError, MemoryLedger,
    QueryFilter, SEARCH_MAX, Transfer, TransferFlags, in_parts,
};
use batzen_ledger_service::net::api::LedgerApi;
use batzen_ledger_service::net::frame::{self, BODY_BYTES_MAX, HEADER_BYTES, Header, Hello, Kind, Status};
use batzen_ledger_service::net::{ClientOptions, LedgerAddress, LedgerClient, NetOptions, connect};
use common::{Gate, Proxy, Served, account, transfer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Enough for the conformance examples: the memory ledger uses the clock of the machine.
async fn wait(time: Duration) {
    tokio::time::sleep(time).await;
}

#[tokio::test]
async fn a_ledger_behind_tcp_conforms() {
    let served = Served::start(Arc::new(MemoryLedger::with_system_clock()), NetOptions::default()).await;
    let ledger = connect(&served.url).await.unwrap();
    batzen_ledger::conformance::check(ledger.as_ref(), 1 << 64, wait).await;
    drop(ledger);
    served.stop().await;
}

#[tokio::test]
async fn a_ledger_behind_a_local_socket_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let listen = Listen::Unix { path: dir.path().join("ledger.sock"), mode: 0o600 };
    let memory = Arc::new(MemoryLedger::with_system_clock());
    let served = Served::start_on(listen, memory, NetOptions::default()).await;
    let ledger = connect(&served.url).await.unwrap();
    batzen_ledger::conformance::check(ledger.as_ref(), 1, wait).await;
    served.stop().await;
    assert!(!dir.path().join("ledger.sock").exists());
}

#[tokio::test]
async fn requests_of_many_connections_share_batches() {
    let gate = Arc::new(Gate::new(MemoryLedger::with_system_clock()));
    let options = NetOptions { batches_in_flight: 1, ..NetOptions::default() };
    let served = Served::start(Arc::clone(&gate) as Arc<dyn Ledger>, options).await;
    let first = connect(&served.url).await.unwrap();
    first.create_accounts(vec![account(1), account(2)]).await.unwrap();
    gate.close();
    let mut calls = Vec::new();
    for id in 1..=200 {
        let client = connect(&served.url).await.unwrap();
        calls.push(tokio::spawn(async move { client.create_transfers(vec![transfer(id, 1, 2, 1)]).await }));
    }
    // All requests have arrived. The ledger has the first; the others wait.
    while served.stats.requests(Kind::CreateTransfers) < 200 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    gate.open();
    for call in calls {
        let results = call.await.unwrap().unwrap();
        assert_eq!(results.len(), 1);
        assert_eq!(results[0].status, CreateTransferStatus::Created);
    }
    let (batches, events) = served.stats.batches();
    assert_eq!(events, 202);
    assert!(batches < 20, "{batches} batches");
    assert_eq!(gate.inner.counts().transfers, 200);
    served.stop().await;
}

#[tokio::test]
async fn callers_of_one_client_share_frames_and_chains_stay_apart() {
    let gate = Arc::new(Gate::new(MemoryLedger::with_system_clock()));
    let served = Served::start(Arc::clone(&gate) as Arc<dyn Ledger>, NetOptions::default()).await;
    let client = connect(&served.url).await.unwrap();
    client.create_accounts(vec![account(1), account(2)]).await.unwrap();
    gate.close();
    let mut calls = Vec::new();
    for id in 1..=300_u128 {
        let client = Arc::clone(&client);
        let mut event = transfer(id, 1, 2, 1);
        // Every tenth caller leaves its chain open, which must not extend into the next caller's events.
        if id % 10 == 0 {
            event.flags = TransferFlags::LINKED;
        }
        calls.push((id, tokio::spawn(async move { client.create_transfers(vec![event]).await })));
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    gate.open();
    for (id, call) in calls {
        let expected = match id % 10 {
            0 => CreateTransferStatus::LinkedEventChainOpen,
            _ => CreateTransferStatus::Created,
        };
        assert_eq!(call.await.unwrap().unwrap()[0].status, expected, "{id}");
    }
    assert!(served.stats.requests(Kind::CreateTransfers) < 200);
    served.stop().await;
}

#[tokio::test]
async fn requests_are_repeated_under_the_same_ids_after_a_broken_connection() {
    let memory = Arc::new(MemoryLedger::with_system_clock());
    let served = Served::start(Arc::clone(&memory) as Arc<dyn Ledger>, NetOptions::default()).await;
    let proxy = Proxy::start(&served.url).await;
    let ledger = connect(&proxy.url).await.unwrap();
    ledger.create_accounts(vec![account(1), account(2)]).await.unwrap();
    // The request arrives; the answer is lost with the connection.
    proxy.lose_answers.store(true, Ordering::SeqCst);
    let call = {
        let ledger = Arc::clone(&ledger);
        tokio::spawn(async move { ledger.create_transfers(vec![transfer(1, 1, 2, 5)]).await })
    };
    while memory.counts().transfers == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    proxy.lose_answers.store(false, Ordering::SeqCst);
    proxy.cut();
    let results = call.await.unwrap().unwrap();
    assert_eq!(results[0].status, CreateTransferStatus::Exists);
    assert_eq!(ledger.lookup_accounts(vec![2]).await.unwrap()[0].credits_posted, 5);
    served.stop().await;
}

#[tokio::test]
async fn an_unreachable_ledger_is_unknown_after_a_bounded_time_and_busy_if_nothing_was_sent() {
    let gate = Arc::new(Gate::new(MemoryLedger::with_system_clock()));
    let served = Served::start(Arc::clone(&gate) as Arc<dyn Ledger>, NetOptions::default()).await;
    let options = ClientOptions { retry_for: Duration::from_millis(100), ..ClientOptions::default() };
    let address: LedgerAddress = served.url.parse().unwrap();
    let client = Arc::new(LedgerClient::connect(address.clone(), options.clone()).await.unwrap());
    client.create_accounts(vec![account(1), account(2)]).await.unwrap();
    gate.close();
    let call = {
        let client = Arc::clone(&client);
        tokio::spawn(async move { client.create_transfers(vec![transfer(1, 1, 2, 5)]).await })
    };
    while served.stats.requests(Kind::CreateTransfers) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    served.abort();
    assert!(matches!(call.await.unwrap(), Err(LedgerError::Unknown(_))));
    assert!(matches!(client.create_transfers(vec![transfer(2, 1, 2, 5)]).await, Err(LedgerError::Busy(_))));
    assert!(matches!(LedgerClient::connect(address, options).await, Err(LedgerError::Busy(_))));
}

#[tokio::test]
async fn more_than_a_batch_is_refused_before_it_is_sent() {
    let served = Served::start(Arc::new(MemoryLedger::with_system_clock()), NetOptions::default()).await;
    let ledger = connect(&served.url).await.unwrap();
    let events = vec![transfer(1, 1, 2, 1); BATCH_EVENTS_MAX + 1];
    assert_eq!(ledger.create_transfers(events).await, Err(LedgerError::TooMuchData));
    assert_eq!(ledger.create_transfers(Vec::new()).await, Ok(Vec::new()));
    assert_eq!(ledger.lookup_accounts(Vec::new()).await, Ok(Vec::new()));
    served.stop().await;
}

#[tokio::test]
async fn change_events_come_in_as_many_frames_as_they_need() {
    let served = Served::start(Arc::new(MemoryLedger::with_system_clock()), NetOptions::default()).await;
    let ledger = connect(&served.url).await.unwrap();
    ledger.create_accounts(vec![account(1), account(2)]).await.unwrap();
    let count = 6_000;
    let events: Vec<Transfer> = (1..=count).map(|id| transfer(id, 1, 2, 1)).collect();
    ledger.create_transfers(events).await.unwrap();
    for limit in [1, 2_619, 2_620, 2_621, 5_999, 6_000, 8_189, u32::MAX] {
        let events =
            ledger.get_change_events(ChangeFilter { limit, ..ChangeFilter::default() }).await.unwrap();
        let ids: Vec<u128> = events.iter().map(|event| event.transfer.id).collect();
        let expected: Vec<u128> = (1..=count.min(u128::from(limit))).collect();
        assert_eq!(ids, expected, "limit {limit}");
    }
    served.stop().await;
}

struct Raw(TcpStream);

impl Raw {
    async fn new(url: &str) -> Self {
        Self(TcpStream::connect(url.strip_prefix("tcp://").unwrap()).await.unwrap())
    }

    async fn hello(url: &str) -> Self {
        let mut raw = Self::new(url).await;
        raw.send(Kind::Hello, 3, &Hello::of_client().to_bytes()).await;
        let (header, body) = raw.receive().await.unwrap();
        assert_eq!((header.status, header.number), (0, 3));
        assert!(Hello::from_bytes(&body).unwrap().speaks_our_version());
        raw
    }

    async fn send(&mut self, kind: Kind, number: u64, body: &[u8]) {
        let mut bytes = Vec::new();
        frame::push(&mut bytes, kind, Status::Done, number, body);
        self.0.write_all(&bytes).await.unwrap();
    }

    /// The next frame; `None` if the server has closed the connection.
    async fn receive(&mut self) -> Option<(Header, Vec<u8>)> {
        let mut header = [0; HEADER_BYTES];
        self.0.read_exact(&mut header).await.ok()?;
        let header = Header::from_bytes(&header).unwrap();
        let mut body = vec![0; header.size as usize];
        self.0.read_exact(&mut body).await.unwrap();
        Some((header, body))
    }
}

#[tokio::test]
async fn too_much_data_is_refused_and_the_connection_continues() {
    let served = Served::start(Arc::new(MemoryLedger::with_system_clock()), NetOptions::default()).await;
    let mut raw = Raw::hello(&served.url).await;
    let mut header = Header::new(Kind::CreateTransfers, Status::Done, 9, &[]);
    header.size = u32::try_from(BODY_BYTES_MAX + 128).unwrap();
    raw.0.write_all(&header.to_bytes()).await.unwrap();
    raw.0.write_all(&vec![1; BODY_BYTES_MAX + 128]).await.unwrap();
    raw.send(Kind::Ping, 10, &[]).await;
    let (header, _) = raw.receive().await.unwrap();
    assert_eq!((header.number, header.status), (9, Status::TooMuchData as u16));
    let (header, _) = raw.receive().await.unwrap();
    assert_eq!((header.number, header.status), (10, Status::Done as u16));
    served.stop().await;
}

#[tokio::test]
async fn a_malformed_frame_ends_the_connection_with_a_reason() {
    let served = Served::start(Arc::new(MemoryLedger::with_system_clock()), NetOptions::default()).await;
    let said = |answer: Option<(Header, Vec<u8>)>| {
        let (header, body) = answer.expect("an answer before the end");
        (header.status, String::from_utf8(body).unwrap())
    };
    // Another version.
    let mut raw = Raw::new(&served.url).await;
    let hello = Hello { version_min: 8, version_max: 9, ..Hello::of_client() };
    raw.send(Kind::Hello, 0, &hello.to_bytes()).await;
    assert_eq!(said(raw.receive().await).0, Status::Version as u16);
    assert!(raw.receive().await.is_none());
    // Not a hello.
    let mut raw = Raw::new(&served.url).await;
    raw.send(Kind::Ping, 0, &[]).await;
    assert_eq!(said(raw.receive().await).0, Status::Malformed as u16);
    // Another protocol.
    let mut raw = Raw::new(&served.url).await;
    raw.0.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    assert_eq!(said(raw.receive().await).0, Status::Malformed as u16);
    // Damage in a body.
    let mut raw = Raw::hello(&served.url).await;
    let mut bytes = Vec::new();
    frame::push(&mut bytes, Kind::CreateTransfers, Status::Done, 1, &[5; 128]);
    bytes[HEADER_BYTES + 3] ^= 1;
    raw.0.write_all(&bytes).await.unwrap();
    let (status, text) = said(raw.receive().await);
    assert_eq!((status, text.as_str()), (Status::Malformed as u16, "the body's checksum is wrong"));
    assert!(raw.receive().await.is_none());
    // An incomplete record is refused, and the connection continues.
    let mut raw = Raw::hello(&served.url).await;
    raw.send(Kind::CreateTransfers, 1, &[5; 127]).await;
    assert_eq!(said(raw.receive().await).0, Status::Refused as u16);
    raw.send(Kind::QueryAccounts, 2, &[0xff; 64]).await;
    assert_eq!(said(raw.receive().await).0, Status::Refused as u16);
    raw.send(Kind::LookupAccounts, 3, &[0; 16]).await;
    assert_eq!(said(raw.receive().await).0, Status::Done as u16);
    served.stop().await;
}

#[tokio::test]
async fn a_full_queue_and_too_many_connections_are_answered_busy() {
    let gate = Arc::new(Gate::new(MemoryLedger::with_system_clock()));
    let options = NetOptions {
        batches_in_flight: 1,
        full_batches_in_flight: 1,
        queue_events_max: 10,
        // One address has a share of half.
        connections_max: 4,
        ..NetOptions::default()
    };
    let served = Served::start(Arc::clone(&gate) as Arc<dyn Ledger>, options).await;
    let ledger = connect(&served.url).await.unwrap();
    let mut raw = Raw::hello(&served.url).await;
    let mut third = Raw::new(&served.url).await;
    assert_eq!(third.receive().await.unwrap().0.status, Status::Busy as u16);
    ledger.create_accounts(vec![account(1), account(2)]).await.unwrap();
    gate.close();
    for number in 1..=20_u128 {
        let body = transfer(number, 1, 2, 1).to_bytes();
        raw.send(Kind::CreateTransfers, u64::try_from(number).unwrap(), &body).await;
    }
    let (header, _) = raw.receive().await.unwrap();
    assert_eq!(header.status, Status::Busy as u16);
    gate.open();
    let mut done = 0;
    for _ in 0..19 {
        let (header, _) = raw.receive().await.unwrap();
        done += u32::from(header.status == Status::Done as u16);
    }
    assert!((10..20).contains(&done), "{done}");
    served.stop().await;
}

/// A frame of the largest size, of which `count` bytes of the body have come.
fn unfinished(count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::push(&mut bytes, Kind::CreateTransfers, Status::Done, 1, &vec![0; BODY_BYTES_MAX]);
    bytes.truncate(HEADER_BYTES + count);
    bytes
}

#[tokio::test]
async fn unfinished_frames_have_a_deadline_and_a_share_of_memory() {
    let stall_timeout = Duration::from_millis(400);
    let options = NetOptions { buffered_bytes_max: 1 << 20, stall_timeout, ..NetOptions::default() };
    let served = Served::start(Arc::new(MemoryLedger::with_system_clock()), options).await;
    let said = |answer: Option<(Header, Vec<u8>)>| {
        let (header, body) = answer.expect("an answer before the end");
        (header.status, String::from_utf8(body).unwrap())
    };
    // Each byte comes in time, but the frame does not end.
    let mut slow = Raw::hello(&served.url).await;
    slow.0.write_all(&unfinished(0)).await.unwrap();
    while slow.0.write_all(&[0]).await.is_ok() {
        tokio::time::sleep(stall_timeout / 20).await;
    }
    // What has come of frames may take the client's share of memory, and no more.
    let mut large = Vec::new();
    let mut refused = None;
    for _ in 0..20 {
        let mut raw = Raw::hello(&served.url).await;
        raw.0.write_all(&unfinished(90 << 10)).await.unwrap();
        if let Ok(answer) = tokio::time::timeout(stall_timeout / 20, raw.receive()).await {
            refused = Some(said(answer));
            break;
        }
        large.push(raw);
    }
    let (status, text) = refused.expect("the share is smaller than twenty frames");
    assert_eq!((status, text.as_str()), (Status::Busy as u16, "too many unfinished frames"));
    // Small requests of this client, and frames of others, do not need it.
    let mut raw = Raw::hello(&served.url).await;
    raw.send(Kind::LookupAccounts, 1, &[0; 16]).await;
    assert_eq!(raw.receive().await.unwrap().0.status, Status::Done as u16);
    for mut raw in large {
        assert_eq!(said(raw.receive().await).1, "the rest of a frame is missing");
    }
    served.stop().await;
}

#[tokio::test]
async fn answers_that_nobody_reads_take_a_share_of_memory() {
    let options = NetOptions { buffered_bytes_max: 4 << 20, ..NetOptions::default() };
    let served = Served::start(Arc::new(MemoryLedger::with_system_clock()), options).await;
    let ledger = connect(&served.url).await.unwrap();
    let accounts: Vec<Account> = (1..=BATCH_EVENTS_MAX as u128).map(account).collect();
    let ids: Vec<u8> = accounts.iter().flat_map(|account| account.id.to_le_bytes()).collect();
    ledger.create_accounts(accounts).await.unwrap();
    let mut raw = Raw::hello(&served.url).await;
    for number in 0..40 {
        raw.send(Kind::LookupAccounts, number, &ids).await;
    }
    // Nothing is read until every answer is waiting or refused.
    while served.stats.requests(Kind::LookupAccounts) < 40 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut statuses = Vec::new();
    for _ in 0..40 {
        statuses.push(raw.receive().await.unwrap().0.status);
    }
    let count = |status: Status| statuses.iter().filter(|got| **got == status as u16).count();
    assert!(count(Status::Done) > 0 && count(Status::Busy) > 0, "{statuses:?}");
    assert_eq!(count(Status::Done) + count(Status::Busy), 40);
    // All of it is free again.
    raw.send(Kind::LookupAccounts, 50, &ids).await;
    assert_eq!(raw.receive().await.unwrap().0.status, Status::Done as u16);
    served.stop().await;
}

#[tokio::test]
async fn a_client_that_reads_no_answers_to_changes_is_cut_off() {
    let options = NetOptions { buffered_bytes_max: 1 << 20, ..NetOptions::default() };
    let served = Served::start(Arc::new(MemoryLedger::with_system_clock()), options).await;
    let mut raw = Raw::hello(&served.url).await;
    // Smaller than the share, which also holds what has come of a frame.
    let transfers: Vec<u8> = (1..=1_000).flat_map(|id| transfer(id, 1, 2, 1).to_bytes()).collect();
    let mut request = Vec::new();
    frame::push(&mut request, Kind::CreateTransfers, Status::Done, 1, &transfers);
    let until_cut = async { while raw.0.write_all(&request).await.is_ok() {} };
    tokio::time::timeout(Duration::from_secs(120), until_cut).await.expect("the socket is closed");
    assert!(served.stats.requests(Kind::CreateTransfers) > 10, "it was cut off for the answers");
    // Its share is free for others from the same address.
    let ledger = connect(&served.url).await.unwrap();
    assert_eq!(ledger.create_accounts(vec![account(1), account(2)]).await.unwrap().len(), 2);
    served.stop().await;
}

#[tokio::test]
async fn a_connection_with_too_much_in_flight_is_not_read_until_there_is_room() {
    let gate = Arc::new(Gate::new(MemoryLedger::with_system_clock()));
    let options = NetOptions { in_flight_max: 4, ..NetOptions::default() };
    let served = Served::start(Arc::clone(&gate) as Arc<dyn Ledger>, options).await;
    let mut raw = Raw::hello(&served.url).await;
    gate.close();
    for number in 1..=50_u128 {
        let body = transfer(number, 1, 2, 1).to_bytes();
        raw.send(Kind::CreateTransfers, u64::try_from(number).unwrap(), &body).await;
    }
    let four = async {
        while served.stats.requests(Kind::CreateTransfers) < 4 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), four).await.unwrap();
    // Time in which a server without the limit would read more.
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(served.stats.requests(Kind::CreateTransfers), 4);
    gate.open();
    for _ in 0..50 {
        assert_eq!(raw.receive().await.unwrap().0.status, Status::Done as u16);
    }
    served.stop().await;
}

#[tokio::test]
async fn requests_already_read_are_answered_before_the_server_ends() {
    let gate = Arc::new(Gate::new(MemoryLedger::with_system_clock()));
    let served = Served::start(Arc::clone(&gate) as Arc<dyn Ledger>, NetOptions::default()).await;
    let ledger = connect(&served.url).await.unwrap();
    gate.close();
    let call = tokio::spawn(async move { ledger.create_accounts(vec![account(7)]).await });
    while served.stats.requests(Kind::CreateAccounts) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let drain: Drain = served.drain.clone();
    drain.trigger();
    gate.open();
    assert_eq!(call.await.unwrap().unwrap().len(), 1);
    served.stop().await;
    assert_eq!(
        gate.inner.lookup_accounts(vec![7]).await.unwrap(),
        vec![Account {
            timestamp: gate.inner.lookup_accounts(vec![7]).await.unwrap()[0].timestamp,
            ..account(7)
        }]
    );
}

/// A ledger with more accounts than one search reads, the last of which has code 2, over both interfaces.
#[tokio::test]
async fn a_search_that_reaches_its_limit_goes_on_from_there() {
    let memory = Arc::new(MemoryLedger::with_system_clock());
    let last = u128::from(SEARCH_MAX) + 10_000;
    let ids: Vec<u128> = (1..=last).collect();
    for ids in ids.chunks(BATCH_EVENTS_MAX) {
        let code = |id| if id == last { 2 } else { 1 };
        let accounts = ids.iter().map(|id| Account { code: code(*id), ..account(*id) }).collect();
        memory.create_accounts(accounts).await.unwrap();
    }
    let served = Served::start(Arc::clone(&memory) as Arc<dyn Ledger>, NetOptions::default()).await;
    let client = connect(&served.url).await.unwrap();
    let filter = QueryFilter { code: 2, limit: 10, ..QueryFilter::default() };
    let until = match client.query_accounts(filter).await {
        Err(LedgerError::Unfinished { until }) => until,
        other => panic!("{other:?}"),
    };
    let found = in_parts(filter, |filter| client.query_accounts(filter)).await.unwrap();
    assert_eq!(found.iter().map(|account| account.id).collect::<Vec<_>>(), [last]);
    let reversed = QueryFilter { limit: 1, reversed: true, ..filter };
    assert_eq!(client.query_accounts(reversed).await.unwrap(), found, "the first account read matches");
    served.stop().await;

    let api = Arc::new(LedgerApi::new(memory, Arc::default(), Arc::new(|_| {}), None)).handler();
    let query = |body: &str| api.handle(Request::local(Method::POST, "/v1/accounts/query", body.to_owned()));
    let answer = query(r#"{"code": 2}"#).await;
    assert_eq!((answer.status, answer.json_value()["error"].as_str()), (422, Some("unfinished")));
    assert_eq!(answer.json_value()["until"], until.to_string());
    let rest = query(&format!(r#"{{"code": 2, "timestamp_min": "{}"}}"#, until + 1)).await.json_value();
    assert_eq!(rest["accounts"][0]["id"], last.to_string());
}
