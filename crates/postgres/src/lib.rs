//! The PostgreSQL storage backend.
//!
//! It knows tables by their [`TableDef`](batzen_store::TableDef) alone, and no money.
//!
//! | module | what |
//! |---|---|
//! | [`layout`] | pure: what a typed table is in the database |

pub mod layout;

pub use layout::{IndexForm, IndexLayout, Layout, PARTITIONS_MAX, SqlColumn, SqlType};
