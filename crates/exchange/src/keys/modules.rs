//! The three security modules: they create, hold and erase the private keys of denominations (RSA, CS) and the online
//! signing keys (EdDSA), and announce them for the master key to sign.
//!
//! Private keys leave this module only as handles inside a [`HeldKey`] or [`SigningKey`]; their bytes go to key files
//! and nowhere else.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use batzen_crypto::denom::{Cipher, DenomPrivateKey};
use batzen_crypto::{CryptoError, EddsaPrivateKey, EddsaPublicKey, ExpandedSigner, HashCode};
use batzen_engine::run_long;
use batzen_protocol::{Duration, Timestamp};
use tokio::task::JoinSet;
use zeroize::Zeroizing;

use super::files::{self, KeyFileError, KeyKind, StoredKey};
use super::schedule::Schedule;
use crate::config::{CipherConfig, CoinConfig, ExchangeConfig};

/// Why keys could not be made, loaded or erased.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// A key file or directory.
    #[error(transparent)]
    File(#[from] KeyFileError),
    /// A key that does not parse, or the generator failed.
    #[error("{path}: {source}")]
    Crypto {
        /// Where the key is or was to go.
        path: PathBuf,
        /// What is wrong.
        source: CryptoError,
    },
}

/// A denomination key of a coin section.
pub struct HeldKey {
    /// The coin section.
    pub section: String,
    /// When its use begins.
    pub anchor: Timestamp,
    /// For how long it was created to be used.
    pub duration: Duration,
    /// SHA-512 of the bare public key: its name between module and exchange.
    pub h_bare: HashCode,
    /// The private key.
    pub secret: DenomPrivateKey,
}

impl std::fmt::Debug for HeldKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeldKey")
            .field("section", &self.section)
            .field("anchor", &self.anchor)
            .finish_non_exhaustive()
    }
}

impl HeldKey {
    fn new(section: &str, anchor: Timestamp, duration: Duration, secret: DenomPrivateKey) -> Self {
        let h_bare = secret.public(0).h_key();
        Self { section: section.into(), anchor, duration, h_bare, secret }
    }

    /// The module that holds it.
    pub fn cipher(&self) -> Cipher {
        self.secret.cipher()
    }
}

/// An online signing key.
#[derive(Debug)]
pub struct SigningKey {
    /// When its use begins.
    pub anchor: Timestamp,
    /// For how long it was created to be used.
    pub duration: Duration,
    /// The key.
    pub signer: ExpandedSigner,
}

fn cipher_of(coin: &CoinConfig) -> Cipher {
    match coin.cipher {
        CipherConfig::Rsa { .. } => Cipher::Rsa,
        CipherConfig::Cs => Cipher::Cs,
    }
}

fn kind_of(cipher: Cipher) -> KeyKind {
    match cipher {
        Cipher::Rsa => KeyKind::Rsa,
        Cipher::Cs => KeyKind::Cs,
    }
}

/// The keys of one section, by anchor.
type SectionKeys = BTreeMap<Timestamp, Arc<HeldKey>>;

#[derive(Default)]
struct State {
    denoms: BTreeMap<(Cipher, String), SectionKeys>,
    signing: BTreeMap<Timestamp, Arc<SigningKey>>,
}

/// How far a generation run is: keys made and keys to be made.
pub type Progress<'a> = &'a (dyn Fn(usize, usize) + Send + Sync);

/// What a generation run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Generated {
    /// New denomination keys.
    pub denominations: usize,
    /// New online signing keys.
    pub signing: usize,
}

/// One key to be made.
struct Order {
    cipher: Cipher,
    coin: CoinConfig,
    anchor: Timestamp,
}

/// The security modules of one exchange.
pub struct SecurityModules {
    coins: Vec<(CoinConfig, Schedule)>,
    signkey_schedule: Schedule,
    rsa_dir: PathBuf,
    cs_dir: PathBuf,
    eddsa_dir: PathBuf,
    /// Announces RSA denomination keys.
    pub sm_rsa: ExpandedSigner,
    /// Announces CS denomination keys.
    pub sm_cs: ExpandedSigner,
    /// Announces online signing keys.
    pub sm_eddsa: ExpandedSigner,
    state: Mutex<State>,
    /// Held by whoever creates or replaces keys, so that two runs do not make the same key twice.
    generating: tokio::sync::Mutex<()>,
}

/// Reads a raw 32-byte private key, or creates it (mode 0600) if the file does not exist.
pub fn load_or_create_eddsa(path: &Path) -> Result<EddsaPrivateKey, KeyFileError> {
    match std::fs::read(path).map(Zeroizing::new) {
        Ok(bytes) => {
            let bytes: [u8; 32] = bytes.as_slice().try_into().map_err(|_| KeyFileError::Damaged {
                path: path.to_path_buf(),
                reason: "a private key has exactly 32 bytes",
            })?;
            Ok(EddsaPrivateKey::from_bytes(bytes))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            if let Some(directory) = path.parent() {
                files::create_private_directory(directory)?;
            }
            let key = EddsaPrivateKey::generate();
            files::write_private_file(path, key.as_bytes())?;
            Ok(key)
        }
        Err(source) => Err(KeyFileError::Io { path: path.to_path_buf(), source }),
    }
}

fn make(cipher: CipherConfig) -> Result<DenomPrivateKey, CryptoError> {
    match cipher {
        CipherConfig::Rsa { bits } => DenomPrivateKey::generate_rsa(bits),
        CipherConfig::Cs => Ok(DenomPrivateKey::generate_cs()),
    }
}

/// Reads a stored key of the module for `cipher`.
fn decode(cipher: Cipher, bytes: &[u8]) -> Result<DenomPrivateKey, CryptoError> {
    let key = DenomPrivateKey::from_bytes(bytes)?;
    if key.cipher() == cipher { Ok(key) } else { Err(CryptoError::CipherMismatch) }
}

impl SecurityModules {
    /// Loads the modules' own keys and all stored keys, also those of sections that are no longer configured. Creates
    /// the modules' own keys at the first start; makes no other keys.
    pub fn open(config: &ExchangeConfig) -> Result<Self, KeyError> {
        let own = |path: &Path| load_or_create_eddsa(path).map(|key| ExpandedSigner::new(&key));
        let modules = Self {
            coins: config.coins.iter().map(|coin| (coin.clone(), config.coin_schedule(coin))).collect(),
            signkey_schedule: config.signkey_schedule(),
            rsa_dir: config.module_rsa.key_dir.clone(),
            cs_dir: config.module_cs.key_dir.clone(),
            eddsa_dir: config.module_eddsa.key_dir.clone(),
            sm_rsa: own(&config.module_rsa.sm_priv_key)?,
            sm_cs: own(&config.module_cs.sm_priv_key)?,
            sm_eddsa: own(&config.module_eddsa.sm_priv_key)?,
            state: Mutex::default(),
            generating: tokio::sync::Mutex::new(()),
        };
        for cipher in [Cipher::Rsa, Cipher::Cs] {
            files::create_private_directory(modules.directory(cipher))?;
            modules.load_sections(cipher)?;
        }
        files::create_private_directory(&modules.eddsa_dir)?;
        let mut state = modules.lock();
        for key in files::load(&modules.eddsa_dir, KeyKind::Eddsa)? {
            let path = modules.eddsa_dir.clone();
            let bytes: [u8; 32] = key
                .secret
                .as_slice()
                .try_into()
                .map_err(|_| KeyError::Crypto { path, source: CryptoError::MalformedKey })?;
            let signer = ExpandedSigner::new(&EddsaPrivateKey::from_bytes(bytes));
            let signing = SigningKey { anchor: key.anchor, duration: key.duration, signer };
            state.signing.insert(key.anchor, Arc::new(signing));
        }
        drop(state);
        Ok(modules)
    }

    fn load_sections(&self, cipher: Cipher) -> Result<(), KeyError> {
        let root = self.directory(cipher);
        let io = |source| KeyFileError::Io { path: root.clone(), source };
        for entry in std::fs::read_dir(root).map_err(io)? {
            let entry = entry.map_err(io)?;
            let Ok(section) = entry.file_name().into_string() else { continue };
            if !entry.path().is_dir() || section.starts_with('.') {
                continue;
            }
            for stored in files::load(&entry.path(), kind_of(cipher))? {
                let secret = decode(cipher, &stored.secret)
                    .map_err(|source| KeyError::Crypto { path: entry.path(), source })?;
                let key = HeldKey::new(&section, stored.anchor, stored.duration, secret);
                self.lock()
                    .denoms
                    .entry((cipher, section.clone()))
                    .or_default()
                    .insert(stored.anchor, Arc::new(key));
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change of the state is a single insertion or removal, so a panic elsewhere leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn directory(&self, cipher: Cipher) -> &PathBuf {
        match cipher {
            Cipher::Rsa => &self.rsa_dir,
            Cipher::Cs => &self.cs_dir,
        }
    }

    /// All denomination keys, section by section, oldest first.
    pub fn denominations(&self) -> Vec<Arc<HeldKey>> {
        self.lock().denoms.values().flat_map(BTreeMap::values).cloned().collect()
    }

    /// All online signing keys, oldest first.
    pub fn signing_keys(&self) -> Vec<Arc<SigningKey>> {
        self.lock().signing.values().cloned().collect()
    }

    /// The configuration of a coin section, if it still exists and has this cipher.
    pub fn coin(&self, key: &HeldKey) -> Option<&CoinConfig> {
        let (coin, _) = self
            .coins
            .iter()
            .find(|(coin, _)| coin.section == key.section && cipher_of(coin) == key.cipher())?;
        Some(coin)
    }

    /// Whether every configured section has a key.
    pub fn is_complete(&self) -> bool {
        let state = self.lock();
        self.coins.iter().all(|(coin, _)| {
            state.denoms.get(&(cipher_of(coin), coin.section.clone())).is_some_and(|keys| !keys.is_empty())
        })
    }

    /// When the next key has to be made or erased.
    pub fn next_due(&self, now: Timestamp) -> Timestamp {
        let state = self.lock();
        let denoms = self.coins.iter().map(|(coin, schedule)| {
            let keys = state.denoms.get(&(cipher_of(coin), coin.section.clone()));
            keys.and_then(|keys| keys.keys().next_back())
                .map_or(Timestamp::ZERO, |last| schedule.next_due(*last))
        });
        let signing = state.signing.keys().next_back();
        let signing = signing.map_or(Timestamp::ZERO, |last| self.signkey_schedule.next_due(*last));
        let denom_ends =
            state.denoms.values().flat_map(BTreeMap::values).map(|key| (key.anchor, key.duration));
        let signing_ends = state.signing.values().map(|key| (key.anchor, key.duration));
        let ends = denom_ends
            .chain(signing_ends)
            .map(|(anchor, duration)| anchor.saturating_add(duration).saturating_add(Duration::from_secs(1)))
            .filter(|end| *end > now);
        denoms.chain([signing]).chain(ends).min().unwrap_or(Timestamp::NEVER)
    }

    /// Makes every key that the schedules ask for, at most `parallel` at a time.
    pub async fn generate(
        &self,
        now: Timestamp,
        parallel: usize,
        progress: Progress<'_>,
    ) -> Result<Generated, KeyError> {
        let _one_run = self.generating.lock().await;
        let mut orders = Vec::new();
        for (coin, schedule) in &self.coins {
            let cipher = cipher_of(coin);
            let last = {
                let state = self.lock();
                state
                    .denoms
                    .get(&(cipher, coin.section.clone()))
                    .and_then(|keys| keys.keys().next_back().copied())
            };
            for anchor in schedule.missing(last, now) {
                orders.push(Order { cipher, coin: coin.clone(), anchor });
            }
        }
        let last = self.lock().signing.keys().next_back().copied();
        let signing = self.signkey_schedule.missing(last, now);
        for anchor in &signing {
            self.make_signing_key(*anchor)?;
        }
        let generated = Generated { denominations: orders.len(), signing: signing.len() };
        // What is needed first is made first: a start with many keys is soon able to serve.
        orders.sort_by_key(|order| order.anchor);
        self.fulfil(orders, parallel, progress).await?;
        Ok(generated)
    }

    fn make_signing_key(&self, anchor: Timestamp) -> Result<(), KeyError> {
        let secret = EddsaPrivateKey::generate();
        let duration = self.signkey_schedule.duration;
        let stored = StoredKey { anchor, duration, secret: Zeroizing::new(secret.as_bytes().to_vec()) };
        files::store(&self.eddsa_dir, KeyKind::Eddsa, &stored)?;
        let key = SigningKey { anchor, duration, signer: ExpandedSigner::new(&secret) };
        self.lock().signing.insert(anchor, Arc::new(key));
        Ok(())
    }

    async fn fulfil(
        &self,
        orders: Vec<Order>,
        parallel: usize,
        progress: Progress<'_>,
    ) -> Result<(), KeyError> {
        let total = orders.len();
        if total == 0 {
            return Ok(());
        }
        progress(0, total);
        let mut orders = orders.into_iter();
        let mut running = JoinSet::new();
        let mut done = 0;
        loop {
            while running.len() < parallel.max(1)
                && let Some(order) = orders.next()
            {
                running.spawn(async move {
                    let cipher = order.coin.cipher;
                    let secret = run_long("keygen", move || make(cipher)).await;
                    (order, secret)
                });
            }
            let Some(finished) = running.join_next().await else { return Ok(()) };
            let (order, secret) = finished.expect("key generation does not panic");
            let directory = self.directory(order.cipher).join(&order.coin.section);
            let failed = |source| KeyError::Crypto { path: directory.clone(), source };
            let secret = secret.map_err(failed)?;
            let duration = order.coin.duration_withdraw;
            let stored =
                StoredKey { anchor: order.anchor, duration, secret: secret.to_bytes().map_err(failed)? };
            files::store(&directory, kind_of(order.cipher), &stored)?;
            let key = HeldKey::new(&order.coin.section, order.anchor, duration, secret);
            let slot = (order.cipher, order.coin.section);
            self.lock().denoms.entry(slot).or_default().insert(order.anchor, Arc::new(key));
            done += 1;
            progress(done, total);
        }
    }

    /// Destroys the denomination keys for which `is_revoked` holds, and makes replacements with the same anchors where
    /// the section still exists and the key would still be used. Returns how many were destroyed.
    ///
    /// The key is out of use at once. Its file is replaced only when the new key is ready, so that after a crash in
    /// between the next start finds the revoked key again and completes the replacement.
    pub async fn replace_revoked_denominations(
        &self,
        is_revoked: impl Fn(&HashCode) -> bool + Send,
        now: Timestamp,
    ) -> Result<usize, KeyError> {
        let _one_run = self.generating.lock().await;
        let mut revoked = self.denominations();
        revoked.retain(|key| is_revoked(&key.h_bare));
        let mut orders = Vec::new();
        for key in &revoked {
            self.forget(key);
            match self.coin(key) {
                Some(coin) if now < key.anchor.saturating_add(coin.duration_withdraw) => {
                    orders.push(Order { cipher: key.cipher(), coin: coin.clone(), anchor: key.anchor });
                }
                _ => files::erase(&self.directory(key.cipher()).join(&key.section), key.anchor)?,
            }
        }
        self.fulfil(orders, 1, &|_, _| ()).await?;
        Ok(revoked.len())
    }

    fn forget(&self, key: &HeldKey) {
        let mut state = self.lock();
        if let Some(keys) = state.denoms.get_mut(&(key.cipher(), key.section.clone()))
            && keys.get(&key.anchor).is_some_and(|found| found.h_bare == key.h_bare)
        {
            keys.remove(&key.anchor);
        }
    }

    /// The same for online signing keys.
    pub async fn replace_revoked_signing_keys(
        &self,
        is_revoked: impl Fn(&EddsaPublicKey) -> bool + Send,
        now: Timestamp,
    ) -> Result<usize, KeyError> {
        let _one_run = self.generating.lock().await;
        let revoked: Vec<Arc<SigningKey>> = {
            let state = self.lock();
            state.signing.values().filter(|key| is_revoked(&key.signer.public_key())).cloned().collect()
        };
        for key in &revoked {
            self.lock().signing.remove(&key.anchor);
            if now < self.signkey_schedule.expire(key.anchor) {
                self.make_signing_key(key.anchor)?;
            } else {
                files::erase(&self.eddsa_dir, key.anchor)?;
            }
        }
        Ok(revoked.len())
    }

    /// Erases the private keys whose use has ended. `signed_until` knows until when a key that the master key has
    /// signed may be used, which counts more than what the configuration says today.
    pub async fn erase_expired(
        &self,
        now: Timestamp,
        signed_until: impl Fn(&HashCode) -> Option<Timestamp> + Send,
        signing_until: impl Fn(&EddsaPublicKey) -> Option<Timestamp> + Send,
    ) -> Result<usize, KeyError> {
        let _one_run = self.generating.lock().await;
        let mut erased = 0;
        for key in self.denominations() {
            let until = signed_until(&key.h_bare).unwrap_or_else(|| {
                key.anchor.saturating_add(self.coin(&key).map_or(key.duration, |coin| coin.duration_withdraw))
            });
            if until < now {
                self.forget(&key);
                files::erase(&self.directory(key.cipher()).join(&key.section), key.anchor)?;
                erased += 1;
            }
        }
        for key in self.signing_keys() {
            let until = signing_until(&key.signer.public_key())
                .unwrap_or_else(|| self.signkey_schedule.expire(key.anchor));
            if until < now {
                self.lock().signing.remove(&key.anchor);
                files::erase(&self.eddsa_dir, key.anchor)?;
                erased += 1;
            }
        }
        Ok(erased)
    }
}
