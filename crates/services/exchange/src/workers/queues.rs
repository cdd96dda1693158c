//! The workers' queues, read page by page. A page starts after the last row of the previous page, so rows
//! that cannot be processed are skipped. Every pass starts at the front again, so no row is skipped for ever.

use std::ops::Bound;

use batzen_protocol::Timestamp;
use batzen_store::{Column, Found, Record, Store, StoreError, prefix_successor};
use batzen_tables::exchange::{CloseRequests, Drains, Prepared, Purses, Reserves};

type Result<T> = std::result::Result<T, StoreError>;

/// Where a page ended.
pub(super) type Position = Vec<u8>;

fn from(after: Option<Position>) -> Bound<Position> {
    after.map_or(Bound::Unbounded, Bound::Excluded)
}

/// Transfers neither finished nor failed, in the order in which they were decided.
pub(super) fn open_transfers(
    store: &Store,
    after: Option<Position>,
    limit: usize,
) -> Result<Vec<Found<Prepared>>> {
    store.range_positions::<Prepared>(Prepared::OPEN, from(after), Bound::Unbounded, limit, false)
}

/// Transfers that the bank refused for good, in the order in which they were decided.
pub(super) fn failed_transfers(
    store: &Store,
    after: Option<Position>,
    limit: usize,
) -> Result<Vec<Found<Prepared>>> {
    store.range_positions::<Prepared>(Prepared::FAILED, from(after), Bound::Unbounded, limit, false)
}

/// Orders to pay out profit that are not executed.
pub(super) fn open_drains(
    store: &Store,
    after: Option<Position>,
    limit: usize,
) -> Result<Vec<Found<Drains>>> {
    store.range_positions::<Drains>(Drains::OPEN, from(after), Bound::Unbounded, limit, false)
}

/// The position in a queue in the order of commits.
pub(super) fn serial_position(serial: u64) -> Position {
    serial.to_be_bytes().to_vec()
}

/// Reserves that expired by `now`, with money and an origin account, earliest first.
pub(super) fn expired_reserves(
    store: &Store,
    now: Timestamp,
    after: Option<Position>,
    limit: usize,
) -> Result<Vec<Found<Reserves>>> {
    let to = prefix_successor(&Column::to_bytes(&now)).map_or(Bound::Unbounded, Bound::Excluded);
    store.range_positions::<Reserves>(Reserves::BY_EXPIRATION, from(after), to, limit, false)
}

/// A reserve's position among the expiring ones.
pub(super) fn expiration_position(found: &Found<Reserves>) -> Position {
    let mut position = Column::to_bytes(&found.row.expiration);
    found.key.encode(&mut position);
    position
}

/// Requests to close reserves that are not executed, in the order of their commits.
pub(super) fn open_close_requests(
    store: &Store,
    after: Option<Position>,
    limit: usize,
) -> Result<Vec<Found<CloseRequests>>> {
    store.range_positions::<CloseRequests>(CloseRequests::OPEN, from(after), Bound::Unbounded, limit, false)
}

/// Open purses that expired by `now`, earliest first.
pub(super) fn expired_purses(
    store: &Store,
    now: Timestamp,
    after: Option<Position>,
    limit: usize,
) -> Result<Vec<Found<Purses>>> {
    let to = prefix_successor(&Column::to_bytes(&now)).map_or(Bound::Unbounded, Bound::Excluded);
    store.range_positions::<Purses>(Purses::BY_EXPIRATION, from(after), to, limit, false)
}

/// A purse's position among the expiring ones.
pub(super) fn purse_position(found: &Found<Purses>) -> Position {
    let mut position = Column::to_bytes(&found.row.expiration);
    found.key.encode(&mut position);
    position
}

/// The next time after `now` at which an open purse expires.
pub(super) fn next_purse_expiration(store: &Store, now: Timestamp) -> Result<Option<Timestamp>> {
    let later = (Bound::Excluded(now), Bound::Unbounded);
    let found = store.range::<Purses, Timestamp>(Purses::BY_EXPIRATION, later, 1)?;
    Ok(found.first().map(|found| found.row.expiration))
}

/// The next time after `now` at which a reserve expires.
pub(super) fn next_expiration(store: &Store, now: Timestamp) -> Result<Option<Timestamp>> {
    let later = (Bound::Excluded(now), Bound::Unbounded);
    let found = store.range::<Reserves, Timestamp>(Reserves::BY_EXPIRATION, later, 1)?;
    Ok(found.first().map(|found| found.row.expiration))
}
