//! Layouts of rows: how the rows of an older program become those of this one.

use crate::{ColumnDef, DecodeError, Record, TableDef};

/// The highest number of a layout.
pub(crate) const LAYOUT_MAX: u8 = 63;

/// Computes a row of the next layout. It must be a pure function of the key and the row: a migration that was
/// interrupted computes it again.
pub(crate) type UpgradeFn = fn(key: &[u8], row: &[u8]) -> Result<Vec<u8>, DecodeError>;

/// A layout that the rows of a table had once.
pub struct Layout {
    /// The columns.
    pub columns: &'static [ColumnDef],
    /// Leads to the next layout.
    pub upgrade: UpgradeFn,
}

impl Layout {
    /// The layout of `Old` rows, whose successor follows from the row alone.
    #[must_use]
    pub const fn of<Old: Record, New: Record + From<Old>>() -> Self {
        Self { columns: Old::COLUMNS, upgrade: upgrade::<Old, New> }
    }
}

fn upgrade<Old: Record, New: Record + From<Old>>(_: &[u8], row: &[u8]) -> Result<Vec<u8>, DecodeError> {
    Ok(New::from(Old::decode(row)?).to_bytes())
}

impl TableDef {
    /// Declares the layouts that rows had in older programs, oldest first. The number of a layout is its place
    /// in this list; the current one follows them. Append a layout whenever the row changes, and never remove
    /// one: a store may be of any age.
    #[must_use]
    pub const fn layouts(self, layouts: &'static [Layout]) -> Self {
        assert!(layouts.len() <= LAYOUT_MAX as usize, "a table has too many layouts");
        Self { layouts, ..self }
    }

    /// The number of the current layout.
    #[must_use]
    pub fn layout(&self) -> u8 {
        u8::try_from(self.layouts.len()).expect("at most LAYOUT_MAX")
    }

    /// The columns of a layout.
    ///
    /// # Errors
    /// If a newer program has defined it.
    pub(crate) fn columns(&self, layout: u8) -> Result<&'static [ColumnDef], DecodeError> {
        if layout == self.layout() {
            return Ok(self.row_columns);
        }
        let known = self.layouts.get(usize::from(layout)).map(|layout| layout.columns);
        known.ok_or_else(|| DecodeError::invalid("row", format!("layout {layout} of a newer program")))
    }

    /// A row of an older layout as one of the current layout.
    ///
    /// # Errors
    /// If the bytes are not a row of that layout, or the layout is unknown.
    pub(crate) fn upgraded(&self, layout: u8, key: &[u8], row: &[u8]) -> Result<Vec<u8>, DecodeError> {
        if layout > self.layout() {
            return Err(DecodeError::invalid("row", format!("layout {layout} of a newer program")));
        }
        let mut row = row.to_vec();
        for layout in &self.layouts[usize::from(layout)..] {
            row = (layout.upgrade)(key, &row)?;
        }
        Ok(row)
    }
}
