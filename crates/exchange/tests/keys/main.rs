//! The exchange's keys, legal pages and management over real HTTP.

#![allow(clippy::unwrap_used)]

mod caching;
mod lifecycle;
mod management;
mod offline;
mod pages;
mod support;
