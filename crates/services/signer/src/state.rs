//! State that the parts of one signer share.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use batzen_crypto::denom::Cipher;
use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, EddsaSignature};
use batzen_engine::{Clock, CpuPool};
use batzen_http::Drain;
use batzen_protocol::Timestamp;
use batzen_protocol::signatures::{MasterDenominationKeyRevoked, MasterSigningKeyRevoked, SignedMessage};
use tokio::sync::{Notify, watch};

use crate::address::Address;
use crate::files::KeyFileError;
use crate::frame::ItemStatus;
use crate::items::KeyId;
use crate::listing::{self, Listing, NO_VERSION};
use crate::local_signer::LocalSigner;
use crate::metrics::ServerMetrics;
use crate::modules::{HeldKey, KeyError, SecurityModules, SigningKey};
use crate::persisted_role::PersistedRole;
use crate::service_config::{HelperConfig, PeerConfig, Role, SignerConfig};
use crate::status::StatusReport;

/// Number of single jobs that may wait for the CPU pool. Most of a signer's work goes through collectors.
const POOL_JOBS_MAX: usize = 64;
/// The maximum number of concurrent connections to a key helper: one for each service of the exchange on this
/// machine, and one for each revocation.
const HELPER_CONNECTIONS_MAX: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Client {
    /// Its permissions.
    pub(crate) kind: ClientKind,
    /// Its name in logs.
    pub(crate) name: String,
}

/// Permissions of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientKind {
    /// May sign and revoke.
    Node,
    /// May fetch the private keys.
    Peer,
    /// May request the status and promote: it has the signer's own key.
    Operator,
}

/// The peers that may connect.
pub(crate) enum Access {
    /// Clients with these keys, over an encrypted channel.
    Keys {
        /// The signer's own static key.
        own: EddsaPrivateKey,
        clients: HashMap<EddsaPublicKey, Client>,
    },
    /// The exchange: whoever may open the local socket.
    LocalSocket,
}

impl Access {
    /// The client behind an accepted connection.
    ///
    /// # Panics
    /// If the handshake has let in a key that is not listed.
    pub(crate) fn client(&self, key: Option<EddsaPublicKey>) -> Client {
        match (self, key) {
            (Self::Keys { clients, .. }, Some(key)) => {
                clients.get(&key).expect("the handshake lets in listed keys only").clone()
            }
            (Self::LocalSocket, None) => Client { kind: ClientKind::Node, name: "exchange".to_owned() },
            _ => panic!("a channel is of the kind that the signer accepts"),
        }
    }
}

/// The keys at one moment.
pub struct Snapshot {
    /// The listing in the form in which it is sent.
    pub(crate) encoded: Vec<u8>,
    /// The version of the listing; `NO_VERSION` if there are no keys yet.
    pub version: u64,
    /// Denomination keys by identifier.
    pub denoms: HashMap<KeyId, Arc<HeldKey>>,
    /// Online keys.
    pub signing: HashMap<EddsaPublicKey, Arc<SigningKey>>,
}

/// State of a follower's synchronization.
#[derive(Clone, Debug, Default)]
pub(crate) struct SyncState {
    /// The signer that it follows.
    pub(crate) primary: Option<String>,
    /// When it last had the same keys.
    pub(crate) synced: Option<Timestamp>,
    /// Why it does not have them now.
    pub(crate) error: Option<String>,
}

/// A signer, or a key helper, which is a signer with the keys of one kind and without peers.
pub struct Signer {
    pub(crate) listen: Vec<Address>,
    /// Clients that may connect.
    pub(crate) access: Access,
    /// The maximum number of concurrent connections.
    pub(crate) connections_max: usize,
    /// The exchange's other signers.
    pub(crate) peers: Vec<PeerConfig>,
    /// The file of its role; `None` if the role never changes.
    pub(crate) state_file: Option<PathBuf>,
    /// The master public key, which signs revocations.
    master_public_key: Option<EddsaPublicKey>,
    /// The private keys.
    pub modules: SecurityModules,
    /// Signing with these keys.
    pub(crate) local_signer: LocalSigner,
    pub(crate) pool: CpuPool,
    /// Counters.
    pub metrics: ServerMetrics,
    pub(crate) clock: Arc<dyn Clock>,
    /// Fires when the process must end.
    pub drain: Drain,
    /// Whether it creates keys.
    pub(crate) persisted_role: watch::Sender<PersistedRole>,
    /// The current keys.
    pub(crate) snapshot: watch::Sender<Arc<Snapshot>>,
    /// State of the synchronization, if it is a follower.
    pub(crate) sync: Mutex<SyncState>,
    /// Starts a round of the keeper.
    pub(crate) poke: Notify,
    /// Keys that must never sign again. They may still be in the modules for a moment.
    revoked: Mutex<HashSet<[u8; 32]>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Signer {
    /// Opens the key files of a signer.
    ///
    /// # Errors
    /// If they cannot be read, or (primary) the modules' own keys cannot be created.
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
        Ok(Self {
            listen: config.listen,
            access: Access::Keys { own: key, clients },
            connections_max: config.connections_max,
            peers: config.peers,
            state_file: Some(config.state_file),
            master_public_key: Some(config.master_public_key),
            ..Self::with(modules, persisted_role, pool, clock)
        })
    }

    /// Opens the key files of a key helper.
    ///
    /// # Errors
    /// If they cannot be read, or the module's own key cannot be created.
    pub fn open_helper(config: HelperConfig, clock: Arc<dyn Clock>) -> Result<Self, KeyError> {
        let modules = SecurityModules::open_one(&config.keys, config.kind)?;
        let role = PersistedRole { role: Role::Primary, epoch: 0 };
        Ok(Self {
            listen: vec![Address::Unix(config.socket)],
            master_public_key: config.master_public_key,
            ..Self::with(modules, role, CpuPool::new(0, POOL_JOBS_MAX), clock)
        })
    }

    /// A signer with these keys, which listens nowhere.
    fn with(
        modules: SecurityModules,
        persisted_role: PersistedRole,
        pool: CpuPool,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let signer = Self {
            listen: Vec::new(),
            access: Access::LocalSocket,
            connections_max: HELPER_CONNECTIONS_MAX,
            peers: Vec::new(),
            state_file: None,
            master_public_key: None,
            local_signer: LocalSigner::new(&pool),
            pool,
            modules,
            metrics: ServerMetrics::default(),
            clock,
            drain: Drain::new(),
            persisted_role: watch::Sender::new(persisted_role),
            snapshot: watch::Sender::new(Arc::new(Snapshot {
                encoded: Vec::new(),
                version: NO_VERSION,
                denoms: HashMap::new(),
                signing: HashMap::new(),
            })),
            sync: Mutex::default(),
            poke: Notify::new(),
            revoked: Mutex::default(),
        };
        signer.publish();
        signer
    }

    /// Returns whether the master key has signed this.
    fn is_signed_by_master<M: SignedMessage>(&self, message: &M, signature: &EddsaSignature) -> bool {
        let Some(master) = &self.master_public_key else {
            tracing::error!("a revoked key stays: [exchange] MASTER_PUBLIC_KEY is missing here");
            return false;
        };
        message.verify(master, signature)
    }

    /// Stores a role, if it can change.
    pub(crate) fn store_role(&self, role: PersistedRole) -> Result<(), KeyFileError> {
        self.state_file.as_ref().map_or(Ok(()), |file| role.store(file))
    }

    /// The current keys.
    pub fn keys(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.borrow())
    }

    /// Publishes the modules' current keys: lists them and signs with them.
    pub(crate) fn publish(&self) {
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
        let snapshot = Snapshot { encoded, version, denoms, signing };
        self.snapshot.send_if_modified(|present| {
            let changes = present.version != snapshot.version;
            *present = Arc::new(snapshot);
            changes
        });
    }

    /// Destroys a denomination key that the master key has revoked. The primary makes a new one.
    pub(crate) async fn revoke_denomination(
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
                self.reload_key_files().await?;
                find().ok_or(ItemStatus::UnknownKey)?
            }
        };
        let h_denom_pub = key.info.public(age_mask).h_denom_pub();
        if !self.is_signed_by_master(&MasterDenominationKeyRevoked { h_denom_pub }, master_sig) {
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

    /// Destroys an online key that the master key has revoked. The primary makes a new one.
    pub(crate) async fn revoke_signing(
        &self,
        key: EddsaPublicKey,
        master_sig: &EddsaSignature,
    ) -> Result<(), ItemStatus> {
        let is_held = || self.modules.signing_keys().iter().any(|held| held.info.exchange_pub == key);
        if !is_held() {
            self.reload_key_files().await?;
            if !is_held() {
                return Err(ItemStatus::UnknownKey);
            }
        }
        if !self.is_signed_by_master(&MasterSigningKeyRevoked { signkey_pub: key }, master_sig) {
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

    /// Loads the key files again. A key whose file could not be erased is out of use, but not destroyed.
    async fn reload_key_files(&self) -> Result<(), ItemStatus> {
        self.modules.refresh().await.map(drop).map_err(|error| {
            tracing::error!(%error, "key files cannot be read");
            ItemStatus::Failed
        })
    }

    fn revoked_is_gone(&self, destroyed: Result<usize, KeyError>) -> Result<(), ItemStatus> {
        self.publish();
        self.metrics.revoked.inc();
        destroyed.map(|_| ()).map_err(|error| {
            tracing::error!(%error, "a revoked key is out of use, but cannot be replaced");
            ItemStatus::Failed
        })
    }

    /// Its role.
    pub fn role(&self) -> Role {
        self.persisted_role.borrow().role
    }

    /// Makes it the primary, with a higher epoch than all known ones.
    ///
    /// # Errors
    /// If it has no keys yet, or cannot store the role.
    pub fn promote(&self, above: u64) -> Result<(), KeyError> {
        let present = *self.persisted_role.borrow();
        let persisted_role =
            PersistedRole { role: Role::Primary, epoch: present.epoch.max(above).saturating_add(1) };
        self.store_role(persisted_role)?;
        self.persisted_role.send_replace(persisted_role);
        self.poke.notify_one();
        tracing::warn!(epoch = persisted_role.epoch, "this signer is the primary now");
        Ok(())
    }

    /// Makes it a follower of a signer that was promoted after it.
    ///
    /// # Errors
    /// If it cannot store the role.
    pub(crate) fn demote(&self, epoch: u64) -> Result<(), KeyError> {
        let persisted_role = PersistedRole { role: Role::Follower, epoch };
        self.store_role(persisted_role)?;
        self.persisted_role.send_replace(persisted_role);
        tracing::warn!(epoch, "another signer was promoted: this one follows now");
        Ok(())
    }

    /// Its status.
    pub fn status(&self) -> StatusReport {
        let (keys, persisted_role, sync) =
            (self.keys(), *self.persisted_role.borrow(), lock(&self.sync).clone());
        let count = |cipher| keys.denoms.values().filter(|key| key.cipher() == cipher).count();
        let public_key = match &self.access {
            Access::Keys { own, .. } => own.public_key(),
            Access::LocalSocket => EddsaPublicKey::ZERO,
        };
        StatusReport {
            public_key: public_key.to_string(),
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
