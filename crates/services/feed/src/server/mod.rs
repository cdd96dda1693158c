//! The exchange's side: it reads committed changes from the journal and ships them to its auditors.
//!
//! An auditor has at most one connection. It gets one batch at a time, and the next one when it has acknowledged that
//! it has stored the last. The store holds what it has not acknowledged, up to a limit.

mod judge;
mod session;

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey};
use batzen_http::{Bound, Drain, Listener, PeerLimit, Socket};
use batzen_signer::channel::{Accept, ChannelError};
use batzen_store::{Store, StoreError};
use tokio::task::JoinSet;

use crate::Clock;
use crate::config::ServerConfig;
use crate::metrics::ServerMetrics;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of concurrent handshakes, with a share for each address. Further connections are closed.
const HANDSHAKES_MAX: usize = 64;
/// Pause after a failed accept; most likely the process has run out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// State that all connections share.
struct ServerState {
    store: Store,
    key: EddsaPrivateKey,
    hold_bytes_max: u64,
    clock: Clock,
    metrics: Arc<ServerMetrics>,
    drain: Drain,
    /// The auditors that are connected.
    connected: Mutex<HashSet<EddsaPublicKey>>,
}

/// The name of an auditor's hold.
fn hold_name(auditor: &EddsaPublicKey) -> String {
    auditor.to_string()
}

/// The name of an auditor in metrics and logs: the beginning of its key.
fn short_name(auditor: &EddsaPublicKey) -> String {
    auditor.to_string().chars().take(8).collect()
}

/// Ends the holds of auditors that are not among these, so that the journal is not kept for them. Blocks.
///
/// # Errors
/// When the disk fails.
pub fn release_others(store: &Store, auditors: &[EddsaPublicKey]) -> Result<(), StoreError> {
    let Some(feed) = store.backend().feed() else { return Ok(()) };
    let names: Vec<String> = auditors.iter().map(hold_name).collect();
    for hold in feed.holds() {
        if !names.contains(&hold.name) {
            tracing::info!(auditor = hold.name, "the journal is no longer kept for this auditor");
            feed.release(&hold.name)?;
        }
    }
    Ok(())
}

/// A bound server that does not serve yet.
pub struct FeedServer {
    shared: Arc<ServerState>,
    listeners: Vec<(Listener, Bound)>,
    accept: Accept,
}

impl FeedServer {
    /// Binds every configured address.
    ///
    /// # Errors
    /// The system's error, or the reason why the key cannot be used.
    pub async fn bind(
        config: &ServerConfig,
        key: EddsaPrivateKey,
        store: Store,
        drain: Drain,
        clock: Clock,
        metrics: Arc<ServerMetrics>,
    ) -> Result<Self, ChannelError> {
        let accept = Accept::new(&key, config.auditors.clone())?;
        let mut listeners = Vec::new();
        for address in &config.listen {
            let bound = Listener::bind(address.listen()).await;
            listeners.push(bound.map_err(|error| {
                io::Error::new(error.kind(), format!("cannot listen for auditors on {address}: {error}"))
            })?);
        }
        for auditor in &config.auditors {
            metrics.update(&short_name(auditor), |_| ());
        }
        let (hold_bytes_max, connected) = (config.hold_bytes_max, Mutex::default());
        let shared = Arc::new(ServerState { store, key, hold_bytes_max, clock, metrics, drain, connected });
        Ok(Self { shared, listeners, accept })
    }

    /// Where it listens, in the form that an auditor's configuration uses.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        let url = |bound: &Bound| match bound {
            Bound::Tcp(address) => format!("tcp://{address}"),
            Bound::Unix(path) => format!("unix://{}", path.display()),
        };
        self.listeners.iter().map(|(_, bound)| url(bound)).collect()
    }

    /// Serves until the drain fires.
    pub async fn serve(self) {
        let Self { shared, listeners, accept } = self;
        let handshakes = PeerLimit::new(HANDSHAKES_MAX);
        let mut accepting = JoinSet::new();
        for (listener, _) in listeners {
            accepting.spawn(accept_all(Arc::clone(&shared), listener, accept.clone(), handshakes.clone()));
        }
        while let Some(ended) = accepting.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a listener for auditors ended abnormally");
            }
        }
    }
}

async fn accept_all(shared: Arc<ServerState>, listener: Listener, accept: Accept, handshakes: PeerLimit) {
    let mut connections = JoinSet::new();
    loop {
        let socket = tokio::select! {
            biased;
            () = shared.drain.draining() => break,
            Some(_) = connections.join_next() => continue,
            socket = listener.accept() => socket,
        };
        let socket = match socket {
            Ok(socket) => socket,
            Err(error) => {
                tracing::warn!(%error, "cannot accept an auditor's connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(share) = handshakes.take(socket.peer()) else {
            shared.metrics.refused.inc();
            continue;
        };
        let (shared, accept) = (Arc::clone(&shared), accept.clone());
        connections.spawn(async move {
            if let Socket::Tcp(stream, _) = &socket
                && let Err(error) = stream.set_nodelay(true)
            {
                tracing::debug!(%error, "small messages may be delayed");
            }
            let shaken = accept.accept(socket, HANDSHAKE_TIMEOUT).await;
            drop(share);
            match shaken {
                Ok((channel, key)) => {
                    let key = key.expect("TLS names the client");
                    session::serve(&shared, channel, key).await;
                }
                Err(error) => {
                    shared.metrics.refused.inc();
                    // The error comes from TLS. It contains no key and no secret.
                    tracing::warn!(%error, "an auditor's handshake failed");
                }
            }
        });
    }
    // Each of them waits for the same drain.
    while connections.join_next().await.is_some() {}
}

/// An auditor's only connection.
struct Slot<'a> {
    shared: &'a ServerState,
    auditor: EddsaPublicKey,
}

impl ServerState {
    /// The auditor's connection, unless it has one.
    fn enter(&self, auditor: EddsaPublicKey) -> Option<Slot<'_>> {
        let is_new = self.connected.lock().unwrap_or_else(PoisonError::into_inner).insert(auditor);
        // Only if it is new, because its end frees the place.
        is_new.then(|| Slot { shared: self, auditor })
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let mut connected = self.shared.connected.lock().unwrap_or_else(PoisonError::into_inner);
        connected.remove(&self.auditor);
        self.shared.metrics.update(&short_name(&self.auditor), |state| state.is_connected = false);
    }
}
