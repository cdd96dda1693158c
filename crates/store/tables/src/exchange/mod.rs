//! Tables of the exchange.
//!
//! | file | tables (numbers) |
//! |---|---|
//! | `reserves` | reserves, reserves_in, withdrawals, closings, recoup_credits, history_requests (1–9) |
//! | `coins` | coins, deposits, refunds (10, 11, 13) |
//! | `refreshes` | melts, melt_by_rc, reveals, recoups, recoup_refreshes, recoup_refresh_credits, cs_nonces (20–29) |
//! | `wire` | wire_targets, aggregates, wire_out, prepared, drains, cursors, worker_leases, credits_aside (30–32, 34–36, 38, 80) |
//! | `collected` | collected_sums, past_transfers (39, 49) |
//! | `purses` | purses, purse_deposits, purse_merges, contracts, purse_deletions, reserve_accounts, reserve_opens, reserve_open_deposits, close_requests (40–48) |
//! | `kyc` | kyc_requirements, kyc_processes, kyc_usage, kyc_alerts, kyc_decisions (37, 70–73) |
//! | `archives` | archive_runs, archive_counts, archive_transfers (60–62) |
//! | `keys` | denominations, revocations, signing keys, wire accounts, fees, auditors, extensions, counters (50–59) |
//!
//! Numbers 12 and 33 belonged to removed tables; they must not be reused.
//!
//! Money has no currency here: the exchange has only one. A denomination is named by its [`DenomSerial`]; its
//! terms never change, so fees and values are looked up there and not copied into rows. Sums that rules need
//! often (the rest of a coin, the balance of a reserve, the refunds of a deposit) are columns; tests and the
//! auditor recompute them from the other rows.

mod archives;
mod coins;
mod collected;
mod keys;
mod kyc;
mod messages;
mod purses;
mod refreshes;
mod reserves;
mod types;
mod wire;

pub use archives::*;
pub use coins::*;
pub use collected::*;
pub use keys::*;
pub use kyc::*;
pub use purses::*;
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
        Prepared::DEF,
        Drains::DEF,
        Cursors::DEF,
        KycRequirements::DEF,
        WorkerLeases::DEF,
        CreditsAside::DEF,
        Purses::DEF,
        PurseDeposits::DEF,
        PurseMerges::DEF,
        Contracts::DEF,
        PurseDeletions::DEF,
        ReserveAccounts::DEF,
        ReserveOpens::DEF,
        ReserveOpenDeposits::DEF,
        CloseRequests::DEF,
        KycProcesses::DEF,
        KycUsages::DEF,
        KycAlerts::DEF,
        KycDecisions::DEF,
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
        CollectedSums::DEF,
        PastTransfers::DEF,
        ArchiveRuns::DEF,
        ArchiveCounts::DEF,
        ArchiveTransfers::DEF,
    ]
};

/// The tables that an auditor needs: everything that proves money and obligations. Not work in progress
/// (queues, counters, leases of workers, credits that are set aside), nor who
/// customers are (their attributes, and what counts against their limits), nor tables that only find or guard other rows ([`MeltByRc`],
/// [`CsNonces`], [`PastTransfers`]), nor the encrypted contracts.
pub const AUDITED: &[&TableDef] = {
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
        Refunds::DEF,
        Melts::DEF,
        Reveals::DEF,
        Recoups::DEF,
        RecoupRefreshes::DEF,
        RecoupRefreshCredits::DEF,
        WireTargets::DEF,
        Aggregates::DEF,
        WireOut::DEF,
        Prepared::DEF,
        Drains::DEF,
        Cursors::DEF,
        KycRequirements::DEF,
        Purses::DEF,
        PurseDeposits::DEF,
        PurseMerges::DEF,
        PurseDeletions::DEF,
        ReserveAccounts::DEF,
        ReserveOpens::DEF,
        ReserveOpenDeposits::DEF,
        CloseRequests::DEF,
        Denominations::DEF,
        Revocations::DEF,
        SigningKeys::DEF,
        WireAccounts::DEF,
        WireFees::DEF,
        GlobalFees::DEF,
        Auditors::DEF,
        AuditorDenoms::DEF,
        Extensions::DEF,
        CollectedSums::DEF,
        ArchiveRuns::DEF,
        ArchiveCounts::DEF,
        ArchiveTransfers::DEF,
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
        let target = DepositTarget {
            h_payto: PaytoHash::from_bytes([1; 32]),
            merchant_pub: MerchantPub::from_bytes([2; 32]),
        };
        let key = DepositKey {
            coin_pub: CoinPub::from_bytes([3; 32]),
            merchant_pub: target.merchant_pub,
            h_contract_terms: HashCode::from_bytes([4; 64]),
        };
        let open = |secs| DepositRow {
            denom: DenomSerial(1),
            amount: batzen_protocol::Money::UNIT,
            wallet_time: Timestamp::ZERO,
            exchange_time: Timestamp::from_secs(7),
            refund_deadline: Timestamp::from_secs(secs),
            wire_deadline: Timestamp::from_secs(5),
            wire_salt: batzen_crypto::WireSalt::from_bytes([0; 16]),
            h_payto: target.h_payto,
            coin_sig: EddsaSignature::from_bytes([0; 64]),
            refunded: batzen_protocol::Money::ZERO,
            wtid: None,
        };
        let entries = |row: &DepositRow| {
            let mut entries = batzen_store::IndexEntries::new();
            <Deposits as batzen_store::Table>::index_entries(&key, row, &mut entries);
            entries.iter().map(|(id, value)| (id, value.to_vec())).collect::<Vec<_>>()
        };
        let (from, to) = target.range(Timestamp::from_secs(5));
        for (secs, is_in) in [(0, true), (5, true), (6, false)] {
            let entries = entries(&open(secs));
            let [(Deposits::BY_READY, ready), (Deposits::BY_TARGET, by_target)] = entries.as_slice() else {
                panic!("{entries:?}")
            };
            assert_eq!(from <= *by_target && *by_target < to, is_in, "{secs}");
            // A position is the value and the serial.
            let position = [ready.as_slice(), &[0; 8]].concat();
            let tag = [[1; 12], [2; 12]].concat().try_into().unwrap();
            assert_eq!(ready_position(&position), Ok((Timestamp::from_secs(7), tag)));
        }
        let never = target.range(Timestamp::NEVER);
        assert!(entries(&open(9))[1].1 < never.1);
        let taken = DepositRow { wtid: Some(batzen_crypto::Wtid::from_bytes([9; 32])), ..open(0) };
        assert_eq!(entries(&taken), [(Deposits::BY_WTID, vec![9; 32])]);
    }
}
