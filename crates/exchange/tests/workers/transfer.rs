//! Executing transfers: once each, whatever happens to the answers.

use std::collections::HashMap;

use batzen_exchange::rules::{Command, TransferRetry};
use batzen_exchange::workers::WorkerError;
use batzen_tables::exchange::Prepared;

use crate::proxy::Action;
use crate::world::{World, m};

impl World {
    /// Prepares so many transfers of 0.89 to accounts t0, t1, …
    async fn prepare(&self, count: usize) {
        for n in 0..count {
            self.deposit(&format!("m{n}"), &format!("t{n}"), &["1"], 0).await;
        }
        self.aggregate().await.unwrap();
        assert_eq!(self.open_transfers(), count);
    }

    async fn assert_paid(&self, count: usize) {
        let mut expected: Vec<_> = (0..count).map(|n| (format!("t{n}"), m("0.89"))).collect();
        expected.sort();
        assert_eq!(self.paid().await, expected);
    }
}

fn status(status: u16, code: u32) -> Action {
    Action::Answer(status, format!(r#"{{"code":{code},"hint":"scripted"}}"#))
}

#[tokio::test]
async fn a_failing_bank_is_paid_through_once_it_is_back() {
    let w = World::new().await;
    w.prepare(5).await;
    let mut left = 23;
    w.proxy.script(move |_, _| {
        left -= 1;
        match left {
            ..=0 => Action::Forward,
            _ if left % 4 == 0 => status(503, 0),
            _ if left % 4 == 1 => status(401, 5105),
            _ if left % 4 == 2 => Action::Refuse,
            _ => status(500, 5110),
        }
    });
    assert_eq!(w.transfer().await.unwrap().done, 5);
    w.assert_paid(5).await;
    assert_eq!(w.app().metrics.workers.transfer_failures.get(), 22);
    w.end().await;
}

#[tokio::test]
async fn a_bank_that_executes_and_drops_the_connection_pays_once() {
    let w = World::new().await;
    w.prepare(70).await;
    // The answer to each is lost three times; the request even arrives twice at last.
    let mut asked: HashMap<String, u32> = HashMap::new();
    w.proxy.script(move |_, body| {
        let times = asked.entry(body.to_owned()).or_default();
        *times += 1;
        if *times <= 3 { Action::Lose } else { Action::Repeat }
    });
    assert_eq!(w.transfer().await.unwrap().done, 70);
    w.assert_paid(70).await;
    w.end().await;
}

#[tokio::test]
async fn refusals_for_good_are_marked_and_hold_up_nobody() {
    let w = World::new().await;
    w.prepare(6).await;
    w.proxy.script(|_, body| match body {
        _ if body.contains("/t0?") => status(404, 5106),
        _ if body.contains("/t1?") => status(409, 5112),
        _ if body.contains("/t2?") => status(400, 24),
        _ => Action::Forward,
    });
    let progress = w.transfer().await.unwrap();
    assert_eq!((progress.done, progress.set_aside, progress.deferred), (3, 3, 0));
    assert_eq!(w.open_transfers(), 0, "they are not tried again");
    let failed: Vec<_> = w
        .app()
        .store
        .all::<Prepared>()
        .unwrap()
        .into_iter()
        .filter(|found| found.row.failed.is_some())
        .collect();
    assert_eq!(failed.len(), 3);
    assert!(failed.iter().any(|found| found.row.failed.as_ref().unwrap().contains("5106")));
    assert_eq!(w.check().await.in_flight, m("2.67"), "the money is still owed");

    // An operator has looked.
    w.proxy.heal();
    for found in failed {
        w.submit(Command::TransferRetry(TransferRetry { wtid: found.key.wtid })).await.unwrap();
    }
    assert_eq!(w.transfer().await.unwrap().done, 3);
    w.assert_paid(6).await;
    w.end().await;
}

#[tokio::test]
async fn without_money_transfers_wait() {
    let w = World::new().await;
    w.prepare(4).await;
    w.proxy.script(|_, body| if body.contains("/t3?") { Action::Forward } else { status(409, 5102) });
    let progress = w.transfer().await.unwrap();
    assert_eq!((progress.done, progress.set_aside, progress.deferred), (1, 0, 3));
    assert_eq!(w.open_transfers(), 3);
    w.proxy.heal();
    assert_eq!(w.transfer().await.unwrap().done, 3);
    w.assert_paid(4).await;
    w.end().await;
}

#[tokio::test]
async fn a_transfer_that_always_fails_starves_nobody() {
    let w = World::new().await;
    w.prepare(10).await;
    w.proxy.script(|_, body| if body.contains("/t0?") { status(500, 5110) } else { Action::Forward });
    let error = w.transfer().await.unwrap_err();
    assert!(matches!(error, WorkerError::Bank { .. }), "{error}");
    assert_eq!((w.open_transfers(), w.paid().await.len()), (1, 9));
    w.proxy.heal();
    assert_eq!(w.transfer().await.unwrap().done, 1);
    w.assert_paid(10).await;
    w.end().await;
}

/// Another account must not pay what may have been paid already.
#[tokio::test]
async fn only_the_account_that_was_chosen_pays() {
    let w = World::new().await;
    w.prepare(2).await;
    let ours = w.app().config.accounts.clone();
    let w = w
        .restart(|config| config.accounts[0].payto_uri = "payto://x-taler-bank/localhost/other".to_owned())
        .await;
    let progress = w.transfer().await.unwrap();
    assert_eq!((progress.done, progress.set_aside), (0, 2));
    assert_eq!(w.app().metrics.workers.transfers_set_aside.get(), 2);
    let w = w.restart(|config| config.accounts = ours).await;
    assert_eq!(w.transfer().await.unwrap().done, 2);
    w.assert_paid(2).await;
    w.end().await;
}
