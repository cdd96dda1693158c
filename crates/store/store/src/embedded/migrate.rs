//! Migrating rows to the layouts of this program, when a store is opened.
//!
//! Each record has the number of its row's layout. So a journal may mix them, and a migration may be interrupted
//! at any moment: the next opening computes the indexes from upgraded rows, and continues with the records that
//! are left. The manifest names the newest layout of each table before the first row of it is written, so that
//! an older program refuses the store, and the oldest layout that rows may still have.
//!
//! Nothing else uses the store meanwhile. When it is open, all rows have the layouts of this program.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::Ordering;

use super::disk::replace_file;
use super::format::{FrameKind, Layouts, MANIFEST_NAME, Manifest, record_bytes};
use super::index::Location;
use super::packed::{HEADER_BYTES_MAX, Head, Packer};
use super::record::{StoredRecord, put_row, read_record_of};
use super::{Core, fingerprint, lock};
use crate::{Result, StoreError, TableDef};

/// After how many frames progress is logged.
const LOG_EVERY: u64 = 64;

/// The layouts of all tables from now on.
///
/// # Errors
/// If a table has rows of a newer layout than this program knows.
pub(crate) fn layouts(
    path: &Path,
    manifest: &Manifest,
    tables: &[&'static TableDef],
) -> Result<BTreeMap<u16, Layouts>> {
    let mut layouts = manifest.layouts.clone();
    for table in tables {
        let current = table.layout();
        let stored = layouts.get(&table.id).copied().unwrap_or(Layouts { newest: 0, oldest: 0 });
        if stored.newest > current {
            let what = format!(
                "table {} has rows of layout {}, and this program knows layouts up to {current}: a newer program has \
                 migrated them; start that one",
                table.name, stored.newest
            );
            return Err(StoreError::Format { file: path.to_owned(), what });
        }
        if current > 0 {
            layouts.insert(table.id, Layouts { newest: current, oldest: stored.oldest });
        }
    }
    Ok(layouts)
}

/// A row as one of the current layout.
pub(crate) fn current<'a>(def: &TableDef, layout: u8, key: &[u8], row: &'a [u8]) -> Result<Cow<'a, [u8]>> {
    if layout == def.layout() {
        return Ok(Cow::Borrowed(row));
    }
    let upgraded = def.upgraded(layout, key, row);
    upgraded.map(Cow::Owned).map_err(|source| StoreError::Decode { table: def.name, source })
}

impl Core {
    /// Writes all rows of older layouts again.
    pub(crate) fn migrate(&self, tables: &[&'static TableDef]) -> Result<()> {
        let stored = lock(&self.maintenance).manifest.layouts.clone();
        for table in tables {
            let Some(layouts) = stored.get(&table.id).filter(|layouts| layouts.oldest < layouts.newest)
            else {
                continue;
            };
            self.migrate_table(table)?;
            let mut maintenance = lock(&self.maintenance);
            let mut manifest = maintenance.manifest.clone();
            manifest.layouts.insert(table.id, Layouts { newest: layouts.newest, oldest: layouts.newest });
            replace_file(&*self.options.disk, &self.dir, MANIFEST_NAME, manifest.encode().as_bytes())?;
            maintenance.manifest = manifest;
        }
        Ok(())
    }

    fn migrate_table(&self, table: &'static TableDef) -> Result<()> {
        let frozen = self.freeze(&[table])?;
        let (mut batch, mut batch_bytes) = (Vec::new(), 0);
        let (mut rows, mut frames) = (0_u64, 0_u64);
        frozen.locations(table, &mut |location| {
            let record = read_record_of(&frozen.segments, table, location)?;
            if record.layout == table.layout() {
                return Ok(ControlFlow::Continue(()));
            }
            let row = record.row(table)?;
            let row = current(table, record.layout, record.key(), &row)?.into_owned();
            let bytes = record_bytes(record.key().len(), row.len());
            if !batch.is_empty() && batch_bytes + bytes > self.options.migration_batch_bytes {
                self.rewrite(table, &batch)?;
                batch.clear();
                batch_bytes = 0;
                frames += 1;
                if self.is_over_budget() {
                    self.checkpoint()?;
                }
                if frames.is_multiple_of(LOG_EVERY) {
                    tracing::info!(table = table.name, rows, "migrating rows");
                }
            }
            batch_bytes += bytes;
            batch.push((location, record, row));
            rows += 1;
            Ok(ControlFlow::Continue(()))
        })?;
        self.rewrite(table, &batch)?;
        if rows > 0 {
            tracing::info!(table = table.name, rows, layout = table.layout(), "rows migrated");
        }
        Ok(())
    }

    /// Writes rows of the current layout over older ones, in one frame.
    fn rewrite(&self, table: &'static TableDef, batch: &[(Location, StoredRecord, Vec<u8>)]) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let mut writer = lock(&self.writer);
        let bytes_max = |(_, record, row): &(Location, StoredRecord, Vec<u8>)| {
            record_bytes(record.key().len(), row.len()) + HEADER_BYTES_MAX
        };
        let bytes_max = batch.iter().map(bytes_max).sum();
        while !self.make_room(&mut writer, bytes_max, FrameKind::Commit)? {}
        let mut packer = Packer::new(writer.active.number, Some(&self.dictionary), batch.len());
        let mut written = Vec::with_capacity(batch.len());
        let frame = writer.begin();
        for (_, record, row) in batch {
            let at = frame.len();
            let (birth, serial, layout) = (Some(record.birth), record.serial, table.layout());
            let head = Head { table: table.id, birth, serial, layout };
            written.push((at, put_row(&mut packer, table, head, (record.key(), row), frame)));
        }
        let serial_next = writer.serial_next;
        let start = self.append(&mut writer, FrameKind::Commit, batch.len(), serial_next)?;
        let mut state = self.write();
        for ((old, record, _), (at, bytes)) in batch.iter().zip(written) {
            let location = Location::new(writer.active.number, start + at as u64, bytes);
            state.segments[&old.segment()].live.fetch_sub(record.record_bytes, Ordering::Relaxed);
            let key = fingerprint(&self.identity, record.key());
            let index = state.tables.get_mut(&table.id).expect("its rows were just read");
            index.primary.replace(key, *old, location);
            writer.active.live.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        Ok(())
    }
}
