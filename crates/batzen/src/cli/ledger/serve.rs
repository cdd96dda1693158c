//! `batzen ledger serve`: the ledger's server process.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use batzen_cli_support::services::{self, Common};
use batzen_cli_support::store_args::StoreArgs;
use batzen_config::Config;
use batzen_http::{Drain, Listen, OwnNames, Server, ServerOptions};
use batzen_ledger::{Ledger, MemoryLedger};
use batzen_ledger_service::net::api::LedgerApi;
use batzen_ledger_service::net::{LedgerServer, NetOptions, NetStats};
use batzen_ledger_service::store::{DurableLedger, DurableOptions};
use batzen_metrics::Page;
use batzen_service::storage::StoreConfig;
use clap::Args;

use crate::cli::{known_options, tokens};

/// Options of `ledger serve`.
#[derive(Args)]
#[command(after_help = "Examples:
  batzen ledger serve --data ./ledger
  batzen ledger sample-config > ledger.conf; batzen ledger serve --config ledger.conf
  batzen ledger serve --store postgres --database postgres:///ledger
  batzen ledger serve --data ./ledger --unix /run/batzen/ledger.sock --no-tcp --http 127.0.0.1:3002

Clients of the binary protocol are not authenticated: listen on a local socket, the loopback
interface, or a private network. Clients of the HTTP interface show the token in DIR/http-token.
Ready when GET /ready of --http answers 200, or a connection is accepted.")]
pub(super) struct ServeArgs {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    store: StoreArgs,
    /// Address of the binary protocol; port 0 picks a free one [default: 127.0.0.1:3001]
    #[arg(long, value_name = "ADDRESS:PORT")]
    tcp: Option<String>,
    /// Do not listen for the binary protocol on TCP
    #[arg(long)]
    no_tcp: bool,
    /// Local socket of the binary protocol
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// Address of the HTTP interface with /metrics and /dashboard, or unix:PATH; port 0 picks a free one [default: none]
    #[arg(long, value_name = "ADDRESS:PORT")]
    http: Option<String>,
    /// File with the token of the HTTP interface's clients; made if missing [default: http-token in the data directory;
    /// none for unix:PATH]
    #[arg(long = "http-token", value_name = "FILE")]
    http_token_file: Option<PathBuf>,
    /// Maximum number of connections of the binary protocol [default: 4096]
    #[arg(long, value_name = "N")]
    connections: Option<usize>,
}

/// A ledger server's configuration: section `[ledger]`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ServeConfig {
    /// Where the log and the balances are kept.
    pub store: StoreConfig,
    /// Address of the binary protocol.
    pub tcp: Option<String>,
    /// Local socket of the binary protocol.
    pub unix: Option<PathBuf>,
    /// Address of the HTTP interface.
    pub http: Option<String>,
    /// File with the token of the HTTP interface's clients.
    pub http_token_file: Option<PathBuf>,
    /// Names under which clients reach the HTTP interface.
    pub hostnames: OwnNames,
    /// Maximum number of connections of the binary protocol.
    pub connections_max: usize,
}

impl ServeConfig {
    /// Reads section `[ledger]`; every option has a default. `TCP = none` turns TCP off.
    ///
    /// # Errors
    /// The first option that is invalid, with its place.
    pub(crate) fn from_ini(ini: &Config) -> anyhow::Result<Self> {
        const LEDGER: &str = "ledger";
        let address = |option: &str, default: Option<&str>| {
            let text = ini.text(LEDGER, option).or(default).filter(|text| *text != "none");
            text.map(|text| listen(text).map(|_| text.to_owned()))
                .transpose()
                .with_context(|| format!("[{LEDGER}] {option}"))
        };
        let connections = ini.number_in(LEDGER, "CONNECTIONS_MAX", 1..=1_000_000)?.unwrap_or(4096);
        Ok(Self {
            store: match StoreConfig::database_of(ini, LEDGER)? {
                Some(database) => database,
                None => {
                    StoreConfig::in_directory(ini.get(LEDGER, "DATA_DIR")?).with_index_memory(ini, LEDGER)?
                }
            },
            tcp: address("TCP", Some("127.0.0.1:3001"))?,
            unix: ini.get(LEDGER, "UNIXPATH")?,
            http: address("HTTP", None)?,
            http_token_file: ini.get(LEDGER, "HTTP_TOKEN_FILE")?,
            hostnames: batzen_service::front(ini, LEDGER)?.1,
            connections_max: usize::try_from(connections).expect("the range fits"),
        })
    }
}

impl ServeArgs {
    /// The configuration of the file, with the command line on top.
    fn config(&self) -> anyhow::Result<ServeConfig> {
        let ini = self.common.load()?;
        known_options::warn(&ini);
        let file = ServeConfig::from_ini(&ini)?;
        Ok(ServeConfig {
            store: self.store.choose(Some(file.store))?.with_index_memory(&ini, "ledger")?,
            tcp: self.tcp.clone().or(file.tcp).filter(|_| !self.no_tcp),
            unix: self.unix.clone().or(file.unix),
            http: self.http.clone().or(file.http),
            http_token_file: self.http_token_file.clone().or(file.http_token_file),
            hostnames: file.hostnames,
            connections_max: self.connections.unwrap_or(file.connections_max),
        })
    }
}

/// The beginning of the address of a local socket: `unix:PATH`.
const UNIX: &str = "unix:";

fn listen(address: &str) -> anyhow::Result<Listen> {
    if let Some(path) = address.strip_prefix(UNIX) {
        return Ok(Listen::Unix { path: path.into(), mode: 0o660 });
    }
    let wrong = || format!("{address}: expected ADDRESS:PORT or unix:PATH");
    let (host, port) = address.rsplit_once(':').with_context(wrong)?;
    Ok(Listen::tcp(Some(host.to_owned()), port.parse().with_context(wrong)?))
}

/// The token that clients of the HTTP interface show. Without one, the permissions of its local socket protect it.
fn http_token(config: &ServeConfig, address: &str) -> anyhow::Result<Option<String>> {
    let path = match (&config.http_token_file, config.store.dir()) {
        (Some(path), _) => path.clone(),
        (None, _) if address.starts_with(UNIX) => return Ok(None),
        (None, Some(dir)) => dir.join("http-token"),
        (None, None) => bail!(
            "the HTTP interface of a ledger without a directory needs a file for its clients' token: \
             --http-token FILE, or --http unix:PATH"
        ),
    };
    tokens::read_or_make(&path).map(Some)
}

/// The ledger that this process serves.
#[derive(Clone)]
enum Books {
    Durable(Arc<DurableLedger>),
    Memory(Arc<MemoryLedger>),
}

impl Books {
    fn open(place: &StoreConfig) -> anyhow::Result<Self> {
        if place.is_memory() {
            return Ok(Self::Memory(Arc::new(MemoryLedger::with_system_clock())));
        }
        let ledger = DurableLedger::open(place, DurableOptions::default())
            .with_context(|| format!("the ledger in {place}"))?;
        Ok(Self::Durable(Arc::new(ledger)))
    }

    fn ledger(&self) -> Arc<dyn Ledger> {
        match self {
            Self::Durable(ledger) => Arc::clone(ledger) as Arc<dyn Ledger>,
            Self::Memory(ledger) => Arc::clone(ledger) as Arc<dyn Ledger>,
        }
    }

    fn write_metrics(&self, page: &mut Page) {
        if let Self::Durable(ledger) = self {
            ledger.write_metrics(page);
        }
    }
}

/// Starts a server of the binary protocol on a separate thread and runtime. Its tasks only move bytes, and
/// gain nothing from moving between threads.
fn serve_binary(
    number: usize,
    listen: Listen,
    ledger: Arc<dyn Ledger>,
    options: NetOptions,
    drain: Drain,
) -> anyhow::Result<(String, Arc<NetStats>, std::thread::JoinHandle<()>)> {
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    let run = move || {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return drop(sender.send(Err(error))),
        };
        runtime.block_on(async move {
            match LedgerServer::bind(listen).await {
                Ok(server) => {
                    let _ = sender.send(Ok((server.url(), server.stats())));
                    server.serve(ledger, options, drain).await;
                }
                Err(error) => drop(sender.send(Err(error))),
            }
        });
    };
    let thread = std::thread::Builder::new().name(format!("net-{number}")).spawn(run)?;
    let (url, stats) = receiver.recv().context("the server's thread ended")??;
    Ok((url, stats, thread))
}

/// Serves until a signal arrives.
pub(super) fn run(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    let runtime = services::runtime().context("cannot start the runtime")?;
    let outcome = runtime.block_on(serve(args));
    runtime.shutdown_background();
    outcome
}

async fn serve(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    let stop = services::stop_signal()?;
    let config = args.config()?;
    let mut listens = Vec::new();
    if let Some(address) = &config.tcp {
        listens.push(listen(address)?);
    }
    if let Some(path) = &config.unix {
        listens.push(Listen::Unix { path: path.clone(), mode: 0o660 });
    }
    if listens.is_empty() && config.http.is_none() {
        bail!("nothing to listen on: leave out --no-tcp, or name --unix or --http");
    }
    let books = Books::open(&config.store)?;
    let ledger = books.ledger();
    let drain = Drain::new();
    let options = NetOptions { connections_max: config.connections_max, ..NetOptions::default() };
    let mut servers = Vec::new();
    for (number, listen) in listens.into_iter().enumerate() {
        servers.push(serve_binary(number, listen, Arc::clone(&ledger), options.clone(), drain.clone())?);
    }
    let mut ready: Vec<String> = servers.iter().map(|(url, ..)| url.clone()).collect();
    let mut http = None;
    if let Some(address) = &config.http {
        let server = Server::bind(listen(address)?).await?;
        ready.push(server.bound().to_string());
        let stats: Vec<Arc<NetStats>> = servers.iter().map(|(_, stats, _)| Arc::clone(stats)).collect();
        let of_books = books.clone();
        let write_metrics = Arc::new(move |page: &mut Page| {
            of_books.write_metrics(page);
            // A page has each metric only once, so it shows the first server, which is the one that remote
            // clients use.
            if let Some(stats) = stats.first() {
                stats.write(page);
            }
        });
        let token = http_token(&config, address)?;
        let mut api = LedgerApi::new(ledger, server.stats(), write_metrics, token.as_deref());
        if let Books::Durable(durable) = &books {
            let durable = Arc::clone(durable);
            api = api.with_store_check(Arc::new(move || {
                durable.store().check_writable().map_err(|error| error.to_string())
            }));
        }
        let api = Arc::new(api);
        batzen_service::fill_dashboard(&api);
        http = Some(tokio::spawn(server.serve(
            Arc::new(api.handler()),
            ServerOptions { hostnames: config.hostnames.clone(), ..ServerOptions::default() },
            drain.clone(),
        )));
    }
    eprintln!("ledger ready: {}", ready.join(" "));
    stop.await;
    drain.trigger();
    if let Some(http) = http
        && http.await.is_err()
    {
        tracing::error!("the HTTP server did not end cleanly");
    }
    let close = move || -> anyhow::Result<()> {
        for (.., thread) in servers {
            if thread.join().is_err() {
                tracing::error!("a server did not end cleanly");
            }
        }
        match &books {
            Books::Durable(ledger) => ledger.stop().context("the ledger's store"),
            Books::Memory(_) => Ok(()),
        }
    };
    tokio::task::spawn_blocking(close).await.context("closing")??;
    Ok(ExitCode::SUCCESS)
}
