//! Latency in intervals of a hundredth of a second, short enough to show a stall and what else happened at
//! that time.

use std::fmt::Write as _;
use std::time::Duration;

/// Time that a [`Moment`] is.
pub(crate) const MOMENT: Duration = Duration::from_millis(10);
/// The most moments kept: ten minutes.
const MOMENTS_MAX: usize = 60_000;

/// The answers received within one [`MOMENT`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Correct answers.
    pub(crate) requests: u64,
    /// Sum of their latencies, µs.
    pub(crate) latency_sum_us: u64,
    /// The longest, µs.
    pub(crate) latency_max_us: u64,
    /// The longest delay, in µs, that the generator itself added to a request of an open loop.
    pub(crate) late_max_us: u64,
}

impl Moment {
    /// Adds another thread's counts for the same moment.
    pub(crate) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.latency_sum_us += other.latency_sum_us;
        self.latency_max_us = self.latency_max_us.max(other.latency_max_us);
        self.late_max_us = self.late_max_us.max(other.late_max_us);
    }
}

/// Counts an answer that arrived `at_ns` after the start of the measured part.
pub(crate) fn count(moments: &mut Vec<Moment>, at_ns: u64, latency_us: u64) {
    let answer =
        Moment { requests: 1, latency_sum_us: latency_us, latency_max_us: latency_us, late_max_us: 0 };
    add(moments, at_ns, &answer);
}

/// Records the delay of a request; `at_ns` counts from the beginning of the measured part.
pub(crate) fn late(moments: &mut Vec<Moment>, at_ns: u64, late_us: u64) {
    add(moments, at_ns, &Moment { late_max_us: late_us, ..Moment::default() });
}

fn add(moments: &mut Vec<Moment>, at_ns: u64, what: &Moment) {
    let index = u128::from(at_ns) / MOMENT.as_nanos();
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    if moments.len() <= index && index < MOMENTS_MAX {
        moments.resize(index + 1, Moment::default());
    }
    if let Some(moment) = moments.get_mut(index) {
        moment.add(what);
    }
}

/// One row a moment; `t_ms` is when it begins.
pub(crate) fn to_csv(moments: &[Moment]) -> String {
    let mut text = "t_ms,requests,mean_us,max_us,late_max_us\n".to_owned();
    for (index, moment) in (0_u128..).zip(moments) {
        let Moment { requests, latency_sum_us, latency_max_us, late_max_us } = moment;
        let mean_us = latency_sum_us.checked_div(*requests).unwrap_or(0);
        let _ = writeln!(
            text,
            "{},{requests},{mean_us},{latency_max_us},{late_max_us}",
            index * MOMENT.as_millis()
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_in_their_moment() {
        let mut moments = Vec::new();
        for (at_ms, latency_us) in [(0, 100), (9, 300), (25, 5_000)] {
            count(&mut moments, at_ms * 1_000_000, latency_us);
        }
        late(&mut moments, 26_000_000, 7);
        // Of a long run, only the beginning is kept.
        count(&mut moments, MOMENTS_MAX as u64 * 10_000_000, 1);
        assert_eq!(
            to_csv(&moments),
            "t_ms,requests,mean_us,max_us,late_max_us\n0,2,200,300,0\n10,0,0,0,0\n20,1,5000,5000,7\n"
        );
    }
}
