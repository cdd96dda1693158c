//! `/health` and `/ready`: liveness and readiness, in one shape for all services.
//!
//! `/health` answers 200 while the process serves requests. `/ready` runs the service's checks: 200 if all
//! pass, otherwise 503. Both bodies are small JSON objects without secrets; proxies and service managers read
//! only the status.
//!
//! ```json
//! {"status":"not ready","checks":[{"name":"store","ok":true},{"name":"keys","ok":false,"hint":"…"}]}
//! ```

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use batzen_http::{HeaderValue, Response, header};
use serde::Serialize;
use tokio::sync::Mutex;

/// The longest time for one check. A check that takes longer has failed.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that a blocking check that passed is not repeated.
const RECHECK_AFTER: Duration = Duration::from_secs(1);
/// The longest hint, in characters.
const HINT_CHARS_MAX: usize = 300;

/// Maximum step of a clock backwards.
const CLOCK_STEP_MAX_US: u64 = 60_000_000;
/// The clock is not set if it reads an earlier time: 1 January 2024.
const CLOCK_MIN_US: u64 = 1_704_067_200_000_000;

#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

/// The results of a service's checks.
#[derive(Debug, Default)]
pub struct Readiness {
    checks: Vec<Check>,
}

impl Readiness {
    /// No checks yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a check. The error becomes the hint, which must say what is wrong and what to do, without
    /// secrets.
    #[must_use]
    pub fn check<T, E: std::fmt::Display>(mut self, name: &'static str, result: Result<T, E>) -> Self {
        let hint = result.err().map(|error| error.to_string().chars().take(HINT_CHARS_MAX).collect());
        self.checks.push(Check { name, ok: hint.is_none(), hint });
        self
    }

    /// Adds a check that takes time, such as a request to a database. It fails if it takes too long.
    pub async fn check_within<T, E: std::fmt::Display>(
        self,
        name: &'static str,
        check: impl Future<Output = Result<T, E>>,
    ) -> Self {
        self.check_within_time(name, CHECK_TIMEOUT, check).await
    }

    async fn check_within_time<T, E: std::fmt::Display>(
        self,
        name: &'static str,
        time: Duration,
        check: impl Future<Output = Result<T, E>>,
    ) -> Self {
        match tokio::time::timeout(time, check).await {
            Ok(result) => self.check(name, result),
            Err(_) => self.check::<(), _>(name, Err(format!("no answer within {} s", time.as_secs()))),
        }
    }

    /// Returns whether all checks pass.
    pub(crate) fn is_ready(&self) -> bool {
        self.checks.iter().all(|check| check.ok)
    }

    /// The answer to `GET /ready`: 200 or 503, with every check.
    #[must_use]
    pub fn into_response(self) -> Response {
        #[derive(Serialize)]
        struct Body {
            status: &'static str,
            checks: Vec<Check>,
        }
        let (code, status) = if self.is_ready() { (200, "ready") } else { (503, "not ready") };
        uncached(Response::json(code, &Body { status, checks: self.checks }))
    }
}

/// The state behind the checks of one service.
#[derive(Debug, Default)]
pub struct Checks {
    /// When the blocking check last passed. Locked while it runs.
    passed: Arc<Mutex<Option<Instant>>>,
    /// The latest time that the clock has shown.
    latest_us: AtomicU64,
}

impl Checks {
    /// Runs the service's check that blocks, such as a write to the disk, on a thread that may block. Only one
    /// runs at a time, and not within a second after it passed, so that requests for `/ready` keep neither
    /// threads nor the disk busy.
    ///
    /// # Errors
    /// The check's own error, as text.
    pub async fn blocking<E: std::fmt::Display>(
        &self,
        check: impl FnOnce() -> Result<(), E> + Send + 'static,
    ) -> Result<(), String> {
        let mut passed = Arc::clone(&self.passed).lock_owned().await;
        if passed.is_some_and(|at| at.elapsed() < RECHECK_AFTER) {
            return Ok(());
        }
        let run = move || {
            let result = check().map_err(|error| error.to_string());
            *passed = result.is_ok().then(Instant::now);
            result
        };
        tokio::task::spawn_blocking(run).await.unwrap_or_else(|_| Err("the service is ending".to_owned()))
    }

    /// Checks that the clock is set and has not stepped back. The argument is its current time.
    ///
    /// # Errors
    /// The problem and its remedy.
    pub fn clock(&self, now_us: u64) -> Result<(), String> {
        let latest_us = self.latest_us.fetch_max(now_us, Ordering::Relaxed);
        if now_us < CLOCK_MIN_US {
            return Err("the clock is not set: it reads a time before 2024. Synchronise it by NTP".to_owned());
        }
        if now_us.saturating_add(CLOCK_STEP_MAX_US) < latest_us {
            let step_s = (latest_us - now_us) / 1_000_000;
            return Err(format!("the clock stepped back by {step_s} s. Synchronise it by NTP"));
        }
        Ok(())
    }
}

/// The answer to `GET /health`: the process serves requests.
#[must_use]
pub(crate) fn health() -> Response {
    #[derive(Serialize)]
    struct Body {
        status: &'static str,
    }
    uncached(Response::json(200, &Body { status: "ok" }))
}

fn uncached(mut response: Response) -> Response {
    response.headers.push((header::CACHE_CONTROL, HeaderValue::from_static("no-store")));
    response
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn readiness_names_every_check_and_fails_with_one_of_them() {
        let ready = Readiness::new().check::<_, &str>("store", Ok(())).check::<_, &str>("clock", Ok(()));
        let response = ready.into_response();
        assert_eq!(response.status, 200);
        let checks = json!([{ "name": "store", "ok": true }, { "name": "clock", "ok": true }]);
        assert_eq!(response.json_value(), json!({ "status": "ready", "checks": checks }));
        let failed =
            Readiness::new().check::<_, &str>("store", Ok(())).check::<(), _>("keys", Err("sign them"));
        let response = failed.into_response();
        assert_eq!(response.status, 503);
        let checks =
            json!([{ "name": "store", "ok": true }, { "name": "keys", "ok": false, "hint": "sign them" }]);
        assert_eq!(response.json_value(), json!({ "status": "not ready", "checks": checks }));
        assert_eq!(response.header(&header::CACHE_CONTROL).unwrap(), "no-store");
        assert_eq!(health().status, 200);
    }

    #[test]
    fn a_clock_that_is_not_set_or_steps_back_is_refused() {
        let checks = Checks::default();
        assert!(checks.clock(0).is_err());
        let now_us = CLOCK_MIN_US + 1_000_000_000;
        assert!(checks.clock(now_us).is_ok());
        assert!(checks.clock(now_us - CLOCK_STEP_MAX_US).is_ok());
        assert!(checks.clock(now_us - CLOCK_STEP_MAX_US - 1).is_err());
        assert!(checks.clock(now_us + 1).is_ok());
    }

    #[tokio::test]
    async fn a_blocking_check_reports_its_error() {
        let checks = Checks::default();
        assert_eq!(checks.blocking(|| Err::<(), _>("full")).await, Err("full".to_owned()));
        assert_eq!(checks.blocking(|| Ok::<(), &str>(())).await, Ok(()));
        // It has just passed, so it does not run again.
        assert_eq!(checks.blocking(|| -> Result<(), &str> { panic!("it runs") }).await, Ok(()));
    }

    #[tokio::test]
    async fn a_check_without_answer_fails() {
        let hangs = std::future::pending::<Result<(), String>>();
        let time = Duration::from_millis(10);
        let response = Readiness::new().check_within_time("database", time, hangs).await.into_response();
        assert_eq!(response.status, 503);
        assert!(response.json_value()["checks"][0]["hint"].as_str().unwrap().contains("no answer"));
    }
}
