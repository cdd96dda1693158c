//! The switch's in-memory copy of its participants: names, numbers, callback addresses. It is reloaded after
//! each change, before the change is answered. Decisions never depend on it: rules read the rows.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use batzen_store::{Store, StoreError};
use batzen_tables::switch::{Endpoints, Participants};

/// Types of callback addresses.
pub const ENDPOINT_TYPES: [&str; 15] = [
    "FSPIOP_CALLBACK_URL",
    "FSPIOP_CALLBACK_URL_TRANSFER_POST",
    "FSPIOP_CALLBACK_URL_TRANSFER_PUT",
    "FSPIOP_CALLBACK_URL_TRANSFER_ERROR",
    "FSPIOP_CALLBACK_URL_BULK_TRANSFER_POST",
    "FSPIOP_CALLBACK_URL_BULK_TRANSFER_PUT",
    "FSPIOP_CALLBACK_URL_BULK_TRANSFER_ERROR",
    "FSPIOP_CALLBACK_URL_PARTIES",
    "FSPIOP_CALLBACK_URL_PARTICIPANTS",
    "FSPIOP_CALLBACK_URL_QUOTES",
    "FSPIOP_CALLBACK_URL_BULK_QUOTES",
    "FSPIOP_CALLBACK_URL_TRANSACTION_REQUESTS",
    "FSPIOP_CALLBACK_URL_AUTHORIZATIONS",
    "FSPIOP_CALLBACK_URL_TRANSACTIONS",
    "SWITCH_NOTIFICATION_URL",
];

/// A participant.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its number.
    pub number: u32,
    /// Its name as registered.
    pub name: String,
    /// Whether it takes part.
    pub active: bool,
    /// Callback addresses by type.
    pub endpoints: HashMap<String, String>,
}

/// All participants at one moment.
#[derive(Debug, Default)]
pub struct Snapshot {
    by_name: HashMap<String, Arc<Entry>>,
    by_number: HashMap<u32, Arc<Entry>>,
}

impl Snapshot {
    /// The participant with this name, ignoring case.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<&Arc<Entry>> {
        self.by_name.get(name).or_else(|| self.by_name.get(&name.to_ascii_lowercase()))
    }

    /// The participant with this number.
    #[must_use]
    pub fn by_number(&self, number: u32) -> Option<&Arc<Entry>> {
        self.by_number.get(&number)
    }

    /// The name of a participant; empty for an unknown number.
    #[must_use]
    pub fn name(&self, number: u32) -> &str {
        self.by_number(number).map_or("", |entry| &entry.name)
    }

    /// All of them, by number.
    pub fn all(&self) -> Vec<&Arc<Entry>> {
        let mut all: Vec<_> = self.by_number.values().collect();
        all.sort_by_key(|entry| entry.number);
        all
    }
}

/// The current snapshot.
#[derive(Debug, Default)]
pub struct Directory(RwLock<Arc<Snapshot>>);

impl Directory {
    /// Reloads the participants.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn refresh(&self, store: &Store) -> Result<(), StoreError> {
        let mut endpoints: HashMap<u32, HashMap<String, String>> = HashMap::new();
        for found in store.all::<Endpoints>()? {
            endpoints.entry(found.key.participant).or_default().insert(found.key.endpoint, found.row.url);
        }
        let mut snapshot = Snapshot::default();
        for found in store.all::<Participants>()? {
            let number = found.row.number;
            let endpoints = endpoints.remove(&number).unwrap_or_default();
            let entry = {
                let active = found.row.active;
                Arc::new(Entry { number, name: found.row.name, active, endpoints })
            };
            snapshot.by_name.insert(found.key.name, Arc::clone(&entry));
            snapshot.by_name.insert(entry.name.clone(), Arc::clone(&entry));
            snapshot.by_number.insert(number, entry);
        }
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(snapshot);
        Ok(())
    }

    /// The current snapshot.
    #[must_use]
    pub fn now(&self) -> Arc<Snapshot> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}
