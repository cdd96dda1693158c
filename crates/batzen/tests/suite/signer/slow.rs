//! Clients that start a request and do not finish it: each is disconnected, and no other client has to wait
//! for them.

use std::time::{Duration, Instant};

use batzen_http::client::{Client, ClientOptions};
use batzen_signer::channel::{Channel, Connect, load_key};
use batzen_signer::frame::{HEADER_BYTES, Header, Hello, Kind, Side, VERSION};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::common::{PATIENCE, http};
use crate::signer::deployment::Deployment;

/// Sends the first bytes at once and then one per second, until the other side hangs up.
async fn drip(stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite, at_once: Vec<u8>, others: Vec<u8>) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let begun = Instant::now();
    let write = async {
        writer.write_all(&at_once).await?;
        writer.flush().await?;
        for byte in others {
            tokio::time::sleep(Duration::from_secs(1)).await;
            writer.write_u8(byte).await?;
            writer.flush().await?;
        }
        Ok::<(), std::io::Error>(())
    };
    let hung_up = async {
        let mut sink = [0; 1024];
        while matches!(reader.read(&mut sink).await, Ok(1..)) {}
    };
    tokio::pin!(hung_up);
    let cut = async {
        tokio::select! {
            () = &mut hung_up => return,
            _ = write => {}
        }
        // Either everything is sent, or the connection is closed.
        hung_up.await;
    };
    tokio::time::timeout(PATIENCE, cut).await.expect("a slow client is cut off");
    println!("cut off after {:.0?}", begun.elapsed());
}

/// A node's channel after both hellos.
async fn greeted(connect: &Connect, deployment: &Deployment) -> Channel {
    let address = format!("tcp://127.0.0.1:{}", deployment.ports[0]).parse().unwrap();
    let mut channel = connect.connect(&address, PATIENCE).await.unwrap();
    let mut hello = Header::request(Kind::Hello, 0, 1, 0).to_bytes().to_vec();
    hello.extend_from_slice(&Hello { version: VERSION, items_max: 0, keys_version: 0 }.to_bytes());
    channel.write_all(&hello).await.unwrap();
    channel.flush().await.unwrap();
    let mut head = [0; HEADER_BYTES];
    channel.read_exact(&mut head).await.unwrap();
    let header = Header::from_bytes(&head, Side::Answer).unwrap();
    channel.read_exact(&mut vec![0; header.body]).await.unwrap();
    channel
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_connections_are_closed_and_delay_no_others() {
    let deployment = Deployment::new();
    let mut signer = deployment.start_signer(0);
    let key = load_key(&deployment.path("node-0/static.key")).unwrap();
    let connect = Connect::new(&key, vec![deployment.signer_keys[0].parse().unwrap()]).unwrap();

    // It sends nothing, and may do so for longer than the others may take for a frame.
    let mut quiet = greeted(&connect, &deployment).await;
    let mut slow = JoinSet::new();
    let began = Instant::now();
    // A handshake that stops after three bytes, and one of a byte per second: each announces a record of 512
    // bytes.
    let record = vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    for at_once in [3, record.len()] {
        let stream = TcpStream::connect(("127.0.0.1", deployment.ports[0])).await.unwrap();
        let others = if at_once == 3 { Vec::new() } else { vec![7; 500] };
        slow.spawn(drip(stream, record[..at_once].to_vec(), others));
    }
    // A node's frame that stops within its header or its body, and one of a byte per second.
    let header = Header::request(Kind::Eddsa, 0, 256, 1);
    let mut frame = header.to_bytes().to_vec();
    frame.resize(HEADER_BYTES + header.body, 0);
    for (at_once, drips) in
        [(HEADER_BYTES / 2, false), (HEADER_BYTES + header.body / 2, false), (0, true), (HEADER_BYTES, true)]
    {
        let channel = greeted(&connect, &deployment).await;
        let others = if drips { frame[at_once..].to_vec() } else { Vec::new() };
        slow.spawn(drip(channel, frame[..at_once].to_vec(), others));
    }

    // All of them are under way, and other clients are answered.
    let status = tokio::task::block_in_place(|| deployment.status(0));
    assert_eq!(status["signers"][0]["status"]["role"], "primary", "{status:#}");
    greeted(&connect, &deployment).await;
    assert_eq!(slow.len(), 6);
    // A busy machine may need as long for this as slow clients are given.
    if began.elapsed() < Duration::from_secs(4) {
        assert!(slow.try_join_next().is_none(), "a client was disconnected before the others were answered");
    }

    slow.join_all().await;
    let mut byte = [0];
    let still = tokio::time::timeout(Duration::from_millis(1), quiet.read(&mut byte)).await;
    assert!(still.is_err(), "who has begun nothing is not cut off with them: {still:?}");
    let log = std::fs::read_to_string(deployment.path("signer-0.log")).unwrap();
    assert_eq!(log.matches("did not complete a frame in time").count(), 4, "{log}");
    let client = Client::new(&ClientOptions::default()).unwrap();
    let page = http::page(&client, &format!("http://127.0.0.1:{}/metrics", deployment.metrics[0])).await;
    assert!(page.contains("batzen_signer_handshakes_failed_total 2"), "{page}");
    assert!(page.contains("batzen_signer_connections 1"), "{page}");
    signer.assert_runs();
    assert!(signer.terminate().0.success());
}
