//! Executes the statements of Batzen's hot paths, each for one existing row, in a transaction that is rolled
//! back.

use batzen_postgres::Layout;
use batzen_postgres::hot::{self, HotStatement, Reach};
use serde::{Deserialize, Serialize};

use super::look::{Look, QueryError};
use super::plans::{self, Plan};

/// A statement and how it was executed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Measured {
    /// The table that it is about.
    pub table: String,
    /// Its operation.
    pub what: String,
    /// Number of partitions of the table; 0: not partitioned.
    pub parts: u16,
    /// Whether it may visit all of them.
    pub may_reach_all: bool,
    pub plan: Plan,
    /// Number of the table's partitions that were visited.
    pub parts_hit: usize,
}

/// Executes the statements of a table with the parameters of an existing row, and rolls them back.
pub(crate) fn measure_all(look: &Look, layout: &Layout, in_recovery: bool, measured: &mut Vec<Measured>) {
    let statements = hot::statements(layout);
    let mut absence = None;
    for statement in &statements {
        let is_reading = statement.what == "get"
            || statement.what.starts_with("lookup")
            || statement.what.starts_with("range");
        if in_recovery && !is_reading {
            continue;
        }
        let what = format!("how {}.{} is executed: {}", layout.schema, statement.table, statement.what);
        let call = match call(look, statement) {
            Ok(Some(call)) => call,
            // A table without rows cannot be slow.
            Ok(None) => continue,
            Err(error) => {
                look.gap(&what, error.to_string(), None);
                continue;
            }
        };
        if statement.what == "delete" {
            absence = Some((statement, call.clone()));
        }
        let before = absence.as_ref().filter(|_| statement.needs_absence);
        match execute(look, statement, &call, before, is_reading) {
            Ok(plan) => measured.push(summary(layout, statement, plan)),
            Err(error) => look.gap(&what, error.to_string(), None),
        }
    }
}

/// The parameters as literals, from the first row.
fn call(look: &Look, statement: &HotStatement) -> Result<Option<String>, QueryError> {
    let texts: Vec<String> =
        statement.parameters.iter().map(|parameter| format!("({})::text", parameter.expression)).collect();
    let query = format!("SELECT {} FROM {} LIMIT 1", texts.join(", "), statement.sample);
    let rows = look.undone(&[&query], true)?;
    let Some(row) = rows.into_iter().next() else { return Ok(None) };
    let literals: Vec<String> = row
        .into_iter()
        .zip(&statement.parameters)
        .map(|(value, parameter)| {
            let value = value.map_or("NULL".to_owned(), |text| format!("'{}'", text.replace('\'', "''")));
            let sql_type = &parameter.sql_type;
            if parameter.is_array {
                format!("ARRAY[{value}]::{sql_type}[]")
            } else {
                format!("{value}::{sql_type}")
            }
        })
        .collect();
    Ok(Some(literals.join(", ")))
}

fn execute(
    look: &Look,
    statement: &HotStatement,
    call: &str,
    absence: Option<&(&HotStatement, String)>,
    is_read_only: bool,
) -> Result<Plan, QueryError> {
    // The settings of the service's sessions, for this transaction only.
    let session: String = hot::SESSION
        .split(';')
        .map(|set| {
            set.trim().strip_prefix("SET ").map_or_else(String::new, |rest| format!("SET LOCAL {rest}; "))
        })
        .collect();
    let mut script = vec![session, format!("PREPARE batzen_doctor AS {}", statement.sql)];
    if let Some((delete, parameters)) = absence {
        script.push(format!("PREPARE batzen_doctor_before AS {}", delete.sql));
        script.push(format!("EXECUTE batzen_doctor_before ({parameters})"));
    }
    script.push(format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE batzen_doctor ({call})"));
    let texts: Vec<&str> = script.iter().map(String::as_str).collect();
    let answer = look.undone(&texts, is_read_only);
    // Prepared statements outlive the transaction.
    let _ = look.undone(&["DEALLOCATE ALL"], true);
    let text: String = answer?.into_iter().flatten().flatten().collect();
    plans::read(&text).ok_or(QueryError::NotAPlan)
}

fn summary(layout: &Layout, statement: &HotStatement, plan: Plan) -> Measured {
    let parts: Vec<String> = (0..layout.partitions).map(|number| layout.partition_name(number)).collect();
    Measured {
        table: statement.table.clone(),
        what: statement.what.clone(),
        parts: layout.partitions,
        may_reach_all: statement.reach == Reach::AllShards,
        parts_hit: plan.relations.iter().filter(|name| parts.contains(name)).count(),
        plan,
    }
}
