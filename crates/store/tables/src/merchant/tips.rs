//! Tips: reserves of shops, what was promised from them, and the coins that customers picked up.

use batzen_crypto::{EddsaPublicKey, HashCode};
use batzen_protocol::{Money, Timestamp};
use batzen_store::{Column, table};

table! {
    /// Identifies a reserve.
    pub key struct TipReserveKey {
        /// The reserve.
        pub reserve_pub: EddsaPublicKey,
    }

    /// A reserve at an exchange, from which a shop gives tips.
    pub struct TipReserveRow {
        /// The instance.
        pub instance: String,
        /// The reserve's private key. `None`: the reserve is deleted, and no more coins are withdrawn.
        pub reserve_priv: Option<[u8; 32]>,
        /// The exchange.
        pub exchange_url: String,
        /// The exchange's account that fills the reserve.
        pub payto_uri: String,
        /// When it was created.
        pub created: Timestamp,
        /// When the exchange closes it.
        pub expires: Timestamp,
        /// The sum that the shop announced.
        pub merchant_initial: Money,
        /// The sum that the exchange received; zero until then.
        pub exchange_initial: Money,
        /// The sum promised in tips.
        pub committed: Money,
        /// The sum that customers picked up of it.
        pub picked_up: Money,
    }

    /// The reserves of shops.
    pub TipReserves(413, "tip_reserves"): TipReserveKey => TipReserveRow, updated();
    /// By instance.
    BY_INSTANCE = 1, "by_instance", Hash;
    |_, row, out| {
        out.add(Self::BY_INSTANCE, &row.instance);
    }
}

impl TipReserveRow {
    /// Returns the sum that can still be promised.
    #[must_use]
    pub fn left(&self) -> Money {
        self.exchange_initial.checked_sub(self.committed).unwrap_or(Money::ZERO)
    }
}

table! {
    /// Identifies a tip.
    pub key struct TipKey {
        /// Random; who knows it may pick up the tip.
        pub tip_id: HashCode,
    }

    /// A tip.
    pub struct TipRow {
        /// The instance.
        pub instance: String,
        /// Its number in lists: larger for later tips.
        pub row_id: u64,
        /// The reserve that pays it.
        pub reserve_pub: EddsaPublicKey,
        /// The amount.
        pub amount: Money,
        /// The sum picked up.
        pub picked_up: Money,
        /// Why it was given.
        pub justification: String,
        /// The page that the customer sees afterwards.
        pub next_url: String,
        /// It must be picked up before this time.
        pub expires: Timestamp,
    }

    /// The tips.
    pub Tips(414, "tips"): TipKey => TipRow, updated(), shard(32);
    /// By instance, then row id.
    BY_ROW = 1, "by_row", Ordered;
    /// By reserve.
    BY_RESERVE = 2, "by_reserve", Hash;
    |_, row, out| {
        out.add_with(Self::BY_ROW, |bytes| {
            row.instance.encode(bytes);
            row.row_id.encode(bytes);
        });
        out.add(Self::BY_RESERVE, &row.reserve_pub);
    }
}

table! {
    /// Identifies a part of a tip that a customer picks up.
    pub key struct TipPickupKey {
        /// The tip.
        pub tip_id: HashCode,
        /// Hash of the planchets.
        pub pickup_id: HashCode,
    }

    /// A part of a tip that a customer picks up.
    pub struct TipPickupRow {
        /// The amount, withdrawal fees included.
        pub amount: Money,
        /// The number of coins.
        pub planchets: u32,
        /// When it was picked up.
        pub time: Timestamp,
        /// The exchange's blind signatures, as the JSON of the answer. `None`: the exchange has not given them.
        pub signatures: Option<String>,
    }

    /// The sum that customers picked up.
    pub TipPickups(415, "tip_pickups"): TipPickupKey => TipPickupRow, updated(), shard(64);
    /// By tip.
    BY_TIP = 1, "by_tip", Prefix { key_bytes: 64 };
    |key, _, out| {
        out.add(Self::BY_TIP, &key.tip_id);
    }
}
