//! Reads files that a checkpoint names.

use std::sync::Arc;

use super::disk::{DiskFile, read_full_at};
use crate::StoreError;

const BUFFER_BYTES: usize = 1 << 20;
/// The size of a piece of a run that is written and synced at once: commits wait for one piece.
pub(crate) const FLUSH_BYTES: usize = 256 << 10;

/// Why a checkpoint is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckpointError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("it is too short")]
    Short,
    #[error("it is truncated")]
    Truncated,
    #[error("it is of another format")]
    Format,
    #[error("an older program wrote it")]
    Older,
    #[error("it belongs to another store")]
    OtherStore,
    #[error("the index definitions have changed")]
    IndexesChanged,
    #[error("trailing data")]
    Trailing,
    #[error("its checksum is wrong")]
    Checksum,
    #[error("it cannot be read: {0}")]
    Store(#[from] StoreError),
    #[error("index file {0} cannot be used: {1}")]
    Run(u32, &'static str),
}

pub(crate) type Loaded<T> = std::result::Result<T, CheckpointError>;

/// Reads a file through a buffer, and computes its checksum.
pub(crate) struct In {
    file: Arc<dyn DiskFile>,
    buffer: Vec<u8>,
    at: usize,
    offset: u64,
    left: u64,
    crc: u32,
}

impl In {
    /// Reads the bytes from an offset on.
    pub(super) fn new(file: Arc<dyn DiskFile>, offset: u64, left: u64) -> Self {
        Self { file, buffer: Vec::new(), at: 0, offset, left, crc: 0 }
    }

    /// Reads what is left, and returns the checksum of everything.
    pub(super) fn finish(mut self) -> Loaded<u32> {
        loop {
            self.at = self.buffer.len();
            if self.left == 0 {
                return Ok(self.crc);
            }
            self.take(1)?;
        }
    }

    pub(super) fn take(&mut self, n: usize) -> Loaded<&[u8]> {
        if self.buffer.len() - self.at < n {
            self.buffer.drain(..self.at);
            self.at = 0;
            let have = self.buffer.len();
            let want = usize::try_from(self.left).unwrap_or(usize::MAX).min(BUFFER_BYTES.max(n - have));
            self.buffer.resize(have + want, 0);
            let got = read_full_at(&*self.file, &mut self.buffer[have..], self.offset)?;
            self.buffer.truncate(have + got);
            self.crc = crc32c::crc32c_append(self.crc, &self.buffer[have..]);
            self.offset += got as u64;
            self.left -= got as u64;
            if self.buffer.len() < n {
                return Err(CheckpointError::Truncated);
            }
        }
        self.at += n;
        Ok(&self.buffer[self.at - n..self.at])
    }

    pub(super) fn array<const N: usize>(&mut self) -> Loaded<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("take returns the length asked for"))
    }

    pub(super) fn u8(&mut self) -> Loaded<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn u16(&mut self) -> Loaded<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Loaded<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Loaded<u64> {
        self.array().map(u64::from_le_bytes)
    }
}
