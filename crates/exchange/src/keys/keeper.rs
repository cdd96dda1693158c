//! The background task that keeps keys coming: creates them ahead, replaces revoked ones, erases those whose use has
//! ended, rebuilds the key state when a deadline passes, and (stand-alone) signs what is new.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration as StdDuration;

use batzen_protocol::{Duration, Timestamp};
use tokio::sync::{Notify, oneshot, watch};

use crate::service::{Exchange, LOOK_INTERVAL_MAX};
use crate::standalone;

/// How soon a failed round is tried again.
const RETRY: StdDuration = StdDuration::from_secs(10);
/// Deadlines closer than this are taken together.
const PAUSE_MIN: StdDuration = StdDuration::from_millis(20);
/// A stand-alone exchange checks its fees and accounts so often.
const SETUP_INTERVAL: Duration = Duration::from_days(1);

/// How the service talks to its key keeper.
#[derive(Debug)]
pub struct Keeper {
    ready: watch::Sender<Option<Result<(), String>>>,
    poke: Notify,
    /// Who waits for a round that begins from now on.
    waiting: Mutex<Vec<oneshot::Sender<Result<(), String>>>>,
}

impl Default for Keeper {
    fn default() -> Self {
        Self { ready: watch::Sender::new(None), poke: Notify::new(), waiting: Mutex::default() }
    }
}

impl Keeper {
    /// Waits for the end of the first round.
    pub async fn ready(&self) -> Result<(), String> {
        let mut receiver = self.ready.subscribe();
        let result = receiver.wait_for(Option::is_some).await.map(|result| result.clone());
        // The sender lives in `self`, so waiting cannot fail.
        result.ok().flatten().unwrap_or(Ok(()))
    }

    /// Starts a round as soon as the present one is over: something was revoked.
    pub fn poke(&self) {
        self.poke.notify_one();
    }

    /// Starts a round and waits for its end.
    ///
    /// # Errors
    /// What went wrong in it.
    pub async fn round(&self) -> Result<(), String> {
        let (sender, receiver) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
        self.poke();
        receiver.await.unwrap_or_else(|_| Err("the exchange is ending".into()))
    }
}

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
    loop {
        let waiting = std::mem::take(&mut *app.keeper.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        let result = tokio::select! {
            biased;
            () = app.drain.draining() => return,
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
            () = app.drain.draining() => return,
            () = app.keeper.poke.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Until the next deadline.
fn pause(app: &Exchange, setup_due: Timestamp) -> StdDuration {
    let now = app.now();
    let mut due = app.modules.next_due(now).min(app.keys().rebuild_at());
    if app.config.standalone.is_some() {
        due = due.min(setup_due);
    }
    let pause = due.saturating_since(now).to_std().unwrap_or(LOOK_INTERVAL_MAX);
    pause.clamp(PAUSE_MIN, LOOK_INTERVAL_MAX)
}

async fn round(
    app: &Arc<Exchange>,
    progress: &(dyn Fn(usize, usize) + Send + Sync),
    setup_due: &mut Timestamp,
) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let now = app.now();
    let keys = app.keys();
    let modules = &app.modules;
    let is_first = app.keeper.ready.borrow().is_none();
    let mut changes = modules
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
    app.metrics.denomination_keys_created.add(generated.denominations as u64);
    app.metrics.signing_keys_created.add(generated.signing as u64);
    changes += generated.denominations + generated.signing;
    changes += modules
        .erase_expired(now, |h_bare| keys.signed_until(h_bare), |key| keys.signing_until(key))
        .await
        .map_err(|error| text(&error))?;
    if changes > 0 || keys.rebuild_at() <= now {
        app.rebuild_keys().await.map_err(|error| text(&error))?;
    }
    if app.config.standalone.is_some() && (changes > 0 || *setup_due <= now) {
        standalone::set_up(app).await.map_err(|error| text(&error))?;
        *setup_due = now.saturating_add(SETUP_INTERVAL);
    }
    Ok(())
}
