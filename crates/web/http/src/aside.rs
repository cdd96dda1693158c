//! Futures that a task rarely has to look at.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

/// Polls futures only after one of them called its waker, although their task is also woken for other reasons.
/// A connection's task is polled several times for each request, and its timers and signals would cost a lock or
/// an atomic operation each time.
#[derive(Default)]
pub(crate) struct Aside(Option<Arc<Signal>>);

/// The waker of these futures.
struct Signal {
    called: AtomicBool,
    task: Waker,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.called.store(true, Ordering::Release);
        self.task.wake_by_ref();
    }
}

impl Aside {
    /// Runs `poll` at the first call, after one of its futures has called its waker, and after it was ready.
    pub(crate) fn poll<T>(
        &mut self,
        context: &Context<'_>,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let signal = match &mut self.0 {
            Some(signal) if signal.task.will_wake(context.waker()) => signal,
            // The futures know only a waker of another task.
            signal => signal
                .insert(Arc::new(Signal { called: AtomicBool::new(true), task: context.waker().clone() })),
        };
        if !signal.called.load(Ordering::Relaxed) || !signal.called.swap(false, Ordering::Acquire) {
            return Poll::Pending;
        }
        let polled = poll(&mut Context::from_waker(&Waker::from(Arc::clone(signal))));
        if polled.is_ready() {
            signal.called.store(true, Ordering::Relaxed);
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::atomic::{AtomicUsize, Ordering::Relaxed},
    };

    use tokio::sync::Notify;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn futures_are_polled_only_after_they_called_their_waker() {
        let (first, second) = (Arc::<Count>::default(), Arc::<Count>::default());
        let notify = Notify::new();
        let mut notified = pin!(notify.notified());
        let (mut aside, mut polls) = (Aside::default(), 0);
        let mut poll = |task: &Arc<Count>| {
            let waker = Waker::from(Arc::clone(task));
            let polled = aside.poll(&Context::from_waker(&waker), |context| {
                polls += 1;
                notified.as_mut().poll(context)
            });
            (polled.is_ready(), polls)
        };
        assert_eq!(poll(&first), (false, 1));
        assert_eq!(poll(&first), (false, 1));
        assert_eq!(poll(&second), (false, 2), "the new task's waker must be registered");
        assert_eq!(poll(&second), (false, 2));
        notify.notify_one();
        assert_eq!((first.0.load(Relaxed), second.0.load(Relaxed)), (0, 1));
        assert_eq!(poll(&second), (true, 3));
    }

    #[test]
    fn futures_are_polled_again_after_one_was_ready() {
        let waker = Waker::from(Arc::<Count>::default());
        let mut aside = Aside::default();
        for _ in 0..3 {
            assert!(aside.poll(&Context::from_waker(&waker), |_| Poll::Ready(())).is_ready());
        }
        assert!(aside.poll(&Context::from_waker(&waker), |_| Poll::<()>::Pending).is_pending());
        assert!(aside.poll(&Context::from_waker(&waker), |_| Poll::Ready(())).is_pending());
    }
}
