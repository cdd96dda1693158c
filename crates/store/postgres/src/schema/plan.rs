//! The difference between the tables that a program wants and those that a database has, and the steps from
//! one to the other. Pure functions.

use std::collections::BTreeMap;

use super::catalog::{Present, PresentTable};
use super::shape::{Cut, TableShape};
use super::views::view_schema;
use crate::layout::quoted;

/// A change that a comparison cannot find. It has a version, and is made once in each older database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The version of the schema that the change leads to.
    pub version: i32,
    /// The change.
    pub change: StepChange,
}

/// The change of a [`Step`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepChange {
    /// Renames a table.
    RenameTable {
        /// The old name.
        from: &'static str,
        /// The new name.
        to: &'static str,
    },
    /// Renames a column. (An amount has two columns.)
    RenameColumn {
        /// The table.
        table: &'static str,
        /// The old name.
        from: &'static str,
        /// The new name.
        to: &'static str,
    },
    /// Drops a table and its rows.
    DropTable(&'static str),
    /// Drops a column and its values.
    DropColumn {
        /// The table.
        table: &'static str,
        /// The column.
        column: &'static str,
    },
    /// Drops an index.
    DropIndex(&'static str),
    /// Recomputes the table's index entries, because the program computes them in another way.
    Reindex(&'static str),
}

/// The schema that a program works with.
#[derive(Debug, Clone, Copy)]
pub struct History<'a> {
    /// Its version. Each step increases it, and so does each new table, column or index.
    pub version: i32,
    /// The steps that led here.
    pub steps: &'a [Step],
}

/// The schema of this program. Every change of a [`batzen_store::TableDef`] increases the version; a test
/// compares the statements that create all tables with the stored ones.
pub const HISTORY: History<'static> = History { version: 7, steps: &[] };

/// A step of a migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Action {
    /// Its effect, in words.
    pub(crate) what: String,
    /// The statements, which form one transaction.
    pub(crate) statements: Vec<String>,
}

/// The work of a migration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The statements in order.
    pub actions: Vec<Action>,
    /// The tables whose index entries must then be computed from their rows.
    pub(crate) reindex: Vec<String>,
    /// The indexes, created last: as long as an index is missing, entries may be missing, too.
    pub indexes: Vec<Action>,
}

/// The steps that a database of version `from` lacks. Each can be repeated: new names that exist already are
/// left unchanged.
#[must_use]
pub(crate) fn steps(schema: &str, from: i32, history: &History<'_>, present: &Present) -> Plan {
    let mut plan = Plan::default();
    // Steps may rename tables, so they are applied in order.
    let mut present = present.clone();
    let place = |table: &str| format!("{}.{}", quoted(schema), quoted(table));
    for step in history.steps.iter().filter(|step| step.version > from) {
        let mut act = |what: String, statement: String| {
            plan.actions.push(Action { what, statements: vec![statement] });
        };
        // Drop the table's view, which depends on its columns and is created again afterwards. Views of other
        // users still prevent the drop.
        let unseen = |table: &str, statement: String| {
            let view = format!("{}.{}", quoted(&view_schema(schema)), quoted(table));
            format!("DROP VIEW IF EXISTS {view}; {statement}")
        };
        match step.change {
            StepChange::RenameTable { from, to } => {
                if let Some(table) = present.remove(from) {
                    act(
                        format!("rename table {from} to {to}"),
                        format!("ALTER TABLE {} RENAME TO {}", place(from), quoted(to)),
                    );
                    present.insert(to.to_owned(), table);
                }
            }
            StepChange::RenameColumn { table, from, to } => {
                let columns = present.get_mut(table).map(|table| &mut table.columns);
                if let Some(column) =
                    columns.and_then(|columns| columns.iter_mut().find(|column| column.name == from))
                {
                    to.clone_into(&mut column.name);
                    act(
                        format!("rename column {from} of {table} to {to}"),
                        format!(
                            "ALTER TABLE {} RENAME COLUMN {} TO {}",
                            place(table),
                            quoted(from),
                            quoted(to)
                        ),
                    );
                }
            }
            StepChange::DropTable(table) => {
                if present.remove(table).is_some() {
                    act(format!("drop table {table}"), unseen(table, format!("DROP TABLE {}", place(table))));
                }
            }
            StepChange::DropColumn { table, column } => {
                if present.get(table).is_some_and(|table| table.column(column).is_some()) {
                    act(
                        format!("drop column {column} of {table}"),
                        unseen(table, format!("ALTER TABLE {} DROP COLUMN {}", place(table), quoted(column))),
                    );
                }
            }
            StepChange::DropIndex(index) => {
                if present.values().any(|table| table.indexes.contains_key(index)) {
                    act(format!("drop index {index}"), format!("DROP INDEX {}", place(index)));
                }
            }
            StepChange::Reindex(table) => plan.reindex.push(table.to_owned()),
        }
    }
    plan
}

/// Returns the additions that give the database every wanted table. The error lists the differences that
/// cannot be fixed in this way.
///
/// # Errors
/// Differences that only a [`Step`] or another program can fix.
pub(crate) fn additions(schema: &str, wanted: &[TableShape], present: &Present) -> Result<Plan, Vec<String>> {
    let (mut plan, mut refusals) = (Plan::default(), Vec::new());
    for table in wanted {
        match present.get(&table.name) {
            None => plan.actions.push(Action {
                what: format!("create table {}", table.name),
                statements: table.create(schema),
            }),
            Some(there) => extend(schema, table, there, &mut plan, &mut refusals),
        }
    }
    if refusals.is_empty() { Ok(plan) } else { Err(refusals) }
}

fn extend(
    schema: &str,
    table: &TableShape,
    there: &PresentTable,
    plan: &mut Plan,
    refusals: &mut Vec<String>,
) {
    let place = format!("{}.{}", quoted(schema), quoted(&table.name));
    refusals.extend(column_differences(table, there).into_iter().filter(|d| !d.can_be_added).map(|d| d.what));
    let wanted_parts = match &table.cut {
        Cut::Shards(parts) => Some(parts.len()),
        Cut::Whole | Cut::Days => None,
    };
    let present_parts = there.parts.as_ref().map(BTreeMap::len);
    if table.cut != Cut::Days && wanted_parts != present_parts {
        refusals.push(format!(
            "table {} has {} partitions, not {}: the number cannot be changed while it holds rows",
            table.name,
            present_parts.unwrap_or(0),
            wanted_parts.unwrap_or(0)
        ));
    }
    let key = there.indexes.get(&format!("{}_pkey", table.name));
    if key.is_some_and(|key| key.columns != table.key) {
        refusals.push(format!("table {} has another primary key", table.name));
    }
    for column in &table.columns {
        match there.column(&column.name) {
            None if column.nullable => plan.actions.push(Action {
                what: format!("add column {} to {}", column.name, table.name),
                statements: vec![format!(
                    "ALTER TABLE {place} ADD COLUMN {} {}",
                    quoted(&column.name),
                    column.declared()
                )],
            }),
            Some(present) if column.nullable && !present.nullable => plan.actions.push(Action {
                what: format!("let column {} of {} be absent", column.name, table.name),
                statements: vec![format!(
                    "ALTER TABLE {place} ALTER COLUMN {} DROP NOT NULL",
                    quoted(&column.name)
                )],
            }),
            _ => {}
        }
    }
    for index in &table.indexes {
        let before = there.indexes.get(&index.name);
        if before.is_some_and(|before| before.valid && before.columns == index.columns) {
            continue;
        }
        let mut statements = Vec::new();
        if before.is_some() {
            statements.push(format!("DROP INDEX {}.{}", quoted(schema), quoted(&index.name)));
        }
        statements.push(table.create_index(&quoted(schema), index));
        plan.indexes
            .push(Action { what: format!("create index {} on {}", index.name, table.name), statements });
        if index.entries.is_some() && !plan.reindex.contains(&table.name) {
            plan.reindex.push(table.name.clone());
        }
    }
}

/// A column that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    /// The difference in words.
    pub(crate) what: String,
    /// Whether a migration fixes it without a step.
    pub(crate) can_be_added: bool,
}

/// Returns the differences between the columns of a table and the wanted ones. A store with differences is
/// not opened.
#[must_use]
pub(crate) fn column_differences(table: &TableShape, there: &PresentTable) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut say = |can_be_added, what| found.push(Difference { what, can_be_added });
    for column in &table.columns {
        let name = format!("column {} of table {}", column.name, table.name);
        match there.column(&column.name) {
            None => say(column.nullable, format!("{name} is missing")),
            Some(present) if present.sql_type != column.sql_type => {
                say(false, format!("{name} is {}, not {}", present.sql_type, column.sql_type));
            }
            Some(present) if present.nullable && !column.nullable => {
                say(false, format!("{name} may be absent, but must not"));
            }
            Some(present) if !present.nullable && column.nullable => {
                say(true, format!("{name} must not be absent, but may"));
            }
            Some(_) => {}
        }
    }
    for present in &there.columns {
        if table.column(&present.name).is_none() {
            say(false, format!("column {} of table {} is unknown to this program", present.name, table.name));
        }
    }
    found
}
