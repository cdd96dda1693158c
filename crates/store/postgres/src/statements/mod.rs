//! The statements of one table: fixed texts, derived from its layout.
//!
//! Bulk parameters are arrays, one per column, so that a text does not depend on the number of rows. They are
//! joined with the table in a nested loop that goes through the arrays in order and descends the primary key
//! once per row; the session's settings ([`SESSION`]) rule out other plans. Each statement names `vshard`, so
//! that it touches only the partition of each row.
//!
//! Reads also pass the range of shards of all their rows ([`within`]), with which the server prunes
//! partitions before it starts. Otherwise it would visit every partition for every row of the nested loop.

pub(crate) mod citus;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use batzen_store::IndexKind;

use crate::client::Statement;
use crate::codec::width;
use crate::layout::{IndexForm, IndexLayout, Layout, SqlColumn, SqlType, quoted};
use citus::Inserts;

/// The kind of server that the statements are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// PostgreSQL.
    Plain,
    /// The coordinator of a Citus cluster.
    Citus,
    /// A node of a Citus cluster, for the tables of one shard.
    Shard,
}

/// The settings of every session. Plans are made once for all parameters, so they must stay good as tables
/// grow: index lookups row by row, and never a sequential scan because the table was small when the plan was
/// made.
pub(crate) const SESSION: &str = "SET jit = off; SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; \
    SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off; SET enable_memoize = off; \
    SET max_parallel_workers_per_gather = 0; SET synchronous_commit = on; SET bytea_output = hex; \
    SET client_min_messages = warning; SET idle_in_transaction_session_timeout = '60s'; \
    SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3; SET tcp_user_timeout = '30s'; \
    SET default_transaction_isolation = 'read committed'";

/// Maximum number of forms of an update of a table: one for each combination of columns that change together.
/// Beyond that, all columns are set.
const UPDATES_MAX: usize = 16;

/// The statements of a table.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) layout: Layout,
    pub(crate) dialect: Dialect,
    pub(crate) get: Statement,
    pub(crate) insert: Statement,
    pub(crate) delete: Statement,
    pub(crate) keep: Statement,
    pub(crate) count: Statement,
    pub(crate) queue_insert: Option<Statement>,
    pub(crate) queue_delete: Option<Statement>,
    /// On Citus, instead of `insert` and `queue_insert`.
    pub(crate) citus_inserts: Option<Inserts>,
    pub(crate) citus_queue_inserts: Option<Inserts>,
    updates: Mutex<BTreeMap<Vec<bool>, Arc<Statement>>>,
    lookups: Vec<(u8, Statement)>,
    ranges: Vec<(u8, [Statement; 4])>,
    positions: Vec<(u8, [Statement; 2])>,
    /// Serial, version, key and row of every row.
    pub(crate) all: String,
}

/// The columns of the row (of the record, not of the database) that an update sets.
pub(crate) type Mask = Vec<bool>;

impl Statements {
    pub(crate) fn new(layout: Layout) -> Self {
        Self::of(layout, Dialect::Plain)
    }

    pub(crate) fn of(layout: Layout, dialect: Dialect) -> Self {
        Self::numbered(layout, dialect, "pg_current_xact_id()::text::bigint << 16")
    }

    /// The statements of a table whose new rows get serials from this number, the base, and their place in the commit.
    pub(crate) fn numbered(layout: Layout, dialect: Dialect, number: &str) -> Self {
        let is_citus = dialect == Dialect::Citus;
        let t = layout.table();
        let expect = format!("{}.expect", quoted(&layout.schema));
        let key = names(&layout.key);
        let row = names(&layout.row);
        let serial = quoted(layout.serial);
        let key_types = || {
            let mut types = vec![SqlType::Int2];
            types.extend(layout.key.iter().map(|column| column.sql));
            types
        };
        let key_names = || [vec!["vshard".to_owned()], key.clone()].concat();
        let at_key = |left: &str, right: &str| equal(left, right, &key_names());
        let mut row_part = vec![format!("t.{serial}"), "t.version".to_owned()];
        row_part.extend(row.iter().map(|name| format!("t.{name}")));
        let row_part = row_part.join(", ");

        let get = format!(
            "SELECT u.ord, f.* FROM {} WITH ORDINALITY AS u({}, ord) CROSS JOIN LATERAL (SELECT {row_part} FROM {t} t WHERE \
             {}{} OFFSET 0) f",
            unnest(1, &key_types()),
            key_names().join(", "),
            at_key("t", "u"),
            within(&layout, key_types().len()),
        );
        let get =
            if is_citus { citus::by_key(&layout, &row_part, &key_types(), &key_names(), true) } else { get };

        // vshard, key, row, ord, index columns.
        let own: Vec<&IndexLayout> = (layout.indexes.iter())
            .filter(|index| matches!(index.form, IndexForm::Hash | IndexForm::HashMany | IndexForm::Position))
            .collect();
        let fresh = format!("((SELECT $1::bigint + ({number})) + u.ord)");
        let fresh = fresh.as_str();
        let mut types = key_types();
        types.extend(layout.row.iter().map(|column| column.sql));
        types.push(SqlType::Int8);
        types.extend(own.iter().map(|index| index_type(index)));
        let aliases: Vec<String> = (0..own.len()).map(|n| format!("ix{n}")).collect();
        let u_names = [key_names(), row.clone(), vec!["ord".into()], aliases.clone()].concat();
        let mut targets = [key_names(), row.clone(), vec![serial.clone(), "version".into()]].concat();
        let mut values: Vec<String> =
            key_names().iter().chain(&row).map(|name| format!("u.{name}")).collect();
        values.extend([fresh.to_owned(), "0".to_owned()]);
        for (index, alias) in own.iter().zip(&aliases) {
            targets.push(quoted(index.column.as_deref().expect("it stands in the table")));
            values.push(index_value(index, alias, fresh));
        }
        let citus_inserts = is_citus.then(|| {
            let width = key.len() + 1 + row.len();
            citus::inserts(&t, &targets, &types, &|parameter| {
                let serial = format!("$1::bigint + {}", parameter(width));
                let mut values: Vec<String> = (0..width).map(parameter).collect();
                values.extend([serial.clone(), "0".to_owned()]);
                values.extend(
                    own.iter()
                        .enumerate()
                        .map(|(n, index)| citus::index_value(index, &parameter(width + 1 + n), &serial)),
                );
                values
            })
        });
        // `ON CONFLICT DO NOTHING` with a count is not used: looking for the row before inserting it costs
        // the server a fifth more time for a deposit (31 us instead of 25, `examples/deposit_cost.rs`), and
        // an existing row aborts the transaction just as well. `COPY` is not used either: it cannot compute
        // the serial, which needs the transaction's number.
        let insert = format!(
            "INSERT INTO {t} ({}) SELECT {} FROM {} AS u({})",
            targets.join(", "),
            values.join(", "),
            unnest(2, &types),
            u_names.join(", "),
        );

        // vshard, key, version, serial.
        let mut types = key_types();
        types.extend([SqlType::Int4, SqlType::Int8]);
        let named = [key_names(), vec!["ver".into(), "ser".into()]].concat().join(", ");
        let same = format!("{} AND t.version = u.ver AND t.{serial} = u.ser", at_key("t", "u"));
        let source = format!("{} AS u({named})", unnest(2, &types));
        let delete = format!(
            "WITH done AS (DELETE FROM {t} t USING {source} WHERE {same} RETURNING 1) SELECT {expect}(count(*), $1, 'BZ001') \
             FROM done"
        );
        let keep = format!(
            "SELECT {expect}(count(*), $1, 'BZ001') FROM {source} CROSS JOIN LATERAL (SELECT 1 FROM {t} t WHERE {same} OFFSET 0 \
             FOR SHARE) f"
        );

        let (delete, keep) = if is_citus {
            let source = format!("{} AS u({named})", unnest(1, &types));
            (citus::delete(&layout, &source, &same), citus::keep(&layout, &source, &same))
        } else {
            (delete, keep)
        };

        let mut queue_insert = None;
        let mut queue_delete = None;
        let mut citus_queue_inserts = None;
        if let Some(queue) = layout.queue_table() {
            let indexes: Vec<&IndexLayout> = layout.queue_indexes().collect();
            // due, index values, vshard, key, ord, and serial of rows that have one.
            let mut types = vec![SqlType::Int8];
            types.extend(indexes.iter().map(|_| SqlType::Bytea));
            types.extend(key_types());
            types.extend([SqlType::Int8, SqlType::Int8]);
            let aliases: Vec<String> = (0..indexes.len()).map(|n| format!("ix{n}")).collect();
            let u_names =
                [vec!["due".into()], aliases.clone(), key_names(), vec!["ord".into(), "ser".into()]].concat();
            let number = format!("coalesce(u.ser, {fresh})");
            let mut targets = vec!["due".to_owned()];
            let mut values = vec!["u.due".to_owned()];
            for (index, alias) in indexes.iter().zip(&aliases) {
                targets.push(quoted(index.column.as_deref().expect("it stands in the queue")));
                values.push(index_value(index, alias, &number));
            }
            targets.extend(key_names());
            values.extend(key_names().iter().map(|name| format!("u.{name}")));
            targets.push("serial".to_owned());
            values.push(number);
            citus_queue_inserts = is_citus.then(|| {
                let keys = 1 + indexes.len()..1 + indexes.len() + key_names().len();
                citus::inserts(&queue, &targets, &types, &|parameter| {
                    let serial = format!(
                        "coalesce({}, $1::bigint + {})",
                        parameter(keys.end + 1),
                        parameter(keys.end)
                    );
                    let mut values = vec![parameter(0)];
                    values.extend(
                        indexes
                            .iter()
                            .enumerate()
                            .map(|(n, index)| citus::index_value(index, &parameter(1 + n), &serial)),
                    );
                    values.extend(keys.clone().map(parameter));
                    values.push(serial);
                    values
                })
            });
            queue_insert = Some(Statement::new(format!(
                "INSERT INTO {queue} ({}) SELECT {} FROM {} AS u({})",
                targets.join(", "),
                values.join(", "),
                unnest(2, &types),
                u_names.join(", "),
            )));
            let first = quoted(indexes[0].column.as_deref().expect("it stands in the queue"));
            queue_delete = Some(Statement::new(if is_citus {
                citus::queue_delete(&layout, &queue, &first)
            } else {
                format!(
                    "WITH done AS (DELETE FROM {queue} t USING {} AS u(due, place, vshard) WHERE t.due = u.due AND t.{first} = u.place \
                     AND t.vshard = u.vshard RETURNING 1) SELECT {expect}(count(*), $1, 'BZ001') FROM done",
                    unnest(2, &[SqlType::Int8, SqlType::Bytea, SqlType::Int2]),
                )
            }));
        }

        let all = record(&layout, "t");
        let lookup = |index: &IndexLayout| {
            let column = || quoted(index.column.as_deref().expect("hash indexes have a column"));
            let sql = match index.form {
                IndexForm::PrimaryKey { columns } | IndexForm::KeyPrefix { columns } => {
                    let with_shard = matches!(index.form, IndexForm::PrimaryKey { .. });
                    let skip = usize::from(!with_shard);
                    let named = &key_names()[skip..=columns];
                    if is_citus {
                        let types = &key_types()[skip..=columns];
                        let sql = citus::by_key(&layout, &all, types, named, with_shard);
                        return Some((index.def.id, Statement::new(sql)));
                    }
                    let within = if with_shard { within(&layout, columns + 1) } else { String::new() };
                    format!(
                        "SELECT u.ord, f.* FROM {} WITH ORDINALITY AS u({}, ord) CROSS JOIN LATERAL (SELECT {all} FROM {t} t \
                         WHERE {}{within} OFFSET 0) f",
                        unnest(1, &key_types()[skip..=columns]),
                        named.join(", "),
                        equal("t", "u", named),
                    )
                }
                IndexForm::Hash => {
                    format!("SELECT {all} FROM {t} t WHERE t.{} = ANY ($1::bigint[])", column())
                }
                IndexForm::HashMany => {
                    format!("SELECT {all} FROM {t} t WHERE t.{} && $1::bigint[]", column())
                }
                IndexForm::Position | IndexForm::Queue => return None,
            };
            Some((index.def.id, Statement::new(sql)))
        };
        let lookups = layout.indexes.iter().filter_map(lookup).collect();
        let ranges = layout.indexes.iter().filter_map(|index| {
            let has_order = matches!(index.form, IndexForm::Position | IndexForm::Queue);
            let forms = [(false, false), (false, true), (true, false), (true, true)];
            let forms = || {
                forms.map(|(bounded, descending)| {
                    Statement::new(range(&layout, dialect, index, &at_key("t", "q"), bounded, descending))
                })
            };
            has_order.then(|| (index.def.id, forms()))
        });
        let ranges = ranges.collect();
        let positions = layout.indexes.iter().filter_map(|index| {
            let place = match index.form {
                IndexForm::Position => t.clone(),
                IndexForm::Queue => layout.queue_table()?,
                _ => return None,
            };
            let column = quoted(index.column.as_deref()?);
            let forms = [("", "$2"), (" AND q.{column} < $2::bytea", "$3")];
            let forms = forms.map(|(end, limit)| {
                let end = end.replace("{column}", &column);
                Statement::new(format!(
                    "SELECT q.{column} FROM {place} q WHERE q.{column} >= $1::bytea{end} ORDER BY q.{column} LIMIT \
                     {limit}::bigint"
                ))
            });
            Some((index.def.id, forms))
        });
        let positions = positions.collect();
        Self {
            get: Statement::new(get),
            insert: Statement::new(insert),
            delete: Statement::new(delete),
            keep: Statement::new(keep),
            count: Statement::new(format!("SELECT count(*) FROM {t}")),
            queue_insert,
            queue_delete,
            citus_inserts,
            citus_queue_inserts,
            updates: Mutex::default(),
            lookups,
            ranges,
            positions,
            all: format!("SELECT {all} FROM {t} t"),
            layout,
            dialect,
        }
    }

    /// Returns whether rows appear in the order of their serials. They do in each shard of Citus; on one server, a
    /// later commit may be visible before an earlier one.
    pub(crate) fn is_in_order(&self) -> bool {
        self.dialect != Dialect::Plain
    }

    /// The lookup in a hash or prefix index.
    pub(crate) fn lookup(&self, index: u8) -> &Statement {
        let found = self.lookups.iter().find(|(id, _)| *id == index);
        let def = self.layout.def;
        &found.unwrap_or_else(|| panic!("index {index} of {} is for ranges", def.name)).1
    }

    /// Returns whether lookups in this index use the primary key, so that their values have a shard.
    pub(crate) fn is_by_primary_key(&self, index: u8) -> bool {
        matches!(self.layout.index_layout(index).form, IndexForm::PrimaryKey { .. })
    }

    /// The range read of an ordered or serial index. Its parameters are the first position, the position
    /// after the last if there is one, and the limit. Rows start with their position.
    pub(crate) fn range(&self, index: u8, bounded: bool, descending: bool) -> &Statement {
        let found = self.ranges.iter().find(|(id, _)| *id == index);
        &found.expect("the caller asserts that it has an order").1
            [usize::from(bounded) * 2 + usize::from(descending)]
    }

    /// Reads only the positions, with the parameters of [`Statements::range`].
    pub(crate) fn positions(&self, index: u8, bounded: bool) -> &Statement {
        let found = self.positions.iter().find(|(id, _)| *id == index);
        &found.expect("the caller asserts that it has an order").1[usize::from(bounded)]
    }

    /// The indexes whose columns are in the table, in the order of the insert's parameters.
    pub(crate) fn own_indexes(&self) -> impl Iterator<Item = &IndexLayout> {
        let stands = |index: &&IndexLayout| {
            matches!(index.form, IndexForm::Hash | IndexForm::HashMany | IndexForm::Position)
        };
        self.layout.indexes.iter().filter(stands)
    }

    /// The update that sets the columns of `mask` (extended to all columns if there are too many forms
    /// already) and the index columns. Its parameters are: how many rows, vshard, key, version, serial, the
    /// columns, the index columns.
    pub(crate) fn update(&self, mask: &mut Mask) -> Arc<Statement> {
        let mut updates = self.updates.lock().unwrap_or_else(PoisonError::into_inner);
        if !updates.contains_key(mask) && updates.len() >= UPDATES_MAX {
            mask.fill(true);
        }
        let make = || Arc::new(Statement::new(update(self, mask)));
        Arc::clone(updates.entry(mask.clone()).or_insert_with(make))
    }
}

fn update(statements: &Statements, mask: &Mask) -> String {
    let layout = &statements.layout;
    let mut set = Vec::new();
    let mut types = vec![SqlType::Int2];
    let mut named = vec!["vshard".to_owned()];
    for column in &layout.key {
        types.push(column.sql);
        named.push(column.quoted());
    }
    let same = equal("t", "u", &named);
    types.extend([SqlType::Int4, SqlType::Int8]);
    named.extend(["ver".to_owned(), "ser".to_owned()]);
    let mut at = 0;
    for (def, chosen) in layout.def.row_columns.iter().zip(mask) {
        for column in &layout.row[at..at + width(def)] {
            if *chosen {
                let name = column.quoted();
                set.push(format!("{name} = u.{name}"));
                types.push(column.sql);
                named.push(name);
            }
        }
        at += width(def);
    }
    for (n, index) in statements.own_indexes().enumerate() {
        let column = quoted(index.column.as_deref().expect("it stands in the table"));
        let alias = format!("ix{n}");
        let serial = format!("t.{}", quoted(layout.serial));
        set.push(format!(
            "{column} = {}",
            match statements.dialect {
                Dialect::Plain | Dialect::Shard => index_value(index, &alias, &serial),
                Dialect::Citus => citus::index_value(index, &format!("u.{alias}"), &serial),
            }
        ));
        types.push(index_type(index));
        named.push(alias);
    }
    // Versions wrap around after 2^31 updates of one row.
    set.push("version = CASE WHEN t.version = 2147483647 THEN 0 ELSE t.version + 1 END".to_owned());
    if statements.dialect == Dialect::Citus {
        let source = format!("{} AS u({})", unnest(1, &types), named.join(", "));
        let same = format!("{same} AND t.version = u.ver AND t.{} = u.ser", quoted(layout.serial));
        return citus::update(layout, &set, &source, &same);
    }
    format!(
        "WITH done AS (UPDATE {} t SET {} FROM {} AS u({}) WHERE {same} AND t.version = u.ver AND t.{} = u.ser RETURNING 1) \
         SELECT {}.expect(count(*), $1, 'BZ001') FROM done",
        layout.table(),
        set.join(", "),
        unnest(2, &types),
        named.join(", "),
        quoted(layout.serial),
        quoted(&layout.schema),
    )
}

fn range(
    layout: &Layout,
    dialect: Dialect,
    index: &IndexLayout,
    at_key: &str,
    bounded: bool,
    descending: bool,
) -> String {
    let column = quoted(index.column.as_deref().expect("it has an order"));
    let (end, limit) =
        if bounded { (format!(" AND q.{column} < $2::bytea"), "$3") } else { (String::new(), "$2") };
    let order = if descending { " DESC" } else { "" };
    let t = layout.table();
    let tail =
        format!("WHERE q.{column} >= $1::bytea{end} ORDER BY q.{column}{order} LIMIT {limit}::bigint",);
    match (index.form, layout.queue_table()) {
        (IndexForm::Queue, Some(queue)) if dialect == Dialect::Citus => {
            citus::queue_range(layout, &queue, &column, &record(layout, "t"), &tail, order)
        }
        (IndexForm::Queue, Some(queue)) => {
            // The limit is in the subquery, so that rows are fetched only for entries within it.
            let all = record(layout, "t");
            format!(
                "SELECT q.place, f.* FROM (SELECT q.{column} AS place, q.* FROM {queue} q {tail}) q CROSS JOIN LATERAL (SELECT \
                 {all} FROM {t} t WHERE {at_key} OFFSET 0) f"
            )
        }
        _ => format!("SELECT q.{column}, {} FROM {t} q {tail}", record(layout, "q")),
    }
}

/// The condition that all rows of a read are between two shards, which are its last parameters. The server
/// prunes all other partitions before it starts.
fn within(layout: &Layout, after: usize) -> String {
    if layout.partitions > 1 {
        format!(" AND t.vshard >= ${}::smallint AND t.vshard <= ${}::smallint", after + 1, after + 2)
    } else {
        String::new()
    }
}

/// Serial, version, key and row.
fn record(layout: &Layout, alias: &str) -> String {
    let mut columns = vec![format!("{alias}.{}", quoted(layout.serial)), format!("{alias}.version")];
    let names = layout.key.iter().chain(&layout.row);
    columns.extend(names.map(|column| format!("{alias}.{}", column.quoted())));
    columns.join(", ")
}

/// The names as written in statements.
fn names(columns: &[SqlColumn]) -> Vec<String> {
    columns.iter().map(SqlColumn::quoted).collect()
}

/// `unnest($1::smallint[], $2::bytea[])`.
pub(crate) fn unnest(first: usize, types: &[SqlType]) -> String {
    let one = |(n, sql): (usize, &SqlType)| format!("${}::{}[]", n + first, sql.name());
    format!("unnest({})", types.iter().enumerate().map(one).collect::<Vec<_>>().join(", "))
}

pub(crate) fn equal(left: &str, right: &str, names: &[String]) -> String {
    names.iter().map(|name| format!("{left}.{name} = {right}.{name}")).collect::<Vec<_>>().join(" AND ")
}

/// The type of an index's parameter.
pub(crate) fn index_type(index: &IndexLayout) -> SqlType {
    match index.form {
        IndexForm::Hash => SqlType::Int8,
        // Nested arrays would be flattened, so they are sent as text, `{1,2}`.
        IndexForm::HashMany => SqlType::Text,
        _ => SqlType::Bytea,
    }
}

/// The value of an index column, from its parameter and the row's serial.
fn index_value(index: &IndexLayout, alias: &str, serial: &str) -> String {
    match (index.form, index.def.kind) {
        (IndexForm::HashMany, _) => format!("u.{alias}::bigint[]"),
        (_, IndexKind::Serial) => format!("u.{alias} || int8send({serial})"),
        _ => format!("u.{alias}"),
    }
}
