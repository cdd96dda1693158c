//! Metrics of a ledger.

use batzen_ledger::{CreateAccountStatus, CreateResult, CreateTransferStatus};
use batzen_metrics::{Counter, Page};

use crate::store::machine::Response;

/// Outcomes of events, in the order of their counters. The outcome is a label with few values.
const OUTCOMES: [&str; 5] = ["created", "exists", "burnt", "chain_failed", "refused"];

/// Counts by kind of request and outcome.
#[derive(Default)]
pub(crate) struct LedgerMetrics {
    requests: [Counter; Kind::ALL.len()],
    accounts: [Counter; OUTCOMES.len()],
    transfers: [Counter; OUTCOMES.len()],
    pub(crate) busy: Counter,
}

/// Kinds of requests.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    CreateAccounts,
    CreateTransfers,
    LookupAccounts,
    LookupTransfers,
    GetAccountTransfers,
    GetAccountBalances,
    QueryAccounts,
    QueryTransfers,
    GetChangeEvents,
}

impl Kind {
    /// In the order of their counters.
    const ALL: [&str; 9] = [
        "create_accounts",
        "create_transfers",
        "lookup_accounts",
        "lookup_transfers",
        "get_account_transfers",
        "get_account_balances",
        "query_accounts",
        "query_transfers",
        "get_change_events",
    ];
}

impl LedgerMetrics {
    pub(crate) fn asked(&self, kind: Kind) {
        self.requests[kind as usize].inc();
    }

    /// Counts the events of a batch that is durable.
    pub(crate) fn add(&self, tally: &Tally) {
        let counters = self.accounts.iter().chain(&self.transfers);
        for (counter, count) in counters.zip(tally.accounts.iter().chain(&tally.transfers)) {
            counter.add(*count);
        }
    }

    /// Writes `batzen_ledger_requests_total`, `batzen_ledger_events_total` and `batzen_ledger_refused_total`.
    pub(crate) fn write(&self, page: &mut Page) {
        let requests = Kind::ALL.into_iter().zip(self.requests.iter().map(Counter::get));
        page.counters("batzen_ledger_requests_total", "Requests answered or refused", "kind", requests);
        page.matrix(
            "batzen_ledger_events_total",
            "Events decided, by outcome",
            ["kind", "outcome"],
            OUTCOMES,
            [("account", &self.accounts), ("transfer", &self.transfers)]
                .map(|(kind, counters)| (kind, counters.each_ref().map(Counter::get))),
        );
        page.count("batzen_ledger_busy_total", "Requests refused because too many were waiting", &self.busy);
    }
}

/// The events of a batch by outcome.
#[derive(Default)]
pub(crate) struct Tally {
    accounts: [u64; OUTCOMES.len()],
    transfers: [u64; OUTCOMES.len()],
}

impl Tally {
    pub(crate) fn count(&mut self, response: &Response) {
        match response {
            Response::CreateAccounts(results) => self.count_accounts(results),
            Response::CreateTransfers(results) => self.count_transfers(results),
            _ => {}
        }
    }

    pub(crate) fn count_accounts(&mut self, results: &[CreateResult<CreateAccountStatus>]) {
        use CreateAccountStatus as S;
        for result in results {
            let outcome = match result.status {
                S::Created => 0,
                S::Exists => 1,
                S::LinkedEventFailed => 3,
                _ => 4,
            };
            self.accounts[outcome] += 1;
        }
    }

    pub(crate) fn count_transfers(&mut self, results: &[CreateResult<CreateTransferStatus>]) {
        use CreateTransferStatus as S;
        for result in results {
            let outcome = match result.status {
                S::Created => 0,
                S::Exists => 1,
                S::LinkedEventFailed => 3,
                status if status.burns() || status == S::IdAlreadyFailed => 2,
                _ => 4,
            };
            self.transfers[outcome] += 1;
        }
    }
}
