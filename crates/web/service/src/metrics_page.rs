//! The page `/metrics`, written off the threads that serve requests.
//!
//! A page takes about as long as ten payments, and longer where memory or disk are slow: it reads every
//! table, the disk and the process. On a thread of the server it would delay other requests, so blocking
//! threads write the pages, one at a time: even frequent readers never occupy more than one thread.

use std::panic::resume_unwind;
use std::sync::{Arc, Mutex as SyncMutex, OnceLock, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use batzen_http::{Head, Response};
use batzen_metrics::{CONTENT_TYPE, Page, write_process};
use batzen_protocol::ErrorCode;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::AbortHandle;
use tokio::time::MissedTickBehavior;

use crate::dashboard::{self, History, INTERVAL, Layout};

/// Answers `GET /metrics` for one service, and `/dashboard`, which shows the same to people. Every page
/// starts with a description of the running program and ends with figures of its process.
#[derive(Debug)]
pub(crate) struct MetricsPage {
    about: About,
    /// Held while a page is written.
    turn: Arc<Mutex<()>>,
    /// The last hour, for the dashboard.
    history: Arc<SyncMutex<History>>,
    /// The task that fills it.
    sampler: OnceLock<AbortHandle>,
}

/// The head of every page.
#[derive(Clone, Debug)]
struct About {
    service: &'static str,
    currency: Option<String>,
}

impl About {
    fn page(&self) -> Page {
        let mut page = Page::new();
        let labels = [("service", self.service), ("version", env!("CARGO_PKG_VERSION"))];
        page.info("batzen_build_info", "What runs here", &labels);
        if let Some(currency) = &self.currency {
            page.info("batzen_currency_info", "The currency of all amounts", &[("currency", currency)]);
        }
        page
    }
}

impl MetricsPage {
    /// The page of the service with this name, and the layout of its dashboard.
    #[must_use]
    pub(crate) fn new(service: &'static str, layout: &'static Layout) -> Self {
        let about = About { service, currency: None };
        let history = Arc::new(SyncMutex::new(History::new(layout)));
        Self { about, turn: Arc::default(), history, sampler: OnceLock::new() }
    }

    /// Sets the currency of the service's amounts.
    #[must_use]
    pub(crate) fn in_currency(mut self, currency: String) -> Self {
        self.about.currency = Some(currency);
        self
    }

    /// The response, with the metrics that `write` adds. If the client disconnects meanwhile, the page is
    /// still written to its end; [`MetricsPage::idle`] waits for that.
    ///
    /// # Panics
    /// If `write` panics.
    pub(crate) async fn answer(&self, write: impl FnOnce(&mut Page) + Send + 'static) -> Response {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let about = self.about.clone();
        let written = tokio::task::spawn_blocking(move || {
            let write = |page: &mut Page| {
                write(page);
                true
            };
            written(&about, turn, write).unwrap_or_default()
        });
        match written.await {
            Ok(text) => Response::bytes(200, CONTENT_TYPE, text),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(_) => Response::error_status(ErrorCode::GENERIC_DB_SOFT_FAILURE, 503, "ending"),
            },
        }
    }

    /// Starts to fill the dashboard: every few seconds a page is written and read, until this is dropped or
    /// [`idle`](Self::idle), or `write` returns false because the service has gone. Only the first call has
    /// an effect. Must be called within a tokio runtime.
    pub(crate) fn sample(&self, write: impl Fn(&mut Page) -> bool + Send + Sync + 'static) {
        let (about, turn, history) = (self.about.clone(), Arc::clone(&self.turn), Arc::clone(&self.history));
        let write = Arc::new(write);
        self.sampler.get_or_init(|| {
            let run = async move {
                let mut ticks = tokio::time::interval(INTERVAL);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                loop {
                    ticks.tick().await;
                    let turn = Arc::clone(&turn).lock_owned().await;
                    let (about, history, write) = (about.clone(), Arc::clone(&history), Arc::clone(&write));
                    let sampled = tokio::task::spawn_blocking(move || {
                        let text = written(&about, turn, &*write);
                        text.is_some_and(|text| {
                            let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                            let mut history = history.lock().unwrap_or_else(PoisonError::into_inner);
                            history.add(&text, Instant::now(), unix.as_secs_f64());
                            true
                        })
                    });
                    if !matches!(sampled.await, Ok(true)) {
                        return;
                    }
                }
            };
            tokio::spawn(run).abort_handle()
        });
    }

    /// Returns whether the dashboard is being filled.
    pub(crate) fn is_sampled(&self) -> bool {
        self.sampler.get().is_some()
    }

    /// The answer to a request for `/dashboard` or a path below it.
    pub(crate) fn dashboard(&self, head: &Head) -> Response {
        dashboard::answer(head, &self.history)
    }

    /// Ends the sampling, and waits until no page is being written that holds parts of the service.
    pub(crate) async fn idle(&self) {
        if let Some(sampler) = self.sampler.get() {
            sampler.abort();
        }
        drop(self.turn.lock().await);
    }
}

impl Drop for MetricsPage {
    fn drop(&mut self) {
        if let Some(sampler) = self.sampler.get() {
            sampler.abort();
        }
    }
}

/// Writes a page; none if the service has gone. The parts of the service that `write` holds are released
/// before the turn.
fn written(
    about: &About,
    turn: OwnedMutexGuard<()>,
    write: impl FnOnce(&mut Page) -> bool,
) -> Option<String> {
    let mut page = about.page();
    let is_there = write(&mut page);
    drop(turn);
    write_process(&mut page);
    is_there.then(|| page.finish())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::dashboard::{Bad, Extra, Section, Unit, gauge, tile};

    const LAYOUT: Layout = Layout {
        sections: &[&Section {
            id: "bank",
            title: "Bank",
            needs: "batzen_bank_accounts",
            tiles: &[tile("accounts", "accounts", Unit::Count, gauge("batzen_bank_accounts"), Bad::Never)],
            charts: &[],
            extra: Extra::None,
        }],
        work: &[],
    };

    fn text(response: &Response) -> String {
        String::from_utf8(response.body.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn a_page_has_the_build_the_service_and_the_process() {
        let page = MetricsPage::new("bank", &LAYOUT);
        let response = page.answer(|page| page.gauge("batzen_bank_coins", "Coins", 7)).await;
        assert_eq!(response.status, 200);
        let text = text(&response);
        let places = ["batzen_build_info{service=\"bank\"", "batzen_bank_coins 7", "process_threads"]
            .map(|wanted| text.find(wanted).unwrap_or_else(|| panic!("{wanted} in {text}")));
        assert!(places.is_sorted());
    }

    #[tokio::test]
    async fn the_dashboard_is_filled_without_anybody_asking() {
        let page = MetricsPage::new("bank", &LAYOUT).in_currency("KUDOS".to_owned());
        let part = Arc::new(());
        let held = Arc::downgrade(&part);
        page.sample(move |page| {
            page.gauge("batzen_bank_accounts", "Accounts", 7);
            held.upgrade().is_some()
        });
        let history =
            || page.dashboard(&Head::local(batzen_http::Method::GET, "/dashboard/history")).json_value();
        let deadline = Instant::now() + Duration::from_secs(60);
        while history()["service"] != "bank" {
            assert!(Instant::now() < deadline, "{}", history());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(history()["currency"], "KUDOS");
        assert_eq!(history()["sections"][0]["tiles"][0]["value"], 7.0);
        page.idle().await;
        assert_eq!(Arc::strong_count(&part), 1);
    }

    #[tokio::test]
    async fn a_slow_page_delays_only_other_pages() {
        // This runtime has one thread: if the page were written on it, the test would hang.
        let page = Arc::new(MetricsPage::new("bank", &LAYOUT));
        let (go_on, waits) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let write = move |_: &mut Page| {
            tell.send(thread::current().id()).unwrap();
            waits.recv_timeout(Duration::from_secs(60)).unwrap();
        };
        let first = tokio::spawn({
            let page = Arc::clone(&page);
            async move { page.answer(write).await }
        });
        let (told, writer) = tokio::task::spawn_blocking(move || {
            let writer = told.recv_timeout(Duration::from_secs(60)).unwrap();
            (told, writer)
        })
        .await
        .unwrap();
        assert_ne!(writer, thread::current().id());
        // The second waits for its turn.
        let mut second = Box::pin(page.answer(|page| page.gauge("batzen_second", "Second", 2)));
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut second).await.is_err());
        go_on.send(()).unwrap();
        assert!(text(&second.await).contains("batzen_second 2"));
        assert_eq!(first.await.unwrap().status, 200);
        drop(told);
    }

    #[tokio::test]
    async fn idle_waits_for_a_page_whose_client_is_gone() {
        let page = MetricsPage::new("bank", &LAYOUT);
        let part = Arc::new(());
        let held = Arc::clone(&part);
        let (go_on, waits) = mpsc::channel();
        let write = move |_: &mut Page| {
            waits.recv_timeout(Duration::from_secs(60)).unwrap();
            drop(held);
        };
        let answer = page.answer(write);
        assert!(tokio::time::timeout(Duration::from_millis(20), answer).await.is_err(), "the client gave up");
        assert!(tokio::time::timeout(Duration::from_millis(20), page.idle()).await.is_err());
        assert_eq!(Arc::strong_count(&part), 2);
        go_on.send(()).unwrap();
        page.idle().await;
        assert_eq!(Arc::strong_count(&part), 1);
    }

    #[tokio::test]
    #[should_panic(expected = "written twice")]
    async fn a_page_that_panics_does_so_in_the_handler() {
        let twice = |page: &mut Page| (0..2).for_each(|_| page.gauge("batzen_twice", "Twice", 1));
        MetricsPage::new("bank", &LAYOUT).answer(twice).await;
    }
}
