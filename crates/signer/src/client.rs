//! The nodes' side: one connection at a time to the first signer that answers, requests pipelined over it. What is not
//! answered when a connection breaks, or not in time, is sent again over the next one: both ciphers and Ed25519 sign
//! deterministically, so that a repeated request gives the same signature.

mod driver;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
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
    /// Items that may wait or be under way; beyond that requests are refused at once.
    pub items_max: usize,
    /// After this time a request is given up.
    pub deadline: Duration,
    /// After this time without an answer a signer counts as gone.
    pub silence: Duration,
    /// How long it may take to connect.
    pub connect: Duration,
    /// The first pause after no signer could be reached; it doubles, up to a second.
    pub pause: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            items_max: 8192,
            deadline: Duration::from_secs(8),
            silence: Duration::from_secs(2),
            connect: Duration::from_secs(2),
            pause: Duration::from_millis(20),
        }
    }
}

/// Why nothing was signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// Too much is waiting, here or there.
    #[error("too much waits to be signed: try again later")]
    Busy,
    /// No signer has answered in time.
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
    reply: Reply,
}

struct Inner {
    addresses: Vec<Address>,
    connect: Connect,
    options: ClientOptions,
    queue: Mutex<VecDeque<Pending>>,
    /// Something is in the queue.
    work: Notify,
    /// Items that wait or are under way.
    items: AtomicUsize,
    listing: watch::Sender<Option<Arc<Listing>>>,
    /// The name of its content.
    listing_version: AtomicU64,
    /// The last reason for which there was no connection.
    trouble: Mutex<Option<String>>,
    metrics: ClientMetrics,
}

/// A client of the signers of one exchange. The connection ends when it is dropped.
pub struct SignerClient {
    inner: Arc<Inner>,
    driver: tokio::task::JoinHandle<()>,
}

impl Drop for SignerClient {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Holds items in the count while a request waits, whether or not anybody looks at it.
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
    /// A client that begins to connect at once. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the node's own key cannot be used.
    pub fn start(
        config: &ClientConfig,
        key: &EddsaPrivateKey,
        options: ClientOptions,
    ) -> Result<Self, ChannelError> {
        let inner = Arc::new(Inner {
            addresses: config.addresses.clone(),
            connect: Connect::new(key, config.public_keys.clone())?,
            options,
            queue: Mutex::default(),
            work: Notify::new(),
            items: AtomicUsize::new(0),
            listing: watch::Sender::new(None),
            listing_version: AtomicU64::new(NO_VERSION),
            trouble: Mutex::default(),
            metrics: ClientMetrics::default(),
        });
        let driver = tokio::spawn(driver::run(Arc::clone(&inner)));
        Ok(Self { inner, driver })
    }

    /// The keys of the signer that was heard last; none before the first.
    pub fn listing(&self) -> Option<Arc<Listing>> {
        self.inner.listing.borrow().clone()
    }

    /// Tells of new listings.
    pub fn listings(&self) -> watch::Receiver<Option<Arc<Listing>>> {
        self.inner.listing.subscribe()
    }

    /// Why there is no connection.
    pub fn trouble(&self) -> Option<String> {
        lock(&self.inner.trouble).clone()
    }

    /// Has items signed. They are in the queue when this returns; the results stand in their order.
    ///
    /// # Errors
    /// When too much is waiting. The future errs when no signer answers in time.
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
        // Items of one kind and size go together; where each comes from is remembered.
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
            queue.push_back(Pending { kind, modulus, count, body, sent: false, reply });
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

    /// Has a key destroyed by every signer. True when each has confirmed that it has no such key any more.
    pub async fn revoke_everywhere(&self, item: &Item, wait: Duration) -> bool {
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
                    tracing::warn!(signer = %address, %error, "not told yet of a revoked key");
                    done = false;
                }
            }
        }
        done
    }

    /// Writes `batzen_signer_client_*`.
    pub fn write(&self, page: &mut Page) {
        self.inner.metrics.write(page, self.inner.items.load(Relaxed));
    }
}
