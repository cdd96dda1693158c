//! A queue that is fair between owners. It holds refusals that wait for their evidence, and other histories
//! that must be read.
//!
//! Owners take turns. Owners with long histories wait in a separate line.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Number of jobs that may wait for one owner with a long history. Each answer costs as much as thousands of
/// others.
pub(crate) const LONG_WAITING_MAX: usize = 8;

/// Number of owners that are remembered to have long histories. One more, and all are forgotten and must be learned
/// again.
const LONG_OWNERS_MAX: usize = 4_096;

/// The owner of a history: the shard key of a command. All commands without one count as one owner.
pub(crate) type Owner = Option<Box<[u8]>>;

/// Time that the history of an owner takes to read. Each thread takes jobs of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// No longer than usual. An unknown owner counts as short.
    Short,
    /// Many times longer than others.
    Long,
}

/// Waiting jobs by owner. Owners take turns; each turn is one job.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    state: Mutex<Queues<T>>,
    /// For the threads that take short jobs, and for those that take long ones.
    changed: [Condvar; 2],
    waiting_max: usize,
}

#[derive(Debug)]
struct Queues<T> {
    waiting: HashMap<Owner, VecDeque<T>>,
    /// Owners with jobs, in the order of their turns. Each is in one of the two lines.
    short: VecDeque<Owner>,
    long: VecDeque<Owner>,
    long_owners: HashSet<Owner>,
    count: usize,
    is_closed: bool,
}

impl<T> FairQueue<T> {
    /// An empty queue for at most `waiting_max` jobs.
    pub(crate) fn new(waiting_max: usize) -> Self {
        let state = Queues {
            waiting: HashMap::new(),
            short: VecDeque::new(),
            long: VecDeque::new(),
            long_owners: HashSet::new(),
            count: 0,
            is_closed: false,
        };
        Self { state: Mutex::new(state), changed: Default::default(), waiting_max }
    }

    /// Adds a job after the others of its owner, or returns it if too many wait or the queue is closed.
    pub(crate) fn add(&self, owner: Owner, job: T) -> Result<(), T> {
        let mut state = self.lock();
        let is_long = state.long_owners.contains(&owner);
        let waits = state.waiting.get(&owner).map_or(0, VecDeque::len);
        if state.is_closed || state.count >= self.waiting_max || (is_long && waits >= LONG_WAITING_MAX) {
            return Err(job);
        }
        state.count += 1;
        if waits == 0 {
            if is_long { &mut state.long } else { &mut state.short }.push_back(owner.clone());
        }
        state.waiting.entry(owner).or_default().push_back(job);
        drop(state);
        self.changed[usize::from(is_long)].notify_one();
        Ok(())
    }

    /// Waits for the next job. None when the queue is closed and empty.
    pub(crate) fn next(&self, length: Length) -> Option<(Owner, T)> {
        let mut state = self.lock();
        loop {
            if let Some(found) = state.take(length) {
                let is_last = state.is_closed && state.count == 0;
                drop(state);
                if is_last {
                    self.notify_all();
                }
                return Some(found);
            }
            // While jobs wait, one of their owners may still turn out to have a long history.
            if state.is_closed && state.count == 0 {
                return None;
            }
            let changed = &self.changed[usize::from(length == Length::Long)];
            state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Remembers that an owner's history is long or short.
    pub(crate) fn learn(&self, owner: &Owner, length: Length) {
        let mut state = self.lock();
        let Queues { long_owners, short, long, .. } = &mut *state;
        match length {
            Length::Short if long_owners.remove(owner) => shift(owner, long, short),
            Length::Long if !long_owners.contains(owner) => {
                if long_owners.len() >= LONG_OWNERS_MAX {
                    long_owners.clear();
                    short.append(long);
                }
                long_owners.insert(owner.clone());
                shift(owner, short, long);
            }
            _ => return,
        }
        drop(state);
        self.notify_all();
    }

    /// Accepts no more jobs. Waiting jobs are still handed out.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.notify_all();
    }

    fn notify_all(&self) {
        self.changed.iter().for_each(Condvar::notify_all);
    }

    fn lock(&self) -> MutexGuard<'_, Queues<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes a queue when dropped, so that its readers end even if its owner panics.
pub(crate) struct CloseOnDrop<T>(pub(crate) Arc<FairQueue<T>>);

impl<T> Drop for CloseOnDrop<T> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<T> Queues<T> {
    fn take(&mut self, length: Length) -> Option<(Owner, T)> {
        let turns = match length {
            Length::Short => &mut self.short,
            Length::Long => &mut self.long,
        };
        let owner = turns.pop_front()?;
        let jobs = self.waiting.get_mut(&owner).expect("an owner with a turn has jobs");
        let job = jobs.pop_front().expect("an owner with a turn has jobs");
        if jobs.is_empty() {
            self.waiting.remove(&owner);
        } else {
            turns.push_back(owner.clone());
        }
        self.count -= 1;
        Some((owner, job))
    }
}

fn shift(owner: &Owner, from: &mut VecDeque<Owner>, to: &mut VecDeque<Owner>) {
    if let Some(index) = from.iter().position(|other| other == owner) {
        to.extend(from.remove(index));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(n: u8) -> Owner {
        Some(Box::new([n]))
    }

    fn take(queue: &FairQueue<u32>, length: Length, count: usize) -> Vec<u32> {
        (0..count).map(|_| queue.next(length).unwrap().1).collect()
    }

    #[test]
    fn owners_take_turns() {
        let queue = FairQueue::new(100);
        for job in 10..15 {
            queue.add(owner(1), job).unwrap();
        }
        queue.add(owner(2), 20).unwrap();
        queue.add(None, 30).unwrap();
        assert_eq!(take(&queue, Length::Short, 7), [10, 20, 30, 11, 12, 13, 14]);
    }

    #[test]
    fn long_histories_wait_apart_and_are_limited() {
        let queue = FairQueue::new(100);
        queue.add(owner(1), 10).unwrap();
        queue.add(owner(1), 11).unwrap();
        queue.add(owner(2), 20).unwrap();
        assert_eq!(take(&queue, Length::Short, 1), [10]);
        queue.learn(&owner(1), Length::Long);
        for job in 0..LONG_WAITING_MAX - 1 {
            queue.add(owner(1), u32::try_from(job).unwrap() + 100).unwrap();
        }
        assert_eq!(queue.add(owner(1), 12), Err(12));
        queue.add(owner(2), 21).unwrap();
        assert_eq!(take(&queue, Length::Short, 2), [20, 21]);
        assert_eq!(take(&queue, Length::Long, 2), [11, 100]);
        queue.learn(&owner(1), Length::Short);
        assert_eq!(take(&queue, Length::Short, 1), [101]);
    }

    #[test]
    fn the_total_is_limited_and_a_closed_queue_gives_out_what_waits() {
        let queue = FairQueue::new(2);
        queue.add(owner(1), 1).unwrap();
        queue.add(owner(2), 2).unwrap();
        assert_eq!(queue.add(owner(3), 3), Err(3));
        let queue = Arc::new(queue);
        drop(CloseOnDrop(Arc::clone(&queue)));
        assert_eq!(take(&queue, Length::Short, 2), [1, 2]);
        assert!(queue.next(Length::Short).is_none() && queue.next(Length::Long).is_none());
    }

    #[test]
    fn too_many_long_owners_are_all_forgotten() {
        let queue = FairQueue::new(10);
        let owner = |n: usize| Some(n.to_be_bytes().into());
        for n in 0..=LONG_OWNERS_MAX {
            queue.learn(&owner(n), Length::Long);
        }
        queue.add(owner(0), 0).unwrap();
        queue.add(owner(LONG_OWNERS_MAX), 1).unwrap();
        assert_eq!((take(&queue, Length::Short, 1), take(&queue, Length::Long, 1)), (vec![0], vec![1]));
    }
}
