//! The threads that complete refusals with the histories that prove them.

use std::sync::Arc;

use batzen_store::Store;

use crate::fair_queue::{FairQueue, Length};
use crate::lane::{Answer, Refused, guarded};
use crate::{Evidence, LaneMetrics, Rules, SubmitError};

/// Reads the histories that prove refusals, while the lane runs other batches.
pub(crate) struct EvidenceReader<R: Rules> {
    pub(crate) rules: Arc<R>,
    pub(crate) store: Store,
    pub(crate) metrics: Arc<LaneMetrics>,
    /// Refusals that are waiting for their evidence.
    pub(crate) refused: Arc<FairQueue<Refused<R>>>,
}

impl<R: Rules> EvidenceReader<R> {
    /// Reads until the lane has ended and nothing is waiting any more.
    pub(crate) fn run(&self, length: Length) {
        while let Some((owner, Refused { command, mut refusal, answer })) = self.refused.next(length) {
            if answer.is_abandoned() {
                continue;
            }
            let read = || self.rules.evidence(&command, &mut refusal, &self.store);
            let answered = match guarded(read) {
                Ok(Evidence::Complete) => {
                    let is_long = self.rules.is_evidence_long(&refusal);
                    self.refused.learn(&owner, if is_long { Length::Long } else { Length::Short });
                    Ok(Answer::Decided(Err(refusal)))
                }
                Ok(Evidence::Rerun | Evidence::Torn) => {
                    self.metrics.rerun();
                    Ok(Answer::Again(command))
                }
                Err(error) => {
                    tracing::error!(%error, "the history of a refusal could not be read");
                    Err(SubmitError::Store(Arc::new(error)))
                }
            };
            answer.send(answered);
        }
    }
}
