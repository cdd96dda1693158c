//! What the parts of one signer share.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use batzen_crypto::denom::Cipher;
use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, EddsaSignature};
use batzen_engine::{Clock, CpuPool};
use batzen_http::Drain;
use batzen_protocol::Timestamp;
use batzen_protocol::signatures::{MasterDenominationKeyRevoked, MasterSigningKeyRevoked, SignedMessage};
use tokio::sync::{Notify, watch};

use crate::frame::ItemStatus;
use crate::items::KeyId;
use crate::listing::{self, Listing, NO_VERSION};
use crate::local_signer::LocalSigner;
use crate::metrics::ServerMetrics;
use crate::modules::{HeldKey, KeyError, SecurityModules, SigningKey};
use crate::persisted_role::PersistedRole;
use crate::service_config::{Role, SignerConfig};
use crate::status::StatusReport;

/// Jobs that may wait for the CPU pool by themselves; a signer's work goes through collectors.
const POOL_JOBS_MAX: usize = 64;

/// Who a client is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// What it may do.
    pub kind: ClientKind,
    /// Its name in logs.
    pub name: String,
}

/// What a client may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKind {
    /// Have things signed, and revoke.
    Node,
    /// Get the private keys.
    Peer,
    /// Ask how it is, and promote: whoever has the signer's own key.
    Operator,
}

/// The keys at one moment.
pub struct Snapshot {
    /// The listing as it is sent.
    pub encoded: Vec<u8>,
    /// The name of its content; [`NO_VERSION`] before there are keys.
    pub version: u64,
    /// The public side.
    pub listing: Option<Listing>,
    /// Denomination keys by name.
    pub denoms: HashMap<KeyId, Arc<HeldKey>>,
    /// Online keys.
    pub signing: HashMap<EddsaPublicKey, Arc<SigningKey>>,
}

/// How far a follower is.
#[derive(Clone, Debug, Default)]
pub struct SyncState {
    /// Whom it follows.
    pub primary: Option<String>,
    /// When it was last known to have the same keys.
    pub synced: Option<Timestamp>,
    /// Why it has not.
    pub error: Option<String>,
}

/// One signer.
pub struct Signer {
    /// Its configuration.
    pub config: SignerConfig,
    /// Its static key.
    pub key: EddsaPrivateKey,
    /// The private keys.
    pub modules: SecurityModules,
    /// Signing.
    pub local_signer: LocalSigner,
    /// The threads for it.
    pub pool: CpuPool,
    /// Counters.
    pub metrics: ServerMetrics,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Fires when the process is to end.
    pub drain: Drain,
    /// Who may connect.
    pub clients: HashMap<EddsaPublicKey, Client>,
    /// Whether it creates keys.
    pub persisted_role: watch::Sender<PersistedRole>,
    /// The keys now.
    pub snapshot: watch::Sender<Arc<Snapshot>>,
    /// How far it is if it follows.
    pub sync: Mutex<SyncState>,
    /// Starts a round of the keeper.
    pub poke: Notify,
    /// Keys that never sign again, although they may still be in the modules for a moment.
    revoked: Mutex<HashSet<[u8; 32]>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Signer {
    /// Opens the key files.
    ///
    /// # Errors
    /// When they cannot be read, or (primary) the modules' own keys cannot be created.
    pub fn open(config: SignerConfig, key: EddsaPrivateKey, clock: Arc<dyn Clock>) -> Result<Self, KeyError> {
        let persisted_role = PersistedRole::load(&config.state_file, config.role)?;
        let modules = match persisted_role.role {
            Role::Primary => SecurityModules::open(&config.keys)?,
            Role::Follower => SecurityModules::open_follower(&config.keys)?,
        };
        let mut clients = HashMap::new();
        let mut add = |key: EddsaPublicKey, kind, name: &str| {
            clients.insert(key, Client { kind, name: name.to_owned() });
        };
        for node in &config.nodes {
            add(node.public_key, ClientKind::Node, &node.name);
        }
        for peer in &config.peers {
            add(peer.public_key, ClientKind::Peer, &peer.name);
        }
        add(key.public_key(), ClientKind::Operator, "operator");
        let pool = CpuPool::new(config.threads, POOL_JOBS_MAX);
        let signer = Self {
            local_signer: LocalSigner::new(&pool),
            pool,
            key,
            modules,
            metrics: ServerMetrics::default(),
            clock,
            drain: Drain::new(),
            clients,
            persisted_role: watch::Sender::new(persisted_role),
            snapshot: watch::Sender::new(Arc::new(Snapshot {
                encoded: Vec::new(),
                version: NO_VERSION,
                listing: None,
                denoms: HashMap::new(),
                signing: HashMap::new(),
            })),
            sync: Mutex::default(),
            poke: Notify::new(),
            revoked: Mutex::default(),
            config,
        };
        signer.publish();
        Ok(signer)
    }

    /// The keys now.
    pub fn keys(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.borrow())
    }

    /// Makes what the modules have now what is listed and signed with.
    pub fn publish(&self) {
        let revoked = lock(&self.revoked).clone();
        let mut denoms = HashMap::new();
        for key in self.modules.denominations() {
            let id = KeyId::of(&key.info.h_bare);
            if !revoked.contains(&id.0) {
                denoms.insert(id, key);
            }
        }
        let mut signing = HashMap::new();
        for key in self.modules.signing_keys() {
            if !revoked.contains(key.info.exchange_pub.as_bytes()) {
                signing.insert(key.info.exchange_pub, key);
            }
        }
        let listing = self.modules.listing().map(|mut listing| {
            listing.denoms.retain(|key| denoms.contains_key(&KeyId::of(&key.h_bare)));
            listing.signing.retain(|key| signing.contains_key(&key.exchange_pub));
            listing
        });
        let encoded = listing.as_ref().map(Listing::encode).unwrap_or_default();
        let version = if listing.is_some() { listing::version(&encoded) } else { NO_VERSION };
        let snapshot = Snapshot { encoded, version, listing, denoms, signing };
        self.snapshot.send_if_modified(|present| {
            let changes = present.version != snapshot.version;
            *present = Arc::new(snapshot);
            changes
        });
    }

    /// Destroys a denomination key that the master key has revoked. The primary makes another.
    pub async fn revoke_denomination(
        &self,
        id: KeyId,
        age_mask: u32,
        master_sig: &EddsaSignature,
    ) -> Result<(), ItemStatus> {
        let find = |key: &Arc<HeldKey>| KeyId::of(&key.info.h_bare) == id;
        let find = || self.modules.denominations().into_iter().find(find);
        let key = match find() {
            Some(key) => key,
            None => {
                self.look_at_files().await?;
                find().ok_or(ItemStatus::UnknownKey)?
            }
        };
        let h_denom_pub = key.info.public(age_mask).h_denom_pub();
        let message = MasterDenominationKeyRevoked { h_denom_pub };
        if !message.verify(&self.config.master_public_key, master_sig) {
            return Err(ItemStatus::BadSignature);
        }
        lock(&self.revoked).insert(id.0);
        self.publish();
        let (h_bare, now) = (key.info.h_bare, self.clock.now());
        let destroyed = match self.role() {
            Role::Primary => self.modules.replace_revoked_denominations(|key| *key == h_bare, now).await,
            Role::Follower => self.modules.retain(|key| key.h_bare != h_bare, |_| true).await,
        };
        self.revoked_is_gone(destroyed)
    }

    /// Destroys an online key that the master key has revoked. The primary makes another.
    pub async fn revoke_signing(
        &self,
        key: EddsaPublicKey,
        master_sig: &EddsaSignature,
    ) -> Result<(), ItemStatus> {
        let is_held = || self.modules.signing_keys().iter().any(|held| held.info.exchange_pub == key);
        if !is_held() {
            self.look_at_files().await?;
            if !is_held() {
                return Err(ItemStatus::UnknownKey);
            }
        }
        if !(MasterSigningKeyRevoked { signkey_pub: key }).verify(&self.config.master_public_key, master_sig)
        {
            return Err(ItemStatus::BadSignature);
        }
        lock(&self.revoked).insert(*key.as_bytes());
        self.publish();
        let now = self.clock.now();
        let destroyed = match self.role() {
            Role::Primary => self.modules.replace_revoked_signing_keys(|found| *found == key, now).await,
            Role::Follower => self.modules.retain(|_| true, |found| found.exchange_pub != key).await,
        };
        self.revoked_is_gone(destroyed)
    }

    /// A key whose file could not be erased is out of use, but not gone.
    async fn look_at_files(&self) -> Result<(), ItemStatus> {
        self.modules.refresh().await.map(drop).map_err(|error| {
            tracing::error!(%error, "key files cannot be read");
            ItemStatus::Failed
        })
    }

    fn revoked_is_gone(&self, destroyed: Result<usize, KeyError>) -> Result<(), ItemStatus> {
        self.publish();
        self.metrics.revoked.inc();
        destroyed.map(|_| ()).map_err(|error| {
            tracing::error!(%error, "a revoked key is out of use, but could not be replaced");
            ItemStatus::Failed
        })
    }

    /// What it does about keys.
    pub fn role(&self) -> Role {
        self.persisted_role.borrow().role
    }

    /// Makes it the signer that creates keys, ahead of every other.
    ///
    /// # Errors
    /// When it has no keys yet, or cannot remember it.
    pub fn promote(&self, above: u64) -> Result<(), KeyError> {
        let present = *self.persisted_role.borrow();
        let persisted_role =
            PersistedRole { role: Role::Primary, epoch: present.epoch.max(above).saturating_add(1) };
        persisted_role.store(&self.config.state_file)?;
        self.persisted_role.send_replace(persisted_role);
        self.poke.notify_one();
        tracing::warn!(epoch = persisted_role.epoch, "this signer is the primary now");
        Ok(())
    }

    /// Makes it a follower of a signer that was promoted after it.
    ///
    /// # Errors
    /// When it cannot remember it.
    pub fn demote(&self, epoch: u64) -> Result<(), KeyError> {
        let persisted_role = PersistedRole { role: Role::Follower, epoch };
        persisted_role.store(&self.config.state_file)?;
        self.persisted_role.send_replace(persisted_role);
        tracing::warn!(epoch, "another signer was promoted: this one follows now");
        Ok(())
    }

    /// How it is.
    pub fn status(&self) -> StatusReport {
        let (keys, persisted_role, sync) =
            (self.keys(), *self.persisted_role.borrow(), lock(&self.sync).clone());
        let count = |cipher| keys.denoms.values().filter(|key| key.cipher() == cipher).count();
        StatusReport {
            public_key: self.key.public_key().to_string(),
            role: persisted_role.role.name().to_owned(),
            epoch: persisted_role.epoch,
            keys_version: format!("{:016x}", keys.version),
            rsa_keys: count(Cipher::Rsa),
            cs_keys: count(Cipher::Cs),
            signing_keys: keys.signing.len(),
            complete: self.modules.is_complete(),
            primary: sync.primary,
            synced_us: sync.synced.map(Timestamp::as_micros),
            sync_error: sync.error,
            connections: self.metrics.connections.get(),
            time_us: self.clock.now().as_micros(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}
