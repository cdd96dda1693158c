//! The directory of an experiment: what is to be known about it while it runs and afterwards.
//!
//! | file | contents |
//! |---|---|
//! | `topology.toml` | the topology as it was given |
//! | `state.json` | where everything runs, with its passwords; its owner's only |
//! | `events.jsonl` | what was done to it, one event a line |
//! | `spare` | room for the last event and the state, if the disk is full at the end |
//! | `load.json` | the plan of the load |
//! | `network.jsonl` | changes of links, which the emulation repeats when it starts again |
//! | `ramp.json`, `check.json`, `audit.json` | the last ramp, check and report of the auditor |
//! | `hosts/HOST/` | `samples.jsonl` with what the processes used, and for each instance `conf`, `log` and its data |
//! | `offline/` | the exchange's master key |

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::agent::Agent;
use super::hosts::{self, HostAccess};
use super::load::{Cash, Clearing, Target};
use super::placement::{self, Instance, metrics_authority, socket_addr};
use super::topology::{HostKind, Role, Topology};
use crate::bench::results::machine::Machine;
use crate::bench::results::output;
use crate::participants::hub::Hub;

/// The exchange's account at the bank.
pub(super) const ACCOUNT: &str = "exchange";
/// The name of the file with the state.
pub(super) const STATE: &str = "state.json";
/// The name of the file with the topology.
pub(super) const TOPOLOGY: &str = "topology.toml";
/// The name of the file with the report of the auditor.
pub(super) const AUDIT: &str = "audit.json";
/// The name of the file with the events.
pub(super) const EVENTS: &str = "events.jsonl";

/// The name of the file that keeps some room.
const SPARE: &str = "spare";
/// The room that the end of an experiment needs, in bytes.
const SPARE_BYTES: usize = 1 << 20;

/// The facts that must not be lost between two commands.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct State {
    /// The version of the program that set it up.
    pub(super) version: String,
    /// The commit of that program.
    pub(super) commit: String,
    /// Its own random name.
    pub(super) id: String,
    /// The number of its network of namespaces; 0: none.
    pub(super) network: u8,
    /// The clock of each host less that of this machine, in milliseconds.
    #[serde(default)]
    pub(super) clock_offsets_ms: BTreeMap<String, i64>,
    /// The machines whose cores its hosts have, by [`Experiment::machine`].
    #[serde(default)]
    pub(super) machines: BTreeMap<String, Machine>,
    /// Address and port of the page of each host's agent.
    #[serde(default)]
    pub(super) pages: BTreeMap<String, String>,
    /// Whether something may still run.
    pub(super) is_up: bool,
    /// Sockets and data with short paths, removed at the end.
    pub(super) runtime_dir: PathBuf,
    /// The directory of the programs on this machine.
    pub(super) own_bin_dir: PathBuf,
    /// Every instance with its host and ports.
    pub(super) instances: Vec<Instance>,
    /// The password of the database.
    pub(super) password: String,
    /// The access token of all shops.
    pub(super) shop_token: String,
    /// The tokens of the switch's two operators.
    #[serde(default)]
    pub(super) operator_tokens: [String; 2],
    /// The exchange's master key, once it exists.
    pub(super) master_pub: Option<String>,
    /// The proxy's certificate and private key.
    pub(super) certificate: Option<String>,
}

/// An experiment.
#[derive(Clone, Debug)]
pub(super) struct Experiment {
    pub(super) dir: PathBuf,
    pub(super) topology: Topology,
    pub(super) state: State,
    pub(super) hosts: BTreeMap<String, HostAccess>,
}

/// Writes a file that only its owner may read, with the directories above it.
///
/// # Errors
/// When it cannot be written.
pub(super) fn write_own(path: &Path, text: &str) -> anyhow::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
    }
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes()).with_context(|| path.display().to_string())
}

/// Goes on without what a full disk does not take: it must not end what is measured.
fn unless_full(name: &str, written: anyhow::Result<()>) -> anyhow::Result<()> {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    let Err(error) = written else { return Ok(()) };
    let io = error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    if !io.map(std::io::Error::kind).any(|kind| matches!(kind, StorageFull | QuotaExceeded)) {
        return Err(error);
    }
    eprintln!("the disk is full, so this is not kept in {name}: {error:#}");
    Ok(())
}

/// The directory of this program.
///
/// # Errors
/// When it is not known.
pub(super) fn own_bin_dir() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("the program has no path")?;
    Ok(own.parent().context("the program has no directory")?.to_owned())
}

fn secret() -> String {
    let mut bytes = [0; 16];
    batzen_crypto::fill_random(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn token() -> String {
    format!("secret-token:{}", secret())
}

impl Experiment {
    /// Creates the directory of an experiment. From then on `down` removes whatever was begun.
    ///
    /// # Errors
    /// When the directory belongs to another experiment, or the network cannot be claimed.
    pub(super) fn create(dir: &Path, text: &str, topology: Topology, commit: &str) -> anyhow::Result<Self> {
        ensure!(
            !dir.join(STATE).exists(),
            "{} has an experiment already: `batzen-lab down --dir {0}` ends it; choose another --dir to keep its result",
            dir.display()
        );
        hosts::require_means(&topology)?;
        let dir = batzen_cli_support::services::directory(dir)?;
        let id = secret()[..12].to_owned();
        let runtime_dir = std::env::temp_dir().join(format!("batzen-lab-{id}"));
        // PostgreSQL's user has to reach its own directory below.
        std::fs::DirBuilder::new()
            .mode(0o711)
            .create(&runtime_dir)
            .with_context(|| runtime_dir.display().to_string())?;
        let sockets = runtime_dir.join("agents");
        std::fs::DirBuilder::new().mode(0o700).create(&sockets)?;
        let own_bin_dir = own_bin_dir()?;
        let hosts = hosts::accesses(&topology, &dir, (&id, &sockets), &own_bin_dir);
        let state = State {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: commit.to_owned(),
            id,
            network: 0,
            clock_offsets_ms: BTreeMap::new(),
            machines: BTreeMap::new(),
            pages: BTreeMap::new(),
            is_up: true,
            runtime_dir,
            own_bin_dir,
            instances: Vec::new(),
            password: secret(),
            shop_token: token(),
            operator_tokens: [token(), token()],
            master_pub: None,
            certificate: None,
        };
        let mut experiment = Self { dir, topology, state, hosts };
        std::fs::write(experiment.dir.join(TOPOLOGY), text)?;
        std::fs::write(experiment.dir.join(SPARE), vec![1; SPARE_BYTES])?;
        experiment.save()?;
        experiment.state.network = hosts::free_network(&experiment.topology)?;
        experiment.save()?;
        let network = experiment.state.network;
        experiment.state.instances =
            placement::place(&experiment.topology, network, batzen_testkit::ports::reserve)?;
        hosts::note_versions(&mut experiment.state.instances, &experiment.hosts)?;
        experiment.save()?;
        Ok(experiment)
    }

    /// Whether a directory holds an experiment.
    pub(super) fn is_in(dir: &Path) -> bool {
        dir.join(STATE).is_file()
    }

    /// Reads an experiment's directory.
    ///
    /// # Errors
    /// When it holds none.
    pub(super) fn open(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join(STATE);
        let text = std::fs::read_to_string(&path).with_context(|| {
            format!("{} holds no experiment (`batzen-lab up FILE` makes one)", dir.display())
        })?;
        let state: State = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        let path = dir.join(TOPOLOGY);
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let topology = Topology::parse(&text).with_context(|| path.display().to_string())?;
        let dir = dir.canonicalize()?;
        let sockets = state.runtime_dir.join("agents");
        let hosts = hosts::accesses(&topology, &dir, (&state.id, &sockets), &state.own_bin_dir);
        Ok(Self { dir, topology, state, hosts })
    }

    /// Writes the state, whole or not at all.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn save(&self) -> anyhow::Result<()> {
        let path = self.dir.join(STATE);
        let draft = self.dir.join("state.json.new");
        write_own(&draft, &serde_json::to_string_pretty(&self.state)?)?;
        File::open(&draft)?.sync_all()?;
        std::fs::rename(&draft, &path).with_context(|| path.display().to_string())
    }

    /// Gives back the room that was kept for the end.
    pub(super) fn release_spare(&self) {
        // An earlier attempt may have done so.
        let _ = std::fs::remove_file(self.dir.join(SPARE));
    }

    /// Appends an event, if the disk is not full.
    ///
    /// # Errors
    /// When it cannot be written for another reason.
    pub(super) fn event(&self, what: &str, whom: &str) -> anyhow::Result<()> {
        self.event_at(super::now_ms(), what, whom)
    }

    /// The same for an event that began at this time.
    ///
    /// # Errors
    /// As [`Experiment::event`].
    pub(super) fn event_at(&self, time_ms: u64, what: &str, whom: &str) -> anyhow::Result<()> {
        let event = json!({ "time_ms": time_ms, "event": what, "of": whom });
        unless_full(EVENTS, self.append(EVENTS, &event))
    }

    /// Replaces a file of the directory as a whole, if the disk is not full.
    ///
    /// # Errors
    /// When it cannot be written for another reason.
    pub(super) fn keep(&self, name: &str, text: &str) -> anyhow::Result<()> {
        unless_full(name, output::replace_file(&self.dir.join(name), text).map_err(anyhow::Error::from))
    }

    /// Appends a line to a file of the directory.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn append(&self, name: &str, line: &Value) -> anyhow::Result<()> {
        let path = self.dir.join(name);
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| path.display().to_string())?;
        let before = file.metadata()?.len();
        // One write, so that a kill leaves whole lines. A full disk may take a part of it.
        file.write_all(format!("{line}\n").as_bytes())
            .inspect_err(|_| drop(file.set_len(before)))
            .with_context(|| path.display().to_string())
    }

    /// The instances of a role, in their order.
    pub(super) fn of(&self, role: Role) -> Vec<Instance> {
        let mut all = self.ever_of(role);
        all.retain(|instance| !instance.is_removed);
        all
    }

    /// The instances of a role, those that were removed included.
    pub(super) fn ever_of(&self, role: Role) -> Vec<Instance> {
        self.state.instances.iter().filter(|instance| instance.role == role).cloned().collect()
    }

    /// The role of each process that ever ran, by its name.
    pub(super) fn roles_of_processes(&self) -> BTreeMap<String, Role> {
        let of = |instance: &Instance| {
            let role = instance.role;
            instance.processes().into_iter().map(move |name| (name, role))
        };
        self.state.instances.iter().flat_map(of).collect()
    }

    /// The instance of this name.
    ///
    /// # Errors
    /// When there is none, with the names of all.
    pub(super) fn instance(&self, name: &str) -> anyhow::Result<&Instance> {
        let names = || {
            let names: Vec<&str> =
                self.state.instances.iter().map(|instance| instance.name.as_str()).collect();
            names.join(", ")
        };
        let found = self.state.instances.iter().find(|instance| instance.name == name);
        found.with_context(|| format!("there is no instance {name}; there are {}", names()))
    }

    /// The host of an instance or of one of its processes, and the processes that the name means.
    ///
    /// # Errors
    /// When there is none, with the names of all.
    pub(super) fn processes(&self, name: &str) -> anyhow::Result<(String, Vec<String>)> {
        let mut present = self.state.instances.iter().filter(|instance| !instance.is_removed);
        let of_group = present.find(|instance| instance.processes().iter().any(|process| process == name));
        match of_group {
            Some(instance) => Ok((instance.host.clone(), vec![name.to_owned()])),
            None => self.instance(name).map(|instance| (instance.host.clone(), instance.processes())),
        }
    }

    /// The servers that take the commits of the exchange: the primary, or the workers of a Citus cluster. None where its store
    /// is embedded.
    pub(super) fn databases(&self) -> Vec<Instance> {
        self.of(Role::Citus).into_iter().skip(1).chain(self.of(Role::Postgres)).collect()
    }

    /// The exchange's public URL: the proxy's, or that of its only process.
    pub(super) fn exchange_url(&self) -> String {
        let of = |role| self.of(role).into_iter().next().map(|instance| instance.authority());
        match (of(Role::Proxy), of(Role::Exchange)) {
            (Some(proxy), _) => format!("https://{proxy}/"),
            (None, Some(exchange)) => format!("http://{exchange}/"),
            (None, None) => String::new(),
        }
    }

    /// The wire gateway of the exchange's account.
    ///
    /// # Errors
    /// When the topology has no bank.
    pub(super) fn gateway_url(&self) -> anyhow::Result<String> {
        let bank = self.of(Role::Bank).pop().context("an exchange needs a bank")?;
        Ok(format!("http://{}/taler-wire-gateway/{ACCOUNT}/", bank.authority()))
    }

    /// The services that a generator uses.
    ///
    /// # Errors
    /// When the topology has an exchange but no bank, or the switch has no address.
    pub(super) fn target(&self, generator: &Instance) -> anyhow::Result<Target> {
        let cash = match self.of(Role::Exchange).is_empty() {
            true => None,
            false => Some(self.cash()?),
        };
        let clearing = self.of(Role::Switch).pop().map(|switch| {
            let (names, ports) = generator.participants().unzip();
            let (switch, host) = (socket_addr(&switch.authority())?, generator.address.clone());
            anyhow::Ok(Clearing { switch, host, names, ports })
        });
        Ok(Target { currency: self.topology.currency.clone(), cash, clearing: clearing.transpose()? })
    }

    fn cash(&self) -> anyhow::Result<Cash> {
        let bank = self.of(Role::Bank).into_iter().next().context("wallets need a bank")?;
        Ok(Cash {
            exchange_url: self.exchange_url(),
            bank_url: format!("http://{}/", bank.authority()),
            merchants: self.of(Role::Merchant).iter().map(Instance::authority).collect(),
            merchant_token: self.state.shop_token.clone(),
            merchant_payto: format!("payto://x-taler-bank/{}/shop?receiver-name=shop", bank.address),
        })
    }

    /// The operators of the switch.
    ///
    /// # Errors
    /// When there is no switch, or it has no address.
    pub(super) fn hub(&self) -> anyhow::Result<Hub> {
        let switch = self.of(Role::Switch).pop().context("the topology has no switch")?;
        let address = metrics_authority(&switch).context("a switch has a port for operators")?;
        Ok(Hub::new(socket_addr(&address)?, self.state.operator_tokens.clone()))
    }

    /// The machine whose cores a host has: this one, unless ssh reaches it.
    pub(super) fn machine(&self, host: &str) -> String {
        match self.hosts.get(host).map(|access| access.kind) {
            Some(HostKind::Ssh) => host.to_owned(),
            _ => "this machine".to_owned(),
        }
    }

    /// A connection to the agent of a host.
    ///
    /// # Errors
    /// When it does not listen.
    pub(super) fn agent(&self, host: &str) -> anyhow::Result<Agent> {
        let access = self.hosts.get(host).with_context(|| format!("there is no host {host}"))?;
        Agent::connect(host, &access.reach)
    }

    /// A connection to the agent of a host that waits so long for an answer.
    ///
    /// # Errors
    /// When it does not listen.
    pub(super) fn patient_agent(&self, host: &str, patience: Duration) -> anyhow::Result<Agent> {
        let access = self.hosts.get(host).with_context(|| format!("there is no host {host}"))?;
        Agent::connect_for(host, &access.reach, patience)
    }

    /// Connections to all agents.
    ///
    /// # Errors
    /// When one does not listen.
    pub(super) fn agents(&self) -> anyhow::Result<BTreeMap<String, Agent>> {
        self.hosts.keys().map(|host| Ok((host.clone(), self.agent(host)?))).collect()
    }
}
