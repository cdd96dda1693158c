//! The bounded queue in front of every lane.
//!
//! Many threads submit, and one thread takes batches. Commands of clients are limited in number and, where
//! they differ in size, in events. Internal commands, which the service submits to itself, are always
//! accepted: their number follows from what was accepted before.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::slot::lock;
use crate::{LaneMetrics, SubmitError};

#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    /// Commands that may wait.
    pub(crate) commands_max: usize,
    /// The queue accepts no further command while more events than this wait.
    pub(crate) events_max: usize,
}

impl QueueLimits {
    /// Limits only the number of commands.
    #[cfg(test)]
    pub(crate) const fn commands(commands_max: usize) -> Self {
        Self { commands_max, events_max: usize::MAX }
    }
}

/// Limits of one batch from a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchLimits {
    /// Commands in a batch. All internal commands are taken; at least half of the limit is left for the
    /// others.
    pub(crate) commands_max: usize,
    /// A batch accepts no further command once it has this many events.
    pub(crate) events_max: usize,
}

impl BatchLimits {
    /// Limits only the number of commands.
    #[cfg(test)]
    pub(crate) const fn commands(commands_max: usize) -> Self {
        Self { commands_max, events_max: usize::MAX }
    }
}

/// Time that [`Submissions::take`] waits while the queue is empty.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// Not at all.
    No,
    /// Until this time.
    Until(Instant),
    /// Until a command arrives or the queue is closed.
    Forever,
}

/// The result of [`Submissions::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// At least one command was taken.
    Batch,
    /// The queue is empty, and the time has passed.
    Nothing,
    /// The queue is empty and closed: nothing more will come.
    Closed,
}

/// The end of the queue that accepts commands. Dropping it closes the queue.
#[derive(Debug)]
pub(crate) struct SubmissionQueue<T> {
    shared: Arc<CommandQueue<T>>,
}

/// The end of the queue that hands out batches. It belongs to the lane's thread. Dropping it closes the queue
/// and drops what is waiting.
#[derive(Debug)]
pub(crate) struct Submissions<T> {
    shared: Arc<CommandQueue<T>>,
}

#[derive(Debug)]
struct CommandQueue<T> {
    state: Mutex<State<T>>,
    arrived: Condvar,
    limits: QueueLimits,
    metrics: Arc<LaneMetrics>,
}

#[derive(Debug)]
struct State<T> {
    /// Commands of clients with their numbers of events.
    commands: VecDeque<(usize, T)>,
    /// The sum of their events.
    events: usize,
    internal: VecDeque<T>,
    is_closed: bool,
    has_receiver: bool,
    /// Whether the lane's thread waits. Only then must a submission notify it.
    is_receiver_waiting: bool,
}

impl<T> State<T> {
    fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.internal.is_empty()
    }
}

impl<T> SubmissionQueue<T> {
    /// An empty queue. It counts waiting events and rejected commands in `metrics`.
    ///
    /// # Panics
    /// When a limit is zero.
    pub(crate) fn new(limits: QueueLimits, metrics: Arc<LaneMetrics>) -> (Self, Submissions<T>) {
        assert!(limits.commands_max > 0 && limits.events_max > 0, "limits are positive");
        let state = State {
            commands: VecDeque::new(),
            events: 0,
            internal: VecDeque::new(),
            is_closed: false,
            has_receiver: true,
            is_receiver_waiting: false,
        };
        let shared =
            Arc::new(CommandQueue { state: Mutex::new(state), arrived: Condvar::new(), limits, metrics });
        (Self { shared: Arc::clone(&shared) }, Submissions { shared })
    }

    /// Queues a command of a client.
    ///
    /// # Errors
    /// Returns the command with [`SubmitError::Overloaded`] if a limit is reached, or with
    /// [`SubmitError::Stopped`] if the queue is closed.
    pub(crate) fn push(&self, command: T, events: usize) -> Result<(), (SubmitError, T)> {
        let CommandQueue { limits, metrics, .. } = &*self.shared;
        let mut state = self.shared.lock();
        if state.is_closed {
            return Err((SubmitError::Stopped, command));
        }
        if state.commands.len() >= limits.commands_max || state.events > limits.events_max {
            metrics.rejected();
            return Err((SubmitError::Overloaded, command));
        }
        state.events += events;
        state.commands.push_back((events, command));
        metrics.enqueued(events as u64);
        self.shared.notify(state);
        Ok(())
    }

    /// Queues a command that the service submits to itself. It is always accepted, and dropped only if the
    /// lane's thread has ended.
    pub(crate) fn push_internal(&self, command: T) {
        let mut state = self.shared.lock();
        if state.has_receiver {
            state.internal.push_back(command);
            self.shared.notify(state);
        }
    }

    /// Accepts no more commands of clients. The lane's thread still takes the waiting ones.
    pub(crate) fn close(&self) {
        let mut state = self.shared.lock();
        state.is_closed = true;
        self.shared.notify(state);
    }
}

impl<T> Drop for SubmissionQueue<T> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<T> Submissions<T> {
    /// Moves the next commands into `batch`: internal ones first, so that what was started is finished before
    /// more is started.
    ///
    /// The commands of clients count as waiting in the metrics until the lane calls
    /// [`LaneMetrics::dequeued`].
    pub(crate) fn take(&self, batch: &mut Vec<T>, limits: BatchLimits, wait: Wait) -> Taken {
        let mut state = self.shared.lock();
        if state.is_empty() {
            state = self.shared.wait(state, wait);
            if state.is_empty() {
                return if state.is_closed { Taken::Closed } else { Taken::Nothing };
            }
            // The thread that woke this one may be about to submit more on this very processor. Let it, so
            // that everything makes one batch and one commit. If no other thread wants the processor, this
            // returns at once.
            drop(state);
            std::thread::yield_now();
            state = self.shared.lock();
        }
        let internal = state.internal.len();
        batch.extend(state.internal.drain(..));
        let left = limits.commands_max.saturating_sub(internal).max(limits.commands_max.div_ceil(2));
        let mut events = 0;
        for _ in 0..left.min(state.commands.len()) {
            if events >= limits.events_max {
                break;
            }
            let (size, command) = state.commands.pop_front().expect("counted above");
            events += size;
            batch.push(command);
        }
        state.events -= events;
        Taken::Batch
    }

    /// Puts internal commands back at the front, in their order. If the queue is closed, all internal
    /// commands are dropped instead, because nothing will be repeated any more.
    pub(crate) fn put_back_internal(&self, commands: impl IntoIterator<Item = T>) {
        let mut commands: VecDeque<T> = commands.into_iter().collect();
        let mut state = self.shared.lock();
        commands.append(&mut state.internal);
        if !state.is_closed {
            std::mem::swap(&mut state.internal, &mut commands);
        }
        drop(state);
    }
}

impl<T> Drop for Submissions<T> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        (state.is_closed, state.has_receiver) = (true, false);
        self.shared.metrics.dequeued(std::mem::take(&mut state.events) as u64);
        let waiting = (std::mem::take(&mut state.commands), std::mem::take(&mut state.internal));
        // Dropping a command tells its client that the lane has stopped. That must not happen while the lock
        // is held.
        drop(state);
        drop(waiting);
    }
}

impl<T> CommandQueue<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        lock(&self.state)
    }

    fn notify(&self, mut state: MutexGuard<'_, State<T>>) {
        if std::mem::take(&mut state.is_receiver_waiting) {
            drop(state);
            self.arrived.notify_one();
        }
    }

    /// Waits until there is a command, the queue is closed, or the time has passed.
    fn wait<'a>(&'a self, mut state: MutexGuard<'a, State<T>>, wait: Wait) -> MutexGuard<'a, State<T>> {
        while state.is_empty() && !state.is_closed {
            let left = match wait {
                Wait::No => break,
                Wait::Until(end) => match end.checked_duration_since(Instant::now()) {
                    Some(left) if !left.is_zero() => Some(left),
                    _ => break,
                },
                Wait::Forever => None,
            };
            state.is_receiver_waiting = true;
            state = match left {
                Some(left) => {
                    self.arrived.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
            state.is_receiver_waiting = false;
        }
        state
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    type Queue = (SubmissionQueue<u32>, Submissions<u32>);

    fn queue(limits: QueueLimits) -> (Queue, Arc<LaneMetrics>) {
        let metrics = Arc::<LaneMetrics>::default();
        (SubmissionQueue::new(limits, Arc::clone(&metrics)), metrics)
    }

    fn push(queue: &SubmissionQueue<u32>, command: u32, events: usize) -> Result<(), SubmitError> {
        queue.push(command, events).map_err(|(error, same)| {
            assert_eq!(same, command);
            error
        })
    }

    fn take(commands: &Submissions<u32>, limits: BatchLimits) -> (Vec<u32>, Taken) {
        let mut batch = Vec::new();
        let taken = commands.take(&mut batch, limits, Wait::No);
        (batch, taken)
    }

    #[test]
    fn commands_and_events_are_limited() {
        let ((queue, commands), metrics) = queue(QueueLimits { commands_max: 3, events_max: 10 });
        push(&queue, 1, 4).unwrap();
        push(&queue, 2, 7).unwrap();
        assert!(matches!(push(&queue, 3, 1), Err(SubmitError::Overloaded)), "11 events wait");
        assert_eq!(take(&commands, BatchLimits::commands(1)), (vec![1], Taken::Batch));
        push(&queue, 3, 1).unwrap();
        push(&queue, 4, 1).unwrap();
        assert!(matches!(push(&queue, 5, 1), Err(SubmitError::Overloaded)), "3 commands wait");
        assert_eq!((metrics.rejections().get(), metrics.waiting()), (2, 13));
    }

    #[test]
    fn a_batch_ends_with_the_command_that_reaches_the_limit_on_events() {
        let ((queue, commands), _) = queue(QueueLimits::commands(10));
        for command in 1..=4 {
            push(&queue, command, 3).unwrap();
        }
        let limits = BatchLimits { commands_max: 10, events_max: 4 };
        assert_eq!(take(&commands, limits), (vec![1, 2], Taken::Batch));
        assert_eq!(take(&commands, limits), (vec![3, 4], Taken::Batch));
        assert_eq!(take(&commands, limits), (vec![], Taken::Nothing));
    }

    #[test]
    fn internal_commands_always_find_a_place_and_leave_half_of_the_batch() {
        let ((queue, commands), _) = queue(QueueLimits::commands(4));
        (1..=4).for_each(|command| push(&queue, command, 1).unwrap());
        (10..20).for_each(|command| queue.push_internal(command));
        let (batch, _) = take(&commands, BatchLimits::commands(4));
        assert_eq!(batch, [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 1, 2]);
        queue.push_internal(21);
        commands.put_back_internal([19, 20]);
        assert_eq!(take(&commands, BatchLimits::commands(4)).0, [19, 20, 21, 3, 4]);
    }

    #[test]
    fn a_closed_queue_gives_out_what_waits_and_repeats_nothing() {
        let ((queue, commands), metrics) = queue(QueueLimits::commands(4));
        push(&queue, 1, 1).unwrap();
        queue.close();
        assert!(matches!(push(&queue, 2, 1), Err(SubmitError::Stopped)));
        queue.push_internal(3);
        assert_eq!(take(&commands, BatchLimits::commands(4)), (vec![3, 1], Taken::Batch));
        commands.put_back_internal([3]);
        assert_eq!(take(&commands, BatchLimits::commands(4)), (vec![], Taken::Closed));
        assert_eq!(metrics.rejections().get(), 0);
    }

    #[test]
    fn commands_are_dropped_when_the_thread_of_the_lane_ends() {
        let (queue, commands) = SubmissionQueue::new(QueueLimits::commands(4), Arc::default());
        let command = Arc::new(());
        queue.push(Arc::clone(&command), 1).unwrap();
        drop(commands);
        queue.push_internal(Arc::clone(&command));
        assert_eq!(Arc::strong_count(&command), 1);
        assert!(matches!(queue.push(command, 1), Err((SubmitError::Stopped, _))));
    }

    #[test]
    fn waiting_ends_with_a_command_with_the_deadline_and_with_the_queue() {
        let ((queue, commands), _) = queue(QueueLimits::commands(4));
        let mut batch = Vec::new();
        let soon = Wait::Until(Instant::now() + Duration::from_millis(1));
        assert_eq!(commands.take(&mut batch, BatchLimits::commands(4), soon), Taken::Nothing);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                push(&queue, 1, 1).unwrap();
                queue.push_internal(2);
                drop(queue);
            });
            while commands.take(&mut batch, BatchLimits::commands(4), Wait::Forever) != Taken::Closed {}
        });
        batch.sort_unstable();
        assert_eq!(batch, [1, 2]);
    }
}
