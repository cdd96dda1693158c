//! The queue of a lane without threads, for simulators.

use std::sync::Arc;

use crate::lane::{Answer, Answered, Job, Verdict};
use crate::queue::{BatchLimits, Submissions, Wait};
use crate::slot::Responder;
use crate::{LaneMetrics, Rules, SubmitError};

/// A batch takes all that waits.
const EVERYTHING: BatchLimits = BatchLimits { commands_max: usize::MAX, events_max: usize::MAX };

/// The commands of a lane without threads. Its holder takes them, decides them with a [`crate::Batcher`], and answers
/// each.
pub struct InlineQueue<R: Rules> {
    submissions: Submissions<Job<R>>,
    metrics: Arc<LaneMetrics>,
}

/// The answer that the submitter of a command waits for. Dropping it says that the lane has stopped.
pub struct PendingAnswer<R: Rules>(Responder<Answered<R>>);

impl<R: Rules> InlineQueue<R> {
    pub(crate) fn new(submissions: Submissions<Job<R>>, metrics: Arc<LaneMetrics>) -> Self {
        Self { submissions, metrics }
    }

    /// Takes all waiting commands.
    #[must_use]
    pub fn take(&self) -> Vec<(R::Command, PendingAnswer<R>)> {
        let mut jobs = Vec::new();
        self.submissions.take(&mut jobs, EVERYTHING, Wait::No);
        self.metrics.dequeued(jobs.len() as u64);
        jobs.into_iter().map(|job| (job.command, PendingAnswer(job.answer))).collect()
    }

    /// The metrics of the lane, for its [`crate::Batcher`].
    #[must_use]
    pub fn metrics(&self) -> &Arc<LaneMetrics> {
        &self.metrics
    }
}

impl<R: Rules> PendingAnswer<R> {
    /// Answers the submitter.
    pub fn send(self, result: Result<Verdict<R>, SubmitError>) {
        self.0.send(result.map(Answer::Decided));
    }
}
