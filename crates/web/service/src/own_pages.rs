//! The pages of one process at an address of its own: `/metrics`, `/health`, `/ready` and `/dashboard`.
//!
//! Several processes of a service may share a port, or be behind one proxy. A request for `/metrics` then gets the
//! counters of whichever process answers, and counters seem to go back. Programs without a port have no other pages.

use std::fmt;
use std::future::Future;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use batzen_config::{Config, ConfigError, Expected};
use batzen_http::{Drain, Drained, Listen, OwnNames, Server, ServerOptions, Style};
use batzen_metrics::Page;
use tokio::task::JoinHandle;

use crate::app::{App, Monitor};
use crate::readiness::Readiness;
use crate::table::{Api, Table};

/// Number of connections to the pages: monitoring and a few people.
const CONNECTIONS_MAX: usize = 64;
/// Time between two attempts to get an address that an earlier process still has.
const ADDRESS_PAUSE: Duration = Duration::from_millis(500);

/// The address of a process's own pages: `ADDRESS:PORT`. Port 0 picks a free one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagesAddress {
    host: String,
    port: u16,
}

impl PagesAddress {
    /// The expected format, for messages about options.
    const EXPECTED: &'static str = "ADDRESS:PORT, such as 127.0.0.1:9181";

    /// Reads an option of a section.
    ///
    /// # Errors
    /// A value that is no such address, with its place.
    pub fn of(config: &Config, section: &str, option: &str) -> Result<Option<Self>, ConfigError> {
        config.get_with(section, option, |text| text.parse().map_err(|_| Expected::new(Self::EXPECTED)))
    }

    fn listen(&self) -> Listen {
        Listen::tcp(Some(self.host.clone()), self.port)
    }
}

impl FromStr for PagesAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        let parsed =
            parts.and_then(|(host, port)| Some(Self { host: host.to_owned(), port: port.parse().ok()? }));
        parsed.ok_or_else(|| format!("expected {}", Self::EXPECTED))
    }
}

impl fmt::Display for PagesAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}/", self.host, self.port)
    }
}

/// The pages of a service, apart from its own way of answering and counting requests.
struct Own<A>(Arc<A>);

impl<A: App> App for Own<A> {
    fn monitor(&self) -> &Monitor {
        self.0.monitor()
    }

    fn ready(&self) -> impl Future<Output = Readiness> + Send {
        self.0.ready()
    }

    fn write_metrics(&self, page: &mut Page) {
        self.0.write_metrics(page);
    }
}

/// The server of a process's own pages.
#[derive(Debug)]
pub struct OwnPages {
    url: String,
    serving: JoinHandle<Drained>,
}

impl OwnPages {
    /// Serves the pages of `app` at an address until `drain` fires; none without an address. They include the dashboard
    /// if [`fill_dashboard`](crate::fill_dashboard) fills it. `hostnames` are names of the address with dots. With
    /// `succeeds`, another process may still have the address: it is taken as soon as that one has ended.
    ///
    /// # Errors
    /// The error of the system, with the address in its text.
    pub async fn serve<A: App>(
        address: Option<&PagesAddress>,
        app: &Arc<A>,
        hostnames: &OwnNames,
        succeeds: bool,
        drain: &Drain,
    ) -> io::Result<Option<Self>> {
        let Some(address) = address else { return Ok(None) };
        let bound = match Server::bind(address.listen()).await {
            Ok(server) => Some(server),
            Err(error) if succeeds && error.kind() == io::ErrorKind::AddrInUse => {
                tracing::warn!(%error, "the metrics of this process are not served before the address is free");
                None
            }
            Err(error) => {
                return Err(io::Error::new(error.kind(), format!("the address of metrics: {error}")));
            }
        };
        let url = bound.as_ref().map_or_else(|| address.to_string(), |server| server.bound().to_string());
        if bound.is_some() {
            tracing::info!(%url, "the metrics of this process are served");
        }
        let mut table = Table::new(Style::ByPath, &[]).monitored("");
        if app.monitor().is_filled() {
            table = table.with_dashboard("");
        }
        let options = ServerOptions {
            max_connections: CONNECTIONS_MAX,
            hostnames: hostnames.clone(),
            ..ServerOptions::default()
        };
        let api = Arc::new(Api::new(Arc::new(Own(Arc::clone(app))), table));
        let (drain, address) = (drain.clone(), address.clone());
        let serving = tokio::spawn(async move {
            let server = match bound {
                Some(server) => server,
                None => match succeed(&address, &drain).await {
                    Some(server) => server,
                    None => return Drained { cut_off: 0 },
                },
            };
            server.serve(api, options, drain).await
        });
        Ok(Some(Self { url, serving }))
    }

    /// The URL below which the pages are.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The task that serves them, which ends when the drain has fired.
    #[must_use]
    pub fn into_task(self) -> JoinHandle<Drained> {
        self.serving
    }
}

/// Binds an address as soon as it is free; none if the drain fires before.
async fn succeed(address: &PagesAddress, drain: &Drain) -> Option<Server> {
    let mut told = io::ErrorKind::AddrInUse;
    loop {
        if drain.sleep(ADDRESS_PAUSE).await {
            return None;
        }
        match Server::bind(address.listen()).await {
            Ok(server) => {
                tracing::info!(url = %server.bound(), "the metrics of this process are served");
                return Some(server);
            }
            Err(error) if error.kind() == told => {}
            Err(error) => {
                told = error.kind();
                tracing::warn!(%error, "the metrics of this process are not served");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown() {
        for (text, shown) in [
            ("127.0.0.1:9181", "http://127.0.0.1:9181/"),
            ("[::1]:0", "http://[::1]:0/"),
            ("host:1", "http://host:1/"),
        ] {
            assert_eq!(text.parse::<PagesAddress>().unwrap().to_string(), shown);
        }
        for text in ["", "9181", ":9181", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:x"] {
            assert!(text.parse::<PagesAddress>().unwrap_err().contains("ADDRESS:PORT"), "{text}");
        }
    }
}
