//! The outbox: every written intent is sent, repeatedly until the ledger answers, and booked in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use batzen_ledger::{
    Account, Answer, Booking, CreateAccountStatus, CreateResult, CreateTransferStatus, Intents, Ledger,
    LedgerError, MemoryLedger, Outbox, RetryingLedger, Sent, Transfer,
};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// A ledger that loses some answers.
struct Lossy {
    inner: MemoryLedger,
    losses: AtomicU32,
}

impl Lossy {
    fn lost(&self) -> bool {
        self.losses.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
    }
}

impl Ledger for Lossy {
    fn create_accounts(&self, events: Vec<Account>) -> Answer<'_, Vec<CreateResult<CreateAccountStatus>>> {
        self.inner.create_accounts(events)
    }
    fn create_transfers(&self, events: Vec<Transfer>) -> Answer<'_, Vec<CreateResult<CreateTransferStatus>>> {
        Box::pin(async move {
            let results = self.inner.create_transfers(events).await;
            if self.lost() { Err(LedgerError::Unknown("lost".to_owned())) } else { results }
        })
    }
    batzen_ledger::delegate_reads!(inner);
}

/// Intents to move one unit each. The intent is the id of its transfer.
struct Units {
    /// The bookings, in order.
    books: mpsc::UnboundedSender<(u128, CreateTransferStatus)>,
}

impl Intents for Units {
    type Intent = u128;
    type Answer = CreateTransferStatus;
    type Booked = CreateTransferStatus;

    const ROUND_INTENTS_MAX: usize = 3;

    async fn ask(&self, ledger: &RetryingLedger, round: &[Sent<u128>]) -> Vec<CreateTransferStatus> {
        let transfer = |sent: &Sent<u128>| Transfer {
            id: sent.intent,
            debit_account_id: 1,
            credit_account_id: 2,
            amount: 1,
            ledger: 1,
            code: 1,
            ..Transfer::default()
        };
        let results = ledger.create_transfers(round.iter().map(transfer).collect()).await;
        results.into_iter().map(|result| result.status).collect()
    }

    fn book(&self, round: Vec<(u128, CreateTransferStatus)>) -> Booking<CreateTransferStatus> {
        for booked in &round {
            let _ = self.books.send(*booked);
        }
        Box::pin(async move { round.into_iter().map(|(_, status)| Some(status)).collect() })
    }
}

struct World {
    ledger: Arc<Lossy>,
    outbox: Outbox<Units>,
    queue: batzen_ledger::OutboxQueue<Units>,
    units: Units,
    books: mpsc::UnboundedReceiver<(u128, CreateTransferStatus)>,
}

async fn world(losses: u32, places: usize) -> World {
    let ledger = Lossy { inner: MemoryLedger::new(|| 1), losses: AtomicU32::new(losses) };
    let account = |id| Account { id, ledger: 1, code: 1, ..Account::default() };
    ledger.create_accounts(vec![account(1), account(2)]).await.unwrap();
    let (outbox, queue) = Outbox::new(places);
    let (books, booked) = mpsc::unbounded_channel();
    World { ledger: Arc::new(ledger), outbox, queue, units: Units { books }, books: booked }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

#[tokio::test]
async fn intents_are_booked_in_their_order_whatever_answers_are_lost() {
    let World { ledger, outbox, queue, units, mut books } = world(3, 10).await;
    let left = outbox.repeat(vec![vec![100], vec![101, 102]]);
    outbox.send([10, 11]);
    let retrying = RetryingLedger::new(Arc::clone(&ledger) as Arc<dyn Ledger>);
    let task = queue.serve(units, retrying.clone());
    let place = outbox.place().unwrap();
    let settled = outbox.settle(12, place).await.unwrap();
    assert!(matches!(settled, CreateTransferStatus::Created | CreateTransferStatus::Exists));
    assert_eq!(left.await.len(), 3);
    task.end(soon()).await;
    drop(outbox);
    let mut order = Vec::new();
    while let Some((intent, status)) = books.recv().await {
        assert!(status.stands());
        order.push(intent);
    }
    assert_eq!(order, [100, 101, 102, 10, 11, 12]);
    assert_eq!(retrying.counters().repeated.get(), 3);
    assert_eq!(ledger.lookup_accounts(vec![1]).await.unwrap()[0].debits_posted, 6, "each moved once");
}

#[tokio::test]
async fn places_are_limited_and_returned_when_the_intent_is_booked() {
    let World { ledger, outbox, queue, units, .. } = world(0, 2).await;
    let (first, second) = (outbox.place().unwrap(), outbox.place().unwrap());
    assert!(outbox.is_full() && outbox.place().is_none());
    let _task = queue.serve(units, RetryingLedger::new(ledger));
    assert!(outbox.settle(10, first).await.is_some());
    drop(second);
    // The place is free soon after the answer.
    while outbox.open() > 0 {
        tokio::task::yield_now().await;
    }
    // A service may have to send more than it has places: then it refuses commands.
    outbox.send([11, 12, 13]);
    assert!(outbox.is_full());
}

#[tokio::test]
async fn the_end_waits_for_the_ledger_but_not_for_ever() {
    let World { ledger, outbox, queue, units, .. } = world(u32::MAX, 10).await;
    let task = queue.serve(units, RetryingLedger::new(ledger));
    outbox.send([10]);
    task.end(Instant::now() + Duration::from_millis(50)).await;
    assert_eq!(outbox.open(), 0, "the intent is left to the next start");
    let place = outbox.place().unwrap();
    assert!(outbox.settle(11, place).await.is_none());
}
