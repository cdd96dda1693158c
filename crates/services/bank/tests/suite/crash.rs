//! Kills the bank (SIGKILL) repeatedly under a load of transfers, and compares its books with a log of
//! what it acknowledged: nothing is lost, nothing is paid twice.
//!
//! The bank runs in a child process, which is this test binary again with an environment variable.
//! `BATZEN_SOAK_CYCLES` sets the number of kills.
use crate::common;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use batzen_bank::{Bank, BankConfig, StoreConfig};
use batzen_crypto::{EddsaPublicKey, HashCode, Wtid, fill_random};
use batzen_http::client::ClientError;
use batzen_service::wire_gateway::{
    AddIncomingRequest, GatewayAuth, HistoryQuery, TransactionResponse, TransferRequest, WireGatewayClient,
};
use common::*;

const DIR: &str = "BATZEN_BANK_CRASH_DIR";
const CLIENTS: usize = 6;

/// Not a test by itself: runs the bank in the child process. It ends when its parent is gone.
#[test]
fn crash_child() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let dir = Path::new(&dir);
    let config = BankConfig { store: StoreConfig::embedded(dir.join("store")), ..config() };
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let bank = Bank::start(config).await.unwrap();
        std::fs::write(dir.join("port.new"), bank.addr.port().to_string()).unwrap();
        std::fs::rename(dir.join("port.new"), dir.join("port")).unwrap();
        tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0])).await.unwrap().unwrap();
    });
}

/// The child process, killed when dropped.
struct Bankd(Child);

impl Drop for Bankd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(dir: &Path) -> (Bankd, WireGatewayClient) {
    let _ = std::fs::remove_file(dir.join("port"));
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["crash::crash_child", "--exact", "--nocapture", "--test-threads=1"])
        .env(DIR, dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn();
    let child = Bankd(child.unwrap());
    for _ in 0..3000 {
        if let Ok(port) = std::fs::read_to_string(dir.join("port")) {
            let url = format!("http://127.0.0.1:{port}/taler-wire-gateway/exchange/");
            // Transfers share a connection, as an exchange's do.
            let gateway = WireGatewayClient::new(client(), &url, GatewayAuth::None);
            return (child, gateway.with_transfer_connections(CLIENTS));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the bank does not start");
}

/// Requests of the clients, with the bank's answers.
#[derive(Default)]
struct Log {
    transfers: Vec<(TransferRequest, Option<TransactionResponse>)>,
    incoming: BTreeMap<EddsaPublicKey, (AddIncomingRequest, Option<TransactionResponse>)>,
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    fill_random(&mut bytes);
    bytes
}

fn is_refusal(error: &ClientError, code: u32) -> bool {
    refusal(error) == (409, code)
}

/// One client: new transfers in both directions, and repetitions of old ones, until the bank is killed.
async fn load(gateway: WireGatewayClient, log: Arc<Mutex<Log>>) {
    loop {
        let [dice, amount, ..] = random::<8>();
        if dice % 4 == 0 {
            let again = {
                let log = log.lock().unwrap();
                let index = usize::from(amount) % log.transfers.len().max(1);
                let from_end = log.transfers.len().checked_sub(index + 1);
                from_end.map(|index| (index, log.transfers[index].clone()))
            };
            let Some((index, (request, known))) = again else { continue };
            let Ok(answer) = gateway.transfer(&request).await else { return };
            if let Some(known) = known {
                assert_eq!(answer, known, "a repeated transfer has another answer");
            }
            log.lock().unwrap().transfers[index].1 = Some(answer);
        } else if dice % 4 == 1 {
            let reserve_pub = EddsaPublicKey::from_bytes(random());
            let request = AddIncomingRequest {
                amount: kudos(&amount.to_string()),
                reserve_pub,
                debit_account: payto("payer"),
            };
            log.lock().unwrap().incoming.insert(reserve_pub, (request.clone(), None));
            let Ok(answer) = gateway.add_incoming(&request).await else { return };
            log.lock().unwrap().incoming.get_mut(&reserve_pub).unwrap().1 = Some(answer);
        } else {
            let request = TransferRequest {
                request_uid: HashCode::from_bytes(random()),
                amount: kudos(&amount.to_string()),
                exchange_base_url: "http://exchange.test/".to_owned(),
                wtid: Wtid::from_bytes(random()),
                credit_account: payto(&format!("shop-{}", dice % 16)),
            };
            let index = {
                let mut log = log.lock().unwrap();
                log.transfers.push((request.clone(), None));
                log.transfers.len() - 1
            };
            let Ok(answer) = gateway.transfer(&request).await else { return };
            log.lock().unwrap().transfers[index].1 = Some(answer);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_loop_loses_and_repeats_nothing() {
    let cycles: u64 = std::env::var("BATZEN_SOAK_CYCLES").ok().and_then(|n| n.parse().ok()).unwrap_or(10);
    let dir = tempfile::tempdir().unwrap();
    let log = Arc::new(Mutex::new(Log::default()));
    for cycle in 0..cycles {
        let (bank, gateway) = start(dir.path());
        let clients: Vec<_> =
            (0..CLIENTS).map(|_| tokio::spawn(load(gateway.clone(), Arc::clone(&log)))).collect();
        tokio::time::sleep(Duration::from_millis(50 + 37 * (cycle % 7))).await;
        drop(bank);
        for client in clients {
            client.await.unwrap();
        }
    }
    let (bank, gateway) = start(dir.path());
    let log = std::mem::take(&mut *log.lock().unwrap());
    let acknowledged = log.transfers.iter().filter(|(_, answer)| answer.is_some()).count();
    eprintln!("{cycles} kills, {} transfers sent, {acknowledged} acknowledged", log.transfers.len());
    assert!(acknowledged as u64 > cycles, "the load was no load: {acknowledged}");

    // Every transfer is repeated until it is answered, with the same answer as before if there was one.
    let mut sent = 0;
    for (request, known) in &log.transfers {
        let answer = gateway.transfer(request).await.unwrap();
        assert!(
            known.as_ref().is_none_or(|known| *known == answer),
            "an acknowledged transfer changed: {known:?}, {answer:?}"
        );
        sent += request.amount.money_in("KUDOS".parse().unwrap()).unwrap().units();
    }
    let rows = read_all(async |query| gateway.history_outgoing(query).await.unwrap(), |row| row.row_id).await;
    let by_wtid: BTreeMap<Wtid, _> = rows.iter().map(|row| (row.wtid, row)).collect();
    assert_eq!((rows.len(), by_wtid.len()), (log.transfers.len(), log.transfers.len()), "each is paid once");
    for (request, known) in &log.transfers {
        let row = by_wtid[&request.wtid];
        assert_eq!(
            (row.amount, known.as_ref().map_or(row.row_id, |known| known.row_id)),
            (request.amount, row.row_id)
        );
    }

    // Test transfers are not idempotent, but identified by their key.
    for (key, (request, known)) in &log.incoming {
        match gateway.add_incoming(request).await {
            Ok(_) => assert!(known.is_none(), "the acknowledged transfer with key {key} was lost"),
            Err(error) => assert!(is_refusal(&error, 5114), "{error}"),
        }
    }
    let rows = read_all(async |query| gateway.history_incoming(query).await.unwrap(), |row| row.row_id).await;
    let keys: BTreeSet<EddsaPublicKey> = rows.iter().map(|row| row.reserve_pub).collect();
    assert_eq!((rows.len(), keys.len()), (log.incoming.len(), log.incoming.len()));
    for row in &rows {
        let (request, known) = &log.incoming[&row.reserve_pub];
        assert_eq!(
            (row.amount, known.as_ref().map_or(row.row_id, |known| known.row_id)),
            (request.amount, row.row_id)
        );
    }

    drop(bank);
    let bank = Bank::start(BankConfig { store: StoreConfig::embedded(dir.path().join("store")), ..config() })
        .await
        .unwrap();
    bank.check().await.unwrap();
    assert_eq!(bank.account_flow("exchange").await.unwrap().outgoing_transfers.units(), sent);
    bank.shutdown().await.unwrap();
}

/// A whole history, page by page.
async fn read_all<R>(page: impl AsyncFn(HistoryQuery) -> Vec<R>, id: impl Fn(&R) -> u64) -> Vec<R> {
    let mut all: Vec<R> = Vec::new();
    loop {
        let rows = page(HistoryQuery { start: all.last().map(&id), delta: 100, long_poll_ms: 0 }).await;
        if rows.is_empty() {
            return all;
        }
        all.extend(rows);
    }
}
