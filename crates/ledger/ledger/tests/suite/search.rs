//! Searches with a limit on what they read: each request keeps to it, and all parts together find what one search
//! without a limit finds.

use std::cell::Cell;
use std::convert::Infallible;

use batzen_ledger::machine::read::{account_balances, account_transfers, query_transfers};
use batzen_ledger::machine::{History, IdStatus, LogRecord, MARK_EVERY, Machine, MemoryHistory};
use batzen_ledger::{
    Account, AccountFilter, AccountFlags, Answer, LedgerError, QueryFilter, Search, Transfer, in_parts,
};

/// A history that counts what is read.
struct Counting<'a>(&'a MemoryHistory, Cell<u64>);

impl History for Counting<'_> {
    type Error = Infallible;

    fn record(&self, number: u64) -> Result<LogRecord, Infallible> {
        self.1.set(self.1.get() + 1);
        self.0.record(number)
    }

    fn len(&self) -> u64 {
        self.0.len()
    }

    fn seek(&self, timestamp: u64) -> Result<u64, Infallible> {
        self.0.seek(timestamp)
    }

    fn find_ids(
        &self,
        hashes: &[u64],
        visit: &mut dyn FnMut(usize, u64, IdStatus),
    ) -> Result<(), Infallible> {
        self.0.find_ids(hashes, visit)
    }
}

/// Accounts and transfers in turn, in runs of different lengths, so that some searches meet only accounts.
fn ledger() -> (Machine, MemoryHistory) {
    let (mut machine, mut history) = (Machine::new(&[3; 16]), MemoryHistory::default());
    let (mut accounts, mut transfers) = (0u128, 0u128);
    for run in 0..12u32 {
        let created: Vec<Account> = (0..1 + run % 4 * 30)
            .map(|_| {
                accounts += 1;
                let code = if accounts % 7 == 0 { 2 } else { 1 };
                Account { id: accounts, ledger: 1, code, flags: AccountFlags::HISTORY, ..Account::default() }
            })
            .collect();
        let timestamp = machine.operation_timestamp(1_000, created.len());
        machine.create_accounts(&history, &created, timestamp).unwrap();
        let moved: Vec<Transfer> = (0..if run == 0 { 0 } else { 40 })
            .map(|_| {
                transfers += 1;
                let (debit_account_id, credit_account_id) =
                    if transfers % 5 == 0 { (2, 1) } else { (1, 2 + transfers % 3) };
                let user_data_64 = u64::from(transfers % 50 == 0);
                Transfer {
                    id: transfers,
                    debit_account_id,
                    credit_account_id,
                    amount: 1,
                    user_data_64,
                    ledger: 1,
                    code: 1,
                    ..Transfer::default()
                }
            })
            .collect();
        history.extend(machine.take_records());
        let timestamp = machine.operation_timestamp(1_000, moved.len());
        machine.create_transfers(&history, &moved, timestamp).unwrap();
        history.extend(machine.take_records());
        machine.settle(&machine.mark());
    }
    assert!(history.records().len() > 700);
    (machine, history)
}

fn ready<T: Send + 'static, E: Into<LedgerError>>(found: Result<Vec<T>, E>) -> Answer<'static, Vec<T>> {
    Box::pin(std::future::ready(found.map_err(Into::into)))
}

/// All that a search finds in parts.
fn parts<F: Search, T: Send + 'static, E: Into<LedgerError>>(
    filter: F,
    mut ask: impl FnMut(F) -> Result<Vec<T>, E>,
) -> Vec<T> {
    let search = in_parts(filter, |filter| ready(ask(filter)));
    at_once(search).unwrap()
}

fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(done) => done,
        std::task::Poll::Pending => unreachable!("nothing waits"),
    }
}

#[test]
fn parts_of_a_search_find_what_the_whole_finds_and_each_reads_little() {
    let (machine, history) = ledger();
    let times: Vec<u64> = history.records().iter().map(LogRecord::timestamp).collect();
    let periods = [(0, 0), (times[100], 0), (0, times[400]), (times[37], times[650]), (times[5], times[5])];
    let mut unfinished = 0;
    for search_max in [1, 2, 7, 100, 10_000] {
        // Beside the search itself: its last record, and a binary search for the end of the period.
        let reads_max = search_max + 12;
        for (timestamp_min, timestamp_max) in periods {
            for (reversed, limit, user_data_64) in [false, true]
                .into_iter()
                .flat_map(|reversed| [3, 8_000].map(|limit| (reversed, limit)))
                .flat_map(|(reversed, limit)| [0, 1, 9].map(|user_data_64| (reversed, limit, user_data_64)))
            {
                let query = QueryFilter {
                    user_data_64,
                    timestamp_min,
                    timestamp_max,
                    limit,
                    reversed,
                    ..QueryFilter::default()
                };
                let whole = query_transfers(&history, &query, u64::MAX).unwrap();
                let found = parts(query, |filter| {
                    let counting = Counting(&history, Cell::new(0));
                    let found = query_transfers(&counting, &filter, search_max);
                    assert!(counting.1.get() <= reads_max, "{} reads of {search_max}", counting.1.get());
                    unfinished += u64::from(found.is_err());
                    found
                });
                assert_eq!(found, whole, "{query:?}, {search_max}");

                let query = QueryFilter { user_data_64: 0, code: 1 + u16::from(user_data_64 > 0), ..query };
                let whole = machine.query_accounts(&query, u64::MAX).unwrap();
                assert_eq!(parts(query, |filter| machine.query_accounts(&filter, search_max)), whole);

                let mine = AccountFilter {
                    user_data_64,
                    timestamp_min,
                    timestamp_max,
                    limit,
                    reversed,
                    debits: user_data_64 < 9,
                    ..AccountFilter::all(1)
                };
                let read = |filter: AccountFilter, search_max| {
                    let counting = Counting(&history, Cell::new(0));
                    let Some(cursor) = machine.account_cursor(&filter) else { return Ok((vec![], vec![])) };
                    let transfers = account_transfers(&counting, &cursor, &filter, search_max)?;
                    assert!(counting.1.get() <= search_max.saturating_add(2 * MARK_EVERY));
                    let balances = account_balances(&counting, &cursor, &filter, search_max)?;
                    Ok::<_, LedgerError>((transfers, balances))
                };
                let (transfers, balances) = read(mine, u64::MAX).unwrap();
                assert_eq!(parts(mine, |filter| read(filter, search_max).map(|found| found.0)), transfers);
                assert_eq!(parts(mine, |filter| read(filter, search_max).map(|found| found.1)), balances);
            }
        }
    }
    assert!(unfinished > 1_000, "{unfinished} searches reached their limit");
}

/// A ledger that reaches the same time again and again, or one outside of the period, does not keep its client for ever.
#[test]
fn a_search_that_does_not_get_on_ends() {
    for (until, reversed) in [(7, false), (7, true), (30, false), (30, true), (0, true), (u64::MAX, false)] {
        let query = QueryFilter {
            timestamp_min: 10,
            timestamp_max: if until > 30 { 0 } else { 20 },
            limit: 1,
            reversed,
            ..QueryFilter::default()
        };
        let ask = |filter: QueryFilter| {
            let is_part = if reversed { filter.timestamp_min } else { filter.timestamp_max } == until;
            ready(if is_part { Ok(Vec::<Transfer>::new()) } else { Err(LedgerError::Unfinished { until }) })
        };
        assert_eq!(
            at_once(in_parts(query, ask)),
            Err(LedgerError::Unfinished { until }),
            "{until} {reversed}"
        );
    }
}

#[test]
fn a_search_that_cannot_go_on_ends() {
    let ask = |_: QueryFilter| ready(Err::<Vec<Transfer>, _>(LedgerError::Unfinished { until: 7 }));
    let query = QueryFilter { limit: 1, ..QueryFilter::default() };
    assert_eq!(at_once(in_parts(query, ask)), Err(LedgerError::Unfinished { until: 7 }));
}
