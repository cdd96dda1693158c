//! Reading a store without opening it, for operators and tests. It judges as opening does, but reads more: a
//! sound store opens, and a store that does not open is not sound.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::checkpoint::Outline;
use super::disk::{Disk, io_error, read_file};
use super::format::{
    CHECKPOINT_NAME, FrameKind, MANIFEST_NAME, Manifest, SEGMENT_HEADER_BYTES, segment_number,
};
use super::head::Head;
use super::input::CheckpointError;
use super::recover::{
    End, check_numbers, damaged_tail, find_frame, open_segment, read_segment, scan_frames, scan_records,
};
use super::runs::{Run, run_name};
use super::tail::{Fault, read_mark};
use crate::{Result, StoreError};

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
    /// Whether it is a deletion of its row.
    pub is_deletion: bool,
    /// Its size, including what the journal adds to the row, in bytes.
    pub bytes: u64,
}

/// The content of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentReport {
    pub number: u32,
    pub file: PathBuf,
    /// Where its frames end, in bytes.
    pub used_bytes: u64,
    /// Number of frames that it has.
    pub frames: u64,
    /// Number of records that they have.
    pub records: u64,
    /// The first and last frame's numbers.
    pub sequences: Option<(u64, u64)>,
}

/// The result of [`EmbeddedStore::verify`](super::EmbeddedStore::verify).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The segments in order.
    pub segments: Vec<SegmentReport>,
    /// The size of the checkpoint if there is one, in bytes.
    pub checkpoint_bytes: Option<u64>,
    /// The size of the index files that it names, in bytes.
    pub index_bytes: u64,
    /// A commit that was interrupted at the end of the journal, which the next opening drops. File and
    /// offset.
    pub torn_tail: Option<(PathBuf, u64)>,
    /// Everything that is wrong. If it is empty, the store is sound.
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
    let checkpoint = read_checkpoint(disk, dir, &manifest, &names, &mut report)?;
    // The next frame's number. `None` if it is unknown, because frames are missing after damage or
    // compaction.
    let mut sequence_next = numbers.first().is_none_or(|&first| first == 1).then_some(1);
    let mut sequence_end = 1;
    let mut previous: Option<u32> = None;
    let mut bad: Vec<(PathBuf, u64, Fault)> = Vec::new();
    for number in numbers {
        let segment = match open_segment(disk, dir, &manifest, number, false) {
            Ok(segment) => segment,
            Err(error) => {
                report.problems.push(error.to_string());
                sequence_next = None;
                continue;
            }
        };
        // Frames of a segment that compaction has removed are missing, unless the checkpoint still refers to
        // it.
        let is_known = checkpoint.as_ref().is_none_or(|known| number <= known.segment);
        if is_known && previous.is_some_and(|previous| previous + 1 != number) {
            sequence_next = None;
        }
        previous = Some(number);
        let bytes = read_segment(&segment)?;
        let mut own = SegmentReport {
            number,
            file: segment.path.clone(),
            used_bytes: SEGMENT_HEADER_BYTES,
            frames: 0,
            records: 0,
            sequences: None,
        };
        let known = checkpoint.as_ref().and_then(|known| known.segments.get(&number).copied()).unwrap_or(0);
        let mut problems = Vec::new();
        let mut start = SEGMENT_HEADER_BYTES;
        // Continue after a bad frame with the next genuine one, so that one run finds all damage.
        loop {
            let end = scan_frames(&manifest.identity, number, &bytes, start, &mut |offset, header| {
                let sequence = header.sequence;
                if let Some(next) = sequence_next.filter(|&next| next != sequence) {
                    let what = format!("frame {sequence} where frame {next} belongs");
                    problems.push(segment.corrupt(offset, what).to_string());
                } else if sequence < sequence_end {
                    let what = format!("frame {sequence} is out of order");
                    problems.push(segment.corrupt(offset, what).to_string());
                }
                sequence_next = Some(sequence + 1);
                sequence_end = sequence + 1;
                own.sequences = Some((own.sequences.map_or(sequence, |(first, _)| first), sequence));
                own.frames += 1;
                let mut records = Vec::new();
                let scanned = scan_records((header, offset), (number, &bytes), &mut |_, bytes, record| {
                    records.push(RecordInfo {
                        table: record.table,
                        serial: record.serial,
                        is_deletion: !record.is_row(),
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
                // Genuine frames follow, so the bad one was not a torn tail.
                let earlier = bad.drain(..).map(|(file, _, fault)| describe(&file, fault));
                problems.extend(earlier);
                Ok(())
            })?;
            match end {
                End::Clean(offset) => {
                    own.used_bytes = offset;
                    break;
                }
                End::Bad(offset, fault) => {
                    own.used_bytes = offset;
                    if offset < known {
                        // A checkpoint contains it, so it was durable.
                        problems.push(describe(&segment.path, fault));
                    } else {
                        bad.push((segment.path.clone(), offset, fault));
                    }
                    sequence_next = None;
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
        let is_cut = own.used_bytes < known && problems.is_empty();
        report.problems.append(&mut problems);
        if is_cut {
            let what = format!("the frames end here, but a checkpoint knows of frames up to byte {known}");
            report.problems.push(segment.corrupt(own.used_bytes, what).to_string());
        }
        report.segments.push(own);
    }
    let mut bad = bad.into_iter();
    match bad.next() {
        Some((file, offset, Fault::Torn(..))) => report.torn_tail = Some((file, offset)),
        Some((file, _, fault)) => {
            let what = StoreError::Corrupt { file, offset: fault.at(), what: damaged_tail(fault) };
            report.problems.push(what.to_string());
        }
        None => {}
    }
    report.problems.extend(bad.map(|(file, _, fault)| describe(&file, fault)));
    if let Some(known) = &checkpoint {
        sequence_end = sequence_end.max(known.sequence);
        if sequence_end < known.sequence_end {
            report.problems.push(format!(
                "the journal ends before frame {sequence_end}, but a checkpoint has all before frame {}; restore a backup",
                known.sequence_end
            ));
        }
    }
    if let Some((mark, _)) = read_mark(disk, dir, &manifest.identity)?
        && sequence_end < mark.sequence
    {
        report.problems.push(mark.complaint(sequence_end));
    }
    Ok(report)
}

fn describe(file: &Path, fault: Fault) -> String {
    format!("{} at byte {}: {}", file.display(), fault.at(), fault.what())
}

/// A checkpoint's facts about the journal.
struct Known {
    /// Where replay continues: a segment, and the next frame's number.
    segment: u32,
    sequence: u64,
    /// The journal has all frames before this one.
    sequence_end: u64,
    /// End of the frames of each segment, in bytes.
    segments: BTreeMap<u32, u64>,
}

/// Reads the checkpoint, if there is one, and its runs. If they fail verification, that is reported, but does
/// not prevent opening.
fn read_checkpoint(
    disk: &dyn Disk,
    dir: &Path,
    manifest: &Manifest,
    names: &[String],
    report: &mut Report,
) -> Result<Option<Known>> {
    if !names.iter().any(|name| name == CHECKPOINT_NAME) {
        return Ok(None);
    }
    let path = dir.join(CHECKPOINT_NAME);
    let bytes = read_file(disk, &path)?;
    report.checkpoint_bytes = Some(bytes.len() as u64);
    let outline = match Outline::decode(&manifest.identity, &bytes) {
        Ok(outline) => outline,
        // The next opening replaces it.
        Err(CheckpointError::Older) => return Ok(None),
        Err(reason) => {
            report
                .problems
                .push(format!("{}: {reason}; the next opening reads the journal instead", path.display()));
            return Ok(None);
        }
    };
    for name in &outline.runs {
        report.index_bytes += name.bytes;
        let run = match Run::open(disk, dir, &manifest.identity, *name) {
            Ok(run) => Arc::new(run),
            Err(reason) => {
                report.problems.push(format!(
                    "{}: {reason}; the next opening reads the journal instead",
                    dir.join(run_name(name.number)).display()
                ));
                // As opening does: the checkpoint counts for nothing.
                return Ok(None);
            }
        };
        if let Err(error) = run.verify() {
            report.problems.push(error.to_string());
        }
    }
    let Head { position, segments } = outline.head;
    Ok(Some(Known {
        segment: position.segment,
        sequence: position.sequence,
        sequence_end: outline.sequence_end,
        segments: segments.iter().map(|segment| (segment.number, segment.used)).collect(),
    }))
}
