//! Reading a store without opening it: for operators and tests.

use std::path::{Path, PathBuf};

use super::disk::{Disk, io_error, read_file};
use super::format::{
    CHECKPOINT_NAME, FrameKind, MANIFEST_NAME, Manifest, SEGMENT_HEADER_BYTES, segment_number,
};
use super::recover::{End, check_numbers, find_frame, open_segment, read_segment, scan_frames, scan_records};
use crate::Result;

/// A frame of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameInfo {
    /// The number of its segment.
    pub segment: u32,
    /// Where it starts in the segment, in bytes.
    pub offset: u64,
    /// Its size with its header, in bytes.
    pub bytes: u64,
    /// Its number in the journal.
    pub sequence: u64,
    /// Why it was written.
    pub kind: FrameKind,
    /// The records in it.
    pub records: Vec<RecordInfo>,
}

/// A record of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordInfo {
    /// The number of its table.
    pub table: u16,
    /// Its serial.
    pub serial: u64,
    /// Whether it deletes its row.
    pub is_deletion: bool,
    /// Its size with what the journal adds to the row, in bytes.
    pub bytes: u64,
}

/// What a segment holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentReport {
    /// Its number.
    pub number: u32,
    /// Its file.
    pub file: PathBuf,
    /// Where its frames end, in bytes.
    pub used_bytes: u64,
    /// How many frames it has.
    pub frames: u64,
    /// How many records they have.
    pub records: u64,
    /// The first and last frame's numbers.
    pub sequences: Option<(u64, u64)>,
}

/// What [`EmbeddedStore::verify`](super::EmbeddedStore::verify) found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The segments in order.
    pub segments: Vec<SegmentReport>,
    /// The size of the checkpoint if there is one, in bytes.
    pub checkpoint_bytes: Option<u64>,
    /// A commit that was interrupted at the end of the journal: the next opening drops it. File and offset.
    pub torn_tail: Option<(PathBuf, u64)>,
    /// Everything that is wrong. Empty: the store is sound.
    pub problems: Vec<String>,
}

pub(crate) fn verify(disk: &dyn Disk, dir: &Path, visit: &mut dyn FnMut(FrameInfo)) -> Result<Report> {
    let manifest_path = dir.join(MANIFEST_NAME);
    let manifest = Manifest::decode(&manifest_path, &read_file(disk, &manifest_path)?)?;
    let names = disk.list(dir).map_err(|source| io_error("list", dir, source))?;
    let mut numbers: Vec<u32> = names.iter().filter_map(|name| segment_number(name)).collect();
    numbers.sort_unstable();
    let mut report = Report::default();
    if let Err(error) = check_numbers(dir, &manifest, &numbers) {
        report.problems.push(error.to_string());
    }
    numbers.retain(|number| *number > manifest.segments_upto || manifest.segments.contains(number));
    let mut sequence_next: Option<u64> = None;
    let mut bad: Vec<(PathBuf, u64, &'static str)> = Vec::new();
    for number in numbers {
        let segment = match open_segment(disk, dir, &manifest, number, false) {
            Ok(segment) => segment,
            Err(error) => {
                report.problems.push(error.to_string());
                continue;
            }
        };
        let bytes = read_segment(&segment)?;
        let mut own = SegmentReport {
            number,
            file: segment.path.clone(),
            used_bytes: SEGMENT_HEADER_BYTES,
            frames: 0,
            records: 0,
            sequences: None,
        };
        let mut problems = Vec::new();
        let mut start = SEGMENT_HEADER_BYTES;
        // Past a bad frame go on with the next genuine one, so that one run shows all damage.
        loop {
            let end =
                scan_frames(&manifest.identity, number, &bytes, start, &mut |offset, header, payload| {
                    let sequence = header.sequence;
                    if sequence_next.is_some_and(|next| sequence < next) {
                        problems.push(
                            segment.corrupt(offset, format!("frame {sequence} is out of order")).to_string(),
                        );
                    }
                    sequence_next = Some(sequence + 1);
                    own.sequences = Some((own.sequences.map_or(sequence, |(first, _)| first), sequence));
                    own.frames += 1;
                    let mut records = Vec::new();
                    let scanned = scan_records(header, payload, &mut |_, bytes, record| {
                        records.push(RecordInfo {
                            table: record.table,
                            serial: record.serial,
                            is_deletion: record.row.is_none(),
                            bytes: bytes as u64,
                        });
                        Ok(())
                    })?;
                    if let Err(what) = scanned {
                        problems.push(segment.corrupt(offset, what).to_string());
                    }
                    own.records += records.len() as u64;
                    visit(FrameInfo {
                        segment: number,
                        offset,
                        bytes: header.frame_bytes(),
                        sequence,
                        kind: header.kind,
                        records,
                    });
                    // Genuine frames after it: what was bad before was no torn tail.
                    let earlier = bad
                        .drain(..)
                        .map(|(file, offset, what)| format!("{} at byte {offset}: {what}", file.display()));
                    problems.extend(earlier);
                    Ok(())
                })?;
            match end {
                End::Clean(offset) => {
                    own.used_bytes = offset;
                    break;
                }
                End::Bad(offset, what) => {
                    own.used_bytes = offset;
                    bad.push((segment.path.clone(), offset, what));
                    let Some(next) = find_frame(&manifest.identity, number, &bytes, offset + 8) else {
                        break;
                    };
                    if next <= start {
                        break;
                    }
                    start = next;
                }
            }
        }
        report.problems.append(&mut problems);
        report.segments.push(own);
    }
    let mut bad = bad.into_iter();
    report.torn_tail = bad.next().map(|(file, offset, _)| (file, offset));
    report
        .problems
        .extend(bad.map(|(file, offset, what)| format!("{} at byte {offset}: {what}", file.display())));
    if names.iter().any(|name| name == CHECKPOINT_NAME) {
        let path = dir.join(CHECKPOINT_NAME);
        let bytes = read_file(disk, &path)?;
        report.checkpoint_bytes = Some(bytes.len() as u64);
        let sound = bytes
            .split_last_chunk::<4>()
            .is_some_and(|(body, crc)| crc32c::crc32c(body).to_le_bytes() == *crc);
        if !sound {
            report.problems.push(format!(
                "{}: wrong checksum; the next opening reads the journal instead",
                path.display()
            ));
        }
    }
    Ok(report)
}
