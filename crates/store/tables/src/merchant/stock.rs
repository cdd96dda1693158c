//! Products, and what is locked of them for carts.

use batzen_crypto::ShortHash;
use batzen_protocol::{Money, Timestamp};
use batzen_store::{Column, IndexDef, IndexEntries, IndexKind, Table, TableDef, record};

use super::reference;

/// Identifies a lock among those of all instances. One lock may hold several products.
pub type LockRef = ShortHash;

/// The reference of a lock.
#[must_use]
pub fn lock_ref(instance: &str, lock_uuid: &str) -> LockRef {
    reference("batzen-merchant-lock", &[instance, lock_uuid])
}

record! {
    /// Identifies a product.
    pub key struct ProductKey {
        /// The instance.
        pub instance: String,
        /// The product's id within the instance.
        pub product_id: String,
    }
}

impl ProductKey {
    /// The key of a product.
    #[must_use]
    pub fn new(instance: &str, product_id: &str) -> Self {
        Self { instance: instance.to_owned(), product_id: product_id.to_owned() }
    }
}

record! {
    /// A product. What is left is its stock, less what was sold, lost and locked.
    pub struct ProductRow {
        /// The description for customers, as a JSON object: all members of the product in the API that are
        /// not here.
        pub details: String,
        /// The price of one unit.
        pub price: Money,
        /// The age that a customer must have; 0 for any.
        pub minimum_age: u8,
        /// Units that were ever in stock. `None`: there is always more.
        pub total_stock: Option<u64>,
        /// Units in paid orders.
        pub sold: u64,
        /// Units that were stolen or broken.
        pub lost: u64,
        /// Units that carts and unpaid orders hold.
        pub locked: u64,
    }
}

/// The products.
pub struct Products;

impl Products {
    /// By instance, then product.
    pub const BY_ID: u8 = 1;

    /// The value of a product in [`Self::BY_ID`]; without a product, the prefix that all of the instance share.
    #[must_use]
    pub fn id_value(instance: &String, product_id: Option<&str>) -> Vec<u8> {
        let mut value = instance.to_bytes();
        value.extend(product_id.unwrap_or_default().as_bytes());
        value
    }
}

impl Table for Products {
    const DEF: &'static TableDef = &TableDef::of::<Self>(408, "products")
        .updated()
        .indexed(&[IndexDef::new(Self::BY_ID, "by_id", IndexKind::Ordered)]);
    type Key = ProductKey;
    type Row = ProductRow;

    fn index_entries(key: &ProductKey, _: &ProductRow, out: &mut IndexEntries) {
        out.add_with(Self::BY_ID, |bytes| {
            key.instance.encode(bytes);
            bytes.extend(key.product_id.as_bytes());
        });
    }
}

record! {
    /// Identifies what a lock holds of a product.
    pub key struct ProductLockKey {
        /// The lock.
        pub lock: LockRef,
        /// The product's id.
        pub product_id: String,
    }
}

record! {
    /// The quantity of a product that a lock holds.
    pub struct ProductLockRow {
        /// The instance.
        pub instance: String,
        /// Units; never 0.
        pub quantity: u64,
        /// When it ends by itself.
        pub until: Timestamp,
    }
}

/// The locks.
pub struct ProductLocks;

impl ProductLocks {
    /// By lock.
    pub const BY_LOCK: u8 = 1;
    /// By end.
    pub const BY_END: u8 = 2;
}

impl Table for ProductLocks {
    const DEF: &'static TableDef =
        &TableDef::of::<Self>(409, "product_locks").updated().shard(32).indexed(&[
            IndexDef::new(Self::BY_LOCK, "by_lock", IndexKind::Prefix { key_bytes: 32 }),
            IndexDef::new(Self::BY_END, "by_end", IndexKind::Ordered),
        ]);
    type Key = ProductLockKey;
    type Row = ProductLockRow;

    fn index_entries(key: &ProductLockKey, row: &ProductLockRow, out: &mut IndexEntries) {
        out.add(Self::BY_LOCK, &key.lock);
        out.add(Self::BY_END, &row.until);
    }
}
