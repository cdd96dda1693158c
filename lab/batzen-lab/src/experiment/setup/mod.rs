//! Sets up the roles: files, keys and commands of each instance, as an operator would make them.
//!
//! | module | contents |
//! |---|---|
//! | `postgres` | the exchange's database, its standby, and the nodes of a Citus cluster |
//! | `export` | exporters, which show Prometheus what PostgreSQL and the proxy know of themselves |
//! | `exchange` | tables, signers, processes and workers of the exchange, and its offline tool |
//! | `clearing` | the switch, its ledger and its participants |
//! | `revoke` | revocations of denominations |
//! | `front` | the proxy and Prometheus, which are told when instances come and go |

mod clearing;
mod exchange;
mod export;
mod front;
mod postgres;
mod revoke;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use serde_json::json;

use crate::bench::load::wire;
use crate::experiment::agent::{Agent, CommandLine, Request};
use crate::experiment::hosts::{HostAccess, NETWORK, version_of};
use crate::experiment::placement::{Instance, socket_addr};
use crate::experiment::state::{ACCOUNT, Experiment};
use crate::experiment::topology::{HostKind, Role, Worker};

pub(in crate::experiment) use revoke::Revoked;

/// Time that a service may take until it is ready. Large RSA keys take a while on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);
/// The password of every account at the bank, whose money is play money.
const PASSWORD: &str = "laboratory";
/// The user who runs PostgreSQL, which refuses to run as root.
const POSTGRES_USER: &str = "postgres";
/// The database of the exchange.
const DATABASE: &str = "exchange";
/// PostgreSQL's superuser of the experiment.
const SUPERUSER: &str = "batzen";
/// The values of coins in whole units.
const COINS: [u32; 4] = [8, 4, 2, 1];

/// The set-up of an experiment under way: its facts, and a connection to each host's agent.
pub(in crate::experiment) struct SetUp<'a> {
    experiment: &'a mut Experiment,
    agents: BTreeMap<String, Agent>,
    /// Becomes true when the user interrupts it.
    interrupted: &'a AtomicBool,
}

/// The money and keys that all programs of the exchange agree on.
fn common(currency: &str, rsa_bits: u32, home: &Path, run: &Path) -> String {
    let mut text = format!(
        "[taler]\nCURRENCY = {currency}\nCURRENCY_ROUND_UNIT = {currency}:0.01\n\
         [paths]\nTALER_DATA_HOME = {}\nTALER_RUNTIME_DIR = {}\n",
        home.display(),
        run.display()
    );
    for helper in ["rsa", "cs", "eddsa"] {
        let _ = writeln!(text, "[taler-exchange-secmod-{helper}]\nLOOKAHEAD_SIGN = 1 day");
    }
    for value in COINS {
        let _ = writeln!(
            text,
            "[coin_{value}]\nVALUE = {currency}:{value}\nDURATION_WITHDRAW = 7 days\nDURATION_SPEND = 2 years\n\
             DURATION_LEGAL = 3 years\nFEE_WITHDRAW = {currency}:0\nFEE_DEPOSIT = {currency}:0\n\
             FEE_REFRESH = {currency}:0\nFEE_REFUND = {currency}:0\nCIPHER = RSA\nRSA_KEYSIZE = {rsa_bits}"
        );
    }
    text
}

fn put_section(text: &mut String, name: &str, options: &[(&str, String)]) {
    let _ = writeln!(text, "[{name}]");
    for (option, value) in options {
        let _ = writeln!(text, "{option} = {value}");
    }
}

/// Sends a request that must succeed, or find its work done.
fn call(authority: &str, request: &[u8]) -> anyhow::Result<Vec<u8>> {
    let answer = wire::call(socket_addr(authority)?, request).with_context(|| authority.to_owned())?;
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    ensure!(
        (200..300).contains(&answer.status) || answer.status == 409,
        "{authority}: HTTP {}: {text}",
        answer.status
    );
    Ok(answer.body)
}

impl<'a> SetUp<'a> {
    /// Takes over the agents of all hosts.
    pub(in crate::experiment) fn new(
        experiment: &'a mut Experiment,
        agents: BTreeMap<String, Agent>,
        interrupted: &'a AtomicBool,
    ) -> Self {
        Self { experiment, agents, interrupted }
    }

    /// Fails once the user has interrupted the set-up, and after the deadline.
    fn go_on(&self, deadline: Instant, late: &str) -> anyhow::Result<()> {
        ensure!(!self.interrupted.load(Relaxed), "interrupted");
        ensure!(Instant::now() < deadline, "{late}");
        std::thread::sleep(Duration::from_millis(50));
        Ok(())
    }

    /// Starts every instance, and waits until all run and those with a page are ready.
    ///
    /// # Errors
    /// The first that does not start, with what it said.
    pub(in crate::experiment) fn start_all(&mut self) -> anyhow::Result<()> {
        self.start_network()?;
        self.prepare_secrets()?;
        self.require_citus()?;
        for role in Role::ALL {
            let instances = self.experiment.of(role);
            if role == Role::Exchange && !instances.is_empty() {
                self.make_tables()?;
            }
            for instance in &instances {
                self.start(instance)?;
            }
            if role == Role::Exchange && !instances.is_empty() {
                self.open_exchange(&instances)?;
            }
        }
        Ok(())
    }

    /// Starts one more instance, and waits until it is ready.
    ///
    /// # Errors
    /// When it does not start.
    pub(in crate::experiment) fn start(&mut self, instance: &Instance) -> anyhow::Result<()> {
        ensure!(!self.interrupted.load(Relaxed), "interrupted");
        eprintln!("  {} on {}", instance.name, instance.host);
        self.experiment.event("start", &instance.name)?;
        self.note_version(instance)?;
        match instance.role {
            Role::Postgres | Role::Citus => self.start_postgres(instance),
            Role::Standby => self.start_standby(instance),
            Role::Bank => self.start_bank(instance),
            Role::Ledger => self.start_ledger(instance),
            Role::Switch => self.start_switch(instance),
            Role::Signer => self.start_signer(instance),
            Role::Exchange => self.start_exchange(instance),
            Role::Worker => self.start_workers(instance),
            Role::Proxy => self.start_proxy(instance),
            Role::Merchant => self.start_merchant(instance),
            Role::Auditor => self.start_auditor(instance),
            Role::Prometheus => self.start_prometheus(instance),
            Role::Load => self.start_load(instance),
        }
        .with_context(|| format!("{} on {}", instance.name, instance.host))?;
        if let Some(share) = instance.cpu_share {
            for name in instance.processes() {
                self.agent(instance)?.ask(&Request::Pace { name, share })?;
            }
        }
        Ok(())
    }

    /// Asks the program of an instance for its version, if nobody has.
    fn note_version(&mut self, instance: &Instance) -> anyhow::Result<()> {
        if !instance.role.is_of_batzen() || instance.version.is_some() {
            return Ok(());
        }
        let program = self.host(instance)?.batzen_of(instance);
        let said = self.agent(instance)?.run(CommandLine::new([&program, "--version"]))?;
        let mut known = self.experiment.state.instances.iter_mut();
        if let Some(known) = known.find(|known| known.name == instance.name) {
            known.version = Some(version_of(&said));
        }
        self.experiment.save()
    }

    fn host(&self, instance: &Instance) -> anyhow::Result<HostAccess> {
        self.experiment.hosts.get(&instance.host).cloned().context("a placed instance has a host")
    }

    fn agent(&mut self, instance: &Instance) -> anyhow::Result<&mut Agent> {
        self.agents.get_mut(&instance.host).context("every host has an agent")
    }

    /// The directory of an instance, which is kept.
    fn dir(&self, instance: &Instance) -> anyhow::Result<PathBuf> {
        Ok(self.host(instance)?.dir.join(&instance.name))
    }

    /// A directory of an instance with a short path, which is not kept.
    fn scratch(&self, instance: &Instance) -> anyhow::Result<PathBuf> {
        let host = self.host(instance)?;
        Ok(match host.kind {
            HostKind::Ssh => host.dir.join("run").join(&instance.name),
            _ => self.experiment.state.runtime_dir.join(&instance.name),
        })
    }

    /// The text of a configuration, with the options of the topology at its end.
    fn with_settings(mut text: String, instance: &Instance) -> String {
        for (section, options) in &instance.settings {
            let options: Vec<(&str, String)> =
                options.iter().map(|(option, value)| (option.as_str(), value.clone())).collect();
            put_section(&mut text, section, &options);
        }
        text
    }

    /// Writes the configuration of an instance, and returns its path.
    fn configure(&mut self, instance: &Instance, text: String) -> anyhow::Result<String> {
        let path = self.dir(instance)?.join("conf");
        let text = Self::with_settings(text, instance);
        self.agent(instance)?.put(&path, &text)?;
        Ok(path.to_string_lossy().into_owned())
    }

    /// A command of the product on the instance's host.
    fn batzen(&self, instance: &Instance, words: &[&str]) -> anyhow::Result<CommandLine> {
        let program = self.host(instance)?.batzen_of(instance);
        let mut command = CommandLine::new(std::iter::once(program.as_str()).chain(words.iter().copied()));
        command.env.insert("HOME".to_owned(), self.dir(instance)?.to_string_lossy().into_owned());
        if self.experiment.state.certificate.is_some() {
            let path = self.certificate_path(instance)?;
            command.env.insert("SSL_CERT_FILE".to_owned(), path.to_string_lossy().into_owned());
        }
        Ok(command)
    }

    /// The file with the certificate of the proxy, which its clients trust.
    fn certificate_path(&self, instance: &Instance) -> anyhow::Result<PathBuf> {
        Ok(self.host(instance)?.dir.join("proxy.pem"))
    }

    fn run(&mut self, instance: &Instance, words: &[&str]) -> anyhow::Result<String> {
        let command = self.batzen(instance, words)?;
        self.agent(instance)?.run(command)
    }

    fn start_process(
        &mut self,
        instance: &Instance,
        name: &str,
        mut command: CommandLine,
    ) -> anyhow::Result<()> {
        let (dir, batzen) = (self.dir(instance)?, self.host(instance)?.batzen);
        if let (Some(level), true) = (&self.experiment.topology.log, command.argv.first() == Some(&batzen)) {
            command.argv.extend(["-L".to_owned(), level.clone()]);
        }
        let dir = if name == instance.name { dir } else { dir.join(name) };
        let (name, disk_delay_ms) = (name.to_owned(), instance.disk_delay_ms);
        self.agent(instance)?.ask(&Request::Start { name, command, dir, disk_delay_ms }).map(drop)
    }

    /// Starts a service of the product, and waits until it answers.
    fn serve(&mut self, instance: &Instance, words: &[&str], ready: (&str, &str)) -> anyhow::Result<()> {
        let command = self.batzen(instance, words)?;
        self.start_process(instance, &instance.name.clone(), command)?;
        self.wait_until(instance, ready)
    }

    /// Waits until an instance answers a path at an address with 200.
    fn wait_until(&mut self, instance: &Instance, (authority, path): (&str, &str)) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let address = socket_addr(authority)?;
        loop {
            let last = match wire::call(address, &wire::get(path)) {
                Ok(answer) if answer.status == 200 => return Ok(()),
                Ok(answer) => {
                    format!("HTTP {}: {}", answer.status, String::from_utf8_lossy(&answer.body).trim())
                }
                Err(error) => error.to_string(),
            };
            self.require_running(instance)?;
            self.go_on(deadline, &format!("http://{authority}{path} does not become ready: {last}"))?;
        }
    }

    fn require_running(&mut self, instance: &Instance) -> anyhow::Result<()> {
        let own = [instance.processes(), instance.exporters()].concat();
        let states = self.agent(instance)?.status()?;
        // Those that a restart has ended have their turn later.
        for state in states.iter().filter(|state| state.is_wanted && own.contains(&state.name)) {
            if state.restarts > 0 || state.pid.is_none() {
                let dir = self.dir(instance)?;
                let dir = if state.name == instance.name { dir } else { dir.join(&state.name) };
                let said =
                    self.agent(instance)?.get(&dir.join("log"), 0).map(|(text, _)| text).unwrap_or_default();
                let lines: Vec<&str> = said.trim().lines().collect();
                let end = lines[lines.len().saturating_sub(5)..].join("; ");
                bail!(
                    "{} ended ({}): {end}",
                    state.name,
                    state.ended.as_deref().unwrap_or("no reason known")
                );
            }
        }
        Ok(())
    }

    /// Starts the emulation of links, if there are any.
    fn start_network(&mut self) -> anyhow::Result<()> {
        let Some(access) = self.experiment.hosts.get(NETWORK).cloned() else { return Ok(()) };
        let topology = self.experiment.dir.join(crate::experiment::state::TOPOLOGY);
        let (topology, network) = (topology.to_string_lossy(), self.experiment.state.network.to_string());
        let words = [access.lab.as_str(), "agent", "network", "--topology", &topology, "--network", &network];
        let dir = access.dir.join(NETWORK);
        let agent = self.agents.get_mut(NETWORK).context("the network has an agent")?;
        let command = CommandLine::new(words);
        let (name, disk_delay_ms) = (NETWORK.to_owned(), None);
        agent.ask(&Request::Start { name, command, dir: dir.clone(), disk_delay_ms })?;
        let deadline = Instant::now() + PATIENCE;
        while !agent.get(&dir.join("out"), 0).is_ok_and(|(text, _)| text.contains("ready")) {
            let state = agent.status()?.pop();
            let (said, _) = agent.get(&dir.join("log"), 0).unwrap_or_default();
            ensure!(
                state.is_some_and(|state| state.restarts == 0),
                "the links cannot be made: {}",
                said.trim()
            );
            ensure!(!self.interrupted.load(Relaxed), "interrupted");
            ensure!(Instant::now() < deadline, "the links do not become ready");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// The bank account with this name, as a payto URI.
    fn payto(&self, account: &str) -> anyhow::Result<String> {
        let bank = self.experiment.of(Role::Bank).pop().context("a payto URI needs a bank")?;
        Ok(format!("payto://x-taler-bank/{}/{account}?receiver-name={account}", bank.address))
    }

    fn open_account(&self, account: &str) -> anyhow::Result<()> {
        let bank = self.experiment.of(Role::Bank).pop().context("an account needs a bank")?;
        let body = json!({ "username": account, "password": PASSWORD });
        call(&bank.authority(), &wire::post("/taler-bank-access/testing/register", &body)).map(drop)
    }

    fn start_bank(&mut self, instance: &Instance) -> anyhow::Result<()> {
        let currency = self.experiment.topology.currency.clone();
        let mut text = String::new();
        let home = self.dir(instance)?.display().to_string();
        put_section(&mut text, "taler", &[("CURRENCY", currency.clone())]);
        put_section(&mut text, "paths", &[("TALER_DATA_HOME", home)]);
        let suggested = match self.experiment.of(Role::Exchange).is_empty() {
            true => Vec::new(),
            false => vec![("SUGGESTED_EXCHANGE", self.experiment.exchange_url())],
        };
        let options = [
            ("HTTP_PORT", instance.port().to_string()),
            ("BIND_TO", instance.address.clone()),
            ("HOSTNAME", instance.address.clone()),
            ("BASE_URL", format!("http://{}/", instance.authority())),
            ("SIGNUP_BONUS", format!("{currency}:1000000")),
            // Wallets open accounts by the thousand, and guard only play money with them.
            ("PASSWORD_MEMORY_KIB", "256".to_owned()),
            ("PASSWORD_PASSES", "1".to_owned()),
        ];
        put_section(&mut text, "bank", &options);
        put_section(&mut text, "bank", &suggested);
        let conf = self.configure(instance, text)?;
        self.serve(instance, &["bank", "serve", "-c", &conf], (&instance.authority(), "/ready"))?;
        self.open_account(ACCOUNT)
    }

    fn wait_ended(&mut self, instance: &Instance) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let own = instance.processes();
        while self
            .agent(instance)?
            .status()?
            .iter()
            .any(|state| own.contains(&state.name) && state.pid.is_some())
        {
            self.go_on(deadline, "it does not end")?;
        }
        Ok(())
    }

    /// Stops an instance for good.
    ///
    /// # Errors
    /// When it does not end.
    pub(in crate::experiment) fn remove(&mut self, instance: &Instance) -> anyhow::Result<()> {
        eprintln!("  {} ends", instance.name);
        for name in instance.processes() {
            self.agent(instance)?.ask(&Request::Stop { name, signal: 15 })?;
        }
        self.wait_ended(instance)
    }

    /// Ends an instance, and starts it as it is described now.
    ///
    /// # Errors
    /// When its program is missing, before it ends; or when it does not come back.
    pub(in crate::experiment) fn restart(&mut self, instance: &Instance) -> anyhow::Result<()> {
        self.note_version(instance)?;
        self.remove(instance)?;
        self.start(instance)?;
        self.wait_open(instance)
    }

    fn start_merchant(&mut self, instance: &Instance) -> anyhow::Result<()> {
        let currency = self.experiment.topology.currency.clone();
        let mut text = String::new();
        let (home, master_pub) = (self.dir(instance)?.display().to_string(), self.master_pub()?);
        put_section(&mut text, "taler", &[("CURRENCY", currency.clone())]);
        put_section(&mut text, "paths", &[("TALER_DATA_HOME", home)]);
        let options = [("PORT", instance.port().to_string()), ("BIND_TO", instance.address.clone())];
        put_section(&mut text, "merchant", &options);
        let exchange = [
            ("EXCHANGE_BASE_URL", self.experiment.exchange_url()),
            ("MASTER_KEY", master_pub),
            ("CURRENCY", currency.clone()),
        ];
        put_section(&mut text, "merchant-exchange-1", &exchange);
        let conf = self.configure(instance, text)?;
        self.serve(instance, &["merchant", "serve", "-c", &conf], (&instance.authority(), "/ready"))?;
        let account = instance.name.clone();
        self.open_account(&account)?;
        let shop = json!({
            "id": "default", "name": account,
            "auth": { "method": "token", "token": self.experiment.state.shop_token },
            "payto_uris": [self.payto(&account)?],
            "address": {}, "jurisdiction": {},
            "default_max_wire_fee": format!("{currency}:1"),
            "default_max_deposit_fee": format!("{currency}:1"),
            "default_wire_fee_amortization": 1,
            "default_wire_transfer_delay": { "d_us": 0 },
            "default_pay_delay": { "d_us": 3_600_000_000_u64 },
        });
        call(&instance.authority(), &wire::post("/management/instances", &shop)).map(drop)
    }

    fn start_auditor(&mut self, instance: &Instance) -> anyhow::Result<()> {
        let exchange = self.experiment.of(Role::Exchange).remove(0);
        let (url, master_pub) = (self.experiment.exchange_url(), self.master_pub()?);
        let mut text = self.common_of(instance)?;
        let options = [
            ("BASE_URL", format!("http://{}/", instance.authority())),
            ("PORT", instance.port().to_string()),
            ("BIND_TO", instance.address.clone()),
        ];
        put_section(&mut text, "auditor", &options);
        put_section(
            &mut text,
            "exchange",
            &[("BASE_URL", url.clone()), ("MASTER_PUBLIC_KEY", master_pub.clone())],
        );
        let mut feed = Vec::new();
        if !self.experiment.of(Role::Citus).is_empty() {
            // Its rows do not pass through the coordinator's log: `check` has the auditor read them all.
            put_section(&mut text, "exchange", &[("DB", "postgres".to_owned())]);
            let options = self.database_url().map(|url| ("CONFIG", url));
            put_section(&mut text, "exchangedb-postgres", options.as_slice());
        } else if let Some(database) = self.database_url() {
            let conf = self.dir(&exchange)?.join("conf").display().to_string();
            self.run(&exchange, &["exchange", "replication", "--setup", "-c", &conf])?;
            feed.push(("EXCHANGE", database));
        } else {
            feed.push(("EXCHANGE", format!("tcp://{}:{}", exchange.address, exchange.ports[1])));
            feed.push(("EXCHANGE_KEY", self.static_key(&exchange, "feed.key")?));
            feed.push(("KEY_FILE", self.dir(instance)?.join("feed.key").display().to_string()));
        }
        if !feed.is_empty() {
            put_section(&mut text, "auditor-feed", &feed);
        }
        put_section(&mut text, "exchange-account-1", &[("PAYTO_URI", self.payto(ACCOUNT)?)]);
        put_section(&mut text, "exchange-accountcredentials-1", &self.gateway()?);
        let conf = self.configure(instance, text)?;
        self.run(instance, &["auditor", "init", "-c", &conf])?;
        self.run(instance, &["auditor", "exchange", "add", "-c", &conf, &master_pub, &url])?;
        self.serve(instance, &["auditor", "serve", "-c", &conf], (&instance.authority(), "/ready"))
    }

    fn start_load(&mut self, instance: &Instance) -> anyhow::Result<()> {
        self.enrol(instance)?;
        let mut command = self.batzen(instance, &[])?;
        let (lab, authority) = (self.host(instance)?.lab, instance.authority());
        command.argv = [lab.as_str(), "agent", "load", "--metrics", &authority].map(str::to_owned).into();
        self.start_process(instance, &instance.name.clone(), command)?;
        self.wait_until(instance, (&authority, "/ready"))?;
        let line = serde_json::to_string(&crate::experiment::load::Order::Target(
            self.experiment.target(instance)?,
        ))?;
        self.agent(instance)?.ask(&Request::Input { name: instance.name.clone(), line }).map(drop)
    }
}

/// The workers of an instance, and where each shows its metrics.
fn worker_pages(instance: &Instance) -> impl Iterator<Item = (Worker, String)> {
    let authorities = instance.ports.iter().map(|port| format!("{}:{port}", instance.address));
    instance.workers.iter().copied().zip(authorities)
}
