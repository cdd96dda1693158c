//! The exchange: its tables, signers, processes and workers, and the offline tool that signs its keys.

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::{ACCOUNT, SetUp, call, common, put_section, worker_pages};
use crate::bench::load::wire;
use crate::experiment::placement::Instance;
use crate::experiment::topology::Role;

impl SetUp<'_> {
    /// Makes the tables of the exchange, if it has a database.
    pub(super) fn make_tables(&mut self) -> anyhow::Result<()> {
        let Some(url) = self.database_url() else { return Ok(()) };
        let first = self.experiment.of(Role::Exchange).into_iter().next().context("there is an exchange")?;
        let mut text = self.common_of(&first)?;
        put_section(&mut text, "exchange", &[("DB", "postgres".to_owned())]);
        put_section(&mut text, "exchangedb-postgres", &[("CONFIG", url)]);
        // In a file, since everybody on a machine can read the arguments of commands.
        let path = self.dir(&first)?.join("dbinit.conf");
        self.agent(&first)?.put(&path, &text)?;
        let path = path.to_string_lossy();
        let mut words = vec!["exchange", "dbinit", "-c", &path];
        if !self.experiment.of(Role::Citus).is_empty() {
            words.push("--citus");
        }
        self.run(&first, &words).map(drop)
    }

    /// Tells the signers about the present processes of the exchange, which they learn at their start.
    ///
    /// # Errors
    /// When one does not come back.
    pub(in crate::experiment) fn update_signers(&mut self) -> anyhow::Result<()> {
        self.experiment.of(Role::Signer).iter().try_for_each(|signer| self.restart(signer))
    }

    /// Waits until an instance that joined can be used like the others of its role.
    ///
    /// # Errors
    /// When it does not become ready.
    pub(in crate::experiment) fn wait_open(&mut self, instance: &Instance) -> anyhow::Result<()> {
        if instance.role != Role::Exchange {
            return Ok(());
        }
        for path in ["/keys", "/wire", "/ready"] {
            self.wait_until(instance, (&instance.authority(), path))?;
        }
        Ok(())
    }

    /// The public half of a static key of an instance, which is made if there is none.
    pub(super) fn static_key(&mut self, instance: &Instance, name: &str) -> anyhow::Result<String> {
        let path = self.dir(instance)?.join(name).to_string_lossy().into_owned();
        Ok(self.run(instance, &["signer", "keygen", &path])?.trim().to_owned())
    }

    pub(super) fn common_of(&self, instance: &Instance) -> anyhow::Result<String> {
        let topology = &self.experiment.topology;
        Ok(common(
            &topology.currency,
            topology.rsa_bits,
            &self.dir(instance)?,
            &self.scratch(instance)?.join("run"),
        ))
    }

    /// Runs steps of the offline tool on this machine, where the master key is.
    pub(super) fn offline(&self, steps: &[&str]) -> anyhow::Result<String> {
        let dir = self.experiment.dir.join("offline");
        let conf = dir.join("conf");
        if !conf.exists() {
            batzen_cli_support::services::directory(&dir)?;
            let topology = &self.experiment.topology;
            let mut text = common(&topology.currency, topology.rsa_bits, &dir, &dir);
            let exchanges = self.experiment.of(Role::Exchange);
            let first = exchanges.first().context("the topology has no exchange")?;
            put_section(&mut text, "exchange", &[("BASE_URL", format!("http://{}/", first.authority()))]);
            std::fs::write(&conf, text)?;
        }
        let program = self.experiment.state.own_bin_dir.join("batzen");
        let output = std::process::Command::new(&program)
            .args(["exchange", "offline", "-c"])
            .arg(&conf)
            .args(steps)
            .env("HOME", &dir)
            .output()
            .with_context(|| program.display().to_string())?;
        ensure!(
            output.status.success(),
            "exchange offline: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The master key's public half, which the offline tool makes.
    pub(super) fn master_pub(&mut self) -> anyhow::Result<String> {
        if let Some(key) = &self.experiment.state.master_pub {
            return Ok(key.clone());
        }
        let setup = self.offline(&["setup"])?;
        let mut words = setup.split(|c: char| !c.is_ascii_alphanumeric());
        let key = words.find(|word| word.len() == 52).context("the offline tool shows no key")?.to_owned();
        self.experiment.state.master_pub = Some(key.clone());
        self.experiment.save()?;
        Ok(key)
    }

    pub(super) fn start_signer(&mut self, instance: &Instance) -> anyhow::Result<()> {
        let mut text = self.common_of(instance)?;
        put_section(&mut text, "exchange", &[("MASTER_PUBLIC_KEY", self.master_pub()?)]);
        let http = format!("{}:{}", instance.address, instance.ports[1]);
        let key = self.dir(instance)?.join("static.key").display().to_string();
        let options = [
            ("LISTEN", format!("tcp://{}", instance.authority())),
            ("KEY_FILE", key),
            ("ROLE", if instance.index == 0 { "primary" } else { "follower" }.to_owned()),
            ("HTTP", http.clone()),
        ];
        put_section(&mut text, "signer", &options);
        for node in self.nodes() {
            let key = self.static_key(&node, "node.key")?;
            put_section(&mut text, &format!("signer-node-{}", node.name), &[("PUBLIC_KEY", key)]);
        }
        for peer in self.experiment.of(Role::Signer) {
            let key = self.static_key(&peer, "static.key")?;
            if peer.name != instance.name {
                let address = format!("tcp://{}", peer.authority());
                let options = [("PUBLIC_KEY", key), ("ADDRESS", address)];
                put_section(&mut text, &format!("signer-peer-{}", peer.name), &options);
            }
        }
        let conf = self.configure(instance, text)?;
        self.serve(instance, &["signer", "serve", "-c", &conf], (&http, "/metrics"))
    }

    /// The instances whose programs have signatures made, or could after the topology has grown.
    pub(super) fn nodes(&self) -> Vec<Instance> {
        self.experiment.of(Role::Exchange)
    }

    /// The configuration of a process of the exchange.
    pub(super) fn exchange_config(&mut self, instance: &Instance) -> anyhow::Result<String> {
        let mut text = self.common_of(instance)?;
        let mut options = vec![
            ("BASE_URL", self.experiment.exchange_url()),
            ("BIND_TO", instance.address.clone()),
            ("AGGREGATOR_IDLE_SLEEP_INTERVAL", "1 s".to_owned()),
            ("TRANSFER_IDLE_SLEEP_INTERVAL", "1 s".to_owned()),
            ("WIREWATCH_IDLE_SLEEP_INTERVAL", "1 s".to_owned()),
        ];
        if instance.role == Role::Exchange {
            options.push(("PORT", instance.port().to_string()));
        }
        if let Some(proxy) = self.experiment.of(Role::Proxy).pop() {
            options.push(("TRUSTED_PROXIES", proxy.address));
        }
        if let Some(url) = self.database_url() {
            options.push(("DB", "postgres".to_owned()));
            put_section(&mut text, "exchangedb-postgres", &[("CONFIG", url)]);
        }
        let signers = self.experiment.of(Role::Signer);
        if signers.is_empty() {
            let currency = &self.experiment.topology.currency;
            let fee = format!("{currency}:0.01");
            let standalone = [("ENABLED", "YES".to_owned()), ("WIRE_FEE", fee.clone()), ("CLOSING_FEE", fee)];
            put_section(&mut text, "exchange-standalone", &standalone);
        } else {
            let addresses: Vec<String> =
                signers.iter().map(|signer| format!("tcp://{}", signer.authority())).collect();
            let mut keys = Vec::new();
            for signer in &signers {
                keys.push(self.static_key(signer, "static.key")?);
            }
            options.push(("MASTER_PUBLIC_KEY", self.master_pub()?));
            options.push(("SIGNERS", addresses.join(", ")));
            options.push(("SIGNER_PUBLIC_KEYS", keys.join(", ")));
            options.push(("SIGNER_KEY_FILE", self.dir(instance)?.join("node.key").display().to_string()));
        }
        put_section(&mut text, "exchange", &options);
        let account = [
            ("PAYTO_URI", self.payto(ACCOUNT)?),
            ("ENABLE_CREDIT", "YES".to_owned()),
            ("ENABLE_DEBIT", "YES".to_owned()),
        ];
        put_section(&mut text, "exchange-account-1", &account);
        put_section(&mut text, "exchange-accountcredentials-1", &self.gateway()?);
        Ok(text)
    }

    /// The way to the exchange's account at the bank.
    pub(super) fn gateway(&self) -> anyhow::Result<[(&'static str, String); 2]> {
        let url = self.experiment.gateway_url()?;
        Ok([("WIRE_GATEWAY_URL", url), ("WIRE_GATEWAY_AUTH_METHOD", "none".to_owned())])
    }

    pub(super) fn start_exchange(&mut self, instance: &Instance) -> anyhow::Result<()> {
        let mut text = self.exchange_config(instance)?;
        if let Some(auditor) = self.experiment.of(Role::Auditor).pop()
            && self.database_url().is_none()
        {
            let key = self.dir(instance)?.join("feed.key").display().to_string();
            let listen = format!("tcp://{}:{}", instance.address, instance.ports[1]);
            let auditor = self.static_key(&auditor, "feed.key")?;
            self.static_key(instance, "feed.key")?;
            put_section(
                &mut text,
                "exchange-feed",
                &[("LISTEN", listen), ("KEY_FILE", key), ("AUDITORS", auditor)],
            );
        }
        let conf = self.configure(instance, text)?;
        let mut words = vec!["exchange", "serve", "-c", &conf];
        if !self.experiment.of(Role::Worker).is_empty() || instance.index > 0 {
            words.push("--no-workers");
        }
        let has_signer = !self.experiment.of(Role::Signer).is_empty();
        let path = if has_signer { "/management/keys" } else { "/keys" };
        self.serve(instance, &words, (&instance.authority(), path))
    }

    /// Signs the keys, fees and account of an exchange with signers, and waits until wallets can use it.
    pub(super) fn open_exchange(&mut self, instances: &[Instance]) -> anyhow::Result<()> {
        if self.experiment.of(Role::Signer).is_empty() {
            let first = instances.first().context("there is an exchange")?;
            let keys: Value = serde_json::from_slice(&call(&first.authority(), &wire::get("/keys"))?)?;
            let key = keys["master_public_key"].as_str().context("/keys has no master_public_key")?;
            self.experiment.state.master_pub = Some(key.to_owned());
            self.experiment.save()?;
        } else {
            let zero = format!("{}:0", self.experiment.topology.currency);
            let account = self.payto(ACCOUNT)?;
            self.offline(&["download", "sign", "upload"])?;
            self.offline(&["enable-account", &account, "upload"])?;
            self.offline(&["wire-fee", "now", "x-taler-bank", &zero, &zero, "upload"])?;
            self.offline(&["global-fee", "now", &zero, &zero, &zero, "1 h", "1 year", "8", "upload"])?;
        }
        instances.iter().try_for_each(|instance| self.wait_open(instance))
    }

    pub(super) fn start_workers(&mut self, instance: &Instance) -> anyhow::Result<()> {
        let text = self.exchange_config(instance)?;
        let conf = self.configure(instance, text)?;
        for (worker, authority) in worker_pages(instance) {
            let name = worker.name();
            let command = self.batzen(instance, &["exchange", name, "-c", &conf, "--metrics", &authority])?;
            self.start_process(instance, &format!("{}-{name}", instance.name), command)?;
            self.wait_until(instance, (&authority, "/health"))?;
        }
        Ok(())
    }
}
