//! Demos: all parts in one process, with real HTTP between them, and a proof that every balance is right.
//!
//! | module | contents |
//! |---|---|
//! | [`cash`] | `batzen-lab demo`: a round of digital cash between bank, exchange, wallets and a merchant |
//! | [`switch`] | `batzen-lab switch demo`: four participants clear and settle over a switch |

pub mod cash;
pub mod switch;
