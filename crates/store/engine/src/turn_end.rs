//! A task that runs deferred work at the end of a runtime's turn, and wakes waiting tasks from a thread of
//! the runtime.
//!
//! Two things make batches larger and cheaper on a busy processor:
//!
//! * Before a thread is called to execute a batch, the other ready tasks should add their commands to it.
//! * A batch completes many requests at once. If the executing thread woke each task itself, each wake-up
//!   would cost a queue lock and perhaps a system call, and the first task would run before the others are
//!   awake and submit its next command alone.
//!
//! A client's task can do neither: its owner may hold the future without polling it, and others must not wait
//! for that. So this module has its own task, which waits only for deferred work.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use tokio::runtime::{Handle, RuntimeFlavor};

use crate::continued::continue_all;
use crate::slot::lock;

/// Work to run once, soon.
pub(crate) trait Deferred: Send + Sync {
    fn run(&self);
}

/// The handle of the task. The first deferred work starts the task on the caller's runtime. The task ends
/// with the handle or the runtime; after that, the next work starts another one. If no runtime can run the
/// task (outside of a runtime, or on one with a single thread, which stops when no thread blocks on it), the
/// work runs at once.
#[derive(Default)]
pub(crate) struct TurnEndTask {
    shared: Arc<Mutex<PendingWork>>,
}

#[derive(Default)]
struct PendingWork {
    deferred: Vec<Arc<dyn Deferred>>,
    /// Tasks to wake.
    wakers: Vec<Waker>,
    /// Wakes this module's task while it waits.
    task: Option<Waker>,
    /// Whether the task exists. It, or its end, handles everything in this state.
    is_running: bool,
    /// Whether the handle was dropped.
    closed: bool,
}

impl TurnEndTask {
    /// Runs `deferred` at the end of the runtime's turn: after the other ready tasks, and after the network
    /// has been polled.
    pub(crate) fn at_end_of_turn(&self, deferred: Arc<dyn Deferred>) {
        let mut state = lock(&self.shared);
        if !state.is_running {
            let Some(runtime) = runtime_with_threads() else {
                drop(state);
                deferred.run();
                return;
            };
            state.is_running = true;
            state.deferred.push(deferred);
            drop(state);
            // A runtime that is shutting down drops the future at once, and its drop runs the work.
            drop(runtime.spawn(Task(Arc::clone(&self.shared)).serve()));
            return;
        }
        state.deferred.push(deferred);
        let task = state.task.take();
        drop(state);
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Wakes all of these tasks, with one call to another thread if there are several.
    pub(crate) fn wake_all(&self, wakers: Vec<Waker>) {
        if wakers.len() > 1 {
            let mut state = lock(&self.shared);
            if state.is_running {
                state.wakers.extend(wakers);
                let task = state.task.take();
                drop(state);
                if let Some(task) = task {
                    task.wake();
                }
                return;
            }
        }
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Drop for TurnEndTask {
    fn drop(&mut self) {
        let mut state = lock(&self.shared);
        state.closed = true;
        let task = state.task.take();
        drop(state);
        if let Some(task) = task {
            task.wake();
        }
    }
}

/// The runtime of the calling thread, if it has other threads to run its tasks on.
fn runtime_with_threads() -> Option<Handle> {
    Handle::try_current().ok().filter(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread)
}

/// The task. However it ends, all deferred work runs and all wakers are called.
struct Task(Arc<Mutex<PendingWork>>);

impl Task {
    async fn serve(self) {
        while let Some((wakers, has_deferred)) = self.next().await {
            continue_all(wakers);
            if has_deferred {
                // Tokio polls a task that yields again after its other tasks have run and its I/O has been
                // polled.
                tokio::task::yield_now().await;
                let deferred = std::mem::take(&mut lock(&self.0).deferred);
                deferred.iter().for_each(|deferred| deferred.run());
            }
        }
    }

    /// The tasks to wake now, and whether there is deferred work. None: the handle was dropped.
    async fn next(&self) -> Option<(Vec<Waker>, bool)> {
        poll_fn(|context| {
            let mut state = lock(&self.0);
            let has_deferred = !state.deferred.is_empty();
            if has_deferred || !state.wakers.is_empty() {
                return Poll::Ready(Some((std::mem::take(&mut state.wakers), has_deferred)));
            }
            if state.closed {
                return Poll::Ready(None);
            }
            state.task = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let mut state = lock(&self.0);
        (state.is_running, state.task) = (false, None);
        let (deferred, wakers) = (std::mem::take(&mut state.deferred), std::mem::take(&mut state.wakers));
        drop(state);
        deferred.iter().for_each(|deferred| deferred.run());
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::task::Wake;
    use std::time::Duration;

    use super::*;

    /// Counts how often it was run and woken, and remembers the last thread.
    #[derive(Default)]
    struct Count {
        runs: AtomicUsize,
        thread: Mutex<Option<std::thread::ThreadId>>,
    }

    impl Count {
        fn inc(&self) {
            *lock(&self.thread) = Some(std::thread::current().id());
            self.runs.fetch_add(1, SeqCst);
        }

        fn runs(&self) -> usize {
            self.runs.load(SeqCst)
        }

        /// Waits until it has run this often.
        fn until(&self, runs: usize) {
            let deadline = std::time::Instant::now() + Duration::from_secs(60);
            while self.runs() < runs {
                assert!(std::time::Instant::now() < deadline, "{} of {runs}", self.runs());
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    impl Deferred for Count {
        fn run(&self) {
            self.inc();
        }
    }

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.inc();
        }
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap()
    }

    fn wakers(count: &Arc<Count>, times: usize) -> Vec<Waker> {
        vec![Waker::from(Arc::clone(count)); times]
    }

    #[test]
    fn without_a_runtime_work_runs_at_once() {
        let (turn_end, count) = (TurnEndTask::default(), Arc::<Count>::default());
        turn_end.at_end_of_turn(Arc::clone(&count) as Arc<dyn Deferred>);
        turn_end.wake_all(wakers(&count, 3));
        assert_eq!(count.runs(), 4);
        let single = tokio::runtime::Builder::new_current_thread().build().unwrap();
        single.block_on(async { turn_end.at_end_of_turn(Arc::clone(&count) as Arc<dyn Deferred>) });
        assert_eq!(count.runs(), 5);
    }

    #[test]
    fn deferred_work_runs_after_the_ready_tasks() {
        let (turn_end, count) = (Arc::<TurnEndTask>::default(), Arc::<Count>::default());
        let runtime = runtime();
        let seen = runtime.block_on(async {
            let (turn_end, count) = (Arc::clone(&turn_end), Arc::clone(&count));
            let first = tokio::spawn(async move {
                let others: Vec<_> = (0..8)
                    .map(|_| {
                        let count = Arc::clone(&count);
                        tokio::spawn(async move { count.runs() })
                    })
                    .collect();
                turn_end.at_end_of_turn(Arc::clone(&count) as Arc<dyn Deferred>);
                others
            });
            let mut seen = Vec::new();
            for other in first.await.unwrap() {
                seen.push(other.await.unwrap());
            }
            seen
        });
        assert_eq!(seen, [0; 8]);
        count.until(1);
    }

    #[test]
    fn several_tasks_are_woken_on_a_thread_of_the_runtime() {
        let (turn_end, count) = (TurnEndTask::default(), Arc::<Count>::default());
        let runtime = runtime();
        let thread = runtime.block_on(async {
            turn_end.at_end_of_turn(Arc::clone(&count) as Arc<dyn Deferred>);
            tokio::spawn(async { std::thread::current().id() }).await.unwrap()
        });
        count.until(1);
        turn_end.wake_all(wakers(&count, 3));
        count.until(4);
        assert_eq!(*lock(&count.thread), Some(thread));
        // It is not worthwhile for one task.
        turn_end.wake_all(wakers(&count, 1));
        assert_eq!(*lock(&count.thread), Some(std::thread::current().id()));
    }

    #[test]
    fn work_runs_when_the_runtime_ends() {
        let (turn_end, count) = (TurnEndTask::default(), Arc::<Count>::default());
        for round in 0..20 {
            let runtime = runtime();
            runtime.block_on(async { turn_end.at_end_of_turn(Arc::clone(&count) as Arc<dyn Deferred>) });
            turn_end.wake_all(wakers(&count, 2));
            drop(runtime);
            assert_eq!(count.runs(), 3 * (round + 1));
        }
        turn_end.wake_all(wakers(&count, 2));
        assert_eq!(count.runs(), 62);
    }

    #[test]
    fn work_deferred_while_the_runtime_ends_runs() {
        /// Defers work when its task is dropped, which happens when the runtime shuts down.
        struct AtTheEnd(Arc<TurnEndTask>, Arc<Count>);
        impl Drop for AtTheEnd {
            fn drop(&mut self) {
                self.0.at_end_of_turn(Arc::clone(&self.1) as Arc<dyn Deferred>);
            }
        }
        let (turn_end, count) = (Arc::<TurnEndTask>::default(), Arc::<Count>::default());
        let runtime = runtime();
        let at_the_end = AtTheEnd(Arc::clone(&turn_end), Arc::clone(&count));
        runtime.spawn(async move {
            let _kept = at_the_end;
            std::future::pending::<()>().await;
        });
        drop(runtime);
        assert_eq!(count.runs(), 1);
    }

    #[test]
    fn the_task_ends_with_its_handle() {
        let (turn_end, count) = (TurnEndTask::default(), Arc::<Count>::default());
        let shared = Arc::downgrade(&turn_end.shared);
        let runtime = runtime();
        runtime.block_on(async { turn_end.at_end_of_turn(Arc::clone(&count) as Arc<dyn Deferred>) });
        drop(turn_end);
        count.until(1);
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while shared.strong_count() > 0 {
            assert!(std::time::Instant::now() < deadline, "the task still runs");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
