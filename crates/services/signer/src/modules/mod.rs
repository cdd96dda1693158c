//! The three security modules: they create, hold and erase the private keys of denominations (RSA, CS) and
//! the online signing keys (EdDSA), and announce them for the master key to sign.
//!
//! Private keys leave this module only as handles inside a [`HeldKey`] or [`SigningKey`]; their bytes go only
//! to key files and, encrypted, to signers that follow this one ([`SecurityModules::export`]).

mod endings;
mod handover;
mod key_file_lock;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use batzen_crypto::denom::{Cipher, DenomKey, DenomPrivateKey};
use batzen_crypto::{CryptoError, EddsaPrivateKey, EddsaPublicKey, ExpandedSigner, HashCode};
use batzen_engine::run_long;
use batzen_protocol::signatures::{SignedMessage, SmCsDenominationKey, SmRsaDenominationKey, SmSigningKey};
use batzen_protocol::{Duration, Timestamp, hash_text};
use tokio::task::JoinSet;
use zeroize::Zeroizing;

use crate::config::{CipherConfig, KeysConfig, ModuleKind, SectionConfig};
use crate::files::{self, KeyFileError, KeyKind, StoredKey};
use crate::listing::{DenomInfo, Listing, ModuleKeys, SigningInfo};
use crate::schedule::Schedule;
use endings::Endings;
use key_file_lock::KeyFileLock;

pub(crate) use handover::Secret;

/// Why keys could not be created, loaded or erased.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// An error of a key file or directory.
    #[error(transparent)]
    File(#[from] KeyFileError),
    /// A key does not parse, or the generator failed.
    #[error("{path}: {source}")]
    Crypto {
        /// The key's file, or the file intended for it.
        path: PathBuf,
        /// The problem.
        source: CryptoError,
    },
}

/// A denomination key of a coin section.
pub struct HeldKey {
    /// Its public information.
    pub info: Arc<DenomInfo>,
    pub secret: DenomPrivateKey,
    /// The period of use for which it was created.
    stored: Duration,
}

impl std::fmt::Debug for HeldKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeldKey").field("info", &self.info).finish_non_exhaustive()
    }
}

impl HeldKey {
    /// The module that it belongs to.
    pub(crate) fn cipher(&self) -> Cipher {
        self.secret.cipher()
    }

    /// The size of its modulus; `None` for Clause Blind Schnorr.
    pub(crate) fn modulus_bytes(&self) -> Option<usize> {
        match &self.info.public {
            DenomKey::Rsa(public) => Some(public.modulus().len()),
            DenomKey::Cs(_) => None,
        }
    }

    /// The last moment at which it signs, as announced now or as announced at its creation.
    pub(crate) fn signs_until(&self) -> Timestamp {
        self.info.anchor.saturating_add(self.info.duration.max(self.stored))
    }
}

/// An online signing key.
#[derive(Debug)]
pub struct SigningKey {
    /// Its public information.
    pub info: Arc<SigningInfo>,
    /// The key.
    pub signer: ExpandedSigner,
    stored: Duration,
}

impl SigningKey {
    /// The last moment at which it signs.
    pub(crate) fn signs_until(&self) -> Timestamp {
        self.info.anchor.saturating_add(self.info.duration.max(self.stored))
    }
}

fn kind_of(cipher: Cipher) -> KeyKind {
    match cipher {
        Cipher::Rsa => KeyKind::Rsa,
        Cipher::Cs => KeyKind::Cs,
    }
}

/// The modules' own keys, by kind; `None` for a module that another process runs.
struct OwnKeys([Option<ExpandedSigner>; ModuleKind::ALL.len()]);

impl OwnKeys {
    fn of(&self, kind: ModuleKind) -> Option<&ExpandedSigner> {
        self.0[kind as usize].as_ref()
    }
}

/// The keys of one section, by anchor.
type SectionKeys = BTreeMap<Timestamp, Arc<HeldKey>>;

#[derive(Default)]
struct KeyTables {
    denoms: BTreeMap<(Cipher, String), SectionKeys>,
    signing: BTreeMap<Timestamp, Arc<SigningKey>>,
    ended_denoms: Endings<HashCode>,
    ended_signing: Endings<EddsaPublicKey>,
}

/// Progress of a generation run: keys made, and the total.
pub(crate) type Progress<'a> = &'a (dyn Fn(usize, usize) + Send + Sync);

/// Result of a generation run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Generated {
    /// New denomination keys.
    pub denominations: usize,
    /// New online signing keys.
    pub signing: usize,
}

/// A key to be created.
struct Order {
    cipher: Cipher,
    section: SectionConfig,
    anchor: Timestamp,
}

/// The security modules of one exchange: all three, or one of them in a process of its own.
pub struct SecurityModules {
    /// The kinds of keys that this process holds.
    kinds: Vec<ModuleKind>,
    /// The sections whose keys it holds.
    sections: Vec<(SectionConfig, Schedule)>,
    signkey_schedule: Schedule,
    /// Time for which keys stay on disk after their end, by kind.
    erase_delays: [std::time::Duration; ModuleKind::ALL.len()],
    /// The directories of the keys, by kind.
    key_dirs: [PathBuf; ModuleKind::ALL.len()],
    /// The files of the modules' own keys, by kind.
    own_paths: [PathBuf; ModuleKind::ALL.len()],
    /// Set before any other key exists.
    own: OnceLock<OwnKeys>,
    state: Mutex<KeyTables>,
    /// The lock for creating, replacing and erasing keys.
    key_file_lock: KeyFileLock,
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
            // Another process may have created it first. Its key is then used.
            if files::create_private_file(path, key.as_bytes())? {
                Ok(key)
            } else {
                load_or_create_eddsa(path)
            }
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
    /// Loads the modules' own keys and all stored keys, including those of sections that are no longer
    /// configured. Creates the modules' own keys at the first start, but no other keys.
    pub fn open(config: &KeysConfig) -> Result<Self, KeyError> {
        Self::open_as(config, &ModuleKind::ALL, true)
    }

    /// Opens the module for one kind of keys: for a process that holds no others.
    pub(crate) fn open_one(config: &KeysConfig, kind: ModuleKind) -> Result<Self, KeyError> {
        Self::open_as(config, &[kind], true)
    }

    /// Opens the modules without creating anything: for a signer that follows another one.
    pub(crate) fn open_follower(config: &KeysConfig) -> Result<Self, KeyError> {
        Self::open_as(config, &ModuleKind::ALL, false)
    }

    /// The modules with these keys, in memory only: for simulators. `own` is the key of every module; `denominations`
    /// has a key for each of the configured sections, in their order. All keys are used from `anchor` on.
    ///
    /// # Panics
    /// When there are more or fewer keys than sections.
    pub fn in_memory(
        config: &KeysConfig,
        own: &EddsaPrivateKey,
        denominations: Vec<DenomPrivateKey>,
        signing: &EddsaPrivateKey,
        anchor: Timestamp,
    ) -> Result<Self, KeyError> {
        assert_eq!(denominations.len(), config.sections.len(), "one key a section");
        let modules = Self::without_keys(config, &ModuleKind::ALL);
        let own = || Some(ExpandedSigner::new(own));
        let _ = modules.own.set(OwnKeys([own(), own(), own()]));
        for (section, secret) in config.sections.iter().zip(denominations) {
            modules.insert_secret(&section.section, anchor, section.duration, secret);
        }
        let secret = Zeroizing::new(signing.as_bytes().to_vec());
        modules.insert_signing(&StoredKey { anchor, duration: config.signkey_duration, secret })?;
        Ok(modules)
    }

    fn without_keys(config: &KeysConfig, kinds: &[ModuleKind]) -> Self {
        let sections = config.sections.iter();
        let sections =
            sections.filter(|section| kinds.contains(&ModuleKind::of_cipher(section.cipher.cipher())));
        Self {
            kinds: kinds.to_vec(),
            sections: sections.map(|section| (section.clone(), config.section_schedule(section))).collect(),
            signkey_schedule: config.signkey_schedule(),
            erase_delays: ModuleKind::ALL
                .map(|kind| config.module(kind).erase_delay.to_std().unwrap_or(std::time::Duration::MAX)),
            key_dirs: ModuleKind::ALL.map(|kind| config.module(kind).key_dir.clone()),
            own_paths: ModuleKind::ALL.map(|kind| config.module(kind).sm_priv_key.clone()),
            own: OnceLock::new(),
            state: Mutex::default(),
            key_file_lock: KeyFileLock::default(),
        }
    }

    fn open_as(config: &KeysConfig, kinds: &[ModuleKind], creates: bool) -> Result<Self, KeyError> {
        let modules = Self::without_keys(config, kinds);
        for directory in modules.held_directories() {
            files::create_private_directory(directory)?;
        }
        if creates || kinds.iter().all(|kind| modules.own_paths[*kind as usize].exists()) {
            modules.create_own()?;
            modules.load_at_start()?;
        }
        Ok(modules)
    }

    /// Returns whether this process holds the keys of this kind.
    fn holds_kind(&self, kind: ModuleKind) -> bool {
        self.kinds.contains(&kind)
    }

    /// The directories of the keys that this process holds.
    fn held_directories(&self) -> impl Iterator<Item = &Path> {
        self.kinds.iter().map(|kind| self.key_dirs[*kind as usize].as_path())
    }

    /// Creates the modules' own keys if they do not exist.
    pub fn create_own(&self) -> Result<(), KeyError> {
        if self.own.get().is_none() {
            let mut own = OwnKeys([const { None }; ModuleKind::ALL.len()]);
            for kind in &self.kinds {
                let key = load_or_create_eddsa(&self.own_paths[*kind as usize])?;
                own.0[*kind as usize] = Some(ExpandedSigner::new(&key));
            }
            // If another thread was faster, it has read the same files.
            let _ = self.own.set(own);
        }
        Ok(())
    }

    fn own(&self, kind: ModuleKind) -> &ExpandedSigner {
        let own = self.own.get().expect("no key is there before the modules' own");
        own.of(kind).expect("keys are only of kinds that are held here")
    }

    /// The modules' public keys; `None` before a follower's first synchronization.
    pub fn module_keys(&self) -> Option<ModuleKeys> {
        let own = self.own.get()?;
        let key = |kind| own.of(kind).map_or(EddsaPublicKey::ZERO, ExpandedSigner::public_key);
        Some(ModuleKeys { rsa: key(ModuleKind::Rsa), cs: key(ModuleKind::Cs), eddsa: key(ModuleKind::Eddsa) })
    }

    /// All keys, as public information; `None` before a follower's first synchronization.
    pub(crate) fn listing(&self) -> Option<Listing> {
        Some(Listing {
            modules: self.module_keys()?,
            denoms: self.denominations().iter().map(|key| Arc::clone(&key.info)).collect(),
            signing: self.signing_keys().iter().map(|key| Arc::clone(&key.info)).collect(),
        })
    }

    fn insert_denomination(&self, cipher: Cipher, section: &str, stored: &StoredKey) -> Result<(), KeyError> {
        let secret = decode(cipher, &stored.secret)
            .map_err(|source| KeyError::Crypto { path: self.directory(cipher).join(section), source })?;
        self.insert_secret(section, stored.anchor, stored.duration, secret);
        Ok(())
    }

    fn insert_secret(&self, section: &str, anchor: Timestamp, stored: Duration, secret: DenomPrivateKey) {
        let cipher = secret.cipher();
        let public = secret.public(0);
        let h_bare = public.h_key();
        // The current configuration applies to keys that are not in use yet.
        let duration = self.section(section, cipher).map_or(stored, |section| section.duration);
        let (h_section_name, anchor_time, duration_withdraw) = (hash_text(section), anchor, duration);
        let announcement = match cipher {
            Cipher::Rsa => {
                SmRsaDenominationKey { h_rsa: h_bare, h_section_name, anchor_time, duration_withdraw }
                    .sign_with(self.own(ModuleKind::Rsa))
            }
            Cipher::Cs => {
                SmCsDenominationKey { h_cs: h_bare, h_section_name, anchor_time, duration_withdraw }
                    .sign_with(self.own(ModuleKind::Cs))
            }
        };
        let section = section.to_owned();
        let slot = (cipher, section.clone());
        let info = DenomInfo { section, anchor, duration, h_bare, public: public.key, announcement };
        let key = HeldKey { info: Arc::new(info), secret, stored };
        self.lock().denoms.entry(slot).or_default().insert(anchor, Arc::new(key));
    }

    fn insert_signing(&self, key: &StoredKey) -> Result<(), KeyError> {
        let malformed =
            |_| KeyError::Crypto { path: self.eddsa_dir().to_owned(), source: CryptoError::MalformedKey };
        let seed = EddsaPrivateKey::try_from(key.secret.as_slice()).map_err(malformed)?;
        let signer = ExpandedSigner::new(&seed);
        let (exchange_pub, anchor) = (signer.public_key(), key.anchor);
        let duration = self.signkey_schedule.duration;
        let announcement = SmSigningKey { exchange_pub, anchor_time: anchor, duration }
            .sign_with(self.own(ModuleKind::Eddsa));
        let info = Arc::new(SigningInfo { exchange_pub, anchor, duration, announcement });
        let key = SigningKey { info, signer, stored: key.duration };
        self.lock().signing.insert(anchor, Arc::new(key));
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, KeyTables> {
        // Every change of the state is a single insertion or removal, so a panic elsewhere leaves it
        // consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn directory(&self, cipher: Cipher) -> &PathBuf {
        &self.key_dirs[ModuleKind::of_cipher(cipher) as usize]
    }

    /// The directory of the online signing keys.
    fn eddsa_dir(&self) -> &Path {
        &self.key_dirs[ModuleKind::Eddsa as usize]
    }

    /// All denomination keys, section by section, oldest first.
    pub fn denominations(&self) -> Vec<Arc<HeldKey>> {
        self.lock().denoms.values().flat_map(BTreeMap::values).cloned().collect()
    }

    /// All online signing keys, oldest first.
    pub fn signing_keys(&self) -> Vec<Arc<SigningKey>> {
        self.lock().signing.values().cloned().collect()
    }

    fn section(&self, name: &str, cipher: Cipher) -> Option<&SectionConfig> {
        let mut sections = self.sections.iter();
        let found =
            sections.find(|(section, _)| section.section == name && section.cipher.cipher() == cipher);
        found.map(|(section, _)| section)
    }

    /// Returns whether every configured section has a key.
    pub fn is_complete(&self) -> bool {
        let state = self.lock();
        self.sections.iter().all(|(section, _)| {
            state
                .denoms
                .get(&(section.cipher.cipher(), section.section.clone()))
                .is_some_and(|keys| !keys.is_empty())
        })
    }

    /// When the next key must be created, or ends.
    pub fn next_due(&self, now: Timestamp) -> Timestamp {
        let state = self.lock();
        let denoms = self.sections.iter().map(|(section, schedule)| {
            let keys = state.denoms.get(&(section.cipher.cipher(), section.section.clone()));
            keys.and_then(|keys| keys.keys().next_back())
                .map_or(Timestamp::ZERO, |last| schedule.next_due(*last))
        });
        let signing = self.holds_kind(ModuleKind::Eddsa).then(|| {
            let last = state.signing.keys().next_back();
            last.map_or(Timestamp::ZERO, |last| self.signkey_schedule.next_due(*last))
        });
        let denom_ends = state.denoms.values().flat_map(BTreeMap::values).map(|key| key.signs_until());
        let signing_ends = state.signing.values().map(|key| key.signs_until());
        let ends = denom_ends
            .chain(signing_ends)
            .map(|end| end.saturating_add(Duration::from_secs(1)))
            .filter(|end| *end > now);
        denoms.chain(signing).chain(ends).min().unwrap_or(Timestamp::NEVER)
    }

    /// Creates every key that the schedules require, at most `parallel` at a time.
    pub async fn generate(
        &self,
        now: Timestamp,
        parallel: usize,
        progress: Progress<'_>,
    ) -> Result<Generated, KeyError> {
        let _guard = self.lock_key_files().await?;
        let mut orders = Vec::new();
        for (section, schedule) in &self.sections {
            let cipher = section.cipher.cipher();
            let last = {
                let state = self.lock();
                state
                    .denoms
                    .get(&(cipher, section.section.clone()))
                    .and_then(|keys| keys.keys().next_back().copied())
            };
            for anchor in schedule.missing(last, now) {
                orders.push(Order { cipher, section: section.clone(), anchor });
            }
        }
        let mut signing = Vec::new();
        if self.holds_kind(ModuleKind::Eddsa) {
            let last = self.lock().signing.keys().next_back().copied();
            signing = self.signkey_schedule.missing(last, now);
        }
        for anchor in &signing {
            self.make_signing_key(*anchor)?;
        }
        let generated = Generated { denominations: orders.len(), signing: signing.len() };
        // Keys that are needed first are created first, so that a start with many keys can soon serve.
        orders.sort_by_key(|order| order.anchor);
        self.create_keys(orders, parallel, progress).await?;
        Ok(generated)
    }

    fn make_signing_key(&self, anchor: Timestamp) -> Result<(), KeyError> {
        let secret = EddsaPrivateKey::generate();
        let duration = self.signkey_schedule.duration;
        let stored = StoredKey { anchor, duration, secret: Zeroizing::new(secret.as_bytes().to_vec()) };
        files::store(self.eddsa_dir(), KeyKind::Eddsa, &stored)?;
        self.insert_signing(&stored)
    }

    async fn create_keys(
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
        let mut orders = orders.into_iter().enumerate();
        let mut running = JoinSet::new();
        // Keys are stored in the order of time, so if the last key of a section exists, all its keys do.
        let mut finished = BTreeMap::new();
        let mut done = 0;
        loop {
            while running.len() < parallel.max(1)
                && let Some((number, order)) = orders.next()
            {
                running.spawn(async move {
                    let cipher = order.section.cipher;
                    let secret = run_long("keygen", move || make(cipher)).await;
                    (number, order, secret)
                });
            }
            let Some(made) = running.join_next().await else { return Ok(()) };
            let (number, order, secret) = made.expect("key generation does not panic");
            finished.insert(number, (order, secret));
            while let Some((order, secret)) = finished.remove(&done) {
                let directory = self.directory(order.cipher).join(&order.section.section);
                let failed = |source| KeyError::Crypto { path: directory.clone(), source };
                let secret = secret.map_err(failed)?;
                let (anchor, duration) = (order.anchor, order.section.duration);
                let stored = StoredKey { anchor, duration, secret: secret.to_bytes().map_err(failed)? };
                files::store(&directory, kind_of(order.cipher), &stored)?;
                self.insert_secret(&order.section.section, anchor, duration, secret);
                done += 1;
                progress(done, total);
            }
        }
    }

    /// Destroys the denomination keys for which `is_revoked` holds, and makes replacements with the same
    /// anchors if the section still exists and the key would still be used. Returns how many were destroyed.
    ///
    /// The key is out of use at once. Its file is replaced only when the new key is ready. After a crash in
    /// between, the next start finds the revoked key again and completes the replacement.
    pub async fn replace_revoked_denominations(
        &self,
        is_revoked: impl Fn(&HashCode) -> bool + Send,
        now: Timestamp,
    ) -> Result<usize, KeyError> {
        let _guard = self.lock_key_files().await?;
        let mut revoked = self.denominations();
        revoked.retain(|key| is_revoked(&key.info.h_bare));
        let mut orders = Vec::new();
        for key in &revoked {
            self.forget(key);
            let anchor = key.info.anchor;
            match self.section(&key.info.section, key.cipher()) {
                Some(section) if now < anchor.saturating_add(section.duration) => {
                    orders.push(Order { cipher: key.cipher(), section: section.clone(), anchor });
                }
                _ => self.erase_file(&key.info)?,
            }
        }
        self.create_keys(orders, 1, &|_, _| ()).await?;
        Ok(revoked.len())
    }

    fn forget(&self, key: &HeldKey) {
        let mut state = self.lock();
        if let Some(keys) = state.denoms.get_mut(&(key.cipher(), key.info.section.clone()))
            && keys.get(&key.info.anchor).is_some_and(|found| found.info.h_bare == key.info.h_bare)
        {
            keys.remove(&key.info.anchor);
        }
    }

    fn erase_file(&self, key: &DenomInfo) -> Result<(), KeyFileError> {
        files::erase(&self.directory(key.cipher()).join(&key.section), key.anchor)
    }

    /// Does the same for online signing keys.
    pub async fn replace_revoked_signing_keys(
        &self,
        is_revoked: impl Fn(&EddsaPublicKey) -> bool + Send,
        now: Timestamp,
    ) -> Result<usize, KeyError> {
        let _guard = self.lock_key_files().await?;
        let revoked: Vec<Arc<SigningKey>> = {
            let state = self.lock();
            state.signing.values().filter(|key| is_revoked(&key.info.exchange_pub)).cloned().collect()
        };
        for key in &revoked {
            let anchor = key.info.anchor;
            self.lock().signing.remove(&anchor);
            if now < self.signkey_schedule.expire(anchor) {
                self.make_signing_key(anchor)?;
            } else {
                files::erase(self.eddsa_dir(), anchor)?;
            }
        }
        Ok(revoked.len())
    }

    /// Erases the private keys whose use ended some time ago: this process must have seen their end for as long as
    /// `ERASE_DELAY`, so a clock that jumps ahead, and is set back, destroys none. `signed_until` returns how long a key that
    /// the master key has signed may be used; this takes precedence over the current configuration.
    pub async fn erase_expired(
        &self,
        now: Timestamp,
        signed_until: impl Fn(&HashCode) -> Option<Timestamp> + Send,
        signing_until: impl Fn(&EddsaPublicKey) -> Option<Timestamp> + Send,
    ) -> Result<usize, KeyError> {
        let _guard = self.lock_key_files().await?;
        let (mut denoms, mut signing) = (self.denominations(), self.signing_keys());
        let at = std::time::Instant::now();
        {
            let mut state = self.lock();
            denoms.retain(|key| {
                let until = signed_until(&key.info.h_bare).unwrap_or_else(|| key.signs_until());
                let delay = self.erase_delays[ModuleKind::of_cipher(key.cipher()) as usize];
                state.ended_denoms.is_past(key.info.h_bare, until < now, delay, at)
            });
            signing.retain(|key| {
                let until = signing_until(&key.info.exchange_pub).unwrap_or_else(|| key.signs_until());
                let delay = self.erase_delays[ModuleKind::Eddsa as usize];
                state.ended_signing.is_past(key.info.exchange_pub, until < now, delay, at)
            });
        }
        for key in &denoms {
            self.forget(key);
            self.erase_file(&key.info)?;
        }
        for key in &signing {
            self.lock().signing.remove(&key.info.anchor);
            files::erase(self.eddsa_dir(), key.info.anchor)?;
        }
        let erased = denoms.len() + signing.len();
        if erased > 0 {
            let (held, signing) = (self.denominations(), self.signing_keys());
            let held: HashSet<&HashCode> = held.iter().map(|key| &key.info.h_bare).collect();
            let signing: HashSet<&EddsaPublicKey> =
                signing.iter().map(|key| &key.info.exchange_pub).collect();
            let mut state = self.lock();
            state.ended_denoms.retain(|key| held.contains(key));
            state.ended_signing.retain(|key| signing.contains(key));
        }
        Ok(erased)
    }
}
