//! The one binary of Batzen.
fn main() {}
