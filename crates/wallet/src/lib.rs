//! The wallet: digital cash for one person.
//!
//! [`core`] makes all decisions: records, state machines, coin selection, cryptographic requests. It does no
//! I/O. [`Wallet`] drives it with an SQLite file ([`store`]) and HTTP ([`transport`]).
//!
//! The driver follows one rule: whatever a request could spend or create is on disk before the request is
//! sent, and an operation's next request follows from the stored records alone. So the process can be killed
//! at any time. [`Wallet::run_pending`] then repeats the last request of each operation, and the exchange
//! answers as before.

pub mod backup;
pub mod bank;
pub mod core;
mod driver;
mod network_error;
pub mod store;
pub mod transport;

pub use batzen_protocol::{Amount, Timestamp};
pub use core::coin::{Coin, CoinStatus};
pub use core::discretion::Discretion;
pub use core::exchange::{CipherChoice, CoinWish, Exchange};
pub use core::payment::{DepositAmount, PaymentReceipt, PaymentRequest, ReceiptCoin};
pub use core::purse::Direction;
pub use core::purse::lookup::PeerPayment;
pub use core::refund::RefundPermission;
pub use core::tip::TipUri;
pub use core::views::{Left, Status, Transaction};
pub use driver::{
    CheckOptions, Clock, ManualWithdrawal, PeerRequest, PendingOperation, PurchaseOffer, RunReport, RunUntil,
    Source, Wallet, WalletError, WalletOptions,
};
pub use network_error::NetworkProblem;
