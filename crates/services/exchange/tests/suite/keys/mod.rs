//! The exchange's keys, legal pages and management over real HTTP.

mod caching;
mod lifecycle;
mod management;
mod offline;
mod pages;
mod support;
