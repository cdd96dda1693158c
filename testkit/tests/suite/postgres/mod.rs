//! Temporary PostgreSQL clusters.

mod cluster;
mod proxy;
