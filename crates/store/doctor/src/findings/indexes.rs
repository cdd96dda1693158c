//! Indexes: unused, redundant, invalid.

use std::collections::BTreeMap;

use super::{Finding, Severity};
use crate::facts::{Facts, Index, Table};
use crate::words;

/// Smaller indexes cost too little to report.
const LARGE: u64 = 8 << 20;

/// An index only counts as unused if the statistics are this old, or its table was read this often through
/// other indexes.
const LONG_ENOUGH: f64 = 3_600.0;
const BUSY_ENOUGH: u64 = 10_000;

/// Applies the rules.
pub(crate) fn find(facts: &Facts, found: &mut Vec<Finding>) {
    if facts.indexes.is_empty() {
        return;
    }
    let before = found.len();
    invalid(&facts.indexes, found);
    doubled(&facts.indexes, found);
    unused(facts, found);
    if found.len() == before {
        let measured = words::several(facts.indexes.len(), "index");
        found.push(Finding::ok("indexes", "No index is broken, doubled, or large and unused", measured));
    }
}

fn invalid(indexes: &[Index], found: &mut Vec<Finding>) {
    for index in indexes.iter().filter(|index| !index.is_valid) {
        found.push(
            Finding::new(
                "invalid_index",
                Severity::Warning,
                format!("Index {} cannot be used", index.name),
                format!("on {}, {}, not valid", index.table, words::bytes(index.bytes)),
            )
            .because("An interrupted CREATE INDEX CONCURRENTLY leaves it behind: every write keeps it, no read uses it.")
            .type_this(format!("REINDEX INDEX CONCURRENTLY {};   -- or DROP INDEX CONCURRENTLY, and create it again", index.sql())),
        );
    }
}

/// Groups the indexes of one table by content. Those of partitions follow their root.
fn doubled(indexes: &[Index], found: &mut Vec<Finding>) {
    let mut tables: BTreeMap<(&str, &str), Vec<&Index>> = BTreeMap::new();
    for index in indexes.iter().filter(|index| index.is_valid && index.root.is_none()) {
        tables.entry((&index.schema, &index.table)).or_default().push(index);
    }
    for ((_, table), mut list) in tables {
        // Sort the redundant one last: keep what a constraint needs, and of two equals the more used.
        list.sort_by_key(|index| {
            (!index.is_needed, !index.is_unique, std::cmp::Reverse(index.scans), index.name.clone())
        });
        for (place, index) in list.iter().enumerate() {
            if index.is_needed {
                continue;
            }
            let Some(other) = list.iter().enumerate().find(|(at, other)| covers(other, index, *at < place))
            else {
                continue;
            };
            let other = other.1;
            let is_same = other.columns == index.columns && other.included == index.included;
            let how = if is_same { "holds the same as" } else { "is the beginning of" };
            found.push(
                Finding::new(
                    "doubled_index",
                    if is_same { Severity::Warning } else { Severity::Notice },
                    format!("Index {} {how} {}", index.name, other.name),
                    format!("on {table}, {}; {}", words::bytes(index.bytes), index.definition),
                )
                .because("Every write of the table keeps both, and both take room in the cache.")
                .type_this(format!("DROP INDEX CONCURRENTLY {};", index.sql())),
            );
        }
    }
}

/// Returns whether `other` supports every query that `index` supports.
fn covers(other: &Index, index: &Index, is_before: bool) -> bool {
    if std::ptr::eq(other, index) || other.method != index.method || other.rest != index.rest {
        return false;
    }
    let is_same = other.columns == index.columns && other.included == index.included;
    if is_same {
        // Of equals only the later one may be dropped, and a unique index must be kept.
        return is_before && (other.is_unique || !index.is_unique);
    }
    // A unique index is a constraint, and an expression's place in `rest` cannot be compared with a longer
    // list.
    index.method == "btree"
        && !index.is_unique
        && index.rest.is_empty()
        && index.included.is_empty()
        && other.columns.len() > index.columns.len()
        && other.columns.starts_with(&index.columns)
}

fn unused(facts: &Facts, found: &mut Vec<Finding>) {
    let age = facts.statistics_age();
    let mut groups: BTreeMap<(&str, &str), Vec<&Index>> = BTreeMap::new();
    for index in facts.indexes.iter().filter(|index| !index.is_unique && index.is_valid) {
        groups.entry((&index.schema, index.root.as_deref().unwrap_or(&index.name))).or_default().push(index);
    }
    for ((schema, name), parts) in groups {
        let bytes: u64 = parts.iter().map(|index| index.bytes).sum();
        let is_needed = parts.iter().any(|index| index.is_needed || index.scans > 0);
        let is_on = |table: &&Table| {
            parts.iter().any(|index| index.table == table.name && index.schema == table.schema)
        };
        let reads: u64 = facts.tables.iter().filter(is_on).map(|table| table.index_scans).sum();
        if is_needed || bytes < LARGE || (age < LONG_ENOUGH && reads < BUSY_ENOUGH) {
            continue;
        }
        let is_partitioned = parts[0].root.is_some();
        let named = Index { schema: schema.to_owned(), name: name.to_owned(), ..Index::default() };
        // Indexes of partitions are dropped with the partitioned index, which is not possible concurrently.
        let how = if is_partitioned { "DROP INDEX" } else { "DROP INDEX CONCURRENTLY" };
        found.push(
            Finding::new(
                "unused_index",
                Severity::Notice,
                format!("Index {name} is not used"),
                format!("{} on {}, no scan in {}; {}", words::bytes(bytes), parts[0].table, words::span(age), parts[0].definition),
            )
            .because("Every insert pays for it, updates of its columns cannot be HOT, and it takes room in the cache. Ask the standbys first: each counts for itself.")
            .type_this(format!("{how} {};", named.sql())),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{verdict, verdicts};
    use crate::facts::{Facts, Index, Server, Table};
    use crate::findings::Severity;

    fn index(name: &str, columns: &[&str]) -> Index {
        Index {
            schema: "public".to_owned(),
            table: "t".to_owned(),
            name: name.to_owned(),
            bytes: 100 << 20,
            scans: 5,
            is_valid: true,
            method: "btree".to_owned(),
            columns: columns.iter().map(|&column| column.to_owned()).collect(),
            ..Index::default()
        }
    }

    fn with(indexes: Vec<Index>) -> Facts {
        Facts { server: Server { uptime: 7200.0, ..Server::default() }, indexes, ..Facts::default() }
    }

    #[test]
    fn one_of_two_equal_indexes_is_redundant_but_never_the_primary_key() {
        let key = Index { is_unique: true, is_needed: true, scans: 0, ..index("z_pkey", &["1"]) };
        let finding = verdict(&with(vec![index("a", &["1"]), key.clone()]), "doubled_index").unwrap();
        assert_eq!(finding.remedy, ["DROP INDEX CONCURRENTLY public.a;"]);
        assert_eq!(
            verdicts(&with(vec![index("a", &["1"]), index("b", &["1"])])).len(),
            1,
            "one of them only"
        );
        let unique = Index { is_unique: true, ..index("u", &["1"]) };
        let finding = verdict(&with(vec![index("a", &["1"]), unique]), "doubled_index").unwrap();
        assert!(finding.remedy[0].contains("public.a;"), "uniqueness is a promise: {finding:?}");
        let other = Index { method: "hash".to_owned(), ..index("h", &["1"]) };
        assert_eq!(verdicts(&with(vec![index("a", &["1"]), other])), []);
        let partial = Index { rest: "WHERE x".to_owned(), ..index("p", &["1"]) };
        assert_eq!(verdicts(&with(vec![index("a", &["1"]), partial])), []);
    }

    #[test]
    fn prefix_of_another_index_is_a_notice() {
        let finding =
            verdict(&with(vec![index("a", &["1"]), index("b", &["1", "2"])]), "doubled_index").unwrap();
        assert_eq!(
            (finding.severity, finding.title.as_str()),
            (Severity::Notice, "Index a is the beginning of b")
        );
        assert_eq!(verdicts(&with(vec![index("a", &["2"]), index("b", &["1", "2"])])), []);
        let unique = Index { is_unique: true, ..index("a", &["1"]) };
        assert_eq!(verdicts(&with(vec![unique, index("b", &["1", "2"])])), []);
    }

    #[test]
    fn unused_index_is_reported_after_enough_time() {
        let idle = Index { scans: 0, ..index("a", &["1"]) };
        assert_eq!(verdict(&with(vec![idle.clone()]), "unused_index").unwrap().severity, Severity::Notice);
        let mut young = with(vec![idle.clone()]);
        young.server.uptime = 60.0;
        assert_eq!(verdicts(&young), []);
        let (schema, name) = ("public".to_owned(), "t".to_owned());
        young.tables = vec![Table { schema, name, index_scans: 20_000, ..Table::default() }];
        assert_eq!(verdicts(&young).len(), 1, "young, but busy");
        let small = Index { bytes: 8192, ..idle.clone() };
        assert_eq!(verdicts(&with(vec![small])), []);
        let unique = Index { is_unique: true, ..idle.clone() };
        assert_eq!(verdicts(&with(vec![unique])), []);
    }

    #[test]
    fn partitions_of_one_index_count_together() {
        let part = |name: &str, scans| Index { root: Some("all".to_owned()), scans, ..index(name, &["1"]) };
        assert_eq!(verdicts(&with(vec![part("p0", 0), part("p1", 7)])), []);
        let finding = verdict(&with(vec![part("p0", 0), part("p1", 0)]), "unused_index").unwrap();
        assert_eq!(finding.remedy, ["DROP INDEX public.all;"]);
        assert!(finding.measured.contains("200 MB"), "{finding:?}");
    }

    #[test]
    fn invalid_index_is_a_warning() {
        let broken = Index { is_valid: false, ..index("a", &["1"]) };
        assert_eq!(verdict(&with(vec![broken]), "invalid_index").unwrap().severity, Severity::Warning);
    }
}
