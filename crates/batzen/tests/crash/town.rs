//! A bank and an exchange as real processes, which are killed and started again on the same ports and directories.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use batzen_http::Client;
use batzen_ledger_store::DurableLedger;
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::{Store, TableDef};

use crate::common::{self, PATIENCE, Service};

pub struct Town {
    dir: tempfile::TempDir,
    bank_port: u16,
    exchange_port: u16,
    client: Client,
    bank: Option<Service>,
    exchange: Option<Service>,
}

impl Town {
    pub fn new(client: Client) -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            bank_port: common::free_port(),
            exchange_port: common::free_port(),
            client,
            bank: None,
            exchange: None,
        }
    }

    pub fn exchange_url(&self) -> String {
        format!("http://localhost:{}/", self.exchange_port)
    }

    pub fn bank_url(&self) -> String {
        format!("http://localhost:{}/", self.bank_port)
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// Starts the bank, and waits until it answers.
    pub async fn start_bank(&mut self) {
        let (data, port) = (self.path("bank"), self.bank_port.to_string());
        let arguments = ["bank", "serve", "--currency", "KUDOS", "--data", &data, "--port", &port];
        self.bank = Some(Service::start(self.dir.path(), "bank", &arguments));
        let url = format!("{}taler-bank-integration/config", self.bank_url());
        answers(&self.client, &url, self.bank.as_mut().unwrap()).await;
    }

    /// Starts the exchange, and waits until it answers.
    pub async fn start_exchange(&mut self) {
        let (data, port, bank) = (self.path("exchange"), self.exchange_port.to_string(), self.bank_url());
        let arguments = [
            "exchange",
            "serve",
            "--standalone",
            "--data",
            &data,
            "--port",
            &port,
            "--bank",
            &bank,
            "--rsa-bits",
            "1024",
        ];
        self.exchange = Some(Service::start(self.dir.path(), "exchange", &arguments));
        for page in ["keys", "wire"] {
            let url = format!("{}{page}", self.exchange_url());
            answers(&self.client, &url, self.exchange.as_mut().unwrap()).await;
        }
    }

    pub fn kill_bank(&mut self) {
        self.bank.take().unwrap().kill_9();
    }

    pub fn kill_exchange(&mut self) {
        self.exchange.take().unwrap().kill_9();
    }

    /// Fails if a service ended by itself.
    pub fn assert_runs(&mut self) {
        for service in [&mut self.bank, &mut self.exchange].into_iter().flatten() {
            service.assert_runs();
        }
    }

    /// Ends both as an operator would.
    pub fn stop(&mut self) {
        for service in [self.exchange.take(), self.bank.take()].into_iter().flatten() {
            let (status, _) = service.terminate();
            assert!(status.success(), "a service ended with {status}");
        }
    }

    pub fn exchange_store_dir(&self) -> PathBuf {
        self.dir.path().join("exchange/exchange/store")
    }

    /// A place for a copy of a store.
    pub fn scratch(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The store of the exchange, which must not run.
    pub fn exchange_store(&self) -> Store {
        open(&self.exchange_store_dir(), batzen_tables::exchange::ALL)
    }

    /// Store and ledger of the bank, which must not run.
    pub fn bank_books(&self) -> BankBooks {
        let dir = self.dir.path().join("bank");
        let ledger = batzen_bank::embedded_ledger(&dir).unwrap();
        BankBooks { store: open(&dir, batzen_tables::bank::ALL), ledger }
    }
}

/// What a bank keeps.
pub struct BankBooks {
    pub store: Store,
    pub ledger: Arc<DurableLedger>,
}

impl BankBooks {
    pub fn close(self) {
        self.ledger.stop().unwrap();
        self.store.close().unwrap();
    }
}

/// Opens a store that no process has open.
pub fn open(dir: &Path, tables: &[&'static TableDef]) -> Store {
    assert!(dir.is_dir(), "no store at {}", dir.display());
    Store::new(EmbeddedStore::open(dir, tables, Options::default()).unwrap())
}

async fn answers(client: &Client, url: &str, service: &mut Service) {
    let deadline = Instant::now() + PATIENCE;
    while !matches!(client.get_json(url).await, Ok(reply) if reply.status == 200) {
        assert!(Instant::now() < deadline, "{url} does not answer");
        service.assert_runs();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

impl Drop for Town {
    /// What the services said is needed to understand a failure.
    fn drop(&mut self) {
        if std::thread::panicking() {
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
