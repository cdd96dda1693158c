//! Jobs whose requests were all prepared in advance.

use std::collections::VecDeque;

use crate::bench::load::generator::{Next, Outgoing, Script};

/// One in this many jobs has its answer kept and checked after the run.
const SAMPLE_EVERY: u64 = 128;
/// The most answers kept per thread.
const SAMPLES_MAX: usize = 1_000;

/// Requests to send one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// Its number, from which its secrets follow.
    pub(crate) number: u64,
    /// Operations that it completes.
    pub(crate) ops: u64,
    /// The requests, in order.
    pub(crate) requests: VecDeque<Outgoing>,
}

impl Job {
    /// A job of one request.
    pub(crate) fn single(number: u64, ops: u64, bytes: Vec<u8>) -> Self {
        Self { number, ops, requests: VecDeque::from([Outgoing { bytes, kind: 0 }]) }
    }
}

/// The answer to the last request of a job, to be checked after the run.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// The job's number.
    pub number: u64,
    /// The body.
    pub body: Vec<u8>,
}

/// Selects the jobs of a load whose answers are kept and checked after the run: the first, so that a short or slow
/// load is checked, too, and one in so many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sampling {
    first: u64,
    every: u64,
}

impl Sampling {
    /// A selection among jobs with consecutive numbers from `first`.
    pub(crate) fn new(first: u64, every: u64) -> Self {
        Self { first, every }
    }

    /// The selection that [`Prepared`] makes.
    pub(crate) fn of_prepared(first: u64) -> Self {
        Self::new(first, SAMPLE_EVERY)
    }

    /// Returns whether the answers of a job are kept.
    pub(crate) fn includes(self, number: u64) -> bool {
        number == self.first || number.is_multiple_of(self.every)
    }
}

/// Sends jobs that were prepared in advance; every answer must have the same status, 200 unless another is expected.
#[derive(Debug)]
pub(crate) struct Prepared {
    jobs: VecDeque<Job>,
    under_way: Vec<Option<Job>>,
    status: u16,
    sampling: Sampling,
    /// Answers to be checked.
    pub samples: Vec<Sample>,
}

impl Prepared {
    /// Divides jobs among threads, each with up to `clients` connections.
    pub(crate) fn share(jobs: Vec<Job>, threads: usize, clients: usize) -> Vec<Self> {
        let sampling = Sampling::of_prepared(jobs.first().map_or(0, |job| job.number));
        let mut scripts: Vec<Self> = (0..threads)
            .map(|_| Self {
                jobs: VecDeque::new(),
                under_way: std::iter::repeat_with(|| None).take(clients).collect(),
                status: 200,
                sampling,
                samples: Vec::new(),
            })
            .collect();
        for (index, job) in jobs.into_iter().enumerate() {
            scripts[index % threads].jobs.push_back(job);
        }
        scripts
    }

    /// Expects another status.
    pub(crate) fn expecting(self, status: u16) -> Self {
        Self { status, ..self }
    }
}

/// Why an answer does not count.
pub(crate) fn refusal(status: u16, body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct Code {
        code: u32,
    }
    match serde_json::from_slice::<Code>(body) {
        Ok(Code { code }) => format!("HTTP {status}, code {code}"),
        Err(_) => format!("HTTP {status}"),
    }
}

impl Script for Prepared {
    fn begin(&mut self, slot: usize) -> Option<Outgoing> {
        let mut job = self.jobs.pop_front()?;
        let first = job.requests.pop_front();
        self.under_way[slot] = Some(job);
        first
    }

    fn answer(&mut self, slot: usize, status: u16, body: &[u8]) -> (u64, Next) {
        if status != self.status {
            return (0, Next::Failed(refusal(status, body)));
        }
        let job = self.under_way[slot].as_mut().expect("an answer belongs to a job");
        if let Some(next) = job.requests.pop_front() {
            return (1, Next::Send(next));
        }
        if self.sampling.includes(job.number) && self.samples.len() < SAMPLES_MAX {
            self.samples.push(Sample { number: job.number, body: body.to_vec() });
        }
        (job.ops, Next::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_shared_and_sampled() {
        let outgoing = |text: &str| Outgoing { bytes: text.into(), kind: 0 };
        let jobs: Vec<Job> = (0..5)
            .map(|number| Job {
                number: (number + 1) * SAMPLE_EVERY / 2,
                ops: 3,
                requests: [outgoing("a"), outgoing("b")].into(),
            })
            .collect();
        let mut scripts = Prepared::share(jobs, 2, 4);
        let mut ops = 0;
        for script in &mut scripts {
            while let Some(first) = script.begin(1) {
                assert_eq!(first.bytes, b"a");
                assert_eq!(script.answer(1, 200, b"x"), (1, Next::Send(outgoing("b"))));
                ops += script.answer(1, 200, b"y").0;
            }
        }
        assert_eq!(ops, 15);
        let mut sampled: Vec<u64> =
            scripts.iter().flat_map(|script| &script.samples).map(|sample| sample.number).collect();
        sampled.sort_unstable();
        assert_eq!(sampled, [SAMPLE_EVERY / 2, SAMPLE_EVERY, 2 * SAMPLE_EVERY]);
    }

    #[test]
    fn refusals_name_their_code() {
        let mut script = Prepared::share(vec![Job::single(0, 1, Vec::new())], 1, 1).remove(0);
        script.begin(0);
        let (ops, next) = script.answer(0, 409, b"{\"code\": 1003}");
        assert_eq!((ops, next), (0, Next::Failed("HTTP 409, code 1003".into())));
        assert_eq!(refusal(502, b"<html>"), "HTTP 502");
    }
}
