//! liabilities: publishes what the exchange owes for its coins, epoch by epoch (`[exchange-liabilities]`).
//!
//! An epoch ends at a multiple of `EPOCH`. Once `SETTLING` has passed, the worker reads all rows of one moment, leaves out
//! what earlier epochs count, builds a tree for each denomination and kind, has the statement signed, and publishes it.
//! The files are the only memory: what is counted is what is in them. So it can be killed at any moment, and each leaf is
//! in exactly one epoch.

mod files;
mod rows;

use std::sync::Arc;

use batzen_crypto::HashCode;
use batzen_protocol::liabilities::statement::VERSION;
use batzen_protocol::liabilities::tree::{BucketFault, bits_for};
use batzen_protocol::liabilities::{Body, Entry, Kind, Part, Statement, Tree};
use batzen_protocol::signatures::SignedMessage;
use batzen_protocol::{Currency, Timestamp};
use batzen_store::Store;

use super::{Mode, idle_interval, pause};
use crate::app::Exchange;
use crate::config::LiabilitiesConfig;
use crate::keys::OnlineKey;
use crate::workers::WorkerError;

pub(crate) use files::FilesError;
pub(crate) use files::{file, index};
pub use rows::RowsError;

use files::Directory;
use rows::View;

/// The longest pause until the next look at the clock.
const LOOK: std::time::Duration = std::time::Duration::from_secs(60);

/// Why no epoch was published.
#[derive(Debug, thiserror::Error)]
pub enum LiabilitiesError {
    /// The configuration has no [exchange-liabilities].
    #[error("the configuration has no [exchange-liabilities]")]
    NotConfigured,
    /// The directory cannot be used.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The rows cannot be counted.
    #[error(transparent)]
    Rows(#[from] RowsError),
    /// Leaves contradict each other, or sums overflow.
    #[error("the leaves of denomination {0}: {1}")]
    Leaves(HashCode, BucketFault),
    /// The statement cannot be signed.
    #[error("the statement cannot be signed: {0}")]
    Unsigned(String),
    /// The service ends.
    #[error("the service is shutting down")]
    Stopped,
}

impl From<batzen_store::StoreError> for LiabilitiesError {
    fn from(error: batzen_store::StoreError) -> Self {
        Self::Rows(error.into())
    }
}

/// The result of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Round {
    /// It published this epoch.
    Published {
        /// The epoch.
        epoch: u64,
        /// Number of leaves that it has.
        leaves: u64,
    },
    /// The next epoch is published at this time, or later.
    NotDue(Timestamp),
}

/// Returns the debt for all coins whose rows are there, in units of 10⁻⁸: the sum over leaves, however often they
/// occur. It is what the balance sheet says, by another way.
///
/// # Errors
/// If the rows cannot be counted.
///
/// # Panics
/// If the sum overflows.
pub fn owed_by_rows(store: &Store) -> Result<i128, RowsError> {
    let counted = View::new(store)?.count(Timestamp::ZERO)?;
    Ok(counted.iter().map(|counted| counted.leaves.owed()).sum())
}

/// The end of the next epoch: the last multiple of `epoch` before which everything has settled. `None` if it is not later
/// than `last`.
fn next_end(config: &LiabilitiesConfig, last: Timestamp, now: Timestamp) -> Result<Timestamp, Timestamp> {
    let epoch = config.epoch.as_micros().max(1);
    let settled = now.saturating_sub(config.settling).as_micros();
    let end = Timestamp::from_micros(settled - settled % epoch);
    if end > last && end > Timestamp::ZERO {
        return Ok(end);
    }
    let next = (last.as_micros() / epoch).saturating_add(1).saturating_mul(epoch);
    Err(Timestamp::from_micros(next).saturating_add(config.settling))
}

/// An epoch whose trees are written.
struct Draft {
    directory: Directory,
    body: Body,
    leaves: u64,
}

/// Builds the next epoch, unless it is not due.
fn draft(
    store: &Store,
    config: &LiabilitiesConfig,
    (master_pub, currency): (batzen_crypto::EddsaPublicKey, Currency),
    now: Timestamp,
) -> Result<Result<Draft, Timestamp>, LiabilitiesError> {
    let directory = Directory::open(&config.dir, master_pub)?;
    let last = directory.last().map(|last| last.statement.clone());
    let start = last.as_ref().map_or(Timestamp::ZERO, |last| last.end);
    let end = match next_end(config, start, now) {
        // The clock may have been set back.
        Ok(end) if last.as_ref().is_none_or(|last| last.taken <= now) => end,
        Ok(_) => return Ok(Err(now.saturating_add(config.epoch))),
        Err(next) => return Ok(Err(next)),
    };
    let counted = View::new(store)?.count(end)?;
    let mut denominations = Vec::with_capacity(counted.len());
    let mut all = 0;
    for mut counted in counted {
        let name = counted.row.h_denom_pub;
        let before = last.as_ref().and_then(|last| last.entry(&name));
        let mut part = |kind| -> Result<Part, LiabilitiesError> {
            let mut leaves = counted.leaves.take(kind);
            if before.is_some_and(|before| before.part(kind).total_count > 0) {
                let known = directory.counted(&name, kind)?;
                leaves.retain(|leaf| known.binary_search(&leaf.hash).is_err());
            }
            let bits = bits_for(leaves.len() as u64, config.bucket);
            let tree = Tree::new(leaves, bits).map_err(|fault| LiabilitiesError::Leaves(name, fault))?;
            directory.write_tree(&name, kind, &tree)?;
            all += tree.root().count;
            let part = Part::after(before.map(|before| before.part(kind)), &tree);
            part.ok_or(LiabilitiesError::Leaves(name, BucketFault::Overflow))
        };
        let (issued, redeemed, returned) =
            (part(Kind::Issued)?, part(Kind::Redeemed)?, part(Kind::Returned)?);
        denominations.push(Entry {
            h_denom_pub: name,
            value: counted.row.value.into(),
            until: counted.row.expire_legal,
            issued,
            redeemed,
            returned,
        });
    }
    let body = Body {
        version: VERSION,
        master_pub,
        currency,
        epoch: directory.next(),
        start,
        end,
        taken: now,
        previous: last.as_ref().map_or(HashCode::ZERO, Body::hash),
        denominations,
    };
    Ok(Ok(Draft { directory, body, leaves: all }))
}

/// Signs a statement with the current online key.
async fn sign(app: &Exchange, body: Body) -> Result<Statement, LiabilitiesError> {
    let unsigned = |reason: String| LiabilitiesError::Unsigned(reason);
    let keys = app.keys();
    let key = keys.online_key().map_err(|error| unsigned(error.to_string()))?;
    let signing_key = keys.signing_key(&key.public_key()).map(OnlineKey::signed);
    let signing_key = signing_key.ok_or_else(|| unsigned("the key no longer exists".to_owned()))?;
    let message = body.message().message().as_ref().into();
    let signed = app.custody.sign(key, vec![message]).map_err(|error| unsigned(error.to_string()))?;
    app.core.metrics.signatures.eddsa.add(1);
    let signatures = signed.await.map_err(|error| unsigned(error.to_string()))?;
    Ok(Statement { statement: body, exchange_sig: signatures[0], signing_key })
}

/// Publishes the next epoch if it is due.
///
/// # Errors
/// Why it was not published. Everything that was published before stays.
pub async fn round(app: &Exchange) -> Result<Round, LiabilitiesError> {
    let core = &app.core;
    let Some(config) = core.config.liabilities.clone() else { return Err(LiabilitiesError::NotConfigured) };
    let (store, now) = (core.store.clone(), core.now());
    let exchange = (core.master_public_key, core.config.currency);
    let drafted = blocking(move || draft(&store, &config, exchange, now)).await?;
    let mut draft = match drafted {
        Ok(draft) => draft,
        Err(next) => return Ok(Round::NotDue(next)),
    };
    let (epoch, leaves) = (draft.body.epoch, draft.leaves);
    let statement = sign(app, draft.body.clone()).await?;
    blocking(move || Ok(draft.directory.publish(statement)?)).await?;
    tracing::info!(epoch, leaves, "liabilities are published");
    Ok(Round::Published { epoch, leaves })
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LiabilitiesError> + Send + 'static,
) -> Result<T, LiabilitiesError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(LiabilitiesError::Stopped),
    }
}

/// Publishes epochs as they end, until the service ends.
pub async fn run(app: Arc<Exchange>) {
    let mut failures = 0;
    loop {
        let wait = match round(&app).await {
            Ok(Round::Published { .. }) => {
                failures = 0;
                continue;
            }
            Ok(Round::NotDue(next)) => {
                failures = 0;
                idle_interval(next.saturating_since(app.core.now())).min(LOOK)
            }
            Err(LiabilitiesError::NotConfigured | LiabilitiesError::Stopped) => return,
            // Another process on the same directory publishes it.
            Err(LiabilitiesError::Files(FilesError::InUse(_))) => Mode::Service.pause(&app.core, 8),
            Err(error) => {
                failures += 1;
                tracing::error!(%error, "liabilities are not published, trying again");
                Mode::Service.pause(&app.core, failures)
            }
        };
        if let Err(WorkerError::Stopped) = pause(&app.core, wait).await {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use batzen_protocol::Duration;

    use super::*;

    #[test]
    fn epochs_end_at_multiples_once_they_have_settled() {
        let config = LiabilitiesConfig {
            dir: "/".into(),
            epoch: Duration::from_secs(100),
            settling: Duration::from_secs(10),
            bucket: 1_024,
        };
        let at = Timestamp::from_secs;
        for (last, now, expected) in [
            (0, 5, Err(at(110))),
            (0, 109, Err(at(110))),
            (0, 110, Ok(at(100))),
            (100, 209, Err(at(210))),
            (100, 210, Ok(at(200))),
            // Several at once are one.
            (100, 777, Ok(at(700))),
            // The period was changed.
            (130, 150, Err(at(210))),
            (130, 210, Ok(at(200))),
        ] {
            assert_eq!(next_end(&config, at(last), at(now)), expected, "{last} {now}");
        }
    }
}
