//! What the customers know for certain: every request they sent, and the answer, if it came.

use std::collections::BTreeMap;
use std::sync::Mutex;

use serde_json::Value;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    CsrWithdraw,
    Withdraw,
    BatchWithdraw,
    Deposit,
    BatchDeposit,
    CsrMelt,
    Melt,
    Reveal,
    Refund,
}

impl Kind {
    pub const ALL: [Self; 9] = [
        Self::CsrWithdraw,
        Self::Withdraw,
        Self::BatchWithdraw,
        Self::Deposit,
        Self::BatchDeposit,
        Self::CsrMelt,
        Self::Melt,
        Self::Reveal,
        Self::Refund,
    ];
}

/// A request as it went over the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub kind: Kind,
    /// Below the exchange's base URL.
    pub path: String,
    pub body: Vec<u8>,
}

/// The end of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub status: u16,
    pub body: Value,
}

/// A request and all that became of it.
#[derive(Clone, Debug)]
pub struct Entry<E> {
    pub request: Request,
    /// What it does to money once it is acknowledged.
    pub effect: E,
    /// How often it was sent without an answer: it may or may not have happened.
    pub doubts: u32,
    pub answer: Option<Answer>,
}

/// The customers' log. Entries are never removed, and an answer never changes.
pub struct Log<E> {
    entries: Mutex<Vec<Entry<E>>>,
}

/// What the log holds of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Answered with success.
    pub acknowledged: u64,
    /// Sent at least once without an answer.
    pub ambiguous: u64,
}

impl<E: Clone> Log<E> {
    pub fn new() -> Self {
        Self { entries: Mutex::new(Vec::new()) }
    }

    /// Notes a request before it is sent for the first time.
    pub fn open(&self, request: Request, effect: E) -> usize {
        let mut entries = self.entries.lock().unwrap();
        entries.push(Entry { request, effect, doubts: 0, answer: None });
        entries.len() - 1
    }

    /// Notes that no answer came.
    pub fn doubt(&self, number: usize) {
        self.entries.lock().unwrap()[number].doubts += 1;
    }

    /// Notes the answer.
    ///
    /// # Panics
    /// If there is one already.
    pub fn close(&self, number: usize, answer: Answer) {
        let entry = &mut self.entries.lock().unwrap()[number];
        assert!(entry.answer.is_none(), "{:?} was answered twice", entry.request.kind);
        entry.answer = Some(answer);
    }

    /// A copy of all entries.
    pub fn entries(&self) -> Vec<Entry<E>> {
        self.entries.lock().unwrap().clone()
    }

    pub fn acknowledged(&self) -> u64 {
        self.counts().values().map(|count| count.acknowledged).sum()
    }

    pub fn counts(&self) -> BTreeMap<Kind, Count> {
        let mut counts = BTreeMap::<Kind, Count>::new();
        for entry in self.entries.lock().unwrap().iter() {
            let count = counts.entry(entry.request.kind).or_default();
            count.acknowledged += u64::from(entry.is_acknowledged());
            count.ambiguous += u64::from(entry.doubts > 0);
        }
        counts
    }
}

impl<E> Entry<E> {
    pub fn is_acknowledged(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| answer.status == 200)
    }

    /// Whether it may have happened, as far as its sender knows.
    pub fn is_open(&self) -> bool {
        self.answer.is_none()
    }
}

#[test]
fn crash_log_tells_acknowledged_from_ambiguous() {
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
    assert_eq!(log.counts()[&Kind::Withdraw], Count { acknowledged: 2, ambiguous: 1 });
    assert_eq!(log.counts()[&Kind::Melt], Count { acknowledged: 0, ambiguous: 1 });
    let open: Vec<bool> = log.entries().iter().map(Entry::is_open).collect();
    assert_eq!(open, [false, false, true, false]);
    assert_eq!(log.entries()[late].doubts, 2);
}
