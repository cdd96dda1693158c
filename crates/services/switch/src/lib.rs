//! The interbank switch: clears transfers between participants in real time, and settles them in net.
//!
//! A payer's participant posts a transfer; the switch reserves the money in the ledger and forwards the
//! message; the payee's participant answers with the preimage of the transfer's condition; the switch posts
//! the money and notifies the payer. All money is in the ledger ([`batzen_ledger`]); the switch records
//! intents, decisions and notices. See `docs/switch.md`.
//!
//! | module | what |
//! |---|---|
//! | [`messages`], [`values`], [`errors`], [`fulfilment`] | the wire format |
//! | [`rules`] | the effect of a command on the books: pure functions |
//! | [`pipeline`] | the lane: it decides and makes durable, and passes on the consequences |
//! | [`clearing`] | the ledger outbox: from the lane to the ledger and back |
//! | [`treasury`] | liquidity and headroom |
//! | [`approvals`] | changes that operators propose and approve |
//! | [`settlement`] | settlement at the ledger |
//! | `expiry` | transfers that are due |
//! | [`outbox`] | callbacks |
//! | [`forwarding`] | messages that are passed on without a record |
//! | [`api`] | HTTP |
//!
//! Invariants: a message is acknowledged, and a callback sent, only after its cause is durable. A request to
//! the ledger is recorded before it is sent, and repeated under the same id until it is answered. A transfer
//! ends exactly once, and payer and payee are told the same. Over all participants of a currency, the
//! positions' sums of debits and credits are equal.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod api;
pub mod approvals;
mod canonical;
pub mod clearing;
mod clock;
mod config;
pub mod directory;
pub mod errors;
mod expiry;
pub mod forwarding;
pub mod fulfilment;
pub mod ids;
pub mod messages;
pub mod outbox;
pub mod pipeline;
pub mod reports;
pub mod rules;
mod service;
pub mod settlement;
pub mod treasury;
pub mod values;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use batzen_engine::Batcher;
use batzen_http::{Bound, Drain, Drained, Listen, Server, ServerOptions};
use batzen_ledger::{Ledger, Outbox, OutboxTask, RetryingLedger};
use batzen_protocol::Timestamp;
use batzen_store::{Store, StoreError};
use batzen_tables::switch::SwitchAccounts;
use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;

pub use clock::SwitchClock;
pub use config::{Operator, SwitchConfig};
pub use forwarding::Forwarding;
pub use outbox::Delivery;
pub use service::Service;

use clearing::{Clearing, ClearingCounters};
use directory::Directory;
use forwarding::Forwarder;
use outbox::Senders;
use pipeline::{Follow, Lane};
use rules::{Intent, Open, Stamp, SwitchRules};
use treasury::Treasury;

/// The largest body, in bytes.
pub const MAX_BODY_BYTES: usize = 5 << 20;
/// The largest header, in bytes.
pub const MAX_HEADER_BYTES: usize = 64 << 10;
/// Time that shutdown waits for work under way.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// Why a switch cannot start.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// The configuration is inconsistent.
    #[error("{0}")]
    Config(String),
    /// The store cannot be opened or read.
    #[error("the switch's store: {0}")]
    Store(#[from] StoreError),
    /// Work left over from the last run cannot be finished.
    #[error("recovery: {0}")]
    Recovery(#[from] treasury::OperatorError),
    /// An address cannot be bound.
    #[error("{0}")]
    Bind(#[from] std::io::Error),
}

/// A switch.
///
/// Its starts return boxed futures: the code of the service is then compiled once, with this crate, and not
/// again in every program that starts a switch.
pub struct Switch;

/// Passes on the consequences of decisions.
struct Followers {
    clearing: Outbox<Clearing>,
    senders: Senders,
    alarm: Arc<expiry::Alarm>,
}

impl Follow for Followers {
    fn is_full(&self) -> bool {
        self.clearing.is_full()
    }

    fn intended(&self, intents: &[Intent]) {
        self.clearing.send(intents.iter().copied());
    }

    fn told(&self, participants: &[u32]) {
        self.senders.wake(participants);
    }

    fn deadline(&self, millis: u64) {
        self.alarm.set(millis);
    }
}

impl Switch {
    /// Opens the store (or creates a new one), finishes work left over from the last run, binds both ports,
    /// and serves. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn start(
        config: SwitchConfig,
        ledger: Arc<dyn Ledger>,
    ) -> BoxFuture<'static, Result<RunningSwitch, SwitchError>> {
        Box::pin(async move {
            config.check().map_err(SwitchError::Config)?;
            let place = config.store.clone();
            let open = move || place.open(&batzen_service::storage::SWITCH, 1);
            let store = tokio::task::spawn_blocking(open).await.expect("opening a store does not panic")?;
            Self::serve(config, store, ledger).await
        })
    }

    /// The same on a store that is already open.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn start_on(
        config: SwitchConfig,
        store: Store,
        ledger: Arc<dyn Ledger>,
    ) -> BoxFuture<'static, Result<RunningSwitch, SwitchError>> {
        Box::pin(Self::serve(config, store, ledger))
    }

    async fn serve(
        config: SwitchConfig,
        store: Store,
        ledger: Arc<dyn Ledger>,
    ) -> Result<RunningSwitch, SwitchError> {
        config.check().map_err(SwitchError::Config)?;
        let rules = SwitchRules { allow_on_us: config.allow_on_us, ..SwitchRules::default() };
        open_books(rules, &store, &config)?;
        let listen = |port| Listen::tcp(config.listen_host.clone(), port);
        let server = Server::bind(listen(config.port)).await?;
        let admin_server = Server::bind(listen(config.admin_port)).await?;

        let (drain, workers) = (Drain::new(), Drain::new());
        let directory = Arc::new(Directory::default());
        directory.refresh(&store)?;
        let alarm = Arc::new(expiry::Alarm::default());
        let clock = Arc::clone(&config.clock);
        let senders = Senders::new(
            store.clone(),
            Arc::clone(&directory),
            Arc::clone(&clock),
            config.delivery,
            workers.clone(),
        );
        let forwarder =
            Forwarder::new(Arc::clone(&directory), Arc::clone(&clock), config.forwarding, workers.clone());
        let left = clearing::left_behind(&store)?;
        let (outbox, to_clear) = Outbox::new(config.intents_max);
        let (clearing, alarm_set) = (outbox.clone(), Arc::clone(&alarm));
        let followers = Followers { clearing, senders: senders.clone(), alarm: alarm_set };
        if !left.is_empty() {
            tracing::info!(
                transfers = left.iter().map(Vec::len).sum::<usize>(),
                "finishing what was left behind"
            );
        }
        // Sent before everything that the lane decides.
        drop(outbox.repeat(left));
        let requests_max = config.requests_max;
        let lane = Lane::start(rules, store.clone(), Arc::clone(&clock), requests_max, Arc::new(followers))?;
        senders.attach(lane.clone());
        let ledger = RetryingLedger::new(ledger);
        let treasury = Arc::new(Treasury::new(ledger.clone(), lane.clone(), store.clone()));
        let counters = Arc::<ClearingCounters>::default();
        let clearing = Clearing {
            lane: lane.clone(),
            store: store.clone(),
            clock: Arc::clone(&clock),
            counters: Arc::clone(&counters),
            settled: {
                let treasury = Arc::clone(&treasury);
                Box::new(move |intent| {
                    treasury.look_at(intent.payer, intent.currency);
                    treasury.look_at(intent.payee, intent.currency);
                })
            },
        };
        let clearing = to_clear.serve(clearing, ledger);
        let mut tasks = vec![
            tokio::spawn(expiry::run(alarm, store.clone(), lane.clone(), clock, workers.clone())),
            tokio::spawn(Arc::clone(&treasury).run(workers.clone())),
        ];
        treasury.recover().await?;
        let all = store.all::<SwitchAccounts>()?;
        for found in all.into_iter().filter(|found| found.row.ndc.is_some()) {
            treasury.look_at(found.key.participant, found.key.currency);
        }
        senders.serve();

        let options = ServerOptions {
            max_connections: config.max_connections,
            hostnames: config.hostnames.clone(),
            max_in_flight: config.max_connections,
            max_body_bytes: MAX_BODY_BYTES,
            max_header_bytes: MAX_HEADER_BYTES,
            error_form: api::admin::of_the_interface,
            ..ServerOptions::default()
        };
        let (addr, admin_addr) = (tcp_address(&server), tcp_address(&admin_server));
        let (senders, outbox) = ((senders, forwarder), (outbox, counters));
        let monitor = api::monitor(server.stats());
        let service = Arc::new(Service::new(lane, directory, senders, treasury, outbox, config, monitor));
        batzen_service::fill_dashboard(&service);
        tasks.push(tokio::spawn(Arc::clone(&service).watch_approvals(workers.clone())));
        let api = Arc::new(api::participant::api(Arc::clone(&service)));
        let admin = Arc::new(api::admin::api(Arc::clone(&service)));
        let serving = vec![
            tokio::spawn(server.serve(api, options.clone(), drain.clone())),
            tokio::spawn(admin_server.serve(admin, options, drain.clone())),
        ];
        tracing::info!(%addr, %admin_addr, "the switch serves");
        Ok(RunningSwitch { addr, admin_addr, service, drain, workers, serving, clearing, tasks })
    }
}

fn tcp_address(server: &Server) -> SocketAddr {
    let Bound::Tcp(addr) = *server.bound() else { unreachable!("a TCP address was bound") };
    addr
}

/// Writes the state of a new switch.
fn open_books(rules: SwitchRules, store: &Store, config: &SwitchConfig) -> Result<(), StoreError> {
    let micros = (config.clock)();
    let rules = SwitchRules { stamp: Stamp { number: 0, micros }, ..rules };
    let batcher = Batcher::new(Arc::new(rules), store.clone());
    let verdicts = batcher.run(&[Open.into()], &move || Timestamp::from_micros(micros))?;
    assert!(verdicts.iter().all(Result::is_ok), "opening opens");
    Ok(())
}

/// A running switch.
pub struct RunningSwitch {
    /// The address of the participants' interface, with the real port.
    pub addr: SocketAddr,
    /// The address of the operators' interface.
    pub admin_addr: SocketAddr,
    service: Arc<Service>,
    drain: Drain,
    workers: Drain,
    serving: Vec<JoinHandle<Drained>>,
    clearing: OutboxTask,
    tasks: Vec<JoinHandle<()>>,
}

impl RunningSwitch {
    /// The base URL of the participants' interface, with a final slash.
    #[must_use]
    pub fn fsp_url(&self) -> String {
        format!("http://{}/", self.addr)
    }

    /// The base URL of the operators' interface, with a final slash.
    #[must_use]
    pub fn admin_url(&self) -> String {
        format!("http://{}/", self.admin_addr)
    }

    /// The store, for reading.
    #[must_use]
    pub fn store(&self) -> &Store {
        self.service.store()
    }

    /// Executes operators' changes, for tests and set-up within a process.
    #[must_use]
    pub fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// Requests shutdown without waiting for it.
    pub fn stop(&self) {
        self.drain.trigger();
    }

    /// The token that ends the service when it fires, for a signal handler.
    #[must_use]
    pub fn drain(&self) -> &Drain {
        &self.drain
    }

    /// Shuts the service down: new requests are refused, pending requests to the ledger are answered if it
    /// responds soon, and the store is closed. The next start resumes the rest.
    ///
    /// # Errors
    /// When the store's last checkpoint cannot be written; everything acknowledged is durable regardless.
    pub async fn shutdown(self) -> Result<(), StoreError> {
        let Self { service, drain, workers, serving, clearing, tasks, .. } = self;
        drain.trigger();
        batzen_service::ended(serving).await;
        clearing.end(tokio::time::Instant::now() + LAST_ANSWERS).await;
        workers.trigger();
        for task in tasks {
            task.abort();
            let _ = task.await;
        }
        service.monitor.idle().await;
        let close = move || {
            service.close();
            service.store().close()
        };
        tokio::task::spawn_blocking(close).await.expect("closing the store does not panic")
    }
}
