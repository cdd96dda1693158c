//! Where a server listens: TCP, a local socket, or a socket that the service manager hands over.

use socket2::{SockFilter, SockRef};
use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::fs::{FileTypeExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};

/// Number of connections that the kernel completes before they are accepted.
const BACKLOG: u32 = 1024;
/// Time that half-open connections may take to complete after the listener stops answering new ones: one round
/// trip.
const HANDSHAKE: Duration = Duration::from_millis(200);

/// Where to listen.
#[derive(Debug)]
pub enum Listen {
    /// TCP.
    Tcp {
        /// An address or host name; `None` for all addresses, IPv6 and IPv4.
        host: Option<String>,
        /// The port; 0 picks a free one.
        port: u16,
        /// Whether several processes may share the port (`SO_REUSEPORT`): the kernel spreads connections over
        /// all listeners.
        share_port: bool,
    },
    /// A local socket.
    Unix {
        /// The socket's path. A socket left behind by a process that no longer runs is replaced.
        path: PathBuf,
        /// The socket's permissions, such as `0o660`.
        mode: u32,
    },
    /// A socket that is already listening (see [`inherited_fd`]).
    Inherited(OwnedFd),
}

impl Listen {
    /// TCP on 127.0.0.1; port 0 picks a free one.
    #[must_use]
    pub fn localhost(port: u16) -> Self {
        Self::Tcp { host: Some("127.0.0.1".to_owned()), port, share_port: false }
    }

    /// TCP on a host (`None`: all addresses).
    #[must_use]
    pub const fn tcp(host: Option<String>, port: u16) -> Self {
        Self::Tcp { host, port, share_port: false }
    }
}

/// The host in URLs of a server that listens at this address or name (`None`: at all addresses): `localhost` where that
/// leads to it, else the address itself, with brackets if it is an IPv6 address.
#[must_use]
pub fn client_host(bind: Option<&str>) -> String {
    const LOCALHOST: &str = "localhost";
    let Some(host) = bind.map(|host| host.trim_matches(['[', ']'])) else { return LOCALHOST.to_owned() };
    match host.parse::<IpAddr>() {
        Ok(ip) if ip.is_unspecified() || ip == Ipv4Addr::LOCALHOST || ip == Ipv6Addr::LOCALHOST => {
            LOCALHOST.to_owned()
        }
        Ok(IpAddr::V6(ip)) => format!("[{ip}]"),
        Ok(IpAddr::V4(_)) | Err(_) => host.to_owned(),
    }
}

/// Where a server actually listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bound {
    /// TCP, with the actual port.
    Tcp(SocketAddr),
    /// A local socket.
    Unix(PathBuf),
}

impl Bound {
    /// The port, if TCP.
    #[must_use]
    pub const fn port(&self) -> Option<u16> {
        match self {
            Self::Tcp(address) => Some(address.port()),
            Self::Unix(_) => None,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "http://{address}/"),
            Self::Unix(path) => write!(f, "local socket {}", path.display()),
        }
    }
}

/// The socket that the service manager hands over (`LISTEN_PID` names this process, `LISTEN_FDS` is 1,
/// descriptor 3). `env` reads the environment. Call this at most once, at the start of the program.
///
/// # Errors
/// If descriptor 3 is not an open socket.
#[allow(unsafe_code)]
pub fn inherited_fd(env: impl Fn(&str) -> Option<String>, pid: u32) -> io::Result<Option<OwnedFd>> {
    const FIRST_FD: i32 = 3;
    if env("LISTEN_PID").and_then(|text| text.parse().ok()) != Some(pid) {
        return Ok(None);
    }
    match env("LISTEN_FDS").and_then(|text| text.parse::<u32>().ok()) {
        Some(1) => {}
        Some(0) | None => return Ok(None),
        Some(n) => return Err(io::Error::other(format!("LISTEN_FDS is {n}, only one socket is supported"))),
    }
    let link = std::fs::read_link(format!("/proc/self/fd/{FIRST_FD}"))?;
    if !link.to_string_lossy().starts_with("socket:") {
        return Err(io::Error::other("LISTEN_FDS is set, but descriptor 3 is not a socket"));
    }
    // SAFETY: the descriptor is open (its link was just read) and, by the convention of the variables, was
    // opened by the service manager for this process alone, so nothing else here owns it; the caller calls
    // this once.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(FIRST_FD) }))
}

/// A socket to listen on.
#[derive(Debug)]
pub struct Listener {
    socket: ListenerSocket,
    sharing: Sharing,
}

#[derive(Debug)]
enum ListenerSocket {
    /// Bound to its port, but not listening yet.
    Bound(TcpSocket),
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// The other processes that accept connections for the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// None.
    Alone,
    /// Other processes, each with its own socket and queue.
    Port,
    /// Other processes, through the same socket and queue.
    Socket,
}

/// A connection that was accepted.
#[derive(Debug)]
pub enum Socket {
    /// TCP (with `TCP_NODELAY`), and the address of the peer.
    Tcp(TcpStream, SocketAddr),
    /// Over a local socket.
    Unix(UnixStream),
}

impl Socket {
    /// The address of the peer; `None` for a local socket.
    #[must_use]
    pub fn peer(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(_, peer) => Some(peer.ip()),
            Self::Unix(_) => None,
        }
    }
}

impl Listener {
    /// Binds and returns the actual address. A shared port gets connections only after `Listener::listen`.
    ///
    /// # Errors
    /// The error of the system, with the address in its text.
    pub async fn bind(listen: Listen) -> io::Result<(Self, Bound)> {
        let (socket, sharing, bound) = match listen {
            Listen::Tcp { host, port, share_port } => {
                let socket = bind_tcp(host.as_deref(), port, share_port).await?;
                let bound = Bound::Tcp(match &socket {
                    ListenerSocket::Bound(socket) => socket.local_addr()?,
                    ListenerSocket::Tcp(listener) => listener.local_addr()?,
                    ListenerSocket::Unix(_) => unreachable!("TCP was asked for"),
                });
                (socket, if share_port { Sharing::Port } else { Sharing::Alone }, bound)
            }
            Listen::Unix { path, mode } => {
                let listener = bind_unix(&path, mode).await?;
                (ListenerSocket::Unix(listener), Sharing::Alone, Bound::Unix(path))
            }
            Listen::Inherited(fd) => {
                let number = fd.as_raw_fd();
                let tcp = std::net::TcpListener::from(fd);
                tcp.set_nonblocking(true)?;
                let (socket, bound) = if let Ok(address) = tcp.local_addr() {
                    (ListenerSocket::Tcp(TcpListener::from_std(tcp)?), Bound::Tcp(address))
                } else {
                    let unix = std::os::unix::net::UnixListener::from(OwnedFd::from(tcp));
                    let path = unix
                        .local_addr()?
                        .as_pathname()
                        .map_or_else(|| PathBuf::from(format!("fd {number}")), Path::to_owned);
                    (ListenerSocket::Unix(UnixListener::from_std(unix)?), Bound::Unix(path))
                };
                (socket, Sharing::Socket, bound)
            }
        };
        Ok((Self { socket, sharing }, bound))
    }

    /// Starts to listen, unless it already does.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) fn listen(self) -> io::Result<Self> {
        let socket = match self.socket {
            ListenerSocket::Bound(socket) => ListenerSocket::Tcp(socket.listen(BACKLOG)?),
            listening => listening,
        };
        if let ListenerSocket::Tcp(listener) = &socket {
            // Connections inherit it. By default, the kernel buffers megabytes for each client that does not
            // read.
            SockRef::from(listener).set_send_buffer_size(SEND_BUFFER_BYTES)?;
        }
        Ok(Self { socket, ..self })
    }

    /// Returns which other processes accept connections for its address.
    pub(crate) const fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// The next connection.
    ///
    /// # Errors
    /// The error of the system. Most such errors concern one connection or are temporary.
    pub async fn accept(&self) -> io::Result<Socket> {
        match &self.socket {
            ListenerSocket::Bound(_) => Err(io::Error::other("the socket is not listening")),
            ListenerSocket::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                // Responses are written in one piece; Nagle's algorithm would only delay them.
                stream.set_nodelay(true)?;
                Ok(Socket::Tcp(stream, peer))
            }
            ListenerSocket::Unix(listener) => listener.accept().await.map(|(stream, _)| Socket::Unix(stream)),
        }
    }

    /// Hands the port over to the other processes without losing a connection. Closing a socket resets the
    /// connections in its queue, and until then the kernel keeps choosing it for new ones. So the socket
    /// first drops segments that open a connection (those clients try again after a second and reach another
    /// process), and then accepts what is in its queue.
    pub(crate) async fn leave(self, mut take: impl FnMut(Socket)) {
        if self.sharing != Sharing::Port {
            // An inherited socket, with its queue, stays open in another process.
            return;
        }
        if let ListenerSocket::Tcp(listener) = &self.socket
            && let Err(error) = SockRef::from(listener).attach_filter(&ONLY_ANSWERED)
        {
            tracing::warn!(%error, "handing over the port without a packet filter: clients may see connection resets");
        }
        let end = tokio::time::Instant::now() + HANDSHAKE;
        loop {
            // Complete connections are accepted even when the time has passed.
            tokio::select! {
                biased;
                accepted = self.accept() => match accepted {
                    Ok(socket) => take(socket),
                    Err(error) => {
                        tracing::debug!(%error, "cannot accept a connection during the handover");
                        if tokio::time::Instant::now() >= end {
                            return;
                        }
                        tokio::time::sleep(HANDSHAKE / 20).await;
                    }
                },
                () = tokio::time::sleep_until(end) => return,
            }
        }
    }
}

/// The kernel's buffer for responses that a client has not read, in bytes (the kernel doubles it for its own
/// needs). At the slowest allowed rate, a client reads some of it in each window over which that rate is
/// measured.
const SEND_BUFFER_BYTES: usize = 256 << 10;

/// A packet filter (classic BPF) that drops segments that open a connection, that is, those with SYN and
/// without ACK among the flags at byte 13 of the TCP header. Connections inherit it, but their segments never
/// match.
const ONLY_ANSWERED: [SockFilter; 5] = {
    const LOAD_BYTE: u16 = 0x30;
    const AND: u16 = 0x54;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const FLAGS: u32 = 13;
    const SYN: u32 = 0x02;
    const ACK: u32 = 0x10;
    [
        SockFilter::new(LOAD_BYTE, 0, 0, FLAGS),
        SockFilter::new(AND, 0, 0, SYN | ACK),
        SockFilter::new(JUMP_IF_EQUAL, 0, 1, SYN),
        SockFilter::new(RETURN, 0, 0, 0),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
    ]
};

async fn bind_tcp(host: Option<&str>, port: u16, share_port: bool) -> io::Result<ListenerSocket> {
    let candidates: Vec<SocketAddr> = match host {
        // The IPv6 wildcard accepts IPv4, too; a machine without IPv6 falls back to IPv4.
        None => vec![SocketAddr::from(([0_u16; 8], port)), SocketAddr::from(([0_u8; 4], port))],
        Some(host) => tokio::net::lookup_host((host.trim_matches(['[', ']']), port)).await?.collect(),
    };
    let mut last = io::Error::other("the host name has no address");
    for address in candidates {
        let bind = || -> io::Result<ListenerSocket> {
            let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            // A restarted service gets its port at once, although old connections are in TIME_WAIT.
            socket.set_reuseaddr(true)?;
            socket.set_reuseport(share_port)?;
            socket.bind(address)?;
            Ok(if share_port {
                ListenerSocket::Bound(socket)
            } else {
                ListenerSocket::Tcp(socket.listen(BACKLOG)?)
            })
        };
        match bind() {
            Ok(listener) => return Ok(listener),
            // A port in use is in use for IPv4, too: fail rather than listen on only half of the addresses.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                return Err(io::Error::new(error.kind(), format!("{address} is in use by another program")));
            }
            Err(error) => last = io::Error::new(error.kind(), format!("cannot listen on {address}: {error}")),
        }
    }
    Err(last)
}

async fn bind_unix(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let context = |what: &str, error: io::Error| {
        io::Error::new(error.kind(), format!("{what} {}: {error}", path.display()))
    };
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(|error| context("cannot create the directory of", error))?;
    }
    if std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket()) {
        if UnixStream::connect(path).await.is_ok() {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                format!("{} is in use by another program", path.display()),
            ));
        }
        std::fs::remove_file(path).map_err(|error| context("cannot replace", error))?;
    }
    let listener = UnixListener::bind(path).map_err(|error| context("cannot listen on", error))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .map_err(|error| context("cannot set the permissions of", error))?;
    Ok(listener)
}
