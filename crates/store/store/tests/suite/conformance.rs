//! The conformance suite on the backends of this crate.

use batzen_store::conformance::{Fixture, TABLES};
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::memory::MemoryBackend;
use batzen_store::{Store, store_conformance};

fn transient() -> Fixture {
    Fixture::transient(Store::new(MemoryBackend::new()))
}

fn embedded(options: impl Fn() -> Options + 'static) -> Fixture {
    let directory = tempfile::tempdir().expect("a temporary directory");
    Fixture::durable(move || {
        Store::new(EmbeddedStore::open(directory.path(), TABLES, options()).expect("it opens"))
    })
}

fn small_segments() -> Options {
    Options {
        segment_bytes_first: 2048,
        segment_bytes_max: 4096,
        checkpoint_bytes: 8192,
        ..Options::default()
    }
}

store_conformance!(memory, transient);
store_conformance!(embedded_defaults, || embedded(Options::default));
// Every few commits roll to a new segment, compact and checkpoint.
store_conformance!(embedded_small_segments, || embedded(small_segments));

fn without_index_memory() -> Options {
    Options { index_hot_bytes: 0, scan_rows_at_once: 100, ..small_segments() }
}

// Index entries are soon in runs only.
store_conformance!(embedded_without_index_memory, || embedded(without_index_memory));
