//! One connection: the protocol of PostgreSQL, synchronous, with statements in pipelines.
//!
//! A pipeline is written at once and ends with one `Sync`. The server runs it as one implicit transaction: a failing statement
//! undoes what went before, and skips what comes after. So a commit needs neither `BEGIN` nor `COMMIT`, no connection is
//! ever idle in a transaction, and a batch is one round trip, the parsing of its new statements included.
//!
//! Not an asynchronous client: whoever uses the store waits for it anyway, on a thread of its own, and what arrives is decoded
//! where it is needed, without a thread or a queue in between.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, BytesMut};
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::frontend;
use rustls::pki_types::ServerName;

use crate::error::ServerError;
use crate::socket::Socket;
use crate::target::{Place, Tls};
use crate::values::{Columns, Params};
use crate::{PgError, Target};

/// A message larger than this is no answer to anything that is asked here.
const MESSAGE_BYTES_MAX: usize = 1 << 30;

/// A statement with fixed text. Each connection that uses it has it parsed once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Statement {
    /// Its number, unique in the process: it is its name on every connection.
    pub number: u32,
    pub sql: String,
}

impl Statement {
    pub fn new(sql: String) -> Self {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        Self { number: NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed), sql }
    }
}

/// Shows a row of an answer: the number of the statement within the pipeline, and the row's bytes.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(usize, Columns<'_>) -> Result<(), PgError>;

/// A connection to a server.
pub struct Connection {
    socket: Socket,
    parsed: BTreeSet<u32>,
    /// Statements whose parsing is under way, in order.
    parsing: VecDeque<u32>,
    /// Whether it is of no use any more.
    broken: bool,
    standby: bool,
    /// Whether the server gave up waiting for its synchronous standby in the last pipeline.
    unsynced: bool,
    /// How long an answer may take.
    timeout: Duration,
    process_id: i32,
    notifications: VecDeque<String>,
    pub(crate) opened: Instant,
    /// Pipelines so far.
    pub(crate) uses: u64,
    /// Statements so far.
    pub(crate) statements: u64,
}

impl Connection {
    /// Connects to the first place that answers (and takes writes, if that is asked for).
    ///
    /// # Errors
    /// When none does: why the last one did not.
    pub fn open(target: &Target) -> Result<Self, PgError> {
        let mut last = PgError::Config("no host is named".into());
        for place in &target.places {
            match Self::open_at(target, place) {
                Ok(connection) => return Ok(connection),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn open_at(target: &Target, place: &Place) -> Result<Self, PgError> {
        let deadline = Instant::now() + target.connect_timeout;
        let socket = match place {
            Place::Unix(directory, port) => {
                let path = directory.join(format!(".s.PGSQL.{port}"));
                let opened = UnixStream::connect(&path).and_then(Socket::unix);
                opened.map_err(|error| PgError::io(&format!("connect to {}", path.display()), error))?
            }
            Place::Tcp(host, port) => {
                let fail = |error| PgError::io(&format!("connect to {host}:{port}"), error);
                let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
                let mut opened = None;
                for address in (host.as_str(), *port).to_socket_addrs().map_err(fail)? {
                    match TcpStream::connect_timeout(&address, target.connect_timeout) {
                        Ok(stream) => {
                            opened = Some(stream);
                            break;
                        }
                        Err(error) => last = error,
                    }
                }
                let stream = opened.ok_or_else(|| fail(last))?;
                let mut socket = Socket::tcp(stream).map_err(fail)?;
                start_tls(&mut socket, target, host, deadline)?;
                socket
            }
        };
        let mut connection = Self {
            socket,
            parsed: BTreeSet::new(),
            parsing: VecDeque::new(),
            broken: false,
            standby: false,
            unsynced: false,
            timeout: target.connect_timeout,
            process_id: 0,
            notifications: VecDeque::new(),
            opened: Instant::now(),
            uses: 0,
            statements: 0,
        };
        connection.start(target, deadline)?;
        connection.timeout = target.answer_timeout.unwrap_or(target.connect_timeout);
        if target.read_write && connection.standby {
            return Err(PgError::Server(Box::new(ServerError {
                severity: "FATAL".into(),
                code: "25006".into(),
                message: "this server is a standby, or read-only".into(),
                detail: String::new(),
            })));
        }
        Ok(connection)
    }

    fn start(&mut self, target: &Target, deadline: Instant) -> Result<(), PgError> {
        let protocol = |error: io::Error| PgError::protocol(error.to_string());
        let mut parameters = vec![
            ("user", target.user.as_str()),
            ("database", &target.database),
            ("application_name", &target.application),
            ("client_encoding", "UTF8"),
        ];
        if let Some(options) = &target.options {
            parameters.push(("options", options));
        }
        frontend::startup_message(parameters, &mut self.socket.outgoing).map_err(protocol)?;
        let password = || {
            target.password.as_deref().ok_or_else(|| PgError::Config("the server asks for a password".into()))
        };
        let mut scram: Option<ScramSha256> = None;
        loop {
            let message = self.next(Some(deadline))?;
            let mut body = message.body.clone();
            match message.tag {
                b'R' if body.len() >= 4 => match body.get_i32() {
                    0 => {}
                    3 => {
                        // In the clear only under TLS or on the same machine: nobody else may ask for it.
                        if !self.socket.is_tls()
                            && !target.places.iter().all(|place| matches!(place, Place::Unix(..)))
                        {
                            return Err(PgError::Config(
                                "the server wants the password unencrypted: use TLS".into(),
                            ));
                        }
                        frontend::password_message(password()?, &mut self.socket.outgoing)
                            .map_err(protocol)?;
                    }
                    5 if body.len() == 4 => {
                        let salt = [body[0], body[1], body[2], body[3]];
                        let hash = md5_hash(target.user.as_bytes(), password()?, salt);
                        frontend::password_message(hash.as_bytes(), &mut self.socket.outgoing)
                            .map_err(protocol)?;
                    }
                    10 => {
                        if !body[..].split(|byte| *byte == 0).any(|name| name == SCRAM_SHA_256.as_bytes()) {
                            return Err(PgError::protocol(
                                "no way to prove the password that both sides know",
                            ));
                        }
                        let client = ScramSha256::new(password()?, ChannelBinding::unsupported());
                        let out = &mut self.socket.outgoing;
                        frontend::sasl_initial_response(SCRAM_SHA_256, client.message(), out)
                            .map_err(protocol)?;
                        scram = Some(client);
                    }
                    11 => {
                        let scram = scram.as_mut().ok_or_else(|| PgError::protocol("SASL was not begun"))?;
                        scram.update(&body).map_err(protocol)?;
                        frontend::sasl_response(scram.message(), &mut self.socket.outgoing)
                            .map_err(protocol)?;
                    }
                    12 => {
                        let scram = scram.as_mut().ok_or_else(|| PgError::protocol("SASL was not begun"))?;
                        scram.finish(&body).map_err(protocol)?;
                    }
                    kind => {
                        return Err(PgError::protocol(format!(
                            "authentication of kind {kind} is not supported"
                        )));
                    }
                },
                b'K' if body.len() >= 8 => self.process_id = body.get_i32(),
                b'E' => return Err(PgError::Server(Box::new(server_error(&body)))),
                b'v' => {
                    return Err(PgError::protocol("the server does not speak version 3.0 of the protocol"));
                }
                b'Z' => return Ok(()),
                other => {
                    return Err(PgError::protocol(format!("message {:?} at the start", char::from(other))));
                }
            }
        }
    }

    /// Whether it is of no use any more.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Whether the last pipeline was committed here, but perhaps not at the synchronous standby that it should have waited for.
    pub(crate) fn was_unsynced(&self) -> bool {
        self.unsynced
    }

    /// How long an answer may take from here on.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// The server's process that serves this connection.
    #[must_use]
    pub fn process_id(&self) -> i32 {
        self.process_id
    }

    /// Runs a script: several statements, without answers.
    ///
    /// # Errors
    /// The first statement's that fails; those after it were not run.
    pub fn script(&mut self, sql: &str) -> Result<(), PgError> {
        self.query_text(sql).map(|_| ())
    }

    /// Runs a script and gives all rows of its answers, as text.
    ///
    /// # Errors
    /// As [`Connection::script`].
    pub fn query_text(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, PgError> {
        frontend::query(sql, &mut self.socket.outgoing)
            .map_err(|error| PgError::protocol(error.to_string()))?;
        self.statements += 1;
        let mut rows = Vec::new();
        self.finish(&mut |_, mut columns| {
            let mut row = Vec::with_capacity(columns.left());
            while columns.left() > 0 {
                let text = columns.next_or_null()?.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
                row.push(text);
            }
            rows.push(row);
            Ok(())
        })?;
        Ok(rows)
    }

    /// Adds a statement to the pipeline. Parameters and answers are binary.
    pub(crate) fn queue(&mut self, statement: &Statement, bind: impl FnOnce(&mut Params<'_>)) {
        let out = &mut self.socket.outgoing;
        let name = format!("s{}\0", statement.number);
        if !self.parsed.contains(&statement.number) && !self.parsing.contains(&statement.number) {
            self.parsing.push_back(statement.number);
            message(out, b'P', |out| {
                out.put_slice(name.as_bytes());
                out.put_slice(statement.sql.as_bytes());
                // The end of the text, and no types: the text says them.
                out.put_slice(&[0, 0, 0]);
            });
        }
        message(out, b'B', |out| {
            out.put_u8(0);
            out.put_slice(name.as_bytes());
            out.put_slice(&[0, 1, 0, 1]);
            let count_at = out.len();
            out.put_u16(0);
            let mut params = Params::new(out);
            bind(&mut params);
            let count = params.count();
            out[count_at..count_at + 2].copy_from_slice(&count.to_be_bytes());
            out.put_slice(&[0, 1, 0, 1]);
        });
        message(out, b'E', |out| {
            out.put_u8(0);
            out.put_i32(0);
        });
        self.statements += 1;
    }

    /// Runs the pipeline, and shows every row.
    ///
    /// # Errors
    /// The first statement's that fails: then none of the pipeline has taken effect. After [`PgError::Io`] nobody knows.
    pub(crate) fn run(&mut self, sink: Sink<'_>) -> Result<(), PgError> {
        frontend::sync(&mut self.socket.outgoing);
        self.finish(sink)
    }

    /// The same for one statement in the open transaction of which at most `rows_max` rows are shown, by portal: whether
    /// more are left. To be called again with the same statement until none are.
    pub(crate) fn fetch(&mut self, portal: &str, rows_max: i32, sink: Sink<'_>) -> Result<bool, PgError> {
        let out = &mut self.socket.outgoing;
        frontend::execute(portal, rows_max, out).map_err(|error| PgError::protocol(error.to_string()))?;
        frontend::sync(out);
        let mut suspended = false;
        self.finish_noting(sink, &mut suspended)?;
        Ok(suspended)
    }

    /// Makes a portal in the open transaction that gives a statement's rows bit by bit.
    pub(crate) fn open_portal(&mut self, portal: &str, sql: &str) -> Result<(), PgError> {
        let protocol = |error: io::Error| PgError::protocol(error.to_string());
        let out = &mut self.socket.outgoing;
        frontend::parse("", sql, [], out).map_err(protocol)?;
        message(out, b'B', |out| {
            out.put_slice(portal.as_bytes());
            // The end of the portal's name, the unnamed statement; no parameters; answers binary.
            out.put_slice(&[0, 0, 0, 0, 0, 0, 0, 1, 0, 1]);
        });
        frontend::sync(out);
        self.finish(&mut |_, _| Ok(()))
    }

    fn finish(&mut self, sink: Sink<'_>) -> Result<(), PgError> {
        self.finish_noting(sink, &mut false)
    }

    fn finish_noting(&mut self, sink: Sink<'_>, suspended: &mut bool) -> Result<(), PgError> {
        self.uses += 1;
        self.unsynced = false;
        let deadline = Some(Instant::now() + self.timeout);
        let mut failed = None;
        let mut number = 0;
        loop {
            let message = match self.next(deadline) {
                Ok(message) => message,
                // What the server said last explains more than that the connection then ended.
                Err(error) => return Err(failed.filter(PgError::ends_connection).unwrap_or(error)),
            };
            match message.tag {
                b'D' => {
                    if failed.is_none()
                        && let Err(error) =
                            Columns::new(&message.body).and_then(|columns| sink(number, columns))
                    {
                        failed = Some(error);
                    }
                }
                b'C' | b'I' => number += 1,
                b's' => *suspended = true,
                b'1' => {
                    if let Some(statement) = self.parsing.pop_front() {
                        self.parsed.insert(statement);
                    }
                }
                b'2' | b'T' | b'n' | b't' | b'3' => {}
                b'E' => {
                    let error = PgError::Server(Box::new(server_error(&message.body)));
                    // 0A000: a statement's columns have changed under it; 26000: it is not there (behind a pooler).
                    self.broken |= error.ends_connection() || matches!(error.code(), Some("0A000" | "26000"));
                    failed.get_or_insert(error);
                }
                b'Z' => {
                    self.parsing.clear();
                    return failed.map_or(Ok(()), Err);
                }
                other => {
                    self.broken = true;
                    return Err(PgError::protocol(format!("message {:?}", char::from(other))));
                }
            }
        }
    }

    /// Waits for notifications, at most until then or until `wake` can be read; gives their payloads.
    pub(crate) fn notifications(
        &mut self,
        until: Instant,
        wake: BorrowedFd<'_>,
    ) -> Result<Vec<String>, PgError> {
        loop {
            // What came behind an answer is here already.
            while let Some(message) = self.parse()? {
                if message.tag == b'E' {
                    self.broken = true;
                    return Err(PgError::Server(Box::new(server_error(&message.body))));
                }
            }
            if !self.notifications.is_empty() {
                return Ok(self.notifications.drain(..).collect());
            }
            match self.socket.wait_or(Some(until), Some(wake)) {
                Ok(true) => {}
                Ok(false) => return Ok(Vec::new()),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return Ok(Vec::new()),
                Err(error) => return Err(self.lost(error)),
            }
        }
    }

    fn lost(&mut self, error: io::Error) -> PgError {
        self.broken = true;
        PgError::io("talk to the server", error)
    }

    /// The next message that is an answer.
    fn next(&mut self, deadline: Option<Instant>) -> Result<Message, PgError> {
        loop {
            if let Some(message) = self.parse()? {
                return Ok(message);
            }
            if let Err(error) = self.socket.wait(deadline) {
                return Err(self.lost(error));
            }
        }
    }

    /// The next message that is an answer, if it is here; takes in what the server says of its own accord.
    fn parse(&mut self) -> Result<Option<Message>, PgError> {
        loop {
            let received = &mut self.socket.received;
            let Some(header) = received.get(..5) else { return Ok(None) };
            let tag = header[0];
            let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
            if !(4..MESSAGE_BYTES_MAX).contains(&length) {
                self.broken = true;
                return Err(PgError::protocol(format!("a message of {length} bytes")));
            }
            if received.len() < length + 1 {
                received.reserve(length + 1 - received.len());
                return Ok(None);
            }
            let mut body = received.split_to(length + 1);
            body.advance(5);
            match tag {
                // The routine's name tells, in whatever language the message is.
                b'N' => {
                    self.unsynced |=
                        body[..].split(|byte| *byte == 0).any(|field| field == b"RSyncRepWaitForLSN");
                }
                b'A' => {
                    // Process, channel, payload.
                    let mut parts = body.get(4..).unwrap_or_default().split(|byte| *byte == 0);
                    if let Some(payload) = parts.nth(1) {
                        self.notifications.push_back(String::from_utf8_lossy(payload).into_owned());
                    }
                }
                b'S' => {
                    let mut parts = body[..].split(|byte| *byte == 0);
                    let (name, value) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
                    if [b"in_hot_standby".as_slice(), b"default_transaction_read_only"].contains(&name)
                        && value == b"on"
                    {
                        self.standby = true;
                    }
                }
                _ => return Ok(Some(Message { tag, body })),
            }
        }
    }
}

/// Says goodbye, so that the server does not log a lost connection.
impl Drop for Connection {
    fn drop(&mut self) {
        if !self.broken {
            self.socket.outgoing.clear();
            frontend::terminate(&mut self.socket.outgoing);
            // Sends, and sees at once that nothing arrives.
            let _ = self.socket.wait(Some(Instant::now()));
        }
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "connection served by process {}", self.process_id)
    }
}

fn start_tls(socket: &mut Socket, target: &Target, host: &str, deadline: Instant) -> Result<(), PgError> {
    let Some(config) = &target.tls_config else { return Ok(()) };
    let fail = |error| PgError::io(&format!("TLS with {host}"), error);
    frontend::ssl_request(&mut socket.outgoing);
    socket.wait(Some(deadline)).map_err(fail)?;
    match socket.received.get_u8() {
        b'S' => {
            let name = ServerName::try_from(host.to_owned())
                .map_err(|_| PgError::Config(format!("{host} is no name for a certificate")))?;
            socket.start_tls(config.clone(), name).map_err(fail)
        }
        _ if target.tls == Tls::Prefer => Ok(()),
        _ => Err(PgError::Config(format!("{host} has no TLS, which sslmode asks for"))),
    }
}

struct Message {
    tag: u8,
    body: BytesMut,
}

/// Writes a message with its length.
fn message(out: &mut BytesMut, tag: u8, body: impl FnOnce(&mut BytesMut)) {
    out.put_u8(tag);
    let at = out.len();
    out.put_u32(0);
    body(out);
    let length = u32::try_from(out.len() - at).expect("change sets are limited far below 4 GiB");
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

fn server_error(body: &[u8]) -> ServerError {
    let mut error = ServerError::default();
    for field in body.split(|byte| *byte == 0) {
        let Some((kind, text)) = field.split_first() else { continue };
        let text = String::from_utf8_lossy(text).into_owned();
        match kind {
            // The severity in English, whatever language the server speaks.
            b'V' => error.severity = text,
            b'C' => error.code = text,
            b'M' => error.message = text,
            b'D' => error.detail = text,
            _ => {}
        }
    }
    // Who paid with which coin belongs in no log.
    if error.code.starts_with("22") || error.code.starts_with("23") {
        error.detail.clear();
    }
    error
}
