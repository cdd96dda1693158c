//! The exchange's interface (protocol version 14:0:2).

mod coins;
pub mod errors;
mod history;
mod keys;
mod kyc;
mod management;
mod purses;
mod reserves;
mod tracking;

pub use coins::*;
pub use history::*;
pub use keys::*;
pub use kyc::*;
pub use management::*;
pub use purses::*;
pub use reserves::*;
pub use tracking::*;
