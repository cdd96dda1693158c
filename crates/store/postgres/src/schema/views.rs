//! Views for auditors: every table in readable form. Keys are text as in the protocol, amounts are text and
//! numbers, times are timestamps.

use std::collections::BTreeMap;

use batzen_store::ColumnKind;

use super::catalog;
use super::error::SchemaError;
use super::shape::literal;
use super::sql::Sql;
use crate::layout::{Layout, quoted, row_name};

/// The schema that holds the views of a service.
#[must_use]
pub(crate) fn view_schema(schema: &str) -> String {
    format!("{schema}_view")
}

/// The view's columns for a table's column of this name, as SQL expressions with names. Amounts in text start
/// with `currency`.
fn columns(schema: &str, name: &str, kind: ColumnKind, currency: Option<&str>) -> Vec<String> {
    let (column, schema) = (quoted(name), quoted(schema));
    let call = |function: &str| format!("{schema}.bz_{function}({column}) AS {column}");
    vec![match kind {
        ColumnKind::U8 | ColumnKind::U16 | ColumnKind::U32 | ColumnKind::I64 | ColumnKind::Bool => column,
        ColumnKind::U64 => call("u64"),
        ColumnKind::U128 => call("u128"),
        ColumnKind::Fixed(_) | ColumnKind::Bytes => call("base32"),
        ColumnKind::Text => call("text"),
        ColumnKind::Timestamp => call("time"),
        ColumnKind::Amount => {
            let (val, frac) = (quoted(&format!("{name}_val")), quoted(&format!("{name}_frac")));
            let number = format!("{schema}.bz_amount({val}, {frac})");
            let before = currency.map(|currency| format!("{} || ", literal(&format!("{currency}:"))));
            return vec![
                format!("{}{number}::text AS {column}", before.unwrap_or_default()),
                format!("{number} AS {}", quoted(&format!("{name}_number"))),
            ];
        }
    }]
}

/// The statement that creates a table's view.
#[must_use]
pub(crate) fn create_view(layout: &Layout, currency: Option<&str>) -> String {
    let (def, schema) = (layout.def, layout.schema.as_str());
    let key = def.key_columns.iter().map(|column| (column.name.to_owned(), column.column.kind));
    let row = def.row_columns.iter().map(|column| (row_name(def, column), column.column.kind));
    let mut list: Vec<String> =
        key.chain(row).flat_map(|(name, kind)| columns(schema, &name, kind, currency)).collect();
    list.push(quoted(layout.serial));
    format!(
        "CREATE VIEW {}.{} AS\nSELECT\n  {}\nFROM {}",
        quoted(&view_schema(schema)),
        quoted(&layout.name),
        list.join(",\n  "),
        layout.table()
    )
}

/// The roles that may read each view, by the view's name.
pub(crate) type Grants = BTreeMap<String, Vec<String>>;

/// Reads the grants on views, so that they can be restored on a view that is created again.
pub(crate) fn read_grants(sql: &mut dyn Sql, schema: &str) -> Result<Grants, SchemaError> {
    let rows = sql.rows(&format!(
        "SELECT c.relname, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
         FROM pg_class c
         JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = {},
         aclexplode(c.relacl) AS a
         WHERE c.relkind = 'v' AND a.privilege_type = 'SELECT' AND a.grantee <> c.relowner",
        literal(&view_schema(schema))
    ))?;
    let mut grants = Grants::new();
    for row in rows {
        grants.entry(row.text(0).to_owned()).or_default().push(row.text(1).to_owned());
    }
    Ok(grants)
}

/// Creates the views that are missing or outdated, and returns which.
pub(crate) fn refresh(
    sql: &mut dyn Sql,
    schema: &str,
    layouts: &[Layout],
    currency: Option<&str>,
    grants: &Grants,
) -> Result<Vec<String>, SchemaError> {
    let place = quoted(&view_schema(schema));
    if !catalog::has_schema(sql, &view_schema(schema))? {
        sql.script(&format!("CREATE SCHEMA {place}"))?;
    }
    let rows = sql.rows(&format!(
        "SELECT c.relname, obj_description(c.oid, 'pg_class') FROM pg_class c
         JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = {} WHERE c.relkind = 'v'",
        literal(&view_schema(schema))
    ))?;
    let present: BTreeMap<&str, Option<&str>> =
        rows.iter().map(|row| (row.text(0), row.optional(1))).collect();
    let mut done = Vec::new();
    for layout in layouts {
        let text = create_view(layout, currency);
        let mark = super::fingerprint(&text);
        if present.get(layout.name.as_str()).copied().flatten() == Some(mark.as_str()) {
            continue;
        }
        let view = format!("{place}.{}", quoted(&layout.name));
        let mut statements = vec![
            format!("DROP VIEW IF EXISTS {view}"),
            text,
            format!("COMMENT ON VIEW {view} IS {}", literal(&mark)),
        ];
        let readers = grants.get(&layout.name).into_iter().flatten();
        statements.extend(readers.map(|role| format!("GRANT SELECT ON {view} TO {role}")));
        sql.script(&statements.join(";\n"))?;
        done.push(format!("make view {}.{}", view_schema(schema), layout.name));
    }
    Ok(done)
}
