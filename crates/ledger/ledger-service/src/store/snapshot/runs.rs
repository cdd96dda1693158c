//! Runs of ids: sorted, immutable, with filters in memory.
//!
//! An entry has the hash of an id, the number of the record that used it, and its status. If a pending transfer
//! is resolved after its entry was written, a later run has another entry for the same record.
//!
//! The entries are in *pages*, each a row. Some pages that follow each other form a *section*, which has one
//! filter and the first hash of each page (*fences*). Memory has filters and fences, so an id that was never
//! used costs no read, and a known one costs one page.

use std::sync::Arc;

use batzen_ledger::machine::{IdHasher, IdStatus, RECORDS_MAX};
use batzen_store::{Filter, Store, StoreError, Table};
use batzen_tables::ledger::{
    LedgerIdFilterKey, LedgerIdFilterRow, LedgerIdFilters, LedgerIdPageKey, LedgerIdPageRow, LedgerIdPages,
};

use super::head::RunHead;
use super::put::Put;
use super::{ENTRY_BYTES, SnapshotOptions};

/// A use of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct IdEntry {
    pub(crate) hash: u64,
    /// Three bits are the status, the rest the record's number.
    place: u64,
}

impl IdEntry {
    pub(crate) fn new(hash: u64, number: u64, status: IdStatus) -> Self {
        assert!(number < RECORDS_MAX, "the log is full");
        Self { hash, place: number << 3 | status as u64 }
    }

    pub(crate) const fn number(&self) -> u64 {
        self.place >> 3
    }

    pub(crate) fn status(&self) -> IdStatus {
        let number = u8::try_from(self.place & 7).expect("three bits");
        IdStatus::from_number(number).expect("entries have a status")
    }

    pub(crate) fn set_status(&mut self, status: IdStatus) {
        *self = Self::new(self.hash, self.number(), status);
    }

    /// Entries are merged in this order.
    pub(crate) const fn order(&self) -> (u64, u64) {
        (self.hash, self.number())
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.hash.to_be_bytes());
        out.extend_from_slice(&self.place.to_be_bytes()[3..]);
    }

    fn decode(bytes: &[u8; ENTRY_BYTES]) -> Option<Self> {
        let (hash, place) = bytes.split_first_chunk().expect("it is longer");
        let mut wide = [0; 8];
        wide[3..].copy_from_slice(place);
        let entry = Self { hash: u64::from_be_bytes(*hash), place: u64::from_be_bytes(wide) };
        IdStatus::from_number(u8::try_from(entry.place & 7).expect("three bits")).map(|_| entry)
    }
}

/// A section of a run.
struct Section {
    first_page: u32,
    fences: Vec<u64>,
    filter: Filter<2>,
}

/// A run. Its rows are deleted only when nobody has it any more.
pub(crate) struct Run {
    pub(crate) head: RunHead,
    /// The first hash of each section.
    firsts: Vec<u64>,
    sections: Vec<Section>,
}

fn damaged(run: u64, what: impl std::fmt::Display) -> StoreError {
    super::pages::damaged(LedgerIdPages::DEF.name, run, &what)
}

impl Run {
    /// Loads filters and fences.
    pub(crate) fn load(store: &Store, head: RunHead) -> Result<Self, StoreError> {
        const SECTIONS_AT_ONCE: usize = 16;
        let keys: Vec<LedgerIdFilterKey> =
            (0..head.sections).map(|section| LedgerIdFilterKey { run: head.number, section }).collect();
        let mut run = Self { head, firsts: Vec::new(), sections: Vec::new() };
        for keys in keys.chunks(SECTIONS_AT_ONCE) {
            for row in store.get_many::<LedgerIdFilters>(keys)? {
                run.add(row.map(|stored| stored.row))?;
            }
        }
        Ok(run)
    }

    /// A run with these sections.
    pub(crate) fn of(
        head: RunHead,
        sections: impl Iterator<Item = Option<LedgerIdFilterRow>>,
    ) -> Result<Self, StoreError> {
        let mut run = Self { head, firsts: Vec::new(), sections: Vec::new() };
        for row in sections {
            run.add(row)?;
        }
        Ok(run)
    }

    fn add(&mut self, row: Option<LedgerIdFilterRow>) -> Result<(), StoreError> {
        let row = row.ok_or_else(|| damaged(self.head.number, "it lacks a filter"))?;
        let section = Section::of(&row).ok_or_else(|| damaged(self.head.number, "a filter is none"))?;
        let follows = |first: &u64| {
            section.first_page == self.pages() && self.firsts.last().is_none_or(|last| last < first)
        };
        let first = section.fences.first().copied().filter(follows);
        self.firsts.push(first.ok_or_else(|| damaged(self.head.number, "its sections do not follow"))?);
        self.sections.push(section);
        Ok(())
    }

    /// Returns whether an entry with this hash is found in this page.
    pub(crate) fn has(&self, hash: u64, page: u32) -> bool {
        self.may_contain(hash) && self.page_with(hash) == Some(page)
    }

    pub(crate) fn pages(&self) -> u32 {
        self.sections.last().map_or(0, Section::next_page)
    }

    /// Returns whether an entry may have this hash.
    #[inline]
    fn may_contain(&self, hash: u64) -> bool {
        let after = self.firsts.partition_point(|first| *first <= hash);
        after.checked_sub(1).is_some_and(|at| self.sections[at].filter.may_contain(hash))
    }

    /// The page that has entries with this hash, if any has.
    fn page_with(&self, hash: u64) -> Option<u32> {
        let section = &self.sections[self.firsts.partition_point(|first| *first <= hash).checked_sub(1)?];
        let page = section.fences.partition_point(|fence| *fence <= hash).checked_sub(1)?;
        Some(section.first_page + u32::try_from(page).expect("pages have numbers of 32 bits"))
    }

    /// Reads consecutive pages.
    pub(crate) fn read(&self, store: &Store, pages: &[u32]) -> Result<Vec<Vec<IdEntry>>, StoreError> {
        let number = self.head.number;
        let keys: Vec<LedgerIdPageKey> =
            pages.iter().map(|page| LedgerIdPageKey { run: number, page: *page }).collect();
        let rows = store.get_many::<LedgerIdPages>(&keys)?;
        let pages = rows.into_iter().zip(pages).map(|(row, page)| {
            let row = row.ok_or_else(|| damaged(number, format!("it lacks page {page}")))?.row;
            decode_page(&row).ok_or_else(|| damaged(number, format!("page {page} is none")))
        });
        pages.collect()
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        let sections = self.sections.iter();
        sections
            .map(|section| 80 + section.fences.capacity() as u64 * 8 + section.filter.bytes() as u64)
            .sum()
    }

    /// Rows and filters on the disk.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.head.entries * ENTRY_BYTES as u64 + self.memory_bytes()
    }
}

/// The entries of a page, if it is one.
pub(super) fn decode_page(row: &LedgerIdPageRow) -> Option<Vec<IdEntry>> {
    let (entries, rest) = row.entries.as_chunks::<ENTRY_BYTES>();
    let entries = entries.iter().map(IdEntry::decode).collect::<Option<Vec<_>>>()?;
    let is_page = rest.is_empty() && !entries.is_empty() && entries.is_sorted_by_key(IdEntry::order);
    is_page.then_some(entries)
}

impl Section {
    fn of(row: &LedgerIdFilterRow) -> Option<Self> {
        let (fences, rest) = row.fences.as_chunks::<8>();
        let fences: Vec<u64> = fences.iter().map(|fence| u64::from_be_bytes(*fence)).collect();
        let filter = Filter::from_parts(row.descriptor, &row.fingerprints)?;
        let is_section = rest.is_empty() && fences.is_sorted();
        is_section.then_some(Self { first_page: row.first_page, fences, filter })
    }

    fn row(&self) -> LedgerIdFilterRow {
        let (descriptor, fingerprints) = self.filter.parts();
        LedgerIdFilterRow {
            first_page: self.first_page,
            fences: self.fences.iter().flat_map(|fence| fence.to_be_bytes()).collect(),
            descriptor: *descriptor,
            fingerprints: fingerprints.to_vec(),
        }
    }

    fn next_page(&self) -> u32 {
        self.first_page + u32::try_from(self.fences.len()).expect("pages have numbers of 32 bits")
    }
}

/// All runs of a snapshot, oldest first, and how ids are hashed for them.
#[derive(Clone)]
pub(crate) struct Ids {
    pub(crate) hasher: IdHasher,
    pub(crate) runs: Vec<Arc<Run>>,
}

/// Pages that one read gets at once.
const PAGES_AT_ONCE: usize = 64;

impl Ids {
    pub(crate) fn new(hash_key: &[u8; 16]) -> Self {
        Self { hasher: IdHasher::new(hash_key), runs: Vec::new() }
    }

    /// Visits the entries with these hashes, the latest status of a record first: position of the hash, number
    /// and status. Hashes that no filter knows cost no read.
    pub(crate) fn find(
        &self,
        store: &Store,
        hashes: &[u64],
        visit: &mut dyn FnMut(usize, u64, IdStatus),
    ) -> Result<(), StoreError> {
        for run in self.runs.iter().rev() {
            let known = (0..hashes.len()).filter(|at| run.may_contain(hashes[*at]));
            let mut found: Vec<(u32, usize)> =
                known.filter_map(|at| Some((run.page_with(hashes[at])?, at))).collect();
            found.sort_unstable();
            let mut pages: Vec<u32> = found.iter().map(|(page, _)| *page).collect();
            pages.dedup();
            let mut found = found.into_iter().peekable();
            for pages in pages.chunks(PAGES_AT_ONCE) {
                for (page, entries) in pages.iter().zip(run.read(store, pages)?) {
                    while let Some((_, at)) = found.next_if(|(of, _)| of == page) {
                        let from = entries.partition_point(|entry| entry.hash < hashes[at]);
                        for entry in entries[from..].iter().take_while(|entry| entry.hash == hashes[at]) {
                            visit(at, entry.number(), entry.status());
                        }
                    }
                }
            }
        }
        Ok(())
    }

    pub(crate) fn entries(&self) -> u64 {
        self.runs.iter().map(|run| run.head.entries).sum()
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.memory_bytes()).sum()
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.disk_bytes()).sum()
    }
}

/// Makes the rows of a new run from entries in order.
pub(super) struct RunWriter {
    number: u64,
    options: SnapshotOptions,
    entries: u64,
    /// The current page.
    page: Vec<IdEntry>,
    next_page: u32,
    /// The current section: its fences and hashes.
    fences: Vec<u64>,
    hashes: Vec<u64>,
    firsts: Vec<u64>,
    sections: Vec<Section>,
}

impl RunWriter {
    pub(super) const fn new(number: u64, options: SnapshotOptions) -> Self {
        Self {
            number,
            options,
            entries: 0,
            page: Vec::new(),
            next_page: 0,
            fences: Vec::new(),
            hashes: Vec::new(),
            firsts: Vec::new(),
            sections: Vec::new(),
        }
    }

    /// Adds the next entry. Entries with the same hash stay in one page.
    pub(super) fn push(&mut self, entry: IdEntry, rows: &mut impl Extend<Put>) {
        let last = self.page.last().map(|last| last.hash);
        if self.page.len() >= self.options.page_entries && last != Some(entry.hash) {
            self.end_page(rows);
            if self.fences.len() >= self.options.section_pages {
                self.end_section(rows);
            }
        }
        if last != Some(entry.hash) {
            self.hashes.push(entry.hash);
        }
        self.page.push(entry);
        self.entries += 1;
    }

    fn end_page(&mut self, rows: &mut impl Extend<Put>) {
        let Some(first) = self.page.first() else { return };
        self.fences.push(first.hash);
        let mut entries = Vec::with_capacity(self.page.len() * ENTRY_BYTES);
        for entry in self.page.drain(..) {
            entry.encode(&mut entries);
        }
        let key = LedgerIdPageKey { run: self.number, page: self.next_page };
        rows.extend([Put::row::<LedgerIdPages>(&key, &LedgerIdPageRow { entries })]);
        self.next_page += 1;
    }

    fn end_section(&mut self, rows: &mut impl Extend<Put>) {
        let Some(first) = self.fences.first().copied() else { return };
        let fences = std::mem::take(&mut self.fences);
        let pages = u32::try_from(fences.len()).expect("pages have numbers of 32 bits");
        let filter = Filter::build(&self.hashes);
        let section = Section { first_page: self.next_page - pages, fences, filter };
        self.hashes.clear();
        let number = u32::try_from(self.sections.len()).expect("sections have numbers of 32 bits");
        let key = LedgerIdFilterKey { run: self.number, section: number };
        rows.extend([Put::row::<LedgerIdFilters>(&key, &section.row())]);
        self.firsts.push(first);
        self.sections.push(section);
    }

    /// Ends the run. It is valid once all rows are durable.
    pub(super) fn finish(&mut self, level: u8, rows: &mut impl Extend<Put>) -> Run {
        self.end_page(rows);
        self.end_section(rows);
        let sections = std::mem::take(&mut self.sections);
        let count = u32::try_from(sections.len()).expect("sections have numbers of 32 bits");
        let head = RunHead { number: self.number, level, entries: self.entries, sections: count };
        Run { head, firsts: std::mem::take(&mut self.firsts), sections }
    }
}
