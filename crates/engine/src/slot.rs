//! Where the results of one request gather, and how those who wait for them are woken.
//!
//! A batch completes many requests at once. To wake each of their tasks from the thread that executed the batch would cost a
//! queue's lock and perhaps a system call apiece, and on a busy processor the first one woken would run before the others know:
//! it would bring its next command alone, and batches would stay small. So one task is woken, and it wakes the others
//! ([`wake_all`]) on its own thread, where that costs next to nothing.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// The results of one request, as they come.
pub(crate) struct Slot<O> {
    /// Nobody waits any more.
    abandoned: AtomicBool,
    state: Mutex<SlotState<O>>,
}

struct SlotState<O> {
    results: Vec<Option<O>>,
    missing: usize,
    failed: bool,
    waker: Option<Waker>,
    /// Whom the task that waits for this wakes when it is woken itself.
    others: Vec<Waker>,
}

impl<O> Slot<O> {
    /// For so many results, and who waits for them.
    pub(crate) fn new(count: usize) -> (Arc<Self>, Ticket<O>) {
        let slot = Arc::new(Self {
            abandoned: AtomicBool::new(false),
            state: Mutex::new(SlotState {
                results: std::iter::repeat_with(|| None).take(count).collect(),
                missing: count,
                failed: false,
                waker: None,
                others: Vec::new(),
            }),
        });
        (Arc::clone(&slot), Ticket { slot })
    }

    /// Whether nobody waits any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Relaxed)
    }

    /// Puts results in their places, from `first`. Nobody is woken; whether they are complete now.
    pub(crate) fn put(&self, first: usize, results: impl ExactSizeIterator<Item = O>) -> bool {
        let mut state = lock(&self.state);
        state.missing -= results.len();
        for (place, result) in state.results[first..].iter_mut().zip(results) {
            *place = Some(result);
        }
        state.missing == 0
    }

    /// There will be no results. Wakes who waits.
    pub(crate) fn fail(&self) {
        let mut state = lock(&self.state);
        state.failed = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Marks that nobody needs the results that are still missing.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Relaxed);
    }
}

/// Wakes all who wait for these slots: the first one, which wakes the others.
pub(crate) fn wake_all<O>(slots: &[Arc<Slot<O>>]) {
    let mut wakers = Vec::with_capacity(slots.len());
    let mut first = None;
    for slot in slots {
        // Who has not asked for its results yet needs no waking.
        if let Some(waker) = lock(&slot.state).waker.take() {
            wakers.push(waker);
            first = first.or(Some(slot));
        }
    }
    let Some(first) = first else { return };
    let mut others = wakers.split_off(1);
    {
        let mut state = lock(&first.state);
        // Who has gone away since does not wake anybody: its end came before this lock, or comes after it and sees them.
        if !first.is_abandoned() {
            std::mem::swap(&mut state.others, &mut others);
        }
    }
    wakers.into_iter().chain(others).for_each(Waker::wake);
}

/// The one who owes the only result of a request. Dropped without it, whoever waits learns that there will be none.
pub(crate) struct Debt<T>(Option<Arc<Slot<T>>>);

impl<T> Debt<T> {
    /// With who waits for the result.
    pub(crate) fn new() -> (Self, Ticket<T>) {
        let (slot, ticket) = Slot::new(1);
        (Self(Some(slot)), ticket)
    }

    /// Whether nobody waits any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.0.as_ref().is_none_or(|slot| slot.is_abandoned())
    }

    /// Puts the result in its place. Nobody is woken yet: that is for [`wake_all`].
    pub(crate) fn put(mut self, result: T) -> Arc<Slot<T>> {
        let slot = self.0.take().expect("taken only here");
        slot.put(0, [result].into_iter());
        slot
    }

    /// Puts the result in its place, and wakes who waits.
    pub(crate) fn send(self, result: T) {
        wake_all(&[self.put(result)]);
    }
}

impl<T> Drop for Debt<T> {
    fn drop(&mut self) {
        if let Some(slot) = self.0.take() {
            slot.fail();
        }
    }
}

/// The results of one request to come, in the order of its items.
#[must_use = "dropping the ticket gives up the request"]
pub struct Ticket<O> {
    slot: Arc<Slot<O>>,
}

/// Why a [`Ticket`] has no results: whoever had the request ended without them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoResults;

impl<O> Ticket<O> {
    pub(crate) fn poll_results(&self, context: &mut Context<'_>) -> Poll<Result<Vec<O>, NoResults>> {
        let mut state = lock(&self.slot.state);
        if state.missing > 0 && !state.failed {
            match &mut state.waker {
                Some(waker) => waker.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        let others = std::mem::take(&mut state.others);
        let results = match state.failed {
            true => Err(NoResults),
            false => Ok(std::mem::take(&mut state.results)),
        };
        drop(state);
        others.into_iter().for_each(Waker::wake);
        Poll::Ready(
            results.map(|results| {
                results.into_iter().map(|result| result.expect("nothing is missing")).collect()
            }),
        )
    }

    /// Waits on this thread, which must not be one of an async runtime.
    pub(crate) fn wait(self) -> Result<Vec<O>, NoResults> {
        struct Unpark(std::thread::Thread);
        impl Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        loop {
            match self.poll_results(&mut Context::from_waker(&waker)) {
                Poll::Ready(results) => return results,
                Poll::Pending => std::thread::park(),
            }
        }
    }
}

impl<O> Future for Ticket<O> {
    type Output = Vec<O>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<O>> {
        self.poll_results(context)
            .map(|results| results.expect("the execution of a request on the CPU pool did not panic"))
    }
}

impl<O> Drop for Ticket<O> {
    fn drop(&mut self) {
        self.slot.abandon();
        // Who was to be woken by this task is woken all the same.
        let others = std::mem::take(&mut lock(&self.slot.state).others);
        others.into_iter().for_each(Waker::wake);
    }
}

/// Nothing panics with one of these locks held, so a poisoned one is as good as any.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets everything go first that this thread's runtime has to do already: other tasks that are ready, and what has come over
/// the network since. So that what they bring makes one batch with what the caller has brought. Returns at once when there is
/// nothing.
pub(crate) async fn end_of_turn() {
    // Tokio wakes a task that gives way when its other tasks have run and its I/O was looked at.
    tokio::task::yield_now().await;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// A waker that counts.
    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    struct Waiter {
        slot: Arc<Slot<u32>>,
        ticket: Option<Ticket<u32>>,
        count: Arc<Count>,
    }

    impl Waiter {
        fn new() -> Self {
            let (slot, ticket) = Slot::new(1);
            Self { slot, ticket: Some(ticket), count: Arc::default() }
        }

        fn poll(&self) -> Poll<Result<Vec<u32>, NoResults>> {
            let waker = Waker::from(Arc::clone(&self.count));
            self.ticket.as_ref().unwrap().poll_results(&mut Context::from_waker(&waker))
        }

        fn woken(&self) -> usize {
            self.count.0.load(Relaxed)
        }
    }

    fn waiting(count: usize) -> Vec<Waiter> {
        let waiters: Vec<Waiter> = std::iter::repeat_with(Waiter::new).take(count).collect();
        waiters.iter().for_each(|waiter| assert!(waiter.poll().is_pending()));
        waiters
    }

    fn complete(waiters: &[Waiter]) {
        let slots: Vec<_> = waiters.iter().map(|waiter| Arc::clone(&waiter.slot)).collect();
        (0..).zip(&slots).for_each(|(number, slot)| assert!(slot.put(0, [number].into_iter())));
        wake_all(&slots);
    }

    fn woken(waiters: &[Waiter]) -> Vec<usize> {
        waiters.iter().map(Waiter::woken).collect()
    }

    #[test]
    fn one_is_woken_and_wakes_the_others() {
        let waiters = waiting(3);
        complete(&waiters);
        assert_eq!(woken(&waiters), [1, 0, 0]);
        assert_eq!(waiters[0].poll(), Poll::Ready(Ok(vec![0])));
        assert_eq!(woken(&waiters), [1, 1, 1]);
        assert_eq!(waiters[2].poll(), Poll::Ready(Ok(vec![2])));
    }

    #[test]
    fn who_goes_away_wakes_the_others_too() {
        // After it was woken ...
        let mut waiters = waiting(3);
        complete(&waiters);
        waiters[0].ticket = None;
        assert_eq!(woken(&waiters), [1, 1, 1]);
        // ... and before.
        let mut waiters = waiting(3);
        waiters[0].ticket = None;
        complete(&waiters);
        assert_eq!(woken(&waiters)[1..], [1, 1]);
    }

    #[test]
    fn who_has_not_waited_yet_is_not_counted_on() {
        let mut waiters = vec![Waiter::new()];
        waiters.extend(waiting(2));
        complete(&waiters);
        assert_eq!(woken(&waiters), [0, 1, 0]);
        assert_eq!(waiters[1].poll(), Poll::Ready(Ok(vec![1])));
        assert_eq!(woken(&waiters), [0, 1, 1]);
        assert_eq!(waiters[0].poll(), Poll::Ready(Ok(vec![0])));
    }

    #[test]
    fn a_failure_wakes_and_is_told() {
        let waiters = waiting(1);
        waiters[0].slot.fail();
        assert_eq!((waiters[0].woken(), waiters[0].poll()), (1, Poll::Ready(Err(NoResults))));
    }

    #[test]
    fn a_debt_that_is_dropped_is_told() {
        let (debt, ticket) = Debt::<u32>::new();
        std::thread::scope(|scope| {
            scope.spawn(|| drop(debt));
            assert_eq!(ticket.wait(), Err(NoResults));
        });
        let (debt, ticket) = Debt::new();
        debt.send(3);
        assert_eq!(ticket.wait(), Ok(vec![3]));
        let (debt, ticket) = Debt::<u32>::new();
        drop(ticket);
        assert!(debt.is_abandoned());
    }

    /// Threads that wait, go away and complete at the same time: nobody waits for ever.
    #[test]
    fn nobody_is_forgotten_whoever_goes_away() {
        for round in 0..500 {
            let (slots, tickets): (Vec<_>, Vec<_>) = (0..4).map(|_| Slot::<u32>::new(1)).unzip();
            std::thread::scope(|scope| {
                for (number, ticket) in tickets.into_iter().enumerate() {
                    scope.spawn(move || {
                        if (number + round) % 3 == 0 {
                            // Asks once, and goes away.
                            let waker = Waker::noop();
                            let _ = ticket.poll_results(&mut Context::from_waker(waker));
                        } else {
                            assert_eq!(ticket.wait(), Ok(vec![7]));
                        }
                    });
                }
                scope.spawn(|| {
                    slots.iter().for_each(|slot| assert!(slot.put(0, [7].into_iter())));
                    wake_all(&slots);
                });
            });
        }
    }
}
