//! The cost of a signer: the same signatures, by keys in the caller's process and by a signer over TLS on the
//! loopback interface, on the same cores, in alternation. `cargo bench -p batzen-signer` prints items per
//! second and their ratio.

#![allow(missing_docs, clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration as StdDuration, Instant};

use batzen_crypto::cs::CsOperation;
use batzen_crypto::denom::{BlindedPlanchet, Cipher};
use batzen_crypto::{CsNonce, CsScalar, EddsaPrivateKey, HashCode};
use batzen_engine::CpuPool;
use batzen_protocol::signatures::{ExchangeAffirmDenomUnknown, SignedMessage};
use batzen_protocol::{Duration, Timestamp};
use batzen_signer::channel::Connect;
use batzen_signer::client::{ClientOptions, SignerClient};
use batzen_signer::config::{CipherConfig, KeysConfig, ModuleConfig, SectionConfig};
use batzen_signer::keyholders::Keyholders;
use batzen_signer::server::SignerServer;
use batzen_signer::service_config::{ClientConfig, NodeConfig, Role, SignerConfig};
use batzen_signer::state::Signer;
use batzen_signer::{BlindOrder, Custody, SecurityModules, keeper};

/// Concurrent requests, as many as an exchange under load has.
const TASKS: usize = 256;
const TURN: StdDuration = StdDuration::from_secs(2);
const TURNS: usize = 3;
const JOBS_MAX: usize = 64;

fn keys_config(dir: &Path) -> KeysConfig {
    let module = |name: &str| ModuleConfig {
        overlap_duration: Duration::from_secs(300),
        lookahead_sign: Duration::from_secs(0),
        erase_delay: Duration::from_secs(0),
        key_dir: dir.join(name).join("keys"),
        sm_priv_key: dir.join(name).join("own"),
    };
    let section = |section: &str, cipher| SectionConfig {
        section: section.into(),
        cipher,
        duration: Duration::from_days(7),
    };
    KeysConfig {
        sections: vec![section("RSA", CipherConfig::Rsa { bits: 2048 }), section("CS", CipherConfig::Cs)],
        rsa: module("rsa"),
        cs: module("cs"),
        eddsa: module("eddsa"),
        signkey_duration: Duration::from_days(30),
    }
}

#[derive(Clone, Copy)]
enum Work {
    Rsa,
    Cs,
    Eddsa,
}

async fn one(custody: &Custody, work: Work, number: u64) {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    let cipher = match work {
        Work::Eddsa => {
            let key = custody.signing_keys().remove(0);
            let message = ExchangeAffirmDenomUnknown {
                timestamp: Timestamp::from_secs(number),
                h_denom_pub: HashCode::ZERO,
            };
            custody.sign(&key, vec![message.message().as_ref().into()]).unwrap().await.unwrap();
            return;
        }
        Work::Rsa => Cipher::Rsa,
        Work::Cs => Cipher::Cs,
    };
    let mut keys = custody.denominations().into_iter();
    let key = keys.find(|key| key.info().cipher() == cipher).unwrap();
    let planchet = match work {
        Work::Rsa => {
            let mut blinded = vec![0x55; 256];
            blinded[0] = 0;
            blinded[100..108].copy_from_slice(&number.to_le_bytes());
            BlindedPlanchet::Rsa { blinded }
        }
        _ => BlindedPlanchet::Cs {
            nonce: CsNonce::from_bytes(bytes),
            c0: CsScalar::from_bytes(bytes),
            c1: CsScalar::from_bytes(bytes),
        },
    };
    let order = BlindOrder { key, planchet, operation: CsOperation::Withdraw };
    custody.blind_sign(vec![order]).await.unwrap().remove(0).unwrap();
}

/// Items per second in one turn.
async fn turn(custody: &Arc<Custody>, work: Work) -> f64 {
    let done = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS as u64 {
        let (custody, done) = (Arc::clone(custody), Arc::clone(&done));
        tasks.spawn(async move {
            let mut number = task << 32;
            while started.elapsed() < TURN {
                number += 1;
                one(&custody, work, number).await;
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    tasks.join_all().await;
    #[allow(clippy::cast_precision_loss, reason = "a number for people")]
    let rate = done.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64();
    rate
}

#[tokio::main]
async fn main() {
    let dir = tempfile::tempdir().unwrap();
    let (signer_key, node_key) = (EddsaPrivateKey::generate(), EddsaPrivateKey::generate());
    let config = SignerConfig {
        keys: keys_config(dir.path()),
        listen: vec!["tcp://127.0.0.1:0".parse().unwrap()],
        key_file: dir.path().join("key"),
        state_file: dir.path().join("state"),
        role: Role::Primary,
        nodes: vec![NodeConfig { name: "node".into(), public_key: node_key.public_key() }],
        peers: Vec::new(),
        master_public_key: node_key.public_key(),
        http: None,
        hostnames: batzen_http::OwnNames::default(),
        connections_max: 16,
        threads: 0,
    };
    let clock = || Timestamp::from_system_time(std::time::SystemTime::now());
    let connect = Connect::new(&signer_key, Vec::new()).unwrap();
    let signer_pub = signer_key.public_key();
    let signer = Arc::new(Signer::open(config, signer_key, Arc::new(clock)).unwrap());
    let server = SignerServer::bind(Arc::clone(&signer)).await.unwrap();
    let address = server.urls().remove(0).parse().unwrap();
    // In its own runtime, like a separate process.
    let serving = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            tokio::spawn(keeper::run(signer, connect, Arc::new(|_, _| {})));
            server.serve().await;
        });
    });
    let config = ClientConfig {
        addresses: vec![address],
        public_keys: vec![signer_pub],
        key_file: dir.path().join("node"),
    };
    let client = SignerClient::start(&config, &node_key, ClientOptions::default()).unwrap();
    let remote = Custody::Remote(Keyholders::Signers(client));
    while remote.denominations().len() < 2 || remote.signing_keys().is_empty() {
        tokio::time::sleep(StdDuration::from_millis(50)).await;
    }
    let modules = SecurityModules::open(&keys_config(dir.path())).unwrap();
    let here = Arc::new(Custody::local(Arc::new(modules), &CpuPool::new(0, JOBS_MAX)));
    let remote = Arc::new(remote);
    println!("{:10} {:>14} {:>14} {:>7}", "items/s", "in process", "by a signer", "ratio");
    for (name, work) in [("RSA 2048", Work::Rsa), ("CS", Work::Cs), ("Ed25519", Work::Eddsa)] {
        let (mut of_here, mut of_remote) = (0.0, 0.0);
        for _ in 0..TURNS {
            of_here += turn(&here, work).await;
            of_remote += turn(&remote, work).await;
        }
        let mean = |sum: f64| sum / TURNS as f64;
        println!("{name:10} {:14.0} {:14.0} {:7.2}", mean(of_here), mean(of_remote), of_remote / of_here);
    }
    drop(serving);
    std::process::exit(0);
}
