//! The state of all workers as the store shows it: how long work has been due, and who holds their leases.
//!
//! Every process of an exchange looks, not only the one in which a worker runs: a worker that has died cannot say that
//! it is late. It looks at intervals rather than when somebody asks for the metrics, so that these can be had while the
//! database does not answer; they then lack what is not known.

use std::sync::Arc;
use std::time::Duration;

use batzen_protocol::Timestamp;
use batzen_store::{Store, StoreError};
use batzen_tables::exchange::{AccountId, CloseRequests, Drains, LeaseJob, Prepared, Purses, Reserves};

use super::{queues, wirewatch};
use crate::core::Core;
use crate::metrics::{Leases, Queue, Standing};
use crate::reads::read;
use crate::rules::leases::{RECENTLY, holders, lasts};

/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(5);

/// Looks until the process ends.
pub(crate) async fn follow(app: Arc<Core>) {
    let accounts: Vec<AccountId> =
        wirewatch::accounts(&app).map(|account| AccountId::of_payto(&account.payto_uri)).collect();
    loop {
        let (core, accounts) = (Arc::clone(&app), accounts.clone());
        match app.read(move |store| standings(&core, store, &accounts)).await {
            Ok(rows) => app.metrics.workers.standings.set(rows, app.lease_clock.now()),
            Err(error) => tracing::debug!(%error, "the state of the workers is not known"),
        }
        if app.sleep(INTERVAL).await {
            return;
        }
    }
}

fn standings(app: &Core, store: &Store, accounts: &[AccountId]) -> Result<Vec<Standing>, StoreError> {
    let now = app.now();
    let slots = |job| leases(app, store, job, None).map(Some);
    let stored = |worker, due, leases| Standing { worker, queue: Queue::Stored(due), leases };
    let mut rows = vec![
        stored("aggregator", first_deposit(store, now)?, slots(LeaseJob::Aggregator)?),
        stored("transfer", first_transfer(store)?, slots(LeaseJob::Transfer)?),
        stored("closer", first_closing(store, now)?, slots(LeaseJob::Closer)?),
        stored("expire", first_purse(store, now)?, slots(LeaseJob::Expire)?),
        stored("drain", first_drain(store)?, None),
    ];
    let mut watched = Vec::with_capacity(accounts.len());
    for account in accounts {
        watched.push(leases(app, store, LeaseJob::Wirewatch, Some(*account))?);
    }
    let own = watched.iter().map(|leases| leases.own).sum();
    // Of several accounts, the one with the fewest watchers.
    if let Some(fewest) = watched.into_iter().min() {
        let leases = Some(Leases { own, ..fewest });
        rows.push(Standing { worker: "wirewatch", queue: Queue::AtBank, leases });
    }
    Ok(rows)
}

fn leases(
    app: &Core,
    store: &Store,
    job: LeaseJob,
    account: Option<AccountId>,
) -> Result<Leases, StoreError> {
    let now = super::leases::now(app);
    let holders = holders(store, job, account)?;
    // A single watcher renews its lease less often than it ends.
    let lives = |until: Timestamp| match job {
        LeaseJob::Wirewatch => lasts(until.saturating_add(RECENTLY), now),
        _ => lasts(until, now),
    };
    let live = || holders.iter().filter(|(_, until)| lives(**until));
    Ok(Leases {
        holders: live().count() as u64,
        until: holders.values().max().copied(),
        own: live().filter(|(holder, _)| app.metrics.workers.own_holders.has(**holder)).count() as u64,
    })
}

fn first_deposit(store: &Store, now: Timestamp) -> Result<Option<Timestamp>, StoreError> {
    Ok(read::next_ready(store, None)?.filter(|ready| *ready <= now))
}

fn first_transfer(store: &Store) -> Result<Option<Timestamp>, StoreError> {
    Ok(queues::open::<Prepared>(store, Prepared::OPEN, None, 1)?.first().map(|found| found.row.time))
}

fn first_closing(store: &Store, now: Timestamp) -> Result<Option<Timestamp>, StoreError> {
    let expired = queues::expired::<Reserves>(store, Reserves::BY_EXPIRATION, now, None, 1)?;
    let asked = queues::open::<CloseRequests>(store, CloseRequests::OPEN, None, 1)?;
    let expired = expired.first().map(|found| found.row.expiration);
    Ok(expired.into_iter().chain(asked.first().map(|found| found.key.request_time)).min())
}

fn first_purse(store: &Store, now: Timestamp) -> Result<Option<Timestamp>, StoreError> {
    let expired = queues::expired::<Purses>(store, Purses::BY_EXPIRATION, now, None, 1)?;
    Ok(expired.first().map(|found| found.row.expiration))
}

fn first_drain(store: &Store) -> Result<Option<Timestamp>, StoreError> {
    Ok(queues::open::<Drains>(store, Drains::OPEN, None, 1)?.first().map(|found| found.row.date))
}
