//! The connection that holds the store's lock and hears notifications, and its thread.
//!
//! Topics are sent apart from commits: a `NOTIFY` within a transaction takes a lock that all notifying transactions of the
//! database share until their commit is on the disk, so that they would commit one by one. Whoever listens reads what has
//! changed; a topic that is lost only delays it until its next look.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use batzen_store::{Notice, Result, StoreError, Subscriber};

use crate::connection::{Connection, Statement};
use crate::database::Database;
use crate::layout::{SqlType, quoted};
use crate::schema::lock_key;
use crate::values::Array;
use crate::{PgError, Sharing};

/// How many topics may wait to be sent; more are dropped.
const TOPICS_MAX: usize = 4_096;

/// How long the thread waits for notifications before it looks whether there are topics to send.
const TURN: Duration = Duration::from_millis(5);

/// How often an idle connection is asked whether it lives.
const PING: Duration = Duration::from_secs(15);

/// How long the connection may stay lost before the next attempt.
const AGAIN: Duration = Duration::from_millis(500);

type Subscribers = Arc<Mutex<Vec<Subscriber>>>;

/// The thread, and how it is spoken to.
pub(crate) struct Listener {
    topics: Option<SyncSender<String>>,
    subscribers: Subscribers,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Takes the store's lock: shared by all who work on the store, or alone.
pub(crate) fn take_lock(database: &Database) -> std::result::Result<Option<Connection>, PgError> {
    let mut connection = database.connect()?;
    let shared = if database.options.sharing == Sharing::Shared { "_shared" } else { "" };
    let key = lock_key(&database.options.schema);
    let rows = connection.query_text(&format!("SELECT pg_try_advisory_lock{shared}({key})"))?;
    let taken = rows.first().and_then(|row| row.first()?.as_deref()) == Some("t");
    if !taken {
        return Ok(None);
    }
    connection.script(&format!("LISTEN {}", quoted(&channel(database))))?;
    Ok(Some(connection))
}

fn channel(database: &Database) -> String {
    format!("batzen_{}", database.options.schema)
}

impl Listener {
    pub fn start(database: Arc<Database>, connection: Connection) -> Result<Self> {
        let (topics, to_send) = sync_channel(TOPICS_MAX);
        let subscribers = Subscribers::default();
        let tell = Arc::clone(&subscribers);
        let work = move || listen(&database, connection, &to_send, &tell);
        let thread = std::thread::Builder::new().name("postgres".into()).spawn(work);
        let thread = thread.map_err(|error| StoreError::Backend(format!("start a thread: {error}")))?;
        Ok(Self { topics: Some(topics), subscribers, thread: Mutex::new(Some(thread)) })
    }

    pub fn notify(&self, topics: &[String]) {
        let Some(sender) = &self.topics else { return };
        for topic in topics {
            if let Err(TrySendError::Full(_)) = sender.try_send(topic.clone()) {
                tracing::debug!("too many topics: some are not sent");
                return;
            }
        }
    }

    pub fn subscribe(&self, subscriber: Subscriber) {
        self.subscribers.lock().unwrap_or_else(PoisonError::into_inner).push(subscriber);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.topics = None;
        if let Some(thread) = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

fn tell(subscribers: &Subscribers, notice: Notice<'_>) {
    let subscribers = subscribers.lock().unwrap_or_else(PoisonError::into_inner);
    subscribers.iter().for_each(|subscriber| subscriber(notice));
}

fn listen(database: &Database, first: Connection, topics: &Receiver<String>, subscribers: &Subscribers) {
    let send = Statement::new(format!(
        "SELECT pg_notify('{}', topic) FROM unnest($1::text[]) AS u(topic)",
        channel(database).replace('\'', "''")
    ));
    // Rows of writers that nobody has seen for long are removed: not the owner's.
    let ping = match database.owner {
        Some(id) => {
            let schema = quoted(&database.options.schema);
            format!("UPDATE {schema}.writers SET seen = now() WHERE writer_id = {id}")
        }
        None => "SELECT 1".to_owned(),
    };
    let mut connection = Some(first);
    let mut heard = Instant::now();
    loop {
        let mut waiting = Vec::new();
        loop {
            match topics.try_recv() {
                // Several of the same are one.
                Ok(topic) if waiting.contains(&topic) => {}
                Ok(topic) => waiting.push(topic),
                Err(std::sync::mpsc::TryRecvError::Empty) => break,
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
            }
        }
        let Some(open) = &mut connection else {
            match take_lock(database) {
                Ok(Some(again)) => {
                    connection = Some(again);
                    tell(subscribers, Notice::Missed);
                }
                Ok(None) => {
                    tracing::warn!("the lock of the store is held by others");
                    std::thread::sleep(AGAIN);
                }
                Err(error) => {
                    tracing::warn!(%error, "no connection for notifications");
                    std::thread::sleep(AGAIN);
                }
            }
            continue;
        };
        let turn = (|| {
            if !waiting.is_empty() {
                let mut array = Array::new(SqlType::Text.oid());
                waiting.iter().for_each(|topic| array.push(topic.as_bytes()));
                open.queue(&send, |params| params.array(&array));
                open.run(&mut |_, _| Ok(()))?;
                heard = Instant::now();
            } else if heard.elapsed() > PING {
                open.script(&ping)?;
                heard = Instant::now();
            }
            open.notifications(TURN)
        })();
        match turn {
            Ok(heard) => heard.iter().for_each(|topic| tell(subscribers, Notice::Topic(topic))),
            Err(error) => {
                tracing::warn!(%error, "connection for notifications lost");
                database.counters.reconnects.inc();
                connection = None;
            }
        }
    }
}
