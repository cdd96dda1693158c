//! Pure rules: facts → findings.
//!
//! | module | what |
//! |---|---|
//! | `citus` | what commits over several nodes need |
//! | `danger` | settings and states that lose data |
//! | `settings` | settings against machine and load |
//! | `caches` | cache hit ratios |
//! | `tables` | dead rows, vacuum, statistics, wraparound, whole-table reads, HOT |
//! | `indexes` | unused, redundant, invalid |
//! | `sessions` | long and idle transactions, lock waits, connections and their memory |
//! | `stream` | write-ahead log, checkpoints, standbys, slots, archive, prepared transactions |
//! | `statements` | slow statements |
//! | `batzen` | pruning of Batzen's statements, versions, writers, deadlines |
//!
//! A rule reports nothing without facts, and one sentence if everything is fine.

pub(crate) mod batzen;
pub(crate) mod caches;
pub(crate) mod citus;
pub(crate) mod danger;
pub(crate) mod indexes;
pub(crate) mod sessions;
pub(crate) mod settings;
pub(crate) mod statements;
pub(crate) mod stream;
pub(crate) mod tables;

use serde::{Deserialize, Serialize};

use crate::facts::Facts;
use crate::tuning::Advice;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Checked, and fine.
    #[default]
    Ok,
    /// Could be improved.
    Notice,
    /// Costs much now or soon.
    Warning,
    /// Data or service is in danger.
    Critical,
}

impl Severity {
    /// The exit code of the program: 0 none or notices, 1 warnings, 2 critical.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Ok | Self::Notice => 0,
            Self::Warning => 1,
            Self::Critical => 2,
        }
    }

    /// In capitals, for people.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Notice => "NOTICE",
            Self::Warning => "WARNING",
            Self::Critical => "CRITICAL",
        }
    }
}

/// A finding of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The rule's name, for programs. Does not change between versions.
    pub rule: String,
    /// Its severity.
    pub severity: Severity,
    /// The problem, in one sentence.
    pub title: String,
    /// The facts.
    pub measured: String,
    /// Why it matters.
    pub(crate) why: String,
    /// The commands to type.
    pub remedy: Vec<String>,
}

impl Finding {
    /// A finding; reason and remedy are added by [`Finding::because`] and [`Finding::type_this`].
    pub(crate) fn new(
        rule: &str,
        severity: Severity,
        title: impl Into<String>,
        measured: impl Into<String>,
    ) -> Self {
        Self {
            rule: rule.to_owned(),
            severity,
            title: title.into(),
            measured: measured.into(),
            ..Self::default()
        }
    }

    /// A passed check.
    pub(crate) fn ok(rule: &str, title: impl Into<String>, measured: impl Into<String>) -> Self {
        Self::new(rule, Severity::Ok, title, measured)
    }

    /// Why it matters.
    #[must_use]
    pub(crate) fn because(mut self, why: impl Into<String>) -> Self {
        self.why = why.into();
        self
    }

    #[must_use]
    pub(crate) fn type_this(mut self, line: impl Into<String>) -> Self {
        self.remedy.push(line.into());
        self
    }
}

/// The thresholds.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Seconds after which a transaction counts as long, and an idle one as forgotten.
    pub long: f64,
    /// Seconds that a wait for a lock may take.
    pub lock_wait: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { long: 60.0, lock_wait: 5.0 }
    }
}

/// Applies every rule. Worst first; within a severity in the order of the rules.
pub(crate) fn find(facts: &Facts, advice: &[Advice], limits: &Limits) -> Vec<Finding> {
    let mut found = Vec::new();
    danger::find(facts, &mut found);
    sessions::find(facts, limits, &mut found);
    caches::find(facts, &mut found);
    settings::find(facts, advice, &mut found);
    tables::find(facts, &mut found);
    indexes::find(facts, &mut found);
    stream::find(facts, &mut found);
    statements::find(facts, &mut found);
    batzen::find(facts, &mut found);
    citus::find(facts, &mut found);
    found.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    found
}

/// The command that changes a server setting permanently.
pub(crate) fn set(facts: &Facts, name: &str, value: &str) -> String {
    let is_word = value.starts_with(|first: char| first.is_ascii_alphabetic())
        && value.chars().all(|one| one.is_ascii_alphanumeric() || one == '_');
    let is_plain = is_word || value.parse::<f64>().is_ok();
    let value = if is_plain { value.to_owned() } else { format!("'{value}'") };
    let is_restart = facts.settings.0.get(name).is_some_and(|setting| setting.context == "postmaster");
    let then = if is_restart { "   -- then restart the server" } else { " SELECT pg_reload_conf();" };
    format!("ALTER SYSTEM SET {name} = {value};{then}")
}

#[cfg(test)]
pub(crate) mod testing {
    //! Made-up facts.

    use super::{Finding, Limits, Severity};
    use crate::facts::{Facts, Setting, Settings};

    /// The findings without passed checks, as `rule severity`.
    pub(crate) fn verdicts(facts: &Facts) -> Vec<(String, Severity)> {
        let advice = crate::tuning::advise(facts);
        super::find(facts, &advice, &Limits::default())
            .into_iter()
            .filter(|finding| finding.severity > Severity::Ok)
            .map(|finding| (finding.rule, finding.severity))
            .collect()
    }

    /// The findings of one rule.
    pub(crate) fn verdict(facts: &Facts, rule: &str) -> Option<Finding> {
        let advice = crate::tuning::advise(facts);
        super::find(facts, &advice, &Limits::default()).into_iter().find(|finding| finding.rule == rule)
    }

    /// Settings: name, value, unit, context.
    pub(crate) fn settings(list: &[(&str, &str, &str, &str)]) -> Settings {
        let one = |&(name, value, unit, context): &(&str, &str, &str, &str)| {
            let setting = Setting {
                setting: value.to_owned(),
                unit: (!unit.is_empty()).then(|| unit.to_owned()),
                context: context.to_owned(),
                ..Setting::default()
            };
            (name.to_owned(), setting)
        };
        Settings(list.iter().map(one).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{settings, verdicts};
    use super::*;

    #[test]
    fn no_facts_give_no_findings() {
        assert_eq!(verdicts(&Facts::default()), []);
    }

    #[test]
    fn exit_code_follows_the_worst_severity() {
        let codes =
            [Severity::Ok, Severity::Notice, Severity::Warning, Severity::Critical].map(Severity::exit_code);
        assert_eq!(codes, [0, 0, 1, 2]);
        assert!(Severity::Critical > Severity::Warning);
    }

    #[test]
    fn suggested_commands_are_valid_sql() {
        let facts = Facts {
            settings: settings(&[("shared_buffers", "1", "8kB", "postmaster"), ("jit", "on", "", "user")]),
            ..Facts::default()
        };
        assert_eq!(
            set(&facts, "shared_buffers", "4GB"),
            "ALTER SYSTEM SET shared_buffers = '4GB';   -- then restart the server"
        );
        assert_eq!(set(&facts, "jit", "off"), "ALTER SYSTEM SET jit = off; SELECT pg_reload_conf();");
        assert_eq!(set(&facts, "x", "1.1"), "ALTER SYSTEM SET x = 1.1; SELECT pg_reload_conf();");
    }
}
