//! Counters of a server, for its metrics.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use batzen_metrics::Page;

use crate::shares::{RESOURCES, Resource, Shares};

/// The names of the [`Resource`]s, for the label `share`.
const SHARES: [&str; RESOURCES] = ["connections", "requests", "long_polls", "bodies", "answers", "partings"];

/// Counters since the server was bound. The accept loop, the connections and the metrics page share them.
#[derive(Debug, Default)]
pub struct Stats {
    pub(crate) connections_accepted: AtomicU64,
    pub(crate) connections_refused: AtomicU64,
    pub(crate) connections_open: AtomicU64,
    pub(crate) requests_overload: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) panics: AtomicU64,
    pub(crate) malformed: AtomicU64,
    pub(crate) timeouts: AtomicU64,
    pub(crate) refused: [AtomicU64; RESOURCES],
    pub(crate) readers_cut: AtomicU64,
    pub(crate) polls_ended_early: AtomicU64,
    pub(crate) unused_closed: AtomicU64,
    pub(crate) shares: OnceLock<Arc<Shares>>,
    /// Counts over all requests.
    requests: [Shard; SHARDS],
}

/// Number of parts of the counters of requests. Each thread counts in one of them, so that threads rarely write to the
/// same cache line.
const SHARDS: usize = 16;

/// A part of the counters of requests, alone on its cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Shard {
    pub(crate) requests: AtomicU64,
    /// A request may end on another thread than it began on, so only the sum over all parts, modulo 2^64, is a
    /// number of requests.
    in_flight: AtomicU64,
    responses: [AtomicU64; 5],
    pub(crate) body_bytes_received: AtomicU64,
    pub(crate) body_bytes_sent: AtomicU64,
}

thread_local! {
    /// The part in which this thread counts.
    static SHARD: usize = {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS
    };
}

/// The values of the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatsSnapshot {
    /// Connections accepted, including refused ones.
    pub connections_accepted: u64,
    /// Connections refused because there were too many.
    pub connections_refused: u64,
    /// Connections open now.
    pub connections_open: u64,
    /// Requests whose header arrived complete.
    pub requests: u64,
    /// Requests being read or handled now.
    pub requests_in_flight: u64,
    /// Requests refused because too many were in flight or too much body was buffered.
    pub requests_overload: u64,
    /// Responses by class of their status: `responses[0]` counts 1xx, `responses[4]` counts 5xx.
    pub responses: [u64; 5],
    /// Requests that ended without a response: the peer disconnected, or its body was cut off.
    pub cancelled: u64,
    /// Handlers that panicked (each was answered with 500).
    pub panics: u64,
    /// Requests that were not HTTP.
    pub(crate) malformed: u64,
    /// Connections closed because the client was too slow to send a header or a body, or to read a response,
    /// or was idle.
    pub timeouts: u64,
    /// Bytes of request bodies, as received.
    pub body_bytes_received: u64,
    /// Bytes of response bodies, as sent.
    pub body_bytes_sent: u64,
    /// Refusals because a client had used up its share or nothing was left: connections, requests, long polls
    /// (answered at once), bodies, responses, partings (refused connections that were closed without reading
    /// further).
    pub refused: [u64; RESOURCES],
    /// Connections closed because their clients did not read while memory for responses was running out.
    pub readers_cut: u64,
    /// Long polls answered early because connections ran out.
    pub polls_ended_early: u64,
    /// Connections closed because they had no request while connections were running out.
    pub unused_closed: u64,
    /// Shares of the resources that clients now hold: connections, requests, long polls, bytes of bodies,
    /// bytes of responses, and refused connections that are still read.
    pub held: [u64; RESOURCES],
}

impl Stats {
    /// The current counters. They are read one after the other, so sums may be off by the requests in flight.
    #[must_use]
    pub fn snapshot(&self) -> StatsSnapshot {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let sum = |counter: &dyn Fn(&Shard) -> &AtomicU64| {
            self.requests.iter().map(|shard| get(counter(shard))).fold(0, u64::wrapping_add)
        };
        StatsSnapshot {
            connections_accepted: get(&self.connections_accepted),
            connections_refused: get(&self.connections_refused),
            connections_open: get(&self.connections_open),
            requests: sum(&|shard| &shard.requests),
            requests_in_flight: sum(&|shard| &shard.in_flight),
            requests_overload: get(&self.requests_overload),
            responses: std::array::from_fn(|class| sum(&|shard| &shard.responses[class])),
            cancelled: get(&self.cancelled),
            panics: get(&self.panics),
            malformed: get(&self.malformed),
            timeouts: get(&self.timeouts),
            body_bytes_received: sum(&|shard| &shard.body_bytes_received),
            body_bytes_sent: sum(&|shard| &shard.body_bytes_sent),
            refused: std::array::from_fn(|share| get(&self.refused[share])),
            readers_cut: get(&self.readers_cut),
            polls_ended_early: get(&self.polls_ended_early),
            unused_closed: get(&self.unused_closed),
            held: self.shares.get().map_or([0; RESOURCES], |shares| {
                [
                    Resource::Connections,
                    Resource::Requests,
                    Resource::Polls,
                    Resource::Bodies,
                    Resource::Answers,
                    Resource::LingerCloses,
                ]
                .map(|resource| shares.used(resource) as u64)
            }),
        }
    }

    /// Writes `batzen_http_*`.
    pub fn write(&self, page: &mut Page) {
        let stats = self.snapshot();
        let classes = ["1xx", "2xx", "3xx", "4xx", "5xx"].into_iter().zip(stats.responses);
        page.counters("batzen_http_responses_total", "Responses by class of status", "class", classes);
        let refused = SHARES.into_iter().zip(stats.refused);
        page.counters(
            "batzen_http_refused_total",
            "Refusals by the shared resource that ran out",
            "share",
            refused,
        );
        for (name, help, value) in [
            (
                "batzen_http_readers_cut_total",
                "Connections closed because responses were unread",
                stats.readers_cut,
            ),
            ("batzen_http_long_polls_ended_early_total", "Long polls ended early", stats.polls_ended_early),
            (
                "batzen_http_unused_closed_total",
                "Connections without a request closed to make room",
                stats.unused_closed,
            ),
            ("batzen_http_connections_total", "Connections accepted", stats.connections_accepted),
            ("batzen_http_connections_refused_total", "Connections refused", stats.connections_refused),
            ("batzen_http_requests_total", "Requests", stats.requests),
            (
                "batzen_http_requests_overload_total",
                "Requests refused because of overload",
                stats.requests_overload,
            ),
            ("batzen_http_cancelled_total", "Requests without a response", stats.cancelled),
            ("batzen_http_panics_total", "Handlers that panicked", stats.panics),
            ("batzen_http_malformed_total", "Requests that were not HTTP", stats.malformed),
            (
                "batzen_http_timeouts_total",
                "Connections closed because the client was too slow",
                stats.timeouts,
            ),
            ("batzen_http_received_bytes_total", "Bytes of request bodies", stats.body_bytes_received),
            ("batzen_http_sent_bytes_total", "Bytes of response bodies", stats.body_bytes_sent),
        ] {
            page.counter(name, help, value);
        }
        page.gauge("batzen_http_connections_open", "Connections open", stats.connections_open);
        page.gauge("batzen_http_requests_in_flight", "Requests in flight", stats.requests_in_flight);
        let [_, _, polls, bodies, answers, _] = stats.held;
        page.gauge("batzen_http_long_polls_waiting", "Long polls waiting", polls);
        page.gauge("batzen_http_request_bytes_held", "Bytes of request bodies in memory", bodies);
        page.gauge("batzen_http_answer_bytes_held", "Bytes of responses that clients have not read", answers);
    }

    /// Counts a refusal.
    pub(crate) fn refuse(&self, resource: Resource) {
        add(&self.refused[resource as usize], 1);
    }

    pub(crate) fn count_response(&self, status: u16) {
        let class = usize::from(status / 100).clamp(1, 5) - 1;
        add(&self.here().responses[class], 1);
    }

    /// The counters of requests for this thread.
    pub(crate) fn here(&self) -> &Shard {
        &self.requests[SHARD.with(|shard| *shard)]
    }

    /// Counts a request, which is in flight until the result is dropped.
    pub(crate) fn begin_request(&self) -> InFlight<'_> {
        let shard = self.here();
        add(&shard.requests, 1);
        add(&shard.in_flight, 1);
        InFlight(self)
    }
}

/// A request in flight.
pub(crate) struct InFlight<'a>(&'a Stats);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.here().in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// Raises a gauge until it is dropped.
pub(crate) struct Gauge<'a>(&'a AtomicU64);

impl<'a> Gauge<'a> {
    pub(crate) fn raise(gauge: &'a AtomicU64) -> Self {
        gauge.fetch_add(1, Ordering::Relaxed);
        Self(gauge)
    }
}

impl Drop for Gauge<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_count_whatever_thread_they_begin_and_end_on() {
        let stats = Stats::default();
        let begin = || (0..3).map(|_| stats.begin_request()).collect::<Vec<_>>();
        let threads = |count: usize| {
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..count).map(|_| scope.spawn(begin)).collect();
                threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
            })
        };
        let mut running = threads(2 * SHARDS + 1);
        let all = 3 * (2 * SHARDS as u64 + 1);
        assert_eq!((stats.snapshot().requests, stats.snapshot().requests_in_flight), (all, all));
        running.truncate(1);
        assert_eq!((stats.snapshot().requests, stats.snapshot().requests_in_flight), (all, 1));
        stats.count_response(404);
        std::thread::scope(|scope| scope.spawn(|| stats.count_response(404)).join().unwrap());
        assert_eq!(stats.snapshot().responses, [0, 0, 0, 2, 0]);
    }
}
