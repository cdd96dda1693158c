//! Tips: reserves of shops, what was promised from them, and the coins that customers picked up.

use batzen_crypto::{EddsaPublicKey, HashCode};
use batzen_protocol::{Money, Timestamp};
use batzen_store::{Column, IndexDef, IndexEntries, IndexKind, Table, TableDef, record};

record! {
    /// Identifies a reserve.
    pub key struct TipReserveKey {
        /// The reserve.
        pub reserve_pub: EddsaPublicKey,
    }
}

record! {
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
}

impl TipReserveRow {
    /// Returns the sum that can still be promised.
    #[must_use]
    pub fn left(&self) -> Money {
        self.exchange_initial.checked_sub(self.committed).unwrap_or(Money::ZERO)
    }
}

/// The reserves of shops.
pub struct TipReserves;

impl TipReserves {
    /// By instance.
    pub const BY_INSTANCE: u8 = 1;
}

impl Table for TipReserves {
    const DEF: &'static TableDef = &TableDef::of::<Self>(413, "tip_reserves")
        .updated()
        .indexed(&[IndexDef::new(Self::BY_INSTANCE, "by_instance", IndexKind::Hash)]);
    type Key = TipReserveKey;
    type Row = TipReserveRow;

    fn index_entries(_: &TipReserveKey, row: &TipReserveRow, out: &mut IndexEntries) {
        out.add(Self::BY_INSTANCE, &row.instance);
    }
}

record! {
    /// Identifies a tip.
    pub key struct TipKey {
        /// Random; who knows it may pick up the tip.
        pub tip_id: HashCode,
    }
}

record! {
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
}

/// The tips.
pub struct Tips;

impl Tips {
    /// By instance, then row id.
    pub const BY_ROW: u8 = 1;
    /// By reserve.
    pub const BY_RESERVE: u8 = 2;

    /// The value of a tip in [`Self::BY_ROW`]; without a row id, the prefix that all tips of the instance share.
    #[must_use]
    pub fn row_value(instance: &String, row_id: Option<u64>) -> Vec<u8> {
        let mut value = instance.to_bytes();
        if let Some(row_id) = row_id {
            row_id.encode(&mut value);
        }
        value
    }
}

impl Table for Tips {
    const DEF: &'static TableDef = &TableDef::of::<Self>(414, "tips").updated().shard(32).indexed(&[
        IndexDef::new(Self::BY_ROW, "by_row", IndexKind::Ordered),
        IndexDef::new(Self::BY_RESERVE, "by_reserve", IndexKind::Hash),
    ]);
    type Key = TipKey;
    type Row = TipRow;

    fn index_entries(_: &TipKey, row: &TipRow, out: &mut IndexEntries) {
        out.add_with(Self::BY_ROW, |bytes| {
            row.instance.encode(bytes);
            row.row_id.encode(bytes);
        });
        out.add(Self::BY_RESERVE, &row.reserve_pub);
    }
}

record! {
    /// Identifies a part of a tip that a customer picks up.
    pub key struct TipPickupKey {
        /// The tip.
        pub tip_id: HashCode,
        /// Hash of the planchets.
        pub pickup_id: HashCode,
    }
}

record! {
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
}

/// The sum that customers picked up.
pub struct TipPickups;

impl TipPickups {
    /// By tip.
    pub const BY_TIP: u8 = 1;
}

impl Table for TipPickups {
    const DEF: &'static TableDef = &TableDef::of::<Self>(415, "tip_pickups")
        .updated()
        .shard(64)
        .indexed(&[IndexDef::new(Self::BY_TIP, "by_tip", IndexKind::Prefix { key_bytes: 64 })]);
    type Key = TipPickupKey;
    type Row = TipPickupRow;

    fn index_entries(key: &TipPickupKey, _: &TipPickupRow, out: &mut IndexEntries) {
        out.add(Self::BY_TIP, &key.tip_id);
    }
}
