//! The shops that requests are for. They are kept in memory, unless other processes may change them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use batzen_crypto::{EddsaPrivateKey, ExpandedSigner};
use batzen_http::Response;
use batzen_protocol::ErrorCode;
use batzen_tables::merchant::InstanceRow;

use super::Checked;

/// Maximum size of the cache, in bytes. If it grows larger, all of it is forgotten.
const KEPT_BYTES_MAX: usize = 32 << 20;

/// An instance that exists.
#[derive(Clone)]
pub(crate) struct Shop {
    pub id: String,
    pub row: InstanceRow,
    /// Made for the first signature.
    signer: OnceLock<ExpandedSigner>,
}

impl Shop {
    pub(crate) fn new(id: &str, row: InstanceRow) -> Self {
        Self { id: id.to_owned(), row, signer: OnceLock::new() }
    }

    /// Its private key: 404, code 2016 if it was deleted.
    pub(crate) fn key(&self) -> Checked<EddsaPrivateKey> {
        let deleted = || Response::error(ErrorCode::MERCHANT_GENERIC_INSTANCE_DELETED, &self.id);
        self.row.merchant_priv.map(EddsaPrivateKey::from_bytes).ok_or_else(deleted)
    }

    /// The same, prepared for signing.
    pub(crate) fn signer(&self) -> Checked<&ExpandedSigner> {
        let key = self.key()?;
        Ok(self.signer.get_or_init(|| ExpandedSigner::new(&key)))
    }

    fn bytes(&self) -> usize {
        let InstanceRow { name, address, jurisdiction, email, website, logo, .. } = &self.row;
        let optional: usize = [email, website, logo].into_iter().flatten().map(String::len).sum();
        size_of::<Self>() + self.id.len() + name.len() + address.len() + jurisdiction.len() + optional
    }
}

/// Shops as they were read since any of them changed last.
pub(super) struct Shops {
    /// Number of changes of instances.
    changes: Arc<AtomicU64>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// `Shops::changes` when they were read.
    at: u64,
    shops: HashMap<String, Arc<Shop>>,
    bytes: usize,
}

impl Shops {
    /// Keeps none yet. Whoever changes an instance raises `changes` after that, and before it says so.
    pub(super) fn new(changes: Arc<AtomicU64>) -> Self {
        Self { changes, kept: Mutex::default() }
    }

    /// Returns the number of changes of instances before the next read.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// A shop, if it is kept.
    pub(super) fn get(&self, id: &str) -> Option<Arc<Shop>> {
        self.kept().shops.get(id).cloned()
    }

    /// Keeps a shop that was read after this many changes.
    pub(super) fn keep(&self, shop: &Arc<Shop>, at: u64) {
        let mut kept = self.kept();
        if kept.at != at {
            return;
        }
        kept.bytes += shop.bytes();
        if kept.bytes > KEPT_BYTES_MAX {
            *kept = Kept { at, ..Kept::default() };
            return;
        }
        kept.shops.insert(shop.id.clone(), Arc::clone(shop));
    }

    /// Locks the cache, without entries that may have changed.
    fn kept(&self) -> MutexGuard<'_, Kept> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = self.changes();
        if kept.at != at {
            *kept = Kept { at, ..Kept::default() };
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use batzen_crypto::EddsaPublicKey;
    use batzen_protocol::{Duration, Money};

    use super::*;

    fn shop(id: &str, logo_bytes: usize) -> Arc<Shop> {
        let row = InstanceRow {
            merchant_pub: EddsaPublicKey::from_bytes([1; 32]),
            merchant_priv: None,
            token_hash: None,
            name: "Shop".to_owned(),
            address: "{}".to_owned(),
            jurisdiction: "{}".to_owned(),
            email: None,
            website: None,
            logo: Some("x".repeat(logo_bytes)),
            default_max_wire_fee: Money::ZERO,
            default_max_deposit_fee: Money::ZERO,
            default_wire_fee_amortization: 1,
            default_wire_transfer_delay: Duration::ZERO,
            default_pay_delay: Duration::ZERO,
        };
        Arc::new(Shop::new(id, row))
    }

    #[test]
    fn a_change_forgets_what_was_read_before() {
        let changes = Arc::new(AtomicU64::new(0));
        let shops = Shops::new(Arc::clone(&changes));
        let before = shops.changes();
        shops.keep(&shop("a", 0), before);
        assert!(shops.get("a").is_some() && shops.get("b").is_none());
        changes.fetch_add(1, Ordering::SeqCst);
        assert!(shops.get("a").is_none());
        // Read before the change, and kept after it.
        shops.keep(&shop("b", 0), before);
        assert!(shops.get("b").is_none());
        shops.keep(&shop("b", 0), shops.changes());
        assert!(shops.get("b").is_some());
    }

    #[test]
    fn large_shops_are_not_kept_for_ever() {
        let shops = Shops::new(Arc::default());
        shops.keep(&shop("a", KEPT_BYTES_MAX / 2), 0);
        assert!(shops.get("a").is_some());
        shops.keep(&shop("b", KEPT_BYTES_MAX / 2), 0);
        assert!(shops.get("a").is_none() && shops.get("b").is_none());
        shops.keep(&shop("b", KEPT_BYTES_MAX / 2), 0);
        assert!(shops.get("b").is_some());
    }
}
