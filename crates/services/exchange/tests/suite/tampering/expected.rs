//! The check that finds each change, from `rules.txt`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::Found;

/// The check that finds a change.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum By {
    /// This rule, in the rows alone; or one of these, with `|` between them, if it depends on the value that was put in.
    Rule(&'static str),
    /// Only the comparison with an earlier copy, by this rule.
    Comparison(&'static str),
    Nothing,
}

impl By {
    /// Returns whether this is what was found. If the rows alone told it, a reason why only a comparison does would be
    /// wrong.
    pub(super) fn fits(&self, found: &Found) -> bool {
        match self {
            Self::Rule(rules) => rules.split('|').any(|rule| found.alone.contains(rule)),
            Self::Comparison(rule) => found.alone.is_empty() && found.compared.contains(rule),
            Self::Nothing => *found == Found::default(),
        }
    }
}

/// By table and change. Several lines are for rows of several kinds.
pub(super) static EXPECTED: LazyLock<BTreeMap<(&'static str, &'static str), Vec<By>>> = LazyLock::new(|| {
    let mut all: BTreeMap<_, Vec<By>> = BTreeMap::new();
    for line in include_str!("rules.txt").lines() {
        let (fields, reason) = line.split_once('#').unwrap_or((line, ""));
        let words: Vec<&str> = fields.split_whitespace().collect();
        let (table, what, by) = match words.as_slice() {
            [] => continue,
            [table, what, "nothing"] => (*table, *what, By::Nothing),
            [table, what, "compared", rule] => (*table, *what, By::Comparison(rule)),
            [table, what, rule] => (*table, *what, By::Rule(rule)),
            _ => panic!("a line of another form: {line}"),
        };
        let needs_reason = !matches!(by, By::Rule(_));
        assert!(!needs_reason || !reason.trim().is_empty(), "without a reason: {line}");
        let list = all.entry((table, what)).or_default();
        assert!(!list.contains(&by), "twice: {line}");
        list.push(by);
    }
    all
});
