//! The operator's view: every row of the exchange's store, the request log, and the metrics page.
//!
//! Network addresses are not part of it: the game assumes that wallets hide them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use batzen_protocol::Timestamp;
use batzen_store::{Found, RawRecord, Store, Table, TableDef};
use batzen_tables::exchange::ALL;

use crate::host::{Step, Stop};

/// A line of the exchange's log at its most verbose: a request. Keys in paths are masked, as the service does
/// ([`masked`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// When it was answered.
    pub time: Timestamp,
    /// Method and masked path.
    pub request: String,
    /// Status of the answer.
    pub status: u16,
    /// Bytes of the request's body.
    pub bytes: usize,
}

/// The operator's view of a town.
pub struct View {
    /// The exchange's store.
    pub store: Store,
    /// Its log.
    pub log: Vec<LogLine>,
}

/// A path as the service logs it: keys and hashes become `*`.
#[must_use]
pub fn masked(path: &str) -> String {
    let path = path.split('?').next().unwrap_or_default();
    let segments = path.split('/').map(|segment| if segment.len() >= 26 { "*" } else { segment });
    segments.collect::<Vec<_>>().join("/")
}

fn failed(error: &batzen_store::StoreError) -> Stop {
    Stop::wrong(error.to_string())
}

impl View {
    /// All rows of a table, in the order of their commits.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn rows<T: Table>(&self) -> Step<Vec<Found<T>>> {
        let mut rows = Vec::new();
        let scanned = self.store.scan::<T>(|found| {
            rows.push(found);
            ControlFlow::Continue(())
        });
        scanned.map_err(|error| failed(&error))?;
        rows.sort_by_key(|found| found.serial);
        Ok(rows)
    }

    /// All rows of a table as bytes.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn raw(&self, table: &'static TableDef) -> Step<Vec<RawRecord>> {
        let mut rows = Vec::new();
        let scanned = self.store.backend().scan(table, &mut |record| {
            rows.push(record);
            ControlFlow::Continue(())
        });
        scanned.map_err(|error| failed(&error))?;
        rows.sort_by_key(|record| record.serial);
        Ok(rows)
    }

    /// The counters of the metrics page: requests by masked path and status. They follow from the log, so
    /// they cannot reveal more.
    #[must_use]
    pub fn metrics(&self) -> BTreeMap<(&str, u16), u64> {
        let mut counters = BTreeMap::new();
        for line in &self.log {
            *counters.entry((line.request.as_str(), line.status)).or_default() += 1;
        }
        counters
    }

    /// The first table or log that contains one of these 32-byte secrets. They are what wallets never send,
    /// so an honest view has none.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn find_secret(&self, secrets: &BTreeSet<[u8; 32]>) -> Step<Option<&'static str>> {
        for table in ALL {
            for record in self.raw(table)? {
                for bytes in [&record.key, &record.row] {
                    let windows = bytes.windows(32);
                    let mut windows = windows.map(|window| window.try_into().expect("32 bytes"));
                    if windows.any(|window: [u8; 32]| secrets.contains(&window)) {
                        return Ok(Some(table.name));
                    }
                }
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_in_paths_are_masked() {
        let key = "0QHNJ8AWTJ1GNJ7AR0ZSC9TPBYZ04TTYYWJ5S4NQK9DV2T3QS8W0";
        assert_eq!(masked(&format!("reserves/{key}/batch-withdraw?x=1")), "reserves/*/batch-withdraw");
        assert_eq!(masked("csr-melt"), "csr-melt");
    }
}
