//! The task that keeps a signer's keys: the primary makes, replaces and erases them by the schedule; a follower has those
//! of the primary.

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

/// The longest time between two looks at the schedule: clocks can be shifted.
const KEY_REFRESH_INTERVAL_MAX: Duration = Duration::from_secs(60);
/// The pause after something failed.
const RETRY: Duration = Duration::from_secs(1);
/// How often a primary looks whether another signer was promoted.
const PEER_INTERVAL: Duration = Duration::from_secs(2);
/// How long a peer may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// While many keys are made, what is there is published so often.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(250);
/// Keys that a follower fetches at once.
const FETCH_MAX: usize = 32;

/// Told how many keys of a generation run are done, of how many.
pub type Progress = Arc<dyn Fn(usize, usize) + Send + Sync>;

/// Why a follower has not the keys of the primary.
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

/// One round of a primary, and the pause after it.
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
            tracing::error!(%error, "keys could not be brought up to date");
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
            gives_way = look_at_peers(signer, connect) => {
                if gives_way {
                    return;
                }
            }
        }
    }
}

/// Looks after a while whether another signer was promoted.
async fn look_at_peers(signer: &Signer, connect: &Connect) -> bool {
    tokio::time::sleep(PEER_INTERVAL).await;
    gives_way(signer, connect).await
}

/// Follows another signer if that was promoted after this one.
async fn gives_way(signer: &Signer, connect: &Connect) -> bool {
    let own = signer.persisted_role.borrow().epoch;
    for peer in &signer.config.peers {
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
                "two signers take themselves for the primary: `batzen signer promote` one of them"
            );
        }
    }
    false
}

async fn ask(connect: &Connect, peer: &PeerConfig) -> Result<crate::status::StatusReport, LinkError> {
    Link::connect(connect, &peer.address, PATIENCE).await?.status().await
}

/// Follows the primary until something fails or the role changes, and pauses then.
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
            tracing::warn!(%error, "this signer does not follow now");
        }
    }
    // Keys end whether the primary is there or not.
    let now = signer.clock.now();
    match signer.modules.erase_expired(now, |_| None, |_| None).await {
        Ok(0) => {}
        Ok(_) => signer.publish(),
        Err(error) => tracing::error!(%error, "expired keys could not be erased"),
    }
    tokio::select! {
        () = signer.drain.draining() => {}
        () = signer.poke.notified() => {}
        () = tokio::time::sleep(RETRY) => {}
    }
}

/// The peer that is the primary, with the highest epoch.
async fn find_primary<'a>(
    signer: &'a Signer,
    connect: &Connect,
) -> Result<(&'a PeerConfig, Link, u64), SyncError> {
    let mut found: Option<(&PeerConfig, Link, u64)> = None;
    let mut reasons = Vec::new();
    for peer in &signer.config.peers {
        let attempt = async {
            let mut link = Link::connect(connect, &peer.address, PATIENCE).await?;
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

/// A promotion must be above every one that was seen.
fn remember_epoch(signer: &Signer, epoch: u64) -> Result<(), KeyError> {
    let mut persisted_role = *signer.persisted_role.borrow();
    if persisted_role.epoch < epoch && persisted_role.role == Role::Follower {
        persisted_role.epoch = epoch;
        persisted_role.store(&signer.config.state_file)?;
        signer.persisted_role.send_replace(persisted_role);
    }
    Ok(())
}

/// Has exactly the keys of the listing: fetches those that are missing, erases those that are gone.
async fn take_over(signer: &Signer, link: &mut Link, listing: &Listing, peer: &str) -> Result<(), SyncError> {
    if signer.modules.module_keys().is_none() {
        for secret in link.secrets(&[Wanted::Modules]).await? {
            signer.modules.adopt(&secret).await?;
        }
    }
    // Whoever has other modules' keys is another exchange, or has lost everything and begun again.
    if signer.modules.module_keys() != Some(listing.modules) {
        return Err(SyncError::OtherExchange(peer.to_owned()));
    }
    let keys = signer.keys();
    let denoms = listing.denoms.iter().map(|key| KeyId::of(&key.h_bare));
    let mut wanted: Vec<Wanted> =
        denoms.clone().filter(|id| !keys.denoms.contains_key(id)).map(Wanted::Denomination).collect();
    let signing = listing.signing.iter().map(|key| key.exchange_pub);
    wanted.extend(signing.clone().filter(|key| !keys.signing.contains_key(key)).map(Wanted::Signing));
    // What is needed first is fetched first: the listing is in the order of time within a section.
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
