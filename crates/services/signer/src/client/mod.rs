//! The nodes' side: one connection at a time to the first signer that answers (or to a key helper), with
//! pipelined requests. If a
//! connection breaks or an answer is late, its requests are sent again over the next one. Both ciphers and
//! Ed25519 sign deterministically, so a repeated request gives the same signature.

mod driver;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use batzen_crypto::EddsaPrivateKey;
use batzen_metrics::Page;
use tokio::sync::{Notify, oneshot, watch};

use crate::address::Address;
use crate::channel::{ChannelError, Connect};
use crate::frame::{BATCH_ITEMS_MAX, ItemStatus, Kind};
use crate::items::{Item, SignedItem, parse_answer};
use crate::link::Link;
use crate::listing::{Listing, NO_VERSION};
use crate::metrics::ClientMetrics;
use crate::service_config::ClientConfig;
use crate::state::lock;

/// Limits of a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions {
    /// Items that may wait or be under way. Requests beyond this limit are refused at once.
    pub items_max: usize,
    /// A request fails after this time.
    pub deadline: Duration,
    /// A signer that has not answered for this long counts as lost.
    pub silence: Duration,
    /// Timeout for connecting.
    pub connect: Duration,
    /// The first pause after no signer could be reached. It doubles, up to `pause_max`.
    pub pause: Duration,
    /// The longest pause.
    pub pause_max: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            items_max: 8192,
            deadline: Duration::from_secs(8),
            silence: Duration::from_secs(2),
            connect: Duration::from_secs(2),
            pause: Duration::from_millis(20),
            pause_max: Duration::from_secs(1),
        }
    }
}

impl ClientOptions {
    /// Limits of a client of a key helper: attempts over a local socket cost little.
    pub(crate) fn of_helper() -> Self {
        Self { pause_max: Duration::from_millis(100), ..Self::default() }
    }
}

/// Why nothing was signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// Too many items are waiting, here or at the signer.
    #[error("too many items wait to be signed: try again later")]
    Busy,
    /// No signer answered in time.
    #[error("no signer answers")]
    NoSigner,
}

type Reply = oneshot::Sender<Result<Vec<u8>, Unavailable>>;

/// A request that waits for its answer.
struct Pending {
    kind: Kind,
    modulus: usize,
    count: usize,
    body: Vec<u8>,
    sent: bool,
    /// The request that needs the answer, for the log.
    span: tracing::Span,
    reply: Reply,
}

struct Inner {
    /// The name of the peer in the log.
    peer: &'static str,
    addresses: Vec<Address>,
    connect: Connect,
    options: ClientOptions,
    queue: Mutex<VecDeque<Pending>>,
    /// Wakes the driver: the queue is not empty.
    work: Notify,
    /// Items that are waiting or under way.
    items: AtomicUsize,
    listing: watch::Sender<Option<Arc<Listing>>>,
    listing_version: AtomicU64,
    /// Why the last attempt to connect failed.
    last_error: Mutex<Option<String>>,
    /// Whether there is a connection.
    connected: AtomicBool,
    /// Whether the first attempt to get the keys has succeeded or failed.
    tried: watch::Sender<bool>,
    metrics: Arc<ClientMetrics>,
}

/// A client of one exchange's signers. Dropping it closes the connection.
pub struct SignerClient {
    inner: Arc<Inner>,
    driver: tokio::task::JoinHandle<()>,
}

impl Drop for SignerClient {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Counts a request's items while it waits, even if its caller has gone.
struct Room(Arc<Inner>, usize);

impl Room {
    fn take(inner: &Arc<Inner>, items: usize) -> Result<Self, Unavailable> {
        let room = Self(Arc::clone(inner), items);
        if inner.items.fetch_add(items, Relaxed) + items > inner.options.items_max {
            inner.metrics.busy.inc();
            return Err(Unavailable::Busy);
        }
        Ok(room)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.0.items.fetch_sub(self.1, Relaxed);
    }
}

impl SignerClient {
    /// Creates a client, which starts to connect at once. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If the node's own key cannot be used.
    pub fn start(
        config: &ClientConfig,
        key: &EddsaPrivateKey,
        options: ClientOptions,
    ) -> Result<Self, ChannelError> {
        let connect = Connect::new(key, config.public_keys.clone())?;
        Ok(Self::run("signer", config.addresses.clone(), connect, options, Arc::default()))
    }

    /// Creates a client of a key helper, which starts to connect at once. Must be called within a tokio
    /// runtime.
    pub(crate) fn of_helper(
        name: &'static str,
        socket: &Path,
        options: ClientOptions,
        metrics: Arc<ClientMetrics>,
    ) -> Self {
        Self::run(name, vec![Address::Unix(socket.to_owned())], Connect::local(), options, metrics)
    }

    fn run(
        peer: &'static str,
        addresses: Vec<Address>,
        connect: Connect,
        options: ClientOptions,
        metrics: Arc<ClientMetrics>,
    ) -> Self {
        let inner = Arc::new(Inner {
            peer,
            addresses,
            connect,
            options,
            queue: Mutex::default(),
            work: Notify::new(),
            items: AtomicUsize::new(0),
            listing: watch::Sender::new(None),
            listing_version: AtomicU64::new(NO_VERSION),
            last_error: Mutex::default(),
            connected: AtomicBool::new(false),
            tried: watch::Sender::new(false),
            metrics,
        });
        let driver = tokio::spawn(driver::run(Arc::clone(&inner)));
        Self { inner, driver }
    }

    /// Returns whether there is a connection.
    pub(crate) fn is_connected(&self) -> bool {
        self.inner.connected.load(Relaxed)
    }

    /// Items that are waiting or under way.
    pub(crate) fn queued(&self) -> usize {
        self.inner.items.load(Relaxed)
    }

    /// Waits until the first attempt to get the keys has succeeded or failed.
    pub(crate) async fn tried(&self) {
        // The sender lives in `self`.
        let _ = self.inner.tried.subscribe().wait_for(|tried| *tried).await;
    }

    /// The latest listing of keys; `None` before the first.
    pub(crate) fn listing(&self) -> Option<Arc<Listing>> {
        self.inner.listing.borrow().clone()
    }

    /// Notifies of new listings.
    pub(crate) fn listings(&self) -> watch::Receiver<Option<Arc<Listing>>> {
        self.inner.listing.subscribe()
    }

    /// Why there is no connection.
    pub(crate) fn last_error(&self) -> Option<String> {
        lock(&self.inner.last_error).clone()
    }

    /// Submits items for signing. They are queued when this returns. The results are in the order of the
    /// items.
    ///
    /// # Errors
    /// If too many items are waiting. The future fails if no signer answers in time.
    pub fn submit(
        &self,
        items: &[Item],
    ) -> Result<
        impl Future<Output = Result<Vec<Result<SignedItem, ItemStatus>>, Unavailable>> + Send + use<>,
        Unavailable,
    > {
        let inner = &self.inner;
        let count = items.len();
        let room = Room::take(inner, count)?;
        let since = Instant::now();
        // Groups items by kind and size, and remembers their positions.
        let mut frames: Vec<(Kind, usize, Vec<usize>)> = Vec::new();
        for (place, item) in items.iter().enumerate() {
            let (kind, modulus) = (item.kind(), item.modulus());
            inner.metrics.items(kind, 1);
            let mut open = frames.iter_mut().rev();
            let fits = |frame: &&mut (Kind, usize, Vec<usize>)| {
                frame.0 == kind && frame.1 == modulus && frame.2.len() < BATCH_ITEMS_MAX
            };
            match open.find(fits) {
                Some((.., places)) => places.push(place),
                None => frames.push((kind, modulus, vec![place])),
            }
        }
        let mut answers = Vec::with_capacity(frames.len());
        let mut queue = lock(&inner.queue);
        for (kind, modulus, places) in frames {
            let mut body = Vec::with_capacity(places.len() * kind.request_item(modulus));
            for place in &places {
                items[*place].push(&mut body);
            }
            let (reply, answer) = oneshot::channel();
            let count = places.len();
            let span = tracing::Span::current();
            queue.push_back(Pending { kind, modulus, count, body, sent: false, span, reply });
            answers.push((kind, modulus, places, answer));
        }
        drop(queue);
        inner.work.notify_one();
        Ok(async move {
            let Room(inner, count) = &room;
            let mut results = vec![Err(ItemStatus::Failed); *count];
            for (kind, modulus, places, answer) in answers {
                let left = inner.options.deadline.saturating_sub(since.elapsed());
                let Ok(Ok(body)) = tokio::time::timeout(left, answer).await else {
                    inner.metrics.timeouts.inc();
                    return Err(Unavailable::NoSigner);
                };
                let body = body?;
                let size = kind.answer_item(modulus).expect("the answer consists of items");
                for (place, bytes) in places.into_iter().zip(body.chunks_exact(size)) {
                    results[place] = parse_answer(kind, bytes).unwrap_or(Err(ItemStatus::Failed));
                }
            }
            inner.metrics.time.time(since.elapsed());
            Ok(results)
        })
    }

    /// Asks every signer to destroy a key. True if each has confirmed that it no longer has the key.
    pub(crate) async fn revoke_everywhere(&self, item: &Item, wait: Duration) -> bool {
        let inner = &self.inner;
        let mut done = true;
        for address in &inner.addresses {
            let revoke = async {
                let mut link = Link::connect(&inner.connect, address, inner.options.connect).await?;
                link.revoke(item, wait).await
            };
            match revoke.await {
                Ok(Ok(()) | Err(ItemStatus::UnknownKey)) => {}
                Ok(Err(status)) => {
                    tracing::error!(signer = %address, ?status, "a revoked key was not destroyed");
                    done = false;
                }
                Err(error) => {
                    tracing::warn!(signer = %address, %error, "cannot reach a signer to destroy a revoked key");
                    done = false;
                }
            }
        }
        done
    }

    /// Writes `batzen_signer_client_*`.
    pub(crate) fn write(&self, page: &mut Page) {
        self.inner.metrics.write(page, self.is_connected(), self.queued());
    }
}
