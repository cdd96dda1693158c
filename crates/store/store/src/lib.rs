//! Typed tables, the storage backends under them, and the conformance suite that every backend passes.
//!
//! A *table* is declared once ([`Table`], by [`table!`](crate::table) with its key and row): columns,
//! secondary indexes and the shard key. A *backend* ([`Backend`]) handles only bytes: it reads many rows at
//! once, and commits a [`ChangeSet`] atomically and durably. There are no money rules here.
//!
//! | backend | for |
//! |---|---|
//! | [`embedded::EmbeddedStore`] | one node: an append-only checksummed journal under compact indexes in memory |
//! | `batzen_postgres::PostgresStore` | several processes on one database; readable by SQL, replicated, backed up by its tools |
//! | [`memory::MemoryBackend`] | tests and models: nothing is durable |
//!
//! [`Store`] is the typed interface to all of them.

mod backend;
mod column;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
mod domain;
pub mod embedded;
mod error;
mod feed;
mod filter;
mod layout;
pub mod memory;
mod record;
mod store;
mod table;
#[cfg(any(test, feature = "testing"))]
mod testing;
mod value;

pub use backend::{
    Backend, Change, ChangeSet, CommitOutcome, FrozenRows, Notice, ROW_BYTES_MAX, RawRecord, RawRow, Read,
    ReadAnswer, RowVersion, StoreStats, Subscriber,
};
pub use column::{Column, ColumnKind, ColumnType, List, put_bytes, take, take_array, take_bytes};
pub use error::{DecodeError, Result, StoreError};
pub use feed::{CommitFeed, Feed, FeedChange, FeedCursor, FeedFrame, HOLD_NOTE_BYTES_MAX, Hold};
pub use filter::Filter;
pub(crate) use layout::LAYOUT_MAX;
pub use layout::Layout;
pub use record::{ColumnDef, Record};
pub use store::{Found, Reads, Store, Stored, go_on, prefix_successor};
pub use table::{IndexDef, IndexEntries, IndexKind, Table, TableDef, VSHARD_COUNT, vshard};
pub use value::{Value, decode_values, encode_values};
