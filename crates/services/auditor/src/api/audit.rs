//! The report on the exchange that the service follows: a page, JSON, a table.

use std::fmt::Write as _;
use std::sync::Arc;

use batzen_crypto::{EddsaPublicKey, ShortHash};
use batzen_http::{Request, Response, escape_html, header};
use batzen_protocol::{ErrorCode, Timestamp};
use batzen_service::{Answer, endpoint};
use serde_json::json;
use tokio::sync::oneshot;

use super::{Service, Table};
use crate::liabilities::{self, Source};
use crate::link::{FOLLOWS_NONE, Forms, Told, Wanted};
use crate::rules;
use crate::serving::{Job, LastReport, Running};

/// Keeps the stream's state on an open page up to date. Everything else changes with a comparison, after minutes.
const SCRIPT: &str = "<script>setInterval(async()=>{try{const r=await fetch('audit.json');const j=await r.json();\
const e=document.getElementById('stream');if(e&&j.stream)e.textContent=j.stream.text;\
if(j.ended&&window.ended&&JSON.stringify(j.ended)!==window.ended)location.reload();window.ended=JSON.stringify(j.ended)}\
catch(_){}},5000)</script>";

/// The policy of the page: nothing from elsewhere.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'";

/// Describes the state of the stream in words.
fn stream_text(running: &Running) -> String {
    if let Some(rows) = running.checking_all() {
        return format!("All rows of the copy are being checked: {rows} so far.");
    }
    if let Some(failure) = running.failure() {
        return format!("The exchange is not followed: {failure}");
    }
    let Some(progress) = running.progress() else { return "Starting.".to_owned() };
    let lag = match progress.lag_commits() {
        0 => "nothing is missing".to_owned(),
        n => format!("{n} commits behind, the oldest for {:.1} s", progress.behind.as_secs_f64()),
    };
    let connected = if progress.is_connected { "Connected to the exchange" } else { "Not connected" };
    format!("{connected}; checked up to commit {}; {lag}.", progress.next.saturating_sub(1))
}

/// The answer before the first report.
fn not_yet(running: &Running) -> Response {
    Response::error_status(ErrorCode::GENERIC_DB_SOFT_FAILURE, 503, &stream_text(running))
        .with_header(header::RETRY_AFTER, "5")
}

pub(super) fn routes(table: Table) -> Table {
    table.get("/audit", "other", endpoint!(page)).get("/audit.json", "other", endpoint!(json)).get(
        "/audit.csv",
        "other",
        endpoint!(csv),
    )
}

impl Service {
    fn running(&self) -> Result<&Running, Response> {
        let hint = "this auditor follows no exchange: [auditor-feed]";
        self.running
            .as_ref()
            .ok_or_else(|| Response::error_status(ErrorCode::GENERIC_ENDPOINT_UNKNOWN, 404, hint))
    }

    fn last_report(&self) -> Result<(&Running, Arc<LastReport>), Response> {
        let running = self.running()?;
        let last_report = running.last_report().ok_or_else(|| not_yet(running))?;
        Ok((running, last_report))
    }

    /// The report for a program.
    pub(super) async fn report(&self, wanted: Wanted) -> Result<Told, String> {
        let running = self.running.as_ref().ok_or(FOLLOWS_NONE)?;
        let last_report = match running.last_report().filter(|_| wanted == Wanted::Last) {
            Some(last_report) => last_report,
            None => {
                let (answer, told) = oneshot::channel();
                running.send(Job::Compare { is_whole: wanted == Wanted::Whole, answer })?;
                told.await.map_err(|_| "the service is ending".to_owned())??
            }
        };
        Ok(Told::Report(Box::new(Forms::from(&last_report.report))))
    }

    /// Number of rows that a check of all rows has read, if one is going on.
    pub(super) fn checking(&self) -> Result<Told, String> {
        let running = self.running.as_ref().ok_or(FOLLOWS_NONE)?;
        Ok(Told::Checking(running.checking_all()))
    }

    /// Compares what an exchange has published about its debts with the copy.
    pub(super) async fn liabilities_of(
        &self,
        source: Source,
        master_pub: EddsaPublicKey,
        now: Timestamp,
    ) -> Result<Told, String> {
        let running = self.running.clone().ok_or(FOLLOWS_NONE)?;
        let (store, data_dir) = (running.place(), self.config.data_dir.clone());
        let request = liabilities::Request { source, store, is_own_copy: true, master_pub, data_dir, now };
        let runtime = tokio::runtime::Handle::current();
        let work = move || runtime.block_on(liabilities::examine(&request, &running));
        let examined = tokio::task::spawn_blocking(work)
            .await
            .map_err(|_| "the check failed: see the service's log".to_owned())?;
        Ok(Told::Liabilities(Box::new(examined.map_err(|error| error.to_string())?)))
    }

    /// Suppresses a finding, or reopens it.
    pub(super) async fn note(&self, id: ShortHash, suppresses: bool, reason: String) -> Result<Told, String> {
        let running = self.running.as_ref().ok_or(FOLLOWS_NONE)?;
        let (answer, told) = oneshot::channel();
        running.send(Job::Note { id, suppresses, reason, answer })?;
        told.await.map_err(|_| "the service is ending".to_owned())??;
        Ok(Told::Done(rules::Answer::Done))
    }
}

async fn page(auditor: &Service, _: &Request) -> Answer {
    let (running, last_report) = auditor.last_report()?;
    let mut live = format!("<p id=\"stream\">{}</p>", escape_html(&stream_text(running)));
    if let Some(reason) = &last_report.without_bank {
        let _ = write!(
            live,
            "<p class=\"bad\" id=\"bank\">Not compared with the bank: {}</p>",
            escape_html(reason)
        );
    }
    live.push_str(SCRIPT);
    let page = last_report.page(&live);
    Ok(Response::bytes(200, "text/html; charset=utf-8", page)
        .with_header(header::CONTENT_SECURITY_POLICY, POLICY)
        .with_header(header::CACHE_CONTROL, "no-store"))
}

async fn json(auditor: &Service, _: &Request) -> Answer {
    let (running, last_report) = auditor.last_report()?;
    let mut value = last_report.json();
    let progress = running.progress().unwrap_or_default();
    value["stream"] = json!({
        "text": stream_text(running),
        "connected": progress.is_connected,
        "next": progress.next,
        "lag_commits": progress.lag_commits(),
        "lag_seconds": progress.behind.as_secs_f64(),
        "failure": running.failure(),
    });
    value["without_bank"] = json!(last_report.without_bank);
    Ok(Response::json(200, &value).with_header(header::CACHE_CONTROL, "no-store"))
}

async fn csv(auditor: &Service, _: &Request) -> Answer {
    let (_, last_report) = auditor.last_report()?;
    Ok(Response::bytes(200, "text/csv; charset=utf-8", last_report.csv().to_owned())
        .with_header(header::CACHE_CONTROL, "no-store"))
}
