//! The schedule of passes through the open transfers, and the request rate while clients are served. These
//! are pure functions of the time.

use std::time::Duration;

use tokio::time::Instant;

/// Number of transfers that a service requests at the same time while it serves clients: the requests share its
/// threads with payments, which would wait behind a burst. The number grows with the seconds that the next
/// transfer has been waiting, so that the queue does not grow for ever.
const IN_FLIGHT_BESIDE_CLIENTS: [(u64, usize); 3] = [(0, 8), (3, 32), (10, usize::MAX)];
/// The pause between passes for announced transfers while clients are served, because aggregation announces
/// transfers one by one.
const ANNOUNCED_PASS_PAUSE: Duration = Duration::from_millis(5);
/// The time after which an announcement leads to a pass from the front: the announced transfer may be an old
/// one that is retried.
const FULL_PASS_PAUSE: Duration = Duration::from_secs(1);

/// The part of the queue that a pass covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    All,
    /// Transfers after the last one read.
    New,
}

/// The next pass and its time.
#[derive(Clone, Copy)]
pub(super) struct NextPass {
    /// The next pass from the front, without an announcement.
    pub(crate) all: Instant,
    /// The next pass for announced transfers.
    pub(crate) announced: Option<Instant>,
}

impl NextPass {
    /// The time of the next pass.
    pub(super) fn at(&self) -> Instant {
        self.announced.map_or(self.all, |announced| announced.min(self.all))
    }

    /// New transfers were announced.
    pub(super) fn announce(&mut self, now: Instant, beside_clients: bool) {
        let pause = if beside_clients { ANNOUNCED_PASS_PAUSE } else { Duration::ZERO };
        self.announced.get_or_insert(now + pause);
    }

    /// The pass that is due. The last pass from the front started at `full_pass_at`.
    pub(super) fn due(&self, now: Instant, full_pass_at: Instant) -> Option<Pass> {
        let is_long_ago = now.saturating_duration_since(full_pass_at) >= FULL_PASS_PAUSE;
        match self.announced {
            _ if self.all <= now => Some(Pass::All),
            Some(announced) if announced <= now => Some(if is_long_ago { Pass::All } else { Pass::New }),
            _ => None,
        }
    }
}

/// Returns the number of transfers to request at the same time while clients are served, by the age of the
/// next one; at most the number without clients.
pub(super) fn in_flight_beside_clients(waited_s: u64) -> usize {
    let step = IN_FLIGHT_BESIDE_CLIENTS.iter().rev().find(|(least, _)| waited_s >= *least);
    step.expect("the first step begins at once").1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_for_announced_transfers_starts_at_the_front_after_a_second() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let next = |announced| NextPass { all: at(60_000), announced };
        assert_eq!(next(None).due(at(5_000), start), None);
        assert_eq!(next(None).at(), at(60_000));
        let announced = next(Some(at(5)));
        assert_eq!(announced.at(), at(5));
        assert_eq!(announced.due(at(4), start), None);
        assert_eq!(announced.due(at(5), start), Some(Pass::New));
        // An old transfer may be among them.
        assert_eq!(announced.due(at(1_000), start), Some(Pass::All));
        assert_eq!(announced.due(at(1_000), at(500)), Some(Pass::New));
        // A pass from the front is due in any case.
        assert_eq!(announced.due(at(60_000), at(59_900)), Some(Pass::All));
        assert_eq!(next(None).due(at(60_000), at(59_900)), Some(Pass::All));
    }

    #[test]
    fn the_request_rate_grows_with_the_age_of_the_next_transfer() {
        let in_flight = [0, 2, 3, 9, 10, 1_000].map(in_flight_beside_clients);
        assert_eq!(in_flight, [8, 8, 32, 32, usize::MAX, usize::MAX]);
    }
}
