//! Running the real program.

pub use batzen_testkit::process::*;
pub use batzen_testkit::{browser, damage, setup};

pub mod customer;
pub mod drop_in;
