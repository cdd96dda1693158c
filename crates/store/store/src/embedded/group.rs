//! Group commit: the commits of several lanes that are ready at the same time share one frame and one sync.
//!
//! A commit that finds nobody writing leads: it takes all commits that wait, its own first, appends them as one frame,
//! makes them visible and tells the others. Meanwhile further commits gather for the next leader. So one frame is under
//! way at any time, as the rules for interrupted writes require (`tail.rs`), and a lone lane waits for nobody.
//!
//! This is the only part of a commit that runs one at a time. It copies and numbers records, computes the
//! frame's checksums, writes, syncs, and inserts into the indexes.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::commit::Prepared;
use super::format::{FRAME_HEADER_BYTES, FrameKind};
use super::ordered::OrderedIndex;
use super::writer::Writer;
use super::{Core, lock};
use crate::{Result, StoreError};

/// The most bytes of records in one frame of several commits. A larger commit has a frame of its own.
const GROUP_BYTES_MAX: usize = 4 << 20;
/// Number of buffers for records that are kept, and their maximum size.
const BUFFERS_MAX: usize = 16;
const BUFFER_BYTES_MAX: usize = 4 << 20;

/// The commits that wait to be appended.
#[derive(Default)]
pub(crate) struct Group {
    queue: Mutex<Queue>,
    /// Memory for the records of later commits.
    buffers: Mutex<Vec<Vec<u8>>>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Arc<Member>>,
    is_led: bool,
}

/// A commit in the queue.
struct Member {
    bytes: usize,
    turn: Mutex<Turn>,
    changed: Condvar,
}

enum Turn {
    Waiting(Prepared),
    /// It leads the next group.
    Leading(Prepared),
    /// A leader is writing it.
    Written,
    Done(Result<()>),
}

impl Member {
    fn set(&self, turn: Turn) {
        *lock(&self.turn) = turn;
        self.changed.notify_one();
    }

    /// Waits for the end of this commit, or until it must lead: then returns none.
    fn wait(&self) -> Option<Result<()>> {
        let mut turn = lock(&self.turn);
        loop {
            match std::mem::replace(&mut *turn, Turn::Written) {
                Turn::Done(outcome) => return Some(outcome),
                Turn::Leading(prepared) => {
                    *turn = Turn::Leading(prepared);
                    return None;
                }
                other => *turn = other,
            }
            turn = self.changed.wait(turn).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes the commit out, to be written.
    fn take(&self) -> Prepared {
        match std::mem::replace(&mut *lock(&self.turn), Turn::Written) {
            Turn::Waiting(prepared) | Turn::Leading(prepared) => prepared,
            Turn::Written | Turn::Done(_) => unreachable!("each commit is taken from the queue once"),
        }
    }
}

impl Group {
    /// An empty buffer for the records of a commit.
    pub(crate) fn buffer(&self) -> Vec<u8> {
        lock(&self.buffers).pop().unwrap_or_default()
    }

    /// Number of commits that wait.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.queue).waiting.len()
    }

    fn keep(&self, mut buffer: Vec<u8>) {
        let mut buffers = lock(&self.buffers);
        if buffers.len() < BUFFERS_MAX && buffer.capacity() <= BUFFER_BYTES_MAX {
            buffer.clear();
            buffers.push(buffer);
        }
    }

    /// Adds a commit to the queue. Returns whether it leads.
    fn join(&self, member: &Arc<Member>) -> bool {
        let mut queue = lock(&self.queue);
        queue.waiting.push_back(Arc::clone(member));
        !std::mem::replace(&mut queue.is_led, true)
    }

    /// The commits of the next frame; the leader's own is the first.
    fn gather(&self) -> Vec<Arc<Member>> {
        let mut queue = lock(&self.queue);
        let mut bytes = 0;
        let mut members = Vec::with_capacity(queue.waiting.len());
        while let Some(next) = queue.waiting.front() {
            bytes += next.bytes;
            if !members.is_empty() && bytes > GROUP_BYTES_MAX {
                break;
            }
            members.extend(queue.waiting.pop_front());
        }
        members
    }

    /// Hands the lead to the first commit that waits, if any.
    fn pass_on(&self) {
        let mut queue = lock(&self.queue);
        match queue.waiting.front() {
            Some(next) => {
                let prepared = next.take();
                next.set(Turn::Leading(prepared));
            }
            None => queue.is_led = false,
        }
    }
}

impl Core {
    /// Makes a prepared commit durable and visible, perhaps together with others. After an error, it is
    /// neither.
    pub(crate) fn append_in_group(&self, prepared: Prepared) -> Result<()> {
        let bytes = prepared.payload.len();
        let member =
            Arc::new(Member { bytes, turn: Mutex::new(Turn::Waiting(prepared)), changed: Condvar::new() });
        if !self.group.join(&member)
            && let Some(outcome) = member.wait()
        {
            return outcome;
        }
        let lead = Lead { core: self, members: self.group.gather() };
        assert!(Arc::ptr_eq(&lead.members[0], &member), "the leader's commit is the first of its group");
        let mut commits: Vec<Prepared> = lead.members.iter().map(|member| member.take()).collect();
        let appended = self.append_all(&mut commits);
        let (crowded, outcome) = match appended {
            Ok(crowded) => (crowded, Ok(())),
            Err(error) => (Vec::new(), Err(error)),
        };
        lead.end(&outcome);
        // Others lead and commit meanwhile.
        crowded.iter().for_each(|index| index.settle());
        commits.into_iter().for_each(|commit| self.group.keep(commit.payload));
        outcome
    }

    /// Goes on to the next segment if the commits do not fit into this one.
    fn make_room_for(&self, writer: &mut Writer, commits: &mut [Prepared]) -> Result<()> {
        loop {
            for commit in &mut *commits {
                commit.move_to(&writer.active)?;
            }
            let bytes = commits.iter().map(|commit| commit.payload.len()).sum();
            if self.make_room(writer, bytes, FrameKind::Commit)? {
                return Ok(());
            }
        }
    }

    /// Appends commits as one frame and makes them visible. Returns the ordered indexes that have many unsorted
    /// changes.
    fn append_all(&self, commits: &mut [Prepared]) -> Result<Vec<Arc<OrderedIndex>>> {
        let mut writer = lock(&self.writer);
        let start = thread_cpu();
        self.make_room_for(&mut writer, commits)?;
        let mut serial_next = writer.serial_next;
        let frame = writer.begin();
        for commit in &mut *commits {
            let at = frame.len();
            frame.extend_from_slice(&commit.payload);
            serial_next = commit.number(&mut frame[at..], serial_next);
        }
        let records = commits.iter().map(Prepared::len).sum();
        let frame_start = self.append(&mut writer, FrameKind::Commit, records, serial_next)?;

        // Durable: now make it visible.
        let mut crowded = Vec::new();
        let mut state = self.write();
        let mut at = frame_start + FRAME_HEADER_BYTES as u64;
        for commit in &mut *commits {
            commit.publish(&mut state, (&writer.active, at), &self.records, &mut crowded);
            at += commit.payload.len() as u64;
        }
        drop(state);
        let mut at = frame_start + FRAME_HEADER_BYTES as u64;
        for commit in &*commits {
            commit.remember(&self.dictionary, at);
            at += commit.payload.len() as u64;
        }
        self.counters.frames.fetch_add(1, Ordering::Relaxed);
        let cpu_ns = u64::try_from((thread_cpu() - start).as_nanos()).unwrap_or(u64::MAX);
        self.counters.serial_cpu_ns.fetch_add(cpu_ns, Ordering::Relaxed);
        Ok(crowded)
    }
}

/// The leader of a group of commits. If it panics, the store stops and the others get an error.
struct Lead<'a> {
    core: &'a Core,
    members: Vec<Arc<Member>>,
}

impl Lead<'_> {
    /// Hands over the lead, and tells the others how their commits ended.
    fn end(mut self, outcome: &Result<()>) {
        self.core.group.pass_on();
        for member in std::mem::take(&mut self.members).iter().skip(1) {
            member.set(Turn::Done(outcome.as_ref().map_or_else(|error| Err(error.duplicate()), |()| Ok(()))));
        }
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        if self.members.is_empty() {
            return;
        }
        let reason = "an invariant was broken";
        self.core.stop(reason);
        let members = std::mem::take(&mut self.members);
        Lead { core: self.core, members }.end(&Err(StoreError::Stopped(reason.into())));
    }
}

/// The CPU time of this thread.
fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let parts = u64::try_from(time.tv_sec).ok().zip(u32::try_from(time.tv_nsec).ok());
    parts.map_or(Duration::ZERO, |(seconds, nanos)| Duration::new(seconds, nanos))
}
