//! An exchange and its bank run by the names that existing set-ups use, with one configuration file.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;

use super::customer::Customer;
use super::setup::{master_key, wait_for};
use super::{Service, by_name, free_port, stderr, stdout, until};

/// The exchange's bank account.
pub(crate) const PAYTO: &str = "payto://x-taler-bank/localhost/exchange?receiver-name=exchange";

fn coin(name: &str, value: &str, cipher: &str) -> String {
    format!(
        "[coin_{name}]\nvalue = KUDOS:{value}\nduration_withdraw = 7 days\nduration_spend = 2 years\n\
         duration_legal = 3 years\nfee_withdraw = KUDOS:0\nfee_deposit = KUDOS:0.01\nfee_refresh = KUDOS:0\n\
         fee_refund = KUDOS:0.01\n{cipher}\n"
    )
}

/// The programs and their directory.
pub(crate) struct DropIn {
    pub dir: tempfile::TempDir,
    pub customer: Arc<Customer>,
}

impl DropIn {
    /// Links for these programs, and a configuration with these additional lines. Nothing runs yet; the master
    /// key exists and is configured.
    pub(crate) fn new(more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let customer = Arc::new(Customer::new(vec![free_port()], free_port()));
        let set_up = Self { dir, customer };
        std::fs::create_dir(set_up.path("bin")).unwrap();
        let text = format!(
            "# An exchange of the test.\n[taler]\ncurrency = KUDOS\ncurrency_round_unit = KUDOS:0.01\n\
             [paths]\ntaler_home = {home}\ntaler_data_home = {home}/data\ntaler_runtime_dir = {home}/run\n\
             [bank]\nhttp_port = {bank}\n\
             [exchange]\nport = {port}\nserve = tcp\nbase_url = http://localhost:{port}/\n\
             [taler-exchange-secmod-rsa]\nlookahead_sign = 1 day\n\
             [taler-exchange-secmod-cs]\nlookahead_sign = 1 day\n\
             [taler-exchange-secmod-eddsa]\nlookahead_sign = 1 day\n\
             [exchange-account-1]\npayto_uri = {PAYTO}\nenable_credit = YES\nenable_debit = YES\n\
             [exchange-accountcredentials-1]\n\
             wire_gateway_url = http://localhost:{bank}/taler-wire-gateway/exchange/\n{}{}{more}",
            coin("one", "1", "cipher = CS"),
            coin("two", "2", "cipher = RSA\nrsa_keysize = 1024"),
            home = set_up.dir.path().display(),
            bank = set_up.customer.bank_port,
            port = set_up.exchange_port(),
        );
        std::fs::write(set_up.config(), text).unwrap();
        let document = set_up.must("taler-exchange-offline", &["setup"]);
        let master = master_key(&document);
        set_up.must("taler-config", &["-s", "exchange", "-o", "master_public_key", "-V", &master]);
        set_up
    }

    pub(crate) fn exchange_port(&self) -> u16 {
        self.customer.exchange_ports[0]
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn config(&self) -> String {
        self.path("taler.conf").to_str().unwrap().to_owned()
    }

    /// The output of a service so far.
    pub(crate) fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(&format!("{name}.log"))).unwrap_or_default()
    }

    /// The program of this name, with the configuration.
    pub(crate) fn program(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = by_name(&self.path("bin"), name);
        command.arg("-c").arg(self.config()).args(arguments);
        command
    }

    /// Runs a program to completion.
    pub(crate) fn run(&self, name: &str, arguments: &[&str]) -> Output {
        self.program(name, arguments).output().unwrap()
    }

    /// The same; it must succeed. Returns its output.
    pub(crate) fn must(&self, name: &str, arguments: &[&str]) -> String {
        let output = self.run(name, arguments);
        assert!(output.status.success(), "{name} {arguments:?}: {}{}", stdout(&output), stderr(&output));
        stdout(&output).trim().to_owned()
    }

    /// Starts a service, whose log has its name.
    pub(crate) fn start(&self, name: &str) -> Service {
        Service::start_command(self.dir.path(), name, self.program(name, &[]))
    }

    /// Starts the bank and waits for it.
    pub(crate) fn start_bank(&self) -> Service {
        let bank = self.start("taler-fakebank-run");
        wait_for(self.customer.bank_port, "/taler-bank-integration/config");
        bank
    }

    /// Starts a key helper and waits until it accepts connections.
    pub(crate) fn start_helper(&self, kind: &str) -> Service {
        let name = format!("taler-exchange-secmod-{kind}");
        let seen = self.log(&name).matches("ready").count();
        let helper = self.start(&name);
        until("the helper is not ready", || self.log(&name).matches("ready").count() > seen);
        helper
    }

    pub(crate) fn offline(&self, steps: &[&str]) {
        self.must("taler-exchange-offline", steps);
    }

    /// Signs keys, account and fees, once the exchange answers.
    pub(crate) fn sign_everything(&self) {
        wait_for(self.exchange_port(), "/management/keys");
        self.offline(&["download", "sign", "upload"]);
        self.offline(&["enable-account", PAYTO, "upload"]);
        self.offline(&["wire-fee", "now", "x-taler-bank", "KUDOS:0", "KUDOS:0", "upload"]);
        self.offline(&["global-fee", "now", "KUDOS:0", "KUDOS:0", "KUDOS:0", "1 h", "1 year", "8", "upload"]);
        wait_for(self.exchange_port(), "/keys");
        wait_for(self.exchange_port(), "/wire");
    }
}
