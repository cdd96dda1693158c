//! Browsers' requests that wait for providers. Each holds a connection to one, and a slow provider holds it for long,
//! so no client may take all places.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use batzen_http::ClientKey;

/// Number of requests that may wait for providers at the same time.
const PROOFS_MAX: usize = 64;

/// The requests that wait, by client.
#[derive(Debug, Default)]
pub(crate) struct Proofs(Mutex<HashMap<ClientKey, usize>>);

/// A place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    proofs: &'a Proofs,
    client: ClientKey,
}

impl Proofs {
    fn held(&self) -> MutexGuard<'_, HashMap<ClientKey, usize>> {
        // The map is never left half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place; `None` if all are taken, or the client would hold more than are left for all others. Clients on
    /// a local socket are programs of the operator, which may take all.
    pub(crate) fn enter(&self, client: ClientKey) -> Option<Place<'_>> {
        let mut held = self.held();
        let free = PROOFS_MAX - held.values().sum::<usize>();
        let own = held.get(&client).copied().unwrap_or_default();
        let is_fair = client == ClientKey::Local || own + 1 < free;
        if free == 0 || !is_fair {
            return None;
        }
        held.insert(client, own + 1);
        Some(Place { proofs: self, client })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut held = self.proofs.held();
        if let Some(count) = held.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn no_client_takes_all_places_and_every_place_comes_back() {
        let proofs = Proofs::default();
        let client = |n| ClientKey::V4(Ipv4Addr::new(192, 0, 2, n));
        let take = |client| std::iter::from_fn(|| proofs.enter(client)).collect::<Vec<_>>();
        let greedy = take(client(1));
        assert_eq!(greedy.len(), PROOFS_MAX / 2);
        let other = take(client(2));
        assert!(other.len() > PROOFS_MAX / 8 && take(client(3)).len() > 1, "{}", other.len());
        drop((greedy, other));
        assert!(proofs.held().is_empty());
        assert_eq!(take(ClientKey::Local).len(), PROOFS_MAX);
    }
}
