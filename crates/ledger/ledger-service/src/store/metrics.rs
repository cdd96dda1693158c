//! Metrics of a ledger.

use batzen_ledger::{CreateAccountStatus, CreateResult, CreateTransferStatus};
use batzen_metrics::{Counter, Page};

/// Counts of events by outcome. The outcome is a label with few values.
#[derive(Default)]
pub(crate) struct Outcomes {
    created: Counter,
    exists: Counter,
    burnt: Counter,
    chain: Counter,
    refused: Counter,
}

impl Outcomes {
    const COLUMNS: [&str; 5] = ["created", "exists", "burnt", "chain_failed", "refused"];

    fn read(&self) -> [u64; 5] {
        [&self.created, &self.exists, &self.burnt, &self.chain, &self.refused].map(Counter::get)
    }
}

/// Counts by kind of request and outcome.
#[derive(Default)]
pub struct LedgerMetrics {
    requests: [Counter; Kind::ALL.len()],
    accounts: Outcomes,
    transfers: Outcomes,
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

    pub(crate) fn count_accounts(&self, results: &[CreateResult<CreateAccountStatus>]) {
        let created = results.iter().filter(|r| r.status == CreateAccountStatus::Created).count();
        let exists = results.iter().filter(|r| r.status == CreateAccountStatus::Exists).count();
        let chain = results.iter().filter(|r| r.status == CreateAccountStatus::LinkedEventFailed).count();
        self.accounts.created.add(created as u64);
        self.accounts.exists.add(exists as u64);
        self.accounts.chain.add(chain as u64);
        self.accounts.refused.add((results.len() - created - exists - chain) as u64);
    }

    pub(crate) fn count_transfers(&self, results: &[CreateResult<CreateTransferStatus>]) {
        use CreateTransferStatus as S;
        let (mut created, mut exists, mut burnt, mut chain) = (0, 0, 0, 0);
        for result in results {
            match result.status {
                S::Created => created += 1,
                S::Exists => exists += 1,
                S::LinkedEventFailed => chain += 1,
                status if status.burns() || status == S::IdAlreadyFailed => burnt += 1,
                _ => {}
            }
        }
        self.transfers.created.add(created);
        self.transfers.exists.add(exists);
        self.transfers.burnt.add(burnt);
        self.transfers.chain.add(chain);
        self.transfers.refused.add(results.len() as u64 - created - exists - burnt - chain);
    }

    /// Writes `batzen_ledger_requests_total`, `batzen_ledger_events_total` and `batzen_ledger_refused_total`.
    pub(crate) fn write(&self, page: &mut Page) {
        let requests = Kind::ALL.into_iter().zip(self.requests.iter().map(Counter::get));
        page.counters("batzen_ledger_requests_total", "Requests answered or refused", "kind", requests);
        page.matrix(
            "batzen_ledger_events_total",
            "Events decided, by outcome",
            ["kind", "outcome"],
            Outcomes::COLUMNS,
            [("account", self.accounts.read()), ("transfer", self.transfers.read())],
        );
        page.count("batzen_ledger_busy_total", "Requests refused because too many were waiting", &self.busy);
    }
}
