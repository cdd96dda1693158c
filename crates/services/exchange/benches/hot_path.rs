//! Where the time of a payment and of a withdrawal goes: an exchange on one core, requests prepared in
//! advance and sent over loopback from another core, and CPU time per operation by thread.
//!
//! `cargo bench -p batzen-exchange --bench hot_path -- [deposit|withdraw] [--ops 20000] [--clients 64]
//! [--batch 1] [--cs] [--all-cores]`. The figures are CPU time, so that they hold on a busy machine too; the
//! rate does not.

#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use batzen_crypto::denom::{self, Cipher, ExchangeWithdrawValues, prepare_planchet};
use batzen_crypto::{
    BlindedPlanchet, BlindingSecret, CsNonce, CsOperation, CsScalar, EddsaPrivateKey, HashCode, WireSalt,
};
use batzen_exchange::config::{CipherConfig, CoinFees, ExchangeConfig, GatewayAuth, GatewayConfig};
use batzen_exchange::keys::{Denom, KeyState};
use batzen_exchange::rules::{Command, Credit, Credits};
use batzen_exchange::service::{RunningExchange, StartOptions, system_clock};
use batzen_protocol::api::exchange::{
    BatchDepositCoin, BatchDepositRequest, BatchWithdrawRequest, DepositRequest, WithdrawRequest,
};
use batzen_protocol::payto::{h_payto, h_wire};
use batzen_protocol::signatures::{SignedMessage, WalletCoinDeposit, WalletReserveWithdraw};
use batzen_protocol::{Currency, Duration, Money, Timestamp};
use batzen_signer::DenomHandle;
use batzen_tables::exchange::AccountId;
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PAYTO: &str = "payto://x-taler-bank/localhost/2?receiver-name=2";
const CUSTOMER: &str = "payto://x-taler-bank/localhost/customer?receiver-name=Customer";
const MERCHANT: &str = "payto://x-taler-bank/localhost/merchant?receiver-name=Merchant";

/// As in the product.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

struct Arguments {
    withdraw: bool,
    operations: usize,
    clients: usize,
    batch: usize,
    cs: bool,
    core: bool,
}

fn arguments() -> Arguments {
    let mut out =
        Arguments { withdraw: false, operations: 20_000, clients: 64, batch: 1, cs: false, core: true };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|text| text.parse().ok()).expect("a number follows");
        match word.as_str() {
            "withdraw" => out.withdraw = true,
            "--ops" => out.operations = number(),
            "--clients" => out.clients = number(),
            "--batch" => out.batch = number(),
            "--cs" => out.cs = true,
            "--all-cores" => out.core = false,
            // `deposit` is the default; cargo adds `--bench`.
            _ => {}
        }
    }
    out
}

fn money(text: &str) -> Money {
    text.parse().unwrap()
}

fn currency() -> Currency {
    Currency::new("KUDOS").unwrap()
}

fn config(directory: &std::path::Path, cs: bool) -> ExchangeConfig {
    let fees = CoinFees {
        withdraw: money("0.01"),
        deposit: money("0.01"),
        refresh: Money::ZERO,
        refund: Money::ZERO,
    };
    let gateway = GatewayConfig { url: "http://127.0.0.1:1/".into(), auth: GatewayAuth::None };
    let cipher = if cs { CipherConfig::Cs } else { CipherConfig::Rsa { bits: 2048 } };
    let mut config = ExchangeConfig::local(currency(), directory, 0)
        .with_coin("COIN_1", money("1"), fees, cipher)
        .with_account("EXCHANGE-ACCOUNT-1", PAYTO, gateway);
    for coin in &mut config.coins {
        coin.duration_withdraw = Duration::from_days(300);
        coin.duration_spend = Duration::from_days(300);
        coin.duration_legal = Duration::from_days(600);
    }
    config.signkey_duration = Duration::from_days(300);
    config
}

/// Runs `make` for every index below `count` on all cores.
fn parallel<T: Send>(count: usize, make: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let made = Mutex::new(Vec::with_capacity(count));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        break;
                    }
                    let one = make(index);
                    made.lock().unwrap().push(one);
                }
            });
        }
    });
    made.into_inner().unwrap()
}

fn post(path: &str, body: &impl Serialize) -> Vec<u8> {
    let body = serde_json::to_vec(body).unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.into_bytes(), body].concat()
}

fn coin(keys: &KeyState, denom: &Denom, number: usize) -> (EddsaPrivateKey, batzen_crypto::DenomSignature) {
    let key = EddsaPrivateKey::generate();
    let mut nonce = [0; 32];
    nonce[..8].copy_from_slice(&(number as u64).to_be_bytes());
    let nonce = CsNonce::from_bytes(nonce);
    let operation = CsOperation::Withdraw;
    let order = keys.signer().order_values(denom.serial, nonce, operation).unwrap();
    let DenomHandle::Here(held) = order.key else { unreachable!("the keys are here") };
    let values = ExchangeWithdrawValues::derive(&held.secret, &nonce, operation);
    let blinding = BlindingSecret::generate();
    let (planchet, unblind) =
        prepare_planchet(&denom.public, &values, Some(&nonce), &key.public_key(), &blinding, None).unwrap();
    let signed = denom::blind_sign_batch(&[(&held.secret, &planchet, operation)]).remove(0).unwrap();
    (key, unblind.unblind(&signed).unwrap())
}

fn deposit(keys: &KeyState, denom: &Denom, number: usize, batch: usize) -> Vec<u8> {
    let merchant_pub = EddsaPrivateKey::from_bytes([7; 32]).public_key();
    let wire_salt = WireSalt::from_bytes([9; 16]);
    let now = Timestamp::from_secs(system_clock().as_secs().unwrap());
    let mut contract = [1; 64];
    contract[..8].copy_from_slice(&(number as u64).to_be_bytes());
    let mut message = WalletCoinDeposit {
        h_contract_terms: HashCode::from_bytes(contract),
        h_age_commitment: batzen_crypto::ShortHash::from_bytes([0; 32]),
        h_policy: HashCode::from_bytes([0; 64]),
        h_wire: h_wire(MERCHANT, &wire_salt),
        h_denom_pub: denom.h_denom_pub,
        wallet_timestamp: now,
        refund_deadline: now,
        amount_with_fee: money("1").of(currency()),
        deposit_fee: denom.fee_deposit.of(currency()),
        merchant_pub,
    };
    message.refund_deadline = now;
    let wire_transfer_deadline = now.saturating_add(Duration::from_days(1));
    let mut coins: Vec<BatchDepositCoin> = (0..batch)
        .map(|index| {
            let (key, ub_sig) = coin(keys, denom, number * batch + index);
            BatchDepositCoin {
                contribution: message.amount_with_fee,
                denom_pub_hash: denom.h_denom_pub,
                ub_sig,
                coin_pub: key.public_key(),
                h_age_commitment: None,
                coin_sig: message.sign(&key),
            }
        })
        .collect();
    if batch == 1 {
        let coin = coins.remove(0);
        let body = DepositRequest {
            merchant_payto_uri: MERCHANT.into(),
            wire_salt,
            contribution: coin.contribution,
            denom_pub_hash: coin.denom_pub_hash,
            ub_sig: coin.ub_sig,
            merchant_pub,
            h_contract_terms: message.h_contract_terms,
            h_age_commitment: None,
            coin_sig: coin.coin_sig,
            timestamp: now,
            refund_deadline: Some(now),
            wire_transfer_deadline,
            policy: None,
        };
        return post(&format!("/coins/{}/deposit", coin.coin_pub), &body);
    }
    let body = BatchDepositRequest {
        merchant_payto_uri: MERCHANT.into(),
        wire_salt,
        merchant_pub,
        h_contract_terms: message.h_contract_terms,
        coins,
        timestamp: now,
        refund_deadline: Some(now),
        wire_transfer_deadline,
        policy: None,
    };
    post("/batch-deposit", &body)
}

fn withdrawal(denom: &Denom, reserve: &EddsaPrivateKey, batch: usize) -> Vec<u8> {
    let cost = denom.value.checked_add(denom.fee_withdraw).unwrap();
    let planchets: Vec<WithdrawRequest> = (0..batch)
        .map(|_| {
            // The exchange cannot tell a blinded coin from any other number.
            let coin_ev = match denom.cipher {
                Cipher::Rsa => {
                    let mut blinded = vec![0; 256];
                    batzen_crypto::fill_random(&mut blinded);
                    blinded[0] &= 0x7f;
                    blinded[0] |= 0x01;
                    BlindedPlanchet::Rsa { blinded }
                }
                Cipher::Cs => {
                    let mut random = [0; 96];
                    batzen_crypto::fill_random(&mut random);
                    let scalar = |bytes: &[u8]| {
                        let mut bytes: [u8; 32] = bytes.try_into().unwrap();
                        bytes[31] &= 0x0f;
                        CsScalar::from_bytes(bytes)
                    };
                    BlindedPlanchet::Cs {
                        nonce: CsNonce::from_bytes(random[..32].try_into().unwrap()),
                        c0: scalar(&random[32..64]),
                        c1: scalar(&random[64..]),
                    }
                }
            };
            let message = WalletReserveWithdraw {
                amount_with_fee: cost.of(currency()),
                h_denom_pub: denom.h_denom_pub,
                h_coin_envelope: coin_ev.hash(&denom.h_denom_pub),
            };
            WithdrawRequest { denom_pub_hash: denom.h_denom_pub, coin_ev, reserve_sig: message.sign(reserve) }
        })
        .collect();
    let reserve_pub = reserve.public_key();
    if batch == 1 {
        return post(&format!("/reserves/{reserve_pub}/withdraw"), &planchets[0]);
    }
    post(&format!("/reserves/{reserve_pub}/batch-withdraw"), &BatchWithdrawRequest { planchets })
}

/// Sends requests over one connection, one after the other.
async fn client(port: u16, requests: &[Vec<u8>], next: &AtomicUsize) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let mut buffer = vec![0; 64 << 10];
    while let Some(request) = requests.get(next.fetch_add(1, Ordering::Relaxed)) {
        stream.write_all(request).await.unwrap();
        let mut filled = 0;
        loop {
            let read = stream.read(&mut buffer[filled..]).await.unwrap();
            assert!(read > 0, "connection closed");
            filled += read;
            let Some(head) = buffer[..filled].windows(4).position(|window| window == b"\r\n\r\n") else {
                continue;
            };
            let text = std::str::from_utf8(&buffer[..head]).unwrap();
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            if filled == head + 4 + length.parse::<usize>().unwrap() {
                let body = String::from_utf8_lossy(&buffer[head + 4..filled]);
                assert!(text.starts_with("HTTP/1.1 200"), "{text}\n{body}");
                break;
            }
        }
    }
}

/// Sends all requests over as many connections as there are clients, from one thread.
fn load(port: u16, requests: &[Vec<u8>], clients: usize) {
    let next = AtomicUsize::new(0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(futures_util::future::join_all((0..clients).map(|_| client(port, requests, &next))));
}

/// CPU time of this process by the names of its threads (without their numbers), in nanoseconds.
fn cpu_ns() -> BTreeMap<String, u64> {
    let mut out = BTreeMap::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let name = read("comm").trim().trim_end_matches(|c: char| c.is_ascii_digit() || c == '-').to_owned();
        let ns = read("schedstat").split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0);
        *out.entry(name).or_default() += ns;
    }
    out
}

fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

fn main() {
    let arguments = arguments();
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path(), arguments.cs);
    let all = rustix::thread::sched_getaffinity(None).unwrap();
    if arguments.core {
        pin(0);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(if arguments.core { 1 } else { 2 })
        .enable_all()
        .thread_name("http")
        .build()
        .unwrap();
    let options = StartOptions { workers: false, ..StartOptions::default() };
    let running = runtime.block_on(RunningExchange::start(config, options)).unwrap();
    runtime.block_on(running.ready()).unwrap();
    let app = Arc::clone(running.app());
    let keys = app.keys();
    let denom = Arc::clone(&keys.denoms()[0]);
    rustix::thread::sched_setaffinity(None, &all).unwrap();

    let reserves: Vec<_> = (0..64).map(|_| EddsaPrivateKey::generate()).collect();
    if arguments.withdraw {
        let credits = reserves.iter().zip(1..).map(|(reserve, bank_row)| Credit {
            bank_row,
            reserve_pub: reserve.public_key(),
            amount: money("1000000"),
            payto_uri: CUSTOMER.to_owned(),
            h_payto: h_payto(CUSTOMER),
            time: app.core.now(),
        });
        let command = Credits {
            account: AccountId::of_payto(PAYTO),
            credits: credits.collect(),
            cursor: reserves.len() as u64,
            range: None,
        };
        runtime.block_on(app.core.submit(Command::Credits(command))).unwrap().unwrap();
    }
    let count = arguments.operations / arguments.batch;
    let requests = parallel(count, |number| {
        if arguments.withdraw {
            withdrawal(&denom, &reserves[number % reserves.len()], arguments.batch)
        } else {
            deposit(&keys, &denom, number, arguments.batch)
        }
    });
    if arguments.core {
        pin(1);
    }
    let port = running.bound().port().unwrap();
    let (warm, measured) = requests.split_at(count / 10);
    let run = |requests: &[Vec<u8>]| {
        std::thread::scope(|scope| {
            let work = || load(port, requests, arguments.clients);
            std::thread::Builder::new().name("client".into()).spawn_scoped(scope, work).unwrap();
        });
    };
    run(warm);
    // A profiler may attach now.
    eprintln!("measuring process {}", std::process::id());
    let (cpu, lane, pool, store) =
        (cpu_ns(), app.core.lane.metrics().snapshot(), app.pool.snapshot(), app.core.store.stats());
    let start = Instant::now();
    run(measured);
    let seconds = start.elapsed().as_secs_f64();
    let (cpu_after, lane_after, pool_after, store_after) =
        (cpu_ns(), app.core.lane.metrics().snapshot(), app.pool.snapshot(), app.core.store.stats());
    let operations = (measured.len() * arguments.batch) as f64;
    println!(
        "{:.0} operations/s ({operations} operations, {} clients)",
        operations / seconds,
        arguments.clients
    );
    let us = |ns: u64| ns as f64 / 1_000.0 / operations;
    let mut total = 0.0;
    for (name, ns) in &cpu_after {
        let spent = us(ns.saturating_sub(*cpu.get(name).unwrap_or(&0)));
        if spent > 0.005 {
            println!("  CPU {name:<12} {spent:8.2} us an operation");
        }
        if !["client", "hot_path"].iter().any(|own| name.starts_with(own)) {
            total += spent;
        }
    }
    println!("  CPU server       {total:8.2} us an operation: {:.0} operations/s a core", 1e6 / total);
    let batches = (lane_after.batches - lane.batches) as f64;
    println!(
        "  lane: {:.1} commands a batch; wall time: prefetch {:.2}, execute {:.2}, commit {:.2} us an operation",
        (lane_after.commands - lane.commands) as f64 / batches,
        us(lane_after.prefetch_ns - lane.prefetch_ns),
        us(lane_after.execute_ns - lane.execute_ns),
        us(lane_after.commit_ns - lane.commit_ns),
    );
    for (before, after) in pool.iter().zip(&pool_after) {
        let (items, batches) = (after.items - before.items, after.batches - before.batches);
        if items > 0 {
            println!(
                "  pool: {:<10} {:.1} items a batch, {:.2} us an item busy, {:.0} us an item waiting",
                after.kind,
                items as f64 / batches as f64,
                (after.busy_ns - before.busy_ns) as f64 / 1_000.0 / items as f64,
                (after.wait_ns - before.wait_ns) as f64 / 1_000.0 / items as f64,
            );
        }
    }
    let written = (store_after.written_bytes_total - store.written_bytes_total) as f64;
    let index = store_after.index_bytes.saturating_sub(store.index_bytes) as f64;
    println!(
        "  store: {:.0} bytes on disk, {:.0} bytes of index an operation",
        written / operations,
        index / operations
    );
    runtime.block_on(running.shutdown()).unwrap();
}
