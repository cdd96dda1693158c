//! The HTTP interface: one file per family of endpoints, each of which adds its own rows to the table below.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use batzen_http::{Head, Request, Response, Style};
use batzen_metrics::Page;
use batzen_protocol::api::field_error;
use batzen_protocol::{Amount, AmountError, ErrorCode, Money};
use batzen_service::{
    Api, App, Checked, Failures, Monitor, Reach, Readiness, Row, body, endpoint, large_body, malformed,
    path_value,
};
use serde::de::DeserializeOwned;

use crate::app::Exchange;
use crate::metrics::OPERATIONS;

mod accounts;
mod auditors;
mod check;
mod csr;
mod deposit;
mod histories;
mod keys;
mod kyc;
mod liabilities;
mod management;
mod melt;
mod purses;
mod recoup;
mod refreshes;
mod refund;
mod reserves;
mod response;
mod root;
mod signed_keys;
mod signing;
mod terms;
mod text;
mod tracking;
mod wire;
mod withdraw;

/// The exchange's route table.
pub(crate) type Table = batzen_service::Table<Exchange>;

/// The longest time that a long poll waits.
const LONG_POLL_MAX: Duration = Duration::from_secs(120);

/// Answers to failures of the exchange itself.
pub(crate) const FAILURES: Failures = Failures { unreachable: "unavailable", ..Failures::GENERIC };

/// All endpoints.
fn table(with_dashboard: bool, with_liabilities: bool) -> Table {
    let mut table = Table::new(Style::ByFirstSegment, &OPERATIONS).with_unrouted(unrouted).monitored("other");
    for family in [
        root::routes,
        terms::routes,
        keys::routes,
        wire::routes,
        reserves::routes,
        withdraw::routes,
        csr::routes,
        deposit::routes,
        refund::routes,
        melt::routes,
        refreshes::routes,
        recoup::routes,
        purses::routes,
        accounts::routes,
        tracking::routes,
        kyc::routes,
    ] {
        table = table.reaching(Reach::Everyone, family);
    }
    // Their requests are signed by master keys.
    table = table.reaching(Reach::Page, |table| auditors::routes(management::routes(table)));
    if with_dashboard {
        table = table.with_dashboard("other");
    }
    if with_liabilities {
        table = table.reaching(Reach::Everyone, liabilities::routes);
    }
    table
}

/// Method, pattern and reach of every endpoint, for documents. The optional ones are among them.
#[must_use]
pub fn endpoints() -> Vec<(String, Reach)> {
    table(true, true).endpoints()
}

/// The answer to a request that has no endpoint.
fn unrouted(app: &Exchange, _: &Head, response: Response) -> Response {
    app.core.metrics.received("other");
    response
}

/// The interface of an exchange.
pub fn api(app: Arc<Exchange>) -> Api<Exchange> {
    let config = &app.core.config;
    let table = table(config.dashboard, config.liabilities.is_some());
    Api::new(app, table)
}

impl App for Exchange {
    fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    fn ready(&self) -> impl Future<Output = Readiness> + Send {
        root::ready(self)
    }

    fn write_metrics(&self, page: &mut Page) {
        Self::write_metrics(self, page);
    }

    async fn run(self: &Arc<Self>, row: Row<Self>, request: &mut Request) -> Response {
        self.core.metrics.received(row.operation().map_or("other", |operation| OPERATIONS[operation]));
        let seen = self.keys_version();
        let mut response = row.call(self, request).await;
        // Do not refuse a request as unknown, not eligible or conflicting because of a stale key state:
        // another process may have changed the key set. (The key state may have been refreshed in the
        // meantime. Requests that waited long for their answer do not wait again.)
        if matches!(response.status, 404 | 410 | 412 | 500)
            && request.has_slot()
            && self.has_newer_key_set(seen).await.unwrap_or(false)
        {
            response = row.call(self, request).await;
        }
        self.served();
        response
    }

    /// Only for requests of merchants and operators, and for public documents. If a client sent the same id with
    /// a withdrawal and a payment, or with a melt and a payment, a log with both would link them.
    fn logs_given_correlation_id(&self, head: &Head) -> bool {
        match head.segment(0) {
            "coins" => matches!(head.segment(2), "deposit" | "refund"),
            "batch-deposit" | "deposits" | "transfers" | "management" | "keys" | "config" | "wire"
            | "terms" | "privacy" => true,
            _ => false,
        }
    }
}

/// An error answer with the code's own status.
pub(crate) fn error(code: ErrorCode, detail: &str) -> Response {
    Response::error(code, detail)
}

/// An error answer with a status other than the code's own.
pub(crate) fn error_status(code: ErrorCode, status: u16, detail: &str) -> Response {
    Response::error_status(code, status, detail)
}

/// The amount of a member of body `T`, which must be in the exchange's currency.
///
/// # Errors
/// The answer to give: 400, code 22, naming the member.
pub(crate) fn money<T: DeserializeOwned>(app: &Exchange, amount: &Amount, field: &str) -> Checked<Money> {
    in_currency(app, amount).map_err(|error| malformed(&field_error::<T>(field, error.to_string())))
}

/// The quantity of an amount in the exchange's currency, spelt exactly as configured. The bytes of the name
/// are signed, but only the quantity is stored, so a history could not repeat another spelling.
///
/// # Errors
/// Another currency, or another spelling of ours.
pub(crate) fn in_currency(app: &Exchange, amount: &Amount) -> Result<Money, AmountError> {
    if amount.currency.padded() == app.core.config.currency.padded() {
        Ok(amount.money)
    } else {
        Err(AmountError::CurrencyMismatch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of the exchange's table in the documentation: endpoint and limit in KiB.
    fn documented() -> Vec<(String, usize)> {
        let page = include_str!("../../../../../docs/limits.md");
        let (_, section) = page.split_once("## Exchange").expect("a section of the exchange");
        let section = section.split("\n## ").next().unwrap_or(section);
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
        rows.map(|row| {
            let (endpoint, rest) = row.split_once("` | ").expect("the endpoint ends");
            let (limit, _) = rest.split_once(" KiB |").expect("the limit comes next");
            (endpoint.to_owned(), limit.parse::<usize>().unwrap())
        })
        .collect()
    }

    #[test]
    fn the_documentation_lists_every_endpoint_with_its_limit() {
        let table = table(true, true);
        let mut expected: Vec<_> = table
            .listed()
            .iter()
            .map(|(method, pattern, bytes, _)| {
                assert!(bytes.is_multiple_of(1 << 10), "{pattern}");
                (format!("{method} {pattern}"), bytes >> 10)
            })
            .collect();
        let mut documented = documented();
        expected.sort();
        documented.sort();
        assert_eq!(documented, expected);
    }
}
