//! The end of the journal: frames are appended here, one at a time.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::disk::{io_error, write_all_at};
use super::format::{
    FRAME_BYTES_LIMIT, FRAME_HEADER_BYTES, FrameHeader, FrameKind, SEGMENT_HEADER_BYTES,
    encode_segment_header, frame_bytes_max, seal, seal_bytes,
};
use super::{Core, Segment};
use crate::{Result, StoreError};

/// The end of the journal. Its lock is needed for every change.
pub(crate) struct Writer {
    pub active: Arc<Segment>,
    /// Where the next frame starts.
    pub offset: u64,
    /// The next frame's sequence number.
    pub sequence: u64,
    /// The serial of the next inserted row.
    pub(crate) serial_next: u64,
    frame: Vec<u8>,
}

impl Writer {
    pub(crate) fn new(active: Arc<Segment>, offset: u64, sequence: u64, serial_next: u64) -> Self {
        Self { active, offset, sequence, serial_next, frame: Vec::new() }
    }

    /// The buffer for a frame's records, empty except for the space of the header.
    pub(crate) fn begin(&mut self) -> &mut Vec<u8> {
        self.frame.clear();
        self.frame.resize(FRAME_HEADER_BYTES, 0);
        &mut self.frame
    }
}

/// Refuses a frame with that many bytes of records if it is too large.
pub(crate) fn check_frame_size(payload_bytes: usize) -> Result<()> {
    let bytes = frame_bytes_max(payload_bytes);
    if bytes > FRAME_BYTES_LIMIT {
        return Err(StoreError::TooLarge { bytes, limit: FRAME_BYTES_LIMIT });
    }
    Ok(())
}

impl Core {
    /// Completes the frame in the writer's buffer and makes it durable. Returns its offset. After an error,
    /// nothing of it is valid, and the writer is either unchanged or has stopped.
    pub(crate) fn append(
        &self,
        writer: &mut Writer,
        kind: FrameKind,
        records: usize,
        serial_next: u64,
    ) -> Result<u64> {
        let mut frame = std::mem::take(&mut writer.frame);
        let result = self.append_frame(writer, &mut frame, kind, records, serial_next);
        writer.frame = frame;
        result
    }

    fn append_frame(
        &self,
        writer: &mut Writer,
        frame: &mut Vec<u8>,
        kind: FrameKind,
        records: usize,
        serial_next: u64,
    ) -> Result<u64> {
        let payload_bytes = frame.len() - FRAME_HEADER_BYTES;
        assert!(serial_next >= writer.serial_next, "serials only grow");
        let fits = self.make_room(writer, payload_bytes, kind)?;
        assert!(fits, "records were encoded for the segment where they fit");
        let start = writer.offset;
        let crc = seal(frame, start);
        let frame_bytes = frame.len() as u64;
        let header = FrameHeader {
            kind,
            payload_bytes: u32::try_from(payload_bytes).expect("below the frame limit"),
            seal_bytes: None,
            crc,
            sequence: writer.sequence,
            serial_next,
            records: u32::try_from(records).expect("below the frame limit"),
        };
        let active = Arc::clone(&writer.active);
        let header = header.encode(&self.identity, active.number, start);
        frame[..FRAME_HEADER_BYTES].copy_from_slice(&header);

        if let Err(error) = write_all_at(&*active.file, frame, writer.offset) {
            let error = io_error("write", &active.path, error);
            if !matches!(error, StoreError::Full(_)) {
                return Err(self.fatal(writer, &active.path, "write", &error));
            }
            // This happens only on file systems that cannot reserve space. Truncate the file: the segment
            // ends here. Its header is changed first, since a file shorter than its segment counts as damage.
            let header = encode_segment_header(&self.identity, active.number, start);
            let cut = || {
                write_all_at(&*active.file, &header, 0)?;
                active.file.sync()?;
                active.file.set_len(start)?;
                active.file.sync()
            };
            let cut = cut();
            if let Err(error) = cut {
                return Err(self.fatal(writer, &active.path, "cut", &io_error("cut", &active.path, error)));
            }
            active.capacity.store(writer.offset, Ordering::Relaxed);
            self.wake.notify();
            return Err(error);
        }
        let sync_start = Instant::now();
        if let Err(error) = active.file.sync() {
            return Err(self.fatal(writer, &active.path, "sync", &io_error("sync", &active.path, error)));
        }
        self.counters.sync_times.time(sync_start.elapsed());
        self.counters.written.fetch_add(frame_bytes, Ordering::Relaxed);
        self.counters.since_checkpoint.fetch_add(frame_bytes, Ordering::Relaxed);
        writer.offset += frame_bytes;
        writer.sequence += 1;
        writer.serial_next = serial_next;
        active.used.store(writer.offset, Ordering::Release);
        self.counters.sequence_end.store(writer.sequence, Ordering::Release);
        Ok(start)
    }

    /// Goes on to the next segment if a frame with that many bytes of records does not fit. Returns whether it did,
    /// because packed records are valid in one segment only.
    pub(crate) fn make_room(
        &self,
        writer: &mut Writer,
        payload_bytes: usize,
        kind: FrameKind,
    ) -> Result<bool> {
        check_frame_size(payload_bytes)?;
        self.check_running()?;
        let frame_bytes = FRAME_HEADER_BYTES + payload_bytes + seal_bytes(writer.offset, payload_bytes);
        if writer.offset + frame_bytes as u64 <= writer.active.capacity.load(Ordering::Relaxed) {
            return Ok(true);
        }
        self.roll(writer, frame_bytes_max(payload_bytes), kind)?;
        Ok(false)
    }

    /// Switches to the next segment.
    fn roll(&self, writer: &mut Writer, frame_bytes: u64, kind: FrameKind) -> Result<()> {
        let segment = self.take_next(frame_bytes, kind).inspect_err(|_| self.wake.notify())?;
        let mut state = self.write();
        Arc::make_mut(&mut state.segments).insert(segment.number, Arc::clone(&segment));
        drop(state);
        writer.active = segment;
        writer.offset = SEGMENT_HEADER_BYTES;
        self.wake.notify();
        Ok(())
    }

    /// A write or sync failed, so the content of the disk is unknown. The process ends here, unless a test's
    /// hook returns.
    fn fatal(&self, writer: &Writer, path: &Path, action: &str, error: &StoreError) -> StoreError {
        let reason = format!("{action} of {} at byte {} failed: {error}", path.display(), writer.offset);
        (self.options.on_fatal)(&reason);
        self.stop(&reason);
        StoreError::Stopped(reason)
    }
}
