//! The client.

mod fuzz_smoke;
mod requests;
