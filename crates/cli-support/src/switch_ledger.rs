//! The ledger that a switch clears on: in its own process, or elsewhere.

use std::sync::Arc;

use anyhow::Context as _;
use batzen_ledger::{Ledger, MemoryLedger};
use batzen_ledger_service::net::LedgerAddress;
use batzen_ledger_service::store::{DurableLedger, DurableOptions};
use batzen_service::storage::StoreConfig;

use crate::services;

/// An open ledger.
pub struct SwitchLedger {
    ledger: Arc<dyn Ledger>,
    /// Stopped together with the switch.
    own: Option<Arc<DurableLedger>>,
}

impl SwitchLedger {
    /// Connects to the ledger, or opens the one in `place`. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When it cannot be opened or reached.
    pub async fn open(address: &LedgerAddress, place: &StoreConfig) -> anyhow::Result<Self> {
        if *address != LedgerAddress::Embedded {
            let connected = batzen_ledger_service::net::connect_when_ready(address).await;
            let ledger = connected.with_context(|| format!("the ledger at {address}"))?;
            return Ok(Self { ledger, own: None });
        }
        if place.is_memory() {
            return Ok(Self { ledger: Arc::new(MemoryLedger::with_system_clock()), own: None });
        }
        if let Some(dir) = place.dir() {
            services::directory(dir)?;
        }
        let place = place.clone();
        let open = move || DurableLedger::open(&place, DurableOptions::default());
        let own = Arc::new(tokio::task::spawn_blocking(open).await?.context("the ledger")?);
        Ok(Self { ledger: Arc::clone(&own) as Arc<dyn Ledger>, own: Some(own) })
    }

    /// The ledger, for the switch.
    pub fn shared(&self) -> Arc<dyn Ledger> {
        Arc::clone(&self.ledger)
    }

    /// Stops a ledger in this process; a ledger elsewhere keeps running.
    ///
    /// # Errors
    /// When its store cannot be closed.
    pub fn stop(self) -> anyhow::Result<()> {
        self.own.map_or(Ok(()), |own| own.stop().context("the ledger's store"))
    }
}
