//! Throughputs and costs in documents that are not of a kept result.

/// A text with a figure that no result stands behind, and the reason why it may be there.
pub(super) struct Other {
    /// The document, from the project's root.
    pub(super) document: &'static str,
    /// Its words, as one line.
    pub(super) text: &'static str,
    pub(super) reason: &'static str,
}

const fn other(document: &'static str, text: &'static str, reason: &'static str) -> Other {
    Other { document, text, reason }
}

const DEMAND: &str = "what is asked for, not measured";
const GOAL: &str = "a goal, not measured";
const LIMIT: &str = "a limit that the program sets";
const OUTPUT: &str = "an example of a command's output";
const SIZE: &str = "the size of a record, from its layout";

/// All of them. Measurements do not belong here, but below `docs/results`; figures of other systems into its `field.json`.
pub(super) const OTHERS: [Other; 17] = [
    other("README.md", "about 100,000 payments a second", GOAL),
    other("docs/cost.md", "100,000 payments of three coins a second", DEMAND),
    other("docs/doctor.md", "0 transactions/s, 0 pages in 2.1 s (none read), 0 bytes/s", OUTPUT),
    other("docs/doctor.md", "0 bytes/s written", OUTPUT),
    other("docs/doctor.md", "69 µs of 200 syncs", OUTPUT),
    other("docs/doctor.md", "thousand times slower", OUTPUT),
    other("docs/internals/feed.md", "8 bytes for each of its rows", SIZE),
    other("docs/internals/outside.md", "(200, then 20 a second) and client (40, then 4 a second)", LIMIT),
    other("docs/internals/outside.md", "64 bits); one a second", LIMIT),
    other("docs/limits.md", "about 400 bytes a deposit", SIZE),
    other("docs/limits.md", "about 300 bytes a coin", SIZE),
    other("docs/limits.md", "at 13 MB/s", LIMIT),
    other("docs/merchant.md", "200, then 20 a second; each client 40, then 4 a second", LIMIT),
    other("docs/operator.md", "about 2 bytes for each older row", SIZE),
    other("docs/operator.md", "some 100 bytes for each row", SIZE),
    other("docs/reliability.md", "600 s of processor time each", "the length of a test"),
    other("docs/reliability.md", "at least 0.8 of its rate", GOAL),
];
