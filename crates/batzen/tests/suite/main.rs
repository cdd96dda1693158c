//! The tests of this crate in one program, because linking one program is much quicker than linking one per
//! file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod architecture;
mod archive;
mod audit_soak;
mod auditor;
mod auditor_copy;
mod auditor_database;
mod auditor_live;
mod auditor_sync;
mod back_office;
mod bank_page;
mod browsers;
mod circles;
mod cli;
mod common;
mod config;
mod crash;
mod crash_auditor;
mod crash_citus;
mod crash_exchange;
mod crash_ledger;
mod crash_merchant;
mod crash_postgres;
mod crash_switch;
mod crash_workers;
mod database;
mod docs;
mod doctor;
mod four_eyes;
mod garbage;
mod key_helpers;
mod kills;
mod kyc_pages;
mod ledger;
mod ledger_elsewhere;
mod liabilities;
mod merchant;
mod merchant_wallet;
mod monitoring;
mod mutate;
mod nodes;
mod packages;
mod programs;
mod protocol_coverage;
mod readiness;
mod release;
mod request_log;
mod services;
mod signer;
mod style;
#[cfg(feature = "tigerbeetle")]
mod tigerbeetle;
mod two_methods;
mod wallet_cli;
