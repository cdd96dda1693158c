//! All tests of this crate in one program, because linking one program is much quicker than one for each
//! file.

#[macro_use]
mod common;
mod compaction;
mod conformance;
mod damage;
mod faults;
mod feed;
mod kill;
mod migrate;
mod model;
mod shared;
mod types;
mod writers;
