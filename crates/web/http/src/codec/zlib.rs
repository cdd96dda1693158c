//! Bodies with `Content-Encoding: deflate`, which means the zlib format (RFC 1950).

use flate2::{Compression, Decompress, FlushDecompress, Status, write::ZlibEncoder};
use std::io::Write;

/// Why a body could not be inflated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InflateError {
    /// The data is not one complete zlib stream (RFC 1950).
    #[error("the body is not one complete zlib stream")]
    Malformed,
    /// The inflated body would be larger than the limit.
    #[error("the inflated body is larger than {limit_bytes} bytes")]
    TooLarge {
        /// The limit that was hit.
        limit_bytes: usize,
    },
}

/// Inflates one complete zlib stream of at most `limit_bytes` (of output). Memory grows only with the output,
/// so a small body that would inflate to gigabytes costs no more than the limit.
///
/// # Errors
/// `InflateError`; trailing bytes after the stream count as malformed.
pub fn inflate(data: &[u8], limit_bytes: usize) -> Result<Vec<u8>, InflateError> {
    match inflate_with(data, limit_bytes, |_| true) {
        Ok(Some(inflated)) => Ok(inflated),
        Ok(None) => Err(InflateError::TooLarge { limit_bytes }),
        Err(error) => Err(error),
    }
}

/// Like [`inflate`], but asks `grow` before it allocates more memory. `None` if `grow` refused that many more
/// bytes.
///
/// # Errors
/// [`InflateError`]
pub(crate) fn inflate_with(
    data: &[u8],
    limit_bytes: usize,
    mut grow: impl FnMut(usize) -> bool,
) -> Result<Option<Vec<u8>>, InflateError> {
    let mut stream = Decompress::new(true);
    let mut out =
        Vec::with_capacity(data.len().saturating_mul(4).clamp(256, limit_bytes.saturating_add(1).max(256)));
    if !grow(out.capacity()) {
        return Ok(None);
    }
    loop {
        let consumed = usize::try_from(stream.total_in()).map_err(|_| InflateError::Malformed)?;
        let before = (stream.total_in(), out.len());
        let status = stream
            .decompress_vec(&data[consumed..], &mut out, FlushDecompress::None)
            .map_err(|_| InflateError::Malformed)?;
        if out.len() > limit_bytes {
            return Err(InflateError::TooLarge { limit_bytes });
        }
        match status {
            Status::StreamEnd if stream.total_in() == data.len() as u64 => return Ok(Some(out)),
            Status::StreamEnd => return Err(InflateError::Malformed),
            _ if out.len() == out.capacity() => {
                // One byte more than the limit is enough room to see that it is exceeded.
                let room = out.capacity().min(limit_bytes.saturating_add(1).saturating_sub(out.len())).max(1);
                if !grow(room) {
                    return Ok(None);
                }
                out.reserve_exact(room);
            }
            // Neither input nor output has moved although there is room: the stream ends early.
            _ if (stream.total_in(), out.len()) == before => return Err(InflateError::Malformed),
            _ => {}
        }
    }
}

/// Compresses to the zlib format, optimised for speed rather than size.
#[must_use]
pub fn deflate(data: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::with_capacity(data.len() / 2 + 64), Compression::fast());
    encoder.write_all(data).expect("writing to a vector cannot fail");
    encoder.finish().expect("writing to a vector cannot fail")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deflated_data_inflates_within_the_limit() {
        for len in [0_usize, 1, 63, 64, 1000, 70_000] {
            let data: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
            let packed = deflate(&data);
            assert_eq!(inflate(&packed, len).unwrap(), data);
            if len > 0 {
                assert_eq!(inflate(&packed, len - 1), Err(InflateError::TooLarge { limit_bytes: len - 1 }));
                assert_eq!(inflate(&packed[..packed.len() - 1], len), Err(InflateError::Malformed));
            }
            let mut longer = packed.clone();
            longer.push(0);
            assert_eq!(inflate(&longer, len), Err(InflateError::Malformed));
        }
        assert_eq!(inflate(b"", 10), Err(InflateError::Malformed));
        assert_eq!(inflate(b"{\"a\":1}", 10), Err(InflateError::Malformed));
    }
}
