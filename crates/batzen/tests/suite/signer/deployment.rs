//! Sets up signers, an exchange without private keys, its offline tool and a bank, as an operator does it.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::customer::Customer;
use crate::common::setup::{CS, RSA, coin, keygen, master_key, on_database, shared_config, wait_for};
use crate::common::{self, PATIENCE, Service, must, run, stderr, stdout};

const PAYTO: &str = "payto://x-taler-bank/localhost/exchange?receiver-name=exchange";

/// The options that exchange, signers and offline tool share.
fn common_config(home: &Path) -> String {
    shared_config(home) + &coin("one", "1", "0.01", CS) + &coin("two", "2", "0.01", RSA)
}

/// The directories of three machines and of the offline one, with the services on them.
pub(crate) struct Deployment {
    pub dir: tempfile::TempDir,
    /// Ports of the signers.
    pub ports: [u16; 2],
    pub metrics: [u16; 2],
    pub customer: Arc<Customer>,
    pub signer_keys: [String; 2],
    master: String,
    database: Option<String>,
}

impl Deref for Deployment {
    type Target = Customer;

    fn deref(&self) -> &Customer {
        &self.customer
    }
}

impl Deployment {
    pub(crate) fn new() -> Self {
        Self::with(1, None)
    }

    /// The same with two services on one database, whose tables are created.
    pub(crate) fn on_database(url: &str) -> Self {
        batzen_service::storage::StoreConfig::postgres(url.to_owned())
            .prepare(&batzen_service::storage::EXCHANGE)
            .unwrap();
        Self::with(2, Some(url.to_owned()))
    }

    fn with(nodes: usize, database: Option<String>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let key = |name: &str| keygen(&path(&format!("{name}/static.key")));
        let signer_keys = [key("signer-0"), key("signer-1")];
        let node_keys: Vec<String> = (0..nodes).map(|number| key(&format!("node-{number}"))).collect();
        assert_eq!(key("node-0"), node_keys[0], "a key that is there stays");
        let listed: String = (node_keys.iter().enumerate())
            .map(|(number, key)| format!("[signer-node-{number}]\nPUBLIC_KEY = {key}\n"))
            .collect();

        let exchange_ports: Vec<u16> = (0..nodes).map(|_| common::free_port()).collect();
        let offline = path("offline.conf");
        let config = format!(
            "{}[exchange]\nBASE_URL = http://localhost:{}/\n",
            common_config(&dir.path().join("offline")),
            exchange_ports[0]
        );
        std::fs::write(&offline, config).unwrap();
        let master = master_key(&must(&["exchange", "offline", "-c", &offline, "setup"]));

        let ports = [common::free_port(), common::free_port()];
        let metrics = [common::free_port(), common::free_port()];
        for own in 0..2 {
            let other = 1 - own;
            let role = ["primary", "follower"][own];
            let home = dir.path().join(format!("signer-{own}"));
            let text = format!(
                "{}[exchange]\nMASTER_PUBLIC_KEY = {master}\n\
                 [signer]\nLISTEN = tcp://127.0.0.1:{}\nKEY_FILE = {}/static.key\nROLE = {role}\n\
                 HTTP = 127.0.0.1:{}\n\
                 {listed}[signer-peer-other]\nPUBLIC_KEY = {}\nADDRESS = tcp://127.0.0.1:{}\n",
                common_config(&home),
                ports[own],
                home.display(),
                metrics[own],
                signer_keys[other],
                ports[other],
            );
            std::fs::write(dir.path().join(format!("signer-{own}.conf")), text).unwrap();
        }
        let customer = Arc::new(Customer::new(exchange_ports, common::free_port()));
        let deployment = Self { dir, ports, metrics, customer, signer_keys, master, database };
        for number in 0..nodes {
            let config = deployment.node_config(number, &deployment.signer_keys.join(", "));
            std::fs::write(deployment.path(&format!("node-{number}.conf")), config).unwrap();
        }
        deployment
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// The configuration of one of the exchange's services, which expects these keys of its signers.
    pub(crate) fn node_config(&self, number: usize, signer_keys: &str) -> String {
        let database = self.database.as_deref().map_or_else(String::new, on_database);
        format!(
            "{}{database}[exchange]\nPORT = {}\nBASE_URL = http://localhost:{}/\nBIND_TO = 127.0.0.1\n\
             MASTER_PUBLIC_KEY = {}\nSIGNERS = tcp://127.0.0.1:{}, tcp://127.0.0.1:{}\n\
             SIGNER_PUBLIC_KEYS = {signer_keys}\nSIGNER_KEY_FILE = {}\n\
             [exchange-account-1]\nPAYTO_URI = {PAYTO}\nENABLE_CREDIT = YES\nENABLE_DEBIT = YES\n\
             [exchange-accountcredentials-1]\n\
             WIRE_GATEWAY_URL = http://localhost:{}/taler-wire-gateway/exchange/\n",
            common_config(&self.path(&format!("node-{number}"))),
            self.exchange_ports[number],
            self.exchange_ports[0],
            self.master,
            self.ports[0],
            self.ports[1],
            self.text(&format!("node-{number}/static.key")),
            self.bank_port,
        )
    }

    pub(crate) fn start_signer(&self, number: usize) -> Service {
        let name = format!("signer-{number}");
        let config = self.text(&format!("{name}.conf"));
        let service = Service::start(self.dir.path(), &name, &["signer", "serve", "-c", &config]);
        wait_for(self.metrics[number], "/metrics");
        service
    }

    /// Starts one of the exchange's services.
    pub(crate) fn start_exchange(&self, number: usize) -> Service {
        let name = format!("node-{number}");
        let config = self.text(&format!("{name}.conf"));
        Service::start(self.dir.path(), &name, &["exchange", "serve", "-c", &config])
    }

    /// Starts bank and exchange, with everything signed as an operator would.
    pub(crate) fn open(&self) -> (Service, Vec<Service>) {
        let (data, port) = (self.text("bank"), self.bank_port.to_string());
        let bank = ["bank", "serve", "--currency", "KUDOS", "--data", &data, "--port", &port];
        let bank = Service::start(self.dir.path(), "bank", &bank);
        wait_for(self.bank_port, "/taler-bank-integration/config");
        let nodes: Vec<Service> =
            (0..self.exchange_ports.len()).map(|number| self.start_exchange(number)).collect();
        for port in &self.exchange_ports {
            wait_for(*port, "/management/keys");
        }
        self.sign_new_keys();
        for steps in [
            &["enable-account", PAYTO, "upload"][..],
            &["wire-fee", "now", "x-taler-bank", "KUDOS:0", "KUDOS:0", "upload"],
            &["global-fee", "now", "KUDOS:0", "KUDOS:0", "KUDOS:0", "1 h", "1 year", "8", "upload"],
        ] {
            self.offline(steps);
        }
        // The offline tool has talked only to the first.
        for port in &self.exchange_ports {
            wait_for(*port, "/keys");
            wait_for(*port, "/wire");
        }
        (bank, nodes)
    }

    pub(crate) fn offline(&self, steps: &[&str]) {
        let config = self.text("offline.conf");
        must(&[&["exchange", "offline", "-c", &config][..], steps].concat());
    }

    pub(crate) fn sign_new_keys(&self) {
        self.offline(&["download", "sign", "upload"]);
    }

    /// The output of `signer status --json`.
    pub(crate) fn status(&self, number: usize) -> Value {
        let config = self.text(&format!("signer-{number}.conf"));
        let output = run(&["signer", "status", "-c", &config, "--json"]);
        serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("{}", stderr(&output)))
    }

    /// Waits until the signers agree.
    pub(crate) fn wait_same_keys(&self, ask: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.status(ask)["same_keys"] != true {
            assert!(Instant::now() < deadline, "{:#}", self.status(ask));
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn names_below(dir: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        names.push(entry.path().display().to_string());
        if entry.file_type().unwrap().is_dir() {
            names.extend(names_below(&entry.path()));
        }
    }
    names
}

/// The exchange holds no private key of the modules: it has no such file open, and there is none below its
/// directory.
pub(crate) fn assert_no_private_keys(deployment: &Deployment, node: &str, exchange: &Service) {
    let open = format!("/proc/{}/fd", exchange.child.id());
    for entry in std::fs::read_dir(open).unwrap().map(Result::unwrap) {
        // The file may have been closed meanwhile.
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        assert!(!target.to_string_lossy().contains("secmod"), "{} is open", target.display());
    }
    for name in names_below(&deployment.path(node)) {
        assert!(!name.contains("secmod"), "{name}");
    }
    assert!(names_below(&deployment.path("signer-0")).iter().any(|name| name.contains("secmod")));
}
