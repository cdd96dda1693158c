//! The page `/metrics`, written beside the requests that are served.
//!
//! A page takes about as long as ten payments, and longer where memory or disk are slow: it looks at every table, at the disk
//! and at the process. Whatever is written on a thread of the server holds up all that came meanwhile, so pages are written on
//! a thread for such work, one after the other: whoever reads them often does not get more of the processor than one thread.

use std::panic::resume_unwind;
use std::sync::Arc;

use batzen_metrics::{CONTENT_TYPE, Page, write_process};
use batzen_protocol::ErrorCode;
use tokio::sync::Mutex;

use crate::Response;

/// What answers `GET /metrics` for one service. Every page begins with what runs here and ends with the process's own figures.
#[derive(Debug)]
pub struct MetricsPage {
    service: &'static str,
    /// Held by the page that is written.
    turn: Arc<Mutex<()>>,
}

impl MetricsPage {
    /// For the service with this name.
    #[must_use]
    pub fn new(service: &'static str) -> Self {
        Self { service, turn: Arc::default() }
    }

    /// The answer, with what `write` has to tell. If the client goes away meanwhile, the page is written to its end;
    /// [`MetricsPage::idle`] waits for that.
    ///
    /// # Panics
    /// When `write` does.
    pub async fn answer(&self, write: impl FnOnce(&mut Page) + Send + 'static) -> Response {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let labels = [("service", self.service), ("version", env!("CARGO_PKG_VERSION"))];
        let written = tokio::task::spawn_blocking(move || {
            let mut page = Page::new();
            page.info("batzen_build_info", "What runs here", &labels);
            // What it holds of the service is given back before the turn is.
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
    async fn says_what_runs_and_what_the_service_tells_and_what_the_process_takes() {
        let page = MetricsPage::new("bank");
        let response = page.answer(|page| page.gauge("batzen_bank_coins", "Coins", 7)).await;
        assert_eq!(response.status, 200);
        let text = text(&response);
        let places = ["batzen_build_info{service=\"bank\"", "batzen_bank_coins 7", "process_threads"]
            .map(|wanted| text.find(wanted).unwrap_or_else(|| panic!("{wanted} in {text}")));
        assert!(places.is_sorted());
    }

    #[tokio::test]
    async fn a_page_that_takes_long_holds_up_nothing_but_other_pages() {
        // This runtime has one thread: if that wrote the page, the end of which it is to tell, nothing would go on.
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
    async fn who_waits_for_the_end_waits_for_a_page_whose_client_is_gone() {
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
    async fn a_page_that_cannot_be_written_panics_as_a_handler_would() {
        let twice = |page: &mut Page| (0..2).for_each(|_| page.gauge("batzen_twice", "Twice", 1));
        MetricsPage::new("bank").answer(twice).await;
    }
}
