//! The accept loop, and the life of a connection.

use crate::{
    aside::Aside,
    codes::FrameError,
    conn::{ConnState, Eviction, Phase, Watched, raw_error},
    drain::Drain,
    listen::{Bound, Listen, Listener, Sharing, Socket},
    request::Peer,
    service::{Frame, Handler, Link, ServerOptions},
    shares::{Client, Resource},
    stats::{Gauge, Stats, add},
};
use batzen_metrics::open_files_max;
use hyper_util::rt::TokioIo;
use std::{
    future::{Future, poll_fn},
    io,
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};

/// Time, and number of bytes, for which the server reads from a client that keeps sending after it was
/// refused.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 1 << 20;
/// Input is read in pieces of this size, with a pause after each, so that a client that keeps sending does
/// not keep a core busy.
const LINGER_PIECE_BYTES: usize = 64 << 10;
const LINGER_PAUSE: Duration = Duration::from_millis(5);
/// The maximum number of connections that are read like this at the same time. One client gets half; further
/// ones are closed soon.
pub(crate) const LINGER_CLOSES_MAX: usize = 16;
/// Time that the others have to read the refusal.
const CLOSE_DELAY: Duration = Duration::from_millis(250);
/// The maximum number of connections beyond the limit that get a 503 at the same time. Further ones are
/// closed without a response.
const MAX_REFUSALS: usize = 64;
/// The pause after a failed accept (out of descriptors or memory), so that connections can end meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Time between two warnings that connections cannot be accepted.
const ACCEPT_WARNING_PAUSE: Duration = Duration::from_secs(60);
/// The part of the process's open files that connections may be. The rest is for stores, logs and own connections.
const DESCRIPTORS_OF_CONNECTIONS: (u64, u64) = (3, 4);

/// The number of connections that a process with this many open files can serve, so that their limit and with it every
/// client's share is reached before descriptors run out.
fn connections_within(wanted: usize, open_files_max: Option<u64>) -> usize {
    let (part, whole) = DESCRIPTORS_OF_CONNECTIONS;
    let most = open_files_max.map_or(u64::MAX, |max| max / whole * part);
    wanted.min(usize::try_from(most).unwrap_or(usize::MAX)).max(1)
}

/// A bound server, ready to serve. Connections that arrive before [`Server::serve`] wait in the kernel.
pub struct Server {
    listener: Listener,
    bound: Bound,
    stats: Arc<Stats>,
}

/// The result of the shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Connections that were cut off at the end of the drain timeout.
    pub cut_off: usize,
}

impl Server {
    /// Binds. The port can be bound again as soon as this server has ended.
    ///
    /// # Errors
    /// The error of the system, with the address in its text.
    pub async fn bind(listen: Listen) -> io::Result<Self> {
        let (listener, bound) = Listener::bind(listen).await?;
        Ok(Self { listener, bound, stats: Arc::default() })
    }

    /// Starts to listen, unless it already does. A server on a shared port gets connections from now on, so
    /// call this after everything that can fail.
    ///
    /// # Errors
    /// The error of the system.
    pub fn listen(self) -> io::Result<Self> {
        Ok(Self { listener: self.listener.listen()?, ..self })
    }

    /// Returns whether other processes accept connections for the same address.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.listener.sharing() != Sharing::Alone
    }

    /// Where it listens.
    #[must_use]
    pub const fn bound(&self) -> &Bound {
        &self.bound
    }

    /// The port it listens on, 0 for a local socket.
    #[must_use]
    pub const fn port(&self) -> u16 {
        match self.bound.port() {
            Some(port) => port,
            None => 0,
        }
    }

    /// The server's counters.
    #[must_use]
    pub fn stats(&self) -> Arc<Stats> {
        Arc::clone(&self.stats)
    }

    /// Serves until `drain` fires. Then it hands over a shared port, stops accepting, answers the next
    /// request of each open connection for `options.idle_grace`, lets requests in flight finish within
    /// `options.drain_timeout`, cuts off the rest, and returns.
    pub async fn serve<H: Handler>(self, handler: Arc<H>, options: ServerOptions, drain: Drain) -> Drained {
        let Self { listener, bound, stats } = self;
        let listener = match listener.listen() {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!(%error, "cannot listen");
                return Drained { cut_off: 0 };
            }
        };
        let refusals = Arc::new(Semaphore::new(MAX_REFUSALS));
        let max_connections = connections_within(options.max_connections, open_files_max());
        if max_connections < options.max_connections {
            let wanted = options.max_connections;
            tracing::info!(
                max_connections,
                wanted,
                "fewer connections, because of the limit of open files (ulimit -Hn)"
            );
        }
        let options = ServerOptions { max_connections, ..options };
        let drain_timeout = options.drain_timeout;
        let frame = Frame::new(handler, options, drain.clone(), Arc::clone(&stats));
        let mut tasks = JoinSet::new();
        let mut refused_tasks = JoinSet::new();
        let take = |socket: Socket, tasks: &mut JoinSet<()>, refused_tasks: &mut JoinSet<()>| {
            add(&stats.connections_accepted, 1);
            let peer = match &socket {
                Socket::Tcp(_, address) => Peer::Tcp(*address),
                Socket::Unix(_) => Peer::Unix,
            };
            let (client, is_proxy) = frame.client_of(&peer);
            let Some(hold) = frame.take_connection(&client, is_proxy) else {
                add(&stats.connections_refused, 1);
                if let Ok(permit) = Arc::clone(&refusals).try_acquire_owned() {
                    let options = frame.options.clone();
                    let stats = Arc::clone(&frame.stats);
                    refused_tasks.spawn(async move {
                        match socket {
                            Socket::Tcp(stream, _) => {
                                refuse_connection(stream, &client, &stats, &options).await;
                            }
                            Socket::Unix(stream) => {
                                refuse_connection(stream, &client, &stats, &options).await;
                            }
                        }
                        drop(permit);
                    });
                }
                return;
            };
            let frame = Arc::clone(&frame);
            tasks.spawn(async move {
                match socket {
                    Socket::Tcp(stream, _) => drive(stream, peer, client, is_proxy, frame).await,
                    Socket::Unix(stream) => drive(stream, peer, client, is_proxy, frame).await,
                }
                drop(hold);
            });
        };
        let mut failing = Failing::default();
        loop {
            let accepted = tokio::select! {
                biased;
                () = drain.draining() => break,
                Some(ended) = tasks.join_next() => {
                    report(ended);
                    continue;
                }
                Some(ended) = refused_tasks.join_next() => {
                    report(ended);
                    continue;
                }
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok(socket) => take(socket, &mut tasks, &mut refused_tasks),
                // The peer disconnected before the connection was accepted.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::ConnectionAborted
                            | io::ErrorKind::ConnectionReset
                            | io::ErrorKind::NotConnected
                            | io::ErrorKind::InvalidInput
                    ) => {}
                Err(error) => {
                    if let Some(failures) = failing.is_told(Instant::now()) {
                        tracing::warn!(%error, failures, "cannot accept connections, trying again");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        let is_ours = listener.sharing() == Sharing::Alone;
        listener.leave(|socket| take(socket, &mut tasks, &mut refused_tasks)).await;
        if let (Bound::Unix(path), true) = (&bound, is_ours) {
            let _ = std::fs::remove_file(path);
        }
        refused_tasks.shutdown().await;
        let _ = timeout(drain_timeout, async {
            while let Some(ended) = tasks.join_next().await {
                report(ended);
            }
        })
        .await;
        let cut_off = tasks.len();
        tasks.shutdown().await;
        Drained { cut_off }
    }
}

/// Failures to accept a connection, of which the log gets few.
#[derive(Default)]
struct Failing {
    last_told: Option<Instant>,
    failures: u64,
}

impl Failing {
    /// Counts a failure. Returns the number since the last warning if it is time for another one.
    fn is_told(&mut self, now: Instant) -> Option<u64> {
        self.failures += 1;
        if self.last_told.is_some_and(|last| now.saturating_duration_since(last) < ACCEPT_WARNING_PAUSE) {
            return None;
        }
        self.last_told = Some(now);
        Some(std::mem::take(&mut self.failures))
    }
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "connection task panicked");
    }
}

/// Answers a connection beyond the limit with a 503, and closes it.
async fn refuse_connection<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    client: &Arc<Client>,
    stats: &Stats,
    options: &ServerOptions,
) {
    let answer = raw_error(
        FrameError::Overloaded,
        "too many connections",
        &format!("retry-after: {}\r\n", options.retry_after_s),
        options.error_form,
    );
    let _ = timeout(LINGER, async {
        stream.write_all(&answer).await?;
        linger_close(&mut stream, client, stats).await
    })
    .await;
}

/// Shuts down the sending half and reads what the peer is still sending, so that the peer can read the last
/// response. Only for a limited number of connections: on others, the peer has a short time to read it, and
/// may lose it if it keeps sending.
async fn linger_close<S>(stream: &mut S, client: &Arc<Client>, stats: &Stats) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    stream.shutdown().await?;
    let Some(_hold) = client.take(Resource::LingerCloses, 1) else {
        stats.refuse(Resource::LingerCloses);
        // Closing with unread input discards what the system has not sent yet, including responses before the
        // refusal.
        tokio::time::sleep(CLOSE_DELAY).await;
        return Ok(());
    };
    let mut buffer = vec![0_u8; LINGER_PIECE_BYTES];
    let (mut left, mut piece) = (LINGER_BYTES, 0);
    while left > 0 {
        let n = stream.read(&mut buffer).await?;
        if n == 0 {
            break;
        }
        left = left.saturating_sub(n);
        piece += n;
        if piece >= LINGER_PIECE_BYTES {
            piece = 0;
            tokio::time::sleep(LINGER_PAUSE).await;
        }
    }
    Ok(())
}

/// An event of a connection beside its requests.
enum Event {
    /// Hyper is done with it.
    Ended(hyper::Result<()>),
    /// The service shuts down.
    Draining,
    /// Idle connections have had their time since then.
    EndOfGrace,
    /// It must make room for others.
    Evicted(Eviction),
    /// A deadline may have passed.
    Check,
}

/// Runs one connection to its end.
async fn drive<S, H>(stream: S, peer: Peer, client: Arc<Client>, is_proxy: bool, frame: Arc<Frame<H>>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler,
{
    let stats = Arc::clone(&frame.stats);
    let _open = Gauge::raise(&stats.connections_open);
    let deadlines = frame.deadlines();
    let drain = frame.drain.clone();
    let grace = frame.options.idle_grace;
    let error_form = frame.options.error_form;
    let state = ConnState::new(deadlines);
    let _present = frame.connections.join(Arc::clone(&state));
    let link = Arc::new(Link { state: Arc::clone(&state), peer, client, is_proxy });
    let service = {
        let (link, frame) = (Arc::clone(&link), Arc::clone(&frame));
        hyper::service::service_fn(move |request| {
            Box::pin(Arc::clone(&frame).serve(Arc::clone(&link), request))
        })
    };
    // The watchdog below enforces the deadlines with one timer per connection; hyper's own would need one per
    // request.
    let mut connection = hyper::server::conn::http1::Builder::new()
        .header_read_timeout(None)
        .max_header_size(
            frame.options.max_header_bytes.saturating_add(frame.options.max_target_bytes).max(8 << 10),
        )
        .max_buf_size(
            (frame.options.max_header_bytes + frame.options.max_target_bytes + (8 << 10)).max(16 << 10),
        )
        .keep_alive(!frame.options.close_each)
        .serve_connection(TokioIo::new(Watched::new(stream, Arc::clone(&state))), service);
    let next_check = |state: &ConnState| {
        let latest = Instant::now() + deadlines.shortest();
        state.deadline().map_or(latest, |deadline| deadline.min(latest))
    };
    let mut watchdog = pin!(sleep_until(next_check(&state)));
    let mut draining = pin!(drain.draining());
    let mut end_of_grace = pin!(tokio::time::sleep(Duration::ZERO));
    let mut evicted = pin!(state.evicted());
    let mut aside = Aside::default();
    // Whether the drain has fired, and whether an idle connection may still send one request.
    let (mut is_draining, mut is_graced) = (false, false);
    let mut bad_length = false;
    loop {
        let event = poll_fn(|context| {
            if let Poll::Ready(ended) = connection.poll_without_shutdown(context) {
                return Poll::Ready(Event::Ended(ended));
            }
            aside.poll(context, |context| {
                if !is_draining && draining.as_mut().poll(context).is_ready() {
                    return Poll::Ready(Event::Draining);
                }
                if is_graced && end_of_grace.as_mut().poll(context).is_ready() {
                    return Poll::Ready(Event::EndOfGrace);
                }
                if let Poll::Ready(eviction) = evicted.as_mut().poll(context) {
                    return Poll::Ready(Event::Evicted(eviction));
                }
                watchdog.as_mut().poll(context).map(|()| Event::Check)
            })
        });
        match event.await {
            Event::Ended(ended) => {
                if let Err(error) = ended {
                    // Hyper gives no other sign of an invalid `Content-Length`.
                    bad_length = error.is_parse() && error.to_string().contains("content-length");
                    // The rest is not read, but the client must still receive the responses to earlier
                    // requests.
                    state.ask_linger();
                    tracing::debug!(%peer, %error, "connection ended");
                }
                break;
            }
            Event::Draining => {
                is_draining = true;
                if grace.is_zero() {
                    std::pin::Pin::new(&mut connection).graceful_shutdown();
                    if state.phase() == Phase::Idle {
                        return;
                    }
                } else {
                    // From now on, each response closes its connection.
                    is_graced = true;
                    end_of_grace.as_mut().reset(Instant::now() + grace);
                }
            }
            Event::EndOfGrace => {
                is_graced = false;
                std::pin::Pin::new(&mut connection).graceful_shutdown();
                if state.phase() == Phase::Idle {
                    return;
                }
            }
            Event::Evicted(eviction) => {
                tracing::debug!(%peer, ?eviction, "connection closed to make room for others");
                add(
                    match eviction {
                        Eviction::Unused => &stats.unused_closed,
                        Eviction::Unread => &stats.readers_cut,
                    },
                    1,
                );
                return;
            }
            Event::Check => {
                if state.deadline().is_some_and(|deadline| deadline <= Instant::now()) {
                    tracing::debug!(%peer, phase = ?state.phase(), "connection timed out");
                    add(&stats.timeouts, 1);
                    return;
                }
                watchdog.as_mut().reset(next_check(&state));
            }
        }
    }
    let parts = connection.into_parts();
    let (mut stream, mut refusal) = parts.io.into_inner().into_parts();
    if refusal.is_some() {
        add(&stats.malformed, 1);
    }
    if bad_length {
        // The end of such a request is unknown, so the peer could mistake the response for that of another
        // request.
        refusal = None;
    }
    let _ = timeout(LINGER, async {
        if let Some(code) = refusal {
            stats.count_response(code.status());
            stream.write_all(&raw_error(code, "not a well-formed HTTP request", "", error_form)).await?;
        }
        if refusal.is_some() || state.wants_linger() {
            linger_close(&mut stream, &link.client, &stats).await
        } else {
            stream.shutdown().await
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    #[test]
    fn connections_leave_descriptors_for_the_rest() {
        for (wanted, open_files_max, connections) in [
            (65_536, Some(20_000), 15_000),
            (65_536, Some(1_024), 768),
            (8_192, Some(1_048_576), 8_192),
            (8_192, None, 8_192),
            (8_192, Some(0), 1),
        ] {
            assert_eq!(connections_within(wanted, open_files_max), connections);
        }
    }

    #[test]
    fn failing_accepts_are_told_once_a_minute() {
        let mut failing = Failing::default();
        let begin = Instant::now();
        let told: Vec<u64> = (0..1_300).filter_map(|n| failing.is_told(begin + ACCEPT_PAUSE * n)).collect();
        assert_eq!(told, [1, 1_200]);
    }
    use crate::shares::{ClientKey, RESOURCES, Shares};

    /// A flooding client is read on only some of its connections; other clients are still read.
    #[tokio::test]
    async fn few_refused_connections_of_a_client_are_read() {
        let shares = Shares::new([LINGER_CLOSES_MAX; RESOURCES]);
        let mut tasks = JoinSet::new();
        for (last, count) in [(1, 2 * LINGER_CLOSES_MAX), (2, 1)] {
            for _ in 0..count {
                let client = shares.client(ClientKey::of(Some([127, 0, 0, last].into())));
                let (mut server, mut peer) = duplex(1 << 10);
                tasks.spawn(async move {
                    linger_close(&mut server, &client, &Stats::default()).await.map(|()| 0)
                });
                tasks.spawn(async move {
                    let taken = peer.write_all(&[0; LINGER_BYTES / 2]).await;
                    Ok(if taken.is_ok() { u64::from(last) } else { 0 })
                });
            }
        }
        let mut taken = Vec::new();
        while let Some(ended) = tasks.join_next().await {
            taken.extend(ended.unwrap().ok().filter(|client| *client > 0));
        }
        let of = |client| taken.iter().filter(|other| **other == client).count();
        assert_eq!((of(1), of(2)), (LINGER_CLOSES_MAX / 2, 1));
    }

    /// Refused input is read slowly, so that it costs little.
    #[tokio::test]
    async fn a_refused_flood_is_read_slowly_and_only_for_a_while() {
        let shares = Shares::new([LINGER_CLOSES_MAX; RESOURCES]);
        let client = shares.client(ClientKey::Local);
        let (mut server, mut peer) = duplex(LINGER_PIECE_BYTES);
        let begin = Instant::now();
        let flood = tokio::spawn(async move { peer.write_all(&[0; 4 * LINGER_BYTES]).await });
        linger_close(&mut server, &client, &Stats::default()).await.unwrap();
        drop(server);
        assert!(flood.await.unwrap().is_err());
        assert!(begin.elapsed() >= LINGER_PAUSE * 15, "{:?}", begin.elapsed());
    }
}
