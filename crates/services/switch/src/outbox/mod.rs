//! Callbacks: delivered at least once, in the order of a transfer's changes, with a limited number of
//! retries.
//!
//! The outbox is a table: a message is a row that was committed together with its reason. One task per
//! participant reads the participant's rows in order, one window at a time, sends them over a few connections
//! (many requests at once), and removes the rows that were acknowledged. After a crash, the next start sends
//! interrupted messages again. A window never contains two messages about one transfer, so that none
//! overtakes another.

mod bulk;
pub(crate) mod render;
pub(crate) mod wire;

use std::collections::{HashMap, HashSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use batzen_http::Drain;
use batzen_metrics::{Counter, Histogram};
use batzen_store::{Column, Found, Record, Store, StoreError};
use batzen_tables::switch::{Outbox, OutboxKey};
use tokio::sync::Notify;

use crate::clock::SwitchClock;
use crate::directory::Directory;
use crate::pipeline::Lane;
use crate::rules::Sent;
use render::{Renderer, Rows};
use wire::{Link, Reply};

/// Limits and retries of deliveries to participants.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    /// Connections to one participant.
    pub connections: usize,
    /// The most messages under way to one participant.
    pub window: usize,
    /// Time limit for connecting, and for each answer.
    pub timeout: Duration,
    /// The first pause after a failure; it doubles.
    pub pause: Duration,
    /// The longest pause.
    pub pause_max: Duration,
    /// The age at which a message is given up.
    pub give_up: Duration,
    /// Number of attempts at a message that a participant refuses (4xx).
    pub refused_attempts: u32,
}

impl Default for Delivery {
    fn default() -> Self {
        Self {
            connections: 2,
            window: 512,
            timeout: Duration::from_secs(10),
            pause: Duration::from_millis(100),
            pause_max: Duration::from_secs(30),
            give_up: Duration::from_secs(3600),
            refused_attempts: 3,
        }
    }
}

/// Counters of deliveries.
#[derive(Debug)]
pub struct DeliveryCounters {
    /// Messages acknowledged.
    pub delivered: Counter,
    /// Attempts that failed.
    pub failed: Counter,
    /// Messages that were given up.
    pub given_up: Counter,
    /// Messages sent at the same time.
    pub batch: Histogram,
    /// Time from the message's commit to its acknowledgement.
    pub time: Histogram,
}

impl Default for DeliveryCounters {
    fn default() -> Self {
        Self {
            delivered: Counter::default(),
            failed: Counter::default(),
            given_up: Counter::default(),
            batch: Histogram::of_counts(),
            time: Histogram::of_times(),
        }
    }
}

struct OutboxState {
    store: Store,
    lane: std::sync::OnceLock<Lane>,
    directory: Arc<Directory>,
    clock: SwitchClock,
    options: Delivery,
    counters: DeliveryCounters,
    drain: Drain,
    /// The wake-up signal of each participant's task.
    wakes: Mutex<HashMap<u32, Arc<Notify>>>,
}

/// The senders of all participants.
#[derive(Clone)]
pub struct Senders(Arc<OutboxState>);

impl Senders {
    /// Senders without tasks yet: see [`Senders::attach`] and [`Senders::serve`].
    pub fn new(
        store: Store,
        directory: Arc<Directory>,
        clock: SwitchClock,
        options: Delivery,
        drain: Drain,
    ) -> Self {
        let counters = DeliveryCounters::default();
        let (lane, wakes) = (std::sync::OnceLock::new(), Mutex::default());
        Self(Arc::new(OutboxState { store, lane, directory, clock, options, counters, drain, wakes }))
    }

    /// Sets the lane that removes delivered messages.
    pub fn attach(&self, lane: Lane) {
        assert!(self.0.lane.set(lane).is_ok(), "senders have one lane");
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &DeliveryCounters {
        &self.0.counters
    }

    /// Starts a task for each participant that has none. Must be called within a tokio runtime.
    pub fn serve(&self) {
        let mut wakes = self.0.wakes.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in self.0.directory.now().all() {
            wakes.entry(entry.number).or_insert_with(|| {
                let wake = Arc::new(Notify::new());
                let sender = Sender {
                    shared: Arc::clone(&self.0),
                    participant: entry.number,
                    wake: Arc::clone(&wake),
                    cursor: 0,
                    waiting: Vec::new(),
                    links: HashMap::new(),
                };
                tokio::spawn(sender.run());
                wake
            });
        }
    }

    /// These participants have new messages.
    pub fn wake(&self, participants: &[u32]) {
        let wakes = self.0.wakes.lock().unwrap_or_else(PoisonError::into_inner);
        for participant in participants {
            if let Some(wake) = wakes.get(participant) {
                wake.notify_one();
            }
        }
    }
}

/// A message held by the sender.
struct Item {
    message: Found<Outbox>,
    /// Number of refusals by the participant.
    refused: u32,
}

struct Sender {
    shared: Arc<OutboxState>,
    participant: u32,
    wake: Arc<Notify>,
    /// The first number not yet read.
    cursor: u64,
    /// Messages that were read but not yet acknowledged, in order.
    waiting: Vec<Item>,
    /// Kept connections, by authority.
    links: HashMap<String, Vec<Link>>,
}

/// The bytes for one connection, and the messages they belong to.
type Part = (Vec<u8>, Vec<usize>);

/// The outcome of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Delivered,
    Refused,
    Failed,
}

/// The result of sending a window.
#[derive(Clone, Copy, Debug)]
struct Round {
    delivered: bool,
    failed: bool,
}

fn position(participant: u32, number: u64) -> Vec<u8> {
    let mut position = participant.to_bytes();
    OutboxKey { participant, number }.encode(&mut position);
    position
}

impl Sender {
    async fn run(mut self) {
        let mut pause = self.shared.options.pause;
        loop {
            let round = match self.round().await {
                Ok(Some(round)) => round,
                Ok(None) => {
                    tokio::select! {
                        () = self.wake.notified() => {}
                        () = self.shared.drain.draining() => return,
                    }
                    continue;
                }
                Err(error) => {
                    tracing::error!(%error, "the outbox cannot be read");
                    Round { delivered: false, failed: true }
                }
            };
            if round.delivered {
                pause = self.shared.options.pause;
            }
            if !round.failed {
                if self.shared.drain.is_draining() {
                    return;
                }
                continue;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.shared.drain.draining() => return,
            }
            pause = (pause * 2).min(self.shared.options.pause_max);
        }
    }

    /// Sends a window. `None`: there was nothing to send.
    async fn round(&mut self) -> Result<Option<Round>, StoreError> {
        let window = self.shared.options.window;
        if self.waiting.len() < window {
            let limit = window - self.waiting.len();
            let from = Bound::Included(position(self.participant, self.cursor));
            let to = Bound::Excluded(position(self.participant, u64::MAX));
            let found =
                self.shared.store.range_positions::<Outbox>(Outbox::IN_ORDER, from, to, limit, false)?;
            if let Some(last) = found.last() {
                self.cursor = last.key.number + 1;
            }
            self.waiting.extend(found.into_iter().map(|message| Item { message, refused: 0 }));
        }
        if self.waiting.is_empty() {
            return Ok(None);
        }
        let fates = self.send().await?;
        let now_ms = (self.shared.clock)() / 1000;
        let counters = &self.shared.counters;
        let mut done = Vec::new();
        let mut round = Round { delivered: false, failed: false };
        let mut fates = fates.into_iter();
        self.waiting.retain_mut(|item| {
            // Messages after the window have no fate yet.
            let Some(fate) = fates.next().flatten() else { return true };
            let age = Duration::from_millis(now_ms.saturating_sub(item.message.row.created));
            let give_up = match fate {
                Fate::Delivered => {
                    round.delivered = true;
                    counters.delivered.inc();
                    counters.time.time(age);
                    done.push(item.message.key.clone());
                    return false;
                }
                Fate::Refused => {
                    item.refused += 1;
                    item.refused >= self.shared.options.refused_attempts
                }
                Fate::Failed => false,
            };
            round.failed = true;
            counters.failed.inc();
            if give_up || age >= self.shared.options.give_up {
                let id = crate::values::format_uuid(item.message.row.id);
                let (to, kind) = (self.participant, item.message.row.kind);
                tracing::warn!(to, kind, id, ?fate, "a callback is given up");
                counters.given_up.inc();
                done.push(item.message.key.clone());
                return false;
            }
            true
        });
        if !done.is_empty() {
            let lane = self.shared.lane.get().expect("the lane is attached before senders are served");
            // Nobody need wait: a message that stays is sent again after a restart.
            drop(lane.submit_internal(Sent(done).into()));
        }
        Ok(Some(round))
    }

    /// Sends the waiting messages, but only the first message of each transfer. The fates are in the order of
    /// `waiting`.
    async fn send(&mut self) -> Result<Vec<Option<Fate>>, StoreError> {
        let mut fates = vec![None; self.waiting.len()];
        let directory = self.shared.directory.now();
        let Some(to) = directory.by_number(self.participant).cloned() else {
            return Ok(vec![Some(Fate::Refused); self.waiting.len()]);
        };
        let mut ids = HashSet::new();
        let chosen: Vec<usize> = (0..self.waiting.len())
            .filter(|place| {
                let row = &self.waiting[*place].message.row;
                row.id == 0 || ids.insert(row.id)
            })
            .collect();
        let messages: Vec<Found<Outbox>> =
            chosen.iter().map(|place| self.waiting[*place].message.clone()).collect();
        let rows = Rows::read(&self.shared.store, &messages)?;
        let now_ms = (self.shared.clock)() / 1000;
        let renderer = Renderer { rows: &rows, directory: &directory, to: &to, now_ms };
        // By authority and connection.
        let mut batches: HashMap<String, Vec<Part>> = HashMap::new();
        for (place, message) in chosen.iter().zip(&messages) {
            let Some(ready) = renderer.render(message) else {
                tracing::warn!(to = %to.name, kind = message.row.kind, "a callback has no address");
                fates[*place] = Some(Fate::Refused);
                continue;
            };
            let lanes = self.shared.options.connections.max(1);
            let parts = batches
                .entry(ready.authority)
                .or_insert_with(|| (0..lanes).map(|_| (Vec::new(), Vec::new())).collect());
            let lane = usize::try_from(message.row.id % lanes as u128).expect("below the number of lanes");
            parts[lane].0.extend_from_slice(&ready.request);
            parts[lane].1.push(*place);
        }
        let mut under_way = tokio::task::JoinSet::new();
        for (authority, parts) in batches {
            let mut kept = self.links.remove(&authority).unwrap_or_default();
            for (bytes, places) in parts.into_iter().filter(|(_, places)| !places.is_empty()) {
                let (authority, patience) = (authority.clone(), self.shared.options.timeout);
                self.shared.counters.batch.count(places.len() as u64);
                under_way.spawn(exchange(kept.pop(), authority, bytes, places, patience));
            }
            if !kept.is_empty() {
                self.links.insert(authority, kept);
            }
        }
        while let Some(joined) = under_way.join_next().await {
            let Ok(Exchanged { authority, link, places, replies }) = joined else { continue };
            for (place, reply) in places.iter().zip(replies) {
                fates[*place] = Some(match reply.map(|reply| reply.status) {
                    Some(200..300) => Fate::Delivered,
                    Some(408 | 425 | 429) | None => Fate::Failed,
                    Some(400..500) => Fate::Refused,
                    Some(_) => Fate::Failed,
                });
            }
            if let Some(link) = link {
                self.links.entry(authority).or_default().push(link);
            }
        }
        Ok(fates)
    }
}

struct Exchanged {
    authority: String,
    /// The connection, if it can be used again.
    link: Option<Link>,
    places: Vec<usize>,
    /// One per place; `None`: unknown.
    replies: Vec<Option<Reply>>,
}

/// Sends requests over a kept connection or a new one. If a kept one turns out to be closed, it is replaced
/// once.
async fn exchange(
    kept: Option<Link>,
    authority: String,
    bytes: Vec<u8>,
    places: Vec<usize>,
    patience: Duration,
) -> Exchanged {
    let mut link = kept;
    let mut is_kept = link.is_some();
    loop {
        let mut open = match link.take() {
            Some(open) => open,
            None => match Link::connect(&authority, patience).await {
                Ok(open) => open,
                Err(reason) => {
                    tracing::debug!(authority, reason, "no connection to a participant");
                    let replies = vec![None; places.len()];
                    return Exchanged { authority, link: None, places, replies };
                }
            },
        };
        let (replies, error) = open.exchange(&bytes, places.len(), patience).await;
        if replies.is_empty() && error.is_some() && is_kept {
            is_kept = false;
            continue;
        }
        if let Some(reason) = &error {
            tracing::debug!(
                authority,
                reason,
                answered = replies.len(),
                "a connection to a participant broke"
            );
        }
        let mut replies: Vec<Option<Reply>> = replies.into_iter().map(Some).collect();
        replies.resize(places.len(), None);
        return Exchanged { authority, link: error.is_none().then_some(open), places, replies };
    }
}
