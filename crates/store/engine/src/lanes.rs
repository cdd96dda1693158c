//! Several lanes over one store: they execute on several cores, and while one waits for its commit, another
//! executes.

use std::sync::Arc;

use batzen_store::Store;

use crate::inline::InlineQueue;
use crate::lane::{Lane, Verdict};
use crate::{Clock, LaneMetrics, LaneOptions, Rules, SubmitError};

/// Number of lanes that a service can have. Each has one bit of the metrics and at least one virtual shard.
pub const LANES_MAX: usize = 64;

/// Lanes over one store. Each serves a part of the virtual shards ([`batzen_store::Backend::lane`]), so that the commands of
/// one owner stay in order, and so that a batch goes to one part of the database. If the database has parts of its own
/// ([`batzen_store::Backend::lanes_wanted`]), the last lane has the commands that concern several of them, so that
/// all other batches are commits in one part. Cheap to clone.
pub struct Lanes<R: Rules> {
    rules: Arc<R>,
    lanes: Vec<Lane<R>>,
    /// Number of lanes serve that a part each.
    parts: usize,
}

impl<R: Rules> Clone for Lanes<R> {
    fn clone(&self) -> Self {
        Self { rules: Arc::clone(&self.rules), lanes: self.lanes.clone(), parts: self.parts }
    }
}

impl<R: Rules> Lanes<R> {
    /// Starts `count` lanes, each with these limits.
    ///
    /// # Panics
    /// When the count is not between 1 and [`LANES_MAX`], or the operating system starts no thread.
    pub fn start(
        rules: Arc<R>,
        store: &Store,
        clock: &Arc<dyn Clock>,
        options: LaneOptions,
        count: usize,
    ) -> Self {
        assert!((1..=LANES_MAX).contains(&count), "1 to {LANES_MAX} lanes");
        let metrics = Arc::<LaneMetrics>::default();
        metrics.limits(count, options.queue_commands_max * count, options.batch_commands_max);
        let start = |number| {
            let (rules, clock) = (Arc::clone(&rules), Arc::clone(clock));
            Lane::start_one(rules, store.clone(), clock, options, Arc::clone(&metrics), number)
        };
        let lanes = (0..count).map(start).collect();
        let has_parts = count > 1 && store.backend().lanes_wanted().is_some();
        Self { rules, lanes, parts: count - usize::from(has_parts) }
    }

    /// One lane without threads: its commands wait until the holder of the queue answers them.
    pub fn inline(rules: Arc<R>, store: &Store) -> (Self, InlineQueue<R>) {
        let (lane, queue) = Lane::inline(Arc::clone(&rules), store.clone(), LaneOptions::default());
        (Self { rules, lanes: vec![lane], parts: 1 }, queue)
    }

    /// As [`Lane::submit`], in the lane of the command's owner.
    ///
    /// # Errors
    /// As [`Lane::submit`].
    pub async fn submit(&self, command: R::Command) -> Result<Verdict<R>, SubmitError> {
        self.lane(&command).submit(command).await
    }

    fn lane(&self, command: &R::Command) -> &Lane<R> {
        if self.lanes.len() == 1 {
            return &self.lanes[0];
        }
        let lane_of = |key| self.store().backend().lane(key, self.parts);
        let number = self.rules.owner(command).map_or(0, lane_of);
        let mut concerns_others = false;
        if self.parts < self.lanes.len() {
            self.rules.other_owners(command, &mut |key| concerns_others |= lane_of(key) != number);
        }
        if concerns_others { &self.lanes[self.parts] } else { &self.lanes[number] }
    }

    /// The number of lanes.
    pub fn count(&self) -> usize {
        self.lanes.len()
    }

    /// The store behind the lanes, for reads that need no batch (committed rows only).
    pub(crate) fn store(&self) -> &Store {
        self.lanes[0].store()
    }

    /// The metrics of all lanes together.
    pub fn metrics(&self) -> &LaneMetrics {
        self.lanes[0].metrics()
    }

    /// Drops this handle. If it is the last one, waits until everything accepted is durable and answered.
    pub fn close(self) {
        self.lanes.into_iter().for_each(Lane::close);
    }
}
