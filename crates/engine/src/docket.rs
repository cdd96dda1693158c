//! The queue of what waits to be read: refusals for their evidence, and other histories. Fair between owners, long ones apart.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Jobs of one owner with a long history that may wait. Each answer costs as much as thousands of others.
pub(crate) const LONG_WAITING_MAX: usize = 8;

/// Owners that are remembered to have long histories. Beyond that all are forgotten, and found out again.
const LONG_OWNERS_MAX: usize = 4_096;

/// Whose history is read: the shard key of a command. None counts as one owner.
pub(crate) type Owner = Option<Box<[u8]>>;

/// How long the history of an owner takes to read. Each thread takes the jobs of one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Not longer than usual. What is not known yet counts as short.
    Short,
    /// Many times as long as others.
    Long,
}

/// Jobs that wait, each for its owner. Owners take turns; each turn is one job.
#[derive(Debug)]
pub(crate) struct Docket<T> {
    state: Mutex<Queues<T>>,
    /// For who takes short ones, and for who takes long ones.
    changed: [Condvar; 2],
    waiting_max: usize,
}

#[derive(Debug)]
struct Queues<T> {
    waiting: HashMap<Owner, VecDeque<T>>,
    /// Owners with jobs, in the order of their turns. Each stands in one of them.
    short: VecDeque<Owner>,
    long: VecDeque<Owner>,
    long_owners: HashSet<Owner>,
    count: usize,
    is_closed: bool,
}

impl<T> Docket<T> {
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

    /// Adds a job behind the others of its owner, or gives it back if too many wait or the queue is closed.
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

    /// The next job, waiting for one; none when the queue is closed and has no more of them.
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
            // While jobs wait, one of their owners may turn out to have a long history.
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

    /// No more jobs come. Those that wait are still given out.
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

/// Keeps a queue open: closes it when dropped, whatever the reason.
pub(crate) struct OpenDocket<T>(pub(crate) Arc<Docket<T>>);

impl<T> Drop for OpenDocket<T> {
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

    fn take(docket: &Docket<u32>, length: Length, count: usize) -> Vec<u32> {
        (0..count).map(|_| docket.next(length).unwrap().1).collect()
    }

    #[test]
    fn owners_take_turns() {
        let docket = Docket::new(100);
        for job in 10..15 {
            docket.add(owner(1), job).unwrap();
        }
        docket.add(owner(2), 20).unwrap();
        docket.add(None, 30).unwrap();
        assert_eq!(take(&docket, Length::Short, 7), [10, 20, 30, 11, 12, 13, 14]);
    }

    #[test]
    fn long_histories_wait_apart_and_few_of_them() {
        let docket = Docket::new(100);
        docket.add(owner(1), 10).unwrap();
        docket.add(owner(1), 11).unwrap();
        docket.add(owner(2), 20).unwrap();
        assert_eq!(take(&docket, Length::Short, 1), [10]);
        docket.learn(&owner(1), Length::Long);
        for job in 0..LONG_WAITING_MAX - 1 {
            docket.add(owner(1), u32::try_from(job).unwrap() + 100).unwrap();
        }
        assert_eq!(docket.add(owner(1), 12), Err(12));
        docket.add(owner(2), 21).unwrap();
        assert_eq!(take(&docket, Length::Short, 2), [20, 21]);
        assert_eq!(take(&docket, Length::Long, 2), [11, 100]);
        docket.learn(&owner(1), Length::Short);
        assert_eq!(take(&docket, Length::Short, 1), [101]);
    }

    #[test]
    fn there_is_a_limit_for_all_and_what_waits_at_the_end_is_given_out() {
        let docket = Docket::new(2);
        docket.add(owner(1), 1).unwrap();
        docket.add(owner(2), 2).unwrap();
        assert_eq!(docket.add(owner(3), 3), Err(3));
        let docket = Arc::new(docket);
        drop(OpenDocket(Arc::clone(&docket)));
        assert_eq!(take(&docket, Length::Short, 2), [1, 2]);
        assert!(docket.next(Length::Short).is_none() && docket.next(Length::Long).is_none());
    }

    #[test]
    fn many_long_owners_are_forgotten() {
        let docket = Docket::new(10);
        let owner = |n: usize| Some(n.to_be_bytes().into());
        for n in 0..=LONG_OWNERS_MAX {
            docket.learn(&owner(n), Length::Long);
        }
        docket.add(owner(0), 0).unwrap();
        docket.add(owner(LONG_OWNERS_MAX), 1).unwrap();
        assert_eq!((take(&docket, Length::Short, 1), take(&docket, Length::Long, 1)), (vec![0], vec![1]));
    }
}
