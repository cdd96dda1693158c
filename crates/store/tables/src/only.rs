//! The key of tables with one row.

use batzen_store::record;

record! {
    /// Identifies the row of a table that has only one.
    pub key struct SingletonKey {
        /// Always 0.
        pub id: u8,
    }
}

impl SingletonKey {
    /// The only key.
    pub const ONLY: Self = Self { id: 0 };
}
