//! Records: the keys and rows of tables.

use crate::{ColumnType, DecodeError};

/// A named column of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnDef {
    /// The column's name.
    pub name: &'static str,
    /// Its encoding.
    pub column: ColumnType,
}

/// A sequence of columns: the key or the row of a table. Declare one with [`record!`](crate::record).
pub trait Record: Sized + Clone + Send + Sync + 'static {
    /// The columns, in the order of their bytes.
    const COLUMNS: &'static [ColumnDef];
    /// Appends the record's bytes.
    fn encode(&self, out: &mut Vec<u8>);
    /// Reads a record that fills `bytes` exactly.
    ///
    /// # Errors
    /// If the bytes are not a valid record.
    fn decode(bytes: &[u8]) -> Result<Self, DecodeError>;
    /// The record's bytes.
    fn to_bytes(&self) -> Vec<u8> {
        crate::column::exact_bytes(|out| self.encode(out))
    }
}

/// A record without columns, for tables that need only keys.
impl Record for () {
    const COLUMNS: &'static [ColumnDef] = &[];
    fn encode(&self, _: &mut Vec<u8>) {}
    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.is_empty() { Ok(()) } else { Err(DecodeError::Trailing { left: bytes.len() }) }
    }
}

/// Declares a struct and its [`Record`] implementation.
///
/// ```
/// batzen_store::record! {
///     /// Names a coin.
///     pub key struct CoinKey {
///         /// The coin's public key.
///         pub coin_pub: [u8; 32],
///     }
/// }
/// batzen_store::record! {
///     /// What is left of a coin.
///     pub struct CoinRow {
///         /// In hundred-millionths.
///         pub remaining: u128,
///         /// Why it is frozen, if it is.
///         pub frozen: Option<String>,
///     }
/// }
/// ```
///
/// `key struct` also derives `Hash`, `PartialOrd` and `Ord`; both derive `Debug`, `Clone`, `PartialEq` and
/// `Eq`. Further attributes go above the struct.
#[macro_export]
macro_rules! record {
    ($(#[$meta:meta])* $vis:vis key struct $name:ident { $($body:tt)* }) => {
        $crate::record! { @emit [derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)] $(#[$meta])* $vis struct $name { $($body)* } }
    };
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($body:tt)* }) => {
        $crate::record! { @emit [derive(Debug, Clone, PartialEq, Eq)] $(#[$meta])* $vis struct $name { $($body)* } }
    };
    (@emit [$derive:meta] $(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$field_meta:meta])* $field_vis:vis $field:ident : $type:ty),* $(,)?
    }) => {
        $(#[$meta])*
        #[$derive]
        $vis struct $name {
            $($(#[$field_meta])* $field_vis $field: $type,)*
        }

        impl $crate::Record for $name {
            const COLUMNS: &'static [$crate::ColumnDef] = &[
                $($crate::ColumnDef { name: stringify!($field), column: <$type as $crate::Column>::TYPE },)*
            ];
            fn encode(&self, out: &mut ::std::vec::Vec<u8>) {
                let _ = &out;
                $(<$type as $crate::Column>::encode(&self.$field, out);)*
            }
            fn decode(mut bytes: &[u8]) -> ::std::result::Result<Self, $crate::DecodeError> {
                let input = &mut bytes;
                let record = Self { $($field: <$type as $crate::Column>::decode(input)?,)* };
                if input.is_empty() {
                    Ok(record)
                } else {
                    Err($crate::DecodeError::Trailing { left: input.len() })
                }
            }
        }
    };
}
