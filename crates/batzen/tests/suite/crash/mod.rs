//! Shared code of the crash tests.

pub mod coins;
pub mod customers;
pub mod deployment;
pub mod facts;
pub mod false_claims;
pub mod hub;
pub mod log;
pub mod proof;
pub mod purses;
pub mod run;
pub mod shop_facts;
pub mod shoppers;
pub mod transfers;
