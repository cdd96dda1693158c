//! The campaign's results, by service.

use std::sync::Mutex;
use std::time::Instant;

use serde_json::json;

use crate::kills::kill_point::KillReport;

/// Counts of one service.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    cycles: u64,
    early: u64,
    in_sync: u64,
    acknowledged: u64,
    repeated: u64,
    lost: u64,
    twice: u64,
    proofs: u64,
}

/// The score of one service.
pub(crate) struct Score {
    service: &'static str,
    target: u64,
    start: Instant,
    counts: Mutex<Counts>,
}

impl Score {
    pub(crate) fn new(service: &'static str, target: u64) -> Self {
        Self { service, target, start: Instant::now(), counts: Mutex::default() }
    }

    fn change(&self, change: impl FnOnce(&mut Counts)) {
        // A campaign that has failed must not hide the scores of the others.
        change(&mut self.counts.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    }

    fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        self.change(|now| counts = *now);
        counts
    }

    /// The number of kills still to be made.
    pub(crate) fn left(&self) -> u64 {
        self.target.saturating_sub(self.counts().cycles)
    }

    /// Returns whether all planned kills were made.
    pub(crate) fn is_complete(&self) -> bool {
        self.left() == 0
    }

    pub(crate) fn add_kill(&self, report: KillReport) {
        self.change(|counts| {
            counts.cycles += 1;
            counts.early += u64::from(report.is_early);
            counts.in_sync += u64::from(report.is_in_sync);
        });
    }

    /// Records operations acknowledged under load.
    pub(crate) fn acknowledged(&self, count: u64) {
        self.change(|counts| counts.acknowledged += count);
    }

    /// Records acknowledged operations that were looked for and repeated after a kill, and the problems
    /// found.
    ///
    /// # Panics
    /// When a problem was found.
    pub(crate) fn repeated(&self, count: u64, problems: &[String]) {
        let twice = problems.iter().filter(|problem| problem.contains("twice")).count() as u64;
        self.change(|counts| {
            counts.repeated += count;
            counts.twice += twice;
            counts.lost += problems.len() as u64 - twice;
        });
        let first = &problems[..problems.len().min(20)];
        assert!(problems.is_empty(), "{}: {} problems, the first: {first:#?}", self.service, problems.len());
    }

    /// Records a complete proof, and the problems found.
    ///
    /// # Panics
    /// When a problem was found.
    pub(crate) fn proven(&self, problems: &[String]) {
        self.change(|counts| counts.proofs += 1);
        self.repeated(0, problems);
    }

    /// A line of progress.
    pub(crate) fn progress(&self) -> String {
        let Counts { cycles, repeated, lost, twice, .. } = self.counts();
        let Self { service, target, .. } = self;
        format!("{service} {cycles}/{target} kills, {repeated} repeated, {lost} lost, {twice} twice")
    }

    /// A line of JSON.
    pub(crate) fn json(&self) -> String {
        let Counts { cycles, early, in_sync, acknowledged, repeated, lost, twice, proofs } = self.counts();
        json!({
            "service": self.service,
            "cycles": cycles,
            "killed_before_first_answer": early,
            "killed_in_sync": in_sync,
            "acknowledged": acknowledged,
            "acknowledged_repeated": repeated,
            "lost": lost,
            "twice": twice,
            "full_proofs": proofs,
            "seconds": self.start.elapsed().as_secs(),
        })
        .to_string()
    }
}

/// The table of all services.
pub(super) fn table(scores: &[&Score]) -> String {
    let mut rows = vec![
        [
            "service",
            "cycles",
            "before 1st answer",
            "in a sync",
            "acknowledged",
            "repeated",
            "lost",
            "twice",
            "proofs",
        ]
        .map(str::to_owned),
    ];
    let row = |name: &str, counts: Counts| {
        let Counts { cycles, early, in_sync, acknowledged, repeated, lost, twice, proofs } = counts;
        let numbers = [cycles, early, in_sync, acknowledged, repeated, lost, twice, proofs];
        let mut cells = numbers.iter().map(u64::to_string);
        std::array::from_fn(|place| match place {
            0 => name.to_owned(),
            _ => cells.next().unwrap_or_default(),
        })
    };
    let mut sum = Counts::default();
    for score in scores {
        let counts = score.counts();
        rows.push(row(score.service, counts));
        sum.cycles += counts.cycles;
        sum.early += counts.early;
        sum.in_sync += counts.in_sync;
        sum.acknowledged += counts.acknowledged;
        sum.repeated += counts.repeated;
        sum.lost += counts.lost;
        sum.twice += counts.twice;
        sum.proofs += counts.proofs;
    }
    rows.push(row("all", sum));
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or_default();
    let widths: [usize; 9] = std::array::from_fn(width);
    let line = |row: &[String; 9]| {
        let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ")
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}
