//! The tests of this crate in one program, because linking one program is much quicker than linking one per
//! file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod audit;
mod bench;
mod cli;
mod commands;
mod demo_once;
mod experiment;
mod experiment_container;
mod experiment_database;
mod experiment_kept;
mod readme;
mod report_browser;
mod shop;
mod switch_bench;
mod switch_demo;
