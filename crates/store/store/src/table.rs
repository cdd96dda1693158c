//! Definitions of tables for backends.

use std::fmt;
use std::hash::{Hash, Hasher};

use siphasher::sip::SipHasher24;

use crate::{Column, ColumnDef, ColumnKind, DecodeError, Layout, Record};

/// The way in which an index finds rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexKind {
    /// All rows with a value, in the order of their serials.
    Hash,
    /// All rows whose key starts with these bytes. Needs no entries.
    Prefix {
        /// The length of the prefix in bytes.
        key_bytes: usize,
    },
    /// Rows in the order of value, then key.
    Ordered,
    /// Rows in the order of value (often the empty one), then serial: a queue in commit order.
    Serial,
}

/// A secondary index of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexDef {
    /// Its number within the table, which lookups use.
    pub id: u8,
    /// Its name, for tools and native schemas.
    pub name: &'static str,
    /// The way in which it finds rows.
    pub kind: IndexKind,
    /// Whether a row may have several entries, which is only possible in hash indexes.
    pub many: bool,
}

impl IndexDef {
    /// Declares an index.
    #[must_use]
    pub const fn new(id: u8, name: &'static str, kind: IndexKind) -> Self {
        Self { id, name, kind, many: false }
    }

    /// The same, with several entries per row.
    #[must_use]
    pub const fn many(self) -> Self {
        assert!(matches!(self.kind, IndexKind::Hash), "only hash indexes have several entries a row");
        Self { many: true, ..self }
    }
}

/// Computes the index entries of an encoded key and row.
pub(crate) type IndexEntriesFn =
    fn(key: &[u8], row: &[u8], out: &mut IndexEntries) -> Result<(), DecodeError>;

/// The definition of a table for backends. Created by [`TableDef::of`].
pub struct TableDef {
    /// Its number, which never changes, since it is stored on disk.
    pub id: u16,
    /// Its name.
    pub name: &'static str,
    /// Number of changes of the result of [`Table::index_entries`] while the columns and indexes stayed the
    /// same: see [`TableDef::version`].
    pub(crate) version: u32,
    /// The columns of the key.
    pub key_columns: &'static [ColumnDef],
    /// The columns of the row, without those of the key.
    pub row_columns: &'static [ColumnDef],
    /// The layouts that rows had before: see [`TableDef::layouts`].
    pub(crate) layouts: &'static [Layout],
    /// Number of leading bytes of the key that form the shard key, which identifies the owner of the row.
    pub shard_bytes: usize,
    /// The secondary indexes.
    pub indexes: &'static [IndexDef],
    /// Whether rows are often changed in place: see [`TableDef::updated`].
    pub updated: bool,
    /// Whether new rows may be there before the rest of their commit: see [`TableDef::claims`].
    pub is_claim: bool,
    /// The indexes that form a queue: see [`TableDef::queue`].
    pub queue: &'static [u8],
    /// The columns whose values repeat: see [`TableDef::shared`].
    pub(crate) shared: RepeatingColumns,
    /// The index entries of a stored record, so that a backend can rebuild its indexes from bytes alone.
    pub index_entries_raw: IndexEntriesFn,
}

impl TableDef {
    /// Describes `T`, sharded by its whole key and without indexes; see [`TableDef::shard`] and
    /// [`TableDef::indexed`].
    #[must_use]
    pub const fn of<T: Table>(id: u16, name: &'static str) -> Self {
        Self {
            id,
            name,
            version: 0,
            key_columns: T::Key::COLUMNS,
            row_columns: T::Row::COLUMNS,
            layouts: &[],
            shard_bytes: usize::MAX,
            indexes: &[],
            queue: &[],
            is_claim: false,
            updated: false,
            shared: RepeatingColumns::NONE,
            index_entries_raw: entries_of::<T>,
        }
    }

    /// Shards the table by the first `bytes` of the key.
    #[must_use]
    pub const fn shard(self, bytes: usize) -> Self {
        assert!(bytes > 0, "a shard key has at least a byte");
        Self { shard_bytes: bytes, ..self }
    }

    /// Says that a row claims its key for an operation, and is harmless without it: whoever repeats the operation finds its
    /// own claim and goes on. So a backend whose rows are on several servers may insert claims before the rest of a
    /// commit, and leave them if that fails.
    #[must_use]
    pub const fn claims(self) -> Self {
        Self { is_claim: true, ..self }
    }

    /// Sets the version. Increase it with every change of [`Table::index_entries`], so that indexes saved by
    /// an older program are recomputed.
    #[must_use]
    pub const fn version(self, version: u32) -> Self {
        Self { version, ..self }
    }

    /// Adds indexes.
    #[must_use]
    pub const fn indexed(self, indexes: &'static [IndexDef]) -> Self {
        let mut i = 0;
        while i < indexes.len() {
            let mut k = i + 1;
            while k < indexes.len() {
                assert!(indexes[i].id != indexes[k].id, "two indexes of a table have the same number");
                k += 1;
            }
            i += 1;
        }
        Self { indexes, ..self }
    }

    /// Marks rows as frequently updated, so that a backend leaves free space next to them.
    #[must_use]
    pub const fn updated(self) -> Self {
        Self { updated: true, ..self }
    }

    /// Declares that these indexes form a queue by deadline: a row is in all of them or in none, usually
    /// enters once and leaves permanently, and each value of the first index starts with a time
    /// ([`ColumnKind::Timestamp`](crate::ColumnKind::Timestamp)). A backend may store them separately,
    /// partitioned by time, so that past entries can be dropped at once.
    #[must_use]
    pub const fn queue(self, indexes: &'static [u8]) -> Self {
        let mut i = 0;
        while i < indexes.len() {
            let mut k = 0;
            while self.indexes[k].id != indexes[i] {
                k += 1;
            }
            assert!(
                matches!(self.indexes[k].kind, IndexKind::Ordered | IndexKind::Serial),
                "a queue's indexes have an order"
            );
            i += 1;
        }
        Self { queue: indexes, ..self }
    }

    /// Names columns of fixed length (16, 32, 48 or 64 bytes) whose values many rows have in common, so that a
    /// backend may store each of them once.
    ///
    /// # Panics
    /// If there is no such column.
    #[must_use]
    pub const fn shared(self, columns: &[&str]) -> Self {
        self.with_shared(columns, true)
    }

    /// The same for values that rows have in common when they are written in one commit.
    ///
    /// # Panics
    /// If there is no such column.
    #[must_use]
    pub const fn shared_in_commit(self, columns: &[&str]) -> Self {
        self.with_shared(columns, false)
    }

    const fn with_shared(mut self, columns: &[&str], is_lasting: bool) -> Self {
        let mut i = 0;
        while i < columns.len() {
            // The columns of a key are found by their lengths, so none of them may be absent.
            let in_key = self.shared.key.add(self.key_columns, columns[i], is_lasting, false);
            let in_row = self.shared.row.add(self.row_columns, columns[i], is_lasting, true);
            assert!(in_key != in_row, "a shared column is in the key or in the row");
            i += 1;
        }
        self
    }

    /// The part of an encoded key that decides its shard.
    #[must_use]
    pub fn shard_key<'a>(&self, key: &'a [u8]) -> &'a [u8] {
        &key[..self.shard_bytes.min(key.len())]
    }

    /// The index with this number.
    ///
    /// # Panics
    /// If the table does not declare it, which is a programming error.
    #[must_use]
    pub fn index_def(&self, id: u8) -> &'static IndexDef {
        let Some(index) = self.indexes.iter().find(|index| index.id == id) else {
            panic!("table {} has no index {id}", self.name);
        };
        index
    }

    /// The kind of an index that has an order.
    ///
    /// # Panics
    /// If it has no order, which is a programming error.
    pub fn assert_ordered(&self, index: u8) -> IndexKind {
        let kind = self.index_def(index).kind;
        assert!(
            matches!(kind, IndexKind::Ordered | IndexKind::Serial),
            "index {index} of {} has no order",
            self.name
        );
        kind
    }

    /// Returns whether rows have owners, as declared by [`TableDef::shard`]. Other tables are small, or are
    /// accessed by whole keys.
    #[must_use]
    pub fn is_sharded(&self) -> bool {
        self.shard_bytes != usize::MAX
    }

    /// Returns whether any index needs entries computed from the row.
    #[must_use]
    pub(crate) fn has_entries(&self) -> bool {
        self.indexes.iter().any(|index| !matches!(index.kind, IndexKind::Prefix { .. }))
    }
}

/// Columns whose values repeat.
#[derive(Clone, Copy)]
pub(crate) struct RepeatingColumns {
    pub key: SharedColumns,
    pub row: SharedColumns,
}

impl RepeatingColumns {
    const NONE: Self =
        Self { key: SharedColumns { all: 0, lasting: 0 }, row: SharedColumns { all: 0, lasting: 0 } };
}

/// A bit for each column, the first one lowest.
#[derive(Clone, Copy)]
pub(crate) struct SharedColumns {
    all: u64,
    lasting: u64,
}

impl SharedColumns {
    /// Adds a column, if it is one of these.
    const fn add(
        &mut self,
        columns: &[ColumnDef],
        name: &str,
        is_lasting: bool,
        may_be_absent: bool,
    ) -> bool {
        let mut i = 0;
        while i < columns.len() {
            if is_same(columns[i].name, name) {
                assert!(i < 64 && matches!(columns[i].column.kind, ColumnKind::Fixed(_)), "it can be shared");
                assert!(may_be_absent || !columns[i].column.nullable, "it can be shared");
                self.all |= 1 << i;
                self.lasting |= (is_lasting as u64) << i;
                return true;
            }
            i += 1;
        }
        false
    }

    /// Returns whether there are any.
    pub(crate) const fn any(&self) -> bool {
        self.all != 0
    }

    /// For a shared column, whether it repeats beyond a commit.
    pub(crate) fn is_lasting(&self, column: usize) -> Option<bool> {
        let has = |columns: u64| columns.checked_shr(u32::try_from(column).ok()?).map(|bits| bits & 1 == 1);
        has(self.all)?.then(|| has(self.lasting) == Some(true))
    }
}

const fn is_same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}

impl fmt::Debug for TableDef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {} ({})", self.name, self.id)
    }
}

impl PartialEq for TableDef {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for TableDef {}

fn entries_of<T: Table>(key: &[u8], row: &[u8], out: &mut IndexEntries) -> Result<(), DecodeError> {
    T::index_entries(&T::Key::decode(key)?, &T::Row::decode(row)?, out);
    Ok(())
}

/// A typed table. Declare one with [`table!`](crate::table).
pub trait Table: Send + Sync + 'static {
    /// The definition for backends.
    const DEF: &'static TableDef;
    /// The primary key.
    type Key: Record + Eq + Hash + Ord;
    /// The other columns.
    type Row: Record + PartialEq;
    /// The index entries of a record: none, one or several for each index that is not a prefix.
    fn index_entries(_key: &Self::Key, _row: &Self::Row, _out: &mut IndexEntries) {}
}

/// Declares a table: its key and row as [`record!`](crate::record) does, unless they are declared elsewhere; its number
/// and name; the methods of [`TableDef`] that describe it; one line for each index; and the index entries of a record,
/// if not all indexes are prefixes.
///
/// ```
/// use batzen_store::table;
///
/// table! {
///     /// Names an order.
///     pub key struct OrderKey {
///         /// Its number.
///         pub id: u64,
///     }
///
///     /// An order.
///     pub struct OrderRow {
///         /// Who ordered.
///         pub customer: String,
///         /// When to deliver, in seconds; none when delivered.
///         pub due_s: Option<u64>,
///     }
///
///     /// All orders.
///     pub Orders(1, "orders"): OrderKey => OrderRow, updated();
///     /// By customer.
///     BY_CUSTOMER = 1, "by_customer", Hash;
///     /// Undelivered ones by deadline.
///     BY_DUE = 2, "by_due", Ordered;
///     |_, row, out| {
///         out.add(Self::BY_CUSTOMER, &row.customer);
///         if let Some(due_s) = row.due_s {
///             out.add(Self::BY_DUE, &due_s);
///         }
///     }
/// }
/// ```
#[macro_export]
macro_rules! table {
    ($(#[$meta:meta])* $vis:vis key struct $name:ident { $($columns:tt)* } $($rest:tt)+) => {
        $crate::record! { $(#[$meta])* $vis key struct $name { $($columns)* } }
        $crate::table! { $($rest)+ }
    };
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($columns:tt)* } $($rest:tt)+) => {
        $crate::record! { $(#[$meta])* $vis struct $name { $($columns)* } }
        $crate::table! { $($rest)+ }
    };
    (
        $(#[$meta:meta])*
        $vis:vis $name:ident($id:literal, $table:literal): $key:ty => $row:ty
            $(, $option:ident($($argument:tt)*))*;
        $(
            $(#[$index_meta:meta])*
            $index:ident = $number:literal, $index_name:literal,
                $kind:ident $({ $($field:tt)* })? $(.$more:ident())?;
        )*
        $(|$key_name:pat_param, $row_name:pat_param, $out:ident| $entries:block)?
    ) => {
        $(#[$meta])*
        $vis struct $name;

        impl $name {
            $($(#[$index_meta])* $vis const $index: u8 = $number;)*
        }

        impl $crate::Table for $name {
            const DEF: &'static $crate::TableDef = &$crate::TableDef::of::<Self>($id, $table)
                .indexed(&[$(
                    $crate::IndexDef::new(Self::$index, $index_name, $crate::IndexKind::$kind $({ $($field)* })?)
                        $(.$more())?,
                )*])
                $(.$option($($argument)*))*;
            type Key = $key;
            type Row = $row;
            $(fn index_entries($key_name: &$key, $row_name: &$row, $out: &mut $crate::IndexEntries) $entries)?
        }
    };
}

/// Collects the index entries of one record.
#[derive(Debug, Default, Clone)]
pub struct IndexEntries {
    bytes: Vec<u8>,
    entries: Vec<(u8, usize, usize)>,
}

impl IndexEntries {
    /// No entries.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an entry whose value is one column.
    pub fn add<C: Column>(&mut self, index: u8, value: &C) {
        self.add_with(index, |out| value.encode(out));
    }

    /// Adds an entry whose value is a record or several columns, written by `encode`.
    pub fn add_with(&mut self, index: u8, encode: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        encode(&mut self.bytes);
        self.entries.push((index, start, self.bytes.len()));
    }

    /// Removes all entries but keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }

    /// All entries: index number and value.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &[u8])> {
        self.entries.iter().map(|&(index, start, end)| (index, &self.bytes[start..end]))
    }

    /// Returns whether this entry is among them.
    #[must_use]
    pub(crate) fn contains(&self, index: u8, value: &[u8]) -> bool {
        self.iter().any(|entry| entry == (index, value))
    }
}

/// The number of virtual shards.
pub const VSHARD_COUNT: u16 = 1024;

/// The virtual shard of a shard key: ten bits of SipHash-2-4 under the store's random key. The hash is keyed
/// because clients choose keys and could otherwise flood one shard.
#[must_use]
pub fn vshard(sip_key: &[u8; 16], shard_key: &[u8]) -> u16 {
    let mut hasher = SipHasher24::new_with_key(sip_key);
    hasher.write(shard_key);
    u16::try_from(hasher.finish() % u64::from(VSHARD_COUNT)).expect("below 1024")
}
