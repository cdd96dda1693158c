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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use batzen_crypto::{BlindedDenomSignature, CsRPub, EddsaSignature, HashCode};
    use batzen_protocol::Timestamp;
    use batzen_store::{Column, Record};

    use super::*;

    #[test]
    fn numbers_and_names_are_used_once_and_in_range() {
        let ids: HashSet<u16> = ALL.iter().map(|table| table.id).collect();
        let names: HashSet<&str> = ALL.iter().map(|table| table.name).collect();
        assert_eq!((ids.len(), names.len()), (ALL.len(), ALL.len()));
        assert!(ids.iter().all(|id| (1..100).contains(id)));
    }

    #[test]
    fn a_reveal_keeps_all_its_coins() {
        let coin = |n: u8, r_pubs| FreshCoin {
            denom: DenomSerial(n.into()),
            h_coin_ev: HashCode::from_bytes([n; 64]),
            link_sig: EddsaSignature::from_bytes([n; 64]),
            ev_sig: BlindedDenomSignature::Rsa(vec![0, n, 0]),
            r_pubs,
        };
        let r = CsRPub::from_bytes([0; 32]);
        let row = RevealRow {
            transfer_pub: batzen_crypto::EcdhePublicKey::from_bytes([0; 32]),
            transfer_privs: [7; 64],
            rms: Some([0; 32]),
            fresh: FreshCoins(vec![coin(0, None), coin(1, Some((r, r))), coin(2, None)]),
            time: Timestamp::from_secs(1),
        };
        assert_eq!(RevealRow::decode(&Record::to_bytes(&row)), Ok(row.clone()));
        let mut bytes = Column::to_bytes(&row.fresh);
        bytes.truncate(40);
        assert!(FreshCoins::decode(&mut bytes.as_slice()).is_err());
    }

    #[test]
    fn an_account_is_named_by_its_bare_uri() {
        let account = AccountId::of_payto("payto://iban/DE1?receiver-name=A");
        assert_eq!(account, AccountId::of_payto("payto://iban/DE1?receiver-name=B"));
        assert_ne!(account, AccountId::of_payto("payto://iban/DE2?receiver-name=A"));
    }

    #[test]
    fn a_target_range_ends_at_its_refund_deadline() {
        let (h_payto, merchant) = (PaytoHash::from_bytes([1; 32]), MerchantPub::from_bytes([2; 32]));
        let prefix = DepositsOpen::target_prefix(&h_payto, &merchant);
        let until = |secs| DepositsOpen::target_until(&h_payto, &merchant, Timestamp::from_secs(secs));
        assert!(until(1).starts_with(&prefix) && until(1) < until(2));
        assert!(until(5) < DepositsOpen::target_until(&h_payto, &merchant, Timestamp::NEVER));
    }
}
