//! A TCP proxy between a program and PostgreSQL that cuts connections at a chosen moment.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::postgres::ClusterError;
use crate::postgres::process::PATIENCE;
use crate::postgres::wire::{self, Meaning, Reader};

/// When a connection is cut. Counts begin with the first transaction that begins after [`Proxy::cut`]: with
/// its BEGIN, with the first statement that writes if there is no BEGIN, or with the message that has a whole
/// transaction.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Moment {
    /// This many bytes have reached the server.
    BytesToServer(usize),
    /// Everything has reached the server, and this many bytes of its answers the client.
    BytesFromServer(usize),
    /// This many messages have reached the server.
    MessagesToServer(usize),
    /// Everything has reached the server, and this many of its messages the client.
    MessagesFromServer(usize),
    /// The server has the complete COMMIT, but the client gets no answer.
    CommitSeen,
}

/// The fate of the client's messages that have not reached the server when its connection is cut.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Rest {
    /// They are lost.
    Lost,
    /// They are delayed, up to the first Sync or the end of the transaction: the server gets them at [`Proxy::release`].
    Late,
}

#[derive(Clone, Copy)]
struct Plan {
    moment: Moment,
    rest: Rest,
}

#[derive(Default)]
struct ProxyState {
    plan: Option<Plan>,
    is_closed: bool,
    refuses: bool,
    delay: Duration,
    cuts: u32,
    releases: u64,
    accepted: u64,
    /// Ends of the connections that are open: the client's and the server's.
    open: Vec<(u64, TcpStream, TcpStream)>,
}

struct ProxyControl {
    state: Mutex<ProxyState>,
    changed: Condvar,
    target: SocketAddr,
}

/// A proxy on its own port. It offers no encryption, since it reads the messages of clients. Dropping it
/// stops it.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<ProxyControl>,
    acceptor: Option<JoinHandle<()>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxy {
    /// Listens on a free port of 127.0.0.1 and passes connections on to `port` there.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn start(port: u16) -> Result<Self, ClusterError> {
        let target = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(ClusterError::io("127.0.0.1"))?;
        let address = listener.local_addr().map_err(ClusterError::io("127.0.0.1"))?;
        let shared = Arc::new(ProxyControl { state: Mutex::default(), changed: Condvar::new(), target });
        let accepting = Arc::clone(&shared);
        let acceptor = std::thread::spawn(move || accepting.accept(&listener));
        Ok(Self { address, shared, acceptor: Some(acceptor) })
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Cuts one connection at a future moment.
    pub fn cut(&self, moment: Moment, rest: Rest) {
        lock(&self.shared.state).plan = Some(Plan { moment, rest });
    }

    /// Cancels the planned cut. Returns whether it was still pending.
    pub fn cancel_cut(&self) -> bool {
        lock(&self.shared.state).plan.take().is_some()
    }

    /// Number of planned cuts that have happened.
    pub fn cuts(&self) -> u32 {
        lock(&self.shared.state).cuts
    }

    /// Waits until `count` connections have been cut in total.
    ///
    /// # Panics
    /// If it takes more than two minutes.
    pub fn wait_for_cuts(&self, count: u32) {
        let state = lock(&self.shared.state);
        let waited = self.shared.changed.wait_timeout_while(state, PATIENCE, |state| state.cuts < count);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        assert!(state.cuts >= count, "{} of {count} connections were cut", state.cuts);
    }

    /// Lets delayed messages reach the server.
    pub fn release(&self) {
        lock(&self.shared.state).releases += 1;
        self.shared.changed.notify_all();
    }

    /// Cuts all open connections at once.
    pub fn cut_all(&self) {
        for (_, client, server) in lock(&self.shared.state).open.drain(..) {
            end(&client);
            end(&server);
        }
    }

    /// Sets whether new connections are closed at once, as if the server were down.
    pub fn refuse(&self, refuses: bool) {
        lock(&self.shared.state).refuses = refuses;
    }

    /// Delays everything that clients send, chunk by chunk.
    pub fn delay(&self, delay: Duration) {
        lock(&self.shared.state).delay = delay;
    }

    /// Number of connections that are open.
    pub fn open(&self) -> usize {
        lock(&self.shared.state).open.len()
    }

    /// Number of connections that there have been.
    pub fn accepted(&self) -> u64 {
        lock(&self.shared.state).accepted
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        lock(&self.shared.state).is_closed = true;
        self.cut_all();
        self.release();
        // Wakes the acceptor.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

/// A closed connection needs no shutdown.
fn end(stream: &TcpStream) {
    let _ = stream.shutdown(Shutdown::Both);
}

impl ProxyControl {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            {
                let state = lock(&self.state);
                if state.is_closed {
                    return;
                }
                if state.refuses {
                    continue;
                }
            }
            // If the server is down, the client notices that its connection is closed.
            if let Ok(client) = client {
                let _ = self.connect(client);
            }
        }
    }

    fn connect(self: &Arc<Self>, client: TcpStream) -> std::io::Result<()> {
        let server = TcpStream::connect(self.target)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let id = {
            let mut state = lock(&self.state);
            state.accepted += 1;
            let id = state.accepted;
            state.open.push((id, client.try_clone()?, server.try_clone()?));
            id
        };
        let link = Arc::new(Link {
            armed: Mutex::default(),
            is_muted: AtomicBool::new(false),
            shared: Arc::clone(self),
        });
        let (from_client, to_server) = (client.try_clone()?, server.try_clone()?);
        let upwards = Arc::clone(&link);
        std::thread::spawn(move || {
            // The connection is over, whatever the reason.
            let _ = upwards.pass_up(&from_client, &to_server);
            end(&from_client);
            // The server still processes what it has received.
            let _ = to_server.shutdown(Shutdown::Write);
        });
        std::thread::spawn(move || {
            let _ = link.pass_down(&server, &client);
            end(&client);
            // Discard answers instead of closing: a reset would stop the server before it has finished.
            let _ = std::io::copy(&mut &server, &mut std::io::sink());
            end(&server);
            lock(&link.shared.state).open.retain(|(open, ..)| *open != id);
        });
        Ok(())
    }
}

/// One connection.
struct Link {
    /// The plan for the current transaction.
    armed: Mutex<Option<Plan>>,
    /// Whether the server's answers are withheld from the client.
    is_muted: AtomicBool,
    shared: Arc<ProxyControl>,
}

impl Link {
    /// Closes the client's side and counts the cut under one lock, so that a client that has been cut off
    /// finds it counted.
    fn cut(&self, client: &TcpStream) {
        let mut state = lock(&self.shared.state);
        end(client);
        state.cuts += 1;
        drop(state);
        self.shared.changed.notify_all();
    }

    /// The transaction ended before the planned cut, which is therefore dropped.
    fn disarm(&self) {
        *lock(&self.armed) = None;
    }

    /// From the client to the server, message by message. Returns when the connection has been cut or has
    /// ended.
    fn pass_up(&self, mut client: &TcpStream, mut server: &TcpStream) -> std::io::Result<()> {
        let mut reader = Reader::default();
        let mut bytes = Vec::new();
        let mut chunk = vec![0; 65_536];
        // Counts of what has gone to the server since the transaction began.
        let (mut messages_sent, mut bytes_sent) = (0, 0);
        loop {
            let Some(whole) = wire::length(&bytes, reader.has_type()) else {
                let count = client.read(&mut chunk)?;
                if count == 0 {
                    return server.write_all(&bytes);
                }
                bytes.extend_from_slice(&chunk[..count]);
                let delay = lock(&self.shared.state).delay;
                std::thread::sleep(delay);
                continue;
            };
            let message: Vec<u8> = bytes.drain(..whole).collect();
            let meaning = reader.read(&message);
            if meaning == Meaning::Encryption {
                client.write_all(b"N")?;
                continue;
            }
            let is_first = matches!(meaning, Meaning::Begin | Meaning::Whole);
            if is_first
                && lock(&self.armed).is_none()
                && let Some(plan) = lock(&self.shared.state).plan.take()
            {
                *lock(&self.armed) = Some(plan);
                (messages_sent, bytes_sent) = (0, 0);
            }
            let is_last = matches!(meaning, Meaning::End | Meaning::Whole);
            let plan = *lock(&self.armed);
            let passes = match plan.map(|plan| plan.moment) {
                Some(Moment::MessagesToServer(count)) if messages_sent == count => 0,
                Some(Moment::BytesToServer(count)) => message.len().min(count.saturating_sub(bytes_sent)),
                _ => message.len(),
            };
            if is_last && plan.is_some_and(|plan| plan.moment == Moment::CommitSeen) {
                self.is_muted.store(true, Ordering::Release);
            }
            server.write_all(&message[..passes])?;
            (messages_sent, bytes_sent) = (messages_sent + 1, bytes_sent + passes);
            let Some(plan) = plan else { continue };
            if passes < message.len() {
                let late = match plan.rest {
                    Rest::Lost => None,
                    Rest::Late => {
                        let is_last = is_last || message[0] == b'S';
                        Some(self.rest(client, &mut reader, (message[passes..].to_vec(), bytes), is_last)?)
                    }
                };
                self.cut(client);
                return match late {
                    None => Ok(()),
                    Some(late) => self.deliver_late(&late, server),
                };
            }
            if is_last && plan.moment == Moment::CommitSeen {
                self.cut(client);
                return Ok(());
            }
            if is_last && matches!(plan.moment, Moment::MessagesToServer(_) | Moment::BytesToServer(_)) {
                self.disarm();
            }
        }
    }

    /// The rest of the client's transaction, up to the first message after which it waits.
    fn rest(
        &self,
        mut client: &TcpStream,
        reader: &mut Reader,
        (mut late, mut bytes): (Vec<u8>, Vec<u8>),
        mut is_last: bool,
    ) -> std::io::Result<Vec<u8>> {
        let mut chunk = vec![0; 65_536];
        while !is_last {
            if let Some(whole) = wire::length(&bytes, true) {
                let message: Vec<u8> = bytes.drain(..whole).collect();
                // After a Sync, the client waits for the answer.
                is_last =
                    matches!(reader.read(&message), Meaning::End | Meaning::Whole) || message[0] == b'S';
                late.extend(message);
            } else {
                let count = client.read(&mut chunk)?;
                if count == 0 {
                    break;
                }
                bytes.extend_from_slice(&chunk[..count]);
            }
        }
        Ok(late)
    }

    fn deliver_late(&self, late: &[u8], mut server: &TcpStream) -> std::io::Result<()> {
        let state = lock(&self.shared.state);
        let before = state.releases;
        let waited =
            self.shared.changed.wait_timeout_while(state, PATIENCE, |state| state.releases == before);
        drop(waited);
        server.write_all(late)
    }

    /// From the server to the client. Returns when the connection has been cut or has ended.
    fn pass_down(&self, mut server: &TcpStream, mut client: &TcpStream) -> std::io::Result<()> {
        let mut chunk = vec![0; 65_536];
        let mut bytes = Vec::new();
        // Counts of what has gone to the client since the transaction began.
        let (mut messages_sent, mut bytes_sent) = (0, 0);
        loop {
            let count = server.read(&mut chunk)?;
            if count == 0 {
                return client.write_all(&bytes);
            }
            bytes.extend_from_slice(&chunk[..count]);
            while let Some(whole) = wire::length(&bytes, true) {
                let message: Vec<u8> = bytes.drain(..whole).collect();
                let Some(plan) = *lock(&self.armed) else {
                    (messages_sent, bytes_sent) = (0, 0);
                    client.write_all(&message)?;
                    continue;
                };
                let passes = match plan.moment {
                    // The client's half makes the cut.
                    Moment::CommitSeen if self.is_muted.load(Ordering::Acquire) => continue,
                    Moment::MessagesFromServer(count) if messages_sent >= count => 0,
                    Moment::BytesFromServer(count) => message.len().min(count.saturating_sub(bytes_sent)),
                    _ => message.len(),
                };
                (messages_sent, bytes_sent) = (messages_sent + 1, bytes_sent + passes);
                if passes == message.len() && message[..] == [b'Z', 0, 0, 0, 5, b'I'] {
                    // Ready for queries, outside a transaction. Reset before the client sees it, since it may
                    // begin the next transaction at once, which has its own plan and counts.
                    self.disarm();
                    (messages_sent, bytes_sent) = (0, 0);
                }
                client.write_all(&message[..passes])?;
                if passes < message.len() {
                    self.cut(client);
                    return Ok(());
                }
            }
        }
    }
}
