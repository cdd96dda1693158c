//! When the open transfers are looked through, and how fast they are asked for beside clients: rules without clock.

use std::time::Duration;

use tokio::time::Instant;

/// Transfers asked for at the same time by the service while it serves clients: their requests share its threads with payments,
/// which would wait behind a burst. More when the next transfer has been waiting for so many seconds, so that the
/// queue does not grow for ever.
const IN_FLIGHT_BESIDE_CLIENTS: [(u64, usize); 3] = [(0, 8), (3, 32), (10, usize::MAX)];
/// How soon announced transfers are looked for after the last look, beside clients: aggregation announces one after the other.
const LOOK_PAUSE: Duration = Duration::from_millis(5);
/// How soon an announcement leads to a look from the front: what was announced may be an old one that is tried again.
const LOOK_ALL_PAUSE: Duration = Duration::from_secs(1);

/// Which of the open transfers a look is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    All,
    /// Those behind the last one seen.
    New,
}

/// What comes next, and when.
#[derive(Clone, Copy)]
pub(super) struct NextLook {
    /// From the front, whatever is announced.
    pub all: Instant,
    /// For what was announced.
    pub announced: Option<Instant>,
}

impl NextLook {
    /// When the next one is due.
    pub fn at(&self) -> Instant {
        self.announced.map_or(self.all, |announced| announced.min(self.all))
    }

    /// New transfers were announced.
    pub fn announce(&mut self, now: Instant, beside_clients: bool) {
        let pause = if beside_clients { LOOK_PAUSE } else { Duration::ZERO };
        self.announced.get_or_insert(now + pause);
    }

    /// Which look is due; the last one from the front began at `looked_at_all`.
    pub fn due(&self, now: Instant, looked_at_all: Instant) -> Option<Look> {
        let is_long_ago = now.saturating_duration_since(looked_at_all) >= LOOK_ALL_PAUSE;
        match self.announced {
            _ if self.all <= now => Some(Look::All),
            Some(announced) if announced <= now => Some(if is_long_ago { Look::All } else { Look::New }),
            _ => None,
        }
    }
}

/// How many transfers may be asked for at the same time beside clients, when the next one has been waiting for so long; at most as
/// many as otherwise.
pub(super) fn in_flight_beside_clients(waited_s: u64) -> usize {
    let step = IN_FLIGHT_BESIDE_CLIENTS.iter().rev().find(|(least, _)| waited_s >= *least);
    step.expect("the first step begins at once").1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announced_transfers_are_looked_for_behind_the_last_and_now_and_then_from_the_front() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let next = |announced| NextLook { all: at(60_000), announced };
        assert_eq!(next(None).due(at(5_000), start), None);
        assert_eq!(next(None).at(), at(60_000));
        let announced = next(Some(at(5)));
        assert_eq!(announced.at(), at(5));
        assert_eq!(announced.due(at(4), start), None);
        assert_eq!(announced.due(at(5), start), Some(Look::New));
        // An old one may be among them.
        assert_eq!(announced.due(at(1_000), start), Some(Look::All));
        assert_eq!(announced.due(at(1_000), at(500)), Some(Look::New));
        // From the front in any case.
        assert_eq!(announced.due(at(60_000), at(59_900)), Some(Look::All));
        assert_eq!(next(None).due(at(60_000), at(59_900)), Some(Look::All));
    }

    #[test]
    fn transfers_that_have_waited_long_are_asked_for_faster() {
        let in_flight = [0, 2, 3, 9, 10, 1_000].map(in_flight_beside_clients);
        assert_eq!(in_flight, [8, 8, 32, 32, usize::MAX, usize::MAX]);
    }
}
