//! The workers' queues, read page by page. A page starts after the last row of the previous page, so rows
//! that cannot be processed are skipped. Every pass starts at the front again, so no row is skipped for ever.

use std::ops::Bound;

use batzen_protocol::Timestamp;
use batzen_store::{Column, Found, Record, Store, StoreError, Table, prefix_successor};
use batzen_tables::exchange::{Purses, Reserves};

type Result<T> = std::result::Result<T, StoreError>;

/// Where a page ended.
pub(super) type Position = Vec<u8>;

fn from(after: Option<Position>) -> Bound<Position> {
    after.map_or(Bound::Unbounded, Bound::Excluded)
}

/// The items of a queue in the order of commits.
pub(super) fn open<T: Table>(
    store: &Store,
    queue: u8,
    after: Option<Position>,
    limit: usize,
) -> Result<Vec<Found<T>>> {
    store.range_positions::<T>(queue, from(after), Bound::Unbounded, limit, false)
}

/// The position in a queue in the order of commits.
pub(super) fn serial_position(serial: u64) -> Position {
    serial.to_be_bytes().to_vec()
}

/// The items of a queue in the order of expiration that expired by `now`, earliest first.
pub(super) fn expired<T: Table>(
    store: &Store,
    queue: u8,
    now: Timestamp,
    after: Option<Position>,
    limit: usize,
) -> Result<Vec<Found<T>>> {
    let to = prefix_successor(&Column::to_bytes(&now)).map_or(Bound::Unbounded, Bound::Excluded);
    store.range_positions::<T>(queue, from(after), to, limit, false)
}

/// An item's position in such a queue.
pub(super) fn expiration_position(expiration: Timestamp, key: &impl Record) -> Position {
    let mut position = Column::to_bytes(&expiration);
    key.encode(&mut position);
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
