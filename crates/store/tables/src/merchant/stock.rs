//! Products, and what is locked of them for carts.

use batzen_crypto::ShortHash;
use batzen_protocol::{Money, Timestamp};
use batzen_store::{Column, table};

use super::reference;

/// Identifies a lock among those of all instances. One lock may hold several products.
pub type LockRef = ShortHash;

/// The reference of a lock.
#[must_use]
pub fn lock_ref(instance: &str, lock_uuid: &str) -> LockRef {
    reference("batzen-merchant-lock", &[instance, lock_uuid])
}

table! {
    /// Identifies a product.
    pub key struct ProductKey {
        /// The instance.
        pub instance: String,
        /// The product's id within the instance.
        pub product_id: String,
    }

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

    /// The products.
    pub Products(408, "products"): ProductKey => ProductRow, updated();
    /// By instance, then product.
    BY_ID = 1, "by_id", Ordered;
    |key, _, out| {
        out.add_with(Self::BY_ID, |bytes| {
            key.instance.encode(bytes);
            bytes.extend(key.product_id.as_bytes());
        });
    }
}

impl ProductKey {
    /// The key of a product.
    #[must_use]
    pub fn new(instance: &str, product_id: &str) -> Self {
        Self { instance: instance.to_owned(), product_id: product_id.to_owned() }
    }
}

impl Products {
    /// The value of a product in [`Self::BY_ID`]; without a product, the prefix that all of the instance share.
    #[must_use]
    pub fn id_value(instance: &String, product_id: Option<&str>) -> Vec<u8> {
        let mut value = instance.to_bytes();
        value.extend(product_id.unwrap_or_default().as_bytes());
        value
    }
}

table! {
    /// Identifies what a lock holds of a product.
    pub key struct ProductLockKey {
        /// The lock.
        pub lock: LockRef,
        /// The product's id.
        pub product_id: String,
    }

    /// The quantity of a product that a lock holds.
    pub struct ProductLockRow {
        /// The instance.
        pub instance: String,
        /// Units; never 0.
        pub quantity: u64,
        /// When it ends by itself.
        pub until: Timestamp,
    }

    /// The locks.
    pub ProductLocks(409, "product_locks"): ProductLockKey => ProductLockRow, updated(), shard(32);
    /// By lock.
    BY_LOCK = 1, "by_lock", Prefix { key_bytes: 32 };
    /// By end.
    BY_END = 2, "by_end", Ordered;
    |key, row, out| {
        out.add(Self::BY_LOCK, &key.lock);
        out.add(Self::BY_END, &row.until);
    }
}
