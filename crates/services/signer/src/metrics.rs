//! Metrics `batzen_signer_*` of signers and their clients.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use batzen_metrics::{Counter, Histogram, Page};

use crate::frame::{ItemStatus, Kind};

/// The kinds that sign or revoke, whose items are counted.
const COUNTED: [Kind; 6] =
    [Kind::Rsa, Kind::Cs, Kind::Values, Kind::Eddsa, Kind::RevokeDenomination, Kind::RevokeSigning];

fn place(kind: Kind) -> Option<usize> {
    COUNTED.iter().position(|counted| *counted == kind)
}

/// Values of the label `reason`, which tells why an item was not signed.
const REASONS: [(&str, ItemStatus); 6] = [
    ("unknown-key", ItemStatus::UnknownKey),
    ("out-of-period", ItemStatus::OutOfPeriod),
    ("not-allowed", ItemStatus::NotAllowed),
    ("planchet", ItemStatus::Planchet),
    ("bad-signature", ItemStatus::BadSignature),
    ("failed", ItemStatus::Failed),
];

/// A level that goes up and down.
#[derive(Debug, Default)]
pub struct Level(AtomicU64);

impl Level {
    /// Counts one until the guard is dropped.
    pub(crate) fn enter(&self) -> LevelGuard<'_> {
        self.0.fetch_add(1, Relaxed);
        LevelGuard(self)
    }

    /// The current level.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counts one as long as it lives.
pub(crate) struct LevelGuard<'a>(&'a Level);

impl Drop for LevelGuard<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Relaxed);
    }
}

/// Counters of a signer.
#[derive(Default)]
pub struct ServerMetrics {
    /// Open connections.
    pub connections: Level,
    /// Connections that were turned away because there were too many.
    pub(crate) connections_refused: Counter,
    pub(crate) handshakes_failed: Counter,
    /// Connections closed before the handshake, after many failures from their address.
    pub(crate) handshakes_limited: Counter,
    /// Malformed frames.
    pub malformed: Counter,
    /// Requests refused because too much was waiting.
    pub(crate) busy: Counter,
    /// Requests that the client's role does not permit.
    pub forbidden: Counter,
    /// Keys destroyed by revocation.
    pub(crate) revoked: Counter,
    /// Private keys sent to followers.
    pub(crate) secrets: Counter,
    /// The time from a request's arrival to its answer.
    pub(crate) time: Histogram,
    items: [Counter; COUNTED.len()],
    refused: [Counter; REASONS.len()],
}

impl ServerMetrics {
    /// Counts the items of a request.
    pub(crate) fn items(&self, kind: Kind, count: usize) {
        if let Some(place) = place(kind) {
            self.items[place].add(count as u64);
        }
    }

    /// Counts an item that is not signed.
    pub(crate) fn refused(&self, status: ItemStatus) {
        if let Some(place) = REASONS.iter().position(|(_, counted)| *counted == status) {
            self.refused[place].inc();
        }
    }

    pub(crate) fn write(&self, page: &mut Page) {
        page.gauge("batzen_signer_connections", "Connections of nodes and peers", self.connections.get());
        let mut count = |name, help, counter: &Counter| page.count(name, help, counter);
        count(
            "batzen_signer_connections_refused_total",
            "Connections beyond the limit",
            &self.connections_refused,
        );
        count("batzen_signer_handshakes_failed_total", "Failed handshakes", &self.handshakes_failed);
        count(
            "batzen_signer_handshakes_limited_total",
            "Connections closed before the handshake, after many failed handshakes from their address",
            &self.handshakes_limited,
        );
        count("batzen_signer_malformed_total", "Malformed frames", &self.malformed);
        count("batzen_signer_busy_total", "Requests refused because too much was waiting", &self.busy);
        count("batzen_signer_forbidden_total", "Requests beyond the client's role", &self.forbidden);
        count("batzen_signer_revoked_total", "Keys destroyed by revocation", &self.revoked);
        count("batzen_signer_secrets_total", "Private keys given to followers", &self.secrets);
        let items = COUNTED.iter().zip(&self.items).map(|(kind, counter)| (kind.name(), counter.get()));
        page.counters("batzen_signer_items_total", "Items of requests", "kind", items);
        let refused = REASONS.iter().zip(&self.refused).map(|((name, _), counter)| (*name, counter.get()));
        page.counters("batzen_signer_refused_total", "Items that were not signed", "reason", refused);
        page.histogram("batzen_signer_request_seconds", "Time from a request to its answer", &self.time);
    }
}

/// Counters of a client.
#[derive(Default)]
pub struct ClientMetrics {
    pub(crate) connects: Counter,
    /// Failed attempts to connect, and broken connections.
    pub(crate) failures: Counter,
    /// Requests sent again over another connection.
    pub(crate) repeated: Counter,
    /// Requests refused because too much was waiting, here or at the signer.
    pub(crate) busy: Counter,
    /// Requests given up because no signer answered in time.
    pub(crate) timeouts: Counter,
    /// The time from a request to its answer, including repetitions.
    pub(crate) time: Histogram,
    items: [Counter; COUNTED.len()],
}

impl ClientMetrics {
    /// Counts the items of a request.
    pub(crate) fn items(&self, kind: Kind, count: usize) {
        if let Some(place) = place(kind) {
            self.items[place].add(count as u64);
        }
    }

    /// Writes the metrics.
    pub fn write(&self, page: &mut Page, is_connected: bool, queued: usize) {
        page.gauge(
            "batzen_signer_client_connected",
            "Whether a signer, or each required key helper, is connected",
            u8::from(is_connected),
        );
        page.gauge("batzen_signer_client_queued_items", "Items that wait for a signer", queued);
        let mut count = |name, help, counter: &Counter| page.count(name, help, counter);
        count("batzen_signer_client_connects_total", "Connections to signers", &self.connects);
        count(
            "batzen_signer_client_failures_total",
            "Failed attempts to connect, and broken connections",
            &self.failures,
        );
        count("batzen_signer_client_repeated_total", "Requests sent again", &self.repeated);
        count("batzen_signer_client_busy_total", "Requests refused because too much was waiting", &self.busy);
        count("batzen_signer_client_timeouts_total", "Requests that no signer answered", &self.timeouts);
        let items = COUNTED.iter().zip(&self.items).map(|(kind, counter)| (kind.name(), counter.get()));
        page.counters("batzen_signer_client_items_total", "Items of requests", "kind", items);
        page.histogram("batzen_signer_client_seconds", "Time from a request to its answer", &self.time);
    }
}
