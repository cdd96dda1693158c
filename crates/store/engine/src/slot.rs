//! Collects the results of one request.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
#[cfg(test)]
use std::task::Wake;
use std::task::{Context, Poll, Waker};

/// The results of one request, some of which may still be missing.
pub(crate) struct ResultSlot<O> {
    /// Whether the ticket was dropped.
    abandoned: AtomicBool,
    state: Mutex<SlotState<O>>,
}

struct SlotState<O> {
    results: Vec<Option<O>>,
    missing: usize,
    failed: bool,
    waker: Option<Waker>,
}

impl<O> ResultSlot<O> {
    /// A slot for `count` results, and the ticket to wait for them.
    pub(crate) fn new(count: usize) -> (Arc<Self>, Ticket<O>) {
        let slot = Arc::new(Self {
            abandoned: AtomicBool::new(false),
            state: Mutex::new(SlotState {
                results: std::iter::repeat_with(|| None).take(count).collect(),
                missing: count,
                failed: false,
                waker: None,
            }),
        });
        (Arc::clone(&slot), Ticket { slot })
    }

    /// Returns whether the ticket was dropped.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Relaxed)
    }

    /// Puts results in their places, from `first`, without waking the waiting task. Returns whether the
    /// results are complete.
    pub(crate) fn put(&self, first: usize, results: impl ExactSizeIterator<Item = O>) -> bool {
        let mut state = lock(&self.state);
        state.missing -= results.len();
        for (place, result) in state.results[first..].iter_mut().zip(results) {
            *place = Some(result);
        }
        state.missing == 0
    }

    /// Records that there will be no results, and wakes the waiting task.
    pub(crate) fn fail(&self) {
        let mut state = lock(&self.state);
        state.failed = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Records that the missing results are no longer needed.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Relaxed);
    }
}

/// The wakers of the tasks that wait for these slots.
pub(crate) fn waiting<O>(slots: &[Arc<ResultSlot<O>>]) -> Vec<Waker> {
    // A task that has not polled its ticket yet need not be woken.
    slots.iter().filter_map(|slot| lock(&slot.state).waker.take()).collect()
}

/// Sends the only result of a request. Dropping it without a result tells the ticket that there will be none.
pub(crate) struct Responder<T>(Option<Arc<ResultSlot<T>>>);

impl<T> Responder<T> {
    /// A responder, and the ticket to wait for the result.
    pub(crate) fn new() -> (Self, Ticket<T>) {
        let (slot, ticket) = ResultSlot::new(1);
        (Self(Some(slot)), ticket)
    }

    /// Returns whether the ticket was dropped.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.0.as_ref().is_none_or(|slot| slot.is_abandoned())
    }

    /// Puts the result in its place. The caller must wake the waiting task, see [`waiting`].
    pub(crate) fn put(mut self, result: T) -> Arc<ResultSlot<T>> {
        let slot = self.0.take().expect("taken only here");
        slot.put(0, [result].into_iter());
        slot
    }

    /// Puts the result in its place, and wakes the waiting task.
    pub(crate) fn send(self, result: T) {
        waiting(&[self.put(result)]).into_iter().for_each(Waker::wake);
    }
}

impl<T> Drop for Responder<T> {
    fn drop(&mut self) {
        if let Some(slot) = self.0.take() {
            slot.fail();
        }
    }
}

/// The future results of one request, in the order of its items.
#[must_use = "dropping the ticket gives up the request"]
pub struct Ticket<O> {
    slot: Arc<ResultSlot<O>>,
}

/// Why a [`Ticket`] has no results: the responder was dropped without sending them.
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
        let results = match state.failed {
            true => Err(NoResults),
            false => Ok(std::mem::take(&mut state.results)),
        };
        drop(state);
        Poll::Ready(
            results.map(|results| {
                results.into_iter().map(|result| result.expect("nothing is missing")).collect()
            }),
        )
    }

    /// Waits on this thread, which must not belong to an async runtime.
    #[cfg(test)]
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
    }
}

/// Locks a mutex. No code panics while it holds one of these locks, so a poisoned one is still consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// A waker that counts wake-ups.
    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    struct Waiter {
        slot: Arc<ResultSlot<u32>>,
        ticket: Ticket<u32>,
        count: Arc<Count>,
    }

    impl Waiter {
        fn new() -> Self {
            let (slot, ticket) = ResultSlot::new(1);
            Self { slot, ticket, count: Arc::default() }
        }

        fn poll(&self) -> Poll<Result<Vec<u32>, NoResults>> {
            let waker = Waker::from(Arc::clone(&self.count));
            self.ticket.poll_results(&mut Context::from_waker(&waker))
        }

        fn woken(&self) -> usize {
            self.count.0.load(Relaxed)
        }
    }

    #[test]
    fn a_waiting_task_is_woken_once() {
        let waiters: Vec<Waiter> = std::iter::repeat_with(Waiter::new).take(3).collect();
        assert!(waiters[1].poll().is_pending() && waiters[2].poll().is_pending());
        let slots: Vec<_> = waiters.iter().map(|waiter| Arc::clone(&waiter.slot)).collect();
        (0..).zip(&slots).for_each(|(number, slot)| assert!(slot.put(0, [number].into_iter())));
        waiting(&slots).into_iter().for_each(Waker::wake);
        assert!(waiting(&slots).is_empty());
        assert_eq!(waiters.iter().map(Waiter::woken).collect::<Vec<_>>(), [0, 1, 1]);
        for (number, waiter) in (0..).zip(&waiters) {
            assert_eq!(waiter.poll(), Poll::Ready(Ok(vec![number])));
        }
    }

    #[test]
    fn a_failure_wakes_the_waiting_task() {
        let waiter = Waiter::new();
        assert!(waiter.poll().is_pending());
        waiter.slot.fail();
        assert_eq!((waiter.woken(), waiter.poll()), (1, Poll::Ready(Err(NoResults))));
    }

    #[test]
    fn a_dropped_responder_ends_the_wait() {
        let (responder, ticket) = Responder::<u32>::new();
        std::thread::scope(|scope| {
            scope.spawn(|| drop(responder));
            assert_eq!(ticket.wait(), Err(NoResults));
        });
        let (responder, ticket) = Responder::new();
        responder.send(3);
        assert_eq!(ticket.wait(), Ok(vec![3]));
        let (responder, ticket) = Responder::<u32>::new();
        drop(ticket);
        assert!(responder.is_abandoned());
    }

    /// Threads wait, give up and complete at the same time. No thread may wait for ever.
    #[test]
    fn tickets_that_are_dropped_do_not_affect_others() {
        for round in 0..500 {
            let (slots, tickets): (Vec<_>, Vec<_>) = (0..4).map(|_| ResultSlot::<u32>::new(1)).unzip();
            std::thread::scope(|scope| {
                for (number, ticket) in tickets.into_iter().enumerate() {
                    scope.spawn(move || {
                        if (number + round) % 3 == 0 {
                            // Polls once and gives up.
                            let waker = Waker::noop();
                            let _ = ticket.poll_results(&mut Context::from_waker(waker));
                        } else {
                            assert_eq!(ticket.wait(), Ok(vec![7]));
                        }
                    });
                }
                scope.spawn(|| {
                    slots.iter().for_each(|slot| assert!(slot.put(0, [7].into_iter())));
                    waiting(&slots).into_iter().for_each(Waker::wake);
                });
            });
        }
    }
}
