//! The pages of a process at an address of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use batzen_http::client::{Client, ClientOptions};
use batzen_http::{Drain, Listen, OwnNames, Request, Response, Server};
use batzen_metrics::Page;
use batzen_service::dashboard::{COMMON, Layout};
use batzen_service::{App, Monitor, OwnPages, PagesAddress, Readiness, Row, fill_dashboard};

const OPERATIONS: [&str; 1] = ["other"];
static LAYOUT: Layout = Layout { sections: COMMON, work: &[] };

struct Ledger(Monitor);

impl App for Ledger {
    fn monitor(&self) -> &Monitor {
        &self.0
    }

    async fn ready(&self) -> Readiness {
        Readiness::new().check::<(), _>("ledger", Err("it is away"))
    }

    fn write_metrics(&self, page: &mut Page) {
        page.gauge("batzen_ledger_accounts", "Accounts", 7);
    }

    async fn run(self: &Arc<Self>, _: Row<Self>, _: &mut Request) -> Response {
        panic!("the service's own way of answering requests is not for these pages");
    }
}

fn ledger() -> Arc<Ledger> {
    Arc::new(Ledger(Monitor::new("ledger", &OPERATIONS, &LAYOUT, None)))
}

async fn get(url: &str, path: &str) -> (u16, String) {
    let client = Client::new(&ClientOptions::default()).unwrap();
    let reply = client.get(format!("{url}{path}")).send().await.unwrap();
    (reply.status, String::from_utf8(reply.body.to_vec()).unwrap())
}

async fn serve(address: &str, succeeds: bool, drain: &Drain) -> std::io::Result<Option<OwnPages>> {
    let address: PagesAddress = address.parse().unwrap();
    OwnPages::serve(Some(&address), &ledger(), &OwnNames::default(), succeeds, drain).await
}

#[tokio::test]
async fn a_process_shows_its_metrics_and_its_state_and_counts_no_operation() {
    let drain = Drain::new();
    let pages = serve("127.0.0.1:0", false, &drain).await.unwrap().unwrap();
    assert_eq!(get(pages.url(), "health").await.0, 200);
    let (status, body) = get(pages.url(), "ready").await;
    assert_eq!(status, 503);
    assert!(body.contains("it is away"), "{body}");
    let (status, page) = get(pages.url(), "metrics").await;
    assert_eq!(status, 200);
    for line in
        ["batzen_ledger_accounts 7", "batzen_operations_total{operation=\"other\",outcome=\"done\"} 0"]
    {
        assert!(page.contains(&format!("\n{line}\n")), "{line} in {page}");
    }
    assert!(!page.contains("batzen_http_"), "the service has no other server: {page}");
    // Nothing fills the dashboard.
    assert_eq!(get(pages.url(), "dashboard").await.0, 404);
    assert_eq!(get(pages.url(), "accounts").await.0, 404);
    drain.trigger();
    pages.into_task().await.unwrap();
}

#[tokio::test]
async fn the_dashboard_is_among_them_if_it_is_filled() {
    let (drain, ledger) = (Drain::new(), ledger());
    fill_dashboard(&ledger);
    let address: PagesAddress = "127.0.0.1:0".parse().unwrap();
    let served = OwnPages::serve(Some(&address), &ledger, &OwnNames::default(), false, &drain).await;
    let pages = served.unwrap().unwrap();
    assert_eq!(get(pages.url(), "dashboard").await.0, 200);
    drain.trigger();
    assert!(batzen_service::end(ledger, [pages.into_task()]).await.is_some());
}

#[tokio::test]
async fn without_an_address_nothing_listens() {
    let served = OwnPages::serve(None, &ledger(), &OwnNames::default(), false, &Drain::new()).await;
    assert!(served.unwrap().is_none());
}

#[tokio::test]
async fn an_address_of_another_process_is_refused_or_taken_over_when_it_is_free() {
    let before = Server::bind(Listen::localhost(0)).await.unwrap();
    let address = format!("127.0.0.1:{}", before.port());
    let drain = Drain::new();
    let error = serve(&address, false, &drain).await.unwrap_err().to_string();
    assert!(error.contains("the address of metrics") && error.contains(&address), "{error}");
    let pages = serve(&address, true, &drain).await.unwrap().unwrap();
    drop(before);
    let client = Client::new(&ClientOptions::default()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while client.get(format!("{}metrics", pages.url())).send().await.is_err() {
        assert!(Instant::now() < deadline, "the address is not taken over");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drain.trigger();
    pages.into_task().await.unwrap();
}
