//! The background task that keeps keys coming: creates them ahead, replaces revoked ones, erases those whose use has
//! ended, rebuilds the key state when a deadline passes, and (stand-alone) signs what is new. Where signers hold the keys
//! they create and erase them, and the task follows: it tells all of them what is revoked until each has confirmed it.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError};
use std::time::Duration as StdDuration;

use batzen_protocol::{Duration, Timestamp};
use batzen_signer::SigningHandle;
use batzen_signer::client::SignerClient;
use batzen_signer::listing::Listing;
use batzen_store::StoreError;
use batzen_tables::exchange::{Revocations, SigningKeys};
use tokio::sync::watch;

use super::standalone;
use crate::app::Exchange;
use crate::app::key_destruction::{REVOKE_WAIT, revoke_denomination};

/// How long the service sleeps at most between two looks at its keys: clocks can be shifted.
const KEY_REFRESH_INTERVAL_MAX: StdDuration = StdDuration::from_secs(3_600);
/// How soon a failed round is tried again.
const RETRY: StdDuration = StdDuration::from_secs(10);
/// Deadlines closer than this are taken together.
const PAUSE_MIN: StdDuration = StdDuration::from_millis(20);
/// How soon a signer that was not there is told again what is revoked.
const REVOKE_RETRY: Duration = Duration::from_secs(5);
/// A stand-alone exchange checks its fees and accounts so often.
const SETUP_INTERVAL: Duration = Duration::from_days(1);

/// Runs until the process ends.
pub(crate) async fn run(app: Arc<Exchange>, progress: Arc<dyn Fn(usize, usize) + Send + Sync>) {
    keep(&app, progress.as_ref()).await;
    // Nobody shall wait for what will not come.
    app.keeper.waiting.lock().unwrap_or_else(PoisonError::into_inner).clear();
    app.keeper.ready.send_if_modified(|ready| {
        let is_waited_for = ready.is_none();
        if is_waited_for {
            *ready = Some(Err("the exchange is ending".into()));
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
            Err(error) => {
                tracing::error!(%error, "keys could not be brought up to date");
                RETRY
            }
        };
        for waiter in waiting {
            // It may have given up.
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
            () = app.keeper.poke.notified() => {}
            () = changed(&mut listings) => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Resolves when a signer has other keys; never if there are none.
async fn changed(listings: &mut Option<watch::Receiver<Option<Arc<Listing>>>>) {
    if let Some(listings) = listings
        && listings.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

/// Until the next deadline.
fn pause(app: &Exchange, setup_due: Timestamp) -> StdDuration {
    let now = app.core.now();
    let mut due = app.keys().rebuild_at();
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
) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let now = app.core.now();
    let keys = app.keys();
    let Some(modules) = app.custody.modules() else { return round_of_signers(app).await };
    let is_first = app.keeper.ready.borrow().is_none();
    // What services with the same files have made meanwhile.
    let mut changes = modules.refresh().await.map_err(|error| text(&error))?;
    changes += modules
        .replace_revoked_denominations(|h_bare| keys.is_bare_revoked(h_bare), now)
        .await
        .map_err(|error| text(&error))?;
    changes += modules
        .replace_revoked_signing_keys(|key| keys.is_signkey_revoked(key), now)
        .await
        .map_err(|error| text(&error))?;
    // At the start nothing else needs the processors; later on payments do.
    let parallel = if is_first { std::thread::available_parallelism().map_or(1, usize::from) } else { 1 };
    let generated = modules.generate(now, parallel, progress).await.map_err(|error| text(&error))?;
    app.core.metrics.denomination_keys_created.add(generated.denominations as u64);
    app.core.metrics.signing_keys_created.add(generated.signing as u64);
    changes += generated.denominations + generated.signing;
    changes += modules
        .erase_expired(now, |h_bare| keys.signed_until(h_bare), |key| keys.signing_until(key))
        .await
        .map_err(|error| text(&error))?;
    if changes > 0 || keys.rebuild_at() <= now {
        app.rebuild_keys().await.map_err(|error| text(&error))?;
    }
    if app.core.config.standalone.is_some() && (changes > 0 || *setup_due <= now) {
        standalone::set_up(app).await.map_err(|error| text(&error))?;
        *setup_due = now.saturating_add(SETUP_INTERVAL);
    }
    Ok(())
}

/// A round of an exchange whose keys are with signers.
async fn round_of_signers(app: &Arc<Exchange>) -> Result<(), String> {
    revoke_at_signers(app).await.map_err(|error| error.to_string())?;
    app.rebuild_keys().await.map_err(|error| error.to_string())?;
    if app.custody.module_keys().is_none() {
        let trouble = app.custody.signers().and_then(SignerClient::last_error);
        return Err(format!("no signer answers: {}", trouble.as_deref().unwrap_or("not yet")));
    }
    if app.has_all_keys() { Ok(()) } else { Err("the signers are still making keys".into()) }
}

/// Tells the signers what is revoked, as long as one may not know it.
async fn revoke_at_signers(app: &Exchange) -> Result<(), StoreError> {
    let keys = app.keys();
    let mut is_missing = false;
    // A signer that comes back from an old backup lists what it had destroyed.
    let listed: HashSet<_> = app.custody.denominations().iter().map(|key| key.info().h_bare).collect();
    let signing: HashSet<_> = app.custody.signing_keys().iter().map(SigningHandle::public_key).collect();
    for found in app.core.store.all::<Revocations>()? {
        let serial = found.key.serial;
        let Some(denom) = keys.find_serial(serial) else { continue };
        // A key whose time is over is erased by itself.
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
