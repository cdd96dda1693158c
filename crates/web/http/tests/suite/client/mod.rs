//! The client.

mod requests;
