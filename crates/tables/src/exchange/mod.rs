//! Tables of the exchange.
//!
//! | file | tables (numbers) |
//! |---|---|
//! | `reserves` | reserves, reserves_in, withdrawals, closings, recoup_credits, history_requests (1–9) |
//! | `coins` | coins, deposits, deposits_open, refunds (10–19) |
//! | `refreshes` | melts, melt_by_rc, reveals, recoups, recoup_refreshes, recoup_refresh_credits, cs_nonces (20–29) |
//! | `wire` | wire_targets, aggregates, wire_out, tracking, prepared, drains, cursors, kyc_requirements (30–39) |
//! | `keys` | denominations, revocations, signing keys, wire accounts, fees, auditors, extensions, counters (50–69) |
//!
//! Money has no currency here: it is the exchange's one. A denomination is named by its [`DenomSerial`]; its terms never
//! change, so fees and values are looked up there and not copied into rows. Sums that a rule needs at every turn
//! (what is left of a coin, of a reserve, what was refunded of a deposit) are columns; each can be recomputed from the
//! other rows, which tests and the auditor do.

mod coins;
mod keys;
mod refreshes;
mod reserves;
mod types;
mod wire;

pub use coins::*;
pub use keys::*;
pub use refreshes::*;
pub use reserves::*;
pub use types::*;
pub use wire::*;

use batzen_store::TableDef;

/// Every table of the exchange, for tools and backends that set up schemas.
pub const ALL: &[&TableDef] = {
    use batzen_store::Table;
    &[
        Reserves::DEF,
        ReservesIn::DEF,
        Withdrawals::DEF,
        Closings::DEF,
        RecoupCredits::DEF,
        HistoryRequests::DEF,
        Coins::DEF,
        Deposits::DEF,
        DepositsOpen::DEF,
        Refunds::DEF,
        Melts::DEF,
        MeltByRc::DEF,
        Reveals::DEF,
        Recoups::DEF,
        RecoupRefreshes::DEF,
        RecoupRefreshCredits::DEF,
        CsNonces::DEF,
        WireTargets::DEF,
        Aggregates::DEF,
        WireOut::DEF,
        Tracking::DEF,
        Prepared::DEF,
        Drains::DEF,
        Cursors::DEF,
        KycRequirements::DEF,
        Denominations::DEF,
        Revocations::DEF,
        SigningKeys::DEF,
        WireAccounts::DEF,
        WireFees::DEF,
        GlobalFees::DEF,
        Auditors::DEF,
        AuditorDenoms::DEF,
        Extensions::DEF,
        Counters::DEF,
    ]
};
