//! The tests of this crate, as one program: linking one is much quicker than linking one a file.

mod common;
mod compaction;
mod conformance;
mod damage;
mod faults;
mod fuzz_smoke;
mod kill;
mod model;
mod types;
