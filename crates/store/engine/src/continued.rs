//! Futures that continue where the batch that they waited for ends.
//!
//! A request waits several times: for its checks, for its commit, for its confirmation. Each time, a batch
//! completes many requests at once, and [`TurnEndTask`](crate::turn_end) calls all their wakers from a thread of
//! the runtime. If each call only woke a task, the runtime would have to schedule it, and the task would look at
//! its socket, its timers and its other futures, all for a step of a microsecond. A [`Continued`] future is polled
//! by the call itself. Its task wakes only once, for the result.

use std::any::Any;
use std::cell::Cell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::task::{Context, Poll, Wake, Waker};

use crate::slot::lock;

/// Number of futures that one call of [`continue_all`] polls. More are left to their tasks, so that other threads take
/// part.
const CONTINUED_MAX: usize = 64;

thread_local! {
    /// Number of futures that the calls of wakers on this thread may still poll.
    static MAY_CONTINUE: Cell<usize> = const { Cell::new(0) };
}

/// Calls wakers. Those of [`Continued`] futures poll them. The caller must be a task of a runtime and hold no lock.
pub(crate) fn continue_all(wakers: Vec<Waker>) {
    let _permission = Permission::of(CONTINUED_MAX);
    wakers.into_iter().for_each(Waker::wake);
}

/// Sets [`MAY_CONTINUE`] until it is dropped.
struct Permission(usize);

impl Permission {
    fn of(futures: usize) -> Self {
        Self(MAY_CONTINUE.replace(futures))
    }
}

impl Drop for Permission {
    fn drop(&mut self) {
        MAY_CONTINUE.set(self.0);
    }
}

/// A future that is polled by those who complete what it waits for, if that is a batch of this crate. The result
/// goes to the task that polls this. Dropping this drops the future.
#[must_use = "futures do nothing unless polled"]
pub struct Continued<T> {
    shared: Arc<Continuation<T>>,
}

type Running<T> = Pin<Box<dyn Future<Output = T> + Send>>;

struct Continuation<T> {
    progress: Mutex<Progress<T>>,
    /// The task that waits for the result.
    task: Mutex<Option<Waker>>,
    /// Whether the task must poll the future.
    is_woken: AtomicBool,
}

enum Progress<T> {
    Running(Running<T>),
    /// The result, or the panic that ended the future.
    Done(Result<T, Box<dyn Any + Send>>),
    /// The result was taken, or is no longer wanted.
    Over,
}

impl<T: Send + 'static> Continued<T> {
    /// A future that starts when this is polled.
    pub fn new(future: impl Future<Output = T> + Send + 'static) -> Self {
        let shared = Continuation {
            progress: Mutex::new(Progress::Running(Box::pin(future))),
            task: Mutex::new(None),
            is_woken: AtomicBool::new(true),
        };
        Self { shared: Arc::new(shared) }
    }
}

impl<T: Send + 'static> Future for Continued<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let shared = &self.shared;
        {
            let mut task = lock(&shared.task);
            match &mut *task {
                Some(task) => task.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
        }
        // Another thread holds this lock only for one step of the future.
        let mut progress = lock(&shared.progress);
        if shared.is_woken.swap(false, Ordering::AcqRel) {
            // Its steps must not be delayed by those of others.
            let _permission = Permission::of(0);
            progress.step(shared);
        }
        if matches!(*progress, Progress::Running(_)) {
            return Poll::Pending;
        }
        match std::mem::replace(&mut *progress, Progress::Over) {
            Progress::Done(Ok(output)) => Poll::Ready(output),
            Progress::Done(Err(panic)) => {
                drop(progress);
                resume_unwind(panic)
            }
            Progress::Running(_) | Progress::Over => panic!("polled after it was ready"),
        }
    }
}

impl<T> Drop for Continued<T> {
    fn drop(&mut self) {
        // The future holds the wakers of what it waits for, and those hold the future.
        let progress = std::mem::replace(&mut *lock(&self.shared.progress), Progress::Over);
        drop(progress);
    }
}

impl<T: Send + 'static> Progress<T> {
    /// Polls the future, if it is not done.
    fn step(&mut self, shared: &Arc<Continuation<T>>) {
        let Self::Running(future) = self else { return };
        let waker = Waker::from(Arc::clone(shared));
        let polled =
            catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut Context::from_waker(&waker))));
        match polled {
            Ok(Poll::Pending) => {}
            Ok(Poll::Ready(output)) => *self = Self::Done(Ok(output)),
            Err(panic) => *self = Self::Done(Err(panic)),
        }
    }
}

impl<T: Send + 'static> Continuation<T> {
    /// Polls the future here. False if that is up to its task.
    fn continue_here(self: &Arc<Self>) -> bool {
        let left = MAY_CONTINUE.get();
        if left == 0 {
            return false;
        }
        let mut progress = match self.progress.try_lock() {
            Ok(progress) => progress,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // It is being polled.
            Err(TryLockError::WouldBlock) => return false,
        };
        {
            // What the step wakes is not continued within it: the step may hold locks.
            let _permission = Permission::of(0);
            progress.step(self);
        }
        MAY_CONTINUE.set(left - 1);
        matches!(*progress, Progress::Running(_) | Progress::Over)
    }
}

impl<T: Send + 'static> Wake for Continuation<T> {
    fn wake(self: Arc<Self>) {
        if self.continue_here() {
            return;
        }
        self.is_woken.store(true, Ordering::Release);
        let task = lock(&self.task).clone();
        if let Some(task) = task {
            task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    /// Waits for a number of steps.
    #[derive(Default)]
    struct Steps {
        made: AtomicUsize,
        polls: AtomicUsize,
        waker: Mutex<Option<Waker>>,
    }

    impl Steps {
        async fn until(&self, steps: usize) {
            poll_fn(|context| {
                self.polls.fetch_add(1, Relaxed);
                *lock(&self.waker) = Some(context.waker().clone());
                if self.made.load(Relaxed) >= steps { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }

        fn make(&self) -> Waker {
            self.made.fetch_add(1, Relaxed);
            lock(&self.waker).take().expect("it waits")
        }
    }

    struct Case {
        steps: Arc<Steps>,
        future: Continued<usize>,
        task: Arc<Count>,
    }

    impl Case {
        fn new(after: impl Fn() -> usize + Send + 'static) -> Self {
            let steps = Arc::<Steps>::default();
            let waits = Arc::clone(&steps);
            let future = Continued::new(async move {
                waits.until(1).await;
                waits.until(2).await;
                after()
            });
            Self { steps, future, task: Arc::default() }
        }

        fn poll(&mut self) -> Poll<usize> {
            let waker = Waker::from(Arc::clone(&self.task));
            Pin::new(&mut self.future).poll(&mut Context::from_waker(&waker))
        }

        /// Returns the number of times that the task was woken, and that the future was polled.
        fn counts(&self) -> (usize, usize) {
            (self.task.0.load(Relaxed), self.steps.polls.load(Relaxed))
        }
    }

    #[test]
    fn the_end_of_a_batch_continues_the_future_and_wakes_the_task_for_the_result() {
        let mut case = Case::new(|| 7);
        assert!(case.poll().is_pending());
        assert_eq!(case.counts(), (0, 1));
        continue_all(vec![case.steps.make()]);
        assert_eq!(case.counts(), (0, 3), "the second wait has begun");
        assert!(case.poll().is_pending(), "the task wakes for another reason");
        assert_eq!(case.counts(), (0, 3), "which does not concern the future");
        continue_all(vec![case.steps.make()]);
        assert_eq!(case.counts(), (1, 4));
        assert_eq!(case.poll(), Poll::Ready(7));
    }

    #[test]
    fn other_calls_wake_the_task() {
        let mut case = Case::new(|| 7);
        assert!(case.poll().is_pending());
        case.steps.make().wake();
        assert_eq!(case.counts(), (1, 1));
        assert!(case.poll().is_pending());
        assert_eq!(case.counts(), (1, 3));
        case.steps.make().wake();
        assert_eq!((case.poll(), case.counts()), (Poll::Ready(7), (2, 4)));
    }

    #[test]
    fn a_step_continues_no_other_future() {
        let mut other = Case::new(|| 7);
        assert!(other.poll().is_pending());
        let waker = Mutex::new(Some(other.steps.make()));
        let mut case = Case::new(move || {
            lock(&waker).take().expect("called once").wake();
            8
        });
        assert!(case.poll().is_pending());
        continue_all(vec![case.steps.make()]);
        continue_all(vec![case.steps.make()]);
        assert_eq!((case.poll(), other.counts()), (Poll::Ready(8), (1, 1)));
    }

    #[test]
    fn many_futures_are_left_to_their_tasks() {
        let mut cases: Vec<_> = (0..CONTINUED_MAX + 2).map(|_| Case::new(|| 7)).collect();
        cases.iter_mut().for_each(|case| assert!(case.poll().is_pending()));
        continue_all(cases.iter().map(|case| case.steps.make()).collect());
        let woken: Vec<_> = cases.iter().map(|case| case.counts().0).collect();
        assert_eq!(woken.iter().sum::<usize>(), 2);
        assert_eq!(woken[CONTINUED_MAX..], [1, 1]);
    }

    #[test]
    fn a_panic_reaches_the_task() {
        let mut case = Case::new(|| panic!("as expected"));
        assert!(case.poll().is_pending());
        continue_all(vec![case.steps.make()]);
        continue_all(vec![case.steps.make()]);
        assert_eq!(case.counts().0, 1);
        let panic = catch_unwind(AssertUnwindSafe(|| case.poll())).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"as expected"));
    }

    #[test]
    fn a_dropped_future_is_dropped_with_all_that_it_holds() {
        let held = Arc::new(());
        let holds = Arc::clone(&held);
        let mut case = Case::new(move || Arc::strong_count(&holds));
        assert!(case.poll().is_pending());
        let Case { steps, future, .. } = case;
        drop(future);
        assert_eq!(Arc::strong_count(&held), 1);
        continue_all(vec![steps.make()]);
        assert_eq!(steps.polls.load(Relaxed), 1);
    }

    /// Threads complete steps while others poll and drop.
    #[test]
    fn no_wake_up_is_lost_in_a_race() {
        for round in 0..500 {
            let mut case = Case::new(|| 7);
            assert!(case.poll().is_pending());
            let steps = Arc::clone(&case.steps);
            let thread = std::thread::spawn(move || {
                for step in 0..2 {
                    let waker = loop {
                        if lock(&steps.waker).is_some() {
                            break steps.make();
                        }
                        std::thread::yield_now();
                    };
                    if (round + step) % 2 == 0 {
                        continue_all(vec![waker]);
                    } else {
                        waker.wake();
                    }
                }
            });
            let mut woken = 0;
            let result = loop {
                if round % 3 == 0 || case.task.0.load(Relaxed) > woken {
                    woken = case.task.0.load(Relaxed);
                    if let Poll::Ready(result) = case.poll() {
                        break result;
                    }
                }
                std::thread::yield_now();
            };
            assert_eq!(result, 7);
            thread.join().unwrap();
        }
    }
}
