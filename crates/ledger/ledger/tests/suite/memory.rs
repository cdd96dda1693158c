//! The ledger in memory meets the requirements on every backend.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use batzen_ledger::{MemoryLedger, conformance};

#[tokio::test]
async fn the_ledger_in_memory_conforms() {
    let now = Arc::new(AtomicU64::new(1_700_000_000_000_000_000));
    let clock = Arc::clone(&now);
    let ledger = MemoryLedger::new(move || clock.load(Ordering::Relaxed));
    conformance::check(&ledger, 1 << 32, async |time| {
        now.fetch_add(u64::try_from(time.as_nanos()).unwrap(), Ordering::Relaxed);
    })
    .await;
    ledger.verify().unwrap();
}
