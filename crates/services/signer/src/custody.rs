//! Custody of the exchange's private keys: in this process, or in signers or key helpers. Callers do not see
//! the difference, except that another process can be unavailable.

use std::sync::Arc;
use std::time::Duration;

use batzen_crypto::cs::CsOperation;
use batzen_crypto::denom::{
    BlindedDenomSignature, BlindedPlanchet, Cipher, DenomKey, DenomPublicKey, ExchangeWithdrawValues,
};
use batzen_crypto::{CryptoError, CsNonce, EddsaPublicKey, EddsaSignature, eddsa};
use batzen_engine::{CpuPool, PoolBusy};
use batzen_metrics::Page;
use tokio::sync::watch;

use crate::client::Unavailable;
use crate::frame::ItemStatus;
use crate::items::{Item, KeyId, SignedItem};
use crate::keyholders::Keyholders;
use crate::listing::{DenomInfo, Listing, ModuleKeys, SigningInfo};
use crate::local_signer::{HeldBlind, HeldSign, HeldValues, LocalSigner};
use crate::modules::{HeldKey, SecurityModules, SigningKey};

/// Why a planchet was not signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSigned {
    /// The private key is not available here, or no longer available.
    #[error("the private key is not available")]
    KeyUnavailable,
    /// The planchet does not fit the denomination: wrong cipher, wrong size, or not below the modulus.
    #[error("planchet: {0}")]
    Planchet(CryptoError),
    /// The computed signature failed its check.
    #[error("signing failed: {0}")]
    Failed(CryptoError),
}

impl From<CryptoError> for NotSigned {
    fn from(error: CryptoError) -> Self {
        match error {
            CryptoError::Fault | CryptoError::Internal => Self::Failed(error),
            _ => Self::Planchet(error),
        }
    }
}

impl From<ItemStatus> for NotSigned {
    fn from(status: ItemStatus) -> Self {
        match status {
            ItemStatus::UnknownKey | ItemStatus::OutOfPeriod => Self::KeyUnavailable,
            ItemStatus::Planchet => Self::Planchet(CryptoError::OutOfRange),
            ItemStatus::Done | ItemStatus::NotAllowed | ItemStatus::BadSignature | ItemStatus::Failed => {
                Self::Failed(CryptoError::Internal)
            }
        }
    }
}

/// A denomination key for signing.
#[derive(Clone, Debug)]
pub enum DenomHandle {
    /// The private key is in this process.
    Here(Arc<HeldKey>),
    /// Another process has the private key.
    Remote(Arc<DenomInfo>),
}

impl DenomHandle {
    /// Its public information.
    pub fn info(&self) -> &DenomInfo {
        match self {
            Self::Here(key) => &key.info,
            Self::Remote(info) => info,
        }
    }
}

/// An online key for signing.
#[derive(Clone, Debug)]
pub enum SigningHandle {
    /// The private key is in this process.
    Here(Arc<SigningKey>),
    /// Another process has the private key.
    Remote(Arc<SigningInfo>),
}

impl SigningHandle {
    /// Its public information.
    pub fn info(&self) -> &SigningInfo {
        match self {
            Self::Here(key) => &key.info,
            Self::Remote(info) => info,
        }
    }

    /// The public key.
    pub fn public_key(&self) -> EddsaPublicKey {
        self.info().exchange_pub
    }
}

/// A planchet and the key to sign it with.
#[derive(Debug)]
pub struct BlindOrder {
    /// The key.
    pub key: DenomHandle,
    /// The planchet.
    pub planchet: BlindedPlanchet,
    /// Purpose.
    pub operation: CsOperation,
}

/// A nonce, and the key to derive R values with.
#[derive(Debug)]
pub struct ValuesOrder {
    /// The key.
    pub key: DenomHandle,
    /// The nonce.
    pub nonce: CsNonce,
    /// Purpose.
    pub operation: CsOperation,
}

/// Where the exchange's private keys are.
pub enum Custody {
    /// In this process.
    Here {
        /// The private keys.
        modules: Arc<SecurityModules>,
        /// The CPU pool for signing.
        local_signer: LocalSigner,
    },
    /// In other processes.
    Remote(Keyholders),
}

fn busy(_: PoolBusy) -> Unavailable {
    Unavailable::Busy
}

/// The result for one order of a part, to be put into its position.
type OrderResult<T> = Result<T, NotSigned>;

impl Custody {
    /// Custody in this process, signing on this pool.
    pub fn local(modules: Arc<SecurityModules>, pool: &CpuPool) -> Self {
        Self::Here { modules, local_signer: LocalSigner::new(pool) }
    }

    /// The private keys, if this process has them.
    pub fn modules(&self) -> Option<&Arc<SecurityModules>> {
        match self {
            Self::Here { modules, .. } => Some(modules),
            Self::Remote(_) => None,
        }
    }

    /// The processes that have the private keys, if this one does not.
    pub fn keyholders(&self) -> Option<&Keyholders> {
        match self {
            Self::Here { .. } => None,
            Self::Remote(holders) => Some(holders),
        }
    }

    /// All denomination keys, section by section, oldest first.
    pub fn denominations(&self) -> Vec<DenomHandle> {
        match self {
            Self::Here { modules, .. } => {
                modules.denominations().into_iter().map(DenomHandle::Here).collect()
            }
            Self::Remote(holders) => match holders.listing() {
                Some(listing) => listing.denoms.iter().cloned().map(DenomHandle::Remote).collect(),
                None => Vec::new(),
            },
        }
    }

    /// All online signing keys, oldest first.
    pub fn signing_keys(&self) -> Vec<SigningHandle> {
        match self {
            Self::Here { modules, .. } => {
                modules.signing_keys().into_iter().map(SigningHandle::Here).collect()
            }
            Self::Remote(holders) => match holders.listing() {
                Some(listing) => listing.signing.iter().cloned().map(SigningHandle::Remote).collect(),
                None => Vec::new(),
            },
        }
    }

    /// The modules' keys, which sign announcements. `None` until their holders have sent a listing.
    pub fn module_keys(&self) -> Option<ModuleKeys> {
        match self {
            Self::Here { modules, .. } => modules.module_keys(),
            Self::Remote(holders) => holders.listing().map(|listing| listing.modules),
        }
    }

    /// Notifies of changed keys. `None` if only this process changes them.
    pub fn listings(&self) -> Option<watch::Receiver<Option<Arc<Listing>>>> {
        self.keyholders().map(Keyholders::listings)
    }

    /// Signs blinded planchets. The results are in the order of the arguments.
    ///
    /// # Errors
    /// If too many items are waiting, or no signer answers.
    pub async fn blind_sign(
        &self,
        orders: Vec<BlindOrder>,
    ) -> Result<Vec<OrderResult<BlindedDenomSignature>>, Unavailable> {
        match self {
            Self::Here { local_signer, .. } => {
                let held = |order: BlindOrder| match order.key {
                    DenomHandle::Here(key) => {
                        HeldBlind { key, planchet: order.planchet, operation: order.operation }
                    }
                    DenomHandle::Remote(_) => panic!("handles are of their custodian"),
                };
                let results = local_signer.blind.run(orders.into_iter().map(held).collect()).await;
                let results = results.map_err(busy)?.into_iter();
                Ok(results.map(|result| result.map_err(NotSigned::from)).collect())
            }
            Self::Remote(holders) => {
                remote(holders, &orders, blind_item, |made| match made {
                    SignedItem::Rsa(signature) => Some(BlindedDenomSignature::Rsa(signature)),
                    SignedItem::Cs(signature) => Some(BlindedDenomSignature::Cs(signature)),
                    _ => None,
                })
                .await
            }
        }
    }

    /// The values that wallets need before they can blind coins, in the order of the arguments.
    ///
    /// # Errors
    /// If too many items are waiting, or no signer answers.
    pub async fn values(
        &self,
        orders: Vec<ValuesOrder>,
    ) -> Result<Vec<OrderResult<ExchangeWithdrawValues>>, Unavailable> {
        match self {
            Self::Here { local_signer, .. } => {
                let held = |order: ValuesOrder| match order.key {
                    DenomHandle::Here(key) => {
                        HeldValues { key, nonce: order.nonce, operation: order.operation }
                    }
                    DenomHandle::Remote(_) => panic!("handles are of their custodian"),
                };
                let values = local_signer.values.run(orders.into_iter().map(held).collect()).await;
                Ok(values.map_err(busy)?.into_iter().map(Ok).collect())
            }
            Self::Remote(holders) => {
                // RSA needs no values.
                let mut results: Vec<_> = orders.iter().map(|_| Ok(ExchangeWithdrawValues::Rsa)).collect();
                let is_cs = |order: &ValuesOrder| order.key.info().cipher() == Cipher::Cs;
                let (places, orders): (Vec<_>, Vec<_>) =
                    orders.into_iter().enumerate().filter(|(_, order)| is_cs(order)).unzip();
                let values = remote(holders, &orders, values_item, |made| match made {
                    SignedItem::Values([r0, r1]) => Some(ExchangeWithdrawValues::Cs { r0, r1 }),
                    _ => None,
                });
                for (place, value) in places.into_iter().zip(values.await?) {
                    results[place] = value;
                }
                Ok(results)
            }
        }
    }

    /// Signs messages with an online key. They are queued when this returns.
    ///
    /// # Errors
    /// If too many items are waiting. The future also fails if no signer answers, or none has the key.
    pub fn sign(
        &self,
        key: &SigningHandle,
        messages: Vec<Box<[u8]>>,
    ) -> Result<impl Future<Output = Result<Vec<EddsaSignature>, Unavailable>> + Send + use<>, Unavailable>
    {
        let (mut ticket, mut request) = (None, None);
        match (self, key) {
            (Self::Here { local_signer, .. }, SigningHandle::Here(key)) => {
                let order = |message| HeldSign { key: Arc::clone(key), message };
                let orders = messages.into_iter().map(order).collect();
                ticket = Some(local_signer.sign.submit(orders).map_err(busy)?);
            }
            (Self::Remote(holders), SigningHandle::Remote(key)) => {
                let item =
                    |message: Box<[u8]>| Item::Eddsa { key: key.exchange_pub, message: message.into() };
                let items: Vec<Item> = messages.into_iter().map(item).collect();
                // Boxed, so that the future stays small if the keys are here.
                request = Some(Box::pin(holders.submit(&items)?));
            }
            _ => panic!("handles are of their custodian"),
        }
        Ok(async move {
            if let Some(ticket) = ticket {
                return Ok(ticket.await);
            }
            let request = request.expect("one of the two was made");
            let signature = |made| match made {
                Ok(SignedItem::Eddsa(signature)) => Ok(signature),
                // The key has expired, or the signer does not have it yet. A retry uses another key.
                _ => Err(Unavailable::NoSigner),
            };
            request.await?.into_iter().map(signature).collect()
        })
    }

    /// Signs messages and blocks until they are signed. Not for tasks.
    ///
    /// # Errors
    /// If no signer answers.
    ///
    /// # Panics
    /// If it is called from a task of a tokio runtime, or (signers) outside of one.
    pub fn sign_waiting(
        &self,
        key: &SigningHandle,
        messages: Vec<Box<[u8]>>,
    ) -> Result<Vec<EddsaSignature>, Unavailable> {
        match (self, key) {
            (Self::Here { .. }, SigningHandle::Here(key)) => {
                let items: Vec<_> = messages.iter().map(|message| (&key.signer, &**message)).collect();
                Ok(eddsa::sign_batch(&items))
            }
            _ => {
                let signed = self.sign(key, messages)?;
                tokio::runtime::Handle::current().block_on(signed)
            }
        }
    }

    /// Asks every other process with this denomination key to destroy it, because the master key has revoked
    /// it. True if all have done so.
    pub async fn revoke_denomination(
        &self,
        public: &DenomPublicKey,
        master_sig: EddsaSignature,
        wait: Duration,
    ) -> bool {
        let cipher = match &public.key {
            DenomKey::Rsa(_) => Cipher::Rsa,
            DenomKey::Cs(_) => Cipher::Cs,
        };
        match self {
            Self::Here { .. } => true,
            Self::Remote(holders) => {
                let (h_bare, age_mask) = (public.h_key(), public.age_mask);
                holders.revoke_denomination(cipher, h_bare, age_mask, master_sig, wait).await
            }
        }
    }

    /// Asks every other process with this online key to destroy it, because the master key has revoked it.
    /// True if all have done so.
    pub async fn revoke_signing(
        &self,
        key: EddsaPublicKey,
        master_sig: EddsaSignature,
        wait: Duration,
    ) -> bool {
        match self {
            Self::Here { .. } => true,
            Self::Remote(holders) => holders.revoke_signing(key, master_sig, wait).await,
        }
    }

    /// Writes `batzen_signer_client_*`, if other processes have the keys.
    pub fn write(&self, page: &mut Page) {
        if let Self::Remote(holders) = self {
            holders.write(page);
        }
    }
}

/// Sends the orders that can be encoded to the holders of the keys. The others get their error at once.
async fn remote<O, T>(
    holders: &Keyholders,
    orders: &[O],
    item: impl Fn(&O) -> Result<Item, NotSigned>,
    take: impl Fn(SignedItem) -> Option<T>,
) -> Result<Vec<OrderResult<T>>, Unavailable> {
    let mut items = Vec::with_capacity(orders.len());
    let places: Vec<OrderResult<()>> =
        orders.iter().map(|order| item(order).map(|item| items.push(item))).collect();
    if items.is_empty() {
        return Ok(places.into_iter().filter_map(|place| place.err().map(Err)).collect());
    }
    let mut made = holders.submit(&items)?.await?.into_iter();
    let mut result = |()| {
        let made = made.next().expect("one answer an item").map_err(NotSigned::from)?;
        take(made).ok_or(NotSigned::Failed(CryptoError::Internal))
    };
    Ok(places.into_iter().map(|place| place.and_then(&mut result)).collect())
}

fn blind_item(order: &BlindOrder) -> Result<Item, NotSigned> {
    let info = order.key.info();
    let key = KeyId::of(&info.h_bare);
    match (&info.public, &order.planchet) {
        (DenomKey::Rsa(public), BlindedPlanchet::Rsa { blinded }) => {
            // Padded to the size of the modulus, so that the length reveals nothing.
            let size = public.modulus().len();
            let zeros = blinded.iter().take_while(|byte| **byte == 0).count();
            let value = &blinded[zeros..];
            let missing =
                size.checked_sub(value.len()).ok_or(NotSigned::Planchet(CryptoError::OutOfRange))?;
            let mut blinded = vec![0; missing];
            blinded.extend_from_slice(value);
            Ok(Item::Rsa { key, blinded })
        }
        (DenomKey::Cs(_), BlindedPlanchet::Cs { nonce, c0, c1 }) => {
            Ok(Item::Cs { key, operation: order.operation, nonce: *nonce, challenges: [*c0, *c1] })
        }
        _ => Err(NotSigned::Planchet(CryptoError::CipherMismatch)),
    }
}

fn values_item(order: &ValuesOrder) -> Result<Item, NotSigned> {
    let key = KeyId::of(&order.key.info().h_bare);
    Ok(Item::Values { key, operation: order.operation, nonce: order.nonce })
}
