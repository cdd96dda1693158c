//! The conformance suite of all stores.

use batzen_store::conformance::{Fixture, TABLES};
use batzen_store::memory::MemoryBackend;
use batzen_store::{Store, store_conformance};

use crate::common;

/// A store on Citus; without a cluster, one in memory, which the suite passes, too.
fn fixture() -> Fixture {
    match super::schema(TABLES) {
        Some(options) => Fixture::durable(move || common::open(&options)),
        None => Fixture::transient(Store::new(MemoryBackend::new())),
    }
}

store_conformance!(citus, fixture);
