//! The writing side of a connection, which server and client share.

use std::io;

use tokio::net::{tcp, unix};

/// The write half of a connection.
pub(super) enum WriteHalf {
    Tcp(tcp::OwnedWriteHalf),
    Unix(unix::OwnedWriteHalf),
}

impl WriteHalf {
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(half) => half.try_write(bytes),
            Self::Unix(half) => half.try_write(bytes),
        }
    }

    pub(super) async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(half) => half.writable().await,
            Self::Unix(half) => half.writable().await,
        }
    }
}

/// Empty buffers above this capacity are freed, and up to this much is kept although it is written.
pub(super) const BYTES_KEPT: usize = 64 << 10;

/// Bytes to be written, in order.
#[derive(Default)]
pub(super) struct Unwritten {
    bytes: Vec<u8>,
    /// Length of the part that is written and not dropped yet.
    written: usize,
}

impl Unwritten {
    /// Bytes that are not written.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.written
    }

    /// The buffer, to append to.
    pub(super) fn end(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Writes until everything is written (`true`) or nothing more is accepted (`false`).
    ///
    /// # Errors
    /// The error of `write`, except that it would block.
    pub(super) fn write(&mut self, mut write: impl FnMut(&[u8]) -> io::Result<usize>) -> io::Result<bool> {
        while self.len() > 0 {
            match write(&self.bytes[self.written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.drop_written();
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        self.written = 0;
        if self.bytes.capacity() > BYTES_KEPT {
            self.bytes = Vec::new();
        } else {
            self.bytes.clear();
        }
        Ok(true)
    }

    /// Drops what is written once it is the greater part, which costs less than writing it did. Otherwise a client that
    /// always leaves something unread would hold all that it was ever sent.
    fn drop_written(&mut self) {
        if self.written >= BYTES_KEPT.max(self.bytes.len() / 2) {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_is_always_behind_holds_what_it_has_not_read() {
        const BEHIND: usize = 300 << 10;
        let mut unwritten = Unwritten::default();
        let (mut sent, mut got) = (0_u8, Vec::new());
        for _ in 0..2_000 {
            let frame: Vec<u8> = std::iter::repeat_with(|| {
                sent = sent.wrapping_add(1);
                sent
            })
            .take(10_000)
            .collect();
            unwritten.end().extend(frame);
            let mut accepted = unwritten.len().saturating_sub(BEHIND);
            let is_done = unwritten.write(|bytes| {
                let count = bytes.len().min(accepted).min(7_000);
                accepted -= count;
                got.extend_from_slice(&bytes[..count]);
                if count == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(count) }
            });
            assert!(!is_done.unwrap());
            assert!(unwritten.end().capacity() < 4 * BEHIND, "{}", unwritten.end().capacity());
        }
        assert!(
            unwritten
                .write(|bytes| {
                    got.extend_from_slice(bytes);
                    Ok(bytes.len())
                })
                .unwrap()
        );
        assert_eq!((unwritten.len(), unwritten.end().capacity(), got.len()), (0, 0, 20_000_000));
        assert!(got.iter().enumerate().all(|(at, byte)| *byte == (at as u8).wrapping_add(1)));
    }
}
