//! When a client counts a server as lost.

use crate::net::common;

use std::sync::Arc;
use std::time::Duration;

use batzen_ledger::{CreateResult, CreateTransferStatus, Ledger, MemoryLedger};
use batzen_ledger_service::net::body::push_all;
use batzen_ledger_service::net::frame::{self, HEADER_BYTES, Header, Hello, Kind, Status};
use batzen_ledger_service::net::{ClientOptions, LedgerClient, NetOptions};
use common::{Proxy, Served, account, transfer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The runtime of a client stands still for longer than an answer may take: that of a measurement does while others load
/// the ledger. Meanwhile nothing was owed, so the next request has all of its time, also if the connection has ended.
#[test]
fn time_in_which_a_client_stood_still_does_not_count() {
    let server = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let client = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let memory = Arc::new(MemoryLedger::with_system_clock());
    let served = server.block_on(Served::start(memory, NetOptions::default()));
    let proxy = server.block_on(Proxy::start(&served.url));
    let patience = Duration::from_secs(3);
    let options = ClientOptions { answer_timeout: patience, retry_for: patience, ..ClientOptions::default() };
    let ledger = client.block_on(LedgerClient::connect(proxy.url.parse().unwrap(), options)).unwrap();
    client.block_on(ledger.create_accounts(vec![account(1)])).unwrap();
    for is_cut in [false, true] {
        std::thread::sleep(patience + Duration::from_millis(500));
        if is_cut {
            proxy.cut();
        }
        let found = client.block_on(ledger.lookup_accounts(vec![1]));
        assert_eq!(found.expect("it is answered").len(), 1, "cut: {is_cut}");
    }
    drop(ledger);
    server.block_on(served.stop());
}

/// Answers the requests on a connection, except perhaps those that create transfers.
async fn answer(mut stream: TcpStream, answers_creates: bool) -> std::io::Result<()> {
    loop {
        let mut header = [0; HEADER_BYTES];
        stream.read_exact(&mut header).await?;
        let header = Header::from_bytes(&header).unwrap();
        let mut body = vec![0; header.size as usize];
        stream.read_exact(&mut body).await?;
        let (mut out, mut answer) = (Vec::new(), Vec::new());
        let kind = if header.kind == Kind::Hello as u16 {
            answer.extend(Hello { in_flight_max: 16, ..Hello::of_client() }.to_bytes());
            Kind::Hello
        } else if header.kind == Kind::CreateTransfers as u16 {
            if !answers_creates {
                continue;
            }
            push_all(&mut answer, &[CreateResult { timestamp: 1, status: CreateTransferStatus::Created }]);
            Kind::CreateTransfers
        } else {
            Kind::LookupAccounts
        };
        frame::push(&mut out, kind, Status::Done, header.number, &answer);
        stream.write_all(&out).await?;
    }
}

#[tokio::test]
async fn a_request_without_an_answer_is_repeated_although_others_are_answered() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("tcp://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        for number in 0.. {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(answer(stream, number > 0));
        }
    });
    let options = ClientOptions {
        answer_timeout: Duration::from_millis(500),
        retry_for: PATIENCE,
        ..ClientOptions::default()
    };
    let client = Arc::new(LedgerClient::connect(url.parse().unwrap(), options).await.unwrap());
    let creating = {
        let client = Arc::clone(&client);
        tokio::spawn(async move { client.create_transfers(vec![transfer(1, 1, 2, 1)]).await })
    };
    let until_created = async {
        while !creating.is_finished() {
            assert_eq!(client.lookup_accounts(vec![1]).await, Ok(Vec::new()));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, until_created).await.expect("it is repeated");
    assert_eq!(creating.await.unwrap().unwrap()[0].status, CreateTransferStatus::Created);
}
