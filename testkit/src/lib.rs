//! The programs and worlds that tests and the laboratory run beside Batzen.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that cannot go on fails"))]

pub mod postgres;
