//! A bank and an exchange as processes, with one configuration, and wallets of their customers.

use std::path::{Path, PathBuf};
use std::process::Output;

use batzen_crypto::EddsaPrivateKey;
use serde_json::Value;

use super::setup::{config_with, config_with_fees, wait_for};
use super::{Service, free_port, must, must_json, run, stderr, stdout};

/// Their directory, configuration and ports.
pub(crate) struct Site {
    pub dir: tempfile::TempDir,
    pub config: String,
    pub bank_port: u16,
    pub exchange_port: u16,
}

impl Site {
    /// A bank and an exchange that do not run yet. The configuration has these further options.
    pub(crate) fn new(more: &str) -> Self {
        Self::configured(|dir, bank, exchange| config_with(dir, (bank, bank), exchange, more))
    }

    /// The same, where everything costs a fee.
    pub(crate) fn with_fees(more: &str) -> Self {
        Self::configured(|dir, bank, exchange| config_with_fees(dir, bank, exchange, more))
    }

    /// The same with a configuration that is written for this directory and these ports of bank and exchange.
    pub(crate) fn configured(write: impl FnOnce(&Path, u16, u16) -> String) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (bank_port, exchange_port) = (free_port(), free_port());
        let config = write(dir.path(), bank_port, exchange_port);
        Self { dir, config, bank_port, exchange_port }
    }

    /// Starts a command with the configuration, whose log has this name.
    pub(crate) fn start(&self, name: &str, words: &[&str]) -> Service {
        Service::start(self.dir.path(), name, &[words, &["-c", &self.config]].concat())
    }

    /// Starts the bank and waits for it.
    pub(crate) fn start_bank(&self) -> Service {
        let bank = self.start("bank", &["bank", "serve"]);
        wait_for(self.bank_port, "/taler-bank-integration/config");
        bank
    }

    /// Starts the exchange and waits until it can be used.
    pub(crate) fn start_exchange(&self) -> Service {
        self.serve_exchange(&[])
    }

    /// The same with options.
    pub(crate) fn serve_exchange(&self, options: &[&str]) -> Service {
        let exchange = self.start("exchange", &[&["exchange", "serve"][..], options].concat());
        wait_for(self.exchange_port, "/keys");
        wait_for(self.exchange_port, "/wire");
        exchange
    }

    pub(crate) fn bank_url(&self) -> String {
        format!("http://localhost:{}/", self.bank_port)
    }

    pub(crate) fn exchange_url(&self) -> String {
        format!("http://localhost:{}/", self.exchange_port)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs a command with the configuration to completion.
    pub(crate) fn run(&self, words: &[&str]) -> Output {
        run(&[words, &["-c", &self.config]].concat())
    }

    /// Runs a worker once, by a clock that is ahead.
    #[track_caller]
    pub(crate) fn work(&self, worker: &str, later_us: u64) {
        must(&["exchange", worker, "-t", "-c", &self.config, "-T", &later_us.to_string()]);
    }

    /// The exchange's sums. It must not run, unless it is on PostgreSQL.
    #[track_caller]
    pub(crate) fn totals(&self) -> Value {
        totals(&self.config)
    }

    /// The master key of the exchange.
    pub(crate) fn master(&self) -> EddsaPrivateKey {
        let secret = std::fs::read(self.path("home/exchange-offline/master.priv")).unwrap();
        EddsaPrivateKey::from_bytes(secret.try_into().unwrap())
    }

    /// The auditor's report on the exchange's rows at a later time.
    pub(crate) fn audit(&self, later_us: u64) -> (Output, Value) {
        let (master, later) = (self.master().public_key().to_string(), later_us.to_string());
        let words =
            ["auditor", "run", "-m", &master, "-T", &later, "--json", "--no-bank", "--no-confirmations"];
        let output = self.run(&words);
        let report = serde_json::from_str(&stdout(&output));
        let report = report.unwrap_or_else(|_| panic!("{}{}", stdout(&output), stderr(&output)));
        (output, report)
    }

    /// Runs a command of the wallet with this name.
    pub(crate) fn wallet(&self, name: &str, words: &[&str]) -> Output {
        let file = self.path(&format!("{name}.db"));
        run(&[&["wallet", "--wallet", file.to_str().unwrap()][..], words].concat())
    }

    /// The output of such a command, which must succeed.
    #[track_caller]
    pub(crate) fn must_wallet(&self, name: &str, words: &[&str]) -> String {
        let output = self.wallet(name, words);
        assert!(output.status.success(), "{words:?}: {}{}", stdout(&output), stderr(&output));
        stdout(&output)
    }

    /// Withdraws from the bank account `zoe`.
    #[track_caller]
    pub(crate) fn withdraw(&self, wallet: &str, amount: &str) {
        let (bank, exchange) = (self.bank_url(), self.exchange_url());
        let login = ["--bank", &bank, "--user", "zoe", "--password", "zoe"];
        let withdraw = ["withdraw", "--yes", "--amount", amount, "--exchange", &exchange];
        self.must_wallet(wallet, &[&withdraw[..], &login].concat());
    }
}

/// The sums of the exchange with this configuration.
#[track_caller]
pub(crate) fn totals(config: &str) -> Value {
    must_json(&["exchange", "totals", "-c", config, "--json"])
}
