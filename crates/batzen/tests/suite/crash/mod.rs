//! Shared code of the crash tests.

pub(crate) mod audit;
pub(crate) mod coins;
pub(crate) mod customers;
pub(crate) mod deployment;
pub(crate) mod facts;
pub(crate) mod false_claims;
pub(crate) mod hub;
pub(crate) mod log;
pub(crate) mod proof;
pub(crate) mod purses;
pub(crate) mod run;
pub(crate) mod shop_facts;
pub(crate) mod shoppers;
pub(crate) mod transfers;
