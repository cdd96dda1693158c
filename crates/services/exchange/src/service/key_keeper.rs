//! The key keeper: a background task that creates keys ahead of time, replaces revoked keys, erases keys that
//! are no longer used, rebuilds the key state when a deadline passes, and (stand-alone) signs new keys. If
//! signers are configured, they create and erase keys themselves; the task then sends revocations to each
//! signer until the signer has confirmed them.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError};
use std::time::Duration as StdDuration;

use batzen_protocol::{Duration, Timestamp};
use batzen_signer::SigningHandle;
use batzen_signer::listing::Listing;
use batzen_store::StoreError;
use batzen_tables::exchange::{Revocations, SigningKeys};
use tokio::sync::watch;

use super::standalone;
use crate::app::Exchange;
use crate::app::key_destruction::{REVOKE_WAIT, revoke_denomination};
use crate::keys::KeyRoundError;

/// The longest pause between two rounds, because clocks can be shifted.
const KEY_REFRESH_INTERVAL_MAX: StdDuration = StdDuration::from_secs(3_600);
/// The pause after a failed round.
const RETRY: StdDuration = StdDuration::from_secs(10);
/// The shortest pause, so that deadlines that are close together share a round.
const PAUSE_MIN: StdDuration = StdDuration::from_millis(20);
/// The pause before revocations are sent again to a signer that was unreachable.
const REVOKE_RETRY: Duration = Duration::from_secs(5);
/// The interval at which a stand-alone exchange checks its fees and accounts.
const SETUP_INTERVAL: Duration = Duration::from_days(1);

/// Runs until the process ends.
pub(crate) async fn run(app: Arc<Exchange>, progress: Arc<dyn Fn(usize, usize) + Send + Sync>) {
    keep(&app, progress.as_ref()).await;
    // End the waits for rounds that will never run.
    app.keeper.waiting.lock().unwrap_or_else(PoisonError::into_inner).clear();
    app.keeper.ready.send_if_modified(|ready| {
        let is_waited_for = ready.is_none();
        if is_waited_for {
            *ready = Some(Err(KeyRoundError::Stopping));
        }
        is_waited_for
    });
}

async fn keep(app: &Arc<Exchange>, progress: &(dyn Fn(usize, usize) + Send + Sync)) {
    let mut setup_due = Timestamp::ZERO;
    let mut listings = app.custody.listings();
    loop {
        let waiting = std::mem::take(&mut *app.keeper.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        let result = tokio::select! {
            biased;
            () = app.core.drain.draining() => return,
            result = round(app, progress, &mut setup_due) => result,
        };
        let pause = match &result {
            Ok(()) => pause(app, setup_due),
            // Services start in any order, so a signer that is not there yet is no error.
            Err(error @ (KeyRoundError::NoKeyholder(_) | KeyRoundError::KeysInTheMaking)) => {
                match app.core.config.key_helpers {
                    // Who starts the service tells the operator, once.
                    Some(_) => tracing::info!(%error, "waiting for the key helpers"),
                    None => tracing::warn!(%error, "waiting for a signer"),
                }
                RETRY
            }
            Err(error) => {
                tracing::error!(%error, "keys could not be brought up to date");
                RETRY
            }
        };
        for waiter in waiting {
            // The waiter may have given up.
            let _ = waiter.send(result.clone());
        }
        app.keeper.ready.send_if_modified(|ready| {
            let first_word = !matches!(ready, Some(Ok(())));
            if first_word {
                *ready = Some(result.clone());
            }
            first_word
        });
        tokio::select! {
            biased;
            () = app.core.drain.draining() => return,
            () = app.keeper.round_requested.notified() => {}
            () = changed(&mut listings) => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Resolves when a signer's keys change; never without signers.
async fn changed(listings: &mut Option<watch::Receiver<Option<Arc<Listing>>>>) {
    if let Some(listings) = listings
        && listings.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

/// The pause until the next deadline.
fn pause(app: &Exchange, setup_due: Timestamp) -> StdDuration {
    let now = app.core.now();
    let mut due = app.keys().rebuild_at;
    match app.custody.modules() {
        Some(modules) => due = due.min(modules.next_due(now)),
        None if app.keeper.has_unconfirmed() => due = due.min(now.saturating_add(REVOKE_RETRY)),
        None => {}
    }
    if app.core.config.standalone.is_some() {
        due = due.min(setup_due);
    }
    let pause = due.saturating_since(now).to_std().unwrap_or(KEY_REFRESH_INTERVAL_MAX);
    pause.clamp(PAUSE_MIN, KEY_REFRESH_INTERVAL_MAX)
}

async fn round(
    app: &Arc<Exchange>,
    progress: &(dyn Fn(usize, usize) + Send + Sync),
    setup_due: &mut Timestamp,
) -> Result<(), KeyRoundError> {
    let now = app.core.now();
    let keys = app.keys();
    let Some(modules) = app.custody.modules() else { return round_of_keyholders(app).await };
    let is_first = app.keeper.ready.borrow().is_none();
    // Keys that other services with the same files have created.
    let mut changes = modules.refresh().await?;
    changes += modules.replace_revoked_denominations(|h_bare| keys.is_bare_revoked(h_bare), now).await?;
    changes += modules.replace_revoked_signing_keys(|key| keys.is_signkey_revoked(key), now).await?;
    // At the start, nothing else needs the processors; later, payments do.
    let parallel = if is_first { std::thread::available_parallelism().map_or(1, usize::from) } else { 1 };
    let generated = modules.generate(now, parallel, progress).await?;
    app.core.metrics.denomination_keys_created.add(generated.denominations as u64);
    app.core.metrics.signing_keys_created.add(generated.signing as u64);
    if generated.denominations + generated.signing > 0 {
        let (denominations, signing) = (generated.denominations, generated.signing);
        tracing::info!(denominations, signing, "all keys are created that the schedules require now");
    }
    changes += generated.denominations + generated.signing;
    changes +=
        modules.erase_expired(now, |h_bare| keys.signed_until(h_bare), |key| keys.signing_until(key)).await?;
    if changes > 0 || keys.rebuild_at <= now {
        app.rebuild_keys().await?;
    }
    if app.core.config.standalone.is_some() && (changes > 0 || *setup_due <= now) {
        standalone::set_up(app).await?;
        *setup_due = now.saturating_add(SETUP_INTERVAL);
    }
    Ok(())
}

/// A round of an exchange whose keys are in other processes.
async fn round_of_keyholders(app: &Arc<Exchange>) -> Result<(), KeyRoundError> {
    let holders = app.custody.keyholders().expect("keys are here or in other processes");
    if holders.listing().is_none() {
        holders.first_attempts().await;
    }
    revoke_everywhere(app).await?;
    app.rebuild_keys().await?;
    if app.custody.module_keys().is_none() {
        return Err(KeyRoundError::NoKeyholder(holders.trouble()));
    }
    if app.every_coin_has_key() { Ok(()) } else { Err(KeyRoundError::KeysInTheMaking) }
}

/// Sends the revocations to the processes with the keys until each has confirmed them.
async fn revoke_everywhere(app: &Exchange) -> Result<(), StoreError> {
    let keys = app.keys();
    let mut is_missing = false;
    // A signer restored from an old backup lists keys that it had destroyed.
    let listed: HashSet<_> = app.custody.denominations().iter().map(|key| key.info().h_bare).collect();
    let signing: HashSet<_> = app.custody.signing_keys().iter().map(SigningHandle::public_key).collect();
    for found in app.core.store.all::<Revocations>()? {
        let serial = found.key.serial;
        let Some(denom) = keys.find_denomination_by_serial(serial) else { continue };
        // An expired key is erased without a revocation.
        let is_confirmed =
            app.keeper.confirmed().denoms.contains(&serial) && !listed.contains(&denom.public.h_key());
        if denom.expire_withdraw < app.core.now() || is_confirmed {
            continue;
        }
        if revoke_denomination(app, &denom.public, found.row.master_sig).await {
            app.keeper.confirmed().denoms.insert(serial);
        } else {
            is_missing = true;
        }
    }
    for found in app.core.store.all::<SigningKeys>()? {
        let (key, Some(master_sig)) = (found.key.exchange_pub, found.row.revoked) else { continue };
        let is_confirmed = app.keeper.confirmed().signing.contains(&key) && !signing.contains(&key);
        if found.row.expire < app.core.now() || is_confirmed {
            continue;
        }
        if app.custody.revoke_signing(key, master_sig, REVOKE_WAIT).await {
            app.keeper.confirmed().signing.insert(key);
        } else {
            is_missing = true;
        }
    }
    app.keeper.confirmed().is_missing = is_missing;
    Ok(())
}
