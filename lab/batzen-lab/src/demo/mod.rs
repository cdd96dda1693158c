//! Demos: all parts in one process, with real HTTP between them, and a proof that every balance is right.
//!
//! | module | contents |
//! |---|---|
//! | [`cash`] | `batzen demo`: a round of digital cash between bank, exchange, wallets and a merchant |
//! | [`switch`] | `batzen switch demo`: four participants clear and settle over a switch |
//! | [`play_money`] | an exchange with play money, also for `batzen exchange serve --bank` |
//! | [`sheet`] | balance sheets as text and JSON, also for `batzen exchange totals` |

pub mod cash;
pub mod play_money;
pub mod sheet;
pub mod switch;
