//! Fair shares of the resources that all clients of a server use.
//!
//! Each resource has a limit. A client may take more of it only while it holds at most as much as would still
//! be free afterwards (a dynamic threshold, after Choudhury and Hahne). A single client gets half, `n` greedy
//! clients leave `1 / (n + 1)` free, and a client that comes later always finds room. Below half of the limit
//! no client is refused, so a single proxy or load generator has no disadvantage on an idle server.
//!
//! A client is an IPv4 address, or the first 64 bits of an IPv6 address (the size of one subscriber's
//! network). Clients on a local socket are programs of the operator: they count, but only the limit itself
//! bounds them. A client is remembered while it has a connection or a request, so there are never more
//! entries than connections and requests.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Resource {
    Connections = 0,
    /// Requests in handlers.
    Requests = 1,
    /// Requests that wait for an event (long polls).
    Polls = 2,
    /// Bytes of request bodies in memory.
    Bodies = 3,
    /// Bytes of responses that clients have not read yet.
    Answers = 4,
    /// Connections that are still read after a refusal.
    LingerCloses = 5,
}

pub(crate) const RESOURCES: usize = 6;

/// A client, as far as limits tell clients apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientKey {
    /// An IPv4 address.
    V4(Ipv4Addr),
    /// The first 64 bits of an IPv6 address: one client usually has the whole network.
    V6([u16; 4]),
    /// A local socket.
    Local,
}

impl ClientKey {
    /// The key of an address; `None` is a local socket.
    #[must_use]
    pub fn of(address: Option<IpAddr>) -> Self {
        match address.map(|address| address.to_canonical()) {
            None => Self::Local,
            Some(IpAddr::V4(address)) => Self::V4(address),
            Some(IpAddr::V6(address)) => {
                let [a, b, c, d, ..] = address.segments();
                Self::V6([a, b, c, d])
            }
        }
    }
}

/// The resources of a server, and how much of them each client holds.
#[derive(Debug)]
pub(crate) struct Shares {
    limits: [usize; RESOURCES],
    used: [AtomicUsize; RESOURCES],
    clients: Mutex<HashMap<ClientKey, Weak<Client>>>,
}

impl Shares {
    pub(crate) fn new(limits: [usize; RESOURCES]) -> Arc<Self> {
        Arc::new(Self { limits, used: Default::default(), clients: Mutex::default() })
    }

    /// The client with this key.
    pub(crate) fn client(self: &Arc<Self>, key: ClientKey) -> Arc<Client> {
        let mut clients = self.clients();
        if let Some(client) = clients.get(&key).and_then(Weak::upgrade) {
            return client;
        }
        let client = Arc::new(Client { key, held: Default::default(), shares: Arc::clone(self) });
        clients.insert(key, Arc::downgrade(&client));
        client
    }

    pub(crate) fn limit(&self, resource: Resource) -> usize {
        self.limits[resource as usize]
    }

    pub(crate) fn used(&self, resource: Resource) -> usize {
        self.used[resource as usize].load(Ordering::Relaxed)
    }

    fn clients(&self) -> MutexGuard<'_, HashMap<ClientKey, Weak<Client>>> {
        // The map is never left half changed.
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A client, and what it holds.
#[derive(Debug)]
pub(crate) struct Client {
    key: ClientKey,
    held: [AtomicUsize; RESOURCES],
    shares: Arc<Shares>,
}

impl Client {
    /// Takes a part of a resource; `None` if the client has used up its share, or nothing is left.
    pub(crate) fn take(self: &Arc<Self>, resource: Resource, amount: usize) -> Option<Hold> {
        let mut hold = self.hold(resource);
        hold.grow(amount, 0).then_some(hold)
    }

    /// An empty hold.
    pub(crate) fn hold(self: &Arc<Self>, resource: Resource) -> Hold {
        Hold { client: Arc::clone(self), resource, amount: 0 }
    }

    /// Returns whether the client may take one more unit now.
    pub(crate) fn may_take(&self, resource: Resource) -> bool {
        let held = self.held[resource as usize].load(Ordering::Relaxed);
        self.fits(resource, self.shares.used(resource), held, 1, 0)
    }

    /// The rule. `keep` must stay free for others.
    fn fits(&self, resource: Resource, used: usize, held: usize, amount: usize, keep: usize) -> bool {
        let free = self.shares.limit(resource).saturating_sub(used);
        free.checked_sub(amount)
            .and_then(|free| free.checked_sub(keep))
            .is_some_and(|left| self.key == ClientKey::Local || held <= left)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut clients = self.shares.clients();
        // A new entry may have replaced it meanwhile.
        if clients.get(&self.key).is_some_and(|entry| std::ptr::eq(entry.as_ptr(), self)) {
            clients.remove(&self.key);
        }
    }
}

/// A part of a resource, released when dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    client: Arc<Client>,
    resource: Resource,
    amount: usize,
}

impl Hold {
    /// The client that holds it.
    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// Takes more if at least `keep` stays free for others. Otherwise takes nothing and returns false.
    pub(crate) fn grow(&mut self, amount: usize, keep: usize) -> bool {
        let place = self.resource as usize;
        let (client, shares) = (&self.client, &self.client.shares);
        // Counted before the decision, so that two connections of a client cannot both take its last part.
        let held = client.held[place].fetch_add(amount, Ordering::Relaxed);
        let taken = shares.used[place]
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                client.fits(self.resource, used, held, amount, keep).then(|| used + amount)
            })
            .is_ok();
        if taken {
            self.amount += amount;
        } else {
            client.held[place].fetch_sub(amount, Ordering::Relaxed);
        }
        taken
    }
}

impl Hold {
    fn release(&mut self) {
        let (place, amount) = (self.resource as usize, std::mem::take(&mut self.amount));
        if amount > 0 {
            self.client.held[place].fetch_sub(amount, Ordering::Relaxed);
            self.client.shares.used[place].fetch_sub(amount, Ordering::Relaxed);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.release();
    }
}

/// A limit on something that the clients of a server use, which leaves room for each of them: for servers that speak
/// another protocol than HTTP.
#[derive(Clone, Debug)]
pub struct PeerLimit(Arc<Shares>);

/// A client's part of a [`PeerLimit`], released when dropped.
#[derive(Debug)]
pub struct PeerShare(Hold);

impl PeerLimit {
    /// A limit of `max` units for all clients together.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self(Shares::new([max; RESOURCES]))
    }

    /// A share of the client at this address (`None`: a local socket), with nothing in it.
    #[must_use]
    pub fn share(&self, peer: Option<IpAddr>) -> PeerShare {
        PeerShare(self.0.client(ClientKey::of(peer)).hold(Resource::Connections))
    }

    /// One unit for the client at this address; `None` if it has used up its share, or nothing is left.
    #[must_use]
    pub fn take(&self, peer: Option<IpAddr>) -> Option<PeerShare> {
        let mut share = self.share(peer);
        share.grow(1).then_some(share)
    }
}

impl PeerShare {
    /// Takes `amount` more. Otherwise takes nothing and returns false.
    #[must_use]
    pub fn grow(&mut self, amount: usize) -> bool {
        self.0.grow(amount, 0)
    }

    /// Takes as much as is needed to hold `amount` in all. Otherwise takes nothing and returns false.
    #[must_use]
    pub fn grow_to(&mut self, amount: usize) -> bool {
        amount <= self.0.amount || self.grow(amount - self.0.amount)
    }

    /// A share of the same client and limit, with nothing in it.
    #[must_use]
    pub fn sibling(&self) -> Self {
        Self(self.0.client.hold(self.0.resource))
    }

    /// Releases everything that it holds.
    pub fn release(&mut self) {
        self.0.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(limit: usize) -> Arc<Shares> {
        Shares::new([limit; RESOURCES])
    }

    fn v4(last: u8) -> ClientKey {
        ClientKey::of(Some(IpAddr::from([127, 0, 0, last])))
    }

    /// Takes units until one is refused.
    fn take_all(client: &Arc<Client>) -> Vec<Hold> {
        std::iter::from_fn(|| client.take(Resource::Connections, 1)).collect()
    }

    #[test]
    fn one_client_gets_half_and_others_find_room() {
        let shares = shares(1000);
        let first = take_all(&shares.client(v4(1)));
        assert_eq!(first.len(), 500);
        let second = take_all(&shares.client(v4(2)));
        assert_eq!(second.len(), 250);
        let mut holds = vec![first, second];
        for last in 3..100 {
            holds.push(take_all(&shares.client(v4(last))));
            assert!(!holds.last().unwrap().is_empty() || shares.used(Resource::Connections) == 1000);
        }
        // Clients that hold little can take what is released.
        holds.remove(0);
        assert!(take_all(&shares.client(v4(200))).len() >= 250);
        drop(holds);
        assert_eq!(shares.used(Resource::Connections), 0);
        assert!(shares.clients().is_empty(), "no client is remembered");
    }

    #[test]
    fn greedy_clients_that_take_turns_leave_room_for_another() {
        let shares = shares(1000);
        let clients: Vec<_> = (1..10).map(|last| shares.client(v4(last))).collect();
        let mut holds = Vec::new();
        loop {
            let before = holds.len();
            holds.extend(clients.iter().filter_map(|client| client.take(Resource::Connections, 1)));
            if holds.len() == before {
                break;
            }
        }
        // Nine clients: a tenth is free.
        let free = 1000 - shares.used(Resource::Connections);
        assert!((90..=100).contains(&free), "{free}");
        assert!(take_all(&shares.client(v4(100))).len() >= free / 2);
    }

    #[test]
    fn the_last_unit_and_large_pieces() {
        let shares = shares(1);
        let hold = shares.client(v4(1)).take(Resource::Requests, 1).unwrap();
        assert!(shares.client(v4(2)).take(Resource::Requests, 1).is_none());
        assert!(!shares.client(v4(2)).may_take(Resource::Requests));
        drop(hold);
        assert!(shares.client(v4(2)).may_take(Resource::Requests));
        // Each resource has its own limit.
        assert!(shares.client(v4(1)).take(Resource::Polls, 1).is_some());
        let shares = self::shares(100);
        let client = shares.client(v4(1));
        let mut hold =
            client.take(Resource::Answers, 100).expect("a client that holds nothing may take a large piece");
        assert!(!hold.grow(1, 0));
        drop(hold);
        let mut hold = client.hold(Resource::Bodies);
        assert!(
            !hold.grow(81, 20) && hold.grow(80, 20) && !hold.grow(1, 20),
            "the part for others stays free"
        );
        assert!(!hold.grow(1, 0), "this client has used up its share");
        assert!(shares.client(v4(2)).take(Resource::Bodies, 20).is_some());
    }

    #[test]
    fn local_clients_are_bounded_by_the_limit_alone() {
        let shares = shares(10);
        assert_eq!(take_all(&shares.client(ClientKey::Local)).len(), 10);
    }

    #[test]
    fn a_key_is_the_network_of_one_subscriber() {
        let key = |text: &str| ClientKey::of(Some(text.parse().unwrap()));
        assert_eq!(key("::ffff:192.0.2.7"), key("192.0.2.7"));
        assert_ne!(key("192.0.2.8"), key("192.0.2.7"));
        assert_eq!(key("2001:db8:1:2:3::1"), key("2001:db8:1:2:ffff::9"));
        assert_ne!(key("2001:db8:1:3::1"), key("2001:db8:1:2::1"));
    }

    #[test]
    fn threads_never_exceed_the_limit() {
        let shares = shares(64);
        std::thread::scope(|scope| {
            for last in 0..4 {
                let shares = &shares;
                scope.spawn(move || {
                    for _ in 0..2_000 {
                        let held = take_all(&shares.client(v4(last % 2)));
                        assert!(shares.used(Resource::Connections) <= 64);
                        drop(held);
                    }
                });
            }
        });
        assert_eq!(shares.used(Resource::Connections), 0);
        assert!(shares.clients().is_empty());
    }
}
