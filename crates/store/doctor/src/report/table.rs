//! Text tables with aligned columns.

/// A table: the first column is left-aligned, the others right-aligned, the last one left-aligned if it is
/// text.
#[derive(Default)]
pub(crate) struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings. A heading that ends in `<` marks a column of text.
    pub(crate) fn new(head: &[&'static str]) -> Self {
        Self { head: head.to_vec(), rows: Vec::new() }
    }

    /// Adds a row of as many cells as there are headings.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.head.len());
        self.rows.push(cells);
    }

    /// Returns whether the table has rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The lines, indented by two.
    pub(crate) fn lines(&self) -> Vec<String> {
        let head: Vec<String> = self.head.iter().map(|name| name.trim_end_matches('<').to_owned()).collect();
        let widths: Vec<usize> = (0..head.len())
            .map(|column| {
                let cells = self.rows.iter().map(|row| &row[column]);
                cells.chain([&head[column]]).map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        let line = |row: &Vec<String>| {
            let mut text = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                text += if column == 0 { "  " } else { "   " };
                if self.head[column].ends_with('<') {
                    text += &format!("{cell:<width$}");
                } else {
                    text += &format!("{cell:>width$}");
                }
            }
            text.trim_end().to_owned()
        };
        std::iter::once(&head).chain(&self.rows).map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_right_aligned_and_text_left_aligned() {
        let mut table = Table::new(&["table<", "rows"]);
        table.row(vec!["coins".to_owned(), "1,000".to_owned()]);
        table.row(vec!["é".to_owned(), "5".to_owned()]);
        assert_eq!(table.lines(), ["  table    rows", "  coins   1,000", "  é           5"]);
    }
}
