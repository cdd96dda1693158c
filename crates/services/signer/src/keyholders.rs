//! The processes that hold the exchange's private keys, if its own process does not: signers, or a key helper
//! for each kind of key on the same machine.

use std::sync::Arc;
use std::time::Duration;

use batzen_crypto::denom::Cipher;
use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode};
use batzen_metrics::Page;
use tokio::sync::watch;

use crate::client::{ClientOptions, SignerClient, Unavailable};
use crate::config::{CipherConfig, ModuleKind};
use crate::frame::{ItemStatus, Kind};
use crate::items::{Item, KeyId, SignedItem};
use crate::listing::{Listing, ModuleKeys};
use crate::metrics::ClientMetrics;
use crate::service_config::HelpersConfig;

/// The longest wait for the first attempt to reach every key helper.
const FIRST_ATTEMPT: Duration = Duration::from_secs(2);

/// The results of submitted items, in their order.
type Results = Result<Vec<Result<SignedItem, ItemStatus>>, Unavailable>;

/// The holders of the private keys.
pub enum Keyholders {
    /// Signers, each with all keys.
    Signers(SignerClient),
    /// Key helpers, each with the keys of one kind.
    Helpers(KeyHelpers),
}

/// The clients of the key helpers.
pub struct KeyHelpers {
    clients: Arc<[SignerClient; ModuleKind::ALL.len()]>,
    /// The helpers that the exchange cannot do without.
    required: Vec<ModuleKind>,
    /// The keys of all helpers, once each required one has listed its own.
    listing: watch::Sender<Option<Arc<Listing>>>,
    merging: tokio::task::JoinHandle<()>,
    metrics: Arc<ClientMetrics>,
}

impl Drop for KeyHelpers {
    fn drop(&mut self) {
        self.merging.abort();
    }
}

impl KeyHelpers {
    /// Connects to the helpers. An exchange with these denominations needs those for their ciphers, and the
    /// one for online signing keys. Must be called within a tokio runtime.
    pub fn start(config: &HelpersConfig, ciphers: impl Iterator<Item = CipherConfig>) -> Self {
        let mut required: Vec<_> = ciphers.map(|cipher| ModuleKind::of_cipher(cipher.cipher())).collect();
        required.push(ModuleKind::Eddsa);
        required.sort();
        required.dedup();
        let metrics = Arc::<ClientMetrics>::default();
        let client = |kind: ModuleKind| {
            let socket = &config.0[kind as usize];
            SignerClient::of_helper(kind.section(), socket, ClientOptions::of_helper(), Arc::clone(&metrics))
        };
        let clients = Arc::new(ModuleKind::ALL.map(client));
        let listing = watch::Sender::new(None);
        let merging = tokio::spawn(merge_all(Arc::clone(&clients), required.clone(), listing.clone()));
        Self { clients, required, listing, merging, metrics }
    }

    fn client(&self, kind: ModuleKind) -> &SignerClient {
        &self.clients[kind as usize]
    }

    /// The required helpers that have not listed their keys yet, and why.
    fn missing(&self) -> Option<String> {
        let missing = self.required.iter().filter(|kind| self.client(**kind).listing().is_none());
        let missing = missing.map(|kind| {
            let reason = self.client(*kind).last_error().unwrap_or_else(|| "it has no keys yet".to_owned());
            format!("{} ({reason})", kind.section())
        });
        let missing: Vec<String> = missing.collect();
        (!missing.is_empty()).then(|| missing.join(", "))
    }
}

/// Publishes the listings of all helpers as one whenever one changes.
async fn merge_all(
    clients: Arc<[SignerClient; ModuleKind::ALL.len()]>,
    required: Vec<ModuleKind>,
    merged: watch::Sender<Option<Arc<Listing>>>,
) {
    let [mut rsa, mut cs, mut eddsa] = [0, 1, 2].map(|kind: usize| clients[kind].listings());
    loop {
        let listings = [&mut rsa, &mut cs, &mut eddsa].map(|listing| listing.borrow_and_update().clone());
        if required.iter().all(|kind| listings[*kind as usize].is_some()) {
            merged.send_replace(Some(Arc::new(merge(listings))));
        }
        let changed = tokio::select! {
            changed = rsa.changed() => changed,
            changed = cs.changed() => changed,
            changed = eddsa.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

/// The keys of all helpers: of each, only those of its own kind.
fn merge([rsa, cs, eddsa]: [Option<Arc<Listing>>; ModuleKind::ALL.len()]) -> Listing {
    let module = |listing: &Option<Arc<Listing>>, key: fn(&ModuleKeys) -> EddsaPublicKey| {
        listing.as_ref().map_or(EddsaPublicKey::ZERO, |listing| key(&listing.modules))
    };
    let modules = ModuleKeys {
        rsa: module(&rsa, |keys| keys.rsa),
        cs: module(&cs, |keys| keys.cs),
        eddsa: module(&eddsa, |keys| keys.eddsa),
    };
    let mut denoms = Vec::new();
    for (cipher, listing) in [(Cipher::Rsa, &rsa), (Cipher::Cs, &cs)] {
        let listed = listing.iter().flat_map(|listing| &listing.denoms);
        denoms.extend(listed.filter(|key| key.cipher() == cipher).cloned());
    }
    let signing = eddsa.map_or_else(Vec::new, |listing| listing.signing.clone());
    Listing { modules, denoms, signing }
}

/// The kind of key that makes the answer to an item.
fn kind_of(item: &Item) -> ModuleKind {
    match item.kind() {
        Kind::Rsa => ModuleKind::Rsa,
        Kind::Cs | Kind::Values => ModuleKind::Cs,
        _ => ModuleKind::Eddsa,
    }
}

impl Keyholders {
    /// The latest listing of keys; `None` before the first.
    pub fn listing(&self) -> Option<Arc<Listing>> {
        match self {
            Self::Signers(client) => client.listing(),
            Self::Helpers(helpers) => helpers.listing.borrow().clone(),
        }
    }

    /// Notifies of new listings.
    pub(crate) fn listings(&self) -> watch::Receiver<Option<Arc<Listing>>> {
        match self {
            Self::Signers(client) => client.listings(),
            Self::Helpers(helpers) => helpers.listing.subscribe(),
        }
    }

    /// Waits until the first attempt to reach each key helper has ended, but not for long. A service that
    /// starts after its helpers then has their keys at once.
    pub async fn first_attempts(&self) {
        if let Self::Helpers(helpers) = self {
            let tried = async {
                for kind in &helpers.required {
                    helpers.client(*kind).tried().await;
                }
                if helpers.missing().is_none() {
                    // The sender lives in `helpers`.
                    let _ = helpers.listing.subscribe().wait_for(Option::is_some).await;
                }
            };
            // After this time, the caller says what is missing.
            let _ = tokio::time::timeout(FIRST_ATTEMPT, tried).await;
        }
    }

    /// In words, who has not answered yet and why, and what to do.
    pub fn trouble(&self) -> String {
        match self {
            Self::Signers(client) => {
                let error = client.last_error().unwrap_or_else(|| "not yet".to_owned());
                format!("no signer answers: {error}")
            }
            Self::Helpers(helpers) => {
                let missing = helpers.missing().unwrap_or_else(|| "not yet".to_owned());
                format!(
                    "no answer from the key helpers {missing}; start them, or set [exchange] KEY_HELPERS = NO to keep \
                     the private keys in this process"
                )
            }
        }
    }

    /// Submits items for signing. They are queued when this returns. The results are in the order of the
    /// items.
    ///
    /// # Errors
    /// If too many items are waiting. The future fails if no holder of a key answers in time.
    pub(crate) fn submit(
        &self,
        items: &[Item],
    ) -> Result<impl Future<Output = Results> + Send + use<>, Unavailable> {
        let (mut whole, mut parts) = (None, Vec::new());
        match self {
            Self::Signers(client) => whole = Some(client.submit(items)?),
            Self::Helpers(helpers) => {
                let first = items.first().map_or(ModuleKind::Eddsa, kind_of);
                if items.iter().all(|item| kind_of(item) == first) {
                    whole = Some(helpers.client(first).submit(items)?);
                } else {
                    for kind in ModuleKind::ALL {
                        let of_kind = items.iter().enumerate().filter(|(_, item)| kind_of(item) == kind);
                        let (places, items): (Vec<usize>, Vec<Item>) =
                            of_kind.map(|(place, item)| (place, item.clone())).unzip();
                        if !items.is_empty() {
                            parts.push((places, helpers.client(kind).submit(&items)?));
                        }
                    }
                }
            }
        }
        let count = items.len();
        Ok(async move {
            if let Some(whole) = whole {
                return whole.await;
            }
            let mut results = vec![Err(ItemStatus::Failed); count];
            for (places, part) in parts {
                for (place, result) in places.into_iter().zip(part.await?) {
                    results[place] = result;
                }
            }
            Ok(results)
        })
    }

    /// Asks every holder of a denomination key to destroy it. True if all have done so.
    pub(crate) async fn revoke_denomination(
        &self,
        cipher: Cipher,
        h_bare: HashCode,
        age_mask: u32,
        master_sig: EddsaSignature,
        wait: Duration,
    ) -> bool {
        let item = Item::RevokeDenomination { key: KeyId::of(&h_bare), age_mask, master_sig };
        self.holder(ModuleKind::of_cipher(cipher)).revoke_everywhere(&item, wait).await
    }

    /// Asks every holder of an online key to destroy it. True if all have done so.
    pub(crate) async fn revoke_signing(
        &self,
        key: EddsaPublicKey,
        master_sig: EddsaSignature,
        wait: Duration,
    ) -> bool {
        let item = Item::RevokeSigning { key, master_sig };
        self.holder(ModuleKind::Eddsa).revoke_everywhere(&item, wait).await
    }

    fn holder(&self, kind: ModuleKind) -> &SignerClient {
        match self {
            Self::Signers(client) => client,
            Self::Helpers(helpers) => helpers.client(kind),
        }
    }

    /// Writes `batzen_signer_client_*`.
    pub(crate) fn write(&self, page: &mut Page) {
        match self {
            Self::Signers(client) => client.write(page),
            Self::Helpers(helpers) => {
                let connected = helpers.required.iter().all(|kind| helpers.client(*kind).is_connected());
                let queued = helpers.clients.iter().map(SignerClient::queued).sum();
                helpers.metrics.write(page, connected, queued);
            }
        }
    }
}
