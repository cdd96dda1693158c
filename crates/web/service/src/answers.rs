//! Bodies and parameters of requests, and the answers to failures of the service itself.

use std::str::FromStr;

use batzen_engine::{SubmitError, run_blocking};
use batzen_http::{Request, Response, header};
use batzen_protocol::{ErrorCode, ParseError, parse_body};
use batzen_store::StoreError;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

/// Bodies up to this size are decoded on the thread that serves the request.
const INLINE_BODY_BYTES_MAX: usize = 32 << 10;
/// Number of larger bodies that may be decoded at the same time.
const LARGE_BODY_READERS: usize = 2;

/// Reads a request's body.
///
/// # Errors
/// The answer to give: 400, code 22, with what is wrong and where.
pub fn body<T: DeserializeOwned>(request: &Request) -> Result<T, Response> {
    parse_body(&request.body).map_err(|error| malformed(&error))
}

/// Reads a body that may have many elements. A large one takes milliseconds to decode, so it is decoded off
/// the threads that serve requests, and only a few at a time.
///
/// # Errors
/// As [`body`].
pub async fn large_body<T: DeserializeOwned + Send + 'static>(request: &Request) -> Result<T, Response> {
    static READERS: Semaphore = Semaphore::const_new(LARGE_BODY_READERS);
    if request.body.len() <= INLINE_BODY_BYTES_MAX {
        return body(request);
    }
    let _turn = READERS.acquire().await.expect("never closed");
    let bytes = request.body.clone();
    let read = run_blocking(move || parse_body(&bytes)).await;
    read.expect("reading a body does not outlive the runtime").map_err(|error| malformed(&error))
}

/// The answer to a body that cannot be read.
#[must_use]
pub fn malformed(error: &ParseError) -> Response {
    Response::json(400, &error.to_error_body())
}

/// A parameter of the path.
///
/// # Errors
/// The answer to give: `code` with the text.
pub fn path_value<T: FromStr>(request: &Request, name: &str, code: ErrorCode) -> Result<T, Response> {
    let text = request.param(name);
    text.parse().map_err(|_| Response::error(code, text))
}

/// The answers of a service that fails itself.
#[derive(Clone, Copy, Debug)]
pub struct Failures {
    /// The outcome is unknown; the same request finds it out: 503.
    pub retry: ErrorCode,
    /// The detail if the database is unreachable.
    pub unreachable: &'static str,
    /// No space is left. None: as `retry`.
    pub full: Option<ErrorCode>,
    /// The store contradicts itself.
    pub corrupt: ErrorCode,
    /// Anything else.
    pub failed: ErrorCode,
}

impl Failures {
    /// The general codes.
    pub const GENERIC: Self = Self {
        retry: ErrorCode::GENERIC_DB_SOFT_FAILURE,
        unreachable: "the database is not available",
        full: Some(ErrorCode::GENERIC_DB_STORE_FAILED),
        corrupt: ErrorCode::GENERIC_DB_INVARIANT_FAILURE,
        failed: ErrorCode::GENERIC_DB_COMMIT_FAILED,
    };

    /// 503: the client repeats the request.
    #[must_use]
    pub fn try_later(&self, detail: &str) -> Response {
        Response::error_status(self.retry, 503, detail).with_header(header::RETRY_AFTER, "1")
    }

    /// The answer when a queue is full.
    #[must_use]
    pub fn busy(&self) -> Response {
        self.try_later("busy")
    }

    /// The answer when the store failed.
    #[must_use]
    pub fn store(&self, error: &StoreError) -> Response {
        tracing::error!(%error, "store failed");
        match error {
            // A retry may succeed, and will find out whether this attempt took effect.
            StoreError::Unavailable(_) | StoreError::Stale { .. } => self.try_later(self.unreachable),
            StoreError::Full(_) => match self.full {
                Some(code) => Response::error(code, "no space left"),
                None => self.try_later("no space left"),
            },
            StoreError::Corrupt { .. } => Response::error(self.corrupt, ""),
            _ => Response::error(self.failed, ""),
        }
    }

    /// The answer when no decision was made on a command.
    #[must_use]
    pub fn submit(&self, error: &SubmitError) -> Response {
        match error {
            SubmitError::Overloaded => self.busy(),
            SubmitError::Stopped => self.try_later("ending"),
            SubmitError::Store(error) => self.store(error),
        }
    }
}
