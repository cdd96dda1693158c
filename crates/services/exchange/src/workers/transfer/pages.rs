//! Pages of open transfers with the accounts that they pay, bounded in bytes.

use std::collections::HashMap;
use std::sync::Arc;

use batzen_store::{Found, Store, StoreError};
use batzen_tables::exchange::{PaytoHash, Prepared, WireTargetKey, WireTargets};

use crate::workers::queues::{self, Position};

/// The longest payto URI that is sent to a bank, in bytes. Deposits and reserves accept only far shorter
/// ones; earlier builds accepted megabytes. No bank accepts those, and a bank that closes the connection when
/// it refuses them would be asked for ever.
pub(super) const PAYTO_BYTES_MAX: usize = 32 << 10;
/// Bytes of payto URIs after which a page ends.
const PAGE_BYTES_MAX: usize = 1 << 20;
/// Number of accounts that are read at once. A page exceeds its bytes by no more than these.
const ACCOUNTS_AT_ONCE: usize = 16;

/// The receiver of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Receiver {
    /// The account with this payto URI.
    Account(Arc<str>),
    /// An account whose payto URI is too long. The number is its length in bytes.
    TooLong(usize),
}

impl Receiver {
    fn new(payto_uri: String) -> Self {
        if payto_uri.len() > PAYTO_BYTES_MAX {
            Self::TooLong(payto_uri.len())
        } else {
            Self::Account(payto_uri.into())
        }
    }

    /// Its size in memory.
    fn bytes(&self) -> usize {
        match self {
            Self::Account(payto_uri) => payto_uri.len(),
            Self::TooLong(_) => 0,
        }
    }
}

/// A transfer and its receiver.
pub(super) struct Open {
    pub(crate) found: Found<Prepared>,
    pub(crate) receiver: Receiver,
}

/// A part of the queue.
pub(super) struct Page {
    pub(crate) open: Vec<Open>,
    /// Whether there may be more after it. A page that is not the last has at least one transfer.
    pub(crate) has_next: bool,
}

/// Reads at most `limit` open transfers, and fewer if their receivers' payto URIs are long.
pub(super) fn read_page(store: &Store, after: Option<Position>, limit: usize) -> Result<Page, StoreError> {
    let mut found = queues::open::<Prepared>(store, Prepared::OPEN, after, limit)?.into_iter().peekable();
    let is_full = found.len() == limit;
    let mut receivers: HashMap<PaytoHash, Receiver> = HashMap::new();
    let (mut open, mut bytes) = (Vec::with_capacity(found.len()), 0);
    while found.peek().is_some() {
        if bytes >= PAGE_BYTES_MAX {
            return Ok(Page { open, has_next: true });
        }
        let part: Vec<_> = found.by_ref().take(ACCOUNTS_AT_ONCE).collect();
        // Many transfers may pay to one account.
        let mut missing: Vec<_> = part
            .iter()
            .map(|found| found.row.h_payto)
            .filter(|h_payto| !receivers.contains_key(h_payto))
            .collect();
        missing.sort_unstable();
        missing.dedup();
        let keys: Vec<_> = missing.iter().map(|h_payto| WireTargetKey { h_payto: *h_payto }).collect();
        for (h_payto, target) in missing.into_iter().zip(store.get_many::<WireTargets>(&keys)?) {
            let receiver = Receiver::new(target.expect("accounts in rows are kept").row.payto_uri);
            bytes += receiver.bytes();
            receivers.insert(h_payto, receiver);
        }
        for found in part {
            let receiver = receivers[&found.row.h_payto].clone();
            open.push(Open { found, receiver });
        }
    }
    Ok(Page { open, has_next: is_full })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use batzen_crypto::{HashCode, Wtid};
    use batzen_protocol::{Money, Timestamp};
    use batzen_store::memory::MemoryBackend;
    use batzen_store::{ChangeSet, CommitOutcome};
    use batzen_tables::exchange::{AccountId, PreparedRow, TransferKind, WireTargetRow, WtidKey};

    use super::*;

    /// A queue with one transfer to each of these accounts, and another one to the first.
    fn queue(lengths: &[usize]) -> Store {
        let store = Store::new(MemoryBackend::new());
        let mut changes = ChangeSet::new();
        for (n, length) in lengths.iter().enumerate() {
            let h_payto = PaytoHash::from_bytes([n as u8; 32]);
            changes.insert::<WireTargets>(
                &WireTargetKey { h_payto },
                &WireTargetRow { payto_uri: "x".repeat(*length) },
            );
        }
        for n in 0..=lengths.len() {
            let row = PreparedRow {
                kind: TransferKind::Aggregate,
                account: AccountId::of_payto("payto://x/y"),
                request_uid: HashCode::from_bytes([n as u8; 64]),
                amount: Money::UNIT,
                h_payto: PaytoHash::from_bytes([(n % lengths.len()) as u8; 32]),
                exchange_base_url: "http://e/".to_owned(),
                time: Timestamp::from_secs(n as u64),
                finished: None,
                failed: None,
            };
            changes.insert::<Prepared>(&WtidKey { wtid: Wtid::from_bytes([n as u8; 32]) }, &row);
        }
        assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
        store
    }

    #[test]
    fn pages_are_bounded_in_bytes_and_complete() {
        let mut lengths = vec![PAYTO_BYTES_MAX; 150];
        lengths[3] = PAYTO_BYTES_MAX + 1;
        let store = queue(&lengths);
        let (mut position, mut sizes, mut uids) = (None, Vec::new(), Vec::new());
        loop {
            let page = read_page(&store, position.take(), 1_024).unwrap();
            let bytes: usize = page.open.iter().map(|open| open.receiver.bytes()).sum();
            assert!(bytes < PAGE_BYTES_MAX + ACCOUNTS_AT_ONCE * PAYTO_BYTES_MAX, "{bytes}");
            sizes.push(page.open.len());
            uids.extend(page.open.iter().map(|open| open.found.row.request_uid));
            for open in &page.open {
                let is_long = open.found.row.h_payto == PaytoHash::from_bytes([3; 32]);
                assert_eq!(is_long, open.receiver == Receiver::TooLong(PAYTO_BYTES_MAX + 1));
            }
            if !page.has_next {
                break;
            }
            position = Some(queues::serial_position(page.open.last().unwrap().found.serial));
        }
        assert_eq!(sizes, [48, 32, 32, 32, 7]);
        let expected: Vec<_> = (0..=150).map(|n| HashCode::from_bytes([n; 64])).collect();
        assert_eq!(uids, expected);
        // Short URIs do not shorten a page.
        let page = read_page(&queue(&[100; 200]), None, 150).unwrap();
        assert_eq!((page.open.len(), page.has_next), (150, true));
    }
}
