//! Slow statements.

use super::{Finding, Severity};
use crate::facts::{Facts, Statement};
use crate::words;

/// A statement that runs rarely (building an index, loading data) is no hot path.
const OFTEN: u64 = 20;

/// Seconds.
const SLOW: f64 = 0.1;

/// Applies the rules.
pub(crate) fn find(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(statements) = &facts.statements else { return };
    let slow: Vec<&Statement> = statements
        .iter()
        .filter(|statement| statement.calls >= OFTEN && statement.mean >= SLOW && statement.share >= 0.05)
        .collect();
    for statement in slow.iter().take(5) {
        let looked = statement.hit + statement.read;
        found.push(
            Finding::new(
                "slow_statement",
                Severity::Notice,
                format!("A statement takes {} on average", words::span(statement.mean)),
                format!(
                    "{} calls, {} of all time, {} pages each: {}",
                    words::count(statement.calls),
                    words::share(statement.share),
                    words::count(looked / statement.calls.max(1)),
                    words::statement(&statement.query, 160)
                ),
            )
            .because("It is executed often, so its time is felt.")
            .type_this("EXPLAIN (ANALYZE, BUFFERS) …;   -- with real parameters: a Seq Scan or rows removed by a filter ask for an index"),
        );
    }
    if slow.is_empty() {
        found.push(Finding::ok(
            "slow_statement",
            "No frequent statement is slow",
            words::several(statements.len(), "statement"),
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{verdict, verdicts};
    use super::*;

    #[test]
    fn only_frequent_slow_statements_are_reported() {
        let statement = Statement { calls: 100, mean: 0.5, share: 0.5, ..Statement::default() };
        let with = |statement: Statement| Facts { statements: Some(vec![statement]), ..Facts::default() };
        assert_eq!(verdict(&with(statement.clone()), "slow_statement").unwrap().severity, Severity::Notice);
        assert_eq!(verdicts(&with(Statement { calls: 1, ..statement.clone() })), []);
        assert_eq!(verdicts(&with(Statement { share: 0.01, ..statement.clone() })), []);
        assert_eq!(verdicts(&with(Statement { mean: 0.01, ..statement })), []);
        assert_eq!(verdicts(&Facts { statements: None, ..Facts::default() }), []);
    }
}
