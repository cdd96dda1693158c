//! Cutting off a damaged end of the journal at an operator's request. Acknowledged commits may be lost.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use super::disk::{Disk, io_error, read_file, read_full_at, write_all_at};
use super::format::{
    CHECKPOINT_NAME, LOCK_NAME, MANIFEST_NAME, Manifest, SEGMENT_HEADER_BYTES, TAIL_MARK_NAME,
    decode_segment_header, segment_number,
};
use super::recover::{End, drop_tail, find_frame, open_segments, read_segment, scan_frames};
use crate::{Result, StoreError};

/// The part that was cut off a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CutTail {
    /// The file of the journal's last segment after the cut.
    pub segment: PathBuf,
    /// The offset of the cut.
    pub offset: u64,
    /// The number of the first frame that is lost.
    pub sequence: u64,
    /// The file that keeps the removed bytes. A file of the same name with `.txt` states the reason.
    pub kept: PathBuf,
}

/// See [`EmbeddedStore::cut_tail`](super::EmbeddedStore::cut_tail).
pub(crate) fn cut_tail(disk: &dyn Disk, dir: &Path, reason: &str) -> Result<CutTail> {
    let lock_path = dir.join(LOCK_NAME);
    let lock = disk.lock(&lock_path).map_err(|source| io_error("lock", &lock_path, source))?;
    let _lock = lock.ok_or_else(|| StoreError::InUse(dir.to_owned()))?;
    let manifest_path = dir.join(MANIFEST_NAME);
    let manifest = Manifest::decode(&manifest_path, &read_file(disk, &manifest_path)?)?;
    let identity = manifest.identity;
    fill_up(disk, dir, &manifest)?;
    let segments = open_segments(disk, dir, &manifest)?;

    // Where the genuine frames end, and the number of the next one.
    let mut end: Option<(u32, u64)> = None;
    let mut is_damaged = false;
    let mut sequence = 1;
    for (&number, segment) in &segments {
        let bytes = read_segment(segment)?;
        if is_damaged {
            if find_frame(&identity, number, &bytes, SEGMENT_HEADER_BYTES).is_some() {
                let (number, offset) = end.expect("there is damage");
                let what = "there are commits after the damage; restore a backup";
                return Err(segments[&number].corrupt(offset, what));
            }
            continue;
        }
        let scanned = scan_frames(&identity, number, &bytes, SEGMENT_HEADER_BYTES, &mut |_, header| {
            sequence = header.sequence + 1;
            Ok(())
        })?;
        let (End::Clean(offset) | End::Bad(offset, _)) = scanned;
        if let End::Bad(..) = scanned {
            is_damaged = true;
            if find_frame(&identity, number, &bytes, offset + 8).is_some() {
                return Err(segment.corrupt(offset, "there are commits after the damage; restore a backup"));
            }
        }
        if is_damaged || offset > SEGMENT_HEADER_BYTES || end.is_none() {
            end = Some((number, offset));
        }
    }
    let Some((number, offset)) = end else {
        return Err(StoreError::Format { file: dir.to_owned(), what: "there is no journal".into() });
    };
    let segment = &segments[&number];
    segment.used.store(offset, Ordering::Relaxed);

    // First copy the bytes, then remove the mark and the checkpoint that refer to them, and finally overwrite
    // them. The cut can be repeated after a crash.
    let bytes = read_segment(segment)?;
    let tail = &bytes[usize::try_from(offset).expect("it was found in memory")..];
    let tail = &tail[..tail.iter().rposition(|&b| b != 0).map_or(0, |last| last + 1)];
    let kept = dir.join(format!("cut-{sequence:08}.bin"));
    let text =
        format!("{reason}\n\n{} cut at byte {offset}, from frame {sequence} on\n", segment.path.display());
    for (path, content) in [(&kept, tail), (&kept.with_extension("txt"), text.as_bytes())] {
        let write = || {
            let file = disk.create(path)?;
            write_all_at(&*file, content, 0)?;
            file.sync()
        };
        write().map_err(|source| io_error("write", path, source))?;
    }
    let sync_dir = || disk.sync_dir(dir).map_err(|source| io_error("sync", dir, source));
    sync_dir()?;
    let names = disk.list(dir).map_err(|source| io_error("list", dir, source))?;
    for name in names.iter().filter(|name| [CHECKPOINT_NAME, TAIL_MARK_NAME].contains(&name.as_str())) {
        let path = dir.join(name);
        disk.remove(&path).map_err(|source| io_error("remove", &path, source))?;
    }
    sync_dir()?;
    drop_tail(segment, offset, reason)?;
    Ok(CutTail { segment: segment.path.clone(), offset, sequence, kept })
}

/// Extends truncated files with zeros to their original size. Frames lost with their ends are noticed anyway.
fn fill_up(disk: &dyn Disk, dir: &Path, manifest: &Manifest) -> Result<()> {
    for name in disk.list(dir).map_err(|source| io_error("list", dir, source))? {
        let Some(number) = segment_number(&name) else { continue };
        let path = dir.join(&name);
        let fill = || {
            let file = disk.open(&path, true)?;
            let mut header = [0; SEGMENT_HEADER_BYTES as usize];
            let n = read_full_at(&*file, &mut header, 0)?;
            let size = file.size()?;
            match decode_segment_header(&manifest.identity, number, &header[..n]) {
                Ok((version, capacity)) if version >= 2 && size < capacity => {
                    let zeros = vec![0; usize::try_from(capacity - size).expect("a part of a segment")];
                    write_all_at(&*file, &zeros, size)?;
                    file.sync()
                }
                _ => Ok(()),
            }
        };
        fill().map_err(|source| io_error("extend", &path, source))?;
    }
    Ok(())
}
