//! Bytes to and from the server: a Unix or TCP socket, with or without TLS, in both directions at once.
//!
//! A pipelined batch can be larger than the socket buffers. A client that only writes would deadlock with a
//! server that waits for its answers to be read. So every wait both reads and writes.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};

/// Number of bytes that are read at once.
const READ_BYTES: usize = 64 << 10;

/// A server that disappears without closing the connection (power loss, network failure) is noticed by three
/// keep-alive probes after ten seconds of silence, or by sent data that is not acknowledged.
const SILENCE_MAX: Duration = Duration::from_secs(10);
const PROBES: u32 = 3;
const PROBE_PERIOD: Duration = Duration::from_secs(5);
const UNCONFIRMED_MAX: Duration = Duration::from_secs(20);

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buffer),
            Self::Tcp(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connected socket.
pub(crate) struct Socket {
    stream: Stream,
    tls: Option<Box<ClientConnection>>,
    scratch: Box<[u8]>,
    /// Received bytes that are not parsed yet.
    pub(crate) received: BytesMut,
    /// Bytes to send.
    pub(crate) outgoing: BytesMut,
}

impl Socket {
    pub(super) fn unix(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self::new(Stream::Unix(stream)))
    }

    pub(super) fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let socket = SockRef::from(&stream);
        socket.set_tcp_keepalive(
            &TcpKeepalive::new().with_time(SILENCE_MAX).with_interval(PROBE_PERIOD).with_retries(PROBES),
        )?;
        socket.set_tcp_user_timeout(Some(UNCONFIRMED_MAX))?;
        Ok(Self::new(Stream::Tcp(stream)))
    }

    fn new(stream: Stream) -> Self {
        Self {
            stream,
            tls: None,
            scratch: vec![0; READ_BYTES].into(),
            received: BytesMut::new(),
            outgoing: BytesMut::new(),
        }
    }

    /// Switches to TLS. The handshake happens with the first bytes.
    pub(crate) fn start_tls(
        &mut self,
        config: Arc<rustls::ClientConfig>,
        name: ServerName<'static>,
    ) -> io::Result<()> {
        if !self.received.is_empty() {
            // An attacker in the middle may have sent more than the server's one byte, to have it accepted as
            // the server's.
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                "unencrypted bytes after the request for TLS",
            ));
        }
        let mut tls = ClientConnection::new(config, name).map_err(io::Error::other)?;
        tls.set_buffer_limit(None);
        self.tls = Some(Box::new(tls));
        Ok(())
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Sends everything and waits until something arrives.
    pub(super) fn wait(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        self.wait_or(deadline, None).map(drop)
    }

    /// Like [`Self::wait`], or until `wake` is readable. Returns whether something has arrived.
    pub(crate) fn wait_or(
        &mut self,
        deadline: Option<Instant>,
        wake: Option<BorrowedFd<'_>>,
    ) -> io::Result<bool> {
        let before = self.received.len();
        loop {
            self.send()?;
            if self.receive()? && self.received.len() > before {
                return Ok(true);
            }
            let wants_write = match &self.tls {
                Some(tls) => tls.wants_write(),
                None => !self.outgoing.is_empty(),
            };
            if self.sleep(wants_write, deadline, wake)? {
                return Ok(false);
            }
        }
    }

    /// Waits for the socket. Returns whether `wake` is readable.
    fn sleep(
        &self,
        wants_write: bool,
        deadline: Option<Instant>,
        wake: Option<BorrowedFd<'_>>,
    ) -> io::Result<bool> {
        let mut events = PollFlags::IN;
        events.set(PollFlags::OUT, wants_write);
        let fd = match &self.stream {
            Stream::Unix(stream) => stream.as_fd(),
            Stream::Tcp(stream) => stream.as_fd(),
        };
        let mut all = [
            PollFd::from_borrowed_fd(fd, events),
            PollFd::from_borrowed_fd(wake.unwrap_or(fd), PollFlags::IN),
        ];
        let polled = 1 + usize::from(wake.is_some());
        if poll_until(&mut all[..polled], deadline)? {
            return Ok(polled == 2 && !all[1].revents().is_empty());
        }
        Err(ErrorKind::TimedOut.into())
    }

    /// Writes as much as the system accepts.
    fn send(&mut self) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            if !self.outgoing.is_empty() {
                tls.writer().write_all(&self.outgoing)?;
                self.outgoing.clear();
            }
            while tls.wants_write() {
                match tls.write_tls(&mut self.stream) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            return Ok(());
        }
        while !self.outgoing.is_empty() {
            match self.stream.write(&self.outgoing) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => self.outgoing.advance(written),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads once. Returns whether anything was there.
    fn receive(&mut self) -> io::Result<bool> {
        let closed = || io::Error::new(ErrorKind::UnexpectedEof, "the server closed the connection");
        loop {
            let read = match &mut self.tls {
                Some(tls) => tls.read_tls(&mut self.stream),
                None => self.stream.read(&mut self.scratch),
            };
            return match read {
                Ok(0) => Err(closed()),
                Ok(read) => {
                    match &mut self.tls {
                        Some(tls) => {
                            let state = tls.process_new_packets().map_err(io::Error::other)?;
                            let mut left = state.plaintext_bytes_to_read();
                            while left > 0 {
                                let read = tls.reader().read(&mut self.scratch)?;
                                self.received.extend_from_slice(&self.scratch[..read]);
                                left -= read;
                            }
                        }
                        None => self.received.extend_from_slice(&self.scratch[..read]),
                    }
                    Ok(true)
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
        }
    }
}

/// Waits until one of these is ready, or until the deadline. Returns whether one is ready.
pub(crate) fn poll_until(fds: &mut [PollFd<'_>], deadline: Option<Instant>) -> io::Result<bool> {
    loop {
        let left = deadline.map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now()).min(Duration::from_secs(3600));
            Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() }
        });
        match poll(fds, left.as_ref()) {
            Ok(0) if deadline.is_some_and(|deadline| deadline > Instant::now()) => {}
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
