//! One connection: PostgreSQL's protocol, synchronous, with statements in pipelines.
//!
//! A pipeline is written at once and ends with one `Sync`. The server runs it as one implicit transaction: if
//! a statement fails, earlier ones are rolled back and later ones skipped. So a commit needs neither `BEGIN`
//! nor `COMMIT`, no connection is ever idle in a transaction, and a batch takes one round trip, including the
//! parsing of new statements.
//!
//! The client is synchronous because each caller waits on its own thread anyway. Answers are decoded on that
//! thread, without another thread or a queue in between.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, BytesMut};
use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::backend::{ErrorFields, Header, Message};
use postgres_protocol::message::frontend;
use rustls::pki_types::ServerName;

use super::error::{PgError, ServerError};
use super::socket::Socket;
use super::target::{ServerAddress, Target, Tls};
use super::values::{Columns, Params};

/// All answers to this program's statements are smaller.
const MESSAGE_BYTES_MAX: i32 = 1 << 30;

/// A statement with fixed text. It is parsed once per connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Statement {
    /// Its number, unique in the process, from which its name on every connection is made.
    pub number: u32,
    pub sql: String,
}

impl Statement {
    pub(crate) fn new(sql: String) -> Self {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        Self { number: NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed), sql }
    }
}

/// Receives a row of an answer: the number of the statement within the pipeline, and the row's columns.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(usize, Columns<'_>) -> Result<(), PgError>;

/// Notes on the answers to a pipeline besides its rows.
#[derive(Default)]
struct Noted<'a> {
    /// Whether a portal has more rows.
    suspended: bool,
    /// Number of rows that each statement has returned or changed, if that is wanted.
    counts: Option<&'a mut Vec<u64>>,
}

/// A connection to a server.
pub struct Connection {
    socket: Socket,
    parsed: BTreeSet<u32>,
    /// Statements that are being parsed, in order. `None`: one that is sent only once.
    parsing: VecDeque<Option<u32>>,
    /// Whether the connection can no longer be used.
    broken: bool,
    standby: bool,
    /// Whether the server stopped waiting for its synchronous standby in the last pipeline.
    unsynced: bool,
    /// Whether Citus committed the last pipeline, but lost a node that has prepared its part.
    is_partial: bool,
    /// Time that an answer may take.
    timeout: Duration,
    process_id: i32,
    notifications: VecDeque<String>,
    pub(crate) opened: Instant,
    /// The number of pipelines so far.
    pub(crate) uses: u64,
    /// The number of statements so far.
    pub(crate) statements: u64,
}

impl Connection {
    /// Connects to the first place that answers (and accepts writes, if required).
    ///
    /// # Errors
    /// If none answers: the error of the last place.
    pub fn open(target: &Target) -> Result<Self, PgError> {
        let mut last = PgError::Config("no host is given".into());
        for place in &target.places {
            match Self::open_at(target, place) {
                Ok(connection) => return Ok(connection),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Connects, and makes sure that the connection has a session of the server to itself: locks, settings and prepared
    /// statements belong to a session.
    ///
    /// # Errors
    /// As [`Connection::open`]; and [`PgError::Config`] if a pooler is in between that gives a session to another client
    /// after each transaction.
    pub fn open_session(target: &Target) -> Result<Self, PgError> {
        /// A pooler prefers the session that was used last. Others may use it meanwhile, so ask more than once.
        const ROUNDS: u32 = 5;
        let mut connection = Self::open(target)?;
        // A pooler invents the process that it names at login.
        if connection.session()? == i64::from(connection.process_id) {
            return Ok(connection);
        }
        let mut other = Self::open(target)?;
        let first = connection.session()?;
        for _ in 0..ROUNDS {
            if other.session()? == first || connection.session()? != first {
                return Err(PgError::Config(
                    "the database is behind a pooler that gives each transaction another session (such as PgBouncer with \
                     pool_mode = transaction), where locks and prepared statements are lost: set pool_mode = session for this \
                     database, or give the address of PostgreSQL itself"
                        .into(),
                ));
            }
        }
        Ok(connection)
    }

    /// The server process that has this session.
    pub(crate) fn session(&mut self) -> Result<i64, PgError> {
        let rows = self.query_text("SELECT pg_backend_pid()")?;
        let id = rows.first().and_then(|row| row.first()?.as_deref()?.parse().ok());
        id.ok_or_else(|| PgError::protocol("a session without a process"))
    }

    fn open_at(target: &Target, place: &ServerAddress) -> Result<Self, PgError> {
        let deadline = Instant::now() + target.connect_timeout;
        let socket = match place {
            ServerAddress::Unix(directory, port) => {
                let path = directory.join(format!(".s.PGSQL.{port}"));
                let opened = UnixStream::connect(&path).and_then(Socket::unix);
                opened.map_err(|error| PgError::io(&format!("connect to {}", path.display()), error))?
            }
            ServerAddress::Tcp(host, port) => {
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
            is_partial: false,
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
                ..ServerError::default()
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
            // Settings that change what a statement or an answer means, against those of the role or the database. Poolers
            // know them, too.
            ("standard_conforming_strings", "on"),
            ("DateStyle", "ISO, MDY"),
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
            match self.next(Some(deadline))? {
                Message::AuthenticationOk => {}
                Message::AuthenticationCleartextPassword => {
                    // Without TLS, send it only to a server on this machine.
                    let is_local = target.places.iter().all(|place| matches!(place, ServerAddress::Unix(..)));
                    if !self.socket.is_tls() && !is_local {
                        return Err(PgError::Config(
                            "the server wants the password unencrypted: use TLS".into(),
                        ));
                    }
                    frontend::password_message(password()?, &mut self.socket.outgoing).map_err(protocol)?;
                }
                Message::AuthenticationMd5Password(body) => {
                    let hash = md5_hash(target.user.as_bytes(), password()?, body.salt());
                    frontend::password_message(hash.as_bytes(), &mut self.socket.outgoing)
                        .map_err(protocol)?;
                }
                Message::AuthenticationSasl(body) => {
                    if !body.mechanisms().any(|name| Ok(name == SCRAM_SHA_256)).map_err(protocol)? {
                        return Err(PgError::protocol("SCRAM-SHA-256 is not among its methods"));
                    }
                    let client = ScramSha256::new(password()?, ChannelBinding::unsupported());
                    let out = &mut self.socket.outgoing;
                    frontend::sasl_initial_response(SCRAM_SHA_256, client.message(), out)
                        .map_err(protocol)?;
                    scram = Some(client);
                }
                Message::AuthenticationSaslContinue(body) => {
                    let scram = scram.as_mut().ok_or_else(|| PgError::protocol("SASL was not begun"))?;
                    scram.update(body.data()).map_err(protocol)?;
                    frontend::sasl_response(scram.message(), &mut self.socket.outgoing).map_err(protocol)?;
                }
                Message::AuthenticationSaslFinal(body) => {
                    let scram = scram.as_mut().ok_or_else(|| PgError::protocol("SASL was not begun"))?;
                    scram.finish(body.data()).map_err(protocol)?;
                }
                Message::AuthenticationGss
                | Message::AuthenticationGssContinue(_)
                | Message::AuthenticationKerberosV5
                | Message::AuthenticationScmCredential
                | Message::AuthenticationSspi => {
                    return Err(PgError::protocol("it authenticates neither by password nor by SCRAM"));
                }
                Message::BackendKeyData(body) => self.process_id = body.process_id(),
                Message::ErrorResponse(body) => return Err(server_error(body.fields())),
                Message::ReadyForQuery(_) => return Ok(()),
                _ => return Err(PgError::protocol("an answer before any question")),
            }
        }
    }

    /// Returns whether the connection can no longer be used.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Returns whether the last pipeline was committed on this server, but perhaps not on its synchronous
    /// standby.
    pub(crate) fn was_unsynced(&self) -> bool {
        self.unsynced
    }

    /// Returns whether Citus committed the last pipeline, but a part of it is not visible yet on a node that
    /// it lost.
    pub(crate) fn was_partial(&self) -> bool {
        self.is_partial
    }

    /// Sets how long an answer may take.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// The id of the server process of this connection.
    #[must_use]
    pub fn process_id(&self) -> i32 {
        self.process_id
    }

    /// Runs several statements and discards their rows.
    ///
    /// # Errors
    /// The error of the first statement that fails. The statements after it were not run.
    pub fn script(&mut self, sql: &str) -> Result<(), PgError> {
        self.query_text(sql).map(|_| ())
    }

    /// Runs several statements and returns all their rows as text.
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
        if !self.parsed.contains(&statement.number) && !self.parsing.contains(&Some(statement.number)) {
            self.parsing.push_back(Some(statement.number));
            message(out, b'P', |out| {
                out.put_slice(name.as_bytes());
                out.put_slice(statement.sql.as_bytes());
                // The end of the text, and no parameter types, because the text has casts.
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

    /// Adds a statement without parameters to the pipeline that is not worth remembering.
    pub(crate) fn queue_once(&mut self, sql: &str) {
        self.parsing.push_back(None);
        let out = &mut self.socket.outgoing;
        message(out, b'P', |out| {
            // Without a name.
            out.put_u8(0);
            out.put_slice(sql.as_bytes());
            out.put_slice(&[0, 0, 0]);
        });
        message(out, b'B', |out| {
            // No names, no parameters; answers binary.
            out.put_slice(&[0, 0, 0, 0, 0, 0, 0, 1, 0, 1]);
        });
        message(out, b'E', |out| {
            out.put_u8(0);
            out.put_i32(0);
        });
        self.statements += 1;
    }

    /// Runs the pipeline and passes each row to `sink`.
    ///
    /// # Errors
    /// The error of the first statement that fails; then none of the pipeline has taken effect. After
    /// [`PgError::Io`] that is unknown.
    pub(crate) fn run(&mut self, sink: Sink<'_>) -> Result<(), PgError> {
        frontend::sync(&mut self.socket.outgoing);
        self.finish(sink)
    }

    /// Fetches at most `rows_max` rows from a portal in the open transaction. Returns whether more are left.
    pub(crate) fn fetch(&mut self, portal: &str, rows_max: i32, sink: Sink<'_>) -> Result<bool, PgError> {
        let out = &mut self.socket.outgoing;
        frontend::execute(portal, rows_max, out).map_err(|error| PgError::protocol(error.to_string()))?;
        frontend::sync(out);
        let mut noted = Noted::default();
        self.finish_noting(sink, &mut noted)?;
        Ok(noted.suspended)
    }

    /// Opens a portal in the open transaction, from which a statement's rows can be fetched in parts.
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
        self.finish_noting(sink, &mut Noted::default())
    }

    /// Runs the pipeline, discards its rows, and adds how many each statement has returned or changed.
    ///
    /// # Errors
    /// As [`Connection::run`].
    pub(crate) fn run_counting(&mut self, counts: &mut Vec<u64>) -> Result<(), PgError> {
        frontend::sync(&mut self.socket.outgoing);
        let mut noted = Noted { counts: Some(counts), ..Noted::default() };
        self.finish_noting(&mut |_, _| Ok(()), &mut noted)
    }

    fn finish_noting(&mut self, sink: Sink<'_>, noted: &mut Noted<'_>) -> Result<(), PgError> {
        self.uses += 1;
        self.unsynced = false;
        self.is_partial = false;
        let deadline = Some(Instant::now() + self.timeout);
        let mut failed = None;
        let mut number = 0;
        loop {
            let message = match self.next(deadline) {
                Ok(message) => message,
                // The server's last error explains more than the end of the connection.
                Err(error) => return Err(failed.filter(PgError::ends_connection).unwrap_or(error)),
            };
            match message {
                Message::DataRow(row) => {
                    if failed.is_none()
                        && let Err(error) = sink(number, Columns::of(&row))
                    {
                        failed = Some(error);
                    }
                }
                Message::CommandComplete(body) => {
                    number += 1;
                    if let Some(counts) = &mut noted.counts {
                        // `UPDATE 3`, `INSERT 0 3`.
                        let tag = body.tag().map_err(|error| PgError::protocol(error.to_string()))?;
                        counts.push(tag.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0));
                    }
                }
                Message::EmptyQueryResponse => number += 1,
                Message::PortalSuspended => noted.suspended = true,
                Message::ParseComplete => {
                    self.parsed.extend(self.parsing.pop_front().flatten());
                }
                Message::BindComplete
                | Message::RowDescription(_)
                | Message::NoData
                | Message::ParameterDescription(_)
                | Message::CloseComplete => {}
                Message::ErrorResponse(body) => {
                    let error = server_error(body.fields());
                    // The plans of this connection are outdated, or its statements do not exist (behind a
                    // pooler).
                    self.broken |= error.ends_connection() || error.is_outdated_plan();
                    failed.get_or_insert(error);
                }
                Message::ReadyForQuery(_) => {
                    self.parsing.clear();
                    return failed.map_or(Ok(()), Err);
                }
                _ => {
                    self.broken = true;
                    return Err(PgError::protocol("a message that answers no statement"));
                }
            }
        }
    }

    /// Waits for notifications until `until`, or until `wake` is readable. Returns their payloads.
    pub(crate) fn notifications(
        &mut self,
        until: Instant,
        wake: BorrowedFd<'_>,
    ) -> Result<Vec<String>, PgError> {
        loop {
            // Notifications after an answer have already arrived.
            while let Some(message) = self.parse()? {
                if let Message::ErrorResponse(body) = message {
                    self.broken = true;
                    return Err(server_error(body.fields()));
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

    /// The next message that is an answer, if it has arrived. Handles everything that the server sends on its
    /// own.
    fn parse(&mut self) -> Result<Option<Message>, PgError> {
        let parsed = self.parse_unasked();
        self.broken |= parsed.is_err();
        parsed.map_err(|error| PgError::protocol(error.to_string()))
    }

    fn parse_unasked(&mut self) -> io::Result<Option<Message>> {
        loop {
            let received = &mut self.socket.received;
            // The library would reserve space for any length that the server claims.
            let length = Header::parse(received)?.map_or(0, Header::len);
            if length > MESSAGE_BYTES_MAX {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("a message of {length} bytes"),
                ));
            }
            match Message::parse(received)? {
                Some(Message::NoticeResponse(body)) => {
                    // The name of the routine is the same in all languages of the server.
                    let mut fields = body.fields();
                    while let Some(field) = fields.next()? {
                        if field.type_() == b'R' {
                            self.unsynced |= field.value_bytes() == b"SyncRepWaitForLSN";
                            self.is_partial |= field.value_bytes() == b"FinishRemoteTransactionCommit";
                        }
                    }
                }
                Some(Message::NotificationResponse(body)) => {
                    self.notifications.push_back(body.message()?.to_owned());
                }
                Some(Message::ParameterStatus(body)) => {
                    let name = body.name()?;
                    let is_read_only = ["in_hot_standby", "default_transaction_read_only"].contains(&name);
                    self.standby |= is_read_only && body.value()? == "on";
                }
                answer => return Ok(answer),
            }
        }
    }
}

/// Ends the session, so that the server does not log a lost connection.
impl Drop for Connection {
    fn drop(&mut self) {
        if !self.broken {
            self.socket.outgoing.clear();
            frontend::terminate(&mut self.socket.outgoing);
            // Sends, and returns at once because nothing arrives.
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

/// Writes a message with its length.
fn message(out: &mut BytesMut, tag: u8, body: impl FnOnce(&mut BytesMut)) {
    out.put_u8(tag);
    let at = out.len();
    out.put_u32(0);
    body(out);
    let length = u32::try_from(out.len() - at).expect("change sets are limited far below 4 GiB");
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

fn server_error(mut fields: ErrorFields<'_>) -> PgError {
    let mut error = ServerError::default();
    // Skip the fields after one that cannot be read.
    while let Ok(Some(field)) = fields.next() {
        let text = || String::from_utf8_lossy(field.value_bytes()).into_owned();
        match field.type_() {
            // The severity in English, whatever language the server speaks.
            b'V' => error.severity = text(),
            b'C' => error.code = text(),
            b'M' => error.message = text(),
            b'D' => error.detail = text(),
            b'R' => error.routine = text(),
            _ => {}
        }
    }
    // The row, which shows who paid with which coin, must not reach a log.
    if error.code.starts_with("22") || error.code.starts_with("23") {
        error.detail.clear();
    }
    PgError::Server(Box::new(error))
}
