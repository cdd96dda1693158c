//! Every money endpoint of the exchange over real HTTP, with a small wallet.
//!
//! | module | contents |
//! |---|---|
//! | [`withdraw`], [`csr`] | reserves become coins |
//! | [`deposit`], [`refund`], [`tracking`] | coins pay merchants |
//! | [`refresh`] | coins become fresh coins: melt, reveal, link |
//! | [`recoup`] | coins of revoked denominations go back |
//! | [`reserves`], [`kyc`] | balances, histories, long polls |
//! | [`archive`] | coins that have left for an archive |
//! | [`race`] | the same coin, reserve or request many times at once |
//! | [`malformed`] | malformed bodies |
//! | [`limits`] | bodies, texts and arrays that are too large |
//!
//! [`world`] starts an exchange with a clock of its own, [`wallet`] makes requests, [`proof`] checks the
//! evidence in refusals as a client would.

mod archive;
mod csr;
mod deposit;
mod kyc;
mod limits;
mod malformed;
mod proof;
mod provider;
mod purses;
mod race;
mod recoup;
mod refresh;
mod refund;
mod reserves;
mod tracking;
pub(crate) mod wallet;
mod withdraw;
pub(crate) mod world;
