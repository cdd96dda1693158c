//! Rules for Batzen's schemas: pruning of statements, versions, writers, deadlines.

use std::cmp::Ordering;

use batzen_postgres::schema::HISTORY;

use super::{Finding, Severity};
use crate::facts::Facts;
use crate::facts::batzen::Service;
use crate::words;

/// A page or two per index level, and the row: a statement for one row that reads more pages has a bad plan.
const MANY_PAGES: u64 = 2_000;

/// Applies the rules.
pub(crate) fn find(facts: &Facts, found: &mut Vec<Finding>) {
    for service in &facts.batzen {
        versions(service, found);
        pruning(service, found);
        deadlines(service, found);
        writers(service, found);
    }
    if !facts.batzen.is_empty() {
        conflicts(facts, found);
        copies(facts, found);
    }
}

fn versions(service: &Service, found: &mut Vec<Finding>) {
    let schema = &service.schema;
    let measured = format!(
        "schema version {}, program {}, {}",
        service.schema_version,
        service.program,
        if service.partitions == 0 {
            "not partitioned".to_owned()
        } else {
            format!("{} partitions", service.partitions)
        }
    );
    if service.here.is_some_and(|here| here != service.cluster_id) {
        found.push(
            Finding::new(
                "batzen_restored",
                Severity::Critical,
                format!("Schema {schema} comes from another cluster and was not prepared for this one"),
                format!("made in cluster {}, this is {}", service.cluster_id, service.here.unwrap_or(0)),
            )
            .because("New rows would get numbers that older rows have: queues would skip them.")
            .type_this("batzen exchange dbinit -c FILE   # raises the numbers, changes nothing else"),
        );
    } else if let Some(finding) = other_version(service) {
        found.push(finding);
    } else {
        found.push(Finding::ok(
            "batzen_schema",
            format!("Schema {schema} is of this program's version"),
            measured,
        ));
    }
}

/// The program's version, as `dbinit` writes it into the schema.
const PROGRAM: &str = env!("CARGO_PKG_VERSION");

/// A schema that another version has created or migrated.
fn other_version(service: &Service) -> Option<Finding> {
    let schema = &service.schema;
    let measured = format!(
        "schema version {}, by program {}; this is program {PROGRAM}, which works with {}",
        service.schema_version, service.program, HISTORY.version
    );
    // The other services prepare their tables when they start.
    let migrate = match schema.as_str() {
        "exchange" => "batzen exchange dbinit -c FILE".to_owned(),
        service => format!("batzen {service} serve …"),
    };
    match service.schema_version.cmp(&i64::from(HISTORY.version)) {
        Ordering::Less => Some(
            Finding::new(
                "batzen_version",
                Severity::Warning,
                format!("Schema {schema} is older than this program"),
                measured,
            )
            .because("This version's services refuse to start on it.")
            .type_this(format!("{migrate}   # when all services of it are stopped")),
        ),
        Ordering::Greater => Some(
            Finding::new(
                "batzen_version",
                Severity::Warning,
                format!("Schema {schema} is newer than this program"),
                measured,
            )
            .because("This version's services refuse to start on it, and what is said of its statements here may be wrong.")
            .type_this(format!("batzen --version   # on every machine: at least {}", service.program)),
        ),
        Ordering::Equal if service.program != PROGRAM => Some(
            Finding::new(
                "batzen_version",
                Severity::Notice,
                format!("Schema {schema} was prepared by another version of the program"),
                measured,
            )
            .because("It fits, but nobody has looked since whether an index or a setting of a table is new.")
            .type_this(format!("{migrate}   # by the newer of the two")),
        ),
        Ordering::Equal => None,
    }
}

fn pruning(service: &Service, found: &mut Vec<Finding>) {
    let before = found.len();
    let schema = &service.schema;
    for one in &service.statements {
        let name = format!("{schema}.{}: {}", one.table, one.what);
        if !one.may_reach_all && one.parts_hit > 1 {
            found.push(
                Finding::new(
                    "batzen_pruning",
                    Severity::Warning,
                    format!("A statement for one shard looks into many ({name})"),
                    format!(
                        "{} of {} partitions, {}",
                        one.parts_hit,
                        one.parts,
                        words::span(one.plan.seconds)
                    ),
                )
                .because(
                    "Throughput with partitions stays that without only while each statement touches one.",
                )
                .type_this(format!("ANALYZE {schema}.{};", one.table))
                .type_this("SHOW enable_partition_pruning;   -- must be on"),
            );
        }
        // A sequential scan of a table of a page or two is right.
        if !one.plan.whole.is_empty() && one.plan.hit + one.plan.read >= 64 {
            let whole: Vec<_> = one.plan.whole.iter().map(String::as_str).collect();
            found.push(
                Finding::new(
                    "batzen_whole_read",
                    Severity::Warning,
                    format!("A hot statement reads tables as a whole ({name})"),
                    format!("{}: {} pages", whole.join(", "), words::count(one.plan.hit + one.plan.read)),
                )
                .because("It grows slower with every row.")
                .type_this("batzen exchange dbinit -c FILE   # makes what is missing: an index was dropped")
                .type_this(format!("ANALYZE {schema}.{};", one.table)),
            );
        } else if one.plan.whole.is_empty() && one.plan.hit + one.plan.read > MANY_PAGES && !one.may_reach_all
        {
            found.push(
                Finding::new(
                    "batzen_many_pages",
                    Severity::Notice,
                    format!("A hot statement looks at many pages for one row ({name})"),
                    format!(
                        "{} pages, {}",
                        words::count(one.plan.hit + one.plan.read),
                        words::span(one.plan.seconds)
                    ),
                )
                .because("An index is bloated, or full of dead rows.")
                .type_this(format!("VACUUM (VERBOSE) {schema}.{};", one.table)),
            );
        }
    }
    if found.len() == before && !service.statements.is_empty() {
        let single = service.statements.iter().filter(|one| !one.may_reach_all).count();
        let measured = format!(
            "{} executed and undone, {single} of them for one shard",
            words::several(service.statements.len(), "statement")
        );
        found.push(Finding::ok(
            "batzen_pruning",
            format!("Each hot statement of {schema} touches its shard's partition and an index"),
            measured,
        ));
    }
}

fn deadlines(service: &Service, found: &mut Vec<Finding>) {
    for part in &service.in_default {
        let rows = if part.rows >= 1_000 {
            "1,000 rows or more".to_owned()
        } else {
            words::several(part.rows as usize, "row")
        };
        found.push(
            Finding::new(
                "batzen_default_part",
                Severity::Notice,
                format!("Deadlines lie outside the days made ahead ({}.{})", service.schema, part.table),
                rows,
            )
            .because("The part for all other days is never dropped as a whole, so it grows. A few rows with far deadlines belong there.")
            .type_this("batzen exchange maintain -c FILE   # makes the days ahead: run it from a timer"),
        );
    }
}

fn writers(service: &Service, found: &mut Vec<Finding>) {
    /// A connection is taken over each time it is lost. Frequent losses mean a problem of the network or the
    /// server.
    const OFTEN: i64 = 100;
    let unwell: Vec<_> = service.writers.iter().filter(|writer| writer.epoch >= OFTEN).collect();
    let nodes: std::collections::BTreeSet<_> =
        service.writers.iter().map(|writer| writer.node.as_str()).collect();
    let commits: i64 = service.writers.iter().map(|writer| writer.batch).sum();
    let measured = format!(
        "{} of {}, {} commits",
        words::several(service.writers.len(), "connection"),
        words::several(nodes.len(), "node"),
        words::count(u64::try_from(commits).unwrap_or(0))
    );
    if let Some(worst) = unwell.iter().max_by_key(|writer| writer.epoch) {
        found.push(
            Finding::new(
                "batzen_writers",
                Severity::Notice,
                format!("A connection of node {} was lost {} times", worst.node, worst.epoch),
                measured,
            )
            .because("Each time a commit in doubt is looked up, and its lane waits.")
            .type_this("look into the server's log and the network between them: who closes connections?"),
        );
    } else if !service.writers.is_empty() {
        found.push(Finding::ok("batzen_writers", format!("Writers of {}", service.schema), measured));
    }
}

/// Serialization failures count as rollbacks; Batzen should have none.
fn conflicts(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(database) = facts.database() else { return };
    let all = database.commits + database.rollbacks;
    let share = database.rollbacks as f64 / all.max(1) as f64;
    let measured = format!(
        "{} rollbacks ({} of all), {} deadlocks",
        words::count(database.rollbacks),
        words::share(share),
        words::count(database.deadlocks)
    );
    if database.deadlocks > 0 || (share > 0.05 && database.rollbacks > 1_000) {
        found.push(
            Finding::new("batzen_conflicts", Severity::Notice, "Transactions meet each other", measured)
                .because("Batzen takes rows in one order and expects neither deadlocks nor serialization failures; a batch that lost a race to another node runs again.")
                .type_this("curl -s http://NODE/metrics | grep -E 'batzen_(postgres|lane)'   # retries and lost races by node"),
        );
    } else {
        found.push(Finding::ok("batzen_conflicts", "Transactions do not meet each other", measured));
    }
}

/// Money should be in more than one place.
fn copies(facts: &Facts, found: &mut Vec<Finding>) {
    if facts.server.in_recovery || facts.settings.0.is_empty() {
        return;
    }
    let archives = facts.settings.text("archive_mode").is_some_and(|mode| mode != "off");
    if facts.stream.standbys.is_empty() && !archives {
        found.push(
            Finding::new(
                "batzen_one_copy",
                Severity::Notice,
                "The money is on one machine only",
                "no standby, archive_mode off",
            )
            .because("If its disk is lost, everything since the last backup is.")
            .type_this("see docs/postgresql.md: a synchronous standby, or pg_receivewal on another machine"),
        );
    }
    if facts.settings.text("data_checksums") == Some("off") {
        found.push(
            Finding::new(
                "batzen_checksums",
                Severity::Notice,
                "Pages have no checksums",
                "data_checksums off",
            )
            .because("Without them a disk that changes data is believed.")
            .type_this("pg_checksums --enable -D DATA_DIRECTORY   # while the server is stopped"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{verdict, verdicts};
    use super::*;
    use crate::facts::batzen::{DefaultPart, Writer};
    use crate::facts::own_statements::Measured;
    use crate::facts::plans::Plan;
    use crate::facts::{Database, Server};

    /// A schema of this program, with the given changes.
    fn with(service: Service) -> Facts {
        let schema_version = i64::from(HISTORY.version);
        of_version(Service {
            schema: "exchange".to_owned(),
            schema_version,
            program: PROGRAM.to_owned(),
            ..service
        })
    }

    fn of_version(service: Service) -> Facts {
        Facts { batzen: vec![service], ..Facts::default() }
    }

    fn executed(parts_hit: usize, may_reach_all: bool, whole: &[&str], pages: u64) -> Facts {
        let plan = Plan {
            hit: pages,
            whole: whole.iter().map(|&name| name.to_owned()).collect(),
            ..Plan::default()
        };
        let one = Measured {
            table: "coins".to_owned(),
            what: "get".to_owned(),
            parts: 8,
            parts_hit,
            may_reach_all,
            plan,
        };
        with(Service { statements: vec![one], ..Service::default() })
    }

    #[test]
    fn statement_for_one_shard_that_touches_two_is_found() {
        assert_eq!(
            verdict(&executed(2, false, &[], 4), "batzen_pruning").unwrap().severity,
            Severity::Warning
        );
        assert_eq!(verdicts(&executed(1, false, &[], 4)), []);
        assert_eq!(verdicts(&executed(8, true, &[], 4)), []);
    }

    #[test]
    fn sequential_scan_of_a_large_table_is_found() {
        assert_eq!(
            verdicts(&executed(1, false, &["coins_p00"], 900)),
            [("batzen_whole_read".to_owned(), Severity::Warning)]
        );
        assert_eq!(verdicts(&executed(1, false, &["coins_p00"], 2)), []);
        assert_eq!(
            verdicts(&executed(1, false, &[], 5_000)),
            [("batzen_many_pages".to_owned(), Severity::Notice)]
        );
    }

    #[test]
    fn schema_of_another_cluster_is_critical() {
        let facts = with(Service { cluster_id: 1, here: Some(2), ..Service::default() });
        assert_eq!(verdicts(&facts), [("batzen_restored".to_owned(), Severity::Critical)]);
        assert_eq!(verdicts(&with(Service { cluster_id: 1, here: Some(1), ..Service::default() })), []);
        assert_eq!(verdicts(&with(Service { cluster_id: 1, here: None, ..Service::default() })), []);
    }

    #[test]
    fn schema_of_another_version_is_reported_with_the_command() {
        let found = |schema: &str, schema_version, program: &str| {
            let (schema, program) = (schema.to_owned(), program.to_owned());
            let facts = of_version(Service { schema, schema_version, program, ..Service::default() });
            verdict(&facts, "batzen_version").map(|finding| (finding.severity, finding.remedy))
        };
        let known = i64::from(HISTORY.version);
        assert_eq!(found("exchange", known, PROGRAM), None);
        let (severity, remedy) = found("exchange", known - 1, PROGRAM).unwrap();
        assert!(
            severity == Severity::Warning && remedy[0].starts_with("batzen exchange dbinit"),
            "{remedy:?}"
        );
        // The others have no dbinit: they migrate when they start.
        let (severity, remedy) = found("bank", known - 1, PROGRAM).unwrap();
        assert!(severity == Severity::Warning && remedy[0].starts_with("batzen bank serve"), "{remedy:?}");
        let (severity, remedy) = found("exchange", known + 1, "99.0.0").unwrap();
        assert!(severity == Severity::Warning && remedy[0].contains("at least 99.0.0"), "{remedy:?}");
        let (severity, remedy) = found("exchange", known, "0.0.1").unwrap();
        assert!(
            severity == Severity::Notice && remedy[0].starts_with("batzen exchange dbinit"),
            "{remedy:?}"
        );
    }

    #[test]
    fn deadlines_writers_and_conflicts_are_notices() {
        let default = DefaultPart { table: "deposits_open_default".to_owned(), rows: 3 };
        let writer = Writer { node: "n".to_owned(), epoch: 500, ..Writer::default() };
        let mut facts =
            with(Service { in_default: vec![default], writers: vec![writer], ..Service::default() });
        facts.server = Server { database: "d".to_owned(), ..Server::default() };
        facts.databases = vec![Database { name: "d".to_owned(), deadlocks: 1, ..Database::default() }];
        let notice = |rule: &str| (rule.to_owned(), Severity::Notice);
        assert_eq!(
            verdicts(&facts),
            [notice("batzen_default_part"), notice("batzen_writers"), notice("batzen_conflicts")]
        );
    }
}
