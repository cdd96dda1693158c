//! The customers' knowledge: every request they sent, and the answer if it came.

use std::collections::BTreeMap;
use std::sync::Mutex;

use serde_json::Value;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    CsrWithdraw,
    Withdraw,
    BatchWithdraw,
    Deposit,
    BatchDeposit,
    CsrMelt,
    Melt,
    Reveal,
    Refund,
    PurseCreate,
    PurseMerge,
}

impl Kind {
    pub(crate) const ALL: [Self; 11] = [
        Self::CsrWithdraw,
        Self::Withdraw,
        Self::BatchWithdraw,
        Self::Deposit,
        Self::BatchDeposit,
        Self::CsrMelt,
        Self::Melt,
        Self::Reveal,
        Self::Refund,
        Self::PurseCreate,
        Self::PurseMerge,
    ];
}

/// A request as sent over the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub kind: Kind,
    /// The path below the exchange's base URL.
    pub path: String,
    pub body: Vec<u8>,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub status: u16,
    pub body: Value,
}

/// A request and its outcome.
#[derive(Clone, Debug)]
pub(crate) struct Entry<E> {
    pub request: Request,
    /// The effect on money once the request is acknowledged.
    pub effect: E,
    /// Number of times that it was sent without an answer, so that its outcome is uncertain.
    pub doubts: u32,
    pub answer: Option<Answer>,
}

/// The customers' log. Entries are never removed, and an answer never changes.
pub(crate) struct Log<E> {
    pages: Mutex<Pages<E>>,
}

struct Pages<E> {
    entries: Vec<Entry<E>>,
    /// Entries in the order in which they were acknowledged.
    acknowledged: Vec<usize>,
}

/// The counts of one kind of request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    /// Answered with success.
    pub acknowledged: u64,
    /// Sent at least once without an answer.
    pub ambiguous: u64,
}

impl<E: Clone> Log<E> {
    pub(crate) fn new() -> Self {
        Self { pages: Mutex::new(Pages { entries: Vec::new(), acknowledged: Vec::new() }) }
    }

    /// Records a request before it is first sent.
    pub(crate) fn open(&self, request: Request, effect: E) -> usize {
        let entries = &mut self.pages.lock().unwrap().entries;
        entries.push(Entry { request, effect, doubts: 0, answer: None });
        entries.len() - 1
    }

    /// Records that no answer came.
    pub(crate) fn doubt(&self, number: usize) {
        self.pages.lock().unwrap().entries[number].doubts += 1;
    }

    /// Records the answer.
    ///
    /// # Panics
    /// If there is one already.
    pub(crate) fn close(&self, number: usize, answer: Answer) {
        let mut pages = self.pages.lock().unwrap();
        let entry = &mut pages.entries[number];
        assert!(entry.answer.is_none(), "{:?} was answered twice", entry.request.kind);
        entry.answer = Some(answer);
        if entry.is_acknowledged() {
            pages.acknowledged.push(number);
        }
    }

    /// A copy of all entries.
    pub(crate) fn entries(&self) -> Vec<Entry<E>> {
        self.pages.lock().unwrap().entries.clone()
    }

    /// Returns the number of requests without an answer yet.
    pub(crate) fn open_count(&self) -> usize {
        self.pages.lock().unwrap().entries.iter().filter(|entry| entry.is_open()).count()
    }

    pub(crate) fn acknowledged(&self) -> u64 {
        self.pages.lock().unwrap().acknowledged.len() as u64
    }

    /// Copies of the entries at these positions in the order of acknowledgement.
    #[allow(dead_code, reason = "not every test looks at entries while the load runs")]
    pub(crate) fn acknowledged_in(&self, places: std::ops::Range<u64>) -> Vec<Entry<E>> {
        let pages = self.pages.lock().unwrap();
        let [from, to] = [places.start, places.end].map(|place| usize::try_from(place).unwrap());
        pages.acknowledged[from..to].iter().map(|number| pages.entries[*number].clone()).collect()
    }

    pub(crate) fn counts(&self) -> BTreeMap<Kind, Count> {
        let mut counts = BTreeMap::<Kind, Count>::new();
        for entry in &self.pages.lock().unwrap().entries {
            let count = counts.entry(entry.request.kind).or_default();
            count.acknowledged += u64::from(entry.is_acknowledged());
            count.ambiguous += u64::from(entry.doubts > 0);
        }
        counts
    }
}

/// The answers with a status of 500 or more: how many there were of each status, and the first.
#[derive(Default)]
pub(crate) struct Failures(Mutex<BTreeMap<u16, (u64, String)>>);

impl Failures {
    /// Counts an answer if it is one of them. Returns whether it is.
    pub(crate) fn is_one(&self, status: u16, text: impl FnOnce() -> String) -> bool {
        if status < 500 {
            return false;
        }
        self.0.lock().unwrap().entry(status).or_insert_with(|| (0, text())).0 += 1;
        true
    }

    /// Returns the number of answers that only asked to come back later, which a service may do.
    ///
    /// # Panics
    /// If there were others.
    pub(crate) fn waits(&self) -> u64 {
        let mut failures = self.0.lock().unwrap().clone();
        let waits = failures.remove(&503).map_or(0, |(count, _)| count);
        assert!(failures.is_empty(), "the exchange failed: {failures:#?}");
        waits
    }
}

#[test]
fn crash_failures_are_told_from_requests_to_wait() {
    let failures = Failures::default();
    let is_one = |status| failures.is_one(status, || "keys: {}".to_owned());
    assert_eq!([200, 404, 429, 503, 503].map(is_one), [false, false, false, true, true]);
    assert_eq!(failures.waits(), 2);
    assert!(is_one(500));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| failures.waits())).is_err());
}

impl<E> Entry<E> {
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| answer.status == 200)
    }

    /// Returns whether it may have been executed, as far as its sender knows.
    pub(crate) fn is_open(&self) -> bool {
        self.answer.is_none()
    }
}

#[test]
fn crash_log_separates_acknowledged_from_ambiguous() {
    let log = Log::new();
    let request = |kind, path: &str| Request { kind, path: path.to_owned(), body: b"{}".to_vec() };
    let sure = log.open(request(Kind::Withdraw, "reserves/X/withdraw"), ());
    let late = log.open(request(Kind::Withdraw, "reserves/Y/withdraw"), ());
    let lost = log.open(request(Kind::Melt, "coins/Z/melt"), ());
    let refused = log.open(request(Kind::Melt, "coins/W/melt"), ());
    let answer = |status| Answer { status, body: Value::Null };
    log.close(sure, answer(200));
    log.doubt(late);
    log.doubt(late);
    log.close(late, answer(200));
    log.doubt(lost);
    log.close(refused, answer(409));
    assert_eq!(log.acknowledged(), 2);
    let path = |entry: &Entry<()>| entry.request.path.clone();
    assert_eq!(log.acknowledged_in(1..2).iter().map(path).collect::<Vec<_>>(), ["reserves/Y/withdraw"]);
    assert_eq!(log.counts()[&Kind::Withdraw], Count { acknowledged: 2, ambiguous: 1 });
    assert_eq!(log.counts()[&Kind::Melt], Count { acknowledged: 0, ambiguous: 1 });
    let open: Vec<bool> = log.entries().iter().map(Entry::is_open).collect();
    assert_eq!(open, [false, false, true, false]);
    assert_eq!(log.open_count(), 1);
    assert_eq!(log.entries()[late].doubts, 2);
}
