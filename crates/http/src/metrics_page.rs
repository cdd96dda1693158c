//! The page `/metrics`, written off the threads that serve requests.
//!
//! A page takes about as long as ten payments, and longer where memory or disk are slow: it reads every table, the disk and the
//! process. On a thread of the server it would delay other requests, so blocking threads write the pages, one at a time:
//! frequent readers never take more than one thread.

use std::panic::resume_unwind;
use std::sync::Arc;

use batzen_metrics::{CONTENT_TYPE, Page, write_process};
use batzen_protocol::ErrorCode;
use tokio::sync::Mutex;

use crate::Response;

/// Answers `GET /metrics` for one service. Each page begins with the build and ends with the figures of the process.
#[derive(Debug)]
pub struct MetricsPage {
    service: &'static str,
    /// Held while a page is written.
    turn: Arc<Mutex<()>>,
}

impl MetricsPage {
    /// The page of the service with this name.
    #[must_use]
    pub fn new(service: &'static str) -> Self {
        Self { service, turn: Arc::default() }
    }

    /// The response, with the metrics that `write` adds. If the client goes away meanwhile, the page is written to its end;
    /// [`MetricsPage::idle`] waits for that.
    ///
    /// # Panics
    /// If `write` panics.
    pub async fn answer(&self, write: impl FnOnce(&mut Page) + Send + 'static) -> Response {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let labels = [("service", self.service), ("version", env!("CARGO_PKG_VERSION"))];
        let written = tokio::task::spawn_blocking(move || {
            let mut page = Page::new();
            page.info("batzen_build_info", "The version that runs", &labels);
            // It releases its parts of the service before the next page begins.
            write(&mut page);
            drop(turn);
            write_process(&mut page);
            page.finish()
        });
        match written.await {
            Ok(text) => Response::bytes(200, CONTENT_TYPE, text),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(_) => Response::error_status(ErrorCode::GENERIC_DB_SOFT_FAILURE, 503, "ending"),
            },
        }
    }

    /// Waits until no page is written that holds parts of the service.
    pub async fn idle(&self) {
        drop(self.turn.lock().await);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn text(response: &Response) -> String {
        String::from_utf8(response.body.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn a_page_has_the_build_the_service_and_the_process() {
        let page = MetricsPage::new("bank");
        let response = page.answer(|page| page.gauge("batzen_bank_coins", "Coins", 7)).await;
        assert_eq!(response.status, 200);
        let text = text(&response);
        let places = ["batzen_build_info{service=\"bank\"", "batzen_bank_coins 7", "process_threads"]
            .map(|wanted| text.find(wanted).unwrap_or_else(|| panic!("{wanted} in {text}")));
        assert!(places.is_sorted());
    }

    #[tokio::test]
    async fn a_slow_page_delays_only_other_pages() {
        // This runtime has one thread: if it wrote the page, the test would hang.
        let page = Arc::new(MetricsPage::new("bank"));
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
        let page = MetricsPage::new("bank");
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
        MetricsPage::new("bank").answer(twice).await;
    }
}
