//! Many intents as ledger events, and the ledger's answers as verdicts.

use std::collections::{HashMap, HashSet};

use batzen_ledger::{Account, CreateAccountStatus, CreateResult, CreateTransferStatus, Transfer};
use batzen_tables::bank::Origin;

use crate::chart::{Chart, LedgerMismatch, Opening, Verdict, verdict};
use crate::rules::Intent;

/// Most intents in one batch. Each has at most two openings and two transfers, all of which must fit into one
/// request.
pub(crate) const BATCH_MAX: usize = 2_000;
const _: () = assert!(4 * BATCH_MAX <= batzen_ledger::BATCH_EVENTS_MAX);

/// The ledger events of a batch of intents: accounts first, then transfers.
pub(crate) struct Events {
    openings: Vec<Opening>,
    /// First the headroom of the openings, then the transfers of the intents.
    transfers: Vec<Transfer>,
    /// For each intent, its origin and number of transfers.
    counts: Vec<(Origin, usize)>,
}

impl Events {
    pub(crate) fn of<'a>(chart: &Chart, intents: impl ExactSizeIterator<Item = &'a Intent>) -> Self {
        let mut ids: HashMap<&str, u128> = HashMap::new();
        let mut opened = HashSet::new();
        let mut openings = Vec::new();
        let mut own = Vec::with_capacity(intents.len());
        let mut counts = Vec::with_capacity(intents.len());
        for Intent { key, row, opens_debit, opens_credit } in intents {
            let [payer, payee] = [&row.debit_account, &row.credit_account]
                .map(|name| *ids.entry(name.as_str()).or_insert_with(|| chart.account_id(name)));
            for (opens, id) in [(*opens_debit, payer), (*opens_credit, payee)] {
                if opens && opened.insert(id) {
                    openings.push(chart.opening_of(id));
                }
            }
            let before = own.len();
            own.extend(chart.transfers_between(key, row, payer, payee));
            counts.push((key.origin(), own.len() - before));
        }
        // The headroom comes first, because the transfers need it.
        let transfers = openings.iter().map(|opening| opening.headroom).chain(own).collect();
        Self { openings, transfers, counts }
    }

    /// The accounts to be created, if there are any.
    pub(crate) fn accounts(&self) -> Vec<Account> {
        self.openings.iter().map(|opening| opening.account).collect()
    }

    /// The transfers to be created after the accounts.
    pub(crate) fn transfers(&self) -> Vec<Transfer> {
        self.transfers.clone()
    }

    /// The verdicts on the intents, from the ledger's answers to the transfers.
    ///
    /// # Panics
    /// If an account has no headroom: the ledger belongs to another bank.
    pub(crate) fn verdicts(
        &self,
        results: &[CreateResult<CreateTransferStatus>],
    ) -> Vec<Result<Verdict, LedgerMismatch>> {
        assert_eq!(results.len(), self.transfers.len(), "a ledger answers every event");
        let (headroom, mut rest) = results.split_at(self.openings.len());
        for (opening, result) in self.openings.iter().zip(headroom) {
            let status = result.status;
            assert!(status.stands(), "no headroom for account {:x}: {status}", opening.account.id);
        }
        let verdict_of = |(origin, count): &(Origin, usize)| {
            let (own, others) = rest.split_at(*count);
            rest = others;
            // At most two.
            let mut statuses = [CreateTransferStatus::Created; 2];
            for (status, result) in statuses.iter_mut().zip(own) {
                *status = result.status;
            }
            verdict(*origin, &statuses[..*count])
        };
        self.counts.iter().map(verdict_of).collect()
    }
}

/// Checks that the accounts now exist in the ledger.
///
/// # Panics
/// If the ledger has other accounts under their ids.
pub(crate) fn require_accounts(events: &[Account], results: &[CreateResult<CreateAccountStatus>]) {
    assert_eq!(results.len(), events.len(), "a ledger answers every event");
    for (account, result) in events.iter().zip(results) {
        assert!(result.status.stands(), "ledger account {:x}: {}", account.id, result.status);
    }
}
