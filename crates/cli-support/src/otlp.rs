//! Spans of requests for an OpenTelemetry collector: OTLP over HTTP with JSON bodies (OpenTelemetry Protocol 1.x,
//! `/v1/traces`).
//!
//! A span is made from the log line of a request (`batzen_http`) or of a call to the bank, so it has the same
//! fields and as few secrets. Lines with the same correlation id are in the same trace. Spans are sent once a
//! second, and dropped while the collector does not take them: it must never hold up a request.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context as _;
use batzen_crypto::hash::sha512;
use batzen_http::client::{Client, ClientOptions};
use serde_json::{Value, json};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Spans that may wait. Further ones are dropped.
const SPANS_MAX: usize = 8_192;
/// The most spans in one request to the collector.
const BATCH_MAX: usize = 512;
/// Interval at which spans are sent.
const INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which a failure is reported.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// `SPAN_KIND_SERVER` and `SPAN_KIND_CLIENT`.
const SERVER: u8 = 2;
const CLIENT: u8 = 3;

/// Turns log lines of requests into spans.
pub(crate) struct Exporter {
    spans: SyncSender<Span>,
    dropped: &'static AtomicU64,
}

/// The fields of a log line.
#[derive(Default)]
struct Span {
    message: String,
    method: String,
    path: String,
    url: String,
    id: String,
    status: u64,
    micros: u64,
    ended: Option<SystemTime>,
}

impl Visit for Span {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "status" => self.status = value,
            "micros" => self.micros = value,
            _ => {}
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field.name(), format!("{value:?}"));
    }
}

impl Span {
    fn set(&mut self, name: &str, text: String) {
        match name {
            "message" => self.message = text,
            "method" => self.method = text,
            "path" => self.path = text,
            "url" => self.url = text,
            "id" => self.id = text,
            _ => {}
        }
    }

    /// Returns the kind of request that the line is about, if it is about one.
    fn kind(&self) -> Option<u8> {
        match self.message.as_str() {
            "request" => Some(SERVER),
            "the bank answered" => Some(CLIENT),
            _ => None,
        }
    }

    fn json(&self, kind: u8, number: u64) -> Value {
        let ended = self.ended.unwrap_or(SystemTime::UNIX_EPOCH);
        let nanos = ended.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let began = nanos.saturating_sub(u128::from(self.micros) * 1_000);
        let trace = hex(&sha512(self.id.as_bytes()).as_bytes()[..16]);
        let seed = format!("{trace} {kind} {nanos} {number}");
        let span = hex(&sha512(seed.as_bytes()).as_bytes()[..8]);
        let mut attributes = vec![
            json!({ "key": "http.response.status_code", "value": { "intValue": self.status.to_string() } }),
            json!({ "key": "batzen.correlation_id", "value": { "stringValue": self.id } }),
        ];
        let mut text = |key: &str, value: &str| {
            if !value.is_empty() {
                attributes.push(json!({ "key": key, "value": { "stringValue": value } }));
            }
        };
        text("http.request.method", &self.method);
        text("http.route", &self.path);
        text("url.full", &self.url);
        let name = if kind == SERVER { format!("{} {}", self.method, self.path) } else { "bank".to_owned() };
        // Errors of a server are its own; those of a client are also the server's view of a bad request.
        let is_error = self.status >= if kind == SERVER { 500 } else { 400 };
        json!({
            "traceId": trace,
            "spanId": span,
            "name": name,
            "kind": kind,
            "startTimeUnixNano": began.to_string(),
            "endTimeUnixNano": nanos.to_string(),
            "attributes": attributes,
            "status": { "code": if is_error { 2 } else { 0 } },
        })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Exporter {
    /// Starts a thread that sends spans to a collector's URL, which ends in `/v1/traces`.
    ///
    /// # Errors
    /// When the client or the thread cannot be made.
    pub(crate) fn start(url: String, service: String) -> anyhow::Result<Self> {
        static DROPPED: AtomicU64 = AtomicU64::new(0);
        let (spans, received) = sync_channel(SPANS_MAX);
        let client =
            Client::new(&ClientOptions { timeout: Duration::from_secs(5), ..ClientOptions::default() })?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let work = move || runtime.block_on(send_all(&client, &url, &service, &received, &DROPPED));
        std::thread::Builder::new().name("otlp".to_owned()).spawn(work).context("cannot start a thread")?;
        Ok(Self { spans, dropped: &DROPPED })
    }
}

impl<S: Subscriber> Layer<S> for Exporter {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut span = Span { ended: Some(SystemTime::now()), ..Span::default() };
        event.record(&mut span);
        if span.kind().is_some()
            && let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = self.spans.try_send(span)
        {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Sends spans until the process ends.
async fn send_all(client: &Client, url: &str, service: &str, received: &Receiver<Span>, dropped: &AtomicU64) {
    let (mut number, mut reported) = (0, None::<Instant>);
    loop {
        let Ok(batch) = next_batch(received, &mut number) else { return };
        if batch.is_empty() {
            continue;
        }
        let count = batch.len() as u64;
        let body = json!({ "resourceSpans": [{
            "resource": { "attributes": [
                { "key": "service.name", "value": { "stringValue": service } },
                { "key": "service.version", "value": { "stringValue": env!("CARGO_PKG_VERSION") } },
            ] },
            "scopeSpans": [{ "scope": { "name": "batzen" }, "spans": batch }],
        }] });
        let sent = client.post_json(url, &body).await.and_then(|reply| reply.expect(&[200]).map(drop));
        if let Err(error) = sent {
            dropped.fetch_add(count, Ordering::Relaxed);
            if reported.is_none_or(|at| at.elapsed() >= REPORT_INTERVAL) {
                let dropped = dropped.load(Ordering::Relaxed);
                tracing::warn!(%error, dropped, "spans cannot be sent to the collector");
                reported = Some(Instant::now());
            }
        }
    }
}

/// The spans of the next interval, in JSON. An error if there will be no more.
fn next_batch(received: &Receiver<Span>, number: &mut u64) -> Result<Vec<Value>, RecvTimeoutError> {
    let deadline = Instant::now() + INTERVAL;
    let mut batch = Vec::new();
    while batch.len() < BATCH_MAX {
        match received.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(span) => {
                *number += 1;
                batch.extend(span.kind().map(|kind| span.json(kind, *number)));
            }
            Err(RecvTimeoutError::Timeout) => break,
            Err(RecvTimeoutError::Disconnected) if batch.is_empty() => {
                return Err(RecvTimeoutError::Disconnected);
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    Ok(batch)
}
