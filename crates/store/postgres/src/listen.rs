//! The connection that holds the store's lock and receives notifications, and its thread.
//!
//! Topics are not sent within commits: a `NOTIFY` in a transaction takes a database-wide lock until the
//! commit is on disk, so commits would run one by one. Listeners read what has changed; a lost topic only
//! delays them until their next poll.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use batzen_store::{Notice, Result, StoreError, Subscriber};
use rustix::event::{PollFd, PollFlags};

use crate::client::{Array, Connection, Statement, poll_until};
use crate::database::Database;
use crate::layout::{SqlType, quoted};
use crate::schema::lock_key;
use crate::{PgError, Sharing};

/// Number of topics that may wait to be sent; more are dropped.
const TOPICS_MAX: usize = 4_096;

/// The longest topic that the server passes on, in bytes.
const TOPIC_BYTES_MAX: usize = 7_900;

/// Interval at which an idle connection is checked.
const PING: Duration = Duration::from_secs(15);

/// Time to wait before reconnecting.
const AGAIN: Duration = Duration::from_millis(500);

/// Time that closing the store waits for the thread, and the thread for the server.
const END_MAX: Duration = Duration::from_secs(1);

type Subscribers = Arc<Mutex<Vec<Subscriber>>>;

/// The thread, and the channels to it.
pub(crate) struct Listener {
    topics: Option<SyncSender<String>>,
    /// A byte written to it wakes the thread.
    wake: UnixStream,
    subscribers: Subscribers,
    /// Carries nothing; it closes when the thread has ended.
    ended: Mutex<Receiver<()>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Opens the connection that takes the store's lock, shared or exclusive. Also returns whether it got the
/// lock.
pub(crate) fn take_lock(database: &Database) -> std::result::Result<(Connection, bool), PgError> {
    let mut connection = database.connect()?;
    let shared = if database.options.sharing == Sharing::Shared { "_shared" } else { "" };
    let key = lock_key(&database.options.schema);
    let rows = connection.query_text(&format!("SELECT pg_try_advisory_lock{shared}({key})"))?;
    let taken = rows.first().and_then(|row| row.first()?.as_deref()) == Some("t");
    if taken {
        connection.script(&format!("LISTEN {}", quoted(&channel(database))))?;
    }
    Ok((connection, taken))
}

fn channel(database: &Database) -> String {
    format!("batzen_{}", database.options.schema)
}

impl Listener {
    pub(crate) fn start(database: Arc<Database>, connection: Connection) -> Result<Self> {
        let fail = |error| StoreError::Backend(format!("start a thread: {error}"));
        let (topics, to_send) = sync_channel(TOPICS_MAX);
        let (wake, woken) = UnixStream::pair().map_err(fail)?;
        wake.set_nonblocking(true).map_err(fail)?;
        woken.set_nonblocking(true).map_err(fail)?;
        let subscribers = Subscribers::default();
        let (end, ended) = sync_channel(0);
        let listening = Listening { database, to_send, woken, subscribers: Arc::clone(&subscribers) };
        let work = move || {
            listening.run(connection);
            drop(end);
        };
        let thread = std::thread::Builder::new().name("postgres".into()).spawn(work).map_err(fail)?;
        Ok(Self {
            topics: Some(topics),
            wake,
            subscribers,
            ended: Mutex::new(ended),
            thread: Mutex::new(Some(thread)),
        })
    }

    pub(crate) fn notify(&self, topics: &[String]) {
        let Some(sender) = &self.topics else { return };
        for topic in topics {
            if topic.len() > TOPIC_BYTES_MAX {
                tracing::debug!("a topic is too long: it is not sent");
            } else if let Err(TrySendError::Full(_)) = sender.try_send(topic.clone()) {
                tracing::debug!("too many topics: some are not sent");
                break;
            }
        }
        self.wake();
    }

    fn wake(&self) {
        // A full pipe has unread bytes, which will wake the thread.
        let _ = (&self.wake).write(&[0]);
    }

    pub(crate) fn subscribe(&self, subscriber: Subscriber) {
        self.subscribers.lock().unwrap_or_else(PoisonError::into_inner).push(subscriber);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.topics = None;
        self.wake();
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        // A server that does not answer must not delay the end of the service: the thread then ends after its
        // current attempt.
        if ended.recv_timeout(END_MAX) == Err(RecvTimeoutError::Disconnected)
            && let Some(thread) = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take()
        {
            let _ = thread.join();
        }
    }
}

/// The state of the thread.
struct Listening {
    database: Arc<Database>,
    to_send: Receiver<String>,
    woken: UnixStream,
    subscribers: Subscribers,
}

impl Listening {
    fn run(&self, first: Connection) {
        let database = &*self.database;
        let send = Statement::new(format!(
            "SELECT pg_notify('{}', topic) FROM unnest($1::text[]) AS u(topic)",
            channel(database).replace('\'', "''")
        ));
        // Rows of writers that have been unused for a long time are removed, except the owner's.
        let ping = match database.owner {
            Some((id, _)) => {
                let schema = quoted(&database.options.schema);
                format!("UPDATE {schema}.writers SET seen = now() WHERE writer_id = {id}")
            }
            None => "SELECT 1".to_owned(),
        };
        let mut connection = Some(first);
        let mut next_ping = Instant::now() + PING;
        loop {
            let (topics, is_last) = self.topics();
            let Some(open) = &mut connection else {
                if is_last {
                    return;
                }
                match self.connect_again() {
                    Ok(again) => connection = again,
                    Err(()) => return,
                }
                continue;
            };
            let turn = (|| {
                if !topics.is_empty() {
                    let mut array = Array::new(SqlType::Text.oid());
                    topics.iter().for_each(|topic| array.push(topic.as_bytes()));
                    if is_last {
                        open.set_timeout(END_MAX);
                    }
                    open.queue(&send, |params| params.array(&array));
                    open.run(&mut |_, _| Ok(()))?;
                }
                if is_last {
                    return Ok(Vec::new());
                }
                if Instant::now() >= next_ping {
                    next_ping = Instant::now() + PING;
                    open.script(&ping)?;
                }
                open.notifications(next_ping, self.woken.as_fd())
            })();
            if is_last {
                return;
            }
            match turn {
                Ok(heard) => heard.iter().for_each(|topic| self.tell(Notice::Topic(topic))),
                // A lost topic is harmless; a lost lock is not.
                Err(error) if !open.is_broken() && !error.is_away() => {
                    tracing::warn!(%error, "topics were not sent");
                }
                Err(error) => {
                    tracing::warn!(%error, "connection for notifications lost");
                    database.counters.reconnects.inc();
                    connection = None;
                }
            }
        }
    }

    /// The topics to send, without duplicates, and whether the channel is closed.
    fn topics(&self) -> (Vec<String>, bool) {
        // Read the bytes first: a topic that arrives later writes another byte.
        while matches!((&self.woken).read(&mut [0; 64]), Ok(read) if read > 0) {}
        let mut topics = Vec::new();
        loop {
            match self.to_send.try_recv() {
                Ok(topic) if topics.contains(&topic) => {}
                Ok(topic) => topics.push(topic),
                Err(error) => return (topics, error == TryRecvError::Disconnected),
            }
        }
    }

    /// Tries once to restore the connection and the lock, and pauses if that fails. An error means that the
    /// store is lost permanently or has been closed.
    fn connect_again(&self) -> std::result::Result<Option<Connection>, ()> {
        let database = &*self.database;
        let attempt = take_lock(database).and_then(|(mut connection, taken)| {
            let is_ours = database.is_ours(&mut connection)?;
            Ok((connection, taken, is_ours))
        });
        match attempt {
            Ok((_, _, false)) => {
                tracing::error!("{}", database.is_lost());
                return Err(());
            }
            Ok((connection, true, true)) => {
                self.tell(Notice::Missed);
                return Ok(Some(connection));
            }
            // This process's old connection may still hold it, if the server has not noticed its end yet.
            Ok((_, false, true)) => tracing::debug!("the lock of the store is not free yet"),
            Err(error) => tracing::debug!(%error, "no connection for notifications"),
        }
        let until = Instant::now() + AGAIN;
        while Instant::now() < until {
            let _ = poll_until(&mut [PollFd::new(&self.woken, PollFlags::IN)], Some(until));
            // Topics that arrive meanwhile are dropped; they are not urgent.
            if self.topics().1 {
                return Err(());
            }
        }
        Ok(None)
    }

    fn tell(&self, notice: Notice<'_>) {
        let subscribers = self.subscribers.lock().unwrap_or_else(PoisonError::into_inner);
        subscribers.iter().for_each(|subscriber| subscriber(notice));
    }
}
