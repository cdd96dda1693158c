//! Share of a lane that background work gets while clients are served: a rule without clock or queue.
//!
//! A lane runs one batch at a time, so clients wait for as long as a batch of workers takes. The problem is
//! not how much workers do in a second but that they do it in bursts: while a burst occupies a part of the
//! processor, payments may arrive faster than the rest can serve them, and the payments that queue up are
//! late long after the burst. So background batches are small, and after each of them the lane serves only
//! clients for some time. That time is long at first, to spread a burst. When background work waits nearly
//! all the time, it gets shorter step by step, so that a backlog does not grow for ever.
//!
//! When clients queue up anyway, because the processor has become slower or is busy with something else for a
//! moment, background work stops until it is one second behind. (With a store whose commits take longer than
//! a few milliseconds, every busy moment looks like that. Workers are then one second late, and get their
//! share.)

use std::time::{Duration, Instant};

/// Intended cost of a batch of background commands while clients are served.
pub(crate) const PORTION_COST: Duration = Duration::from_millis(1);
/// Time for which the lane serves only clients after such a batch, as a multiple of the batch's, depending on
/// how far background work is behind: background work gets an eighth of the lane at first, then a quarter,
/// and finally half.
const REST_FACTORS: [(Duration, u32); 3] =
    [(Duration::ZERO, 7), (Duration::from_secs(2), 3), (Duration::from_secs(10), 1)];
/// The longest rest, however long a batch took.
pub(crate) const REST_MAX: Duration = Duration::from_millis(50);
/// A batch of this many client commands, taken this long after the previous one, shows that requests queue up
/// for the processor. (With fewer commands there are just few clients; with a shorter interval the processor
/// keeps up with them.) Background work then rests for this long, counted from that batch.
const CROWD: usize = 16;
const CROWD_INTERVAL: Duration = Duration::from_millis(3);
const CROWD_REST: Duration = Duration::from_millis(20);
/// The rest is skipped if background work is behind by this much.
const CROWD_BEHIND_MAX: Duration = Duration::from_secs(1);
/// Time after a client's command within which the next one is expected.
const QUIET_AFTER: Duration = Duration::from_millis(50);
/// Time in which no background work waits makes up for this many times as much waiting, so work that waits
/// for less than four fifths of the time is not behind. (There are always gaps, while workers look for more
/// work.)
const MAKES_UP: u32 = 4;
/// Background work never counts as further behind than this.
const BEHIND_MAX: Duration = Duration::from_secs(12);

/// The state of the rule. Times never go backwards.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Background commands in a batch while clients are served. It is found by trial, since the cost of a
    /// command is not known in advance.
    portion: usize,
    client_came: Option<Instant>,
    /// When commands of clients were last taken.
    clients_taken: Option<Instant>,
    rests_until: Option<Instant>,
    /// Delay of background work, in time waited.
    behind: Duration,
    /// When that was last updated, and whether background work was waiting then.
    updated: Option<(Instant, bool)>,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self {
            portion: 1,
            client_came: None,
            clients_taken: None,
            rests_until: None,
            behind: Duration::ZERO,
            updated: None,
        }
    }

    /// Records that a client's command has arrived.
    pub(crate) fn client_came(&mut self, now: Instant) {
        self.client_came = Some(now);
    }

    /// Records that the next batch has `count` commands of clients.
    pub(crate) fn clients_taken(&mut self, now: Instant, count: usize) {
        let before = self.clients_taken.replace(now);
        let is_slow = before.is_some_and(|before| now.saturating_duration_since(before) >= CROWD_INTERVAL);
        if is_slow && count >= CROWD && self.behind < CROWD_BEHIND_MAX {
            self.rests_until = self.rests_until.max(Some(now + CROWD_REST));
        }
    }

    /// Records whether background work waits from now on.
    pub(crate) fn background_waits(&mut self, now: Instant, waits: bool) {
        let (since, waited) = self.updated.unwrap_or((now, false));
        let time = now.saturating_duration_since(since);
        self.behind = match waited {
            true => (self.behind + time).min(BEHIND_MAX),
            false => self.behind.saturating_sub(MAKES_UP * time),
        };
        self.updated = Some((now, waits));
    }

    /// Returns whether a client's command came recently.
    pub(crate) fn serves_clients(&self, now: Instant) -> bool {
        self.client_came.is_some_and(|came| now.saturating_duration_since(came) < QUIET_AFTER)
    }

    /// The number of background commands in a batch while clients are served.
    pub(crate) fn portion(&self) -> usize {
        self.portion
    }

    /// The time left until the next background command may run.
    pub(crate) fn rest(&self, now: Instant) -> Duration {
        self.rests_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    /// Records the cost of a batch of `count` background commands while clients were served. It determines
    /// the size of the next portion and the rest before it.
    pub(crate) fn done(&mut self, now: Instant, count: usize, cost: Duration) {
        if cost > 2 * PORTION_COST {
            self.portion = (self.portion / 2).max(1);
        } else if cost < PORTION_COST && count == self.portion {
            self.portion += 1 + self.portion / 8;
        }
        self.rests_until = Some(now + (self.rest_factor() * cost).min(REST_MAX));
    }

    fn rest_factor(&self) -> u32 {
        let step = REST_FACTORS.iter().rev().find(|(behind, _)| self.behind >= *behind);
        step.expect("the first step begins at once").1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Runs a lane with steady clients. Background commands of `cost` each arrive, `arrivals` of them in each
    /// millisecond. Returns how many were done in each second.
    fn simulate(cost: Duration, seconds: u64, arrivals: impl Fn(u64) -> usize) -> Vec<usize> {
        let start = Instant::now();
        let (mut pace, mut now, mut waiting, mut arrived) = (Pace::new(), start, 0, 0);
        let mut done = vec![0; seconds as usize];
        while now - start < Duration::from_secs(seconds) {
            let elapsed = (now - start).as_millis() as u64;
            while arrived <= elapsed {
                waiting += arrivals(arrived);
                arrived += 1;
            }
            pace.client_came(now);
            pace.background_waits(now, waiting > 0);
            if waiting > 0 && pace.rest(now).is_zero() {
                let count = pace.portion().min(waiting);
                waiting -= count;
                done[(now - start).as_secs() as usize] += count;
                let spent = cost * count as u32;
                now += spent;
                pace.done(now, count, spent);
            }
            // A batch of clients.
            now += MS / 5;
        }
        done
    }

    #[test]
    fn a_burst_beside_clients_is_spread_over_an_eighth_of_the_lane() {
        // 75 ms of work arrives at the start of every second.
        let burst = |ms: u64| if ms.is_multiple_of(1_000) { 1_000 } else { 0 };
        let done = simulate(75 * MS / 1_000, 20, burst);
        assert!(done.iter().all(|done| *done == 1_000), "all of it is done within the second: {done:?}");
        let first = simulate(75 * MS / 1_000, 1, |ms| if ms == 0 { 100_000 } else { 0 })[0];
        let share = first as f64 * 0.075 / 1_000.0;
        assert!((0.10..0.13).contains(&share), "an eighth: {share}");
    }

    #[test]
    fn work_that_always_waits_gets_a_growing_share() {
        let done = simulate(MS / 10, 15, |ms| if ms == 0 { 1_000_000 } else { 0 });
        let share = |second: usize| done[second] as f64 / 10_000.0;
        assert!((0.10..0.13).contains(&share(1)), "{done:?}");
        assert!((0.20..0.26).contains(&share(5)), "{done:?}");
        assert!((0.40..0.51).contains(&share(14)), "{done:?}");
    }

    #[test]
    fn a_backlog_does_not_grow_for_ever() {
        // Three tenths of the lane are more than an eighth and more than a quarter.
        let done = simulate(MS / 10, 120, |_| 3);
        assert!(done[0] < 1_500, "{done:?}");
        let behind = 120 * 3_000 - done.iter().sum::<usize>();
        assert!(behind < 3_000 * 20, "{behind} of 3,000 a second: {done:?}");
        let late: usize = done[100..].iter().sum();
        assert!(late >= 20 * 2_990, "finally as many are done as arrive: {done:?}");
    }

    #[test]
    fn work_that_is_not_behind_keeps_the_first_share() {
        // Steady work, and bursts that take half of each second.
        let (mut pace, start) = (Pace::new(), Instant::now());
        for ms in 0..60_000_u32 {
            pace.background_waits(start + ms * MS, ms % 1_000 < 500 || ms % 10 == 0);
        }
        assert_eq!(pace.rest_factor(), 7);
        // It falls behind and catches up.
        pace.background_waits(start + 61_000 * MS, true);
        pace.background_waits(start + 64_000 * MS, false);
        assert_eq!(pace.rest_factor(), 3);
        pace.background_waits(start + 65_000 * MS, true);
        assert_eq!(pace.rest_factor(), 7);
    }

    #[test]
    fn background_work_stops_while_clients_queue_up_but_not_for_ever() {
        let (mut pace, start) = (Pace::new(), Instant::now());
        let mut rests = 0;
        for ms in (0..5_000_u32).step_by(4) {
            let now = start + ms * MS;
            pace.background_waits(now, true);
            pace.clients_taken(now, CROWD);
            rests += u32::from(!pace.rest(now + 3 * MS).is_zero());
        }
        // About one second in five, in batches of 4 ms.
        assert!((240..=260).contains(&rests), "{rests}");
    }

    #[test]
    fn few_clients_or_quick_batches_do_not_stop_background_work() {
        let (mut pace, start) = (Pace::new(), Instant::now());
        for ms in 0..1_000_u32 {
            pace.clients_taken(start + 2 * ms * MS, 10 * CROWD);
            assert!(pace.rest(start + 2 * ms * MS).is_zero());
        }
        for ms in 1_000..2_000_u32 {
            pace.clients_taken(start + 10 * ms * MS, CROWD - 1);
            assert!(pace.rest(start + 10 * ms * MS).is_zero());
        }
        // A longer rest is not shortened.
        let now = start + Duration::from_secs(60);
        pace.done(now, 1, 10 * MS);
        pace.clients_taken(now, CROWD);
        assert_eq!(pace.rest(now), REST_MAX);
    }

    #[test]
    fn the_size_of_a_portion_follows_its_cost() {
        let (mut pace, mut now) = (Pace::new(), Instant::now());
        for _ in 0..100 {
            let count = pace.portion();
            pace.done(now, count, PORTION_COST * count as u32 / 40);
            now += MS;
        }
        assert!((40..=90).contains(&pace.portion()), "{}", pace.portion());
        // A small batch says nothing about a large one. An expensive batch halves the next one.
        let before = pace.portion();
        pace.done(now, 1, MS / 100);
        assert_eq!(pace.portion(), before);
        pace.done(now, before, 3 * PORTION_COST);
        assert_eq!(pace.portion(), before / 2);
        pace.done(now, 1, Duration::from_secs(1));
        assert_eq!(pace.rest(now), REST_MAX, "no rest is longer");
        (0..20).for_each(|_| pace.done(now, 1, MS * 10));
        assert_eq!(pace.portion(), 1);
    }

    #[test]
    fn clients_that_stay_away_do_not_count_as_served() {
        let (mut pace, now) = (Pace::new(), Instant::now());
        assert!(!pace.serves_clients(now));
        pace.client_came(now);
        assert!(pace.serves_clients(now + QUIET_AFTER - MS));
        assert!(!pace.serves_clients(now + QUIET_AFTER));
    }
}
