//! The code that the fuzz target `store_loader` runs: it opens a store of arbitrary files on a disk in
//! memory.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::disk::Disk;
use super::format::{
    CHECKPOINT_NAME, FRAME_HEADER_BYTES, FrameHeader, FrameKind, Identity, MANIFEST_NAME, MANIFEST_VERSION,
    Manifest, SEGMENT_HEADER_BYTES, TAIL_MARK_NAME, encode_segment_header, seal, segment_name,
};
use super::record::record_bytes_at;
use super::sim::SimDisk;
use super::{EmbeddedStore, Options, format, packed};
use crate::conformance::{Items, TABLES, key, row};
use crate::{Backend, ChangeSet, Result, Table};

const DIR: &str = "/store";
const IDENTITY: Identity = Identity { id: [42; 16], key: [42; 16] };
/// The header of each file: which file, whether to fix its checksums, and its size in two bytes.
const ENTRY_BYTES: usize = 4;

fn path(file: u8) -> PathBuf {
    let name = match file % 7 {
        0 => CHECKPOINT_NAME.to_owned(),
        1 => TAIL_MARK_NAME.to_owned(),
        2 => MANIFEST_NAME.to_owned(),
        number => segment_name(u32::from(number) - 2),
    };
    Path::new(DIR).join(name)
}

/// Fixes the checksums of a file, so that the code behind them is reached.
fn repair(file: u8, bytes: &mut Vec<u8>) {
    match file % 7 {
        0 => {
            let crc = crc32c::crc32c(bytes);
            bytes.extend_from_slice(&crc.to_le_bytes());
        }
        1 | 2 => {}
        number => repair_segment(u32::from(number) - 2, bytes),
    }
}

/// Reads a segment as a header and, for each frame, its kind, its number of records, the size of its payload
/// and the payload.
fn repair_segment(number: u32, bytes: &mut Vec<u8>) {
    let size = (bytes.len() * 2 + 4096) as u64 / 8 * 8;
    let mut segment = encode_segment_header(&IDENTITY, number, size).to_vec();
    let mut sequence = u64::from(number);
    let mut input = &bytes[..];
    while let Some((&[kind, records, skip, units], rest)) = input.split_first_chunk::<4>() {
        let (payload, rest) = rest.split_at(rest.len().min(usize::from(units) * 8) / 8 * 8);
        input = rest;
        let offset = segment.len() as u64;
        let mut frame = vec![0; FRAME_HEADER_BYTES];
        frame.extend_from_slice(payload);
        repair_records(&segment, &mut frame);
        let crc = seal(&mut frame, offset);
        let header = FrameHeader {
            kind: if kind % 2 == 0 { FrameKind::Commit } else { FrameKind::Move },
            payload_bytes: u32::try_from(payload.len()).expect("small"),
            seal_bytes: None,
            crc,
            sequence,
            serial_next: 1 << (skip % 62),
            records: u32::from(records),
        };
        frame[..FRAME_HEADER_BYTES].copy_from_slice(&header.encode(&IDENTITY, number, offset));
        segment.extend_from_slice(&frame);
        sequence += u64::from(skip % 16 / 15) + 1;
    }
    segment.resize(usize::try_from(size).expect("small").max(segment.len()), 0);
    *bytes = segment;
}

/// Fixes the checksums of the records in a frame that is to follow the segment's bytes.
fn repair_records(segment: &[u8], frame: &mut [u8]) {
    let mut at = FRAME_HEADER_BYTES;
    while let Some(size) = record_bytes_at(&frame[at..]).filter(|size| at + size <= frame.len()) {
        let before = [segment, &frame[..at]].concat();
        let record = &mut frame[at..at + size];
        if packed::is_packed(record) {
            packed::repair(record, before.len() as u64, &before);
        } else {
            format::repair_record(record);
        }
        at += size;
    }
}

/// Opens, verifies and uses a store that consists of the files in `data`.
pub fn load(data: &[u8]) {
    let disk = SimDisk::new(1);
    let mut segments = Vec::new();
    let mut has_manifest = false;
    let mut input = data;
    while let Some((&[file, flags, low, high], rest)) = input.split_first_chunk::<ENTRY_BYTES>() {
        let (content, rest) = rest.split_at(rest.len().min(usize::from(u16::from_le_bytes([low, high]))));
        input = rest;
        let mut content = content.to_vec();
        if flags % 2 == 1 {
            repair(file, &mut content);
        }
        if file % 7 > 2 {
            segments.push(u32::from(file % 7) - 2);
        }
        has_manifest |= file % 7 == 2;
        disk.create(&path(file)).expect("there is space");
        disk.tamper(&path(file), |bytes| *bytes = content);
    }
    segments.sort_unstable();
    segments.dedup();
    if !has_manifest {
        let segments_upto = segments.last().copied().unwrap_or(0);
        let manifest = Manifest {
            version: MANIFEST_VERSION,
            identity: IDENTITY,
            segments_upto,
            segments,
            layouts: BTreeMap::new(),
        };
        disk.create(&path(2)).expect("there is space");
        disk.tamper(&path(2), |bytes| *bytes = manifest.encode().into_bytes());
    }
    let _ = EmbeddedStore::inspect(DIR, &disk, &mut |_| ());
    // Invalid stores are refused with an error.
    if use_store(&disk).is_ok() {
        let _ = use_store(&disk);
    }
}

fn use_store(disk: &SimDisk) -> Result<()> {
    let options = Options {
        disk: Arc::new(disk.clone()),
        segment_bytes_first: SEGMENT_HEADER_BYTES * 16,
        segment_bytes_max: 4096,
        checkpoint_bytes: 1024,
        full_pause: Duration::ZERO,
        background: false,
        on_fatal: Arc::new(|reason| panic!("a disk without faults failed: {reason}")),
        ..Options::default()
    };
    let store = EmbeddedStore::open(DIR, TABLES, options)?;
    for table in TABLES {
        let _ = store.scan(table, &mut |_| ControlFlow::Continue(()));
    }
    let _ = store.lookup_many(Items::DEF, Items::BY_GROUP, &[vec![0, 0, 0, 1]]);
    let mut changes = ChangeSet::new();
    changes.insert::<Items>(&key(1, 1), &row("new", Some(1)));
    let _ = store.commit(&changes);
    let _ = store.maintain();
    store.close()
}
