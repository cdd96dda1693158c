//! A task that does for the others of its runtime what comes best at the end of a turn, or on a thread of the runtime.
//!
//! Two things make batches larger and cheaper on a busy processor:
//!
//! * Who begins a batch should let the other tasks that are ready bring theirs before a thread is called that executes it.
//! * A batch completes many requests at once. To wake each of their tasks from the thread that executed it would cost a
//!   queue's lock and perhaps a system call apiece, and the first one woken would run before the others know: it would bring
//!   its next command alone.
//!
//! No task of a client may be trusted with either: a future that was begun may be held without being polled for as long as its
//! owner likes, and nobody else may wait for that. So there is a task of our own, which never waits for anything but errands.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use tokio::runtime::{Handle, RuntimeFlavor};

use crate::slot::lock;

/// Something to be done once, soon.
pub(crate) trait Errand: Send + Sync {
    fn run(&self);
}

/// The handle of the task. The task begins with the first errand, on the runtime of whoever brings it, and ends with the handle
/// or the runtime; then the next errand begins another one. Without a runtime that could run it (outside of one, or on one with
/// a single thread, which stands still when nobody blocks on it) errands are done at once.
#[derive(Default)]
pub(crate) struct Herald {
    shared: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    errands: Vec<Arc<dyn Errand>>,
    /// Whom to wake.
    wakers: Vec<Waker>,
    /// Wakes the task, while it waits.
    task: Option<Waker>,
    /// Whether there is a task: it does, or its end does, all that is here.
    lives: bool,
    /// Whether the handle is gone.
    closed: bool,
}

impl Herald {
    /// Has `errand` run when this thread's runtime has done what it has to do already: other tasks that are ready, and what has
    /// come over the network since.
    pub(crate) fn at_end_of_turn(&self, errand: Arc<dyn Errand>) {
        let mut state = lock(&self.shared);
        if !state.lives {
            let Some(runtime) = runtime_with_threads() else {
                drop(state);
                errand.run();
                return;
            };
            state.lives = true;
            state.errands.push(errand);
            drop(state);
            // A runtime that ends drops the future at once, which does what is there.
            drop(runtime.spawn(Task(Arc::clone(&self.shared)).serve()));
            return;
        }
        state.errands.push(errand);
        let task = state.task.take();
        drop(state);
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Wakes them all: with one call to another thread, if there are several.
    pub(crate) fn wake_all(&self, wakers: Vec<Waker>) {
        if wakers.len() > 1 {
            let mut state = lock(&self.shared);
            if state.lives {
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

impl Drop for Herald {
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

/// The runtime of the calling thread, if its tasks go on whatever this thread does.
fn runtime_with_threads() -> Option<Handle> {
    Handle::try_current().ok().filter(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread)
}

/// The task. However it ends, nothing that was left to it stays undone.
struct Task(Arc<Mutex<State>>);

impl Task {
    async fn serve(self) {
        while let Some((wakers, has_errands)) = self.next().await {
            wakers.into_iter().for_each(Waker::wake);
            if has_errands {
                // Tokio polls a task that gives way again when its other tasks have run and its I/O was looked at.
                tokio::task::yield_now().await;
                let errands = std::mem::take(&mut lock(&self.0).errands);
                errands.iter().for_each(|errand| errand.run());
            }
        }
    }

    /// Whom to wake now, and whether there are errands for the end of the turn. None: the handle is gone.
    async fn next(&self) -> Option<(Vec<Waker>, bool)> {
        poll_fn(|context| {
            let mut state = lock(&self.0);
            let has_errands = !state.errands.is_empty();
            if has_errands || !state.wakers.is_empty() {
                return Poll::Ready(Some((std::mem::take(&mut state.wakers), has_errands)));
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
        (state.lives, state.task) = (false, None);
        let (errands, wakers) = (std::mem::take(&mut state.errands), std::mem::take(&mut state.wakers));
        drop(state);
        errands.iter().for_each(|errand| errand.run());
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::task::Wake;
    use std::time::Duration;

    use super::*;

    /// Counts how often it was run and woken, and on which thread last.
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

        /// Waits until it was run so often.
        fn until(&self, runs: usize) {
            let deadline = std::time::Instant::now() + Duration::from_secs(60);
            while self.runs() < runs {
                assert!(std::time::Instant::now() < deadline, "{} of {runs}", self.runs());
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    impl Errand for Count {
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
    fn without_a_runtime_everything_is_done_at_once() {
        let (herald, count) = (Herald::default(), Arc::<Count>::default());
        herald.at_end_of_turn(Arc::clone(&count) as Arc<dyn Errand>);
        herald.wake_all(wakers(&count, 3));
        assert_eq!(count.runs(), 4);
        let single = tokio::runtime::Builder::new_current_thread().build().unwrap();
        single.block_on(async { herald.at_end_of_turn(Arc::clone(&count) as Arc<dyn Errand>) });
        assert_eq!(count.runs(), 5);
    }

    #[test]
    fn errands_wait_for_the_tasks_that_are_ready() {
        let (herald, count) = (Arc::<Herald>::default(), Arc::<Count>::default());
        let runtime = runtime();
        let seen = runtime.block_on(async {
            let (herald, count) = (Arc::clone(&herald), Arc::clone(&count));
            let first = tokio::spawn(async move {
                let others: Vec<_> = (0..8)
                    .map(|_| {
                        let count = Arc::clone(&count);
                        tokio::spawn(async move { count.runs() })
                    })
                    .collect();
                herald.at_end_of_turn(Arc::clone(&count) as Arc<dyn Errand>);
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
    fn several_are_woken_on_the_runtimes_thread() {
        let (herald, count) = (Herald::default(), Arc::<Count>::default());
        let runtime = runtime();
        let thread = runtime.block_on(async {
            herald.at_end_of_turn(Arc::clone(&count) as Arc<dyn Errand>);
            tokio::spawn(async { std::thread::current().id() }).await.unwrap()
        });
        count.until(1);
        herald.wake_all(wakers(&count, 3));
        count.until(4);
        assert_eq!(*lock(&count.thread), Some(thread));
        // For one it is not worth it.
        herald.wake_all(wakers(&count, 1));
        assert_eq!(*lock(&count.thread), Some(std::thread::current().id()));
    }

    #[test]
    fn the_end_of_a_runtime_leaves_nothing_undone() {
        let (herald, count) = (Herald::default(), Arc::<Count>::default());
        for round in 0..20 {
            let runtime = runtime();
            runtime.block_on(async { herald.at_end_of_turn(Arc::clone(&count) as Arc<dyn Errand>) });
            herald.wake_all(wakers(&count, 2));
            drop(runtime);
            assert_eq!(count.runs(), 3 * (round + 1));
        }
        herald.wake_all(wakers(&count, 2));
        assert_eq!(count.runs(), 62);
    }

    #[test]
    fn a_runtime_that_ends_already_leaves_nothing_undone() {
        /// Brings an errand when its task is dropped, which is when the runtime ends.
        struct AtTheEnd(Arc<Herald>, Arc<Count>);
        impl Drop for AtTheEnd {
            fn drop(&mut self) {
                self.0.at_end_of_turn(Arc::clone(&self.1) as Arc<dyn Errand>);
            }
        }
        let (herald, count) = (Arc::<Herald>::default(), Arc::<Count>::default());
        let runtime = runtime();
        let at_the_end = AtTheEnd(Arc::clone(&herald), Arc::clone(&count));
        runtime.spawn(async move {
            let _kept = at_the_end;
            std::future::pending::<()>().await;
        });
        drop(runtime);
        assert_eq!(count.runs(), 1);
    }

    #[test]
    fn the_task_ends_with_its_handle() {
        let (herald, count) = (Herald::default(), Arc::<Count>::default());
        let shared = Arc::downgrade(&herald.shared);
        let runtime = runtime();
        runtime.block_on(async { herald.at_end_of_turn(Arc::clone(&count) as Arc<dyn Errand>) });
        drop(herald);
        count.until(1);
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while shared.strong_count() > 0 {
            assert!(std::time::Instant::now() < deadline, "the task still runs");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
