//! The PostgreSQL storage backend.
//!
//! It knows tables by their [`TableDef`](batzen_store::TableDef) alone, and no money.
//!
//! | module | what |
//! |---|---|
//! | [`layout`] | pure: what a typed table is in the database |
//! | [`schema`] | how the tables come to be and change, and what is done for them beside the data path |
//! | `target` | where the server is and how to get in |
//! | `socket`, `connection` | bytes, and the protocol: pipelines of prepared statements, synchronous |

mod connection;
mod error;
pub mod layout;
pub mod schema;
mod socket;
mod target;

pub use connection::Connection;
pub use error::{PgError, ServerError};
pub use layout::{IndexForm, IndexLayout, Layout, PARTITIONS_MAX, SqlColumn, SqlType};
pub use target::Target;
