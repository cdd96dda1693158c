//! Sending and receiving messages within a time.

use std::io;
use std::time::Duration;

use batzen_signer::channel::{Channel, ChannelError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::message::{ANSWER_BYTES_MAX, Answer, HEADER_BYTES, Malformed, REQUEST_BYTES_MAX, Request, header};

/// Why a message was not sent or received.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IoError {
    /// The connection failed or ended.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other side was silent for too long, or does not take what is sent.
    #[error("the other side timed out")]
    Timeout,
    /// The other side sent something else.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

impl From<ChannelError> for IoError {
    fn from(error: ChannelError) -> Self {
        match error {
            ChannelError::Io(error) => Self::Io(error),
            ChannelError::Timeout => Self::Timeout,
            other @ ChannelError::Key(_) => Self::Io(io::Error::other(other)),
        }
    }
}

pub(crate) async fn send(
    channel: &mut (impl tokio::io::AsyncWrite + Unpin),
    bytes: &[u8],
    within: Duration,
) -> Result<(), IoError> {
    let write = async {
        channel.write_all(bytes).await?;
        channel.flush().await
    };
    timeout(within, write).await.map_err(|_| IoError::Timeout)??;
    Ok(())
}

/// Receives messages. What has arrived of a message is kept when a future is dropped, so that it may be one of several
/// that are waited for.
pub(crate) struct Receiver<R> {
    reader: R,
    head: [u8; HEADER_BYTES],
    head_bytes: usize,
    body: Vec<u8>,
    body_bytes: usize,
    bytes_max: u32,
}

/// The receiving half of a connection.
pub(crate) type Half = tokio::io::ReadHalf<Channel>;

impl<R: tokio::io::AsyncRead + Unpin> Receiver<R> {
    fn new(reader: R, bytes_max: u32) -> Self {
        Self { reader, head: [0; HEADER_BYTES], head_bytes: 0, body: Vec::new(), body_bytes: 0, bytes_max }
    }

    /// Receives what an auditor sends.
    pub(crate) fn of_requests(reader: R) -> Self {
        Self::new(reader, REQUEST_BYTES_MAX)
    }

    /// Receives what an exchange sends.
    pub(crate) fn of_answers(reader: R) -> Self {
        Self::new(reader, ANSWER_BYTES_MAX)
    }

    async fn message(&mut self) -> Result<(u8, Vec<u8>), IoError> {
        let ended = || io::Error::from(io::ErrorKind::UnexpectedEof);
        while self.head_bytes < HEADER_BYTES {
            match self.reader.read(&mut self.head[self.head_bytes..]).await? {
                0 => return Err(ended().into()),
                n => self.head_bytes += n,
            }
        }
        let (kind, length) = header(self.head, self.bytes_max)?;
        if self.body.len() != length {
            self.body = vec![0; length];
        }
        while self.body_bytes < length {
            match self.reader.read(&mut self.body[self.body_bytes..]).await? {
                0 => return Err(ended().into()),
                n => self.body_bytes += n,
            }
        }
        (self.head_bytes, self.body_bytes) = (0, 0);
        Ok((kind, std::mem::take(&mut self.body)))
    }

    /// The next request.
    pub(crate) async fn request(&mut self, within: Duration) -> Result<Request, IoError> {
        let (kind, body) = timeout(within, self.message()).await.map_err(|_| IoError::Timeout)??;
        Ok(Request::from_bytes(kind, &body)?)
    }

    /// The next answer.
    pub(crate) async fn answer(&mut self, within: Duration) -> Result<Answer, IoError> {
        let (kind, body) = timeout(within, self.message()).await.map_err(|_| IoError::Timeout)??;
        Ok(Answer::from_bytes(kind, &body)?)
    }
}
