//! Signers and their clients over real connections.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration as StdDuration, Instant};

use batzen_crypto::cs::CsOperation;
use batzen_crypto::denom::{BlindedPlanchet, Cipher, ExchangeWithdrawValues, prepare_planchet};
use batzen_crypto::{BlindingSecret, CsNonce, EddsaPrivateKey, HashCode, eddsa};
use batzen_http::{Bound, Listen, Listener};
use batzen_protocol::signatures::{
    ExchangeAffirmDenomUnknown, MasterDenominationKeyRevoked, MasterSigningKeyRevoked, SignedMessage,
};
use batzen_protocol::{Duration, Timestamp};
use batzen_signer::channel::{Accept, Connect};
use batzen_signer::client::{ClientOptions, SignerClient, Unavailable};
use batzen_signer::config::{CipherConfig, KeysConfig, ModuleConfig, SectionConfig};
use batzen_signer::frame::{HEADER_BYTES, Header, Hello, ItemStatus, Kind, Side, Status, VERSION};
use batzen_signer::items::{Item, KeyId};
use batzen_signer::keyholders::Keyholders;
use batzen_signer::link::{Link, LinkError};
use batzen_signer::secrets::Wanted;
use batzen_signer::server::SignerServer;
use batzen_signer::service_config::{ClientConfig, NodeConfig, PeerConfig, Role, SignerConfig};
use batzen_signer::state::Signer;
use batzen_signer::{BlindOrder, Custody, DenomHandle, NotSigned, ValuesOrder, keeper};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const STEP_TIMEOUT: StdDuration = StdDuration::from_secs(60);
const START_SECS: u64 = 1_795_132_800;

/// The keys of all parties in a test.
struct Keys {
    signers: [EddsaPrivateKey; 2],
    node: EddsaPrivateKey,
    master: EddsaPrivateKey,
}

impl Keys {
    fn new() -> Self {
        let [one, other, node, master] = [(); 4].map(|()| EddsaPrivateKey::generate());
        Self { signers: [one, other], node, master }
    }
}

pub(crate) fn keys_config(dir: &Path) -> KeysConfig {
    let module = |name: &str| ModuleConfig {
        overlap_duration: Duration::from_secs(300),
        lookahead_sign: Duration::from_secs(0),
        erase_delay: Duration::from_secs(0),
        key_dir: dir.join(name).join("keys"),
        sm_priv_key: dir.join(name).join("secmod-private-key"),
    };
    let section = |section: &str, cipher| SectionConfig {
        section: section.into(),
        cipher,
        duration: Duration::from_days(7),
    };
    KeysConfig {
        sections: vec![
            section("COIN_A", CipherConfig::Rsa { bits: 1024 }),
            section("COIN_B", CipherConfig::Cs),
        ],
        rsa: module("rsa"),
        cs: module("cs"),
        eddsa: module("eddsa"),
        signkey_duration: Duration::from_days(30),
    }
}

/// A signer that runs in this process.
struct Running {
    signer: Arc<Signer>,
    url: String,
    clock: Arc<AtomicU64>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.signer.drain.trigger();
    }
}

/// Starts a signer. `peer` is the address of the other one.
async fn start(dir: &Path, keys: &Keys, own: usize, role: Role, peer: &str) -> Running {
    let peer = PeerConfig {
        name: "other".into(),
        address: peer.parse().unwrap(),
        public_key: keys.signers[1 - own].public_key(),
    };
    let config = SignerConfig {
        keys: keys_config(dir),
        listen: vec!["tcp://127.0.0.1:0".parse().unwrap()],
        key_file: dir.join("static.key"),
        state_file: dir.join("state"),
        role,
        nodes: vec![NodeConfig { name: "node".into(), public_key: keys.node.public_key() }],
        peers: vec![peer],
        master_public_key: keys.master.public_key(),
        http: None,
        hostnames: batzen_http::OwnNames::default(),
        connections_max: 16,
        threads: 2,
    };
    let clock = Arc::new(AtomicU64::new(START_SECS));
    let now = Arc::clone(&clock);
    let key = EddsaPrivateKey::from_bytes(*keys.signers[own].as_bytes());
    let connect = Connect::new(&key, vec![keys.signers[1 - own].public_key()]).unwrap();
    let clock_of = move || Timestamp::from_secs(now.load(Ordering::SeqCst));
    let signer = Arc::new(Signer::open(config, key, Arc::new(clock_of)).unwrap());
    let server = SignerServer::bind(Arc::clone(&signer)).await.unwrap();
    let url = server.urls().remove(0);
    tokio::spawn(keeper::run(Arc::clone(&signer), connect, Arc::new(|_, _| {})));
    tokio::spawn(server.serve());
    Running { signer, url, clock }
}

fn a_nonce() -> CsNonce {
    CsNonce::from_bytes(*EddsaPrivateKey::generate().as_bytes())
}

/// An address without a server.
const NOWHERE: &str = "tcp://127.0.0.1:1";

async fn wait_until(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + STEP_TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "the condition is not met");
        tokio::time::sleep(StdDuration::from_millis(10)).await;
    }
}

fn client(keys: &Keys, urls: &[&str], options: ClientOptions) -> SignerClient {
    let config = ClientConfig {
        addresses: urls.iter().map(|url| url.parse().unwrap()).collect(),
        public_keys: keys.signers.iter().map(EddsaPrivateKey::public_key).collect(),
        key_file: "unused".into(),
    };
    SignerClient::start(&config, &keys.node, options).unwrap()
}

async fn custody(keys: &Keys, urls: &[&str]) -> Custody {
    let custody = Custody::Remote(Keyholders::Signers(client(keys, urls, ClientOptions::default())));
    wait_until(|| custody.denominations().len() == 2 && custody.signing_keys().len() == 1).await;
    custody
}

fn of(custody: &Custody, cipher: Cipher) -> DenomHandle {
    custody.denominations().into_iter().find(|key| key.info().cipher() == cipher).unwrap()
}

/// Withdraws a coin as an exchange does for a wallet, and verifies it.
async fn withdraw(custody: &Custody, cipher: Cipher) -> Result<(), NotSigned> {
    let key = of(custody, cipher);
    let (nonce, operation) = (a_nonce(), CsOperation::Withdraw);
    let order = ValuesOrder { key: key.clone(), nonce, operation };
    let values = custody.values(vec![order]).await.unwrap().remove(0)?;
    assert_eq!(matches!(values, ExchangeWithdrawValues::Rsa), cipher == Cipher::Rsa);
    let coin = EddsaPrivateKey::generate().public_key();
    let public = key.info().public(0);
    let blinding = BlindingSecret::generate();
    let (planchet, unblind) =
        prepare_planchet(&public, &values, Some(&nonce), &coin, &blinding, None).unwrap();
    let order = || BlindOrder { key: key.clone(), planchet: planchet.clone(), operation };
    let signed = custody.blind_sign(vec![order(), order()]).await.unwrap();
    assert_eq!(signed[0], signed[1], "a repeated request gives the same signature");
    let signature = unblind.unblind(&signed[0].clone()?).unwrap();
    assert!(public.verify(unblind.h_coin_pub(), &signature));
    Ok(())
}

fn confirmation() -> Box<[u8]> {
    let message = ExchangeAffirmDenomUnknown { timestamp: Timestamp::ZERO, h_denom_pub: HashCode::ZERO };
    message.message().as_ref().into()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_gets_signatures_but_no_private_keys() {
    let (dir, keys) = (tempfile::tempdir().unwrap(), Keys::new());
    let signer = start(dir.path(), &keys, 0, Role::Primary, NOWHERE).await;
    let custody = custody(&keys, &[&signer.url]).await;
    for cipher in [Cipher::Rsa, Cipher::Cs] {
        withdraw(&custody, cipher).await.unwrap();
    }
    let key = custody.signing_keys().remove(0);
    let signed = custody.sign(&key, vec![confirmation(); 300]).unwrap().await.unwrap();
    assert_eq!(signed.len(), 300);
    assert!(signed.iter().all(|signature| eddsa::verify(&key.public_key(), &confirmation(), signature)));

    // A planchet that does not fit the key is the client's mistake.
    let rsa = of(&custody, Cipher::Rsa);
    let too_large = BlindedPlanchet::Rsa { blinded: vec![0xff; 128] };
    let too_long = BlindedPlanchet::Rsa { blinded: vec![1; 129] };
    let orders = [too_large, too_long].map(|planchet| BlindOrder {
        key: rsa.clone(),
        planchet,
        operation: CsOperation::Withdraw,
    });
    let refused = custody.blind_sign(orders.into()).await.unwrap();
    assert!(refused.iter().all(|result| matches!(result, Err(NotSigned::Planchet(_)))), "{refused:?}");

    // A signer signs no other messages, and cannot sign with missing keys.
    let Some(Keyholders::Signers(signers)) = custody.keyholders() else { panic!("keys are at a signer") };
    let ask = |item: Item| async move { signers.submit(&[item]).unwrap().await.unwrap().remove(0) };
    let message = MasterSigningKeyRevoked { signkey_pub: key.public_key() }.message().as_ref().to_vec();
    let item = Item::Eddsa { key: key.public_key(), message };
    assert_eq!(ask(item).await, Err(ItemStatus::NotAllowed));
    let item = Item::Eddsa { key: keys.master.public_key(), message: confirmation().to_vec() };
    assert_eq!(ask(item).await, Err(ItemStatus::UnknownKey));
    let item = Item::Rsa { key: KeyId([7; 32]), blinded: vec![9; 128] };
    assert_eq!(ask(item).await, Err(ItemStatus::UnknownKey));
    let rsa_id = KeyId::of(&rsa.info().h_bare);
    let item = Item::Values { key: rsa_id, operation: CsOperation::Melt, nonce: a_nonce() };
    assert_eq!(ask(item).await, Err(ItemStatus::UnknownKey), "an RSA key has no R values");

    // A key does not sign before its period, and nodes cannot fetch private keys.
    signer.clock.store(START_SECS - 3600, Ordering::SeqCst);
    assert_eq!(withdraw(&custody, Cipher::Cs).await, Err(NotSigned::KeyUnavailable));
    let connect = Connect::new(&keys.node, vec![keys.signers[0].public_key()]).unwrap();
    let mut link = Link::connect(&connect, &signer.url.parse().unwrap(), STEP_TIMEOUT).await.unwrap();
    let secrets = link.secrets(&[Wanted::Modules, Wanted::Denomination(rsa_id)]).await;
    assert!(matches!(secrets, Err(LinkError::Refused(Status::Forbidden))));
    let promoted = link.promote(7).await;
    assert!(matches!(promoted, Err(LinkError::Refused(Status::Forbidden))));
    assert_eq!(signer.signer.metrics.forbidden.get(), 2);
}

/// The key files of a signer, which nobody else may read.
fn key_files(dir: &Path) -> Vec<(&'static str, std::ffi::OsString, Vec<u8>)> {
    use std::os::unix::fs::PermissionsExt as _;
    let mut files = Vec::new();
    for section in ["rsa/keys/COIN_A", "cs/keys/COIN_B", "eddsa/keys"] {
        for file in std::fs::read_dir(dir.join(section)).unwrap().map(Result::unwrap) {
            assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
            files.push((section, file.file_name(), std::fs::read(file.path()).unwrap()));
        }
    }
    files.sort();
    files
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_has_the_primarys_keys_and_loses_what_is_revoked() {
    let (dirs, keys) = ([tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()], Keys::new());
    let primary = start(dirs[0].path(), &keys, 0, Role::Primary, NOWHERE).await;
    let follower = start(dirs[1].path(), &keys, 1, Role::Follower, &primary.url).await;
    let same = || {
        let version = primary.signer.keys().version;
        version != 0 && version == follower.signer.keys().version && primary.signer.modules.is_complete()
    };
    wait_until(same).await;
    let on_both = custody(&keys, &[&follower.url, &primary.url]).await;
    for cipher in [Cipher::Rsa, Cipher::Cs] {
        withdraw(&on_both, cipher).await.unwrap();
    }
    assert_eq!(key_files(dirs[0].path()), key_files(dirs[1].path()));

    // Only the master key can revoke, and the revocation reaches every signer.
    let cs = of(&on_both, Cipher::Cs);
    let (h_bare, public) = (cs.info().h_bare, cs.info().public(6));
    let h_denom_pub = public.h_denom_pub();
    let message = MasterDenominationKeyRevoked { h_denom_pub };
    let forged = message.sign(&keys.node);
    assert!(!on_both.revoke_denomination(&public, forged, STEP_TIMEOUT).await);
    assert!(
        !on_both.revoke_denomination(&cs.info().public(0), message.sign(&keys.master), STEP_TIMEOUT).await
    );
    assert!(same(), "nothing was destroyed");
    assert!(on_both.revoke_denomination(&public, message.sign(&keys.master), STEP_TIMEOUT).await);
    for signer in [&primary, &follower] {
        assert!(!signer.signer.keys().denoms.contains_key(&KeyId::of(&h_bare)));
    }
    let online = on_both.signing_keys().remove(0).public_key();
    let master_sig = MasterSigningKeyRevoked { signkey_pub: online }.sign(&keys.master);
    assert!(on_both.revoke_signing(online, master_sig, STEP_TIMEOUT).await);
    wait_until(|| same() && !primary.signer.keys().signing.contains_key(&online)).await;
    wait_until(|| on_both.denominations().iter().all(|key| key.info().h_bare != h_bare)).await;
    assert_eq!(on_both.denominations().len(), 2, "another key has taken its place");
    assert_eq!(key_files(dirs[0].path()), key_files(dirs[1].path()));

    // Of two primaries, the one that was promoted last remains.
    follower.signer.promote(primary.signer.status().epoch).unwrap();
    assert_eq!((follower.signer.role(), follower.signer.status().epoch), (Role::Primary, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_refuses_the_keys_of_another_exchange() {
    let (dirs, keys) = ([tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()], Keys::new());
    let first = start(dirs[1].path(), &keys, 1, Role::Primary, NOWHERE).await;
    wait_until(|| first.signer.modules.is_complete()).await;
    drop(first);
    let before = key_files(dirs[1].path());
    // The former primary has lost all its keys and started again.
    let fresh = start(dirs[0].path(), &keys, 0, Role::Primary, NOWHERE).await;
    let follower = start(dirs[1].path(), &keys, 1, Role::Follower, &fresh.url).await;
    wait_until(|| {
        follower.signer.status().sync_error.is_some_and(|error| error.contains("another exchange"))
    })
    .await;
    assert_eq!(key_files(dirs[1].path()), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_go_to_another_signer_when_one_ends() {
    let (dirs, keys) = ([tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()], Keys::new());
    let primary = start(dirs[0].path(), &keys, 0, Role::Primary, NOWHERE).await;
    let follower = start(dirs[1].path(), &keys, 1, Role::Follower, &primary.url).await;
    wait_until(|| {
        primary.signer.modules.is_complete()
            && primary.signer.keys().version == follower.signer.keys().version
    })
    .await;
    let custody = Arc::new(custody(&keys, &[&primary.url, &follower.url]).await);
    let mut load = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let custody = Arc::clone(&custody);
        load.spawn(async move {
            for _ in 0..30 {
                withdraw(&custody, Cipher::Cs).await.unwrap();
            }
        });
    }
    tokio::time::sleep(StdDuration::from_millis(100)).await;
    drop(primary);
    while let Some(ended) = load.join_next().await {
        ended.unwrap();
    }
    withdraw(&custody, Cipher::Rsa).await.unwrap();
    assert!(follower.signer.metrics.connections.get() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_planchet_of_another_size_than_the_keys_is_refused_alone() {
    let (dir, keys) = (tempfile::tempdir().unwrap(), Keys::new());
    let one = start(dir.path(), &keys, 0, Role::Primary, NOWHERE).await;
    let custody = custody(&keys, &[&one.url]).await;
    let key = KeyId::of(&of(&custody, Cipher::Rsa).info().h_bare);
    let client = client(&keys, &[&one.url], ClientOptions::default());
    // The frame says 256 bytes, but the key has 128: only the first item has a valid size for its key.
    let item = |bytes: usize| {
        let mut blinded = vec![0; bytes];
        *blinded.last_mut().unwrap() = 7;
        Item::Rsa { key, blinded }
    };
    let made = client.submit(&[item(256), item(128), item(256)]).unwrap().await.unwrap();
    assert_eq!((&made[0], &made[2]), (&Err(ItemStatus::Planchet), &Err(ItemStatus::Planchet)));
    assert!(made[1].is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_to_a_silent_signer_time_out_and_are_bounded() {
    let keys = Keys::new();
    let (listener, bound) = Listener::bind(Listen::localhost(0)).await.unwrap();
    let Bound::Tcp(address) = bound else { unreachable!() };
    // It sends its hello and nothing more.
    let accept = Accept::new(&keys.signers[0], vec![keys.node.public_key()]).unwrap();
    let silent = tokio::spawn(async move {
        let mut open = Vec::new();
        loop {
            let (mut channel, _) =
                accept.accept(listener.accept().await.unwrap(), STEP_TIMEOUT).await.unwrap();
            let mut hello = [0; HEADER_BYTES + 64];
            channel.read_exact(&mut hello).await.unwrap();
            let header = Header::from_bytes(hello.first_chunk().unwrap(), Side::Request).unwrap();
            let hello = Hello { version: VERSION, items_max: 100, keys_version: 1 };
            channel.write_all(&header.answer().to_bytes()).await.unwrap();
            channel.write_all(&hello.to_bytes()).await.unwrap();
            channel.flush().await.unwrap();
            open.push(channel);
        }
    });
    let options = ClientOptions {
        items_max: 10,
        deadline: StdDuration::from_millis(600),
        silence: StdDuration::from_millis(200),
        ..ClientOptions::default()
    };
    let client = client(&keys, &[&format!("tcp://{address}")], options);
    let item = Item::Eddsa { key: keys.master.public_key(), message: vec![1; 80] };
    let waiting = client.submit(&vec![item.clone(); 10]).unwrap();
    assert_eq!(client.submit(std::slice::from_ref(&item)).err(), Some(Unavailable::Busy));
    assert_eq!(waiting.await, Err(Unavailable::NoSigner));
    // There is room again, even after requests whose callers have gone.
    for _ in 0..3 {
        drop(client.submit(&vec![item.clone(); 10]).unwrap());
    }
    assert_eq!(client.submit(&[item]).unwrap().await, Err(Unavailable::NoSigner));
    silent.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_sends_malformed_frames_is_disconnected_alone() {
    let (dir, keys) = (tempfile::tempdir().unwrap(), Keys::new());
    let signer = start(dir.path(), &keys, 0, Role::Primary, NOWHERE).await;
    let custody = custody(&keys, &[&signer.url]).await;
    let connect = Connect::new(&keys.node, vec![keys.signers[0].public_key()]).unwrap();
    let address = signer.url.parse().unwrap();
    let mut hello = Header::request(Kind::Hello, 0, 1, 0).to_bytes().to_vec();
    hello.extend_from_slice(&Hello { version: VERSION, items_max: 0, keys_version: 0 }.to_bytes());
    let mut broken = 0;
    for kind in Kind::ALL {
        let modulus = if kind == Kind::Rsa { 128 } else { 0 };
        let header = Header::request(kind, modulus, 1, 5);
        let mut frame = header.to_bytes().to_vec();
        // Malformed frames of every kind: an unknown operation, a length beyond the end, a second hello.
        frame.resize(HEADER_BYTES + header.body, 0xff);
        let mut long = header.to_bytes();
        long[16] ^= 1;
        for (greets, bytes) in [(true, frame.clone()), (true, long.to_vec()), (false, frame)] {
            let mut channel = connect.connect(&address, STEP_TIMEOUT).await.unwrap();
            if greets {
                channel.write_all(&hello).await.unwrap();
            }
            channel.write_all(&bytes).await.unwrap();
            channel.flush().await.unwrap();
            // It may be disconnected or answered.
            let mut answer = [0; HEADER_BYTES];
            let _ = tokio::time::timeout(StdDuration::from_millis(50), channel.read_exact(&mut answer)).await;
            broken += 1;
        }
    }
    assert!(signer.signer.metrics.malformed.get() > broken / 2);
    withdraw(&custody, Cipher::Cs).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_other_versions_get_a_version_error() {
    let (dir, keys) = (tempfile::tempdir().unwrap(), Keys::new());
    let signer = start(dir.path(), &keys, 0, Role::Primary, NOWHERE).await;
    let connect = Connect::new(&keys.node, vec![keys.signers[0].public_key()]).unwrap();
    let mut channel = connect.connect(&signer.url.parse().unwrap(), STEP_TIMEOUT).await.unwrap();
    let mut hello = Header::request(Kind::Hello, 0, 1, 9).to_bytes().to_vec();
    hello.extend_from_slice(&Hello { version: VERSION + 1, items_max: 0, keys_version: 0 }.to_bytes());
    channel.write_all(&hello).await.unwrap();
    channel.flush().await.unwrap();
    let mut answer = [0; HEADER_BYTES];
    channel.read_exact(&mut answer).await.unwrap();
    let answer = Header::from_bytes(&answer, Side::Answer).unwrap();
    assert_eq!((answer.status, answer.id), (Status::Version, 9));
}
