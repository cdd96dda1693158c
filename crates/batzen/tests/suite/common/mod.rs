//! Running the real program.

pub(crate) use batzen_testkit::process::*;
pub(crate) use batzen_testkit::{browser, damage, setup};

pub(crate) mod backend;
pub(crate) mod customer;
pub(crate) mod drop_in;
pub(crate) mod http;
pub(crate) mod site;
