//! A bank and an exchange as real processes, which are killed and restarted on the same ports and
//! directories.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use batzen_http::client::Client;
use batzen_ledger_service::store::DurableLedger;
use batzen_service::storage::StoreConfig;
use batzen_store::Store;
use batzen_testkit::postgres::{CitusCluster, Cluster};

use crate::common::setup::{COINS, LIMITS, config_with_fees};
use crate::common::{self, PATIENCE, Service};
use crate::crash::{false_claims, run};

/// The exchange's store in its directory.
pub(crate) const EXCHANGE_STORE: &str = "exchange/exchange/store";
/// The database of exchange and bank.
const DATABASE: &str = "money";
/// The numbers of lanes that the exchange has after one start and the next, unless `BATZEN_KILLS_LANES` says how many.
const LANES: [u64; 2] = [4, 1];

/// The exchange's workers, each in front of those that go on with what it does.
pub(crate) const WORKERS: [&str; 5] = ["wirewatch", "expire", "closer", "aggregator", "transfer"];

enum Servers {
    /// One server, which may have a standby.
    One { server: Cluster, standby: Option<Cluster> },
    /// The exchange's tables are on all nodes, and those of the bank on the coordinator.
    Citus(CitusCluster),
}

struct Database {
    servers: Servers,
    url: String,
}

impl Database {
    /// The server that takes all statements.
    fn server(&self) -> &Cluster {
        match &self.servers {
            Servers::One { server, .. } => server,
            Servers::Citus(cluster) => cluster.coordinator(),
        }
    }

    fn server_mut(&mut self) -> &mut Cluster {
        match &mut self.servers {
            Servers::One { server, .. } => server,
            Servers::Citus(cluster) => cluster.coordinator_mut(),
        }
    }

    fn is_citus(&self) -> bool {
        matches!(self.servers, Servers::Citus(_))
    }

    fn sql(&self, sql: &str) -> String {
        self.server().sql(DATABASE, sql).unwrap()
    }
}

pub(crate) struct Deployment {
    dir: tempfile::TempDir,
    /// The database of both, if they have one.
    database: Option<Database>,
    /// The bank's ledger, if it is elsewhere.
    ledger: Option<String>,
    bank_port: u16,
    exchange_port: u16,
    client: Client,
    bank: Option<Service>,
    exchange: Option<Service>,
    /// The programs that do the exchange's work, if it does not do it itself.
    workers: Option<BTreeMap<&'static str, Service>>,
    /// Number of starts of the exchange.
    starts: usize,
    /// More of the exchange's configuration.
    more: String,
    /// The parts of it that were written, and the file.
    config: Option<(String, String)>,
}

impl Deployment {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            database: None,
            ledger: None,
            bank_port: common::free_port(),
            exchange_port: common::free_port(),
            client,
            bank: None,
            exchange: None,
            workers: None,
            starts: 0,
            more: String::new(),
            config: None,
        }
    }

    /// The same with the bank's money in the ledger at this address.
    pub(crate) fn on_ledger(client: Client, url: &str) -> Self {
        let mut deployment = Self::new(client);
        deployment.ledger = Some(url.to_owned());
        deployment
    }

    /// The same with the rows of both in a database of this PostgreSQL server, which may have a standby.
    pub(crate) fn on_database(client: Client, primary: Cluster, standby: Option<Cluster>) -> Self {
        let mut deployment = Self::new(client);
        primary.create_database(DATABASE).unwrap();
        let url = standby.as_ref().map(|standby| primary.url_or(standby, DATABASE));
        let url = url.unwrap_or_else(|| primary.url(DATABASE));
        deployment.database = Some(Database { servers: Servers::One { server: primary, standby }, url });
        deployment
    }

    /// The same with the exchange's rows in this many shards on a Citus cluster.
    pub(crate) fn on_citus(client: Client, cluster: CitusCluster, shards: u16) -> Self {
        let mut deployment = Self::new(client);
        let url = cluster.create_database(DATABASE).unwrap();
        let shards = shards.to_string();
        common::must(&["exchange", "dbinit", "--citus", "--shards", &shards, "--database", &url]);
        deployment.database = Some(Database { servers: Servers::Citus(cluster), url });
        deployment
    }

    /// Adds to the exchange's configuration.
    pub(crate) fn configure(&mut self, more: &str) {
        self.more += more;
    }

    /// The log of the server that takes all statements.
    pub(crate) fn database_log(&self) -> String {
        self.database.as_ref().expect("a deployment on a database").server().log()
    }

    /// The result of a query of the database.
    pub(crate) fn sql(&self, sql: &str) -> String {
        tokio::task::block_in_place(|| self.database.as_ref().expect("a deployment on a database").sql(sql))
    }

    pub(crate) fn kill_worker(&mut self, number: usize) {
        tokio::task::block_in_place(|| self.worker(number).kill9().unwrap());
    }

    pub(crate) fn start_worker(&mut self, number: usize) {
        tokio::task::block_in_place(|| self.worker(number).start_again().unwrap());
    }

    fn worker(&mut self, number: usize) -> &mut Cluster {
        match &mut self.database().servers {
            Servers::Citus(cluster) => &mut cluster.workers_mut()[number],
            Servers::One { .. } => panic!("one server has no workers"),
        }
    }

    fn database(&mut self) -> &mut Database {
        self.database.as_mut().expect("a deployment on a database")
    }

    /// Kills the server that takes all statements.
    pub(crate) fn kill_database(&mut self) {
        tokio::task::block_in_place(|| self.database().server_mut().kill9().unwrap());
    }

    pub(crate) fn start_database(&mut self) {
        tokio::task::block_in_place(|| self.database().server_mut().start_again().unwrap());
    }

    /// From now on the standby is the server.
    pub(crate) fn promote(&mut self) {
        let Servers::One { server, standby } = &mut self.database().servers else {
            panic!("a Citus cluster has no standby")
        };
        let standby = standby.take().expect("there is a standby");
        tokio::task::block_in_place(|| standby.promote().unwrap());
        *server = standby;
    }

    /// The exchange's store without the last acknowledged commit, with a description of the cut. It is a copy, except
    /// on Citus, until [`Deployment::put_back`].
    pub(crate) fn cut_off(&self) -> (String, Store) {
        let Some(database) = &self.database else {
            let copy = self.dir.path().join("cut-off");
            let commits = false_claims::cut_off(&self.dir.path().join(EXCHANGE_STORE), &copy);
            let copy = StoreConfig::embedded(copy).open(&batzen_service::storage::EXCHANGE, 1).unwrap();
            return (format!("the last {commits} commits"), copy);
        };
        let what = "the last melt".to_owned();
        if database.is_citus() {
            let serial = database.sql("SELECT max(serial) FROM exchange.melts");
            let last = format!("exchange.melts WHERE serial = {serial}");
            database.sql(&format!("CREATE TABLE public.cut_off AS SELECT * FROM {last}"));
            database.sql(&format!("DELETE FROM {last}"));
            return (what, self.exchange_store());
        }
        let sql = format!("CREATE DATABASE cut_off TEMPLATE {DATABASE}");
        database.server().sql("postgres", &sql).unwrap();
        let last = "DELETE FROM exchange.melts WHERE serial = (SELECT max(serial) FROM exchange.melts)";
        database.server().sql("cut_off", last).unwrap();
        let url = database.url.replace(&format!("/{DATABASE}"), "/cut_off");
        let copy = StoreConfig::postgres(url).open(&batzen_service::storage::EXCHANGE, 1).unwrap();
        (what, copy)
    }

    /// Makes good what [`Deployment::cut_off`] took, if that was no copy.
    pub(crate) fn put_back(&self) {
        if let Some(database) = self.database.as_ref().filter(|database| database.is_citus()) {
            database.sql("INSERT INTO exchange.melts SELECT * FROM public.cut_off");
        }
    }

    /// The storage of a service, as the tests open it.
    fn store(&self, dir: &str) -> StoreConfig {
        match &self.database {
            Some(database) => StoreConfig::postgres(database.url.clone()),
            None => {
                let dir = self.dir.path().join(dir);
                assert!(dir.is_dir(), "no store at {}", dir.display());
                StoreConfig::embedded(dir)
            }
        }
    }

    /// The same as arguments of the services.
    fn store_arguments(&self) -> Vec<String> {
        let database = self.database.iter();
        database
            .flat_map(|database| ["--store", "postgres", "--database", &database.url])
            .map(str::to_owned)
            .collect()
    }

    /// The address of the database.
    pub(crate) fn database_url(&self) -> String {
        self.database.as_ref().expect("a deployment on a database").url.clone()
    }

    pub(crate) fn exchange_url(&self) -> String {
        format!("http://localhost:{}/", self.exchange_port)
    }

    pub(crate) fn bank_url(&self) -> String {
        format!("http://localhost:{}/", self.bank_port)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// Starts the bank.
    pub(crate) fn launch_bank(&mut self) {
        let (data, port) = (self.path("bank"), self.bank_port.to_string());
        let store = self.store_arguments();
        let mut arguments = vec!["bank", "serve", "--currency", "KUDOS", "--port", &port];
        arguments.extend(self.ledger.iter().flat_map(|url| ["--ledger", url.as_str()]));
        match store.is_empty() {
            true => arguments.extend(["--data", &data]),
            false => arguments.extend(store.iter().map(String::as_str)),
        }
        self.bank = Some(Service::start(self.dir.path(), "bank", &arguments));
    }

    /// Starts the bank, and waits until it answers.
    pub(crate) async fn start_bank(&mut self) {
        self.launch_bank();
        self.wait_for_bank().await;
    }

    /// Waits until the bank answers.
    pub(crate) async fn wait_for_bank(&mut self) {
        let url = format!("{}taler-bank-integration/config", self.bank_url());
        answers(&self.client, &url, self.bank.as_mut().unwrap()).await;
    }

    /// Starts the exchange.
    pub(crate) fn launch_exchange(&mut self) {
        let data = self.path("exchange");
        let store = self.store_arguments();
        let config = self.exchange_config();
        // On Citus, an exchange has a lane for each shard if it is not told otherwise.
        let is_citus = self.database.as_ref().is_some_and(Database::is_citus);
        let usual = (!is_citus).then_some(LANES[self.starts % LANES.len()]);
        let lanes = run::number("BATZEN_KILLS_LANES").or(usual).map(|lanes| lanes.to_string());
        self.starts += 1;
        let mut arguments = vec!["exchange", "serve", "--standalone", "-c", &config, "--data", &data];
        arguments.extend(lanes.iter().flat_map(|lanes| ["--lanes", lanes.as_str()]));
        arguments.extend(self.workers.iter().map(|_| "--no-workers"));
        // The keys stay in the directory.
        arguments.extend(store.iter().skip(2).map(String::as_str));
        self.exchange = Some(Service::start(self.dir.path(), "exchange", &arguments));
    }

    /// The file with the exchange's configuration. It is written only if it changes, since programs may be reading it.
    fn exchange_config(&mut self) -> String {
        let more = format!("{COINS}{LIMITS}{}", self.more);
        if let Some((_, file)) = self.config.as_ref().filter(|(written, _)| *written == more) {
            return file.clone();
        }
        let file = config_with_fees(self.dir.path(), self.bank_port, self.exchange_port, &more);
        self.config.insert((more, file)).1.clone()
    }

    /// From now on programs of their own do the exchange's work.
    pub(crate) fn separate_workers(&mut self) {
        let database = self.database.iter();
        let place = database.map(|database| {
            format!("[exchange]\nDB = postgres\n[exchangedb-postgres]\nCONFIG = {}\n", database.url)
        });
        self.more += &place.collect::<String>();
        self.workers = Some(BTreeMap::new());
    }

    fn worker_arguments(&mut self, name: &str) -> Vec<String> {
        let (config, data) = (self.exchange_config(), self.path("exchange"));
        ["exchange", name, "-c", &config, "--data", &data].map(str::to_owned).into()
    }

    fn worker_programs(&mut self) -> &mut BTreeMap<&'static str, Service> {
        self.workers.as_mut().expect("the exchange's workers are programs")
    }

    /// Starts the programs that do the exchange's work and do not run. Returns how many had ended by themselves, as they
    /// do when the exchange's service or database ends.
    pub(crate) fn start_worker_programs(&mut self) -> usize {
        let mut ended = 0;
        for name in WORKERS {
            let old = self.worker_programs().get_mut(name);
            let status = old.map(|service| service.child.try_wait().unwrap());
            if status == Some(None) {
                continue;
            }
            ended += usize::from(status.is_some());
            let arguments = self.worker_arguments(name);
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let service = Service::start(self.dir.path(), name, &arguments);
            self.worker_programs().insert(name, service);
        }
        ended
    }

    /// Kills one of these programs, if it runs.
    pub(crate) fn kill_worker_program(&mut self, name: &'static str) {
        if let Some(mut service) = self.worker_programs().remove(name) {
            service.kill_9();
        }
    }

    /// Ends these programs, and does all the work that is left.
    pub(crate) fn finish_work(&mut self) {
        for (_, service) in std::mem::take(self.worker_programs()) {
            service.terminate();
        }
        for name in WORKERS {
            let arguments = self.worker_arguments(name);
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(["-t"]).collect();
            common::must(&arguments);
        }
    }

    /// Starts the exchange, and waits until it answers.
    pub(crate) async fn start_exchange(&mut self) {
        self.launch_exchange();
        self.wait_for_exchange().await;
    }

    /// The exchange's master key.
    pub(crate) async fn master_key(&self) -> String {
        let url = format!("{}keys", self.exchange_url());
        let keys: serde_json::Value = self.client.get_json(url).await.unwrap().ok().unwrap();
        keys["master_public_key"].as_str().unwrap().to_owned()
    }

    /// Waits until the exchange answers.
    pub(crate) async fn wait_for_exchange(&mut self) {
        for page in ["keys", "wire"] {
            let url = format!("{}{page}", self.exchange_url());
            answers(&self.client, &url, self.exchange.as_mut().unwrap()).await;
        }
    }

    /// Returns whether the bank runs.
    pub(crate) fn has_bank(&self) -> bool {
        self.bank.is_some()
    }

    /// The running bank.
    pub(crate) fn bank(&mut self) -> &mut Service {
        self.bank.as_mut().expect("the bank runs")
    }

    /// The running exchange.
    pub(crate) fn exchange(&mut self) -> &mut Service {
        self.exchange.as_mut().expect("the exchange runs")
    }

    pub(crate) fn kill_bank(&mut self) {
        self.bank.take().expect("the bank runs").kill_9();
    }

    pub(crate) fn kill_exchange(&mut self) {
        self.exchange.take().unwrap().kill_9();
    }

    /// Fails if a service ended by itself.
    pub(crate) fn assert_runs(&mut self) {
        for service in [&mut self.bank, &mut self.exchange].into_iter().flatten() {
            service.assert_runs();
        }
    }

    /// Ends both as an operator would.
    pub(crate) fn stop(&mut self) {
        for service in [self.exchange.take(), self.bank.take()].into_iter().flatten() {
            let (status, _) = service.terminate();
            assert!(status.success(), "a service ended with {status}");
        }
    }

    /// The store of the exchange, which must not run.
    pub(crate) fn exchange_store(&self) -> Store {
        self.store(EXCHANGE_STORE).open(&batzen_service::storage::EXCHANGE, 1).unwrap()
    }

    /// Store and ledger of the bank, which must not run.
    pub(crate) fn bank_books(&self) -> BankBooks {
        let place = self.store("bank");
        let (store, ledger) = batzen_bank::embedded_books(&place).unwrap();
        BankBooks { store, ledger }
    }
}

/// A bank's store and ledger.
pub(crate) struct BankBooks {
    pub store: Store,
    pub ledger: Arc<DurableLedger>,
}

impl BankBooks {
    pub(crate) fn close(self) {
        self.ledger.stop().unwrap();
        self.store.close().unwrap();
    }
}

async fn answers(client: &Client, url: &str, service: &mut Service) {
    let deadline = Instant::now() + PATIENCE;
    while !matches!(client.get_json(url).await, Ok(reply) if reply.status == 200) {
        assert!(Instant::now() < deadline, "{url} does not answer");
        service.assert_runs();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

impl Drop for Deployment {
    /// The services' output and files are needed to understand a failure.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.dir.disable_cleanup(true);
            eprintln!("the data is kept in {}", self.dir.path().display());
            for name in ["bank", "exchange"] {
                let log = self.dir.path().join(format!("{name}.log"));
                let text = std::fs::read_to_string(log).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                let last = lines[lines.len().saturating_sub(40)..].join("\n");
                eprintln!("--- the last lines of {name}:\n{last}");
            }
        }
    }
}
