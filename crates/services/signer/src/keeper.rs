//! The task that maintains a signer's keys. A primary creates, replaces and erases them on schedule; a
//! follower copies those of the primary.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::channel::Connect;
use crate::items::KeyId;
use crate::link::{Link, LinkError};
use crate::listing::{self, Listing, NO_VERSION};
use crate::modules::KeyError;
use crate::secrets::Wanted;
use crate::server_limits::LISTING_WAIT;
use crate::service_config::{PeerConfig, Role};
use crate::state::{Signer, lock};

/// The longest time between two checks of the schedule, since clocks can be shifted.
const KEY_REFRESH_INTERVAL_MAX: Duration = Duration::from_secs(60);
/// Pause after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// Interval at which a primary checks whether another signer was promoted.
const PEER_INTERVAL: Duration = Duration::from_secs(2);
/// Timeout for a peer's answer.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which finished keys are published while many keys are made.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(250);
/// The maximum number of keys that a follower fetches at once.
const FETCH_MAX: usize = 32;

/// Reports how many keys of a generation run are done, and the total.
pub type Progress = Arc<dyn Fn(usize, usize) + Send + Sync>;

/// Why a follower could not copy the primary's keys.
#[derive(Debug, thiserror::Error)]
enum SyncError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("{0}")]
    Keys(#[from] KeyError),
    #[error("no peer is the primary: {0}")]
    NoPrimary(String),
    #[error(
        "the modules' keys of {0} are not those of this signer: one of the two belongs to another exchange or was set up \
         again; nothing was taken over or erased"
    )]
    OtherExchange(String),
    #[error("{0} is not the primary any more")]
    NotPrimary(String),
}

/// Runs until the process ends.
pub async fn run(signer: Arc<Signer>, connect: Connect, progress: Progress) {
    let mut first = true;
    while !signer.drain.is_draining() {
        match signer.role() {
            Role::Primary => primary(&signer, &connect, &progress, first).await,
            Role::Follower => follower(&signer, &connect).await,
        }
        first = false;
    }
}

/// One round of a primary, then a pause.
async fn primary(signer: &Arc<Signer>, connect: &Connect, progress: &Progress, is_first: bool) {
    let round = async {
        signer.modules.create_own()?;
        let now = signer.clock.now();
        let parallel = if is_first { std::thread::available_parallelism().map_or(1, usize::from) } else { 1 };
        let published = Mutex::new(Instant::now());
        let tell = |done, total| {
            progress(done, total);
            let mut published = lock(&published);
            if published.elapsed() >= PUBLISH_INTERVAL {
                *published = Instant::now();
                signer.publish();
            }
        };
        signer.modules.generate(now, parallel, &tell).await?;
        signer.modules.erase_expired(now, |_| None, |_| None).await?;
        signer.publish();
        Ok::<_, KeyError>(())
    };
    let result = tokio::select! {
        biased;
        () = signer.drain.draining() => return,
        result = round => result,
    };
    let pause = match result {
        Ok(()) => {
            let now = signer.clock.now();
            let due = signer.modules.next_due(now).saturating_since(now).to_std();
            due.unwrap_or(KEY_REFRESH_INTERVAL_MAX).min(KEY_REFRESH_INTERVAL_MAX)
        }
        Err(error) => {
            tracing::error!(%error, "cannot update the keys");
            RETRY
        }
    };
    let until = tokio::time::Instant::now() + pause;
    loop {
        tokio::select! {
            biased;
            () = signer.drain.draining() => return,
            () = signer.poke.notified() => return,
            () = tokio::time::sleep_until(until) => return,
            gives_way = check_peers(signer, connect) => {
                if gives_way {
                    return;
                }
            }
        }
    }
}

/// Checks after a while whether another signer has been promoted.
async fn check_peers(signer: &Signer, connect: &Connect) -> bool {
    tokio::time::sleep(PEER_INTERVAL).await;
    gives_way(signer, connect).await
}

/// Becomes a follower if another signer was promoted after this one.
async fn gives_way(signer: &Signer, connect: &Connect) -> bool {
    let own = signer.persisted_role.borrow().epoch;
    for peer in &signer.peers {
        let Ok(report) = ask(connect, peer).await else { continue };
        if report.role != Role::Primary.name() {
            continue;
        }
        if report.epoch > own {
            match signer.demote(report.epoch) {
                Ok(()) => return true,
                Err(error) => tracing::error!(%error, "cannot become a follower"),
            }
        } else if report.epoch == own {
            tracing::error!(
                peer = peer.name,
                "two signers consider themselves primary: `batzen signer promote` one of them"
            );
        }
    }
    false
}

async fn ask(connect: &Connect, peer: &PeerConfig) -> Result<crate::status::StatusReport, LinkError> {
    Link::connect(connect, &peer.address, STEP_TIMEOUT).await?.status().await
}

/// Follows the primary until an error occurs or the role changes, then pauses.
async fn follower(signer: &Arc<Signer>, connect: &Connect) {
    let mut persisted_role = signer.persisted_role.subscribe();
    let changed = persisted_role.wait_for(|persisted_role| persisted_role.role == Role::Primary);
    let result = tokio::select! {
        biased;
        () = signer.drain.draining() => return,
        _ = changed => return,
        result = follow(signer, connect) => result,
    };
    if let Err(error) = result {
        let text = error.to_string();
        let news = {
            let mut sync = lock(&signer.sync);
            sync.error.replace(text.clone()).as_ref() != Some(&text)
        };
        if news {
            tracing::warn!(%error, "cannot follow the primary");
        }
    }
    // Keys expire even if the primary cannot be reached.
    let now = signer.clock.now();
    match signer.modules.erase_expired(now, |_| None, |_| None).await {
        Ok(0) => {}
        Ok(_) => signer.publish(),
        Err(error) => tracing::error!(%error, "cannot erase expired keys"),
    }
    tokio::select! {
        () = signer.drain.draining() => {}
        () = signer.poke.notified() => {}
        () = tokio::time::sleep(RETRY) => {}
    }
}

/// Finds the peer that is the primary, with the highest epoch.
async fn find_primary<'a>(
    signer: &'a Signer,
    connect: &Connect,
) -> Result<(&'a PeerConfig, Link, u64), SyncError> {
    let mut found: Option<(&PeerConfig, Link, u64)> = None;
    let mut reasons = Vec::new();
    for peer in &signer.peers {
        let attempt = async {
            let mut link = Link::connect(connect, &peer.address, STEP_TIMEOUT).await?;
            let report = link.status().await?;
            Ok::<_, LinkError>((link, report))
        };
        match attempt.await {
            Ok((link, report)) if report.role == Role::Primary.name() => {
                if found.as_ref().is_none_or(|(.., epoch)| report.epoch > *epoch) {
                    found = Some((peer, link, report.epoch));
                }
            }
            Ok(_) => reasons.push(format!("{} is a follower", peer.name)),
            Err(error) => reasons.push(format!("{}: {error}", peer.name)),
        }
    }
    found.ok_or_else(|| SyncError::NoPrimary(reasons.join("; ")))
}

async fn follow(signer: &Arc<Signer>, connect: &Connect) -> Result<(), SyncError> {
    let (peer, mut link, epoch) = find_primary(signer, connect).await?;
    remember_epoch(signer, epoch)?;
    lock(&signer.sync).primary = Some(peer.name.clone());
    let mut known = NO_VERSION;
    loop {
        if let Some(content) = link.listing(known, LISTING_WAIT).await? {
            let listing = Listing::decode(&content).map_err(|_| LinkError::Malformed)?;
            take_over(signer, &mut link, &listing, &peer.name).await?;
            known = listing::version(&content);
        }
        let report = link.status().await?;
        if report.role != Role::Primary.name() {
            return Err(SyncError::NotPrimary(peer.name.clone()));
        }
        let mut sync = lock(&signer.sync);
        sync.error = None;
        sync.synced = Some(signer.clock.now());
    }
}

/// A promotion must have a higher epoch than all epochs seen so far.
fn remember_epoch(signer: &Signer, epoch: u64) -> Result<(), KeyError> {
    let mut persisted_role = *signer.persisted_role.borrow();
    if persisted_role.epoch < epoch && persisted_role.role == Role::Follower {
        persisted_role.epoch = epoch;
        signer.store_role(persisted_role)?;
        signer.persisted_role.send_replace(persisted_role);
    }
    Ok(())
}

/// Copies the listing: fetches missing keys, and erases keys that no longer exist.
async fn take_over(signer: &Signer, link: &mut Link, listing: &Listing, peer: &str) -> Result<(), SyncError> {
    if signer.modules.module_keys().is_none() {
        for secret in link.secrets(&[Wanted::Modules]).await? {
            signer.modules.adopt(&secret).await?;
        }
    }
    // A signer with other module keys belongs to another exchange, or has lost all its keys and started
    // again.
    if signer.modules.module_keys() != Some(listing.modules) {
        return Err(SyncError::OtherExchange(peer.to_owned()));
    }
    let keys = signer.keys();
    let denoms = listing.denoms.iter().map(|key| KeyId::of(&key.h_bare));
    let mut wanted: Vec<Wanted> =
        denoms.clone().filter(|id| !keys.denoms.contains_key(id)).map(Wanted::Denomination).collect();
    let signing = listing.signing.iter().map(|key| key.exchange_pub);
    wanted.extend(signing.clone().filter(|key| !keys.signing.contains_key(key)).map(Wanted::Signing));
    // Keys that are needed first are fetched first, since the listing of a section is in the order of time.
    for wanted in wanted.chunks(FETCH_MAX) {
        for secret in link.secrets(wanted).await? {
            signer.modules.adopt(&secret).await?;
        }
        signer.publish();
    }
    let denoms: std::collections::HashSet<_> = denoms.collect();
    let signing: std::collections::HashSet<_> = signing.collect();
    let keeps = |key: &listing::DenomInfo| denoms.contains(&KeyId::of(&key.h_bare));
    let erased = signer.modules.retain(keeps, |key| signing.contains(&key.exchange_pub)).await?;
    signer.publish();
    if !wanted.is_empty() || erased > 0 {
        tracing::info!(taken = wanted.len(), erased, peer, "keys taken over");
    }
    Ok(())
}
