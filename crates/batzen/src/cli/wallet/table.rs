//! Tables with aligned columns.

use super::output::Output;

/// Alignment of a column.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
    /// Text, aligned left.
    Left,
    /// Numbers, aligned right.
    Right,
    /// Numbers, aligned right and emphasised.
    Bold,
    /// Dimmed text, aligned left.
    Dim,
}

/// A table under construction. Columns are as wide as their widest cell; the last one is not padded.
pub(super) struct Table {
    columns: Vec<Column>,
    rows: Vec<(Vec<String>, Vec<String>)>,
}

impl Table {
    pub(super) fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    pub(super) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push((cells.to_vec(), Vec::new()));
    }

    /// Adds an indented line below the latest row.
    pub(super) fn note(&mut self, text: impl Into<String>) {
        if let Some((_, notes)) = self.rows.last_mut() {
            notes.push(text.into());
        }
    }

    pub(super) fn render(&self, output: &Output) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|(cells, _)| cells.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let indent = widths.first().map_or(0, |width| width + 2);
        let mut text = String::new();
        for (cells, notes) in &self.rows {
            let mut line = Vec::new();
            for (position, cell) in cells.iter().enumerate() {
                let (column, width) = (self.columns[position], widths[position]);
                let is_last = position + 1 == cells.len();
                let padded = match column {
                    Column::Right | Column::Bold => format!("{cell:>width$}"),
                    Column::Left | Column::Dim if is_last => cell.clone(),
                    Column::Left | Column::Dim => format!("{cell:<width$}"),
                };
                line.push(match column {
                    Column::Bold => output.bold(padded),
                    Column::Dim => output.dim(padded),
                    Column::Left | Column::Right => padded,
                });
            }
            text.push_str(line.join("  ").trim_end());
            text.push('\n');
            for note in notes {
                text.push_str(&format!("{:indent$}{note}\n", ""));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&[Column::Right, Column::Bold, Column::Left]);
        table.row(["1".to_owned(), "+KUDOS:10".to_owned(), "Withdrawal".to_owned()]);
        table.note("waits");
        table.row(["12".to_owned(), "-KUDOS:7.5".to_owned(), "Deposit".to_owned()]);
        let text = table.render(&Output::new(true, true));
        assert_eq!(text, " 1   +KUDOS:10  Withdrawal\n    waits\n12  -KUDOS:7.5  Deposit\n");
    }
}
