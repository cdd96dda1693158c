//! Opening stores of every kind.

mod citus;
mod cut;
