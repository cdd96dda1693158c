//! A socket in memory for tests and fuzz targets: it transfers a few bytes at a time and is not always ready.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How often a connection is polled without any transfer before it counts as waiting: sockets and handlers
/// take turns.
const IDLE_POLLS_MAX: usize = 16;

/// Records what a [`SlowSocket`] transfers.
#[derive(Debug, Default)]
pub struct Traffic {
    /// What was written to the socket.
    pub written: RefCell<Vec<u8>>,
    transfers: RefCell<usize>,
}

/// The socket.
#[derive(Debug)]
pub struct SlowSocket<'a> {
    /// The bytes that have not been read from it yet.
    pub incoming: &'a [u8],
    /// Nothing can be read until this many bytes have been written.
    pub after_written: usize,
    /// The number of bytes in one read.
    pub portion: usize,
    /// What was written, and how often bytes were transferred.
    pub traffic: &'a Traffic,
    is_ready: bool,
}

impl<'a> SlowSocket<'a> {
    /// A socket from which `incoming` is read in portions.
    #[must_use]
    pub fn new(incoming: &'a [u8], portion: usize, traffic: &'a Traffic) -> Self {
        Self { incoming, after_written: 0, portion, traffic, is_ready: false }
    }

    /// Whether it is ready this time.
    fn take_turn(&mut self) -> bool {
        self.is_ready = !self.is_ready || self.portion > 8;
        self.is_ready
    }
}

impl AsyncRead for SlowSocket<'_> {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let is_early = this.traffic.written.borrow().len() < this.after_written;
        if this.incoming.is_empty() || is_early || !this.take_turn() {
            return Poll::Pending;
        }
        let bytes = this.portion.min(buffer.remaining()).min(this.incoming.len());
        let (now, later) = this.incoming.split_at(bytes);
        buffer.put_slice(now);
        this.incoming = later;
        *this.traffic.transfers.borrow_mut() += 1;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SlowSocket<'_> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if !this.take_turn() {
            return Poll::Pending;
        }
        let taken = &bytes[..bytes.len().min(3 * this.portion)];
        this.traffic.written.borrow_mut().extend_from_slice(taken);
        *this.traffic.transfers.borrow_mut() += 1;
        Poll::Ready(Ok(taken.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Polls a connection until it ends (with its output) or waits for more input (`None`).
pub fn poll_until_idle<T>(traffic: &Traffic, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Option<T> {
    let mut context = Context::from_waker(Waker::noop());
    let (mut last, mut idle) = (0, 0);
    while idle < IDLE_POLLS_MAX {
        if let Poll::Ready(output) = poll(&mut context) {
            return Some(output);
        }
        let now = *traffic.transfers.borrow();
        idle = if now == last { idle + 1 } else { 0 };
        last = now;
    }
    None
}
