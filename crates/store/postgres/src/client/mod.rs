//! The client of PostgreSQL: connections, pipelines of prepared statements, values. It knows no tables and no store.

mod connection;
mod error;
mod socket;
mod target;
mod values;

pub use connection::Connection;
pub(crate) use connection::Statement;
pub use error::PgError;
pub(crate) use error::ServerError;
pub(crate) use socket::poll_until;
pub use target::Target;
pub(crate) use values::{Array, Columns};
