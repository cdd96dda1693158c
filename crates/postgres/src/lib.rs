//! The PostgreSQL storage backend.
//!
//! It knows tables by their [`TableDef`](batzen_store::TableDef) alone, and no money.
//!
//! | module | what |
//! |---|---|
//! | [`layout`] | pure: what a typed table is in the database |
//! | `statements` | pure: a table's statements, from its layout |
//! | `codec` | a record's bytes as database columns, and back |
//! | `changes` | pure: what a change set comes to for each row, and why it does not fit |
//! | [`hot`] | pure: the statements of the hot paths, for those who look at their plans |
//! | `target` | where the server is and how to get in |
//! | `socket`, `connection`, `values` | bytes, and the protocol: pipelines of prepared statements, synchronous |
//! | `pool`, `database` | connections, replaced when worn or lost; waiting for a server that is away |
//! | `read`, `scan` | plans in one round trip from one snapshot; whole tables |
//! | `sizes` | rows and sizes of tables for metrics, asked for now and then |
//! | `batch` | a change set as statements with their parameters |
//! | `commit` | change sets in one round trip; what became of a commit whose connection was lost |
//! | `listen` | the store's lock, and notifications |
//! | [`schema`] | how the tables are made and changed, and what is done for them beside the data path |
//! | `store` | opening, and [`Backend`](batzen_store::Backend) |

mod batch;
mod changes;
mod codec;
mod commit;
mod connection;
mod counters;
mod database;
mod error;
pub mod hot;
pub mod layout;
mod listen;
mod pool;
mod read;
mod scan;
pub mod schema;
mod sizes;
mod socket;
mod statements;
mod store;
mod target;
mod values;

pub use connection::Connection;
pub use error::{PgError, ServerError};
pub use layout::{IndexForm, IndexLayout, Layout, PARTITIONS_MAX, SqlColumn, SqlType};
pub use store::{PgOptions, PostgresStore, Sharing, open};
pub use target::Target;
