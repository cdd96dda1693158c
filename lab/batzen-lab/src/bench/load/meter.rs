//! Measures pieces of code on one core: CPU time of the thread, the best of several rounds, rivals
//! interleaved.
//!
//! It uses CPU time rather than wall time, because other work on the machine takes wall time from us but no
//! CPU time. It takes the best round rather than the mean, because every disturbance makes code slower.
//! Rivals are interleaved, because a processor's clock drifts.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time that the calling thread has used.
pub(crate) fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Time to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// The number of turns of each rival.
    pub(crate) rounds: u32,
    /// CPU time of a turn.
    pub(crate) turn: Duration,
}

impl Effort {
    /// For published figures.
    pub(crate) const FULL: Self = Self { rounds: 7, turn: Duration::from_millis(60) };
    /// For a first impression, and for the ceilings of a run.
    pub(crate) const QUICK: Self = Self { rounds: 3, turn: Duration::from_millis(30) };
}

/// A piece of code to measure.
pub(crate) struct Rival<'a> {
    items: f64,
    run: Box<dyn FnMut() + 'a>,
}

impl<'a> Rival<'a> {
    /// Code that handles `items` items a call.
    pub(crate) fn new(items: u32, run: impl FnMut() + 'a) -> Self {
        Self { items: f64::from(items), run: Box::new(run) }
    }

    /// CPU time per item over about `turn`, µs.
    fn turn(&mut self, turn: Duration) -> f64 {
        let start = thread_cpu_time();
        let (mut calls, mut next) = (0_u32, 1_u32);
        loop {
            for _ in 0..next {
                (self.run)();
            }
            calls += next;
            let spent = thread_cpu_time().saturating_sub(start);
            if spent >= turn {
                return spent.as_secs_f64() * 1e6 / (f64::from(calls) * self.items);
            }
            // Reading the clock costs as much as the fastest code measured here, so the steps grow.
            next = calls.min(1 << 16);
        }
    }
}

/// CPU time per item of each rival, in µs: the best of the rounds. Every rival has one turn in each round.
pub(crate) fn best_us(effort: Effort, rivals: &mut [Rival<'_>]) -> Vec<f64> {
    let mut best = vec![f64::INFINITY; rivals.len()];
    for _ in 0..effort.rounds.max(1) {
        for (best, rival) in best.iter_mut().zip(rivals.iter_mut()) {
            *best = best.min(rival.turn(effort.turn));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_work_takes_more_time() {
        fn work(steps: u64) -> impl FnMut() {
            move || {
                std::hint::black_box((0..steps).fold(1_u64, |state, step| {
                    std::hint::black_box(state.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ step)
                }));
            }
        }
        let effort = Effort { rounds: 3, turn: Duration::from_millis(5) };
        let best = best_us(
            effort,
            &mut [Rival::new(1, work(1_000)), Rival::new(1, work(100_000)), Rival::new(100, work(100_000))],
        );
        // The true factor is a hundred; half of it is enough to see that the right code was compared.
        assert!(best[1] > 50.0 * best[0], "{best:?}");
        assert!(best[2] < best[1] / 50.0, "{best:?}");
    }
}
