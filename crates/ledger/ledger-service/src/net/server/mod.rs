//! The server: connections read frames into one queue, and one task passes the queue to the ledger batch by
//! batch.
//!
//! Requests have no tasks of their own. A connection's task decodes its input directly into the last batch of
//! the queue. All requests that gather while the ledger works become the next batch. The answers of a batch
//! are first encoded into their connections' buffers and then written, with one system call per connection.

mod conn;
mod queue;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use batzen_http::{Bound, Drain, Listen, Listener, PeerLimit, Socket};
use batzen_ledger::Ledger;
use batzen_metrics::{Counter, Histogram, Page};
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::net::frame::Kind;
use crate::net::write::WriteHalf;

/// Pause after a failed accept (no descriptors or memory), so that connections can end meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Limits of a server.
#[derive(Clone, Debug)]
pub struct NetOptions {
    /// Most concurrent connections, with a share for each address. Further ones get a busy answer and are closed.
    pub connections_max: usize,
    /// Most requests of one connection in flight. At the limit the connection is not read.
    pub in_flight_max: u32,
    /// Most events that wait for the ledger, over all connections, with a share for each address. Further requests
    /// are answered `busy`.
    pub queue_events_max: usize,
    /// Create batches that the ledger works on at once while further requests gather in the next one.
    pub batches_in_flight: usize,
    /// Full create batches that the ledger works on at once. Nothing more fits into these.
    pub full_batches_in_flight: usize,
    /// Time that a create batch waits for further requests while it contains fewer than half of the active
    /// connections.
    pub gather: Duration,
    /// Most bytes of large frames that have not come wholly, and as many of answers to reads that clients have not
    /// read, with a share for each address.
    pub buffered_bytes_max: usize,
    /// Reads that the ledger works on at once. Further requests are answered `busy`.
    pub reads_in_flight_max: usize,
    /// Timeout of the first frame.
    pub hello_timeout: Duration,
    /// Timeout for a client to read some of an answer, or to send a whole frame.
    pub stall_timeout: Duration,
    /// Timeout for requests in flight when the server ends.
    pub drain_timeout: Duration,
}

impl Default for NetOptions {
    fn default() -> Self {
        Self {
            connections_max: 4096,
            in_flight_max: 64,
            queue_events_max: 64 * batzen_ledger::BATCH_EVENTS_MAX,
            batches_in_flight: 2,
            full_batches_in_flight: 8,
            gather: Duration::from_millis(1),
            buffered_bytes_max: 256 << 20,
            reads_in_flight_max: 256,
            hello_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(5),
        }
    }
}

/// Counters of a server.
#[derive(Debug)]
pub struct NetStats {
    connections: Counter,
    connections_ended: Counter,
    connections_refused: Counter,
    requests: [Counter; Kind::ALL.len()],
    errors: Counter,
    busy: Counter,
    events: Counter,
    batches: Counter,
    batch_events: Histogram,
    bytes_received: Counter,
    bytes_sent: Counter,
}

impl Default for NetStats {
    fn default() -> Self {
        Self {
            connections: Counter::default(),
            connections_ended: Counter::default(),
            connections_refused: Counter::default(),
            requests: Default::default(),
            errors: Counter::default(),
            busy: Counter::default(),
            events: Counter::default(),
            batches: Counter::default(),
            batch_events: Histogram::of_counts(),
            bytes_received: Counter::default(),
            bytes_sent: Counter::default(),
        }
    }
}

impl NetStats {
    fn request(&self, kind: Kind) {
        let place = Kind::ALL.iter().position(|known| *known == kind).expect("every kind is in the list");
        self.requests[place].inc();
    }

    /// Number of requests of a kind so far.
    #[must_use]
    pub fn requests(&self, kind: Kind) -> u64 {
        let place = Kind::ALL.iter().position(|known| *known == kind).expect("every kind is in the list");
        self.requests[place].get()
    }

    /// Number of batches passed to the ledger, and of the events in them.
    #[must_use]
    pub fn batches(&self) -> (u64, u64) {
        (self.batches.get(), self.events.get())
    }

    /// Writes the metrics `batzen_ledger_net_*`.
    pub fn write(&self, page: &mut Page) {
        page.counter(
            "batzen_ledger_net_connections_total",
            "Accepted connections of the binary protocol",
            self.connections.get(),
        );
        page.gauge(
            "batzen_ledger_net_connections_open",
            "Open connections of the binary protocol",
            self.connections.get().saturating_sub(self.connections_ended.get()),
        );
        page.counter(
            "batzen_ledger_net_connections_refused_total",
            "Connections refused because there were too many",
            self.connections_refused.get(),
        );
        page.counters(
            "batzen_ledger_net_requests_total",
            "Requests of the binary protocol",
            "kind",
            Kind::ALL.iter().zip(&self.requests).map(|(kind, counter)| (kind.name(), counter.get())),
        );
        page.counter(
            "batzen_ledger_net_errors_total",
            "Requests answered with an error other than busy",
            self.errors.get(),
        );
        page.counter("batzen_ledger_net_busy_total", "Requests answered with busy", self.busy.get());
        page.counter(
            "batzen_ledger_net_events_total",
            "Events of create requests passed to the ledger",
            self.events.get(),
        );
        page.histogram(
            "batzen_ledger_net_batch_events",
            "Events per batch passed to the ledger",
            &self.batch_events,
        );
        page.counter(
            "batzen_ledger_net_received_bytes_total",
            "Bytes received over the binary protocol",
            self.bytes_received.get(),
        );
        page.counter(
            "batzen_ledger_net_sent_bytes_total",
            "Bytes sent over the binary protocol",
            self.bytes_sent.get(),
        );
    }
}

/// State that all connections share.
struct ServerState {
    ledger: Arc<dyn Ledger>,
    options: NetOptions,
    stats: Arc<NetStats>,
    queue: queue::Queue,
    reads: Semaphore,
    input: PeerLimit,
    answers: PeerLimit,
}

/// A bound server that does not serve yet.
pub struct LedgerServer {
    listener: Listener,
    bound: Bound,
    stats: Arc<NetStats>,
}

impl LedgerServer {
    /// Binds the socket. Connections that arrive before [`LedgerServer::serve`] wait in the kernel.
    ///
    /// # Errors
    /// The system's error, with the address in its text.
    pub async fn bind(listen: Listen) -> io::Result<Self> {
        let (listener, bound) = Listener::bind(listen).await?;
        Ok(Self { listener, bound, stats: Arc::default() })
    }

    /// Its address in the form that [`connect`](crate::net::connect) accepts.
    #[must_use]
    pub fn url(&self) -> String {
        match &self.bound {
            Bound::Tcp(address) => format!("tcp://{address}"),
            Bound::Unix(path) => format!("unix://{}", path.display()),
        }
    }

    /// Its counters.
    #[must_use]
    pub fn stats(&self) -> Arc<NetStats> {
        Arc::clone(&self.stats)
    }

    /// Serves until `drain` fires. Then it accepts and reads no more, answers requests in flight within
    /// `options.drain_timeout`, and returns.
    pub fn serve(self, ledger: Arc<dyn Ledger>, options: NetOptions, drain: Drain) -> BoxFuture<'static, ()> {
        Box::pin(self.run(ledger, options, drain))
    }

    async fn run(self, ledger: Arc<dyn Ledger>, options: NetOptions, drain: Drain) {
        let Self { listener, bound, stats } = self;
        let connections = PeerLimit::new(options.connections_max);
        let shared = Arc::new(ServerState {
            ledger,
            reads: Semaphore::new(options.reads_in_flight_max.min(Semaphore::MAX_PERMITS)),
            queue: queue::Queue::new(options.queue_events_max),
            input: PeerLimit::new(options.buffered_bytes_max),
            answers: PeerLimit::new(options.buffered_bytes_max),
            options,
            stats: Arc::clone(&stats),
        });
        // Aborts them when this future ends or is dropped.
        let mut dispatcher = JoinSet::new();
        dispatcher.spawn(queue::dispatch(Arc::clone(&shared)));
        let mut tasks = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                biased;
                () = drain.draining() => break,
                Some(ended) = tasks.join_next() => {
                    report(ended);
                    continue;
                }
                accepted = listener.accept() => accepted,
            };
            let socket = match accepted {
                Ok(socket) => socket,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::ConnectionAborted
                            | io::ErrorKind::ConnectionReset
                            | io::ErrorKind::NotConnected
                            | io::ErrorKind::InvalidInput
                    ) =>
                {
                    continue;
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some(share) = connections.take(socket.peer()) else {
                stats.connections_refused.inc();
                conn::turn_away(&socket);
                continue;
            };
            stats.connections.inc();
            let shared = Arc::clone(&shared);
            let shares = conn::Shares {
                input: shared.input.share(socket.peer()),
                answers: shared.answers.share(socket.peer()),
                events: shared.queue.share(socket.peer()),
            };
            tasks.spawn(async move {
                match socket {
                    Socket::Tcp(stream, _) => {
                        let (read, write) = stream.into_split();
                        conn::drive(read, WriteHalf::Tcp(write), shares, &shared).await;
                    }
                    Socket::Unix(stream) => {
                        let (read, write) = stream.into_split();
                        conn::drive(read, WriteHalf::Unix(write), shares, &shared).await;
                    }
                }
                shared.stats.connections_ended.inc();
                drop(share);
            });
        }
        drop(listener);
        if let Bound::Unix(path) = &bound {
            let _ = std::fs::remove_file(path);
        }
        // The connections read no more; requests already read are answered.
        let drain_timeout = shared.options.drain_timeout;
        tasks.shutdown().await;
        shared.queue.close();
        if tokio::time::timeout(drain_timeout, dispatcher.join_next()).await.is_err() {
            tracing::warn!("closed connections with requests in flight: their clients repeat them");
        }
    }
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "connection task panicked");
    }
}
