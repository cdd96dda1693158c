//! The PostgreSQL storage backend.
//!
//! It handles tables only through their [`TableDef`](batzen_store::TableDef), and has no rules about money.
//!
//! | module | contents |
//! |---|---|
//! | [`layout`] | pure: the form of a typed table in the database |
//! | `statements` | pure: a table's statements, from its layout |
//! | `codec` | a record's bytes as database columns, and back |
//! | `changes` | pure: the net effect of a change set on each row, and why it does not fit |
//! | [`hot`] | pure: the statements of the hot paths, to examine their plans |
//! | `client` | the protocol: addresses, connections, pipelines of prepared statements, values; no tables |
//! | `pool`, `database` | connections, replaced when old or lost; waiting for an unreachable server |
//! | `read`, `scan` | plans in one round trip from one snapshot; whole tables |
//! | `sizes` | rows and sizes of tables for metrics, read rarely |
//! | `batch` | a change set as statements with their parameters |
//! | `commit` | change sets in one round trip; the outcome of a commit whose connection was lost |
//! | `citus` | what differs on the nodes of a Citus cluster |
//! | `listen` | the store's lock, and notifications |
//! | [`replica`] | the changes of a publication, for a copy elsewhere |
//! | [`schema`] | creation, migration and maintenance of the tables |
//! | `store` | opening, and [`Backend`](batzen_store::Backend) |

mod batch;
mod changes;
mod citus;
mod client;
mod codec;
mod commit;
mod counters;
mod database;
mod error;
pub mod hot;
pub mod layout;
mod listen;
mod options;
mod pool;
mod read;
pub mod replica;
mod scan;
pub mod schema;
mod sizes;
mod statements;
mod store;
mod writer;

pub(crate) use client::ServerError;
pub use client::{Connection, PgError, Target};
pub use layout::{Layout, SqlColumn};
pub use options::{PgOptions, Sharing};
pub use store::{PostgresStore, open};
