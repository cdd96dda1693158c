//! The listening side: accepts, shakes hands, and hands each connection to a task of its own.

mod conn;
mod guard;
mod sign;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use batzen_http::{Bound, Listener, Socket};
use tokio::task::JoinSet;

use crate::channel::{Accept, ChannelError};
use crate::state::Signer;

/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Handshakes under way at once; connections beyond are closed.
const HANDSHAKES_MAX: usize = 64;
/// How long connections have to end when the process is to end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause after the system could not accept: it is out of descriptors, most likely.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A signer that is bound, but does not serve yet.
pub struct SignerServer {
    signer: Arc<Signer>,
    listeners: Vec<(Listener, Bound)>,
    accept: Accept,
}

impl SignerServer {
    /// Binds every configured address.
    ///
    /// # Errors
    /// What the system says, or why the static key cannot be used.
    pub async fn bind(signer: Arc<Signer>) -> Result<Self, ChannelError> {
        let accept = Accept::new(&signer.key, signer.clients.keys().copied().collect())?;
        let mut listeners = Vec::new();
        for address in &signer.config.listen {
            let bound = Listener::bind(address.listen()).await;
            listeners.push(bound.map_err(|error| {
                io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"))
            })?);
        }
        Ok(Self { signer, listeners, accept })
    }

    /// Where it listens, as nodes name it.
    pub fn urls(&self) -> Vec<String> {
        let url = |bound: &Bound| match bound {
            Bound::Tcp(address) => format!("tcp://{address}"),
            Bound::Unix(path) => format!("unix://{}", path.display()),
        };
        self.listeners.iter().map(|(_, bound)| url(bound)).collect()
    }

    /// Serves until the drain fires, then answers what was asked and ends.
    pub async fn serve(self) {
        let Self { signer, listeners, accept } = self;
        let guard = Arc::new(guard::Guard::default());
        let mut accepting = JoinSet::new();
        for (listener, _) in listeners {
            let (signer, accept, guard) = (Arc::clone(&signer), accept.clone(), Arc::clone(&guard));
            accepting.spawn(accept_all(signer, listener, accept, guard));
        }
        while let Some(ended) = accepting.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a listener ended abnormally");
            }
        }
    }
}

async fn accept_all(signer: Arc<Signer>, listener: Listener, accept: Accept, guard: Arc<guard::Guard>) {
    let mut connections = JoinSet::new();
    let handshakes = Arc::new(tokio::sync::Semaphore::new(HANDSHAKES_MAX));
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
        let from = match &socket {
            Socket::Tcp(_, peer) => Some(peer.ip()),
            Socket::Unix(_) => None,
        };
        if !guard.may_try(from) {
            signer.metrics.handshakes_limited.inc();
            continue;
        }
        let permit = Arc::clone(&handshakes).try_acquire_owned();
        let Ok(permit) = permit else {
            signer.metrics.connections_refused.inc();
            continue;
        };
        if signer.metrics.connections.get() >= signer.config.connections_max as u64 {
            signer.metrics.connections_refused.inc();
            continue;
        }
        let (signer, accept, guard) = (Arc::clone(&signer), accept.clone(), Arc::clone(&guard));
        connections.spawn(async move {
            let shaken = accept.accept(socket, HANDSHAKE_TIMEOUT).await;
            drop(permit);
            match shaken {
                Ok((channel, key)) => {
                    let client =
                        signer.clients.get(&key).expect("the handshake lets in listed keys only").clone();
                    conn::serve(&signer, channel, &client).await;
                }
                Err(error) => {
                    signer.metrics.handshakes_failed.inc();
                    // What it says comes from TLS: no key, no secret.
                    if let Some(unsaid) = guard.failed(from) {
                        let from = from.map_or_else(|| "the local socket".to_owned(), |ip| ip.to_string());
                        tracing::warn!(%error, from, unsaid, "a handshake has failed");
                    }
                }
            }
        });
    }
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_TIMEOUT, ended).await.is_err() {
        tracing::warn!("connections that do not end are cut");
    }
}
