//! Importing credits: each exactly once, whatever the bank does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use batzen_exchange::app::Exchange;
use batzen_exchange::reads::read;
use batzen_exchange::reads::totals::totals;
use batzen_exchange::workers::wirewatch::aside;
use batzen_exchange::workers::{WorkerError, WorkerOptions, wirewatch};
use batzen_protocol::{Money, Timestamp};
use batzen_tables::exchange::{AsideRow, CreditsAside};
use serde_json::{Value, json};

use crate::workers::chaos::killed_when;
use crate::workers::proxy::Action;
use crate::workers::world::{OUR_PAYTO, World, m, our_account, payto, reserve, sum};

fn row(id: u64, n: u64, amount: &str) -> Value {
    json!({
        "row_id": id,
        "date": Timestamp::from_secs(crate::running::START_SECS),
        "amount": amount,
        "credit_account": OUR_PAYTO,
        "debit_account": payto("42"),
        "reserve_pub": reserve(n),
    })
}

fn page(rows: &[Value]) -> Action {
    Action::Answer(200, json!({ "incoming_transactions": rows }).to_string())
}

fn parameter(line: &str, name: &str) -> Option<u64> {
    let query = line.split(' ').nth(1)?.split_once('?')?.1;
    query.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
}

/// A bank with this history.
fn history(rows: Vec<Value>) -> impl FnMut(&str, &str) -> Action {
    move |line, _| {
        let start = parameter(line, "start").unwrap_or(0);
        let delta = parameter(line, "delta").unwrap() as usize;
        let later = rows.iter().filter(|row| row["row_id"].as_u64().is_none_or(|id| id > start));
        let rows: Vec<Value> = later.take(delta).cloned().collect();
        if rows.is_empty() { Action::Answer(204, String::new()) } else { page(&rows) }
    }
}

/// A watcher's work. Returns the number of the credits that it has booked.
async fn watch(app: Arc<Exchange>) -> u64 {
    wirewatch::run_until_idle(&app.core).await.unwrap().done
}

impl World {
    fn cursor(&self) -> u64 {
        read::cursor(&self.app().core.store, our_account()).unwrap()
    }

    /// Ends a world whose bank is scripted.
    async fn end_without_bank(self) {
        assert!(self.totals().conserved());
        self.exchange.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn several_credits_for_one_reserve_all_count() {
    let w = World::new().await;
    assert_eq!(
        w.wirewatch().await.unwrap().done,
        0,
        "the bank does not know the account before its first credit"
    );
    w.add_incoming(reserve(1), "5", "42").await;
    assert_eq!(w.wirewatch().await.unwrap().done, 1);
    assert_eq!(w.wirewatch().await.unwrap().done, 0);
    w.add_incoming(reserve(1), "1.5", "42").await;
    w.add_incoming(reserve(2), "3", "43").await;
    w.add_incoming(reserve(1), "0.00000001", "44").await;
    assert_eq!(w.wirewatch().await.unwrap().done, 3);
    assert_eq!(w.balance(reserve(1)), Some(m("6.50000001")));
    assert_eq!(w.balance(reserve(2)), Some(m("3")));
    w.end().await;
}

#[tokio::test]
async fn many_watchers_on_ids_with_gaps_and_pages_that_end_anywhere() {
    let w = World::new().await;
    // 3000 credits of 100 reserves; ids 7, 14, 28, 35, …
    let ids: Vec<u64> = (1..=4_500).filter(|n| n % 3 != 0).map(|n| n * 7).collect();
    let rows = ids.iter().map(|id| row(*id, id % 100, "EUR:0.5")).collect();
    w.proxy.script(history(rows));
    for watchers in [1, 4, 16] {
        let booked = w.at_once(watchers, watch).await.into_iter().sum::<u64>();
        assert_eq!(booked, if watchers == 1 { ids.len() as u64 } else { 0 });
    }
    assert_eq!(w.totals().wired_in, m("1500"));
    assert_eq!(w.cursor(), *ids.last().unwrap());
    w.end_without_bank().await;
}

#[tokio::test]
async fn sixteen_watchers_from_the_start() {
    let w = World::new().await;
    let rows = (1..=2_100).map(|id| row(id * 3, id % 50, "EUR:0.1")).collect();
    w.proxy.script(history(rows));
    let booked = w.at_once(16, watch).await.into_iter().sum::<u64>();
    assert_eq!(booked, 2_100, "each credit by one of them");
    assert_eq!(w.totals().wired_in, m("210"));
    w.end_without_bank().await;
}

#[tokio::test]
async fn a_page_delivered_twice_counts_once() {
    let w = World::new().await;
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let rows = [row(5, 1, "EUR:1"), row(9, 2, "EUR:2")];
    let more = [row(5, 1, "EUR:1"), row(9, 2, "EUR:2"), row(10, 1, "EUR:4")];
    // Whatever the request: the first page, the same page again, then one that overlaps it.
    w.proxy.script(move |_, _| match count.fetch_add(1, Ordering::SeqCst) {
        0 | 1 => page(&rows),
        2 | 3 => page(&more),
        _ => Action::Answer(204, String::new()),
    });
    assert_eq!(w.wirewatch().await.unwrap().done, 2);
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    assert_eq!(w.wirewatch().await.unwrap().done, 1);
    assert_eq!((w.balance(reserve(1)), w.balance(reserve(2))), (Some(m("5")), Some(m("2"))));
    assert_eq!(w.cursor(), 10);
    w.end_without_bank().await;
}

#[tokio::test]
async fn invalid_rows_do_not_block_others() {
    let w = World::new().await;
    let mut no_id = row(0, 7, "EUR:1");
    no_id.as_object_mut().unwrap().remove("row_id");
    let mut no_key = row(6, 7, "EUR:1");
    no_key["reserve_pub"] = json!("not a key");
    let largest = format!("EUR:{}", Money::MAX);
    w.proxy.script(history(vec![
        row(1, 1, "EUR:1"),
        row(2, 7, "USD:100"),
        row(3, 2, "EUR:2"),
        row(4, 7, "EUR:-1"),
        no_id,
        no_key,
        row(7, 3, "EUR:3"),
        row(8, 3, &largest),
        row(9, 4, "EUR:4"),
        json!({ "row_id": 12 }),
    ]));
    let progress = w.wirewatch().await.unwrap();
    assert_eq!(progress.done, 4);
    // The last look finds the row without an id again, and knows it.
    assert_eq!(progress.set_aside, 6);
    for (n, balance) in [(1, "1"), (2, "2"), (3, "3"), (4, "4")] {
        assert_eq!(w.balance(reserve(n)), Some(m(balance)));
    }
    assert_eq!(w.balance(reserve(7)), None);
    assert_eq!(w.cursor(), 12);
    let metrics = &w.app().core.metrics.workers;
    assert_eq!((metrics.credits_set_aside.get(), metrics.credits_aside.get()), (6, Some(6)));
    let reasons = |w: &World| -> Vec<(u64, String)> {
        let rows = read::credits_aside(&w.app().core.store, 100).unwrap();
        rows.into_iter().map(|(key, row)| (key.bank_row, row.reason)).collect()
    };
    let known = reasons(&w);
    let rows: Vec<u64> = known.iter().map(|(row, _)| *row).collect();
    assert_eq!(rows, [2, 4, 0, 6, 12, 8], "as the page has them, and last what the rules refuse");
    for (row, reason) in
        [(2, "USD:100 is another currency"), (6, "reserve_pub: "), (12, "date: missing field")]
    {
        assert!(known.iter().any(|(known, text)| *known == row && text.contains(reason)), "{row}: {known:?}");
    }
    // They stay after a restart, and a page that is read again adds none.
    let w = w.restart(|_| {}).await;
    assert_eq!(w.wirewatch().await.unwrap().set_aside, 0);
    assert_eq!(reasons(&w), known);
    w.end_without_bank().await;
}

/// A history of today's banks: the exchange's account beside the rows, which have types and fees.
#[tokio::test]
async fn histories_of_today_are_imported_too() {
    let w = World::new().await;
    let of_today = |id: u64, kind: &str, key: &str| {
        let mut row = row(id, id, "EUR:1");
        let members = row.as_object_mut().unwrap();
        members.remove("credit_account");
        let reserve_pub = members.remove("reserve_pub").unwrap();
        members.insert(key.to_owned(), reserve_pub);
        members.insert("type".to_owned(), json!(kind));
        members.insert("credit_fee".to_owned(), json!("EUR:0"));
        row
    };
    let rows = [
        of_today(1, "RESERVE", "reserve_pub"),
        of_today(2, "KYCAUTH", "account_pub"),
        of_today(3, "RESERVE", "reserve_pub"),
        of_today(4, "FUTURE", "reserve_pub"),
    ];
    w.proxy.script(move |line, _| {
        let start = parameter(line, "start").unwrap_or(0) as usize;
        match rows.get(start..).filter(|rows| !rows.is_empty()) {
            Some(rows) => Action::Answer(
                200,
                json!({ "incoming_transactions": rows, "credit_account": OUR_PAYTO }).to_string(),
            ),
            None => Action::Answer(204, String::new()),
        }
    });
    let progress = w.wirewatch().await.unwrap();
    assert_eq!((progress.done, progress.set_aside), (3, 1));
    // Whoever proves a key gets a reserve of that key.
    assert_eq!([1, 2, 3].map(|n| w.balance(reserve(n))), [Some(m("1")); 3]);
    let aside = read::credits_aside(&w.app().core.store, 9).unwrap();
    assert!(aside[0].1.reason.contains("FUTURE"), "{aside:?}");
    w.end_without_bank().await;
}

#[tokio::test]
async fn credits_set_aside_are_booked_by_a_retry_or_dismissed() {
    let w = World::new().await;
    let largest = format!("EUR:{}", Money::MAX);
    w.proxy.script(history(vec![row(1, 3, "EUR:3"), row(2, 3, &largest), row(3, 5, "USD:4")]));
    assert_eq!(w.wirewatch().await.unwrap().set_aside, 2);
    let core = &w.app().core;
    let open = || read::credits_aside(&core.store, 9).unwrap();
    let retry = async |at: usize| {
        let (key, row) = open().remove(at);
        aside::retry(core, &key, &row).await.unwrap()
    };
    let order: Vec<u64> = open().iter().map(|(key, _)| key.bank_row).collect();
    assert_eq!(order, [3, 2]);
    assert!(retry(0).await.unwrap_err().contains("another currency"));
    assert!(retry(1).await.is_err(), "still too much for one reserve");
    // The bank has corrected the row: what is kept of it is the operator's to mend by hand.
    let (key, row) = open().remove(1);
    let mended = AsideRow { text: row.text.replace(&largest, "EUR:2"), ..row };
    assert_eq!(aside::retry(core, &key, &mended).await.unwrap(), Ok(()));
    assert_eq!(aside::retry(core, &key, &mended).await.unwrap(), Err("it is settled already".to_owned()));
    assert_eq!(w.balance(reserve(3)), Some(m("5")), "booked once");
    let (key, row) = open().remove(0);
    assert!(aside::settle(core, &key, "sent back").await.unwrap());
    // Another operator has read the list before: the money is gone, so it is not booked.
    let stale = AsideRow { text: row.text.replace("USD:4", "EUR:4"), ..row };
    assert_eq!(aside::retry(core, &key, &stale).await.unwrap(), Err("it is settled already".to_owned()));
    assert_eq!(w.balance(reserve(5)), None);
    assert!(!aside::settle(core, &key, "sent back again").await.unwrap());
    assert!(open().is_empty());
    let kept = core.store.get::<CreditsAside>(&key).unwrap().unwrap().row;
    assert!(kept.settled.is_some() && kept.note.as_deref() == Some("sent back"));
    w.end_without_bank().await;
}

#[tokio::test]
async fn a_history_out_of_order_is_not_imported() {
    let w = World::new().await;
    w.proxy.script(|_, _| page(&[row(1, 1, "EUR:1"), row(3, 2, "EUR:1"), row(3, 3, "EUR:1")]));
    let error = w.wirewatch().await.unwrap_err();
    assert!(matches!(error, WorkerError::Disorder { before: 3, after: 3, .. }), "{error}");
    assert_eq!((w.balance(reserve(1)), w.cursor()), (None, 0));
    w.proxy.script(|_, _| Action::Answer(200, "[]".to_owned()));
    assert!(matches!(w.wirewatch().await, Err(WorkerError::Bank { .. })), "not a history");
    w.end_without_bank().await;
}

#[tokio::test]
async fn the_import_retries_after_a_failure_of_the_bank() {
    let w = World::new().await;
    w.add_incoming(reserve(1), "5", "42").await;
    let mut left = 6;
    w.proxy.script(move |_, _| {
        left -= 1;
        match left {
            1.. if left % 3 == 0 => Action::Refuse,
            1.. if left % 3 == 1 => Action::Lose,
            1.. => Action::Answer(500, r#"{"code":5110,"hint":"no"}"#.to_owned()),
            _ => Action::Forward,
        }
    });
    assert_eq!(w.wirewatch().await.unwrap().done, 1);
    w.proxy.script(|_, _| Action::Answer(500, String::new()));
    let error = w.wirewatch().await.unwrap_err();
    assert!(
        matches!(&error, WorkerError::Bank { section, .. } if section == "exchange-account-1"),
        "{error}"
    );
    w.proxy.heal();
    w.end().await;
}

/// Several watchers, each with its own ranges. The requests to the bank show that no watcher repeats
/// another's work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchers_share_a_history_by_ranges() {
    for (watchers, size, workers) in [(1, 1, None), (4, 64, Some(4)), (16, 100, None), (3, 50, Some(0))] {
        let w = World::new().await;
        // Ids with small and large gaps, some larger than any range.
        let ids = (1..=900).map(|n: u64| if n <= 450 { n * 3 } else { 1_000_000 + n * 7 });
        let ids: Vec<u64> = ids.collect();
        let mut bank = history(ids.iter().map(|id| row(*id, id % 40, "EUR:0.1")).collect());
        w.proxy.script(move |line, body| {
            assert!(parameter(line, "delta").unwrap() <= size, "no more than a range at once");
            bank(line, body)
        });
        let options = WorkerOptions { shard_size: Some(size), workers, ..WorkerOptions::default() };
        let watched = w.at_once(watchers, move |app| async move {
            let progress = wirewatch::share_until_idle(&app.core, options).await.unwrap();
            let wired_in = totals(&app.core.store, &app.core.rules.denoms).unwrap().wired_in;
            assert_eq!(wired_in, m("90"), "a watcher ends only when all rows are imported");
            progress.done
        });
        let booked = watched.await.into_iter().sum::<u64>();
        assert_eq!(booked, 900, "each credit by one of {watchers}");
        assert_eq!(w.cursor(), *ids.last().unwrap());
        w.end_without_bank().await;
    }
}

/// A watcher is killed after it has booked part of its page and before the cursor has moved. The store is
/// then in the state that a kill of the whole exchange at this moment would leave.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_between_two_commits_of_a_page_loses_no_credit() {
    let w = World::new().await;
    // Eight commands book them; the last one moves the cursor.
    let rows = (1..=8_000).map(|id| row(id, id % 40, "EUR:0.1")).collect();
    w.proxy.script(history(rows));
    let booked = &w.app().core.metrics.workers.credits;
    let in_the_page = || booked.get() > 0;
    assert!(killed_when(in_the_page, wirewatch::run_until_idle(&w.app().core)).await.is_none());
    let first = w.totals().wired_in;
    assert!(
        first >= m("102.4") && first < m("800"),
        "{first}: a part of the page is booked, but not all of it"
    );
    assert_eq!(w.cursor(), 0, "the cursor never passes rows that are not imported");
    // Its successor in the same process inherits the range,
    let before = booked.get();
    let in_the_page = || booked.get() > before;
    assert!(killed_when(in_the_page, wirewatch::run_until_idle(&w.app().core)).await.is_none());
    let second = w.totals().wired_in;
    assert!(second > first && second < m("800") && w.cursor() == 0, "{second}");
    // and one in another process finds it by the cursor.
    let w = w.restart(|_| {}).await;
    let done = w.wirewatch().await.unwrap().done;
    assert!(done > 0 && done <= 8_000 - 2 * 1_024, "{done} rows were left");
    assert_eq!((w.totals().wired_in, w.cursor()), (sum("800"), 8_000));
    w.end_without_bank().await;
}

/// A range whose watcher was killed blocks no other watcher, but the cursor stays in front of it even if
/// later ranges are complete.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cursor_waits_for_a_range_whose_watcher_was_killed() {
    let w =
        World::with(|_| {}, |config| config.workers.lease = batzen_protocol::Duration::from_secs(6)).await;
    let rows: Vec<_> = (1..=200).map(|id| row(id, id % 40, "EUR:0.1")).collect();
    let mut bank = history(rows);
    let asked = Arc::new(AtomicUsize::new(0));
    let (count, begin) = (Arc::clone(&asked), Arc::new(AtomicUsize::new(0)));
    let blocked = Arc::clone(&begin);
    w.proxy.script(move |line, body| {
        if parameter(line, "start").unwrap_or(0) == 0 && blocked.load(Ordering::SeqCst) == 0 {
            count.fetch_add(1, Ordering::SeqCst);
            return Action::Answer(503, String::new());
        }
        bank(line, body)
    });
    let options = WorkerOptions { shard_size: Some(50), ..WorkerOptions::default() };
    let watch = || {
        let app = Arc::clone(w.app());
        tokio::spawn(async move { wirewatch::share_until_idle(&app.core, options).await })
    };
    // One watcher holds the first range, which the bank refuses to serve; the other imports the rest.
    let first = watch();
    while asked.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    let second = watch();
    while w.totals().wired_in < m("15") {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(w.cursor(), 0, "three ranges are complete, but not the first one");
    first.abort();
    begin.store(1, Ordering::SeqCst);
    second.await.unwrap().unwrap();
    assert_eq!((w.totals().wired_in, w.cursor()), (sum("20"), 200));
    w.end_without_bank().await;
}

#[tokio::test]
async fn a_watcher_with_that_option_ends_at_the_first_failure() {
    let w = World::new().await;
    let options = WorkerOptions { exits_on_error: true, ..WorkerOptions::default() };
    let patient = WorkerOptions { ignores_not_found: true, ..options };
    let is_bank_error = |ended: Result<(), WorkerError>| matches!(ended, Err(WorkerError::Bank { .. }));
    // An account that the bank does not know is a failure, unless an option says otherwise: the bank may
    // create it later.
    w.proxy.script(|_, _| Action::Answer(404, json!({ "code": 5110 }).to_string()));
    let until_idle = async |options| wirewatch::share_until_idle(&w.app().core, options).await.map(drop);
    assert!(is_bank_error(until_idle(options).await));
    until_idle(patient).await.unwrap();
    until_idle(WorkerOptions::default()).await.unwrap();
    assert!(is_bank_error(wirewatch::serve(&w.app().core, options).await));
    // Other errors are failures with any option.
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    w.proxy.script(move |_, _| {
        count.fetch_add(1, Ordering::SeqCst);
        Action::Answer(500, "{}".to_owned())
    });
    assert!(is_bank_error(until_idle(patient).await));
    assert!(is_bank_error(wirewatch::serve(&w.app().core, patient).await));
    assert_eq!(asked.load(Ordering::SeqCst), 2, "neither asks again");
    w.end_without_bank().await;
}

#[tokio::test]
async fn the_long_poll_timeout_is_configurable() {
    let w = World::new().await;
    let options =
        WorkerOptions { long_poll_ms: Some(7_000), exits_on_error: true, ..WorkerOptions::default() };
    let asked = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&asked);
    w.proxy.script(move |line, _| {
        seen.store(parameter(line, "long_poll_ms").unwrap() as usize, Ordering::SeqCst);
        Action::Answer(500, "{}".to_owned())
    });
    assert!(wirewatch::serve(&w.app().core, options).await.is_err());
    assert_eq!(asked.load(Ordering::SeqCst), 7_000);
    w.end_without_bank().await;
}
