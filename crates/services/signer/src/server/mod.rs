//! The listening side: accepts connections, performs handshakes, and gives each connection a task.

mod conn;
mod guard;
mod sign;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use batzen_http::{Bound, Listener, PeerLimit};
use tokio::task::JoinSet;

use crate::channel::{Accept, ChannelError};
use crate::state::{Access, Signer};

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of concurrent handshakes, with a share for each address. Further connections are closed.
const HANDSHAKES_MAX: usize = 64;
/// Time that connections may take to end when the process ends.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after a failed accept; most likely the process has run out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A bound signer that does not serve yet.
pub struct SignerServer {
    signer: Arc<Signer>,
    listeners: Vec<(Listener, Bound)>,
    accept: Accept,
}

impl SignerServer {
    /// Binds every configured address.
    ///
    /// # Errors
    /// The system's error, or the reason why the static key cannot be used.
    pub async fn bind(signer: Arc<Signer>) -> Result<Self, ChannelError> {
        let accept = match &signer.access {
            Access::Keys { own, clients } => Accept::new(own, clients.keys().copied().collect())?,
            Access::LocalSocket => Accept::local(),
        };
        let mut listeners = Vec::new();
        for address in &signer.listen {
            let bound = Listener::bind(address.listen()).await;
            listeners.push(bound.map_err(|error| {
                io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"))
            })?);
        }
        Ok(Self { signer, listeners, accept })
    }

    /// Where it listens, in the form that a node's configuration uses.
    pub fn urls(&self) -> Vec<String> {
        let url = |bound: &Bound| match bound {
            Bound::Tcp(address) => format!("tcp://{address}"),
            Bound::Unix(path) => format!("unix://{}", path.display()),
        };
        self.listeners.iter().map(|(_, bound)| url(bound)).collect()
    }

    /// Serves until the drain fires, then answers pending requests and ends.
    pub async fn serve(self) {
        let Self { signer, listeners, accept } = self;
        let guard = Arc::new(guard::Guard::default());
        let handshakes = PeerLimit::new(HANDSHAKES_MAX);
        let mut accepting = JoinSet::new();
        for (listener, _) in listeners {
            let (signer, accept, guard) = (Arc::clone(&signer), accept.clone(), Arc::clone(&guard));
            accepting.spawn(accept_all(signer, listener, accept, guard, handshakes.clone()));
        }
        while let Some(ended) = accepting.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a listener ended abnormally");
            }
        }
    }
}

async fn accept_all(
    signer: Arc<Signer>,
    listener: Listener,
    accept: Accept,
    guard: Arc<guard::Guard>,
    handshakes: PeerLimit,
) {
    let mut connections = JoinSet::new();
    loop {
        let socket = tokio::select! {
            biased;
            () = signer.drain.draining() => break,
            Some(_) = connections.join_next() => continue,
            socket = listener.accept() => socket,
        };
        let socket = match socket {
            Ok(socket) => socket,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let from = socket.peer();
        if !guard.may_try(from) {
            signer.metrics.handshakes_limited.inc();
            continue;
        }
        let Some(share) = handshakes.take(from) else {
            signer.metrics.connections_refused.inc();
            continue;
        };
        if signer.metrics.connections.get() >= signer.connections_max as u64 {
            signer.metrics.connections_refused.inc();
            continue;
        }
        let (signer, accept, guard) = (Arc::clone(&signer), accept.clone(), Arc::clone(&guard));
        connections.spawn(async move {
            let shaken = accept.accept(socket, HANDSHAKE_TIMEOUT).await;
            drop(share);
            match shaken {
                Ok((channel, key)) => {
                    guard.succeeded(from);
                    let client = signer.access.client(key);
                    conn::serve(&signer, channel, &client).await;
                }
                Err(error) => {
                    signer.metrics.handshakes_failed.inc();
                    // The error comes from TLS. It contains no key and no secret.
                    if let Some(unlogged) = guard.failed(from) {
                        let from = from.map_or_else(|| "the local socket".to_owned(), |ip| ip.to_string());
                        tracing::warn!(%error, from, unlogged, "handshake failed");
                    }
                }
            }
        });
    }
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_TIMEOUT, ended).await.is_err() {
        tracing::warn!("closing connections that did not end in time");
    }
}
