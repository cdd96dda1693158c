//! The client's side: a few connections to one server, and who waits on them.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use super::wire::{WholeAnswer, put_length, take_answer};
use super::{IN_FLIGHT_MAX, PROTOCOL};

/// Connections to one server.
const LINKS_MAX: usize = 4;
/// From so many requests under way on each of the others another connection is opened.
const LOAD_MAX: usize = 64;
/// Requests that wait for a connection; who comes then waits, too, until there is room.
const QUEUE_MAX: usize = 1_024;
/// How long a server that does not know the protocol is not asked for it again.
const UNKNOWN_FOR: Duration = Duration::from_secs(600);
/// How often the end of a connection is borne before the request fails.
const ATTEMPTS_MAX: usize = 3;
/// How often a connection looks whether an answer is late.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// The largest answer to the wish for this protocol, in bytes.
const GREETING_BYTES_MAX: usize = 4 << 10;
/// How much is read at once, in bytes.
const READ_BYTES: usize = 64 << 10;
/// While so much waits to be sent no further request is taken from the queue.
const OUTPUT_BYTES_MAX: usize = 256 << 10;

/// Limits of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// How long connecting and agreeing on the protocol may take.
    pub connect_timeout: Duration,
    /// How long an answer may take.
    pub timeout: Duration,
    /// The largest answer accepted, in bytes.
    pub reply_bytes_max: usize,
}

/// Why there is no answer.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The server does not know the protocol: ask it in the ordinary way.
    Unknown,
    /// There is no connection; the request was surely not seen.
    Connect(String),
    /// The request may or may not have had its effect.
    Broken(String),
    /// The same, after a long time.
    Timeout,
}

/// A client of one server. Clones share its connections.
#[derive(Clone)]
pub(crate) struct Concurrent(Arc<Shared>);

struct Shared {
    /// Host and port.
    authority: Arc<str>,
    limits: Limits,
    state: Mutex<State>,
    /// Held by whoever opens a connection.
    opening: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    links: Vec<Link>,
    unknown_until: Option<Instant>,
    /// When a connection could last not be opened, and why.
    failed: Option<(Instant, Failure)>,
}

/// The way to a connection.
#[derive(Clone)]
struct Link {
    queue: mpsc::Sender<Ask>,
    /// Requests under way.
    load: Arc<AtomicUsize>,
}

struct Ask {
    message: Message,
    answer: oneshot::Sender<Result<WholeAnswer, Failure>>,
}

/// A request: the fields that all have, and a body. Cheap to copy.
#[derive(Clone)]
pub(crate) struct Message {
    /// Request line and header fields without the last one, the length of the body.
    pub head: Bytes,
    /// The body.
    pub body: Bytes,
}

impl fmt::Debug for Concurrent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Concurrent").field("authority", &self.0.authority).finish_non_exhaustive()
    }
}

impl Concurrent {
    /// For the server at this host and port.
    pub fn new(authority: Arc<str>, limits: Limits) -> Self {
        let (state, opening) = (Mutex::default(), tokio::sync::Mutex::default());
        Self(Arc::new(Shared { authority, limits, state, opening }))
    }

    /// Sends a request that may be repeated, and waits for its answer.
    pub async fn ask(&self, message: Message) -> Result<WholeAnswer, Failure> {
        let mut last = Failure::Broken(String::new());
        for _ in 0..ATTEMPTS_MAX {
            let link = self.link().await?;
            let _load = Load::raise(&link.load);
            let (answer, waiting) = oneshot::channel();
            let ask = Ask { message: message.clone(), answer };
            if link.queue.send(ask).await.is_err() {
                continue;
            }
            match waiting.await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(failure @ (Failure::Timeout | Failure::Unknown))) => return Err(failure),
                Ok(Err(failure)) => last = failure,
                Err(_) => last = Failure::Broken("the connection ended".to_owned()),
            }
        }
        Err(last)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that has room, or a new one.
    async fn link(&self) -> Result<Link, Failure> {
        if let Some(link) = self.state().usable()? {
            return Ok(link);
        }
        let since = Instant::now();
        let _opening = self.0.opening.lock().await;
        // Somebody else may have opened one, or failed to, while this waited.
        {
            let mut state = self.state();
            if let Some(link) = state.usable()? {
                return Ok(link);
            }
            if let Some((time, failure)) = &state.failed
                && *time >= since
            {
                return Err(failure.clone());
            }
        }
        let limits = self.0.limits;
        let opened = timeout(limits.connect_timeout, open(&self.0.authority)).await;
        let opened = opened.unwrap_or_else(|_| Err(Failure::Connect("no answer in time".to_owned())));
        let mut state = self.state();
        match opened {
            Ok((stream, input)) => {
                let (queue, asks) = mpsc::channel(QUEUE_MAX);
                let link = Link { queue, load: Arc::default() };
                state.links.push(link.clone());
                tokio::spawn(Connection::new(stream, input, asks, limits).run());
                Ok(link)
            }
            Err(failure) => {
                if matches!(failure, Failure::Unknown) {
                    state.unknown_until = Some(Instant::now() + UNKNOWN_FOR);
                } else {
                    state.failed = Some((Instant::now(), failure.clone()));
                }
                Err(failure)
            }
        }
    }
}

impl State {
    /// The connection that has least to do. None: another one is to be opened.
    fn usable(&mut self) -> Result<Option<Link>, Failure> {
        if let Some(until) = self.unknown_until {
            if Instant::now() < until {
                return Err(Failure::Unknown);
            }
            self.unknown_until = None;
        }
        self.links.retain(|link| !link.queue.is_closed());
        let least = self.links.iter().min_by_key(|link| link.load.load(Ordering::Relaxed));
        let is_enough =
            |link: &Link| self.links.len() == LINKS_MAX || link.load.load(Ordering::Relaxed) < LOAD_MAX;
        Ok(least.filter(|link| is_enough(link)).cloned())
    }
}

/// Counts a request for as long as it is under way.
struct Load<'a>(&'a AtomicUsize);

impl<'a> Load<'a> {
    fn raise(load: &'a AtomicUsize) -> Self {
        load.fetch_add(1, Ordering::Relaxed);
        Self(load)
    }
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Connects, and agrees on the protocol. Gives what was read beyond that, too.
async fn open(authority: &str) -> Result<(TcpStream, BytesMut), Failure> {
    let connect = |error: std::io::Error| Failure::Connect(error.to_string());
    let mut stream = TcpStream::connect(authority).await.map_err(connect)?;
    stream.set_nodelay(true).map_err(connect)?;
    let wish = format!(
        "OPTIONS * HTTP/1.1\r\nhost: {authority}\r\nconnection: upgrade\r\nupgrade: {PROTOCOL}\r\n\r\n"
    );
    stream.write_all(wish.as_bytes()).await.map_err(connect)?;
    let mut input = BytesMut::new();
    let ends = |input: &BytesMut| input.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
    let head_bytes = loop {
        if let Some(end) = ends(&input) {
            break end;
        }
        // Who ends the connection here did not like the question.
        if input.len() > GREETING_BYTES_MAX || stream.read_buf(&mut input).await.map_err(connect)? == 0 {
            return Err(Failure::Unknown);
        }
    };
    let head = input.split_to(head_bytes);
    let text = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let mut lines = text.split("\r\n");
    let agrees = lines.next().is_some_and(|line| line.starts_with("http/1.1 101"))
        && lines.any(|line| line.strip_prefix("upgrade:").is_some_and(|name| name.trim() == PROTOCOL));
    if !agrees {
        return Err(Failure::Unknown);
    }
    // The answer to the question itself comes first.
    loop {
        match take_answer(&mut input, GREETING_BYTES_MAX) {
            Ok(Some(_)) => return Ok((stream, input)),
            Ok(None) if stream.read_buf(&mut input).await.map_err(connect)? > 0 => {}
            _ => return Err(Failure::Connect("the server does not keep to the protocol".to_owned())),
        }
    }
}

/// A request that was sent, or is about to be.
struct Waiting {
    since: Instant,
    answer: oneshot::Sender<Result<WholeAnswer, Failure>>,
}

struct Connection {
    stream: TcpStream,
    input: BytesMut,
    output: BytesMut,
    asks: mpsc::Receiver<Ask>,
    /// In the order in which they will be answered.
    waiting: VecDeque<Waiting>,
    limits: Limits,
}

impl Connection {
    fn new(stream: TcpStream, input: BytesMut, asks: mpsc::Receiver<Ask>, limits: Limits) -> Self {
        Self { stream, input, output: BytesMut::new(), asks, waiting: VecDeque::new(), limits }
    }

    /// Works until nobody has anything to ask any more, or the connection ends.
    async fn run(mut self) {
        let mut look = tokio::time::interval(LOOK_AFTER);
        let failure = loop {
            tokio::select! {
                biased;
                ended = poll_fn(|context| self.poll(context)) => match ended {
                    Some(failure) => break failure,
                    None => return,
                },
                _ = look.tick() => {
                    let is_late = |waiting: &Waiting| waiting.since.elapsed() >= self.limits.timeout;
                    // They are answered in order: who waits for the first waits for all.
                    if self.waiting.front().is_some_and(is_late) {
                        break Failure::Timeout;
                    }
                }
            }
        };
        self.asks.close();
        for Waiting { since, answer } in self.waiting {
            let is_late = since.elapsed() >= self.limits.timeout;
            let failure = match &failure {
                Failure::Timeout if !is_late => Failure::Broken("another answer took too long".to_owned()),
                failure => failure.clone(),
            };
            // Who does not wait any more does not mind.
            let _ = answer.send(Err(failure));
        }
    }

    /// Does all that can be done now. Ends with nothing, or with what went wrong.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Failure>> {
        loop {
            let asked = self.take(context);
            let moved = self
                .write(context)
                .and_then(|wrote| self.read(context).map(|read| wrote || read))
                .and_then(|moved| self.answer().map(|()| moved));
            match (asked, moved) {
                (_, Err(reason)) => return Poll::Ready(Some(Failure::Broken(reason))),
                (Poll::Ready(false), Ok(_)) if self.waiting.is_empty() => return Poll::Ready(None),
                (Poll::Ready(true), Ok(_)) | (_, Ok(true)) => {}
                _ => return Poll::Pending,
            }
        }
    }

    /// Takes what is asked. `Ready(false)`: nobody will ask any more.
    fn take(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        let mut taken = false;
        while self.waiting.len() < IN_FLIGHT_MAX && self.output.len() < OUTPUT_BYTES_MAX {
            match self.asks.poll_recv(context) {
                Poll::Ready(Some(Ask { message: Message { head, body }, answer })) => {
                    taken = true;
                    self.output.reserve(head.len() + body.len() + 64);
                    self.output.extend_from_slice(&head);
                    put_length(&mut self.output, body.len());
                    self.output.extend_from_slice(&body);
                    self.waiting.push_back(Waiting { since: Instant::now(), answer });
                }
                Poll::Ready(None) => return Poll::Ready(taken),
                Poll::Pending => break,
            }
        }
        if taken { Poll::Ready(true) } else { Poll::Pending }
    }

    fn write(&mut self, context: &mut Context<'_>) -> Result<bool, String> {
        if self.output.is_empty() {
            return Ok(false);
        }
        match Pin::new(&mut self.stream).poll_write(context, &self.output) {
            Poll::Ready(Ok(0)) => Err("the connection takes nothing".to_owned()),
            Poll::Ready(Ok(bytes)) => {
                self.output.advance(bytes);
                Ok(true)
            }
            Poll::Ready(Err(error)) => Err(error.to_string()),
            Poll::Pending => Ok(false),
        }
    }

    fn read(&mut self, context: &mut Context<'_>) -> Result<bool, String> {
        self.input.reserve(READ_BYTES / 4);
        match pin!(self.stream.read_buf(&mut self.input)).poll(context) {
            Poll::Ready(Ok(0)) => Err("the server has closed the connection".to_owned()),
            Poll::Ready(Ok(_)) => Ok(true),
            Poll::Ready(Err(error)) => Err(error.to_string()),
            Poll::Pending => Ok(false),
        }
    }

    /// Passes on the answers that are whole.
    fn answer(&mut self) -> Result<(), String> {
        while !self.input.is_empty() {
            match take_answer(&mut self.input, self.limits.reply_bytes_max) {
                Ok(Some(answer)) => {
                    let waiting = self.waiting.pop_front().ok_or("an answer that nobody has asked for")?;
                    // Who does not wait any more has gone away.
                    let _ = waiting.answer.send(Ok(answer));
                }
                Ok(None) => break,
                Err(error) => return Err(format!("not an answer: {error:?}")),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::{Drain, Handler, Listen, Request, Response, Server, ServerOptions};

    struct Echo;

    impl Handler for Echo {
        async fn handle(&self, request: Request) -> Response {
            // Later ones are often ready before earlier ones.
            if request.body.len().is_multiple_of(2) {
                tokio::task::yield_now().await;
            }
            Response::bytes(200, "", request.body)
        }
    }

    fn client(port: u16) -> Concurrent {
        let limits = Limits {
            connect_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(20),
            reply_bytes_max: 1_000,
        };
        Concurrent::new(format!("127.0.0.1:{port}").into(), limits)
    }

    fn message(body: &str) -> Message {
        let head = Bytes::from_static(b"POST /x HTTP/1.1\r\nhost: x\r\n");
        Message { head, body: Bytes::copy_from_slice(body.as_bytes()) }
    }

    #[tokio::test]
    async fn everybody_gets_the_answer_to_the_own_request_over_a_few_connections() {
        let server = Server::bind(Listen::localhost(0)).await.unwrap();
        let (stats, drain) = (server.stats(), Drain::new());
        let asked = client(server.port());
        let serving = tokio::spawn(server.serve(Arc::new(Echo), ServerOptions::default(), drain.clone()));
        let asking = (0..600).map(|number| {
            let asked = asked.clone();
            tokio::spawn(async move {
                let body = "x".repeat(number % 7) + &number.to_string();
                let answer = asked.ask(message(&body)).await.unwrap();
                assert_eq!((answer.status, &answer.body[..]), (200, body.as_bytes()));
            })
        });
        for done in asking.collect::<Vec<_>>() {
            done.await.unwrap();
        }
        let stats = stats.snapshot();
        assert!(stats.connections_accepted <= LINKS_MAX as u64, "{stats:?}");
        assert!(matches!(asked.ask(message(&"x".repeat(1_001))).await, Err(Failure::Broken(_))), "too large");
        assert_eq!(asked.ask(message("small")).await.unwrap().status, 200);
        drain.trigger();
        serving.await.unwrap();
        assert!(matches!(asked.ask(message("gone")).await, Err(Failure::Connect(_))));
    }

    /// Takes a connection, agrees to the protocol, and reads so many requests of the body `{}`.
    async fn accept(listener: &TcpListener, requests: usize) -> TcpStream {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut read = Vec::new();
        while !read.ends_with(b"\r\n\r\n") {
            assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0);
        }
        let agreed = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: batzen-concurrent\r\n\r\n\
                      HTTP/1.1 204 No Content\r\n\r\n";
        stream.write_all(agreed.as_bytes()).await.unwrap();
        read.clear();
        while read.windows(2).filter(|two| two == b"{}").count() < requests {
            assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0);
        }
        stream
    }

    #[tokio::test]
    async fn what_a_lost_connection_leaves_open_is_asked_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let asked = client(listener.local_addr().unwrap().port());
        let serving = tokio::spawn(async move {
            let mut first = accept(&listener, 2).await;
            first
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n1HTTP/1.1 200 OK\r\n")
                .await
                .unwrap();
            drop(first);
            let mut second = accept(&listener, 1).await;
            second.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n2").await.unwrap();
            second
        });
        let (one, two) = tokio::join!(asked.ask(message("{}")), asked.ask(message("{}")));
        assert_eq!((&one.unwrap().body[..], &two.unwrap().body[..]), (&b"1"[..], &b"2"[..]));
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn a_server_that_never_holds_is_given_up_and_a_stranger_is_asked_no_more() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let asked = client(listener.local_addr().unwrap().port());
        let serving = tokio::spawn(async move {
            for _ in 0..ATTEMPTS_MAX {
                drop(accept(&listener, 1).await);
            }
            let (mut stranger, _) = listener.accept().await.unwrap();
            stranger.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            (listener, stranger)
        });
        assert!(matches!(asked.ask(message("{}")).await, Err(Failure::Broken(_))));
        assert!(matches!(asked.ask(message("{}")).await, Err(Failure::Unknown)));
        let (_listener, _stranger) = serving.await.unwrap();
        // Without a connection: nobody would accept it.
        assert!(matches!(asked.ask(message("{}")).await, Err(Failure::Unknown)));
    }
}
