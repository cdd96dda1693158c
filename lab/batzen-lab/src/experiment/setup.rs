//! Sets up the roles: files, keys and commands of each instance, as an operator would make them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};

use super::agent::{Agent, CommandLine, Request};
use super::hosts::{HostAccess, NETWORK};
use super::placement::Instance;
use super::state::Experiment;
use super::topology::{HostKind, Role};
use crate::bench::load::wire;

/// Time that a service may take until it is ready. Large RSA keys take a while on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);
/// The exchange's account at the bank.
const ACCOUNT: &str = "exchange";
/// The password of every account at the bank, whose money is play money.
const PASSWORD: &str = "laboratory";
/// The user who runs PostgreSQL, which refuses to run as root.
const POSTGRES_USER: &str = "postgres";
/// PostgreSQL's superuser of the experiment.
const SUPERUSER: &str = "batzen";
/// The values of coins in whole units.
const COINS: [u32; 4] = [8, 4, 2, 1];

/// The set-up of an experiment under way: its facts, and a connection to each host's agent.
pub(super) struct SetUp<'a> {
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

/// The address of a service of an experiment.
pub(super) fn socket_addr(authority: &str) -> anyhow::Result<SocketAddr> {
    let mut found = authority.to_socket_addrs().with_context(|| authority.to_owned())?;
    found.next().with_context(|| format!("{authority} has no address"))
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
    pub(super) fn new(
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
    pub(super) fn start_all(&mut self) -> anyhow::Result<()> {
        self.start_network()?;
        self.prepare_secrets()?;
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
    pub(super) fn start(&mut self, instance: &Instance) -> anyhow::Result<()> {
        ensure!(!self.interrupted.load(Relaxed), "interrupted");
        eprintln!("  {} on {}", instance.name, instance.host);
        self.experiment.event("start", &instance.name)?;
        match instance.role {
            Role::Postgres => self.start_postgres(instance),
            Role::Standby => self.start_standby(instance),
            Role::Bank => self.start_bank(instance),
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
            for name in self.processes_of(instance)? {
                self.agent(instance)?.ask(&Request::Pace { name, share })?;
            }
        }
        Ok(())
    }

    /// The names of an instance's processes: workers are several.
    fn processes_of(&mut self, instance: &Instance) -> anyhow::Result<Vec<String>> {
        let prefix = format!("{}-", instance.name);
        let is_own =
            |name: &str| name == instance.name || instance.role == Role::Worker && name.starts_with(&prefix);
        let states = self.agent(instance)?.status()?;
        Ok(states.into_iter().map(|state| state.name).filter(|name| is_own(name)).collect())
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
        let program = self.host(instance)?.batzen;
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

    fn start_process(&mut self, instance: &Instance, name: &str, command: CommandLine) -> anyhow::Result<()> {
        let dir = self.dir(instance)?;
        let dir = if name == instance.name { dir } else { dir.join(name) };
        self.agent(instance)?.ask(&Request::Start { name: name.to_owned(), command, dir }).map(drop)
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
        let own = self.processes_of(instance)?;
        let states = self.agent(instance)?.status()?;
        for state in states.iter().filter(|state| own.contains(&state.name)) {
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
        let topology = self.experiment.dir.join(super::state::TOPOLOGY);
        let (topology, network) = (topology.to_string_lossy(), self.experiment.state.network.to_string());
        let words = [access.lab.as_str(), "agent", "network", "--topology", &topology, "--network", &network];
        let dir = access.dir.join(NETWORK);
        let agent = self.agents.get_mut(NETWORK).context("the network has an agent")?;
        let command = CommandLine::new(words);
        agent.ask(&Request::Start { name: NETWORK.to_owned(), command, dir: dir.clone() })?;
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

    /// Makes the certificate of the proxy, and gives it to all hosts.
    fn prepare_secrets(&mut self) -> anyhow::Result<()> {
        let Some(proxy) = self.experiment.of(Role::Proxy).pop() else { return Ok(()) };
        let name = match proxy.ip() {
            Some(ip) => format!("IP:{ip}"),
            None => format!("DNS:{}", proxy.address),
        };
        let key = self.experiment.state.runtime_dir.join("proxy.key");
        let certificate = self.experiment.state.runtime_dir.join("proxy.pem");
        let output = std::process::Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
            .args(["-days", "3650", "-subj", "/CN=batzen-lab", "-addext", &format!("subjectAltName={name}")])
            .args(["-addext", "basicConstraints=critical,CA:FALSE", "-keyout"])
            .arg(&key)
            .arg("-out")
            .arg(&certificate)
            .output()
            .context("the proxy's certificate needs openssl (apt-get install openssl)")?;
        ensure!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr).trim());
        let text = std::fs::read_to_string(&certificate)?;
        for (host, agent) in &mut self.agents {
            let access = self.experiment.hosts.get(host).context("every agent has a host")?;
            agent.put(&access.dir.join("proxy.pem"), &text)?;
        }
        let text = text + &std::fs::read_to_string(&key)?;
        self.experiment.state.certificate = Some(text);
        std::fs::remove_file(&key)?;
        self.experiment.save()
    }

    /// The directory of PostgreSQL's programs on a host.
    fn postgres_bin(&mut self, instance: &Instance) -> anyhow::Result<String> {
        const FIND: &str =
            "ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1 | grep . || pg_config --bindir";
        let found = self
            .agent(instance)?
            .run(CommandLine::new(["sh", "-c", FIND]))
            .context("PostgreSQL is not installed there (apt-get install postgresql)")?;
        Ok(found.trim().to_owned())
    }

    /// Makes the directory of a server, which belongs to the user who runs it.
    fn postgres_dir(&mut self, instance: &Instance) -> anyhow::Result<String> {
        let dir = self.scratch(instance)?.to_string_lossy().into_owned();
        let script =
            "mkdir -p \"$1\" && { [ \"$(id -u)\" != 0 ] || chown \"$2\" \"$1\"; } && chmod 700 \"$1\"";
        let command = CommandLine::new(["sh", "-c", script, "sh", &dir, POSTGRES_USER]);
        self.agent(instance)?.run(command)?;
        Ok(dir)
    }

    fn append(&mut self, instance: &Instance, file: &str, text: &str) -> anyhow::Result<()> {
        let command = CommandLine::new(["sh", "-c", "cat >> \"$1\"", "sh", file]).by(POSTGRES_USER);
        self.agent(instance)?.run_with(command, text).map(drop)
    }

    /// The addresses of the exchange's database, the primary's first.
    fn database_url(&self) -> Option<String> {
        let servers: Vec<String> = [Role::Postgres, Role::Standby]
            .into_iter()
            .flat_map(|role| self.experiment.of(role))
            .map(|instance| instance.authority())
            .collect();
        (!servers.is_empty()).then(|| {
            let password = &self.experiment.state.password;
            format!(
                "postgres://{SUPERUSER}:{password}@{}/exchange?target_session_attrs=read-write",
                servers.join(",")
            )
        })
    }

    fn start_postgres(&mut self, instance: &Instance) -> anyhow::Result<()> {
        let (bin, dir) = (self.postgres_bin(instance)?, self.postgres_dir(instance)?);
        let data = format!("{dir}/data");
        let password_file = format!("{dir}/password");
        let password = format!("{}\n", self.experiment.state.password);
        self.agent(instance)?.put_for(Path::new(&password_file), &password, Some(POSTGRES_USER))?;
        let password_option = format!("--pwfile={password_file}");
        let initdb = [&format!("{bin}/initdb"), "-D", &data, "-U", SUPERUSER, "-E", "UTF8", "--no-locale"];
        let auth = ["--no-instructions", "--auth-local=trust", "--auth-host=scram-sha-256", &password_option];
        let command = CommandLine::new(initdb.into_iter().chain(auth)).by(POSTGRES_USER);
        self.agent(instance)?.run(command)?;
        let mut settings = format!(
            "port = {}\nlisten_addresses = '{}'\nunix_socket_directories = '{dir}'\nwal_level = logical\n\
             max_connections = 300\nsynchronous_commit = on\n",
            instance.port(),
            instance.address
        );
        for (name, value) in instance.settings.get("postgresql").into_iter().flatten() {
            let _ = writeln!(settings, "{name} = '{}'", value.replace('\'', "''"));
        }
        self.append(instance, &format!("{data}/postgresql.conf"), &settings)?;
        let access = "host all all all scram-sha-256\nhost replication all all scram-sha-256\n";
        self.append(instance, &format!("{data}/pg_hba.conf"), access)?;
        self.serve_postgres(instance, &bin, &dir)?;
        self.sql(instance, "postgres", "CREATE DATABASE exchange")
    }

    fn serve_postgres(&mut self, instance: &Instance, bin: &str, dir: &str) -> anyhow::Result<()> {
        let command =
            CommandLine::new([&format!("{bin}/postgres"), "-D", &format!("{dir}/data")]).by(POSTGRES_USER);
        self.start_process(instance, &instance.name.clone(), command)?;
        let deadline = Instant::now() + PATIENCE;
        let asks = [&format!("{bin}/pg_isready"), "-q", "-h", dir, "-p", &instance.port().to_string()];
        while self.agent(instance)?.run(CommandLine::new(asks)).is_err() {
            self.require_running(instance)?;
            self.go_on(deadline, "PostgreSQL does not become ready")?;
        }
        Ok(())
    }

    fn sql(&mut self, instance: &Instance, database: &str, sql: &str) -> anyhow::Result<()> {
        let (bin, dir) = (self.postgres_bin(instance)?, self.scratch(instance)?);
        let (psql, port) = (format!("{bin}/psql"), instance.port().to_string());
        let words =
            [&psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-U", SUPERUSER, "-h", &dir.to_string_lossy()];
        let words = words.into_iter().chain(["-p", &port, "-d", database, "-c", sql]);
        self.agent(instance)?.run(CommandLine::new(words)).map(drop)
    }

    fn start_standby(&mut self, instance: &Instance) -> anyhow::Result<()> {
        let primary = self.experiment.of(Role::Postgres).pop().context("a standby needs a primary")?;
        let (bin, dir) = (self.postgres_bin(instance)?, self.postgres_dir(instance)?);
        let source = format!(
            "host={} port={} user={SUPERUSER} application_name=standby",
            primary.address,
            primary.port()
        );
        let (program, data) = (format!("{bin}/pg_basebackup"), format!("{dir}/data"));
        let words =
            [&program, "-d", &source, "-D", &data, "-R", "-X", "stream", "-C", "-S", "standby", "-c", "fast"];
        let mut command = CommandLine::new(words).by(POSTGRES_USER);
        command.env.insert("PGPASSWORD".to_owned(), self.experiment.state.password.clone());
        self.agent(instance)?.run(command)?;
        let settings = format!(
            "port = {}\nlisten_addresses = '{}'\nunix_socket_directories = '{dir}'\n",
            instance.port(),
            instance.address
        );
        self.append(instance, &format!("{data}/postgresql.conf"), &settings)?;
        self.serve_postgres(instance, &bin, &dir)?;
        self.sql(&primary, "postgres", "ALTER SYSTEM SET synchronous_standby_names = 'standby'")?;
        self.sql(&primary, "postgres", "SELECT pg_reload_conf()")
    }

    /// Makes the standby the primary.
    ///
    /// # Errors
    /// When there is none, or it refuses.
    pub(super) fn promote(&mut self) -> anyhow::Result<()> {
        let standby = self.experiment.of(Role::Standby).pop().context("the topology has no standby")?;
        // The new primary has no standby to wait for.
        self.sql(&standby, "postgres", "SELECT pg_promote()")?;
        self.sql(&standby, "postgres", "ALTER SYSTEM RESET synchronous_standby_names")?;
        self.sql(&standby, "postgres", "SELECT pg_reload_conf()")?;
        self.experiment.event("promote", &standby.name)
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

    /// Makes the tables of the exchange, if it has a database.
    fn make_tables(&mut self) -> anyhow::Result<()> {
        let Some(url) = self.database_url() else { return Ok(()) };
        let first = self.experiment.of(Role::Exchange).into_iter().next().context("there is an exchange")?;
        let mut text = self.common_of(&first)?;
        put_section(&mut text, "exchange", &[("DB", "postgres".to_owned())]);
        put_section(&mut text, "exchangedb-postgres", &[("CONFIG", url)]);
        // In a file, since everybody on a machine can read the arguments of commands.
        let path = self.dir(&first)?.join("dbinit.conf");
        self.agent(&first)?.put(&path, &text)?;
        self.run(&first, &["exchange", "dbinit", "-c", &path.to_string_lossy()]).map(drop)
    }

    /// Tells the signers about the present processes of the exchange, which they learn at their start.
    ///
    /// # Errors
    /// When one does not come back.
    pub(super) fn update_signers(&mut self) -> anyhow::Result<()> {
        for signer in self.experiment.of(Role::Signer) {
            let agent = self.agent(&signer)?;
            agent.ask(&Request::Stop { name: signer.name.clone(), signal: 15 })?;
            self.wait_ended(&signer)?;
            self.start(&signer)?;
        }
        Ok(())
    }

    fn wait_ended(&mut self, instance: &Instance) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let own = self.processes_of(instance)?;
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
    pub(super) fn remove(&mut self, instance: &Instance) -> anyhow::Result<()> {
        eprintln!("  {} ends", instance.name);
        for name in self.processes_of(instance)? {
            self.agent(instance)?.ask(&Request::Stop { name, signal: 15 })?;
        }
        self.wait_ended(instance)
    }

    /// Waits until an instance that joined can be used like the others of its role.
    ///
    /// # Errors
    /// When it does not become ready.
    pub(super) fn wait_open(&mut self, instance: &Instance) -> anyhow::Result<()> {
        if instance.role != Role::Exchange {
            return Ok(());
        }
        for path in ["/keys", "/wire", "/ready"] {
            self.wait_until(instance, (&instance.authority(), path))?;
        }
        Ok(())
    }

    /// The public half of a static key of an instance, which is made if there is none.
    fn static_key(&mut self, instance: &Instance, name: &str) -> anyhow::Result<String> {
        let path = self.dir(instance)?.join(name).to_string_lossy().into_owned();
        Ok(self.run(instance, &["signer", "keygen", &path])?.trim().to_owned())
    }

    fn common_of(&self, instance: &Instance) -> anyhow::Result<String> {
        let topology = &self.experiment.topology;
        Ok(common(
            &topology.currency,
            topology.rsa_bits,
            &self.dir(instance)?,
            &self.scratch(instance)?.join("run"),
        ))
    }

    /// Runs steps of the offline tool on this machine, where the master key is.
    fn offline(&self, steps: &[&str]) -> anyhow::Result<String> {
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
    fn master_pub(&mut self) -> anyhow::Result<String> {
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

    fn start_signer(&mut self, instance: &Instance) -> anyhow::Result<()> {
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
    fn nodes(&self) -> Vec<Instance> {
        self.experiment.of(Role::Exchange)
    }

    /// The configuration of a process of the exchange.
    fn exchange_config(&mut self, instance: &Instance) -> anyhow::Result<String> {
        let mut text = self.common_of(instance)?;
        let bank = self.experiment.of(Role::Bank).pop().context("an exchange needs a bank")?;
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
        put_section(&mut text, "exchange-accountcredentials-1", &Self::gateway(&bank));
        Ok(text)
    }

    /// The way to the exchange's account at the bank.
    fn gateway(bank: &Instance) -> [(&'static str, String); 2] {
        let url = format!("http://{}/taler-wire-gateway/{ACCOUNT}/", bank.authority());
        [("WIRE_GATEWAY_URL", url), ("WIRE_GATEWAY_AUTH_METHOD", "none".to_owned())]
    }

    fn start_exchange(&mut self, instance: &Instance) -> anyhow::Result<()> {
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
    fn open_exchange(&mut self, instances: &[Instance]) -> anyhow::Result<()> {
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

    fn start_workers(&mut self, instance: &Instance) -> anyhow::Result<()> {
        let text = self.exchange_config(instance)?;
        let conf = self.configure(instance, text)?;
        for (worker, authority) in worker_pages(instance) {
            let command =
                self.batzen(instance, &["exchange", worker, "-c", &conf, "--metrics", &authority])?;
            self.start_process(instance, &format!("{}-{worker}", instance.name), command)?;
        }
        Ok(())
    }

    /// The configuration of nginx.
    fn proxy_config(&self, instance: &Instance) -> anyhow::Result<String> {
        let scratch = self.scratch(instance)?.display().to_string();
        let servers: String = self
            .experiment
            .of(Role::Exchange)
            .iter()
            .map(|exchange| format!("    server {} max_fails=3 fail_timeout=2s;\n", exchange.authority()))
            .collect();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .into_iter()
            .map(|name| format!("  {name}_temp_path {scratch}/{name};\n"))
            .collect();
        Ok(format!(
            "daemon off;\nmaster_process off;\npid {scratch}/nginx.pid;\nerror_log stderr;\n\
             worker_rlimit_nofile 65536;\nevents {{ worker_connections 16384; }}\nhttp {{\n  access_log off;\n{temporary}\
             \x20 upstream exchange {{\n{servers}    keepalive 256;\n    keepalive_timeout 20s;\n  }}\n\
             \x20 server {{\n    listen {authority} ssl;\n    ssl_certificate {scratch}/proxy.pem;\n\
             \x20   ssl_certificate_key {scratch}/proxy.pem;\n    client_max_body_size 16m;\n    keepalive_timeout 30s;\n\
             \x20   proxy_http_version 1.1;\n    proxy_set_header Connection \"\";\n    proxy_set_header Host $http_host;\n\
             \x20   proxy_set_header X-Forwarded-For $remote_addr;\n    proxy_read_timeout 660s;\n\
             \x20   proxy_buffers 16 16k;\n    proxy_max_temp_file_size 0;\n\
             \x20   location / {{ proxy_pass http://exchange; }}\n  }}\n}}\n",
            authority = instance.authority()
        ))
    }

    fn start_proxy(&mut self, instance: &Instance) -> anyhow::Result<()> {
        let (scratch, text) = (self.scratch(instance)?, self.proxy_config(instance)?);
        let certificate = self.experiment.state.certificate.clone().context("the certificate was made")?;
        let conf = self.dir(instance)?.join("nginx.conf");
        let agent = self.agent(instance)?;
        agent.put(&scratch.join("proxy.pem"), &certificate)?;
        agent.put(&conf, &text)?;
        let nginx = agent
            .run(CommandLine::new(["sh", "-c", "PATH=$PATH:/usr/sbin command -v nginx"]))
            .context("nginx is not installed there (apt-get install nginx-light)")?;
        let command = CommandLine::new([nginx.trim(), "-e", "stderr", "-c", &conf.to_string_lossy()]);
        self.start_process(instance, &instance.name.clone(), command)?;
        let (deadline, address) = (Instant::now() + PATIENCE, socket_addr(&instance.authority())?);
        while TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_err() {
            self.require_running(instance)?;
            self.go_on(deadline, "it does not listen")?;
        }
        Ok(())
    }

    /// Tells the proxy about the exchange's present processes. It starts again for that, since it is one process, which
    /// the kernel kills with its agent.
    ///
    /// # Errors
    /// When its agent does not answer.
    pub(super) fn update_proxy(&mut self) -> anyhow::Result<()> {
        for proxy in self.experiment.of(Role::Proxy) {
            let (conf, text) = (self.dir(&proxy)?.join("nginx.conf"), self.proxy_config(&proxy)?);
            let agent = self.agent(&proxy)?;
            agent.put(&conf, &text)?;
            agent.ask(&Request::Stop { name: proxy.name.clone(), signal: 15 })?;
            self.wait_ended(&proxy)?;
            self.agent(&proxy)?.ask(&Request::Again { name: proxy.name.clone() })?;
        }
        Ok(())
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
        let bank = self.experiment.of(Role::Bank).pop().context("an auditor reads a bank's history")?;
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
        if let Some(database) = self.database_url() {
            let conf = self.dir(&exchange)?.join("conf").display().to_string();
            self.run(&exchange, &["exchange", "replication", "--setup", "-c", &conf])?;
            feed.push(("EXCHANGE", database));
        } else {
            feed.push(("EXCHANGE", format!("tcp://{}:{}", exchange.address, exchange.ports[1])));
            feed.push(("EXCHANGE_KEY", self.static_key(&exchange, "feed.key")?));
            feed.push(("KEY_FILE", self.dir(instance)?.join("feed.key").display().to_string()));
        }
        put_section(&mut text, "auditor-feed", &feed);
        put_section(&mut text, "exchange-account-1", &[("PAYTO_URI", self.payto(ACCOUNT)?)]);
        put_section(&mut text, "exchange-accountcredentials-1", &Self::gateway(&bank));
        let conf = self.configure(instance, text)?;
        self.run(instance, &["auditor", "init", "-c", &conf])?;
        self.run(instance, &["auditor", "exchange", "add", "-c", &conf, &master_pub, &url])?;
        self.serve(instance, &["auditor", "serve", "-c", &conf], (&instance.authority(), "/ready"))
    }

    /// Tells Prometheus about the present instances.
    ///
    /// # Errors
    /// When its agent does not answer.
    pub(super) fn update_prometheus(&mut self) -> anyhow::Result<()> {
        for instance in self.experiment.of(Role::Prometheus) {
            let (path, text) = (self.dir(&instance)?.join("prometheus.yml"), self.prometheus_config());
            let agent = self.agent(&instance)?;
            agent.put(&path, &text)?;
            agent.ask(&Request::Signal { name: instance.name.clone(), signal: 1 })?;
        }
        Ok(())
    }

    fn prometheus_config(&self) -> String {
        let mut text = "global:\n  scrape_interval: 1s\nscrape_configs:\n".to_owned();
        for role in Role::ALL {
            let targets: Vec<(String, String)> = self
                .experiment
                .of(role)
                .iter()
                .flat_map(|found| match role {
                    Role::Worker => worker_pages(found)
                        .map(|(worker, authority)| (format!("{}-{worker}", found.name), authority))
                        .collect(),
                    _ => metrics_authority(found)
                        .map(|found_at| vec![(found.name.clone(), found_at)])
                        .unwrap_or_default(),
                })
                .collect();
            if targets.is_empty() {
                continue;
            }
            let _ = writeln!(text, "  - job_name: batzen-{role}\n    static_configs:");
            for (name, target) in targets {
                let _ =
                    writeln!(text, "      - targets: ['{target}']\n        labels: {{ instance: {name} }}");
            }
        }
        text
    }

    fn start_prometheus(&mut self, instance: &Instance) -> anyhow::Result<()> {
        let (dir, text) = (self.dir(instance)?, self.prometheus_config());
        let conf = dir.join("prometheus.yml");
        let agent = self.agent(instance)?;
        agent.put(&conf, &text)?;
        agent
            .run(CommandLine::new(["sh", "-c", "command -v prometheus"]))
            .context("prometheus is not installed there (apt-get install prometheus)")?;
        let words = [
            "prometheus".to_owned(),
            format!("--config.file={}", conf.display()),
            format!("--storage.tsdb.path={}", dir.join("data").display()),
            format!("--web.listen-address={}", instance.authority()),
        ];
        self.start_process(instance, &instance.name.clone(), CommandLine::new(words))?;
        self.wait_until(instance, (&instance.authority(), "/-/ready"))
    }

    fn start_load(&mut self, instance: &Instance) -> anyhow::Result<()> {
        let mut command = self.batzen(instance, &[])?;
        command.argv = vec![self.host(instance)?.lab, "agent".to_owned(), "load".to_owned()];
        self.start_process(instance, &instance.name.clone(), command)?;
        let line = serde_json::to_string(&super::load::Order::Target(self.experiment.target()?))?;
        self.agent(instance)?.ask(&Request::Input { name: instance.name.clone(), line }).map(drop)
    }
}

/// The workers of an instance, and where each shows its metrics.
fn worker_pages(instance: &Instance) -> impl Iterator<Item = (&'static str, String)> {
    let authorities = instance.ports.iter().map(|port| format!("{}:{port}", instance.address));
    ["wirewatch", "aggregator", "transfer", "closer"].into_iter().zip(authorities)
}

/// Where an instance shows its metrics.
pub(super) fn metrics_authority(instance: &Instance) -> Option<String> {
    match instance.role {
        Role::Bank | Role::Exchange | Role::Merchant | Role::Auditor => Some(instance.authority()),
        Role::Signer => Some(format!("{}:{}", instance.address, instance.ports.get(1)?)),
        Role::Postgres | Role::Standby | Role::Proxy | Role::Worker | Role::Load | Role::Prometheus => None,
    }
}
